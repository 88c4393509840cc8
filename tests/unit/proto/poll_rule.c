/* SPDX-License-Identifier: Apache-2.0 */
/* proto/poll_rule: what makes an end of a socket poll for its next message, and what stops it. The test sets the clock. */
#include <criterion/criterion.h>
#include <sched.h>

#include "poll_rule.h"

#define MAX INT64_C(50000)
#define LATE (2 * MAX) /* short still */
#define LONG (8 * MAX) /* neither short nor a pause */
#define PAUSE (1000 * MAX)
#define WORK 1000 /* from one wait's end to the next */

static struct poll_rule rule;
static int64_t now_ns;

/* A process of its own: as a machine with two processors, or with one. */
static void run_on(unsigned n)
{
    cpu_set_t all, some;

    CPU_ZERO(&some);
    cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
    for (unsigned i = 0; i < CPU_SETSIZE && CPU_COUNT(&some) < (int)n; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &some);
    if (CPU_COUNT(&some) < (int)n)
        cr_skip_test("one processor only");
    cr_assert_eq(sched_setaffinity(0, sizeof some, &some), 0);
}

static void begin(unsigned n_processors)
{
    run_on(n_processors);
    poll_rule_init(&rule, MAX);
    now_ns = 1000 * PAUSE;
}

/* A wait of so long. true: it looked first. */
static bool wait_of(int64_t ns)
{
    int64_t look_ns = poll_rule_begin(&rule, now_ns);

    cr_assert(look_ns == 0 || look_ns == rule.max_ns);
    now_ns += ns;
    poll_rule_end(&rule, now_ns);
    now_ns += WORK;
    return look_ns > 0;
}

/* How many waits of so long it takes until it looks, or until it does so no more; at most. */
static unsigned until(bool looks, int64_t ns, unsigned most)
{
    unsigned n = 0;

    while (n < most && wait_of(ns) != looks)
        n++;
    return n;
}

Test(poll_rule, short_waits_start_polling)
{
    begin(2);
    (void)wait_of(PAUSE);
    cr_assert_eq(until(true, LATE, 100), 8);
    for (unsigned i = 0; i < 100; i++)
        cr_assert(wait_of(MAX));
    cr_assert_eq(rule.n_missed, 1, "the first was late, and none since");
    cr_assert_eq(rule.n_found, 100);
}

Test(poll_rule, one_long_wait_among_short_ones_prevents_polling)
{
    begin(2);
    for (unsigned i = 0; i < 100; i++)
        cr_assert_not(wait_of(i % 8 == 0 ? LONG : MAX));
    cr_assert_eq(rule.n_found + rule.n_missed, 0);
}

Test(poll_rule, long_waits_end_polling)
{
    begin(2);
    (void)until(true, MAX, 100);
    for (unsigned i = 0; i < 10; i++)
        cr_assert(wait_of(MAX));
    cr_assert_eq(until(false, LONG, 100), 4, "8, 4, 2, 1");
    for (unsigned i = 0; i < 1000; i++)
        cr_assert_not(wait_of(LONG));
}

Test(poll_rule, one_long_wait_does_not_end_polling)
{
    begin(2);
    (void)until(true, MAX, 100);
    for (unsigned i = 0; i < 100; i++)
        cr_assert(wait_of(i % 8 == 0 ? LONG : MAX));
}

Test(poll_rule, messages_that_are_always_late_are_polled_for_less_and_less)
{
    begin(2);
    for (unsigned i = 0; i < 100000; i++)
        (void)wait_of(LATE);
    cr_assert_eq(rule.n_found, 0);
    cr_assert_lt(rule.n_missed, 100000 / 100, "%lu in vain", (unsigned long)rule.n_missed);
    cr_assert_lt(until(true, MAX, 10000), 1100, "and begins when it pays");
}

Test(poll_rule, pause_ends_polling_and_rare_messages_never_start_it)
{
    begin(2);
    (void)until(true, MAX, 100);
    cr_assert(wait_of(PAUSE), "it cannot know");
    cr_assert_not(wait_of(MAX));
    cr_assert_eq(until(true, MAX, 100), 7, "as at first: one was counted");
    now_ns += PAUSE; /* an end that had nothing to ask for so long */
    cr_assert_not(wait_of(MAX));
    for (unsigned i = 0; i < 100; i++) {
        now_ns += PAUSE;
        for (unsigned k = 0; k < 5; k++) /* as many messages as a call has */
            cr_assert_not(wait_of(MAX));
    }
}

Test(poll_rule, one_processor_never_polls)
{
    begin(1);
    for (unsigned i = 0; i < 10000; i++)
        cr_assert_not(wait_of(i % 2 ? MAX : 0));
}

Test(poll_rule, processors_may_be_taken_away)
{
    begin(2);
    (void)until(true, MAX, 100);
    run_on(1);
    (void)wait_of(PAUSE); /* it is asked for when it would begin */
    cr_assert_eq(until(true, MAX, 100), 100);
}

Test(poll_rule, polling_of_zero_never_polls)
{
    begin(2);
    poll_rule_init(&rule, 0);
    for (unsigned i = 0; i < 100; i++)
        cr_assert_not(wait_of(0));
}

/* Until it looks again after a crowd. */
static int64_t stays_away(void)
{
    int64_t from_ns = now_ns;

    poll_rule_crowded(&rule, now_ns);
    while (!wait_of(MAX))
        ;
    return now_ns - from_ns;
}

Test(poll_rule, busy_processor_stops_polling_for_longer_and_longer)
{
    begin(2);
    (void)until(true, MAX, 100);
    int64_t first_ns = stays_away();
    cr_assert(first_ns >= 10000000 && first_ns < 12000000, "%ld ns", (long)first_ns);
    int64_t last_ns = stays_away();
    cr_assert(last_ns >= 2 * 10000000);
    for (unsigned i = 0; i < 20; i++)
        last_ns = stays_away();
    cr_assert(last_ns >= 500000000 && last_ns < 1500000000, "%ld ns", (long)last_ns);
    for (int64_t until_ns = now_ns + INT64_C(3000000000); now_ns < until_ns;)
        cr_assert(wait_of(MAX));
    cr_assert_lt(stays_away(), 12000000, "they are forgotten");
}

Test(poll_rule, yield_returns_the_time)
{
    int64_t first_ns, second_ns;

    (void)poll_rule_yield(&first_ns);
    (void)poll_rule_yield(&second_ns);
    cr_assert(first_ns > 0 && second_ns >= first_ns);
}
