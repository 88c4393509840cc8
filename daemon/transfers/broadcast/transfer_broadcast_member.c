/* SPDX-License-Identifier: Apache-2.0 */
/* This node as a member of another node's broadcast: it gets a replica of a snapshot and tells the root so.
 *
 *   BROADCAST --- no replica here ----------------> PULLING --- complete ---> BROADCAST_RESULT
 *       |                                            |   ^
 *       +--- a transfer here fills a replica ----> WAITING   (PULLING if that transfer fails)
 *       |                                            `--------- complete ---> BROADCAST_RESULT
 *       `--- a complete replica is here ------------------------------------> BROADCAST_RESULT
 *
 * PULLING is a transfer without a client (pull.member), in the group, from the root itself. Fetches of the
 * object here meanwhile wait for the same replica (replica.h). If the broadcast fails then, the transfer goes
 * on as an ordinary pull for them. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/transfers/broadcast/transfer_broadcast.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"
#include "wire_ref.h"

#define MEMBERS_MAX 1024u /* of one root at a time */

struct broadcast_member {
    struct list link; /* in root->members */
    struct peer_session *root;
    uint64_t number;
    uint8_t token[16]; /* of the group */
    uint32_t epoch;
    bool collective;
    uint64_t chunk_bytes;
    struct account *account; /* the owner's: a reference, charged for one transfer */
    struct rdt_ref ref;
    struct transfer *transfer;     /* PULLING */
    struct replica_waiter waiting; /* WAITING */
    struct deadline again;
};

static void begin(struct broadcast_member *member);

static void report(struct peer_session *root, uint64_t number, const struct rdt_error *why, bool declined)
{
    Rdt__Pb__BroadcastResult word = RDT__PB__BROADCAST_RESULT__INIT;

    word.broadcast = number;
    word.declined = declined;
    if (why) {
        word.status = why->status;
        word.message = (char *)why->msg;
    }
    (void)peer_session_send(root, RDT_PEER_BROADCAST_RESULT, &word.base, NULL); /* Link down: the root knows. */
}

/* The transfer goes on, or ends, as an ordinary pull. */
static void leave_transfer(struct transfer *transfer)
{
    transfer->pull.member = NULL;
    transfer->pull.broadcast.number = 0;
    transfer->kind = &transfer_pull_kind;
}

static void member_free(struct broadcast_member *member)
{
    if (member->transfer)
        leave_transfer(member->transfer);
    deadline_unset(member->root->transfers->deadlines, &member->again);
    list_remove(&member->waiting.link);
    list_remove(&member->link);
    member->root->n_members--;
    account_give(member->account, USAGE_TRANSFERS, 1);
    account_unref(member->account);
    free(member);
}

/* Tells the root. why NULL: the replica is complete. */
static void finish(struct broadcast_member *member, const struct rdt_error *why)
{
    if (why)
        log_debug("broadcast %llu of node %s: no replica here: %s", (unsigned long long)member->number,
                  member->root->peer->name, why->msg);
    report(member->root, member->number, why, false);
    member_free(member);
}

static void decline(struct broadcast_member *member)
{
    report(member->root, member->number, NULL, true);
    member_free(member);
}

/* ---- waiting for a replica that another transfer fills ---- */

static void on_again(struct deadline *deadline)
{
    begin(container_of(deadline, struct broadcast_member, again));
}

/* Begins again in the next loop iteration, because another transfer is just ending. */
static void on_copy_end(struct replica_waiter *waiter)
{
    struct broadcast_member *member = container_of(waiter, struct broadcast_member, waiting);

    member->again.on_passed = on_again;
    (void)deadline_set(member->root->transfers->deadlines, &member->again, 0);
}

/* There is a replica: it is complete, or another transfer fills it. */
static void use_replica(struct broadcast_member *member, struct replica *replica)
{
    if (!replica->filling) {
        replica_used(replica);
        finish(member, NULL);
    } else if (member->collective) {
        decline(member); /* A collective broadcast cannot use a replica that is filled already. */
    } else {
        member->waiting.on_end = on_copy_end;
        list_append(&replica->waiters, &member->waiting.link);
    }
}

/* ---- pulling ---- */

static void pull(struct broadcast_member *member)
{
    struct transfers *transfers = member->root->transfers;
    struct group *group = group_by_token(transfers->groups, member->token, sizeof member->token);
    struct rdt_error err = {0};
    struct transfer *transfer;

    if (!group || group->sm.state == GROUP_ENDING || group->epoch != member->epoch) {
        (void)rdt_error_set(&err, RDT_TRANSPORT, "the group has ended, or was formed anew");
        finish(member, &err);
        return;
    }
    transfer = transfer_new(transfers, &transfer_member_kind, NULL, member->account, &member->ref);
    if (!transfer) {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory for the transfer");
        finish(member, &err);
        return;
    }
    member->transfer = transfer;
    transfer->pull.member = member;
    transfer->pull.broadcast = (struct pull_broadcast){.number = member->number,
                                                       .epoch = member->epoch,
                                                       .collective = member->collective,
                                                       .chunk_bytes = member->collective ? member->chunk_bytes : 0};
    memcpy(transfer->pull.broadcast.token, member->token, sizeof member->token);
    transfer->pull.keeps = transfer->pull.no_redirect = true;
    text_copy(transfer->wish.transport, sizeof transfer->wish.transport, group->transport->name);
    text_copy(transfer->wish.group, sizeof transfer->wish.group, group->name);
    transfer->record.direction = "in";
    text_copy(transfer->record.peer, sizeof transfer->record.peer, member->root->peer->name);
    transfer->pull.origin = member->root;
    transfer_in_pull_from(transfer, member->root);
}

static void begin(struct broadcast_member *member)
{
    struct replica *replica = replica_find(&member->root->transfers->replicas, member->ref.node, member->ref.generation);

    if (replica && (replica->filling || replica_is_fresh(replica)))
        use_replica(member, replica);
    else
        pull(member); /* If there is an old replica, the answer says whether it may serve. */
}

/* The answer has come and there is a replica already: another fetch was faster, or an old replica may serve
 * again. */
static void yield_to_replica(struct transfer *transfer, struct replica *replica, bool replicated)
{
    struct broadcast_member *member = transfer->pull.member;

    if (replicated)
        replica->epoch = member->root->peer->epoch;
    transfer_in_send_abort(transfer);
    member->transfer = NULL;
    leave_transfer(transfer);
    transfer->merged = true;
    transfer_end(transfer);
    use_replica(member, replica);
}

static bool answered(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct transfers *transfers = transfer->transfers;
    struct replica *replica = replica_find(&transfers->replicas, transfer->ref.node, transfer->ref.generation);
    struct peer_session *root = transfer->pull.member->root;
    uint64_t max_bytes = transfers->options->replicas_max_bytes, generation = transfer->ref.generation;

    if (replica && replica != transfer->pull.replica) {
        yield_to_replica(transfer, replica, meta->replica_noted);
        return true;
    }
    if (!meta->snapshot || meta->has_inline || meta->bytes == 0)
        transfer_fail(transfer, RDT_PROTOCOL, "node %s broadcasts an object that is not a snapshot, or has no bytes",
                      transfer->record.peer);
    else if (meta->bytes > max_bytes)
        transfer_fail(transfer, RDT_LIMIT,
                      "a replica of %llu bytes exceeds what all replicas of this node may have together (replicas_max, %llu)",
                      (unsigned long long)meta->bytes, (unsigned long long)max_bytes);
    else if (!meta->replica_noted || (!transfer->pull.replica && !replica_create(transfer, meta)))
        transfer_fail(transfer, RDT_NO_MEMORY, "no memory for the replica");
    else
        return false;
    if (meta->replica_noted) /* The root's node must redirect no reader to this node. */
        replica_decline(root, generation);
    return true;
}

static void complete(struct transfer *transfer)
{
    struct broadcast_member *member = transfer->pull.member;
    struct rdt_error err;

    if (!member)
        return;
    if (transfer->pull.replica && transfer->pull.replica->listed) {
        finish(member, NULL);
        return;
    }
    (void)rdt_error_set(&err, RDT_LIMIT, "the replica was dropped, because the object has ended or replicas_max is used up");
    finish(member, &err);
}

/* The broadcast has failed, but fetches wait for the same replica: the transfer asks again, as an ordinary
 * pull for them. It uses a new id, since the root's side of the old pull may not have ended yet. Returns
 * false if there is no memory. */
static bool ask_as_pull(struct transfer *transfer)
{
    transfer->wish.transport[0] = transfer->wish.group[0] = '\0';
    transfer->record.error[0] = '\0';
    transfer->record.status = RDT_OK;
    return transfer_in_ask_anew(transfer);
}

static bool may_ask_as_pull(const struct transfer *transfer)
{
    return !list_empty(&transfer->fetches) && !transfer->transfers->closing && transfer->sm.state != TRANSFER_ABORT &&
           transfer->sm.state != TRANSFER_REWIND && transfer->pull.peer && transfer->pull.origin->peer->state == PEER_UP;
}

static bool recover(struct transfer *transfer, const struct rdt_error *err)
{
    if (!transfer->pull.member)
        return false;
    record_fail(&transfer->record, err);
    finish(transfer->pull.member, err);
    if (may_ask_as_pull(transfer) && ask_as_pull(transfer))
        return true;
    if (!list_empty(&transfer->fetches))
        return false;
    transfer_abort(transfer);
    return true;
}

const struct transfer_kind transfer_member_kind = {.part = &transfer_subpull_kind,
                                                   .abort = transfer_in_abort,
                                                   .settled = transfer_in_settled,
                                                   .recover = recover,
                                                   .release = transfer_pull_release,
                                                   .wanted = transfer_pull_wanted,
                                                   .answered = answered,
                                                   .complete = complete};

/* ---- messages from the root ---- */

static struct broadcast_member *find(const struct peer_session *root, uint64_t number)
{
    list_each (struct broadcast_member, member, &root->members, link)
        if (member->number == number)
            return member;
    return NULL;
}

static enum rdt_status member_new(struct peer_session *root, const Rdt__Pb__GroupBroadcast *message,
                                  struct broadcast_member **member_p, struct rdt_error *err)
{
    struct transfers *transfers = root->transfers;
    struct group *group = group_by_token(transfers->groups, message->group.data, message->group.len);
    struct owner owner;
    struct broadcast_member *member;
    struct rdt_ref ref;
    enum rdt_status status = wire_ref_to(message->ref, &ref, err);

    if (status != RDT_OK)
        return status;
    if (ref.is_name || ref.generation == 0 || memcmp(ref.node, root->peer->uuid, sizeof ref.node) != 0)
        return rdt_error_set(err, RDT_INVALID, "object \"%s\" is not on the root's node", ref.id);
    if (!transfers_check_requester(transfers, message->owner, &owner, err))
        return err->status;
    if (!group || group->sm.state == GROUP_ENDING || group->epoch != message->epoch)
        return rdt_error_set(err, RDT_TRANSPORT, "the group has ended, or was formed anew");
    if (!owner_equal(&group->owner, &owner) || !group_has(group, root->peer->uuid, NULL, NULL))
        return rdt_error_set(err, RDT_DENIED, "group \"%s\" has no member of uid %u on node %s", group->name, owner.uid,
                             root->peer->name);
    if (message->collective && !group->transport->ops.post_broadcast)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s supports no collective broadcast here", group->transport->name);
    if (root->n_members >= MEMBERS_MAX)
        return rdt_error_set(err, RDT_LIMIT, "node %s already has %u broadcasts under way to this node", root->peer->name,
                             MEMBERS_MAX);
    member = calloc(1, sizeof *member);
    if (!member || !(member->account = account_get(transfers->objects->accounts, &owner))) {
        free(member);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a broadcast");
    }
    status = account_take(member->account, USAGE_TRANSFERS, 1, err);
    if (status != RDT_OK) {
        account_unref(member->account);
        free(member);
        return status;
    }
    member->root = root;
    member->number = message->broadcast;
    memcpy(member->token, group->token, sizeof member->token);
    member->epoch = group->epoch;
    member->collective = message->collective;
    member->chunk_bytes = message->chunk_bytes;
    member->ref = ref;
    list_init(&member->waiting.link);
    list_append(&root->members, &member->link);
    root->n_members++;
    *member_p = member;
    return RDT_OK;
}

enum rdt_status transfer_member_on_ask(struct peer_session *root, const Rdt__Pb__GroupBroadcast *message, struct rdt_error *err)
{
    struct rdt_error why = {0};
    struct broadcast_member *member = NULL;

    if (find(root, message->broadcast))
        return rdt_error_set(err, RDT_PROTOCOL, "node %s uses broadcast number %llu twice", root->peer->name,
                             (unsigned long long)message->broadcast);
    if (member_new(root, message, &member, &why) == RDT_OK)
        begin(member);
    else
        report(root, message->broadcast, &why, false);
    return RDT_OK;
}

static void drop(struct broadcast_member *member, const struct rdt_error *why)
{
    struct transfer *transfer = member->transfer;
    struct replica *replica = NULL;

    if (transfer) {
        (void)recover(transfer, why);
        return;
    }
    if (!list_empty(&member->waiting.link))
        replica = replica_find(&member->root->transfers->replicas, member->ref.node, member->ref.generation);
    member_free(member);
    if (replica && replica->filling && !replica_in_demand(replica))
        transfer_replica_unwanted(replica->filling);
}

void transfer_member_on_over(struct peer_session *root, const Rdt__Pb__BroadcastResult *word)
{
    struct broadcast_member *member = find(root, word->broadcast);
    struct rdt_error why;

    (void)rdt_error_set(&why, RDT_CANCELLED, "the broadcast was cancelled");
    if (member)
        drop(member, &why);
}

void transfer_members_link_down(struct peer_session *root, const struct rdt_error *why)
{
    while (!list_empty(&root->members))
        drop(container_of(list_first(&root->members), struct broadcast_member, link), why);
}
