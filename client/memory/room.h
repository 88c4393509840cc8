/* SPDX-License-Identifier: Apache-2.0 */
/* Making room for new mappings. When a process has no address space (RLIMIT_AS) or no mappings (vm.max_map_count) left, it
 * gives up those that it only caches. They belong to the daemon as much as to the process: an answer that is on its way may
 * name one of them without an fd. So the daemon is asked to drop them, and says by REGION_GONE and REGION_BACK which end here.
 *
 *     librdt                                                daemon
 *       │ ◄── FETCH_DONE ────────────────────────────────────┤
 *       │  mmap: ENOMEM, so the answer waits                 │
 *       ├── DROP_CACHED ────────────────────────────────────►│ drops all that it has cached for this client
 *       │ ◄── REGION_GONE, REGION_BACK ──────────────────────┤
 *       │  the cached mappings end                           │
 *       │ ◄── the reply ─────────────────────────────────────┤
 *       │  the answer is handled again                       │
 *
 * An answer also waits while its mapper cannot map it yet (AGAIN of rdt_mapper.map): it is handled again after RETRY_NS.
 *
 * Answers that wait have room_most_fds() descriptors together at most; those that would exceed it fail.
 *
 * An allocation does the same in the thread that waits for it. Whatever cannot be mapped then either has failed. Under the
 * connection's lock unless a comment says otherwise. */
#ifndef CLIENT_ROOM_H
#define CLIENT_ROOM_H

#include "client/session/connection.h"
#include "rdt.pb-c.h"

/* How many descriptors answers may bring before this process maps or drops them: so many that the program has room to open
 * files of its own. Without room the kernel would drop the fds of a frame, and the connection would be lost. */
uint32_t room_most_fds(void);

/* The answer could not be mapped, for the reason in *why. True: it waits, with the fds of the frame, and the callback for
 * events will be called with it again. False: it has failed, because nothing can be given up, because it has waited for that
 * already, or because those that wait have too many descriptors. */
bool room_await(rdt *conn, const Rdt__Pb__FetchDone *done, struct frame *frame, const struct rdt_error *why);
void room_retry(rdt *conn); /* conn->room.retry has expired */

/* The same for what this thread maps itself: gives up what is cached, and waits for it until the deadline. True: it is worth
 * trying again. Takes the lock. */
bool room_make(rdt *conn, int64_t deadline_ns, const struct rdt_error *why);

void room_forget(rdt *conn); /* drops the answers that wait, because their daemon has ended or the connection ends */

#endif
