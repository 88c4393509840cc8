/* SPDX-License-Identifier: Apache-2.0 */
/* Region caches: whole regions that are used again, under the same id with a new generation, because a new descriptor,
 * mapping and pages would cost more than the bytes that move.
 *
 * The region cache of a client has regions that no other client ever had. After their release they stay mapped at both ends
 * and serve the client's next fetch or allocation of about the same size.
 *
 * The last unref of a region inserts it if its client keeps it mapped (region->reuse.keep_mapped). No other client ever gets
 * its memory. Cached regions are charged to memory_limit and bounded for each client. They are freed when they have been
 * unused for idle_ns, when other requests need room, or with their client.
 *
 * A region that a client loans to its objects (Put.loaned) is RETURNED here while no object refers to it, for the
 * client's next put. The client still has it and may write to it. Other clients may have read it; if they keep a mapping,
 * they see what they would see of a live object.
 *
 * The cache of sealed regions (regions->caches.sealed) has snapshots and replicas that only processes of one owner ever had,
 * who could read but not write them, and who all have released them. They serve the next snapshot or replica of that owner,
 * such as the next version of a model's weights. A process that keeps a descriptor or a mapping after its release can
 * therefore see later bytes, but only bytes that its owner may read. The next object may be shown to other owners, who must
 * not see the older bytes that it does not cover: what lies behind it is cleared here, and what lies between its tensors by
 * region_clear_gaps.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_REGION_CACHE_H
#define DAEMON_REGION_CACHE_H

#include "daemon/memory/region.h"

struct region_cache {        /* of one client */
    struct regions *regions; /* NULL: not started */
    uint64_t client;
    struct owner owner; /* of the client */
    struct cached_regions cached;
    const struct region_cache_ops *ops;
};

struct region_cache_ops {
    /* The client's mapping of a CACHED region is no longer useful: tell the client. */
    void (*on_drop)(struct region_cache *, uint64_t region);
    /* A loan is over: the region is RETURNED, and the client may write to it. gone: the region has ended instead. */
    void (*on_returned)(struct region_cache *, uint64_t region, bool gone);
    /* A RETURNED region ends: the client's reference to it is gone. */
    void (*forget_region)(struct region_cache *, uint64_t region);
};

/* Starts the cache of a client. If there is no memory, the client has no cache, and cache->regions is NULL. */
void region_cache_start(struct region_cache *cache, struct regions *regions, uint64_t client, const struct owner *owner,
                        const struct region_cache_ops *ops);

/* Frees the client's cached regions and its blocks in the device pool. Calls no on_drop, because the client is gone. Does
 * nothing if the cache was not started. */
void region_cache_stop(struct region_cache *cache);

/* Takes a CACHED region with room for that many bytes out of the cache, with one reference for the caller. It is like a new
 * region, except that it contains the bytes that the client left there. Until a fetch has delivered it, it may go to no other
 * client. NULL: none fits. */
struct region *region_cache_take(struct region_cache *cache, uint64_t bytes, enum region_origin origin);

/* Takes a region out of the cache, because it is used again: a RETURNED one by its id. Errors, after which it stays there:
 * NO_MEMORY, LIMIT (of its account). */
enum rdt_status region_cache_resume(struct region_cache *cache, struct region *region, struct rdt_error *err);

/* Ends a RETURNED region, because the client releases it. */
void region_cache_release(struct region_cache *cache, struct region *region);

/* Drops all regions of the cache, CACHED and RETURNED ones, with on_drop and on_returned: its client has no room for their
 * mappings. */
void region_cache_drop_all(struct region_cache *cache);

/* Clears the gaps between the tensors of the layout that lie in its region number `index`, if older bytes are there. The
 * tensors of a snapshot or a replica are packed in their order, and must be written after this call. */
void region_clear_gaps(struct region *region, const struct layout *layout, uint32_t index);

/* ---- for the other files of this room ---- */

/* Only its client still refers to a LOANED region: moves it to RETURNED, or ends it. */
void region_cache_return(struct region *region);

/* A region has lost its last reference. Returns true if it is in a cache now, or has been freed here. */
bool region_cache_insert(struct region *region);

/* Takes a sealed region for memory that the owner of the account may read, and charges it to the account. It has one
 * reference for the caller, and contains older bytes of the same owner, but only zeros behind the first `bytes` bytes. NULL:
 * none fits, or the account has no room. */
struct region *region_cache_take_sealed(struct regions *regions, uint64_t bytes, enum region_origin origin,
                                        struct account *account);

/* Moves the memory of cached regions of at least `bytes` bytes, or of all, to `victims`, the oldest first. */
void region_cache_evict(struct regions *regions, uint64_t bytes, struct list *victims);

/* Frees some regions that were unused for idle_ns; *more_p: there are more such regions. Returns false if all caches are
 * empty. */
bool region_cache_sweep(struct regions *regions, uint64_t now_ns, bool *more_p);

#endif
