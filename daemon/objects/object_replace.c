/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that are put in the place of others (RDT_PUT_REPLACE): when such an object is live, it takes the id in one step.
 *
 *     put ─► FILLING, KEY_TAKES ── object_prepare_id, live, object_take_id ─► LIVE, KEY_OWN
 *            the old object: KEY_OWN ──────────────────────────────────────► KEY_LOST, and its producer's hold ends
 *
 * Somebody else may have freed the old object meanwhile, or put another one: whatever has the id then is replaced, if it may be
 * (object_may_replace). Otherwise the put fails. An old object that is FILLING itself goes on to be filled, for those who wait
 * for it, and is freed when it is live. */
#include <assert.h>

#include "daemon/objects/client.h"
#include "daemon/objects/object_table_impl.h"

static int id_bytes(const struct object *object)
{
    return object->tail.id_bytes;
}

enum rdt_status object_may_replace(const struct client *producer, const struct object *old, struct rdt_error *err)
{
    const char *id = (const char *)object_id(old);

    if (old->producer && old->producer != producer && !object_outlives_session(old))
        return rdt_error_set(
            err, RDT_EXISTS,
            "object \"%.*s\" is held by its producer, client %llu, and is not detached or evictable: only that client may "
            "replace it; other clients of the same user may free it by force first",
            id_bytes(old), id, (unsigned long long)object_producer_id(old));
    if (old->file.stored != OBJECT_NOT_STORED && old->survives.published && !cache_has(old))
        return rdt_error_set(
            err, RDT_EXISTS,
            "object \"%.*s\" is stored on the disk for a published name: unpublish the name first, or put under "
            "another id",
            id_bytes(old), id);
    return RDT_OK;
}

static struct object *holder_of_id(const struct object *object)
{
    return object_table_by_key(object->table, object->tail_data, object->tail.key_bytes);
}

enum rdt_status object_prepare_id(struct object *object, struct rdt_error *err)
{
    struct object *old = object->access.key == KEY_TAKES ? holder_of_id(object) : NULL;
    bool is_object = old && old->state != OBJECT_AWAITED;
    enum rdt_status status = RDT_OK;

    if (object->access.key != KEY_TAKES)
        return RDT_OK;
    if (is_object && object->state == OBJECT_FILLING)
        status = object_may_replace(object->producer, old, err);
    if (status != RDT_OK)
        return status;
    if (old && !object_users_get(object)) /* for those who wait for the id */
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    if (old)
        return RDT_OK;
    if (!map_put(&object->table->by_name, object->tail_data, object->tail.key_bytes, object))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    object_set_key(object, KEY_OWN);
    return RDT_OK;
}

/* The waiters of the id to whom the new object is visible wait for it from now on; the others, in the entry beside it. */
static void take_waiters(struct object *object, struct object *old)
{
    struct object *entry = old->state == OBJECT_AWAITED ? old : old->users ? old->users->hidden_entry : NULL;

    if (entry && entry != old) {
        old->users->hidden_entry = NULL;
        object_users_settle(old);
    }
    if (entry)
        object_take_over_waiters(object, entry);
    else
        object_users_settle(object);
}

static void lose_id(struct object *old)
{
    struct object_table *table = old->table;

    object_hold(old);
    object_set_key(old, KEY_LOST);
    if (old->record)
        object_lasting_changed(old);
    if (old->state == OBJECT_LIVE) {
        object_free(old, false, OBJECT_END_FREED);
        if (old->holds > 1 && table->on_lost_id)
            table->on_lost_id(table->on_ended_arg, old);
    }
    object_drop(old);
}

/* Nothing has run since object_prepare_id that could end the old object, or free the users. */
static void take(struct object *object)
{
    struct object *old = holder_of_id(object);
    bool is_object = old && old->state != OBJECT_AWAITED;

    assert(old);
    map_replace(&object->table->by_name, object->tail_data, object->tail.key_bytes, object);
    object_set_key(object, KEY_OWN);
    object->access.took_key = is_object;
    object->access.took_file = is_object && (old->cached || old->file.stored != OBJECT_NOT_STORED);
    if (old->state == OBJECT_FILLING)
        object_take_over_id(object, old);
    take_waiters(object, old);
    if (is_object)
        lose_id(old); /* its record says so before that of the new object stops saying that it takes the id */
    if (object->record)
        object_lasting_changed(object);
}

void object_take_id(struct object *object)
{
    bool lost = object->access.key == KEY_LOST;

    if (object->access.key == KEY_TAKES)
        take(object);
    object_hold(object);
    object_notify_waiters(object, NULL);
    if (lost)
        object_free(object, false, OBJECT_END_FREED);
    object_drop(object);
}

void object_leave_id(struct object *object, bool takes_it_again)
{
    map_remove(&object->table->by_name, object->tail_data, object->tail.key_bytes);
    object_set_key(object, takes_it_again ? KEY_TAKES : KEY_LOST);
}
