/* SPDX-License-Identifier: Apache-2.0 */
/* What the threads of plug-ins need: their start, and times of the monotonic clock. */
#ifndef BACKENDS_THREADS_H
#define BACKENDS_THREADS_H

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t monotonic_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Starts a thread in which all signals are blocked: they are the daemon's. Returns 0, or the error's number. */
static inline int thread_create(pthread_t *thread_p, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread_p, NULL, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Initialises a condition whose timed waits end by the monotonic clock. */
static inline void cond_init_monotonic(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;

    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
}

/* Waits as pthread_cond_timedwait, for at most so long. */
static inline int cond_wait_ns(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t ns)
{
    uint64_t until_ns = monotonic_ns() + ns;
    const struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};

    return pthread_cond_timedwait(cond, mutex, &until);
}

#endif
