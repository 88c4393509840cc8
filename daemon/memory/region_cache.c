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
    region->lent = region->laid_by = false;
    region->refs = 0;
}

static void drop(struct region_cache *cache, struct region *region, struct list *victims)
{
    uint64_t id = region->id;
    bool lent = region->laid_by;

    leave(cache, region);
    if (lent)
        take_back(cache, region);
    region_retire(region, true, victims);
    if (lent)
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
    device_pool_forget_client(&cache->regions->kept, cache->client);
    while (!list_empty(&cache->list)) {
        struct region *region = container_of(list_first(&cache->list), struct region, by_client);
        leave(cache, region);
        if (region->laid_by)
            take_back(cache, region);
        region_retire(region, true, NULL);
    }
    cache->regions = NULL;
}

static struct region *oldest_of(const struct region_cache *cache)
{
    return container_of(list_first(&cache->list), struct region, by_client);
}

/* In nobody's use, the latest of its client's, of which the oldest make room. Whoever names it finds nothing. */
static void lay(struct region_cache *cache, struct region *region)
{
    struct regions *regions = cache->regions;

    while (cache->n >= MAX_REGIONS || cache->bytes + region->room > regions->cached_max_bytes)
        drop(cache, oldest_of(cache), NULL);
    region_rest(region);
    region->cached_since_ns = uv_hrtime();
    list_append(&cache->list, &region->by_client);
    list_append(&regions->cache, &region->by_age);
    cache->n++;
    cache->bytes += region->room;
    regions->cached_bytes += region->room;
    regions_watch(regions);
}

/* The region was in it, and is in use as it was. NO_MEMORY, LIMIT: and stays there. */
static enum rdt_status unlay(struct region_cache *cache, struct region *region, struct rdt_error *err)
{
    enum rdt_status status;

    if (!index_put(&cache->regions->by_id, region->id, region))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    status = region_resume(region, err);
    if (status != RDT_OK) {
        (void)index_remove(&cache->regions->by_id, region->id);
        return status;
    }
    leave(cache, region);
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
    lay(cache, region);
    region->generation++; /* whoever still names the old one names nothing */
    region->tainted_by_client = true;
    return true;
}

/* What nobody uses takes no descriptor of the upper half of those that there may be. */
static bool fds_are_short(const struct account *account)
{
    for (; account; account = account->parent)
        if (account->limits && account->limits[USAGE_FDS] > 0 && account->used[USAGE_FDS] > account->limits[USAGE_FDS] / 2)
            return true;
    return false;
}

void region_cache_lay_by(struct region *region)
{
    struct regions *regions = region->regions;
    struct region_cache *cache = region->client != 0 ? map_get_u64(&regions->cached_clients, region->client) : NULL;
    uint64_t id = region->id;

    if (!cache)
        return; /* its client has let go of it, or is about to */
    region_unlist(region);
    /* Who never let go of it may be looking: its pages stay as they are, and it is nobody's. */
    if (region->abandoned || sigbus_guard_is_broken(region->guard) || regions->giving_up || region->room > regions->cached_max_bytes ||
        region->block.page_bytes > 0 || fds_are_short(region->account)) {
        take_back(cache, region);
        region_retire(region, false, regions->giving_up);
        cache->ops->on_back(cache, id, true);
        return;
    }
    lay(cache, region);
    region->lent = false;
    region->laid_by = true;
    cache->ops->on_back(cache, id, false);
}

enum rdt_status region_cache_resume(struct region_cache *cache, struct region *region, struct rdt_error *err)
{
    enum rdt_status status = unlay(cache, region, err);

    if (status == RDT_OK)
        region->laid_by = false;
    return status;
}

struct region *region_cache_take(struct region_cache *cache, uint64_t bytes, enum region_origin origin)
{
    struct region *best = NULL;

    if (!cache->regions || bytes == 0)
        return NULL;
    list_for_each (node, &cache->list) {
        struct region *region = container_of(node, struct region, by_client);
        if (region->room >= bytes && region->room / 2 <= bytes && (!best || region->room <= best->room) && !region->laid_by)
            best = region; /* the latest of the smallest: the caches may still know it */
    }
    if (!best)
        return NULL;
    best->bytes = bytes;
    if (unlay(cache, best, NULL) != RDT_OK)
        return NULL; /* a new one will be refused, and it said why */
    best->refs = 1;
    best->origin = origin;
    best->tainted_by_client = origin != REGION_ALLOCATED; /* what is the client's own to write anyway it may put and show like any other */
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
        if (now_ns - region->cached_since_ns < regions->ready.idle_ns)
            return true;
        drop(map_get_u64(&regions->cached_clients, region->exported_to), region, NULL);
    }
    return false;
}
