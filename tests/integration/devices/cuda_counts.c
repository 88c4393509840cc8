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
    count_calls();
    begin_with(NULL, (const char *const[]){"--pool-idle=4s", NULL});
}

/* ---- a put of many tensors ---- */

#define MANY 5000u
#define OTHER_CALLS (MANY / 10) /* of no tensor: how often it is asked whether a copy has ended depends on the machine */
#define EACH ((size_t)1000)
#define STEP ((size_t)1024)

static struct rdt_ref put_each(char *memory, size_t each, enum rdt_cuda_how expected)
{
    struct rdt_tensor *tensors = calloc(MANY, sizeof *tensors);
    enum rdt_cuda_how *how = calloc(MANY, sizeof *how);
    struct rdt_ref ref;

    must(tensors && how);
    for (unsigned i = 0; i < MANY; i++)
        tensors[i] = bytes_at(memory + i * STEP, each);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .how = how};
    must_ok(rdt_cuda_put(gpu_a, tensors, MANY, &options, &ref, &err));
    for (unsigned i = 0; i < MANY; i++)
        must_say(how[i] == (i == 0 || expected == RDT_CUDA_COPIED ? expected : RDT_CUDA_KNOWN), "tensor %u is taken as %d", i,
                 (int)how[i]);
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

/* The driver is asked about each allocation, and not about each of its tensors. */
static void expect_few_calls(unsigned most)
{
    unsigned calls = fake_gpu_calls(getpid(), 0, NULL);

    must_say(calls <= most, "%u calls of the driver for a put of %u tensors", calls, MANY);
}

/* Memory that cannot be exported: all tensors are copied into one range, with one wait; the next put finds that range in the
 * pool, and nobody clears what is about to be written. */
Test(cuda_counts, put_of_many_tensors_takes_one_range)
{
    struct rdt_ref ref;

    begin_to_count();
    char *memory = gpu_alloc_chunks(6 * MIB, 1, false);
    for (unsigned i = 0; i < MANY; i += 833)
        gpu_fill(memory + i * STEP, EACH, i);
    for (unsigned round = 0; round < 2; round++) {
        fake_gpu_trace_clear();
        ref = put_each(memory, EACH, RDT_CUDA_COPIED);
        must(fake_gpu_calls(node.pid, 0, "cuMemCreate") == (round == 0));
        must(fake_gpu_calls(node.pid, 0, "cuMemsetD8Async") == (round == 0));
        must(fake_gpu_calls(getpid(), 0, "cuMemMap") == 1);
        must(fake_gpu_calls(getpid(), 0, "cuMemcpyAsync") == MANY);
        must(fake_gpu_calls(getpid(), 0, "cuStreamSynchronize") == 1);
        expect_few_calls(MANY + OTHER_CALLS);
        expect_many(&ref);
        let_go(&ref);
        must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    }
    gpu_free_chunks(memory, 6 * MIB, 1);
    end_of_count();
}

Test(cuda_counts, put_of_many_tensors_asks_once_about_their_allocation)
{
    begin_to_count();
    char *memory = gpu_alloc_chunks(6 * MIB, 1, true);
    for (unsigned i = 0; i < MANY; i += 833)
        gpu_fill(memory + i * STEP, EACH, i);
    fake_gpu_trace_clear();
    struct rdt_ref ref = put_each(memory, EACH, RDT_CUDA_CHUNKS);
    must(fake_gpu_calls(getpid(), 0, "cuPointerGetAttribute") <= 4);
    must(fake_gpu_calls(getpid(), 0, "cuMemcpyAsync") == 0);
    expect_few_calls(OTHER_CALLS);
    expect_many(&ref);
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    gpu_free_chunks(memory, 6 * MIB, 1);
    end_of_count();
}

/* Tensors that follow one another without a gap, as an allocator places them: one copy at either side. */
Test(cuda_counts, tensors_without_gaps_are_copied_together)
{
    rdt_object *object;

    begin_to_count();
    char *memory = gpu_alloc_chunks(6 * MIB, 1, false);
    gpu_fill(memory, MANY * STEP, 50);
    fake_gpu_trace_clear();
    struct rdt_ref ref = put_each(memory, STEP, RDT_CUDA_COPIED);
    must(fake_gpu_calls(getpid(), 0, "cuMemcpyAsync") == 1);
    expect_few_calls(OTHER_CALLS);
    fake_gpu_trace_clear();
    must_ok(fetch_to(b, &ref, "cuda", gpu_uuid(1), &object, &err));
    must(fake_gpu_calls(node.pid, 0, "cuMemcpyPeerAsync") == 1);
    must(gpu_holds(tensor_of(object, 0).data, MANY * STEP, 50));
    rdt_release(object);
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    gpu_free_chunks(memory, 6 * MIB, 1);
    end_of_count();
}

/* Some columns of a matrix, to the same GPU and to another one. */
Test(cuda_counts, rows_of_a_slice_are_copied_by_one_call)
{
    enum { ROWS = 600, COLUMNS = 5000, FROM = 700, SOME = 1000 };
    static const int64_t shape[2] = {ROWS, COLUMNS}, start[2] = {0, FROM}, count[2] = {ROWS, SOME};
    static uint8_t whole[ROWS * COLUMNS], part[ROWS * SOME];
    const struct rdt_slice slice = {2, start, count}, *slices = &slice;
    const size_t n = 1;
    void *addr;

    begin_to_count();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), sizeof whole, &addr, &err));
    gpu_fill(addr, sizeof whole, 60);
    gpu_read(whole, addr, sizeof whole);
    struct rdt_tensor matrix = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .data = addr};
    struct rdt_ref ref = put_as(a, &matrix, 1, NULL);
    for (unsigned gpu = 0; gpu < 2; gpu++) {
        struct rdt_fetch_options how = {.struct_size = sizeof how,
                                        .mode = RDT_FETCH_COPY,
                                        .memory = "cuda",
                                        .device = gpu_uuid(gpu),
                                        .slices = &slices,
                                        .slice_counts = &n,
                                        .timeout_ns = LONG};
        fake_gpu_trace_clear();
        rdt_object *object = fetch_as(b, &ref, &how);
        unsigned calls = fake_gpu_calls(node.pid, 0, gpu == 0 ? "cuMemcpy2DAsync" : "cuMemcpy3DPeerAsync");
        must_say(calls == 1, "%u calls to GPU %u", calls, gpu);
        must(fake_gpu_copied(node.pid) == sizeof part);
        gpu_read(part, tensor_of(object, 0).data, sizeof part);
        for (size_t row = 0; row < ROWS; row++)
            must_say(memcmp(part + row * SOME, whole + row * COLUMNS + FROM, SOME) == 0, "row %zu", row);
        rdt_release(object);
    }
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    end_of_count();
}

/* ---- threads ---- */

#define LARGE (72 * MIB) /* three batches of a copy */

/* The loop serves all clients, so it never waits for the driver; and no callback holds up a stream in which copies follow. */
Test(cuda_counts, loop_calls_no_driver_and_streams_no_callback)
{
    rdt_object *object;
    void *addr;

    begin_to_count();
    must(fake_gpu_calls(node.pid, node.pid, "cuInit") >= 1); /* before the loop began: the main thread is found by its id */
    fake_gpu_trace_clear();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), LARGE, &addr, &err));
    gpu_fill(addr, LARGE, 40);
    must(fake_gpu_calls(node.pid, 0, "cuStreamCreate") == 1); /* clears the memory */
    struct rdt_ref ref = put_at(addr, LARGE, RDT_CUDA_KNOWN);
    must_ok(fetch_to(b, &ref, "host", NULL, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, LARGE, 40));
    rdt_release(object);
    must(fake_gpu_calls(node.pid, 0, "cuStreamCreate") == 3); /* the batches took two streams in turn */
    must_ok(fetch_to(b, &ref, "cuda", gpu_uuid(1), &object, &err));
    must(gpu_holds(tensor_of(object, 0).data, LARGE, 40));
    must(fake_gpu_calls(node.pid, 0, "cuStreamCreate") == 5); /* two to the other GPU, where nothing was cleared */
    must(fake_gpu_calls(node.pid, 0, "cuMemsetD8Async") == 1);
    rdt_release(object);
    (void)device(0);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    wait_until(20 * SEC, device(0).used_bytes == 0);
    must(fake_gpu_calls(node.pid, 0, "cuEventRecord") == 6);
    must(fake_gpu_calls(node.pid, 0, "cuStreamAddCallback") + fake_gpu_calls(node.pid, 0, "cuLaunchHostFunc") == 0);
    must(fake_gpu_calls(node.pid, 0, "cuMemUnmap") >= 1);
    must(fake_gpu_calls(node.pid, node.pid, NULL) == 0);
    end_of_count();
}

/* ---- pinned host memory ---- */

static void fetch_large(const struct rdt_ref *ref)
{
    rdt_object *object;

    must_ok(fetch_to(b, ref, "host", NULL, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, LARGE, 41));
    rdt_release(object);
}

/* Pinning takes longer than one unpinned copy, so host memory is pinned when devices have used it twice, and stays so in the
 * cache of its client. */
Test(cuda_counts, memory_that_is_copied_to_again_is_pinned_once)
{
    void *addr;

    begin_to_count();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), LARGE, &addr, &err));
    gpu_fill(addr, LARGE, 41);
    struct rdt_ref ref = put_at(addr, LARGE, RDT_CUDA_KNOWN);
    fake_gpu_trace_clear();
    fetch_large(&ref);
    must(fake_gpu_calls(node.pid, 0, "cuMemHostRegister") == 0);
    must(fake_gpu_calls(node.pid, 0, "cuStreamCreate") == 2); /* of unpinned copies */
    fetch_large(&ref);
    wait_until(20 * SEC, fake_gpu_calls(node.pid, 0, "cuMemHostRegister") == 1);
    wait_until(20 * SEC, (fetch_large(&ref), fake_gpu_calls(node.pid, 0, "cuStreamCreate") == 4)); /* and of pinned ones */
    fetch_large(&ref);
    must(fake_gpu_calls(node.pid, 0, "cuMemHostRegister") == 1);
    must(fake_gpu_calls(node.pid, 0, "cuMemHostUnregister") == 0);
    must(fake_gpu_calls(node.pid, node.pid, NULL) == 0);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    wait_until(20 * SEC, fake_gpu_calls(node.pid, 0, "cuMemHostUnregister") == 1); /* when nobody wants the memory any more */
    end_of_count();
}
#endif
