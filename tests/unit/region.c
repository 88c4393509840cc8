/* daemon/region: what keeps a range of memory, who waits for it, what it is counted as. Memory comes from a kind made here. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/region.h"
#include "tests/support/backend_fake.h"

TestSuite(region, .init = fake_setup, .fini = fake_teardown, .timeout = 60);

static struct region *take(uint64_t bytes)
{
    return fake_region(bytes, 7);
}

/* ---- references ---- */

Test(region, last_reference_frees_once)
{
    struct region *region = take(4096);

    cr_assert_eq(fake.regions.bytes, 4096u);
    region_ref(region);
    region_unref(region);
    cr_assert_eq(fake.n_freed, 0u);
    region_unref(region);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
    cr_assert_eq(fake.regions.bytes, 0u);
    cr_assert_eq(map_count(&fake.regions.by_id), 0u);
    region_unref(NULL);
}

Test(region, pin_outlives_reference)
{
    struct region *region = take(4096);

    region_pin(region);
    region_unref(region);
    fake_run();
    cr_assert_eq(fake.n_freed, 0u, "an engine is at it");
    cr_assert_eq(fake.regions.bytes, 4096u);
    region_unpin(region);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
}

/* Pages that are on their way back count until they are back: the limit is one of memory, not of intentions. */
Test(region, large_counts_until_pages_are_back)
{
    struct region *region = take(64 << 20);
    uint64_t id = region->id;

    region_unref(region);
    cr_assert_null(region_find(&fake.regions, id, 0));
    cr_assert_eq(fake.regions.bytes, 64u << 20);
    cr_assert_eq(fake.regions.freeing, 1u);
    fake_run();
    cr_assert_eq(fake.regions.bytes, 0u);
    cr_assert_eq(fake.regions.freeing, 0u);
}

Test(region, ids_are_never_used_again)
{
    struct region *first = take(4096), *second;
    uint64_t id = first->id, generation = first->generation;

    region_unref(first);
    fake_run();
    second = take(4096);
    cr_assert(second->id != id || second->generation != generation);
    cr_assert_null(region_find(&fake.regions, id, generation));
    cr_assert_eq(region_find(&fake.regions, second->id, second->generation), second);
    region_unref(second);
    fake_run();
}

/* ---- limits ---- */

Test(region, over_limit_refused_before_anything)
{
    struct region *region = NULL, *first = take(4096);
    struct owner owner = {0};
    struct rdt_error err = {0};

    fake.regions.limit_bytes = 8192;
    cr_expect_eq(region_alloc(&fake.regions, "fake", "", 8193, REGION_ALLOCATED, &owner, 1, &region, NULL, NULL, &err), RDT_LIMIT,
                 "never fits: %s", err.msg);
    cr_expect_eq(region_alloc(&fake.regions, "fake", "", 4097, REGION_ALLOCATED, &owner, 1, &region, NULL, NULL, &err),
                 RDT_NO_MEMORY, "does not fit now: %s", err.msg);
    cr_expect(strstr(err.msg, "4096"), "%s", err.msg);
    cr_expect_eq(region_alloc(&fake.regions, "fake", "", UINT64_MAX, REGION_ALLOCATED, &owner, 1, &region, NULL, NULL, &err),
                 RDT_LIMIT);
    cr_expect_eq(region_alloc(&fake.regions, "fake", "", 0, REGION_ALLOCATED, &owner, 1, &region, NULL, NULL, &err), RDT_INVALID);
    cr_expect_eq(region_alloc(&fake.regions, "cuda", "", 1, REGION_ALLOCATED, &owner, 1, &region, NULL, NULL, &err),
                 RDT_UNSUPPORTED);
    cr_assert_null(region);
    cr_assert_eq(fake.regions.bytes, 4096u);
    cr_assert_eq(map_count(&fake.regions.by_id), 1u);
    region_unref(first);
    fake_run();
}

static void on_ready(void *arg, struct region *region, const struct rdt_error *err)
{
    *(struct region **)arg = region;
    cr_assert_eq(region == NULL, err != NULL);
    fake.n_ready++;
}

Test(region, failed_allocation_leaves_nothing)
{
    static const uint64_t sizes[] = {4096, 64 << 20};
    struct owner owner = {0};

    for (unsigned i = 0; i < 2; i++) {
        struct region *region = NULL;
        struct rdt_error err = {0};
        enum rdt_status status;

        fake.fail_alloc = true;
        status = region_alloc(&fake.regions, "fake", "", sizes[i], REGION_ALLOCATED, &owner, 1, &region, on_ready, &region, &err);
        cr_assert(status == RDT_NO_MEMORY || status == RDT_AGAIN);
        fake_run();
        cr_assert_eq(fake.n_ready, status == RDT_AGAIN ? 1u : 0u);
        cr_assert_null(region);
        cr_assert_eq(fake.regions.bytes, 0u);
        cr_assert_eq(map_count(&fake.regions.by_id), 0u);
        fake.n_ready = 0;
    }
}

/* ---- uses ---- */

static unsigned n_idle;

static void on_idle(struct region_waiter *waiter)
{
    cr_assert(list_empty(&waiter->link), "told while still in the list");
    n_idle++;
}

Test(region, range_waiter_told_when_last_overlap_ends)
{
    struct region *region = take(4096);
    struct region_use uses[3] = {0};
    struct region_waiter low = {.lo = 0, .hi = 100, .on_idle = on_idle}, all = {.lo = 0, .hi = 4096, .on_idle = on_idle};

    n_idle = 0;
    region_use_add(&uses[0], region, 50, 150);
    region_use_add(&uses[1], region, 99, 100);
    region_use_add(&uses[2], region, 100, 200);
    cr_assert(region_in_use(region, 0, 51));
    cr_assert(!region_in_use(region, 0, 50));
    cr_assert(!region_in_use(region, 200, 4096));
    list_append(&region->idle_waiters, &low.link);
    list_append(&region->idle_waiters, &all.link);
    region_use_remove(&uses[2]);
    cr_assert_eq(n_idle, 0u);
    region_use_remove(&uses[1]);
    cr_assert_eq(n_idle, 0u);
    region_use_remove(&uses[0]);
    cr_assert_eq(n_idle, 2u);
    region_use_remove(&uses[0]); /* again is harmless */
    region_unref(region);
    fake_run();
}

static struct region *dropped;

static void drop_the_region(struct region_waiter *waiter)
{
    (void)waiter;
    region_unref(dropped);
}

Test(region, waiter_may_hold_last_reference)
{
    struct region_use use = {0};
    struct region_waiter waiter = {.lo = 0, .hi = 10, .on_idle = drop_the_region};

    dropped = take(4096);
    region_use_add(&use, dropped, 0, 4096);
    list_append(&dropped->idle_waiters, &waiter.link);
    region_use_remove(&use);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
}

Test(region, random_uses_match_a_plain_count)
{
    enum { BYTES = 256, USES = 40 };
    struct region *region = take(BYTES);
    struct region_use uses[USES] = {0};
    unsigned used[BYTES] = {0};
    uint64_t seed = 3;

    for (unsigned round = 0; round < 5000; round++) {
        struct region_use *use = &uses[(seed = seed * 6364136223846793005u + 1) >> 33 & 31];
        uint64_t lo = (seed = seed * 6364136223846793005u + 1) >> 40 & 255;
        uint64_t hi = lo + 1 + ((seed = seed * 6364136223846793005u + 1) >> 40) % (BYTES - lo);
        int change = use->region ? -1 : 1;
        bool any = false;

        if (use->region) {
            for (uint64_t b = use->lo; b < use->hi; b++)
                used[b] += (unsigned)change;
            region_use_remove(use);
        } else {
            region_use_add(use, region, lo, hi);
            for (uint64_t b = lo; b < hi; b++)
                used[b] += (unsigned)change;
        }
        for (uint64_t b = lo; b < hi; b++)
            any = any || used[b] > 0;
        cr_assert_eq(region_in_use(region, lo, hi), any, "round %u", round);
    }
    for (unsigned i = 0; i < USES; i++)
        region_use_remove(&uses[i]);
    region_unref(region);
    fake_run();
}

/* ---- registrations ---- */

Test(region, registered_once_whoever_asks)
{
    struct region *region = take(4096), *got[2] = {0};
    void *handle = NULL, *again = NULL;

    for (unsigned i = 0; i < 2; i++) /* before the first is done */
        cr_assert_eq(region_register(region, &fake.transport, &handle, on_ready, &got[i], NULL), RDT_AGAIN);
    fake_run();
    cr_assert(got[0] == region && got[1] == region);
    cr_assert_eq(region->n_registrations, 1u);
    cr_assert_eq(fake.n_registered, 1u, "%u are registered", fake.n_registered);
    cr_assert_eq(region_register(region, &fake.transport, &handle, NULL, NULL, NULL), RDT_OK);
    cr_assert_eq(region_register(region, &fake.transport, &again, NULL, NULL, NULL), RDT_OK);
    cr_assert_eq(handle, again);
    region_unref(region);
    fake_run();
    cr_assert_eq(fake.n_registered, 0u);
    cr_assert_eq(fake.n_freed, 1u);
}

Test(region, reference_during_registration)
{
    struct region *region = take(4096), *got = NULL;
    void *handle;

    cr_assert_eq(region_register(region, &fake.transport, &handle, on_ready, &got, NULL), RDT_AGAIN);
    region_unref(region); /* whoever asked has left */
    cr_assert_eq(fake.n_freed, 0u);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
    cr_assert_eq(fake.n_registered, 0u);
}
