/* SPDX-License-Identifier: Apache-2.0 */
/* Which descriptors of a connection are still its own. A process, or the child of a fork, may close descriptors by their
 * numbers, as programs do that become daemons, and then open files of its own under these numbers: nothing of those may be
 * read, written, shut down or closed.
 *
 * A socket and a pipe are told by their inodes. An epoll, a timer and an event descriptor have no inode of their own, but the
 * epoll set knows what is in it, by file and number. So the pipe proves the epoll descriptor, and that the others.
 *
 *     pipe (inode) ── is in ──► epoll set ── has ──► timer_fd, event_fd             socket (inode)
 */
#ifndef CLIENT_FDS_H
#define CLIENT_FDS_H

#include <stdbool.h>
#include <sys/types.h>

struct fd_mark { /* of the file that a descriptor was opened for */
    dev_t device;
    ino_t inode;
};

struct rdt;

void fd_mark_set(struct fd_mark *mark, int fd); /* just opened; -1: the mark fits nothing */
bool fd_mark_fits(const struct fd_mark *mark, int fd);
void fd_mark_close(const struct fd_mark *mark, int fd); /* if it fits */

/* Opens those of waiters and loop. Returns 0 or errno; fds_close ends what is open. */
int fds_open(struct rdt *conn);
bool fds_watch(const struct rdt *conn, int fd, unsigned events); /* adds it to the epoll set; false: errno */

bool fds_have_wake(const struct rdt *conn); /* the pipe is ours */
bool fds_have_loop(const struct rdt *conn); /* the pipe and the epoll set are ours */
bool fds_have_socket(const struct rdt *conn);

/* Closes all that are ours, the socket too. */
void fds_close(const struct rdt *conn);

#endif
