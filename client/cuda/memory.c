/* SPDX-License-Identifier: Apache-2.0 */
/* See rdt_cuda.h: GPU memory that the daemon allocates for this process, or that this process makes known to it. */
#include <stdlib.h>

#include "client/cuda/gpu.h"

enum rdt_status gpu_memory_alloc(rdt_cuda *cuda, const char *device, size_t bytes, int64_t timeout_ns, bool written_whole,
                                 void **addr_p, struct rdt_error *err)
{
    struct rdt_alloc_options options = RDT_INIT(options);

    options.memory = "cuda";
    options.device = !device && cuda->driver->n_gpus == 1 ? cuda->driver->gpu[0].uuid : device;
    options.call_timeout_ns = timeout_ns;
    options.written_whole = written_whole;
    return rdt_alloc_with(cuda->conn, bytes, &options, addr_p, err);
}

enum rdt_status rdt_cuda_alloc(rdt_cuda *cuda, const char *device, size_t bytes, void **addr_p, struct rdt_error *err)
{
    enum rdt_status status = cuda_check(cuda, err);

    return status == RDT_OK ? gpu_memory_alloc(cuda, device, bytes, 0, false, addr_p, err) : status;
}

enum rdt_status rdt_cuda_offer(rdt_cuda *cuda, void *addr, size_t bytes, void **base_p, enum rdt_cuda_how *how_p,
                               struct rdt_error *err)
{
    struct cuda_gpu *gpu = NULL;
    enum rdt_cuda_how how;
    struct entered entered;
    size_t all;
    enum rdt_status status = cuda_check(cuda, err);

    if (status == RDT_OK)
        status = gpu_find(cuda->driver, addr, &gpu, err);

    if (status != RDT_OK)
        return status;
    if (!gpu || !base_p)
        return rdt_error_set(err, RDT_INVALID, "%p is not memory of a GPU", addr);
    status = gpu_enter(cuda->driver, gpu, &entered, err);
    if (status != RDT_OK)
        return status;
    status = offers_import(cuda, gpu, addr, bytes, 0, base_p, &all, &how, err);
    gpu_leave(cuda->driver, &entered);
    if (status == RDT_OK && how_p)
        *how_p = how;
    return status;
}

enum rdt_status rdt_cuda_deliver(rdt_cuda *cuda, void *take_buffer, void *to, size_t bytes, void *stream, struct rdt_error *err)
{
    void **buffers = malloc(sizeof *buffers);
    struct completion *completion = NULL;
    struct cuda_gpu *gpu = NULL;
    struct entered entered;
    CUresult result;
    enum rdt_status status = buffers ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory to deliver a tensor");

    if (status == RDT_OK)
        status = cuda_check(cuda, err);
    if (status == RDT_OK)
        status = gpu_find(cuda->driver, to, &gpu, err);
    if (status == RDT_OK && !gpu)
        status = rdt_error_set(err, RDT_INVALID, "%p is not memory of a GPU", to);
    if (status == RDT_OK && stream_is_captured(cuda->driver, stream))
        status =
            rdt_error_set(err, RDT_INVALID, "the stream is being captured into a CUDA graph: deliver before or after that");
    if (status == RDT_OK)
        status = gpu_enter(cuda->driver, gpu, &entered, err);
    if (status != RDT_OK) {
        free(buffers);
        return status;
    }
    status = completion_create(&((struct handle *)cuda)->streams, 1, &completion, err);
    if (status != RDT_OK) {
        gpu_leave(cuda->driver, &entered);
        free(buffers);
        return status;
    }
    buffers[0] = take_buffer;
    result = cuda->driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)take_buffer, bytes, stream);
    if (result != CUDA_SUCCESS) {
        status = cuda_gpu_failed(cuda->driver, gpu, result, err, "copying a tensor to its target");
        completion_destroy(completion);
        free(buffers);
    } else if (completion_enqueue(completion, stream, NULL, buffers, 1, NULL) != RDT_OK) {
        (void)cuda->driver->cuStreamSynchronize(stream);
        (void)rdt_dealloc_soon(cuda->conn, take_buffer, NULL);
        free(buffers);
    }
    gpu_leave(cuda->driver, &entered);
    return status;
}
