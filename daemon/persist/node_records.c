/* SPDX-License-Identifier: Apache-2.0 */
/* The records that rooms above need, which know other nodes: the holds of other nodes on objects of this node, and the groups
 * that this node coordinates. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/persist/recovery_impl.h"

/* ---- holds ---- */

void *recovery_keep_node_hold(struct recovery *recovery, struct account *account, const struct node_hold_image *image,
                              struct object *object)
{
    Rdt__Pb__JournalNodeHold record = RDT__PB__JOURNAL_NODE_HOLD__INIT;
    const uint64_t numbers[JOURNAL_NUMBERS] = {image->transit_until_ns};
    struct journal_slot *slot;

    if (!recovery->journal || recovery->frozen || !recovery_keep_held(recovery, object))
        return NULL;
    record.node = (ProtobufCBinaryData){sizeof image->node, (uint8_t *)image->node};
    record.boot_id = (ProtobufCBinaryData){sizeof image->boot_id, (uint8_t *)image->boot_id};
    record.address = (char *)image->address;
    record.uid = image->owner.uid;
    record.tenant = (char *)image->owner.tenant;
    record.generation = object->generation;
    slot = recovery_add_record(recovery, account, RECORD_NODE_HOLD, image->number, &record.base, 0, numbers);
    recovery->counts.holds += slot != NULL;
    return slot;
}

void recovery_node_hold_seen(struct recovery *recovery, void *record)
{
    if (record && !recovery->frozen)
        journal_set_number(record, 0, 0);
}

void recovery_end_node_hold(struct recovery *recovery, struct account *account, void *record)
{
    if (!record || recovery->frozen)
        return;
    recovery_remove_record(recovery, account, record);
    recovery->counts.holds--;
}

void recovery_free_node_hold(struct node_hold_record *hold)
{
    list_remove(&hold->link);
    if (hold->account) {
        account_give(hold->account, USAGE_HOLDS, 1);
        account_unref(hold->account);
    }
    object_drop(hold->object);
    free(hold);
}

static bool fill(struct node_hold_record *hold, const Rdt__Pb__JournalNodeHold *record, struct rdt_error *err)
{
    if (record->node.len != sizeof hold->image.node || record->boot_id.len != sizeof hold->image.boot_id ||
        strlen(record->address) >= sizeof hold->address) {
        (void)rdt_error_set(err, RDT_INVALID, "its record is invalid");
        return false;
    }
    memcpy(hold->image.node, record->node.data, sizeof hold->image.node);
    memcpy(hold->image.boot_id, record->boot_id.data, sizeof hold->image.boot_id);
    text_copy(hold->address, sizeof hold->address, record->address);
    hold->image.address = hold->address;
    return true;
}

/* An object that was freed by force has lost such holds. */
bool restore_node_hold(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalNodeHold *record = restore_unpack(&arena, slot, &rdt__pb__journal_node_hold__descriptor, err);
    struct object *object = record ? index_get(&recovery->objects->by_generation, record->generation) : NULL;
    struct account *account = object ? record_account(recovery->accounts, record->uid, record->tenant, err) : NULL;
    struct node_hold_record *hold = account ? calloc(1, sizeof *hold) : NULL;
    bool restored = false;

    if (record && !object)
        (void)rdt_error_set(err, RDT_NOT_FOUND, "its object is lost");
    else if (account && !hold)
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the hold");
    if (hold && !object->access.forced && fill(hold, record, err))
        restored = account_take(account, USAGE_HOLDS, 1, err) == RDT_OK;
    if (restored) {
        hold->image.number = slot->key;
        hold->image.transit_until_ns = slot->numbers[0] <= INT64_MAX ? slot->numbers[0] : 0;
        hold->image.owner = account->owner;
        hold->account = account_ref(account);
        hold->object = object;
        hold->record = slot;
        recovery_charge(account, slot);
        object_hold(object);
        list_append(&recovery->node_holds, &hold->link);
        recovery->counts.holds++;
    } else {
        free(hold);
    }
    account_unref(account);
    arena_fini(&arena);
    return restored;
}

/* ---- groups ---- */

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
