/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's side while bytes move: prepares memory, and posts the chunks of all serves on a connection in
 * rotation, so that none starves another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/memory/region_fill.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/replica_directory.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_order.h"
#include "daemon/transfers/transfer_record.h"

#define SMALL_COPY (256u << 10)
#define SMALL_CHUNKS_MAX 4u

static void prepare(struct serve *out);

/* ---- preparing ---- */

static enum rdt_status send_keys(struct serve *out, struct rdt_error *err)
{
    Rdt__Pb__PullKeys keys = RDT__PB__PULL_KEYS__INIT;
    struct object *object = out->object;
    uint8_t(*blobs)[RDT_KEY_MAX_BYTES] = calloc(object->n_regions + 1u, sizeof *blobs);
    ProtobufCBinaryData *list = calloc(object->n_regions + 1u, sizeof *list);
    struct transport *transport = out->connection->transport;
    Rdt__Pb__TensorList tensors;
    struct layout_rows rows;
    enum rdt_status status = blobs && list ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory for keys");

    for (uint32_t i = 0; status == RDT_OK && i < object->n_regions; i++) {
        void *handle = NULL;
        if (!transport_moves(transport, object->uses[i].region->kind->name))
            continue; /* None of the requested tensors lies in this region, so it was not registered. */
        status = region_register(object->uses[i].region, transport, &handle, NULL, NULL, err);
        list[i].data = blobs[i];
        if (status == RDT_OK)
            status = transport->ops.pack_key(transport->instance, handle, blobs[i], &list[i].len, err);
    }
    if (status == RDT_OK) {
        keys.transfer = out->number;
        keys.n_keys = object->n_regions;
        keys.keys = list;
        layout_to_wire(out->source, true, out->session->peer->tensor_runs ? &rows : NULL, &tensors);
        keys.tensors = &tensors;
        status = peer_session_send(out->session, RDT_PEER_PULL_KEYS, &keys.base, err);
    }
    free(blobs);
    free(list);
    return status;
}

static void on_registered(void *arg, struct region *region, const struct rdt_error *err)
{
    struct serve *out = arg;

    out->n_ops--;
    if (out->sm.state == SERVE_ABORT)
        serve_settle(out);
    else if (err)
        serve_fail(out, err);
    else
        prepare(out);
}

static void on_stage(void *arg, struct stage *stage, const struct rdt_error *err)
{
    struct serve *out = arg;

    out->stage = stage;
    on_registered(out, NULL, err);
}

/* Reserves pinned slots for the chunks between the device and the transport. */
static enum rdt_status reserve_stage(struct serve *out, struct rdt_error *err)
{
    struct object *object = out->object;
    struct memory_kind *kind = NULL;
    uint32_t slots = out->transfers->options->chunks_in_flight;
    uint64_t max_bytes = 0;

    for (uint32_t i = 0; i < out->source->count && !kind; i++)
        if (layout_bytes(out->source, i) > 0)
            kind = object_region(object, out->source->region[i])->kind;
    for (uint32_t i = 0; i < out->plan->n; i++)
        max_bytes = out->plan->chunks[i].bytes > max_bytes ? out->plan->chunks[i].bytes : max_bytes;
    out->places = calloc(object->n_regions + 1u, sizeof *out->places);
    if (!out->places)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to send object \"%s\"", out->ref.id);
    for (uint32_t i = 0; i < object->n_regions; i++)
        out->places[i].region = object->uses[i].region;
    return stage_create(out->transfers->regions, kind, slots < out->plan->n ? slots : out->plan->n,
                        (max_bytes + 4095) & ~UINT64_C(4095), out->account, on_stage, out, err);
}

/* Maps and registers the object's regions, one at a time. Then it sends, or lets the reader read. */
static void prepare(struct serve *out)
{
    struct rdt_error err = {0};
    enum rdt_status status = serve_map(out, &err);
    void *handle;

    if (status == RDT_OK)
        status = region_fill(out->object->uses, out->object->n_regions, out->source, &out->filled, on_registered, out, &err);
    for (uint32_t i = 0; status == RDT_OK && i < object_n_places(out->object); i++)
        if (transport_moves(out->connection->transport, object_region(out->object, i)->kind->name))
            status =
                region_register(object_region(out->object, i), out->connection->transport, &handle, on_registered, out, &err);
    if (status == RDT_OK && out->staged && !out->stage)
        status = reserve_stage(out, &err);
    if (status == RDT_AGAIN) {
        out->n_ops++;
        return;
    }
    if (status == RDT_OK && out->connection->sm.state != PT_CONNECTED)
        status =
            rdt_error_set(&err, RDT_TRANSPORT, "%s: the owner's connection is being rebuilt", out->connection->transport->name);
    if (status == RDT_OK && out->ordered) {
        status = order_out_begin(out, &err);
        if (status == RDT_OK) {
            serve_set_state(out, SERVE_TICKET);
            order_out_queue(out);
            return;
        }
    } else if (status == RDT_OK) {
        serve_set_state(out, SERVE_SENDING);
        if (out->one_sided)
            status = send_keys(out, &err);
    }
    if (status == RDT_OK && out->collective) {
        status = out->transfers->serve->on_ready(out, &err);
        if (status == RDT_OK)
            return; /* The serve may have ended. */
    }
    if (status == RDT_OK)
        serve_go_on(out);
    else
        serve_fail(out, &err);
}

/* Pins the object from here on. If chunks are to be sent, the plan exists already. */
void serve_begin(struct serve *out, struct peer_transport *pt)
{
    if (out->replica && !out->replica->placed) {
        out->awaits_memory = pt;
        return;
    }
    deadline_unset(out->transfers->deadlines, &out->deadline); /* The reader watches the time. */
    (void)snprintf(out->record.path, sizeof out->record.path, "%s", pt->transport->name);
    out->connection = pt;
    list_append(&pt->users_out, &out->by_connection);
    object_pin(out->object);
    out->pinned = true;
    if (out->plan && out->replica && out->replica->filling && !out->staged) /* Without memory for it they are in order. */
        out->is_posted = calloc(out->plan->n + 1u, sizeof *out->is_posted);
    serve_set_state(out, SERVE_PREPARE);
    prepare(out);
}

bool serve_can_start(struct serve *out)
{
    struct peer_transport *pt = out->expect ? peer_transport_find(out->session, out->start_transport) : NULL;

    return pt && pt->sm.state == PT_CONNECTED && pt->remote_epoch == out->start_epoch && pt->transport->ops.post_send &&
           (out->object->transport[0] == '\0' || strcasecmp(out->object->transport, out->start_transport) == 0) &&
           layout_same_shape(out->source, out->expect, NULL) == RDT_OK && !order_needed(out, pt) &&
           chunk_plan_create(out->packed, out->stream_bytes, out->start_chunk_bytes, &out->plan, NULL) == RDT_OK;
}

/* Decides how device memory is sent: the transport moves it itself, one tensor for each chunk, or it goes
 * through host memory. */
static enum rdt_status decide_staging(struct serve *out, const struct peer_transport *pt, const Rdt__Pb__PullStart *start,
                                      struct rdt_error *err)
{
    bool host = false, on_device = false, moves = true, holes = false;

    if (start->window > 0)
        out->credit = start->window;
    if (!object_on_device(out->object)) /* A replica that is being filled may have no memory yet. */
        return RDT_OK;
    for (uint32_t i = 0; i < out->source->count; i++) {
        const struct region *region =
            layout_bytes(out->source, i) > 0 && !out->object->chunk ? object_region(out->object, out->source->region[i]) : NULL;
        if (!region || region_is_host(region)) {
            host |= region != NULL;
            continue;
        }
        on_device = true;
        moves = moves && transport_moves(pt->transport, region->kind->name);
        holes |= !layout_is_contiguous(out->source, i);
    }
    if (!on_device)
        return RDT_OK;
    if (host)
        return rdt_error_set(err, RDT_PROTOCOL, "one pull asks for tensors in several kinds of memory");
    out->staged = !start->one_sided && (!start->single || !moves || holes);
    if (start->one_sided && !moves)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s cannot read device memory at the owner", pt->transport->name);
    if (out->staged && !transport_moves(pt->transport, "host"))
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s moves neither this memory at the owner nor host memory",
                             pt->transport->name);
    return RDT_OK;
}

void serve_on_start(struct peer_session *session, const Rdt__Pb__PullStart *start)
{
    struct serve *out = map_get_u64(&session->serves, start->transfer);
    struct peer_transport *pt = start->group.len == 0 ? peer_transport_find(session, start->transport) : NULL;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;

    if (!out) { /* The reader would wait for chunks that nobody sends. */
        Rdt__Pb__PullEnd end = RDT__PB__PULL_END__INIT;
        end.transfer = start->transfer;
        end.status = RDT_TRANSPORT;
        end.message = (char *)"the owner's side of the transfer has ended";
        end.from_owner = true;
        (void)peer_session_send(session, RDT_PEER_PULL_END, &end.base, NULL);
        return;
    }
    if (out->sm.state != SERVE_OFFERED || out->awaits_memory) /* The reader has sent PULL_START before. */
        return;
    if (start->broadcast != 0)
        status = out->transfers->serve->on_start(out, start, &err);
    if (status != RDT_OK)
        ;
    else if (start->group.len > 0)
        status = transfer_group_start(out, start, &pt, &err);
    else if (!pt)
        status = rdt_error_set(&err, RDT_UNSUPPORTED, "transport \"%.64s\" is not loaded at the owner", start->transport);
    if (status != RDT_OK)
        ;
    else if (out->collective && (start->one_sided || start->tickets || !pt->group))
        status = rdt_error_set(&err, RDT_PROTOCOL, "a collective broadcast moves by sends in a group without ordered queues");
    else if (pt->sm.state != PT_CONNECTED || pt->remote_epoch != start->epoch)
        status = rdt_error_set(&err, RDT_TRANSPORT, "%s: the owner's connection is being rebuilt", pt->transport->name);
    else if (start->one_sided ? !pt->transport->ops.pack_key : !pt->transport->ops.post_send)
        status =
            rdt_error_set(&err, RDT_UNSUPPORTED, "%s cannot move the object in this way at the owner", pt->transport->name);
    else if (start->one_sided && out->object->chunk) /* The key would open the neighbours in the arena too. */
        status =
            rdt_error_set(&err, RDT_UNSUPPORTED, "%s cannot read a small object of the owner's arena", pt->transport->name);
    else if (start->one_sided && out->replica && out->replica->filling)
        status = rdt_error_set(&err, RDT_TRANSPORT, "%s: a replica that is not complete cannot be read one-sided",
                               pt->transport->name);
    else if (!start->tickets && !start->one_sided && order_needed(out, pt))
        status =
            rdt_error_set(&err, RDT_PROTOCOL,
                          "%s: the object's memory is in an ordered queue at the owner, and the reader takes no queue ticket",
                          pt->transport->name);
    else if (start->tickets && !start->one_sided && out->replica && out->replica->filling)
        status = rdt_error_set(&err, RDT_TRANSPORT, "%s: a replica that is not complete would hold up its ordered queue",
                               pt->transport->name);
    if (status == RDT_OK)
        status = decide_staging(out, pt, start, &err);
    if (status == RDT_OK && !start->one_sided && start->single)
        status = chunk_plan_create_single(out->packed, out->stream_bytes, start->chunk_bytes, &out->plan, &err);
    else if (status == RDT_OK && !start->one_sided)
        status = chunk_plan_create(out->packed, out->stream_bytes, start->chunk_bytes, &out->plan, &err);
    if (status == RDT_OK && !start->one_sided && start->first_chunk >= out->plan->n)
        status = rdt_error_set(&err, RDT_PROTOCOL, "the reader asked for chunks from number %u on, but there are %u",
                               start->first_chunk, out->plan->n);
    if (status != RDT_OK) {
        serve_fail(out, &err);
        return;
    }
    out->one_sided = start->one_sided;
    out->ordered = start->tickets && !start->one_sided;
    out->start_epoch = start->epoch;
    if (!out->one_sided)
        out->next_chunk = out->chunks_done = start->first_chunk;
    serve_begin(out, pt);
}

/* ---- sending ---- */

static void op_free(struct chunk_op *op)
{
    list_remove(&op->posted);
    if (op->staging && op->out->staged)
        stage_return_slot(op->out->stage, op->staging);
    else
        free(op->staging);
    free(op);
}

static void send_in_order(struct serve *out);
static void send_more(struct serve *out);

static void chunk_ended(struct chunk_op *op, enum rdt_status status, const char *msg)
{
    struct serve *out = op->out;
    struct peer_transport *pt = out->connection;
    uint64_t bytes = op->base.op.piece.bytes;
    struct rdt_error err = {0};

    op_free(op);
    out->n_ops--;
    if (!out->ordered && pt->sends_in_flight > 0)
        pt->sends_in_flight--;
    if (out->sm.state == SERVE_ABORT) {
        serve_settle(out);
    } else if (status != RDT_OK) {
        /* Nobody cancelled this operation: the whole connection has ended, or the transport knows why. */
        if (status == RDT_CANCELLED)
            status = RDT_TRANSPORT, msg = pt->broken;
        (void)rdt_error_set(&err, status, "%s at the owner: %s", pt->transport->name,
                            msg && msg[0] ? msg : "the transport cancelled an operation that the daemon had not cancelled");
        serve_fail(out, &err);
    } else {
        out->chunks_done++;
        out->record.bytes_done += bytes;
        out->transfers->counts->bytes_out += bytes;
        out->session->bytes_out += bytes;
        if (out->chunks_done == out->plan->n) {
            record_lanes(&out->record, &pt->conn);
            serve_end(out);
        } else if (out->ordered) {
            send_in_order(out);
        } else if (out->staged) {
            send_more(out); /* The slot is free again. */
        } else {
            serve_watch_pace(out);
        }
    }
    serve_pump(pt);
}

static void on_sent(struct plugin_op *base, enum rdt_status status, const char *msg)
{
    chunk_ended((struct chunk_op *)base, status, msg);
}

/* Gives a chunk to the transport. Its bytes are in place. */
static void hand_over(struct chunk_op *op)
{
    struct peer_transport *pt = op->out->connection;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_CANCELLED;

    if (op->staging && op->out->sm.state == SERVE_SENDING && serve_check(op->out, &err) != RDT_OK)
        status = err.status;
    else if (op->out->sm.state == SERVE_SENDING && pt->sm.state == PT_CONNECTED)
        status = plugin_op_send(&pt->conn, &op->base, &err);
    if (status == RDT_OK)
        list_append(&op->out->posted, &op->posted);
    else
        chunk_ended(op, status, err.msg);
}

static void run_gather(struct work *work)
{
    struct chunk_op *op = container_of(work, struct chunk_op, work);
    struct serve *out = op->out;

    chunk_gather(&out->plan->chunks[op->chunk], out->packed, out->source, out->bases, op->staging);
}

static void done_gather(struct work *work)
{
    struct chunk_op *op = container_of(work, struct chunk_op, work);
    struct serve *out = op->out;

    if (!out->ordered) {
        hand_over(op);
        return;
    }
    out->gathering = false;
    out->n_ops++; /* The serve must not end meanwhile. */
    hand_over(op);
    out->n_ops--;
    if (out->sm.state == SERVE_ABORT)
        serve_settle(out);
    else
        send_in_order(out);
}

/* The operation failed before the transport had it. It ends as if the transport had failed it. */
static void on_device_gathered(void *arg, const struct rdt_error *err)
{
    struct chunk_op *op = arg;
    struct serve *out = op->out;

    if (!err) {
        done_gather(&op->work);
        return;
    }
    out->gathering = false;
    chunk_ended(op, err->status, err->msg);
}

static void gather_from_device(struct chunk_op *op)
{
    struct serve *out = op->out;
    const struct chunk *chunk = &out->plan->chunks[op->chunk];
    struct device_part part = chunk_part(chunk, out->packed);
    struct rdt_error err = {0};
    enum rdt_status status;

    op->place.base = op->staging - chunk->offset;
    if (chunk->count > 1)
        memset(op->staging, 0, chunk->bytes); /* The gaps between tensors must not carry old bytes. */
    out->gathering = out->ordered;
    status = device_copy_start(out->source, out->places, out->packed, &op->place, &part, stage_is_pinned(out->stage),
                               on_device_gathered, op, &op->copy, &err);
    if (status == RDT_OK && !op->copy)
        status = rdt_error_set(&err, RDT_INTERNAL, "a chunk has no bytes");
    if (status != RDT_OK)
        on_device_gathered(op, &err);
}

static void note_posted(struct serve *out, uint32_t index)
{
    if (out->is_posted)
        out->is_posted[index] = true;
    while (out->next_chunk < out->plan->n && (out->is_posted ? out->is_posted[out->next_chunk] : out->next_chunk == index))
        out->next_chunk++;
}

static struct region *region_at(const void *owner, uint32_t index, uint8_t **base_p)
{
    const struct serve *out = owner;

    *base_p = out->bases[index];
    return object_region(out->object, index);
}

static bool send_chunk(struct serve *out, uint32_t index, struct rdt_error *err)
{
    const struct chunk *chunk = &out->plan->chunks[index];
    struct plugin_conn *conn = &out->connection->conn;
    struct chunk_ground ground = {.packed = out->packed,
                                  .layout = out->source,
                                  .region_at = region_at,
                                  .owner = out,
                                  .transport = conn->transport,
                                  .max_pieces = out->staged ? 0 : plugin_conn_pieces(conn, "host")};
    struct chunk_op *op = chunk_op_create(chunk, &ground);

    if (op && !op->in_place)
        op->base.op.piece.addr = op->staging = out->staged ? stage_take_slot(out->stage) : malloc(chunk->bytes);
    if (!op || (!op->in_place && !op->staging)) {
        free(op);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to send %llu bytes", (unsigned long long)chunk->bytes);
        return false;
    }
    op->out = out;
    op->chunk = index;
    op->base.on_done = on_sent;
    op->base.op.transfer = out->number;
    op->base.op.chunk = index;
    note_posted(out, index);
    out->n_ops++;
    if (!out->ordered)
        out->connection->sends_in_flight++;
    if (!op->staging) {
        hand_over(op);
    } else if (out->staged) {
        gather_from_device(op);
    } else if (chunk->bytes > SMALL_COPY) {
        out->gathering = true;
        op->work = (struct work){.run = run_gather, .done = done_gather};
        work_submit(out->transfers->pool, &op->work);
    } else {
        run_gather(&op->work);
        hand_over(op);
    }
    return true;
}

/* Whether the chunk exists, its bytes have arrived, and the reader is ready for it. */
static bool can_send_chunk(const struct serve *out, uint32_t index)
{
    return index < out->plan->n && index < out->credit &&
           (!out->staged || stage_free_slots(out->stage) > index - out->next_chunk) &&
           (!out->replica || replica_has(out->replica, out->plan->chunks[index].offset, out->plan->chunks[index].bytes));
}

/* The first chunk from this one on that can be sent and was not; plan->n: none. Chunks of a replica may arrive in any order,
 * because a transport has several connections, and are passed on likewise: one that is late holds up no other. */
static uint32_t next_to_send(const struct serve *out, uint32_t from)
{
    const struct chunk_plan *plan = out->plan;

    for (uint32_t i = from;
         out->is_posted && i < plan->n && (out->is_posted[i] || replica_reaches(out->replica, plan->chunks[i].offset)); i++)
        if (!out->is_posted[i] && can_send_chunk(out, i))
            return i;
    return !out->is_posted && can_send_chunk(out, from) ? from : plan->n;
}

/* Posts chunks in ordered queues: one after the other, while the serve has its ticket. The operations of
 * other transfers do not count, because they may stand behind this one in the queue. */
static void send_in_order(struct serve *out)
{
    unsigned max_ops = out->transfers->options->chunks_in_flight;
    struct rdt_error err = {0};

    if (out->posting || out->sm.state != SERVE_SENDING)
        return;
    out->posting = true;
    out->n_ops++; /* The serve must not end meanwhile. */
    while (out->sm.state == SERVE_SENDING && out->connection->sm.state == PT_CONNECTED && !out->gathering &&
           can_send_chunk(out, out->next_chunk) && out->n_ops - 1 < max_ops)
        if (!send_chunk(out, out->next_chunk, &err))
            serve_fail(out, &err);
    out->n_ops--;
    out->posting = false;
    if (out->sm.state == SERVE_ABORT)
        serve_settle(out);
    else if (out->next_chunk == out->plan->n && !out->gathering)
        order_pass_on(&out->record);
}

static void send_more(struct serve *out)
{
    if (out->ordered) {
        send_in_order(out);
        return;
    }
    if (out->sm.state != SERVE_SENDING || out->one_sided || !list_empty(&out->in_turn) ||
        next_to_send(out, out->next_chunk) == out->plan->n)
        return;
    list_append(&out->connection->sending, &out->in_turn);
    serve_pump(out->connection);
}

/* The replica that is served has memory now. */
static void begin_late(struct serve *out)
{
    struct peer_transport *pt = out->awaits_memory;
    struct rdt_error err;

    out->awaits_memory = NULL;
    if (pt->sm.state == PT_CONNECTED && pt->remote_epoch == out->start_epoch) {
        serve_begin(out, pt);
        return;
    }
    (void)rdt_error_set(&err, RDT_TRANSPORT, "%s: the owner's connection is being rebuilt", pt->transport->name);
    serve_fail(out, &err);
}

void serve_go_on(struct serve *out)
{
    if (out->awaits_memory && out->sm.state == SERVE_OFFERED) {
        begin_late(out);
        return;
    }
    if (out->sm.state == SERVE_SENDING && out->plan && !out->one_sided)
        serve_watch_pace(out);
    send_more(out);
}

/* Chunks that are smaller than configured, as those of a fan-out, are posted in larger numbers, up to the same bytes. */
static bool may_post(const struct peer_transport *pt)
{
    const struct options *options = pt->session->transfers->options;
    const struct serve *out = container_of(list_first(&pt->sending), struct serve, in_turn);
    uint64_t bytes = out->plan->chunks[out->next_chunk].bytes, many = options->chunk_bytes / (bytes ? bytes : 1);

    return pt->sends_in_flight < options->chunks_in_flight * (many < 1 ? 1 : many > SMALL_CHUNKS_MAX ? SMALL_CHUNKS_MAX : many);
}

void serve_pump(struct peer_transport *pt)
{
    if (pt->pumping) /* A chunk that fails at once calls this function again. */
        return;
    pt->pumping = true;
    while (pt->sm.state == PT_CONNECTED && !list_empty(&pt->sending) && may_post(pt)) {
        struct serve *out = container_of(list_first(&pt->sending), struct serve, in_turn);
        uint32_t index = next_to_send(out, out->next_chunk);
        struct rdt_error err = {0};

        list_remove(&out->in_turn);
        if (index == out->plan->n)
            continue;
        if (next_to_send(out, index + 1) < out->plan->n)
            list_append(&pt->sending, &out->in_turn);
        if (!send_chunk(out, index, &err))
            serve_fail(out, &err);
    }
    pt->pumping = false;
}

void serve_send_in_order(struct serve *out)
{
    serve_set_state(out, SERVE_SENDING);
    serve_go_on(out);
}
