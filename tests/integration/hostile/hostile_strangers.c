/* SPDX-License-Identifier: Apache-2.0 */
/* Many strangers at the port of the nodes, at the socket, and in the table of nodes. A node that has the key can always
 * connect, and strangers do not fill the log. */
#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/integration/hostile/protocol_fixture.h"
#include "tests/support/cluster.h"

TestSuite(hostile_strangers, .timeout = 120);

#define USER 12345

static const char *const meant[] = {"(pid ", "node ", "connection from", NULL};

static void end_well(void)
{
    others_are_well();
    rdt_close(bystander);
    node_end(&node, meant);
}

/* ---- sources ---- */

/* From one address to another of the machine. */
static int knock(const char *source, const char *target)
{
    struct sockaddr_in6 from = {.sin6_family = AF_INET6}, to = {.sin6_family = AF_INET6};
    int sock = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin6_port = htons((uint16_t)atoi(strrchr(node.address, ':') + 1));
    must(inet_pton(AF_INET6, source, &from.sin6_addr) == 1 && inet_pton(AF_INET6, target, &to.sin6_addr) == 1);
    must_say(bind(sock, (struct sockaddr *)&from, sizeof from) == 0, "%s: %s", source, strerror(errno));
    must_say(connect(sock, (struct sockaddr *)&to, sizeof to) == 0, "%s: %s", target, strerror(errno));
    return sock;
}

static bool is_closed(int sock)
{
    char byte;
    ssize_t n = recv(sock, &byte, 1, MSG_DONTWAIT);

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

/* Two networks of 64 bits, every address of which is this machine's. */
static bool have_networks(void)
{
    return geteuid() == 0 && unshare(CLONE_NEWNET) == 0 && system("ip link set lo up") == 0 &&
           system("ip -6 route add local fd00:0:0:1::/64 dev lo && ip -6 route add local fd00:0:0:2::/64 dev lo && "
                  "echo 1 > /proc/sys/net/ipv6/ip_nonlocal_bind") == 0;
}

Test(hostile_strangers, ipv6_network_of_64_bits_is_one_source)
{
    enum { N = 50, MAY = 32 };
    struct rdt_ref back = ref_named("theirs");
    struct test_node other;
    rdt_object *object;
    int socks[N], single;
    unsigned n_closed = 0;

    if (!have_networks())
        cr_skip_test("addresses of its own need root, a network namespace and IPv6");
    node_start(&other, &(struct node_options){.name = "other", .listen = "[fd00:0:0:2::1]:0"});
    rdt *conn = node_client(&other, "other");
    begin(&(struct node_options){.listen = "[fd00:0:0:1::1]:0", .flags = (const char *[]){"--connect-timeout=60s", NULL}});
    single = knock("fd00:0:0:2::1", "fd00:0:0:1::1");
    for (unsigned i = 0; i < N; i++) {
        char source[64];
        (void)snprintf(source, sizeof source, "fd00:0:0:1:%x::%x", i, i + 2);
        socks[i] = knock(source, "fd00:0:0:1::1");
    }
    wait_until(LONG, is_closed(socks[N - MAY - 1]));
    for (unsigned i = 0; i < N; i++)
        n_closed += is_closed(socks[i]);
    cr_assert_eq(n_closed, N - MAY);
    cr_assert_not(is_closed(single), "the connection from another network made room");

    (void)snprintf(back.address, sizeof back.address, "%s", node.address);
    must_ok(try_fetch(conn, &back, RDT_FETCH_COPY, LONG, &object, &err)); /* a node gets in all the same */
    rdt_release(object);
    for (unsigned i = 0; i < N; i++)
        (void)close(socks[i]);
    (void)close(single);
    node.fds++; /* the link between them */
    end_well();
    rdt_close(conn);
    other.fds++;
    node_end(&other, meant);
}

/* ---- the table of nodes ---- */

enum { USERS = 18, OF_A_USER = 64 }; /* more in all than the table has room for */

static rdt *users[USERS];
static rdt_request *waiting[USERS][OF_A_USER];

/* Accepts connections and says nothing, for ever. */
static int silent_service(char port_p[8])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t bytes = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    must(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 4096) == 0);
    must(getsockname(listener, (struct sockaddr *)&at, &bytes) == 0);
    (void)snprintf(port_p, 8, "%u", ntohs(at.sin_port));
    return listener;
}

Test(hostile_strangers, users_who_fill_the_table_keep_no_node_out)
{
    struct rdt_ref back = ref_named("theirs"), ref = ref_named("nothing");
    struct test_node other;
    unsigned n_refused = 0;
    char port[8];
    int service = silent_service(port);

    node_start(&other, &(struct node_options){.name = "other", .listen = "127.0.0.1:0"});
    rdt *conn = node_client(&other, "other");
    begin(&(struct node_options){.listen = "127.0.0.1:0", .flags = (const char *[]){"--connect-timeout=60s", NULL}});
    for (unsigned i = 0; i < USERS; i++) {
        must(seteuid(USER + i) == 0);
        users[i] = node_client(&node, "user");
        must(seteuid(0) == 0);
        for (unsigned j = 0; j < OF_A_USER; j++) {
            (void)snprintf(ref.address, sizeof ref.address, "127.1.%u.%u:%s", i + 1, j + 1, port);
            waiting[i][j] = start_one(users[i], &ref, LONG * 3);
        }
        must_ok(rdt_ping(users[i], LONG, &err));
    }
    for (unsigned i = 0; i < USERS; i++)
        for (unsigned j = 0; j < OF_A_USER; j++) {
            struct rdt_error why = {0};
            if (rdt_request_status(waiting[i][j], &why) == RDT_AGAIN)
                continue;
            n_refused++;
            must_say(strstr(why.msg, "requests wait for 1024 nodes that have not answered yet"), "%s", why.msg);
        }
    cr_assert_gt(n_refused, 0, "the table is not full: the test proves nothing");
    struct node_status status = node_now(&node);
    cr_assert_geq(status.peers_known, 1024);

    (void)snprintf(back.address, sizeof back.address, "%s", node.address);
    fetch_pattern(conn, &back, 4096, 1, NULL); /* the other node dials this one */
    must_ok(rdt_ping(bystander, LONG, &err));
    for (unsigned i = 0; i < USERS; i++) {
        for (unsigned j = 0; j < OF_A_USER; j++)
            rdt_request_destroy(waiting[i][j]);
        rdt_close(users[i]);
    }
    (void)close(service);
    node.fds++; /* the link between them */
    end_well();
    rdt_close(conn);
    other.fds++;
    node_end(&other, meant);
}

/* ---- the log ---- */

/* One line per second is logged. */
static void must_be_few(const char *text, int64_t since)
{
    unsigned most = (unsigned)((now_ns() - since) / SEC) + 2;

    cr_assert_gt(node_log_count(&node, text), 0);
    must_say(node_log_count(&node, text) <= most, "%u lines with '%s' instead of %u", node_log_count(&node, text), text, most);
}

Test(hostile_strangers, noise_at_the_port_does_not_fill_the_log)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int64_t since = now_ns();

    begin(&(struct node_options){.listen = "127.0.0.1:0"});
    to.sin_port = htons((uint16_t)atoi(strrchr(node.address, ':') + 1));
    for (unsigned i = 0; i < 500; i++) {
        int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        char bytes[64];

        must(connect(sock, (struct sockaddr *)&to, sizeof to) == 0);
        must(send(sock, "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
        while (recv(sock, bytes, sizeof bytes, 0) > 0)
            continue;
        (void)close(sock);
    }
    must_be_few(" warn: connection from ", since);
    end_well();
}

Test(hostile_strangers, noise_at_the_socket_does_not_fill_the_log)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    int64_t since = now_ns();

    begin(NULL);
    for (unsigned i = 0; i < 500; i++) {
        struct raw raw;

        raw_connect(&raw, node.socket);
        (void)raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0); /* before any hello */
        raw_close(&raw);
    }
    wait_until(LONG, node_log_count(&node, " warn: client ") > 0);
    must_be_few(" warn: client ", since);
    end_well();
}
