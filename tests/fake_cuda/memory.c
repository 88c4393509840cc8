/* Memory of the fake driver: chunks (memfds), the address ranges that they are mapped in, and what another process knows them by. */
#include "tests/fake_cuda/fake_cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct chunk { /* one physical allocation, or an import of it */
    int fd;
    size_t bytes;
    CUdevice device;
    unsigned refs; /* handles of it, and mappings */
    bool imported; /* it counts where it was made */
    bool legacy;
    bool closed; /* made without a type of handle: it cannot be exported */
};

struct mapping {
    struct chunk *chunk;
    size_t offset, bytes; /* in the range */
    bool open;            /* cuMemSetAccess has been called */
    struct mapping *next;
};

struct range { /* addresses nobody may touch; `alias` is where the fake does */
    char *base, *alias;
    size_t bytes;
    struct mapping *mappings; /* in order of offset */
    char handle[64];          /* of an open legacy handle */
    bool opened;
    struct range *next;
};

struct legacy_handle {
    char magic[8];
    int32_t pid, fd, device;
    uint64_t bytes, inode;
};
_Static_assert(sizeof(struct legacy_handle) <= 64, "CUipcMemHandle");

struct pinned {
    char *base;
    size_t bytes;
    struct pinned *next;
};

static struct range *ranges;
static struct pinned *pins;

/* ---- chunks; the mutex is held ---- */

static struct chunk *chunk_new(CUdevice device, size_t bytes, int fd, bool legacy)
{
    struct chunk *chunk = calloc(1, sizeof *chunk);
    char name[32];

    if (!chunk)
        return NULL;
    *chunk = (struct chunk){.fd = fd, .bytes = bytes, .device = device, .refs = 1, .imported = fd >= 0, .legacy = legacy};
    if (fd < 0) {
        (void)snprintf(name, sizeof name, "fake-cuda-%d", device);
        chunk->fd = memfd_create(name, MFD_CLOEXEC);
        if (chunk->fd < 0 || ftruncate(chunk->fd, (off_t)bytes)) {
            if (chunk->fd >= 0)
                (void)close(chunk->fd);
            free(chunk);
            return NULL;
        }
        fake_gpu[device].used += bytes;
    }
    return chunk;
}

static void chunk_unref(struct chunk *chunk)
{
    if (--chunk->refs > 0)
        return;
    if (!chunk->imported)
        fake_gpu[chunk->device].used -= chunk->bytes;
    (void)close(chunk->fd);
    free(chunk);
}

/* ---- ranges; the mutex is held ---- */

static struct range *range_new(size_t bytes)
{
    struct range *range = calloc(1, sizeof *range);
    char *base = mmap(NULL, 2 * bytes + FAKE_GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (!range || base == MAP_FAILED) {
        free(range);
        return NULL;
    }
    /* Aligned as the driver's are: what is cut off stays reserved with the range. */
    range->base = (char *)(((uintptr_t)base + FAKE_GRANULE - 1) & ~(uintptr_t)(FAKE_GRANULE - 1));
    if (range->base != base)
        (void)munmap(base, (size_t)(range->base - base));
    (void)munmap(range->base + 2 * bytes, (size_t)(base + FAKE_GRANULE - range->base));
    range->alias = range->base + bytes;
    range->bytes = bytes;
    range->next = ranges;
    ranges = range;
    return range;
}

static void range_free(struct range *range)
{
    for (struct range **at = &ranges; *at; at = &(*at)->next)
        if (*at == range) {
            *at = range->next;
            break;
        }
    (void)munmap(range->base, 2 * range->bytes);
    free(range);
}

static struct range *range_at(CUdeviceptr address)
{
    for (struct range *range = ranges; range; range = range->next)
        if (address >= (CUdeviceptr)range->base && address < (CUdeviceptr)range->base + range->bytes)
            return range;
    return NULL;
}

static struct mapping *mapping_at(CUdeviceptr address, struct range **range_p)
{
    struct range *range = range_at(address);
    size_t offset = range ? (size_t)(address - (CUdeviceptr)range->base) : 0;

    *range_p = range;
    for (struct mapping *mapping = range ? range->mappings : NULL; mapping; mapping = mapping->next)
        if (offset >= mapping->offset && offset < mapping->offset + mapping->bytes)
            return mapping;
    return NULL;
}

static bool map(struct range *range, size_t offset, struct chunk *chunk, bool open)
{
    struct mapping *mapping = calloc(1, sizeof *mapping), **at = &range->mappings;

    if (!mapping || mmap(range->alias + offset, chunk->bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE, MAP_SHARED | MAP_FIXED,
                         chunk->fd, 0) == MAP_FAILED) {
        free(mapping);
        return false;
    }
    *mapping = (struct mapping){chunk, offset, chunk->bytes, open, NULL};
    while (*at && (*at)->offset < offset)
        at = &(*at)->next;
    mapping->next = *at;
    *at = mapping;
    chunk->refs++;
    return true;
}

static void unmap(struct range *range, struct mapping *mapping)
{
    for (struct mapping **at = &range->mappings; *at; at = &(*at)->next)
        if (*at == mapping) {
            *at = mapping->next;
            break;
        }
    (void)mmap(range->alias + mapping->offset, mapping->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    chunk_unref(mapping->chunk);
    free(mapping);
}

bool fake_is_device(CUdeviceptr address)
{
    bool is;

    pthread_mutex_lock(&fake_mutex);
    is = range_at(address) != NULL;
    pthread_mutex_unlock(&fake_mutex);
    return is;
}

void *fake_cuda_reach(CUdeviceptr address, size_t bytes)
{
    struct range *range;
    struct mapping *mapping;
    CUdeviceptr at = address;
    void *reached = NULL;

    pthread_mutex_lock(&fake_mutex);
    while ((mapping = mapping_at(at, &range)) != NULL && mapping->open) {
        at = (CUdeviceptr)range->base + mapping->offset + mapping->bytes;
        if (at >= address + bytes) {
            reached = range->alias + (address - (CUdeviceptr)range->base);
            break;
        }
    }
    pthread_mutex_unlock(&fake_mutex);
    return reached;
}

/* ---- cuMemAlloc and legacy handles ---- */

static CUresult no_context_or(CUresult result)
{
    return fake_current() < 0 ? CUDA_ERROR_INVALID_CONTEXT : result;
}

CUresult cuMemAlloc(CUdeviceptr *address_p, size_t bytes)
{
    CUdevice device = fake_current();
    size_t room = (bytes + FAKE_GRANULE - 1) & ~(FAKE_GRANULE - 1);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct range *range;
    struct chunk *chunk;

    if (device < 0 || !bytes)
        return no_context_or(CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&fake_mutex);
    if (room <= fake_gpu[device].total - fake_gpu[device].used && (chunk = chunk_new(device, room, -1, true)) != NULL) {
        range = range_new(room);
        if (range && map(range, 0, chunk, true)) {
            *address_p = (CUdeviceptr)range->base;
            result = CUDA_SUCCESS;
        }
        chunk_unref(chunk);
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuMemFree(CUdeviceptr address)
{
    CUresult result = no_context_or(CUDA_ERROR_INVALID_VALUE);
    struct range *range;

    pthread_mutex_lock(&fake_mutex);
    range = range_at(address);
    if (result == CUDA_ERROR_INVALID_VALUE && range && range->base == (char *)address && range->mappings &&
        range->mappings->chunk->legacy && !range->opened) {
        unmap(range, range->mappings);
        range_free(range);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle_p, CUdeviceptr address)
{
    struct legacy_handle handle = {.magic = "fakeipc"};
    CUresult result = no_context_or(CUDA_ERROR_INVALID_VALUE);
    struct mapping *mapping;
    struct range *range;
    struct stat st;

    pthread_mutex_lock(&fake_mutex);
    mapping = mapping_at(address, &range);
    if (result == CUDA_ERROR_INVALID_VALUE && mapping && mapping->chunk->legacy && !range->opened &&
        fstat(mapping->chunk->fd, &st) == 0) {
        handle.pid = getpid();
        handle.fd = mapping->chunk->fd;
        handle.device = mapping->chunk->device;
        handle.bytes = mapping->bytes;
        handle.inode = st.st_ino;
        memset(handle_p, 0, sizeof *handle_p);
        memcpy(handle_p, &handle, sizeof handle);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address_p, CUipcMemHandle given, unsigned flags)
{
    struct legacy_handle handle;
    struct range *range;
    struct chunk *chunk;
    struct stat st;
    char path[64];
    int fd;

    memcpy(&handle, &given, sizeof handle);
    if (fake_current() < 0 || handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || memcmp(handle.magic, "fakeipc", 8) != 0 || handle.device >= fake_gpus)
        return CUDA_ERROR_INVALID_VALUE;
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || st.st_ino != handle.inode || (uint64_t)st.st_size < handle.bytes) {
        if (fd >= 0)
            (void)close(fd);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    pthread_mutex_lock(&fake_mutex);
    for (range = ranges; range; range = range->next)
        if (range->opened && memcmp(range->handle, &given, sizeof range->handle) == 0) {
            pthread_mutex_unlock(&fake_mutex);
            (void)close(fd);
            return CUDA_ERROR_ALREADY_MAPPED;
        }
    chunk = chunk_new(handle.device, handle.bytes, fd, true);
    range = chunk ? range_new(handle.bytes) : NULL;
    if (range && map(range, 0, chunk, true)) {
        memcpy(range->handle, &given, sizeof range->handle);
        range->opened = true;
        *address_p = (CUdeviceptr)range->base;
    }
    if (chunk)
        chunk_unref(chunk);
    pthread_mutex_unlock(&fake_mutex);
    return range ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    CUresult result = no_context_or(CUDA_ERROR_INVALID_VALUE);
    struct range *range;

    pthread_mutex_lock(&fake_mutex);
    range = range_at(address);
    if (result == CUDA_ERROR_INVALID_VALUE && range && range->opened && range->base == (char *)address) {
        unmap(range, range->mappings);
        range_free(range);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

/* ---- VMM ---- */

static bool fits(const CUmemAllocationProp *prop)
{
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop->location.id >= 0 &&
           prop->location.id < fake_gpus && !getenv("FAKE_CUDA_NO_VMM");
}

CUresult cuMemGetAllocationGranularity(size_t *bytes_p, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
    (void)option;
    if (!fits(prop))
        return CUDA_ERROR_INVALID_VALUE;
    *bytes_p = FAKE_GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle_p, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct chunk *chunk = NULL;

    if (!fits(prop) || flags || !bytes || bytes % FAKE_GRANULE)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_mutex);
    if (bytes <= fake_gpu[prop->location.id].total - fake_gpu[prop->location.id].used)
        chunk = chunk_new(prop->location.id, bytes, -1, false);
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
    pthread_mutex_lock(&fake_mutex);
    chunk_unref((struct chunk *)(uintptr_t)handle);
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shared_p, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    struct chunk *chunk = (struct chunk *)(uintptr_t)handle;
    int fd;

    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags || chunk->closed)
        return CUDA_ERROR_INVALID_VALUE;
    fd = fcntl(chunk->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)shared_p = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle_p, void *shared, CUmemAllocationHandleType type)
{
    int given = (int)(intptr_t)shared, fd = fcntl(given, F_DUPFD_CLOEXEC, 3), device = -1;
    char path[64], name[64] = "";
    struct chunk *chunk;
    struct stat st;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", given);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fd < 0 || fstat(fd, &st) ||
        readlink(path, name, sizeof name - 1) < 0 || sscanf(name, "/memfd:fake-cuda-%d", &device) != 1 || device >= fake_gpus) {
        if (fd >= 0)
            (void)close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&fake_mutex);
    chunk = chunk_new(device, (size_t)st.st_size, fd, false);
    pthread_mutex_unlock(&fake_mutex);
    if (!chunk)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle_p = (CUmemGenericAllocationHandle)(uintptr_t)chunk;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop_p, CUmemGenericAllocationHandle handle)
{
    const struct chunk *chunk = (struct chunk *)(uintptr_t)handle;

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
    struct mapping *mapping;
    struct range *range;

    pthread_mutex_lock(&fake_mutex);
    mapping = mapping_at((CUdeviceptr)address, &range);
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
    struct range *range;

    (void)alignment, (void)wish;
    if (!bytes || bytes % FAKE_GRANULE || flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_mutex);
    range = range_new(bytes);
    pthread_mutex_unlock(&fake_mutex);
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address_p = (CUdeviceptr)range->base;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct range *range;

    pthread_mutex_lock(&fake_mutex);
    range = range_at(address);
    if (range && range->base == (char *)address && range->bytes == bytes && !range->mappings) {
        range_free(range);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct chunk *chunk = (struct chunk *)(uintptr_t)handle;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct range *range;

    pthread_mutex_lock(&fake_mutex);
    range = range_at(address);
    if (range && !offset && !flags && bytes == chunk->bytes && address + bytes <= (CUdeviceptr)range->base + range->bytes &&
        map(range, (size_t)(address - (CUdeviceptr)range->base), chunk, false))
        result = CUDA_SUCCESS;
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct mapping *mapping;
    struct range *range;

    pthread_mutex_lock(&fake_mutex);
    while (bytes > 0 && (mapping = mapping_at(address, &range)) != NULL && mapping->bytes <= bytes &&
           (CUdeviceptr)range->base + mapping->offset == address) {
        address += mapping->bytes;
        bytes -= mapping->bytes;
        unmap(range, mapping);
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

    pthread_mutex_lock(&fake_mutex);
    for (size_t i = 0; i < count; i++)
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || desc[i].location.id < 0 || desc[i].location.id >= fake_gpus)
            bytes = 0;
    while (bytes > 0 && (mapping = mapping_at(address, &range)) != NULL && mapping->bytes <= bytes) {
        (void)mprotect(range->alias + mapping->offset, mapping->bytes, PROT_READ | PROT_WRITE);
        mapping->open = true;
        address += mapping->bytes;
        bytes -= mapping->bytes;
        result = bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

/* ---- what an address is ---- */

CUresult cuMemGetAddressRange(CUdeviceptr *base_p, size_t *bytes_p, CUdeviceptr address)
{
    struct mapping *mapping;
    struct range *range;

    pthread_mutex_lock(&fake_mutex);
    mapping = mapping_at(address, &range);
    if (mapping) {
        *base_p = (CUdeviceptr)range->base + mapping->offset;
        *bytes_p = mapping->bytes;
    }
    pthread_mutex_unlock(&fake_mutex);
    return mapping ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuPointerGetAttribute(void *value_p, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct mapping *mapping;
    struct range *range;
    CUresult result = CUDA_SUCCESS;

    pthread_mutex_lock(&fake_mutex);
    mapping = mapping_at(address, &range);
    if (!mapping)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)value_p = CU_MEMORYTYPE_DEVICE;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)value_p = mapping->chunk->device;
    else if (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)
        *(bool *)value_p = mapping->chunk->legacy && !range->opened;
    else if (attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
        *(unsigned long long *)value_p = mapping->chunk->legacy ? 0 : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    else if (attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED)
        *(bool *)value_p = false;
    else
        result = CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

/* ---- pinned host memory ---- */

CUresult cuMemHostRegister(void *address, size_t bytes, unsigned flags)
{
    struct pinned *pin = malloc(sizeof *pin);

    (void)flags;
    if (!pin || fake_current() < 0) {
        free(pin);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *pin = (struct pinned){address, bytes, NULL};
    pthread_mutex_lock(&fake_mutex);
    for (const struct pinned *at = pins; at; at = at->next)
        if ((char *)address < at->base + at->bytes && at->base < (char *)address + bytes) {
            pthread_mutex_unlock(&fake_mutex);
            free(pin);
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        }
    pin->next = pins;
    pins = pin;
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *address)
{
    CUresult result = no_context_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);

    pthread_mutex_lock(&fake_mutex);
    for (struct pinned **at = &pins; *at; at = &(*at)->next)
        if ((*at)->base == address) {
            struct pinned *pin = *at;
            *at = pin->next;
            free(pin);
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

bool fake_host_registered(const void *address, size_t bytes)
{
    bool found = false;

    pthread_mutex_lock(&fake_mutex);
    for (const struct pinned *at = pins; at && !found; at = at->next)
        found = (const char *)address >= at->base && (const char *)address + bytes <= at->base + at->bytes;
    pthread_mutex_unlock(&fake_mutex);
    return found;
}
