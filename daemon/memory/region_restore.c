/* SPDX-License-Identifier: Apache-2.0 */
/* Regions that outlast the daemon: what a later one must know of them, and how it has them again. Memory on a device outlasts
 * it if the daemon allocated it, and one descriptor stands for all of it. */
#include <fcntl.h>

#include "daemon/memory/region_impl.h"

static bool origin_lasts(const struct region *region)
{
    if (region->origin == REGION_IMPORTED || region->origin == REGION_FILE)
        return region_is_host(region);
    return region->origin <= REGION_SNAPSHOT || region->origin == REGION_COPY || region->origin == REGION_WRITTEN;
}

/* The one chunk of device memory. false: it has several, or a handle. */
static bool only_chunk(const struct region *region, int *fd_p, uint64_t *bytes_p)
{
    struct rdt_export exported;

    if (region_ask_export(region, &exported, NULL) != RDT_OK || exported.n_fds != 1 || exported.offset != 0)
        return false;
    *fd_p = exported.fds[0];
    *bytes_p = exported.chunk_bytes[0];
    return true;
}

int region_kept_fd(const struct region *region)
{
    uint64_t bytes;
    int fd = region->block.fd;

    if (!region->kind->ops.restore || region->exposure == REGION_PRIVATE || !origin_lasts(region) ||
        (!region_is_host(region) && !only_chunk(region, &fd, &bytes)))
        return -1;
    return fd;
}

/* The next daemon does not know whose replica it was, and nobody's writing can be awaited any more. */
static enum region_origin lasting_origin(enum region_origin origin)
{
    return origin == REGION_COPY ? REGION_SNAPSHOT : origin == REGION_WRITTEN ? REGION_ALLOCATED : origin;
}

struct region_image region_image(const struct region *region)
{
    struct region_image image = {.kind = region->kind->name,
                                 .device = region_device_uuid(region),
                                 .id = region->id,
                                 .bytes = region->bytes,
                                 .room = region->room,
                                 .offset = region->offset,
                                 .generation = region->generation,
                                 .client = region->client,
                                 .origin = lasting_origin(region->origin)};
    int fd;

    if (!region_is_host(region))
        (void)only_chunk(region, &fd, &image.chunk_bytes);
    return image;
}

/* Memory that a client created is a snapshot that cannot be written by anybody. */
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
        origin_ok = image->origin <= REGION_SNAPSHOT && image->origin != REGION_IMPORTED && image->offset == 0 &&
                    image->chunk_bytes >= image->room;
    if (image->id >= regions->next_id && origin_ok && image->bytes > 0 && image->room >= image->bytes)
        return RDT_OK;
    return rdt_error_set(err, RDT_INVALID, "the record of region %llu is wrong", (unsigned long long)image->id);
}

static enum rdt_status restore_block(struct region *region, const struct region_image *image, int take_fd,
                                     struct rdt_error *err)
{
    enum rdt_restore from = region_is_host(region) ? made_by(image, take_fd) : RDT_RESTORE_ALLOCATED;
    uint64_t bytes = image->origin == REGION_IMPORTED ? image->bytes : image->room;

    return region->kind->ops.restore(region->kind->instance, from, take_fd, image->offset,
                                     region_is_host(region) ? bytes : image->chunk_bytes, &region->block, err);
}

/* Clients of the earlier daemon may still have the memory, so it never serves anybody else. */
enum rdt_status region_restore(struct regions *regions, const struct region_image *image, int take_fd, struct account *account,
                               struct region **region_p, struct rdt_error *err)
{
    struct memory_device *device = NULL;
    struct memory_kind *kind;
    struct region *region;
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
    regions->next_id = image->id;
    status = region_new(regions, kind, device, image->bytes, image->origin, account, image->client, 1, &region, err);
    if (status != RDT_OK)
        return status;
    status = restore_block(region, image, take_fd, err);
    if (status != RDT_OK) {
        region_cancel(region);
        return status;
    }
    region->generation = image->generation;
    region->room = image->room;
    region->offset = image->offset;
    region->sealed = image->origin != REGION_IMPORTED && region->block.read_only;
    region->writable_outside = !region->sealed;
    region->exposure = REGION_SHARED;
    region->abandoned = true;
    if (device)
        device->memory.used_bytes += region->room;
    else if (region_is_charged(region))
        regions->bytes += region->room;
    *region_p = region;
    return RDT_OK;
}
