#include "daemon/memory/warm.h"

#include "daemon/base/guard.h"
#include "daemon/memory/region_impl.h"

#define MAX_REGIONS 256u /* of one client: each is a descriptor and two mappings */

void warm_start(struct warm *warm, struct regions *regions, uint64_t client, const struct warm_ops *ops)
{
    *warm = (struct warm){.regions = regions, .client = client, .ops = ops};
    list_init(&warm->list);
    if (!map_put_u64(&regions->warm_clients, client, warm))
        warm->regions = NULL; /* it will do without */
}

/* The region is nobody's then. */
static void leave(struct warm *warm, struct region *region)
{
    list_remove(&region->by_client);
    list_remove(&region->by_age);
    warm->n--;
    warm->bytes -= region->room;
    warm->regions->warm_bytes -= region->room;
}

/* The client has it no longer. */
static void take_back(struct warm *warm, struct region *region)
{
    warm->ops->take(warm, region->id);
    region->client = 0;
    region->lent = region->laid_by = false;
    region->refs = 0;
}

static void drop(struct warm *warm, struct region *region, struct list *victims)
{
    uint64_t id = region->id;
    bool lent = region->laid_by;

    leave(warm, region);
    if (lent)
        take_back(warm, region);
    region_retire(region, true, victims);
    if (lent)
        warm->ops->on_back(warm, id, true);
    else
        warm->ops->on_drop(warm, id);
}

void warm_part(struct warm *warm, struct region *region)
{
    leave(warm, region);
    take_back(warm, region);
    region_retire(region, false, NULL);
}

void warm_stop(struct warm *warm)
{
    if (!warm->regions)
        return;
    map_remove_u64(&warm->regions->warm_clients, warm->client);
    device_pool_forget_client(&warm->regions->kept, warm->client);
    while (!list_empty(&warm->list)) {
        struct region *region = container_of(list_first(&warm->list), struct region, by_client);
        leave(warm, region);
        if (region->laid_by)
            take_back(warm, region);
        region_retire(region, true, NULL);
    }
    warm->regions = NULL;
}

static struct region *oldest_of(const struct warm *warm)
{
    return container_of(list_first(&warm->list), struct region, by_client);
}

/* In nobody's use, the latest of its client's, of which the oldest make room. Whoever names it finds nothing. */
static void lay(struct warm *warm, struct region *region)
{
    struct regions *regions = warm->regions;

    while (warm->n >= MAX_REGIONS || warm->bytes + region->room > regions->warm_max_bytes)
        drop(warm, oldest_of(warm), NULL);
    region_rest(region);
    region->warm_since_ns = uv_hrtime();
    list_append(&warm->list, &region->by_client);
    list_append(&regions->warm, &region->by_age);
    warm->n++;
    warm->bytes += region->room;
    regions->warm_bytes += region->room;
    regions_watch(regions);
}

/* The region was in it, and is in use as it was. NO_MEMORY, LIMIT: and stays there. */
static enum rdt_status unlay(struct warm *warm, struct region *region, struct rdt_error *err)
{
    enum rdt_status status;

    if (!index_put(&warm->regions->by_id, region->id, region))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    status = region_resume(region, err);
    if (status != RDT_OK) {
        (void)index_remove(&warm->regions->by_id, region->id);
        return status;
    }
    leave(warm, region);
    warm->regions->warm_hits++;
    event(warm->regions->events, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "new", region);
    return RDT_OK;
}

bool warm_keep(struct region *region)
{
    struct regions *regions = region->regions;
    struct warm *warm = region->kept ? map_get_u64(&regions->warm_clients, region->exported_to) : NULL;

    if (!warm)
        return false;
    if (!region_may_come_again(region, warm->client) || region->room > regions->warm_max_bytes || !region_addr(region, NULL)) {
        uint64_t id = region->id;
        region_retire(region, true, NULL);
        warm->ops->on_drop(warm, id);
        return true;
    }
    lay(warm, region);
    region->generation++; /* whoever still names the old one names nothing */
    region->had_life = true;
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

void warm_lay_by(struct region *region)
{
    struct regions *regions = region->regions;
    struct warm *warm = region->client != 0 ? map_get_u64(&regions->warm_clients, region->client) : NULL;
    uint64_t id = region->id;

    if (!warm)
        return; /* its client has let go of it, or is about to */
    region_unlist(region);
    /* Who never let go of it may be looking: its pages stay as they are, and it is nobody's. */
    if (region->abandoned || guard_is_broken(region->guard) || regions->giving_up || region->room > regions->warm_max_bytes ||
        region->block.page_bytes > 0 || fds_are_short(region->account)) {
        take_back(warm, region);
        region_retire(region, false, regions->giving_up);
        warm->ops->on_back(warm, id, true);
        return;
    }
    lay(warm, region);
    region->lent = false;
    region->laid_by = true;
    warm->ops->on_back(warm, id, false);
}

enum rdt_status warm_resume(struct warm *warm, struct region *region, struct rdt_error *err)
{
    enum rdt_status status = unlay(warm, region, err);

    if (status == RDT_OK)
        region->laid_by = false;
    return status;
}

struct region *warm_take(struct warm *warm, uint64_t bytes, enum region_origin origin)
{
    struct region *best = NULL;

    if (!warm->regions || bytes == 0)
        return NULL;
    list_for_each (node, &warm->list) {
        struct region *region = container_of(node, struct region, by_client);
        if (region->room >= bytes && region->room / 2 <= bytes && (!best || region->room <= best->room) && !region->laid_by)
            best = region; /* the latest of the smallest: the caches may still know it */
    }
    if (!best)
        return NULL;
    best->bytes = bytes;
    if (unlay(warm, best, NULL) != RDT_OK)
        return NULL; /* a new one will be refused, and it said why */
    best->refs = 1;
    best->origin = origin;
    best->had_life = origin != REGION_ALLOCATED; /* what is the client's own to write anyway it may put and show like any other */
    best->client = warm->client;
    return best;
}

void warm_give_up(struct regions *regions, uint64_t bytes, struct list *victims)
{
    uint64_t given = 0;

    while (given < bytes && !list_empty(&regions->warm)) {
        struct region *region = container_of(list_first(&regions->warm), struct region, by_age);
        given += region->room;
        drop(map_get_u64(&regions->warm_clients, region->exported_to), region, victims);
    }
}

bool warm_sweep(struct regions *regions, uint64_t now_ns)
{
    while (!list_empty(&regions->warm)) {
        struct region *region = container_of(list_first(&regions->warm), struct region, by_age);
        if (now_ns - region->warm_since_ns < regions->ready.idle_ns)
            return true;
        drop(map_get_u64(&regions->warm_clients, region->exported_to), region, NULL);
    }
    return false;
}
