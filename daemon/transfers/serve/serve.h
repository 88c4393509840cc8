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
 *   PREPARE, TICKET, SENDING -> ABORT -> ENDED: it ends when no operation is left
 *   PARKED, OFFERED, PREPARE, TICKET -> ENDED: the answer had everything, or the pull was refused or cancelled
 *   while nothing touched memory
 */
#ifndef DAEMON_SERVE_H
#define DAEMON_SERVE_H

#include "daemon/objects/names.h"
#include "daemon/objects/object_table.h"
#include "daemon/transfers/fanout.h"
#include "daemon/transfers/peer_transport.h"

struct broadcast;

enum serve_state { SERVE_PARKED, SERVE_OFFERED, SERVE_PREPARE, SERVE_TICKET, SERVE_SENDING, SERVE_ABORT, SERVE_ENDED };

struct serve {
    struct transfers *transfers;
    struct peer_session *session;
    uint64_t number;         /* the reader's number of this pull */
    struct sm sm;            /* enum serve_state */
    struct account *account; /* of the requester: a reference */
    struct rdt_ref ref;
    Rdt__Pb__Slice *slice; /* owned; NULL: the whole object */
    bool meta_only;
    bool keep, no_redirect; /* what the reader asked for in PULL */
    bool came_back;         /* it has left the node `left`, to which it was redirected, or was asked to ask again */
    uint8_t left[16];
    struct fanout_pace pace;
    struct list by_pace; /* SENDING: in transfers->paced if it is long enough for a verdict */
    bool shares;         /* SENDING: counted in transfers->n_sharing */
    uint64_t inline_max_bytes;
    /* the reader's timeout; TICKET: how long the reader may stay silent; ABORT: the grace time */
    struct deadline deadline;
    struct replica *replica;              /* the replica that is served: a reference; NULL: an object of this node */
    struct list by_replica;               /* in replica->pulls, or replicas->expected */
    unsigned beats;                       /* of the replica, in which no chunk has moved */
    uint32_t chunks_at_beat;              /* chunks_done at the last beat */
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
    uint8_t **bases;                  /* [n_regions] where the object's regions start */
    uint32_t filled;                  /* how many of them have all their pages (region_fill.h) */
    uint32_t next_chunk, chunks_done; /* next_chunk: the first that was not posted */
    bool *is_posted;                  /* [plan->n] of a replica that is being filled; NULL: chunks are posted in their order */
    struct list posted;               /* struct chunk_op.posted: sends that the transport has */
    unsigned n_ops;                   /* they, and pool work, which may touch memory, too */
    unsigned n_ops_left;              /* ABORT: of them, when the present grace time began */
    struct peer_transport *connection;
    struct list by_connection, in_turn;
    bool one_sided;
    bool ordered;                /* the operations of the reader or of this node are in ordered queues */
    struct broadcast *broadcast; /* SENDING: the broadcast that moves its bytes; NULL: by sends */
    bool collective;             /* the broadcast is collective */
    uint64_t broadcast_number;   /* the broadcast that the reader takes part in; 0: none */
    bool gathering;              /* with `ordered`: a chunk is being gathered, and later chunks wait for it */
    bool posting;                /* with `ordered`: sends are being posted */
    bool reader_done;            /* one-sided: the reader has finished */
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

/* ---- life (serve.c) ---- */

/* Creates the serve of this pull, PARKED and in session->serves. The caller sets the events of `waiter` and
 * `named`. NULL: err says why. */
struct serve *serve_new(struct peer_session *session, const Rdt__Pb__Pull *pull, const struct rdt_ref *ref,
                        const struct owner *requester, struct rdt_error *err);
void serve_set_state(struct serve *out, enum serve_state state);
void serve_shares(struct serve *out, bool shares); /* whether it is counted in transfers->n_sharing */

/* Maps the object's regions into `bases`. */
enum rdt_status serve_map(struct serve *out, struct rdt_error *err);

/* SYSTEM: memory that was read is missing. */
enum rdt_status serve_check(const struct serve *out, struct rdt_error *err);

void serve_end(struct serve *out);    /* frees it: nothing touches its memory */
void serve_stop(struct serve *out);   /* sends no more chunks; it ends when nothing touches its memory */
void serve_settle(struct serve *out); /* ABORT: one operation has ended; the last one ends it */
void serve_fail(struct serve *out, const struct rdt_error *err);   /* tells the reader by PULL_END and stops */
void serve_refuse(struct serve *out, const struct rdt_error *err); /* answers with an error and ends it */

/* Answers a pull for which there is no serve. */
void serve_answer_error(struct peer_session *session, uint64_t number, const struct rdt_error *err);

/* ---- sending (serve_send.c) ---- */

/* Whether the start that PULL carried fits the object; it then also creates the plan. */
bool serve_can_start(struct serve *out);
/* Prepares memory and then sends, or lets the reader read. */
void serve_begin(struct serve *out, struct peer_transport *pt);
/* Sends what it can: more bytes of the replica, credit or memory have come. */
void serve_go_on(struct serve *out);
void serve_send_in_order(struct serve *out); /* TICKET: both ends have their tickets: sends */
void serve_pump(struct peer_transport *pt);  /* posts chunks of all serves on the connection in rotation */
void serve_on_start(struct peer_session *session, const Rdt__Pb__PullStart *start);

/* ---- how fast the reader takes bytes (serve_pace.c) ---- */

/* SENDING: a chunk has ended, or more bytes have come. */
void serve_watch_pace(struct serve *out);

/* The reader's node says how much it receives (fanout_answered). */
void serve_take_answer(struct serve *out, const Rdt__Pb__PullCredit *answer);

/* ---- the answer (serve_answer.c) ---- */

/* The object is there and the requester may have it: answers, and ends the serve unless chunks are to follow. */
void serve_answer(struct serve *out, struct object *object);

/* ---- messages and events (serve_pull.c) ---- */

enum rdt_status serve_on_pull(struct peer_session *session, const Rdt__Pb__Pull *pull, struct rdt_error *err);
void serve_on_credit(struct peer_session *session, const Rdt__Pb__PullCredit *credit);
void serve_on_end(struct peer_session *session, const Rdt__Pb__PullEnd *end);
void serve_on_abort(struct peer_session *session, const Rdt__Pb__PullAbort *abort);
void serve_connection_closed(struct peer_transport *pt); /* all operations on it have ended: its serves stop */
void serve_link_down(struct peer_session *session);
void serve_shut_down(struct transfers *transfers, const struct rdt_error *why); /* tells each reader */
void serve_refuse_parked(struct transfers *transfers);                          /* there will be no more puts */

#endif
