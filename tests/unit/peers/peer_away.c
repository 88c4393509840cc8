/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/peers: a node that cannot be reached is dialled at growing intervals, and at once when another node reports that
 * it is up. */
#include <criterion/criterion.h>
#include <string.h>
#include <uv.h>

#include "daemon/peers/peer_impl.h"
#include "tests/support/peer_world.h"

static struct world world;
static struct world_node *const a = &world.nodes[0], *const b = &world.nodes[1];

static void setup(void)
{
    world_init(&world);
}

static void teardown(void)
{
    world_fini(&world);
}

TestSuite(peer_away, .init = setup, .fini = teardown, .timeout = 120);

Test(peer_away, absent_listed_node_is_dialled_for_ever)
{
    world_free_address(b->listen);
    world_list(a, 0, "bee", b->listen, NULL);
    world_start(a);
    world_until(&world, a->n_failed >= 4);
    cr_assert_not_null(strstr(a->why.msg, "connection refused"), "%s", a->why.msg);
    world_start(b);
    world_until(&world, a->n_up && b->n_up);
}

Test(peer_away, absent_node_of_a_ref_is_dialled_when_asked)
{
    world_free_address(b->listen);
    strcpy(b->node.address, b->listen);
    world_start(a);
    struct peer *peer = world_find(a, b);
    world_until(&world, a->n_failed == 1);
    cr_assert_eq(peer->state, PEER_BACKOFF);
    world_until(&world, peer->state == PEER_IDLE);
    cr_assert_eq(a->n_failed, 1);
    world_find(a, b);
    cr_assert_eq(peer->state, PEER_CONNECTING);
    world_until(&world, a->n_failed == 2);
    world_find(a, b); /* in back-off: remembered */
    cr_assert_eq(peer->state, PEER_BACKOFF);
    world_until(&world, a->n_failed == 3);
}

Test(peer_away, node_that_others_reach_is_dialled_at_once)
{
    world_free_address(b->listen);
    strcpy(b->node.address, b->listen);
    a->options.backoff_max_ns = UINT64_C(3600000000000);
    world_start(a);
    peers_hear_of(a->peers, b->node.uuid, b->node.address); /* which it does not know */
    cr_assert_eq(world_count(a), 0);
    struct peer *peer = world_find(a, b);
    peers_hear_of(a->peers, b->node.uuid, b->node.address); /* it is at it */
    world_until(&world, a->n_failed == 1);
    peer->dial->failures = 20;
    peers_hear_of(a->peers, b->node.uuid, b->node.address);
    cr_assert_eq(peer->state, PEER_CONNECTING);
    world_until(&world, a->n_failed == 2); /* they were wrong */
    cr_assert_eq(peer->state, PEER_BACKOFF);
    cr_assert_gt(peer->retry_at_ns - uv_hrtime(), UINT64_C(10000000000));
    world_start(b);
    peers_hear_of(a->peers, b->node.uuid, b->node.address);
    world_until(&world, a->n_up && b->n_up);
    peers_hear_of(a->peers, b->node.uuid, b->node.address);
    cr_assert_eq(peer->state, PEER_UP);
}

Test(peer_away, back_off_grows_up_to_its_bound)
{
    uint64_t wait_ns = 0;

    world_free_address(b->listen);
    a->options.backoff_max_ns = 400000000;
    world_list(a, 0, "bee", b->listen, NULL);
    world_start(a);
    for (unsigned i = 1; i <= 5; i++) {
        world_until(&world, a->n_failed == i);
        wait_ns = a->peer->retry_at_ns - a->peer->since_ns;
        cr_assert_leq(wait_ns, 400000000 + 1000000);
        if (i == 1)
            cr_assert_leq(wait_ns, 100000000 + 1000000);
    }
    cr_assert_geq(wait_ns, 200000000);
}
