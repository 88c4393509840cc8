/* Memory on devices: made, imported and given back on the work pool; shared by what its plug-in exports. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/memory/region_impl.h"

struct device_work {
    struct work work; /* first */
    struct region *region;
    region_ready on_ready;
    void *arg;
    struct rdt_import *import; /* NULL: an allocation, */
    bool kept;                 /* or a block that was kept */
    struct list victims;       /* struct pool_block that go first */
    struct list link;          /* device->memory.awaiting */
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

/* What a plug-in rounds up may wrap. */
static bool fits(const struct memory_device *device, uint64_t room, uint64_t taken)
{
    return room <= device->memory.limit_bytes && taken <= device->memory.limit_bytes - room;
}

/* The bytes of whoever has some there for good. */
static uint64_t taken_for_good(const struct memory_device *device)
{
    return device->memory.used_bytes - device->memory.pooled_bytes - device->memory.freeing_bytes;
}

/* There is room. If need be in place of what is kept: those blocks are victims then. */
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

/* AGAIN: not yet, but there is when what is on its way back has come. */
static enum rdt_status take_room(struct region *region, struct list *victims, struct rdt_error *err)
{
    struct memory_device *device = region->device;
    uint64_t room = pool_pages_bytes(region->kind, region->bytes);
    bool ever = room >= region->bytes && room <= device->memory.limit_bytes;

    if (ever && !account_waits_for(region->account, USAGE_DEVICE_BYTES, device)) {
        if (list_empty(&device->memory.awaiting) && fits(device, room, device->memory.used_bytes - device->memory.pooled_bytes)) {
            claim(region, room, victims);
            return RDT_OK;
        }
        if (fits(device, room, taken_for_good(device) + device->memory.awaiting_bytes))
            return RDT_AGAIN;
    }
    if (ever)
        account_node_is_full(region->account, USAGE_DEVICE_BYTES, device);
    return no_room(device, region->bytes, err);
}

/* ---- making ---- */

static enum rdt_status make(struct device_work *making)
{
    struct region *region = making->region;
    const struct rdt_memory_ops *ops = &region->kind->ops;
    void *instance = region->kind->instance;
    enum rdt_status status;

    if (making->kept) /* it shows somebody's bytes */
        return ops->zero(instance, &region->block, &making->err);
    region_free_victims(&making->victims);
    if (making->import)
        status = ops->import(instance, region->device->uuid, making->import, &region->block, &making->err);
    else
        status = ops->alloc(instance, region->device->uuid, region->room, &region->block, &making->err);
    if (status != RDT_OK)
        return status;
    status = ops->map(instance, &region->block, true, &making->err);
    if (status != RDT_OK)
        ops->free(instance, &region->block);
    return status;
}

static void run_make(struct work *work)
{
    struct device_work *making = (struct device_work *)work;

    making->status = make(making);
}

static void import_free(struct rdt_import *import, struct region *region)
{
    if (!import)
        return;
    for (uint32_t i = 0; i < import->n_fds; i++)
        owner_work_close_fd(region->regions->owner_work, import->fds[i], region->account);
    free(import);
}

static void done_make(struct work *work)
{
    struct device_work *making = (struct device_work *)work;
    struct region *region = making->region;

    import_free(making->import, region);
    if (making->status != RDT_OK) {
        rdt_error_prefix(&making->err, "%s device %s", region->kind->name, region->device->uuid);
        if (making->kept) {
            region_unlist(region);
            region_expose(region, 0); /* so that the block is not pooled again */
            region_retire(region, false, NULL);
        } else {
            region_end_empty(region);
        }
        making->on_ready(making->arg, NULL, &making->err);
    } else {
        making->on_ready(making->arg, region, NULL);
    }
    free(making);
}

static struct device_work *work_new(region_ready on_ready, void *arg, struct rdt_error *err)
{
    struct device_work *making = calloc(1, sizeof *making);

    if (!making) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for a region");
        return NULL;
    }
    list_init(&making->victims);
    list_init(&making->link);
    making->on_ready = on_ready;
    making->arg = arg;
    return making;
}

static enum rdt_status start(struct device_work *take_making, struct region *region)
{
    take_making->region = region;
    take_making->work = (struct work){.run = run_make, .done = done_make, .lane = region->client};
    work_submit(region->regions->pool, &take_making->work);
    return RDT_AGAIN;
}

/* ---- waiting for what is on its way ---- */

/* What is given back takes until the work pool has done it, and nobody is refused for that. */
static enum rdt_status await_room(struct device_work *take_making, struct region *region)
{
    take_making->region = region;
    region->room = pool_pages_bytes(region->kind, region->bytes);
    region->device->memory.awaiting_bytes += region->room;
    list_append(&region->device->memory.awaiting, &take_making->link);
    return RDT_AGAIN;
}

/* What it waited for went to somebody else. */
static void refuse(struct device_work *making)
{
    struct region *region = making->region;

    (void)no_room(region->device, region->bytes, &making->err);
    region->room = 0; /* so that none is given back */
    region_end_empty(region);
    making->on_ready(making->arg, NULL, &making->err);
    free(making);
}

void regions_admit_device(struct memory_device *device)
{
    while (!list_empty(&device->memory.awaiting)) {
        struct device_work *making = container_of(list_first(&device->memory.awaiting), struct device_work, link);
        uint64_t room = making->region->room;
        bool now = fits(device, room, device->memory.used_bytes - device->memory.pooled_bytes);

        if (!now && fits(device, room, taken_for_good(device)))
            return; /* more comes */
        list_remove(&making->link);
        device->memory.awaiting_bytes -= room;
        if (now) {
            claim(making->region, room, &making->victims);
            (void)start(making, making->region);
        } else {
            refuse(making);
        }
    }
}

/* ---- allocating ---- */

/* What the client may be given of its own it may write: who could never have had it is not shown such memory (REGION_RECEIVED only), and
 * what must not change is not put there. */
static struct pool_block *take_kept(struct region *region, uint64_t client)
{
    bool own = region->origin == REGION_ALLOCATED || region->origin == REGION_RECEIVED;
    struct device_block_wish wish = {region->device, pool_pages_bytes(region->kind, region->bytes), own ? client : 0};

    if (account_waits_for(region->account, USAGE_DEVICE_BYTES, region->device) || !list_empty(&region->device->memory.awaiting))
        return NULL;
    return device_pool_take(&region->regions->device_pool, &wish);
}

/* True: as it is it may be seen by whoever may see the region. */
static bool adopt(struct region *region, struct pool_block *take_block)
{
    uint64_t client = take_block->client;
    bool known = client != 0 || owner_equal(&take_block->owner, &region->account->owner);

    region_adopt(region, take_block);
    if (client != 0) {
        region->exported_to = client;
        region->writable_outside = true;
        /* memory that is the client's own to write anyway may be put and shown */
        region->exposure = region->origin == REGION_ALLOCATED ? REGION_EXPOSED : REGION_BOUND;
    }
    return known && region->origin >= REGION_RECEIVED; /* and all of it is about to be written */
}

enum rdt_status region_alloc_device(struct regions *regions, struct memory_kind *kind, const char *device_name, uint64_t bytes,
                                    enum region_origin origin, struct account *account, uint64_t client, struct region **region_p,
                                    region_ready on_ready, void *arg, struct rdt_error *err)
{
    struct rdt_error why = {0};
    struct memory_device *device = memory_kind_device(kind, device_name, &why);
    struct device_work *making;
    struct pool_block *kept;
    struct region *region;
    enum rdt_status status;

    if (!device || !on_ready) {
        if (err && !device)
            *err = why;
        return device ? rdt_error_set(err, RDT_INTERNAL, "%s memory is not there at once", kind->name) : why.status;
    }
    if (bytes > device->memory.limit_bytes) /* before any sum is made with it */
        return no_room(device, bytes, err);
    status = region_new(regions, kind, device, bytes, origin, account, client, 1, &region, err);
    if (status != RDT_OK)
        return status;
    making = work_new(on_ready, arg, err);
    if (!making) {
        region_cancel(region);
        return RDT_NO_MEMORY;
    }
    kept = take_kept(region, client);
    if (kept && adopt(region, kept)) {
        free(making);
        *region_p = region;
        return RDT_OK;
    }
    making->kept = kept;
    status = kept ? RDT_OK : take_room(region, &making->victims, err);
    if (status == RDT_OK)
        return start(making, region);
    if (status == RDT_AGAIN)
        return await_room(making, region);
    region_cancel(region);
    free(making);
    return status;
}

/* ---- importing ---- */

/* One allocation, with the columns it points to behind it. */
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
            (void)rdt_error_sys(err, errno, "taking over chunk %u of an import", copy->n_fds);
            import_free(copy, region);
            return NULL;
        }
    }
    return copy;
}

static enum rdt_status check_import(const struct memory_kind *kind, const struct rdt_import *import, struct rdt_error *err)
{
    uint64_t all = 0;

    if (!kind->ops.import)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot import", kind->name);
    if (import->kind != RDT_IMPORT_VMM && import->kind != RDT_IMPORT_LEGACY_IPC)
        return rdt_error_set(err, RDT_INVALID, "%s memory is imported by chunks or by a legacy handle, not by a memfd", kind->name);
    if (import->bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "cannot import 0 bytes");
    if (import->kind == RDT_IMPORT_LEGACY_IPC && import->n_fds > 0)
        return rdt_error_set(err, RDT_INVALID, "a legacy handle comes without chunks, not with %u", import->n_fds);
    if (import->kind == RDT_IMPORT_LEGACY_IPC && (import->handle_bytes == 0 || import->handle_bytes > RDT_EXPORT_HANDLE_BYTES))
        return rdt_error_set(err, RDT_INVALID, "a legacy handle has 1 to %u bytes, not %zu", RDT_EXPORT_HANDLE_BYTES,
                             import->handle_bytes);
    if (import->kind != RDT_IMPORT_VMM)
        return import->offset <= UINT64_MAX - import->bytes ? RDT_OK
                                                            : rdt_error_set(err, RDT_INVALID, "the offset of the import wraps");
    for (uint32_t i = 0; i < import->n_fds; i++)
        all = import->chunk_bytes[i] > UINT64_MAX - all ? UINT64_MAX : all + import->chunk_bytes[i];
    if (import->n_fds == 0 || import->offset > all || import->bytes > all - import->offset)
        return rdt_error_set(err, RDT_INVALID, "%llu bytes at offset %llu of %u chunks that have %llu",
                             (unsigned long long)import->bytes, (unsigned long long)import->offset, import->n_fds,
                             (unsigned long long)all);
    return RDT_OK;
}

enum rdt_status region_import_device(struct regions *regions, const char *kind_name, const char *device_name,
                                     const struct rdt_import *import, struct account *account, uint64_t client,
                                     region_ready on_ready, void *arg, struct rdt_error *err)
{
    struct memory_device *device = NULL;
    struct device_work *making;
    struct memory_kind *kind;
    struct region *region;
    struct rdt_error why = {0};
    enum rdt_status status = regions_find_kind(regions, kind_name, &kind, err);

    if (status == RDT_OK)
        status = check_import(kind, import, err);
    if (status != RDT_OK)
        return status;
    device = memory_kind_device(kind, device_name, &why);
    if (!device) {
        if (err)
            *err = why;
        return why.status;
    }
    status = region_new(regions, kind, device, import->bytes, REGION_IMPORTED, account, client, import->n_fds, &region, err);
    if (status != RDT_OK)
        return status;
    region->writable_outside = true;
    making = work_new(on_ready, arg, &why);
    if (making && (making->import = import_copy(import, region, &why)))
        return start(making, region);
    free(making);
    region_end_empty(region);
    if (err)
        *err = why;
    return why.status;
}
