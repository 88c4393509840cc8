/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls: fetches of objects that are on another node. The reader's node asks the owner's by PULL, reserves
 * memory by the answer, and receives the bytes in chunks (rdt_peer.proto draws the exchange, transfer.h the
 * states). The files, each of which uses those below it only:
 *
 *   pull.c            decides what comes next: takes answers, reserves memory, starts again, ends
 *   pull_replica.c    replicas: is served by one, is redirected to one on another node and comes back
 *   pull_delta.c      makes the bytes of a snapshot of those of an earlier one and a delta, instead of moving them
 *   pull_ask.c        asks: the peer, its link, the request coalescer, PULL, PULL under a new id
 *   pull_move.c       moves the chunks, watches their progress, stops them
 *   subpull.c         splits a pull of an object in several kinds of memory into sub-pulls
 *   pull_path.c       chooses the path
 *   pull_staging.c    cuts the stream into chunks, and memory for chunks of many small tensors
 */
#ifndef DAEMON_PULL_H
#define DAEMON_PULL_H

#include "backends/rdt_backend.h"
#include "daemon/base/deadline.h"
#include "daemon/memory/device_copy.h"
#include "daemon/memory/placing.h"
#include "daemon/memory/region.h"
#include "daemon/transports/chunk.h"
#include "daemon/transports/stage.h"
#include "rdt_peer.pb-c.h"

struct chunk_ground;
struct chunk_op;
struct account;
struct coalesced;
struct fetch;
struct making;
struct remote;
struct peer_transport;
struct replica;
struct subpulls;
struct transfer;
struct transfer_kind;

/* Memory that chunks are received into before they are scattered to many small tensors: pull_staging.c. */
struct staging {
    uint64_t need, used;
    struct region *region; /* or, for little memory: */
    uint8_t *heap;
    uint64_t heap_bytes; /* charged */
    region_ready on_ready;
};

/* What the node that was asked has said about the object.
 *
 *   NONE --PULL_ALIVE: nobody has put it yet--> PARKED --PULL_META--> ARRIVED
 *     `---------------------PULL_META----------------------------------^
 *
 *   PARKED, ARRIVED -> NONE: the pull asks again (pull_forget_answer)
 */
enum pull_answer_state { ANSWER_NONE, ANSWER_PARKED, ANSWER_ARRIVED };

struct pull_answer {
    uint8_t state;      /* enum pull_answer_state */
    bool contiguous;    /* every tensor is contiguous at the owner */
    bool snapshot;      /* the object never changes */
    char preferred[65]; /* the transport that the producer prefers; "": none */
    char memory[65];    /* the memory kind of the tensors */
    char producer[65];  /* the name of the client that put the object; "": it has ended */
};

/* The memory kinds and devices of the tensors of an object on another node. */
struct memory_placement {
    char memory[PLACING_MAX][33];
    char device[PLACING_MAX][65]; /* uuids of devices of the owner's node */
    uint32_t of[];                /* [n tensors] index into the two */
};

/* Bytes that do not have the checksum of the object, and of which some came from a replica, come once more, all of them from
 * the owner:
 *
 *   FIRST --wrong, and some came from a replica--> WRONG --the owner is asked--> AGAIN
 *     `------------------wrong, and all came from the owner-----------------------^
 *
 * Wrong bytes in AGAIN, and in the moment of reaching it by the lower line, are the owner's: the pull fails. */
enum pull_bytes { BYTES_FIRST, BYTES_WRONG, BYTES_AGAIN };

/* How a pull goes to another node's replica, and comes back to the owner (pull_replica.c). */
struct pull_redirect {
    bool refused;             /* the pull has come back from another node's replica, or wants a certain path */
    struct deadline patience; /* at another node's replica: the next beat */
    unsigned silent_beats;    /* in which that node said nothing */
    bool heard;               /* it has said something */
    bool came_back;           /* the pull has left the node `left`, and asks the owner's for another source */
    uint8_t left[16];
    unsigned n;    /* how often it has come back */
    uint8_t bytes; /* enum pull_bytes */
};

/* A transport with which memory could not be registered. From then on the pull takes it only through host memory at that end,
 * and not at all once it has failed so here too. */
struct unregistered {
    struct list link; /* in pull_registering.failed */
    char transport[65];
    char why[160];
    bool at_owner; /* the owner could not, for reads of this node */
    bool staged;   /* here: neither could the host memory that the bytes were to go through */
};

struct pull_registering {
    struct list failed; /* struct unregistered, at most two of a transport; owned */
    bool under_way;     /* the operation under way registers the targets */
};

/* Whether the bytes are made of a replica of another snapshot and a delta (pull_delta.c). It is tried once.
 *
 *   NONE --there is a note, and the base--> MAKING --all tensors are written--> MADE --wrong checksum--> LEFT
 *     `---------the bytes move-------.         `------any failure------------------------------------------^
 *                                    `-----------------------------------------------------------------> LEFT */
enum pull_delta_state { DELTA_NONE, DELTA_MAKING, DELTA_MADE, DELTA_LEFT };

/* By what the bytes come. */
struct pull_path {
    struct peer_transport *connection; /* chosen by pull_take_path; NULL: not yet */
    struct list by_connection;         /* in connection->pulls or .cut_off.pulls */
    uint32_t epoch;                    /* TICKET, MOVE: of the connection when it began to use it */
    bool one_sided;                    /* this node reads; otherwise the owner sends */
    bool staged;                       /* the bytes go through the daemon's host memory on this node */
    bool single;                       /* every chunk is of one tensor, since an end is device memory */
    struct pull_registering registering;
    char cut_off[65]; /* the transport whose connection the owner did not have: not taken again; "": none */
};

struct pull_chunks {
    struct chunk_plan *plan;
    uint32_t max_pieces;   /* of an operation (struct chunk_ground) */
    struct chunk_op **ops; /* [plan->n] receives or reads under way */
    uint8_t *unneeded;     /* where chunks go that come again though they are there; NULL: none has */
    uint32_t first;        /* chunks before it have arrived in an earlier attempt */
    uint32_t next, n_done;
    struct staging staging;
    struct memory_place *memory; /* [target->n] the targets, unless they are on devices; NULL: not yet */
    struct stage *stage;         /* of a staged path: the slots; NULL: not yet */
    region_ready stage_ready;
    struct device_place *to_places; /* [target->n] of a staged path, on devices: the targets as ends of device copies */
};

/* One-sided: what the owner's PULL_KEYS says. */
struct pull_keys {
    struct layout *layout;              /* at the owner; its regions are indexes into `keys` */
    uint8_t (*keys)[RDT_KEY_MAX_BYTES]; /* [n] */
    size_t *bytes;                      /* [n] of each key */
    size_t n;
};

struct pull_failure {
    bool is_here;           /* this node's own failure, for which no source is to blame */
    enum rdt_status status; /* the first failure of an operation of this attempt */
    char text[192];
    /* the number (remote.asked) of the ping whose answer decides about the failure; 0: none */
    uint64_t ping;
};

/* What only a sub-pull has. It is all zero in every other pull. */
struct subpull {
    struct transfer *parent; /* the pull that it belongs to, which ends later; NULL: the transfer is no sub-pull */
    struct list link;        /* in parent->pull.subpulls */
    uint32_t *select;        /* [n_select] the tensors of the parent that it moves; owned */
    uint32_t n_select;
    bool done; /* all its bytes are there */
};

/* The part of a transfer that only a pull uses, which includes sub-pulls. */
struct pull {
    struct remote *peer;   /* the node that is asked: the owner's, or one with a replica; NULL: no node is */
    struct list by_peer;   /* in peer->pending or peer->pulls */
    struct remote *origin; /* the node of the object */
    bool untrusted;        /* it has asked a node that trusted_pickles does not list */
    struct pull_answer answer;
    struct coalesced *coalesced; /* its requests, until they are answered; NULL: no other fetch can join (coalescer.h) */
    struct deadline resume;      /* QUEUED: set when the transfer before it has been answered */

    struct replica *replica;  /* the replica that it fills: a reference; NULL: none */
    struct deadline unwanted; /* set when the last other node has stopped pulling that replica */
    uint64_t broadcast;       /* it was begun by pull_for_node: the owner's number of its broadcast; 0: for a client */
    struct pull_redirect redirect;

    struct making *making; /* MAKING: what is under way; NULL: nothing is */
    uint8_t delta;         /* enum pull_delta_state */
    struct pull_path path;
    bool fell_back; /* counted in transfers->counts->fell_back */
    struct pull_chunks chunks;
    struct pull_keys keys;
    /* a node that was left while reads of its memory were under way, and the number of that pull; NULL: none */
    struct remote *read_from;
    uint64_t read_id;

    struct pull_failure failure;
    /* MOVE, TICKET, CONNECT: no progress; ABORT, REWIND: the grace time; the same after a failure */
    struct deadline stall;
    uint64_t stall_bytes; /* bytes done when `stall` was set */

    /* Of an object in several kinds of memory: subpull.c. */
    struct memory_placement *placement; /* where the tensors lie at the owner; NULL: all are in host memory */
    struct subpulls *subpulls;          /* the sub-pulls that move the object; NULL: this transfer moves all of it */
    struct subpull subpull;
};

/* ---- asking (pull_ask.c) ---- */

/* Finds the owner's node and asks it, or queues behind another transfer that asks for the same object. On
 * error nothing was started. */
enum rdt_status pull_start(struct transfer *transfer, struct rdt_error *err);

/* Asks that node as soon as its link is up. */
void pull_pull_from(struct transfer *transfer, struct remote *remote);

/* Sends PULL: the link is up, and no other transfer asks for the same. */
void pull_ask(struct transfer *transfer);

/* Tells the asked node by PULL_ABORT; does nothing if no node is asked. */
void pull_send_abort(struct transfer *transfer);

void pull_leave_peer(struct transfer *transfer); /* no node is asked any more */

/* Goes back to REWIND, from where it asks the owner's node again under a new id. The node that it leaves is told at once or, if
 * reads of its memory are under way, by pull_reads_ended. false: no memory, and nothing has changed. true: the transfer
 * may have failed, and be gone. */
bool pull_ask_anew(struct transfer *transfer);
void pull_reads_ended(struct transfer *transfer);
void pull_ask_owner(struct transfer *transfer); /* REWIND, no operation is left: asks the owner's node, or fails */

void pull_move_answer(struct transfer *transfer, enum pull_answer_state state);
void pull_forget_answer(struct transfer *transfer); /* drops the owner's answer; reserved memory stays */
void pull_free_chunks(struct transfer *transfer);   /* frees the plan, its operations, and the owner's keys */

/* Resets the attempt. All its operations have ended, and nothing that they moved counts. */
void pull_reset(struct transfer *transfer);

/* ---- the answer, memory and the end (pull.c) ---- */

void pull_on_meta(struct remote *remote, const Rdt__Pb__PullMeta *meta);
void pull_on_alive(struct remote *remote, const Rdt__Pb__PullAlive *alive);
void pull_on_keys(struct remote *remote, const Rdt__Pb__PullKeys *keys);
void pull_on_end(struct remote *remote, const Rdt__Pb__PullEnd *end);

/* CONNECT, in other states nothing: the connection stands. */
void pull_connected(struct transfer *transfer, const struct peer_transport *pt);

/* The operations of every kind that pulls: abort, settled, release, and wanted: whether other nodes wait for its replica. */
void pull_abort(struct transfer *transfer);
void pull_settled(struct transfer *transfer);
void pull_release(struct transfer *transfer);
bool pull_wanted(const struct transfer *transfer);

/* ---- the path (pull_path.c) ---- */

enum rdt_status pull_choose_path(struct transfer *transfer, bool has_inline, struct rdt_error *err);

/* Whether a path is missing only because a connection is being rebuilt. */
bool pull_path_is_coming(struct transfer *transfer);
void pull_take_path(struct transfer *transfer); /* uses the path that was chosen */

/* Memory could not be registered with the transport of the path, by the owner or here. The next choice of a path heeds it, and
 * says so. Returns false if another choice would not help: no path has been taken, or there is no memory. */
bool pull_note_unregistered(struct transfer *transfer, bool at_owner, const char *why);

/* The owner has no connection of the path's transport just now. The next choice takes another one. Returns false if there is
 * no other path. */
bool pull_note_cut_off(struct transfer *transfer);
void pull_forget_unregistered(struct transfer *transfer);

/* Finds the memory of the targets. NO_MEMORY, or an error of region_addr. */
enum rdt_status pull_map_targets(struct transfer *transfer, struct rdt_error *err);

/* The largest object that comes in the owner's answer. For a reader with its own memory, and where connections for data are
 * encrypted as the link is, that saves two threads' wake-ups up to RDT_PEER_INLINE_MAX_BYTES; on a trusted network the
 * transport is faster from RDT_INLINE_MAX_BYTES on, without own memory the bytes are passed to the client in a message, and
 * imported memory is written by another thread. */
uint64_t pull_inline_max(const struct transfer *transfer);

/* Fetches the snapshot of that node, whose link is up, for this node itself, which keeps a replica of it: joins the transfer
 * that fills one, or pulls. The bytes come by any path, by the transport of that group of the account's owner too, in which
 * both nodes are. on_done is called once, with NULL or why there is no replica, unless this function fails: NO_MEMORY. It may
 * be called before this function returns, after *fetch_p was set. fetch_fail ends the fetch. kind: transfer_pull_kind. */
enum rdt_status pull_for_node(const struct transfer_kind *kind, struct remote *owner, struct account *account,
                              const struct rdt_ref *ref, const char *group, uint64_t broadcast,
                              void (*on_done)(void *arg, const struct rdt_error *err), void *arg, struct fetch **fetch_p,
                              struct rdt_error *err);

/* ---- deltas (pull_delta.c) ---- */

/* RESERVE, all memory is reserved. true: the bytes are being made here, and pull_move or pull_made is called later. */
bool pull_delta_begins(struct transfer *transfer);
void pull_delta_stop(struct transfer *transfer); /* ABORT, REWIND: the bytes are not wanted */

/* ---- moving (pull_move.c) ---- */

/* As transfer_fail_err, for a failure of this node itself: the source is not left for it. */
void pull_fail_here(struct transfer *transfer, const struct rdt_error *err);

/* All memory is reserved: gets the tickets of ordered queues, posts the receives and asks the owner to start. */
void pull_move(struct transfer *transfer);
void pull_wait(struct transfer *transfer); /* CONNECT: waits for a connection that is being rebuilt */
void pull_move_bytes(struct transfer *transfer, enum pull_bytes state);
void pull_move_delta(struct transfer *transfer, enum pull_delta_state state);
/* The bytes of its replica were compared with their checksum: delivers them, or fails. */
void pull_checked(struct transfer *transfer, const struct rdt_error *err);
/* RESERVE: all bytes are there, made of `moved` bytes of a delta. Has them compared with their checksum. */
void pull_made(struct transfer *transfer, uint64_t moved);
void pull_receive(struct transfer *transfer);   /* posts the receives, or asks for keys */
void pull_ask_start(struct transfer *transfer); /* sends PULL_START */
void pull_read_more(struct transfer *transfer); /* one-sided: the keys are there, or a read has ended */

/* CONNECT, in other states nothing: the other node does not want the connection, so it is not rebuilt, and the transfer takes
 * another path, or fails. Sub-pulls wait on: they keep the slots that they have. */
void pull_refused(struct transfer *transfer, const struct peer_transport *pt);

/* Cancels the operations on chunks, and takes the connection down if they do not end within quiesce_grace. */
void pull_stop_ops(struct transfer *transfer);
void pull_rewind(struct transfer *transfer); /* the attempt has failed: stops it; `settled` of its kind follows */
void pull_heard(struct transfer *transfer);  /* a chunk has come, or the other node says that it waits for one */

void pull_watch(struct transfer *transfer); /* starts the timer for progress (stall_timeout) */
void pull_on_stall(struct deadline *deadline);
/* The peer has answered the ping: the noted failure ends the transfer. */
void pull_fail_noted(struct transfer *transfer);
bool pull_is_checked(const struct transfer *transfer);  /* all bytes are here, and are compared with their checksum */
void pull_connection_failed(struct peer_transport *pt); /* notes pt->broken for each pull that moves by it, in slices */
bool pull_is_cut_off(const struct transfer *transfer);  /* TICKET, MOVE: that connection is gone: nothing may be posted */

/* Charges imported targets for the pages that writes have created. LIMIT, NO_MEMORY. */
enum rdt_status pull_charge_targets(struct transfer *transfer, struct rdt_error *err);

/* pull_plan_chunks cuts the stream into chunks and finds how many bytes must be staged (staging.need).
 * pull_reserve_staging allocates them (RDT_AGAIN: on_ready is called later with the transfer);
 * pull_take_staging takes them chunk by chunk. Freed with the transfer. */
uint64_t pull_chunk_bytes(const struct transfer *transfer); /* how the stream is cut */
enum rdt_status pull_plan_chunks(struct transfer *transfer, struct rdt_error *err);
struct chunk_ground pull_ground(const struct transfer *transfer); /* of the plan's chunks */
enum rdt_status pull_reserve_staging(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);
uint8_t *pull_take_staging(struct transfer *transfer, uint64_t bytes);
void pull_free_staging(struct transfer *transfer);

/* ---- several kinds of memory (subpull.c) ---- */

/* The tensors of an object may lie, or be wanted, in several kinds of memory. Then the reader asks once for the whole object
 * and reserves memory, and pulls all tensors with the same source and target memory by a transfer of its own, a sub-pull. */

/* Reads where the owner says that the tensors lie into transfer->pull.placement. PROTOCOL, NO_MEMORY. */
enum rdt_status subpulls_read_places(struct transfer *transfer, const Rdt__Pb__PullMeta *meta, struct rdt_error *err);

/* Whether the reader wants tensors on devices of this node. */
bool subpulls_wanted_here(const struct transfer *transfer);

/* Whether the answer, which has come, makes sub-pulls necessary. */
bool subpulls_needed(const struct transfer *transfer);

/* RESERVE: reserves memory for the whole object and then starts the sub-pulls. The transfer ends with the
 * last of them, or with the first that fails. */
void subpulls_begin(struct transfer *whole);

/* The operations of sub-pulls: recover, complete, and the end of release. */
bool subpull_failed(struct transfer *child, const struct rdt_error *err);
void subpull_complete(struct transfer *child);
void subpull_ended(struct transfer *child);

/* Aborts all sub-pulls. The whole ends when the last of them has ended. */
void subpulls_abort(struct transfer *whole);

/* Frees what the transfer has as a whole or as a sub-pull. No sub-pull is left. */
void subpulls_free(struct transfer *transfer);

/* The memory kind of a sub-pull's targets; "host" for every other transfer. */
const char *transfer_target_memory(const struct transfer *transfer);

/* The uuid of the device that a sub-pull moves from (on the other node), or to (on this node); "": host memory. */
const char *transfer_source_device(const struct transfer *transfer);
const char *transfer_target_device(const struct transfer *transfer);

/* Reserves slots for a pull that goes through the daemon's host memory here. AGAIN: on_ready is called later
 * with the transfer. */
enum rdt_status pull_reserve_stage(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);

/* Whether another chunk can be received: there is a free slot, or none is needed. */
bool pull_has_slot(const struct transfer *transfer);

/* ---- replicas (pull_replica.c) ---- */

/* true: a replica on this node serves the transfer, or its fetches have joined the transfer that fills one;
 * it may have ended. */
bool pull_replica_serves(struct transfer *transfer);

/* The owner has answered about a snapshot. true: as above, or the transfer was redirected to another node;
 * false: this transfer moves the bytes. */
bool pull_replica_answered(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

/* The owner has redirected the transfer. Returns the node to ask now: the owner's again if that cannot be done. NULL: as above,
 * or the transfer has failed. */
struct remote *pull_replica_redirected(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

/* The recover operation of pulls. true: the transfer had been redirected to a replica, and asks the owner's
 * node again. */
bool pull_replica_comes_back(struct transfer *transfer, const struct rdt_error *why);
/* The owner's node has a better source than the present one. */
void pull_replica_ask_again(struct transfer *transfer, const char *why);

/* The last other node has stopped pulling the replica that it fills: ends the transfer, unless a fetch of
 * this node waits for it. */
void pull_replica_unwanted(struct transfer *transfer);

#endif
