/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls and replicas of snapshots: a pull is served by a replica here, joins the transfer that fills one, is
 * redirected to a replica on another node, or comes back from there. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/log.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"

/* A node with a replica sends chunks or says every FANOUT_BEAT_NS that it lives. So only the readers of the node that has
 * stopped leave it, not those behind them. A reader counts the beats in which it has heard nothing: if it stood still itself,
 * that is one, and what has come meanwhile is read before the next. Before the other node has answered, and when all that
 * is missing may be under way in the network already, a reader waits longer. */
#define SILENT_BEATS (unsigned)(FANOUT_SILENCE_NS / FANOUT_BEAT_NS)
#define SILENT_BEATS_LONG 20u
#define LAST_CHUNKS 64u

/* How often a pull lets itself be redirected. */
#define REDIRECTS_MAX 16u

/* ---- replicas on this node ---- */

/* All fetches of the transfer wait for the other transfer from now on. */
static void merge(struct transfer *transfer, struct transfer *into)
{
    list_drain (struct fetch, fetch, &transfer->fetches, by_transfer) {
        list_remove(&fetch->by_transfer);
        list_append(&into->fetches, &fetch->by_transfer);
        into->transfers->counts->fetches_joined += fetch->joined == FETCH_ALONE;
        fetch->version = fetch->joined == FETCH_MERGED ? fetch->version : transfer->version;
        fetch->joined = FETCH_MERGED;
        fetch->transfer = into;
        into->n_fetches++;
    }
    transfer_find_client(into);
    transfer->client = NULL;
    transfer->merged = true;
    transfer_end(transfer);
}

static bool wants_other_path(const struct transfer *transfer)
{
    const char *wish = transfer->wish.transport;

    return wish[0] != '\0' && strncasecmp(wish, "local", 5) != 0 && strcasecmp(wish, "share") != 0 &&
           strcasecmp(wish, "cow") != 0 && strcasecmp(wish, "copy") != 0;
}

/* A fetch can wait for a replica that is being filled only if it needs the whole object as it is. */
static bool can_use(const struct transfer *transfer, const struct replica *replica)
{
    return replica->filling ? transfer->wish.sharing != SHARES_NOTHING && replica->filling != transfer
                            : !wants_other_path(transfer);
}

static void use_replica(struct transfer *transfer, struct replica *replica)
{
    if (replica->filling) {
        merge(transfer, replica->filling);
        return;
    }
    replica_used(replica);
    list_each_safe (struct fetch, fetch, &transfer->fetches, by_transfer) {
        if (fetch->client)
            transfer->transfers->counts->fetches_from_replicas++;
        else
            fetch_done_here(fetch);
    }
    if (list_empty(&transfer->fetches)) {
        transfer->merged = true;
        transfer_end(transfer);
        return;
    }
    reservation_leave(transfer);
    transfer_become(transfer, &transfer_local_kind);
    transfer_free_layouts(transfer);
    transfer_free_metadata(transfer);
    transfer->move.stream_bytes = 0;
    transfer->local.from_replica = true;
    transfer->local.pickles_trusted = !replica->untrusted && remote_pickles_trusted(replica->origin);
    transfer->ref = replica->ref;
    transfer->record.ref = replica->ref;
    transfer->record.direction = "local";
    (void)snprintf(transfer->record.peer, sizeof transfer->record.peer, "%s", replica->origin->peer->name);
    transfer_local_serve(transfer, replica->object);
}

bool pull_replica_serves(struct transfer *transfer)
{
    struct replica *replica = replica_for(&transfer->transfers->replicas, &transfer->ref, &transfer->account->owner);

    if (!replica || !can_use(transfer, replica))
        return false;
    use_replica(transfer, replica);
    return true;
}

/* The owner has just confirmed that the object exists and that the requester may have it. */
static bool use_if_listed(struct transfer *transfer, bool replicated)
{
    struct replica *replica =
        replica_find(&transfer->transfers->replicas, transfer->pull.origin->peer->uuid, transfer->ref.generation);

    if (!replica || replica == transfer->pull.replica)
        return false;
    if (replicated)
        replica->epoch = transfer->pull.origin->peer->epoch;
    if (!can_use(transfer, replica))
        return false;
    pull_send_abort(transfer);
    use_replica(transfer, replica);
    return true;
}

/* What a node fetches for itself it must be able to keep. Returns true if the transfer has failed. */
static bool is_useless(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    uint64_t max_bytes = transfer->transfers->options->replicas_max_bytes;

    if (!transfer->pull.broadcast)
        return false;
    if (!meta->snapshot || meta->has_inline || meta->bytes == 0)
        transfer_fail(transfer, RDT_PROTOCOL, "node %s broadcasts an object that is not a snapshot, or has no bytes",
                      transfer->record.peer);
    else if (meta->bytes > max_bytes)
        transfer_fail(transfer, RDT_LIMIT,
                      "a replica of %llu bytes exceeds what all replicas of this node may have together (replicas_max, %llu)",
                      (unsigned long long)meta->bytes, (unsigned long long)max_bytes);
    else if (!transfer->pull.replica)
        transfer_fail(transfer, RDT_NO_MEMORY, "no memory for the replica");
    else
        return false;
    return true;
}

bool pull_replica_answered(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct replica *there;

    if (transfer->pull.peer != transfer->pull.origin || !meta->snapshot || meta->has_inline)
        return is_useless(transfer, meta);
    if (use_if_listed(transfer, meta->replica_noted))
        return true;
    if (transfer->pull.replica)
        replica_take_sum(transfer->pull.replica, meta->sum, meta->sum_follows);
    there = replica_find(&transfer->transfers->replicas, transfer->ref.node, transfer->ref.generation);
    if (meta->replica_noted && !transfer->pull.replica && !there && !replica_create(transfer, meta))
        replica_decline(transfer->pull.origin, transfer->ref.generation);
    return is_useless(transfer, meta);
}

static void on_unwanted(struct deadline *deadline)
{
    struct transfer *transfer = container_of(deadline, struct transfer, pull.unwanted);
    struct rdt_error why;

    if (!list_empty(&transfer->fetches) || replica_in_demand(transfer->pull.replica) || transfer->sm.state == TRANSFER_ABORT ||
        transfer->sm.state == TRANSFER_ENDED)
        return;
    (void)rdt_error_set(&why, RDT_CANCELLED, "no fetch and no other node waits for the replica any more");
    record_fail(&transfer->record, &why);
    transfer_abort(transfer);
}

/* Decides in the next loop iteration, because the caller may be walking the replica's lists. Without memory for the deadline,
 * the transfer goes on to its end. */
void pull_replica_unwanted(struct transfer *transfer)
{
    transfer->pull.unwanted.on_passed = on_unwanted;
    if (list_empty(&transfer->fetches))
        (void)deadline_set(transfer->transfers->deadlines, &transfer->pull.unwanted, 0);
}

/* ---- replicas on other nodes ---- */

static void on_patience(struct deadline *deadline)
{
    struct transfer *transfer = container_of(deadline, struct transfer, pull.redirect.patience);
    bool last = transfer->pull.chunks.plan && transfer->pull.chunks.plan->n - transfer->pull.chunks.n_done <= LAST_CHUNKS;
    unsigned max = last || !transfer->pull.redirect.heard ? SILENT_BEATS_LONG : SILENT_BEATS;

    if (++transfer->pull.redirect.silent_beats < max) {
        (void)deadline_set(transfer->transfers->deadlines, deadline, FANOUT_BEAT_NS);
        return;
    }
    transfer_fail(transfer, RDT_TIMED_OUT, "node %s, which has a replica, was silent for %.1f s", transfer->record.peer,
                  (double)max * FANOUT_BEAT_NS / 1e9);
}

static enum rdt_status follow_redirect(struct transfer *transfer, const Rdt__Pb__PullMeta *meta, struct remote **remote_p,
                                       struct rdt_error *err)
{
    struct transfers *transfers = transfer->transfers;
    struct remote *remote;
    struct peer *peer;
    enum rdt_status status = peers_find(transfers->peers, meta->redirect_node.data, meta->redirect_address, NULL, &peer, err);

    if (status != RDT_OK)
        return status;
    if (peer->state == PEER_BACKOFF)
        return peer_away(peer, transfer->account, err);
    remote = remote_get(transfers, peer);
    if (!remote)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for node %s", peer->name);
    transfer->pull.redirect.patience.on_passed = on_patience;
    transfer->pull.redirect.silent_beats = 0;
    transfer->pull.redirect.heard = false;
    (void)deadline_set(transfers->deadlines, &transfer->pull.redirect.patience, FANOUT_BEAT_NS);
    (void)snprintf(transfer->record.peer, sizeof transfer->record.peer, "%s", peer->name);
    log_debug("xfer %llu is redirected to the replica on node %s", (unsigned long long)transfer->id, peer->name);
    *remote_p = remote;
    return RDT_OK;
}

struct remote *pull_replica_redirected(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct remote *remote = transfer->pull.origin;
    struct rdt_error err = {0};

    if (transfer->wish.sharing == SHARES_NOTHING || transfer->pull.redirect.refused ||
        transfer->pull.peer != transfer->pull.origin || meta->redirect_node.len != 16 || !meta->snapshot ||
        !meta->replica_noted || meta->has_inline) {
        transfer_fail(transfer, RDT_PROTOCOL, "node %s redirected a fetch that it must not redirect", transfer->record.peer);
        return NULL;
    }
    if (use_if_listed(transfer, meta->replica_noted))
        return NULL;
    if (transfer->pull.replica)
        replica_take_sum(transfer->pull.replica, meta->sum, meta->sum_follows);
    reservation_leave(transfer); /* The other node may be silent. */
    if (!transfer->pull.replica && !replica_create(transfer, meta)) {
        replica_decline(transfer->pull.origin, transfer->ref.generation);
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory for a replica");
    }
    if (is_useless(transfer, meta))
        return NULL;
    if (err.status == RDT_OK)
        (void)follow_redirect(transfer, meta, &remote, &err);
    pull_forget_answer(transfer); /* The node that is asked next sends an answer of its own. */
    if (err.status != RDT_OK) {
        log_debug("xfer %llu is not redirected to a replica: %s", (unsigned long long)transfer->id, err.msg);
        transfer->pull.redirect.refused = true;
    }
    return remote;
}

/* Asks the owner's node again, under a new number: the bytes of the old one may still be under way. */
static bool ask_owner_again(struct transfer *transfer, const char *why)
{
    if (!transfer->pull.peer || !transfer->pull.origin)
        return false;
    record_source_left(&transfer->record, why);
    transfer->pull.redirect.came_back = transfer->pull.peer != transfer->pull.origin;
    if (transfer->pull.redirect.bytes == BYTES_WRONG)
        pull_move_bytes(transfer, BYTES_AGAIN);
    memcpy(transfer->pull.redirect.left, transfer->pull.peer->peer->uuid, sizeof transfer->pull.redirect.left);
    if (++transfer->pull.redirect.n > REDIRECTS_MAX)
        transfer->pull.redirect.refused = true;
    return pull_ask_anew(transfer);
}

bool pull_replica_comes_back(struct transfer *transfer, const struct rdt_error *why)
{
    struct transfers *transfers = transfer->transfers;

    if (transfer->pull.failure.is_here) /* Another source would not help. */
        return false;
    if (transfers->closing || !transfer->pull.origin || !transfer->pull.peer ||
        (transfer->pull.peer == transfer->pull.origin && transfer->pull.redirect.bytes != BYTES_WRONG) ||
        transfer->sm.state == TRANSFER_ABORT || (list_empty(&transfer->fetches) && !replica_in_demand(transfer->pull.replica)))
        return false;
    pull_delta_stop(transfer);
    log_debug("xfer %llu comes back from the replica on node %s: %s", (unsigned long long)transfer->id, transfer->record.peer,
              why->msg);
    return ask_owner_again(transfer, why->msg);
}

/* On its way to another node's replica it has not begun to move bytes, and would stay there for all of them. While it asks the
 * owner's node, that answers with the better source anyway. */
static bool may_leave(const struct transfer *transfer)
{
    switch (transfer->sm.state) {
    case TRANSFER_LINK:
    case TRANSFER_ASKED:
    case TRANSFER_RESERVE:
    case TRANSFER_CONNECT:
    case TRANSFER_TICKET:
        return transfer->pull.peer != transfer->pull.origin;
    case TRANSFER_MOVE:
        return !transfer->pull.path.one_sided && transfer->pull.chunks.n_done < transfer->pull.chunks.plan->n;
    default:
        return false;
    }
}

void pull_replica_ask_again(struct transfer *transfer, const char *why)
{
    if (!transfer->pull.replica || transfer->pull.failure.status != RDT_OK || transfer->pull.origin->peer->state != PEER_UP ||
        !may_leave(transfer))
        return;
    log_debug("xfer %llu leaves node %s: %s", (unsigned long long)transfer->id, transfer->record.peer, why);
    (void)ask_owner_again(transfer, why);
}
