/* SPDX-License-Identifier: Apache-2.0 */
/* How often something took how long: a histogram of durations with fixed bounds, for the metrics.
 *
 * Bucket i counts durations of less than 4^i * 4096 ns (4.1 us, 16.4 us, ... 68.7 s), the last one all longer ones. Powers of
 * four need no table and no division, and they resolve a slowdown by half an order of magnitude. */
#ifndef DAEMON_HISTOGRAM_H
#define DAEMON_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BUCKETS 14u

struct histogram { /* all zero: empty */
    uint64_t counts[HISTOGRAM_BUCKETS];
    uint64_t sum_ns;
};

static inline void histogram_add(struct histogram *histogram, uint64_t ns)
{
    uint64_t units = ns >> 12;
    unsigned bits = units ? 64 - (unsigned)__builtin_clzll(units) : 0;
    unsigned bucket = (bits + 1) / 2;

    histogram->counts[bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1]++;
    histogram->sum_ns += ns;
}

/* The bound of a bucket but the last. */
static inline uint64_t histogram_bound_ns(unsigned bucket)
{
    return UINT64_C(4096) << (2 * bucket);
}

#endif
