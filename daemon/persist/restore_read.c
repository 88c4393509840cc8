/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that every kind of record needs to be restored: for its payload, the account of its owner, and the keeper's
 * descriptor. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/persist/recovery_impl.h"
#include "proto/wire_limits.h"

int recovery_take_held(struct map *held, uint64_t id)
{
    struct held *entry = map_remove_u64(held, id);
    int fd = entry ? entry->fd : -1;

    free(entry);
    return fd;
}

bool restore_check_id(uint64_t id, struct rdt_error *err)
{
    if (id > 0 && rdt_number_is_valid(id))
        return true;
    (void)rdt_error_set(err, RDT_INVALID, "its record is invalid: %llu is not a valid id", (unsigned long long)id);
    return false;
}

bool restore_owner(uint32_t uid, const char *tenant, struct owner *owner_p, struct rdt_error *err)
{
    *owner_p = (struct owner){.uid = uid};
    if (strlen(tenant) >= sizeof owner_p->tenant) {
        (void)rdt_error_set(err, RDT_INVALID, "its record is invalid: no tenant has such a name");
        return false;
    }
    text_copy(owner_p->tenant, sizeof owner_p->tenant, tenant);
    return true;
}

struct account *restore_account(struct recovery *recovery, uint32_t uid, const char *tenant, struct rdt_error *err)
{
    struct owner owner;
    struct account *account = restore_owner(uid, tenant, &owner, err) ? account_get(recovery->accounts, &owner) : NULL;

    if (!account && err->status != RDT_INVALID)
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for its owner's account");
    return account;
}

const void *restore_unpack(struct arena *arena, const struct journal_slot *slot, const ProtobufCMessageDescriptor *type,
                           struct rdt_error *err)
{
    ProtobufCMessage *message;

    arena_init(arena, (size_t)16 * JOURNAL_MAX_BYTES);
    return arena_unpack(arena, type, slot->payload, slot->bytes, "its record", &message, err) == RDT_OK ? message : NULL;
}
