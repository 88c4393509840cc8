/* What the files of broadcasts share. Nobody else includes it. */
#ifndef DAEMON_TRANSFER_BROADCAST_IMPL_H
#define DAEMON_TRANSFER_BROADCAST_IMPL_H

#include "daemon/transfers/transfer_broadcast.h"
#include "daemon/transfers/transfer_impl.h"

enum broadcast_state { BROADCAST_WAITING, BROADCAST_ASKED, BROADCAST_MOVING, BROADCAST_OVER };

struct other { /* a node of the group that is not this one */
    uint8_t uuid[16];
    const char *address; /* the group's */
    struct peer_session *session;
    bool asked;        /* in this round */
    bool done;         /* has its copy, or has failed */
    struct serve *out; /* its part stands */
};

struct broadcast {
    struct list link; /* in transfers->broadcasts */
    struct transfers *transfers;
    struct sm sm;
    uint64_t number;     /* of the round */
    struct group *group; /* NULL: it is closed */
    uint32_t epoch;
    struct account *account; /* a reference, charged for one transfer */
    struct object *object;   /* held; pinned while MOVING */
    struct rdt_ref ref;
    struct other *others; /* [n_others] */
    uint32_t n_others;
    bool collective;
    struct rdt_error failure; /* the first; status RDT_OK: none */
    struct deadline deadline; /* WAITING: to look at the group; ASKED together: for all to stand; MOVING: no chunk has gone */
    void (*on_done)(void *arg, const struct rdt_error *err); /* NULL: it was told, or nobody waits */
    void *arg;
    bool busy; /* something is at it: it does not go */

    /* MOVING */
    struct layout *source, *packed;
    struct chunk_plan *plan;
    uint8_t **bases;
    uint32_t next_chunk, chunks_done, chunks_seen;
    unsigned n_ops;
    bool gathering;
};

/* All stand: sends; broadcast_settle may follow. */
void broadcast_move(struct broadcast *broadcast);

/* Answers and goes, as far as that may be. */
void broadcast_settle(struct broadcast *broadcast);

/* OVER, for this reason; it may be gone. */
void broadcast_give_up(struct broadcast *broadcast, const struct rdt_error *why);

#endif
