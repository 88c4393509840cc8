/* SPDX-License-Identifier: Apache-2.0 */
/* The groups that this node coordinates: writing and reading their records. */
#include <stdlib.h>

#include "daemon/persist/recovery_impl.h"

void *recovery_keep_group(struct recovery *recovery, struct account *account, const Rdt__Pb__JournalGroup *group,
                          uint64_t number, uint32_t epoch)
{
    const uint64_t numbers[JOURNAL_NUMBERS] = {epoch};

    if (!recovery->journal || recovery->frozen)
        return NULL;
    return recovery_add_record(recovery, account, RECORD_GROUP, number, &group->base, 0, numbers);
}

void recovery_set_epoch(struct recovery *recovery, void *record, uint32_t epoch)
{
    if (record && !recovery->frozen)
        journal_set_number(record, 0, epoch);
}

void recovery_take_group(struct account *account, const struct kept_group *kept)
{
    recovery_charge(account, kept->record);
}

void recovery_end_group(struct recovery *recovery, struct account *account, void *record)
{
    if (record && !recovery->frozen)
        recovery_remove_record(recovery, account, record);
}

void recovery_free_group(struct kept_group *group)
{
    list_remove(&group->link);
    rdt__pb__journal_group__free_unpacked(group->group, NULL);
    free(group);
}

/* groups/ checks the rest. */
bool restore_group(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct arena arena;
    const Rdt__Pb__JournalGroup *record = restore_unpack(&arena, slot, &rdt__pb__journal_group__descriptor, err);
    struct kept_group *group = record ? calloc(1, sizeof *group) : NULL;

    arena_fini(&arena); /* within its limits, so it may be unpacked for good */
    if (!record)
        return false;
    if (group)
        group->group = rdt__pb__journal_group__unpack(NULL, slot->bytes, slot->payload);
    if (!group || !group->group) {
        free(group);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the group");
        return false;
    }
    group->epoch = (uint32_t)slot->numbers[0];
    group->record = slot;
    list_append(&restoring->recovery->groups, &group->link);
    return true;
}
