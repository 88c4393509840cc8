/* SPDX-License-Identifier: Apache-2.0 */
/* Puts objects: checks the id, charges the owner, stores the tensors and enters the object into the table. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/objects/client.h"
#include "daemon/objects/detached.h"
#include "daemon/objects/object_table_impl.h"
#include "rdt_put_flags.h"
#include "wire_ref.h"

/* Moves all bytes to the arena, packed. From then on the shapes describe them. */
static enum rdt_status copy_packed(struct object *object, const struct object_put *put, const struct object_content *content,
                                   struct rdt_error *err)
{
    struct slab_piece piece;
    enum rdt_status status;

    if (content->packed_bytes == 0)
        return RDT_OK;
    status = slab_alloc(object->table->slabs, content->packed_bytes, &piece, err);
    if (status == RDT_NO_MEMORY) /* the arena is charged to the daemon's own account, which waits for nothing */
        account_node_is_full(put->account, USAGE_BYTES, NULL);
    if (status != RDT_OK)
        return status;
    object->memory.chunk = piece.chunk;
    object->memory.piece = piece.index;
    memcpy(slab_addr(piece), content->packed, content->packed_bytes);
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

static enum rdt_status set_tensors(struct object *object, const struct object_put *put, const struct object_content *content,
                                   struct rdt_error *err)
{
    struct region *copy = NULL;
    enum rdt_status status = RDT_OK;

    object->bytes = content->bytes;
    if (put->n_regions == 0)
        return copy_packed(object, put, content, err);
    object->memory.uses = calloc(put->n_regions + 1u, sizeof *object->memory.uses);
    if (!object->memory.uses)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    if (put->inline_bytes > 0)
        status = copy_to_region(object, put, &copy, err);
    if (status != RDT_OK)
        return status;
    object->memory.layout = put->layout;
    object->memory.n_regions = put->n_regions + (copy != NULL);
    for (uint32_t i = 0; i < object->memory.n_regions; i++) {
        /* copy_to_region has already taken the reference to the copy */
        struct region *region = i < put->n_regions ? region_ref(put->regions[i]) : copy;
        object->memory.uses[i].region = region;
        object->memory.uses[i].object = object;
    }
    region_uses_add(object->memory.uses, object->memory.n_regions, object->memory.layout, content->spans);
    return RDT_OK;
}

static uint32_t heap_bytes(const struct object_put *put, size_t key_bytes)
{
    return (uint32_t)(sizeof(struct object) + key_bytes + put->metadata_bytes + sizeof *put->layout +
                      put->n_regions * sizeof(struct region_use) + 24 * put->layout->count + 16 * put->layout->n_dims);
}

/* Finds or adds the transport's name, so that an object stores one byte of it. */
static enum rdt_status set_transport(struct object *object, const char *name, struct rdt_error *err)
{
    const char **known = object->table->transports;
    uint8_t i = 0;

    while (i < OBJECT_TRANSPORTS && known[i] && strcmp(known[i], name) != 0)
        i++;
    if (i == OBJECT_TRANSPORTS)
        return rdt_error_set(
            err, RDT_LIMIT,
            "this daemon remembers the names of %u transports that puts have preferred, and no more: restart it, or "
            "name no transport",
            OBJECT_TRANSPORTS - 1);
    known[i] = name;
    object->transport = i;
    return RDT_OK;
}

static enum rdt_status put_content(struct object_table *table, const struct object_put *put, struct object_content *content,
                                   struct object **object_p, struct rdt_error *err)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    char generated[WIRE_REF_GENERATED_BYTES];
    const uint8_t *id = put->id;
    size_t id_bytes = put->id_bytes, key_bytes;
    struct object *awaited, *object, *old = NULL;
    uint64_t want[USAGE_COUNT];
    uint64_t generation = put->generation;
    uint64_t heap, record = 0;
    enum rdt_status status = RDT_OK;
    bool filling;

    if (table->by_generation.used >= table->max_objects && !put->generation) {
        account_node_lacks(put->account, USAGE_OBJECTS, 1);
        return rdt_error_set(err, RDT_LIMIT, "this daemon holds max_objects of %llu already: free some, or raise it",
                             (unsigned long long)table->max_objects);
    }
    if (generation == 0)
        generation = object_table_new_generation(table, put->account);
    if (id_bytes == 0) {
        id_bytes = wire_ref_generated_id(generation, generated);
        id = (const uint8_t *)generated;
    }
    key_bytes = owner_key(key, &put->account->owner, id, id_bytes);
    awaited = object_table_by_key(table, key, key_bytes);
    if (awaited && awaited->state != OBJECT_AWAITED) {
        old = awaited;
        awaited = NULL;
    }
    if (old && put->id_use == ID_MUST_BE_FREE)
        return rdt_error_set(err, RDT_EXISTS,
                             "object \"%.*s\" exists already: free it first, replace it, or put under another id (an object "
                             "with an id of your own stays when its Ref is dropped)",
                             (int)id_bytes, (const char *)id);
    if (old) {
        status = object_may_replace(put->producer, old, err);
        if (status != RDT_OK)
            return status;
    }
    heap = heap_bytes(put, key_bytes);
    if (table->lasting) {
        status = table->lasting->check_put(table->lasting->arg, put, heap + content->packed_bytes, &record, err);
        if (status != RDT_OK)
            return status;
    }
    object = object_new(table, put->account, key, key_bytes, id_bytes, put, content);
    if (!object)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    object->heap_bytes = (uint32_t)(heap + record + (put->eviction == EVICTION_ALLOWED ? CACHE_HEAP_BYTES : 0));
    object_charges(object, want);
    status = set_transport(object, put->transport, err);
    if (status == RDT_OK && put->eviction == EVICTION_ALLOWED)
        status = cache_prepare(&table->cache, object, put->priority, content->bytes + object->heap_bytes, err);
    if (status == RDT_OK)
        status = account_take_all(put->account, want, err);
    if (status != RDT_OK) {
        object_discard(object);
        return status;
    }
    status = set_tensors(object, put, content, err);
    if (status == RDT_OK && object->memory.chunk) {
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
    if (old)
        object_set_key(object, KEY_TAKES);
    filling = put->pending || object_put_copies(put, object);
    if (status == RDT_OK && old) {
        status = filling ? RDT_OK : object_prepare_id(object, err);
        if (status != RDT_OK)
            index_remove(&table->by_generation, generation);
    } else if (status == RDT_OK && awaited) {
        map_replace(&table->by_name, object->tail_data, key_bytes, object);
    } else if (status == RDT_OK && !map_put(&table->by_name, object->tail_data, key_bytes, object)) {
        index_remove(&table->by_generation, generation);
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    }
    if (status != RDT_OK) {
        detached_remove(table, generation);
        account_undo(put->account, want);
        object_discard(object);
        return status;
    }
    object->tail.separate = content->separate;
    content->separate = NULL;
    if (object->access.key == KEY_NONE)
        object_set_key(object, KEY_OWN);
    object->survives.detached = put->ttl_ns > 0;
    object->generation = generation;
    object->access.visibility = (uint8_t)put->visibility;
    object->producer = put->producer;
    object->holds = 1;
    if (put->producer) {
        list_append(&put->producer->objects, &object->by_producer);
        put->producer->n_objects++;
    }
    object->sum = put->sum;
    object->changes.promise = put->promise;
    object->changes.loaned = put->loaned;
    object->pending = put->pending;
    if (table->lasting && put->producer && put->producer->session.lasting)
        table->lasting->on_put(table->lasting->arg, object, put);
    if (filling)
        object_set_state(object, OBJECT_FILLING);
    else
        object_set_live(object);
    *object_p = object;
    if (!object->memory.layout && !content->borrowed)
        work_free(table->slabs->regions->pool, put->layout, layout_heap_bytes(put->layout));
    if (awaited)
        object_take_over_waiters(object, awaited);
    if (!filling)
        object_take_id(object);
    return RDT_OK;
}

enum object_promise object_promise_of(uint32_t flags)
{
    return flags & RDT_PUT_SNAPSHOT ? OBJECT_SEALED : flags & RDT_PUT_IMMUTABLE ? OBJECT_BY_WORD : OBJECT_MAY_CHANGE;
}

/* Bytes in the arena never change, so a snapshot there needs no copy. */
bool object_put_copies(const struct object_put *put, const struct object *object)
{
    return put->promise != OBJECT_MAY_CHANGE && object->memory.layout && !put->kept;
}

enum rdt_status object_table_put(struct object_table *table, const struct object_put *put, struct object **object_p,
                                 struct rdt_error *err)
{
    struct object_content own;
    enum rdt_status status;

    if (put->content)
        return put_content(table, put, put->content, object_p, err);
    status = object_content_init(&own, put, err);
    if (status != RDT_OK)
        return status;
    status = put_content(table, put, &own, object_p, err);
    object_content_fini(&own);
    return status;
}

enum rdt_status object_table_adopt(struct object_table *table, const struct object_put *put, struct object **object_p,
                                   struct rdt_error *err)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    size_t key_bytes = owner_key(key, &put->account->owner, put->id, put->id_bytes);
    struct object *object = object_new(table, put->account, key, key_bytes, put->id_bytes, put, NULL);
    enum rdt_status status;

    if (!object)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a copy");
    status = set_transport(object, put->transport, err);
    if (status != RDT_OK) {
        object_discard(object);
        return status;
    }
    object->memory.layout = put->layout;
    object->bytes = layout_total_bytes(put->layout);
    object->access.visibility = (uint8_t)put->visibility;
    object->changes.promise = put->promise;
    object->kind = OBJECT_REPLICA;
    object->holds = 1;
    object_set_state(object, OBJECT_LIVE);
    *object_p = object;
    return RDT_OK;
}
