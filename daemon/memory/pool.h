/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of host memory: free blocks whose pages are already allocated, mapped, touched, zeroed and registered with
 * transports, so that an allocation from the pool costs none of that. No descriptor of a block has ever left the
 * daemon, so a block may serve any client. A block that is returned is zeroed first.
 *
 * The pool holds blocks of one memory kind, in size classes, four to each doubling. When a class is requested a second
 * time within idle_ns, the work pool allocates blocks of that class ahead of demand. Free blocks of a class that nobody
 * requested for idle_ns are freed.
 *
 * Blocks are charged with reserve(), like memory in use, and are freed before a request is refused for lack of memory.
 *
 * All calls are made in the loop thread unless a comment says otherwise.
 */
#ifndef DAEMON_POOL_H
#define DAEMON_POOL_H

#include "daemon/base/deadline.h"
#include "daemon/base/memory_room.h"
#include "daemon/base/owner.h"
#include "daemon/base/sigbus_guard.h"
#include "daemon/base/usage.h"
#include "daemon/base/work.h"
#include "daemon/plugins/plugin.h"
#include "proto/list.h"

#define BLOCK_MAX_REGISTRATIONS 4
/* Memory of up to this size is allocated in the loop, and not pooled. A private copy into memory that the loop
 * allocated kept the loop busy for 200 us with 128 KiB and for 100 us with 32 KiB. Both took 50 us, most of it
 * outside the loop, with memory that the work pool had allocated ahead. */
#define POOL_MIN_BYTES (16u << 10)
#define POOL_CLASSES 256

struct registration { /* counted in transport->registered */
    struct transport *transport;
    void *handle;
};

/* Unregisters the memory. Any thread. */
void registration_end(const struct registration *registration);

struct pinned { /* host memory is pinned for a kind with devices, in whose `pinned` it is counted. See region_pinned.c */
    struct memory_kind *kind; /* NULL: for none */
    void *handle;
    unsigned home; /* 1 + the NUMA node that its pages were asked from, for a device there; 0: any. Also if kind is NULL */
};

/* The `device` of the host kind's alloc: "node1", or "" for any node, and back. */
#define HOME_TEXT_BYTES 16u
const char *home_text(unsigned home, char text_p[HOME_TEXT_BYTES]);
unsigned home_of(const char *text);

/* Pins the memory for pinned->kind, where it is counted already. Returns false if the plug-in refuses; the count is taken back.
 * notes: the first refusal is logged and noted in the kind, unless no device is in use.
 * pinned_end does nothing for memory that is not pinned. Any thread, and not the loop. */
bool pinned_begin(struct pinned *pinned, void *addr, uint64_t bytes, bool notes);
void pinned_end(const struct pinned *pinned);

/* Whom a block of the device pool serves; the narrower, the higher. */
enum pool_serves {
    POOL_SERVES_ANYONE, /* no client ever had it */
    POOL_SERVES_OWNER,  /* processes of one owner had it */
    POOL_SERVES_CLIENT, /* one client had it */
};

/* Memory that belongs to no region: free in a pool, or about to be freed. */
struct pool_block {
    struct list link;
    struct pool *pool;
    struct memory_kind *kind;
    struct memory_device *device; /* NULL: host memory */
    struct rdt_block block;
    uint64_t bytes; /* the size that is charged */
    struct registration registrations[BLOCK_MAX_REGISTRATIONS];
    unsigned n_registrations;
    struct pinned pinned;
    int guard;    /* the SIGBUS guard of its mapping */
    bool discard; /* remove its pages even if another process still maps them */
    int kept_fd;  /* after that: of its file, if pages were not removed because a client has sealed them; -1: all were */
    /* for device_pool.c: the owner whose bytes are in it, whom it serves, and the only client that ever had it (0: none) */
    struct owner owner;
    uint8_t serves; /* enum pool_serves */
    uint64_t client;
    struct list readers;       /* struct region_reader.by_region: those that keep it mapped, also for its next region */
    uint64_t since_ns;         /* when it came into the device pool, or when slow freeing began */
    struct account *slowed_by; /* a reference: its clients can make freeing slow; NULL: none can */
    uint64_t room;             /* if slowed_by: the size of daemon memory. bytes may be 0: the charge was taken off before */
    bool to_be_mapped;         /* the daemon ends, and the client may map the memory later: it is not sealed */
    bool late;                 /* room is charged to slowed_by, because freeing takes so long */
    struct deadline again;     /* set while the memory must stay mapped, until it is tried again */
    unsigned n_readers; /* on a device: processes that were told to unmap it (mapped.h), and 1 while others are being told */
    struct work work;
    enum rdt_status status; /* the result of the work */
};

struct pool_class {
    struct list free; /* struct pool_block, the latest last */
    unsigned n_free;
    unsigned n_pending;      /* blocks that the work pool is allocating or zeroing */
    unsigned n_wanted;       /* requests, each within idle_ns of the one before it */
    uint64_t last_wanted_ns; /* 0: never */
    unsigned last_home;      /* of that request */
};

struct pool {
    struct work_pool *work;
    struct memory_room *room; /* what the kernel lets the daemon have, for blocks that are allocated ahead */
    struct memory_kind *kind;
    uint64_t max_bytes, idle_ns;                           /* max_bytes 0: nothing is pooled */
    uint64_t bytes;                                        /* of blocks that are free, being allocated or being zeroed */
    uint64_t hits, misses;                                 /* requests that a free block served, and those that none could */
    struct transport *transports[BLOCK_MAX_REGISTRATIONS]; /* blocks allocated ahead are registered with these */
    unsigned n_transports;
    struct memory_kind *pinned_for; /* and pinned for this kind; NULL: none */
    bool closed;
    bool (*reserve)(void *arg, uint64_t bytes);   /* charges memory_limit; false: there is no room */
    void (*unreserve)(void *arg, uint64_t bytes); /* takes the charge off */
    void (*on_change)(void *arg);                 /* from the loop: a block has become free, or its memory has been freed */
    void *arg;
    struct pool_class classes[POOL_CLASSES];
};

/* Initialises the pool. The caller sets room, kind, reserve, unreserve, on_change and arg before any other call. */
void pool_init(struct pool *pool, struct work_pool *work, uint64_t max_bytes, uint64_t idle_ns);

/* The size of an allocation of `bytes` bytes of that kind: whole pages of the kind. */
uint64_t pool_pages_bytes(const struct memory_kind *kind, uint64_t bytes);

/* The size of an allocation of `bytes` bytes: its size class, if the pool keeps blocks of this kind and size, or else
 * whole pages. */
uint64_t pool_room_bytes(const struct pool *pool, const struct memory_kind *kind, uint64_t bytes);

/* Takes a free block of pool_room_bytes(bytes) with its charge, and with that home unless it is 0; NULL: there is none.
 * Either way the request counts as demand for its size class. The caller frees the struct with free(), or returns it with
 * pool_give. */
struct pool_block *pool_take(struct pool *pool, const struct memory_kind *kind, uint64_t bytes, unsigned home);

/* Returns a block of which no descriptor ever left the daemon, with its charge. The work pool zeroes it, and then it
 * is free. Returns false if the pool has no use for it: the block is still the caller's. */
bool pool_give(struct pool *pool, struct pool_block *block);

/* Moves free blocks of at least `bytes` bytes, or all if there are fewer, to `victims`, those of the least recently
 * requested classes first. Their charge is taken off at once. The caller frees them. */
void pool_evict(struct pool *pool, uint64_t bytes, struct list *victims);

/* Frees the blocks of classes that nobody requested for idle_ns. Returns false if the pool is empty. */
bool pool_sweep(struct pool *pool, uint64_t now_ns);

/* From now on blocks that are allocated ahead are registered with that transport, too. */
void pool_note_registration(struct pool *pool, struct transport *transport);

/* The transport is being unloaded: frees the free blocks that are registered with it, and registers no more. */
void pool_forget_transport(struct pool *pool, const struct transport *transport);

/* The kind is being unloaded: frees the free blocks that are pinned for it, and pins no more. */
void pool_forget_pins(struct pool *pool, const struct memory_kind *kind);

/* Frees all free blocks. Blocks that are being allocated or zeroed are freed when that is done. */
void pool_close(struct pool *pool);

/* Unregisters and frees the memory of a block, but not the struct. Any thread. The use of the memory kind ends here
 * for host memory; for memory of a device the caller ends it in the loop, when the device's charge is taken off. If the
 * memory must stay mapped while another process has it (slowed_by has prevented the seal that makes it safe to unmap), its
 * address stays in the block, and the caller calls again later. */
void pool_block_free(struct pool_block *block);

#endif
