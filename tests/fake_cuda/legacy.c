/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc, and the handles by which another process opens its memory. See fake_memory.h. */
#include "tests/fake_cuda/fake_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct legacy_handle {
    char magic[8];
    int32_t pid, fd, number; /* of the process, of its chunk, of the GPU */
    uint32_t uid, pid_ns;
    uint64_t bytes, inode;
};
_Static_assert(sizeof(struct legacy_handle) <= 64, "CUipcMemHandle");

#define SHARED_BYTES ((size_t)1 << 20) /* allocations up to this size share a block */

static struct range *shared_block[FAKE_MAX_GPUS]; /* that small allocations fill now */

static uint32_t pid_namespace(void)
{
    struct stat st;

    return stat("/proc/self/ns/pid", &st) == 0 ? (uint32_t)st.st_ino : 0;
}

/* Returns a new range with memory of its own; NULL: no memory. */
static struct range *block_new(CUdevice device, size_t room)
{
    struct range *range = NULL;
    struct chunk *chunk;

    if (room > fake_gpu[device].total - fake_gpu[device].used || !(chunk = fake_chunk_new(device, room, -1, true)))
        return NULL;
    range = fake_range_new(room);
    if (range && !fake_map(range, 0, chunk, true)) {
        fake_range_free(range);
        range = NULL;
    }
    fake_chunk_unref(chunk);
    return range;
}

CUresult cuMemAlloc(CUdeviceptr *address_p, size_t bytes)
{
    CUdevice device = fake_current();
    size_t room = (bytes + FAKE_GRANULE - 1) & ~(FAKE_GRANULE - 1);
    bool shares = bytes <= SHARED_BYTES && fake_unkind("FAKE_CUDA_SHARED_BLOCKS");
    struct suballocation *suballocation = calloc(1, sizeof *suballocation);

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe()) {
        free(suballocation);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (fake_broken() != CUDA_SUCCESS) {
        free(suballocation);
        return fake_broken();
    }
    if (device < 0 || !bytes || !suballocation) {
        free(suballocation);
        return fake_no_context_or(CUDA_ERROR_INVALID_VALUE);
    }
    pthread_mutex_lock(&fake_mutex);
    struct range *range = shares ? shared_block[device] : NULL;
    if (!range || range->filled + bytes > range->bytes)
        range = block_new(device, room);
    if (range) {
        *address_p = (CUdeviceptr)range->base + range->filled;
        *suballocation = (struct suballocation){*address_p, bytes, range->suballocations};
        range->suballocations = suballocation;
        range->filled += (bytes + 511) & ~(size_t)511;
        if (shares)
            shared_block[device] = range;
    } else {
        free(suballocation);
    }
    pthread_mutex_unlock(&fake_mutex);
    return range ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Frees a block of which no allocation is left. */
static void block_free(struct range *range)
{
    for (int i = 0; i < fake_gpus; i++)
        if (shared_block[i] == range)
            shared_block[i] = NULL;
    fake_unmap(range, range->mappings);
    fake_range_free(range);
}

CUresult cuMemFree(CUdeviceptr address)
{
    CUresult result = fake_no_context_or(CUDA_ERROR_INVALID_VALUE);
    struct suballocation **at, *suballocation;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result != CUDA_ERROR_INVALID_VALUE)
        return result;
    if (fake_broken() != CUDA_SUCCESS)
        return fake_broken();
    fake_await_kernels(fake_current());
    pthread_mutex_lock(&fake_mutex);
    struct range *range = fake_range_at(address);
    for (at = range ? &range->suballocations : NULL; at && *at && (*at)->base != address;)
        at = &(*at)->next;
    if (at && *at) {
        suballocation = *at;
        *at = suballocation->next;
        free(suballocation);
        if (!range->suballocations)
            block_free(range);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle_p, CUdeviceptr address)
{
    struct legacy_handle handle = {.magic = "fakeipc"};
    CUresult result = fake_no_context_or(CUDA_ERROR_INVALID_VALUE);
    struct range *range;
    struct stat st;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_mutex);
    struct mapping *mapping = fake_mapping_at(address, &range);
    if (result == CUDA_ERROR_INVALID_VALUE && mapping && mapping->chunk->legacy && !range->opened &&
        fstat(mapping->chunk->fd, &st) == 0) {
        handle.pid = getpid();
        handle.uid = geteuid();
        handle.pid_ns = pid_namespace();
        handle.fd = mapping->chunk->fd;
        handle.number = fake_gpu[mapping->chunk->device].number;
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
    struct stat st;
    char path[64];
    CUdevice device = fake_current();

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    memcpy(&handle, &given, sizeof handle);
    if (device < 0 || handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || memcmp(handle.magic, "fakeipc", 8) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle.pid_ns != pid_namespace() && fake_unkind("FAKE_CUDA_IPC_SAME_PID_NS"))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_unkind("FAKE_CUDA_NO_IPC") || (fake_unkind("FAKE_CUDA_IPC_SAME_UID") && handle.uid != geteuid()))
        return CUDA_ERROR_INVALID_HANDLE;
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || st.st_ino != handle.inode || (uint64_t)st.st_size < handle.bytes) {
        if (fd >= 0)
            (void)close(fd);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    pthread_mutex_lock(&fake_mutex);
    for (range = fake_ranges; range; range = range->next)
        if (range->opened && memcmp(range->handle, &given, sizeof range->handle) == 0) {
            pthread_mutex_unlock(&fake_mutex);
            (void)close(fd);
            return CUDA_ERROR_ALREADY_MAPPED;
        }
    if (fake_numbered(handle.number) >= 0) /* otherwise the memory belongs, for this process, to the GPU that opens it */
        device = fake_numbered(handle.number);
    struct chunk *chunk = fake_chunk_new(device, handle.bytes, fd, true);
    range = chunk ? fake_range_new(handle.bytes) : NULL;
    if (range && fake_map(range, 0, chunk, true)) {
        memcpy(range->handle, &given, sizeof range->handle);
        range->opened = true;
        *address_p = (CUdeviceptr)range->base;
    }
    if (chunk)
        fake_chunk_unref(chunk);
    pthread_mutex_unlock(&fake_mutex);
    return range ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    CUresult result = fake_no_context_or(CUDA_ERROR_INVALID_VALUE);

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fake_await_kernels(fake_current());
    pthread_mutex_lock(&fake_mutex);
    struct range *range = fake_range_at(address);
    if (result == CUDA_ERROR_INVALID_VALUE && range && range->opened && range->base == (char *)address) {
        fake_unmap(range, range->mappings);
        fake_range_free(range);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}
