/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: the sessions of an earlier daemon, and their holds. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/objects/remote_hold.h"
#include "daemon/persist/recovery_impl.h"
#include "rdt_persist.pb-c.h"

static bool image_from(const Rdt__Pb__JournalSession *record, uint64_t id, struct session_image *image_p, struct rdt_error *err)
{
    *image_p = (struct session_image){.id = id,
                                      .owner.uid = record->uid,
                                      .gid = record->gid,
                                      .pid = record->pid,
                                      .started = record->started,
                                      .tensor_runs = record->tensor_runs};
    if (record->token_sha256.len != sizeof image_p->token_sha256 || strlen(record->tenant) >= sizeof image_p->owner.tenant ||
        strlen(record->name) >= sizeof image_p->name) {
        (void)rdt_error_set(err, RDT_INVALID, "its record is invalid");
        return false;
    }
    memcpy(image_p->token_sha256, record->token_sha256.data, sizeof image_p->token_sha256);
    text_copy(image_p->owner.tenant, sizeof image_p->owner.tenant, record->tenant);
    text_copy(image_p->name, sizeof image_p->name, record->name);
    return true;
}

bool restore_session(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalSession *record = restore_unpack(&arena, slot, &rdt__pb__journal_session__descriptor, err);
    struct client *client = NULL;
    struct session_image image;

    if (record && restore_check_id(slot->key, err) && image_from(record, slot->key, &image, err) &&
        !map_get_u64(&restoring->sessions, slot->key)) {
        client = recovery->restore_session(recovery->restore_arg, &image);
        if (!client || !map_put_u64(&restoring->sessions, slot->key, client) ||
            !map_put_u64(&recovery->sessions, slot->key, client))
            (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the session, or another session has the same token");
    }
    if (client && err->status == RDT_OK) {
        client->record = slot;
        recovery_charge(client->account, slot);
        client->lasting = &recovery->lasting;
        recovery->n_sessions++;
    }
    arena_fini(&arena);
    return client && err->status == RDT_OK;
}

/* The regions of a copy that the session holds; NULL: err says why. */
static struct region **regions_of(struct recovery *recovery, const Rdt__Pb__JournalHold *record, struct rdt_error *err)
{
    struct region **regions = malloc((record->n_regions + 1) * sizeof(struct region *));

    if (!regions)
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the hold");
    for (size_t i = 0; regions && i < record->n_regions; i++) {
        regions[i] = map_get_u64(&recovery->kept_regions, record->regions[i]);
        if (!regions[i]) {
            (void)rdt_error_set(err, RDT_NOT_FOUND, "its region %llu is lost", (unsigned long long)record->regions[i]);
            free(regions);
            return NULL;
        }
    }
    return regions;
}

bool restore_hold(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalHold *record = restore_unpack(&arena, slot, &rdt__pb__journal_hold__descriptor, err);
    struct client *client =
        record && restore_check_id(slot->key, err) ? map_get_u64(&restoring->sessions, record->session) : NULL;
    struct object *object = client ? index_get(&recovery->objects->by_generation, record->generation) : NULL;
    struct region **regions = NULL;
    struct hold *hold = NULL;

    if (client && record->generation != 0 && !object)
        (void)rdt_error_set(err, RDT_NOT_FOUND, "its object is lost");
    else if (client && record->generation == 0)
        regions = regions_of(recovery, record, err);
    if (object || regions) {
        hold = client_restore_hold(client, slot->key, object, regions, (uint32_t)record->n_regions);
        if (!hold)
            (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the hold, or there are two");
    }
    if (hold) {
        hold->record = slot;
        recovery_charge(client->account, slot);
        recovery->n_holds++;
    }
    free(regions);
    arena_fini(&arena);
    return hold;
}

/* The hold has ended before it was taken again. */
static void forget(void *far)
{
    struct far_record *record = far;

    list_remove(&record->link);
    free(record);
}

bool recovery_await_far_hold(struct recovery *recovery, struct client *client, uint64_t request_id, const Rdt__Pb__Ref *ref)
{
    struct remote_hold *hold = remote_hold_find(client, request_id);
    size_t bytes = protobuf_c_message_get_packed_size(&ref->base);
    struct far_record *far = malloc(sizeof *far + bytes);

    if (!far)
        return false;
    *far = (struct far_record){.client = client, .request_id = request_id, .ref_bytes = bytes};
    if (ref->node.len == sizeof far->node)
        memcpy(far->node, ref->node.data, sizeof far->node);
    (void)protobuf_c_message_pack(&ref->base, far->ref);
    list_append(&recovery->far_holds, &far->link);
    hold->far = far;
    hold->release_far = forget;
    return true;
}

/* An object that was freed by force leaves the hold without one. */
bool restore_remote_hold(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalRemoteHold *record = restore_unpack(&arena, slot, &rdt__pb__journal_remote_hold__descriptor, err);
    struct client *client = record ? map_get_u64(&restoring->sessions, record->session) : NULL;
    struct object *object = client ? index_get(&recovery->objects->by_generation, record->generation) : NULL;
    struct remote_hold *hold = NULL;

    if (client && remote_hold_take(client, slot->key, object, &hold, err) == RDT_OK) {
        hold->record = slot;
        recovery_charge(client->account, slot);
        recovery->n_holds++;
        if (record->ref)
            (void)recovery_await_far_hold(recovery, client, slot->key, record->ref);
    }
    arena_fini(&arena);
    return hold;
}
