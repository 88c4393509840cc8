/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "nccl": CUDA memory between the ranks of a group. What its files share.
 *
 *   nccl.c        the table of operations, and the groups as the core sees them; loop thread
 *   worker.c        one GPU's thread, which makes all calls to NCCL and the driver for that GPU; its groups
 *   batch.c       the operations of that thread
 *   fail.c        states and failures of groups
 *   bootstrap.c   NCCL's socket to which the ranks of a group first connect
 *
 * A communicator belongs to the thread of its rank's GPU, which alone calls NCCL for it: it creates, posts and polls. Each
 * abort has a thread of its own: it waits for all that runs on the GPU, so also for communicators that nobody has aborted yet.
 * All groups of one GPU share that thread, one stream and one queue, in the order in which the core posts, because NCCL demands
 * that operations on one device run in one order over all of its communicators. The daemon's queue tickets (ticket.h) make that
 * order the same on all nodes.
 */
#ifndef NCCL_H
#define NCCL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "backends/common/ring.h"
#include "backends/nccl/bootstrap.h"
#include "backends/nccl/nccl_api.h"
#include "rdt_backend.h"

struct worker;

struct nccl {
    struct rdt_host host;
    struct cuda_driver *driver;
    const struct nccl_api *api;
    struct ring workers; /* struct worker.ring; loop thread */
};

struct side { /* another rank; the conn of the core */
    struct party *party;
    uint32_t rank;
};

/* The table in fail.c has exactly these moves:
 *
 *                    group_connect
 *  group_create ──► IDLE ──► WANTED ──► CONNECTING ──► READY
 *                    │          │           │            │  an error of NCCL or of the driver
 *                    │          ├───────────┴────────────┴──► FAILED
 *                    │          │ closing: the communicator has been aborted, and all operations have ended
 *                    │          └──► CLOSED, from WANTED, CONNECTING, READY and FAILED; then it is freed
 *                    └── closing: freed at once
 */
enum party_state {
    PARTY_IDLE,       /* group_connect has not been called yet */
    PARTY_WANTED,     /* the worker is to create the communicator */
    PARTY_CONNECTING, /* NCCL is creating the communicator */
    PARTY_READY,
    PARTY_FAILED, /* the failure was reported to the core; nothing is posted any more */
    PARTY_CLOSED, /* the communicator is gone, and no operation is left */
};

/* How far the end of its communicator is. The table in worker.c has exactly these moves:
 *
 *                     closing             ncclCommAbort has returned; the operations that have not begun end
 *  ABORT_NOT_BEGUN ──────────► ABORTING ────────────────────────────────────────────────────────────────────► ABORTED
 */
enum abort_state { ABORT_NOT_BEGUN, ABORTING, ABORTED };

struct party { /* one rank of a group */
    struct nccl *nccl;
    struct worker *worker;
    void *ctx;
    uint32_t rank, size;
    struct nccl_id id;
    struct side *sides; /* [size] */
    bool connected;     /* group_connect has been called; loop thread */
    int bootstrap_fd; /* of rank 0, until all ranks have connected: see bootstrap.h. After group_connect the worker's thread */
    /* The worker's mutex protects: */
    struct ring ring; /* in worker->parties, from group_connect on */
    enum party_state state;
    bool closing;
    /* The worker's thread only: */
    nccl_comm comm; /* while it is aborted, that thread's */
    unsigned n_batches;
    enum abort_state abort;
    pthread_t aborter;
    atomic_bool abort_returned;
};

/* Returns the worker of a GPU. The first group that needs the worker creates and starts it; the worker, and the GPU's context,
 * stay until the transport is closed. NOT_FOUND: there is no such GPU; NO_MEMORY; SYSTEM. This and all functions below: loop
 * thread. */
enum rdt_status worker_get(struct nccl *nccl, const char *uuid, struct worker **worker_p, struct rdt_error *err);
void worker_end(struct worker *worker);               /* joins the thread; every party of the worker has been closed */
struct worker *worker_first(const struct nccl *nccl); /* NULL: there is none */
const char *worker_uuid(const struct worker *worker);

void worker_connect(struct worker *worker, struct party *party); /* group_ready or group_failed follows */
void worker_close(struct worker *worker, struct party *party);   /* group_closed follows */

/* Queues an operation, which belongs to the worker until op_done. TRANSPORT: the group is closing or has failed, and the
 * operation stays the caller's. */
enum rdt_status worker_post(struct worker *worker, struct side *side, struct rdt_op *op, bool send, struct rdt_error *err);

#endif
