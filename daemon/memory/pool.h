/* Memory that is ready before anybody asks: pages reserved, mapped, touched, zeroed, registered where transports register. None of it
 * was ever seen outside the daemon (no fd of it has left), so that it may serve anyone; what comes back here is scrubbed first.
 *
 * It holds blocks of one kind, host memory, in size classes, four to each doubling. Blocks are made ahead on the work pool once
 * demand has shown itself: the second time that a class is wanted within idle_ns. What nobody wanted for so long goes back.
 * Whatever is here is charged by reserve(), and given up before anyone is refused memory.
 *
 * Loop thread only.
 */
#ifndef DAEMON_POOL_H
#define DAEMON_POOL_H

#include "daemon/base/sigbus_guard.h"
#include "daemon/base/list.h"
#include "daemon/base/memory_room.h"
#include "daemon/base/owner.h"
#include "daemon/plugins/plugin.h"
#include "daemon/base/work.h"

#define BLOCK_MAX_REGISTRATIONS 4
/* Up to here memory is made on the loop. A private copy of 128 KiB into memory made there kept the loop for 200 us, of 32 KiB for 100;
 * with memory made ahead on the work pool both took 50 us, and the loop a fraction of it. */
#define POOL_MIN_BYTES (16u << 10)
#define POOL_CLASSES 256

struct registration { /* counted in transport->registered */
    struct transport *transport;
    void *handle;
};

/* Ends it. Any thread. */
void registration_end(const struct registration *registration);

/* Memory by itself, without anybody's name on it. */
struct pool_block {
    struct list link;
    struct pool *pool;
    struct memory_kind *kind;
    struct memory_device *at; /* NULL: host memory */
    struct rdt_block block;
    uint64_t bytes;
    struct registration registrations[BLOCK_MAX_REGISTRATIONS];
    unsigned n_registrations;
    int guard;    /* of the mapping */
    bool discard; /* others may have it mapped: its pages go all the same */
    /* device_pool.c's: whose bytes are in it; the only client that ever had it; since when nobody uses it */
    struct owner owner;
    uint64_t client, since_ns;
    struct account *sender; /* a reference; of memory that a client sent: owner_work ends it. Else NULL */
    struct work work;
    enum rdt_status status; /* of the work */
};

struct pool_class {
    struct list ready; /* struct pool_block, latest last */
    unsigned n_ready, n_making;
    unsigned wants;        /* within idle_ns of each other */
    uint64_t last_want_ns; /* 0: never */
};

struct pool {
    struct work_pool *work;
    struct memory_room *room; /* of blocks made ahead; NULL: there is no pool */
    struct memory_kind *kind;
    uint64_t max_bytes, idle_ns; /* max_bytes 0: there is no pool */
    uint64_t bytes;              /* ready, being made, being scrubbed */
    uint64_t hits, misses;
    struct transport
        *registers[BLOCK_MAX_REGISTRATIONS]; /* with whom memory was registered before: what is made ahead is too */
    unsigned n_registers;
    bool closed;
    /* Takes from, and gives back to, what the daemon may use. reserve: false, there is no room. */
    bool (*reserve)(void *arg, uint64_t bytes);
    void (*unreserve)(void *arg, uint64_t bytes);
    void (*on_change)(void *arg); /* from the loop: a block is ready, or gone */
    void *arg;
    struct pool_class classes[POOL_CLASSES];
};

void pool_init(struct pool *pool, struct work_pool *work, uint64_t max_bytes, uint64_t idle_ns);

/* What memory for so many bytes takes: whole pages, as its kind has them; or its size class, where the pool keeps such. */
uint64_t pool_pages_bytes(const struct memory_kind *kind, uint64_t bytes);
uint64_t pool_room_bytes(const struct pool *pool, const struct memory_kind *kind, uint64_t bytes);

/* A ready block of pool_room_bytes(bytes), which is the caller's with its charge; NULL: none. Either way the pool learns that such
 * are wanted. Free the struct with free(), or give it back. */
struct pool_block *pool_take(struct pool *pool, const struct memory_kind *kind, uint64_t bytes);

/* Takes back a block that never left the daemon, with its charge: scrubbed it will serve again. false: it is not wanted here. */
bool pool_give(struct pool *pool, struct pool_block *block);

/* Moves ready blocks of at least so many bytes (or all there are) to victims, the oldest first; their charge is gone, and the caller
 * sees to it that they are freed. */
void pool_give_up(struct pool *pool, uint64_t bytes, struct list *victims);

/* Gives back what nobody wants any more. false: nothing is left that could grow old. */
bool pool_sweep(struct pool *pool, uint64_t now_ns);

void pool_note_registration(struct pool *pool, struct transport *transport);

/* The transport is leaving: nothing more is registered with it, and what is ready and was goes. */
void pool_forget_transport(struct pool *pool, const struct transport *transport);

/* Everything goes; what is being made goes when it is. */
void pool_close(struct pool *pool);

/* On a work thread: registrations, mapping, pages. Does not free the struct. */
/* Of a block on a device the kind is in use still: the caller ends that on the loop, when its room is given back. */
void pool_block_free(struct pool_block *block);

#endif
