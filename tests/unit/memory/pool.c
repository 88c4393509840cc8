/* The pool of host memory and the region cache: which memory serves which client again, what counts as used, and how memory
 * is freed. The memory comes from a kind made of calloc.
 */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/memory/region.h"
#include "daemon/memory/region_cache.h"
#include "tests/support/fakes/fake_memory.h"

#define KIB ((uint64_t)1 << 10)
#define SIZE (256 * KIB) /* the size of a class */

static struct deadlines deadlines;
static unsigned n_dropped;
static uint64_t last_dropped;

static void setup(void)
{
    fake_setup();
    deadlines_init(&deadlines, &fake.loop);
    regions_set_reuse(&fake.regions, &deadlines, 8 * SIZE, 4 * SIZE, UINT64_C(3600000000000));
    fake.regions.free_pool.kind = &fake.kind;
    n_dropped = 0;
}

static void teardown(void)
{
    regions_close(&fake.regions);
    fake_run();
    deadlines_close(&deadlines, NULL);
    fake_teardown();
}

TestSuite(pool, .init = setup, .fini = teardown, .timeout = 60);

static void on_ready(void *arg, struct region *region, const struct rdt_error *err)
{
    (void)err;
    *(struct region **)arg = region;
}

static struct account account = {.owner = {.uid = 1000}, .refs = 1};

static enum rdt_status try_receive(uint64_t bytes, uint64_t client, struct region **region_p, struct rdt_error *err)
{
    enum rdt_status status =
        region_alloc(&fake.regions, "fake", "", bytes, REGION_RECEIVED, &account, client, region_p, on_ready, region_p, err);

    if (status == RDT_AGAIN)
        fake_run();
    return status;
}

static struct region *receive(uint64_t bytes, uint64_t client)
{
    struct region *region = NULL;
    struct rdt_error err = {0};

    (void)try_receive(bytes, client, &region, &err);
    cr_assert_not_null(region, "%s", err.msg);
    return region;
}

static void drop(struct region *region)
{
    region_unref(region);
    fake_run();
}

/* ---- the pool ---- */

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
    cr_assert(fake.regions.awaiting_bytes == 0 && fake.regions.freeing_bytes == 0);
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

/* ---- the region cache ---- */

static void on_drop(struct region_cache *cache, uint64_t region)
{
    (void)cache;
    n_dropped++;
    last_dropped = region;
}

static const struct region_cache_ops cache_ops = {.on_drop = on_drop};

/* A guarded mapping that has lost a page. */
static int broken_slot(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int file = memfd_create("hole", MFD_CLOEXEC), slot;
    volatile uint8_t *addr = mmap(NULL, page, PROT_READ, MAP_SHARED, file, 0);

    cr_assert(file >= 0 && addr != MAP_FAILED);
    sigbus_guard_install();
    slot = sigbus_guard_enter((const void *)addr, page, page);
    cr_assert_eq(addr[0], 0, "the page is behind the end of the file");
    cr_assert(sigbus_guard_is_broken(slot));
    (void)munmap((void *)addr, page);
    (void)close(file);
    return slot;
}

/* Every fetch into such a region would fail, as long as its client keeps it. */
Test(pool, region_with_lost_pages_is_not_cached)
{
    struct region_cache cache;
    struct region *region;
    int fd;

    region_cache_start(&cache, &fake.regions, 1, &cache_ops);
    region = receive(SIZE, 1);
    cr_assert_eq(region_export_to(region, 1, true, &fd, NULL), RDT_OK);
    region->guard = broken_slot();
    cr_assert(!region_may_be_cached(region, 1));
    region->keep_mapped = true; /* it had all its pages when its client released it */
    drop(region);
    cr_assert_eq(fake.regions.cached_bytes, 0u);
    cr_assert_eq(n_dropped, 1u, "its client was told");
    region_cache_stop(&cache);
}

/* Puts a region that only this client had into its cache. Returns its id. */
static uint64_t cache_region(uint64_t bytes, uint64_t client)
{
    struct region *region = receive(bytes, client);
    uint64_t id = region->id;
    int fd;

    cr_assert_eq(region_export_to(region, client, true, &fd, NULL), RDT_OK);
    region->keep_mapped = true;
    drop(region);
    return id;
}

Test(pool, cached_region_serves_its_client_only)
{
    struct region_cache a, b;
    struct region *region;
    uint64_t id, generation;
    int fd;

    region_cache_start(&a, &fake.regions, 1, &cache_ops);
    region_cache_start(&b, &fake.regions, 2, &cache_ops);
    id = cache_region(SIZE, 1);
    cr_assert_eq(fake.regions.cached_bytes, SIZE);
    cr_assert_eq(regions_used_bytes(&fake.regions), 0u);
    cr_assert_null(region_find(&fake.regions, id, 1));
    cr_assert_null(region_cache_take(&b, SIZE, REGION_RECEIVED));
    cr_assert_null(region_cache_take(&a, SIZE + 1, REGION_RECEIVED), "too small");
    cr_assert_null(region_cache_take(&a, SIZE / 2 - 1, REGION_RECEIVED), "far too large");
    region = region_cache_take(&a, SIZE - 100, REGION_RECEIVED);
    cr_assert(region && region->id == id && region->bytes == SIZE - 100);
    generation = region->generation;
    cr_assert_gt(generation, 1u);
    cr_assert_null(region_find(&fake.regions, id, 1));
    cr_assert_eq(region_find(&fake.regions, id, generation), region);
    cr_assert_eq(region_export_to(region, 2, false, &fd, NULL), RDT_INTERNAL, "no other client gets it");
    cr_assert_eq(region_export_to(region, 0, false, &fd, NULL), RDT_INTERNAL);
    drop(region); /* its fetch failed, so it is cached again */
    cr_assert_eq(fake.regions.cached_bytes, SIZE);
    region_cache_stop(&a);
    region_cache_stop(&b);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u, "it is not pooled");
    cr_assert_eq(n_dropped, 0u);
}

Test(pool, oldest_cached_region_is_freed_for_room_and_its_client_is_told)
{
    struct region *region;
    struct region_cache a, b;
    uint64_t first;

    region_cache_start(&a, &fake.regions, 1, &cache_ops);
    region_cache_start(&b, &fake.regions, 2, &cache_ops);
    first = cache_region(SIZE, 1);
    (void)cache_region(SIZE, 2);
    fake.regions.limit_bytes = 2 * SIZE;
    region = fake_region(SIZE, 3);
    cr_assert_eq(n_dropped, 1u);
    cr_assert_eq(last_dropped, first);
    cr_assert_eq(fake.regions.cached_bytes, SIZE);
    region_cache_stop(&a);
    region_cache_stop(&b);
    drop(region);
}

Test(pool, cache_of_a_client_stays_below_its_limit)
{
    struct region_cache cache;

    region_cache_start(&cache, &fake.regions, 1, &cache_ops);
    for (unsigned i = 0; i < 10; i++) {
        struct region *regions[2];
        int fd;
        for (unsigned j = 0; j < 2; j++) {
            regions[j] = receive(SIZE, 1);
            cr_assert_eq(region_export_to(regions[j], 1, true, &fd, NULL), RDT_OK);
            regions[j]->keep_mapped = true;
        }
        drop(regions[0]);
        drop(regions[1]);
        cr_assert_leq(fake.regions.cached_bytes, 4 * SIZE);
    }
    cr_assert_eq(n_dropped, 16u);
    region_cache_stop(&cache);
}

Test(pool, region_of_a_gone_client_is_freed)
{
    struct region_cache cache;
    struct region *region;

    region_cache_start(&cache, &fake.regions, 1, &cache_ops);
    (void)cache_region(SIZE, 1);
    region = region_cache_take(&cache, SIZE, REGION_RECEIVED); /* a fetch into it is under way */
    region_cache_stop(&cache);
    drop(region);
    cr_assert_eq(fake.n_freed, 1u);
    cr_assert_eq(fake.regions.cached_bytes, 0u);
}

/* ---- loans ---- */

static unsigned n_returned, n_gone, n_forgotten;

static void on_returned(struct region_cache *cache, uint64_t region, bool gone)
{
    (void)cache;
    (void)region;
    n_returned += !gone;
    n_gone += gone;
}

static void forget_region(struct region_cache *cache, uint64_t region)
{
    (void)cache;
    (void)region;
    n_forgotten++;
}

static const struct region_cache_ops loan_ops = {on_drop, on_returned, forget_region};

/* Loans a client's region to an object, which ends. */
static struct region *loan_and_return(struct region *region)
{
    (void)region_ref(region); /* the object's */
    region_set_state(region, REGION_LOANED);
    region_unref(region);
    return region;
}

static struct region *exported_region(uint64_t client)
{
    struct region *region = receive(SIZE, client);
    int fd;

    cr_assert_eq(region_export_to(region, client, true, &fd, NULL), RDT_OK);
    cr_assert_eq(region_export_to(region, client + 100, false, &fd, NULL), RDT_OK);
    return region;
}

Test(pool, loaned_region_returns_and_is_used_again_under_its_id)
{
    struct region_cache cache;
    struct region *region;

    n_returned = n_gone = n_forgotten = 0;
    region_cache_start(&cache, &fake.regions, 1, &loan_ops);
    region = exported_region(1);
    for (unsigned i = 1; i < 4; i++) {
        (void)loan_and_return(region);
        cr_assert_eq(n_returned, i);
        cr_assert_eq(region->state, REGION_RETURNED);
        cr_assert_eq(fake.regions.cached_bytes, SIZE);
        cr_assert_eq(account.used[USAGE_BYTES], 0u);
        cr_assert_null(region_find(&fake.regions, region->id, region->generation));
        cr_assert_null(region_cache_take(&cache, SIZE, REGION_RECEIVED), "a returned region is used again by its id only");
        cr_assert_eq(region_cache_resume(&cache, region, NULL), RDT_OK);
        cr_assert_eq(fake.regions.cached_bytes, 0u);
        cr_assert_eq(account.used[USAGE_BYTES], SIZE);
        cr_assert_eq(region_find(&fake.regions, region->id, region->generation), region);
    }
    drop(region); /* its client releases it while it is in use */
    fake_run();
    cr_assert_eq(fake.n_freed, 1u, "other clients had it");
    cr_assert_eq(n_forgotten + n_gone + n_dropped, 0u);
    region_cache_stop(&cache);
}

Test(pool, returned_region_ends_for_room_and_its_client_is_told)
{
    struct region_cache cache;
    struct region *region;

    n_returned = n_gone = n_forgotten = 0;
    region_cache_start(&cache, &fake.regions, 1, &loan_ops);
    (void)loan_and_return(exported_region(1));
    fake.regions.limit_bytes = SIZE;
    region = fake_region(SIZE, 3);
    cr_assert_eq(n_forgotten, 1u);
    cr_assert_eq(n_gone, 1u);
    cr_assert_eq(fake.regions.cached_bytes, 0u);
    drop(region);
    region_cache_stop(&cache);
}

Test(pool, abandoned_region_does_not_return)
{
    struct region_cache cache;
    struct region *region;

    n_returned = n_gone = n_forgotten = 0;
    region_cache_start(&cache, &fake.regions, 1, &loan_ops);
    region = exported_region(1);
    region_mark_abandoned(region);
    (void)loan_and_return(region);
    cr_assert_eq(n_returned, 0u);
    cr_assert_eq(n_forgotten, 1u);
    cr_assert_eq(n_gone, 1u, "its client is told that it is gone");
    region_cache_stop(&cache);
}

Test(pool, returned_region_ends_with_its_client)
{
    struct region_cache cache;

    n_returned = n_gone = n_forgotten = 0;
    region_cache_start(&cache, &fake.regions, 1, &loan_ops);
    (void)loan_and_return(exported_region(1));
    region_cache_stop(&cache);
    cr_assert_eq(n_forgotten, 1u);
    cr_assert_eq(n_gone + n_dropped, 0u);
    cr_assert_eq(fake.regions.cached_bytes, 0u);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
}

Test(pool, change_of_state_that_is_not_in_the_table_aborts, .signal = SIGABRT)
{
    struct region *region = receive(SIZE, 1);

    region_set_state(region, REGION_LOANED);
    region_set_state(region, REGION_USED);
}
