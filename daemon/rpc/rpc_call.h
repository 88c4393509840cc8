/* One request of a client, or of another node on behalf of one of its clients, from its arrival to its answer.
 *
 * A handler (rpc_<verb>.c) returns RDT_OK when it has answered or will; any other status is answered for it with err. A call that is
 * answered later stays in the caller's list; it ends by its answer, its deadline, a CANCEL_REQUEST, or with the caller.
 */
#ifndef DAEMON_RPC_CALL_H
#define DAEMON_RPC_CALL_H

#include "daemon/base/busy_poll.h"
#include "daemon/base/events.h"
#include "daemon/peers/holds.h"
#include "daemon/rpc/hotload.h"
#include "daemon/objects/names.h"
#include "daemon/transfers/transfer.h"
#include "proto/verb.h"

struct call;

struct rpc { /* what handlers work on */
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
    struct peers *peers;  /* NULL: no peer link */
    struct events events; /* the tables refer to it */
    struct list watches;  /* struct watch, private to rpc_watch.c */
    struct list clients;  /* struct client.link */
    struct list readings; /* struct reading.link, private to rpc_read.c */
    struct list remote;   /* struct call: of peers, deferred */
    struct map forwarded; /* number -> struct call: of clients, waiting for another node */
    uint64_t next_forward;
    unsigned n_clients;
    struct busy_poll busy_poll; /* conn.c tells it of messages */
    uint64_t started_ns;
    bool draining;
    /* rpc.c: decodes and handles a request, whoever sent it. */
    void (*dispatch)(struct call *call, const uint8_t *payload, size_t bytes);
};

struct call {
    struct list link; /* client->calls, rpc->remote: while deferred */
    struct rpc *rpc;
    struct client *client;   /* NULL: a peer's */
    struct peer *peer;       /* NULL: a client's */
    unsigned peer_epoch;     /* the link it came by */
    struct account *account; /* the requester's: a reference; NULL: a peer that is not believed */
    bool admin;
    uint16_t type;       /* enum rdt_message, or a number that no request has */
    const struct verb *verb; /* the row of the type; NULL: there is none */
    uint64_t request_id; /* the client's, or the peer's call number */
    struct frame *frame; /* inside the handler only: its fds */
    struct arena *arena; /* inside the handler only: where the decoded request is */
    struct put_digest *digest; /* inside the handler only: of a PUT that the pool has read (rpc_read.h); NULL: it is to be made */
    struct deadline deadline;
    /* Deferred: undoes what it waits for; called once before the call ends early. */
    void (*on_end)(struct call *);

    /* what it may be waiting for */
    struct object_waiter object;
    struct name_waiter named;
    struct region_waiter range;
    struct region *region;   /* of range: a reference */
    void *waiting;           /* the handler's own, to be undone by on_end */
    struct client_wake wake; /* what it waited for has come: the answer waits for its client's turn */
    struct object *woken;    /* and this is the object, held; NULL: it is gone */
    struct peer *to;         /* forwarded to */
    uint64_t forward;        /* number on that link; 0: not forwarded */
    bool sent;
    struct account_wait room; /* queued for room under a limit (rpc.c) */
    char *why;                /* what it waits for */
    bool deferred;            /* charged as a waiter */
    bool gave;                /* what the client gave up for its snapshot is gone: this cannot be put again */
    uint64_t heap_bytes;      /* charged for what is kept of it */
    uint8_t *packed;          /* the request, until the link is up */
    size_t packed_bytes;
};

struct call *call_create(struct rpc *rpc, struct client *client, struct peer *peer, uint16_t type, uint64_t request_id);

/* Each ends and frees the call. Takes the fds. */
void call_reply(struct call *call, const ProtobufCMessage *reply, const int *take_fds, unsigned n_fds);
void call_reply_empty(struct call *call);
void call_fail(struct call *call, const struct rdt_error *err);
void call_fail_unread(struct call *call,
                      const struct rdt_error *err); /* without an id it cannot be told what fails: the session */

/* It will be answered later, at the latest when timeout_ns is over (negative: never), then with TIMED_OUT. Of two deadlines the earlier
 * counts. LIMIT: too many wait. */
enum rdt_status call_defer(struct call *call, int64_t timeout_ns, void (*on_end)(struct call *), struct rdt_error *err);

/* false: call_defer would say LIMIT. For handlers that change something before they defer: they ask first. */
bool call_may_wait(struct call *call, struct rdt_error *err);

/* Without an answer: the caller is gone. */
void call_drop(struct call *call);
bool calls_client_gone(struct rpc *rpc, struct client *client, uint64_t until_ns); /* false: the time was over, call again */

/* NULL: not deferred, or answered. */
struct call *call_find(struct client *client, uint64_t request_id);

/* Is the ref's object on another node? Then *peer_p is it, and the call goes there as it is (rpc_remote.c). */
bool call_is_remote(const struct call *call, const struct rdt_ref *ref);
enum rdt_status call_forward(struct call *call, const struct rdt_ref *ref, const ProtobufCMessage *request, int64_t timeout_ns,
                             struct rdt_error *err);
void calls_peer_up(struct rpc *rpc, struct peer *peer);
void calls_peer_merged(struct rpc *rpc, struct peer *from, struct peer *into);
void calls_peer_down(struct rpc *rpc, struct peer *peer, const struct rdt_error *why);
enum rdt_status calls_peer_frame(struct rpc *rpc, struct peer *peer, const struct frame *frame, struct rdt_error *err);

/* Inside the handler: the decoded request now lives in *to, as long as that does. */
void call_take_request(struct call *call, struct arena *to);

/* The wire's ref, checked. */
enum rdt_status call_ref(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err);

/* The same for what is about one object, whatever a name means at the moment: INVALID for a name. */
enum rdt_status call_object_ref(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err);

/* What the caller may see in lists. */
bool call_may_see(const struct call *call, const struct owner *owner);

/* ---- handlers: one for each row of RDT_REQUEST_MAP; request is the decoded message, borrowed until the handler returns ---- */
#define RPC_HANDLER(name) enum rdt_status rpc_##name(struct call *call, const void *request, struct rdt_error *err)
#define X(number, NAME, request, reply, properties, unmet) RPC_HANDLER(request);
RDT_REQUEST_MAP(X)
#undef X

#endif
