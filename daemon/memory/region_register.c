/* Regions are registered with transports on the work pool, and stay so as long as their memory. */
#include <stdlib.h>

#include "daemon/memory/region_impl.h"

#define FORGET_AT_ONCE 2000u /* regions, in one turn of the loop */

struct registering {
    struct work work;
    struct region *region;
    struct transport *transport;
    region_ready on_ready;
    void *arg;
    enum rdt_status status;
    struct rdt_error err;
    void *handle;
};

static void run_register(struct work *work)
{
    struct registering *page = (struct registering *)work;
    struct region *region = page->region;

    page->status = page->transport->ops.register_memory(page->transport->instance, region->block.addr,
                                                        region->origin == REGION_IMPORTED ? region->bytes : region->room,
                                                        region->kind->name, &page->handle, &page->err);
}

static void run_unregister(struct work *work)
{
    struct registering *page = (struct registering *)work;

    registration_end(&(struct registration){page->transport, page->handle});
    free(page);
}

static void unregister(struct regions *regions, struct transport *transport, void *handle)
{
    struct registering *page = calloc(1, sizeof *page);

    if (!page) {
        registration_end(&(struct registration){transport, handle});
        return;
    }
    page->work = (struct work){.run = run_unregister};
    page->transport = transport;
    page->handle = handle;
    work_submit(regions->pool, &page->work);
}

static void done_register(struct work *work)
{
    struct registering *page = (struct registering *)work;
    struct region *region = page->region;

    if (page->status == RDT_OK) {
        bool twice = page->transport->unloading; /* it came too late: who asks again is told */
        for (unsigned i = 0; i < region->n_registrations; i++)
            twice = twice || region->registrations[i].transport == page->transport;
        if (twice || region->n_registrations == REGION_MAX_REGISTRATIONS) /* two asked at once: one is enough */
            unregister(region->regions, page->transport, page->handle);
        else
            region->registrations[region->n_registrations++] = (struct registration){page->transport, page->handle};
        page->on_ready(page->arg, region, NULL);
    } else {
        atomic_fetch_sub(&page->transport->registered, 1);
        page->on_ready(page->arg, NULL, &page->err);
    }
    region_unref(region);
    free(page);
}

enum rdt_status region_register(struct region *region, struct transport *transport, void **handle_p, region_ready on_ready,
                                void *arg, struct rdt_error *err)
{
    struct registering *page;

    if (!transport->ops.register_memory) {
        *handle_p = NULL;
        return RDT_OK;
    }
    for (unsigned i = 0; i < region->n_registrations; i++)
        if (region->registrations[i].transport == transport) {
            *handle_p = region->registrations[i].handle;
            return RDT_OK;
        }
    if (transport->unloading)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s is being unloaded", transport->name);
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
    atomic_fetch_add(&transport->registered, 1);
    region_ref(region);
    if (region->kind == region->regions->free_pool.kind)
        pool_note_registration(&region->regions->free_pool, transport);
    work_submit(region->regions->pool, &page->work);
    return RDT_AGAIN;
}

static void forget(struct region *region, const struct transport *transport)
{
    unsigned n = 0;

    for (unsigned i = 0; i < region->n_registrations; i++) {
        struct registration *at = &region->registrations[i];
        if (at->transport == transport)
            unregister(region->regions, at->transport, at->handle);
        else
            region->registrations[n++] = *at;
    }
    region->n_registrations = n;
}

bool regions_forget_transport(struct regions *regions, const struct transport *transport, uint64_t *cursor)
{
    struct region *region;
    uint64_t id = 0;

    if (*cursor == 0) {
        pool_forget_transport(&regions->free_pool, transport);
        device_pool_forget_transport(&regions->device_pool, transport);
        list_for_each (node, &regions->cache)
            forget(container_of(node, struct region, by_age), transport);
        *cursor = 1;
    }
    for (unsigned i = 0; i < FORGET_AT_ONCE; i++) {
        region = index_next(&regions->by_id, *cursor, &id);
        if (!region)
            return true;
        forget(region, transport);
        *cursor = id + 1;
    }
    return false;
}

const struct region *regions_find_user(const struct regions *regions, const struct memory_kind *kind)
{
    const struct region *region;
    uint64_t id = 0, at = 1;

    for (unsigned i = 0; i < FORGET_AT_ONCE && (region = index_next(&regions->by_id, at, &id)); i++, at = id + 1)
        if (region->kind == kind)
            return region;
    return NULL;
}
