/* SPDX-License-Identifier: Apache-2.0 */
/* Where an object of the cache is, in the queue of its owner or in none, in memory or in a file, and what that adds to the
 * sums. */
#include "daemon/base/sm.h"
#include "daemon/objects/cache_impl.h"
#include "daemon/objects/object.h"

/* Every allowed move. cache.h draws them. */
static const struct sm_state states[] = {
    [CACHED_NEW] = {"new", 1u << CACHED_HELD | 1u << CACHED_OUT},
    [CACHED_IDLE] = {"idle", 1u << CACHED_HELD | 1u << CACHED_OUT},
    [CACHED_HELD] = {"held", 1u << CACHED_IDLE | 1u << CACHED_OUT},
    [CACHED_OUT] = {"out", 0},
};

void cached_set_state(struct cached *cached, enum cached_state state)
{
    sm_move_byte(states, sizeof states / sizeof states[0], &cached->state, state);
}

bool cache_has(const struct object *object)
{
    return object->cached && object->cached->state != CACHED_OUT;
}

static void count_idle(struct cache_sums *sums, const struct cached *cached, bool more)
{
    uint64_t one = more ? 1 : UINT64_MAX;

    sums->n_idle += one;
    sums->idle_bytes += one * cached->entry.bytes;
    sums->n_idle_regions += one * cached->n_regions;
    if (!cached_is_spilled(cached))
        return;
    sums->n_idle_spilled += one;
    sums->idle_file_bytes += one * cached->file_bytes;
}

static void count_in(struct cache_sums *sums, const struct cached *cached, bool more)
{
    uint64_t one = more ? 1 : UINT64_MAX;

    sums->n += one;
    sums->bytes += one * cached->entry.bytes;
    sums->n_spilled += cached_is_spilled(cached) ? one : 0;
}

static void set_idle(struct cached *cached, bool idle)
{
    struct cache_owner *owner = cached->owner;

    count_idle(&owner->sums, cached, idle);
    count_idle(&owner->cache->sums, cached, idle);
    if (cached_is_spilled(cached))
        cache_stand(owner, CACHE_BY_FILES, idle, owner->sums.n_idle_spilled, cached->file_bytes);
    else
        cache_stand(owner, CACHE_BY_MEMORY, idle, owner->sums.n_idle - owner->sums.n_idle_spilled, cached->entry.bytes);
}

void cached_set_file(struct cached *cached, uint64_t bytes)
{
    struct cache_sums *of[] = {&cached->owner->sums, &cached->owner->cache->sums};

    for (unsigned i = 0; i < 2; i++) {
        of[i]->n_files += (bytes > 0) - (uint64_t)(cached->file_bytes > 0);
        of[i]->file_bytes += bytes - cached->file_bytes;
    }
    cached->file_bytes = bytes;
}

void cached_discard_file(struct cached *cached)
{
    struct cache_files *files = &cached->owner->cache->files;

    files->ops->discard(files->arg, cached->object);
    if (!cached->entry.writing)
        cached_set_file(cached, 0);
}

void cached_queue_add(struct cached *cached, bool used)
{
    struct cache_queue *queue = &cached->owner->queue;
    uint64_t before = queue->leaving_bytes;

    cache_queue_add(queue, &cached->entry, used);
    cached->owner->cache->files.leaving_bytes += queue->leaving_bytes - before;
    if (used && !cached_is_spilled(cached) && cached->file_bytes > 0)
        cached_discard_file(cached);
}

void cached_queue_remove(struct cached *cached)
{
    struct cache_queue *queue = &cached->owner->queue;
    uint64_t before = queue->leaving_bytes;

    cache_queue_remove(queue, &cached->entry);
    cached->owner->cache->files.leaving_bytes -= before - queue->leaving_bytes;
}

void cached_count(const struct cached *cached, bool more)
{
    count_in(&cached->owner->sums, cached, more);
    count_in(&cached->owner->cache->sums, cached, more);
}

void cached_enter_queue(struct cached *cached)
{
    bool used = cached->used;

    cached_set_state(cached, CACHED_IDLE);
    cached->used = false;
    cached_queue_add(cached, used);
    set_idle(cached, true);
}

void cached_leave_queue(struct cached *cached, enum cached_state state)
{
    cached_set_state(cached, state);
    cached_queue_remove(cached);
    set_idle(cached, false);
}

void cached_move_to_file(struct cached *cached)
{
    struct cache_counts *of[] = {&cached->owner->counts, &cached->owner->cache->counts};

    for (unsigned i = 0; i < 2; i++) {
        of[i]->spilled++;
        of[i]->spilled_bytes += cached->entry.bytes;
    }
    cached_leave_queue(cached, CACHED_HELD);
    cached_count(cached, false);
    cached->entry.segment = CACHE_SPILLED;
    cached->entry.bytes = 0;
    cached->n_regions = cached->object->memory.n_regions;
    cached_count(cached, true);
    cached_enter_queue(cached);
}
