/* SPDX-License-Identifier: Apache-2.0 */
/* backends/ucx/slow.c: reads the lanes that UCX prints, and judges whether they are slow for this machine or
 * this configuration. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../../backends/ucx/slow.c"

TestSuite(ucx_slow, .timeout = 20);

static void expect_lanes(const char *printed, const char *expected)
{
    char list[160];

    lanes_read_printed(printed, list, sizeof list);
    cr_assert_str_eq(list, expected);
}

Test(ucx_slow, printed_lanes_are_read)
{
    expect_lanes("", "");
    expect_lanes("#\n# UCP endpoint \n#\n#   peer: <no debug data>\n#   lane[0]: cm rdmacm\n", "");
    expect_lanes("#                 lane[0]: cm rdmacm\n"
                 "#                 lane[1]:  2:sysv/memory.0 md[1]           -> md[1]/sysv/sysdev[255] am am_bw#0 keepalive\n"
                 "#                 lane[2]:  0:tcp/lo.0 md[0]                -> md[0]/tcp/sysdev[255] rma_bw#0 wireup\n"
                 "#\n#                 am_send: 0..<egr/short>..93..<egr/bcopy>..8256..<rndv>..(inf)\n",
                 "sysv/memory, tcp/lo");
    expect_lanes("lane[0]:  5:rc_mlx5/mlx5_0:1.0 md[4] -> x\nlane[1]: 6:rc_mlx5/mlx5_0:1.1 md[4] -> x\n"
                 "lane[12]: 11:tcp/eth0.7.0 md[0] -> x\n",
                 "rc_mlx5/mlx5_0:1, tcp/eth0.7");
    expect_lanes("lane[\nlane[0]\nlane[1]:\nlane[2]: 3\nlane[3]: 3:\nlane[4]: 3:tcp\nlane[5]: 3:.0", "");
}

Test(ucx_slow, long_lists_are_cut)
{
    char list[16] = "";

    for (unsigned i = 0; i < 30; i++)
        lanes_add(list, sizeof list, &"tcp/eth000"[i & 1], 9);
    cr_assert_str_eq(list, "tcp/eth00, cp/e");
}

static bool slow(const char *lanes, const char *least, const char *interfaces, const char *sys, const char *expected)
{
    const struct slow_rule rule = {least, interfaces, sys};
    char why[160] = "";
    bool is_slow = lanes_are_slow(&rule, lanes, why, sizeof why);

    cr_assert(is_slow == (why[0] != 0));
    cr_assert(strstr(why, expected), "'%s' says nothing of '%s'", why, expected);
    return is_slow;
}

Test(ucx_slow, least_lane_is_a_transport_or_a_kind_of_them)
{
    static const struct {
        const char *lanes, *least;
        bool slow;
    } rows[] = {
        {"tcp/eth0", "tcp", false},
        {"tcp/eth0", "rdma", true},
        {"tcp/eth0", "rc,tcp", false},
        {"tcp/eth0", "tc", true},
        {"rc_mlx5/mlx5_0:1, tcp/eth0", "rc", false},
        {"rc_mlx5/mlx5_0:1, tcp/eth0", "rc_mlx5", false},
        {"rc_mlx5/mlx5_0:1", "rc_verbs", true},
        {"ud_verbs/mlx5_0:1", "rdma", false},
        {"dc_mlx5/mlx5_0:1", "ib", false},
        {"udder/x", "rdma", true},
        {"sysv/memory", "shm", false},
        {"cma/memory", "shm", false},
        {"tcp/eth0", "shm", true},
        {"", "rdma", false}, /* the lanes are not known */
    };

    for (unsigned i = 0; i < sizeof(rows) / sizeof *rows; i++)
        cr_assert_eq(slow(rows[i].lanes, rows[i].least, "", "/nowhere", rows[i].slow ? rows[i].least : ""), rows[i].slow,
                     "row %u", i);
}

static char sys_dir[128];

static void make_folder(const char *path)
{
    char whole[400];

    (void)snprintf(whole, sizeof whole, "mkdir -p %s/%s", sys_dir, path);
    cr_assert_eq(system(whole), 0);
}

Test(ucx_slow, rdma_device_that_nobody_uses_is_named)
{
    const char *tmp = getenv("TMPDIR");

    (void)snprintf(sys_dir, sizeof sys_dir, "%.100s/sys.%d", tmp ? tmp : "/tmp", (int)getpid());
    make_folder("class/net/eth0/device/infiniband/mlx5_3");
    make_folder("class/net/eth1/device");
    make_folder("class/infiniband/mlx5_0");
    cr_assert(slow("tcp/eth0", "", "eth0", sys_dir, "eth0 has the RDMA device mlx5_3"));
    cr_assert(slow("tcp/eth1", "", "eth1,eth0", sys_dir, "mlx5_3"));
    cr_assert(!slow("tcp/eth1", "", "eth1", sys_dir, ""));
    cr_assert(!slow("tcp/eth1", "", "", sys_dir, ""));
    cr_assert(slow("tcp/eth1", "", "eth1,mlx5_0:1", sys_dir, "mlx5_0"));
    cr_assert(!slow("rc_mlx5/mlx5_3:1, tcp/eth0", "", "eth0", sys_dir, ""));
    cr_assert(!slow("tcp/eth0", "tcp", "eth0", sys_dir, "")); /* the user says that it will do */
}

Test(ucx_slow, only_tcp_copies)
{
    cr_assert(lanes_copy(""));
    cr_assert(lanes_copy("tcp/lo, tcp/eth0"));
    cr_assert(!lanes_copy("tcp/lo, cma/memory"));
    cr_assert(!lanes_copy("rc_mlx5/mlx5_0:1"));
}

Test(ucx_slow, tcp_over_another_interface_is_named)
{
    cr_assert(slow("tcp/eth1", "", "eth0,lo", "/nowhere", "tcp/eth1 is not among interfaces"));
    cr_assert(slow("tcp/eth0, tcp/eth01", "tcp", "eth0", "/nowhere", "tcp/eth01"));
    cr_assert(!slow("tcp/eth0, tcp/lo", "", "eth0,lo", "/nowhere", ""));
    cr_assert(!slow("sysv/memory, tcp/lo", "", "lo", "/nowhere", ""));
}
