/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory between two daemons, on a FAKE driver and a FAKE NCCL (tests/fake_cuda, tests/fake_nccl): staged through pinned
 * host memory, and within a group; with processes that die on either side. The tests show nothing about a GPU. With
 * RDT_TEST_GPU set (make test-gpu) they run on the machine's own GPUs, with two daemons on one machine.
 *
 * The leak checker of gcc 12 crashes on thread-local memory that loaded libraries (the driver, NVML, NCCL) have in threads
 * that are alive at the end: lsan: use_tls=0
 */

#ifdef RDT_WITHOUT_CUDA
#include <criterion/criterion.h>

Test(cuda_nodes, memory)
{
    cr_skip_test("cuda.h was not there when this was built: make cuda-headers");
}
#else
#include <signal.h>
#include <stdlib.h>

#include "tests/gpu/nodes_fixture.h"

TestSuite(cuda_nodes, .timeout = 200);

/* ---- staged through host memory ---- */

Test(cuda_nodes, staged_from_and_to_gpus_and_host_memory)
{
    void *addr;

    begin(false, NULL);
    must(!device_of(OWNER, gpu_uuid(0)).opened && !device_of(READER, gpu_uuid(0)).opened);
    struct rdt_ref ref = put_on_gpu(BYTES, 1, &addr);
    must(!device_of(READER, gpu_uuid(0)).opened);
    struct rdt_fetch_options options = to("cuda", other_gpu());
    expect(&ref, &options, BYTES, 1, "stream/staged");
    options = to("cuda", gpu_uuid(0));
    expect(&ref, &options, BYTES, 1, "stream/staged");
    options = to(NULL, NULL);
    expect(&ref, &options, BYTES, 1, "stream/staged");
    struct rdt_ref host = put_pattern(conn[OWNER], NULL, BYTES, 2);
    options = to("cuda", other_gpu());
    expect(&host, &options, BYTES, 2, "stream/staged");
    drop(&host, NULL);
    drop(&ref, addr);
    end(NULL);
}

Test(cuda_nodes, mixed_object_and_targets)
{
    struct rdt_fetch_options options = to(NULL, NULL);
    struct rdt_tensor tensors[3], targets[3];
    const struct rdt_tensor *lists[1] = {targets};
    size_t counts[1] = {3};
    void *on[2], *into, *base;
    rdt_object *object;
    struct rdt_ref ref;

    begin(false, NULL);
    must_ok(rdt_cuda_alloc(gpu[OWNER], gpu_uuid(0), BYTES, &on[0], &err));
    must_ok(rdt_cuda_alloc(gpu[OWNER], other_gpu(), BYTES, &on[1], &err));
    uint8_t *in_host = alloc_memory(conn[OWNER], BYTES);
    gpu_fill(on[0], BYTES, 1);
    fill_pattern(in_host, BYTES, 2);
    gpu_fill(on[1], BYTES, 3);
    tensors[0] = bytes_at(on[0], BYTES);
    tensors[1] = bytes_at(in_host, BYTES);
    tensors[2] = bytes_at(on[1], BYTES);
    must_ok(rdt_cuda_put(gpu[OWNER], tensors, 3, NULL, &ref, &err));
    for (unsigned round = 0; round < 2; round++) {
        options = round ? to("cuda", other_gpu()) : to(NULL, NULL);
        options.host_stays = true;
        must_ok(rdt_fetch(conn[READER], &ref, 1, &options, &object, &err));
        for (unsigned i = 0; i < 3; i++)
            must_say(holds(object, i, BYTES, i + 1), "tensor %u of round %u", i, round);
        rdt_release(object);
    }
    into = gpu_alloc_chunks(8 * MIB, 1, true);
    must_ok(rdt_cuda_offer(gpu[READER], into, 2 * BYTES, &base, NULL, &err));
    uint8_t *host_target = alloc_memory(conn[READER], BYTES);
    targets[0] = bytes_at(into, BYTES);
    targets[1] = bytes_at((uint8_t *)into + BYTES, BYTES);
    targets[2] = bytes_at(host_target, BYTES);
    options = to(NULL, NULL);
    options.targets = lists;
    options.target_counts = counts;
    must_ok(rdt_fetch(conn[READER], &ref, 1, &options, &object, &err));
    must(gpu_holds(into, BYTES, 1) && gpu_holds((uint8_t *)into + BYTES, BYTES, 2) && holds_pattern(host_target, BYTES, 3));
    rdt_release(object);
    must_ok(rdt_dealloc(conn[READER], base, &err));
    must_ok(rdt_free(conn[OWNER], &ref, false, &err));
    for (unsigned i = 0; i < 2; i++)
        must_ok(rdt_dealloc(conn[OWNER], on[i], &err));
    wait_until(LONG, used_bytes(READER) == 0);
    end(NULL);
    gpu_free_chunks(into, 8 * MIB, 1);
}

/* The reader is on another node and fetches while the producer's stream stands still. */
Test(cuda_nodes, reader_waits_for_the_producers_stream)
{
    struct rdt_ref ref;
    void *data, *source, *stream;

    begin(false, NULL);
    stream = gpu_stream_create();
    must_ok(rdt_cuda_alloc(gpu[OWNER], gpu_uuid(0), BYTES, &data, &err));
    source = gpu_alloc(BYTES);
    gpu_fill(data, BYTES, 1);
    gpu_fill(source, BYTES, 2);
    struct gpu_gate *gate = gpu_hold(stream);
    gpu_copy_in_stream(data, source, BYTES, stream);
    struct rdt_tensor one = bytes_at(data, BYTES);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .has_stream = true, .stream = stream};
    must_ok(rdt_cuda_put(gpu[OWNER], &one, 1, &options, &ref, &err));
    struct rdt_fetch_options how = to("cuda", other_gpu());
    rdt_request *request = start_as(conn[READER], &ref, &how);
    must_be(RDT_TIMED_OUT, rdt_wait(conn[READER], &request, 1, 1, 100 * MSEC, NULL, NULL, &err));
    gpu_open(gate);
    rdt_object *object = await_object(conn[READER], request);
    must(holds(object, 0, BYTES, 2));
    rdt_release(object);
    rdt_request_destroy(request);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    gpu_free(source);
    drop(&ref, data);
    end(NULL);
}

static uint64_t resident_bytes(const struct test_node *node)
{
    char path[64], line[128];
    unsigned long kib = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)node->pid);
    FILE *file = fopen(path, "re");
    must(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %lu kB", &kib) == 1)
            break;
    (void)fclose(file);
    return (uint64_t)kib << 10;
}

Test(cuda_nodes, thousand_puts_of_which_some_are_fetched_leave_nothing)
{
    enum { ROUNDS = 1000, SETTLED = 300 };
    const size_t bytes = 256 * 1024;
    uint64_t most[2] = {0, 0}, resident[2] = {0, 0};
    struct rdt_tensor one;
    struct rdt_ref ref;
    void *addr, *own;

    begin(false, NULL);
    own = gpu_alloc(bytes);
    gpu_fill(own, bytes, 7);
    struct rdt_fetch_options options = to("cuda", other_gpu());
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (i % 2) {
            addr = NULL;
            one = bytes_at(own, bytes);
            must_ok(rdt_cuda_put(gpu[OWNER], &one, 1, NULL, &ref, &err));
        } else {
            ref = put_on_gpu(bytes, 7, &addr);
        }
        if (i % 20 < 2)
            expect(&ref, &options, bytes, 7, "stream/staged");
        drop(&ref, addr);
        for (unsigned side = 0; side < 2 && i % 50 == 0; side++) {
            uint64_t used = used_bytes(side);
            most[side] = used > most[side] ? used : most[side];
            resident[side] = i < SETTLED ? resident_bytes(&c.node[side]) : resident[side];
        }
    }
    for (unsigned side = 0; side < 2; side++) {
        uint64_t now = resident_bytes(&c.node[side]);
        must_say(most[side] <= 32 * MIB, "node %u: %llu bytes on its GPUs at once", side, (unsigned long long)most[side]);
        /* Sanitizers do not give freed memory back. */
        if (strcmp(getenv("RDT_VARIANT") ? getenv("RDT_VARIANT") : "release", "release") == 0)
            must_say(now < resident[side] + 8 * MIB, "node %u grew from %llu to %llu bytes", side,
                     (unsigned long long)resident[side], (unsigned long long)now);
    }
    end(NULL);
    gpu_free(own);
}

/* ---- processes that die ---- */

struct message {
    char socket[200];
    struct rdt_ref ref; /* sent to an actor that reads, or received from one that puts */
};

static void actor_connect(const struct message *message, rdt **conn_p, rdt_cuda **gpu_p)
{
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = message->socket};
    const char *why;

    if (!gpu_is_real())
        (void)fake_gpu_load();
    must(gpu_there(&why));
    must_ok(rdt_connect(&options, conn_p, &err));
    must_ok(rdt_cuda_open(*conn_p, gpu_p, &err));
    gpu_use(0);
}

/* Puts its own GPU memory, which the daemon opens by its handle, and GPU memory of the daemon. */
static int exporter(struct actor *self, void *arg)
{
    struct message message;
    struct rdt_tensor both[2];
    rdt_cuda *mine;
    void *addr[2];
    rdt *own;

    actor_recv(self, &message, sizeof message);
    actor_connect(&message, &own, &mine);
    addr[0] = gpu_alloc_whole(BYTES);
    must_ok(rdt_cuda_alloc(mine, gpu_uuid(0), BYTES, &addr[1], &err));
    for (unsigned i = 0; i < 2; i++) {
        gpu_fill(addr[i], BYTES, 30 + i);
        both[i] = bytes_at(addr[i], BYTES);
    }
    must_ok(rdt_cuda_put(mine, both, 2, NULL, &message.ref, &err));
    actor_send(self, &message, sizeof message);
    actor_await(self);
    return 1;
}

/* Fetches to a GPU, and holds the result. */
static int holder(struct actor *self, void *arg)
{
    struct message message;
    rdt_cuda *mine;
    rdt *own;

    actor_recv(self, &message, sizeof message);
    actor_connect(&message, &own, &mine);
    struct rdt_fetch_options options = to("cuda", gpu_uuid(0));
    rdt_object *object = fetch_as(own, &message.ref, &options);
    must(gpu_holds(tensor_of(object, 0).data, BYTES, 4));
    actor_step(self);
    actor_await(self);
    return 1;
}

Test(cuda_nodes, killed_reader_with_mapped_memory_gives_it_back)
{
    struct actor actor;
    void *addr;

    actor_start(&actor, holder, NULL);
    begin(false, NULL);
    struct message message = {.socket = "", .ref = put_on_gpu(BYTES, 4, &addr)};
    (void)snprintf(message.socket, sizeof message.socket, "%s", c.node[READER].socket);
    actor_send(&actor, &message, sizeof message);
    actor_await(&actor);
    must(used_bytes(READER) >= BYTES);
    actor_kill(&actor, SIGKILL);
    wait_until(LONG, used_bytes(READER) == 0);
    struct rdt_fetch_options options = to("cuda", gpu_uuid(0));
    expect(&message.ref, &options, BYTES, 4, "stream/staged"); /* other readers do not notice */
    drop(&message.ref, addr);
    end(NULL);
}

static bool is_moving(void)
{
    struct transfer_view view;

    return transfer_under_way(&c.node[READER], "in", &view) && strcmp(view.state, "moving") == 0;
}

/* The exporter dies before, during or after the copies. Its readers get the right bytes or OWNER_DIED. */
Test(cuda_nodes, exporters_death_fails_its_readers_and_closes_what_was_opened)
{
    struct rdt_fetch_options options;
    struct actor actor[3];
    void *addr;

    for (unsigned i = 0; i < 3; i++)
        actor_start(&actor[i], exporter, NULL);
    begin(false, "FAKE_CUDA_COPY_US=5000");
    struct rdt_ref mine = put_on_gpu(BYTES, 5, &addr);
    for (unsigned i = 0; i < 3; i++) {
        struct message message = {.socket = ""};
        struct rdt_error why = {0};
        rdt_object *object;

        (void)snprintf(message.socket, sizeof message.socket, "%s", c.node[OWNER].socket);
        actor_send(&actor[i], &message, sizeof message);
        actor_recv(&actor[i], &message, sizeof message);
        must(used_bytes(OWNER) >= 2 * BYTES);
        options = to("cuda", other_gpu());
        if (i == 0)
            actor_kill(&actor[i], SIGKILL);
        rdt_request *request = start_as(conn[READER], &message.ref, &options);
        for (unsigned round = 0;
             i == 1 && !is_moving() && rdt_wait(conn[READER], &request, 1, 1, 0, NULL, NULL, NULL) == RDT_TIMED_OUT;)
            wait_pause(&round); /* the transfer may have ended before the first look */
        if (i == 2)
            must_ok(rdt_wait(conn[READER], &request, 1, 1, LONG, NULL, NULL, &err));
        if (i > 0)
            actor_kill(&actor[i], SIGKILL);
        enum rdt_status status = rdt_wait(conn[READER], &request, 1, 1, LONG, NULL, NULL, &why);
        if (status == RDT_OK) {
            must_ok(rdt_request_take_object(request, &object, &err));
            must(holds(object, 0, BYTES, 30) && holds(object, 1, BYTES, 31));
            rdt_release(object);
        } else {
            must_say(i < 2 && (status == RDT_OWNER_DIED || status == RDT_NOT_FOUND), "round %u: %s: %s", i,
                     rdt_status_name(status), why.msg);
        }
        rdt_request_destroy(request);
        wait_until(LONG, used_bytes(OWNER) < 2 * BYTES && used_bytes(READER) == 0);
    }
    options = to("cuda", other_gpu());
    expect(&mine, &options, BYTES, 5, "stream/staged");
    drop(&mine, addr);
    end(NULL); /* every handle is closed: an open one would be a leaked descriptor of the daemon */
}

/* ---- within a group ---- */

Test(cuda_nodes, group_moves_from_gpu_to_gpu_and_nowhere_else)
{
    uint8_t few[64] = {0};
    struct rdt_tensor small = VECTOR(RDT_U8, sizeof few, few);
    struct rdt_ref ref, host;
    void *addr;

    if (!nccl_or_skip())
        return;
    begin(true, NULL);
    if (!form_or_skip(other_gpu()))
        return;
    struct rdt_put_options by_nccl = {.struct_size = sizeof by_nccl, .transport = "nccl"};
    must_refuse(RDT_UNSUPPORTED, "transport nccl does not move host memory",
                rdt_put(conn[OWNER], &small, 1, &by_nccl, &ref, &err));
    ref = put_on_gpu(BYTES, 6, &addr);
    struct rdt_fetch_options options = to("cuda", other_gpu());
    options.group = "g";
    options.least_path = "direct";
    for (unsigned i = 0; i < 5; i++)
        expect(&ref, &options, BYTES, 6, "nccl");
    host = put_pattern(conn[OWNER], NULL, BYTES, 7);
    options = to("cuda", other_gpu());
    expect(&host, &options, BYTES, 7, "stream/staged"); /* a tensor in host memory takes another path */
    drop(&host, NULL);
    drop(&ref, addr);
    must_ok(rdt_group_destroy(conn[OWNER], "g", &err));
    end(NULL);
}

Test(cuda_nodes, group_survives_the_deaths_of_producer_and_reader)
{
    static const char *const declared[] = {"taken down and rebuilt: ", "is down: ", "taken down", NULL};
    struct actor reading;
    void *addr;

    if (!nccl_or_skip())
        return;
    actor_start(&reading, holder, NULL);
    begin(true, NULL);
    if (!form_or_skip(other_gpu()))
        return;
    struct rdt_ref ref = put_on_gpu(BYTES, 4, &addr);
    struct message message = {.socket = "", .ref = ref};
    (void)snprintf(message.socket, sizeof message.socket, "%s", c.node[READER].socket);
    actor_send(&reading, &message, sizeof message);
    actor_await(&reading);
    actor_kill(&reading, SIGKILL);
    wait_until(LONG, used_bytes(READER) == 0);
    struct rdt_fetch_options options = to("cuda", other_gpu());
    options.group = "g";
    expect(&ref, &options, BYTES, 4, "nccl");
    drop(&ref, addr);
    must_ok(rdt_group_destroy(conn[OWNER], "g", &err));
    end(declared);
}
#endif
