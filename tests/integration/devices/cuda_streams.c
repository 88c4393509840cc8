/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory on one node: order by streams.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_streams)

#ifndef RDT_WITHOUT_CUDA
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <unistd.h>

/* The stream stands still until the reader has fetched. With `ordered` false the event of the fake driver occurs at once,
 * before the work has finished, and the reader must see the old bytes: this shows that the test can fail. */
static void expect_order(bool copied, bool ordered)
{
    struct rdt_ref ref;

    begin();
    void *stream = gpu_stream_create();
    void *to = copied ? gpu_alloc_chunks(2 * MIB, 2, false) : gpu_alloc_whole(4 * MIB);
    uint8_t *source = gpu_alloc(BYTES);
    gpu_fill(to, BYTES, 1);
    gpu_fill(source, BYTES, 2);
    struct gpu_gate *gate = gpu_hold(stream);
    gpu_copy_in_stream(to, source, BYTES, stream);
    struct rdt_tensor one = bytes_at(to, BYTES);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .has_stream = true, .stream = stream};
    if (!ordered)
        gpu_events_early();
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    struct rdt_fetch_options how = {.struct_size = sizeof how, .memory = "host"};
    rdt_request *request = start_as(b, &ref, &how);
    must_ok(rdt_ping(a, LONG, &err));
    if (ordered) {
        must_be(RDT_TIMED_OUT, rdt_wait(b, &request, 1, 1, 50 * MSEC, NULL, NULL, &err));
        gpu_open(gate);
    }
    rdt_object *object = await_object(b, request);
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

/* The library's own threads never call the driver from a host function; if they did, the other tests would see it fail. */
Test(cuda_streams, driver_refuses_calls_inside_a_host_function)
{
    if (gpu_is_real())
        cr_skip_test("a real driver may deadlock");
    begin();
    void *stream = gpu_stream_create();
    must(gpu_refuses_in_host_function(stream));
    gpu_stream_destroy(stream);
    end();
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

/* Each GPU has a default stream of its own. That of the second tensor's GPU stands still. */
static void expect_order_on_two_gpus(bool copied)
{
    struct rdt_tensor tensors[2];
    struct rdt_ref ref;
    void *to[2], *source = NULL;

    begin();
    for (unsigned i = 0; i < 2; i++) {
        gpu_use(i);
        to[i] = gpu_alloc_whole(4 * MIB);
        gpu_fill(to[i], BYTES, 1);
        tensors[i] = bytes_at(to[i], BYTES);
    }
    source = gpu_alloc(BYTES);
    gpu_fill(source, BYTES, 2);
    struct gpu_gate *gate = gpu_hold(NULL);
    gpu_copy_in_stream(to[1], source, BYTES, NULL);
    gpu_use(0);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .has_stream = true, .copy = copied};
    must_ok(rdt_cuda_put(gpu_a, tensors, 2, &options, &ref, &err));
    struct rdt_fetch_options how = {.struct_size = sizeof how, .memory = "host"};
    rdt_request *request = start_as(b, &ref, &how);
    must_be(RDT_TIMED_OUT, rdt_wait(b, &request, 1, 1, 500 * MSEC, NULL, NULL, &err));
    gpu_open(gate);
    rdt_object *object = await_object(b, request);
    for (unsigned i = 0; i < 2; i++)
        must(holds_pattern(tensor_of(object, i).data, BYTES, 1 + i));
    rdt_release(object);
    rdt_request_destroy(request);
    let_go(&ref);
    for (unsigned i = 0; i < 2; i++) {
        gpu_use(i);
        gpu_free(to[i]);
    }
    gpu_free(source);
    gpu_use(0);
    end();
}

static void need_two_gpus(void)
{
    const char *why;

    if (!gpu_is_real())
        (void)fake_gpu_load();
    if (!gpu_there(&why) || gpu_count() < 2)
        cr_skip_test("needs two GPUs");
}

Test(cuda_streams, default_streams_of_all_tensors_gpus_count)
{
    need_two_gpus();
    expect_order_on_two_gpus(false);
}

Test(cuda_streams, default_streams_of_all_tensors_gpus_count_for_copies)
{
    need_two_gpus();
    expect_order_on_two_gpus(true);
}

/* ---- time ---- */

/* Buffers that the stream copies into are deallocated when it has copied; the caller does not wait for that. */
Test(cuda_streams, failing_put_does_not_wait_for_the_stream)
{
    struct rdt_put_options put = RDT_INIT(put);
    struct rdt_tensor tensors[1];
    struct rdt_ref ref;

    begin();
    void *stream = gpu_stream_create();
    void *closed = gpu_alloc_chunks(2 * MIB, 2, false);
    struct gpu_gate *gate = gpu_hold(stream);
    tensors[0] = bytes_at(closed, BYTES);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .has_stream = true, .stream = stream, .put = &put};
    put.transport = "none";
    must_refuse(RDT_UNSUPPORTED, "\"none\" is not loaded", rdt_cuda_put(gpu_a, tensors, 1, &options, &ref, &err));
    must(device(0).used_bytes >= BYTES); /* the stream may still write to the buffer */
    gpu_open(gate);
    gpu_stream_wait(stream);
    wait_until(20 * SEC, device(0).used_bytes == 0);

    if (gpu_count() > 1) { /* the default stream of the second GPU stands still, and it copies */
        struct rdt_tensor two[2] = {tensors[0]};
        gpu_use(1);
        void *there = gpu_alloc_chunks(2 * MIB, 2, false);
        two[1] = bytes_at(there, BYTES);
        gate = gpu_hold(NULL);
        gpu_use(0);
        options.stream = NULL;
        must_refuse(RDT_UNSUPPORTED, "\"none\" is not loaded", rdt_cuda_put(gpu_a, two, 2, &options, &ref, &err));
        wait_until(20 * SEC, device(0).used_bytes == 0);
        must(device(1).used_bytes >= BYTES);
        gpu_open(gate);
        gpu_use(1);
        gpu_stream_wait(NULL);
        wait_until(20 * SEC, device(1).used_bytes == 0);
        gpu_free_chunks(there, 2 * MIB, 2);
        gpu_use(0);
        options.stream = stream;
    }

    gate = gpu_hold(NULL); /* a put without a stream: the library's own stream copies */
    options.has_stream = false;
    put.transport = NULL;
    put.timeout_ns = 2 * SEC;
    must_be(RDT_TIMED_OUT, rdt_cuda_put(gpu_a, tensors, 1, &options, &ref, &err));
    must(device(0).used_bytes >= BYTES);
    gpu_open(gate);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    wait_until(20 * SEC, device(0).used_bytes == 0);
    gpu_free_chunks(closed, 2 * MIB, 2);
    end();
}

/* ---- the end ---- */

static void put_with(void *stream, void *addr)
{
    struct rdt_tensor one = bytes_at(addr, BYTES);
    struct rdt_ref ref;
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .has_stream = true, .stream = stream};

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
    begin();
    void *stream = gpu_stream_create();
    void *addr = gpu_alloc_chunks(4 * MIB, 1, true);
    struct gpu_gate *gate = gpu_hold(stream);
    put_with(stream, addr);
    rdt_cuda_close(gpu_a);
    reconnect();
    gpu_open(gate);
    gpu_stream_wait(stream);

    gate = gpu_hold(stream);
    put_with(stream, addr);
    gpu_open(gate);
    rdt_cuda_close(gpu_a);
    gpu_stream_wait(stream);
    reconnect();
    gpu_stream_destroy(stream);
    gpu_free_chunks(addr, 4 * MIB, 1);
    end();
}

/* ---- graphs ---- */

static void release(void *object)
{
    rdt_release(object);
}

static void set_flag(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
}

/* While a stream is captured, a thread may neither wait nor allocate; the library's calls do not count. */
Test(cuda_streams, calls_during_a_capture_do_not_spoil_it)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    void *stream, *other, *addr[2], *allocated;
    struct rdt_tensor one;
    struct rdt_ref ref;
    rdt_object *object;
    atomic_bool came;

    begin();
    atomic_init(&came, false);
    stream = gpu_stream_create();
    other = gpu_stream_create();
    addr[0] = gpu_alloc_chunks(4 * MIB, 1, true);
    addr[1] = gpu_alloc_chunks(4 * MIB, 1, false);
    gpu_fill(addr[0], BYTES, 30);
    gpu_fill(addr[1], BYTES, 31);
    gpu_capture(stream);
    for (unsigned i = 0; i < 2; i++) {
        one = bytes_at(addr[i], BYTES);
        options.has_stream = i == 1;
        options.stream = other;
        must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
        must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
        must_ok(rdt_cuda_after(gpu_b, 0, (void *const[]){stream, other}, 2, release, object, &err));
        let_go(&ref);
    }
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &allocated, &err));
    must_ok(rdt_dealloc(a, allocated, &err));
    options.stream = stream;
    must_refuse(RDT_INVALID, "captured into a CUDA graph", rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    must_ok(rdt_cuda_after(gpu_b, 0, NULL, 0, set_flag, &came, &err));
    wait_until(20 * SEC, atomic_load(&came));
    must(gpu_end_capture(stream));
    gpu_stream_destroy(stream);
    gpu_stream_destroy(other);
    gpu_free_chunks(addr[0], 4 * MIB, 1);
    gpu_free_chunks(addr[1], 4 * MIB, 1);
    end();
}

/* The default stream waits for streams that are not CU_STREAM_NON_BLOCKING. While one of them is captured, a call in the
 * default stream fails and spoils the capture, so none is made. */
Test(cuda_streams, default_stream_is_refused_while_a_stream_that_it_waits_for_is_captured)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_tensor one;
    struct rdt_ref ref;
    void *stream, *addr;

    begin();
    stream = gpu_stream_create_blocking();
    addr = gpu_alloc_chunks(4 * MIB, 1, true);
    gpu_fill(addr, BYTES, 32);
    one = bytes_at(addr, BYTES);
    options.has_stream = true;
    gpu_capture(stream);
    for (unsigned i = 0; i < 2; i++) {
        options.copy = i == 1;
        must_refuse(RDT_INVALID, "captured into a CUDA graph", rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    }
    must_refuse(RDT_INVALID, "captured into a CUDA graph",
                rdt_cuda_after(gpu_a, 0, (void *const[]){NULL}, 1, set_flag, NULL, &err));
    must(gpu_end_capture(stream));
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    gpu_stream_wait(NULL);
    let_go(&ref);
    gpu_stream_destroy(stream);
    gpu_free_chunks(addr, 4 * MIB, 1);
    end();
}

/* A fetched tensor that a stream still reads is released when the stream has come there, and nobody waits for it. */
Test(cuda_streams, release_follows_the_streams_that_use_the_tensor)
{
    void *stream, *addr, *copy;
    rdt_object *object;

    begin();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    gpu_fill(addr, BYTES, 32);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    must_ok(rdt_dealloc(a, addr, &err));
    must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
    let_go(&ref);
    copy = gpu_alloc(BYTES);
    stream = gpu_stream_create();
    struct gpu_gate *gate = gpu_hold(stream);
    gpu_copy_in_stream(copy, tensor_of(object, 0).data, BYTES, stream); /* the fake aborts if the memory is gone by then */
    must_ok(rdt_cuda_after(gpu_b, 0, &stream, 1, release, object, &err));
    must_ok(rdt_ping(b, LONG, &err));
    must(device(0).used_bytes >= BYTES);
    gpu_open(gate);
    gpu_stream_wait(stream);
    must(gpu_holds(copy, BYTES, 32));
    gpu_stream_destroy(stream);
    gpu_free(copy);
    end();
}

/* ---- handles are closed when no kernel runs ---- */

struct two {
    char socket[200];
    struct rdt_ref ref[2];
};

/* While a region lives, it stays mapped. So the producer puts the object anew, until the driver is just closing the handle of
 * its memory, which takes until the gate is opened. Meanwhile other calls of the connection go on. */
static void await_closing(struct actor *self, rdt *conn, rdt_request **request_p, struct rdt_ref *ref)
{
    struct rdt_ref never = {0};
    bool again = true;

    must_ok(rdt_ref_from_id("never", 5, &never, &err));
    while (again) {
        actor_send(self, &again, sizeof again);
        actor_recv(self, ref, sizeof *ref);
        must_be(RDT_TIMED_OUT, rdt_wait_put(conn, &never, 200 * MSEC, &err)); /* a handle lingers for 100 ms */
        must_ok(rdt_fetch_start(conn, ref, 1, NULL, request_p, &err));
        again = rdt_wait(conn, request_p, 1, 1, 200 * MSEC, NULL, NULL, NULL) == RDT_OK;
        if (again)
            rdt_request_destroy(*request_p);
    }
    actor_send(self, &again, sizeof again);
    must_ok(rdt_ping(conn, 20 * SEC, &err));
}

static int release_behind_work(struct actor *self, void *arg)
{
    struct two two;
    rdt_object *first, *other;
    rdt_request *request;
    rdt_cuda *gpu;
    rdt *conn;
    char byte = 1;

    actor_recv(self, &two, sizeof two);
    must(setenv("FAKE_CUDA_FREE_WAITS", "1", 1) == 0);
    join_with_gpu(two.socket, &conn, &gpu);
    must_ok(fetch_to(conn, &two.ref[0], NULL, NULL, &first, &err));
    must_go_by("local/share", first);
    void *stream = gpu_stream_create();
    struct gpu_gate *gate = gpu_hold(stream);
    rdt_release(first);
    must_ok(fetch_to(conn, &two.ref[1], NULL, NULL, &other, &err));
    must_go_by("local/share", other);
    must(gpu_holds(tensor_of(other, 0).data, BYTES, 2));
    must_ok(fetch_to(conn, &two.ref[1], "host", NULL, &first, &err));
    rdt_release(first);
    struct rdt_tensor one = bytes_at(&byte, 1);
    struct rdt_ref put;
    must_ok(rdt_put(conn, &one, 1, NULL, &put, &err));
    must_ok(rdt_free(conn, &put, false, &err));
    rdt_release(other);
    await_closing(self, conn, &request, &two.ref[0]);
    gpu_open(gate);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    must_ok(rdt_wait(conn, &request, 1, 1, 20 * SEC, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &first, &err));
    rdt_request_destroy(request);
    must(gpu_holds(tensor_of(first, 0).data, BYTES, 1));
    rdt_release(first);
    must_ok(fetch_to(conn, &two.ref[0], NULL, NULL, &first, &err)); /* whether or not it has been closed meanwhile */
    must(gpu_holds(tensor_of(first, 0).data, BYTES, 1));
    rdt_release(first);
    rdt_cuda_close(gpu); /* waits for the thread that closes handles */
    rdt_close(conn);
    return 0;
}

Test(cuda_streams, release_behind_a_running_kernel_delays_no_other_call)
{
    struct two two;
    struct actor actor;
    void *memory[2];
    bool again;

    if (gpu_is_real() || handles_are_refused())
        cr_skip_test("needs the fake driver, and one that opens handles of other processes");
    actor_start(&actor, release_behind_work, NULL);
    begin();
    for (unsigned i = 0; i < 2; i++) {
        memory[i] = gpu_alloc_whole(4 * MIB);
        gpu_fill(memory[i], BYTES, i + 1);
        two.ref[i] = put_at(memory[i], BYTES, RDT_CUDA_HANDLE);
    }
    (void)snprintf(two.socket, sizeof two.socket, "%s", node.socket);
    actor_send(&actor, &two, sizeof two);
    for (actor_recv(&actor, &again, sizeof again); again; actor_recv(&actor, &again, sizeof again)) {
        let_go(&two.ref[0]);
        must_ok(rdt_wait_freed(a, &two.ref[0], LONG, &err));
        two.ref[0] = put_at(memory[0], BYTES, RDT_CUDA_HANDLE);
        actor_send(&actor, &two.ref[0], sizeof two.ref[0]);
    }
    actor_wait(&actor);
    for (unsigned i = 0; i < 2; i++) {
        let_go(&two.ref[i]);
        must_ok(rdt_wait_freed(a, &two.ref[i], LONG, &err));
        gpu_free(memory[i]);
    }
    end();
}

/* ---- a GPU that another process keeps busy ---- */

static bool somebody_works(const char *prefix)
{
    char path[240];

    (void)snprintf(path, sizeof path, "%s.0", prefix);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    must(fd >= 0);
    bool works = flock(fd, LOCK_EX | LOCK_NB) != 0;
    (void)close(fd);
    return works;
}

/* The daemon's copies wait for the kernels of the trainer, whose context is another one. */
Test(cuda_streams, fetch_from_a_busy_gpu_ends_at_its_deadline)
{
    char path[200], setting[240];
    void *addr;
    rdt_object *object;
    struct rdt_fetch_options soon = {.struct_size = sizeof soon, .memory = "host", .timeout_ns = 300 * MSEC};

    if (gpu_is_real())
        cr_skip_test("a real GPU lets contexts take turns by itself");
    (void)snprintf(path, sizeof path, "%s/turns-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
    (void)snprintf(setting, sizeof setting, "FAKE_CUDA_TURNS=%s", path);
    must(setenv("FAKE_CUDA_TURNS", path, 1) == 0);
    must(setenv("FAKE_CUDA_FREE_WAITS", "0", 1) == 0); /* a real driver unmaps chunks while kernels run */
    begin_with(setting, (const char *const[]){"--pool-idle=200ms", NULL});
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    gpu_fill(addr, BYTES, 9);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    expect(b, &ref, "host", NULL, 9, "local/copy");
    void *stream = gpu_stream_create();
    struct gpu_gate *gate = gpu_hold(stream);
    wait_until(LONG, somebody_works(path));
    for (unsigned round = 0; round < 3; round++)
        must_be(RDT_TIMED_OUT, rdt_fetch(b, &ref, 1, &soon, &object, &err));
    expect(b, &ref, NULL, NULL, 9, "local/share"); /* needs no work of the GPU */
    char byte = 1;
    struct rdt_tensor one = bytes_at(&byte, 1);
    struct rdt_ref small = put_as(b, &one, 1, NULL);
    must_ok(rdt_free(b, &small, false, &err));
    gpu_open(gate);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    expect(b, &ref, "host", NULL, 9, "local/copy");
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    end();
}
#endif
