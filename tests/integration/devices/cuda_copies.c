/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches to targets on the GPU where the object lies: the reader maps the object once and copies it in a stream of its own.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_copies)

#ifndef RDT_WITHOUT_CUDA
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/support/raw.h"

static void begin_gated(const char *more)
{
    make_gate();
    count_calls();
    begin_with(NULL, (const char *const[]){"--pool-idle=200ms", more, NULL});
}

static void end_gated(void)
{
    end_of_count();
    remove_gate();
}

static void fetch_into(const struct rdt_ref *ref, void *into, size_t bytes)
{
    rdt_request *request = start_into(b, ref, into, bytes);
    rdt_object *object = await_object(b, request);

    must_go_by("local/copy", object);
    must_lie(object, 0, "cuda", gpu_uuid(0));
    must(tensor_of(object, 0).data == into);
    rdt_release(object);
    rdt_request_destroy(request);
}

Test(cuda_copies, second_fetch_is_one_copy_of_the_reader)
{
    count_calls();
    begin();
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    fetch_into(&ref, into, BYTES);
    must(gpu_holds(into, BYTES, 3));
    gpu_fill(into, BYTES, 98);
    must_ok(rdt_ping(b, LONG, &err)); /* the release has been handled */
    fake_gpu_trace_clear();
    fetch_into(&ref, into, BYTES);
    must(fake_gpu_calls(getpid(), 0, "cuMemMap") + fake_gpu_calls(getpid(), 0, "cuIpcOpenMemHandle") == 0);
    must(fake_gpu_calls(getpid(), 0, "cuStreamCreate") == 0);
    must(fake_gpu_calls(getpid(), 0, "cuMemcpyAsync") == 1 && fake_gpu_copied(getpid()) == BYTES);
    must_say(fake_gpu_calls(node.pid, 0, NULL) == 0, "the daemon calls the driver");
    must(gpu_holds(into, BYTES, 3));
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&ref);
    end_of_count();
}

/* Those that follow one another without a gap take one copy. */
Test(cuda_copies, many_tensors_are_copied)
{
    enum { N = 2500, HALF = N / 2, STEP = 1024, EACH = 1000 };
    static const int64_t step[1] = {STEP}, each[1] = {EACH};
    static struct rdt_tensor from[N], to[N];
    static uint8_t wanted[N * STEP], got[N * STEP];
    const struct rdt_tensor *targets = to;
    size_t n = N;
    void *addr;

    count_calls();
    begin();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), N * STEP, &addr, &err));
    gpu_fill(addr, N * STEP, 5);
    gpu_read(wanted, addr, N * STEP);
    uint8_t *into = target_on(gpu_b, N * STEP);
    for (unsigned i = 0; i < N; i++) {
        from[i] = (struct rdt_tensor){
            .dtype = RDT_U8, .ndim = 1, .shape = i < HALF ? step : each, .data = (uint8_t *)addr + i * STEP};
        to[i] = from[i];
        to[i].data = into + i * STEP;
    }
    struct rdt_ref ref = put_as(a, from, N, NULL);
    struct rdt_fetch_options how = {.struct_size = sizeof how, .targets = &targets, .target_counts = &n, .timeout_ns = LONG};
    fake_gpu_trace_clear();
    rdt_object *object = fetch_as(b, &ref, &how);
    unsigned copies = fake_gpu_calls(getpid(), 0, "cuMemcpyAsync");
    must_say(copies > HALF && copies < HALF + 8, "%u copies", copies);
    gpu_read(got, into, N * STEP);
    for (unsigned i = 0; i < N; i++) {
        must_say(memcmp(got + i * STEP, wanted + i * STEP, i < HALF ? STEP : EACH) == 0, "tensor %u", i);
    }
    rdt_release(object);
    must_ok(rdt_dealloc(b, into, &err));
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    end_of_count();
}

/* The caller goes on at once. The object stays held, and the target the reader's, until the GPU has made the copy. */
Test(cuda_copies, cancelled_copy_keeps_its_memory_until_the_gpu_has_made_it)
{
    begin_gated(NULL);
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    uint64_t used = device(0).used_bytes;
    rdt_request *request = start_stopped(b, &ref, into, BYTES);
    rdt_cancel(request);
    must_be(RDT_CANCELLED, rdt_request_status(request, &err));
    rdt_request_destroy(request);
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&ref);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(a, &ref, 50 * MSEC, &err));
    must(device(0).used_bytes == used);
    start_gpu();
    must_ok(rdt_wait_freed(a, &ref, LONG, &err)); /* b makes no call */
    end_gated();
}

Test(cuda_copies, deadline_is_met_while_the_gpu_is_busy)
{
    rdt_object *object = NULL;
    struct into fetch;

    begin_gated(NULL);
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    (void)set_target(&fetch, into, BYTES, SEC / 2);
    stop_gpu();
    fake_gpu_trace_clear();
    must_be(RDT_TIMED_OUT, rdt_fetch(b, &ref, 1, &fetch.how, &object, &err));
    must_ok(rdt_ping(b, LONG, &err));
    start_gpu();
    fetch_into(&ref, into, BYTES); /* behind the first copy, or beside it: the bytes are the same */
    must(gpu_holds(into, BYTES, 3));
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&ref);
    end_gated();
}

/* The daemon has met the deadline. The program was busy with other things meanwhile. */
Test(cuda_copies, answer_in_time_counts_although_nobody_has_read_it)
{
    struct into fetch;

    begin_gated(NULL);
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    (void)set_target(&fetch, into, BYTES, SEC / 2);
    int64_t end_ns = now_ns() + SEC;
    rdt_request *request = start_as(b, &ref, &fetch.how);
    wait_until(20 * SEC, now_ns() > end_ns);
    rdt_object *object = await_object(b, request);
    must(gpu_holds(into, BYTES, 3));
    rdt_release(object);
    rdt_request_destroy(request);
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&ref);
    end_gated();
}

/* A request for memory is refused rather than given what a copy reads or writes. */
Test(cuda_copies, pressure_waits_for_the_copy)
{
    void *more = NULL;

    begin_gated("--device-limit=16MiB");
    struct rdt_ref ref = put_new(6 * MIB, 3);
    void *into = target_on(gpu_b, 6 * MIB);
    rdt_request *request = start_stopped(b, &ref, into, 6 * MIB);
    let_go(&ref);
    must_refuse(RDT_LIMIT, "device_limit", rdt_cuda_alloc(gpu_a, gpu_uuid(0), 10 * MIB, &more, &err));
    start_gpu();
    rdt_object *object = await_object(b, request);
    must(gpu_holds(into, 6 * MIB, 3));
    rdt_release(object);
    rdt_request_destroy(request);
    wait_until(20 * SEC, rdt_cuda_alloc(gpu_a, gpu_uuid(0), 10 * MIB, &more, NULL) == RDT_OK);
    must_ok(rdt_dealloc(a, more, &err));
    must_ok(rdt_dealloc(b, into, &err));
    end_gated();
}

static uint64_t used_before;
static atomic_bool started;

/* Nobody but rdt_close asks the GPU now. The daemon does not know of the end before the GPU has copied. */
static void *start_when_close_asks(void *arg)
{
    wait_until(20 * SEC, fake_gpu_calls(getpid(), 0, "cuEventQuery") >= 2);
    must(device(0).used_bytes == used_before);
    atomic_store(&started, true);
    start_gpu();
    return arg;
}

Test(cuda_copies, close_waits_for_the_copy)
{
    pthread_t thread;
    rdt_cuda *gpu;
    rdt *conn;

    begin_gated(NULL);
    connect_with_gpu(&conn, &gpu);
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu, BYTES);
    used_before = device(0).used_bytes;
    (void)start_stopped(conn, &ref, into, BYTES);
    let_go(&ref);
    rdt_cuda_close(gpu);
    fake_gpu_trace_clear();
    must(pthread_create(&thread, NULL, start_when_close_asks, NULL) == 0);
    rdt_close(conn);
    must(atomic_load(&started));
    (void)pthread_join(thread, NULL);
    end_gated();
}

/* It returns, and what the GPU may still read and write stays until the GPU has done so. */
Test(cuda_copies, close_leaves_the_session_beside_a_gpu_that_hangs)
{
    static uint8_t host[MIB];
    rdt_cuda *gpu;
    rdt *conn;

    begin_gated(NULL);
    connect_with_gpu(&conn, &gpu);
    struct rdt_tensor other = VECTOR(RDT_U8, sizeof host, host);
    struct rdt_ref ref = put_new(BYTES, 3), unread = put_one(a, &other, NULL);
    void *into = target_on(gpu, BYTES);
    (void)fetch_one(conn, &unread, RDT_FETCH_AUTO);
    uint64_t used = device(0).used_bytes;
    (void)start_stopped(conn, &ref, into, BYTES);
    let_go(&ref);
    let_go(&unread);
    rdt_cuda_close(gpu);
    rdt_close(conn);
    must_ok(rdt_wait_freed(a, &unread, LONG, &err)); /* no device reads it */
    must_be(RDT_TIMED_OUT, rdt_wait_freed(a, &ref, 50 * MSEC, &err));
    must(device(0).used_bytes == used);
    start_gpu();
    wait_until(20 * SEC, (node_connect(&node, &conn), rdt_close(conn), rdt_wait_freed(a, &ref, MSEC, NULL) == RDT_OK));
    end_gated();
}

/* Nobody reads there that the daemon wants it unmapped. */
Test(cuda_copies, session_that_is_left_keeps_no_memory_of_others_mapped)
{
    rdt_cuda *gpu;
    rdt *conn;

    begin_gated(NULL);
    must(setenv("FAKE_CUDA_FREE_WAITS", "0", 1) == 0); /* a real driver unmaps chunks while kernels run */
    connect_with_gpu(&conn, &gpu);
    struct rdt_ref ref = put_new(BYTES, 3), kept = put_new(BYTES, 4);
    void *into = target_on(gpu, BYTES);
    rdt_release(fetch_one(conn, &kept, RDT_FETCH_SHARE));
    uint64_t used = device(0).used_bytes;
    (void)start_stopped(conn, &ref, into, BYTES);
    let_go(&ref);
    rdt_cuda_close(gpu);
    rdt_close(conn);
    let_go(&kept);
    wait_until(20 * SEC, device(0).used_bytes == used - used / 3);
    start_gpu();
    wait_until(20 * SEC, (node_connect(&node, &conn), rdt_close(conn), rdt_wait_freed(a, &ref, MSEC, NULL) == RDT_OK));
    end_gated();
}

/* The driver waits for the GPU. What the stream still writes stays the session's until it has done so. */
Test(cuda_copies, close_leaves_what_a_stream_still_writes)
{
    rdt_cuda *gpu;
    struct rdt_ref ref;
    rdt *conn;

    begin();
    connect_with_gpu(&conn, &gpu);
    void *addr = gpu_alloc_whole(BYTES);
    gpu_fill(addr, BYTES, 3);
    void *stream = gpu_stream_create();
    struct gpu_gate *gate = gpu_hold(stream);
    struct rdt_tensor one = bytes_at(addr, BYTES);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .has_stream = true, .stream = stream, .copy = true};
    must_ok(rdt_cuda_put(gpu, &one, 1, &options, &ref, &err));
    uint64_t used = device(0).used_bytes;
    must(used > 0);
    rdt_cuda_close(gpu);
    rdt_close(conn);
    must(device(0).used_bytes == used);
    gpu_open(gate);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    wait_until(20 * SEC, (node_connect(&node, &conn), rdt_close(conn), device(0).used_bytes == 0));
    gpu_free(addr);
    end();
}

/* The connection goes on, and its memory with it. */
Test(cuda_copies, close_leaves_pinned_memory_that_the_driver_cannot_unpin)
{
    rdt_cuda *gpu;
    struct rdt_ref ref;
    rdt *conn;

    begin_gated(NULL);
    connect_with_gpu(&conn, &gpu);
    void *addr = gpu_alloc_whole(BYTES), *into = target_on(gpu, BYTES);
    gpu_fill(addr, BYTES, 3);
    struct rdt_tensor one = bytes_at(addr, BYTES);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .to_host = true};
    must_ok(rdt_cuda_put(gpu, &one, 1, &options, &ref, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    ref = put_new(BYTES, 4);
    rdt_request *request = start_stopped(conn, &ref, into, BYTES);
    rdt_request_destroy(request);
    must(setenv("FAKE_CUDA_FREE_WAITS", "1", 1) == 0);
    rdt_cuda_close(gpu);
    must_ok(rdt_ping(conn, LONG, &err));
    let_go(&ref);
    rdt_close(conn);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(a, &ref, 50 * MSEC, &err));
    start_gpu();
    wait_until(20 * SEC, (node_connect(&node, &conn), rdt_close(conn), rdt_wait_freed(a, &ref, MSEC, NULL) == RDT_OK));
    gpu_free(addr);
    end_gated();
}

/* Each wait is for all of them: the first does not hold up the others. */
Test(cuda_copies, copies_of_many_fetches_wait_in_one_stream)
{
    enum { N = 5 };
    struct rdt_ref refs[N];
    rdt_request *requests[N];
    void *into[N];

    begin_gated(NULL);
    for (unsigned i = 0; i < N; i++) {
        refs[i] = put_new(MIB, i);
        into[i] = target_on(gpu_b, MIB);
    }
    stop_gpu();
    fake_gpu_trace_clear();
    for (unsigned i = 0; i < N; i++)
        requests[i] = start_into(b, &refs[i], into[i], MIB);
    expect_waiting(b, requests, N);
    must(fake_gpu_calls(getpid(), 0, "cuStreamCreate") == 1);
    start_gpu();
    for (unsigned i = 0; i < N; i++) {
        rdt_object *object = await_object(b, requests[i]);
        must(gpu_holds(into[i], MIB, i));
        rdt_release(object);
        rdt_request_destroy(requests[i]);
        must_ok(rdt_dealloc(b, into[i], &err));
        let_go(&refs[i]);
    }
    end_gated();
}

/* Nobody calls rdt_wait. */
Test(cuda_copies, deadline_is_met_in_an_event_loop_while_the_gpu_is_busy)
{
    struct into fetch;
    size_t n;

    begin_gated(NULL);
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    (void)set_target(&fetch, into, BYTES, SEC / 2);
    must(rdt_fd(b) >= 0);
    stop_gpu();
    rdt_request *request = start_as(b, &ref, &fetch.how);
    wait_until(20 * SEC, rdt_dispatch(b, &n, NULL) == RDT_OK && rdt_request_status(request, NULL) != RDT_AGAIN);
    must_refuse(RDT_TIMED_OUT, "the device did not copy it", rdt_request_status(request, &err));
    rdt_request_destroy(request);
    start_gpu();
    request = start_into(b, &ref, into, BYTES);
    wait_until(20 * SEC, rdt_dispatch(b, &n, NULL) == RDT_OK && rdt_request_status(request, NULL) != RDT_AGAIN);
    must_ok(rdt_request_status(request, &err));
    must(gpu_holds(into, BYTES, 3));
    rdt_request_destroy(request);
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&ref);
    end_gated();
}

/* The copy is in the stream, whatever happens to the event behind it. */
Test(cuda_copies, copy_whose_event_cannot_be_recorded_is_waited_for)
{
    begin_gated(NULL);
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    stop_gpu();
    fake_gpu_trace_clear();
    gpu_refuse("cuEventRecord", 2);
    rdt_request *request = start_into(b, &ref, into, BYTES);
    expect_waiting(b, &request, 1);
    start_gpu();
    rdt_object *object = await_object(b, request);
    must(gpu_holds(into, BYTES, 3));
    gpu_refuse("cuEventRecord", 0);
    rdt_release(object);
    rdt_request_destroy(request);
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&ref);
    end_gated();
}

/* As in a container with another PID namespace, or at a limit of mappings. */
Test(cuda_copies, daemon_copies_what_the_reader_cannot_map)
{
    count_calls();
    begin();
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    fake_gpu_trace_clear();
    gpu_refuse("cuMemImportFromShareableHandle", 1);
    fetch_into(&ref, into, BYTES);
    must(fake_gpu_calls(getpid(), 0, "cuMemcpyAsync") == 0 && fake_gpu_copied(node.pid) == BYTES);
    gpu_refuse("cuMemImportFromShareableHandle", 0);
    must(gpu_holds(into, BYTES, 3));
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&ref);
    end_of_count();
}

/* An answer that is asked for again is one answer: the memory of the others stays mapped for those that are still to come. */
Test(cuda_copies, fetch_that_is_asked_for_again_ends_no_mapping_of_others)
{
    enum { SOME = 1 << 20 };
    int fd = memfd_create("imported", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct rdt_ref refs[3] = {[1] = ref_named("first"), [2] = ref_named("second")};
    rdt_request *requests[3];
    size_t counts[3] = {1, 0, 0};

    must(fd >= 0 && ftruncate(fd, 2 * SOME) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    uint8_t *memory = mmap(NULL, 2 * SOME, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(memory != MAP_FAILED);
    begin();
    must_ok(rdt_import(a, fd, memory, 2 * SOME, &err));
    fill_pattern(memory, 2 * SOME, 6);
    (void)put_one(a, &VECTOR(RDT_U8, SOME, memory), "first");
    refs[0] = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    struct rdt_tensor target = bytes_at(into, BYTES);
    const struct rdt_tensor *targets[3] = {&target};
    struct rdt_fetch_options how = {.struct_size = sizeof how, .targets = targets, .target_counts = counts, .timeout_ns = LONG};
    gpu_refuse("cuMemImportFromShareableHandle", 1);
    must_ok(rdt_fetch_start(b, refs, 3, &how, requests, &err));
    rdt_release(await_object(b, requests[0]));
    rdt_release(await_object(b, requests[1]));
    gpu_refuse("cuMemImportFromShareableHandle", 0);
    must(gpu_holds(into, BYTES, 3));
    (void)put_one(a, &VECTOR(RDT_U8, SOME, memory + SOME), "second");
    rdt_release(await_object(b, requests[2]));
    for (unsigned i = 0; i < 3; i++)
        rdt_request_destroy(requests[i]);
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&refs[0]);
    let_go(&refs[1]);
    let_go(&refs[2]);
    must_ok(rdt_dealloc(a, memory, &err));
    end();
    must(munmap(memory, 2 * SOME) == 0 && close(fd) == 0);
}

/* What the daemon keeps of the targets is its client's. */
Test(cuda_copies, pinned_targets_are_charged)
{
    struct raw raw;

    begin_gated(NULL);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    uint64_t heap = raw_used(&raw, "heap");
    rdt_request *request = start_stopped(b, &ref, into, BYTES);
    must(raw_used(&raw, "transfers") == 0);
    must(raw_used(&raw, "heap") > heap);
    rdt_request_destroy(request);
    must_be(RDT_TIMED_OUT, rdt_wait_freed_range(b, into, BYTES, 50 * MSEC, &err));
    start_gpu();
    must_ok(rdt_wait_freed_range(b, into, BYTES, LONG, &err));
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&ref);
    raw_close(&raw);
    end_gated();
}

/* The library's thread looks after the copy, which maps nothing. */
Test(cuda_copies, cancelled_copy_of_own_object_ends_although_nobody_calls)
{
    void *addr;

    begin_gated(NULL);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    gpu_fill(addr, BYTES, 3);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    void *into = target_on(gpu_a, BYTES);
    rdt_request *request = start_stopped(a, &ref, into, BYTES);
    rdt_request_destroy(request);
    let_go(&ref);
    must_ok(rdt_dealloc(a, addr, &err));
    must_ok(rdt_dealloc(a, into, &err));
    fake_gpu_trace_clear();
    wait_until(20 * SEC, fake_gpu_calls(getpid(), 0, "cuEventQuery") > 0); /* the thread looks */
    start_gpu();
    wait_until(20 * SEC, device_seen(b, 0).used_bytes == 0);
    end_gated();
}

/* As it would keep that of others, which the daemon then asks it to unmap. */
Test(cuda_copies, reader_of_its_own_object_does_not_keep_it_mapped)
{
    rdt_object *object, *others;
    void *addr;

    begin();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    gpu_fill(addr, BYTES, 3);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    must_ok(fetch_to(b, &ref, NULL, NULL, &others, &err));
    rdt_cuda_close(gpu_b); /* whose thread would read for a, too */
    gpu_b = NULL;
    void *into = target_on(gpu_a, BYTES);
    rdt_request *request = start_into(a, &ref, into, BYTES);
    object = await_object(a, request);
    must(gpu_holds(into, BYTES, 3));
    rdt_release(object);
    rdt_request_destroy(request);
    must_ok(rdt_dealloc(a, into, &err));
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    rdt_release(others);
    wait_until(20 * SEC, device_seen(b, 0).used_bytes == 0); /* a makes no call */
    end();
}

static const char *broken;

static void begin_breakable(void)
{
    static char path[300];

    (void)snprintf(path, sizeof path, "%s/broken-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
    must(setenv("FAKE_CUDA_BREAK", path, 1) == 0);
    broken = path;
    make_gate();
    count_calls();
    begin_with("FAKE_CUDA_BREAK=", (const char *const[]){"--pool-idle=200ms", NULL}); /* not for the daemon */
}

Test(cuda_copies, gpu_that_fails_ends_the_fetch_and_its_hold)
{
    begin_breakable();
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    rdt_request *request = start_stopped(b, &ref, into, BYTES);
    let_go(&ref);
    int fd = open(broken, O_CREAT | O_CLOEXEC | O_WRONLY, 0600);
    must(fd >= 0 && close(fd) == 0);
    start_gpu(); /* it does not do what is queued */
    must_be(RDT_SYSTEM, rdt_wait(b, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    rdt_request_destroy(request);
    must_ok(rdt_dealloc(b, into, &err));
    end_gated();
    must(unlink(broken) == 0);
}

/* The child has no context and no thread. */
Test(cuda_copies, forked_child_closes_at_once)
{
    int status;

    begin_gated(NULL);
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    rdt_request *request = start_stopped(b, &ref, into, BYTES);
    pid_t pid = fork();
    if (pid == 0) {
        rdt_cuda_close(gpu_b);
        rdt_close(b);
        _exit(0);
    }
    must(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    start_gpu();
    rdt_object *object = await_object(b, request);
    must(gpu_holds(into, BYTES, 3));
    rdt_release(object);
    rdt_request_destroy(request);
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&ref);
    end_gated();
}

/* Its copies of the descriptors would keep the session open. */
Test(cuda_copies, forked_child_closes_sessions_that_were_left)
{
    int to_child[2], to_parent[2], status;
    rdt_cuda *gpu;
    rdt *conn;
    char byte;

    begin_gated(NULL);
    must(pipe(to_child) == 0 && pipe(to_parent) == 0);
    connect_with_gpu(&conn, &gpu);
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu, BYTES);
    (void)start_stopped(conn, &ref, into, BYTES);
    let_go(&ref);
    rdt_cuda_close(gpu);
    rdt_close(conn);
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(to_child[1]);
        rdt_cuda_close(gpu_b);
        rdt_close(b);
        (void)!write(to_parent[1], "", 1);
        (void)!read(to_child[0], &byte, 1); /* the test ends */
        _exit(0);
    }
    must(pid > 0 && read(to_parent[0], &byte, 1) == 1);
    start_gpu();
    wait_until(20 * SEC, (node_connect(&node, &conn), rdt_close(conn), rdt_wait_freed(a, &ref, MSEC, NULL) == RDT_OK));
    must(close(to_child[1]) == 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    must(close(to_child[0]) == 0 && close(to_parent[0]) == 0 && close(to_parent[1]) == 0);
    end_gated();
}
#endif
