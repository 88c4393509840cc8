/* SPDX-License-Identifier: Apache-2.0 */
/* See rdt_cuda.h: names of GPUs, waiting for their streams, and further calls for the layers of other languages. */
#include "client/cuda/gpu.h"

static enum rdt_status by_ordinal(rdt_cuda *cuda, int ordinal, struct cuda_gpu **gpu_p, struct rdt_error *err)
{
    enum rdt_status status = cuda_check(cuda, err);

    if (status != RDT_OK)
        return status;
    for (unsigned i = 0; i < cuda->driver->n_gpus; i++) {
        if (cuda->driver->gpu[i].device == ordinal) {
            *gpu_p = &cuda->driver->gpu[i];
            return RDT_OK;
        }
    }
    return rdt_error_set(err, RDT_NOT_FOUND, "this process sees no GPU %d: it sees %u, numbered from 0", ordinal,
                         cuda->driver->n_gpus);
}

enum rdt_status rdt_cuda_uuid(rdt_cuda *cuda, int ordinal, const char **uuid_p, struct rdt_error *err)
{
    struct cuda_gpu *gpu;
    enum rdt_status status = by_ordinal(cuda, ordinal, &gpu, err);

    if (status == RDT_OK && !uuid_p)
        status = rdt_error_set(err, RDT_INVALID, "uuid_p is NULL, so there is no place for the UUID");
    if (status == RDT_OK)
        *uuid_p = gpu->uuid;
    return status;
}

enum rdt_status rdt_cuda_ordinal(rdt_cuda *cuda, const char *uuid, int *ordinal_p, struct rdt_error *err)
{
    struct cuda_gpu *gpu;
    enum rdt_status status = cuda && uuid && ordinal_p ? cuda_gpu_find(cuda->driver, uuid, &gpu, err)
                                                       : rdt_error_set(err, RDT_INVALID, "cuda, uuid or ordinal_p is NULL");

    if (status == RDT_OK)
        *ordinal_p = gpu->device;
    return status;
}

enum rdt_status rdt_cuda_where(rdt_cuda *cuda, const void *addr, int *ordinal_p, struct rdt_error *err)
{
    struct cuda_gpu *gpu;
    enum rdt_status status = cuda_check(cuda, err);

    if (status == RDT_OK && !ordinal_p)
        status = rdt_error_set(err, RDT_INVALID, "ordinal_p is NULL, so there is no place for the ordinal");
    if (status == RDT_OK)
        status = gpu_find(cuda->driver, addr, &gpu, err);
    if (status == RDT_OK)
        *ordinal_p = gpu ? gpu->device : -1;
    return status;
}

enum rdt_status rdt_cuda_read(rdt_cuda *cuda, const void *from, void *to, size_t bytes, struct rdt_error *err)
{
    struct cuda_gpu *gpu = NULL;
    struct entered entered;
    CUresult result;
    enum rdt_status status = cuda_check(cuda, err);

    if (status == RDT_OK)
        status = gpu_find(cuda->driver, from, &gpu, err);
    if (status == RDT_OK)
        status = gpu ? gpu_enter(cuda->driver, gpu, &entered, err)
                     : rdt_error_set(err, RDT_INVALID, "%p is not memory of a GPU", from);
    if (status != RDT_OK)
        return status;
    result = cuda->driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, CU_STREAM_PER_THREAD);
    if (result == CUDA_SUCCESS)
        result = cuda->driver->cuStreamSynchronize(CU_STREAM_PER_THREAD);
    gpu_leave(cuda->driver, &entered);
    return result == CUDA_SUCCESS ? RDT_OK : cuda_gpu_failed(cuda->driver, gpu, result, err, "copying GPU memory to the host");
}

enum rdt_status rdt_cuda_wait_stream_for(rdt_cuda *cuda, int ordinal, void *stream, int64_t timeout_ns, struct rdt_error *err)
{
    int64_t deadline_ns = clock_deadline_ns(timeout_ns);
    struct cuda_gpu *gpu;
    struct entered entered;
    enum rdt_status status = by_ordinal(cuda, ordinal, &gpu, err);

    if (status == RDT_OK)
        status = gpu_enter(cuda->driver, gpu, &entered, err);
    if (status != RDT_OK)
        return status;
    status = stream_await(cuda->driver, gpu, stream, deadline_ns, err);
    gpu_leave(cuda->driver, &entered);
    return status;
}

enum rdt_status rdt_cuda_wait_stream(rdt_cuda *cuda, int ordinal, void *stream, struct rdt_error *err)
{
    return rdt_cuda_wait_stream_for(cuda, ordinal, stream, RDT_FOREVER, err);
}

/* This library has mapped no memory of a GPU that it has not opened, so there is nothing to wait for, even if another library
 * uses that GPU. */
enum rdt_status rdt_cuda_wait_all(rdt_cuda *cuda, int ordinal, struct rdt_error *err)
{
    struct cuda_gpu *gpu;
    struct entered entered;
    CUresult result;
    enum rdt_status status = by_ordinal(cuda, ordinal, &gpu, err);

    if (status != RDT_OK || !cuda_gpu_is_open(gpu))
        return status;
    status = gpu_enter(cuda->driver, gpu, &entered, err);
    if (status != RDT_OK)
        return status;
    result = cuda->driver->cuCtxSynchronize();
    gpu_leave(cuda->driver, &entered);
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return rdt_error_set(err, RDT_INVALID,
                             "a stream of GPU %s is being captured into a CUDA graph: wait before or after that", gpu->uuid);
    return result == CUDA_SUCCESS ? RDT_OK : cuda_gpu_failed(cuda->driver, gpu, result, err, "waiting for all streams");
}
