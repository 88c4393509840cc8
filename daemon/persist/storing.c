/* SPDX-License-Identifier: Apache-2.0 */
/* Adds and removes records, which are charged to their owners, and sends descriptors to the keeper, many in one packet. */
#include <stdio.h>

#include "daemon/memory/region.h"
#include "daemon/persist/recovery_impl.h"

void recovery_store_end(struct recovery *recovery, struct storing *storing)
{
    if (storing->n > 0)
        keeper_link_store(&recovery->link, storing->ids, storing->fds, storing->n);
    storing->n = 0;
}

void recovery_store(struct recovery *recovery, struct storing *storing, uint64_t id, int fd)
{
    if (storing->n == KEEPER_MAX_IDS)
        recovery_store_end(recovery, storing);
    storing->ids[storing->n] = id;
    storing->fds[storing->n++] = fd;
}

void recovery_store_region(struct recovery *recovery, struct storing *storing, const struct region *region)
{
    const int *fds;
    uint32_t n;

    if (region_kept_fds(region, &fds, &n))
        for (uint32_t i = 0; i < n; i++)
            recovery_store(recovery, storing, keeper_id(region->id, i), fds[i]);
}

/* ---- records ---- */

/* The owner's, which things keep when their client has gone. */
struct account *recovery_owner_of(struct account *account)
{
    return account && account->client != 0 ? account->parent : account;
}

bool recovery_has_little(struct account *account)
{
    const struct account *owner = recovery_owner_of(account);

    return !owner || owner->used[USAGE_HEAP] <= JOURNAL_FILE_BYTES / 64;
}

static void warn_of_no_room(struct recovery *recovery, const struct account *owner, enum record_kind kind)
{
    static const char *const what[] = {[RECORD_REGION] = "of memory",
                                       [RECORD_OBJECT] = "of an object",
                                       [RECORD_NAME] = "of a name",
                                       [RECORD_SESSION] = "of a session",
                                       [RECORD_HOLD] = "of a hold",
                                       [RECORD_REMOTE_HOLD] = "of a hold",
                                       [RECORD_NODE_HOLD] = "of another node's hold",
                                       [RECORD_GROUP] = "of a group"};
    char text[320], whose[32] = "";

    if (owner)
        (void)snprintf(whose, sizeof whose, " of uid %u", owner->owner.uid);
    (void)snprintf(
        text, sizeof text,
        "the journal has no room for the record %s%s, so that it will not survive a restart of rdtd (the last eighth of "
        "the journal is for users that have little there): free objects that have much metadata or many tensors",
        what[kind], whose);
    log_warn_rarely(&recovery->no_room, "recovery", text);
}

void recovery_charge(struct account *account, const struct journal_slot *slot)
{
    if (recovery_owner_of(account))
        account_add(recovery_owner_of(account), USAGE_HEAP, journal_record_bytes(slot->bytes));
}

void recovery_remove_record(struct recovery *recovery, struct account *account, struct journal_slot *slot)
{
    uint64_t bytes = journal_record_bytes(slot->bytes);

    journal_remove(recovery->journal, slot);
    if (recovery_owner_of(account))
        account_give(recovery_owner_of(account), USAGE_HEAP, bytes);
}

struct journal_slot *recovery_add_record(struct recovery *recovery, struct account *account, enum record_kind kind,
                                         uint64_t key, const ProtobufCMessage *message, uint32_t flags, const uint64_t *numbers)
{
    static const uint64_t none[JOURNAL_NUMBERS];
    size_t bytes = protobuf_c_message_get_packed_size(message);
    struct journal_slot *slot = NULL;

    if (journal_has_room(recovery->journal, bytes, recovery_has_little(account)))
        slot = journal_begin(recovery->journal, bytes);
    if (!slot) {
        warn_of_no_room(recovery, recovery_owner_of(account), kind);
        return NULL;
    }
    (void)protobuf_c_message_pack(message, slot->payload);
    journal_commit(recovery->journal, slot, kind, key, flags, numbers ? numbers : none);
    recovery_charge(account, slot);
    return slot;
}
