#include "daemon/object_table.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <uv.h>

#include "daemon/client.h"
#include "daemon/log.h"

static const struct sm_state states[] = {
    [OBJECT_AWAITED] = {"awaited", 1u << OBJECT_LIVE | 1u << OBJECT_GONE},
    [OBJECT_LIVE] = {"live", 1u << OBJECT_DRAINING | 1u << OBJECT_GONE},
    [OBJECT_DRAINING] = {"draining", 1u << OBJECT_GONE},
    [OBJECT_GONE] = {"gone", 0},
};

void object_table_init(struct object_table *table, const struct node *node, uint64_t max_objects)
{
    uint32_t boot = 0;

    *table = (struct object_table){.node = node, .max_objects = max_objects};
    map_init(&table->by_name);
    map_init(&table->by_generation);
    if (getrandom(&boot, sizeof boot, 0) != (ssize_t)sizeof boot)
        boot = (uint32_t)uv_hrtime();
    table->first_generation = ((uint64_t)(boot & 0x7fffff) << 40) + 1;
    table->next_generation = table->first_generation;
}

void object_table_fini(struct object_table *table)
{
    map_fini(&table->by_name);
    map_fini(&table->by_generation);
}

static size_t make_key(uint8_t *key, const struct owner *owner, const uint8_t *id, size_t id_bytes, const uint8_t **id_p)
{
    size_t tenant = strlen(owner->tenant) + 1;

    memcpy(key, &owner->uid, 4);
    memcpy(key + 4, owner->tenant, tenant);
    memcpy(key + 4 + tenant, id, id_bytes);
    if (id_p)
        *id_p = key + 4 + tenant;
    return 4 + tenant + id_bytes;
}

static struct object *object_new(struct object_table *table, const struct owner *owner, const uint8_t *id, size_t id_bytes)
{
    struct object *object = calloc(1, sizeof *object);

    if (!object)
        return NULL;
    object->table = table;
    object->owner = *owner;
    object->key_bytes = make_key(object->key, owner, id, id_bytes, &object->id);
    object->id_bytes = id_bytes;
    object->since_ns = uv_hrtime();
    sm_init(&object->sm, states, sizeof states / sizeof states[0], OBJECT_AWAITED);
    list_init(&object->by_producer);
    list_init(&object->holders);
    list_init(&object->waiters);
    list_init(&object->freed_waiters);
    if (!map_put(&table->by_name, object->key, object->key_bytes, object)) {
        free(object);
        return NULL;
    }
    object->named = true;
    return object;
}

void object_table_unname(struct object_table *table, struct object *object)
{
    if (object->named)
        map_remove(&table->by_name, object->key, object->key_bytes);
    object->named = false;
}

void object_table_forget(struct object_table *table, struct object *object)
{
    object_table_unname(table, object);
    if (object->generation != 0) {
        map_remove_u64(&table->by_generation, object->generation);
        if (object->end == OBJECT_END_OWNER_DIED)
            table->tombstones[table->next_tombstone++ % TOMBSTONES] = object->generation;
    }
}

static enum rdt_status set_tensors(struct object *object, const struct object_put *put, struct rdt_error *err)
{
    uint32_t n = put->n_regions;

    object->uses = calloc(n ? n : 1, sizeof *object->uses);
    if (put->metadata_bytes > 0)
        object->metadata = malloc(put->metadata_bytes);
    if (!object->uses || (put->metadata_bytes > 0 && !object->metadata)) {
        free(object->uses);
        free(object->metadata);
        object->uses = NULL;
        object->metadata = NULL;
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    }
    if (put->metadata_bytes > 0)
        memcpy(object->metadata, put->metadata, put->metadata_bytes);
    object->metadata_bytes = put->metadata_bytes;
    object->layout = put->layout;
    object->bytes = layout_total_bytes(put->layout);
    object->n_regions = n;
    for (uint32_t i = 0; i < n; i++) {
        struct region *region = put->regions[i];
        region_ref(region);
        region_use_add(&object->uses[i], region, object->layout, i);
    }
    return RDT_OK;
}

enum rdt_status object_table_put(struct object_table *table, const struct object_put *put, struct object **object_p,
                                 struct rdt_error *err)
{
    uint8_t key[sizeof((struct object *)0)->key];
    char generated[33];
    const uint8_t *id = put->id;
    size_t id_bytes = put->id_bytes, key_bytes;
    struct object *object;
    struct list told;
    enum rdt_status status;

    if (map_count(&table->by_generation) >= table->max_objects)
        return rdt_error_set(err, RDT_LIMIT, "this daemon holds max_objects of %llu already",
                             (unsigned long long)table->max_objects);
    if (id_bytes == 0) {
        id_bytes = (size_t)snprintf(generated, sizeof generated, "o-%llx", (unsigned long long)table->next_generation);
        id = (const uint8_t *)generated;
    }
    key_bytes = make_key(key, put->owner, id, id_bytes, NULL);
    object = map_get(&table->by_name, key, key_bytes);
    if (object && object->sm.state != OBJECT_AWAITED)
        return rdt_error_set(err, RDT_EXISTS, "object \"%.*s\" exists already: free it first, or put under another id",
                             (int)id_bytes, (const char *)id);
    if (!object && !(object = object_new(table, put->owner, id, id_bytes)))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    status = set_tensors(object, put, err);
    if (status == RDT_OK && !map_put_u64(&table->by_generation, table->next_generation, object)) {
        for (uint32_t i = 0; i < object->n_regions; i++) {
            struct region *region = object->uses[i].region;
            region_use_remove(&object->uses[i]);
            region_unref(region);
        }
        free(object->uses);
        free(object->metadata);
        object->uses = NULL;
        object->metadata = NULL;
        object->layout = NULL;
        object->n_regions = 0;
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    }
    if (status != RDT_OK) {
        if (list_empty(&object->waiters)) {
            object_table_unname(table, object);
            free(object);
        }
        return status;
    }
    object->generation = table->next_generation++;
    object->visibility = put->visibility;
    (void)snprintf(object->transport, sizeof object->transport, "%s", put->transport);
    object->producer = put->producer;
    object->producer_id = put->producer ? put->producer->id : 0;
    object->since_ns = uv_hrtime();
    object->holds = 1;
    if (put->producer) {
        list_append(&put->producer->objects, &object->by_producer);
        put->producer->n_objects++;
    }
    sm_move(&object->sm, OBJECT_LIVE);

    /* Those who parked: a second list, because their events may start new waits or drop the object. */
    list_init(&told);
    while (!list_empty(&object->waiters)) {
        struct list *node = list_first(&object->waiters);
        list_remove(node);
        list_append(&told, node);
    }
    object_hold(object);
    while (!list_empty(&told)) {
        struct object_waiter *waiter = list_entry(list_first(&told), struct object_waiter, link);
        object_waiter_remove(waiter);
        waiter->on_event(waiter, object);
    }
    *object_p = object;
    assert(object->holds > 1);
    object_drop(object);
    return RDT_OK;
}

static enum rdt_status why_gone(const struct object_table *table, const struct rdt_ref *ref, struct rdt_error *err)
{
    if (ref->generation >= table->next_generation || ref->generation < table->first_generation)
        return rdt_error_set(
            err, RDT_NOT_FOUND,
            "object \"%s\" is not known here: its ref is from an earlier start of this node, or was never given", ref->id);
    for (unsigned i = 0; i < TOMBSTONES; i++)
        if (table->tombstones[i] == ref->generation)
            return rdt_error_set(err, RDT_OWNER_DIED, "object \"%s\" went with the client that put it", ref->id);
    return rdt_error_set(err, RDT_FREED, "object \"%s\" was freed", ref->id);
}

enum rdt_status object_table_find_any(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                      struct object **object_p, struct rdt_error *err)
{
    uint8_t key[sizeof((struct object *)0)->key];
    struct owner owner = *requester;
    struct object *object;

    if (ref->id_bytes == 0 || ref->id_bytes > 128)
        return rdt_error_set(err, RDT_INVALID, "a ref without an id");
    if (ref->generation != 0) {
        object = map_get_u64(&table->by_generation, ref->generation);
        if (!object)
            return why_gone(table, ref, err);
        if (object->id_bytes != ref->id_bytes || memcmp(object->id, ref->id, ref->id_bytes) != 0)
            return rdt_error_set(err, RDT_NOT_FOUND, "no object \"%s\" of that generation", ref->id);
        *object_p = object;
        return RDT_OK;
    }
    if (!ref->any_owner) {
        owner.uid = ref->uid;
        memcpy(owner.tenant, ref->tenant, sizeof owner.tenant);
    }
    object = map_get(&table->by_name, key, make_key(key, &owner, (const uint8_t *)ref->id, ref->id_bytes, NULL));
    if (!object || object->sm.state == OBJECT_AWAITED) {
        if (object)
            *object_p = object;
        else
            *object_p = NULL;
        return RDT_AGAIN;
    }
    *object_p = object;
    return RDT_OK;
}

enum rdt_status object_table_find(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                  struct object **object_p, struct rdt_error *err)
{
    struct object *object;
    enum rdt_status status = object_table_find_any(table, ref, requester, &object, err);

    if (status != RDT_OK)
        return status;
    if (!object_visible_to(object, requester))
        return rdt_error_set(err, RDT_DENIED, "object \"%s\" belongs to uid %u and is not visible to uid %u", ref->id,
                             object->owner.uid, requester->uid);
    if (object->sm.state == OBJECT_DRAINING)
        return rdt_error_set(err, object->end == OBJECT_END_OWNER_DIED ? RDT_OWNER_DIED : RDT_FREED, "object \"%s\" was freed",
                             ref->id);
    *object_p = object;
    return RDT_OK;
}

enum rdt_status object_table_wait(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                  struct object_waiter *waiter, struct rdt_error *err)
{
    uint8_t key[sizeof((struct object *)0)->key];
    struct owner owner = *requester;
    struct object *object;

    if (!ref->any_owner) {
        owner.uid = ref->uid;
        memcpy(owner.tenant, ref->tenant, sizeof owner.tenant);
    }
    object = map_get(&table->by_name, key, make_key(key, &owner, (const uint8_t *)ref->id, ref->id_bytes, NULL));
    assert(!object || object->sm.state == OBJECT_AWAITED);
    if (!object) {
        if (map_count(&table->by_name) >= table->max_objects)
            return rdt_error_set(err, RDT_LIMIT, "this daemon holds max_objects of %llu already, awaited ones included",
                                 (unsigned long long)table->max_objects);
        object = object_new(table, &owner, (const uint8_t *)ref->id, ref->id_bytes);
        if (!object)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for \"%s\"", ref->id);
    }
    waiter->object = object;
    waiter->requester = *requester;
    list_append(&object->waiters, &waiter->link);
    object->n_waiters++;
    return RDT_OK;
}

void object_wait_freed(struct object *object, struct object_waiter *waiter)
{
    waiter->object = object;
    list_append(&object->freed_waiters, &waiter->link);
    object->n_waiters++;
}

void object_waiter_remove(struct object_waiter *waiter)
{
    struct object *object = waiter->object;

    if (!object)
        return;
    list_remove(&waiter->link);
    waiter->object = NULL;
    object->n_waiters--;
    if (object->sm.state == OBJECT_AWAITED && object->n_waiters == 0) {
        object_table_forget(object->table, object);
        free(object);
    }
}

void object_ref(const struct object *object, struct rdt_ref *ref_p)
{
    const struct node *node = object->table->node;

    *ref_p = (struct rdt_ref){.generation = object->generation, .uid = object->owner.uid};
    memcpy(ref_p->node, node->uuid, sizeof ref_p->node);
    memcpy(ref_p->tenant, object->owner.tenant, sizeof ref_p->tenant);
    memcpy(ref_p->address, node->address, sizeof ref_p->address);
    memcpy(ref_p->id, object->id, object->id_bytes);
    ref_p->id_bytes = (uint8_t)object->id_bytes;
}
