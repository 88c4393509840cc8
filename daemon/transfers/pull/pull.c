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
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"
#include "daemon/transfers/transfer_ticket.h"
#include "wire_ref.h"

#define MAX_KEYS 4096u /* regions of one object */

static void reserve_next(struct transfer *transfer);
static void find_path(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

static struct transfer *find(struct remote *remote, uint64_t id)
{
    struct transfer *transfer = transfers_find(remote->transfers, id);

    return transfer && transfer->kind->pulls && transfer->pull.peer == remote ? transfer : NULL;
}

/* ---- the answer ---- */

/* Copies the metadata of the answer. It stays until the fetch is answered, which may have to wait for many
 * others; so it is charged to the client's share of the heap. */
static enum rdt_status take_metadata(struct transfer *transfer, const ProtobufCBinaryData *from, struct rdt_error *err)
{
    if (from->len == 0 || transfer->pull.subpull.parent) /* The parent has the metadata. */
        return RDT_OK;
    if (account_take(transfer->account, USAGE_HEAP, from->len, err) != RDT_OK) {
        rdt_error_prefix(err, "the metadata of object \"%s\"", transfer->ref.id);
        return RDT_LIMIT;
    }
    transfer->metadata.own = malloc(from->len);
    if (!transfer->metadata.own) {
        account_give(transfer->account, USAGE_HEAP, from->len);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the metadata");
    }
    memcpy(transfer->metadata.own, from->data, from->len);
    transfer->metadata.bytes = transfer->metadata.own;
    transfer->metadata.n_bytes = from->len;
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
        status = layout_from_wire(meta->tensors, &transfer->move.source, err);
    if (status == RDT_OK && transfer->move.target)
        status = layout_same_shape(transfer->move.source, transfer->move.target->layout, err);
    if (status == RDT_MISMATCH)
        return status;
    if (status == RDT_OK)
        status = layout_packed(transfer->move.source, &transfer->move.packed, &transfer->move.stream_bytes, err);
    if (status == RDT_OK && transfer->move.stream_bytes != meta->bytes)
        status = rdt_error_set(err, RDT_PROTOCOL, "its tensors have %llu bytes, but the answer says %llu",
                               (unsigned long long)transfer->move.stream_bytes, (unsigned long long)meta->bytes);
    if (status == RDT_OK && meta->has_inline && meta->inline_data.len != meta->bytes)
        status = rdt_error_set(err, RDT_PROTOCOL, "the answer carries %zu bytes of an object of %llu", meta->inline_data.len,
                               (unsigned long long)meta->bytes);
    /* The object is asked for again. */
    if (status == RDT_OK && transfer->move.received && transfer->move.received->bytes != meta->bytes)
        status = rdt_error_set(err, RDT_PROTOCOL, "the object has %llu bytes now, and had %llu when it was first asked for",
                               (unsigned long long)meta->bytes, (unsigned long long)transfer->move.received->bytes);
    if (status == RDT_OK && (meta->metadata.len > RDT_MAX_METADATA_BYTES || meta->box_bytes > meta->metadata.len))
        status = rdt_error_set(err, RDT_PROTOCOL, "its metadata is too large");
    if (status != RDT_OK) {
        rdt_error_prefix(err, "node %s", transfer->record.peer);
        return status;
    }
    if (take_metadata(transfer, &meta->metadata, err) != RDT_OK)
        return err->status;
    if (!transfer->pull.subpull.parent)
        transfer->metadata.box_bytes = meta->box_bytes;
    memcpy(ref.node, transfer->pull.origin->peer->uuid, sizeof ref.node);
    transfer->ref = ref;
    if (meta->version != 0) /* Otherwise the transfer asks again by the ref that the name meant. */
        transfer->version = meta->version;
    transfer->record.ref = ref;
    transfer->record.bytes = transfer->move.stream_bytes;
    transfer->pull.answer.contiguous = meta->contiguous;
    transfer->pull.answer.snapshot = meta->snapshot;
    if (!transfer->pull.subpull.parent && subpulls_read_places(transfer, meta, err) != RDT_OK)
        return err->status;
    text_copy(transfer->pull.answer.preferred, sizeof transfer->pull.answer.preferred, meta->transport);
    text_copy(transfer->pull.answer.memory, sizeof transfer->pull.answer.memory, meta->memory);
    text_copy(transfer->pull.answer.producer, sizeof transfer->pull.answer.producer, meta->producer);
    pull_move_answer(transfer, ANSWER_ARRIVED);
    return RDT_OK;
}

/* Writes the bytes of the answer into the targets. */
struct inline_scatter {
    struct work work; /* first */
    struct transfer *transfer;
    int failed; /* an errno; 0: none */
};

static void run_scatter(struct work *work)
{
    struct inline_scatter *scatter = (struct inline_scatter *)work;
    struct transfer *transfer = scatter->transfer;
    const struct layout *layout = transfer->move.target->layout;

    for (uint32_t i = 0; i < layout->count && !scatter->failed; i++)
        if (layout_bytes(layout, i) > 0)
            scatter->failed =
                memory_place_write(&transfer->pull.chunks.memory[layout->region[i]], layout->offset[i], layout_bytes(layout, i),
                                   transfer->move.inline_data + transfer->move.packed->offset[i]);
}

static void end_inline(struct transfer *transfer, int failed)
{
    struct rdt_error err = {0};

    if (failed)
        (void)rdt_error_sys(&err, failed, "writing imported memory");
    else if (target_check(transfer->move.target, &err) == RDT_OK)
        (void)pull_charge_targets(transfer, &err);
    if (err.status != RDT_OK) {
        pull_fail_here(transfer, &err);
        return;
    }
    transfer_deliver_received(transfer);
    transfer_end(transfer);
}

static void done_scatter(struct work *work)
{
    struct inline_scatter scatter = *(struct inline_scatter *)work;

    free(work);
    if (!transfer_op_ended(scatter.transfer))
        end_inline(scatter.transfer, scatter.failed);
}

static void scatter_inline(struct transfer *transfer)
{
    struct account *slow_owner = target_slow_owner(transfer->move.target);
    struct inline_scatter here = {.transfer = transfer}, *scatter = slow_owner ? malloc(sizeof *scatter) : &here;
    struct rdt_error err = {0};

    if (!scatter)
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to receive the bytes");
    else
        (void)pull_map_targets(transfer, &err);
    if (err.status != RDT_OK) {
        if (slow_owner)
            free(scatter);
        pull_fail_here(transfer, &err);
        return;
    }
    if (slow_owner) {
        *scatter = here;
        scatter->work = (struct work){.run = run_scatter, .done = done_scatter};
        transfer->move.n_ops++;
        owner_work_submit(transfer->transfers->regions->owner_work, &scatter->work, slow_owner, true);
        return;
    }
    if (transfer->move.target)
        run_scatter(&here.work);
    end_inline(transfer, here.failed);
}

static void fill_inline(struct transfer *transfer);

static void on_inline_filled(void *arg, struct region *region, const struct rdt_error *err)
{
    struct transfer *transfer = arg;

    if (transfer_op_ended(transfer))
        return;
    if (err)
        pull_fail_here(transfer, err);
    else
        fill_inline(transfer);
}

/* The bytes have come: makes the target ready for them. */
static void fill_inline(struct transfer *transfer)
{
    struct target *target = transfer->move.target;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;

    if (target)
        status =
            region_fill(target->uses, target->n, target->layout, &transfer->move.filled_to, on_inline_filled, transfer, &err);
    if (status == RDT_AGAIN)
        transfer->move.n_ops++;
    else if (status != RDT_OK)
        transfer_fail_err(transfer, &err);
    else
        scatter_inline(transfer);
}

/* Whether the reader's process writes the bytes of the answer into its targets, which saves a thread of the owner of that
 * memory. Into imported memory the daemon writes itself, because it charges the client for the pages that it creates. */
static bool reader_writes(const struct transfer *transfer)
{
    const struct target *target = transfer->move.target;

    if (transfer->pull.subpull.parent || !target_slow_owner(target) || target_is_imported(target) ||
        transfer->move.stream_bytes > transfer->wish.self_copy_bytes)
        return false;
    for (uint32_t i = 0; i < target->n; i++)
        if (target->uses[i].region && !region_is_host(target->uses[i].region))
            return false;
    return transfer->move.packed->count <= MAX_READER_TENSORS;
}

static void take_inline(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    free(transfer->move.own_inline); /* of an earlier attempt */
    transfer->move.inline_data = transfer->move.own_inline = malloc(meta->inline_data.len ? meta->inline_data.len : 1);
    if (!transfer->move.own_inline) {
        transfer_fail(transfer, RDT_NO_MEMORY, "no memory for the bytes");
        return;
    }
    if (meta->inline_data.len)
        memcpy(transfer->move.own_inline, meta->inline_data.data, meta->inline_data.len);
    transfer->record.bytes_done = meta->inline_data.len;
    transfer->transfers->counts->bytes_in += meta->inline_data.len;
    transfer->pull.peer->counts.bytes_pulled += meta->inline_data.len;
    transfer->move.reader_writes = reader_writes(transfer);
    if (transfer->move.reader_writes)
        end_inline(transfer, 0);
    else
        fill_inline(transfer);
}

static void on_room(struct transfer *transfer, const struct rdt_error *err)
{
    if (err)
        pull_fail_here(transfer, err);
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
    status = pull_choose_path(transfer, meta && meta->has_inline, &err);
    if (status == RDT_NO_PATH && pull_path_is_coming(transfer)) {
        pull_wait(transfer);
        return;
    }
    if (status != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    pull_take_path(transfer);
    if (transfer->move.is_inline)
        take_inline(transfer, meta);
    else if (!reservation_wait(transfer, on_room))
        reserve_next(transfer);
}

void pull_connected(struct transfer *transfer, const struct peer_transport *pt)
{
    if (transfer->sm.state != TRANSFER_CONNECT || (transfer->pull.path.connection && transfer->pull.path.connection != pt))
        return;
    transfer_set_state(transfer, TRANSFER_RESERVE);
    deadline_unset(transfer->transfers->deadlines, &transfer->pull.stall);
    if (transfer->pull.path.connection) {
        pull_free_chunks(transfer); /* The new connection may take other lists of pieces. */
        reserve_next(transfer);
    } else {
        find_path(transfer, NULL);
    }
}

/* The owner has noted that this node will keep a replica. It does not, if it has none yet. */
static void decline_noted(struct remote *remote, const Rdt__Pb__PullMeta *meta)
{
    if (meta->replica_noted && meta->ref &&
        !replica_find(&remote->transfers->replicas, remote->peer->uuid, meta->ref->generation))
        replica_decline(remote, meta->ref->generation);
}

static void take_answer(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct remote *remote;
    struct rdt_error err = {0};
    enum rdt_status status;

    if (meta->status != RDT_OK) {
        (void)wire_error(meta->status, meta->sys_errno, meta->message, &err);
        pull_move_answer(transfer, ANSWER_ARRIVED);
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer->record.began_ns = uv_hrtime();
    status = read_meta(transfer, meta, &err);
    if (status == RDT_OK && meta->redirect_node.len > 0) {
        remote = pull_replica_redirected(transfer, meta);
        if (remote)
            pull_pull_from(transfer, remote);
        return;
    }
    if (status == RDT_OK && transfer->wish.meta_only) {
        (void)snprintf(transfer->record.path, sizeof transfer->record.path, "metadata");
        transfer_deliver_meta(transfer);
        transfer_end(transfer);
        return;
    }
    if (status == RDT_OK && transfer->kind->answered && transfer->kind->answered(transfer, meta))
        return;
    if (status == RDT_OK) {
        find_path(transfer, meta);
        return;
    }
    decline_noted(transfer->pull.peer, meta);
    transfer_fail_err(transfer, &err);
}

/* QUEUED: the transfer before it was answered, or will not be. */
static void resume(struct transfer *transfer)
{
    if (transfer->sm.state != TRANSFER_QUEUED || (transfer->pull.coalesced && transfer->pull.coalesced->asked))
        return;
    if (pull_replica_serves(transfer))
        return;
    pull_pull_from(transfer, transfer->pull.origin);
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
    struct transfer *next = id ? transfers_find(transfers, id) : NULL;

    if (!next || next->sm.state != TRANSFER_QUEUED)
        return;
    next->pull.resume.on_passed = on_resume;
    if (!deadline_set(transfers->deadlines, &next->pull.resume, 0))
        resume(next);
}

void pull_on_meta(struct remote *remote, const Rdt__Pb__PullMeta *meta)
{
    struct transfer *transfer = find(remote, meta->transfer), *next;
    uint64_t id;

    if (meta->replica_noted)
        remote->replicas.noted = meta->replica_note;
    if (!transfer || transfer->sm.state != TRANSFER_ASKED) {
        decline_noted(remote, meta); /* The reader has ended. */
        return;
    }
    id = coalescer_close(transfer);
    take_answer(transfer, meta);
    next = id ? transfers_find(remote->transfers, id) : NULL;
    if (next)
        resume(next);
}

/* The source cannot see what this node receives from others. */
static void tell_received(const struct transfer *transfer, uint64_t over_ns)
{
    Rdt__Pb__PullCredit answer = RDT__PB__PULL_CREDIT__INIT;

    answer.transfer = transfer->id;
    answer.over_ns = over_ns;
    answer.received = fanout_received_in(&transfer->transfers->load.intake, uv_hrtime(), &answer.over_ns);
    (void)remote_send(transfer->pull.peer, RDT_PEER_PULL_CREDIT, &answer.base, NULL);
}

void pull_on_alive(struct remote *remote, const Rdt__Pb__PullAlive *alive)
{
    struct transfer *transfer = find(remote, alive->transfer);

    if (transfer && alive->over_ns > 0)
        tell_received(transfer, alive->over_ns);
    if (transfer && transfer->pull.peer != transfer->pull.origin)
        pull_heard(transfer);
    if (!transfer || transfer->pull.answer.state == ANSWER_ARRIVED || transfer->pull.peer != transfer->pull.origin)
        return;
    pull_move_answer(transfer, ANSWER_PARKED);
    reservation_leave(transfer);                                    /* The other items need not wait for a put. */
    if (transfer->pull.coalesced && transfer->pull.coalesced->open) /* It waits for the answer to this one. */
        reservation_leave(transfer->pull.coalesced->open);
}

static enum rdt_status take_keys(struct transfer *transfer, const Rdt__Pb__PullKeys *keys, struct rdt_error *err)
{
    enum rdt_status status = layout_from_wire(keys->tensors, &transfer->pull.keys.layout, err);

    if (status == RDT_OK)
        status = layout_same_shape(transfer->move.source, transfer->pull.keys.layout, err);
    if (status == RDT_OK && keys->n_keys > MAX_KEYS)
        status = rdt_error_set(err, RDT_PROTOCOL, "the owner sent %zu keys: at most %u are allowed", keys->n_keys, MAX_KEYS);
    if (status != RDT_OK)
        return status;
    transfer->pull.keys.keys = calloc(keys->n_keys + 1, sizeof *transfer->pull.keys.keys);
    transfer->pull.keys.bytes = calloc(keys->n_keys + 1, sizeof *transfer->pull.keys.bytes);
    if (!transfer->pull.keys.keys || !transfer->pull.keys.bytes)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the keys");
    for (size_t i = 0; i < keys->n_keys; i++) {
        if (keys->keys[i].len > RDT_KEY_MAX_BYTES)
            return rdt_error_set(err, RDT_PROTOCOL, "a key has %zu bytes: at most %u are allowed", keys->keys[i].len,
                                 RDT_KEY_MAX_BYTES);
        if (keys->keys[i].len > 0) /* An empty key: nothing is read from that region. */
            memcpy(transfer->pull.keys.keys[i], keys->keys[i].data, keys->keys[i].len);
        transfer->pull.keys.bytes[i] = keys->keys[i].len;
    }
    transfer->pull.keys.n = keys->n_keys;
    for (uint32_t i = 0; i < transfer->pull.keys.layout->count; i++)
        if (layout_bytes(transfer->pull.keys.layout, i) > 0 &&
            (transfer->pull.keys.layout->region[i] >= keys->n_keys || !layout_is_contiguous(transfer->pull.keys.layout, i)))
            return rdt_error_set(err, RDT_PROTOCOL, "tensor %u has no key, or is not contiguous", i);
    return RDT_OK;
}

void pull_on_keys(struct remote *remote, const Rdt__Pb__PullKeys *keys)
{
    struct transfer *transfer = find(remote, keys->transfer);
    struct rdt_error err = {0};

    if (!transfer || transfer->sm.state != TRANSFER_MOVE || !transfer->pull.path.one_sided || transfer->pull.keys.keys)
        return;
    if (take_keys(transfer, keys, &err) != RDT_OK) {
        rdt_error_prefix(&err, "keys from node %s", transfer->record.peer);
        transfer_fail_err(transfer, &err);
        return;
    }
    pull_read_more(transfer);
}

/* ---- memory ---- */

/* Registering the targets has failed: chooses another path, and says why. Returns false if there must be none. */
static bool go_unregistered(struct transfer *transfer, const struct rdt_error *err)
{
    if (!transfer->pull.path.registering.under_way || !pull_note_unregistered(transfer, false, err->msg))
        return false;
    transfer->pull.path.registering.under_way = false;
    pull_reset(transfer);
    find_path(transfer, NULL);
    return true;
}

static void on_ready(void *arg, struct region *region, const struct rdt_error *err)
{
    struct transfer *transfer = arg;

    if (!transfer->move.target && !transfer->move.received)
        transfer->move.received = region;
    if (transfer_op_ended(transfer))
        return;
    if (!err)
        reserve_next(transfer);
    else if (!go_unregistered(transfer, err))
        pull_fail_here(transfer, err);
}

/* Takes one step of reserving at a time, until all memory is there. Then the bytes may move. */
static void reserve_next(struct transfer *transfer)
{
    struct target *target = transfer->move.target;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;
    void *handle;

    transfer->pull.path.registering.under_way = false;
    if (!target && !transfer->move.received)
        status = transfer_reserve(transfer, transfer->pull.replica, on_ready, &err);
    if (status == RDT_OK && transfer->pull.replica && !transfer->pull.replica->placed)
        status = replica_place(transfer->pull.replica, transfer, &err);
    if (status == RDT_OK && target)
        status = region_fill(target->uses, target->n, target->layout, &transfer->move.filled_to, on_ready, transfer, &err);
    if (status == RDT_OK)
        status = pull_map_targets(transfer, &err);
    for (uint32_t i = 0; status == RDT_OK && i < (target ? target->n : 1); i++) {
        struct region *region = target ? target->uses[i].region : transfer->move.received;
        if (region && !target && !region_addr(region, &err))
            status = err.status;
        if (status != RDT_OK || !region || transfer->pull.path.staged)
            continue;
        status = region_register(region, transfer->pull.path.connection->transport, &handle, on_ready, transfer, &err);
        transfer->pull.path.registering.under_way = status != RDT_OK;
    }
    if (status == RDT_OK)
        status = pull_plan_chunks(transfer, &err);
    if (status == RDT_OK)
        status = pull_reserve_staging(transfer, on_ready, &err);
    if (status == RDT_OK)
        status = pull_reserve_stage(transfer, on_ready, &err);
    if (status == RDT_AGAIN)
        transfer->move.n_ops++; /* The pool works for the transfer. */
    else if (status != RDT_OK && !go_unregistered(transfer, &err))
        pull_fail_here(transfer, &err);
    else if (status == RDT_OK && !pull_delta_begins(transfer))
        pull_move(transfer);
}

/* ---- the end ---- */

void pull_abort(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    leave_coalesced(transfer);
    replica_end_filling(transfer);
    deadline_unset(transfers->deadlines, &transfer->pull.resume);
    deadline_unset(transfers->deadlines, &transfer->pull.redirect.patience);
    transfer_set_state(transfer, TRANSFER_ABORT);
    if (!transfer->pull.path.one_sided) /* Otherwise the owner must keep the memory until the last read has ended. */
        pull_send_abort(transfer);
    if (transfer->pull.subpulls)
        subpulls_abort(transfer);
    pull_delta_stop(transfer);
    pull_stop_ops(transfer);
    transfer_settle(transfer);
}

void pull_settled(struct transfer *transfer)
{
    pull_reads_ended(transfer);
    if (transfer->sm.state == TRANSFER_ABORT) {
        if (transfer->pull.path.one_sided)
            pull_send_abort(transfer);
        transfer_end(transfer);
        return;
    }
    pull_reset(transfer);
    if (transfer->pull.peer)
        find_path(transfer, NULL);
    else
        pull_ask_owner(transfer);
}

/* The owner could not register its memory for reads of this node: asks it again, to send the bytes. */
static bool ask_to_send(struct transfer *transfer, const struct rdt_error *err)
{
    return transfer->sm.state == TRANSFER_MOVE && transfer->pull.path.one_sided && transfer->move.n_ops == 0 &&
           pull_note_unregistered(transfer, true, err->msg) && pull_ask_anew(transfer);
}

/* The owner's connection of the transport is being rebuilt: asks it again, to send the bytes by another one. */
static bool ask_past(struct transfer *transfer)
{
    bool started = transfer->sm.state == TRANSFER_MOVE || transfer->sm.state == TRANSFER_TICKET;

    return started && !transfer->pull.subpulls && pull_note_cut_off(transfer) && pull_ask_anew(transfer);
}

void pull_on_end(struct remote *remote, const Rdt__Pb__PullEnd *end)
{
    struct transfer *transfer = find(remote, end->transfer);
    struct rdt_error err;

    if (!transfer || transfer->sm.state == TRANSFER_ABORT)
        return;
    (void)wire_error(end->status, 0, end->message, &err);
    if ((end->unregistered && ask_to_send(transfer, &err)) || (end->rebuilding && ask_past(transfer)))
        return;
    transfer_fail_err(transfer, &err);
}

static void start(struct transfer *transfer)
{
    struct rdt_error err = {0};

    if (pull_replica_serves(transfer))
        return;
    transfer->record.direction = "in";
    if (pull_start(transfer, &err) != RDT_OK)
        transfer_fail_err(transfer, &err);
}

void pull_release(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    deadline_unset(transfers->deadlines, &transfer->pull.stall);
    deadline_unset(transfers->deadlines, &transfer->pull.resume);
    deadline_unset(transfers->deadlines, &transfer->pull.redirect.patience);
    deadline_unset(transfers->deadlines, &transfer->pull.unwanted);
    leave_coalesced(transfer);
    list_remove(&transfer->pull.path.by_connection);
    pull_leave_peer(transfer);
    transfer_ticket_leave(&transfer->record);
    replica_end_filling(transfer);
    pull_free_staging(transfer);
    pull_free_chunks(transfer);
    pull_forget_unregistered(transfer);
    subpulls_free(transfer);
    peer_transport_use(&transfer->pull.path.connection, NULL);
    remote_use(&transfer->pull.origin, NULL);
    remote_use(&transfer->pull.read_from, NULL);
    if (transfer->pull.subpull.parent)
        subpull_ended(transfer);
}

static void init(struct transfer *transfer)
{
    list_init(&transfer->pull.by_peer);
    list_init(&transfer->pull.path.by_connection);
    list_init(&transfer->pull.path.registering.failed);
}

static bool pickles_trusted(const struct transfer *transfer)
{
    const struct pull *pull = &transfer->pull;

    return pull->origin && !pull->untrusted && pull->peer && remote_pickles_trusted(pull->origin);
}

bool pull_wanted(const struct transfer *transfer)
{
    return replica_in_demand(transfer->pull.replica);
}

const struct transfer_kind transfer_pull_kind = {.pulls = true,
                                                 .subpull = &transfer_subpull_kind,
                                                 .init = init,
                                                 .pickles_trusted = pickles_trusted,
                                                 .start = start,
                                                 .abort = pull_abort,
                                                 .settled = pull_settled,
                                                 .recover = pull_replica_comes_back,
                                                 .release = pull_release,
                                                 .wanted = pull_wanted,
                                                 .answered = pull_replica_answered};

static void start_subpull(struct transfer *transfer)
{
    pull_pull_from(transfer, transfer->pull.subpull.parent->pull.peer);
}

const struct transfer_kind transfer_subpull_kind = {.pulls = true,
                                                    .init = init,
                                                    .pickles_trusted = pickles_trusted,
                                                    .start = start_subpull,
                                                    .abort = pull_abort,
                                                    .settled = pull_settled,
                                                    .recover = subpull_failed,
                                                    .release = pull_release,
                                                    .wanted = pull_wanted,
                                                    .complete = subpull_complete};
