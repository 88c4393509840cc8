/* SPDX-License-Identifier: Apache-2.0 */
/* Regions in device memory: room on the device, allocating on the work pool, importing on the threads of the owner. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/memory/handle.h"
#include "daemon/memory/region_impl.h"

struct device_work {
    struct work work; /* first */
    struct region *region;
    region_ready on_ready;
    void *arg;
    struct rdt_import *import; /* NULL: an allocation */
    bool reused;               /* its memory is a block of the pool, which must be zeroed */
    uint8_t attempts;          /* at which the device had no memory */
    bool to_write;             /* only the gaps are cleared */
    bool beside_freeing;       /* memory of the device was being freed when the last attempt began */
    struct gaps gaps;
    struct list victims; /* struct pool_block: freed first, because they make room */
    struct list link;    /* in device->memory.awaiting */
    enum rdt_status status;
    struct rdt_error err;
};

/* ---- room ---- */

static enum rdt_status no_room(const struct memory_device *device, uint64_t bytes, struct rdt_error *err)
{
    return rdt_error_set(err, RDT_LIMIT,
                         "%llu bytes do not fit on %s device %s (%s): %llu of its device_limit of %llu bytes are taken",
                         (unsigned long long)bytes, device->kind->name, device->uuid, device->name,
                         (unsigned long long)device->memory.used_bytes, (unsigned long long)device->memory.limit_bytes);
}

/* room may be anything, because a plug-in rounds it up. */
static bool fits(const struct memory_device *device, uint64_t room, uint64_t taken)
{
    return room <= device->memory.limit_bytes && taken <= device->memory.limit_bytes - room;
}

/* The bytes that no request gets at once: they are not pooled, or readers have them mapped. */
static uint64_t taken_bytes(const struct regions *regions, const struct memory_device *device)
{
    return device->memory.used_bytes - device->memory.pooled_bytes + device_pool_mapped_bytes(&regions->device_pool, device);
}

/* The bytes that are neither pooled nor being freed. */
static uint64_t in_use_bytes(const struct memory_device *device)
{
    return device->memory.used_bytes - device->memory.pooled_bytes - device->memory.freeing_bytes;
}

/* Charges a region for which there is room, once enough blocks of the pool have become victims. */
static void claim(struct region *region, uint64_t room, struct list *victims)
{
    struct memory_device *device = region->device;
    uint64_t limit = device->memory.limit_bytes;

    if (device->memory.used_bytes > limit - room)
        device_pool_evict(&region->regions->device_pool, device, device->memory.used_bytes - (limit - room), victims);
    list_for_each (node, victims)
        device->memory.used_bytes -= container_of(node, struct pool_block, link)->bytes;
    region->room = room;
    device->memory.used_bytes += room;
}

/* AGAIN: there will be room when the memory that is being freed is free, and readers have unmapped what they keep. */
static enum rdt_status take_room(struct region *region, struct list *victims, struct rdt_error *err)
{
    struct memory_device *device = region->device;
    struct regions *regions = region->regions;
    uint64_t room = pool_pages_bytes(region->kind, region->bytes);
    bool ever = room >= region->bytes && room <= device->memory.limit_bytes;

    if (ever && !account_waits_for(region->account, USAGE_DEVICE_BYTES, device)) {
        if (list_empty(&device->memory.awaiting) && fits(device, room, taken_bytes(regions, device))) {
            claim(region, room, victims);
            return RDT_OK;
        }
        if (fits(device, room, in_use_bytes(device) + device->memory.awaiting_bytes)) {
            (void)device_pool_unmap(&regions->device_pool, device, room);
            return RDT_AGAIN;
        }
    }
    if (ever)
        account_node_is_full(region->account, USAGE_DEVICE_BYTES, device);
    return no_room(device, region->bytes, err);
}

/* ---- creating on other threads ---- */

/* Clears what the daemon will not write: the gaps between tensors and the end. */
static enum rdt_status clear_gaps(struct device_work *creation)
{
    struct region *region = creation->region;
    const struct rdt_memory_ops *ops = &region->kind->ops;
    enum rdt_status status = RDT_OK;

    for (unsigned i = 0; i < creation->gaps.n && status == RDT_OK; i++)
        status = ops->zero_part(region->kind->instance, &region->block, creation->gaps.at[i].from,
                                creation->gaps.at[i].to - creation->gaps.at[i].from, &creation->err);
    if (status == RDT_OK && region->bytes < region->room)
        status =
            ops->zero_part(region->kind->instance, &region->block, region->bytes, region->room - region->bytes, &creation->err);
    return status;
}

static enum rdt_status create(struct device_work *creation)
{
    struct region *region = creation->region;
    const struct rdt_memory_ops *ops = &region->kind->ops;
    void *instance = region->kind->instance;
    enum rdt_status status;

    if (creation->reused)
        return creation->to_write ? clear_gaps(creation) : ops->zero(instance, &region->block, &creation->err);
    region_free_victims(&creation->victims);
    if (creation->import)
        status = ops->import(instance, region->device->uuid, creation->import, &region->block, &creation->err);
    else
        status = (creation->to_write ? ops->alloc_unzeroed : ops->alloc)(instance, region->device->uuid, region->room,
                                                                         &region->block, &creation->err);
    if (status != RDT_OK)
        return status;
    status = ops->map(instance, &region->block, true, &creation->err);
    if (status == RDT_OK && creation->to_write)
        status = clear_gaps(creation);
    if (status != RDT_OK)
        ops->free(instance, &region->block);
    return status;
}

static void run_creation(struct work *work)
{
    struct device_work *creation = (struct device_work *)work;

    creation->status = create(creation);
}

static void import_free(struct rdt_import *import, struct region *region)
{
    if (!import)
        return;
    for (uint32_t i = 0; i < import->n_fds; i++)
        owner_work_close_fd(region->regions->owner_work, import->fds[i], region->account);
    free(import);
}

static void submit(struct device_work *creation)
{
    struct region *region = creation->region;

    creation->beside_freeing = region->device->memory.freeing_bytes > 0;
    if (creation->import) /* a plug-in may duplicate and close the client's descriptors, and a client can make that slow */
        owner_work_submit(region->regions->owner_work, &creation->work, region->account, true);
    else
        work_submit(region->regions->pool, &creation->work);
}

/* There will be room when the work pool has freed memory, so the request waits: it is not refused for work that is not done
 * yet. */
static enum rdt_status await_room(struct device_work *take_creation, struct region *region)
{
    take_creation->region = region;
    region->room = pool_pages_bytes(region->kind, region->bytes);
    region->device->memory.awaiting_bytes += region->room;
    list_append(&region->device->memory.awaiting, &take_creation->link);
    return RDT_AGAIN;
}

/* The device has no memory although device_limit leaves room, because other processes have it. So the daemon gives up what it
 * keeps there unused, and tries once more, and then, if that was not enough, when what readers keep mapped has been freed, too,
 * with whatever else is being freed. It does not for memory that a client has already, or clients could empty the pool of
 * others. */
static bool try_again(struct device_work *creation)
{
    struct memory_device *device = creation->region->device;
    struct device_pool *pool = &creation->region->regions->device_pool;

    if (creation->status != RDT_NO_MEMORY || creation->import || creation->reused || creation->attempts == 2)
        return false;
    if (creation->attempts == 0)
        device_pool_evict(pool, device, device->memory.pooled_bytes, &creation->victims);
    creation->attempts = list_empty(&creation->victims) ? 2 : 1;
    list_each (struct pool_block, block, &creation->victims, link)
        device->memory.used_bytes -= block->bytes;
    if (creation->attempts == 1) {
        submit(creation);
        return true;
    }
    if (!device_pool_unmap(pool, device, UINT64_MAX) && device->memory.freeing_bytes == 0) {
        if (creation->beside_freeing)
            submit(creation);
        return creation->beside_freeing;
    }
    device->memory.used_bytes -= creation->region->room;
    (void)await_room(creation, creation->region);
    return true;
}

static void done_creation(struct work *work)
{
    struct device_work *creation = (struct device_work *)work;
    struct region *region = creation->region;

    if (try_again(creation))
        return;
    import_free(creation->import, region);
    if (creation->status != RDT_OK) {
        rdt_error_prefix(&creation->err, "%s device %s", region->kind->name, region->device->uuid);
        if (creation->reused) {
            region_unlist(region);
            region_expose(region, 0); /* so that the block is not pooled again */
            region_retire(region, false, NULL);
        } else {
            region_end_empty(region);
        }
        creation->on_ready(creation->arg, NULL, &creation->err);
    } else {
        creation->on_ready(creation->arg, region, NULL);
    }
    free(creation);
}

static struct device_work *work_new(region_ready on_ready, void *arg, struct rdt_error *err)
{
    struct device_work *creation = calloc(1, sizeof *creation);

    if (!creation) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
        return NULL;
    }
    list_init(&creation->victims);
    list_init(&creation->link);
    creation->on_ready = on_ready;
    creation->arg = arg;
    return creation;
}

static enum rdt_status start(struct device_work *take_creation, struct region *region)
{
    take_creation->region = region;
    take_creation->work = (struct work){.run = run_creation, .done = done_creation, .lane = region->client};
    submit(take_creation);
    return RDT_AGAIN;
}

/* ---- waiting for memory that is being freed ---- */

/* The memory that it waited for went to another request. */
static void refuse(struct device_work *creation)
{
    struct region *region = creation->region;

    (void)no_room(region->device, region->bytes, &creation->err);
    region->room = 0; /* so that none is given back */
    region_end_empty(region);
    creation->on_ready(creation->arg, NULL, &creation->err);
    free(creation);
}

void regions_admit_device(struct memory_device *device)
{
    list_drain (struct device_work, creation, &device->memory.awaiting, link) {
        struct regions *regions = creation->region->regions;
        uint64_t room = creation->region->room;
        bool now = fits(device, room, taken_bytes(regions, device));

        if (!now && fits(device, room, in_use_bytes(device))) {
            (void)device_pool_unmap(&regions->device_pool, device, room);
            return; /* more memory is being freed */
        }
        if (now && creation->attempts > 0 && device->memory.freeing_bytes > 0)
            return; /* the device needs all of that (try_again) */
        list_remove(&creation->link);
        device->memory.awaiting_bytes -= room;
        if (now) {
            claim(creation->region, room, &creation->victims);
            (void)start(creation, creation->region);
        } else {
            refuse(creation);
        }
    }
}

/* ---- allocating ---- */

static enum rdt_status find_device(struct memory_kind *kind, const char *name, struct memory_device **device_p,
                                   struct rdt_error *err)
{
    struct rdt_error why = {0};

    *device_p = memory_kind_device(kind, name, &why);
    if (*device_p)
        return RDT_OK;
    if (err)
        *err = why;
    return why.status;
}

/* Whether the region is a client's allocation. */
static bool is_allocation(const struct region *region)
{
    return region->origin == REGION_ALLOCATED || region->origin == REGION_WRITTEN;
}

/* Takes a block of the device pool. A client that had a block before may still write to it. So such a block is used again
 * only for allocations of that client and for its fetches, which no other client gets, and never for memory that others than
 * its owner may see as a snapshot. What processes of an owner had to read is used again for what they are to read next. */
static struct pool_block *take_pooled(struct region *region, uint64_t client)
{
    bool own = is_allocation(region) || region->origin == REGION_RECEIVED;
    struct device_block_wish wish = {.device = region->device,
                                     .bytes = pool_pages_bytes(region->kind, region->bytes),
                                     .client = own ? client : 0,
                                     .owner = region->origin == REGION_WRITTEN ? &region->account->owner : NULL};

    if (account_waits_for(region->account, USAGE_DEVICE_BYTES, region->device) || !list_empty(&region->device->memory.awaiting))
        return NULL;
    return device_pool_take(&region->regions->device_pool, &wish);
}

/* Moves a pooled block to a region. Returns false if it must be zeroed, because it shows bytes of another owner, or because
 * the region is an allocation that must be zero. */
static bool adopt(struct region *region, struct pool_block *take_block)
{
    uint64_t client = take_block->client;
    bool shared = take_block->serves == POOL_SERVES_OWNER;
    bool known = client != 0 || owner_equal(&take_block->owner, &region->account->owner);

    region_adopt(region, take_block);
    region->reach.exposed_at = region->regions->caches.n_imports;
    region->reach.writable_outside = shared || client != 0;
    if (shared) {
        region->reach.exposure = REGION_SHARED;
        region->reach.one_audience = true;
        region->reach.audience = region->account->owner;
    } else if (client != 0) {
        region->reach.exported_to = client;
        /* An allocation is the client's to write in any case, so it may be put and shared like a new one. */
        region->reach.exposure = is_allocation(region) ? REGION_EXPOSED : REGION_BOUND;
    }
    return known && region->origin >= REGION_RECEIVED; /* all of it is about to be written */
}

enum rdt_status region_alloc_device(struct regions *regions, struct memory_kind *kind, const char *device_name, uint64_t bytes,
                                    enum region_origin origin, struct account *account, uint64_t client,
                                    struct region **region_p, region_ready on_ready, void *arg, struct rdt_error *err)
{
    struct memory_device *device;
    enum rdt_status status = find_device(kind, device_name, &device, err);

    return status == RDT_OK
               ? region_alloc_to_write(regions, device, bytes, NULL, origin, account, client, region_p, on_ready, arg, err)
               : status;
}

enum rdt_status region_alloc_to_write(struct regions *regions, struct memory_device *device, uint64_t bytes,
                                      const struct gaps *gaps, enum region_origin origin, struct account *account,
                                      uint64_t client, struct region **region_p, region_ready on_ready, void *arg,
                                      struct rdt_error *err)
{
    struct device_work *creation;
    struct pool_block *pooled;
    struct region *region;
    enum rdt_status status;

    if (!on_ready)
        return rdt_error_set(err, RDT_INTERNAL, "%s memory cannot be allocated in the loop", device->kind->name);
    if (bytes > device->memory.limit_bytes) /* so that no sum with it overflows */
        return no_room(device, bytes, err);
    status = region_new(regions, device->kind, device, bytes, origin, account, client, 1, &region, err);
    if (status != RDT_OK)
        return status;
    creation = work_new(on_ready, arg, err);
    if (!creation) {
        region_cancel(region);
        return RDT_NO_MEMORY;
    }
    pooled = take_pooled(region, client);
    if (pooled && adopt(region, pooled)) {
        free(creation);
        *region_p = region;
        return RDT_OK;
    }
    creation->reused = pooled;
    creation->to_write = region->unwritten = gaps && device->kind->ops.alloc_unzeroed;
    if (gaps)
        creation->gaps = *gaps;
    status = pooled ? RDT_OK : take_room(region, &creation->victims, err);
    if (status == RDT_OK)
        return start(creation, region);
    if (status == RDT_AGAIN)
        return await_room(creation, region);
    region_cancel(region);
    free(creation);
    return status;
}

void region_written(struct region *region)
{
    region->unwritten = false;
}

/* ---- importing ---- */

/* Copies an import, in one allocation with the arrays that it points to, and duplicates its descriptors. */
static struct rdt_import *import_copy(const struct rdt_import *import, struct region *region, struct rdt_error *err)
{
    size_t fds_bytes = import->n_fds * sizeof(int), chunks_bytes = import->n_fds * sizeof(uint64_t);
    struct rdt_import *copy = calloc(1, sizeof *copy + chunks_bytes + fds_bytes + import->handle_bytes);
    uint64_t *chunks = (uint64_t *)(copy + 1);
    int *fds;

    if (!copy) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for an import");
        return NULL;
    }
    fds = (int *)(chunks + import->n_fds);
    *copy = *import;
    copy->chunk_bytes = chunks;
    copy->fds = fds;
    copy->handle = fds + import->n_fds;
    if (chunks_bytes > 0 && import->chunk_bytes)
        memcpy(chunks, import->chunk_bytes, chunks_bytes);
    if (import->handle_bytes > 0)
        memcpy(fds + import->n_fds, import->handle, import->handle_bytes);
    for (copy->n_fds = 0; copy->n_fds < import->n_fds; copy->n_fds++) {
        fds[copy->n_fds] = fcntl(import->fds[copy->n_fds], F_DUPFD_CLOEXEC, 0);
        if (fds[copy->n_fds] < 0) {
            (void)rdt_error_sys(err, errno, "duplicating the descriptor of chunk %u of an import", copy->n_fds);
            import_free(copy, region);
            return NULL;
        }
    }
    return copy;
}

enum rdt_status region_check_import(const struct memory_kind *kind, const struct rdt_import *import, struct rdt_error *err)
{
    const struct handle_kind *handle = handle_kind(import->kind);

    if (!kind->ops.import)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot import", kind->name);
    if (import->kind == RDT_IMPORT_MEMFD)
        return rdt_error_set(err, RDT_INVALID, "%s memory is imported by chunks or by a handle, not by a memfd", kind->name);
    if (!handle)
        return rdt_error_set(err, RDT_INVALID, "rdtd knows no handles of kind %d", (int)import->kind);
    if (import->bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "cannot import 0 bytes");
    if (import->offset > UINT64_MAX - import->bytes)
        return rdt_error_set(err, RDT_INVALID, "the offset of the import is too large");
    return handle->check_import(import, err);
}

enum rdt_status region_import_device(struct regions *regions, const char *kind_name, const char *device_name,
                                     const struct rdt_import *import, struct account *account, uint64_t client,
                                     region_ready on_ready, void *arg, struct rdt_error *err)
{
    struct memory_device *device = NULL;
    struct device_work *creation;
    struct memory_kind *kind;
    struct region *region;
    struct rdt_error why = {0};
    enum rdt_status status = regions_find_kind(regions, kind_name, &kind, err);

    if (status == RDT_OK)
        status = region_check_import(kind, import, err);
    if (status == RDT_OK)
        status = find_device(kind, device_name, &device, err);
    if (status == RDT_OK)
        status =
            region_new(regions, kind, device, import->bytes, REGION_IMPORTED, account, client, import->n_fds, &region, err);
    if (status != RDT_OK)
        return status;
    region->reach.writable_outside = true;
    creation = work_new(on_ready, arg, &why);
    if (creation && (creation->import = import_copy(import, region, &why)))
        return start(creation, region);
    free(creation);
    region_end_empty(region);
    if (err)
        *err = why;
    return why.status;
}
