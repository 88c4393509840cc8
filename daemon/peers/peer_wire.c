/* SPDX-License-Identifier: Apache-2.0 */
/* The lower half of a peer link: names and addresses, the socket, TLS, and the bytes in and out of frames.
 *
 * It writes one slice at a time, so that neither a large frame nor a long queue blocks the loop. */
#include "daemon/peers/peer_wire.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/busy_poll.h"

#define SLICE_BYTES ((size_t)256 << 10) /* plaintext that one iteration of the loop encrypts */
#define ITERATION_NS 25000              /* for the messages of one node in one iteration */
#define KEEP_OUT_BYTES ((size_t)64 << 10)

void peer_wire_describe(const struct peer_link *link, char text_p[128])
{
    if (link->peer)
        peer_describe(link->peer, text_p);
    else
        snprintf(text_p, 128, "the node at %s", link->remote);
}

void peer_wire_no_answer(const struct peer_link *link, struct rdt_error *why)
{
    char who[128];

    peer_wire_describe(link, who);
    rdt_error_set(why, RDT_PEER_LOST, "no answer from %s for %.1f s", who, (double)link->config->peer_timeout_ns / 1e9);
}

static bool turn_some(struct slice *slice, uint64_t until_ns)
{
    struct peer_link_queues *queues = container_of(slice, struct peer_link_queues, turn);

    list_drain (struct peer_link, link, &queues->young, young) {
        list_remove(&link->young);
        link->upper->on_turn(&link->turn);
        if (uv_hrtime() >= until_ns)
            break;
    }
    return list_empty(&queues->young);
}

void peer_wire_want_turn(struct peer_link *link)
{
    struct peer_link_queues *queues = link->config->queues;

    if (!link->config->slices || peer_link_state(link) == LINK_UP) {
        (void)uv_idle_start(&link->turn, link->upper->on_turn);
        return;
    }
    if (list_empty(&link->young))
        list_append(&queues->young, &link->young);
    queues->turn.run = turn_some;
    slice_start(link->config->slices, &queues->turn);
}

void peer_wire_fail(struct peer_link *link, const struct rdt_error *why)
{
    if (link->failed || peer_link_state(link) == LINK_ENDED)
        return;
    link->failed = true;
    link->failure = *why;
    peer_wire_want_turn(link);
}

/* ---- out ---- */

/* Moves up to max plaintext bytes from the queue of frames into TLS, small frames together in one record. */
static enum rdt_status encrypt(struct peer_link *link, size_t max, struct rdt_error *err)
{
    uint8_t record[TLS_RECORD_BYTES];
    enum rdt_status status = RDT_OK;

    for (size_t done = 0; status == RDT_OK && done < max;) {
        const uint8_t *bytes;
        size_t fill = 0, n;

        while (fill < sizeof record && (bytes = frame_writer_peek(&link->writer, &n)) != NULL) {
            if (n > sizeof record - fill)
                n = sizeof record - fill;
            memcpy(record + fill, bytes, n);
            frame_writer_consume(&link->writer, n);
            fill += n;
        }
        if (!fill)
            break;
        status = tls_write(&link->tls, record, fill, err);
        done += fill;
    }
    return status;
}

/* Moves ciphertext into link->sending.out. */
static enum rdt_status take_ciphertext(struct peer_link *link, struct rdt_error *err)
{
    size_t n = tls_pending(&link->tls);

    if (n > link->sending.out_size) {
        uint8_t *out = realloc(link->sending.out, n);

        if (!out)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to send %zu bytes", n);
        link->sending.out = out;
        link->sending.out_size = n;
    }
    link->sending.out_bytes = tls_take(&link->tls, link->sending.out, n);
    return RDT_OK;
}

static void why_lost(struct peer_link *link, int uv_error, struct rdt_error *why)
{
    if (uv_error == UV_EOF || uv_error == UV_ECONNRESET || uv_error == UV_EPIPE)
        link->ended_there = true;
    if (uv_error == UV_ETIMEDOUT) /* TCP_USER_TIMEOUT */
        peer_wire_no_answer(link, why);
    else if (uv_error == UV_EOF)
        rdt_error_set(why, RDT_DISCONNECTED, "%s closed the connection", link->remote);
    else
        rdt_error_set(why, RDT_DISCONNECTED, "the connection with %s broke: %s", link->remote, uv_strerror(uv_error));
}

static void lost(struct peer_link *link, int uv_error)
{
    struct rdt_error why;

    why_lost(link, uv_error, &why);
    if (peer_link_state(link) == LINK_UP)
        link->upper->on_lost(link, &why);
    else
        peer_wire_fail(link, &why);
}

void peer_wire_count_queue(struct peer_link *link)
{
    size_t now = link->writer.queued_bytes + link->sending.out_bytes;

    link->config->queues->bytes += now - link->sending.queued_bytes;
    link->sending.queued_bytes = now;
}

/* A large buffer is freed unless there is more to send. */
static void out_sent(struct peer_link *link)
{
    link->sending.out_bytes = 0;
    peer_wire_count_queue(link);
    if (link->sending.out_size > KEEP_OUT_BYTES && !link->writer.queued_bytes) {
        free(link->sending.out);
        link->sending.out = NULL;
        link->sending.out_size = 0;
    }
}

static void on_written(uv_write_t *request, int uv_status)
{
    struct peer_link *link = request->data;

    link->sending.busy = false;
    out_sent(link);
    if (peer_link_state(link) == LINK_ENDED)
        return;
    if (uv_status < 0) {
        lost(link, uv_status);
        return;
    }
    peer_wire_pump(link);
}

/* Writes what the socket accepts at once: a libuv write would cost an iteration of the loop and two more
 * system calls. */
static int write_out(struct peer_link *link)
{
    uv_buf_t buf = uv_buf_init((char *)link->sending.out, (unsigned)link->sending.out_bytes);
    int n = uv_try_write((uv_stream_t *)&link->tcp, &buf, 1);

    if (n == (int)link->sending.out_bytes) {
        out_sent(link);
        if (link->writer.queued_frames > 0) /* the next slice is sent in the next iteration */
            peer_wire_want_turn(link);
        return 0;
    }
    if (n < 0 && n != UV_EAGAIN)
        return n;
    if (n > 0) {
        buf.base += n;
        buf.len -= (size_t)n;
    }
    link->sending.write.data = link;
    n = uv_write(&link->sending.write, (uv_stream_t *)&link->tcp, &buf, 1, on_written);
    link->sending.busy = n == 0;
    link->sending.unsent_bytes = 0;
    return n;
}

void peer_wire_pump(struct peer_link *link)
{
    enum rdt_status status = RDT_OK;
    struct rdt_error why;
    int rc = 0;

    if (link->sending.busy || !link->tls.ssl || peer_link_state(link) == LINK_ENDED)
        return;
    if (peer_link_state(link) != LINK_SECURING)
        status = encrypt(link, SLICE_BYTES, &why);
    if (status == RDT_OK)
        status = take_ciphertext(link, &why);
    if (status == RDT_OK && link->sending.out_bytes) {
        rc = write_out(link);
        if (rc < 0)
            why_lost(link, rc, &why);
    }
    if (status != RDT_OK || rc < 0)
        peer_wire_fail(link, &why);
}

void peer_wire_push_out(struct peer_link *link)
{
    uv_buf_t buf;

    if (link->sending.busy || !link->tls.ssl || link->writer.queued_bytes > SLICE_BYTES)
        return;
    if (peer_link_state(link) != LINK_SECURING && encrypt(link, SLICE_BYTES, NULL) != RDT_OK)
        return;
    if (take_ciphertext(link, NULL) != RDT_OK || !link->sending.out_bytes)
        return;
    buf = uv_buf_init((char *)link->sending.out, (unsigned)link->sending.out_bytes);
    (void)uv_try_write((uv_stream_t *)&link->tcp, &buf, 1);
    link->sending.out_bytes = 0;
}

/* ---- in ---- */

/* Takes received frames until the time of this iteration is used up; then sets link->receiving.more. */
static enum rdt_status take_plaintext(struct peer_link *link, struct rdt_error *err)
{
    uint64_t until_ns = uv_hrtime() + ITERATION_NS;

    for (;;) {
        struct frame frame;
        size_t have = 0, n = 0;
        uint8_t *space;
        enum rdt_status status = frame_reader_next(&link->receiving.reader, &frame, err);

        if (status == RDT_OK) {
            status = link->upper->on_frame(link, &frame, err);
            if (status != RDT_OK || link->failed || peer_link_state(link) == LINK_ENDED)
                return status;
            link->receiving.more =
                uv_hrtime() >= until_ns && (frame_reader_is_ready(&link->receiving.reader) || tls_has_input(&link->tls));
            if (link->receiving.more)
                return RDT_OK;
            continue;
        }
        if (status != RDT_AGAIN)
            return status;
        space = frame_reader_space(&link->receiving.reader, TLS_RECORD_BYTES, &have);
        if (!space)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to receive from another node");
        status = tls_read(&link->tls, space, have, &n, err);
        if (status != RDT_OK) {
            link->receiving.more = false;
            return status == RDT_AGAIN ? RDT_OK : status;
        }
        if (link->config->busy_poll)
            busy_poll_received(link->config->busy_poll);
        frame_reader_commit(&link->receiving.reader, n);
    }
}

static enum rdt_status step_handshake(struct peer_link *link, struct rdt_error *err)
{
    enum rdt_status status = tls_handshake(&link->tls, err);

    if (status == RDT_AGAIN)
        return RDT_OK;
    if (status == RDT_OK) {
        sm_move(&link->sm, LINK_MEETING);
        status = tls_check_peer(&link->tls, link->host, err);
    }
    if (status == RDT_OK) {
        link->config->events->on_secure(link);
    }
    return status;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct peer_link *link = handle->data;

    *buf = uv_buf_init((char *)link->config->read_buf, PEER_LINK_READ_BYTES);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

/* A node that floods the link gets its share like others: nothing is read before the received frames have
 * been handled. */
static void take_received(struct peer_link *link)
{
    struct rdt_error why = {0};
    enum rdt_status status = take_plaintext(link, &why);

    if (peer_link_state(link) == LINK_ENDED || link->failed)
        return;
    if (status != RDT_OK) {
        link->upper->on_refused(link, &why);
    } else if (link->receiving.more) {
        link->receiving.stopped = true;
        (void)uv_read_stop((uv_stream_t *)&link->tcp);
        peer_wire_want_turn(link);
    } else if (link->receiving.stopped) { /* uv_read_start costs two system calls even on a stream that is being read */
        link->receiving.stopped = false;
        (void)uv_read_start((uv_stream_t *)&link->tcp, on_alloc, on_read);
    }
}

/* Bytes have come: steps the handshake, and takes the frames behind it. */
static void take(struct peer_link *link)
{
    struct rdt_error why = {0};

    if (peer_link_state(link) == LINK_SECURING && step_handshake(link, &why) != RDT_OK) {
        if (peer_link_state(link) == LINK_SECURING)
            peer_wire_push_out(link); /* sends TLS's own alert, the only hint that the other end gets */
        link->upper->on_refused(link, &why);
    } else if (peer_link_state(link) == LINK_MEETING || peer_link_state(link) == LINK_UP) {
        take_received(link);
    } else if (link->receiving.stopped && peer_link_state(link) == LINK_SECURING) {
        link->receiving.stopped = link->receiving.more = false;
        (void)uv_read_start((uv_stream_t *)&link->tcp, on_alloc, on_read);
    }
}

void peer_wire_continue(struct peer_link *link)
{
    if (!link->receiving.more)
        return;
    link->last_byte_ns = uv_hrtime(); /* the silence is due to this node, which does not read */
    take(link);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct peer_link *link = stream->data;
    struct rdt_error why = {0};
    enum rdt_status status;

    if (n == 0 || link->failed)
        return;
    if (n < 0) {
        lost(link, (int)n);
        return;
    }
    link->last_byte_ns = uv_hrtime();
    status = tls_feed(&link->tls, buf->base, (size_t)n, &why);
    if (status != RDT_OK) {
        link->upper->on_refused(link, &why);
    } else if (link->config->slices && peer_link_state(link) != LINK_UP) {
        link->receiving.more = link->receiving.stopped = true;
        (void)uv_read_stop(stream);
        peer_wire_want_turn(link);
    } else {
        take(link);
        peer_wire_pump(link);
        if (!link->receiving.more && !link->failed && !link->writer.queued_frames)
            uv_idle_stop(&link->turn); /* what was answered has been sent: no turn is needed for it */
    }
}

/* ---- the socket ---- */

static void format_address(const struct sockaddr *address, char text_p[65])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    unsigned port;

    if (address->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;

        port = ntohs(in6->sin6_port);
        if (!IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
            uv_ip6_name(in6, ip, sizeof ip);
            snprintf(text_p, 65, "[%s]:%u", ip, port);
            return;
        }
        /* An IPv4 caller at a socket for both families is shown with its IPv4 address. */
        uv_inet_ntop(AF_INET, &in6->sin6_addr.s6_addr[12], ip, sizeof ip);
    } else {
        const struct sockaddr_in *in4 = (const struct sockaddr_in *)address;

        port = ntohs(in4->sin_port);
        uv_ip4_name(in4, ip, sizeof ip);
    }
    snprintf(text_p, 65, "%s:%u", ip, port);
}

/* The TCP connection is established: TLS begins. */
static void begin(struct peer_link *link, bool server)
{
    unsigned timeout_ms = (unsigned)(link->config->peer_timeout_ns / 1000000);
    struct rdt_error why;
    uv_os_fd_t fd;
    int rc;

    link->last_byte_ns = uv_hrtime();
    (void)uv_tcp_nodelay(&link->tcp, 1);
    /* Unacknowledged data ends the connection as early as silence does. If this fails, the pings still do. */
    if (uv_fileno((uv_handle_t *)&link->tcp, &fd) == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);

    rc = uv_read_start((uv_stream_t *)&link->tcp, on_alloc, on_read);
    if (rc < 0) {
        rdt_error_set(&why, RDT_DISCONNECTED, "cannot read from %s: %s", link->remote, uv_strerror(rc));
        peer_wire_fail(link, &why);
    } else if (tls_init(&link->tls, link->config->tls, server, &why) != RDT_OK ||
               (!server && step_handshake(link, &why) != RDT_OK)) {
        peer_wire_fail(link, &why);
    } else {
        peer_wire_pump(link);
    }
}

void peer_own_address(const struct peer *peer, char *text_p, size_t size)
{
    struct sockaddr_storage address;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&address;
    int bytes = sizeof address;
    char text[INET6_ADDRSTRLEN] = "";

    text_p[0] = 0;
    if (!peer->link_up || uv_tcp_getsockname(&peer->link_up->tcp, (struct sockaddr *)&address, &bytes) < 0)
        return;
    if (address.ss_family == AF_INET)
        (void)inet_ntop(AF_INET, &((const struct sockaddr_in *)&address)->sin_addr, text, sizeof text);
    else if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) /* the listener is at every address of both families */
        (void)inet_ntop(AF_INET, &in6->sin6_addr.s6_addr[12], text, sizeof text);
    else if (!IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr)) /* that one means nothing without the peer's own interface index */
        (void)inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof text);
    (void)snprintf(text_p, size, "%s", text);
}

void peer_wire_accept(struct peer_link *link, uv_stream_t *listener)
{
    struct sockaddr_storage address;
    int address_bytes = sizeof address;
    struct rdt_error why;
    int rc;

    snprintf(link->remote, sizeof link->remote, "?");
    rc = uv_accept(listener, (uv_stream_t *)&link->tcp);
    if (rc == 0)
        rc = uv_tcp_getpeername(&link->tcp, (struct sockaddr *)&address, &address_bytes);
    if (rc < 0) {
        rdt_error_set(&why, RDT_DISCONNECTED, "cannot accept a connection: %s", uv_strerror(rc));
        peer_wire_fail(link, &why);
        return;
    }
    format_address((struct sockaddr *)&address, link->remote);
    begin(link, true);
}

static void connect_next(struct peer_link *link);

static void on_tcp_closed(uv_handle_t *handle)
{
    struct peer_link *link = handle->data;

    if (!link->dialling.again || peer_link_state(link) == LINK_ENDED) {
        link->upper->on_handle_gone(link);
        return;
    }
    link->dialling.again = false;
    uv_tcp_init(link->config->loop, &link->tcp);
    connect_next(link);
}

static void cannot_connect(struct peer_link *link, int uv_error)
{
    struct rdt_error why;

    if (link->dialling.next_found) {
        /* a socket that failed to connect cannot be used again */
        link->dialling.again = true;
        uv_close((uv_handle_t *)&link->tcp, on_tcp_closed);
        return;
    }
    rdt_error_set(&why, RDT_PEER_LOST, "cannot connect to %s: %s", link->remote, uv_strerror(uv_error));
    peer_wire_fail(link, &why);
}

static void on_connect(uv_connect_t *request, int uv_status)
{
    struct peer_link *link = request->data;

    if (peer_link_state(link) == LINK_ENDED)
        return;
    if (uv_status < 0) {
        cannot_connect(link, uv_status);
        return;
    }
    sm_move(&link->sm, LINK_SECURING);
    begin(link, false);
}

static void connect_to(struct peer_link *link, const struct sockaddr *address)
{
    int rc;

    format_address(address, link->remote);
    link->dialling.connect.data = link;
    rc = uv_tcp_connect(&link->dialling.connect, &link->tcp, address, on_connect);
    if (rc < 0)
        cannot_connect(link, rc);
}

static void connect_next(struct peer_link *link)
{
    struct addrinfo *info = link->dialling.next_found;

    link->dialling.next_found = info->ai_next;
    connect_to(link, info->ai_addr);
}

/* ---- looking up a host name ---- */

struct peer_lookup {
    struct work work;
    struct list node;       /* in link->dialling.lookups */
    struct peer_link *link; /* loop thread; NULL: the link has ended, or another look-up has found the addresses */
    bool of_user;           /* it runs on the threads of `person`; false: on those of the daemon */
    struct owner person;
    char host[65], port[8];
    struct addrinfo *found;
    int rc; /* result of getaddrinfo */
};

static void run_lookup(struct work *work)
{
    struct peer_lookup *lookup = container_of(work, struct peer_lookup, work);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};

    lookup->rc = getaddrinfo(lookup->host, lookup->port, &hints, &lookup->found);
}

/* Look-ups cannot be stopped, and end by themselves. */
static void abandon_lookups(struct peer_link *link)
{
    list_for_each_safe (node, &link->dialling.lookups) {
        container_of(node, struct peer_lookup, node)->link = NULL;
        list_remove(node);
    }
}

static void done_lookup(struct work *work)
{
    struct peer_lookup *lookup = container_of(work, struct peer_lookup, work);
    struct peer_link *link = lookup->link;
    struct rdt_error why;

    list_remove(&lookup->node);
    if (!link && lookup->found) {
        freeaddrinfo(lookup->found);
    } else if (link && lookup->found) {
        abandon_lookups(link);
        link->dialling.found = link->dialling.next_found = lookup->found;
        link->config->events->on_looked_up(link);
        connect_next(link);
    } else if (link && list_empty(&link->dialling.lookups)) {
        rdt_error_set(&why, RDT_PEER_LOST, "cannot find host %s: %s", link->host,
                      lookup->rc ? gai_strerror(lookup->rc) : "it has no address");
        peer_wire_fail(link, &why);
    }
    free(lookup);
}

/* On threads of the user who requested it, so that a name server that does not answer delays nobody else. false: out of
 * memory. */
static bool look_up(struct peer_link *link, struct account *account)
{
    struct peer_lookup *lookup = calloc(1, sizeof *lookup);

    if (!lookup)
        return false;
    *lookup = (struct peer_lookup){.work = {.run = run_lookup, .done = done_lookup}, .link = link, .of_user = account};
    if (account)
        lookup->person = account_person(account)->owner;
    snprintf(lookup->host, sizeof lookup->host, "%s", link->host);
    snprintf(lookup->port, sizeof lookup->port, "%u", link->port);
    list_append(&link->dialling.lookups, &lookup->node);
    owner_work_submit(link->config->owner_work, &lookup->work, account, false);
    return true;
}

void peer_wire_look_up_too(struct peer_link *link, struct account *account)
{
    if (list_empty(&link->dialling.lookups))
        return;
    list_each (const struct peer_lookup, lookup, &link->dialling.lookups, node)
        if (lookup->of_user == (account != NULL) && (!account || owner_equal(&lookup->person, &account_person(account)->owner)))
            return;
    (void)look_up(link, account); /* without memory for it, the others still count */
}

void peer_wire_dial(struct peer_link *link, struct account *account)
{
    union {
        struct sockaddr any;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
    } address;
    struct rdt_error why;

    snprintf(link->remote, sizeof link->remote, "%.50s:%u", link->host, link->port);
    if (uv_ip4_addr(link->host, link->port, &address.in4) == 0 || uv_ip6_addr(link->host, link->port, &address.in6) == 0) {
        connect_to(link, &address.any);
        return;
    }
    if (look_up(link, account))
        return;
    rdt_error_set(&why, RDT_NO_MEMORY, "no memory to look up host %s", link->host);
    peer_wire_fail(link, &why);
}

void peer_wire_close(struct peer_link *link)
{
    abandon_lookups(link);
    if (!uv_is_closing((uv_handle_t *)&link->tcp))
        uv_close((uv_handle_t *)&link->tcp, on_tcp_closed);
}

void peer_wire_fini(struct peer_link *link)
{
    if (link->dialling.found)
        freeaddrinfo(link->dialling.found);
    tls_fini(&link->tls);
    free(link->sending.out);
}
