/* daemon/pool and daemon/warm under daemon/region: whose memory serves whom again, what it is counted as, and how it goes. Memory comes
 * from a kind made of calloc. */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/memory/region.h"
#include "daemon/memory/region_cache.h"
#include "tests/support/fakes/fake_memory.h"

#define KIB ((uint64_t)1 << 10)
#define SIZE (256 * KIB) /* a class of its own */

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

/* ---- ready ---- */

Test(pool, sizes_have_four_classes_to_a_doubling)
{
    static const uint64_t rows[][2] = {{17, 20}, {160, 160}, {161, 192}, {512, 512}, {513, 640}, {641, 768}, {897, 1024}};

    for (unsigned i = 0; i < sizeof(rows) / sizeof rows[0]; i++)
        cr_expect_eq(pool_room_bytes(&fake.regions.free_pool, &fake.kind, rows[i][0] * KIB), rows[i][1] * KIB, "%llu KiB",
                     (unsigned long long)rows[i][0]);
    cr_expect_eq(pool_room_bytes(&fake.regions.free_pool, &fake.kind, 12 * KIB + 1), 16 * KIB, "little: pages");
    cr_expect_eq(pool_room_bytes(&fake.regions.free_pool, &fake.kind, 5 * SIZE + 1), 5 * SIZE + 4 * KIB, "much: pages");
    cr_expect_eq(pool_room_bytes(&fake.regions.free_pool, NULL, SIZE + 1), SIZE + 4 * KIB, "another kind");
}

Test(pool, made_ahead_once_demand_has_shown_itself)
{
    struct region *regions[3];

    regions[0] = receive(SIZE, 1);
    cr_assert_eq(fake.regions.free_pool.bytes, 0u, "once is no demand");
    regions[1] = receive(SIZE, 1);
    cr_assert_eq(fake.regions.free_pool.bytes, SIZE);
    cr_assert_eq(regions_used_bytes(&fake.regions), 2 * SIZE);
    cr_assert_eq(try_receive(SIZE - 5, 2, &regions[2], NULL), RDT_OK, "it was ready");
    cr_assert_eq(regions[2]->room, SIZE);
    cr_assert_eq(regions[2]->bytes, SIZE - 5);
    cr_assert_eq(fake.regions.free_pool.hits, 1u);
    cr_assert_eq(fake.regions.free_pool.misses, 2u);
    fake_run();
    for (unsigned i = 0; i < 3; i++)
        drop(regions[i]);
}

Test(pool, never_seen_outside_comes_back_scrubbed)
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

Test(pool, once_exported_never_comes_back)
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

Test(pool, registrations_stay_with_the_memory)
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
    cr_assert_gt(fake.n_registered, 1u, "what is made ahead is registered too");
    drop(region);
}

Test(pool, given_up_before_anyone_is_refused)
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

/* Where it would not help nobody loses what is ready. */
Test(pool, not_given_up_in_vain)
{
    struct region *region = receive(SIZE, 1), *other = fake_region(SIZE, 1), *none = NULL;
    struct rdt_error err = {0};

    drop(region);
    fake.regions.limit_bytes = 3 * SIZE;
    cr_assert_eq(try_receive(3 * SIZE, 1, &none, &err), RDT_NO_MEMORY, "%s", err.msg);
    cr_assert_eq(fake.regions.free_pool.bytes, SIZE);
    drop(other);
}

Test(pool, cap_holds)
{
    struct region *regions[20];

    for (unsigned i = 0; i < 20; i++)
        regions[i] = receive(SIZE, 1);
    for (unsigned i = 0; i < 20; i++)
        drop(regions[i]);
    cr_assert_leq(fake.regions.free_pool.bytes, 8 * SIZE);
    cr_assert_eq(fake.regions.bytes, fake.regions.free_pool.bytes);
}

/* What is made ahead, scrubbed or given back takes its time, and nobody is refused for that. */
Test(pool, what_is_on_its_way_is_waited_for)
{
    struct region *region, *got[4] = {0};
    struct rdt_error err = {0};
    int fd;

    fake.regions.limit_bytes = 5 * SIZE;
    for (unsigned i = 0; i < 4; i++) { /* from the second on one more is made ahead */
        enum rdt_status status =
            region_alloc(&fake.regions, "fake", "", SIZE, REGION_RECEIVED, &account, i, &got[i], on_ready, &got[i], &err);
        cr_assert(status == RDT_OK || status == RDT_AGAIN, "%u: %s", i, err.msg);
    }
    fake_run();
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_not_null(got[i]);
        if (i % 2) /* these go back to the system */
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
                 RDT_NO_MEMORY, "it is promised already");
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

/* Who cannot wait takes what there is; who waited for it hears that it is gone. */
Test(pool, what_is_waited_for_may_be_lost)
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

Test(pool, idle_memory_goes)
{
    struct region *region;

    fake.regions.free_pool.idle_ns = 20000000;
    region = receive(SIZE, 1);
    drop(region);
    turn_until_bytes(0); /* by a timer */
    cr_assert_eq(fake.n_freed, 1u);
}

/* ---- warm ---- */

static void on_drop(struct region_cache *cache, uint64_t region)
{
    (void)cache;
    n_dropped++;
    last_dropped = region;
}

static const struct region_cache_ops warm_ops = {.on_drop = on_drop};

/* A guarded mapping that has lost a page. */
static int broken_slot(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int file = memfd_create("hole", MFD_CLOEXEC), slot;
    volatile uint8_t *addr = mmap(NULL, page, PROT_READ, MAP_SHARED, file, 0);

    cr_assert(file >= 0 && addr != MAP_FAILED);
    sigbus_guard_install();
    slot = sigbus_guard_enter((const void *)addr, page, page);
    cr_assert_eq(addr[0], 0, "behind the end of the file");
    cr_assert(sigbus_guard_is_broken(slot));
    (void)munmap((void *)addr, page);
    (void)close(file);
    return slot;
}

/* Else it would fail whatever is fetched into it, for as long as its client comes back for it. */
Test(pool, what_has_lost_pages_does_not_come_again)
{
    struct region_cache cache;
    struct region *region;
    int fd;

    region_cache_start(&cache, &fake.regions, 1, &warm_ops);
    region = receive(SIZE, 1);
    cr_assert_eq(region_export_to(region, 1, true, &fd, NULL), RDT_OK);
    region->guard = broken_slot();
    cr_assert(!region_may_be_cached(region, 1));
    region->keep_mapped = true; /* it was whole when its client let go of it */
    drop(region);
    cr_assert_eq(fake.regions.cached_bytes, 0u);
    cr_assert_eq(n_dropped, 1u, "its client was told");
    region_cache_stop(&cache);
}

/* A region that only this client had and has let go of. */
static uint64_t let_go(uint64_t bytes, uint64_t client)
{
    struct region *region = receive(bytes, client);
    uint64_t id = region->id;
    int fd;

    cr_assert_eq(region_export_to(region, client, true, &fd, NULL), RDT_OK);
    region->keep_mapped = true;
    drop(region);
    return id;
}

Test(pool, warm_comes_again_to_its_client_only)
{
    struct region_cache a, b;
    struct region *region;
    uint64_t id, generation;
    int fd;

    region_cache_start(&a, &fake.regions, 1, &warm_ops);
    region_cache_start(&b, &fake.regions, 2, &warm_ops);
    id = let_go(SIZE, 1);
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
    cr_assert_eq(region_export_to(region, 2, false, &fd, NULL), RDT_INTERNAL, "the other one never sees it");
    cr_assert_eq(region_export_to(region, 0, false, &fd, NULL), RDT_INTERNAL);
    drop(region); /* its fetch came to nothing: kept as it was */
    cr_assert_eq(fake.regions.cached_bytes, SIZE);
    region_cache_stop(&a);
    region_cache_stop(&b);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u, "not to the pool");
    cr_assert_eq(n_dropped, 0u);
}

Test(pool, warm_is_dropped_for_room_oldest_first_and_told)
{
    struct region *region;
    struct region_cache a, b;
    uint64_t ids[2];

    region_cache_start(&a, &fake.regions, 1, &warm_ops);
    region_cache_start(&b, &fake.regions, 2, &warm_ops);
    ids[0] = let_go(SIZE, 1);
    ids[1] = let_go(SIZE, 2);
    fake.regions.limit_bytes = 2 * SIZE;
    region = fake_region(SIZE, 3);
    cr_assert_eq(n_dropped, 1u);
    cr_assert_eq(last_dropped, ids[0]);
    cr_assert_eq(fake.regions.cached_bytes, SIZE);
    region_cache_stop(&a);
    region_cache_stop(&b);
    drop(region);
    (void)ids;
}

Test(pool, warm_bound_of_a_client_holds)
{
    struct region_cache cache;

    region_cache_start(&cache, &fake.regions, 1, &warm_ops);
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

Test(pool, gone_client_gets_nothing_back)
{
    struct region_cache cache;
    struct region *region;

    region_cache_start(&cache, &fake.regions, 1, &warm_ops);
    (void)let_go(SIZE, 1);
    region = region_cache_take(&cache, SIZE, REGION_RECEIVED); /* a fetch is under way */
    region_cache_stop(&cache);
    drop(region);
    cr_assert_eq(fake.n_freed, 1u);
    cr_assert_eq(fake.regions.cached_bytes, 0u);
}

/* ---- loans ---- */

static unsigned n_back, n_gone, n_taken;

static void on_back(struct region_cache *cache, uint64_t region, bool gone)
{
    (void)cache;
    (void)region;
    n_back += !gone;
    n_gone += gone;
}

static void on_take(struct region_cache *cache, uint64_t region)
{
    (void)cache;
    (void)region;
    n_taken++;
}

static const struct region_cache_ops lending_ops = {on_drop, on_back, on_take};

/* A client's region that others have seen, loaned to an object that ends. */
static struct region *lend(struct region *region)
{
    (void)region_ref(region); /* the object's */
    region_set_state(region, REGION_LOANED);
    region_unref(region);
    return region;
}

static struct region *region_to_lend(uint64_t client)
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

    n_back = n_gone = n_taken = 0;
    region_cache_start(&cache, &fake.regions, 1, &lending_ops);
    region = region_to_lend(1);
    for (unsigned i = 1; i < 4; i++) {
        (void)lend(region);
        cr_assert_eq(n_back, i);
        cr_assert_eq(region->state, REGION_RETURNED);
        cr_assert_eq(fake.regions.cached_bytes, SIZE);
        cr_assert_eq(account.used[USAGE_BYTES], 0u);
        cr_assert_null(region_find(&fake.regions, region->id, region->generation));
        cr_assert_null(region_cache_take(&cache, SIZE, REGION_RECEIVED), "it is its client's, not to be had again");
        cr_assert_eq(region_cache_resume(&cache, region, NULL), RDT_OK);
        cr_assert_eq(fake.regions.cached_bytes, 0u);
        cr_assert_eq(account.used[USAGE_BYTES], SIZE);
        cr_assert_eq(region_find(&fake.regions, region->id, region->generation), region);
    }
    drop(region); /* its client gives it back while it is in use */
    fake_run();
    cr_assert_eq(fake.n_freed, 1u, "others have seen it");
    cr_assert_eq(n_taken + n_gone + n_dropped, 0u);
    region_cache_stop(&cache);
}

Test(pool, returned_region_ends_for_room_and_its_client_is_told)
{
    struct region_cache cache;
    struct region *region;

    n_back = n_gone = n_taken = 0;
    region_cache_start(&cache, &fake.regions, 1, &lending_ops);
    (void)lend(region_to_lend(1));
    fake.regions.limit_bytes = SIZE;
    region = fake_region(SIZE, 3);
    cr_assert_eq(n_taken, 1u);
    cr_assert_eq(n_gone, 1u);
    cr_assert_eq(fake.regions.cached_bytes, 0u);
    drop(region);
    region_cache_stop(&cache);
}

Test(pool, abandoned_region_does_not_return)
{
    struct region_cache cache;
    struct region *region;

    n_back = n_gone = n_taken = 0;
    region_cache_start(&cache, &fake.regions, 1, &lending_ops);
    region = region_to_lend(1);
    region_mark_abandoned(region);
    (void)lend(region);
    cr_assert_eq(n_back, 0u);
    cr_assert_eq(n_taken, 1u);
    cr_assert_eq(n_gone, 1u, "its client is told that it is gone");
    region_cache_stop(&cache);
}

Test(pool, returned_region_ends_with_its_client)
{
    struct region_cache cache;

    n_back = n_gone = n_taken = 0;
    region_cache_start(&cache, &fake.regions, 1, &lending_ops);
    (void)lend(region_to_lend(1));
    region_cache_stop(&cache);
    cr_assert_eq(n_taken, 1u);
    cr_assert_eq(n_gone + n_dropped, 0u);
    cr_assert_eq(fake.regions.cached_bytes, 0u);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
}

Test(pool, move_that_is_not_drawn_aborts, .signal = SIGABRT)
{
    struct region *region = receive(SIZE, 1);

    region_set_state(region, REGION_LOANED);
    region_set_state(region, REGION_USED);
}
