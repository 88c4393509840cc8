/* SPDX-License-Identifier: Apache-2.0 */
/* A queue for each lane, threads that serve the lanes in turn, and a wake-up that brings finished work to
 * the loop. */
#include "daemon/base/work.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/map.h"
#include "daemon/base/wake.h"
#include "proto/list.h"

#define ZERO_BYTES (512u << 10) /* zeroed in one piece: some tens of microseconds */
#define TOUCH_BYTES (128u << 10)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define FREE_LATER_BYTES (128u << 10)
#define DONE_PER_TURN 32 /* so that the loop reads its sockets in between */

struct lane { /* exists while it has work */
    struct list link;
    uint64_t number;
    struct work_queue todo;
};

struct work_pool {
    struct wake wake;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    /* Under the mutex. */
    struct list turns; /* struct lane.link: the lane to be served next comes first */
    struct map lanes;  /* by number; if there is no memory for a lane, its work goes to lane 0 */
    struct lane common;
    struct work_queue finished;
    uint64_t outstanding; /* submitted, and done has not returned */
    bool closing, stop;
    /* Loop thread. */
    void (*on_closed)(void *arg);
    void *arg;
    unsigned n_threads;
    pthread_t threads[];
};

static struct lane *lane_get(struct work_pool *pool, uint64_t number)
{
    struct lane *lane = number == 0 ? &pool->common : map_get_u64(&pool->lanes, number);

    if (lane)
        return lane;
    lane = malloc(sizeof(*lane));
    if (!lane || !map_put_u64(&pool->lanes, number, lane)) {
        free(lane);
        return &pool->common;
    }
    lane->number = number;
    list_init(&lane->link);
    work_queue_init(&lane->todo);
    return lane;
}

/* NULL: there is no work. */
static struct work *take_next(struct work_pool *pool)
{
    struct list *node = list_first(&pool->turns);
    if (!node)
        return NULL;
    struct lane *lane = container_of(node, struct lane, link);
    struct work *work = work_queue_pop(&lane->todo);
    list_remove(&lane->link);
    if (lane->todo.first) {
        list_append(&pool->turns, &lane->link);
    } else if (lane != &pool->common) {
        (void)map_remove_u64(&pool->lanes, lane->number);
        free(lane);
    }
    return work;
}

static void put_in_lane(struct work_pool *pool, struct work *work)
{
    struct lane *lane = lane_get(pool, work->lane);
    if (!lane->todo.first)
        list_append(&pool->turns, &lane->link);
    work_queue_push(&lane->todo, work);
}

static void *thread_main(void *arg)
{
    struct work_pool *pool = arg;
    (void)pthread_setname_np(pthread_self(), "rdtd-work");
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (list_empty(&pool->turns) && !pool->stop)
            pthread_cond_wait(&pool->more, &pool->mutex);
        struct work *work = take_next(pool);
        if (!work)
            break;
        pthread_mutex_unlock(&pool->mutex);

        /* Without done, the struct may be gone when run returns. */
        bool wants_done = work->done;
        work->run(work);
        (void)sched_yield(); /* a client or the loop may be waiting for this core */

        bool wake = false;
        pthread_mutex_lock(&pool->mutex);
        if (wants_done && work->again) {
            work->again = false;
            put_in_lane(pool, work); /* this thread takes the next work itself, so none is woken */
        } else if (wants_done) {
            wake = !pool->finished.first;
            work_queue_push(&pool->finished, work);
        } else {
            pool->outstanding--;
            wake = pool->closing;
        }
        if (wake) { /* without the mutex, because the loop may run on this core at once and takes it */
            pthread_mutex_unlock(&pool->mutex);
            wake_send(&pool->wake);
            pthread_mutex_lock(&pool->mutex);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static void join_threads(struct work_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_broadcast(&pool->more);
    pthread_mutex_unlock(&pool->mutex);
    for (unsigned i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->more);
    pthread_mutex_destroy(&pool->mutex);
}

static void on_wake_closed(struct wake *wake)
{
    struct work_pool *pool = container_of(wake, struct work_pool, wake);
    void (*on_closed)(void *arg) = pool->on_closed;
    void *arg = pool->arg;
    map_fini(&pool->lanes);
    free(pool);
    on_closed(arg);
}

static void on_wake(struct wake *wake)
{
    struct work_pool *pool = container_of(wake, struct work_pool, wake);
    pthread_mutex_lock(&pool->mutex);
    for (unsigned n = 0; pool->finished.first; n++) {
        if (n == DONE_PER_TURN) {
            wake_send(&pool->wake);
            break;
        }
        struct work *work = work_queue_pop(&pool->finished);
        pthread_mutex_unlock(&pool->mutex);
        work->done(work);
        pthread_mutex_lock(&pool->mutex);
        pool->outstanding--;
    }
    bool finished = pool->closing && pool->outstanding == 0 && !uv_is_closing((uv_handle_t *)&wake->poll);
    pthread_mutex_unlock(&pool->mutex);
    if (finished) {
        join_threads(pool); /* all of them are idle */
        wake_close(wake, on_wake_closed);
    }
}

static void on_failed_wake_closed(struct wake *wake)
{
    struct work_pool *pool = container_of(wake, struct work_pool, wake);
    map_fini(&pool->lanes);
    free(pool);
}

enum rdt_status work_pool_create(uv_loop_t *loop, unsigned n_threads, struct work_pool **pool_p, struct rdt_error *err)
{
    assert(n_threads > 0);
    struct work_pool *pool = calloc(1, sizeof(*pool) + n_threads * sizeof pool->threads[0]);
    if (!pool)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a pool of %u worker threads", n_threads);
    list_init(&pool->turns);
    map_init(&pool->lanes);
    list_init(&pool->common.link);
    work_queue_init(&pool->common.todo);
    work_queue_init(&pool->finished);
    enum rdt_status status = wake_init(&pool->wake, loop, on_wake, "the worker pool", err);
    if (status != RDT_OK) {
        map_fini(&pool->lanes);
        free(pool);
        return status;
    }
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->more, NULL);
    for (; pool->n_threads < n_threads; pool->n_threads++) {
        int rc = pthread_create(&pool->threads[pool->n_threads], NULL, thread_main, pool);
        if (rc != 0) {
            join_threads(pool);
            wake_close(&pool->wake, on_failed_wake_closed);
            return rdt_error_sys(err, rc, "cannot start thread %u of %u", pool->n_threads + 1, n_threads);
        }
    }
    *pool_p = pool;
    return RDT_OK;
}

void work_submit(struct work_pool *pool, struct work *work)
{
    pthread_mutex_lock(&pool->mutex);
    assert(!pool->stop);
    pool->outstanding++;
    put_in_lane(pool, work);
    /* under the mutex: as soon as the work is done, the pool may be closed and freed */
    pthread_cond_signal(&pool->more);
    pthread_mutex_unlock(&pool->mutex);
}

void work_zero(void *memory, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += ZERO_BYTES) {
        memset((uint8_t *)memory + at, 0, bytes - at < ZERO_BYTES ? bytes - at : ZERO_BYTES);
        (void)sched_yield();
    }
}

void work_touch(void *memory, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), end = ((uintptr_t)memory + bytes) & ~(page - 1);
    uintptr_t at = ((uintptr_t)memory + page - 1) & ~(page - 1);

    if (bytes < TOUCH_BYTES)
        return;
    /* where huge pages are available, one fault brings 512 pages */
    (void)madvise((void *)at, end - at, MADV_HUGEPAGE);
    for (; at < end; at += TOUCH_BYTES) {
        if (madvise((void *)at, end - at < TOUCH_BYTES ? end - at : TOUCH_BYTES, MADV_POPULATE_WRITE) != 0)
            return; /* before Linux 5.14: each page is allocated when it is touched */
        (void)sched_yield();
    }
}

static void run_free(struct work *work)
{
    free(work);
}

void work_free(struct work_pool *pool, void *memory, size_t bytes)
{
    struct work *work = memory;

    if (!memory || bytes < FREE_LATER_BYTES) {
        free(memory);
        return;
    }
    *work = (struct work){.run = run_free}; /* overwrites the memory, whose content nobody needs */
    work_submit(pool, work);
}

struct arena_end {
    struct work work;
    struct arena arena;
};

static void run_arena_end(struct work *work)
{
    struct arena arena = ((struct arena_end *)work)->arena; /* copied, since the struct lies in the arena */
    arena_fini(&arena);
}

void work_free_arena(struct work_pool *pool, struct arena *arena)
{
    struct arena_end *end = arena->used_bytes < FREE_LATER_BYTES ? NULL : arena_alloc(arena, sizeof(*end));
    if (!end) {
        arena_fini(arena);
        return;
    }
    *end = (struct arena_end){.work.run = run_arena_end, .arena = *arena};
    work_submit(pool, &end->work);
}

void work_pool_close(struct work_pool *pool, void (*on_closed)(void *arg), void *arg)
{
    assert(on_closed);
    pool->on_closed = on_closed;
    pool->arg = arg;
    pthread_mutex_lock(&pool->mutex);
    assert(!pool->closing);
    pool->closing = true;
    wake_send(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}
