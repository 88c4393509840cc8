/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/slices.h"

/* A slice whose run may begin another one. */
struct slice_run {
    const struct slice *slice;
    const struct slice_run *outer;
};

static bool runs(const struct slices *slices, const struct slice *slice)
{
    for (const struct slice_run *at = slices->running; at; at = at->outer)
        if (at->slice == slice)
            return true;
    return false;
}

static bool run(struct slices *slices, struct slice *slice, uint64_t until_ns)
{
    const struct slice_run here = {slice, slices->running};
    bool ended;

    slices->running = &here;
    ended = slice->run(slice, until_ns);
    slices->running = here.outer;
    return ended;
}

static void on_turn(uv_idle_t *turn)
{
    struct slices *slices = turn->data;
    uint64_t until_ns = uv_hrtime() + SLICES_TURN_NS;
    struct list now; /* each runs once in a turn */

    list_init(&now);
    list_splice(&now, &slices->waiting);
    list_drain (struct slice, slice, &now, link) {
        list_remove(&slice->link);
        if (!run(slices, slice, until_ns))
            slice_start(slices, slice);
        if (uv_hrtime() >= until_ns)
            break;
    }
    list_splice(&now, &slices->waiting);
    list_splice(&slices->waiting, &now);
    if (list_empty(&slices->waiting))
        (void)uv_idle_stop(turn);
}

void slices_init(struct slices *slices, uv_loop_t *loop)
{
    (void)uv_idle_init(loop, &slices->turn);
    slices->turn.data = slices;
    list_init(&slices->waiting);
    slices->running = NULL;
}

void slices_close(struct slices *slices)
{
    list_drain (struct slice, slice, &slices->waiting, link)
        list_remove(&slice->link);
    uv_close((uv_handle_t *)&slices->turn, NULL);
}

void slice_start(struct slices *slices, struct slice *slice)
{
    if (!slice->link.next)
        list_init(&slice->link);
    if (!slices) {
        list_remove(&slice->link);
        while (!slice->run(slice, UINT64_MAX))
            ;
    } else if (list_empty(&slice->link)) {
        list_append(&slices->waiting, &slice->link);
        if (!uv_is_closing((uv_handle_t *)&slices->turn))
            (void)uv_idle_start(&slices->turn, on_turn);
    }
}

void slice_begin(struct slices *slices, struct slice *slice)
{
    if (!slices || runs(slices, slice) || (!slice_waits(slice) && !run(slices, slice, uv_hrtime() + SLICES_TURN_NS)))
        slice_start(slices, slice);
}

void slice_stop(struct slice *slice)
{
    if (slice_waits(slice))
        list_remove(&slice->link);
}
