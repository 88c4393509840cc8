/* GPU memory, end to end through the plug-in "cuda" and librdt-cuda, on a FAKE driver (tests/fake_cuda): that says how fds, handles,
 * lifetimes and order are dealt with, and nothing about a GPU. With RDT_TEST_GPU set the same runs on the machine's own (make test-gpu).
 *
 * The leak checker of gcc 12 dies of thread-local memory that loaded libraries (the driver, NVML, NCCL) have in threads alive at the end:
 * lsan: use_tls=0
 */
#include <criterion/criterion.h>

#ifdef RDT_WITHOUT_CUDA
Test(cuda, memory)
{
    cr_skip_test("cuda.h was not there when this was built: make cuda-headers");
}
#else
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/rdt_cuda.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/gpu.h"
#include "tests/support/program.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

TestSuite(cuda, .timeout = 200);

#define MIB ((size_t)1 << 20)
#define BYTES (3 * MIB + 520)

static struct test_node node;
static rdt *a, *b;
static rdt_cuda *gpu_a, *gpu_b;

static void begin_node(void)
{
    static const char *env[2];
    const char *why;

    if (!gpu_is_real()) {
        env[0] = fake_gpu_env();
        (void)fake_gpu_load();
    }
    must_say(gpu_there(&why), "%s", why);
    node_start(&node, &(struct node_options){.env = env, .flags = (const char *const[]){"--pool-idle=200ms", NULL}});
}

static void begin(void)
{
    begin_node();
    node_connect(&node, &a);
    node_connect(&node, &b);
    must_ok(rdt_cuda_open(a, &gpu_a, &err));
    must_ok(rdt_cuda_open(b, &gpu_b, &err));
    gpu_use(0);
}

static struct rdt_device_info device(unsigned gpu)
{
    struct rdt_device_info devices[16];
    size_t n = 0;

    must_ok(rdt_devices(a, devices, 16, &n, &err));
    for (size_t i = 0; i < n && i < 16; i++)
        if (strcmp(devices[i].uuid, gpu_uuid(gpu)) == 0)
            return devices[i];
    fail("the daemon does not know %s", gpu_uuid(gpu));
}

static void end(void)
{
    wait_until(20 * SEC, device(0).used_bytes == 0);
    rdt_cuda_close(gpu_a);
    rdt_cuda_close(gpu_b);
    rdt_close(a);
    rdt_close(b);
    node_expect_idle(&node);
    node_check_log(&node, NULL);
    node_stop(&node);
}

static struct rdt_tensor tensor(void *addr, size_t bytes)
{
    static int64_t shapes[32][1];
    static unsigned next;
    int64_t *shape = shapes[next++ % 32];

    shape[0] = (int64_t)bytes;
    return (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = addr};
}

static struct rdt_ref put_at(void *addr, size_t bytes, enum rdt_cuda_how expected)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_tensor one = tensor(addr, bytes);
    enum rdt_cuda_how how;
    struct rdt_ref ref;

    options.how = &how;
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    must_say(how == expected, "taken as %d, not %d", (int)how, (int)expected);
    return ref;
}

static enum rdt_status fetch_to(rdt *conn, const struct rdt_ref *ref, const char *memory, const char *uuid, rdt_object **object_p,
                                struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);

    options.timeout_ns = LONG;
    options.memory = memory;
    options.device = uuid;
    return rdt_fetch(conn, ref, 1, &options, object_p, err);
}

/* A fetch brings the pattern there by that path. */
static void expect(rdt *conn, const struct rdt_ref *ref, const char *memory, const char *uuid, uint32_t seed, const char *path)
{
    const char *in, *on;
    rdt_object *object;
    void *data;

    must_ok(fetch_to(conn, ref, memory, uuid, &object, &err));
    must_go_by(path, object);
    must_ok(rdt_object_place(object, 0, &in, &on, &err));
    must(!memory || strcmp(in, memory) == 0);
    must(!uuid || strcmp(on, uuid) == 0);
    data = tensor_of(object, 0).data;
    must(strcmp(in, "cuda") == 0 ? gpu_holds(data, BYTES, seed) : holds_pattern(data, BYTES, seed));
    rdt_release(object);
}

static void let_go(struct rdt_ref *ref)
{
    must_ok(rdt_free(a, ref, false, &err));
}

Test(cuda, daemons_memory_is_shared_and_copied_to_all_places)
{
    struct rdt_ref ref;
    void *addr;

    begin();
    must(!device(0).opened);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    must(device(0).opened && device(0).used_bytes >= BYTES);
    gpu_fill(addr, BYTES, 5);
    ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    expect(b, &ref, NULL, NULL, 5, "local/share");
    expect(a, &ref, NULL, NULL, 5, "local/same");
    expect(b, &ref, "host", NULL, 5, "local/copy");
    if (gpu_count() > 1)
        expect(b, &ref, "cuda", gpu_uuid(1), 5, "local/copy");
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    end();
}

Test(cuda, host_memory_goes_to_a_gpu_and_back)
{
    uint8_t *host = malloc(BYTES), *other = malloc(BYTES);
    struct rdt_ref ref, back, second;
    rdt_object *object;

    begin();
    must(host && other);
    fill_pattern(host, BYTES, 8);
    ref = put_at(host, BYTES, RDT_CUDA_HOST);
    must_ok(fetch_to(a, &ref, "cuda", gpu_uuid(0), &object, &err));
    must(gpu_holds(tensor_of(object, 0).data, BYTES, 8));
    back = put_at(tensor_of(object, 0).data, BYTES, RDT_CUDA_CHUNKS); /* what a fetch brought is exported once more */
    rdt_release(object);
    fill_pattern(other, BYTES, 9);
    second = put_at(other, BYTES, RDT_CUDA_HOST);
    expect(a, &second, "cuda", gpu_uuid(0), 9, "local/copy"); /* not into that memory, which its client has let go of but for this */
    expect(b, &back, "host", NULL, 8, "local/copy");
    let_go(&ref);
    let_go(&back);
    let_go(&second);
    free(host);
    free(other);
    end();
}

Test(cuda, clients_allocation_is_taken_by_its_handle)
{
    struct rdt_ref ref, twice;
    void *addr;

    begin();
    addr = gpu_alloc(BYTES + 4096);
    gpu_fill((char *)addr + 512, BYTES, 6);
    ref = put_at((char *)addr + 512, BYTES, RDT_CUDA_HANDLE);
    twice = put_at((char *)addr + 512, BYTES, RDT_CUDA_HANDLE); /* opened once */
    expect(b, &ref, "host", NULL, 6, "local/copy");
    let_go(&ref);
    expect(b, &twice, NULL, NULL, 6, "local/share");
    let_go(&twice);
    gpu_free(addr);
    end();
}

Test(cuda, clients_chunks_are_taken_by_their_fds)
{
    struct rdt_ref ref;
    char *addr;

    begin();
    addr = gpu_alloc_chunks(2 * MIB, 4, true);
    gpu_fill(addr + MIB, BYTES, 7);
    ref = put_at(addr + MIB, BYTES, RDT_CUDA_CHUNKS);
    expect(b, &ref, "host", NULL, 7, "local/copy");
    expect(b, &ref, NULL, NULL, 7, "local/share");
    let_go(&ref);
    gpu_free_chunks(addr, 2 * MIB, 4);
    end();
}

/* As PyTorch's expandable segments have them: tensors end where chunks do not. */
Test(cuda, tensors_that_share_chunks_are_put_together)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_tensor tensors[3];
    enum rdt_cuda_how how[3];
    struct rdt_ref ref;
    rdt_object *object;
    char *addr;

    begin();
    addr = gpu_alloc_chunks(2 * MIB, 4, true);
    for (unsigned i = 0; i < 3; i++) {
        tensors[i] = tensor(addr + i * (2 * MIB + 4096), 2 * MIB + 4096);
        gpu_fill(tensors[i].data, 2 * MIB + 4096, 8 + i);
    }
    options.how = how;
    must_ok(rdt_cuda_put(gpu_a, tensors, 3, &options, &ref, &err));
    must_say(how[0] == RDT_CUDA_CHUNKS && how[1] == RDT_CUDA_KNOWN && how[2] == RDT_CUDA_KNOWN, "taken as %d, %d, %d", (int)how[0],
             (int)how[1], (int)how[2]);
    must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
    must_go_by("local/share", object);
    for (unsigned i = 0; i < 3; i++)
        must(gpu_holds(tensor_of(object, i).data, 2 * MIB + 4096, 8 + i));
    rdt_release(object);
    let_go(&ref);

    { /* what the caller has made known in part is copied */
        void *base;
        must_ok(rdt_cuda_offer(gpu_a, addr, MIB, &base, NULL, &err));
        must_ok(rdt_cuda_put(gpu_a, tensors, 2, &options, &ref, &err));
        must_say(how[0] == RDT_CUDA_COPIED, "taken as %d", (int)how[0]);
        must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
        must(gpu_holds(tensor_of(object, 0).data, 2 * MIB + 4096, 8) && gpu_holds(tensor_of(object, 1).data, 2 * MIB + 4096, 9));
        rdt_release(object);
        let_go(&ref);
        must_ok(rdt_dealloc(a, base, &err));
    }
    gpu_free_chunks(addr, 2 * MIB, 4);
    end();
}

#define PUTTERS 4u

static void *put_again_and_again(void *arg)
{
    struct rdt_tensor one = {.dtype = RDT_U8, .ndim = 1, .shape = (const int64_t[]){65536}, .data = arg};
    struct rdt_cuda_put_options options = RDT_INIT(options);
    enum rdt_cuda_how how;
    struct rdt_error err;
    struct rdt_ref ref;

    options.how = &how;
    for (unsigned i = 0; i < 100; i++)
        if (rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err) != RDT_OK || (how != RDT_CUDA_HANDLE && how != RDT_CUDA_KNOWN) ||
            rdt_free(a, &ref, false, &err) != RDT_OK)
            return arg;
    return NULL;
}

/* Each its own tensor, all in one allocation, which is known as long as any of them needs it. */
Test(cuda, puts_of_several_threads_share_an_allocation)
{
    pthread_t threads[PUTTERS];
    unsigned failed = 0;
    char *addr;

    begin();
    addr = gpu_alloc(MIB);
    for (unsigned i = 0; i < PUTTERS; i++)
        must(pthread_create(&threads[i], NULL, put_again_and_again, addr + i * 65536) == 0);
    for (unsigned i = 0; i < PUTTERS; i++) {
        void *left;
        (void)pthread_join(threads[i], &left);
        failed += left != NULL;
    }
    must_say(failed == 0, "%u of %u threads could not put", failed, PUTTERS);
    gpu_free(addr);
    end();
}

Test(cuda, what_cannot_be_exported_is_copied_in)
{
    struct rdt_ref ref;
    char *addr;

    begin();
    addr = gpu_alloc_chunks(2 * MIB, 2, false);
    gpu_fill(addr, BYTES, 9);
    ref = put_at(addr, BYTES, RDT_CUDA_COPIED);
    gpu_fill(addr, BYTES, 10);
    gpu_free_chunks(addr, 2 * MIB, 2);
    expect(b, &ref, NULL, NULL, 9, "local/share");
    let_go(&ref);
    end();
}

/* The stream stands still until the reader has asked. Unordered, it says at once that it has done what it has not: then the reader sees
 * what was there before, or this test could not fail. */
static void expect_order(bool copied, bool ordered)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_fetch_options how = RDT_INIT(how);
    struct rdt_tensor one;
    struct gpu_gate *gate;
    rdt_request *request;
    rdt_object *object;
    struct rdt_ref ref;
    uint8_t *source;
    void *to, *stream;

    begin();
    stream = gpu_stream_create();
    to = copied ? gpu_alloc_chunks(2 * MIB, 2, false) : gpu_alloc(4 * MIB);
    source = gpu_alloc(BYTES);
    gpu_fill(to, BYTES, 1);
    gpu_fill(source, BYTES, 2);
    gate = gpu_hold(stream);
    gpu_copy_in_stream(to, source, BYTES, stream);
    one = tensor(to, BYTES);
    options.has_stream = true;
    options.stream = stream;
    if (!ordered)
        must(setenv("FAKE_CUDA_CALLS_AT_ONCE", "1", 1) == 0); /* here, not in the daemon, which runs already */
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    how.memory = "host";
    must_ok(rdt_fetch_start(b, &ref, 1, &how, &request, &err));
    must_ok(rdt_ping(a, LONG, &err));
    if (ordered) {
        must_be(RDT_TIMED_OUT, rdt_wait(b, &request, 1, 1, 50 * MSEC, NULL, NULL, &err));
        gpu_open(gate);
    }
    must_ok(rdt_wait(b, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 2) == ordered);
    if (!ordered)
        gpu_open(gate);
    rdt_release(object);
    rdt_request_destroy(request);
    let_go(&ref);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    if (copied)
        gpu_free_chunks(to, 2 * MIB, 2);
    else
        gpu_free(to);
    gpu_free(source);
    end();
}

Test(cuda, readers_wait_for_the_producers_stream)
{
    expect_order(false, true);
}

Test(cuda, readers_wait_for_a_copy_in_the_producers_stream)
{
    expect_order(true, true);
}

Test(cuda, readers_would_see_old_bytes_without_the_order)
{
    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told to break its order");
    expect_order(false, false);
}

Test(cuda, targets_on_a_gpu_are_written)
{
    struct rdt_fetch_options how = RDT_INIT(how);
    const struct rdt_tensor *targets;
    struct rdt_tensor target;
    size_t count = 1;
    enum rdt_cuda_how taken;
    struct rdt_ref ref;
    rdt_object *object;
    void *from, *to, *base;

    begin();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &from, &err));
    gpu_fill(from, BYTES, 3);
    ref = put_at(from, BYTES, RDT_CUDA_KNOWN);
    to = gpu_alloc(BYTES);
    must_ok(rdt_cuda_offer(gpu_b, to, BYTES, &base, &taken, &err));
    must(taken == RDT_CUDA_HANDLE && base == to);
    target = tensor(to, BYTES);
    targets = &target;
    how.targets = &targets;
    how.target_counts = &count;
    how.timeout_ns = LONG;
    must_ok(rdt_fetch(b, &ref, 1, &how, &object, &err));
    must(gpu_holds(to, BYTES, 3));
    rdt_release(object);
    must_ok(rdt_dealloc(b, base, &err));
    must_ok(rdt_dealloc(a, from, &err));
    let_go(&ref);
    wait_until(20 * SEC, device(0).used_bytes == 0);
    gpu_free(to);
    end();
}

Test(cuda, put_by_copy_takes_nothing_of_the_callers)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    enum rdt_cuda_how how;
    struct rdt_tensor one;
    struct rdt_ref ref;
    void *addr;

    begin();
    addr = gpu_alloc(BYTES);
    gpu_fill(addr, BYTES, 11);
    one = tensor(addr, BYTES);
    options.how = &how;
    options.copy = true;
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    must(how == RDT_CUDA_COPIED);
    gpu_fill(addr, BYTES, 12);
    gpu_free(addr);
    expect(b, &ref, NULL, NULL, 11, "local/share");
    let_go(&ref);
    end();
}

static struct {
    sem_t done, end;
    void *addr;
    struct rdt_ref ref;
} second;

static void *put_without_a_context(void *arg)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_tensor one = tensor(second.addr, BYTES);

    options.has_stream = true; /* the default one, of the GPU that the tensor is on */
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &second.ref, &err));
    (void)sem_post(&second.done);
    (void)sem_wait(&second.end);
    return arg;
}

Test(cuda, default_stream_is_that_of_the_tensors_gpu)
{
    pthread_t thread;

    begin();
    (void)sem_init(&second.done, 0, 0);
    (void)sem_init(&second.end, 0, 0);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(gpu_count() - 1), BYTES, &second.addr, &err));
    gpu_use(gpu_count() - 1);
    gpu_fill(second.addr, BYTES, 13);
    must(pthread_create(&thread, NULL, put_without_a_context, NULL) == 0);
    must(sem_wait(&second.done) == 0);
    expect(b, &second.ref, "host", NULL, 13, "local/copy");
    must_ok(rdt_dealloc(a, second.addr, &err));
    let_go(&second.ref);
    end();
    (void)sem_post(&second.end);
    must(pthread_join(thread, NULL) == 0);
}

Test(cuda, gpus_have_names_and_numbers)
{
    const char *uuid;
    int ordinal;

    begin();
    for (unsigned i = 0; i < gpu_count(); i++) {
        must_ok(rdt_cuda_uuid(gpu_a, (int)i, &uuid, &err));
        must(strcmp(uuid, gpu_uuid(i)) == 0);
        must_ok(rdt_cuda_ordinal(gpu_a, uuid, &ordinal, &err));
        must(ordinal == (int)i);
    }
    must_refuse(RDT_NOT_FOUND, "no GPU 99", rdt_cuda_uuid(gpu_a, 99, &uuid, &err));
    must_refuse(RDT_NOT_FOUND, "GPU-nowhere", rdt_cuda_ordinal(gpu_a, "GPU-nowhere", &ordinal, &err));
    end();
}

Test(cuda, pool_gives_memory_that_is_put_without_a_copy)
{
    struct rdt_cuda_pool_info info;
    struct rdt_ref ref;
    void *addr, *other;

    begin();
    must(!rdt_cuda_pool_alloc(MIB, 0, NULL)); /* nobody's yet */
    rdt_cuda_pool_info(&info);
    must(info.failures == 1 && info.last.status == RDT_INVALID && strstr(info.last.msg, "no connection serves"));
    rdt_cuda_pool_use(gpu_a);
    addr = rdt_cuda_pool_alloc((ptrdiff_t)BYTES, 0, NULL);
    other = rdt_cuda_pool_alloc(2 * (ptrdiff_t)MIB, (int)gpu_count() - 1, NULL);
    must(addr && other);
    rdt_cuda_pool_info(&info);
    must(info.blocks == 2 && info.bytes == BYTES + 2 * MIB);
    must(!rdt_cuda_pool_alloc(MIB, 99, NULL) && !rdt_cuda_pool_alloc(0, 0, NULL) && !rdt_cuda_pool_alloc((ptrdiff_t)1 << 50, 0, NULL));
    rdt_cuda_pool_info(&info);
    must(info.failures == 4 && info.last.msg[0]);
    gpu_fill(addr, BYTES, 14);
    ref = put_at((char *)addr, BYTES, RDT_CUDA_KNOWN);
    rdt_cuda_pool_free(addr, (ptrdiff_t)BYTES, 0, NULL); /* the object keeps it */
    expect(b, &ref, NULL, NULL, 14, "local/share");
    let_go(&ref);
    rdt_cuda_pool_free(other, 2 * (ptrdiff_t)MIB, (int)gpu_count() - 1, NULL);
    rdt_cuda_pool_free(NULL, 0, 0, NULL);
    rdt_cuda_pool_info(&info);
    must(info.blocks == 0 && info.bytes == 0);
    addr = rdt_cuda_pool_alloc(1, 0, NULL); /* goes with its connection, and free then does nothing */
    must(addr);
    rdt_cuda_close(gpu_a);
    rdt_close(a);
    rdt_cuda_pool_free(addr, 1, 0, NULL);
    must(!rdt_cuda_pool_alloc(MIB, 0, NULL));
    node_connect(&node, &a);
    must_ok(rdt_cuda_open(a, &gpu_a, &err));
    end();
}

static void *free_it(void *addr)
{
    rdt_cuda_pool_free(*(void **)addr, (ptrdiff_t)BYTES, 0, NULL);
    return NULL;
}

Test(cuda, pool_takes_back_what_no_stream_uses_any_more)
{
    struct rdt_cuda_pool_info info;
    struct gpu_gate *gate;
    void *addr, *source, *stream;
    pthread_t thread;

    begin();
    rdt_cuda_pool_use(gpu_a);
    stream = gpu_stream_create();
    addr = rdt_cuda_pool_alloc((ptrdiff_t)BYTES, 0, NULL);
    source = gpu_alloc(BYTES);
    must(addr);
    gate = gpu_hold(stream);
    gpu_copy_in_stream(addr, source, BYTES, stream); /* the fake's process ends if the memory is gone by then */
    must(pthread_create(&thread, NULL, free_it, &addr) == 0);
    do
        rdt_cuda_pool_info(&info);
    while (info.blocks > 0);
    must_ok(rdt_ping(a, LONG, &err));
    must(device(0).used_bytes >= BYTES); /* it waits */
    gpu_open(gate);
    must(pthread_join(thread, NULL) == 0);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    gpu_free(source);
    end();
}

static int mortal(struct actor *self, void *arg)
{
    struct rdt_tensor one;
    struct rdt_ref ref;
    rdt_cuda *gpu;
    const char *why;
    char socket[200];
    void *addr;
    rdt *conn;

    (void)arg;
    actor_recv(self, socket, sizeof socket);
    if (!gpu_is_real())
        (void)fake_gpu_load();
    must(gpu_there(&why));
    must_ok(rdt_connect(&(struct rdt_connect_options){.struct_size = sizeof(struct rdt_connect_options), .socket = socket}, &conn, &err));
    must_ok(rdt_cuda_open(conn, &gpu, &err));
    must_ok(rdt_cuda_alloc(gpu, gpu_uuid(0), BYTES, &addr, &err));
    gpu_use(0);
    gpu_fill(addr, BYTES, 4);
    one = tensor(addr, BYTES);
    must_ok(rdt_cuda_put(gpu, &one, 1, NULL, &ref, &err));
    addr = gpu_alloc(BYTES);
    one = tensor(addr, BYTES);
    must_ok(rdt_cuda_put(gpu, &one, 1, NULL, &ref, &err));
    actor_step(self);
    actor_await(self);
    return 1;
}

Test(cuda, killed_clients_memory_goes_back_to_the_gpu)
{
    struct actor actor;
    char socket[200];
    size_t before, after;

    actor_start(&actor, mortal, NULL);
    begin();
    (void)snprintf(socket, sizeof socket, "%s", node.socket);
    before = gpu_free_bytes();
    actor_send(&actor, socket, sizeof socket);
    actor_await(&actor);
    must(device(0).used_bytes >= BYTES);
    actor_kill(&actor, SIGKILL);
    wait_until(20 * SEC, device(0).used_bytes == 0);
    after = gpu_free_bytes();
    must_say(!gpu_is_real() || after + 64 * MIB >= before || device(0).opened, "%zu bytes are gone", before - after);
    end();
}

Test(cuda, a_thousand_puts_leave_nothing)
{
    unsigned rounds = 1000;
    uint64_t used = 0;
    void *addr;

    begin();
    addr = gpu_alloc(BYTES);
    for (unsigned i = 0; i < rounds; i++) {
        struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_HANDLE);
        let_go(&ref);
        if (i == 9)
            used = device(0).used_bytes;
    }
    must(device(0).used_bytes <= used);
    gpu_free(addr);
    end();
}

Test(cuda, what_is_missing_is_said)
{
    static const char *env[2];
    struct test_node bare;
    rdt_cuda *gpu;
    void *addr;
    rdt *conn;

    env[0] = stub_cuda_env();
    node_start(&bare, &(struct node_options){.env = env, .name = "stub"});
    if (!gpu_is_real())
        (void)fake_gpu_load();
    node_connect(&bare, &conn);
    must_ok(rdt_cuda_open(conn, &gpu, &err));
    must_refuse(RDT_UNSUPPORTED, "stub", rdt_cuda_alloc(gpu, NULL, BYTES, &addr, &err));
    must_refuse(RDT_EXISTS, "cuda", rdt_cuda_open(conn, &gpu, &err));
    rdt_cuda_close(gpu);
    rdt_close(conn);
    node_end(&bare, NULL);
}

/* What a context takes: as NVML lists it for the process, as the difference on the GPU where it does not know the process, or unknown. */
static void expect_overhead(const char *setting, uint64_t expected, const char *shown)
{
    static const char *env[3];
    struct program program = {0};
    struct test_node other;
    struct rdt_device_info devices[16];
    size_t n = 0;
    rdt_cuda *gpu;
    void *addr;
    rdt *conn;

    if (!gpu_is_real())
        (void)fake_gpu_load();
    env[0] = gpu_is_real() ? setting : fake_gpu_env();
    env[1] = gpu_is_real() ? NULL : setting;
    node_start(&other, &(struct node_options){.env = env, .name = "held"});
    node_connect(&other, &conn);
    must_ok(rdt_cuda_open(conn, &gpu, &err));
    must_ok(rdt_devices(conn, devices, 16, &n, &err));
    for (size_t i = 0; i < n && i < 16; i++)
        must_say(!devices[i].opened && devices[i].overhead_bytes == 0, "%s is in use by an idle daemon", devices[i].uuid);
    must_ok(rdt_cuda_alloc(gpu, devices[0].uuid, BYTES, &addr, &err));
    must_ok(rdt_devices(conn, devices, 16, &n, &err));
    must_say(devices[0].overhead_bytes == expected || (gpu_is_real() && devices[0].overhead_bytes > MIB && devices[0].overhead_bytes < 4096 * MIB),
             "a context takes %llu bytes", (unsigned long long)devices[0].overhead_bytes);
    program_run(&program, (const char *const[]){"rdtctl", "--socket", other.socket, "backends", NULL}, NULL);
    must_say(program.status == 0 && (gpu_is_real() || strstr(program.out, shown)), "%s%s", program.out, program.err);
    program_free(&program);
    must_ok(rdt_dealloc(conn, addr, &err));
    rdt_cuda_close(gpu);
    rdt_close(conn);
    node_end(&other, NULL);
}

Test(cuda, idle_daemon_holds_nothing_and_tells_what_a_context_takes)
{
    expect_overhead(NULL, 256 * MIB, "256.0 MiB besides");
    if (gpu_is_real())
        return;
    expect_overhead("FAKE_NVML_PROCESSES=0", 256 * MIB, "256.0 MiB besides");
    expect_overhead("FAKE_NVML_INIT=999", UINT64_MAX, "cannot be told");
}

Test(cuda, client_without_a_driver_hears_so)
{
    struct test_node bare;
    rdt_cuda *gpu;
    const char *why;
    rdt *conn;

    if (gpu_there(&why))
        cr_skip_test("this machine has a driver");
    node_start(&bare, &(struct node_options){.name = "bare"});
    node_connect(&bare, &conn);
    must_refuse(RDT_UNSUPPORTED, "there is no NVIDIA driver", rdt_cuda_open(conn, &gpu, &err));
    rdt_close(conn);
    node_end(&bare, NULL);
}
#endif
