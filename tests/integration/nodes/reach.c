/* SPDX-License-Identifier: Apache-2.0 */
/* Where the nodes' data finds the other node: addresses that are offered, ports that are closed. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
static bool trusts; /* the nodes trust the network, so that ucx is there */

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
                                                    .trusted_network = trusts,
                                                    .awaited = true});
    }
    wait_until(20 * SEC, is_up(0, &view) && is_up(1, &view));
    owner = node_client(&node[0], "owner");
    reader = node_client(&node[1], "reader");
}

static void end(void)
{
    static const char *const declared[] = {"is down: ",
                                           "is lost: ",
                                           "taken down and rebuilt: ",
                                           "set advertise", /* of this machine's own name */
                                           "set listen or interfaces in [ucx]",
                                           NULL};

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

/* ---- ports that are closed ---- */

/* Packets of that namespace to or from the port vanish, as in a firewall that answers nothing. */
static void close_port(unsigned i, const char *which)
{
    must(net_run(net.ns[i],
                 "ip neigh replace 10.77.0.250 lladdr 02:00:00:00:00:99 dev eth0 nud permanent && "
                 "ip route replace default via 10.77.0.250 dev eth0 table 77 && ip rule add ipproto tcp %s 7200 table 77",
                 which) == 0);
}

static void begin_with_ports(void)
{
    begin((const char *const[]){net.address[0], net.address[1]}, false,
          (const char *const[]){"--trusted-network=no", "--set=stream.ports=7200", "--set=stream.connections=2", NULL});
}

static bool doctor_says(unsigned i, const char *text)
{
    struct program doctor;
    bool says;

    program_run(&doctor, (const char *const[]){build_path("rdtctl"), "--socket", node[i].socket, "doctor", NULL}, NULL);
    says = strstr(doctor.out, text);
    program_free(&doctor);
    return says;
}

Test(reach, one_open_direction_is_enough)
{
    for (unsigned i = 0; i < 2; i++) {
        net_create(&net, 2);
        close_port(i, "dport"); /* node i does not reach the other one's data port */
        begin_with_ports();
        bytes_go_both_ways();
        bytes_go_both_ways();
        end();
    }
}

/* The end that takes the bytes is the only one that can dial the connections that replace those with old keys. */
Test(reach, keys_are_replaced_where_one_direction_is_open)
{
    struct rdt_ref ref;

    net_create(&net, 2);
    close_port(0, "dport");
    begin((const char *const[]){net.address[0], net.address[1]}, false,
          (const char *const[]){"--trusted-network=no", "--set=stream.ports=7200", "--set=stream.connections=2",
                                "--set=stream.rekey_bytes=1048576", "--chunk=256KiB", NULL});
    ref = put_pattern(owner, NULL, 32 * MIB, 1);
    for (unsigned i = 0; i < 3; i++)
        fetch_pattern(reader, &ref, 32 * MIB, 1, "stream");
    must_ok(rdt_free(owner, &ref, true, &err));
    must(node_log_count(&node[1], "taken down and rebuilt: ") == 0);
    end();
}

Test(reach, closed_port_is_named_before_anybody_fetches)
{
    net_create(&net, 2);
    for (unsigned i = 0; i < 2; i++) {
        close_port(i, "dport");
        close_port(i, "sport");
    }
    begin_with_ports();
    wait_until(20 * SEC, doctor_says(0, "10.77.0.2 port 7200") && doctor_says(1, "10.77.0.1 port 7200"));

    struct rdt_ref ref = put_pattern(owner, NULL, 3 * MIB, 1);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = 30 * SEC};
    rdt_object *object;
    struct rdt_error why;

    cr_assert_neq(rdt_fetch(reader, &ref, 1, &options, &object, &why), RDT_OK);
    cr_assert(strstr(why.msg, "10.77.0.2 port 7200"), "%s", why.msg);
    must_ok(rdt_free(owner, &ref, true, &err));
    end();
}

/* The switch drops what is larger than its port to the reader takes, without a word. */
Test(reach, path_that_loses_large_packets_is_named)
{
    static const size_t sizes[] = {20000, 3 * MIB}; /* the peer link carries the former, and ends */
    static const char text[] = "small messages pass and large ones do not";

    net_create(&net, 2);
    for (unsigned i = 0; i < 2; i++)
        must(net_run(net.ns[i], "ip link set eth0 gso_max_segs 1") == 0);
    must(net_run(net.hub, "ip link set p1 mtu 900") == 0);
    begin((const char *const[]){net.address[0], net.address[1]}, false,
          (const char *const[]){"--trusted-network=no", "--set=stream.dead_after=3", NULL});
    wait_until(20 * SEC, doctor_says(0, text) && doctor_says(1, text));
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_ref ref = put_pattern(owner, NULL, sizes[i], 1);
        struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = 30 * SEC};
        rdt_object *object;
        struct rdt_error why;
        struct peer_view view;

        wait_until(20 * SEC, is_up(0, &view) && is_up(1, &view));
        cr_assert_neq(rdt_fetch(reader, &ref, 1, &options, &object, &why), RDT_OK);
        cr_assert(strstr(why.msg, text) && strstr(why.msg, "MTU"), "%s", why.msg);
        must_ok(rdt_free(owner, &ref, true, &err));
    }
    end();
}

/* ---- port mappings ---- */

/* Namespace `machine` maps its ports 17171 and 17200 to 7171 and 7200 of the node in the namespace `inner`, which reaches other
 * machines with the machine's address. All inner networks have the same addresses, as those of containers often have. */
static void map_ports(unsigned machine, unsigned inner)
{
    must(net_run(net.ns[inner], "ip address flush dev eth0 && ip link set eth0 down") == 0);
    must(net_run(net.ns[machine],
                 "ip link add inner type veth peer name eth1 netns /proc/%d/fd/%d && ip address add 172.30.0.1/24 dev inner && "
                 "ip link set inner up && echo 1 >/proc/sys/net/ipv4/ip_forward",
                 (int)getpid(), net.ns[inner]) == 0);
    must(net_run(net.ns[inner], "ip address add 172.30.0.2/24 dev eth1 && ip link set eth1 up && "
                                "ip route add default via 172.30.0.1") == 0);
    must(net_run(net.ns[machine],
                 "nft 'table ip mapping { "
                 "chain in { type nat hook prerouting priority -100; iifname \"eth0\" tcp dport 17171 dnat to 172.30.0.2:7171; "
                 "iifname \"eth0\" tcp dport 17200 dnat to 172.30.0.2:7200; }; "
                 "chain out { type nat hook postrouting priority 100; oifname \"eth0\" masquerade; }; }'") == 0);
}

static void begin_mapped(unsigned i)
{
    char nodes[64], address[64], data[64];

    (void)snprintf(nodes, sizeof nodes, "other %s:17171\n", net.address[1 - i]);
    (void)snprintf(address, sizeof address, "%s:17171", net.address[i]);
    (void)snprintf(data, sizeof data, "--set=stream.advertise=%s:17200", net.address[i]);
    node_start(&node[i], &(struct node_options){
                             .name = i ? "reader" : "owner",
                             .netns = net.ns[2 + i],
                             .listen = "0.0.0.0:7171",
                             .advertise = address,
                             .nodes = i ? nodes : NULL,
                             .flags = (const char *const[]){"--trusted-network=no", "--set=stream.ports=7200", data, NULL},
                             .awaited = true});
}

Test(reach, nodes_behind_port_mappings_exchange_bytes)
{
    struct peer_view view;

    if (system("command -v nft >/dev/null 2>&1") != 0)
        cr_skip_test("no `nft` here (nftables)");
    net_create(&net, 4);
    if (net_run(net.ns[0],
                "nft 'table ip try { chain c { type nat hook prerouting priority -100; }; }' && nft delete table ip try") != 0)
        cr_skip_test("the kernel maps no ports (nf_tables, nft_nat)");
    for (unsigned i = 0; i < 2; i++)
        map_ports(i, 2 + i);
    for (unsigned i = 0; i < 2; i++)
        begin_mapped(i);
    wait_until(20 * SEC, is_up(0, &view) && is_up(1, &view));
    owner = node_client(&node[0], "owner");
    reader = node_client(&node[1], "reader");
    bytes_go_both_ways();
    end();
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
    begin((const char *const[]){"0.0.0.0", "0.0.0.0"}, advertise,
          (const char *const[]){trusts ? "--log-level=info" : "--trusted-network=no", NULL});
}

Test(reach, listening_everywhere_offers_the_address_of_the_link)
{
    begin_with_common_first_address(false);
    bytes_go_both_ways();
    end();
}

/* UCX listens at one address, here the one that both machines have: each would connect to itself. */
Test(reach, ucx_is_not_used_where_the_link_is_at_another_address)
{
    struct program peers;

    if (access(build_path("backends/rdt_ucx.so"), F_OK) != 0)
        cr_skip_test("the backend ucx is not built");
    trusts = true;
    begin_with_common_first_address(false);
    bytes_go_both_ways();
    program_run(&peers, (const char *const[]){build_path("rdtctl"), "--socket", node[1].socket, "peers", "--json", NULL}, NULL);
    cr_assert(strstr(peers.out, "ucx listens at the first address of the node, 10.0.2.15: set listen or interfaces in [ucx]"),
              "%s", peers.out);
    program_free(&peers);
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
