/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/transfers/fanout: who reads from whom, and who is slow. */
#include <criterion/criterion.h>

#include "daemon/transfers/fanout.h"

TestSuite(fanout_decides, .timeout = 60);

#define MIB (UINT64_C(1) << 20)
#define N 6

static struct fanout fanout;
static struct fanout_place places[N];
static const struct fanout_place *unreachable;
static const struct fanout_place *asked[N];
static unsigned n_asked;

static bool can_read(const struct fanout_place *reader, const struct fanout_place *source, void *arg)
{
    (void)reader, (void)arg;
    return source != unreachable;
}

static void on_ask_again(struct fanout_place *place, void *arg)
{
    (void)arg;
    asked[n_asked++] = place;
}

static struct fanout_place *join(unsigned i, bool slow)
{
    fanout_join(&fanout, &places[i], slow);
    return fanout_choose(&places[i], can_read, NULL);
}

/* owner <- 0 <- 1 <- ... */
static void begin(unsigned n)
{
    fanout_init(&fanout, 1000 * MIB, MIB);
    for (unsigned i = 0; i < n; i++)
        cr_assert_eq(join(i, false), i > 0 ? &places[i - 1] : NULL);
}

Test(fanout_decides, equal_nodes_form_a_chain)
{
    begin(N);
    cr_assert_eq(places[N - 1].depth, N - 1);
}

Test(fanout_decides, idle_node_that_is_whole_serves_the_next)
{
    begin(3);
    fanout_set_whole(&places[0]);
    cr_assert_eq(places[1].depth, 1, "its readers still read from it");
    fanout_set_whole(&places[1]);
    cr_assert_eq(join(3, false), NULL, "the owner is idle");
    cr_assert(join(4, false) == &places[0], "it is whole, and nobody reads from it");
    cr_assert_eq(places[2].depth, 1);
}

Test(fanout_decides, small_object_is_not_sent_through_a_long_chain)
{
    fanout_init(&fanout, 2 * MIB, MIB);
    cr_assert_eq(join(0, false), NULL);
    cr_assert_eq(join(1, false), &places[0]);
    cr_assert_eq(join(2, false), NULL, "two chunks behind the chain cost as much as the object twice");
}

Test(fanout_decides, reader_that_comes_back_gets_the_source_before_the_one_it_left)
{
    begin(5);
    fanout_left(&places[3], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[3], can_read, NULL), &places[1]);
    cr_assert_eq(places[3].depth, 2);
    cr_assert_eq(places[4].depth, 3, "those behind it came along");
    cr_assert_eq(join(5, false), &places[4], "nobody reads from the node that was left");
    cr_assert(n_asked == 1 && asked[0] == &places[2]);
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, NULL), &places[5], "if it goes on, it shares no source with another one");
}

Test(fanout_decides, source_of_a_reader_that_was_asked_is_not_to_blame)
{
    begin(4);
    fanout_demote(&places[2], FANOUT_LAGS, on_ask_again, NULL);
    cr_assert(n_asked == 2 && asked[0] == &places[3] && asked[1] == &places[2]);
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, NULL), NULL);
    cr_assert_eq(places[1].pace, FANOUT_FAIR);
    fanout_left(&places[3], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[3], can_read, NULL), &places[1]);
    cr_assert_eq(n_asked, 2);
}

Test(fanout_decides, node_that_lagged_is_a_source_again_when_it_is_whole)
{
    begin(2);
    fanout_demote(&places[1], FANOUT_LAGS, on_ask_again, NULL);
    fanout_set_whole(&places[1]);
    cr_assert_eq(join(2, false), &places[1]);
}

/* Two nodes that are slow look alike to the owner, so it lets a third one read. */
Test(fanout_decides, first_reader_is_compared_with_two_others)
{
    begin(4);
    fanout_init(&fanout, 4096 * MIB, MIB);
    for (unsigned i = 0; i < 4; i++)
        join(i, false);
    fanout_compare(&places[0], 15 * MIB, on_ask_again, NULL);
    cr_assert_eq(n_asked, 0);
    for (unsigned i = 1, at = 16; i <= 2; i++, at += 80) {
        n_asked = 0;
        fanout_compare(&places[0], at * MIB, on_ask_again, NULL);
        cr_assert(n_asked == 1 && asked[0] == &places[i]);
        fanout_left(&places[i], on_ask_again, NULL);
        cr_assert_eq(fanout_choose(&places[i], can_read, NULL), NULL);
        fanout_compare(&places[0], (at + 63) * MIB, on_ask_again, NULL);
        cr_assert_eq(n_asked, 1);
        fanout_compare(&places[0], (at + 64) * MIB, on_ask_again, NULL);
        cr_assert(n_asked == 2 && asked[1] == &places[i]);
        fanout_left(&places[i], on_ask_again, NULL);
        cr_assert(fanout_choose(&places[i], can_read, NULL));
    }
    fanout_compare(&places[0], 1000 * MIB, on_ask_again, NULL);
    cr_assert_eq(n_asked, 2, "no more than twice");
    cr_assert_eq(places[0].pace, FANOUT_FAIR);
}

Test(fanout_decides, reader_of_an_ended_node_never_reads_from_those_behind_it)
{
    begin(4);
    unreachable = &places[0];
    fanout_leave(&places[1]);
    cr_assert_eq(fanout_choose(&places[2], can_read, NULL), NULL);
    cr_assert_eq(places[3].depth, 1);
}

Test(fanout_decides, slow_node_becomes_a_leaf)
{
    begin(4);
    fanout_demote(&places[1], FANOUT_SLOW, on_ask_again, NULL);
    cr_assert_eq(n_asked, 2);
    cr_assert(asked[0] == &places[2] && asked[1] == &places[1]);
    cr_assert_eq(fanout_choose(&places[2], can_read, NULL), &places[0]);
    cr_assert_eq(fanout_choose(&places[1], can_read, NULL), &places[3], "it reads from the last one");
    cr_assert_eq(join(4, false), &places[3], "a slow reader takes a part of the bandwidth only");
    cr_assert_eq(join(5, true), &places[1], "slow nodes read from one another");
}

Test(fanout_decides, node_known_as_slow_is_a_leaf_from_the_beginning)
{
    fanout_init(&fanout, 1000 * MIB, MIB);
    cr_assert_eq(join(0, true), NULL);
    cr_assert_eq(join(1, false), NULL, "nobody fast reads from it");
    cr_assert_eq(join(2, false), &places[1]);
}

Test(fanout_decides, whole_node_is_a_source_again)
{
    begin(3);
    fanout_left(&places[1], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[1], can_read, NULL), NULL);
    fanout_set_whole(&places[0]);
    cr_assert_eq(join(3, false), &places[0]);
}

/* It may have stood still for a moment, and nothing would tell the owner later that it is well. */
Test(fanout_decides, whole_node_that_a_reader_left_stays_a_source_of_others)
{
    begin(3);
    fanout_set_whole(&places[0]);
    fanout_left(&places[1], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[1], can_read, NULL), NULL, "the one that left does not go back");
    cr_assert_eq(n_asked, 0);
    cr_assert_eq(places[0].pace, FANOUT_FAIR);
    cr_assert_eq(join(3, false), &places[0]);
}

Test(fanout_decides, reader_that_comes_back_spares_an_idle_owner)
{
    begin(3);
    fanout_set_whole(&places[0]);
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, NULL), &places[0]);
}

Test(fanout_decides, chunks_are_small_beside_the_object)
{
    cr_assert_eq(fanout_chunk_bytes(100 * MIB, 4 * MIB), FANOUT_CHUNK_MIN);
    cr_assert_eq(fanout_chunk_bytes(16384 * MIB, 4 * MIB), MIB);
    cr_assert_eq(fanout_chunk_bytes(1024 * 1024 * MIB, 4 * MIB), 4 * MIB);
    cr_assert_eq(fanout_chunk_bytes(100 * MIB, 65536), 65536);
}

/* In each step of 50 ms the source gets `in` MiB and the reader takes `out` MiB. */
static bool slow(uint64_t in, uint64_t out, uint64_t usual, unsigned readers)
{
    struct fanout_pace pace = {0};
    uint64_t have = in ? 0 : 1000 * MIB, sent = 0;

    for (unsigned i = 1; i <= 60; i++) {
        have += in * MIB;
        sent += out * MIB;
        if (fanout_pace(&pace, i * UINT64_C(50000000), have, sent < have ? sent : have, usual, readers, MIB) == FANOUT_SLOW)
            return true;
    }
    return false;
}

Test(fanout_decides, reader_that_takes_a_tenth_is_slow)
{
    cr_assert(slow(10, 1, 0, 1));
    cr_assert_not(slow(10, 10, 0, 1), "it takes all");
    cr_assert_not(slow(10, 4, 0, 1), "it takes more than a third");
    cr_assert_not(slow(1, 1, 0, 1), "it takes little because little comes");
    cr_assert_not(slow(10, 3, 0, 2), "it has its share of two");
    cr_assert(slow(0, 1, 200 * MIB, 1), "the source has all, and knows what readers usually take");
    cr_assert_not(slow(0, 10, 200 * MIB, 1));
}

Test(fanout_decides, slow_reader_is_reported_once)
{
    struct fanout_pace pace = {0};
    unsigned times[3] = {0};

    for (unsigned i = 1; i <= 100; i++) {
        enum fanout_verdict verdict = fanout_pace(&pace, i * UINT64_C(50000000), i * 10 * MIB, i * MIB, 0, 1, MIB);
        times[verdict]++;
        cr_assert(verdict != FANOUT_SLOW || times[FANOUT_LAGS] == 1, "it lags first");
    }
    cr_assert_eq(times[FANOUT_LAGS], 1);
    cr_assert_eq(times[FANOUT_SLOW], 1);
}
