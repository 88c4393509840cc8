/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. The driver closes a legacy handle when no kernel runs any more, and whoever releases an object must not wait for
 * that: the thread that unmaps for librdt may be one whose call has a deadline and is about something else. So a thread of this
 * library closes handles, also those that rdt_close leaves. While there is a connection with GPU memory it waits a moment
 * first, because the memory of a live object is often fetched again at once, and then costs no call of the driver.
 *
 * librdt keeps memory of fetched objects mapped until the daemon says that it has ended, and reads that at its next call. So
 * while there is such memory, the thread looks now and then on behalf of a program that makes no calls.
 */
#include <signal.h>
#include <stdlib.h>

#include "client/cuda/gpu.h"

#define LINGER_NS (INT64_C(100) * 1000000)
#define LOOK_NS (INT64_C(500) * 1000000)

struct closing {
    struct closing *next;
    struct cuda_handles *handles;
    struct cuda_gpu *gpu;
    struct cuda_opened *opened;
    int64_t due_ns;
};

struct watched {
    struct watched *next;
    rdt *conn;
    uint64_t round; /* of the last look */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects all below. Not held in calls of the driver */
static pthread_cond_t more;
static bool has_more;                          /* the condition is initialised */
static struct closing *first, **last = &first; /* in the order in which they are due */
static struct watched *connections;            /* those with GPU memory */
static struct watched *looked_at;              /* the thread calls librdt for it now */
static int64_t look_ns = CLOCK_NEVER;          /* when the thread looks next */
static bool started;                           /* the thread runs; it ends when it has nothing to do */

/* The parent's handles are not valid here, and its thread does not exist. */
void closing_after_fork(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    has_more = false;
    first = NULL;
    last = &first;
    connections = looked_at = NULL;
    look_ns = CLOCK_NEVER;
    started = false;
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

/* With the mutex, which is not held while librdt is called. Sets look_ns if there still is memory to look after. */
static void look(void)
{
    static uint64_t round;
    struct watched *at;
    bool mapped, any = false;

    look_ns = CLOCK_NEVER;
    round++;
    for (;;) {
        for (at = connections; at && at->round == round;)
            at = at->next;
        if (!at)
            break;
        at->round = round;
        looked_at = at;
        (void)pthread_mutex_unlock(&mutex);
        any |= rdt_trim(at->conn, &mapped, NULL) == RDT_OK && mapped;
        (void)pthread_mutex_lock(&mutex);
        looked_at = NULL;
        (void)pthread_cond_broadcast(&more);
    }
    if (any && look_ns == CLOCK_NEVER)
        look_ns = clock_now_ns() + LOOK_NS;
}

static void *run(void *arg)
{
    (void)arg;
    (void)pthread_mutex_lock(&mutex);
    while (connections || first) {
        struct closing *closing = first;
        int64_t now_ns = clock_now_ns(), due_ns = closing && closing->due_ns < look_ns ? closing->due_ns : look_ns;
        if (closing && (!connections || closing->due_ns <= now_ns)) {
            first = closing->next;
            if (!first)
                last = &first;
            (void)pthread_mutex_unlock(&mutex);
            close_one(closing);
            (void)pthread_mutex_lock(&mutex);
        } else if (look_ns <= now_ns) {
            look();
        } else if (due_ns == CLOCK_NEVER) {
            (void)pthread_cond_wait(&more, &mutex);
        } else {
            struct timespec until = clock_timespec(due_ns);
            (void)pthread_cond_timedwait(&more, &mutex, &until);
        }
    }
    started = false;
    look_ns = CLOCK_NEVER;
    (void)pthread_cond_broadcast(&more);
    (void)pthread_mutex_unlock(&mutex);
    return NULL;
}

bool closing_begin(rdt *conn)
{
    struct watched *watched = malloc(sizeof *watched);
    pthread_condattr_t monotonic;

    if (!watched)
        return false;
    (void)pthread_mutex_lock(&mutex);
    if (!has_more) {
        (void)pthread_condattr_init(&monotonic);
        (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&more, &monotonic);
        (void)pthread_condattr_destroy(&monotonic);
        has_more = true;
    }
    *watched = (struct watched){.next = connections, .conn = conn};
    connections = watched;
    (void)pthread_cond_broadcast(&more); /* closing_end waits for the thread's end no more */
    (void)pthread_mutex_unlock(&mutex);
    return true;
}

void closing_end(const rdt *conn)
{
    struct watched **at = &connections, *watched;

    (void)pthread_mutex_lock(&mutex);
    while ((*at)->conn != conn)
        at = &(*at)->next;
    watched = *at;
    *at = watched->next;
    (void)pthread_cond_broadcast(&more);
    while (looked_at == watched || (!connections && started))
        (void)pthread_cond_wait(&more, &mutex);
    (void)pthread_mutex_unlock(&mutex);
    free(watched);
}

static bool start(void)
{
    sigset_t all, before;
    pthread_t thread;

    if (started)
        return true;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
    started = pthread_create(&thread, NULL, run, NULL) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        (void)pthread_detach(thread);
    return started;
}

void closing_look(void)
{
    (void)pthread_mutex_lock(&mutex);
    if (connections && look_ns == CLOCK_NEVER && start()) {
        look_ns = clock_now_ns() + LOOK_NS;
        (void)pthread_cond_broadcast(&more);
    }
    (void)pthread_mutex_unlock(&mutex);
}

void closing_add(struct cuda_handles *handles, struct cuda_gpu *gpu, struct cuda_opened *opened)
{
    struct closing *closing = malloc(sizeof *closing), now = {NULL, handles, gpu, opened, 0};
    bool added = false;

    (void)pthread_mutex_lock(&mutex);
    if (closing && has_more && start()) {
        *closing = now;
        closing->due_ns = clock_now_ns() + LINGER_NS;
        *last = closing;
        last = &closing->next;
        added = true;
        (void)pthread_cond_broadcast(&more);
    }
    (void)pthread_mutex_unlock(&mutex);
    if (added)
        return;
    if (!closing && !(closing = malloc(sizeof *closing)))
        return; /* it stays open until the process ends */
    *closing = now;
    close_one(closing);
}
