/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of the control plane: a server that only unpacks each request and packs its reply. It uses libuv (uv_poll),
 * recvmsg, and one sendmsg for all replies to the requests of one read.
 *
 *     echo unix PATH | echo tcp PORT       serves until it is killed; says "ready" on stdout
 */
#include <sys/mman.h>
#include <uv.h>

#include "bench_socket.h"
#include "rdt.pb-c.h"

struct peer {
    uv_poll_t poll;
    int sock;
    size_t n_in, n_out;
    int send_fd; /* with the next write; -1: none */
    uint8_t in[BENCH_BUFFER_BYTES], out[BENCH_BUFFER_BYTES];
};

static int big_memory = -1;

static void on_closed(uv_handle_t *handle)
{
    struct peer *peer = handle->data;

    (void)close(peer->sock);
    free(peer);
}

/* ---- requests ---- */

static void answer(struct peer *peer, const struct bench_header *header, const ProtobufCMessage *message)
{
    peer->n_out += bench_pack(peer->out + peer->n_out, sizeof peer->out - peer->n_out, header->type, header->id, message);
}

static void on_put(struct peer *peer, const struct bench_header *header, const uint8_t *bytes)
{
    static uint8_t node[16] = {1}, id[16] = {2};
    static uint64_t generation = UINT64_C(1) << 62; /* as long in the message as rdtd's */
    Rdt__Pb__Put *put = rdt__pb__put__unpack(NULL, header->bytes, bytes);
    Rdt__Pb__PutReply reply = RDT__PB__PUT_REPLY__INIT;
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;

    if (!put)
        bench_die("a bad Put");
    ref.node = (ProtobufCBinaryData){sizeof node, node};
    ref.id = (ProtobufCBinaryData){sizeof id, id};
    ref.generation = ++generation;
    ref.address = "127.0.0.1:17171";
    reply.ref = &ref;
    answer(peer, header, &reply.base);
    rdt__pb__put__free_unpacked(put, NULL);
}

static void on_free(struct peer *peer, const struct bench_header *header, const uint8_t *bytes)
{
    Rdt__Pb__Free *message = rdt__pb__free__unpack(NULL, header->bytes, bytes);
    Rdt__Pb__Empty reply = RDT__PB__EMPTY__INIT;

    if (!message)
        bench_die("a bad Free");
    answer(peer, header, &reply.base);
    rdt__pb__free__free_unpacked(message, NULL);
}

static void on_ping(struct peer *peer, const struct bench_header *header, const uint8_t *bytes)
{
    static uint8_t data[BENCH_SMALL_BYTES];
    Rdt__Pb__Ping *message = rdt__pb__ping__unpack(NULL, header->bytes, bytes);
    Rdt__Pb__Ping reply = RDT__PB__PING__INIT;

    if (!message)
        bench_die("a bad Ping");
    reply.data = message->data;
    if (header->type == BENCH_READ)
        reply.data = (ProtobufCBinaryData){sizeof data, data};
    else if (header->type == BENCH_PASS_FD)
        peer->send_fd = big_memory;
    answer(peer, header, &reply.base);
    rdt__pb__ping__free_unpacked(message, NULL);
}

static void on_requests(struct peer *peer)
{
    size_t at = 0;
    struct bench_header header;

    while (peer->n_in - at >= sizeof header) {
        const uint8_t *bytes = peer->in + at + sizeof header;

        memcpy(&header, peer->in + at, sizeof header);
        if (peer->n_in - at - sizeof header < header.bytes)
            break;
        if (header.type == BENCH_PUT)
            on_put(peer, &header, bytes);
        else if (header.type == BENCH_FREE)
            on_free(peer, &header, bytes);
        else
            on_ping(peer, &header, bytes);
        at += sizeof header + header.bytes;
    }
    memmove(peer->in, peer->in + at, peer->n_in - at);
    peer->n_in -= at;
}

/* ---- the socket ---- */

static void flush(struct peer *peer)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {peer->out, peer->n_out};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (peer->send_fd >= 0) {
        memset(&control, 0, sizeof control);
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &peer->send_fd, sizeof(int));
    }
    if (peer->n_out > 0 && sendmsg(peer->sock, &msg, MSG_NOSIGNAL) != (ssize_t)peer->n_out)
        bench_die("a reply did not go out whole"); /* one request at a time: the socket has room */
    peer->n_out = 0;
    peer->send_fd = -1;
}

static void on_socket(uv_poll_t *poll, int status, int events)
{
    struct peer *peer = poll->data;
    struct iovec iov = {peer->in + peer->n_in, sizeof peer->in - peer->n_in};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n = status < 0 ? 0 : recvmsg(peer->sock, &msg, MSG_DONTWAIT);

    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        uv_close((uv_handle_t *)poll, on_closed);
        return;
    }
    peer->n_in += (size_t)n;
    on_requests(peer);
    flush(peer);
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    int fd, on = 1, sock;
    struct peer *peer;

    if (status < 0 || uv_fileno((uv_handle_t *)poll, &fd) != 0)
        return;
    sock = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0)
        return;
    (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* nothing to a Unix socket */
    peer = calloc(1, sizeof *peer);
    if (!peer)
        bench_die("no memory");
    peer->sock = sock;
    peer->send_fd = -1;
    (void)uv_poll_init(poll->loop, &peer->poll, sock);
    peer->poll.data = peer;
    (void)uv_poll_start(&peer->poll, UV_READABLE, on_socket);
}

int main(int argc, char **argv)
{
    uv_loop_t *loop = uv_default_loop();
    uv_poll_t listener;

    if (argc != 3 || (strcmp(argv[1], "unix") != 0 && strcmp(argv[1], "tcp") != 0))
        bench_die("usage: echo unix PATH | echo tcp PORT");
    int sock = strcmp(argv[1], "unix") == 0 ? bench_listen_unix(argv[2]) : bench_listen_tcp((uint16_t)bench_number(argv[2]));
    big_memory = memfd_create("bench", MFD_CLOEXEC);
    if (big_memory < 0 || ftruncate(big_memory, (off_t)BENCH_BIG_BYTES) != 0)
        bench_die("no memfd: %s", strerror(errno));
    (void)uv_poll_init(loop, &listener, sock);
    (void)uv_poll_start(&listener, UV_READABLE, on_connection);
    (void)puts("ready");
    (void)fflush(stdout);
    return uv_run(loop, UV_RUN_DEFAULT);
}
