/* The room of transfers: moves of objects to this node's clients, and to the nodes that pull from here.
 *
 * A fetch is the request of a client; a transfer is one move of bytes, which one or more fetches wait for. A fetch ends at once when it fails, is
 * cancelled or its deadline passes. Its transfer ends when no engine touches its memory any more.
 *
 * The room owns the transfers of both directions, the connections of transports to other nodes, the replicas of other nodes' snapshots and the
 * directory of who has replicas of ours. It shows transfer.h, reservation.h and transfer_broadcast.h. It refuses to know clients' requests (rpc
 * does) and how a peer link works (peers does). All calls are made in the loop thread.
 *
 * The states of the reader's side (struct transfer; the table in transfer.c has exactly these moves):
 *
 *   NEW      it has been created
 *   PARKED   the object belongs to this node and has not been put, or the name has no newer version
 *   LINK     the link to the node that is asked is not up
 *   QUEUED   another transfer of this node has asked for the same object and has no answer yet (coalescer.h)
 *   ASKED    PULL has been sent
 *   EARLY    PULL has been sent, and the receives into the reader's targets were posted before it
 *   RESERVE  memory for the bytes is allocated or registered
 *   CONNECT  the transport's connection is being rebuilt; with a connection chosen, all memory is reserved
 *   TICKET   memory is there; in ordered queues the transfer waits until both ends have their tickets (ticket.h)
 *   MOVE     chunks, a local copy or sub-pulls are under way
 *   REWIND   the attempt has failed; the transfer starts again when its operations have ended
 *   ABORT    its fetches have ended badly, and its operations have not ended yet
 *   ENDED    nothing touches its memory: it is freed
 *
 *     +--> PARKED --put, published--+
 *     |                             |
 *     +-----------------------------+
 *   NEW ----------------------------------------local copy----------> RESERVE --copy--> MOVE --> ENDED
 *     |
 *     |          +--QUEUED--replica here---------------------------------^
 *     |          v                                                       |
 *     +------> LINK --> ASKED --answer-----------------------------------+--> CONNECT (and back)
 *                ^        |                                              |
 *                |        +--targets--> EARLY --started--> MOVE          +--> TICKET --> MOVE --> ENDED
 *                |                        |                              |
 *                |                        v                              +--> MOVE
 *                +------------------- REWIND <-- LINK, ASKED, EARLY, RESERVE, CONNECT, TICKET, MOVE
 *                                     (to LINK or ASKED: asks again; to RESERVE: takes another path)
 *
 *   NEW, QUEUED -> LINK, ASKED;  LINK -> LINK and ASKED -> LINK, ASKED: another node is asked
 *   ASKED, EARLY, RESERVE, CONNECT, TICKET, MOVE, REWIND -> ABORT -> ENDED
 *   NEW, PARKED, LINK, QUEUED, ASKED, RESERVE -> ENDED: nothing was started, or the answer had everything
 */
#ifndef DAEMON_TRANSFER_H
#define DAEMON_TRANSFER_H

#include <uv.h>

#include "daemon/transports/chunk.h"
#include "daemon/objects/client.h"
#include "daemon/base/deadline.h"
#include "daemon/groups/group.h"
#include "daemon/transfers/replica_directory.h"
#include "daemon/objects/names.h"
#include "daemon/objects/object_table.h"
#include "daemon/config/options.h"
#include "daemon/transports/path.h"
#include "daemon/peers/peer.h"
#include "daemon/memory/placing.h"
#include "daemon/plugins/plugin.h"
#include "daemon/memory/region_use.h"
#include "daemon/transfers/replica.h"
#include "daemon/base/sm.h"
#include "daemon/transports/stage.h"
#include "daemon/transports/ticket.h"
#include "daemon/base/work.h"

#define TRANSFER_HISTORY 512

enum transfer_state {
    TRANSFER_NEW,
    TRANSFER_PARKED,
    TRANSFER_LINK,
    TRANSFER_QUEUED,
    TRANSFER_ASKED,
    TRANSFER_EARLY,
    TRANSFER_RESERVE,
    TRANSFER_CONNECT,
    TRANSFER_TICKET,
    TRANSFER_MOVE,
    TRANSFER_REWIND,
    TRANSFER_ABORT,
    TRANSFER_ENDED,
};

/* What rdtctl shows of a transfer, under way and after its end. */
struct transfer_record {
    struct list link; /* in transfers->active or ->serves until the transfer ends */
    uint64_t id;
    uint64_t part_of; /* the id of the transfer that this sub-pull belongs to; 0: none */
    char from[40], to[40]; /* memory kinds of source and target; "": not known, or several */
    uint64_t client;
    struct owner requester;
    struct rdt_ref ref;
    const char *direction; /* "in", "out", "local" */
    char peer[65];
    const char *state;
    char path[65];
    char lanes[64]; /* how the bytes went, in the words of the transport; "": it does not say */
    uint64_t bytes, bytes_done;
    uint64_t since_ns;   /* when it was requested */
    uint64_t began_ns;   /* when the object was found and work began; 0: not yet */
    uint64_t elapsed_ns; /* from began_ns to the end; 0: not ended */
    struct order *order;            /* in ordered queues: its ticket, until the transfer ends; NULL: none */
    struct path_decision *decision; /* a reference; allocated with room for its candidates only; NULL: no path was chosen */
    char error[560];                /* must be the last member: the history copies only the text that is used */
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
    uint64_t next_id;
    struct map by_id;     /* id -> struct transfer of this node's clients, not ended */
    struct map coalesced_requests; /* struct coalesced: requests that other fetches may join */
    const struct connection_events *connections; /* what connections tell their users */
    struct replicas replicas;
    struct replica_directory directory;
    struct tickets turns; /* the tickets of this node's ordered queues */
    struct deadline turns_ready, turns_tick;
    struct list active;   /* struct transfer_record.link: transfers to this node's clients */
    struct list serves;   /* struct transfer_record.link: transfers to other nodes */
    struct transfer_record history[TRANSFER_HISTORY];
    uint64_t n_history;
    struct path_query decided; /* the last path query about an object of this node, */
    char decided_show[192], decided_cow[192]; /* its show_why_not and cow_why_not, */
    struct path_decision *decision; /* and the decision on it, which the same query gets again: a reference; NULL: none */
    uint64_t last_sent_ns; /* when the last transfer to another node ended; 0: never */
    uint64_t done, failed, bytes_in, bytes_out, bytes_local;
    uint64_t copying_bytes;              /* bytes of local copies on the work pool */
    uint64_t fell_back;                  /* transfers from other nodes by a slower transport than both nodes have */
    uint64_t joined;                     /* fetches that joined a transfer which another fetch had begun */
    void (*on_idle)(struct transfers *); /* see transfers_set_on_idle */
    struct list broadcasts;              /* struct broadcast.link: of this node's objects (transfer_broadcast.h) */
    struct list sessions;                   /* struct peer_session.link: one for each node that was ever asked or served */
    bool refuse_parked;                  /* the daemon takes no more puts, so nothing may wait for one */
    bool closing;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

/* The target buffers of a client. */
struct target {
    struct layout *layout;
    struct region_use *uses; /* [n], each with a reference and a pin of its region */
    uint32_t n;
    uint64_t heap_bytes; /* charged for a layout that came as runs, since the size of its message does not bound it */
};

/* Memory for tensors that go to devices: transfer_destination.c. */
struct device_destination {
    struct placing placing;
    struct layout *layout; /* NULL: handed over to the target */
    struct region *regions[PLACING_MAX];
    uint32_t n_ready;
};

struct chunk_op;
struct local_copy;

/* Memory that chunks are received into before they are scattered to many small tensors: transfer_staging.c. */
struct staging {
    uint64_t need, used;
    struct region *region; /* or, for little memory: */
    uint8_t *heap;
    uint64_t heap_bytes; /* charged */
    region_ready on_ready;
};

/* The memory kinds and devices of the tensors of an object on another node. */
struct memory_placement {
    char memory[PLACING_MAX][33];
    char device[PLACING_MAX][65]; /* uuids of devices of the owner's node */
    uint32_t of[]; /* [n tensors] index into the two */
};

struct transfer_kind;

struct transfer {
    struct transfers *transfers;
    const struct transfer_kind *kind; /* what depends on where the bytes come from (transfer_impl.h) */
    struct sm sm;
    uint64_t id;
    struct list fetches;     /* struct fetch.by_transfer */
    unsigned n_fetches;      /* fetches that have joined since the start; if more than one, they share the result */
    struct client *client;   /* the client of its first fetch; NULL when all its fetches have ended */
    struct account *account; /* of the requester: a reference */
    struct rdt_ref ref;
    Rdt__Pb__Slice *slice; /* owned; NULL: the whole object */
    Rdt__Pb__FetchMode mode;
    char wish_transport[65], wish_least[65], wish_group[65];
    bool meta_only;
    uint64_t self_copy_bytes; /* the client copies up to this many bytes into the targets itself */
    char wish_memory[33], wish_device[65]; /* where the tensors shall be; "": where they are */
    bool host_stays;
    struct target *target; /* NULL: the daemon allocates memory */
    uint32_t filled_from, filled_to; /* how many regions of the object and of the target have all their pages (region_fill.h) */
    struct device_destination *destination; /* memory of several kinds, or on a device; NULL: host memory */
    bool target_is_destination;             /* `destination` has become `target` */

    /* Objects in several kinds of memory: transfer_subpull.c. */
    struct memory_placement *placement; /* NULL: all tensors are in host memory */
    struct subpulls *subpulls;      /* the sub-pulls that move the object; NULL: one pull moves all of it */
    struct transfer *parent;     /* the pull that this sub-pull belongs to; NULL: it is no sub-pull */
    struct list by_parent;
    uint32_t *select; /* [n_select] the tensors of the parent that this sub-pull moves */
    uint32_t n_select;
    bool subpull_done;
    bool staged_here, staged_there; /* the path goes through host memory on this or the other node */
    bool single;                    /* every chunk is of one tensor, since an end is device memory */
    struct stage *stage;            /* with staged_here: the pinned slots; NULL: not yet */
    region_ready stage_ready;
    struct device_place *to_places; /* [target->n] for the device copies */
    struct deadline stall; /* no progress; while ABORT or REWIND: the grace time */
    uint64_t stall_bytes;  /* bytes done when `stall` was set */
    struct transfer_record record;

    /* An object of this node: transfer_local.c. */
    struct object_waiter waiter;
    struct client_wake wake; /* the object was put: the fetch is served in its client's turn of the loop */
    struct object *woken;    /* the object that was put; held until then */
    struct object *object;   /* held and pinned during a copy */
    struct local_copy *copy; /* the copy under way, or NULL */
    struct name_waiter named;
    uint64_t version; /* of the published name, if the ref is one */

    /* What is moved. */
    struct layout *source; /* the tensors of the object, sliced; of another node's object the shapes only */
    struct layout *packed; /* the layout of the tensors in the byte stream */
    uint64_t stream_bytes;
    struct region *received;         /* memory for the stream; NULL with a target */
    struct reservation *reservation; /* of the fetch message, until the transfer joins a group; borrowed */
    struct reservation_group *group; /* the group that reserves memory together (reservation.h); NULL: none */
    struct list by_group;
    uint64_t group_bytes;
    void (*on_room)(struct transfer *);
    struct chunk_plan *plan;
    struct staging staging;
    uint32_t next_chunk, chunks_done;
    uint32_t first_chunk;   /* earlier chunks have arrived in an earlier attempt */
    unsigned n_ops;         /* operations and pool work that may touch memory */
    struct chunk_op **chunk_ops; /* [plan->n] receives or reads under way */
    enum rdt_status failed; /* first failure of an operation */
    char failure[192];
    uint64_t asked; /* peer_session.asked whose answer decides about the failure; 0: none */

    /* An object of another node: transfer_in.c and its neighbours. */
    struct peer_session *peer;
    struct list by_peer;        /* in peer_session.pending or .incoming */
    struct peer_session *origin;   /* the node of the object; `peer` is another one while a replica there serves */
    bool joinable;              /* other fetches may join (coalescer.h) */
    bool keeps;                 /* a snapshot becomes a replica on this node */
    bool no_redirect;           /* it has come back from a replica, or wants a certain path */
    bool merged;                /* its fetches have joined another transfer: it leaves no record */
    struct coalesced *coalesced;  /* until it is answered; NULL: it goes alone */
    struct deadline turn;       /* QUEUED: the transfer before it has ended; at a replica: how long its node may stay silent */
    struct deadline unwanted;   /* set when the last other node has stopped pulling its replica */
    int64_t patience_ns;        /* at a replica */
    struct replica *replica;    /* the replica that it fills: a reference; NULL: none */
    struct broadcast_member *member;          /* this node's part of a broadcast (transfer_broadcast_member.c); NULL: none */
    bool collective;              /* with `member`: the chunks come by the transport's own broadcast */
    uint64_t chunk_bytes;       /* the size of chunks that the root uses; 0: as this daemon is configured */
    bool from_copy;             /* a replica on this node serves it, as if it were an object of this node */
    struct peer_transport *connection; /* referenced while chunks are posted */
    struct list by_connection;
    bool one_sided, have_meta;
    bool fell_back;                 /* counted in transfers->fell_back */
    bool contiguous;                /* from the answer: at the owner */
    char preferred[65], memory[65]; /* from the answer: transport, memory kind */
    char producer[65];              /* from the answer: the name of the client; "": it has ended */
    const uint8_t *metadata; /* the object's, or own_metadata */
    size_t metadata_bytes;
    uint8_t *own_metadata; /* owned, and its bytes are charged to the account; NULL: none */
    uint8_t *inline_data;
    bool is_inline;
    struct layout *remote;              /* one-sided: the layout at the owner; regions are indexes into keys */
    uint8_t (*keys)[RDT_KEY_MAX_BYTES]; /* [n_keys] */
    size_t *key_bytes;
    size_t n_keys;
};

struct fetch {
    struct client *client;
    uint64_t handle;
    struct transfer *transfer;
    struct list by_transfer;
    struct deadline deadline;
    uint64_t message; /* client->n_fetch_messages of its message; 0: each answer brings its own fds */
    bool cow;     /* memory that several fetches share is to be mapped privately */
    bool counted; /* counted in transfers->joined */
    bool merged;  /* it joined a transfer: `version` of the name is its own */
    uint64_t version;
};

void transfers_init(struct transfers *transfers);
void transfers_fini(struct transfers *transfers);
unsigned transfers_active(const struct transfers *transfers);

/* Tells the caller, once for each time, that the last transfer of either direction has ended; NULL: nobody any more. */
void transfers_set_on_idle(struct transfers *transfers, void (*on_idle)(struct transfers *));

/* Since the last transfer to another node has ended; UINT64_MAX: there was none. */
uint64_t transfers_quiet_ns(const struct transfers *transfers);

/* Counters since the start of the daemon, except where it says "now". */
struct transfers_stats {
    unsigned active;                           /* now */
    uint64_t done, failed;                     /* transfers that ended, well or not */
    uint64_t bytes_in, bytes_out, bytes_local; /* from other nodes, to other nodes, copied on this node */
    uint64_t fetches_joined;                   /* that took part in a transfer which another fetch had begun */
    uint64_t fell_back;                        /* transfers from other nodes by a slower transport than both nodes have */
    uint64_t replicas, replica_bytes;          /* of other nodes' snapshots on this node, now */
    uint64_t replica_fetches;                  /* fetches that such a replica answered */
    uint64_t redirected;                       /* pulls of other nodes that were sent to a replica elsewhere */
};
void transfers_stats(const struct transfers *transfers, struct transfers_stats *stats_p);

/* The transfer with this id that has not ended, or NULL. */
struct transfer *transfers_find(const struct transfers *transfers, uint64_t id);

/* The n-th newest record of a transfer that has ended; NULL: there is none, or it is no longer kept. */
const struct transfer_record *transfers_history(const struct transfers *transfers, uint64_t n);

/* An object of this node may be fetched no more: nodes with a replica are told. */
void transfers_object_ended(struct transfers *transfers, const struct object *object);

/* Evicts replicas that nobody uses until `bytes` bytes are free, or none if there are not as many. Returns the bytes evicted. */
uint64_t transfers_evict_replicas(struct transfers *transfers, uint64_t bytes);

/* The daemon stops and takes no more puts: transfers that wait for one fail now with SHUTTING_DOWN. */
void transfers_refuse_parked(struct transfers *transfers);

/* Starts one item of a FETCH for the client. `twin` is an earlier transfer of the same message that the item may join, found by the
 * caller with fetch_joinable; NULL: none. *transfer_p is what the caller must transfer_go with; NULL: it joined one that goes already.
 * On error nothing was started: the caller answers. */
enum rdt_status fetch_start(struct transfers *transfers, struct client *client, const Rdt__Pb__Fetch *message,
                            const Rdt__Pb__FetchItem *item, struct transfer *twin, struct transfer **transfer_p,
                            struct rdt_error *err);
bool fetch_joinable(const Rdt__Pb__Fetch *message, const Rdt__Pb__FetchItem *a, const Rdt__Pb__FetchItem *b);

/* Begins a transfer that fetch_start created, after all items of the message were started. It may end at once. */
void transfer_go(struct transfer *transfer);

/* Ends a fetch with an error now, and its transfer too if no other fetch waits for it. */
void fetch_fail(struct fetch *fetch, const struct rdt_error *err);

/* The client has ended: drops its fetches without an answer. Returns false if until_ns has passed: call again. */
bool transfers_client_gone(struct transfers *transfers, struct client *client, uint64_t until_ns);

/* Sends the FETCH_DONE of an error for a fetch that was never started. */
void fetch_answer_error(struct client *client, uint64_t handle, const struct rdt_error *err);

/* ---- peers: called by the daemon from peer.h's callbacks ---- */
void transfers_peer_up(struct transfers *transfers, struct peer *peer);
void transfers_peer_merged(struct transfers *transfers, struct peer *from, struct peer *into);

/* Frees what is kept for a peer that is going to be forgotten. false: something refers to it. */
bool transfers_forget_peer(struct transfers *transfers, struct peer *peer);
void transfers_peer_down(struct transfers *transfers, struct peer *peer, const struct rdt_error *why);
void transfers_peer_answer(struct transfers *transfers, struct peer *peer); /* what peer_ask asked */
enum rdt_status transfers_peer_frame(struct transfers *transfers, struct peer *peer, const struct frame *frame,
                                     struct rdt_error *err);

/* ---- a transport comes and goes while links are up (hotload.c) ---- */

/* It is in the list: offered to every node whose link is up. */
void transfers_transport_loaded(struct transfers *transfers, struct transport *transport);

/* BUSY: a transfer uses it; which one. */
enum rdt_status transfers_transport_idle(const struct transfers *transfers, const struct transport *transport,
                                         struct rdt_error *err);

/* transport->leaving and not available: tells every node, which takes its end of the connection down, and then this one goes; those that
 * do not are cut. When it is gone nothing of it is connected or under way, and it may be forgotten. */
void transfers_transport_leave(struct transfers *transfers, struct transport *transport);
void transfers_transport_cut(struct transfers *transfers, const struct transport *transport);
bool transfers_transport_gone(const struct transfers *transfers, const struct transport *transport);
void transfers_transport_forget(struct transfers *transfers, const struct transport *transport);

/* A peer states whose behalf it speaks on: believed only for tenants that share_tenants names. false fills err. */
bool transfers_believe(const struct transfers *transfers, const Rdt__Pb__Requester *requester, struct owner *owner_p,
                       struct rdt_error *err);

/* For groups_callbacks. */
void transfers_on_group(struct transfers *transfers, struct group *group, enum group_change change);

/* Fails what is under way and takes down every transport connection; on_closed from the loop when none is left. The peers must live
 * until then. */
void transfers_close(struct transfers *transfers, void (*on_closed)(void *arg), void *arg);

/* ---- for rdtctl ---- */

/* What is under way, one after the other; *cursor starts NULL; NULL at the end. */
const struct transfer_record *transfers_next_active(const struct transfers *transfers, struct list **cursor);

/* What a transfer in ordered queues waits for: "behind transfer 12 (to n2) in queue nccl/gpu0"; "": for nothing of that kind. */
#define RECORD_WAITS_BYTES 256
void record_waits_for(const struct transfer_record *record, char text_p[RECORD_WAITS_BYTES]);

struct peer_summary {
    unsigned transfers_in, transfers_out;
    uint64_t bytes_in, bytes_out;
    const char *transports[PATH_MAX_CANDIDATES]; /* connected */
    char lanes[PATH_MAX_CANDIDATES][160];        /* what each says of its way there */
    unsigned n_transports;
    uint64_t fell_back;
    char unusable[PATH_MAX_CANDIDATES][320]; /* which others there are, and why not */
    unsigned n_unusable;
};
void transfers_peer_summary(const struct peer *peer, struct peer_summary *summary_p);
unsigned transfers_by_side(const struct list *connection); /* of group->vias: how many use it */
void transfer_record_to_wire(const struct transfer_record *record, Rdt__Pb__TransferInfo *info_p,
                             char ref_text[RDT_REF_TEXT_BYTES], char waits[RECORD_WAITS_BYTES]);

#endif
