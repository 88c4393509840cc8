/* SPDX-License-Identifier: Apache-2.0 */
/* Many deadlines on one loop timer: a heap of intrusive entries, so that an entry needs no handle of its
 * own. When the loop was delayed, it reads its sockets before it reports a deadline as passed, because
 * what was awaited may have arrived. Everything here runs on the loop thread. */
#ifndef DAEMON_DEADLINE_H
#define DAEMON_DEADLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/slices.h"

struct deadline {
    uint64_t at_ns;                       /* uv_hrtime() */
    size_t index;                         /* index in the heap, from 1; 0: not set */
    void (*on_passed)(struct deadline *); /* the deadline is unset before the call */
};

struct deadlines {
    uv_timer_t timer;
    /* active while more deadlines have passed than one iteration reports, or while the sockets are read
     * first */
    uv_idle_t turn;
    bool reads_first;
    /* When the timer is active: its time, which is at most that of the first deadline. It may be earlier,
     * where a deadline was unset. */
    uint64_t armed_ns;
    struct deadline **heap; /* [1..count] */
    size_t count, size;
    struct slices slices; /* for everybody who has deadlines */
};

void deadlines_init(struct deadlines *deadlines, uv_loop_t *loop);
/* frees the heap; the entries are no longer set */
void deadlines_close(struct deadlines *deadlines, uv_close_cb on_closed);

/* Sets or resets the deadline to timeout_ns from now; a negative timeout unsets it. false: out of memory,
 * and the deadline is unset. */
bool deadline_set(struct deadlines *deadlines, struct deadline *deadline, int64_t timeout_ns);
void deadline_unset(struct deadlines *deadlines, struct deadline *deadline);

/* The remaining time, as the protocol has it: -1 if unset, 0 if it has passed. */
int64_t deadline_left_ns(const struct deadline *deadline);

#endif
