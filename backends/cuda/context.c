/* SPDX-License-Identifier: Apache-2.0 */
/* The primary contexts of the GPUs: when they are retained and left, and what happens when one has failed. See cuda.h.
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

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

/* ---- contexts that have failed ---- */

static int64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

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

/* The failed context is left, or was for a while. If one that is retained anew works, the GPU may be used again. The caller
 * holds card->opening. */
static void try_anew(struct cuda_card *card)
{
    struct cuda *cuda = card->cuda;

    card->idle_since_ns = now_ns();
    if (cuda_gpu_enter(cuda->driver, card->gpu, NULL) == RDT_OK && cuda->driver->cuCtxSynchronize() == CUDA_SUCCESS) {
        atomic_store(&card->failed, false);
        cuda->host.log(cuda->host.ctx, RDT_LOG_INFO, "%s (%s): a new context works", card->gpu->uuid, card->gpu->name);
    }
    (void)cuda->driver->cuCtxSetCurrent(NULL);
    cuda_gpu_leave(cuda->driver, card->gpu);
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
        cuda_pins_restore(card);
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

/* ---- contexts that nobody uses ---- */

/* The GPU's context is current in the thread, and no copy is under way. */
static void destroy_streams(struct cuda_card *card)
{
    for (unsigned i = 0; i < N_WAYS * CUDA_TURNS; i++) {
        CUstream *stream = &card->stream[i / CUDA_TURNS][i % CUDA_TURNS];
        if (*stream)
            (void)card->cuda->driver->cuStreamDestroy(*stream);
        *stream = NULL;
    }
    for (unsigned i = 0; i < N_LANES; i++)
        cuda_lane_forget_events(&card->lanes[i]);
}

/* The caller holds card->opening, and the card has no users: no copy is under way. */
static void leave(struct cuda_card *card)
{
    struct cuda *cuda = card->cuda;
    uint64_t bit = UINT64_C(1) << (card->gpu - cuda->driver->gpu);

    if (cuda_gpu_enter(cuda->driver, card->gpu, NULL) == RDT_OK)
        destroy_streams(card);
    (void)cuda->driver->cuCtxSetCurrent(NULL);
    cuda_gpu_leave(cuda->driver, card->gpu);
    for (unsigned i = 0; i < cuda->driver->n_gpus; i++) { /* peer access ends with the context */
        (void)atomic_fetch_and(&cuda->cards[i].asked, ~bit);
        (void)atomic_fetch_and(&cuda->cards[i].reached, ~bit);
    }
    atomic_store(&card->asked, 0);
    atomic_store(&card->reached, 0);
}

static bool is_idle(const struct cuda_card *card)
{
    return card->users == 0 && now_ns() - card->idle_since_ns >= card->cuda->idle_ns;
}

/* Returns whether there is more to do for the card later: to leave a context that nobody uses, or to try a new one after a
 * failure. Pinned memory keeps a context, see pins.c. */
static bool leave_if_idle(struct cuda_card *card)
{
    bool more;

    (void)pthread_mutex_lock(&card->opening);
    if (is_idle(card) && cuda_gpu_is_open(card->gpu) && cuda_pins_of(card) == 0)
        leave(card);
    if (is_idle(card) && atomic_load(&card->failed) && !cuda_gpu_is_open(card->gpu))
        try_anew(card);
    more = card->users == 0 && (cuda_gpu_is_open(card->gpu) || atomic_load(&card->failed));
    (void)pthread_mutex_unlock(&card->opening);
    return more;
}

static bool all_are_idle(const struct cuda *cuda)
{
    for (unsigned i = 0; i < cuda->driver->n_gpus; i++)
        if (cuda_gpu_is_open(cuda->cards[i].gpu) && !is_idle(&cuda->cards[i]))
            return false;
    return true;
}

/* No GPU has had a block for so long, so no copy is under way and nobody needs pinned memory: it is no longer pinned, and the
 * contexts are left. Only this function holds several of the mutexes. */
static void leave_all_if_idle(struct cuda *cuda)
{
    unsigned n = cuda->driver->n_gpus;

    for (unsigned i = 0; i < n; i++)
        (void)pthread_mutex_lock(&cuda->cards[i].opening);
    for (unsigned i = 0; i < n && all_are_idle(cuda); i++) {
        if (!cuda_gpu_is_open(cuda->cards[i].gpu))
            continue;
        cuda_pins_lapse(&cuda->cards[i]);
        leave(&cuda->cards[i]);
    }
    for (unsigned i = n; i-- > 0;)
        (void)pthread_mutex_unlock(&cuda->cards[i].opening);
}

static void *watch(void *arg)
{
    struct cuda *cuda = arg;

    (void)pthread_mutex_lock(&cuda->watch);
    while (!cuda->end) {
        int64_t until_ns = now_ns() + cuda->idle_ns / 4 + 1000000;
        const struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
        bool any = false;
        if (cuda->any_idle)
            (void)pthread_cond_timedwait(&cuda->more, &cuda->watch, &until);
        else
            (void)pthread_cond_wait(&cuda->more, &cuda->watch);
        cuda->any_idle = false;
        (void)pthread_mutex_unlock(&cuda->watch);
        leave_all_if_idle(cuda);
        for (unsigned i = 0; i < cuda->driver->n_gpus; i++)
            any |= leave_if_idle(&cuda->cards[i]);
        (void)pthread_mutex_lock(&cuda->watch);
        cuda->any_idle |= any;
    }
    (void)pthread_mutex_unlock(&cuda->watch);
    return NULL;
}

/* Without a thread the context stays until the kind is closed. */
static void begin_to_watch(struct cuda *cuda)
{
    sigset_t all, before;

    (void)pthread_mutex_lock(&cuda->watch);
    if (!cuda->watching) {
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        cuda->watching = pthread_create(&cuda->watcher, NULL, watch, cuda) == 0;
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    cuda->any_idle = true;
    (void)pthread_cond_signal(&cuda->more);
    (void)pthread_mutex_unlock(&cuda->watch);
}

void cuda_contexts_watch(struct cuda *cuda)
{
    pthread_condattr_t monotonic;

    (void)pthread_mutex_init(&cuda->watch, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&cuda->more, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
}

void cuda_contexts_end(struct cuda *cuda)
{
    (void)pthread_mutex_lock(&cuda->watch);
    cuda->end = true;
    (void)pthread_cond_signal(&cuda->more);
    (void)pthread_mutex_unlock(&cuda->watch);
    if (cuda->watching)
        (void)pthread_join(cuda->watcher, NULL);
    (void)pthread_cond_destroy(&cuda->more);
    (void)pthread_mutex_destroy(&cuda->watch);
    for (unsigned i = 0; i < cuda->driver->n_gpus; i++) {
        struct cuda_card *card = &cuda->cards[i];
        for (unsigned k = 0; k < N_LANES; k++)
            cuda_lane_fini(&card->lanes[k]);
        if (cuda_gpu_is_open(card->gpu) && cuda_gpu_enter(cuda->driver, card->gpu, NULL) == RDT_OK)
            destroy_streams(card);
        cuda_gpu_leave(cuda->driver, card->gpu);
    }
}

void cuda_use(struct cuda_card *card)
{
    (void)pthread_mutex_lock(&card->opening);
    card->users++;
    (void)pthread_mutex_unlock(&card->opening);
}

bool cuda_use_if_open(struct cuda_card *card)
{
    bool is_open;

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
        card->idle_since_ns = now_ns();
    (void)pthread_mutex_unlock(&card->opening);
    if (idle)
        begin_to_watch(card->cuda);
}

CUstream cuda_stream(struct cuda_card *card, enum cuda_way way, unsigned turn, CUresult *result_p)
{
    CUstream stream;

    (void)pthread_mutex_lock(&card->mutex);
    *result_p = CUDA_SUCCESS;
    if (!card->stream[way][turn])
        *result_p = card->cuda->driver->cuStreamCreate(&card->stream[way][turn], CU_STREAM_NON_BLOCKING);
    stream = card->stream[way][turn];
    (void)pthread_mutex_unlock(&card->mutex);
    cuda_note(card, *result_p);
    return stream;
}
