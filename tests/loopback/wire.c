/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets and frames. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/loopback/loopback.h"

#define TICKET_BYTES ((uint64_t)1 << 20) /* moved for one channel before it is the next one's turn */

static socklen_t address_of(const char *name, struct sockaddr_un *address_p)
{
    memset(address_p, 0, sizeof *address_p);
    address_p->sun_family = AF_UNIX;
    (void)snprintf(address_p->sun_path + 1, sizeof address_p->sun_path - 1, "%s", name); /* abstract */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

enum rdt_status wire_listen(struct transport *transport, struct rdt_error *err)
{
    struct sockaddr_un address;
    uint64_t unique;

    if (getrandom(&unique, sizeof unique, 0) != sizeof unique)
        return rdt_error_sys(err, errno, "drawing a name");
    (void)snprintf(transport->name, sizeof transport->name, "rdt-loopback-%016llx", (unsigned long long)unique);
    transport->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (transport->listener < 0)
        return rdt_error_sys(err, errno, "creating a socket");
    if (bind(transport->listener, (struct sockaddr *)&address, address_of(transport->name, &address)) ||
        listen(transport->listener, 64)) {
        int error = errno;

        (void)close(transport->listener);
        return rdt_error_sys(err, error, "listening");
    }
    return RDT_OK;
}

static void channel_init(struct channel *channel, int fd, struct conn *conn)
{
    memset(channel, 0, sizeof *channel);
    channel->fd = fd;
    channel->conn = conn;
    channel->last = &channel->first;
}

void wire_connect(struct conn *conn)
{
    struct frame hello = {.type = FRAME_HELLO};
    struct sockaddr_un address;
    socklen_t bytes = address_of(conn->peer_name, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0 || connect(fd, (struct sockaddr *)&address, bytes)) {
        if (fd >= 0)
            (void)close(fd);
        conn_lost(conn);
        return;
    }
    channel_init(&conn->out, fd, conn);
    memcpy(&hello.key, conn->peer_token, 8);
    memcpy(&hello.offset, conn->peer_token + 8, 8);
    if (!wire_queue(&conn->out, &hello, NULL, NULL, NULL))
        conn_lost(conn);
}

void wire_accept(struct transport *transport)
{
    int fd;

    while ((fd = accept4(transport->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        unsigned i = 0;

        while (i < MAX_SOCKETS && transport->incoming[i].fd >= 0)
            i++;
        if (i == MAX_SOCKETS)
            (void)close(fd);
        else
            channel_init(&transport->incoming[i], fd, NULL);
    }
}

bool wire_queue(struct channel *channel, const struct frame *frame, const void *payload, struct operation *operation,
                const struct registration *source)
{
    struct message *message = calloc(1, sizeof *message);

    if (!message)
        return false;
    message->frame = *frame;
    message->payload = payload;
    message->operation = operation;
    message->source = source;
    *channel->last = message;
    channel->last = &message->next;
    return true;
}

/* The wire drops its unsent frames; operations stay with their connection. */
void wire_drop(struct channel *channel)
{
    if (channel->fd < 0)
        return;
    (void)close(channel->fd);
    channel->fd = -1;
    while (channel->first) {
        struct message *message = channel->first;

        channel->first = message->next;
        free(message);
    }
    channel->last = &channel->first;
    channel->target = NULL;
    if (channel->conn && channel->conn->in == channel)
        channel->conn->in = NULL;
}

static void channel_fail(struct channel *channel)
{
    struct conn *conn = channel->conn;

    wire_drop(channel);
    if (conn)
        conn_lost(conn);
}

void wire_forget(struct transport *transport, const struct registration *registration)
{
    for (unsigned i = 0; i < MAX_SOCKETS; i++) {
        struct channel *channel = &transport->incoming[i];
        bool used = false;

        if (channel->fd < 0)
            continue;
        for (struct message *at = channel->first; at; at = at->next)
            used = used || at->source == registration;
        if (used)
            channel_fail(channel);
    }
}

/* ---- frames that came in ---- */

static bool on_hello(struct channel *channel, struct transport *transport, const struct frame *frame)
{
    uint8_t token[TOKEN_BYTES];

    memcpy(token, &frame->key, 8);
    memcpy(token + 8, &frame->offset, 8);
    for (struct conn *conn = transport->conns; conn; conn = conn->next)
        if (!memcmp(conn->token, token, sizeof token) && !conn->token_used && !conn->closing) {
            conn->token_used = true;
            conn->in = channel;
            channel->conn = conn;
            return true;
        }
    return false;
}

static bool on_read(struct channel *channel, struct transport *transport, const struct frame *frame)
{
    struct frame answer = {.type = FRAME_ANSWER, .transfer = frame->transfer, .chunk = frame->chunk, .refused = 1};
    const struct registration *at = transport->registrations;

    while (at && at->key != frame->key)
        at = at->next;
    if (!at || frame->offset > at->bytes || frame->bytes > at->bytes - frame->offset)
        return wire_queue(channel, &answer, NULL, NULL, NULL);
    answer.refused = 0;
    answer.bytes = frame->bytes;
    return wire_queue(channel, &answer, loopback_real(at->addr + frame->offset, at->on_device), NULL, at);
}

static uint64_t payload_bytes(const struct frame *frame)
{
    return frame->type == FRAME_READ ? 0 : frame->bytes;
}

/* The frame is complete, its payload is not yet. False: not one that may come here. */
static bool on_frame(struct channel *channel, struct transport *transport)
{
    const struct frame *frame = &channel->in;

    if (!channel->conn)
        return frame->type == FRAME_HELLO && !frame->bytes && on_hello(channel, transport, frame);
    if (frame->type == FRAME_CLEAR)
        return transport->ordered && !frame->bytes && op_clear(channel->conn, frame->transfer, frame->chunk);
    if (frame->type == FRAME_READ)
        return on_read(channel, transport, frame);
    if (frame->type != FRAME_DATA && frame->type != FRAME_ANSWER)
        return false;

    struct operation *operation =
        op_find(channel->conn, frame->type == FRAME_DATA ? OP_RECV : OP_READ, frame->transfer, frame->chunk);
    if (!operation)
        return true; /* dropped */
    if (frame->type == FRAME_ANSWER && frame->refused) {
        op_end(operation, RDT_TRANSPORT, "the owner refused the read");
    } else if (operation->op->piece.bytes != frame->bytes) {
        op_end(operation, RDT_TRANSPORT, "the peer's chunk has another length than the one posted for it");
    } else {
        operation->state = OP_RUNNING;
        channel->target = operation;
    }
    return true;
}

static void on_payload(struct channel *channel)
{
    struct operation *target = channel->target;

    channel->target = NULL;
    channel->in_at = 0;
    if (target && target->state == OP_RUNNING && channel->in.type == FRAME_DATA && channel->in.refused)
        loopback_address(target->op)[0] ^= 1;
    if (target && target->state == OP_RUNNING)
        op_end(target, RDT_OK, NULL);
}

/* The payload of a dropped or late chunk goes where nobody looks. */
static ssize_t read_some(struct channel *channel)
{
    static _Thread_local uint8_t nowhere[65536];

    if (channel->in_at < sizeof channel->in)
        return recv(channel->fd, (char *)&channel->in + channel->in_at, sizeof channel->in - channel->in_at, 0);
    uint64_t at = channel->in_at - sizeof channel->in;
    uint64_t left = payload_bytes(&channel->in) - at;
    if (channel->target && channel->target->state == OP_RUNNING)
        return recv(channel->fd, loopback_address(channel->target->op) + at, left < TICKET_BYTES ? left : TICKET_BYTES, 0);
    return recv(channel->fd, nowhere, left < sizeof nowhere ? left : sizeof nowhere, 0);
}

static bool read_turn(struct transport *transport, struct channel *channel)
{
    uint64_t moved = 0;

    while (moved < TICKET_BYTES) {
        ssize_t n = read_some(channel);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return false;
        if (n <= 0) {
            channel_fail(channel);
            return false;
        }
        moved += (uint64_t)n;
        channel->in_at += (uint64_t)n;
        if (channel->in_at == sizeof channel->in && !on_frame(channel, transport)) {
            channel_fail(channel);
            return false;
        }
        if (channel->in_at >= sizeof channel->in && channel->in_at == sizeof channel->in + payload_bytes(&channel->in))
            on_payload(channel);
    }
    return true;
}

static bool write_turn(struct channel *channel)
{
    uint64_t moved = 0;

    while (channel->first && moved < TICKET_BYTES) {
        struct message *message = channel->first;
        uint64_t frame_bytes = sizeof message->frame, total = frame_bytes + payload_bytes(&message->frame), left;
        bool in_frame = message->at < frame_bytes;
        const uint8_t *from =
            in_frame ? (const uint8_t *)&message->frame + message->at : message->payload + (message->at - frame_bytes);

        left = (in_frame ? frame_bytes : total) - message->at;
        ssize_t n = send(channel->fd, from, left < TICKET_BYTES ? left : TICKET_BYTES, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return false;
        if (n < 0) {
            channel_fail(channel);
            return false;
        }
        moved += (uint64_t)n;
        message->at += (uint64_t)n;
        if (message->at < total)
            continue;
        channel->first = message->next;
        if (!channel->first)
            channel->last = &channel->first;
        if (message->operation)
            op_end(message->operation, RDT_OK, NULL);
        free(message);
    }
    return channel->first;
}

void wire_move(struct transport *transport, struct channel *channel)
{
    bool more = true;

    /* Runs a few rounds, and then releases the lock for those who wait for it. */
    for (unsigned i = 0; i < 4 && more && channel->fd >= 0; i++) {
        more = channel->first && write_turn(channel);
        if (channel->fd >= 0)
            more = read_turn(transport, channel) || more;
    }
}
