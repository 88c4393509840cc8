/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory on one node: how long it lives, with many puts, clients that die, and deadlines.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_life)

#ifndef RDT_WITHOUT_CUDA
#define PUTTERS 4u

static void *put_again_and_again(void *arg)
{
    struct rdt_tensor one = {.dtype = RDT_U8, .ndim = 1, .shape = (const int64_t[]){65536}, .data = arg};
    enum rdt_cuda_how how;
    struct rdt_error err;
    struct rdt_ref ref;
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .how = &how};

    for (unsigned i = 0; i < 100; i++)
        if (rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err) != RDT_OK ||
            (how != as_allowed(RDT_CUDA_HANDLE) && how != RDT_CUDA_KNOWN) || rdt_free(a, &ref, false, &err) != RDT_OK)
            return arg;
    return NULL;
}

/* Each thread puts its own tensor of one allocation, which the daemon knows as long as any of the puts needs it. */
Test(cuda_life, puts_of_several_threads_share_an_allocation)
{
    pthread_t threads[PUTTERS];
    unsigned failed = 0;

    begin();
    char *addr = gpu_alloc_whole(MIB);
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

Test(cuda_life, context_that_nobody_uses_is_left_and_comes_back)
{
    struct rdt_ref ref;
    void *addr;

    begin();
    for (unsigned round = 0; round < 2; round++) {
        must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
        must(device(0).opened);
        gpu_fill(addr, BYTES, 40 + round);
        ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
        expect(b, &ref, "host", NULL, 40 + round, "local/copy");
        expect(b, &ref, "cuda", gpu_uuid(gpu_count() - 1), 40 + round, gpu_count() > 1 ? "local/copy" : "local/share");
        must_ok(rdt_dealloc(a, addr, &err));
        let_go(&ref);
        wait_until(20 * SEC, !device(0).opened && !device(gpu_count() - 1).opened);
    }
    end();
}

/* Pinned host memory that its client keeps does not keep a context; when a GPU is used again, it is pinned again. */
Test(cuda_life, context_is_left_although_host_memory_is_pinned)
{
    rdt_object *object, *again;
    void *addr;

    count_calls();
    begin_with("FAKE_CUDA_REGISTER_REFUSED=0", (const char *const[]){"--pool-idle=3s", NULL});
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    gpu_fill(addr, BYTES, 60);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    must_ok(fetch_to(b, &ref, "host", NULL, &object, &err));
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    ref = put_at(tensor_of(object, 0).data, BYTES, RDT_CUDA_HOST); /* the memory is copied from, now and again */
    for (unsigned i = 0; i < 3; i++)
        expect(a, &ref, "cuda", gpu_uuid(0), 60, "local/copy");
    wait_until(20 * SEC, fake_gpu_calls(node.pid, 0, "cuMemHostRegister") == 1);
    wait_until(20 * SEC, !device(0).opened);
    must(fake_gpu_calls(node.pid, 0, "cuMemHostUnregister") == 1);
    must_ok(fetch_to(a, &ref, "cuda", gpu_uuid(gpu_count() - 1), &again, &err));
    must(gpu_holds(tensor_of(again, 0).data, BYTES, 60));
    unsigned pinned = fake_gpu_calls(node.pid, 0, "cuMemHostRegister");
    must_say(pinned == 2, "pinned %u times", pinned);
    rdt_release(again);
    rdt_release(object);
    let_go(&ref);
    wait_until(20 * SEC, fake_gpu_calls(node.pid, 0, "cuMemHostUnregister") == 2);
    end_of_count();
}

static int mortal(struct actor *self, void *arg)
{
    struct rdt_ref ref;
    rdt_cuda *gpu;
    const char *why;
    char socket[200];
    void *addr;
    rdt *conn;

    actor_recv(self, socket, sizeof socket);
    if (!gpu_is_real())
        (void)fake_gpu_load();
    must(gpu_there(&why));
    must_ok(rdt_connect(&(struct rdt_connect_options){.struct_size = sizeof(struct rdt_connect_options), .socket = socket},
                        &conn, &err));
    must_ok(rdt_cuda_open(conn, &gpu, &err));
    must_ok(rdt_cuda_alloc(gpu, gpu_uuid(0), BYTES, &addr, &err));
    gpu_use(0);
    gpu_fill(addr, BYTES, 4);
    struct rdt_tensor one = bytes_at(addr, BYTES);
    must_ok(rdt_cuda_put(gpu, &one, 1, NULL, &ref, &err));
    addr = gpu_alloc_whole(BYTES);
    one = bytes_at(addr, BYTES);
    must_ok(rdt_cuda_put(gpu, &one, 1, NULL, &ref, &err));
    actor_step(self);
    actor_await(self);
    return 1;
}

Test(cuda_life, killed_clients_memory_goes_back_to_the_gpu)
{
    struct actor actor;
    char socket[200];

    actor_start(&actor, mortal, NULL);
    begin();
    (void)snprintf(socket, sizeof socket, "%s", node.socket);
    size_t before = gpu_free_bytes();
    actor_send(&actor, socket, sizeof socket);
    actor_await(&actor);
    must(device(0).used_bytes >= BYTES);
    actor_kill(&actor, SIGKILL);
    wait_until(20 * SEC, device(0).used_bytes == 0);
    size_t after = gpu_free_bytes();
    must_say(!gpu_is_real() || after + 64 * MIB >= before || device(0).opened, "%zu bytes are gone", before - after);
    end();
}

/* ---- a forked child ---- */

/* Like a worker that inherits everything: CUDA does not work there, and the threads of the library do not exist. */
static int inherit(struct actor *self, void *arg)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_tensor one = bytes_at(arg, BYTES);
    struct rdt_ref ref;
    enum rdt_cuda_how how;
    void *addr = NULL;
    int ordinal;

    must_refuse(RDT_FORKED, "CUDA does not work in its forked child", rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    must_be(RDT_FORKED, rdt_cuda_alloc(gpu_a, NULL, BYTES, &addr, &err));
    must_be(RDT_FORKED, rdt_cuda_offer(gpu_a, arg, BYTES, &addr, &how, &err));
    must_be(RDT_FORKED, rdt_cuda_where(gpu_a, arg, &ordinal, &err));
    must_be(RDT_FORKED, rdt_cuda_wait_all(gpu_a, 0, &err));
    must(rdt_cuda_pool_alloc(BYTES, 0, NULL) == NULL);
    rdt_cuda_pool_free(arg, BYTES, 0, NULL);
    rdt_cuda_close(gpu_a);
    rdt_close(a);
    rdt_cuda_close(gpu_b);
    rdt_close(b);
    return 0;
}

Test(cuda_life, forked_child_ends_and_disturbs_nothing)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct actor child;
    struct rdt_ref ref;

    begin();
    rdt_cuda_pool_use(gpu_a);
    void *block = rdt_cuda_pool_alloc(BYTES, 0, NULL);
    must(block);
    gpu_fill(block, BYTES, 4);
    struct rdt_tensor one = bytes_at(block, BYTES);
    options.has_stream = true; /* starts the thread that waits for streams */
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    rdt_object *object = fetch_one(b, &ref, RDT_FETCH_SHARE);
    actor_start(&child, inherit, block);
    actor_wait(&child);
    must(gpu_holds(tensor_of(object, 0).data, BYTES, 4));
    rdt_release(object);
    let_go(&ref);
    rdt_cuda_pool_free(block, BYTES, 0, NULL);
    rdt_cuda_pool_use(NULL);
    end();
}

Test(cuda_life, a_thousand_puts_leave_nothing)
{
    unsigned rounds = 1000;
    uint64_t used = 0;

    begin();
    void *addr = gpu_alloc_whole(BYTES);
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

struct timed_put {
    pthread_t thread;
    void *addr;
    int64_t timeout_ns;
    enum rdt_status status;
    enum rdt_cuda_how how;
    struct rdt_ref ref;
    struct rdt_error err;
};

static void *put_in_time(void *arg)
{
    struct timed_put *timed = arg;
    struct rdt_tensor one = bytes_at(timed->addr, BYTES);
    struct rdt_put_options put = {.struct_size = sizeof put, .timeout_ns = timed->timeout_ns};
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .put = &put, .how = &timed->how};

    timed->status = rdt_cuda_put(gpu_a, &one, 1, &options, &timed->ref, &timed->err);
    return NULL;
}

static void must_time_out(void *addr)
{
    struct timed_put timed = {.addr = addr, .timeout_ns = 100 * MSEC};
    int64_t since = now_ns();

    (void)put_in_time(&timed);
    must_say(timed.status == RDT_TIMED_OUT, "%s: %s", rdt_status_name(timed.status), timed.err.msg);
    must_be_within(since, 5 * SEC);
}

/* Exporting an allocation and allocating memory take of the put's own time, and delay no other put. */
Test(cuda_life, puts_keep_their_deadlines_while_the_daemon_is_stopped)
{
    begin();
    char *whole = gpu_alloc_whole(2 * BYTES);
    char *chunks = gpu_alloc_chunks(2 * MIB, 80, true); /* in two messages */
    char *closed = gpu_alloc_chunks(2 * MIB, 2, false);
    gpu_fill(whole, BYTES, 1);
    struct timed_put patient = {.timeout_ns = LONG, .addr = whole};
    must(kill(node.pid, SIGSTOP) == 0);
    must(pthread_create(&patient.thread, NULL, put_in_time, &patient) == 0);
    must_time_out(whole + BYTES); /* waits for the patient put's offer of the same allocation, or makes the offer itself */
    must_time_out(chunks);
    must_time_out(chunks + 70 * 2 * MIB);
    must_time_out(closed);
    must(kill(node.pid, SIGCONT) == 0);
    must(pthread_join(patient.thread, NULL) == 0);
    must_say(patient.status == RDT_OK, "%s", patient.err.msg);
    expect(b, &patient.ref, NULL, NULL, 1, "local/share");
    must_ok(rdt_free(a, &patient.ref, false, &err));
    gpu_free(whole);
    gpu_free_chunks(chunks, 2 * MIB, 80);
    gpu_free_chunks(closed, 2 * MIB, 2);
    end();
}

struct nested { /* a signal handler that puts the allocation which its thread is just putting */
    struct timed_put put, other;
    bool done;
};

static bool stop(void *arg)
{
    return true;
}

static void *put_and_stop(void *arg)
{
    rdt_interrupt_by(stop, NULL);
    (void)put_in_time(arg);
    rdt_interrupt_by(NULL, NULL);
    return NULL;
}

static bool put_within_put(void *arg)
{
    struct nested *nested = arg;

    if (nested->done)
        return false;
    nested->done = true;
    (void)put_in_time(&nested->put);
    must(pthread_create(&nested->other.thread, NULL, put_and_stop, &nested->other) == 0);
    must(pthread_join(nested->other.thread, NULL) == 0);
    must(kill(node.pid, SIGCONT) == 0);
    return false;
}

/* The put that the handler has interrupted cannot go on before the handler returns. */
Test(cuda_life, put_of_a_signal_handler_does_not_wait_for_the_put_that_it_interrupts)
{
    if (handles_are_refused())
        cr_skip_test("the daemon cannot map this process's memory");
    begin();
    char *whole = gpu_alloc_whole(2 * BYTES);
    gpu_fill(whole, BYTES, 1);
    struct timed_put outer = {.timeout_ns = LONG, .addr = whole};
    struct nested nested = {{.timeout_ns = LONG, .addr = whole + BYTES}, {.timeout_ns = LONG, .addr = whole + BYTES}, false};
    must(kill(node.pid, SIGSTOP) == 0);
    rdt_interrupt_by(put_within_put, &nested);
    (void)put_in_time(&outer);
    rdt_interrupt_by(NULL, NULL);
    must_say(outer.status == RDT_OK, "%s", outer.err.msg);
    must_say(nested.put.status == RDT_INVALID && strstr(nested.put.err.msg, "this thread puts memory"), "%s: %s",
             rdt_status_name(nested.put.status), nested.put.err.msg);
    must_say(nested.other.status == RDT_CANCELLED, "%s: %s", rdt_status_name(nested.other.status), nested.other.err.msg);
    expect(b, &outer.ref, NULL, NULL, 1, "local/share");
    must_ok(rdt_free(a, &outer.ref, false, &err));
    gpu_free(whole);
    end();
}

/* device_limit says nothing of what other processes have on the GPU. */
Test(cuda_life, memory_is_found_in_the_pool_when_the_gpu_has_no_more)
{
    void *block;

    if (gpu_is_real())
        cr_skip_test("a real GPU is not filled");
    begin_with("FAKE_CUDA_MIB=64", (const char *const[]){"--device-limit=1GiB", "--pool-idle=4s", NULL});
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), 40 * MIB, &block, &err));
    must_refuse(RDT_NO_MEMORY, "allocating GPU memory", rdt_cuda_alloc(gpu_b, gpu_uuid(0), 40 * MIB, &block, &err));
    must_ok(rdt_dealloc(a, block, &err)); /* the pool has it for this client */
    must_ok(rdt_cuda_alloc(gpu_b, gpu_uuid(0), 40 * MIB, &block, &err));
    must_ok(rdt_dealloc(b, block, &err));
    end();
}
#endif
