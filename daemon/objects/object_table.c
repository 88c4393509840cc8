/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/object_table.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/base/shapes.h"
#include "daemon/objects/client.h"
#include "daemon/objects/detached.h"
#include "daemon/objects/object_parts.h"

#define GENERATION_BITS 40u /* those that count within one start of the daemon */

void object_table_init(struct object_table *table, const struct node *node, struct accounts *accounts, struct slabs *slabs,
                       uint64_t max_objects)
{
    uint32_t boot = 0;

    *table = (struct object_table){.node = node, .accounts = accounts, .slabs = slabs, .max_objects = max_objects};
    map_init(&table->by_name);
    map_init(&table->detached);
    map_init(&table->transit);
    list_init(&table->notifies);
    if (getrandom(&boot, sizeof boot, 0) != (ssize_t)sizeof boot)
        boot = (uint32_t)uv_hrtime();
    table->first_generation = ((uint64_t)(boot & 0x7fffff) << GENERATION_BITS) + 1;
    table->next_generation = table->oldest_generation = table->first_generation;
    index_init(&table->by_generation, table->first_generation);
}

void object_table_continue(struct object_table *table, uint64_t oldest, uint64_t earlier, uint64_t least)
{
    uint64_t start = ((earlier >> GENERATION_BITS) + 1) & 0x7fffff;

    table->first_generation = (start << GENERATION_BITS) + 1;
    table->oldest_generation = oldest;
    table->next_generation = table->first_generation;
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
    uint64_t start = table->first_generation >> GENERATION_BITS;

    if (generation >> GENERATION_BITS == start) {
        if (table->next_generation != table->first_generation || table->by_generation.used > 0)
            return false;
        table->first_generation = (((start + 1) & 0x7fffff) << GENERATION_BITS) + 1;
        table->next_generation = table->oldest_generation = table->first_generation;
    }
    return generation >= table->by_generation.base || lower_base(table, generation);
}

void object_table_fini(struct object_table *table)
{
    map_fini(&table->by_name);
    map_fini(&table->detached);
    map_fini(&table->transit);
    index_fini(&table->by_generation);
}

/* Whether the client that put the object has ended. What it held is released over many turns, but nobody may see its objects
 * meanwhile. */
static bool producer_has_ended(const struct object *object)
{
    return object && object->producer && object->producer->gone;
}

static struct object *get_by_generation(struct object_table *table, uint64_t generation)
{
    struct object *object = index_get(&table->by_generation, generation);

    if (producer_has_ended(object)) {
        object_producer_ended(object);
        object = index_get(&table->by_generation, generation); /* NULL unless others hold it */
    }
    return object;
}

static struct object *get_by_key(struct object_table *table, const uint8_t *key, size_t key_bytes)
{
    struct object *object = map_get(&table->by_name, key, key_bytes);

    if (producer_has_ended(object)) {
        object_producer_ended(object);
        object = map_get(&table->by_name, key, key_bytes);
    }
    return object;
}

struct object *object_table_next(struct object_table *table, uint64_t after, uint64_t *generation_p)
{
    struct object *object;

    while (producer_has_ended(object = index_next(&table->by_generation, after + 1, generation_p)) &&
           !get_by_generation(table, *generation_p))
        after = *generation_p;
    return object;
}

/* Creates an object, which is in no table yet. put NULL: an awaited entry. parts NULL: the object stores no shapes. */
static struct object *object_new(struct object_table *table, struct account *account, const uint8_t *key, size_t key_bytes,
                                 size_t id_bytes, const struct object_put *put, struct object_parts *parts)
{
    size_t metadata_bytes = put ? put->metadata_bytes : 0, rest_bytes = metadata_bytes + (parts ? parts->shapes_bytes : 0);
    bool separate = parts && parts->separate;
    struct object *object = calloc(1, sizeof *object + key_bytes + (separate ? sizeof parts->separate : rest_bytes));

    if (!object)
        return NULL;
    object->table = table;
    object->account = account_ref(account);
    object->transport = "";
    memcpy(object->tail, key, key_bytes);
    object->key_bytes = (uint8_t)key_bytes;
    object->id_bytes = (uint8_t)id_bytes;
    object->metadata_bytes = (uint32_t)metadata_bytes;
    object->box_bytes = put ? put->box_bytes : 0;
    if (separate)
        memcpy(object->tail + key_bytes, &parts->separate, sizeof parts->separate);
    else if (metadata_bytes > 0)
        memcpy(object->tail + key_bytes, put->metadata, metadata_bytes);
    if (!separate && rest_bytes > metadata_bytes)
        shapes_pack(put->layout, object->tail + key_bytes + metadata_bytes);
    object->since_ns = uv_hrtime();
    object->state = OBJECT_AWAITED;
    list_init(&object->by_producer);
    return object;
}

/* Frees an object that is in no table and that nobody refers to. */
static void object_discard(struct object *object)
{
    for (uint32_t i = 0; i < object->n_regions; i++) {
        struct region *region = object->uses[i].region;
        region_use_remove(&object->uses[i]);
        region_unref(region);
    }
    free(object->uses);
    slab_free(object_piece(object));
    account_unref(object->account);
    free(object);
}

void object_table_unname(struct object_table *table, struct object *object)
{
    struct object *hidden_entry = object->users ? object->users->hidden_entry : NULL;

    if (!object->named)
        return;
    if (hidden_entry) {
        object->users->hidden_entry = NULL;
        object_users_settle(object);
        map_replace(&table->by_name, hidden_entry->tail, hidden_entry->key_bytes, hidden_entry);
        hidden_entry->named = true;
    } else {
        map_remove(&table->by_name, object->tail, object->key_bytes);
    }
    object->named = false;
    object_lasting_changed(object);
    if (table->on_ended && object->generation != 0)
        table->on_ended(table->on_ended_arg, object);
}

static void tombstones_add(struct tombstones *tombstones, uint64_t generation)
{
    tombstones->generation[tombstones->next++ % TOMBSTONES] = generation;
}

static bool tombstones_have(const struct tombstones *tombstones, uint64_t generation)
{
    for (unsigned i = 0; i < TOMBSTONES; i++)
        if (tombstones->generation[i] == generation)
            return true;
    return false;
}

void object_table_forget(struct object_table *table, struct object *object)
{
    object_table_unname(table, object);
    if (object->generation != 0) {
        index_remove(&table->by_generation, object->generation);
        if (object->end == OBJECT_END_OWNER_DIED)
            tombstones_add(&table->owner_died, object->generation);
        else if (object->end == OBJECT_END_DROPPED)
            tombstones_add(&table->dropped, object->generation);
    }
}

/* Moves all bytes to the arena, packed. From then on the shapes describe them. */
static enum rdt_status copy_packed(struct object *object, const struct object_put *put, const struct object_parts *parts,
                                   struct rdt_error *err)
{
    struct slab_piece piece;
    enum rdt_status status;

    if (parts->packed_bytes == 0)
        return RDT_OK;
    status = slab_alloc(object->table->slabs, parts->packed_bytes, &piece, err);
    if (status == RDT_NO_MEMORY) /* the arena is charged to the daemon's own account, which waits for nothing */
        account_node_is_full(put->account, USAGE_BYTES, NULL);
    if (status != RDT_OK)
        return status;
    object->chunk = piece.chunk;
    object->piece = piece.index;
    memcpy(slab_addr(piece), parts->packed, parts->packed_bytes);
    return RDT_OK;
}

/* When other tensors lie in regions, the bytes of the message get a region, too, so that the whole object
 * can be shared. */
static enum rdt_status copy_to_region(struct object *object, const struct object_put *put, struct region **region_p,
                                      struct rdt_error *err)
{
    const struct slabs *slabs = object->table->slabs;
    uint8_t *addr;
    enum rdt_status status =
        region_alloc_now(slabs->regions, slabs->kind, put->inline_bytes, REGION_ALLOCATED, put->account, region_p, err);

    if (status != RDT_OK)
        return status;
    addr = region_addr(*region_p, err);
    if (!addr) {
        region_unref(*region_p);
        return err ? err->status : RDT_SYSTEM;
    }
    memcpy(addr, put->inline_data, put->inline_bytes);
    return RDT_OK;
}

static enum rdt_status set_tensors(struct object *object, const struct object_put *put, const struct object_parts *parts,
                                   struct rdt_error *err)
{
    struct region *copy = NULL;
    enum rdt_status status = RDT_OK;

    object->bytes = parts->bytes;
    if (put->n_regions == 0)
        return copy_packed(object, put, parts, err);
    object->uses = calloc(put->n_regions + 1u, sizeof *object->uses);
    if (!object->uses)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    if (put->inline_bytes > 0)
        status = copy_to_region(object, put, &copy, err);
    if (status != RDT_OK)
        return status;
    object->layout = put->layout;
    object->n_regions = put->n_regions + (copy != NULL);
    for (uint32_t i = 0; i < object->n_regions; i++) {
        /* copy_to_region has already taken the reference to the copy */
        struct region *region = i < put->n_regions ? region_ref(put->regions[i]) : copy;
        object->uses[i].region = region;
        object->uses[i].object = object;
    }
    region_uses_add(object->uses, object->n_regions, object->layout, parts->spans);
    return RDT_OK;
}

static void waiter_move(struct object_waiter *waiter, struct object *to)
{
    list_remove(&waiter->link);
    waiter->object->users->n_waiters--;
    waiter->object = to;
    list_append(&to->users->waiters, &waiter->link);
    to->users->n_waiters++;
}

/* Both objects have users. all: also waiters that may not see the object. */
static void waiters_move(struct object *from, struct object *to, bool all)
{
    list_for_each_safe (node, &from->users->waiters) {
        struct object_waiter *waiter = container_of(node, struct object_waiter, link);
        if (all || object_visible_to(to, waiter->requester))
            waiter_move(waiter, to);
    }
}

/* The object has replaced the awaited entry in the table. Waiters that may see the object wait for it now;
 * the others keep waiting in the entry, which stays beside the object. The object has users. */
static void take_over_waiters(struct object *object, struct object *awaited)
{
    waiters_move(awaited, object, false);
    object_users_settle(awaited);
    awaited->named = false;
    if (awaited->users)
        object->users->hidden_entry = awaited;
    else
        object_discard(awaited);
    object_users_settle(object);
}

static uint32_t heap_bytes(const struct object_put *put, size_t key_bytes)
{
    return (uint32_t)(sizeof(struct object) + key_bytes + put->metadata_bytes + sizeof *put->layout +
                      put->n_regions * sizeof(struct region_use) + 24 * put->layout->count + 16 * put->layout->n_dims);
}

static enum rdt_status put_parts(struct object_table *table, const struct object_put *put, struct object_parts *parts,
                                 struct object **object_p, struct rdt_error *err)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    char generated[33];
    const uint8_t *id = put->id;
    size_t id_bytes = put->id_bytes, key_bytes;
    struct object *awaited, *object;
    uint64_t want[USAGE_COUNT];
    uint64_t generation = put->generation ? put->generation : table->next_generation;
    enum rdt_status status;
    bool filling;

    if (table->by_generation.used >= table->max_objects && !put->generation) {
        account_node_is_full(put->account, USAGE_OBJECTS, NULL);
        return rdt_error_set(err, RDT_LIMIT, "this daemon holds max_objects of %llu already: free some, or raise it",
                             (unsigned long long)table->max_objects);
    }
    if (id_bytes == 0) {
        id_bytes = (size_t)snprintf(generated, sizeof generated, "o-%llx", (unsigned long long)generation);
        id = (const uint8_t *)generated;
    }
    key_bytes = owner_key(key, &put->account->owner, id, id_bytes);
    awaited = get_by_key(table, key, key_bytes);
    if (awaited && awaited->state != OBJECT_AWAITED)
        return rdt_error_set(err, RDT_EXISTS,
                             "object \"%.*s\" exists already: free it first, or put under another id (an object with "
                             "an id of your own stays when its Ref is dropped)",
                             (int)id_bytes, (const char *)id);
    object = object_new(table, put->account, key, key_bytes, id_bytes, put, parts);
    if (!object)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    object->heap_bytes = heap_bytes(put, key_bytes);
    object_charges(object, want);
    status = account_take_all(put->account, want, err);
    if (status != RDT_OK) {
        object_discard(object);
        return status;
    }
    status = set_tensors(object, put, parts, err);
    if (status == RDT_OK && object->chunk) {
        status = account_take(put->account, USAGE_BYTES, slab_bytes(object_piece(object)), err);
        want[USAGE_BYTES] = status == RDT_OK ? slab_bytes(object_piece(object)) : 0;
    }
    if (status == RDT_OK && put->ttl_ns > 0 && !detached_add(table, generation, put->ttl_ns))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    if (status == RDT_OK && !index_put(&table->by_generation, generation, object))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    if (status == RDT_OK && awaited && !object_users_get(object)) {
        index_remove(&table->by_generation, generation);
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    }
    if (status == RDT_OK && awaited) {
        map_replace(&table->by_name, object->tail, key_bytes, object);
    } else if (status == RDT_OK && !map_put(&table->by_name, object->tail, key_bytes, object)) {
        index_remove(&table->by_generation, generation);
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    }
    if (status != RDT_OK) {
        detached_remove(table, generation);
        account_undo(put->account, want);
        object_discard(object);
        return status;
    }
    object->separate = parts->separate;
    parts->separate = NULL;
    object->named = true;
    object->detached = put->ttl_ns > 0;
    object->generation = generation;
    table->next_generation += !put->generation;
    object->visibility = (uint8_t)put->visibility;
    object->transport = put->transport;
    object->producer = put->producer;
    object->producer_id = put->producer ? put->producer->id : 0;
    object->holds = 1;
    if (put->producer) {
        list_append(&put->producer->objects, &object->by_producer);
        put->producer->n_objects++;
    }
    object->snapshot = put->snapshot;
    object->loaned = put->loaned;
    object->pending = put->pending;
    /* bytes in the arena never change, so such a snapshot needs no copy */
    filling = put->pending || (put->snapshot && object->layout && !put->sealed);
    if (table->lasting && put->producer && put->producer->lasting)
        table->lasting->on_put(table->lasting->arg, object, put);
    object_set_state(object, filling ? OBJECT_FILLING : OBJECT_LIVE);
    *object_p = object;
    if (!object->layout)
        work_free(table->slabs->regions->pool, put->layout, layout_heap_bytes(put->layout));
    if (awaited) {
        take_over_waiters(object, awaited);
        if (!filling)
            object_notify_waiters(object, NULL);
    }
    return RDT_OK;
}

enum rdt_status object_table_put(struct object_table *table, const struct object_put *put, struct object **object_p,
                                 struct rdt_error *err)
{
    struct object_parts own;
    enum rdt_status status;

    if (put->parts)
        return put_parts(table, put, put->parts, object_p, err);
    status = object_parts_init(&own, put, err);
    if (status != RDT_OK)
        return status;
    status = put_parts(table, put, &own, object_p, err);
    object_parts_fini(&own);
    return status;
}

/* The entry for waiters that may not see the object; created if there is none. NULL: out of memory. */
static struct object *hidden_entry_get(struct object *object)
{
    struct object_users *users = object_users_get(object);
    struct object *hidden_entry;

    if (!users || users->hidden_entry)
        return users ? users->hidden_entry : NULL;
    hidden_entry = object_new(object->table, object->account, object->tail, object->key_bytes, object->id_bytes, NULL, NULL);
    if (hidden_entry && object_users_get(hidden_entry))
        return users->hidden_entry = hidden_entry;
    if (hidden_entry)
        object_discard(hidden_entry);
    object_users_settle(object);
    return NULL;
}

void object_table_withdraw(struct object *object, const struct rdt_error *why)
{
    struct object *hidden_entry = object_n_waiters(object) > 0 ? hidden_entry_get(object) : NULL;

    if (hidden_entry) /* object_fail puts the entry in the object's place */
        waiters_move(object, hidden_entry, true);
    object_fail(object, why);
}

enum rdt_status object_table_adopt(struct object_table *table, const struct object_put *put, struct object **object_p,
                                   struct rdt_error *err)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    size_t key_bytes = owner_key(key, &put->account->owner, put->id, put->id_bytes);
    struct object *object = object_new(table, put->account, key, key_bytes, put->id_bytes, put, NULL);

    if (!object)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a copy");
    object->layout = put->layout;
    object->bytes = layout_total_bytes(put->layout);
    object->visibility = (uint8_t)put->visibility;
    object->transport = put->transport;
    object->snapshot = put->snapshot;
    object->adopted = true;
    object->holds = 1;
    object_set_state(object, OBJECT_LIVE);
    *object_p = object;
    return RDT_OK;
}

static enum rdt_status why_gone(const struct object_table *table, const struct rdt_ref *ref, struct rdt_error *err)
{
    if (ref->generation >= table->next_generation || ref->generation < table->oldest_generation)
        return rdt_error_set(
            err, RDT_NOT_FOUND,
            "object \"%s\" is not known here: its ref is from an earlier start of this node, or was never issued", ref->id);
    if (ref->generation < table->first_generation)
        return rdt_error_set(err, RDT_FREED, "object \"%s\" ended before the last restart of its daemon", ref->id);
    if (tombstones_have(&table->owner_died, ref->generation))
        return object_error_ended(OBJECT_END_OWNER_DIED, ref->id, ref->id_bytes, err);
    return object_error_ended(tombstones_have(&table->dropped, ref->generation) ? OBJECT_END_DROPPED : OBJECT_END_FREED,
                              ref->id, ref->id_bytes, err);
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

    if (ref->id_bytes == 0 || ref->id_bytes > 128)
        return rdt_error_set(err, RDT_INVALID, "the ref has no id of 1 to 128 bytes");
    if (ref->generation != 0) {
        object = get_by_generation(table, ref->generation);
        if (!object)
            return why_gone(table, ref, err);
        /* checked before the id is compared, since the comparison would reveal the id */
        if (!sees_all && !object_visible_to(object, requester))
            return rdt_error_set(err, RDT_DENIED, "object \"%s\" is not visible to uid %u", ref->id, requester->uid);
        if (object->id_bytes != ref->id_bytes || memcmp(object_id(object), ref->id, ref->id_bytes) != 0)
            return rdt_error_set(err, RDT_NOT_FOUND, "the object with the ref's generation does not have the id \"%s\"",
                                 ref->id);
        *object_p = object;
        return RDT_OK;
    }
    object = get_by_key(table, key, owner_key(key, &owner, (const uint8_t *)ref->id, ref->id_bytes));
    if (object && object->state != OBJECT_AWAITED && !sees_all && !object_visible_to(object, requester))
        object = NULL;
    *object_p = object;
    return object && object->state != OBJECT_AWAITED ? RDT_OK : RDT_AGAIN;
}

enum rdt_status object_table_find(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                  struct object **object_p, struct rdt_error *err)
{
    struct object *object;
    enum rdt_status status = object_table_find_any(table, ref, requester, false, &object, err);

    if (status != RDT_OK)
        return status;
    if (object->state == OBJECT_FILLING)
        return RDT_AGAIN;
    if (object->state == OBJECT_DRAINING)
        return object_why_ended(object, err);
    *object_p = object;
    return RDT_OK;
}

enum rdt_status object_table_wait(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                  struct object_waiter *waiter, struct rdt_error *err)
{
    struct owner owner = owner_of_ref(ref, requester);
    uint8_t key[OWNER_KEY_MAX_BYTES];
    size_t key_bytes = owner_key(key, &owner, (const uint8_t *)ref->id, ref->id_bytes);
    struct object *object;

    object = ref->generation != 0 ? get_by_generation(table, ref->generation) : get_by_key(table, key, key_bytes);
    if (object && object->state != OBJECT_AWAITED && !object_visible_to(object, requester)) {
        object = hidden_entry_get(object);
        if (!object)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for \"%s\"", ref->id);
    }
    assert(!object || object->state == OBJECT_AWAITED || object->state == OBJECT_FILLING);
    if (object && !object_users_get(object))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for \"%s\"", ref->id);
    if (!object) {
        struct account *account;
        if (map_count(&table->by_name) >= table->max_objects)
            return rdt_error_set(err, RDT_LIMIT,
                                 "this daemon already holds max_objects of %llu, including those that are waited for",
                                 (unsigned long long)table->max_objects);
        account = account_get(table->accounts, &owner);
        object = account ? object_new(table, account, key, key_bytes, ref->id_bytes, NULL, NULL) : NULL;
        account_unref(account);
        if (!object || !object_users_get(object) || !map_put(&table->by_name, object->tail, key_bytes, object)) {
            if (object) {
                free(object->users);
                object_discard(object);
            }
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for \"%s\"", ref->id);
        }
        object->named = true;
        event(table->events, RDT__PB__LIST_KIND__LIST_KIND_OBJECTS, "awaited", object);
    }
    waiter->object = object;
    waiter->requester = requester;
    list_append(&object->users->waiters, &waiter->link);
    object->users->n_waiters++;
    return RDT_OK;
}

bool object_wait_freed(struct object *object, struct object_waiter *waiter)
{
    struct object_users *users = object_users_get(object);

    if (!users)
        return false;
    waiter->object = object;
    list_append(&users->freed_waiters, &waiter->link);
    users->n_waiters++;
    return true;
}

void object_waiter_remove(struct object_waiter *waiter)
{
    struct object *object = waiter->object;

    if (!object)
        return;
    list_remove(&waiter->link);
    waiter->object = NULL;
    object->users->n_waiters--;
    object_users_settle(object);
    if (object->state == OBJECT_AWAITED && !object->users) {
        struct object *front = object->named ? NULL : map_get(&object->table->by_name, object->tail, object->key_bytes);
        if (front) {
            front->users->hidden_entry = NULL;
            object_users_settle(front);
        }
        object_set_state(object, OBJECT_GONE);
        object_table_forget(object->table, object);
        object_discard(object);
    }
}

void object_ref(const struct object *object, struct rdt_ref *ref_p)
{
    const struct node *node = object->table->node;

    *ref_p = (struct rdt_ref){.generation = object->generation, .uid = object->account->owner.uid};
    memcpy(ref_p->node, node->uuid, sizeof ref_p->node);
    memcpy(ref_p->tenant, object->account->owner.tenant, sizeof ref_p->tenant);
    memcpy(ref_p->address, node->address, sizeof ref_p->address);
    memcpy(ref_p->id, object_id(object), object->id_bytes);
    ref_p->id_bytes = (uint8_t)object->id_bytes;
}
