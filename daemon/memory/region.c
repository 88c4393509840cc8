/* SPDX-License-Identifier: Apache-2.0 */
/* The table of regions, and the life of a region: its states, its charges and its references. */
#include "daemon/memory/region.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/sm.h"
#include "daemon/memory/region_cache.h"
#include "daemon/memory/region_fill.h"
#include "daemon/memory/region_impl.h"
#include "daemon/memory/region_orphans.h"

/* ---- the table ---- */

/* The pool gets room that nobody else waits for. */
static bool reserve(void *arg, uint64_t bytes)
{
    struct regions *regions = arg;

    if (bytes > regions->limit_bytes || regions->bytes > regions->limit_bytes - bytes || !list_empty(&regions->awaiting))
        return false;
    regions->bytes += bytes;
    return true;
}

void regions_uncharge(struct regions *regions, uint64_t bytes)
{
    regions->bytes -= bytes;
    if (regions->accounts && bytes > 0)
        account_room_freed(regions->accounts, USAGE_BYTES, NULL);
}

static void unreserve(void *arg, uint64_t bytes)
{
    regions_uncharge(arg, bytes);
}

static void on_pool_changed(void *arg)
{
    regions_admit(arg);
}

static void free_device_block(struct pool_block *block)
{
    regions_free_block(container_of(block->pool, struct regions, free_pool), block);
}

void regions_init(struct regions *regions, struct plugins *plugins, struct work_pool *pool, uint64_t limit_bytes)
{
    *regions = (struct regions){.plugins = plugins, .pool = pool, .next_id = 1, .limit_bytes = limit_bytes};
    index_init(&regions->by_id, 1);
    map_init(&regions->cached_clients);
    list_init(&regions->cache);
    list_init(&regions->awaiting);
    regions_free_init(regions);
    pool_init(&regions->free_pool, pool, 0, 0);
    device_pool_init(&regions->device_pool, free_device_block);
    memory_room_init(&regions->room);
}

void regions_fini(struct regions *regions)
{
    index_fini(&regions->by_id);
    map_fini(&regions->cached_clients);
    memory_room_fini(&regions->room);
}

static void on_sweep(struct deadline *deadline)
{
    struct regions *regions = container_of(deadline, struct regions, sweep);
    uint64_t now = uv_hrtime();
    bool more = pool_sweep(&regions->free_pool, now);

    more |= device_pool_sweep(&regions->device_pool, now);
    if (region_cache_sweep(regions, now) || more)
        regions_watch(regions);
}

void regions_watch(struct regions *regions)
{
    if (regions->deadlines && regions->sweep.index == 0)
        (void)deadline_set(regions->deadlines, &regions->sweep, (int64_t)(regions->free_pool.idle_ns / 2));
}

void regions_set_reuse(struct regions *regions, struct deadlines *deadlines, uint64_t pool_max_bytes, uint64_t cached_max_bytes,
                       uint64_t idle_ns)
{
    pool_init(&regions->free_pool, regions->pool, pool_max_bytes, idle_ns);
    regions->free_pool.kind = plugins_memory_kind(regions->plugins, "host");
    regions->free_pool.room = &regions->room;
    regions->free_pool.reserve = reserve;
    regions->free_pool.unreserve = unreserve;
    regions->free_pool.on_change = on_pool_changed;
    regions->free_pool.arg = regions;
    device_pool_set_idle(&regions->device_pool, idle_ns);
    regions->cached_max_bytes = cached_max_bytes;
    regions->deadlines = deadlines;
    regions->sweep.on_passed = on_sweep;
}

void regions_set_limits(struct regions *regions, uint64_t limit_bytes, uint64_t pool_max_bytes, uint64_t cached_max_bytes)
{
    regions->limit_bytes = limit_bytes;
    regions->free_pool.max_bytes = pool_max_bytes;
    regions->cached_max_bytes = cached_max_bytes;
    regions_admit(regions);
}

void regions_close(struct regions *regions)
{
    if (!regions->deadlines)
        return;
    region_orphans_close(regions->orphans);
    pool_close(&regions->free_pool);
    (void)device_pool_sweep(&regions->device_pool, UINT64_MAX);
    device_pool_set_idle(&regions->device_pool, 0);
    deadline_unset(regions->deadlines, &regions->sweep);
    deadline_unset(regions->deadlines, &regions->slow_late);
    regions->deadlines = NULL;
}

uint64_t regions_used_bytes(const struct regions *regions)
{
    return regions->bytes - regions->free_pool.bytes - regions->cached_bytes;
}

uint64_t regions_claimed_bytes(const struct regions *regions)
{
    return regions_used_bytes(regions) - regions->freeing_bytes + regions->awaiting_bytes;
}

/* ---- states and charges ---- */

#define TO(state) (1u << (state))

static const struct sm_state states[REGION_STATES] = {
    [REGION_USED] = {"used", TO(REGION_LOANED) | TO(REGION_COMMON) | TO(REGION_CACHED) | TO(REGION_ENDED)},
    [REGION_LOANED] = {"loaned", TO(REGION_RETURNED) | TO(REGION_CACHED) | TO(REGION_ENDED)},
    [REGION_COMMON] = {"common", TO(REGION_ENDED)},
    [REGION_RETURNED] = {"returned", TO(REGION_USED) | TO(REGION_ENDED)},
    [REGION_CACHED] = {"cached", TO(REGION_USED) | TO(REGION_ENDED)},
    [REGION_ENDED] = {"ended", 0},
};

void region_set_state(struct region *region, enum region_state state)
{
    if (region->state != state)
        sm_move_byte(states, REGION_STATES, &region->state, state);
}

/* What a region in its present state is charged to its account. */
static void charges(const struct region *region, uint64_t *want)
{
    bool is_used = region->state == REGION_USED || region->state == REGION_LOANED;

    memset(want, 0, USAGE_COUNT * sizeof *want);
    want[USAGE_FDS] = region->n_fds;
    want[USAGE_REGIONS] = is_used;
    want[region->device ? USAGE_DEVICE_BYTES : USAGE_BYTES] =
        is_used && region_is_charged(region) ? region->bytes : region->filled_bytes;
}

void region_uncharge_use(struct region *region)
{
    account_give(region->account, USAGE_BYTES, region->bytes);
    account_give(region->account, USAGE_REGIONS, 1);
}

void region_make_common(struct region *region)
{
    region_uncharge_use(region);
    region_set_state(region, REGION_COMMON);
}

enum rdt_status region_charge_use(struct region *region, struct rdt_error *err)
{
    uint64_t want[USAGE_COUNT] = {[USAGE_BYTES] = region->bytes, [USAGE_REGIONS] = 1};

    return account_take_all(region->account, want, err);
}

enum rdt_status region_new(struct regions *regions, struct memory_kind *kind, struct memory_device *device, uint64_t bytes,
                           enum region_origin origin, struct account *account, uint64_t client, unsigned n_fds,
                           struct region **region_p, struct rdt_error *err)
{
    struct region *region = calloc(1, sizeof *region);
    uint64_t want[USAGE_COUNT];
    enum rdt_status status;

    if (!region)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    region->id = regions->next_id++;
    if (regions->saved_next_id)
        *regions->saved_next_id = regions->next_id;
    region->generation = 1;
    region->regions = regions;
    region->kind = kind;
    region->device = device;
    region->block.fd = -1;
    region->block.device = region_device_uuid(region);
    region->guard = GUARD_NONE;
    region->bytes = region->room = bytes;
    region->origin = origin;
    region->account = account_ref(account);
    region->client = region->creator = client;
    region->refs = 1;
    list_init(&region->uses);
    list_init(&region->readers);
    list_init(&region->by_client);
    list_init(&region->by_age);
    region->n_fds = n_fds;
    charges(region, want);
    status = account_check(account, USAGE_ORPHANS, 1, err); /* only regions become orphans */
    if (status == RDT_OK)
        status = account_take_all(account, want, err);
    if (status == RDT_OK && !index_put(&regions->by_id, region->id, region)) {
        account_undo(account, want);
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    }
    if (status != RDT_OK) {
        account_unref(account);
        free(region);
        return status;
    }
    memory_kind_use(kind);
    if (device) {
        device->memory.n_regions++;
        device->memory.imported_bytes += origin == REGION_IMPORTED ? bytes : 0;
    }
    event(regions->events, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "new", region);
    *region_p = region;
    return RDT_OK;
}

static void leave_device(const struct region *region)
{
    if (!region->device)
        return;
    region->device->memory.n_regions--;
    region->device->memory.imported_bytes -= region->origin == REGION_IMPORTED ? region->bytes : 0;
}

void region_unlist(struct region *region)
{
    index_remove(&region->regions->by_id, region->id);
    event(region->regions->events, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "gone", region);
}

void region_leave(struct region *region)
{
    uint64_t had[USAGE_COUNT];

    leave_device(region);
    charges(region, had);
    account_give_all(region->account, had);
    account_unref(region->account);
}

void region_end_empty(struct region *region)
{
    struct memory_kind *kind = region->kind;

    region_unlist(region);
    if (region_is_charged(region))
        regions_uncharge_on(region->regions, region->device, region->room);
    region_leave(region);
    memory_kind_unuse(kind);
    free(region);
}

void region_cancel(struct region *region)
{
    uint64_t had[USAGE_COUNT];

    region_unlist(region);
    charges(region, had);
    leave_device(region);
    memory_kind_unuse(region->kind);
    account_undo(region->account, had);
    account_unref(region->account);
    free(region);
}

enum rdt_status regions_find_kind(struct regions *regions, const char *name, struct memory_kind **kind_p, struct rdt_error *err)
{
    struct memory_kind *kind = plugins_memory_kind(regions->plugins, name);

    if (!kind)
        return rdt_error_set(err, RDT_UNSUPPORTED, "no memory kind \"%s\" is loaded", name);
    if (!kind->available)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s is not available: %s", kind->name, kind->why_not);
    *kind_p = kind;
    return RDT_OK;
}

/* ---- beginning and end ---- */

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
    region->writable_outside = true;
    region->offset = import->offset;
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
    region->abandoned = true;
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
    region_fill_settle(region);
    region_unref(region);
}
