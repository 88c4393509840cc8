/* SPDX-License-Identifier: Apache-2.0 */
/* Reading: restores the records of the journal of an earlier daemon. A record that cannot be restored is removed, with a line
 * in the log that names it, and affects nothing else. */
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/objects/transit.h"
#include "daemon/persist/recovery_impl.h"
#include "daemon/persist/restore_guard.h"
#include "proto/grow.h"
#include "proto/plain_text.h"
#include "proto/wire_limits.h"

#define MAX_LOGGED 20u /* records that are lost are logged one by one up to this many */

static void lose(struct restoring *restoring, struct journal_slot *slot, const char *what, const struct rdt_error *why)
{
    struct recovery *recovery = restoring->recovery;

    if (why->status != RDT_OK && ++recovery->counts.lost <= MAX_LOGGED)
        log_error("%s %016llx of the earlier daemon is lost: %s", what, (unsigned long long)slot->key, why->msg);
    journal_remove(recovery->journal, slot);
}

/* ---- collecting records ---- */

/* The object does not have its id, and another one may have it. */
static bool is_unnamed(const struct journal_slot *slot)
{
    return restore_kind(slot) == RECORD_OBJECT && slot->flags & (OBJECT_IS_FORCED | OBJECT_TAKES_ID | OBJECT_LOST_ID);
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
        if (restore_kind(slot) != kind)
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
    struct account *account = record_account(restoring->recovery->accounts, uid, tenant, err);
    struct client *client = account ? map_get_u64(&restoring->recovery->sessions, session) : NULL;

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
    if (client && request != 0 && !map_get_u64(&client->session.answers, request))
        (void)map_put_u64(&client->session.answers, request, (void *)(uintptr_t)answer);
}

/* ---- regions ---- */

static struct rdt_export exported_of(const Rdt__Pb__JournalRegion *record)
{
    bool imported = record->n_chunks > 0 || record->handle.len > 0;
    int unnamed = record->handle.len > 0 ? RDT_IMPORT_LEGACY_IPC : RDT_IMPORT_VMM; /* the daemon's own, or an earlier record */
    struct rdt_export exported = {.kind = (enum rdt_import_kind)(record->handle_kind ? (int)record->handle_kind : unnamed),
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
    if (map_get_u64(&restoring->recovery->sessions, slot->numbers[NUMBER_REGION_SESSION]))
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
    struct client *client = map_get_u64(&restoring->recovery->sessions, region->client);

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
        if (!restored) {
            (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the region");
            region_unref(region);
        }
    }
    account_unref(account);
    arena_fini(&arena);
    return restored;
}

/* Every region has a reference of restore_region, which its users have now taken over. One without any is dropped. */
static void release_unused(struct recovery *recovery)
{
    struct region *region;
    size_t cursor = 0;

    while ((region = map_next(&recovery->kept_regions, &cursor))) {
        if (region->refs == 1)
            recovery_drop_region(recovery, region);
        else
            region_left(region);
        region_unref(region);
    }
}

/* ---- objects ---- */

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

static void lend_again(struct restoring *restoring, struct region **regions, const Rdt__Pb__ObjectRecord *record)
{
    for (size_t i = 0; i < (record->loaned ? record->n_regions : record->n_loans); i++) {
        uint32_t at = record->loaned ? (uint32_t)i : record->loans[i];
        struct region *region = at < record->n_regions ? regions[at] : NULL;
        if (region && region->state == REGION_USED && map_get_u64(&restoring->recovery->sessions, region->client))
            region_set_state(region, REGION_LOANED);
    }
}

/* What its record says beside what was put. */
static void finish_object(struct object *object, const struct journal_slot *slot, uint64_t now_ns)
{
    object->kind = slot->flags & OBJECT_IS_MANIFEST ? OBJECT_MANIFEST : OBJECT_PLAIN;
    object->access.took_key = slot->flags & OBJECT_TOOK_ID;
    if (slot->flags & OBJECT_IS_FORCED) {
        object_free(object, true, OBJECT_END_FREED);
        return;
    }
    if (slot->flags & (OBJECT_TAKES_ID | OBJECT_LOST_ID))
        object_leave_id(object, slot->flags & OBJECT_TAKES_ID);
    if (object->state == OBJECT_FILLING && !object->producer) /* it will never be put, and ends when everything is restored */
        return;
    if (slot->numbers[NUMBER_TRANSIT_COUNT] > 0)
        transit_restore(object, (uint32_t)slot->numbers[NUMBER_TRANSIT_COUNT],
                        (uint32_t)(slot->numbers[NUMBER_TRANSIT_COUNT] >> LEASES_SHIFT),
                        left_of(slot->numbers[NUMBER_TRANSIT_UNTIL], now_ns));
    /* The earlier daemon was killed after it had recorded that the object lost its id, and before the producer's hold ended. */
    if (slot->flags & OBJECT_LOST_ID && object->state == OBJECT_LIVE && object_has_producer_hold(object))
        object_free(object, false, OBJECT_END_FREED);
}

static bool put_again(struct restoring *restoring, struct journal_slot *slot, const Rdt__Pb__ObjectRecord *record,
                      struct account *account, struct region **regions, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    uint64_t now_ns = uv_hrtime(), until_ns = slot->numbers[NUMBER_DETACHED_UNTIL];
    struct client *client = map_get_u64(&restoring->recovery->sessions, record->session);
    struct object_put put = {.account = record->evictable ? account_owner(account) : account,
                             .eviction = record->evictable ? EVICTION_ALLOWED : EVICTION_NEVER,
                             .priority = record->priority,
                             .regions = regions,
                             .n_regions = (uint32_t)record->n_regions,
                             .inline_data = record->inline_data.data,
                             .inline_bytes = record->inline_data.len,
                             .promise = (enum object_promise)record->promise,
                             .loaned = record->loaned,
                             .pending = slot->flags & OBJECT_IS_PENDING};
    struct object *object;

    put.kept = !put.pending;
    if (client && owner_equal(&client->account->owner, &account->owner) && slot->flags & OBJECT_HAS_PRODUCER)
        put.producer = client;
    if (until_ns > 0)
        put.ttl_ns = until_ns == NEVER_BEGAN ? record->detached_ttl_ns : left_of(until_ns, now_ns);
    if (layout_from_wire(record->tensors, &put.layout, err) != RDT_OK)
        return false;
    if (record_restore_object(recovery->plugins, recovery->objects, record, &put, &object, err) != RDT_OK) {
        free(put.layout);
        return false;
    }
    note_answer(client, record->request, slot->key);
    lend_again(restoring, regions, record);
    object->record = slot;
    recovery->counts.objects++;
    finish_object(object, slot, now_ns);
    return true;
}

static bool restore_object(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct arena arena;
    Rdt__Pb__ObjectRecord record;
    bool fits = restore_read_object(&arena, slot, &record, err) && !index_get(&recovery->objects->by_generation, slot->key);
    struct account *account = fits ? account_for(restoring, record.session, record.uid, record.tenant, err) : NULL;
    struct region **regions = account ? malloc((record.n_regions + 1) * sizeof(struct region *)) : NULL;
    bool restored = false;

    if (account && !regions)
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    if (regions && find_regions(recovery, record.regions, record.n_regions, regions, err) == RDT_OK)
        restored = put_again(restoring, slot, &record, account, regions, err);
    free(regions);
    account_unref(account);
    arena_fini(&arena);
    return restored;
}

/* ---- names ---- */

/* The name has the record from now on. */
static void take_name(struct recovery *recovery, struct name *name, struct journal_slot *slot,
                      const Rdt__Pb__NameRecord *record)
{
    if (name->record) { /* the earlier daemon died between a new version's record and the end of the old one's */
        (void)recovery_write_published(recovery, name->record);
        recovery_remove_record(recovery, name->account, name->record);
    } else {
        recovery->counts.names++;
    }
    name->record = slot;
    recovery_charge(name->account, slot);
    journal_set_number(slot, NUMBER_NAME_SESSION, record->session); /* older daemons did not write them */
    journal_set_number(slot, NUMBER_NAME_REQUEST, record->request);
}

static bool publish_again(struct restoring *restoring, struct journal_slot *slot, const Rdt__Pb__NameRecord *record,
                          struct rdt_error *err)
{
    struct recovery *recovery = restoring->recovery;
    struct object *object = index_get(&recovery->objects->by_generation, record->generation);
    struct client *client = map_get_u64(&restoring->recovery->sessions, record->session);
    uint64_t until_ns = slot->numbers[NUMBER_NAME_UNTIL];
    struct name_publish publish = {.lease = record->lease ? client : NULL,
                                   .session = record->session,
                                   .request = record->request,
                                   .ttl_ns = until_ns > 0 ? left_of(until_ns, uv_hrtime()) : 0};
    struct name *name;

    if (record->lease && !client) /* its session ended a moment before the earlier daemon did */
        return false;
    if (!object) {
        (void)rdt_error_set(err, RDT_NOT_FOUND, "its object is lost");
        return false;
    }
    if (object->access.forced) /* the earlier daemon had not taken it from all of its names yet */
        return false;
    if (record_restore_name(recovery->names, record, object, &publish, &name, err) != RDT_OK)
        return false;
    take_name(recovery, name, slot, record);
    note_answer(client, record->request, slot->key);
    return true;
}

static bool restore_name(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct arena arena;
    Rdt__Pb__NameRecord record;
    bool restored = restore_read_name(&arena, slot, &record, err) && publish_again(restoring, slot, &record, err);

    arena_fini(&arena);
    return restored;
}

/* ---- all of it ---- */

typedef bool (*restore_one)(struct restoring *, struct journal_slot *, struct rdt_error *);

static void note_slot(void *arg, const void *slot)
{
    struct journal *journal = arg;

    journal_state(journal)->reading = slot ? journal_offset(journal, slot) : 0;
}

static bool restore_guarded(struct restoring *restoring, struct journal_slot *slot, restore_one one, struct rdt_error *err)
{
    const struct restore_guard guard = {
        .room = &restoring->recovery->regions->room, .note = note_slot, .arg = restoring->recovery->journal};
    uint64_t bytes = slot->bytes;
    bool restored;

    if (restore_guard_enter(&guard, slot, bytes, err) != RDT_OK)
        return false;
    restored = one(restoring, slot, err);
    restore_guard_leave(&guard, bytes);
    return restored;
}

static enum rdt_status restore_all(struct restoring *restoring, enum record_kind kind, const char *what, restore_one one,
                                   struct rdt_error *err)
{
    const struct journal_state *state = journal_state(restoring->recovery->journal);
    struct rdt_error why;
    enum rdt_status status = collect(restoring, kind, err);

    if (status == RDT_OK && kind == RECORD_OBJECT)
        object_table_continue(restoring->recovery->objects, state->oldest_generation, state->generations, least_key(restoring));
    for (size_t i = 0; status == RDT_OK && i < restoring->n_slots; i++) {
        why = (struct rdt_error){0};
        if (!restore_guarded(restoring, restoring->slots[i], one, &why))
            lose(restoring, restoring->slots[i], what, &why);
    }
    return status;
}

/* The earlier daemon died in the step in which these objects became live and took their ids. */
static void take_ids(struct recovery *recovery)
{
    struct object *object;
    struct rdt_error err;

    for (uint64_t at = 0; (object = index_next(&recovery->objects->by_generation, at, &at)); at++) {
        if (object->state != OBJECT_LIVE || object->access.key != KEY_TAKES)
            continue;
        if (object_prepare_id(object, &err) == RDT_OK)
            object_take_id(object);
        else
            log_error("object %016llx of the earlier daemon has no id any more: %s", (unsigned long long)object->generation,
                      err.msg);
    }
}

/* Takes the holds on the parts of versions again, while everything is held. */
static void restore_manifests(struct recovery *recovery)
{
    struct object *object;

    for (uint64_t at = 0; (object = index_next(&recovery->objects->by_generation, at, &at)); at++)
        if (object->kind == OBJECT_MANIFEST && object->state == OBJECT_LIVE)
            recovery->restore_manifest(recovery->manifest_arg, object);
}

static void say_restored(struct recovery *recovery, uint64_t began_ns)
{
    recovery->counts.restored = recovery->counts.objects;
    recovery->counts.restored_sessions = recovery->counts.sessions;
    log_info("restored %llu object%s (%llu bytes of memory), %llu name%s and %llu session%s of the earlier daemon in %.1f ms%s",
             (unsigned long long)recovery->counts.restored, text_plural(recovery->counts.restored),
             (unsigned long long)recovery->counts.bytes, (unsigned long long)recovery->counts.names,
             text_plural(recovery->counts.names), (unsigned long long)recovery->counts.sessions,
             text_plural(recovery->counts.sessions), (double)(uv_hrtime() - began_ns) / 1e6,
             recovery->counts.lost > 0 ? "; some are lost, see above" : "");
    if (journal_damaged(recovery->journal) > 0)
        log_error("%llu records of the journal were damaged, and what they described is lost",
                  (unsigned long long)journal_damaged(recovery->journal));
}

enum rdt_status recovery_restore(struct recovery *recovery, struct map *held, struct rdt_error *err)
{
    static const struct {
        enum record_kind kind;
        const char *what;
        restore_one one;
    } kinds[] = {{RECORD_SESSION, "session", restore_session},
                 {RECORD_REGION, "region", restore_region},
                 {RECORD_OBJECT, "object", restore_object},
                 {RECORD_NAME, "version of a name", restore_name},
                 {RECORD_PUBLISHED, "answer to a PUBLISH", restore_published},
                 {RECORD_HOLD, "hold", restore_hold},
                 {RECORD_REMOTE_HOLD, "hold without data", restore_remote_hold},
                 {RECORD_NODE_HOLD, "hold of another node", restore_node_hold},
                 {RECORD_GROUP, "group", restore_group}};
    struct restoring restoring = {.recovery = recovery, .held = held};
    uint64_t began_ns = uv_hrtime();
    enum rdt_status status = RDT_OK;

    recovery->frozen = true; /* what is restored has its records already */
    recovery_record(recovery);
    recovery->names->forgotten = journal_state(recovery->journal)->names_version;
    for (size_t i = 0; status == RDT_OK && i < sizeof kinds / sizeof kinds[0]; i++)
        status = restore_all(&restoring, kinds[i].kind, kinds[i].what, kinds[i].one, err);
    free(restoring.slots);
    if (status != RDT_OK)
        return status;
    restore_manifests(recovery);
    recovery->frozen = false;
    take_ids(recovery);
    say_restored(recovery, began_ns);
    release_unused(recovery);
    return RDT_OK;
}
