/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/groups: a node is lost, and a transport notices it before the node's link does. Whichever member noticed it first,
 * all members name that node, and nobody waits for a group that cannot be formed without it. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/group_world.h"

static struct gw_world w;
static struct gw_waiter creator;
static struct rdt_error err;

static void setup(void)
{
    struct group *made;

    gw_init(&w);
    cr_assert_eq(gw_create(&w, 0, &creator, &made, &err), RDT_OK, "%s", err.msg);
    gw_quiet(&w);
    cr_assert_str_eq(gw_state(&w, 1), "ready");
}

static void teardown(void)
{
    gw_fini(&w);
}

TestSuite(group_why, .init = setup, .fini = teardown, .timeout = 60);

/* Its transport's word has been taken for the reason. */
static void suspects(unsigned index)
{
    gw_vendor_fails(&w.nodes[index], "a rank closed its socket");
    cr_assert(gw_pass_one(&w.nodes[index]));
    cr_assert(strstr(gw_group(&w, index)->why, "closed its socket"), "%s", gw_group(&w, index)->why);
}

static void all_name_the_lost(void)
{
    gw_quiet(&w);
    for (unsigned i = 0; i < 2; i++) {
        const struct group *group = gw_group(&w, i);
        cr_assert_str_eq(gw_state(&w, i), "down");
        cr_assert(strstr(group->why, "link to n2 is lost"), "node %u: %s", i, group->why);
        cr_assert_not(group_will_be_ready(group), "node %u waits for it", i);
    }
    gw_restart(&w, 2);
    gw_settle(&w);
    for (unsigned i = 0; i < GW_NODES; i++)
        cr_assert_str_eq(gw_state(&w, i), "ready");
}

Test(group_why, member_noticed_first)
{
    suspects(1);
    gw_kill(&w, 2);
    all_name_the_lost();
}

Test(group_why, member_noticed_first_and_its_word_is_under_way)
{
    gw_kill(&w, 2); /* the coordinator has said so, and is not heard yet */
    suspects(1);
    all_name_the_lost();
}

Test(group_why, coordinator_noticed_first)
{
    suspects(0);
    gw_kill(&w, 2);
    all_name_the_lost();
}

Test(group_why, coordinator_noticed_first_and_the_members_are_down)
{
    w.nodes[0].never_closes = true; /* and cannot begin anew yet */
    suspects(0);
    gw_quiet(&w);
    cr_assert_str_eq(gw_state(&w, 1), "down");
    cr_assert(group_will_be_ready(gw_group(&w, 1)));
    gw_kill(&w, 2);
    w.nodes[0].never_closes = false;
    all_name_the_lost();
}
