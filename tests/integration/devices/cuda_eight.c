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
#endif
