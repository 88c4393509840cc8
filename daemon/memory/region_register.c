/* SPDX-License-Identifier: Apache-2.0 */
/* Registering regions with transports, on the work pool. A registration lasts as long as the region's memory. */
#include <stdlib.h>

#include "daemon/memory/region_impl.h"

#define REGIONS_AT_ONCE 2000u /* looked at in one turn of the loop */

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
    struct registering *job = (struct registering *)work;
    struct region *region = job->region;

    job->status = job->transport->ops.register_memory(job->transport->instance, region->block.addr,
                                                      region->origin == REGION_IMPORTED ? region->bytes : region->room,
                                                      region->kind->name, &job->handle, &job->err);
}

static void run_unregister(struct work *work)
{
    struct registering *job = (struct registering *)work;

    registration_end(&(struct registration){job->transport, job->handle});
    free(job);
}

static void unregister(struct regions *regions, struct transport *transport, void *handle)
{
    struct registering *job = calloc(1, sizeof *job);

    if (!job) {
        registration_end(&(struct registration){transport, handle});
        return;
    }
    job->work = (struct work){.run = run_unregister};
    job->transport = transport;
    job->handle = handle;
    work_submit(regions->pool, &job->work);
}

static void done_register(struct work *work)
{
    struct registering *job = (struct registering *)work;
    struct region *region = job->region;

    if (job->status == RDT_OK) {
        /* Another call may have registered it in the meantime. When the transport is being unloaded, the caller's next
         * region_register says so. */
        bool unwanted = job->transport->unloading || region->n_registrations == REGION_MAX_REGISTRATIONS;
        for (unsigned i = 0; i < region->n_registrations; i++)
            unwanted |= region->registrations[i].transport == job->transport;
        if (unwanted)
            unregister(region->regions, job->transport, job->handle);
        else
            region->registrations[region->n_registrations++] = (struct registration){job->transport, job->handle};
        job->on_ready(job->arg, region, NULL);
    } else {
        atomic_fetch_sub(&job->transport->registered, 1);
        job->on_ready(job->arg, NULL, &job->err);
    }
    region_unref(region);
    free(job);
}

enum rdt_status region_register(struct region *region, struct transport *transport, void **handle_p, region_ready on_ready,
                                void *arg, struct rdt_error *err)
{
    struct registering *job;

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
    job = calloc(1, sizeof *job);
    if (!job)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to register region %llu", (unsigned long long)region->id);
    job->work = (struct work){.run = run_register, .done = done_register, .lane = region->client};
    job->region = region;
    job->transport = transport;
    job->on_ready = on_ready;
    job->arg = arg;
    atomic_fetch_add(&transport->registered, 1);
    region_ref(region);
    if (region->kind == region->regions->free_pool.kind)
        pool_note_registration(&region->regions->free_pool, transport);
    region_work_submit(region, &job->work);
    return RDT_AGAIN;
}

static void unregister_from(struct region *region, const struct transport *transport)
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
        list_for_each (node, &regions->caches.by_age)
            unregister_from(container_of(node, struct region, reuse.by_age), transport);
        *cursor = 1;
    }
    for (unsigned i = 0; i < REGIONS_AT_ONCE; i++) {
        region = index_next(&regions->by_id, *cursor, &id);
        if (!region)
            return true;
        unregister_from(region, transport);
        *cursor = id + 1;
    }
    return false;
}

const struct region *regions_find_user(const struct regions *regions, const struct memory_kind *kind)
{
    const struct region *region;
    uint64_t id = 0, at = 1;

    for (unsigned i = 0; i < REGIONS_AT_ONCE && (region = index_next(&regions->by_id, at, &id)); i++, at = id + 1)
        if (region->kind == kind)
            return region;
    return NULL;
}
