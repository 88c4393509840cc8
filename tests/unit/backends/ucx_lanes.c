/* SPDX-License-Identifier: Apache-2.0 */
/* backends/ucx/lanes.c: reads the lanes that UCX prints, and finds kinds of them. */
#include <criterion/criterion.h>

#include "../../../backends/ucx/lanes.c"

TestSuite(ucx_lanes, .timeout = 20);

static void expect_lanes(const char *printed, const char *expected)
{
    char list[160] = "";

    read_printed(printed, list, sizeof list);
    cr_assert_str_eq(list, expected);
}

Test(ucx_lanes, printed_lanes_are_read)
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

Test(ucx_lanes, long_lists_are_cut)
{
    char list[16] = "";

    for (unsigned i = 0; i < 30; i++)
        add_lane(list, sizeof list, &"tcp/eth000"[i & 1], 9);
    cr_assert_str_eq(list, "tcp/eth00, cp/e");
}

Test(ucx_lanes, kinds_of_lanes_are_found)
{
    static const char *const kinds[] = {"rc", "ud", NULL};
    static const struct {
        const char *lanes;
        bool found;
    } rows[] = {
        {"", false},         {"tcp/eth0", false},   {"rc_mlx5/mlx5_0:1", true}, {"tcp/eth0, rc_mlx5/mlx5_0:1", true},
        {"tcp/rc_0", false}, {"ud/mlx5_0:1", true}, {"udder/x", false},
    };

    for (unsigned i = 0; i < sizeof(rows) / sizeof *rows; i++)
        cr_assert_eq(lanes_have(rows[i].lanes, kinds), rows[i].found, "row %u", i);
}
