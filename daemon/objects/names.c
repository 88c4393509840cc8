#include "daemon/objects/names.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/base/log.h"

#define REMEMBERED_MOST 4096u /* unpublished names whose versions are remembered each for itself */
#define KEY_MOST (4 + sizeof((struct owner *)0)->tenant + 128)
#define TOLD_AT_ONCE 64u /* thousands may wait for one name: others get their turn in between */
#define TICKET_NS 1000000  /* until the next; not 0, which libuv's timers would take for this very turn */

struct name_carrier { /* an object that names hold */
    uint64_t generation;
    struct list names; /* struct name.by_carrier */
};

static void on_wake(struct deadline *deadline);

void names_init(struct names *names, struct accounts *accounts, struct deadlines *deadlines, uint32_t max_per_owner,
                uint64_t max_names)
{
    *names = (struct names){
        .accounts = accounts, .deadlines = deadlines, .next_number = 1, .max_per_owner = max_per_owner, .max_names = max_names};
    map_init(&names->by_key);
    map_init(&names->by_object);
    list_init(&names->published);
    list_init(&names->remembered);
    list_init(&names->waking);
    names->wake.on_passed = on_wake;
}

static size_t make_key(uint8_t *key, const struct owner *owner, const uint8_t *id, size_t id_bytes)
{
    size_t tenant = strlen(owner->tenant) + 1;

    memcpy(key, &owner->uid, 4);
    memcpy(key + 4, owner->tenant, tenant);
    memcpy(key + 4 + tenant, id, id_bytes);
    return 4 + tenant + id_bytes;
}

static struct name *find(const struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes)
{
    uint8_t key[KEY_MOST];

    return map_get(&names->by_key, key, make_key(key, owner, id, id_bytes));
}

static enum rdt_status name_new(struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                                struct name **name_p, struct rdt_error *err)
{
    uint8_t key[KEY_MOST];
    size_t key_bytes = make_key(key, owner, id, id_bytes);
    struct name *name;

    if (map_count(&names->by_key) - names->n_remembered >= names->max_names)
        return rdt_error_set(err, RDT_LIMIT, "this daemon has %llu names already, awaited ones included",
                             (unsigned long long)names->max_names);
    name = calloc(1, sizeof *name + key_bytes);
    if (!name)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a name");
    name->names = names;
    name->account = account_get(names->accounts, owner);
    memcpy(name->key, key, key_bytes);
    name->key_bytes = (uint8_t)key_bytes;
    name->id_bytes = (uint8_t)id_bytes;
    list_init(&name->link);
    list_init(&name->by_carrier);
    list_init(&name->waiters);
    list_init(&name->due);
    list_init(&name->by_waking);
    if (!name->account || !map_put(&names->by_key, name->key, name->key_bytes, name)) {
        account_unref(name->account);
        free(name);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a name");
    }
    *name_p = name;
    return RDT_OK;
}

static void name_free(struct name *name)
{
    list_remove(&name->link);
    map_remove(&name->names->by_key, name->key, name->key_bytes);
    account_unref(name->account);
    free(name);
}

/* Nothing is published under it and nobody waits: it goes, or is kept for its version. */
static void settle(struct name *name)
{
    struct names *names = name->names;

    if (name->published || name->busy || name->n_waiters > 0 || !list_empty(&name->link))
        return;
    if (name->version == 0) {
        name_free(name);
        return;
    }
    list_append(&names->remembered, &name->link);
    names->n_remembered++;
    if (names->n_remembered > REMEMBERED_MOST) {
        struct name *oldest = container_of(list_first(&names->remembered), struct name, link);
        if (oldest->version > names->forgotten)
            names->forgotten = oldest->version;
        names->n_remembered--;
        name_free(oldest);
    }
}

/* It is published or waited for again. */
static void take_from_remembered(struct name *name)
{
    if (name->published || list_empty(&name->link))
        return;
    list_remove(&name->link);
    name->names->n_remembered--;
}

bool name_visible_to(const struct name *name, const struct owner *requester)
{
    if (owner_equal(&name->account->owner, requester) || name->visibility == RDT__PB__VISIBILITY__VISIBILITY_ALL)
        return true;
    return name->visibility == RDT__PB__VISIBILITY__VISIBILITY_TENANT &&
           strcmp(name->account->owner.tenant, requester->tenant) == 0;
}

static enum rdt_status denied(const struct name *name, const struct owner *requester, struct rdt_error *err)
{
    return rdt_error_set(err, RDT_DENIED, "name \"%.*s\" belongs to uid %u and is not visible to uid %u", (int)name->id_bytes,
                         (const char *)name_id(name), name->account->owner.uid, requester->uid);
}

/* ---- what a name holds ---- */

static struct name_carrier *carrier_get(struct names *names, const struct object *object)
{
    struct name_carrier *carrier = map_get_u64(&names->by_object, object->generation);

    if (carrier)
        return carrier;
    carrier = calloc(1, sizeof *carrier);
    if (!carrier || !map_put_u64(&names->by_object, object->generation, carrier)) {
        free(carrier);
        return NULL;
    }
    carrier->generation = object->generation;
    list_init(&carrier->names);
    return carrier;
}

/* The new object (and carrier), or none, in place of the old one, which may be gone afterwards. */
static void change(struct name *name, struct object *object, struct name_carrier *carrier)
{
    struct object *old = name->object;
    struct name_carrier *old_carrier = name->carrier;

    list_remove(&name->by_carrier);
    name->object = object;
    name->carrier = carrier;
    if (object) {
        object_hold(object);
        list_append(&carrier->names, &name->by_carrier);
    }
    if (!old)
        return;
    if (list_empty(&old_carrier->names)) {
        map_remove_u64(&name->names->by_object, old_carrier->generation);
        free(old_carrier);
    }
    object_drop(old);
}

const struct name *names_of_object(const struct names *names, const struct object *object, struct list **cursor)
{
    struct name_carrier *carrier = map_get_u64(&names->by_object, object->generation);
    struct list *next = !carrier ? NULL : *cursor ? (*cursor)->next : carrier->names.next;

    if (!carrier || next == &carrier->names)
        return NULL;
    *cursor = next;
    return container_of(next, struct name, by_carrier);
}

void names_object_freed(struct names *names, const struct object *object)
{
    struct name_carrier *carrier = map_get_u64(&names->by_object, object->generation);
    bool last = !carrier;

    while (!last) {
        struct name *name = container_of(list_first(&carrier->names), struct name, by_carrier);
        last = name->by_carrier.next == &carrier->names;
        while (!list_empty(&name->due)) { /* they will have the next one */
            struct list *node = list_first(&name->due);
            list_remove(node);
            list_append(&name->waiters, node);
        }
        change(name, NULL, NULL);
        event(names->events, RDT__PB__LIST_KIND__LIST_KIND_NAMES, "freed", name);
    }
}

/* ---- telling ---- */

static void tell(struct name_waiter *waiter, struct object *object, uint64_t version, const struct rdt_error *err)
{
    list_remove(&waiter->link);
    waiter->name->n_waiters--;
    waiter->name = NULL;
    waiter->on_event(waiter, object, version, err);
}

static void tell_due(struct name *name)
{
    struct names *names = name->names;

    name->busy = true;
    list_remove(&name->by_waking);
    for (unsigned n = 0; n < TOLD_AT_ONCE && !list_empty(&name->due) && name->object; n++) {
        struct name_waiter *waiter = container_of(list_first(&name->due), struct name_waiter, link);
        struct rdt_error err;
        if (name_visible_to(name, waiter->requester)) {
            tell(waiter, name->object, name->version, NULL);
        } else {
            (void)denied(name, waiter->requester, &err);
            tell(waiter, NULL, 0, &err);
        }
    }
    name->busy = false;
    if (!list_empty(&name->due)) {
        list_append(&names->waking, &name->by_waking);
        /* once set it stands: who publishes again and again must not put off the others' turn */
        if (deadline_left_ns(&names->wake) < 0 && !deadline_set(names->deadlines, &names->wake, TICKET_NS))
            log_error("no memory to wake those who wait for a name: they wait for its next version");
    }
    settle(name);
}

static void on_wake(struct deadline *deadline)
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
        tell_due(container_of(list_first(&now), struct name, by_waking));
}

/* Whoever waits, of both kinds, gets the error. */
static void fail_waiters(struct name *name, const struct rdt_error *err)
{
    list_remove(&name->by_waking);
    name->busy = true;
    for (;;) {
        struct list *node = list_first(&name->due);
        if (!node)
            node = list_first(&name->waiters);
        if (!node)
            break;
        tell(container_of(node, struct name_waiter, link), NULL, 0, err);
    }
    name->busy = false;
    settle(name);
}

/* ---- publishing ---- */

static const char *const visibilities[] = {"its owner", "its owner's tenant", "everybody"};

static enum rdt_status check_visibility(const struct name *name, const struct object *object, Rdt__Pb__Visibility visibility,
                                        struct rdt_error *err)
{
    if (visibility > object->visibility)
        return rdt_error_set(err, RDT_INVALID,
                             "a name that %s may fetch, but an object that only %s may: put it with that visibility",
                             visibilities[visibility], visibilities[object->visibility]);
    if (name && name->published && name->visibility != visibility)
        return rdt_error_set(
            err, RDT_INVALID, "name \"%.*s\" is published for %s, not for %s: unpublish it first to change that",
            (int)name->id_bytes, (const char *)name_id(name), visibilities[name->visibility], visibilities[visibility]);
    return RDT_OK;
}

enum rdt_status names_publish(struct names *names, const uint8_t *id, size_t id_bytes, struct object *object,
                              Rdt__Pb__Visibility visibility, uint64_t *version_p, struct rdt_error *err)
{
    struct name *name = find(names, &object->account->owner, id, id_bytes);
    struct name_carrier *carrier;
    enum rdt_status status = check_visibility(name, object, visibility, err);

    if (status == RDT_OK && !name)
        status = name_new(names, &object->account->owner, id, id_bytes, &name, err);
    if (status != RDT_OK)
        return status;
    if (!name->published && name->account->used[USAGE_NAMES] >= names->max_per_owner)
        status = rdt_error_set(err, RDT_LIMIT, "uid %u has max_names of %u names published already: unpublish one, or raise it",
                               name->account->owner.uid, names->max_per_owner);
    carrier = status == RDT_OK ? carrier_get(names, object) : NULL;
    if (status == RDT_OK && !carrier)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to publish an object");
    if (status != RDT_OK) {
        settle(name);
        return status;
    }
    if (!name->published) {
        take_from_remembered(name);
        name->published = true;
        account_add(name->account, USAGE_NAMES, 1);
        name->visibility = visibility;
        name->number = names->next_number++;
        list_append(&names->published, &name->link);
    }
    if (name->version == 0)
        name->version = names->forgotten;
    *version_p = ++name->version;
    name->since_ns = uv_hrtime();
    log_debug("obj %016llx is version %llu of name \"%.*s\"", (unsigned long long)object->generation,
              (unsigned long long)name->version, (int)id_bytes, (const char *)id);
    change(name, object, carrier);
    event(names->events, RDT__PB__LIST_KIND__LIST_KIND_NAMES, "published", name);
    list_for_each_safe (node, &name->waiters) {
        if (container_of(node, struct name_waiter, link)->after >= name->version)
            continue; /* it looks further ahead */
        list_remove(node);
        list_append(&name->due, node);
    }
    tell_due(name);
    return RDT_OK;
}

static void unpublish(struct name *name, const struct rdt_error *why)
{
    name->published = false;
    list_remove(&name->link);
    account_give(name->account, USAGE_NAMES, 1);
    name->busy = true;
    event(name->names->events, RDT__PB__LIST_KIND__LIST_KIND_NAMES, "unpublished", name);
    change(name, NULL, NULL);
    fail_waiters(name, why);
}

/* As objects: whose name it is, if the ref says so. */
static struct name *find_ref(const struct names *names, const struct rdt_ref *ref, const struct owner *requester,
                             struct owner *owner_p)
{
    *owner_p = *requester;
    if (!ref->any_owner) {
        owner_p->uid = ref->uid;
        memcpy(owner_p->tenant, ref->tenant, sizeof owner_p->tenant);
    }
    return find(names, owner_p, (const uint8_t *)ref->id, ref->id_bytes);
}

enum rdt_status names_unpublish(struct names *names, const struct rdt_ref *ref, const struct owner *requester, bool admin,
                                struct rdt_error *err)
{
    struct owner owner;
    struct name *name = find_ref(names, ref, requester, &owner);
    struct rdt_error why;

    if (!admin && !owner_equal(&owner, requester))
        return rdt_error_set(err, RDT_DENIED, "name \"%s\" belongs to uid %u: only that user or root may unpublish it", ref->id,
                             owner.uid);
    if (!name || !name->published)
        return rdt_error_set(err, RDT_NOT_FOUND, "nothing is published under the name \"%s\"", ref->id);
    (void)rdt_error_set(&why, RDT_FREED, "name \"%s\" was unpublished after version %llu", ref->id,
                        (unsigned long long)name->version);
    unpublish(name, &why);
    return RDT_OK;
}

/* ---- finding and waiting ---- */

enum rdt_status names_find(struct names *names, const struct rdt_ref *ref, const struct owner *requester,
                           struct object **object_p, uint64_t *version_p, struct rdt_error *err)
{
    struct owner owner;
    struct name *name = find_ref(names, ref, requester, &owner);

    if (!name || (!name->published && ref->after == 0))
        return RDT_AGAIN;
    if (!name->published && name->version > 0 && name_visible_to(name, requester))
        return rdt_error_set(err, RDT_FREED, "name \"%s\" was unpublished after version %llu", ref->id,
                             (unsigned long long)name->version);
    if (!name->published)
        return RDT_AGAIN;
    if (!name_visible_to(name, requester))
        return denied(name, requester, err);
    if (!name->object || name->version <= ref->after)
        return RDT_AGAIN;
    *object_p = name->object;
    *version_p = name->version;
    return RDT_OK;
}

enum rdt_status names_wait(struct names *names, const struct rdt_ref *ref, const struct owner *requester,
                           struct name_waiter *waiter, struct rdt_error *err)
{
    struct owner owner;
    struct name *name = find_ref(names, ref, requester, &owner);

    if (!name) {
        enum rdt_status status = name_new(names, &owner, (const uint8_t *)ref->id, ref->id_bytes, &name, err);
        if (status != RDT_OK)
            return status;
    }
    take_from_remembered(name);
    waiter->name = name;
    waiter->requester = requester;
    waiter->after = ref->after;
    list_append(&name->waiters, &waiter->link);
    name->n_waiters++;
    return RDT_OK;
}

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
    settle(name);
}

/* ---- the end ---- */

void names_clear(struct names *names)
{
    struct rdt_error err;
    struct name *name;
    size_t cursor = 0;

    (void)rdt_error_set(&err, RDT_SHUTTING_DOWN, "nothing is published any more: the daemon is shutting down");
    while (!list_empty(&names->published))
        unpublish(container_of(list_first(&names->published), struct name, link), &err);
    while ((name = map_next(&names->by_key, &cursor)))
        if (name->n_waiters > 0)
            fail_waiters(name, &err); /* removes at most this entry */
    deadline_unset(names->deadlines, &names->wake);
}

void names_fini(struct names *names)
{
    struct name *name;
    size_t cursor = 0;

    while ((name = map_next(&names->by_key, &cursor)))
        name_free(name);
    map_fini(&names->by_key);
    map_fini(&names->by_object);
}
