/* SPDX-License-Identifier: Apache-2.0 */
/* The table of regions: how a region gets into it and leaves it, its state, its charges and its mapping. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/base/sm.h"
#include "daemon/memory/region_impl.h"

/* ---- the table ---- */

void regions_uncharge(struct regions *regions, uint64_t bytes)
{
    regions->bytes -= bytes;
    if (regions->accounts && bytes > 0)
        account_room_freed(regions->accounts, USAGE_BYTES, NULL);
}

void regions_uncharge_on(struct regions *regions, struct memory_device *device, uint64_t bytes)
{
    if (!device) {
        regions_uncharge(regions, bytes);
        return;
    }
    device->memory.used_bytes -= bytes;
    if (regions->accounts && bytes > 0)
        account_room_freed(regions->accounts, USAGE_DEVICE_BYTES, device);
}

void regions_watch(struct regions *regions)
{
    if (regions->deadlines && regions->sweep.index == 0)
        (void)deadline_set(regions->deadlines, &regions->sweep, (int64_t)(regions->free_pool.idle_ns / 2));
}

uint64_t regions_used_bytes(const struct regions *regions)
{
    return regions->bytes - regions->free_pool.bytes - regions->caches.bytes;
}

uint64_t regions_claimed_bytes(const struct regions *regions)
{
    return regions_used_bytes(regions) - regions->freeing.bytes + regions->awaiting.bytes + regions->awaiting.promised_bytes;
}

bool regions_would_fit(const struct regions *regions, uint64_t bytes)
{
    uint64_t used = regions_claimed_bytes(regions), limit = regions->limit_bytes, spare;

    if (bytes <= limit && used > limit - bytes && regions->evict) {
        /* How much can be released when memory is needed. It is less than that, so nothing is released now. */
        spare = regions->evict(regions->evict_arg, UINT64_MAX);
        used -= spare < used ? spare : used;
    }
    return bytes <= limit && used <= limit - bytes;
}

/* ---- states and charges ---- */

#define TO(state) (1u << (state))

static const struct sm_state states[REGION_STATES] = {
    [REGION_USED] = {"used", TO(REGION_LOANED) | TO(REGION_COMMON) | TO(REGION_CACHED) | TO(REGION_ENDED)},
    [REGION_LOANED] = {"loaned", TO(REGION_RETURNED) | TO(REGION_CACHED) | TO(REGION_ENDED)},
    [REGION_COMMON] = {"common", TO(REGION_CACHED) | TO(REGION_ENDED)},
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
        is_used && region_is_charged(region) ? region->bytes : region->imported.filled_bytes;
    want[USAGE_MAPPINGS] = region->mapped;
    want[USAGE_MAPPED_BYTES] = region->mapped ? region->room : 0;
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

void region_charge_owner(struct region *region)
{
    struct account *account = region->account;
    uint64_t had[USAGE_COUNT];

    if (!account->client || !account->parent)
        return;
    charges(region, had);
    region->account = account_ref(account_owner(account));
    account_give_to_owner(account, had);
    account_unref(account);
}

/* Whether the memory is mapped when it is allocated, because the daemon writes it, or because it cannot be mapped once a client
 * has it (region_alloc.c). */
static bool is_mapped_at_once(enum region_origin origin)
{
    return origin != REGION_IMPORTED && origin != REGION_FILE;
}

/* ---- who has imported memory of devices ---- */

struct importer {
    struct {
        const struct account *owner;
        uint64_t client; /* 0: all of the owner */
        const struct memory_device *device;
    } key;
    unsigned n;    /* regions */
    uint64_t last; /* the number of the last import */
};

static struct importer *find_importer(const struct region *region, uint64_t client)
{
    struct importer like = {.key = {account_owner(region->account), client, region->device}};

    return map_get(&region->regions->caches.importers, &like.key, sizeof like.key);
}

static bool note_importer(const struct region *region, uint64_t client)
{
    struct importer *importer = find_importer(region, client);

    if (!importer) {
        importer = malloc(sizeof *importer);
        if (!importer)
            return false;
        *importer = (struct importer){.key = {account_owner(region->account), client, region->device}};
        if (!map_put(&region->regions->caches.importers, &importer->key, sizeof importer->key, importer)) {
            free(importer);
            return false;
        }
    }
    importer->n++;
    importer->last = region->regions->caches.n_imports;
    return true;
}

static void forget_importer(const struct region *region, uint64_t client)
{
    struct importer *importer = find_importer(region, client);

    if (importer && --importer->n == 0) {
        (void)map_remove(&region->regions->caches.importers, &importer->key, sizeof importer->key);
        free(importer);
    }
}

static bool is_imported_on_device(const struct region *region)
{
    return region->device && region->origin == REGION_IMPORTED;
}

bool region_note_importer(const struct region *region)
{
    if (!is_imported_on_device(region))
        return true;
    region->regions->caches.n_imports++;
    if (!note_importer(region, region->creator))
        return false;
    if (note_importer(region, 0))
        return true;
    forget_importer(region, region->creator);
    return false;
}

void region_forget_importer(const struct region *region)
{
    if (!is_imported_on_device(region))
        return;
    forget_importer(region, region->creator);
    forget_importer(region, 0);
}

bool region_may_be_imported(const struct region *region, uint64_t client)
{
    const struct importer *importer = find_importer(region, client);

    return importer && importer->last > region->reach.exposed_at;
}

enum rdt_status region_new(struct regions *regions, struct memory_kind *kind, struct memory_device *device, uint64_t bytes,
                           enum region_origin origin, struct account *account, uint64_t client, unsigned n_fds,
                           struct region **region_p, struct rdt_error *err)
{
    struct region *region = calloc(1, sizeof *region);
    uint64_t want[USAGE_COUNT];
    bool noted = false;
    enum rdt_status status;

    if (!region)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    region->id = regions->restored_id ? regions->restored_id : ids_next(&regions->ids, account);
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
    (void)pthread_mutex_init(&region->imported.writing, NULL);
    list_init(&region->uses);
    list_init(&region->readers);
    list_init(&region->reuse.by_client);
    list_init(&region->reuse.by_age);
    region->n_fds = n_fds;
    charges(region, want);
    status = account_check(account, USAGE_ORPHANS, 1, err); /* only regions become orphans */
    if (status == RDT_OK && !device && is_mapped_at_once(origin))
        status = account_check(account, USAGE_MAPPINGS, 1, err);
    if (status == RDT_OK && !device && origin == REGION_ALLOCATED && !regions->restored_id)
        status = account_check(account, USAGE_MAPPED_BYTES, bytes, err);
    if (status == RDT_OK)
        status = account_take_all(account, want, err);
    if (status == RDT_OK && !(noted = region_note_importer(region))) {
        account_undo(account, want);
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    }
    if (status == RDT_OK && !index_put(&regions->by_id, region->id, region)) {
        account_undo(account, want);
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
    }
    if (status != RDT_OK) {
        if (noted)
            region_forget_importer(region);
        account_unref(account);
        region_destroy(region);
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

void region_destroy(struct region *region)
{
    (void)pthread_mutex_destroy(&region->imported.writing);
    free(region);
}

static void leave_device(const struct region *region)
{
    if (!region->device)
        return;
    region_forget_importer(region);
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
    region_destroy(region);
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
    region_destroy(region);
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

/* ---- pages ---- */

void region_settle(struct region *region, const struct stat *st)
{
    uint64_t there = (uint64_t)st->st_blocks * 512;

    region->imported.unmade_bytes = 0;
    if (there >= region->imported.filled_bytes)
        return;
    account_give(region->account, USAGE_BYTES, region->imported.filled_bytes - there);
    regions_uncharge(region->regions, region->imported.filled_bytes - there);
    region->imported.filled_bytes = there;
}

void region_settle_idle(struct region *region)
{
    struct stat st;

    if (region->imported.filled_bytes > 0 && region->pins == 0 && fstat(region->block.fd, &st) == 0)
        region_settle(region, &st);
}

bool region_may_fault(const struct region *region)
{
    return region->block.page_bytes > 0 && (region->reach.writable_outside || region->origin == REGION_FILE);
}

void region_note_mapped(struct region *region)
{
    if (region->mapped || !region->block.addr || region->device)
        return;
    region->mapped = true;
    account_add(region->account, USAGE_MAPPINGS, 1);
    account_add(region->account, USAGE_MAPPED_BYTES, region->room);
}

static enum rdt_status map_all(struct region *region, struct rdt_error *err)
{
    uint64_t want[USAGE_COUNT] = {[USAGE_MAPPINGS] = 1, [USAGE_MAPPED_BYTES] = region->room};
    enum rdt_status status = RDT_OK;

    if (region->device)
        return region->kind->ops.map(region->kind->instance, &region->block, false, err);
    if (region_is_by_fd(region))
        return rdt_error_set(err, RDT_INTERNAL, "region %llu was imported by a client, and the daemon never maps such memory",
                             (unsigned long long)region->id);
    if (!region->mapped)
        status = account_take_all(region->account, want, err);
    if (status != RDT_OK)
        return status;
    status = region->kind->ops.map(region->kind->instance, &region->block, false, err);
    if (status != RDT_OK && !region->mapped)
        account_undo(region->account, want);
    region->mapped |= status == RDT_OK;
    return status;
}

uint8_t *region_map(struct region *region, struct rdt_error *err)
{
    if (!region->block.addr && map_all(region, err) != RDT_OK)
        return NULL;
    region_note_mapped(region);
    if (region->guard == GUARD_NONE && region_may_fault(region)) {
        uint64_t page = region->block.page_bytes;
        region->guard = sigbus_guard_enter(region->block.addr, (region->room + page - 1) / page * page, page);
        if (region->guard == GUARD_NONE) {
            (void)rdt_error_set(err, RDT_LIMIT,
                                "region %llu cannot be read safely: its pages can be missing, and the daemon already "
                                "guards %u such regions, which is the most",
                                (unsigned long long)region->id, GUARD_MAX);
            return NULL;
        }
    }
    return region->block.addr;
}
