/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a region's memory: to a pool for reuse, or back to the kernel or the device. Freeing takes time that grows with
 * the pages, so it is done on the work pool, except for a few pages. What a client can make slow is done by owner_work. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/memory/region_cache.h"
#include "daemon/memory/region_impl.h"
#include "daemon/memory/region_orphans.h"

#define SLOW_NS UINT64_C(1000000000)  /* freeing that takes longer is late */
#define STUCK_NS INT64_C(10000000000) /* memory that another process has is tried again after that */

/* ---- blocks ---- */

static void run_free(struct work *work)
{
    struct pool_block *block = container_of(work, struct pool_block, work);

    pool_block_free(block);
}

static uint64_t *freeing_bytes(struct regions *regions, const struct pool_block *block)
{
    return block->device ? &block->device->memory.freeing_bytes : &regions->freeing.bytes;
}

/* A client holds up the freeing of these blocks. So their memory counts as in use, which nobody waits for. If it is the client
 * whose they were, its account is charged for it and for the descriptor. Memory of a device waits for readers, who are all of
 * its owner: that one is charged. */
static void on_slow_late(struct deadline *deadline)
{
    struct regions *regions = container_of(deadline, struct regions, freeing.slow_late);
    uint64_t now = uv_hrtime();

    list_drain (struct pool_block, block, &regions->freeing.slow, link) {
        if (now - block->since_ns < SLOW_NS) {
            (void)deadline_set(regions->deadlines, deadline, (int64_t)(block->since_ns + SLOW_NS - now));
            break;
        }
        list_remove(&block->link);
        if (block->device) {
            block->device->memory.freeing_bytes -= block->bytes;
            block->late = true;
            account_add(block->slowed_by, USAGE_DEVICE_BYTES, block->bytes);
            regions->on_freed(regions, block->device);
            continue;
        }
        regions->freeing.bytes -= block->bytes;
        regions->bytes += block->room - block->bytes;
        regions->freeing.leaving_bytes += block->room - block->bytes;
        block->bytes = block->room;
        block->late = true;
        account_add(block->slowed_by, USAGE_BYTES, block->room);
        account_add(block->slowed_by, USAGE_FDS, 1);
    }
    regions->on_freed(regions, NULL);
}

/* Its client has sealed the memory, so its pages are still there: it stays charged as long as a process has it. */
static void watch_kept(struct regions *regions, struct pool_block *block)
{
    const struct orphaned orphaned = {
        .fd = block->kept_fd, .account = block->slowed_by, .bytes = block->room, .charged = block->bytes > 0, .at_once = true};

    if (region_orphans_watch(regions->orphans, &orphaned))
        block->bytes = 0;
    owner_work_close_fd(regions->owner_work, block->kept_fd, block->slowed_by);
}

static void free_stuck(struct pool_block *block)
{
    account_unref(block->slowed_by);
    block->kind->ops.free(block->kind->instance, &block->block);
    memory_kind_unuse(block->kind);
    free(block);
}

static void uncharge_stuck(struct pool_block *block)
{
    account_give(block->slowed_by, USAGE_FDS, 1);
    account_give(block->slowed_by, USAGE_MAPPINGS, 1);
    account_give(block->slowed_by, USAGE_MAPPED_BYTES, block->block.bytes);
}

/* A client that still has the memory may have written pages again, which are nobody's once it has ended. */
static void done_again(struct work *work)
{
    struct pool_block *block = container_of(work, struct pool_block, work);
    struct regions *regions = container_of(block->pool, struct regions, free_pool);

    regions->freeing.n--;
    if (block->kept_fd >= 0)
        owner_work_close_fd(regions->owner_work, block->kept_fd, block->slowed_by);
    if (block->block.addr && regions->deadlines) {
        list_append(&regions->freeing.stuck.list, &block->link);
        (void)deadline_set(regions->deadlines, &block->again, STUCK_NS);
        return;
    }
    uncharge_stuck(block);
    if (block->block.addr) {
        free_stuck(block);
        return;
    }
    account_unref(block->slowed_by);
    free(block);
}

static void on_again(struct deadline *deadline)
{
    struct pool_block *block = container_of(deadline, struct pool_block, again);
    struct regions *regions = container_of(block->pool, struct regions, free_pool);

    list_remove(&block->link);
    regions->freeing.n++;
    block->work = (struct work){.run = run_free, .done = done_again};
    owner_work_submit(regions->owner_work, &block->work, block->slowed_by, true);
}

/* The memory stays mapped until no other process has it. Its pages are gone, or are watched. */
static void keep_stuck(struct regions *regions, struct pool_block *block)
{
    char who[32];

    if (!regions->deadlines) { /* after regions_close */
        free_stuck(block);
        return;
    }
    (void)snprintf(who, sizeof who, "uid %u", block->slowed_by->owner.uid);
    log_warn_rarely(&regions->freeing.stuck.said, who,
                    "memory stays mapped and charged until no process has it any more, because a client has sealed it against "
                    "seals: to unmap it, the daemon would wait for that client");
    account_add(block->slowed_by, USAGE_FDS, 1);
    account_add(block->slowed_by, USAGE_MAPPINGS, 1);
    account_add(block->slowed_by, USAGE_MAPPED_BYTES, block->block.bytes);
    list_append(&regions->freeing.stuck.list, &block->link);
    block->again.on_passed = on_again;
    (void)deadline_set(regions->deadlines, &block->again, STUCK_NS);
}

void regions_free_stuck(struct regions *regions)
{
    list_drain (struct pool_block, block, &regions->freeing.stuck.list, link) {
        list_remove(&block->link);
        deadline_unset(regions->deadlines, &block->again);
        uncharge_stuck(block);
        free_stuck(block);
    }
}

static void done_free(struct work *work)
{
    struct pool_block *block = container_of(work, struct pool_block, work);
    struct regions *regions = container_of(block->pool, struct regions, free_pool);

    regions->freeing.n--;
    list_remove(&block->link);
    if (block->late && block->device) {
        account_give(block->slowed_by, USAGE_DEVICE_BYTES, block->bytes);
    } else if (block->late) {
        account_give(block->slowed_by, USAGE_BYTES, block->room);
        account_give(block->slowed_by, USAGE_FDS, 1);
    } else {
        *freeing_bytes(regions, block) -= block->bytes;
    }
    regions->freeing.leaving_bytes -= block->device ? 0 : block->bytes;
    if (block->kept_fd >= 0)
        watch_kept(regions, block);
    regions_uncharge_on(regions, block->device, block->bytes);
    if (block->device) {
        regions->on_freed(regions, block->device);
        memory_kind_unuse(block->kind); /* last, because an unload of the kind ends its devices */
    }
    if (block->block.addr) {
        keep_stuck(regions, block);
    } else {
        account_unref(block->slowed_by);
        free(block);
    }
    regions->on_freed(regions, NULL);
}

/* What a client can make slow is done by owner_work. Memory of a device that the daemon allocated waits for readers, but nobody
 * holds up whoever frees it. */
static void submit_free(struct regions *regions, struct pool_block *take_block)
{
    bool own = take_block->device && take_block->bytes > 0; /* imported memory has none */

    regions->freeing.n++;
    take_block->work = (struct work){.run = run_free, .done = done_free};
    if (take_block->slowed_by && !own)
        owner_work_submit(regions->owner_work, &take_block->work, take_block->slowed_by, true);
    else
        work_submit(regions->pool, &take_block->work);
}

static void watch_slow(struct regions *regions, struct pool_block *block)
{
    block->since_ns = uv_hrtime();
    if (!regions->deadlines)
        return;
    list_append(&regions->freeing.slow, &block->link);
    if (regions->freeing.slow_late.index == 0)
        (void)deadline_set(regions->deadlines, &regions->freeing.slow_late, (int64_t)SLOW_NS);
}

/* Blocks may be many, and so may the readers of each. */
static bool tell_some(struct slice *slice, uint64_t until_ns)
{
    struct regions *regions = container_of(slice, struct regions, freeing.tell);

    list_drain (struct pool_block, block, &regions->freeing.telling, link) {
        list_drain (struct region_reader, reader, &block->readers, by_region) {
            reader->on_gone(reader, block);
            if (uv_hrtime() >= until_ns)
                return false;
        }
        list_remove(&block->link);
        if (block->n_readers > 1)
            watch_slow(regions, block);
        region_block_left(block);
        if (uv_hrtime() >= until_ns)
            return list_empty(&regions->freeing.telling);
    }
    return true;
}

void regions_free_mapped(struct regions *regions, struct pool_block *take_block)
{
    *freeing_bytes(regions, take_block) += take_block->bytes;
    take_block->n_readers = 1; /* until all have been told */
    list_append(&regions->freeing.telling, &take_block->link);
    slice_begin(regions->deadlines ? &regions->deadlines->slices : NULL, &regions->freeing.tell);
}

void regions_free_block(struct regions *regions, struct pool_block *take_block)
{
    if (!list_empty(&take_block->readers)) {
        regions_free_mapped(regions, take_block);
        return;
    }
    *freeing_bytes(regions, take_block) += take_block->bytes;
    regions->freeing.leaving_bytes += take_block->device ? 0 : take_block->bytes;
    submit_free(regions, take_block);
}

void regions_free_told(struct regions *regions)
{
    slice_stop(&regions->freeing.tell);
    (void)tell_some(&regions->freeing.tell, UINT64_MAX);
}

void region_block_left(struct pool_block *block)
{
    if (--block->n_readers == 0)
        submit_free(container_of(block->pool, struct regions, free_pool), block);
}

void regions_free_init(struct regions *regions)
{
    list_init(&regions->freeing.slow);
    list_init(&regions->freeing.stuck.list);
    list_init(&regions->freeing.telling);
    regions->freeing.tell.run = tell_some;
    regions->freeing.stuck.said.every_ns = UINT64_C(1000000000);
    regions->freeing.slow_late.on_passed = on_slow_late;
}

/* Frees a block of daemon memory that a client can write. */
static void free_written(struct regions *regions, struct pool_block *take_block)
{
    watch_slow(regions, take_block);
    regions_free_block(regions, take_block);
}

/* ---- victims ---- */

void region_free_victims(struct list *victims)
{
    list_each_safe (struct pool_block, block, victims, link) {
        pool_block_free(block);
        if (block->device)
            memory_kind_unuse(block->kind);
        free(block);
    }
    list_init(victims);
}

struct victims_work {
    struct work work; /* first */
    struct list victims;
};

static void run_victims(struct work *work)
{
    region_free_victims(&((struct victims_work *)work)->victims);
    free(work);
}

void region_drop_victims(struct regions *regions, struct list *victims)
{
    struct victims_work *dropping;

    if (list_empty(victims))
        return;
    dropping = calloc(1, sizeof *dropping);
    if (!dropping) {
        region_free_victims(victims);
        return;
    }
    dropping->work = (struct work){.run = run_victims};
    list_init(&dropping->victims);
    list_splice(&dropping->victims, victims);
    work_submit(regions->pool, &dropping->work);
}

/* ---- regions ---- */

/* Imported memory and files were never charged to memory_limit or a device, so its block has 0 bytes. */
static void fill_block(struct pool_block *block, const struct region *region, bool discard)
{
    *block = (struct pool_block){.pool = &region->regions->free_pool,
                                 .kind = region->kind,
                                 .device = region->device,
                                 .block = region->block,
                                 .bytes = region_is_charged(region) ? region->room : 0,
                                 .owner = region->account->owner,
                                 .n_registrations = region->n_registrations,
                                 .pinned = region->pinned,
                                 .guard = region->guard,
                                 .discard = discard};
    memcpy(block->registrations, region->registrations, sizeof block->registrations);
    list_init(&block->link);
    list_init(&block->readers);
}

/* The memory waits for them, or for the next region that they have mapped then. */
static void take_readers(struct region *region, struct pool_block *block)
{
    if (list_empty(&region->readers))
        return;
    list_splice(&block->readers, &region->readers);
    block->slowed_by = account_ref(account_owner(region->account));
}

static void move_readers(struct region *region, struct pool_block *block)
{
    list_splice(&region->readers, &block->readers);
    list_each_safe (struct region_reader, reader, &region->readers, by_region)
        reader->on_moved(reader, region);
}

void region_adopt(struct region *region, struct pool_block *take_block)
{
    region->block = take_block->block;
    region->room = take_block->bytes;
    region->n_registrations = take_block->n_registrations;
    memcpy(region->registrations, take_block->registrations, sizeof region->registrations);
    region->pinned = take_block->pinned;
    region_note_mapped(region);
    if (take_block->device)
        move_readers(region, take_block);
    memory_kind_unuse(take_block->kind); /* the region counts as its user */
    account_unref(take_block->slowed_by);
    free(take_block);
}

/* Offers a block to the device pool. client: the only one that ever had it, if it serves that one. */
static bool pool_on_device(struct regions *regions, struct pool_block *block, enum pool_serves serves, uint64_t client)
{
    struct memory_device *device = block->device;

    block->serves = serves;
    block->client = serves == POOL_SERVES_CLIENT ? client : 0;
    if (block->client != 0 && !map_get_u64(&regions->caches.clients, client))
        return false; /* the client is gone */
    if (!device_pool_give(&regions->device_pool, block))
        return false;
    regions_watch(regions);
    list_each_safe (struct region_reader, reader, &block->readers, by_region)
        if (serves != POOL_SERVES_OWNER || !reader->on_moved)
            reader->on_gone(reader, NULL);
    if (regions->accounts) /* requests that wait for room may have the block's */
        account_room_freed(regions->accounts, USAGE_DEVICE_BYTES, device);
    return true;
}

/* Whether a later daemon will have the memory. It will not, if the region ends before this daemon does. */
static bool stays_for_later(struct region *region)
{
    if (region->record)
        region->regions->kept.on_end(region->regions->kept.arg, region);
    return region->record;
}

void region_tell_readers(struct region *region)
{
    list_drain (struct region_reader, reader, &region->readers, by_region)
        reader->on_gone(reader, NULL);
}

static bool watch(const struct region *region, uint64_t bytes, bool charged)
{
    const struct orphaned orphaned = {.fd = region->block.fd, .account = region->account, .bytes = bytes, .charged = charged};

    return region_orphans_watch(region->regions->orphans, &orphaned);
}

/* Whom memory of a device serves again; false: nobody. A client that had it mapped may have put it under another name, as an
 * import: then it serves nobody. */
static bool serves_again(const struct region *region, bool kept, enum pool_serves *serves_p)
{
    const struct region_reach *reach = &region->reach;

    *serves_p = POOL_SERVES_ANYONE;
    if (region_is_host(region) || !region_is_charged(region))
        return false;
    if (reach->exposure == REGION_UNEXPOSED)
        return !kept && !region->unwritten;
    if (reach->abandoned)
        return false;
    if (region->origin == REGION_WRITTEN && (reach->exposure == REGION_SHARED || reach->exported_to != region->creator)) {
        *serves_p = POOL_SERVES_OWNER;
        return !kept && reach->one_audience && !region_may_be_imported(region, 0);
    }
    *serves_p = POOL_SERVES_CLIENT;
    return (reach->exposure == REGION_EXPOSED || reach->exposure == REGION_BOUND) &&
           !region_may_be_imported(region, reach->exported_to);
}

void region_retire(struct region *region, bool discard, struct list *victims)
{
    struct regions *regions = region->regions;
    bool host = region_is_host(region), imported = !region_is_charged(region); /* or a file */
    bool was_exported = !imported && host && region->reach.exposure >= REGION_EXPOSED;
    bool kept = stays_for_later(region);
    bool for_anyone =
        !imported && region->reach.exposure == REGION_UNEXPOSED && !region_is_sealed(region) && !kept && !region->unwritten;
    enum pool_serves serves;
    bool again = serves_again(region, kept, &serves);
    /* All clients have released the memory, so descriptors and mappings that they still have must not keep its pages. */
    bool discards = (discard || (was_exported && !region_is_sealed(region))) && !region->reach.abandoned && !kept;
    /* To remove pages is to wait for the lock of the file. A client that can write the memory can hold that lock for ever: by
     * a write whose bytes come from a file system that does not answer. To unmap it is to wait while a client removes pages. */
    bool written = !imported && region->reach.writable_outside &&
                   ((discards && region->kind->ops.discard) || (region_may_wait(region) && region->block.addr && !kept));
    bool little = host && region->room <= SMALL_BYTES && region->n_registrations == 0 && !region->pinned.kind && !victims &&
                  !imported && !written;
    uint64_t client = region->reach.exported_to;
    struct pool_block *block = little ? NULL : malloc(sizeof *block), on_stack, *filled = block ? block : &on_stack;

    fill_block(filled, region, discards && (block || !written));
    if (block && !host && !imported && !victims)
        take_readers(region, block);
    region_tell_readers(region);
    if (region->imported.filled_bytes > 0 && !watch(region, region->imported.filled_bytes, true))
        regions_uncharge(regions, region->imported.filled_bytes);
    if (was_exported && !filled->discard && watch(region, region->room, !victims) && !victims)
        filled->bytes = 0; /* region_orphans.c takes the charge off when no process has the memory */
    filled->bytes += region_end_left(region);
    if ((region->origin == REGION_IMPORTED || written) && block) { /* a client can make it slow to close memory that it sent */
        account_unref(block->slowed_by);
        block->slowed_by = account_ref(region->account);
        block->room = block->bytes;
        block->to_be_mapped = region->reach.abandoned && regions->ending;
    }
    region_leave(region);
    region_set_state(region, REGION_ENDED);
    region_destroy(region);
    if (!block) { /* little memory, or none for the block */
        pool_block_free(&on_stack);
        regions_uncharge_on(regions, on_stack.device, on_stack.bytes);
        if (on_stack.device)
            memory_kind_unuse(on_stack.kind);
        return;
    }
    if (victims && !imported)
        regions_uncharge_on(regions, block->device, block->bytes);
    if (written) {
        block->bytes = victims ? 0 : block->bytes;
        free_written(regions, block);
        return;
    }
    if (victims && !imported) {
        list_append(victims, &block->link);
        return;
    }
    if (host && for_anyone && list_empty(&regions->awaiting.works) && pool_give(&regions->free_pool, block)) {
        regions_watch(regions);
        return;
    }
    if (again && pool_on_device(regions, block, serves, client))
        return;
    regions_free_block(regions, block);
}
