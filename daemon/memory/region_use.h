/* Which bytes of a region somebody may read or write, and who waits until nobody does.
 *
 * A region may have a million uses: an object each. Whoever waits for a range stands with the first use that overlaps it, and is looked
 * at again when that one goes; later ones are searched from there, so that each use is looked at once for each waiter.
 */
#ifndef DAEMON_REGION_USE_H
#define DAEMON_REGION_USE_H

#include "daemon/memory/region.h"
#include "proto/layout.h"

struct region_use {
    struct list link; /* in region->uses */
    struct region *region;
    uint64_t lo, hi;             /* hull of what it touches */
    const struct layout *layout; /* what exactly: those of its tensors whose region is index; outlives the use */
    struct list waiters;         /* struct region_waiter */
    uint32_t index;
    bool covered; /* the layout touches every byte of the region; once region_uses_cover has said so */
};

/* Waits until no use overlaps [lo, hi). To stop: list_remove(&waiter->link). */
struct region_waiter {
    struct list link; /* in a use's waiters */
    uint64_t lo, hi;
    void (*on_idle)(struct region_waiter *); /* removed from the list before */
};

/* The hull of what a layout touches of one region. */
struct region_span {
    uint64_t lo, hi; /* lo >= hi: nothing */
    uint32_t last;   /* the tensor that ends at hi */
};

/* It grows by bytes [lo, hi), which tensor i touches. */
static inline void region_span_add(struct region_span *span, uint32_t i, uint64_t lo, uint64_t hi)
{
    span->lo = lo < span->lo ? lo : span->lo;
    span->last = hi > span->hi ? i : span->last;
    span->hi = hi > span->hi ? hi : span->hi;
}

/* spans[n], by the index that the tensors name. INVALID: one with elements names another, or begins before its region. Any thread. */
enum rdt_status region_spans(const struct layout *layout, struct region_span *spans, uint32_t n, struct rdt_error *err);

/* Each uses[i].region is set; the layout's tensors name them by i. spans: of that layout; NULL: they are found here. Does not take
 * references. */
void region_uses_add(struct region_use *uses, uint32_t n, const struct layout *layout, const struct region_span *spans);
void region_use_remove(struct region_use *use); /* wakes waiters; nothing if it was never added */

/* false: nobody uses the range, and nobody waits. */
bool region_wait_idle(struct region *region, struct region_waiter *waiter);

/* Fills in `covered` of each. Only contiguous tensors count: others may have holes. false: no memory. */
bool region_uses_cover(struct region_use *uses, uint32_t n, const struct layout *layout);

#endif
