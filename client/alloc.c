/* Regions of this session: new ones from the daemon, finding them by address, and giving them back. */
#include "alloc.h"

#include <stdlib.h>
#include <unistd.h>

#include "call.h"
#include "rdt.pb-c.h"

/* ---- giving back ---- */

struct giving_back {
    struct pending pending;
    struct mapping *mapping;
};

static void heard(rdt *conn, struct pending *pending)
{
    struct giving_back *giving = container_of(pending, struct giving_back, pending);

    memory_unref(&conn->memory, giving->mapping);
    free(giving);
}

static void on_frame(rdt *conn, struct pending *pending, struct frame *frame)
{
    (void)frame; /* an error says that the daemon does not have it: as good */
    heard(conn, pending);
}

static void on_lost(rdt *conn, struct pending *pending, const struct rdt_error *why)
{
    (void)why;
    heard(conn, pending);
}

static const struct pending_ops giving_ops = {on_frame, on_lost};

void alloc_give_back(rdt *conn, struct mapping *take_mapping)
{
    Rdt__Pb__ReleaseRegion request = RDT__PB__RELEASE_REGION__INIT;
    struct giving_back *giving = malloc(sizeof *giving);
    uint64_t id = connection_id(conn);

    request.region = take_mapping->region;
    if (connection_send(conn, RDT_MSG_RELEASE_REGION, id, &request.base, -1, true, NULL) != RDT_OK || !giving) {
        memory_unref(&conn->memory, take_mapping);
        free(giving);
        return;
    }
    giving->pending.id = id;
    giving->pending.ops = &giving_ops;
    giving->mapping = take_mapping;
    pending_add(&conn->pending, &giving->pending);
}

void alloc_on_gone(rdt *conn, struct frame *frame)
{
    Rdt__Pb__RegionGone *gone = rdt__pb__region_gone__unpack(NULL, frame->length, frame->payload);

    conn->memory.n_gones++;
    if (!gone)
        return; /* no memory: it stays mapped, and that is all */
    for (size_t i = 0; i < gone->n_regions; i++)
        memory_drop(&conn->memory, gone->regions[i]);
    rdt__pb__region_gone__free_unpacked(gone, NULL);
}

void alloc_release(rdt *conn, uint64_t region)
{
    Rdt__Pb__ReleaseRegion request = RDT__PB__RELEASE_REGION__INIT;

    request.region = region;
    connection_lock(conn);
    (void)connection_send(conn, RDT_MSG_RELEASE_REGION, 0, &request.base, -1, true, NULL);
    connection_unlock(conn);
}

/* ---- new regions ---- */

static enum rdt_status map_region(rdt *conn, const Rdt__Pb__RegionReply *reply, int fd, size_t bytes,
                                  struct mapping **mapping_p, struct rdt_error *err)
{
    struct mapping *mapping = NULL;
    enum rdt_status status = RDT_OK;

    connection_lock(conn);
    if (fd < 0)
        mapping = memory_unpark(&conn->memory, reply->region, reply->generation, MAPPING_ALLOCATED);
    if ((fd < 0 && !mapping) || reply->bytes < bytes || reply->bytes > SIZE_MAX)
        status = rdt_error_set(err, RDT_PROTOCOL, "rdtd answered ALLOC of %zu bytes with %llu bytes and %s", bytes,
                               (unsigned long long)reply->bytes, fd < 0 ? "no fd" : "a fd");
    else if (!mapping)
        status = memory_map(&conn->memory, reply->region, reply->generation, fd, reply->bytes, true, MAPPING_ALLOCATED,
                            &mapping, err);
    if (status == RDT_OK) {
        mapping->cacheable = reply->cacheable;
        *mapping_p = mapping;
    } else {
        memory_unref(&conn->memory, mapping);
    }
    connection_unlock(conn);
    return status;
}

enum rdt_status alloc_region(rdt *conn, size_t bytes, int64_t room_ns, int64_t deadline_ns, struct mapping **mapping_p,
                             int *fd_p, struct rdt_error *err)
{
    Rdt__Pb__Alloc request = RDT__PB__ALLOC__INIT;
    ProtobufCMessage *answer;
    Rdt__Pb__RegionReply *reply;
    enum rdt_status status;
    int fd;

    request.bytes = bytes;
    request.timeout_ns = room_ns;
    status = call_fds(conn, RDT_MSG_ALLOC, &request.base, -1, deadline_ns, &answer, &fd, err);
    if (status != RDT_OK)
        return status;
    reply = (Rdt__Pb__RegionReply *)answer;
    status = map_region(conn, reply, fd, bytes, mapping_p, err);
    if (status == RDT_OK && fd_p)
        *fd_p = fd;
    else if (fd >= 0)
        (void)close(fd);
    if (status != RDT_OK)
        alloc_release(conn, reply->region);
    rdt__pb__region_reply__free_unpacked(reply, NULL);
    return status;
}

/* ---- finding them by address ---- */

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

/* Imported memory that the caller has unmapped without rdt_dealloc: the kernel has given its address anew. */
static void forget_stale_imports(rdt *conn, const struct mapping *fresh)
{
    uintptr_t lo = (uintptr_t)fresh->addr;
    struct mapping *stale;

    while ((stale = memory_at(&conn->memory, lo, lo + fresh->bytes)) && stale->origin == MAPPING_IMPORTED) {
        memory_withdraw(&conn->memory, stale);
        alloc_give_back(conn, stale);
    }
}

enum rdt_status alloc_offer(rdt *conn, struct mapping *take_mapping, struct rdt_error *err)
{
    enum rdt_status status;

    forget_stale_imports(conn, take_mapping);
    status = memory_offer(&conn->memory, take_mapping, err);
    if (status != RDT_OK)
        alloc_give_back(conn, take_mapping);
    return status;
}

