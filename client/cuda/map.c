/* See gpu.h. librdt calls this under its lock; it waits for no stream. */
#include <stdlib.h>
#include <string.h>

#include "client/cuda/gpu.h"

struct mapped {
    struct cuda_gpu *gpu;
    struct cuda_range range;
    struct cuda_opened *opened;
    uint64_t chunk_bytes[];
};

struct own { /* a handle that this process gave away */
    CUipcMemHandle handle;
    CUdeviceptr base;
};

#define OWN_MAX 1024u
static struct cuda_handles handles;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t own_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct own own[OWN_MAX]; /* the latest */
static unsigned n_own;

static void init(void)
{
    cuda_handles_init(&handles);
}

enum rdt_status enter(struct cuda_driver *driver, struct cuda_gpu *gpu, struct entered *entered, struct rdt_error *err)
{
    if (driver->cuCtxGetCurrent(&entered->before) != CUDA_SUCCESS)
        entered->before = NULL;
    return cuda_gpu_enter(driver, gpu, err);
}

void leave(struct cuda_driver *driver, const struct entered *entered)
{
    (void)driver->cuCtxSetCurrent(entered->before);
}

void note_own_handle(const CUipcMemHandle *handle, CUdeviceptr base)
{
    bool there = false;

    (void)pthread_mutex_lock(&own_mutex);
    for (unsigned i = 0; i < n_own && i < OWN_MAX && !there; i++)
        there = memcmp(&own[i].handle, handle, sizeof *handle) == 0;
    if (!there)
        own[n_own++ % OWN_MAX] = (struct own){*handle, base};
    (void)pthread_mutex_unlock(&own_mutex);
}

/* The driver opens no handle in the process that it is of. What lies at that address now must still have this handle. */
static CUdeviceptr find_own(struct cuda_driver *driver, const void *handle)
{
    CUdeviceptr base = 0;
    CUipcMemHandle now;

    (void)pthread_mutex_lock(&own_mutex);
    for (unsigned i = 0; i < n_own && i < OWN_MAX && !base; i++)
        if (memcmp(&own[i].handle, handle, sizeof now) == 0)
            base = own[i].base;
    (void)pthread_mutex_unlock(&own_mutex);
    return base && driver->cuIpcGetMemHandle(&now, base) == CUDA_SUCCESS && memcmp(&now, handle, sizeof now) == 0 ? base : 0;
}

static enum rdt_status map_here(struct cuda_driver *driver, const struct rdt_shared *shared, struct mapped *mapped, CUdeviceptr *base_p,
                                struct rdt_error *err)
{
    uint64_t all;
    enum rdt_status status;

    if (shared->kind == RDT_SHARED_LEGACY_IPC && shared->handle_bytes == sizeof(CUipcMemHandle) &&
        (*base_p = find_own(driver, shared->handle)) != 0)
        return RDT_OK;
    if (shared->kind == RDT_SHARED_LEGACY_IPC) {
        status = cuda_handle_open(&handles, driver, mapped->gpu, shared->handle, shared->handle_bytes, &mapped->opened, err);
        if (status != RDT_OK)
            return status;
        *base_p = mapped->opened->base;
        all = mapped->opened->bytes;
    } else if (shared->kind == RDT_SHARED_VMM) {
        memcpy(mapped->chunk_bytes, shared->chunk_bytes, shared->n_fds * sizeof *mapped->chunk_bytes);
        status = cuda_range_map(driver, mapped->gpu, shared->fds, mapped->chunk_bytes, (uint32_t)shared->n_fds, GRANULE, &mapped->range,
                                err);
        if (status != RDT_OK)
            return status;
        *base_p = mapped->range.base;
        all = mapped->range.bytes;
    } else {
        return rdt_error_set(err, RDT_UNSUPPORTED, "GPU memory that is shared in a way this library does not know");
    }
    if (shared->offset <= all && shared->bytes <= all - shared->offset)
        return RDT_OK;
    return rdt_error_set(err, RDT_PROTOCOL, "rdtd shares %llu bytes at %llu of GPU memory that has %llu",
                         (unsigned long long)shared->bytes, (unsigned long long)shared->offset, (unsigned long long)all);
}

static void unmap_here(struct cuda_driver *driver, struct mapped *mapped)
{
    struct entered entered;

    if (enter(driver, mapped->gpu, &entered, NULL) == RDT_OK) {
        if (mapped->opened)
            cuda_handle_close(&handles, driver, mapped->opened);
        cuda_range_clear(driver, &mapped->range);
        if (mapped->range.bytes > 0 && !pool_keeps(mapped->range.base, mapped->range.bytes))
            cuda_range_unmap(driver, &mapped->range);
        leave(driver, &entered);
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

    (void)arg;
    (void)pthread_once(&once, init);
    if (status != RDT_OK)
        return status;
    mapped = calloc(1, sizeof *mapped + shared->n_fds * sizeof *mapped->chunk_bytes);
    if (!mapped)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to note mapped GPU memory");
    status = cuda_gpu_find(driver, shared->device, &mapped->gpu, err);
    if (status == RDT_OK)
        status = enter(driver, mapped->gpu, &entered, err);
    if (status != RDT_OK) {
        free(mapped);
        return status;
    }
    status = map_here(driver, shared, mapped, &base, err);
    leave(driver, &entered);
    if (status != RDT_OK) {
        unmap_here(driver, mapped);
        return status;
    }
    *addr_p = (void *)(uintptr_t)(base + shared->offset);
    *mapping_p = mapped;
    return RDT_OK;
}

static void unmap(void *arg, void *addr, void *mapping)
{
    struct cuda_driver *driver;

    (void)arg, (void)addr;
    if (cuda_driver_open(&driver, NULL) == RDT_OK)
        unmap_here(driver, mapping);
}

const struct rdt_mapper cuda_mapper = {.struct_size = sizeof cuda_mapper, .memory = "cuda", .map = map, .unmap = unmap};
