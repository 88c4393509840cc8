/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: makes again what an earlier daemon recorded. A record that cannot be restored is removed, with a line in the log
 * that names it, and costs nothing else. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/objects/transit.h"
#include "daemon/recovery/recovery_impl.h"
#include "rdt_journal.pb-c.h"

#define MAX_LOGGED 20u /* records that are lost are logged one by one up to this many */

struct restoring {
    struct recovery *recovery;
    struct map *held;
    struct journal_slot **slots; /* [n_slots] */
    size_t n_slots, room;
    struct object **objects; /* [n_objects]: with the hold of a producer, which has ended */
    size_t n_objects;
};

static void lose(struct restoring *restoring, struct journal_slot *slot, const char *what, const struct rdt_error *why)
{
    struct recovery *recovery = restoring->recovery;

    if (++recovery->n_lost <= MAX_LOGGED)
        log_error("%s %016llx of the earlier daemon is lost: %s", what, (unsigned long long)slot->key, why->msg);
    journal_remove(recovery->journal, slot);
}

static bool owner_from(uint32_t uid, const char *tenant, struct owner *owner_p, struct rdt_error *err)
{
    *owner_p = (struct owner){.uid = uid};
    if (strlen(tenant) >= sizeof owner_p->tenant) {
        (void)rdt_error_set(err, RDT_INVALID, "its record is wrong: no tenant has such a name");
        return false;
    }
    text_copy(owner_p->tenant, sizeof owner_p->tenant, tenant);
    return true;
}

static struct account *account_from(struct recovery *recovery, uint32_t uid, const char *tenant, struct rdt_error *err)
{
    struct owner owner;
    struct account *account = owner_from(uid, tenant, &owner, err) ? account_get(recovery->accounts, &owner) : NULL;

    if (!account && err->status != RDT_INVALID)
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for its owner's account");
    return account;
}

/* ---- collecting records ---- */

static int compare_keys(const void *a, const void *b)
{
    uint64_t left = (*(struct journal_slot *const *)a)->key, right = (*(struct journal_slot *const *)b)->key;

    return (left > right) - (left < right);
}

/* All records of one kind, in the order of their keys. */
static enum rdt_status collect(struct restoring *restoring, enum record_kind kind, struct rdt_error *err)
{
    struct journal_slot *slot;
    uint64_t cursor = 0;

    restoring->n_slots = 0;
    while ((slot = journal_next(restoring->recovery->journal, &cursor))) {
        if (slot->kind != kind)
            continue;
        if (restoring->n_slots == restoring->room) {
            size_t room = restoring->room ? 2 * restoring->room : 1024;
            struct journal_slot **slots = realloc(restoring->slots, room * sizeof(struct journal_slot *));
            if (!slots)
                return rdt_error_set(err, RDT_NO_MEMORY, "no memory to read the journal");
            restoring->slots = slots;
            restoring->room = room;
        }
        restoring->slots[restoring->n_slots++] = slot;
    }
    if (restoring->n_slots > 0)
        qsort(restoring->slots, restoring->n_slots, sizeof(struct journal_slot *), compare_keys);
    return RDT_OK;
}

/* Decodes the payload; valid until arena_fini. */
static const void *unpack(struct arena *arena, const struct journal_slot *slot, const ProtobufCMessageDescriptor *type,
                          struct rdt_error *err)
{
    ProtobufCMessage *message;

    arena_init(arena, (size_t)16 * JOURNAL_MAX_BYTES);
    return arena_unpack(arena, type, slot->payload, slot->bytes, "its record", &message, err) == RDT_OK ? message : NULL;
}

/* ---- regions ---- */

/* The region has one reference, which release_unused takes away. */
static bool restore_region(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalRegion *record = unpack(&arena, slot, &rdt__pb__journal_region__descriptor, err);
    struct account *account = record ? account_from(recovery, record->uid, record->tenant, err) : NULL;
    int fd = account ? recovery_take_held(restoring->held, KEEPER_FIRST_REGION + slot->key) : -1;
    struct region *region = NULL;
    bool restored = false;

    if (account && fd < 0)
        (void)rdt_error_set(err, RDT_NOT_FOUND, "the keeper does not have its memory");
    if (fd >= 0) {
        struct region_image image = {.kind = record->memory,
                                     .id = slot->key,
                                     .bytes = record->bytes,
                                     .room = record->room,
                                     .offset = record->offset,
                                     .origin = (enum region_origin)record->origin};
        if (region_restore(recovery->regions, &image, fd, account, &region, err) != RDT_OK)
            (void)close(fd);
    }
    if (region) {
        restored = recovery_add_region(recovery, region, slot);
        if (!restored) {
            (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the region");
            region_unref(region);
        }
    }
    account_unref(account);
    arena_fini(&arena);
    return restored;
}

/* Every region has a reference of restore_region, which its objects have now taken over. One without any is dropped. */
static void release_unused(struct recovery *recovery)
{
    struct kept_region *kept;
    size_t cursor = 0;

    while ((kept = map_next(&recovery->kept_regions, &cursor))) {
        struct region *region = kept->region;
        if (kept->n_uses == 0) {
            (void)map_remove_u64(&recovery->kept_regions, region->id);
            journal_remove(recovery->journal, kept->slot);
            keeper_link_drop(&recovery->link, KEEPER_FIRST_REGION + region->id);
            recovery->kept_bytes -= region->room;
            region->kept = false;
            free(kept);
        }
        region_unref(region);
    }
}

/* ---- objects ---- */

/* Checks what the core checks of a client's put: the record may come from a daemon that had gone wild. */
static enum rdt_status check_object(const Rdt__Pb__JournalObject *record, const struct layout *layout, struct region **regions,
                                    struct rdt_error *err)
{
    struct region_span *spans = calloc(record->n_regions + 1, sizeof *spans);
    enum rdt_status status = spans ? region_spans(layout, spans, (uint32_t)record->n_regions + 1, err)
                                   : rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");

    for (size_t i = 0; status == RDT_OK && i < record->n_regions; i++)
        if (spans[i].hi > regions[i]->bytes)
            status = rdt_error_set(err, RDT_INVALID, "tensor %u ends beyond its region", spans[i].last);
    if (status == RDT_OK && spans[record->n_regions].hi > record->inline_data.len)
        status = rdt_error_set(err, RDT_INVALID, "tensor %u ends beyond the object's bytes", spans[record->n_regions].last);
    free(spans);
    if (status == RDT_OK &&
        (record->id.len == 0 || record->id.len > RDT_MAX_ID_BYTES || record->metadata.len > RDT_MAX_METADATA_BYTES ||
         record->inline_data.len > SLAB_MAX_BYTES || record->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL))
        status = rdt_error_set(err, RDT_INVALID, "its record is wrong");
    return status;
}

static enum rdt_status find_regions(struct recovery *recovery, const Rdt__Pb__JournalObject *record, struct region **regions_p,
                                    struct rdt_error *err)
{
    for (size_t i = 0; i < record->n_regions; i++) {
        struct kept_region *kept = map_get_u64(&recovery->kept_regions, record->regions[i]);
        if (!kept)
            return rdt_error_set(err, RDT_NOT_FOUND, "its region %llu is lost", (unsigned long long)record->regions[i]);
        regions_p[i] = kept->region;
    }
    return RDT_OK;
}

/* What is left of a time; at least 1. */
static int64_t left_of(uint64_t until_ns, uint64_t now_ns)
{
    return until_ns > now_ns ? (int64_t)(until_ns - now_ns < INT64_MAX ? until_ns - now_ns : INT64_MAX) : 1;
}

static const char *transport_name(struct recovery *recovery, const char *name)
{
    const struct transport *transport = name[0] != '\0' ? plugins_transport(recovery->plugins, name) : NULL;

    return transport ? transport->name : "";
}

static enum rdt_status put_again(struct restoring *restoring, struct journal_slot *slot, const Rdt__Pb__JournalObject *record,
                                 struct account *account, struct region **regions, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    uint64_t now_ns = uv_hrtime(), until_ns = slot->numbers[NUMBER_DETACHED_UNTIL];
    struct object_put put = {.account = account,
                             .id = record->id.data,
                             .id_bytes = record->id.len,
                             .metadata = record->metadata.data,
                             .metadata_bytes = record->metadata.len,
                             .regions = regions,
                             .n_regions = (uint32_t)record->n_regions,
                             .inline_data = record->inline_data.data,
                             .inline_bytes = record->inline_data.len,
                             .visibility = record->visibility,
                             .transport = transport_name(recovery, record->transport),
                             .generation = slot->key,
                             .snapshot = record->snapshot,
                             .sealed = true};
    struct object *object;
    enum rdt_status status = layout_from_wire(record->tensors, &put.layout, err);

    if (until_ns > 0)
        put.ttl_ns = until_ns == NEVER_BEGAN ? record->detached_ttl_ns : left_of(until_ns, now_ns);
    if (status == RDT_OK)
        status = check_object(record, put.layout, regions, err);
    if (status == RDT_OK)
        status = object_table_put(recovery->objects, &put, &object, err);
    if (status != RDT_OK) {
        free(put.layout);
        return status;
    }
    restoring->objects[restoring->n_objects++] = object;
    for (uint64_t i = 0; i < slot->numbers[NUMBER_TRANSIT_COUNT] && i < UINT16_MAX; i++)
        if (!transit_begin(object, left_of(slot->numbers[NUMBER_TRANSIT_UNTIL], now_ns)))
            break;
    return RDT_OK;
}

static bool restore_object(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalObject *record = unpack(&arena, slot, &rdt__pb__journal_object__descriptor, err);
    struct account *account = record ? account_from(recovery, record->uid, record->tenant, err) : NULL;
    struct region **regions = account ? malloc((record->n_regions + 1) * sizeof(struct region *)) : NULL;
    bool restored = false;

    if (account && !regions)
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    if (regions && find_regions(recovery, record, regions, err) == RDT_OK &&
        put_again(restoring, slot, record, account, regions, err) == RDT_OK) {
        restored = recovery_add_object(recovery, slot->key, record->regions, (uint32_t)record->n_regions, slot);
        for (size_t i = 0; restored && i < record->n_regions; i++)
            ((struct kept_region *)map_get_u64(&recovery->kept_regions, record->regions[i]))->n_uses++;
        restoring->objects[restoring->n_objects - 1]->kept = restored;
        if (!restored)
            (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to keep it");
    }
    free(regions);
    account_unref(account);
    arena_fini(&arena);
    return restored;
}

/* ---- names ---- */

static bool restore_name(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalName *record = unpack(&arena, slot, &rdt__pb__journal_name__descriptor, err);
    struct object *object = record ? index_get(&recovery->objects->by_generation, record->generation) : NULL;
    uint64_t until_ns = slot->numbers[NUMBER_NAME_UNTIL];
    struct name *name = NULL;
    struct owner owner;
    bool restored = false;

    if (record && !object) {
        (void)rdt_error_set(err, RDT_NOT_FOUND, "its object is lost");
    } else if (record && owner_from(record->uid, record->tenant, &owner, err)) {
        struct name_publish publish = {.id = record->id.data,
                                       .id_bytes = record->id.len,
                                       .object = object,
                                       .visibility = record->visibility,
                                       .ttl_ns = until_ns > 0 ? left_of(until_ns, uv_hrtime()) : 0};
        if (!owner_equal(&owner, &object->account->owner) || record->id.len == 0 || record->id.len > RDT_MAX_ID_BYTES)
            (void)rdt_error_set(err, RDT_INVALID, "its record is wrong");
        else
            restored = names_restore(recovery->names, &publish, slot->key, &name, err) == RDT_OK;
    }
    if (restored && name->record) /* the earlier daemon died between a new version's record and the end of the old one's */
        journal_remove(recovery->journal, name->record);
    else if (restored)
        recovery->n_names++;
    if (restored)
        name->record = slot;
    arena_fini(&arena);
    return restored;
}

/* ---- all of it ---- */

typedef bool (*restore_one)(struct restoring *, struct journal_slot *, struct rdt_error *);

static enum rdt_status restore_all(struct restoring *restoring, enum record_kind kind, const char *what, restore_one one,
                                   struct rdt_error *err)
{
    struct rdt_error why;
    enum rdt_status status = collect(restoring, kind, err);

    if (status == RDT_OK && kind == RECORD_OBJECT) {
        restoring->objects = calloc(restoring->n_slots + 1, sizeof(struct object *));
        if (!restoring->objects)
            status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to read the journal");
        else
            object_table_continue(restoring->recovery->objects, journal_state(restoring->recovery->journal)->generations,
                                  restoring->n_slots > 0 ? restoring->slots[0]->key : UINT64_MAX);
    }
    for (size_t i = 0; status == RDT_OK && i < restoring->n_slots; i++) {
        why = (struct rdt_error){0};
        if (!one(restoring, restoring->slots[i], &why))
            lose(restoring, restoring->slots[i], what, &why);
    }
    return status;
}

/* The producers' sessions have ended with the earlier daemon. Their holds go when the names have theirs. */
static void end_producers(struct restoring *restoring)
{
    for (size_t i = 0; i < restoring->n_objects; i++) {
        struct object *object = restoring->objects[i];
        if (object->detached) {
            object_producer_ended(object);
        } else {
            object->end = OBJECT_END_OWNER_DIED;
            object_drop(object);
        }
    }
}

enum rdt_status recovery_restore(struct recovery *recovery, struct map *held, struct rdt_error *err)
{
    struct restoring restoring = {.recovery = recovery, .held = held};
    uint64_t began_ns = uv_hrtime();
    enum rdt_status status;

    recovery->accounts->unlimited = true;
    status = restore_all(&restoring, RECORD_REGION, "region", restore_region, err);
    if (status == RDT_OK)
        status = restore_all(&restoring, RECORD_OBJECT, "object", restore_object, err);
    recovery->names->forgotten = journal_state(recovery->journal)->names_version;
    if (status == RDT_OK)
        status = restore_all(&restoring, RECORD_NAME, "version of a name", restore_name, err);
    recovery->accounts->unlimited = false;
    if (status == RDT_OK) {
        release_unused(recovery);
        recovery->n_restored = map_count(&recovery->kept_objects);
        log_info("restored %llu objects (%llu bytes of memory) and %llu names of the earlier daemon in %.1f ms%s",
                 (unsigned long long)recovery->n_restored, (unsigned long long)recovery->kept_bytes,
                 (unsigned long long)recovery->n_names, (double)(uv_hrtime() - began_ns) / 1e6,
                 recovery->n_lost > 0 ? "; some are lost, see above" : "");
        if (journal_damaged(recovery->journal) > 0)
            log_error("%llu records of the journal were damaged, and what they described is lost",
                      (unsigned long long)journal_damaged(recovery->journal));
    }
    if (status == RDT_OK)
        recovery_record(recovery);
    end_producers(&restoring);
    free(restoring.objects);
    free(restoring.slots);
    return status;
}
