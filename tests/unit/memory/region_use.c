/* SPDX-License-Identifier: Apache-2.0 */
/* The uses of a region: which ranges objects use, and who waits until a range is unused. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/memory/region_use.h"
#include "proto/layout.h"
#include "tests/support/fakes/fake_memory.h"

TestSuite(region_use, .init = fake_setup, .fini = fake_teardown, .timeout = 60);

static struct region *take(uint64_t bytes)
{
    return fake_region(bytes, 7);
}

static unsigned n_idle;

/* One tensor at [lo, hi). */
static struct layout *span(uint64_t lo, uint64_t hi)
{
    struct layout *layout = layout_create(1, 1);

    cr_assert_not_null(layout);
    layout->dtype[0] = RDT_U8;
    layout->ndim[0] = 1;
    layout->first_dim[0] = 0;
    layout->region[0] = 0;
    layout->offset[0] = lo;
    layout->shape[0] = hi - lo;
    layout->strides[0] = 1;
    return layout;
}

static void on_idle(struct region_waiter *waiter)
{
    cr_assert(list_empty(&waiter->link), "called while still in the list");
    n_idle++;
}

static unsigned n_others;

static void on_other(struct region_waiter *waiter)
{
    (void)waiter;
    n_others++;
}

static void use_add(struct region_use *use, struct region *region, const struct layout *layout)
{
    use->region = region;
    region_uses_add(use, 1, layout, NULL);
}

static bool in_use(struct region *region, uint64_t lo, uint64_t hi)
{
    struct region_waiter waiter = {.lo = lo, .hi = hi};
    bool waits = region_wait_idle(region, &waiter, NULL) == RDT_AGAIN;

    if (waits)
        list_remove(&waiter.link);
    return waits;
}

Test(region_use, range_waiter_told_when_last_overlap_ends)
{
    struct region *region = take(4096);
    struct region_use uses[3] = {0};
    struct layout *spans[] = {span(50, 150), span(99, 100), span(100, 200)};
    struct region_waiter low = {.lo = 0, .hi = 100, .on_idle = on_idle}, all = {.lo = 0, .hi = 4096, .on_idle = on_idle};

    n_idle = 0;
    for (unsigned i = 0; i < 3; i++)
        use_add(&uses[i], region, spans[i]);
    cr_assert(in_use(region, 0, 51));
    cr_assert(!in_use(region, 0, 50));
    cr_assert(!in_use(region, 200, 4096));
    cr_assert_eq(region_wait_idle(region, &low, NULL), RDT_AGAIN);
    cr_assert_eq(region_wait_idle(region, &all, NULL), RDT_AGAIN);
    region_use_remove(&uses[2]);
    cr_assert_eq(n_idle, 0u);
    region_use_remove(&uses[1]);
    cr_assert_eq(n_idle, 0u);
    region_use_remove(&uses[0]);
    cr_assert_eq(n_idle, 2u);
    region_use_remove(&uses[0]); /* again is harmless */
    region_unref(region);
    fake_run();
    for (unsigned i = 0; i < 3; i++)
        free(spans[i]);
}

Test(region_use, spans_are_what_tensors_touch)
{
    struct layout *layout = layout_create(4, 4);
    struct region_span spans[3];
    struct rdt_error err = {0};

    for (uint32_t i = 0; i < 4; i++) {
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
        layout->region[i] = i == 3 ? UINT32_MAX : i / 2;
        layout->offset[i] = 1000 - 100 * i;
        layout->shape[i] = i == 3 ? 0 : 10; /* without elements it lies anywhere */
        layout->strides[i] = 1;
    }
    cr_assert_eq(region_spans(layout, spans, 3, &err), RDT_OK, "%s", err.msg);
    cr_expect(spans[0].lo == 900 && spans[0].hi == 1010 && spans[0].last == 0);
    cr_expect(spans[1].lo == 800 && spans[1].hi == 810 && spans[1].last == 2);
    cr_expect(spans[2].lo >= spans[2].hi);
    cr_expect_eq(region_spans(layout, spans, 1, &err), RDT_INVALID);
    cr_expect_str_eq(err.msg, "tensor 2 names region 1 of 1");
    layout->strides[1] = -1000;
    cr_expect_eq(region_spans(layout, spans, 3, &err), RDT_INVALID);
    free(layout);
}

/* Nobody uses the bytes between the tensors of one object. */
Test(region_use, hole_between_tensors_is_idle)
{
    struct region *region = take(4096);
    struct region *elsewhere = take(4096);
    struct region_use uses[2] = {{.region = region}, {.region = elsewhere}};
    struct layout *layout = layout_create(3, 3);

    for (uint32_t i = 0; i < 3; i++) {
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
        layout->region[i] = i == 2; /* the third lies in another region */
        layout->offset[i] = 1000 * i;
        layout->shape[i] = 10;
        layout->strides[i] = 1;
    }
    region_uses_add(uses, 2, layout, NULL);
    cr_expect(in_use(elsewhere, 2000, 2001) && !in_use(elsewhere, 0, 2000));
    cr_expect(in_use(region, 0, 1) && in_use(region, 1009, 4096));
    cr_expect(!in_use(region, 10, 1000));
    cr_expect(!in_use(region, 1010, 4096));
    region_use_remove(&uses[0]);
    cr_expect(!in_use(region, 0, 4096));
    region_use_remove(&uses[1]);
    region_unref(region);
    region_unref(elsewhere);
    fake_run();
    free(layout);
}

static struct region *dropped;

static void drop_the_region(struct region_waiter *waiter)
{
    (void)waiter;
    region_unref(dropped);
}

Test(region_use, waiter_may_hold_last_reference)
{
    struct region_use use = {0};
    struct region_waiter waiter = {.lo = 0, .hi = 10, .on_idle = drop_the_region};
    struct layout *whole = span(0, 4096);

    dropped = take(4096);
    use_add(&use, dropped, whole);
    cr_assert_eq(region_wait_idle(dropped, &waiter, NULL), RDT_AGAIN);
    region_use_remove(&use);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
    free(whole);
}

/* A million objects may lie in one region, and the end of one must not look at all others. */
Test(region_use, many_uses_are_looked_at_once)
{
    enum { N = 100000, WAITERS = 100 };
    struct region *region = take(4096);
    struct region_use *uses = calloc(N, sizeof *uses);
    static struct region_waiter waiters[WAITERS];
    struct layout *spans[] = {span(0, 10), span(10, 20)};

    n_idle = 0;
    for (unsigned i = 0; i < N; i++)
        use_add(&uses[i], region, spans[i % 2]);
    for (unsigned i = 0; i < WAITERS; i++) {
        waiters[i] = (struct region_waiter){.lo = i % 3 * 5, .hi = i % 3 * 5 + 7, .on_idle = on_idle};
        cr_assert_eq(region_wait_idle(region, &waiters[i], NULL), RDT_AGAIN);
    }
    for (unsigned i = 0; i < N; i += 2)
        region_use_remove(&uses[i]);
    cr_assert_eq(n_idle, 34u, "those of bytes 0 to 7");
    for (unsigned i = N - 1; i < N; i -= 2)
        region_use_remove(&uses[i]);
    cr_assert_eq(n_idle, WAITERS);
    free(uses);
    free(spans[0]);
    free(spans[1]);
    region_unref(region);
    fake_run();
}

/* The loop serves others while a waiter looks at very many uses, and at the tensors of one use. */
Test(region_use, search_takes_turns)
{
    enum { N = 300000, TENSORS = 300000 };
    struct region_use *uses = calloc(N, sizeof *uses), whole = {0};
    struct layout *low = span(0, 10), *many = layout_create(TENSORS, TENSORS);
    struct region_waiter waiter = {.lo = 20, .hi = 30, .on_idle = on_idle};
    struct region *region = take(4096);
    struct deadlines deadlines;
    unsigned turns = 0;

    deadlines_init(&deadlines, &fake.loop);
    fake.regions.deadlines = &deadlines;
    for (uint32_t i = 0; i < TENSORS; i++) {
        many->dtype[i] = RDT_U8;
        many->ndim[i] = 1;
        many->first_dim[i] = i;
        many->region[i] = 0;
        many->offset[i] = i % 2 ? 100 : 0;
        many->shape[i] = 10;
        many->strides[i] = 1;
    }
    n_idle = 0;
    use_add(&whole, region, many);
    for (unsigned i = 0; i < N; i++)
        use_add(&uses[i], region, low);
    cr_assert_eq(region_wait_idle(region, &waiter, NULL), RDT_AGAIN, "it has not seen that nothing overlaps");
    region_use_remove(&uses[0]); /* in front of it or behind it */
    for (; n_idle == 0; turns++)
        (void)uv_run(&fake.loop, UV_RUN_NOWAIT);
    cr_assert_gt(turns, 10u);
    region_use_remove(&whole);
    for (unsigned i = 0; i < N; i++)
        region_use_remove(&uses[i]);
    region_waits_end(&fake.regions);
    fake.regions.deadlines = NULL;
    deadlines_close(&deadlines, NULL);
    region_unref(region);
    fake_run();
    free(uses);
    free(low);
    free(many);
}

/* Many waiters of one region search for long: the waiter of another region is told before they end. */
Test(region_use, searches_of_regions_take_turns)
{
    enum { N = 300000, WAITERS = 20 };
    struct region_use *uses = calloc(N + 1u, sizeof *uses), few[2] = {0};
    static struct region_waiter waiters[WAITERS], other;
    struct layout *low = span(0, 10), *high = span(20, 30);
    struct region *region = take(4096), *small = take(4096);
    struct deadlines deadlines;

    deadlines_init(&deadlines, &fake.loop);
    fake.regions.deadlines = &deadlines;
    n_idle = n_others = 0;
    use_add(&uses[N], region, high);
    for (unsigned i = 0; i < N; i++)
        use_add(&uses[i], region, low);
    for (unsigned i = 0; i < 2; i++)
        use_add(&few[i], small, i == 0 ? high : low);
    for (unsigned i = 0; i < WAITERS; i++) {
        waiters[i] = (struct region_waiter){.lo = 20, .hi = 30, .on_idle = on_idle};
        cr_assert_eq(region_wait_idle(region, &waiters[i], NULL), RDT_AGAIN);
    }
    other = (struct region_waiter){.lo = 20, .hi = 30, .on_idle = on_other};
    cr_assert_eq(region_wait_idle(small, &other, NULL), RDT_AGAIN);
    region_use_remove(&uses[N]);
    region_use_remove(&few[0]);
    while (n_others == 0)
        (void)uv_run(&fake.loop, UV_RUN_NOWAIT);
    cr_assert_lt(n_idle, WAITERS);
    for (unsigned i = 0; i < N; i++)
        region_use_remove(&uses[i]);
    region_use_remove(&few[1]);
    region_waits_end(&fake.regions);
    cr_assert_eq(n_idle, WAITERS);
    fake.regions.deadlines = NULL;
    deadlines_close(&deadlines, NULL);
    region_unref(region);
    region_unref(small);
    fake_run();
    free(uses);
    free(low);
    free(high);
}

static uint64_t seed;

static uint64_t dice(uint64_t sides)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % sides;
}

Test(region_use, random_uses_match_a_plain_count)
{
    enum { BYTES = 256, USES = 40 };
    struct region *region = take(BYTES);
    struct region_use uses[USES] = {0};
    struct layout *spans[USES] = {0};
    unsigned used[BYTES] = {0};

    seed = 3;
    for (unsigned round = 0; round < 5000; round++) {
        unsigned which = (unsigned)dice(USES);
        uint64_t lo = dice(BYTES), hi = lo + 1 + dice(BYTES - lo);
        bool any = false;

        if (spans[which]) {
            for (uint64_t b = uses[which].lo; b < uses[which].hi; b++)
                used[b]--;
            region_use_remove(&uses[which]);
            free(spans[which]);
            spans[which] = NULL;
        } else {
            spans[which] = span(lo, hi);
            use_add(&uses[which], region, spans[which]);
            cr_assert(uses[which].lo == lo && uses[which].hi == hi);
            for (uint64_t b = lo; b < hi; b++)
                used[b]++;
        }
        for (uint64_t b = lo; b < hi; b++)
            any = any || used[b] > 0;
        cr_assert_eq(in_use(region, lo, hi), any, "round %u", round);
    }
    for (unsigned i = 0; i < USES; i++) {
        region_use_remove(&uses[i]);
        free(spans[i]);
    }
    region_unref(region);
    fake_run();
}
