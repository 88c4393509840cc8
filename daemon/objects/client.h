/* One session of one actor process: who it is, what it holds, what it has asked for. The connection that carries it is above
 * (conn.c) and sends for it. What a client leaves behind when it ends is found by these lists.
 */
#ifndef DAEMON_CLIENT_H
#define DAEMON_CLIENT_H

#include <sys/types.h>

#include "daemon/base/account.h"
#include "daemon/base/owner_work.h"
#include "daemon/base/list.h"
#include "daemon/base/map.h"
#include "daemon/memory/mapped.h"
#include "daemon/memory/region.h"
#include "daemon/memory/region_cache.h"
#include "proto/frame.h"
#include "proto/messages.h"
#include "rdt.pb-c.h"

struct object;
struct watch;

#define CLIENT_UNCOUNTED_BYTES (256u << 10) /* a larger message, or more that waits to be read, counts as its share of the heap */
#define CLIENT_FDS_OUT 16 /* regions that are known to be mapped by whoever fetches much of them at once */

/* Something that happened for the client and costs time to tell: done in the client's own turns, not in those of whoever caused it. */
struct client_wake {
    struct list link;
    void (*run)(struct client_wake *); /* removed from the list before */
};

/* A request that takes more than one turn. The client's further frames wait for its end, and nobody else does. */
struct client_task {
    bool waits; /* for the pool: asks for a turn when it can go on */
    /* Goes on until about until_ns (uv_hrtime). true: it has ended, and freed itself; client->task, NULL meanwhile, may be another now. */
    bool (*step)(struct client_task *, uint64_t until_ns);
    /* The client is gone. false: not possible yet; it asks for a turn when it is. */
    bool (*drop)(struct client_task *);
};

/* Chunks of an import that comes in several frames. */
struct import_parts {
    uint64_t number; /* the client's */
    uint32_t n, charged; /* charged: file descriptors of its account */
    int fds[RDT_EXPORT_MAX_FDS];
    uint64_t chunk_bytes[RDT_EXPORT_MAX_FDS];
};

struct client {
    uint64_t id;
    struct account *account; /* a reference */
    gid_t gid;
    pid_t pid;
    bool admin; /* root or the daemon's own uid: sees and may free everything */
    bool gone;  /* its connection has ended: nothing can be sent */
    bool tensor_runs; /* it reads lists of tensors in runs */
    bool notice_given; /* the log has said that others see what it may still write */
    char name[65];
    uint64_t since_ns;
    struct list link;    /* in the daemon's list of clients */
    struct list objects; /* it produced and has not freed: struct object.by_producer */
    unsigned n_objects;
    struct map regions; /* handles it has: region id -> struct region, one reference each */
    struct map holds;   /* hold id -> struct hold */
    struct map keeps;   /* request id -> struct keeping */
    struct map fetches; /* handle -> struct fetch */
    uint64_t n_fetch_messages;
    uint64_t copying_bytes; /* that it copies itself, from objects it holds */
    struct client_fd { /* the fd of a region went out in an answer to that message; by region id, the latest wins */
        uint64_t region, generation, message;
    } fds_out[CLIENT_FDS_OUT];
    struct owner_work *owner_work;          /* given by conn.c */
    struct import_parts *importing; /* NULL: none is on its way */
    char maps[128];                 /* kinds of memory it can map, " cuda " */
    struct region_cache cache;   /* regions it has mapped and let go of: they come again */
    struct mapped mapped; /* others' regions that it keeps mapped for reading */
    uint64_t n_gones;     /* REGION_GONE events it was sent */
    struct list calls;  /* deferred: struct call.link */
    unsigned n_calls;
    struct list wakes;   /* struct client_wake.link */
    struct list hearing; /* struct client_hearing.link */
    struct client_task *task;
    struct watch *watch; /* of rpc_watch.c; NULL: it does not watch */
    size_t reaped_fetches, reaped_holds, reaped_keeps, reaped_regions; /* how far its end has come in each map */

    /* Given by conn.c. Packs and queues one frame; takes the fds, whatever happens. Nothing once it is gone. */
    void (*send)(struct client *, uint16_t type, uint8_t flags, uint64_t request_id, const ProtobufCMessage *,
                 const int *take_fds, unsigned n_fds);
    size_t (*queued_bytes)(const struct client *);
    /* How many bytes it has said, those included that nobody has read yet. 0: all of them have been handled. */
    uint64_t (*said)(const struct client *);
    void (*want_turn)(struct client *); /* it has work to do */
};

/* Somebody who goes on when all that the client has said up to now has been handled: its word that he need not, it may be. */
struct client_read_barrier {
    struct list link;
    uint64_t said;
    void (*run)(struct client_read_barrier *); /* removed from the list before; never inside client_hear */
};

/* What keeps memory alive for a reader: a hold on an object, or a reference to a region with its private copy. (A hold without
 * bytes is another thing: remote_hold.h.) */
struct hold {
    uint64_t id;
    struct client *client;
    struct object *object; /* NULL: a copy */
    struct list by_object; /* in object->others->holders */
    struct region *region; /* copy: one reference; NULL: an object's hold, or a copy in several places */
    uint64_t copying_bytes; /* an object's hold: the client copies so many from it, and lets go */
    struct region **regions; /* [n_regions] instead: that */
    uint32_t n_regions;
};

void client_init(struct client *client, uint64_t id);

/* From now on its regions may come again to it: it is told of those that will not. */
void client_keep_warm(struct client *client, struct regions *regions);

/* Drops region handles and holds, none of which it had given back: their memory is abandoned (region.h). (Objects, fetches and calls are ended by those who know them, before). false: the time was over, call
 * again. */
bool client_fini(struct client *client, uint64_t until_ns);

/* One that it has, borrowed; in use again, if it was laid by. NOT_FOUND; else as warm_resume. */
enum rdt_status client_region(struct client *client, uint64_t id, uint64_t generation, struct region **region_p, struct rdt_error *err);

/* Closes what has come of an import; nothing if there is none. */
void client_drop_import(struct client *client);

/* Queues it for the client's next turn. list_remove takes it back. */
void client_wake(struct client *client, struct client_wake *wake);

/* AGAIN: run comes, unless list_remove takes it back. OK: nothing is unheard. */
enum rdt_status client_hear(struct client *client, struct client_read_barrier *hearing);

/* For conn.c: so many bytes of what it said have been handled. */
void client_heard(struct client *client, uint64_t bytes);

/* Serves wakes, then the task. false: something is left. */
bool client_work(struct client *client, uint64_t until_ns);

/* New hold of the client: takes one hold on the object, or one reference to the region. NULL: no memory. */
struct hold *client_hold_object(struct client *client, struct object *object);
struct hold *client_hold_region(struct client *client, struct region *region);
struct hold *client_hold_regions(struct client *client, struct region *const *regions, uint32_t n);
void client_release(struct hold *hold);

/* What it has mapped of the region is of no use any more: REGION_GONE. */
void client_tell_gone(struct client *client, const struct region *region);
void client_copies(struct hold *hold, uint64_t bytes); /* it was asked to copy them itself */

#endif
