/* Private to the room of transfers: what its files share.
 *
 * The files, from the top down. A file calls files of its own row and of the rows below. It reaches the rows
 * above only by a table: each transfer has the table of its kind (struct transfer_kind), and transfers_init
 * gives the other tables (-> table: the rows that it calls).
 *
 *   room         transfers, transfer_peer, fetch
 *   members      transfer_broadcast_member
 *   pull         transfer_in, _ask, _way, _move, _back, _replica, _subpull
 *   broadcast    transfer_broadcast, transfer_broadcast_move
 *   serve        serve_pull > serve_answer > serve_send > serve              -> serve_events: broadcast
 *   local        transfer_local > transfer_local_copy
 *   order        transfer_order                                              -> order_events: pull, serve
 *   result       transfer_result
 *   core         transfer                                                    -> transfer_kind: local, pull, members
 *   replicas     replica, replica_directory, coalescer                       -> replica_events: pull, serve
 *   connections  transfer_group > peer_transport > peer_session              -> connection_events: pull, serve
 *   parts        transfer_record, transfer_destination, transfer_staging, reservation
 *
 * `serve` is the owner's side of a pull, `pull` the reader's. The files of pull call each other in a circle
 * because the states of a pull do: an attempt that fails goes back from moving to asking. */
#ifndef DAEMON_TRANSFER_IMPL_H
#define DAEMON_TRANSFER_IMPL_H

#include "daemon/memory/device_copy.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer.h"
#include "daemon/transfers/transfer_local.h"
#include "daemon/transfers/transfer_pull.h"
#include "daemon/transfers/transfer_subpull.h"

/* ---- the core of a transfer ---- */

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

/* What the reader asks for. A sub-pull takes most of it over from its parent. */
struct fetch_wish {
    Rdt__Pb__Slice *slice; /* owned; NULL: the whole object */
    Rdt__Pb__FetchMode mode;
    bool meta_only;
    char transport[65], least[65], group[65]; /* "": any path */
    char memory[33], device[65];              /* where the tensors shall be; "": where they are */
    bool host_stays;                          /* only tensors on devices move to `memory` */
    uint64_t self_copy_bytes;                 /* the client copies up to this many bytes into the targets itself */
};

/* One move of bytes. The core is what every transfer has; `local`, `pull` and `subpull` belong to the kinds
 * that they name. */
struct transfer {
    struct transfers *transfers;
    const struct transfer_kind *kind; /* what depends on where the bytes come from */
    struct sm sm;                     /* enum transfer_state */
    uint64_t id;
    struct transfer_record record;
    struct rdt_ref ref;
    uint64_t version;        /* of the published name, if the ref is one */
    struct account *account; /* of the requester: a reference */
    struct list fetches;     /* struct fetch.by_transfer */
    unsigned n_fetches;      /* fetches that have joined since the start; if more than one, they share the result */
    struct client *client;   /* the client of its first fetch; NULL when all its fetches have ended */
    struct fetch_wish wish;
    bool merged;    /* its fetches have joined another transfer: it leaves no record */
    unsigned n_ops; /* operations and pool work that may touch memory */

    /* What is moved. */
    struct layout *source; /* the tensors of the object, sliced; of another node's object the shapes only */
    struct layout *packed; /* the layout of the tensors in the byte stream; may be `source` */
    uint64_t stream_bytes;
    const uint8_t *metadata; /* borrowed from the object, or pull.own_metadata */
    size_t metadata_bytes;

    /* Where it goes. */
    struct target *target; /* NULL: the daemon allocates memory */
    /* how many regions of the object and of the target have all their pages (region_fill.h) */
    uint32_t filled_from, filled_to;
    struct device_destination *destination; /* memory of several kinds, or on a device; NULL: host memory */
    bool target_is_destination;             /* `destination` has become `target` */
    struct region *received;                /* memory for the stream; NULL with a target */
    uint8_t *inline_data;                   /* the bytes themselves, if they travel in the answer */
    bool is_inline;
    struct reservation_item reserve;

    struct local_fetch local;
    struct pull pull;
    struct subpull subpull;
};

/* One item of a client's FETCH message: it waits for a transfer until it is answered. */
struct fetch {
    struct client *client;
    uint64_t handle;
    struct transfer *transfer;
    struct list by_transfer;
    struct deadline deadline;
    uint64_t message; /* client->n_fetch_messages of its message; 0: each answer brings its own fds */
    bool cow;         /* memory that several fetches share is to be mapped privately */
    bool counted;     /* counted in transfers->joined */
    bool merged;      /* it joined a transfer: `version` of the name is its own */
    uint64_t version;
};

/* ---- what transfers know of one peer; peer->session points to it ---- */

struct peer_session {
    struct list link; /* in transfers->sessions */
    struct transfers *transfers;
    struct peer *peer;
    struct list pending;         /* struct transfer.pull.by_peer: in state LINK or QUEUED */
    struct list incoming;        /* struct transfer.pull.by_peer: in state ASKED or later */
    struct map serves;           /* the reader's number of its pull -> struct serve */
    struct list replica_entries; /* struct replica_entry.by_node: replicas of our objects on that node */
    struct list lost_entries;    /* the same, after the link was lost */
    struct list transports;      /* struct peer_transport.link */
    struct list in_groups;       /* struct peer_transport.link: sides of groups with that node */
    struct list members;         /* struct broadcast_member.link: this node as a member of its broadcasts */
    unsigned n_members;
    unsigned n_in, n_out; /* active transfers from and to that node */
    unsigned n_replicas;  /* replicas here of its objects */
    uint64_t bytes_in, bytes_out;
    uint64_t fell_back;     /* transfers from that node by a slower transport than both nodes have */
    char fell_back_to[140]; /* what was logged last about that: "stream instead of ucx" */
    uint64_t asked;         /* number of the last peer_ask */
    bool answer_due;        /* the peer has not answered it yet */
};

/* Asks the peer for a sign of life by peer_ask and counts it in session->asked. One ping is under way at a
 * time: a failure that is found meanwhile needs the next one, because the node may have gone since it
 * answered. */
void peer_session_ping(struct peer_session *session);

/* A failed operation may be the first sign that the whole node is lost. The transfer has noted the failure
 * (transfer->failed). It ends with that failure when the peer has answered a ping, or with PEER_LOST if the
 * link goes down instead. */
void peer_session_doubt(struct transfer *transfer);

/* Sends by peer_send. SHUTTING_DOWN while the daemon closes its transfers, since the peer may not exist any more. */
enum rdt_status peer_session_send(struct peer_session *session, enum rdt_peer_message type, const ProtobufCMessage *message,
                                  struct rdt_error *err);

/* Finds or creates the session of a peer. NULL: no memory. */
struct peer_session *peer_session_get(struct transfers *transfers, struct peer *peer);
void peer_session_free(struct peer_session *session); /* nothing uses it any more; its peer may be gone already */

/* What a connection tells its users. The connections (peer_transport.c, transfer_group.c) know none of them:
 * transfers_init gives them this table, which transfer_peer.c fills in. Each callback may end transfers and
 * close connections. */
struct connection_events {
    void (*on_connected)(struct peer_transport *pt);  /* it is connected */
    void (*on_refused)(struct peer_transport *pt);    /* the other node does not want it: pt->remote_why_not */
    void (*on_broken)(struct peer_transport *pt);     /* the operations on it are about to end: pt->broken */
    void (*on_closed)(struct peer_transport *pt);     /* all operations on it have ended: pt->broken */
    void (*on_group_gone)(struct peer_transport *pt); /* its group is destroyed: it will not be connected again */
};
extern const struct connection_events transfers_connection_events;

/* ---- one transport to one peer ----
 *
 *   NONE --create, offer--> OFFERED --peer's offer--> CONNECTED
 *    ^                         |                         |
 *    +------- closed ------ CLOSING <---- failure, isolation, link down, the peer's newer offer
 */
enum peer_transport_state { PT_NONE, PT_OFFERED, PT_CONNECTED, PT_CLOSING };

struct peer_transport {
    struct list link; /* in session->transports, or ->in_groups */
    struct peer_session *session;
    struct group
        /* it is that node's side of this group, whose epoch is its own; NULL: a connection, or the group is
         * gone */
        *group;
    struct list by_group; /* in group->vias */
    uint32_t rank_here, rank_there;
    char broken[192]; /* why it was taken down last; of a connection: since it was connected */
    struct transport *transport;
    struct sm sm;
    struct plugin_conn conn;
    uint32_t epoch;        /* of our offer */
    uint32_t remote_epoch; /* of the offer we are connected to */
    bool remote_known;
    char remote_why_not[192]; /* "": offered */
    char remote_version[65];
    char remote_memory[128];           /* " host cuda " */
    uint8_t blob[RDT_OFFER_MAX_BYTES]; /* the peer's offer, not yet used */
    size_t blob_bytes;
    uint32_t blob_epoch;  /* 0: none */
    bool difference_told; /* the log knows that the versions differ */
    unsigned failures;    /* in a row; delays the next try */
    struct deadline retry;
    struct list users_in;  /* struct transfer.pull.by_connection */
    struct list users_out; /* struct serve.by_connection */
    struct list sending;   /* struct serve.in_turn: chunks left to post */
    unsigned sends_in_flight;
    bool pumping;
};

void peer_transports_up(struct peer_session *session);   /* the link is up: offer every transport */
void peer_transports_down(struct peer_session *session); /* it is down: take all connections down */
bool peer_transports_closed(const struct peer_session *session);
enum rdt_status peer_transport_on_offer(struct peer_session *session, const Rdt__Pb__Offer *offer, struct rdt_error *err);
struct peer_transport *peer_transport_find(struct peer_session *session, const char *name);

/* Tears the connection down because something on it cannot be stopped otherwise, or failed. */
void peer_transport_isolate(struct peer_transport *pt, const char *why);

/* Transfers move by it, wait for it, or will begin by it when there is memory. */
bool peer_transport_has_users(const struct peer_transport *pt);

/* It is not connected, and is being rebuilt. */
bool peer_transport_is_coming(const struct peer_transport *pt);

/* Why it moves no bytes to this node though it is available here: "ucx: ..."; "" if it does, or will. */
void peer_transport_why_not(const struct peer_transport *pt, char *text_p, size_t size);

/* What it could do, for path_choose. */
void peer_transport_offer_to_path(const struct peer_transport *pt, const char *source_memory, const char *target_memory,
                                  struct path_offer *offer_p);

/* ---- groups (transfer_group.c) ---- */

/* The node's side of the group. NULL: no memory. */
struct peer_transport *transfer_group_connection(struct peer_session *session, struct group *group,
                                                 const struct group_rank *here, const struct group_rank *there);

/* Between the ranks of the memory that it moves, its path being by that group. NULL: no memory. */
struct peer_transport *transfer_group_side(const struct transfer *transfer, struct group *group);

/* What this group transport could do for the transfer, for path_choose: by the first group, of those it
 * wants, that its reader and the object's producer share. The texts lie in why_p. */
void transfer_group_offer(const struct transfer *transfer, struct transport *transport, struct path_offer *offer_p,
                          char why_p[192]);
struct group *transfer_group_of(const struct transfer *transfer, const struct transport *transport, char why_p[192]);

/* It is no group's, or all nodes of the group are ready. */
bool transfer_group_is_open(const struct peer_transport *pt);
bool transfer_group_is_gone(const struct peer_transport *pt); /* it was a group's, which is destroyed */

/* Reader and producer are members of one group of the transport that the transfer asked for, on this node. */
bool transfer_group_is_local(const struct transfer *transfer, const struct object *object);

/* The reader's node may be sent chunks in this group, by the side *pt_p. */
enum rdt_status transfer_group_start(struct serve *out, const Rdt__Pb__PullStart *start, struct peer_transport **pt_p,
                                     struct rdt_error *err);

/* Tells each side of the group what the group goes through, and through connection_events its users. */
void transfer_groups_on_change(struct transfers *transfers, struct group *group, enum group_change change);

/* There is a group of this transport, or what moved in one has not ended yet: BUSY, naming it. Else nothing
 * is left of any. */
bool transfer_groups_use(const struct transfers *transfers, const struct transport *transport, struct rdt_error *err);

/* ---- chunks ---- */

struct chunk_op {
    struct plugin_op base;
    struct transfer *in; /* a receive or read of this transfer, or */
    struct serve *out;   /* a send of this one; the other is NULL */
    uint32_t chunk;
    uint8_t *staging;          /* NULL: the operation moves the chunk from or to its tensors directly */
    struct device_place place; /* the staging memory as one end of a device copy */
    struct device_copy *copy;
    struct work work;
};

/* ---- the owner's side of a pull ----
 *
 *   PARKED --put, published--> OFFERED --PULL_START--> PREPARE --memory is ready--> SENDING --last chunk--> ENDED
 *                                                         |                            ^
 *                                                         `--ordered queues--> TURN ---'
 *
 *   PREPARE, TURN, SENDING -> ABORT -> ENDED: it ends when no operation is left
 *   PARKED, OFFERED, PREPARE, TURN -> ENDED: it was answered whole, refused or given up, and nothing touches memory
 */
enum serve_state { SERVE_PARKED, SERVE_OFFERED, SERVE_PREPARE, SERVE_TICKET, SERVE_SENDING, SERVE_ABORT, SERVE_ENDED };

struct serve {
    struct transfers *transfers;
    struct peer_session *session;
    uint64_t number; /* the reader's number of this pull */
    struct sm sm;
    struct account *account; /* of the requester: a reference */
    struct rdt_ref ref;
    Rdt__Pb__Slice *slice;
    bool meta_only;
    bool keep, no_redirect; /* what the reader asked for in PULL */
    uint64_t inline_max_bytes;
    /* the reader's; while TURN: how long the reader may stay silent; while ABORT: the grace time */
    struct deadline deadline;
    struct replica *replica;              /* the replica that is served: a reference; NULL: an object of this node */
    struct list by_replica;               /* in replica->pulls, or replicas->expected */
    struct peer_transport *awaits_memory; /* OFFERED: the connection to begin with when the replica has memory */
    struct object_waiter waiter;
    struct name_waiter named;
    uint64_t version;      /* of the published name, if the ref is one */
    struct object *object; /* held; pinned from state PREPARE on */
    bool pinned;
    struct layout *source, *packed;
    uint64_t stream_bytes;
    uint32_t *select; /* [n_select] the tensors that a sub-pull asks for; NULL: all */
    uint32_t n_select;
    bool staged;                 /* its memory is on devices and goes through host memory */
    struct stage *stage;         /* with staged: the pinned slots; NULL: not yet */
    struct device_place *places; /* [n_places] with staged: the object's regions as ends of device copies */
    uint32_t credit;             /* the reader has posted receives for chunks below this number */
    struct chunk_plan *plan;
    uint8_t **bases; /* [n_regions] where the object's regions start */
    uint32_t filled; /* how many of them have all their pages (region_fill.h) */
    uint32_t next_chunk, chunks_done;
    unsigned n_ops;
    struct peer_transport *connection;
    struct list by_connection, in_turn;
    bool one_sided;
    bool ordered; /* the reader's operations stand in ordered queues */
    struct broadcast
        /* SENDING: the reader gets its bytes by this broadcast (transfer_broadcast.h); NULL: by sends */
        *broadcast;
    bool collective;           /* the broadcast is the transport's own */
    uint64_t broadcast_number; /* the broadcast that the reader takes part in; 0: none */
    bool gathering;            /* with turns: a chunk is being gathered, and later chunks wait for it */
    bool posting;              /* with turns: sends are being posted */
    bool reader_done;          /* one-sided: the reader has finished */
    /* PULL carried a start: the layout that the reader expects; NULL: PULL_START will come */
    struct layout *expect;
    uint64_t expect_bytes; /* charged for a layout that came as runs */
    char start_transport[65];
    uint64_t start_chunk_bytes;
    uint32_t start_epoch;
    struct transfer_record record;
};

/* What the owner's side of a pull tells the broadcast that the pull is part of. The table is given at start. */
struct serve_events {
    /* PULL_START names a broadcast: fills in broadcast_number and collective. */
    enum rdt_status (*on_start)(struct serve *out, const Rdt__Pb__PullStart *start, struct rdt_error *err);
    /* SENDING, for a collective broadcast: the broadcast moves the bytes, perhaps at once. */
    enum rdt_status (*on_ready)(struct serve *out, struct rdt_error *err);
    /* A pull of out->broadcast ends. */
    void (*on_end)(struct broadcast *broadcast, struct serve *out);
};

enum rdt_status serve_on_pull(struct peer_session *session, const Rdt__Pb__Pull *pull, struct rdt_error *err);
void serve_on_start(struct peer_session *session, const Rdt__Pb__PullStart *start);
void serve_on_credit(struct peer_session *session, const Rdt__Pb__PullCredit *credit);
void serve_on_end(struct peer_session *session, const Rdt__Pb__PullEnd *end);
void serve_on_abort(struct peer_session *session, const Rdt__Pb__PullAbort *abort);
bool serve_can_start(struct serve *out); /* whether the start that PULL carried fits the object */
void serve_begin(struct serve *out, struct peer_transport *pt);
void serve_answer(struct serve *out, struct object *object);
void serve_refuse(struct serve *out, const struct rdt_error *err); /* answers with an error and ends it */
void serve_answer_error(struct peer_session *session, uint64_t number,
                        const struct rdt_error *err); /* for a pull without a struct serve */
void serve_go_on(struct serve *out);                  /* more of the replica may have arrived */
void serve_send_in_order(struct serve *out);          /* TURN: its ticket was called: sends */
/* A serve of this pull, PARKED and in session->serves. The caller sets the events of `waiter` and `named`.
 * NULL: err says why. */
struct serve *serve_new(struct peer_session *session, const Rdt__Pb__Pull *pull, const struct rdt_ref *ref,
                        const struct owner *requester, struct rdt_error *err);
void serve_set_state(struct serve *out, enum serve_state state);
/* maps the object's regions into `bases` */
enum rdt_status serve_map(struct serve *out, struct rdt_error *err);
/* SYSTEM: memory that was read is missing */
enum rdt_status serve_check(const struct serve *out, struct rdt_error *err);
void serve_end(struct serve *out);
void serve_stop(struct serve *out);   /* sends no more chunks; it ends when nothing touches its memory */
void serve_settle(struct serve *out); /* ABORT: one operation has ended; the last one ends it */
void serve_fail(struct serve *out, const struct rdt_error *err); /* tells the reader and stops */
void serve_link_down(struct peer_session *session);
void serve_shut_down(struct transfers *transfers, const struct rdt_error *why); /* tells each reader */
void serve_refuse_parked(struct transfers *transfers);                          /* there will be no more puts */
void serve_pump(struct peer_transport *pt);              /* posts chunks of all serves on the connection, in turn */
void serve_connection_closed(struct peer_transport *pt); /* every serve on the connection stops */

/* ---- kinds of transfers ---- */

/* What depends on where a transfer's bytes come from. The core (transfer.c) reaches the kinds only by this table:
 *
 *   local    a fetch of an object, or of a replica, on this node          transfer_local.c
 *   pull     a fetch from another node                                    transfer_in.c
 *   sub-pull the part of a pull that moves between two kinds of memory    transfer_subpull.c
 *   member   this node's part of a broadcast                              transfer_broadcast_member.c
 */
struct transfer_kind {
    /* Begins a fetch, once; NULL: the file of the kind begins its transfers itself. May end the transfer. */
    void (*start)(struct transfer *);
    /* Nobody waits any more, and the transfer has begun to use memory (ASKED and later). Moves it to ABORT;
     * it ends when its operations have. */
    void (*abort)(struct transfer *);
    /* The transfer has failed. Returns true if the kind has dealt with that: the transfer goes on another
     * way, or was ended. NULL: never. */
    bool (*recover)(struct transfer *, const struct rdt_error *err);
    /* Gives back everything that belongs to the kind alone. Called once, when no operation is left. */
    void (*release)(struct transfer *);
    /* Whether the transfer shall go on although no fetch waits for it. NULL: never. */
    bool (*wanted)(const struct transfer *);
    /* A pull whose answer has come, and was read. Returns true if the transfer needs no bytes, was sent
     * elsewhere, or has ended. NULL: false. */
    bool (*answered)(struct transfer *, const Rdt__Pb__PullMeta *meta);
    /* A pull whose bytes are all there and whose fetches have been answered; it ends next. NULL: nothing is
     * to be done. */
    void (*complete)(struct transfer *);
};
extern const struct transfer_kind transfer_local_kind, transfer_pull_kind, transfer_subpull_kind, transfer_member_kind;

/* client NULL: it belongs to no client. NULL: no memory. */
struct transfer *transfer_new(struct transfers *transfers, const struct transfer_kind *kind, struct client *client,
                              struct account *account, const struct rdt_ref *ref);
void transfer_set_state(struct transfer *transfer, enum transfer_state state);
void transfer_fail(struct transfer *transfer, enum rdt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void transfer_fail_err(struct transfer *transfer, const struct rdt_error *err);
void transfer_abort(struct transfer *transfer); /* no fetch waits any more: stops the operations, then ends it */
void transfer_end(struct transfer *transfer);   /* nothing touches its memory: frees it */

/* Allocates transfer->received: cached memory of the client, or new memory (RDT_AGAIN: on_ready is called
 * later with the transfer). Memory that several fetches share, or `shared` by a replica, belongs to no
 * client. */
enum rdt_status transfer_reserve(struct transfer *transfer, bool shared, region_ready on_ready, struct rdt_error *err);

/* ---- on devices (transfer_destination.c) ---- */

bool client_maps(const struct client *client, const char *kind);

/* Whether the memory kind and device that the reader wishes exist here and the reader can map them. */
enum rdt_status destination_check_wish(const struct transfer *transfer, struct rdt_error *err);

/* Decides where each tensor of transfer->source shall be. from[i] is its device on this node (NULL: host
 * memory); with `from` NULL the object is on another node, and transfer->placement says where. Creates
 * transfer->destination if a tensor goes to a device, or if `always` is set, unless the reader gave targets.
 * *elsewhere_p: some tensor must move to other memory. */
enum rdt_status destination_plan(struct transfer *transfer, struct memory_device *const *from, bool always, bool *elsewhere_p,
                                 struct rdt_error *err);

/* Allocates the memory of transfer->destination, which becomes transfer->target. AGAIN: on_ready is called
 * with a region for destination_take, and then this function must be called again. */
enum rdt_status destination_reserve(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);
void destination_take(struct transfer *transfer, struct region *region); /* NULL is fine */
void destination_free(struct transfer *transfer);

/* Each of these answers every fetch of the transfer; the caller ends the transfer afterwards. With PATH_COPY
 * the clients copy from the object themselves. */
void transfer_deliver_object(struct transfer *transfer, struct object *object, struct layout *layout, enum path_kind how);
void transfer_deliver_received(struct transfer *transfer); /* the result is in `received`, `target` or inline_data */
void transfer_deliver_meta(struct transfer *transfer);

/* Points the transfer to the object's metadata, which is borrowed: the object must stay held until the
 * fetches are answered. */
void transfer_use_metadata(struct transfer *transfer, const struct object *object);
void fetch_detach(struct fetch *fetch); /* frees a fetch that was answered or whose client has ended */

/* SYSTEM: memory of the target is missing. NULL is fine. */
enum rdt_status target_check(const struct target *target, struct rdt_error *err);

/* ---- ordered queues (transfer_order.c), for transfers with record.order ---- */

/* What ordered queues tell the transfers whose tickets they hold. The table is given at start; each callback
 * may end the transfer. */
struct order_events {
    void (*receive)(struct transfer *); /* TICKET: both ends have their tickets: posts the receives */
    void (*waits)(struct transfer *);   /* the transfer waits in a queue, so it does not stand still */
    void (*send)(struct serve *);       /* SERVE_TICKET: the same on the owner's side: sends */
    void (*fail_serve)(struct serve *, const struct rdt_error *err);
};

void orders_init(struct transfers *transfers);
bool order_wanted(const struct transfer *transfer,
                  /* whether its operations stand in an ordered queue on either node */
                  const struct peer_transport *pt);
bool order_needed(const struct serve *out, const struct peer_transport *pt);      /* the same, asked by the owner */
enum rdt_status order_in_begin(struct transfer *transfer, struct rdt_error *err); /* before START is sent */
/* its memory is ready: makes its ticket */
enum rdt_status order_out_begin(struct serve *out, struct rdt_error *err);
void order_out_queue(struct serve *out);               /* SERVE_TICKET: queues the ticket; may end the serve */
void order_out_on_stall(struct serve *out);            /* SENDING: watches that what was posted moves */
void order_receives_posted(struct transfer *transfer); /* all receives are posted; may end it */
void order_pass_on(
    /* all operations, or nearly all, are posted: the next transfer may post */
    const struct transfer_record *record);
void order_leave(struct transfer_record *record); /* no operation of it is under way */
bool order_waits_behind(const struct transfer_record *record);
void order_on_message(struct peer_session *session, const Rdt__Pb__PullTurn *message);

/* Fills in a record that is all zero. */
void record_start(struct transfer_record *record, uint64_t id, const struct owner *requester, const struct rdt_ref *ref,
                  const char *direction, const char *state);
/* Chooses the path by path_choose and keeps a reference to the decision in the record. For an object of this
 * node, the same query as last time gets the same decision without choosing. Errors: as path_choose,
 * NO_MEMORY. */
enum rdt_status record_decide(struct transfers *transfers, struct transfer_record *record, const struct path_query *query,
                              struct rdt_error *err);
void record_drop_decision(struct path_decision *decision); /* NULL is fine */
/* after record_decide has succeeded */
const struct path_candidate *record_chosen(const struct transfer_record *record);
/* Notes how the bytes went, once. */
void record_lanes(struct transfer_record *record, const struct peer_transport *pt);
/* Moves the record into the history. */
void record_finish(struct transfers *transfers, struct transfer_record *record, const char *state, const char *error);
/* NULL for NULL; free with protobuf_c_message_free_unpacked */
Rdt__Pb__Slice *slice_dup(const Rdt__Pb__Slice *slice);

#endif
