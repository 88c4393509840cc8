/* SPDX-License-Identifier: Apache-2.0 */
/* Notifies those who wait for an object to become live. Success is cheap for each waiter, since its client
 * does the rest in a later turn. A failure is answered at once, so when many wait, some are notified in
 * each turn of the loop; the object is held until all have been. */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#include "daemon/objects/object_table.h"

#define NOTIFIED_PER_TURN 64

struct object_notify {
    struct deadline deadline; /* first member; until the next ones are notified */
    struct list link;         /* in object_table.notifies */
    struct object *object;    /* held */
    struct rdt_error why;
};

static bool anyone_waits(const struct object *object)
{
    return object->users && !list_empty(&object->users->waiters);
}

static void notify_some(struct object *object, const struct rdt_error *why, unsigned n)
{
    for (; n > 0 && anyone_waits(object); n--) {
        struct object_waiter *waiter = container_of(list_first(&object->users->waiters), struct object_waiter, link);
        /* Before the event, which may end other waits as well, or drop the object. */
        object_waiter_remove(waiter);
        waiter->on_event(waiter, why ? NULL : object, why);
    }
}

static void end(struct object_notify *notify)
{
    struct object *object = notify->object;

    list_remove(&notify->link);
    deadline_unset(object->table->deadlines, &notify->deadline);
    free(notify);
    object_drop(object);
}

static void on_turn(struct deadline *deadline)
{
    struct object_notify *notify = (struct object_notify *)deadline;

    notify_some(notify->object, &notify->why, NOTIFIED_PER_TURN);
    if (anyone_waits(notify->object) && deadline_set(notify->object->table->deadlines, deadline, 0))
        return;
    notify_some(notify->object, &notify->why, UINT_MAX);
    end(notify);
}

/* false: the notification cannot be deferred. */
static bool defer(struct object *object, const struct rdt_error *why)
{
    struct object_table *table = object->table;
    struct object_notify *notify = table->deadlines ? calloc(1, sizeof *notify) : NULL;

    if (!notify)
        return false;
    notify->deadline.on_passed = on_turn;
    if (!deadline_set(table->deadlines, &notify->deadline, 0)) {
        free(notify);
        return false;
    }
    notify->object = object;
    notify->why = *why;
    list_append(&table->notifies, &notify->link);
    object_hold(object);
    return true;
}

void object_notify_waiters(struct object *object, const struct rdt_error *why)
{
    object_hold(object);
    notify_some(object, why, why ? NOTIFIED_PER_TURN : UINT_MAX);
    if (anyone_waits(object) && !defer(object, why))
        notify_some(object, why, UINT_MAX);
    assert(object->holds > 1);
    object_drop(object);
}

void object_notifies_end(struct object_table *table)
{
    list_drain (struct object_notify, notify, &table->notifies, link) {
        notify_some(notify->object, &notify->why, UINT_MAX);
        end(notify);
    }
}
