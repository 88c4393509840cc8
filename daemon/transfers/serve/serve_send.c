/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's side while bytes move: prepares memory, and posts the chunks of all serves on a connection in
 * rotation, so that none starves another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/replica_directory.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"
#include "daemon/transfers/transfer_ticket.h"

#define SMALL_COPY (256u << 10)
#define SMALL_CHUNKS_MAX 4u

static void prepare(struct serve *serve);

bool serve_is_cut_off(const struct serve *serve)
{
    const struct peer_transport *pt = serve->sending.connection;

    if (pt->sm.state != PT_CONNECTED || pt->remote_epoch != serve->sending.start_epoch || serve->transfers->closing)
        return true;
    return !transport_is_grouped(pt->transport) && serve->epoch != pt->remote->peer->epoch;
}

/* ---- preparing ---- */

static enum rdt_status send_keys(struct serve *serve, struct rdt_error *err)
{
    Rdt__Pb__PullKeys keys = RDT__PB__PULL_KEYS__INIT;
    struct object *object = serve->object;
    uint8_t(*blobs)[RDT_KEY_MAX_BYTES] = calloc(object->memory.n_regions + 1u, sizeof *blobs);
    ProtobufCBinaryData *list = calloc(object->memory.n_regions + 1u, sizeof *list);
    struct transport *transport = serve->sending.connection->transport;
    Rdt__Pb__TensorList tensors;
    struct layout_rows rows;
    enum rdt_status status = blobs && list ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory for keys");

    for (uint32_t i = 0; status == RDT_OK && i < object->memory.n_regions; i++) {
        void *handle = NULL;
        if (!transport_moves(transport, object->memory.uses[i].region->kind->name) ||
            region_is_by_fd(object->memory.uses[i].region))
            continue; /* None of the requested tensors lies in this region, so it was not registered. */
        status = region_register(object->memory.uses[i].region, transport, &handle, NULL, NULL, err);
        list[i].data = blobs[i];
        if (status == RDT_OK)
            status = transport->ops.pack_key(transport->instance, handle, blobs[i], &list[i].len, err);
    }
    if (status == RDT_OK) {
        keys.transfer = serve->number;
        keys.n_keys = object->memory.n_regions;
        keys.keys = list;
        layout_to_wire(serve->source, true, serve->remote->peer->tensor_runs ? &rows : NULL, &tensors);
        keys.tensors = &tensors;
        status = serve_send(serve, RDT_PEER_PULL_KEYS, &keys.base, err);
    }
    free(blobs);
    free(list);
    return status;
}

/* Memory of a device could not be registered: it is sent through host memory. Returns false if it cannot be. */
static bool stage_unregistered(struct serve *serve, const struct rdt_error *err)
{
    const struct transport *transport = serve->sending.connection->transport;
    struct remote *remote = serve->remote;
    char who[sizeof remote->peer->name + 8], line[256];

    if (serve->sending.staged || !serve->sending.plan || serve_is_one_sided(serve) || !transport_moves(transport, "host"))
        return false;
    serve->sending.staged = true;
    (void)snprintf(serve->record.path, sizeof serve->record.path, "%.56s/staged", transport->name);
    (void)snprintf(line, sizeof line,
                   "objects are sent by %s through host memory, because memory could not be registered: %.120s",
                   transport->name, err->msg);
    (void)snprintf(who, sizeof who, "node %s", remote->peer->name);
    log_rarely(LOG_LEVEL_INFO, &remote->fell_back.lines, who, line);
    return true;
}

static void on_registered(void *arg, struct region *region, const struct rdt_error *err)
{
    struct serve *serve = arg;

    serve->sending.n_ops--;
    if (serve->sm.state == SERVE_ABORT)
        serve_settle(serve);
    else if (err)
        serve_fail(serve, err);
    else
        prepare(serve);
}

static void on_device_registered(void *arg, struct region *region, const struct rdt_error *err)
{
    struct serve *serve = arg;
    bool goes_on = err && serve->sm.state != SERVE_ABORT && stage_unregistered(serve, err);

    if (err && serve_is_one_sided(serve)) {
        serve->sending.n_ops--;
        if (serve->sm.state == SERVE_ABORT)
            serve_settle(serve);
        else
            serve_fail_unregistered(serve, err);
        return;
    }
    on_registered(serve, region, goes_on ? NULL : err);
}

static void on_stage(void *arg, struct stage *stage, const struct rdt_error *err)
{
    struct serve *serve = arg;

    serve->sending.stage = stage;
    on_registered(serve, NULL, err);
}

/* Reserves slots for the chunks between the device, or imported memory, and the transport. */
static enum rdt_status reserve_stage(struct serve *serve, struct rdt_error *err)
{
    struct object *object = serve->object;
    const struct region *region = NULL;
    uint32_t slots = serve->transfers->options->chunks_in_flight;
    uint64_t max_bytes = 0;

    for (uint32_t i = 0; i < serve->source->count && !region; i++)
        if (layout_bytes(serve->source, i) > 0)
            region = object_region(object, serve->source->region[i]);
    for (uint32_t i = 0; i < serve->sending.plan->n; i++)
        max_bytes = serve->sending.plan->chunks[i].bytes > max_bytes ? serve->sending.plan->chunks[i].bytes : max_bytes;
    if (!serve->sending.slow_owner &&
        !(serve->sending.places = calloc(object->memory.n_regions + 1u, sizeof *serve->sending.places)))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to send object \"%s\"", serve->ref.id);
    for (uint32_t i = 0; i < object->memory.n_regions && serve->sending.places; i++)
        serve->sending.places[i].region = object->memory.uses[i].region;
    return stage_create(serve->transfers->regions, region, slots < serve->sending.plan->n ? slots : serve->sending.plan->n,
                        (max_bytes + 4095) & ~UINT64_C(4095), serve->account, on_stage, serve, err);
}

/* Maps and registers the object's regions, one at a time. Then it sends, or lets the reader read. */
static void prepare(struct serve *serve)
{
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;
    void *handle;
    bool on_device;

    for (uint32_t i = 0; status == RDT_OK && i < object_n_places(serve->object); i++) {
        struct region *region = object_region(serve->object, i);
        if (!transport_moves(serve->sending.connection->transport, region->kind->name) || region_is_by_fd(region) ||
            (serve->sending.staged && !region_is_host(region)))
            continue;
        on_device = !region_is_host(region);
        status = region_register(region, serve->sending.connection->transport, &handle,
                                 on_device ? on_device_registered : on_registered, serve, &err);
        if (status != RDT_OK && status != RDT_AGAIN && on_device && serve_is_one_sided(serve)) {
            serve_fail_unregistered(serve, &err);
            return;
        }
        if (status != RDT_OK && status != RDT_AGAIN && on_device && stage_unregistered(serve, &err))
            status = RDT_OK;
    }
    if (status == RDT_OK)
        status = serve_map(serve, &err);
    if (status == RDT_OK && serve->sending.staged && !serve->sending.stage)
        status = reserve_stage(serve, &err);
    if (status == RDT_AGAIN) {
        serve->sending.n_ops++;
        return;
    }
    if (status == RDT_OK && serve_is_cut_off(serve)) {
        serve_fail_rebuilding(serve, serve->sending.connection->transport);
        return;
    }
    if (status == RDT_OK && serve->sending.mode == SENDING_IN_ORDER) {
        status = transfer_ticket_begin_serve(serve, &err);
        if (status == RDT_OK) {
            serve_set_state(serve, SERVE_TICKET);
            transfer_ticket_queue_serve(serve);
            return;
        }
    } else if (status == RDT_OK) {
        serve_set_state(serve, SERVE_SENDING);
        if (serve_is_one_sided(serve))
            status = send_keys(serve, &err);
    }
    if (status == RDT_OK)
        serve_go_on(serve);
    else
        serve_fail(serve, &err);
}

/* Pins the object from here on. If chunks are to be sent, the plan exists already. */
static void begin(struct serve *serve, struct peer_transport *pt)
{
    if (serve->replica && !serve->replica->placed) {
        peer_transport_use(&serve->awaits_memory, pt);
        return;
    }
    deadline_unset(serve->transfers->deadlines, &serve->deadline); /* The reader watches the time. */
    (void)snprintf(serve->record.path, sizeof serve->record.path, "%s", pt->transport->name);
    peer_transport_use(&serve->sending.connection, pt);
    list_append(&pt->serves, &serve->sending.by_connection);
    object_pin(serve->object);
    serve->sending.slow_owner = object_slow_owner(serve->object, serve->source);
    serve->sending.reads_owner = serve->sending.slow_owner ? serve->sending.slow_owner : object_reads_owner(serve->object);
    serve->sending.staged |= serve->sending.slow_owner != NULL;
    if (serve->sending.plan && serve->replica && serve->replica->filling &&
        !serve->sending.staged) /* Without memory for it they are in order. */
        serve->sending.is_posted = calloc(serve->sending.plan->n + 1u, sizeof *serve->sending.is_posted);
    serve_set_state(serve, SERVE_PREPARE);
    prepare(serve);
}

/* Decides how device memory is sent: the transport moves it itself, one tensor for each chunk, or it goes
 * through host memory. */
static enum rdt_status decide_staging(struct serve *serve, const struct peer_transport *pt, const Rdt__Pb__PullStart *start,
                                      struct rdt_error *err)
{
    bool host = false, on_device = false, moves = true, holes = false;

    if (start->window > 0)
        serve->sending.credit = start->window;
    if (!object_on_device(serve->object)) /* A replica that is being filled may have no memory yet. */
        return RDT_OK;
    for (uint32_t i = 0; i < serve->source->count; i++) {
        const struct region *region = layout_bytes(serve->source, i) > 0 && !serve->object->memory.chunk
                                          ? object_region(serve->object, serve->source->region[i])
                                          : NULL;
        if (!region || region_is_host(region)) {
            host |= region != NULL;
            continue;
        }
        on_device = true;
        moves = moves && transport_moves(pt->transport, region->kind->name);
        holes |= !layout_is_contiguous(serve->source, i);
    }
    if (!on_device)
        return RDT_OK;
    if (host)
        return rdt_error_set(err, RDT_PROTOCOL, "one pull asks for tensors in several kinds of memory");
    serve->sending.staged = !start->one_sided && (!start->single || !moves || holes);
    if (start->one_sided && !moves)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s cannot read device memory at the owner", pt->transport->name);
    if (serve->sending.staged && !transport_moves(pt->transport, "host"))
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s moves neither this memory at the owner nor host memory",
                             pt->transport->name);
    return RDT_OK;
}

void serve_on_start(struct remote *remote, const Rdt__Pb__PullStart *start)
{
    struct serve *serve = map_get_u64(&remote->by_number, start->transfer);
    struct peer_transport *pt = start->group.len == 0 ? peer_transport_find(remote, start->transport) : NULL;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;

    if (!serve) { /* The reader would wait for chunks that nobody sends. */
        Rdt__Pb__PullEnd end = RDT__PB__PULL_END__INIT;
        end.transfer = start->transfer;
        end.status = RDT_TRANSPORT;
        end.message = (char *)"the owner's side of the transfer has ended";
        end.from_owner = true;
        (void)remote_send(remote, RDT_PEER_PULL_END, &end.base, NULL);
        return;
    }
    if (serve->sm.state != SERVE_OFFERED || serve->awaits_memory || serve->gathering || !list_empty(&serve->held))
        return; /* The reader has sent PULL_START before, or has not been answered. */
    if (start->group.len > 0)
        status = transfer_group_start(serve, start, &pt, &err);
    else if (!pt)
        status = rdt_error_set(&err, RDT_UNSUPPORTED, "transport \"%.64s\" is not loaded at the owner", start->transport);
    if (status == RDT_OK && (pt->sm.state != PT_CONNECTED || pt->remote_epoch != start->epoch)) {
        serve_fail_rebuilding(serve, pt->transport);
        return;
    }
    if (status != RDT_OK)
        ;
    else if (start->one_sided ? !pt->transport->ops.pack_key : !pt->transport->ops.post_send)
        status =
            rdt_error_set(&err, RDT_UNSUPPORTED, "%s cannot move the object in this way at the owner", pt->transport->name);
    else if (start->one_sided && serve->object->memory.chunk) /* The key would open the neighbours in the arena too. */
        status =
            rdt_error_set(&err, RDT_UNSUPPORTED, "%s cannot read a small object of the owner's arena", pt->transport->name);
    else if (start->one_sided && serve->replica && serve->replica->filling)
        status = rdt_error_set(&err, RDT_TRANSPORT, "%s: a replica that is not complete cannot be read one-sided",
                               pt->transport->name);
    else if (!start->tickets && !start->one_sided && transfer_ticket_needed(serve, pt))
        status =
            rdt_error_set(&err, RDT_PROTOCOL,
                          "%s: the object's memory is in an ordered queue at the owner, and the reader takes no queue ticket",
                          pt->transport->name);
    else if (start->tickets && !start->one_sided && serve->replica && serve->replica->filling)
        status = rdt_error_set(&err, RDT_TRANSPORT, "%s: a replica that is not complete would hold up its ordered queue",
                               pt->transport->name);
    else if (start->one_sided && object_slow_owner(serve->object, serve->source))
        status = rdt_error_set(&err, RDT_UNSUPPORTED, "%s cannot read memory that a client at the owner imported",
                               pt->transport->name);
    if (status == RDT_OK)
        status = decide_staging(serve, pt, start, &err);
    if (status == RDT_OK && !start->one_sided && start->single)
        status = chunk_plan_create_single(serve->packed, serve->stream_bytes, start->chunk_bytes, &serve->sending.plan, &err);
    else if (status == RDT_OK && !start->one_sided)
        status = chunk_plan_create(serve->packed, serve->stream_bytes, start->chunk_bytes, &serve->sending.plan, &err);
    if (status == RDT_OK && !start->one_sided && start->first_chunk >= serve->sending.plan->n)
        status = rdt_error_set(&err, RDT_PROTOCOL, "the reader asked for chunks from number %u on, but there are %u",
                               start->first_chunk, serve->sending.plan->n);
    if (status != RDT_OK) {
        serve_fail(serve, &err);
        return;
    }
    if (start->one_sided)
        serve_set_mode(serve, SENDING_READ);
    else if (start->tickets)
        serve_set_mode(serve, SENDING_IN_ORDER);
    serve->sending.start_epoch = start->epoch;
    if (!serve_is_one_sided(serve))
        serve->sending.next = serve->sending.n_done = start->first_chunk;
    begin(serve, pt);
}

/* ---- sending ---- */

static void op_free(struct chunk_op *op)
{
    list_remove(&op->posted);
    if (op->staging && op->serve->sending.staged)
        stage_return_slot(op->serve->sending.stage, op->staging);
    else
        free(op->staging);
    free(op);
}

static void send_in_order(struct serve *serve);
static void send_more(struct serve *serve);

static void chunk_ended(struct chunk_op *op, enum rdt_status status, const char *msg)
{
    struct serve *serve = op->serve;
    struct peer_transport *pt = serve->sending.connection;
    uint64_t bytes = op->base.op.piece.bytes;
    struct rdt_error err = {0};

    op_free(op);
    serve->sending.n_ops--;
    if (serve->sending.mode != SENDING_IN_ORDER && pt->sends_in_flight > 0 && !serve_is_cut_off(serve))
        pt->sends_in_flight--;
    if (serve->sm.state == SERVE_ABORT) {
        serve_settle(serve);
    } else if (status != RDT_OK) {
        /* Nobody cancelled this operation: the whole connection has ended, or the transport knows why. */
        if (status == RDT_CANCELLED)
            status = RDT_TRANSPORT, msg = pt->broken;
        (void)rdt_error_set(&err, status, "%s at the owner: %s", pt->transport->name,
                            msg && msg[0] ? msg : "the transport cancelled an operation that the daemon had not cancelled");
        serve_fail(serve, &err);
    } else {
        serve->sending.n_done++;
        serve->record.bytes_done += bytes;
        serve->transfers->counts->bytes_out += bytes;
        serve->remote->counts.bytes_served += bytes;
        if (serve->sending.n_done == serve->sending.plan->n) {
            record_route(&serve->record, &pt->conn);
            serve_end(serve);
        } else if (serve->sending.mode == SENDING_IN_ORDER) {
            send_in_order(serve);
        } else if (serve->sending.staged) {
            send_more(serve); /* The slot is free again. */
        } else {
            serve_watch_pace(serve);
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
    struct peer_transport *pt = op->serve->sending.connection;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_CANCELLED;

    if (op->failed)
        status = rdt_error_sys(&err, op->failed, "reading the imported memory of object \"%s\"", op->serve->ref.id);
    else if (op->staging && op->serve->sm.state == SERVE_SENDING && serve_check(op->serve, &err) != RDT_OK)
        status = err.status;
    else if (op->serve->sm.state == SERVE_SENDING && !serve_is_cut_off(op->serve))
        status = plugin_op_send(&pt->conn, &op->base, &err);
    if (status == RDT_OK)
        list_append(&op->serve->sending.posted, &op->posted);
    else
        chunk_ended(op, status, err.msg);
}

static void run_gather(struct work *work)
{
    struct chunk_op *op = container_of(work, struct chunk_op, work);
    struct serve *serve = op->serve;

    op->failed =
        chunk_gather(&serve->sending.plan->chunks[op->chunk], serve->packed, serve->source, serve->sending.memory, op->staging);
}

static void done_gather(struct work *work)
{
    struct chunk_op *op = container_of(work, struct chunk_op, work);
    struct serve *serve = op->serve;

    if (serve->sending.mode != SENDING_IN_ORDER) {
        hand_over(op);
        return;
    }
    serve->sending.gathering = false;
    serve->sending.n_ops++; /* The serve must not end meanwhile. */
    hand_over(op);
    serve->sending.n_ops--;
    if (serve->sm.state == SERVE_ABORT)
        serve_settle(serve);
    else
        send_in_order(serve);
}

/* The operation failed before the transport had it. It ends as if the transport had failed it. */
static void on_device_gathered(void *arg, const struct rdt_error *err)
{
    struct chunk_op *op = arg;
    struct serve *serve = op->serve;

    if (!err) {
        done_gather(&op->work);
        return;
    }
    serve->sending.gathering = false;
    chunk_ended(op, err->status, err->msg);
}

static void gather_from_device(struct chunk_op *op)
{
    struct serve *serve = op->serve;
    const struct chunk *chunk = &serve->sending.plan->chunks[op->chunk];
    struct device_range range = chunk_range(chunk, serve->packed);
    struct rdt_error err = {0};
    enum rdt_status status;

    op->place.base = op->staging - chunk->offset;
    chunk_clear_gaps(chunk, serve->packed, op->staging);
    serve->sending.gathering = serve->sending.mode == SENDING_IN_ORDER;
    status = device_copy_start(serve->source, serve->sending.places, serve->packed, &op->place, &range,
                               stage_is_pinned(serve->sending.stage), on_device_gathered, op, &op->copy, &err);
    if (status == RDT_OK && !op->copy)
        status = rdt_error_set(&err, RDT_INTERNAL, "a chunk has no bytes");
    if (status != RDT_OK)
        on_device_gathered(op, &err);
}

static void note_posted(struct serve *serve, uint32_t index)
{
    if (serve->sending.is_posted)
        serve->sending.is_posted[index] = true;
    while (serve->sending.next < serve->sending.plan->n &&
           (serve->sending.is_posted ? serve->sending.is_posted[serve->sending.next] : serve->sending.next == index))
        serve->sending.next++;
}

static struct region *region_at(const void *owner, uint32_t index, uint8_t **base_p)
{
    const struct serve *serve = owner;

    *base_p = serve->sending.memory[index].base;
    return object_region(serve->object, index);
}

static bool send_chunk(struct serve *serve, uint32_t index, struct rdt_error *err)
{
    const struct chunk *chunk = &serve->sending.plan->chunks[index];
    struct plugin_conn *conn = &serve->sending.connection->conn;
    struct chunk_ground ground = {.packed = serve->packed,
                                  .layout = serve->source,
                                  .region_at = region_at,
                                  .owner = serve,
                                  .transport = conn->transport,
                                  .max_pieces = serve->sending.staged ? 0 : plugin_conn_pieces(conn, "host")};
    struct chunk_op *op = chunk_op_create(chunk, &ground);

    if (op && !op->in_place)
        op->base.op.piece.addr = op->staging =
            serve->sending.staged ? stage_take_slot(serve->sending.stage) : malloc(chunk->bytes);
    if (!op || (!op->in_place && !op->staging)) {
        free(op);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to send %llu bytes", (unsigned long long)chunk->bytes);
        return false;
    }
    op->serve = serve;
    op->chunk = index;
    op->base.on_done = on_sent;
    op->base.op.transfer = serve->number;
    op->base.op.chunk = index;
    note_posted(serve, index);
    serve->sending.n_ops++;
    if (serve->sending.mode != SENDING_IN_ORDER)
        serve->sending.connection->sends_in_flight++;
    if (!op->staging) {
        hand_over(op);
    } else if (serve->sending.places) {
        gather_from_device(op);
    } else if (serve->sending.reads_owner || chunk->bytes > SMALL_COPY) {
        serve->sending.gathering = true;
        op->work = (struct work){.run = run_gather, .done = done_gather};
        if (serve->sending.reads_owner)
            owner_work_submit(serve->transfers->regions->owner_work, &op->work, serve->sending.reads_owner, true);
        else
            work_submit(serve->transfers->pool, &op->work);
    } else {
        run_gather(&op->work);
        hand_over(op);
    }
    return true;
}

/* Whether the chunk exists, its bytes have arrived, and the reader is ready for it. */
static bool can_send_chunk(const struct serve *serve, uint32_t index)
{
    return index < serve->sending.plan->n && index < serve->sending.credit &&
           (!serve->sending.staged || stage_free_slots(serve->sending.stage) > index - serve->sending.next) &&
           (!serve->replica ||
            replica_has(serve->replica, serve->sending.plan->chunks[index].offset, serve->sending.plan->chunks[index].bytes));
}

/* The first chunk from this one on that can be sent and was not; plan->n: none. Chunks of a replica may arrive in any order,
 * because a transport has several connections, and are passed on likewise: one that is late holds up no other. */
static uint32_t next_to_send(const struct serve *serve, uint32_t from)
{
    const struct chunk_plan *plan = serve->sending.plan;

    for (uint32_t i = from; serve->sending.is_posted && i < plan->n &&
                            (serve->sending.is_posted[i] || replica_reaches(serve->replica, plan->chunks[i].offset));
         i++)
        if (!serve->sending.is_posted[i] && can_send_chunk(serve, i))
            return i;
    return !serve->sending.is_posted && can_send_chunk(serve, from) ? from : plan->n;
}

/* Posts chunks in ordered queues: one after the other, while the serve has its ticket. The operations of
 * other transfers do not count, because they may stand behind this one in the queue. */
static void send_in_order(struct serve *serve)
{
    unsigned max_ops = serve->transfers->options->chunks_in_flight;
    struct rdt_error err = {0};

    if (serve->sending.posting || serve->sm.state != SERVE_SENDING)
        return;
    serve->sending.posting = true;
    serve->sending.n_ops++; /* The serve must not end meanwhile. */
    while (serve->sm.state == SERVE_SENDING && !serve_is_cut_off(serve) && !serve->sending.gathering &&
           can_send_chunk(serve, serve->sending.next) && serve->sending.n_ops - 1 < max_ops)
        if (!send_chunk(serve, serve->sending.next, &err))
            serve_fail(serve, &err);
    serve->sending.n_ops--;
    serve->sending.posting = false;
    if (serve->sm.state == SERVE_ABORT)
        serve_settle(serve);
    else if (serve->sending.next == serve->sending.plan->n && !serve->sending.gathering)
        transfer_ticket_pass_on(&serve->record);
}

static void send_more(struct serve *serve)
{
    if (serve->sending.mode == SENDING_IN_ORDER) {
        send_in_order(serve);
        return;
    }
    if (serve->sm.state != SERVE_SENDING || serve_is_one_sided(serve) || !list_empty(&serve->sending.by_sending) ||
        serve_is_cut_off(serve) || next_to_send(serve, serve->sending.next) == serve->sending.plan->n)
        return;
    list_append(&serve->sending.connection->sending, &serve->sending.by_sending);
    serve_pump(serve->sending.connection);
}

/* The replica that is served has memory now. */
static void begin_late(struct serve *serve)
{
    struct peer_transport *pt = serve->awaits_memory;

    if (pt->sm.state == PT_CONNECTED && pt->remote_epoch == serve->sending.start_epoch) {
        peer_transport_use(&serve->awaits_memory, NULL);
        begin(serve, pt);
        return;
    }
    serve_fail_rebuilding(serve, pt->transport);
}

void serve_go_on(struct serve *serve)
{
    if (serve->awaits_memory && serve->sm.state == SERVE_OFFERED) {
        begin_late(serve);
        return;
    }
    if (serve->sm.state == SERVE_SENDING && serve->sending.plan && !serve_is_one_sided(serve))
        serve_watch_pace(serve);
    send_more(serve);
}

/* Chunks that are smaller than configured, as those of a fan-out, are posted in larger numbers, up to the same bytes. */
static bool may_post(const struct peer_transport *pt)
{
    const struct options *options = pt->remote->transfers->options;
    const struct serve *serve = container_of(list_first(&pt->sending), struct serve, sending.by_sending);
    uint64_t bytes = serve->sending.plan->chunks[serve->sending.next].bytes, many = options->chunk_bytes / (bytes ? bytes : 1);

    return pt->sends_in_flight < options->chunks_in_flight * (many < 1 ? 1 : many > SMALL_CHUNKS_MAX ? SMALL_CHUNKS_MAX : many);
}

void serve_pump(struct peer_transport *pt)
{
    if (pt->pumping) /* A chunk that fails at once calls this function again. */
        return;
    pt->pumping = true;
    while (pt->sm.state == PT_CONNECTED && !list_empty(&pt->sending) && may_post(pt)) {
        struct serve *serve = container_of(list_first(&pt->sending), struct serve, sending.by_sending);
        uint32_t index = next_to_send(serve, serve->sending.next);
        struct rdt_error err = {0};

        list_remove(&serve->sending.by_sending);
        if (index == serve->sending.plan->n)
            continue;
        if (next_to_send(serve, index + 1) < serve->sending.plan->n)
            list_append(&pt->sending, &serve->sending.by_sending);
        if (!send_chunk(serve, index, &err))
            serve_fail(serve, &err);
    }
    pt->pumping = false;
}

void serve_send_in_order(struct serve *serve)
{
    serve_set_state(serve, SERVE_SENDING);
    serve_go_on(serve);
}
