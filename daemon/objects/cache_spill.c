/* SPDX-License-Identifier: Apache-2.0 */
/* Evictable objects that leave memory for files, instead of ending. Nobody waits for the disk: objects are written before their
 * memory is wanted, in the order in which they would go, from the time on when the cache, or memory, is within an AHEADth of
 * its limit. As much as an AHEADth of the limit is written ahead.
 *
 *                        goes soon                 file is whole              memory is wanted
 *   PROBATION, PROTECTED ──────────► LEAVING ──────────────────► LEAVING ──────────────────────► SPILLED
 *          ▲                         being written │             written │                       │  file limit, or an end of
 *          │                                       │  used               │  used                 │  objects is wanted
 *          └───────────────────────────────────────┴─────────────────────┘                       ▼
 *             its file goes: it would be written                                               it ends
 *             again anyway, much later
 *
 * What cannot be written (the disk is full, a limit of files, an object in the arena) is LEAVING, too, and ends when its memory
 * is wanted, as does what the disk does not have in time. Who fills the cache has only his own files evicted: past the limit of
 * one owner, that owner's; past that of the node, those of the person who has most, up to a factor of two.
 *
 * One object is written at a time; what users store themselves waits for at most that one. */
#include "daemon/base/log.h"
#include "daemon/objects/cache_impl.h"
#include "daemon/objects/object.h"

#define AHEAD 8u

bool cache_stores(const struct cache *cache)
{
    return cache->files.ops && cache->files.limit_bytes > 0;
}

uint64_t cache_owner_file_limit(const struct cache *cache)
{
    uint64_t limit = cache->files.limit_bytes, of_owner = cache->files.owner_limit_bytes;

    return of_owner > 0 && of_owner < limit ? of_owner : limit;
}

/* ---- what goes soon ---- */

static bool owner_is_near(const struct cache_owner *owner)
{
    uint64_t limit = owner->cache->owner_limit_bytes;

    return cache_stores(owner->cache) && limit > 0 && owner->sums.bytes > limit - limit / AHEAD &&
           owner->queue.leaving_bytes < limit / AHEAD;
}

static bool node_is_near(const struct cache *cache)
{
    uint64_t limit = cache->limit_bytes, memory = cache->regions->limit_bytes;
    bool in_cache = limit > 0 && cache->sums.bytes > limit - limit / AHEAD;

    return (in_cache && cache->files.leaving_bytes < limit / AHEAD) ||
           (regions_used_bytes(cache->regions) > memory - memory / AHEAD && cache->files.leaving_bytes < memory / AHEAD);
}

bool cache_note_near(struct cache_owner *owner)
{
    struct cache *cache = owner->cache;

    if (!cache_stores(cache))
        return false;
    if (owner_is_near(owner) && list_empty(&owner->near))
        list_append(&cache->files.near, &owner->near);
    return !cache->files.busy && (!list_empty(&cache->files.near) || node_is_near(cache));
}

/* Owners who come near to their limits take turns. NULL: nothing goes soon, or all that does has been written. */
static struct cached *next_to_write(struct cache *cache)
{
    list_drain (struct cache_owner, owner, &cache->files.near, near) {
        struct cache_entry *next = owner_is_near(owner) ? cache_queue_next(&owner->queue) : NULL;
        list_remove(&owner->near);
        if (!next)
            continue;
        list_append(&cache->files.near, &owner->near);
        return cached_of(next);
    }
    if (!node_is_near(cache) || cache->sums.n_idle == cache->sums.n_idle_spilled)
        return NULL;
    return cached_of(cache_queue_next(&cache_owner_with_most(cache, CACHE_BY_MEMORY)->queue));
}

/* ---- room on the disk ---- */

static uint64_t room_of(uint64_t limit, uint64_t used)
{
    return used < limit ? limit - used : 0;
}

static uint64_t file_room(const struct cache_owner *owner)
{
    uint64_t of_owner = room_of(cache_owner_file_limit(owner->cache), owner->sums.file_bytes);
    uint64_t of_node = room_of(owner->cache->files.limit_bytes, owner->cache->sums.file_bytes);

    return of_owner < of_node ? of_owner : of_node;
}

/* Whose end makes room for a file of the owner. NULL: there is none. */
static struct cached *file_victim(const struct cache_owner *owner, uint64_t bytes)
{
    const struct cache *cache = owner->cache;
    uint64_t limit = cache_owner_file_limit(cache);

    if (bytes > limit)
        return NULL;
    if (room_of(limit, owner->sums.file_bytes) < bytes)
        return cached_of(cache_queue_spilled(&owner->queue));
    if (cache->sums.n_idle_spilled == 0)
        return NULL;
    return cached_of(cache_queue_spilled(&cache_owner_with_most(cache, CACHE_BY_FILES)->queue));
}

/* ---- writing ---- */

static void leave(struct cached *cached)
{
    struct cache_queue *queue = &cached->owner->queue;

    cache_queue_leave(queue, &cached->entry);
    cached->owner->cache->files.leaving_bytes += cached->entry.bytes;
}

bool cache_write_ahead(struct cache *cache, struct cached **victim_p)
{
    struct cached *cached = cache_stores(cache) && !cache->files.busy ? next_to_write(cache) : NULL;
    enum rdt_status status = RDT_UNSUPPORTED; /* what lies in the arena */
    uint64_t bytes = 0;

    *victim_p = NULL;
    if (!cached)
        return false;
    if (cached->n_regions > 0)
        status = cache->files.ops->begin(cache->files.arg, cached->object, file_room(cached->owner), &bytes);
    if (status == RDT_AGAIN && (*victim_p = file_victim(cached->owner, bytes)))
        return true;
    leave(cached);
    if (status != RDT_OK)
        return true;
    cache->files.busy = true;
    cache->files.writing = cached;
    cached->entry.writing = true;
    cached_set_file(cached, bytes);
    return false;
}

void cache_end_writing(struct cache *cache, uint64_t bytes)
{
    struct cached *cached = cache->files.writing;

    cache->files.busy = false;
    cache->files.writing = NULL;
    if (cached) {
        cached->entry.writing = false;
        cached_set_file(cached, bytes);
        if (bytes > 0 && cached->entry.segment != CACHE_LEAVING)
            cached_discard_file(cached);
    }
}

/* ---- leaving memory ---- */

bool cached_spill(struct cached *cached)
{
    struct cache_files *files = &cached->owner->cache->files;

    if (cached->entry.segment != CACHE_LEAVING || cached->entry.writing || cached->file_bytes == 0 ||
        !files->ops->give_up(files->arg, cached->object))
        return false;
    log_debug("obj %016llx leaves memory for its file", (unsigned long long)cached->object->generation);
    cached_move_to_file(cached);
    return true;
}

void cached_count_unspilled(struct cached *cached)
{
    struct cache_counts *of[] = {&cached->owner->counts, &cached->owner->cache->counts};

    if (!cache_stores(cached->owner->cache) || cached->entry.segment == CACHE_SPILLED)
        return;
    for (unsigned i = 0; i < 2; i++)
        if (cached->n_regions == 0)
            of[i]->unspilled_small++;
        else if (cached->entry.segment == CACHE_LEAVING && !cached->entry.writing)
            of[i]->unspilled_failed++;
        else
            of[i]->unspilled_late++;
}
