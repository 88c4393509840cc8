/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/region_cache.h"

#include <string.h>

#include "daemon/base/sigbus_guard.h"
#include "daemon/memory/region_impl.h"

#define SWEPT_AT_ONCE 16u
#define MAX_REGIONS 256u                    /* of one client, and of sealed memory: each takes a descriptor and its mappings */
#define CLEARED_BYTES (UINT64_C(256) << 10) /* of old bytes behind the new ones: the loop clears at most so many */

void region_cache_start(struct region_cache *cache, struct regions *regions, uint64_t client, const struct owner *owner,
                        const struct region_cache_ops *ops)
{
    *cache = (struct region_cache){.regions = regions, .client = client, .owner = *owner, .ops = ops};
    list_init(&cache->cached.list);
    if (!map_put_u64(&regions->caches.clients, client, cache))
        cache->regions = NULL;
}

static void unlist(struct cached_regions *cached, struct region *region)
{
    list_remove(&region->reuse.by_client);
    list_remove(&region->reuse.by_age);
    cached->n--;
    cached->bytes -= region->room;
    region->regions->caches.bytes -= region->room;
}

/* Ends the client's reference to a RETURNED region, which is the only one. */
static void end_reference(struct region_cache *cache, struct region *region)
{
    cache->ops->forget_region(cache, region->id);
    region->client = 0;
    region->refs = 0;
}

/* Frees a cached region and tells its client. */
static void drop(struct region *region, struct list *victims)
{
    struct regions *regions = region->regions;
    struct region_cache *cache =
        region_is_sealed(region) ? NULL : map_get_u64(&regions->caches.clients, region->reach.exported_to);
    uint64_t id = region->id;
    bool was_loaned = region->state == REGION_RETURNED;

    unlist(cache ? &cache->cached : &regions->caches.sealed, region);
    if (was_loaned)
        end_reference(cache, region);
    region_retire(region, !region_is_sealed(region), victims); /* the kernel removes no pages of sealed memory */
    if (was_loaned)
        cache->ops->on_returned(cache, id, true);
    else if (cache)
        cache->ops->on_drop(cache, id);
}

void region_cache_release(struct region_cache *cache, struct region *region)
{
    unlist(&cache->cached, region);
    end_reference(cache, region);
    region_retire(region, false, NULL);
}

void region_cache_stop(struct region_cache *cache)
{
    if (!cache->regions)
        return;
    map_remove_u64(&cache->regions->caches.clients, cache->client);
    device_pool_forget_client(&cache->regions->device_pool, cache->client);
    list_drain (struct region, region, &cache->cached.list, reuse.by_client) {
        unlist(&cache->cached, region);
        if (region->state == REGION_RETURNED)
            end_reference(cache, region);
        region_retire(region, true, NULL);
    }
    cache->regions = NULL;
}

void region_cache_drop_all(struct region_cache *cache)
{
    if (!cache->regions)
        return;
    list_drain (struct region, region, &cache->cached.list, reuse.by_client)
        drop(region, NULL);
}

/* Puts an unused region into a cache. The oldest ones are freed to make room. */
static void insert(struct cached_regions *cached, struct region *region, enum region_state state)
{
    struct regions *regions = region->regions;

    while (cached->n >= MAX_REGIONS || cached->bytes + region->room > regions->caches.max_bytes)
        drop(container_of(list_first(&cached->list), struct region, reuse.by_client), NULL);
    if (region->state != REGION_COMMON)
        region_uncharge_use(region);
    region_set_state(region, state);
    region->reuse.cached_since_ns = uv_hrtime();
    list_append(&cached->list, &region->reuse.by_client);
    list_append(&regions->caches.by_age, &region->reuse.by_age);
    cached->n++;
    cached->bytes += region->room;
    regions->caches.bytes += region->room;
    regions_watch(regions);
}

bool region_may_be_cached(const struct region *region, uint64_t client)
{
    return region_is_host(region) && region->regions->caches.max_bytes > 0 && region->origin != REGION_IMPORTED &&
           region->reach.exported_to == client && region->reach.exposure != REGION_SHARED && region->reach.writable_outside &&
           !region_is_sealed(region) && list_empty(&region->readers) && !sigbus_guard_is_broken(region->guard);
}

static enum rdt_status use_again(struct cached_regions *cached, struct region *region, struct rdt_error *err)
{
    struct regions *regions = region->regions;
    enum rdt_status status;

    if (!index_put(&regions->by_id, region->id, region))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    status = region_charge_use(region, err);
    if (status != RDT_OK) {
        (void)index_remove(&regions->by_id, region->id);
        return status;
    }
    unlist(cached, region);
    region_set_state(region, REGION_USED);
    event(regions->events, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "new", region);
    return RDT_OK;
}

enum rdt_status region_cache_resume(struct region_cache *cache, struct region *region, struct rdt_error *err)
{
    enum rdt_status status = use_again(&cache->cached, region, err);

    cache->regions->caches.hits += status == RDT_OK;
    return status;
}

/* A descriptor stays charged while the region is cached. */
static void move_to_account(struct region *region, struct account *account)
{
    (void)account_ref(account);
    account_add(account, USAGE_FDS, region->n_fds);
    account_give(region->account, USAGE_FDS, region->n_fds);
    if (region->mapped) {
        account_add(account, USAGE_MAPPINGS, 1);
        account_add(account, USAGE_MAPPED_BYTES, region->room);
        account_give(region->account, USAGE_MAPPINGS, 1);
        account_give(region->account, USAGE_MAPPED_BYTES, region->room);
    }
    account_unref(region->account);
    region->account = account;
}

/* The client may be gone before the region is. */
static void leave_client(struct region *region)
{
    if (region->account->client != 0 && region->account->parent)
        move_to_account(region, region->account->parent);
}

/* Whether an account uses more than half of its descriptors: unused regions must not take the rest. */
static bool fds_are_short(const struct account *account)
{
    for (; account; account = account->parent)
        if (account->limits && account->limits[USAGE_FDS] > 0 && account->used[USAGE_FDS] > account->limits[USAGE_FDS] / 2)
            return true;
    return false;
}

/* Caches a sealed region, if no process can write it, and only processes of one owner could read it. They have all released it:
 * one that ended without a release may still read what it holds. */
static bool insert_sealed(struct region *region)
{
    struct regions *regions = region->regions;

    if (region->reach.seal != REGION_REFILLABLE || !region->reach.one_audience || region->reach.writable_outside ||
        region->reach.abandoned || region->room > regions->caches.max_bytes || !regions->deadlines ||
        fds_are_short(region->account))
        return false;
    if (region->record)
        regions->kept.on_end(regions->kept.arg, region);
    if (region->record)
        return false; /* a later daemon will have it */
    region_tell_readers(region);
    insert(&regions->caches.sealed, region, REGION_CACHED);
    region->generation++;
    region->client = region->creator = 0;
    leave_client(region);
    return true;
}

bool region_cache_insert(struct region *region)
{
    struct regions *regions = region->regions;
    struct region_cache *cache;

    if (region_is_sealed(region))
        return insert_sealed(region);
    cache = region->reuse.keep_mapped ? map_get_u64(&regions->caches.clients, region->reach.exported_to) : NULL;
    if (!cache)
        return false;
    if (!region_may_be_cached(region, cache->client) || region->room > regions->caches.max_bytes || !region_map(region, NULL)) {
        uint64_t id = region->id;
        region_retire(region, true, NULL);
        cache->ops->on_drop(cache, id);
        return true;
    }
    insert(&cache->cached, region, REGION_CACHED);
    region->generation++; /* a request that names the old generation finds no region */
    region->reach.exposure = REGION_BOUND;
    return true;
}

void region_cache_return(struct region *region)
{
    struct regions *regions = region->regions;
    struct region_cache *cache = region->client != 0 ? map_get_u64(&regions->caches.clients, region->client) : NULL;
    uint64_t id = region->id;

    if (!cache)
        return; /* its client has released it, or is gone */
    region_unlist(region);
    /* Abandoned: a process that never released it may still read it, so nobody may write to it. */
    if (region->reach.abandoned || sigbus_guard_is_broken(region->guard) || regions->evicted ||
        region->room > regions->caches.max_bytes || region->block.page_bytes > 0 || fds_are_short(region->account)) {
        end_reference(cache, region);
        region_retire(region, false, regions->evicted);
        cache->ops->on_returned(cache, id, true);
        return;
    }
    insert(&cache->cached, region, REGION_RETURNED);
    cache->ops->on_returned(cache, id, false);
}

/* A reader of sealed memory sees all of it, so older bytes behind the new ones must be cleared. */
static bool is_soon_clear(const struct region *region, uint64_t bytes)
{
    return region->bytes <= bytes || region->bytes - bytes <= CLEARED_BYTES;
}

/* The smallest CACHED region with room for that many bytes, and of equal ones the latest, which the processor's caches may
 * still have. audience: of sealed regions. */
static struct region *best_of(const struct cached_regions *cached, uint64_t bytes, const struct owner *audience)
{
    struct region *best = NULL;

    list_each (struct region, region, &cached->list, reuse.by_client) {
        if (region->room >= bytes && region->room / 2 <= bytes && (!best || region->room <= best->room) &&
            region->state == REGION_CACHED &&
            (!audience || (owner_equal(&region->reach.audience, audience) && is_soon_clear(region, bytes))))
            best = region;
    }
    return best;
}

struct region *region_cache_take(struct region_cache *cache, uint64_t bytes, enum region_origin origin)
{
    struct region *best =
        cache->regions && bytes > 0 && regions_may_give(cache->regions, bytes) ? best_of(&cache->cached, bytes, NULL) : NULL;

    if (!best)
        return NULL;
    best->bytes = bytes;
    if (region_cache_resume(cache, best, NULL) != RDT_OK)
        return NULL; /* the allocation that follows fails, too, and says why */
    best->refs = 1;
    best->origin = origin;
    /* An allocation is the client's to write in any case, so it may be put and shared like a new one. */
    best->reach.exposure = origin == REGION_ALLOCATED ? REGION_EXPOSED : REGION_BOUND;
    best->client = cache->client;
    return best;
}

struct region *region_cache_take_sealed(struct regions *regions, uint64_t bytes, enum region_origin origin,
                                        struct account *account)
{
    struct region *best = best_of(&regions->caches.sealed, bytes, &account->owner);

    if (!best || account_check(account, USAGE_FDS, best->n_fds, NULL) != RDT_OK ||
        account_check(account, USAGE_ORPHANS, 1, NULL) != RDT_OK)
        return NULL;
    if (best->bytes > bytes)
        memset((uint8_t *)best->block.addr + bytes, 0, best->bytes - bytes);
    best->bytes = bytes; /* there are only zeros behind them */
    best->origin = origin;
    move_to_account(best, account);
    if (use_again(&regions->caches.sealed, best, NULL) != RDT_OK) {
        leave_client(best);
        return NULL; /* the allocation that follows fails, too, and says why */
    }
    regions->caches.sealed_hits++;
    best->refs = 1;
    return best;
}

void region_clear_gaps(struct region *region, const struct layout *layout, uint32_t index)
{
    uint8_t *base = region->block.addr;
    uint64_t end = 0;

    if (!region_is_sealed(region) || !region_is_host(region))
        return; /* it came zeroed */
    for (uint32_t i = 0; i < layout->count; i++) {
        uint64_t bytes = layout_bytes(layout, i);
        if (bytes == 0 || layout->region[i] != index)
            continue;
        if (layout->offset[i] > end)
            memset(base + end, 0, layout->offset[i] - end);
        end = layout->offset[i] + bytes;
    }
    if (region->bytes > end)
        memset(base + end, 0, region->bytes - end);
}

void region_cache_evict(struct regions *regions, uint64_t bytes, struct list *victims)
{
    uint64_t given = 0;

    while (given < bytes && !list_empty(&regions->caches.by_age)) {
        struct region *region = container_of(list_first(&regions->caches.by_age), struct region, reuse.by_age);
        given += region->room;
        drop(region, victims);
    }
}

bool region_cache_sweep(struct regions *regions, uint64_t now_ns, bool *more_p)
{
    unsigned n = 0;

    *more_p = false;
    list_drain (struct region, region, &regions->caches.by_age, reuse.by_age) {
        if (now_ns - region->reuse.cached_since_ns < regions->free_pool.idle_ns)
            return true;
        if (n++ == SWEPT_AT_ONCE) {
            *more_p = true;
            return true;
        }
        drop(region, NULL);
    }
    return false;
}
