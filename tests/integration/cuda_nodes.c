/* GPU memory between two daemons, on a FAKE driver and a FAKE NCCL (tests/fake_cuda, tests/fake_nccl): through pinned host memory and a
 * stream, and within a group; with its deaths on either side. It says nothing about a GPU; with RDT_TEST_GPU set (make test-gpu) the same
 * runs on the machine's own, two daemons on one machine.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>

#ifdef RDT_WITHOUT_CUDA
Test(cuda_nodes, memory)
{
    cr_skip_test("cuda.h was not there when this was built: make cuda-headers");
}
#else
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/rdt_cuda.h"
#include "tests/support/actor.h"
#include "tests/support/cluster.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/gpu.h"

TestSuite(cuda_nodes, .timeout = 200);

#define MIB ((size_t)1 << 20)
#define BYTES (3 * MIB + 520)
#define MAX_GPUS 16

enum { OWNER, READER };

static struct cluster c;
static rdt *conn[2];
static rdt_cuda *gpu[2];

static bool is_real(void)
{
    return getenv("RDT_TEST_GPU") != NULL;
}

/* slow: what each copy on the owner's fake GPUs takes at least, "FAKE_CUDA_COPY_US=..."; NULL: nothing. */
static void begin(bool nccl, const char *slow)
{
    static const char *env[2][4];
    static const char *const flags[] = {"--chunk=256KiB", "--pool-idle=200ms", "--quiesce-grace=500ms", NULL};
    static const char *const names[] = {"owner", "reader"};
    struct cluster_options options = {.stream = true, .no_ucx = !nccl, .flags = flags};
    const char *why;

    for (unsigned i = 0; i < 2; i++) {
        unsigned n = 0;
        memset(env[i], 0, sizeof env[i]);
        if (!is_real())
            env[i][n++] = nccl ? fake_nccl_env() : fake_gpu_env();
        else if (nccl) /* so that NCCL takes them for two machines */
            env[i][n++] = i ? "NCCL_HOSTID=rdt-b" : "NCCL_HOSTID=rdt-a";
        if (!is_real() && slow && i == OWNER)
            env[i][n++] = slow;
        if (!is_real() && nccl) /* gcc 12's leak checker stumbles over the threads of the fake NCCL when the fake NVML stays loaded, too */
            env[i][n++] = "FAKE_NVML_INIT=999";
        options.env_of[i] = env[i];
    }
    if (!is_real())
        (void)fake_gpu_load();
    must_say(gpu_there(&why), "%s", why);
    cluster_start(&c, 2, &options);
    for (unsigned i = 0; i < 2; i++) {
        conn[i] = node_client(&c.node[i], names[i]);
        must_ok(rdt_cuda_open(conn[i], &gpu[i], &err));
    }
    gpu_use(0);
}

static struct rdt_device_info device_of(unsigned side, const char *uuid)
{
    struct rdt_device_info devices[MAX_GPUS];
    size_t n = 0;

    must_ok(rdt_devices(conn[side], devices, MAX_GPUS, &n, &err));
    for (size_t i = 0; i < n && i < MAX_GPUS; i++)
        if (strcmp(devices[i].uuid, uuid) == 0)
            return devices[i];
    fail("node %u does not know %s", side, uuid);
}

static uint64_t used_bytes(unsigned side)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < gpu_count(); i++)
        bytes += device_of(side, gpu_uuid(i)).used_bytes;
    return bytes;
}

static void end(const char *const *declared)
{
    for (unsigned i = 0; i < 2; i++) {
        wait_until(LONG, used_bytes(i) == 0);
        rdt_cuda_close(gpu[i]);
        rdt_close(conn[i]);
    }
    cluster_end(&c, declared);
}

static struct rdt_tensor tensor(void *addr, size_t bytes)
{
    static int64_t shapes[64][1];
    static unsigned next;
    int64_t *shape = shapes[next++ % 64];

    shape[0] = (int64_t)bytes;
    return (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = addr};
}

/* A second GPU, if there is one. */
static const char *other_gpu(void)
{
    return gpu_uuid(gpu_count() > 1 ? 1 : 0);
}

/* Memory of the owner's on the first GPU, put. */
static struct rdt_ref put_on_gpu(size_t bytes, uint32_t seed, void **addr_p)
{
    struct rdt_tensor one;
    struct rdt_ref ref;

    must_ok(rdt_cuda_alloc(gpu[OWNER], gpu_uuid(0), bytes, addr_p, &err));
    gpu_fill(*addr_p, bytes, seed);
    one = tensor(*addr_p, bytes);
    must_ok(rdt_cuda_put(gpu[OWNER], &one, 1, NULL, &ref, &err));
    return ref;
}

static void drop(struct rdt_ref *ref, void *addr)
{
    must_ok(rdt_free(conn[OWNER], ref, false, &err));
    if (addr)
        must_ok(rdt_dealloc(conn[OWNER], addr, &err));
}

static struct rdt_fetch_options to(const char *memory, const char *uuid)
{
    struct rdt_fetch_options options = RDT_INIT(options);

    options.timeout_ns = LONG;
    options.memory = memory;
    options.device = uuid;
    return options;
}

static bool holds(const rdt_object *object, size_t i, size_t bytes, uint32_t seed)
{
    const char *in;
    void *data = tensor_of(object, i).data;

    must_ok(rdt_object_place(object, i, &in, NULL, &err));
    return strcmp(in, "cuda") == 0 ? gpu_holds(data, bytes, seed) : holds_pattern(data, bytes, seed);
}

/* A fetch by the reader brings the pattern there by that path. */
static void expect(const struct rdt_ref *ref, const struct rdt_fetch_options *options, size_t bytes, uint32_t seed, const char *path)
{
    const char *in, *on;
    rdt_object *object;

    must_ok(rdt_fetch(conn[READER], ref, 1, options, &object, &err));
    must_go_by(path, object);
    must_ok(rdt_object_place(object, 0, &in, &on, &err));
    must_say(strcmp(in, options->memory ? options->memory : "host") == 0, "it lies in %s memory", in);
    must(!options->device || strcmp(on, options->device) == 0);
    must(holds(object, 0, bytes, seed));
    rdt_release(object);
}

/* ---- by way of host memory ---- */

Test(cuda_nodes, staged_from_and_to_gpus_and_host_memory)
{
    struct rdt_fetch_options options;
    struct rdt_ref ref, host;
    void *addr;

    begin(false, NULL);
    must(!device_of(OWNER, gpu_uuid(0)).opened && !device_of(READER, gpu_uuid(0)).opened);
    ref = put_on_gpu(BYTES, 1, &addr);
    must(!device_of(READER, gpu_uuid(0)).opened);
    options = to("cuda", other_gpu());
    expect(&ref, &options, BYTES, 1, "stream/staged");
    options = to("cuda", gpu_uuid(0));
    expect(&ref, &options, BYTES, 1, "stream/staged");
    options = to(NULL, NULL);
    expect(&ref, &options, BYTES, 1, "stream/staged");
    host = put_pattern(conn[OWNER], NULL, BYTES, 2);
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
    uint8_t *in_host, *host_target;
    rdt_object *object;
    struct rdt_ref ref;

    begin(false, NULL);
    must_ok(rdt_cuda_alloc(gpu[OWNER], gpu_uuid(0), BYTES, &on[0], &err));
    must_ok(rdt_cuda_alloc(gpu[OWNER], other_gpu(), BYTES, &on[1], &err));
    in_host = alloc_memory(conn[OWNER], BYTES);
    gpu_fill(on[0], BYTES, 1);
    fill_pattern(in_host, BYTES, 2);
    gpu_fill(on[1], BYTES, 3);
    tensors[0] = tensor(on[0], BYTES);
    tensors[1] = tensor(in_host, BYTES);
    tensors[2] = tensor(on[1], BYTES);
    must_ok(rdt_cuda_put(gpu[OWNER], tensors, 3, NULL, &ref, &err));
    for (unsigned round = 0; round < 2; round++) {
        options = round ? to("cuda", other_gpu()) : to(NULL, NULL);
        options.host_stays = true;
        must_ok(rdt_fetch(conn[READER], &ref, 1, &options, &object, &err));
        for (unsigned i = 0; i < 3; i++)
            must_say(holds(object, i, BYTES, i + 1), "tensor %u of round %u", i, round);
        rdt_release(object);
    }
    into = gpu_alloc(2 * BYTES);
    must_ok(rdt_cuda_offer(gpu[READER], into, 2 * BYTES, &base, NULL, &err));
    host_target = alloc_memory(conn[READER], BYTES);
    targets[0] = tensor(into, BYTES);
    targets[1] = tensor((uint8_t *)into + BYTES, BYTES);
    targets[2] = tensor(host_target, BYTES);
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
    gpu_free(into);
}

/* The reader is on another node: it asks while the producer's stream stands still. */
Test(cuda_nodes, reader_waits_for_the_producers_stream)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_fetch_options how;
    struct rdt_tensor one;
    struct gpu_gate *gate;
    rdt_request *request;
    rdt_object *object;
    struct rdt_ref ref;
    void *data, *source, *stream;

    begin(false, NULL);
    stream = gpu_stream_create();
    must_ok(rdt_cuda_alloc(gpu[OWNER], gpu_uuid(0), BYTES, &data, &err));
    source = gpu_alloc(BYTES);
    gpu_fill(data, BYTES, 1);
    gpu_fill(source, BYTES, 2);
    gate = gpu_hold(stream);
    gpu_copy_in_stream(data, source, BYTES, stream);
    one = tensor(data, BYTES);
    options.has_stream = true;
    options.stream = stream;
    must_ok(rdt_cuda_put(gpu[OWNER], &one, 1, &options, &ref, &err));
    how = to("cuda", other_gpu());
    must_ok(rdt_fetch_start(conn[READER], &ref, 1, &how, &request, &err));
    must_be(RDT_TIMED_OUT, rdt_wait(conn[READER], &request, 1, 1, 100 * MSEC, NULL, NULL, &err));
    gpu_open(gate);
    must_ok(rdt_wait(conn[READER], &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
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
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)node->pid);
    file = fopen(path, "re");
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
    struct rdt_fetch_options options;
    uint64_t most[2] = {0, 0}, resident[2] = {0, 0};
    struct rdt_tensor one;
    struct rdt_ref ref;
    void *addr, *own;

    begin(false, NULL);
    own = gpu_alloc(bytes);
    gpu_fill(own, bytes, 7);
    options = to("cuda", other_gpu());
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (i % 2) {
            addr = NULL;
            one = tensor(own, bytes);
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
        if (strcmp(getenv("RDT_VARIANT") ? getenv("RDT_VARIANT") : "release", "release") == 0) /* sanitizers keep what is freed */
            must_say(now < resident[side] + 8 * MIB, "node %u grew from %llu to %llu bytes", side, (unsigned long long)resident[side],
                     (unsigned long long)now);
    }
    end(NULL);
    gpu_free(own);
}

/* ---- deaths ---- */

struct message {
    char socket[200];
    struct rdt_ref ref; /* to the actor that reads, or from the one that puts */
};

static void actor_connect(const struct message *message, rdt **conn_p, rdt_cuda **gpu_p)
{
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = message->socket};
    const char *why;

    if (!is_real())
        (void)fake_gpu_load();
    must(gpu_there(&why));
    must_ok(rdt_connect(&options, conn_p, &err));
    must_ok(rdt_cuda_open(*conn_p, gpu_p, &err));
    gpu_use(0);
}

/* Puts memory of its own on a GPU, which the daemon opens by its handle, and some of the daemon's. */
static int exporter(struct actor *self, void *arg)
{
    struct message message;
    struct rdt_tensor both[2];
    rdt_cuda *mine;
    void *addr[2];
    rdt *own;

    (void)arg;
    actor_recv(self, &message, sizeof message);
    actor_connect(&message, &own, &mine);
    addr[0] = gpu_alloc(BYTES);
    must_ok(rdt_cuda_alloc(mine, gpu_uuid(0), BYTES, &addr[1], &err));
    for (unsigned i = 0; i < 2; i++) {
        gpu_fill(addr[i], BYTES, 30 + i);
        both[i] = tensor(addr[i], BYTES);
    }
    must_ok(rdt_cuda_put(mine, both, 2, NULL, &message.ref, &err));
    actor_send(self, &message, sizeof message);
    actor_await(self);
    return 1;
}

/* Fetches to a GPU, and holds it. */
static int holder(struct actor *self, void *arg)
{
    struct rdt_fetch_options options;
    struct message message;
    rdt_object *object;
    rdt_cuda *mine;
    rdt *own;

    (void)arg;
    actor_recv(self, &message, sizeof message);
    actor_connect(&message, &own, &mine);
    options = to("cuda", gpu_uuid(0));
    must_ok(rdt_fetch(own, &message.ref, 1, &options, &object, &err));
    must(gpu_holds(tensor_of(object, 0).data, BYTES, 4));
    actor_step(self);
    actor_await(self);
    return 1;
}

Test(cuda_nodes, killed_reader_with_mapped_memory_gives_it_back)
{
    struct message message = {.socket = ""};
    struct rdt_fetch_options options;
    struct actor actor;
    void *addr;

    actor_start(&actor, holder, NULL);
    begin(false, NULL);
    message.ref = put_on_gpu(BYTES, 4, &addr);
    (void)snprintf(message.socket, sizeof message.socket, "%s", c.node[READER].socket);
    actor_send(&actor, &message, sizeof message);
    actor_await(&actor);
    must(used_bytes(READER) >= BYTES);
    actor_kill(&actor, SIGKILL);
    wait_until(LONG, used_bytes(READER) == 0);
    options = to("cuda", gpu_uuid(0));
    expect(&message.ref, &options, BYTES, 4, "stream/staged"); /* and nobody else notices */
    drop(&message.ref, addr);
    end(NULL);
}

/* Before, in the middle of, and after the copies: bytes that are right, or its death. */
Test(cuda_nodes, exporters_death_fails_its_readers_and_closes_what_was_opened)
{
    struct rdt_fetch_options options;
    struct rdt_ref mine;
    struct actor actor[3];
    void *addr;

    for (unsigned i = 0; i < 3; i++)
        actor_start(&actor[i], exporter, NULL);
    begin(false, "FAKE_CUDA_COPY_US=5000");
    mine = put_on_gpu(BYTES, 5, &addr);
    for (unsigned i = 0; i < 3; i++) {
        struct message message = {.socket = ""};
        struct rdt_error why = {0};
        enum rdt_status status;
        rdt_request *request;
        rdt_object *object;

        (void)snprintf(message.socket, sizeof message.socket, "%s", c.node[OWNER].socket);
        actor_send(&actor[i], &message, sizeof message);
        actor_recv(&actor[i], &message, sizeof message);
        must(used_bytes(OWNER) >= 2 * BYTES);
        options = to("cuda", other_gpu());
        if (i == 0)
            actor_kill(&actor[i], SIGKILL);
        must_ok(rdt_fetch_start(conn[READER], &message.ref, 1, &options, &request, &err));
        if (i == 1)
            await_transfer(&c.node[READER], "in", "moving");
        if (i == 2)
            must_ok(rdt_wait(conn[READER], &request, 1, 1, LONG, NULL, NULL, &err));
        if (i > 0)
            actor_kill(&actor[i], SIGKILL);
        status = rdt_wait(conn[READER], &request, 1, 1, LONG, NULL, NULL, &why);
        if (status == RDT_OK) {
            must_ok(rdt_request_take_object(request, &object, &err));
            must(holds(object, 0, BYTES, 30) && holds(object, 1, BYTES, 31));
            rdt_release(object);
        } else {
            must_say(i < 2 && (status == RDT_OWNER_DIED || status == RDT_NOT_FOUND), "round %u: %s: %s", i, rdt_status_name(status),
                     why.msg);
        }
        rdt_request_destroy(request);
        wait_until(LONG, used_bytes(OWNER) < 2 * BYTES && used_bytes(READER) == 0);
    }
    options = to("cuda", other_gpu());
    expect(&mine, &options, BYTES, 5, "stream/staged");
    drop(&mine, addr);
    end(NULL); /* every handle is closed: it would be a descriptor of the daemon's */
}

/* ---- within a group ---- */

static bool is_there(void)
{
    if (!is_real() || dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL))
        return true;
    cr_skip_test("this machine has no NCCL");
    return false;
}

static void form(void)
{
    struct rdt_member members[] = {{.client = "owner", .device = gpu_uuid(0)}, {.client = "reader", .device = other_gpu()}};

    members[1].node = c.node[READER].address;
    must_ok(rdt_group_create(conn[OWNER], "g", "nccl", members, 2, NULL, &err));
}

Test(cuda_nodes, group_moves_from_gpu_to_gpu_and_nowhere_else)
{
    struct rdt_fetch_options options;
    struct rdt_ref ref, host;
    void *addr;

    if (!is_there())
        return;
    begin(true, NULL);
    form();
    ref = put_on_gpu(BYTES, 6, &addr);
    options = to("cuda", other_gpu());
    options.group = "g";
    options.least_path = "direct";
    for (unsigned i = 0; i < 5; i++)
        expect(&ref, &options, BYTES, 6, "nccl");
    host = put_pattern(conn[OWNER], NULL, BYTES, 7);
    options = to("cuda", other_gpu());
    expect(&host, &options, BYTES, 7, "ucx/staged"); /* what is in host memory goes its own way */
    drop(&host, NULL);
    drop(&ref, addr);
    must_ok(rdt_group_destroy(conn[OWNER], "g", &err));
    end(NULL);
}

Test(cuda_nodes, group_survives_the_death_of_who_put_and_of_who_reads)
{
    static const char *const declared[] = {"taken down and rebuilt: ", "is down: ", "taken down", NULL};
    struct message message = {.socket = ""};
    struct rdt_fetch_options options;
    struct actor reading;
    struct rdt_ref ref;
    void *addr;

    if (!is_there())
        return;
    actor_start(&reading, holder, NULL);
    begin(true, NULL);
    form();
    ref = put_on_gpu(BYTES, 4, &addr);
    message.ref = ref;
    (void)snprintf(message.socket, sizeof message.socket, "%s", c.node[READER].socket);
    actor_send(&reading, &message, sizeof message);
    actor_await(&reading);
    actor_kill(&reading, SIGKILL);
    wait_until(LONG, used_bytes(READER) == 0);
    options = to("cuda", other_gpu());
    options.group = "g";
    expect(&ref, &options, BYTES, 4, "nccl");
    drop(&ref, addr);
    must_ok(rdt_group_destroy(conn[OWNER], "g", &err));
    end(declared);
}
#endif
