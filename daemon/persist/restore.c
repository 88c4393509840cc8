/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: restores the records of an earlier daemon. A record that cannot be restored is removed, with a line in the log
 * that names it, and affects nothing else. */
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/objects/transit.h"
#include "daemon/persist/recovery_impl.h"
#include "proto/boxes.h"
#include "proto/grow.h"
#include "proto/wire_limits.h"
#include "rdt_journal.pb-c.h"
#include "rdt_put_flags.h"

#define MAX_LOGGED 20u /* records that are lost are logged one by one up to this many */

static void lose(struct restoring *restoring, struct journal_slot *slot, const char *what, const struct rdt_error *why)
{
    struct recovery *recovery = restoring->recovery;

    if (why->status != RDT_OK && ++recovery->n_lost <= MAX_LOGGED)
        log_error("%s %016llx of the earlier daemon is lost: %s", what, (unsigned long long)slot->key, why->msg);
    journal_remove(recovery->journal, slot);
}

/* ---- collecting records ---- */

/* The object has no id any more, and a later one may have got it. */
static bool is_unnamed(const struct journal_slot *slot)
{
    return slot->kind == RECORD_OBJECT && slot->flags & OBJECT_IS_FORCED;
}

/* Objects without an id come first, because they have it for a moment. Generations do not say which object is older. A daemon
 * that is killed while it replaces a record leaves two records of one object; the pending one is older. */
static int compare_records(const void *a, const void *b)
{
    const struct journal_slot *left = *(struct journal_slot *const *)a, *right = *(struct journal_slot *const *)b;

    if (is_unnamed(left) != is_unnamed(right))
        return is_unnamed(left) ? -1 : 1;
    if (left->key != right->key)
        return left->key > right->key ? 1 : -1;
    return (int)(left->flags & OBJECT_IS_PENDING) - (int)(right->flags & OBJECT_IS_PENDING);
}

/* All records of one kind, in the order in which they are restored. */
static enum rdt_status collect(struct restoring *restoring, enum record_kind kind, struct rdt_error *err)
{
    struct journal_slot *slot, **slots;
    uint64_t cursor = 0;

    restoring->n_slots = 0;
    while ((slot = journal_next(restoring->recovery->journal, &cursor))) {
        if (slot->kind != kind)
            continue;
        slots = array_grow(restoring->slots, restoring->n_slots, &restoring->room, sizeof(struct journal_slot *));
        if (!slots)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to read the journal");
        restoring->slots = slots;
        restoring->slots[restoring->n_slots++] = slot;
    }
    if (restoring->n_slots > 0)
        qsort(restoring->slots, restoring->n_slots, sizeof(struct journal_slot *), compare_records);
    return RDT_OK;
}

static uint64_t least_key(const struct restoring *restoring)
{
    uint64_t least = UINT64_MAX;

    for (size_t i = 0; i < restoring->n_slots; i++)
        least = restoring->slots[i]->key < least ? restoring->slots[i]->key : least;
    return least;
}

/* A reference: the account of that session, if it is the owner's; else the owner's own. NULL: err says why. */
static struct account *account_for(struct restoring *restoring, uint64_t session, uint32_t uid, const char *tenant,
                                   struct rdt_error *err)
{
    struct account *account = restore_account(restoring->recovery, uid, tenant, err);
    struct client *client = account ? map_get_u64(&restoring->sessions, session) : NULL;

    if (!client || !owner_equal(&client->account->owner, &account->owner))
        return account;
    account_unref(account);
    return account_ref(client->account);
}

/* Notes the effect of the session's request; client NULL or request 0: it will not be repeated. Without memory, a repeated
 * PUT finds an object with its id, or puts another one. Of two records with one request, which only a faulty daemon writes,
 * the first counts. */
static void note_answer(struct client *client, uint64_t request, uint64_t answer)
{
    if (client && request != 0 && !map_get_u64(&client->resumed, request))
        (void)map_put_u64(&client->resumed, request, (void *)(uintptr_t)answer);
}

/* ---- regions ---- */

static struct rdt_export exported_of(const Rdt__Pb__JournalRegion *record)
{
    bool imported = record->n_chunks > 0 || record->handle.len > 0;
    struct rdt_export exported = {.kind = record->handle.len > 0 ? RDT_IMPORT_LEGACY_IPC : RDT_IMPORT_VMM,
                                  .offset = imported ? record->offset : 0,
                                  .n_fds = imported ? (uint32_t)record->n_chunks : 1,
                                  .chunk_bytes = imported ? record->chunks : &record->chunk_bytes};

    if (record->handle.len > 0 && record->handle.len <= sizeof exported.handle) {
        memcpy(exported.handle, record->handle.data, record->handle.len);
        exported.handle_bytes = record->handle.len;
    }
    return exported;
}

static struct region_image image_of(struct restoring *restoring, const struct journal_slot *slot,
                                    const Rdt__Pb__JournalRegion *record)
{
    struct region_image image = {.kind = record->memory,
                                 .device = record->device,
                                 .id = slot->key,
                                 .generation = slot->numbers[NUMBER_REGION_GENERATION],
                                 .bytes = slot->numbers[NUMBER_REGION_BYTES],
                                 .room = record->room,
                                 .offset = record->offset,
                                 .creator = record->creator,
                                 .origin = (enum region_origin)slot->flags};

    if (image.generation == 0) { /* of version 1 of the journal, or written by a faulty daemon */
        image.generation = 1;
        image.bytes = record->bytes;
        image.origin = (enum region_origin)record->origin;
    }
    if (map_get_u64(&restoring->sessions, slot->numbers[NUMBER_REGION_SESSION]))
        image.client = slot->numbers[NUMBER_REGION_SESSION];
    image.exported = exported_of(record);
    return image;
}

static void close_fds(int *take_fds, uint32_t n)
{
    for (uint32_t i = 0; take_fds && i < n; i++)
        (void)close(take_fds[i]);
    free(take_fds);
}

/* The session may name the region again. */
static bool give_to_session(struct restoring *restoring, struct region *region)
{
    struct client *client = map_get_u64(&restoring->sessions, region->client);

    if (!client)
        return true;
    if (!map_put_u64(&client->regions, region->id, region))
        return false;
    (void)region_ref(region);
    return true;
}

/* Takes the descriptors of the region from the keeper's. NULL: err says why. */
static int *take_fds(struct restoring *restoring, uint64_t region, uint32_t n, struct rdt_error *err)
{
    int *fds;
    uint32_t had = 0;

    if (n > RDT_EXPORT_MAX_FDS) {
        (void)rdt_error_set(err, RDT_INVALID, "its record is invalid: no region has %u descriptors", n);
        return NULL;
    }
    fds = malloc((n + 1u) * sizeof *fds);
    while (fds && had < n && (fds[had] = recovery_take_held(restoring->held, keeper_id(region, had))) >= 0)
        had++;
    if (fds && had == n)
        return fds;
    if (fds)
        (void)rdt_error_set(err, RDT_NOT_FOUND, "the keeper does not have its memory");
    else
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for %u descriptors", n);
    close_fds(fds, had);
    return NULL;
}

/* The region has one reference, which release_unused drops. */
static bool restore_region(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalRegion *record = restore_unpack(&arena, slot, &rdt__pb__journal_region__descriptor, err);
    struct account *account =
        record && restore_check_id(slot->key, err)
            ? account_for(restoring, slot->numbers[NUMBER_REGION_SESSION], record->uid, record->tenant, err)
            : NULL;
    struct region_image image = record ? image_of(restoring, slot, record) : (struct region_image){.id = slot->key};
    int *fds = account ? take_fds(restoring, slot->key, image.exported.n_fds, err) : NULL;
    struct region *region = NULL;
    bool restored = false;

    if (fds && region_restore(recovery->regions, &image, fds, image.exported.n_fds, account, &region, err) == RDT_OK)
        free(fds);
    else
        close_fds(fds, image.exported.n_fds);
    if (region) {
        restored = give_to_session(restoring, region) && recovery_add_region(recovery, region, slot);
        if (restored) {
            restoring->regions[restoring->n_regions++] = region;
        } else {
            (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the region");
            region_unref(region);
        }
    }
    account_unref(account);
    arena_fini(&arena);
    return restored;
}

/* Every region has a reference of restore_region, which its users have now taken over. One without any is dropped. */
static void release_unused(struct restoring *restoring)
{
    for (size_t i = 0; i < restoring->n_regions; i++) {
        struct region *region = restoring->regions[i];
        if (region->refs == 1)
            recovery_drop_region(restoring->recovery, region);
        region_unref(region);
    }
}

/* ---- objects ---- */

/* The content of a record of an object, whether it has the PUT or the object's own fields. */
struct object_record {
    const Rdt__Pb__TensorList *tensors;
    const uint32_t *loaned; /* [n_loaned] */
    size_t n_loaned;
    bool all_loaned;
};

/* Makes the checks of a client's put, because a faulty daemon may have written the record. */
static enum rdt_status check_object(const struct object_put *put, struct rdt_error *err)
{
    struct region_span *spans = calloc(put->n_regions + 1, sizeof *spans);
    enum rdt_status status = spans ? region_spans(put->layout, spans, put->n_regions + 1, err)
                                   : rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");

    for (uint32_t i = 0; status == RDT_OK && i < put->n_regions; i++)
        if (spans[i].hi > put->regions[i]->bytes)
            status = rdt_error_set(err, RDT_INVALID, "tensor %u ends beyond its region", spans[i].last);
    if (status == RDT_OK && spans[put->n_regions].hi > put->inline_bytes)
        status = rdt_error_set(err, RDT_INVALID, "tensor %u ends beyond the object's bytes", spans[put->n_regions].last);
    free(spans);
    if (status == RDT_OK && put->box_bytes > put->metadata_bytes)
        status = rdt_error_set(err, RDT_INVALID, "its record is invalid");
    if (status == RDT_OK && put->box_bytes > 0)
        status = boxes_check(put->metadata + put->metadata_bytes - put->box_bytes, put->box_bytes, put->layout, err);
    if (status == RDT_OK && (put->id_bytes > RDT_MAX_ID_BYTES || put->metadata_bytes > RDT_MAX_METADATA_BYTES ||
                             put->inline_bytes > SLAB_MAX_BYTES || (put->inline_bytes > 0 && put->n_regions > 0) ||
                             (unsigned)put->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL))
        status = rdt_error_set(err, RDT_INVALID, "its record is invalid");
    return status;
}

static enum rdt_status find_regions(struct recovery *recovery, const uint64_t *ids, size_t n, struct region **regions_p,
                                    struct rdt_error *err)
{
    for (size_t i = 0; i < n; i++) {
        regions_p[i] = map_get_u64(&recovery->kept_regions, ids[i]);
        if (!regions_p[i])
            return rdt_error_set(err, RDT_NOT_FOUND, "its region %llu is lost", (unsigned long long)ids[i]);
    }
    return RDT_OK;
}

/* The rest of a time; at least 1. */
static int64_t left_of(uint64_t until_ns, uint64_t now_ns)
{
    return until_ns > now_ns ? (int64_t)(until_ns - now_ns < INT64_MAX ? until_ns - now_ns : INT64_MAX) : 1;
}

static const char *transport_name(struct recovery *recovery, const char *name)
{
    const struct transport *transport = name[0] != '\0' ? plugins_transport(recovery->plugins, name) : NULL;

    return transport ? transport->name : "";
}

static void from_fields(struct recovery *recovery, const Rdt__Pb__JournalObject *record, struct object_put *put_p,
                        struct object_record *more_p)
{
    put_p->id = record->id.data;
    put_p->id_bytes = record->id.len;
    put_p->metadata = record->metadata.data;
    put_p->metadata_bytes = record->metadata.len;
    put_p->box_bytes = record->box_bytes;
    put_p->inline_data = record->inline_data.data;
    put_p->inline_bytes = record->inline_data.len;
    put_p->visibility = record->visibility;
    put_p->transport = transport_name(recovery, record->transport);
    put_p->promise = record->immutable ? OBJECT_BY_WORD : record->snapshot ? OBJECT_SEALED : OBJECT_MAY_CHANGE;
    put_p->loaned = record->loaned;
    *more_p = (struct object_record){.tensors = record->tensors, .all_loaned = record->loaned};
}

static bool from_put(struct recovery *recovery, struct arena *arena, const Rdt__Pb__JournalObject *record,
                     struct object_put *put_p, struct object_record *more_p, struct rdt_error *err)
{
    ProtobufCMessage *message;
    const Rdt__Pb__Put *put;

    if (arena_unpack(arena, &rdt__pb__put__descriptor, record->put.data, record->put.len, "its PUT", &message, err) != RDT_OK)
        return false;
    put = (const Rdt__Pb__Put *)message;
    put_p->id = put->id.data;
    put_p->id_bytes = put->id.len;
    put_p->metadata = put->metadata.data;
    put_p->metadata_bytes = put->metadata.len;
    put_p->box_bytes = put->box_bytes;
    put_p->inline_data = put->inline_data.data;
    put_p->inline_bytes = put->inline_data.len;
    put_p->visibility = put->visibility;
    put_p->transport = transport_name(recovery, put->transport);
    put_p->promise = object_promise_of(put->flags);
    put_p->loaned = put->n_loaned > 0 && put->n_loaned == put->n_regions;
    *more_p = (struct object_record){.tensors = put->tensors, .loaned = put->loaned, .n_loaned = put->n_loaned};
    return true;
}

static void lend_again(struct restoring *restoring, struct region **regions, uint32_t n, const struct object_record *more)
{
    for (size_t i = 0; i < (more->all_loaned ? n : more->n_loaned); i++) {
        uint32_t at = more->all_loaned ? (uint32_t)i : more->loaned[i];
        struct region *region = at < n ? regions[at] : NULL;
        if (region && region->state == REGION_USED && map_get_u64(&restoring->sessions, region->client))
            region_set_state(region, REGION_LOANED);
    }
}

/* The object gets a hold that end_restoring drops, in addition to its producer's. */
static void add_object(struct restoring *restoring, struct object *object, const struct journal_slot *slot, uint64_t now_ns)
{
    restoring->objects[restoring->n_objects++] = object;
    object->manifest = slot->flags & OBJECT_IS_MANIFEST;
    if (object_has_producer_hold(object))
        object_hold(object);
    if (slot->flags & OBJECT_IS_FORCED) {
        object_free(object, true, OBJECT_END_FREED);
        return;
    }
    if (object->state == OBJECT_FILLING && !object->producer) /* it will never be put, and end_restoring ends it */
        return;
    for (uint64_t i = 0; i < slot->numbers[NUMBER_TRANSIT_COUNT] && i < UINT16_MAX; i++)
        if (!transit_begin(object, left_of(slot->numbers[NUMBER_TRANSIT_UNTIL], now_ns)))
            break;
}

static struct object *put_again(struct restoring *restoring, struct journal_slot *slot, struct arena *arena,
                                const Rdt__Pb__JournalObject *record, struct account *account, struct region **regions,
                                struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    uint64_t now_ns = uv_hrtime(), until_ns = slot->numbers[NUMBER_DETACHED_UNTIL];
    struct client *client = map_get_u64(&restoring->sessions, record->session);
    struct object_put put = {.account = account,
                             .regions = regions,
                             .n_regions = (uint32_t)record->n_regions,
                             .generation = slot->key,
                             .pending = slot->flags & OBJECT_IS_PENDING};
    struct object_record more;
    struct object *object = NULL;
    enum rdt_status status = RDT_OK;

    if (record->put.len > 0 && !from_put(recovery, arena, record, &put, &more, err))
        return NULL;
    if (record->put.len == 0)
        from_fields(recovery, record, &put, &more);
    put.kept = !put.pending;
    if (client && owner_equal(&client->account->owner, &account->owner) && slot->flags & OBJECT_HAS_PRODUCER)
        put.producer = client;
    if (until_ns > 0)
        put.ttl_ns = until_ns == NEVER_BEGAN ? record->detached_ttl_ns : left_of(until_ns, now_ns);
    status = layout_from_wire(more.tensors, &put.layout, err);
    if (status == RDT_OK)
        status = check_object(&put, err);
    if (status == RDT_OK)
        status = object_table_put(recovery->objects, &put, &object, err);
    if (status != RDT_OK) {
        free(put.layout);
        return NULL;
    }
    note_answer(client, record->request, slot->key);
    lend_again(restoring, regions, put.n_regions, &more);
    object->record = slot;
    recovery->n_objects++;
    add_object(restoring, object, slot, now_ns);
    return object;
}

/* Checks the generation, and makes sure that no object of this daemon gets the same one. */
static bool check_generation(struct recovery *recovery, uint64_t generation, struct rdt_error *err)
{
    if (rdt_generation_is_valid(generation) && object_table_reserve(recovery->objects, generation))
        return true;
    (void)rdt_error_set(err, RDT_INVALID, "its record is invalid: no earlier daemon had this generation");
    return false;
}

static bool restore_object(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    const Rdt__Pb__JournalObject *record = restore_unpack(&arena, slot, &rdt__pb__journal_object__descriptor, err);
    bool twice = record && index_get(&recovery->objects->by_generation, slot->key);
    struct account *account = record && !twice && check_generation(recovery, slot->key, err)
                                  ? account_for(restoring, record->session, record->uid, record->tenant, err)
                                  : NULL;
    struct region **regions = account ? malloc((record->n_regions + 1) * sizeof(struct region *)) : NULL;
    bool restored = false;

    if (account && !regions)
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    if (regions && find_regions(recovery, record->regions, record->n_regions, regions, err) == RDT_OK)
        restored = put_again(restoring, slot, &arena, record, account, regions, err);
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
    const Rdt__Pb__JournalName *record = restore_unpack(&arena, slot, &rdt__pb__journal_name__descriptor, err);
    struct object *object = record ? index_get(&recovery->objects->by_generation, record->generation) : NULL;
    struct client *client = record ? map_get_u64(&restoring->sessions, record->session) : NULL;
    uint64_t until_ns = slot->numbers[NUMBER_NAME_UNTIL];
    struct name *name = NULL;
    struct owner owner;
    bool restored = false;

    if (record && !restore_check_id(slot->key, err)) {
        ; /* err says why */
    } else if (record && record->lease && !client) {
        ; /* its session ended a moment before the earlier daemon did */
    } else if (record && !object) {
        (void)rdt_error_set(err, RDT_NOT_FOUND, "its object is lost");
    } else if (record && restore_owner(record->uid, record->tenant, &owner, err)) {
        struct name_publish publish = {.id = record->id.data,
                                       .id_bytes = record->id.len,
                                       .object = object,
                                       .visibility = record->visibility,
                                       .lease = record->lease ? client : NULL,
                                       .session = record->session,
                                       .request = record->request,
                                       .ttl_ns = until_ns > 0 ? left_of(until_ns, uv_hrtime()) : 0};
        if (!owner_equal(&owner, &object->account->owner) || record->id.len == 0 || record->id.len > RDT_MAX_ID_BYTES ||
            (unsigned)record->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL || object->state != OBJECT_LIVE)
            (void)rdt_error_set(err, RDT_INVALID, "its record is invalid");
        else
            restored = names_restore(recovery->names, &publish, slot->key, &name, err) == RDT_OK;
    }
    if (restored && name->record) { /* the earlier daemon died between a new version's record and the end of the old one's */
        (void)recovery_write_published(recovery, name->record);
        recovery_remove_record(recovery, name->account, name->record);
    } else if (restored) {
        recovery->n_names++;
    }
    if (restored) {
        name->record = slot;
        recovery_charge(name->account, slot);
        journal_set_number(slot, NUMBER_NAME_SESSION, record->session); /* older daemons did not write them */
        journal_set_number(slot, NUMBER_NAME_REQUEST, record->request);
    }
    if (restored)
        note_answer(client, record->request, slot->key);
    arena_fini(&arena);
    return restored;
}

/* ---- all of it ---- */

typedef bool (*restore_one)(struct restoring *, struct journal_slot *, struct rdt_error *);

/* Room for all things of a kind. */
static bool make_room(struct restoring *restoring, enum record_kind kind)
{
    if (kind == RECORD_REGION)
        return (restoring->regions = calloc(restoring->n_slots + 1, sizeof(struct region *)));
    if (kind == RECORD_OBJECT)
        return (restoring->objects = calloc(restoring->n_slots + 1, sizeof(struct object *)));
    return true;
}

#define HEAP_FACTOR 3u /* a record that is decoded, and what is made of it, take so many times its bytes */

/* The kernel kills a daemon that takes more than its control group has, at this start and at each later one, so what does not
 * fit is lost, and the rest is not. The journal says which record is being read, in case that one ends the daemon. */
static bool restore_if_it_fits(struct restoring *restoring, struct journal_slot *slot, restore_one one, struct rdt_error *err)
{
    struct journal_state *state = journal_state(restoring->recovery->journal);
    struct memory_room *room = &restoring->recovery->regions->room;
    uint64_t bytes = (uint64_t)HEAP_FACTOR * slot->bytes;
    bool restored;

    if (memory_room_take(room, bytes, false, err) != RDT_OK)
        return false;
    state->reading = journal_offset(restoring->recovery->journal, slot);
    restored = one(restoring, slot, err);
    state->reading = 0;
    memory_room_taken(room, bytes);
    return restored;
}

static enum rdt_status restore_all(struct restoring *restoring, enum record_kind kind, const char *what, restore_one one,
                                   struct rdt_error *err)
{
    const struct journal_state *state = journal_state(restoring->recovery->journal);
    struct rdt_error why;
    enum rdt_status status = collect(restoring, kind, err);

    if (status == RDT_OK && !make_room(restoring, kind))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to read the journal");
    if (status == RDT_OK && kind == RECORD_OBJECT)
        object_table_continue(restoring->recovery->objects, state->oldest_generation, state->generations, least_key(restoring));
    for (size_t i = 0; status == RDT_OK && i < restoring->n_slots; i++) {
        why = (struct rdt_error){0};
        if (!restore_if_it_fits(restoring, restoring->slots[i], one, &why))
            lose(restoring, restoring->slots[i], what, &why);
    }
    return status;
}

/* Takes the holds on the parts of versions again, before end_restoring. */
static void restore_manifests(struct restoring *restoring)
{
    struct recovery *recovery = restoring->recovery;

    for (size_t i = 0; i < restoring->n_objects; i++)
        if (restoring->objects[i]->manifest && restoring->objects[i]->state == OBJECT_LIVE)
            recovery->restore_manifest(recovery->manifest_arg, restoring->objects[i]);
}

/* Drops the holds of add_object. An object that nobody else holds has lost its producer with the earlier daemon. A put that
 * has not ended never will if its session's record is gone: when a client ends, its session's record is removed first, and
 * the daemon may have been killed before the object ended. */
static void end_restoring(struct restoring *restoring)
{
    for (size_t i = 0; i < restoring->n_objects; i++) {
        struct object *object = restoring->objects[i];
        if (!object->producer && (object->detached || object->state == OBJECT_FILLING))
            object_producer_ended(object);
        else if (!object->producer && !object->forced)
            object->end = ((const struct journal_slot *)object->record)->flags & OBJECT_IS_FREED ? OBJECT_END_FREED
                                                                                                 : OBJECT_END_OWNER_DIED;
        object_drop(object);
    }
}

static enum rdt_status restore_kinds(struct restoring *restoring, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    enum rdt_status status = restore_all(restoring, RECORD_SESSION, "session", restore_session, err);

    if (status == RDT_OK)
        status = restore_all(restoring, RECORD_REGION, "region", restore_region, err);
    if (status == RDT_OK)
        status = restore_all(restoring, RECORD_OBJECT, "object", restore_object, err);
    recovery->names->forgotten = journal_state(recovery->journal)->names_version;
    if (status == RDT_OK)
        status = restore_all(restoring, RECORD_NAME, "version of a name", restore_name, err);
    if (status == RDT_OK)
        status = restore_all(restoring, RECORD_PUBLISHED, "answer to a PUBLISH", restore_published, err);
    if (status == RDT_OK)
        status = restore_all(restoring, RECORD_HOLD, "hold", restore_hold, err);
    if (status == RDT_OK)
        status = restore_all(restoring, RECORD_REMOTE_HOLD, "hold without data", restore_remote_hold, err);
    if (status == RDT_OK)
        status = restore_all(restoring, RECORD_NODE_HOLD, "hold of another node", restore_node_hold, err);
    if (status == RDT_OK)
        status = restore_all(restoring, RECORD_GROUP, "group", restore_group, err);
    return status;
}

enum rdt_status recovery_restore(struct recovery *recovery, struct map *held, struct rdt_error *err)
{
    struct restoring restoring = {.recovery = recovery, .held = held};
    uint64_t began_ns = uv_hrtime();
    enum rdt_status status;

    map_init(&restoring.sessions);
    recovery->accounts->unlimited = recovery->regions->restoring = true;
    recovery->frozen = true; /* what is restored has its records already */
    recovery_record(recovery);
    status = restore_kinds(&restoring, err);
    if (status == RDT_OK)
        restore_manifests(&restoring);
    recovery->accounts->unlimited = recovery->regions->restoring = false;
    if (status == RDT_OK) {
        recovery->frozen = false;
        recovery->n_restored = recovery->n_objects;
        recovery->n_restored_sessions = recovery->n_sessions;
        release_unused(&restoring);
        log_info(
            "restored %llu objects (%llu bytes of memory), %llu names and %llu sessions of the earlier daemon in %.1f ms%s",
            (unsigned long long)recovery->n_restored, (unsigned long long)recovery->kept_bytes,
            (unsigned long long)recovery->n_names, (unsigned long long)recovery->n_sessions,
            (double)(uv_hrtime() - began_ns) / 1e6, recovery->n_lost > 0 ? "; some are lost, see above" : "");
        if (journal_damaged(recovery->journal) > 0)
            log_error("%llu records of the journal were damaged, and what they described is lost",
                      (unsigned long long)journal_damaged(recovery->journal));
    }
    end_restoring(&restoring);
    map_fini(&restoring.sessions);
    free(restoring.regions);
    free(restoring.objects);
    free(restoring.slots);
    return status;
}
