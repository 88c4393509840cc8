/* A queue, threads that take from it, and one uv_async_t that brings what is finished back to the loop. */
#include "daemon/work.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

struct queue {
    struct work *first, **last;
};

struct work_pool {
    uv_async_t wake; /* wake.data: the pool */
    pthread_mutex_t mutex;
    pthread_cond_t more;
    /* Under the mutex. */
    struct queue todo, finished;
    uint64_t outstanding; /* submitted, and done has not returned */
    bool closing, stop;
    /* Loop thread. */
    void (*on_closed)(void *arg);
    void *arg;
    unsigned n_threads;
    pthread_t threads[];
};

static void queue_init(struct queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

static void queue_push(struct queue *queue, struct work *work)
{
    work->next = NULL;
    *queue->last = work;
    queue->last = &work->next;
}

static struct work *queue_pop(struct queue *queue)
{
    struct work *work = queue->first;
    if (work != NULL) {
        queue->first = work->next;
        if (queue->first == NULL)
            queue->last = &queue->first;
    }
    return work;
}

static void *thread_main(void *arg)
{
    struct work_pool *pool = arg;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (pool->todo.first == NULL && !pool->stop)
            pthread_cond_wait(&pool->more, &pool->mutex);
        struct work *work = queue_pop(&pool->todo);
        if (work == NULL)
            break;
        pthread_mutex_unlock(&pool->mutex);

        /* Without done the struct may be gone when run returns. */
        bool wants_done = work->done != NULL;
        work->run(work);

        pthread_mutex_lock(&pool->mutex);
        bool wake = false;
        if (wants_done) {
            wake = pool->finished.first == NULL;
            queue_push(&pool->finished, work);
        } else {
            pool->outstanding--;
            wake = pool->closing;
        }
        if (wake)
            uv_async_send(&pool->wake);
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

static void on_wake_closed(uv_handle_t *handle)
{
    struct work_pool *pool = handle->data;
    void (*on_closed)(void *arg) = pool->on_closed;
    void *arg = pool->arg;
    free(pool);
    on_closed(arg);
}

static void on_wake(uv_async_t *wake)
{
    struct work_pool *pool = wake->data;
    pthread_mutex_lock(&pool->mutex);
    /* What finishes meanwhile sends a wake-up of its own: the queue that it is pushed to is empty by then. */
    struct work *work = pool->finished.first;
    queue_init(&pool->finished);
    while (work != NULL) {
        struct work *next = work->next;
        pthread_mutex_unlock(&pool->mutex);
        work->done(work);
        pthread_mutex_lock(&pool->mutex);
        pool->outstanding--;
        work = next;
    }
    bool finished = pool->closing && pool->outstanding == 0 && !uv_is_closing((uv_handle_t *)wake);
    pthread_mutex_unlock(&pool->mutex);
    if (finished) {
        join_threads(pool); /* all of them are idle */
        uv_close((uv_handle_t *)wake, on_wake_closed);
    }
}

static void on_stillborn_closed(uv_handle_t *handle)
{
    free(handle->data);
}

enum rdt_status work_pool_create(uv_loop_t *loop, unsigned n_threads, struct work_pool **pool_p, struct rdt_error *err)
{
    assert(n_threads > 0);
    struct work_pool *pool = calloc(1, sizeof(*pool) + n_threads * sizeof(pool->threads[0]));
    if (pool == NULL)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a pool of %u threads", n_threads);
    queue_init(&pool->todo);
    queue_init(&pool->finished);
    int rc = uv_async_init(loop, &pool->wake, on_wake);
    if (rc != 0) {
        free(pool);
        return rdt_error_sys(err, -rc, "cannot make the pool's wake-up");
    }
    pool->wake.data = pool;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->more, NULL);
    for (; pool->n_threads < n_threads; pool->n_threads++) {
        rc = pthread_create(&pool->threads[pool->n_threads], NULL, thread_main, pool);
        if (rc != 0) {
            join_threads(pool);
            uv_close((uv_handle_t *)&pool->wake, on_stillborn_closed);
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
    queue_push(&pool->todo, work);
    pthread_cond_signal(&pool->more);
    pthread_mutex_unlock(&pool->mutex);
}

void work_pool_close(struct work_pool *pool, void (*on_closed)(void *arg), void *arg)
{
    assert(on_closed != NULL);
    pool->on_closed = on_closed;
    pool->arg = arg;
    pthread_mutex_lock(&pool->mutex);
    assert(!pool->closing);
    pool->closing = true;
    uv_async_send(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}
