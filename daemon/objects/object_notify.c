/* Those who wait for an object to be live hear what came of it. That it is live costs little for each: its clients' turns do the rest.
 * That it never will be is told at once, an answer each, and so some at a time where many wait; the object stays until all know. */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#include "daemon/objects/object_table.h"

#define TOLD_PER_TURN 64

struct object_notify {
    struct deadline deadline; /* first: the next turn */
    struct list link;         /* in the table's tellings */
    struct object *object;    /* held */
    struct rdt_error why;
};

static bool anyone_waits(const struct object *object)
{
    return object->others && !list_empty(&object->others->waiters);
}

static void tell_some(struct object *object, const struct rdt_error *why, unsigned n)
{
    for (; n > 0 && anyone_waits(object); n--) {
        struct object_waiter *waiter = container_of(list_first(&object->others->waiters), struct object_waiter, link);
        object_waiter_remove(waiter); /* before its event, which may end others' waiting too, or drop the object */
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

    tell_some(notify->object, &notify->why, TOLD_PER_TURN);
    if (anyone_waits(notify->object) && deadline_set(notify->object->table->deadlines, deadline, 0))
        return;
    tell_some(notify->object, &notify->why, UINT_MAX);
    end(notify);
}

/* false: it cannot be put off. */
static bool put_off(struct object *object, const struct rdt_error *why)
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

void object_tell_waiters(struct object *object, const struct rdt_error *why)
{
    object_hold(object);
    tell_some(object, why, why ? TOLD_PER_TURN : UINT_MAX);
    if (anyone_waits(object) && !put_off(object, why))
        tell_some(object, why, UINT_MAX);
    assert(object->holds > 1);
    object_drop(object);
}

void object_notifies_end(struct object_table *table)
{
    while (!list_empty(&table->notifies)) {
        struct object_notify *notify = container_of(list_first(&table->notifies), struct object_notify, link);
        tell_some(notify->object, &notify->why, UINT_MAX);
        end(notify);
    }
}
