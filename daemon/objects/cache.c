/* SPDX-License-Identifier: Apache-2.0 */
/* The life of an object in the cache. */
#include "daemon/objects/cache.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/objects/cache_impl.h"
#include "daemon/objects/object.h"
#include "daemon/objects/object_table.h"

void cache_init(struct cache *cache, struct regions *regions, struct accounts *accounts, void (*evict)(struct object *object))
{
    *cache = (struct cache){.regions = regions, .accounts = accounts, .evict = evict, .memory_target = UINT64_MAX};
    list_init(&cache->owners);
    list_init(&cache->pressed);
    list_init(&cache->files.near);
    for (unsigned k = 0; k < CACHE_ORDERS; k++)
        for (unsigned i = 0; i < CACHE_RANKS; i++)
            list_init(&cache->orders[k].ranks[i]);
}

void cache_fini(struct cache *cache)
{
    slice_stop(&cache->slice);
    assert(list_empty(&cache->owners));
}

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
    if (!cached || !(cached->owner = cache_owner_of(cache, object->account))) {
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
    cached_enter_queue(cached);
    cache_press(cached->owner);
}

/* Whether the object is live, and was not taken out. */
static bool is_in(const struct cached *cached)
{
    return cached->state == CACHED_IDLE || cached->state == CACHED_HELD;
}

/* The thread that writes its file has a hold and a pin, which keep nothing: it stops when the object goes. */
static bool is_idle(const struct object *object)
{
    uint32_t writer = object->file.writing;

    return object->state == OBJECT_LIVE && object->holds == 1 + writer && object->pins <= writer;
}

void cache_settle(struct object *object)
{
    struct cached *cached = object->cached;

    if (!is_in(cached) || (cached->state == CACHED_IDLE) == is_idle(object))
        return;
    if (cached->state == CACHED_IDLE)
        cached_leave_queue(cached, CACHED_HELD);
    else
        enter_queue(cached);
}

static bool is_in_file(const struct object *object)
{
    return object->memory.n_regions > 0 && object->memory.uses[0].region->origin == REGION_FILE;
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

    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        region_charge_owner(object->memory.uses[i].region);
    cached->n_regions = object->memory.n_regions;
    if (is_in_file(object)) { /* an earlier daemon has written it */
        cached->entry.segment = CACHE_SPILLED;
        cached_set_file(cached, object->memory.uses[0].region->bytes);
    } else {
        cached->entry.bytes = bytes_of(object);
    }
    cached_count(cached, true);
    cached_set_state(cached, CACHED_HELD);
    cache_settle(object);
}

void cache_remove(struct object *object)
{
    struct cached *cached = object->cached;
    struct cache *cache;
    bool was_in;

    if (!cached || cached->state == CACHED_OUT)
        return;
    cache = cached->owner->cache;
    was_in = is_in(cached);
    if (cached->state == CACHED_IDLE)
        cached_leave_queue(cached, CACHED_OUT);
    else
        cached_set_state(cached, CACHED_OUT);
    if (!was_in)
        return;
    cached_count(cached, false);
    if (cached->file_bytes > 0 && cache->files.ops)
        cached_discard_file(cached);
    cached_set_file(cached, 0);
    cached->entry.writing = false;
    if (cache->files.writing == cached)
        cache->files.writing = NULL;
}

void cache_forget(struct object *object)
{
    struct cached *cached = object->cached;

    cache_remove(object);
    object->cached = NULL;
    cache_owner_unref(cached->owner);
    free(cached);
}

void cache_found(struct object *object, bool by_id)
{
    struct cached *cached = object->cached;
    struct cache_counts *of[2];

    if (!is_in(cached))
        return;
    of[0] = &cached->owner->counts;
    of[1] = &cached->owner->cache->counts;
    for (unsigned i = 0; i < 2 && by_id; i++) {
        of[i]->hits++;
        of[i]->file_hits += cached_is_spilled(cached);
    }
    cached->used = true;
    if (cached->state == CACHED_IDLE) { /* it may not be held at all */
        cached_queue_remove(cached);
        cached_queue_add(cached, true);
    }
}

static struct cache_owner *find_owner(const struct cache *cache, const struct owner *owner)
{
    const struct account *account = accounts_find(cache->accounts, owner);

    return account ? account->cache_owner : NULL;
}

void cache_missed(struct cache *cache, const struct owner *owner)
{
    struct cache_owner *of = cache->sums.n > 0 ? find_owner(cache, owner) : NULL;

    if (!of)
        return;
    of->counts.misses++;
    cache->counts.misses++;
}

void cache_found_far(struct cache *cache, const struct owner *owner, uint64_t n)
{
    struct cache_owner *of = find_owner(cache, owner);

    cache->counts.far_hits += n;
    if (of)
        of->counts.far_hits += n;
}
