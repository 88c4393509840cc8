/* See peer.h. */
#include "tests/support/insider.h"

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

const uint8_t insider_uuid[16] = "insider's uuid.";
uint8_t insider_boot_id[16] = "insider's boots";
int (*insider_poll)(struct pollfd *fds, nfds_t n, int timeout_ms) = poll;

static void lost(struct insider *insider)
{
    if (insider->sock >= 0)
        close(insider->sock);
    insider->sock = -1;
}

static bool wait_for(int sock, short events, int timeout_ms)
{
    struct pollfd ready = {.fd = sock, .events = events};
    int n;

    do {
        n = insider_poll(&ready, 1, timeout_ms);
    } while (n < 0 && errno == EINTR); /* libFuzzer's clock */
    return n == 1;
}

static void flush_out(struct insider *insider)
{
    uint8_t buf[16384];
    size_t n;

    while (insider->sock >= 0 && (n = tls_take(&insider->tls, buf, sizeof buf)) > 0) {
        for (size_t done = 0; insider->sock >= 0 && done < n;) {
            ssize_t sent =
                wait_for(insider->sock, POLLOUT, 5000) ? send(insider->sock, buf + done, n - done, MSG_NOSIGNAL) : -1;

            if (sent < 0)
                lost(insider);
            else
                done += (size_t)sent;
        }
    }
}

/* ---- what comes ---- */

static void take(struct insider *insider, const struct frame *frame)
{
    Rdt__Pb__Pull *pull;
    Rdt__Pb__Call *call;

    if (frame->type < INSIDER_TYPES) {
        free(insider->came[frame->type].payload);
        insider->came[frame->type].payload = malloc(frame->length + 1u);
        insist(insider->came[frame->type].payload != NULL);
        memcpy(insider->came[frame->type].payload, frame->payload, frame->length);
        insider->came[frame->type].bytes = frame->length;
        insider->came[frame->type].n++;
    }
    switch (frame->type) {
    case RDT_PEER_PING:
        insider_say(insider, RDT_PEER_PONG, 0, frame->payload, frame->length, false);
        break;
    case RDT_PEER_PULL:
        pull = rdt__pb__pull__unpack(NULL, frame->length, frame->payload);
        insist(pull != NULL);
        insider->pulls[insider->n_pulls++ % INSIDER_ASKED] = pull->transfer;
        rdt__pb__pull__free_unpacked(pull, NULL);
        break;
    case RDT_PEER_CALL:
        call = rdt__pb__call__unpack(NULL, frame->length, frame->payload);
        insist(call != NULL);
        insider->calls[insider->n_calls++ % INSIDER_ASKED] = call->call;
        rdt__pb__call__free_unpacked(call, NULL);
        break;
    default:
        break;
    }
}

static void read_in(struct insider *insider)
{
    uint8_t buf[16384];
    ssize_t n = recv(insider->sock, buf, sizeof buf, MSG_DONTWAIT);

    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        lost(insider);
        return;
    }
    if (n > 0)
        insist(tls_feed(&insider->tls, buf, (size_t)n, NULL) == RDT_OK);
    if (!insider->secure) {
        enum rdt_status status = tls_handshake(&insider->tls, NULL);
        insist(status != RDT_DENIED);
        insider->secure = status == RDT_OK;
        flush_out(insider);
    }
    while (insider->secure) {
        size_t have, got;
        uint8_t *space = frame_reader_space(&insider->reader, 16384, &have);
        struct frame frame;

        insist(space != NULL);
        if (tls_read(&insider->tls, space, have, &got, NULL) != RDT_OK)
            break;
        frame_reader_commit(&insider->reader, got);
        while (frame_reader_next(&insider->reader, &frame, NULL) == RDT_OK)
            take(insider, &frame);
    }
}

void insider_listen(struct insider *insider, int timeout_ms)
{
    while (insider->sock >= 0 && wait_for(insider->sock, POLLIN, timeout_ms)) {
        read_in(insider);
        timeout_ms = 0;
    }
}

/* ---- what goes ---- */

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
static void name_members(const struct insider *insider, Rdt__Pb__GroupPropose *propose)
{
    Rdt__Pb__LinkHello *hello =
        rdt__pb__link_hello__unpack(NULL, insider->came[RDT_PEER_HELLO].bytes, insider->came[RDT_PEER_HELLO].payload);

    for (size_t i = 0; hello && i < propose->n_members; i++) {
        ProtobufCBinaryData *node = &propose->members[i]->node;
        if (node->len == 16 && hello->node_uuid.len == 16 && memcmp(node->data, "!!!!!!!!!!!!!!!!", 16) == 0)
            memcpy(node->data, hello->node_uuid.data, 16);
    }
    if (hello)
        rdt__pb__link_hello__free_unpacked(hello, NULL);
}

/* "################" in place of a group's token means that of the group which the daemon proposed last. */
static void name_token(const struct insider *insider, ProtobufCBinaryData *token)
{
    Rdt__Pb__GroupPropose *propose = rdt__pb__group_propose__unpack(NULL, insider->came[RDT_PEER_GROUP_PROPOSE].bytes,
                                                                    insider->came[RDT_PEER_GROUP_PROPOSE].payload);

    if (propose && propose->token.len == 16 && token->len == 16 && memcmp(token->data, "################", 16) == 0)
        memcpy(token->data, propose->token.data, 16);
    if (propose)
        rdt__pb__group_propose__free_unpacked(propose, NULL);
}

/* The same of a broadcast: LAST means the one that the daemon began last. */
static void name_broadcast(const struct insider *insider, uint64_t *number)
{
    Rdt__Pb__GroupBroadcast *began = rdt__pb__group_broadcast__unpack(NULL, insider->came[RDT_PEER_BROADCAST].bytes,
                                                                      insider->came[RDT_PEER_BROADCAST].payload);

    if (began && *number == LAST)
        *number = began->broadcast;
    if (began)
        rdt__pb__group_broadcast__free_unpacked(began, NULL);
}

static void name_start(const struct insider *insider, Rdt__Pb__PullStart *start)
{
    name_token(insider, &start->group);
    name_broadcast(insider, &start->broadcast);
}

static void name_all(const struct insider *insider, uint16_t type, ProtobufCMessage *message)
{
    if (type == RDT_PEER_GROUP_PROPOSE)
        name_members(insider, (Rdt__Pb__GroupPropose *)message);
    else if (type == RDT_PEER_GROUP_ACCEPT)
        name_token(insider, &((Rdt__Pb__GroupAccept *)message)->token);
    else if (type == RDT_PEER_GROUP_COMMIT)
        name_token(insider, &((Rdt__Pb__GroupCommit *)message)->token);
    else if (type >= RDT_PEER_GROUP_READY && type <= RDT_PEER_GROUP_ENDED)
        name_token(insider, &((Rdt__Pb__GroupWord *)message)->token);
    else if (type == RDT_PEER_PULL && ((Rdt__Pb__Pull *)message)->start)
        name_start(insider, ((Rdt__Pb__Pull *)message)->start);
    else if (type == RDT_PEER_PULL_START)
        name_start(insider, (Rdt__Pb__PullStart *)message);
    else if (type == RDT_PEER_BROADCAST_WORD)
        name_broadcast(insider, &((Rdt__Pb__BroadcastWord *)message)->broadcast);
    else if (type == RDT_PEER_PULL_PARKED)
        name_number(insider->pulls, insider->n_pulls, &((Rdt__Pb__PullParked *)message)->transfer);
    else if (type == RDT_PEER_PULL_TURN && ((Rdt__Pb__PullTurn *)message)->from_owner)
        name_number(insider->pulls, insider->n_pulls, &((Rdt__Pb__PullTurn *)message)->transfer);
    else if (type == RDT_PEER_PULL_META)
        name_number(insider->pulls, insider->n_pulls, &((Rdt__Pb__PullMeta *)message)->transfer);
    else if (type == RDT_PEER_PULL_KEYS)
        name_number(insider->pulls, insider->n_pulls, &((Rdt__Pb__PullKeys *)message)->transfer);
    else if (type == RDT_PEER_PULL_ABORTED)
        name_number(insider->pulls, insider->n_pulls, &((Rdt__Pb__PullAborted *)message)->transfer);
    else if (type == RDT_PEER_PULL_END && ((Rdt__Pb__PullEnd *)message)->from_owner)
        name_number(insider->pulls, insider->n_pulls, &((Rdt__Pb__PullEnd *)message)->transfer);
    else if (type == RDT_PEER_CALL_REPLY)
        name_number(insider->calls, insider->n_calls, &((Rdt__Pb__CallReply *)message)->call);
}

void insider_say(struct insider *insider, uint16_t type, uint8_t flags, const uint8_t *payload, size_t n, bool known)
{
    const ProtobufCMessageDescriptor *descriptor = descriptor_of(type);
    ProtobufCMessage *message = known && descriptor ? protobuf_c_message_unpack(descriptor, NULL, n, payload) : NULL;
    uint8_t *frame;

    if (message) {
        name_all(insider, type, message);
        n = protobuf_c_message_get_packed_size(message);
    }
    frame = malloc(FRAME_HEADER_BYTES + n);
    insist(frame != NULL);
    frame_header_encode(frame, (uint32_t)n, type, 0, flags, 0);
    if (message)
        (void)protobuf_c_message_pack(message, frame + FRAME_HEADER_BYTES);
    else if (n)
        memcpy(frame + FRAME_HEADER_BYTES, payload, n);
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
    if (insider->sock >= 0)
        insist(tls_write(&insider->tls, frame, FRAME_HEADER_BYTES + n, NULL) == RDT_OK);
    free(frame);
    flush_out(insider);
}

void insider_flush(struct insider *insider)
{
    Rdt__Pb__LinkPing ping = RDT__PB__LINK_PING__INIT;
    uint8_t packed[16];
    unsigned before = insider->came[RDT_PEER_PONG].n;

    ping.sequence = 1;
    insider_say(insider, RDT_PEER_PING, 0, packed, rdt__pb__link_ping__pack(&ping, packed), false);
    (void)insider_await(insider, RDT_PEER_PONG, before + 1);
}

void insider_send(struct insider *insider, uint16_t type, const ProtobufCMessage *message)
{
    size_t n = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(n + 1);

    insist(packed != NULL);
    (void)protobuf_c_message_pack(message, packed);
    insider_say(insider, type, 0, packed, n, false);
    free(packed);
}

void insider_begin_frame(struct insider *insider, uint16_t type, uint32_t claimed, size_t n)
{
    uint8_t *frame = calloc(1, FRAME_HEADER_BYTES + n);

    insist(frame != NULL);
    frame_header_encode(frame, claimed, type, 0, 0, 0);
    insist(tls_write(&insider->tls, frame, FRAME_HEADER_BYTES + n, NULL) == RDT_OK);
    free(frame);
    flush_out(insider);
}

bool insider_await(struct insider *insider, uint16_t type, unsigned n)
{
    while (insider->sock >= 0 && insider->came[type].n < n) {
        insist(wait_for(insider->sock, POLLIN, LONG_MS));
        read_in(insider);
    }
    return insider->came[type].n >= n;
}

void insider_open(struct insider *insider, const char *key_path, uint16_t port)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    Rdt__Pb__LinkHello hello = RDT__PB__LINK_HELLO__INIT;
    int on = 1;

    memset(insider, 0, sizeof *insider);
    insist(tls_context_create(key_path, &insider->context, NULL) == RDT_OK);
    insider->sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    insist(insider->sock >= 0);
    if (connect(insider->sock, (struct sockaddr *)&in, sizeof in) != 0 && (errno != EINTR || !wait_for(insider->sock, POLLOUT, LONG_MS))) {
        perror("the insider cannot connect");
        abort();
    }
    (void)setsockopt(insider->sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    insist(tls_init(&insider->tls, insider->context, false, NULL) == RDT_OK);
    frame_reader_init(&insider->reader, RDT_MAX_FRAME_BYTES);
    insider->secure = tls_handshake(&insider->tls, NULL) == RDT_OK;
    flush_out(insider);
    insist(insider_await(insider, RDT_PEER_HELLO, 1));
    hello.protocol_min = RDT_PROTOCOL_MIN;
    hello.protocol_max = RDT_PROTOCOL_MAX;
    hello.node_uuid = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)insider_uuid};
    hello.boot_id = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)insider_boot_id};
    hello.version = (char *)"insider";
    insider_send(insider, RDT_PEER_HELLO, &hello.base);
    insider_flush(insider);
    insist(insider->sock >= 0);
}

void insider_close(struct insider *insider)
{
    lost(insider);
    frame_reader_fini(&insider->reader);
    tls_fini(&insider->tls);
    tls_context_destroy(insider->context);
    for (unsigned i = 0; i < INSIDER_TYPES; i++)
        free(insider->came[i].payload);
}
