/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. */
#include <unistd.h>

#include "client/cuda/gpu.h"

enum rdt_status cuda_check(const rdt_cuda *cuda, struct rdt_error *err)
{
    if (!cuda)
        return rdt_error_set(err, RDT_INVALID, "cuda is NULL");
    if (cuda->pid != getpid())
        return rdt_error_set(err, RDT_FORKED,
                             "GPU memory was opened by process %ld, and CUDA does not work in its forked child %ld: start "
                             "processes that use a GPU with exec or spawn",
                             (long)cuda->pid, (long)getpid());
    return RDT_OK;
}

enum rdt_status gpu_enter(struct cuda_driver *driver, struct cuda_gpu *gpu, struct entered *entered_p, struct rdt_error *err)
{
    enum rdt_status status;

    if (driver->cuCtxGetCurrent(&entered_p->before) != CUDA_SUCCESS)
        entered_p->before = NULL;
    entered_p->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)driver->cuThreadExchangeStreamCaptureMode(&entered_p->mode);
    status = cuda_gpu_enter(driver, gpu, err);
    if (status != RDT_OK)
        gpu_leave(driver, entered_p);
    return status;
}

void gpu_leave(struct cuda_driver *driver, const struct entered *entered)
{
    CUstreamCaptureMode mode = entered->mode;

    (void)driver->cuCtxSetCurrent(entered->before);
    (void)driver->cuThreadExchangeStreamCaptureMode(&mode);
}

/* Asks the driver once. INVALID_VALUE: it does not know the address, which is ordinary host memory. */
static CUresult ask_ordinal(struct cuda_driver *driver, CUdeviceptr at, int *ordinal_p)
{
    unsigned kind = 0;
    CUresult result = driver->cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);

    *ordinal_p = -1;
    if (result == CUDA_ERROR_INVALID_VALUE || (result == CUDA_SUCCESS && kind != CU_MEMORYTYPE_DEVICE))
        return CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? driver->cuPointerGetAttribute(ordinal_p, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at) : result;
}

/* Returns a GPU whose primary context exists in this process. NULL: there is none. */
static struct cuda_gpu *active_gpu(struct cuda_driver *driver)
{
    for (unsigned i = 0; i < driver->n_gpus; i++) {
        unsigned flags;
        int active = 0;
        if (driver->cuDevicePrimaryCtxGetState(driver->gpu[i].device, &flags, &active) == CUDA_SUCCESS && active)
            return &driver->gpu[i];
    }
    return NULL;
}

enum rdt_status gpu_find(struct cuda_driver *driver, const void *addr, struct cuda_gpu **gpu_p, struct rdt_error *err)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)addr;
    struct cuda_gpu *active = NULL;
    struct entered entered;
    int ordinal;
    CUresult result = ask_ordinal(driver, at, &ordinal);

    *gpu_p = NULL;
    if (result == CUDA_ERROR_INVALID_CONTEXT) { /* some drivers answer only in a thread with a context */
        active = active_gpu(driver);
        if (!active)
            return RDT_OK; /* a process that uses no GPU has no memory on one */
        if (gpu_enter(driver, active, &entered, err) != RDT_OK)
            return err ? err->status : RDT_SYSTEM;
        result = ask_ordinal(driver, at, &ordinal);
        gpu_leave(driver, &entered);
    }
    if (result != CUDA_SUCCESS)
        return cuda_failed(driver, result, err, "asking in whose memory an address lies");
    for (unsigned i = 0; i < driver->n_gpus; i++)
        if (driver->gpu[i].device == ordinal)
            *gpu_p = &driver->gpu[i];
    return RDT_OK;
}
