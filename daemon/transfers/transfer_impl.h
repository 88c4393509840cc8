/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the room of transfers: the order of its files, and the core of a transfer.
 *
 * The files, from the top down. A file calls files of its own row and of the rows below. It reaches the rows
 * above only by a table: each transfer has the table of its kind (struct transfer_kind), and transfers_init
 * gives the other tables (-> table: the rows that it calls). check-layers compares this drawing with the objects.
 * The files of pull and serve lie in folders of these names.
 *
 *   room         transfers, transfer_peer > broadcast > fetch
 *   pull         pull > pull_replica > pull_delta > pull_ask > pull_move > subpull > pull_path > pull_staging
 *   serve        serve_pull > serve_answer > serve_send > serve_pace > serve
 *   local        transfer_local > transfer_local_copy > staged_copy
 *   ticket       transfer_ticket                                    -> transfer_ticket_events: pull, serve
 *   result       transfer_result
 *   core         transfer                                                    -> transfer_kind: local, pull
 *   replicas     replica > replica_pulls, replica_directory, coalescer                   -> replica_events: pull, serve
 *   connections  transfer_group > peer_transport > remote              -> connection_events: pull, serve
 *   basis        transfer_record, transfer_destination > chunk_op, reservation > fanout
 *
 * `serve` is the owner's side of a pull, `pull` the reader's. A pull that starts again goes back from moving to asking. It
 * does so by the table too: when its last operation has ended, the core calls `settled` of its kind. */
#ifndef DAEMON_TRANSFER_IMPL_H
#define DAEMON_TRANSFER_IMPL_H

#include "daemon/transfers/pull/pull.h"
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

/* With whom a fetch may share what comes from another node, if it is a snapshot. */
enum fetch_sharing {
    SHARES_NOTHING,
    SHARES_REPLICA, /* it becomes a replica on this node */
    SHARES_REQUEST, /* and other fetches may join before PULL is sent, whatever it is (coalescer.h) */
};

#define MAX_READER_TENSORS 64 /* The layout of an object that its reader copies travels in the answer. */

/* What the reader asks for. A sub-pull takes most of it over from its parent. */
struct fetch_wish {
    enum fetch_sharing sharing;
    Rdt__Pb__Slice *slice; /* owned; NULL: the whole object */
    Rdt__Pb__FetchMode mode;
    bool meta_only;
    char transport[65], least[65], group[65]; /* "": any path */
    char memory[33], device[65];              /* where the reader wants the tensors; "": where they are */
    bool host_stays;                          /* only tensors on devices move to `memory` */
    uint64_t self_copy_bytes;                 /* the client copies up to this many bytes into the targets itself */
    bool copies_on_devices;                   /* it copies within a device itself */
};

/* The descriptors of an object of many regions, which are opened in slices before the answers (transfer_local.c). */
struct local_opening {
    struct slice slice;
    struct transfer *transfer;
    enum path_kind how;
    uint64_t charged;   /* to the reader, until the queue of its answers charges them */
    uint32_t n, next;   /* n: of all answers, those of one object behind the other */
    uint32_t n_regions; /* of the object */
    int fds[];          /* [n]; -1: the reader has the region mapped, or an answer has taken it */
};

/* The part of a transfer that only a fetch of an object on this node uses: an object of this node's clients, or a replica of
 * another node's snapshot. */
struct local_fetch {
    struct object_waiter waiter;   /* PARKED: called when the object is put */
    struct name_waiter named;      /* PARKED: called when a newer version of the name is published */
    struct name_seeker seeker;     /* PARKED: called when the name is found on another node */
    struct client_wake wake;       /* the wait has ended: the fetch goes on in its client's slice of the loop */
    struct object *woken;          /* the object that ended the wait; held until `wake` has run */
    struct object *object;         /* held and pinned during a copy */
    struct local_copy *copy;       /* the copy that is running, or NULL */
    struct local_opening *opening; /* NULL: nothing was opened before the answers */
    bool checks;                   /* PARKED: the object is there, and its stored bytes are being checked */
    bool from_replica;             /* the object is a replica of another node's snapshot */
    bool pickles_trusted;          /* as in FETCH_DONE, of that replica */
};

/* How the fetches of a transfer are answered: those that the first slice of the loop does not reach, in later ones. The
 * transfer ends meanwhile, and only its memory stays until the last of them has its answer. */
struct answers {
    struct slice slice;
    void (*one)(struct fetch *); /* answers the fetch and frees it; NULL: the transfer goes on */
    struct object *object;       /* what the answers borrow from, held; NULL: nothing */
    struct layout *layout;       /* of the object that they share */
    enum path_kind how;
    bool notice; /* the next answer says that the object may still be written */
    bool pickles_trusted;
    bool snapshot; /* the object never changes */
    uint64_t bytes_moved;
    struct rdt_error *why; /* owned; of fetches that have failed */
};

/* The metadata of the object. */
struct metadata {
    const uint8_t *bytes; /* borrowed from the object, or `own` */
    size_t n_bytes;
    uint8_t *own;       /* what came from another node; charged to the account */
    uint32_t box_bytes; /* as in struct object */
};

/* What a transfer moves, where that goes, and what is under way. */
struct move {
    struct layout *source; /* the tensors of the object, sliced; of another node's object the shapes only */
    struct layout *packed; /* the layout of the tensors in the byte stream; may be `source` */
    uint64_t stream_bytes;
    struct target *target; /* NULL: the daemon allocates memory */
    uint32_t filled_to;    /* how many regions of the target have all their pages, or are charged for them (region_fill.h) */
    struct device_destination *destination; /* memory of several kinds, or on a device; NULL: host memory */
    bool target_is_destination;             /* `destination` has become `target` */
    struct region *received;                /* memory for the stream; NULL with a target */
    const uint8_t *inline_data;             /* the bytes themselves, if they travel in the answer */
    uint8_t *own_inline;                    /* the memory of inline_data, unless the object's; owned */
    bool is_inline;
    bool reader_writes; /* with is_inline and a target: the client copies the bytes of its answer there */
    struct reservation_item reserve;
    unsigned n_ops; /* operations and pool work that may touch memory */
};

/* One move of bytes, which one or more fetches wait for. What it needs beside that depends on its kind. */
struct transfer {
    struct transfers *transfers;
    const struct transfer_kind *kind; /* what depends on where the bytes come from */
    struct sm sm;                     /* enum transfer_state */
    uint64_t id;
    struct transfer_record record;
    struct rdt_ref ref;
    uint64_t version;        /* of the published name, if the ref is one */
    struct account *account; /* of the requester: a reference */
    struct list fetches;     /* struct fetch.by_transfer; ENDED: those that are not answered yet */
    unsigned n_fetches;      /* fetches that have joined since the start; if more than one, they share the result */
    struct client *client;   /* the client of its first fetch of a client; NULL: no client waits */
    struct fetch_wish wish;
    bool merged; /* its fetches have joined another transfer: it leaves no record */
    struct metadata metadata;
    struct move move;
    struct answers answers;
    /* By kind->pulls. It is of one kind at a time: transfer_become. */
    union {
        struct local_fetch local;
        struct pull pull;
    };
};
_Static_assert(sizeof(struct pull) >= sizeof(struct local_fetch), "transfer_become clears the larger one");

/* Whether a fetch has joined the transfer of another one. counts->fetches_joined counts it once. With MERGED its version of a
 * name is its own, since its transfer may be about the object alone.
 *
 *   ALONE, JOINED (one that waits for the same name) --its transfer ends in another one--> MERGED
 */
enum fetch_joined { FETCH_ALONE, FETCH_JOINED, FETCH_MERGED };

/* One item of a client's FETCH message, or a fetch of the node itself: it waits for a transfer until it is answered. */
struct fetch {
    struct client *client; /* NULL: it is the node's, and is answered by on_done */
    void (*on_done)(void *arg, const struct rdt_error *err);
    void *arg;
    uint64_t handle;
    struct transfer *transfer;
    struct list by_transfer;
    struct deadline deadline;
    uint64_t message; /* client->transfers.n_fetch_messages of its message; 0: each answer brings its own fds */
    bool cow;         /* memory that several fetches share is to be mapped privately */
    bool no_wait;     /* the client does not wait for a put */
    bool extended;    /* with no_wait: its deadline has passed once */
    enum fetch_joined joined;
    uint64_t version; /* of the name, with FETCH_MERGED */
};

/* ---- kinds of transfers ---- */

/* What depends on where a transfer's bytes come from. The core (transfer.c) reaches the kinds only by this table:
 *
 *   local    a fetch of an object, or of a replica, on this node          transfer_local.c
 *   pull     a fetch from another node                                    pull.c
 *   sub-pull the part of a pull that moves between two kinds of memory    pull.c
 */
struct transfer_kind {
    bool pulls;                          /* the bytes come from another node: the transfer has `pull`, otherwise `local` */
    const struct transfer_kind *subpull; /* the kind of its sub-pulls; NULL: it has none */
    void (*init)(struct transfer *);     /* of `pull` or `local`, which is all zero */
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
    /* Whether pickles of the object may be loaded, as in FETCH_DONE. Asked when the fetches are answered. */
    bool (*pickles_trusted)(const struct transfer *);
    /* Whether the transfer goes on although no fetch waits for it. NULL: never. */
    bool (*wanted)(const struct transfer *);
    /* A pull whose answer has come, and was read. Returns true if the transfer needs no bytes, was sent
     * elsewhere, or has ended. NULL: false. */
    bool (*answered)(struct transfer *, const Rdt__Pb__PullMeta *meta);
    /* A pull whose bytes are all there and whose fetches have been answered; it ends next. NULL: nothing is
     * to be done. */
    void (*complete)(struct transfer *);
};
extern const struct transfer_kind transfer_local_kind, transfer_pull_kind, transfer_subpull_kind;

/* Client NULL: it belongs to no client. NULL: no memory. */
struct transfer *transfer_new(struct transfers *transfers, const struct transfer_kind *kind, struct client *client,
                              struct account *account, const struct rdt_ref *ref);
/* Turns it into one of another kind: a pull that a replica here serves after all becomes local, and a local transfer that waits
 * for a name becomes a pull when the name is found on another node. What only the old kind has is given back. */
void transfer_become(struct transfer *transfer, const struct transfer_kind *kind);
void transfer_set_state(struct transfer *transfer, enum transfer_state state);
void transfer_fail(struct transfer *transfer, enum rdt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void transfer_fail_err(struct transfer *transfer, const struct rdt_error *err);
void transfer_abort(struct transfer *transfer); /* no fetch waits any more: stops the operations, then ends it */
void transfer_end(struct transfer *transfer);   /* nothing touches its memory: frees it, now or when all fetches are answered */
void transfer_free_layouts(struct transfer *transfer);
void transfer_free_metadata(struct transfer *transfer);

/* Answers its fetches with `one`: a few, or as many as one slice of the loop allows. transfer_end, which the caller calls next,
 * sees to the others. */
void transfer_answer(struct transfer *transfer, void (*one)(struct fetch *));

/* Call when one operation of the transfer has ended. Returns true if the transfer is being aborted or rewound,
 * which this function goes on with: the caller must not touch the transfer any more. */
bool transfer_op_ended(struct transfer *transfer);
void transfer_settle(struct transfer *transfer); /* ABORT, REWIND: calls `settled` of its kind if no operation is left */

/* Allocates transfer->move.received: cached memory of the client, or new memory (RDT_AGAIN: on_ready is called
 * later with the transfer). Memory that several fetches share, or `shared` by a replica, belongs to no
 * client. */
enum rdt_status transfer_reserve(struct transfer *transfer, bool shared, region_ready on_ready, struct rdt_error *err);

/* ---- fetches on this node ---- */

/* transfer_local.c waits until the object has been put or the name published, and then chooses how the reader gets the
 * tensors: by mapping the object's memory, by the bytes in the answer, or by a copy, which transfer_local_copy.c makes.
 *
 * Serves the transfer from the object, which the caller holds. Answers its fetches and ends it, or starts a copy. */
void transfer_local_serve(struct transfer *transfer, struct object *object);

/* The transfer, which has not begun, is of that object, wherever its ref may lead. */
void transfer_local_hold(struct transfer *transfer, struct object *object, bool pickles_trusted);

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

/* Decides where each tensor of transfer->move.source goes. from[i] is its device on this node (NULL: host
 * memory); with `from` NULL the object is on another node, and transfer->pull.placement says where. Creates
 * transfer->move.destination if a tensor goes to a device, or if `always` is set, unless the reader gave targets.
 * *elsewhere_p: some tensor must move to other memory. */
enum rdt_status destination_plan(struct transfer *transfer, struct memory_device *const *from, bool always, bool *elsewhere_p,
                                 struct rdt_error *err);

/* Allocates the memory of transfer->move.destination, which becomes transfer->move.target. AGAIN: on_ready is called
 * with a region for destination_take, and then this function must be called again. */
enum rdt_status destination_reserve(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);
void destination_take(struct transfer *transfer, struct region *region); /* NULL is fine */
void destination_free(struct transfer *transfer);

/* Each of these answers every fetch of the transfer; the caller ends the transfer next (transfer_answer). With PATH_COPY
 * the clients copy from the object themselves. */
void transfer_deliver_object(struct transfer *transfer, struct object *object, struct layout *layout, enum path_kind how);
void transfer_deliver_received(struct transfer *transfer); /* the result is in `received`, `target` or inline_data */
void transfer_deliver_meta(struct transfer *transfer);

/* Points the transfer to the object's metadata, and holds the object until the fetches are answered. Once for a transfer. */
void transfer_use_metadata(struct transfer *transfer, struct object *object);

/* Gives the fetch its answer, if its transfer answers its fetches already. */
bool fetch_answer_now(struct fetch *fetch);
void fetch_detach(struct fetch *fetch);    /* frees a fetch that was answered or whose client has ended */
void fetch_done_here(struct fetch *fetch); /* answers a fetch of the node itself, and frees it: there is nothing to hand over */
void transfer_find_client(struct transfer *transfer); /* sets transfer->client */

/* The account whose threads must copy into the target, because its client can hold them up (region_may_wait). NULL, also for a
 * NULL target: any thread may. */
struct account *target_slow_owner(const struct target *target);

/* Whether some of the target is imported host memory, which no transport writes (imported.h). NULL is fine. */
bool target_is_imported(const struct target *target);

/* SYSTEM: memory of the target is missing. NULL is fine. */
enum rdt_status target_check(const struct target *target, struct rdt_error *err);

#endif
