/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. */
#include "client/cuda/gpu.h"

enum rdt_status gpu_enter(struct cuda_driver *driver, struct cuda_gpu *gpu, struct entered *entered_p, struct rdt_error *err)
{
    if (driver->cuCtxGetCurrent(&entered_p->before) != CUDA_SUCCESS)
        entered_p->before = NULL;
    return cuda_gpu_enter(driver, gpu, err);
}

void gpu_leave(struct cuda_driver *driver, const struct entered *entered)
{
    (void)driver->cuCtxSetCurrent(entered->before);
}

struct cuda_gpu *gpu_of(struct cuda_driver *driver, const void *addr)
{
    unsigned kind = 0;
    int ordinal = -1;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)addr;

    if (driver->cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) != CUDA_SUCCESS ||
        kind != CU_MEMORYTYPE_DEVICE ||
        driver->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at) != CUDA_SUCCESS)
        return NULL;
    for (unsigned i = 0; i < driver->n_gpus; i++)
        if (driver->gpu[i].device == ordinal)
            return &driver->gpu[i];
    return NULL;
}
