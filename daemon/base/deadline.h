/* Many deadlines on one loop timer: a heap of intrusive entries, so that what has a deadline needs no handle of its own. A loop that was held up
 * reads what came meanwhile before it tells anyone that nothing came. */
#ifndef DAEMON_DEADLINE_H
#define DAEMON_DEADLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct deadline {
    uint64_t at_ns;                       /* uv_hrtime() */
    size_t place;                         /* 1.. in the heap; 0: not set */
    void (*on_passed)(struct deadline *); /* loop thread; the deadline is unset before */
};

struct deadlines {
    uv_timer_t timer;
    uv_idle_t turn; /* active while more have passed than one turn tells, or it reads first */
    bool reads_first;
    uint64_t armed_ns; /* the timer's, where it is active: no later than the first deadline, and earlier where that was unset */
    struct deadline **heap; /* [1..count] */
    size_t count, size;
};

void deadlines_init(struct deadlines *deadlines, uv_loop_t *loop);
void deadlines_close(struct deadlines *deadlines, uv_close_cb on_closed); /* frees the heap; entries are forgotten */

/* (Re)sets it to timeout_ns from now; negative: unsets it. false: no memory (the deadline is then unset). */
bool deadline_set(struct deadlines *deadlines, struct deadline *deadline, int64_t timeout_ns);
void deadline_unset(struct deadlines *deadlines, struct deadline *deadline);

/* What is left of it, for the wire: -1 if unset, 0 if it has passed. */
int64_t deadline_left_ns(const struct deadline *deadline);

#endif
