/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/conn_share: connections of one owner divide its share of a turn of the loop, in order, and delay no other owner. A
 * turn here takes longer than an owner's share, however slow the machine is. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/conn_share.h"

#define N 4u /* connections of the busy owner, before those of the others */

static uv_loop_t loop;
static struct rpc rpc;
static struct conns conns;
static struct accounts accounts;
static struct conn all[N + 2]; /* then one of another owner, and one of the busy owner under another tenant */
static struct conn *took[64];
static bool readable_then[64];
static unsigned n_took;

static void take_turn(struct conn *conn, bool readable)
{
    uint64_t until_ns = uv_hrtime() + PERSON_TURN_NS;

    took[n_took] = conn;
    readable_then[n_took++] = readable;
    while (uv_hrtime() < until_ns)
        ;
}

static void on_nothing(uv_idle_t *turn) {}

static void want_turn(struct client *client)
{
    (void)uv_idle_start(&container_of(client, struct conn, client)->turn.idle, on_nothing);
}

static void setup(void)
{
    cr_assert_eq(uv_loop_init(&loop), 0);
    rpc.loop = &loop;
    conns.rpc = &rpc;
    accounts_init(&accounts);
    shares_init(&conns, take_turn);
    for (unsigned i = 0; i < N + 2; i++) {
        struct owner owner = {.uid = i == N ? 2 : 1};
        (void)snprintf(owner.tenant, sizeof owner.tenant, "%s", i == N + 1 ? "other" : "");
        all[i].conns = &conns;
        all[i].client.conn.want_turn = want_turn;
        all[i].client.account = account_get_client(&accounts, &owner, i + 1);
        cr_assert(all[i].client.account);
        list_init(&all[i].turn.waiting);
        (void)uv_idle_init(&loop, &all[i].turn.idle);
    }
    n_took = 0;
}

static void teardown(void)
{
    shares_close(&conns);
    for (unsigned i = 0; i < N + 2; i++) {
        uv_close((uv_handle_t *)&all[i].turn, NULL);
        account_unref(all[i].client.account);
    }
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
    accounts_fini(&accounts);
}

TestSuite(conn_share, .init = setup, .fini = teardown, .timeout = 60);

/* However long the machine stopped meanwhile, those who had turns together have used no more than these. */
static void turn_of(unsigned i)
{
    share_turn(&all[i], true);
    if (conns.shares.used_ns > n_took * (uint64_t)PERSON_TURN_NS)
        conns.shares.used_ns = n_took * (uint64_t)PERSON_TURN_NS;
}

static void next_turn(void)
{
    unsigned before = n_took;

    conns.shares.turn++;
    do
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    while (n_took == before && uv_is_active((uv_handle_t *)&conns.shares.idle)); /* the machine stopped before the first */
}

Test(conn_share, owners_do_not_wait_for_each_other)
{
    for (unsigned i = 0; i <= N; i++)
        turn_of(i);
    cr_assert_eq(n_took, 2u, "one of each owner");
    cr_assert_eq(took[0], &all[0]);
    cr_assert_eq(took[1], &all[N]);
}

static uint32_t person_of(void *arg, uint32_t uid)
{
    return uid >= 100000 ? 1000 : uid;
}

/* Somebody with thousands of subordinate user ids gets the share of one. */
Test(conn_share, user_ids_of_one_person_divide_its_share)
{
    accounts.person_of = person_of;
    for (unsigned i = 0; i < 3; i++) {
        account_unref(all[i].client.account);
        all[i].client.account = account_get_client(&accounts, &(struct owner){.uid = i < 2 ? 100000 + i : 1000}, 100 + i);
        turn_of(i);
    }
    turn_of(N);
    cr_assert_eq(n_took, 2u);
    cr_assert((took[0] == &all[0] && took[1] == &all[N]), "one of each person");
    next_turn();
    next_turn();
    cr_assert_eq(n_took, 4u);
    cr_assert((took[2] == &all[1] && took[3] == &all[2]), "the others of the person, in order");
}

/* There may be thousands of users. They take turns, and a turn of the loop stays short. */
Test(conn_share, owners_take_turns_when_all_have_had_their_share)
{
    turn_of(0);
    turn_of(1);
    turn_of(N);
    turn_of(N + 1);
    cr_assert_eq(n_took, ALL_TURN_NS / PERSON_TURN_NS, "as many as fit");
    for (unsigned i = 0; i < 2; i++)
        next_turn();
    cr_assert_eq(n_took, 4u);
    cr_assert((took[2] == &all[1] && took[3] == &all[N + 1]), "in the order in which the owners came");
    cr_assert_eq(share_conn_ns(&conns), CONN_TURN_NS);
    conns.shares.n_persons = 2 * ALL_TURN_NS / CONN_TURN_NS;
    cr_assert_eq(share_conn_ns(&conns), CONN_TURN_NS / 2, "the more of them wait, the less each gets");
    conns.shares.n_persons = UINT32_MAX;
    cr_assert_eq(share_conn_ns(&conns), LEAST_TURN_NS);
}

/* Also if one that had its turn always has more to do. */
Test(conn_share, connections_of_an_owner_wait_in_order)
{
    for (unsigned i = 0; i < N; i++)
        share_turn(&all[i], i != 2);
    share_turn(&all[2], false); /* it waits already */
    share_turn(&all[0], true);
    for (unsigned i = 1; i < N; i++) {
        next_turn();
        cr_assert_eq(n_took, i + 1);
        cr_assert_eq(took[i], &all[i]);
        cr_assert_eq(readable_then[i], i != 2);
    }
    next_turn();
    cr_assert_eq(took[N], &all[0]);
    next_turn();
    cr_assert_eq(n_took, N + 1);
    cr_assert_not(uv_is_active((uv_handle_t *)&conns.shares.idle), "nobody waits");
}

/* At the end of the daemon every connection has its turn, and nobody waits. */
Test(conn_share, nobody_waits_at_the_end)
{
    share_turn(&all[0], true);
    share_turn(&all[1], true);
    conns.on_empty = (void (*)(void *))abort;
    shares_close(&conns);
    cr_assert(uv_is_active((uv_handle_t *)&all[1].turn));
    share_turn(&all[1], false);
    share_turn(&all[2], false);
    cr_assert_eq(n_took, 3u);
    (void)uv_idle_stop(&all[1].turn.idle);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    shares_init(&conns, take_turn); /* for the end of the test */
}
