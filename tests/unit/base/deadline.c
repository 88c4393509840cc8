/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/deadline: entries fire once, in order and never early, and the heap stays a heap under every change. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/base/deadline.h"

#define N 300

static uv_loop_t loop;
static struct deadlines deadlines;
static uint64_t seed;

static uint64_t dice(uint64_t sides)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % sides;
}

static void setup(void)
{
    cr_assert_eq(uv_loop_init(&loop), 0);
    deadlines_init(&deadlines, &loop);
}

static void teardown(void)
{
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(deadline, .init = setup, .fini = teardown, .timeout = 60);

struct entry {
    struct deadline deadline;
    unsigned fired;
    bool again;           /* sets itself anew when it fires */
    struct entry *victim; /* unset when it fires */
};

static struct entry entries[N];
static struct entry *order[4 * N];
static unsigned n_fired;

static void on_passed(struct deadline *deadline)
{
    struct entry *entry = (struct entry *)deadline;

    cr_assert_eq(deadline->index, 0u, "still set when it fires");
    cr_assert(uv_hrtime() >= deadline->at_ns, "%lu ns early", (unsigned long)(deadline->at_ns - uv_hrtime()));
    entry->fired++;
    cr_assert(n_fired < 4 * N);
    order[n_fired++] = entry;
    if (entry->victim)
        deadline_unset(&deadlines, &entry->victim->deadline);
    if (entry->again) {
        entry->again = false;
        cr_assert(deadline_set(&deadlines, deadline, 1000000));
    }
}

static void reset(void)
{
    memset(entries, 0, sizeof entries);
    n_fired = 0;
    for (unsigned i = 0; i < N; i++)
        entries[i].deadline.on_passed = on_passed;
}

/* Every parent is not later than its children, and every entry knows its place. */
static void check_heap(void)
{
    for (size_t i = 1; i <= deadlines.count; i++) {
        cr_assert_eq(deadlines.heap[i]->index, i);
        if (i > 1)
            cr_assert(deadlines.heap[i / 2]->at_ns <= deadlines.heap[i]->at_ns);
    }
}

static unsigned count_set(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < N; i++)
        n += entries[i].deadline.index != 0;
    return n;
}

Test(deadline, random_changes_keep_heap)
{
    reset();
    seed = 1;
    for (unsigned round = 0; round < 20000; round++) {
        struct entry *entry = &entries[dice(N)];
        switch (dice(4)) {
        case 0:
            deadline_unset(&deadlines, &entry->deadline);
            cr_assert_eq(entry->deadline.index, 0u);
            cr_assert_eq(deadline_left_ns(&entry->deadline), -1);
            break;
        case 1:
            cr_assert(deadline_set(&deadlines, &entry->deadline, -1));
            cr_assert_eq(entry->deadline.index, 0u);
            break;
        default:
            cr_assert(deadline_set(&deadlines, &entry->deadline, (int64_t)dice(3600) * 1000000000));
            cr_assert_neq(entry->deadline.index, 0u);
        }
        cr_assert_eq(deadlines.count, count_set());
        if (round % 16 == 0)
            check_heap();
    }
    check_heap();
    for (unsigned i = 0; i < N; i++)
        deadline_unset(&deadlines, &entries[i].deadline);
    cr_assert_eq(deadlines.count, 0u);
}

Test(deadline, random_times_fire_in_order_once)
{
    reset();
    seed = 2;
    for (unsigned i = 0; i < N; i++)
        cr_assert(deadline_set(&deadlines, &entries[i].deadline, (int64_t)dice(40000000)));
    for (unsigned i = 0; i < N; i += 3)
        deadline_unset(&deadlines, &entries[i].deadline);
    (void)uv_run(&loop, UV_RUN_DEFAULT); /* the timer is the only handle: ends when nothing is set */
    for (unsigned i = 0; i < N; i++)
        cr_assert_eq(entries[i].fired, i % 3 != 0, "entry %u fired %u times", i, entries[i].fired);
    for (unsigned i = 1; i < n_fired; i++)
        cr_assert(order[i - 1]->deadline.at_ns <= order[i]->deadline.at_ns);
}

Test(deadline, zero_fires_soon)
{
    reset();
    cr_assert(deadline_set(&deadlines, &entries[0].deadline, 0));
    cr_assert_eq(deadline_left_ns(&entries[0].deadline), 0);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(entries[0].fired, 1u);
}

Test(deadline, set_anew_counts_from_then)
{
    reset();
    cr_assert(deadline_set(&deadlines, &entries[0].deadline, 1000));
    cr_assert(deadline_set(&deadlines, &entries[0].deadline, 60ll * 1000000000));
    int64_t left = deadline_left_ns(&entries[0].deadline);
    cr_assert(left > 30ll * 1000000000 && left <= 60ll * 1000000000);
    cr_assert_eq(deadlines.count, 1u);
    cr_assert(deadline_set(&deadlines, &entries[0].deadline, 1000));
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(entries[0].fired, 1u);
}

/* The timer stays as it was set for one that is unset: others come neither early nor late for that. */
Test(deadline, those_after_one_that_was_unset_come_in_time)
{
    reset();
    cr_assert(deadline_set(&deadlines, &entries[0].deadline, 2000000)); /* the timer comes too early */
    deadline_unset(&deadlines, &entries[0].deadline);
    cr_assert(deadline_set(&deadlines, &entries[1].deadline, 30000000));
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(entries[0].fired, 0u);
    cr_assert_eq(entries[1].fired, 1u);

    uint64_t since = uv_hrtime();
    cr_assert(deadline_set(&deadlines, &entries[2].deadline, 600ll * 1000000000)); /* and too late */
    deadline_unset(&deadlines, &entries[2].deadline);
    cr_assert(deadline_set(&deadlines, &entries[3].deadline, 1000000));
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(entries[3].fired, 1u);
    cr_assert(uv_hrtime() - since < 30ull * 1000000000);
}

/* What fires may set itself and unset others, those that are due in the same turn too. */
Test(deadline, changes_from_inside)
{
    reset();
    for (unsigned i = 0; i < 10; i++)
        cr_assert(deadline_set(&deadlines, &entries[i].deadline, 1000));
    for (unsigned i = 0; i < 5; i++)
        entries[i].victim = &entries[9 - i];
    entries[0].again = true;
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(entries[0].fired, 2u);
    for (unsigned i = 1; i < 5; i++)
        cr_assert_eq(entries[i].fired, 1u);
    for (unsigned i = 5; i < 10; i++)
        cr_assert_eq(entries[i].fired, 0u, "entry %u was unset before it was due", i);
}

Test(deadline, close_forgets_entries)
{
    struct deadlines other;

    reset();
    deadlines_init(&other, &loop);
    for (unsigned i = 0; i < N; i++)
        cr_assert(deadline_set(&other, &entries[i].deadline, 1000000));
    deadlines_close(&other, NULL);
    for (unsigned i = 0; i < N; i++)
        cr_assert_eq(entries[i].deadline.index, 0u);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(n_fired, 0u);
}

static uv_async_t word;

static void on_word(uv_async_t *async)
{
    deadline_unset(&deadlines, &((struct entry *)async->data)->deadline);
    uv_close((uv_handle_t *)async, NULL);
}

/* The word had come long before the loop looked at its clock. */
Test(deadline, loop_that_was_held_up_reads_before_it_tells)
{
    reset();
    cr_assert_eq(uv_async_init(&loop, &word, on_word), 0);
    word.data = &entries[0];
    cr_assert(deadline_set(&deadlines, &entries[0].deadline, 5 * 1000 * 1000));
    cr_assert(deadline_set(&deadlines, &entries[1].deadline, 6 * 1000 * 1000));
    cr_assert_eq(uv_async_send(&word), 0);
    while (uv_hrtime() < entries[1].deadline.at_ns + 50 * 1000 * 1000)
        ; /* it is held up */
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(entries[0].fired, 0u);
    cr_assert_eq(entries[1].fired, 1u);
    cr_assert(!uv_is_active((uv_handle_t *)&deadlines.turn));
}
