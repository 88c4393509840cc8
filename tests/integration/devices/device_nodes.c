/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on devices between two nodes. No transport can move the memory of the fake devices, so each sub-pull goes through host
 * memory. Tested are order by streams, deadlines, faults, and that every path is explained.
 */
#include "tests/integration/devices/device_nodes_fixture.h"

TestSuite(device_nodes, .timeout = 150);

static struct rdt_fetch_options to(const char *memory, const char *device)
{
    struct rdt_fetch_options options = {.struct_size = sizeof options, .memory = memory, .device = device, .timeout_ns = LONG};
    return options;
}

static void expect(const struct rdt_ref *ref, const char *memory, const char *device, size_t bytes, uint32_t seed,
                   const char *path)
{
    struct rdt_fetch_options options = to(memory, device);
    rdt_object *object = fetch_as(reader, ref, &options);

    must_go_by(path, object);
    must_lie(object, 0, device ? "fake" : "host", device ? device : "");
    must(holds_pattern(tensor_of(object, 0).data, bytes, seed));
    rdt_release(object);
}

static void expect_explained(const rdt_object *object, const char *text)
{
    struct program program = {0};
    char number[24];

    (void)snprintf(number, sizeof number, "%llu", (unsigned long long)info_of(object).transfer);
    program_run(&program, (const char *const[]){"rdtctl", "--socket", c.node[1].socket, "explain", number, NULL}, NULL);
    must_say(program.status == 0 && strstr(program.out, text), "`rdtctl explain` says nothing of '%s': %s%s", text, program.out,
             program.err);
    program_free(&program);
}

Test(device_nodes, through_host_memory_both_ways)
{
    begin();
    struct rdt_ref ref = put_on("HERE-0", LARGE, 1);
    expect(&ref, NULL, NULL, LARGE, 1, "stream/staged");
    expect(&ref, "fake", "THERE-1", LARGE, 1, "stream/staged");
    must_say(atomic_load(&gpu[0].control->unpinned_bytes) == 0 && atomic_load(&gpu[1].control->unpinned_bytes) == 0,
             "it was not pinned");
    struct rdt_ref host = put_pattern(owner, NULL, LARGE, 2);
    expect(&host, "fake", "THERE-0", LARGE, 2, "stream/staged");
    expect(&host, NULL, NULL, LARGE, 2, "stream");
    ref = put_on("HERE-1", 100, 3); /* a small tensor on a device does not travel in the answer */
    expect(&ref, NULL, NULL, 100, 3, "stream/staged");
    host = put_pattern(owner, NULL, 100, 4);
    expect(&host, "fake", "THERE-1", 100, 4, "stream/staged");
    end(NULL);
}

/* Pinning takes milliseconds, so the slots of a stage stay pinned in the pool for the next transfer. */
static bool fetch_pins_nothing(const struct rdt_ref *ref)
{
    unsigned before = 0, after = 0;

    for (unsigned i = 0; i < 2; i++)
        before += atomic_load(&gpu[i].control->pin_calls);
    expect(ref, "fake", "THERE-1", LARGE, 1, "stream/staged");
    for (unsigned i = 0; i < 2; i++)
        after += atomic_load(&gpu[i].control->pin_calls);
    return after == before;
}

Test(device_nodes, stages_stay_pinned_for_later_transfers)
{
    begin();
    struct rdt_ref ref = put_on("HERE-0", LARGE, 1);
    must(!fetch_pins_nothing(&ref));
    wait_until(LONG, fetch_pins_nothing(&ref)); /* the slots of a transfer that is just over are not back in the pool yet */
    for (unsigned i = 0; i < 2; i++)
        must(atomic_load(&gpu[i].control->pinned) > 0 && atomic_load(&gpu[i].control->unpinned_bytes) == 0);
    end(NULL);
}

Test(device_nodes, mixed_object_is_moved_by_sub_pulls_and_explained)
{
    uint8_t *on0 = NULL, *on1, *in_host;
    struct rdt_tensor tensors[5];
    static const int64_t turned[2] = {300, 100}, strides[2] = {1, 300};
    struct rdt_fetch_options options = to(NULL, NULL);
    struct rdt_put_options put = RDT_INIT(put);
    struct program program = {0};
    rdt_object *object;

    begin_with(&(struct cluster_options){.stream = true});
    on0 = fake_device_alloc(owner, "HERE-0", 30000);
    on1 = fake_device_alloc(owner, "HERE-1", LARGE);
    in_host = alloc_memory(owner, BYTES);
    fill_pattern(on0, 30000, 4);
    fill_pattern(on1, LARGE, 5);
    fill_pattern(in_host, BYTES, 6);
    tensors[0] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 2, .shape = turned, .strides = strides, .data = on0};
    tensors[1] = bytes_at(in_host, BYTES);
    tensors[2] = bytes_at(on1, LARGE);
    tensors[3] = bytes_at(on0 + 100, 333);
    tensors[4] = bytes_at(on0, 0);
    struct rdt_ref ref = put_as(owner, tensors, 5, &put);
    for (unsigned round = 0; round < 3; round++) {
        options = round == 0 ? to(NULL, NULL) : to("fake", "THERE-1");
        options.host_stays = round == 2;
        must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
        for (unsigned i = 0; i < 5; i++) {
            struct rdt_tensor got = tensor_of(object, i);
            must_say(tensors_equal(&got, &tensors[i]), "tensor %u of round %u differs", i, round);
            if (i < 4)
                must_lie(object, i, round == 0 || (round == 2 && i == 1) ? "host" : "fake",
                         round == 0 || (round == 2 && i == 1) ? "" : "THERE-1");
        }
        if (round == 1) /* in other rounds the order is that in which the sub-pulls ended */
            must_go_by("stream/staged", object);
        else
            must_say(strstr(info_of(object).path, "stream/staged") && strchr(info_of(object).path, ','), "path %s",
                     info_of(object).path);
        expect_explained(object, round == 0 ? "through host memory on the other node: it does not move fake memory"
                                            : "through host memory on both nodes: it does not move fake memory");
        expect_explained(object, "  sub-pull:  of transfer ");
        rdt_release(object);
    }
    program_run(&program, (const char *const[]){"rdtctl", "--socket", c.node[1].socket, "transfers", "--json", NULL}, NULL);
    must_say(strstr(program.out, "\"parent\"") && strstr(program.out, "\"route\""), "%s", program.out);
    program_free(&program);
    options = to("fake", "THERE-1");
    options.least_path = "direct";
    must_refuse(RDT_NO_PATH, "accepts only a direct path", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    options = to(NULL, NULL);
    options.transport = "stream";
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must(info_of(object).path[0] == 's');
    rdt_release(object);
    end(NULL);
}

Test(device_nodes, targets)
{
    struct rdt_ref ref = {0};
    struct rdt_tensor targets[2];
    const struct rdt_tensor *lists[1] = {targets};
    size_t counts[1] = {2};
    struct rdt_fetch_options options = to(NULL, NULL);

    begin();
    uint8_t *from = fake_device_alloc(owner, "HERE-0", 2 * BYTES);
    fill_pattern(from, 2 * BYTES, 7);
    {
        struct rdt_put_options put = RDT_INIT(put);
        struct rdt_tensor both[2] = {bytes_at(from, BYTES), bytes_at(from + BYTES, BYTES)};
        must_ok(rdt_put(owner, both, 2, &put, &ref, &err));
    }
    uint8_t *device = fake_device_alloc(reader, "THERE-0", BYTES);
    uint8_t *host = alloc_memory(reader, BYTES);
    targets[0] = bytes_at(device, BYTES);
    targets[1] = bytes_at(host, BYTES);
    options.targets = lists;
    options.target_counts = counts;
    rdt_object *object = fetch_as(reader, &ref, &options);
    must(memcmp(device, from, BYTES) == 0 && memcmp(host, from + BYTES, BYTES) == 0);
    rdt_release(object);
    /* All targets are in host memory, so the pull begins before the owner says that the tensor is on a device. */
    targets[0] = bytes_at(host, BYTES);
    must_ok(rdt_dealloc(reader, device, &err));
    {
        uint8_t *other = alloc_memory(reader, BYTES);
        targets[1] = bytes_at(other, BYTES);
        must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
        must(memcmp(host, from, BYTES) == 0 && memcmp(other, from + BYTES, BYTES) == 0);
        rdt_release(object);
    }
    end(NULL);
}

Test(device_nodes, nobody_reads_before_the_stream_has_written)
{
    rdt_request *requests[1];
    rdt_object *object;

    begin();
    uint8_t *addr = fake_device_alloc(owner, "HERE-0", BYTES);
    struct rdt_tensor tensor = bytes_at(addr, BYTES);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_PENDING};
    struct rdt_ref ref = put_as(owner, &tensor, 1, &options);
    requests[0] = start_one(reader, &ref, LONG);
    must_be(RDT_TIMED_OUT, rdt_wait(reader, requests, 1, 1, 100 * MSEC, NULL, NULL, &err));
    must(atomic_load(&gpu[0].control->started) == 0);
    fill_pattern(addr, BYTES, 8);
    must_ok(rdt_ready(owner, &ref, &err));
    must_ok(rdt_wait(reader, requests, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(requests[0], &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 8));
    rdt_release(object);
    rdt_request_destroy(requests[0]);
    end(NULL);
}

Test(device_nodes, deadline_and_cancel_in_the_middle)
{
    struct rdt_fetch_options options = to("fake", "THERE-0");
    rdt_request *request;
    rdt_object *object;

    begin();
    struct rdt_ref ref = put_on("HERE-0", LARGE, 9);
    for (unsigned end_of = 0; end_of < 2; end_of++) { /* the owner's device is slow, then the reader's */
        uint64_t before = atomic_load(&gpu[end_of].control->started);
        fake_hold(gpu[end_of].control, true);
        options.timeout_ns = 300 * MSEC;
        must_be(RDT_TIMED_OUT, rdt_fetch(reader, &ref, 1, &options, &object, &err));
        options.timeout_ns = LONG;
        must_ok(rdt_fetch_start(reader, &ref, 1, &options, &request, &err));
        wait_until(LONG, atomic_load(&gpu[end_of].control->started) > before);
        rdt_cancel(request);
        rdt_request_destroy(request);
        fake_hold(gpu[end_of].control, false);
        cluster_expect_idle_of_transfers(&c);
        expect(&ref, "fake", "THERE-0", LARGE, 9, "stream/staged");
    }
    end(NULL);
}

Test(device_nodes, failed_copies_at_either_end)
{
    struct rdt_fetch_options options = to("fake", "THERE-0");
    rdt_object *object;

    begin();
    struct rdt_ref ref = put_on("HERE-0", LARGE, 10);
    for (unsigned end_of = 0; end_of < 2; end_of++) {
        atomic_store(&gpu[end_of].control->fail_copies, 1);
        must_refuse(RDT_SYSTEM, "fallen off the bus", rdt_fetch(reader, &ref, 1, &options, &object, &err));
        cluster_expect_idle_of_transfers(&c);
        expect(&ref, "fake", "THERE-0", LARGE, 10, "stream/staged");
    }
    ref = put_on("HERE-0", LARGE / 2, 11);         /* no unused block is of its size */
    atomic_store(&gpu[1].control->fail_allocs, 2); /* also without these blocks */
    must_refuse(RDT_NO_MEMORY, "THERE-0", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    atomic_store(&gpu[1].control->fail_allocs, 0); /* had the blocks been given up before, it allocated once */
    expect(&ref, "fake", "THERE-0", LARGE / 2, 11, "stream/staged");
    end(NULL);
}

Test(device_nodes, snapshot_on_a_device)
{
    begin();
    uint8_t *addr = fake_device_alloc(owner, "HERE-1", BYTES);
    fill_pattern(addr, BYTES, 11);
    struct rdt_tensor tensor = bytes_at(addr, BYTES);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT};
    struct rdt_ref ref = put_as(owner, &tensor, 1, &options);
    fill_pattern(addr, BYTES, 12);
    expect(&ref, NULL, NULL, BYTES, 11, "stream/staged");
    expect(&ref, "fake", "THERE-1", BYTES, 11, "stream/staged");
    end(NULL);
}

Test(device_nodes, killed_owner_fails_the_sub_pulls)
{
    static const char *const declared[] = {"n0", "connection taken down", "is lost", NULL};
    struct rdt_fetch_options options = to("fake", "THERE-0");
    rdt_request *requests[1];

    begin();
    struct rdt_ref ref = put_on("HERE-0", LARGE, 13);
    fake_hold(gpu[0].control, true);
    must_ok(rdt_fetch_start(reader, &ref, 1, &options, requests, &err));
    wait_until(LONG, atomic_load(&gpu[0].control->started) > 0);
    node_kill(&c.node[0], 9);
    fake_hold(gpu[0].control, false);
    must_be(RDT_PEER_LOST, rdt_wait(reader, requests, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(requests[0]);
    wait_until(LONG, atomic_load(&gpu[1].control->allocated[0]) == 0);
    rdt_close(owner);
    memset(gpu[0].control, 0, sizeof *gpu[0].control);
    cluster_restart(&c, 0);
    owner = node_client(&c.node[0], "owner");
    fake_device_use(owner);
    cluster_meet(&c);
    ref = put_on("HERE-0", BYTES, 14);
    expect(&ref, "fake", "THERE-0", BYTES, 14, "stream/staged");
    end(declared);
}

/* A one-sided transport may read the tensors in host memory in place; the object's other tensors do not concern it. */
Test(device_nodes, host_part_of_a_mixed_object_is_read)
{
    struct rdt_put_options put = RDT_INIT(put);
    struct rdt_tensor tensors[2];

    begin_with(&(struct cluster_options){.loopback = true, .no_ucx = true});
    tensors[0] = bytes_at(fake_device_alloc(owner, "HERE-0", BYTES), BYTES);
    tensors[1] = bytes_at(alloc_memory(owner, BYTES), BYTES);
    fill_pattern(tensors[0].data, BYTES, 15);
    fill_pattern(tensors[1].data, BYTES, 16);
    struct rdt_ref ref = put_as(owner, tensors, 2, &put);
    rdt_object *object = fetch_as(reader, &ref, NULL);
    must_say(strstr(info_of(object).path, "loopback/staged") && strchr(info_of(object).path, ','), "path %s",
             info_of(object).path);
    for (unsigned i = 0; i < 2; i++)
        must(holds_pattern(tensor_of(object, i).data, BYTES, 15 + i));
    rdt_release(object);
    end(NULL);
}

/* An ordered queue may take more chunks at once than there are slots. */
Test(device_nodes, more_chunks_than_slots_in_an_ordered_queue)
{
    begin_with(&(struct cluster_options){
        .loopback = true,
        .no_ucx = true,
        .flags = (const char *const[]){"--set", "loopback.ordered=yes", "--set", "transfer.chunks_in_flight=40", NULL}});
    struct rdt_ref ref = put_on("HERE-0", LARGE, 17);
    cluster_faults(&c, 0, "delay_ms=10\n");
    expect(&ref, NULL, NULL, LARGE, 17, "loopback/staged");
    expect(&ref, "fake", "THERE-1", LARGE, 17, "loopback/staged");
    end(NULL);
}

/* The same object is fetched twice to be written: each result is private to the reader, in host memory and on a device. */
Test(device_nodes, private_twins_are_two)
{
    struct rdt_fetch_options options = to(NULL, NULL);
    struct rdt_ref refs[2];
    rdt_object *objects[2];

    begin();
    rdt *plain = node_client(&c.node[1], "plain");
    refs[0] = refs[1] = put_on("HERE-0", BYTES, 18);
    for (unsigned round = 0; round < 2; round++) {
        options = round == 0 ? to(NULL, NULL) : to("fake", "THERE-1");
        options.mode = RDT_FETCH_COW;
        must_ok(rdt_fetch(round == 0 ? plain : reader, refs, 2, &options, objects, &err));
        for (unsigned i = 0; i < 2; i++) {
            must_say(info_of(objects[i]).writable, "round %u: it is not writable", round);
            must(holds_pattern(tensor_of(objects[i], 0).data, BYTES, 18));
            memset(tensor_of(objects[i], 0).data, 0, BYTES);
        }
        for (unsigned i = 0; i < 2; i++)
            rdt_release(objects[i]);
    }
    rdt_close(plain);
    end(NULL);
}

static unsigned mappings_of_daemon_memory(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned n = 0;
    char line[512];

    must(maps);
    while (fgets(line, sizeof line, maps))
        n += strstr(line, "/memfd:") != NULL;
    (void)fclose(maps);
    return n;
}

/* After copies from a device were released, the reader's mappings of them are unmapped or reused. */
Test(device_nodes, released_copies_stay_mapped_nowhere)
{
    begin();
    struct rdt_ref ref = put_on("HERE-0", BYTES, 20);
    expect(&ref, NULL, NULL, BYTES, 20, "stream/staged");
    unsigned before = mappings_of_daemon_memory();
    for (unsigned i = 0; i < 20; i++)
        expect(&ref, NULL, NULL, BYTES, 20, "stream/staged");
    must_say(mappings_of_daemon_memory() <= before, "%u mappings, then %u", before, mappings_of_daemon_memory());
    end(NULL);
}

Test(device_nodes, slice_without_an_element)
{
    const int64_t start[1] = {5}, count[1] = {0};
    struct rdt_slice slice = {.ndim = 1, .start = start, .count = count};
    const struct rdt_slice *slices[1] = {&slice};
    size_t n[1] = {1};
    struct rdt_fetch_options options;
    rdt_object *object;

    begin();
    struct rdt_ref ref = put_on("HERE-0", BYTES, 19);
    for (unsigned round = 0; round < 2; round++) {
        options = round == 0 ? to(NULL, NULL) : to("fake", "THERE-1");
        options.slices = slices;
        options.slice_counts = n;
        must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
        must(rdt_object_count(object) == 1 && tensor_of(object, 0).shape[0] == 0);
        rdt_release(object);
    }
    end(NULL);
}

/* ---- groups ---- */

/* One group with four devices: bytes move between any two of them by the ranks on those devices, not through host memory. */
Test(device_nodes, group_of_several_devices_of_a_node)
{
    static const char *const from[] = {"HERE-0", "HERE-1"}, *const into[] = {"THERE-0", "THERE-1"};
    struct rdt_member members[] = {{.client = "owner", .device = "HERE-0"},
                                   {.client = "second", .device = "HERE-1"},
                                   {.client = "reader", .device = "there-0"},
                                   {.client = "second", .device = "THERE-1"}};
    struct rdt_fetch_options options = to("fake", "THERE-1");
    struct rdt_put_options put = RDT_INIT(put);
    struct rdt_tensor both[2];
    uint64_t copies = 0;
    struct rdt_ref ref;
    rdt *second[2];

    begin_with(&(struct cluster_options){
        .grouped = true, .no_ucx = true, .flags = (const char *const[]){"--set", "grouped.devices=yes", NULL}});
    for (unsigned i = 0; i < 2; i++)
        second[i] = node_client(&c.node[i], "second");
    members[2].node = members[3].node = c.node[1].address;
    must_ok(rdt_group_create(owner, "g", "grouped", members, 4, NULL, &err));
    for (unsigned i = 0; i < 4; i++) {
        ref = put_on(from[i / 2], LARGE, i + 1);
        expect(&ref, "fake", into[i % 2], LARGE, i + 1, "grouped");
    }
    for (unsigned i = 0; i < 2; i++)
        copies += atomic_load(&gpu[i].control->started);
    must_say(copies == 0, "%llu copies on devices", (unsigned long long)copies);
    must(atomic_load(&gpu[0].control->direct) > 0 && atomic_load(&gpu[1].control->direct) > 0);

    for (unsigned i = 0; i < 2; i++) {
        both[i] = bytes_at(fake_device_alloc(owner, from[i], BYTES), BYTES);
        fill_pattern(both[i].data, BYTES, 10 + i);
    }
    must_ok(rdt_put(owner, both, 2, &put, &ref, &err));
    options.least_path = "direct";
    rdt_object *object = fetch_as(reader, &ref, &options);
    must_go_by("grouped", object);
    for (unsigned i = 0; i < 2; i++) {
        must_lie(object, i, "fake", "THERE-1");
        must(holds_pattern(tensor_of(object, i).data, BYTES, 10 + i));
    }
    rdt_release(object);
    ref = put_pattern(owner, NULL, LARGE, 20);
    expect(&ref, "fake", "THERE-1", LARGE, 20, "grouped");
    ref = put_on("HERE-1", LARGE, 21);
    expect(&ref, NULL, NULL, LARGE, 21, "grouped");
    must_ok(rdt_group_destroy(owner, "g", &err));
    for (unsigned i = 0; i < 2; i++)
        rdt_close(second[i]);
    end(NULL);
}

/* A tensor on a device that no member has takes another path, or is refused; either is explained. */
Test(device_nodes, group_without_the_device_says_so)
{
    struct rdt_member members[] = {{.client = "owner", .device = "HERE-0"}, {.client = "reader", .device = "THERE-0"}};
    struct rdt_fetch_options options = to("fake", "THERE-0");
    rdt_object *object;

    begin_with(&(struct cluster_options){
        .grouped = true, .no_ucx = true, .flags = (const char *const[]){"--set", "grouped.devices=yes", NULL}});
    members[1].node = c.node[1].address;
    must_ok(rdt_group_create(owner, "g", "grouped", members, 2, NULL, &err));
    struct rdt_ref ref = put_on("HERE-1", BYTES, 1);
    must_refuse(RDT_NO_PATH, "no member of group g is on device HERE-1 of node",
                rdt_fetch(reader, &ref, 1, &options, &object, &err));
    ref = put_on("HERE-0", BYTES, 2);
    expect(&ref, "fake", "THERE-0", BYTES, 2, "grouped");
    options = to("fake", "THERE-1");
    must_refuse(RDT_NO_PATH, "no member of group g is on device THERE-1 here",
                rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must_ok(rdt_group_destroy(owner, "g", &err));
    end(NULL);
}

/* Both clients are members of two groups, each on other devices: the fetch takes the group whose devices fit. */
Test(device_nodes, group_of_the_right_devices_is_found)
{
    struct rdt_member members[2][2] = {{{.client = "owner", .device = "HERE-0"}, {.client = "reader", .device = "THERE-0"}},
                                       {{.client = "owner", .device = "HERE-1"}, {.client = "reader", .device = "THERE-1"}}};

    begin_with(&(struct cluster_options){
        .grouped = true, .no_ucx = true, .flags = (const char *const[]){"--set", "grouped.devices=yes", NULL}});
    for (unsigned i = 0; i < 2; i++) {
        members[i][1].node = c.node[1].address;
        must_ok(rdt_group_create(owner, i == 0 ? "first" : "second", "grouped", members[i], 2, NULL, &err));
    }
    struct rdt_ref ref = put_on("HERE-0", BYTES, 1);
    expect(&ref, "fake", "THERE-0", BYTES, 1, "grouped");
    ref = put_on("HERE-1", BYTES, 2);
    expect(&ref, "fake", "THERE-1", BYTES, 2, "grouped");
    must_ok(rdt_group_destroy(owner, "first", &err));
    must_ok(rdt_group_destroy(owner, "second", &err));
    end(NULL);
}
