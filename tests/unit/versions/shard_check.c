/* SPDX-License-Identifier: Apache-2.0 */
/* The loop does not look at the boxes of a part, of which there may be 131,072: a worker does. Nothing here measures time in
 * seconds: what the loop does is compared with what the worker has to do. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/memory/region.h"
#include "daemon/versions/shards_impl.h"
#include "tests/support/check.h"

enum { N = 65536 };

static uv_loop_t loop;
static struct work_pool *pool;
static struct accounts accounts;
static struct regions regions;
static struct shards shards;
static struct version version;
static struct layout *layout;
static char names[N][48], *keys[N];
static uint64_t zeros[N], ones[N];
static struct rdt_error told;
static uint32_t told_rank;
static size_t manifest_bytes;
static bool ended;

static void on_checked(struct version *of, struct shard_manifest *manifest, struct rdt_error *why)
{
    told = *why;
    manifest_bytes = manifest->metadata_bytes;
    ended = true;
    version_check_fini(of);
}

static void on_refused(struct version *of, uint32_t rank, const struct rdt_error *why)
{
    told = *why;
    told_rank = rank;
    ended = true;
    version_check_fini(of);
}

static const struct version_check_events events = {.on_checked = on_checked, .on_refused = on_refused};

static void setup(void)
{
    const struct owner me = {.uid = 1000};

    cr_assert_eq(uv_loop_init(&loop), 0);
    must_ok(work_pool_create(&loop, 1, &pool, &err));
    accounts_init(&accounts);
    regions.pool = pool;
    shards.regions = &regions;
    shards.max_tensors = N;
    version = (struct version){.shards = &shards, .of = 2, .account = account_get(&accounts, &me)};
    must_ok(version_check_init(&version, &events, &err));
    layout = layout_create(N, N);
    for (uint32_t i = 0; i < N; i++) {
        (void)snprintf(names[i], sizeof names[i], "model.layers.%u.self_attn.q_proj.weight", i);
        keys[i] = names[i];
        ones[i] = layout->shape[i] = 1;
        layout->dtype[i] = RDT_F32;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
        layout_set_row_major(layout, i);
    }
    told = (struct rdt_error){0};
    ended = false;
}

static void on_closed(void *arg) {}

static void teardown(void)
{
    work_pool_close(pool, on_closed, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(version.account->used[USAGE_HEAP], 0u, "%llu bytes are charged",
                 (unsigned long long)version.account->used[USAGE_HEAP]);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
    account_unref(version.account);
    accounts_fini(&accounts);
    free(layout);
}

TestSuite(shard_check, .init = setup, .fini = teardown, .timeout = 120);

static Rdt__Pb__Boxes boxes_of(uint32_t n)
{
    Rdt__Pb__Boxes boxes = RDT__PB__BOXES__INIT;

    boxes.key = keys;
    boxes.global_shape = ones;
    boxes.start = zeros;
    boxes.n_key = boxes.n_global_shape = boxes.n_start = n;
    return boxes;
}

static void add(uint32_t rank, const struct layout *tensors, const Rdt__Pb__Boxes *boxes)
{
    uint8_t *packed = malloc(rdt__pb__boxes__get_packed_size(boxes) + 1);
    struct shard_part part = {.rank = rank, .of = 2, .layout = tensors, .boxes = packed};

    part.box_bytes = rdt__pb__boxes__pack(boxes, packed);
    must_ok(version_check_add(&version, &part, &err));
    free(packed);
}

static void run_until_ended(void)
{
    while (!ended)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

Test(shard_check, boxes_of_a_part_are_noted_by_a_worker)
{
    const Rdt__Pb__Boxes all = boxes_of(N), none = boxes_of(0);
    struct layout *empty = layout_create(0, 0);
    struct shard_cover cover;
    uint64_t began_ns = cpu_ns(), noting_ns;

    shard_cover_init(&cover, N);
    must_ok(shard_cover_add(&cover, 0, 0, layout, &all, &err));
    noting_ns = cpu_ns() - began_ns;
    shard_cover_fini(&cover);
    uint8_t *packed = malloc(rdt__pb__boxes__get_packed_size(&all));
    struct shard_part part = {.rank = 0, .of = 2, .layout = layout, .boxes = packed};
    part.box_bytes = rdt__pb__boxes__pack(&all, packed);
    began_ns = cpu_ns();
    must_ok(version_check_add(&version, &part, &err));
    cr_assert_lt(cpu_ns() - began_ns, noting_ns / 2, "the loop has noted them itself");
    free(packed);
    add(1, empty, &none);
    version_check_start(&version);
    run_until_ended();
    cr_assert_eq(told.status, RDT_OK, "%s", told.msg);
    cr_assert_gt(manifest_bytes, N);
    free(empty);
}

Test(shard_check, part_with_wrong_boxes_is_named)
{
    const Rdt__Pb__Boxes all = boxes_of(N), fewer = boxes_of(N - 1);

    add(0, layout, &all);
    add(1, layout, &fewer);
    version_check_start(&version);
    run_until_ended();
    cr_assert(told.status == RDT_INVALID && told_rank == 1, "%s", told.msg);
}

/* Its publisher leaves while the worker is at work: what it had is freed there. */
Test(shard_check, version_that_ends_meanwhile_leaves_nothing)
{
    const Rdt__Pb__Boxes all = boxes_of(N);

    add(0, layout, &all);
    add(1, layout, &all);
    version_check_fini(&version);
}

static uv_sem_t go_on;

static void block(struct work *work)
{
    (void)work;
    uv_sem_wait(&go_on);
}

static void unblocked(struct work *work)
{
    *work = (struct work){0};
}

/* What the worker has not freed yet stays charged. */
Test(shard_check, boxes_of_a_version_that_has_ended_are_charged_until_a_worker_has_freed_them)
{
    const Rdt__Pb__Boxes all = boxes_of(N);
    struct work blocking = {.run = block, .done = unblocked};
    uint64_t charged;

    cr_assert_eq(uv_sem_init(&go_on, 0), 0);
    work_submit(pool, &blocking);
    add(0, layout, &all);
    charged = version.account->used[USAGE_HEAP];
    cr_assert_gt(charged, N);
    version_check_fini(&version);
    cr_assert_eq(version.account->used[USAGE_HEAP], charged);
    uv_sem_post(&go_on);
    while (version.account->used[USAGE_HEAP] > 0)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_null(blocking.run);
    uv_sem_destroy(&go_on);
}
