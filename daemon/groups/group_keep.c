/* SPDX-License-Identifier: Apache-2.0 */
/* The groups that this node coordinates outlast its daemon: their records, and how the next daemon has them again. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/groups/group_impl.h"
#include "daemon/recovery/recovery.h"

/* ---- records ---- */

void group_keep(struct group *group)
{
    struct recovery *recovery = group->groups->recovery;
    Rdt__Pb__JournalGroup record = RDT__PB__JOURNAL_GROUP__INIT;
    Rdt__Pb__GroupMember *members, **list;

    if (!recovery || group->coordinator || group->record)
        return;
    members = calloc(group->n_members, sizeof *members);
    list = calloc(group->n_members, sizeof(Rdt__Pb__GroupMember *));
    if (members && list) {
        record.token = (ProtobufCBinaryData){sizeof group->token, group->token};
        record.name = group->name;
        record.uid = group->owner.uid;
        record.tenant = group->owner.tenant;
        record.transport = (char *)(uintptr_t)group->transport->name;
        for (uint32_t i = 0; i < group->n_members; i++) {
            rdt__pb__group_member__init(&members[i]);
            members[i].client = group->members[i].client;
            members[i].device = group->members[i].device;
            members[i].node = (ProtobufCBinaryData){16, group->members[i].node};
            members[i].address = group->members[i].address;
            list[i] = &members[i];
        }
        record.members = list;
        record.n_members = group->n_members;
        group->record = recovery_keep_group(recovery, &record, group->number, group->epoch);
    }
    free(members);
    free(list);
}

void group_keep_epoch(struct group *group)
{
    if (group->record)
        recovery_set_epoch(group->groups->recovery, group->record, group->epoch);
}

void group_unkeep(struct group *group)
{
    if (group->record)
        recovery_end_group(group->groups->recovery, group->record);
    group->record = NULL;
}

/* ---- the next daemon ---- */

bool group_find_peers(struct group *group)
{
    const struct groups_callbacks *callbacks = &group->groups->callbacks;
    struct rdt_error why;

    for (uint32_t i = 0; group->restored && i < group->n_members; i++) {
        struct group_member *member = &group->members[i];
        if (member->peer || memcmp(member->node, group->groups->node->uuid, 16) == 0)
            continue;
        if (callbacks->find(callbacks->arg, member->node, member->address, group->account, &member->peer, &why) != RDT_OK) {
            member->peer = NULL;
            (void)snprintf(group->why, sizeof group->why, "member %u cannot be reached since the restart: %.150s", i, why.msg);
            return false;
        }
    }
    group->restored = false;
    return true;
}

static bool take_member(struct group_member *member, const Rdt__Pb__GroupMember *from)
{
    if (!group_is_name(from->client, RDT_MAX_NAME_BYTES) || strlen(from->device) > RDT_MAX_NAME_BYTES ||
        strlen(from->address) > RDT_MAX_ADDRESS_BYTES || from->node.len != sizeof member->node)
        return false;
    text_copy(member->client, sizeof member->client, from->client);
    text_copy(member->device, sizeof member->device, from->device);
    text_copy(member->address, sizeof member->address, from->address);
    memcpy(member->node, from->node.data, sizeof member->node);
    return true;
}

static enum rdt_status restore(struct groups *groups, const struct kept_group *kept, struct rdt_error *err)
{
    const Rdt__Pb__JournalGroup *record = kept->group;
    struct owner owner = {.uid = record->uid};
    struct transport *transport;
    struct group *group;
    enum rdt_status status;

    if (record->token.len != sizeof group->token || strlen(record->tenant) >= sizeof owner.tenant || kept->epoch == 0)
        return rdt_error_set(err, RDT_INVALID, "its record is wrong");
    text_copy(owner.tenant, sizeof owner.tenant, record->tenant);
    status = group_check_new(groups, &owner, record->name, record->transport, record->n_members, &transport, err);
    if (status != RDT_OK)
        return status;
    group = group_new(groups, &owner, record->name, transport, (uint32_t)record->n_members, err);
    if (!group)
        return err->status;
    memcpy(group->token, record->token.data, sizeof group->token);
    group->epoch = kept->epoch;
    group->formed = group->restored = group->will_retry = true;
    group_set_state(group, GROUP_DOWN);
    text_copy(group->why, sizeof group->why, "its coordinator's daemon has restarted");
    for (uint32_t i = 0; i < group->n_members; i++)
        if (!take_member(&group->members[i], record->members[i])) {
            group_begin_end(group);
            return rdt_error_set(err, RDT_INVALID, "its record is wrong");
        }
    group->record = kept->record;
    group_set_deadline(group, 0);
    return RDT_OK;
}

void groups_restore(struct groups *groups)
{
    struct recovery *recovery = groups->recovery;
    struct rdt_error why;

    while (recovery->journal && !list_empty(&recovery->groups)) {
        struct kept_group *kept = container_of(list_first(&recovery->groups), struct kept_group, link);
        if (restore(groups, kept, &why) != RDT_OK) {
            log_error("group %.64s of the earlier daemon is lost: %s", kept->group->name, why.msg);
            recovery_end_group(recovery, kept->record);
        }
        recovery_free_group(kept);
    }
}
