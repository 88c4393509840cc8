/* SPDX-License-Identifier: Apache-2.0 */
/* Control operations per second of rdtd and of `echo`, which answers the same messages and does nothing else. One thread
 * sends raw frames by epoll: the limit of a server shows only if its clients cost little, and any program may speak this
 * protocol (proto/frame.h).
 *
 *     ops ROUNDS RDTD_SOCKET ECHO_SOCKET
 */
#include <sys/epoll.h>

#include "bench_socket.h"
#include "proto/frame.h"
#include "proto/messages.h"
#include "rdt.pb-c.h"

#define MAX_CLIENTS 16u
#define MAX_DEPTH 64u
#define ROUND_NS 60000000

struct request {
    uint8_t frame[128];
    size_t bytes;
};

struct server {
    int socks[MAX_CLIENTS];
    struct frame_reader readers[MAX_CLIENTS];
    int epoll_fd;
    struct request ping;
};

/* Header and message: rdtd's and the reference's are the same. */
static void make(struct request *request, uint16_t type, const ProtobufCMessage *message)
{
    request->bytes = bench_pack(request->frame, sizeof request->frame, type, 1, message);
}

static void send_all(int sock, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(sock, bytes, n, MSG_NOSIGNAL);

        if (sent <= 0)
            bench_die("the server has gone: %s", strerror(errno));
        bytes += sent;
        n -= (size_t)sent;
    }
}

/* Whole answers that have come; reads once. */
static unsigned take_answers(struct server *server, unsigned client, int flags)
{
    struct rdt_error err;
    struct frame frame;
    unsigned n = 0;
    size_t got;

    if (flags == 0) { /* wait for the first */
        char byte;

        if (recv(server->socks[client], &byte, 1, MSG_PEEK) != 1)
            bench_die("the server has gone");
    }
    switch (frame_reader_recv(&server->readers[client], server->socks[client], &got, &err)) {
    case RDT_OK:
        break;
    case RDT_AGAIN:
        return 0;
    default:
        bench_die("%s", err.msg);
    }
    while (frame_reader_next(&server->readers[client], &frame, &err) == RDT_OK) {
        if (frame.flags & FRAME_ERROR)
            bench_die("request %u was refused", frame.type);
        frame_close_fds(&frame);
        n++;
    }
    return n;
}

static void hello(struct server *server, unsigned client)
{
    Rdt__Pb__Hello message = RDT__PB__HELLO__INIT;
    struct request request;

    message.protocol_min = RDT_PROTOCOL_MIN;
    message.protocol_max = RDT_PROTOCOL_MAX;
    message.client_name = (char *)"bench-ops";
    make(&request, RDT_MSG_HELLO, &message.base);
    send_all(server->socks[client], request.frame, request.bytes);
    while (take_answers(server, client, 0) == 0) {
    }
}

static void server_connect(struct server *server, const char *path, bool is_rdtd)
{
    static uint8_t data[32];
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;

    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    ping.data = (ProtobufCBinaryData){sizeof data, data};
    make(&server->ping, is_rdtd ? RDT_MSG_PING : BENCH_PING, &ping.base);
    for (unsigned i = 0; i < MAX_CLIENTS; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};

        server->socks[i] = bench_connect_unix(path);
        frame_reader_init(&server->readers[i], 1 << 20);
        if (is_rdtd)
            hello(server, i);
        if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, server->socks[i], &event) != 0)
            bench_die("epoll: %s", strerror(errno));
    }
}

static void ask(struct server *server, unsigned client, unsigned n)
{
    uint8_t frames[MAX_DEPTH * sizeof server->ping.frame];

    for (unsigned i = 0; i < n; i++)
        memcpy(frames + i * server->ping.bytes, server->ping.frame, server->ping.bytes);
    if (n > 0)
        send_all(server->socks[client], frames, n * server->ping.bytes);
}

/* Each of n clients has `depth` requests under way until the time is over. Thousands a second. */
static double measure(struct server *server, unsigned n, unsigned depth)
{
    int64_t since = bench_now_ns(), now = since;
    unsigned under_way = n * depth;
    uint64_t answered = 0;

    for (unsigned i = 0; i < n; i++)
        ask(server, i, depth);
    while (under_way > 0) {
        struct epoll_event events[MAX_CLIENTS];
        int ready = epoll_wait(server->epoll_fd, events, MAX_CLIENTS, 10000);

        if (ready <= 0)
            bench_die("no answer");
        now = bench_now_ns();
        for (int i = 0; i < ready; i++) {
            unsigned client = events[i].data.u32, got = take_answers(server, client, MSG_DONTWAIT);

            answered += got;
            if (now - since < ROUND_NS)
                ask(server, client, got);
            else
                under_way -= got;
        }
    }
    return (double)answered / ((double)(bench_now_ns() - since) / 1e6);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name, *goal;
        unsigned clients, depth;
    } rows[] = {
        {"ping_1_client", "null", 1, 1},
        {"ping_16_clients", "0.7", 16, 1},
        {"ping_pipelined_1_client", "0.3", 1, 64},
        {"ping_pipelined_16_clients", "0.3", 16, 64},
    };
    static struct server rdtd, echo;

    if (argc != 4)
        bench_die("usage: ops ROUNDS RDTD_SOCKET ECHO_SOCKET");
    unsigned rounds = (unsigned)bench_number(argv[1]);
    server_connect(&rdtd, argv[2], true);
    server_connect(&echo, argv[3], false);
    for (size_t i = 0; i < sizeof(rows) / sizeof rows[0]; i++)
        for (unsigned round = 0; round < rounds; round++) {
            double ours = measure(&rdtd, rows[i].clients, rows[i].depth);

            bench_row(rows[i].name, "", "k/s", "higher", rows[i].goal, ours, measure(&echo, rows[i].clients, rows[i].depth));
        }
    return 0;
}
