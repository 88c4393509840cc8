/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: a UCX context with its data thread, the only one that uses its UCX worker.
 *
 * There is one. RDMA needs no more, because its device moves the bytes. With several, UCX before 1.18 ends the process when a
 * thread handles an event of a descriptor that it has closed, and that a connection of another thread has now
 * (openucx/ucx#9942); what is left of that with one thread is in link.c, at MAX_ACCEPTED.
 *
 * It polls while something moves, a few hundred times more while an operation is outstanding, and then sleeps on the worker's
 * descriptor: waking a sleeper takes tens of microseconds, a poll less than one. An idle thread wakes once a second, because
 * UCX's keepalive runs only in progress, and because UCX has been seen to miss a wake-up. While the thread polls it yields the
 * processor, so that a client's small request does not wait for the end of its time slice.
 */
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "backends/ucx/ucx.h"

#define TICK_MS 1000
#define YIELD_AFTER_NS 50000        /* not more often, because many small messages between two yields are faster */
#define STOP_NS (2 * 1000000000ull) /* how long the links may take to close at the end */
/* How long the thread goes on, without links, before it destroys the listener and the worker. UCX 1.13 ends the process when an
 * accepted connection sends its first message after its listener is destroyed, or is still being set up when its worker is. */
#define DRAIN_NS (50 * 1000000ull)

struct start {
    struct engine *engine;
    sem_t done;
    enum rdt_status status;
    struct rdt_error err;
};

static enum rdt_status worker_create(struct engine *engine, struct rdt_error *err)
{
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucs_status_t ucs = ucp_worker_create(engine->context, &params, &engine->worker);
    enum rdt_status status;

    if (ucs != UCS_OK)
        return rdt_error_set(err, RDT_UNSUPPORTED, "UCX cannot create a worker: %s", ucs_status_string(ucs));
    status = chunks_handle(engine, err);
    if (status == RDT_OK)
        status = links_listen(engine, &conn_link_events, err);
    if (status != RDT_OK)
        ucp_worker_destroy(engine->worker);
    return status;
}

/* True: there is nothing to do, and from now on new work or an event of UCX wakes the thread. */
static bool fall_asleep(struct engine *engine)
{
    bool quiet;

    (void)pthread_mutex_lock(&engine->lock);
    quiet = ring_empty(&engine->active) && ring_empty(&engine->ending) && !engine->n_requests && !engine->stopping;
    engine->asleep = quiet;
    (void)pthread_mutex_unlock(&engine->lock);
    return quiet && ucp_worker_arm(engine->worker) == UCS_OK;
}

static bool outstanding(struct engine *engine, bool *stopping_p)
{
    bool any;

    (void)pthread_mutex_lock(&engine->lock);
    any = engine->posted > 0;
    *stopping_p = engine->stopping;
    (void)pthread_mutex_unlock(&engine->lock);
    return any;
}

static void awake(struct engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    engine->asleep = false;
    (void)pthread_mutex_unlock(&engine->lock);
}

static void run(struct engine *engine, int wake_fd)
{
    struct pollfd pollfd = {.fd = wake_fd, .events = POLLIN};
    uint64_t now_ns = monotonic_ns(), tick_ns = now_ns + TICK_MS * 1000000ull, yielded_ns = now_ns, stop_ns = 0,
             unlinked_ns = 0;
    unsigned idle = 0;

    for (;;) {
        bool stopping;

        links_accept(engine);
        conns_run(engine);
        ops_report_ended(engine);
        if (ucp_worker_progress(engine->worker))
            idle = 0;
        else
            idle++;
        links_settle(engine);
        now_ns = monotonic_ns();
        if (now_ns - yielded_ns >= YIELD_AFTER_NS) {
            (void)sched_yield();
            yielded_ns = now_ns = monotonic_ns();
        }
        if (now_ns >= tick_ns) {
            tick_ns = now_ns + TICK_MS * 1000000ull;
            links_expire(engine, false);
        }
        if (!idle || (outstanding(engine, &stopping) && idle < engine->settings.spin_polls))
            continue;

        if (stopping) {
            if (!stop_ns)
                stop_ns = now_ns + STOP_NS;
            links_expire(engine, true);
            if (engine->n_links || engine->n_requests)
                unlinked_ns = 0;
            else if (!unlinked_ns)
                unlinked_ns = now_ns;
            if ((unlinked_ns && now_ns > unlinked_ns + DRAIN_NS) || now_ns > stop_ns)
                return;
            if (unlinked_ns)
                (void)poll(NULL, 0, 1);
            continue;
        }
        if (fall_asleep(engine)) {
            (void)poll(&pollfd, 1, TICK_MS);
            idle = 0;
        }
        awake(engine);
    }
}

static void *thread_main(void *arg)
{
    struct start *start = arg;
    struct engine *engine = start->engine;
    int wake_fd = -1;

    start->status = worker_create(engine, &start->err);
    if (start->status == RDT_OK && ucp_worker_get_efd(engine->worker, &wake_fd) != UCS_OK) {
        links_unlisten(engine);
        ucp_worker_destroy(engine->worker);
        start->status = rdt_error_set(&start->err, RDT_UNSUPPORTED, "this UCX cannot wake a sleeping thread");
    }
    if (start->status != RDT_OK) {
        (void)sem_post(&start->done);
        return NULL;
    }
    (void)sem_post(&start->done); /* the caller ends the life of `start` now */

    run(engine, wake_fd);
    links_unlisten(engine);
    ucp_worker_destroy(engine->worker);
    links_free(engine);
    return NULL;
}

static enum rdt_status thread_start(struct engine *engine, struct rdt_error *err)
{
    struct start start = {.engine = engine};
    int error;

    (void)sem_init(&start.done, 0, 0);
    error = thread_create(&engine->thread, thread_main, &start);
    if (error) {
        (void)sem_destroy(&start.done);
        return rdt_error_sys(err, error, "starting the data thread");
    }
    (void)pthread_setname_np(engine->thread, "rdt-ucx");
    while (sem_wait(&start.done))
        ;
    (void)sem_destroy(&start.done);
    if (start.status != RDT_OK) {
        (void)pthread_join(engine->thread, NULL);
        return rdt_error_set(err, start.status, "%s", start.err.msg);
    }
    return RDT_OK;
}

static void thread_stop(struct engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    engine->stopping = true;
    thread_wake(engine);
    (void)pthread_mutex_unlock(&engine->lock);
    (void)pthread_join(engine->thread, NULL);
}

/* ---- the engine ---- */

static void engine_free(struct engine *engine)
{
    if (engine->context)
        ucp_cleanup(engine->context);
    (void)pthread_mutex_destroy(&engine->lock);
    free(engine);
}

/* If UCX does not answer, memory.types stays 0, and the transport moves host memory only. */
static void query_memory(struct engine *engine)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    unsigned release;

    ucp_get_version(&engine->memory.major, &engine->memory.minor, &release);
    engine->memory.module = ucx_has_cuda_module();
    if (ucp_context_query(engine->context, &attr) == UCS_OK)
        engine->memory.types = attr.memory_types;
}

enum rdt_status engine_create(const struct rdt_host *host, const struct settings *settings, struct engine **engine_p,
                              struct rdt_error *err)
{
    struct engine *engine = calloc(1, sizeof *engine);
    enum rdt_status status;

    if (!engine)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for an engine");
    engine->host = *host;
    engine->settings = *settings;
    (void)pthread_mutex_init(&engine->lock, NULL);
    ring_init(&engine->conns);
    ring_init(&engine->active);
    ring_init(&engine->ending);
    ring_init(&engine->dying);
    strangers_init(&engine->strangers, MAX_STRANGERS, MAX_STRANGERS_OF_SOURCE);
    for (unsigned i = 0; i < LINK_BUCKETS; i++)
        ring_init(&engine->links[i]);
    status = settings_context(settings, &engine->context, err);
    if (status == RDT_OK)
        query_memory(engine);
    if (status == RDT_OK)
        status = thread_start(engine, err);
    if (status != RDT_OK) {
        engine_free(engine);
        return status;
    }
    *engine_p = engine;
    return RDT_OK;
}

void engine_destroy(struct engine *engine)
{
    thread_stop(engine);
    engine_free(engine);
}
