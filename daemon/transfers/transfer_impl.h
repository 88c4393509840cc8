/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the room of transfers: the order of its files, and the core of a transfer.
 *
 * The files, from the top down. A file calls files of its own row and of the rows below. It reaches the rows
 * above only by a table: each transfer has the table of its kind (struct transfer_kind), and transfers_init
 * gives the other tables (-> table: the rows that it calls). check-layers compares this drawing with the objects.
 * The files of pull, serve and broadcast, members included, lie in folders of these names.
 *
 *   room         transfers, transfer_peer, fetch > transfer_seek
 *   members      transfer_broadcast_member
 *   pull         transfer_in > _replica > _ask > _move > _subpull > _way
 *   broadcast    transfer_broadcast, transfer_broadcast_move
 *   serve        serve_pull > serve_answer > serve_send > serve_pace > serve -> serve_events: broadcast
 *   local        transfer_local > transfer_local_copy
 *   order        transfer_order                                              -> order_events: pull, serve
 *   result       transfer_result
 *   core         transfer                                                    -> transfer_kind: local, pull, members
 *   replicas     replica, replica_directory, coalescer                       -> replica_events: pull, serve
 *   connections  transfer_group > peer_transport > peer_session              -> connection_events: pull, serve
 *   parts        transfer_record, transfer_destination, transfer_staging > chunk_op, reservation > fanout
 *
 * `serve` is the owner's side of a pull, `pull` the reader's. A pull that starts again goes back from moving to asking. It
 * does so by the table too: when its last operation has ended, the core calls `settled` of its kind. */
#ifndef DAEMON_TRANSFER_IMPL_H
#define DAEMON_TRANSFER_IMPL_H

#include "daemon/transfers/pull/transfer_pull.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer.h"

struct local_copy;

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
    char memory[33], device[65];              /* where the reader wants the tensors; "": where they are */
    bool host_stays;                          /* only tensors on devices move to `memory` */
    uint64_t self_copy_bytes;                 /* the client copies up to this many bytes into the targets itself */
};

/* The part of a transfer that only a fetch of an object on this node uses: an object of this node's clients, or a replica of
 * another node's snapshot. A pull that a replica here serves after all becomes a local transfer. */
struct local_fetch {
    struct object_waiter waiter; /* PARKED: called when the object is put */
    struct name_waiter named;    /* PARKED: called when a newer version of the name is published */
    struct name_seeker seeker;   /* PARKED: called when the name is found on another node */
    struct client_wake wake;     /* the wait has ended: the fetch goes on in its client's slice of the loop */
    struct object *woken;        /* the object that ended the wait; held until `wake` has run */
    struct object *object;       /* held and pinned during a copy */
    struct local_copy *copy;     /* the copy that is running, or NULL */
    bool from_replica;           /* the object is a replica of another node's snapshot */
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
    uint32_t box_bytes; /* as in struct object */

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
    uint64_t message; /* client->transfers.n_fetch_messages of its message; 0: each answer brings its own fds */
    bool cow;         /* memory that several fetches share is to be mapped privately */
    bool no_wait;     /* the client does not wait for a put; its deadline has not passed yet */
    bool counted;     /* counted in transfers->counts->fetches_joined */
    bool merged;      /* it joined a transfer: `version` of the name is its own */
    uint64_t version;
};

/* ---- names whose node is open (transfer_seek.c) ---- */

/* Writes the node of the name into the ref, if this node knows that it is another one. */
void transfer_place(struct transfers *transfers, const struct client *client, struct rdt_ref *ref);

/* PARKED, in other states nothing: looks for the name at its homes. May fail the transfer. */
void transfer_seek(struct transfer *transfer);

/* ---- kinds of transfers ---- */

/* What depends on where a transfer's bytes come from. The core (transfer.c) reaches the kinds only by this table:
 *
 *   local    a fetch of an object, or of a replica, on this node          transfer_local.c
 *   pull     a fetch from another node                                    transfer_in.c
 *   sub-pull the part of a pull that moves between two kinds of memory    transfer_in.c
 *   member   this node's part of a broadcast                              transfer_broadcast_member.c
 */
struct transfer_kind {
    const struct transfer_kind *part; /* the kind of its sub-pulls; NULL: it has none */
    /* Begins a transfer, once; NULL: the file of the kind begins its transfers itself. May end the transfer. */
    void (*start)(struct transfer *);
    /* Nobody waits any more, and the transfer has begun to use memory (ASKED and later). Moves it to ABORT;
     * it ends when its operations have. */
    void (*abort)(struct transfer *);
    /* ABORT, REWIND: no operation touches its memory any more. Ends the transfer, or starts it again. */
    void (*settled)(struct transfer *);
    /* The transfer has failed. Returns true if the kind has dealt with that: the transfer goes on another
     * way, or was ended. NULL: never. */
    bool (*recover)(struct transfer *, const struct rdt_error *err);
    /* Gives back everything that belongs to the kind alone. Called once, when no operation is left. */
    void (*release)(struct transfer *);
    /* Whether the transfer goes on although no fetch waits for it. NULL: never. */
    bool (*wanted)(const struct transfer *);
    /* A pull whose answer has come, and was read. Returns true if the transfer needs no bytes, was sent
     * elsewhere, or has ended. NULL: false. */
    bool (*answered)(struct transfer *, const Rdt__Pb__PullMeta *meta);
    /* A pull whose bytes are all there and whose fetches have been answered; it ends next. NULL: nothing is
     * to be done. */
    void (*complete)(struct transfer *);
};
extern const struct transfer_kind transfer_local_kind, transfer_pull_kind, transfer_subpull_kind, transfer_member_kind;

/* Client NULL: it belongs to no client. NULL: no memory. */
struct transfer *transfer_new(struct transfers *transfers, const struct transfer_kind *kind, struct client *client,
                              struct account *account, const struct rdt_ref *ref);
void transfer_set_state(struct transfer *transfer, enum transfer_state state);
void transfer_fail(struct transfer *transfer, enum rdt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void transfer_fail_err(struct transfer *transfer, const struct rdt_error *err);
void transfer_abort(struct transfer *transfer); /* no fetch waits any more: stops the operations, then ends it */
void transfer_end(struct transfer *transfer);   /* nothing touches its memory: frees it */
void transfer_free_layouts(struct transfer *transfer);

/* Call when one operation of the transfer has ended. Returns true if the transfer is being aborted or rewound,
 * which this function goes on with: the caller must not touch the transfer any more. */
bool transfer_op_ended(struct transfer *transfer);
void transfer_settle(struct transfer *transfer); /* ABORT, REWIND: calls `settled` of its kind if no operation is left */

/* Allocates transfer->received: cached memory of the client, or new memory (RDT_AGAIN: on_ready is called
 * later with the transfer). Memory that several fetches share, or `shared` by a replica, belongs to no
 * client. */
enum rdt_status transfer_reserve(struct transfer *transfer, bool shared, region_ready on_ready, struct rdt_error *err);

/* ---- fetches on this node ---- */

/* transfer_local.c waits until the object has been put or the name published, and then chooses how the reader gets the
 * tensors: by mapping the object's memory, by the bytes in the answer, or by a copy, which transfer_local_copy.c makes.
 *
 * Serves the transfer from the object, which the caller holds. Answers its fetches and ends it, or starts a copy. */
void transfer_local_serve(struct transfer *transfer, struct object *object);

/* Holds and pins the object, allocates memory for the reader and copies the tensors there. Ends the transfer when that is done
 * or has failed. */
void transfer_local_copy(struct transfer *transfer, struct object *object);

/* The abort of local transfers: cancels a running copy, and ends the transfer when nothing touches its memory any more. */
void transfer_local_abort(struct transfer *transfer);

/* ---- on devices (transfer_destination.c) ---- */

bool client_maps(const struct client *client, const char *kind);
bool client_maps_device(const struct client *client, const struct memory_device *device);

/* Whether the memory kind and device that the reader wishes exist here and the reader can map them. */
enum rdt_status destination_check_wish(const struct transfer *transfer, struct rdt_error *err);

/* Decides where each tensor of transfer->source goes. from[i] is its device on this node (NULL: host
 * memory); with `from` NULL the object is on another node, and transfer->pull.placement says where. Creates
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

#endif
