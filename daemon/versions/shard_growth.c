/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes are told of a version that is not complete: which parts are there, so that they fetch them ahead. Those that wait
 * are told in slices, because their number is not ours, and then ask again. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <uv.h>

#include "daemon/versions/shards_impl.h"
#include "proto/grow.h"

struct growth_watch { /* a name whose versions somebody waits for */
    struct shards *shards;
    struct list waiting, telling; /* struct growth_waiter.link; telling: they look again */
    struct slice tell;
    bool tells; /* in tell_some, which frees it */
    uint8_t key_bytes;
    uint8_t key[OWNER_KEY_MAX_BYTES];
};

void version_growth_init(struct version *version)
{
    if (getrandom(&version->growth.number, sizeof version->growth.number, GRND_NONBLOCK) !=
        (ssize_t)sizeof version->growth.number)
        version->growth.number = uv_hrtime();
    version->growth.number |= 1; /* 0 is none */
}

/* ---- telling ---- */

static bool free_if_unused(struct growth_watch *watch)
{
    if (watch->tells || !list_empty(&watch->waiting) || !list_empty(&watch->telling))
        return false;
    (void)map_remove(&watch->shards->watched, watch->key, watch->key_bytes);
    slice_stop(&watch->tell);
    free(watch);
    return true;
}

void growth_waiter_remove(struct growth_waiter *waiter)
{
    struct growth_watch *watch = waiter->watch;

    if (!watch)
        return;
    list_remove(&waiter->link);
    waiter->watch = NULL;
    account_give(waiter->account, USAGE_HEAP, sizeof *watch);
    account_unref(waiter->account);
    (void)free_if_unused(watch);
}

static bool tell_some(struct slice *slice, uint64_t until_ns)
{
    struct growth_watch *watch = container_of(slice, struct growth_watch, tell);

    watch->tells = true;
    while (!list_empty(&watch->telling)) {
        struct growth_waiter *waiter = container_of(list_first(&watch->telling), struct growth_waiter, link);

        growth_waiter_remove(waiter);
        waiter->on_news(waiter);
        if (uv_hrtime() >= until_ns)
            break;
    }
    watch->tells = false;
    if (!list_empty(&watch->telling))
        return false;
    if (list_empty(&watch->waiting)) {
        (void)map_remove(&watch->shards->watched, watch->key, watch->key_bytes);
        free(watch);
    }
    return true;
}

static void tell(struct version *version)
{
    struct shards *shards = version->shards;
    struct growth_watch *watch = map_get(&shards->watched, version->name->key, version->name->key_bytes);

    if (!watch || list_empty(&watch->waiting))
        return;
    list_splice(&watch->telling, &watch->waiting);
    slice_start(&shards->deadlines->slices, &watch->tell);
}

void version_growth_add(struct version *version, const struct part *part)
{
    struct version_growth *growth = &version->growth;
    uint32_t *held = array_grow(growth->held, growth->n_held, &growth->room, sizeof *held);

    if (!held)
        return; /* nobody fetches this part ahead */
    growth->held = held;
    held[growth->n_held++] = part->number;
    tell(version);
}

void version_growth_end(struct version *version)
{
    tell(version);
}

void growth_clear(struct shards *shards)
{
    struct growth_watch *watch;
    size_t cursor = 0;

    while ((watch = map_next(&shards->watched, &cursor))) { /* the calls have ended */
        slice_stop(&watch->tell);
        free(watch);
    }
    map_fini(&shards->watched);
}

/* ---- asking ---- */

static bool may_see(const struct version *version, const struct owner *requester)
{
    const struct owner *owner = &version->account->owner;

    return owner_equal(owner, requester) || version->visibility == RDT__PB__VISIBILITY__VISIBILITY_ALL ||
           (version->visibility == RDT__PB__VISIBILITY__VISIBILITY_TENANT && strcmp(owner->tenant, requester->tenant) == 0);
}

/* The version that the requester means: by its number, or the newest step that is not complete and has a part. */
static const struct version *find(const struct shard_name *name, const struct owner *requester, uint64_t number)
{
    const struct version *found = NULL;

    list_each (const struct version, version, &name->versions, link) {
        if (number == version->growth.number)
            return may_see(version, requester) ? version : NULL;
        if (number == 0 && version->state == VERSION_FILLING && version->growth.n_held > 0 && may_see(version, requester) &&
            (!found || version->step > found->step))
            found = version;
    }
    return found;
}

static void describe(const struct version *version, uint32_t from, struct growth *growth_p)
{
    growth_p->number = version->growth.number;
    growth_p->step = version->step;
    growth_p->ended = version->state != VERSION_FILLING;
    growth_p->version = version->number;
    for (uint32_t i = from; i < version->growth.n_held && growth_p->n < GROWTH_PARTS && !growth_p->ended; i++) {
        const struct part *part = version->parts[version->growth.held[i]];
        growth_p->parts[growth_p->n++] = (struct growth_part){part->ref, part->bytes};
    }
}

static enum rdt_status watch_name(struct shards *shards, const struct owner *owner, const struct rdt_ref *name,
                                  struct growth_waiter *waiter, struct account *requester, struct rdt_error *err)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    size_t key_bytes = owner_key(key, owner, (const uint8_t *)name->id, name->id_bytes);
    struct growth_watch *watch = map_get(&shards->watched, key, key_bytes);
    enum rdt_status status = account_take(requester, USAGE_HEAP, sizeof *watch, err);

    if (status != RDT_OK)
        return status;
    if (!watch && (watch = calloc(1, sizeof *watch))) {
        watch->shards = shards;
        watch->tell.run = tell_some;
        list_init(&watch->waiting);
        list_init(&watch->telling);
        watch->key_bytes = (uint8_t)key_bytes;
        memcpy(watch->key, key, key_bytes);
        if (!map_put(&shards->watched, watch->key, watch->key_bytes, watch)) {
            free(watch);
            watch = NULL;
        }
    }
    if (!watch) {
        account_give(requester, USAGE_HEAP, sizeof *watch);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for the parts of \"%s\"", name->id);
    }
    waiter->watch = watch;
    waiter->account = account_ref(requester);
    list_append(&watch->waiting, &waiter->link);
    return RDT_AGAIN;
}

enum rdt_status shards_growth(struct shards *shards, const struct rdt_ref *ref, struct account *requester, uint64_t number,
                              uint32_t from, struct growth_waiter *waiter, struct growth *growth_p, struct rdt_error *err)
{
    struct owner owner = owner_of_ref(ref, &requester->owner);
    const struct shard_name *name = shard_name_find(shards, &owner, ref);
    const struct version *version = name ? find(name, &requester->owner, number) : NULL;

    growth_p->number = number;
    growth_p->n = 0;
    growth_p->ended = number != 0;
    growth_p->step = growth_p->version = 0;
    if (version)
        describe(version, number != 0 ? from : 0, growth_p);
    if (growth_p->n > 0 || growth_p->ended)
        return RDT_OK;
    return watch_name(shards, &owner, ref, waiter, requester, err);
}
