/* SPDX-License-Identifier: Apache-2.0 */
/* Waiters for objects: those for an id that nobody has put, which wait in an AWAITED entry; those to whom the object of the id
 * is hidden, whose entry lies beside it; and those for the end of an object. object_notify.c notifies them. */
#include <assert.h>
#include <stdlib.h>

#include "daemon/objects/object_table_impl.h"

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
    list_each_safe (struct object_waiter, waiter, &from->users->waiters, link)
        if (all || object_visible_to(to, waiter->requester))
            waiter_move(waiter, to);
}

void object_take_over_waiters(struct object *object, struct object *awaited)
{
    waiters_move(awaited, object, false);
    object_users_settle(awaited);
    if (awaited->access.key == KEY_OWN) /* otherwise it was beside the object before */
        object_set_key(awaited, KEY_NONE);
    if (awaited->users)
        object->users->hidden_entry = awaited;
    else
        object_discard(awaited);
    object_users_settle(object);
}

/* The entry for waiters that may not see the object; created if there is none. NULL: out of memory. */
static struct object *hidden_entry_get(struct object *object)
{
    struct object_users *users = object_users_get(object);
    struct object *hidden_entry;

    if (!users || users->hidden_entry)
        return users ? users->hidden_entry : NULL;
    hidden_entry = object_new(object->table, object->account, object->tail_data, object->tail.key_bytes, object->tail.id_bytes,
                              NULL, NULL);
    if (hidden_entry && object_users_get(hidden_entry))
        return users->hidden_entry = hidden_entry;
    if (hidden_entry)
        object_discard(hidden_entry);
    object_users_settle(object);
    return NULL;
}

void object_table_withdraw(struct object *object, const struct rdt_error *why)
{
    struct object *hidden_entry =
        object->access.key == KEY_OWN && object_n_waiters(object) > 0 ? hidden_entry_get(object) : NULL;

    if (hidden_entry) /* object_fail puts the entry in the object's place */
        waiters_move(object, hidden_entry, true);
    object_fail(object, why);
}

void object_take_over_id(struct object *object, struct object *old)
{
    if (!old->users)
        return;
    list_each_safe (struct object_waiter, waiter, &old->users->waiters, link)
        if (waiter->by_id && object_visible_to(object, waiter->requester))
            waiter_move(waiter, object);
    object_users_settle(old);
}

static void add(struct object *object, const struct owner *requester, bool by_id, struct object_waiter *waiter)
{
    waiter->object = object;
    waiter->requester = requester;
    waiter->by_id = by_id;
    list_append(&object->users->waiters, &waiter->link);
    object->users->n_waiters++;
}

enum rdt_status object_table_wait(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                  struct object_waiter *waiter, struct rdt_error *err)
{
    struct owner owner = owner_of_ref(ref, requester);
    uint8_t key[OWNER_KEY_MAX_BYTES];
    size_t key_bytes = owner_key(key, &owner, (const uint8_t *)ref->id, ref->id_bytes);
    struct object *object;

    object =
        ref->generation != 0 ? object_table_by_generation(table, ref->generation) : object_table_by_key(table, key, key_bytes);
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
        account = account_get(table->accounts, &owner);
        object = account ? object_new(table, account, key, key_bytes, ref->id_bytes, NULL, NULL) : NULL;
        account_unref(account);
        if (!object || !object_users_get(object) || !map_put(&table->by_name, object->tail_data, key_bytes, object)) {
            if (object) {
                free(object->users);
                object_discard(object);
            }
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for \"%s\"", ref->id);
        }
        object_set_key(object, KEY_OWN);
        event(table->events, RDT__PB__LIST_KIND__LIST_KIND_OBJECTS, "awaited", object);
    }
    add(object, requester, ref->generation == 0, waiter);
    return RDT_OK;
}

bool object_wait_live(struct object *object, struct object_waiter *waiter)
{
    assert(object->state == OBJECT_FILLING);
    if (!object_users_get(object))
        return false;
    add(object, &object->account->owner, false, waiter);
    return true;
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

/* ---- stored objects whose bytes are checked before they are used ---- */

enum rdt_status object_check(struct object *object, const struct owner *requester, struct object_waiter *waiter,
                             struct rdt_error *err)
{
    struct object_table *table = object->table;
    enum rdt_status status;

    if (!object->file.unchecked || !table->files.check)
        return RDT_OK;
    if (!object_users_get(object))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for the check of a stored object");
    status = table->files.check(table->files.check_arg, object, err);
    if (status == RDT_AGAIN)
        add(object, requester, false, waiter);
    else
        object_users_settle(object);
    return status;
}

void object_checked(struct object *object, const struct rdt_error *why)
{
    struct rdt_error ended;

    object->file.unchecked = why != NULL;
    if (!why && object->state != OBJECT_LIVE && object_why_ended(object, &ended) != RDT_OK)
        why = &ended;
    object_notify_waiters(object, why);
}
