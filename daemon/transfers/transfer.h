/* SPDX-License-Identifier: Apache-2.0 */
/* The room of transfers: moves of objects to this node's clients, and to the nodes that pull from here.
 *
 * A fetch is the request of a client; a transfer is one move of bytes, which one or more fetches wait for. A
 * fetch ends at once when it fails, is cancelled or its deadline passes. Its transfer ends when no engine
 * touches its memory any more.
 *
 * The room owns the transfers of both directions, the connections of transports to other nodes, the replicas
 * of other nodes' snapshots and the directory of the nodes that have replicas of ours. Its public headers are transfer.h,
 * reservation.h and broadcast.h. It does not deal with clients' requests, which rpc does, or with how a peer link
 * works, which peers does. All functions are called in the loop thread.
 *
 * The states of the reader's side (struct transfer; the table in transfer.c has exactly these moves):
 *
 *   NEW      it has been created
 *   PARKED   the object belongs to this node and has not been put, or the name has no newer version
 *   LINK     the link to the node that is asked is not up
 *   QUEUED   another transfer of this node has asked for the same object and has no answer yet (coalescer.h)
 *   ASKED    PULL has been sent
 *   RESERVE  memory for the bytes is allocated or registered
 *   CONNECT  the transport's connection is being rebuilt; with a connection chosen, all memory is reserved
 *   TICKET   memory is there; in ordered queues the transfer waits until both ends have their tickets (ticket.h)
 *   MOVE     chunks, a local copy or sub-pulls are under way
 *   REWIND   the attempt has failed; the transfer starts again when its operations have ended
 *   ABORT    its fetches have ended badly, and its operations have not ended yet
 *   ENDED    nothing moves its bytes any more: it is freed, or its fetches are still being answered, in slices of the loop
 *
 *     +--> PARKED --put, published--+
 *     |                             |
 *     +-----------------------------+
 *   NEW ----------------------------------------local copy----------> RESERVE --copy--> MOVE --> ENDED
 *     |
 *     |          +--QUEUED--replica here---------------------------------^
 *     |          v                                                       |
 *     +------> LINK --> ASKED --answer-----------------------------------+--> CONNECT (and back)
 *                ^                                                       |
 *                |                                                       +--> TICKET --> MOVE --> ENDED
 *                |                                                       |
 *                |                                                       +--> MOVE
 *                +------------------- REWIND <-- LINK, ASKED, RESERVE, CONNECT, TICKET, MOVE
 *                                     (to LINK or ASKED: asks again; to RESERVE: takes another path)
 *
 *   NEW, QUEUED -> LINK, ASKED;  LINK -> LINK and ASKED -> LINK, ASKED: another node is asked
 *   ASKED, RESERVE, CONNECT, TICKET, MOVE, REWIND -> ABORT -> ENDED
 *   NEW, PARKED, LINK, QUEUED, ASKED, RESERVE -> ENDED: nothing was started, or the answer had everything
 */
#ifndef DAEMON_TRANSFER_H
#define DAEMON_TRANSFER_H

#include <uv.h>

#include "daemon/base/histogram.h"
#include "daemon/base/ids.h"
#include "daemon/base/index.h"
#include "daemon/base/trace.h"
#include "daemon/directory/directory_names.h"
#include "daemon/groups/group.h"
#include "daemon/memory/placing.h"
#include "daemon/objects/client.h"
#include "daemon/objects/names.h"
#include "daemon/objects/object_table.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/replica_directory.h"
#include "daemon/transports/path.h"
#include "daemon/transports/stage.h"
#include "daemon/transports/ticket.h"
#include "rdt.pb-c.h"

#define TRANSFER_HISTORY 512
#define TRANSFER_PATHS 32 /* pairs of path and direction that are counted apart; the last entry counts all others */

enum transfer_state {
    TRANSFER_NEW,
    TRANSFER_PARKED,
    TRANSFER_LINK,
    TRANSFER_QUEUED,
    TRANSFER_ASKED,
    TRANSFER_RESERVE,
    TRANSFER_CONNECT,
    TRANSFER_TICKET,
    TRANSFER_MOVE,
    TRANSFER_REWIND,
    TRANSFER_ABORT,
    TRANSFER_ENDED,
};

/* How transfers end. Only TRANSFER_FAILED should raise an alert: a reader that cancels, or that waits for an object that nobody
 * puts, is not a failure of the node. */
enum transfer_outcome { TRANSFER_DONE, TRANSFER_FAILED, TRANSFER_CANCELLED, TRANSFER_TIMED_OUT, TRANSFER_OUTCOMES };

/* A node that sent bytes of a fetch, and why the fetch has left it. */
struct transfer_source {
    char peer[65];
    uint64_t bytes;
    char left[128];
};

/* What rdtctl shows of a transfer, under way and after its end. */
struct transfer_record {
    struct list link; /* in transfers->under_way until the transfer ends */
    uint64_t id;
    uint64_t parent;       /* the id of the transfer that this sub-pull belongs to; 0: none */
    char from[40], to[40]; /* memory kinds of source and target; "": not known, or several */
    uint64_t client;
    struct owner requester;
    struct rdt_ref ref;
    const char *direction; /* "in", "out", "local" */
    char peer[65];
    const char *state;
    char path[65];
    char route[64]; /* the route of the bytes in the words of the transport; "": unknown */
    uint64_t bytes, bytes_done;
    struct transfer_source *sources; /* [n_sources] that the fetch has left, in order; owned */
    unsigned n_sources;
    uint64_t source_from;           /* bytes done when the present source began */
    const char *reader;             /* of a transfer to another node: that node "lags" or is "slow"; NULL: it is neither */
    bool awaits_put;                /* the object has not been put, or no such version of the name has been published */
    uint64_t since_ns;              /* when it was requested */
    uint64_t began_ns;              /* when the object was found and work began; 0: not yet */
    uint64_t elapsed_ns;            /* from began_ns to the end; 0: not ended */
    struct transfer_ticket *ticket; /* in ordered queues: its ticket, until the transfer ends; NULL: none */
    /* a reference; allocated with room for its candidates only; NULL: no path was chosen */
    struct path_decision *decision;
    enum rdt_status status; /* of error */
    char error[560];        /* "": none. Must be the last member: the history copies only the text that is used */
};

/* Transfers that have ended, by path and direction, since the start of the daemon. */
struct transfer_path {
    char name[65];         /* as in struct transfer_record; "" for transfers that ended before a path was chosen */
    const char *direction; /* "in", "out", "local"; NULL: the entry is free */
    uint64_t bytes;        /* of transfers that are done */
    uint64_t ended[TRANSFER_OUTCOMES];
    struct histogram duration; /* of transfers that are done, from the time when the object was found */
};

/* Transfers that have ended, and when all entered their states, for rdtctl. */
struct transfers_past {
    struct transfer_record records[TRANSFER_HISTORY];
    uint64_t n; /* all that have ended; the n-th lies at n % TRANSFER_HISTORY */
    struct transfer_path paths[TRANSFER_PATHS];
    struct trace trace;
};

/* The last path query about an object of this node, and the decision on it, which the same query gets again. */
struct decided {
    struct path_query query;
    char show[192], cow[192];       /* its show_why_not and cow_why_not */
    struct path_decision *decision; /* a reference; NULL: none */
};

/* How much this node receives, sends and copies. */
struct transfers_load {
    struct fanout_intake intake; /* what this node receives */
    uint64_t serving_bytes;      /* of all serves */
    /* Of these, struct serve.by_pace: long sends of snapshots, whose readers are watched; and how many send, except to readers
     * that were found to take little. */
    struct list paced;
    unsigned n_sharing;
    uint64_t usual_rate;    /* bytes/s at which readers lately took what this node sent; 0: not known */
    uint64_t last_sent_ns;  /* when the last transfer to another node ended; 0: never */
    uint64_t copying_bytes; /* of local copies on the work pool */
};

struct transfers_tickets { /* of this node's ordered queues */
    struct tickets all;
    struct deadline ready, tick;
    const struct transfer_ticket_events *events; /* from the queues to their users */
};

/* Transfers that have not ended. */
struct transfers_under_way {
    struct index by_id; /* id -> struct transfer_record: those of both lists */
    struct list active; /* struct transfer_record.link: transfers to this node's clients */
    struct list serves; /* struct transfer_record.link: transfers to other nodes */
    unsigned n;         /* in both lists, and those that have ended, but not all of whose fetches are answered yet */
};

/* Who is told of the end of all transfers. */
struct transfers_ends {
    void (*on_idle)(struct transfers *); /* see transfers_set_on_idle */
    void (*on_closed)(void *arg);
    void *closed_arg;
};

struct follows;

struct transfers_held { /* of the room follows */
    struct follows *follows;
    /* What the client has of that object without asking the object's node, and whether pickles in it are trusted. NULL: it has
     * nothing; as a member: nobody has. */
    struct object *(*find)(struct follows *follows, const struct client *client, const struct rdt_ref *ref, bool *trusted_p);
};

struct transfers {
    const struct events *events; /* NULL: no client watches events */
    uv_loop_t *loop;
    const struct options *options;
    const struct node *node;
    struct plugins *plugins;
    struct work_pool *pool;
    struct deadlines *deadlines;
    struct regions *regions;
    struct object_table *objects;
    struct names *names;
    struct peers *peers; /* NULL without a peer link */
    struct groups *groups;
    struct directory_names *directory_names; /* where names are; NULL in tests: only here */
    struct ids ids;
    struct transfers_under_way under_way;
    struct map coalesced_requests;               /* struct coalesced: requests that other fetches may join */
    const struct connection_events *connections; /* from connections to their users */
    struct replicas replicas;
    struct replica_directory directory;
    struct transfers_tickets tickets;
    struct transfers_load load;
    struct transfers_past past;
    struct decided decided;
    Rdt__Pb__StatusReply *counts; /* where everything is counted that STATUS shows */
    struct list broadcasts;       /* struct broadcast.link: of this node's objects (broadcast.h) */
    /* struct remote.link: one for each node that was ever asked or served */
    struct list remotes;
    struct transfers_held held;
    bool refuse_parked; /* the daemon takes no more puts, so nothing may wait for one */
    bool closing;
    struct transfers_ends ends;
};

struct reservation; /* memory for all items of a message (reservation.h) */
struct fetch;       /* one item of a FETCH message of a client */
struct transfer;    /* one move of bytes for one or more fetches */

void transfers_init(struct transfers *transfers);
void transfers_fini(struct transfers *transfers);
unsigned transfers_active(const struct transfers *transfers);

/* on_idle is called each time that the last transfer of either direction has ended. NULL: it is not called
 * any more. */
void transfers_set_on_idle(struct transfers *transfers, void (*on_idle)(struct transfers *));

/* The time since the last transfer to another node ended; UINT64_MAX: there was none. */
uint64_t transfers_quiet_ns(const struct transfers *transfers);

/* Writes what STATUS says of transfers now, and of those that have ended. */
void transfers_status(const struct transfers *transfers, Rdt__Pb__StatusReply *reply_p);

/* The transfer with this id that has not ended, or NULL. */
struct transfer *transfers_find(const struct transfers *transfers, uint64_t id);

/* The n-th newest record of a transfer that has ended; NULL: there is none, or the history has dropped it. */
const struct transfer_record *transfers_history(const struct transfers *transfers, uint64_t n);

/* The object has ended: tells the nodes that have a replica of it. */
void transfers_object_ended(struct transfers *transfers, const struct object *object);

/* Evicts replicas that nobody uses until `bytes` bytes are free, or none if there are not as many. Returns
 * the bytes evicted. */
uint64_t transfers_evict_replicas(struct transfers *transfers, uint64_t bytes);

/* The daemon stops and accepts no more puts: transfers that wait for one fail now with SHUTTING_DOWN. */
void transfers_refuse_parked(struct transfers *transfers);

/* Properties of a transfer for the caller of fetch_start. */
uint64_t transfer_id(const struct transfer *transfer);
unsigned transfer_fetch_count(const struct transfer *transfer); /* how many fetches have joined it since its start */
bool transfer_is_local(const struct transfer *transfer);        /* its ref names an object of this node */

/* Starts one item of a FETCH for the client. `twin` is an earlier transfer of the same message that the item
 * may join, found by the caller with fetch_joinable; NULL: none. The caller must call transfer_go with
 * *transfer_p; NULL: the item joined a transfer that has begun already. On error nothing was started, and the
 * caller answers. */
enum rdt_status fetch_start(struct transfers *transfers, struct client *client, const Rdt__Pb__Fetch *message,
                            const Rdt__Pb__FetchItem *item, struct transfer *twin, struct transfer **transfer_p,
                            struct rdt_error *err);
bool fetch_joinable(const Rdt__Pb__Fetch *message, const Rdt__Pb__FetchItem *a, const Rdt__Pb__FetchItem *b);

/* Begins a transfer that fetch_start created, after all items of the message were started. It may end at
 * once. `reservation` is the reservation of the message, which stays the caller's; NULL: the transfer
 * reserves memory for itself. */
void transfer_go(struct transfer *transfer, struct reservation *reservation);

/* Ends a fetch with an error now, and its transfer too if no other fetch waits for it. */
void fetch_fail(struct fetch *fetch, const struct rdt_error *err);

/* The client has ended: drops its fetches without an answer. Returns false if until_ns has passed: call again. */
bool transfers_client_gone(struct transfers *transfers, struct client *client, uint64_t until_ns);

/* Objects that a client gets without a transfer each (rpc_hand_out.c).
 *
 * transfers_hand_out begins the record of those of this node that go one way, in the answer or by their regions, as the
 * first of them does; NULL: no memory. transfers_hand_over begins that of objects that go from one node to another: `peer` has
 * them for the client, or, client NULL, gets them for the account. transfers_handed_out ends it: n objects with so many
 * bytes. why: that they did not go; NULL: they did. peer: as before, or NULL. Returns the number for EXPLAIN.
 *
 * transfers_has says whether this node has an object of another one for the client, in a replica or a version that it follows.
 *
 * fetch_notice says whether the reader is to be told that the object, which it is about to share, may still be written. */
struct transfer_record *transfers_hand_out(struct transfers *transfers, const struct client *client, struct object *object,
                                           Rdt__Pb__FetchMode mode);
struct transfer_record *transfers_hand_over(struct transfers *transfers, const struct client *client, struct account *account,
                                            const struct peer *peer, const struct rdt_ref *ref);
uint64_t transfers_handed_out(struct transfers *transfers, struct transfer_record *take_record, struct peer *peer, uint32_t n,
                              uint64_t bytes, const struct rdt_error *why);
bool transfers_has(const struct transfers *transfers, const struct client *client, const struct rdt_ref *ref);
bool fetch_notice(const struct client *reader, struct object *object);

/* Sends the FETCH_DONE of an error for a fetch that was never started. */
void fetch_answer_error(struct client *client, uint64_t handle, const struct rdt_error *err);

/* ---- peers: called by the daemon from peer.h's callbacks ---- */
void transfers_peer_up(struct transfers *transfers, struct peer *peer);
void transfers_peer_merged(struct transfers *transfers, struct peer *from, struct peer *into);

/* Frees the peer's remote because the peer is going to be forgotten. Returns false if something refers to it. */
bool transfers_forget_peer(struct transfers *transfers, struct peer *peer);
void transfers_peer_down(struct transfers *transfers, struct peer *peer, const struct rdt_error *why);
void transfers_peer_answer(struct transfers *transfers, struct peer *peer); /* the answer to peer_probe has come */
enum rdt_status transfers_on_message(struct transfers *transfers, struct peer *peer, const struct peer_message *message,
                                     struct rdt_error *err);

/* ---- a transport comes and goes while links are up (hotload.c) ---- */

/* The transport is in the list of transports: offers it to every node whose link is up. */
void transfers_transport_loaded(struct transfers *transfers, struct transport *transport);

/* BUSY: a transfer or a group uses the transport; err names it. */
enum rdt_status transfers_transport_idle(const struct transfers *transfers, const struct transport *transport,
                                         struct rdt_error *err);

/* Unloading a transport, which has `leaving` set and is not available:
 *
 *   leave   tells every node, which takes its end of the connection down; then this end closes
 *   cut     closes the connections to nodes that have not done so
 *   gone    whether nothing of it is connected or under way
 *   forget  frees its connections, when it is gone
 */
void transfers_transport_leave(struct transfers *transfers, struct transport *transport);
void transfers_transport_cut(struct transfers *transfers, const struct transport *transport);
bool transfers_transport_gone(const struct transfers *transfers, const struct transport *transport);
void transfers_transport_forget(struct transfers *transfers, const struct transport *transport);

/* Checks the user on whose behalf a peer sends a request. The peer is believed only for tenants that
 * share_tenants names. Returns false and fills err otherwise. */
bool transfers_check_requester(const struct transfers *transfers, const Rdt__Pb__Requester *requester, struct owner *owner_p,
                               struct rdt_error *err);

/* A group has changed: for groups_callbacks. */
void transfers_on_group(struct transfers *transfers, struct group *group, enum group_change change);

/* Fails all transfers and takes down all connections. on_closed is called from the loop when none is left.
 * The peers must live until then. */
void transfers_close(struct transfers *transfers, void (*on_closed)(void *arg), void *arg);

/* ---- for rdtctl ---- */

/* The transfer with the least id above that one that has not ended, and the one with that id. NULL: there is none. */
const struct transfer_record *transfers_next_active(const struct transfers *transfers, uint64_t after);
const struct transfer_record *transfers_active_record(const struct transfers *transfers, uint64_t id);

/* What a transfer in ordered queues waits for: "behind transfer 12 (to n2) in queue nccl/gpu0"; "": it does
 * not wait in a queue. */
#define RECORD_WAITS_BYTES 256
void record_waits_for(const struct transfer_record *record, char text_p[RECORD_WAITS_BYTES]);

struct peer_summary {
    unsigned n_pulls, n_serves;
    uint64_t bytes_pulled, bytes_served;
    const char *transports[PATH_MAX_CANDIDATES]; /* connected */
    char routes[PATH_MAX_CANDIDATES][160];       /* what each transport says about its route there */
    unsigned n_transports;
    uint64_t fell_back;
    char unusable[PATH_MAX_CANDIDATES][320]; /* the other transports, and why each is not usable */
    unsigned n_unusable;
    char trouble[PATH_MAX_CANDIDATES]
                [224]; /* connected transports whose bytes do not pass: "stream: 192.0.2.7 port 7200: ..." */
    unsigned n_troubles;
    char versions[PATH_MAX_CANDIDATES][224]; /* transports whose libraries differ: "ucx 1.13.1 here, 1.19.0 there" */
    unsigned n_versions;
};
void transfers_peer_summary(const struct peer *peer, struct peer_summary *summary_p);
/* of group->connections: how many transfers use it */
unsigned transfers_of_group_side(const struct list *connection);
void transfer_record_to_wire(const struct transfer_record *record, Rdt__Pb__TransferInfo *info_p,
                             char ref_text[RDT_REF_TEXT_BYTES], char waits[RECORD_WAITS_BYTES]);

#endif
