/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that is pinned for a memory kind with devices, so that copies to and from these run at full speed. A pin lasts as
 * long as the memory: pooled and cached memory stays pinned, because pinning takes milliseconds. The plug-in may refuse, and it
 * refuses memory that the daemon has mapped for reading only; such memory is copied unpinned.
 */
#include <stdlib.h>

#include "daemon/memory/region_impl.h"

#define PIN_MIN_BYTES (UINT64_C(1) << 20) /* below that a copy takes no longer than pinning, however often */
#define REGIONS_AT_ONCE 2000u             /* looked at in one turn of the loop */

struct pinning {
    struct work work;
    struct region *region; /* a reference */
    struct pinned pinned;  /* kind NULL: there is nothing to pin */
    bool notes;            /* a refusal is noted */
    region_ready on_ready; /* NULL: nobody waits for it */
    void *arg;
};

static void run_pin(struct work *work)
{
    struct pinning *job = (struct pinning *)work;

    if (job->pinned.kind && !pinned_begin(&job->pinned, job->region->block.addr, job->region->room, job->notes))
        job->pinned.kind = NULL;
}

static void run_unpin(struct work *work)
{
    pinned_end(&((struct pinning *)work)->pinned);
    free(work);
}

static void unpin(struct regions *regions, struct pinned *pinned)
{
    struct pinning *job = calloc(1, sizeof *job);

    if (job) {
        job->work = (struct work){.run = run_unpin};
        job->pinned = *pinned;
        work_submit(regions->pool, &job->work);
    } else {
        pinned_end(pinned);
    }
    pinned->kind = NULL;
}

static void done_pin(struct work *work)
{
    struct pinning *job = (struct pinning *)work;
    struct region *region = job->region;

    if (job->pinned.kind && (region->pinned.kind || !job->pinned.kind->available))
        unpin(region->regions, &job->pinned); /* somebody else was quicker, or the kind is being unloaded */
    else if (job->pinned.kind)
        region->pinned = job->pinned;
    if (job->on_ready)
        job->on_ready(job->arg, region, NULL);
    region_unref(region);
    free(job);
}

static bool may_be_pinned(const struct region *region, const struct memory_kind *kind)
{
    return region_is_host(region) && region->block.addr && !region->pinned.kind && kind->ops.pin && kind->available;
}

enum rdt_status region_pin_for(struct region *region, struct memory_kind *kind, region_ready on_ready, void *arg,
                               struct rdt_error *err)
{
    struct pinning *job = calloc(1, sizeof *job);

    if (!job)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to pin region %llu", (unsigned long long)region->id);
    job->work = (struct work){.run = run_pin, .done = done_pin, .lane = region->client};
    job->region = region_ref(region);
    job->on_ready = on_ready;
    job->arg = arg;
    if (may_be_pinned(region, kind)) {
        job->pinned = (struct pinned){.kind = kind, .home = region->pinned.home};
        job->notes = !region_is_sealed(region); /* else it may be mapped for reading only */
        atomic_fetch_add(&kind->pinned, 1);
        if (region->kind == region->regions->free_pool.kind)
            region->regions->free_pool.pinned_for = kind;
    }
    region_work_submit(region, &job->work);
    return RDT_AGAIN;
}

void region_note_device_copy(struct region *region, struct memory_kind *kind)
{
    if (!may_be_pinned(region, kind) || region->origin == REGION_IMPORTED || region_is_sealed(region) ||
        region->room < PIN_MIN_BYTES)
        return;
    region->device_copies++;
    if (region->device_copies > 1 &&
        (region->device_copies & (region->device_copies - 1)) == 0) /* ever more rarely if refused */
        (void)region_pin_for(region, kind, NULL, NULL, NULL);
}

bool region_is_pinned_for(const struct region *region, const struct memory_kind *kind)
{
    return kind && region->pinned.kind == kind;
}

bool regions_forget_pins(struct regions *regions, const struct memory_kind *kind, uint64_t *cursor)
{
    struct region *region;
    uint64_t id = 0;

    if (*cursor == 0) {
        pool_forget_pins(&regions->free_pool, kind);
        list_for_each (node, &regions->caches.by_age) {
            region = container_of(node, struct region, reuse.by_age);
            if (region_is_pinned_for(region, kind))
                unpin(regions, &region->pinned);
        }
        *cursor = 1;
    }
    for (unsigned i = 0; i < REGIONS_AT_ONCE; i++) {
        region = index_next(&regions->by_id, *cursor, &id);
        if (!region)
            return true;
        if (region_is_pinned_for(region, kind))
            unpin(regions, &region->pinned);
        *cursor = id + 1;
    }
    return false;
}
