/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/mapped.h"

#include <stdlib.h>

#define MAX_REGIONS 64u /* of one reader: each is a mapping in its process */

struct reader {
    struct region_reader base; /* in region->readers */
    struct mapped *mapped;
    struct list by_client;
    uint64_t region;
};

void mapped_start(struct mapped *mapped, void (*on_drop)(struct mapped *, uint64_t region))
{
    mapped->on_drop = on_drop;
    list_init(&mapped->list);
    map_init(&mapped->by_id);
}

static void forget(struct reader *reader)
{
    list_remove(&reader->base.by_region);
    list_remove(&reader->by_client);
    (void)map_remove_u64(&reader->mapped->by_id, reader->region);
    free(reader);
}

static struct reader *oldest(struct mapped *mapped)
{
    return container_of(list_first(&mapped->list), struct reader, by_client);
}

void mapped_stop(struct mapped *mapped)
{
    if (!mapped->on_drop)
        return;
    while (!list_empty(&mapped->list))
        forget(oldest(mapped));
    map_fini(&mapped->by_id);
    mapped->on_drop = NULL;
}

bool mapped_may_keep(const struct region *region)
{
    return region->origin == REGION_ALLOCATED && region_is_host(region) && !region_is_sealed(region) &&
           region->kind->ops.discard;
}

static void drop(struct reader *reader)
{
    struct mapped *mapped = reader->mapped;
    uint64_t region = reader->region;

    forget(reader);
    mapped->on_drop(mapped, region);
}

static void on_gone(struct region_reader *base)
{
    drop((struct reader *)base);
}

bool mapped_drop(struct mapped *mapped, const struct region *region)
{
    struct reader *reader = mapped->on_drop ? map_get_u64(&mapped->by_id, region->id) : NULL;

    if (reader)
        drop(reader);
    return reader;
}

void mapped_drop_all(struct mapped *mapped)
{
    while (mapped->on_drop && !list_empty(&mapped->list))
        drop(oldest(mapped));
}

void mapped_keep(struct mapped *mapped, struct region *region, bool heard)
{
    struct reader *reader;

    if (mapped_has(mapped, region) || !mapped->on_drop)
        return;
    reader = heard && mapped_may_keep(region) ? calloc(1, sizeof *reader) : NULL;
    if (reader && map_count(&mapped->by_id) >= MAX_REGIONS)
        drop(oldest(mapped));
    if (!reader || !map_put_u64(&mapped->by_id, region->id, reader)) {
        free(reader);
        mapped->on_drop(mapped, region->id);
        return;
    }
    reader->base.on_gone = on_gone;
    reader->mapped = mapped;
    reader->region = region->id;
    list_append(&region->readers, &reader->base.by_region);
    list_append(&mapped->list, &reader->by_client);
}

bool mapped_has(struct mapped *mapped, const struct region *region)
{
    struct reader *reader = mapped->on_drop ? map_get_u64(&mapped->by_id, region->id) : NULL;

    if (!reader)
        return false;
    list_remove(&reader->by_client);
    list_append(&mapped->list, &reader->by_client);
    return true;
}
