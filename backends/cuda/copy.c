/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the memory kind "cuda". See cuda.h.
 *
 * copy_start queues most copies in a stream itself: this takes microseconds, and the driver calls back when the copy is
 * done. Queuing takes longer for three kinds of copies, which a thread of the GPU queues instead:
 *
 *   - copies from and to host memory that is not pinned, which the driver carries out inside the call;
 *   - copies between GPUs, which may need mappings first;
 *   - copies of more than PIECES_AT_ONCE pieces.
 *
 * The callback is cuStreamAddCallback's, because that of the newer cuLaunchHostFunc is not called when the context has
 * failed.
 */
#include "backends/cuda/cuda.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PIECES_AT_ONCE 32u
#define MAX_PITCH ((uint64_t)INT32_MAX)

/* priv of a copy */
enum { PRIV_CARD, PRIV_RESULT, PRIV_NEXT };

static struct rdt_memory_copy **next_of(struct rdt_memory_copy *copy)
{
    return (struct rdt_memory_copy **)&copy->priv[PRIV_NEXT];
}

static struct cuda_driver *driver_of(const struct cuda_card *card)
{
    return card->cuda->driver;
}

static struct cuda_block *block_of(const struct rdt_block *block)
{
    return block ? block->priv : NULL;
}

static void report(struct cuda_card *card, struct rdt_memory_copy *copy, CUresult result)
{
    struct rdt_error err = {.msg = ""};

    if (result != CUDA_SUCCESS)
        (void)cuda_failed(driver_of(card), result, &err, "copying");
    card->cuda->host.copy_done(copy, result == CUDA_SUCCESS ? RDT_OK : RDT_SYSTEM, err.msg);
}

/* Runs on a thread of the driver, where no function of CUDA may be called, except those for the text of an error. */
static void CUDA_CB on_done(CUstream stream, CUresult result, void *arg)
{
    struct rdt_memory_copy *copy = arg;
    CUresult earlier = (CUresult)(uintptr_t)copy->priv[PRIV_RESULT];

    (void)stream;
    report(copy->priv[PRIV_CARD], copy, earlier != CUDA_SUCCESS ? earlier : result);
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

static CUresult queue_piece(const struct cuda_card *card, const struct rdt_memory_copy *copy,
                            const struct rdt_copy_piece *piece, bool across, CUstream stream, bool *any_p)
{
    CUdeviceptr to = (CUdeviceptr)(uintptr_t)piece->to, from = (CUdeviceptr)(uintptr_t)piece->from;
    CUresult result = CUDA_SUCCESS;

    if (piece->bytes == 0 || piece->rows == 0)
        return CUDA_SUCCESS;
    if (piece->rows > 1 && !across && fits_2d(piece)) {
        CUDA_MEMCPY2D plane = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                               .srcDevice = from,
                               .srcPitch = piece->from_step,
                               .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                               .dstDevice = to,
                               .dstPitch = piece->to_step,
                               .WidthInBytes = piece->bytes,
                               .Height = piece->rows};
        result = driver_of(card)->cuMemcpy2DAsync(&plane, stream);
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

/* Queues the whole copy. The GPU's context is current in the thread. On success copy_done follows; otherwise it does not,
 * and no part of the copy is under way. */
static CUresult queue_copy(struct cuda_card *card, struct rdt_memory_copy *copy, enum cuda_way way)
{
    const struct cuda_driver *driver = driver_of(card);
    bool any = false;
    CUresult result;
    CUstream stream = cuda_stream(card, way, &result);

    for (uint32_t i = 0; result == CUDA_SUCCESS && i < copy->n_pieces; i++)
        result = queue_piece(card, copy, &copy->pieces[i], way == WAY_ACROSS, stream, &any);
    if (result != CUDA_SUCCESS && !any)
        return result;
    copy->priv[PRIV_CARD] = card;
    copy->priv[PRIV_RESULT] = (void *)(uintptr_t)result;
    result = driver->cuStreamAddCallback(stream, on_done, copy, 0);
    if (result != CUDA_SUCCESS)
        (void)driver->cuStreamSynchronize(stream); /* a copy that has failed must not go on */
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

/* ---- a GPU's thread ---- */

static enum cuda_way way_of(const struct rdt_memory_copy *copy)
{
    const struct cuda_block *to = block_of(copy->to), *from = block_of(copy->from);

    if (!from)
        return WAY_UP;
    if (!to)
        return WAY_DOWN;
    return to->card == from->card ? WAY_WITHIN : WAY_ACROSS;
}

static void queue_on_thread(struct cuda_card *card, struct rdt_memory_copy *copy)
{
    enum cuda_way way = way_of(copy);
    struct rdt_error err;
    CUresult result;

    if (cuda_enter(card, &err) != RDT_OK) {
        card->cuda->host.copy_done(copy, RDT_SYSTEM, err.msg);
        return;
    }
    if (way == WAY_ACROSS) {
        struct cuda_block *to = block_of(copy->to), *from = block_of(copy->from);
        allow_access(to, from->card);
        allow_access(from, to->card);
        enable_peer(to->card, from->card);
        enable_peer(from->card, to->card);
        if (cuda_enter(card, &err) != RDT_OK) {
            card->cuda->host.copy_done(copy, RDT_SYSTEM, err.msg);
            return;
        }
    }
    result = queue_copy(card, copy, way);
    if (result != CUDA_SUCCESS)
        report(card, copy, result);
}

static void *run(void *arg)
{
    struct cuda_card *card = arg;

    (void)pthread_mutex_lock(&card->mutex);
    for (;;) {
        struct rdt_memory_copy *copy;
        while (!card->first && !card->end)
            (void)pthread_cond_wait(&card->more, &card->mutex);
        copy = card->first;
        if (!copy)
            break;
        card->first = *next_of(copy);
        if (!card->first)
            card->last = &card->first;
        (void)pthread_mutex_unlock(&card->mutex);
        queue_on_thread(card, copy);
        (void)pthread_mutex_lock(&card->mutex);
    }
    (void)pthread_mutex_unlock(&card->mutex);
    return NULL;
}

static enum rdt_status hand_over(struct cuda_card *card, struct rdt_memory_copy *copy, struct rdt_error *err)
{
    sigset_t all, before;
    int error = 0;

    *next_of(copy) = NULL;
    (void)pthread_mutex_lock(&card->mutex);
    if (!card->started) {
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&card->thread, NULL, run, card);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        card->started = error == 0;
    }
    if (!error) {
        *card->last = copy;
        card->last = next_of(copy);
        (void)pthread_cond_signal(&card->more);
    }
    (void)pthread_mutex_unlock(&card->mutex);
    return error ? rdt_error_sys(err, error, "starting the thread for copies of %s", card->gpu->uuid) : RDT_OK;
}

void cuda_copies_end(struct cuda_card *card)
{
    if (!card->started)
        return;
    (void)pthread_mutex_lock(&card->mutex);
    card->end = true;
    (void)pthread_cond_signal(&card->more);
    (void)pthread_mutex_unlock(&card->mutex);
    (void)pthread_join(card->thread, NULL);
}

/* ---- starting ---- */

static uint64_t count_commands(const struct rdt_memory_copy *copy)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < copy->n_pieces && n <= PIECES_AT_ONCE; i++)
        n += copy->pieces[i].rows > 1 && !fits_2d(&copy->pieces[i]) ? copy->pieces[i].rows : 1;
    return n;
}

enum rdt_status cuda_copy_start(void *memory, struct rdt_memory_copy *copy, struct rdt_error *err)
{
    const struct cuda_block *to = block_of(copy->to), *from = block_of(copy->from);
    struct cuda_card *card = from ? from->card : to->card;
    enum cuda_way way = way_of(copy);
    enum rdt_status status;
    CUresult result;

    (void)memory;
    if (way == WAY_ACROSS || ((way == WAY_UP || way == WAY_DOWN) && !copy->host_pinned) ||
        count_commands(copy) > PIECES_AT_ONCE)
        return hand_over(card, copy, err);
    status = cuda_enter(card, err);
    if (status != RDT_OK)
        return status;
    result = queue_copy(card, copy, way);
    return result == CUDA_SUCCESS ? RDT_OK : cuda_failed(driver_of(card), result, err, "copying");
}
