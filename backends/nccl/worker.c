/* SPDX-License-Identifier: Apache-2.0 */
/* See nccl.h. In each round the thread of a GPU closes groups, connects groups, hands the next operations to NCCL, and ends
 * operations that have finished. It never waits inside NCCL or the driver; ncclCommAbort, which does, has threads of its own.
 *
 * NCCL has no time-outs, and notices a dead peer late or never. The core has the deadlines: it closes the group, and
 * ncclCommAbort ends the kernels; an operation ends only when the event behind its kernel has occurred.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/common/states.h"
#include "backends/common/threads.h"
#include "backends/nccl/worker.h"

#define POLL_MIN_NS 20000
#define POLL_MAX_NS 2000000

/* ---- connecting ---- */

static bool enter(struct worker *worker, struct party *party)
{
    struct cuda_driver *driver = worker->nccl->driver;
    struct rdt_error err;
    CUresult result;

    if (worker->entered)
        return true;
    if (cuda_gpu_enter(driver, worker->gpu, &err) != RDT_OK) {
        worker_fail(worker, party, err.msg);
        return false;
    }
    result = driver->cuStreamCreate(&worker->stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) {
        worker_fail_cuda(worker, party, "creating a stream for NCCL", result);
        cuda_gpu_leave(driver, worker->gpu);
        return false;
    }
    return worker->entered = true;
}

/* The caller does not hold the mutex. */
static void begin_connecting(struct worker *worker, struct party *party)
{
    struct nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};
    int error;

    if (!enter(worker, party))
        return;
    (void)pthread_mutex_lock(&worker->mutex);
    party_set_state(party, PARTY_CONNECTING);
    (void)pthread_mutex_unlock(&worker->mutex);
    error = api_of(worker)->ncclCommInitRankConfig(&party->comm, (int)party->size, party->id, (int)party->rank, &config);
    if (error != NCCL_SUCCESS && error != NCCL_IN_PROGRESS)
        worker_fail_nccl(worker, party, "ncclCommInitRankConfig", error);
}

static void continue_connecting(struct worker *worker, struct party *party)
{
    bool report;

    if (worker_query_comm(worker, party, "connecting") != NCCL_SUCCESS)
        return;
    bootstrap_close(party->bootstrap_fd, false);
    party->bootstrap_fd = -1;
    (void)pthread_mutex_lock(&worker->mutex);
    party_set_state(party, PARTY_READY);
    report = !party->closing;
    (void)pthread_mutex_unlock(&worker->mutex);
    if (report)
        worker->nccl->host.group_ready(party->ctx);
}

/* ---- closing ---- */

/* The drawing is in nccl.h. */
static void set_abort(struct party *party, enum abort_state to)
{
    static const struct sm_state states[] = {
        [ABORT_NOT_BEGUN] = {"group without an abort", 1u << ABORTING},
        [ABORTING] = {"aborting group", 1u << ABORTED},
        [ABORTED] = {"aborted group", 0},
    };

    states_check(&party->nccl->host, states, ABORTED + 1, party->abort, to);
    party->abort = to;
}

static void *run_abort(void *arg)
{
    struct party *party = arg;

    (void)party->nccl->api->ncclCommAbort(party->comm);
    atomic_store(&party->abort_returned, true);
    return NULL;
}

/* Begins to abort the communicator. The thread inherits that all signals are blocked. */
static void begin_abort(struct party *party)
{
    bootstrap_close(party->bootstrap_fd, true);
    party->bootstrap_fd = -1;
    set_abort(party, ABORTING);
    if (party->comm && pthread_create(&party->aborter, NULL, run_abort, party) == 0)
        return;
    if (party->comm)
        (void)run_abort(party); /* there is no thread, so the other groups wait */
    party->comm = NULL;
    atomic_store(&party->abort_returned, true);
}

/* Aborts the communicator and ends its operations. True: the group is closed, and does not belong to the worker any more. The
 * caller does not hold the mutex. */
static bool continue_closing(struct worker *worker, struct party *party)
{
    if (party->abort == ABORT_NOT_BEGUN)
        begin_abort(party);
    if (party->abort == ABORTING) {
        if (!atomic_load(&party->abort_returned))
            return false;
        if (party->comm)
            (void)pthread_join(party->aborter, NULL);
        party->comm = NULL;
        set_abort(party, ABORTED);
        batches_abort(worker, party);
    }
    if (party->n_batches > 0)
        return false;
    (void)pthread_mutex_lock(&worker->mutex);
    party_set_state(party, PARTY_CLOSED);
    ring_remove(&party->ring);
    (void)pthread_mutex_unlock(&worker->mutex);
    worker->nccl->host.group_closed(party->ctx);
    return true;
}

/* ---- the thread ---- */

/* Does the next step for one group. True: the list of groups has changed. The caller does not hold the mutex: only this thread
 * removes a party from the list, and group_connect appends at its end. */
static bool step(struct worker *worker, struct party *party, bool *waits_p)
{
    enum party_state state;
    bool closing;

    (void)pthread_mutex_lock(&worker->mutex);
    state = party->state;
    closing = party->closing;
    (void)pthread_mutex_unlock(&worker->mutex);
    if (closing) {
        *waits_p = true;
        return continue_closing(worker, party);
    }
    if (state == PARTY_WANTED)
        begin_connecting(worker, party);
    else if (state == PARTY_CONNECTING)
        continue_connecting(worker, party);
    else if (state == PARTY_READY && party->n_batches > 0)
        (void)worker_query_comm(worker, party, "moving bytes");
    *waits_p |= state == PARTY_WANTED || state == PARTY_CONNECTING;
    return false;
}

static void step_all(struct worker *worker, bool *waits_p)
{
    struct ring *at;

    (void)pthread_mutex_lock(&worker->mutex);
    at = worker->parties.next;
    while (at != &worker->parties) {
        struct party *party = container_of(at, struct party, ring);
        struct ring *next = at->next;
        (void)pthread_mutex_unlock(&worker->mutex);
        (void)step(worker, party, waits_p);
        (void)pthread_mutex_lock(&worker->mutex);
        at = next;
    }
    (void)pthread_mutex_unlock(&worker->mutex);
}

static void *run(void *arg)
{
    struct worker *worker = arg;
    int64_t poll_ns = POLL_MIN_NS;

    for (;;) {
        bool waits = false, moved;
        step_all(worker, &waits);
        batches_finish_launching(worker);
        moved = batches_launch_next(worker);
        moved |= batches_reap(worker);
        poll_ns = moved ? POLL_MIN_NS : poll_ns + poll_ns / 2;
        if (poll_ns > POLL_MAX_NS)
            poll_ns = POLL_MAX_NS;
        (void)pthread_mutex_lock(&worker->mutex);
        if (worker->end && ring_empty(&worker->parties))
            break;
        if (waits || worker->n_batches > 0) { /* neither NCCL nor an event wakes the thread, so it polls */
            (void)cond_wait_ns(&worker->more, &worker->mutex, (uint64_t)poll_ns);
        } else if (!moved && !worker->changed) {
            (void)pthread_cond_wait(&worker->more, &worker->mutex);
            poll_ns = POLL_MIN_NS;
        }
        worker->changed = false;
        (void)pthread_mutex_unlock(&worker->mutex);
    }
    (void)pthread_mutex_unlock(&worker->mutex);
    if (worker->entered) {
        (void)worker->nccl->driver->cuStreamDestroy(worker->stream);
        cuda_gpu_leave(worker->nccl->driver, worker->gpu);
    }
    return NULL;
}

/* ---- loop thread ---- */

static void notify(struct worker *worker)
{
    worker->changed = true;
    (void)pthread_cond_signal(&worker->more);
}

enum rdt_status worker_get(struct nccl *nccl, const char *uuid, struct worker **worker_p, struct rdt_error *err)
{
    struct cuda_gpu *gpu;
    struct worker *worker;
    int error;
    enum rdt_status status = cuda_gpu_find(nccl->driver, uuid, &gpu, err);

    if (status != RDT_OK)
        return status;
    for (struct ring *at = nccl->workers.next; at != &nccl->workers; at = at->next) {
        worker = container_of(at, struct worker, ring);
        if (worker->gpu == gpu) {
            *worker_p = worker;
            return RDT_OK;
        }
    }
    worker = calloc(1, sizeof *worker);
    if (!worker)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the queue of a GPU");
    worker->nccl = nccl;
    worker->gpu = gpu;
    worker->last = &worker->first;
    ring_init(&worker->ring);
    ring_init(&worker->parties);
    ring_init(&worker->batches);
    (void)pthread_mutex_init(&worker->mutex, NULL);
    cond_init_monotonic(&worker->more);
    error = thread_create(&worker->thread, run, worker);
    if (error) {
        (void)pthread_cond_destroy(&worker->more);
        (void)pthread_mutex_destroy(&worker->mutex);
        free(worker);
        return rdt_error_sys(err, error, "starting the thread of GPU %s", uuid);
    }
    ring_append(&nccl->workers, &worker->ring);
    *worker_p = worker;
    return RDT_OK;
}

void worker_end(struct worker *worker)
{
    (void)pthread_mutex_lock(&worker->mutex);
    worker->end = true;
    notify(worker);
    (void)pthread_mutex_unlock(&worker->mutex);
    (void)pthread_join(worker->thread, NULL);
    ring_remove(&worker->ring);
    (void)pthread_cond_destroy(&worker->more);
    (void)pthread_mutex_destroy(&worker->mutex);
    free(worker);
}

struct worker *worker_first(const struct nccl *nccl)
{
    return ring_empty(&nccl->workers) ? NULL : container_of(nccl->workers.next, struct worker, ring);
}

const char *worker_uuid(const struct worker *worker)
{
    return worker->gpu->uuid;
}

void worker_connect(struct worker *worker, struct party *party)
{
    (void)pthread_mutex_lock(&worker->mutex);
    party_set_state(party, PARTY_WANTED);
    ring_append(&worker->parties, &party->ring);
    notify(worker);
    (void)pthread_mutex_unlock(&worker->mutex);
}

void worker_close(struct worker *worker, struct party *party)
{
    (void)pthread_mutex_lock(&worker->mutex);
    party->closing = true;
    notify(worker);
    (void)pthread_mutex_unlock(&worker->mutex);
}

enum rdt_status worker_post(struct worker *worker, struct side *side, struct rdt_op *op, bool send, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    op->priv[0] = NULL;
    op->priv[1] = side;
    op->priv[2] = send ? worker : NULL;
    (void)pthread_mutex_lock(&worker->mutex);
    if (side->party->closing || side->party->state != PARTY_READY) {
        status = rdt_error_set(err, RDT_TRANSPORT, "the group is being taken down");
    } else {
        *worker->last = op;
        worker->last = next_of(op);
        notify(worker);
    }
    (void)pthread_mutex_unlock(&worker->mutex);
    return status;
}
