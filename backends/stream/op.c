/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: they are posted, taken by channels, cancelled and ended here.
 *
 * A receive is in its bucket before post_recv returns, and the core lets the peer send only after that. So a chunk that finds
 * no receive belongs to a receive that was cancelled, and is dropped; it delays no later chunk.
 */
#include <stdlib.h>

#include "backends/common/states.h"
#include "backends/stream/stream.h"

/* ---- states ---- */

/* The table has the moves of the drawing in stream.h; any other move is a bug, and aborts the process. The caller holds the
 * lock. */
static void set_state(struct operation *operation, enum op_state to)
{
    static const struct sm_state states[] = {
        [OP_QUEUED] = {"queued operation", 1u << OP_RUNNING | 1u << OP_ENDING},
        [OP_RUNNING] = {"running operation", 1u << OP_STOPPING | 1u << OP_ENDED},
        [OP_STOPPING] = {"stopping operation", 1u << OP_ENDED},
        [OP_ENDING] = {"ending operation", 1u << OP_ENDED},
        [OP_ENDED] = {"ended operation", 0},
    };

    states_check(&operation->conn->transport->host, states, OP_ENDED + 1, operation->state, to);
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

/* ---- any thread, with the lock ---- */

/* Has an idle channel, or a new one if the connection may have one more, take the queued sends. A channel that is busy or still
 * greeting takes from the queue by itself. */
void ops_start_sends(struct conn *conn)
{
    struct channel *channel;

    if (!conn->peer.known || conn->closing || conn->failed || ring_empty(&conn->sends))
        return;
    if (!ring_empty(&conn->idle)) {
        channel = container_of(conn->idle.next, struct channel, idle);
        ring_remove(&channel->idle);
    } else if (conn->n_out < (conn->way.why_not[0] ? 1 : conn->transport->settings.connections)) {
        channel = channel_create(conn, false); /* NULL: the next post tries again */
    } else {
        return;
    }
    if (channel)
        thread_attend(channel);
    else if (!conn->n_out)
        thread_visit(conn); /* the home thread fails a connection without any channel */
}

/* The channel waits and is freed, unless none of the peer comes. Without memory for it, one of the peer has to come. */
static void await_channel(struct conn *conn)
{
    struct channel *channel = channel_create(conn, true);

    if (channel)
        thread_attend(channel);
}

/* ---- loop thread ---- */

enum rdt_status op_post(struct conn *conn, struct rdt_op *op, bool is_send, struct rdt_error *err)
{
    struct transport *transport = conn->transport;
    struct operation *operation = calloc(1, sizeof *operation);
    enum rdt_status status = RDT_OK;

    if (!operation)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for an operation");
    operation->op = op;
    operation->conn = conn;
    operation->state = OP_QUEUED;

    (void)pthread_mutex_lock(&transport->lock);
    if (conn->closing) {
        status = rdt_error_set(err, RDT_PEER_LOST, "the connection is closing");
    } else if (!is_send && recv_find(conn, op->transfer, op->chunk)) {
        status = rdt_error_set(err, RDT_EXISTS, "chunk %llu of transfer %llu is posted already", (unsigned long long)op->chunk,
                               (unsigned long long)op->transfer);
    } else {
        op->priv[0] = operation;
        conn->posted++;
        ring_append(is_send ? &conn->sends : recv_bucket(conn, op->transfer, op->chunk), &operation->ring);
        if (is_send)
            ops_start_sends(conn);
        else if (!conn->n_in && conn->peer.known && !conn->failed)
            await_channel(conn); /* otherwise a receive wakes no thread: its bytes will */
    }
    (void)pthread_mutex_unlock(&transport->lock);
    if (status != RDT_OK)
        free(operation);
    return status;
}

/* The caller holds the lock. */
static void end_queued(struct operation *operation)
{
    struct thread *home = operation->conn->home;

    ring_remove(&operation->ring);
    set_state(operation, OP_ENDING);
    ring_append(&home->ending, &operation->ring);
    thread_wake(home);
}

/* A channel stops using an operation's memory between two system calls, however much of the chunk is still missing: it
 * reads the rest into scratch memory, or sends zeros instead and says so in the trailer. So a cancel needs no new
 * connection. */
void op_cancel(struct conn *conn, struct rdt_op *op)
{
    struct operation *operation;

    (void)pthread_mutex_lock(&conn->transport->lock);
    operation = op->priv[0]; /* NULL: it has ended, but the core has not handled its op_done yet */
    if (operation && operation->state == OP_QUEUED) {
        end_queued(operation);
    } else if (operation && operation->state == OP_RUNNING) {
        set_state(operation, OP_STOPPING);
        thread_attend(operation->channel);
    }
    (void)pthread_mutex_unlock(&conn->transport->lock);
}

void ops_end_queued(struct conn *conn)
{
    while (!ring_empty(&conn->sends))
        end_queued(container_of(conn->sends.next, struct operation, ring));
    for (unsigned i = 0; i < RECV_BUCKETS; i++)
        while (!ring_empty(&conn->recvs[i]))
            end_queued(container_of(conn->recvs[i].next, struct operation, ring));
}

/* ---- data threads ---- */

/* The caller holds the lock. */
static void start(struct operation *operation, struct channel *channel)
{
    ring_remove(&operation->ring);
    set_state(operation, OP_RUNNING);
    operation->channel = channel;
}

struct operation *op_take_send(struct channel *channel)
{
    struct transport *transport = channel->transport;
    struct conn *conn = channel->conn;
    struct operation *operation = NULL;

    (void)pthread_mutex_lock(&transport->lock);
    if (!conn->closing && !ring_empty(&conn->sends)) {
        operation = container_of(conn->sends.next, struct operation, ring);
        start(operation, channel);
        ring_remove(&channel->idle);
    } else if (ring_empty(&channel->idle)) {
        ring_append(&conn->idle, &channel->idle);
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return operation;
}

struct operation *op_take_recv(struct conn *conn, struct channel *channel, const struct header *header)
{
    struct operation *operation;

    (void)pthread_mutex_lock(&conn->transport->lock);
    operation = recv_find(conn, header->transfer, header->chunk);
    if (operation)
        start(operation, channel);
    (void)pthread_mutex_unlock(&conn->transport->lock);
    return operation;
}

void op_end(struct operation *operation, enum rdt_status status, const char *msg)
{
    struct conn *conn = operation->conn;
    struct transport *transport = conn->transport;
    struct rdt_op *op = operation->op;

    (void)pthread_mutex_lock(&transport->lock);
    op->priv[0] = NULL; /* a cancel from now on finds nothing */
    if (status != RDT_OK && (conn->closing || operation->state == OP_STOPPING))
        status = RDT_CANCELLED, msg = NULL;
    set_state(operation, OP_ENDED);
    (void)pthread_mutex_unlock(&transport->lock);

    transport->host.op_done(op, status, msg);
    free(operation);

    /* The count goes down after op_done, because conn_closed may be reported once it is zero, and must come after every
     * op_done. */
    (void)pthread_mutex_lock(&transport->lock);
    conn->posted--;
    if (conn->closing && !conn->posted)
        thread_visit(conn);
    (void)pthread_mutex_unlock(&transport->lock);
}

void ops_report_ended(struct thread *thread)
{
    struct transport *transport = thread->transport;

    (void)pthread_mutex_lock(&transport->lock);
    while (!ring_empty(&thread->ending)) {
        struct operation *operation = container_of(thread->ending.next, struct operation, ring);

        ring_remove(&operation->ring);
        (void)pthread_mutex_unlock(&transport->lock);
        op_end(operation, RDT_CANCELLED, NULL);
        (void)pthread_mutex_lock(&transport->lock);
    }
    (void)pthread_mutex_unlock(&transport->lock);
}
