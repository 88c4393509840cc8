/* Ranges of memory: who owns them, who keeps them, where they are registered. A region is counted: when nobody refers to it any more
 * its memory goes one of three ways. What never left the daemon serves anyone again (pool.h; device_pool.h on devices); what only one
 * client ever had may serve that client again (region_cache.h, device_pool.h); anything else goes back to the kernel, on the work pool.
 *
 * Loop thread only.
 */
#ifndef DAEMON_REGION_H
#define DAEMON_REGION_H

#include "daemon/base/account.h"
#include "daemon/base/deadline.h"
#include "daemon/memory/device_pool.h"
#include "daemon/base/events.h"
#include "daemon/base/index.h"
#include "daemon/base/list.h"
#include "daemon/base/map.h"
#include "daemon/plugins/plugin.h"
#include "daemon/memory/pool.h"
#include "daemon/base/work.h"
#include "proto/layout.h"
#include "rdt.pb-c.h"

struct regions {
    const struct events *events; /* NULL: nobody watches */
    struct plugins *plugins;
    struct work_pool *pool;
    struct index by_id;
    uint64_t next_id;
    uint64_t bytes, limit_bytes; /* of host memory the daemon allocated: in use, ready, warm, or on its way back */
    unsigned freeing;            /* pages on their way back */
    uint64_t freeing_bytes;
    struct list
        awaiting; /* allocations that wait for what is on its way back, or is about to be ready: in turn (region_alloc.c) */
    uint64_t awaiting_bytes;
    struct pool ready;
    struct device_pool kept;
    struct map cached_clients;             /* client id -> struct warm */
    struct list cache;                    /* struct region.by_age: of all clients, the oldest first */
    uint64_t cached_bytes, cached_max_bytes; /* of all; of one client */
    uint64_t cached_hits;
    struct deadlines *deadlines; /* NULL: nothing is kept ready or warm */
    struct accounts *accounts;   /* who may wait for room; NULL: nobody does */
    struct deadline sweep;
    /* Before anyone is refused memory: lets go of regions of at least so many bytes that nobody uses, or of none; how much there was to
     * let go of. NULL: there are none. */
    uint64_t (*give_up)(void *arg, uint64_t bytes);
    void *give_up_arg;
    struct list *giving_up; /* struct pool_block: what is let go of meanwhile; NULL: it goes as usual */
    struct region_orphans *left; /* what others keep open after its end; NULL: it is not counted */
};

/* Staging and the arena of small objects never leave the daemon. */
enum region_origin {
    REGION_ALLOCATED,
    REGION_IMPORTED,
    REGION_RECEIVED,
    REGION_SNAPSHOT,
    REGION_STAGING,
    REGION_ARENA,
    REGION_COPY,
};

#define REGION_MAX_REGISTRATIONS BLOCK_MAX_REGISTRATIONS

struct region {
    uint64_t id, generation; /* ids are never used again; the generation says so on the wire */
    struct regions *regions;
    struct memory_kind *kind;
    struct memory_device *at; /* NULL: host memory; else only its plug-in touches it, and block.addr is the device's */
    struct rdt_block block;
    int guard;      /* of its mapping; GUARD_NONE: its pages are there */
    uint64_t bytes; /* as asked for */
    uint64_t room;  /* what it takes, and a client maps: whole pages, or its size class */
    uint64_t filled_bytes; /* imported: of pages that it lacked and we make, charged like our own (region_fill.h) */
    enum region_origin origin;
    struct account *account; /* a reference */
    uint64_t client;         /* session that allocated or imported it, or fetched into it; 0 when that session gave it back */
    uint64_t maker;          /* the same, for ever: for people */
    unsigned n_fds;          /* charged to the account while it exists */
    bool in_use;             /* and its bytes, and that it is one */
    unsigned refs;
    unsigned pins;         /* transfers that touch it now; each pin is also a ref */
    bool writable_outside; /* a writable fd has left the daemon, or came from outside */
    bool sealed;           /* nobody writes it any more, for ever */
    uint64_t exported_to;  /* the only client that ever had a fd of it; 0: nobody had, or many */
    bool exported_widely;
    bool never_leaves; /* it cannot be exported */
    bool abandoned;    /* somebody who never let go of it may look at it: its pages are not taken away from under a mapping */
    bool keep_mapped;  /* exported_to has it mapped, uses it for nothing, and waits for it to come again */
    bool lent;         /* its client writes there no more until nobody else refers to it, and is told then */
    bool laid_by;      /* it was told: region_cache.h */
    bool tainted_by_client;     /* it was warm, and what it received since, exported_to may write: nobody else may ever have it */
    struct registration registrations[REGION_MAX_REGISTRATIONS];
    unsigned n_registrations;
    struct list uses;              /* struct region_use (region_use.h) */
    struct list readers;           /* struct region_reader.by_region: who has it mapped and does not hold it */
    struct list by_client, by_age; /* region_cache.c's */
    uint64_t cached_since_ns;
};

/* Somebody who must hear when the region ends. list_remove(&reader->by_region) ends it. */
struct region_reader {
    struct list by_region;
    void (*on_gone)(struct region_reader *); /* takes itself out of the list */
};

typedef void (*region_ready)(void *arg, struct region *region, const struct rdt_error *err);

void regions_init(struct regions *regions, struct plugins *plugins, struct work_pool *pool, uint64_t limit_bytes);
void regions_fini(struct regions *regions);

/* From now on memory is kept ready (pool_max_bytes in all) and warm (warm_max_bytes of each client); 0: none. What nobody wanted for
 * idle_ns goes back. */
void regions_keep(struct regions *regions, struct deadlines *deadlines, uint64_t pool_max_bytes, uint64_t cached_max_bytes,
                  uint64_t idle_ns);

/* Nothing is kept any more: what is ready goes back, by the work pool, which must still run. */
void regions_close(struct regions *regions);

/* Memory of the heap that is counted like the rest. NO_MEMORY, LIMIT. */
enum rdt_status regions_charge(struct regions *regions, uint64_t bytes, struct rdt_error *err);
void regions_uncharge(struct regions *regions, uint64_t bytes);

/* What is in use, without what is ready or warm. */
uint64_t regions_used_bytes(const struct regions *regions);

/* What nobody else can have, now or in a moment: what is in use, less what is on its way back, and what others wait for. */
uint64_t regions_claimed_bytes(const struct regions *regions);

/* Something ready or warm may have to be given back later: sees to it that somebody looks. */
void regions_watch(struct regions *regions);

/* New zeroed memory with one reference for the caller. RDT_OK: *region_p is ready now (little memory, or what was kept ready: not for
 * REGION_ALLOCATED). RDT_AGAIN: on_ready comes later, with the region or the error. NO_MEMORY, LIMIT (names it) and UNSUPPORTED (no
 * such memory kind) come at once where they can: the limit is taken before anything is touched. Before anyone is refused, what is
 * ready or warm is given up, and what is on its way back waited for, if on_ready can come later. */
enum rdt_status region_alloc(struct regions *regions, const char *kind, const char *device, uint64_t bytes,
                             enum region_origin origin, struct account *account, uint64_t client, struct region **region_p,
                             region_ready on_ready, void *arg, struct rdt_error *err);

/* The same on the loop, whatever the size: for what has no time to wait, and is little. */
enum rdt_status region_alloc_now(struct regions *regions, const char *kind, const char *device, uint64_t bytes,
                                 enum region_origin origin, struct account *account, struct region **region_p,
                                 struct rdt_error *err);

/* The most that region_take takes, up to `most`; 0: nothing. */
uint64_t regions_take_max(struct regions *regions, uint64_t most);

/* Memory that a client has made for one snapshot, by its descriptor (borrowed): it is the daemon's from now on, sealed, and counts like
 * what the daemon makes. One reference for the caller. At once; INVALID (of the descriptor), LIMIT, NO_MEMORY, UNSUPPORTED. */
enum rdt_status region_take(struct regions *regions, int fd, uint64_t bytes, struct account *account, uint64_t client,
                            struct region **region_p, struct rdt_error *err);

enum rdt_status region_import(struct regions *regions, const char *kind, const char *device, const struct rdt_import *import,
                              struct account *account, uint64_t client, struct region **region_p, struct rdt_error *err);

/* ---- on devices (region_device.c) ----
 * Made, lent and given back on the work pool, mapped from the beginning, and charged to the device: used_bytes, below limit_bytes. What
 * nobody uses may be kept there (device_pool.h).
 */

/* AGAIN: on_ready comes, with the region or an error. The fds are taken over as copies. */
enum rdt_status region_import_device(struct regions *regions, const char *kind, const char *device, const struct rdt_import *import,
                                     struct account *account, uint64_t client, region_ready on_ready, void *arg,
                                     struct rdt_error *err);

static inline bool region_is_host(const struct region *region)
{
    return !region->at;
}

static inline const char *region_device(const struct region *region)
{
    return region->at ? region->at->uuid : "";
}

/* How many fds it is shared by; 0: by a handle. */
enum rdt_status region_share_fds(struct region *region, unsigned *n_p, struct rdt_error *err);

/* What a process of its owner maps it by; valid while the region and this struct are. New fds, the caller's: at most `room` (LIMIT), *n_p. */
struct region_share {
    Rdt__Pb__Share message;
    uint8_t handle[RDT_EXPORT_HANDLE_BYTES];
};
enum rdt_status region_share(struct region *region, uint64_t client, struct region_share *share_p, int *fds_p, unsigned room,
                             unsigned *n_p, struct rdt_error *err);

/* NULL: no such region, or another generation. Borrowed. */
struct region *region_find(const struct regions *regions, uint64_t id, uint64_t generation);

/* For region_cache.c: it is in nobody's use, and in its client's again. LIMIT: over one of its account's. */
void region_rest(struct region *region);
enum rdt_status region_resume(struct region *region, struct rdt_error *err);

struct region *region_ref(struct region *region); /* returns it */
void region_unref(struct region *region);         /* NULL is fine */
/* The same for a client that ended and never said that it lets go: its process, or a child of that, may look there for as long as it likes.
 * It has its pages then until the last mapping has gone. NULL is fine. */
void region_abandon(struct region *region);
void region_leave_pages(struct region *region); /* only that */
void region_pin(struct region *region);
void region_unpin(struct region *region);

/* Where the daemon sees its first byte; mapped at the first call. NULL with err. */
uint8_t *region_addr(struct region *region, struct rdt_error *err);

/* Its pages may be missing when they are touched, and a client may see to it that they are: nothing but the daemon's own copies may
 * touch it, not a transport, whose connection others use too. */
bool region_may_fault(const struct region *region);

/* SYSTEM, naming region and client, if that has happened: then what was read there is not what was written. */
enum rdt_status region_check(const struct region *region, struct rdt_error *err);

/* A new fd for the client of that number. writable false: cannot be mapped writable by another uid. */
enum rdt_status region_export_to(struct region *region, uint64_t client, bool writable, int *fd_p, struct rdt_error *err);

/* The same for whoever it may be: the memory can serve nobody again. INTERNAL if one client had it in an earlier life. */
enum rdt_status region_export(struct region *region, bool writable, int *fd_p, struct rdt_error *err);

/* The client may keep it mapped when it lets go of it, and may be given it again (region_cache.h): nobody else ever had it, and it has all its
 * pages. */
bool region_may_come_again(const struct region *region, uint64_t client);

/* Zeroes it on the work pool; on_ready comes later. */
enum rdt_status region_scrub(struct region *region, region_ready on_ready, void *arg, struct rdt_error *err);

/* For region_cache.c: the memory of a region without references goes back, or onto victims with its charge gone; frees the struct. discard:
 * its pages go even if a client has it mapped, unless it was abandoned. */
void region_retire(struct region *region, bool discard, struct list *victims);
/* Its bytes are complete: nobody maps it writable from now on, whatever fd and rights he has. At once. UNSUPPORTED: memory of this kind
 * cannot be sealed. */
enum rdt_status region_seal(struct region *region, struct rdt_error *err);

/* The transport's handle for it; *handle_p NULL if it registers nothing. RDT_AGAIN: on_ready comes later; call again then. */
enum rdt_status region_register(struct region *region, struct transport *transport, void **handle_p, region_ready on_ready,
                                void *arg, struct rdt_error *err);

/* The transport is leaving: ends what is registered with it, of some regions; true: that was the last of them. *cursor begins with 0. It
 * has come to its end when transport->registered is 0. */
bool regions_forget_transport(struct regions *regions, const struct transport *transport, uint64_t *cursor);

/* One whose memory is of that kind. NULL: none was found in a moment. */
const struct region *regions_find_user(const struct regions *regions, const struct memory_kind *kind);

#endif
