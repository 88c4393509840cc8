/* SPDX-License-Identifier: Apache-2.0 */
/* Setup and checks of the tests of GPU memory on one node: a daemon and two clients that put and fetch. The tests run end to
 * end, through the plug-in "cuda" and librdt-cuda, on a FAKE driver (tests/fake_cuda). They show how fds, handles, lifetimes
 * and order are handled, and nothing about a GPU. With RDT_TEST_GPU set they run on the machine's own GPUs (make test-gpu).
 * Only cuda*.c includes this header.
 *
 * The leak checker of gcc 12 crashes on thread-local memory that loaded libraries (the driver, NVML, NCCL) have in threads
 * that are alive at the end: such files say "lsan: use_tls=0".
 */
#ifndef TESTS_CUDA_FIXTURE_H
#define TESTS_CUDA_FIXTURE_H

#include <criterion/criterion.h>

#ifdef RDT_WITHOUT_CUDA
#define CUDA_SUITE(suite)                                                            \
    Test(suite, memory)                                                              \
    {                                                                                \
        cr_skip_test("cuda.h was not there when this was built: make cuda-headers"); \
    }
#else
#define CUDA_SUITE(suite) TestSuite(suite, .timeout = 200);

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "client/cuda/rdt_cuda.h"
#include "tests/support/fakes/fake_gpu.h"
#include "tests/support/gpu.h"
#include "tests/support/program.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)
#define BYTES (3 * MIB + 520)

static struct test_node node;
static rdt *a, *b;
static rdt_cuda *gpu_a, *gpu_b;

static inline void load_driver(void)
{
    const char *why;

    if (!gpu_is_real())
        (void)fake_gpu_load();
    must_say(gpu_there(&why), "%s", why);
}

static inline void connect_with_gpu(rdt **conn_p, rdt_cuda **gpu_p)
{
    node_connect(&node, conn_p);
    must_ok(rdt_cuda_open(*conn_p, gpu_p, &err));
}

static inline void connect_clients(void)
{
    connect_with_gpu(&a, &gpu_a);
    connect_with_gpu(&b, &gpu_b);
    gpu_use(0);
}

/* In an actor, which knows no more of the node. */
static inline void join_with_gpu(const char *socket, rdt **conn_p, rdt_cuda **gpu_p)
{
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = socket};

    load_driver();
    must_ok(rdt_connect(&options, conn_p, &err));
    must_ok(rdt_cuda_open(*conn_p, gpu_p, &err));
    gpu_use(0);
}

/* fakes: "NAME=VALUE" for the fake driver of the daemon; NULL: nothing. flags end with NULL. */
static inline void begin_with(const char *fakes, const char *const *flags)
{
    static const char *env[3];

    if (!gpu_is_real()) {
        env[0] = fake_gpu_env();
        env[1] = fakes;
    }
    load_driver();
    node_start(&node, &(struct node_options){.env = env, .flags = flags});
    connect_clients();
}

static inline void begin(void)
{
    begin_with(NULL, (const char *const[]){"--pool-idle=200ms", NULL});
}

static inline struct rdt_device_info device_seen(rdt *conn, unsigned gpu)
{
    struct rdt_device_info devices[16];
    size_t n = 0;

    must_ok(rdt_devices(conn, devices, 16, &n, &err));
    for (size_t i = 0; i < n && i < 16; i++)
        if (strcmp(devices[i].uuid, gpu_uuid(gpu)) == 0)
            return devices[i];
    fail("the daemon does not know %s", gpu_uuid(gpu));
}

static inline struct rdt_device_info device(unsigned gpu)
{
    return device_seen(a, gpu);
}

/* declared: errors that the daemon's log may have, with NULL at the end; NULL: none. */
static inline void end_with(const char *const *declared)
{
    wait_until(20 * SEC, device(0).used_bytes == 0);
    rdt_cuda_close(gpu_a);
    rdt_cuda_close(gpu_b);
    rdt_close(a);
    rdt_close(b);
    node_expect_idle(&node);
    node_check_log(&node, declared);
    node_stop(&node);
}

static inline void end(void)
{
    end_with(NULL);
}

/* From now on the fake driver counts its calls (fake_gpu_calls), of this process and of the daemon. Comes before begin. */
static inline void count_calls(void)
{
    static char path[300];

    if (gpu_is_real())
        cr_skip_test("a real driver does not count its calls");
    (void)snprintf(path, sizeof path, "%s/calls-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
    must(setenv("FAKE_CUDA_TRACE", path, 1) == 0);
}

static inline void end_of_count(void)
{
    end();
    (void)unlink(getenv("FAKE_CUDA_TRACE"));
}

/* Whether the fake driver refuses all legacy handles: what can be put or offered by handle only is then copied. */
static inline bool handles_are_refused(void)
{
    return !gpu_is_real() && fake_gpu_is_unkind("FAKE_CUDA_NO_IPC");
}

static inline enum rdt_cuda_how as_allowed(enum rdt_cuda_how how)
{
    return how == RDT_CUDA_HANDLE && handles_are_refused() ? RDT_CUDA_COPIED : how;
}

static inline struct rdt_ref put_at(void *addr, size_t bytes, enum rdt_cuda_how expected)
{
    struct rdt_tensor one = bytes_at(addr, bytes);
    enum rdt_cuda_how how;
    struct rdt_ref ref;
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .how = &how};

    expected = as_allowed(expected);
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    must_say(how == expected, "taken as %d, not %d", (int)how, (int)expected);
    return ref;
}

/* Fetches the object to that place and expects the pattern and the path. */
static inline void expect(rdt *conn, const struct rdt_ref *ref, const char *memory, const char *uuid, uint32_t seed,
                          const char *path)
{
    const char *in, *on;
    rdt_object *object;

    must_ok(fetch_to(conn, ref, memory, uuid, &object, &err));
    must_go_by(path, object);
    must_ok(rdt_object_place(object, 0, &in, &on, &err));
    must(!memory || strcmp(in, memory) == 0);
    must(!uuid || strcmp(on, uuid) == 0);
    void *data = tensor_of(object, 0).data;
    must(strcmp(in, "cuda") == 0 ? gpu_holds(data, BYTES, seed) : holds_pattern(data, BYTES, seed));
    rdt_release(object);
}

static inline void let_go(struct rdt_ref *ref)
{
    must_ok(rdt_free(a, ref, false, &err));
}

/* ---- a GPU that does no work while another has its turn (FAKE_CUDA_TURNS) ---- */

static char turns[200];
static int turns_fd = -1; /* while it is locked, the GPU does no work */

/* Comes before the daemon starts. */
static inline void make_gate(void)
{
    char path[220];

    if (gpu_is_real())
        cr_skip_test("a real GPU cannot be stopped");
    (void)snprintf(turns, sizeof turns, "%s/turns-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
    must(setenv("FAKE_CUDA_TURNS", turns, 1) == 0);
    (void)snprintf(path, sizeof path, "%s.0", turns);
    turns_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    must(turns_fd >= 0);
}

static inline void remove_gate(void)
{
    (void)close(turns_fd);
    for (unsigned gpu = 0; gpu < 2; gpu++) {
        char path[220];
        (void)snprintf(path, sizeof path, "%s.%u", turns, gpu);
        (void)unlink(path);
    }
}

static inline void stop_gpu(void)
{
    must(flock(turns_fd, LOCK_EX) == 0);
}

static inline void start_gpu(void)
{
    must(flock(turns_fd, LOCK_UN) == 0);
}

/* ---- fetches to targets on the GPU of the object ---- */

static inline struct rdt_ref put_new(size_t bytes, uint32_t seed)
{
    void *addr;

    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), bytes, &addr, &err));
    gpu_fill(addr, bytes, seed);
    struct rdt_ref ref = put_at(addr, bytes, RDT_CUDA_KNOWN);
    must_ok(rdt_dealloc(a, addr, &err));
    return ref;
}

static inline void *target_on(rdt_cuda *gpu, size_t bytes)
{
    void *into;

    must_ok(rdt_cuda_alloc(gpu, gpu_uuid(0), bytes, &into, &err));
    gpu_fill(into, bytes, 99);
    return into;
}

struct into { /* a fetch to one target */
    struct rdt_tensor target;
    const struct rdt_tensor *targets;
    size_t n;
    struct rdt_fetch_options how;
};

static inline const struct rdt_fetch_options *set_target(struct into *fetch, void *into, size_t bytes, int64_t timeout_ns)
{
    *fetch = (struct into){.target = bytes_at(into, bytes), .targets = &fetch->target, .n = 1};
    fetch->how = (struct rdt_fetch_options){
        .struct_size = sizeof fetch->how, .targets = &fetch->targets, .target_counts = &fetch->n, .timeout_ns = timeout_ns};
    return &fetch->how;
}

static inline rdt_request *start_into(rdt *conn, const struct rdt_ref *ref, void *into, size_t bytes)
{
    struct into fetch;

    return start_as(conn, ref, set_target(&fetch, into, bytes, LONG));
}

/* The reader's copies are queued, and wait for the GPU. Needs count_calls. */
static inline void expect_waiting(rdt *conn, rdt_request *const *requests, unsigned n)
{
    wait_until(20 * SEC, rdt_wait(conn, requests, n, n, MSEC, NULL, NULL, NULL) == RDT_TIMED_OUT &&
                             fake_gpu_calls(getpid(), 0, "cuMemcpyAsync") == n);
}

/* The GPU does no work any more, and a copy of the connection waits for it. Needs make_gate and count_calls. */
static inline rdt_request *start_stopped(rdt *conn, const struct rdt_ref *ref, void *into, size_t bytes)
{
    stop_gpu();
    fake_gpu_trace_clear();
    rdt_request *request = start_into(conn, ref, into, bytes);
    expect_waiting(conn, &request, 1);
    return request;
}
#endif
#endif
