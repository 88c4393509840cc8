/* SPDX-License-Identifier: Apache-2.0 */
/* How a pull asks, and asks again: which node is asked, what it is told, whether the pull waits for the answer to another one
 * of the same object, and what an attempt that starts again forgets. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/text.h"
#include "daemon/transfers/coalescer.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_ticket.h"
#include "wire_ref.h"

/* Every allowed move. pull.h draws them. */
static const struct sm_state answer_states[] = {
    [ANSWER_NONE] = {"none", 1u << ANSWER_NONE | 1u << ANSWER_PARKED | 1u << ANSWER_ARRIVED},
    [ANSWER_PARKED] = {"parked", 1u << ANSWER_NONE | 1u << ANSWER_PARKED | 1u << ANSWER_ARRIVED},
    [ANSWER_ARRIVED] = {"arrived", 1u << ANSWER_NONE},
};

void pull_move_answer(struct transfer *transfer, enum pull_answer_state state)
{
    sm_move_byte(answer_states, sizeof answer_states / sizeof answer_states[0], &transfer->pull.answer.state, state);
    transfer->record.awaits_put = state == ANSWER_PARKED;
}

enum rdt_status pull_start(struct transfer *transfer, struct rdt_error *err)
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
    remote_use(&transfer->pull.origin, remote_get(transfers, peer));
    if (!transfer->pull.origin)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for node %s", peer->name);
    text_copy(transfer->record.peer, sizeof transfer->record.peer, peer->name);
    if (peer->state == PEER_BACKOFF)
        return peer_away(peer, transfer->account, err);
    if (transfer->wish.sharing != SHARES_REQUEST || coalescer_begin(transfer)) {
        /* Also while the link comes up: all items from that node wait for it. */
        reservation_join(transfer, transfer->pull.origin);
        pull_pull_from(transfer, transfer->pull.origin);
        return RDT_OK;
    }
    /* The other items need not wait for a name's next version, or for a put. */
    if (!transfer->ref.is_name && transfer->pull.coalesced->asked->pull.answer.state != ANSWER_PARKED)
        reservation_join(transfer, transfer->pull.origin);
    transfer->pull.peer = transfer->pull.origin;
    transfer->pull.peer->counts.n_pulls++;
    list_append(&transfer->pull.peer->pending, &transfer->pull.by_peer);
    transfer_set_state(transfer, TRANSFER_QUEUED);
    return RDT_OK;
}

void pull_leave_peer(struct transfer *transfer)
{
    if (transfer->pull.peer && !list_empty(&transfer->pull.by_peer)) {
        list_remove(&transfer->pull.by_peer);
        transfer->pull.peer->counts.n_pulls--;
    }
    transfer->pull.peer = NULL;
}

void pull_pull_from(struct transfer *transfer, struct remote *remote)
{
    pull_leave_peer(transfer);
    transfer->pull.stall.on_passed = pull_on_stall;
    transfer->pull.peer = remote;
    remote->counts.n_pulls++;
    if (remote->peer->state == PEER_UP) {
        list_append(&remote->pulls, &transfer->pull.by_peer);
        pull_ask(transfer);
        return;
    }
    list_append(&remote->pending, &transfer->pull.by_peer);
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

void pull_ask(struct transfer *transfer)
{
    Rdt__Pb__Pull pull = RDT__PB__PULL__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    Rdt__Pb__Ref ref;
    struct rdt_error err = {0};

    /* The node's name and certificate are known only when its link is up. */
    transfer->pull.untrusted |= !remote_pickles_trusted(transfer->pull.peer);
    if (transfer->pull.replica && transfer->pull.untrusted)
        transfer->pull.replica->untrusted = true;
    pull_move_answer(transfer, ANSWER_NONE);
    transfer_set_state(transfer, TRANSFER_ASKED);
    coalescer_asked(transfer);
    wire_ref_from(&transfer->ref, &ref);
    requester.tenant = transfer->account->owner.tenant;
    requester.uid = transfer->account->owner.uid;
    pull.transfer = transfer->id;
    pull.ref = &ref;
    pull.requester = &requester;
    pull.slice = transfer->wish.slice;
    pull.timeout_ns = time_left_ns(transfer);
    pull.meta_only = transfer->wish.meta_only;
    pull.tell_alive = true;
    pull.keep_replica = transfer->wish.sharing != SHARES_NOTHING && transfer->pull.peer == transfer->pull.origin;
    pull.no_redirect = transfer->pull.redirect.refused;
    pull.from_replica = transfer->pull.peer != transfer->pull.origin;
    if (transfer->pull.redirect.came_back && !pull.from_replica)
        pull.left_node = (ProtobufCBinaryData){sizeof transfer->pull.redirect.left, transfer->pull.redirect.left};
    /* With another wish, or where a replica is to be kept in any case, the bytes must not come in the answer. */
    if (transfer->pull.broadcast || !transfer->client)
        pull.inline_max_bytes = 0;
    else if (transfer->wish.transport[0] == '\0' || strcasecmp(transfer->wish.transport, "inline") == 0)
        pull.inline_max_bytes = pull_inline_max(transfer);
    pull.subpulls = true;
    if (transfer->pull.subpull.parent || subpulls_wanted_here(transfer))
        pull.inline_max_bytes = 0;
    if (transfer->pull.subpull.parent) {
        pull.parent = transfer->pull.subpull.parent->id;
        pull.tensors = transfer->pull.subpull.select;
        pull.n_tensors = transfer->pull.subpull.n_select;
    }
    if (remote_send(transfer->pull.peer, RDT_PEER_PULL, &pull.base, &err) != RDT_OK)
        transfer_fail_err(transfer, &err);
}

static void send_abort(struct remote *remote, uint64_t id)
{
    Rdt__Pb__PullAbort abort_message = RDT__PB__PULL_ABORT__INIT;

    abort_message.transfer = id;
    (void)remote_send(remote, RDT_PEER_PULL_ABORT, &abort_message.base, NULL); /* Link down: that node knows. */
}

void pull_send_abort(struct transfer *transfer)
{
    if (transfer->pull.peer) /* Otherwise it is on its way back to the owner's node, and the other one is told elsewhere. */
        send_abort(transfer->pull.peer, transfer->id);
}

void pull_reads_ended(struct transfer *transfer)
{
    if (transfer->pull.read_from)
        send_abort(transfer->pull.read_from, transfer->pull.read_id);
    remote_use(&transfer->pull.read_from, NULL);
}

/* ---- starting again ---- */

void pull_forget_answer(struct transfer *transfer)
{
    transfer_free_layouts(transfer);
    transfer_free_metadata(transfer);
    transfer->move.stream_bytes = 0;
    pull_move_answer(transfer, ANSWER_NONE);
}

void pull_free_chunks(struct transfer *transfer)
{
    struct pull *pull = &transfer->pull;

    free(pull->chunks.plan);
    free(pull->chunks.ops);
    free(pull->chunks.unneeded);
    free(pull->keys.layout);
    free(pull->keys.keys);
    free(pull->keys.bytes);
    pull->chunks.plan = NULL;
    pull->chunks.ops = NULL;
    pull->chunks.unneeded = NULL;
    pull->keys.layout = NULL;
    pull->keys.keys = NULL;
    pull->keys.bytes = NULL;
}

void pull_reset(struct transfer *transfer)
{
    transfer->pull.failure.status = RDT_OK;
    deadline_unset(transfer->transfers->deadlines, &transfer->pull.stall);
    transfer_ticket_leave(&transfer->record);
    list_remove(&transfer->pull.path.by_connection);
    peer_transport_use(&transfer->pull.path.connection, NULL);
    if (transfer->pull.replica)
        replica_unplan(transfer->pull.replica);
    transfer->pull.failure.ping = 0;
    pull_free_chunks(transfer);
    transfer->pull.chunks.staging.used = 0;
    /* The size of the chunks stays: some of them may be in the replica. */
    transfer->pull.chunks.next = transfer->pull.chunks.n_done = 0;
    transfer->record.bytes_done = 0;
}

void pull_ask_owner(struct transfer *transfer)
{
    struct rdt_error err = {0};
    struct peer *peer = transfer->pull.origin->peer;

    pull_forget_answer(transfer);
    if (peer->state == PEER_IDLE)
        (void)peers_find(transfer->transfers->peers, transfer->ref.node, transfer->ref.address, transfer->account, &peer, &err);
    else if (peer->state == PEER_BACKOFF)
        (void)peer_away(peer, transfer->account, &err);
    if (err.status == RDT_OK)
        pull_pull_from(transfer, transfer->pull.origin);
    else
        transfer_fail_err(transfer, &err);
}

bool pull_ask_anew(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    uint64_t id = ids_next(&transfers->ids, transfer->account);

    if (!index_put(&transfers->under_way.by_id, id, &transfer->record))
        return false;
    if (transfer->pull.path.one_sided && transfer->move.n_ops > 0) {
        remote_use(&transfer->pull.read_from, transfer->pull.peer);
        transfer->pull.read_id = transfer->id;
    } else {
        pull_send_abort(transfer);
    }
    deadline_unset(transfers->deadlines, &transfer->pull.redirect.patience);
    (void)index_remove(&transfers->under_way.by_id, transfer->id);
    transfer->record.state = "asked again";
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "ended", &transfer->record);
    text_copy(transfer->record.peer, sizeof transfer->record.peer, transfer->pull.origin->peer->name);
    transfer->id = transfer->record.id = id;
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "began", &transfer->record);
    pull_leave_peer(transfer);
    pull_rewind(transfer);
    return true;
}

/* ---- for this node itself ---- */

enum rdt_status pull_for_node(const struct transfer_kind *kind, struct remote *owner, struct account *account,
                              const struct rdt_ref *ref, const char *group, uint64_t broadcast,
                              void (*on_done)(void *arg, const struct rdt_error *err), void *arg, struct fetch **fetch_p,
                              struct rdt_error *err)
{
    struct transfers *transfers = owner->transfers;
    struct replica *replica = replica_find(&transfers->replicas, ref->node, ref->generation);
    struct transfer *transfer = replica ? replica->filling : NULL;
    struct fetch *fetch = calloc(1, sizeof *fetch);
    bool joins = transfer;

    if (fetch && !joins)
        transfer = transfer_new(transfers, kind, NULL, account, ref);
    if (!fetch || !transfer) {
        free(fetch);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the transfer");
    }
    fetch->transfer = transfer;
    fetch->on_done = on_done;
    fetch->arg = arg;
    fetch->joined = FETCH_JOINED; /* Only fetches of clients are counted. */
    list_append(&transfer->fetches, &fetch->by_transfer);
    transfer->n_fetches++;
    *fetch_p = fetch;
    if (joins)
        return RDT_OK;
    transfer->wish.sharing = SHARES_REPLICA;
    transfer->pull.broadcast = broadcast;
    text_copy(transfer->wish.group, sizeof transfer->wish.group, group);
    transfer->record.direction = "in";
    text_copy(transfer->record.peer, sizeof transfer->record.peer, owner->peer->name);
    remote_use(&transfer->pull.origin, owner);
    pull_pull_from(transfer, owner);
    return RDT_OK;
}
