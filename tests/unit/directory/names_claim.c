/* SPDX-License-Identifier: Apache-2.0 */
/* The names that are published on a node, where it is its own home. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "daemon/directory/names_impl.h"
#include "daemon/peers/peer_impl.h"

TestSuite(names_claim, .timeout = 60);

#define N 1000u

static unsigned n_dirty(const struct directory_names *all)
{
    unsigned n = 0;

    list_for_each (node, &all->dirty)
        n++;
    return n;
}

static void on_decided(struct claim_waiter *waiter)
{
    (void)waiter;
    cr_assert(false, "the answer of the only home comes at once");
}

Test(names_claim, homes_are_told_of_many_names_in_many_turns)
{
    static const struct node here = {.uuid = {1}};
    static const struct owner owner = {.uid = 1000};
    static const struct options options = {.names = (char *)"nodes", .nodes = (char *)"/nodes"};
    static struct peers peers;
    static struct names names;
    static struct deadlines deadlines;
    static struct claim_waiter waiter = {.on_decided = on_decided};
    struct directory_names all = {
        .options = &options, .node = &here, .peers = &peers, .names = &names, .deadlines = &deadlines};
    struct rdt_error err;
    uv_loop_t loop;
    unsigned turns = 0;

    list_init(&peers.all);
    map_init(&names.by_key);
    list_init(&names.published);
    list_init(&names.observers);
    cr_assert_eq(uv_loop_init(&loop), 0);
    deadlines_init(&deadlines, &loop);
    directory_names_start(&all);
    for (unsigned i = 0; i < N; i++) {
        char id[16];
        size_t n = (size_t)snprintf(id, sizeof id, "name %u", i);

        cr_assert_eq(directory_names_claim(&all, &owner, (const uint8_t *)id, n, &waiter, &err), RDT_OK);
        cr_assert(directory_names_use(&all, &owner, (const uint8_t *)id, n));
    }
    cr_assert_eq(n_dirty(&all), 0);
    names_claims_tell_again(&all);
    for (; deadline_left_ns(&all.flush) >= 0; turns++) {
        deadline_unset(&deadlines, &all.flush);
        names_claims_flush(&all.flush);
    }
    cr_assert_geq(turns, 4, "more than 256 in one turn");
    names_claims_tick(&all);
    cr_assert_lt(deadline_left_ns(&all.flush), 0, "they were told a moment ago");
    names_claims_tell_again(&all);
    cr_assert_geq(deadline_left_ns(&all.flush), 0, "all were told before this");
    directory_names_close(&all);
    map_fini(&names.by_key);
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0);
}
