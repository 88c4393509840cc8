/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this process that the daemon knows: which addresses, which region, who still uses it. Under the
 * connection's lock.
 *
 * A mapping is reference-counted: rdt_alloc or rdt_import has one reference, every fetched object that points into it
 * another. memory_unref only retires a mapping after its last reference; it is unmapped outside the lock, because a large
 * munmap takes long.
 *
 *     in use ──── memory_unref ───► retired ── memory_unmap ──► gone
 *      │  ▲                            ▲
 *      │  └── memory_take_cached ──┐   │ memory_uncache
 *      └───── memory_cache ──────► cached
 *
 * Two kinds of mapping are cached: they stay mapped without a reference, so that the next use meets no page fault. The
 * daemon decides how much is cached and for how long; it is told of each, and says when one must go.
 * - A writable region that only this process ever had. It is on the list `cached`, until the daemon hands out the same
 *   region again, under a new generation.
 * - A region that is mapped for reading, or lies on a device (MAPPING_CACHED). It stays where it is, and is found by its
 *   region as before.
 *
 * A large private mapping has such a mapping for reading beside it, its pair. When it has lost its last reference and its pair
 * is cached, it becomes the pair's spare: the next private mapping of the region. The pages that this process wrote are dropped
 * before, outside the lock (memory_unmap_or_reset), so that it shows the region's bytes again and holds no memory of its own.
 * It ends with the caching of its pair, or when there is no room for another mapping.
 */
#ifndef CLIENT_MEMORY_H
#define CLIENT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/rdt.h"
#include "ids.h"

enum mapping_origin {
    MAPPING_ALLOCATED, /* by rdt_alloc */
    MAPPING_IMPORTED,  /* by rdt_import: the caller's own mapping, never unmapped here */
    MAPPING_FETCHED,
};

enum mapping_access {
    MAPPING_READABLE,
    MAPPING_WRITABLE,
    MAPPING_COW, /* private and writable; memory_find never returns it */
};

enum mapping_caching {
    MAPPING_UNCACHED,
    MAPPING_CACHEABLE, /* the daemon lets this process cache it */
    MAPPING_CACHED,    /* a readable one: it stays mapped without references too, until the daemon says that the region is gone;
                     * a private one that is retired: it may become a spare */
};

/* Maps one kind of memory that only its vendor's library can map (rdt_map_by). */
#define MAPPER_MAX_DEVICES 64u
#define MAPPER_DEVICE_BYTES (33u + 65u)

struct mapper {
    struct mapper *next;
    struct rdt_mapper ops; /* its member `memory` points to the array below; devices is not used */
    char memory[33];
    char (*devices)[MAPPER_DEVICE_BYTES]; /* [ops.n_devices] "cuda:UUID" */
    uint64_t told, telling;               /* bit i: the daemon knows device i; a FETCH that names it is about to be sent */
};

struct loan;

struct mapping {
    uint64_t region, generation;
    uint8_t *addr;
    size_t bytes;
    enum mapping_origin origin;
    enum mapping_access access;
    enum mapping_caching caching;
    bool offered;          /* rdt_put finds it by address */
    bool released;         /* the session has given the region back, or to an object; only what was fetched still uses it */
    char device[65];       /* uuid; "": host memory */
    struct mapper *mapper; /* of its kind; NULL: host memory */
    void *mapped;          /* what the mapper returned; NULL for an import, which the caller mapped */
    unsigned refs;
    struct loan *loan;    /* of loans.c; else NULL. Only that loan uses the mapping, and nobody else finds it */
    uint64_t mark;        /* memory_mark of the message that numbered this region last */
    uint32_t index;       /* its number in that message */
    struct mapping *pair; /* of a private mapping: see above, with a reference; of one for reading: its spare; or NULL */
    struct mapping *next; /* in its bucket, in `cached` or in `retired` */
};

struct memory {
    struct mapping **offered; /* by address; they never overlap */
    size_t n_offered, room;
    struct mapping **buckets; /* all mappings but the cached writable and the retired ones, by region */
    size_t n_buckets, count;
    struct mapping *retired; /* retired: to be unmapped */
    struct mapping *cached;  /* writable ones without references */
    struct mapper *mappers;  /* none is ever removed */
    uint64_t last_mark;
    uint64_t n_gones; /* REGION_GONE messages of this daemon so far */
    bool left_device; /* one of them named memory of a device, and the daemon has not been told that it is unmapped */
    /* Regions of this session that have no mapping here: those whose reply has come and that are about to be mapped, and those
     * that were given to a put that has not been answered. */
    struct id_list unmapped;
};

bool memory_init(struct memory *memory); /* false: no memory */
void memory_fini(struct memory *memory); /* unmaps everything, used or not */

/* Maps `bytes` of the fd (borrowed), with one reference for the caller, and unmaps what is retired if there is no room. If the
 * region is mapped already with at least these rights, *mapping_p receives that mapping instead. Does not offer it.
 * Errors: SYSTEM, NO_MEMORY, PROTOCOL (the file is shorter). */
enum rdt_status memory_map(struct memory *memory, uint64_t region, uint64_t generation, int fd, size_t bytes, bool writable,
                           enum mapping_origin origin, struct mapping **mapping_p, struct rdt_error *err);

/* Makes a private, writable mapping in constant time: pages are copied when they are written. Takes the spare one if there is
 * one. Errors as above. */
enum rdt_status memory_map_cow(struct memory *memory, uint64_t region, uint64_t generation, int fd, size_t bytes,
                               struct mapping **mapping_p, struct rdt_error *err);

/* Maps the region for reading too, so that the private mapping can be kept when it is released; otherwise it is not. */
void memory_pair(struct memory *memory, struct mapping *mapping, int fd);

/* Records memory that the caller has mapped itself, with one reference. mapper and device are NULL and "" for host memory.
 * NO_MEMORY. */
enum rdt_status memory_adopt(struct memory *memory, uint64_t region, uint64_t generation, void *addr, size_t bytes,
                             struct mapper *mapper, const char *device, struct mapping **mapping_p, struct rdt_error *err);

/* Lets the mapper of its kind map what the daemon shares, unless the region is mapped already, with one reference for the
 * caller. Errors: UNSUPPORTED (no mapper of that kind), NO_MEMORY, the mapper's own. */
enum rdt_status memory_map_device(struct memory *memory, uint64_t region, uint64_t generation, const struct rdt_shared *shared,
                                  enum mapping_origin origin, struct mapping **mapping_p, struct rdt_error *err);

struct mapper *memory_mapper(const struct memory *memory, const char *kind); /* ignores case; NULL: there is none */

/* Finds the region's mapping with at least these rights that is neither private nor a loan's. Borrowed; NULL: there is
 * none. */
struct mapping *memory_find(const struct memory *memory, uint64_t region, uint64_t generation, bool writable);

/* Finds the region's mapping that belongs to a loan. Borrowed; NULL: there is none. */
struct mapping *memory_find_loaned(const struct memory *memory, uint64_t region);

/* Lets memory_at find the mapping from now on. Errors: INVALID (it overlaps another one), NO_MEMORY. */
enum rdt_status memory_offer(struct memory *memory, struct mapping *mapping, struct rdt_error *err);
void memory_withdraw(struct memory *memory, struct mapping *mapping);

static inline bool memory_contains(const struct mapping *mapping, uintptr_t lo, uintptr_t hi)
{
    uintptr_t start = (uintptr_t)mapping->addr;

    return lo >= start && hi <= start + mapping->bytes;
}

/* Finds the first offered mapping by address that the range touches. Borrowed; NULL: there is none. */
struct mapping *memory_at(const struct memory *memory, uintptr_t lo, uintptr_t hi);

void memory_ref(struct mapping *mapping);
void memory_unref(struct memory *memory, struct mapping *mapping); /* mapping may be NULL */

/* Says whether memory_cache may be called: the mapping is writable and cacheable, and has one reference left. */
bool memory_may_cache(const struct mapping *mapping, enum mapping_origin origin);

/* Drops the last reference and caches the mapping. The caller tells the daemon next, by keep_mapped of RELEASE or
 * RELEASE_REGION. */
void memory_cache(struct memory *memory, struct mapping *mapping);

/* Makes a mapping for reading, of a device, or the pair of a private one, stay when its references are gone. The caller
 * tells the daemon, in keep_mapped_regions of RELEASE. False: it may not be cached. mapping may be NULL. */
bool memory_cache_readable(struct mapping *mapping);

/* The daemon has handed out the region again: takes its mapping out of the cache, with one reference for the caller.
 * NULL: it is not cached. */
struct mapping *memory_take_cached(struct memory *memory, uint64_t region, uint64_t generation, enum mapping_origin origin);
bool memory_is_cached(const struct memory *memory, uint64_t region); /* as a writable one */

/* The same for a mapping that is retired, and that memory_find would have found before. */
struct mapping *memory_take_retired_again(struct memory *memory, uint64_t region, uint64_t generation);

/* The memory of a cached mapping of a device is another region's now. Does nothing if there is none. */
void memory_move(struct memory *memory, uint64_t from, uint64_t region, uint64_t generation);

/* Stops caching the region, which is retired as soon as it has no references. Does nothing if it is not cached. */
void memory_uncache(struct memory *memory, uint64_t region);

/* Whether a mapping stays only because it is cached. */
bool memory_has_cached(const struct memory *memory);

/* Whether memory on a device that was fetched is mapped, with or without references. */
bool memory_has_fetched_on_devices(const struct memory *memory);

/* Stops caching all regions. */
void memory_uncache_all(struct memory *memory);

/* Adds the regions of this session that it still uses, mapped and unmapped, to the list. False: no memory. */
bool memory_list_own(const struct memory *memory, struct id_list *list);

/* Says whether the region is one of those, mapped, and no loan's. */
bool memory_has_own(const struct memory *memory, uint64_t region);

/* Hands all retired mappings to the caller, who passes them to memory_unmap or memory_unmap_or_reset without the lock. */
struct mapping *memory_take_retired(struct memory *memory);
void memory_unmap(struct mapping *take_retired);

/* The same without the lock, except that the private mappings that may become spare ones are returned, reset. */
struct mapping *memory_unmap_or_reset(struct mapping *take_retired);
void memory_keep(struct memory *memory, struct mapping *take_reset); /* with the lock; retires those that have no place */

/* Returns a new mark for numbering the regions of one message. */
uint64_t memory_mark(struct memory *memory);

#endif
