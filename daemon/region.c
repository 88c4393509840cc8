/* Allocation, import, export and the last unref of regions. What grows with pages runs on the pool. */
#include "daemon/region.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/log.h"

#define SMALL_BYTES (128u << 10) /* page work up to this size is quicker than the way to the pool and back */

struct page_work {
    struct work work;
    struct region *region;
    struct transport *transport; /* registering */
    region_ready on_ready;
    void *arg;
    enum rdt_status status;
    struct rdt_error err;
    void *handle;
};

void regions_init(struct regions *regions, struct plugins *plugins, struct work_pool *pool, uint64_t limit_bytes)
{
    *regions = (struct regions){.plugins = plugins, .pool = pool, .next_id = 1, .limit_bytes = limit_bytes};
    map_init(&regions->by_id);
}

void regions_fini(struct regions *regions)
{
    map_fini(&regions->by_id);
}

static struct region *region_new(struct regions *regions, struct memory_kind *kind, const char *device, uint64_t bytes,
                                 enum region_origin origin, struct account *account, uint64_t client)
{
    struct region *region = calloc(1, sizeof *region);

    if (!region)
        return NULL;
    region->id = regions->next_id++;
    region->generation = 1;
    region->regions = regions;
    region->kind = kind;
    (void)snprintf(region->device, sizeof region->device, "%s", device);
    region->block.fd = -1;
    region->bytes = bytes;
    region->origin = origin;
    region->account = account_ref(account);
    region->client = client;
    region->refs = 1;
    list_init(&region->uses);
    list_init(&region->idle_waiters);
    if (!map_put_u64(&regions->by_id, region->id, region)) {
        account_unref(account);
        free(region);
        return NULL;
    }
    return region;
}

/* The memory is gone already, or never was. */
static void region_forget(struct region *region)
{
    if (region->origin != REGION_IMPORTED)
        region->regions->bytes -= region->bytes;
    account_unref(region->account);
    free(region);
}

static enum rdt_status find_kind(struct regions *regions, const char *name, struct memory_kind **kind_p, struct rdt_error *err)
{
    struct memory_kind *kind = plugins_memory_kind(regions->plugins, name);

    if (!kind)
        return rdt_error_set(err, RDT_UNSUPPORTED, "no memory kind \"%s\" is loaded", name);
    if (!kind->available)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s is not available: %s", kind->name, kind->why_not);
    *kind_p = kind;
    return RDT_OK;
}

static void run_alloc(struct work *work)
{
    struct page_work *page = (struct page_work *)work;
    struct region *region = page->region;

    page->status = region->kind->ops.alloc(region->kind->instance, region->device, region->bytes, &region->block, &page->err);
    if (page->status != RDT_OK || region->origin != REGION_RECEIVED)
        return;
    /* bytes are about to come: its pages are touched here, not one by one by the thread that receives */
    page->status = region->kind->ops.map(region->kind->instance, &region->block, true, &page->err);
    if (page->status != RDT_OK)
        region->kind->ops.free(region->kind->instance, &region->block);
}

static void done_alloc(struct work *work)
{
    struct page_work *page = (struct page_work *)work;

    if (page->status != RDT_OK) {
        map_remove_u64(&page->region->regions->by_id, page->region->id);
        region_forget(page->region);
        page->on_ready(page->arg, NULL, &page->err);
    } else {
        page->on_ready(page->arg, page->region, NULL);
    }
    free(page);
}

enum rdt_status region_alloc(struct regions *regions, const char *kind_name, const char *device, uint64_t bytes,
                             enum region_origin origin, struct account *account, uint64_t client, struct region **region_p,
                             region_ready on_ready, void *arg, struct rdt_error *err)
{
    struct memory_kind *kind;
    struct region *region;
    struct page_work *page;
    enum rdt_status status = find_kind(regions, kind_name, &kind, err);

    if (status != RDT_OK)
        return status;
    if (bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "cannot allocate 0 bytes");
    if (bytes > regions->limit_bytes || regions->bytes > regions->limit_bytes - bytes)
        return rdt_error_set(err, bytes > regions->limit_bytes ? RDT_LIMIT : RDT_NO_MEMORY,
                             "%llu bytes do not fit: %llu of the daemon's memory_limit of %llu bytes are taken",
                             (unsigned long long)bytes, (unsigned long long)regions->bytes,
                             (unsigned long long)regions->limit_bytes);
    region = region_new(regions, kind, device, bytes, origin, account, client);
    if (!region)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    regions->bytes += bytes;

    if (bytes <= SMALL_BYTES) {
        status = kind->ops.alloc(kind->instance, device, bytes, &region->block, err);
        if (status != RDT_OK) {
            map_remove_u64(&regions->by_id, region->id);
            region_forget(region);
            return status;
        }
        *region_p = region;
        return RDT_OK;
    }
    page = calloc(1, sizeof *page);
    if (!page) {
        map_remove_u64(&regions->by_id, region->id);
        region_forget(region);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    }
    page->work = (struct work){.run = run_alloc, .done = done_alloc, .lane = client};
    page->region = region;
    page->on_ready = on_ready;
    page->arg = arg;
    work_submit(regions->pool, &page->work);
    return RDT_AGAIN;
}

enum rdt_status region_import(struct regions *regions, const char *kind_name, const char *device,
                              const struct rdt_import *import, struct account *account, uint64_t client,
                              struct region **region_p, struct rdt_error *err)
{
    struct memory_kind *kind;
    struct region *region;
    enum rdt_status status = find_kind(regions, kind_name, &kind, err);

    if (status != RDT_OK)
        return status;
    if (!kind->ops.import)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot import", kind->name);
    if (import->bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "cannot import 0 bytes");
    region = region_new(regions, kind, device, import->bytes, REGION_IMPORTED, account, client);
    if (!region)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    status = kind->ops.import(kind->instance, device, import, &region->block, err);
    if (status != RDT_OK) {
        map_remove_u64(&regions->by_id, region->id);
        region_forget(region);
        return status;
    }
    region->writable_outside = true;
    *region_p = region;
    return RDT_OK;
}

struct region *region_find(const struct regions *regions, uint64_t id, uint64_t generation)
{
    struct region *region = map_get_u64(&regions->by_id, id);

    return region && region->generation == generation ? region : NULL;
}

void region_ref(struct region *region)
{
    region->refs++;
}

static void run_free(struct work *work)
{
    struct region *region = ((struct page_work *)work)->region;

    for (unsigned i = 0; i < region->n_registrations; i++) {
        struct registration *registration = &region->registrations[i];
        if (registration->handle)
            registration->transport->ops.unregister_memory(registration->transport->instance, registration->handle);
    }
    region->kind->ops.free(region->kind->instance, &region->block);
}

static void done_free(struct work *work)
{
    struct page_work *page = (struct page_work *)work;

    page->region->regions->freeing--;
    region_forget(page->region);
    free(page);
}

void region_unref(struct region *region)
{
    struct page_work *page;

    if (!region)
        return;
    assert(region->refs > 0);
    if (--region->refs > 0)
        return;
    assert(region->pins == 0 && list_empty(&region->uses) && list_empty(&region->idle_waiters));
    map_remove_u64(&region->regions->by_id, region->id);
    page = region->bytes > SMALL_BYTES || region->n_registrations > 0 ? calloc(1, sizeof *page) : NULL;
    region->regions->freeing++;
    if (!page) { /* little, or no memory to do it elsewhere */
        struct page_work now = {.region = region};
        run_free(&now.work);
        region->regions->freeing--;
        region_forget(region);
        return;
    }
    page->work = (struct work){.run = run_free, .done = done_free};
    page->region = region;
    work_submit(region->regions->pool, &page->work);
}

void region_pin(struct region *region)
{
    region->pins++;
    region_ref(region);
}

void region_unpin(struct region *region)
{
    assert(region->pins > 0);
    region->pins--;
    region_unref(region);
}

uint8_t *region_addr(struct region *region, struct rdt_error *err)
{
    if (!region->block.addr && region->kind->ops.map(region->kind->instance, &region->block, false, err) != RDT_OK)
        return NULL;
    return region->block.addr;
}

enum rdt_status region_export(struct region *region, bool writable, int *fd_p, struct rdt_error *err)
{
    enum rdt_status status;

    if (!region->kind->ops.share)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot be shared", region->kind->name);
    status = region->kind->ops.share(region->kind->instance, &region->block, writable, fd_p, err);
    if (status == RDT_OK && writable)
        region->writable_outside = true;
    return status;
}

static void run_register(struct work *work)
{
    struct page_work *page = (struct page_work *)work;
    struct region *region = page->region;

    page->status = page->transport->ops.register_memory(page->transport->instance, region->block.addr, region->bytes,
                                                        region->kind->name, &page->handle, &page->err);
}

static void done_register(struct work *work)
{
    struct page_work *page = (struct page_work *)work;
    struct region *region = page->region;

    if (page->status == RDT_OK) {
        bool twice = false;
        for (unsigned i = 0; i < region->n_registrations; i++)
            twice = twice || region->registrations[i].transport == page->transport;
        if (twice || region->n_registrations == REGION_MAX_REGISTRATIONS) /* two asked at once: one is enough */
            page->transport->ops.unregister_memory(page->transport->instance, page->handle);
        else
            region->registrations[region->n_registrations++] = (struct registration){page->transport, page->handle};
        page->on_ready(page->arg, region, NULL);
    } else {
        page->on_ready(page->arg, NULL, &page->err);
    }
    region_unref(region);
    free(page);
}

enum rdt_status region_register(struct region *region, struct transport *transport, void **handle_p, region_ready on_ready,
                                void *arg, struct rdt_error *err)
{
    struct page_work *page;

    if (!transport->ops.register_memory) {
        *handle_p = NULL;
        return RDT_OK;
    }
    for (unsigned i = 0; i < region->n_registrations; i++)
        if (region->registrations[i].transport == transport) {
            *handle_p = region->registrations[i].handle;
            return RDT_OK;
        }
    if (region->n_registrations == REGION_MAX_REGISTRATIONS)
        return rdt_error_set(err, RDT_LIMIT, "region %llu is registered with %u transports already",
                             (unsigned long long)region->id, REGION_MAX_REGISTRATIONS);
    if (!region_addr(region, err))
        return err ? err->status : RDT_SYSTEM;
    page = calloc(1, sizeof *page);
    if (!page)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to register region %llu", (unsigned long long)region->id);
    page->work = (struct work){.run = run_register, .done = done_register, .lane = region->client};
    page->region = region;
    page->transport = transport;
    page->on_ready = on_ready;
    page->arg = arg;
    region_ref(region);
    work_submit(region->regions->pool, &page->work);
    return RDT_AGAIN;
}

void region_use_add(struct region_use *use, struct region *region, const struct layout *layout, uint32_t index)
{
    uint64_t lo, hi;

    use->region = region;
    use->layout = layout;
    use->index = index;
    use->lo = region->bytes;
    use->hi = 0;
    for (uint32_t i = 0; i < layout->count; i++) {
        if (layout->region[i] != index || layout_extent(layout, i, &lo, &hi, NULL) != RDT_OK || lo == hi)
            continue;
        use->lo = lo < use->lo ? lo : use->lo;
        use->hi = hi > use->hi ? hi : use->hi;
    }
    list_append(&region->uses, &use->link);
}

static bool use_overlaps(const struct region_use *use, uint64_t lo, uint64_t hi)
{
    uint64_t tensor_lo, tensor_hi;

    if (use->lo >= hi || lo >= use->hi)
        return false;
    for (uint32_t i = 0; i < use->layout->count; i++)
        if (use->layout->region[i] == use->index && layout_extent(use->layout, i, &tensor_lo, &tensor_hi, NULL) == RDT_OK &&
            tensor_lo < hi && lo < tensor_hi && tensor_lo < tensor_hi)
            return true;
    return false;
}

bool region_in_use(const struct region *region, uint64_t lo, uint64_t hi)
{
    list_for_each (node, &region->uses) {
        if (use_overlaps(list_entry(node, struct region_use, link), lo, hi))
            return true;
    }
    return false;
}

void region_use_remove(struct region_use *use)
{
    struct region *region = use->region;

    if (!region)
        return;
    list_remove(&use->link);
    use->region = NULL;
    region_ref(region); /* a waiter may hold the last reference */
    list_for_each_safe (node, &region->idle_waiters) {
        struct region_waiter *waiter = list_entry(node, struct region_waiter, link);
        if (!region_in_use(region, waiter->lo, waiter->hi)) {
            list_remove(&waiter->link);
            waiter->on_idle(waiter);
        }
    }
    region_unref(region);
}
