/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory for regions: room under memory_limit, and a block of the pool or new pages from the work pool. */
#include <stdlib.h>

#include "daemon/memory/region_cache.h"
#include "daemon/memory/region_impl.h"

struct page_work {
    struct work work; /* first */
    struct list link; /* in regions->awaiting.works */
    struct region *region;
    region_ready on_ready;
    void *arg;
    enum rdt_status status;
    struct rdt_error err;
    struct list victims; /* struct pool_block: freed before pages are allocated, because they make room for them */
};

static enum rdt_status call_alloc(struct region *region, struct rdt_error *err)
{
    const struct rdt_memory_ops *ops = &region->kind->ops;
    void *instance = region->kind->instance;
    char home[HOME_TEXT_BYTES];

    if (region->origin == REGION_STAGING && ops->alloc_private &&
        ops->alloc_private(instance, region->room, &region->block, NULL) == RDT_OK) {
        region->reach.exposure = REGION_PRIVATE;
        return RDT_OK;
    }
    return ops->alloc(instance, home_text(region->pinned.home, home), region->room, &region->block, err);
}

static enum rdt_status map_block(struct region *region, bool warm, struct rdt_error *err)
{
    const struct rdt_memory_ops *ops = &region->kind->ops;
    enum rdt_status status = ops->map(region->kind->instance, &region->block, warm, err);

    if (status != RDT_OK)
        ops->free(region->kind->instance, &region->block);
    return status;
}

/* may_wait: the calling thread is not the loop. */
static enum rdt_status alloc_block(struct region *region, bool may_wait, struct rdt_error *err)
{
    struct memory_room *room = &region->regions->room;
    enum rdt_status status = memory_room_take(room, region->room, may_wait, err);

    if (status != RDT_OK)
        return status;
    status = call_alloc(region, err);
    memory_room_taken(room, region->room);
    /* Before its client has it: who maps a file waits for those who remove its pages (region.h). */
    if (status == RDT_OK && region->origin == REGION_ALLOCATED)
        status = map_block(region, false, err);
    return status;
}

static void run_alloc(struct work *work)
{
    struct page_work *page = (struct page_work *)work;
    struct region *region = page->region;

    region_free_victims(&page->victims);
    if (region->regions->ending) { /* a thousand of them would keep the daemon from ending in time */
        page->status = rdt_error_set(&page->err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
        return;
    }
    page->status = alloc_block(region, true, &page->err);
    if (page->status != RDT_OK || region->origin < REGION_RECEIVED)
        return;
    /* The daemon is about to fill it. It is quicker to touch all pages here than for the receiving thread to fault. */
    page->status = map_block(region, true, &page->err);
}

static void done_alloc(struct work *work)
{
    struct page_work *page = (struct page_work *)work;

    if (page->status != RDT_OK) {
        region_end_empty(page->region);
        page->on_ready(page->arg, NULL, &page->err);
    } else {
        region_note_mapped(page->region);
        page->on_ready(page->arg, page->region, NULL);
    }
    free(page);
}

static uint64_t limit_of(const struct regions *regions)
{
    return regions->restoring ? UINT64_MAX : regions->limit_bytes;
}

static uint64_t free_bytes(const struct regions *regions)
{
    return regions->bytes < limit_of(regions) ? limit_of(regions) - regions->bytes : 0;
}

/* Makes room for that many bytes under memory_limit: frees replicas without users, then pooled and then cached memory.
 * Pooled and cached memory is not freed if it would not be enough. Returns whether there is room. What is freed is moved to
 * victims, without its charge. */
static bool make_room(struct regions *regions, uint64_t bytes, struct list *victims)
{
    uint64_t unused = regions->free_pool.bytes + regions->caches.bytes;

    if (bytes > limit_of(regions) || !regions_may_give(regions, bytes))
        return false;
    if (regions->evict && free_bytes(regions) + unused < bytes) {
        regions->evicted = victims;
        (void)regions->evict(regions->evict_arg, bytes - free_bytes(regions) - unused);
        regions->evicted = NULL;
    }
    if (free_bytes(regions) + regions->free_pool.bytes + regions->caches.bytes < bytes)
        return false;
    if (free_bytes(regions) < bytes)
        pool_evict(&regions->free_pool, bytes - free_bytes(regions), victims);
    if (free_bytes(regions) < bytes)
        region_cache_evict(regions, bytes - free_bytes(regions), victims);
    return free_bytes(regions) >= bytes;
}

static enum rdt_status no_room(const struct regions *regions, uint64_t bytes, struct rdt_error *err)
{
    return rdt_error_set(err, bytes > regions->limit_bytes ? RDT_LIMIT : RDT_NO_MEMORY,
                         "%llu bytes do not fit: %llu of the daemon's memory_limit of %llu bytes are taken",
                         (unsigned long long)bytes, (unsigned long long)regions->bytes,
                         (unsigned long long)regions->limit_bytes);
}

enum rdt_status regions_charge(struct regions *regions, uint64_t bytes, struct rdt_error *err)
{
    struct list victims;
    bool fits;

    list_init(&victims);
    fits = make_room(regions, bytes, &victims);
    region_drop_victims(regions, &victims);
    if (!fits)
        return no_room(regions, bytes, err);
    regions->bytes += bytes;
    return RDT_OK;
}

/* Charges a region to memory_limit: the size class of the pool if there is room, or else its pages only. Returns false if
 * there is no room for either. */
static bool take_room(struct region *region, struct list *victims)
{
    struct regions *regions = region->regions;
    uint64_t pages = pool_pages_bytes(region->kind, region->bytes);
    uint64_t room =
        region->origin == REGION_ALLOCATED ? pages : pool_room_bytes(&regions->free_pool, region->kind, region->bytes);

    if (!make_room(regions, room, victims) && !make_room(regions, room = pages, victims))
        return false;
    region->room = room;
    regions->bytes += room;
    return true;
}

static void submit(struct page_work *page)
{
    page->work = (struct work){.run = run_alloc, .done = done_alloc, .lane = page->region->client};
    work_submit(page->region->regions->pool, &page->work);
}

static struct page_work *page_work_new(struct region *region, region_ready on_ready, void *arg)
{
    struct page_work *page = calloc(1, sizeof *page);

    if (!page)
        return NULL;
    page->region = region;
    page->on_ready = on_ready;
    page->arg = arg;
    list_init(&page->link);
    list_init(&page->victims);
    return page;
}

/* ---- waiting for memory that is being freed ---- */

/* claimed: what the request cannot get, see regions_claimed_bytes. */
static bool will_fit(const struct regions *regions, uint64_t claimed, uint64_t bytes)
{
    return bytes <= regions->limit_bytes && (regions->awaiting.evicting || claimed <= regions->limit_bytes - bytes);
}

/* There is no room now, because the work pool is still freeing, zeroing or allocating ahead, or objects are being evicted. If
 * there will be room after that, the region waits for it in regions->awaiting.works: nobody is refused for work that is not
 * done yet. Returns whether it waits. */
static bool await_room(struct region *region, region_ready on_ready, void *arg)
{
    struct regions *regions = region->regions;
    uint64_t bytes = pool_pages_bytes(region->kind, region->bytes);
    struct page_work *page;

    if (!on_ready || !will_fit(regions, regions_claimed_bytes(regions), bytes))
        return false;
    page = page_work_new(region, on_ready, arg);
    if (!page)
        return false;
    region->room = bytes;
    regions->awaiting.bytes += bytes;
    list_append(&regions->awaiting.works, &page->link);
    return true;
}

static void stop_awaiting(struct page_work *page, uint64_t bytes)
{
    list_remove(&page->link);
    page->region->regions->awaiting.bytes -= bytes;
}

/* The memory that it waited for went to a request that could not wait. */
static void refuse(struct page_work *page)
{
    struct region *region = page->region;

    (void)no_room(region->regions, region->room, &page->err);
    stop_awaiting(page, region->room);
    region->room = 0; /* so that none is given back */
    region_end_empty(region);
    page->on_ready(page->arg, NULL, &page->err);
    free(page);
}

/* What waits, the allocation itself and those behind it, does not stand in its way: only promised bytes do. */
static bool take_room_in_turn(struct page_work *page)
{
    struct regions *regions = page->region->regions;
    uint64_t waiting = regions->awaiting.bytes;
    bool taken;

    regions->awaiting.bytes = 0;
    taken = take_room(page->region, &page->victims);
    regions->awaiting.bytes += waiting;
    return taken;
}

void regions_admit(struct regions *regions)
{
    list_drain (struct page_work, page, &regions->awaiting.works, link) {
        uint64_t bytes = page->region->room;
        if (take_room_in_turn(page)) {
            stop_awaiting(page, bytes);
            submit(page);
        } else if (will_fit(regions, regions_claimed_bytes(regions) - regions->awaiting.bytes, bytes)) {
            region_drop_victims(regions, &page->victims);
            return; /* more memory is being freed */
        } else {
            region_drop_victims(regions, &page->victims);
            refuse(page);
        }
    }
}

/* ---- allocating ---- */

enum rdt_status region_alloc(struct regions *regions, const char *kind_name, const char *device, uint64_t bytes,
                             enum region_origin origin, struct account *account, uint64_t client, struct region **region_p,
                             region_ready on_ready, void *arg, struct rdt_error *err)
{
    struct memory_kind *kind;
    struct region *region;
    struct page_work *page;
    struct pool_block *pooled;
    struct list victims;
    bool must_wait = on_ready && !list_empty(&regions->awaiting.works); /* behind requests that came before it */
    enum rdt_status status = regions_find_kind(regions, kind_name, &kind, err);

    if (status != RDT_OK)
        return status;
    if (bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "cannot allocate 0 bytes");
    if (!memory_kind_is_host(kind))
        return region_alloc_device(regions, kind, device, bytes, origin, account, client, region_p, on_ready, arg, err);
    if (bytes > limit_of(regions))
        return no_room(regions, bytes, err);
    if ((origin == REGION_SNAPSHOT || origin == REGION_REPLICA) && !must_wait && regions_may_give(regions, bytes) &&
        (*region_p = region_cache_take_sealed(regions, bytes, origin, account)))
        return RDT_OK;
    status = region_new(regions, kind, NULL, bytes, origin, account, client, 1, &region, err);
    if (status != RDT_OK)
        return status;
    region->pinned.home = home_of(device);
    pooled = origin == REGION_ALLOCATED || must_wait || !regions_may_give(regions, bytes)
                 ? NULL
                 : pool_take(&regions->free_pool, kind, bytes, home_of(device));
    if (regions->free_pool.bytes > 0)
        regions_watch(regions);
    if (pooled) {
        region_adopt(region, pooled);
        *region_p = region;
        return RDT_OK;
    }
    list_init(&victims);
    if (must_wait || !take_room(region, &victims)) {
        region_drop_victims(regions, &victims);
        if (await_room(region, on_ready, arg))
            return RDT_AGAIN;
        region_cancel(region);
        if (bytes <= regions->limit_bytes)
            account_node_is_full(account, USAGE_BYTES, NULL);
        return no_room(regions, bytes, err);
    }
    if (!on_ready)
        region_drop_victims(regions, &victims); /* their charge is off already, so there is room */
    if ((bytes <= SMALL_BYTES || !on_ready) && list_empty(&victims)) {
        status = alloc_block(region, false, err);
        if (status != RDT_OK) {
            region_end_empty(region);
            return status;
        }
        region_note_mapped(region);
        *region_p = region;
        return RDT_OK;
    }
    page = page_work_new(region, on_ready, arg);
    if (!page) {
        region_drop_victims(regions, &victims);
        region_end_empty(region);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    }
    list_splice(&page->victims, &victims);
    submit(page);
    return RDT_AGAIN;
}

enum rdt_status region_alloc_now(struct regions *regions, const char *kind, uint64_t bytes, enum region_origin origin,
                                 struct account *account, struct region **region_p, struct rdt_error *err)
{
    return region_alloc(regions, kind, "", bytes, origin, account, 0, region_p, NULL, NULL, err);
}

/* ---- zeroing ---- */

static void run_scrub(struct work *work)
{
    struct region *region = ((struct page_work *)work)->region;

    work_zero(region->block.addr, region->room);
}

static void done_scrub(struct work *work)
{
    struct page_work *page = (struct page_work *)work;

    page->on_ready(page->arg, page->region, NULL);
    free(page);
}

enum rdt_status region_scrub(struct region *region, region_ready on_ready, void *arg, struct rdt_error *err)
{
    struct page_work *page;

    if (!region_addr(region, err))
        return err ? err->status : RDT_SYSTEM;
    page = page_work_new(region, on_ready, arg);
    if (!page)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to clear region %llu", (unsigned long long)region->id);
    page->work = (struct work){.run = run_scrub, .done = done_scrub};
    region_work_submit(region, &page->work);
    return RDT_OK;
}
