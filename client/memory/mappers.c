/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_map_by, and mapping by mappers what the daemon shares. */
#include "mappers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/options.h"
#include "proto/wire_limits.h"

/* Copies the names of the devices that the mapper lists. */
static enum rdt_status copy_devices(struct mapper *mapper, struct rdt_error *err)
{
    const struct rdt_mapper *ops = &mapper->ops;
    enum rdt_status status = RDT_OK;

    if (ops->n_devices == 0)
        return RDT_OK;
    mapper->devices = calloc(ops->n_devices, sizeof *mapper->devices);
    if (!mapper->devices)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a mapper");
    for (size_t i = 0; i < ops->n_devices && status == RDT_OK; i++) {
        status = options_check_text(ops->devices[i], 64, "the name of a device", err);
        if (status == RDT_OK && (!ops->devices[i] || strchr(ops->devices[i], ' ')))
            status = rdt_error_set(err, RDT_INVALID, "device %zu of the mapper has no name, or one with a space", i);
        if (status == RDT_OK)
            (void)snprintf(mapper->devices[i], sizeof mapper->devices[i], "%s:%s", mapper->memory, ops->devices[i]);
    }
    return status;
}

enum rdt_status rdt_map_by(rdt *conn, const struct rdt_mapper *given, struct rdt_error *err)
{
    struct rdt_mapper ops;
    struct mapper *mapper;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && !given)
        status = rdt_error_set(err, RDT_INVALID, "mapper is NULL");
    if (status == RDT_OK)
        status = options_copy(&ops, sizeof ops, given, err);
    if (status == RDT_OK && (!ops.memory || !ops.map || !ops.unmap))
        status = rdt_error_set(err, RDT_INVALID, "a mapper needs memory, map and unmap");
    if (status == RDT_OK && (ops.n_devices > MAPPER_MAX_DEVICES || (ops.n_devices > 0 && !ops.devices)))
        status = rdt_error_set(err, RDT_INVALID, "a mapper lists 0 to %u devices, not %zu", MAPPER_MAX_DEVICES, ops.n_devices);
    if (status == RDT_OK)
        status = options_check_text(ops.memory, RDT_MAX_NAME_BYTES < 32 ? RDT_MAX_NAME_BYTES : 32, "memory", err);
    if (status == RDT_OK && strcasecmp(ops.memory, "host") == 0)
        status = rdt_error_set(err, RDT_EXISTS, "host memory needs no mapper");
    if (status != RDT_OK)
        return status;
    mapper = calloc(1, sizeof *mapper);
    if (!mapper)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a mapper");
    mapper->ops = ops;
    (void)snprintf(mapper->memory, sizeof mapper->memory, "%s", ops.memory);
    mapper->ops.memory = mapper->memory;
    status = copy_devices(mapper, err);
    mapper->ops.devices = NULL;
    if (status != RDT_OK) {
        free(mapper->devices);
        free(mapper);
        return status;
    }
    connection_lock(conn);
    if (memory_mapper(&conn->memory, mapper->memory)) {
        status = rdt_error_set(err, RDT_EXISTS, "%s memory has a mapper already", mapper->memory);
        free(mapper->devices);
        free(mapper);
    } else {
        mapper->next = conn->memory.mappers;
        conn->memory.mappers = mapper;
    }
    connection_unlock(conn);
    return status;
}

size_t mapper_kinds(const rdt *conn, char **names_p, size_t max)
{
    size_t n = 0;

    for (struct mapper *mapper = conn->memory.mappers; mapper && n < max; mapper = mapper->next)
        names_p[n++] = mapper->memory;
    return n;
}

/* Whether the device is the one that the fetch names. */
static bool is_named(const struct mapper *mapper, size_t i, const char *memory, const char *device)
{
    size_t kind = strlen(mapper->memory) + 1;

    return device[0] != '\0' && strcasecmp(memory, mapper->memory) == 0 && strcasecmp(mapper->devices[i] + kind, device) == 0;
}

/* The devices that the daemon may bring tensors to. */
static uint64_t usable(const struct mapper *mapper, const char *memory, const char *device)
{
    uint64_t all = mapper->ops.n_devices < 64 ? (UINT64_C(1) << mapper->ops.n_devices) - 1 : UINT64_MAX, used = mapper->told;
    size_t kind = strlen(mapper->memory) + 1;

    for (size_t i = 0; i < mapper->ops.n_devices && mapper->ops.uses; i++)
        if (!(used >> i & 1) &&
            (is_named(mapper, i, memory, device) || mapper->ops.uses(mapper->ops.arg, mapper->devices[i] + kind)))
            used |= UINT64_C(1) << i;
    return used ? used : all;
}

size_t mapper_devices(const rdt *conn, const char *memory, const char *device, char **names_p, size_t max)
{
    size_t n = 0;

    for (struct mapper *mapper = conn->memory.mappers; mapper; mapper = mapper->next) {
        uint64_t untold = usable(mapper, memory, device) & ~mapper->told;
        mapper->telling = 0;
        for (size_t i = 0; i < mapper->ops.n_devices && n < max; i++) {
            if (!(untold >> i & 1))
                continue;
            names_p[n++] = mapper->devices[i];
            mapper->telling |= UINT64_C(1) << i;
        }
    }
    return n;
}

void mapper_devices_told(const rdt *conn)
{
    for (struct mapper *mapper = conn->memory.mappers; mapper; mapper = mapper->next)
        mapper->told |= mapper->telling;
}

void mapper_devices_untold(const rdt *conn)
{
    for (struct mapper *mapper = conn->memory.mappers; mapper; mapper = mapper->next)
        mapper->told = mapper->telling = 0;
}

bool mapper_copies(const rdt *conn)
{
    bool all = conn->memory.mappers;

    for (const struct mapper *mapper = conn->memory.mappers; mapper; mapper = mapper->next)
        all = all && mapper->ops.copier;
    return all;
}

bool mapper_is_busy(const rdt *conn)
{
    for (const struct mapper *mapper = conn->memory.mappers; mapper; mapper = mapper->next)
        if (mapper->ops.busy && mapper->ops.busy(mapper->ops.arg, conn))
            return true;
    return false;
}

/* ---- what the daemon shares ---- */

enum rdt_status mapper_map_share(rdt *conn, uint64_t region, uint64_t generation, uint64_t bytes, const Rdt__Pb__Share *share,
                                 const int *fds, unsigned n_fds, enum mapping_origin origin, struct mapping **mapping_p,
                                 struct rdt_error *err)
{
    struct rdt_shared shared = {.struct_size = sizeof shared,
                                .memory = share->memory,
                                .device = share->device,
                                .kind = (enum rdt_shared_kind)share->kind,
                                .bytes = bytes,
                                .offset = share->offset,
                                .fds = fds,
                                .chunk_bytes = share->chunk_bytes,
                                .n_fds = n_fds,
                                .handle = share->handle.data,
                                .handle_bytes = share->handle.len};

    if (bytes == 0 || bytes > SIZE_MAX / 2 || share->n_chunk_bytes != n_fds)
        return rdt_error_set(err, RDT_PROTOCOL, "rdtd shares region %llu of %llu bytes with %u fds for %zu chunks",
                             (unsigned long long)region, (unsigned long long)bytes, n_fds, share->n_chunk_bytes);
    return memory_map_device(&conn->memory, region, generation, &shared, origin, mapping_p, err);
}
