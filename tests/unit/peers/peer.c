/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/peers: two nodes get exactly one link whichever of them dials, notice each other's end in time, and connect again. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/peers/peer_impl.h"
#include "tests/support/peer_world.h"

#define ORDERS 12

static struct world world;
static struct world_node *const a = &world.nodes[0], *const b = &world.nodes[1], *const c = &world.nodes[2];

static void setup(void)
{
    world_init(&world);
}

static void teardown(void)
{
    world_fini(&world);
}

TestSuite(peer, .init = setup, .fini = teardown, .timeout = 120);

/* a knows b by its nodes file. */
static void start_listed(const char *address)
{
    world_start(b);
    world_list(a, 0, "bee", address ? address : b->node.address, NULL);
    world_start(a);
}

/* On the link that is up now. */
static uint64_t pings(const struct world_node *node)
{
    return node->peer->link_up ? node->peer->link_up->ping.sequence : 0;
}

/* ---- meeting ---- */

Test(peer, listed_node_comes_up_at_both_ends)
{
    start_listed(NULL);
    world_until(&world, a->n_up && b->n_up && a->peer->rtt_ns && b->peer->rtt_ns);
    cr_assert_eq(memcmp(a->peer->uuid, b->node.uuid, 16), 0);
    cr_assert_eq(memcmp(a->peer->boot_id, b->node.boot_id, 16), 0);
    cr_assert_str_eq(a->peer->name, "bee");
    cr_assert_str_eq(a->peer->version, "9.9-test");
    cr_assert_str_eq(b->hello_address, a->node.address);
    cr_assert_str_eq(b->peer->address, a->node.address);
    cr_assert_eq(a->peer->epoch, 1);
    cr_assert_eq(a->n_failed + b->n_failed + a->n_down + b->n_down, 0);
    cr_assert_eq(a->n_boot_changed + b->n_boot_changed, 0);
}

Test(peer, ref_dials_lazily)
{
    world_start(a);
    world_start(b);
    struct peer *peer = world_find(a, b);
    cr_assert_eq(peer->state, PEER_CONNECTING);
    cr_assert_eq(world_find(a, b), peer);
    world_until(&world, a->n_up && b->n_up);
    cr_assert_eq(a->peer, peer);
    cr_assert_eq(world_find(b, a), b->peer);
    cr_assert_eq(world_count(a), 1);
}

Test(peer, ipv6_and_any_address_meet)
{
    struct peer *peer;
    char address[65];

    strcpy(b->listen, "[::]:0");
    world_start(a);
    world_start(b);
    snprintf(address, sizeof address, "[::1]%s", strrchr(b->node.address, ':'));
    cr_assert_eq(peers_find(a->peers, b->node.uuid, address, NULL, &peer, NULL), RDT_OK);
    world_until(&world, a->n_up && b->n_up);
    cr_assert_eq(a->hello_address[0], ':', "%s", a->hello_address);
    cr_assert_str_eq(a->peer->address, address);
    world_stop(&world, a);

    /* The other way round: the address that it dials from, with the port that it says. */
    world_until(&world, b->n_down);
    a->node.uuid[0]++;
    strcpy(a->listen, "0.0.0.0:0");
    world_start(a);
    snprintf(address, sizeof address, "127.0.0.1%s", strrchr(b->node.address, ':'));
    cr_assert_eq(peers_find(a->peers, b->node.uuid, address, NULL, &peer, NULL), RDT_OK);
    world_until(&world, b->n_up == 2);
    snprintf(address, sizeof address, "127.0.0.1%s", strrchr(a->node.address, ':'));
    cr_assert_str_eq(b->peer->address, address);
}

Test(peer, host_name_is_looked_up)
{
    char address[65];

    world_start(b);
    snprintf(address, sizeof address, "localhost%s", strrchr(b->node.address, ':'));
    world_list(a, 0, "bee", address, NULL);
    world_start(a);
    world_until(&world, a->n_up && b->n_up);
}

Test(peer, unknown_host_fails_with_its_name)
{
    world_list(a, 0, "bee", "no-such-host.invalid:7", NULL);
    world_start(a);
    world_until(&world, a->n_failed);
    cr_assert_eq(a->why.status, RDT_PEER_LOST);
    cr_assert_not_null(strstr(a->why.msg, "no-such-host.invalid"), "%s", a->why.msg);
}

/* Nobody's link may come up and go again, whatever the order of events. */
static void dial_at_once(bool listed, bool with_uuid, unsigned seed)
{
    world.seed = seed;
    a->options.peer_timeout_ns = b->options.peer_timeout_ns = 1000000000; /* so it pings every 200 ms */
    if (listed) {
        world_free_address(a->listen);
        world_free_address(b->listen);
        world_list(a, 0, "bee", b->listen, with_uuid ? b->node.uuid : NULL);
        world_list(b, 0, "aye", a->listen, with_uuid ? a->node.uuid : NULL);
    }
    world_start(a);
    for (unsigned i = seed % 7; i; i--)
        world_turn(&world);
    world_start(b);
    if (!listed) {
        world_find(a, b);
        for (unsigned i = seed % 5; i; i--)
            world_turn(&world);
        world_find(b, a);
    }
    world_until(&world, a->n_up && b->n_up && a->peer->rtt_ns && b->peer->rtt_ns);
    world_until(&world, world_count(a) == 1 && world_count(b) == 1);
    /* Beyond the first back-off, whose dial is the last that could disturb. */
    world_until(&world, pings(a) >= 4 && pings(b) >= 4);
    cr_assert_eq(a->n_up, 1, "seed %u", seed);
    cr_assert_eq(b->n_up, 1, "seed %u", seed);
    cr_assert_eq(a->n_down + b->n_down, 0, "seed %u", seed);
    cr_assert_eq(world_send(a, 1, 100, NULL), RDT_OK);
    cr_assert_eq(world_send(b, 1, 100, NULL), RDT_OK);
    world_until(&world, a->n_frames && b->n_frames);
    if (listed) {
        cr_assert_str_eq(a->peer->name, "bee");
        cr_assert_str_eq(b->peer->name, "aye");
    }
}

static void in_many_orders(bool listed, bool with_uuid)
{
    for (unsigned seed = 1; seed <= ORDERS; seed++) {
        if (seed > 1)
            world_init(&world);
        dial_at_once(listed, with_uuid, seed * 7919);
        world.seed = 0;
        if (seed < ORDERS)
            world_fini(&world);
    }
}

Test(peer, both_dial_at_once_by_refs_one_link_stays)
{
    in_many_orders(false, false);
}

Test(peer, both_dial_at_once_by_address_one_link_stays)
{
    in_many_orders(true, false);
}

Test(peer, both_dial_at_once_by_uuid_one_link_stays)
{
    in_many_orders(true, true);
}

/* a has said hello on its own connection, which then breaks: the one that it held for b is what is left. */
Test(peer, held_connection_is_taken_when_the_own_one_fails)
{
    struct peer *peer;

    world_start(a);
    world_start(b);
    world_lay_cable(&world, b->node.address);
    cr_assert_eq(peers_find(a->peers, b->node.uuid, world.cable.address, NULL, &peer, NULL), RDT_OK);
    world_until(&world, !list_empty(&b->peers->links) &&
                            container_of(b->peers->links.next, struct peer_link, node)->meeting.hello_sent);
    world.cable.deaf = true; /* a's hello is lost */
    world_until(&world, peer->dial->link->meeting.hello_sent);
    world_find(b, a);
    world_until(&world,
                !list_empty(&a->peers->links) && container_of(a->peers->links.prev, struct peer_link, node)->meeting.held);
    cr_assert_eq(a->n_up + b->n_up, 0);
    world_close_wires(&world);
    world_until(&world, a->n_up && b->n_up);
    cr_assert_eq(a->n_down + a->n_failed + b->n_down, 0);
    cr_assert_eq(a->peer, peer);
}

/* The address of a ref leads nowhere, that of the nodes file to the same node. */
Test(peer, listed_address_rescues_a_dial_that_hangs)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof in;
    int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct peer *peer;
    char address[65];

    cr_assert_eq(bind(silent, (struct sockaddr *)&in, sizeof in), 0);
    cr_assert_eq(listen(silent, 1), 0);
    cr_assert_eq(getsockname(silent, (struct sockaddr *)&in, &bytes), 0);
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(in.sin_port));
    start_listed(NULL);
    cr_assert_eq(peers_find(a->peers, b->node.uuid, address, NULL, &peer, NULL), RDT_OK);
    world_until(&world, a->n_up && b->n_up);
    cr_assert_eq(a->peer, peer);
    cr_assert_eq(world_count(a), 1);
    cr_assert_str_eq(peer->name, "bee");
    cr_assert_str_eq(peer->address, b->node.address);
    close(silent);
}

Test(peer, three_nodes_all_meet)
{
    world_start(a);
    world_start(b);
    world_start(c);
    world_find(a, b);
    world_find(b, c);
    world_find(c, a);
    world_until(&world, a->n_up == 2 && b->n_up == 2 && c->n_up == 2);
    cr_assert_eq(a->n_down + b->n_down + c->n_down, 0);
}

/* The line is in back-off, because the node was not there, when a ref of the node has it dialled at the same address. */
Test(peer, ref_of_a_listed_node_is_its_line_as_soon_as_the_node_answers)
{
    world_free_address(b->listen);
    world_list(a, 0, "bee", b->listen, NULL);
    world_start(a);
    world_until(&world, a->n_failed >= 4); /* so that the next try is a while away */
    world_start(b);
    cr_assert(!peer_is_one_of(world_find(a, b), "bee"), "nobody has answered there yet");
    world_until(&world, a->n_up);
    cr_assert(peer_is_one_of(a->peer, "bee"));
    cr_assert_str_eq(a->peer->name, "bee");
    cr_assert_eq(world_count(a), 1);
    cr_assert_eq(a->n_up, 1);
}

Test(peer, own_line_of_the_nodes_file_is_dropped)
{
    char address[65];

    world_start(b);
    world_free_address(a->listen);
    snprintf(address, sizeof address, "localhost%s", strrchr(a->listen, ':'));
    world_list(a, 0, "aye", address, NULL);
    world_list(a, 1, "bee", b->node.address, NULL);
    world_start(a);
    world_until(&world, a->n_up && world_count(a) == 1);
    cr_assert_eq(a->n_failed, 0);
    cr_assert_eq(a->n_up, 1);
}

/* ---- refusals ---- */

Test(peer, other_key_refused)
{
    world_write_key(&world, "other", "a key that only one node has");
    free(b->options.key_file);
    b->options.key_file = strdup(world.key_path);
    start_listed(NULL);
    world_until(&world, a->n_failed >= 2); /* it tries again */
    cr_assert_not_null(strstr(a->why.msg, "another key"), "%s", a->why.msg);
    cr_assert_str_eq(a->peer->last_error, a->why.msg);
    cr_assert_eq(a->n_up + b->n_up, 0);
}

Test(peer, same_uuid_in_another_boot_refused)
{
    memcpy(b->node.uuid, a->node.uuid, 16);
    start_listed(NULL);
    world_until(&world, a->n_failed);
    cr_assert_not_null(strstr(a->why.msg, "state_dir"), "%s", a->why.msg);
    cr_assert_eq(a->n_up + b->n_up, 0);
}

Test(peer, other_uuid_than_the_nodes_file_says_refused)
{
    world_start(b);
    world_list(a, 0, "bee", b->node.address, c->node.uuid);
    world_start(a);
    world_until(&world, a->n_failed >= 2);
    cr_assert_not_null(strstr(a->why.msg, "22222222"), "%s", a->why.msg);
    cr_assert_not_null(strstr(a->why.msg, "33333333"), "%s", a->why.msg);
    cr_assert_not_null(strstr(a->why.msg, "nodes file"), "%s", a->why.msg);
    cr_assert_eq(a->n_up + b->n_up + b->n_failed, 0);
}

Test(peer, find_names_what_is_missing)
{
    struct peer *peer = NULL;

    world_start(a);
    cr_assert_eq(peers_find(a->peers, b->node.uuid, "", NULL, &peer, NULL), RDT_NOT_FOUND);
    struct rdt_error err;
    cr_assert_eq(peers_find(a->peers, b->node.uuid, "nonsense", NULL, &peer, &err), RDT_INVALID);
    cr_assert_not_null(strstr(err.msg, "nodes file"), "%s", err.msg);
    cr_assert_eq(peers_find(a->peers, b->node.uuid, "127.0.0.1:0", NULL, &peer, NULL), RDT_INVALID);
    cr_assert_eq(peers_find(a->peers, a->node.uuid, "127.0.0.1:1", NULL, &peer, NULL), RDT_INVALID);
    cr_assert_null(peer);
}

Test(peer, without_key_there_are_no_peers)
{
    struct rdt_error err;
    struct peer *peer;

    free(a->options.key_file);
    a->options.key_file = strdup("");
    world_start(a);
    cr_assert_str_eq(a->node.address, "");
    cr_assert_eq(peers_find(a->peers, b->node.uuid, "127.0.0.1:1", NULL, &peer, &err), RDT_UNSUPPORTED);
    cr_assert_not_null(strstr(err.msg, "key_file"));
}

Test(peer, taken_port_refuses_the_start)
{
    const struct peers_callbacks callbacks = {0};
    struct rdt_error err;
    struct peers *peers;

    world_start(b);
    a->options.listen = b->node.address;
    cr_assert_eq(peers_create(&a->loop, &a->options, &a->node, &callbacks, &peers, &err), RDT_SYSTEM);
    cr_assert_not_null(strstr(err.msg, b->node.address), "%s", err.msg);
}

/* ---- messages ---- */

Test(peer, messages_arrive_whole_and_in_order)
{
    static const size_t sizes[] = {0, 1, 100, 16384, 70000, 1 << 20, 15 << 20, 3};
    uint64_t total = 0;

    start_listed(NULL);
    world_until(&world, a->n_up && b->n_up);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cr_assert_eq(world_send(a, i + 1, sizes[i], NULL), RDT_OK);
        total += sizes[i];
    }
    cr_assert_gt(peer_link_queued_bytes(a->peer->link_up), total);
    for (unsigned i = 0; i < 1000; i++)
        cr_assert_eq(world_send(b, i + 1, i, NULL), RDT_OK);
    world_until(&world, b->n_frames == sizeof sizes / sizeof sizes[0] && a->n_frames == 1000);
    cr_assert(a->in_order && b->in_order);
    cr_assert_eq(b->frame_bytes, total);
    world_until(&world, peer_link_queued_bytes(a->peer->link_up) < 1000);
    cr_assert_eq(a->n_down + b->n_down, 0);
}

Test(peer, too_large_message_changes_nothing)
{
    struct rdt_error err;

    start_listed(NULL);
    world_until(&world, a->n_up && b->n_up);
    cr_assert_eq(world_send(a, 1, RDT_MAX_FRAME_BYTES, &err), RDT_LIMIT);
    cr_assert_eq(world_send(a, 1, 10, NULL), RDT_OK);
    world_until(&world, b->n_frames == 1);
    cr_assert_eq(a->n_down, 0);
}

Test(peer, peer_that_does_not_read_is_dropped)
{
    enum rdt_status status = RDT_OK;

    start_listed(NULL);
    world_until(&world, a->n_up && b->n_up);
    b->frozen = true;
    for (unsigned i = 1; i <= 100 && status == RDT_OK; i++)
        status = world_send(a, i, 1 << 20, NULL);
    cr_assert_eq(status, RDT_LIMIT);
    cr_assert_eq(a->n_down, 0); /* not inside peer_send */
    world_until(&world, a->n_down);
    cr_assert_eq(a->why.status, RDT_LIMIT);
    cr_assert_not_null(strstr(a->why.msg, "does not read"), "%s", a->why.msg);
    cr_assert_eq(world_send(a, 1, 1, NULL), RDT_PEER_LOST);
}

Test(peer, refused_message_ends_the_link_and_says_why)
{
    start_listed(NULL);
    world_until(&world, a->n_up && b->n_up);
    b->answer = RDT_PROTOCOL;
    cr_assert_eq(world_send(a, 1, 10, NULL), RDT_OK);
    world_until(&world, a->n_down && b->n_down);
    cr_assert_eq(b->why.status, RDT_PROTOCOL);
    cr_assert_not_null(strstr(a->why.msg, "the test does not like it"), "%s", a->why.msg);
}

/* ---- faults ---- */

Test(peer, frozen_peer_lost_in_time)
{
    a->options.peer_timeout_ns = 400000000;
    start_listed(NULL);
    world_until(&world, a->n_up && b->n_up && a->peer->rtt_ns);
    b->frozen = true;
    uint64_t start = uv_hrtime();
    world_until(&world, a->n_down);
    cr_assert_lt(uv_hrtime() - start, 3000000000);
    cr_assert_gt(uv_hrtime() - start, 200000000);
    cr_assert_eq(a->why.status, RDT_PEER_LOST);
    cr_assert_not_null(strstr(a->why.msg, "no answer from node bee (22222222) for 0.4 s"), "%s", a->why.msg);

    b->frozen = false;
    world_until(&world, a->n_up == 2 && b->n_up == 2);
    cr_assert_eq(a->n_boot_changed, 0);
}

Test(peer, own_pause_is_not_the_peers_silence)
{
    a->options.peer_timeout_ns = 300000000;
    start_listed(NULL);
    world_until(&world, a->n_up && b->n_up && a->peer->rtt_ns);
    a->frozen = true;
    for (uint64_t end = uv_hrtime() + 700000000; uv_hrtime() < end;)
        world_turn(&world);
    a->frozen = false;
    uint64_t before = pings(a);
    world_until(&world, pings(a) >= before + 8 || a->n_down);
    cr_assert_eq(a->n_down, 0, "%s", a->why.msg);
}

Test(peer, killed_peer_lost_at_once)
{
    world_start(b);
    world_lay_cable(&world, b->node.address);
    world_list(a, 0, "bee", world.cable.address, NULL);
    world_start(a);
    world_until(&world, a->n_up && b->n_up);
    uint64_t start = uv_hrtime();
    world_close_wires(&world);
    world_until(&world, a->n_down && b->n_down);
    cr_assert_lt(uv_hrtime() - start, 1000000000);
    cr_assert_eq(a->why.status, RDT_PEER_LOST);
    world_until(&world, a->n_up == 2 && b->n_up == 2);
    cr_assert_eq(a->peer->epoch, 2);
    cr_assert_eq(a->n_boot_changed + b->n_boot_changed, 0);
}

/* b's end of the cut connection stays open: what is dialled anew must replace it. */
Test(peer, cut_cable_is_replaced)
{
    world_start(b);
    world_lay_cable(&world, b->node.address);
    a->options.peer_timeout_ns = 400000000;
    world_list(a, 0, "bee", world.cable.address, NULL);
    world_start(a);
    world_until(&world, a->n_up && b->n_up && a->peer->rtt_ns && b->peer->rtt_ns);
    world_cut_cable(&world);
    world_until(&world, a->n_up == 2 && b->n_up == 2);
    cr_assert_eq(a->n_down, 1);
    cr_assert_eq(b->n_down, 1);
    cr_assert_not_null(strstr(b->why.msg, "connected again"), "%s", b->why.msg);
    cr_assert_eq(b->n_boot_changed, 0);
    cr_assert_eq(world_send(b, 1, 10, NULL), RDT_OK);
    world_until(&world, a->n_frames);
}

Test(peer, restarted_peer_is_told_from_a_returned_one)
{
    world_free_address(b->listen);
    start_listed(NULL);
    world_until(&world, a->n_up && b->n_up);
    world_stop(&world, b);
    world_until(&world, a->n_down);
    cr_assert_not_null(strstr(a->why.msg, "shutting down"), "%s", a->why.msg);
    world_start(b);
    world_until(&world, a->n_up == 2 && b->n_up == 2);
    cr_assert_eq(a->n_boot_changed, 1);
    cr_assert_eq(a->peer->epoch, 2);
}

/* A new boot arrives while the link to the old one still seems to be up. */
Test(peer, restarted_dialler_replaces_its_old_link)
{
    world_start(b);
    world_lay_cable(&world, b->node.address);
    world_list(a, 0, "bee", world.cable.address, NULL);
    world_start(a);
    world_until(&world, a->n_up && b->n_up);
    world_cut_cable(&world);
    world_stop(&world, a);
    world_start(a);
    world_until(&world, a->n_up == 2 && b->n_up == 2);
    cr_assert_eq(b->n_down, 1);
    cr_assert_eq(b->n_boot_changed, 1);
    cr_assert_not_null(strstr(b->why.msg, "restarted"), "%s", b->why.msg);
}

Test(peer, close_with_dials_under_way_leaves_nothing)
{
    world_list(a, 0, "bee", "localhost:9", NULL);
    world_list(a, 1, "sea", "127.0.0.1:9", NULL);
    world_start(a);
    world_stop(&world, a);
    cr_assert_eq(a->n_down + a->n_failed, 0);
}

/* ---- the node table ---- */

static unsigned listed(const struct world_node *node)
{
    unsigned n = 0;

    for (const struct peer *peer = peers_next(node->peers, 0); peer; peer = peers_next(node->peers, peer->number))
        n += peer_listed_by(peer) >= 0;
    return n;
}

/* A long node table is taken over in many turns of the loop, and another one in the middle of that takes its place. */
Test(peer, long_node_table_takes_turns)
{
    enum { N = 1500, HALF = N / 2 };
    static struct node_entry entries[N];
    struct slices slices;
    unsigned n_turns = 0;

    for (unsigned i = 0; i < N; i++) {
        entries[i] = (struct node_entry){.next = i + 1 < N ? &entries[i + 1] : NULL, .source = 2};
        (void)snprintf(entries[i].name, sizeof entries[i].name, "n%u", i);
        (void)snprintf(entries[i].address, sizeof entries[i].address, "127.20.%u.%u:9", i / 250, i % 250 + 1);
    }
    slices_init(&slices, &a->loop);
    a->slices = &slices;
    world_start(a);
    peers_set_nodes(a->peers, entries);
    for (unsigned before = 0; before < HALF; before = listed(a), n_turns++)
        (void)uv_run(&a->loop, UV_RUN_NOWAIT);
    cr_assert_gt(n_turns, 10u);
    cr_assert_lt(listed(a), (unsigned)N);
    entries[HALF - 1].next = NULL; /* the nodes after that are those of the other table */
    peers_set_nodes(a->peers, &entries[HALF]);
    for (n_turns = 0; !list_empty(&slices.waiting); n_turns++)
        (void)uv_run(&a->loop, UV_RUN_NOWAIT);
    cr_assert_gt(n_turns, 10u);
    cr_assert_eq(listed(a), (unsigned)(N - HALF));
    peers_set_nodes(a->peers, NULL);
    while (listed(a) > 0)
        (void)uv_run(&a->loop, UV_RUN_NOWAIT);
    slices_close(&slices);
    world_stop(&world, a);
    a->slices = NULL;
}
