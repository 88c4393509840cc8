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

/* What is kept of a transfer for rdtctl, also after its end. */
struct transfer_record {
    struct list link; /* in transfers->active or ->serves, until it ends */
    uint64_t id;
    uint64_t part_of; /* of that transfer; 0: of none */
    char from[40], to[40]; /* kinds of memory; "": not known, or of several */
    uint64_t client;
    struct owner requester;
    struct rdt_ref ref;
    const char *direction; /* "in", "out", "local" */
    char peer[65];
    const char *state;
    char path[65];
    char lanes[64]; /* which way its bytes went, in the transport's words; "" if it does not say */
    uint64_t bytes, bytes_done;
    uint64_t since_ns;   /* asked for */
    uint64_t began_ns;   /* the object was there: from here on it takes time; 0: not yet */
    uint64_t elapsed_ns; /* since it began; 0: not ended */
    struct order *order;            /* in ordered queues: its turn, until it ends; NULL: none */
    struct path_decision *decision; /* with as many candidates as it has; NULL: not decided yet, and most that wait never are */
    char error[560];                /* last: of it only the text goes into the history */
};

struct transfers {
    const struct events *events; /* NULL: nobody watches */
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
    struct map by_id;     /* struct transfer: ours, not ended */
    struct map coalesced_requests; /* struct coalesced: asked for just now */
    const struct connection_events *connections; /* what connections tell their users */
    struct replicas replicas;
    struct replica_directory directory;
    struct tickets turns; /* of what stands in ordered queues here */
    struct deadline turns_ready, turns_tick;
    struct list active;   /* struct transfer_record.link: ours */
    struct list serves; /* struct transfer_record.link: pulled by others */
    struct transfer_record history[TRANSFER_HISTORY];
    uint64_t n_history;
    struct path_query decided; /* the latest of an object of this node that little was said about: */
    char decided_show[192], decided_cow[192]; /* its show_why_not and cow_why_not, if any */
    struct path_decision *decision; /* on that: a reference; NULL: there was none */
    uint64_t last_sent_ns; /* when the last outgoing one ended */
    uint64_t done, failed, bytes_in, bytes_out, bytes_local;
    uint64_t copying_bytes;              /* of local copies on the pool */
    uint64_t fell_back;                  /* from other nodes, by a slower transport than it should have been */
    uint64_t joined;                     /* fetches that took part in a transfer that another one had begun */
    void (*on_idle)(struct transfers *); /* told when the last active one has ended */
    struct list broadcasts;              /* struct broadcast.link: of this node's objects (transfer_broadcast.h) */
    struct list sessions;                   /* struct peer_session.link: every peer we ever had to do with */
    bool refuse_parked;                  /* there will be no more puts */
    bool closing;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

/* Where a client wants the bytes. */
struct target {
    struct layout *layout;
    struct region_use *uses; /* [n], each with a reference and a pin of its region */
    uint32_t n;
    uint64_t heap_bytes; /* of a layout that came in runs, which its message's size does not bound: charged */
};

/* Where tensors come to lie that go to devices: transfer_destination.c. */
struct device_destination {
    struct placing placing;
    struct layout *layout; /* NULL: it is the target's now */
    struct region *regions[PLACING_MAX];
    uint32_t n_ready;
};

struct chunk_op;
struct local_copy;

/* Memory that chunks pass through on their way to many small tensors: transfer_staging.c. */
struct staging {
    uint64_t need, used;
    struct region *region; /* or, if it is little: */
    uint8_t *heap;
    uint64_t heap_bytes; /* charged */
    region_ready on_ready;
};

/* Of what comes from another node: which kinds of memory its tensors lie in there. */
struct memory_placement {
    char memory[PLACING_MAX][33];
    char device[PLACING_MAX][65]; /* the owner's */
    uint32_t of[]; /* each tensor's */
};

struct transfer_kind;

struct transfer {
    struct transfers *transfers;
    const struct transfer_kind *kind; /* what depends on where the bytes come from (transfer_impl.h) */
    struct sm sm;
    uint64_t id;
    struct list fetches;     /* struct fetch.by_transfer */
    unsigned n_fetches;      /* that joined from the start: more than one share the result */
    struct client *client;   /* of the first of its fetches; NULL once they have ended */
    struct account *account; /* the requester's: a reference */
    struct rdt_ref ref;
    Rdt__Pb__Slice *slice; /* NULL: whole; own copy */
    Rdt__Pb__FetchMode mode;
    char wish_transport[65], wish_least[65], wish_group[65];
    bool meta_only;
    uint64_t self_copy_bytes; /* up to so many its client would copy into the target itself */
    char wish_memory[33], wish_device[65]; /* where its tensors shall be; "": as it comes */
    bool host_stays;
    struct target *target; /* NULL: the daemon finds memory */
    uint32_t filled_from, filled_to; /* of the object's and the target's regions, those that have their pages (region_fill.h) */
    struct device_destination *destination; /* that of several kinds, or on a device; NULL: host memory */
    bool target_is_destination;             /* it is the target */

    /* objects of several kinds of memory: transfer_subpull.c */
    struct memory_placement *placement; /* NULL: all in host memory */
    struct subpulls *subpulls;      /* it goes in such */
    struct transfer *parent;     /* it is a piece of that */
    struct list by_parent;
    uint32_t *select; /* [n_select]: a piece's tensors, of the whole's */
    uint32_t n_select;
    bool subpull_done;
    bool staged_here, staged_there; /* through host memory, as its path says */
    bool single;                    /* every chunk is of one tensor: some end is a device's memory itself */
    struct stage *stage;            /* staged_here: that; NULL: not yet */
    region_ready stage_ready;
    struct device_place *to_places; /* [target->n], for the copies */
    struct deadline stall; /* no progress; while ABORT: the grace time */
    uint64_t stall_bytes;  /* done when stall was set */
    struct transfer_record record;

    /* this node's object */
    struct object_waiter waiter;
    struct client_wake wake; /* the object has been put: served in its client's turn */
    struct object *woken;    /* held until then */
    struct object *object;   /* held and pinned during a copy */
    struct local_copy *copy; /* while it is under way */
    struct name_waiter named;
    uint64_t version; /* of the name that was asked for */

    /* what is moved */
    struct layout *source; /* the object's tensors, sliced; other node: shapes only */
    struct layout *packed; /* the stream's layout */
    uint64_t stream_bytes;
    struct region *received;         /* memory for it; NULL with a target */
    struct reservation *reservation; /* of its message, until it joins; borrowed */
    struct reservation_group *group; /* it takes part in, until its memory is judged; reservation.h */
    struct list by_group;
    uint64_t group_bytes;
    void (*on_room)(struct transfer *);
    struct chunk_plan *plan;
    struct staging staging;
    uint32_t next_chunk, chunks_done;
    uint32_t first_chunk;   /* those before are there from an earlier try */
    unsigned n_ops;         /* operations, and pool work, that may touch memory */
    struct chunk_op **chunk_ops; /* [plan->n] receives or reads under way */
    enum rdt_status failed; /* first failure of an operation */
    char failure[192];
    uint64_t asked; /* which question to the peer judges the failure: peer_session.asked; 0: none */

    /* other node */
    struct peer_session *peer;
    struct list by_peer;        /* in peer_session.pending or .incoming */
    struct peer_session *origin;   /* the node whose object it is; peer is another one while a copy there serves */
    bool joinable;              /* may take part in a question */
    bool keeps;                 /* of a snapshot it makes a copy for everybody here */
    bool no_redirect;           /* it has come back from a copy, or wants a certain path */
    bool merged;                /* its fetches take part in another one: it leaves no record */
    struct coalesced *coalesced;  /* until it is answered; NULL: goes alone */
    struct deadline turn;       /* QUEUED: the one before it has ended; at a copy: patience with it */
    struct deadline unwanted;   /* set when the last other node has left its copy */
    int64_t patience_ns;        /* at a copy */
    struct replica *replica;    /* that it fills: a reference; NULL: none */
    struct broadcast_member *member;          /* it is this node's part of a broadcast (transfer_broadcast_member.c); NULL: it is not */
    bool collective;              /* ... and its chunks come by the transport's own broadcast */
    uint64_t chunk_bytes;       /* it must be cut so; 0: as this daemon is configured */
    bool from_copy;             /* a copy here serves it, as if it were an object of this node */
    struct peer_transport *connection; /* referenced while chunks are posted */
    struct list by_connection;
    bool one_sided, have_meta;
    bool fell_back;                 /* and is counted */
    bool contiguous;                /* at the owner, from the answer */
    char preferred[65], memory[65]; /* likewise */
    char producer[65];              /* likewise: a client's name; "": it is gone */
    const uint8_t *metadata; /* the object's, or own_metadata */
    size_t metadata_bytes;
    uint8_t *own_metadata; /* that came from another node: its bytes are charged to the account; NULL: none */
    uint8_t *inline_data;
    bool is_inline;
    struct layout *remote;              /* one-sided: where the tensors lie at the owner, regions by index into keys */
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
    uint64_t message; /* client->n_fetch_messages when it came; 0: each answer brings its own fds */
    bool cow;     /* memory that several read is to be mapped privately */
    bool counted; /* it took part in another one's transfer: once is enough */
    bool merged;  /* it took part in another one's transfer: the name's version is its own */
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

/* The daemon stops and takes no more puts: what waits for one fails now with SHUTTING_DOWN. */
void transfers_refuse_parked(struct transfers *transfers);

/* Starts one item of a FETCH for the client. `twin` is an earlier transfer of the same message that the item may join, found by the
 * caller with fetch_joinable; NULL: none. *transfer_p is what the caller must transfer_go with; NULL: it joined one that goes already.
 * On error nothing was started: the caller answers. */
enum rdt_status fetch_start(struct transfers *transfers, struct client *client, const Rdt__Pb__Fetch *message,
                            const Rdt__Pb__FetchItem *item, struct transfer *twin, struct transfer **transfer_p,
                            struct rdt_error *err);
bool fetch_joinable(const Rdt__Pb__Fetch *message, const Rdt__Pb__FetchItem *a, const Rdt__Pb__FetchItem *b);

/* Goes on with what fetch_start made: after all items of the message were started. May end it at once. */
void transfer_go(struct transfer *transfer);

/* Ends a fetch with an error now; its transfer too if nobody else waits for it. */
void fetch_fail(struct fetch *fetch, const struct rdt_error *err);

/* The client's end: its fetches are dropped without an answer. false: the time was over, call again. */
bool transfers_client_gone(struct transfers *transfers, struct client *client, uint64_t until_ns);

/* Sends the FETCH_DONE of an error for a fetch that was never started. */
void fetch_answer_error(struct client *client, uint64_t handle, const struct rdt_error *err);

/* ---- peers: called by the daemon from peer.h's callbacks ---- */
void transfers_peer_up(struct transfers *transfers, struct peer *peer);
void transfers_peer_merged(struct transfers *transfers, struct peer *from, struct peer *into);
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
