/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/groups: what happens to a group of three nodes for each event in each state, and how long those who wait for it
 * wait. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "daemon/groups/group_impl.h"
#include "tests/support/group_world.h"

static struct gw_world w;
static struct gw_waiter creator, destroyer;
static struct group *made; /* as node 0, which coordinates it, has it */
static struct rdt_error err;

static void setup(void)
{
    gw_init(&w);
}

static void teardown(void)
{
    gw_fini(&w);
}

TestSuite(group, .init = setup, .fini = teardown, .timeout = 60);

/* ---- the moments of its life ---- */

static void create(void)
{
    cr_assert_eq(gw_create(&w, 0, &creator, &made, &err), RDT_OK, "%s", err.msg);
}

/* The others have not heard of it. */
static void proposed(void)
{
    create();
    cr_assert(gw_pass_one(&w.nodes[0]));
    cr_assert_str_eq(gw_state(&w, 1), "-");
}

static void dialling(void)
{
    gw_dial(&w, 0, 2);
    create();
    gw_quiet(&w);
    cr_assert(!made->attempt.proposed);
}

static void half_accepted(void)
{
    proposed();
    cr_assert(gw_deliver_one(&w, 0, 1) && gw_deliver_one(&w, 0, 2) && gw_deliver_one(&w, 1, 0));
    cr_assert(made->nodes[0].accepted && !made->nodes[1].accepted);
}

static void committed(void)
{
    half_accepted();
    cr_assert(gw_deliver_one(&w, 2, 0) && made->nodes[1].accepted && !made->attempt.connected);
}

static void set_hangs(bool hangs)
{
    for (unsigned i = 0; i < GW_NODES; i++)
        w.nodes[i].hangs = hangs;
}

static void connecting(void)
{
    set_hangs(true);
    create();
    gw_quiet(&w);
    set_hangs(false);
    cr_assert(!made->attempt.connected && gw_group(&w, 1) && gw_group(&w, 2));
}

static void half_connected(void)
{
    connecting();
    cr_assert(gw_vendor_one(&w.nodes[0]) && gw_vendor_one(&w.nodes[1]));
    cr_assert(made->attempt.connected && !gw_group(&w, 2)->attempt.connected);
}

static void opening(void)
{
    connecting();
    for (unsigned i = 0; i < GW_NODES; i++)
        cr_assert(gw_vendor_one(&w.nodes[i]));
    cr_assert(gw_deliver_one(&w, 1, 0) && gw_deliver_one(&w, 2, 0));
    cr_assert_str_eq(gw_state(&w, 0), "ready");
    cr_assert_str_eq(gw_state(&w, 1), "forming");
}

static void ready(void)
{
    char text[128];

    create();
    gw_quiet(&w);
    gw_describe(&w, text);
    cr_assert_str_eq(text, "ready 1, ready 1, ready 1");
    cr_assert(creator.told && creator.err.status == RDT_OK);
}

static void set_never_closes(bool never)
{
    for (unsigned i = 0; i < GW_NODES; i++)
        w.nodes[i].never_closes = never;
}

static void closing(void)
{
    ready();
    set_never_closes(true);
    group_break(made, "an abort does not come to rest");
    gw_quiet(&w);
    set_never_closes(false);
    for (unsigned i = 0; i < GW_NODES; i++)
        cr_assert_str_eq(gw_state(&w, i), "closing");
}

static void down(void)
{
    ready();
    gw_cut(&w, 0, 2);
    gw_quiet(&w);
    for (unsigned i = 0; i < GW_NODES; i++)
        cr_assert_str_eq(gw_state(&w, i), "down");
}

static void ending(void)
{
    ready();
    group_end(made, NULL);
    cr_assert_str_eq(gw_state(&w, 0), "ending");
}

/* ---- what happens, and what undoes it ---- */

static void nothing(void) {}

static void member_dies(void)
{
    gw_kill(&w, 2);
}

static void member_restarts(void)
{
    gw_restart(&w, 2);
}

static void coordinator_dies(void)
{
    gw_kill(&w, 0);
}

static void coordinator_restarts(void)
{
    gw_restart(&w, 0);
}

static void link_cut(void)
{
    gw_cut(&w, 0, 2);
}

static void link_mended(void)
{
    gw_mend(&w, 0, 2);
}

static void transport_fails(void)
{
    gw_vendor_fails(&w.nodes[1], "it broke");
}

static void member_breaks(void)
{
    if (gw_group(&w, 1))
        group_break(gw_group(&w, 1), "an abort does not come to rest");
}

static void coordinator_destroys(void)
{
    gw_end(made, &destroyer);
}

static void member_destroys(void)
{
    if (gw_group(&w, 1))
        gw_end(gw_group(&w, 1), &destroyer);
}

static void creator_leaves(void)
{
    if (!creator.told)
        gw_leave(made, &creator);
}

static const struct {
    void (*act)(void), (*undo)(void);
} undone[] = {{member_dies, member_restarts},
              {coordinator_dies, coordinator_restarts},
              {link_cut, link_mended},
              {coordinator_destroys, link_mended}, /* where it was cut before */
              {member_destroys, link_mended}};

static void undo(void (*act)(void))
{
    for (unsigned i = 0; i < sizeof undone / sizeof undone[0]; i++)
        if (undone[i].act == act)
            undone[i].undo();
}

/* ---- every one in every moment ---- */

#define NOBODY 1 /* waits for its creation any more */

static const char gone[] = "-, -, -", lost[] = "-, -, dead", headless[] = "dead, -, -", all_down[] = "down 1, down 1, down 1",
                  first[] = "ready 1, ready 1, ready 1", second[] = "ready 2, ready 2, ready 2";

/* What becomes of it by itself, what its creator hears, and what becomes of it when all nodes are there again. */
static const struct cell {
    void (*reach)(void), (*act)(void);
    const char *alone;
    int creator;
    const char *healed;
} cells[] = {
    {dialling, nothing, gone, RDT_TIMED_OUT, gone},
    {dialling, member_dies, lost, RDT_TIMED_OUT, gone},
    {dialling, coordinator_dies, headless, RDT_CANCELLED, gone},
    {dialling, link_cut, gone, RDT_TIMED_OUT, gone},
    {dialling, transport_fails, gone, RDT_TIMED_OUT, gone},
    {dialling, member_breaks, gone, RDT_TIMED_OUT, gone},
    {dialling, coordinator_destroys, gone, RDT_CANCELLED, gone},
    {dialling, member_destroys, gone, RDT_TIMED_OUT, gone},
    {dialling, creator_leaves, gone, NOBODY, gone},
    {proposed, nothing, first, RDT_OK, first},
    {proposed, member_dies, lost, RDT_PEER_LOST, gone},
    {proposed, coordinator_dies, headless, RDT_CANCELLED, gone},
    {proposed, link_cut, gone, RDT_PEER_LOST, gone},
    {proposed, transport_fails, first, RDT_OK, first},
    {proposed, member_breaks, first, RDT_OK, first},
    {proposed, coordinator_destroys, gone, RDT_CANCELLED, gone},
    {proposed, member_destroys, first, RDT_OK, first},
    {proposed, creator_leaves, gone, NOBODY, gone},
    {half_accepted, nothing, first, RDT_OK, first},
    {half_accepted, member_dies, lost, RDT_PEER_LOST, gone},
    {half_accepted, coordinator_dies, headless, RDT_CANCELLED, gone},
    {half_accepted, link_cut, gone, RDT_PEER_LOST, gone},
    {half_accepted, transport_fails, second, RDT_OK, second},
    {half_accepted, member_breaks, gone, RDT_TRANSPORT, gone},
    {half_accepted, coordinator_destroys, gone, RDT_CANCELLED, gone},
    {half_accepted, member_destroys, gone, RDT_CANCELLED, gone},
    {half_accepted, creator_leaves, gone, NOBODY, gone},
    {committed, nothing, first, RDT_OK, first},
    {committed, member_dies, lost, RDT_PEER_LOST, gone},
    {committed, coordinator_dies, headless, RDT_CANCELLED, gone},
    {committed, link_cut, gone, RDT_PEER_LOST, gone},
    {committed, transport_fails, second, RDT_OK, second},
    {committed, member_breaks, gone, RDT_TRANSPORT, gone},
    {committed, coordinator_destroys, gone, RDT_CANCELLED, gone},
    {committed, member_destroys, gone, RDT_CANCELLED, gone},
    {committed, creator_leaves, gone, NOBODY, gone},
    {connecting, nothing, first, RDT_OK, first},
    {connecting, member_dies, lost, RDT_PEER_LOST, gone},
    {connecting, coordinator_dies, headless, RDT_CANCELLED, gone},
    {connecting, link_cut, gone, RDT_PEER_LOST, gone},
    {connecting, transport_fails, second, RDT_OK, second},
    {connecting, member_breaks, gone, RDT_TRANSPORT, gone},
    {connecting, coordinator_destroys, gone, RDT_CANCELLED, gone},
    {connecting, member_destroys, gone, RDT_CANCELLED, gone},
    {connecting, creator_leaves, gone, NOBODY, gone},
    {half_connected, nothing, first, RDT_OK, first},
    {half_connected, member_dies, lost, RDT_PEER_LOST, gone},
    {half_connected, coordinator_dies, headless, RDT_CANCELLED, gone},
    {half_connected, link_cut, gone, RDT_PEER_LOST, gone},
    {half_connected, transport_fails, second, RDT_OK, second},
    {half_connected, member_breaks, second, RDT_OK, second},
    {half_connected, coordinator_destroys, gone, RDT_CANCELLED, gone},
    {half_connected, member_destroys, gone, RDT_OK, gone},
    {half_connected, creator_leaves, gone, NOBODY, gone},
    {opening, nothing, first, RDT_OK, first},
    {opening, member_dies, "down 1, down 1, dead", RDT_OK, second},
    {opening, coordinator_dies, headless, RDT_OK, gone},
    {opening, link_cut, "down 1, down 1, -", RDT_OK, second},
    {opening, transport_fails, second, RDT_OK, second},
    {opening, member_breaks, second, RDT_OK, second},
    {opening, coordinator_destroys, gone, RDT_OK, gone},
    {opening, member_destroys, gone, RDT_OK, gone},
    {opening, creator_leaves, first, RDT_OK, first},
    {ready, nothing, first, RDT_OK, first},
    {ready, member_dies, "down 1, down 1, dead", RDT_OK, second},
    {ready, coordinator_dies, "dead, down 1, down 1", RDT_OK, "-, down 1, down 1"},
    {ready, link_cut, all_down, RDT_OK, second},
    {ready, transport_fails, second, RDT_OK, second},
    {ready, member_breaks, second, RDT_OK, second},
    {ready, coordinator_destroys, gone, RDT_OK, gone},
    {ready, member_destroys, gone, RDT_OK, gone},
    {ready, creator_leaves, first, RDT_OK, first},
    {closing, nothing, second, RDT_OK, second},
    {closing, member_dies, "down 1, down 1, dead", RDT_OK, second},
    {closing, coordinator_dies, "dead, down 1, down 1", RDT_OK, "-, down 1, down 1"},
    {closing, link_cut, all_down, RDT_OK, second},
    {closing, transport_fails, second, RDT_OK, second},
    {closing, member_breaks, second, RDT_OK, second},
    {closing, coordinator_destroys, gone, RDT_OK, gone},
    {closing, member_destroys, gone, RDT_OK, gone},
    {closing, creator_leaves, second, RDT_OK, second},
    {down, nothing, all_down, RDT_OK, all_down},
    {down, member_dies, "down 1, down 1, dead", RDT_OK, second},
    {down, coordinator_dies, "dead, down 1, down 1", RDT_OK, "-, down 1, down 1"},
    {down, link_cut, all_down, RDT_OK, second},
    {down, transport_fails, all_down, RDT_OK, all_down},
    {down, member_breaks, all_down, RDT_OK, all_down},
    {down, coordinator_destroys, "-, -, down 1", RDT_OK, gone},
    {down, member_destroys, "-, -, down 1", RDT_OK, gone},
    {down, creator_leaves, all_down, RDT_OK, all_down},
    {ending, nothing, gone, RDT_OK, gone},
    {ending, member_dies, lost, RDT_OK, gone},
    {ending, coordinator_dies, "dead, down 1, down 1", RDT_OK, "-, down 1, down 1"},
    {ending, link_cut, "-, -, down 1", RDT_OK, gone},
    {ending, transport_fails, gone, RDT_OK, gone},
    {ending, member_breaks, gone, RDT_OK, gone},
    {ending, coordinator_destroys, gone, RDT_OK, gone},
    {ending, member_destroys, gone, RDT_OK, gone},
    {ending, creator_leaves, gone, RDT_OK, gone},
};

static void must_be(const struct cell *cell, const char *expected)
{
    char text[128];

    gw_settle(&w);
    gw_describe(&w, text);
    cr_expect_str_eq(text, expected, "row %td: %s, not %s", cell - cells, text, expected);
}

Test(group, whatever_happens_in_whichever_state_ends_as_the_table_says)
{
    for (const struct cell *cell = cells; cell < cells + sizeof cells / sizeof cells[0]; cell++) {
        if (cell > cells)
            gw_init(&w);
        creator = destroyer = (struct gw_waiter){0};
        cell->reach();
        cell->act();
        must_be(cell, cell->alone);
        if (cell->creator == NOBODY)
            cr_expect(!creator.set, "row %td", cell - cells);
        else
            cr_expect(creator.told && creator.err.status == cell->creator, "row %td: %s", cell - cells,
                      creator.told ? creator.err.msg : "it waits");
        cr_expect(!destroyer.set || (destroyer.told && destroyer.err.status == RDT_OK), "row %td: %s", cell - cells,
                  destroyer.err.msg);
        undo(cell->act);
        must_be(cell, cell->healed);
        if (cell + 1 < cells + sizeof cells / sizeof cells[0])
            gw_fini(&w);
    }
}

/* ---- who waits ---- */

static void must_hear(const struct gw_waiter *waiter, enum rdt_status status, const char *text)
{
    cr_assert(waiter->told, "it waits");
    cr_assert_eq(waiter->err.status, status, "%s", waiter->err.msg);
    cr_assert(!text || strstr(waiter->err.msg, text), "%s", waiter->err.msg);
}

/* Time passes on that node, and what follows happens. */
static void pass(unsigned index)
{
    gw_quiet(&w);
    cr_assert(gw_pass_one(&w.nodes[index]), "node %u waits without a deadline", index);
    gw_quiet(&w);
}

static void must_say_why(unsigned index, const char *state, bool coming, const char *why)
{
    const struct group *group = gw_group(&w, index);

    cr_assert_str_eq(gw_state(&w, index), state);
    cr_assert_eq(group_will_be_ready(group), coming);
    cr_assert(strstr(group->why, why), "%s", group->why);
}

/* A node that does not answer, though its link is there. */
static void mute(unsigned index)
{
    for (unsigned i = 0; i < GW_NODES; i++)
        w.mute[index][i] = true;
}

Test(group, node_that_does_not_answer_is_named)
{
    mute(2);
    create();
    pass(0);
    must_hear(&creator, RDT_TIMED_OUT, "node n2 did not answer");
    pass(0); /* nor does it say that it has ended */
    cr_assert_str_eq(gw_state(&w, 0), "-");
}

Test(group, node_that_does_not_connect_is_named)
{
    w.nodes[2].hangs = true;
    create();
    pass(0);
    must_hear(&creator, RDT_TIMED_OUT, "node n2 did not connect");
    cr_assert_str_eq(gw_state(&w, 2), "-");
}

Test(group, own_transport_that_does_not_connect_is_named)
{
    w.nodes[0].hangs = true;
    create();
    pass(0);
    must_hear(&creator, RDT_TIMED_OUT, "fake did not connect");
}

Test(group, node_that_cannot_be_reached_is_named)
{
    gw_dial(&w, 0, 2);
    create();
    pass(0);
    must_hear(&creator, RDT_TIMED_OUT, "node n2 could not be reached");
}

Test(group, members_wait_for_a_coordinator_that_falls_silent_and_name_it)
{
    half_accepted();
    mute(0);
    pass(1);
    must_say_why(1, "down", true, "node n0, which coordinates it, has not reported");
    pass(1);
    must_say_why(1, "down", false, "node n0, which coordinates it, has not begun");
}

Test(group, members_wait_for_the_word_that_all_are_connected)
{
    connecting();
    mute(0);
    gw_quiet(&w);
    pass(1);
    must_say_why(1, "down", true, "has not reported within ");
    must_say_why(1, "down", true, " s that all are connected");
}

Test(group, transport_that_does_not_let_go_is_named_and_nobody_waits_for_it)
{
    ready();
    w.nodes[1].never_closes = true;
    group_break(made, "an abort does not come to rest");
    gw_quiet(&w);
    must_say_why(1, "closing", true, "an abort does not come to rest");
    pass(1);
    must_say_why(1, "closing", false, "fake has not closed epoch 1");
    w.nodes[1].never_closes = false;
    gw_settle(&w);
    for (unsigned i = 0; i < GW_NODES; i++)
        cr_assert_str_eq(gw_state(&w, i), "ready");
}

Test(group, end_that_a_transport_holds_up_is_told_and_the_name_is_free)
{
    ready();
    w.nodes[0].never_closes = true;
    gw_end(made, &destroyer);
    pass(0);
    must_hear(&destroyer, RDT_TIMED_OUT, "fake has not closed group \"g\" here");
    cr_assert_null(group_find(&w.nodes[0].groups, &gw_owner, "g"));
    w.nodes[0].never_closes = false;
    gw_settle(&w);
    for (unsigned i = 0; i < GW_NODES; i++)
        cr_assert_str_eq(gw_state(&w, i), "-");
}

Test(group, end_that_a_node_does_not_confirm_names_it)
{
    ready();
    mute(2);
    gw_end(made, &destroyer);
    pass(0);
    must_hear(&destroyer, RDT_TIMED_OUT, "node n2 has not closed it");
    cr_assert_str_eq(gw_state(&w, 0), "-");
}

Test(group, member_that_destroys_waits_no_longer_than_its_coordinator_deserves)
{
    ready();
    mute(0);
    gw_end(gw_group(&w, 1), &destroyer);
    pass(1);
    must_hear(&destroyer, RDT_TIMED_OUT, "node n0, where group \"g\" was created, did not destroy it");
    gw_settle(&w);
    cr_assert_str_eq(gw_state(&w, 1), "-");
}

/* What a member no longer has, no coordinator takes for ready. */
Test(group, coordinator_hears_that_a_member_has_let_go_of_it)
{
    ready();
    group_begin_end(gw_group(&w, 1));
    gw_settle(&w);
    for (unsigned i = 0; i < GW_NODES; i++)
        cr_assert_str_eq(gw_state(&w, i), "ready");
    cr_assert_eq(made->epoch, 2);
}

/* ---- epochs ---- */

Test(group, a_row_of_failures_is_tried_again_later_and_later)
{
    int64_t before = 0;

    ready();
    w.nodes[1].refuses_connect = true;
    group_break(made, "an abort does not come to rest");
    gw_quiet(&w);
    for (unsigned i = 0; i < 6; i++) {
        cr_assert_str_eq(gw_state(&w, 0), "down");
        int64_t left = deadline_left_ns(&made->deadline);
        cr_assert(left > before + before / 2, "%lld ns after %lld ns", (long long)left, (long long)before);
        before = left;
        pass(0);
    }
    cr_assert(!group_will_be_ready(made)); /* by then nobody waits for it */
    w.nodes[1].refuses_connect = false;
    gw_settle(&w);
    cr_assert_str_eq(gw_state(&w, 0), "ready");
}

/* A second proposal while the transport closes the first epoch: formed when it has. */
Test(group, proposal_that_comes_while_closing_waits_for_that)
{
    ready();
    w.nodes[1].never_closes = true;
    group_break(made, "an abort does not come to rest");
    gw_quiet(&w);
    cr_assert_str_eq(gw_state(&w, 1), "closing");
    cr_assert_eq(gw_group(&w, 1)->attempt.next_epoch, 2);
    w.nodes[1].never_closes = false;
    gw_quiet(&w);
    for (unsigned i = 0; i < GW_NODES; i++)
        cr_assert(gw_group(&w, i)->epoch == 2 && gw_group(&w, i)->sm.state == GROUP_READY);
}

Test(group, client_that_is_not_there_is_named_the_first_time_only)
{
    w.nodes[2].client_away = true;
    create();
    gw_quiet(&w);
    must_hear(&creator, RDT_NOT_FOUND, "no client named \"c2\"");
    w.nodes[2].client_away = false;
    ready();
    w.nodes[2].client_away = true;
    group_break(made, "an abort does not come to rest");
    gw_quiet(&w);
    cr_assert_str_eq(gw_state(&w, 0), "ready");
}

Test(group, refusal_of_any_node_is_the_creators)
{
    for (unsigned i = 0; i < GW_NODES; i++)
        for (unsigned connects = 0; connects < 2; connects++) {
            w.nodes[i].refuses_create = !connects;
            w.nodes[i].refuses_connect = connects;
            create();
            gw_settle(&w);
            must_hear(&creator, RDT_TRANSPORT, "a refusal was asked for");
            w.nodes[i].refuses_create = w.nodes[i].refuses_connect = false;
            for (unsigned k = 0; k < GW_NODES; k++)
                cr_assert_str_eq(gw_state(&w, k), "-");
        }
}

Test(group, two_nodes_that_create_the_same_at_once_get_one_or_none)
{
    struct gw_waiter other;
    struct group *second_one;

    create();
    cr_assert_eq(gw_create(&w, 1, &other, &second_one, &err), RDT_OK, "%s", err.msg);
    gw_settle(&w);
    cr_assert(creator.told && other.told);
    cr_assert(creator.err.status != RDT_OK || other.err.status != RDT_OK);
    for (unsigned i = 1; i < GW_NODES; i++)
        cr_assert_str_eq(gw_state(&w, i), gw_state(&w, 0));
    gw_settle(&w);
    if (!gw_group(&w, 0))
        ready(); /* nothing of either is in the way */
}
