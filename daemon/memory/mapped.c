/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/mapped.h"

#include <stdlib.h>

#include "daemon/memory/region_impl.h"

static const unsigned max_regions[] = {64, RDT_MAX_KEPT_REGIONS}; /* of one reader: each is a mapping in its process */

struct reader {
    struct region_reader base; /* in region->readers */
    struct mapped *mapped;
    struct list by_client; /* in mapped->lists, or in mapped->leaving */
    uint64_t region;
    uint64_t known_as; /* the region that the client has mapped; another one had the memory before, if it differs */
    bool on_device;
    struct pool_block *block; /* leaving: what is not freed before the reader has unmapped it */
    uint64_t told;            /* leaving: the number of the REGION_GONE event */
};

void mapped_start(struct mapped *mapped, struct account *account, uint64_t (*on_drop)(struct mapped *, uint64_t region))
{
    mapped->on_drop = on_drop;
    mapped->account = account;
    list_init(&mapped->lists[0]);
    list_init(&mapped->lists[1]);
    list_init(&mapped->leaving);
    mapped->n[0] = mapped->n[1] = 0;
    map_init(&mapped->by_id);
}

static void destroy(struct reader *take_reader)
{
    list_remove(&take_reader->by_client);
    account_give(take_reader->mapped->account, USAGE_HEAP, sizeof *take_reader);
    free(take_reader);
}

/* Takes the reader out of the table; it is still in a list of its client. */
static void unlist(struct reader *reader)
{
    list_remove(&reader->base.by_region);
    (void)map_remove_u64(&reader->mapped->by_id, reader->region);
    reader->mapped->n[reader->on_device]--;
}

static struct reader *first_of(const struct list *list)
{
    return container_of(list_first(list), struct reader, by_client);
}

static void left(struct reader *take_reader)
{
    struct pool_block *block = take_reader->block;

    destroy(take_reader);
    region_block_left(block);
}

void mapped_stop(struct mapped *mapped)
{
    if (!mapped->on_drop)
        return;
    for (unsigned i = 0; i < 2; i++)
        list_drain (struct reader, reader, &mapped->lists[i], by_client) {
            unlist(reader);
            destroy(reader);
        }
    mapped_unmapped(mapped, UINT64_MAX);
    map_fini(&mapped->by_id);
    mapped->on_drop = NULL;
}

bool mapped_may_keep(const struct region *region)
{
    if (!region_is_host(region))
        return region->origin == REGION_ALLOCATED || region->origin == REGION_IMPORTED || region->origin == REGION_WRITTEN;
    return region->origin == REGION_ALLOCATED && !region_is_sealed(region) && region->kind->ops.discard;
}

/* block: of memory that stays while the reader has it mapped; NULL: nothing waits for the reader. */
static void drop(struct reader *reader, struct pool_block *block)
{
    struct mapped *mapped = reader->mapped;
    uint64_t told;

    unlist(reader);
    told = mapped->on_drop(mapped, reader->known_as);
    if (!block) {
        destroy(reader);
        return;
    }
    block->n_readers++;
    reader->block = block;
    reader->told = told;
    list_remove(&reader->by_client);
    list_append(&mapped->leaving, &reader->by_client);
}

static void on_gone(struct region_reader *base, struct pool_block *block)
{
    drop((struct reader *)base, block);
}

static void on_moved(struct region_reader *base, const struct region *to)
{
    struct reader *reader = (struct reader *)base;
    struct mapped *mapped = reader->mapped;

    (void)map_remove_u64(&mapped->by_id, reader->region);
    reader->region = to->id;
    if (!map_put_u64(&mapped->by_id, to->id, reader))
        drop(reader, NULL);
}

uint64_t mapped_as(const struct mapped *mapped, const struct region *region)
{
    const struct reader *reader = mapped->on_drop ? map_get_u64(&mapped->by_id, region->id) : NULL;

    return reader && reader->known_as != region->id ? reader->known_as : 0;
}

void mapped_told(struct mapped *mapped, uint64_t region)
{
    struct reader *reader = map_get_u64(&mapped->by_id, region);

    if (reader)
        reader->known_as = region;
}

void mapped_unmapped(struct mapped *mapped, uint64_t gone_events)
{
    if (!mapped->on_drop)
        return;
    list_drain (struct reader, reader, &mapped->leaving, by_client) {
        if (reader->told > gone_events)
            return;
        left(reader);
    }
}

bool mapped_drop(struct mapped *mapped, const struct region *region)
{
    struct reader *reader = mapped->on_drop ? map_get_u64(&mapped->by_id, region->id) : NULL;

    if (reader)
        drop(reader, NULL);
    return reader;
}

void mapped_drop_all(struct mapped *mapped)
{
    for (unsigned i = 0; i < 2 && mapped->on_drop; i++)
        while (!list_empty(&mapped->lists[i]))
            drop(first_of(&mapped->lists[i]), NULL);
}

void mapped_keep(struct mapped *mapped, struct region *region, bool heard)
{
    bool on_device = !region_is_host(region);
    struct reader *reader;

    if (mapped_has(mapped, region) || !mapped->on_drop)
        return;
    reader = heard && mapped_may_keep(region) && account_check(mapped->account, USAGE_HEAP, sizeof *reader, NULL) == RDT_OK
                 ? calloc(1, sizeof *reader)
                 : NULL;
    if (reader && mapped->n[on_device] >= max_regions[on_device])
        drop(first_of(&mapped->lists[on_device]), NULL);
    if (!reader || !map_put_u64(&mapped->by_id, region->id, reader)) {
        free(reader);
        (void)mapped->on_drop(mapped, region->id);
        return;
    }
    account_add(mapped->account, USAGE_HEAP, sizeof *reader);
    reader->base.on_gone = on_gone;
    reader->base.on_moved = mapped->moves ? on_moved : NULL;
    reader->mapped = mapped;
    reader->region = reader->known_as = region->id;
    reader->on_device = on_device;
    mapped->n[on_device]++;
    list_append(&region->readers, &reader->base.by_region);
    list_append(&mapped->lists[on_device], &reader->by_client);
}

bool mapped_has(struct mapped *mapped, const struct region *region)
{
    struct reader *reader = mapped->on_drop ? map_get_u64(&mapped->by_id, region->id) : NULL;

    if (!reader)
        return false;
    list_remove(&reader->by_client);
    list_append(&mapped->lists[reader->on_device], &reader->by_client);
    return true;
}
