/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a region that no tensor covers: alignment between tensors. Writing all tensors of a region does not write these
 * bytes, so they must be cleared before another process can map the region. */
#ifndef DAEMON_GAPS_H
#define DAEMON_GAPS_H

#include <stdint.h>

#define GAPS_MAX 8u /* each is cleared by a call of its own */

struct gaps {
    unsigned n;
    struct {
        uint64_t from, to; /* bytes from the start of the region */
    } at[GAPS_MAX];
};

/* Adds [from, to), which lies behind the others. If there are too many, the last one grows: it is cleared before the tensors
 * are written, so it may cover some of them. */
static inline void gaps_add(struct gaps *gaps, uint64_t from, uint64_t to)
{
    if (from >= to)
        return;
    if (gaps->n == GAPS_MAX) {
        gaps->at[GAPS_MAX - 1].to = to;
        return;
    }
    gaps->at[gaps->n].from = from;
    gaps->at[gaps->n++].to = to;
}

#endif
