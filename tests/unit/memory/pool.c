/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of host memory: which memory serves any client again, what counts as used, and how memory is freed. */
#include <uv.h>

#include "tests/unit/memory/reuse.h"

TestSuite(pool, .init = reuse_setup, .fini = reuse_teardown, .timeout = 60);

Test(pool, sizes_have_four_classes_to_a_doubling)
{
    static const uint64_t rows[][2] = {{17, 20}, {160, 160}, {161, 192}, {512, 512}, {513, 640}, {641, 768}, {897, 1024}};

    for (unsigned i = 0; i < sizeof(rows) / sizeof rows[0]; i++)
        cr_expect_eq(pool_room_bytes(&fake.regions.free_pool, &fake.kind, rows[i][0] * KIB), rows[i][1] * KIB, "%llu KiB",
                     (unsigned long long)rows[i][0]);
    cr_expect_eq(pool_room_bytes(&fake.regions.free_pool, &fake.kind, 12 * KIB + 1), 16 * KIB, "too little for a class");
    cr_expect_eq(pool_room_bytes(&fake.regions.free_pool, &fake.kind, 5 * SIZE + 1), 5 * SIZE + 4 * KIB, "too large");
    cr_expect_eq(pool_room_bytes(&fake.regions.free_pool, NULL, SIZE + 1), SIZE + 4 * KIB, "another kind");
}

Test(pool, second_request_allocates_ahead)
{
    struct region *regions[3];

    regions[0] = receive(SIZE, 1);
    cr_assert_eq(fake.regions.free_pool.bytes, 0u, "one request is no demand");
    regions[1] = receive(SIZE, 1);
    cr_assert_eq(fake.regions.free_pool.bytes, SIZE);
    cr_assert_eq(regions_used_bytes(&fake.regions), 2 * SIZE);
    cr_assert_eq(try_receive(SIZE - 5, 2, &regions[2], NULL), RDT_OK, "a block was free");
    cr_assert_eq(regions[2]->room, SIZE);
    cr_assert_eq(regions[2]->bytes, SIZE - 5);
    cr_assert_eq(fake.regions.free_pool.hits, 1u);
    cr_assert_eq(fake.regions.free_pool.misses, 2u);
    fake_run();
    for (unsigned i = 0; i < 3; i++)
        drop(regions[i]);
}

Test(pool, returned_block_is_zeroed)
{
    struct region *region = receive(SIZE, 1);
    void *addr = region->block.addr;

    memset(addr, 0xee, SIZE);
    drop(region);
    cr_assert_eq(fake.n_freed, 0u);
    cr_assert_eq(fake.regions.free_pool.bytes, SIZE);
    cr_assert_eq(regions_used_bytes(&fake.regions), 0u);
    cr_assert_eq(try_receive(SIZE, 2, &region, NULL), RDT_OK);
    cr_assert_eq(region->block.addr, addr);
    for (uint64_t i = 0; i < SIZE; i++)
        cr_assert_eq(((uint8_t *)addr)[i], 0);
    drop(region);
}

Test(pool, exported_memory_is_not_pooled)
{
    struct region *region = receive(SIZE, 1);
    int fd;

    cr_assert_eq(region_export_to(region, 0, false, &fd, NULL), RDT_OK);
    drop(region);
    cr_assert_eq(fake.n_freed, 1u);
    cr_assert_eq(fake.regions.bytes, 0u);
    region = receive(SIZE, 1);
    cr_assert_eq(region_export_to(region, 1, true, &fd, NULL), RDT_OK);
    drop(region);
    cr_assert_eq(fake.n_freed, 2u);
}

Test(pool, registrations_stay_with_a_block)
{
    struct region *region = receive(SIZE, 1), *got = NULL;
    void *handle = NULL, *again = NULL;

    cr_assert_eq(region_register(region, &fake.transport, &handle, on_ready, &got, NULL), RDT_AGAIN);
    fake_run();
    cr_assert_eq(region_register(region, &fake.transport, &handle, NULL, NULL, NULL), RDT_OK);
    drop(region);
    cr_assert_eq(fake.n_registered, 1u);
    region = receive(SIZE, 2);
    cr_assert_eq(region_register(region, &fake.transport, &again, NULL, NULL, NULL), RDT_OK, "registered already");
    cr_assert_eq(again, handle);
    fake_run();
    cr_assert_gt(fake.n_registered, 1u, "blocks allocated ahead are registered, too");
    drop(region);
}

Test(pool, pooled_memory_is_freed_before_a_request_is_refused)
{
    struct region *region = receive(SIZE, 1);

    drop(region);
    cr_assert_eq(fake.regions.free_pool.bytes, SIZE);
    fake.regions.limit_bytes = 3 * SIZE;
    region = fake_region(3 * SIZE, 1);
    cr_assert_eq(fake.regions.bytes, 3 * SIZE);
    cr_assert_eq(fake.regions.free_pool.bytes, 0u);
    cr_assert_eq(fake.n_freed, 1u);
    drop(region);
}

Test(pool, pooled_memory_is_kept_where_freeing_it_would_not_help)
{
    struct region *region = receive(SIZE, 1), *other = fake_region(SIZE, 1), *none = NULL;
    struct rdt_error err = {0};

    drop(region);
    fake.regions.limit_bytes = 3 * SIZE;
    cr_assert_eq(try_receive(3 * SIZE, 1, &none, &err), RDT_NO_MEMORY, "%s", err.msg);
    cr_assert_eq(fake.regions.free_pool.bytes, SIZE);
    drop(other);
}

Test(pool, pool_stays_below_its_limit)
{
    struct region *regions[20];

    for (unsigned i = 0; i < 20; i++)
        regions[i] = receive(SIZE, 1);
    for (unsigned i = 0; i < 20; i++)
        drop(regions[i]);
    cr_assert_leq(fake.regions.free_pool.bytes, 8 * SIZE);
    cr_assert_eq(fake.regions.bytes, fake.regions.free_pool.bytes);
}

/* The work pool takes time to allocate ahead, to zero and to free. No request is refused for that. */
Test(pool, allocation_waits_for_memory_that_is_being_freed)
{
    struct region *region, *got[4] = {0};
    struct rdt_error err = {0};
    int fd;

    fake.regions.limit_bytes = 5 * SIZE;
    for (unsigned i = 0; i < 4; i++) { /* from the second on, one more block is allocated ahead */
        enum rdt_status status =
            region_alloc(&fake.regions, "fake", "", SIZE, REGION_RECEIVED, &account, i, &got[i], on_ready, &got[i], &err);
        cr_assert(status == RDT_OK || status == RDT_AGAIN, "%u: %s", i, err.msg);
    }
    fake_run();
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_not_null(got[i]);
        if (i % 2) /* these are freed, not pooled */
            cr_assert_eq(region_export_to(got[i], 0, false, &fd, NULL), RDT_OK);
    }
    for (unsigned i = 0; i < 4; i++)
        region_unref(got[i]);
    region = NULL;
    cr_assert_eq(
        region_alloc(&fake.regions, "fake", "", 5 * SIZE, REGION_ALLOCATED, &account, 1, &region, on_ready, &region, &err),
        RDT_AGAIN, "%s", err.msg);
    got[0] = NULL;
    cr_assert_eq(region_alloc(&fake.regions, "fake", "", 4096, REGION_ALLOCATED, &account, 1, &got[0], on_ready, &got[0], &err),
                 RDT_NO_MEMORY, "the room is another request's");
    fake_run();
    cr_assert_not_null(region);
    cr_assert_eq(fake.regions.bytes, 5 * SIZE);
    cr_assert(fake.regions.awaiting.bytes == 0 && fake.regions.freeing.bytes == 0);
    drop(region);
    cr_assert_eq(account.used[USAGE_BYTES], 0u);
}

/* What waits is not counted against itself: nobody would let it go on when the promise has been kept. */
Test(pool, allocation_that_waits_goes_on_beside_a_promise)
{
    struct region *region = receive(4 * SIZE, 1);
    struct rdt_error err = {0};
    int fd;

    fake.regions.limit_bytes = 5 * SIZE;
    cr_assert_eq(region_export_to(region, 0, false, &fd, NULL), RDT_OK); /* it is freed, not pooled */
    region_unref(region);
    region = NULL;
    cr_assert_eq(
        region_alloc(&fake.regions, "fake", "", 3 * SIZE, REGION_ALLOCATED, &account, 1, &region, on_ready, &region, &err),
        RDT_AGAIN, "%s", err.msg);
    cr_assert_eq(fake.regions.awaiting.bytes, 3 * SIZE);
    cr_assert(regions_would_fit(&fake.regions, SIZE));
    regions_promise(&fake.regions, SIZE);
    fake_run();
    regions_unpromise(&fake.regions, SIZE);
    cr_assert_not_null(region, "it waits for ever");
    cr_assert_eq(fake.regions.awaiting.bytes, 0u);
    drop(region);
    cr_assert_eq(account.used[USAGE_BYTES], 0u);
}

static enum rdt_status last_status;

static void on_answer(void *arg, struct region *region, const struct rdt_error *err)
{
    *(struct region **)arg = region;
    last_status = err ? err->status : RDT_OK;
}

/* A request that cannot wait takes the room. The one that waited for it is refused then. */
Test(pool, waiting_allocation_is_refused_when_its_room_is_taken)
{
    struct region *all = fake_region(2 * SIZE, 1), *late = NULL, *now = NULL;
    struct rdt_error err = {0};

    fake.regions.limit_bytes = 3 * SIZE;
    region_unref(all);
    cr_assert_eq(
        region_alloc(&fake.regions, "fake", "", 3 * SIZE, REGION_ALLOCATED, &account, 1, &late, on_answer, &late, &err),
        RDT_AGAIN);
    cr_assert_eq(region_alloc_now(&fake.regions, "fake", 4096, REGION_ARENA, &account, &now, &err), RDT_OK, "%s", err.msg);
    last_status = RDT_OK;
    fake_run();
    cr_assert_eq(last_status, RDT_NO_MEMORY);
    cr_assert_null(late);
    cr_assert_eq(regions_used_bytes(&fake.regions), 4096u);
    drop(now);
    cr_assert_eq(account.used[USAGE_BYTES], 0u);
}

static void turn_until_bytes(uint64_t bytes)
{
    while (fake.regions.bytes != bytes)
        (void)uv_run(&fake.loop, UV_RUN_ONCE);
}

Test(pool, idle_memory_is_freed)
{
    struct region *region;

    fake.regions.free_pool.idle_ns = 20000000;
    region = receive(SIZE, 1);
    drop(region);
    turn_until_bytes(0); /* the timer frees it */
    cr_assert_eq(fake.n_freed, 1u);
}
