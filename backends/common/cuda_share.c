/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda_share.h. */
#include "backends/common/cuda_share.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/state_table.h"

enum rdt_status cuda_gpu_failed(const struct cuda_driver *driver, const struct cuda_gpu *gpu, CUresult result,
                                struct rdt_error *err, const char *what)
{
    char text[384];

    (void)snprintf(text, sizeof text, "%s (%s): %s", gpu->uuid, gpu->name, what);
    return cuda_failed(driver, result, err, text);
}

/* ---- chunks ---- */

CUresult cuda_range_reserve(struct cuda_driver *driver, size_t bytes, size_t granule, const uint64_t *chunk_bytes,
                            struct cuda_range *range_p)
{
    CUresult result;

    *range_p = (struct cuda_range){.chunk_bytes = chunk_bytes};
    result = driver->cuMemAddressReserve(&range_p->base, bytes, granule, 0, 0);
    if (result == CUDA_SUCCESS)
        range_p->bytes = bytes;
    return result;
}

CUresult cuda_range_add(struct cuda_driver *driver, struct cuda_range *range, CUmemGenericAllocationHandle handle)
{
    CUdeviceptr at = range->base;
    CUresult result;

    for (uint32_t i = 0; i < range->n_mapped; i++)
        at += range->chunk_bytes[i];
    result = driver->cuMemMap(at, range->chunk_bytes[range->n_mapped], 0, handle, 0);
    range->n_mapped += result == CUDA_SUCCESS;
    return result;
}

CUresult cuda_range_allow(struct cuda_driver *driver, const struct cuda_range *range, CUdevice device)
{
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    return driver->cuMemSetAccess(range->base, range->bytes, &desc, 1);
}

void cuda_range_clear(struct cuda_driver *driver, struct cuda_range *range)
{
    CUdeviceptr at = range->base;

    for (uint32_t i = 0; i < range->n_mapped; at += range->chunk_bytes[i++])
        (void)driver->cuMemUnmap(at, range->chunk_bytes[i]);
    range->n_mapped = 0;
}

void cuda_range_unmap(struct cuda_driver *driver, struct cuda_range *range)
{
    cuda_range_clear(driver, range);
    if (range->bytes > 0)
        (void)driver->cuMemAddressFree(range->base, range->bytes);
    range->bytes = 0;
}

static enum rdt_status map_chunk(struct cuda_driver *driver, const struct cuda_gpu *gpu, struct cuda_range *range, uint32_t i,
                                 int fd, struct rdt_error *err)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {0};
    enum rdt_status status = RDT_OK;
    CUresult result =
        driver->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (result != CUDA_SUCCESS) {
        (void)cuda_failed(driver, result, err, "the driver refuses the fd");
        if (err)
            err->status = RDT_INVALID;
        rdt_error_prefix(err, "fd %u is not exported GPU memory", i);
        return RDT_INVALID;
    }
    result = driver->cuMemGetAllocationPropertiesFromHandle(&prop, handle);
    if (result == CUDA_SUCCESS && (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop.location.id != gpu->device))
        status = rdt_error_set(err, RDT_INVALID, "chunk %u is not memory of %s", i, gpu->uuid);
    else if (result == CUDA_SUCCESS)
        result = cuda_range_add(driver, range, handle);
    (void)driver->cuMemRelease(handle);
    if (result != CUDA_SUCCESS)
        status = cuda_gpu_failed(driver, gpu, result, err, "mapping a chunk of another process (is its length right?)");
    return status;
}

enum rdt_status cuda_range_map(struct cuda_driver *driver, const struct cuda_gpu *gpu, const int *fds,
                               const uint64_t *chunk_bytes, uint32_t n, size_t granule, struct cuda_range *range_p,
                               struct rdt_error *err)
{
    struct cuda_range range;
    uint64_t total = 0;
    enum rdt_status status = RDT_OK;
    CUresult result;

    for (uint32_t i = 0; i < n; total += chunk_bytes[i++])
        if (chunk_bytes[i] == 0 || chunk_bytes[i] % granule || chunk_bytes[i] > INT64_MAX - total)
            return rdt_error_set(err, RDT_INVALID, "chunk %u has %llu bytes, which is not a multiple of %zu", i,
                                 (unsigned long long)chunk_bytes[i], granule);
    if (n == 0)
        return rdt_error_set(err, RDT_INVALID, "GPU memory consists of at least one chunk, and none was given");
    result = cuda_range_reserve(driver, total, granule, chunk_bytes, &range);
    if (result != CUDA_SUCCESS)
        return cuda_gpu_failed(driver, gpu, result, err, "reserving addresses for memory of another process");
    for (uint32_t i = 0; status == RDT_OK && i < n; i++)
        status = map_chunk(driver, gpu, &range, i, fds[i], err);
    if (status == RDT_OK && (result = cuda_range_allow(driver, &range, gpu->device)) != CUDA_SUCCESS)
        status = cuda_gpu_failed(driver, gpu, result, err, "mapping memory of another process");
    if (status != RDT_OK)
        cuda_range_unmap(driver, &range);
    else
        *range_p = range;
    return status;
}

/* ---- handles ---- */

/* The drawing is in cuda_share.h. The caller holds the mutex. */
static void opened_set_state(struct cuda_opened *opened, enum cuda_opened_state to)
{
    static const struct sm_state states[] = {
        [CUDA_OPENING] = {"opening CUDA handle", 1u << CUDA_OPEN},
        [CUDA_OPEN] = {"open CUDA handle", 1u << CUDA_CLOSING},
        [CUDA_CLOSING] = {"closing CUDA handle", 0},
    };

    sm_check(states, CUDA_CLOSING + 1, opened->state, to, NULL, NULL); /* a client has no host table to log through */
    opened->state = to;
}

void cuda_handles_init(struct cuda_handles *handles)
{
    (void)pthread_mutex_init(&handles->mutex, NULL);
    (void)pthread_cond_init(&handles->changed, NULL);
    ring_init(&handles->all);
}

static enum rdt_status open_failed(struct cuda_driver *driver, const struct cuda_gpu *gpu, CUresult result,
                                   struct rdt_error *err)
{
    enum rdt_status status =
        cuda_gpu_failed(driver, gpu, result, err,
                        result == CUDA_ERROR_INVALID_CONTEXT
                            ? "opening a handle: it is this process's own, or both processes have the same id, each in "
                              "its own PID namespace"
                            : "opening a handle");

    if (status == RDT_UNSUPPORTED || status == RDT_NO_MEMORY)
        return status;
    if (err)
        err->status = RDT_INVALID;
    return RDT_INVALID;
}

static enum rdt_status open_first(struct cuda_driver *driver, struct cuda_opened *opened, struct rdt_error *err)
{
    CUdeviceptr base;
    int ordinal = -1;
    CUresult result = driver->cuIpcOpenMemHandle(&opened->base, opened->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

    if (result != CUDA_SUCCESS)
        return open_failed(driver, opened->gpu, result, err);
    result = driver->cuMemGetAddressRange(&base, &opened->bytes, opened->base);
    if (result == CUDA_SUCCESS)
        result = driver->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, opened->base);
    if (result == CUDA_SUCCESS && base == opened->base && ordinal == opened->gpu->device)
        return RDT_OK;
    (void)driver->cuIpcCloseMemHandle(opened->base);
    return result != CUDA_SUCCESS
               ? cuda_gpu_failed(driver, opened->gpu, result, err, "asking for the size and GPU of another process's memory")
           : base == opened->base
               ? rdt_error_set(err, RDT_INVALID, "the handle names memory of another GPU than %s", opened->gpu->uuid)
               : rdt_error_set(err, RDT_INVALID, "the handle does not name the start of an allocation");
}

static struct cuda_opened *find_opened(const struct cuda_handles *handles, const void *handle)
{
    for (struct ring *at = handles->all.next; at != &handles->all; at = at->next)
        if (memcmp(&container_of(at, struct cuda_opened, ring)->handle, handle, sizeof(CUipcMemHandle)) == 0)
            return container_of(at, struct cuda_opened, ring);
    return NULL;
}

/* With the mutex: the handle has been closed, or could not be opened. */
static void forget_opened(struct cuda_handles *handles, struct cuda_opened *opened)
{
    ring_remove(&opened->ring);
    free(opened);
    (void)pthread_cond_broadcast(&handles->changed);
}

/* Opens a handle that is not open. The mutex is held, except in the driver. */
static enum rdt_status open_new(struct cuda_handles *handles, struct cuda_driver *driver, const struct cuda_gpu *gpu,
                                const void *handle, struct cuda_opened **opened_p, struct rdt_error *err)
{
    struct cuda_opened *opened = calloc(1, sizeof *opened);
    enum rdt_status status;

    if (!opened)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the record of an open handle");
    memcpy(&opened->handle, handle, sizeof opened->handle);
    opened->gpu = gpu;
    opened->users = 1;
    opened->state = CUDA_OPENING;
    ring_append(&handles->all, &opened->ring);
    (void)pthread_mutex_unlock(&handles->mutex);
    status = open_first(driver, opened, err);
    (void)pthread_mutex_lock(&handles->mutex);
    if (status != RDT_OK) {
        forget_opened(handles, opened);
        return status;
    }
    opened_set_state(opened, CUDA_OPEN);
    (void)pthread_cond_broadcast(&handles->changed);
    *opened_p = opened;
    return RDT_OK;
}

enum rdt_status cuda_handle_open(struct cuda_handles *handles, struct cuda_driver *driver, const struct cuda_gpu *gpu,
                                 const void *handle, size_t handle_bytes, bool waits, struct cuda_opened **opened_p,
                                 struct rdt_error *err)
{
    struct cuda_opened *opened;
    enum rdt_status status = RDT_OK;

    if (handle_bytes != sizeof opened->handle)
        return rdt_error_set(err, RDT_INVALID, "the handle has %zu bytes, but handles of CUDA have %zu", handle_bytes,
                             sizeof opened->handle);
    (void)pthread_mutex_lock(&handles->mutex);
    while ((opened = find_opened(handles, handle)) && opened->state != CUDA_OPEN && waits)
        (void)pthread_cond_wait(&handles->changed, &handles->mutex);
    if (opened && opened->state != CUDA_OPEN) {
        status = rdt_error_set(err, RDT_AGAIN, "another thread opens or closes the handle");
    } else if (opened && opened->gpu != gpu) {
        status = rdt_error_set(err, RDT_INVALID, "the handle names memory of %s", opened->gpu->uuid);
    } else if (opened) {
        opened->users++;
        *opened_p = opened;
    } else {
        status = open_new(handles, driver, gpu, handle, opened_p, err);
    }
    (void)pthread_mutex_unlock(&handles->mutex);
    return status;
}

void cuda_handle_close(struct cuda_handles *handles, struct cuda_driver *driver, struct cuda_opened *opened)
{
    (void)pthread_mutex_lock(&handles->mutex);
    if (--opened->users == 0) {
        opened_set_state(opened, CUDA_CLOSING);
        (void)pthread_mutex_unlock(&handles->mutex);
        (void)driver->cuIpcCloseMemHandle(opened->base);
        (void)pthread_mutex_lock(&handles->mutex);
        forget_opened(handles, opened);
    }
    (void)pthread_mutex_unlock(&handles->mutex);
}
