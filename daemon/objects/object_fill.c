/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of an object: it gets memory or moves, its put fails, its producer or somebody else frees it. */
#include <assert.h>
#include <stdlib.h>

#include "daemon/objects/client.h"
#include "daemon/objects/detached.h"
#include "daemon/objects/object_table_impl.h"
#include "daemon/objects/transit.h"

static void forget_producer(struct object *object)
{
    if (!object->producer)
        return;
    list_remove(&object->by_producer);
    object->producer->n_objects--;
    object->ended_producer = object->producer->id;
    object->producer = NULL;
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        region_left(object->memory.uses[i].region);
}

static void drop_producer(struct object *object, enum object_end end)
{
    if (!object_has_producer_hold(object))
        return;
    object->end = end;
    forget_producer(object);
    if (object->survives.detached) {
        detached_remove(object->table, object->generation);
        object->survives.detached = false;
    }
    cache_remove(object);
    object_lasting_changed(object);
    object_drop(object);
}

static void stop_filling(struct object *object, const struct rdt_error *why)
{
    object_unname(object);
    object_set_state(object, OBJECT_DRAINING);
    object_notify_waiters(object, why);
}

/* ---- holds of an object that was freed by force ---- */

struct object_forced {
    struct slice slice;
    struct list link;      /* in table->forced */
    struct object *object; /* held */
};

static void end_forced(struct object_forced *forced)
{
    struct object *object = forced->object;

    list_remove(&forced->link);
    free(forced);
    object_drop(object);
}

static bool drop_some_holds(struct slice *slice, uint64_t until_ns)
{
    struct object_forced *forced = container_of(slice, struct object_forced, slice);
    struct object_table *table = forced->object->table;

    if (!table->drop_holds(table->arg, forced->object, until_ns))
        return false;
    end_forced(forced);
    return true;
}

/* Takes its names from it, and drops the holds for later readers, in slices. */
static void drop_holds(struct object *object)
{
    struct object_table *table = object->table;
    struct object_forced *forced = table->deadlines ? calloc(1, sizeof *forced) : NULL;

    if (!forced) {
        (void)table->drop_holds(table->arg, object, UINT64_MAX);
        return;
    }
    forced->object = object;
    forced->slice.run = drop_some_holds;
    list_append(&table->forced, &forced->link);
    object_hold(object);
    slice_begin(&table->deadlines->slices, &forced->slice);
}

void object_forced_end(struct object_table *table)
{
    list_drain (struct object_forced, forced, &table->forced, link) {
        slice_stop(&forced->slice);
        (void)table->drop_holds(table->arg, forced->object, UINT64_MAX);
        end_forced(forced);
    }
}

void object_free(struct object *object, bool force, enum object_end end)
{
    struct object_table *table = object->table;
    struct rdt_error why;

    object_hold(object); /* until this function has finished with it */
    if (object_has_producer_hold(object) || (force && !object->access.forced))
        object_event(object, "freed");
    if (object->state == OBJECT_FILLING) {
        object->end = end;
        (void)object_why_ended(object, &why);
        stop_filling(object, &why);
    }
    if (force && !object->access.forced) {
        object->access.forced = true;
        if (object->record)
            object_lasting_changed(object);
        if (object->state == OBJECT_LIVE) {
            object_unname(object);
            object_set_state(object, OBJECT_DRAINING);
        }
        transit_end(object);
        if (table->drop_holds)
            drop_holds(object);
    }
    drop_producer(object, end);
    object_drop(object);
}

static void on_detached_over(struct object *object)
{
    object_free(object, false, OBJECT_END_EXPIRED);
}

void object_set_live(struct object *object)
{
    if (object->survives.detached)
        (void)detached_begin(object, on_detached_over); /* out of memory: it begins when the session ends */
    object_set_state(object, OBJECT_LIVE);
    if (cache_has(object))
        cache_add(object);
}

static bool begin_without_session(struct object *object)
{
    if (object->state == OBJECT_FILLING || !object_outlives_session(object))
        return false;
    return !object->survives.detached || detached_begin(object, on_detached_over);
}

void object_producer_ended(struct object *object)
{
    if (!begin_without_session(object)) {
        object_free(object, false, OBJECT_END_OWNER_DIED);
        return;
    }
    forget_producer(object);
    object_lasting_changed(object);
    object_event(object, "detached");
}

/* ---- filling ---- */

static enum rdt_status use_regions(struct object *object, const struct layout *layout, struct region **regions,
                                   uint32_t n_regions, struct rdt_error *err)
{
    struct region_use *uses = calloc(n_regions + 1u, sizeof *uses);

    assert(object->pins == 0);
    if (!uses)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    for (uint32_t i = 0; i < n_regions; i++) {
        uses[i].region = region_ref(regions[i]);
        uses[i].object = object;
    }
    region_uses_add(uses, n_regions, layout, NULL);
    object->memory.uses = uses;
    object->memory.n_regions = n_regions;
    return RDT_OK;
}

/* Replaces its memory and layout. Takes the layout on success. If the object has a record, that is written anew before the old
 * memory ends, so that it never names memory that is gone. */
static enum rdt_status set_memory(struct object *object, struct layout *take_layout, struct region **regions,
                                  uint32_t n_regions, struct rdt_error *err)
{
    const struct lasting *lasting =
        object->state == OBJECT_LIVE && object->record && object->kind != OBJECT_REPLICA ? object->table->lasting : NULL;
    struct region_use *old_uses = object->memory.uses;
    struct layout *old_layout = object->memory.layout;
    uint32_t n_old = object->memory.n_regions;
    enum rdt_status status = use_regions(object, take_layout, regions, n_regions, err);

    if (status != RDT_OK)
        return status;
    object->cover_known = false;
    object->memory.layout = take_layout;
    if (lasting)
        lasting->on_object_moved(lasting->arg, object);
    object_drop_uses(old_uses, n_old); /* the memory that was copied may be written again */
    work_free(object->table->slabs->regions->pool, old_layout, old_layout ? layout_heap_bytes(old_layout) : 0);
    return RDT_OK;
}

enum rdt_status object_fill(struct object *object, struct layout *take_layout, struct region **regions, uint32_t n_regions,
                            struct rdt_error *err)
{
    enum rdt_status status = set_memory(object, take_layout, regions, n_regions, err);

    assert(object->state == OBJECT_FILLING);
    if (status != RDT_OK)
        return status;
    object_set_live(object);
    return RDT_OK;
}

enum rdt_status object_move(struct object *object, struct layout *take_layout, struct region *region, struct rdt_error *err)
{
    uint8_t promise = object->changes.promise;
    bool loaned = object->changes.loaned;
    enum rdt_status status;

    assert(object->state == OBJECT_LIVE && object->memory.layout);
    object->changes.promise = OBJECT_SEALED; /* set_memory writes its record */
    object->changes.loaned = false;
    status = set_memory(object, take_layout, &region, 1, err);
    if (status != RDT_OK) {
        object->changes.promise = promise;
        object->changes.loaned = loaned;
    }
    return status;
}

void object_ready(struct object *object)
{
    assert(object->state == OBJECT_FILLING && object->pending);
    object->pending = false;
    object_set_live(object);
}

enum rdt_status object_attach(struct object *object, struct region **regions, uint32_t n_regions, struct rdt_error *err)
{
    assert(object->memory.n_regions == 0);
    return use_regions(object, object->memory.layout, regions, n_regions, err);
}

void object_fail(struct object *object, const struct rdt_error *why)
{
    if (object->state != OBJECT_FILLING)
        return;
    object_hold(object);
    object_users_settle(object); /* object_prepare_id may have made some */
    stop_filling(object, why);
    drop_producer(object, OBJECT_END_FREED);
    object_drop(object);
}
