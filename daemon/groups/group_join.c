/* SPDX-License-Identifier: Apache-2.0 */
/* The other nodes of a group, which take part when the coordinator proposes it. */

#include "daemon/groups/group_impl.h"

static void accept_proposal(struct group *group)
{
    Rdt__Pb__GroupAccept message = RDT__PB__GROUP_ACCEPT__INIT;
    struct arena arena;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    message.token = (ProtobufCBinaryData){sizeof group->token, group->token};
    message.epoch = group->epoch;
    message.offers = group_list_offers(group, true, &arena, &message.n_offers);
    if (message.offers)
        (void)group_send(group, group->coordinator, RDT_PEER_GROUP_ACCEPT, &message.base);
    arena_fini(&arena);
    if (!message.offers)
        group_fail(group, RDT_NO_MEMORY, "no memory for group \"%s\"", group->name);
}

void group_form_here(struct group *group, uint32_t epoch)
{
    struct rdt_error err = {0};

    if (group->sm.state == GROUP_DOWN)
        group_set_state(group, GROUP_FORMING);
    group->epoch = epoch;
    group->attempt.suspicion.status = RDT_OK;
    group->attempt.proposed = true;
    group_set_deadline(group, 2 * group_patience_ns(group)); /* the coordinator's own deadline passes first */
    if (group_open(group, &err) != RDT_OK)
        group_fail(group, err.status, "%s: %s", group->transport->name, err.msg);
    else
        accept_proposal(group);
}

static enum rdt_status check_proposal(struct groups *groups, struct peer *peer, const Rdt__Pb__GroupPropose *message,
                                      struct group **group_p, struct rdt_error *err)
{
    struct transport *transport;
    struct owner owner;
    struct group *group;
    enum rdt_status status = RDT_OK;

    if (!groups->callbacks.check_requester(groups->callbacks.arg, message->owner, &owner, err))
        return err->status;
    group_drop_orphan(groups, &owner, message->name);
    status = group_check_new(groups, &owner, message->name, message->transport, message->n_members, &transport, err);
    if (status == RDT_OK && strcmp(transport->version, message->version) != 0)
        status = rdt_error_set(err, RDT_UNSUPPORTED, "%s has version %s on this node, but %.32s on the coordinator",
                               transport->name, transport->version, message->version);
    if (status != RDT_OK)
        return status;
    for (size_t i = 0; i < message->n_members; i++)
        if (!group_member_fits(message->members[i]))
            return rdt_error_set(err, RDT_PROTOCOL, "member %zu of group \"%s\" cannot be read", i, message->name);
    group = group_new(groups, &owner, message->name, transport, (uint32_t)message->n_members, err);
    if (!group)
        return err->status;
    memcpy(group->token, message->token.data, sizeof group->token);
    group->coordinator = peer;
    for (uint32_t i = 0; i < group->n_members; i++)
        group_member_take(&group->members[i], message->members[i]);
    status = group_check_devices(group, err);
    if (status == RDT_OK)
        status = group_make_ranks(group, err);
    if (status == RDT_OK && !group_rank_here(group))
        status = rdt_error_set(err, RDT_PROTOCOL, "group \"%s\" has no member on this node", message->name);
    if (status == RDT_OK && message->first)
        status = group_check_clients(group, err);
    if (status == RDT_OK) {
        *group_p = group;
        return RDT_OK;
    }
    group->end.reason = *err;
    group_begin_end(group);
    return status;
}

enum rdt_status group_on_propose(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err)
{
    const Rdt__Pb__GroupPropose *message = from;
    struct group *group = group_by_token(groups, message->token.data, message->token.len);
    struct rdt_error why = {0};

    if (message->token.len != sizeof group->token)
        return rdt_error_set(err, RDT_PROTOCOL, "a group's token has %zu bytes, not 16", message->token.len);
    if (!group) {
        if (check_proposal(groups, peer, message, &group, &why) != RDT_OK)
            group_send_word(groups, peer, RDT_PEER_GROUP_FAILED, message->token.data, message->epoch, why.status, why.msg,
                            false);
        else
            group_form_here(group, message->epoch);
        return RDT_OK;
    }
    if (group->coordinator != peer)
        return rdt_error_set(err, RDT_PROTOCOL, "it proposes group \"%s\" but is not its coordinator", group->name);
    if (group->sm.state == GROUP_ENDING || message->epoch <= group->epoch)
        return RDT_OK;
    group->attempt.next_epoch = message->epoch;
    group->orphan = false; /* the coordinator's next daemon knows it */
    if (group->sm.state == GROUP_DOWN)
        groups->course->on_down(group);
    else if (group->sm.state != GROUP_CLOSING)
        group_take_down(group, "it is being formed again");
    return RDT_OK;
}

enum rdt_status group_on_commit(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err)
{
    const Rdt__Pb__GroupCommit *message = from;
    struct group *group = group_forming_now(groups, &message->token, message->epoch);
    enum rdt_status status;

    if (!group || group->coordinator != peer || group->attempt.connected)
        return RDT_OK;
    status = group_take_offers(group, NULL, message->offers, message->n_offers, err);
    if (status == RDT_NO_MEMORY)
        group_fail(group, status, "%s", err->msg);
    if (status != RDT_OK)
        return status == RDT_NO_MEMORY ? RDT_OK : status;
    group->attempt.proposed = false; /* only one commit in each epoch */
    group_connect_here(group);
    return RDT_OK;
}
