/* SPDX-License-Identifier: Apache-2.0 */
/* Waiters for versions of names. */
#include "daemon/base/log.h"
#include "daemon/objects/names_impl.h"

/* Thousands may wait for one name. The others are notified later, so that the loop is not blocked. */
#define NOTIFIED_AT_ONCE 64u
/* until the next ones; not 0, because libuv would run such a timer in the same iteration */
#define NOTIFY_INTERVAL_NS 1000000

void name_waiter_remove(struct name_waiter *waiter)
{
    struct name *name = waiter->name;

    if (!name)
        return;
    list_remove(&waiter->link);
    waiter->name = NULL;
    name->n_waiters--;
    if (list_empty(&name->due))
        list_remove(&name->by_waking);
    name_settle(name);
}

static void notify(struct name_waiter *waiter, struct object *object, uint64_t version, const struct rdt_error *err)
{
    list_remove(&waiter->link);
    waiter->name->n_waiters--;
    waiter->name = NULL;
    waiter->on_event(waiter, object, version, err);
}

static void notify_due(struct name *name)
{
    struct names *names = name->names;

    name->busy = true;
    list_remove(&name->by_waking);
    for (unsigned n = 0; n < NOTIFIED_AT_ONCE && !list_empty(&name->due) && name->object; n++) {
        struct name_waiter *waiter = container_of(list_first(&name->due), struct name_waiter, link);
        notify(waiter, name->object, name->version, NULL);
    }
    name->busy = false;
    if (!list_empty(&name->due)) {
        list_append(&names->waking, &name->by_waking);
        /* A timer that is set keeps its time, so that publishing again and again does not postpone the
         * notification. */
        if (deadline_left_ns(&names->wake) < 0 && !deadline_set(names->deadlines, &names->wake, NOTIFY_INTERVAL_NS))
            log_error("out of memory: clients that wait for a name will only get its next version");
    }
    name_settle(name);
}

void name_notify(struct name *name)
{
    list_each_safe (struct name_waiter, waiter, &name->waiters, link) {
        if (waiter->after >= name->version || !name_visible_to(name, waiter->requester))
            continue;
        list_remove(&waiter->link);
        list_append(&name->due, &waiter->link);
    }
    notify_due(name);
}

void names_on_wake(struct deadline *deadline)
{
    struct names *names = container_of(deadline, struct names, wake);
    struct list now;

    list_init(&now);
    while (!list_empty(&names->waking)) {
        struct list *node = list_first(&names->waking);
        list_remove(node);
        list_append(&now, node);
    }
    while (!list_empty(&now))
        notify_due(container_of(list_first(&now), struct name, by_waking));
}

void name_fail_waiters(struct name *name, bool all, const struct rdt_error *err)
{
    struct list hidden;

    list_init(&hidden);
    list_remove(&name->by_waking);
    name->busy = true;
    for (;;) {
        struct list *node = list_first(&name->due);
        if (!node)
            node = list_first(&name->waiters);
        if (!node)
            break;
        if (all || name_visible_to(name, container_of(node, struct name_waiter, link)->requester)) {
            notify(container_of(node, struct name_waiter, link), NULL, 0, err);
        } else {
            list_remove(node);
            list_append(&hidden, node);
        }
    }
    list_splice(&name->waiters, &hidden);
    name->busy = false;
    name_settle(name);
}
