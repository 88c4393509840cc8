/* SPDX-License-Identifier: Apache-2.0 */
/* Writing: what outlasts sessions gets a record in the journal, and its memory goes to the keeper. */
#include "daemon/recovery/recovery.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/objects/detached.h"
#include "daemon/objects/transit.h"
#include "daemon/recovery/recovery_impl.h"
#include "rdt_journal.pb-c.h"

static uint64_t until(int64_t left_ns)
{
    return left_ns < 0 ? NEVER_BEGAN : uv_hrtime() + (uint64_t)left_ns;
}

/* Adds a record. NULL: it is too large, or there is no memory. */
static struct journal_slot *add_record(struct recovery *recovery, enum record_kind kind, uint64_t key,
                                       const ProtobufCMessage *message, const uint64_t *numbers)
{
    struct journal_slot *slot = journal_begin(recovery->journal, protobuf_c_message_get_packed_size(message));

    if (!slot)
        return NULL;
    (void)protobuf_c_message_pack(message, slot->payload);
    journal_commit(recovery->journal, slot, kind, key, numbers);
    return slot;
}

/* ---- regions ---- */

struct kept_region *recovery_add_region(struct recovery *recovery, struct region *region, struct journal_slot *slot)
{
    struct kept_region *kept = calloc(1, sizeof *kept);

    if (!kept || !map_put_u64(&recovery->kept_regions, region->id, kept)) {
        free(kept);
        return NULL;
    }
    *kept = (struct kept_region){.region = region, .slot = slot};
    region->kept = true;
    recovery->kept_bytes += region->room;
    return kept;
}

static struct kept_region *keep_region(struct recovery *recovery, struct region *region)
{
    struct kept_region *kept = map_get_u64(&recovery->kept_regions, region->id);
    struct region_image image = region_image(region);
    Rdt__Pb__JournalRegion record = RDT__PB__JOURNAL_REGION__INIT;
    const uint64_t numbers[JOURNAL_NUMBERS] = {0}, id = KEEPER_FIRST_REGION + region->id;
    struct journal_slot *slot;

    if (kept)
        return kept;
    record.memory = (char *)image.kind;
    record.uid = region->account->owner.uid;
    record.tenant = region->account->owner.tenant;
    record.origin = image.origin;
    record.bytes = image.bytes;
    record.room = image.room;
    record.offset = image.offset;
    keeper_link_store(&recovery->link, &id, &region->block.fd, 1); /* a record never names memory that is not kept yet */
    slot = add_record(recovery, RECORD_REGION, region->id, &record.base, numbers);
    kept = slot ? recovery_add_region(recovery, region, slot) : NULL;
    if (kept)
        return kept;
    if (slot)
        journal_remove(recovery->journal, slot);
    keeper_link_drop(&recovery->link, id);
    return NULL;
}

static void release_region(struct recovery *recovery, uint64_t id)
{
    struct kept_region *kept = map_get_u64(&recovery->kept_regions, id);

    if (!kept || --kept->n_uses > 0)
        return;
    (void)map_remove_u64(&recovery->kept_regions, id);
    journal_remove(recovery->journal, kept->slot);
    keeper_link_drop(&recovery->link, KEEPER_FIRST_REGION + id);
    kept->region->kept = false;
    recovery->kept_bytes -= kept->region->room;
    free(kept);
}

/* ---- objects ---- */

bool recovery_add_object(struct recovery *recovery, uint64_t generation, const uint64_t *regions, uint32_t n_regions,
                         struct journal_slot *slot)
{
    struct kept_object *kept = malloc(sizeof *kept + n_regions * sizeof *regions);

    if (!kept || !map_put_u64(&recovery->kept_objects, generation, kept)) {
        free(kept);
        return false;
    }
    kept->slot = slot;
    kept->n_regions = n_regions;
    if (n_regions > 0)
        memcpy(kept->regions, regions, n_regions * sizeof *regions);
    return true;
}

static void object_numbers(const struct object *object, uint64_t *numbers_p)
{
    int64_t left_ns;

    numbers_p[NUMBER_DETACHED_UNTIL] = object->detached ? until(detached_left_ns(object)) : 0;
    numbers_p[NUMBER_TRANSIT_COUNT] = transit_count(object, &left_ns);
    numbers_p[NUMBER_TRANSIT_UNTIL] = numbers_p[NUMBER_TRANSIT_COUNT] > 0 ? until(left_ns) : 0;
}

/* regions: [object->n_regions], ids in the order of its places */
static struct journal_slot *write_object(struct recovery *recovery, const struct object *object, uint64_t *regions)
{
    Rdt__Pb__JournalObject record = RDT__PB__JOURNAL_OBJECT__INIT;
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    uint64_t numbers[JOURNAL_NUMBERS];
    struct layout *layout = NULL;
    struct layout_rows rows;
    struct journal_slot *slot;
    uint64_t bytes = 0;

    if (object_layout(object, NULL, &layout, NULL) != RDT_OK)
        return NULL;
    if (object->chunk && layout_packed_bytes(layout, &bytes, NULL) == RDT_OK)
        record.inline_data = (ProtobufCBinaryData){bytes, slab_addr(object_piece(object))};
    layout_to_wire(layout, true, &rows, &tensors);
    record.uid = object->account->owner.uid;
    record.tenant = object->account->owner.tenant;
    record.id = (ProtobufCBinaryData){object->id_bytes, (uint8_t *)object_id(object)};
    record.metadata = (ProtobufCBinaryData){object->metadata_bytes, (uint8_t *)object_metadata(object)};
    record.tensors = &tensors;
    record.regions = regions;
    record.n_regions = object->n_regions;
    record.visibility = (Rdt__Pb__Visibility)object->visibility;
    record.transport = (char *)object->transport;
    record.snapshot = object->snapshot;
    record.detached_ttl_ns = detached_ttl_ns(object);
    object_numbers(object, numbers);
    slot = add_record(recovery, RECORD_OBJECT, object->generation, &record.base, numbers);
    free(layout);
    return slot;
}

static void release_regions(struct recovery *recovery, const uint64_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        release_region(recovery, ids[i]);
}

static bool keep_object(struct recovery *recovery, struct object *object)
{
    uint64_t *ids = malloc((object->n_regions + 1u) * sizeof *ids);
    struct journal_slot *slot = NULL;
    uint32_t n = 0;
    bool kept = ids;

    for (; kept && n < object->n_regions; n += kept) {
        struct region *region = object->uses[n].region;
        struct kept_region *its = region_may_be_restored(region) ? keep_region(recovery, region) : NULL;
        kept = its;
        if (its) {
            its->n_uses++;
            ids[n] = region->id;
        }
    }
    if (kept)
        slot = write_object(recovery, object, ids);
    kept = slot && recovery_add_object(recovery, object->generation, ids, n, slot);
    if (!kept && slot)
        journal_remove(recovery->journal, slot);
    if (!kept)
        release_regions(recovery, ids, n);
    free(ids);
    return kept;
}

static void on_object(void *arg, struct object *object)
{
    struct recovery *recovery = arg;
    struct kept_object *kept = map_get_u64(&recovery->kept_objects, object->generation);
    uint64_t numbers[JOURNAL_NUMBERS];

    if (object_lasts(object) && !kept) {
        object->kept = keep_object(recovery, object);
        if (object->kept)
            return;
        recovery->n_lost++;
        log_debug("obj %016llx will not survive a restart: its memory cannot be kept, or there is no memory for its record",
                  (unsigned long long)object->generation);
    } else if (object_lasts(object)) {
        object_numbers(object, numbers);
        for (unsigned i = 0; i < JOURNAL_NUMBERS; i++)
            journal_set_number(kept->slot, i, numbers[i]);
    } else if (kept) {
        object->kept = false;
        (void)map_remove_u64(&recovery->kept_objects, object->generation);
        journal_remove(recovery->journal, kept->slot);
        release_regions(recovery, kept->regions, kept->n_regions);
        free(kept);
    }
}

struct recovery_counts recovery_counts(const struct recovery *recovery)
{
    if (!recovery->journal)
        return (struct recovery_counts){0};
    return (struct recovery_counts){.keeper_up = keeper_link_is_up(&recovery->link),
                                    .objects = map_count(&recovery->kept_objects),
                                    .names = recovery->n_names,
                                    .bytes = recovery->kept_bytes,
                                    .restored = recovery->n_restored,
                                    .lost = recovery->n_lost};
}

/* ---- names ---- */

static void on_name(void *arg, struct name *name)
{
    struct recovery *recovery = arg;
    struct journal_state *state = journal_state(recovery->journal);
    Rdt__Pb__JournalName record = RDT__PB__JOURNAL_NAME__INIT;
    uint64_t numbers[JOURNAL_NUMBERS] = {0};
    struct journal_slot *old = name->record;

    if (name->version > state->names_version)
        state->names_version = name->version;
    name->record = NULL;
    if (name_lasts(name)) {
        record.uid = name->account->owner.uid;
        record.tenant = name->account->owner.tenant;
        record.id = (ProtobufCBinaryData){name->id_bytes, (uint8_t *)name_id(name)};
        record.visibility = name->visibility;
        record.generation = name->object->generation;
        record.ttl_ns = name->ttl_ns;
        numbers[NUMBER_NAME_UNTIL] = name->ttl_ns > 0 ? until(deadline_left_ns(&name->expiry)) : 0;
        name->record = add_record(recovery, RECORD_NAME, name->version, &record.base, numbers);
    }
    if (old)
        journal_remove(recovery->journal, old);
    recovery->n_names += (name->record != NULL) - (old != NULL);
}

/* ---- the keeper ---- */

/* A new keeper, or the old one after it did not read for long: it gets everything that it should have. */
static void on_up(void *arg)
{
    struct recovery *recovery = arg;
    uint64_t ids[KEEPER_MAX_IDS] = {KEEPER_JOURNAL};
    int fds[KEEPER_MAX_IDS] = {journal_fd(recovery->journal)};
    struct kept_region *kept;
    size_t cursor = 0;
    unsigned n = 1;

    while ((kept = map_next(&recovery->kept_regions, &cursor))) {
        if (n == KEEPER_MAX_IDS) {
            keeper_link_store(&recovery->link, ids, fds, n);
            n = 0;
        }
        ids[n] = KEEPER_FIRST_REGION + kept->region->id;
        fds[n++] = kept->region->block.fd;
    }
    keeper_link_store(&recovery->link, ids, fds, n);
}

static bool is_kept(void *arg, uint64_t id)
{
    struct recovery *recovery = arg;

    return id < KEEPER_FIRST_REGION || map_get_u64(&recovery->kept_regions, id - KEEPER_FIRST_REGION);
}

/* ---- the start ---- */

static void on_held(void *arg, uint64_t id, int take_fd)
{
    struct map *held = arg;
    struct held *entry = map_get_u64(held, id) ? NULL : malloc(sizeof *entry);

    if (!entry || !map_put_u64(held, id, entry)) {
        free(entry);
        (void)close(take_fd);
        return;
    }
    *entry = (struct held){.id = id, .fd = take_fd};
}

int recovery_take_held(struct map *held, uint64_t id)
{
    struct held *entry = map_remove_u64(held, id);
    int fd = entry ? entry->fd : -1;

    free(entry);
    return fd;
}

/* The keeper drops what no record names, such as memory whose object ended a moment before the earlier daemon did. */
static void drop_rest(struct recovery *recovery, struct map *held)
{
    struct held *entry;
    size_t cursor = 0;

    while ((entry = map_next(held, &cursor))) {
        (void)close(entry->fd);
        if (recovery->journal && entry->id >= KEEPER_FIRST_REGION)
            keeper_link_drop(&recovery->link, entry->id);
        free(entry);
    }
    map_fini(held);
}

static enum rdt_status new_journal(struct recovery *recovery, struct rdt_error *err)
{
    const uint64_t id = KEEPER_JOURNAL;
    enum rdt_status status = journal_create(&recovery->journal, err);
    int fd;

    if (status != RDT_OK)
        return status;
    fd = journal_fd(recovery->journal);
    memcpy(journal_state(recovery->journal)->node_uuid, recovery->node->uuid, 16);
    keeper_link_store(&recovery->link, &id, &fd, 1);
    return RDT_OK;
}

static enum rdt_status check_node(struct recovery *recovery, bool may_take_uuid, struct rdt_error *err)
{
    const uint8_t *uuid = journal_state(recovery->journal)->node_uuid;
    char theirs[33], ours[33];

    if (may_take_uuid)
        memcpy(recovery->node->uuid, uuid, 16);
    if (memcmp(recovery->node->uuid, uuid, 16) == 0)
        return RDT_OK;
    node_hex(uuid, theirs);
    node_hex(recovery->node->uuid, ours);
    return rdt_error_set(
        err, RDT_INVALID,
        "the keeper at %s has the objects of node %s, and state_dir says that this is node %s: give each daemon "
        "its own keeper, or restart rdtd-keeper to give those objects up",
        recovery->keeper, theirs, ours);
}

/* A journal that ends the daemon while it is read would do so at each start. */
static enum rdt_status set_aside(struct recovery *recovery, struct rdt_error *err)
{
    const uint64_t id = KEEPER_SET_ASIDE;
    int fd = journal_fd(recovery->journal);

    log_error("%u starts in a row ended while they read the journal, so it is set aside and its objects are given up: please "
              "report this",
              RECOVERY_ATTEMPTS);
    keeper_link_store(&recovery->link, &id, &fd, 1);
    journal_close(recovery->journal);
    return new_journal(recovery, err);
}

static enum rdt_status open_journal(struct recovery *recovery, int take_fd, bool may_take_uuid, struct map *held,
                                    struct rdt_error *err)
{
    struct rdt_error why;
    struct journal_state *state;
    enum rdt_status status = journal_open(take_fd, &recovery->journal, &why);

    if (status != RDT_OK)
        return rdt_error_set(
            err, status,
            "the journal that the keeper at %s has cannot be read: %s. Start the rdtd that wrote it, or restart "
            "rdtd-keeper to give its objects up",
            recovery->keeper, why.msg);
    state = journal_state(recovery->journal);
    if (++state->n_attempts > RECOVERY_ATTEMPTS)
        return set_aside(recovery, err);
    status = check_node(recovery, may_take_uuid, err);
    return status == RDT_OK ? recovery_restore(recovery, held, err) : status;
}

void recovery_record(struct recovery *recovery)
{
    recovery->lasting = (struct lasting){.arg = recovery, .on_object = on_object, .on_name = on_name};
    recovery->objects->lasting = recovery->names->lasting = &recovery->lasting;
}

enum rdt_status recovery_start(struct recovery *recovery, uv_loop_t *loop, bool may_take_uuid, struct rdt_error *err)
{
    struct map held;
    enum rdt_status status;
    int fd;

    map_init(&recovery->kept_objects);
    map_init(&recovery->kept_regions);
    recovery->link.fd = -1;
    if (recovery->keeper[0] == '\0')
        return RDT_OK;
    status = keeper_link_open(&recovery->link, recovery->keeper, err);
    if (status != RDT_OK)
        return status;
    map_init(&held);
    recovery->link.pool = recovery->regions->pool;
    recovery->link.arg = recovery;
    recovery->link.on_up = on_up;
    recovery->link.is_kept = is_kept;
    if (recovery->link.n_held > 0)
        status = keeper_link_fetch(&recovery->link, on_held, &held, err);
    fd = recovery_take_held(&held, KEEPER_JOURNAL);
    if (status == RDT_OK)
        status = fd >= 0 ? open_journal(recovery, fd, may_take_uuid, &held, err) : new_journal(recovery, err);
    if (status != RDT_OK && recovery->journal) { /* the next start finds everything as it was */
        journal_close(recovery->journal);
        recovery->journal = NULL;
    }
    drop_rest(recovery, &held);
    if (status != RDT_OK)
        return status;
    journal_state(recovery->journal)->generations = recovery->objects->first_generation;
    recovery_record(recovery);
    journal_state(recovery->journal)->n_attempts = 0;
    keeper_link_start(&recovery->link, loop, recovery->deadlines);
    return RDT_OK;
}

/* ---- the end ---- */

void recovery_freeze(struct recovery *recovery)
{
    if (!recovery->journal || !recovery->objects->lasting)
        return;
    recovery->objects->lasting = recovery->names->lasting = NULL;
    log_info("the keeper has %zu objects and %llu names for the next start of rdtd", map_count(&recovery->kept_objects),
             (unsigned long long)recovery->n_names);
}

void recovery_close(struct recovery *recovery)
{
    if (!recovery->journal)
        return;
    recovery_freeze(recovery);
    keeper_link_close(&recovery->link);
}

void recovery_fini(struct recovery *recovery)
{
    struct kept_object *object;
    struct kept_region *region;
    size_t cursor = 0;

    while ((object = map_next(&recovery->kept_objects, &cursor)))
        free(object);
    cursor = 0;
    while ((region = map_next(&recovery->kept_regions, &cursor)))
        free(region);
    map_fini(&recovery->kept_objects);
    map_fini(&recovery->kept_regions);
    journal_close(recovery->journal);
    recovery->journal = NULL;
}
