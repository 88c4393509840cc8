/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a region objects and transfers use, and who waits until a range is unused.
 *
 * A region may have a million uses, one for each object in it. A waiter is settled at the first use that overlaps its
 * range. When that use ends, only the uses after it are searched for the next one that overlaps, so each waiter looks
 * at each use once. It looks in slices (base/slices.h), and so do very many waiters of one use.
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
    const struct layout *layout; /* which bytes exactly: its tensors whose region is index. It outlives the use. NULL: all */
    struct region_wait *wait;    /* who waits at it; NULL: nobody */
    void *object;                /* the object whose use it is, for who knows objects; NULL: a transfer's */
    uint32_t index;
    bool covered; /* set by region_uses_cover: the layout touches every byte of the region */
};

/* The waiters at one use. When the use ends, all of them look further, from the next one on. */
struct region_wait {
    struct list link;               /* in regions->searches.waits, while somebody looks further or is idle */
    struct region_use *use;         /* NULL: no use is left after it, so `searching` are idle */
    struct list settled, searching; /* struct region_waiter: the use overlaps their range; they look from it on */
    uint64_t lo, hi;                /* with this range, the use's tensors before this one have been looked at */
    uint32_t tensor;
};

/* Waits until no use overlaps [lo, hi). list_remove(&waiter->link) ends the wait. */
struct region_waiter {
    struct list link; /* in a region_wait */
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

/* Adds a use of all bytes [lo, hi). The caller has set use->region, and holds the reference. */
void region_use_add(struct region_use *use, uint64_t lo, uint64_t hi);

/* Ends a use and calls the waiters whose range is unused now. Does nothing if it was never added. */
void region_use_remove(struct region_use *use);

/* AGAIN: the waiter now waits. OK: no use overlaps its range. NO_MEMORY. */
enum rdt_status region_wait_idle(struct region *region, struct region_waiter *waiter, struct rdt_error *err);

/* A use that overlaps the range, for people. NULL: none of the first ones does. */
const struct region_use *region_first_use(const struct region *region, uint64_t lo, uint64_t hi);

/* For the end of regions: nobody waits any more. */
void region_waits_end(struct regions *regions);

/* Sets `covered` of each use. Only contiguous tensors count, because others may have holes. Returns false if there is
 * no memory. */
bool region_uses_cover(struct region_use *uses, uint32_t n, const struct layout *layout);

#endif
