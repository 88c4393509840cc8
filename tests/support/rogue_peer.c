/* SPDX-License-Identifier: Apache-2.0 */
/* See rogue_peer.h. */
#include "tests/support/rogue_peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LONG_MS 30000
#define LAST 255

#define insist(condition)                                                           \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

const uint8_t rogue_peer_uuid[16] = "insider's uuid.";
uint8_t rogue_peer_boot_id[16] = "insider's boots";
int (*rogue_peer_poll)(struct pollfd *fds, nfds_t n, int timeout_ms) = poll;

static void lost(struct rogue_peer *rogue_peer)
{
    if (rogue_peer->sock >= 0)
        close(rogue_peer->sock);
    rogue_peer->sock = -1;
}

static bool wait_for(int sock, short events, int timeout_ms)
{
    struct pollfd ready = {.fd = sock, .events = events};
    int n;

    do {
        n = rogue_peer_poll(&ready, 1, timeout_ms);
    } while (n < 0 && errno == EINTR); /* libFuzzer's clock */
    return n == 1;
}

static void flush_out(struct rogue_peer *rogue_peer)
{
    uint8_t buf[16384];
    size_t n;

    while (rogue_peer->sock >= 0 && (n = tls_take(&rogue_peer->tls, buf, sizeof buf)) > 0) {
        for (size_t done = 0; rogue_peer->sock >= 0 && done < n;) {
            ssize_t sent =
                wait_for(rogue_peer->sock, POLLOUT, 5000) ? send(rogue_peer->sock, buf + done, n - done, MSG_NOSIGNAL) : -1;

            if (sent < 0)
                lost(rogue_peer);
            else
                done += (size_t)sent;
        }
    }
}

/* ---- receiving ---- */

static void take(struct rogue_peer *rogue_peer, const struct frame *frame)
{
    Rdt__Pb__Pull *pull;
    Rdt__Pb__Call *call;

    insist(frame->type != RDT_PEER_PULL_ABORTED); /* Nobody sends it any more. */
    if (frame->type < INSIDER_TYPES) {
        free(rogue_peer->came[frame->type].payload);
        rogue_peer->came[frame->type].payload = malloc(frame->length + 1u);
        insist(rogue_peer->came[frame->type].payload);
        memcpy(rogue_peer->came[frame->type].payload, frame->payload, frame->length);
        rogue_peer->came[frame->type].bytes = frame->length;
        rogue_peer->came[frame->type].n++;
    }
    switch (frame->type) {
    case RDT_PEER_PING:
        rogue_peer_say(rogue_peer, RDT_PEER_PONG, 0, frame->payload, frame->length, false);
        break;
    case RDT_PEER_PULL:
        pull = rdt__pb__pull__unpack(NULL, frame->length, frame->payload);
        insist(pull);
        rogue_peer->pulls[rogue_peer->n_pulls++ % INSIDER_ASKED] = pull->transfer;
        rdt__pb__pull__free_unpacked(pull, NULL);
        break;
    case RDT_PEER_CALL:
        call = rdt__pb__call__unpack(NULL, frame->length, frame->payload);
        insist(call);
        rogue_peer->calls[rogue_peer->n_calls++ % INSIDER_ASKED] = call->call;
        rdt__pb__call__free_unpacked(call, NULL);
        break;
    default:
        break;
    }
}

static void read_in(struct rogue_peer *rogue_peer)
{
    uint8_t buf[16384];
    ssize_t n = recv(rogue_peer->sock, buf, sizeof buf, MSG_DONTWAIT);

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        lost(rogue_peer);
        return;
    }
    if (n > 0)
        insist(tls_feed(&rogue_peer->tls, buf, (size_t)n, NULL) == RDT_OK);
    if (!rogue_peer->secure) {
        enum rdt_status status = tls_handshake(&rogue_peer->tls, NULL);
        insist(status != RDT_DENIED);
        rogue_peer->secure = status == RDT_OK;
        flush_out(rogue_peer);
    }
    while (rogue_peer->secure) {
        size_t have, got;
        uint8_t *space = frame_reader_space(&rogue_peer->reader, 16384, &have);
        struct frame frame;

        insist(space);
        if (tls_read(&rogue_peer->tls, space, have, &got, NULL) != RDT_OK)
            break;
        frame_reader_commit(&rogue_peer->reader, got);
        while (frame_reader_next(&rogue_peer->reader, &frame, NULL) == RDT_OK)
            take(rogue_peer, &frame);
    }
}

void rogue_peer_listen(struct rogue_peer *rogue_peer, int timeout_ms)
{
    while (rogue_peer->sock >= 0 && wait_for(rogue_peer->sock, POLLIN, timeout_ms)) {
        read_in(rogue_peer);
        timeout_ms = 0;
    }
}

/* ---- sending ---- */

static void name_number(const uint64_t *asked, unsigned n, uint64_t *number)
{
    if (*number < n && *number < INSIDER_ASKED)
        *number = asked[*number];
}

static const ProtobufCMessageDescriptor *descriptor_of(uint16_t type)
{
    switch (type) {
#define X(number, name, message) \
    case number:                 \
        return &rdt__pb__##message##__descriptor;
        RDT_PEER_MESSAGE_MAP(X)
#undef X
    }
    return NULL;
}

/* "!" in place of a member's node means the daemon's. */
static void name_members(const struct rogue_peer *rogue_peer, Rdt__Pb__GroupPropose *propose)
{
    Rdt__Pb__LinkHello *hello =
        rdt__pb__link_hello__unpack(NULL, rogue_peer->came[RDT_PEER_HELLO].bytes, rogue_peer->came[RDT_PEER_HELLO].payload);

    for (size_t i = 0; hello && i < propose->n_members; i++) {
        ProtobufCBinaryData *node = &propose->members[i]->node;
        if (node->len == 16 && hello->node_uuid.len == 16 && memcmp(node->data, "!!!!!!!!!!!!!!!!", 16) == 0)
            memcpy(node->data, hello->node_uuid.data, 16);
    }
    if (hello)
        rdt__pb__link_hello__free_unpacked(hello, NULL);
}

/* "################" in place of a group's token means that of the group which the daemon proposed last. */
static void name_token(const struct rogue_peer *rogue_peer, ProtobufCBinaryData *token)
{
    Rdt__Pb__GroupPropose *propose = rdt__pb__group_propose__unpack(NULL, rogue_peer->came[RDT_PEER_GROUP_PROPOSE].bytes,
                                                                    rogue_peer->came[RDT_PEER_GROUP_PROPOSE].payload);

    if (propose && propose->token.len == 16 && token->len == 16 && memcmp(token->data, "################", 16) == 0)
        memcpy(token->data, propose->token.data, 16);
    if (propose)
        rdt__pb__group_propose__free_unpacked(propose, NULL);
}

/* The same of a broadcast: LAST means the one that the daemon began last. */
static void name_broadcast(const struct rogue_peer *rogue_peer, uint64_t *number)
{
    Rdt__Pb__GroupBroadcast *began = rdt__pb__group_broadcast__unpack(NULL, rogue_peer->came[RDT_PEER_BROADCAST].bytes,
                                                                      rogue_peer->came[RDT_PEER_BROADCAST].payload);

    if (began && *number == LAST)
        *number = began->broadcast;
    if (began)
        rdt__pb__group_broadcast__free_unpacked(began, NULL);
}

static void name_start(const struct rogue_peer *rogue_peer, Rdt__Pb__PullStart *start)
{
    name_token(rogue_peer, &start->group);
    name_broadcast(rogue_peer, &start->broadcast);
}

static void name_all(const struct rogue_peer *rogue_peer, uint16_t type, ProtobufCMessage *message)
{
    if (type == RDT_PEER_GROUP_PROPOSE)
        name_members(rogue_peer, (Rdt__Pb__GroupPropose *)message);
    else if (type == RDT_PEER_GROUP_ACCEPT)
        name_token(rogue_peer, &((Rdt__Pb__GroupAccept *)message)->token);
    else if (type == RDT_PEER_GROUP_COMMIT)
        name_token(rogue_peer, &((Rdt__Pb__GroupCommit *)message)->token);
    else if (type >= RDT_PEER_GROUP_READY && type <= RDT_PEER_GROUP_ENDED)
        name_token(rogue_peer, &((Rdt__Pb__GroupStatus *)message)->token);
    else if (type == RDT_PEER_PULL_START)
        name_start(rogue_peer, (Rdt__Pb__PullStart *)message);
    else if (type == RDT_PEER_BROADCAST_RESULT)
        name_broadcast(rogue_peer, &((Rdt__Pb__BroadcastResult *)message)->broadcast);
    else if (type == RDT_PEER_PULL_ALIVE)
        name_number(rogue_peer->pulls, rogue_peer->n_pulls, &((Rdt__Pb__PullAlive *)message)->transfer);
    else if (type == RDT_PEER_PULL_TICKET && ((Rdt__Pb__PullTicket *)message)->from_owner)
        name_number(rogue_peer->pulls, rogue_peer->n_pulls, &((Rdt__Pb__PullTicket *)message)->transfer);
    else if (type == RDT_PEER_PULL_META)
        name_number(rogue_peer->pulls, rogue_peer->n_pulls, &((Rdt__Pb__PullMeta *)message)->transfer);
    else if (type == RDT_PEER_PULL_KEYS)
        name_number(rogue_peer->pulls, rogue_peer->n_pulls, &((Rdt__Pb__PullKeys *)message)->transfer);
    else if (type == RDT_PEER_PULL_END && ((Rdt__Pb__PullEnd *)message)->from_owner)
        name_number(rogue_peer->pulls, rogue_peer->n_pulls, &((Rdt__Pb__PullEnd *)message)->transfer);
    else if (type == RDT_PEER_CALL_REPLY)
        name_number(rogue_peer->calls, rogue_peer->n_calls, &((Rdt__Pb__CallReply *)message)->call);
}

void rogue_peer_say(struct rogue_peer *rogue_peer, uint16_t type, uint8_t flags, const uint8_t *payload, size_t n, bool known)
{
    const ProtobufCMessageDescriptor *descriptor = descriptor_of(type);
    ProtobufCMessage *message = known && descriptor ? protobuf_c_message_unpack(descriptor, NULL, n, payload) : NULL;

    if (message) {
        name_all(rogue_peer, type, message);
        n = protobuf_c_message_get_packed_size(message);
    }
    uint8_t *frame = malloc(FRAME_HEADER_BYTES + n);
    insist(frame);
    frame_header_encode(frame, (uint32_t)n, type, 0, flags, 0);
    if (message)
        (void)protobuf_c_message_pack(message, frame + FRAME_HEADER_BYTES);
    else if (n)
        memcpy(frame + FRAME_HEADER_BYTES, payload, n);
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
    if (rogue_peer->sock >= 0)
        insist(tls_write(&rogue_peer->tls, frame, FRAME_HEADER_BYTES + n, NULL) == RDT_OK);
    free(frame);
    flush_out(rogue_peer);
}

void rogue_peer_flush(struct rogue_peer *rogue_peer)
{
    uint8_t packed[16];
    unsigned before = rogue_peer->came[RDT_PEER_PONG].n;
    Rdt__Pb__LinkPing ping = MESSAGE(link_ping, .sequence = 1);

    rogue_peer_say(rogue_peer, RDT_PEER_PING, 0, packed, rdt__pb__link_ping__pack(&ping, packed), false);
    (void)rogue_peer_await(rogue_peer, RDT_PEER_PONG, before + 1);
}

void rogue_peer_send(struct rogue_peer *rogue_peer, uint16_t type, const ProtobufCMessage *message)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(n + 1);

    insist(packed);
    (void)protobuf_c_message_pack(message, packed);
    rogue_peer_say(rogue_peer, type, 0, packed, n, false);
    free(packed);
}

void rogue_peer_begin_frame(struct rogue_peer *rogue_peer, uint16_t type, uint32_t claimed, size_t n)
{
    uint8_t *frame = calloc(1, FRAME_HEADER_BYTES + n);

    insist(frame);
    frame_header_encode(frame, claimed, type, 0, 0, 0);
    insist(tls_write(&rogue_peer->tls, frame, FRAME_HEADER_BYTES + n, NULL) == RDT_OK);
    free(frame);
    flush_out(rogue_peer);
}

bool rogue_peer_await(struct rogue_peer *rogue_peer, uint16_t type, unsigned n)
{
    while (rogue_peer->sock >= 0 && rogue_peer->came[type].n < n) {
        insist(wait_for(rogue_peer->sock, POLLIN, LONG_MS));
        read_in(rogue_peer);
    }
    return rogue_peer->came[type].n >= n;
}

void rogue_peer_open(struct rogue_peer *rogue_peer, const char *key_path, uint16_t port)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;

    memset(rogue_peer, 0, sizeof *rogue_peer);
    insist(tls_context_create(&(struct tls_files){.key = key_path}, &rogue_peer->context, NULL) == RDT_OK);
    rogue_peer->sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    insist(rogue_peer->sock >= 0);
    if (connect(rogue_peer->sock, (struct sockaddr *)&in, sizeof in) != 0 &&
        (errno != EINTR || !wait_for(rogue_peer->sock, POLLOUT, LONG_MS))) {
        perror("the rogue peer cannot connect");
        abort();
    }
    (void)setsockopt(rogue_peer->sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    insist(tls_init(&rogue_peer->tls, rogue_peer->context, false, NULL) == RDT_OK);
    frame_reader_init(&rogue_peer->reader, RDT_MAX_FRAME_BYTES);
    rogue_peer->secure = tls_handshake(&rogue_peer->tls, NULL) == RDT_OK;
    flush_out(rogue_peer);
    insist(rogue_peer_await(rogue_peer, RDT_PEER_HELLO, 1));
    Rdt__Pb__LinkHello hello = MESSAGE(link_hello, .protocol_min = RDT_PROTOCOL_MIN, .protocol_max = RDT_PROTOCOL_MAX,
                                       .node_uuid = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)rogue_peer_uuid},
                                       .boot_id = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)rogue_peer_boot_id},
                                       .version = (char *)"insider", .names = true);
    rogue_peer_send(rogue_peer, RDT_PEER_HELLO, &hello.base);
    rogue_peer_flush(rogue_peer);
    insist(rogue_peer->sock >= 0);
}

void rogue_peer_close(struct rogue_peer *rogue_peer)
{
    lost(rogue_peer);
    frame_reader_fini(&rogue_peer->reader);
    tls_fini(&rogue_peer->tls);
    tls_context_destroy(rogue_peer->context);
    for (unsigned i = 0; i < INSIDER_TYPES; i++)
        free(rogue_peer->came[i].payload);
}
