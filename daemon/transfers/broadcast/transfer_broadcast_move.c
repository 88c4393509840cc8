/* SPDX-License-Identifier: Apache-2.0 */
/* The pulls that belong to a broadcast, at the root: admits them, and, once all readers of a collective broadcast are ready,
 * posts the chunks, a few at a time. */
#include <stdlib.h>

#include "daemon/transfers/broadcast/transfer_broadcast_impl.h"
#include "daemon/transfers/serve/serve.h"

struct broadcast_op {
    struct plugin_op base;
    struct broadcast *broadcast;
    uint32_t chunk;
    uint8_t *staging; /* NULL: the chunk is sent from the object's memory itself */
    struct work work;
};

static void send_more(struct broadcast *broadcast);

static void chunk_ended(struct broadcast_op *op, enum rdt_status status, const char *msg)
{
    struct broadcast *broadcast = op->broadcast;
    uint64_t bytes = op->base.op.piece.bytes;
    struct rdt_error err;

    free(op->staging);
    free(op);
    broadcast->n_ops--;
    if (status == RDT_OK) {
        broadcast->chunks_done++;
        broadcast->transfers->counts->bytes_out += bytes;
        send_more(broadcast);
    } else if (broadcast->sm.state == BROADCAST_MOVING) {
        (void)rdt_error_set(&err, RDT_TRANSPORT, "the broadcast in group %s: %s",
                            broadcast->group ? broadcast->group->name : "(gone)", msg && msg[0] ? msg : "it was taken down");
        broadcast_give_up(broadcast, &err);
        return;
    }
    broadcast_settle(broadcast);
}

static void on_sent(struct plugin_op *base, enum rdt_status status, const char *msg)
{
    chunk_ended((struct broadcast_op *)base, status, msg);
}

static void hand_over(struct broadcast_op *op)
{
    struct broadcast *broadcast = op->broadcast;
    struct group_rank *here = broadcast->group ? group_rank_here(broadcast->group) : NULL;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_TRANSPORT;

    for (uint32_t i = 0; status == RDT_TRANSPORT && op->staging && i < broadcast->object->n_regions; i++)
        if (region_check(broadcast->object->uses[i].region, &err) != RDT_OK)
            status = err.status;
    if (status == RDT_TRANSPORT && broadcast->sm.state == BROADCAST_MOVING && here && here->open)
        status = plugin_group_broadcast(&here->vendor, (uint32_t)(here - broadcast->group->ranks), &op->base, &err);
    if (status != RDT_OK)
        chunk_ended(op, status, err.msg);
}

static void run_gather(struct work *work)
{
    struct broadcast_op *op = container_of(work, struct broadcast_op, work);
    const struct broadcast *broadcast = op->broadcast;

    chunk_gather(&broadcast->plan->chunks[op->chunk], broadcast->packed, broadcast->source, broadcast->bases, op->staging);
}

static void done_gather(struct work *work)
{
    struct broadcast_op *op = container_of(work, struct broadcast_op, work);
    struct broadcast *broadcast = op->broadcast;

    broadcast->gathering = false;
    broadcast->n_ops++; /* The broadcast must not be freed meanwhile. */
    hand_over(op);
    broadcast->n_ops--;
    send_more(broadcast);
    broadcast_settle(broadcast);
}

/* Posts the next chunk, or starts to gather it. Returns false if there is no memory. */
static bool send_next(struct broadcast *broadcast)
{
    uint32_t index = broadcast->next_chunk, region;
    const struct chunk *chunk = &broadcast->plan->chunks[index];
    struct broadcast_op *op = calloc(1, sizeof *op);
    uint64_t offset;

    if (!op)
        return false;
    op->broadcast = broadcast;
    op->chunk = index;
    op->base.on_done = on_sent;
    op->base.op.transfer = broadcast->number;
    op->base.op.chunk = index;
    op->base.op.piece.bytes = chunk->bytes;
    if (chunk_piece(chunk, broadcast->packed, broadcast->source, &region, &offset) &&
        !region_may_fault(object_region(broadcast->object, region))) {
        op->base.op.piece.addr = broadcast->bases[region] + offset;
        (void)region_register(object_region(broadcast->object, region), broadcast->group->transport,
                              &op->base.op.piece.registration, NULL, NULL, NULL);
    } else if (!(op->staging = malloc(chunk->bytes))) {
        free(op);
        return false;
    }
    broadcast->next_chunk++;
    broadcast->n_ops++;
    if (!op->staging) {
        hand_over(op);
        return true;
    }
    op->base.op.piece.addr = op->staging;
    broadcast->gathering = true;
    op->work = (struct work){.run = run_gather, .done = done_gather};
    work_submit(broadcast->transfers->pool, &op->work);
    return true;
}

static void send_more(struct broadcast *broadcast)
{
    struct rdt_error err;

    if (broadcast->busy)
        return; /* A chunk that fails at once calls this function again. */
    broadcast->busy = true;
    while (broadcast->sm.state == BROADCAST_MOVING && !broadcast->gathering && broadcast->group &&
           broadcast->next_chunk < broadcast->plan->n && broadcast->n_ops < broadcast->transfers->options->chunks_in_flight)
        if (!send_next(broadcast)) {
            (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to send object \"%s\"", broadcast->ref.id);
            broadcast_give_up(broadcast, &err);
        }
    broadcast->busy = false;
}

static enum rdt_status make_plan(struct broadcast *broadcast, struct rdt_error *err)
{
    struct object *object = broadcast->object;
    uint64_t bytes;
    enum rdt_status status = object_layout(object, NULL, &broadcast->source, err);

    if (status == RDT_OK)
        status = layout_packed(broadcast->source, &broadcast->packed, &bytes, err);
    broadcast->bases = calloc(object_n_places(object) + 1u, sizeof *broadcast->bases);
    if (status == RDT_OK && !broadcast->bases)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to send object \"%s\"", broadcast->ref.id);
    for (uint32_t i = 0; status == RDT_OK && i < object_n_places(object); i++)
        if (!(broadcast->bases[i] = object_base(object, i, err)))
            status = err->status;
    if (status == RDT_OK)
        status = chunk_plan_create(broadcast->packed, bytes, broadcast->transfers->options->chunk_bytes, &broadcast->plan, err);
    if (status == RDT_OK)
        object_pin(object); /* The pin lasts as long as the plan. */
    return status;
}

static void begin_moving(struct broadcast *broadcast)
{
    struct rdt_error err = {0};

    sm_move(&broadcast->sm, BROADCAST_MOVING);
    (void)deadline_set(broadcast->transfers->deadlines, &broadcast->deadline,
                       (int64_t)broadcast->transfers->options->stall_timeout_ns);
    if (make_plan(broadcast, &err) != RDT_OK) {
        broadcast_give_up(broadcast, &err);
        return;
    }
    send_more(broadcast);
    broadcast_settle(broadcast);
}

/* ---- the pulls of the other nodes ---- */

enum rdt_status broadcast_reader_joins(struct serve *out, const Rdt__Pb__PullStart *start, struct rdt_error *err)
{
    struct receiver *receiver;
    struct broadcast *broadcast = broadcast_find(out->session, start->broadcast, &receiver);

    if (!broadcast || out->object != broadcast->object || out->slice)
        return rdt_error_set(err, RDT_TRANSPORT, "the broadcast was cancelled");
    if (broadcast->collective && start->chunk_bytes != broadcast->transfers->options->chunk_bytes)
        return rdt_error_set(err, RDT_PROTOCOL, "the reader wants chunks of %llu bytes, and the broadcast has chunks of %llu",
                             (unsigned long long)start->chunk_bytes,
                             (unsigned long long)broadcast->transfers->options->chunk_bytes);
    out->broadcast_number = start->broadcast;
    out->collective = broadcast->collective;
    return RDT_OK;
}

enum rdt_status broadcast_reader_ready(struct serve *out, struct rdt_error *err)
{
    struct receiver *receiver;
    struct broadcast *broadcast = broadcast_find(out->session, out->broadcast_number, &receiver);

    if (!broadcast || broadcast->sm.state != BROADCAST_ASKED || receiver->out)
        return rdt_error_set(err, RDT_TRANSPORT, "the broadcast was cancelled");
    receiver->out = out;
    out->broadcast = broadcast;
    for (uint32_t i = 0; i < broadcast->n_receivers; i++)
        if (!broadcast->receivers[i].out)
            return RDT_OK;
    begin_moving(broadcast);
    return RDT_OK;
}

void broadcast_reader_ended(struct broadcast *broadcast, struct serve *out)
{
    for (uint32_t i = 0; i < broadcast->n_receivers; i++)
        if (broadcast->receivers[i].out == out)
            broadcast->receivers[i].out = NULL;
    out->broadcast = NULL;
}
