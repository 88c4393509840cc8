/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the fake driver: chunks (memfds), and the address ranges into which they are mapped. See fake_memory.h. */
#include "tests/fake_cuda/fake_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct range *fake_ranges;

/* ---- chunks; the mutex is held ---- */

static void make_dirty(const struct chunk *chunk)
{
    char *bytes = mmap(NULL, chunk->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, chunk->fd, 0);

    if (bytes == MAP_FAILED)
        abort();
    memset(bytes, 0x5a, chunk->bytes);
    (void)munmap(bytes, chunk->bytes);
}

struct chunk *fake_chunk_new(CUdevice device, size_t bytes, int fd, bool legacy)
{
    struct chunk *chunk = calloc(1, sizeof *chunk);
    char name[32];

    if (!chunk)
        return NULL;
    *chunk = (struct chunk){.fd = fd, .bytes = bytes, .device = device, .refs = 1, .imported = fd >= 0, .legacy = legacy};
    if (fd < 0) {
        (void)snprintf(name, sizeof name, "fake-cuda-%d", fake_gpu[device].number);
        chunk->fd = memfd_create(name, MFD_CLOEXEC);
        if (chunk->fd < 0 || ftruncate(chunk->fd, (off_t)bytes)) {
            if (chunk->fd >= 0)
                (void)close(chunk->fd);
            free(chunk);
            return NULL;
        }
        fake_gpu[device].used += bytes;
        if (fake_unkind("FAKE_CUDA_DIRTY"))
            make_dirty(chunk);
    }
    return chunk;
}

void fake_chunk_unref(struct chunk *chunk)
{
    if (--chunk->refs > 0)
        return;
    if (!chunk->imported)
        fake_gpu[chunk->device].used -= chunk->bytes;
    (void)close(chunk->fd);
    free(chunk);
}

/* ---- ranges; the mutex is held ---- */

struct range *fake_range_new(size_t bytes)
{
    struct range *range = calloc(1, sizeof *range);
    char *base = mmap(NULL, 2 * bytes + FAKE_GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (!range || base == MAP_FAILED) {
        free(range);
        return NULL;
    }
    /* Ranges are aligned as the driver's are. */
    range->base = (char *)(((uintptr_t)base + FAKE_GRANULE - 1) & ~(uintptr_t)(FAKE_GRANULE - 1));
    if (range->base != base)
        (void)munmap(base, (size_t)(range->base - base));
    (void)munmap(range->base + 2 * bytes, (size_t)(base + FAKE_GRANULE - range->base));
    range->alias = range->base + bytes;
    range->bytes = bytes;
    range->next = fake_ranges;
    fake_ranges = range;
    return range;
}

void fake_range_free(struct range *range)
{
    for (struct range **at = &fake_ranges; *at; at = &(*at)->next)
        if (*at == range) {
            *at = range->next;
            break;
        }
    (void)munmap(range->base, 2 * range->bytes);
    free(range);
}

struct range *fake_range_at(CUdeviceptr address)
{
    for (struct range *range = fake_ranges; range; range = range->next)
        if (address >= (CUdeviceptr)range->base && address < (CUdeviceptr)range->base + range->bytes)
            return range;
    return NULL;
}

struct mapping *fake_mapping_at(CUdeviceptr address, struct range **range_p)
{
    struct range *range = fake_range_at(address);
    size_t offset = range ? (size_t)(address - (CUdeviceptr)range->base) : 0;

    *range_p = range;
    for (struct mapping *mapping = range ? range->mappings : NULL; mapping; mapping = mapping->next)
        if (offset >= mapping->offset && offset < mapping->offset + mapping->bytes)
            return mapping;
    return NULL;
}

bool fake_map(struct range *range, size_t offset, struct chunk *chunk, bool open)
{
    struct mapping *mapping = calloc(1, sizeof *mapping), **at = &range->mappings;

    if (!mapping || mmap(range->alias + offset, chunk->bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED | MAP_FIXED,
                         chunk->fd, 0) == MAP_FAILED) {
        free(mapping);
        return false;
    }
    *mapping = (struct mapping){chunk, offset, chunk->bytes, open, 0, NULL};
    while (*at && (*at)->offset < offset)
        at = &(*at)->next;
    mapping->next = *at;
    *at = mapping;
    chunk->refs++;
    return true;
}

void fake_unmap(struct range *range, struct mapping *mapping)
{
    for (struct mapping **at = &range->mappings; *at; at = &(*at)->next)
        if (*at == mapping) {
            *at = mapping->next;
            break;
        }
    (void)mmap(range->alias + mapping->offset, mapping->bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    fake_chunk_unref(mapping->chunk);
    free(mapping);
}

bool fake_is_device(CUdeviceptr address)
{
    pthread_mutex_lock(&fake_mutex);
    bool is = fake_range_at(address);
    pthread_mutex_unlock(&fake_mutex);
    return is;
}

bool fake_reaches(CUdevice device, CUdeviceptr address)
{
    struct range *range;
    bool reaches;

    pthread_mutex_lock(&fake_mutex);
    const struct mapping *mapping = fake_mapping_at(address, &range);
    if (!mapping)
        reaches = true; /* host memory */
    else if (mapping->chunk->legacy)
        reaches = mapping->chunk->device == device || (fake_gpu[device].peers >> mapping->chunk->device & 1);
    else
        reaches = mapping->reach >> device & 1;
    pthread_mutex_unlock(&fake_mutex);
    return reaches;
}

void *fake_cuda_reach(CUdeviceptr address, size_t bytes)
{
    struct range *range;
    struct mapping *mapping;
    CUdeviceptr at = address;
    void *reached = NULL;

    pthread_mutex_lock(&fake_mutex);
    while ((mapping = fake_mapping_at(at, &range)) != NULL && mapping->open) {
        at = (CUdeviceptr)range->base + mapping->offset + mapping->bytes;
        if (at >= address + bytes) {
            reached = range->alias + (address - (CUdeviceptr)range->base);
            break;
        }
    }
    pthread_mutex_unlock(&fake_mutex);
    return reached;
}

CUresult fake_no_context_or(CUresult result)
{
    return fake_current() < 0 ? CUDA_ERROR_INVALID_CONTEXT : result;
}

/* ---- queries about addresses ---- */

CUresult cuMemGetAddressRange(CUdeviceptr *base_p, size_t *bytes_p, CUdeviceptr address)
{
    struct range *range;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_mutex);
    struct mapping *mapping = fake_mapping_at(address, &range);
    const struct suballocation *suballocation = mapping ? range->suballocations : NULL;
    while (suballocation && (address < suballocation->base || address >= suballocation->base + suballocation->bytes))
        suballocation = suballocation->next;
    if (mapping && !suballocation && range->suballocations)
        mapping = NULL; /* between the allocations of a block */
    if (mapping) {
        *base_p = suballocation ? suballocation->base : (CUdeviceptr)range->base + mapping->offset;
        *bytes_p = suballocation ? suballocation->bytes : mapping->bytes;
    }
    pthread_mutex_unlock(&fake_mutex);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuPointerGetAttribute(void *value_p, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct range *range;
    CUresult result = CUDA_SUCCESS;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_refused(__func__) != CUDA_SUCCESS)
        return fake_refused(__func__);
    if (fake_current() < 0 && fake_unkind("FAKE_CUDA_POINTER_CONTEXT"))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_broken() != CUDA_SUCCESS)
        return fake_broken();
    pthread_mutex_lock(&fake_mutex);
    struct mapping *mapping = fake_mapping_at(address, &range);
    if (!mapping)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)value_p = CU_MEMORYTYPE_DEVICE;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)value_p = mapping->chunk->device;
    else if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
        *(int *)value_p = mapping->chunk->legacy && !range->opened;
    else if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
        *(unsigned long long *)value_p = mapping->chunk->legacy ? 0 : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    else if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED)
        *(int *)value_p = 0;
    else
        result = CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_unlock(&fake_mutex);
    return result;
}
