/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's side while bytes move: receives or reads chunks, watches the progress, notes failures. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/text.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"
#include "daemon/transfers/transfer_ticket.h"

#define SMALL_COPY (256u << 10)

static void on_chunk_done(struct plugin_op *base, enum rdt_status status, const char *msg);

/* Every allowed move. pull.h draws them. */
static const struct sm_state byte_states[] = {
    [BYTES_FIRST] = {"first", 1u << BYTES_WRONG | 1u << BYTES_AGAIN},
    [BYTES_WRONG] = {"wrong", 1u << BYTES_AGAIN},
    [BYTES_AGAIN] = {"again", 1u << BYTES_AGAIN},
};

void pull_move_bytes(struct transfer *transfer, enum pull_bytes state)
{
    sm_move_byte(byte_states, sizeof byte_states / sizeof byte_states[0], &transfer->pull.redirect.bytes, state);
}

static const struct sm_state delta_states[] = {
    [DELTA_NONE] = {"none", 1u << DELTA_MAKING | 1u << DELTA_LEFT},
    [DELTA_MAKING] = {"making", 1u << DELTA_MADE | 1u << DELTA_LEFT},
    [DELTA_MADE] = {"made", 1u << DELTA_LEFT},
    [DELTA_LEFT] = {"left", 1u << DELTA_LEFT},
};

void pull_move_delta(struct transfer *transfer, enum pull_delta_state state)
{
    sm_move_byte(delta_states, sizeof delta_states / sizeof delta_states[0], &transfer->pull.delta, state);
}

void pull_fail_noted(struct transfer *transfer)
{
    transfer->pull.failure.ping = 0;
    if (transfer->pull.failure.status != RDT_OK)
        transfer_fail(transfer, transfer->pull.failure.status, "%s: %s", transfer->record.path, transfer->pull.failure.text);
}

static void note_failure(struct transfer *transfer, enum rdt_status status, const char *msg)
{
    if (transfer->pull.failure.status != RDT_OK)
        return;
    /* Nobody cancelled this operation: the whole connection has ended, or the transport knows why. */
    if (status == RDT_CANCELLED && transfer->pull.path.connection)
        status = RDT_TRANSPORT, msg = transfer->pull.path.connection->broken;
    transfer->pull.failure.status = status;
    text_copy(transfer->pull.failure.text, sizeof transfer->pull.failure.text,
              msg && msg[0] ? msg : "the transport cancelled an operation that the daemon had not cancelled");
    if (transfer->sm.state == TRANSFER_TICKET)
        transfer_ticket_leave(&transfer->record); /* The transfer has posted nothing. */
    remote_verify(transfer);
}

/* Whether the transport has operations of the transfer. */
static bool has_posted(const struct transfer *transfer)
{
    for (uint32_t i = 0; transfer->pull.chunks.plan && transfer->pull.chunks.ops && i < transfer->pull.chunks.plan->n; i++)
        if (transfer->pull.chunks.ops[i])
            return true;
    return false;
}

/* ABORT, REWIND: the transport has not ended the transfer's operations within the grace. Taking the connection down ends them.
 * A transfer that is to start again fails if they have not ended within another grace. */
static void end_posted(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    struct peer_transport *pt = transfer->pull.path.connection;
    bool rewinds = transfer->sm.state == TRANSFER_REWIND;

    if (!pt || pt->sm.state == PT_NONE)
        return;
    if (rewinds && pt->sm.state == PT_CLOSING) {
        transfer_fail(transfer, RDT_TRANSPORT, "%s: the operations of the attempt that failed do not end", pt->transport->name);
        return;
    }
    if (rewinds)
        (void)deadline_set(transfers->deadlines, &transfer->pull.stall, (int64_t)transfers->options->quiesce_grace_ns);
    peer_transport_isolate(pt, rewinds ? "the operations of a transfer that starts again do not end"
                                       : "the operations of an aborted transfer do not end");
}

void pull_on_stall(struct deadline *deadline)
{
    struct transfer *transfer = container_of(deadline, struct transfer, pull.stall);
    struct transfers *transfers = transfer->transfers;
    char why[sizeof transfer->pull.failure.text];

    if (transfer->sm.state == TRANSFER_ABORT || transfer->sm.state == TRANSFER_REWIND) {
        if (!has_posted(transfer)) /* a client holds up the writes to its own memory, and the connection works */
            (void)deadline_set(transfers->deadlines, &transfer->pull.stall, (int64_t)transfers->options->quiesce_grace_ns);
        else
            end_posted(transfer);
        return;
    }
    if (transfer->sm.state == TRANSFER_CONNECT) {
        transfer_fail(transfer, RDT_TRANSPORT, "%s: its connection to node %s was not rebuilt in time", transfer->record.path,
                      transfer->record.peer);
        return;
    }
    if (transfer->pull.failure.status != RDT_OK) {
        pull_fail_noted(transfer);
        return;
    }
    if (transfer->sm.state == TRANSFER_TICKET) {
        (void)snprintf(why, sizeof why, "node %s has said nothing about its queue ticket for %.1f s (stall_timeout)",
                       transfer->record.peer, (double)transfers->options->stall_timeout_ns / 1e9);
        note_failure(transfer, RDT_TRANSPORT, why);
        return;
    }
    if (transfer->record.bytes_done == transfer->pull.stall_bytes && !transfer_ticket_waits_behind(&transfer->record)) {
        (void)snprintf(why, sizeof why, "it moved nothing for %.1f s (stall_timeout) after %llu of %llu bytes",
                       (double)transfers->options->stall_timeout_ns / 1e9, (unsigned long long)transfer->record.bytes_done,
                       (unsigned long long)transfer->move.stream_bytes);
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
    return transfer->pull.replica && !transfer->pull.path.one_sided && !replica_wants(transfer->pull.replica, index);
}

/* Memory for chunks that are received and not needed, one over the other; NULL: there is none. */
static uint8_t *unneeded(struct transfer *transfer)
{
    const struct chunk_plan *plan = transfer->pull.chunks.plan;
    uint64_t most = 0;

    for (uint32_t i = 0; !transfer->pull.chunks.unneeded && i < plan->n; i++)
        most = plan->chunks[i].bytes > most ? plan->chunks[i].bytes : most;
    if (!transfer->pull.chunks.unneeded)
        transfer->pull.chunks.unneeded = malloc(most);
    return transfer->pull.chunks.unneeded;
}

static void op_free(struct chunk_op *op)
{
    if (op->staging && op->transfer->pull.path.staged)
        stage_return_slot(op->transfer->pull.chunks.stage, op->staging);
    free(op);
}

static struct chunk_op *make_op(struct transfer *transfer, uint32_t index, struct rdt_error *err)
{
    const struct chunk *chunk = &transfer->pull.chunks.plan->chunks[index];
    struct chunk_ground ground = pull_ground(transfer);
    bool there = is_there(transfer, index);
    struct chunk_op *op = chunk_op_create(chunk, there ? NULL : &ground);

    if (!op || (there && !unneeded(transfer))) {
        free(op);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to receive %llu bytes", (unsigned long long)chunk->bytes);
        return NULL;
    }
    op->transfer = transfer;
    op->chunk = index;
    op->base.on_done = on_chunk_done;
    op->base.op.transfer = transfer->id;
    op->base.op.chunk = index;
    if (there)
        op->base.op.piece.addr = transfer->pull.chunks.unneeded;
    else if (!op->in_place)
        op->base.op.piece.addr = op->staging = transfer->pull.path.staged ? stage_take_slot(transfer->pull.chunks.stage)
                                                                          : pull_take_staging(transfer, chunk->bytes);
    return op;
}

static enum rdt_status post(struct transfer *transfer, uint32_t index, struct rdt_error *err)
{
    struct chunk_op *op;
    enum rdt_status status;

    if (pull_is_cut_off(transfer)) /* a slice is about to note that */
        return rdt_error_set(err, RDT_TRANSPORT, "%s",
                             transfer->pull.path.connection->cut_off.why[0] ? transfer->pull.path.connection->cut_off.why
                                                                            : "the connection was taken down");
    op = make_op(transfer, index, err);
    if (!op)
        return RDT_NO_MEMORY;
    if (transfer->pull.path.one_sided) {
        const struct chunk *chunk = &transfer->pull.chunks.plan->chunks[index];
        uint32_t i = chunk->first, key = transfer->pull.keys.layout->region[i];
        op->base.op.key = transfer->pull.keys.keys[key];
        op->base.op.key_bytes = transfer->pull.keys.bytes[key];
        op->base.op.key_offset = transfer->pull.keys.layout->offset[i] + (chunk->offset - transfer->move.packed->offset[i]);
        status = plugin_op_read(&transfer->pull.path.connection->conn, &op->base, err);
    } else {
        status = plugin_op_recv(&transfer->pull.path.connection->conn, &op->base, err);
    }
    if (status != RDT_OK) {
        op_free(op);
        return status;
    }
    transfer->pull.chunks.ops[index] = op;
    transfer->move.n_ops++;
    return RDT_OK;
}

void pull_ask_start(struct transfer *transfer)
{
    Rdt__Pb__PullStart start = RDT__PB__PULL_START__INIT;
    struct rdt_error err = {0};

    start.transfer = transfer->id;
    start.transport = (char *)transfer->pull.path.connection->transport->name;
    start.chunk_bytes = pull_chunk_bytes(transfer);
    start.epoch = transfer->pull.path.epoch;
    start.one_sided = transfer->pull.path.one_sided;
    if (transfer->pull.path.connection->group) {
        start.group = (ProtobufCBinaryData){sizeof transfer->pull.path.connection->group->token,
                                            transfer->pull.path.connection->group->token};
        start.reader_rank = transfer->pull.path.connection->rank_here;
        start.owner_rank = transfer->pull.path.connection->rank_there;
    }
    start.first_chunk = transfer->pull.path.one_sided ? 0 : transfer->pull.chunks.first;
    start.tickets = transfer->record.ticket != NULL;
    start.single = transfer->pull.path.single;
    if (transfer->pull.path.staged && !transfer->pull.path.one_sided)
        start.window = transfer->pull.chunks.stage->slots < transfer->pull.chunks.plan->n ? transfer->pull.chunks.stage->slots
                                                                                          : transfer->pull.chunks.plan->n;
    if (transfer->pull.path.connection->group && transfer->pull.peer == transfer->pull.origin)
        start.broadcast = transfer->pull.broadcast;
    if (remote_send(transfer->pull.peer, RDT_PEER_PULL_START, &start.base, &err) != RDT_OK)
        transfer_fail_err(transfer, &err);
}

void pull_heard(struct transfer *transfer)
{
    transfer->pull.redirect.silent_beats = 0;
    transfer->pull.redirect.heard = true;
}

void pull_watch(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    (void)deadline_set(transfers->deadlines, &transfer->pull.stall, (int64_t)transfers->options->stall_timeout_ns);
}

/* Lets the next transfer of the queue post behind this one, when as few chunks are left as the owner has
 * posted too. */
static void pass_on_if_nearly_done(const struct transfer *transfer)
{
    if (transfer->pull.chunks.plan->n - transfer->pull.chunks.n_done <= transfer->transfers->options->chunks_in_flight)
        transfer_ticket_pass_on(&transfer->record);
}

/* A transfer that comes back from a replica which failed skips the chunks that have arrived in order. The
 * last chunk always comes again, so that there is something to wait for. */
static void skip_arrived(struct transfer *transfer)
{
    uint32_t next = 0;

    while (transfer->pull.replica && next + 1 < transfer->pull.chunks.plan->n && !replica_wants(transfer->pull.replica, next))
        transfer->record.bytes_done += transfer->pull.chunks.plan->chunks[next++].bytes;
    transfer->pull.chunks.first = transfer->pull.chunks.next = transfer->pull.chunks.n_done = next;
    transfer->record.source_from = transfer->record.bytes_done;
}

void pull_fail_here(struct transfer *transfer, const struct rdt_error *err)
{
    transfer->pull.failure.is_here = true;
    transfer_fail_err(transfer, err);
}

/* A failed post: if the connection has failed, the transport decides, or the link if the node is gone. */
static void post_failed(struct transfer *transfer, const struct rdt_error *err)
{
    if (err->status == RDT_TRANSPORT || err->status == RDT_PEER_LOST)
        note_failure(transfer, RDT_TRANSPORT, err->msg);
    else
        pull_fail_here(transfer, err);
}

void pull_refused(struct transfer *transfer, const struct peer_transport *pt)
{
    if (transfer->sm.state != TRANSFER_CONNECT || transfer->pull.subpull.parent ||
        (transfer->pull.path.connection && transfer->pull.path.connection != pt))
        return;
    pull_rewind(transfer);
}

/* Nothing has moved yet, so the transfer can wait until the connection is rebuilt or the link goes down. */
void pull_wait(struct transfer *transfer)
{
    transfer_set_state(transfer, TRANSFER_CONNECT);
    pull_watch(transfer);
}

/* Both ends have their tickets. The operations hold their places in the queue only as long as necessary. */
static void receive_in_order(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    uint64_t id = transfer->id;

    transfer_ticket_receives_posted(transfer);
    if (transfers_find(transfers, id) == transfer)
        pass_on_if_nearly_done(transfer);
}

void pull_receive(struct transfer *transfer)
{
    struct rdt_error err = {0};

    transfer_set_state(transfer, TRANSFER_MOVE);
    pull_watch(transfer);
    if (!transfer->pull.path.one_sided) /* All receives must be posted before the first send can arrive. */
        for (; transfer->pull.chunks.next < transfer->pull.chunks.plan->n && pull_has_slot(transfer);
             transfer->pull.chunks.next++)
            if (post(transfer, transfer->pull.chunks.next, &err) != RDT_OK) {
                post_failed(transfer, &err);
                return;
            }
    if (transfer->record.ticket)
        receive_in_order(transfer);
    else
        pull_ask_start(transfer);
}

void pull_move(struct transfer *transfer)
{
    struct rdt_error err = {0};
    enum rdt_status status;

    /* The group was destroyed while memory was reserved. It will not be formed anew. */
    if (transfer_group_is_gone(transfer->pull.path.connection)) {
        transfer_fail(transfer, RDT_TRANSPORT, "%s: the group is destroyed", transfer->pull.path.connection->transport->name);
        return;
    }
    if (transfer->pull.path.connection->sm.state != PT_CONNECTED && !transfer->pull.path.connection->group &&
        !transfer->pull.subpull.parent) {
        pull_rewind(transfer); /* The connection was lost while memory was reserved: another one may be there. */
        return;
    }
    if (transfer->pull.path.connection->sm.state != PT_CONNECTED || !transfer_group_is_open(transfer->pull.path.connection)) {
        pull_wait(transfer);
        return;
    }
    status = pull_plan_chunks(transfer, &err);
    if (status == RDT_OK && transfer->pull.replica)
        status = replica_plan(transfer->pull.replica, transfer->pull.chunks.plan, &err);
    if (status == RDT_OK &&
        !(transfer->pull.chunks.ops = calloc(transfer->pull.chunks.plan->n + 1u, sizeof(struct chunk_op *))))
        status = rdt_error_set(&err, RDT_NO_MEMORY, "no memory for %u chunks", transfer->pull.chunks.plan->n);
    if (status == RDT_OK && !transfer->pull.path.one_sided && transfer_ticket_wanted(transfer, transfer->pull.path.connection))
        status = transfer_ticket_begin_pull(transfer, &err);
    if (status != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer->pull.path.epoch = transfer->pull.path.connection->epoch;
    skip_arrived(transfer);
    if (!transfer->record.ticket) {
        pull_receive(transfer);
        return;
    }
    transfer_set_state(transfer, TRANSFER_TICKET);
    pull_watch(transfer);
    pull_ask_start(transfer);
}

void pull_read_more(struct transfer *transfer)
{
    struct rdt_error err = {0};

    if (transfer->pull.failure.status != RDT_OK || pull_is_cut_off(transfer))
        return; /* There is no connection to post to, or a new one: the noted failure ends the transfer. */
    while (transfer->pull.chunks.next < transfer->pull.chunks.plan->n &&
           transfer->move.n_ops < transfer->transfers->options->chunks_in_flight && pull_has_slot(transfer)) {
        if (post(transfer, transfer->pull.chunks.next, &err) != RDT_OK) {
            post_failed(transfer, &err);
            return;
        }
        transfer->pull.chunks.next++;
    }
}

/* ---- chunks ---- */

static void count_made(struct transfer *transfer)
{
    Rdt__Pb__StatusReply *counts = transfer->transfers->counts;
    uint64_t moved = transfer->record.bytes_done, bytes = transfer->move.stream_bytes;

    counts->replicas_by_delta++;
    counts->delta_bytes_spared += bytes > moved ? bytes - moved : 0;
    text_copy(transfer->record.route, sizeof transfer->record.route, "made here of an earlier version and a delta");
}

static void deliver_replica(struct transfer *transfer, struct replica *replica)
{
    replica_whole(replica);
    transfer_deliver_object(transfer, replica->object, replica->object->memory.layout, PATH_SHARE);
}

static void deliver(struct transfer *transfer)
{
    transfer->pull.path.connection->failures = 0;
    record_route(&transfer->record, &transfer->pull.path.connection->conn);
    if (transfer->pull.delta == DELTA_MADE)
        count_made(transfer);
    if (transfer->pull.replica)
        deliver_replica(transfer, transfer->pull.replica);
    else
        transfer_deliver_received(transfer);
    if (transfer->kind->complete)
        transfer->kind->complete(transfer);
    transfer_end(transfer);
}

void pull_checked(struct transfer *transfer, const struct rdt_error *err)
{
    bool made = transfer->pull.delta == DELTA_MADE;
    struct rdt_error unknown;

    if (!err && made && transfer->pull.replica->object->sum == 0) {
        (void)rdt_error_set(&unknown, RDT_DAMAGED, "the checksum of object \"%s\" did not come, so its delta is not trusted",
                            transfer->ref.id);
        err = &unknown;
    }
    if (!err) {
        deliver(transfer);
        return;
    }
    if (made) {
        transfer->transfers->counts->deltas_failed++;
        pull_move_delta(transfer, DELTA_LEFT);
    }
    if (transfer->pull.redirect.bytes == BYTES_FIRST &&
        (made || transfer->record.n_sources > 0 || transfer->pull.peer != transfer->pull.origin))
        pull_move_bytes(transfer, BYTES_WRONG);
    else /* all that came was the owner's */
        pull_move_bytes(transfer, BYTES_AGAIN);
    transfer->pull.redirect.refused = true;
    replica_forget_bytes(transfer->pull.replica);
    transfer_fail_err(transfer, err);
}

/* Tells the source that nothing more is wanted. */
static void send_end(struct transfer *transfer)
{
    Rdt__Pb__PullEnd end = RDT__PB__PULL_END__INIT;

    end.transfer = transfer->id;
    (void)remote_send(transfer->pull.peer, RDT_PEER_PULL_END, &end.base, NULL);
}

static void check(struct transfer *transfer)
{
    /* A source that is silent from now on does not matter: all bytes are there. */
    deadline_unset(transfer->transfers->deadlines, &transfer->pull.stall);
    deadline_unset(transfer->transfers->deadlines, &transfer->pull.redirect.patience);
    replica_check(transfer->pull.replica);
}

static void finish(struct transfer *transfer)
{
    if (transfer->pull.path.one_sided)
        send_end(transfer);
    if (transfer->pull.replica)
        check(transfer);
    else
        deliver(transfer);
}

void pull_made(struct transfer *transfer, uint64_t moved)
{
    const struct chunk_plan *plan = transfer->pull.chunks.plan;
    struct rdt_error err;

    if (replica_plan(transfer->pull.replica, plan, &err) != RDT_OK) {
        pull_fail_here(transfer, &err);
        return;
    }
    transfer_set_state(transfer, TRANSFER_MOVE);
    for (uint32_t i = 0; i < plan->n; i++)
        replica_arrived(transfer->pull.replica, i);
    transfer->pull.chunks.next = transfer->pull.chunks.n_done = plan->n;
    transfer->record.bytes_done = moved;
    send_end(transfer);
    check(transfer);
}

/* A slot is free again, so the owner may send one more chunk. */
static void receive_more(struct transfer *transfer)
{
    Rdt__Pb__PullCredit credit = RDT__PB__PULL_CREDIT__INIT;
    struct rdt_error err = {0};
    uint32_t had = transfer->pull.chunks.next;

    if (transfer->pull.failure.status != RDT_OK || pull_is_cut_off(transfer))
        return;
    for (; transfer->pull.chunks.next < transfer->pull.chunks.plan->n && pull_has_slot(transfer); transfer->pull.chunks.next++)
        if (post(transfer, transfer->pull.chunks.next, &err) != RDT_OK) {
            post_failed(transfer, &err);
            return;
        }
    credit.transfer = transfer->id;
    credit.chunks = transfer->pull.chunks.next;
    if (transfer->pull.chunks.next > had)
        (void)remote_send(transfer->pull.peer, RDT_PEER_PULL_CREDIT, &credit.base, NULL);
}

static void chunk_arrived(struct transfer *transfer, uint32_t index)
{
    uint64_t bytes = transfer->pull.chunks.plan->chunks[index].bytes;

    transfer->pull.chunks.n_done++;
    transfer->record.bytes_done += bytes;
    transfer->pull.peer->counts.bytes_pulled += bytes;
    transfer->transfers->counts->bytes_in += bytes;
    fanout_received(&transfer->transfers->load.intake, uv_hrtime(), bytes);
    pull_heard(transfer);
    if (transfer->pull.replica)
        replica_arrived(transfer->pull.replica, index);
    pass_on_if_nearly_done(transfer);
    if (transfer->pull.chunks.n_done == transfer->pull.chunks.plan->n && transfer->move.n_ops == 0)
        finish(transfer);
    else if (transfer->pull.path.one_sided)
        pull_read_more(transfer);
    else if (transfer->pull.path.staged)
        receive_more(transfer);
}

static void run_scatter(struct work *work)
{
    struct chunk_op *op = container_of(work, struct chunk_op, work);
    struct transfer *transfer = op->transfer;
    const struct chunk *chunk = &transfer->pull.chunks.plan->chunks[op->chunk];

    if (transfer->move.target)
        op->failed = chunk_scatter(chunk, transfer->move.packed, transfer->move.target->layout, transfer->pull.chunks.memory,
                                   op->staging);
    else
        memcpy((uint8_t *)transfer->move.received->block.addr + chunk->offset, op->staging, chunk->bytes);
}

enum rdt_status pull_charge_targets(struct transfer *transfer, struct rdt_error *err)
{
    const struct target *target = transfer->move.target;
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; target && transfer->pull.chunks.memory && i < target->n && status == RDT_OK; i++)
        if (transfer->pull.chunks.memory[i].by_fd)
            status = memory_place_charge(&transfer->pull.chunks.memory[i], target->uses[i].region, err);
    return status;
}

static void done_scatter(struct work *work)
{
    struct chunk_op *op = container_of(work, struct chunk_op, work);
    struct transfer *transfer = op->transfer;
    struct rdt_error err = {0};
    uint32_t index = op->chunk;
    int failed = op->failed;

    op_free(op);
    if (transfer_op_ended(transfer))
        return;
    if (failed)
        (void)rdt_error_sys(&err, failed, "writing imported memory");
    if (failed || pull_charge_targets(transfer, &err) != RDT_OK || target_check(transfer->move.target, &err) != RDT_OK ||
        (transfer->move.received && region_check(transfer->move.received, &err) != RDT_OK))
        pull_fail_here(transfer, &err);
    else
        chunk_arrived(transfer, index);
}

/* The chunk has been copied from its slot to the device. */
static void on_device_scattered(void *arg, const struct rdt_error *err)
{
    struct chunk_op *op = arg;
    struct transfer *transfer = op->transfer;
    uint32_t index = op->chunk;

    op_free(op);
    if (transfer_op_ended(transfer))
        return;
    if (err)
        pull_fail_here(transfer, err);
    else
        chunk_arrived(transfer, index);
}

static void scatter_to_device(struct chunk_op *op)
{
    struct transfer *transfer = op->transfer;
    const struct chunk *chunk = &transfer->pull.chunks.plan->chunks[op->chunk];
    struct device_range range = chunk_range(chunk, transfer->move.packed);
    struct rdt_error err = {0};
    enum rdt_status status;

    op->place.base = op->staging - chunk->offset;
    status =
        device_copy_start(transfer->move.packed, &op->place, transfer->move.target->layout, transfer->pull.chunks.to_places,
                          &range, stage_is_pinned(transfer->pull.chunks.stage), on_device_scattered, op, &op->copy, &err);
    if (status == RDT_OK && !op->copy)
        status = rdt_error_set(&err, RDT_INTERNAL, "a chunk has no bytes");
    if (status != RDT_OK)
        on_device_scattered(op, &err);
}

static void on_chunk_done(struct plugin_op *base, enum rdt_status status, const char *msg)
{
    struct chunk_op *op = (struct chunk_op *)base;
    struct transfer *transfer = op->transfer;
    uint32_t index = op->chunk;

    transfer->pull.chunks.ops[index] = NULL;
    if (status == RDT_OK && transfer->sm.state == TRANSFER_MOVE && op->staging) {
        struct account *slow_owner = target_slow_owner(transfer->move.target);
        if (!slow_owner && transfer->move.received && region_may_wait(transfer->move.received))
            slow_owner = transfer->move.received->account;
        if (transfer->pull.chunks.to_places) {
            scatter_to_device(op);
            return;
        }
        op->work = (struct work){.run = run_scatter, .done = done_scatter, .lane = transfer->record.client};
        if (slow_owner) {
            owner_work_submit(transfer->transfers->regions->owner_work, &op->work, slow_owner, true);
        } else if (op->base.op.piece.bytes > SMALL_COPY) {
            work_submit(transfer->transfers->pool, &op->work);
        } else {
            run_scatter(&op->work);
            done_scatter(&op->work);
        }
        return;
    }
    op_free(op);
    if (transfer_op_ended(transfer))
        return;
    if (status != RDT_OK)
        note_failure(transfer, status, msg);
    else
        chunk_arrived(transfer, index);
}

static void cancel_ops(struct transfer *transfer)
{
    if (!transfer->pull.path.connection || transfer->pull.path.connection->sm.state != PT_CONNECTED)
        return; /* The disconnect ends the operations. */
    for (uint32_t i = 0; i < transfer->pull.chunks.plan->n; i++)
        if (transfer->pull.chunks.ops[i])
            plugin_op_cancel(&transfer->pull.path.connection->conn, &transfer->pull.chunks.ops[i]->base);
}

void pull_stop_ops(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    if (transfer->move.n_ops == 0 || !transfer->pull.chunks.ops)
        return; /* It waits for nothing, for the pool, or for its sub-pulls. */
    cancel_ops(transfer);
    (void)deadline_set(transfers->deadlines, &transfer->pull.stall, (int64_t)transfers->options->quiesce_grace_ns);
}

void pull_rewind(struct transfer *transfer)
{
    if (transfer->sm.state != TRANSFER_REWIND)
        transfer_set_state(transfer, TRANSFER_REWIND);
    pull_stop_ops(transfer);
    transfer_settle(transfer);
}

bool pull_is_checked(const struct transfer *transfer)
{
    return transfer->sm.state == TRANSFER_MOVE && transfer->pull.replica && transfer->pull.chunks.plan &&
           transfer->pull.chunks.n_done == transfer->pull.chunks.plan->n && transfer->move.n_ops == 0;
}

bool pull_is_cut_off(const struct transfer *transfer)
{
    const struct peer_transport *pt = transfer->pull.path.connection;

    return pt->sm.state != PT_CONNECTED || pt->epoch != transfer->pull.path.epoch;
}

/* The connection has failed, or its group is gone, since the pull began to use it or to wait for it. */
static void look(struct transfer *transfer, const char *why)
{
    const struct peer_transport *pt = transfer->pull.path.connection;

    if (transfer->sm.state == TRANSFER_CONNECT && transfer_group_is_gone(pt))
        transfer_fail(transfer, RDT_TRANSPORT, "%s: the group is destroyed", pt->transport->name);
    else if ((transfer->sm.state == TRANSFER_TICKET || transfer->sm.state == TRANSFER_MOVE) && !pull_is_checked(transfer) &&
             pull_is_cut_off(transfer))
        note_failure(transfer, RDT_TRANSPORT, why);
}

static bool note_some(struct slice *slice, uint64_t until_ns)
{
    struct peer_transport *pt = container_of(slice, struct peer_transport, cut_off.note);

    pt->cut_off.running++; /* the end of a pull may end others, and a connection of a group ends with its last */
    do {
        struct list *node = list_first(&pt->cut_off.pulls);
        if (!node)
            break;
        list_remove(node);
        list_append(&pt->pulls, node);
        look(container_of(node, struct transfer, pull.path.by_connection), pt->cut_off.why);
    } while (uv_hrtime() < until_ns);
    pt->cut_off.running--;
    return list_empty(&pt->cut_off.pulls);
}

void pull_connection_failed(struct peer_transport *pt)
{
    text_copy(pt->cut_off.why, sizeof pt->cut_off.why, pt->broken);
    list_splice(&pt->cut_off.pulls, &pt->pulls);
    pt->cut_off.note.run = note_some;
    slice_begin(remote_slices(pt->remote), &pt->cut_off.note);
}
