/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory on one node: order by streams.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_streams)

#ifndef RDT_WITHOUT_CUDA
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
/* The stream stands still until the reader has fetched. With `ordered` false the fake driver runs the callback at once, before
 * the work has finished, and the reader must see the old bytes: this shows that the test can fail. */
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
    to = copied ? gpu_alloc_chunks(2 * MIB, 2, false) : gpu_alloc_whole(4 * MIB);
    source = gpu_alloc(BYTES);
    gpu_fill(to, BYTES, 1);
    gpu_fill(source, BYTES, 2);
    gate = gpu_hold(stream);
    gpu_copy_in_stream(to, source, BYTES, stream);
    one = bytes_at(to, BYTES);
    options.has_stream = true;
    options.stream = stream;
    if (!ordered)
        must(setenv("FAKE_CUDA_CALLS_AT_ONCE", "1", 1) == 0); /* for this process; the daemon runs already */
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

Test(cuda_streams, readers_wait_for_the_producers_stream)
{
    expect_order(false, true);
}

Test(cuda_streams, readers_wait_for_a_copy_in_the_producers_stream)
{
    expect_order(true, true);
}

Test(cuda_streams, readers_would_see_old_bytes_without_the_order)
{
    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told to break its order");
    must(setenv("FAKE_CUDA_NO_IPC", "0", 1) == 0); /* a copy's buffer would be freed before the copy */
    expect_order(false, false);
}

static struct {
    sem_t done, end;
    void *addr;
    struct rdt_ref ref;
} second;

static void *put_without_a_context(void *arg)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_tensor one = bytes_at(second.addr, BYTES);

    options.has_stream = true; /* the default stream of the GPU that the tensor is on */
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &second.ref, &err));
    (void)sem_post(&second.done);
    (void)sem_wait(&second.end);
    return arg;
}

Test(cuda_streams, default_stream_is_that_of_the_tensors_gpu)
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

/* ---- time ---- */

/* Buffers that the stream copies into are deallocated when it has copied; the caller does not wait for that. */
Test(cuda_streams, failing_put_does_not_wait_for_the_stream)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_put_options put = RDT_INIT(put);
    struct rdt_tensor tensors[2];
    struct gpu_gate *gate;
    struct rdt_ref ref;
    void *closed, *stream;
    uint8_t *host = malloc(BYTES);

    begin();
    must(host);
    stream = gpu_stream_create();
    closed = gpu_alloc_chunks(2 * MIB, 2, false);
    gate = gpu_hold(stream);
    tensors[0] = bytes_at(closed, BYTES);
    tensors[1] = bytes_at(host, BYTES);
    options.has_stream = true;
    options.stream = stream;
    must_refuse(RDT_INVALID, "tensor 1", rdt_cuda_put(gpu_a, tensors, 2, &options, &ref, &err));
    must(device(0).used_bytes >= BYTES); /* the stream may still write to the buffer */
    gpu_open(gate);
    gpu_stream_wait(stream);
    wait_until(20 * SEC, device(0).used_bytes == 0);

    gate = gpu_hold(NULL); /* a put without a stream: the library's own stream copies */
    options.has_stream = false;
    options.put = &put;
    put.timeout_ns = 200 * MSEC;
    must_be(RDT_TIMED_OUT, rdt_cuda_put(gpu_a, tensors, 1, &options, &ref, &err));
    must(device(0).used_bytes >= BYTES);
    gpu_open(gate);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    wait_until(20 * SEC, device(0).used_bytes == 0);
    gpu_free_chunks(closed, 2 * MIB, 2);
    free(host);
    end();
}

/* ---- the end ---- */

/* While `holds` is set, sem_post does not return in any other thread than the test's: this delays the callbacks of streams. */
static atomic_bool holds, destroyed;
static _Atomic(sem_t *) held;
static pthread_t test_thread;

static int call_real(const char *name, _Atomic(uintptr_t) *at, sem_t *sem)
{
    uintptr_t found = atomic_load(at);

    if (!found)
        atomic_store(at, found = (uintptr_t)dlsym(RTLD_NEXT, name));
    return ((int (*)(sem_t *))found)(sem);
}

int sem_post(sem_t *sem)
{
    static _Atomic(uintptr_t) real;

    if (atomic_load(&holds) && !pthread_equal(pthread_self(), test_thread)) {
        atomic_store(&held, sem);
        while (atomic_load(&holds))
            (void)sched_yield();
    }
    return call_real("sem_post", &real, sem);
}

int sem_destroy(sem_t *sem)
{
    static _Atomic(uintptr_t) real;

    if (atomic_load(&holds) && atomic_load(&held) == sem)
        atomic_store(&destroyed, true);
    return call_real("sem_destroy", &real, sem);
}

static void put_with(void *stream, void *addr)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_tensor one = bytes_at(addr, BYTES);
    struct rdt_ref ref;

    options.has_stream = true;
    options.stream = stream;
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
}

static void reconnect(void)
{
    rdt_close(a);
    node_connect(&node, &a);
    must_ok(rdt_cuda_open(a, &gpu_a, &err));
}

Test(cuda_streams, stream_may_come_after_the_close_or_during_it)
{
    struct gpu_gate *gate;
    void *stream, *addr;

    begin();
    stream = gpu_stream_create();
    addr = gpu_alloc_chunks(4 * MIB, 1, true);
    gate = gpu_hold(stream);
    put_with(stream, addr);
    rdt_cuda_close(gpu_a);
    reconnect();
    gpu_open(gate);
    gpu_stream_wait(stream);

    test_thread = pthread_self();
    gate = gpu_hold(stream);
    put_with(stream, addr);
    atomic_store(&holds, true);
    gpu_open(gate);
    wait_until(20 * SEC, atomic_load(&held)); /* the callback has posted, and has not returned */
    rdt_cuda_close(gpu_a);
    atomic_store(&holds, false);
    gpu_stream_wait(stream);
    must(!atomic_load(&destroyed));
    reconnect();
    gpu_stream_destroy(stream);
    gpu_free_chunks(addr, 4 * MIB, 1);
    end();
}
#endif
