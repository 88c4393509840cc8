/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: they are posted, found, cancelled and ended here. read.c and chunk.c move their bytes.
 *
 * A receive is in its bucket before post_recv returns, and the core lets the peer send only after that. So a chunk that finds
 * no receive belongs to a receive that was cancelled.
 */
#include <stdio.h>
#include <stdlib.h>

#include "backends/common/states.h"
#include "backends/ucx/ucx.h"

/* ---- states ---- */

/* The table has the moves of the drawing in ucx.h; any other move is a bug, and aborts the process. The caller holds the
 * lock. */
static void set_state(struct operation *operation, enum op_state to)
{
    static const struct sm_state states[] = {
        [OP_QUEUED] = {"queued operation", 1u << OP_RUNNING | 1u << OP_ENDING},
        [OP_RUNNING] = {"running operation", 1u << OP_ENDED},
        [OP_ENDING] = {"ending operation", 1u << OP_ENDED},
        [OP_ENDED] = {"ended operation", 0},
    };

    states_check(&operation->conn->engine->host, states, OP_ENDED + 1, operation->state, to);
    operation->state = to;
}

/* ---- receives ---- */

static struct ring *recv_bucket(struct conn *conn, uint64_t transfer, uint64_t chunk)
{
    return &conn->recvs[((transfer * 0x9e3779b97f4a7c15u) ^ (chunk * 0xd6e8feb86659fd93u)) >> 32 & (RECV_BUCKETS - 1)];
}

/* The caller holds the lock. */
static struct operation *recv_find(struct conn *conn, uint64_t transfer, uint64_t chunk)
{
    struct ring *bucket = recv_bucket(conn, transfer, chunk);

    for (struct ring *at = bucket->next; at != bucket; at = at->next) {
        struct operation *operation = container_of(at, struct operation, ring);

        if (operation->op->transfer == transfer && operation->op->chunk == chunk)
            return operation;
    }
    return NULL;
}

/* ---- loop thread ---- */

void thread_wake(struct engine *engine)
{
    if (!engine->asleep)
        return;
    engine->asleep = false; /* one signal is enough */
    (void)ucp_worker_signal(engine->worker);
}

enum rdt_status op_post(struct conn *conn, struct rdt_op *op, enum op_kind kind, struct rdt_error *err)
{
    struct engine *engine = conn->engine;
    struct operation *operation = calloc(1, sizeof *operation);
    enum rdt_status status = RDT_OK;

    if (!operation)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for an operation");
    operation->op = op;
    operation->conn = conn;
    operation->state = OP_QUEUED;
    operation->kind = kind;

    (void)pthread_mutex_lock(&engine->lock);
    if (conn->closing) {
        status = rdt_error_set(err, RDT_PEER_LOST, "the connection is closing");
    } else if (kind == OP_RECV && recv_find(conn, op->transfer, op->chunk)) {
        status = rdt_error_set(err, RDT_EXISTS, "chunk %llu of transfer %llu is posted already", (unsigned long long)op->chunk,
                               (unsigned long long)op->transfer);
    } else {
        op->priv[0] = operation;
        conn->posted++;
        engine->posted++;
        ring_append(kind != OP_RECV ? &conn->sends : recv_bucket(conn, op->transfer, op->chunk), &operation->ring);
        if (kind != OP_RECV && ring_empty(&conn->active))
            ring_append(&engine->active, &conn->active);
        /* A receive does not wake the data thread: its bytes will. */
        if (kind != OP_RECV)
            thread_wake(engine);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    if (status != RDT_OK)
        free(operation);
    return status;
}

/* The caller holds the lock. */
static void end_queued(struct engine *engine, struct operation *operation)
{
    ring_remove(&operation->ring);
    set_state(operation, OP_ENDING);
    ring_append(&engine->ending, &operation->ring);
}

/* UCX cannot cancel what it has begun, so a RUNNING operation is not affected. */
void op_cancel(struct conn *conn, struct rdt_op *op)
{
    struct engine *engine = conn->engine;
    struct operation *operation;

    (void)pthread_mutex_lock(&engine->lock);
    operation = op->priv[0]; /* NULL: it has ended, but the core has not handled its op_done yet */
    if (operation && operation->state == OP_QUEUED) {
        end_queued(engine, operation);
        thread_wake(engine);
    }
    (void)pthread_mutex_unlock(&engine->lock);
}

void ops_end_queued(struct conn *conn)
{
    while (!ring_empty(&conn->sends))
        end_queued(conn->engine, container_of(conn->sends.next, struct operation, ring));
    for (unsigned i = 0; i < RECV_BUCKETS; i++)
        while (!ring_empty(&conn->recvs[i]))
            end_queued(conn->engine, container_of(conn->recvs[i].next, struct operation, ring));
}

/* ---- data thread ---- */

static enum rdt_status status_of(ucs_status_t ucs)
{
    return ucs == UCS_OK ? RDT_OK : RDT_TRANSPORT;
}

void op_end(struct operation *operation, enum rdt_status status, const char *msg)
{
    struct conn *conn = operation->conn;
    struct engine *engine = conn->engine;
    struct rdt_op *op = operation->op;

    (void)pthread_mutex_lock(&engine->lock);
    op->priv[0] = NULL;
    set_state(operation, OP_ENDED);
    conn->posted--;
    engine->posted--;
    if (conn->closing) {
        if (status != RDT_OK)
            status = RDT_CANCELLED, msg = NULL;
        if (ring_empty(&conn->active))
            ring_append(&engine->active, &conn->active);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    engine->host.op_done(op, status, msg);
    free(operation);
}

void op_end_ucs(struct operation *operation, ucs_status_t ucs)
{
    op_end(operation, status_of(ucs), ucs == UCS_OK ? NULL : ucs_status_string(ucs));
}

struct operation *op_take_send(struct conn *conn)
{
    struct operation *operation;

    if (conn->closing || ring_empty(&conn->sends))
        return NULL;
    operation = container_of(conn->sends.next, struct operation, ring);
    ring_remove(&operation->ring);
    set_state(operation, OP_RUNNING);
    return operation;
}

struct operation *op_take_recv(struct conn *conn, const struct data_header *header)
{
    struct operation *operation;

    (void)pthread_mutex_lock(&conn->engine->lock);
    operation = recv_find(conn, header->transfer, header->chunk);
    if (operation) {
        ring_remove(&operation->ring);
        set_state(operation, OP_RUNNING);
    }
    (void)pthread_mutex_unlock(&conn->engine->lock);
    return operation;
}

void ops_report_ended(struct engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    while (!ring_empty(&engine->ending)) {
        struct operation *operation = container_of(engine->ending.next, struct operation, ring);

        ring_remove(&operation->ring);
        (void)pthread_mutex_unlock(&engine->lock);
        op_end(operation, RDT_CANCELLED, NULL);
        (void)pthread_mutex_lock(&engine->lock);
    }
    (void)pthread_mutex_unlock(&engine->lock);
}
