/* Import, export and the last unref of regions. What grows with pages runs on the work pool. */
#include "daemon/memory/region.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/sm.h"
#include "daemon/memory/region_fill.h"
#include "daemon/memory/region_impl.h"
#include "daemon/memory/region_orphans.h"
#include "daemon/memory/region_cache.h"

/* ---- all of them ---- */

static bool reserve(void *arg, uint64_t bytes)
{
    struct regions *regions = arg;

    if (bytes > regions->limit_bytes || regions->bytes > regions->limit_bytes - bytes || !list_empty(&regions->awaiting))
        return false;
    regions->bytes += bytes;
    return true;
}

void regions_give_back(struct regions *regions, uint64_t bytes)
{
    regions->bytes -= bytes;
    if (regions->accounts && bytes > 0)
        account_room_freed(regions->accounts, USAGE_BYTES, NULL);
}

static void unreserve(void *arg, uint64_t bytes)
{
    regions_give_back(arg, bytes);
}

static void on_change(void *arg)
{
    regions_admit(arg);
}

static void release_kept(struct pool_block *block)
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
    pool_init(&regions->free_pool, pool, 0, 0);
    device_pool_init(&regions->device_pool, release_kept);
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

void regions_keep(struct regions *regions, struct deadlines *deadlines, uint64_t pool_max_bytes, uint64_t cached_max_bytes,
                  uint64_t idle_ns)
{
    pool_init(&regions->free_pool, regions->pool, pool_max_bytes, idle_ns);
    regions->free_pool.kind = plugins_memory_kind(regions->plugins, "host");
    regions->free_pool.room = &regions->room;
    regions->free_pool.reserve = reserve;
    regions->free_pool.unreserve = unreserve;
    regions->free_pool.on_change = on_change;
    regions->free_pool.arg = regions;
    device_pool_keep(&regions->device_pool, idle_ns);
    regions->cached_max_bytes = cached_max_bytes;
    regions->deadlines = deadlines;
    regions->sweep.on_passed = on_sweep;
}

void regions_close(struct regions *regions)
{
    if (!regions->deadlines)
        return;
    region_orphans_close(regions->orphans);
    pool_close(&regions->free_pool);
    (void)device_pool_sweep(&regions->device_pool, UINT64_MAX);
    device_pool_keep(&regions->device_pool, 0);
    deadline_unset(regions->deadlines, &regions->sweep);
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

/* ---- one ---- */

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

static void charges(const struct region *region, uint64_t *want)
{
    bool is_used = region->state == REGION_USED || region->state == REGION_LOANED;

    memset(want, 0, USAGE_COUNT * sizeof *want);
    want[USAGE_FDS] = region->n_fds;
    want[USAGE_REGIONS] = is_used;
    want[region->at ? USAGE_DEVICE_BYTES : USAGE_BYTES] =
        is_used && region->origin != REGION_IMPORTED ? region->bytes : region->filled_bytes;
}

static void uncharge(struct region *region)
{
    uint64_t had[USAGE_COUNT];

    charges(region, had);
    account_give_all(region->account, had);
    account_unref(region->account);
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
    region->generation = 1;
    region->regions = regions;
    region->kind = kind;
    region->at = device;
    region->block.fd = -1;
    region->block.device = region_device(region);
    region->guard = GUARD_NONE;
    region->bytes = region->room = bytes;
    region->origin = origin;
    region->account = account_ref(account);
    region->client = region->maker = client;
    region->refs = 1;
    list_init(&region->uses);
    list_init(&region->readers);
    list_init(&region->by_client);
    list_init(&region->by_age);
    region->n_fds = n_fds;
    charges(region, want);
    status = account_take_all(account, want, err);
    if (status != RDT_OK) {
        account_unref(account);
        free(region);
        return status;
    }
    if (!index_put(&regions->by_id, region->id, region)) {
        account_undo(account, want);
        account_unref(account);
        free(region);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
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
    if (!region->at)
        return;
    region->at->memory.n_regions--;
    region->at->memory.imported_bytes -= region->origin == REGION_IMPORTED ? region->bytes : 0;
}

void region_unlist(struct region *region)
{
    index_remove(&region->regions->by_id, region->id);
    event(region->regions->events, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "gone", region);
}

void region_forget(struct region *region)
{
    leave_device(region);
    if (region->origin != REGION_IMPORTED)
        region_give_back(region->regions, region->at, region->room);
    memory_kind_unuse(region->kind);
    uncharge(region);
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

enum rdt_status region_import(struct regions *regions, const char *kind_name, const char *device,
                              const struct rdt_import *import, struct account *account, uint64_t client,
                              struct region **region_p, struct rdt_error *err)
{
    struct memory_kind *kind;
    struct region *region;
    enum rdt_status status = regions_find_kind(regions, kind_name, &kind, err);

    if (status != RDT_OK)
        return status;
    if (!memory_kind_is_host(kind))
        return rdt_error_set(err, RDT_INTERNAL, "%s memory is not imported so", kind->name);
    if (!kind->ops.import)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot import", kind->name);
    if (import->bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "cannot import 0 bytes");
    status = region_new(regions, kind, NULL, import->bytes, REGION_IMPORTED, account, client, import->n_fds, &region, err);
    if (status != RDT_OK)
        return status;
    (void)device;
    status = kind->ops.import(kind->instance, "", import, &region->block, err);
    if (status != RDT_OK) {
        region_unlist(region);
        region_forget(region);
        return status;
    }
    region->writable_outside = true;
    *region_p = region;
    return RDT_OK;
}

struct region *region_find(const struct regions *regions, uint64_t id, uint64_t generation)
{
    struct region *region = index_get(&regions->by_id, id);

    return region && region->generation == generation ? region : NULL;
}

struct region *region_ref(struct region *region)
{
    region->refs++;
    return region;
}

static void run_free(struct work *work)
{
    pool_block_free(container_of(work, struct pool_block, work));
}

static uint64_t *on_its_way(struct regions *regions, const struct pool_block *block)
{
    return block->at ? &block->at->memory.freeing_bytes : &regions->freeing_bytes;
}

/* The charge of memory goes when its pages have: block->bytes is 0 for imported memory. */
static void done_free(struct work *work)
{
    struct pool_block *block = container_of(work, struct pool_block, work);
    struct regions *regions = container_of(block->pool, struct regions, free_pool);

    regions->freeing--;
    account_unref(block->sender);
    *on_its_way(regions, block) -= block->bytes;
    region_give_back(regions, block->at, block->bytes);
    if (block->at) {
        regions_admit_device(block->at);
        memory_kind_unuse(block->kind); /* not before: the device is the kind's */
    }
    free(block);
    regions_admit(regions);
}

void regions_free_block(struct regions *regions, struct pool_block *take_block)
{
    regions->freeing++;
    *on_its_way(regions, take_block) += take_block->bytes;
    take_block->work = (struct work){.run = run_free, .done = done_free};
    if (take_block->sender)
        owner_work_submit(regions->owner_work, &take_block->work, take_block->sender, true);
    else
        work_submit(regions->pool, &take_block->work);
}

static void fill_block(struct pool_block *block, const struct region *region, bool discard)
{
    *block = (struct pool_block){.pool = &region->regions->free_pool,
                                 .kind = region->kind,
                                 .at = region->at,
                                 .block = region->block,
                                 .bytes = region->origin == REGION_IMPORTED ? 0 : region->room,
                                 .n_registrations = region->n_registrations,
                                 .guard = region->guard,
                                 .discard = discard};
    memcpy(block->registrations, region->registrations, sizeof block->registrations);
    list_init(&block->link);
}

/* Memory on a device that nobody uses now: whether it is kept there. client: the only one that ever had it; 0: nobody had. */
static bool keep_on_device(struct regions *regions, struct pool_block *block, const struct owner *owner, uint64_t client)
{
    struct memory_device *device = block->at;

    if ((client != 0 && !map_get_u64(&regions->cached_clients, client)) || !device_pool_give(&regions->device_pool, block, owner, client))
        return false;
    regions_watch(regions);
    if (regions->accounts)
        account_room_freed(regions->accounts, USAGE_DEVICE_BYTES, device); /* for whoever waits for room it will be given up */
    return true;
}

void region_retire(struct region *region, bool discard, struct list *victims)
{
    struct regions *regions = region->regions;
    bool imported = region->origin == REGION_IMPORTED;
    bool seen = imported || region->exposure >= REGION_EXPOSED;
    bool anyone = !imported && region->exposure == REGION_UNEXPOSED && !region->sealed; /* any client may get it next */
    /* Memory that was imported on the device may be the same memory under another name, put while its client had it
     * mapped. */
    bool alone = region->at && region->at->memory.imported_bytes == 0 && !imported &&
                 (region->exposure == REGION_EXPOSED || region->exposure == REGION_BOUND) && !region->abandoned;
    bool ours = seen && !region->at && !imported;
    bool sent = imported && !region->at; /* a memfd of its client's, of any size */
    bool little;
    uint64_t client = region->exported_to;
    struct owner owner = region->account->owner;
    struct pool_block *block, now;

    if (ours && !region->sealed) /* all have let go of it; what they keep mapped or open must not keep the pages */
        discard = true;
    while (!list_empty(&region->readers)) {
        struct region_reader *reader = container_of(list_first(&region->readers), struct region_reader, by_region);
        reader->on_gone(reader);
    }
    if (region->abandoned)
        discard = false;
    little = !region->at && region->room <= SMALL_BYTES && region->n_registrations == 0 && !victims && !sent;
    block = little ? NULL : malloc(sizeof *block);
    fill_block(block ? block : &now, region, discard);
    if (region->filled_bytes > 0 && !region_orphans_watch(regions->orphans, region, region->filled_bytes, true))
        regions_give_back(regions, region->filled_bytes);
    if (ours && !discard && region_orphans_watch(regions->orphans, region, region->room, !victims) && !victims)
        (block ? block : &now)->bytes = 0; /* charged until nobody has it */
    if (sent && block)
        block->sender = account_ref(region->account);
    leave_device(region);
    uncharge(region);
    region_set_state(region, REGION_ENDED);
    free(region);
    if (!block) { /* little, or no memory to do it elsewhere */
        pool_block_free(&now);
        region_give_back(regions, now.at, now.bytes);
        if (now.at)
            memory_kind_unuse(now.kind);
        return;
    }
    if (victims && !sent) {
        region_give_back(regions, block->at, block->bytes);
        list_append(victims, &block->link);
        return;
    }
    if (anyone && !block->at && list_empty(&regions->awaiting) && pool_give(&regions->free_pool, block)) {
        regions_watch(regions);
        return;
    }
    if (block->at && (anyone || alone) && keep_on_device(regions, block, &owner, client))
        return;
    regions_free_block(regions, block);
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
    if (region->regions->giving_up)
        region_retire(region, false, region->regions->giving_up);
    else if (!region_cache_insert(region))
        region_retire(region, false, NULL);
}

void region_leave_pages(struct region *region)
{
    region->abandoned = true;
}

void region_abandon(struct region *region)
{
    if (region)
        region_leave_pages(region);
    region_unref(region);
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

uint8_t *region_addr(struct region *region, struct rdt_error *err)
{
    if (!region->block.addr && region->kind->ops.map(region->kind->instance, &region->block, false, err) != RDT_OK)
        return NULL;
    if (region->guard == GUARD_NONE && region_may_fault(region)) {
        uint64_t page = region->block.page_bytes;
        region->guard = sigbus_guard_enter(region->block.addr, (region->room + page - 1) / page * page, page);
        if (region->guard == GUARD_NONE) {
            (void)rdt_error_set(err, RDT_LIMIT, "region %llu cannot be guarded: there are %u such already",
                                (unsigned long long)region->id, GUARD_MAX);
            return NULL;
        }
    }
    return region->block.addr;
}

bool region_may_fault(const struct region *region)
{
    return region->block.page_bytes > 0 && region->writable_outside;
}

enum rdt_status region_check(const struct region *region, struct rdt_error *err)
{
    if (!sigbus_guard_is_broken(region->guard))
        return RDT_OK;
    return rdt_error_set(
        err, RDT_SYSTEM,
        "region %llu of uid %u (client %llu) has lost pages: a hole was punched in its memory, and the system has "
        "no page to fill it",
        (unsigned long long)region->id, region->account->owner.uid, (unsigned long long)region->maker);
}

enum rdt_status region_seal(struct region *region, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    if (region->sealed)
        return RDT_OK;
    if (!region->kind->ops.seal)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot be sealed", region->kind->name);
    status = region->kind->ops.seal(region->kind->instance, &region->block, false, err);
    region->sealed = status == RDT_OK;
    return status;
}

static enum rdt_status share(struct region *region, bool writable, int *fd_p, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    if (!region->kind->ops.share)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot be shared", region->kind->name);
    if (region->origin == REGION_SNAPSHOT ||
        region->origin == REGION_COPY) /* not before: what never leaves the daemon may serve again */
        status = region_seal(region, err);
    if (status != RDT_OK)
        return status;
    status = region->kind->ops.share(region->kind->instance, &region->block, writable, fd_p, err);
    if (status == RDT_OK && writable)
        region->writable_outside = true;
    return status;
}

enum rdt_status region_not_anyone(const struct region *region, struct rdt_error *err)
{
    return rdt_error_set(err, RDT_INTERNAL, "region %llu served client %llu before, and can serve nobody else",
                         (unsigned long long)region->id, (unsigned long long)region->exported_to);
}

void region_expose(struct region *region, uint64_t client)
{
    if (region->exposure < REGION_EXPOSED && client != 0) {
        region->exposure = REGION_EXPOSED;
        region->exported_to = client;
    } else if (client == 0 || region->exported_to != client) {
        region->exposure = REGION_SHARED;
    }
}

enum rdt_status region_export_to(struct region *region, uint64_t client, bool writable, int *fd_p, struct rdt_error *err)
{
    enum rdt_status status;

    if (region->exposure == REGION_BOUND && region->exported_to != client)
        return region_not_anyone(region, err);
    status = share(region, writable, fd_p, err);
    if (status == RDT_OK)
        region_expose(region, client);
    return status;
}

enum rdt_status region_export(struct region *region, bool writable, int *fd_p, struct rdt_error *err)
{
    enum rdt_status status;

    if (region->exposure == REGION_BOUND)
        return region_not_anyone(region, err);
    status = share(region, writable, fd_p, err);
    if (status == RDT_OK)
        region_expose(region, 0);
    return status;
}

bool region_may_come_again(const struct region *region, uint64_t client)
{
    return region_is_host(region) && region->regions->cached_max_bytes > 0 && region->origin != REGION_IMPORTED &&
           region->exported_to == client && region->exposure != REGION_SHARED && region->writable_outside && !region->sealed && list_empty(&region->readers) &&
           !sigbus_guard_is_broken(region->guard);
}
