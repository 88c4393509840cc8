/* SPDX-License-Identifier: Apache-2.0 */
/* See rdt_cuda.h. The end of a handle waits for streams, and the driver for kernels, without limit and without a way to
 * interrupt it. So it runs in a thread of its own, for which rdt_cuda_close waits a while. Until that thread has ended,
 * rdt_close leaves the session, whose memory the GPU may still use:
 *
 *   OPEN ── the thread ends ──────────────► ENDED
 *     └── rdt_cuda_close does not wait ──► LEFT ── the thread ends ──► freed
 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/cuda/gpu.h"

#define CLOSE_NS (INT64_C(10) * 1000000000) /* how long rdt_cuda_close waits for GPUs */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects what follows, and the states. librdt's lock comes first */
static pthread_cond_t ended;
static struct handle *ending; /* whose threads have not ended */

static void init(void)
{
    pthread_condattr_t monotonic;

    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&ended, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    ending = NULL;
}

/* The mapper's. */
static bool busy(void *arg, const rdt *conn)
{
    const struct handle *handle;

    (void)arg;
    (void)pthread_mutex_lock(&mutex);
    for (handle = ending; handle && handle->cuda.conn != conn;)
        handle = handle->next;
    (void)pthread_mutex_unlock(&mutex);
    return handle;
}

/* Tells the connection how GPU memory is mapped, and which GPUs this process sees. */
static enum rdt_status register_mapper(rdt *conn, const struct cuda_driver *driver, struct rdt_error *err)
{
    const char *devices[CUDA_MAX_GPUS];
    struct rdt_mapper mapper = cuda_mapper;

    for (unsigned i = 0; i < driver->n_gpus; i++)
        devices[i] = driver->gpu[i].uuid;
    mapper.devices = devices;
    mapper.n_devices = driver->n_gpus;
    mapper.busy = busy;
    return rdt_map_by(conn, &mapper, err);
}

/* The state of the process, as opposed to that of its handles. */
static void after_fork(void)
{
    cuda_driver_after_fork();
    export_after_fork();
    pool_after_fork();
    retained_after_fork();
    map_after_fork();
    work_after_fork();
    pinned_after_fork();
    closing_after_fork();
    init();
}

static void init_process(void)
{
    init();
    (void)pthread_atfork(NULL, NULL, after_fork);
}

enum rdt_status rdt_cuda_open(rdt *conn, rdt_cuda **cuda_p, struct rdt_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct cuda_driver *driver;
    struct handle *handle;
    enum rdt_status status =
        conn && cuda_p ? cuda_driver_open(&driver, err) : rdt_error_set(err, RDT_INVALID, "rdt or cuda_p is NULL");

    if (status != RDT_OK)
        return status;
    (void)pthread_once(&once, init_process);
    handle = calloc(1, sizeof *handle);
    if (!handle)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to open GPU memory");
    handle->cuda = (struct rdt_cuda){conn, driver, getpid()};
    status = register_mapper(conn, driver, err);
    if (status == RDT_OK && !closing_begin(conn))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to open GPU memory");
    if (status != RDT_OK) {
        free(handle);
        return status;
    }
    work_begin();
    offers_init(&handle->offers);
    streams_init(&handle->streams, conn, driver);
    *cuda_p = &handle->cuda;
    return RDT_OK;
}

static void *end(void *arg)
{
    struct handle *handle = arg, **at = &ending;
    bool left;

    pool_forget(&handle->cuda);
    streams_fini(&handle->streams);
    pinned_forget(&handle->cuda);
    offers_fini(&handle->offers);
    closing_end(handle->cuda.conn);
    work_forget(handle->cuda.driver);
    (void)pthread_mutex_lock(&mutex);
    while (*at != handle)
        at = &(*at)->next;
    *at = handle->next;
    left = handle->state == HANDLE_LEFT;
    handle->state = HANDLE_ENDED;
    (void)pthread_cond_broadcast(&ended);
    (void)pthread_mutex_unlock(&mutex);
    if (left)
        free(handle);
    return NULL;
}

/* Returns whether the thread has ended. Otherwise the handle is the thread's. */
static bool await_end(struct handle *handle)
{
    struct timespec until = clock_timespec(clock_deadline_ns(CLOSE_NS));
    int error = 0;

    (void)pthread_mutex_lock(&mutex);
    while (handle->state == HANDLE_OPEN && error == 0)
        error = pthread_cond_timedwait(&ended, &mutex, &until);
    if (handle->state == HANDLE_OPEN)
        handle->state = HANDLE_LEFT;
    else
        error = 0;
    (void)pthread_mutex_unlock(&mutex);
    return error == 0;
}

/* Without a thread it waits as long as it takes. */
static void end_in_time(struct handle *take_handle)
{
    sigset_t all, before;
    pthread_t thread;
    int error;

    (void)pthread_mutex_lock(&mutex);
    take_handle->next = ending;
    ending = take_handle;
    (void)pthread_mutex_unlock(&mutex);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    error = pthread_create(&thread, NULL, end, take_handle);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        (void)end(take_handle);
    } else if (!await_end(take_handle)) {
        (void)pthread_detach(thread);
        return;
    } else {
        (void)pthread_join(thread, NULL);
    }
    free(take_handle);
}

void rdt_cuda_close(rdt_cuda *cuda)
{
    struct handle *handle = (struct handle *)cuda;

    if (!handle)
        return;
    if (cuda->pid == getpid()) {
        end_in_time(handle);
        return;
    }
    streams_forget(&handle->streams);
    free(handle);
}
