/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "stream" between real daemons: it serves where UCX may not be used, it encrypts, and strangers at its port
 * disturb nobody. fault_matrix and bad_network test its faults, stream_channels its ends. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <net/ethernet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/integration/nodes/pair.h"
#include "tests/support/program.h"

TestSuite(stream, .timeout = 120);

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

static struct rdt_fetch_options by(const char *transport)
{
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG, .transport = transport};
    return options;
}

/* ---- where UCX may not ---- */

Test(stream, untrusted_network_moves_by_stream_and_says_why)
{
    static const size_t sizes[] = {33 * KIB, MIB, 4 * MIB + 1, 64 * MIB};
    const char *argv[] = {"rdtctl", "--socket", NULL, "explain", NULL, NULL};
    struct rdt_fetch_options options = by(NULL);
    struct program program;
    struct rdt_ref ref;
    char number[24];

    begin_pair(2, &(struct cluster_options){.no_ucx = true, .stream = true});
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ref = put_pattern(owner, NULL, sizes[i], (uint32_t)i);
        fetch_pattern(reader, &ref, sizes[i], (uint32_t)i, "stream");
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    ref = put_pattern(owner, "weights", MIB, 1);
    rdt_object *object = fetch_as(reader, &ref, &options);
    (void)snprintf(number, sizeof number, "%llu", (unsigned long long)info_of(object).transfer);
    argv[2] = c.node[1].socket;
    argv[4] = number;
    program_run(&program, argv, NULL);
    must_say(program.status == 0 && strstr(program.out, "taken:     stream"), "%s", program.out);
    must_say(strstr(program.out, "not taken: ucx, not available on this node") && strstr(program.out, "trusted_network"), "%s",
             program.out);
    program_free(&program);
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(stream, one_node_that_trusts_moves_by_stream_too)
{
    static const char *const distrusts[] = {"--trusted-network=no", NULL};

    begin_pair(2, &(struct cluster_options){.flags_of = {distrusts}, .stream = true, .no_meeting = true});
    struct rdt_ref there = put_pattern(owner, NULL, MIB, 1);
    struct rdt_ref here = put_pattern(reader, NULL, MIB, 2);
    fetch_pattern(reader, &there, MIB, 1, "stream");
    fetch_pattern(owner, &here, MIB, 2, "stream");
    must_ok(rdt_free(owner, &there, false, &err));
    must_ok(rdt_free(reader, &here, false, &err));
    end(NULL);
}

Test(stream, works_over_ipv6)
{
    static const char *const off[] = {"--trusted-network=no", NULL};
    struct test_node nodes[2];

    for (unsigned i = 0; i < 2; i++)
        node_start(&nodes[i], &(struct node_options){.name = i ? "v6b" : "v6a", .listen = "[::1]:0", .flags = off});
    owner = node_client(&nodes[0], "owner");
    reader = node_client(&nodes[1], "reader");
    struct rdt_ref ref = put_pattern(owner, NULL, 3 * MIB, 1);
    fetch_pattern(reader, &ref, 3 * MIB, 1, "stream");
    must_ok(rdt_free(owner, &ref, false, &err));
    rdt_close(owner);
    rdt_close(reader);
    for (unsigned i = 0; i < 2; i++) {
        static const char *const ends[] = {"is down: ", "is lost: ", "taken down and rebuilt: ", NULL};
        node_check_log(&nodes[i], i == 0 ? NULL : ends);
        node_stop(&nodes[i]);
    }
}

/* ---- many and big ---- */

Test(stream, many_and_big_both_ways)
{
    enum { N = 200, BIG = 3 };
    static struct rdt_ref refs[2][N];
    static rdt_object *objects[2][N];
    struct rdt_fetch_options options = by(NULL);
    rdt *conns[2];
    static rdt_request *requests[2][N];
    static const char *const channels[] = {"--set=stream.threads=3", "--set=stream.connections=4",
                                           "--set=stream.rekey_bytes=1048576", "--chunk=256KiB", NULL};
    begin_pair(2, &(struct cluster_options){.no_ucx = true, .stream = true, .flags = channels, .no_meeting = true});
    conns[0] = owner;
    conns[1] = reader;
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < N; i++)
            refs[side][i] = put_pattern(conns[side], NULL, i < BIG ? 32 * MIB : 40 * KIB + i * 991, i);
    for (unsigned side = 0; side < 2; side++)
        must_ok(rdt_fetch_start(conns[side], refs[1 - side], N, &options, requests[side], &err));
    for (unsigned side = 0; side < 2; side++) {
        must_ok(rdt_wait(conns[side], requests[side], N, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
        for (unsigned i = 0; i < N; i++) {
            must_ok(rdt_request_take_object(requests[side][i], &objects[side][i], &err));
            struct rdt_tensor tensor = tensor_of(objects[side][i], 0);
            must_go_by("stream", objects[side][i]);
            must(holds_pattern(tensor.data, (size_t)tensor.shape[0], i));
            rdt_release(objects[side][i]);
            rdt_request_destroy(requests[side][i]);
        }
    }
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < N; i++)
            must_ok(rdt_free(conns[side], &refs[side][i], false, &err));
    end(NULL);
}

/* ---- encryption ---- */

static const char marker[] = "a-marker-that-all-may-see-in-clear";

/* Everything that passes node 0's cable. */
static int open_ear(void)
{
    int here = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC), ear, bytes = 64 << 20;

    must(here >= 0);
    net_enter(c.net.ns[0]);
    ear = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL));
    must(setns(here, CLONE_NEWNET) == 0);
    (void)close(here);
    must(ear >= 0);
    (void)setsockopt(ear, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    return ear;
}

/* Fetches an object full of the marker; how often it was seen on the cable, and how many bytes passed. */
static unsigned markers_seen(size_t *passed_p)
{
    const size_t bytes = 2 * MIB;
    struct rdt_fetch_options options = by("stream");
    char *text = malloc(bytes);
    static uint8_t frame[128 * KIB];
    unsigned seen = 0;
    ssize_t n;

    must(text);
    for (size_t i = 0; i < bytes; i++)
        text[i] = marker[i % (sizeof marker - 1)];
    struct rdt_ref ref = put_one(owner, &VECTOR(RDT_U8, bytes, text), NULL);
    int ear = open_ear();
    rdt_object *object = fetch_as(reader, &ref, &options);
    must(memcmp(tensor_of(object, 0).data, text, bytes) == 0);
    *passed_p = 0;
    while ((n = recv(ear, frame, sizeof frame, 0)) > 0) {
        *passed_p += (size_t)n;
        seen += memmem(frame, (size_t)n, marker, sizeof marker - 1) != NULL;
    }
    must(errno == EAGAIN);
    (void)close(ear);
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    free(text);
    return seen;
}

static void check_encryption(const struct cluster_options *options, bool encrypted)
{
    size_t passed;

    begin_pair(2, options);
    unsigned seen = markers_seen(&passed);
    must_say(passed > MIB, "only %zu bytes passed", passed);
    must_say((seen == 0) == encrypted, "the bytes were seen in %u frames", seen);
    end(NULL);
}

Test(stream, untrusted_bytes_are_not_seen_on_the_cable)
{
    check_encryption(&(struct cluster_options){.cables = true, .no_ucx = true, .stream = true}, true);
}

Test(stream, trusted_bytes_are_bare)
{
    check_encryption(&(struct cluster_options){.cables = true, .stream = true}, false);
}

Test(stream, trusted_bytes_are_encrypted_where_one_end_wants_it)
{
    static const char *const always[] = {"--set=stream.encrypt=always", NULL};

    check_encryption(&(struct cluster_options){.cables = true, .stream = true, .flags_of = {always}}, true);
    check_encryption(&(struct cluster_options){.cables = true, .stream = true, .flags_of = {NULL, always}}, true);
}

/* ---- strangers ---- */

static int knock(const char *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    in.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    must(fd >= 0 && connect(fd, (const struct sockaddr *)&in, sizeof in) == 0);
    return fd;
}

/* Until the daemon has closed it. */
static void must_be_closed(int fd)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    uint8_t byte;

    for (;;) {
        must_say(poll(&pollfd, 1, (int)(LONG / MSEC)) == 1, "a stranger is still connected");
        if (recv(fd, &byte, 1, 0) <= 0)
            break;
    }
    (void)close(fd);
}

static const struct words {
    const char *bytes;
    size_t n;
} words[] = {
    {"", 0},
    {"G", 1},
    {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27},
    {"\x16", 1},                                                                   /* TLS, and no more */
    {"\x16\x03\x01\x00\x05hello", 10},                                             /* TLS that is none */
    {"\x16\x03\x01\xff\xff", 5},                                                   /* a record that never ends */
    {"rdtshi 1", 8},                                                               /* half a greeting */
    {"rdtshi 1aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb\0\0\0\0\0\0\0\0", 8 + 16 + 16 + 8}, /* a whole one, of nobody */
    {"dstc\x01\0\0\0aaaaaaaabbbbbbbbcccccccc", 32},                                /* a chunk at once */
};
#define N_WORDS (sizeof words / sizeof words[0])

static void check_strangers(bool trusted)
{
    enum { SILENT = 300 };
    static char ports[2][40], addresses[2][65];
    static int fds[SILENT + N_WORDS];
    const char *flags[2][2] = {{ports[0], NULL}, {ports[1], NULL}};
    struct rdt_fetch_options options = by("stream");
    struct rdt_ref ref;
    rdt_object *object;

    for (unsigned i = 0; i < 2; i++) {
        free_address(0, "127.0.0.1", addresses[i]);
        (void)snprintf(ports[i], sizeof ports[i], "--set=stream.ports=%s", strrchr(addresses[i], ':') + 1);
    }
    begin_pair(2, &(struct cluster_options){.no_ucx = !trusted, .stream = true, .flags_of = {flags[0], flags[1]}});
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < SILENT; k++)
            fds[k] = knock(addresses[i]);
        for (unsigned k = 0; k < N_WORDS; k++) {
            fds[SILENT + k] = knock(addresses[i]);
            must(send(fds[SILENT + k], words[k].bytes, words[k].n, MSG_NOSIGNAL) == (ssize_t)words[k].n);
        }
        /* Two that know each other move on, by a new connection too: the node forgets its own. */
        ref = put_pattern(owner, NULL, 8 * MIB, i);
        must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
        must(holds_pattern(tensor_of(object, 0).data, 8 * MIB, i));
        rdt_release(object);
        must_ok(rdt_free(owner, &ref, false, &err));
        for (unsigned k = 0; k < SILENT + N_WORDS; k++)
            must_be_closed(fds[k]);
    }
    end(NULL);
}

Test(stream, strangers_disturb_nobody)
{
    check_strangers(false);
}

Test(stream, strangers_disturb_nobody_on_a_trusted_network)
{
    check_strangers(true);
}

/* Each replaced connection greets anew, while the port is full of strangers. */
Test(stream, strangers_do_not_keep_friends_out)
{
    enum { SILENT = 500, ROUNDS = 10 };
    static char ports[40], address[65];
    static int fds[SILENT];
    const char *at[] = {ports, NULL}, *rekey[] = {"--set=stream.rekey_bytes=1048576", NULL};

    free_address(0, "127.0.0.1", address);
    (void)snprintf(ports, sizeof ports, "--set=stream.ports=%s", strrchr(address, ':') + 1);
    begin_pair(2, &(struct cluster_options){.no_ucx = true, .stream = true, .flags_of = {rekey, at}, .no_meeting = true});
    struct rdt_ref ref = put_pattern(owner, NULL, 4 * MIB, 1);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned k = 0; k < SILENT; k++)
            fds[k] = knock(address);
        fetch_pattern(reader, &ref, 4 * MIB, 1, "stream");
        for (unsigned k = 0; k < SILENT; k++)
            (void)close(fds[k]);
    }
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}
