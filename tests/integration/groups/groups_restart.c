/* SPDX-License-Identifier: Apache-2.0 */
/* A group whose coordinator's daemon has a keeper, and is killed: the next daemon has the group and forms it again. */
#include <criterion/criterion.h>
#include <signal.h>

#include "tests/integration/groups/groups_fixture.h"
#include "tests/support/fakes/fake_device.h"
#include "tests/support/keeper.h"

TestSuite(groups_restart, .timeout = SUITE_SECONDS(240));

static struct test_keeper keeper;

static const char *const declared[] = {"is taken down and rebuilt: ", "is lost: ", "refused", "is down: ", NULL};

static void begin(unsigned n)
{
    static char flag[200];

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    begin_groups(n, "grouped",
                 &(struct cluster_options){.grouped = true,
                                           .no_ucx = true,
                                           .same_socket = true,
                                           .flags = (const char *const[]){"--chunk=64KiB", "--backoff-max=500ms", NULL},
                                           .flags_of = {(const char *const[]){flag, NULL}}});
}

static void end(void)
{
    end_groups(declared);
    keeper_stop(&keeper, SIGTERM);
}

static void restart_coordinator(void)
{
    node_kill(&c.node[0], SIGKILL);
    cluster_restart(&c, 0);
    must_ok(rdt_ping(actor_of[0], LONG, &err)); /* its session goes on */
}

Test(groups_restart, group_is_formed_again_by_the_coordinators_next_daemon)
{
    struct rdt_group before, after;
    uint32_t last = 1;

    begin(3);
    must_ok(form(actor_of[0], "g", 3, &err));
    must(group_seen(actor_of[0], "g", &before));
    for (unsigned round = 0; round < 2; round++) {
        restart_coordinator();
        for (unsigned i = 0; i < 3; i++)
            wait_until(60 * SEC, group_seen(actor_of[i], "g", &after) && after.epoch > last);
        for (unsigned i = 0; i < 3; i++)
            await_group(i, "g", "ready", 0);
        must(group_seen(actor_of[0], "g", &after));
        last = after.epoch;
        cr_assert_str_eq(after.transport, before.transport);
        cr_assert_eq(after.members, before.members);
        move(0, 2, "g", MIB); /* by ranks: each member is where it was */
        move(2, 1, "g", MIB);
    }
    must_refuse(RDT_EXISTS, "already has a group", form(actor_of[0], "g", 3, &err));
    must_ok(rdt_group_destroy(actor_of[0], "g", &err));
    restart_coordinator();
    must(!group_seen(actor_of[0], "g", &after));
    end();
}
