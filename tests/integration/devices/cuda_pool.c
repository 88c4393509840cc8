/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's GPU memory as an allocator for other libraries (rdt_cuda_pool_*).
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_pool)

#ifndef RDT_WITHOUT_CUDA
Test(cuda_pool, pool_gives_memory_that_is_put_without_a_copy)
{
    struct rdt_cuda_pool_info info;

    begin();
    must(!rdt_cuda_pool_alloc(MIB, 0, NULL)); /* no connection serves the pool yet */
    rdt_cuda_pool_info(&info);
    must(info.failures == 1 && info.last.status == RDT_INVALID && strstr(info.last.msg, "no connection serves"));
    rdt_cuda_pool_use(gpu_a);
    void *addr = rdt_cuda_pool_alloc((ptrdiff_t)BYTES, 0, NULL);
    void *other = rdt_cuda_pool_alloc(2 * (ptrdiff_t)MIB, (int)gpu_count() - 1, NULL);
    must(addr && other);
    rdt_cuda_pool_info(&info);
    must(info.blocks == 2 && info.bytes == BYTES + 2 * MIB);
    must(!rdt_cuda_pool_alloc(MIB, 99, NULL) && !rdt_cuda_pool_alloc(0, 0, NULL) &&
         !rdt_cuda_pool_alloc((ptrdiff_t)1 << 50, 0, NULL));
    rdt_cuda_pool_info(&info);
    must(info.failures == 4 && info.last.msg[0]);
    gpu_fill(addr, BYTES, 14);
    struct rdt_ref ref = put_at((char *)addr, BYTES, RDT_CUDA_KNOWN);
    rdt_cuda_pool_free(addr, (ptrdiff_t)BYTES, 0, NULL); /* the object holds the memory */
    expect(b, &ref, NULL, NULL, 14, "local/share");
    let_go(&ref);
    rdt_cuda_pool_free(other, 2 * (ptrdiff_t)MIB, (int)gpu_count() - 1, NULL);
    rdt_cuda_pool_free(NULL, 0, 0, NULL);
    rdt_cuda_pool_info(&info);
    must(info.blocks == 0 && info.bytes == 0);
    addr = rdt_cuda_pool_alloc(1, 0, NULL); /* the memory goes with its connection, and free then only frees the address */
    must(addr);
    rdt_cuda_close(gpu_a);
    rdt_close(a);
    rdt_cuda_pool_free(addr, 1, 0, NULL);
    must(!rdt_cuda_pool_alloc(MIB, 0, NULL));
    node_connect(&node, &a);
    must_ok(rdt_cuda_open(a, &gpu_a, &err));
    end();
}

/* A block is identified by its address alone when it is freed. */
Test(cuda_pool, address_of_a_block_whose_connection_was_closed_is_not_reused)
{
    struct rdt_cuda_pool_info info;

    begin();
    rdt_cuda_pool_use(gpu_a);
    void *old = rdt_cuda_pool_alloc((ptrdiff_t)BYTES, 0, NULL);
    must(old);
    rdt_cuda_close(gpu_a);
    rdt_close(a);
    node_connect(&node, &a);
    must_ok(rdt_cuda_open(a, &gpu_a, &err));
    rdt_cuda_pool_use(gpu_a);
    void *other = rdt_cuda_pool_alloc((ptrdiff_t)BYTES, 0, NULL);
    must(other && other != old);
    gpu_fill(other, BYTES, 15);
    rdt_cuda_pool_free(old, (ptrdiff_t)BYTES, 0, NULL);
    rdt_cuda_pool_info(&info);
    must(info.blocks == 1 && info.bytes == BYTES);
    struct rdt_ref ref = put_at(other, BYTES, RDT_CUDA_KNOWN);
    expect(b, &ref, NULL, NULL, 15, "local/share");
    let_go(&ref);
    rdt_cuda_pool_free(other, (ptrdiff_t)BYTES, 0, NULL);
    rdt_cuda_pool_info(&info);
    must(info.blocks == 0 && info.bytes == 0);
    end();
}

static void *free_it(void *addr)
{
    rdt_cuda_pool_free(*(void **)addr, (ptrdiff_t)BYTES, 0, NULL);
    return NULL;
}

Test(cuda_pool, pool_free_waits_until_no_stream_uses_the_block)
{
    struct rdt_cuda_pool_info info;
    pthread_t thread;

    begin();
    rdt_cuda_pool_use(gpu_a);
    void *stream = gpu_stream_create();
    void *addr = rdt_cuda_pool_alloc((ptrdiff_t)BYTES, 0, NULL);
    void *source = gpu_alloc(BYTES);
    must(addr);
    struct gpu_gate *gate = gpu_hold(stream);
    gpu_copy_in_stream(addr, source, BYTES, stream); /* the fake driver aborts the process if the memory is gone by then */
    must(pthread_create(&thread, NULL, free_it, &addr) == 0);
    do
        rdt_cuda_pool_info(&info);
    while (info.blocks > 0);
    must_ok(rdt_ping(a, LONG, &err));
    must(device(0).used_bytes >= BYTES); /* free_it waits for the stream */
    gpu_open(gate);
    must(pthread_join(thread, NULL) == 0);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    gpu_free(source);
    end();
}
#endif
