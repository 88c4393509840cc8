/* SPDX-License-Identifier: Apache-2.0 */
/* How a pull asks, and asks again: which node is asked, what it is told, whether the pull waits for the answer to another one
 * of the same object, and what an attempt that starts again forgets. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/text.h"
#include "daemon/transfers/coalescer.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_order.h"
#include "wire_ref.h"

enum rdt_status transfer_in_start(struct transfer *transfer, struct rdt_error *err)
{
    struct transfers *transfers = transfer->transfers;
    struct peer *peer;
    enum rdt_status status;

    if (!transfers->peers)
        return rdt_error_set(
            err, RDT_UNSUPPORTED,
            "object \"%s\" is on another node, and this daemon has no peer link: set listen, and key_file or peer_cert",
            transfer->ref.id);
    status = peers_find(transfers->peers, transfer->ref.node, transfer->ref.address, transfer->account, &peer, err);
    if (status != RDT_OK)
        return status;
    transfer->pull.origin = peer_session_get(transfers, peer);
    if (!transfer->pull.origin)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for node %s", peer->name);
    text_copy(transfer->record.peer, sizeof transfer->record.peer, peer->name);
    if (peer->state == PEER_BACKOFF)
        return peer_away(peer, transfer->account, err);
    if (!transfer->pull.joinable || coalescer_begin(transfer)) {
        /* Also while the link comes up: all items from that node wait for it. */
        reservation_join(transfer, transfer->pull.origin);
        transfer_in_pull_from(transfer, transfer->pull.origin);
        return RDT_OK;
    }
    /* The other items need not wait for a name's next version, or for a put. */
    if (!transfer->ref.is_name && !transfer->pull.coalesced->asked->pull.awaits_put)
        reservation_join(transfer, transfer->pull.origin);
    transfer->pull.peer = transfer->pull.origin;
    transfer->pull.peer->n_in++;
    list_append(&transfer->pull.peer->pending, &transfer->pull.by_peer);
    transfer_set_state(transfer, TRANSFER_QUEUED);
    return RDT_OK;
}

void transfer_in_leave_peer(struct transfer *transfer)
{
    if (transfer->pull.peer && !list_empty(&transfer->pull.by_peer)) {
        list_remove(&transfer->pull.by_peer);
        transfer->pull.peer->n_in--;
    }
    transfer->pull.peer = NULL;
}

void transfer_in_pull_from(struct transfer *transfer, struct peer_session *session)
{
    transfer_in_leave_peer(transfer);
    transfer->pull.stall.on_passed = transfer_in_on_stall;
    transfer->pull.peer = session;
    session->n_in++;
    if (session->peer->state == PEER_UP) {
        list_append(&session->incoming, &transfer->pull.by_peer);
        transfer_in_ask(transfer);
        return;
    }
    list_append(&session->pending, &transfer->pull.by_peer);
    transfer_set_state(transfer, TRANSFER_LINK);
}

/* The longest time that one of its fetches would still wait. */
static int64_t time_left_ns(const struct transfer *transfer)
{
    /* Without a fetch here, other nodes wait for the replica. */
    int64_t longest = list_empty(&transfer->fetches) ? -1 : 0;

    list_for_each (node, &transfer->fetches) {
        int64_t left = deadline_left_ns(&container_of(node, struct fetch, by_transfer)->deadline);
        if (left < 0)
            return left;
        longest = left > longest ? left : longest;
    }
    return longest;
}

void transfer_in_ask(struct transfer *transfer)
{
    Rdt__Pb__Pull pull = RDT__PB__PULL__INIT;
    Rdt__Pb__PullStart start = RDT__PB__PULL_START__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    Rdt__Pb__TensorList expect;
    struct layout_rows rows;
    Rdt__Pb__Ref ref;
    struct rdt_error err = {0};

    transfer->pull.awaits_put = false;
    transfer_set_state(transfer, TRANSFER_ASKED);
    coalescer_asked(transfer);
    if (!transfer->wish.meta_only && !transfer->subpull.parent && !subpulls_wanted_here(transfer) && transfer->target) {
        struct transfers *transfers = transfer->transfers;
        uint64_t id = transfer->id;
        if (transfer_in_early(transfer))
            transfer_in_move(transfer);
        if (map_get_u64(&transfers->by_id, id) != transfer || transfer->sm.state == TRANSFER_ABORT)
            return; /* A receive could not be posted, and the transfer has failed. */
    }
    /* If a receive failed, the owner must not start. */
    if (transfer->sm.state == TRANSFER_EARLY && transfer->pull.failed == RDT_OK) {
        start.transport = (char *)transfer->pull.connection->transport->name;
        start.chunk_bytes = transfer->transfers->options->chunk_bytes;
        start.epoch = transfer->pull.connection->epoch;
        pull.start = &start;
        layout_to_wire(transfer->packed, false, transfer->pull.peer->peer->tensor_runs ? &rows : NULL, &expect);
        pull.expect = &expect;
    }
    wire_ref_from(&transfer->ref, &ref);
    requester.tenant = transfer->account->owner.tenant;
    requester.uid = transfer->account->owner.uid;
    pull.transfer = transfer->id;
    pull.ref = &ref;
    pull.requester = &requester;
    pull.slice = transfer->wish.slice;
    pull.timeout_ns = time_left_ns(transfer);
    pull.meta_only = transfer->wish.meta_only;
    pull.tell_parked = true;
    pull.keep_replica = transfer->pull.keeps && transfer->pull.peer == transfer->pull.origin;
    pull.no_redirect = transfer->pull.no_redirect;
    pull.from_replica = transfer->pull.peer != transfer->pull.origin;
    if (transfer->pull.came_back && !pull.from_replica)
        pull.left_node = (ProtobufCBinaryData){sizeof transfer->pull.left, transfer->pull.left};
    /* With another wish the bytes must not come in the answer. */
    if (transfer->wish.transport[0] == '\0' || strcasecmp(transfer->wish.transport, "inline") == 0)
        pull.inline_max_bytes = transfer_inline_max(transfer);
    pull.parts = true;
    if (transfer->subpull.parent || subpulls_wanted_here(transfer))
        pull.inline_max_bytes = 0;
    if (transfer->subpull.parent) {
        pull.part_of = transfer->subpull.parent->id;
        pull.tensors = transfer->subpull.select;
        pull.n_tensors = transfer->subpull.n_select;
    }
    if (peer_session_send(transfer->pull.peer, RDT_PEER_PULL, &pull.base, &err) != RDT_OK)
        transfer_fail_err(transfer, &err);
}

static void send_abort(struct peer_session *session, uint64_t id)
{
    Rdt__Pb__PullAbort abort_message = RDT__PB__PULL_ABORT__INIT;

    abort_message.transfer = id;
    (void)peer_session_send(session, RDT_PEER_PULL_ABORT, &abort_message.base, NULL); /* Link down: that node knows. */
}

void transfer_in_send_abort(struct transfer *transfer)
{
    if (transfer->pull.peer) /* Otherwise it is on its way back to the owner's node, and the other one is told elsewhere. */
        send_abort(transfer->pull.peer, transfer->id);
}

void transfer_in_reads_ended(struct transfer *transfer)
{
    if (transfer->pull.read_from)
        send_abort(transfer->pull.read_from, transfer->pull.read_id);
    transfer->pull.read_from = NULL;
}

/* ---- starting again ---- */

static void free_metadata(struct transfer *transfer)
{
    if (transfer->pull.own_metadata)
        account_give(transfer->account, USAGE_HEAP, transfer->metadata_bytes);
    free(transfer->pull.own_metadata);
    transfer->pull.own_metadata = NULL;
    transfer->metadata = NULL;
    transfer->metadata_bytes = 0;
    transfer->box_bytes = 0;
}

void transfer_in_forget_answer(struct transfer *transfer)
{
    transfer_free_layouts(transfer);
    free_metadata(transfer);
    transfer->stream_bytes = 0;
    transfer->pull.answer.arrived = false;
}

void transfer_in_free_chunks(struct transfer *transfer)
{
    struct pull *pull = &transfer->pull;

    free(pull->plan);
    free(pull->chunk_ops);
    free(pull->unneeded);
    free(pull->remote);
    free(pull->keys);
    free(pull->key_bytes);
    pull->plan = NULL;
    pull->chunk_ops = NULL;
    pull->unneeded = NULL;
    pull->remote = NULL;
    pull->keys = NULL;
    pull->key_bytes = NULL;
}

void transfer_in_reset(struct transfer *transfer)
{
    transfer->pull.failed = RDT_OK;
    deadline_unset(transfer->transfers->deadlines, &transfer->pull.stall);
    order_leave(&transfer->record);
    list_remove(&transfer->pull.by_connection);
    transfer->pull.connection = NULL;
    if (transfer->pull.replica)
        replica_unplan(transfer->pull.replica);
    transfer->pull.ping = 0;
    transfer_in_free_chunks(transfer);
    transfer->pull.staging.used = 0;
    /* The size of the chunks stays: some of them may be in the replica. */
    transfer->pull.broadcast.collective = false;
    /* Chunks that came without PULL_START do not count. */
    transfer->pull.next_chunk = transfer->pull.chunks_done = 0;
    transfer->record.bytes_done = 0;
}

void transfer_in_ask_owner(struct transfer *transfer)
{
    struct rdt_error err = {0};
    struct peer *peer = transfer->pull.origin->peer;

    transfer_in_forget_answer(transfer);
    if (peer->state == PEER_IDLE)
        (void)peers_find(transfer->transfers->peers, transfer->ref.node, transfer->ref.address, transfer->account, &peer, &err);
    else if (peer->state == PEER_BACKOFF)
        (void)peer_away(peer, transfer->account, &err);
    if (err.status == RDT_OK)
        transfer_in_pull_from(transfer, transfer->pull.origin);
    else
        transfer_fail_err(transfer, &err);
}

bool transfer_in_ask_anew(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    uint64_t id = transfers->next_id++;

    if (!map_put_u64(&transfers->by_id, id, transfer))
        return false;
    if (transfer->pull.one_sided && transfer->n_ops > 0) {
        transfer->pull.read_from = transfer->pull.peer;
        transfer->pull.read_id = transfer->id;
    } else {
        transfer_in_send_abort(transfer);
    }
    deadline_unset(transfers->deadlines, &transfer->pull.patience);
    map_remove_u64(&transfers->by_id, transfer->id);
    transfer->record.state = "asked again";
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "ended", &transfer->record);
    text_copy(transfer->record.peer, sizeof transfer->record.peer, transfer->pull.origin->peer->name);
    transfer->id = transfer->record.id = id;
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "began", &transfer->record);
    transfer_in_leave_peer(transfer);
    transfer_in_rewind(transfer);
    return true;
}
