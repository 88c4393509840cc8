/* SPDX-License-Identifier: Apache-2.0 */
/* A client: one session of one actor process, with its holds and its requests. Its connection
 * (daemon/conn.c) embeds it and sends its frames. When the session ends, the lists and maps here lead to
 * everything that must be released. */
#ifndef DAEMON_CLIENT_H
#define DAEMON_CLIENT_H

#include <sys/types.h>

#include "daemon/base/account.h"
#include "daemon/base/map.h"
#include "daemon/base/owner_work.h"
#include "daemon/memory/mapped.h"
#include "daemon/memory/region.h"
#include "daemon/memory/region_cache.h"
#include "daemon/objects/lasting.h"
#include "proto/frame.h"
#include "proto/list.h"
#include "proto/messages.h"
#include "rdt.pb-c.h"

struct watch;

#define CLIENT_FDS_OUT 16 /* entries of struct client.fds_out */

/* Follow-up work after an event that concerns the client, such as the answer to a fetch that waited. It
 * runs in a turn of the client, so that it uses the client's time and not that of whoever caused the
 * event. */
struct client_wake {
    struct list link;
    void (*run)(struct client_wake *); /* is called after the wake was removed from its list */
};

/* A request that may take more than one turn. The client's later frames wait until it has ended; other
 * clients do not. */
struct client_task {
    bool waits; /* It waits for the worker pool, and calls want_turn when it can continue. */
    /* Continues until about until_ns (uv_hrtime). Returns true when the task has ended and freed itself.
     * client->task is NULL during the call, and may be another task afterwards. */
    bool (*step)(struct client_task *, uint64_t until_ns);
    /* The client's session has ended: frees the task and returns true. If that is not possible yet,
     * returns false and calls want_turn when it is. */
    bool (*drop)(struct client_task *);
};

/* The chunks of an import that arrives in several messages. */
struct import_chunks {
    uint64_t number;     /* chosen by the client */
    uint32_t n, charged; /* `charged`: file descriptors charged to the client's account */
    int fds[RDT_EXPORT_MAX_FDS];
    uint64_t chunk_bytes[RDT_EXPORT_MAX_FDS];
};

/* The state of transfers/ for each client; other rooms do not touch it. */
struct client_transfers {
    struct map fetches;    /* handle -> struct fetch */
    size_t reaped_fetches; /* how far the end of the client has walked that map */
    uint64_t n_fetch_messages;
    uint64_t fetched_bytes; /* of the objects that its fetches brought, whether copied or mapped */
    /* The last message whose answer carried the descriptor of a region; indexed by region id. */
    struct client_fd {
        uint64_t region, generation, message;
    } fds_out[CLIENT_FDS_OUT];
    char maps[128];       /* kinds of memory that the client can map: " cuda " */
    bool maps_nothing;    /* it belongs to the daemon itself: answers carry no descriptors */
    uint16_t most_fds;    /* of one answer to a fetch, RDT_MAX_FRAME_FDS or more */
    char *mapped_devices; /* " cuda:UUID cuda:UUID ", the preferred one first. NULL, or none of a kind: all of that kind */
};

#define CLIENT_ANSWERED 16u

/* What a PUT, an ALLOC or a GROUP_CREATE has brought. A client that stops waiting for the answer cancels the request, and then
 * it ends, even if the answer is on its way already. */
struct client_answered {
    uint64_t request_id; /* 0: none */
    uint64_t generation; /* PUT: of the object; 0: of another one */
    uint64_t region;     /* ALLOC: its id; 0: of another one */
    uint64_t group;      /* GROUP_CREATE: its number; 0: of another one */
};

/* The imports of device memory that have failed since one succeeded. The client's library copies what cannot be imported. */
struct client_refusal {
    uint32_t times;
    uint64_t since_ns; /* the first of them */
    char why[200];     /* the last of them */
};

/* The state of calls/ and rpc/ for each client; other rooms do not touch it. */
struct client_rpc {
    struct client_answered answered[CLIENT_ANSWERED]; /* the last ones, a ring */
    unsigned n_answered;
    struct list calls; /* struct call.link: deferred requests */
    unsigned n_calls;
    uint64_t n_requests, put_bytes; /* since its beginning */
    struct watch *watch;            /* of rpc_watch.c; NULL: the client watches nothing */
    struct client_refusal *refused; /* NULL: the last import has succeeded, or there was none */
};

/* Where a session is on its way from an earlier daemon to this one.
 *
 *   NEW --- it is restored ---> WAITING --- its client connects ---> RETURNED --- RESUME ---> RESUMED
 *                                  |
 *                                  `--- it ends before that ---> LAPSED
 *
 * A session whose client has come back ends in the state that it has then, as a NEW one does.
 */
enum client_session_state {
    CLIENT_SESSION_NEW,      /* it began at this daemon, or is just being restored */
    CLIENT_SESSION_WAITING,  /* it is an earlier daemon's, and its client has not come back yet */
    CLIENT_SESSION_RETURNED, /* its client has come back, and has not sent RESUME since */
    CLIENT_SESSION_RESUMED,
    CLIENT_SESSION_LAPSED,
};

/* The session beyond the life of one daemon. */
struct client_session {
    const struct lasting *lasting; /* it survives this process, and has records; NULL: it does not */
    void *record;                  /* of lasting: the session's own */
    uint8_t id[16];                /* of lasting: tells it from every other session of every node */
    uint8_t state;                 /* enum client_session_state */
    struct map answers;            /* request id -> generation or version: what its PUTs, PUBLISHes, and HOLDs with a time in
                                    * transit did at earlier daemons */
};

struct client_holds {
    struct map by_id;             /* hold id -> struct hold */
    struct map remote;            /* request id -> struct remote_hold */
    uint64_t copying_bytes;       /* bytes of held objects that the client is copying out by itself */
    unsigned n_lost;              /* of remote: struct remote_hold.lost */
    uint64_t freed;               /* the latest of remote whose object was freed by force; 0: none */
    size_t reaped, reaped_remote; /* how far client_fini has walked by_id and remote */
};

/* What conn.c does for the client. */
struct client_conn {
    bool gone;         /* the connection has ended: no frame can be sent */
    uint64_t reserved; /* heap that is charged for the answer that is being sent (call_reply_reserved); 0: none */
    /* Packs and queues one frame. It takes ownership of the fds in any case, and sends nothing once the client is gone. */
    void (*send)(struct client *, uint16_t type, uint8_t flags, uint64_t request_id, const ProtobufCMessage *,
                 const int *take_fds, unsigned n_fds);
    /* Queues an event whose packed message is `head` followed by `rest`. */
    void (*send_event)(struct client *, uint16_t type, const uint8_t *head, size_t head_bytes, const uint8_t *rest,
                       size_t rest_bytes);
    size_t (*queued_bytes)(const struct client *);
    /* The number of bytes that the client has sent so far, including bytes that the daemon has not read
     * yet. 0: all of them have been handled. */
    uint64_t (*bytes_received)(const struct client *);
    void (*want_turn)(struct client *); /* The client has work to do in a turn. */
    /* Ends the session. Not of the client whose request is being handled. why is kept. */
    void (*end)(struct client *, const char *why);
};

struct client {
    uint64_t id;
    struct account *account; /* one reference */
    gid_t gid;
    pid_t pid;
    bool admin;        /* root or the daemon's own uid: it sees and may free everything */
    bool tensor_runs;  /* it understands lists of tensors that are encoded as runs */
    bool notice_given; /* The log has a warning that other clients share memory that this one may still write. */
    char name[65];
    uint64_t since_ns;
    struct client_session session;
    struct list link;    /* in the list of all clients */
    uint64_t number;     /* their order there */
    struct list objects; /* struct object.by_producer: objects that it put and has not freed */
    unsigned n_objects;
    struct list leases;    /* struct name.by_publisher: names that end with the client */
    struct list followers; /* struct follower.by_client (daemon/follows) */
    struct map regions;    /* region id -> struct region, one reference each: the regions that it may name */
    size_t reaped_regions; /* how far client_fini has walked that map */
    struct client_holds holds;
    struct owner_work *owner_work; /* set by conn.c */
    struct import_chunks *import;  /* NULL: no import is incomplete */
    struct region_cache cache;     /* regions that it has mapped and released, cached for its next use */
    struct mapped mapped;          /* regions of others that it keeps mapped for reading */
    uint64_t n_region_gone_events; /* REGION_GONE events sent to it */
    struct list wakes;             /* struct client_wake.link */
    struct list read_barriers;     /* struct client_read_barrier.link */
    struct client_task *task;
    struct client_transfers transfers;
    struct client_rpc rpc;
    struct client_conn conn;
};

void client_move_session(struct client *client, enum client_session_state state);

/* Whether the client has come back to a session that it had at an earlier daemon. */
static inline bool client_has_returned(const struct client *client)
{
    return client->session.state == CLIENT_SESSION_RETURNED || client->session.state == CLIENT_SESSION_RESUMED;
}

/* A read barrier: runs when everything that the client has sent up to now has been handled, a cancel among
 * it. */
struct client_read_barrier {
    struct list link;
    uint64_t after_bytes;
    /* is called after the barrier was removed from its list, and never inside client_read_barrier_add */
    void (*run)(struct client_read_barrier *);
};

/* A hold of a reader, which keeps memory alive: a hold on an object, or references to regions that contain
 * a private copy. (struct remote_hold is a hold that gives no access to the bytes.) */
struct hold {
    uint64_t id;
    struct client *client;
    void *record;          /* of lasting; NULL: it has none */
    struct object *object; /* NULL: this hold is on regions with a copy */
    struct list by_object; /* in object->users->holders */
    /* one reference to the only region of a copy; NULL: the hold is on an object, or on `regions` */
    struct region *region;
    uint64_t copying_bytes;  /* bytes of the object that the client copies before it releases the hold */
    struct region **regions; /* [n_regions], one reference each: a copy in several regions */
    uint32_t n_regions;
    struct hold_write *writes; /* what the client writes itself until it releases the hold */
};

void client_init(struct client *client, uint64_t id);

/* Starts the caches of regions for this client. From now on a released region may be reused by the client,
 * which is told of those that will not be. */
void client_start_caches(struct client *client, struct regions *regions);

/* Releases the client's holds, remote holds and regions. The client did not release them itself and may
 * still have them mapped, so their memory is orphaned (region.h). The callers of conn.c have ended its
 * objects, fetches and calls before. Returns false when until_ns has passed before the end: call it again. */
bool client_fini(struct client *client, uint64_t until_ns);

/* Whether the answer is left out, because the daemon ends and the client repeats the request at the next one. */
bool client_returns(const struct client *client, const struct rdt_error *err);

/* Answers the request with an error. */
void client_send_error(struct client *client, uint16_t type, uint64_t request_id, const struct rdt_error *err);

/* Finds a region that the client may name, and takes it out of its region cache if it was there. The
 * region is borrowed. Errors: NOT_FOUND, and those of region_cache_resume. */
enum rdt_status client_region(struct client *client, uint64_t id, uint64_t generation, struct region **region_p,
                              struct rdt_error *err);

/* An import of device memory has ended; err NULL: well. Errors that are not about that memory, such as LIMIT, do not count. */
void client_note_import(struct client *client, const struct rdt_error *err);

/* Closes the descriptors of an incomplete import. Does nothing without one. */
void client_drop_import(struct client *client);

/* Queues the wake for the client's next turn. list_remove cancels it. */
void client_wake(struct client *client, struct client_wake *wake);

/* OK: everything that the client sent has been handled, and run is not called. AGAIN: run will be called,
 * unless list_remove cancels the barrier. */
enum rdt_status client_read_barrier_add(struct client *client, struct client_read_barrier *barrier);

/* For conn.c: runs the barriers that wait for no more than the first `bytes` bytes that the client sent. */
void client_read_barriers_run(struct client *client, uint64_t bytes);

/* Runs the wakes, then the task. Returns false if work remains. */
bool client_work(struct client *client, uint64_t until_ns);

/* Sets where the first unused hold id is stored, and reads it; NULL: nowhere. */
void client_save_hold_ids(uint64_t *next_p);

/* The client may name the region from now on: takes a reference that the caller has. false: out of memory, and nothing has
 * changed. client_forget_region gives the reference back to the caller. */
bool client_add_region(struct client *client, struct region *take_region);
void client_forget_region(struct client *client, struct region *region);

/* Restores a hold of an earlier daemon: on the object, or on the regions. NULL: out of memory, or the id is in use. */
struct hold *client_restore_hold(struct client *client, uint64_t id, struct object *object, struct region *const *regions,
                                 uint32_t n_regions);

/* Each creates the hold that answers the client's fetch with this handle, with one hold on the object or one reference to each
 * region. NULL: out of memory. client_release ends the hold. */
struct hold *client_hold_object(struct client *client, uint64_t handle, struct object *object);
struct hold *client_hold_region(struct client *client, uint64_t handle, struct region *region);
struct hold *client_hold_regions(struct client *client, uint64_t handle, struct region *const *regions, uint32_t n);
void client_release(struct hold *hold);

/* The hold that answered this fetch of the client, or NULL. */
struct hold *client_hold_of_fetch(const struct client *client, uint64_t handle);

/* The client writes the bytes [lo, hi) of its region itself, from the held object, until it releases the hold. Until then the
 * region is pinned, and the bytes are in use. Errors: LIMIT, NO_MEMORY. */
enum rdt_status client_note_write(struct hold *hold, struct region *region, uint64_t lo, uint64_t hi, struct rdt_error *err);

/* The client will copy that many bytes out of the held object by itself. */
void client_set_copying(struct hold *hold, uint64_t bytes);

#endif
