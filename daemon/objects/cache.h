/* SPDX-License-Identifier: Apache-2.0 */
/* The cache: objects that were put as EVICTABLE. Such an object has the producer's hold until it is evicted, whether or not the
 * session that put it goes on.
 *
 *   put           it is live            nobody holds or pins it
 *   ────► NEW ─────────────────► HELD ─────────────────────────► IDLE
 *          │                     │  ▲                            │ │
 *          │ it ends before      │  └──────── somebody does ─────┘ │ evict, free, replace,
 *          │ that                │ free, replace, time to live     │ time to live
 *          └───────────────────► OUT ◄─────────────────────────────┘
 *
 * The last step ends the producer's hold: an IDLE object ends at once, as if it were freed, and a HELD one when the last of
 * those who have it lets it go. Until that step it is evictable (cache_has).
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
 * With a limit of files (cache_storage_limit), objects that need not end leave their memory for a file (cache_spill.c): they
 * stay what they are for everybody who finds them. Those that have done so are evicted past that limit, and when an end of
 * objects is wanted, such as for their descriptors, the one that was used least recently first.
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
struct cached;

#define CACHE_RANKS 64u
#define CACHE_HEAP_BYTES 80u /* for one object */

struct cache_counts {
    uint64_t hits;   /* a look-up or a fetch asked for an id, and there was such an object */
    uint64_t misses; /* the same, and there was none; only of owners that have such objects */
    uint64_t evictions, evicted_bytes;
    uint64_t spilled, spilled_bytes; /* objects that have left their memory for a file */
    uint64_t file_hits;              /* of the hits: objects that were in a file only */
    uint64_t far_hits;               /* of the misses: look-ups have found these on other nodes */
    /* Where evicted objects are stored, those that ended without leaving for a file: */
    uint64_t unspilled_late;   /* their memory was wanted before the disk had them */
    uint64_t unspilled_failed; /* the disk was full or broken, or a limit of files was reached */
    uint64_t unspilled_small;  /* they lay in the arena */
};

struct cache_sums {               /* bytes are those of regions, pieces of the arena and bookkeeping of objects in memory */
    uint64_t n, bytes;            /* of all live objects */
    uint64_t n_idle, idle_bytes;  /* of those that could be evicted now */
    uint64_t n_idle_regions;      /* that these have for themselves; small objects have none */
    uint64_t n_files, file_bytes; /* on the disk, with the one that is being written */
    uint64_t n_spilled;           /* of n: objects that are in a file only */
    uint64_t n_idle_spilled, idle_file_bytes; /* of n_idle: the same, and their files */
};

/* Room that somebody waits for: evictions go on until at most `target` is used. */
struct cache_want {
    struct account *at; /* NULL: nobody waits */
    enum usage what;
    uint64_t target;
    uint64_t file_target; /* of STORED_BYTES, which are used until the files are removed: at most so many bytes of files stay */
};

/* Persons by the logarithm of something that they have. */
enum cache_order { CACHE_BY_MEMORY, CACHE_BY_FILES, CACHE_ORDERS };
struct cache_ranks {
    struct list ranks[CACHE_RANKS]; /* struct cache_standing.link; persons without any are in none */
    uint64_t used;                  /* bit i: ranks[i] is not empty */
};

/* What writes the files (daemon/persist). */
struct cache_files_ops {
    /* Begins to write the object, which is idle and in memory, to a file of *bytes_p; cache_written follows. AGAIN: *bytes_p
     * are more than `room`. Other errors: it cannot be written. */
    enum rdt_status (*begin)(void *arg, struct object *object, uint64_t room, uint64_t *bytes_p);
    bool (*give_up)(void *arg, struct object *object); /* its memory for its file, which is written; false: it stays */
    void (*discard)(void *arg, struct object *object); /* its file, written or not; the object stays */
};

struct cache_files {
    const struct cache_files_ops *ops; /* NULL: nothing is written */
    void *arg;
    uint64_t limit_bytes;       /* 0: evicted objects end */
    uint64_t owner_limit_bytes; /* 0: one owner may have limit_bytes */
    struct list near;           /* struct cache_owner.near: owners who come near to their limit */
    bool busy;                  /* a file is being written, */
    struct cached *writing;     /* that of this one; NULL: which has ended */
    uint64_t leaving_bytes;     /* of all queues */
};

struct cache {
    struct regions *regions;
    struct accounts *accounts;
    void (*evict)(struct object *object);    /* ends its hold */
    struct slices *slices;                   /* NULL: evictions happen at once (unit tests) */
    uint64_t limit_bytes, owner_limit_bytes; /* 0: none */
    struct list owners;                      /* struct cache_owner.link */
    struct list pressed;                     /* struct cache_owner.pressed: objects of these must go */
    struct cache_ranks orders[CACHE_ORDERS]; /* of persons with idle objects in memory, and with idle spilled ones */
    struct cache_want want;                  /* of the node, or of a person */
    uint64_t memory_target;                  /* memory_limit: at most so much may be used; UINT64_MAX: nobody waits */
    struct slice slice;
    struct cache_files files;
    struct cache_sums sums;
    struct cache_counts counts; /* since the start of the daemon */
};

struct cache_owner { /* exists while it has objects */
    struct list link;
    struct list pressed;                 /* in cache->pressed, or empty */
    struct list near;                    /* in cache->files.near, or empty */
    struct list by_person[CACHE_ORDERS]; /* in cache_standing.owners, while it has such objects */
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

/* The same for files; limit_bytes 0: no files. */
void cache_set_file_limits(struct cache *cache, uint64_t limit_bytes, uint64_t owner_limit_bytes);

/* For the put of an EVICTABLE object, which has its account, and will have so many bytes. priority: below CACHE_PRIORITIES.
 * LIMIT: it does not fit, even if everything that can be evicted is; NO_MEMORY. */
enum rdt_status cache_prepare(struct cache *cache, struct object *object, unsigned priority, uint64_t bytes,
                              struct rdt_error *err);
unsigned cache_priority(const struct object *object); /* 0 if it is not in the cache */

/* Whether it was put as EVICTABLE, and has the producer's hold still. */
bool cache_has(const struct object *object);

/* The object is live from now on; it has lost its hold. cache_remove does nothing if it is OUT, or was not put as EVICTABLE. */
void cache_add(struct object *object);
void cache_remove(struct object *object);
void cache_forget(struct object *object); /* it ends */

/* The holds or the pins of an object with object->cached have changed. */
void cache_settle(struct object *object);

/* Somebody has found the object. by_id: not by its generation. */
void cache_found(struct object *object, bool by_id);
void cache_missed(struct cache *cache, const struct owner *owner);                /* there is no object of the id */
void cache_found_far(struct cache *cache, const struct owner *owner, uint64_t n); /* of these ids there are, on other nodes */

/* The file of the object that was begun is there, with so many bytes; 0: it is not, and will not be. Does nothing if none was
 * begun. */
void cache_written(struct cache *cache, uint64_t bytes);

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
