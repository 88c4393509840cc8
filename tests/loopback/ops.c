/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: when they start, how they end, and what goes wrong with them. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/loopback/loopback.h"

#define MS_NS 1000000ull
#define LATE_BYTE 0xee /* written into the memory of a cancelled operation, with late_ms */

uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

enum rdt_status op_post(struct conn *conn, struct rdt_op *op, enum op_kind kind, struct rdt_error *err)
{
    struct transport *transport = conn->transport;
    struct faults faults = faults_now(transport);
    struct operation *operation, **at = &conn->operations;

    if (conn->closing)
        return rdt_error_set(err, RDT_PEER_LOST, "the connection is closing");
    if (kind == OP_READ && op->key_bytes != sizeof(uint64_t))
        return rdt_error_set(err, RDT_INVALID, "the key has %zu bytes instead of %zu", op->key_bytes, sizeof(uint64_t));
    operation = calloc(1, sizeof *operation);
    if (!operation)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for an operation");

    operation->op = op;
    operation->conn = conn;
    operation->kind = kind;
    operation->due_ns = now_ns();
    if (kind != OP_RECV && faults.delay_ms) {
        if (operation->due_ns < conn->next_due_ns)
            operation->due_ns = conn->next_due_ns;
        operation->due_ns += faults.delay_ms * MS_NS;
        conn->next_due_ns = operation->due_ns;
    }
    uint64_t n = ++transport->n_ops;
    if (faults.lose_every && n % faults.lose_every == 0)
        operation->state = OP_LOST;
    else if (faults.fail_every && n % faults.fail_every == 0)
        operation->status = RDT_TRANSPORT;
    else if (faults.give_up_every && n % faults.give_up_every == 0)
        operation->status = RDT_CANCELLED;

    op->priv[0] = operation;
    while (*at)
        at = &(*at)->next;
    *at = operation;
    for (at = &transport->queue; *at;)
        at = &(*at)->queue_next;
    if (transport->ordered && kind != OP_READ)
        *at = operation;
    return RDT_OK;
}

static void leave_queue(struct operation *operation)
{
    struct operation **at = &operation->conn->transport->queue;

    while (*at && *at != operation)
        at = &(*at)->queue_next;
    if (*at)
        *at = operation->queue_next;
}

static void unlink_operation(struct operation *operation)
{
    struct operation **at = &operation->conn->operations;

    while (*at != operation)
        at = &(*at)->next;
    *at = operation->next;
}

void op_end(struct operation *operation, enum rdt_status status, const char *msg)
{
    struct conn *conn = operation->conn;
    struct transport *transport = conn->transport;

    unlink_operation(operation);
    leave_queue(operation);
    if (conn->out.target == operation)
        conn->out.target = NULL;
    if (conn->in && conn->in->target == operation)
        conn->in->target = NULL;
    operation->state = OP_DONE;
    operation->status = status;
    operation->msg = msg;
    operation->next = NULL;
    *transport->done_last = operation;
    transport->done_last = &operation->next;
}

void op_cancel(struct operation *operation)
{
    struct faults faults = faults_now(operation->conn->transport);

    if (faults.no_abort || operation->state == OP_LOST || operation->state == OP_LATE || operation->state == OP_DONE)
        return;
    if (operation->kind == OP_SEND && operation->state == OP_RUNNING)
        return;
    if (faults.late_ms) {
        operation->state = OP_LATE;
        operation->due_ns = now_ns() + faults.late_ms * MS_NS;
    } else if (operation->state == OP_WAITING) {
        op_end(operation, RDT_CANCELLED, NULL);
    }
}

struct operation *op_find(struct conn *conn, enum op_kind kind, uint64_t transfer, uint64_t chunk)
{
    for (struct operation *at = conn->operations; at; at = at->next)
        if (at->kind == kind && at->op->transfer == transfer && at->op->chunk == chunk && at->status == RDT_OK &&
            at->state == (kind == OP_RECV ? OP_WAITING : OP_RUNNING))
            return at;
    return NULL;
}

uint8_t *loopback_real(uint8_t *addr, bool on_device)
{
    const char *fake = on_device ? getenv("RDT_FAKE_DEVICE_REAL") : NULL;
    void *(*real_of)(const void *) = fake ? (void *(*)(const void *))(uintptr_t)strtoull(fake, NULL, 16) : NULL;

    return real_of ? real_of(addr) : addr;
}

uint8_t *loopback_address(const struct rdt_op *op)
{
    return loopback_real(op->piece.addr, op->memory_kind && strcmp(op->memory_kind, "fake") == 0);
}

static void start(struct operation *operation)
{
    struct conn *conn = operation->conn;
    const struct rdt_op *op = operation->op;
    struct frame frame = {.type = FRAME_DATA, .transfer = op->transfer, .chunk = op->chunk, .bytes = op->piece.bytes};
    bool queued;

    if (operation->kind == OP_READ) {
        frame.type = FRAME_READ;
        frame.offset = op->key_offset;
        memcpy(&frame.key, op->key, sizeof frame.key);
        queued = wire_queue(&conn->out, &frame, NULL, NULL, NULL);
    } else {
        frame.refused = faults_now(conn->transport).flip_chunk == op->chunk + 1;
        queued = wire_queue(&conn->out, &frame, loopback_address(op), operation, NULL);
    }
    if (queued)
        operation->state = OP_RUNNING;
    else
        op_end(operation, RDT_TRANSPORT, "no memory for a message");
}

bool op_clear(struct conn *conn, uint64_t transfer, uint64_t chunk)
{
    struct clearance *clearance = calloc(1, sizeof *clearance);

    if (!clearance)
        return false;
    clearance->transfer = transfer;
    clearance->chunk = chunk;
    clearance->next = conn->clearances;
    conn->clearances = clearance;
    return true;
}

static bool take_clearance(struct conn *conn, const struct rdt_op *op)
{
    struct clearance **at = &conn->clearances, *found;

    while (*at && ((*at)->transfer != op->transfer || (*at)->chunk != op->chunk))
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    free(found);
    return found;
}

/* Runs the operation at the head of the queue, which has a connection: a receive tells its sender, and a send starts when it
 * has been told. */
static void run_at_head(struct operation *operation)
{
    struct frame frame = {.type = FRAME_CLEAR, .transfer = operation->op->transfer, .chunk = operation->op->chunk};
    struct conn *conn = operation->conn;

    if (operation->kind == OP_SEND && take_clearance(conn, operation->op))
        start(operation);
    else if (operation->kind == OP_RECV && !operation->cleared)
        operation->cleared = wire_queue(&conn->out, &frame, NULL, NULL, NULL);
}

static void run_due(struct operation *operation)
{
    struct conn *conn = operation->conn;
    bool ordered = conn->transport->ordered && operation->kind != OP_READ;

    if (operation->state == OP_LATE) {
        if (operation->kind != OP_SEND)
            memset(loopback_address(operation->op), LATE_BYTE, operation->op->piece.bytes);
        op_end(operation, RDT_CANCELLED, NULL);
    } else if (operation->status != RDT_OK) {
        op_end(operation, operation->status, operation->status == RDT_CANCELLED ? NULL : "a failure was asked for");
    } else if ((operation->kind != OP_RECV || ordered) && (!ordered || conn->transport->queue == operation) &&
               conn->connected && !conn->failed) {
        if (conn->out.fd < 0)
            wire_connect(conn);
        if (conn->out.fd >= 0 && ordered)
            run_at_head(operation);
        else if (conn->out.fd >= 0)
            start(operation);
    }
}

/* A send whose chunk is held is due again after a millisecond. */
static bool is_held(struct operation *operation, uint64_t now)
{
    if (operation->kind != OP_SEND || operation->state != OP_WAITING ||
        faults_now(operation->conn->transport).hold_chunk != operation->op->chunk + 1)
        return false;
    operation->due_ns = now + MS_NS;
    return true;
}

uint64_t ops_run(struct conn *conn)
{
    uint64_t now = now_ns(), next_ns = conn->closing ? conn->close_ns : 0;

    for (struct operation *at = conn->operations, *next; at; at = next) {
        next = at->next;
        if (at->state != OP_WAITING && at->state != OP_LATE)
            continue;
        if (at->due_ns <= now && !is_held(at, now))
            run_due(at);
        else if (at->due_ns > now && (!next_ns || at->due_ns < next_ns))
            next_ns = at->due_ns;
    }
    return next_ns;
}

void conn_lost(struct conn *conn)
{
    conn->failed = true;
}

bool conn_end_if_due(struct conn *conn)
{
    struct conn **at = &conn->transport->conns;

    if (!conn->closing || now_ns() < conn->close_ns)
        return false;
    wire_drop(&conn->out);
    if (conn->in)
        wire_drop(conn->in);
    while (conn->operations)
        op_end(conn->operations, RDT_CANCELLED, NULL);
    while (conn->clearances) {
        struct clearance *clearance = conn->clearances;
        conn->clearances = clearance->next;
        free(clearance);
    }
    while (*at != conn)
        at = &(*at)->next;
    *at = conn->next;
    return true;
}
