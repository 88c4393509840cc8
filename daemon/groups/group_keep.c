/* SPDX-License-Identifier: Apache-2.0 */
/* The records of the groups that this node coordinates, which survive its daemon. */
#include <stdio.h>

#include "daemon/groups/group_impl.h"
#include "daemon/persist/recovery.h"

void group_keep(struct group *group)
{
    struct recovery *recovery = group->groups->recovery;
    Rdt__Pb__JournalGroup record = RDT__PB__JOURNAL_GROUP__INIT;
    struct arena arena;

    if (!recovery || group->coordinator || group->record)
        return;
    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    record.members = group_list_members(group, &arena);
    if (record.members) {
        record.token = (ProtobufCBinaryData){sizeof group->token, group->token};
        record.name = group->name;
        record.uid = group->owner.uid;
        record.tenant = group->owner.tenant;
        record.transport = (char *)(uintptr_t)group->transport->name;
        record.n_members = group->n_members;
        group->record = recovery_keep_group(recovery, group->account, &record, group->number, group->epoch);
    }
    arena_fini(&arena);
}

void group_keep_epoch(struct group *group)
{
    if (group->record)
        recovery_set_epoch(group->groups->recovery, group->record, group->epoch);
}

void group_unkeep(struct group *group)
{
    if (group->record)
        recovery_end_group(group->groups->recovery, group->account, group->record);
    group->record = NULL;
}

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
