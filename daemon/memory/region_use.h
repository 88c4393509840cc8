/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a region objects and transfers use, and who waits until a range is unused.
 *
 * A region may have a million uses, one for each object in it. A waiter is listed at the first use that overlaps its
 * range. When that use ends, only the uses after it are searched for the next one that overlaps, so each waiter looks
 * at each use once.
 *
 * All calls are made in the loop thread unless a comment says otherwise.
 */
#ifndef DAEMON_REGION_USE_H
#define DAEMON_REGION_USE_H

#include "daemon/memory/region.h"
#include "proto/layout.h"

struct region_use {
    struct list link; /* in region->uses */
    struct region *region;
    uint64_t lo, hi;             /* the smallest range [lo, hi) that contains all bytes that it uses */
    const struct layout *layout; /* which bytes exactly: its tensors whose region is index. It must outlive the use */
    struct list waiters;         /* struct region_waiter */
    void *object;                /* the object whose use it is, for who knows objects; NULL: a transfer's */
    uint32_t index;
    bool covered; /* set by region_uses_cover: the layout touches every byte of the region */
};

/* Waits until no use overlaps [lo, hi). list_remove(&waiter->link) ends the wait. */
struct region_waiter {
    struct list link;             /* in a use's waiters */
    const struct region_use *use; /* that use; NULL: the wait has ended */
    uint64_t lo, hi;
    void (*on_idle)(struct region_waiter *); /* called after its removal from the list */
};

/* The smallest range [lo, hi) that contains all bytes that a layout's tensors touch in one region. */
struct region_span {
    uint64_t lo, hi; /* lo >= hi: they touch nothing */
    uint32_t last;   /* the tensor that ends at hi */
};

/* Extends a span by the bytes [lo, hi), which tensor i touches. */
static inline void region_span_add(struct region_span *span, uint32_t i, uint64_t lo, uint64_t hi)
{
    span->lo = lo < span->lo ? lo : span->lo;
    span->last = hi > span->hi ? i : span->last;
    span->hi = hi > span->hi ? hi : span->hi;
}

/* Computes the spans of a layout, [n] by region index. INVALID: a tensor with elements names a region that is not
 * there, or begins before its region. Any thread. */
enum rdt_status region_spans(const struct layout *layout, struct region_span *spans, uint32_t n, struct rdt_error *err);

/* Adds uses[n] of the layout's tensors, which name them by region index. The caller has set each uses[i].region, and holds the
 * references. spans: those of the layout; NULL: they are computed here. */
void region_uses_add(struct region_use *uses, uint32_t n, const struct layout *layout, const struct region_span *spans);

/* Ends a use and calls the waiters whose range is unused now. Does nothing if it was never added. */
void region_use_remove(struct region_use *use);

/* Returns true if the waiter now waits, false if no use overlaps its range. */
bool region_wait_idle(struct region *region, struct region_waiter *waiter);

/* Sets `covered` of each use. Only contiguous tensors count, because others may have holes. Returns false if there is
 * no memory. */
bool region_uses_cover(struct region_use *uses, uint32_t n, const struct layout *layout);

#endif
