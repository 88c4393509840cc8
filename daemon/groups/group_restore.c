/* SPDX-License-Identifier: Apache-2.0 */
/* Restores the groups that an earlier daemon of this node coordinated. */
#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/groups/group_impl.h"
#include "daemon/persist/recovery.h"

static enum rdt_status restore(struct groups *groups, const struct kept_group *kept, struct rdt_error *err)
{
    const Rdt__Pb__JournalGroup *record = kept->group;
    struct owner owner = {.uid = record->uid};
    struct transport *transport;
    struct group *group;
    enum rdt_status status;

    if (record->token.len != sizeof group->token || strlen(record->tenant) >= sizeof owner.tenant || kept->epoch == 0)
        return rdt_error_set(err, RDT_INVALID, "its record is invalid");
    text_copy(owner.tenant, sizeof owner.tenant, record->tenant);
    status = group_check_new(groups, &owner, record->name, record->transport, record->n_members, &transport, err);
    if (status != RDT_OK)
        return status;
    group = group_new(groups, &owner, record->name, transport, (uint32_t)record->n_members, err);
    if (!group)
        return err->status;
    memcpy(group->token, record->token.data, sizeof group->token);
    group->epoch = kept->epoch;
    group->formed = group->restored = group->attempt.will_retry = true;
    group_set_state(group, GROUP_DOWN);
    text_copy(group->why, sizeof group->why, "its coordinator's daemon has restarted");
    for (uint32_t i = 0; i < group->n_members; i++)
        if (group_member_fits(record->members[i])) {
            group_member_take(&group->members[i], record->members[i]);
        } else {
            group_begin_end(group);
            return rdt_error_set(err, RDT_INVALID, "its record is invalid");
        }
    group->record = kept->record;
    recovery_take_group(group->account, kept);
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
            recovery_end_group(recovery, NULL, kept->record);
        }
        recovery_free_group(kept);
    }
}
