/* SPDX-License-Identifier: Apache-2.0 */
/* See rdt_cuda.h: GPU memory that the daemon allocates for this process, or that this process makes known to it. */
#include "client/cuda/gpu.h"

enum rdt_status gpu_memory_alloc(rdt_cuda *cuda, const char *device, size_t bytes, int64_t timeout_ns, void **addr_p,
                                 struct rdt_error *err)
{
    struct rdt_alloc_options options = RDT_INIT(options);

    options.memory = "cuda";
    options.device = !device && cuda->driver->n_gpus == 1 ? cuda->driver->gpu[0].uuid : device;
    options.call_timeout_ns = timeout_ns;
    return rdt_alloc_with(cuda->conn, bytes, &options, addr_p, err);
}

enum rdt_status rdt_cuda_alloc(rdt_cuda *cuda, const char *device, size_t bytes, void **addr_p, struct rdt_error *err)
{
    return cuda ? gpu_memory_alloc(cuda, device, bytes, 0, addr_p, err) : rdt_error_set(err, RDT_INVALID, "cuda is NULL");
}

enum rdt_status rdt_cuda_offer(rdt_cuda *cuda, void *addr, size_t bytes, void **base_p, enum rdt_cuda_how *how_p,
                               struct rdt_error *err)
{
    struct cuda_gpu *gpu = cuda ? gpu_of(cuda->driver, addr) : NULL;
    enum rdt_cuda_how how;
    struct entered entered;
    size_t all;
    enum rdt_status status;

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
