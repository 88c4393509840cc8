/* One request of a client, or of another node on behalf of one of its clients, from its arrival to its answer.
 *
 *   created --> handler --> answered (call_reply, call_fail), freed
 *                  |
 *                  +--> deferred (call_defer): in the list of its client or node
 *                          |--> answered
 *                          |--> deadline: TIMED_OUT      |  each first calls on_end,
 *                          |--> CANCEL_REQUEST           |  which undoes what the
 *                          +--> client or node gone      |  handler waits for
 *
 * A handler returns RDT_OK if it has answered the call or has deferred it; any other status is answered for it, with err.
 */
#ifndef DAEMON_RPC_CALL_H
#define DAEMON_RPC_CALL_H

#include "daemon/base/busy_poll.h"
#include "daemon/base/events.h"
#include "daemon/base/loop_meter.h"
#include "daemon/objects/names.h"
#include "daemon/peers/holds.h"
#include "daemon/rpc/hotload.h"
#include "daemon/transfers/transfer.h"
#include "proto/verb.h"

struct call;

#define RPC_VERBS 64u    /* above the highest type number of a request */
#define RPC_STATUSES 32u /* above the number of statuses */

struct request_metrics { /* answered requests of one type */
    struct histogram duration;
    uint64_t failures[RPC_STATUSES]; /* by -status */
};

struct rpc { /* what handlers work on; daemon.c fills it */
    uv_loop_t *loop;
    const struct options *options;
    const struct node *node;
    struct plugins *plugins;
    struct deadlines *deadlines;
    struct regions *regions;
    struct object_table *objects;
    struct names *names;
    struct transfers *transfers;
    struct hotload *hotload;
    struct groups *groups;
    struct holds holds;
    struct owner_work *owner_work; /* of descriptors that clients sent */
    struct peers *peers;           /* NULL: no peer link */
    struct events events;          /* the rooms below emit events through it */
    struct list watches;           /* struct watch, private to rpc_watch.c */
    struct list clients;           /* struct client.link */
    struct list readings;          /* struct reading.link, private to rpc_read.c */
    struct list remote;            /* struct call: deferred calls of other nodes */
    struct map forwarded;          /* number -> struct call: calls of clients that another node answers */
    uint64_t next_forward;
    unsigned n_clients;
    struct busy_poll busy_poll; /* conn.c reports messages to it */
    struct loop_meter loop_meter;
    struct request_metrics requests[RPC_VERBS]; /* by type number */
    uint64_t started_ns;
    bool draining;
    /* rpc_dispatch: a pointer, because rpc_remote.c would otherwise depend on every handler. */
    void (*dispatch)(struct call *call, const uint8_t *payload, size_t bytes);
};

struct call {
    struct list link; /* client->rpc.calls, rpc->remote: while deferred */
    struct rpc *rpc;
    struct client *client;   /* NULL: the call is of another node */
    struct peer *peer;       /* NULL: the call is of a client */
    unsigned peer_epoch;     /* of the link by which it came */
    struct account *account; /* the requester's, a reference; NULL: a node that may not act for this requester */
    bool admin;
    uint16_t type;           /* enum rdt_message, or a number that no request has */
    const struct verb *verb; /* the row of the type; NULL: there is none */
    uint64_t request_id;     /* the client's, or the peer's call number */
    uint64_t began_ns;
    struct frame *frame;     /* inside the handler only: its fds */
    struct arena *arena;     /* inside the handler only: where the decoded request is */
    /* Inside the handler only: of a PUT that the pool has decoded (rpc_read.h); NULL: the handler makes it */
    struct put_digest *digest;
    struct deadline deadline;
    /* Deferred: undoes what the call waits for. Called once, before the call ends without its answer. */
    void (*on_end)(struct call *);
    void (*explain)(const struct call *, struct rdt_error *err); /* sets the TIMED_OUT; NULL: `why` or the verb's text */

    /* what the call may wait for */
    struct object_waiter object;
    struct name_waiter named;
    struct region_waiter range;
    struct region *region;   /* of range: a reference */
    void *waiting;           /* the handler's own; on_end undoes it */
    struct client_wake wake; /* the event has come: the call is answered when its client runs */
    struct object *woken;    /* the object of that event, held; NULL: none */
    struct peer *to;         /* the node that it was forwarded to */
    bool to_uuid;            /* ... which the ref names by its uuid */
    uint64_t forward;        /* its number on that link; 0: not forwarded */
    bool sent;
    struct account_wait room; /* queued for room under a limit (rpc.c) */
    char *why;                /* what it waits for: the text of its TIMED_OUT */
    bool deferred;            /* charged as a waiter */
    bool takes_over;          /* HOLD: a hold in transit ends when this one is taken */
    bool begins_transit;      /* HOLD: only of a ref in transit; waits for no put, and gives its client no hold */
    bool handed_over;         /* the memory that the client handed over is used: the put cannot be tried again */
    uint64_t heap_bytes;      /* charged for `packed` */
    uint8_t *packed;          /* the request, while it waits for the link or for room */
    size_t packed_bytes;
};

struct call *call_create(struct rpc *rpc, struct client *client, struct peer *peer, uint16_t type, uint64_t request_id);

/* Each of these answers and frees the call. call_reply takes the fds. */
void call_reply(struct call *call, const ProtobufCMessage *reply, const int *take_fds, unsigned n_fds);
void call_reply_empty(struct call *call);
void call_fail(struct call *call, const struct rdt_error *err);
void call_fail_unread(struct call *call,
                      const struct rdt_error *err); /* the request could not be decoded: sent even if the request has no id */

/* Defers the call: it is answered later, or with TIMED_OUT after timeout_ns (negative: never). If the call was
 * deferred before, the earlier deadline counts. on_end, may be NULL, is described above. LIMIT: too many calls of
 * this owner wait. */
enum rdt_status call_defer(struct call *call, int64_t timeout_ns, void (*on_end)(struct call *), struct rdt_error *err);

/* The request waits for something to happen, not only for another node's answer. */
bool call_waits(const struct call *call);

/* false: call_defer would fail with LIMIT. For handlers that change something before they defer. */
bool call_may_wait(struct call *call, struct rdt_error *err);

/* Ends the call without an answer, because the caller is gone. */
void call_drop(struct call *call);
/* Drops all calls; false: until_ns has passed, call again */
bool calls_client_gone(struct rpc *rpc, struct client *client, uint64_t until_ns);

/* The client's deferred call with this id; NULL: there is none. */
struct call *call_find(struct client *client, uint64_t request_id);

/* Is the ref's object on another node? Then call_forward sends the request there unchanged, and the answer back
 * (rpc_remote.c). */
bool call_is_remote(const struct call *call, const struct rdt_ref *ref);
enum rdt_status call_forward(struct call *call, const struct rdt_ref *ref, const ProtobufCMessage *request, int64_t timeout_ns,
                             struct rdt_error *err);
void calls_peer_up(struct rpc *rpc, struct peer *peer);
void calls_peer_merged(struct rpc *rpc, struct peer *from, struct peer *into);
bool calls_name_peer(const struct rpc *rpc, const struct peer *peer); /* a call refers to it */
void calls_peer_down(struct rpc *rpc, struct peer *peer, const struct rdt_error *why);
enum rdt_status calls_peer_frame(struct rpc *rpc, struct peer *peer, const struct frame *frame, struct rdt_error *err);

/* Inside the handler: moves the decoded request to *to, so that it lives as long as that arena. */
void call_take_request(struct call *call, struct arena *to);

/* Checks the ref of a message and converts it. INVALID. */
enum rdt_status call_ref(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err);

/* The same for requests about one object: a name is INVALID. */
enum rdt_status call_object_ref(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err);

/* Whether the caller may see things of this owner in lists. */
bool call_may_see(const struct call *call, const struct owner *owner);

/* ---- handlers: one for each row of RDT_REQUEST_MAP; request is the decoded message, borrowed until the handler
 * returns ---- */
#define RPC_HANDLER(name) enum rdt_status rpc_##name(struct call *call, const void *request, struct rdt_error *err)
#define X(number, NAME, request, reply, properties, unmet) RPC_HANDLER(request);
RDT_REQUEST_MAP(X)
#undef X

#endif
