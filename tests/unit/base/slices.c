/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/slices: long walks take turns with each other and with the rest of the loop. Nothing here measures time: on a
 * slow machine a slice does less, so there are more turns. */
#include <criterion/criterion.h>

#include "daemon/base/slices.h"

static uv_loop_t loop;
static uv_check_t bystander;
static struct slices slices;
static unsigned n_turns; /* of the loop */

static void on_check(uv_check_t *check)
{
    n_turns++;
}

static void setup(void)
{
    cr_assert_eq(uv_loop_init(&loop), 0);
    slices_init(&slices, &loop);
    uv_check_init(&loop, &bystander);
    uv_check_start(&bystander, on_check);
    uv_unref((uv_handle_t *)&bystander);
    n_turns = 0;
}

static void teardown(void)
{
    slices_close(&slices);
    uv_close((uv_handle_t *)&bystander, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(slices, .init = setup, .fini = teardown, .timeout = 60);

struct walk {
    struct slice slice;
    unsigned n_left, n_runs;
    struct walk *other; /* whose number is noted at the end of this one */
    unsigned other_left;
};

static bool walk(struct slice *slice, uint64_t until_ns)
{
    struct walk *at = container_of(slice, struct walk, slice);

    at->n_runs++;
    while (at->n_left > 0) {
        at->n_left--;
        if (uv_hrtime() >= until_ns)
            break;
    }
    if (at->n_left == 0 && at->other)
        at->other_left = at->other->n_left;
    return at->n_left == 0;
}

Test(slices, hundred_thousand_things_take_many_turns)
{
    struct walk many = {.slice.run = walk, .n_left = 100000};

    slice_start(&slices, &many.slice);
    slice_start(&slices, &many.slice); /* which waits already */
    cr_assert(many.n_left == 100000 && slice_waits(&many.slice), "nothing is done at once");
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert(many.n_left == 0 && !slice_waits(&many.slice));
    cr_assert_gt(n_turns, 10u);
    cr_assert_geq(n_turns, many.n_runs);
}

Test(slices, short_walk_does_not_wait_for_a_long_one)
{
    struct walk many = {.slice.run = walk, .n_left = 1000000};
    struct walk few = {.slice.run = walk, .n_left = 1, .other = &many};

    slice_start(&slices, &many.slice);
    slice_start(&slices, &few.slice);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert(many.n_left == 0 && few.n_left == 0);
    cr_assert_gt(few.other_left, 100000u);
}

Test(slices, little_work_is_done_at_once)
{
    struct walk few = {.slice.run = walk, .n_left = 1}, many = {.slice.run = walk, .n_left = 1000000};

    slice_begin(&slices, &few.slice);
    cr_assert(few.n_left == 0 && !slice_waits(&few.slice));
    slice_begin(&slices, &many.slice);
    cr_assert(many.n_left > 0 && many.n_left < 1000000 && slice_waits(&many.slice));
    slice_stop(&many.slice);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(many.n_runs, 1u);
    slice_stop(&many.slice); /* again is harmless */
    slice_start(NULL, &many.slice);
    cr_assert_eq(many.n_left, 0u, "without a loop it is done at once");
}

struct nested {
    struct slice slice;
    unsigned n_left, n_inside, n_most;
};

static bool begin_itself(struct slice *slice, uint64_t until_ns)
{
    struct nested *at = container_of(slice, struct nested, slice);

    if (at->n_left == 0)
        return true;
    if (++at->n_inside > at->n_most)
        at->n_most = at->n_inside;
    at->n_left--;
    slice_begin(&slices, slice);
    at->n_inside--;
    return at->n_left == 0;
}

/* Who is told something by a slice may give it more to tell: its lists are not changed behind its back. */
Test(slices, slice_never_runs_inside_itself)
{
    struct nested nested = {.slice.run = begin_itself, .n_left = 3};

    slice_begin(&slices, &nested.slice);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert(nested.n_left == 0 && !slice_waits(&nested.slice));
    cr_assert_eq(nested.n_most, 1u);
}
