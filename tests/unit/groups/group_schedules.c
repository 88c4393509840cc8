/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/groups: random events on three nodes at random times. After every schedule, when all nodes are back, each group is
 * ready on all of them or has ended, nobody waits, and nothing is left. group_world.c checks what transfers are told
 * meanwhile. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/groups/group_impl.h"
#include "tests/support/group_world.h"

#define SCHEDULES 400u
#define STEPS 150u
#define WAITERS (STEPS + 1u)

static struct gw_world w;
static unsigned seed;
static struct gw_waiter waiters[WAITERS];
static unsigned n_waiters;

TestSuite(group_schedules, .timeout = 120);

static unsigned any(unsigned n)
{
    seed = seed * 1103515245u + 12345u;
    return (seed >> 16) % n;
}

/* What most often happens: something arrives, some transport goes on. */
static void go_on(void)
{
    for (unsigned i = 0; i < 12; i++) {
        unsigned at = any(GW_NODES);
        (void)gw_deliver_one(&w, any(GW_NODES), any(GW_NODES));
        if (w.nodes[at].running && !gw_turn(&w.nodes[at]))
            (void)gw_vendor_one(&w.nodes[at]);
    }
}

static void happen(void)
{
    unsigned at = any(GW_NODES), other = (at + 1 + any(GW_NODES - 1)) % GW_NODES;
    struct gw_node *node = &w.nodes[at];
    struct group *group = gw_group(&w, at);
    struct rdt_error err;

    switch (any(30)) {
    case 0:
        gw_cut(&w, at, other);
        break;
    case 1:
    case 2:
        gw_mend(&w, at, other);
        break;
    case 3:
        if (node->running)
            gw_kill(&w, at);
        break;
    case 4:
    case 5:
        if (!node->running)
            gw_restart(&w, at);
        break;
    case 6:
        gw_vendor_fails(node, "it broke");
        break;
    case 7:
        if (group)
            group_break(group, "an abort does not come to rest");
        break;
    case 8:
    case 9:
        if (node->running && gw_create(&w, at, &waiters[n_waiters], &group, &err) == RDT_OK)
            n_waiters++;
        break;
    case 10:
        if (group)
            gw_end(group, &waiters[n_waiters++]);
        break;
    case 11:
        node->hangs = any(4) == 0;
        break;
    case 12:
        node->never_closes = any(4) == 0;
        break;
    case 13:
        node->refuses_create = any(4) == 0;
        node->refuses_connect = any(4) == 0;
        break;
    case 14:
        if (node->running)
            (void)gw_pass_one(node);
        break;
    default:
        go_on();
        break;
    }
}

static void heal(void)
{
    for (unsigned i = 0; i < GW_NODES; i++) {
        w.nodes[i].hangs = w.nodes[i].never_closes = w.nodes[i].refuses_create = w.nodes[i].refuses_connect = false;
        if (!w.nodes[i].running)
            gw_restart(&w, i);
    }
    for (unsigned i = 0; i < GW_NODES; i++)
        for (unsigned k = 0; k < i; k++)
            gw_mend(&w, i, k);
    gw_settle(&w);
}

/* A group of a coordinator that has restarted is down until somebody ends it. */
static bool is_orphan(const struct group *group)
{
    return group->orphan && group->sm.state == GROUP_DOWN;
}

static void all_agree(void)
{
    for (unsigned i = 0; i < GW_NODES; i++)
        list_for_each (link, &w.nodes[i].groups.all) {
            const struct group *group = container_of(link, struct group, link);
            if (is_orphan(group))
                continue;
            cr_assert_str_eq(sm_name(&group->sm), "ready", "node %u, epoch %u: %s", i, group->epoch, group->why);
            for (unsigned k = 0; k < GW_NODES; k++) {
                const struct group *there = group_by_token(&w.nodes[k].groups, group->token, sizeof group->token);
                cr_assert(there && there->epoch == group->epoch && there->sm.state == GROUP_READY,
                          "node %u has it ready, node %u not", i, k);
            }
        }
}

static void end_all(void)
{
    for (unsigned i = 0; i < GW_NODES; i++)
        while (gw_group(&w, i)) {
            gw_end(gw_group(&w, i), &waiters[n_waiters]);
            gw_settle(&w);
            cr_assert(waiters[n_waiters].told && waiters[n_waiters].err.status == RDT_OK, "%s", waiters[n_waiters].err.msg);
        }
}

Test(group_schedules, every_one_ends_with_groups_that_are_ready_or_gone)
{
    const char *only = getenv("SCHEDULE"); /* one of them, to be looked at */
    unsigned from = only ? (unsigned)atoi(only) : 1, n_ready = 0, n_orphans = 0;

    for (unsigned schedule = from; schedule < (only ? from + 1 : SCHEDULES + 1); schedule++) {
        (void)fprintf(stderr, "schedule %u\r", schedule);
        seed = schedule * 7919;
        n_waiters = 0;
        memset(waiters, 0, sizeof waiters);
        gw_init(&w);
        for (unsigned i = 0; i < STEPS; i++)
            happen();
        heal();
        all_agree();
        for (unsigned i = 0; i < n_waiters; i++)
            cr_assert(waiters[i].told, "schedule %u: waiter %u waits", schedule, i);
        for (unsigned i = 0; i < GW_NODES; i++) {
            n_ready += gw_group(&w, i) && gw_group(&w, i)->sm.state == GROUP_READY;
            n_orphans += gw_group(&w, i) && is_orphan(gw_group(&w, i));
        }
        end_all();
        gw_fini(&w);
    }
    cr_assert(only || (n_ready > SCHEDULES / 4 && n_orphans > 0), "%u and %u: these schedules show nothing", n_ready,
              n_orphans);
}
