/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_alloc, rdt_import, rdt_dealloc and their variants. */
#include <fcntl.h>
#include <strings.h>
#include <sys/stat.h>

#include "alloc.h"
#include "client/call.h"
#include "client/options.h"
#include "client/session/clock.h"
#include "device.h"
#include "rdt.pb-c.h"

/* ---- memory of the daemon ---- */

enum rdt_status rdt_alloc(rdt *conn, size_t bytes, void **addr_p, struct rdt_error *err)
{
    return rdt_alloc_with(conn, bytes, NULL, addr_p, err);
}

enum rdt_status rdt_alloc_with(rdt *conn, size_t bytes, const struct rdt_alloc_options *options, void **addr_p,
                               struct rdt_error *err)
{
    struct rdt_alloc_options own;
    struct mapping *mapping;
    int64_t deadline_ns;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_copy(&own, sizeof own, options, err);
    if (status == RDT_OK && (bytes == 0 || !addr_p))
        status = rdt_error_set(err, RDT_INVALID, bytes == 0 ? "an allocation needs at least 1 byte" : "addr_p is NULL");
    if (status != RDT_OK)
        return status;
    if (own.call_timeout_ns != 0)
        deadline_ns = clock_deadline_ns(own.call_timeout_ns);
    else if (own.timeout_ns < 0 || own.timeout_ns > INT64_MAX - clock_default_ns(bytes))
        deadline_ns = CLOCK_NEVER;
    else /* after the wait for room the daemon needs time to create the pages */
        deadline_ns = clock_deadline_ns(own.timeout_ns + clock_default_ns(bytes));
    if (own.memory && strcasecmp(own.memory, "host") != 0)
        status = device_alloc(conn, bytes, &own, deadline_ns, &mapping, err);
    else
        status = alloc_region(conn, bytes, own.timeout_ns, deadline_ns, &mapping, NULL, err);
    if (status != RDT_OK)
        return status;

    connection_lock(conn);
    status = alloc_offer(conn, mapping, err);
    if (status == RDT_OK)
        *addr_p = mapping->addr;
    connection_unlock(conn);
    return status;
}

/* ---- the caller's memory ---- */

static enum rdt_status check_import(int fd, const void *addr, size_t bytes, struct rdt_error *err)
{
    struct stat st;
    int seals;

    if (!addr || bytes == 0)
        return rdt_error_set(err, RDT_INVALID, bytes == 0 ? "an import needs at least 1 byte" : "addr is NULL");
    if (bytes > UINTPTR_MAX - (uintptr_t)addr)
        return rdt_error_set(err, RDT_INVALID, "[%p, +%zu) is not a range of memory", addr, bytes);
    if (fstat(fd, &st) < 0)
        return rdt_error_set(err, RDT_INVALID, "fd %d is not open", fd);
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return rdt_error_set(err, RDT_INVALID, "fd %d is not a memfd", fd);
    if (!(seals & F_SEAL_SHRINK))
        return rdt_error_set(err, RDT_INVALID, "the memfd %d may still shrink: fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) first",
                             fd);
    if ((uint64_t)st.st_size < bytes)
        return rdt_error_set(err, RDT_INVALID, "the memfd %d has %lld bytes, not %zu", fd, (long long)st.st_size, bytes);
    return RDT_OK;
}

enum rdt_status rdt_import(rdt *conn, int fd, void *addr, size_t bytes, struct rdt_error *err)
{
    Rdt__Pb__Import request = RDT__PB__IMPORT__INIT;
    ProtobufCMessage *answer;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = check_import(fd, addr, bytes, err);
    if (status == RDT_OK)
        status = alloc_check_unknown(conn, addr, bytes, err);
    if (status != RDT_OK)
        return status;
    request.kind = RDT__PB__REGION_KIND__REGION_KIND_MEMFD;
    request.bytes = bytes;
    status = call_fds(conn, RDT_MSG_IMPORT, &request.base, fd, clock_deadline_ns(clock_default_ns(bytes)), &answer, NULL, err);
    if (status != RDT_OK)
        return status;
    status = alloc_adopt(conn, (Rdt__Pb__RegionReply *)answer, addr, bytes, NULL, err);
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

/* Releases the region and waits for the answer, because the caller expects the mapping gone on return. The mapping is cached
 * before the request is sent, so that an ALLOC of another thread may be answered with the region at once. The reply says
 * whether the daemon caches the region too. */
static enum rdt_status release_region(rdt *conn, struct mapping *mapping, struct rdt_error *err)
{
    Rdt__Pb__ReleaseRegion request = RDT__PB__RELEASE_REGION__INIT;
    ProtobufCMessage *reply = NULL;
    bool kept = false;
    enum rdt_status status;
    uint64_t n_sockets;
    bool away;

    connection_lock(conn);
    n_sockets = conn->socket.n;
    away = conn->state != CONNECTION_UP; /* another thread may have dialled; the session is resumed without the region */
    request.region = mapping->region;
    request.keep_mapped = memory_may_cache(mapping, MAPPING_ALLOCATED);
    mapping->released = true;
    if (request.keep_mapped)
        memory_cache(&conn->memory, mapping);
    connection_unlock(conn);
    status = call(conn, RDT_MSG_RELEASE_REGION, &request.base, CALL_TIMEOUT_NS, &reply, err);
    if (status == RDT_OK) {
        kept = ((Rdt__Pb__RegionReleased *)reply)->keep_mapped;
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    connection_lock(conn);
    if (status == RDT_NOT_FOUND && (away || conn->socket.n != n_sockets))
        status = RDT_OK; /* the session was resumed meanwhile without the region, which ended it */
    if (!request.keep_mapped)
        memory_unref(&conn->memory, mapping);
    else if (!kept && status != RDT_TIMED_OUT && status != RDT_CANCELLED) /* then the late answer decides, see call.c */
        memory_uncache(&conn->memory, request.region);
    connection_unlock(conn);
    return status;
}

/* Makes the memory that begins at addr unknown to puts and fetch targets. The caller takes over its reference. */
static enum rdt_status withdraw(rdt *conn, const void *addr, struct mapping **mapping_p, struct rdt_error *err)
{
    struct mapping *mapping;
    enum rdt_status status = connection_check(conn, err);

    if (status != RDT_OK)
        return status;
    connection_lock(conn);
    mapping = memory_at(&conn->memory, (uintptr_t)addr, (uintptr_t)addr + 1);
    if (!mapping || mapping->addr != addr)
        status = rdt_error_set(err, RDT_INVALID, "%p is not the start of memory from rdt_alloc or rdt_import", addr);
    else
        memory_withdraw(&conn->memory, *mapping_p = mapping);
    connection_unlock(conn);
    return status;
}

enum rdt_status rdt_dealloc(rdt *conn, void *addr, struct rdt_error *err)
{
    struct mapping *mapping;
    enum rdt_status status = withdraw(conn, addr, &mapping, err);

    return status == RDT_OK ? release_region(conn, mapping, err) : status;
}

enum rdt_status rdt_dealloc_soon(rdt *conn, void *addr, struct rdt_error *err)
{
    struct mapping *mapping;
    enum rdt_status status = withdraw(conn, addr, &mapping, err);

    if (status != RDT_OK)
        return status;
    connection_lock(conn);
    alloc_release(conn, mapping);
    connection_unlock(conn);
    return RDT_OK;
}
