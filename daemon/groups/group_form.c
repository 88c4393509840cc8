/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator of a group: brings the nodes of its members together, epoch by epoch. */
#include <stdlib.h>
#include <strings.h>

#include "daemon/base/text.h"
#include "daemon/groups/group_impl.h"

#define RETRY_NS 5000000000ll /* between attempts while nodes cannot be reached */

static enum rdt_status find_nodes(struct group *group, struct rdt_error *err)
{
    if (group->nodes)
        return RDT_OK;
    for (uint32_t i = 0; i < group->n_members; i++) {
        struct group_member *member = &group->members[i];
        memcpy(member->node, member->peer ? member->peer->uuid : group->groups->node->uuid, 16);
        text_copy(member->address, sizeof member->address, member->peer ? member->peer->address : group->groups->node->address);
    }
    group->nodes = calloc(group->n_members, sizeof *group->nodes);
    if (!group->nodes)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for group \"%s\"", group->name);
    for (uint32_t i = 0; i < group->n_members; i++) {
        uint32_t k = 0;
        while (k < group->n_nodes && group->nodes[k].peer != group->members[i].peer)
            k++;
        if (group->members[i].peer && k == group->n_nodes)
            group->nodes[group->n_nodes++].peer = group->members[i].peer;
    }
    return RDT_OK;
}

enum rdt_status group_check_clients(const struct group *group, struct rdt_error *err)
{
    const struct groups *groups = group->groups;

    for (uint32_t i = 0; i < group->n_members; i++) {
        const struct group_member *member = &group->members[i];
        if (memcmp(member->node, groups->node->uuid, 16) == 0 &&
            !groups->callbacks.has_client(groups->callbacks.arg, &group->owner, member->client))
            return rdt_error_set(err, RDT_NOT_FOUND, "member %u: uid %u has no client named \"%s\" on this node", i,
                                 group->owner.uid, member->client);
    }
    return RDT_OK;
}

static struct memory_device *find_device(const struct groups *groups, const char *uuid)
{
    list_each (const struct memory_kind, kind, plugins_memory_kinds(groups->plugins), link)
        for (unsigned i = 0; i < kind->n_devices; i++)
            if (strcasecmp(kind->devices[i].uuid, uuid) == 0)
                return &kind->devices[i];
    return NULL;
}

enum rdt_status group_check_devices(const struct group *group, struct rdt_error *err)
{
    for (uint32_t i = 0; i < group->n_members; i++) {
        const struct group_member *member = &group->members[i];
        const struct memory_device *device;
        if (member->device[0] == '\0' || memcmp(member->node, group->groups->node->uuid, 16) != 0)
            continue;
        device = find_device(group->groups, member->device);
        if (!device)
            return rdt_error_set(err, RDT_UNSUPPORTED, "member %u: this node has no device \"%s\" (rdtctl backends lists them)",
                                 i, member->device);
        if (!transport_moves(group->transport, device->kind->name))
            return rdt_error_set(err, RDT_UNSUPPORTED, "member %u: %s does not move %s memory, that of device \"%s\"", i,
                                 group->transport->name, device->kind->name, member->device);
    }
    return RDT_OK;
}

void group_check_ready(struct group *group)
{
    if (group->sm.state != GROUP_FORMING || !group->attempt.connected || group->attempt.suspicion.status != RDT_OK)
        return;
    for (uint32_t i = 0; i < group->n_nodes; i++)
        if (!group->nodes[i].ready)
            return;
    deadline_unset(group->groups->deadlines, &group->deadline);
    group_send_word_all(group, RDT_PEER_GROUP_READY, RDT_OK, "", false);
    group_set_state(group, GROUP_READY);
    group_notify_waiters(&group->forming, NULL);
}

Rdt__Pb__GroupOffer **group_list_offers(const struct group *group, bool here_only, struct arena *arena, size_t *n_p)
{
    Rdt__Pb__GroupOffer **list = arena_messages(arena, &rdt__pb__group_offer__descriptor, group->n_ranks);
    size_t n = 0;

    for (uint32_t i = 0; list && i < group->n_ranks; i++) {
        const struct group_rank *rank = &group->ranks[i];
        if (here_only && !rank->open)
            continue;
        list[n]->rank = i;
        list[n++]->blob = (ProtobufCBinaryData){rank->blob_bytes, rank->blob};
    }
    *n_p = n;
    return list;
}

void group_connect_here(struct group *group)
{
    struct rdt_error err = {0};

    if (group->n_open == 0)
        group_set_connected(group);
    else if (group_connect(group, &err) != RDT_OK)
        group_fail(group, err.status, "%s: %s", group->transport->name, err.msg);
}

static void commit(struct group *group)
{
    Rdt__Pb__GroupCommit message = RDT__PB__GROUP_COMMIT__INIT;
    struct arena arena;

    for (uint32_t i = 0; i < group->n_nodes; i++)
        if (!group->nodes[i].accepted)
            return;
    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    message.token = (ProtobufCBinaryData){sizeof group->token, group->token};
    message.epoch = group->epoch;
    message.offers = group_list_offers(group, false, &arena, &message.n_offers);
    for (uint32_t i = 0; message.offers && i < group->n_nodes; i++)
        (void)group_send(group, group->nodes[i].peer, RDT_PEER_GROUP_COMMIT, &message.base);
    arena_fini(&arena);
    if (message.offers)
        group_connect_here(group);
    else
        group_fail(group, RDT_NO_MEMORY, "no memory for the offers of %u ranks", group->n_ranks);
}

static enum rdt_status send_proposal(struct group *group, struct rdt_error *err)
{
    Rdt__Pb__GroupPropose message = RDT__PB__GROUP_PROPOSE__INIT;
    Rdt__Pb__Requester owner = RDT__PB__REQUESTER__INIT;
    struct arena arena;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    owner.tenant = group->owner.tenant;
    owner.uid = group->owner.uid;
    message.token = (ProtobufCBinaryData){sizeof group->token, group->token};
    message.name = group->name;
    message.owner = &owner;
    message.transport = (char *)(uintptr_t)group->transport->name;
    message.version = (char *)(uintptr_t)group->transport->version;
    message.epoch = group->epoch;
    message.first = !group->formed;
    message.members = group_list_members(group, &arena);
    message.n_members = group->n_members;
    for (uint32_t i = 0; message.members && i < group->n_nodes; i++)
        (void)group_send(group, group->nodes[i].peer, RDT_PEER_GROUP_PROPOSE, &message.base);
    arena_fini(&arena);
    return message.members ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory for group \"%s\"", group->name);
}

/* Sends the proposal once the links to all nodes are up, and so the identities of the nodes are known. */
void group_propose(struct group *group)
{
    struct rdt_error err = {0};
    enum rdt_status status;

    if (group->attempt.proposed || group_missing(group))
        return;
    group->attempt.proposed = true;
    status = find_nodes(group, &err);
    if (status == RDT_OK && !group->formed)
        status = group_check_devices(group, &err);
    if (status == RDT_OK)
        status = group_make_ranks(group, &err);
    if (status == RDT_OK && !group->formed)
        status = group_check_clients(group, &err);
    for (uint32_t i = 0; i < group->n_nodes; i++)
        group->nodes[i].accepted = group->nodes[i].ready = false;
    if (status == RDT_OK)
        status = group_open(group, &err);
    if (status == RDT_OK)
        status = send_proposal(group, &err);
    if (status != RDT_OK)
        group_fail(group, status, "%s", err.msg);
    else
        commit(group); /* at once, if there is no other node */
}

void group_begin(struct group *group)
{
    const struct groups_callbacks *callbacks = &group->groups->callbacks;

    if (group->sm.state == GROUP_DOWN) {
        /* Dials the missing nodes. A link that comes up, or this deadline, leads here again. */
        if (!group_find_peers(group)) {
            group_set_deadline(group, RETRY_NS);
            return;
        }
        if (group_missing(group)) {
            for (uint32_t i = 0; i < group->n_members; i++) {
                struct peer *peer = group->members[i].peer;
                if (peer && peer->state != PEER_UP)
                    (void)callbacks->find(callbacks->arg, group->members[i].node, group->members[i].address, group->account,
                                          &peer, NULL);
            }
            group->attempt.will_retry = false;
            group_set_deadline(group, RETRY_NS);
            return;
        }
        group_set_state(group, GROUP_FORMING);
    }
    group->epoch++;
    group_keep_epoch(group);
    group->attempt.suspicion.status = RDT_OK;
    group->attempt.proposed = false;
    group_set_deadline(group, group_patience_ns(group));
    group_propose(group);
}

bool group_is_name(const char *text, size_t most)
{
    size_t n = strnlen(text, most + 1);

    return n > 0 && n <= most;
}

bool group_member_fits(const Rdt__Pb__GroupMember *from)
{
    return group_is_name(from->client, RDT_MAX_NAME_BYTES) && strlen(from->device) <= RDT_MAX_NAME_BYTES &&
           strlen(from->address) <= RDT_MAX_ADDRESS_BYTES && from->node.len == 16;
}

void group_member_take(struct group_member *member, const Rdt__Pb__GroupMember *from)
{
    text_copy(member->client, sizeof member->client, from->client);
    text_copy(member->device, sizeof member->device, from->device);
    text_copy(member->address, sizeof member->address, from->address);
    memcpy(member->node, from->node.data, sizeof member->node);
}

static enum rdt_status take_members(struct group *group, const Rdt__Pb__GroupCreate *message, struct rdt_error *err)
{
    static const uint8_t no_uuid[16];
    struct groups *groups = group->groups;

    for (uint32_t i = 0; i < group->n_members; i++) {
        const Rdt__Pb__GroupMember *from = message->members[i];
        struct group_member *member = &group->members[i];
        struct peer *peer = NULL;
        bool named = from->node.len == 16;
        enum rdt_status status = RDT_OK;
        if (!group_is_name(from->client, RDT_MAX_NAME_BYTES) || strlen(from->device) > RDT_MAX_NAME_BYTES ||
            strlen(from->address) > RDT_MAX_ADDRESS_BYTES || (from->node.len != 0 && !named))
            return rdt_error_set(
                err, RDT_INVALID,
                "member %u of group \"%s\" must have the name of a client (1 to %u bytes), its node and its device", i,
                group->name, RDT_MAX_NAME_BYTES);
        if (named || from->address[0] != '\0')
            status = groups->callbacks.find(groups->callbacks.arg, named ? from->node.data : no_uuid, from->address,
                                            group->account, &peer, err);
        if (status == RDT_OK && peer && peer->state == PEER_BACKOFF)
            status = peer_away(peer, group->account, err);
        if (status != RDT_OK) {
            rdt_error_prefix(err, "member %u of group \"%s\"", i, group->name);
            return status;
        }
        text_copy(member->client, sizeof member->client, from->client);
        text_copy(member->device, sizeof member->device, from->device);
        member->peer = peer;
    }
    return RDT_OK;
}

enum rdt_status group_check_new(const struct groups *groups, const struct owner *owner, const char *name,
                                const char *transport_name, size_t n_members, struct transport **transport_p,
                                struct rdt_error *err)
{
    struct transport *transport = plugins_transport(groups->plugins, transport_name);
    char loaded[192];

    if (groups->closing)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (!group_is_name(name, RDT_MAX_NAME_BYTES))
        return rdt_error_set(err, RDT_INVALID, "a group's name must have 1 to %u bytes", RDT_MAX_NAME_BYTES);
    if (n_members < 2 || n_members > RDT_MAX_GROUP_MEMBERS)
        return rdt_error_set(err, n_members < 2 ? RDT_INVALID : RDT_LIMIT, "group \"%s\" has %zu members: it must have 2 to %u",
                             name, n_members, RDT_MAX_GROUP_MEMBERS);
    if (!transport) {
        plugins_transport_names(groups->plugins, loaded, sizeof loaded);
        return rdt_error_set(err, RDT_UNSUPPORTED, "transport \"%.64s\" is not loaded here; loaded: %s", transport_name,
                             loaded);
    }
    if (!transport->ops.group_create)
        return rdt_error_set(err, RDT_UNSUPPORTED, "transport %s needs no group: it connects any two nodes by itself",
                             transport->name);
    if (!transport->available)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s is not available: %s", transport->name, transport->why_not);
    if (group_find(groups, owner, name))
        return rdt_error_set(err, RDT_EXISTS, "uid %u already has a group \"%s\"", owner->uid, name);
    *transport_p = transport;
    return RDT_OK;
}

/* Ends a group of this name whose coordinator has forgotten it or cannot be reached, so that a new group may have the
 * name. */
void group_drop_orphan(struct groups *groups, const struct owner *owner, const char *name)
{
    struct group *group = group_find(groups, owner, name);

    if (group &&
        (group->orphan || (group->sm.state == GROUP_DOWN && group->coordinator && group->coordinator->state != PEER_UP)))
        group_begin_end(group);
}

enum rdt_status group_create(struct groups *groups, const struct owner *owner, const Rdt__Pb__GroupCreate *message,
                             struct group_waiter *waiter, struct group **group_p, struct rdt_error *err)
{
    struct transport *transport;
    struct group *group;
    enum rdt_status status;

    group_drop_orphan(groups, owner, message->name);
    status = group_check_new(groups, owner, message->name, message->transport, message->n_members, &transport, err);
    if (status != RDT_OK)
        return status;
    group = group_new(groups, owner, message->name, transport, (uint32_t)message->n_members, err);
    if (!group)
        return err->status;
    status = take_members(group, message, err);
    if (status != RDT_OK) {
        group->end.reason = *err;
        group_begin_end(group);
        return status;
    }
    *group_p = group;
    list_append(&group->forming, &waiter->link);
    /* From the loop, because the group may fail at once. */
    group_set_deadline(group, 0);
    return RDT_OK;
}

/* Stores the offers of ranks. from NULL: the offers may be of any node. */
enum rdt_status group_take_offers(struct group *group, const struct peer *from, Rdt__Pb__GroupOffer **offers, size_t n,
                                  struct rdt_error *err)
{
    for (size_t i = 0; i < n; i++) {
        struct group_rank *rank = offers[i]->rank < group->n_ranks ? &group->ranks[offers[i]->rank] : NULL;
        if (!rank || offers[i]->blob.len > RDT_GROUP_OFFER_MAX_BYTES || (from && memcmp(rank->node, from->uuid, 16) != 0))
            return rdt_error_set(err, RDT_PROTOCOL, "the offer for rank %u of group \"%s\" is not valid", offers[i]->rank,
                                 group->name);
        free(rank->blob);
        rank->blob = malloc(offers[i]->blob.len + 1);
        if (!rank->blob)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the offers of %zu ranks", n);
        if (offers[i]->blob.len > 0)
            memcpy(rank->blob, offers[i]->blob.data, offers[i]->blob.len);
        rank->blob_bytes = offers[i]->blob.len;
    }
    for (uint32_t i = 0; i < group->n_ranks; i++)
        if (!group->ranks[i].blob && (!from || memcmp(group->ranks[i].node, from->uuid, 16) == 0) && group->n_ranks > 1)
            return rdt_error_set(err, RDT_PROTOCOL, "there is no offer for rank %u of group \"%s\"", i, group->name);
    return RDT_OK;
}

enum rdt_status group_on_accept(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err)
{
    const Rdt__Pb__GroupAccept *message = from;
    struct group *group = group_forming_now(groups, &message->token, message->epoch);
    struct group_node *node = group && !group->coordinator ? group_node_of(group, peer) : NULL;
    enum rdt_status status;

    if (!node || node->accepted)
        return RDT_OK;
    status = group_take_offers(group, peer, message->offers, message->n_offers, err);
    if (status == RDT_NO_MEMORY)
        group_fail(group, status, "%s", err->msg);
    if (status != RDT_OK)
        return status == RDT_NO_MEMORY ? RDT_OK : status;
    node->accepted = true;
    commit(group);
    return RDT_OK;
}
