/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's side of a pull. The files, from the top down:
 *
 *   serve_pull.c      the messages of the reader and the events of its node
 *   serve_answer.c    the answer
 *   serve_send.c      preparing memory, and sending the chunks
 *   serve_pace.c      whether the reader is slow
 *   serve.c           the life of a serve: creation, states, failure, end
 *
 *   PARKED --put, published--> OFFERED --PULL_START--> PREPARE --memory is ready--> SENDING --last chunk--> ENDED
 *                                                         |                            ^
 *                                                         `--ordered queues--> TICKET -'
 *
 *   OFFERED, PREPARE, TICKET, SENDING -> ABORT -> ENDED: it ends when no operation is left
 *   PARKED, OFFERED, PREPARE, TICKET -> ENDED: the answer had everything, or the pull was refused or cancelled
 *   while nothing touched memory
 */
#ifndef DAEMON_SERVE_H
#define DAEMON_SERVE_H

#include "daemon/objects/names.h"
#include "daemon/objects/object_table.h"
#include "daemon/transfers/fanout.h"
#include "daemon/transfers/peer_transport.h"

enum serve_state { SERVE_PARKED, SERVE_OFFERED, SERVE_PREPARE, SERVE_TICKET, SERVE_SENDING, SERVE_ABORT, SERVE_ENDED };

/* What the reader asks for in PULL. */
struct serve_request {
    Rdt__Pb__Slice *slice; /* owned; NULL: the whole object */
    uint32_t *select;      /* [n_select] the tensors that a sub-pull asks for; NULL: all */
    uint32_t n_select;
    enum serve_wish { WISH_BYTES, WISH_METADATA, WISH_REPLICA } wish; /* of WISH_REPLICA the reader's node keeps the bytes */
    bool no_redirect;
    bool came_back; /* it has left the node `left`, to which it was redirected, or was asked to ask again */
    uint8_t left[16];
    uint64_t inline_max_bytes;
};

/* Who moves the chunks, and in which order. PULL_START says it:
 *
 *   IN_ROTATION --PULL_START: tickets--> IN_ORDER
 *     `--PULL_START: one-sided--> READ --PULL_END, PULL_ABORT, the connection has ended--> READ_ENDED
 */
enum sending_mode {
    SENDING_IN_ROTATION, /* this node sends: a chunk of each serve on the connection in turn */
    SENDING_IN_ORDER,    /* this node sends: the operations of the reader or of this node are in ordered queues */
    SENDING_READ,        /* the reader reads */
    SENDING_READ_ENDED,  /* the reader has finished */
};

/* The bytes on their way to the reader. */
struct sending {
    struct peer_transport *connection; /* from PREPARE on, where the object is pinned; NULL: not yet */
    struct list by_connection, by_sending;
    uint32_t start_epoch;        /* of the reader's connection, as PULL_START says */
    uint8_t mode;                /* enum sending_mode */
    bool gathering;              /* IN_ORDER: a chunk is being gathered, and later chunks wait for it */
    bool posting;                /* IN_ORDER: sends are being posted */
    bool staged;                 /* its memory is on devices or imported, and goes through memory of the daemon */
    struct stage *stage;         /* with staged: the slots; NULL: not yet */
    struct device_place *places; /* [n_places] with staged, on devices: the object's regions as ends of device copies */
    struct account *slow_owner;  /* object_slow_owner, from state PREPARE on; borrowed from the pinned object */
    struct account *reads_owner; /* whose threads gather the bytes: slow_owner, or object_reads_owner */
    struct memory_place *memory; /* [n_places] the object's regions */
    struct chunk_plan *plan;
    uint32_t credit;       /* the reader has posted receives for chunks below this number */
    uint32_t next, n_done; /* next: the first chunk that was not posted */
    bool *is_posted;       /* [plan->n] of a replica that is being filled; NULL: chunks are posted in their order */
    struct list posted;    /* struct chunk_op.posted: sends that the transport has */
    unsigned n_ops;        /* they, and work of threads, which may touch memory, too */
    unsigned n_ops_left;   /* ABORT: of them, when the present grace time began */
};

struct serve {
    struct transfers *transfers;
    struct remote *remote;
    struct list by_remote;   /* in remote->serves or .lost_serves */
    struct list held;        /* OFFERED: in remote->answers.held until the link has room for the answer */
    unsigned epoch;          /* of the link over which the pull came; nothing about it is sent over a later one */
    uint64_t number;         /* the reader's number of this pull */
    struct sm sm;            /* enum serve_state */
    struct account *account; /* of the requester: a reference */
    struct rdt_ref ref;
    struct serve_request request;
    struct transfer_record record;
    /* the reader's timeout; TICKET: how long the reader may stay silent; ABORT: the grace time */
    struct deadline deadline;

    struct object_waiter waiter;
    struct name_waiter named;
    uint64_t version;      /* of the published name, if the ref is one */
    struct object *object; /* held; pinned from state PREPARE on */
    struct layout *source, *packed;
    uint64_t stream_bytes;
    bool gathering; /* the bytes of the answer are being read on a thread of their owner */

    struct replica *replica;              /* the replica that is served: a reference; NULL: an object of this node */
    struct list by_replica;               /* in a list of replica->pulls, in a struct expected, or in replicas->arrived */
    unsigned beat;                        /* replica->pulls.n_beats when it had its last beat */
    unsigned beats;                       /* of the replica, in which no chunk has moved */
    uint32_t chunks_at_beat;              /* sending.n_done at the last beat */
    struct peer_transport *awaits_memory; /* OFFERED: the connection to begin with when the replica has memory */

    struct fanout_pace pace;
    struct list by_pace; /* SENDING: in load.paced if it is long enough for a verdict */
    bool shares;         /* SENDING: counted in transfers->n_sharing */
    struct sending sending;
};

/* ---- life (serve.c) ---- */

/* Creates the serve of this pull, PARKED and in remote->by_number. The caller sets the events of `waiter` and
 * `named`. NULL: err says why. */
struct serve *serve_new(struct remote *remote, const Rdt__Pb__Pull *pull, const struct rdt_ref *ref,
                        const struct owner *requester, struct rdt_error *err);
void serve_set_mode(struct serve *serve, enum sending_mode mode);
void serve_set_state(struct serve *serve, enum serve_state state);
/* The reader has finished, or cannot go on: if it reads, nobody reads any more. */
void serve_reader_ended(struct serve *serve);
bool serve_is_one_sided(const struct serve *serve);  /* the reader reads, or has read */
void serve_shares(struct serve *serve, bool shares); /* whether it is counted in transfers->n_sharing */

/* Maps the object's regions, except imported ones, into `memory`. */
enum rdt_status serve_map(struct serve *serve, struct rdt_error *err);

/* SYSTEM: memory that was read is missing. */
enum rdt_status serve_check(const struct serve *serve, struct rdt_error *err);

void serve_end(struct serve *serve);    /* frees it: nothing touches its memory */
void serve_stop(struct serve *serve);   /* sends no more chunks; it ends when nothing touches its memory */
void serve_settle(struct serve *serve); /* ABORT: one operation has ended; the last one ends it */
void serve_fail(struct serve *serve, const struct rdt_error *err); /* tells the reader by PULL_END and stops */
/* The same, of memory that could not be registered for one-sided reads: the reader asks again, to be sent the bytes. */
void serve_fail_unregistered(struct serve *serve, const struct rdt_error *err);
/* The same, with TRANSPORT: this end has no connection of `transport` just now, so the reader takes another if it can. */
void serve_fail_rebuilding(struct serve *serve, const struct transport *transport);
void serve_refuse(struct serve *serve, const struct rdt_error *err); /* answers with an error and ends it */

/* Sends a message about it to the reader. PEER_LOST: the link over which the pull came has ended. */
enum rdt_status serve_send(struct serve *serve, enum rdt_peer_message type, const ProtobufCMessage *message,
                           struct rdt_error *err);

/* Answers a pull for which there is no serve. */
void serve_answer_error(struct remote *remote, uint64_t number, const struct rdt_error *err);

/* ---- sending (serve_send.c) ---- */

/* Sends what it can: more bytes of the replica, credit or memory have come. */
void serve_go_on(struct serve *serve);
void serve_send_in_order(struct serve *serve); /* TICKET: both ends have their tickets: sends */
void serve_pump(struct peer_transport *pt);    /* posts chunks of all serves on the connection in rotation */
void serve_on_start(struct remote *remote, const Rdt__Pb__PullStart *start);

/* ---- how fast the reader takes bytes (serve_pace.c) ---- */

/* SENDING: a chunk has ended, or more bytes have come. */
void serve_watch_pace(struct serve *serve);

/* The reader's node says how much it receives (fanout_answered). */
void serve_take_answer(struct serve *serve, const Rdt__Pb__PullCredit *answer);

/* ---- the answer (serve_answer.c) ---- */

/* The object is there and the requester may have it: answers, at once or when the link has room and the bytes of the answer
 * have been read, and ends the serve unless chunks are to follow. */
void serve_answer(struct serve *serve, struct object *object);

/* The node has answered a ping, so it has read what came before: answers more of the pulls that wait for room in the link. */
void serve_answer_held(struct remote *remote);

/* ---- messages and events (serve_pull.c) ---- */

enum rdt_status serve_on_pull(struct remote *remote, const Rdt__Pb__Pull *pull, struct rdt_error *err);
void serve_on_credit(struct remote *remote, const Rdt__Pb__PullCredit *credit);
void serve_on_end(struct remote *remote, const Rdt__Pb__PullEnd *end);
void serve_on_abort(struct remote *remote, const Rdt__Pb__PullAbort *abort);
/* It is broken, or all operations on it have ended: its serves stop, in slices, for the reason that pull_connection_failed has
 * noted. The connection may be built anew meanwhile. */
void serve_connection_failed(struct peer_transport *pt);

/* Whether its connection has failed since it began, so that nothing may be sent any more: it is stopped in a moment. */
bool serve_is_cut_off(const struct serve *serve);
void serve_link_down(struct remote *remote);
void serve_shut_down(struct transfers *transfers, const struct rdt_error *why); /* tells each reader */
void serve_refuse_parked(struct transfers *transfers);                          /* there will be no more puts */

#endif
