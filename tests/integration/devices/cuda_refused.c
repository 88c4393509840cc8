/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory on one node: what the driver refuses, and memory that must not be exported.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_refused)

#ifndef RDT_WITHOUT_CUDA
static void begin_fake(const char *fakes)
{
    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told what to refuse");
    begin_with(fakes, (const char *const[]){"--pool-idle=200ms", NULL});
}

/* A handle of cudaMalloc shares the whole block, with the memory of others in it. */
Test(cuda_refused, small_allocations_are_copied_and_their_block_is_not_shared)
{
    void *addr[2], *base;
    struct rdt_ref ref;

    must(setenv("FAKE_CUDA_SHARED_BLOCKS", "1", 1) == 0);
    begin();
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_cuda_put_options options = RDT_INIT(options);
        struct rdt_tensor one;
        enum rdt_cuda_how how;
        rdt_object *object;
        addr[i] = gpu_alloc(65536);
        gpu_fill(addr[i], 65536, 20 + i);
        one = bytes_at(addr[i], 65536);
        options.how = &how;
        must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
        must_say(how == RDT_CUDA_COPIED, "taken as %d", (int)how);
        must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
        must(gpu_holds(tensor_of(object, 0).data, 65536, 20 + i));
        rdt_release(object);
        let_go(&ref);
        must_be(RDT_UNSUPPORTED, rdt_cuda_offer(gpu_a, addr[i], 65536, &base, NULL, &err));
    }
    gpu_free(addr[0]);
    gpu_free(addr[1]);
    end();
}

Test(cuda_refused, refused_handle_is_a_copy)
{
    void *addr, *base, *buffer, *stream;
    struct rdt_fetch_options how = RDT_INIT(how);
    const struct rdt_tensor *targets;
    struct rdt_tensor target;
    size_t count = 1;
    struct gpu_gate *gate;
    struct rdt_ref ref;
    rdt_object *object;

    begin_fake("FAKE_CUDA_NO_IPC=1");
    addr = gpu_alloc_whole(BYTES);
    gpu_fill(addr, BYTES, 3);
    ref = put_at(addr, BYTES, RDT_CUDA_COPIED);
    expect(b, &ref, NULL, NULL, 3, "local/share");
    gpu_fill(addr, BYTES, 4);
    must_be(RDT_UNSUPPORTED, rdt_cuda_offer(gpu_b, addr, BYTES, &base, NULL, &err));

    /* A target: the fetch writes memory of the daemon, and the caller's stream copies it. */
    must_ok(rdt_cuda_alloc(gpu_b, gpu_uuid(0), BYTES, &buffer, &err));
    target = bytes_at(buffer, BYTES);
    targets = &target;
    how.targets = &targets;
    how.target_counts = &count;
    how.timeout_ns = LONG;
    must_ok(rdt_fetch(b, &ref, 1, &how, &object, &err));
    rdt_release(object);
    stream = gpu_stream_create();
    gate = gpu_hold(stream);
    must_ok(rdt_cuda_deliver(gpu_b, buffer, addr, BYTES, stream, &err));
    must(gpu_holds(addr, BYTES, 4));
    gpu_open(gate);
    gpu_stream_wait(stream);
    must(gpu_holds(addr, BYTES, 3));
    gpu_stream_destroy(stream);
    let_go(&ref);
    must_refuse(RDT_INVALID, "not memory of a GPU", rdt_cuda_deliver(gpu_b, addr, &count, 8, NULL, &err));
    gpu_free(addr);
    end();
}

Test(cuda_refused, chunks_that_cannot_be_exported_again_are_copied)
{
    struct rdt_ref ref, again;
    uint8_t *host = malloc(BYTES);
    rdt_object *object;

    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told what to refuse");
    must(host && setenv("FAKE_CUDA_NO_REEXPORT", "1", 1) == 0);
    begin();
    fill_pattern(host, BYTES, 8);
    ref = put_at(host, BYTES, RDT_CUDA_HOST);
    must_ok(fetch_to(a, &ref, "cuda", gpu_uuid(0), &object, &err));
    again = put_at(tensor_of(object, 0).data, BYTES, RDT_CUDA_COPIED);
    rdt_release(object);
    expect(b, &again, NULL, NULL, 8, "local/share");
    let_go(&ref);
    let_go(&again);
    free(host);
    end();
}

Test(cuda_refused, handle_of_another_gpu_is_refused)
{
    struct rdt_shared shared = {.struct_size = sizeof shared, .memory = "cuda", .kind = RDT_SHARED_LEGACY_IPC};
    char handle[64];
    void *addr;

    begin_fake("FAKE_CUDA_NO_IPC=0");
    if (gpu_count() > 1) {
        addr = gpu_alloc_whole(BYTES);
        gpu_ipc_handle(addr, handle);
        shared.device = gpu_uuid(1);
        shared.handle = handle;
        shared.handle_bytes = sizeof handle;
        shared.bytes = 4 * MIB;
        must_refuse(RDT_INVALID, "another GPU", rdt_import_shared(a, &shared, addr, &err));
        gpu_free(addr);
    }
    end();
}

static void *put_without_a_context(void *arg)
{
    struct rdt_cuda_put_options options = RDT_INIT(options);
    struct rdt_tensor one = bytes_at(arg, BYTES);
    enum rdt_cuda_how how;
    struct rdt_ref ref;

    options.how = &how;
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    must(how == RDT_CUDA_KNOWN || how == RDT_CUDA_CHUNKS);
    let_go(&ref);
    return NULL;
}

/* Memory of which the driver cannot tell is not taken for host memory. */
Test(cuda_refused, query_that_fails_is_an_error)
{
    struct rdt_tensor one;
    struct rdt_ref ref;
    pthread_t thread;
    char *addr;
    int ordinal;

    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told what to refuse");
    must(setenv("FAKE_CUDA_POINTER_CONTEXT", "1", 1) == 0);
    begin();
    addr = gpu_alloc_chunks(4 * MIB, 1, true);
    must(pthread_create(&thread, NULL, put_without_a_context, addr) == 0 && pthread_join(thread, NULL) == 0);
    one = bytes_at(addr, BYTES);
    must(setenv("FAKE_CUDA_POINTER_FAILS", "700", 1) == 0);
    must_refuse(RDT_SYSTEM, "in whose memory", rdt_cuda_put(gpu_a, &one, 1, NULL, &ref, &err));
    must_be(RDT_SYSTEM, rdt_cuda_where(gpu_a, addr, &ordinal, &err));
    must(unsetenv("FAKE_CUDA_POINTER_FAILS") == 0);
    must_ok(rdt_cuda_where(gpu_a, &ordinal, &ordinal, &err));
    must(ordinal == -1);
    gpu_free_chunks(addr, 4 * MIB, 1);
    end();
}
#endif
