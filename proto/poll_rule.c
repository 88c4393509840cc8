/* SPDX-License-Identifier: Apache-2.0 */
#include "poll_rule.h"

#include <sched.h>
#include <time.h>

#define SHORT 4  /* times max_ns; if both ends sleep, each also waits until the other has woken */
#define PAUSE 16 /* times max_ns; after a longer pause the earlier messages are forgotten */
#define MOST_CREDIT 8
#define FIRST_CREDIT 4
#define FIRST_NEED 8 /* more messages than one put or fetch has */
#define MOST_NEED 1024
/* less than the time slice of a computing thread, more than the other end needs for a message */
#define CROWDED_NS 300000
#define FIRST_STAY_NS 10000000
/* losing a time slice of some milliseconds in each such period is not noticeable */
#define MOST_STAY_NS 1000000000

static int64_t now(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail on Linux */
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* The number of processors may change at any time, by a control group or taskset, so it is read before
 * polling begins. */
static bool has_one_processor(void)
{
    cpu_set_t set;

    /* it fails if there are more processors than a set can describe */
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1;
}

static void rest(struct poll_rule *rule)
{
    rule->credit = rule->n_short = 0;
    rule->need = FIRST_NEED;
}

void poll_rule_init(struct poll_rule *rule, int64_t max_ns)
{
    *rule = (struct poll_rule){.max_ns = max_ns};
    rest(rule);
}

int64_t poll_rule_begin(struct poll_rule *rule, int64_t now_ns)
{
    rule->began_ns = now_ns;
    if (now_ns - rule->ended_ns > PAUSE * rule->max_ns)
        rest(rule);
    return rule->credit > 0 ? rule->max_ns : 0;
}

static void looked(struct poll_rule *rule, int64_t waited_ns)
{
    if (waited_ns <= rule->max_ns) {
        rule->n_found++;
        rule->credit += rule->credit < MOST_CREDIT;
        if (rule->credit == MOST_CREDIT)
            rule->need = FIRST_NEED;
        return;
    }
    rule->n_missed++;
    rule->credit = waited_ns <= SHORT * rule->max_ns ? rule->credit - 1 : rule->credit / 2;
    if (rule->credit == 0 && rule->need < MOST_NEED)
        rule->need *= 2;
}

static void slept(struct poll_rule *rule, int64_t waited_ns, int64_t now_ns)
{
    rule->n_short = waited_ns <= SHORT * rule->max_ns ? rule->n_short + 1 : 0;
    if (rule->n_short < rule->need)
        return;
    rule->n_short = 0;
    if (now_ns >= rule->not_before_ns && !has_one_processor())
        rule->credit = FIRST_CREDIT;
}

void poll_rule_end(struct poll_rule *rule, int64_t now_ns)
{
    int64_t waited_ns = now_ns - rule->began_ns;

    rule->ended_ns = now_ns;
    if (rule->credit > 0)
        looked(rule, waited_ns);
    else if (rule->max_ns > 0)
        slept(rule, waited_ns, now_ns);
    if (waited_ns > PAUSE * rule->max_ns)
        rest(rule);
}

void poll_rule_crowded(struct poll_rule *rule, int64_t now_ns)
{
    rule->n_missed++;
    rest(rule);
    if (now_ns - rule->not_before_ns > MOST_STAY_NS)
        rule->stay_ns = FIRST_STAY_NS;
    else if (rule->stay_ns < MOST_STAY_NS)
        rule->stay_ns *= 2;
    rule->not_before_ns = now_ns + rule->stay_ns;
}

bool poll_rule_yield(int64_t *now_ns_p)
{
    int64_t before_ns = now();

    (void)sched_yield();
    *now_ns_p = now();
    return *now_ns_p - before_ns <= CROWDED_NS;
}
