/* SPDX-License-Identifier: Apache-2.0 */
/* The primary contexts of the GPUs: when they are retained and left (idle.c), and what happens when one has failed. See cuda.h.
 *
 *              the first user                      users, failed
 *     CLOSED ------------------> OPEN (users) ----------------------> FAILED (users)
 *        ^                       ^  |                                    |
 *        |             next user |  | no users                           | no users
 *        |                       |  v                                    v
 *        `---- pool_idle ----- OPEN (idle)                         FAILED (idle)
 *        ^                                                               |
 *        `---------------------------- pool_idle ------------------------'
 *
 * After an error such as an access to a wrong address every call in a context returns that error for ever. Requests for the
 * GPU then fail at once and say so, and doctor does. The context is left when its last user is gone; if one that is retained
 * anew works, the GPU is used again.
 */
#include "backends/cuda/cuda.h"

#include <stdatomic.h>
#include <stdio.h>

/* ---- contexts that have failed ---- */

/* The errors after which every call in the context fails. */
static bool is_final(CUresult result)
{
    switch ((int)result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
        return true;
    default:
        return false;
    }
}

void cuda_note(struct cuda_card *card, CUresult result)
{
    const char *name = NULL;
    struct cuda *cuda = card->cuda;

    if (!is_final(result))
        return;
    (void)pthread_mutex_lock(&card->mutex);
    if (!atomic_load(&card->failed)) {
        (void)cuda->driver->cuGetErrorName(result, &name);
        (void)snprintf(card->why_not, sizeof card->why_not,
                       "its context has failed (%s, %d): free what lies there and wait for pool_idle, or restart rdtd",
                       name ? name : "unknown", (int)result);
        atomic_store(&card->failed, true);
        cuda->host.log(cuda->host.ctx, RDT_LOG_ERROR, "%s (%s): %s", card->gpu->uuid, card->gpu->name, card->why_not);
    }
    (void)pthread_mutex_unlock(&card->mutex);
}

static enum rdt_status refuse(const struct cuda_card *card, struct rdt_error *err)
{
    return rdt_error_set(err, RDT_SYSTEM, "%s (%s) cannot be used: %s", card->gpu->uuid, card->gpu->name, card->why_not);
}

/* ---- retaining ---- */

static enum rdt_status open_first(struct cuda_card *card, struct rdt_error *err)
{
    struct gpu_usage before, after;
    enum rdt_status status;

    (void)pthread_mutex_lock(&card->opening);
    if (cuda_gpu_is_open(card->gpu)) {
        (void)pthread_mutex_unlock(&card->opening);
        return cuda_gpu_enter(card->cuda->driver, card->gpu, err);
    }
    before = gpu_usage_now(card->gpu->uuid);
    status = cuda_gpu_enter(card->cuda->driver, card->gpu, err);
    if (status == RDT_OK) {
        after = gpu_usage_now(card->gpu->uuid);
        card->overhead_bytes = gpu_usage_growth(&before, &after);
        card->cuda->on_opened(card);
    }
    (void)pthread_mutex_unlock(&card->opening);
    return status;
}

enum rdt_status cuda_enter(struct cuda_card *card, struct rdt_error *err)
{
    if (atomic_load(&card->failed))
        return refuse(card, err);
    return cuda_gpu_is_open(card->gpu) ? cuda_gpu_enter(card->cuda->driver, card->gpu, err) : open_first(card, err);
}

/* ---- users ---- */

void cuda_use(struct cuda_card *card)
{
    (void)pthread_mutex_lock(&card->opening);
    card->users++;
    (void)pthread_mutex_unlock(&card->opening);
}

bool cuda_use_if_open(struct cuda_card *card)
{
    bool is_open;

    if (!cuda_gpu_is_open(card->gpu)) /* without waiting for the context that another thread is creating */
        return false;
    (void)pthread_mutex_lock(&card->opening);
    is_open = cuda_gpu_is_open(card->gpu);
    card->users += is_open;
    (void)pthread_mutex_unlock(&card->opening);
    return is_open;
}

void cuda_unuse(struct cuda_card *card)
{
    bool idle;

    (void)pthread_mutex_lock(&card->opening);
    idle = --card->users == 0;
    if (idle)
        card->idle_since_ns = (int64_t)monotonic_ns();
    (void)pthread_mutex_unlock(&card->opening);
    if (idle)
        card->cuda->on_idle(card->cuda);
}

/* ---- streams ---- */

CUstream cuda_stream(struct cuda_card *card, struct cuda_streams *streams, CUresult *result_p)
{
    CUstream *stream, taken;

    (void)pthread_mutex_lock(&card->mutex);
    stream = &streams->stream[streams->turn++ % CUDA_TURNS];
    *result_p = *stream ? CUDA_SUCCESS : card->cuda->driver->cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
    taken = *stream;
    (void)pthread_mutex_unlock(&card->mutex);
    cuda_note(card, *result_p);
    return taken;
}
