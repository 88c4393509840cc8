/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/cache.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/objects/object.h"
#include "daemon/objects/object_table.h"

#define MARGIN 1024u /* of what is used, this part is evicted beside what is wanted */

enum cached_state { CACHED_OUT, CACHED_IDLE, CACHED_HELD };

struct cached {
    struct cache_entry entry;
    struct object *object;
    struct cache_owner *owner;
    uint32_t n_regions; /* of the object */
    uint8_t state;      /* enum cached_state */
    bool used;          /* since it was in the queue */
};

_Static_assert(sizeof(struct cached) <= CACHE_HEAP_BYTES, "an object in the cache is charged what it takes");

struct cache_person { /* exists while one of its owners does */
    struct list link; /* in cache->ranks, while it has idle objects */
    struct list owners;
    struct account *account; /* a reference */
    uint64_t n_owners, n_idle, idle_bytes;
    unsigned rank;
};

void cache_init(struct cache *cache, struct regions *regions, struct accounts *accounts, void (*evict)(struct object *object))
{
    *cache = (struct cache){.regions = regions, .accounts = accounts, .evict = evict, .memory_target = UINT64_MAX};
    list_init(&cache->owners);
    list_init(&cache->pressed);
    for (unsigned i = 0; i < CACHE_RANKS; i++)
        list_init(&cache->ranks[i]);
}

void cache_fini(struct cache *cache)
{
    slice_stop(&cache->slice);
    assert(list_empty(&cache->owners));
}

/* ---- owners and persons ---- */

static struct cache_person *person_of(struct account *account)
{
    struct account *of = account_person(account);
    struct cache_person *person = of->cache_person;

    if (person)
        return person;
    person = calloc(1, sizeof *person);
    if (!person)
        return NULL;
    list_init(&person->link);
    list_init(&person->owners);
    person->account = account_ref(of);
    of->cache_person = person;
    return person;
}

static struct cache_owner *owner_of(struct cache *cache, struct account *account)
{
    struct account *of = account_owner(account);
    struct cache_owner *owner = of->cache_owner;
    struct cache_person *person;

    if (owner)
        return owner;
    owner = calloc(1, sizeof *owner);
    person = owner ? person_of(of) : NULL;
    if (!person) {
        free(owner);
        return NULL;
    }
    owner->cache = cache;
    owner->account = account_ref(of);
    owner->person = person;
    person->n_owners++;
    list_append(&cache->owners, &owner->link);
    list_init(&owner->pressed);
    list_init(&owner->by_person);
    cache_queue_init(&owner->queue);
    of->cache_owner = owner;
    return owner;
}

static void owner_unref(struct cache_owner *owner)
{
    struct cache_person *person = owner->person;

    if (--owner->n_objects > 0)
        return;
    list_remove(&owner->link);
    list_remove(&owner->pressed);
    owner->account->cache_owner = NULL;
    account_unref(owner->account);
    free(owner);
    if (--person->n_owners > 0)
        return;
    person->account->cache_person = NULL;
    account_unref(person->account);
    free(person);
}

/* Of persons with about as much as each other, the one that was here first is first. */
static void rank(struct cache *cache, struct cache_person *person)
{
    unsigned rank = 63u - (unsigned)__builtin_clzll(person->idle_bytes | 1);

    if (person->n_idle > 0 && !list_empty(&person->link) && rank == person->rank)
        return;
    list_remove(&person->link);
    if (list_empty(&cache->ranks[person->rank]))
        cache->used_ranks &= ~(UINT64_C(1) << person->rank);
    if (person->n_idle == 0)
        return;
    person->rank = rank;
    list_append(&cache->ranks[rank], &person->link);
    cache->used_ranks |= UINT64_C(1) << rank;
}

/* ---- what must go ---- */

/* How much of that evictions give. */
static uint64_t evictable(const struct cache_sums *sums, enum usage what)
{
    switch (what) {
    case USAGE_BYTES:
        return sums->idle_bytes;
    case USAGE_OBJECTS:
        return sums->n_idle;
    case USAGE_REGIONS:
        return sums->n_idle_regions;
    case USAGE_FDS:
    case USAGE_MAPPINGS:
    case USAGE_MAPPED_BYTES:
        return sums->n_idle_regions > 0 ? UINT64_MAX : 0; /* a region may have any number */
    case USAGE_HEAP:
        return sums->n_idle > 0 ? UINT64_MAX : 0;
    default:
        return 0;
    }
}

/* And evictions give some of it. Requests that wait for what they do not give try again, and learn that. */
static bool is_unmet(struct cache *cache, struct cache_want *want, const struct cache_sums *sums)
{
    struct account *at = want->at;
    bool wanted = at && at->used[want->what] > want->target;

    if (wanted && evictable(sums, want->what) > 0)
        return true;
    want->at = NULL;
    if (wanted && at == &cache->accounts->node)
        account_room_freed(cache->accounts, want->what, NULL);
    else if (wanted)
        account_limits_changed(at);
    return false;
}

static bool owner_must_evict(struct cache_owner *owner)
{
    uint64_t limit = owner->cache->owner_limit_bytes;
    bool unmet = is_unmet(owner->cache, &owner->want, &owner->sums);

    return owner->queue.n > 0 && (unmet || (limit > 0 && owner->sums.bytes > limit));
}

/* Host memory that is not being freed yet. */
static bool memory_must_evict(const struct cache *cache)
{
    const struct regions *regions = cache->regions;

    return cache->memory_target != UINT64_MAX &&
           (regions_used_bytes(regions) - regions->freeing.bytes > cache->memory_target ||
            (regions->awaiting.bytes > 0 && regions_claimed_bytes(regions) > regions->limit_bytes));
}

static bool node_must_evict(struct cache *cache)
{
    bool unmet = is_unmet(cache, &cache->want, &cache->sums);

    return cache->sums.n_idle > 0 &&
           (unmet || (cache->limit_bytes > 0 && cache->sums.bytes > cache->limit_bytes) || memory_must_evict(cache));
}

static struct cache_owner *owner_with_most(const struct cache *cache)
{
    unsigned rank = 63u - (unsigned)__builtin_clzll(cache->used_ranks);
    const struct cache_person *person = container_of(list_first(&cache->ranks[rank]), struct cache_person, link);

    return container_of(list_first(&person->owners), struct cache_owner, by_person);
}

static struct cached *victim_of(const struct cache_owner *owner)
{
    return container_of(cache_queue_victim(&owner->queue), struct cached, entry);
}

/* NULL: nothing more must go. */
static struct cached *next_victim(struct cache *cache)
{
    list_drain (struct cache_owner, owner, &cache->pressed, pressed) {
        if (owner_must_evict(owner))
            return victim_of(owner);
        list_remove(&owner->pressed);
    }
    return node_must_evict(cache) ? victim_of(owner_with_most(cache)) : NULL;
}

/* ---- evictions ---- */

static void evict(struct cached *cached)
{
    struct cache_owner *owner = cached->owner;
    struct cache *cache = owner->cache;
    struct object *object = cached->object;

    log_debug("obj %016llx is evicted", (unsigned long long)object->generation);
    owner->counts.evictions++;
    owner->counts.evicted_bytes += cached->entry.bytes;
    cache->counts.evictions++;
    cache->counts.evicted_bytes += cached->entry.bytes;
    if (!list_empty(&owner->by_person)) { /* the owners of a person take turns */
        list_remove(&owner->by_person);
        list_append(&owner->person->owners, &owner->by_person);
    }
    cache->evict(object); /* frees `cached` and perhaps the owner */
}

/* What waits for memory may go on, or learns that there is none. */
static void end_memory(struct cache *cache)
{
    if (cache->memory_target == UINT64_MAX)
        return;
    cache->memory_target = UINT64_MAX;
    cache->regions->awaiting.evicting = false;
    cache->regions->on_freed(cache->regions, NULL);
    account_room_freed(cache->accounts, USAGE_BYTES, NULL);
}

static bool run(struct slice *slice, uint64_t until_ns)
{
    struct cache *cache = container_of(slice, struct cache, slice);
    struct cached *victim;

    while ((victim = next_victim(cache))) {
        evict(victim);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    end_memory(cache);
    return true;
}

static void start(struct cache *cache)
{
    if (slice_waits(&cache->slice))
        return;
    cache->slice.run = run;
    slice_start(cache->slices, &cache->slice);
}

static void press(struct cache_owner *owner)
{
    if (owner_must_evict(owner) && list_empty(&owner->pressed))
        list_append(&owner->cache->pressed, &owner->pressed);
    if (!list_empty(&owner->pressed) || node_must_evict(owner->cache))
        start(owner->cache);
}

void cache_set_limits(struct cache *cache, uint64_t limit_bytes, uint64_t owner_limit_bytes)
{
    cache->limit_bytes = limit_bytes;
    cache->owner_limit_bytes = owner_limit_bytes;
    list_each (struct cache_owner, owner, &cache->owners, link)
        if (owner_must_evict(owner) && list_empty(&owner->pressed))
            list_append(&cache->pressed, &owner->pressed);
    if (!list_empty(&cache->pressed) || node_must_evict(cache))
        start(cache);
}

/* ---- the life of an object ---- */

static enum rdt_status check_limit(const struct cache_sums *sums, uint64_t limit, uint64_t bytes, const char *key,
                                   struct rdt_error *err)
{
    uint64_t held = sums->bytes - sums->idle_bytes;

    if (limit == 0 || (bytes <= limit && held <= limit - bytes))
        return RDT_OK;
    if (bytes > limit)
        return rdt_error_set(err, RDT_LIMIT, "the object takes %llu bytes, and %s is %llu", (unsigned long long)bytes, key,
                             (unsigned long long)limit);
    return rdt_error_set(err, RDT_LIMIT,
                         "the object takes %llu bytes of %s, which is %llu, and %llu of them belong to objects that readers, "
                         "holds or names hold, so that nothing evicts them: release some, or raise it",
                         (unsigned long long)bytes, key, (unsigned long long)limit, (unsigned long long)held);
}

enum rdt_status cache_prepare(struct cache *cache, struct object *object, unsigned priority, uint64_t bytes,
                              struct rdt_error *err)
{
    const struct cache_owner *there = account_owner(object->account)->cache_owner;
    static const struct cache_sums none;
    bool restored = cache->accounts->unlimited;
    enum rdt_status status = restored ? RDT_OK : check_limit(&cache->sums, cache->limit_bytes, bytes, "cache_limit", err);
    struct cached *cached;

    if (status == RDT_OK && !restored)
        status = check_limit(there ? &there->sums : &none, cache->owner_limit_bytes, bytes, "owner_cache_limit", err);
    if (status != RDT_OK)
        return status;
    cached = calloc(1, sizeof *cached);
    if (!cached || !(cached->owner = owner_of(cache, object->account))) {
        free(cached);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    }
    cached->owner->n_objects++;
    cached->object = object;
    cached->entry.priority = (uint8_t)priority;
    list_init(&cached->entry.link);
    object->cached = cached;
    return RDT_OK;
}

unsigned cache_priority(const struct object *object)
{
    return object->cached ? object->cached->entry.priority : 0;
}

static void enter_queue(struct cached *cached)
{
    struct cache_owner *owner = cached->owner;
    struct cache_person *person = owner->person;

    cached->state = CACHED_IDLE;
    cache_queue_add(&owner->queue, &cached->entry, cached->used);
    cached->used = false;
    if (owner->sums.n_idle++ == 0)
        list_append(&person->owners, &owner->by_person);
    owner->sums.idle_bytes += cached->entry.bytes;
    owner->sums.n_idle_regions += cached->n_regions;
    owner->cache->sums.n_idle++;
    owner->cache->sums.idle_bytes += cached->entry.bytes;
    owner->cache->sums.n_idle_regions += cached->n_regions;
    person->n_idle++;
    person->idle_bytes += cached->entry.bytes;
    rank(owner->cache, person);
    press(owner);
}

static void leave_queue(struct cached *cached, enum cached_state state)
{
    struct cache_owner *owner = cached->owner;
    struct cache_person *person = owner->person;

    cached->state = (uint8_t)state;
    cache_queue_remove(&owner->queue, &cached->entry);
    if (--owner->sums.n_idle == 0)
        list_remove(&owner->by_person);
    owner->sums.idle_bytes -= cached->entry.bytes;
    owner->sums.n_idle_regions -= cached->n_regions;
    owner->cache->sums.n_idle--;
    owner->cache->sums.idle_bytes -= cached->entry.bytes;
    owner->cache->sums.n_idle_regions -= cached->n_regions;
    person->n_idle--;
    person->idle_bytes -= cached->entry.bytes;
    rank(owner->cache, person);
}

static bool is_idle(const struct object *object)
{
    return object->state == OBJECT_LIVE && object->holds == 1 && object->pins == 0;
}

void cache_settle(struct object *object)
{
    struct cached *cached = object->cached;

    if (cached->state == CACHED_OUT || (cached->state == CACHED_IDLE) == is_idle(object))
        return;
    if (cached->state == CACHED_IDLE)
        leave_queue(cached, CACHED_HELD);
    else
        enter_queue(cached);
}

static uint64_t bytes_of(const struct object *object)
{
    uint64_t bytes = object->heap_bytes + slab_bytes(object_piece(object));

    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        bytes += object->memory.uses[i].region->room;
    return bytes;
}

void cache_add(struct object *object)
{
    struct cached *cached = object->cached;
    struct cache_owner *owner = cached->owner;

    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        region_charge_owner(object->memory.uses[i].region);
    cached->entry.bytes = bytes_of(object);
    cached->n_regions = object->memory.n_regions;
    owner->sums.n++;
    owner->sums.bytes += cached->entry.bytes;
    owner->cache->sums.n++;
    owner->cache->sums.bytes += cached->entry.bytes;
    cached->state = CACHED_HELD;
    cache_settle(object);
}

void cache_remove(struct object *object)
{
    struct cached *cached = object->cached;
    struct cache_owner *owner;

    if (!cached || cached->state == CACHED_OUT)
        return;
    if (cached->state == CACHED_IDLE)
        leave_queue(cached, CACHED_OUT);
    cached->state = CACHED_OUT;
    owner = cached->owner;
    owner->sums.n--;
    owner->sums.bytes -= cached->entry.bytes;
    owner->cache->sums.n--;
    owner->cache->sums.bytes -= cached->entry.bytes;
}

void cache_forget(struct object *object)
{
    struct cached *cached = object->cached;

    cache_remove(object);
    object->cached = NULL;
    owner_unref(cached->owner);
    free(cached);
}

void cache_found(struct object *object, bool by_id)
{
    struct cached *cached = object->cached;

    if (cached->state == CACHED_OUT)
        return;
    cached->used = true;
    if (cached->state == CACHED_IDLE) { /* it may not be held at all */
        cache_queue_remove(&cached->owner->queue, &cached->entry);
        cache_queue_add(&cached->owner->queue, &cached->entry, true);
    }
    cached->owner->counts.hits += by_id;
    cached->owner->cache->counts.hits += by_id;
}

void cache_missed(struct cache *cache, const struct owner *owner)
{
    const struct account *account;

    if (cache->sums.n == 0)
        return;
    account = accounts_find(cache->accounts, owner);
    if (!account || !account->cache_owner)
        return;
    account->cache_owner->counts.misses++;
    cache->counts.misses++;
}

/* ---- room for requests ---- */

bool cache_make_room(struct cache *cache)
{
    const struct account_lack *lack = &cache->accounts->lack;
    struct cache_owner *owner = lack->at && !lack->at->client ? lack->at->cache_owner : NULL;
    const struct cache_sums *sums = owner ? &owner->sums : &cache->sums;
    struct cache_want *want = owner ? &owner->want : &cache->want;
    uint64_t used, most, margin;

    if (!lack->at) /* memory_limit: regions->evict has been called */
        return cache->memory_target != UINT64_MAX;
    if (lack->amount == 0)
        return lack->evicting;
    if ((!owner && lack->at != &cache->accounts->node) || lack->amount > lack->at->used[lack->what] ||
        evictable(sums, lack->what) == 0 || evictable(sums, lack->what) < lack->amount)
        return false;
    used = lack->at->used[lack->what];
    most = evictable(sums, lack->what) / 8;
    margin = used / MARGIN < most ? used / MARGIN : most; /* so that the next requests find room */
    *want = (struct cache_want){lack->at, lack->what, used - lack->amount > margin ? used - lack->amount - margin : 0};
    if (owner)
        press(owner);
    else if (node_must_evict(cache))
        start(cache);
    return true;
}

void cache_make_memory(struct cache *cache, uint64_t lacking_bytes)
{
    uint64_t used = regions_used_bytes(cache->regions), target = used > lacking_bytes ? used - lacking_bytes : 0;

    if (target < cache->memory_target)
        cache->memory_target = target;
    cache->regions->awaiting.evicting = true;
    start(cache);
}

/* ---- all of them ---- */

void cache_end_all(struct object_table *table)
{
    struct object *object;

    for (uint64_t at = 0; (object = index_next(&table->by_generation, at, &at)); at++)
        if (object->survives.evictable && !object->producer)
            table->cache.evict(object);
}

static bool flush_some(struct slice *slice, uint64_t until_ns)
{
    struct cache_flush *flush = container_of(slice, struct cache_flush, slice);
    struct cache *cache = flush->cache;

    while (flush->left > 0) {
        struct cache_owner *owner = flush->owner             ? flush->owner->cache_owner
                                    : cache->sums.n_idle > 0 ? owner_with_most(cache)
                                                             : NULL;
        if (!owner || owner->queue.n == 0)
            break;
        flush->left--;
        flush->n++;
        flush->bytes += victim_of(owner)->entry.bytes;
        evict(victim_of(owner));
        if (uv_hrtime() >= until_ns)
            return false;
    }
    flush->on_done(flush);
    return true;
}

void cache_flush_start(struct cache_flush *flush, struct cache *cache, struct account *owner,
                       void (*on_done)(struct cache_flush *))
{
    const struct cache_owner *of = owner ? owner->cache_owner : NULL;

    *flush = (struct cache_flush){.cache = cache, .owner = owner, .on_done = on_done};
    flush->left = !owner ? cache->sums.n_idle : of ? of->queue.n : 0;
    flush->slice.run = flush_some;
    slice_start(cache->slices, &flush->slice);
}
