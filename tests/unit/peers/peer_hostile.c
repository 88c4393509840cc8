/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/peers against strangers that can reach its port, and against a node that has the key and breaks the
 * protocol. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/peers/peer_impl.h"
#include "daemon/peers/tls.h"
#include "tests/support/check.h"
#include "tests/support/peer_world.h"

static struct world world;
static struct world_node *const a = &world.nodes[0], *const b = &world.nodes[1];

static void setup(void)
{
    world_init(&world);
}

static void teardown(void)
{
    world_fini(&world);
}

TestSuite(peer_hostile, .init = setup, .fini = teardown, .timeout = 120);

/* ---- a stranger's socket ---- */

static int knock(const struct world_node *node)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    in.sin_port = htons((uint16_t)atoi(strrchr(node->node.address, ':') + 1));
    cr_assert_eq(connect(fd, (struct sockaddr *)&in, sizeof in), 0);
    return fd;
}

/* Reads on; true once the other end has closed. */
static bool is_closed(int fd)
{
    char buf[4096];
    ssize_t n;

    do {
        n = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
    } while (n > 0);
    return n == 0 || errno == ECONNRESET;
}

static void a_still_meets_b(void)
{
    struct peer *peer;

    world_start(b);
    cr_assert_eq(peers_find(b->peers, a->node.uuid, a->node.address, NULL, &peer, NULL), RDT_OK);
    world_until(&world, a->n_up && b->n_up);
}

Test(peer_hostile, garbage_is_closed)
{
    char noise[20000];

    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (char)(i * 31 + i / 7);
    world_start(a);
    int fd = knock(a);
    cr_assert_eq(send(fd, noise, sizeof noise, MSG_NOSIGNAL), (ssize_t)sizeof noise);
    world_until(&world, is_closed(fd));
    close(fd);
    a_still_meets_b();
}

Test(peer_hostile, silence_is_closed_in_time)
{
    uint64_t start = uv_hrtime();

    a->options.connect_timeout_ns = 300000000;
    world_start(a);
    int fd = knock(a);
    world_until(&world, is_closed(fd));
    cr_assert_gt(uv_hrtime() - start, 250000000);
    cr_assert_lt(uv_hrtime() - start, 5000000000);
    close(fd);
    a_still_meets_b();
}

Test(peer_hostile, crowd_is_bounded_and_passes)
{
    enum { CROWD = 80 };
    int fds[CROWD], closed = 0;

    a->options.connect_timeout_ns = 1000000000;
    world_start(a);
    for (int i = 0; i < CROWD; i++)
        fds[i] = knock(a);
    world_until(&world, is_closed(fds[CROWD - 33])); /* the latest 32 from one address may stay */
    for (int i = 0; i < CROWD; i++)
        closed += is_closed(fds[i]);
    cr_assert_eq(closed, CROWD - 32);
    for (int i = 0; i < CROWD; i++)
        close(fds[i]);
    a_still_meets_b();
}

static unsigned n_links(const struct world_node *node)
{
    unsigned n = 0;

    list_for_each (link, &node->peers->links)
        n++;
    return n;
}

/* Their handshakes, and the ends of their connections, cost more than a turn of the loop may take. */
Test(peer_hostile, crowd_that_speaks_at_once_takes_turns)
{
    enum { CROWD = 30 };
    struct slices slices;
    unsigned n_turns = 0;
    int fds[CROWD];

    slices_init(&slices, &a->loop);
    a->slices = &slices;
    world_start(a);
    for (int i = 0; i < CROWD; i++)
        fds[i] = knock(a);
    world_until(&world, n_links(a) == CROWD);
    for (int i = 0; i < CROWD; i++)
        cr_assert_eq(send(fds[i], "garbage", 7, MSG_NOSIGNAL), 7);
    (void)uv_run(&a->loop, UV_RUN_NOWAIT); /* reads */
    (void)uv_run(&a->loop, UV_RUN_NOWAIT);
    cr_assert_gt(n_links(a), CROWD / 2u);
    for (; n_links(a) > 0; n_turns++)
        (void)uv_run(&a->loop, UV_RUN_NOWAIT);
    cr_assert_gt(n_turns, 3u);
    for (int i = 0; i < CROWD; i++) {
        world_until(&world, is_closed(fds[i]));
        close(fds[i]);
    }
    a_still_meets_b();
    slices_close(&slices);
    world_stop(&world, a);
    a->slices = NULL;
}

/* ---- one that has the key ---- */

struct rogue_peer {
    int fd;
    struct tls_context *context;
    struct tls tls;
    struct frame_reader reader;
    char reason[200]; /* of the goodbye */
    unsigned n_hellos;
};

static void rogue_peer_flush(struct rogue_peer *rogue_peer)
{
    uint8_t buf[4096];
    size_t n;

    while ((n = tls_take(&rogue_peer->tls, buf, sizeof buf)) > 0)
        (void)send(rogue_peer->fd, buf, n, MSG_NOSIGNAL);
}

static void rogue_peer_take(struct rogue_peer *rogue_peer, const struct frame *frame)
{
    rogue_peer->n_hellos += frame->type == RDT_PEER_HELLO;
    if (frame->type != RDT_PEER_GOODBYE)
        return;
    Rdt__Pb__Goodbye *goodbye = rdt__pb__goodbye__unpack(NULL, frame->length, frame->payload);
    cr_assert_not_null(goodbye);
    snprintf(rogue_peer->reason, sizeof rogue_peer->reason, "%.199s", goodbye->reason);
    rdt__pb__goodbye__free_unpacked(goodbye, NULL);
}

/* true: the other end has closed. */
static bool rogue_peer_turn(struct rogue_peer *rogue_peer)
{
    uint8_t buf[4096];
    ssize_t n = recv(rogue_peer->fd, buf, sizeof buf, MSG_DONTWAIT);

    if (n == 0 || (n < 0 && errno != EAGAIN))
        return true;
    if (n > 0)
        cr_assert_eq(tls_feed(&rogue_peer->tls, buf, (size_t)n, NULL), RDT_OK);
    if (!SSL_is_init_finished(rogue_peer->tls.ssl)) {
        (void)tls_handshake(&rogue_peer->tls, NULL);
        rogue_peer_flush(rogue_peer);
        return false;
    }
    for (;;) {
        size_t have, got;
        uint8_t *space = frame_reader_space(&rogue_peer->reader, 16384, &have);
        struct frame frame;

        if (tls_read(&rogue_peer->tls, space, have, &got, NULL) != RDT_OK)
            return false;
        frame_reader_commit(&rogue_peer->reader, got);
        while (frame_reader_next(&rogue_peer->reader, &frame, NULL) == RDT_OK)
            rogue_peer_take(rogue_peer, &frame);
    }
}

static void rogue_peer_start(struct rogue_peer *rogue_peer)
{
    memset(rogue_peer, 0, sizeof *rogue_peer);
    cr_assert_eq(tls_context_create(&(struct tls_files){.key = world.key_path}, &rogue_peer->context, NULL), RDT_OK);
    cr_assert_eq(tls_init(&rogue_peer->tls, rogue_peer->context, false, NULL), RDT_OK);
    frame_reader_init(&rogue_peer->reader, RDT_MAX_FRAME_BYTES);
    rogue_peer->fd = knock(a);
    world_until(&world, (rogue_peer_turn(rogue_peer), rogue_peer->n_hellos));
}

static void rogue_peer_stop(struct rogue_peer *rogue_peer)
{
    close(rogue_peer->fd);
    frame_reader_fini(&rogue_peer->reader);
    tls_fini(&rogue_peer->tls);
    tls_context_destroy(rogue_peer->context);
}

static void rogue_peer_send(struct rogue_peer *rogue_peer, uint16_t type, const void *payload, uint32_t length,
                            uint32_t claimed)
{
    uint8_t header[FRAME_HEADER_BYTES];

    frame_header_encode(header, claimed, type, 0, 0, 0);
    cr_assert_eq(tls_write(&rogue_peer->tls, header, sizeof header, NULL), RDT_OK);
    cr_assert_eq(tls_write(&rogue_peer->tls, payload, length, NULL), RDT_OK);
    rogue_peer_flush(rogue_peer);
}

static void rogue_peer_hello(struct rogue_peer *rogue_peer, size_t uuid_bytes, uint32_t protocol, const char *address)
{
    static uint8_t uuid[16] = "insider's uuid.";
    Rdt__Pb__LinkHello hello = RDT__PB__LINK_HELLO__INIT;
    uint8_t packed[1024];

    hello.protocol_min = hello.protocol_max = protocol;
    hello.node_uuid = (ProtobufCBinaryData){uuid_bytes, uuid};
    hello.boot_id = (ProtobufCBinaryData){16, uuid};
    hello.address = (char *)address;
    rogue_peer_send(rogue_peer, RDT_PEER_HELLO, packed, (uint32_t)rdt__pb__link_hello__pack(&hello, packed),
                    (uint32_t)rdt__pb__link_hello__get_packed_size(&hello));
}

/* The link ends, with these words in the goodbye. */
static void rogue_peer_shown_out(struct rogue_peer *rogue_peer, const char *words)
{
    world_until(&world, rogue_peer_turn(rogue_peer));
    cr_assert_not_null(strstr(rogue_peer->reason, words), "'%s'", rogue_peer->reason);
    rogue_peer_stop(rogue_peer);
    a_still_meets_b();
}

Test(peer_hostile, other_first_message_refused)
{
    struct rogue_peer rogue_peer;

    world_start(a);
    rogue_peer_start(&rogue_peer);
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL, "", 0, 0);
    rogue_peer_shown_out(&rogue_peer, "not a hello");
    cr_assert_eq(a->n_down, 0);
}

Test(peer_hostile, other_protocol_refused)
{
    struct rogue_peer rogue_peer;

    world_start(a);
    rogue_peer_start(&rogue_peer);
    rogue_peer_hello(&rogue_peer, 16, 7, "");
    rogue_peer_shown_out(&rogue_peer, "protocol 7 to 7");
    cr_assert_eq(a->n_down, 0);
}

Test(peer_hostile, malformed_hellos_refused)
{
    static const uint8_t bad[] = {0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f};
    struct rogue_peer rogue_peer;

    world_start(a);
    rogue_peer_start(&rogue_peer);
    rogue_peer_send(&rogue_peer, RDT_PEER_HELLO, bad, sizeof bad, sizeof bad);
    rogue_peer_shown_out(&rogue_peer, "cannot be decoded");

    rogue_peer_start(&rogue_peer);
    rogue_peer_hello(&rogue_peer, 15, 1, "");
    world_until(&world, rogue_peer_turn(&rogue_peer));
    cr_assert_not_null(strstr(rogue_peer.reason, "uuid"), "%s", rogue_peer.reason);
    rogue_peer_stop(&rogue_peer);

    rogue_peer_start(&rogue_peer);
    rogue_peer_hello(&rogue_peer, 16, 1, "\033[31mred:1");
    world_until(&world, rogue_peer_turn(&rogue_peer));
    cr_assert_not_null(strstr(rogue_peer.reason, "address"), "%s", rogue_peer.reason);
    rogue_peer_stop(&rogue_peer);
}

Test(peer_hostile, second_hello_refused)
{
    struct rogue_peer rogue_peer;

    world_start(a);
    rogue_peer_start(&rogue_peer);
    rogue_peer_hello(&rogue_peer, 16, 1, "");
    world_until(&world, a->n_up);
    rogue_peer_hello(&rogue_peer, 16, 1, "");
    world_until(&world, rogue_peer_turn(&rogue_peer));
    cr_assert_not_null(strstr(rogue_peer.reason, "second hello"), "%s", rogue_peer.reason);
    world_until(&world, a->n_down);
    cr_assert_eq(a->why.status, RDT_PROTOCOL);
    rogue_peer_stop(&rogue_peer);
}

Test(peer_hostile, frame_beyond_the_limit_refused_by_its_header)
{
    struct rogue_peer rogue_peer;

    world_start(a);
    rogue_peer_start(&rogue_peer);
    rogue_peer_hello(&rogue_peer, 16, 1, "");
    world_until(&world, a->n_up);
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL, "", 0, RDT_MAX_FRAME_BYTES + 1);
    world_until(&world, rogue_peer_turn(&rogue_peer));
    world_until(&world, a->n_down);
    cr_assert_eq(a->why.status, RDT_LIMIT);
    rogue_peer_stop(&rogue_peer);
}

/* No handler sees it. What daemons of older versions still send is passed over, whatever it says. */
Test(peer_hostile, message_that_cannot_be_decoded_ends_the_link)
{
    static const uint8_t bad[] = {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f};
    static const struct {
        uint16_t type;
        const char *why;
    } cases[] = {{5, "a message of unknown type 5"},
                 {UINT16_MAX, "a message of unknown type 65535"},
                 {RDT_PEER_PING, "LinkPing cannot be decoded"},
                 {RDT_PEER_CALL, "Call cannot be decoded"},
                 {RDT_PEER_HOLDS, "Holds cannot be decoded"},
                 {RDT_PEER_NAME, "Name cannot be decoded"}};
    struct rogue_peer rogue_peer;

    world_start(a);
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rogue_peer_start(&rogue_peer);
        rogue_peer_hello(&rogue_peer, 16, 1, "");
        world_until(&world, a->n_up == i + 1);
        rogue_peer_send(&rogue_peer, RDT_PEER_PULL_ABORTED, bad, sizeof bad, sizeof bad);
        rogue_peer_send(&rogue_peer, cases[i].type, bad, sizeof bad, sizeof bad);
        world_until(&world, rogue_peer_turn(&rogue_peer));
        cr_assert_not_null(strstr(rogue_peer.reason, cases[i].why), "%s", rogue_peer.reason);
        world_until(&world, a->n_down == i + 1);
        cr_assert_eq(a->why.status, RDT_PROTOCOL);
        rogue_peer_stop(&rogue_peer);
    }
}

/* A message that protobuf-c blows up: a hello of nothing but empty offers. */
Test(peer_hostile, blown_up_hello_refused)
{
    enum { BYTES = 8 << 20 };
    uint8_t *offers = malloc(BYTES);
    struct rogue_peer rogue_peer;

    for (size_t i = 0; i < BYTES; i += 2) {
        offers[i] = 7 << 3 | 2;
        offers[i + 1] = 0;
    }
    world_start(a);
    rogue_peer_start(&rogue_peer);
    rogue_peer_send(&rogue_peer, RDT_PEER_HELLO, "", 0, BYTES);
    for (size_t sent = 0; sent < BYTES; sent += 65536) {
        cr_assert_eq(tls_write(&rogue_peer.tls, offers + sent, 65536, NULL), RDT_OK);
        rogue_peer_flush(&rogue_peer);
        world_turn(&world);
    }
    rogue_peer_shown_out(&rogue_peer, "LinkHello takes more than");
    free(offers);
}

/* It holds the port open and dials nobody back: its own address is of no use, and it is kept all the same. */
Test(peer_hostile, caller_without_address_is_kept_while_it_lasts)
{
    struct rogue_peer rogue_peer;
    struct rdt_error err;

    world_start(a);
    rogue_peer_start(&rogue_peer);
    rogue_peer_hello(&rogue_peer, 16, 1, "");
    world_until(&world, a->n_up);
    struct peer *peer = a->peer;
    cr_assert_str_eq(peer->address, "");
    close(rogue_peer.fd);
    rogue_peer.fd = -1;
    world_until(&world, a->n_down);
    cr_assert_eq(a->why.status, RDT_PEER_LOST);
    world_until(&world, peer->state == PEER_IDLE);
    cr_assert_eq(peers_find(a->peers, peer->uuid, "", NULL, &peer, &err), RDT_PEER_LOST);
    cr_assert_eq(peers_find(a->peers, peer->uuid, "127.0.0.1:9", NULL, &peer, &err), RDT_OK);
    cr_assert_eq(peer->state, PEER_CONNECTING);
    rogue_peer_stop(&rogue_peer);
}

Test(peer_hostile, goodbye_ends_the_link_with_its_reason)
{
    static char reason[] = "so\nlong\xc2\x9b\xe2\x80\xae"; /* CSI, and the override of the direction of text */
    Rdt__Pb__Goodbye goodbye = RDT__PB__GOODBYE__INIT;
    struct rogue_peer rogue_peer;
    uint8_t packed[32];

    world_start(a);
    rogue_peer_start(&rogue_peer);
    rogue_peer_hello(&rogue_peer, 16, 1, "");
    world_until(&world, a->n_up);
    goodbye.reason = reason;
    rogue_peer_send(&rogue_peer, RDT_PEER_GOODBYE, packed, (uint32_t)rdt__pb__goodbye__pack(&goodbye, packed), 14);
    world_until(&world, a->n_down);
    cr_assert_not_null(strstr(a->why.msg, "said goodbye: so?long?????"), "%s", a->why.msg);
    rogue_peer_stop(&rogue_peer);
}

/* ---- one that pings and does not read ---- */

static void start_pinging(struct rogue_peer *rogue_peer)
{
    world_start(a);
    rogue_peer_start(rogue_peer);
    rogue_peer_hello(rogue_peer, 16, 1, "");
    world_until(&world, a->n_up);
}

static void ping_on(struct rogue_peer *rogue_peer)
{
    static uint64_t last_ns;
    Rdt__Pb__LinkPing ping = RDT__PB__LINK_PING__INIT;
    uint8_t packed[32];

    if (uv_hrtime() - last_ns < a->options.peer_timeout_ns / 10)
        return;
    last_ns = uv_hrtime();
    rogue_peer_send(rogue_peer, RDT_PEER_PING, packed, (uint32_t)rdt__pb__link_ping__pack(&ping, packed),
                    (uint32_t)rdt__pb__link_ping__get_packed_size(&ping));
}

static void queue_for(struct peer *peer, size_t bytes)
{
    a->peer = peer;
    while (bytes >= (1 << 20)) {
        cr_assert_eq(world_send(a, 1, 1 << 20, NULL), RDT_OK);
        bytes -= 1 << 20;
    }
}

Test(peer_hostile, node_that_pings_and_never_reads_is_dropped_in_time)
{
    struct rogue_peer rogue_peer;

    a->options.peer_timeout_ns = 1000000000;
    start_pinging(&rogue_peer);
    queue_for(a->peer, 16 << 20);
    world_until(&world, (ping_on(&rogue_peer), a->n_down));
    cr_assert_not_null(strstr(a->why.msg, "does not read: it has taken none"), "%s", a->why.msg);
    rogue_peer_stop(&rogue_peer);
}

/* The queues of all nodes together are bounded, and the longest one makes room: however many do not read, one that does is
 * served. */
Test(peer_hostile, queues_of_nodes_that_do_not_read_make_room_for_others)
{
    struct rogue_peer rogue_peer;

    start_pinging(&rogue_peer);
    struct peer *silent = a->peer;
    world_start(b);
    struct peer *reader = world_find(a, b);
    world_until(&world, reader->state == PEER_UP && b->n_up);
    a->peers->queues.max_bytes = 24 << 20;
    queue_for(silent, 16 << 20);
    queue_for(reader, 12 << 20);
    world_until(&world, a->n_down && b->n_frames == 12);
    cr_assert_eq(a->why.status, RDT_LIMIT);
    cr_assert_not_null(strstr(a->why.msg, "more than for any other node"), "%s", a->why.msg);
    cr_assert_eq(b->n_down, 0);
    rogue_peer_stop(&rogue_peer);
}

/* ---- where nodes are ---- */

static const uint8_t *source_of(unsigned host)
{
    static uint8_t source[16];

    source[12] = 10, source[13] = 1, source[14] = (uint8_t)(host >> 8), source[15] = (uint8_t)host;
    return source;
}

/* A stranger's connection is compared with the addresses of the node table: without walking it, as processor time shows. */
Test(peer_hostile, addresses_of_listed_nodes_are_indexed)
{
    enum { N = 4000 };
    static struct peer *peers[N];
    uint64_t began_ns, added_ns;
    char address[32];

    world_start(a);
    began_ns = cpu_ns();
    for (unsigned i = 0; i < N; i++) { /* two nodes at each host */
        (void)snprintf(address, sizeof address, "10.1.%u.%u:%u", i / 2 >> 8, i / 2 & 255, 7 + i % 2);
        cr_assert_eq(peer_add(a->peers, NULL, PROOF_NONE, address, address, NULL, &peers[i], NULL), RDT_OK);
        cr_assert(!peers_know_source(a->peers, source_of(i / 2)) == (i % 2 == 0), "a ref has named it");
        peer_set_listed(peers[i], true);
    }
    added_ns = cpu_ns() - began_ns;
    began_ns = cpu_ns();
    for (unsigned i = 0; i < 2 * N; i++)
        cr_assert_eq(peers_know_source(a->peers, source_of(i)), i < N / 2);
    cr_assert_lt(cpu_ns() - began_ns, added_ns, "the table was walked for each");
    peer_set_address(peers[0], "10.1.15.255:7"); /* the other one stays */
    cr_assert(peers_know_source(a->peers, source_of(0)) && peers_know_source(a->peers, source_of(15 << 8 | 255)));
    peer_set_listed(peers[1], false);
    cr_assert(!peers_know_source(a->peers, source_of(0)));
    peer_set_listed(peers[0], false);
    cr_assert(!peers_know_source(a->peers, source_of(15 << 8 | 255)));
}
