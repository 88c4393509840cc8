/* SPDX-License-Identifier: Apache-2.0 */
/* The free pool and the region cache of memory on devices: which clients get unused memory again, and when it is freed. */
#include <pthread.h>
#include <stdatomic.h>

#include "proto/wire_ref.h"
#include "tests/integration/devices/device_fixture.h"
#include "tests/support/raw.h"

TestSuite(device_cache, .timeout = 100);

#define LONG_KEPT "--pool-idle=1h"
#define DEVICE_BYTES (64 * KIB * KIB) /* of the fake device */

static void begin_caching(const char *more)
{
    begin_with((const char *const[]){LONG_KEPT, "--device-limit=16MiB", "--device-pool-max=4MiB", more, NULL});
}

/* Unloading the kind frees its pooled and cached memory. */
static void end_caching(void)
{
    rdt *other;

    rdt_close(a);
    rdt_close(b);
    node_expect_idle(&node);
    node_connect(&node, &other);
    wait_until(LONG, rdt_backend_unload(other, "fake", LONG, NULL) == RDT_OK); /* BUSY while the last blocks are being freed */
    rdt_close(other);
    must(atomic_load(&gpu.control->blocks) == 0 && atomic_load(&gpu.control->allocated[0]) == 0);
    node_end(&node, NULL);
    fake_device_fini(&gpu);
}

static uint64_t made(void)
{
    return atomic_load(&gpu.control->made);
}

static uint64_t used_bytes(const char *uuid)
{
    struct rdt_device_info devices[4];
    size_t n = 0;

    must_ok(rdt_devices(a, devices, 4, &n, &err));
    for (size_t i = 0; i < n; i++)
        if (strcmp(devices[i].uuid, uuid) == 0)
            return devices[i].used_bytes;
    return 0;
}

static bool is_zero(const uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != 0)
            return false;
    return true;
}

/* Puts and frees a snapshot. Nobody on this node reads it, so its memory never leaves the daemon. Returns when the memory is
 * free. */
static void snapshot_and_free(rdt *conn, void *addr, size_t bytes)
{
    struct rdt_tensor tensor = bytes_at(addr, bytes);
    struct rdt_ref ref = put_tensors(conn, &tensor, 1, RDT_PUT_SNAPSHOT);

    must_ok(rdt_free(conn, &ref, false, &err));
}

/* A fetch that fails has not written its memory, which shows bytes of others: nobody gets it. */
Test(device_cache, memory_of_a_failed_fetch_is_not_pooled)
{
    rdt_object *object;
    void *source, *addr;

    begin_caching(NULL);
    struct rdt_ref ref = put_on(a, "FAKE-0", 1000, 3, &source);
    atomic_store(&gpu.control->fail_copies, 1);
    must_be(RDT_SYSTEM, fetch_to(a, &ref, "fake", "FAKE-1", &object, &err));
    must(atomic_load(&gpu.control->dirty) == 1);
    struct rdt_alloc_options options = {
        .struct_size = sizeof options, .memory = "fake", .device = "FAKE-1", .written_whole = true};
    must_ok(rdt_alloc_with(a, 64 * KIB, &options, &addr, &err));
    uint8_t *bytes = addr;
    for (size_t i = 0; i < 1000; i++)
        must(bytes[i] != FAKE_DIRT);
    must_ok(rdt_dealloc(a, addr, &err));
    must_ok(rdt_dealloc(a, source, &err));
    must_ok(rdt_free(a, &ref, false, &err));
    end_caching();
}

Test(device_cache, unexported_memory_serves_any_client_and_is_zeroed)
{
    begin_caching(NULL);
    uint8_t *from = fake_device_alloc(a, "FAKE-0", BYTES);
    fill_pattern(from, BYTES, 1);
    snapshot_and_free(a, from, BYTES);
    must(made() == 2 && atomic_load(&gpu.control->zeroed) == 0);
    expect_output("backends", NULL, "(256.0 KiB in the free pool)");
    uint8_t *got = fake_device_alloc(b, "FAKE-0", BYTES); /* another client */
    must_say(made() == 2, "%llu blocks were made", (unsigned long long)made());
    must(is_zero(got, BYTES));
    must(atomic_load(&gpu.control->zeroed) == 1);
    snapshot_and_free(a, from, BYTES); /* the snapshot needs new memory, because b has the free block */
    must(made() == 3);
    snapshot_and_free(a, from, BYTES); /* the third snapshot takes the free block, unzeroed: it overwrites all of it */
    must(made() == 3 && atomic_load(&gpu.control->zeroed) == 1);
    must(atomic_load(&gpu.control->blocks) == 3);
    end_caching();
}

/* Its memory is there already. If it took the pool, any client could take it from all others. */
Test(device_cache, import_that_fails_for_memory_keeps_the_pool)
{
    struct fake_memory_own own;

    begin_caching(NULL);
    void *from = fake_device_alloc(a, "FAKE-0", BYTES);
    snapshot_and_free(a, from, BYTES);
    fake_device_malloc(&own, 1, 4 * KIB);
    struct rdt_shared shared = fake_device_handle(&own, "FAKE-0");
    atomic_store(&gpu.control->fail_imports, 1);
    must_be(RDT_NO_MEMORY, rdt_import_shared(a, &shared, own.addr, &err));
    expect_output("backends", NULL, "(256.0 KiB in the free pool)");
    must_ok(rdt_import_shared(a, &shared, own.addr, &err));
    must_ok(rdt_dealloc(a, own.addr, &err));
    wait_until(LONG, atomic_load(&gpu.control->imports) == 0);
    fake_device_free(&own);
    end_caching();
}

/* Host memory that devices use a second time is pinned. An unload of their kind unpins it and leaves it to its users. */
Test(device_cache, unload_unpins_host_memory_that_is_in_use)
{
    enum { HOST_BYTES = 2 << 20 };
    rdt_object *object;
    void *host;

    begin_caching(NULL);
    must_ok(rdt_alloc(a, HOST_BYTES, &host, &err));
    fill_pattern(host, HOST_BYTES, 8);
    struct rdt_tensor tensor = bytes_at(host, HOST_BYTES);
    struct rdt_ref ref = put_tensors(a, &tensor, 1, 0);
    for (unsigned i = 0; i < 2; i++) {
        must(atomic_load(&gpu.control->pinned) == 0);
        expect(b, &ref, "fake", "FAKE-0", HOST_BYTES, 8, "local/copy", "fake", "FAKE-0");
    }
    wait_until(LONG, atomic_load(&gpu.control->pinned) >= HOST_BYTES);
    must(atomic_load(&gpu.control->unpinned_bytes) == 2 * HOST_BYTES);
    expect(b, &ref, "fake", "FAKE-0", HOST_BYTES, 8, "local/copy", "fake", "FAKE-0");
    must(atomic_load(&gpu.control->unpinned_bytes) == 2 * HOST_BYTES);
    rdt_close(b);
    wait_until(LONG, rdt_backend_unload(a, "fake", LONG, NULL) == RDT_OK);
    must(atomic_load(&gpu.control->pinned) == 0);
    node_connect(&node, &b);
    must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, HOST_BYTES, 8));
    rdt_release(object);
    must_ok(rdt_dealloc(a, host, &err));
    must_ok(rdt_free(a, &ref, false, &err));
    rdt_close(a);
    rdt_close(b);
    node_end(&node, NULL);
    fake_device_fini(&gpu);
}

Test(device_cache, exported_memory_serves_only_the_client_that_had_it)
{
    begin_caching(NULL);
    uint8_t *had = fake_device_alloc(a, "FAKE-0", BYTES);
    fill_pattern(had, BYTES, 2);
    must_ok(rdt_dealloc(a, had, &err));
    uint64_t before = made();
    uint8_t *other = fake_device_alloc(b, "FAKE-0", BYTES);
    must_say(made() == before + 1, "a client was given memory that another client had");
    must(is_zero(other, BYTES));
    uint8_t *again = fake_device_alloc(a, "FAKE-0", BYTES);
    must_say(made() == before + 1, "the client was not given its cached memory");
    must(is_zero(again, BYTES));
    must_ok(rdt_dealloc(a, again, &err));
    rdt_close(a); /* the end of the client frees its cache */
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 1);
    node_connect(&node, &a);
    fake_device_use(a);
    end_caching();
}

Test(device_cache, next_fetch_to_a_device_reuses_the_memory_of_the_last_one)
{
    struct rdt_ref ref = {0};
    rdt_object *object;

    begin_caching(NULL);
    uint8_t *host = alloc_memory(a, BYTES);
    fill_pattern(host, BYTES, 3);
    {
        struct rdt_tensor tensor = bytes_at(host, BYTES);
        ref = put_tensors(a, &tensor, 1, 0);
    }
    expect(b, &ref, "fake", "FAKE-0", BYTES, 3, "local/copy", "fake", "FAKE-0");
    uint64_t before = made();
    for (uint32_t seed = 4; seed < 20; seed++) {
        fill_pattern(host, BYTES, seed);
        expect(b, &ref, "fake", "FAKE-0", BYTES, seed, "local/copy", "fake", "FAKE-0");
    }
    must_say(made() == before, "%llu blocks more", (unsigned long long)(made() - before));
    must(atomic_load(&gpu.control->zeroed) == 0);
    must_ok(fetch_to(a, &ref, "fake", "FAKE-0", &object, &err)); /* a client that never had the memory does not get it */
    must(made() == before + 1);
    rdt_release(object);
    end_caching();
}

static uint8_t *alloc_again(uint8_t *before)
{
    must_ok(rdt_dealloc(a, before, &err));
    uint8_t *again = fake_device_alloc(a, "FAKE-0", BYTES);
    must(is_zero(again, BYTES));
    return again;
}

/* A process may put tensors that it fetched. Imported by its chunks, the same memory is then another region. What was imported
 * before this client had the memory is none of that, nor what other clients import. */
Test(device_cache, memory_of_a_client_that_imports_since_is_not_reused)
{
    struct fake_memory_own own;

    begin_caching(NULL);
    fake_device_malloc(&own, 1, BYTES);
    struct rdt_shared shared = fake_device_chunks(&own, "FAKE-0");
    must_ok(rdt_import_shared(b, &shared, own.addr, &err));
    uint8_t *memory = alloc_again(fake_device_alloc(a, "FAKE-0", BYTES));
    must_say(made() == 1, "memory was freed because another client has imported memory of its device");
    must_ok(rdt_import_shared(a, &shared, own.addr, &err));
    memory = alloc_again(memory);
    must_say(made() == 2, "memory was cached although its client has imported memory of its device since");
    memory = alloc_again(memory);
    must_say(made() == 2, "memory was freed because its client had imported memory of its device before");
    struct rdt_tensor tensor = bytes_at(own.addr, BYTES);
    struct rdt_ref held = put_tensors(a, &tensor, 1, 0);
    must_ok(rdt_dealloc(a, own.addr, &err));
    must_ok(rdt_import_shared(a, &shared, own.addr, &err));
    must_ok(rdt_dealloc(a, own.addr, &err));
    memory = alloc_again(memory);
    must_say(made() == 3, "memory was cached although an object holds what its client has imported");
    must_ok(rdt_import_shared(a, &shared, own.addr, &err));
    must_ok(rdt_dealloc(a, own.addr, &err));
    must_ok(rdt_free(a, &held, false, &err));
    must_ok(rdt_dealloc(b, own.addr, &err));
    wait_until(LONG, atomic_load(&gpu.control->imports) == 0);
    memory = alloc_again(memory);
    must_say(made() == 3, "memory was freed although its client imports nothing any more");
    must_ok(rdt_dealloc(a, memory, &err));
    fake_device_free(&own);
    end_caching();
}

/* As librdt-cuda publishes weights: a copy in memory of the client, which becomes a snapshot while the previous one is held. */
static void publish_many(size_t bytes, unsigned most)
{
    struct rdt_alloc_options options = {
        .struct_size = sizeof options, .memory = "fake", .device = "FAKE-0", .written_whole = true};
    struct rdt_ref before = {0}, ref;
    void *room;

    for (unsigned version = 0; version < 100; version++) {
        must_ok(rdt_alloc_with(a, bytes, &options, &room, &err));
        fill_pattern(room, bytes, version);
        struct rdt_tensor tensor = bytes_at(room, bytes);
        ref = put_tensors(a, &tensor, 1, RDT_PUT_SNAPSHOT);
        must_ok(rdt_dealloc(a, room, &err));
        if (version > 0) {
            must_ok(rdt_free(a, &before, false, &err));
            must_ok(rdt_wait_freed(a, &before, LONG, &err));
        }
        before = ref;
    }
    must_say(made() <= most, "%llu blocks for 100 versions", (unsigned long long)made());
    must_say(used_bytes("FAKE-0") <= 3 * bytes, "%llu bytes", (unsigned long long)used_bytes("FAKE-0"));
    expect(b, &ref, "host", NULL, bytes, 99, "local/copy", "host", "");
    must_ok(rdt_free(a, &ref, false, &err));
}

Test(device_cache, publishes_take_no_more_memory_each_time)
{
    begin_caching(NULL);
    publish_many(BYTES, 4);
    end_caching();
}

/* ---- readers that keep it mapped ---- */

/* The answer to the fetch of one object by that client, which maps fake memory. *gones_p: REGION_GONE events before it. */
static Rdt__Pb__FetchDone *fetch_raw(struct raw *raw, const struct rdt_ref *ref, bool moves, unsigned *gones_p)
{
    Rdt__Pb__Ref wire;
    Rdt__Pb__FetchItem item = MESSAGE(fetch_item, .handle = raw->last_id + 1, .ref = &wire), *items = &item;
    char *kind = "fake";
    Rdt__Pb__Fetch fetch = MESSAGE(fetch, .items = &items, .n_items = 1, .maps = &kind, .n_maps = 1, .moves_mappings = moves);
    Rdt__Pb__FetchDone *done;

    wire_ref_from(ref, &wire);
    (void)raw_send(raw, RDT_MSG_FETCH, &fetch.base, NULL, 0);
    do {
        must(raw_next(raw));
        *gones_p += raw->frame.type == RDT_EVENT_REGION_GONE;
        frame_close_fds(&raw->frame);
    } while (raw->frame.type != RDT_EVENT_FETCH_DONE);
    done = rdt__pb__fetch_done__unpack(NULL, raw->frame.length, raw->frame.payload);
    must_say(done && done->status == RDT_OK && done->n_regions == 1 && done->regions[0]->cacheable, "%s",
             done ? done->message : "");
    return done;
}

static void share_versions(bool moves)
{
    unsigned gones = 0;
    uint64_t region = 0;
    struct raw raw;

    begin_caching(NULL);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    uint8_t *from = fake_device_alloc(a, "FAKE-0", BYTES);
    struct rdt_tensor tensor = bytes_at(from, BYTES);
    for (unsigned version = 0; version < 20; version++) {
        struct rdt_ref ref = put_tensors(a, &tensor, 1, RDT_PUT_SNAPSHOT);
        Rdt__Pb__FetchDone *done = fetch_raw(&raw, &ref, moves, &gones);
        const Rdt__Pb__SharedRegion *shared = done->regions[0];
        must(shared->region != region);
        must_say(shared->mapped_as == (moves ? region : 0), "version %u is mapped as %llu, not %llu", version,
                 (unsigned long long)shared->mapped_as, (unsigned long long)region);
        must((shared->fd_index < 0) == (moves && version > 0) && (shared->share != NULL) == (shared->fd_index >= 0));
        region = shared->region;
        Rdt__Pb__Release release =
            MESSAGE(release, .hold = done->hold, .keep_mapped_regions = &region, .n_keep_mapped_regions = 1);
        release.gone_events = gones;
        (void)raw_send(&raw, RDT_MSG_RELEASE, &release.base, NULL, 0);
        rdt__pb__fetch_done__free_unpacked(done, NULL);
        must_ok(rdt_free(a, &ref, false, &err));
        must_ok(rdt_wait_freed(a, &ref, LONG, &err));
        must_say(gones == (moves ? 0 : version), "%u mappings have ended", gones);
    }
    must_say(made() == 2, "%llu blocks", (unsigned long long)made());
    raw_close(&raw);
    must_ok(rdt_dealloc(a, from, &err));
    end_caching();
}

Test(device_cache, reader_has_the_next_snapshot_mapped)
{
    share_versions(true);
}

Test(device_cache, reader_that_does_not_understand_that_is_told_to_unmap)
{
    share_versions(false);
}

static atomic_bool allocated;

static void *allocate_slowly(void *arg)
{
    struct rdt_alloc_options options = {
        .struct_size = sizeof options, .memory = "fake", .device = "FAKE-0", .timeout_ns = LONG};

    must_ok(rdt_alloc_with(a, 2 * BYTES, &options, arg, &err));
    atomic_store(&allocated, true);
    return NULL;
}

/* The reader sees what the daemon wants unmapped. */
static bool is_allocated_after_a_ping_of(rdt *reader)
{
    must_ok(rdt_ping(reader, LONG, &err));
    return atomic_load(&allocated);
}

/* Returns a snapshot of BYTES that the reader keeps mapped. */
static struct rdt_ref keep_mapped(rdt *reader, void *from)
{
    struct rdt_tensor tensor = bytes_at(from, BYTES);
    struct rdt_ref ref = put_tensors(a, &tensor, 1, RDT_PUT_SNAPSHOT);
    rdt_object *object;

    must_ok(fetch_to(reader, &ref, NULL, NULL, &object, &err));
    rdt_release(object);
    must_ok(rdt_ping(reader, LONG, &err));
    return ref;
}

static void free_and_wait(const struct rdt_ref *ref)
{
    must_ok(rdt_free(a, ref, false, &err));
    must_ok(rdt_wait_freed(a, ref, LONG, &err));
}

/* Other processes have the memory of the device: what nobody has mapped is not enough. */
Test(device_cache, device_without_memory_gets_back_what_a_reader_keeps_mapped)
{
    pthread_t thread;
    void *got;

    begin_caching(NULL);
    uint8_t *from = fake_device_alloc(a, "FAKE-0", BYTES);
    struct rdt_ref shared = keep_mapped(b, from);
    snapshot_and_free(a, from, BYTES);
    free_and_wait(&shared);
    must(atomic_load(&gpu.control->blocks) == 3);
    atomic_store(&gpu.control->fail_allocs, 2); /* also without the block that nobody has mapped */
    must(pthread_create(&thread, NULL, allocate_slowly, &got) == 0);
    wait_until(LONG, is_allocated_after_a_ping_of(b));
    must(pthread_join(thread, NULL) == 0);
    must(atomic_load(&gpu.control->blocks) == 2);
    must_ok(rdt_dealloc(a, got, &err));
    end_caching();
}

/* Neither block that a reader keeps mapped is enough. */
static void get_back_from_two_readers(const char *flag)
{
    struct rdt_ref shared[2];
    pthread_t thread;
    void *got;
    rdt *c;

    begin_caching(flag);
    node_connect(&node, &c);
    fake_device_use(c);
    uint8_t *from = fake_device_alloc(a, "FAKE-0", BYTES);
    shared[0] = keep_mapped(b, from);
    shared[1] = keep_mapped(c, from);
    uint64_t others = DEVICE_BYTES - atomic_load(&gpu.control->allocated[0]);
    must(others == DEVICE_BYTES - 3 * BYTES);
    atomic_fetch_add(&gpu.control->allocated[0], others);
    free_and_wait(&shared[0]);
    free_and_wait(&shared[1]);
    must(pthread_create(&thread, NULL, allocate_slowly, &got) == 0);
    wait_until(LONG, rdt_ping(b, LONG, NULL) == RDT_OK && atomic_load(&gpu.control->blocks) == 2);
    wait_until(LONG, is_allocated_after_a_ping_of(c));
    must(pthread_join(thread, NULL) == 0);
    must_ok(rdt_dealloc(a, got, &err));
    atomic_fetch_sub(&gpu.control->allocated[0], others);
    rdt_close(c);
    end_caching();
}

Test(device_cache, device_without_memory_waits_for_all_readers)
{
    get_back_from_two_readers(NULL);
}

Test(device_cache, device_without_memory_waits_for_memory_that_is_being_freed)
{
    get_back_from_two_readers("--device-pool-max=4KiB");
}

/* Larger than the half of the pool that one client may have with several blocks. */
Test(device_cache, block_larger_than_a_clients_share_is_reused)
{
    uint8_t *first;

    begin_caching(NULL);
    first = fake_device_alloc(a, "FAKE-0", 3 * 1024 * KIB);
    must_ok(rdt_dealloc(a, first, &err));
    first = fake_device_alloc(a, "FAKE-0", 3 * 1024 * KIB);
    must(made() == 1 && is_zero(first, 3 * 1024 * KIB));
    must_ok(rdt_dealloc(a, first, &err));
    end_caching();
}

Test(device_cache, cache_is_bounded_and_freed_before_a_request_is_refused)
{
    uint8_t *some[8], *all;

    begin_caching(NULL);
    for (unsigned i = 0; i < 8; i++)
        some[i] = fake_device_alloc(a, "FAKE-0", 4 * BYTES);
    for (unsigned i = 0; i < 8; i++)
        must_ok(rdt_dealloc(a, some[i], &err));
    wait_until(LONG, used_bytes("FAKE-0") == 8 * BYTES); /* one client may have half of 4 MiB */
    must(atomic_load(&gpu.control->blocks) == 2);
    struct rdt_alloc_options options = {.struct_size = sizeof options, .memory = "fake", .device = "FAKE-0"};
    must_ok(rdt_alloc_with(b, 15 * 4 * BYTES, &options, (void **)&all, &err)); /* 15 of 16 MiB: a cached block must go */
    must_say(atomic_load(&gpu.control->blocks) == 2, "%u blocks", (unsigned)atomic_load(&gpu.control->blocks));
    must_refuse(RDT_LIMIT, "FAKE-0", rdt_alloc_with(b, 2 * 4 * BYTES, &options, (void **)&some[0], &err));
    must_say(atomic_load(&gpu.control->blocks) == 2, "the cache was freed without need");
    end_caching();
}

Test(device_cache, room_of_one_clients_cache_serves_another_client)
{
    begin_caching(NULL);
    uint8_t *first = fake_device_alloc(a, "FAKE-0", 8 * BYTES);
    uint8_t *second = fake_device_alloc(a, "FAKE-0", 56 * BYTES); /* the device is full */
    struct rdt_alloc_options options = {.struct_size = sizeof options, .memory = "fake", .device = "FAKE-0"};
    must_refuse(RDT_LIMIT, "FAKE-0", rdt_alloc_with(b, 5 * BYTES, &options, (void **)&second, &err));
    must_ok(rdt_dealloc(a, first, &err)); /* cached for a */
    must_ok(rdt_alloc_with(b, 5 * BYTES, &options, (void **)&second, &err));
    end_caching();
}

Test(device_cache, memory_that_cannot_be_zeroed_is_not_reused)
{
    uint8_t *from, *got;

    begin_caching(NULL);
    from = fake_device_alloc(a, "FAKE-0", BYTES);
    fill_pattern(from, BYTES, 7);
    snapshot_and_free(a, from, BYTES);
    atomic_store(&gpu.control->fail_zeros, 1);
    struct rdt_alloc_options options = {.struct_size = sizeof options, .memory = "fake", .device = "FAKE-0"};
    must_refuse(RDT_SYSTEM, "cannot be cleared", rdt_alloc_with(b, BYTES, &options, (void **)&got, &err));
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 1);
    got = fake_device_alloc(b, "FAKE-0", BYTES);
    must(is_zero(got, BYTES) && made() == 3);
    end_caching();
}

Test(device_cache, idle_memory_goes_back_to_the_device)
{
    begin_with((const char *const[]){"--pool-idle=100ms", NULL});
    uint8_t *from = fake_device_alloc(a, "FAKE-0", BYTES);
    snapshot_and_free(a, from, BYTES);
    must_ok(rdt_dealloc(a, from, &err));
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 0);
    end(NULL);
}
