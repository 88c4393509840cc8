/* SPDX-License-Identifier: Apache-2.0 */
/* What worker.c (the thread of a GPU, and its groups), batch.c (its operations) and fail.c (states and failures) share. All
 * functions but party_set_state are for the worker's thread, which does not hold the mutex. */
#ifndef NCCL_WORKER_H
#define NCCL_WORKER_H

#include "backends/nccl/nccl.h"

struct batch { /* the operations of one group call */
    struct ring ring;
    struct party *party;
    CUevent event;
    bool enqueued;        /* NCCL has put it into the stream, and the event is recorded behind it */
    struct rdt_op *first; /* linked by priv[0] */
};

struct worker {
    struct ring ring; /* in nccl->workers */
    struct nccl *nccl;
    struct cuda_gpu *gpu;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    /* The mutex protects: */
    struct rdt_op *first, **last; /* posted operations that have not begun, in order, linked by priv[0] */
    struct ring parties;
    bool changed, end; /* the loop thread has changed something; the thread is to end */
    /* The thread only: */
    CUstream stream;
    bool entered;
    struct ring batches; /* in the order of the stream; only the last one may not be enqueued yet */
    unsigned n_batches;
};

/* op->priv: the next operation of the list, the side, and whether it is a send */
static inline struct rdt_op **next_of(struct rdt_op *op)
{
    return (struct rdt_op **)&op->priv[0];
}

static inline struct side *side_of(const struct rdt_op *op)
{
    return op->priv[1];
}

static inline bool is_send(const struct rdt_op *op)
{
    return op->priv[2];
}

static inline const struct nccl_api *api_of(const struct worker *worker)
{
    return worker->nccl->api;
}

/* ---- fail.c ---- */

/* Aborts if the table does not allow the move. Any thread, with the mutex. */
void party_set_state(struct party *party, enum party_state to);

/* Reports the failure of a group: once, and not while it closes. */
void worker_fail(struct worker *worker, struct party *party, const char *why);
void worker_fail_nccl(struct worker *worker, struct party *party, const char *what, int error);
void worker_fail_cuda(struct worker *worker, struct party *party, const char *what, CUresult result);

/* Returns the state of the communicator: SUCCESS, IN_PROGRESS, or an error, which has been reported to the core. */
int worker_query_comm(struct worker *worker, struct party *party, const char *what);

/* ---- batch.c ---- */

/* Hands the next operations to NCCL. False: there are none, or it is not their turn. */
bool batches_launch_next(struct worker *worker);

/* Records the event of the last batch as soon as NCCL has put the batch into the stream; until then no other batch may be
 * launched. */
void batches_finish_launching(struct worker *worker);

/* Ends the batches whose events have occurred. True: there was one. */
bool batches_reap(struct worker *worker);

/* The communicator has been aborted: ends the operations of the group that have not begun. Those in the stream end by
 * batches_reap. */
void batches_abort(struct worker *worker, struct party *party);

#endif
