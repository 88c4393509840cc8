/* SPDX-License-Identifier: Apache-2.0 */
/* The names that are published on a node, where it is its own home. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "daemon/directory/directory.h"
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

static bool check_requester(void *arg, const Rdt__Pb__Requester *requester, struct owner *owner_p, struct rdt_error *err)
{
    (void)arg;
    (void)err;
    *owner_p = (struct owner){.uid = requester->uid};
    return true;
}

static struct options options;
static struct peers peers;
static struct names names;
static struct deadlines deadlines;
static struct directory directory;
static struct directory_names all;
static uv_loop_t loop;

static void begin(void)
{
    static const struct node here = {.uuid = {1}};

    options = (struct options){.names = (char *)"nodes", .nodes = (char *)"/nodes"};
    all = (struct directory_names){.options = &options,
                                   .node = &here,
                                   .peers = &peers,
                                   .names = &names,
                                   .deadlines = &deadlines,
                                   .directory = &directory,
                                   .check_requester = check_requester};
    list_init(&peers.all);
    map_init(&names.by_key);
    list_init(&names.published);
    list_init(&names.observers);
    cr_assert_eq(uv_loop_init(&loop), 0);
    deadlines_init(&deadlines, &loop);
    directory_names_start(&all);
}

static void end(void)
{
    directory_names_close(&all);
    map_fini(&names.by_key);
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0);
}

static void claim_names(void)
{
    static const struct owner owner = {.uid = 1000};
    static struct claim_waiter waiter = {.on_decided = on_decided};
    struct rdt_error err;

    for (unsigned i = 0; i < N; i++) {
        char id[16];
        size_t n = (size_t)snprintf(id, sizeof id, "name %u", i);

        cr_assert_eq(directory_names_claim(&all, &owner, (const uint8_t *)id, n, &waiter, &err), RDT_OK);
        cr_assert(directory_names_use(&all, &owner, (const uint8_t *)id, n));
    }
    cr_assert_eq(n_dirty(&all), 0);
}

static void pass(struct deadline *deadline)
{
    deadline_unset(&deadlines, deadline);
    deadline->on_passed(deadline);
}

Test(names_claim, homes_are_told_of_many_names_in_many_turns, .init = begin, .fini = end)
{
    unsigned turns = 0;

    claim_names();
    names_claims_tell_again(&all);
    for (; deadline_left_ns(&all.flush) >= 0; turns++)
        pass(&all.flush);
    cr_assert_geq(turns, 4, "more than 256 in one turn");
    names_claims_tick(&all, uv_hrtime());
    cr_assert_lt(deadline_left_ns(&all.flush), 0, "they were told a moment ago");
    names_claims_tell_again(&all);
    cr_assert_geq(deadline_left_ns(&all.flush), 0, "all were told before this");
}

Test(names_claim, etcd_that_is_up_again_is_told_of_all_names, .init = begin, .fini = end)
{
    claim_names();
    options.names = (char *)"etcd";
    directory_names_etcd_state(&all, true);
    names_claims_tick(&all, uv_hrtime() + UINT64_C(20000000000));
    pass(&all.flush);
    cr_assert_gt(n_dirty(&all), 0, "they were told, and as no program has taken them, are told again");
}

Test(names_claim, etcd_that_is_up_starts_no_busy_loop_where_names_are_local, .init = begin, .fini = end)
{
    options.names = (char *)"local";
    directory_names_etcd_state(&all, true);
    pass(&all.tick);
    cr_assert_gt(deadline_left_ns(&all.tick), 0);
}
