/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of GPU memory, as trainers publish weights: on the GPU, and in pinned host memory (to_host). The producer's stream
 * copies each byte once.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_publish)

#ifndef RDT_WITHOUT_CUDA
#include <unistd.h>

#define UNSEALED (RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED)
#define TENSORS 300u
#define STEP ((size_t)4096)
#define EACH ((size_t)4096 - 64) /* with a gap, so each is a copy of its own */

static unsigned copies_of(pid_t pid)
{
    return fake_gpu_calls(pid, 0, "cuMemcpyAsync") + fake_gpu_calls(pid, 0, "cuMemcpyPeerAsync") +
           fake_gpu_calls(pid, 0, "cuMemcpy2DAsync");
}

/* Puts `bytes` at addr, to host memory, or copied on its GPU. stream NULL: none. */
static struct rdt_ref publish_at(void *addr, size_t bytes, bool to_host, void *stream, enum rdt_visibility visibility)
{
    struct rdt_put_options put = {.struct_size = sizeof put, .flags = UNSEALED, .visibility = visibility};
    struct rdt_tensor one = bytes_at(addr, bytes);
    enum rdt_cuda_how how;
    struct rdt_cuda_put_options options = {.struct_size = sizeof options,
                                           .put = &put,
                                           .has_stream = stream,
                                           .stream = stream,
                                           .how = &how,
                                           .copy = !to_host,
                                           .to_host = to_host};
    struct rdt_ref ref;

    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    must_say(how == (to_host ? RDT_CUDA_TO_HOST : RDT_CUDA_COPIED), "taken as %d", (int)how);
    return ref;
}

/* ---- in host memory ---- */

Test(cuda_publish, snapshot_in_host_memory_is_put_before_its_stream_has_made_the_copy)
{
    begin();
    void *stream = gpu_stream_create(), *addr = gpu_alloc(BYTES);
    gpu_fill(addr, BYTES, 3);
    struct gpu_gate *gate = gpu_hold(stream);
    struct rdt_ref ref = publish_at(addr, BYTES, true, stream, RDT_VISIBLE_TO_OWNER);
    rdt_request *request = start_one(b, &ref, LONG);
    must_ok(rdt_ping(a, LONG, &err));
    must_be(RDT_TIMED_OUT, rdt_wait(b, &request, 1, 1, 50 * MSEC, NULL, NULL, &err));
    must(device(0).used_bytes == 0);
    gpu_open(gate);
    rdt_object *object = await_object(b, request);
    must_go_by("local/share", object);
    must_lie(object, 0, "host", "");
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 3));
    rdt_release(object);
    rdt_request_destroy(request);
    let_go(&ref);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    gpu_free(addr);
    end();
}

static void expect_pattern(const struct rdt_ref *ref, size_t bytes, uint32_t seed)
{
    rdt_object *object = fetch_one(b, ref, RDT_FETCH_AUTO);

    must(holds_pattern(tensor_of(object, 0).data, bytes, seed));
    rdt_release(object);
}

/* Two versions exist at a time, so two ranges of memory are pinned, whatever the number of versions. The daemon copies nothing,
 * and calls no driver. */
Test(cuda_publish, hundred_versions_in_host_memory_pin_two_ranges)
{
    struct rdt_ref before = {0};
    uint64_t most = 0;

    count_calls();
    begin();
    void *stream = gpu_stream_create(), *addr = gpu_alloc(BYTES);
    fake_gpu_trace_clear();
    for (uint32_t step = 1; step <= 100; step++) {
        gpu_fill(addr, BYTES, step);
        struct rdt_ref ref = publish_at(addr, BYTES, true, stream, RDT_VISIBLE_TO_OWNER);
        must_ok(rdt_publish(a, "weights", &ref, NULL, NULL, &err));
        let_go(&ref);
        if (step > 1)
            must_ok(rdt_wait_freed(a, &before, LONG, &err));
        if (step % 10 == 1)
            expect_pattern(&ref, BYTES, step);
        before = ref;
        uint64_t used = node_now(&node).memory_bytes;
        most = used > most ? used : most;
    }
    must_say(most <= 2 * BYTES + MIB, "%llu bytes for versions of %zu", (unsigned long long)most, BYTES);
    must(fake_gpu_calls(getpid(), 0, "cuMemHostRegister") == 2);
    must(copies_of(getpid()) == 100 + 100 && copies_of(node.pid) == 0); /* and gpu_fill's */
    must_ok(rdt_ref_from_name("weights", 0, NULL, &before, &err));
    must_ok(rdt_unpublish(a, &before, &err));
    gpu_stream_destroy(stream);
    gpu_free(addr);
    end_of_count();
}

/* Others do not depend on the library's word: the daemon seals a copy, and the pinned memory serves the next put at once. */
Test(cuda_publish, snapshot_in_host_memory_that_others_may_see_is_sealed)
{
    count_calls();
    begin();
    void *stream = gpu_stream_create(), *addr = gpu_alloc(BYTES);
    struct rdt_ref refs[3];
    fake_gpu_trace_clear();
    for (uint32_t i = 0; i < 3; i++) {
        gpu_fill(addr, BYTES, 10 + i);
        refs[i] = publish_at(addr, BYTES, true, stream, RDT_VISIBLE_TO_ALL);
        expect_pattern(&refs[i], BYTES, 10 + i); /* waits until the daemon has made its copy */
    }
    must(fake_gpu_calls(getpid(), 0, "cuMemHostRegister") == 1);
    for (uint32_t i = 0; i < 3; i++) {
        expect_pattern(&refs[i], BYTES, 10 + i);
        let_go(&refs[i]);
    }
    gpu_stream_destroy(stream);
    gpu_free(addr);
    end_of_count();
}

Test(cuda_publish, snapshot_in_host_memory_without_a_stream_has_its_bytes)
{
    begin();
    void *addr = gpu_alloc_chunks(2 * MIB, 2, true); /* the daemon could map it, and is not asked to */
    gpu_fill(addr, BYTES, 6);
    struct rdt_ref ref = publish_at(addr, BYTES, true, NULL, RDT_VISIBLE_TO_OWNER);
    gpu_fill(addr, BYTES, 7);
    expect_pattern(&ref, BYTES, 6);
    let_go(&ref);
    gpu_free_chunks(addr, 2 * MIB, 2);
    end();
}

/* Unused memory of another size makes room. */
Test(cuda_publish, pinned_memory_that_no_object_uses_makes_room)
{
    begin_with(NULL, (const char *const[]){"--pool-idle=200ms", "--client-max-bytes=12MiB", NULL});
    void *addr = gpu_alloc(10 * MIB);
    gpu_fill(addr, 10 * MIB, 1);
    struct rdt_ref ref = publish_at(addr, 6 * MIB, true, NULL, RDT_VISIBLE_TO_OWNER);
    struct rdt_tensor one = bytes_at(addr, 10 * MIB);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .to_host = true};
    struct rdt_ref larger;
    must_refuse(RDT_LIMIT, "client_max_bytes", rdt_cuda_put(gpu_a, &one, 1, &options, &larger, &err));
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &larger, &err));
    expect_pattern(&larger, 10 * MIB, 1);
    let_go(&larger);
    gpu_free(addr);
    end();
}

Test(cuda_publish, memory_that_the_driver_does_not_pin_is_copied_to)
{
    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told what to refuse");
    must(setenv("FAKE_CUDA_REGISTER_REFUSED", "1", 1) == 0);
    begin();
    void *addr = gpu_alloc(BYTES);
    struct rdt_ref refs[4];
    for (uint32_t i = 0; i < 4; i++) { /* the third is not pinned */
        gpu_fill(addr, BYTES, i);
        refs[i] = publish_at(addr, BYTES, true, NULL, RDT_VISIBLE_TO_OWNER);
    }
    for (uint32_t i = 0; i < 4; i++) {
        expect_pattern(&refs[i], BYTES, i);
        let_go(&refs[i]);
    }
    gpu_free(addr);
    end();
}

/* ---- on the GPU ---- */

static void expect_on_gpu(const struct rdt_ref *ref, enum rdt_fetch_mode mode, uint32_t seed, const char *path)
{
    struct rdt_fetch_options how = {.struct_size = sizeof how, .mode = mode, .memory = "cuda", .timeout_ns = LONG};
    rdt_object *object = fetch_as(b, ref, &how);

    must_go_by(path, object);
    must(gpu_holds(tensor_of(object, 0).data, BYTES, seed));
    rdt_release(object);
}

/* The library gives its mapping up, and readers of this user share the memory. */
Test(cuda_publish, snapshot_on_a_gpu_is_copied_once)
{
    count_calls();
    begin();
    void *stream = gpu_stream_create();
    char *addr = gpu_alloc(TENSORS * STEP);
    struct rdt_tensor tensors[TENSORS];
    gpu_fill(addr, TENSORS * STEP, 2);
    for (unsigned i = 0; i < TENSORS; i++)
        tensors[i] = bytes_at(addr + i * STEP, EACH);
    struct rdt_put_options put = {.struct_size = sizeof put, .flags = UNSEALED};
    struct rdt_cuda_put_options options = {
        .struct_size = sizeof options, .put = &put, .has_stream = true, .stream = stream, .copy = true};
    struct rdt_ref ref;
    fake_gpu_trace_clear();
    must_ok(rdt_cuda_put(gpu_a, tensors, TENSORS, &options, &ref, &err));
    must_ok(rdt_publish(a, "weights", &ref, NULL, NULL, &err));
    must(copies_of(getpid()) == TENSORS && copies_of(node.pid) == 0);
    must(stat_of(a, &ref).snapshot);
    wait_until(20 * SEC, rdt_ping(a, LONG, NULL) == RDT_OK && fake_gpu_calls(getpid(), 0, "cuMemUnmap") == 1);
    rdt_object *object = fetch_one(b, &ref, RDT_FETCH_SHARE);
    must_go_by("local/share", object);
    must(copies_of(getpid()) == TENSORS && copies_of(node.pid) == 0);
    rdt_release(object);
    struct rdt_ref name;
    must_ok(rdt_ref_from_name("weights", 0, NULL, &name, &err));
    must_ok(rdt_unpublish(a, &name, &err));
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    gpu_stream_destroy(stream);
    gpu_free(addr);
    end_of_count();
}

/* Others do not depend on the library's word, and nobody gets memory that he may write when he asked for memory of his own. */
Test(cuda_publish, snapshot_on_a_gpu_that_others_may_see_is_copied_by_the_daemon)
{
    count_calls();
    begin();
    void *addr = gpu_alloc(BYTES);
    gpu_fill(addr, BYTES, 4);
    fake_gpu_trace_clear();
    struct rdt_ref own = publish_at(addr, BYTES, false, NULL, RDT_VISIBLE_TO_OWNER);
    must(copies_of(node.pid) == 0);
    struct rdt_ref shown = publish_at(addr, BYTES, false, NULL, RDT_VISIBLE_TO_ALL);
    must(copies_of(node.pid) > 0);
    expect_on_gpu(&own, RDT_FETCH_SHARE, 4, "local/share");
    expect_on_gpu(&shown, RDT_FETCH_AUTO, 4, "local/copy");
    let_go(&own);
    let_go(&shown);
    gpu_free(addr);
    end_of_count();
}

Test(cuda_publish, hundred_versions_on_a_gpu_take_the_memory_of_two)
{
    struct rdt_ref before = {0};
    uint64_t most = 0;

    begin();
    void *stream = gpu_stream_create(), *addr = gpu_alloc(BYTES);
    for (uint32_t step = 1; step <= 100; step++) {
        gpu_fill(addr, BYTES, step);
        struct rdt_ref ref = publish_at(addr, BYTES, false, stream, RDT_VISIBLE_TO_OWNER);
        must_ok(rdt_publish(a, "weights", &ref, NULL, NULL, &err));
        let_go(&ref);
        if (step > 1)
            must_ok(rdt_wait_freed(a, &before, LONG, &err));
        if (step % 10 == 1)
            expect_on_gpu(&ref, RDT_FETCH_COPY, step, "local/copy");
        before = ref;
        uint64_t used = device(0).used_bytes;
        most = used > most ? used : most;
    }
    must_say(most <= 5 * 4 * MIB, "%llu bytes for versions of %zu", (unsigned long long)most, BYTES); /* two, and a reader's */
    must_ok(rdt_ref_from_name("weights", 0, NULL, &before, &err));
    must_ok(rdt_unpublish(a, &before, &err));
    gpu_stream_destroy(stream);
    gpu_free(addr);
    end();
}
#endif
