/* The region cache of a client: regions that only this client ever had. After their release they stay mapped at both ends and serve the client's
 * next fetch or allocation of about the same size, without a descriptor, mapping or page fault. Each time they get a new generation.
 *
 * A region is inserted by its last unref if its client keeps it mapped (region->keep_mapped). No other client ever sees its memory. Cached regions are
 * charged to memory_limit and bounded for each client. They are freed when they are idle, when other requests need room, or with their client.
 *
 * A region that a client loans to its objects (Put.loaned) is RETURNED here while no object refers to it, for the next
 * put. Its client still has it and may write there. Other clients may have read it; what they keep of it they could keep
 * of a live object as well.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_REGION_CACHE_H
#define DAEMON_REGION_CACHE_H

#include "daemon/memory/region.h"

struct region_cache {                /* of one client */
    struct regions *regions; /* NULL: not started */
    uint64_t client;
    struct list list; /* struct region.by_client, the latest last */
    unsigned n;
    uint64_t bytes;
    const struct region_cache_ops *ops;
};

struct region_cache_ops {
    void (*on_drop)(struct region_cache *, uint64_t region); /* the client's mapping is of no use any more */
    /* A loan is RETURNED: the client may write there. gone: the loan has ended, and the region with it. */
    void (*on_back)(struct region_cache *, uint64_t region, bool gone);
    void (*take)(struct region_cache *, uint64_t region); /* a RETURNED region ends: takes the client's reference from it */
};

/* on_drop is not called by region_cache_stop, because the client is gone. */
void region_cache_start(struct region_cache *cache, struct regions *regions, uint64_t client, const struct region_cache_ops *ops);
/* Also ends what the device pools keep for the client. Nothing if the cache was never started. */
void region_cache_stop(struct region_cache *cache);

/* One of its regions that holds so many bytes, as if new but for its bytes, which are what the client left there; with one reference
 * for the caller, and kept until it is delivered. NULL: none fits. */
struct region *region_cache_take(struct region_cache *cache, uint64_t bytes, enum region_origin origin);

/* A RETURNED region is used again. NO_MEMORY, LIMIT (of its account): it stays RETURNED. */
enum rdt_status region_cache_resume(struct region_cache *cache, struct region *region, struct rdt_error *err);

/* The client releases a RETURNED region, which ends. */
void region_cache_part(struct region_cache *cache, struct region *region);

/* For region.c. Only its client refers to a LOANED region any more: it is RETURNED, or ends. */
void region_cache_return(struct region *region);
/* For region.c. The region lost its last reference. true: the cache has it now, or has ended it. */
bool region_cache_insert(struct region *region);
void region_cache_give_up(struct regions *regions, uint64_t bytes, struct list *victims); /* struct pool_block, the oldest first */
bool region_cache_sweep(struct regions *regions, uint64_t now_ns);                        /* false: nothing is left to grow old */

#endif
