/* SPDX-License-Identifier: Apache-2.0 */
/* Moves a lane through its states: it dials or is accepted, both ends greet each other, then chunks move until it ends.
 *
 * The dialler begins with TLS or, if both ends trust the network, with HELLO. The listener recognizes by the first byte which
 * it is, and answers an unencrypted HELLO only if its offer allowed that. In either case the HELLO must show the token of an
 * offer and a number that was not used before, and the WELCOME must show the proof that only the node of that offer knows.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "backends/stream/stream.h"

#define HELLO_NS (5 * 1000000000ull) /* how long a stranger may take for its greeting */
#define SECOND_NS 1000000000ull

/* ---- the end ---- */

/* Logs at most one line a second above debug level, so that strangers cannot fill the log. */
static void log_stranger(struct lane *lane, const char *why)
{
    struct transport *transport = lane->transport;
    uint64_t now_ns = monotonic_ns();
    bool quiet;

    (void)pthread_mutex_lock(&transport->lock);
    quiet = lane->evicted || now_ns < transport->quiet_until_ns;
    if (!quiet)
        transport->quiet_until_ns = now_ns + SECOND_NS;
    (void)pthread_mutex_unlock(&transport->lock);
    transport->host.log(transport->host.ctx, quiet ? RDT_LOG_DEBUG : RDT_LOG_INFO, "refused a connection: %s", why);
}

static void finish(struct lane *lane)
{
    struct operation *operation = lane->chunk.operation;
    enum rdt_status status = lane->end.fault ? RDT_PROTOCOL : RDT_PEER_LOST;
    char msg[128];

    (void)snprintf(msg, sizeof msg, "%s",
                   lane->end.fault   ? lane->end.fault
                   : lane->end.error ? strerror(lane->end.error)
                                     : "the peer closed the connection");
    if (lane->conn)
        conn_fail(lane->conn, status, msg);
    else
        log_stranger(lane, msg);
    lane->chunk.operation = NULL;
    if (operation)
        op_end(operation, RDT_TRANSPORT, msg);
    lane_free(lane);
}

/* ---- the first bytes ---- */

static void dial(struct lane *lane)
{
    const struct sockaddr_storage *address = &lane->conn->peer.address;
    socklen_t bytes = address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    lane_set_state(lane, LANE_DIALLING);
    lane_set_deadline(lane, lane->transport->settings.dead_after_s * SECOND_NS);
    lane->fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (lane->fd < 0) {
        lane_fail(lane, NULL, errno);
        return;
    }
    lane_socket(lane->fd, &lane->transport->settings);
    if (connect(lane->fd, (const struct sockaddr *)address, bytes) && errno != EINPROGRESS)
        lane_fail(lane, NULL, errno);
    else if (!thread_watch(lane))
        lane_fail(lane, NULL, errno);
}

static void begin(struct lane *lane)
{
    if (!lane->incoming) {
        dial(lane);
        return;
    }
    lane_set_state(lane, LANE_PEEKING);
    lane_set_deadline(lane, HELLO_NS);
    if (!thread_watch(lane))
        lane_fail(lane, NULL, errno);
}

static void start_tls(struct lane *lane)
{
    lane->tls.ssl = tls_start(lane);
    if (lane->tls.ssl)
        lane_set_state(lane, LANE_SHAKING);
    else
        lane_fail(lane, NULL, ENOMEM);
}

static void run_dialling(struct lane *lane)
{
    int error = 0;
    socklen_t bytes = sizeof error;

    if (!lane->ready.writable)
        return;
    if (getsockopt(lane->fd, SOL_SOCKET, SO_ERROR, &error, &bytes))
        error = errno;
    if (error)
        lane_fail(lane, NULL, error);
    else if (lane->conn->peer.tls)
        start_tls(lane);
    else
        lane_set_state(lane, LANE_GREETING);
}

static void run_peeking(struct lane *lane)
{
    uint8_t byte;
    ssize_t n;

    if (!lane->ready.readable)
        return;
    n = recv(lane->fd, &byte, 1, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        lane->ready.readable = errno == EINTR;
    else if (n <= 0)
        lane_fail(lane, NULL, n < 0 ? errno : 0);
    else if (byte == TLS_HANDSHAKE)
        start_tls(lane);
    else if (lane->transport->settings.plain)
        lane_set_state(lane, LANE_GREETING);
    else
        lane_fail(lane, "it does not use TLS", 0);
}

static void run_shaking(struct lane *lane)
{
    enum rdt_status status = channel_shake(lane);
    struct transport *transport = lane->transport;
    bool is_first;

    if (status == RDT_AGAIN)
        return;
    if (status != RDT_OK) {
        lane_fail(lane, lane->end.error ? NULL : "TLS failed", 0);
        return;
    }
    (void)pthread_mutex_lock(&transport->lock);
    is_first = lane->tls.in_kernel && !transport->logged_kernel_tls;
    transport->logged_kernel_tls = transport->logged_kernel_tls || is_first;
    (void)pthread_mutex_unlock(&transport->lock);
    transport->host.log(transport->host.ctx, is_first ? RDT_LOG_INFO : RDT_LOG_DEBUG, "%s by %s, %s",
                        SSL_get_version(lane->tls.ssl), SSL_get_cipher_name(lane->tls.ssl),
                        lane->tls.in_kernel ? "in the kernel" : "in this process");
    lane_set_state(lane, LANE_GREETING);
}

/* ---- greetings ---- */

/* Writes `bytes` of lane->small, or reads them into it. True: all of them have been moved. */
static bool greeting_moved(struct lane *lane, bool out, size_t bytes)
{
    while (lane->small_n < bytes && (out ? lane->ready.writable : lane->ready.readable)) {
        const struct iovec iov = {lane->small + lane->small_n, bytes - lane->small_n};
        ssize_t n = out ? channel_write(lane, &iov, 1) : channel_read(lane, &iov, 1);

        if (n > 0)
            lane->small_n += (size_t)n;
        else if (n != CHANNEL_AGAIN)
            lane_fail(lane, n == CHANNEL_END && lane->incoming ? "it closed the connection before its greeting" : NULL, 0);
        if (lane->state == LANE_GONE)
            return false;
    }
    if (lane->small_n < bytes)
        return false;
    lane->small_n = 0;
    return true;
}

static void become_ready(struct lane *lane)
{
    struct conn *conn = lane->conn;

    (void)pthread_mutex_lock(&lane->transport->lock);
    if (lane->tls.ssl)
        (void)snprintf(conn->description, sizeof conn->description, "tcp, %s %s%s", SSL_get_version(lane->tls.ssl),
                       SSL_get_cipher_name(lane->tls.ssl), lane->tls.in_kernel ? " in the kernel" : "");
    else
        (void)snprintf(conn->description, sizeof conn->description, "tcp, not encrypted");
    (void)pthread_mutex_unlock(&lane->transport->lock);
    if (!lane->incoming && !channel_gather(lane)) {
        lane_fail(lane, NULL, ENOMEM);
        return;
    }
    lane_set_state(lane, LANE_READY);
    lane_set_deadline(lane, 0);
}

static void greet_as_dialler(struct lane *lane)
{
    uint8_t proof[TOKEN_BYTES];

    if (!lane->greeting.sent) {
        wire_put_hello(&lane->conn->peer.secrets, lane->greeting.number, lane->small);
        if (!greeting_moved(lane, true, HELLO_BYTES))
            return;
        lane->greeting.sent = true;
    }
    if (!greeting_moved(lane, false, WELCOME_BYTES))
        return;
    if (wire_read_welcome(lane->small, proof) && wire_same_secret(proof, lane->conn->peer.secrets.proof, TOKEN_BYTES))
        become_ready(lane);
    else
        lane_fail(lane, "its answer to the greeting is malformed, or is not the peer's", 0);
}

static void greet_as_listener(struct lane *lane)
{
    uint8_t id[ID_BYTES], token[TOKEN_BYTES];
    const char *why_not;

    if (!lane->conn) {
        if (!greeting_moved(lane, false, HELLO_BYTES))
            return;
        if (!wire_read_hello(lane->small, id, token, &lane->greeting.number))
            why_not = "its greeting is malformed";
        else if (lane->tls.ssl && !wire_same_secret(id, lane->tls.id, ID_BYTES))
            why_not = "its greeting names another offer than its TLS key";
        else
            why_not = conn_take_lane(lane, id, token);
        explicit_bzero(lane->small, sizeof lane->small);
        if (why_not) {
            lane_fail(lane, why_not, 0);
            return;
        }
        wire_put_welcome(&lane->conn->ours, lane->small);
    }
    if (greeting_moved(lane, true, WELCOME_BYTES))
        become_ready(lane);
}

/* ---- running ---- */

/* On a lane that this end dialled the peer sends nothing, but it may close its end. */
static void watch_for_end(struct lane *lane)
{
    uint8_t byte;
    const struct iovec iov = {&byte, 1};

    while (lane->ready.readable && lane->state != LANE_GONE) {
        ssize_t n = channel_read(lane, &iov, 1);

        if (n > 0)
            lane_fail(lane, "it sent bytes on a connection on which only this end sends", 0);
        else if (n != CHANNEL_AGAIN)
            lane_fail(lane, NULL, 0);
    }
}

static void step(struct lane *lane)
{
    switch (lane->state) {
    case LANE_NEW:
        begin(lane);
        break;
    case LANE_DIALLING:
        run_dialling(lane);
        break;
    case LANE_PEEKING:
        run_peeking(lane);
        break;
    case LANE_SHAKING:
        run_shaking(lane);
        break;
    case LANE_GREETING:
        (void)(lane->incoming ? greet_as_listener(lane) : greet_as_dialler(lane));
        break;
    case LANE_READY:
        if (lane->incoming) {
            receive_run(lane);
        } else {
            watch_for_end(lane);
            if (lane->state == LANE_READY)
                send_run(lane);
        }
        break;
    case LANE_LEAVING:
        watch_for_end(lane);
        break;
    case LANE_GONE:
        break;
    }
}

void lane_run(struct lane *lane)
{
    enum lane_state before;

    do {
        before = lane->state;
        step(lane);
    } while (lane->state != before && lane->state != LANE_GONE);
    if (lane->state != LANE_GONE)
        return;
    if (lane->end.left)
        lane_free(lane); /* both ends agreed to close it */
    else
        finish(lane);
}

/* Ends the operation of a lane in the middle of its chunk. The rest of a chunk that is received is read and dropped. The rest
 * of a chunk that is sent is replaced by zeros, and the trailer says so. */
static void end_early(struct lane *lane)
{
    struct operation *operation = lane->chunk.operation;

    lane->chunk.operation = NULL;
    lane->chunk.memory = (struct pieces){0};
    if (!lane->incoming)
        wire_put_trailer(false, lane->small + HEADER_BYTES);
    op_end(operation, RDT_CANCELLED, NULL);
}

void lane_attend(struct lane *lane)
{
    struct transport *transport = lane->transport;
    bool gone, cancelled;

    (void)pthread_mutex_lock(&transport->lock);
    gone = lane->evicted || (lane->conn && lane->conn->closing);
    cancelled = lane->chunk.operation && lane->chunk.operation->state == OP_STOPPING;
    (void)pthread_mutex_unlock(&transport->lock);
    if (gone)
        lane_fail(lane, lane->conn ? NULL : "it was closed to make room for others", 0);
    else if (cancelled)
        end_early(lane);
    lane_run(lane);
}
