/* SPDX-License-Identifier: Apache-2.0 */
/* Where the nodes' data finds the other node: addresses that are offered, ports that are closed. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/cluster.h"
#include "tests/support/program.h"

TestSuite(reach, .timeout = 120);

#define MIB ((size_t)1 << 20)

static struct test_net net;
static struct test_node node[2];
static rdt *owner, *reader; /* clients of node 0 and node 1 */

static bool is_up(unsigned i, struct peer_view *view_p)
{
    return peer_seen(&node[i], &node[1 - i], view_p) && strcmp(view_p->state, "up") == 0 && view_p->stream;
}

/* Two nodes on cables of their own that have met. advertise: whether they say which address is theirs. */
static void begin(const char *const *listen, bool advertise, const char *const *flags)
{
    char nodes[128], listens[65], address[65];
    struct peer_view view;

    for (unsigned i = 0; i < 2; i++) {
        (void)snprintf(listens, sizeof listens, "%s:7171", listen[i]);
        (void)snprintf(address, sizeof address, "%s:7171", net.address[i]);
        (void)snprintf(nodes, sizeof nodes, "other %s:7171\n", net.address[1 - i]);
        node_start(&node[i], &(struct node_options){.name = i ? "reader" : "owner",
                                                    .netns = net.ns[i],
                                                    .listen = listens,
                                                    .advertise = advertise ? address : NULL,
                                                    .nodes = i ? nodes : NULL,
                                                    .flags = flags,
                                                    .awaited = true});
    }
    wait_until(20 * SEC, is_up(0, &view) && is_up(1, &view));
    owner = node_client(&node[0], "owner");
    reader = node_client(&node[1], "reader");
}

static void end(void)
{
    static const char *const declared[] = {"is down: ", "is lost: ", "taken down and rebuilt: ", NULL};

    rdt_close(owner);
    rdt_close(reader);
    for (unsigned i = 0; i < 2; i++)
        node_expect_idle(&node[i]);
    node_stop(&node[1]); /* it dials */
    node_stop(&node[0]);
    for (unsigned i = 0; i < 2; i++)
        node_check_log(&node[i], declared);
    net_destroy(&net);
}

static void bytes_go_both_ways(void)
{
    struct rdt_ref ref = put_pattern(owner, NULL, 3 * MIB, 1);

    fetch_pattern(reader, &ref, 3 * MIB, 1, "stream");
    must_ok(rdt_free(owner, &ref, true, &err));
    ref = put_pattern(reader, NULL, 3 * MIB, 2);
    fetch_pattern(owner, &ref, 3 * MIB, 2, "stream");
    must_ok(rdt_free(reader, &ref, true, &err));
}

/* ---- addresses that are offered ---- */

/* The first address of each machine is the same on both, as that of the first interface of virtual machines often is. */
static void begin_with_common_first_address(bool advertise)
{
    net_create(&net, 2);
    for (unsigned i = 0; i < 2; i++)
        must(net_run(net.ns[i],
                     "ip address flush dev eth0 && ip address add 10.0.2.15/24 dev eth0 && ip address add %s/24 dev eth0",
                     net.address[i]) == 0);
    begin((const char *const[]){"0.0.0.0", "0.0.0.0"}, advertise, (const char *const[]){"--trusted-network=no", NULL});
}

Test(reach, listening_everywhere_offers_the_address_of_the_link)
{
    begin_with_common_first_address(false);
    bytes_go_both_ways();
    end();
}

Test(reach, advertised_address_is_listened_at_and_offered)
{
    begin_with_common_first_address(true);
    for (unsigned i = 0; i < 2; i++) {
        char line[64];

        (void)snprintf(line, sizeof line, "stream: listens on %s", net.address[i]);
        cr_assert(node_log_has(&node[i], line));
    }
    bytes_go_both_ways();
    end();
}

Test(reach, both_families_are_listened_at)
{
    net_create(&net, 2);
    begin((const char *const[]){"[::]", "0.0.0.0"}, false, (const char *const[]){"--trusted-network=no", NULL});
    bytes_go_both_ways();
    end();
}
