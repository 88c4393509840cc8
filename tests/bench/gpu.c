/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory through rdtd beside plain CUDA, in the same run: tests/gpu/run bench. Prints GB/s, and the ratio where it has
 * a meaning. */
#include <stdio.h>

#ifdef RDT_WITHOUT_CUDA
int main(void)
{
    (void)fputs("this was built without cuda.h: make cuda-headers\n", stderr);
    return 2;
}
#else
#include "client/cuda/rdt_cuda.h"
#include "tests/bench/bench_gpu.h"

static struct test_node node;
static rdt *a, *b;
static rdt_cuda *gpu_a, *gpu_b;

static double plain(void *to, const void *from, size_t bytes)
{
    double seconds[ROUNDS];

    for (unsigned i = 0; i < ROUNDS; i++)
        seconds[i] = bench_gpu_plain(to, from, bytes);
    return bench_median(seconds, ROUNDS);
}

/* From the start of a fetch until its tensors may be used. */
static double fetched(const struct rdt_ref *ref, enum rdt_fetch_mode mode, const char *memory, const char *uuid)
{
    double seconds[ROUNDS];
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = mode, .memory = memory, .device = uuid};

    for (unsigned i = 0; i < ROUNDS; i++) {
        int64_t since = now_ns();
        rdt_object *object;
        must_ok(rdt_fetch(b, ref, 1, &options, &object, &err));
        seconds[i] = (double)(now_ns() - since) / 1e9;
        rdt_release(object);
    }
    return bench_median(seconds, ROUNDS);
}

static void size(size_t bytes)
{
    void *there, *own = gpu_alloc(bytes), *other = gpu_alloc(bytes), *host = malloc(bytes);
    void *pinned = aligned_alloc(4096, bytes); /* plain copies use it, because those of programs that care for speed do */
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = (int64_t[]){(int64_t)bytes}};
    struct rdt_ref ref, up;

    must(host && pinned);
    gpu_pin(pinned, bytes);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), bytes, &there, &err));
    tensor.data = there;
    must_ok(rdt_cuda_put(gpu_a, &tensor, 1, NULL, &ref, &err));
    bench_gpu_row("share with another process", bytes, fetched(&ref, RDT_FETCH_AUTO, NULL, NULL), 0);
    bench_gpu_row("copy on the GPU", bytes, fetched(&ref, RDT_FETCH_COPY, "cuda", gpu_uuid(0)), plain(other, own, bytes));
    bench_gpu_row("GPU to host", bytes, fetched(&ref, RDT_FETCH_AUTO, "host", NULL), plain(pinned, own, bytes));
    tensor.data = host;
    must_ok(rdt_cuda_put(gpu_a, &tensor, 1, NULL, &up, &err));
    bench_gpu_row("host to GPU", bytes, fetched(&up, RDT_FETCH_AUTO, "cuda", gpu_uuid(0)), plain(own, pinned, bytes));
    must_ok(rdt_free(a, &ref, false, &err));
    must_ok(rdt_free(a, &up, false, &err));
    must_ok(rdt_dealloc(a, there, &err));
    gpu_free(own);
    gpu_free(other);
    gpu_unpin(pinned);
    free(pinned);
    free(host);
}

int main(void)
{
    static const char *env[2];
    struct rdt_device_info devices[16];
    uint64_t held = 0;
    void *first;
    size_t n = 0;

    bench_gpu_begin();
    env[0] = gpu_is_real() ? NULL : fake_gpu_env();
    node_start(&node, &(struct node_options){.env = env, .flags = (const char *const[]){"--pool-idle=10s", NULL}});
    node_connect(&node, &a);
    node_connect(&node, &b);
    must_ok(rdt_cuda_open(a, &gpu_a, &err));
    must_ok(rdt_cuda_open(b, &gpu_b, &err));
    must_ok(rdt_devices(a, devices, 16, &n, &err));
    for (size_t i = 0; i < n && i < 16; i++)
        held += devices[i].overhead_bytes;
    (void)printf("an idle rdtd holds %llu bytes on its %zu GPUs\n", (unsigned long long)held, n);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), MIB, &first, &err));
    must_ok(rdt_devices(a, devices, 16, &n, &err));
    if (devices[0].overhead_bytes == UINT64_MAX)
        (void)puts("its first use of one takes what cannot be told: there is no NVML");
    else
        (void)printf("its first use of one takes %.1f MiB besides\n", (double)devices[0].overhead_bytes / MIB);
    must_ok(rdt_dealloc(a, first, &err));
    gpu_use(0);
    const size_t *sizes = bench_gpu_sizes(&n);
    for (size_t i = 0; i < n; i++)
        size(sizes[i]);
    rdt_cuda_close(gpu_a);
    rdt_cuda_close(gpu_b);
    rdt_close(a);
    rdt_close(b);
    node_stop(&node);
    return 0;
}
#endif
