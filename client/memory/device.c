/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on devices: allocating and importing it, rdt_known, and the list of devices. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>

#include "client/call.h"
#include "client/memory/alloc.h"
#include "client/memory/mappers.h"
#include "client/options.h"
#include "client/session/clock.h"

#define MAX_HANDLE_BYTES 64u
#define MAX_CHUNKS 65536u

/* The mapper belongs to the connection. NULL: there is none, and *err says so. */
static struct mapper *find_mapper(rdt *conn, const char *kind, struct rdt_error *err)
{
    struct mapper *mapper;

    connection_lock(conn);
    mapper = memory_mapper(&conn->memory, kind);
    connection_unlock(conn);
    if (!mapper)
        (void)rdt_error_set(err, RDT_UNSUPPORTED,
                            "this process has no mapper for \"%.32s\" memory: register one with rdt_map_by", kind);
    return mapper;
}

enum rdt_status device_alloc(rdt *conn, size_t bytes, const struct rdt_alloc_options *options, int64_t deadline_ns,
                             struct mapping **mapping_p, struct rdt_error *err)
{
    Rdt__Pb__Alloc request = RDT__PB__ALLOC__INIT;
    Rdt__Pb__RegionReply *reply;
    ProtobufCMessage *answer;
    struct call_got got;
    struct mapper *mapper;
    enum rdt_status status;

    mapper = find_mapper(conn, options->memory, err);
    if (!mapper)
        return RDT_UNSUPPORTED;
    request.memory = mapper->memory;
    request.device = (char *)(options->device ? options->device : "");
    request.bytes = bytes;
    request.timeout_ns = options->timeout_ns;
    request.written_whole = options->written_whole;
    status = call_many(conn, RDT_MSG_ALLOC, &request.base, NULL, 0, deadline_ns, &answer, &got, err);
    if (status != RDT_OK)
        return status;
    reply = (Rdt__Pb__RegionReply *)answer;
    if (!reply->share || reply->bytes < bytes) {
        status =
            rdt_error_set(err, RDT_PROTOCOL, "rdtd answered ALLOC of %zu bytes of %s memory with %llu bytes of another kind",
                          bytes, mapper->memory, (unsigned long long)reply->bytes);
    } else {
        connection_lock(conn);
        status = mapper_map_share(conn, reply->region, reply->generation, reply->bytes, reply->share, got.fds, got.n_fds,
                                  MAPPING_ALLOCATED, mapping_p, err);
        if (status == RDT_OK)
            ids_remove(&conn->memory.unmapped, reply->region);
        connection_unlock(conn);
    }
    call_got_close(&got);
    if (status != RDT_OK)
        alloc_release_unmapped(conn, reply->region);
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

/* ---- the caller's memory ---- */

/* Which kind of handle needs chunks and which one bytes is the daemon's to say: librdt sends whichever there is. */
static enum rdt_status check_shared(const struct rdt_shared *shared, const void *addr, struct rdt_error *err)
{
    uint64_t all = 0;

    if (!addr || shared->bytes == 0 || shared->bytes > UINTPTR_MAX - (uintptr_t)addr)
        return rdt_error_set(err, RDT_INVALID, "[%p, +%llu) is not a range of memory", addr, (unsigned long long)shared->bytes);
    if (!shared->memory || shared->kind == RDT_SHARED_MEMFD || (shared->n_fds > 0) == (shared->handle_bytes > 0))
        return rdt_error_set(err, RDT_INVALID, "memory on a device is imported either as chunks or by a handle");
    if (shared->n_fds == 0)
        return shared->handle && shared->handle_bytes <= MAX_HANDLE_BYTES
                   ? RDT_OK
                   : rdt_error_set(err, RDT_INVALID, "a handle has 1 to %u bytes, not %zu", MAX_HANDLE_BYTES,
                                   shared->handle_bytes);
    if (!shared->fds || !shared->chunk_bytes || shared->n_fds > MAX_CHUNKS)
        return rdt_error_set(err, RDT_INVALID, "there are %zu chunks: give 1 to %u, each with an fd and its bytes",
                             shared->n_fds, MAX_CHUNKS);
    for (size_t i = 0; i < shared->n_fds; i++)
        all = shared->chunk_bytes[i] > UINT64_MAX - all ? UINT64_MAX : all + shared->chunk_bytes[i];
    if (shared->offset > all || shared->bytes > all - shared->offset)
        return rdt_error_set(err, RDT_INVALID, "%llu bytes at offset %llu do not fit into chunks of %llu bytes",
                             (unsigned long long)shared->bytes, (unsigned long long)shared->offset, (unsigned long long)all);
    return RDT_OK;
}

static void fill_request(Rdt__Pb__Import *request, const struct rdt_shared *shared)
{
    *request = (Rdt__Pb__Import)RDT__PB__IMPORT__INIT;
    request->memory = (char *)shared->memory;
    request->device = (char *)(shared->device ? shared->device : "");
    request->kind = (Rdt__Pb__RegionKind)shared->kind;
    request->bytes = shared->bytes;
    request->offset = shared->offset;
    if (shared->n_fds == 0)
        request->handle = (ProtobufCBinaryData){shared->handle_bytes, (uint8_t *)(uintptr_t)shared->handle};
}

/* Sends the chunks in as many messages as it takes. The last one is answered with the region. */
static enum rdt_status send_chunks(rdt *conn, const struct rdt_shared *shared, uint64_t number, int64_t deadline_ns,
                                   ProtobufCMessage **answer_p, struct rdt_error *err)
{
    Rdt__Pb__Import request;
    size_t sent = 0;
    enum rdt_status status;
    struct call_got got;

    fill_request(&request, shared);
    request.number = number;
    for (;;) {
        unsigned n = shared->n_fds - sent < RDT_MAX_FRAME_FDS ? (unsigned)(shared->n_fds - sent) : RDT_MAX_FRAME_FDS;

        request.more = sent + n < shared->n_fds;
        request.first_chunk = (uint32_t)sent;
        request.chunk_bytes = n > 0 ? (uint64_t *)(uintptr_t)(shared->chunk_bytes + sent) : NULL;
        request.n_chunk_bytes = n;
        status = call_many(conn, RDT_MSG_IMPORT, &request.base, n > 0 ? shared->fds + sent : NULL, n, deadline_ns, answer_p,
                           &got, err);
        if (status != RDT_OK)
            return status;
        call_got_close(&got);
        sent += n;
        if (!request.more)
            return RDT_OK;
        protobuf_c_message_free_unpacked(*answer_p, NULL);
    }
}

/* Makes the daemon drop the chunks that it has received so far, because the rest will not come. */
static void drop_chunks(rdt *conn, const struct rdt_shared *shared)
{
    Rdt__Pb__Import request = RDT__PB__IMPORT__INIT;

    request.memory = (char *)shared->memory;
    request.device = (char *)(shared->device ? shared->device : "");
    request.kind = (Rdt__Pb__RegionKind)shared->kind;
    request.more = true;
    connection_lock(conn);
    (void)connection_send(conn, RDT_MSG_IMPORT, 0, &request.base, true, NULL);
    connection_unlock(conn);
}

/* The daemon gathers the chunks of only one import of a client at a time. The next import waits here until its own
 * deadline. */
static enum rdt_status begin_chunks(rdt *conn, int64_t deadline_ns, uint64_t *number_p, uint64_t *n_sockets_p,
                                    struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    connection_lock(conn);
    while (conn->imports.under_way && !connection_has_ended(conn) && status == RDT_OK)
        status = connection_step(conn, deadline_ns);
    if (connection_has_ended(conn))
        status = connection_lost_error(conn, err);
    else if (conn->imports.under_way && status == RDT_CANCELLED)
        status = rdt_error_set(err, RDT_CANCELLED, "the import was interrupted while it waited for another one");
    else if (conn->imports.under_way)
        status = rdt_error_set(err, RDT_TIMED_OUT, "another import of more than %u chunks did not end before the deadline",
                               RDT_MAX_FRAME_FDS);
    else
        status = RDT_OK;
    if (status == RDT_OK) {
        conn->imports.under_way = true;
        *number_p = ++conn->imports.n;
        *n_sockets_p = conn->socket.n;
    }
    connection_unlock(conn);
    return status;
}

/* Returns true if another daemon has gone on with the session since begin_chunks: it knows none of the chunks before. */
static bool end_chunks(rdt *conn, uint64_t n_sockets)
{
    bool moved;

    connection_lock(conn);
    moved = conn->socket.n != n_sockets && !connection_has_ended(conn);
    conn->imports.under_way = false;
    connection_notify(conn);
    connection_unlock(conn);
    return moved;
}

static enum rdt_status send_import(rdt *conn, const struct rdt_shared *shared, ProtobufCMessage **answer_p,
                                   struct rdt_error *err)
{
    int64_t deadline_ns = clock_deadline_ns(shared->timeout_ns ? shared->timeout_ns : clock_default_ns(shared->bytes));
    uint64_t number, n_sockets;
    enum rdt_status status;
    bool again;

    if (shared->n_fds <= RDT_MAX_FRAME_FDS)
        return send_chunks(conn, shared, 0, deadline_ns, answer_p, err);
    do {
        status = begin_chunks(conn, deadline_ns, &number, &n_sockets, err);
        if (status != RDT_OK)
            return status;
        status = send_chunks(conn, shared, number, deadline_ns, answer_p, err);
        if (status != RDT_OK)
            drop_chunks(conn, shared);
        again = end_chunks(conn, n_sockets) && status != RDT_OK && status != RDT_TIMED_OUT && status != RDT_CANCELLED;
    } while (again);
    return status;
}

enum rdt_status rdt_import_shared(rdt *conn, const struct rdt_shared *given, void *addr, struct rdt_error *err)
{
    struct rdt_shared shared;
    ProtobufCMessage *answer;
    struct mapper *mapper;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_copy(&shared, sizeof shared, given, err);
    if (status == RDT_OK)
        status = check_shared(&shared, addr, err);
    if (status == RDT_OK)
        status = alloc_check_unknown(conn, addr, shared.bytes, err);
    if (status != RDT_OK)
        return status;
    mapper = find_mapper(conn, shared.memory, err);
    if (!mapper)
        return RDT_UNSUPPORTED;
    status = send_import(conn, &shared, &answer, err);
    if (status != RDT_OK)
        return status;
    status = alloc_adopt(conn, (Rdt__Pb__RegionReply *)answer, addr, shared.bytes, mapper, err);
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

#define MOST_AT_ONCE 64u /* requests that the daemon has not answered */

struct importing { /* a range whose request is under way */
    Rdt__Pb__Import request;
    struct rdt_shared shared;
    struct mapper *mapper;
    struct waiting *waiting; /* NULL: none is under way */
    int64_t deadline_ns;
    size_t i;
};

static enum rdt_status import_begin(rdt *conn, const struct rdt_shared *given, void *addr, struct importing *importing,
                                    struct rdt_error *err)
{
    struct rdt_shared *shared = &importing->shared;
    enum rdt_status status = options_copy(shared, sizeof *shared, given, err);

    if (status == RDT_OK && shared->n_fds > RDT_MAX_FRAME_FDS)
        return rdt_import_shared(conn, given, addr, err);
    if (status == RDT_OK)
        status = check_shared(shared, addr, err);
    if (status == RDT_OK)
        status = alloc_check_unknown(conn, addr, shared->bytes, err);
    if (status != RDT_OK)
        return status;
    importing->mapper = find_mapper(conn, shared->memory, err);
    if (!importing->mapper)
        return RDT_UNSUPPORTED;
    importing->deadline_ns = clock_deadline_ns(shared->timeout_ns ? shared->timeout_ns : clock_default_ns(shared->bytes));
    fill_request(&importing->request, shared);
    importing->request.chunk_bytes = (uint64_t *)(uintptr_t)shared->chunk_bytes;
    importing->request.n_chunk_bytes = shared->n_fds;
    return call_begin(conn, RDT_MSG_IMPORT, &importing->request.base, shared->fds, (unsigned)shared->n_fds, 1,
                      &importing->waiting, err);
}

static enum rdt_status import_end(rdt *conn, struct importing *importing, void *addr, struct rdt_error *err)
{
    ProtobufCMessage *answer;
    enum rdt_status status = call_end(conn, importing->waiting, importing->deadline_ns, &answer, err);

    importing->waiting = NULL;
    if (status != RDT_OK)
        return status;
    status = alloc_adopt(conn, (Rdt__Pb__RegionReply *)answer, addr, importing->shared.bytes, importing->mapper, err);
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

static void note_status(enum rdt_status *status_p, enum rdt_status status, const struct rdt_error *why, enum rdt_status *first,
                        struct rdt_error *err)
{
    *status_p = status;
    if (status == RDT_OK || *first != RDT_OK)
        return;
    *first = status;
    if (err)
        *err = *why;
}

enum rdt_status rdt_import_shared_many(rdt *conn, const struct rdt_shared *const *shared, void *const *addrs, size_t n,
                                       enum rdt_status *statuses, struct rdt_error *err)
{
    struct importing *all;
    struct rdt_error why;
    enum rdt_status first = connection_check(conn, err);

    if (first == RDT_OK && n > 0 && (!shared || !addrs || !statuses))
        first = rdt_error_set(err, RDT_INVALID, "shared, addrs or statuses is NULL");
    if (first != RDT_OK)
        return first;
    all = calloc(MOST_AT_ONCE, sizeof *all);
    if (!all)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to import %zu ranges", n);
    for (size_t i = 0; i < n + MOST_AT_ONCE; i++) { /* ends range i - MOST_AT_ONCE, and begins range i */
        struct importing *importing = &all[i % MOST_AT_ONCE];

        if (importing->waiting)
            note_status(&statuses[importing->i], import_end(conn, importing, addrs[importing->i], &why), &why, &first, err);
        if (i >= n)
            continue;
        importing->i = i;
        note_status(&statuses[i], import_begin(conn, shared[i], addrs[i], importing, &why), &why, &first, err);
    }
    free(all);
    return first;
}

enum rdt_status rdt_known(rdt *conn, const void *addr, size_t bytes, bool *known_p, const char **memory_p,
                          const char **device_p, struct rdt_error *err)
{
    uintptr_t lo = (uintptr_t)addr, hi = lo + (bytes ? bytes : 1);
    const struct mapping *mapping;
    enum rdt_status status = connection_check(conn, err);

    if (status != RDT_OK)
        return status;
    if (!known_p || hi < lo)
        return rdt_error_set(err, RDT_INVALID, "%s", known_p ? "the range wraps around" : "known_p is NULL");
    connection_lock(conn);
    mapping = memory_at(&conn->memory, lo, hi);
    if (mapping && (lo < (uintptr_t)mapping->addr || hi > (uintptr_t)mapping->addr + mapping->bytes))
        status = rdt_error_set(err, RDT_INVALID, "[%p, +%zu) lies partly in [%p, +%zu), partly outside", addr, bytes,
                               (void *)mapping->addr, mapping->bytes);
    if (status == RDT_OK) {
        *known_p = mapping;
        if (mapping && memory_p)
            *memory_p = mapping->mapper ? mapping->mapper->memory : "host";
        if (mapping && device_p)
            *device_p = mapping->device;
    }
    connection_unlock(conn);
    return status;
}

/* ---- the daemon's devices ---- */

static void copy_text(char *to, size_t room, const char *from)
{
    (void)snprintf(to, room, "%s", from);
}

enum rdt_status rdt_devices(rdt *conn, struct rdt_device_info *devices_p, size_t max, size_t *count_p, struct rdt_error *err)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    Rdt__Pb__ListReply *reply;
    ProtobufCMessage *answer;
    size_t count = 0;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_check_out(count_p, "count_p", err);
    if (status == RDT_OK && max > 0)
        status = options_check_out(devices_p, "devices_p", err);
    if (status != RDT_OK)
        return status;
    request.kind = RDT__PB__LIST_KIND__LIST_KIND_BACKENDS;
    do {
        status = call(conn, RDT_MSG_LIST, &request.base, CALL_TIMEOUT_NS, &answer, err);
        if (status != RDT_OK)
            return status;
        reply = (Rdt__Pb__ListReply *)answer;
        for (size_t b = 0; b < reply->n_backends; b++)
            for (size_t d = 0; d < reply->backends[b]->n_devices; d++, count++) {
                const Rdt__Pb__DeviceInfo *from = reply->backends[b]->devices[d];
                struct rdt_device_info *to = devices_p + count;
                if (count >= max)
                    continue;
                copy_text(to->memory, sizeof to->memory, from->memory);
                copy_text(to->uuid, sizeof to->uuid, from->uuid);
                copy_text(to->name, sizeof to->name, from->name);
                copy_text(to->why_not, sizeof to->why_not, from->why_not);
                to->bytes = from->bytes;
                to->used_bytes = from->used_bytes;
                to->limit_bytes = from->limit_bytes;
                to->opened = from->opened;
                to->overhead_bytes = from->overhead_bytes;
            }
        request.after = reply->next;
        protobuf_c_message_free_unpacked(answer, NULL);
    } while (request.after != 0);
    *count_p = count;
    return RDT_OK;
}
