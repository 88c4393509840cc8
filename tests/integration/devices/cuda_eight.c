/* SPDX-License-Identifier: Apache-2.0 */
/* A node with eight GPUs, which have peer access to one another, on two sockets: what happens on several of them at once. Only
 * the fake driver can wait until it does.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_eight)

#ifndef RDT_WITHOUT_CUDA
#define GPUS 8u
#define WHOLE (4 * MIB) /* of granules, so that no rest is cleared */

static rdt *each[GPUS];
static rdt_cuda *gpu_each[GPUS];

static void begin_eight(const char *fake)
{
    count_calls();
    must(setenv("FAKE_CUDA_GPUS", "8", 1) == 0);
    begin_with(fake, (const char *const[]){"--pool-idle=200ms", "--worker-threads=8", NULL});
    must(gpu_count() == GPUS);
    for (unsigned i = 0; i < GPUS; i++) {
        node_connect(&node, &each[i]);
        must_ok(rdt_cuda_open(each[i], &gpu_each[i], &err));
    }
}

static void end_eight(void)
{
    must_say(fake_gpu_calls(node.pid, 0, "alone") == 0, "what should have happened at once did not");
    for (unsigned i = 0; i < GPUS; i++) {
        wait_until(20 * SEC, device(i).used_bytes == 0);
        rdt_cuda_close(gpu_each[i]);
        rdt_close(each[i]);
    }
    end_of_count();
}

/* ---- contexts ---- */

static void *allocate(void *arg)
{
    struct rdt_error why;
    unsigned i = (unsigned)(uintptr_t)arg;
    void *addr;

    must_ok(rdt_cuda_alloc(gpu_each[i], gpu_uuid(i), MIB, &addr, &why));
    must_ok(rdt_dealloc(each[i], addr, &why));
    return NULL;
}

/* On an H100 a context takes 113 ms: one after the other, the eighth client would have waited for a second. */
Test(cuda_eight, contexts_are_created_at_once)
{
    pthread_t threads[GPUS];

    begin_eight("FAKE_CUDA_CONTEXTS_MEET=8");
    for (unsigned i = 0; i < GPUS; i++)
        must(pthread_create(&threads[i], NULL, allocate, (void *)(uintptr_t)i) == 0);
    for (unsigned i = 0; i < GPUS; i++)
        must(pthread_join(threads[i], NULL) == 0);
    must(fake_gpu_calls(node.pid, 0, "cuDevicePrimaryCtxRetain") == GPUS);
    end_eight();
}

/* ---- streams and threads ---- */

/* All other GPUs fetch what lies on the first one. */
Test(cuda_eight, copies_to_all_other_gpus_run_at_once)
{
    rdt_request *requests[GPUS];
    rdt_object *object;
    void *addr;

    begin_eight("FAKE_CUDA_COPIES_MEET=7");
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), WHOLE, &addr, &err));
    gpu_fill(addr, WHOLE, 70);
    struct rdt_ref ref = put_at(addr, WHOLE, RDT_CUDA_KNOWN);
    fake_gpu_trace_clear();
    for (unsigned i = 1; i < GPUS; i++) {
        struct rdt_fetch_options how = {
            .struct_size = sizeof how, .mode = RDT_FETCH_COPY, .memory = "cuda", .device = gpu_uuid(i), .timeout_ns = LONG};
        must_ok(rdt_fetch_start(each[i], &ref, 1, &how, &requests[i], &err));
    }
    for (unsigned i = 1; i < GPUS; i++) {
        must_ok(rdt_wait(each[i], &requests[i], 1, 1, LONG, NULL, NULL, &err));
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        must_go_by("local/copy", object);
        must(gpu_holds(tensor_of(object, 0).data, WHOLE, 70));
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    must(fake_gpu_calls(node.pid, 0, "cuMemcpyPeerAsync") == GPUS - 1);
    must(fake_gpu_calls(node.pid, 0, "cuStreamCreate") == GPUS - 1); /* of the first GPU, one to each other */
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    end_eight();
}

static void fetch_copy(const struct rdt_ref *ref, const char *memory, const char *uuid)
{
    rdt_object *object;

    must_ok(fetch_to(b, ref, memory, uuid, &object, &err));
    rdt_release(object);
}

/* On one GPU, what queues copies within it does not hold up those to the host, whether that memory is pinned or not (it is when
 * it has been used twice). */
Test(cuda_eight, each_direction_has_a_thread)
{
    int threads[8];
    void *addr;

    begin_eight(NULL);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(5), BYTES, &addr, &err));
    gpu_fill(addr, BYTES, 71);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    fake_gpu_trace_clear();
    struct rdt_fetch_options within = {
        .struct_size = sizeof within, .mode = RDT_FETCH_COPY, .memory = "cuda", .device = gpu_uuid(5), .timeout_ns = LONG};
    rdt_object *object = fetch_as(b, &ref, &within);
    must(fake_gpu_threads(node.pid, "cuMemcpyAsync", threads, 8) == 1);
    rdt_release(object);
    fetch_copy(&ref, "host", NULL);
    must(fake_gpu_threads(node.pid, "cuMemcpyAsync", threads, 8) == 2);
    wait_until(20 * SEC, (fetch_copy(&ref, "host", NULL), fake_gpu_threads(node.pid, "cuMemcpyAsync", threads, 8) == 3));
    must(fake_gpu_calls(node.pid, 0, "cuMemHostRegister") >= 1);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    end_eight();
}
#endif
