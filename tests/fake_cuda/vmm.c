/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's virtual memory management: chunks, reserved addresses, and the mappings between them. See
 * fake_memory.h.
 */
#include "tests/fake_cuda/fake_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool fits(const CUmemAllocationProp *prop)
{
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop->location.id >= 0 && prop->location.id < fake_gpus && !getenv("FAKE_CUDA_NO_VMM");
}

CUresult cuMemGetAllocationGranularity(size_t *bytes_p, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!fits(prop))
        return CUDA_ERROR_INVALID_VALUE;
    *bytes_p = FAKE_GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle_p, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct chunk *chunk = NULL;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!fits(prop) || flags || !bytes || bytes % FAKE_GRANULE)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake_broken() != CUDA_SUCCESS)
        return fake_broken();
    pthread_mutex_lock(&fake_mutex);
    if (bytes <= fake_gpu[prop->location.id].total - fake_gpu[prop->location.id].used)
        chunk = fake_chunk_new(prop->location.id, bytes, -1, false);
    if (chunk) {
        chunk->closed = !(prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        *handle_p = (CUmemGenericAllocationHandle)(uintptr_t)chunk;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_mutex);
    fake_chunk_unref((struct chunk *)(uintptr_t)handle);
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shared_p, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    struct chunk *chunk = (struct chunk *)(uintptr_t)handle;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags || chunk->closed)
        return CUDA_ERROR_INVALID_VALUE;
    if (chunk->imported && fake_unkind("FAKE_CUDA_NO_REEXPORT"))
        return CUDA_ERROR_NOT_PERMITTED;
    int fd = fcntl(chunk->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shared_p = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle_p, void *shared, CUmemAllocationHandleType type)
{
    int given = (int)(intptr_t)shared, fd = fcntl(given, F_DUPFD_CLOEXEC, 3), number = -1;
    char path[64], name[64] = "";
    struct stat st;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe()) {
        (void)close(fd);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", given);
    if (fake_refused(__func__) != CUDA_SUCCESS) {
        (void)close(fd);
        return fake_refused(__func__);
    }
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fd < 0 || fstat(fd, &st) || getenv("FAKE_CUDA_NO_FD_IMPORT") ||
        readlink(path, name, sizeof name - 1) < 0 || sscanf(name, "/memfd:fake-cuda-%d", &number) != 1) {
        if (fd >= 0)
            (void)close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (fake_numbered(number) < 0) {
        (void)close(fd);
        return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_mutex_lock(&fake_mutex);
    struct chunk *chunk = fake_chunk_new(fake_numbered(number), (size_t)st.st_size, fd, false);
    pthread_mutex_unlock(&fake_mutex);
    if (!chunk)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle_p = (CUmemGenericAllocationHandle)(uintptr_t)chunk;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop_p, CUmemGenericAllocationHandle handle)
{
    const struct chunk *chunk = (struct chunk *)(uintptr_t)handle;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    memset(prop_p, 0, sizeof *prop_p);
    prop_p->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_p->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop_p->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop_p->location.id = chunk->device;
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle_p, void *address)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct range *range;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_mutex);
    struct mapping *mapping = fake_mapping_at((CUdeviceptr)address, &range);
    if (mapping && !mapping->chunk->legacy) {
        mapping->chunk->refs++;
        *handle_p = (CUmemGenericAllocationHandle)(uintptr_t)mapping->chunk;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuMemAddressReserve(CUdeviceptr *address_p, size_t bytes, size_t alignment, CUdeviceptr wish, unsigned long long flags)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!bytes || bytes % FAKE_GRANULE || flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_mutex);
    struct range *range = fake_range_new(bytes);
    pthread_mutex_unlock(&fake_mutex);
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address_p = (CUdeviceptr)range->base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_mutex);
    struct range *range = fake_range_at(address);
    if (range && range->base == (char *)address && range->bytes == bytes && !range->mappings) {
        fake_range_free(range);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    struct chunk *chunk = (struct chunk *)(uintptr_t)handle;
    CUresult result = CUDA_ERROR_INVALID_VALUE;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&fake_mutex);
    struct range *range = fake_range_at(address);
    if (range && !offset && !flags && bytes == chunk->bytes && address + bytes <= (CUdeviceptr)range->base + range->bytes &&
        fake_map(range, (size_t)(address - (CUdeviceptr)range->base), chunk, false))
        result = CUDA_SUCCESS;
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct range *range;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&fake_mutex);
    struct mapping *mapping = fake_mapping_at(address, &range);
    CUdevice device = mapping ? mapping->chunk->device : -1;
    pthread_mutex_unlock(&fake_mutex);
    fake_await_kernels(device);
    pthread_mutex_lock(&fake_mutex);
    while (bytes > 0 && (mapping = fake_mapping_at(address, &range)) != NULL && mapping->bytes <= bytes &&
           (CUdeviceptr)range->base + mapping->offset == address) {
        address += mapping->bytes;
        bytes -= mapping->bytes;
        fake_unmap(range, mapping);
        result = bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct mapping *mapping;
    struct range *range;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&fake_mutex);
    for (size_t i = 0; i < count; i++)
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || desc[i].location.id < 0 || desc[i].location.id >= fake_gpus)
            bytes = 0;
    while (bytes > 0 && (mapping = fake_mapping_at(address, &range)) != NULL && mapping->bytes <= bytes) {
        (void)mprotect(range->alias + mapping->offset, mapping->bytes, PROT_READ | PROT_WRITE);
        mapping->open = true;
        for (size_t i = 0; i < count; i++)
            mapping->reach |= 1u << desc[i].location.id;
        address += mapping->bytes;
        bytes -= mapping->bytes;
        result = bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}
