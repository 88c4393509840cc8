/* SPDX-License-Identifier: Apache-2.0 */
/* Work in slices: walks over things whose number a client, another node, etcd or a file chooses. A walk that would take longer
 * than a turn continues in later turns of the loop, and sockets are read and answered in between. All such walks take turns,
 * in the order in which they were started, and share SLICES_TURN_NS of each turn, so many walks delay others no more than one.
 *
 *   slice_start --> run(until_ns) --> false: appended again ... --> true: it has ended
 *
 * Everything here runs on the loop thread, and no call needs memory. */
#ifndef DAEMON_SLICES_H
#define DAEMON_SLICES_H

#include <stdbool.h>
#include <uv.h>

#include "proto/list.h"

#define SLICES_TURN_NS 25000u

/* Zeroed before its first start, except for `run`. */
struct slice {
    struct list link; /* in slices->waiting */
    /* Works until about until_ns (uv_hrtime), and at least one step. Returns true when nothing is left: then the slice
     * has ended and may be started again, or has been freed by it. It may be started again from inside this call, too:
     * then it runs once more later, and never inside itself. */
    bool (*run)(struct slice *, uint64_t until_ns);
};

struct slices {
    uv_idle_t turn; /* active while a slice waits */
    struct list waiting;
    const struct slice_run *running; /* the innermost one; NULL: none */
};

void slices_init(struct slices *slices, uv_loop_t *loop);
void slices_close(struct slices *slices); /* what still waits never runs again; its owner frees it */

/* run will be called in later turns. Does nothing if it waits already. slices NULL (the end of the daemon, unit tests without
 * a loop): runs to the end inside this call. */
void slice_start(struct slices *slices, struct slice *slice);

/* The same, but does the first part at once, which is all if there is little to do; inside its own run it does nothing at
 * once. */
void slice_begin(struct slices *slices, struct slice *slice);

static inline bool slice_waits(const struct slice *slice)
{
    return slice->link.next && !list_empty(&slice->link);
}

/* run is not called any more. Does nothing if it does not wait. Not for use inside run, which returns true instead. */
void slice_stop(struct slice *slice);

#endif
