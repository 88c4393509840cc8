/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. The driver closes a legacy handle when no kernel runs any more, and whoever releases an object must not wait for
 * that: the thread that unmaps for librdt may be one whose call has a deadline and is about something else. So a thread of this
 * library closes handles, while there is a connection with GPU memory. It waits a moment first, because the memory of a live
 * object is often fetched again at once, and then costs no call of the driver.
 */
#include <signal.h>
#include <stdlib.h>

#include "client/cuda/gpu.h"

#define LINGER_NS (INT64_C(100) * 1000000)

struct closing {
    struct closing *next;
    struct cuda_handles *handles;
    struct cuda_gpu *gpu;
    struct cuda_opened *opened;
    int64_t due_ns;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects all below. Not held in calls of the driver */
static pthread_cond_t more;
static bool has_more;                          /* the condition is initialised */
static struct closing *first, **last = &first; /* in the order in which they are due */
static unsigned users;                         /* connections with GPU memory */
static bool started, end;
static pthread_t thread;

/* The parent's handles are not valid here, and its thread does not exist. */
void closing_after_fork(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    has_more = false;
    first = NULL;
    last = &first;
    users = 0;
    started = end = false;
}

static void close_one(struct closing *take_closing)
{
    struct cuda_driver *driver;
    struct entered entered;

    if (cuda_driver_open(&driver, NULL) == RDT_OK && gpu_enter(driver, take_closing->gpu, &entered, NULL) == RDT_OK) {
        cuda_handle_close(take_closing->handles, driver, take_closing->opened);
        gpu_leave(driver, &entered);
    }
    free(take_closing);
}

static void *run(void *arg)
{
    (void)arg;
    (void)pthread_mutex_lock(&mutex);
    while (!end || first) {
        struct closing *closing = first;
        if (!closing) {
            (void)pthread_cond_wait(&more, &mutex);
        } else if (!end && clock_now_ns() < closing->due_ns) {
            struct timespec until = clock_timespec(closing->due_ns);
            (void)pthread_cond_timedwait(&more, &mutex, &until);
        } else {
            first = closing->next;
            if (!first)
                last = &first;
            (void)pthread_mutex_unlock(&mutex);
            close_one(closing);
            (void)pthread_mutex_lock(&mutex);
        }
    }
    (void)pthread_mutex_unlock(&mutex);
    return NULL;
}

void closing_begin(void)
{
    pthread_condattr_t monotonic;

    (void)pthread_mutex_lock(&mutex);
    if (!has_more) {
        (void)pthread_condattr_init(&monotonic);
        (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&more, &monotonic);
        (void)pthread_condattr_destroy(&monotonic);
        has_more = true;
    }
    users++;
    (void)pthread_mutex_unlock(&mutex);
}

void closing_end(void)
{
    bool join;

    (void)pthread_mutex_lock(&mutex);
    join = --users == 0 && started && !end;
    end |= join;
    (void)pthread_cond_signal(&more);
    (void)pthread_mutex_unlock(&mutex);
    if (!join)
        return;
    (void)pthread_join(thread, NULL);
    (void)pthread_mutex_lock(&mutex);
    started = end = false;
    (void)pthread_mutex_unlock(&mutex);
}

static bool start(void)
{
    sigset_t all, before;

    if (started)
        return true;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    started = pthread_create(&thread, NULL, run, NULL) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

void closing_add(struct cuda_handles *handles, struct cuda_gpu *gpu, struct cuda_opened *opened)
{
    struct closing *closing = malloc(sizeof *closing), now = {NULL, handles, gpu, opened, 0};
    bool added = false;

    (void)pthread_mutex_lock(&mutex);
    if (closing && users > 0 && !end && start()) {
        *closing = now;
        closing->due_ns = clock_now_ns() + LINGER_NS;
        *last = closing;
        last = &closing->next;
        added = true;
        (void)pthread_cond_signal(&more);
    }
    (void)pthread_mutex_unlock(&mutex);
    if (added)
        return;
    if (!closing && !(closing = malloc(sizeof *closing)))
        return; /* it stays open until the process ends */
    *closing = now;
    close_one(closing);
}
