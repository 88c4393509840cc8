/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of this session: allocating them at the daemon, offering them by address, and releasing them. */
#include "alloc.h"

#include <stdlib.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "room.h"

/* ---- releasing ---- */

struct release { /* a RELEASE_REGION that the daemon has not answered yet */
    struct pending pending;
    struct mapping *mapping;
};

static void finish(rdt *conn, struct pending *pending)
{
    struct release *release = container_of(pending, struct release, pending);

    memory_unref(&conn->memory, release->mapping);
    free(release);
}

static void on_frame(rdt *conn, struct pending *pending, struct frame *frame)
{
    /* An error means that the daemon does not know the region, so it is released in that case too. */
    finish(conn, pending);
}

static void on_lost(rdt *conn, struct pending *pending, const struct rdt_error *why)
{
    finish(conn, pending);
}

/* RESUME has ended the region, unless it was sent before the release. */
static void on_resumed(rdt *conn, struct pending *pending)
{
    Rdt__Pb__ReleaseRegion request = RDT__PB__RELEASE_REGION__INIT;

    request.region = container_of(pending, struct release, pending)->mapping->region;
    (void)connection_send(conn, RDT_MSG_RELEASE_REGION, 0, &request.base, true, NULL);
    finish(conn, pending);
}

static const struct pending_ops release_ops = {on_frame, on_lost, on_resumed};

void alloc_release(rdt *conn, struct mapping *take_mapping)
{
    Rdt__Pb__ReleaseRegion request = RDT__PB__RELEASE_REGION__INIT;
    struct release *release = malloc(sizeof *release);
    uint64_t id = connection_id(conn);

    request.region = take_mapping->region;
    take_mapping->released = true;
    if (connection_send(conn, RDT_MSG_RELEASE_REGION, id, &request.base, true, NULL) != RDT_OK || !release) {
        memory_unref(&conn->memory, take_mapping);
        free(release);
        return;
    }
    release->pending.id = id;
    release->pending.ops = &release_ops;
    release->mapping = take_mapping;
    pending_add(&conn->calls.pending, &release->pending);
}

void alloc_on_region_gone(rdt *conn, struct frame *frame)
{
    Rdt__Pb__RegionGone *gone = rdt__pb__region_gone__unpack(NULL, frame->length, frame->payload);

    conn->memory.n_gones++;
    if (!gone)
        return; /* Without memory to read the message, the regions only stay mapped. */
    for (size_t i = 0; i < gone->n_regions; i++)
        memory_uncache(&conn->memory, gone->regions[i]);
    rdt__pb__region_gone__free_unpacked(gone, NULL);
}

void alloc_release_unmapped(rdt *conn, uint64_t region)
{
    Rdt__Pb__ReleaseRegion request = RDT__PB__RELEASE_REGION__INIT;

    request.region = region;
    connection_lock(conn);
    ids_remove(&conn->memory.unmapped, region);
    (void)connection_send(conn, RDT_MSG_RELEASE_REGION, 0, &request.base, true, NULL);
    connection_unlock(conn);
}

/* ---- new regions ---- */

/* AGAIN: the region is one that was cached, and is unmapped because the daemon has ended since it answered. n_sockets: when it
 * was asked. */
static enum rdt_status map_region(rdt *conn, const Rdt__Pb__RegionReply *reply, int fd, size_t bytes, uint64_t n_sockets,
                                  struct mapping **mapping_p, struct rdt_error *err)
{
    struct mapping *mapping = NULL;
    enum rdt_status status = RDT_OK;

    connection_lock(conn);
    if (fd < 0)
        mapping = memory_take_cached(&conn->memory, reply->region, reply->generation, MAPPING_ALLOCATED);
    if (fd < 0 && !mapping && (conn->state != CONNECTION_UP || conn->socket.n != n_sockets))
        status = RDT_AGAIN;
    else if ((fd < 0 && !mapping) || reply->bytes < bytes || reply->bytes > SIZE_MAX)
        status = rdt_error_set(err, RDT_PROTOCOL, "rdtd answered ALLOC of %zu bytes with %llu bytes and %s", bytes,
                               (unsigned long long)reply->bytes, fd < 0 ? "no fd" : "an fd");
    else if (!mapping)
        status = memory_map(&conn->memory, reply->region, reply->generation, fd, reply->bytes, true, MAPPING_ALLOCATED,
                            &mapping, err);
    if (status == RDT_OK) {
        ids_remove(&conn->memory.unmapped, reply->region);
        mapping->caching = reply->cacheable ? MAPPING_CACHEABLE : MAPPING_UNCACHED;
        *mapping_p = mapping;
    } else {
        memory_unref(&conn->memory, mapping);
    }
    connection_unlock(conn);
    return status;
}

static enum rdt_status try_alloc(rdt *conn, size_t bytes, int64_t room_ns, int64_t deadline_ns, struct mapping **mapping_p,
                                 int *fd_p, struct rdt_error *err)
{
    Rdt__Pb__Alloc request = RDT__PB__ALLOC__INIT;
    ProtobufCMessage *answer;
    Rdt__Pb__RegionReply *reply;
    struct rdt_error why = {0};
    enum rdt_status status;
    uint64_t n_sockets;
    int fd;

    connection_lock(conn);
    n_sockets = conn->socket.n;
    connection_unlock(conn);
    request.bytes = bytes;
    request.timeout_ns = room_ns;
    status = call_fds(conn, RDT_MSG_ALLOC, &request.base, -1, deadline_ns, &answer, &fd, err);
    if (status != RDT_OK)
        return status;
    reply = (Rdt__Pb__RegionReply *)answer;
    status = map_region(conn, reply, fd, bytes, n_sockets, mapping_p, &why);
    if (status != RDT_OK && room_make(conn, deadline_ns, &why))
        status = map_region(conn, reply, fd, bytes, n_sockets, mapping_p, &why);
    if (status != RDT_OK && err)
        *err = why;
    if (status == RDT_OK && fd_p)
        *fd_p = fd;
    else if (fd >= 0)
        (void)close(fd);
    if (status != RDT_OK)
        alloc_release_unmapped(conn, reply->region);
    rdt__pb__region_reply__free_unpacked(reply, NULL);
    return status;
}

enum rdt_status alloc_region(rdt *conn, size_t bytes, int64_t room_ns, int64_t deadline_ns, struct mapping **mapping_p,
                             int *fd_p, struct rdt_error *err)
{
    enum rdt_status status;

    do
        status = try_alloc(conn, bytes, room_ns, deadline_ns, mapping_p, fd_p, err);
    while (status == RDT_AGAIN);
    return status;
}

/* ---- offering by address ---- */

enum rdt_status alloc_check_unknown(rdt *conn, const void *addr, size_t bytes, struct rdt_error *err)
{
    struct mapping *other;
    enum rdt_status status = RDT_OK;

    connection_lock(conn);
    other = memory_at(&conn->memory, (uintptr_t)addr, (uintptr_t)addr + bytes);
    if (other)
        status = rdt_error_set(err, RDT_INVALID,
                               "[%p, +%zu) overlaps [%p, +%zu), which the daemon knows already: rdt_dealloc it first", addr,
                               bytes, (void *)other->addr, other->bytes);
    connection_unlock(conn);
    return status;
}

enum rdt_status alloc_adopt(rdt *conn, const Rdt__Pb__RegionReply *reply, void *addr, size_t bytes, struct mapper *mapper,
                            struct rdt_error *err)
{
    struct mapping *mapping;
    enum rdt_status status;

    connection_lock(conn);
    status = memory_adopt(&conn->memory, reply->region, reply->generation, addr, bytes, mapper, mapper ? reply->device : "",
                          &mapping, err);
    if (status == RDT_OK) {
        status = memory_offer(&conn->memory, mapping, err);
        if (status == RDT_OK)
            ids_remove(&conn->memory.unmapped, reply->region);
        else
            memory_unref(&conn->memory, mapping);
    }
    connection_unlock(conn);
    if (status != RDT_OK)
        alloc_release_unmapped(conn, reply->region);
    return status;
}

/* An import that overlaps a new mapping is stale: the caller unmapped it without rdt_dealloc, and the kernel has used its
 * address again. */
static void forget_stale_imports(rdt *conn, const struct mapping *fresh)
{
    uintptr_t lo = (uintptr_t)fresh->addr;
    struct mapping *stale;

    while ((stale = memory_at(&conn->memory, lo, lo + fresh->bytes)) && stale->origin == MAPPING_IMPORTED) {
        memory_withdraw(&conn->memory, stale);
        alloc_release(conn, stale);
    }
}

enum rdt_status alloc_offer(rdt *conn, struct mapping *take_mapping, struct rdt_error *err)
{
    enum rdt_status status;

    forget_stale_imports(conn, take_mapping);
    status = memory_offer(&conn->memory, take_mapping, err);
    if (status != RDT_OK)
        alloc_release(conn, take_mapping);
    return status;
}
