/* Ranges of memory: who owns them, who keeps them, where they are registered. A region is counted: it goes when nobody refers to it,
 * and its pages are given back on the pool. Memory that left the daemon is never used for anyone else: there is no free list here.
 *
 * Loop thread only.
 */
#ifndef DAEMON_REGION_H
#define DAEMON_REGION_H

#include "daemon/account.h"
#include "daemon/list.h"
#include "daemon/map.h"
#include "daemon/plugin.h"
#include "daemon/work.h"
#include "proto/layout.h"

struct regions {
    struct plugins *plugins;
    struct work_pool *pool;
    struct map by_id;
    uint64_t next_id;
    uint64_t bytes, limit_bytes; /* of memory the daemon allocated, given out or not */
    unsigned freeing;            /* pages on their way back */
};

enum region_origin { REGION_ALLOCATED, REGION_IMPORTED, REGION_RECEIVED };

struct registration {
    struct transport *transport;
    void *handle;
};

#define REGION_MAX_REGISTRATIONS 4

struct region {
    uint64_t id, generation; /* ids are never used again; the generation says so on the wire */
    struct regions *regions;
    struct memory_kind *kind;
    char device[65];
    struct rdt_block block;
    uint64_t bytes;
    enum region_origin origin;
    struct account *account; /* a reference */
    uint64_t client;         /* session that allocated or imported it, or fetched into it; 0 when that session gave it back */
    unsigned refs;
    unsigned pins;         /* transfers that touch it now; each pin is also a ref */
    bool writable_outside; /* a writable fd has left the daemon, or came from outside */
    struct registration registrations[REGION_MAX_REGISTRATIONS];
    unsigned n_registrations;
    struct list uses;         /* struct region_use: objects and targets over it */
    struct list idle_waiters; /* struct region_waiter */
};

/* A byte range of a region that somebody may read or write: an object's tensors, or a fetch's target. */
struct region_use {
    struct list link;
    struct region *region;
    uint64_t lo, hi;             /* hull of what it touches */
    const struct layout *layout; /* what exactly: those of its tensors whose region is index; outlives the use */
    uint32_t index;
};

/* Waits until no use overlaps [lo, hi). */
struct region_waiter {
    struct list link;
    uint64_t lo, hi;
    void (*on_idle)(struct region_waiter *); /* removed from the list before */
};

typedef void (*region_ready)(void *arg, struct region *region, const struct rdt_error *err);

void regions_init(struct regions *regions, struct plugins *plugins, struct work_pool *pool, uint64_t limit_bytes);
void regions_fini(struct regions *regions);

/* New zeroed memory with one reference for the caller. RDT_OK: *region_p is ready now (little memory). RDT_AGAIN: on_ready comes
 * later, with the region or the error. NO_MEMORY, LIMIT (names it) and UNSUPPORTED (no such memory kind) come at once where they
 * can: the limit is taken before anything is touched. */
enum rdt_status region_alloc(struct regions *regions, const char *kind, const char *device, uint64_t bytes,
                             enum region_origin origin, struct account *account, uint64_t client, struct region **region_p,
                             region_ready on_ready, void *arg, struct rdt_error *err);

enum rdt_status region_import(struct regions *regions, const char *kind, const char *device, const struct rdt_import *import,
                              struct account *account, uint64_t client, struct region **region_p, struct rdt_error *err);

/* NULL: no such region, or another generation. Borrowed. */
struct region *region_find(const struct regions *regions, uint64_t id, uint64_t generation);

void region_ref(struct region *region);
void region_unref(struct region *region); /* NULL is fine */
void region_pin(struct region *region);
void region_unpin(struct region *region);

/* Where the daemon sees its first byte; mapped at the first call. NULL with err. */
uint8_t *region_addr(struct region *region, struct rdt_error *err);

/* A new fd for a client. writable false: cannot be mapped writable by another uid. */
enum rdt_status region_export(struct region *region, bool writable, int *fd_p, struct rdt_error *err);

/* The transport's handle for it; *handle_p NULL if it registers nothing. RDT_AGAIN: on_ready comes later; call again then. */
enum rdt_status region_register(struct region *region, struct transport *transport, void **handle_p, region_ready on_ready,
                                void *arg, struct rdt_error *err);

void region_use_add(struct region_use *use, struct region *region, const struct layout *layout, uint32_t index);
void region_use_remove(struct region_use *use); /* wakes waiters; nothing if it was never added */
bool region_in_use(const struct region *region, uint64_t lo, uint64_t hi);

#endif
