/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/raw.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void raw_connect(struct raw *raw, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    *raw = (struct raw){.sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    must((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s", path) < sizeof address.sun_path);
    must(raw->sock >= 0 && connect(raw->sock, (struct sockaddr *)&address, sizeof address) == 0);
    frame_reader_init(&raw->reader, RDT_MAX_FRAME_BYTES);
}

void raw_close(struct raw *raw)
{
    frame_reader_fini(&raw->reader);
    (void)close(raw->sock);
    raw->sock = -1;
}

static bool ready(int fd, short events)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};

    return poll(&poll_fd, 1, (int)(LONG / MSEC)) == 1;
}

static bool send_some(struct raw *raw, const uint8_t **bytes_p, size_t *n_p, const int *fds, unsigned n_fds)
{
    char control[CMSG_SPACE(253 * sizeof(int))] = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)*bytes_p, .iov_len = *n_p};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds > 0) {
        struct cmsghdr *cmsg = (struct cmsghdr *)(void *)control;
        msg.msg_control = control;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
    }
    must_say(ready(raw->sock, POLLOUT), "the daemon takes nothing more");
    ssize_t sent = sendmsg(raw->sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
        return false;
    if (sent < 0)
        must_say(errno == EAGAIN || errno == EINTR, "sendmsg: %s", strerror(errno));
    if (sent > 0) {
        *bytes_p += sent;
        *n_p -= (size_t)sent;
    }
    return true;
}

bool raw_bytes(struct raw *raw, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;

    while (n > 0)
        if (!send_some(raw, &at, &n, NULL, 0))
            return false;
    return true;
}

bool raw_frame(struct raw *raw, uint32_t length, uint16_t type, uint8_t nfds, uint8_t flags, uint64_t id, const void *payload,
               size_t payload_bytes, const int *fds, unsigned n_fds)
{
    uint8_t header[FRAME_HEADER_BYTES];
    const uint8_t *at = header;
    size_t n = sizeof header;

    frame_header_encode(header, length, type, nfds, flags, id);
    if (!send_some(raw, &at, &n, fds, n_fds))
        return false;
    return raw_bytes(raw, at, n) && raw_bytes(raw, payload, payload_bytes);
}

uint64_t raw_send(struct raw *raw, uint16_t type, const ProtobufCMessage *message, const int *fds, unsigned n_fds)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *payload = malloc(bytes + 1);

    must(payload);
    (void)protobuf_c_message_pack(message, payload);
    must(raw_frame(raw, (uint32_t)bytes, type, (uint8_t)n_fds, 0, ++raw->last_id, payload, bytes, fds, n_fds));
    free(payload);
    return raw->last_id;
}

bool raw_next(struct raw *raw)
{
    for (;;) {
        struct rdt_error err = {0};
        enum rdt_status status = frame_reader_next(&raw->reader, &raw->frame, &err);
        size_t n;

        if (status == RDT_OK)
            return true;
        must_say(status == RDT_AGAIN, "the daemon breaks the protocol: %s", err.msg);
        must_say(ready(raw->sock, POLLIN), "the daemon says nothing");
        status = frame_reader_recv(&raw->reader, raw->sock, &n, &err);
        if (status == RDT_DISCONNECTED)
            return false;
        must_say(status == RDT_OK || status == RDT_AGAIN, "%s", err.msg);
    }
}

ProtobufCMessage *raw_reply(struct raw *raw, uint64_t id, const ProtobufCMessageDescriptor *type)
{
    must_say(raw_next(raw), "the daemon has closed");
    if (raw->frame.flags & FRAME_ERROR) {
        Rdt__Pb__ErrorReply *error = rdt__pb__error_reply__unpack(NULL, raw->frame.length, raw->frame.payload);
        fail("the daemon answers %s: %s", rdt_status_name((enum rdt_status)error->status), error->message);
    }
    must_say(raw->frame.request_id == id && raw->frame.flags == FRAME_REPLY, "frame of type %u, flags %u, id %llu",
             raw->frame.type, raw->frame.flags, (unsigned long long)raw->frame.request_id);
    ProtobufCMessage *message = protobuf_c_message_unpack(type, NULL, raw->frame.length, raw->frame.payload);
    must(message);
    return message;
}

enum rdt_status raw_error(struct raw *raw, char text_p[256])
{
    must_say(raw_next(raw), "the daemon has closed without an answer");
    must_say(raw->frame.flags == (FRAME_REPLY | FRAME_ERROR), "flags %u", raw->frame.flags);
    Rdt__Pb__ErrorReply *error = rdt__pb__error_reply__unpack(NULL, raw->frame.length, raw->frame.payload);
    must(error);
    (void)snprintf(text_p, 256, "%s", error->message);
    enum rdt_status status = (enum rdt_status)error->status;
    rdt__pb__error_reply__free_unpacked(error, NULL);
    return status;
}

uint64_t raw_alloc(struct raw *raw, uint64_t bytes, int *fd_p, uint64_t *generation_p)
{
    Rdt__Pb__Alloc alloc = MESSAGE(alloc, .bytes = bytes);
    Rdt__Pb__RegionReply *reply = (Rdt__Pb__RegionReply *)raw_reply(raw, raw_send(raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0),
                                                                    &rdt__pb__region_reply__descriptor);
    uint64_t region = reply->region;
    *generation_p = reply->generation;
    if (fd_p)
        *fd_p = frame_take_fd(&raw->frame, 0);
    frame_close_fds(&raw->frame);
    rdt__pb__region_reply__free_unpacked(reply, NULL);
    return region;
}

uint64_t raw_used(struct raw *raw, const char *what)
{
    Rdt__Pb__List request = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_OWNERS);
    Rdt__Pb__ListReply *reply = (Rdt__Pb__ListReply *)raw_reply(raw, raw_send(raw, RDT_MSG_LIST, &request.base, NULL, 0),
                                                                &rdt__pb__list_reply__descriptor);
    uint64_t used = UINT64_MAX;

    for (size_t i = 0; i < reply->n_owners; i++)
        for (size_t k = 0; reply->owners[i]->uid == geteuid() && k < reply->owners[i]->n_usage; k++)
            if (strcmp(reply->owners[i]->usage[k]->what, what) == 0)
                used = reply->owners[i]->usage[k]->used;
    must_say(used != UINT64_MAX, "%s is not counted", what);
    rdt__pb__list_reply__free_unpacked(reply, NULL);
    return used;
}

void raw_expect_closed(struct raw *raw)
{
    must_say(!raw_next(raw), "a frame of type %u instead of the end", raw->frame.type);
}

void raw_hello(struct raw *raw)
{
    Rdt__Pb__Hello hello =
        MESSAGE(hello, .protocol_min = RDT_PROTOCOL_MIN, .protocol_max = RDT_PROTOCOL_MAX, .client_name = (char *)"raw");
    protobuf_c_message_free_unpacked(
        raw_reply(raw, raw_send(raw, RDT_MSG_HELLO, &hello.base, NULL, 0), &rdt__pb__hello_reply__descriptor), NULL);
}
