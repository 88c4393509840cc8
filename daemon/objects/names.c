/* SPDX-License-Identifier: Apache-2.0 */
/* Names: the entries of the table, those who wait for versions, publishing and its end, and why a wait was in vain. */
#include "daemon/objects/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/objects/client.h"
#include "proto/wire_limits.h"

struct name_carrier { /* an object that at least one name holds */
    uint64_t generation;
    struct list names; /* [n], struct name.by_carrier */
    uint32_t n;
};

/* The name has ended while somebody waited for its next version. Those who could see it are told why, in slices. */
struct name_ending {
    struct list link;    /* in name->endings */
    struct list waiters; /* struct name_waiter.link */
    Rdt__Pb__Visibility visibility;
    struct rdt_error why;
};

#define NAMES_REMEMBERED_MAX 4096u /* unpublished names whose versions are remembered one by one */
#define EXPLAIN_MAX 256            /* the most names that are compared, because many waits may time out together */

/* ---- entries: their visibility, and when they are remembered, forgotten and freed ---- */

static bool visible_to(const struct name *name, Rdt__Pb__Visibility visibility, const struct owner *requester)
{
    if (owner_equal(&name->account->owner, requester) || visibility == RDT__PB__VISIBILITY__VISIBILITY_ALL)
        return true;
    return visibility == RDT__PB__VISIBILITY__VISIBILITY_TENANT && strcmp(name->account->owner.tenant, requester->tenant) == 0;
}

bool name_visible_to(const struct name *name, const struct owner *requester)
{
    return visible_to(name, name->visibility, requester);
}

/* It has no waiters, and is not published. */
static void name_free(struct name *name)
{
    fair_remove(&name->names->remembered, &name->remembered);
    map_remove(&name->names->by_key, name->key, name->key_bytes);
    list_remove(&name->by_waking);
    list_drain (struct name_ending, ending, &name->endings, link) {
        list_remove(&ending->link);
        free(ending);
    }
    account_unref(name->account);
    free(name);
}

/* Frees a name that is not published and that nobody waits for, or remembers it for its version. */
static void name_settle(struct name *name)
{
    struct names *names = name->names;
    struct fair_entry *lost;

    if (name->published || name->busy || name->n_waiters > 0 || name->remembered.owner)
        return;
    if (name->version == 0) {
        name_free(name);
        return;
    }
    lost = fair_add(&names->remembered, &name->remembered, &account_person(name->account)->owner);
    if (lost) {
        struct name *oldest = container_of(lost, struct name, remembered);
        if (oldest->version > names->forgotten)
            names->forgotten = oldest->version;
        name_free(oldest);
    }
}

/* A remembered name is published or awaited again. */
static void name_recall(struct name *name)
{
    fair_remove(&name->names->remembered, &name->remembered);
}

/* ---- waiters: thousands may wait for one name, so they are looked at in slices ---- */

void name_waiter_remove(struct name_waiter *waiter)
{
    struct name *name = waiter->name;

    if (!name)
        return;
    list_remove(&waiter->link);
    waiter->name = NULL;
    name->n_waiters--;
    name_settle(name);
}

static void notify(struct name_waiter *waiter, struct object *object, uint64_t version, const struct rdt_error *err)
{
    list_remove(&waiter->link);
    waiter->name->n_waiters--;
    waiter->name = NULL;
    waiter->on_event(waiter, object, version, err);
}

/* Those who could not see the name that has ended wait on, or look whether they see what was published since. */
static void end_wait(struct name *name, struct name_ending *ending)
{
    struct name_waiter *waiter = container_of(list_first(&ending->waiters), struct name_waiter, link);

    if (visible_to(name, ending->visibility, waiter->requester)) {
        notify(waiter, NULL, 0, &ending->why);
    } else {
        list_remove(&waiter->link);
        list_append(&name->due, &waiter->link);
    }
}

static void look(struct name *name, struct name_waiter *waiter)
{
    if (name->object && waiter->after < name->version && name_visible_to(name, waiter->requester)) {
        notify(waiter, name->object, name->version, NULL);
    } else {
        list_remove(&waiter->link);
        list_append(&name->waiters, &waiter->link);
    }
}

/* Returns false if there is nothing to do. */
static bool wake_one(struct name *name)
{
    struct name_ending *ending =
        list_empty(&name->endings) ? NULL : container_of(list_first(&name->endings), struct name_ending, link);

    if (ending && !list_empty(&ending->waiters)) {
        end_wait(name, ending);
    } else if (ending) {
        list_remove(&ending->link);
        free(ending);
    } else if (!list_empty(&name->due)) {
        look(name, container_of(list_first(&name->due), struct name_waiter, link));
    } else {
        return false;
    }
    return true;
}

static bool wake_some(struct slice *slice, uint64_t until_ns)
{
    struct names *names = container_of(slice, struct names, wake);

    list_drain (struct name, name, &names->waking, by_waking) {
        bool left;
        list_remove(&name->by_waking);
        name->busy = true;
        while ((left = wake_one(name)) && uv_hrtime() < until_ns)
            ;
        name->busy = false;
        if (left && list_empty(&name->by_waking))
            list_append(&names->waking, &name->by_waking);
        if (!left)
            name_settle(name);
        if (uv_hrtime() >= until_ns)
            break;
    }
    return list_empty(&names->waking);
}

static void wake(struct name *name)
{
    struct names *names = name->names;

    if (list_empty(&name->by_waking))
        list_append(&names->waking, &name->by_waking);
    slice_begin(&names->deadlines->slices, &names->wake);
}

/* The name has a new version. Notifies those who wait for it and may see it. The name may be gone afterwards. */
static void name_notify(struct name *name)
{
    if (list_empty(&name->waiters) && list_empty(&name->due))
        return;
    list_splice(&name->due, &name->waiters);
    wake(name);
}

/* Fails those who wait and may see the name, which has ended and may be gone afterwards. */
static void name_fail_waiters(struct name *name, const struct rdt_error *why)
{
    struct name_ending *ending;

    list_splice(&name->waiters, &name->due);
    if (list_empty(&name->waiters))
        return;
    ending = malloc(sizeof *ending);
    if (!ending) {
        log_error("out of memory: clients that wait for version %llu of a name are not told that it has ended",
                  (unsigned long long)name->version + 1);
        return;
    }
    ending->why = *why;
    ending->visibility = name->visibility;
    list_init(&ending->waiters);
    list_splice(&ending->waiters, &name->waiters);
    list_append(&name->endings, &ending->link);
    wake(name);
}

/* For the end of the daemon: fails all, even those who may not see the name. */
static void name_fail_all(struct name *name, const struct rdt_error *why)
{
    name->busy = true;
    list_each (struct name_ending, ending, &name->endings, link)
        list_splice(&name->waiters, &ending->waiters);
    list_splice(&name->waiters, &name->due);
    list_drain (struct name_waiter, waiter, &name->waiters, link)
        notify(waiter, NULL, 0, why);
    name->busy = false;
    name_settle(name);
}

/* ---- names and their versions ---- */

void names_init(struct names *names, struct accounts *accounts, struct deadlines *deadlines)
{
    *names = (struct names){.accounts = accounts, .deadlines = deadlines, .begun_ns = uv_hrtime(), .next_number = 1};
    map_init(&names->by_key);
    map_init(&names->by_object);
    index_init(&names->published, 1);
    fair_init(&names->remembered, NAMES_REMEMBERED_MAX);
    list_init(&names->waking);
    list_init(&names->observers);
    names->wake.run = wake_some;
}

static void end(struct name *name, enum name_end why);
static void lose_object(struct name *name);

/* NULL: there is none. Ends a name first whose lease belongs to a client that has ended, and takes an object from it that was
 * freed by force. */
static struct name *name_find(const struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    size_t key_bytes = owner_key(key, owner, id, id_bytes);
    struct name *name = map_get(&names->by_key, key, key_bytes);

    if (name && name->publisher &&
        name->publisher->conn.gone) { /* the ends of its names take several turns, which others must not notice */
        end(name, NAME_PUBLISHER_GONE);
        name = map_get(&names->by_key, key, key_bytes);
    }
    if (name && name->object && name->object->access.forced)
        lose_object(name);
    return name;
}

static void on_expired(struct deadline *deadline)
{
    end(container_of(deadline, struct name, expiry), NAME_EXPIRED);
}

/* Creates a name that is not published. Whoever waits for it is charged for that, so there may be any number. Error:
 * NO_MEMORY. */
static enum rdt_status name_new(struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                                struct name **name_p, struct rdt_error *err)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    size_t key_bytes = owner_key(key, owner, id, id_bytes);
    struct name *name;

    name = calloc(1, sizeof *name + key_bytes);
    if (!name)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a name");
    name->names = names;
    name->account = account_get(names->accounts, owner);
    memcpy(name->key, key, key_bytes);
    name->key_bytes = (uint8_t)key_bytes;
    name->id_bytes = (uint8_t)id_bytes;
    list_init(&name->by_carrier);
    list_init(&name->waiters);
    list_init(&name->due);
    list_init(&name->endings);
    list_init(&name->by_waking);
    list_init(&name->by_publisher);
    name->expiry.on_passed = on_expired;
    if (!name->account || !map_put(&names->by_key, name->key, name->key_bytes, name)) {
        account_unref(name->account);
        free(name);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a name");
    }
    *name_p = name;
    return RDT_OK;
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

/* Replaces the name's object and carrier, NULL for none. The old object may be gone afterwards. */
static void set_object(struct name *name, struct object *object, struct name_carrier *carrier)
{
    struct object *old = name->object;
    struct name_carrier *old_carrier = name->carrier;

    list_remove(&name->by_carrier);
    if (old_carrier)
        old_carrier->n--;
    name->object = object;
    name->carrier = carrier;
    if (object) {
        object_hold(object);
        list_append(&carrier->names, &name->by_carrier);
        carrier->n++;
        if (!object->survives.published) {
            object->survives.published = true;
            object_lasting_changed(object);
        }
    }
    if (name->names->lasting) /* after the new object, and before the end of the old one */
        name->names->lasting->on_name(name->names->lasting->arg, name);
    list_each (const struct names_observer, observer, &name->names->observers, link)
        observer->on_change(observer->arg, name);
    if (!old)
        return;
    if (old_carrier->n == 0) {
        map_remove_u64(&name->names->by_object, old_carrier->generation);
        free(old_carrier);
        old->survives.published = false;
        object_lasting_changed(old);
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

uint32_t names_n_of_object(const struct names *names, const struct object *object)
{
    const struct name_carrier *carrier = map_get_u64(&names->by_object, object->generation);

    return carrier ? carrier->n : 0;
}

/* Those who are to be notified wait for the next version. */
static void lose_object(struct name *name)
{
    set_object(name, NULL, NULL);
    event(name->names->events, RDT__PB__LIST_KIND__LIST_KIND_NAMES, "freed", name);
}

bool names_object_freed(struct names *names, const struct object *object, uint64_t until_ns)
{
    struct name_carrier *carrier;

    while ((carrier = map_get_u64(&names->by_object, object->generation))) {
        lose_object(container_of(list_first(&carrier->names), struct name, by_carrier));
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

/* ---- publishing ---- */

static const char *const visibilities[] = {"its owner", "its owner's tenant", "everybody"};

static enum rdt_status check_visibility(const struct name *name, const struct object *object, Rdt__Pb__Visibility visibility,
                                        struct rdt_error *err)
{
    if (visibility > object->access.visibility)
        return rdt_error_set(err, RDT_INVALID,
                             "the name is for %s, but its object is visible only to %s: put it with that visibility",
                             visibilities[visibility], visibilities[object->access.visibility]);
    if (name && name->published && name->visibility != visibility)
        return rdt_error_set(
            err, RDT_INVALID, "name \"%.*s\" is published for %s, not for %s: unpublish it first to change its visibility",
            (int)name->id_bytes, (const char *)name_id(name), visibilities[name->visibility], visibilities[visibility]);
    return RDT_OK;
}

/* The lease and the time to live of the latest publish replace the earlier ones. */
static void set_lease(struct name *name, struct client *publisher, int64_t ttl_ns)
{
    list_remove(&name->by_publisher);
    name->publisher = publisher;
    name->ttl_ns = ttl_ns;
    if (publisher)
        list_append(&publisher->leases, &name->by_publisher);
    if (ttl_ns == 0)
        deadline_unset(name->names->deadlines, &name->expiry);
}

bool name_lasts(const struct name *name)
{
    return name->published && name->object && (!name->publisher || name->publisher->session.lasting);
}

/* version 0: the next one */
static uint64_t next_version(const struct names *names, const struct name *name)
{
    uint64_t last = name && name->version > 0 ? name->version : names->forgotten;

    return (name && name->floor > last ? name->floor : last) + 1;
}

static enum rdt_status publish_version(struct names *names, const struct name_publish *publish, uint64_t version,
                                       uint64_t *version_p, struct rdt_error *err)
{
    struct object *object = publish->object;
    struct name *name = name_find(names, &object->account->owner, publish->id, publish->id_bytes);
    struct name_carrier *carrier;
    enum rdt_status status = check_visibility(name, object, publish->visibility, err);

    if (status == RDT_OK && version == 0)
        version = next_version(names, name);
    if (status == RDT_OK && !rdt_number_is_valid(version))
        status = rdt_error_set(err, RDT_LIMIT, "name \"%.*s\" has had its last version, %llu: publish under another name",
                               (int)publish->id_bytes, (const char *)publish->id, (unsigned long long)RDT_MAX_NUMBER);
    if (status == RDT_OK && !name)
        status = name_new(names, &object->account->owner, publish->id, publish->id_bytes, &name, err);
    if (status != RDT_OK)
        return status;
    if (!name->published)
        status = account_check(name->account, USAGE_NAMES, 1, err);
    carrier = status == RDT_OK ? carrier_get(names, object) : NULL;
    if (status == RDT_OK && (!carrier || !(name->published || index_put(&names->published, names->next_number, name)) ||
                             (publish->ttl_ns > 0 && !deadline_set(names->deadlines, &name->expiry, publish->ttl_ns))))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to publish an object");
    if (status != RDT_OK) {
        if (!name->published)
            (void)index_remove(&names->published, names->next_number);
        name_settle(name);
        return status;
    }
    if (!name->published) {
        name_recall(name);
        name->published = true;
        account_add(name->account, USAGE_NAMES, 1);
        name->visibility = publish->visibility;
        name->number = names->next_number++;
    }
    name->version = version;
    *version_p = name->version;
    set_lease(name, publish->lease, publish->ttl_ns);
    name->session = publish->session;
    name->request = publish->request;
    memset(name->repeat, 0, sizeof name->repeat);
    if (publish->repeat)
        memcpy(name->repeat, publish->repeat, sizeof name->repeat);
    name->since_ns = uv_hrtime();
    log_debug("obj %016llx is version %llu of name \"%.*s\"", (unsigned long long)object->generation,
              (unsigned long long)name->version, (int)publish->id_bytes, (const char *)publish->id);
    set_object(name, object, carrier);
    event(names->events, RDT__PB__LIST_KIND__LIST_KIND_NAMES, "published", name);
    name_notify(name);
    return RDT_OK;
}

uint64_t names_repeated(const struct names *names, const struct name_publish *publish)
{
    static const uint8_t none[REPEAT_BYTES]; /* the mark of a name whose last PUBLISH came from this node */
    const struct name *name = name_find(names, &publish->object->account->owner, publish->id, publish->id_bytes);

    if (!name || !name->published || !publish->repeat || memcmp(publish->repeat, none, sizeof none) == 0 ||
        memcmp(name->repeat, publish->repeat, sizeof name->repeat) != 0)
        return 0;
    return name->version;
}

uint64_t names_next_version(const struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes)
{
    return next_version(names, name_find(names, owner, id, id_bytes));
}

bool names_lead_to(const struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                   const struct object *object)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    const struct name *name = map_get(&names->by_key, key, owner_key(key, owner, id, id_bytes));

    return name && name->object == object;
}

void names_set_floor(struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes, uint64_t version)
{
    struct name *name = name_find(names, owner, id, id_bytes);

    if (name && name->version > 0)
        name->floor = version;
    else if ((!name || name->version == 0) && names->forgotten < version)
        names->forgotten = version; /* new names start above it */
}

enum rdt_status names_publish(struct names *names, const struct name_publish *publish, uint64_t *version_p,
                              struct rdt_error *err)
{
    return publish_version(names, publish, 0, version_p, err);
}

/* Whether all of them can be published, but for memory. */
static enum rdt_status check_all(struct names *names, const struct name_publish *publishes, size_t n, struct rdt_error *err)
{
    struct account *account = publishes[0].object->account;
    uint64_t n_new = 0;

    for (size_t i = 0; i < n; i++) {
        const struct name_publish *publish = &publishes[i];
        const struct name *name = name_find(names, &account->owner, publish->id, publish->id_bytes);
        enum rdt_status status = check_visibility(name, publish->object, publish->visibility, err);
        if (status == RDT_OK && !owner_equal(&publish->object->account->owner, &account->owner))
            status = rdt_error_set(err, RDT_INVALID, "its object belongs to another user than the first one");
        if (status == RDT_OK && !rdt_number_is_valid(next_version(names, name)))
            status = rdt_error_set(err, RDT_LIMIT, "it has had its last version: publish under another name");
        if (status == RDT_OK && (!name || !name->published))
            status = account_check(account_owner(account), USAGE_NAMES, ++n_new, err);
        if (status != RDT_OK) {
            rdt_error_prefix(err, "name %zu, \"%.*s\"", i, (int)publish->id_bytes, (const char *)publish->id);
            return status;
        }
    }
    return RDT_OK;
}

enum rdt_status names_publish_all(struct names *names, const struct name_publish *publishes, size_t n, uint64_t *versions_p,
                                  struct rdt_error *err)
{
    enum rdt_status status = n > 0 ? check_all(names, publishes, n, err) : RDT_OK;

    for (size_t i = 0; status == RDT_OK && i < n; i++) {
        status = names_publish(names, &publishes[i], &versions_p[i], err);
        if (status != RDT_OK && i > 0)
            rdt_error_prefix(err, "only the first %zu of %zu names have been published", i, n);
    }
    return status;
}

enum rdt_status names_restore(struct names *names, const struct name_publish *publish, uint64_t version, struct name **name_p,
                              struct rdt_error *err)
{
    uint64_t restored;
    enum rdt_status status = publish_version(names, publish, version, &restored, err);

    if (status != RDT_OK)
        return status;
    *name_p = name_find(names, &publish->object->account->owner, publish->id, publish->id_bytes);
    (*name_p)->since_ns = names->begun_ns;
    return RDT_OK;
}

static void withdraw(struct name *name, const struct rdt_error *why)
{
    bool was_busy = name->busy;

    name->published = false;
    (void)index_remove(&name->names->published, name->number);
    set_lease(name, NULL, 0);
    account_give(name->account, USAGE_NAMES, 1);
    name->busy = true;
    event(name->names->events, RDT__PB__LIST_KIND__LIST_KIND_NAMES, "unpublished", name);
    set_object(name, NULL, NULL);
    name->busy = was_busy;
    if (name->n_waiters > 0)
        name_fail_waiters(name, why);
    else
        name_settle(name);
}

/* Writes why a name that was published has ended. */
static enum rdt_status why_ended(const struct name *name, struct rdt_error *err)
{
    const char *id = (const char *)name_id(name);
    unsigned long long version = name->version;

    switch (name->end) {
    case NAME_PUBLISHER_GONE:
        return rdt_error_set(err, RDT_OWNER_DIED,
                             "name \"%.*s\" ended after version %llu with the client that published it (a lease)",
                             name->id_bytes, id, version);
    case NAME_EXPIRED:
        return rdt_error_set(err, RDT_FREED,
                             "name \"%.*s\" ended after version %llu: nothing was published within its time to live",
                             name->id_bytes, id, version);
    case NAME_UNPUBLISHED:
        break;
    }
    return rdt_error_set(err, RDT_FREED, "name \"%.*s\" was unpublished after version %llu", name->id_bytes, id, version);
}

/* The name may be gone afterwards. */
static void end(struct name *name, enum name_end why)
{
    struct rdt_error err;

    name->end = why;
    (void)why_ended(name, &err);
    log_debug("%s", err.msg);
    withdraw(name, &err);
}

bool names_client_gone(struct client *client, uint64_t until_ns)
{
    while (!list_empty(&client->leases)) {
        end(container_of(list_first(&client->leases), struct name, by_publisher), NAME_PUBLISHER_GONE);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

/* The owner of the name, *owner_p, is the one in the ref, if there is one, as with objects. */
static struct name *find_ref(const struct names *names, const struct rdt_ref *ref, const struct owner *requester,
                             struct owner *owner_p)
{
    *owner_p = owner_of_ref(ref, requester);
    return name_find(names, owner_p, (const uint8_t *)ref->id, ref->id_bytes);
}

enum rdt_status names_unpublish(struct names *names, const struct rdt_ref *ref, const struct owner *requester, bool admin,
                                int64_t age_ns, struct rdt_error *err)
{
    struct owner owner;
    struct name *name = find_ref(names, ref, requester, &owner);

    if (!admin && !owner_equal(&owner, requester))
        return rdt_error_set(err, RDT_DENIED, "name \"%s\" belongs to uid %u: only that user or root may unpublish it", ref->id,
                             owner.uid);
    if (!name || !name->published)
        return rdt_error_set(err, RDT_NOT_FOUND, "nothing is published under the name \"%s\"", ref->id);
    if (age_ns <= 0 || name->since_ns <= names->begun_ns || (int64_t)(uv_hrtime() - name->since_ns) >= age_ns)
        end(name, NAME_UNPUBLISHED);
    return RDT_OK;
}

/* ---- finding ---- */

enum rdt_status names_find(struct names *names, const struct rdt_ref *ref, const struct owner *requester,
                           struct object **object_p, uint64_t *version_p, struct rdt_error *err)
{
    struct owner owner;
    struct name *name = find_ref(names, ref, requester, &owner);

    if (!name || !name_visible_to(name, requester) || (!name->published && ref->after == 0))
        return RDT_AGAIN;
    if (!name->published && name->version > 0)
        return why_ended(name, err);
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
    name_recall(name);
    waiter->name = name;
    waiter->requester = requester;
    waiter->after = ref->after;
    list_append(&name->waiters, &waiter->link);
    name->n_waiters++;
    return RDT_OK;
}

/* ---- the end ---- */

struct name *names_next(const struct names *names, uint64_t after)
{
    uint64_t number;

    return index_next(&names->published, after + 1, &number);
}

void names_clear(struct names *names)
{
    struct rdt_error err;
    struct name *name;
    size_t cursor = 0;

    (void)rdt_error_set(&err, RDT_SHUTTING_DOWN, "nothing is published any more: the daemon is shutting down");
    while ((name = names_next(names, 0)))
        withdraw(name, &err);
    while ((name = map_next(&names->by_key, &cursor)))
        if (name->n_waiters > 0)
            name_fail_all(name, &err); /* may free this entry, which map_next allows */
    slice_stop(&names->wake);
}

void names_fini(struct names *names)
{
    struct name *name;
    size_t cursor = 0;

    while ((name = map_next(&names->by_key, &cursor)))
        name_free(name);
    index_fini(&names->published);
    fair_fini(&names->remembered);
    map_fini(&names->by_key);
    map_fini(&names->by_object);
}

/* ---- why a wait was in vain: something similar exists that the requester may have meant ---- */

/* NULL: nothing is published under it. Not name_find, which may end the name, and with it the wait that is being explained. */
static const struct name *find_published(const struct names *names, const struct owner *owner, const uint8_t *id,
                                         size_t id_bytes)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    const struct name *name = map_get(&names->by_key, key, owner_key(key, owner, id, id_bytes));

    return name && name->published && !(name->publisher && name->publisher->conn.gone) ? name : NULL;
}

void names_explain_object(struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                          const struct owner *requester, char *text, size_t size)
{
    const struct name *name = find_published(names, owner, id, id_bytes);

    text[0] = '\0';
    if (name && name_visible_to(name, requester))
        (void)snprintf(text, size, "; there is a name \"%.*s\", which is fetched as a name (rdtctl --name, Ref.from_name)",
                       (int)id_bytes, (const char *)id);
}

void names_explain_name(struct names *names, struct object_table *objects, const struct owner *owner, const uint8_t *id,
                        size_t id_bytes, const struct owner *requester, char *text, size_t size)
{
    const struct name *name = find_published(names, owner, id, id_bytes);
    struct rdt_ref ref = {.uid = owner->uid, .id_bytes = (uint8_t)id_bytes};
    struct object *object;
    unsigned compared = 0;

    text[0] = '\0';
    memcpy(ref.id, id, id_bytes);
    text_copy(ref.tenant, sizeof ref.tenant, owner->tenant);
    if (!name && object_table_find_any(objects, &ref, requester, false, &object, NULL) == RDT_OK) {
        (void)snprintf(text, size, "; there is an object \"%s\", which is fetched by its id, not as a name", ref.id);
        return;
    }
    if (!owner_equal(owner, requester))
        return;
    for (name = names_next(names, 0); name; name = names_next(names, name->number)) {
        uint32_t uid;
        if (++compared > EXPLAIN_MAX)
            return;
        if (name->id_bytes != id_bytes || memcmp(name_id(name), id, id_bytes) != 0 ||
            owner_equal(&name->account->owner, requester) || !name_visible_to(name, requester))
            continue;
        uid = name->account->owner.uid;
        (void)snprintf(text, size,
                       "; uid %u has published version %llu of such a name: say whose it is (rdtctl --owner %u, owner=%u)", uid,
                       (unsigned long long)name->version, uid, uid);
        return;
    }
}
