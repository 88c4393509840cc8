/* SPDX-License-Identifier: Apache-2.0 */
#include "fds.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "connection.h"
#include "proto/std_fds.h"

/* ---- marks ---- */

void fd_mark_set(struct fd_mark *mark, int fd)
{
    struct stat st = {0};

    (void)fstat(fd, &st);
    *mark = (struct fd_mark){st.st_dev, st.st_ino};
}

bool fd_mark_fits(const struct fd_mark *mark, int fd)
{
    struct stat st;

    return fd >= 0 && mark->inode != 0 && fstat(fd, &st) == 0 && st.st_dev == mark->device && st.st_ino == mark->inode;
}

void fd_mark_close(const struct fd_mark *mark, int fd)
{
    if (fd_mark_fits(mark, fd))
        (void)close(fd);
}

/* ---- those of a connection ---- */

bool fds_watch(const rdt *conn, int fd, unsigned events)
{
    struct epoll_event event = {.events = events};

    return epoll_ctl(conn->loop.epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Takes the fd, and adds it to the set, without which nobody could tell whose it is. Returns -1 on an error. */
static int watched(const rdt *conn, int take_fd, unsigned events)
{
    int sys_errno;

    if (take_fd < 0 || fds_watch(conn, take_fd, events))
        return take_fd;
    sys_errno = errno;
    (void)close(take_fd);
    errno = sys_errno;
    return -1;
}

int fds_open(rdt *conn)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return errno;
    conn->waiters.wake_fd = std_fds_avoid(ends[0]);
    conn->waiters.waker_fd = std_fds_avoid(ends[1]);
    fd_mark_set(&conn->waiters.wake_mark, conn->waiters.wake_fd >= 0 ? conn->waiters.wake_fd : conn->waiters.waker_fd);
    if (conn->waiters.wake_fd < 0 || conn->waiters.waker_fd < 0)
        return errno;
    conn->loop.epoll_fd = std_fds_avoid(epoll_create1(EPOLL_CLOEXEC));
    if (conn->loop.epoll_fd < 0)
        return errno;
    if (!fds_watch(conn, conn->waiters.wake_fd, 0)) {
        int sys_errno = errno;

        (void)close(conn->loop.epoll_fd);
        conn->loop.epoll_fd = -1;
        return sys_errno;
    }
    conn->loop.timer_fd = watched(conn, std_fds_avoid(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)), EPOLLIN);
    if (conn->loop.timer_fd < 0)
        return errno;
    conn->loop.event_fd = watched(conn, std_fds_avoid(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), EPOLLIN);
    return conn->loop.event_fd < 0 ? errno : 0;
}

/* Whether the set has this file under this number. */
static bool has(const rdt *conn, int fd, unsigned events)
{
    struct epoll_event event = {.events = events};

    return epoll_ctl(conn->loop.epoll_fd, EPOLL_CTL_MOD, fd, &event) == 0;
}

bool fds_have_wake(const rdt *conn)
{
    return fd_mark_fits(&conn->waiters.wake_mark, conn->waiters.wake_fd);
}

bool fds_have_loop(const rdt *conn)
{
    return fds_have_wake(conn) && has(conn, conn->waiters.wake_fd, 0);
}

bool fds_have_socket(const rdt *conn)
{
    return fd_mark_fits(&conn->socket.mark, conn->socket.fd);
}

void fds_close(const rdt *conn)
{
    if (fds_have_loop(conn)) {
        if (has(conn, conn->loop.timer_fd, EPOLLIN))
            (void)close(conn->loop.timer_fd);
        if (has(conn, conn->loop.event_fd, EPOLLIN))
            (void)close(conn->loop.event_fd);
        (void)close(conn->loop.epoll_fd);
    }
    fd_mark_close(&conn->waiters.wake_mark, conn->waiters.wake_fd);
    fd_mark_close(&conn->waiters.wake_mark, conn->waiters.waker_fd);
    fd_mark_close(&conn->socket.mark, conn->socket.fd);
    fd_mark_close(&conn->socket.stale_mark, conn->socket.stale);
}
