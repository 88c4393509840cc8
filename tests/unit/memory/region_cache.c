/* SPDX-License-Identifier: Apache-2.0 */
/* The region caches: which regions a client gets again, how it is told that a region has gone, and which sealed memory is used
 * again for whom. */
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/memory/region_cache.h"
#include "tests/unit/memory/reuse.h"

static unsigned n_dropped, n_returned, n_gone, n_forgotten;
static uint64_t last_dropped;

static void setup(void)
{
    reuse_setup();
    n_dropped = n_returned = n_gone = n_forgotten = 0;
}

TestSuite(region_cache, .init = setup, .fini = reuse_teardown, .timeout = 60);

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
Test(region_cache, region_with_lost_pages_is_not_cached)
{
    struct region_cache cache;
    struct region *region;
    int fd;

    region_cache_start(&cache, &fake.regions, 1, &(struct owner){.uid = 1000}, &cache_ops);
    region = receive(SIZE, 1);
    cr_assert_eq(region_export_to(region, 1, true, &fd, NULL), RDT_OK);
    region->guard = broken_slot();
    cr_assert(!region_may_be_cached(region, 1));
    region->reuse.keep_mapped = true; /* it had all its pages when its client released it */
    drop(region);
    cr_assert_eq(fake.regions.caches.bytes, 0u);
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
    region->reuse.keep_mapped = true;
    drop(region);
    return id;
}

Test(region_cache, cached_region_serves_its_client_only)
{
    struct region_cache a, b;
    struct region *region;
    uint64_t id, generation;
    int fd;

    region_cache_start(&a, &fake.regions, 1, &(struct owner){.uid = 1000}, &cache_ops);
    region_cache_start(&b, &fake.regions, 2, &(struct owner){.uid = 1000}, &cache_ops);
    id = cache_region(SIZE, 1);
    cr_assert_eq(fake.regions.caches.bytes, SIZE);
    cr_assert_eq(regions_used_bytes(&fake.regions), 0u);
    cr_assert_null(fake_find(id, 1));
    cr_assert_null(region_cache_take(&b, SIZE, REGION_RECEIVED));
    cr_assert_null(region_cache_take(&a, SIZE + 1, REGION_RECEIVED), "too small");
    cr_assert_null(region_cache_take(&a, SIZE / 2 - 1, REGION_RECEIVED), "far too large");
    region = region_cache_take(&a, SIZE - 100, REGION_RECEIVED);
    cr_assert(region && region->id == id && region->bytes == SIZE - 100);
    generation = region->generation;
    cr_assert_gt(generation, 1u);
    cr_assert_null(fake_find(id, 1));
    cr_assert_eq(fake_find(id, generation), region);
    cr_assert_eq(region_export_to(region, 2, false, &fd, NULL), RDT_INTERNAL, "no other client gets it");
    cr_assert_eq(region_export_to(region, 0, false, &fd, NULL), RDT_INTERNAL);
    drop(region); /* its fetch failed, so it is cached again */
    cr_assert_eq(fake.regions.caches.bytes, SIZE);
    region_cache_stop(&a);
    region_cache_stop(&b);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u, "it is not pooled");
    cr_assert_eq(n_dropped, 0u);
}

Test(region_cache, oldest_cached_region_is_freed_for_room_and_its_client_is_told)
{
    struct region *region;
    struct region_cache a, b;
    uint64_t first;

    region_cache_start(&a, &fake.regions, 1, &(struct owner){.uid = 1000}, &cache_ops);
    region_cache_start(&b, &fake.regions, 2, &(struct owner){.uid = 1000}, &cache_ops);
    first = cache_region(SIZE, 1);
    (void)cache_region(SIZE, 2);
    fake.regions.limit_bytes = 2 * SIZE;
    region = fake_region(SIZE, 3);
    cr_assert_eq(n_dropped, 1u);
    cr_assert_eq(last_dropped, first);
    cr_assert_eq(fake.regions.caches.bytes, SIZE);
    region_cache_stop(&a);
    region_cache_stop(&b);
    drop(region);
}

Test(region_cache, cache_of_a_client_stays_below_its_limit)
{
    struct region_cache cache;

    region_cache_start(&cache, &fake.regions, 1, &(struct owner){.uid = 1000}, &cache_ops);
    for (unsigned i = 0; i < 10; i++) {
        struct region *regions[2];
        int fd;
        for (unsigned j = 0; j < 2; j++) {
            regions[j] = receive(SIZE, 1);
            cr_assert_eq(region_export_to(regions[j], 1, true, &fd, NULL), RDT_OK);
            regions[j]->reuse.keep_mapped = true;
        }
        drop(regions[0]);
        drop(regions[1]);
        cr_assert_leq(fake.regions.caches.bytes, 4 * SIZE);
    }
    cr_assert_eq(n_dropped, 16u);
    region_cache_stop(&cache);
}

Test(region_cache, region_of_a_gone_client_is_freed)
{
    struct region_cache cache;
    struct region *region;

    region_cache_start(&cache, &fake.regions, 1, &(struct owner){.uid = 1000}, &cache_ops);
    (void)cache_region(SIZE, 1);
    region = region_cache_take(&cache, SIZE, REGION_RECEIVED); /* a fetch into it is under way */
    region_cache_stop(&cache);
    drop(region);
    cr_assert_eq(fake.n_freed, 1u);
    cr_assert_eq(fake.regions.caches.bytes, 0u);
}

/* ---- loans ---- */

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

Test(region_cache, loaned_region_returns_and_is_used_again_under_its_id)
{
    struct region_cache cache;
    struct region *region;

    region_cache_start(&cache, &fake.regions, 1, &(struct owner){.uid = 1000}, &loan_ops);
    region = exported_region(1);
    for (unsigned i = 1; i < 4; i++) {
        (void)loan_and_return(region);
        cr_assert_eq(n_returned, i);
        cr_assert_eq(region->state, REGION_RETURNED);
        cr_assert_eq(fake.regions.caches.bytes, SIZE);
        cr_assert_eq(account.used[USAGE_BYTES], 0u);
        cr_assert_null(fake_find(region->id, region->generation));
        cr_assert_null(region_cache_take(&cache, SIZE, REGION_RECEIVED), "a returned region is used again by its id only");
        cr_assert_eq(region_cache_resume(&cache, region, NULL), RDT_OK);
        cr_assert_eq(fake.regions.caches.bytes, 0u);
        cr_assert_eq(account.used[USAGE_BYTES], SIZE);
        cr_assert_eq(fake_find(region->id, region->generation), region);
    }
    drop(region); /* its client releases it while it is in use */
    fake_run();
    cr_assert_eq(fake.n_freed, 1u, "other clients had it");
    cr_assert_eq(n_forgotten + n_gone + n_dropped, 0u);
    region_cache_stop(&cache);
}

Test(region_cache, returned_region_ends_for_room_and_its_client_is_told)
{
    struct region_cache cache;
    struct region *region;

    region_cache_start(&cache, &fake.regions, 1, &(struct owner){.uid = 1000}, &loan_ops);
    (void)loan_and_return(exported_region(1));
    fake.regions.limit_bytes = SIZE;
    region = fake_region(SIZE, 3);
    cr_assert_eq(n_forgotten, 1u);
    cr_assert_eq(n_gone, 1u);
    cr_assert_eq(fake.regions.caches.bytes, 0u);
    drop(region);
    region_cache_stop(&cache);
}

Test(region_cache, abandoned_region_does_not_return)
{
    struct region_cache cache;
    struct region *region;

    region_cache_start(&cache, &fake.regions, 1, &(struct owner){.uid = 1000}, &loan_ops);
    region = exported_region(1);
    region_mark_abandoned(region);
    (void)loan_and_return(region);
    cr_assert_eq(n_returned, 0u);
    cr_assert_eq(n_forgotten, 1u);
    cr_assert_eq(n_gone, 1u, "its client is told that it is gone");
    region_cache_stop(&cache);
}

Test(region_cache, returned_region_ends_with_its_client)
{
    struct region_cache cache;

    region_cache_start(&cache, &fake.regions, 1, &(struct owner){.uid = 1000}, &loan_ops);
    (void)loan_and_return(exported_region(1));
    region_cache_stop(&cache);
    cr_assert_eq(n_forgotten, 1u);
    cr_assert_eq(n_gone + n_dropped, 0u);
    cr_assert_eq(fake.regions.caches.bytes, 0u);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
}

/* ---- sealed regions ---- */

static struct account second_account = {.owner = {.uid = 1001}, .refs = 1};
static struct region_cache readers[3]; /* the clients 1 and 2 are of uid 1000, the client 3 of uid 1001 */

static struct region *snapshot_of(uint64_t bytes, struct account *of)
{
    struct region *region = NULL;
    enum rdt_status status =
        region_alloc(&fake.regions, "fake", "", bytes, REGION_SNAPSHOT, of, 0, &region, on_ready, &region, NULL);

    if (status == RDT_AGAIN)
        fake_run();
    cr_assert_not_null(region);
    return region;
}

static void start_readers(void)
{
    for (unsigned i = 0; i < 3; i++)
        region_cache_start(&readers[i], &fake.regions, i + 1, i < 2 ? &account.owner : &second_account.owner, &cache_ops);
}

static void stop_readers(void)
{
    for (unsigned i = 0; i < 3; i++)
        region_cache_stop(&readers[i]);
}

static void show_to(struct region *region, uint64_t client, bool writable)
{
    int fd;

    cr_assert_eq(region_export_to(region, client, writable, &fd, NULL), RDT_OK);
}

Test(region_cache, snapshot_that_one_owner_read_serves_its_next_snapshot)
{
    struct region *region;
    uint64_t id;

    start_readers();
    region = snapshot_of(SIZE, &account);
    id = region->id;
    show_to(region, 1, false);
    show_to(region, 2, false);
    drop(region);
    cr_assert_eq(fake.regions.caches.bytes, SIZE);
    cr_assert_null(fake_find(id, 1));
    cr_assert_null(region_cache_take(&readers[0], SIZE, REGION_RECEIVED), "no client may write it");
    region = snapshot_of(SIZE - 10, &account);
    cr_assert(region->id == id && region->generation == 2 && region->bytes == SIZE - 10);
    cr_assert_eq(fake.regions.caches.bytes, 0u);
    cr_assert_eq(regions_used_bytes(&fake.regions), SIZE);
    drop(region); /* nobody read it this time, but processes may still have a descriptor */
    cr_assert_eq(fake.regions.free_pool.bytes, 0u);
    cr_assert_eq(fake.regions.caches.bytes, SIZE);
    stop_readers();
    cr_assert_eq(fake.regions.caches.bytes, SIZE, "it does not go with a client");
}

Test(region_cache, sealed_memory_goes_to_no_other_owner)
{
    struct region *region;
    uint64_t id;

    start_readers();
    region = snapshot_of(SIZE, &account);
    id = region->id;
    show_to(region, 1, false);
    drop(region);
    region = snapshot_of(SIZE, &second_account);
    cr_assert_neq(region->id, id);
    drop(region);
    region = snapshot_of(SIZE, &account);
    cr_assert_eq(region->id, id);
    show_to(region, 3, false); /* an owner who may see later bytes of the first only if they are shown to it, too */
    drop(region);
    cr_assert_eq(fake.regions.caches.bytes, 0u);
    region = snapshot_of(SIZE, &account);
    show_to(region, 0, false); /* nobody knows to whom */
    drop(region);
    cr_assert_eq(fake.regions.caches.bytes, 0u);
    stop_readers();
}

Test(region_cache, old_bytes_that_the_next_object_does_not_cover_are_cleared)
{
    struct layout *layout = layout_create(2, 2);
    struct region *region;
    uint8_t *base;

    layout->dtype[0] = layout->dtype[1] = RDT_U8;
    layout->ndim[0] = layout->ndim[1] = 1;
    layout->first_dim[0] = 0;
    layout->first_dim[1] = 1;
    layout->region[0] = layout->region[1] = 7;
    layout->shape[0] = 100;
    layout->shape[1] = SIZE - 1000;
    layout->offset[0] = 0;
    layout->offset[1] = 128;
    layout_set_row_major(layout, 0);
    layout_set_row_major(layout, 1);
    start_readers();
    region = snapshot_of(SIZE, &account);
    base = region->block.addr;
    memset(base, 0xff, SIZE);
    show_to(region, 1, false);
    drop(region);
    region = snapshot_of(SIZE - 872, &account);
    cr_assert_eq(region->block.addr, base);
    for (size_t i = SIZE - 872; i < SIZE; i++)
        cr_assert_eq(base[i], 0, "another owner may see the byte %zu behind the object", i);
    region_clear_gaps(region, layout, 7);
    for (size_t i = 0; i < SIZE - 872; i++)
        cr_assert_eq(base[i], i >= 100 && i < 128 ? 0 : 0xff);
    drop(region);
    fake.regions.caches.max_bytes = 16 * SIZE;
    region = snapshot_of(8 * SIZE, &account);
    base = region->block.addr;
    show_to(region, 1, false);
    drop(region);
    region = snapshot_of(5 * SIZE, &account);
    cr_assert_neq(region->block.addr, base, "the loop would have too much to clear");
    drop(region);
    stop_readers();
    free(layout);
}

Test(region_cache, sealed_memory_does_not_take_the_descriptors_of_its_owner)
{
    static const uint64_t limits[USAGE_COUNT] = {[USAGE_FDS] = 4};
    struct region *regions[4];

    start_readers();
    account.limits = limits;
    for (unsigned i = 0; i < 4; i++) {
        regions[i] = snapshot_of(SIZE, &account);
        show_to(regions[i], 1, false);
    }
    for (unsigned i = 0; i < 4; i++)
        drop(regions[i]);
    cr_assert_eq(account.used[USAGE_FDS], 2u, "%llu of 4 are left", 4 - (unsigned long long)account.used[USAGE_FDS]);
    stop_readers();
    account.limits = NULL;
}

Test(region_cache, memory_that_may_be_read_or_written_outside_is_not_used_again)
{
    struct region *region;

    start_readers();
    region = snapshot_of(SIZE, &account);
    show_to(region, 1, false);
    region_mark_abandoned(region);
    drop(region);
    cr_assert_eq(fake.regions.caches.bytes, 0u, "a child of its reader may have it");
    region = receive(SIZE, 1);
    show_to(region, 1, true);
    cr_assert_eq(region_seal(region, NULL), RDT_OK);
    drop(region);
    cr_assert_eq(fake.regions.caches.bytes, 0u, "a writable descriptor is out");
    region = snapshot_of(SIZE, &account);
    show_to(region, 1, false);
    region->reach.seal = REGION_SEALED; /* as if a client had created it */
    drop(region);
    cr_assert_eq(fake.regions.caches.bytes, 0u);
    stop_readers();
}

Test(region_cache, common_replica_is_charged_to_who_uses_it_again)
{
    struct region *region;

    start_readers();
    region = snapshot_of(SIZE, &account);
    show_to(region, 1, false);
    region_make_common(region);
    drop(region);
    cr_assert_eq(account.used[USAGE_BYTES], 0u);
    region = snapshot_of(SIZE, &account);
    cr_assert_eq(region->state, REGION_USED);
    cr_assert_eq(account.used[USAGE_BYTES], SIZE);
    drop(region);
    cr_assert_eq(account.used[USAGE_BYTES], 0u);
    cr_assert_eq(regions_used_bytes(&fake.regions), 0u);
    fake.regions.limit_bytes = 3 * SIZE;
    region = fake_region(3 * SIZE, 1);
    cr_assert_eq(fake.regions.caches.bytes, 0u, "cached memory is freed before a request is refused");
    drop(region);
    stop_readers();
}
