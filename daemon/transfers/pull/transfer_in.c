/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a pull: what the answer says, memory, starting again, and the end. The files below it take the single steps and
 * come back here by the operations of the kind (struct transfer_kind). */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/memory/region_fill.h"
#include "daemon/transfers/coalescer.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_order.h"
#include "daemon/transfers/transfer_record.h"
#include "wire_error.h"
#include "wire_ref.h"

#define MAX_KEYS 4096u /* regions of one object */

static void reserve_next(struct transfer *transfer);
static void find_path(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

static struct transfer *find(struct peer_session *session, uint64_t id)
{
    struct transfer *transfer = map_get_u64(&session->transfers->by_id, id);

    return transfer && transfer->pull.peer == session ? transfer : NULL;
}

/* ---- the answer ---- */

/* Copies the metadata of the answer. It stays until the fetch is answered, which may have to wait for many
 * others; so it is charged to the client's share of the heap. */
static enum rdt_status take_metadata(struct transfer *transfer, const ProtobufCBinaryData *from, struct rdt_error *err)
{
    if (from->len == 0 || transfer->subpull.parent) /* The parent has the metadata. */
        return RDT_OK;
    if (account_take(transfer->account, USAGE_HEAP, from->len, err) != RDT_OK) {
        rdt_error_prefix(err, "the metadata of object \"%s\"", transfer->ref.id);
        return RDT_LIMIT;
    }
    transfer->pull.own_metadata = malloc(from->len);
    if (!transfer->pull.own_metadata) {
        account_give(transfer->account, USAGE_HEAP, from->len);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the metadata");
    }
    memcpy(transfer->pull.own_metadata, from->data, from->len);
    transfer->metadata = transfer->pull.own_metadata;
    transfer->metadata_bytes = from->len;
    return RDT_OK;
}

static enum rdt_status read_meta(struct transfer *transfer, const Rdt__Pb__PullMeta *meta, struct rdt_error *err)
{
    struct rdt_ref ref;
    enum rdt_status status = wire_ref_to(meta->ref, &ref, err);

    if (status == RDT_OK && transfer->ref.generation != 0 && ref.generation != transfer->ref.generation)
        status = rdt_error_set(err, RDT_PROTOCOL, "the answer is about another object");
    if (status == RDT_OK && (ref.is_name || (transfer->ref.is_name && meta->version <= transfer->ref.after)))
        status = rdt_error_set(err, RDT_PROTOCOL, "the answer has no newer version of the name");
    if (status == RDT_OK)
        status = layout_from_wire(meta->tensors, &transfer->source, err);
    if (status == RDT_OK && transfer->target) /* Nothing of an early start is believed before this check. */
        status = layout_same_shape(transfer->source, transfer->target->layout, err);
    if (status == RDT_MISMATCH)
        return status;
    if (status == RDT_OK && transfer->sm.state != TRANSFER_EARLY)
        status = layout_packed(transfer->source, &transfer->packed, &transfer->stream_bytes, err);
    if (status == RDT_OK && transfer->stream_bytes != meta->bytes)
        status = rdt_error_set(err, RDT_PROTOCOL, "its tensors have %llu bytes, but the answer says %llu",
                               (unsigned long long)transfer->stream_bytes, (unsigned long long)meta->bytes);
    if (status == RDT_OK && meta->has_inline && meta->inline_data.len != meta->bytes)
        status = rdt_error_set(err, RDT_PROTOCOL, "the answer carries %zu bytes of an object of %llu", meta->inline_data.len,
                               (unsigned long long)meta->bytes);
    /* The object is asked for again. */
    if (status == RDT_OK && transfer->received && transfer->received->bytes != meta->bytes)
        status = rdt_error_set(err, RDT_PROTOCOL, "the object has %llu bytes now, and had %llu when it was first asked for",
                               (unsigned long long)meta->bytes, (unsigned long long)transfer->received->bytes);
    if (status == RDT_OK && (meta->metadata.len > RDT_MAX_METADATA_BYTES || meta->box_bytes > meta->metadata.len))
        status = rdt_error_set(err, RDT_PROTOCOL, "its metadata is too large");
    if (status != RDT_OK) {
        rdt_error_prefix(err, "node %s", transfer->record.peer);
        return status;
    }
    if (take_metadata(transfer, &meta->metadata, err) != RDT_OK)
        return err->status;
    if (!transfer->subpull.parent)
        transfer->box_bytes = meta->box_bytes;
    memcpy(ref.node, transfer->pull.origin->peer->uuid, sizeof ref.node);
    transfer->ref = ref;
    if (meta->version != 0) /* Otherwise the transfer asks again by the ref that the name meant. */
        transfer->version = meta->version;
    transfer->record.ref = ref;
    transfer->record.bytes = transfer->stream_bytes;
    transfer->pull.answer.contiguous = meta->contiguous;
    if (!transfer->subpull.parent && subpulls_read_places(transfer, meta, err) != RDT_OK)
        return err->status;
    text_copy(transfer->pull.answer.preferred, sizeof transfer->pull.answer.preferred, meta->transport);
    text_copy(transfer->pull.answer.memory, sizeof transfer->pull.answer.memory, meta->memory);
    text_copy(transfer->pull.answer.producer, sizeof transfer->pull.answer.producer, meta->producer);
    transfer->pull.answer.arrived = true;
    return RDT_OK;
}

static void take_inline(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct target *target = transfer->target;
    struct rdt_error err = {0};

    if (!target) {
        transfer->inline_data = malloc(meta->inline_data.len ? meta->inline_data.len : 1);
        if (!transfer->inline_data) {
            transfer_fail(transfer, RDT_NO_MEMORY, "no memory for the bytes");
            return;
        }
        if (meta->inline_data.len)
            memcpy(transfer->inline_data, meta->inline_data.data, meta->inline_data.len);
    }
    if (target && region_fill(target->uses, target->n, target->layout, &transfer->filled_to, NULL, NULL, &err) != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    for (uint32_t i = 0; target && i < target->layout->count; i++) {
        uint64_t bytes = layout_bytes(target->layout, i);
        uint8_t *base;
        if (bytes == 0)
            continue;
        base = region_addr(target->uses[target->layout->region[i]].region, &err);
        if (!base) {
            transfer_fail_err(transfer, &err);
            return;
        }
        memcpy(base + target->layout->offset[i], meta->inline_data.data + transfer->packed->offset[i], bytes);
    }
    if (target_check(target, &err) != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer->record.bytes_done = meta->inline_data.len;
    transfer->transfers->counts->bytes_in += meta->inline_data.len;
    transfer->pull.peer->bytes_in += meta->inline_data.len;
    transfer_deliver_received(transfer);
    transfer_end(transfer);
}

static void on_room(struct transfer *transfer, const struct rdt_error *err)
{
    if (err)
        transfer_in_fail_here(transfer, err);
    else
        reserve_next(transfer);
}

/* RESERVE: chooses the path, then reserves memory. `meta` is the answer that has just come; NULL: it came earlier. */
static void find_path(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct rdt_error err = {0};
    enum rdt_status status;

    if (transfer->sm.state != TRANSFER_RESERVE)
        transfer_set_state(transfer, TRANSFER_RESERVE);
    if (subpulls_needed(transfer)) {
        subpulls_begin(transfer);
        return;
    }
    status = transfer_in_choose(transfer, meta && meta->has_inline, &err);
    if (status == RDT_NO_PATH && transfer_in_path_is_coming(transfer)) {
        transfer_in_wait(transfer);
        return;
    }
    if (status != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer_in_take_path(transfer);
    if (transfer->is_inline)
        take_inline(transfer, meta);
    else if (!reservation_wait(transfer, on_room))
        reserve_next(transfer);
}

void transfer_in_connected(struct transfer *transfer, const struct peer_transport *pt)
{
    if (transfer->sm.state != TRANSFER_CONNECT || (transfer->pull.connection && transfer->pull.connection != pt))
        return;
    transfer_set_state(transfer, TRANSFER_RESERVE);
    deadline_unset(transfer->transfers->deadlines, &transfer->pull.stall);
    if (transfer->pull.connection) {
        transfer_in_free_chunks(transfer); /* The new connection may take other lists of pieces. */
        reserve_next(transfer);
    } else {
        find_path(transfer, NULL);
    }
}

/* The owner did not start the early receives, because it prefers another transport or its connection was not
 * ready. If the path stays the same, the posted receives are used; otherwise they must end first. */
static void choose_again(struct transfer *transfer)
{
    const struct path_candidate *chosen = NULL;

    if (!subpulls_needed(transfer) && transfer_in_choose(transfer, false, NULL) == RDT_OK)
        chosen = record_chosen(&transfer->record);
    if (transfer->pull.failed == RDT_OK && chosen && !chosen->one_sided &&
        strcmp(chosen->name, transfer->pull.connection->transport->name) == 0) {
        transfer_set_state(transfer, TRANSFER_MOVE);
        transfer_in_watch(transfer);
        transfer_in_ask_start(transfer);
        return;
    }
    transfer_in_rewind(transfer);
}

static void take_answer(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct peer_session *session;
    struct rdt_error err = {0};
    enum rdt_status status;

    if (meta->status != RDT_OK) {
        (void)wire_error(meta->status, meta->sys_errno, meta->message, &err);
        transfer->pull.answer.arrived = true;
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer->record.began_ns = uv_hrtime();
    status = read_meta(transfer, meta, &err);
    if (status == RDT_OK && meta->redirect_node.len > 0) {
        session = transfer_replica_redirected(transfer, meta);
        if (session)
            transfer_in_pull_from(transfer, session);
        return;
    }
    if (status == RDT_OK && transfer->wish.meta_only) {
        (void)snprintf(transfer->record.path, sizeof transfer->record.path, "metadata");
        transfer_deliver_meta(transfer);
        transfer_end(transfer);
        return;
    }
    if (status == RDT_OK && transfer->sm.state == TRANSFER_EARLY) {
        if (meta->started)
            transfer_in_started(transfer);
        else
            choose_again(transfer);
        return;
    }
    if (status == RDT_OK && transfer->kind->answered && transfer->kind->answered(transfer, meta))
        return;
    if (status == RDT_OK)
        find_path(transfer, meta);
    else
        transfer_fail_err(transfer, &err);
}

/* QUEUED: the transfer before it was answered, or will not be. */
static void resume(struct transfer *transfer)
{
    if (transfer->sm.state != TRANSFER_QUEUED || (transfer->pull.coalesced && transfer->pull.coalesced->asked))
        return;
    if (transfer_replica_serves(transfer))
        return;
    transfer_in_pull_from(transfer, transfer->pull.origin);
}

static void on_resume(struct deadline *deadline)
{
    resume(container_of(deadline, struct transfer, pull.resume));
}

/* The transfer that waited for this answer goes on in the next loop iteration, because the caller may be in
 * the middle of another transfer's end. */
static void leave_coalesced(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    uint64_t id = coalescer_close(transfer);
    struct transfer *next = id ? map_get_u64(&transfers->by_id, id) : NULL;

    if (!next || next->sm.state != TRANSFER_QUEUED)
        return;
    next->pull.resume.on_passed = on_resume;
    if (!deadline_set(transfers->deadlines, &next->pull.resume, 0))
        resume(next);
}

void transfer_in_on_meta(struct peer_session *session, const Rdt__Pb__PullMeta *meta)
{
    struct transfer *transfer = find(session, meta->transfer), *next;
    uint64_t id;

    if (!transfer || (transfer->sm.state != TRANSFER_ASKED && transfer->sm.state != TRANSFER_EARLY)) {
        if (meta->replica_noted && meta->ref &&
            !replica_find(&session->transfers->replicas, session->peer->uuid, meta->ref->generation))
            replica_decline(session, meta->ref->generation);
        return; /* The reader has ended. */
    }
    id = coalescer_close(transfer);
    take_answer(transfer, meta);
    next = id ? map_get_u64(&session->transfers->by_id, id) : NULL;
    if (next)
        resume(next);
}

/* The source cannot see what this node receives from others. */
static void tell_received(const struct transfer *transfer, uint64_t over_ns)
{
    Rdt__Pb__PullCredit answer = RDT__PB__PULL_CREDIT__INIT;

    answer.transfer = transfer->id;
    answer.over_ns = over_ns;
    answer.received = fanout_received_in(&transfer->transfers->intake, uv_hrtime(), &answer.over_ns);
    (void)peer_session_send(transfer->pull.peer, RDT_PEER_PULL_CREDIT, &answer.base, NULL);
}

void transfer_in_on_parked(struct peer_session *session, const Rdt__Pb__PullParked *parked)
{
    struct transfer *transfer = find(session, parked->transfer);

    if (transfer && parked->over_ns > 0)
        tell_received(transfer, parked->over_ns);
    if (transfer && transfer->pull.peer != transfer->pull.origin)
        transfer_in_heard(transfer);
    if (!transfer || transfer->pull.answer.arrived || transfer->pull.peer != transfer->pull.origin)
        return;
    transfer->pull.awaits_put = true;
    reservation_leave(transfer);                                    /* The other items need not wait for a put. */
    if (transfer->pull.coalesced && transfer->pull.coalesced->open) /* It waits for the answer to this one. */
        reservation_leave(transfer->pull.coalesced->open);
}

static enum rdt_status take_keys(struct transfer *transfer, const Rdt__Pb__PullKeys *keys, struct rdt_error *err)
{
    enum rdt_status status = layout_from_wire(keys->tensors, &transfer->pull.remote, err);

    if (status == RDT_OK)
        status = layout_same_shape(transfer->source, transfer->pull.remote, err);
    if (status == RDT_OK && keys->n_keys > MAX_KEYS)
        status = rdt_error_set(err, RDT_PROTOCOL, "the owner sent %zu keys: at most %u are allowed", keys->n_keys, MAX_KEYS);
    if (status != RDT_OK)
        return status;
    transfer->pull.keys = calloc(keys->n_keys + 1, sizeof *transfer->pull.keys);
    transfer->pull.key_bytes = calloc(keys->n_keys + 1, sizeof *transfer->pull.key_bytes);
    if (!transfer->pull.keys || !transfer->pull.key_bytes)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the keys");
    for (size_t i = 0; i < keys->n_keys; i++) {
        if (keys->keys[i].len > RDT_KEY_MAX_BYTES)
            return rdt_error_set(err, RDT_PROTOCOL, "a key has %zu bytes: at most %u are allowed", keys->keys[i].len,
                                 RDT_KEY_MAX_BYTES);
        if (keys->keys[i].len > 0) /* An empty key: nothing is read from that region. */
            memcpy(transfer->pull.keys[i], keys->keys[i].data, keys->keys[i].len);
        transfer->pull.key_bytes[i] = keys->keys[i].len;
    }
    transfer->pull.n_keys = keys->n_keys;
    for (uint32_t i = 0; i < transfer->pull.remote->count; i++)
        if (layout_bytes(transfer->pull.remote, i) > 0 &&
            (transfer->pull.remote->region[i] >= keys->n_keys || !layout_is_contiguous(transfer->pull.remote, i)))
            return rdt_error_set(err, RDT_PROTOCOL, "tensor %u has no key, or is not contiguous", i);
    return RDT_OK;
}

void transfer_in_on_keys(struct peer_session *session, const Rdt__Pb__PullKeys *keys)
{
    struct transfer *transfer = find(session, keys->transfer);
    struct rdt_error err = {0};

    if (!transfer || transfer->sm.state != TRANSFER_MOVE || !transfer->pull.one_sided || transfer->pull.keys)
        return;
    if (take_keys(transfer, keys, &err) != RDT_OK) {
        rdt_error_prefix(&err, "keys from node %s", transfer->record.peer);
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer_in_read_more(transfer);
}

/* ---- memory ---- */

static void on_ready(void *arg, struct region *region, const struct rdt_error *err)
{
    struct transfer *transfer = arg;

    if (!transfer->target && !transfer->received)
        transfer->received = region;
    if (transfer_op_ended(transfer))
        return;
    if (err)
        transfer_in_fail_here(transfer, err);
    else
        reserve_next(transfer);
}

/* Takes one step of reserving at a time, until all memory is there. Then the bytes may move. */
static void reserve_next(struct transfer *transfer)
{
    struct target *target = transfer->target;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;
    void *handle;

    if (!target && !transfer->received)
        status = transfer_reserve(transfer, transfer->pull.replica, on_ready, &err);
    if (status == RDT_OK && transfer->pull.replica && !transfer->pull.replica->placed)
        status = replica_place(transfer->pull.replica, transfer, &err);
    if (status == RDT_OK && target)
        status = region_fill(target->uses, target->n, target->layout, &transfer->filled_to, on_ready, transfer, &err);
    for (uint32_t i = 0; status == RDT_OK && i < (target ? target->n : 1); i++) {
        struct region *region = target ? target->uses[i].region : transfer->received;
        if (region && !region_addr(region, &err))
            status = err.status;
        else if (region && !transfer->pull.staged_here)
            status = region_register(region, transfer->pull.connection->transport, &handle, on_ready, transfer, &err);
    }
    if (status == RDT_OK)
        status = transfer_plan(transfer, &err);
    if (status == RDT_OK)
        status = transfer_reserve_staging(transfer, on_ready, &err);
    if (status == RDT_OK)
        status = transfer_reserve_stage(transfer, on_ready, &err);
    if (status == RDT_AGAIN)
        transfer->n_ops++; /* The pool works for the transfer. */
    else if (status != RDT_OK)
        transfer_in_fail_here(transfer, &err);
    else
        transfer_in_move(transfer);
}

/* ---- the end ---- */

void transfer_in_abort(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    leave_coalesced(transfer);
    replica_end_filling(transfer);
    deadline_unset(transfers->deadlines, &transfer->pull.resume);
    deadline_unset(transfers->deadlines, &transfer->pull.patience);
    transfer_set_state(transfer, TRANSFER_ABORT);
    if (!transfer->pull.one_sided) /* Otherwise the owner must keep the memory until the last read has ended. */
        transfer_in_send_abort(transfer);
    if (transfer->pull.subpulls)
        subpulls_abort(transfer);
    transfer_in_stop_ops(transfer);
    transfer_settle(transfer);
}

void transfer_in_settled(struct transfer *transfer)
{
    transfer_in_reads_ended(transfer);
    if (transfer->sm.state == TRANSFER_ABORT) {
        if (transfer->pull.one_sided)
            transfer_in_send_abort(transfer);
        transfer_end(transfer);
        return;
    }
    transfer_in_reset(transfer);
    if (transfer->pull.peer)
        find_path(transfer, NULL);
    else
        transfer_in_ask_owner(transfer);
}

void transfer_in_on_end(struct peer_session *session, const Rdt__Pb__PullEnd *end)
{
    struct transfer *transfer = find(session, end->transfer);
    struct rdt_error err;

    if (!transfer || transfer->sm.state == TRANSFER_ABORT)
        return;
    (void)wire_error(end->status, 0, end->message, &err);
    transfer_fail_err(transfer, &err);
}

static void start(struct transfer *transfer)
{
    struct rdt_error err = {0};

    if (transfer_replica_serves(transfer))
        return;
    transfer->record.direction = "in";
    if (transfer_in_start(transfer, &err) != RDT_OK)
        transfer_fail_err(transfer, &err);
}

void transfer_pull_release(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    assert(!transfer->pull.member);
    deadline_unset(transfers->deadlines, &transfer->pull.stall);
    deadline_unset(transfers->deadlines, &transfer->pull.resume);
    deadline_unset(transfers->deadlines, &transfer->pull.patience);
    deadline_unset(transfers->deadlines, &transfer->pull.unwanted);
    leave_coalesced(transfer);
    list_remove(&transfer->pull.by_connection);
    transfer_in_leave_peer(transfer);
    order_leave(&transfer->record);
    replica_end_filling(transfer);
    transfer_free_staging(transfer);
    transfer_in_free_chunks(transfer);
    subpulls_free(transfer);
    transfer_in_forget_answer(transfer);
    if (transfer->subpull.parent)
        subpull_ended(transfer);
}

bool transfer_pull_wanted(const struct transfer *transfer)
{
    return replica_in_demand(transfer->pull.replica);
}

const struct transfer_kind transfer_pull_kind = {.part = &transfer_subpull_kind,
                                                 .start = start,
                                                 .abort = transfer_in_abort,
                                                 .settled = transfer_in_settled,
                                                 .recover = transfer_replica_comes_back,
                                                 .release = transfer_pull_release,
                                                 .wanted = transfer_pull_wanted,
                                                 .answered = transfer_replica_answered};

static void start_part(struct transfer *transfer)
{
    transfer_in_pull_from(transfer, transfer->subpull.parent->pull.peer);
}

const struct transfer_kind transfer_subpull_kind = {.start = start_part,
                                                    .abort = transfer_in_abort,
                                                    .settled = transfer_in_settled,
                                                    .recover = subpull_failed,
                                                    .release = transfer_pull_release,
                                                    .wanted = transfer_pull_wanted,
                                                    .complete = subpull_complete};
