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

#include "backends/common/threads.h"
#include "backends/nccl/lane.h"

#define POLL_MIN_NS 20000
#define POLL_MAX_NS 2000000

/* ---- connecting ---- */

static bool enter(struct lane *lane, struct party *party)
{
    struct cuda_driver *driver = lane->nccl->driver;
    struct rdt_error err;
    CUresult result;

    if (lane->entered)
        return true;
    if (cuda_gpu_enter(driver, lane->gpu, &err) != RDT_OK) {
        lane_fail(lane, party, err.msg);
        return false;
    }
    result = driver->cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) {
        lane_fail_cuda(lane, party, "creating a stream for NCCL", result);
        cuda_gpu_leave(driver, lane->gpu);
        return false;
    }
    return lane->entered = true;
}

/* The caller does not hold the mutex. */
static void begin_connecting(struct lane *lane, struct party *party)
{
    struct nccl_config config = {sizeof config, NCCL_CONFIG_MAGIC, NCCL_CONFIG_VERSION, 0};
    int error;

    if (!enter(lane, party))
        return;
    (void)pthread_mutex_lock(&lane->mutex);
    party->state = PARTY_CONNECTING;
    (void)pthread_mutex_unlock(&lane->mutex);
    error = api_of(lane)->ncclCommInitRankConfig(&party->comm, (int)party->size, party->id, (int)party->rank, &config);
    if (error != NCCL_SUCCESS && error != NCCL_IN_PROGRESS)
        lane_fail_nccl(lane, party, "ncclCommInitRankConfig", error);
}

static void continue_connecting(struct lane *lane, struct party *party)
{
    bool report;

    if (lane_query_comm(lane, party, "connecting") != NCCL_SUCCESS)
        return;
    bootstrap_close(party->bootstrap_fd, false);
    party->bootstrap_fd = -1;
    (void)pthread_mutex_lock(&lane->mutex);
    party->state = PARTY_READY;
    report = !party->closing;
    (void)pthread_mutex_unlock(&lane->mutex);
    if (report)
        lane->nccl->host.group_ready(party->ctx);
}

/* ---- closing ---- */

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
    party->abort = ABORTING;
    if (party->comm && pthread_create(&party->aborter, NULL, run_abort, party) == 0)
        return;
    if (party->comm)
        (void)run_abort(party); /* there is no thread, so the other groups wait */
    party->comm = NULL;
    atomic_store(&party->abort_returned, true);
}

/* Aborts the communicator and ends its operations. True: the group is closed, and does not belong to the lane any more. The
 * caller does not hold the mutex. */
static bool continue_closing(struct lane *lane, struct party *party)
{
    if (party->abort == ABORT_NOT_BEGUN)
        begin_abort(party);
    if (party->abort == ABORTING) {
        if (!atomic_load(&party->abort_returned))
            return false;
        if (party->comm)
            (void)pthread_join(party->aborter, NULL);
        party->comm = NULL;
        party->abort = ABORTED;
        batches_abort(lane, party);
    }
    if (party->n_batches > 0)
        return false;
    (void)pthread_mutex_lock(&lane->mutex);
    party->state = PARTY_CLOSED;
    ring_remove(&party->ring);
    (void)pthread_mutex_unlock(&lane->mutex);
    lane->nccl->host.group_closed(party->ctx);
    return true;
}

/* ---- the thread ---- */

/* Does the next step for one group. True: the list of groups has changed. The caller does not hold the mutex: only this thread
 * removes a party from the list, and group_connect appends at its end. */
static bool step(struct lane *lane, struct party *party, bool *waits_p)
{
    enum party_state state;
    bool closing;

    (void)pthread_mutex_lock(&lane->mutex);
    state = party->state;
    closing = party->closing;
    (void)pthread_mutex_unlock(&lane->mutex);
    if (closing) {
        *waits_p = true;
        return continue_closing(lane, party);
    }
    if (state == PARTY_WANTED)
        begin_connecting(lane, party);
    else if (state == PARTY_CONNECTING)
        continue_connecting(lane, party);
    else if (state == PARTY_READY && party->n_batches > 0)
        (void)lane_query_comm(lane, party, "moving bytes");
    *waits_p |= state == PARTY_WANTED || state == PARTY_CONNECTING;
    return false;
}

static void step_all(struct lane *lane, bool *waits_p)
{
    struct ring *at;

    (void)pthread_mutex_lock(&lane->mutex);
    at = lane->parties.next;
    while (at != &lane->parties) {
        struct party *party = container_of(at, struct party, ring);
        struct ring *next = at->next;
        (void)pthread_mutex_unlock(&lane->mutex);
        (void)step(lane, party, waits_p);
        (void)pthread_mutex_lock(&lane->mutex);
        at = next;
    }
    (void)pthread_mutex_unlock(&lane->mutex);
}

static void *run(void *arg)
{
    struct lane *lane = arg;
    int64_t poll_ns = POLL_MIN_NS;

    for (;;) {
        bool waits = false, moved;
        step_all(lane, &waits);
        batches_finish_launching(lane);
        moved = batches_launch_next(lane);
        moved |= batches_reap(lane);
        poll_ns = moved ? POLL_MIN_NS : poll_ns + poll_ns / 2;
        if (poll_ns > POLL_MAX_NS)
            poll_ns = POLL_MAX_NS;
        (void)pthread_mutex_lock(&lane->mutex);
        if (lane->end && ring_empty(&lane->parties))
            break;
        if (waits || lane->n_batches > 0) { /* neither NCCL nor an event wakes the thread, so it polls */
            (void)cond_wait_ns(&lane->more, &lane->mutex, (uint64_t)poll_ns);
        } else if (!moved && !lane->changed) {
            (void)pthread_cond_wait(&lane->more, &lane->mutex);
            poll_ns = POLL_MIN_NS;
        }
        lane->changed = false;
        (void)pthread_mutex_unlock(&lane->mutex);
    }
    (void)pthread_mutex_unlock(&lane->mutex);
    if (lane->entered) {
        (void)lane->nccl->driver->cuStreamDestroy(lane->stream);
        cuda_gpu_leave(lane->nccl->driver, lane->gpu);
    }
    return NULL;
}

/* ---- loop thread ---- */

static void notify(struct lane *lane)
{
    lane->changed = true;
    (void)pthread_cond_signal(&lane->more);
}

enum rdt_status lane_get(struct nccl *nccl, const char *uuid, struct lane **lane_p, struct rdt_error *err)
{
    struct cuda_gpu *gpu;
    struct lane *lane;
    int error;
    enum rdt_status status = cuda_gpu_find(nccl->driver, uuid, &gpu, err);

    if (status != RDT_OK)
        return status;
    for (struct ring *at = nccl->lanes.next; at != &nccl->lanes; at = at->next) {
        lane = container_of(at, struct lane, ring);
        if (lane->gpu == gpu) {
            *lane_p = lane;
            return RDT_OK;
        }
    }
    lane = calloc(1, sizeof *lane);
    if (!lane)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the queue of a GPU");
    lane->nccl = nccl;
    lane->gpu = gpu;
    lane->last = &lane->first;
    ring_init(&lane->ring);
    ring_init(&lane->parties);
    ring_init(&lane->batches);
    (void)pthread_mutex_init(&lane->mutex, NULL);
    cond_init_monotonic(&lane->more);
    error = thread_create(&lane->thread, run, lane);
    if (error) {
        (void)pthread_cond_destroy(&lane->more);
        (void)pthread_mutex_destroy(&lane->mutex);
        free(lane);
        return rdt_error_sys(err, error, "starting the thread of GPU %s", uuid);
    }
    ring_append(&nccl->lanes, &lane->ring);
    *lane_p = lane;
    return RDT_OK;
}

void lane_end(struct lane *lane)
{
    (void)pthread_mutex_lock(&lane->mutex);
    lane->end = true;
    notify(lane);
    (void)pthread_mutex_unlock(&lane->mutex);
    (void)pthread_join(lane->thread, NULL);
    ring_remove(&lane->ring);
    (void)pthread_cond_destroy(&lane->more);
    (void)pthread_mutex_destroy(&lane->mutex);
    free(lane);
}

struct lane *lane_first(const struct nccl *nccl)
{
    return ring_empty(&nccl->lanes) ? NULL : container_of(nccl->lanes.next, struct lane, ring);
}

const char *lane_uuid(const struct lane *lane)
{
    return lane->gpu->uuid;
}

void lane_connect(struct lane *lane, struct party *party)
{
    (void)pthread_mutex_lock(&lane->mutex);
    party->state = PARTY_WANTED;
    ring_append(&lane->parties, &party->ring);
    notify(lane);
    (void)pthread_mutex_unlock(&lane->mutex);
}

void lane_close(struct lane *lane, struct party *party)
{
    (void)pthread_mutex_lock(&lane->mutex);
    party->closing = true;
    notify(lane);
    (void)pthread_mutex_unlock(&lane->mutex);
}

enum rdt_status lane_post(struct lane *lane, struct side *side, struct rdt_op *op, bool send, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    op->priv[0] = NULL;
    op->priv[1] = side;
    op->priv[2] = send ? lane : NULL;
    (void)pthread_mutex_lock(&lane->mutex);
    if (side->party->closing || side->party->state != PARTY_READY) {
        status = rdt_error_set(err, RDT_TRANSPORT, "the group is being taken down");
    } else {
        *lane->last = op;
        lane->last = next_of(op);
        notify(lane);
    }
    (void)pthread_mutex_unlock(&lane->mutex);
    return status;
}
