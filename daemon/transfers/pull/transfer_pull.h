/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls: fetches of objects that are on another node. The reader's node asks the owner's by PULL, reserves
 * memory by the answer, and receives the bytes in chunks (rdt_peer.proto draws the exchange, transfer.h the
 * states). The files, each of which uses those below it only:
 *
 *   transfer_in.c         decides what comes next: takes answers, reserves memory, starts again, ends
 *   transfer_replica.c    replicas: is served by one, is redirected to one on another node and comes back
 *   transfer_ask.c        asks: the peer, its link, the request coalescer, PULL, PULL under a new id
 *   transfer_move.c       moves the chunks, watches their progress, stops them
 *   transfer_subpull.c    splits a pull of an object in several kinds of memory into sub-pulls
 *   transfer_way.c        chooses the path
 *   transfer_staging.c    cuts the stream into chunks, and memory for chunks of many small tensors
 */
#ifndef DAEMON_TRANSFER_PULL_H
#define DAEMON_TRANSFER_PULL_H

#include "backends/rdt_backend.h"
#include "daemon/base/deadline.h"
#include "daemon/memory/device_copy.h"
#include "daemon/memory/placing.h"
#include "daemon/memory/region.h"
#include "daemon/transports/chunk.h"
#include "daemon/transports/stage.h"
#include "rdt_peer.pb-c.h"

struct broadcast_member;
struct chunk_ground;
struct chunk_op;
struct coalesced;
struct peer_session;
struct peer_transport;
struct replica;
struct subpulls;
struct transfer;

/* Memory that chunks are received into before they are scattered to many small tensors: transfer_staging.c. */
struct staging {
    uint64_t need, used;
    struct region *region; /* or, for little memory: */
    uint8_t *heap;
    uint64_t heap_bytes; /* charged */
    region_ready on_ready;
};

/* What the owner's PULL_META says about the object. transfer_in_forget_answer drops it. */
struct pull_answer {
    bool arrived;
    bool contiguous;    /* every tensor is contiguous at the owner */
    char preferred[65]; /* the transport that the producer prefers; "": none */
    char memory[65];    /* the memory kind of the tensors; before the answer, of an early start, "host" */
    char producer[65];  /* the name of the client that put the object; "": it has ended */
};

/* The broadcast that a pull is part of. After the pull has left the broadcast, `number` is 0 and the rest
 * stays as it was. */
struct pull_broadcast {
    uint64_t number;      /* the root's number of it */
    uint8_t token[16];    /* of the group */
    uint32_t epoch;       /* of the group */
    bool collective;      /* the chunks come by the transport's own broadcast */
    uint64_t chunk_bytes; /* the size of chunks that the root uses; 0: as this daemon is configured */
};

/* The memory kinds and devices of the tensors of an object on another node. */
struct memory_placement {
    char memory[PLACING_MAX][33];
    char device[PLACING_MAX][65]; /* uuids of devices of the owner's node */
    uint32_t of[];                /* [n tensors] index into the two */
};

/* The part of a transfer that only a sub-pull uses. It is all zero in every other transfer. */
struct subpull {
    struct transfer *parent; /* the pull that it belongs to, which ends later; NULL: the transfer is no sub-pull */
    struct list link;        /* in parent->pull.subpulls */
    uint32_t *select;        /* [n_select] the tensors of the parent that it moves; owned */
    uint32_t n_select;
    bool done; /* all its bytes are there */
};

/* The part of a transfer that only a pull uses, which includes sub-pulls and a broadcast's members. */
struct pull {
    struct peer_session *peer;   /* the node that is asked: the owner's, or one with a replica; NULL: no node is */
    struct list by_peer;         /* in peer->pending or peer->incoming */
    struct peer_session *origin; /* the node of the object */
    struct pull_answer answer;
    /* the metadata that came with the answer: owned, its bytes are charged to the account; NULL: none */
    uint8_t *own_metadata;

    /* Other fetches and nodes. */
    bool joinable;               /* other fetches may join while PULL is not sent (coalescer.h) */
    struct coalesced *coalesced; /* its requests, until they are answered; NULL: no other fetch can join */
    struct deadline resume;      /* QUEUED: set when the transfer before it has been answered */
    bool keeps;                  /* a snapshot becomes a replica on this node */
    struct replica *replica;     /* the replica that it fills: a reference; NULL: none */
    struct deadline unwanted;    /* set when the last other node has stopped pulling that replica */
    bool no_redirect;            /* it has come back from another node's replica, or wants a certain path */
    struct deadline patience;    /* at another node's replica: the next beat */
    unsigned silent_beats;       /* in which that node said nothing */
    bool heard;                  /* it has said something */
    bool came_back;              /* it has left the node `left`, and asks the owner's for another source */
    uint8_t left[16];
    unsigned n_redirects;            /* how often it has come back */
    struct broadcast_member *member; /* this node's part of a broadcast (transfer_broadcast_member.c); NULL: none */
    struct pull_broadcast broadcast; /* what the root's node said about it */

    /* The path. */
    struct peer_transport *connection; /* chosen by transfer_in_take_path; NULL: not yet */
    struct list by_connection;         /* in connection->users_in */
    bool one_sided;                    /* this node reads; otherwise the owner sends */
    bool staged_here, staged_there;    /* the path goes through host memory on this or the other node */
    bool single;                       /* every chunk is of one tensor, since an end is device memory */
    bool fell_back;                    /* counted in transfers->counts->fell_back */

    /* The chunks. */
    struct chunk_plan *plan;
    uint32_t max_pieces;         /* of an operation (struct chunk_ground) */
    struct chunk_op **chunk_ops; /* [plan->n] receives or reads under way */
    uint8_t *unneeded;           /* where chunks go that come again though they are there; NULL: none has */
    uint32_t first_chunk;        /* chunks before it have arrived in an earlier attempt */
    uint32_t next_chunk, chunks_done;
    struct staging staging;
    struct stage *stage; /* with staged_here: the pinned slots; NULL: not yet */
    region_ready stage_ready;
    struct device_place *to_places; /* [target->n] with staged_here: the targets as ends of device copies */

    /* One-sided: what the owner's PULL_KEYS says. */
    struct layout *remote;              /* the layout at the owner; its regions are indexes into `keys` */
    uint8_t (*keys)[RDT_KEY_MAX_BYTES]; /* [n_keys] */
    size_t *key_bytes;                  /* [n_keys] */
    size_t n_keys;
    /* a node that was left while reads of its memory were under way, and the number of that pull; NULL: none */
    struct peer_session *read_from;
    uint64_t read_id;

    /* Failure. */
    bool failed_here;       /* this node's own failure, for which no source is to blame */
    enum rdt_status failed; /* the first failure of an operation of this attempt */
    char failure[192];
    /* the number (peer_session.asked) of the ping whose answer decides about the failure; 0: none */
    uint64_t ping;
    /* MOVE, TICKET, CONNECT: no progress; ABORT, REWIND: the grace time; the same after a failure */
    struct deadline stall;
    bool awaits_put;      /* its node has answered that nobody has put the object yet */
    uint64_t stall_bytes; /* bytes done when `stall` was set */

    /* The whole of an object in several kinds of memory: transfer_subpull.c. */
    struct memory_placement *placement; /* where the tensors lie at the owner; NULL: all are in host memory */
    struct subpulls *subpulls;          /* the sub-pulls that move the object; NULL: this transfer moves all of it */
};

/* ---- asking (transfer_ask.c) ---- */

/* Finds the owner's node and asks it, or queues behind another transfer that asks for the same object. On
 * error nothing was started. */
enum rdt_status transfer_in_start(struct transfer *transfer, struct rdt_error *err);

/* Asks that node as soon as its link is up. */
void transfer_in_pull_from(struct transfer *transfer, struct peer_session *session);

/* Sends PULL: the link is up, and no other transfer asks for the same. */
void transfer_in_ask(struct transfer *transfer);

/* Tells the asked node by PULL_ABORT; does nothing if no node is asked. */
void transfer_in_send_abort(struct transfer *transfer);

void transfer_in_leave_peer(struct transfer *transfer); /* no node is asked any more */

/* Goes back to REWIND, from where it asks the owner's node again under a new id. The node that it leaves is told at once or, if
 * reads of its memory are under way, by transfer_in_reads_ended. false: no memory, and nothing has changed. true: the transfer
 * may have failed, and be gone. */
bool transfer_in_ask_anew(struct transfer *transfer);
void transfer_in_reads_ended(struct transfer *transfer);
void transfer_in_ask_owner(struct transfer *transfer); /* REWIND, no operation is left: asks the owner's node, or fails */

void transfer_in_forget_answer(struct transfer *transfer); /* drops the owner's answer; reserved memory stays */
void transfer_in_free_chunks(struct transfer *transfer);   /* frees the plan, its operations, and the owner's keys */

/* Resets the attempt. All its operations have ended, and nothing that they moved counts. */
void transfer_in_reset(struct transfer *transfer);

/* ---- the answer, memory and the end (transfer_in.c) ---- */

void transfer_in_on_meta(struct peer_session *session, const Rdt__Pb__PullMeta *meta);
void transfer_in_on_parked(struct peer_session *session, const Rdt__Pb__PullParked *parked);
void transfer_in_on_keys(struct peer_session *session, const Rdt__Pb__PullKeys *keys);
void transfer_in_on_end(struct peer_session *session, const Rdt__Pb__PullEnd *end);

/* CONNECT, in other states nothing: the connection stands. */
void transfer_in_connected(struct transfer *transfer, const struct peer_transport *pt);

/* The operations of every kind that pulls: abort, settled, release, and wanted: whether other nodes wait for its replica. */
void transfer_in_abort(struct transfer *transfer);
void transfer_in_settled(struct transfer *transfer);
void transfer_pull_release(struct transfer *transfer);
bool transfer_pull_wanted(const struct transfer *transfer);

/* ---- the path (transfer_way.c) ---- */

enum rdt_status transfer_in_choose(struct transfer *transfer, bool has_inline, struct rdt_error *err);

/* Whether a path is missing only because a connection is being rebuilt. */
bool transfer_in_path_is_coming(struct transfer *transfer);
void transfer_in_take_path(struct transfer *transfer); /* uses the path that was chosen */

/* With targets: whether the receives can be posted before PULL. true: the path is taken and the memory reserved, so the caller
 * goes on with transfer_in_move; false: nothing has changed. */
bool transfer_in_early(struct transfer *transfer);

/* The largest object that comes in the owner's answer. For a reader with its own memory, and where connections for data are
 * encrypted as the link is, that saves two threads' wake-ups up to RDT_PEER_INLINE_MAX_BYTES; on a trusted network the
 * transport is faster from RDT_INLINE_MAX_BYTES on, without own memory the bytes are passed to the client in a message, and
 * memory that lacks pages is counted by a worker before it is filled. */
uint64_t transfer_inline_max(const struct transfer *transfer);

/* ---- moving (transfer_move.c) ---- */

/* As transfer_fail_err, for a failure of this node itself: the source is not left for it. */
void transfer_in_fail_here(struct transfer *transfer, const struct rdt_error *err);

/* All memory is reserved: gets the tickets of ordered queues, posts the receives and asks the owner to start. */
void transfer_in_move(struct transfer *transfer);
void transfer_in_wait(struct transfer *transfer);      /* CONNECT: waits for a connection that is being rebuilt */
void transfer_in_started(struct transfer *transfer);   /* EARLY: the owner has started */
void transfer_in_receive(struct transfer *transfer);   /* posts the receives, or asks for keys */
void transfer_in_ask_start(struct transfer *transfer); /* sends PULL_START */
void transfer_in_read_more(struct transfer *transfer); /* one-sided: the keys are there, or a read has ended */

/* CONNECT, in other states nothing: the other node does not want the connection, so it is not rebuilt, and the transfer takes
 * another path, or fails. Members of a broadcast and sub-pulls wait on: only the root knows another path, and a sub-pull keeps
 * the slots that it has. */
void transfer_in_refused(struct transfer *transfer, const struct peer_transport *pt);

/* Cancels the operations on chunks, and takes the connection down if they do not end within quiesce_grace. */
void transfer_in_stop_ops(struct transfer *transfer);
void transfer_in_rewind(struct transfer *transfer); /* the attempt has failed: stops it; `settled` of its kind follows */
void transfer_in_heard(struct transfer *transfer);  /* a chunk has come, or the other node says that it waits for one */

void transfer_in_watch(struct transfer *transfer); /* starts the timer for progress (stall_timeout) */
void transfer_in_on_stall(struct deadline *deadline);
/* The peer has answered the ping: the noted failure ends the transfer. */
void transfer_in_fail_noted(struct transfer *transfer);
void transfer_in_connection_failed(struct peer_transport *pt); /* notes pt->broken for each pull that moves by it */

/* transfer_plan cuts the stream into chunks and finds how many bytes must be staged (staging.need).
 * transfer_reserve_staging allocates them (RDT_AGAIN: on_ready is called later with the transfer);
 * transfer_take_staging takes them chunk by chunk. Freed with the transfer. */
uint64_t transfer_chunk_bytes(const struct transfer *transfer); /* how the stream is cut */
enum rdt_status transfer_plan(struct transfer *transfer, struct rdt_error *err);
struct chunk_ground transfer_ground(const struct transfer *transfer); /* of the plan's chunks */
bool transfer_staging_is_small(const struct transfer *transfer);
enum rdt_status transfer_reserve_staging(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);
uint8_t *transfer_take_staging(struct transfer *transfer, uint64_t bytes);
void transfer_free_staging(struct transfer *transfer);

/* ---- several kinds of memory (transfer_subpull.c) ---- */

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

/* Reserves pinned slots for a sub-pull that goes through host memory here. AGAIN: on_ready is called later
 * with the transfer. */
enum rdt_status transfer_reserve_stage(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);

/* Whether another chunk can be received: there is a free slot, or none is needed. */
bool transfer_has_slot(const struct transfer *transfer);

/* ---- replicas (transfer_replica.c) ---- */

/* true: a replica on this node serves the transfer, or its fetches have joined the transfer that fills one;
 * it may have ended. */
bool transfer_replica_serves(struct transfer *transfer);

/* The owner has answered about a snapshot. true: as above, or the transfer was redirected to another node;
 * false: this transfer moves the bytes. */
bool transfer_replica_answered(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

/* The owner has redirected the transfer. Returns the node to ask now: the owner's again if that cannot be done. NULL: as above,
 * or the transfer has failed. */
struct peer_session *transfer_replica_redirected(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

/* The recover operation of pulls. true: the transfer had been redirected to a replica, and asks the owner's
 * node again. */
bool transfer_replica_comes_back(struct transfer *transfer, const struct rdt_error *why);
/* The owner's node has a better source than the present one. */
void transfer_replica_ask_again(struct transfer *transfer, const char *why);

/* The last other node has stopped pulling the replica that it fills: ends the transfer, unless a fetch of
 * this node waits for it. */
void transfer_replica_unwanted(struct transfer *transfer);

#endif
