/* SPDX-License-Identifier: Apache-2.0 */
/* Moves a channel through its states: it dials or is accepted, both ends greet each other, then chunks move until it ends.
 *
 * The dialler begins with TLS or, if both ends trust the network, with HELLO. The listener recognizes by the first byte which
 * it is, and answers an unencrypted HELLO only if its offer allowed that. In either case the HELLO must show the token of an
 * offer and a number that was not used before, and the WELCOME must show the proof that only the node of that offer knows.
 */
#include <errno.h>
#include <linux/tcp.h> /* netinet/tcp.h has a shorter tcp_info */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/stream/stream.h"

#define HELLO_NS (5 * 1000000000ull) /* how long a stranger may take for its greeting */
#define SECOND_NS 1000000000ull
#define TAKE_AFTER_NS SECOND_NS /* how long this end waits for the peer's channel, before it dials one on which it takes */
#define SMALL_BYTES 4096        /* more than the handshake and the greeting have, and less than the first chunk */

/* ---- the end ---- */

/* Logs at most one line a second above debug level, so that strangers cannot fill the log. */
static void log_stranger(struct channel *channel, const char *why)
{
    struct transport *transport = channel->transport;
    uint64_t now_ns = monotonic_ns();
    bool quiet;

    (void)pthread_mutex_lock(&transport->lock);
    quiet = channel->evicted || now_ns < transport->quiet_until_ns;
    if (!quiet)
        transport->quiet_until_ns = now_ns + SECOND_NS;
    (void)pthread_mutex_unlock(&transport->lock);
    transport->host.log(transport->host.ctx, quiet ? RDT_LOG_DEBUG : RDT_LOG_INFO, "refused a connection: %s", why);
}

static void release(struct channel *channel)
{
    struct transport *transport = channel->transport;
    bool was_probe = channel->probe != PROBE_NONE;

    if (channel->conn && channel->counted && channel_sends(channel))
        conn_channel_leaves(channel); /* what was posted while this channel was ending counted on it */
    channel_free(channel);
    if (was_probe)
        conns_probe(transport);
}

/* Whether the peer's kernel has acknowledged no more than the handshake and the greeting, which small packets carry. */
static bool only_small_passed(const struct channel *channel)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;

    return channel->end.error == ETIMEDOUT && channel->greeting.done && channel_sends(channel) &&
           !getsockopt(channel->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) &&
           bytes >= offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof info.tcpi_bytes_acked &&
           info.tcpi_bytes_acked < SMALL_BYTES;
}

/* Whether no chunk but a probe has come on a channel of the peer. Its end is a failure for the peer only. */
static bool received_nothing(const struct channel *channel)
{
    const struct header *header = &channel->chunk.header;

    return !channel->end.fault && !channel_sends(channel) && (header->kind != HEADER_CHUNK || header->transfer == UINT64_MAX);
}

/* The channel waits for one that the peer dials. */
static void wait_for_peer(struct channel *channel)
{
    uint64_t now_ns = monotonic_ns(), until_ns = channel->dialled_ns + FAIL_AFTER_NS;

    SSL_free(channel->tls.ssl);
    channel->tls.ssl = NULL;
    if (channel->fd >= 0)
        (void)close(channel->fd);
    channel->fd = -1;
    channel->end = (struct channel_end){0};
    channel->ready = (struct channel_ready){0};
    ring_remove(&channel->runnable);
    channel_set_state(channel, CHANNEL_WAITING);
    channel_set_deadline(channel, until_ns > now_ns ? until_ns - now_ns : 1);
}

/* Whether the peer has read the greeting of a channel that this end dialled, and has closed it: it takes none of this
 * connection. */
static bool was_refused(const struct channel *channel)
{
    return !channel->incoming && channel->greeting.sent && !channel->greeting.done && !channel->end.fault &&
           channel->end.error != ETIMEDOUT;
}

static void finish(struct channel *channel)
{
    struct operation *operation = channel->chunk.operation;
    enum rdt_status status = channel->end.fault ? RDT_PROTOCOL : RDT_PEER_LOST;
    enum dial_end dial_end;
    bool lossy = only_small_passed(channel);
    char msg[128];

    if (lossy)
        conn_lossy(channel);
    (void)snprintf(msg, sizeof msg, "%s",
                   lossy                ? LOSSY
                   : channel->end.fault ? channel->end.fault
                   : channel->end.error ? strerror(channel->end.error)
                                        : "the peer closed the connection");
    if (!channel->conn) {
        log_stranger(channel, msg);
    } else if (was_refused(channel)) {
        conn_fail(channel->conn, status, msg);
    } else if (!channel->incoming && !channel->greeting.done) {
        dial_end = conn_dial_failed(channel, msg);
        if (dial_end == DIAL_WAITS) {
            wait_for_peer(channel);
            return;
        }
        if (dial_end == DIAL_FAILS)
            conn_unreachable(channel->conn);
    } else if (channel->probe != PROBE_NONE) {
        conn_probe_ends(channel, msg);
    } else if (!channel->end.left && !received_nothing(channel)) { /* left: both ends agreed to close it */
        conn_fail(channel->conn, status, msg);
    }
    channel->chunk.operation = NULL;
    if (operation)
        op_end(operation, RDT_TRANSPORT, msg);
    release(channel);
}

/* ---- the first bytes ---- */

static void dial(struct channel *channel)
{
    const struct sockaddr_storage *address = &channel->conn->peer.address;
    socklen_t bytes = address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    channel_set_state(channel, CHANNEL_DIALLING);
    channel->dialled_ns = monotonic_ns();
    channel_set_deadline(channel, channel->transport->settings.dead_after_s * SECOND_NS);
    channel->fd = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (channel->fd < 0) {
        channel_fail(channel, NULL, errno);
        return;
    }
    channel_socket(channel->fd, &channel->transport->settings);
    if (connect(channel->fd, (const struct sockaddr *)address, bytes) && errno != EINPROGRESS)
        channel_fail(channel, NULL, errno);
    else if (!thread_watch(channel))
        channel_fail(channel, NULL, errno);
}

static void begin(struct channel *channel)
{
    if (!channel->incoming && conn_may_dial(channel)) {
        dial(channel);
        return;
    }
    if (!channel->incoming) {
        channel_set_state(channel, CHANNEL_WAITING);
        channel_set_deadline(channel, TAKE_AFTER_NS);
        return;
    }
    channel_set_state(channel, CHANNEL_PEEKING);
    channel_set_deadline(channel, HELLO_NS);
    if (!thread_watch(channel))
        channel_fail(channel, NULL, errno);
}

static void start_tls(struct channel *channel)
{
    channel->tls.ssl = tls_start(channel);
    if (channel->tls.ssl)
        channel_set_state(channel, CHANNEL_SHAKING);
    else
        channel_fail(channel, NULL, ENOMEM);
}

static void run_dialling(struct channel *channel)
{
    int error = 0;
    socklen_t bytes = sizeof error;

    if (!channel->ready.writable)
        return;
    if (getsockopt(channel->fd, SOL_SOCKET, SO_ERROR, &error, &bytes))
        error = errno;
    if (error)
        channel_fail(channel, NULL, error);
    else if (channel->conn->peer.tls)
        start_tls(channel);
    else
        channel_set_state(channel, CHANNEL_GREETING);
}

static void run_peeking(struct channel *channel)
{
    uint8_t byte;
    ssize_t n;

    if (!channel->ready.readable)
        return;
    n = recv(channel->fd, &byte, 1, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        channel->ready.readable = errno == EINTR;
    else if (n <= 0)
        channel_fail(channel, NULL, n < 0 ? errno : 0);
    else if (byte == TLS_HANDSHAKE)
        start_tls(channel);
    else if (channel->transport->settings.plain)
        channel_set_state(channel, CHANNEL_GREETING);
    else
        channel_fail(channel, "it does not use TLS", 0);
}

static void run_shaking(struct channel *channel)
{
    enum rdt_status status = channel_shake(channel);
    struct transport *transport = channel->transport;
    bool is_first;

    if (status == RDT_AGAIN)
        return;
    if (status != RDT_OK) {
        channel_fail(channel, channel->end.error ? NULL : "TLS failed", 0);
        return;
    }
    (void)pthread_mutex_lock(&transport->lock);
    is_first = channel->tls.in_kernel && !transport->logged_kernel_tls;
    transport->logged_kernel_tls = transport->logged_kernel_tls || is_first;
    (void)pthread_mutex_unlock(&transport->lock);
    transport->host.log(transport->host.ctx, is_first ? RDT_LOG_INFO : RDT_LOG_DEBUG, "%s by %s, %s",
                        SSL_get_version(channel->tls.ssl), SSL_get_cipher_name(channel->tls.ssl),
                        channel->tls.in_kernel ? "in the kernel" : "in this process");
    channel_set_state(channel, CHANNEL_GREETING);
}

/* ---- greetings ---- */

/* Writes `bytes` of channel->small, or reads them into it. True: all of them have been moved. */
static bool greeting_moved(struct channel *channel, bool out, size_t bytes)
{
    while (channel->small_n < bytes && (out ? channel->ready.writable : channel->ready.readable)) {
        const struct iovec iov = {channel->small + channel->small_n, bytes - channel->small_n};
        ssize_t n = out ? channel_write(channel, &iov, 1) : channel_read(channel, &iov, 1);

        if (n > 0)
            channel->small_n += (size_t)n;
        else if (n != CHANNEL_AGAIN)
            channel_fail(channel, n == CHANNEL_END && channel->incoming ? "it closed the connection before its greeting" : NULL,
                         0);
        if (channel->state == CHANNEL_GONE)
            return false;
    }
    if (channel->small_n < bytes)
        return false;
    channel->small_n = 0;
    return true;
}

static void become_ready(struct channel *channel)
{
    struct conn *conn = channel->conn;

    channel->greeting.done = true;
    conn_greeted(channel);
    (void)pthread_mutex_lock(&channel->transport->lock);
    if (channel->tls.ssl)
        (void)snprintf(conn->description, sizeof conn->description, "tcp, %s %s%s", SSL_get_version(channel->tls.ssl),
                       SSL_get_cipher_name(channel->tls.ssl), channel->tls.in_kernel ? " in the kernel" : "");
    else
        (void)snprintf(conn->description, sizeof conn->description, "tcp, not encrypted");
    (void)pthread_mutex_unlock(&channel->transport->lock);
    if (channel_sends(channel) && !channel_gather(channel)) {
        channel_fail(channel, NULL, ENOMEM);
        return;
    }
    channel_set_state(channel, CHANNEL_READY);
    channel_set_deadline(channel, 0);
}

static void greet_as_dialler(struct channel *channel)
{
    uint8_t proof[TOKEN_BYTES];

    if (channel->greeting.number == UNNUMBERED) {
        (void)pthread_mutex_lock(&channel->transport->lock);
        channel->greeting.number = channel->conn->next_number++;
        (void)pthread_mutex_unlock(&channel->transport->lock);
    }
    if (!channel->greeting.sent) {
        wire_put_hello(&channel->conn->peer.secrets, channel->greeting.number, channel->greeting.takes, channel->small);
        if (!greeting_moved(channel, true, HELLO_BYTES))
            return;
        channel->greeting.sent = true;
    }
    if (!greeting_moved(channel, false, WELCOME_BYTES))
        return;
    if (wire_read_welcome(channel->small, proof) && wire_same_secret(proof, channel->conn->peer.secrets.proof, TOKEN_BYTES))
        become_ready(channel);
    else
        channel_fail(channel, "its answer to the greeting is malformed, or is not the peer's", 0);
}

static void greet_as_listener(struct channel *channel)
{
    uint8_t id[ID_BYTES], token[TOKEN_BYTES];
    const char *why_not;

    if (!channel->conn) {
        if (!greeting_moved(channel, false, HELLO_BYTES))
            return;
        if (!wire_read_hello(channel->small, id, token, &channel->greeting.number, &channel->greeting.takes))
            why_not = "its greeting is malformed";
        else if (channel->tls.ssl && !wire_same_secret(id, channel->tls.id, ID_BYTES))
            why_not = "its greeting names another offer than its TLS key";
        else
            why_not = conn_take_channel(channel, id, token);
        explicit_bzero(channel->small, sizeof channel->small);
        if (why_not) {
            channel_fail(channel, why_not, 0);
            return;
        }
        wire_put_welcome(&channel->conn->ours, channel->small);
    }
    if (greeting_moved(channel, true, WELCOME_BYTES))
        become_ready(channel);
}

/* ---- running ---- */

/* On a channel on which this end sends, the peer sends nothing, but it may close its end. */
static void watch_for_end(struct channel *channel)
{
    uint8_t byte;
    const struct iovec iov = {&byte, 1};

    while (channel->ready.readable && channel->state != CHANNEL_GONE) {
        ssize_t n = channel_read(channel, &iov, 1);

        if (n > 0)
            channel_fail(channel, "it sent bytes on a connection on which only this end sends", 0);
        else if (n != CHANNEL_AGAIN)
            channel_fail(channel, NULL, 0);
    }
}

static void step(struct channel *channel)
{
    switch (channel->state) {
    case CHANNEL_NEW:
        begin(channel);
        break;
    case CHANNEL_WAITING:
        break;
    case CHANNEL_DIALLING:
        run_dialling(channel);
        break;
    case CHANNEL_PEEKING:
        run_peeking(channel);
        break;
    case CHANNEL_SHAKING:
        run_shaking(channel);
        break;
    case CHANNEL_GREETING:
        (void)(channel->incoming ? greet_as_listener(channel) : greet_as_dialler(channel));
        break;
    case CHANNEL_READY:
        if (!channel_sends(channel)) {
            receive_run(channel);
        } else {
            watch_for_end(channel);
            if (channel->state == CHANNEL_READY)
                send_run(channel);
        }
        break;
    case CHANNEL_LEAVING:
        watch_for_end(channel);
        break;
    case CHANNEL_GONE:
        break;
    }
}

void channel_run(struct channel *channel)
{
    enum channel_state before;

    do {
        before = channel->state;
        step(channel);
    } while (channel->state != before && channel->state != CHANNEL_GONE);
    if (channel->state != CHANNEL_GONE)
        return;
    finish(channel);
}

void channel_expire(struct channel *channel)
{
    if (channel->state != CHANNEL_WAITING) {
        channel_fail(channel, channel->incoming ? "it did not complete its greeting in time" : NULL, ETIMEDOUT);
    } else if (!conn_needs(channel)) {
        release(channel);
        return;
    } else if (channel->greeting.takes) {
        dial(channel);
    } else {
        conn_unreachable(channel->conn);
        release(channel);
        return;
    }
    channel_run(channel);
}

/* Ends the operation of a channel in the middle of its chunk. The rest of a chunk that is received is read and dropped.
 * The rest of a chunk that is sent is replaced by zeros, and the trailer says so. */
static void end_early(struct channel *channel)
{
    struct operation *operation = channel->chunk.operation;

    channel->chunk.operation = NULL;
    channel->chunk.memory = (struct pieces){0};
    if (channel_sends(channel))
        wire_put_trailer(false, channel->small + HEADER_BYTES);
    op_end(operation, RDT_CANCELLED, NULL);
}

void channel_attend(struct channel *channel)
{
    struct transport *transport = channel->transport;
    bool gone, cancelled;

    (void)pthread_mutex_lock(&transport->lock);
    gone = channel->evicted || (channel->conn && channel->conn->closing);
    cancelled = channel->chunk.operation && channel->chunk.operation->state == OP_STOPPING;
    (void)pthread_mutex_unlock(&transport->lock);
    if (gone)
        channel_fail(channel, channel->conn ? NULL : "it was closed to make room for others", 0);
    else if (cancelled)
        end_early(channel);
    channel_run(channel);
}
