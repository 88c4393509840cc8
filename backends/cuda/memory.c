/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of the memory kind "cuda": their chunks and ranges of addresses, and the legacy handles that are open. See cuda.h.
 *
 * An allocated block is one chunk of VMM memory, which other processes map by its fd. The driver frees the chunk when the
 * last of its mappings, handles and fds, in whatever process, is gone. On a GPU without VMM the block is allocated by
 * cuMemAlloc, and other processes open it by a legacy handle.
 */
#include "backends/cuda/cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct cuda_driver *driver_of(const struct cuda_card *card)
{
    return card->cuda->driver;
}

/* Finds the GPU with that uuid. NULL: NOT_FOUND, in err. */
static struct cuda_card *card_of(struct cuda *cuda, const char *uuid, struct rdt_error *err)
{
    struct cuda_gpu *gpu;

    if (cuda_gpu_find(cuda->driver, uuid, &gpu, err) != RDT_OK)
        return NULL;
    return &cuda->cards[gpu - cuda->driver->gpu];
}

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
    return bytes > UINT64_MAX - to ? bytes : (bytes + to - 1) / to * to;
}

uint64_t cuda_round(void *memory, uint64_t bytes)
{
    const struct cuda *cuda = memory;
    uint64_t most = bytes;

    for (unsigned i = 0; i < cuda->driver->n_gpus; i++) {
        uint64_t rounded = round_up(bytes, cuda->cards[i].granule);
        most = rounded > most ? rounded : most;
    }
    return most;
}

/* ---- blocks ---- */

static struct cuda_block *block_alloc(struct cuda_card *card, uint32_t n_chunks)
{
    struct cuda_block *block = calloc(1, sizeof *block);

    if (!block)
        return NULL;
    block->card = card;
    block->fds = calloc(n_chunks + 1, sizeof *block->fds);
    block->chunk_bytes = calloc(n_chunks + 1, sizeof *block->chunk_bytes);
    if (!block->fds || !block->chunk_bytes) {
        free(block->fds);
        free(block->chunk_bytes);
        free(block);
        return NULL;
    }
    for (uint32_t i = 0; i < n_chunks; i++)
        block->fds[i] = -1;
    block->n_chunks = n_chunks;
    (void)pthread_mutex_init(&block->mutex, NULL);
    return block;
}

/* Enters the GPU and returns the record of a block on it, which uses the GPU's context until block_free. NULL: *status_p says
 * why. */
static struct cuda_block *block_new(struct cuda_card *card, uint32_t n_chunks, enum rdt_status *status_p, struct rdt_error *err)
{
    struct cuda_block *block = NULL;

    cuda_use(card);
    *status_p = cuda_enter(card, err);
    if (*status_p == RDT_OK && !(block = block_alloc(card, n_chunks)))
        *status_p = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the record of a block of GPU memory");
    if (!block)
        cuda_unuse(card);
    return block;
}

/* Frees the parts in the order that the driver demands: mapping, addresses, fds. The block may be incomplete. */
static void block_free(struct cuda_block *block)
{
    struct cuda_driver *driver = driver_of(block->card);
    struct cuda_card *card = block->card;

    if (cuda_gpu_enter(driver, card->gpu, NULL) == RDT_OK) { /* also in a context that has failed: some of it may succeed */
        if (block->opened)
            cuda_handle_close(&block->card->cuda->handles, driver, block->opened);
        if (block->allocated)
            (void)driver->cuMemFree(block->base);
        cuda_range_unmap(driver, &block->range);
    }
    for (uint32_t i = 0; i < block->n_chunks; i++)
        if (block->fds[i] >= 0)
            (void)close(block->fds[i]);
    (void)pthread_mutex_destroy(&block->mutex);
    free(block->fds);
    free(block->chunk_bytes);
    free(block);
    cuda_unuse(card);
}

static void block_fill(struct cuda_block *block, uint64_t bytes, struct rdt_block *block_p)
{
    block_p->addr = NULL;
    block_p->bytes = bytes;
    block_p->fd = -1;
    block_p->priv = block;
    block_p->read_only = false;
    block_p->page_bytes = 0;
}

static enum rdt_status failed(struct cuda_card *card, CUresult result, struct rdt_error *err, const char *what)
{
    cuda_note(card, result);
    return cuda_gpu_failed(driver_of(card), card->gpu, result, err, what);
}

/* ---- allocating ---- */

static enum rdt_status alloc_chunk(struct cuda_block *block, uint64_t bytes, struct rdt_error *err)
{
    struct cuda_card *card = block->card;
    struct cuda_driver *driver = driver_of(card);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = card->gpu->device}};
    CUmemGenericAllocationHandle handle;
    CUresult result;

    block->chunk_bytes[0] = bytes;
    prop.allocFlags.gpuDirectRDMACapable = card->rdma;
    result = driver->cuMemCreate(&handle, bytes, &prop, 0);
    if (result != CUDA_SUCCESS)
        return failed(card, result, err, "allocating GPU memory");
    result = driver->cuMemExportToShareableHandle(&block->fds[0], handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS)
        (void)fcntl(block->fds[0], F_SETFD, FD_CLOEXEC);
    if (result == CUDA_SUCCESS)
        result = cuda_range_reserve(driver, bytes, card->granule, block->chunk_bytes, &block->range);
    if (result == CUDA_SUCCESS)
        result = cuda_range_add(driver, &block->range, handle);
    if (result == CUDA_SUCCESS)
        result = cuda_range_allow(driver, &block->range, card->gpu->device);
    block->base = block->range.base;
    (void)driver->cuMemRelease(handle); /* the mapping and the fd keep the chunk */
    return result == CUDA_SUCCESS ? RDT_OK : failed(card, result, err, "mapping GPU memory");
}

static enum rdt_status alloc_legacy(struct cuda_block *block, uint64_t bytes, struct rdt_error *err)
{
    struct cuda_driver *driver = driver_of(block->card);
    CUresult result = driver->cuMemAlloc(&block->base, bytes);

    if (result != CUDA_SUCCESS)
        return failed(block->card, result, err, "allocating GPU memory");
    block->allocated = true;
    block->has_handle = driver->cuIpcGetMemHandle(&block->handle, block->base) == CUDA_SUCCESS;
    return RDT_OK;
}

static enum rdt_status clear(struct cuda_card *card, CUdeviceptr at, uint64_t bytes, struct rdt_error *err)
{
    struct cuda_driver *driver = driver_of(card);
    CUresult result;
    CUstream stream = cuda_stream(card, &card->clearing, &result);

    if (result == CUDA_SUCCESS)
        result = driver->cuMemsetD8Async(at, 0, bytes, stream);
    if (result == CUDA_SUCCESS)
        result = driver->cuStreamSynchronize(stream);
    return result == CUDA_SUCCESS ? RDT_OK : failed(card, result, err, "clearing GPU memory");
}

static enum rdt_status alloc(struct cuda *memory, const char *device, uint64_t bytes, bool zeroed, struct rdt_block *block_p,
                             struct rdt_error *err)
{
    struct cuda_card *card = card_of(memory, device, err);
    uint64_t rounded = card ? round_up(bytes, card->granule) : 0;
    struct cuda_block *block;
    enum rdt_status status;

    if (!card)
        return RDT_NOT_FOUND;
    if (!bytes || rounded > INT64_MAX)
        return rdt_error_set(err, RDT_INVALID, "cannot allocate %llu bytes of GPU memory", (unsigned long long)bytes);
    block = block_new(card, card->vmm ? 1 : 0, &status, err);
    if (!block)
        return status;
    status = card->vmm ? alloc_chunk(block, rounded, err) : alloc_legacy(block, rounded, err);
    if (status == RDT_OK && zeroed)
        status = clear(card, block->base, rounded, err); /* the driver does not promise zeroed memory */
    else if (status == RDT_OK && bytes < rounded)        /* what is exported has whole granules */
        status = clear(card, block->base + bytes, rounded - bytes, err);
    if (status != RDT_OK) {
        block_free(block);
        return status;
    }
    block_fill(block, bytes, block_p);
    return RDT_OK;
}

enum rdt_status cuda_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err)
{
    return alloc(memory, device, bytes, true, block_p, err);
}

enum rdt_status cuda_alloc_unzeroed(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                    struct rdt_error *err)
{
    return alloc(memory, device, bytes, false, block_p, err);
}

/* ---- importing ---- */

static enum rdt_status import_chunks(struct cuda_block *block, const struct rdt_import *import, struct rdt_error *err)
{
    enum rdt_status status;

    memcpy(block->chunk_bytes, import->chunk_bytes, import->n_fds * sizeof *block->chunk_bytes);
    for (uint32_t i = 0; i < import->n_fds; i++) {
        block->fds[i] = fcntl(import->fds[i], F_DUPFD_CLOEXEC, 3);
        if (block->fds[i] < 0)
            return rdt_error_sys(err, errno, "duplicating the fd of chunk %u", i);
    }
    status = cuda_range_map(driver_of(block->card), block->card->gpu, block->fds, block->chunk_bytes, import->n_fds,
                            block->card->granule, &block->range, err);
    block->base = block->range.base;
    return status;
}

static enum rdt_status import_handle(struct cuda_block *block, const struct rdt_import *import, struct rdt_error *err)
{
    enum rdt_status status = cuda_handle_open(&block->card->cuda->handles, driver_of(block->card), block->card->gpu,
                                              import->handle, import->handle_bytes, true, &block->opened, err);

    if (status != RDT_OK)
        return status;
    block->base = block->opened->base;
    block->handle = block->opened->handle;
    block->has_handle = true;
    return RDT_OK;
}

static enum rdt_status check_within(const struct cuda_block *block, const struct rdt_import *import, struct rdt_error *err)
{
    uint64_t total = block->opened ? block->opened->bytes : block->range.bytes;

    if (import->offset <= total && import->bytes <= total - import->offset)
        return RDT_OK;
    return rdt_error_set(err, RDT_INVALID, "%llu bytes at offset %llu are not within the shared memory, which has %llu bytes",
                         (unsigned long long)import->bytes, (unsigned long long)import->offset, (unsigned long long)total);
}

enum rdt_status cuda_import(void *memory, const char *device, const struct rdt_import *import, struct rdt_block *block_p,
                            struct rdt_error *err)
{
    struct cuda_card *card = card_of(memory, device, err);
    bool chunks = import->kind == RDT_IMPORT_VMM;
    struct cuda_block *block;
    enum rdt_status status;

    if (!card)
        return RDT_NOT_FOUND;
    if (import->kind != RDT_IMPORT_VMM && import->kind != RDT_IMPORT_LEGACY_IPC)
        return rdt_error_set(err, RDT_INVALID, "GPU memory is imported by the fds of its chunks or by a legacy handle");
    if (import->bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "0 bytes of GPU memory cannot be imported");
    if (chunks && (import->n_fds == 0 || import->n_fds > RDT_EXPORT_MAX_FDS))
        return rdt_error_set(err, RDT_INVALID, "cannot import GPU memory of %u chunks: expected 1 to %u", import->n_fds,
                             RDT_EXPORT_MAX_FDS);
    block = block_new(card, chunks ? import->n_fds : 0, &status, err);
    if (!block)
        return status;
    status = chunks ? import_chunks(block, import, err) : import_handle(block, import, err);
    if (status == RDT_OK)
        status = check_within(block, import, err);
    if (status != RDT_OK) {
        block_free(block);
        return status;
    }
    block->offset = import->offset;
    block_fill(block, import->bytes, block_p);
    return RDT_OK;
}

/* ---- restoring blocks of an earlier daemon ---- */

enum rdt_status cuda_restore(void *memory, enum rdt_restore from, int take_fd, uint64_t offset, uint64_t bytes,
                             struct rdt_block *block_p, struct rdt_error *err)
{
    struct cuda_card *card = card_of(memory, block_p->device, err);
    struct cuda_block *block;
    enum rdt_status status;

    if (!card)
        return RDT_NOT_FOUND;
    if (from != RDT_RESTORE_ALLOCATED || offset != 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "only GPU memory of one whole chunk is restored");
    block = block_new(card, 1, &status, err);
    if (!block)
        return status;
    block->chunk_bytes[0] = bytes;
    status = cuda_range_map(driver_of(card), card->gpu, &take_fd, block->chunk_bytes, 1, card->granule, &block->range, err);
    if (status != RDT_OK) {
        block_free(block);
        return status;
    }
    block->base = block->range.base;
    block->fds[0] = take_fd;
    block_fill(block, bytes, block_p);
    return cuda_map(memory, block_p, true, err);
}

/* ---- freeing, mapping, exporting ---- */

void cuda_free(void *memory, struct rdt_block *block)
{
    (void)memory;
    block_free(block->priv);
    block->priv = NULL;
}

/* A block is mapped when it is allocated or imported; this only publishes its address. */
enum rdt_status cuda_map(void *memory, struct rdt_block *block, bool warm, struct rdt_error *err)
{
    const struct cuda_block *priv = block->priv;

    (void)memory, (void)warm, (void)err;
    block->addr = (void *)(uintptr_t)(priv->base + priv->offset);
    return RDT_OK;
}

enum rdt_status cuda_export(void *memory, const struct rdt_block *block, struct rdt_export *export_p, struct rdt_error *err)
{
    const struct cuda_block *priv = block->priv;

    (void)memory;
    *export_p = (struct rdt_export){.offset = priv->offset};
    if (priv->n_chunks > 0) {
        export_p->kind = RDT_IMPORT_VMM;
        export_p->n_fds = priv->n_chunks;
        export_p->fds = priv->fds;
        export_p->chunk_bytes = priv->chunk_bytes;
        return RDT_OK;
    }
    if (!priv->has_handle)
        return rdt_error_set(err, RDT_UNSUPPORTED, "the driver gives no handle for memory of %s", priv->card->gpu->uuid);
    export_p->kind = RDT_IMPORT_LEGACY_IPC;
    memcpy(export_p->handle, &priv->handle, sizeof priv->handle);
    export_p->handle_bytes = sizeof priv->handle;
    return RDT_OK;
}

enum rdt_status cuda_zero_part(void *memory, struct rdt_block *block, uint64_t offset, uint64_t bytes, struct rdt_error *err)
{
    const struct cuda_block *priv = block->priv;
    enum rdt_status status = cuda_enter(priv->card, err);

    (void)memory;
    return status == RDT_OK ? clear(priv->card, priv->base + priv->offset + offset, bytes, err) : status;
}

enum rdt_status cuda_zero(void *memory, struct rdt_block *block, struct rdt_error *err)
{
    return cuda_zero_part(memory, block, 0, block->bytes, err);
}
