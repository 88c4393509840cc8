/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the memory kind "cuda": what a worker's thread has the driver do. See cuda.h. */
#include "backends/cuda/cuda.h"

#include <stdatomic.h>

#define MAX_PITCH ((uint64_t)INT32_MAX)

static struct cuda_driver *driver_of(const struct cuda_card *card)
{
    return card->cuda->driver;
}

static struct cuda_block *block_of(const struct rdt_block *block)
{
    return block ? block->priv : NULL;
}

/* ---- pieces ---- */

static bool fits_2d(const struct rdt_copy_piece *piece)
{
    return piece->to_step >= piece->bytes && piece->from_step >= piece->bytes && piece->to_step <= MAX_PITCH &&
           piece->from_step <= MAX_PITCH;
}

static CUresult queue_row(const struct cuda_card *card, CUdeviceptr to, CUdeviceptr from, uint64_t bytes,
                          const struct cuda_block *to_block, const struct cuda_block *from_block, CUstream stream)
{
    if (to_block && from_block && to_block->card != from_block->card)
        return driver_of(card)->cuMemcpyPeerAsync(to, to_block->card->gpu->context, from, from_block->card->gpu->context, bytes,
                                                  stream);
    return driver_of(card)->cuMemcpyAsync(to, from, bytes, stream);
}

/* Queues all rows by one call. */
static CUresult queue_rows(const struct cuda_card *card, const struct rdt_memory_copy *copy, const struct rdt_copy_piece *piece,
                           bool across, CUstream stream)
{
    CUdeviceptr to = (CUdeviceptr)(uintptr_t)piece->to, from = (CUdeviceptr)(uintptr_t)piece->from;
    CUDA_MEMCPY2D plane = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                           .srcDevice = from,
                           .srcPitch = piece->from_step,
                           .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                           .dstDevice = to,
                           .dstPitch = piece->to_step,
                           .WidthInBytes = piece->bytes,
                           .Height = piece->rows};
    CUDA_MEMCPY3D_PEER peers = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = from,
                                .srcPitch = piece->from_step,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .dstPitch = piece->to_step,
                                .WidthInBytes = piece->bytes,
                                .Height = piece->rows,
                                .Depth = 1};

    if (!across)
        return driver_of(card)->cuMemcpy2DAsync(&plane, stream);
    peers.srcContext = block_of(copy->from)->card->gpu->context;
    peers.dstContext = block_of(copy->to)->card->gpu->context;
    return driver_of(card)->cuMemcpy3DPeerAsync(&peers, stream);
}

static CUresult queue_piece(const struct cuda_card *card, const struct rdt_memory_copy *copy,
                            const struct rdt_copy_piece *piece, bool across, CUstream stream, bool *any_p)
{
    CUdeviceptr to = (CUdeviceptr)(uintptr_t)piece->to, from = (CUdeviceptr)(uintptr_t)piece->from;
    CUresult result = CUDA_SUCCESS;

    if (piece->bytes == 0 || piece->rows == 0)
        return CUDA_SUCCESS;
    if (piece->rows > 1 && fits_2d(piece)) {
        result = queue_rows(card, copy, piece, across, stream);
        *any_p |= result == CUDA_SUCCESS;
        return result;
    }
    for (uint64_t row = 0; result == CUDA_SUCCESS && row < piece->rows; row++) {
        result = queue_row(card, to + row * piece->to_step, from + row * piece->from_step, piece->bytes, block_of(copy->to),
                           block_of(copy->from), stream);
        *any_p |= result == CUDA_SUCCESS;
    }
    return result;
}

/* ---- between GPUs ---- */

/* VMM memory can be accessed by its own GPU, and by another one only after this call, which acts once for each pair. If the
 * GPUs have no peer access, the driver copies through host memory. */
static void allow_access(struct cuda_block *block, const struct cuda_card *other)
{
    struct cuda_driver *driver = driver_of(other);
    uint64_t bit = UINT64_C(1) << (other->gpu - driver->gpu);
    int can = 0;

    (void)pthread_mutex_lock(&block->mutex);
    if (!(block->peers & bit)) {
        block->peers |= bit;
        if (block->range.bytes > 0 &&
            driver->cuDeviceCanAccessPeer(&can, other->gpu->device, block->card->gpu->device) == CUDA_SUCCESS && can)
            (void)cuda_range_allow(driver, &block->range, other->gpu->device);
    }
    (void)pthread_mutex_unlock(&block->mutex);
}

/* Lets the GPU access the allocations (cuMemAlloc, and opened handles) of the other one, once for each pair. The context of the
 * GPU may be current afterwards. */
static void enable_peer(struct cuda_card *card, const struct cuda_card *other)
{
    struct cuda_driver *driver = driver_of(card);
    uint64_t bit = UINT64_C(1) << (other->gpu - driver->gpu);
    CUresult result;

    if ((atomic_load(&card->asked) & bit) || cuda_enter(card, NULL) != RDT_OK)
        return;
    result = driver->cuCtxEnablePeerAccess(other->gpu->context, 0);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
        (void)atomic_fetch_or(&card->reached, bit);
    (void)atomic_fetch_or(&card->asked, bit);
}

/* ---- copies ---- */

enum cuda_way cuda_copy_way(const struct rdt_memory_copy *copy, struct cuda_card **card_p)
{
    const struct cuda_block *to = block_of(copy->to), *from = block_of(copy->from);

    *card_p = from ? from->card : to->card;
    if (!from)
        return copy->host_pinned ? WAY_UP : WAY_PAGED_UP;
    if (!to)
        return copy->host_pinned ? WAY_DOWN : WAY_PAGED_DOWN;
    return to->card == from->card ? WAY_WITHIN : WAY_ACROSS;
}

enum rdt_status cuda_copy_enter(struct cuda_card *card, const struct rdt_memory_copy *copy, struct rdt_error *err)
{
    const struct cuda_block *to = block_of(copy->to);

    if (to && to->card != card && cuda_enter(to->card, err) != RDT_OK)
        return err->status;
    return cuda_enter(card, err);
}

static enum rdt_status reach_across(struct cuda_card *card, const struct rdt_memory_copy *copy)
{
    struct cuda_block *to = block_of(copy->to), *from = block_of(copy->from);

    allow_access(to, from->card);
    allow_access(from, to->card);
    enable_peer(to->card, from->card);
    enable_peer(from->card, to->card);
    return cuda_enter(card, NULL);
}

static struct cuda_streams *streams_of(struct cuda_card *card, enum cuda_way way, const struct rdt_memory_copy *copy)
{
    return way == WAY_ACROSS ? &card->across[block_of(copy->to)->card->gpu - driver_of(card)->gpu] : &card->streams[way];
}

CUresult cuda_copy_queue(struct cuda_card *card, struct rdt_memory_copy *copy, CUstream *stream_p)
{
    enum cuda_way way = cuda_copy_way(copy, &card);
    bool any = false;
    CUresult result;
    CUstream stream;

    *stream_p = NULL;
    if (way == WAY_ACROSS && reach_across(card, copy) != RDT_OK)
        return CUDA_ERROR_INVALID_CONTEXT;
    stream = cuda_stream(card, streams_of(card, way, copy), &result);
    for (uint32_t i = 0; result == CUDA_SUCCESS && i < copy->n_pieces; i++)
        result = queue_piece(card, copy, &copy->pieces[i], way == WAY_ACROSS, stream, &any);
    if (result == CUDA_SUCCESS || any)
        *stream_p = stream;
    return result;
}
