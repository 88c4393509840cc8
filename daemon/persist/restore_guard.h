/* SPDX-License-Identifier: Apache-2.0 */
/* Restoring one thing of an earlier daemon, a record or a file, which must not end this daemon: it would end each later one,
 * too. The kernel kills a daemon that takes more memory than its control group has, so what does not fit is not restored. What
 * is being restored is noted where the next daemon finds it, in case it ends this one in another way. */
#ifndef DAEMON_RESTORE_GUARD_H
#define DAEMON_RESTORE_GUARD_H

#include "daemon/base/memory_room.h"

#define RESTORE_HEAP_FACTOR 3u /* what is decoded, and what is made of it, take so many times its bytes */

struct restore_guard {
    struct memory_room *room;
    void (*note)(void *arg, const void *thing); /* outlives the daemon; NULL: nothing is being restored any more */
    void *arg;
};

/* bytes: of the encoded thing. RDT_OK: restore it, then call restore_guard_leave. NO_MEMORY: it does not fit. */
static inline enum rdt_status restore_guard_enter(const struct restore_guard *guard, const void *thing, uint64_t bytes,
                                                  struct rdt_error *err)
{
    enum rdt_status status = memory_room_take(guard->room, RESTORE_HEAP_FACTOR * bytes, false, err);

    if (status == RDT_OK)
        guard->note(guard->arg, thing);
    return status;
}

static inline void restore_guard_leave(const struct restore_guard *guard, uint64_t bytes)
{
    guard->note(guard->arg, NULL);
    memory_room_taken(guard->room, RESTORE_HEAP_FACTOR * bytes);
}

#endif
