/* SPDX-License-Identifier: Apache-2.0 */
/* Two nodes that know each other by IPv6 addresses: the peer link, the data, and malformed addresses. */
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/cluster.h"
#include "tests/support/program.h"

TestSuite(ipv6, .timeout = 120);

#define MIB ((size_t)1 << 20)

static struct test_node one, two;

static bool has_loopback(void)
{
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&in6, sizeof in6) == 0;

    if (fd >= 0)
        (void)close(fd);
    return has;
}

static bool is_up(const struct test_node *node, const struct test_node *other, struct peer_view *view_p)
{
    return peer_seen(node, other, view_p) && strcmp(view_p->state, "up") == 0;
}

/* The second node has the first one in its nodes file, by its address alone. */
static void begin(bool trusted)
{
    const char *const flags[] = {trusted ? "--set=stream.enabled=no" : "--trusted-network=no", NULL};
    struct peer_view view;
    char nodes[96];

    if (!has_loopback())
        cr_skip_test("this machine has no ::1");
    node_start(&one, &(struct node_options){.name = "one", .listen = "[::1]:0", .trusted_network = trusted, .flags = flags});
    (void)snprintf(nodes, sizeof nodes, "uno %s\n", one.address);
    node_start(
        &two,
        &(struct node_options){
            .name = "two", .listen = "[::1]:0", .nodes = nodes, .trusted_network = trusted, .flags = flags, .awaited = true});
    wait_until(10 * SEC, is_up(&two, &one, &view) && is_up(&one, &two, &view));
    must(is_up(&two, &one, &view));
    cr_assert_str_eq(view.name, "uno");
}

static void end(void)
{
    static const char *const ends[] = {"is down: ",       "is lost: ", "taken down and rebuilt: ",
                                       "connection from", "ucx: ucx ", NULL}; /* 1.13 says that it finds no ::1 */

    node_expect_idle(&one);
    node_expect_idle(&two);
    node_stop(&two);
    node_stop(&one);
    node_check_log(&one, ends);
    node_check_log(&two, ends);
}

/* Both ways; and by address, by name and by uuid. */
static void bytes_go_by(const char *path)
{
    rdt *conns[] = {node_client(&one, "one"), node_client(&two, "two")};
    struct rdt_ref ref;

    for (unsigned i = 0; i < 2; i++) {
        ref = put_pattern(conns[i], NULL, 3 * MIB, i);
        fetch_pattern(conns[1 - i], &ref, 3 * MIB, i, path);
        memset(ref.node, 0, sizeof ref.node);
        fetch_pattern(conns[1 - i], &ref, 3 * MIB, i, path);
        if (i == 0) {
            (void)snprintf(ref.address, sizeof ref.address, "uno");
            fetch_pattern(conns[1], &ref, 3 * MIB, i, path);
        }
        must_ok(rdt_free(conns[1 - i], &ref, true, &err));
    }
    rdt_close(conns[0]);
    rdt_close(conns[1]);
}

Test(ipv6, nodes_file_and_stream)
{
    begin(false);
    must(strncmp(one.address, "[::1]:", 6) == 0 && strncmp(two.address, "[::1]:", 6) == 0);
    bytes_go_by("stream");
    end();
}

Test(ipv6, nodes_file_and_ucx)
{
    if (access(build_path("backends/rdt_ucx.so"), F_OK) != 0)
        cr_skip_test("the backend ucx is not built");
    begin(true);
    /* UCX 1.13 finds no ::1, and says so; it must not end the daemon. */
    if (!node_log_has(&one, "listens on ::1"))
        cr_assert(node_log_has(&one, "no usable transports"));
    else
        bytes_go_by("ucx");
    end();
}

/* An address of the other family would overwrite memory of UCX's. */
Test(ipv6, ucx_of_the_other_family_is_not_used)
{
    struct peer_view view;
    char nodes[96];

    if (!has_loopback() || access(build_path("backends/rdt_ucx.so"), F_OK) != 0)
        cr_skip_test("this machine has no ::1, or the backend ucx is not built");
    node_start(&one, &(struct node_options){.name = "one",
                                            .listen = "[::1]:0",
                                            .trusted_network = true,
                                            .flags = (const char *const[]){"--set=ucx.listen=127.0.0.1", NULL}});
    (void)snprintf(nodes, sizeof nodes, "uno %s\n", one.address);
    node_start(&two, &(struct node_options){
                         .name = "two", .listen = "[::1]:0", .nodes = nodes, .trusted_network = true, .awaited = true});
    wait_until(10 * SEC, is_up(&two, &one, &view) && is_up(&one, &two, &view));
    bytes_go_by("stream");
    end();
}

/* ---- machines that have no IPv4 address at all, not even 127.0.0.1 ---- */

static struct test_net net;

static void make_net(void)
{
    net_create(&net, 2);
    for (unsigned i = 0; i < 2; i++)
        must(
            net_run(
                net.ns[i],
                "ip -4 address flush dev lo && ip -4 address flush dev eth0 && ip address add fd00:77::%u/64 dev eth0 nodad && "
                "! ip -4 address | grep -q inet",
                i + 1) == 0);
}

/* listen [2]: NULL: as systemd/image/kubernetes.yaml has it. */
static void begin_without_ipv4(const char *const *listen, bool trusted)
{
    static const char *const kubernetes[] = {"RDTD_LISTEN=[fd00:77::1]:7171", "RDTD_LISTEN=[fd00:77::2]:7171"};
    static const char *const addresses[] = {"[fd00:77::1]:7171", "[fd00:77::2]:7171"};
    struct test_node *const nodes[] = {&one, &two};
    struct peer_view view;

    make_net();
    for (unsigned i = 0; i < 2; i++)
        node_start(nodes[i], &(struct node_options){.name = i ? "two" : "one",
                                                    .netns = net.ns[i],
                                                    .listen = listen ? listen[i] : NULL,
                                                    .advertise = listen ? addresses[i] : NULL,
                                                    .env = listen ? NULL : (const char *const[]){kubernetes[i], NULL},
                                                    .key = TEST_KEY,
                                                    .nodes = i ? "uno [fd00:77::1]:7171\n" : NULL,
                                                    .trusted_network = trusted,
                                                    .flags = (const char *const[]){"--set=stream.ports=7200-7207", NULL},
                                                    .awaited = true});
    wait_until(10 * SEC, is_up(&two, &one, &view) && is_up(&one, &two, &view));
}

Test(ipv6, machines_without_ipv4_exchange_bytes)
{
    static const char *const listens[][2] = {{"[fd00:77::1]:7171", "[fd00:77::2]:7171"}, {"[::]:7171", "[::]:7171"}};

    for (unsigned i = 0; i < 3; i++) {
        begin_without_ipv4(i < 2 ? listens[i] : NULL, false);
        bytes_go_by("stream");
        end();
        net_destroy(&net);
    }
}

Test(ipv6, machines_without_ipv4_use_ucx)
{
    if (access(build_path("backends/rdt_ucx.so"), F_OK) != 0)
        cr_skip_test("the backend ucx is not built");
    begin_without_ipv4((const char *const[]){"[fd00:77::1]:7171", "[fd00:77::2]:7171"}, true);
    cr_assert(node_log_has(&one, "listens on fd00:77::1"));
    bytes_go_by(NULL);
    rdt *reader = node_client(&two, "reader"), *owner = node_client(&one, "owner");
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG, .transport = "ucx"};
    struct rdt_ref ref = put_pattern(owner, NULL, 3 * MIB, 1);
    rdt_object *object = fetch_as(reader, &ref, &options);

    must(holds_pattern(tensor_of(object, 0).data, 3 * MIB, 1));
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, true, &err));
    rdt_close(reader);
    rdt_close(owner);
    end();
    net_destroy(&net);
}

/* As in a unit that is given either kind of address: systemd/image/kubernetes.yaml. */
Test(ipv6, brackets_around_an_ipv4_address_are_allowed)
{
    node_start(&one, &(struct node_options){.name = "one", .listen = "[127.0.0.1]:0"});
    must(strncmp(one.address, "127.0.0.1:", 10) == 0);
    node_end(&one, NULL);
}

/* ---- addresses that are not written well ---- */

Test(ipv6, address_that_is_not_written_well_is_named)
{
    static const struct {
        const char *flag, *says;
    } rows[] = {
        {"--listen=::1:7171", "needs brackets around an IPv6 address, as in [::1]:7171"},
        {"--listen=[::1:7171", "needs brackets around an IPv6 address"},
        {"--listen=::1]:7171", "needs brackets around an IPv6 address"},
        {"--listen=[::1]", "[::1]"},
        {"--listen=[]:7171", "[]:7171"},
        {"--listen=[::1]:", "[::1]:"},
        {"--listen=[::1]:70000", "port"},
        {"--listen=[::g]:7171", "[::g]:7171"},
        {"--listen=[[::1]]:7171", "has no IPv6 address in its brackets"},
        {"--listen=[localhost]:7171", "has no IPv6 address in its brackets"},
        {"--advertise=::1:7171", "needs brackets around an IPv6 address"},
    };

    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct program program = {0};

        write_file("key", TEST_KEY);
        program_run(&program, (const char *const[]){"rdtd", "--config=", "--check-config", rows[i].flag, NULL}, NULL);
        must_say(program.status != 0 && strstr(program.err, rows[i].says), "%s: %d, %s%s", rows[i].flag, program.status,
                 program.out, program.err);
        program_free(&program);
    }
}

Test(ipv6, ref_that_is_not_written_well_is_named)
{
    static const char *const rows[] = {"::1:7171", "[::1:7171", "[::1]", "[::1]:70000", "[[::1]]:7171"};
    struct rdt_ref ref = ref_named("x");
    rdt_object *object;

    if (!has_loopback())
        cr_skip_test("this machine has no ::1");
    node_start(&one, &(struct node_options){.listen = "[::1]:0"});
    rdt *conn = node_client(&one, "client");
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)snprintf(ref.address, sizeof ref.address, "%s", rows[i]);
        must_refuse(RDT_INVALID, rows[i], try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    }
    rdt_close(conn);
    node_end(&one, NULL);
}
