/* SPDX-License-Identifier: Apache-2.0 */
/* The room calls: one request of a client, or of another node on behalf of one of its clients, from its arrival to its answer.
 *
 *   created --> handler --> answered (call_reply, call_fail), freed
 *                  |
 *                  +--> deferred (call_defer): in the list of its client or node
 *                          |--> answered
 *                          |--> deadline: TIMED_OUT      |  each first calls on_end,
 *                          |--> CANCEL_REQUEST           |  which ends what the
 *                          +--> client or node has ended |  handler waits for
 *
 * It owns the calls, those that it forwards to other nodes and serves for them, and the log of events for those who watch. It
 * refuses to know any request: it calls handlers (rpc->above.dispatch), which stand in the rooms above.
 *
 * A handler returns RDT_OK if it has answered the call or has deferred it; any other status is answered for it, with err.
 */
#ifndef DAEMON_CALL_H
#define DAEMON_CALL_H

#include "daemon/base/busy_poll.h"
#include "daemon/base/events.h"
#include "daemon/base/ids.h"
#include "daemon/base/index.h"
#include "daemon/base/log.h"
#include "daemon/base/loop_meter.h"
#include "daemon/calls/event_log.h"
#include "daemon/directory/directory.h"
#include "daemon/directory/directory_names.h"
#include "daemon/follows/follow.h"
#include "daemon/objects/names.h"
#include "daemon/peers/holds.h"
#include "daemon/transfers/transfer.h"
#include "daemon/versions/shards.h"
#include "proto/verb.h"

struct call;
struct fresh_config;
struct hotload;

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
    /* Is rpc_dispatch. call_remote.c would otherwise depend on every handler. */
    void (*dispatch)(struct call *call, const uint8_t *payload, size_t bytes);
};

struct rpc_clients {
    struct list all; /* struct client.link */
    unsigned n;
    unsigned n_waiting; /* sessions of an earlier daemon whose clients have not come back yet */
    uint64_t n_served;  /* since the start */
};

struct rpc_calls {        /* that have not been answered yet */
    struct list readings; /* struct reading.link, private to rpc_read.c */
    struct map deferred;  /* struct call.key -> struct call: deferred calls that their callers may cancel */
    struct index waiting; /* struct call.waits.number -> struct call: those that wait for a put or a publish, for LIST */
    uint64_t last_waiting;
    struct map forwarded; /* struct call.forwarded.number -> struct call: calls of clients that another node answers */
    uint64_t next_forward;
    struct list link_ends; /* struct peer_calls.ending: ends of links that take several turns */
    bool no_links;         /* calls_close has run */
};

struct rpc_retakes {   /* call_retake.c */
    struct list holds; /* struct far_record.link: holds that no node has been asked for, or that wait to be asked again */
    struct map nodes;  /* node uuid -> struct retaking (private to call_retake.c): nodes whose holds are to be taken again */
    struct deadline deadline;
    uint64_t until_ns;
    struct log_rare lost;
    const struct retake_events *events; /* NULL: retakes_start has not run */
};

struct rpc_meters {
    uint64_t started_ns;
    struct busy_poll busy_poll; /* conn.c reports messages to it */
    struct loop_meter loop_meter;
    struct request_metrics requests[RPC_VERBS]; /* by type number */
};

struct rpc_intake {
    bool draining; /* the daemon ends */
    bool drained;  /* DRAIN: no new objects are taken, until its undoing or the end of the daemon */
    bool passed;   /* the service manager has made the socket where clients connect */
};

struct rpc_doctor {
    uint64_t looked_ns; /* when it last looked for a user who is no administrator */
    unsigned n_looks;   /* at files, from which it has not come back */
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
    struct holds *holds;
    struct shards *shards;
    struct owner_work *owner_work; /* closes descriptors that clients sent */
    struct peers *peers;           /* NULL: without key_file there is no link to other nodes */
    struct events events;          /* the rooms below emit events through it */
    struct event_log event_log;    /* of those who watch (rpc_watch.c) */
    struct rpc_clients clients;
    struct rpc_calls calls;
    struct rpc_retakes retakes;
    struct permutation page_tokens; /* what LIST shows of numbers that would show how much others have */
    struct rpc_meters meters;
    struct rpc_intake intake;
    struct rpc_doctor doctor;
    struct rpc_above above;
};

/* Who has sent a call, over which link of a node, and its number there. */
struct call_key {
    const void *caller;
    uint64_t epoch, number;
};

/* What is there inside the handler only. */
struct call_request {
    struct frame *frame;    /* contains the fds of the request */
    struct arena *arena;    /* contains the decoded request */
    const uint8_t *payload; /* the packed request, [payload_bytes] */
    size_t payload_bytes;
    /* of a PUT that the worker pool has decoded (rpc_read.h); NULL: the handler computes it */
    struct put_digest *digest;
};

/* What the call may wait for. */
struct call_waits {
    uint64_t number; /* in rpc->calls.waiting; 0: it is not listed */
    struct object_waiter object;
    struct name_waiter named;
    struct name_seeker seeker;
    struct claim_waiter claim;
    struct part_waiter part;
    struct prepare_waiter prepare;
    struct growth_waiter growth;
    struct region_waiter range;
    struct region *region;    /* whose range it waits for, a reference */
    struct client_wake wake;  /* queued when the event has come: the call is answered in a turn of its client */
    struct object *woken;     /* the object of that event, with a hold; NULL: none */
    struct account_wait room; /* queued for room under a limit (rpc.c) */
};

/* The node of the name. */
struct call_place {
    bool known; /* `node` is 0 if it is this node */
    uint8_t node[16];
    char address[65];
};

/* The node that the call was forwarded to. */
struct call_forwarded {
    struct peer *to;
    struct list by_peer; /* in to->calls.unsent or .there */
    bool to_uuid;        /* the ref names that node by its uuid */
    uint64_t number;     /* of the call on that link; 0: not forwarded */
    bool sent;
    bool patient; /* set by the handler: it waits for the node until its deadline, however often that cannot be reached */
    size_t answer_bytes; /* of a question (call_ask) */
    size_t asked_bytes;  /* counted in to->calls.asked_bytes */
};

struct call_hold {       /* of a HOLD */
    uint64_t retakes;    /* the hold of a restored session, which waits for this call's answer; 0: none */
    uint64_t version;    /* of the name that it asks for; 0: none */
    bool takes_over;     /* a hold in transit ends when this one is taken */
    bool begins_transit; /* it begins a hold in transit, waits for no put, and gives its client no hold */
};

struct call_put {     /* of a PUT */
    bool stores;      /* the object is stored as soon as it is live */
    bool handed_over; /* the client's memory has been taken over, so the put cannot be tried again */
};

/* The request, while it waits for the link or for room. */
struct call_copy {
    uint8_t *packed;
    size_t packed_bytes;
    uint64_t heap_bytes; /* charged for `packed` */
};

struct call {
    struct list link; /* while deferred: in client->rpc.calls or peer->calls.here */
    struct call_key key;
    bool indexed; /* in rpc->calls.deferred */
    struct rpc *rpc;
    struct client *client;   /* NULL: the call comes from another node */
    struct peer *peer;       /* NULL: the call comes from a client */
    unsigned peer_epoch;     /* of the link on which it came */
    struct account *account; /* of the requester, a reference; NULL: refused before any handler has it */
    bool admin;
    uint16_t type;           /* enum rdt_message, or an unknown number */
    const struct verb *verb; /* the row of the type; NULL: there is none */
    uint64_t request_id;     /* the client's request id, or the peer's call number */
    uint64_t began_ns;
    struct call_request request;
    struct deadline deadline;
    /* Of a deferred call: ends what it waits for. Called once, before the call ends without that event. */
    void (*on_end)(struct call *);
    void (*explain)(const struct call *, struct rdt_error *err); /* writes the TIMED_OUT error; NULL: `why` or verb->unmet */
    char *why;     /* the text of its TIMED_OUT error, which says what it waits for; NULL: see explain */
    bool deferred; /* call_defer has charged it as a waiter */
    struct call_waits waits;
    void *waiting; /* belongs to the handler, and on_end ends it */
    /* Of a call that a handler has created to ask another node (call_ask): is called once, in place of an answer. reply NULL:
     * err says why there is none. */
    void (*on_answer)(struct call *, const ProtobufCMessage *reply, const struct rdt_error *err);
    struct call **question_p; /* is set to NULL then */
    void *asker;              /* belongs to whoever set on_answer */
    struct call_place place;
    struct call_forwarded forwarded;
    struct call_hold hold;
    struct call_put put;
    struct call_copy copy;
};

struct call *call_create(struct rpc *rpc, struct client *client, struct peer *peer, uint16_t type, uint64_t request_id);

/* Before the answer to a request that has brought one of these, the others being 0: notes what CANCEL_REQUEST is to end. */
void call_note_answer(struct call *call, uint64_t generation, uint64_t region, uint64_t group);

/* What the answered request of the client has brought, once; NULL: it was none of those, or is too long ago. */
const struct client_answered *call_take_answer(struct client *client, uint64_t request_id);

/* Each of these answers the call and frees it. call_reply takes the fds. */
void call_reply(struct call *call, const ProtobufCMessage *reply, const int *take_fds, unsigned n_fds);
/* The same for a request that has changed something, so that its client must be told. heap: what is charged to the call's
 * account at least until this returns; an answer of up to so many bytes is sent whatever else the account has. */
void call_reply_reserved(struct call *call, const ProtobufCMessage *reply, uint64_t heap);
void call_reply_empty(struct call *call);
void call_fail(struct call *call, const struct rdt_error *err);
/* For a request that could not be decoded: the answer is sent even if the request has no id. */
void call_fail_unread(struct call *call, const struct rdt_error *err);

/* Defers the call: it is answered later, or with TIMED_OUT after timeout_ns (negative: never). If the call was deferred
 * before, the earlier deadline counts. on_end is described above, and may be NULL. Errors: LIMIT: too many calls of this
 * owner wait; NO_MEMORY. */
enum rdt_status call_defer(struct call *call, int64_t timeout_ns, void (*on_end)(struct call *), struct rdt_error *err);

/* Lists the deferred call among those that wait for a put or a publish. Without memory it is not listed. */
void call_list_waiting(struct call *call);

/* Whether the request waits for an event, and not only for another node's answer. */
bool call_waits(const struct call *call);

/* Whether call_defer would succeed. If not, err is LIMIT. For handlers that change something before they defer. */
bool call_may_wait(struct call *call, struct rdt_error *err);

/* Whether the link on which another node sent the call has ended. If so, it is dropped in a slice. */
bool call_is_cut_off(const struct call *call);

/* Ends the call without an answer, because the caller has gone. */
void call_drop(struct call *call);

/* Drops all calls of the client. Returns false if until_ns has passed before the end: call it again. */
bool calls_client_gone(struct rpc *rpc, struct client *client, uint64_t until_ns);

/* The deferred call with this number of that client, or, client NULL, of that peer's present link. NULL: there is none. */
struct call *call_find(const struct rpc *rpc, const struct client *client, const struct peer *peer, uint64_t number);

/* Whether the ref's object is on another node. */
bool call_is_remote(const struct call *call, const struct rdt_ref *ref);

/* Sends the request unchanged to the node of the ref's object, whose answer becomes the answer of the call. timeout_ns is
 * ignored for a request that waits for no event. Errors, besides those of peers_find and call_defer: NOT_FOUND: the call
 * comes from another node; UNSUPPORTED: this daemon has no peer link; PEER_LOST: the node is in back-off. */
enum rdt_status call_forward(struct call *call, const struct rdt_ref *ref, const ProtobufCMessage *request, int64_t timeout_ns,
                             struct rdt_error *err);

/* Asks another node on behalf of a client's call, which goes on meanwhile. on_answer follows once, perhaps inside this call;
 * call_forget prevents it. Of many large questions to one node, or ones with large answers (answer_bytes: the most; 0: little),
 * later ones are sent when it has answered earlier ones, so that neither they nor the answers fill the queue of the link, which
 * would end it. Errors: as call_forward, and then it does not follow. */
typedef void (*call_on_answer)(struct call *question, const ProtobufCMessage *reply, const struct rdt_error *err);
enum rdt_status call_ask(struct call *call, const struct rdt_ref *ref, const ProtobufCMessage *request, size_t answer_bytes,
                         call_on_answer on_answer, void *asker, struct call **question_p, struct rdt_error *err);
void call_forget(struct call *question); /* NULL: does nothing */

/* Sends the node a request on behalf of the call's owner whose answer nobody waits for, if the link is up. Nothing is charged
 * for it, so nothing is sent while the node does not read and 4 MiB wait for it. */
void call_tell(const struct call *call, struct peer *peer, uint16_t type, const ProtobufCMessage *request);

/* The calls that wait for the link are sent, in slices. */
void calls_peer_up(struct rpc *rpc, struct peer *peer);
void calls_peer_merged(struct rpc *rpc, struct peer *from, struct peer *into);
bool calls_name_peer(const struct rpc *rpc, const struct peer *peer); /* whether a call refers to it */
/* The link has ended, or a dial has failed: the calls that it concerns end, in slices. */
void calls_peer_down(struct rpc *rpc, struct peer *peer, const struct rdt_error *why);
void calls_close(struct rpc *rpc); /* does at once what is left of that; before the last peer */
void calls_on_message(struct rpc *rpc, struct peer *peer, const struct peer_message *message); /* CALL, CALL_REPLY */

/* ---- call_retake.c: the holds of restored sessions on objects of other nodes (recovery->far_holds) ----
 *
 *            retakes_start                    the node answers with the hold
 *   WAITING ---------------> ASKED ----------------------------------------------> taken
 *      ^                       |
 *      |    the node cannot be | reached, and restart_grace has not passed
 *      +-----------------------+-----> lost: its client is told (remote_hold_lose); also if the node refuses
 */
void retakes_start(struct rpc *rpc);
void retakes_clear(struct rpc *rpc);

/* The events that call_retake.c needs: of links, and of the calls by which it takes holds again. */
struct retake_events {
    void (*on_peer_up)(struct rpc *rpc,
                       struct peer *peer); /* asks at once, or tells the node that there is nothing to ask for */
    bool (*on_answer)(struct call *call);  /* false: the client has ended the hold meanwhile */
    void (*on_failure)(struct call *call, const struct rdt_error *err);
};

/* ---- call_place.c ---- */

/* Requests that wait for something and are then dispatched again: those about a name whose ref names no node, until the homes
 * of the name say where it is, and publishes. */

/* For a request that waits for no event: writes the node of the name into the ref, if it is another one. AGAIN: the homes are
 * being asked, the call is deferred, and it will be dispatched again. Other errors are those of call_defer. */
enum rdt_status call_place_name(struct call *call, struct rdt_ref *ref, struct rdt_error *err);

/* For a request that waits: the same, but only from what this node knows. false: the name is here, or not known. */
bool call_place_known(struct call *call, struct rdt_ref *ref);

/* The call waits for the name here; it is dispatched again if the name appears on another node. Errors: LIMIT, NO_MEMORY. */
enum rdt_status call_seek_name(struct call *call, const struct rdt_ref *ref, struct rdt_error *err);

/* A publish waits for the homes, at most timeout_ns (negative: any time), and is then dispatched again, without a deadline.
 * Errors: as call_defer. */
enum rdt_status call_wait_for_claim(struct call *call, int64_t timeout_ns, struct rdt_error *err);
void call_on_claim(struct claim_waiter *waiter); /* for claim_waiter.on_decided */

#define PUT_WAIT_NS INT64_C(50000000000) /* how long a client's publish waits for its put: less than the minute of librdt */

/* A publish waits until the FILLING object is live, at most timeout_ns (negative: any time), and is then dispatched again. If
 * the put fails, so does the call. Errors: as call_defer. */
enum rdt_status call_wait_for_put(struct call *call, struct object *object, int64_t timeout_ns, struct rdt_error *err);

/* ---- requests ---- */

/* Inside a handler: moves the decoded request to *to, so that it is valid as long as that arena. */
void call_take_request(struct call *call, struct arena *to);

/* The mark by which the other node recognises the client's request if a later daemon forwards it again. mark: where its bytes
 * go. Empty: the session ends with this daemon. */
ProtobufCBinaryData call_mark(const struct call *call, uint8_t mark[REPEAT_BYTES]);

/* What another node has written there; NULL: none. */
const uint8_t *call_mark_of(const struct call *call, const ProtobufCBinaryData *mark);

/* Checks the ref of a message and converts it. INVALID. */
enum rdt_status call_ref(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err);

/* The same for a request about one object: a name is INVALID, too. */
enum rdt_status call_object_ref(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err);

/* Whether the caller may see and free everything of this owner. */
bool call_may_see(const struct call *call, const struct owner *owner);

/* ---- handlers, in the rooms view and rpc: one for each row of RDT_REQUEST_MAP; request is the decoded message, borrowed until
 * the handler returns ---- */
#define RPC_HANDLER(name) enum rdt_status rpc_##name(struct call *call, const void *request, struct rdt_error *err)
#define X(number, NAME, request, reply, properties, unmet) RPC_HANDLER(request);
RDT_REQUEST_MAP(X)
#undef X

#endif
