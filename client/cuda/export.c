/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. Nothing is remembered about an address, because an allocator may put other memory there; only handles are, each
 * of which names one allocation for ever. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cuda/gpu.h"

#define MAX_CHUNKS 4096u
/* The driver puts smaller allocations of cudaMalloc into blocks of this size, and a handle shares the whole block, with what
 * belongs to others. Only allocations that fill their blocks are therefore exported. */
#define BLOCK_BYTES ((CUdeviceptr)2 << 20)

/* ---- handles that this process has exported ---- */

struct own_handle {
    CUipcMemHandle handle;
    CUdeviceptr base;
};

#define OWN_MAX 1024u
static pthread_mutex_t own_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct own_handle own[OWN_MAX]; /* the latest ones; number n is at n % OWN_MAX */
static unsigned n_own;

void export_after_fork(void)
{
    own_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    n_own = 0;
}

static void remember_own(const CUipcMemHandle *handle, CUdeviceptr base)
{
    bool there = false;

    (void)pthread_mutex_lock(&own_mutex);
    for (unsigned i = 0; i < n_own && i < OWN_MAX && !there; i++)
        there = memcmp(&own[i].handle, handle, sizeof *handle) == 0;
    if (!there)
        own[n_own++ % OWN_MAX] = (struct own_handle){*handle, base};
    (void)pthread_mutex_unlock(&own_mutex);
}

/* What lies at that address now must still have this handle. */
CUdeviceptr export_find_own(struct cuda_driver *driver, const void *handle)
{
    CUdeviceptr base = 0;
    CUipcMemHandle now;

    (void)pthread_mutex_lock(&own_mutex);
    for (unsigned i = 0; i < n_own && i < OWN_MAX && !base; i++)
        if (memcmp(&own[i].handle, handle, sizeof now) == 0)
            base = own[i].base;
    (void)pthread_mutex_unlock(&own_mutex);
    if (!base || driver->cuIpcGetMemHandle(&now, base) != CUDA_SUCCESS || memcmp(&now, handle, sizeof now) != 0)
        return 0;
    return base;
}

/* ---- exporting ---- */

void exported_free(struct exported *exported)
{
    for (size_t i = 0; i < exported->shared.n_fds; i++)
        (void)close(exported->fds[i]);
    free(exported->fds);
    free(exported->chunk_bytes);
}

static bool add_room(struct exported *exported)
{
    size_t n = exported->shared.n_fds + 1;
    int *fds = realloc(exported->fds, n * sizeof *fds);
    uint64_t *chunk_bytes;

    if (!fds)
        return false;
    exported->fds = fds;
    chunk_bytes = realloc(exported->chunk_bytes, n * sizeof *chunk_bytes);
    if (chunk_bytes)
        exported->chunk_bytes = chunk_bytes;
    return chunk_bytes;
}

/* Exports the chunk at this address. The driver returns NOT_SUPPORTED or INVALID_VALUE for one that was created without a
 * handle type for exporting. */
static CUresult add_chunk(struct cuda_driver *driver, struct exported *exported, CUdeviceptr base, size_t bytes)
{
    CUmemGenericAllocationHandle handle;
    CUresult result;
    int fd = -1;

    if (!add_room(exported))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = driver->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)base);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    (void)driver->cuMemRelease(handle);
    if (result != CUDA_SUCCESS)
        return result;
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    exported->fds[exported->shared.n_fds] = fd;
    exported->chunk_bytes[exported->shared.n_fds++] = bytes;
    return CUDA_SUCCESS;
}

static CUresult export_chunks(struct cuda_driver *driver, CUdeviceptr addr, size_t bytes, struct exported *exported)
{
    CUdeviceptr base, at = addr;
    size_t chunk;
    CUresult result = CUDA_SUCCESS;

    while (result == CUDA_SUCCESS && at < addr + bytes && exported->shared.n_fds < MAX_CHUNKS) {
        result = driver->cuMemGetAddressRange(&base, &chunk, at);
        if (result == CUDA_SUCCESS)
            result = add_chunk(driver, exported, base, chunk);
        if (result == CUDA_SUCCESS && exported->shared.n_fds == 1)
            exported->base = (void *)(uintptr_t)base;
        if (result == CUDA_SUCCESS) {
            exported->shared.bytes += chunk;
            at = base + chunk;
        }
    }
    return result == CUDA_SUCCESS && at < addr + bytes ? CUDA_ERROR_NOT_SUPPORTED : result;
}

enum rdt_status export_range(struct cuda_driver *driver, const struct cuda_gpu *gpu, void *addr, size_t bytes,
                             struct exported *exported_p, struct rdt_error *err)
{
    CUdeviceptr base, at = (CUdeviceptr)(uintptr_t)addr;
    int legacy = 0; /* the driver writes four bytes */
    size_t all;
    CUresult result;

    *exported_p = (struct exported){
        .shared = {
            .struct_size = sizeof exported_p->shared, .memory = "cuda", .device = gpu->uuid, .kind = RDT_SHARED_LEGACY_IPC}};
    result = driver->cuMemGetAddressRange(&base, &all, at);
    if (result != CUDA_SUCCESS)
        return cuda_gpu_failed(driver, gpu, result, err, "looking up the allocation of a tensor");
    result = driver->cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at);
    if (result != CUDA_SUCCESS)
        return cuda_gpu_failed(driver, gpu, result, err, "asking how the memory of a tensor can be exported");
    if (legacy && at - base + bytes <= all && base % BLOCK_BYTES == 0 && all % BLOCK_BYTES == 0 &&
        driver->cuIpcGetMemHandle(&exported_p->handle, base) == CUDA_SUCCESS) {
        exported_p->base = (void *)(uintptr_t)base;
        exported_p->shared.bytes = all;
        exported_p->shared.handle = &exported_p->handle;
        exported_p->shared.handle_bytes = sizeof exported_p->handle;
        remember_own(&exported_p->handle, base);
        return RDT_OK;
    }
    exported_p->shared.kind = RDT_SHARED_VMM;
    result = export_chunks(driver, at, bytes, exported_p);
    exported_p->shared.fds = exported_p->fds;
    exported_p->shared.chunk_bytes = exported_p->chunk_bytes;
    if (result == CUDA_SUCCESS)
        return RDT_OK;
    exported_free(exported_p);
    (void)cuda_gpu_failed(driver, gpu, result, err, "this memory cannot be exported to another process");
    if (err)
        err->status = RDT_UNSUPPORTED;
    return RDT_UNSUPPORTED;
}
