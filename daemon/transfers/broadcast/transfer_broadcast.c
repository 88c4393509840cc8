/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of a broadcast at the root, from asking the other nodes to the answer. transfer_broadcast_move.c admits their pulls to
 * the broadcast, and moves the bytes of collective broadcasts. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/transfers/broadcast/transfer_broadcast.h"
#include "daemon/transfers/broadcast/transfer_broadcast_impl.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/replica_directory.h"
#include "daemon/transfers/serve/serve.h"
#include "wire_error.h"
#include "wire_ref.h"

#define BIT(state) (1u << (state))
#define GROUP_POLL_NS 200000000ll

static const struct sm_state states[] = {
    [BROADCAST_WAITING] = {"waiting", BIT(BROADCAST_ASKED) | BIT(BROADCAST_OVER)},
    [BROADCAST_ASKED] = {"asked", BIT(BROADCAST_ASKED) | BIT(BROADCAST_MOVING) | BIT(BROADCAST_OVER)},
    [BROADCAST_MOVING] = {"moving", BIT(BROADCAST_OVER)},
    [BROADCAST_OVER] = {"over", 0},
};

/* ---- the end ---- */

static void broadcast_free(struct broadcast *broadcast)
{
    assert(broadcast->n_ops == 0);
    for (uint32_t i = 0; i < broadcast->n_receivers; i++)
        if (broadcast->receivers[i].out)
            broadcast->receivers[i].out->broadcast = NULL;
    deadline_unset(broadcast->transfers->deadlines, &broadcast->deadline);
    list_remove(&broadcast->link);
    if (broadcast->plan)
        object_unpin(broadcast->object);
    if (broadcast->object)
        object_peer_drop(broadcast->object);
    account_give(broadcast->account, USAGE_TRANSFERS, 1);
    account_unref(broadcast->account);
    free(broadcast->source);
    free(broadcast->packed);
    free(broadcast->plan);
    free(broadcast->bases);
    free(broadcast->receivers);
    free(broadcast);
}

static void send_over(const struct broadcast *broadcast, const struct receiver *receiver)
{
    Rdt__Pb__BroadcastResult word = RDT__PB__BROADCAST_RESULT__INIT;

    word.broadcast = broadcast->number;
    word.status = RDT_CANCELLED;
    word.from_root = true;
    if (receiver->asked && !receiver->done)
        (void)peer_session_send(receiver->session, RDT_PEER_BROADCAST_RESULT, &word.base, NULL);
}

/* Fails the pull that was ready for a collective broadcast. */
static void drop_pull(struct receiver *receiver)
{
    struct serve *out = receiver->out;
    struct rdt_error err;

    if (!out)
        return;
    receiver->out = NULL;
    out->broadcast = NULL;
    (void)rdt_error_set(&err, RDT_TRANSPORT, "the broadcast was cancelled");
    serve_fail(out, &err);
}

/* Ends the round for the nodes that are not done. */
static void end_round(struct broadcast *broadcast)
{
    for (uint32_t i = 0; i < broadcast->n_receivers; i++) {
        send_over(broadcast, &broadcast->receivers[i]);
        drop_pull(&broadcast->receivers[i]);
        broadcast->receivers[i].asked = false;
    }
}

void broadcast_settle(struct broadcast *broadcast)
{
    bool all = true;

    if (broadcast->busy)
        return;
    for (uint32_t i = 0; i < broadcast->n_receivers; i++)
        all = all && broadcast->receivers[i].done;
    if (!all && broadcast->sm.state != BROADCAST_OVER)
        return;
    if (broadcast->on_done) {
        void (*on_done)(void *, const struct rdt_error *) = broadcast->on_done;
        broadcast->on_done = NULL;
        on_done(broadcast->arg, broadcast->failure.status != RDT_OK ? &broadcast->failure : NULL);
    }
    if (broadcast->n_ops == 0)
        broadcast_free(broadcast);
}

void broadcast_give_up(struct broadcast *broadcast, const struct rdt_error *why)
{
    if (broadcast->sm.state == BROADCAST_OVER)
        return;
    if (broadcast->failure.status == RDT_OK)
        broadcast->failure = *why;
    deadline_unset(broadcast->transfers->deadlines, &broadcast->deadline);
    sm_move(&broadcast->sm, BROADCAST_OVER);
    if (broadcast->n_ops > 0) /* The operations hold the object, and may not end by themselves. */
        (void)deadline_set(broadcast->transfers->deadlines, &broadcast->deadline,
                           (int64_t)broadcast->transfers->options->quiesce_grace_ns);
    end_round(broadcast);
    broadcast_settle(broadcast);
}

static void receiver_failed(struct broadcast *broadcast, struct receiver *receiver, const struct rdt_error *why)
{
    if (broadcast->failure.status == RDT_OK)
        broadcast->failure = *why;
    receiver->done = true;
    drop_pull(receiver);
}

static enum rdt_status is_down(const struct group *group, struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_PATH, "group %s is down: %s", group->name, group->why);
}

/* ---- a round ---- */

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
    message.group = (ProtobufCBinaryData){sizeof broadcast->group->token, broadcast->group->token};
    message.epoch = broadcast->epoch;
    message.ref = &ref;
    message.owner = &owner;
    message.collective = broadcast->collective;
    message.chunk_bytes = broadcast->transfers->options->chunk_bytes;
    receiver->asked = true;
    if (peer_session_send(receiver->session, RDT_PEER_BROADCAST, &message.base, &err) != RDT_OK)
        receiver_failed(broadcast, receiver, &err);
}

/* Asks all nodes that are not done. A node whose link is down is dialled, and asked when the link is up; or
 * it fails. */
static void ask_all(struct broadcast *broadcast)
{
    struct transfers *transfers = broadcast->transfers;

    for (uint32_t i = 0; i < broadcast->n_receivers; i++) {
        struct receiver *receiver = &broadcast->receivers[i];
        struct rdt_error err = {0};
        struct peer *peer;
        enum rdt_status status = RDT_OK;
        if (receiver->done)
            continue;
        if (!receiver->session) {
            status = peers_find(transfers->peers, receiver->uuid, receiver->address, NULL, &peer, &err);
            if (status == RDT_OK && peer->state == PEER_BACKOFF)
                status = peer_away(peer, broadcast->account, &err);
            if (status == RDT_OK && !(receiver->session = peer_session_get(transfers, peer)))
                status = rdt_error_set(&err, RDT_NO_MEMORY, "no memory for node %s", peer->name);
        }
        if (status != RDT_OK)
            receiver_failed(broadcast, receiver, &err);
        else if (receiver->session->peer->state == PEER_UP)
            ask(broadcast, receiver);
    }
}

/* Whether the transport's own broadcast can move the object: every node of the group takes part, and none has the object
 * yet. */
static bool can_be_collective(const struct broadcast *broadcast)
{
    const struct group *group = broadcast->group;
    struct group_rank *here = group_rank_here(group);
    struct list *cursor = NULL;
    struct plugin_conn conn;

    if (!group->transport->ops.post_broadcast || !here || !here->open || broadcast->n_receivers < 2 ||
        group->n_ranks != broadcast->n_receivers + 1 ||
        replica_directory_next(&broadcast->transfers->directory, broadcast->object->generation, &cursor))
        return false;
    plugin_group_conn(&here->vendor, here == group->ranks ? 1 : 0, &conn);
    return !plugin_conn_queue(&conn, "host", "");
}

static void restart_by_sends(struct broadcast *broadcast, const char *why);

/* Whether a collective round cannot succeed: all nodes must be ready, and one never will be. */
static bool cannot_succeed(const struct broadcast *broadcast)
{
    if (!broadcast->collective || broadcast->sm.state != BROADCAST_ASKED)
        return false;
    for (uint32_t i = 0; i < broadcast->n_receivers; i++)
        if (broadcast->receivers[i].done)
            return true;
    return false;
}

/* Starts the next round, of the nodes that are not done. */
static void next_round(struct broadcast *broadcast, bool collective)
{
    broadcast->collective = collective;
    broadcast->number = broadcast->transfers->next_id++;
    broadcast->busy = true;
    if (collective)
        (void)deadline_set(broadcast->transfers->deadlines, &broadcast->deadline,
                           (int64_t)broadcast->transfers->options->stall_timeout_ns / 2);
    else
        deadline_unset(broadcast->transfers->deadlines, &broadcast->deadline);
    ask_all(broadcast);
    broadcast->busy = false;
    if (cannot_succeed(broadcast))
        restart_by_sends(broadcast, broadcast->failure.msg);
    else
        broadcast_settle(broadcast);
}

static void restart_by_sends(struct broadcast *broadcast, const char *why)
{
    log_debug("broadcast %llu moves by sends: %s", (unsigned long long)broadcast->number, why);
    end_round(broadcast);
    next_round(broadcast, false);
}

static void begin(struct broadcast *broadcast)
{
    sm_move(&broadcast->sm, BROADCAST_ASKED);
    broadcast->epoch = broadcast->group->epoch;
    next_round(broadcast, can_be_collective(broadcast));
}

/* The group reports when it opens, but not that it stays down. */
static void check_group_state(struct broadcast *broadcast)
{
    struct rdt_error err;

    if (broadcast->group->sm.state == GROUP_READY) {
        begin(broadcast);
    } else if (group_will_be_ready(broadcast->group)) {
        (void)deadline_set(broadcast->transfers->deadlines, &broadcast->deadline, GROUP_POLL_NS);
    } else {
        (void)is_down(broadcast->group, &err);
        broadcast_give_up(broadcast, &err);
    }
}

static void on_deadline(struct deadline *deadline)
{
    struct broadcast *broadcast = container_of(deadline, struct broadcast, deadline);

    if (broadcast->sm.state == BROADCAST_WAITING) {
        check_group_state(broadcast);
        return;
    }
    if (broadcast->sm.state == BROADCAST_ASKED) {
        restart_by_sends(broadcast, "not all nodes were ready in time");
        return;
    }
    if (broadcast->sm.state == BROADCAST_OVER) {
        if (broadcast->group && broadcast->group->epoch == broadcast->epoch)
            group_break(broadcast->group, "the sends of a cancelled broadcast do not end");
        return;
    }
    if (broadcast->chunks_done == broadcast->chunks_seen && broadcast->n_ops > 0 && broadcast->group) {
        group_break(broadcast->group, "a broadcast in the group makes no progress");
        return;
    }
    broadcast->chunks_seen = broadcast->chunks_done;
    (void)deadline_set(broadcast->transfers->deadlines, &broadcast->deadline,
                       (int64_t)broadcast->transfers->options->stall_timeout_ns);
}

/* ---- messages and events of the other nodes ---- */

static struct receiver *find_receiver(struct broadcast *broadcast, const struct peer_session *session)
{
    for (uint32_t i = 0; i < broadcast->n_receivers; i++)
        if (broadcast->receivers[i].session == session)
            return &broadcast->receivers[i];
    return NULL;
}

struct broadcast *broadcast_find(const struct peer_session *session, uint64_t number, struct receiver **receiver_p)
{
    list_each (struct broadcast, broadcast, &session->transfers->broadcasts, link) {
        if (broadcast->number != number || broadcast->sm.state == BROADCAST_OVER)
            continue;
        *receiver_p = find_receiver(broadcast, session);
        return *receiver_p && (*receiver_p)->asked && !(*receiver_p)->done ? broadcast : NULL;
    }
    return NULL;
}

void broadcast_on_word(struct peer_session *session, const Rdt__Pb__BroadcastResult *word)
{
    struct receiver *receiver;
    struct broadcast *broadcast = broadcast_find(session, word->broadcast, &receiver);
    struct rdt_error why;
    bool collective;

    if (!broadcast)
        return;
    collective = broadcast->collective && broadcast->sm.state == BROADCAST_ASKED;
    if (word->declined && collective) {
        restart_by_sends(broadcast, session->peer->name);
        return;
    }
    if (word->status == RDT_OK && !word->declined) {
        receiver->done = true;
        if (receiver->out) { /* Its bytes came by the collective broadcast. */
            struct serve *out = receiver->out;
            receiver->out = NULL;
            out->broadcast = NULL;
            out->record.bytes_done = out->stream_bytes;
            text_copy(out->record.lanes, sizeof out->record.lanes, "broadcast");
            session->bytes_out += out->stream_bytes;
            serve_end(out);
        }
    } else {
        (void)wire_error(word->status == RDT_OK ? RDT_PROTOCOL : word->status, 0, word->message, &why);
        rdt_error_prefix(&why, "node %s", session->peer->name);
        receiver_failed(broadcast, receiver, &why);
    }
    if (collective) /* The other nodes cannot broadcast collectively without this one. */
        restart_by_sends(broadcast, session->peer->name);
    else
        broadcast_settle(broadcast);
}

void broadcasts_peer_up(struct peer_session *session)
{
    list_each_safe (struct broadcast, broadcast, &session->transfers->broadcasts, link) {
        struct receiver *receiver = find_receiver(broadcast, session);
        if (broadcast->sm.state != BROADCAST_ASKED || !receiver || receiver->asked || receiver->done)
            continue;
        ask(broadcast, receiver);
        if (cannot_succeed(broadcast))
            restart_by_sends(broadcast, broadcast->failure.msg);
        else
            broadcast_settle(broadcast);
    }
}

bool broadcasts_name_session(struct peer_session *session)
{
    list_for_each (node, &session->transfers->broadcasts) {
        if (find_receiver(container_of(node, struct broadcast, link), session))
            return true;
    }
    return false;
}

void broadcasts_peer_merged(struct peer_session *from, struct peer_session *into)
{
    list_for_each_safe (node, &from->transfers->broadcasts) {
        struct receiver *receiver = find_receiver(container_of(node, struct broadcast, link), from);
        if (receiver)
            receiver->session = into;
    }
    if (into->peer->state == PEER_UP)
        broadcasts_peer_up(into);
}

void broadcasts_link_down(struct peer_session *session, const struct rdt_error *why)
{
    list_each_safe (struct broadcast, broadcast, &session->transfers->broadcasts, link) {
        struct receiver *receiver = find_receiver(broadcast, session);
        bool collective = broadcast->collective && broadcast->sm.state == BROADCAST_ASKED;
        if (!receiver || receiver->done || broadcast->sm.state == BROADCAST_WAITING || broadcast->sm.state == BROADCAST_OVER)
            continue;
        receiver_failed(broadcast, receiver, why);
        if (collective)
            restart_by_sends(broadcast, why->msg);
        else
            broadcast_settle(broadcast);
    }
}

void broadcasts_on_group(struct transfers *transfers, struct group *group, enum group_change change)
{
    list_each_safe (struct broadcast, broadcast, &transfers->broadcasts, link) {
        struct rdt_error why;
        if (broadcast->group != group)
            continue;
        if (change == GROUP_OPENED && broadcast->sm.state == BROADCAST_WAITING) {
            begin(broadcast);
            continue;
        }
        if (change == GROUP_GONE || (change == GROUP_CLOSED && broadcast->sm.state != BROADCAST_WAITING))
            broadcast->group = NULL;
        if (change != GROUP_GONE && (change != GROUP_BROKEN || broadcast->sm.state == BROADCAST_WAITING))
            continue;
        (void)rdt_error_set(&why, RDT_TRANSPORT, "group %s was taken down: %.200s", group->name,
                            group->why[0] ? group->why : "it is destroyed");
        broadcast_give_up(broadcast, &why);
    }
}

void broadcasts_close(struct transfers *transfers, const struct rdt_error *why)
{
    list_for_each_safe (node, &transfers->broadcasts)
        broadcast_give_up(container_of(node, struct broadcast, link), why);
}

/* ---- the beginning ---- */

static enum rdt_status add_receivers(struct broadcast *broadcast, struct rdt_error *err)
{
    const struct group *group = broadcast->group;

    broadcast->receivers = calloc(group->n_members + 1u, sizeof *broadcast->receivers);
    if (!broadcast->receivers)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a broadcast to %u members", group->n_members);
    for (uint32_t i = 0; i < group->n_members; i++) {
        const struct group_member *member = &group->members[i];
        uint32_t k = 0;
        while (k < broadcast->n_receivers && memcmp(broadcast->receivers[k].uuid, member->node, 16) != 0)
            k++;
        if (k < broadcast->n_receivers || memcmp(member->node, broadcast->transfers->node->uuid, 16) == 0)
            continue;
        memcpy(broadcast->receivers[k].uuid, member->node, 16);
        broadcast->receivers[broadcast->n_receivers++].address = member->address;
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
                                    const struct group *group, struct object **object_p, struct rdt_error *err)
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
    if (!object->snapshot)
        return rdt_error_set(err, RDT_INVALID,
                             "object \"%s\" is live: later writes of its producer would not reach the replicas; put it with "
                             "RDT_PUT_SNAPSHOT (rdtctl put --snapshot)",
                             ref->id);
    for (uint32_t i = 0; i < object_n_places(object); i++)
        if (!region_is_host(object_region(object, i)))
            return rdt_error_set(err, RDT_UNSUPPORTED, "object \"%s\" is in %s memory: replicas are in host memory only",
                                 ref->id, object_region(object, i)->kind->name);
        else if (!transport_moves(group->transport, object_region(object, i)->kind->name))
            return rdt_error_set(err, RDT_UNSUPPORTED, "%s does not read %s memory", group->transport->name,
                                 object_region(object, i)->kind->name);
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
        status = check_object(transfers, &account->owner, ref, group, &object, err);
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
    broadcast->account = account_ref(account);
    broadcast->group = group;
    sm_init(&broadcast->sm, states, sizeof states / sizeof states[0], BROADCAST_WAITING);
    list_append(&transfers->broadcasts, &broadcast->link);
    broadcast->deadline.on_passed = on_deadline;
    if (object_peer_hold(object))
        broadcast->object = object;
    else
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to hold object \"%s\"", ref->id);
    if (status == RDT_OK) {
        object_ref(object, &broadcast->ref);
        status = add_receivers(broadcast, err);
    }
    if (status != RDT_OK || broadcast->n_receivers == 0 || object->bytes == 0) {
        broadcast_free(broadcast);
        *broadcast_p = NULL;
        return status;
    }
    broadcast->on_done = on_done;
    broadcast->arg = arg;
    *broadcast_p = broadcast;
    /* In the next loop iteration, because the broadcast may fail at once. */
    (void)deadline_set(transfers->deadlines, &broadcast->deadline, 0);
    return RDT_OK;
}

/* The node that the others wait for; in a collective round one that is not ready. */
static const struct receiver *slowest_receiver(const struct broadcast *broadcast)
{
    const struct receiver *late = NULL;

    for (uint32_t i = 0; i < broadcast->n_receivers; i++) {
        const struct receiver *receiver = &broadcast->receivers[i];
        if (!receiver->done && receiver->session && (!late || (late->out && !receiver->out)))
            late = receiver;
    }
    return late;
}

void broadcast_leave(struct broadcast *broadcast, char what[192])
{
    const struct receiver *late;
    struct rdt_error why;

    (void)snprintf(what, 192, "the replica of a node was not complete in time");
    if (broadcast->sm.state == BROADCAST_WAITING)
        (void)snprintf(what, 192, "group %.64s was not ready in time", broadcast->group ? broadcast->group->name : "");
    late = slowest_receiver(broadcast);
    if (late)
        (void)snprintf(what, 192, "the replica on node %s was not complete in time", late->session->peer->name);
    broadcast->on_done = NULL;
    (void)rdt_error_set(&why, RDT_CANCELLED, "no client waits for the broadcast any more");
    broadcast_give_up(broadcast, &why);
}
