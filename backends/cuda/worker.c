/* SPDX-License-Identifier: Apache-2.0 */
/* Workers: the threads that queue copies of a GPU and notice their ends. See cuda.h.
 *
 *      copy_start (loop)        the worker's thread                        the GPU
 *         │ given ──────────────►│ pieces into a stream, then an event ──►│
 *         │                      │ ask whether the event has come  ◄──────┤
 *         │◄───── copy_done ─────┤
 *
 * The loop never calls the driver, some of whose calls wait for a GPU or for locks of other threads. A callback in the copying
 * stream would be simpler, but the stream stands still until the callback's thread has run; an event costs the stream nothing.
 * When a copy has begun the thread asks without a pause for 50 us, in which most small ones end (on an H100 1 MiB to the host
 * took 139 us with a sleep at once, and 58 so). Then it asks every 20 us at first and every 200 us at last. Without copies
 * under way it sleeps.
 *
 * Each GPU has a worker for each way of copies, so that one direction does not wait for calls that queue the other one. Copies
 * from and to host memory that is not pinned are carried out inside the call, and those between GPUs may need mappings first.
 *
 * A worker runs on the processors of the GPU's NUMA node, as far as the daemon may use them.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "backends/cuda/cuda.h"

#define LOOK_NS 50000
#define POLL_MIN_NS 20000
#define POLL_MAX_NS 200000
#define SLACK_NS 1000ul /* the default would make each wait 50 us longer */

/* priv of a copy */
enum { PRIV_NEXT, PRIV_EVENT, PRIV_RESULT };

static struct rdt_memory_copy **next_of(struct rdt_memory_copy *copy)
{
    return (struct rdt_memory_copy **)&copy->priv[PRIV_NEXT];
}

static struct cuda_driver *driver_of(const struct cuda_worker *worker)
{
    return worker->card->cuda->driver;
}

static void report(struct cuda_worker *worker, struct rdt_memory_copy *copy, CUresult result)
{
    struct rdt_error err = {.msg = ""};

    cuda_note(worker->card, result);
    if (result != CUDA_SUCCESS)
        (void)cuda_failed(driver_of(worker), result, &err, "copying");
    worker->card->cuda->host.copy_done(copy, result == CUDA_SUCCESS ? RDT_OK : RDT_SYSTEM, err.msg);
}

/* ---- events ---- */

static CUresult take_event(struct cuda_worker *worker, CUevent *event_p)
{
    if (worker->n_events == 0)
        return driver_of(worker)->cuEventCreate(event_p, CU_EVENT_DISABLE_TIMING);
    *event_p = worker->events[--worker->n_events];
    return CUDA_SUCCESS;
}

static void give_event(struct cuda_worker *worker, CUevent event)
{
    if (worker->n_events < CUDA_WORKER_EVENTS)
        worker->events[worker->n_events++] = event;
    else
        (void)driver_of(worker)->cuEventDestroy(event);
}

void cuda_worker_forget_events(struct cuda_worker *worker)
{
    while (worker->n_events > 0)
        (void)driver_of(worker)->cuEventDestroy(worker->events[--worker->n_events]);
}

/* ---- the thread ---- */

/* Queues a copy and an event behind it. Returns whether it is under way; if not, it has been reported. */
static bool begin(struct cuda_worker *worker, struct rdt_memory_copy *copy)
{
    struct cuda_driver *driver = driver_of(worker);
    struct rdt_error err;
    CUstream stream = NULL;
    CUevent event = NULL;
    CUresult queued, result;

    if (cuda_copy_enter(worker->card, copy, &err) != RDT_OK) {
        worker->card->cuda->host.copy_done(copy, RDT_SYSTEM, err.msg);
        return false;
    }
    queued = cuda_copy_queue(worker->card, copy, &stream);
    if (!stream) { /* no part of it is under way */
        report(worker, copy, queued);
        return false;
    }
    result = take_event(worker, &event);
    if (result == CUDA_SUCCESS)
        result = driver->cuEventRecord(event, stream);
    if (result != CUDA_SUCCESS) {
        (void)driver->cuStreamSynchronize(stream); /* a copy that has failed must not go on */
        if (event)
            give_event(worker, event);
        report(worker, copy, queued != CUDA_SUCCESS ? queued : result);
        return false;
    }
    copy->priv[PRIV_EVENT] = event;
    copy->priv[PRIV_RESULT] = (void *)(uintptr_t)queued;
    return true;
}

/* Reports the copies that have ended. Returns whether there was any. */
static bool check(struct cuda_worker *worker, struct rdt_memory_copy **running)
{
    bool any = false;

    while (*running) {
        struct rdt_memory_copy *copy = *running;
        CUevent event = copy->priv[PRIV_EVENT];
        CUresult queued = (CUresult)(uintptr_t)copy->priv[PRIV_RESULT], result = driver_of(worker)->cuEventQuery(event);
        if (result == CUDA_ERROR_NOT_READY) {
            running = next_of(copy);
            continue;
        }
        *running = *next_of(copy);
        give_event(worker, event); /* before the report, after which the context may be left */
        report(worker, copy, queued != CUDA_SUCCESS ? queued : result);
        any = true;
    }
    return any;
}

static bool is_given(struct cuda_worker *worker)
{
    bool given;

    (void)pthread_mutex_lock(&worker->mutex);
    given = worker->first;
    (void)pthread_mutex_unlock(&worker->mutex);
    return given;
}

/* Asks again and again, for LOOK_NS or until a copy has ended or another is given. Returns whether any has ended. */
static bool look(struct cuda_worker *worker, struct rdt_memory_copy **running)
{
    uint64_t until_ns = monotonic_ns() + LOOK_NS;
    bool any;

    do
        any = check(worker, running);
    while (!any && *running && !is_given(worker) && monotonic_ns() < until_ns);
    return any;
}

/* Waits for copies that are given to the worker, but only until the time has passed if some are running. */
static struct rdt_memory_copy *take_given(struct cuda_worker *worker, bool running, int64_t poll_ns)
{
    struct rdt_memory_copy *copies;
    int over = 0;

    (void)pthread_mutex_lock(&worker->mutex);
    while (!worker->first && over == 0 && (running || !worker->end))
        over = running ? cond_wait_ns(&worker->more, &worker->mutex, (uint64_t)poll_ns)
                       : pthread_cond_wait(&worker->more, &worker->mutex);
    copies = worker->first;
    worker->first = NULL;
    worker->last = &worker->first;
    (void)pthread_mutex_unlock(&worker->mutex);
    return copies;
}

/* Reads a list such as "0-27,56-83". */
static void read_cpus(const char *text, cpu_set_t *cpus_p)
{
    char *end;

    CPU_ZERO(cpus_p);
    for (const char *at = text; *at >= '0' && *at <= '9'; at = *end == ',' ? end + 1 : end) {
        unsigned long first = strtoul(at, &end, 10), last = *end == '-' ? strtoul(end + 1, &end, 10) : first;
        for (; first <= last && first < CPU_SETSIZE; first++)
            CPU_SET(first, cpus_p);
    }
}

static void stay_near(const struct cuda_card *card)
{
    char path[64], text[1024] = "";
    cpu_set_t near, allowed;
    FILE *file;

    if (card->node < 0)
        return;
    (void)snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", card->node);
    file = fopen(path, "re");
    if (!file)
        return;
    if (fgets(text, sizeof text, file) && sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        read_cpus(text, &near);
        CPU_AND(&near, &near, &allowed);
        if (CPU_COUNT(&near) > 0)
            (void)sched_setaffinity(0, sizeof near, &near);
    }
    (void)fclose(file);
}

static void *run(void *arg)
{
    struct cuda_worker *worker = arg;
    struct rdt_memory_copy *running = NULL, **last, *given, *copy;
    int64_t poll_ns = POLL_MIN_NS;

    (void)prctl(PR_SET_TIMERSLACK, SLACK_NS);
    stay_near(worker->card);
    while ((given = take_given(worker, running, poll_ns)) || running) {
        bool begun = given, ended;
        while ((copy = given)) {
            given = *next_of(copy);
            *next_of(copy) = NULL;
            if (!begin(worker, copy))
                continue;
            for (last = &running; *last;)
                last = next_of(*last);
            *last = copy;
            (void)check(worker, &running); /* queuing takes long if the memory is not pinned */
        }
        ended = begun ? look(worker, &running) : check(worker, &running);
        poll_ns = begun || ended ? POLL_MIN_NS : poll_ns + poll_ns / 2;
        if (poll_ns > POLL_MAX_NS)
            poll_ns = POLL_MAX_NS;
    }
    return NULL;
}

/* ---- the worker ---- */

void cuda_worker_init(struct cuda_worker *worker, struct cuda_card *card)
{
    *worker = (struct cuda_worker){.card = card};
    worker->last = &worker->first;
    (void)pthread_mutex_init(&worker->mutex, NULL);
    cond_init_monotonic(&worker->more);
}

enum rdt_status cuda_copy_start(void *memory, struct rdt_memory_copy *copy, struct rdt_error *err)
{
    struct cuda_card *card;
    enum cuda_way way = cuda_copy_way(copy, &card);
    struct cuda_worker *worker = &card->workers[way];
    int error = 0;

    (void)memory;
    *next_of(copy) = NULL;
    (void)pthread_mutex_lock(&worker->mutex);
    if (!worker->started) {
        error = thread_create(&worker->thread, run, worker);
        worker->started = error == 0;
    }
    if (!error) {
        *worker->last = copy;
        worker->last = next_of(copy);
        (void)pthread_cond_signal(&worker->more);
    }
    (void)pthread_mutex_unlock(&worker->mutex);
    return error ? rdt_error_sys(err, error, "starting the thread for copies of %s", worker->card->gpu->uuid) : RDT_OK;
}

void cuda_worker_fini(struct cuda_worker *worker)
{
    if (worker->started) {
        (void)pthread_mutex_lock(&worker->mutex);
        worker->end = true;
        (void)pthread_cond_signal(&worker->more);
        (void)pthread_mutex_unlock(&worker->mutex);
        (void)pthread_join(worker->thread, NULL);
    }
    (void)pthread_cond_destroy(&worker->more);
    (void)pthread_mutex_destroy(&worker->mutex);
}
