/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. librdt calls these functions under its lock, so they wait for no stream, nor for the end of a handle that is being
 * closed: then map returns AGAIN. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cuda/gpu.h"

struct mapped { /* with neither a range nor an opened handle: memory of this process */
    pid_t pid;  /* of the process that has it; none of a child's, which has no context */
    struct cuda_gpu *gpu;
    struct cuda_range range;    /* VMM chunks */
    struct cuda_opened *opened; /* a legacy handle */
    uint64_t chunk_bytes[];
};

#define GRANULE ((size_t)2 << 20)

static struct cuda_handles handles;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init(void)
{
    cuda_handles_init(&handles);
}

void map_after_fork(void)
{
    cuda_handles_init(&handles);
}

static enum rdt_status map_here(struct cuda_driver *driver, const struct rdt_shared *shared, struct mapped *mapped,
                                CUdeviceptr *base_p, struct rdt_error *err)
{
    uint64_t all;
    enum rdt_status status;

    if (shared->kind == RDT_SHARED_LEGACY_IPC && shared->handle_bytes == sizeof(CUipcMemHandle) &&
        (*base_p = export_find_own(driver, shared->handle)) != 0)
        return RDT_OK;
    if (shared->kind == RDT_SHARED_LEGACY_IPC) {
        status =
            cuda_handle_open(&handles, driver, mapped->gpu, shared->handle, shared->handle_bytes, false, &mapped->opened, err);
        if (status != RDT_OK)
            return status;
        *base_p = mapped->opened->base;
        all = mapped->opened->bytes;
    } else if (shared->kind == RDT_SHARED_VMM) {
        memcpy(mapped->chunk_bytes, shared->chunk_bytes, shared->n_fds * sizeof *mapped->chunk_bytes);
        status = cuda_range_map(driver, mapped->gpu, shared->fds, mapped->chunk_bytes, (uint32_t)shared->n_fds, GRANULE,
                                &mapped->range, err);
        if (status != RDT_OK)
            return status;
        *base_p = mapped->range.base;
        all = mapped->range.bytes;
    } else {
        return rdt_error_set(err, RDT_UNSUPPORTED, "rdtd shares GPU memory in a way that this library does not know");
    }
    if (shared->offset <= all && shared->bytes <= all - shared->offset)
        return RDT_OK;
    return rdt_error_set(err, RDT_PROTOCOL, "rdtd shares %llu bytes at %llu of GPU memory that has %llu",
                         (unsigned long long)shared->bytes, (unsigned long long)shared->offset, (unsigned long long)all);
}

static void unmap_here(struct cuda_driver *driver, struct mapped *mapped)
{
    struct entered entered;

    if (mapped->opened) {
        closing_add(&handles, mapped->gpu, mapped->opened);
    } else if (mapped->range.bytes > 0 && gpu_enter(driver, mapped->gpu, &entered, NULL) == RDT_OK) {
        cuda_range_clear(driver, &mapped->range);
        if (!retained_claim(mapped->range.base, mapped->range.bytes))
            cuda_range_unmap(driver, &mapped->range);
        gpu_leave(driver, &entered);
    }
    free(mapped);
}

static enum rdt_status map(void *arg, const struct rdt_shared *shared, void **addr_p, void **mapping_p, struct rdt_error *err)
{
    struct cuda_driver *driver;
    struct entered entered;
    struct mapped *mapped;
    CUdeviceptr base = 0;
    enum rdt_status status = cuda_driver_open(&driver, err);

    (void)pthread_once(&once, init);
    if (status != RDT_OK)
        return status;
    mapped = calloc(1, sizeof *mapped + shared->n_fds * sizeof *mapped->chunk_bytes);
    if (!mapped)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to map GPU memory");
    mapped->pid = getpid();
    status = cuda_gpu_find(driver, shared->device, &mapped->gpu, err);
    if (status == RDT_OK)
        status = gpu_enter(driver, mapped->gpu, &entered, err);
    if (status != RDT_OK) {
        free(mapped);
        return status;
    }
    status = map_here(driver, shared, mapped, &base, err);
    gpu_leave(driver, &entered);
    if (status != RDT_OK) {
        unmap_here(driver, mapped);
        return status;
    }
    *addr_p = (void *)(uintptr_t)(base + shared->offset);
    *mapping_p = mapped;
    closing_look();
    return RDT_OK;
}

static void unmap(void *arg, void *addr, void *mapping)
{
    struct cuda_driver *driver;
    struct mapped *mapped = mapping;

    if (mapped->pid != getpid())
        free(mapped);
    else if (cuda_driver_open(&driver, NULL) == RDT_OK)
        unmap_here(driver, mapped);
}

static bool uses(void *arg, const char *device)
{
    struct cuda_driver *driver;
    struct cuda_gpu *gpu;
    unsigned flags;
    int active = 0;

    return cuda_driver_open(&driver, NULL) == RDT_OK && cuda_gpu_find(driver, device, &gpu, NULL) == RDT_OK &&
           driver->cuDevicePrimaryCtxGetState(gpu->device, &flags, &active) == CUDA_SUCCESS && active;
}

const struct rdt_mapper cuda_mapper = {.struct_size = sizeof cuda_mapper,
                                       .memory = "cuda",
                                       .map = map,
                                       .unmap = unmap,
                                       .uses = uses,
                                       .writer = &cuda_writer,
                                       .copier = &cuda_copier};
