/* SPDX-License-Identifier: Apache-2.0 */
/* Regions that survive the daemon: what the next daemon must know about them, and how it restores them. Device memory that the
 * daemon allocated survives if one descriptor stands for all of it; memory that a client imported is imported again. */
#include <fcntl.h>
#include <unistd.h>

#include "daemon/memory/region_impl.h"

static bool origin_lasts(const struct region *region)
{
    if (region->origin == REGION_FILE)
        return region_is_host(region);
    return region->origin <= REGION_SNAPSHOT || region->origin == REGION_REPLICA || region->origin == REGION_WRITTEN;
}

static bool is_imported_device(const struct region *region)
{
    return region->origin == REGION_IMPORTED && !region_is_host(region);
}

static bool is_one_chunk(const struct rdt_export *exported)
{
    return exported->kind == RDT_IMPORT_VMM && exported->n_fds == 1 && exported->offset == 0;
}

bool region_kept_fds(const struct region *region, const int **fds_p, uint32_t *n_p)
{
    struct rdt_export exported;

    if (!region->kind->ops.restore || region->reach.exposure == REGION_PRIVATE || !origin_lasts(region))
        return false;
    if (region_is_host(region)) {
        *fds_p = &region->block.fd;
        *n_p = 1;
        return region->block.fd >= 0;
    }
    if (region_ask_export(region, &exported, NULL) != RDT_OK || (region->origin != REGION_IMPORTED && !is_one_chunk(&exported)))
        return false;
    *fds_p = exported.fds;
    *n_p = exported.n_fds;
    return true;
}

/* The next daemon does not know whose replica it was, and nobody's writing can be awaited any more. */
static enum region_origin lasting_origin(enum region_origin origin)
{
    return origin == REGION_REPLICA ? REGION_SNAPSHOT : origin == REGION_WRITTEN ? REGION_ALLOCATED : origin;
}

struct region_image region_image(const struct region *region)
{
    struct region_image image = {.kind = region->kind->name,
                                 .device = region_device_uuid(region),
                                 .id = region->id,
                                 .bytes = region->bytes,
                                 .room = region->room,
                                 .offset = region->imported.offset,
                                 .generation = region->generation,
                                 .client = region->client,
                                 .creator = region->creator,
                                 .origin = lasting_origin(region->origin)};

    if (!region_is_host(region))
        (void)region_ask_export(region, &image.exported, NULL);
    return image;
}

/* An older daemon took snapshots in memory that a client had created and sealed: nobody can write it. */
static enum rdt_restore made_by(const struct region_image *image, int fd)
{
    int flags = fcntl(fd, F_GETFL);

    if (image->origin == REGION_IMPORTED)
        return RDT_RESTORE_IMPORTED;
    if (image->origin == REGION_FILE)
        return RDT_RESTORE_FILE;
    return image->origin == REGION_SNAPSHOT && (flags & O_ACCMODE) == O_RDONLY ? RDT_RESTORE_TAKEN : RDT_RESTORE_ALLOCATED;
}

static enum rdt_status check_image(const struct regions *regions, const struct region_image *image, bool on_device,
                                   struct rdt_error *err)
{
    bool origin_ok = image->origin <= REGION_SNAPSHOT || image->origin == REGION_FILE;

    if (on_device)
        origin_ok = image->origin == REGION_IMPORTED || (image->origin <= REGION_SNAPSHOT && is_one_chunk(&image->exported) &&
                                                         image->exported.chunk_bytes[0] >= image->room);
    if (!index_get(&regions->by_id, image->id) && origin_ok && image->bytes > 0 && image->room >= image->bytes)
        return RDT_OK;
    return rdt_error_set(err, RDT_INVALID, "the record of region %llu is invalid", (unsigned long long)image->id);
}

/* The plug-in duplicates what it needs of the descriptors. */
static enum rdt_status import_again(struct region *region, const struct region_image *image, const int *fds, uint32_t n_fds,
                                    struct rdt_error *err)
{
    const struct rdt_memory_ops *ops = &region->kind->ops;
    void *instance = region->kind->instance;
    const struct rdt_import import = {.kind = image->exported.kind,
                                      .bytes = image->bytes,
                                      .offset = image->exported.offset,
                                      .fds = fds,
                                      .n_fds = n_fds,
                                      .chunk_bytes = image->exported.chunk_bytes,
                                      .handle = image->exported.handle,
                                      .handle_bytes = image->exported.handle_bytes};
    enum rdt_status status = region_check_import(region->kind, &import, err);

    if (status == RDT_OK)
        status = ops->import(instance, region->device->uuid, &import, &region->block, err);
    if (status != RDT_OK)
        return status;
    status = ops->map(instance, &region->block, true, err);
    if (status != RDT_OK)
        ops->free(instance, &region->block);
    return status;
}

static enum rdt_status restore_block(struct region *region, const struct region_image *image, const int *take_fds,
                                     uint32_t n_fds, struct rdt_error *err)
{
    const struct rdt_memory_ops *ops = &region->kind->ops;
    enum rdt_status status;

    if (n_fds != 1 && !is_imported_device(region))
        return rdt_error_set(err, RDT_INVALID, "the record of region %llu is invalid", (unsigned long long)image->id);
    if (region_is_host(region))
        return ops->restore(region->kind->instance, made_by(image, take_fds[0]), take_fds[0], image->offset,
                            image->origin == REGION_IMPORTED ? image->bytes : image->room, &region->block, err);
    if (!is_imported_device(region))
        return ops->restore(region->kind->instance, RDT_RESTORE_ALLOCATED, take_fds[0], 0, image->exported.chunk_bytes[0],
                            &region->block, err);
    status = import_again(region, image, take_fds, n_fds, err);
    for (uint32_t i = 0; status == RDT_OK && i < n_fds; i++)
        (void)close(take_fds[i]);
    return status;
}

/* Clients of the earlier daemon may still have the memory, so it never serves anybody else. */
enum rdt_status region_restore(struct regions *regions, const struct region_image *image, const int *take_fds, uint32_t n_fds,
                               struct account *account, struct region **region_p, struct rdt_error *err)
{
    struct memory_device *device = NULL;
    struct memory_kind *kind;
    struct region *region;
    uint64_t creator;
    enum rdt_status status = regions_find_kind(regions, image->kind, &kind, err);

    if (status != RDT_OK)
        return status;
    if (!kind->ops.restore)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot restore memory", kind->name);
    if (!memory_kind_is_host(kind) && !(device = memory_kind_device(kind, image->device, err)))
        return err ? err->status : RDT_UNSUPPORTED;
    status = check_image(regions, image, device, err);
    if (status != RDT_OK)
        return status;
    creator = image->creator ? image->creator : image->client; /* older daemons did not write it */
    ids_above(&regions->ids, image->id);
    regions->restored_id = image->id;
    status = region_new(regions, kind, device, image->bytes, image->origin, account, creator, n_fds, &region, err);
    regions->restored_id = 0;
    if (status != RDT_OK)
        return status;
    status = restore_block(region, image, take_fds, n_fds, err);
    if (status != RDT_OK) {
        region_cancel(region);
        return status;
    }
    region->generation = image->generation;
    region->client = image->client;
    region->room = image->room;
    region->imported.offset = device ? 0 : image->offset;
    region->reach.seal = image->origin != REGION_IMPORTED && region->block.read_only ? REGION_SEALED : REGION_UNSEALED;
    region->reach.writable_outside = !region_is_sealed(region);
    region->reach.exposure = REGION_SHARED;
    region->reach.abandoned = true;
    if (device && region_is_charged(region))
        device->memory.used_bytes += region->room;
    else if (region_is_charged(region))
        regions->bytes += region->room;
    *region_p = region;
    return RDT_OK;
}
