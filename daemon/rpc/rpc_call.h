/* SPDX-License-Identifier: Apache-2.0 */
/* One request of a client, or of another node on behalf of one of its clients, from its arrival to its answer.
 *
 *   created --> handler --> answered (call_reply, call_fail), freed
 *                  |
 *                  +--> deferred (call_defer): in the list of its client or node
 *                          |--> answered
 *                          |--> deadline: TIMED_OUT      |  each first calls on_end,
 *                          |--> CANCEL_REQUEST           |  which ends what the
 *                          +--> client or node has ended |  handler waits for
 *
 * A handler returns RDT_OK if it has answered the call or has deferred it; any other status is answered for it, with err.
 */
#ifndef DAEMON_RPC_CALL_H
#define DAEMON_RPC_CALL_H

#include "daemon/base/busy_poll.h"
#include "daemon/base/events.h"
#include "daemon/base/log.h"
#include "daemon/base/loop_meter.h"
#include "daemon/directory/directory.h"
#include "daemon/directory/directory_names.h"
#include "daemon/objects/names.h"
#include "daemon/peers/holds.h"
#include "daemon/rpc/hotload.h"
#include "daemon/rpc/shards/shards.h"
#include "daemon/transfers/transfer.h"
#include "proto/verb.h"

struct call;
struct fresh_config;

#define RPC_VERBS 128u   /* above the highest type number of a request */
#define RPC_STATUSES 32u /* above the number of statuses */

struct request_metrics { /* answered requests of one type */
    struct histogram duration;
    uint64_t failures[RPC_STATUSES]; /* by -status */
};

struct rpc_above { /* functions of the room above; daemon.c fills it */
    void *arg;
    /* Reads the configuration again on a thread, because its files may lie on a file system that does not answer. Then on_read
     * runs on the loop, in the order of these calls; `config` is valid inside it. If the daemon ends first, `config` is
     * NULL, or on_read does not run at all. NO_MEMORY. */
    enum rdt_status (*read_again)(void *arg, void (*on_read)(void *read_arg, struct fresh_config *config), void *read_arg,
                                  struct rdt_error *err);
    /* In on_read: reports what differs, and, unless it only checks, adopts what a running daemon can. An error is that of the
     * reading, and nothing has changed. */
    enum rdt_status (*adopt)(void *arg, struct fresh_config *config, bool check, options_on_change on_change, void *change_arg,
                             struct rdt_error *err);
    /* Reports what differs in a configuration that was read again, and in the key of the peer link (NULL: it has none). */
    void (*compare)(void *arg, const struct options *fresh, const struct tls_context *key, options_on_change on_change,
                    void *change_arg);
};

struct rpc { /* everything that the handlers use; daemon.c fills it */
    uv_loop_t *loop;
    const struct options *options;
    const struct node *node;
    Rdt__Pb__StatusReply *counts; /* where everything is counted that STATUS shows */
    struct plugins *plugins;
    struct deadlines *deadlines;
    struct regions *regions;
    struct object_table *objects;
    struct names *names;
    struct recovery *recovery;
    struct storage *storage;
    struct transfers *transfers;
    struct hotload *hotload;
    struct groups *groups;
    struct directory *directory;
    struct directory_names *directory_names;
    struct holds holds;
    struct shards shards;
    struct owner_work *owner_work; /* closes descriptors that clients sent */
    struct peers *peers;           /* NULL: without key_file there is no link to other nodes */
    struct events events;          /* the rooms below emit events through it */
    struct list watches;           /* struct watch, private to rpc_watch.c */
    struct list clients;           /* struct client.link */
    struct list readings;          /* struct reading.link, private to rpc_read.c */
    struct list remote;            /* struct call.link: deferred calls of other nodes */
    struct map forwarded;          /* struct call.forward -> struct call: calls of clients that another node answers */
    uint64_t next_forward;
    struct list retakes; /* struct far_record.link: holds that no node has been asked for, or that wait to be asked again */
    struct map retaking; /* node uuid -> struct retaking (private to rpc_retake.c): nodes whose holds are to be taken again */
    struct deadline retake;
    uint64_t retake_until_ns;
    struct log_rare lost_holds;
    const struct retake_events *retake_events; /* NULL: retakes_start has not run */
    unsigned n_clients;
    unsigned n_waiting;         /* sessions of an earlier daemon whose clients have not come back yet */
    struct busy_poll busy_poll; /* conn.c reports messages to it */
    struct loop_meter loop_meter;
    struct request_metrics requests[RPC_VERBS]; /* by type number */
    uint64_t started_ns;
    bool draining;        /* the daemon ends */
    bool drained;         /* DRAIN: no new objects are taken, until its undoing or the end of the daemon */
    uint64_t doctored_ns; /* when the doctor last looked for a user who is no administrator */
    unsigned n_looks;     /* of the doctor at files, from which it has not come back */
    struct rpc_above above;
    /* Is rpc_dispatch. As a pointer, because rpc_remote.c would otherwise depend on every handler. */
    void (*dispatch)(struct call *call, const uint8_t *payload, size_t bytes);
};

struct call {
    struct list link; /* while deferred: in client->rpc.calls or rpc->remote */
    struct rpc *rpc;
    struct client *client;   /* NULL: the call comes from another node */
    struct peer *peer;       /* NULL: the call comes from a client */
    unsigned peer_epoch;     /* of the link on which it came */
    struct account *account; /* of the requester, a reference; NULL: the node may not act for this requester */
    bool admin;
    uint16_t type;           /* enum rdt_message, or an unknown number */
    const struct verb *verb; /* the row of the type; NULL: there is none */
    uint64_t request_id;     /* the client's request id, or the peer's call number */
    uint64_t began_ns;
    struct frame *frame;    /* inside the handler only: contains the fds of the request */
    struct arena *arena;    /* inside the handler only: contains the decoded request */
    const uint8_t *payload; /* inside the handler only: the packed request, [payload_bytes] */
    size_t payload_bytes;
    /* Inside the handler only: of a PUT that the worker pool has decoded (rpc_read.h); NULL: the handler computes it */
    struct put_digest *digest;
    struct deadline deadline;
    /* Of a deferred call: ends what it waits for. Called once, before the call ends without that event. */
    void (*on_end)(struct call *);
    void (*explain)(const struct call *, struct rdt_error *err); /* writes the TIMED_OUT error; NULL: `why` or verb->unmet */

    /* what the call may wait for */
    struct object_waiter object;
    struct name_waiter named;
    struct name_seeker seeker;
    struct claim_waiter claim;
    bool placed; /* the node of the name is known; place_node is 0 if it is this node */
    uint8_t place_node[16];
    char place_address[65];
    struct region_waiter range;
    struct region *region;   /* whose range it waits for, a reference */
    void *waiting;           /* belongs to the handler, and on_end ends it */
    struct client_wake wake; /* queued when the event has come: the call is answered in a turn of its client */
    struct object *woken;    /* the object of that event, with a hold; NULL: none */
    struct peer *to;         /* the node that it was forwarded to */
    bool to_uuid;            /* the ref names that node by its uuid */
    uint64_t forward;        /* number of the call on that link; 0: not forwarded */
    bool sent;
    struct account_wait room; /* queued for room under a limit (rpc.c) */
    char *why;                /* the text of its TIMED_OUT error, which says what it waits for; NULL: see explain */
    bool deferred;            /* call_defer has charged it as a waiter */
    uint64_t retakes;         /* of a HOLD: the hold of a restored session, which waits for this call's answer; 0: none */
    bool takes_over;          /* of a HOLD: a hold in transit ends when this one is taken */
    bool begins_transit;      /* of a HOLD: it begins a hold in transit, waits for no put, and gives its client no hold */
    bool stores;              /* of a PUT: the object is stored as soon as it is live */
    bool handed_over;         /* of a PUT: the client's memory has been taken over, so the put cannot be tried again */
    uint64_t heap_bytes;      /* charged for `packed` */
    uint8_t *packed;          /* the request, while it waits for the link or for room */
    size_t packed_bytes;
};

struct call *call_create(struct rpc *rpc, struct client *client, struct peer *peer, uint16_t type, uint64_t request_id);

/* Each of these answers the call and frees it. call_reply takes the fds. */
void call_reply(struct call *call, const ProtobufCMessage *reply, const int *take_fds, unsigned n_fds);
void call_reply_empty(struct call *call);
void call_fail(struct call *call, const struct rdt_error *err);
/* For a request that could not be decoded: the answer is sent even if the request has no id. */
void call_fail_unread(struct call *call, const struct rdt_error *err);

/* Defers the call: it is answered later, or with TIMED_OUT after timeout_ns (negative: never). If the call was deferred
 * before, the earlier deadline counts. on_end is described above, and may be NULL. Errors: LIMIT: too many calls of this
 * owner wait; NO_MEMORY. */
enum rdt_status call_defer(struct call *call, int64_t timeout_ns, void (*on_end)(struct call *), struct rdt_error *err);

/* Whether the request waits for an event, and not only for another node's answer. */
bool call_waits(const struct call *call);

/* Whether call_defer would succeed. If not, err is LIMIT. For handlers that change something before they defer. */
bool call_may_wait(struct call *call, struct rdt_error *err);

/* Ends the call without an answer, because the caller has gone. */
void call_drop(struct call *call);

/* Drops all calls of the client. Returns false if until_ns has passed before the end: call it again. */
bool calls_client_gone(struct rpc *rpc, struct client *client, uint64_t until_ns);

/* The client's deferred call with this id; NULL: there is none. */
struct call *call_find(struct client *client, uint64_t request_id);

/* Whether the ref's object is on another node. */
bool call_is_remote(const struct call *call, const struct rdt_ref *ref);

/* Sends the request unchanged to the node of the ref's object, whose answer becomes the answer of the call. timeout_ns is
 * ignored for a request that waits for no event. Errors, besides those of peers_find and call_defer: NOT_FOUND: the call
 * comes from another node; UNSUPPORTED: this daemon has no peer link; PEER_LOST: the node is in back-off. */
enum rdt_status call_forward(struct call *call, const struct rdt_ref *ref, const ProtobufCMessage *request, int64_t timeout_ns,
                             struct rdt_error *err);
void calls_peer_up(struct rpc *rpc, struct peer *peer);

void calls_peer_merged(struct rpc *rpc, struct peer *from, struct peer *into);
bool calls_name_peer(const struct rpc *rpc, const struct peer *peer); /* whether a call refers to it */
void calls_peer_down(struct rpc *rpc, struct peer *peer, const struct rdt_error *why);
enum rdt_status calls_peer_frame(struct rpc *rpc, struct peer *peer, const struct frame *frame, struct rdt_error *err);

/* ---- rpc_retake.c: the holds of restored sessions on objects of other nodes (recovery->far_holds) ----
 *
 *            retakes_start                    the node answers with the hold
 *   WAITING ---------------> ASKED ----------------------------------------------> taken
 *      ^                       |
 *      |    the node cannot be | reached, and restart_grace has not passed
 *      +-----------------------+-----> lost: its client is told (remote_hold_lose); also if the node refuses
 */
void retakes_start(struct rpc *rpc);
void retakes_clear(struct rpc *rpc);

/* The events that rpc_retake.c needs: of links, and of the calls by which it takes holds again. */
struct retake_events {
    void (*on_peer_up)(struct rpc *rpc,
                       struct peer *peer); /* asks at once, or tells the node that there is nothing to ask for */
    bool (*on_answer)(struct call *call);  /* false: the client has ended the hold meanwhile */
    void (*on_failure)(struct call *call, const struct rdt_error *err);
};

/* Inside a handler: moves the decoded request to *to, so that it is valid as long as that arena. */
void call_take_request(struct call *call, struct arena *to);

/* Checks the ref of a message and converts it. INVALID. */
enum rdt_status call_ref(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err);

/* The same for a request about one object: a name is INVALID, too. */
enum rdt_status call_object_ref(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err);

/* Whether the caller may see and free everything of this owner. */
bool call_may_see(const struct call *call, const struct owner *owner);

/* ---- handlers: one for each row of RDT_REQUEST_MAP; request is the decoded message, borrowed until the handler
 * returns ---- */
#define RPC_HANDLER(name) enum rdt_status rpc_##name(struct call *call, const void *request, struct rdt_error *err)
#define X(number, NAME, request, reply, properties, unmet) RPC_HANDLER(request);
RDT_REQUEST_MAP(X)
#undef X

/* rpc_store.c: answers a request that has ended something, with nothing, when files of what has ended are removed
 * (daemon/storage). generation: of the object that was freed; 0: none was. */
void call_reply_removed(struct call *call, uint64_t generation);

/* rpc_manage.c: refuses a new object with BUSY, because the node is drained. */
enum rdt_status rpc_refuse_drained(struct rdt_error *err);

#endif
