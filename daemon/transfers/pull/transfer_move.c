/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side while bytes move: receives or reads chunks, watches the progress, notes failures. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/text.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_order.h"
#include "daemon/transfers/transfer_record.h"

#define SMALL_COPY (256u << 10)

static void on_chunk_done(struct plugin_op *base, enum rdt_status status, const char *msg);

/* Whether operations of this attempt may be under way and count. */
static bool is_moving(const struct transfer *transfer)
{
    return transfer->sm.state == TRANSFER_MOVE || transfer->sm.state == TRANSFER_EARLY;
}

void transfer_in_fail_noted(struct transfer *transfer)
{
    transfer->pull.ping = 0;
    if (transfer->pull.failed != RDT_OK)
        transfer_fail(transfer, transfer->pull.failed, "%s: %s", transfer->record.path, transfer->pull.failure);
}

static void note_failure(struct transfer *transfer, enum rdt_status status, const char *msg)
{
    if (transfer->pull.failed != RDT_OK)
        return;
    /* Nobody cancelled this operation: the whole connection has ended, or the transport knows why. */
    if (status == RDT_CANCELLED && transfer->pull.connection)
        status = RDT_TRANSPORT, msg = transfer->pull.connection->broken;
    transfer->pull.failed = status;
    text_copy(transfer->pull.failure, sizeof transfer->pull.failure,
              msg && msg[0] ? msg : "the transport cancelled an operation that the daemon had not cancelled");
    if (transfer->sm.state == TRANSFER_EARLY)
        return; /* The owner has not started: its answer may choose another path. */
    if (transfer->sm.state == TRANSFER_TICKET)
        order_leave(&transfer->record); /* The transfer has posted nothing. */
    peer_session_verify(transfer);
}

void transfer_in_on_stall(struct deadline *deadline)
{
    struct transfer *transfer = container_of(deadline, struct transfer, pull.stall);
    struct transfers *transfers = transfer->transfers;
    char why[sizeof transfer->pull.failure];

    if (transfer->sm.state == TRANSFER_ABORT || transfer->sm.state == TRANSFER_REWIND) {
        if (transfer->pull.connection && transfer->pull.connection->sm.state != PT_NONE)
            peer_transport_isolate(transfer->pull.connection,
                                   transfer->sm.state == TRANSFER_ABORT
                                       ? "the operations of an aborted transfer do not end"
                                       : "the operations of a transfer that starts again do not end");
        return;
    }
    if (transfer->sm.state == TRANSFER_CONNECT) {
        transfer_fail(transfer, RDT_TRANSPORT, "%s: its connection to node %s was not rebuilt in time", transfer->record.path,
                      transfer->record.peer);
        return;
    }
    if (transfer->pull.failed != RDT_OK) {
        transfer_in_fail_noted(transfer);
        return;
    }
    if (transfer->sm.state == TRANSFER_TICKET) {
        (void)snprintf(why, sizeof why, "node %s has said nothing about its queue ticket for %.1f s (stall_timeout)",
                       transfer->record.peer, (double)transfers->options->stall_timeout_ns / 1e9);
        note_failure(transfer, RDT_TRANSPORT, why);
        return;
    }
    if (transfer->record.bytes_done == transfer->pull.stall_bytes && !order_waits_behind(&transfer->record)) {
        (void)snprintf(why, sizeof why, "it moved nothing for %.1f s (stall_timeout) after %llu of %llu bytes",
                       (double)transfers->options->stall_timeout_ns / 1e9, (unsigned long long)transfer->record.bytes_done,
                       (unsigned long long)transfer->stream_bytes);
        /* The node itself may stand still or be gone: the answer to the ping decides. */
        note_failure(transfer, RDT_TRANSPORT, why);
        return;
    }
    transfer->pull.stall_bytes = transfer->record.bytes_done;
    (void)deadline_set(transfers->deadlines, &transfer->pull.stall, (int64_t)transfers->options->stall_timeout_ns);
}

/* The replica has the chunk, which comes again because one before it is missing. The one in memory must stay as it is: it may
 * be on its way to other nodes, and a receive that fails may leave any bytes. A read leaves only bytes of the object. */
static bool is_there(const struct transfer *transfer, uint32_t index)
{
    return transfer->pull.replica && !transfer->pull.one_sided && !replica_wants(transfer->pull.replica, index);
}

/* Memory for chunks that are received and not needed, one over the other; NULL: there is none. */
static uint8_t *unneeded(struct transfer *transfer)
{
    const struct chunk_plan *plan = transfer->pull.plan;
    uint64_t most = 0;

    for (uint32_t i = 0; !transfer->pull.unneeded && i < plan->n; i++)
        most = plan->chunks[i].bytes > most ? plan->chunks[i].bytes : most;
    if (!transfer->pull.unneeded)
        transfer->pull.unneeded = malloc(most);
    return transfer->pull.unneeded;
}

static struct chunk_op *make_op(struct transfer *transfer, uint32_t index, struct rdt_error *err)
{
    const struct chunk *chunk = &transfer->pull.plan->chunks[index];
    struct chunk_ground ground = transfer_ground(transfer);
    bool there = is_there(transfer, index);
    struct chunk_op *op = chunk_op_create(chunk, there ? NULL : &ground);

    if (!op || (there && !unneeded(transfer))) {
        free(op);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to receive %llu bytes", (unsigned long long)chunk->bytes);
        return NULL;
    }
    op->in = transfer;
    op->chunk = index;
    op->base.on_done = on_chunk_done;
    op->base.op.transfer = transfer->id;
    op->base.op.chunk = index;
    if (there)
        op->base.op.piece.addr = transfer->pull.unneeded;
    else if (!op->in_place)
        op->base.op.piece.addr = op->staging =
            transfer->pull.staged_here ? stage_take_slot(transfer->pull.stage) : transfer_take_staging(transfer, chunk->bytes);
    return op;
}

/* Posts this node's part of a collective broadcast, under the root's number of it. */
static enum rdt_status post_part(struct transfer *transfer, struct chunk_op *op, struct rdt_error *err)
{
    struct group *group = transfer->pull.connection->group;
    struct group_rank *here = group ? group_rank_here(group) : NULL;
    uint32_t root;

    if (!transfer->pull.member || !here || !here->open || !group_has(group, transfer->pull.peer->peer->uuid, NULL, &root))
        return rdt_error_set(err, RDT_TRANSPORT, "the group has ended, or was formed anew");
    op->base.op.transfer = transfer->pull.broadcast.number;
    return plugin_group_broadcast(&here->vendor, root, &op->base, err);
}

static enum rdt_status post(struct transfer *transfer, uint32_t index, struct rdt_error *err)
{
    struct chunk_op *op = make_op(transfer, index, err);
    enum rdt_status status;

    if (!op)
        return RDT_NO_MEMORY;
    if (transfer->pull.one_sided) {
        const struct chunk *chunk = &transfer->pull.plan->chunks[index];
        uint32_t i = chunk->first, key = transfer->pull.remote->region[i];
        op->base.op.key = transfer->pull.keys[key];
        op->base.op.key_bytes = transfer->pull.key_bytes[key];
        op->base.op.key_offset = transfer->pull.remote->offset[i] + (chunk->offset - transfer->packed->offset[i]);
        status = plugin_op_read(&transfer->pull.connection->conn, &op->base, err);
    } else if (transfer->pull.broadcast.collective) {
        status = post_part(transfer, op, err);
    } else {
        status = plugin_op_recv(&transfer->pull.connection->conn, &op->base, err);
    }
    if (status != RDT_OK) {
        free(op);
        return status;
    }
    transfer->pull.chunk_ops[index] = op;
    transfer->n_ops++;
    return RDT_OK;
}

void transfer_in_ask_start(struct transfer *transfer)
{
    Rdt__Pb__PullStart start = RDT__PB__PULL_START__INIT;
    struct rdt_error err = {0};

    start.transfer = transfer->id;
    start.transport = (char *)transfer->pull.connection->transport->name;
    start.chunk_bytes = transfer_chunk_bytes(transfer);
    start.epoch = transfer->pull.connection->epoch;
    start.one_sided = transfer->pull.one_sided;
    if (transfer->pull.connection->group) {
        start.group =
            (ProtobufCBinaryData){sizeof transfer->pull.connection->group->token, transfer->pull.connection->group->token};
        start.reader_rank = transfer->pull.connection->rank_here;
        start.owner_rank = transfer->pull.connection->rank_there;
    }
    start.first_chunk = transfer->pull.one_sided ? 0 : transfer->pull.first_chunk;
    start.tickets = transfer->record.order != NULL;
    start.single = transfer->pull.single;
    if (transfer->pull.staged_here && !transfer->pull.one_sided)
        start.window =
            transfer->pull.stage->slots < transfer->pull.plan->n ? transfer->pull.stage->slots : transfer->pull.plan->n;
    start.broadcast = transfer->pull.broadcast.number;
    if (peer_session_send(transfer->pull.peer, RDT_PEER_PULL_START, &start.base, &err) != RDT_OK)
        transfer_fail_err(transfer, &err);
}

void transfer_in_heard(struct transfer *transfer)
{
    transfer->pull.silent_beats = 0;
    transfer->pull.heard = true;
}

void transfer_in_watch(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    (void)deadline_set(transfers->deadlines, &transfer->pull.stall, (int64_t)transfers->options->stall_timeout_ns);
}

/* Lets the next transfer of the queue post behind this one, when as few chunks are left as the owner has
 * posted too. */
static void pass_on_if_nearly_done(const struct transfer *transfer)
{
    if (transfer->pull.plan->n - transfer->pull.chunks_done <= transfer->transfers->options->chunks_in_flight)
        order_pass_on(&transfer->record);
}

/* A transfer that comes back from a replica which failed skips the chunks that have arrived in order. The
 * last chunk always comes again, so that there is something to wait for. */
static void skip_arrived(struct transfer *transfer)
{
    uint32_t next = 0;

    while (transfer->pull.replica && next + 1 < transfer->pull.plan->n && !replica_wants(transfer->pull.replica, next))
        transfer->record.bytes_done += transfer->pull.plan->chunks[next++].bytes;
    transfer->pull.first_chunk = transfer->pull.next_chunk = transfer->pull.chunks_done = next;
    transfer->record.source_from = transfer->record.bytes_done;
}

void transfer_in_fail_here(struct transfer *transfer, const struct rdt_error *err)
{
    transfer->pull.failed_here = true;
    transfer_fail_err(transfer, err);
}

/* A failed post: if the connection has failed, the transport decides, or the link if the node is gone. */
static void post_failed(struct transfer *transfer, const struct rdt_error *err)
{
    if (err->status == RDT_TRANSPORT || err->status == RDT_PEER_LOST)
        note_failure(transfer, RDT_TRANSPORT, err->msg);
    else
        transfer_in_fail_here(transfer, err);
}

void transfer_in_refused(struct transfer *transfer, const struct peer_transport *pt)
{
    if (transfer->sm.state != TRANSFER_CONNECT || transfer->pull.member || transfer->subpull.parent ||
        (transfer->pull.connection && transfer->pull.connection != pt))
        return;
    transfer_in_rewind(transfer);
}

/* Nothing has moved yet, so the transfer can wait until the connection is rebuilt or the link goes down. */
void transfer_in_wait(struct transfer *transfer)
{
    transfer_set_state(transfer, TRANSFER_CONNECT);
    transfer_in_watch(transfer);
}

/* Both ends have their tickets. The operations hold their places in the queue only as long as necessary. */
static void receive_in_order(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    uint64_t id = transfer->id;

    order_receives_posted(transfer);
    if (map_get_u64(&transfers->by_id, id) == transfer)
        pass_on_if_nearly_done(transfer);
}

void transfer_in_receive(struct transfer *transfer)
{
    bool early = transfer->sm.state == TRANSFER_ASKED;
    struct rdt_error err = {0};

    transfer_set_state(transfer, early ? TRANSFER_EARLY : TRANSFER_MOVE);
    if (!early)
        transfer_in_watch(transfer);
    if (!transfer->pull.one_sided) /* All receives must be posted before the first send can arrive. */
        for (; transfer->pull.next_chunk < transfer->pull.plan->n && transfer_has_slot(transfer); transfer->pull.next_chunk++)
            if (post(transfer, transfer->pull.next_chunk, &err) != RDT_OK) {
                post_failed(transfer, &err);
                return;
            }
    if (transfer->record.order)
        receive_in_order(transfer);
    else if (!early)
        transfer_in_ask_start(transfer);
}

void transfer_in_move(struct transfer *transfer)
{
    struct rdt_error err = {0};
    enum rdt_status status;

    /* The group was destroyed while memory was reserved. It will not be formed anew. */
    if (transfer_group_is_gone(transfer->pull.connection)) {
        transfer_fail(transfer, RDT_TRANSPORT, "%s: the group is destroyed", transfer->pull.connection->transport->name);
        return;
    }
    if (transfer->pull.connection->sm.state != PT_CONNECTED || !transfer_group_is_open(transfer->pull.connection)) {
        transfer_in_wait(transfer);
        /* The other node declined while memory was reserved. */
        if (!transfer->pull.connection->group && transfer->pull.connection->remote_why_not[0] != '\0')
            transfer_in_refused(transfer, transfer->pull.connection);
        return;
    }
    status = transfer_plan(transfer, &err);
    if (status == RDT_OK && transfer->pull.replica)
        status = replica_plan(transfer->pull.replica, transfer->pull.plan, &err);
    if (status == RDT_OK && !(transfer->pull.chunk_ops = calloc(transfer->pull.plan->n + 1u, sizeof(struct chunk_op *))))
        status = rdt_error_set(&err, RDT_NO_MEMORY, "no memory for %u chunks", transfer->pull.plan->n);
    if (status == RDT_OK && !transfer->pull.one_sided && order_wanted(transfer, transfer->pull.connection))
        status = order_in_begin(transfer, &err);
    if (status != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    skip_arrived(transfer);
    if (!transfer->record.order) {
        transfer_in_receive(transfer);
        return;
    }
    transfer_set_state(transfer, TRANSFER_TICKET);
    transfer_in_watch(transfer);
    transfer_in_ask_start(transfer);
}

void transfer_in_read_more(struct transfer *transfer)
{
    struct rdt_error err = {0};

    if (transfer->pull.failed != RDT_OK || transfer->pull.connection->sm.state != PT_CONNECTED)
        return; /* There is no connection to post to, or a new one: the noted failure ends the transfer. */
    while (transfer->pull.next_chunk < transfer->pull.plan->n &&
           transfer->n_ops < transfer->transfers->options->chunks_in_flight && transfer_has_slot(transfer)) {
        if (post(transfer, transfer->pull.next_chunk, &err) != RDT_OK) {
            post_failed(transfer, &err);
            return;
        }
        transfer->pull.next_chunk++;
    }
}

/* ---- chunks ---- */

static void deliver_replica(struct transfer *transfer, struct replica *replica)
{
    replica_whole(replica);
    transfer_deliver_object(transfer, replica->object, replica->object->layout, PATH_SHARE);
}

static void finish(struct transfer *transfer)
{
    if (transfer->pull.one_sided) {
        Rdt__Pb__PullEnd end = RDT__PB__PULL_END__INIT;
        end.transfer = transfer->id;
        (void)peer_session_send(transfer->pull.peer, RDT_PEER_PULL_END, &end.base, NULL);
    }
    transfer->pull.connection->failures = 0;
    if (transfer->pull.broadcast.collective)
        text_copy(transfer->record.lanes, sizeof transfer->record.lanes, "broadcast");
    record_lanes(&transfer->record, &transfer->pull.connection->conn);
    if (transfer->pull.replica)
        deliver_replica(transfer, transfer->pull.replica);
    else
        transfer_deliver_received(transfer);
    if (transfer->kind->complete)
        transfer->kind->complete(transfer);
    transfer_end(transfer);
}

/* A slot is free again, so the owner may send one more chunk. */
static void receive_more(struct transfer *transfer)
{
    Rdt__Pb__PullCredit credit = RDT__PB__PULL_CREDIT__INIT;
    struct rdt_error err = {0};
    uint32_t had = transfer->pull.next_chunk;

    if (transfer->pull.failed != RDT_OK || transfer->pull.connection->sm.state != PT_CONNECTED)
        return;
    for (; transfer->pull.next_chunk < transfer->pull.plan->n && transfer_has_slot(transfer); transfer->pull.next_chunk++)
        if (post(transfer, transfer->pull.next_chunk, &err) != RDT_OK) {
            post_failed(transfer, &err);
            return;
        }
    credit.transfer = transfer->id;
    credit.chunks = transfer->pull.next_chunk;
    if (transfer->pull.next_chunk > had)
        (void)peer_session_send(transfer->pull.peer, RDT_PEER_PULL_CREDIT, &credit.base, NULL);
}

static void chunk_arrived(struct transfer *transfer, uint32_t index)
{
    uint64_t bytes = transfer->pull.plan->chunks[index].bytes;

    transfer->pull.chunks_done++;
    transfer->record.bytes_done += bytes;
    transfer->pull.peer->bytes_in += bytes;
    transfer->transfers->counts->bytes_in += bytes;
    fanout_received(&transfer->transfers->intake, uv_hrtime(), bytes);
    transfer_in_heard(transfer);
    if (transfer->pull.replica)
        replica_arrived(transfer->pull.replica, index);
    pass_on_if_nearly_done(transfer);
    if (transfer->pull.chunks_done == transfer->pull.plan->n && transfer->n_ops == 0 && transfer->sm.state == TRANSFER_MOVE)
        finish(transfer);
    else if (transfer->pull.one_sided)
        transfer_in_read_more(transfer);
    else if (transfer->pull.staged_here)
        receive_more(transfer);
}

void transfer_in_started(struct transfer *transfer)
{
    transfer_set_state(transfer, TRANSFER_MOVE);
    transfer_in_watch(transfer);
    if (transfer->pull.failed != RDT_OK)
        peer_session_verify(transfer);
    else if (transfer->pull.chunks_done == transfer->pull.plan->n && transfer->n_ops == 0)
        finish(transfer);
}

static void run_scatter(struct work *work)
{
    struct chunk_op *op = container_of(work, struct chunk_op, work);
    struct transfer *transfer = op->in;
    struct target *target = transfer->target;
    uint8_t *bases[RDT_MAX_FRAME_FDS];
    const struct chunk *chunk = &transfer->pull.plan->chunks[op->chunk];

    if (!target) {
        memcpy((uint8_t *)transfer->received->block.addr + chunk->offset, op->staging, chunk->bytes);
        return;
    }
    for (uint32_t i = 0; i < target->n; i++)
        bases[i] = target->uses[i].region ? target->uses[i].region->block.addr : NULL;
    chunk_scatter(chunk, transfer->packed, target->layout, bases, op->staging);
}

static void done_scatter(struct work *work)
{
    struct chunk_op *op = container_of(work, struct chunk_op, work);
    struct transfer *transfer = op->in;
    struct rdt_error err = {0};
    uint32_t index = op->chunk;

    free(op);
    if (transfer_op_ended(transfer))
        return;
    if (target_check(transfer->target, &err) != RDT_OK ||
        (transfer->received && region_check(transfer->received, &err) != RDT_OK))
        transfer_in_fail_here(transfer, &err);
    else
        chunk_arrived(transfer, index);
}

/* The chunk has been copied from its slot to the device. */
static void on_device_scattered(void *arg, const struct rdt_error *err)
{
    struct chunk_op *op = arg;
    struct transfer *transfer = op->in;
    uint32_t index = op->chunk;

    stage_return_slot(transfer->pull.stage, op->staging);
    free(op);
    if (transfer_op_ended(transfer))
        return;
    if (err)
        transfer_in_fail_here(transfer, err);
    else
        chunk_arrived(transfer, index);
}

static void scatter_to_device(struct chunk_op *op)
{
    struct transfer *transfer = op->in;
    const struct chunk *chunk = &transfer->pull.plan->chunks[op->chunk];
    struct device_part part = chunk_part(chunk, transfer->packed);
    struct rdt_error err = {0};
    enum rdt_status status;

    op->place.base = op->staging - chunk->offset;
    status = device_copy_start(transfer->packed, &op->place, transfer->target->layout, transfer->pull.to_places, &part,
                               stage_is_pinned(transfer->pull.stage), on_device_scattered, op, &op->copy, &err);
    if (status == RDT_OK && !op->copy)
        status = rdt_error_set(&err, RDT_INTERNAL, "a chunk has no bytes");
    if (status != RDT_OK)
        on_device_scattered(op, &err);
}

static void on_chunk_done(struct plugin_op *base, enum rdt_status status, const char *msg)
{
    struct chunk_op *op = (struct chunk_op *)base;
    struct transfer *transfer = op->in;
    uint32_t index = op->chunk;

    transfer->pull.chunk_ops[index] = NULL;
    if (status == RDT_OK && is_moving(transfer) && op->staging) {
        if (transfer->pull.staged_here) {
            scatter_to_device(op);
            return;
        }
        op->work = (struct work){.run = run_scatter, .done = done_scatter, .lane = transfer->record.client};
        if (op->base.op.piece.bytes > SMALL_COPY) {
            work_submit(transfer->transfers->pool, &op->work);
        } else {
            run_scatter(&op->work);
            done_scatter(&op->work);
        }
        return;
    }
    free(op);
    if (transfer_op_ended(transfer))
        return;
    if (status != RDT_OK)
        note_failure(transfer, status, msg);
    else
        chunk_arrived(transfer, index);
}

static void cancel_ops(struct transfer *transfer)
{
    struct group_rank *here =
        transfer->pull.broadcast.collective && transfer->pull.connection && transfer->pull.connection->group
            ? group_rank_here(transfer->pull.connection->group)
            : NULL;

    if (!transfer->pull.connection || transfer->pull.connection->sm.state != PT_CONNECTED)
        return; /* The disconnect ends the operations. */
    for (uint32_t i = 0; i < transfer->pull.plan->n; i++) {
        if (transfer->pull.chunk_ops[i] && here)
            plugin_group_cancel_broadcast(&here->vendor, &transfer->pull.chunk_ops[i]->base);
        else if (transfer->pull.chunk_ops[i])
            plugin_op_cancel(&transfer->pull.connection->conn, &transfer->pull.chunk_ops[i]->base);
    }
}

void transfer_in_stop_ops(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    if (transfer->n_ops == 0 || !transfer->pull.chunk_ops)
        return; /* It waits for nothing, for the pool, or for its sub-pulls. */
    cancel_ops(transfer);
    (void)deadline_set(transfers->deadlines, &transfer->pull.stall, (int64_t)transfers->options->quiesce_grace_ns);
}

void transfer_in_rewind(struct transfer *transfer)
{
    if (transfer->sm.state != TRANSFER_REWIND)
        transfer_set_state(transfer, TRANSFER_REWIND);
    transfer_in_stop_ops(transfer);
    transfer_settle(transfer);
}

void transfer_in_connection_failed(struct peer_transport *pt)
{
    list_each_safe (struct transfer, transfer, &pt->users_in, pull.by_connection)
        if (transfer->sm.state == TRANSFER_TICKET || is_moving(transfer))
            note_failure(transfer, RDT_TRANSPORT, pt->broken);
}
