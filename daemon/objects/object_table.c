/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/object_table.h"

#include <stdlib.h>
#include <sys/random.h>
#include <uv.h>

#include "daemon/objects/client.h"
#include "daemon/objects/object_table_impl.h"

#define GENERATION_BITS 40u /* the bits that count within one start of the daemon */
#define BLOCK_HALF_BITS 16u /* of these bits, those of blocks: ids.h */
#define STARTS 0x7fffffu

/* ---- generations ---- */

static void begin_start(struct object_table *table, uint64_t start)
{
    start &= STARTS;
    table->first_generation = (start > 0 ? start : 1) << GENERATION_BITS; /* 0 is no generation */
    ids_init(&table->generations, IDS_GENERATIONS, BLOCK_HALF_BITS, table->first_generation);
}

uint64_t object_table_new_generation(struct object_table *table, struct account *account)
{
    return ids_next(&table->generations, account);
}

/* ---- the table ---- */

static void evict(struct object *object)
{
    object_free(object, false, OBJECT_END_EVICTED);
}

void object_table_init(struct object_table *table, const struct node *node, struct accounts *accounts, struct slabs *slabs,
                       uint64_t max_objects)
{
    uint32_t boot = 0;

    *table = (struct object_table){
        .node = node, .accounts = accounts, .slabs = slabs, .max_objects = max_objects, .transports = {""}};
    cache_init(&table->cache, slabs ? slabs->regions : NULL, accounts, evict);
    map_init(&table->by_name);
    map_init(&table->detached);
    map_init(&table->transit);
    map_init(&table->by_ended);
    fair_init(&table->ended, TOMBSTONES);
    map_init(&table->summing);
    list_init(&table->notifies);
    list_init(&table->forced);
    if (getrandom(&boot, sizeof boot, 0) != (ssize_t)sizeof boot)
        boot = (uint32_t)uv_hrtime();
    begin_start(table, boot);
    table->oldest_generation = table->first_generation;
    index_init(&table->by_generation, table->first_generation);
}

void object_table_continue(struct object_table *table, uint64_t oldest, uint64_t earlier, uint64_t least)
{
    begin_start(table, (earlier >> GENERATION_BITS) + 1);
    table->oldest_generation = oldest;
    index_fini(&table->by_generation);
    index_init(&table->by_generation, least < table->first_generation ? least : table->first_generation);
}

/* Moves all objects to an index that can store the generation, too. */
static bool lower_base(struct object_table *table, uint64_t generation)
{
    struct index lower;
    struct object *object;
    uint64_t at = 0;
    bool fits = true;

    index_init(&lower, generation);
    while (fits && (object = index_next(&table->by_generation, at, &at)))
        fits = index_put(&lower, at++, object);
    index_fini(fits ? &table->by_generation : &lower);
    if (fits)
        table->by_generation = lower;
    return fits;
}

bool object_table_reserve(struct object_table *table, uint64_t generation)
{
    if (ids_in_span(&table->generations, generation)) {
        if (table->generations.n_blocks > 0 || table->by_generation.used > 0)
            return false;
        begin_start(table, (generation >> GENERATION_BITS) + 1);
        table->oldest_generation = table->first_generation;
    }
    return generation >= table->by_generation.base || lower_base(table, generation);
}

void object_table_fini(struct object_table *table)
{
    cache_fini(&table->cache);
    map_fini(&table->by_name);
    map_fini(&table->detached);
    map_fini(&table->transit);
    map_fini(&table->summing);
    list_drain (struct fair_entry, ended, &table->ended.entries, link)
        object_forget_end(table, container_of(ended, struct tombstone, entry));
    fair_fini(&table->ended);
    map_fini(&table->by_ended);
    index_fini(&table->by_generation);
}

/* Whether the client that put the object has ended. Everything that it held is released over many turns, but nobody may see
 * its objects meanwhile. */
static bool producer_has_ended(const struct object *object)
{
    return object && object->producer && object->producer->conn.gone;
}

struct object *object_table_by_generation(struct object_table *table, uint64_t generation)
{
    struct object *object = index_get(&table->by_generation, generation);

    if (producer_has_ended(object)) {
        object_producer_ended(object);
        object = index_get(&table->by_generation, generation); /* NULL unless others hold it */
    }
    return object;
}

struct object *object_table_by_key(struct object_table *table, const uint8_t *key, size_t key_bytes)
{
    struct object *object = map_get(&table->by_name, key, key_bytes);

    if (producer_has_ended(object)) {
        object_producer_ended(object);
        object = map_get(&table->by_name, key, key_bytes);
    }
    return object;
}

/* The starts of the daemon have ascending numbers only since the first daemon that wrote this journal: others have random ones.
 * The blocks of one start have no order; but the later of two objects with one id is put only after the earlier one has left
 * the journal, so the object that is there was put later, unless its own block says otherwise. */
static bool was_put_before(const struct object_table *table, uint64_t generation, uint64_t other)
{
    uint64_t start = generation >> GENERATION_BITS, other_start = other >> GENERATION_BITS;

    if (generation < table->oldest_generation || other >= table->first_generation)
        return false;
    if (start != other_start)
        return start < other_start;
    return generation < other || !ids_same_block(generation, other);
}

struct object *object_table_of_id(struct object_table *table, const struct owner *owner, const void *id, size_t id_bytes)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];

    return object_table_by_key(table, key, owner_key(key, owner, id, id_bytes));
}

const struct object *object_table_successor(struct object_table *table, const struct owner *owner, const void *id,
                                            size_t id_bytes, uint64_t generation)
{
    const struct object *object = object_table_of_id(table, owner, id, id_bytes);

    return object && object->state != OBJECT_AWAITED && was_put_before(table, generation, object->generation) ? object : NULL;
}

struct object *object_table_next(struct object_table *table, uint64_t after, uint64_t *generation_p)
{
    struct object *object;

    while (producer_has_ended(object = index_next(&table->by_generation, after + 1, generation_p)) &&
           !object_table_by_generation(table, *generation_p))
        after = *generation_p;
    return object;
}

static enum rdt_status why_gone(const struct object_table *table, const struct rdt_ref *ref, struct rdt_error *err)
{
    bool ours = ids_in_span(&table->generations, ref->generation);
    const struct tombstone *tombstone;

    bool unknown = ours ? !ids_was_begun(&table->generations, ref->generation)
                        : ref->generation < table->oldest_generation || ref->generation > table->first_generation;

    if (unknown && ref->address[0] && strcmp(ref->address, table->node->address) != 0)
        return rdt_error_set(
            err, RDT_NOT_FOUND,
            "object \"%s\" is not known here: its ref names this node's uuid, but the address %s, and this node "
            "is at %s: if those are two machines, remove node_uuid from the state_dir of one and restart it",
            ref->id, ref->address, table->node->address);
    if (unknown)
        return rdt_error_set(
            err, RDT_NOT_FOUND,
            "object \"%s\" is not known here: its ref is from an earlier start of this node, or was never issued", ref->id);
    if (!ours)
        return rdt_error_set(err, RDT_FREED, "object \"%s\" ended before the last restart of its daemon", ref->id);
    tombstone = map_get_u64(&table->by_ended, ref->generation);
    return object_error_ended(tombstone ? tombstone->end : OBJECT_END_FREED, ref->id, ref->id_bytes, err);
}

enum rdt_status object_table_not_put(const struct rdt_ref *ref, const struct owner *requester, struct rdt_error *err)
{
    struct owner owner = owner_of_ref(ref, requester);

    if (owner_equal(&owner, requester))
        return rdt_error_set(err, RDT_NOT_FOUND, "nobody has put object \"%s\", or it has ended", ref->id);
    return rdt_error_set(err, RDT_NOT_FOUND,
                         "nobody has put object \"%s\", it has ended, or its owner, uid %u, does not show it to uid %u",
                         ref->id, owner.uid, requester->uid);
}

enum rdt_status object_table_find_any(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                      bool sees_all, struct object **object_p, struct rdt_error *err)
{
    struct owner owner = owner_of_ref(ref, requester);
    uint8_t key[OWNER_KEY_MAX_BYTES];
    struct object *object;
    bool same_id, visible;

    if (ref->id_bytes == 0 || ref->id_bytes > RDT_MAX_ID_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the ref has no id of 1 to %u bytes", RDT_MAX_ID_BYTES);
    if (ref->generation != 0) {
        object = object_table_by_generation(table, ref->generation);
        same_id = object && object->tail.id_bytes == ref->id_bytes && memcmp(object_id(object), ref->id, ref->id_bytes) == 0;
        visible = object && (sees_all || object_visible_to(object, requester));
        if (!object || (!visible && !same_id)) /* a guess: it tells nothing about the object that there is */
            return why_gone(table, ref, err);
        if (!visible)
            return rdt_error_set(err, RDT_DENIED, "object \"%s\" is not visible to uid %u", ref->id, requester->uid);
        if (!same_id)
            return rdt_error_set(err, RDT_NOT_FOUND, "the object with the ref's generation does not have the id \"%s\"",
                                 ref->id);
        *object_p = object;
        return RDT_OK;
    }
    object = object_table_by_key(table, key, owner_key(key, &owner, (const uint8_t *)ref->id, ref->id_bytes));
    if (object && object->state != OBJECT_AWAITED && !sees_all && !object_visible_to(object, requester))
        object = NULL;
    *object_p = object;
    return object && object->state != OBJECT_AWAITED ? RDT_OK : RDT_AGAIN;
}

static void note_miss(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester)
{
    struct owner owner = owner_of_ref(ref, requester);

    if (owner_equal(&owner, requester)) /* what others look for tells the owner nothing */
        cache_missed(&table->cache, &owner);
}

/* AGAIN sets *object_p as object_table_find_any does. */
static enum rdt_status find_live(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                 struct object **object_p, struct rdt_error *err)
{
    enum rdt_status status = object_table_find_any(table, ref, requester, false, object_p, err);

    if (status == RDT_OK && (*object_p)->state == OBJECT_FILLING)
        return RDT_AGAIN;
    if (status == RDT_OK && (*object_p)->state == OBJECT_DRAINING)
        return object_why_ended(*object_p, err);
    return status;
}

enum rdt_status object_table_exists(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                    struct rdt_error *err)
{
    struct object *object;

    return find_live(table, ref, requester, &object, err);
}

enum rdt_status object_table_find(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                  struct object **object_p, struct rdt_error *err)
{
    struct object *object;
    enum rdt_status status = find_live(table, ref, requester, &object, err);

    if (status == RDT_AGAIN && (!object || object->state == OBJECT_AWAITED))
        note_miss(table, ref, requester);
    if (status != RDT_OK)
        return status;
    if (object->cached)
        cache_found(object, ref->generation == 0);
    *object_p = object;
    return RDT_OK;
}

void object_ref(const struct object *object, struct rdt_ref *ref_p)
{
    const struct node *node = object->table->node;

    *ref_p = (struct rdt_ref){.generation = object->generation, .uid = object->account->owner.uid};
    memcpy(ref_p->node, node->uuid, sizeof ref_p->node);
    memcpy(ref_p->tenant, object->account->owner.tenant, sizeof ref_p->tenant);
    memcpy(ref_p->address, node->address, sizeof ref_p->address);
    memcpy(ref_p->id, object_id(object), object->tail.id_bytes);
    ref_p->id_bytes = (uint8_t)object->tail.id_bytes;
}
