/* SPDX-License-Identifier: Apache-2.0 */
/* Who can reach a region's memory: the daemon by an address, clients by a descriptor or a handle. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "daemon/memory/handle.h"
#include "daemon/memory/region_cache.h"
#include "daemon/memory/region_file.h"
#include "daemon/memory/region_impl.h"

/* ---- the daemon ---- */

uint8_t *region_addr(struct region *region, struct rdt_error *err)
{
    uint8_t *addr = region_map(region, err);

    if (addr && region->origin == REGION_FILE)
        region_file_read_ahead(region);
    return addr;
}

enum rdt_status region_check(const struct region *region, struct rdt_error *err)
{
    if (!sigbus_guard_is_broken(region->guard))
        return RDT_OK;
    if (region->origin == REGION_FILE)
        return rdt_error_set(err, RDT_SYSTEM,
                             "region %llu of uid %u is a stored file that could not be read: the disk failed, or somebody "
                             "shortened the file",
                             (unsigned long long)region->id, region->account->owner.uid);
    return rdt_error_set(err, RDT_SYSTEM,
                         "region %llu of uid %u (client %llu) has lost pages: a hole was punched in its memory, and the "
                         "system has no page to fill it",
                         (unsigned long long)region->id, region->account->owner.uid, (unsigned long long)region->creator);
}

/* ---- which clients ---- */

void region_expose(struct region *region, uint64_t client)
{
    const struct region_cache *cache = client != 0 ? map_get_u64(&region->regions->caches.clients, client) : NULL;

    if (region->reach.exposure < REGION_EXPOSED) {
        region->reach.exposed_at = region->regions->caches.n_imports;
        region->reach.one_audience = cache;
        if (cache)
            region->reach.audience = cache->owner;
    } else if (!cache || !owner_equal(&region->reach.audience, &cache->owner)) {
        region->reach.one_audience = false;
    }
    if (region->reach.exposure < REGION_EXPOSED && client != 0) {
        region->reach.exposure = REGION_EXPOSED;
        region->reach.exported_to = client;
    } else if (client == 0 || region->reach.exported_to != client) {
        region->reach.exposure = REGION_SHARED;
    }
}

/* Memory that a client had before it was reused is exported to no other client, and memory that shows bytes of others to
 * none. */
static enum rdt_status check_reach(const struct region *region, uint64_t client, struct rdt_error *err)
{
    if (region->unwritten)
        return rdt_error_set(err, RDT_INTERNAL, "region %llu has not been written yet, and must not be passed to a client",
                             (unsigned long long)region->id);
    if (region->reach.exposure != REGION_BOUND || region->reach.exported_to == client)
        return RDT_OK;
    return rdt_error_set(err, RDT_INTERNAL,
                         "region %llu has memory that client %llu had before, and must not be passed to another client",
                         (unsigned long long)region->id, (unsigned long long)region->reach.exported_to);
}

/* ---- descriptors of host memory ---- */

enum rdt_status region_seal(struct region *region, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    if (region_is_sealed(region))
        return RDT_OK;
    if (!region->kind->ops.seal)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot be sealed", region->kind->name);
    status = region->kind->ops.seal(region->kind->instance, &region->block, false, err);
    if (status == RDT_OK)
        region->reach.seal = region->block.addr ? REGION_REFILLABLE : REGION_SEALED; /* it stays mapped as it is */
    return status;
}

enum rdt_status region_export_to(struct region *region, uint64_t client, bool writable, int *fd_p, struct rdt_error *err)
{
    enum rdt_status status = check_reach(region, client, err);

    if (status != RDT_OK)
        return status;
    if (!region->kind->ops.share)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot be shared", region->kind->name);
    /* A snapshot is sealed no earlier than this, because sealed memory cannot be pooled. */
    if (region->origin == REGION_SNAPSHOT || region->origin == REGION_REPLICA)
        status = region_seal(region, err);
    if (status == RDT_OK)
        status = region->kind->ops.share(region->kind->instance, &region->block, writable, fd_p, err);
    if (status != RDT_OK)
        return status;
    if (region->origin == REGION_FILE)
        region_file_read_ahead(region);
    region->reach.writable_outside |= writable;
    region_expose(region, client);
    return RDT_OK;
}

/* ---- descriptors and handles of device memory ---- */

enum rdt_status region_ask_export(const struct region *region, struct rdt_export *export_p, struct rdt_error *err)
{
    const struct handle_kind *handle;
    enum rdt_status status;

    memset(export_p, 0, sizeof *export_p);
    status = region->kind->ops.export_block(region->kind->instance, &region->block, export_p, err);
    if (status != RDT_OK)
        return status;
    handle = handle_kind(export_p->kind);
    if (!handle || !handle->check_export(export_p))
        return rdt_error_set(err, RDT_INTERNAL, "memory kind %s exports neither chunks nor a handle", region->kind->name);
    if (!handle->in_chunks)
        export_p->n_fds = 0;
    return RDT_OK;
}

enum rdt_status region_share_fds(struct region *region, unsigned *n_p, struct rdt_error *err)
{
    struct rdt_export exported;
    enum rdt_status status = region_ask_export(region, &exported, err);

    if (status == RDT_OK)
        *n_p = exported.n_fds;
    return status;
}

enum rdt_status region_share(struct region *region, uint64_t client, struct region_share *share_p, int *fds_p, unsigned room,
                             unsigned *n_p, struct rdt_error *err)
{
    Rdt__Pb__Share *message = &share_p->message;
    struct rdt_export exported;
    unsigned n = 0;
    enum rdt_status status = check_reach(region, client, err);

    if (status == RDT_OK)
        status = region_ask_export(region, &exported, err);
    if (status == RDT_OK && exported.n_fds > room)
        status =
            rdt_error_set(err, RDT_LIMIT, "region %llu is made of %u chunks, and the answer has room for %u file descriptors",
                          (unsigned long long)region->id, exported.n_fds, room);
    for (; status == RDT_OK && n < exported.n_fds; n++) {
        fds_p[n] = fcntl(exported.fds[n], F_DUPFD_CLOEXEC, 0);
        if (fds_p[n] < 0)
            status = rdt_error_sys(err, errno, "duplicating a descriptor of %s memory", region->kind->name);
    }
    if (status != RDT_OK) {
        while (n > 0)
            if (fds_p[--n] >= 0)
                (void)close(fds_p[n]);
        return status;
    }
    rdt__pb__share__init(message);
    message->memory = (char *)region->kind->name;
    message->device = region->device->uuid;
    message->kind = (Rdt__Pb__RegionKind)exported.kind;
    message->offset = exported.offset;
    handle_kind(exported.kind)->show(&exported, share_p);
    region->reach.writable_outside = true;
    region_expose(region, client);
    *n_p = n;
    return RDT_OK;
}
