/* The room of memory: regions, which are ranges of host or device memory that the daemon knows, and everything that is done with them.
 *
 * The room owns every allocation and import, its registrations with transports, its exports as descriptors or handles, its charges to accounts
 * and to memory_limit, and what is kept for reuse. It shows region.h (life), region_use.h (which tensors overlap), region_fill.h (pages of imported
 * memory), region_orphans.h (memory that clients keep after its end), region_cache.h and mapped.h (memory that clients keep mapped), slab.h (the arena
 * of small objects), copy.h, device_copy.h and placing.h. It refuses to know objects and transfers: they hold and pin regions.
 *
 * A region is reference-counted. After its last reference its memory goes one of three ways:
 *
 *   never exported                       -> pool.h, device_pool.h: it serves any client again
 *   exported to one client only          -> region_cache.h, device_pool.h: it serves that client again
 *   exported to others, or imported      -> back to the kernel, on the work pool
 *
 * All calls are made in the loop thread.
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
#include "daemon/base/owner_work.h"
#include "daemon/base/work.h"
#include "proto/layout.h"
#include "rdt.pb-c.h"

struct regions {
    const struct events *events; /* NULL: no client watches events */
    struct plugins *plugins;
    struct work_pool *pool;
    struct owner_work *owner_work; /* ends memory that clients sent */
    struct index by_id;
    uint64_t next_id;
    uint64_t bytes, limit_bytes; /* host memory that the daemon allocated: in use, pooled, cached, or being freed */
    unsigned freeing;            /* regions whose pages are being freed on the work pool */
    uint64_t freeing_bytes;
    struct list
        awaiting; /* allocations that wait, in their order, for memory that is being freed or scrubbed (region_alloc.c) */
    uint64_t awaiting_bytes;
    struct pool ready;
    struct device_pool kept;
    struct map cached_clients;             /* client id -> struct region_cache */
    struct list cache;                    /* struct region.by_age: cached regions of all clients, the oldest first */
    uint64_t cached_bytes, cached_max_bytes; /* of all clients; the limit for one client */
    uint64_t cached_hits;
    struct deadlines *deadlines; /* NULL: nothing is pooled or cached */
    struct accounts *accounts;   /* whose requests may wait for room; NULL: none does */
    struct deadline sweep;
    /* Called before an allocation is refused: releases regions without users of at least `bytes` bytes, or none if there are fewer. Returns how
     * many bytes there were. NULL: there are no such regions. */
    uint64_t (*give_up)(void *arg, uint64_t bytes);
    void *give_up_arg;
    struct list *giving_up; /* struct pool_block: collects what is released during give_up; NULL: it is freed as usual */
    struct region_orphans *left; /* memory that clients keep after its end; NULL: it is not counted */
};

/* Where a region comes from. STAGING and ARENA are never exported. */
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
    uint64_t id, generation; /* ids are never reused; the generation proves it on the wire */
    struct regions *regions;
    struct memory_kind *kind;
    struct memory_device *at; /* NULL: host memory. Otherwise only the plug-in touches it, and block.addr is an address of the device */
    struct rdt_block block;
    int guard;      /* the SIGBUS guard of its mapping; GUARD_NONE: its pages cannot be missing */
    uint64_t bytes; /* the size that was requested */
    uint64_t room;  /* the size that is charged and mapped: whole pages, or its size class */
    uint64_t filled_bytes; /* imported memory: missing pages that the daemon creates, charged like its own memory (region_fill.h) */
    enum region_origin origin;
    struct account *account; /* a reference */
    uint64_t client;         /* the session that allocated it, imported it or fetched into it; 0 after that session released it */
    uint64_t maker;          /* the same session, never reset: for rdtctl */
    unsigned n_fds;          /* descriptors charged to the account while it exists */
    bool in_use;             /* its bytes, and one region, are charged to the account */
    unsigned refs;
    unsigned pins;         /* transfers that touch it now; each pin is also a reference */
    bool writable_outside; /* a writable descriptor exists outside the daemon */
    bool sealed;           /* it can never be written again */
    uint64_t exported_to;  /* the only client that ever had a descriptor of it; 0: none, or several */
    bool exported_widely;
    bool never_leaves; /* it must not be exported */
    bool abandoned;    /* a client ended without releasing it and may still have it mapped: its pages must not be removed */
    bool keep_mapped;  /* exported_to keeps it mapped, unused, for its next allocation or fetch */
    bool lent;         /* loaned to objects: its client does not write until no object refers to it, and is told then */
    bool laid_by;      /* a loaned region without objects; its client was told (region_cache.h) */
    bool tainted_by_client;     /* it was reused from the cache, so exported_to may write to it: no other client may ever get it */
    struct registration registrations[REGION_MAX_REGISTRATIONS];
    unsigned n_registrations;
    struct list uses;              /* struct region_use (region_use.h) */
    struct list readers;           /* struct region_reader.by_region: clients that keep it mapped without a hold */
    struct list by_client, by_age; /* of region_cache.c */
    uint64_t cached_since_ns;
};

/* A reader that must be told when the region ends. list_remove(&reader->by_region) ends that. */
struct region_reader {
    struct list by_region;
    void (*on_gone)(struct region_reader *); /* must remove itself from the list */
};

typedef void (*region_ready)(void *arg, struct region *region, const struct rdt_error *err);

void regions_init(struct regions *regions, struct plugins *plugins, struct work_pool *pool, uint64_t limit_bytes);
void regions_fini(struct regions *regions);

/* From now on unused memory is kept in the shared pool (at most pool_max_bytes) and in the cache of each client (at most cached_max_bytes each);
 * 0: none. Memory that is unused for idle_ns is freed. */
void regions_keep(struct regions *regions, struct deadlines *deadlines, uint64_t pool_max_bytes, uint64_t cached_max_bytes,
                  uint64_t idle_ns);

/* Frees all pooled memory on the work pool, which must still run. */
void regions_close(struct regions *regions);

/* Charges heap memory to memory_limit. NO_MEMORY, LIMIT. */
enum rdt_status regions_charge(struct regions *regions, uint64_t bytes, struct rdt_error *err);
void regions_uncharge(struct regions *regions, uint64_t bytes);

/* The bytes in use, without pooled and cached memory. */
uint64_t regions_used_bytes(const struct regions *regions);

/* The bytes that no other request can get soon: in use, not being freed, plus what other requests wait for. */
uint64_t regions_claimed_bytes(const struct regions *regions);

/* Starts the timer that frees idle memory. */
void regions_watch(struct regions *regions);

/* Allocates zeroed memory, with one reference for the caller. RDT_OK: *region_p is ready (little memory, or pooled memory, which REGION_ALLOCATED
 * never gets). RDT_AGAIN: on_ready is called later with the region or the error. NO_MEMORY, LIMIT (names the limit) and UNSUPPORTED (no such
 * memory kind) come at once where possible: limits are charged before memory is touched. Before a request is refused, pooled and cached memory
 * is freed, and the request waits for memory that is being freed, if on_ready may be called later. */
enum rdt_status region_alloc(struct regions *regions, const char *kind, const char *device, uint64_t bytes,
                             enum region_origin origin, struct account *account, uint64_t client, struct region **region_p,
                             region_ready on_ready, void *arg, struct rdt_error *err);

/* Like region_alloc, but in the loop and at once: for little memory that cannot wait. */
enum rdt_status region_alloc_now(struct regions *regions, const char *kind, const char *device, uint64_t bytes,
                                 enum region_origin origin, struct account *account, struct region **region_p,
                                 struct rdt_error *err);

/* The largest size that region_take accepts, up to `most`; 0: it accepts nothing. */
uint64_t regions_take_max(struct regions *regions, uint64_t most);

/* Takes over a memfd that a client has filled and sealed for one snapshot (fd is borrowed). It is charged like the daemon's own memory. One reference
 * for the caller. INVALID (the descriptor), LIMIT, NO_MEMORY, UNSUPPORTED. */
enum rdt_status region_take(struct regions *regions, int fd, uint64_t bytes, struct account *account, uint64_t client,
                            struct region **region_p, struct rdt_error *err);

enum rdt_status region_import(struct regions *regions, const char *kind, const char *device, const struct rdt_import *import,
                              struct account *account, uint64_t client, struct region **region_p, struct rdt_error *err);

/* ---- on devices (region_device.c) ----
 * Device memory is allocated, exported and freed on the work pool, mapped from the beginning, and charged to its device (used_bytes, up to
 * limit_bytes). Unused memory may be pooled (device_pool.h).
 */

/* AGAIN: on_ready is called with the region or an error. The descriptors are duplicated. */
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

/* The number of descriptors that share it; 0: it is shared by a handle. */
enum rdt_status region_share_fds(struct region *region, unsigned *n_p, struct rdt_error *err);

/* What a process of its owner needs to map it; valid while the region and this struct exist. *n_p new descriptors belong to the caller; more than `room`
 * is LIMIT. */
struct region_share {
    Rdt__Pb__Share message;
    uint8_t handle[RDT_EXPORT_HANDLE_BYTES];
};
enum rdt_status region_share(struct region *region, uint64_t client, struct region_share *share_p, int *fds_p, unsigned room,
                             unsigned *n_p, struct rdt_error *err);

/* Borrowed. NULL: there is no such region, or it has another generation. */
struct region *region_find(const struct regions *regions, uint64_t id, uint64_t generation);

/* For region_cache.c: the region is unused, and in use by its client again. LIMIT: of its account. */
void region_rest(struct region *region);
enum rdt_status region_resume(struct region *region, struct rdt_error *err);

struct region *region_ref(struct region *region); /* returns `region` */
void region_unref(struct region *region);         /* NULL is fine */
/* Like region_unref, for a client that ended without releasing the region: its process or a child may still have it mapped, so its pages stay until
 * the last mapping is gone. NULL is fine. */
void region_abandon(struct region *region);
void region_leave_pages(struct region *region); /* only marks it so */
void region_pin(struct region *region);
void region_unpin(struct region *region);

/* The address of its first byte in the daemon, mapped at the first call. NULL with err. */
uint8_t *region_addr(struct region *region, struct rdt_error *err);

/* Whether a client can remove its pages while they are touched. Only the daemon's guarded copies may touch such memory, not a transport, whose
 * connection serves other transfers too. */
bool region_may_fault(const struct region *region);

/* SYSTEM, naming region and client, if pages were missing: what was read is then not what was written. */
enum rdt_status region_check(const struct region *region, struct rdt_error *err);

/* A new descriptor for this client. With writable false, another uid cannot map it writable. */
enum rdt_status region_export_to(struct region *region, uint64_t client, bool writable, int *fd_p, struct rdt_error *err);

/* A new descriptor for any client: the memory can then not be reused. INTERNAL if a client had it before it was reused. */
enum rdt_status region_export(struct region *region, bool writable, int *fd_p, struct rdt_error *err);

/* Whether the client may keep it mapped after its release and get it again (region_cache.h): no other client ever had it, and it has all its pages. */
bool region_may_come_again(const struct region *region, uint64_t client);

/* Zeroes it on the work pool; on_ready is called later. */
enum rdt_status region_scrub(struct region *region, region_ready on_ready, void *arg, struct rdt_error *err);

/* For region_cache.c: frees a region without references, or moves its memory to `victims` without its charge. discard: removes its pages even if a
 * client has it mapped, unless it was abandoned. */
void region_retire(struct region *region, bool discard, struct list *victims);
/* Seals it: from now on nobody can map it writable, whatever descriptor and rights they have. UNSUPPORTED: memory of this kind cannot be sealed. */
enum rdt_status region_seal(struct region *region, struct rdt_error *err);

/* The transport's registration; *handle_p is NULL if it registers nothing. RDT_AGAIN: on_ready is called later; then call again. */
enum rdt_status region_register(struct region *region, struct transport *transport, void **handle_p, region_ready on_ready,
                                void *arg, struct rdt_error *err);

/* A transport is being unloaded: ends its registrations of some regions. *cursor starts at 0. true: these were the last. They have ended when
 * transport->registered is 0. */
bool regions_forget_transport(struct regions *regions, const struct transport *transport, uint64_t *cursor);

/* A region in memory of that kind; NULL: none was found quickly. */
const struct region *regions_find_user(const struct regions *regions, const struct memory_kind *kind);

#endif
