/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: encodes messages, queues them, and writes what the socket takes. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connection.h"
#include "proto/messages.h"
#include "rdt.pb-c.h"
#include "socket.h"

#define MAX_QUEUED_BYTES ((size_t)64 << 20) /* of messages that the socket has not taken yet */
#define LATER_FRAMES 8                      /* queued messages at which connection_send_later sends */
#define CORKED_FRAMES 64                    /* queued messages at which a corked connection sends */

uint64_t connection_id(rdt *conn)
{
    return connection_ids(conn, 1);
}

uint64_t connection_ids(rdt *conn, unsigned n)
{
    uint64_t first = conn->calls.last_id + 1;

    conn->calls.last_id += n;
    return first;
}

enum rdt_status connection_lost_error(const rdt *conn, struct rdt_error *err)
{
    if (conn->why.lost.status == RDT_RESTARTED)
        return rdt_error_set(err, RDT_RESTARTED, "%s: connect anew; what this session put and held has ended",
                             conn->why.lost.msg);
    return rdt_error_set(err, RDT_DISCONNECTED,
                         "the connection to rdtd%s%s is lost: %s: connect anew; what it put and held has ended",
                         conn->path[0] ? " at " : "", conn->path, conn->why.lost.msg);
}

void connection_notify(rdt *conn)
{
    conn->waiters.n_changes++;
    conn->waiters.wake_followers = conn->waiters.wake_leader = true;
}

static void flush(rdt *conn)
{
    struct rdt_error err;
    enum rdt_status status;

    if (!socket_is_open(conn) || conn->why.unsent.status != RDT_OK || !fds_have_socket(conn))
        return; /* the thread that waits next ends the connection, if the socket is not its own any more */
    status = frame_writer_send(&conn->sending.writer, conn->socket.fd, &err);
    if (conn->sending.blocked && status == RDT_OK) {
        conn->sending.not_read = false;
        connection_notify(conn); /* another thread may wait in connection_drain */
    }
    conn->sending.blocked = status == RDT_AGAIN;
    if (status == RDT_OK)
        return;
    if (status == RDT_AGAIN) {
        conn->waiters.wake_leader = true; /* it must also poll for POLLOUT now */
        return;
    }
    /* The daemon may have sent a reason before it closed the socket. receive() reads that, and then ends the connection. */
    conn->why.unsent = err;
    frame_writer_fini(&conn->sending.writer);
    if (status != RDT_DISCONNECTED)
        (void)shutdown(conn->socket.fd, SHUT_RDWR);
}

static enum rdt_status push(struct frame_writer *writer, uint16_t type, uint64_t id, size_t bytes, const int *fds,
                            unsigned n_fds, uint8_t **payload_p, struct rdt_error *err)
{
    int copies[RDT_MAX_FRAME_FDS];
    enum rdt_status status = RDT_OK;
    unsigned n = 0;

    while (n < n_fds && status == RDT_OK) {
        copies[n] = fcntl(fds[n], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        if (copies[n] >= 0)
            n++;
        else
            status = rdt_error_sys(err, errno, "cannot duplicate fd %d to send it", fds[n]);
    }
    if (status == RDT_OK && (status = frame_writer_push(writer, type, 0, id, (uint32_t)bytes, copies, n, payload_p)) != RDT_OK)
        (void)rdt_error_set(err, status, "there is no memory for a request of %zu bytes", bytes);
    while (status != RDT_OK && n > 0)
        (void)close(copies[--n]);
    return status;
}

static void send_released(rdt *conn);

/* Makes room for a message of so many bytes in the queue. *payload_p is NULL with RDT_OK: the message is not sent now. */
static enum rdt_status reserve(rdt *conn, uint16_t type, uint64_t id, size_t bytes, const int *fds, unsigned n_fds, bool urgent,
                               uint8_t **payload_p, struct rdt_error *err)
{
    send_released(conn); /* in the order of the calls */
    if (connection_has_ended(conn))
        return connection_lost_error(conn, err);
    if (bytes > RDT_MAX_FRAME_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "the request has %zu bytes, and the limit is %u", bytes, RDT_MAX_FRAME_BYTES);
    if (!urgent && conn->sending.writer.queued_bytes + bytes > MAX_QUEUED_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "%zu bytes are waiting to be sent, because rdtd does not read its socket",
                             conn->sending.writer.queued_bytes);
    if (conn->state == CONNECTION_RESUMING && urgent && id == 0)
        return push(&conn->sending.later, type, id, bytes, fds, n_fds, payload_p, err);
    if (conn->state == CONNECTION_UP && conn->why.unsent.status == RDT_OK)
        return push(&conn->sending.writer, type, id, bytes, fds, n_fds, payload_p, err);
    *payload_p = NULL;
    return RDT_OK;
}

/* Encodes the message and queues it without sending it. */
static enum rdt_status queue(rdt *conn, uint16_t type, uint64_t id, const ProtobufCMessage *message, const int *fds,
                             unsigned n_fds, bool urgent, struct rdt_error *err)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *payload;
    enum rdt_status status = reserve(conn, type, id, bytes, fds, n_fds, urgent, &payload, err);

    if (status == RDT_OK && payload)
        (void)protobuf_c_message_pack(message, payload);
    return status;
}

enum rdt_status connection_send_packed(rdt *conn, uint16_t type, uint64_t id, const uint8_t *packed, size_t bytes,
                                       struct rdt_error *err)
{
    uint8_t *payload;
    enum rdt_status status = reserve(conn, type, id, bytes, NULL, 0, true, &payload, err);

    if (status == RDT_OK && payload && bytes > 0)
        memcpy(payload, packed, bytes);
    if (status == RDT_OK)
        flush(conn);
    return status;
}

enum rdt_status connection_shake(rdt *conn, uint16_t type, const ProtobufCMessage *message, const struct pending_ops *ops,
                                 struct rdt_error *err)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    enum rdt_status status = RDT_OK;
    uint8_t *payload;

    if (bytes > RDT_MAX_FRAME_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "the session has too much for one message: it has %zu bytes, and the limit is %u",
                             bytes, RDT_MAX_FRAME_BYTES);
    conn->calls.handshake.id = connection_id(conn);
    conn->calls.handshake.ops = ops;
    status = push(&conn->sending.writer, type, conn->calls.handshake.id, bytes, NULL, 0, &payload, err);
    if (status != RDT_OK)
        return status;
    (void)protobuf_c_message_pack(message, payload);
    pending_add(&conn->calls.pending, &conn->calls.handshake);
    flush(conn);
    return RDT_OK;
}

static enum rdt_status queue_and_flush(rdt *conn, uint16_t type, uint64_t id, const ProtobufCMessage *message, const int *fds,
                                       unsigned n_fds, bool urgent, struct rdt_error *err)
{
    enum rdt_status status = queue(conn, type, id, message, fds, n_fds, urgent, err);

    if (status == RDT_OK)
        flush(conn);
    return status;
}

enum rdt_status connection_send(rdt *conn, uint16_t type, uint64_t id, const ProtobufCMessage *message, bool urgent,
                                struct rdt_error *err)
{
    return queue_and_flush(conn, type, id, message, NULL, 0, urgent, err);
}

enum rdt_status connection_send_fds(rdt *conn, uint16_t type, uint64_t id, const ProtobufCMessage *message, const int *fds,
                                    unsigned n_fds, struct rdt_error *err)
{
    return queue_and_flush(conn, type, id, message, fds, n_fds, false, err);
}

void connection_send_later(rdt *conn, uint16_t type, const ProtobufCMessage *message)
{
    if (queue(conn, type, 0, message, NULL, 0, true, NULL) == RDT_OK && conn->sending.writer.queued_frames >= LATER_FRAMES)
        flush(conn);
}

enum rdt_status connection_release(rdt *conn, uint16_t type, uint64_t id, const ProtobufCMessage *message,
                                   struct rdt_error *err)
{
    enum rdt_status status = queue(conn, type, id, message, NULL, 0, true, err);

    if (status == RDT_OK && (conn->sending.corks == 0 || conn->sending.writer.queued_frames >= CORKED_FRAMES))
        flush(conn);
    return status;
}

/* ---- releases of many holds ---- */

static void send_released(rdt *conn)
{
    struct connection_released *released = &conn->sending.released;
    Rdt__Pb__Release request = RDT__PB__RELEASE__INIT;

    if (released->n == 0)
        return;
    request.holds = released->holds;
    request.n_holds = released->n;
    request.keep_mapped_regions = released->regions;
    request.n_keep_mapped_regions = released->n_regions;
    request.gone_events = released->gone_events;
    connection_forget_released(conn); /* queue() would send them, too */
    (void)queue(conn, RDT_MSG_RELEASE, 0, &request.base, NULL, 0, true, NULL);
}

static bool note_kept(struct connection_released *released, const uint64_t *regions, size_t n_regions)
{
    unsigned n = released->n_regions;

    for (size_t i = 0; i < n_regions; i++) {
        unsigned at = 0;
        while (at < n && released->regions[at] != regions[i])
            at++;
        if (at == RDT_MAX_RELEASED_REGIONS)
            return false;
        released->regions[at] = regions[i];
        n += at == n;
    }
    released->n_regions = n;
    return true;
}

bool connection_gather_release(rdt *conn, uint64_t hold, const uint64_t *regions, size_t n_regions)
{
    struct connection_released *released = &conn->sending.released;

    if (conn->sending.corks == 0 || conn->state != CONNECTION_UP || !(conn->can.abilities & CONNECTION_HANDS_OUT))
        return false;
    if (released->n == sizeof released->holds / sizeof released->holds[0] || !note_kept(released, regions, n_regions)) {
        connection_flush(conn);
        if (!note_kept(released, regions, n_regions))
            return false;
    }
    if (released->n == 0)
        released->gone_events = conn->memory.n_gones;
    released->holds[released->n++] = hold;
    return true;
}

void connection_forget_released(rdt *conn)
{
    conn->sending.released.n = conn->sending.released.n_regions = 0;
}

void connection_flush(rdt *conn)
{
    send_released(conn);
    if (conn->sending.writer.queued_frames > 0)
        flush(conn);
}
