/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory on one node: how often, and in which threads, the driver is called. Only the fake driver counts its calls.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_counts)

#ifndef RDT_WITHOUT_CUDA
#include <unistd.h>

static void begin_to_count(void)
{
    static char path[300];

    if (gpu_is_real())
        cr_skip_test("a real driver does not count its calls");
    (void)snprintf(path, sizeof path, "%s/calls-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
    must(setenv("FAKE_CUDA_TRACE", path, 1) == 0);
    begin_with(NULL, (const char *const[]){"--pool-idle=2s", NULL});
}

static void end_of_count(void)
{
    end();
    fake_gpu_trace_clear();
}

/* ---- a put of many tensors ---- */

#define MANY 5000u
#define EACH ((size_t)1000)
#define STEP ((size_t)1024)

static struct rdt_ref put_many(char *memory, enum rdt_cuda_how expected)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_tensor *tensors = calloc(MANY, sizeof *tensors);
    enum rdt_cuda_how *how = calloc(MANY, sizeof *how);
    struct rdt_ref ref;

    must(tensors && how);
    for (unsigned i = 0; i < MANY; i++)
        tensors[i] = bytes_at(memory + i * STEP, EACH);
    options.how = how;
    must_ok(rdt_cuda_put(gpu_a, tensors, MANY, &options, &ref, &err));
    for (unsigned i = 0; i < MANY; i++)
        must(how[i] == expected);
    free(tensors);
    free(how);
    return ref;
}

static void expect_many(const struct rdt_ref *ref)
{
    rdt_object *object;

    must_ok(fetch_to(b, ref, "host", NULL, &object, &err));
    must(rdt_object_count(object) == MANY);
    for (unsigned i = 0; i < MANY; i += 833)
        must(holds_pattern(tensor_of(object, i).data, EACH, i));
    rdt_release(object);
}

/* Memory that cannot be exported: all tensors are copied into one range, with one wait; the next put finds that range in the
 * pool, and nobody clears what is about to be written. */
Test(cuda_counts, put_of_many_tensors_takes_one_range)
{
    struct rdt_ref ref;
    char *memory;

    begin_to_count();
    memory = gpu_alloc_chunks(6 * MIB, 1, false);
    for (unsigned i = 0; i < MANY; i += 833)
        gpu_fill(memory + i * STEP, EACH, i);
    for (unsigned round = 0; round < 2; round++) {
        fake_gpu_trace_clear();
        ref = put_many(memory, RDT_CUDA_COPIED);
        must(fake_gpu_calls(node.pid, 0, "cuMemCreate") == (round == 0));
        must(fake_gpu_calls(node.pid, 0, "cuMemsetD8Async") == (round == 0));
        must(fake_gpu_calls(getpid(), 0, "cuMemMap") == 1);
        must(fake_gpu_calls(getpid(), 0, "cuMemcpyAsync") == MANY);
        must(fake_gpu_calls(getpid(), 0, "cuStreamSynchronize") == 1);
        expect_many(&ref);
        let_go(&ref);
        must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    }
    gpu_free_chunks(memory, 6 * MIB, 1);
    end_of_count();
}
#endif
