/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: objects that were put as EVICTABLE. Such an object has the producer's hold until it is evicted, whether or not the
 * session that put it goes on.
 *
 *          live                   somebody holds or pins it
 *   put ─────────► IDLE ───────────────────────────────────► HELD
 *                  │  ▲                                       │ │
 *           evict, │  └───────────── nobody does any more ────┘ │ free, replace, time to live
 *           free … ▼                                            ▼
 *                 the object ends, as if it were freed        as well, when the last of them has let it go
 *
 * IDLE objects are in the queue of their owner (cache_queue.h), so priorities concern that owner's objects alone. What is HELD
 * is in none, so an eviction never looks at it.
 *
 * Evictions happen in slices of the loop, never inside a call: whoever has found an object may use it until it returns. So a
 * request that finds no room fails inside, waits as others wait for room (rpc.c), and is tried again when the slice has made
 * some. Objects are evicted
 *
 *   past owner_cache_limit             from the queue of that owner
 *   past a limit of an owner           the same; nothing, if that would not be enough
 *   past cache_limit, memory_limit,    from the person (account.h) that has most in the queues of its owners, up to a factor
 *   or another limit of the node       of two, so who fills the cache loses objects of its own
 *
 * Their memory is charged to the owner, not to the client: a limit for clients would be reached by what no longer concerns that
 * client, and nothing could be evicted for it.
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_CACHE_H
#define DAEMON_CACHE_H

#include "daemon/base/account.h"
#include "daemon/base/slices.h"
#include "daemon/memory/region.h"
#include "daemon/objects/cache_queue.h"

struct object;
struct object_table;
struct cache_owner;

#define CACHE_RANKS 64u
#define CACHE_HEAP_BYTES 80u /* for one object */

struct cache_counts {
    uint64_t hits;   /* a look-up or a fetch asked for an id, and there was such an object */
    uint64_t misses; /* the same, and there was none; only of owners that have such objects */
    uint64_t evictions, evicted_bytes;
};

struct cache_sums {              /* bytes are those of regions, pieces of the arena and bookkeeping */
    uint64_t n, bytes;           /* of all live objects */
    uint64_t n_idle, idle_bytes; /* of those that could be evicted now */
    uint64_t n_idle_regions;     /* that these have for themselves; small objects have none */
};

/* Room that somebody waits for: evictions go on until at most `target` is used. */
struct cache_want {
    struct account *at; /* NULL: nobody waits */
    enum usage what;
    uint64_t target;
};

struct cache {
    struct regions *regions;
    struct accounts *accounts;
    void (*evict)(struct object *object);    /* ends its hold */
    struct slices *slices;                   /* NULL: evictions happen at once (unit tests) */
    uint64_t limit_bytes, owner_limit_bytes; /* 0: none */
    struct list owners;                      /* struct cache_owner.link */
    struct list pressed;                     /* struct cache_owner.pressed: objects of these must go */
    struct list ranks[CACHE_RANKS]; /* struct cache_person.link, by the logarithm of their idle bytes; without any: in none */
    uint64_t used_ranks;            /* bit i: ranks[i] is not empty */
    struct cache_want want;         /* of the node, or of a person */
    uint64_t memory_target;         /* memory_limit: at most so much may be used; UINT64_MAX: nobody waits */
    struct slice slice;
    struct cache_sums sums;
    struct cache_counts counts; /* since the start of the daemon */
};

struct cache_owner { /* exists while it has objects */
    struct list link;
    struct list pressed;   /* in cache->pressed, or empty */
    struct list by_person; /* in cache_person.owners, while it has idle objects */
    struct cache *cache;
    struct account *account; /* a reference */
    struct cache_person *person;
    uint64_t n_objects; /* with the owner, live or not */
    struct cache_queue queue;
    struct cache_sums sums;
    struct cache_counts counts;
    struct cache_want want;
};

/* The cache gets slices when there is a loop; until then evictions happen inside calls, which only tests can bear. */
void cache_init(struct cache *cache, struct regions *regions, struct accounts *accounts, void (*evict)(struct object *object));
void cache_fini(struct cache *cache); /* all objects are gone */

/* Evicts what is past them in the next turns. 0: no limit. */
void cache_set_limits(struct cache *cache, uint64_t limit_bytes, uint64_t owner_limit_bytes);

/* For the put of an EVICTABLE object, which has its account, and will have so many bytes. priority: below CACHE_PRIORITIES.
 * LIMIT: it does not fit, even if everything that can be evicted is; NO_MEMORY. */
enum rdt_status cache_prepare(struct cache *cache, struct object *object, unsigned priority, uint64_t bytes,
                              struct rdt_error *err);
unsigned cache_priority(const struct object *object); /* 0 if it is not in the cache */

void cache_add(struct object *object);    /* the object is live from now on */
void cache_remove(struct object *object); /* it has lost its hold; does nothing if it was not added */
void cache_forget(struct object *object); /* it ends */

/* The holds or the pins of an object with object->cached have changed. */
void cache_settle(struct object *object);

/* Somebody has found the object. by_id: not by its generation. */
void cache_found(struct object *object, bool by_id);
void cache_missed(struct cache *cache, const struct owner *owner); /* there is no object of the id */

/* A request found no room for what accounts->lacks says. Returns whether evictions will make some. */
bool cache_make_room(struct cache *cache);

/* For regions->evict. */
void cache_make_memory(struct cache *cache, uint64_t lacking_bytes);

/* The end of the daemon: frees all that no session holds. */
void cache_end_all(struct object_table *table);

/* Evicts the idle objects of the owner, NULL: of all owners, in slices, and then calls on_done. */
struct cache_flush {
    struct slice slice;
    struct cache *cache;
    struct account *owner; /* borrowed */
    uint64_t left;         /* how many there were, which bounds the walk */
    uint64_t n, bytes;     /* that were evicted */
    void (*on_done)(struct cache_flush *);
};
void cache_flush_start(struct cache_flush *flush, struct cache *cache, struct account *owner,
                       void (*on_done)(struct cache_flush *));

#endif
