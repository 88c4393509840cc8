/* SPDX-License-Identifier: Apache-2.0 */
/* See broadcast.h: first the side of the root, which has the object, then that of the nodes that fetch it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/transfers/broadcast.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/transfer_impl.h"
#include "wire_ref.h"

#define GROUP_POLL_NS 200000000ll
#define MEMBERS_MAX 1024u /* of one root at a time */

/* A node of the group that is not this one. */
struct receiver {
    uint8_t uuid[16];
    struct remote *remote; /* NULL: not found yet */
    bool asked;
    bool done; /* the node has its replica, or has failed */
};

struct broadcast {
    struct list link; /* in transfers->broadcasts */
    struct transfers *transfers;
    uint64_t number;
    struct group *group; /* WAITING: it is not ready; NULL: ASKED */
    uint8_t token[16];   /* ASKED: of the group, and its epoch then */
    uint32_t epoch;
    struct deadline poll;    /* WAITING */
    struct account *account; /* a reference, charged for one transfer */
    struct object *object;   /* held; NULL: not yet */
    struct rdt_ref ref;
    struct receiver *receivers; /* [n_receivers] */
    uint32_t n_receivers;
    struct rdt_error failure; /* the first failure; status RDT_OK: none */
    void (*on_done)(void *arg, const struct rdt_error *err);
    void *arg;
    bool busy; /* a function uses it, and it must not be freed */
};

/* ---- the end ---- */

static void broadcast_free(struct broadcast *broadcast)
{
    deadline_unset(broadcast->transfers->deadlines, &broadcast->poll);
    list_remove(&broadcast->link);
    if (broadcast->object)
        object_peer_drop(broadcast->object);
    account_give(broadcast->account, USAGE_TRANSFERS, 1);
    account_unref(broadcast->account);
    free(broadcast->receivers);
    free(broadcast);
}

/* Tells the nodes that have not answered that nobody waits for them any more, and frees the broadcast. */
static void call_off(struct broadcast *broadcast)
{
    Rdt__Pb__BroadcastResult word = RDT__PB__BROADCAST_RESULT__INIT;

    word.broadcast = broadcast->number;
    word.status = RDT_CANCELLED;
    word.from_root = true;
    for (uint32_t i = 0; i < broadcast->n_receivers; i++)
        if (broadcast->receivers[i].asked && !broadcast->receivers[i].done)
            (void)remote_send(broadcast->receivers[i].remote, RDT_PEER_BROADCAST_RESULT, &word.base, NULL);
    broadcast_free(broadcast);
}

static void give_up(struct broadcast *broadcast, const struct rdt_error *why)
{
    broadcast->on_done(broadcast->arg, why);
    call_off(broadcast);
}

/* Ends the broadcast if every node is done. */
static void settle(struct broadcast *broadcast)
{
    if (broadcast->busy)
        return;
    for (uint32_t i = 0; i < broadcast->n_receivers; i++)
        if (!broadcast->receivers[i].done)
            return;
    broadcast->on_done(broadcast->arg, broadcast->failure.status != RDT_OK ? &broadcast->failure : NULL);
    broadcast_free(broadcast);
}

static void receiver_failed(struct broadcast *broadcast, struct receiver *receiver, const struct rdt_error *why)
{
    if (broadcast->failure.status == RDT_OK)
        broadcast->failure = *why;
    receiver->done = true;
}

static enum rdt_status is_down(const struct group *group, struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_PATH, "group %s is down: %s", group->name, group->why);
}

/* ---- asking the nodes ---- */

static void ask(struct broadcast *broadcast, struct receiver *receiver)
{
    Rdt__Pb__GroupBroadcast message = RDT__PB__GROUP_BROADCAST__INIT;
    Rdt__Pb__Requester owner = RDT__PB__REQUESTER__INIT;
    struct rdt_error err = {0};
    Rdt__Pb__Ref ref;

    wire_ref_from(&broadcast->ref, &ref);
    owner.tenant = broadcast->account->owner.tenant;
    owner.uid = broadcast->account->owner.uid;
    message.broadcast = broadcast->number;
    message.group = (ProtobufCBinaryData){sizeof broadcast->token, broadcast->token};
    message.epoch = broadcast->epoch;
    message.ref = &ref;
    message.owner = &owner;
    receiver->asked = true;
    if (remote_send(receiver->remote, RDT_PEER_BROADCAST, &message.base, &err) != RDT_OK)
        receiver_failed(broadcast, receiver, &err);
}

/* The group is ready. A node whose link is down is dialled, and asked when the link is up; or it fails. */
static void ask_all(struct broadcast *broadcast)
{
    struct transfers *transfers = broadcast->transfers;
    const struct group *group = broadcast->group;

    broadcast->group = NULL;
    memcpy(broadcast->token, group->token, sizeof broadcast->token);
    broadcast->epoch = group->epoch;
    broadcast->busy = true;
    for (uint32_t i = 0, k = 0; i < broadcast->n_receivers; i++) {
        struct receiver *receiver = &broadcast->receivers[i];
        struct rdt_error err = {0};
        enum rdt_status status;
        struct peer *peer;
        while (memcmp(group->members[k].node, receiver->uuid, 16) != 0) /* they are in the order of the members */
            k++;
        status = peers_find(transfers->peers, receiver->uuid, group->members[k].address, NULL, &peer, &err);
        if (status == RDT_OK && peer->state == PEER_BACKOFF)
            status = peer_away(peer, broadcast->account, &err);
        if (status == RDT_OK && !(receiver->remote = remote_get(transfers, peer)))
            status = rdt_error_set(&err, RDT_NO_MEMORY, "no memory for node %s", peer->name);
        if (status != RDT_OK)
            receiver_failed(broadcast, receiver, &err);
        else if (peer->state == PEER_UP)
            ask(broadcast, receiver);
    }
    broadcast->busy = false;
    settle(broadcast);
}

/* WAITING: the group reports when it opens, but not that it stays down. */
static void on_poll(struct deadline *deadline)
{
    struct broadcast *broadcast = container_of(deadline, struct broadcast, poll);
    struct rdt_error err;

    if (broadcast->group->sm.state == GROUP_READY) {
        ask_all(broadcast);
    } else if (group_will_be_ready(broadcast->group)) {
        (void)deadline_set(broadcast->transfers->deadlines, &broadcast->poll, GROUP_POLL_NS);
    } else {
        (void)is_down(broadcast->group, &err);
        give_up(broadcast, &err);
    }
}

/* ---- messages and events at the root ---- */

static struct receiver *find_receiver(struct broadcast *broadcast, const struct remote *remote)
{
    for (uint32_t i = 0; i < broadcast->n_receivers; i++)
        if (broadcast->receivers[i].remote == remote)
            return &broadcast->receivers[i];
    return NULL;
}

static void on_answer(struct remote *remote, const Rdt__Pb__BroadcastResult *result)
{
    list_each_safe (struct broadcast, broadcast, &remote->transfers->broadcasts, link) {
        struct receiver *receiver = broadcast->number == result->broadcast ? find_receiver(broadcast, remote) : NULL;
        struct rdt_error why;
        if (!receiver || !receiver->asked || receiver->done)
            continue;
        receiver->done = true;
        if (result->status != RDT_OK) {
            (void)wire_error(result->status, 0, result->message, &why);
            rdt_error_prefix(&why, "node %s", remote->peer->name);
            receiver_failed(broadcast, receiver, &why);
        }
        settle(broadcast);
        return;
    }
}

void broadcasts_peer_up(struct remote *remote)
{
    list_each_safe (struct broadcast, broadcast, &remote->transfers->broadcasts, link) {
        struct receiver *receiver = find_receiver(broadcast, remote);
        if (!receiver || receiver->asked || receiver->done)
            continue;
        ask(broadcast, receiver);
        settle(broadcast);
    }
}

bool broadcasts_use_remote(struct remote *remote)
{
    list_each (struct broadcast, broadcast, &remote->transfers->broadcasts, link)
        if (find_receiver(broadcast, remote))
            return true;
    return false;
}

void broadcasts_peer_merged(struct remote *from, struct remote *into)
{
    list_each (struct broadcast, broadcast, &from->transfers->broadcasts, link) {
        struct receiver *receiver = find_receiver(broadcast, from);
        if (receiver)
            receiver->remote = into;
    }
    if (into->peer->state == PEER_UP)
        broadcasts_peer_up(into);
}

void broadcasts_on_group(struct transfers *transfers, struct group *group, enum group_change change)
{
    list_each_safe (struct broadcast, broadcast, &transfers->broadcasts, link) {
        struct rdt_error why;
        if (broadcast->group != group)
            continue;
        if (change == GROUP_OPENED) {
            deadline_unset(transfers->deadlines, &broadcast->poll);
            ask_all(broadcast);
        } else if (change == GROUP_GONE) {
            (void)rdt_error_set(&why, RDT_TRANSPORT, "group %s was taken down: %.200s", group->name,
                                group->why[0] ? group->why : "it is destroyed");
            give_up(broadcast, &why);
        }
    }
}

void broadcasts_close(struct transfers *transfers, const struct rdt_error *why)
{
    list_each_safe (struct broadcast, broadcast, &transfers->broadcasts, link)
        give_up(broadcast, why);
}

/* ---- the beginning ---- */

static enum rdt_status add_receivers(struct broadcast *broadcast, struct rdt_error *err)
{
    const struct group *group = broadcast->group;

    broadcast->receivers = calloc(group->n_members + 1u, sizeof *broadcast->receivers);
    if (!broadcast->receivers)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a broadcast to %u members", group->n_members);
    for (uint32_t i = 0; i < group->n_members; i++) {
        const uint8_t *node = group->members[i].node;
        uint32_t k = 0;
        while (k < broadcast->n_receivers && memcmp(broadcast->receivers[k].uuid, node, 16) != 0)
            k++;
        if (k == broadcast->n_receivers && memcmp(node, broadcast->transfers->node->uuid, 16) != 0)
            memcpy(broadcast->receivers[broadcast->n_receivers++].uuid, node, 16);
    }
    return RDT_OK;
}

static enum rdt_status check_group(const struct transfers *transfers, const struct owner *owner, const char *name,
                                   struct group **group_p, struct rdt_error *err)
{
    struct group *group = group_find(transfers->groups, owner, name);

    if (!group || !group_has(group, transfers->node->uuid, NULL, NULL))
        return rdt_error_set(err, RDT_NOT_FOUND, "this node has no member in a group \"%.64s\" of uid %u", name, owner->uid);
    if (group->sm.state != GROUP_READY && !group_will_be_ready(group))
        return is_down(group, err);
    *group_p = group;
    return RDT_OK;
}

static enum rdt_status check_object(const struct transfers *transfers, const struct owner *owner, const struct rdt_ref *ref,
                                    struct object **object_p, struct rdt_error *err)
{
    struct object *object;
    enum rdt_status status = object_table_find(transfers->objects, ref, owner, &object, err);

    if (status == RDT_AGAIN)
        return rdt_error_set(err, RDT_NOT_FOUND, "nobody has put object \"%s\", or it is not complete yet", ref->id);
    if (status != RDT_OK)
        return status;
    if (!owner_equal(&object->account->owner, owner))
        return rdt_error_set(err, RDT_DENIED, "object \"%s\" belongs to uid %u: only that user broadcasts it", ref->id,
                             object->account->owner.uid);
    if (!object_is_constant(object))
        return rdt_error_set(err, RDT_INVALID,
                             "object \"%s\" is live: later writes of its producer would not reach the replicas; put it with "
                             "RDT_PUT_SNAPSHOT (rdtctl put --snapshot)",
                             ref->id);
    if (object->kind == OBJECT_MANIFEST)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "object \"%s\" lists the parts of a version: broadcast these, which rdtctl shards shows", ref->id);
    for (uint32_t i = 0; i < object_n_places(object); i++)
        if (!region_is_host(object_region(object, i)))
            return rdt_error_set(err, RDT_UNSUPPORTED, "object \"%s\" is in %s memory: replicas are in host memory only",
                                 ref->id, object_region(object, i)->kind->name);
    *object_p = object;
    return RDT_OK;
}

enum rdt_status broadcast_start(struct transfers *transfers, struct account *account, const struct rdt_ref *ref,
                                const char *group_name, void (*on_done)(void *arg, const struct rdt_error *err), void *arg,
                                struct broadcast **broadcast_p, struct rdt_error *err)
{
    struct broadcast *broadcast;
    struct object *object = NULL;
    struct group *group = NULL;
    enum rdt_status status = check_group(transfers, &account->owner, group_name, &group, err);

    if (status == RDT_OK)
        status = check_object(transfers, &account->owner, ref, &object, err);
    if (status == RDT_OK)
        status = account_take(account, USAGE_TRANSFERS, 1, err);
    if (status != RDT_OK)
        return status;
    broadcast = calloc(1, sizeof *broadcast);
    if (!broadcast) {
        account_give(account, USAGE_TRANSFERS, 1);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a broadcast");
    }
    broadcast->transfers = transfers;
    broadcast->number = ids_next(&transfers->ids, account);
    broadcast->account = account_ref(account);
    broadcast->group = group;
    list_append(&transfers->broadcasts, &broadcast->link);
    broadcast->poll.on_passed = on_poll;
    if (object_peer_hold(object))
        broadcast->object = object;
    else
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to hold object \"%s\"", ref->id);
    if (status == RDT_OK) {
        object_ref(object, &broadcast->ref);
        status = add_receivers(broadcast, err);
    }
    /* In the next loop iteration, because the broadcast may fail at once. */
    if (status == RDT_OK && !deadline_set(transfers->deadlines, &broadcast->poll, 0))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a broadcast");
    if (status != RDT_OK || broadcast->n_receivers == 0 || object->bytes == 0) {
        broadcast_free(broadcast);
        *broadcast_p = NULL;
        return status;
    }
    broadcast->on_done = on_done;
    broadcast->arg = arg;
    *broadcast_p = broadcast;
    return RDT_OK;
}

void broadcast_leave(struct broadcast *broadcast, char what[192])
{
    (void)snprintf(what, 192, "the replica of a node was not complete in time");
    if (broadcast->group)
        (void)snprintf(what, 192, "group %.64s was not ready in time", broadcast->group->name);
    for (uint32_t i = broadcast->n_receivers; i-- > 0;)
        if (broadcast->receivers[i].remote && !broadcast->receivers[i].done)
            (void)snprintf(what, 192, "the replica on node %s was not complete in time",
                           broadcast->receivers[i].remote->peer->name);
    call_off(broadcast);
}

/* ---- this node as a member of another node's broadcast ---- */

struct broadcast_member {
    struct list link; /* in root->members */
    struct remote *root;
    uint64_t number;
    struct account *account; /* the owner's: a reference, charged for one transfer */
    struct rdt_ref ref;
    struct fetch *fetch;
};

static void report(struct remote *root, uint64_t number, const struct rdt_error *why, bool declined)
{
    Rdt__Pb__BroadcastResult word = RDT__PB__BROADCAST_RESULT__INIT;

    word.broadcast = number;
    word.declined = declined;
    if (why) {
        word.status = why->status;
        word.message = (char *)why->msg;
        log_debug("broadcast %llu of node %s: no replica here: %s", (unsigned long long)number, root->peer->name, why->msg);
    }
    (void)remote_send(root, RDT_PEER_BROADCAST_RESULT, &word.base, NULL); /* Link down: the root knows. */
}

static void member_free(struct broadcast_member *member)
{
    list_remove(&member->link);
    member->root->n_members--;
    account_give(member->account, USAGE_TRANSFERS, 1);
    account_unref(member->account);
    free(member);
}

/* The replica, if it is complete. */
static struct replica *complete_replica(const struct broadcast_member *member)
{
    struct replica *replica = replica_find(&member->root->transfers->replicas, member->ref.node, member->ref.generation);

    return replica && !replica->filling ? replica : NULL;
}

/* The fetch has ended. */
static void on_fetched(void *arg, const struct rdt_error *err)
{
    struct broadcast_member *member = arg;
    struct rdt_error dropped;

    if (!err && !complete_replica(member)) {
        (void)rdt_error_set(&dropped, RDT_LIMIT,
                            "the replica was dropped, because the object has ended or replicas_max is used up");
        err = &dropped;
    }
    report(member->root, member->number, err, false);
    member_free(member);
}

static struct broadcast_member *find_member(const struct remote *root, uint64_t number)
{
    list_each (struct broadcast_member, member, &root->members, link)
        if (member->number == number)
            return member;
    return NULL;
}

static enum rdt_status member_new(struct remote *root, const Rdt__Pb__GroupBroadcast *message,
                                  struct broadcast_member **member_p, struct group **group_p, struct rdt_error *err)
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
    if (!group || group->sm.state == GROUP_ENDING)
        return rdt_error_set(err, RDT_TRANSPORT, "the group has ended");
    if (!owner_equal(&group->owner, &owner) || !group_has(group, root->peer->uuid, NULL, NULL))
        return rdt_error_set(err, RDT_DENIED, "group \"%s\" has no member of uid %u on node %s", group->name, owner.uid,
                             root->peer->name);
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
    member->ref = ref;
    list_append(&root->members, &member->link);
    root->n_members++;
    *member_p = member;
    *group_p = group;
    return RDT_OK;
}

enum rdt_status broadcast_on_ask(struct remote *root, const Rdt__Pb__GroupBroadcast *message, struct rdt_error *err)
{
    struct broadcast_member *member = NULL;
    struct group *group = NULL;
    struct rdt_error why = {0};
    struct replica *replica;

    if (find_member(root, message->broadcast))
        return rdt_error_set(err, RDT_PROTOCOL, "it uses broadcast number %llu twice", (unsigned long long)message->broadcast);
    if (message->collective) { /* An older version: it asks again, without a broadcast of the transport's own. */
        report(root, message->broadcast, NULL, true);
        return RDT_OK;
    }
    if (member_new(root, message, &member, &group, &why) != RDT_OK) {
        report(root, message->broadcast, &why, false);
        return RDT_OK;
    }
    replica = complete_replica(member);
    if (replica && replica_is_fresh(replica)) {
        replica_used(replica);
        on_fetched(member, NULL);
    } else if (pull_for_node(&transfer_pull_kind, root, member->account, &member->ref, group->name, member->number, on_fetched,
                             member, &member->fetch, &why) != RDT_OK) {
        on_fetched(member, &why);
    }
    return RDT_OK;
}

void broadcast_on_result(struct remote *remote, const Rdt__Pb__BroadcastResult *result)
{
    struct broadcast_member *member = result->from_root ? find_member(remote, result->broadcast) : NULL;
    struct rdt_error why;

    (void)rdt_error_set(&why, RDT_CANCELLED, "the broadcast was cancelled");
    if (member)
        fetch_fail(member->fetch, &why);
    else if (!result->from_root)
        on_answer(remote, result);
}

void broadcasts_link_down(struct remote *remote, const struct rdt_error *why)
{
    while (!list_empty(&remote->members))
        fetch_fail(container_of(list_first(&remote->members), struct broadcast_member, link)->fetch, why);
    list_each_safe (struct broadcast, broadcast, &remote->transfers->broadcasts, link) {
        struct receiver *receiver = find_receiver(broadcast, remote);
        if (!receiver || receiver->done)
            continue;
        receiver_failed(broadcast, receiver, why);
        settle(broadcast);
    }
}
