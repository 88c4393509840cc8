/* SPDX-License-Identifier: Apache-2.0 */
/* The library's clock: monotonic nanoseconds, and deadlines on it. */
#ifndef CLIENT_CLOCK_H
#define CLIENT_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_NEVER INT64_MAX /* the deadline of what waits without end */

static inline int64_t clock_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail on Linux */
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns CLOCK_NEVER for a negative time-out. */
static inline int64_t clock_deadline_ns(int64_t timeout_ns)
{
    int64_t now_ns;

    if (timeout_ns < 0)
        return CLOCK_NEVER;
    now_ns = clock_now_ns();
    return timeout_ns > CLOCK_NEVER - now_ns ? CLOCK_NEVER : now_ns + timeout_ns;
}

/* Returns the time left as messages carry it: -1 is without end. */
static inline int64_t clock_remaining_ns(int64_t deadline_ns)
{
    int64_t left_ns;

    if (deadline_ns == CLOCK_NEVER)
        return -1;
    left_ns = deadline_ns - clock_now_ns();
    return left_ns > 0 ? left_ns : 0;
}

/* The time of a call that takes no time-out, or whose time-out is the default: a minute, and a second more for each 64 MiB that
 * it allocates, copies or reads. A stopped daemon does not keep its caller for ever. */
static inline int64_t clock_default_ns(uint64_t bytes)
{
    return INT64_C(1000000000) * (60 + (int64_t)(bytes >> 26 < 1000000000 ? bytes >> 26 : 1000000000));
}

/* How long a call that does not wait may take: for an answer, and for bytes that are there. */
#define CLOCK_NO_WAIT_NS (INT64_C(200) * 1000000)

/* The deadline of a caller who waits for a request that the daemon ends at deadline_ns, timeout_ns from now. The daemon
 * knows what was missing, so its answer gets a little time to arrive: a quarter of timeout_ns, at most 50 ms. */
static inline int64_t clock_after_answer_ns(int64_t deadline_ns, int64_t timeout_ns)
{
    int64_t most_ns = INT64_C(50) * 1000000, more_ns = timeout_ns / 4 < most_ns ? timeout_ns / 4 : most_ns;

    return deadline_ns > CLOCK_NEVER - most_ns ? CLOCK_NEVER : deadline_ns + more_ns;
}

static inline struct timespec clock_timespec(int64_t ns)
{
    struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

    return ts;
}

#endif
