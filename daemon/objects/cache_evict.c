/* SPDX-License-Identifier: Apache-2.0 */
/* Which objects of the cache go, and when. */
#include "daemon/base/log.h"
#include "daemon/objects/cache_impl.h"
#include "daemon/objects/object.h"
#include "daemon/objects/object_table.h"

#define MARGIN 1024u /* of what is used, this part is evicted beside what is wanted */

/* What helps who wants room. */
enum cache_need {
    NEED_NOTHING,
    NEED_MEMORY, /* that objects leave memory */
    NEED_ENDS,   /* that objects end; those in files go first */
    NEED_FILES,  /* that files end */
};

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
    case USAGE_STORED_BYTES:
        return sums->idle_file_bytes;
    default:
        return 0;
    }
}

/* And evictions give some of it. Requests that wait for what they do not give try again, and learn that. */
static bool is_unmet(struct cache *cache, struct cache_want *want, const struct cache_sums *sums)
{
    struct account *at = want->at;
    bool wanted = at && at->used[want->what] > want->target;

    if (wanted && want->what == USAGE_STORED_BYTES && sums->file_bytes <= want->file_target)
        return false; /* files are being removed */
    if (wanted && evictable(sums, want->what) > 0)
        return true;
    want->at = NULL;
    if (wanted && at == &cache->accounts->node)
        account_room_freed(cache->accounts, want->what, NULL);
    else if (wanted)
        account_limits_changed(at);
    return false;
}

static enum cache_need need_of(enum usage what)
{
    return what == USAGE_BYTES ? NEED_MEMORY : what == USAGE_STORED_BYTES ? NEED_FILES : NEED_ENDS;
}

static bool has_memory(const struct cache_sums *sums)
{
    return sums->n_idle > sums->n_idle_spilled;
}

static enum cache_need owner_needs(struct cache_owner *owner)
{
    uint64_t limit = owner->cache->owner_limit_bytes;
    bool unmet = is_unmet(owner->cache, &owner->want, &owner->sums);

    if (owner->queue.n == 0)
        return NEED_NOTHING;
    if (unmet && owner->want.what != USAGE_BYTES)
        return need_of(owner->want.what);
    if (has_memory(&owner->sums) && (unmet || (limit > 0 && owner->sums.bytes > limit)))
        return NEED_MEMORY;
    return owner->sums.n_idle_spilled > 0 && owner->sums.file_bytes > cache_owner_file_limit(owner->cache) ? NEED_FILES
                                                                                                           : NEED_NOTHING;
}

/* Host memory that is not being freed yet. */
static bool memory_must_evict(const struct cache *cache)
{
    const struct regions *regions = cache->regions;

    return cache->memory_target != UINT64_MAX &&
           (regions_used_bytes(regions) - regions->freeing.bytes > cache->memory_target ||
            (regions->awaiting.bytes > 0 && regions_claimed_bytes(regions) > regions->limit_bytes));
}

static enum cache_need node_needs(struct cache *cache)
{
    bool unmet = is_unmet(cache, &cache->want, &cache->sums);

    if (cache->sums.n_idle == 0)
        return NEED_NOTHING;
    if (unmet && cache->want.what != USAGE_BYTES)
        return need_of(cache->want.what);
    if (has_memory(&cache->sums) &&
        (unmet || (cache->limit_bytes > 0 && cache->sums.bytes > cache->limit_bytes) || memory_must_evict(cache)))
        return NEED_MEMORY;
    return cache->sums.n_idle_spilled > 0 && cache->sums.file_bytes > cache->files.limit_bytes ? NEED_FILES : NEED_NOTHING;
}

static struct cached *victim_of(const struct cache_owner *owner, enum cache_need need)
{
    struct cache_entry *spilled = need != NEED_MEMORY ? cache_queue_spilled(&owner->queue) : NULL;

    return cached_of(spilled ? spilled : cache_queue_victim(&owner->queue));
}

static struct cache_owner *loser(const struct cache *cache, enum cache_need need)
{
    bool files = need != NEED_MEMORY && cache->sums.n_idle_spilled > 0;

    return cache_owner_with_most(cache, files ? CACHE_BY_FILES : CACHE_BY_MEMORY);
}

/* NULL: nothing more must go. */
static struct cached *next_victim(struct cache *cache, enum cache_need *need_p)
{
    list_drain (struct cache_owner, owner, &cache->pressed, pressed) {
        *need_p = owner_needs(owner);
        if (*need_p != NEED_NOTHING)
            return victim_of(owner, *need_p);
        list_remove(&owner->pressed);
    }
    *need_p = node_needs(cache);
    if (*need_p == NEED_NOTHING)
        return NULL;
    return victim_of(loser(cache, *need_p), *need_p);
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
    cache_end_turn(owner);
    if (cached->entry.writing)
        cached_discard_file(cached); /* otherwise its writer would keep it until the file is whole */
    cache->evict(object);            /* frees `cached` and perhaps the owner */
}

static void make_way(struct cached *cached, enum cache_need need)
{
    if (need == NEED_MEMORY && cached_spill(cached)) {
        cache_end_turn(cached->owner);
        return;
    }
    cached_count_unspilled(cached);
    evict(cached);
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
    enum cache_need need;

    while ((victim = next_victim(cache, &need))) {
        make_way(victim, need);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    end_memory(cache);
    while (cache_write_ahead(cache, &victim)) {
        if (victim)
            evict(victim);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

static void start(struct cache *cache)
{
    if (slice_waits(&cache->slice))
        return;
    cache->slice.run = run;
    slice_start(cache->slices, &cache->slice);
}

/* By its own limits. */
static bool press(struct cache_owner *owner)
{
    if (owner_needs(owner) != NEED_NOTHING && list_empty(&owner->pressed))
        list_append(&owner->cache->pressed, &owner->pressed);
    return !list_empty(&owner->pressed);
}

void cache_press(struct cache_owner *owner)
{
    if (press(owner) || node_needs(owner->cache) != NEED_NOTHING || cache_note_near(owner))
        start(owner->cache);
}

static void press_all(struct cache *cache)
{
    bool any = false;

    list_each (struct cache_owner, owner, &cache->owners, link)
        any |= press(owner);
    if (any || node_needs(cache) != NEED_NOTHING)
        start(cache);
}

void cache_set_limits(struct cache *cache, uint64_t limit_bytes, uint64_t owner_limit_bytes)
{
    cache->limit_bytes = limit_bytes;
    cache->owner_limit_bytes = owner_limit_bytes;
    press_all(cache);
}

void cache_set_file_limits(struct cache *cache, uint64_t limit_bytes, uint64_t owner_limit_bytes)
{
    cache->files.limit_bytes = limit_bytes;
    cache->files.owner_limit_bytes = owner_limit_bytes;
    press_all(cache);
}

void cache_written(struct cache *cache, uint64_t bytes)
{
    if (!cache->files.busy)
        return;
    cache_end_writing(cache, bytes);
    start(cache); /* others are written, or what was written may leave */
}

/* ---- room for requests ---- */

/* Whether what the request lacks is free when the files have been removed that are evicted already. */
static bool is_under_way(const struct cache_want *want, const struct account_lack *lack)
{
    uint64_t used = lack->at->used[lack->what];

    return want->at == lack->at && want->what == lack->what && used > want->target && lack->amount <= used - want->target;
}

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
    if (lack->what == USAGE_STORED_BYTES && is_under_way(want, lack))
        return true;
    if ((!owner && lack->at != &cache->accounts->node) || lack->amount > lack->at->used[lack->what] ||
        evictable(sums, lack->what) == 0 || evictable(sums, lack->what) < lack->amount)
        return false;
    want->file_target = sums->file_bytes > lack->amount ? sums->file_bytes - lack->amount : 0;
    used = lack->at->used[lack->what];
    most = evictable(sums, lack->what) / 8;
    margin = used / MARGIN < most ? used / MARGIN : most; /* so that the next requests find room */
    if (lack->what == USAGE_STORED_BYTES)
        margin = 0;
    want->at = lack->at;
    want->what = lack->what;
    want->target = used - lack->amount > margin ? used - lack->amount - margin : 0;
    if (owner)
        cache_press(owner);
    else if (node_needs(cache) != NEED_NOTHING)
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
        if (cache_has(object) && !object->producer)
            table->cache.evict(object);
}

static bool flush_some(struct slice *slice, uint64_t until_ns)
{
    struct cache_flush *flush = container_of(slice, struct cache_flush, slice);
    struct cache *cache = flush->cache;
    struct cached *victim;

    while (flush->left > 0) {
        struct cache_owner *owner = flush->owner             ? flush->owner->cache_owner
                                    : cache->sums.n_idle > 0 ? loser(cache, NEED_ENDS)
                                                             : NULL;
        if (!owner || owner->queue.n == 0)
            break;
        flush->left--;
        flush->n++;
        victim = victim_of(owner, NEED_ENDS);
        flush->bytes += victim->entry.bytes > 0 ? victim->entry.bytes : victim->file_bytes;
        evict(victim);
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
