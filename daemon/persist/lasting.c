/* SPDX-License-Identifier: Apache-2.0 */
/* Writing: everything that survives this process gets a record in the journal, and its descriptors are sent to the keeper. The
 * rooms that have these things say by struct lasting what changes. */
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/objects/detached.h"
#include "daemon/objects/remote_hold.h"
#include "daemon/objects/transit.h"
#include "daemon/persist/recovery_impl.h"
#include "wire_ref.h"

static uint64_t until(int64_t left_ns)
{
    return left_ns < 0 ? NEVER_BEGAN : uv_hrtime() + (uint64_t)left_ns;
}

/* ---- regions ---- */

bool recovery_add_region(struct recovery *recovery, struct region *region, struct journal_slot *slot)
{
    if (!map_put_u64(&recovery->kept_regions, region->id, region))
        return false;
    region->record = slot;
    recovery_charge(region->account, slot);
    recovery->counts.bytes += region->room;
    return true;
}

void recovery_drop_region(struct recovery *recovery, struct region *region)
{
    recovery_remove_record(recovery, region->account, region->record);
    for (uint32_t i = 0; i < region->n_fds; i++)
        keeper_link_drop(&recovery->link, keeper_id(region->id, i));
    (void)map_remove_u64(&recovery->kept_regions, region->id);
    recovery->counts.bytes -= region->room;
    region->record = NULL;
}

static void on_kept_end(void *arg, struct region *region)
{
    struct recovery *recovery = arg;

    if (!recovery->frozen)
        recovery_drop_region(recovery, region);
}

/* The numbers are independent of each other, so the order in which they are stored does not matter. */
static void refresh_region(const struct region *region, uint64_t session)
{
    const struct region_image image = region_image(region);

    journal_set_number(region->record, NUMBER_REGION_GENERATION, region->generation);
    journal_set_number(region->record, NUMBER_REGION_BYTES, image.bytes);
    journal_set_flags(region->record, image.origin);
    journal_set_number(region->record, NUMBER_REGION_SESSION, session);
}

static uint64_t session_of(const struct region *region)
{
    return region->record ? ((struct journal_slot *)region->record)->numbers[NUMBER_REGION_SESSION] : 0;
}

/* Borrows from the image. */
static void fill_device(const struct region_image *image, Rdt__Pb__JournalRegion *record_p)
{
    if (image->origin != REGION_IMPORTED) {
        record_p->chunk_bytes = image->exported.chunk_bytes[0];
        return;
    }
    record_p->handle_kind = image->exported.kind;
    record_p->offset = image->exported.offset;
    record_p->chunks = (uint64_t *)image->exported.chunk_bytes;
    record_p->n_chunks = image->exported.n_fds;
    record_p->handle = (ProtobufCBinaryData){image->exported.handle_bytes, (uint8_t *)image->exported.handle};
}

/* Writes a record of the region as it is now. false: it cannot be kept. */
static bool keep_region(struct recovery *recovery, struct region *region, uint64_t session)
{
    struct region_image image = region_image(region);
    Rdt__Pb__JournalRegion record = RDT__PB__JOURNAL_REGION__INIT;
    const uint64_t numbers[JOURNAL_NUMBERS] = {[NUMBER_REGION_GENERATION] = region->generation,
                                               [NUMBER_REGION_SESSION] = session,
                                               [NUMBER_REGION_BYTES] = image.bytes};
    struct storing storing = {.n = 0};
    struct journal_slot *slot;
    const int *fds;
    uint32_t n_fds;

    if (region->record) {
        refresh_region(region, session);
        return true;
    }
    if (!region_kept_fds(region, &fds, &n_fds))
        return false;
    record.memory = (char *)image.kind;
    record.uid = region->account->owner.uid;
    record.tenant = region->account->owner.tenant;
    record.origin = image.origin;
    record.bytes = image.bytes;
    record.room = image.room;
    record.offset = image.offset;
    record.device = (char *)image.device;
    record.creator = image.creator;
    if (image.device[0] != '\0')
        fill_device(&image, &record);
    recovery_store_region(recovery, &storing, region); /* a record never refers to memory that the keeper has not been sent */
    recovery_store_end(recovery, &storing);
    slot = recovery_add_record(recovery, NULL, RECORD_REGION, region->id, &record.base, image.origin, numbers);
    if (slot && recovery_add_region(recovery, region, slot))
        return true;
    if (slot)
        journal_remove(recovery->journal, slot);
    for (uint32_t i = 0; i < n_fds; i++)
        keeper_link_drop(&recovery->link, keeper_id(region->id, i));
    return false;
}

static void on_region(void *arg, struct client *client, struct region *region)
{
    struct recovery *recovery = arg;

    if (!recovery->frozen && !keep_region(recovery, region, client->id))
        log_debug("region %llu of client %llu will not survive a restart", (unsigned long long)region->id,
                  (unsigned long long)client->id);
}

static void on_region_released(void *arg, struct region *region)
{
    struct recovery *recovery = arg;

    if (region->record && !recovery->frozen)
        journal_set_number(region->record, NUMBER_REGION_SESSION, 0);
}

/* ---- objects ---- */

static void object_numbers(const struct object *object, uint64_t *numbers_p)
{
    unsigned leases = 0;
    int64_t left_ns;

    numbers_p[NUMBER_DETACHED_UNTIL] = object->survives.detached ? until(detached_left_ns(object)) : 0;
    numbers_p[NUMBER_TRANSIT_COUNT] = object->survives.in_transit ? transit_count(object, &leases, &left_ns) : 0;
    numbers_p[NUMBER_TRANSIT_UNTIL] = numbers_p[NUMBER_TRANSIT_COUNT] > 0 ? until(left_ns) : 0;
    numbers_p[NUMBER_TRANSIT_COUNT] |= (uint64_t)leases << LEASES_SHIFT;
}

static uint32_t object_flags(const struct object *object)
{
    uint32_t flags = object->producer && object->producer->session.lasting ? OBJECT_HAS_PRODUCER : 0;

    flags |= object->pending || object->state == OBJECT_FILLING ? OBJECT_IS_PENDING : 0;
    flags |= !object_has_producer_hold(object) && (object->end == OBJECT_END_FREED || object->end == OBJECT_END_EXPIRED)
                 ? OBJECT_IS_FREED
                 : 0;
    flags |= object->kind == OBJECT_MANIFEST ? OBJECT_IS_MANIFEST : 0;
    flags |= object->access.key == KEY_TAKES ? OBJECT_TAKES_ID : 0;
    flags |= object->access.key == KEY_LOST ? OBJECT_LOST_ID : 0;
    flags |= object->access.took_key ? OBJECT_TOOK_ID : 0;
    return flags | (object->access.forced || !object_is_reachable(object) ? OBJECT_IS_FORCED : 0);
}

/* Gives the object's regions records, and writes their ids to ids_p [object->memory.n_regions]. */
static bool keep_regions(struct recovery *recovery, const struct object *object, uint64_t *ids_p)
{
    for (uint32_t i = 0; i < object->memory.n_regions; i++) {
        struct region *region = object->memory.uses[i].region;
        if (!region->record && !keep_region(recovery, region, session_of(region)))
            return false;
        ids_p[i] = region->id;
    }
    return true;
}

/* The object as it is now. regions: [object->memory.n_regions]. put: of the object that is being put; NULL: it is older. */
static void write_object(struct recovery *recovery, struct object *object, uint64_t *regions, const struct object_put *put)
{
    Rdt__Pb__ObjectRecord record;
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    struct layout *layout = NULL;
    struct layout_rows rows;
    uint64_t bytes = 0, numbers[JOURNAL_NUMBERS];

    if (object_layout(object, NULL, &layout, NULL) != RDT_OK)
        return;
    record_of_object(object, &record);
    if (object->memory.chunk && layout_packed_bytes(layout, &bytes, NULL) == RDT_OK)
        record.inline_data = (ProtobufCBinaryData){bytes, slab_addr(object_piece(object))};
    layout_to_wire(layout, true, &rows, &tensors);
    record.tensors = &tensors;
    record.regions = regions;
    record.n_regions = object->memory.n_regions;
    record.promise = object->changes.promise;
    record.loaned = object->changes.loaned;
    if (put && !put->loaned) {
        record.loans = (uint32_t *)put->loans;
        record.n_loans = put->n_loans;
    }
    if (object->producer && object->producer->session.lasting)
        record.session = object->producer->id;
    record.request = (uintptr_t)map_get_u64(&recovery->filling, object->generation);
    object_numbers(object, numbers);
    object->record =
        recovery_add_record(recovery, NULL, RECORD_OBJECT, object->generation, &record.base, object_flags(object), numbers);
    recovery->counts.objects += object->record != NULL;
    free(layout);
}

/* Each change of the object tries again to give it a record; it is counted once. */
static void lose(struct recovery *recovery, struct object *object)
{
    if (object->unkept)
        return;
    object->unkept = true;
    recovery->counts.lost++;
    log_debug("obj %016llx will not survive a restart: its memory cannot be kept, or there is no memory for its record",
              (unsigned long long)object->generation);
}

/* Updates the records of its regions: a snapshot may have taken the regions from its client. */
static void refresh_regions(const struct object *object)
{
    for (uint32_t i = 0; object_is_constant(object) && i < object->memory.n_regions; i++) {
        const struct region *region = object->memory.uses[i].region;
        refresh_region(region, region->client != 0 ? session_of(region) : 0);
    }
}

static void keep_object(struct recovery *recovery, struct object *object, const struct object_put *put)
{
    uint64_t few[8], *ids = object->memory.n_regions <= 8 ? few : malloc(object->memory.n_regions * sizeof *ids);

    if (ids && keep_regions(recovery, object, ids))
        write_object(recovery, object, ids, put);
    if (!object->record)
        lose(recovery, object);
    else if (!put)
        refresh_regions(object);
    if (ids != few)
        free(ids);
}

/* The last eighth of the journal is for persons who have little. `bytes` is what the object takes of the heap and the arena; a
 * record needs less for each tensor, and up to 4 bytes more for each dimension. */
static enum rdt_status check_put(void *arg, const struct object_put *put, uint64_t bytes, uint64_t *bytes_p,
                                 struct rdt_error *err)
{
    struct recovery *recovery = arg;
    uint64_t payload = bytes + 16u * put->n_regions + 4u * put->layout->n_dims;
    bool little = recovery_has_little(put->account);

    *bytes_p = journal_record_bytes(payload);
    if (recovery->frozen || journal_has_room(recovery->journal, payload, little))
        return RDT_OK;
    if (payload > JOURNAL_MAX_BYTES)
        return rdt_error_set(
            err, RDT_LIMIT,
            "the object's metadata, tensors and inline bytes take %llu bytes, and the journal, from which a "
            "restarted daemon restores objects, takes at most %u for each: put some of it as tensors in memory",
            (unsigned long long)payload, JOURNAL_MAX_BYTES);
    return rdt_error_set(err, RDT_LIMIT,
                         "the journal, from which a restarted daemon restores objects, has no room for %llu more bytes of "
                         "metadata and lists of tensors%s: free objects that have many",
                         (unsigned long long)payload, little ? "" : ", and its last eighth is for users that have few");
}

/* The record of a snapshot that is filled later is written by on_object, before the object is seen as live. */
static void on_put(void *arg, struct object *object, const struct object_put *put)
{
    struct recovery *recovery = arg;

    if (recovery->frozen || object->generation == 0)
        return;
    if (put->request_id != 0)
        (void)map_put_u64(&recovery->filling, object->generation, (void *)(uintptr_t)put->request_id);
    if (!put->pending && object_put_copies(put, object))
        return;
    keep_object(recovery, object, put);
    (void)map_remove_u64(&recovery->filling, object->generation);
}

static void forget_object(struct recovery *recovery, struct object *object)
{
    journal_remove(recovery->journal, object->record);
    object->record = NULL;
    recovery->counts.objects--;
}

/* Returns the request id of the PUT, which a client may send again after a restart. 0: none, or no memory to read it. */
static uint64_t request_of(const struct journal_slot *slot)
{
    struct arena arena;
    Rdt__Pb__ObjectRecord record;
    uint64_t request = restore_read_object(&arena, slot, &record, NULL) ? record.request : 0;

    arena_fini(&arena);
    return request;
}

/* The object has other regions than its record: its bytes were copied into a snapshot while it was pending, or it has moved. */
static void write_again(struct recovery *recovery, struct object *object)
{
    struct journal_slot *old = object->record;
    uint64_t request = request_of(old);

    object->record = NULL;
    if (request != 0) /* for write_object */
        (void)map_put_u64(&recovery->filling, object->generation, (void *)(uintptr_t)request);
    keep_object(recovery, object, NULL);
    (void)map_remove_u64(&recovery->filling, object->generation);
    journal_remove(recovery->journal, old);
    recovery->counts.objects--;
}

static void on_object_moved(void *arg, struct object *object)
{
    struct recovery *recovery = arg;

    if (!recovery->frozen)
        write_again(recovery, object);
}

static void on_object(void *arg, struct object *object)
{
    struct recovery *recovery = arg;
    struct journal_slot *slot = object->record;
    uint64_t numbers[JOURNAL_NUMBERS];

    if (recovery->frozen)
        return;
    if (object->state == OBJECT_GONE) {
        if (slot)
            forget_object(recovery, object);
    } else if (slot && slot->flags & OBJECT_IS_PENDING && object->state == OBJECT_LIVE &&
               object->changes.promise == OBJECT_SEALED && object->memory.layout) {
        write_again(recovery, object);
    } else if (slot) {
        object_numbers(object, numbers);
        for (unsigned i = 0; i < JOURNAL_NUMBERS; i++)
            if (numbers[i] != slot->numbers[i])
                journal_set_number(slot, i, numbers[i]);
        journal_set_flags(slot, object_flags(object));
    } else if (object_lasts(object)) {
        keep_object(recovery, object, NULL);
    }
    if (object->state != OBJECT_FILLING && map_count(&recovery->filling) > 0)
        (void)map_remove_u64(&recovery->filling, object->generation);
}

/* ---- names ---- */

static void on_name(void *arg, struct name *name)
{
    struct recovery *recovery = arg;
    struct journal_state *state = journal_state(recovery->journal);
    Rdt__Pb__NameRecord record;
    uint64_t numbers[JOURNAL_NUMBERS] = {0};
    struct journal_slot *old = name->record;

    if (recovery->frozen)
        return;
    if (name->version > state->names_version)
        state->names_version = name->version;
    name->record = NULL;
    if (name_lasts(name)) {
        record_of_name(name, &record);
        record.session = name->session;
        record.request = name->request;
        record.lease = name->publisher != NULL;
        numbers[NUMBER_NAME_SESSION] = name->session;
        numbers[NUMBER_NAME_REQUEST] = name->request;
        numbers[NUMBER_NAME_UNTIL] = name->ttl_ns > 0 ? until(deadline_left_ns(&name->expiry)) : 0;
        name->record = recovery_add_record(recovery, name->account, RECORD_NAME, name->version, &record.base, 0, numbers);
        recovery->counts.lost += name->record == NULL;
    }
    if (old) {
        if (!name->record || name->version != old->key)
            recovery_remember_published(recovery, old);
        recovery_remove_record(recovery, name->account, old);
    }
    recovery->counts.names += (name->record != NULL) - (old != NULL);
}

/* ---- holds ---- */

/* Replicas of other nodes' objects are in no table: the session keeps their memory. */
bool recovery_keep_held(struct recovery *recovery, struct object *object)
{
    if (!object->record && object->kind != OBJECT_REPLICA && object->state != OBJECT_FILLING)
        keep_object(recovery, object, NULL);
    return object->kind != OBJECT_REPLICA && object->record;
}

/* The regions that a hold keeps: the object's, if it is a replica, or those of a copy. NULL: no memory, or they cannot be
 * kept. */
static uint64_t *held_regions(struct recovery *recovery, const struct hold *hold, uint32_t *n_p)
{
    uint32_t n = hold->region ? 1 : hold->object ? hold->object->memory.n_regions : hold->n_regions;
    uint64_t *ids = calloc(n + 1u, sizeof *ids);

    for (uint32_t i = 0; ids && i < n; i++) {
        struct region *region = hold->region   ? hold->region
                                : hold->object ? hold->object->memory.uses[i].region
                                               : hold->regions[i];
        if (!keep_region(recovery, region, session_of(region))) {
            free(ids);
            return NULL;
        }
        ids[i] = region->id;
    }
    *n_p = n;
    return ids;
}

static void on_hold(void *arg, struct hold *hold)
{
    struct recovery *recovery = arg;
    Rdt__Pb__JournalHold record = RDT__PB__JOURNAL_HOLD__INIT;
    uint64_t *ids = NULL;
    uint32_t n = 0;

    if (recovery->frozen)
        return;
    record.session = hold->client->id;
    if (hold->object && hold->object->kind != OBJECT_REPLICA) {
        record.generation = hold->object->generation;
        if (!recovery_keep_held(recovery, hold->object))
            return;
    } else {
        ids = held_regions(recovery, hold, &n);
        if (!ids)
            return;
    }
    record.regions = ids;
    record.n_regions = n;
    hold->record = recovery_add_record(recovery, hold->client->account, RECORD_HOLD, hold->id, &record.base, 0, NULL);
    recovery->counts.holds += hold->record != NULL;
    free(ids);
}

static void on_hold_end(void *arg, struct hold *hold)
{
    struct recovery *recovery = arg;

    if (recovery->frozen)
        return;
    recovery_remove_record(recovery, hold->client->account, hold->record);
    recovery->counts.holds--;
}

static void on_remote_hold(void *arg, struct remote_hold *hold)
{
    struct recovery *recovery = arg;
    Rdt__Pb__JournalRemoteHold record = RDT__PB__JOURNAL_REMOTE_HOLD__INIT;

    if (recovery->frozen || !recovery_keep_held(recovery, hold->object))
        return;
    record.session = hold->client->id;
    record.generation = hold->object->generation;
    hold->record =
        recovery_add_record(recovery, hold->client->account, RECORD_REMOTE_HOLD, hold->request_id, &record.base, 0, NULL);
    recovery->counts.holds += hold->record != NULL;
}

static void on_far_hold(void *arg, struct remote_hold *hold, const Rdt__Pb__Ref *ref)
{
    struct recovery *recovery = arg;
    Rdt__Pb__JournalRemoteHold record = RDT__PB__JOURNAL_REMOTE_HOLD__INIT;

    if (recovery->frozen || hold->record)
        return;
    record.session = hold->client->id;
    record.ref = (Rdt__Pb__Ref *)ref;
    hold->record =
        recovery_add_record(recovery, hold->client->account, RECORD_REMOTE_HOLD, hold->request_id, &record.base, 0, NULL);
    recovery->counts.holds += hold->record != NULL;
}

static bool far_ref(void *arg, const struct remote_hold *hold, struct rdt_ref *ref_p)
{
    const Rdt__Pb__JournalRemoteHold *record;
    struct arena arena;
    bool has_it;

    if (!hold->record)
        return false;
    record = restore_unpack(&arena, hold->record, &rdt__pb__journal_remote_hold__descriptor, NULL);
    has_it = record && wire_ref_to(record->ref, ref_p, NULL) == RDT_OK;
    arena_fini(&arena);
    return has_it;
}

static void on_remote_hold_end(void *arg, struct remote_hold *hold)
{
    struct recovery *recovery = arg;

    if (recovery->frozen)
        return;
    recovery_remove_record(recovery, hold->client->account, hold->record);
    recovery->counts.holds--;
}

static void on_request(void *arg, const struct client *client, uint64_t request_id, uint64_t generation)
{
    struct recovery *recovery = arg;

    if (!recovery->frozen)
        recovery_remember_request(recovery, client, request_id, generation);
}

void recovery_record(struct recovery *recovery)
{
    recovery->lasting = (struct lasting){.arg = recovery,
                                         .check_put = check_put,
                                         .on_put = on_put,
                                         .on_object = on_object,
                                         .on_object_moved = on_object_moved,
                                         .on_name = on_name,
                                         .on_region = on_region,
                                         .on_region_released = on_region_released,
                                         .on_hold = on_hold,
                                         .on_hold_end = on_hold_end,
                                         .on_remote_hold = on_remote_hold,
                                         .on_far_hold = on_far_hold,
                                         .far_ref = far_ref,
                                         .on_remote_hold_end = on_remote_hold_end,
                                         .on_request = on_request};
    recovery->objects->lasting = recovery->names->lasting = &recovery->lasting;
    recovery->regions->kept.on_end = on_kept_end;
    recovery->regions->kept.arg = recovery;
}
