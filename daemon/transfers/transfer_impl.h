/* Private to the room of transfers: what its files share.
 *
 * The files from the lowest layer up; a file calls files of its own layer and below, and reaches those above by a table or a callback:
 *
 *   parts      transfer_record, transfer_destination, transfer_staging, reservation
 *   links      peer_transport, transfer_group            -> connection_events
 *   core       transfer, transfer_result                 -> transfer_kind
 *   replicas   replica, replica_directory, coalescer
 *   local      transfer_local, transfer_local_copy
 *   order      transfer_order
 *   serve      serve, serve_answer, serve_send           the owner's side of a pull
 *   pull       transfer_in, _ask, _way, _move, _back, transfer_subpull, transfer_replica    the reader's side
 *   broadcast  transfer_broadcast, transfer_broadcast_move, transfer_broadcast_member
 *   top        fetch, transfer_peer
 *
 * replicas, order, serve, pull and broadcast still call each other by name in places. */
#ifndef DAEMON_TRANSFER_IMPL_H
#define DAEMON_TRANSFER_IMPL_H

#include "daemon/memory/device_copy.h"
#include "daemon/transfers/transfer.h"

/* ---- what transfers know of one peer; peer->session points to it ---- */

struct peer_session {
    struct list link; /* in transfers->sessions */
    struct transfers *transfers;
    struct peer *peer;
    struct list pending;    /* struct transfer.by_peer: in state LINK or QUEUED */
    struct list incoming;   /* struct transfer.by_peer: in state ASKED or later */
    struct map serves;    /* the reader's number of its pull -> struct serve */
    struct list replica_entries; /* struct replica_entry.by_node: replicas of our objects on that node */
    struct list lost_entries; /* the same, after the link was lost */
    struct list transports; /* struct peer_transport.link */
    struct list in_groups;  /* struct peer_transport.link: sides of groups with that node */
    struct list parts;      /* struct broadcast_member.link: this node's parts of its broadcasts */
    unsigned n_parts;
    unsigned n_in, n_out;   /* active transfers from and to that node */
    unsigned n_replicas;    /* replicas here of its objects */
    uint64_t bytes_in, bytes_out;
    uint64_t fell_back;     /* transfers from that node by a slower transport than both nodes have */
    char fell_back_to[140]; /* what was logged last about that: "stream instead of ucx" */
    uint64_t asked;         /* number of the last peer_ask */
    bool answer_due;        /* the peer has not answered it yet */
};

/* A failed operation may be the first sign that the whole node is lost. The transfer has noted the failure (transfer->failed). It ends with that
 * failure when the peer has answered a ping, or with PEER_LOST if the link goes down instead. */
void peer_session_doubt(struct transfer *transfer);

/* Sends by peer_send. SHUTTING_DOWN while the daemon closes its transfers, since the peer may not exist any more. */
enum rdt_status peer_session_send(struct peer_session *session, enum rdt_peer_message type, const ProtobufCMessage *message,
                          struct rdt_error *err);

/* Finds or creates the session of a peer. NULL: no memory. */
struct peer_session *peer_session_get(struct transfers *transfers, struct peer *peer);

/* What a connection tells its users. The connections (peer_transport.c, transfer_group.c) know none of them: transfers_init gives them this table,
 * which transfer_peer.c fills in. Each callback may end transfers and close connections. */
struct connection_events {
    void (*on_connected)(struct peer_transport *pt); /* it is connected */
    void (*on_refused)(struct peer_transport *pt);   /* the other node does not want it: pt->remote_why_not */
    void (*on_broken)(struct peer_transport *pt);    /* the operations on it are about to end: pt->broken */
    void (*on_closed)(struct peer_transport *pt);    /* all operations on it have ended: pt->broken */
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
    struct group *group;   /* it is that node's side of this group, whose epoch is its own; NULL: a connection, or the group is gone */
    struct list by_group;  /* in group->vias */
    uint32_t rank_here, rank_there;
    char broken[192];      /* why it was taken down last; of a connection: since it was connected */
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
    struct list users_in;  /* struct transfer.by_connection */
    struct list users_out; /* struct serve.by_connection */
    struct list sending;   /* struct serve.in_turn: chunks left to post */
    unsigned sends_in_flight;
    bool pumping;
};

void peer_transports_up(struct peer_session *session);   /* the link is up: offer every transport */
void peer_transports_down(struct peer_session *session); /* it is down: take all connections down */
bool peer_transports_closed(const struct peer_session *session);
void transfers_check_closed(struct transfers *transfers); /* a connection has closed */
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
struct peer_transport *transfer_group_connection(struct peer_session *session, struct group *group, const struct group_rank *here,
                                          const struct group_rank *there);

/* Between the ranks of the memory that it moves, its path being by that group. NULL: no memory. */
struct peer_transport *transfer_group_side(const struct transfer *transfer, struct group *group);

/* What this group transport could do for the transfer, for path_choose: by the first group, of those it wants, that its reader and the
 * object's producer share. The texts lie in why_p. */
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
void transfer_groups_free(struct peer_session *session);

/* There is a group of this transport, or what moved in one has not ended yet: BUSY, naming it. Else nothing is left of any. */
bool transfer_groups_use(const struct transfers *transfers, const struct transport *transport, struct rdt_error *err);

/* ---- chunks ---- */

struct chunk_op {
    struct plugin_op base;
    struct transfer *in; /* a receive or read of this transfer, or */
    struct serve *out;   /* a send of this one; the other is NULL */
    uint32_t chunk;
    uint8_t *staging; /* NULL: the operation moves the chunk from or to its tensors directly */
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
enum serve_state {
    SERVE_PARKED,
    SERVE_OFFERED,
    SERVE_PREPARE,
    SERVE_TURN,
    SERVE_SENDING,
    SERVE_ABORT,
    SERVE_ENDED
};

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
    struct deadline deadline;             /* the reader's; while TURN: how long the reader may stay silent; while ABORT: the grace time */
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
    bool turns;            /* the reader's operations stand in ordered queues */
    struct broadcast *broadcast; /* SENDING: the reader gets its bytes by this broadcast (transfer_broadcast.h); NULL: by sends */
    bool collective;               /* the broadcast is the transport's own */
    uint64_t broadcast_number;   /* the broadcast that the reader takes part in; 0: none */
    bool gathering;        /* with turns: a chunk is being gathered, and later chunks wait for it */
    bool posting;          /* with turns: sends are being posted */
    bool reader_done;      /* one-sided: the reader has finished */
    struct layout *expect; /* PULL carried a start: the layout that the reader expects; NULL: PULL_START will come */
    uint64_t expect_bytes; /* charged for a layout that came as runs */
    char start_transport[65];
    uint64_t start_chunk_bytes;
    uint32_t start_epoch;
    struct transfer_record record;
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
void serve_answer_error(struct peer_session *session, uint64_t number, const struct rdt_error *err); /* for a pull without a struct serve */
void serve_go_on(struct serve *out); /* more of the replica may have arrived */
void serve_set_state(struct serve *out, enum serve_state state);
enum rdt_status serve_map(struct serve *out, struct rdt_error *err);         /* maps the object's regions into `bases` */
enum rdt_status serve_check(const struct serve *out, struct rdt_error *err); /* SYSTEM: memory that was read is missing */
void serve_end(struct serve *out);
void serve_stop(struct serve *out);   /* sends no more chunks; it ends when nothing touches its memory */
void serve_settle(struct serve *out); /* ABORT: one operation has ended; the last one ends it */
void serve_fail(struct serve *out, const struct rdt_error *err); /* tells the reader and stops */
void serve_link_down(struct peer_session *session);
void serve_shut_down(struct transfers *transfers, const struct rdt_error *why); /* tells each reader */
void serve_refuse_parked(struct transfers *transfers);                          /* there will be no more puts */
void serve_pump(struct peer_transport *pt);                                     /* posts chunks of all serves on the connection, in turn */
void serve_connection_closed(struct peer_transport *pt);                               /* every serve on the connection stops */

/* ---- the reader's side ---- */

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
    /* Nobody waits any more, and the transfer has begun to use memory (ASKED and later). Moves it to ABORT; it ends when its operations have. */
    void (*abort)(struct transfer *);
    /* The transfer has failed. Returns true if the kind has dealt with that: the transfer goes on another way, or was ended. NULL: never. */
    bool (*recover)(struct transfer *, const struct rdt_error *err);
    /* Gives back everything that belongs to the kind alone. Called once, when no operation is left. */
    void (*release)(struct transfer *);
};
extern const struct transfer_kind transfer_local_kind, transfer_pull_kind, transfer_subpull_kind, transfer_member_kind;

void transfer_pull_release(struct transfer *transfer); /* the release of every kind that pulls */

/* A pull that a replica on this node serves after all. */
void transfer_become_local(struct transfer *transfer);

/* client NULL: it belongs to no client. NULL: no memory. */
struct transfer *transfer_new(struct transfers *transfers, const struct transfer_kind *kind, struct client *client,
                              struct account *account, const struct rdt_ref *ref);
void transfer_set_state(struct transfer *transfer, enum transfer_state state);
void transfer_fail(struct transfer *transfer, enum rdt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void transfer_fail_err(struct transfer *transfer, const struct rdt_error *err);
void transfer_abort(struct transfer *transfer); /* no fetch waits any more: stops the operations, then ends it */
void transfer_end(struct transfer *transfer);   /* nothing touches its memory: frees it */

/* Allocates transfer->received: cached memory of the client, or new memory (RDT_AGAIN: on_ready is called later with the transfer). */
enum rdt_status transfer_reserve(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);

/* transfer_plan cuts the stream into chunks and finds how many bytes must be staged (staging.need). transfer_reserve_staging allocates them
 * (RDT_AGAIN: on_ready is called later with the transfer); transfer_take_staging takes them chunk by chunk. Freed with the transfer. */
enum rdt_status transfer_plan(struct transfer *transfer, struct rdt_error *err);
bool transfer_chunk_in_place(const struct transfer *transfer, uint32_t index, struct region **region_p, uint64_t *offset_p);
bool transfer_staging_is_little(const struct transfer *transfer);
enum rdt_status transfer_reserve_staging(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);
uint8_t *transfer_take_staging(struct transfer *transfer, uint64_t bytes);
void transfer_free_staging(struct transfer *transfer);

/* ---- on devices (transfer_destination.c) ---- */

bool client_maps(const struct client *client, const char *kind);

/* Whether the memory kind and device that the reader wishes exist here and the reader can map them. */
enum rdt_status destination_check_wish(const struct transfer *transfer, struct rdt_error *err);

/* Decides where each tensor of transfer->source shall be. from[i] is its device on this node (NULL: host memory); with `from` NULL the object is on
 * another node, and transfer->placement says where. Creates transfer->destination if a tensor goes to a device, or if `always` is set, unless the
 * reader gave targets. *elsewhere_p: some tensor must move to other memory. */
enum rdt_status destination_plan(struct transfer *transfer, struct memory_device *const *from, bool always, bool *elsewhere_p,
                             struct rdt_error *err);

/* Allocates the memory of transfer->destination, which becomes transfer->target. AGAIN: on_ready is called with a region for destination_take, and
 * then this function must be called again. */
enum rdt_status destination_reserve(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);
void destination_take(struct transfer *transfer, struct region *region); /* NULL is fine */
void destination_free(struct transfer *transfer);

/* ---- objects of several kinds of memory (transfer_subpull.c) ---- */

enum rdt_status subpulls_read_places(struct transfer *transfer, const Rdt__Pb__PullMeta *meta, struct rdt_error *err);

/* Whether tensors shall be on devices here; whether the answer, which has come, makes sub-pulls necessary. */
bool subpulls_wanted_here(const struct transfer *transfer);
bool subpulls_needed(const struct transfer *transfer);
void subpulls_begin(struct transfer *whole);                              /* in state RESERVE */
void subpulls_abort(struct transfer *whole);
void subpulls_free(struct transfer *transfer);

/* The memory kind of a sub-pull's targets; "host" for every other transfer. */
const char *transfer_target_memory(const struct transfer *transfer);

/* The device that a sub-pull moves from (on the other node) and to (on this node); "": host memory. */
const char *transfer_source_device(const struct transfer *transfer);
const char *transfer_target_device(const struct transfer *transfer);

/* Reserves pinned slots for a sub-pull that goes through host memory here. AGAIN: on_ready is called later. */
enum rdt_status transfer_reserve_stage(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);
bool transfer_has_slot(const struct transfer *transfer);
struct device_part chunk_part(const struct chunk *chunk, const struct layout *packed);

/* Each of these answers every fetch of the transfer; the caller ends the transfer afterwards. With PATH_COPY the clients copy from the object
 * themselves. */
void transfer_deliver_object(struct transfer *transfer, struct object *object, struct layout *layout, enum path_kind how);
void transfer_deliver_received(struct transfer *transfer); /* the result is in `received`, `target` or inline_data */
void transfer_deliver_meta(struct transfer *transfer);
void fetch_detach(struct fetch *fetch); /* frees a fetch that was answered or whose client has ended */

/* SYSTEM: memory of the target is missing. NULL is fine. */
enum rdt_status target_check(const struct target *target, struct rdt_error *err);

void transfer_local_abort(struct transfer *transfer); /* transfer_local_copy.c */
void transfer_local_serve(struct transfer *transfer, struct object *object);
void transfer_local_metadata(struct transfer *transfer, const struct object *object); /* borrowed from the object, which must stay held */
void transfer_local_copy(struct transfer *transfer, struct object *object); /* pins the object, then allocates memory and copies */

enum rdt_status transfer_in_start(struct transfer *transfer, struct rdt_error *err);
void transfer_in_ask(struct transfer *transfer); /* sends PULL: the link is up, and no other transfer asks for the same */
void transfer_in_go_on_after_coalesced(struct transfer *transfer); /* QUEUED: the transfer before it was answered, or will not be */
void transfer_in_leave_coalesced(struct transfer *transfer);
void transfer_in_send_abort(struct transfer *transfer);
void transfer_in_pull_from(struct transfer *transfer, struct peer_session *session); /* asks that node, as soon as its link is up */
enum rdt_status transfer_in_read_meta(struct transfer *transfer, const Rdt__Pb__PullMeta *meta, struct rdt_error *err);
void transfer_in_leave_peer(struct transfer *transfer);
void transfer_in_free_metadata(struct transfer *transfer);

/* Choosing the path (transfer_way.c), then reserving memory. `meta` is the answer that has just come; NULL: it came earlier. */
enum rdt_status transfer_in_choose(struct transfer *transfer, bool has_inline, struct rdt_error *err);
bool transfer_in_path_is_coming(struct transfer *transfer); /* whether a path is missing only because a connection is being rebuilt */
void transfer_in_take_path(struct transfer *transfer);      /* uses the path that was chosen */
void transfer_in_note_fall_back(struct transfer *transfer); /* counts and logs once that the chosen path is slower than the best */
void transfer_in_find_path(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

/* Starting again (transfer_back.c). */
void transfer_in_choose_again(struct transfer *transfer);  /* the owner did not start the early receives: chooses again */
void transfer_in_forget_answer(struct transfer *transfer); /* drops the owner's answer; reserved memory stays */
void transfer_in_go_back(struct transfer *transfer);       /* REWIND, then asks again when no operation is left */
bool transfer_in_ask_anew(struct transfer *transfer);      /* the same under a new id; false: no memory, and nothing has changed */
void transfer_in_rewound(struct transfer *transfer);       /* REWIND: one operation has ended; the last one starts again */
void transfer_in_on_meta(struct peer_session *session, const Rdt__Pb__PullMeta *meta);
void transfer_in_on_parked(struct peer_session *session, const Rdt__Pb__PullParked *parked);
void transfer_in_on_keys(struct peer_session *session, const Rdt__Pb__PullKeys *keys);
void transfer_in_on_end(struct peer_session *session, const Rdt__Pb__PullEnd *end);
void transfer_in_abort(struct transfer *transfer); /* the abort of every kind that pulls */
void transfer_in_settle(struct transfer *transfer);  /* ABORT: one operation has ended; the last one ends it */
void transfer_in_move(struct transfer *transfer);    /* memory is reserved: posts the receives and starts the owner */
void transfer_in_early(struct transfer *transfer);   /* with targets: posts the receives before PULL is sent, where the path allows that */
void transfer_in_started(struct transfer *transfer); /* EARLY: the owner has started */
void transfer_in_receive(struct transfer *transfer); /* posts the receives, or asks for keys */
void transfer_in_ask_start(struct transfer *transfer);
void transfer_in_watch(struct transfer *transfer); /* starts the timer for progress (stall_timeout) */
void transfer_in_on_stall(struct deadline *deadline);
void transfer_in_cancel_ops(struct transfer *transfer);
void transfer_in_judge(struct transfer *transfer); /* the peer has answered: the failure that was noted ends the transfer */
void transfer_in_connection_failed(struct peer_transport *pt); /* notes pt->broken for each pull that moves by it */
void transfer_in_wait(struct transfer *transfer); /* CONNECT: waits for a connection that is being rebuilt */
void transfer_in_connected(struct transfer *transfer, const struct peer_transport *pt); /* CONNECT: the connection is there */
void transfer_in_refused(struct transfer *transfer, const struct peer_transport *pt); /* CONNECT: it will not be rebuilt: another path, or an error */

/* ---- ordered queues (transfer_order.c), for transfers with record.order ---- */

void transfers_init_turns(struct transfers *transfers);
bool order_wanted(const struct transfer *transfer, const struct peer_transport *pt); /* whether its operations stand in an ordered queue on either node */
bool order_needed(const struct serve *out, const struct peer_transport *pt);      /* the same, asked by the owner */
enum rdt_status order_in_begin(struct transfer *transfer, struct rdt_error *err);    /* before START is sent */
enum rdt_status order_out_begin(struct serve *out, struct rdt_error *err);        /* called when its memory is ready */
void order_out_on_stall(struct serve *out);                                       /* SENDING: watches that what was posted moves */
void order_receives_stand(struct transfer *transfer);                                /* all receives are posted; may end it */
void order_give(const struct transfer_record *record);                               /* all operations, or nearly all, are posted: the next transfer may post */
void order_leave(struct transfer_record *record);                                    /* no operation of it is under way */
bool order_stands_behind(const struct transfer_record *record);
void order_on_turn(struct peer_session *session, const Rdt__Pb__PullTurn *message);

/* ---- this node's part of a broadcast (transfer_broadcast_member.c), for transfers with `member` ---- */

struct group *transfer_member_group(const struct transfer *transfer);    /* the group of the broadcast; NULL: it has ended */
uint64_t transfer_member_number(const struct transfer *transfer);        /* the root's number of the broadcast; 0: no member */
void transfer_member_whole(struct transfer *transfer);                   /* the replica is complete; does nothing without a member */

/* The owner has answered. true: a replica exists here already, or there will be none; the transfer has ended or failed. */
bool transfer_member_answered(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

/* The recover operation of members. true: it ends, or goes on as an ordinary pull; false: other fetches wait for the replica and fail too. */
bool transfer_member_failed(struct transfer *transfer, const struct rdt_error *err);
enum rdt_status transfer_member_on_ask(struct peer_session *root, const Rdt__Pb__GroupBroadcast *message, struct rdt_error *err);
void transfer_member_on_over(struct peer_session *root, const Rdt__Pb__BroadcastWord *word);
void transfer_members_link_down(struct peer_session *root, const struct rdt_error *why);

/* ---- replicas (transfer_replica.c) ---- */

/* true: a replica on this node serves it, or it has joined the transfer that fills one; it may have ended. */
bool transfer_replica_serves(struct transfer *transfer);

/* The owner has answered about a snapshot. true: as above, or the transfer was redirected to another node; false: this transfer moves the bytes. */
bool transfer_replica_answered(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);
void transfer_replica_redirected(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

/* The recover operation of pulls. true: the transfer had been redirected to a replica, and asks the owner's node again. */
bool transfer_replica_comes_back(struct transfer *transfer, const struct rdt_error *why);
void transfer_replica_moved(struct transfer *transfer); /* a chunk has arrived */
void transfer_deliver_replica(struct transfer *transfer);

/* The last other node has stopped pulling the replica that it fills: ends the transfer, unless a fetch of this node waits for it. */
void transfer_unwanted(struct transfer *transfer);

/* Fills in a record that is all zero. */
void record_start(struct transfer_record *record, uint64_t id, const struct owner *requester, const struct rdt_ref *ref,
                  const char *direction, const char *state);
/* Chooses the path by path_choose and keeps a reference to the decision in the record. For an object of this node, the same query as last time gets
 * the same decision without choosing. Errors: as path_choose, NO_MEMORY. */
enum rdt_status record_decide(struct transfers *transfers, struct transfer_record *record, const struct path_query *query,
                              struct rdt_error *err);
void record_drop_decision(struct path_decision *decision); /* NULL is fine */
const struct path_candidate *record_chosen(const struct transfer_record *record); /* after record_decide has succeeded */
/* Notes how the bytes went, once. */
void record_lanes(struct transfer_record *record, const struct peer_transport *pt);
/* Moves the record into the history. */
void record_finish(struct transfers *transfers, struct transfer_record *record, const char *state, const char *error);
Rdt__Pb__Slice *slice_dup(const Rdt__Pb__Slice *slice); /* NULL for NULL; free with protobuf_c_message_free_unpacked */

#endif
