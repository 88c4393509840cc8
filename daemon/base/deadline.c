/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/deadline.h"

#include <assert.h>
#include <stdlib.h>

#define PASSED_PER_ITERATION 16    /* so that the loop reads its sockets in between */
#define LATE_NS UINT64_C(10000000) /* when a timer is later than this, the loop itself was delayed */

static void place(struct deadlines *all, size_t i, struct deadline *entry)
{
    all->heap[i] = entry;
    entry->index = i;
}

static void sift_up(struct deadlines *all, size_t i, struct deadline *entry)
{
    while (i > 1 && all->heap[i / 2]->at_ns > entry->at_ns) {
        place(all, i, all->heap[i / 2]);
        i /= 2;
    }
    place(all, i, entry);
}

static void sift_down(struct deadlines *all, size_t i, struct deadline *entry)
{
    for (;;) {
        size_t child = 2 * i;
        if (child > all->count)
            break;
        if (child < all->count && all->heap[child + 1]->at_ns < all->heap[child]->at_ns)
            child++;
        if (all->heap[child]->at_ns >= entry->at_ns)
            break;
        place(all, i, all->heap[child]);
        i = child;
    }
    place(all, i, entry);
}

static void on_timer(uv_timer_t *timer);
static void on_turn(uv_idle_t *turn);

static void rearm(struct deadlines *all)
{
    uint64_t now = uv_hrtime(), at;

    if (all->count == 0) {
        uv_timer_stop(&all->timer);
        return;
    }
    at = all->heap[1]->at_ns;
    if (at <= now) { /* with a timer of 0 ms the loop would not go on to its sockets */
        uv_idle_start(&all->turn, on_turn);
        return;
    }
    all->armed_ns = at;
    uv_update_time(all->timer.loop);
    /* rounded up: a timer that fires early would find nothing due */
    uv_timer_start(&all->timer, on_timer, (at - now + 999999) / 1000000, 0);
}

static void run_passed(struct deadlines *all)
{
    uint64_t now = uv_hrtime();

    for (unsigned n = 0; all->count > 0 && all->heap[1]->at_ns <= now && n < PASSED_PER_ITERATION; n++) {
        struct deadline *due = all->heap[1];
        deadline_unset(all, due);
        due->on_passed(due);
    }
    rearm(all);
}

static void on_timer(uv_timer_t *timer)
{
    struct deadlines *all = timer->data;

    if (all->count == 0 || uv_hrtime() <= all->heap[1]->at_ns + LATE_NS) {
        run_passed(all);
        return;
    }
    all->reads_first = true; /* libuv runs timers before it reads sockets, where the awaited message may be */
    uv_idle_start(&all->turn, on_turn);
}

static void on_turn(uv_idle_t *turn)
{
    struct deadlines *all = turn->data;

    if (all->reads_first) {
        all->reads_first = false; /* the sockets are read next, then this is called again */
        return;
    }
    uv_idle_stop(turn);
    run_passed(all);
}

void deadlines_init(struct deadlines *all, uv_loop_t *loop)
{
    uv_timer_init(loop, &all->timer);
    all->timer.data = all;
    uv_idle_init(loop, &all->turn);
    all->turn.data = all;
    all->reads_first = false;
    all->heap = NULL;
    all->count = all->size = 0;
    slices_init(&all->slices, loop);
}

void deadlines_close(struct deadlines *all, uv_close_cb on_closed)
{
    for (size_t i = 1; i <= all->count; i++)
        all->heap[i]->index = 0;
    free(all->heap);
    all->heap = NULL;
    all->count = all->size = 0;
    slices_close(&all->slices);
    uv_close((uv_handle_t *)&all->turn, NULL);
    uv_close((uv_handle_t *)&all->timer, on_closed);
}

void deadline_unset(struct deadlines *all, struct deadline *deadline)
{
    size_t i = deadline->index;
    struct deadline *last;

    if (i == 0)
        return;
    assert(all->heap[i] == deadline);
    deadline->index = 0;
    last = all->heap[all->count--];
    if (last != deadline) {
        if (i > 1 && all->heap[i / 2]->at_ns > last->at_ns)
            sift_up(all, i, last);
        else
            sift_down(all, i, last);
    }
}

bool deadline_set(struct deadlines *all, struct deadline *deadline, int64_t timeout_ns)
{
    deadline_unset(all, deadline);
    if (timeout_ns < 0)
        return true;
    if (all->count + 1 >= all->size) {
        size_t size = all->size ? 2 * all->size : 64;
        struct deadline **heap = realloc(all->heap, size * sizeof *heap);
        if (!heap)
            return false;
        all->heap = heap;
        all->size = size;
    }
    deadline->at_ns = uv_hrtime() + (uint64_t)timeout_ns;
    all->count++;
    sift_up(all, all->count, deadline);
    /* Most deadlines are unset before they pass. A timer that fires once too early costs less than
     * resetting it each time. */
    if (all->heap[1] == deadline && (!uv_is_active((uv_handle_t *)&all->timer) || all->armed_ns > deadline->at_ns))
        rearm(all);
    return true;
}

int64_t deadline_left_ns(const struct deadline *deadline)
{
    uint64_t now = uv_hrtime();

    if (deadline->index == 0)
        return -1;
    return deadline->at_ns > now ? (int64_t)(deadline->at_ns - now) : 0;
}
