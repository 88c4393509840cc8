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
    return fanout_choose(&places[i], can_read, on_ask_again, NULL);
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
    cr_assert_eq(fanout_choose(&places[3], can_read, on_ask_again, NULL), &places[1]);
    cr_assert_eq(places[3].depth, 2);
    cr_assert_eq(places[4].depth, 3, "those behind it came along");
    cr_assert_eq(join(5, false), &places[4], "nobody reads from the node that was left");
    cr_assert(n_asked == 1 && asked[0] == &places[2]);
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, on_ask_again, NULL), &places[5],
                 "if it goes on, it shares no source with another one");
}

/* It shares no source with a node that is not slow, and slow nodes read from one another. */
Test(fanout_decides, node_that_stays_slow_reads_from_another_slow_one)
{
    begin(5);
    fanout_demote(&places[4], FANOUT_SLOW, on_ask_again, NULL);
    fanout_left(&places[4], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[4], can_read, on_ask_again, NULL), NULL, "all others are before it in the chain");
    fanout_demote(&places[2], FANOUT_LAGS, on_ask_again, NULL);
    fanout_left(&places[3], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[3], can_read, on_ask_again, NULL), &places[1]);
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, on_ask_again, NULL), &places[3], "the end of the chain");
    n_asked = 0;
    fanout_demote(&places[2], FANOUT_SLOW, on_ask_again, NULL);
    cr_assert(n_asked == 1 && asked[0] == &places[2]);
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, on_ask_again, NULL), &places[4]);
}

Test(fanout_decides, source_of_a_reader_that_was_asked_is_not_to_blame)
{
    begin(4);
    fanout_demote(&places[2], FANOUT_LAGS, on_ask_again, NULL);
    cr_assert(n_asked == 1 && asked[0] == &places[3]);
    fanout_left(&places[3], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[3], can_read, on_ask_again, NULL), &places[1]);
    cr_assert(n_asked == 2 && asked[1] == &places[2], "it is asked when its last reader has left");
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, on_ask_again, NULL), &places[3]);
    cr_assert_eq(places[1].pace, FANOUT_FAIR);
    cr_assert_eq(n_asked, 2);
}

/* It would keep a part of the owner's bandwidth as long as it receives. */
Test(fanout_decides, slow_first_reader_leaves_the_owner)
{
    begin(4);
    fanout_demote(&places[0], FANOUT_LAGS, on_ask_again, NULL);
    cr_assert(n_asked == 1 && asked[0] == &places[1]);
    fanout_left(&places[1], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[1], can_read, on_ask_again, NULL), NULL);
    cr_assert(n_asked == 2 && asked[1] == &places[0]);
    fanout_left(&places[0], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[0], can_read, on_ask_again, NULL), &places[3]);
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
        cr_assert_eq(fanout_choose(&places[i], can_read, on_ask_again, NULL), NULL);
        fanout_compare(&places[0], (at + 63) * MIB, on_ask_again, NULL);
        cr_assert_eq(n_asked, 1);
        fanout_compare(&places[0], (at + 64) * MIB, on_ask_again, NULL);
        cr_assert(n_asked == 2 && asked[1] == &places[i]);
        fanout_left(&places[i], on_ask_again, NULL);
        cr_assert(fanout_choose(&places[i], can_read, on_ask_again, NULL));
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
    cr_assert_eq(fanout_choose(&places[2], can_read, on_ask_again, NULL), NULL);
    cr_assert_eq(places[3].depth, 1);
}

Test(fanout_decides, slow_node_becomes_a_leaf)
{
    begin(4);
    fanout_demote(&places[1], FANOUT_SLOW, on_ask_again, NULL);
    cr_assert(n_asked == 1 && asked[0] == &places[2]);
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, on_ask_again, NULL), &places[0]);
    cr_assert(n_asked == 2 && asked[1] == &places[1]);
    fanout_left(&places[1], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[1], can_read, on_ask_again, NULL), &places[3], "it reads from the last one");
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
    cr_assert_eq(fanout_choose(&places[1], can_read, on_ask_again, NULL), NULL);
    fanout_set_whole(&places[0]);
    cr_assert_eq(join(3, false), &places[0]);
}

/* It may have stood still for a moment, and nothing would tell the owner later that it is well. */
Test(fanout_decides, whole_node_that_a_reader_left_stays_a_source_of_others)
{
    begin(3);
    fanout_set_whole(&places[0]);
    fanout_left(&places[1], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[1], can_read, on_ask_again, NULL), NULL, "the one that left does not go back");
    cr_assert_eq(n_asked, 0);
    cr_assert_eq(places[0].pace, FANOUT_FAIR);
    cr_assert_eq(join(3, false), &places[0]);
}

/* It would go to and fro between the two. */
Test(fanout_decides, reader_that_left_two_whole_nodes_reads_from_the_owner)
{
    begin(4);
    fanout_set_whole(&places[0]);
    fanout_set_whole(&places[1]);
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, on_ask_again, NULL), &places[0]);
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, on_ask_again, NULL), NULL);
    cr_assert_eq(join(4, false), &places[0], "others still read from it");
}

Test(fanout_decides, reader_that_comes_back_spares_an_idle_owner)
{
    begin(3);
    fanout_set_whole(&places[0]);
    fanout_left(&places[2], on_ask_again, NULL);
    cr_assert_eq(fanout_choose(&places[2], can_read, on_ask_again, NULL), &places[0]);
}

Test(fanout_decides, chunks_are_small_beside_the_object)
{
    cr_assert_eq(fanout_chunk_bytes(100 * MIB, 4 * MIB), FANOUT_CHUNK_MIN);
    cr_assert_eq(fanout_chunk_bytes(16384 * MIB, 4 * MIB), MIB);
    cr_assert_eq(fanout_chunk_bytes(1024 * 1024 * MIB, 4 * MIB), 4 * MIB);
    cr_assert_eq(fanout_chunk_bytes(100 * MIB, 65536), 65536);
}

#define STEP_NS UINT64_C(50000000)

/* In each step of 50 ms the source gets `in` MiB, and sends `out` MiB to the reader and `others` MiB to others. The reader's
 * node receives `received` MiB. */
struct step {
    uint64_t in, out, others, received, usual;
    unsigned sharing;
};

static enum fanout_verdict take(struct fanout_pace *pace, const struct step *step, unsigned i)
{
    uint64_t have = (step->in ? i * step->in : 1000) * MIB, sent = i * step->out * MIB;
    struct fanout_seen seen = {.at = {.since_ns = i * STEP_NS,
                                      .had = have,
                                      .sent = sent < have ? sent : have,
                                      .received = i * step->in * MIB,
                                      .sent_all = i * (step->out + step->others) * MIB},
                               .usual = step->usual,
                               .sharing = step->sharing ? step->sharing : 1,
                               .chunk_bytes = MIB};
    enum fanout_verdict verdict = fanout_pace(pace, &seen);

    if (!pace->ask)
        return verdict;
    pace->ask = false;
    return fanout_answered(pace, STEP_NS, step->received * MIB);
}

static bool slow(struct step step)
{
    struct fanout_pace pace = {0};

    step.received = step.received ? step.received : step.out;
    for (unsigned i = 1; i <= 60; i++)
        if (take(&pace, &step, i) == FANOUT_SLOW)
            return true;
    return false;
}

Test(fanout_decides, reader_that_takes_a_tenth_is_slow)
{
    cr_assert(slow((struct step){.in = 10, .out = 1}));
    cr_assert_not(slow((struct step){.in = 10, .out = 10}), "it takes all");
    cr_assert_not(slow((struct step){.in = 10, .out = 4}), "it takes more than a third");
    cr_assert_not(slow((struct step){.in = 1, .out = 1}), "it takes little because little comes");
    cr_assert_not(slow((struct step){.in = 10, .out = 3, .others = 7, .sharing = 2}), "it has its share of two");
    cr_assert(slow((struct step){.in = 10, .out = 1, .others = 3, .sharing = 4}), "four share the source, and leave the most");
    cr_assert(slow((struct step){.out = 1, .usual = 200 * MIB}), "the source has all, and knows what readers usually take");
    cr_assert_not(slow((struct step){.out = 10, .usual = 200 * MIB}));
}

/* Each object gets a part of the link only. */
Test(fanout_decides, node_that_receives_much_from_others_is_not_slow)
{
    cr_assert_not(slow((struct step){.in = 10, .out = 1, .received = 10}));
    cr_assert_not(slow((struct step){.in = 10, .out = 1, .received = 4}));
    cr_assert(slow((struct step){.in = 10, .out = 1, .received = 3}));
}

Test(fanout_decides, slow_reader_is_reported_once)
{
    static const struct step step = {.in = 10, .out = 1, .received = 1};
    struct fanout_pace pace = {0};
    unsigned times[3] = {0};

    for (unsigned i = 1; i <= 100; i++) {
        enum fanout_verdict verdict = take(&pace, &step, i);
        times[verdict]++;
        cr_assert(verdict != FANOUT_SLOW || times[FANOUT_LAGS] == 1, "it lags first");
    }
    cr_assert_eq(times[FANOUT_LAGS], 1);
    cr_assert_eq(times[FANOUT_SLOW], 1);
}

/* A frozen one, for instance. */
Test(fanout_decides, reader_whose_node_does_not_answer_is_slow)
{
    struct fanout_pace pace = {0};
    unsigned times[3] = {0};

    for (unsigned i = 1; i <= 100; i++) {
        struct fanout_seen seen = {
            .at = {.since_ns = i * STEP_NS, .had = i * 10 * MIB, .received = i * 10 * MIB}, .sharing = 1, .chunk_bytes = MIB};
        times[fanout_pace(&pace, &seen)]++;
    }
    cr_assert_eq(times[FANOUT_LAGS], 0, "it has taken nothing");
    cr_assert_eq(times[FANOUT_SLOW], 1);
}

/* Bytes that it could not have had while its node was asked do not count. */
Test(fanout_decides, reader_that_lacked_bytes_while_its_node_was_asked_is_not_slow)
{
    struct fanout_pace pace = {0};
    struct fanout_seen seen = {.sharing = 1, .chunk_bytes = MIB};
    unsigned i;

    for (i = 1; !pace.ask; i++) {
        cr_assert_lt(i, 60);
        seen.at = (struct fanout_window){i * STEP_NS, .had = i * 10 * MIB, .sent = i * MIB, .received = i * 10 * MIB};
        cr_assert_eq(fanout_pace(&pace, &seen), FANOUT_FAIR);
    }
    seen.at = (struct fanout_window){i * STEP_NS, .had = i * 10 * MIB, .sent = i * 10 * MIB, .received = i * 10 * MIB};
    cr_assert_eq(fanout_pace(&pace, &seen), FANOUT_FAIR);
    cr_assert_eq(pace.window.since_ns, i * STEP_NS, "the time in which it lacks nothing begins anew");
}

/* One MiB each 10 ms for a second, nothing in the next one, and so on. */
Test(fanout_decides, node_knows_what_it_received_lately)
{
    static struct fanout_intake intake;
    uint64_t ms = 1000000, over = 100 * ms;

    cr_assert_eq(fanout_received_in(&intake, ms, &over), 0, "nothing at all");
    for (unsigned i = 0; i < 600; i++)
        if (i / 100 % 2 == 0)
            fanout_received(&intake, i * 10 * ms, MIB);
    over = 100 * ms;
    cr_assert_eq(fanout_received_in(&intake, 4990 * ms, &over), 10 * MIB);
    cr_assert_eq(fanout_received_in(&intake, 5500 * ms, &over), 0, "it is idle");
    for (unsigned i = 600; i < 605; i++)
        fanout_received(&intake, i * 10 * ms, MIB);
    cr_assert_eq(fanout_received_in(&intake, 6040 * ms, &over), 5 * MIB, "it began 40 ms ago");
    cr_assert_eq(over, 100 * ms);
    over = 100000 * ms;
    cr_assert_eq(fanout_received_in(&intake, 6040 * ms, &over), 255 * MIB, "of the last 256 times");
    cr_assert_lt(over, 6000 * ms);
}
