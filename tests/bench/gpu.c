/* GPU memory through rdtd beside plain CUDA, in the same run: tests/gpu/run bench. Prints GB/s, and the ratio where it means something. */
#include <stdio.h>
#include <stdlib.h>

#ifdef RDT_WITHOUT_CUDA
int main(void)
{
    (void)fputs("this was built without cuda.h: make cuda-headers\n", stderr);
    return 2;
}
#else
#include "client/cuda/rdt_cuda.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/gpu.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)
#define ROUNDS 15

static struct test_node node;
static rdt *a, *b;
static rdt_cuda *gpu_a, *gpu_b;

static int by_value(const void *x, const void *y)
{
    double d = *(const double *)x - *(const double *)y;

    return d < 0 ? -1 : d > 0;
}

static double median(double *seconds)
{
    qsort(seconds, ROUNDS, sizeof *seconds, by_value);
    return seconds[ROUNDS / 2];
}

static double plain(void *to, const void *from, size_t bytes)
{
    double seconds[ROUNDS];

    for (unsigned i = 0; i < ROUNDS; i++) {
        int64_t since = now_ns();
        gpu_write(to, from, bytes);
        seconds[i] = (double)(now_ns() - since) / 1e9;
    }
    return median(seconds);
}

/* From the start of a fetch until its tensors may be used. */
static double fetched(const struct rdt_ref *ref, enum rdt_fetch_mode mode, const char *memory, const char *uuid)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    double seconds[ROUNDS];

    options.mode = mode;
    options.memory = memory;
    options.device = uuid;
    for (unsigned i = 0; i < ROUNDS; i++) {
        int64_t since = now_ns();
        rdt_object *object;
        must_ok(rdt_fetch(b, ref, 1, &options, &object, &err));
        seconds[i] = (double)(now_ns() - since) / 1e9;
        rdt_release(object);
    }
    return median(seconds);
}

static void row(const char *what, size_t bytes, double seconds, double reference)
{
    (void)printf("%-44s %6zu MiB %10.1f us %8.2f GB/s", what, bytes / MIB, seconds * 1e6, (double)bytes / seconds / 1e9);
    if (reference > 0)
        (void)printf("   plain %8.2f GB/s   ratio %.2f", (double)bytes / reference / 1e9, reference / seconds);
    (void)puts("");
}

static void size(size_t bytes)
{
    void *there, *own = gpu_alloc(bytes), *other = gpu_alloc(bytes), *host = malloc(bytes);
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = (int64_t[]){(int64_t)bytes}};
    struct rdt_ref ref, up;

    must(host);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), bytes, &there, &err));
    tensor.data = there;
    must_ok(rdt_cuda_put(gpu_a, &tensor, 1, NULL, &ref, &err));
    row("share with another process", bytes, fetched(&ref, RDT_FETCH_AUTO, NULL, NULL), 0);
    row("copy on the GPU", bytes, fetched(&ref, RDT_FETCH_COPY, "cuda", gpu_uuid(0)), plain(other, own, bytes));
    row("GPU to host", bytes, fetched(&ref, RDT_FETCH_AUTO, "host", NULL), plain(host, own, bytes));
    tensor.data = host;
    must_ok(rdt_cuda_put(gpu_a, &tensor, 1, NULL, &up, &err));
    row("host to GPU", bytes, fetched(&up, RDT_FETCH_AUTO, "cuda", gpu_uuid(0)), plain(own, host, bytes));
    must_ok(rdt_free(a, &ref, false, &err));
    must_ok(rdt_free(a, &up, false, &err));
    must_ok(rdt_dealloc(a, there, &err));
    gpu_free(own);
    gpu_free(other);
    free(host);
}

int main(void)
{
    static const char *env[2];
    struct rdt_device_info devices[16];
    const char *why;
    uint64_t held = 0;
    void *first;
    size_t n = 0;

    if (!getenv("RDT_TEST_GPU")) { /* to try this program itself */
        (void)puts("on the FAKE driver: these figures mean nothing");
        env[0] = fake_gpu_env();
        (void)fake_gpu_load();
    }
    if (!gpu_there(&why)) {
        (void)fprintf(stderr, "%s\n", why);
        return 2;
    }
    node_start(&node, &(struct node_options){.env = env});
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
    size(MIB);
    size(64 * MIB);
    size(256 * MIB);
    rdt_cuda_close(gpu_a);
    rdt_cuda_close(gpu_b);
    rdt_close(a);
    rdt_close(b);
    node_stop(&node);
    return 0;
}
#endif
