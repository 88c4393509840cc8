/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory on one node: where the bytes go, and what a put takes as it is.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda)

#ifndef RDT_WITHOUT_CUDA
Test(cuda, daemons_memory_is_shared_and_copied_to_all_places)
{
    void *addr;

    begin();
    must(!device(0).opened);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    must(device(0).opened && device(0).used_bytes >= BYTES);
    gpu_fill(addr, BYTES, 5);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    expect(b, &ref, NULL, NULL, 5, "local/share");
    expect(a, &ref, NULL, NULL, 5, "local/same");
    expect(b, &ref, "host", NULL, 5, "local/copy");
    if (gpu_count() > 1)
        expect(b, &ref, "cuda", gpu_uuid(1), 5, "local/copy");
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    end();
}

Test(cuda, host_memory_goes_to_a_gpu_and_back)
{
    uint8_t *host = malloc(BYTES), *other = malloc(BYTES);
    struct rdt_ref ref, back, second;
    enum rdt_cuda_how taken;
    rdt_object *object;

    begin();
    must(host && other);
    fill_pattern(host, BYTES, 8);
    ref = put_at(host, BYTES, RDT_CUDA_HOST);
    must_ok(fetch_to(a, &ref, "cuda", gpu_uuid(0), &object, &err));
    must(gpu_holds(tensor_of(object, 0).data, BYTES, 8));
    struct rdt_tensor one = bytes_at(tensor_of(object, 0).data, BYTES);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .how = &taken};
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &back, &err));
    must(taken == RDT_CUDA_CHUNKS || taken == RDT_CUDA_COPIED); /* a driver may refuse to export what was imported */
    rdt_release(object);
    fill_pattern(other, BYTES, 9);
    second = put_at(other, BYTES, RDT_CUDA_HOST);
    expect(a, &second, "cuda", gpu_uuid(0), 9,
           "local/copy"); /* not into that memory, which its client has released apart from this tensor */
    expect(b, &back, "host", NULL, 8, "local/copy");
    let_go(&ref);
    let_go(&back);
    let_go(&second);
    free(host);
    free(other);
    end();
}

Test(cuda, clients_allocation_is_taken_by_its_handle)
{
    begin();
    void *addr = gpu_alloc_whole(BYTES + 4096);
    gpu_fill((char *)addr + 512, BYTES, 6);
    struct rdt_ref ref = put_at((char *)addr + 512, BYTES, RDT_CUDA_HANDLE);
    struct rdt_ref twice = put_at((char *)addr + 512, BYTES, RDT_CUDA_HANDLE); /* the daemon opens the handle once */
    expect(b, &ref, "host", NULL, 6, "local/copy");
    let_go(&ref);
    expect(b, &twice, NULL, NULL, 6, "local/share");
    let_go(&twice);
    gpu_free(addr);
    end();
}

Test(cuda, clients_chunks_are_taken_by_their_fds)
{
    begin();
    char *addr = gpu_alloc_chunks(2 * MIB, 4, true);
    gpu_fill(addr + MIB, BYTES, 7);
    struct rdt_ref ref = put_at(addr + MIB, BYTES, RDT_CUDA_CHUNKS);
    expect(b, &ref, "host", NULL, 7, "local/copy");
    expect(b, &ref, NULL, NULL, 7, "local/share");
    let_go(&ref);
    gpu_free_chunks(addr, 2 * MIB, 4);
    end();
}

/* As in PyTorch's expandable segments, tensors do not end where chunks end. */
Test(cuda, tensors_that_share_chunks_are_put_together)
{
    struct rdt_tensor tensors[3];
    enum rdt_cuda_how how[3];
    struct rdt_ref ref;
    rdt_object *object;

    begin();
    char *addr = gpu_alloc_chunks(2 * MIB, 4, true);
    for (unsigned i = 0; i < 3; i++) {
        tensors[i] = bytes_at(addr + i * (2 * MIB + 4096), 2 * MIB + 4096);
        gpu_fill(tensors[i].data, 2 * MIB + 4096, 8 + i);
    }
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .how = how};
    must_ok(rdt_cuda_put(gpu_a, tensors, 3, &options, &ref, &err));
    must_say(how[0] == RDT_CUDA_CHUNKS && how[1] == RDT_CUDA_KNOWN && how[2] == RDT_CUDA_KNOWN, "taken as %d, %d, %d",
             (int)how[0], (int)how[1], (int)how[2]);
    must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
    must_go_by("local/share", object);
    for (unsigned i = 0; i < 3; i++)
        must(gpu_holds(tensor_of(object, i).data, 2 * MIB + 4096, 8 + i));
    rdt_release(object);
    let_go(&ref);

    { /* a tensor of which the caller has made only a part known is copied */
        void *base;
        must_ok(rdt_cuda_offer(gpu_a, addr, MIB, &base, NULL, &err));
        must_ok(rdt_cuda_put(gpu_a, tensors, 2, &options, &ref, &err));
        must_say(how[0] == RDT_CUDA_COPIED, "taken as %d", (int)how[0]);
        must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
        must(gpu_holds(tensor_of(object, 0).data, 2 * MIB + 4096, 8) &&
             gpu_holds(tensor_of(object, 1).data, 2 * MIB + 4096, 9));
        rdt_release(object);
        let_go(&ref);
        must_ok(rdt_dealloc(a, base, &err));
    }
    gpu_free_chunks(addr, 2 * MIB, 4);
    end();
}

Test(cuda, what_cannot_be_exported_is_copied_in)
{
    begin();
    char *addr = gpu_alloc_chunks(2 * MIB, 2, false);
    gpu_fill(addr, BYTES, 9);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_COPIED);
    gpu_fill(addr, BYTES, 10);
    gpu_free_chunks(addr, 2 * MIB, 2);
    expect(b, &ref, NULL, NULL, 9, "local/share");
    let_go(&ref);
    end();
}

Test(cuda, put_by_copy_takes_nothing_of_the_callers)
{
    enum rdt_cuda_how how;
    struct rdt_ref ref;

    begin();
    void *addr = gpu_alloc(BYTES);
    gpu_fill(addr, BYTES, 11);
    struct rdt_tensor one = bytes_at(addr, BYTES);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .how = &how, .copy = true};
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    must(how == RDT_CUDA_COPIED);
    gpu_fill(addr, BYTES, 12);
    gpu_free(addr);
    expect(b, &ref, NULL, NULL, 11, "local/share");
    let_go(&ref);
    end();
}

Test(cuda, targets_on_a_gpu_are_written)
{
    size_t count = 1;
    enum rdt_cuda_how taken;
    void *from, *to, *base;

    begin();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &from, &err));
    gpu_fill(from, BYTES, 3);
    struct rdt_ref ref = put_at(from, BYTES, RDT_CUDA_KNOWN);
    if (handles_are_refused())
        to = gpu_alloc_chunks(4 * MIB, 1, true);
    else
        to = gpu_alloc_whole(BYTES);
    must_ok(rdt_cuda_offer(gpu_b, to, BYTES, &base, &taken, &err));
    must(taken == (handles_are_refused() ? RDT_CUDA_CHUNKS : RDT_CUDA_HANDLE) && base == to);
    struct rdt_tensor target = bytes_at(to, BYTES);
    const struct rdt_tensor *targets = &target;
    struct rdt_fetch_options how = {
        .struct_size = sizeof how, .targets = &targets, .target_counts = &count, .timeout_ns = LONG};
    rdt_object *object = fetch_as(b, &ref, &how);
    must(gpu_holds(to, BYTES, 3));
    rdt_release(object);
    must_ok(rdt_dealloc(b, base, &err));
    must_ok(rdt_dealloc(a, from, &err));
    let_go(&ref);
    wait_until(20 * SEC, device(0).used_bytes == 0);
    if (handles_are_refused())
        gpu_free_chunks(to, 4 * MIB, 1);
    else
        gpu_free(to);
    end();
}

Test(cuda, gpus_have_names_and_numbers)
{
    const char *uuid;
    int ordinal;

    begin();
    for (unsigned i = 0; i < gpu_count(); i++) {
        must_ok(rdt_cuda_uuid(gpu_a, (int)i, &uuid, &err));
        must(strcmp(uuid, gpu_uuid(i)) == 0);
        must_ok(rdt_cuda_ordinal(gpu_a, uuid, &ordinal, &err));
        must(ordinal == (int)i);
    }
    must_refuse(RDT_NOT_FOUND, "no GPU 99", rdt_cuda_uuid(gpu_a, 99, &uuid, &err));
    must_refuse(RDT_INVALID, "uuid_p is NULL", rdt_cuda_uuid(gpu_a, 0, NULL, &err));
    must_refuse(RDT_INVALID, "ordinal_p is NULL", rdt_cuda_ordinal(gpu_a, gpu_uuid(0), NULL, &err));
    must_refuse(RDT_INVALID, "ordinal_p is NULL", rdt_cuda_where(gpu_a, &uuid, NULL, &err));
    must_refuse(RDT_INVALID, "addr_p is NULL", rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, NULL, &err));
    must_refuse(RDT_INVALID, "base_p is NULL", rdt_cuda_offer(gpu_a, &uuid, 1, NULL, NULL, &err));
    must_refuse(RDT_NOT_FOUND, "GPU-nowhere", rdt_cuda_ordinal(gpu_a, "GPU-nowhere", &ordinal, &err));
    end();
}

/* No mapping of a device is private. Whoever asks for memory of its own would write the object. */
Test(cuda, private_memory_of_an_immutable_object_is_a_copy)
{
    struct rdt_put_options put = {.struct_size = sizeof put, .flags = RDT_PUT_IMMUTABLE};
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .put = &put, .copy = true};
    struct rdt_fetch_options how = {.struct_size = sizeof how, .mode = RDT_FETCH_COW, .memory = "cuda", .timeout_ns = LONG};
    struct rdt_ref ref;

    begin();
    void *addr = gpu_alloc(BYTES);
    gpu_fill(addr, BYTES, 4);
    struct rdt_tensor one = bytes_at(addr, BYTES);
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    rdt_object *object = fetch_as(b, &ref, &how);
    must_go_by("local/copy", object);
    gpu_fill(tensor_of(object, 0).data, BYTES, 5);
    rdt_release(object);
    expect(b, &ref, "cuda", NULL, 4, "local/share");
    let_go(&ref);
    gpu_free(addr);
    end();
}
#endif
