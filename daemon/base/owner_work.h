/* SPDX-License-Identifier: Apache-2.0 */
/* Work that a user can make slow, on threads that only that user waits for.
 *
 * A descriptor that a client sent may be anything: closing a TCP socket with SO_LINGER waits for its peer, closing a file of
 * a FUSE file system waits for another process, closing a Unix socket closes all descriptors that wait in it, and the
 * last close of a memfd frees all of its pages. The kernel does that work in the thread that closes. Looking up a host
 * name waits for a name server. None of this may block the loop, or the work pool that all users share.
 *
 *   loop: owner_work_close_fd --> person's queue -> a thread closes --> loop: the charge goes back
 *   loop: owner_work_submit ----> person's queue -> work->run -------> loop: work->done
 *
 * Each person (account.h) has queues of its own, one for each of four kinds of work:
 *
 *   what always ends   closing memory and sockets without unread messages; the work of the daemon itself
 *   closes             of anything else that a client sent: the end of a close may never come
 *   works              owner_work_submit: the end may not come as long as a client has the lock of its file
 *   long copies        owner_work_submit_copy: the same, but each takes a processor for as long as it runs
 *
 * A queue with waiting work gets another thread, up to OWNER_WORK_THREADS, so work that does not return delays only its own
 * person; half of the threads of a kind are for persons for whom none of them works. Many persons together can still let all
 * threads of a kind hang. Therefore no kind can take the threads of another: a memfd is closed, and a snapshot proved, however
 * many closes hang.
 *
 * Of a person's long copies, only as many run at once as the work pool has threads: each thread more than there are processors
 * makes the small operations of everybody wait for its time slice. A copy that has not returned for OWNER_WORK_TICK_MS no
 * longer counts, so copies that are held up do not hold up the others of that person.
 *
 * A thread that has been in one close for OWNER_WORK_TICK_MS gets a signal, which ends the wait of a lingering socket. A late
 * close is charged to its account (USAGE_FDS) until it has returned. The sessions of a person with OWNER_WORK_MAX items of
 * work are not read (owner_work_is_behind) until the threads have caught up: each item may have a descriptor that is charged
 * to nobody.
 *
 * Everything here runs on the loop thread, unless a function says otherwise.
 */
#ifndef DAEMON_OWNER_WORK_H
#define DAEMON_OWNER_WORK_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/base/account.h"
#include "daemon/base/work.h"

#define OWNER_WORK_TICK_MS 20
#define OWNER_WORK_THREADS 32         /* of one person and kind */
#define OWNER_WORK_SHARED_THREADS 224 /* of each kind but the first; as many more are for persons for whom no thread works */
#define OWNER_WORK_MAX 512u

struct owner_work;

/* n_copies_at_once: of one person. Errors: RDT_SYSTEM (the loop must run once more to close a handle), RDT_NO_MEMORY. */
enum rdt_status owner_work_create(uv_loop_t *loop, unsigned n_copies_at_once, struct owner_work **pool_p,
                                  struct rdt_error *err);

/* on_ended_some(arg) runs, from the loop, when work has ended: a person may no longer be behind. */
void owner_work_watch(struct owner_work *pool, void (*on_ended_some)(void *arg), void *arg);

/* Takes the descriptor and closes it soon. When the close has not returned after a tenth of a second, it
 * is charged to the account, without a check, until it has; ordinary descriptors are closed sooner. When
 * memory is short, a reserve is used; when that is used up, the descriptor stays open and charged. */
void owner_work_close_fd(struct owner_work *pool, int take_fd, struct account *account);

/* The same for the socket of a client's connection, which is shut down first. Nobody can send it a descriptor after that, so
 * if there are no unread messages, its close waits for nobody. */
void owner_work_close_socket(struct owner_work *pool, int take_sock, struct account *account);

/* Runs work->run on a thread of the account's person (NULL account: of the daemon itself), then work->done
 * on the loop. must_end: owner_work_close waits for the work. Otherwise the close may abandon it, and done
 * does not run. work->lane is overwritten. */
void owner_work_submit(struct owner_work *pool, struct work *work, struct account *account, bool must_end);

/* The same for a step of a long copy, which owner_work_close waits for. */
void owner_work_submit_copy(struct owner_work *pool, struct work *work, struct account *account);

/* Whether the account's person has so much work here that its sessions must not be read. */
bool owner_work_is_behind(const struct owner_work *pool, struct account *account);

unsigned owner_work_pending(const struct owner_work *pool); /* descriptors to close and other work, of all */

/* Runs on_none(arg) once, at once or from the loop, when no work is left that must end: whatever its `done` uses is needed
 * until then. */
void owner_work_await_works(struct owner_work *pool, void (*on_none)(void *arg), void *arg);

/* Waits for work that must end, and at most one second for the rest: a thread that is blocked ends with
 * the process. Runs every done that is due, then on_closed, from the loop. */
void owner_work_close(struct owner_work *pool, void (*on_closed)(void *arg), void *arg);

#endif
