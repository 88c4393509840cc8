/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a region by its references and pins: the last reference chooses where its memory goes. */
#include "daemon/memory/region.h"

#include <assert.h>

#include "daemon/memory/region_cache.h"
#include "daemon/memory/region_impl.h"

enum rdt_status region_import(struct regions *regions, const char *kind_name, const struct rdt_import *import,
                              struct account *account, uint64_t client, struct region **region_p, struct rdt_error *err)
{
    struct memory_kind *kind;
    struct region *region;
    enum rdt_status status = regions_find_kind(regions, kind_name, &kind, err);

    if (status != RDT_OK)
        return status;
    if (!memory_kind_is_host(kind))
        return rdt_error_set(err, RDT_INTERNAL, "%s memory is imported by device", kind->name);
    if (!kind->ops.import)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot import", kind->name);
    if (import->bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "cannot import 0 bytes");
    status = region_new(regions, kind, NULL, import->bytes, REGION_IMPORTED, account, client, import->n_fds, &region, err);
    if (status != RDT_OK)
        return status;
    status = kind->ops.import(kind->instance, "", import, &region->block, err);
    if (status != RDT_OK) {
        region_end_empty(region);
        return status;
    }
    region->reach.writable_outside = true;
    region->imported.offset = import->offset;
    *region_p = region;
    return RDT_OK;
}

struct region *region_ref(struct region *region)
{
    region->refs++;
    return region;
}

void region_unref(struct region *region)
{
    if (!region)
        return;
    assert(region->refs > 0);
    if (--region->refs > 0) {
        if (region->refs == 1 && region->state == REGION_LOANED)
            region_cache_return(region);
        return;
    }
    assert(region->pins == 0 && list_empty(&region->uses));
    region_unlist(region);
    if (region->regions->evicted)
        region_retire(region, false, region->regions->evicted);
    else if (!region_cache_insert(region))
        region_retire(region, false, NULL);
}

void region_mark_abandoned(struct region *region)
{
    region->reach.abandoned = true;
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
    region_settle_idle(region);
    if (region->refs > 1)
        region_left(region);
    region_unref(region);
}

void region_work_submit(struct region *region, struct work *take_work)
{
    if (region_may_wait(region))
        owner_work_submit(region->regions->owner_work, take_work, region->account, true);
    else
        work_submit(region->regions->pool, take_work);
}
