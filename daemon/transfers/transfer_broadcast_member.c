/* This node's part of another node's broadcast: it gets a copy of a snapshot, and says so.
 *
 *   asked --- no copy here -----------------> PULLING ---- whole ----> word
 *     |                                       |     ^
 *     +--- a copy is being filled here --> WAITING -+ it came to nothing
 *     |                                       `-------- whole ------> word
 *     `--- a whole one is here -------------------------------------> word
 *
 * PULLING is a transfer that no client waits for (transfer->member), in the group, from the root itself. What else wants the object here
 * meanwhile waits for the same copy (replica.h); if then the broadcast comes to nothing, that transfer goes on as an ordinary one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/transfers/transfer_impl.h"
#include "wire_error.h"
#include "wire_ref.h"

#define PARTS_MAX 1024u /* of one root at a time */

struct broadcast_member {
    struct list link; /* in root->parts */
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

static void begin(struct broadcast_member *part);

static void say(struct peer_session *root, uint64_t number, const struct rdt_error *why, bool declined)
{
    Rdt__Pb__BroadcastWord word = RDT__PB__BROADCAST_WORD__INIT;

    word.broadcast = number;
    word.declined = declined;
    if (why) {
        word.status = why->status;
        word.message = (char *)why->msg;
    }
    (void)peer_session_send(root, RDT_PEER_BROADCAST_WORD, &word.base, NULL); /* link down: the root knows */
}

/* The transfer goes on, or ends, as an ordinary pull. */
static void leave_transfer(struct transfer *transfer)
{
    transfer->pull.member = NULL;
    transfer->pull.broadcast.number = 0;
    transfer->kind = &transfer_pull_kind;
}

static void part_free(struct broadcast_member *part)
{
    if (part->transfer)
        leave_transfer(part->transfer);
    deadline_unset(part->root->transfers->deadlines, &part->again);
    list_remove(&part->waiting.link);
    list_remove(&part->link);
    part->root->n_parts--;
    account_give(part->account, USAGE_TRANSFERS, 1);
    account_unref(part->account);
    free(part);
}

/* NULL: well. */
static void finish(struct broadcast_member *part, const struct rdt_error *why)
{
    if (why)
        log_debug("broadcast %llu of node %s: no copy here: %s", (unsigned long long)part->number, part->root->peer->name,
                  why->msg);
    say(part->root, part->number, why, false);
    part_free(part);
}

static void decline(struct broadcast_member *part)
{
    say(part->root, part->number, NULL, true);
    part_free(part);
}

/* ---- waiting for a copy that is filled for others ---- */

static void on_again(struct deadline *deadline)
{
    begin(container_of(deadline, struct broadcast_member, again));
}

/* When the loop turns: this is the middle of another transfer's end. */
static void on_copy_end(struct replica_waiter *waiter)
{
    struct broadcast_member *part = container_of(waiter, struct broadcast_member, waiting);

    part->again.on_passed = on_again;
    (void)deadline_set(part->root->transfers->deadlines, &part->again, 0);
}

/* There is a copy. */
static void use(struct broadcast_member *part, struct replica *replica)
{
    if (!replica->filling) {
        replica_used(replica);
        finish(part, NULL);
    } else if (part->collective) {
        decline(part); /* it cannot be filled twice */
    } else {
        part->waiting.on_end = on_copy_end;
        list_append(&replica->waiters, &part->waiting.link);
    }
}

/* ---- pulling ---- */

static void pull(struct broadcast_member *part)
{
    struct transfers *transfers = part->root->transfers;
    struct group *group = group_by_token(transfers->groups, part->token, sizeof part->token);
    struct rdt_error err = {0};
    struct transfer *transfer;

    if (!group || group->sm.state == GROUP_ENDING || group->epoch != part->epoch) {
        (void)rdt_error_set(&err, RDT_TRANSPORT, "the group has ended, or been formed anew");
        finish(part, &err);
        return;
    }
    transfer = transfer_new(transfers, &transfer_member_kind, NULL, part->account, &part->ref);
    if (!transfer) {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory for the transfer");
        finish(part, &err);
        return;
    }
    part->transfer = transfer;
    transfer->pull.member = part;
    transfer->pull.broadcast = (struct pull_broadcast){.number = part->number,
                                                       .epoch = part->epoch,
                                                       .collective = part->collective,
                                                       .chunk_bytes = part->collective ? part->chunk_bytes : 0};
    memcpy(transfer->pull.broadcast.token, part->token, sizeof part->token);
    transfer->pull.keeps = transfer->pull.no_redirect = true;
    text_copy(transfer->wish.transport, sizeof transfer->wish.transport, group->transport->name);
    text_copy(transfer->wish.group, sizeof transfer->wish.group, group->name);
    transfer->record.direction = "in";
    text_copy(transfer->record.peer, sizeof transfer->record.peer, part->root->peer->name);
    transfer->pull.stall.on_passed = transfer_in_on_stall;
    transfer->pull.origin = part->root;
    transfer_in_pull_from(transfer, part->root);
}

static void begin(struct broadcast_member *part)
{
    struct replica *replica = replica_find(&part->root->transfers->replicas, part->ref.node, part->ref.generation);

    if (replica && (replica->filling || replica_is_fresh(replica)))
        use(part, replica);
    else
        pull(part); /* if there is one, the answer says whether it may serve */
}

/* The pull has found a copy here: another fetch was faster, or one from before may serve again. */
static void give_way(struct transfer *transfer, struct replica *replica, bool replicated)
{
    struct broadcast_member *part = transfer->pull.member;

    if (replicated)
        replica->epoch = part->root->peer->epoch;
    transfer_in_send_abort(transfer);
    part->transfer = NULL;
    leave_transfer(transfer);
    transfer->merged = true;
    transfer_end(transfer);
    use(part, replica);
}

static bool answered(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct transfers *transfers = transfer->transfers;
    struct replica *replica = replica_find(&transfers->replicas, transfer->ref.node, transfer->ref.generation);
    struct peer_session *root = transfer->pull.member->root;
    uint64_t most = transfers->options->replicas_max_bytes, generation = transfer->ref.generation;

    if (replica && replica != transfer->pull.replica) {
        give_way(transfer, replica, meta->kept);
        return true;
    }
    if (!meta->snapshot || meta->has_inline || meta->bytes == 0)
        transfer_fail(transfer, RDT_PROTOCOL, "node %s broadcasts what is no snapshot, or has no bytes", transfer->record.peer);
    else if (meta->bytes > most)
        transfer_fail(transfer, RDT_LIMIT, "a copy of %llu bytes is more than this node keeps of all (replicas_max, %llu)",
                      (unsigned long long)meta->bytes, (unsigned long long)most);
    else if (!meta->kept || (!transfer->pull.replica && !replica_create(transfer, meta)))
        transfer_fail(transfer, RDT_NO_MEMORY, "no memory to keep a copy");
    else
        return false;
    if (meta->kept) /* it sends nobody here */
        replica_decline(root, generation);
    return true;
}

static void complete(struct transfer *transfer)
{
    struct broadcast_member *part = transfer->pull.member;
    struct rdt_error err;

    if (!part)
        return;
    if (transfer->pull.replica && transfer->pull.replica->listed) {
        finish(part, NULL);
        return;
    }
    (void)rdt_error_set(&err, RDT_LIMIT, "the copy was not kept: the object has ended, or replicas_max is used up");
    finish(part, &err);
}

/* Without the broadcast it is a fetch of those who had waited for the same copy; its operations end first. Under another number: at the
 * root the pull may not have come to rest yet. false: no memory. */
static bool go_back(struct transfer *transfer)
{
    transfer->wish.transport[0] = transfer->wish.group[0] = '\0';
    transfer->record.error[0] = '\0';
    return transfer_in_ask_anew(transfer);
}

static bool may_go_back(const struct transfer *transfer)
{
    return !list_empty(&transfer->fetches) && !transfer->transfers->closing && transfer->sm.state != TRANSFER_ABORT &&
           transfer->sm.state != TRANSFER_REWIND && transfer->pull.peer && transfer->pull.origin->peer->state == PEER_UP;
}

static bool recover(struct transfer *transfer, const struct rdt_error *err)
{
    if (!transfer->pull.member)
        return false;
    if (!transfer->record.error[0])
        (void)snprintf(transfer->record.error, sizeof transfer->record.error, "%s: %s", rdt_status_name(err->status), err->msg);
    finish(transfer->pull.member, err);
    if (may_go_back(transfer) && go_back(transfer))
        return true;
    if (!list_empty(&transfer->fetches))
        return false;
    transfer_abort(transfer);
    return true;
}

const struct transfer_kind transfer_member_kind = {.abort = transfer_in_abort,
                                                   .recover = recover,
                                                   .release = transfer_pull_release,
                                                   .wanted = transfer_pull_wanted,
                                                   .answered = answered,
                                                   .complete = complete};

/* ---- word from the root ---- */

static struct broadcast_member *find(const struct peer_session *root, uint64_t number)
{
    list_for_each (node, &root->parts) {
        struct broadcast_member *part = container_of(node, struct broadcast_member, link);
        if (part->number == number)
            return part;
    }
    return NULL;
}

static enum rdt_status part_new(struct peer_session *root, const Rdt__Pb__GroupBroadcast *message,
                                struct broadcast_member **part_p, struct rdt_error *err)
{
    struct transfers *transfers = root->transfers;
    struct group *group = group_by_token(transfers->groups, message->group.data, message->group.len);
    struct owner owner;
    struct broadcast_member *part;
    struct rdt_ref ref;
    enum rdt_status status = wire_ref_to(message->ref, &ref, err);

    if (status != RDT_OK)
        return status;
    if (ref.is_name || ref.generation == 0 || memcmp(ref.node, root->peer->uuid, sizeof ref.node) != 0)
        return rdt_error_set(err, RDT_INVALID, "object \"%s\" is not one of the root's", ref.id);
    if (!transfers_believe(transfers, message->owner, &owner, err))
        return err->status;
    if (!group || group->sm.state == GROUP_ENDING || group->epoch != message->epoch)
        return rdt_error_set(err, RDT_TRANSPORT, "the group has ended, or been formed anew");
    if (!owner_equal(&group->owner, &owner) || !group_has(group, root->peer->uuid, NULL, NULL))
        return rdt_error_set(err, RDT_DENIED, "group \"%s\" has no member of uid %u on node %s", group->name, owner.uid,
                             root->peer->name);
    if (message->together && !group->transport->ops.post_broadcast)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s has no broadcast of its own here", group->transport->name);
    if (root->n_parts >= PARTS_MAX)
        return rdt_error_set(err, RDT_LIMIT, "node %s has %u broadcasts under way here", root->peer->name, PARTS_MAX);
    part = calloc(1, sizeof *part);
    if (!part || !(part->account = account_get(transfers->objects->accounts, &owner))) {
        free(part);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a broadcast");
    }
    status = account_take(part->account, USAGE_TRANSFERS, 1, err);
    if (status != RDT_OK) {
        account_unref(part->account);
        free(part);
        return status;
    }
    part->root = root;
    part->number = message->broadcast;
    memcpy(part->token, group->token, sizeof part->token);
    part->epoch = group->epoch;
    part->collective = message->together;
    part->chunk_bytes = message->chunk_bytes;
    part->ref = ref;
    list_init(&part->waiting.link);
    list_append(&root->parts, &part->link);
    root->n_parts++;
    *part_p = part;
    return RDT_OK;
}

enum rdt_status transfer_member_on_ask(struct peer_session *root, const Rdt__Pb__GroupBroadcast *message, struct rdt_error *err)
{
    struct rdt_error why = {0};
    struct broadcast_member *part = NULL;

    if (find(root, message->broadcast))
        return rdt_error_set(err, RDT_PROTOCOL, "node %s uses broadcast number %llu twice", root->peer->name,
                             (unsigned long long)message->broadcast);
    if (part_new(root, message, &part, &why) == RDT_OK)
        begin(part);
    else
        say(root, message->broadcast, &why, false);
    return RDT_OK;
}

static void drop(struct broadcast_member *part, const struct rdt_error *why)
{
    struct transfer *transfer = part->transfer;
    struct replica *replica = NULL;

    if (transfer) {
        (void)recover(transfer, why);
        return;
    }
    if (!list_empty(&part->waiting.link))
        replica = replica_find(&part->root->transfers->replicas, part->ref.node, part->ref.generation);
    part_free(part);
    if (replica && replica->filling && !replica_in_demand(replica))
        transfer_unwanted(replica->filling);
}

void transfer_member_on_over(struct peer_session *root, const Rdt__Pb__BroadcastWord *word)
{
    struct broadcast_member *part = find(root, word->broadcast);
    struct rdt_error why;

    (void)rdt_error_set(&why, RDT_CANCELLED, "the broadcast was given up");
    if (part)
        drop(part, &why);
}

void transfer_members_link_down(struct peer_session *root, const struct rdt_error *why)
{
    while (!list_empty(&root->parts))
        drop(container_of(list_first(&root->parts), struct broadcast_member, link), why);
}
