/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a worker, from its queue through the stream of its GPU to their ends.
 *
 * Consecutive operations in the queue of the same transfer and direction are handed to NCCL in one group call. A group call
 * must not span transfers: it ends as a whole, and the counterpart of the next transfer may not be posted before this one has
 * ended.
 */
#include <stdlib.h>

#include "backends/nccl/worker.h"

#define MAX_BATCH_OPS 64u /* in one group call */
#define MAX_BATCHES 4u    /* in the stream at a time */

static void end_ops(struct worker *worker, struct rdt_op *first, enum rdt_status status)
{
    while (first) {
        struct rdt_op *op = first;
        first = *next_of(op);
        worker->nccl->host.op_done(op, status, NULL);
    }
}

static void batch_free(struct worker *worker, struct batch *batch)
{
    ring_remove(&batch->ring);
    worker->n_batches--;
    batch->party->n_batches--;
    if (batch->event)
        (void)worker->nccl->driver->cuEventDestroy(batch->event);
    free(batch);
}

/* Takes the next operations for one group call. NULL: there is none, or its group is not READY. The caller holds the mutex. */
static struct rdt_op *take_batch(struct worker *worker, struct party **party_p)
{
    struct rdt_op *first = worker->first, *last = first;
    unsigned n = 1;

    if (!first || side_of(first)->party->state != PARTY_READY || side_of(first)->party->closing)
        return NULL;
    for (struct rdt_op *next; n < MAX_BATCH_OPS && (next = *next_of(last)) != NULL; n++, last = next)
        if (side_of(next) != side_of(first) || next->transfer != first->transfer || is_send(next) != is_send(first))
            break;
    *party_p = side_of(first)->party;
    worker->first = *next_of(last);
    if (!worker->first)
        worker->last = &worker->first;
    *next_of(last) = NULL;
    return first;
}

/* Records the batch's event behind its operations in the stream. */
static void record(struct worker *worker, struct batch *batch)
{
    CUresult result = worker->nccl->driver->cuEventRecord(batch->event, worker->stream);

    batch->enqueued = true;
    if (result != CUDA_SUCCESS)
        worker_fail_cuda(worker, batch->party, "recording an event behind NCCL's operations", result);
}

static void launch(struct worker *worker, struct party *party, struct rdt_op *first)
{
    const struct nccl_api *api = api_of(worker);
    struct batch *batch = calloc(1, sizeof *batch);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    int error = NCCL_SUCCESS, ended;

    if (batch)
        result = worker->nccl->driver->cuEventCreate(&batch->event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) {
        free(batch);
        worker_fail_cuda(worker, party, "creating an event for NCCL's operations", result);
        end_ops(worker, first, RDT_TRANSPORT);
        return;
    }
    batch->party = party;
    batch->first = first;
    ring_init(&batch->ring);
    ring_append(&worker->batches, &batch->ring);
    worker->n_batches++;
    party->n_batches++;
    error = api->ncclGroupStart();
    for (struct rdt_op *op = first; op && (error == NCCL_SUCCESS || error == NCCL_IN_PROGRESS); op = *next_of(op)) {
        int peer = (int)side_of(op)->rank;
        if (is_send(op))
            error = api->ncclSend(op->piece.addr, op->piece.bytes, NCCL_BYTES, peer, party->comm, worker->stream);
        else
            error = api->ncclRecv(op->piece.addr, op->piece.bytes, NCCL_BYTES, peer, party->comm, worker->stream);
    }
    ended = api->ncclGroupEnd();
    if (error == NCCL_SUCCESS || error == NCCL_IN_PROGRESS)
        error = ended;
    if (error == NCCL_SUCCESS)
        record(worker, batch);
    else if (error != NCCL_IN_PROGRESS)
        worker_fail_nccl(worker, party, is_send(first) ? "sending" : "receiving", error); /* the abort ends its operations */
}

static bool is_launching(const struct worker *worker)
{
    const struct batch *last = ring_empty(&worker->batches) ? NULL : container_of(worker->batches.prev, struct batch, ring);

    return last && !last->enqueued;
}

void batches_finish_launching(struct worker *worker)
{
    struct batch *batch;

    if (!is_launching(worker))
        return;
    batch = container_of(worker->batches.prev, struct batch, ring);
    if (batch->party->state != PARTY_FAILED && batch->party->abort == ABORT_NOT_BEGUN &&
        worker_query_comm(worker, batch->party, "starting operations") == NCCL_SUCCESS)
        record(worker, batch);
}

bool batches_reap(struct worker *worker)
{
    bool any = false;

    for (struct ring *at = worker->batches.next, *next; at != &worker->batches; at = next) {
        struct batch *batch = container_of(at, struct batch, ring);
        CUresult result;
        next = at->next;
        if (!batch->enqueued)
            break;
        result = worker->nccl->driver->cuEventQuery(batch->event);
        if (result == CUDA_ERROR_NOT_READY)
            break; /* nor have those behind it */
        if (result != CUDA_SUCCESS)
            worker_fail_cuda(worker, batch->party, "waiting for NCCL's operations", result);
        /* What a communicator has done that failed or is being aborted is unknown, so its operations end after its abort. */
        if ((batch->party->state == PARTY_FAILED || batch->party->abort == ABORTING) && batch->party->abort != ABORTED)
            continue;
        end_ops(worker, batch->first, batch->party->abort == ABORTED || result != CUDA_SUCCESS ? RDT_CANCELLED : RDT_OK);
        batch_free(worker, batch);
        any = true;
    }
    return any;
}

bool batches_launch_next(struct worker *worker)
{
    struct party *party = NULL;
    struct rdt_op *first;

    if (is_launching(worker) || worker->n_batches >= MAX_BATCHES)
        return false;
    (void)pthread_mutex_lock(&worker->mutex);
    first = take_batch(worker, &party);
    (void)pthread_mutex_unlock(&worker->mutex);
    if (first)
        launch(worker, party, first);
    return first;
}

static struct rdt_op *take_ops_of(struct worker *worker, const struct party *party)
{
    struct rdt_op *ops = NULL, **at = &worker->first;

    while (*at) {
        struct rdt_op *op = *at;
        if (side_of(op)->party != party) {
            at = next_of(op);
            continue;
        }
        *at = *next_of(op);
        *next_of(op) = ops;
        ops = op;
    }
    worker->last = at;
    return ops;
}

void batches_abort(struct worker *worker, struct party *party)
{
    struct rdt_op *ops;

    for (struct ring *at = worker->batches.next; at != &worker->batches; at = at->next) {
        struct batch *batch = container_of(at, struct batch, ring);
        if (batch->party == party && !batch->enqueued)
            record(worker, batch); /* NCCL may have put a part of it into the stream */
    }
    (void)pthread_mutex_lock(&worker->mutex);
    ops = take_ops_of(worker, party);
    (void)pthread_mutex_unlock(&worker->mutex);
    end_ops(worker, ops, RDT_CANCELLED);
    (void)batches_reap(worker);
}
