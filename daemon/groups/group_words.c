/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of a group to other nodes, the nodes that it can reach, and the times that it waits. */
#include "daemon/groups/group_impl.h"

int64_t group_patience_ns(const struct group *group)
{
    return (int64_t)(group->groups->options->connect_timeout_ns + group->groups->options->peer_timeout_ns);
}

enum rdt_status group_send(const struct group *group, struct peer *peer, enum rdt_peer_message type,
                           const ProtobufCMessage *message)
{
    const struct groups_callbacks *callbacks = &group->groups->callbacks;
    struct rdt_error err;

    /* A link that is down is reported by groups_peer_down. */
    return callbacks->send(callbacks->arg, peer, type, message, &err);
}

void group_send_word(struct groups *groups, struct peer *peer, enum rdt_peer_message type, const uint8_t token[16],
                     uint32_t epoch, enum rdt_status status, const char *why, bool again)
{
    Rdt__Pb__GroupStatus word = RDT__PB__GROUP_STATUS__INIT;

    word.token = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)token};
    word.epoch = epoch;
    word.status = status;
    word.message = (char *)(uintptr_t)why;
    word.again = again;
    (void)groups->callbacks.send(groups->callbacks.arg, peer, type, &word.base, NULL);
}

void group_send_word_all(struct group *group, enum rdt_peer_message type, enum rdt_status status, const char *why, bool again)
{
    if (group->coordinator)
        group_send_word(group->groups, group->coordinator, type, group->token, group->epoch, status, why, again);
    for (uint32_t i = 0; i < group->n_nodes; i++)
        group_send_word(group->groups, group->nodes[i].peer, type, group->token, group->epoch, status, why, again);
}

void group_set_deadline(struct group *group, int64_t ns)
{
    group->deadline.on_passed = group->groups->course->on_deadline;
    (void)deadline_set(group->groups->deadlines, &group->deadline, ns);
}

struct group_node *group_node_of(const struct group *group, const struct peer *peer)
{
    for (uint32_t i = 0; i < group->n_nodes; i++)
        if (group->nodes[i].peer == peer)
            return &group->nodes[i];
    return NULL;
}

struct group_member *group_missing(const struct group *group)
{
    for (uint32_t i = 0; i < group->n_members; i++)
        if (group->members[i].peer && group->members[i].peer->state != PEER_UP)
            return &group->members[i];
    return NULL;
}

Rdt__Pb__GroupMember **group_list_members(const struct group *group, struct arena *arena)
{
    Rdt__Pb__GroupMember **list = arena_messages(arena, &rdt__pb__group_member__descriptor, group->n_members);

    for (uint32_t i = 0; list && i < group->n_members; i++) {
        struct group_member *from = &group->members[i];
        list[i]->client = from->client;
        list[i]->device = from->device;
        list[i]->node = (ProtobufCBinaryData){sizeof from->node, from->node};
        list[i]->address = from->address;
        list[i]->rank = from->rank;
    }
    return list;
}
