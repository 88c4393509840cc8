/* SPDX-License-Identifier: Apache-2.0 */
/* The start and the end of the room, its limits, and the timer that frees what nobody uses again. */
#include "daemon/memory/region_cache.h"
#include "daemon/memory/region_impl.h"
#include "daemon/memory/region_orphans.h"
#include "daemon/memory/region_use.h"

/* The pool gets room that nobody else waits for. */
static bool reserve(void *arg, uint64_t bytes)
{
    struct regions *regions = arg;

    if (bytes > regions->limit_bytes || regions->bytes > regions->limit_bytes - bytes ||
        !list_empty(&regions->awaiting.works) || !regions_may_give(regions, bytes))
        return false;
    regions->bytes += bytes;
    return true;
}

static void unreserve(void *arg, uint64_t bytes)
{
    regions_uncharge(arg, bytes);
}

/* Memory has been freed: who waits for it may go on. */
static void on_freed(struct regions *regions, struct memory_device *device)
{
    if (device)
        regions_admit_device(device);
    else
        regions_admit(regions);
}

static void on_pool_changed(void *arg)
{
    regions_admit(arg);
}

static void free_device_block(struct pool_block *block)
{
    regions_free_mapped(container_of(block->pool, struct regions, free_pool), block);
}

void regions_init(struct regions *regions, struct plugins *plugins, struct work_pool *pool, uint64_t limit_bytes)
{
    *regions = (struct regions){.plugins = plugins, .pool = pool, .limit_bytes = limit_bytes, .on_freed = on_freed};
    index_init(&regions->by_id, 1);
    ids_init(&regions->ids, IDS_REGIONS, IDS_HALF_BITS, IDS_FIRST);
    map_init(&regions->caches.clients);
    map_init(&regions->caches.importers);
    list_init(&regions->caches.by_age);
    list_init(&regions->awaiting.works);
    list_init(&regions->searches.waits);
    regions_free_init(regions);
    regions_left_init(regions);
    regions->left.charge = regions_charge;
    pool_init(&regions->free_pool, pool, 0, 0);
    device_pool_init(&regions->device_pool, free_device_block);
    list_init(&regions->caches.sealed.list);
    memory_room_init(&regions->room);
}

void regions_fini(struct regions *regions)
{
    index_fini(&regions->by_id);
    map_fini(&regions->caches.clients);
    map_fini(&regions->caches.importers);
    map_fini(&regions->left.by_region);
    map_fini(&regions->left.by_key);
    memory_room_fini(&regions->room);
}

static void on_sweep(struct deadline *deadline)
{
    struct regions *regions = container_of(deadline, struct regions, sweep);
    uint64_t now = uv_hrtime();
    bool more = pool_sweep(&regions->free_pool, now), at_once;

    more |= device_pool_sweep(&regions->device_pool, now);
    more |= region_cache_sweep(regions, now, &at_once);
    if (at_once)
        (void)deadline_set(regions->deadlines, deadline, 0);
    else if (more)
        regions_watch(regions);
}

void regions_set_reuse(struct regions *regions, struct deadlines *deadlines, uint64_t pool_max_bytes, uint64_t cached_max_bytes,
                       uint64_t idle_ns)
{
    pool_init(&regions->free_pool, regions->pool, pool_max_bytes, idle_ns);
    regions->free_pool.kind = plugins_memory_kind(regions->plugins, "host");
    regions->free_pool.room = &regions->room;
    regions->free_pool.reserve = reserve;
    regions->free_pool.unreserve = unreserve;
    regions->free_pool.on_change = on_pool_changed;
    regions->free_pool.arg = regions;
    device_pool_set_idle(&regions->device_pool, idle_ns);
    regions->caches.max_bytes = cached_max_bytes;
    regions->deadlines = deadlines;
    regions->sweep.on_passed = on_sweep;
}

void regions_set_limits(struct regions *regions, uint64_t limit_bytes, uint64_t pool_max_bytes, uint64_t cached_max_bytes)
{
    regions->limit_bytes = limit_bytes;
    regions->free_pool.max_bytes = pool_max_bytes;
    regions->caches.max_bytes = cached_max_bytes;
    regions_admit(regions);
}

void regions_close(struct regions *regions)
{
    if (!regions->deadlines)
        return;
    region_waits_end(regions);
    region_orphans_close(regions->orphans);
    region_cache_evict(regions, regions->caches.sealed.bytes, NULL);
    pool_close(&regions->free_pool);
    (void)device_pool_sweep(&regions->device_pool, UINT64_MAX);
    device_pool_set_idle(&regions->device_pool, 0);
    regions_free_told(regions);
    deadline_unset(regions->deadlines, &regions->sweep);
    deadline_unset(regions->deadlines, &regions->freeing.slow_late);
    deadline_unset(regions->deadlines, &regions->left.look);
    regions_free_stuck(regions);
    regions->deadlines = NULL;
}
