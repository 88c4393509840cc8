/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the root's side of broadcasts: what transfer_broadcast.c and transfer_broadcast_move.c share. */
#ifndef DAEMON_TRANSFER_BROADCAST_IMPL_H
#define DAEMON_TRANSFER_BROADCAST_IMPL_H

#include "daemon/transfers/broadcast/transfer_broadcast.h"
#include "daemon/transfers/transfer_impl.h"

enum broadcast_state { BROADCAST_WAITING, BROADCAST_ASKED, BROADCAST_MOVING, BROADCAST_OVER };

/* A node of the group that is not this one. */
struct receiver {
    uint8_t uuid[16];
    const char *address; /* borrowed from the group */
    struct peer_session *session;
    bool asked;        /* asked in this round */
    bool done;         /* the node has its replica, or has failed */
    struct serve *out; /* the pull that is ready in a collective round; NULL: none */
};

struct broadcast {
    struct list link; /* in transfers->broadcasts */
    struct transfers *transfers;
    struct sm sm;
    uint64_t number;     /* the number of the round */
    struct group *group; /* NULL: it is destroyed */
    uint32_t epoch;
    struct account *account; /* a reference, charged for one transfer */
    struct object *object;   /* held; pinned while MOVING */
    struct rdt_ref ref;
    struct receiver *receivers; /* [n_receivers] */
    uint32_t n_receivers;
    bool collective;
    struct rdt_error failure; /* the first failure; status RDT_OK: none */
    /* WAITING: checks the group again; ASKED, collective: all nodes must be ready; MOVING: watches the progress; OVER: the
     * grace time */
    struct deadline deadline;
    /* NULL: it was called, or the client does not wait any more */
    void (*on_done)(void *arg, const struct rdt_error *err);
    void *arg;
    bool busy; /* a function uses it, and it must not be freed */

    /* MOVING */
    struct layout *source, *packed;
    struct chunk_plan *plan;
    uint8_t **bases;
    uint32_t next_chunk, chunks_done, chunks_seen;
    unsigned n_ops;
    bool gathering;
};

/* Finds the broadcast whose round has this number, and that has asked the session's node and still waits for it. NULL: there is
 * none. */
struct broadcast *broadcast_find(const struct peer_session *session, uint64_t number, struct receiver **receiver_p);

/* Calls on_done if every node is done or the broadcast is OVER, and frees the broadcast if no operation is left. */
void broadcast_settle(struct broadcast *broadcast);

/* Moves to OVER with this failure. The broadcast may be freed. */
void broadcast_give_up(struct broadcast *broadcast, const struct rdt_error *why);

#endif
