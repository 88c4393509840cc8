/* The room of memory: regions, which are ranges of host or device memory that the daemon knows, and everything that is
 * done with them.
 *
 * The room owns every allocation and import, its registrations with transports, its exports as descriptors or handles,
 * its charges to accounts and to memory_limit, and the memory that is kept for reuse. It shows region.h (life),
 * region_use.h (which tensors overlap), region_fill.h (pages of imported memory), region_orphans.h (memory that clients
 * keep after its end), region_cache.h and mapped.h (memory that clients keep mapped), slab.h (the arena of small
 * objects), copy.h, device_copy.h and placing.h. It refuses to know objects and transfers: they hold and pin regions.
 *
 * A region is reference-counted:
 *
 *                  put with a loan              its last object ends
 *   new ---> USED ------------------> LOANED ------------------------> RETURNED
 *            ^  ^ |                    |  |                              |   |
 *            |  | |                    |  | last reference,              |   |
 *            |  | | last reference,    |  | its client keeps it mapped   |   |
 *            |  | | the client keeps   |  v                              |   |
 *            |  | | it mapped          | CACHED                          |   |
 *            |  | `---------------> CACHED --.                           |   |
 *            |  `----- next use -------'     | idle, or room is wanted   |   |
 *            `-------------------------------|--------- next use --------'   |
 *                                            v                               |
 *   USED, LOANED --- last reference ---> ENDED <--- idle, given back --------'
 *   USED ---> COMMON --- last reference ---^
 *
 *   USED, LOANED      charged to the account of its owner, and found by its id
 *   COMMON            a replica that every fetch of this node shares: found by its id, and charged to no user
 *   RETURNED, CACHED  in the region cache of one client (region_cache.h): neither charged nor found. A client that has a
 *                     RETURNED region may write to it, and uses it again by its id; a CACHED one comes under a new
 *                     generation
 *
 * Where its memory goes in the end depends on who ever could reach it (enum region_exposure):
 *
 *   nobody                           pool.h, device_pool.h: it serves any client again
 *   one client                       region_cache.h, device_pool.h: it serves that client again
 *   several clients, or it is sealed,
 *   or the memory is imported        back to the kernel, on the work pool
 *
 * There are three keepers of unused memory because they keep different things. pool.h keeps host blocks by size class,
 * zeroed ahead on the work pool, for anybody. device_pool.h keeps device blocks, which are never zeroed, for the owner or
 * the client that had them; the device may ask for them back. region_cache.h keeps whole regions that their client has
 * mapped, with the descriptor and the id that the client knows. What all three share is here: the limit, the timer
 * (regions_watch) and the order in which they give memory up.
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
#include "daemon/base/memory_room.h"
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
    struct memory_room room;     /* what the kernel lets the daemon have, whatever limit_bytes is */
    unsigned freeing;            /* regions whose pages are being freed on the work pool */
    uint64_t freeing_bytes;
    struct list
        awaiting; /* allocations that wait, in their order, for memory that is being freed or scrubbed (region_alloc.c) */
    uint64_t awaiting_bytes;
    struct pool free_pool;
    struct device_pool device_pool;
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
    struct region_orphans *orphans; /* memory that clients keep after its end; NULL: it is not counted */
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

/* See the drawing above; the table is in region.c. */
enum region_state { REGION_USED, REGION_LOANED, REGION_COMMON, REGION_RETURNED, REGION_CACHED, REGION_ENDED, REGION_STATES };

/* Which clients can reach the memory, by a descriptor or a handle that the daemon gave them. It only grows, except that BOUND
 * becomes EXPOSED again when the memory is the client's own to write anyway, or when it is sealed. */
enum region_exposure {
    REGION_UNEXPOSED, /* none */
    REGION_PRIVATE,   /* none, and it was allocated so that it never can be exported */
    REGION_EXPOSED,   /* region->exported_to only */
    REGION_BOUND,     /* region->exported_to only, which may still write to it: nobody else may get it */
    REGION_SHARED,    /* several, or the daemon does not know which */
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
    unsigned refs;
    unsigned pins;         /* transfers that touch it now; each pin is also a reference */
    uint8_t state;         /* enum region_state */
    uint8_t exposure;      /* enum region_exposure */
    uint64_t exported_to;  /* the first client that had a descriptor of it; 0: none */
    bool writable_outside; /* a writable descriptor exists outside the daemon, and may outlive a seal */
    bool sealed;           /* no new descriptor or mapping can write it */
    bool abandoned;        /* a client ended without releasing it and may still have it mapped: its pages must not be removed */
    bool keep_mapped;      /* exported_to keeps it mapped, unused, for its next allocation or fetch */
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

/* Moves it to another state of the drawing; nothing if it is there. Aborts if the drawing has no such move. */
void region_set_state(struct region *region, enum region_state state);

/* USED: takes its charge off its account, and moves it to COMMON. */
void region_make_common(struct region *region);

/* For region_cache.c: takes the region's charge off its account, and charges it again. LIMIT: of its account. */
void region_uncharge_use(struct region *region);
enum rdt_status region_charge_use(struct region *region, struct rdt_error *err);

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

/* A descriptor or handle of it goes to that client; 0: the daemon does not know to which. */
void region_expose(struct region *region, uint64_t client);

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
