/* SPDX-License-Identifier: Apache-2.0 */
/* The room of memory: regions, which are ranges of host or device memory that the daemon knows, and everything that is
 * done with them.
 *
 * The room owns every allocation and import, its registrations with transports, its exports as descriptors or handles,
 * its charges to accounts and to memory_limit, and the memory that is kept for reuse. It shows region.h (life),
 * region_use.h (which tensors overlap), region_fill.h and imported.h (pages and bytes of imported memory),
 * region_orphans.h (memory that clients keep after its end), region_cache.h and mapped.h (memory that clients keep
 * mapped), slab.h (the arena of small objects), copy.h, device_copy.h and placing.h. It refuses to know objects and
 * transfers: they hold and pin regions.
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
 *   USED, COMMON --- last reference, sealed ---> CACHED
 *
 *   USED, LOANED      charged to the account of its owner, and found by its id
 *   COMMON            a replica that every fetch of this node shares: found by its id, and charged to no user
 *   RETURNED, CACHED  in a region cache (region_cache.h), of one client or of sealed memory: neither charged nor found. A
 *                     client that has a RETURNED region may write to it, and uses it again by its id; a CACHED one comes
 *                     under a new generation
 *
 * Where its memory goes in the end depends on who ever could reach it (enum region_exposure):
 *
 *   nobody                           pool.h, device_pool.h: it serves any client again
 *   one client                       region_cache.h, device_pool.h: it serves that client again
 *   readers of one owner, sealed     region_cache.h: it serves the snapshots and replicas of that owner again
 *   clients of one owner, WRITTEN    device_pool.h: the same, for what only that owner may see
 *   several clients otherwise, or
 *   the memory is imported           back to the kernel, on the work pool
 *
 * Unused memory is kept for reuse in three places, because it differs in what its next user may see. pool.h has host
 * blocks by size class, zeroed ahead on the work pool, for any client. device_pool.h has device blocks, which are zeroed
 * only when another owner gets them. region_cache.h has whole regions under the descriptor that clients know: those that
 * their client still has mapped, and sealed ones. What all three share is here: the limit, the timer (regions_watch) and
 * the order in which they free memory for other requests.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_REGION_H
#define DAEMON_REGION_H

#include <pthread.h>

#include "daemon/base/account.h"
#include "daemon/base/deadline.h"
#include "daemon/base/events.h"
#include "daemon/base/ids.h"
#include "daemon/base/index.h"
#include "daemon/base/log.h"
#include "daemon/base/map.h"
#include "daemon/base/memory_room.h"
#include "daemon/base/owner_work.h"
#include "daemon/base/work.h"
#include "daemon/memory/device_pool.h"
#include "daemon/memory/gaps.h"
#include "daemon/memory/pool.h"
#include "daemon/plugins/plugin.h"
#include "proto/layout.h"
#include "proto/list.h"
#include "rdt.pb-c.h"

struct region;
struct regions;

struct cached_regions {
    struct list list; /* struct region.reuse.by_client, the latest last */
    unsigned n;
    uint64_t bytes;
};

struct stuck_blocks {
    struct list list; /* struct pool_block.link */
    struct log_rare said;
};

struct regions_freeing {
    unsigned n;                /* blocks that are being freed on the work pool or by owner_work */
    uint64_t bytes;            /* their host memory unless they are late, and orphaned memory in its grace period */
    uint64_t leaving_bytes;    /* host memory of all blocks that are being freed, late or not */
    struct list slow;          /* struct pool_block.link: being freed by owner_work, and not late; the oldest first */
    struct deadline slow_late; /* set while `slow` is not empty */
    struct stuck_blocks stuck; /* the same that must stay mapped for now (pool_block_free) */
    struct list telling;       /* struct pool_block.link: of devices, whose readers are being told, in slices */
    struct slice tell;         /* of `telling` */
};

struct regions_awaiting {    /* what nobody else can get */
    bool evicting;           /* regions->evict goes on making room, and calls on_freed when it has ended */
    struct list works;       /* struct page_work: allocations that wait for memory that is being freed, in order */
    uint64_t bytes;          /* of these */
    uint64_t promised_bytes; /* to requests that allocate them in a moment (regions_promise) */
};

struct region_caches {
    struct map clients;           /* client id -> struct region_cache */
    struct cached_regions sealed; /* of no client */
    uint64_t sealed_hits;         /* how often one of them was used again */
    struct list by_age;           /* struct region.reuse.by_age: all cached regions, the oldest first */
    uint64_t bytes;               /* of all of them */
    uint64_t max_bytes;           /* the limit for one client, and for sealed regions */
    uint64_t hits;                /* how often a client's cached region was used again */
    struct map importers;         /* struct importer (region_table.c): which clients have imported memory of which devices */
    uint64_t n_imports;           /* of memory of devices, so far */
};

struct regions_kept { /* those with a record */
    /* One ends: its record must be removed, unless a later daemon is to have the memory. */
    void (*on_end)(void *arg, struct region *region);
    void *arg;
};

struct regions_left {     /* imported memory that its client has left behind (region_left.c) */
    struct map by_region; /* id -> struct left_region */
    struct map by_key;    /* struct left_file */
    struct list files;    /* struct left_file.link: the one that was looked at last is last */
    struct deadline look; /* set while `files` is not empty */
    struct log_rare said;
    enum rdt_status (*charge)(struct regions *regions, uint64_t bytes, struct rdt_error *err); /* regions_charge */
    /* Some of it does not fit: what uses it must end, as far as no client keeps it (region_has_no_room). It may be called
     * anywhere, and ends nothing inside the call. */
    void (*on_no_room)(void *arg);
    void *arg;
};

struct regions_searches {
    struct list waits; /* struct region_wait (region_use.h) */
    struct slice slice;
};

struct regions {
    const struct events *events; /* NULL: no client watches events */
    struct plugins *plugins;
    struct work_pool *pool;
    struct owner_work *owner_work; /* frees memory that a client can make slow to free */
    struct index by_id;
    struct ids ids;
    uint64_t restored_id; /* of the region that is being restored; 0: none is */
    struct regions_kept kept;
    uint64_t bytes, limit_bytes; /* host memory that the daemon allocated: in use, pooled, cached, or being freed */
    bool restoring;              /* what an earlier daemon had is restored, whatever limit_bytes is now */
    struct memory_room room;     /* what the kernel lets the daemon have, whatever limit_bytes is */
    struct regions_freeing freeing;
    struct regions_awaiting awaiting;
    /* Memory of the device (NULL: of the host) has been freed: allocations that wait for it may continue. It may call
     * anyone. */
    void (*on_freed)(struct regions *regions, struct memory_device *device);
    struct pool free_pool;
    struct device_pool device_pool;
    struct region_caches caches;
    struct deadlines *deadlines; /* NULL: nothing is pooled or cached */
    struct regions_left left;
    struct regions_searches searches;
    struct accounts *accounts; /* whose requests may wait for room; NULL: none does */
    struct deadline sweep;
    /* Called before an allocation is refused: releases regions without users of at least `bytes` bytes, at once or later
     * (awaiting.evicting), or none if there are fewer. Returns how many bytes there were. NULL: there are no such regions. */
    uint64_t (*evict)(void *arg, uint64_t bytes);
    void *evict_arg;
    struct list *evicted; /* struct pool_block: set during evict, to collect the memory of the regions that it releases */
    struct work_pool *file_pool;    /* reads files ahead (region_file.h); NULL: nothing does */
    _Atomic bool files_closed;      /* file_pool is being closed */
    _Atomic bool ending;            /* the daemon ends: allocations that have not begun are refused */
    struct region_orphans *orphans; /* memory that processes keep after its region's end; NULL: it is not counted */
};

/* What a region was created for. From RECEIVED on, all of it is written before it is read: by the daemon, or for WRITTEN by the
 * client, if it has one. */
enum region_origin {
    REGION_ALLOCATED, /* a client's allocation */
    REGION_IMPORTED,  /* memory that a client imported */
    REGION_RECEIVED,  /* the bytes of a fetch */
    REGION_SNAPSHOT,  /* a snapshot that was put; on a device, one that others than its owner may see: never exported there */
    REGION_STAGING,   /* bytes on their way from a transport; never exported */
    REGION_ARENA,     /* small objects (slab.h); never exported */
    REGION_REPLICA,   /* a replica of another node's snapshot */
    REGION_WRITTEN,   /* device memory that is written whole before it is read: a client's allocation, or a snapshot */
    REGION_FILE,      /* a file of the daemon's own, which never changes; its bytes are not charged as memory (region_file.h) */
    REGION_STAGE,     /* slots between a device and a transport (stage.h); never exported, and pooled with its pin */
};

/* See the drawing above; the table is in region_table.c. */
enum region_state { REGION_USED, REGION_LOANED, REGION_COMMON, REGION_RETURNED, REGION_CACHED, REGION_ENDED, REGION_STATES };

/* Which clients can reach the memory, by a descriptor or a handle that the daemon gave them. It only grows, except that BOUND
 * becomes EXPOSED again when the memory is the client's own to write anyway, or when it is sealed. */
enum region_exposure {
    REGION_UNEXPOSED, /* none */
    REGION_PRIVATE,   /* none, and it was allocated in a way that cannot be exported */
    REGION_EXPOSED,   /* region->reach.exported_to only */
    REGION_BOUND,     /* region->reach.exported_to only, which may still write to it: nobody else may get it */
    REGION_SHARED,    /* several, or the daemon does not know which */
};

/* Who can write the memory from now on:
 *
 *   UNSEALED --- the daemon has not mapped it ---> SEALED
 *            `-- the daemon has mapped it -------> REFILLABLE
 */
enum region_seal {
    REGION_UNSEALED,
    REGION_SEALED,     /* no new descriptor or mapping can write it */
    REGION_REFILLABLE, /* the same, but the daemon's own mapping can still write it */
};

/* The processes beside the daemon that can reach the memory. */
struct region_reach {
    uint8_t exposure;      /* enum region_exposure */
    uint8_t seal;          /* enum region_seal */
    uint64_t exported_to;  /* the first client that had a descriptor of it; 0: none */
    bool writable_outside; /* another process has a writable descriptor of it, which may outlive a seal */
    bool abandoned;        /* a client ended without releasing it. It may have it mapped: its pages must not be removed */
    bool one_audience;     /* all clients that ever had a descriptor of it are of one owner: audience */
    struct owner audience;
    uint64_t exposed_at; /* regions->caches.n_imports when the first one got it */
};

/* Memory that a client imported. */
struct region_imported {
    uint64_t offset;         /* of the region in its file */
    uint64_t filled_bytes;   /* the missing pages that the daemon creates and is charged for (region_fill.h) */
    uint64_t unmade_bytes;   /* of them: charged, and not created yet by a copy, as far as the daemon knows */
    pthread_mutex_t writing; /* region_is_by_fd: who writes has it, and knows so which pages it creates */
};

/* The region's time in a region cache (region_cache.c). */
struct region_reuse {
    bool keep_mapped; /* reach.exported_to will keep it mapped after its release, for its next allocation or fetch */
    struct list by_client, by_age; /* in cached_regions.list and in regions->caches.by_age */
    uint64_t cached_since_ns;
};

#define REGION_MAX_REGISTRATIONS BLOCK_MAX_REGISTRATIONS

struct region {
    uint64_t id, generation; /* ids are never reused; the generation proves it on the wire */
    struct regions *regions;
    struct memory_kind *kind;
    struct memory_device *device; /* NULL: host memory. If not, only the plug-in touches it: block.addr is in the device */
    struct rdt_block block;
    int guard;      /* the SIGBUS guard of its mapping; GUARD_NONE: its pages cannot be missing */
    uint64_t bytes; /* the size that was requested */
    uint64_t room;  /* the size that is charged and mapped: whole pages, or its size class */
    struct region_imported imported;
    enum region_origin origin;
    struct account *account; /* a reference */
    uint64_t client;         /* the session that allocated it, imported it or fetched into it; 0 after it released it */
    uint64_t creator;        /* the same session, never reset */
    unsigned n_fds;          /* descriptors charged to the account while it exists */
    unsigned refs;
    unsigned pins; /* transfers that touch it now; each pin is also a reference */
    uint8_t state; /* enum region_state */
    struct region_reach reach;
    bool unwritten;  /* it shows bytes of others until region_written: it is neither exported nor pooled */
    bool mapped;     /* it is charged for the daemon's mapping of it */
    bool read_ahead; /* of FILE: its bytes are being read from the disk, or have been */
    struct registration registrations[REGION_MAX_REGISTRATIONS];
    unsigned n_registrations;
    struct pinned pinned;
    unsigned device_copies; /* from and to devices, of host memory that is not pinned */
    struct list uses;       /* struct region_use (region_use.h) */
    struct list readers;    /* struct region_reader.by_region: clients that keep it mapped without a hold */
    struct region_reuse reuse;
    void *record; /* the keeper has its descriptor, and a later daemon will have it (recovery.h); NULL: it has no record */
};

/* A reader that is told when the region ends. list_remove(&reader->by_region) ends that. */
struct pool_block;
struct region_reader {
    struct list by_region; /* or struct pool_block.readers */
    /* Must remove itself from the list. block: memory of a device that is not freed before region_block_left; NULL: none is. */
    void (*on_gone)(struct region_reader *, struct pool_block *block);
    /* The memory, which stayed mapped in the device pool, is that of another region now, in whose list the reader is. It may
     * remove itself. NULL: the client does not understand that, and must be told that its region has ended. */
    void (*on_moved)(struct region_reader *, const struct region *to);
};

/* The result of asynchronous work: the region, or NULL and the error. */
typedef void (*region_ready)(void *arg, struct region *region, const struct rdt_error *err);

/* A client's charges for the region are from now on its owner's. */
void region_charge_owner(struct region *region);

/* Changes memory_limit, and the most that is pooled, and cached for one client. What is in use above them stays. */
void regions_set_limits(struct regions *regions, uint64_t limit_bytes, uint64_t pool_max_bytes, uint64_t cached_max_bytes);

/* Initialises the table; its arguments are borrowed. Nothing is pooled or cached until regions_set_reuse. */
void regions_init(struct regions *regions, struct plugins *plugins, struct work_pool *pool, uint64_t limit_bytes);
void regions_fini(struct regions *regions);

/* From now on unused memory is kept for reuse: at most pool_max_bytes in the pool of host memory, and at most
 * cached_max_bytes in the region cache of each client and in that of sealed memory; 0: none. Memory that is unused for idle_ns
 * is freed. */
void regions_set_reuse(struct regions *regions, struct deadlines *deadlines, uint64_t pool_max_bytes, uint64_t cached_max_bytes,
                       uint64_t idle_ns);

/* Frees all pooled memory on the work pool, which must still run, and stops the timer. */
void regions_close(struct regions *regions);

/* Charges memory that is not a region to memory_limit, and takes such a charge off. regions_charge frees pooled and cached
 * memory if it must. NO_MEMORY, LIMIT. */
enum rdt_status regions_charge(struct regions *regions, uint64_t bytes, struct rdt_error *err);
void regions_uncharge(struct regions *regions, uint64_t bytes);

/* The bytes in use or being freed, without pooled and cached memory. */
uint64_t regions_used_bytes(const struct regions *regions);

/* The bytes that a new request cannot get: those in use, and those that earlier requests wait for. */
uint64_t regions_claimed_bytes(const struct regions *regions);

/* Whether so much could be allocated now, if everything without users made room, beside what is promised. */
bool regions_would_fit(const struct regions *regions, uint64_t bytes);

/* Nobody else gets the last so many bytes, until the promise is taken back: just before they are allocated. */
static inline void regions_promise(struct regions *regions, uint64_t bytes)
{
    regions->awaiting.promised_bytes += bytes;
}

static inline void regions_unpromise(struct regions *regions, uint64_t bytes)
{
    regions->awaiting.promised_bytes -= bytes;
}

/* Whether an allocation leaves what is promised to others. */
static inline bool regions_may_give(const struct regions *regions, uint64_t bytes)
{
    return regions->awaiting.promised_bytes == 0 || regions_would_fit(regions, bytes);
}

/* Starts the timer that frees idle memory, if it is not running. */
void regions_watch(struct regions *regions);

/* Allocates zeroed memory, charged to `account`, with one reference for the caller. Device memory that is
 * written whole (from REGION_RECEIVED on) is not zeroed if its old bytes are the same owner's. A SNAPSHOT or REPLICA may get
 * sealed memory of region_cache.h, which is not zeroed either: the caller clears its gaps (region_clear_gaps). device: for host
 * memory home_text of the NUMA node that is preferred, or "".
 *
 * RDT_OK: *region_p is ready (little memory, or memory of the pool, which REGION_ALLOCATED never gets). RDT_AGAIN:
 * on_ready is called later with the region or an error. on_ready NULL: never RDT_AGAIN, the loop allocates; only for host
 * memory. Errors, after which on_ready is not called: NO_MEMORY, LIMIT (names the limit), UNSUPPORTED (no such memory kind
 * or device), INVALID (0 bytes). Limits are charged before memory is touched. Before a request is refused, pooled and
 * cached memory is freed, and a request with on_ready waits for memory that is being freed. */
enum rdt_status region_alloc(struct regions *regions, const char *kind, const char *device, uint64_t bytes,
                             enum region_origin origin, struct account *account, uint64_t client, struct region **region_p,
                             region_ready on_ready, void *arg, struct rdt_error *err);

/* region_alloc for device memory that the daemon writes before any client gets it, all but the gaps: only these are cleared.
 * The memory is exported to nobody, and pooled for nobody, until region_written says that all of it is written. */
enum rdt_status region_alloc_to_write(struct regions *regions, struct memory_device *device, uint64_t bytes,
                                      const struct gaps *gaps, enum region_origin origin, struct account *account,
                                      uint64_t client, struct region **region_p, region_ready on_ready, void *arg,
                                      struct rdt_error *err);
void region_written(struct region *region);

/* Allocates a little host memory in the loop: region_alloc without on_ready, for no client. */
enum rdt_status region_alloc_now(struct regions *regions, const char *kind, uint64_t bytes, enum region_origin origin,
                                 struct account *account, struct region **region_p, struct rdt_error *err);

/* Imports host memory of a client; the plug-in duplicates the descriptors. One reference for the caller. INVALID,
 * UNSUPPORTED, LIMIT, NO_MEMORY, SYSTEM. */
enum rdt_status region_import(struct regions *regions, const char *kind, const struct rdt_import *import,
                              struct account *account, uint64_t client, struct region **region_p, struct rdt_error *err);

/* ---- regions that survive the daemon (region_restore.c) ---- */

/* The properties of a region that a later daemon needs in addition to its descriptors. */
struct region_image {
    const char *kind;
    const char *device; /* uuid; "": host memory */
    uint64_t id, generation, bytes, room, offset;
    struct rdt_export exported; /* memory on a device: what another process needs to map it; borrowed */
    enum region_origin origin;  /* ALLOCATED, IMPORTED, RECEIVED, SNAPSHOT, FILE */
    uint64_t client, creator;   /* region->client, region->creator */
};

/* Returns the descriptors from which a later daemon could restore the memory, borrowed; none, if a client imported it by a
 * handle without them. false: it could not be restored. */
bool region_kept_fds(const struct region *region, const int **fds_p, uint32_t *n_p);
struct region_image region_image(const struct region *region);

/* Restores a region of an earlier daemon, under the same id, which must be above those of all regions so far. One reference
 * for the caller. No limit refuses it. Takes the descriptors [n_fds] on success; n_fds is 1, except for memory
 * on a device that a client imported. For the daemon's start: memory on a device is mapped again, and the first such region
 * opens the device. INVALID, UNSUPPORTED, NO_MEMORY, or the plug-in's error. */
enum rdt_status region_restore(struct regions *regions, const struct region_image *image, const int *take_fds, uint32_t n_fds,
                               struct account *account, struct region **region_p, struct rdt_error *err);

/* ---- host memory that is pinned for devices (region_pinned.c) ---- */

/* Pins a host region for a kind with devices, if its plug-in can, for as long as the memory exists, also in the pool.
 * RDT_AGAIN: on_ready follows, pinned or not; NULL: nobody waits. Blocks that the pool allocates ahead are pinned from then on.
 * NO_MEMORY. */
enum rdt_status region_pin_for(struct region *region, struct memory_kind *kind, region_ready on_ready, void *arg,
                               struct rdt_error *err);

/* Devices of the kind have copied from or to the region. Memory that is used so a second time is pinned, in the background. */
void region_note_device_copy(struct region *region, struct memory_kind *kind);

bool region_is_pinned_for(const struct region *region, const struct memory_kind *kind);

/* The kind is being unloaded: unpins all memory, on the work pool. *cursor is 0 at first. Returns false if it must be called
 * again. */
bool regions_forget_pins(struct regions *regions, const struct memory_kind *kind, uint64_t *cursor);

/* ---- device memory ----
 * Device memory is allocated, imported and freed on the work pool, mapped from the beginning, and charged to its device
 * (used_bytes, up to limit_bytes). Unused memory may be pooled (device_pool.h).
 */

/* Imports device memory of a client. RDT_AGAIN: on_ready is called later with the region or an error. The descriptors are
 * duplicated. Errors, after which on_ready is not called: INVALID, UNSUPPORTED, LIMIT, NO_MEMORY, SYSTEM. */
enum rdt_status region_import_device(struct regions *regions, const char *kind, const char *device,
                                     const struct rdt_import *import, struct account *account, uint64_t client,
                                     region_ready on_ready, void *arg, struct rdt_error *err);

/* Whether its bytes are memory that the daemon allocated, which counts under memory_limit and for its account. */
static inline bool region_is_charged(const struct region *region)
{
    return region->origin != REGION_IMPORTED && region->origin != REGION_FILE;
}

/* Whether the processor can access the memory. */
static inline bool region_is_host(const struct region *region)
{
    return !region->device;
}

static inline bool region_is_sealed(const struct region *region)
{
    return region->reach.seal != REGION_UNSEALED;
}

/* Whether the daemon reads and writes the memory by its descriptor, and never maps it (imported.h). */
static inline bool region_is_by_fd(const struct region *region)
{
    return region->origin == REGION_IMPORTED && !region->device && region->block.fd >= 0;
}

/* Whether a client can hold up whoever touches the memory, however few bytes of it: a page fault waits while the client removes
 * pages, which takes long where thousands of mappings show them. So the loop and the worker pool do not touch it. */
static inline bool region_may_wait(const struct region *region)
{
    return !region->device && region->block.fd >= 0 && region->reach.writable_outside && !region_is_sealed(region);
}

/* "" for host memory. */
static inline const char *region_device_uuid(const struct region *region)
{
    return region->device ? region->device->uuid : "";
}

/* The number of descriptors that region_share returns; 0: the memory is shared by a handle. INTERNAL, or the plug-in's
 * error. */
enum rdt_status region_share_fds(struct region *region, unsigned *n_p, struct rdt_error *err);

/* What a process of its owner needs to map device memory; valid while the region and this struct exist. */
struct region_share {
    Rdt__Pb__Share message;
    uint8_t handle[RDT_EXPORT_HANDLE_BYTES];
};

/* Exports device memory to that client. *n_p new descriptors in fds_p, which has space for `room`, belong to the caller.
 * LIMIT: more than `room` would be needed. INTERNAL: another client had the memory before. SYSTEM, or the plug-in's
 * error. */
enum rdt_status region_share(struct region *region, uint64_t client, struct region_share *share_p, int *fds_p, unsigned room,
                             unsigned *n_p, struct rdt_error *err);

/* ---- the life of a region ---- */

/* Moves it to another state of the drawing; does nothing if it is in that state. Aborts if the drawing has no such move. */
void region_set_state(struct region *region, enum region_state state);

/* Takes the charge of a USED region off its account, and moves it to COMMON. */
void region_make_common(struct region *region);

struct region *region_ref(struct region *region); /* returns `region` */
void region_unref(struct region *region);         /* NULL is allowed */

/* A client ended without releasing the region: its process or a child may still have it mapped, so its pages are not
 * removed before the last mapping is gone. */
void region_mark_abandoned(struct region *region);

/* Its client has released it or has ended, and something else uses it: from now on the daemon keeps the pages of imported
 * memory, and its owner is charged for them. Does nothing with other memory, or while its client has it; it may be called
 * again. */
void region_left(struct region *region);

/* Whether such memory does not fit its owner's limit or memory_limit: what uses it must end. */
bool region_has_no_room(const struct region *region);

/* A pin is a reference of a transfer that touches the memory. */
void region_pin(struct region *region);
void region_unpin(struct region *region);

/* ---- who can reach its memory ---- */

/* The address of its first byte in the daemon, mapped at the first call. Returns NULL with err if it cannot be mapped: INTERNAL
 * (it was imported: imported.h), LIMIT (of mappings, or too many regions have a SIGBUS guard), NO_MEMORY. */
uint8_t *region_addr(struct region *region, struct rdt_error *err);

/* Whether touching it may fail, because a client can remove its pages or because they come from a disk. Only the daemon's
 * guarded copies may touch such memory. A transport may not, because a fault there would end a connection that serves other
 * transfers, too. */
bool region_may_fault(const struct region *region);

/* SYSTEM, with the region and the client, if pages were missing when the daemon touched them: the bytes that were read are
 * not those that were written. */
enum rdt_status region_check(const struct region *region, struct rdt_error *err);

/* Seals it: from now on nobody can map it writable, whatever descriptor and rights they have. UNSUPPORTED: memory of this
 * kind cannot be sealed. */
enum rdt_status region_seal(struct region *region, struct rdt_error *err);

/* Returns a new descriptor for this client, the caller's in *fd_p. client 0: for any client; the memory can then not be
 * reused. With writable false, a process of another uid cannot map it writable. Seals snapshots and replicas first.
 * INTERNAL: another client had the memory before. UNSUPPORTED, SYSTEM. */
enum rdt_status region_export_to(struct region *region, uint64_t client, bool writable, int *fd_p, struct rdt_error *err);

/* Notes that a descriptor or handle of it goes to that client; 0: to a client that the daemon does not know. */
void region_expose(struct region *region, uint64_t client);

/* Whether the client may keep it mapped after its release and get it again (region_cache.h): no other client ever had it,
 * and none of its pages is lost. */
bool region_may_be_cached(const struct region *region, uint64_t client);

/* ---- zeroing and registering ---- */

/* Zeroes it on the work pool, and then calls on_ready. On an error on_ready is not called. */
enum rdt_status region_scrub(struct region *region, region_ready on_ready, void *arg, struct rdt_error *err);

/* Returns the transport's registration in *handle_p; NULL if the transport registers nothing. RDT_AGAIN: on_ready is called
 * later; call again then. UNSUPPORTED (the transport is being unloaded), LIMIT, NO_MEMORY, or an error of region_addr. */
enum rdt_status region_register(struct region *region, struct transport *transport, void **handle_p, region_ready on_ready,
                                void *arg, struct rdt_error *err);

/* A transport is being unloaded: ends its registrations of some regions. *cursor starts at 0. Returns true when these were
 * the last regions. All registrations have ended when transport->registered is 0. */
bool regions_forget_transport(struct regions *regions, const struct transport *transport, uint64_t *cursor);

/* Returns a region in memory of that kind, for an error message; NULL: none was found quickly. */
const struct region *regions_find_user(const struct regions *regions, const struct memory_kind *kind);

#endif
