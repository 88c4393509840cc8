/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts that nobody uses: a thread leaves them after pool_idle, and tries new ones where one has failed. context.c has the
 * drawing. */
#include "backends/cuda/cuda.h"

#include <stdatomic.h>

static void end_streams(struct cuda_card *card, struct cuda_streams *streams, unsigned n)
{
    for (unsigned i = 0; i < n * CUDA_TURNS; i++) {
        CUstream *stream = &streams[i / CUDA_TURNS].stream[i % CUDA_TURNS];
        if (*stream)
            (void)card->cuda->driver->cuStreamDestroy(*stream);
        *stream = NULL;
    }
}

/* The GPU's context is current in the thread, and no copy is under way. */
static void destroy_streams(struct cuda_card *card)
{
    end_streams(card, card->streams, N_WAYS);
    end_streams(card, card->across, card->cuda->driver->n_gpus);
    end_streams(card, &card->clearing, 1);
    for (unsigned i = 0; i < N_WAYS; i++)
        cuda_worker_forget_events(&card->workers[i]);
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
    return card->users == 0 && (int64_t)monotonic_ns() - card->idle_since_ns >= card->cuda->idle_ns;
}

/* The failed context is left, or was for a while. If one that is retained anew works, the GPU may be used again. The caller
 * holds card->opening. */
static void try_anew(struct cuda_card *card)
{
    struct cuda *cuda = card->cuda;

    card->idle_since_ns = (int64_t)monotonic_ns();
    if (cuda_gpu_enter(cuda->driver, card->gpu, NULL) == RDT_OK && cuda->driver->cuCtxSynchronize() == CUDA_SUCCESS) {
        atomic_store(&card->failed, false);
        cuda->host.log(cuda->host.ctx, RDT_LOG_INFO, "%s (%s): a new context works", card->gpu->uuid, card->gpu->name);
    }
    (void)cuda->driver->cuCtxSetCurrent(NULL);
    cuda_gpu_leave(cuda->driver, card->gpu);
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

/* If no GPU has had a block for so long, no copy is under way and nobody needs pinned memory: it is no longer pinned. Returns
 * whether that is so. Only this function holds several of the mutexes, and it waits for none: a GPU whose mutex somebody else
 * holds is in use. */
static bool lapse_pins_if_all_idle(struct cuda *cuda)
{
    unsigned n = cuda->driver->n_gpus, held = 0;
    bool idle;

    while (held < n && pthread_mutex_trylock(&cuda->cards[held].opening) == 0)
        held++;
    idle = held == n && all_are_idle(cuda);
    for (unsigned i = 0; i < n && idle; i++)
        if (cuda_gpu_is_open(cuda->cards[i].gpu))
            cuda_pins_lapse(&cuda->cards[i]);
    while (held > 0)
        (void)pthread_mutex_unlock(&cuda->cards[--held].opening);
    return idle;
}

/* A context that got a user after the pins had lapsed was not left, and takes them over. */
static void restore_pins(struct cuda *cuda)
{
    bool open = false;

    for (unsigned i = 0; i < cuda->driver->n_gpus && !open; i++) {
        struct cuda_card *card = &cuda->cards[i];
        (void)pthread_mutex_lock(&card->opening);
        open = cuda_gpu_is_open(card->gpu) && cuda_gpu_enter(cuda->driver, card->gpu, NULL) == RDT_OK;
        if (open)
            cuda_pins_restore(card);
        (void)pthread_mutex_unlock(&card->opening);
    }
    (void)cuda->driver->cuCtxSetCurrent(NULL);
}

static void *watch(void *arg)
{
    struct cuda *cuda = arg;

    (void)pthread_mutex_lock(&cuda->watch);
    while (!cuda->end) {
        bool any = false, lapsed;
        if (cuda->any_idle)
            (void)cond_wait_ns(&cuda->more, &cuda->watch, (uint64_t)cuda->idle_ns / 4 + 1000000);
        else
            (void)pthread_cond_wait(&cuda->more, &cuda->watch);
        cuda->any_idle = false;
        (void)pthread_mutex_unlock(&cuda->watch);
        lapsed = lapse_pins_if_all_idle(cuda);
        for (unsigned i = 0; i < cuda->driver->n_gpus; i++)
            any |= leave_if_idle(&cuda->cards[i]);
        if (lapsed)
            restore_pins(cuda);
        (void)pthread_mutex_lock(&cuda->watch);
        cuda->any_idle |= any;
    }
    (void)pthread_mutex_unlock(&cuda->watch);
    return NULL;
}

/* Without a thread the context stays until the kind is closed. */
static void begin_to_watch(struct cuda *cuda)
{
    (void)pthread_mutex_lock(&cuda->watch);
    if (!cuda->watching)
        cuda->watching = thread_create(&cuda->watcher, watch, cuda) == 0;
    cuda->any_idle = true;
    (void)pthread_cond_signal(&cuda->more);
    (void)pthread_mutex_unlock(&cuda->watch);
}

void cuda_contexts_watch(struct cuda *cuda)
{
    cuda->on_opened = cuda_pins_restore;
    cuda->on_idle = begin_to_watch;
    (void)pthread_mutex_init(&cuda->watch, NULL);
    cond_init_monotonic(&cuda->more);
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
        for (unsigned k = 0; k < N_WAYS; k++)
            cuda_worker_fini(&card->workers[k]);
        if (cuda_gpu_is_open(card->gpu) && cuda_gpu_enter(cuda->driver, card->gpu, NULL) == RDT_OK)
            destroy_streams(card);
        cuda_gpu_leave(cuda->driver, card->gpu);
    }
}
