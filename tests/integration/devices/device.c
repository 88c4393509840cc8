/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on devices, on one node, with a fake device whose addresses the daemon cannot touch: it is shared with clients of its
 * owner and copied for others and to other places; its lifetime, its order by streams, and faults.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "client/rdt_plan.h"
#include "tests/integration/devices/device_fixture.h"

TestSuite(device, .timeout = 100);

static char *daemon_maps(pid_t pid)
{
    char path[64];

    (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    return read_file(path, NULL);
}

/* ---- destinations ---- */

Test(device, owner_shares_it_without_a_copy)
{
    rdt_object *object;
    uint8_t *addr;

    begin();
    struct rdt_ref ref = put_on(a, "FAKE-1", BYTES, 1, (void **)&addr);
    expect(b, &ref, NULL, NULL, BYTES, 1, "local/share", "fake", "FAKE-1");
    must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
    addr[17] ^= 0xff; /* the very same memory */
    must(((uint8_t *)tensor_of(object, 0).data)[17] == addr[17]);
    rdt_release(object);
    addr[17] ^= 0xff;
    expect(a, &ref, NULL, NULL, BYTES, 1, "local/same", "fake", "FAKE-1");
    must(atomic_load(&gpu.control->started) == 0);
    end(NULL);
}

Test(device, fetch_brings_it_to_the_place_that_the_reader_names)
{
    begin();
    struct rdt_ref ref = put_on(a, "FAKE-0", BYTES, 2, NULL);
    expect(b, &ref, "host", NULL, BYTES, 2, "local/copy", "host", "");
    expect(b, &ref, "fake", "FAKE-1", BYTES, 2, "local/copy", "fake", "FAKE-1");
    expect(b, &ref, "fake", "fake-0", BYTES, 2, "local/share", "fake", "FAKE-0");
    struct rdt_ref host = put_one(a, &VECTOR(RDT_U8, 3 * BYTES, alloc_memory(a, 3 * BYTES)), NULL);
    {
        rdt_object *object;
        must_ok(fetch_to(b, &host, "fake", "FAKE-1", &object, &err));
        must_lie(object, 0, "fake", "FAKE-1");
        must(is_filled_with(tensor_of(object, 0).data, 3 * BYTES, 0));
        rdt_release(object);
    }
    end(NULL);
}

Test(device, client_without_a_mapper_gets_host_memory)
{
    rdt *plain;

    begin();
    struct rdt_ref ref = put_on(a, "FAKE-0", BYTES, 3, NULL);
    node_connect(&node, &plain);
    expect(plain, &ref, NULL, NULL, BYTES, 3, "local/copy", "host", "");
    {
        rdt_object *object;
        must_refuse(RDT_UNSUPPORTED, "rdt_map_by", fetch_to(plain, &ref, "fake", "FAKE-0", &object, &err));
        struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = RDT_FETCH_SHARE};
        must_refuse(RDT_NO_PATH, "does not map", rdt_fetch(plain, &ref, 1, &options, &object, &err));
        must_refuse(RDT_UNSUPPORTED, "FAKE-0, FAKE-1", fetch_to(b, &ref, "fake", "FAKE-7", &object, &err));
        must_refuse(RDT_INVALID, "name one of", fetch_to(b, &ref, "fake", NULL, &object, &err));
    }
    rdt_close(plain);
    end(NULL);
}

Test(device, imported_memory_is_copied_to_a_device_and_back)
{
    enum { ALL = 9 << 20 }; /* several chunks, the last one with an odd size */
    static const int64_t shape[2] = {2048, 1024}, strides[2] = {2048, 2};
    struct rdt_tensor columns = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .strides = strides};
    int fd = memfd_create("imported", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct rdt_tensor target;
    const struct rdt_tensor *targets = &target;
    size_t n = 1;
    rdt_object *object;

    must(fd >= 0 && ftruncate(fd, 2 * ALL) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    uint8_t *memory = mmap(NULL, 2 * ALL, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(memory != MAP_FAILED);
    begin();
    must_ok(rdt_import(a, fd, memory, 2 * ALL, &err));
    fill_pattern(memory, ALL, 6);
    struct rdt_ref ref = put_one(a, &VECTOR(RDT_U8, ALL - 13, memory), NULL);
    expect(b, &ref, "fake", "FAKE-1", ALL - 13, 6, "local/copy", "fake", "FAKE-1");
    columns.data = memory;
    ref = put_one(a, &columns, NULL);
    must_ok(fetch_to(b, &ref, "fake", "FAKE-0", &object, &err));
    for (size_t i = 0; i < 2048u * 1024u; i++)
        must(((uint8_t *)tensor_of(object, 0).data)[i] == memory[2 * i]);
    rdt_release(object);
    ref = put_on(b, "FAKE-0", BYTES, 7, NULL);
    target = VECTOR(RDT_U8, BYTES, memory + ALL);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .targets = &targets, .target_counts = &n};
    must_ok(rdt_fetch(a, &ref, 1, &options, &object, &err));
    must(holds_pattern(memory + ALL, BYTES, 7));
    rdt_release(object);
    char *maps = daemon_maps(node.pid);
    must(!strstr(maps, "memfd:imported"));
    free(maps);
    must_ok(rdt_dealloc(a, memory, &err));
    must(munmap(memory, 2 * ALL) == 0 && close(fd) == 0);
    end(NULL);
}

Test(device, mixed_objects_and_strides)
{
    struct rdt_tensor tensors[4];
    static const int64_t shape[2] = {100, 300}, turned[2] = {300, 100}, strides[2] = {1, 300};
    rdt_object *object;

    begin();
    uint8_t *on0 = fake_device_alloc(a, "FAKE-0", 30000);
    uint8_t *on1 = fake_device_alloc(a, "FAKE-1", BYTES);
    uint8_t *in_host = alloc_memory(a, BYTES);
    fill_pattern(on0, 30000, 4);
    fill_pattern(on1, BYTES, 5);
    fill_pattern(in_host, BYTES, 6);
    tensors[0] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 2, .shape = turned, .strides = strides, .data = on0};
    tensors[1] = bytes_at(in_host, BYTES);
    tensors[2] = bytes_at(on1, BYTES);
    tensors[3] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 2, .shape = shape, .data = on0};
    struct rdt_ref ref = put_tensors(a, tensors, 4, 0);
    must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
    must_go_by("local/share", object);
    for (unsigned i = 0; i < 4; i++) {
        struct rdt_tensor got = tensor_of(object, i);
        must(tensors_equal(&got, &tensors[i]));
    }
    rdt_release(object);
    /* Round 0 fetches all tensors to the host, 1 all to a device, 2 those on devices to one device. */
    for (unsigned round = 0; round < 3; round++) {
        struct rdt_fetch_options options = {.struct_size = sizeof options,
                                            .memory = round == 0 ? "host" : "fake",
                                            .device = round == 0 ? NULL : "FAKE-1",
                                            .host_stays = round == 2};
        must_ok(rdt_fetch(b, &ref, 1, &options, &object, &err));
        must_go_by("local/copy", object);
        for (unsigned i = 0; i < 4; i++) {
            struct rdt_tensor got = tensor_of(object, i);
            must_say(tensors_equal(&got, &tensors[i]), "tensor %u of round %u differs", i, round);
            must_lie(object, i, round == 0 || (round == 2 && i == 1) ? "host" : "fake",
                     round == 0 || (round == 2 && i == 1) ? "" : "FAKE-1");
        }
        rdt_release(object);
    }
    end(NULL);
}

Test(device, targets_on_devices_and_in_host_memory)
{
    struct rdt_tensor targets[1];
    const struct rdt_tensor *lists[1] = {targets};
    size_t counts[1] = {1};
    uint8_t own[BYTES];

    begin();
    struct rdt_ref ref = put_on(a, "FAKE-0", BYTES, 7, NULL);
    uint8_t *to = fake_device_alloc(b, "FAKE-1", 2 * BYTES);
    uint8_t *to_host = alloc_memory(b, BYTES);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .targets = lists, .target_counts = counts};
    targets[0] = bytes_at(to + BYTES, BYTES);
    rdt_object *object = fetch_as(b, &ref, &options);
    must(holds_pattern(to + BYTES, BYTES, 7) && is_filled_with(to, BYTES, 0));
    must_lie(object, 0, "fake", "FAKE-1");
    rdt_release(object);
    targets[0] = bytes_at(to_host, BYTES);
    must_ok(rdt_fetch(b, &ref, 1, &options, &object, &err));
    must(holds_pattern(to_host, BYTES, 7));
    rdt_release(object);
    targets[0] = bytes_at(own, BYTES); /* memory that the daemon does not know: the library copies, from host memory */
    must_ok(rdt_fetch(b, &ref, 1, &options, &object, &err));
    must(holds_pattern(own, BYTES, 7));
    rdt_release(object);
    end(NULL);
}

Test(device, snapshot_does_not_change)
{
    begin();
    uint8_t *addr = fake_device_alloc(a, "FAKE-1", BYTES);
    fill_pattern(addr, BYTES, 8);
    struct rdt_tensor tensor = bytes_at(addr, BYTES);
    struct rdt_ref ref = put_tensors(a, &tensor, 1, RDT_PUT_SNAPSHOT);
    fill_pattern(addr, BYTES, 9);
    expect(b, &ref, NULL, NULL, BYTES, 8, "local/share", "fake", "FAKE-1");
    expect(b, &ref, "host", NULL, BYTES, 8, "local/copy", "host", "");
    end(NULL);
}

/* Whoever maps memory of a device may write it, and others are not to depend on the word of the owner's programs. */
Test(device, snapshot_that_others_may_see_is_not_shared)
{
    rdt_object *object;

    begin();
    uint8_t *addr = fake_device_alloc(a, "FAKE-1", BYTES);
    fill_pattern(addr, BYTES, 8);
    struct rdt_tensor tensor = bytes_at(addr, BYTES);
    struct rdt_put_options put = {.struct_size = sizeof put, .flags = RDT_PUT_SNAPSHOT, .visibility = RDT_VISIBLE_TO_TENANT};
    struct rdt_ref ref = put_as(a, &tensor, 1, &put);
    expect(b, &ref, NULL, NULL, BYTES, 8, "local/copy", "fake", "FAKE-1");
    struct rdt_fetch_options share = {.struct_size = sizeof share, .mode = RDT_FETCH_SHARE, .timeout_ns = LONG};
    must_refuse(RDT_NO_PATH, "others may see", rdt_fetch(b, &ref, 1, &share, &object, &err));
    end(NULL);
}

/* ---- the client's own memory ---- */

static int read_handle(struct actor *self, void *arg)
{
    const struct test_node *at = arg;
    struct rdt_ref ref;
    rdt_object *object;
    rdt *conn;

    actor_recv(self, &ref, sizeof ref);
    node_connect(at, &conn);
    fake_device_use(conn);
    must_ok(fetch_to(conn, &ref, NULL, NULL, &object, &err));
    must_go_by("local/share", object);
    must_lie(object, 0, "fake", "FAKE-0");
    must(holds_pattern(tensor_of(object, 0).data, 1000, 11));
    rdt_release(object);
    rdt_close(conn);
    return 0;
}

static size_t dirty_bytes(const uint8_t *bytes, size_t n)
{
    size_t dirty = 0;

    for (size_t i = 0; i < n; i++)
        dirty += bytes[i] == FAKE_DIRT;
    return dirty;
}

/* Fetches two tensors with a gap between them, and looks at all memory that the reader has mapped. */
static void expect_clean(const struct rdt_ref *ref, const char *memory)
{
    rdt_object *object;

    must_ok(fetch_to(b, ref, memory, memory ? "FAKE-1" : NULL, &object, &err));
    const uint8_t *first = tensor_of(object, 0).data;
    must(holds_pattern(first, 100, 3) && holds_pattern(tensor_of(object, 1).data, 1000, 4));
    must((const uint8_t *)tensor_of(object, 1).data == first + 128);
    must(dirty_bytes(first + 100, 28) == 0);
    must(dirty_bytes(first + 1128, 64 * KIB - 1128) == 0);
    rdt_release(object);
}

/* What the daemon writes whole is not cleared first, and nobody sees what others left in the gaps or behind the end. */
Test(device, memory_that_is_written_whole_is_not_cleared_and_shows_no_bytes_of_others)
{
    uint8_t *host = malloc(64 * KIB);
    struct rdt_tensor two[2];

    must(host);
    two[0] = bytes_at(host, 100);
    two[1] = bytes_at(host + 200, 1000);
    fill_pattern(host, 100, 3);
    fill_pattern(host + 200, 1000, 4);
    begin();
    struct rdt_ref ref = put_tensors(a, two, 2, 0);
    expect_clean(&ref, "fake");
    must(atomic_load(&gpu.control->dirty) == 1 && atomic_load(&gpu.control->made) == 1);
    must(atomic_load(&gpu.control->cleared_bytes) == 28 + 64 * KIB - 1128);

    void *addr = fake_device_alloc(a, "FAKE-0", 64 * KIB);
    memcpy(addr, host, 64 * KIB);
    two[0].data = addr;
    two[1].data = (char *)addr + 200;
    struct rdt_ref snapshot = put_tensors(a, two, 2, RDT_PUT_SNAPSHOT);
    must(atomic_load(&gpu.control->dirty) == 2);
    expect_clean(&snapshot, NULL);
    free(host);
    end(NULL);
}

Test(device, legacy_handle_is_opened_once)
{
    struct fake_memory_own own;
    struct actor reader;
    bool known;
    const char *memory;

    begin();
    actor_start(&reader, read_handle, &node);
    fake_device_malloc(&own, 1, 2 * BYTES);
    fill_pattern(own.addr + BYTES, BYTES, 11);
    struct rdt_shared whole = fake_device_handle(&own, "FAKE-0");
    whole.bytes = BYTES;
    struct rdt_shared part = fake_device_handle(&own, "FAKE-0");
    part.offset = BYTES;
    part.bytes = BYTES;
    must_ok(rdt_import_shared(a, &whole, own.addr, &err));
    must_ok(rdt_import_shared(a, &part, own.addr + BYTES, &err));
    must(atomic_load(&gpu.control->handles) == 1 && atomic_load(&gpu.control->imports) == 2);
    must_ok(rdt_known(a, own.addr + BYTES, 10, &known, &memory, NULL, &err));
    must(known && strcmp(memory, "fake") == 0);
    struct rdt_tensor tensor = bytes_at(own.addr + BYTES, 1000);
    struct rdt_ref ref = put_tensors(a, &tensor, 1, 0);
    expect(a, &ref, NULL, NULL, 1000, 11, "local/same", "fake", "FAKE-0");
    expect(b, &ref, "host", NULL, 1000, 11, "local/copy", "host", "");
    actor_send(&reader, &ref, sizeof ref); /* another process opens the handle itself */
    actor_wait(&reader);
    must_ok(rdt_free(a, &ref, false, &err));
    must_ok(rdt_wait_freed_range(a, own.addr + BYTES, BYTES, LONG, &err));
    must_ok(rdt_dealloc(a, own.addr + BYTES, &err));
    must_ok(rdt_dealloc(a, own.addr, &err));
    wait_until(LONG, atomic_load(&gpu.control->handles) == 0);
    fake_device_free(&own);
    end(NULL);
}

#define MANY 100u /* more than are under way at once */

Test(device, many_ranges_are_imported_together)
{
    struct fake_memory_own own, chunks;
    struct rdt_shared shared[MANY];
    const struct rdt_shared *all[MANY];
    enum rdt_status statuses[MANY];
    void *addrs[MANY];
    bool known;

    begin();
    fake_device_malloc(&own, 1, MANY * 4 * KIB);
    fake_device_malloc(&chunks, 70, 4 * KIB);
    fill_pattern(own.addr, own.bytes, 14);
    for (unsigned i = 0; i < MANY; i++) {
        shared[i] = fake_device_handle(&own, "FAKE-0");
        shared[i].offset = i * 4 * KIB;
        shared[i].bytes = 4 * KIB;
        all[i] = &shared[i];
        addrs[i] = own.addr + i * 4 * KIB;
    }
    shared[7] = fake_device_chunks(&chunks, "FAKE-0"); /* takes two messages */
    addrs[7] = chunks.addr;
    shared[50].kind = (enum rdt_shared_kind)99;
    must_refuse(RDT_INVALID, "rdtd knows no handles of kind 99", rdt_import_shared_many(a, all, addrs, MANY, statuses, &err));
    for (unsigned i = 0; i < MANY; i++) {
        must_say(statuses[i] == (i == 50 ? RDT_INVALID : RDT_OK), "range %u: %s", i, rdt_status_name(statuses[i]));
        must_ok(rdt_known(a, addrs[i], 4 * KIB, &known, NULL, NULL, &err));
        must(known == (i != 50));
    }
    struct rdt_tensor tensor = bytes_at(addrs[99], 4 * KIB);
    struct rdt_ref ref = put_tensors(a, &tensor, 1, 0);
    rdt_object *object;
    must_ok(fetch_to(b, &ref, "host", NULL, &object, &err));
    must(memcmp(tensor_of(object, 0).data, addrs[99], 4 * KIB) == 0);
    rdt_release(object);
    must_ok(rdt_free(a, &ref, false, &err));
    for (unsigned i = 0; i < MANY; i++)
        if (i != 50)
            must_ok(rdt_dealloc(a, addrs[i], &err));
    wait_until(LONG, atomic_load(&gpu.control->imports) == 0);
    fake_device_free(&own);
    fake_device_free(&chunks);
    end(NULL);
}

Test(device, chunks_in_several_messages)
{
    struct fake_memory_own few, many;

    begin();
    fake_device_malloc(&few, 5, 64 * KIB);
    fake_device_malloc(&many, 150, 4 * KIB);
    fill_pattern(few.addr, few.bytes, 12);
    fill_pattern(many.addr, many.bytes, 13);
    struct rdt_shared shared = fake_device_chunks(&few, "FAKE-1");
    must_ok(rdt_import_shared(a, &shared, few.addr, &err));
    shared = fake_device_chunks(&many, "FAKE-1");
    must_ok(rdt_import_shared(a, &shared, many.addr, &err));
    struct rdt_tensor tensor = bytes_at(few.addr, few.bytes);
    struct rdt_ref ref = put_tensors(a, &tensor, 1, 0);
    expect(b, &ref, NULL, NULL, few.bytes, 12, "local/share", "fake", "FAKE-1");
    expect(b, &ref, "fake", "FAKE-0", few.bytes, 12, "local/copy", "fake", "FAKE-0");
    tensor = bytes_at(many.addr, many.bytes);
    ref = put_tensors(a, &tensor, 1, 0); /* more chunks than one message has fds */
    expect(b, &ref, NULL, NULL, many.bytes, 13, "local/share", "fake", "FAKE-1");
    expect(b, &ref, "fake", "FAKE-0", many.bytes, 13, "local/copy", "fake", "FAKE-0");
    shared.chunk_bytes = (const uint64_t[150]){[0] = 1 << 20};
    shared.bytes = 1 << 20;
    must_refuse(RDT_INVALID, "shorter than it says", rdt_import_shared(b, &shared, many.addr, &err));
    rdt_close(a);
    node_connect(&node, &a);
    wait_until(LONG, atomic_load(&gpu.control->imports) == 0);
    fake_device_free(&few);
    fake_device_free(&many);
    end(NULL);
}

/* ---- lifetime ---- */

Test(device, thousand_puts_leave_nothing)
{
    uint64_t most = 0;

    begin();
    for (unsigned i = 0; i < 1000; i++) {
        void *addr;
        struct rdt_ref ref = put_on(a, i % 2 ? "FAKE-0" : "FAKE-1", 64 * KIB, i, &addr);
        if (i % 10 == 0)
            expect(b, &ref, i % 20 ? "host" : NULL, NULL, 64 * KIB, i, i % 20 ? "local/copy" : "local/share",
                   i % 20 ? "host" : "fake",
                   i % 20  ? ""
                   : i % 2 ? "FAKE-0"
                           : "FAKE-1");
        must_ok(rdt_free(a, &ref, false, &err));
        must_ok(rdt_dealloc(a, addr, &err));
        uint64_t now = atomic_load(&gpu.control->allocated[0]) + atomic_load(&gpu.control->allocated[1]);
        most = now > most ? now : most;
    }
    must_say(most <= 16 * 64 * KIB, "%llu bytes at once", (unsigned long long)most);
    wait_until(LONG, atomic_load(&gpu.control->allocated[0]) + atomic_load(&gpu.control->allocated[1]) == 0);
    end(NULL);
}

static int hold_device_memory(struct actor *self, void *arg)
{
    struct fake_memory_own own;
    rdt *conn;

    node_connect(arg, &conn);
    fake_device_use(conn);
    (void)put_on(conn, "FAKE-0", BYTES, 1, NULL);
    fake_device_malloc(&own, 1, BYTES);
    struct rdt_shared shared = fake_device_handle(&own, "FAKE-1");
    must_ok(rdt_import_shared(conn, &shared, own.addr, &err));
    actor_step(self);
    actor_await(self);
    return 0;
}

Test(device, memory_of_a_killed_client_is_freed)
{
    struct actor actor;

    begin();
    actor_start(&actor, hold_device_memory, &node);
    actor_await(&actor);
    must(atomic_load(&gpu.control->allocated[0]) == BYTES && atomic_load(&gpu.control->handles) == 1);
    actor_kill(&actor, 9);
    wait_until(LONG, atomic_load(&gpu.control->allocated[0]) == 0 && atomic_load(&gpu.control->handles) == 0);
    end(NULL);
}

Test(device, limit_names_the_device)
{
    void *one, *two;

    begin_with((const char *const[]){"--device-limit=1MiB", NULL});
    one = fake_device_alloc(a, "FAKE-0", 768 * KIB);
    struct rdt_alloc_options options = {.struct_size = sizeof options, .memory = "fake", .device = "FAKE-0"};
    must_refuse(RDT_LIMIT, "FAKE-0", rdt_alloc_with(b, 512 * KIB, &options, &two, &err));
    two = fake_device_alloc(b, "FAKE-1", 512 * KIB);
    must_ok(rdt_dealloc(a, one, &err));
    options.timeout_ns = LONG; /* a client that waits gets the memory as soon as the device has room */
    must_ok(rdt_alloc_with(b, 768 * KIB, &options, &one, &err));
    expect_output("backends", NULL, "FAKE-0");
    expect_output("regions", NULL, "FAKE-1");
    end(NULL);
}

/* ---- order ---- */

Test(device, nobody_reads_it_before_its_stream_has_written_it)
{
    rdt_request *request, *requests[1];
    rdt_object *object;

    begin();
    uint8_t *addr = fake_device_alloc(a, "FAKE-0", BYTES);
    struct rdt_tensor tensor = bytes_at(addr, BYTES);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_PENDING};
    struct rdt_ref ref = put_as(a, &tensor, 1, &options);
    request = requests[0] = start_one(b, &ref, LONG);
    must_be(RDT_TIMED_OUT, rdt_wait(b, requests, 1, 1, 50 * MSEC, NULL, NULL, &err));
    {
        struct rdt_stat stat = stat_of(b, &ref);
        must(strcmp(stat.state, "filling") == 0);
    }
    fill_pattern(addr, BYTES, 21); /* this stands for the slow stream */
    must_ok(rdt_ready(a, &ref, &err));
    must_ok(rdt_wait(b, requests, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 21));
    rdt_release(object);
    rdt_request_destroy(request);
    options.flags = RDT_PUT_PENDING | RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(a, &tensor, 1, &options, &ref, &err));
    fill_pattern(addr, BYTES, 22);
    must_ok(rdt_ready(a, &ref, &err));
    must_ok(rdt_wait_put(b, &ref, LONG, &err));
    fill_pattern(addr, BYTES, 23);
    expect(b, &ref, NULL, NULL, BYTES, 22, "local/share", "fake", "FAKE-0");
    must_ok(rdt_ready(b, &ref, &err)); /* another session's object, so nothing happens */
    end(NULL);
}

/* Returns when the daemon knows that somebody waits for the object. */
static void await_waiter(const struct rdt_ref *ref)
{
    struct rdt_stat stat = {0};

    wait_until(LONG, rdt_stat(a, ref, &stat, NULL) == RDT_OK && stat.waiters > 0);
}

Test(device, failed_pending_put_fails_its_waiters)
{
    rdt_request *requests[1];

    begin();
    uint8_t *addr = fake_device_alloc(a, "FAKE-0", BYTES);
    struct rdt_tensor tensor = bytes_at(addr, BYTES);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_PENDING};
    struct rdt_ref ref = put_as(a, &tensor, 1, &options);
    requests[0] = start_one(b, &ref, LONG);
    await_waiter(&ref);
    must_ok(rdt_fail(a, &ref, RDT_SYSTEM, "the kernel was launched with nonsense", &err));
    must_refuse(RDT_SYSTEM, "nonsense", rdt_wait(b, requests, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(requests[0]);
    must_ok(rdt_put(a, &tensor, 1, &options, &ref, &err));
    requests[0] = start_one(b, &ref, LONG);
    await_waiter(&ref);
    rdt_close(a);
    must_be(RDT_OWNER_DIED, rdt_wait(b, requests, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(requests[0]);
    node_connect(&node, &a);
    end(NULL);
}

/* ---- faults ---- */

Test(device, failed_copy_is_reported_and_disturbs_nothing_else)
{
    rdt_object *object;

    begin();
    struct rdt_ref ref = put_on(a, "FAKE-0", BYTES, 31, NULL);
    atomic_store(&gpu.control->fail_copies, 1);
    must_refuse(RDT_SYSTEM, "fallen off the bus", fetch_to(b, &ref, "host", NULL, &object, &err));
    expect(b, &ref, "host", NULL, BYTES, 31, "local/copy", "host", "");
    atomic_store(&gpu.control->fail_allocs, 1);
    must_refuse(RDT_NO_MEMORY, "FAKE-1", fetch_to(b, &ref, "fake", "FAKE-1", &object, &err));
    expect(b, &ref, "fake", "FAKE-1", BYTES, 31, "local/copy", "fake", "FAKE-1");
    end(NULL);
}

Test(device, deadline_and_cancel_while_the_device_is_slow)
{
    rdt_object *object;

    begin();
    struct rdt_ref ref = put_on(a, "FAKE-0", BYTES, 32, NULL);
    fake_hold(gpu.control, true);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .memory = "host", .timeout_ns = 50 * MSEC};
    must_be(RDT_TIMED_OUT, rdt_fetch(b, &ref, 1, &options, &object, &err));
    options.timeout_ns = LONG;
    must_ok(rdt_ping(b, LONG, &err)); /* the daemon has ended the one before */
    uint64_t began = atomic_load(&gpu.control->started);
    rdt_request *request = start_as(b, &ref, &options);
    wait_until(LONG, atomic_load(&gpu.control->started) > began);
    rdt_cancel(request);
    rdt_request_destroy(request);
    must_ok(rdt_free(a, &ref, false, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed(a, &ref, 50 * MSEC, &err)); /* the device still copies */
    fake_hold(gpu.control, false);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    end(NULL);
}

Test(device, plugin_without_a_device_says_so)
{
    void *addr;

    begin_with((const char *const[]){"devices=0", NULL});
    struct rdt_alloc_options options = {.struct_size = sizeof options, .memory = "fake"};
    must_refuse(RDT_UNSUPPORTED, "there is no fake device", rdt_alloc_with(a, BYTES, &options, &addr, &err));
    expect_output("backends", NULL, "there is no fake device");
    end(NULL);
}

/* It would be written by the processor. */
Test(device, plan_into_memory_on_a_device_is_refused)
{
    int64_t count[1] = {100};
    struct rdt_want want = {"w", 1, NULL, count, RDT_U8, NULL, NULL};
    struct rdt_ref name;
    rdt_plan *plan;

    begin();
    want.data = fake_device_alloc(a, "FAKE-0", BYTES);
    must_ok(rdt_ref_from_name("policy", 0, NULL, &name, &err));
    must_refuse(RDT_UNSUPPORTED,
                "data of want 0 (\"w\"): it lies on device FAKE-0, whose memory no mapper of this process writes",
                rdt_plan_create(a, &name, &want, 1, NULL, &plan, &err));
    must_ok(rdt_dealloc(a, want.data, &err));
    end(NULL);
}
