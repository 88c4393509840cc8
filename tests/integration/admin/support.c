/* SPDX-License-Identifier: Apache-2.0 */
/* The test harness itself: it starts and stops daemons, steps actors, and cuts cables. */
#include <criterion/criterion.h>
#include <signal.h>

#include "tests/support/netns.h"
#include "tests/support/rdtd.h"

Test(support, node_starts_and_stops)
{
    struct test_node node;

    node_start(&node, NULL);
    cr_assert_eq(node.address[0], '\0');
    node_end(&node, NULL);
}

static int ping(struct actor *self, void *arg)
{
    rdt *conn;

    node_connect(arg, &conn);
    actor_step(self);
    actor_await(self);
    must_ok(rdt_ping(conn, LONG, &err));
    rdt_close(conn);
    return 7;
}

static int hang(struct actor *self, void *arg)
{
    actor_await(self);
    return 0;
}

Test(support, actors_step_and_end)
{
    struct actor actor, other;
    struct test_node node;

    node_start(&node, &(struct node_options){.loopback = true});
    actor_start(&actor, ping, &node);
    actor_await(&actor);
    struct node_status status = node_now(&node);
    cr_assert_eq(status.clients, 1);
    actor_step(&actor);
    cr_assert_eq(actor_result(&actor), 7);
    actor_start(&other, hang, NULL);
    actor_signal(&other, SIGKILL);
    cr_assert_eq(actor_result(&other), 128 + SIGKILL);
    node_end(&node, NULL);
}

Test(support, nodes_on_cables_meet)
{
    struct test_node node;
    struct test_net net;

    net_create(&net, 2);
    node_start(&node, &(struct node_options){.netns = net.ns[0], .listen = "10.77.0.1:0"});
    cr_assert_eq(strncmp(node.address, "10.77.0.1:", 10), 0, "%s", node.address);
    cr_assert_eq(net_run(net.ns[1], "timeout 5 bash -c '</dev/tcp/%.9s/%s'", node.address, node.address + 10), 0);
    net_cut(&net, 0);
    cr_assert_neq(net_run(net.ns[1], "timeout 0.3 bash -c '</dev/tcp/%.9s/%s' 2>/dev/null", node.address, node.address + 10),
                  0);
    net_restore(&net, 0);
    cr_assert_eq(net_run(net.ns[1], "timeout 5 bash -c '</dev/tcp/%.9s/%s'", node.address, node.address + 10), 0);
    node_expect_idle(&node);
    node_stop(&node);
    net_destroy(&net);
}
