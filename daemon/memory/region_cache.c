#include "daemon/memory/region_cache.h"

#include "daemon/base/sigbus_guard.h"
#include "daemon/memory/region_impl.h"

#define MAX_REGIONS 256u /* of one client: each is a descriptor and two mappings */

void region_cache_start(struct region_cache *cache, struct regions *regions, uint64_t client, const struct region_cache_ops *ops)
{
    *cache = (struct region_cache){.regions = regions, .client = client, .ops = ops};
    list_init(&cache->list);
    if (!map_put_u64(&regions->cached_clients, client, cache))
        cache->regions = NULL; /* it will do without */
}

/* The region is nobody's then. */
static void leave(struct region_cache *cache, struct region *region)
{
    list_remove(&region->by_client);
    list_remove(&region->by_age);
    cache->n--;
    cache->bytes -= region->room;
    cache->regions->cached_bytes -= region->room;
}

/* The client has it no longer. */
static void take_back(struct region_cache *cache, struct region *region)
{
    cache->ops->take(cache, region->id);
    region->client = 0;
    region->refs = 0;
}

static void drop(struct region_cache *cache, struct region *region, struct list *victims)
{
    uint64_t id = region->id;
    bool was_loaned = region->state == REGION_RETURNED;

    leave(cache, region);
    if (was_loaned)
        take_back(cache, region);
    region_retire(region, true, victims);
    if (was_loaned)
        cache->ops->on_back(cache, id, true);
    else
        cache->ops->on_drop(cache, id);
}

void region_cache_part(struct region_cache *cache, struct region *region)
{
    leave(cache, region);
    take_back(cache, region);
    region_retire(region, false, NULL);
}

void region_cache_stop(struct region_cache *cache)
{
    if (!cache->regions)
        return;
    map_remove_u64(&cache->regions->cached_clients, cache->client);
    device_pool_forget_client(&cache->regions->device_pool, cache->client);
    while (!list_empty(&cache->list)) {
        struct region *region = container_of(list_first(&cache->list), struct region, by_client);
        leave(cache, region);
        if (region->state == REGION_RETURNED)
            take_back(cache, region);
        region_retire(region, true, NULL);
    }
    cache->regions = NULL;
}

static struct region *oldest_of(const struct region_cache *cache)
{
    return container_of(list_first(&cache->list), struct region, by_client);
}

/* Puts an unused region into the cache, where the oldest ones make room. */
static void keep(struct region_cache *cache, struct region *region, enum region_state state)
{
    struct regions *regions = cache->regions;

    while (cache->n >= MAX_REGIONS || cache->bytes + region->room > regions->cached_max_bytes)
        drop(cache, oldest_of(cache), NULL);
    region_uncharge_use(region);
    region_set_state(region, state);
    region->cached_since_ns = uv_hrtime();
    list_append(&cache->list, &region->by_client);
    list_append(&regions->cache, &region->by_age);
    cache->n++;
    cache->bytes += region->room;
    regions->cached_bytes += region->room;
    regions_watch(regions);
}

/* Takes the region out of the cache for its next use. NO_MEMORY, LIMIT: it stays there. */
static enum rdt_status use_again(struct region_cache *cache, struct region *region, struct rdt_error *err)
{
    enum rdt_status status;

    if (!index_put(&cache->regions->by_id, region->id, region))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    status = region_charge_use(region, err);
    if (status != RDT_OK) {
        (void)index_remove(&cache->regions->by_id, region->id);
        return status;
    }
    leave(cache, region);
    region_set_state(region, REGION_USED);
    cache->regions->cached_hits++;
    event(cache->regions->events, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "new", region);
    return RDT_OK;
}

bool region_cache_insert(struct region *region)
{
    struct regions *regions = region->regions;
    struct region_cache *cache = region->keep_mapped ? map_get_u64(&regions->cached_clients, region->exported_to) : NULL;

    if (!cache)
        return false;
    if (!region_may_come_again(region, cache->client) || region->room > regions->cached_max_bytes || !region_addr(region, NULL)) {
        uint64_t id = region->id;
        region_retire(region, true, NULL);
        cache->ops->on_drop(cache, id);
        return true;
    }
    keep(cache, region, REGION_CACHED);
    region->generation++; /* a request that still names the old one finds nothing */
    region->exposure = REGION_BOUND;
    return true;
}

/* Unused regions must not take more than half of the descriptors that an account may have. */
static bool fds_are_short(const struct account *account)
{
    for (; account; account = account->parent)
        if (account->limits && account->limits[USAGE_FDS] > 0 && account->used[USAGE_FDS] > account->limits[USAGE_FDS] / 2)
            return true;
    return false;
}

void region_cache_return(struct region *region)
{
    struct regions *regions = region->regions;
    struct region_cache *cache = region->client != 0 ? map_get_u64(&regions->cached_clients, region->client) : NULL;
    uint64_t id = region->id;

    if (!cache)
        return; /* its client has let go of it, or is about to */
    region_unlist(region);
    /* A process that never released it may still read it, so its pages stay as they are. */
    if (region->abandoned || sigbus_guard_is_broken(region->guard) || regions->giving_up || region->room > regions->cached_max_bytes ||
        region->block.page_bytes > 0 || fds_are_short(region->account)) {
        take_back(cache, region);
        region_retire(region, false, regions->giving_up);
        cache->ops->on_back(cache, id, true);
        return;
    }
    keep(cache, region, REGION_RETURNED);
    cache->ops->on_back(cache, id, false);
}

enum rdt_status region_cache_resume(struct region_cache *cache, struct region *region, struct rdt_error *err)
{
    return use_again(cache, region, err);
}

struct region *region_cache_take(struct region_cache *cache, uint64_t bytes, enum region_origin origin)
{
    struct region *best = NULL;

    if (!cache->regions || bytes == 0)
        return NULL;
    list_for_each (node, &cache->list) {
        struct region *region = container_of(node, struct region, by_client);
        if (region->room >= bytes && region->room / 2 <= bytes && (!best || region->room <= best->room) &&
            region->state == REGION_CACHED)
            best = region; /* the latest of the smallest: the processor's caches may still have it */
    }
    if (!best)
        return NULL;
    best->bytes = bytes;
    if (use_again(cache, best, NULL) != RDT_OK)
        return NULL; /* an allocation will be refused as well, and says why */
    best->refs = 1;
    best->origin = origin;
    /* memory that is the client's own to write anyway may be put and shown like any other */
    best->exposure = origin == REGION_ALLOCATED ? REGION_EXPOSED : REGION_BOUND;
    best->client = cache->client;
    return best;
}

void region_cache_give_up(struct regions *regions, uint64_t bytes, struct list *victims)
{
    uint64_t given = 0;

    while (given < bytes && !list_empty(&regions->cache)) {
        struct region *region = container_of(list_first(&regions->cache), struct region, by_age);
        given += region->room;
        drop(map_get_u64(&regions->cached_clients, region->exported_to), region, victims);
    }
}

bool region_cache_sweep(struct regions *regions, uint64_t now_ns)
{
    while (!list_empty(&regions->cache)) {
        struct region *region = container_of(list_first(&regions->cache), struct region, by_age);
        if (now_ns - region->cached_since_ns < regions->free_pool.idle_ns)
            return true;
        drop(map_get_u64(&regions->cached_clients, region->exported_to), region, NULL);
    }
    return false;
}
