/* SPDX-License-Identifier: Apache-2.0 */
/* Slots of the journal: writes records there, which are charged to their owners, and reads them, also those of earlier
 * versions. Sends the descriptors that belong to them to the keeper, many in one packet, and takes them back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/memory/region.h"
#include "daemon/persist/recovery_impl.h"
#include "proto/wire_limits.h"

/* ---- descriptors ---- */

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

int recovery_take_held(struct map *held, uint64_t id)
{
    struct held *entry = map_remove_u64(held, id);
    int fd = entry ? entry->fd : -1;

    free(entry);
    return fd;
}

/* ---- writing ---- */

bool recovery_has_little(struct account *account)
{
    return !account || account_person(account)->used[USAGE_HEAP] <= JOURNAL_FILE_BYTES / 64;
}

static void warn_of_no_room(struct recovery *recovery, const struct account *account, enum record_kind kind)
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

    if (account)
        (void)snprintf(whose, sizeof whose, " of uid %u", account->owner.uid);
    (void)snprintf(
        text, sizeof text,
        "the journal has no room for the record %s%s, so that it will not survive a restart of rdtd (the last eighth of "
        "the journal is for users that have little there): free objects that have much metadata or many tensors",
        what[kind], whose);
    log_warn_rarely(&recovery->no_room, "recovery", text);
}

void recovery_charge(struct account *account, const struct journal_slot *slot)
{
    if (account)
        account_add(account_owner(account), USAGE_HEAP, journal_record_bytes(slot->bytes));
}

void recovery_remove_record(struct recovery *recovery, struct account *account, struct journal_slot *slot)
{
    uint64_t bytes = journal_record_bytes(slot->bytes);

    journal_remove(recovery->journal, slot);
    if (account)
        account_give(account_owner(account), USAGE_HEAP, bytes);
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
        warn_of_no_room(recovery, account, kind);
        return NULL;
    }
    (void)protobuf_c_message_pack(message, slot->payload);
    journal_commit(recovery->journal, slot, kind, key, flags, numbers ? numbers : none);
    recovery_charge(account, slot);
    return slot;
}

/* ---- reading ---- */

bool restore_check_id(uint64_t id, struct rdt_error *err)
{
    if (id > 0 && rdt_number_is_valid(id))
        return true;
    (void)rdt_error_set(err, RDT_INVALID, "its record is invalid: %llu is not a valid id", (unsigned long long)id);
    return false;
}

const void *restore_unpack(struct arena *arena, const struct journal_slot *slot, const ProtobufCMessageDescriptor *type,
                           struct rdt_error *err)
{
    ProtobufCMessage *message;

    arena_init(arena, (size_t)16 * JOURNAL_MAX_BYTES);
    return arena_unpack(arena, type, slot->payload, slot->bytes, "its record", &message, err) == RDT_OK ? message : NULL;
}

enum record_kind restore_kind(const struct journal_slot *slot)
{
    if (slot->kind == RECORD_OBJECT_V3)
        return RECORD_OBJECT;
    return slot->kind == RECORD_NAME_V3 ? RECORD_NAME : (enum record_kind)slot->kind;
}

/* ---- records of objects ---- */

/* The PUT stands for the object's properties. Its regions are those of the record, in this order. */
static bool from_put(struct arena *arena, const ProtobufCBinaryData *packed, Rdt__Pb__ObjectRecord *record_p,
                     struct rdt_error *err)
{
    ProtobufCMessage *message;
    const Rdt__Pb__Put *put;

    if (arena_unpack(arena, &rdt__pb__put__descriptor, packed->data, packed->len, "its PUT", &message, err) != RDT_OK)
        return false;
    put = (const Rdt__Pb__Put *)message;
    record_p->id = put->id;
    record_p->metadata = put->metadata;
    record_p->box_bytes = put->box_bytes;
    record_p->tensors = put->tensors;
    record_p->inline_data = put->inline_data;
    record_p->visibility = put->visibility;
    record_p->transport = put->transport;
    record_p->promise = object_promise_of(put->flags);
    record_p->loaned = put->n_loaned > 0 && put->n_loaned == put->n_regions;
    record_p->n_loans = put->n_loaned;
    record_p->loans = put->loaned;
    return true;
}

static bool object_of_v3(struct arena *arena, const struct journal_slot *slot, Rdt__Pb__ObjectRecord *record_p,
                         struct rdt_error *err)
{
    const Rdt__Pb__JournalObject *old = restore_unpack(arena, slot, &rdt__pb__journal_object__descriptor, err);

    if (!old)
        return false;
    rdt__pb__object_record__init(record_p);
    record_p->generation = slot->key;
    record_p->uid = old->uid;
    record_p->tenant = old->tenant;
    record_p->n_regions = old->n_regions;
    record_p->regions = old->regions;
    record_p->detached_ttl_ns = old->detached_ttl_ns;
    record_p->session = old->session;
    record_p->request = old->request;
    if (old->put.len > 0)
        return from_put(arena, &old->put, record_p, err);
    record_p->id = old->id;
    record_p->metadata = old->metadata;
    record_p->box_bytes = old->box_bytes;
    record_p->tensors = old->tensors;
    record_p->inline_data = old->inline_data;
    record_p->visibility = old->visibility;
    record_p->transport = old->transport;
    record_p->promise = old->immutable ? OBJECT_BY_WORD : old->snapshot ? OBJECT_SEALED : OBJECT_MAY_CHANGE;
    record_p->loaned = old->loaned;
    return true;
}

bool restore_read_object(struct arena *arena, const struct journal_slot *slot, Rdt__Pb__ObjectRecord *record_p,
                         struct rdt_error *err)
{
    const Rdt__Pb__ObjectRecord *record;

    if (slot->kind == RECORD_OBJECT_V3)
        return object_of_v3(arena, slot, record_p, err);
    record = restore_unpack(arena, slot, &rdt__pb__object_record__descriptor, err);
    if (record && record->generation == slot->key) {
        *record_p = *record;
        return true;
    }
    if (record)
        (void)rdt_error_set(err, RDT_INVALID, "its record is invalid: it has another key");
    return false;
}

/* ---- records of names ---- */

bool restore_read_name(struct arena *arena, const struct journal_slot *slot, Rdt__Pb__NameRecord *record_p,
                       struct rdt_error *err)
{
    const Rdt__Pb__NameRecord *record;
    const Rdt__Pb__JournalName *old;

    if (slot->kind == RECORD_NAME_V3) {
        old = restore_unpack(arena, slot, &rdt__pb__journal_name__descriptor, err);
        if (!old)
            return false;
        rdt__pb__name_record__init(record_p);
        record_p->uid = old->uid;
        record_p->tenant = old->tenant;
        record_p->id = old->id;
        record_p->version = slot->key;
        record_p->generation = old->generation;
        record_p->visibility = old->visibility;
        record_p->ttl_ns = old->ttl_ns;
        record_p->session = old->session;
        record_p->request = old->request;
        record_p->lease = old->lease;
        return true;
    }
    record = restore_unpack(arena, slot, &rdt__pb__name_record__descriptor, err);
    if (record && record->version == slot->key) {
        *record_p = *record;
        return true;
    }
    if (record)
        (void)rdt_error_set(err, RDT_INVALID, "its record is invalid: it has another key");
    return false;
}
