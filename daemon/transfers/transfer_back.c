/* Pulls that start again: by another path, or by asking again, when no operation touches the memory any
 * more. */
#include <stdlib.h>
#include <string.h>

#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_order.h"
#include "daemon/transfers/transfer_record.h"

/* The owner did not start the early receives, because it prefers another transport or its connection was not
 * ready. If the path stays the same, the posted receives are used; otherwise they must end first. */
void transfer_in_choose_again(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
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
    transfer_set_state(transfer, TRANSFER_REWIND);
    (void)deadline_set(transfers->deadlines, &transfer->pull.stall, (int64_t)transfers->options->quiesce_grace_ns);
    transfer_in_cancel_ops(transfer);
    transfer_in_rewound(transfer);
}

void transfer_in_forget_answer(struct transfer *transfer)
{
    if (transfer->packed != transfer->source)
        free(transfer->packed);
    free(transfer->source);
    transfer_in_free_metadata(transfer);
    transfer->source = transfer->packed = NULL;
    transfer->stream_bytes = 0;
    transfer->pull.answer.arrived = false;
}

void transfer_in_free_chunks(struct transfer *transfer)
{
    struct pull *pull = &transfer->pull;

    free(pull->plan);
    free(pull->chunk_ops);
    free(pull->remote);
    free(pull->keys);
    free(pull->key_bytes);
    pull->plan = NULL;
    pull->chunk_ops = NULL;
    pull->remote = NULL;
    pull->keys = NULL;
    pull->key_bytes = NULL;
}

/* Resets the attempt. All its operations have ended, and nothing that they moved counts. */
static void rewind_move(struct transfer *transfer)
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

void transfer_in_go_back(struct transfer *transfer)
{
    struct rdt_error err = {0};
    struct peer *peer;

    if (transfer->sm.state != TRANSFER_REWIND)
        transfer_set_state(transfer, TRANSFER_REWIND);
    if (transfer->n_ops > 0) {
        if (transfer->pull.chunk_ops) {
            (void)deadline_set(transfer->transfers->deadlines, &transfer->pull.stall,
                               (int64_t)transfer->transfers->options->quiesce_grace_ns);
            transfer_in_cancel_ops(transfer);
        }
        return;
    }
    rewind_move(transfer);
    transfer_in_forget_answer(transfer);
    peer = transfer->pull.origin->peer;
    if (peer->state == PEER_IDLE)
        (void)peers_find(transfer->transfers->peers, transfer->ref.node, transfer->ref.address, transfer->account, &peer, &err);
    else if (peer->state == PEER_BACKOFF)
        (void)peer_away(peer, &err);
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
    transfer_in_send_abort(transfer);
    map_remove_u64(&transfers->by_id, transfer->id);
    transfer->record.state = "asked again";
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "ended", &transfer->record);
    transfer->id = transfer->record.id = id;
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "began", &transfer->record);
    transfer_in_leave_peer(transfer);
    transfer_in_go_back(transfer);
    return true;
}

void transfer_in_rewound(struct transfer *transfer)
{
    if (transfer->n_ops > 0)
        return;
    if (!transfer->pull.peer) {
        transfer_in_go_back(transfer);
        return;
    }
    rewind_move(transfer);
    transfer_in_find_path(transfer, NULL);
}
