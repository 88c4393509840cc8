/* SPDX-License-Identifier: Apache-2.0 */
/* What a copy from and to devices does with the tensors that it does not copy. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/base/deadline.h"
#include "daemon/memory/device_copy.h"
#include "tests/support/fakes/fake_memory.h"

TestSuite(device_copy, .init = fake_setup, .fini = fake_teardown, .timeout = 60);

#define MANY 131072u

static unsigned n_done, n_turns;
static bool was_cancelled;

static void on_done(void *arg, const struct rdt_error *err)
{
    (void)arg;
    n_done++;
    was_cancelled = err && err->status == RDT_CANCELLED;
}

static void on_turn(uv_prepare_t *prepare)
{
    n_turns++;
    if (n_done > 0)
        uv_prepare_stop(prepare);
}

/* Of one byte each. */
static struct layout *bytes_of(uint32_t count)
{
    struct layout *layout = layout_create(count, count);

    cr_assert_not_null(layout);
    for (uint32_t i = 0; i < count; i++) {
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
        layout->region[i] = 0;
        layout->offset[i] = i;
        layout->shape[i] = 1;
        layout->strides[i] = 1;
    }
    return layout;
}

struct world {
    uv_loop_t loop;
    uv_prepare_t prepare;
    struct deadlines deadlines;
    struct layout *layout;
    struct device_place place;
    struct device_copy *copy;
};

/* All tensors lie in host memory at both ends. */
static void start(struct world *world, uint32_t count)
{
    n_done = n_turns = 0;
    cr_assert_eq(uv_loop_init(&world->loop), 0);
    deadlines_init(&world->deadlines, &world->loop);
    (void)uv_prepare_init(&world->loop, &world->prepare);
    (void)uv_prepare_start(&world->prepare, on_turn);
    world->layout = bytes_of(count);
    world->place = (struct device_place){.region = fake_region(count, 7)};
    world->place.region->regions->deadlines = &world->deadlines;
    cr_assert_eq(device_copy_start(world->layout, &world->place, world->layout, &world->place, NULL, false, on_done, NULL,
                                   &world->copy, NULL),
                 RDT_OK);
    cr_assert_eq(n_done, 0, "told inside the call");
}

static void end(struct world *world)
{
    uv_prepare_stop(&world->prepare);
    uv_close((uv_handle_t *)&world->prepare, NULL);
    world->place.region->regions->deadlines = NULL;
    region_unref(world->place.region);
    fake_run();
    free(world->layout);
    deadlines_close(&world->deadlines, NULL);
    (void)uv_run(&world->loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&world->loop), 0);
}

Test(device_copy, few_tensors_that_are_not_copied_are_nothing_to_copy)
{
    struct world world;

    start(&world, 3);
    cr_assert_null(world.copy);
    end(&world);
    cr_assert_eq(n_done, 0);
}

Test(device_copy, very_many_tensors_are_looked_at_in_several_turns)
{
    struct world world;

    start(&world, MANY);
    cr_assert_not_null(world.copy, "all were looked at in one go");
    while (n_done == 0)
        (void)uv_run(&world.loop, UV_RUN_ONCE);
    cr_assert_gt(n_turns, 1);
    cr_assert_not(was_cancelled);
    end(&world);
    cr_assert_eq(n_done, 1);
}

Test(device_copy, copy_that_has_not_begun_can_be_stopped)
{
    struct world world;

    start(&world, MANY);
    cr_assert_not_null(world.copy);
    device_copy_stop(world.copy);
    while (n_done == 0)
        (void)uv_run(&world.loop, UV_RUN_ONCE);
    cr_assert(was_cancelled);
    end(&world);
    cr_assert_eq(n_done, 1);
}
