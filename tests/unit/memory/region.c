/* Regions: their references, uses, charges and registrations, and the requests that wait for room. The memory comes from a
 * kind made of calloc.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/memory/region_use.h"
#include "proto/layout.h"
#include "tests/support/fakes/fake_memory.h"

TestSuite(region, .init = fake_setup, .fini = fake_teardown, .timeout = 60);

static struct region *take(uint64_t bytes)
{
    return fake_region(bytes, 7);
}

/* ---- references ---- */

Test(region, last_reference_frees_once)
{
    struct region *region = take(4096);

    cr_assert_eq(fake.regions.bytes, 4096u);
    region_ref(region);
    region_unref(region);
    cr_assert_eq(fake.n_freed, 0u);
    region_unref(region);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
    cr_assert_eq(fake.regions.bytes, 0u);
    cr_assert_eq(fake.regions.by_id.used, 0u);
    region_unref(NULL);
}

Test(region, pin_outlives_reference)
{
    struct region *region = take(4096);

    region_pin(region);
    region_unref(region);
    fake_run();
    cr_assert_eq(fake.n_freed, 0u, "a transfer touches it");
    cr_assert_eq(fake.regions.bytes, 4096u);
    region_unpin(region);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
}

/* Memory counts until its pages are free, because the limit is one of memory, not of intentions. */
Test(region, memory_counts_until_its_pages_are_free)
{
    struct region *region = take(64 << 20);
    uint64_t id = region->id;

    region_unref(region);
    cr_assert_null(region_find(&fake.regions, id, 0));
    cr_assert_eq(fake.regions.bytes, 64u << 20);
    cr_assert_eq(fake.regions.n_freeing, 1u);
    fake_run();
    cr_assert_eq(fake.regions.bytes, 0u);
    cr_assert_eq(fake.regions.n_freeing, 0u);
}

Test(region, ids_are_never_used_again)
{
    struct region *first = take(4096), *second;
    uint64_t id = first->id, generation = first->generation;

    region_unref(first);
    fake_run();
    second = take(4096);
    cr_assert(second->id != id || second->generation != generation);
    cr_assert_null(region_find(&fake.regions, id, generation));
    cr_assert_eq(region_find(&fake.regions, second->id, second->generation), second);
    region_unref(second);
    fake_run();
}

static void run_barrier(struct work *work)
{
    (void)pthread_barrier_wait(*(pthread_barrier_t **)(work + 1));
}

static uint32_t one_device(void *memory, struct rdt_device *devices, uint32_t max)
{
    (void)memory;
    (void)max;
    devices[0] = (struct rdt_device){.uuid = "device", .name = "device", .bytes = 1 << 20};
    return 1;
}

/* The devices are the kind's, and the loop takes the charge off the device last. */
Test(region, kind_is_in_use_until_the_charge_of_its_device_is_off)
{
    struct memory_device device = {.kind = &fake.kind, .memory.limit_bytes = 1 << 20, .uuid = "device"};
    pthread_barrier_t all;
    struct {
        struct work work;
        pthread_barrier_t *all;
    } marks[2];
    struct region *region;

    list_init(&device.memory.awaiting);
    fake.kind.ops.devices = one_device;
    fake.kind.devices = &device;
    fake.kind.n_devices = 1;
    region = fake_region(4096, 7);
    cr_assert_eq(device.memory.used_bytes, 4096u);
    region_unref(region);
    (void)pthread_barrier_init(&all, NULL, 3);
    for (unsigned i = 0; i < 2; i++) {
        marks[i].all = &all;
        marks[i].work = (struct work){.run = run_barrier};
        work_submit(fake.pool, &marks[i].work);
    }
    (void)pthread_barrier_wait(&all); /* both threads have done their earlier work */
    cr_assert_eq(fake.n_freed, 1u);
    cr_assert_eq(fake.kind.users, 1u, "its devices could be gone by now");
    fake_run();
    cr_assert_eq(fake.kind.users, 0u);
    cr_assert_eq(device.memory.used_bytes, 0u);
    (void)pthread_barrier_destroy(&all);
    fake.kind.n_devices = 0;
}

static void on_device_ready(void *arg, struct region *region, const struct rdt_error *err)
{
    cr_assert_null(err);
    *(struct region **)arg = region;
}

/* As with host memory, no request is refused for memory that the work pool has not freed yet. */
Test(region, allocation_waits_for_device_memory_that_is_being_freed)
{
    struct memory_device device = {.kind = &fake.kind, .memory.limit_bytes = 1 << 20, .uuid = "device"};
    struct account owner = {.refs = 1};
    struct region *first, *second = NULL, *third = NULL;
    struct rdt_error err = {0};

    list_init(&device.memory.awaiting);
    fake.kind.ops.devices = one_device;
    fake.kind.devices = &device;
    fake.kind.n_devices = 1;
    first = fake_region(1 << 20, 7);
    region_unref(first);
    cr_assert_eq(device.memory.used_bytes, 1u << 20);
    cr_assert_eq(region_alloc(&fake.regions, "fake", "", 1 << 20, REGION_ALLOCATED, &owner, 7, &second, on_device_ready,
                              &second, &err),
                 RDT_AGAIN, "%s", err.msg);
    cr_assert_eq(region_alloc(&fake.regions, "fake", "", 4096, REGION_ALLOCATED, &owner, 8, &third, on_device_ready, &third,
                              &err),
                 RDT_LIMIT, "the room is another request's");
    fake_run();
    cr_assert_not_null(second);
    cr_assert_null(third);
    cr_assert_eq(device.memory.used_bytes, 1u << 20);
    cr_assert_eq(device.memory.freeing_bytes + device.memory.awaiting_bytes, 0u);
    region_unref(second);
    fake_run();
    cr_assert_eq(device.memory.used_bytes, 0u);
    fake.kind.n_devices = 0;
}

/* ---- limits ---- */

Test(region, over_limit_refused_before_anything)
{
    struct region *region = NULL, *first = take(4096);
    struct account owner = {.refs = 1};
    struct rdt_error err = {0};

    fake.regions.limit_bytes = 8192;
    cr_expect_eq(region_alloc(&fake.regions, "fake", "", 8193, REGION_ALLOCATED, &owner, 1, &region, NULL, NULL, &err),
                 RDT_LIMIT, "never fits: %s", err.msg);
    cr_expect_eq(region_alloc(&fake.regions, "fake", "", 4097, REGION_ALLOCATED, &owner, 1, &region, NULL, NULL, &err),
                 RDT_NO_MEMORY, "does not fit now: %s", err.msg);
    cr_expect(strstr(err.msg, "4096"), "%s", err.msg);
    cr_expect_eq(region_alloc(&fake.regions, "fake", "", UINT64_MAX, REGION_ALLOCATED, &owner, 1, &region, NULL, NULL, &err),
                 RDT_LIMIT);
    cr_expect_eq(region_alloc(&fake.regions, "fake", "", 0, REGION_ALLOCATED, &owner, 1, &region, NULL, NULL, &err),
                 RDT_INVALID);
    cr_expect_eq(region_alloc(&fake.regions, "cuda", "", 1, REGION_ALLOCATED, &owner, 1, &region, NULL, NULL, &err),
                 RDT_UNSUPPORTED);
    cr_assert_null(region);
    cr_assert_eq(fake.regions.bytes, 4096u);
    cr_assert_eq(fake.regions.by_id.used, 1u);
    region_unref(first);
    fake_run();
}

static void on_ready(void *arg, struct region *region, const struct rdt_error *err)
{
    *(struct region **)arg = region;
    cr_assert_eq(region == NULL, err != NULL);
    fake.n_ready++;
}

Test(region, failed_allocation_leaves_nothing)
{
    static const uint64_t sizes[] = {4096, 64 << 20};
    struct account owner = {.refs = 1};

    for (unsigned i = 0; i < 2; i++) {
        struct region *region = NULL;
        struct rdt_error err = {0};
        enum rdt_status status;

        fake.fail_alloc = true;
        status =
            region_alloc(&fake.regions, "fake", "", sizes[i], REGION_ALLOCATED, &owner, 1, &region, on_ready, &region, &err);
        cr_assert(status == RDT_NO_MEMORY || status == RDT_AGAIN);
        fake_run();
        cr_assert_eq(fake.n_ready, status == RDT_AGAIN ? 1u : 0u);
        cr_assert_null(region);
        cr_assert_eq(fake.regions.bytes, 0u);
        cr_assert_eq(fake.regions.by_id.used, 0u);
        fake.n_ready = 0;
    }
}

/* Imported memory was never charged to memory_limit, so no charge is taken off. */
Test(region, failed_import_leaves_nothing)
{
    static struct account account = {.owner = {.uid = 1000}, .refs = 1};
    const struct rdt_import import = {.kind = RDT_IMPORT_MEMFD, .bytes = 4096};
    struct region *region = NULL, *other = take(4096);
    struct rdt_error err = {0};

    cr_assert_eq(region_import(&fake.regions, "fake", &import, &account, 7, &region, &err), RDT_INVALID);
    cr_assert_null(region);
    cr_assert_eq(fake.regions.bytes, 4096u, "%llu bytes", (unsigned long long)fake.regions.bytes);
    cr_assert_eq(fake.regions.by_id.used, 1u);
    region_unref(other);
    fake_run();
}

/* ---- uses ---- */

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

static void use_add(struct region_use *use, struct region *region, const struct layout *layout)
{
    use->region = region;
    region_uses_add(use, 1, layout, NULL);
}

static bool in_use(struct region *region, uint64_t lo, uint64_t hi)
{
    struct region_waiter waiter = {.lo = lo, .hi = hi};
    bool waits = region_wait_idle(region, &waiter);

    if (waits)
        list_remove(&waiter.link);
    return waits;
}

Test(region, range_waiter_told_when_last_overlap_ends)
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
    cr_assert(region_wait_idle(region, &low) && region_wait_idle(region, &all));
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

Test(region, spans_are_what_tensors_touch)
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
Test(region, hole_between_tensors_is_idle)
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

Test(region, waiter_may_hold_last_reference)
{
    struct region_use use = {0};
    struct region_waiter waiter = {.lo = 0, .hi = 10, .on_idle = drop_the_region};
    struct layout *whole = span(0, 4096);

    dropped = take(4096);
    use_add(&use, dropped, whole);
    cr_assert(region_wait_idle(dropped, &waiter));
    region_use_remove(&use);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
    free(whole);
}

/* A million objects may lie in one region, and the end of one must not look at all others. */
Test(region, many_uses_are_looked_at_once)
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
        cr_assert(region_wait_idle(region, &waiters[i]));
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

static uint64_t seed;

static uint64_t dice(uint64_t sides)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % sides;
}

Test(region, random_uses_match_a_plain_count)
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

/* ---- registrations ---- */

Test(region, registered_once_whoever_asks)
{
    struct region *region = take(4096), *got[2] = {0};
    void *handle = NULL, *again = NULL;

    for (unsigned i = 0; i < 2; i++) /* before the first is done */
        cr_assert_eq(region_register(region, &fake.transport, &handle, on_ready, &got[i], NULL), RDT_AGAIN);
    fake_run();
    cr_assert(got[0] == region && got[1] == region);
    cr_assert_eq(region->n_registrations, 1u);
    cr_assert_eq(fake.n_registered, 1u, "%u are registered", fake.n_registered);
    cr_assert_eq(region_register(region, &fake.transport, &handle, NULL, NULL, NULL), RDT_OK);
    cr_assert_eq(region_register(region, &fake.transport, &again, NULL, NULL, NULL), RDT_OK);
    cr_assert_eq(handle, again);
    region_unref(region);
    fake_run();
    cr_assert_eq(fake.n_registered, 0u);
    cr_assert_eq(fake.n_freed, 1u);
}

Test(region, reference_during_registration)
{
    struct region *region = take(4096), *got = NULL;
    void *handle;

    cr_assert_eq(region_register(region, &fake.transport, &handle, on_ready, &got, NULL), RDT_AGAIN);
    region_unref(region); /* the caller has released it */
    cr_assert_eq(fake.n_freed, 0u);
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
    cr_assert_eq(fake.n_registered, 0u);
}

/* ---- requests that wait for room ---- */

struct room_waiter {
    struct account_wait wait; /* first */
    struct account *account;
    unsigned called;
};

static void on_room(struct account_wait *wait)
{
    ((struct room_waiter *)wait)->called++;
}

static enum rdt_status try_alloc(struct accounts *accounts, struct room_waiter *waiter, uint64_t bytes)
{
    struct region *region = NULL;
    enum rdt_status status;

    waiter->wait.on_room = on_room;
    account_request_begin(accounts, &waiter->wait);
    status =
        region_alloc(&fake.regions, "fake", "", bytes, REGION_ALLOCATED, waiter->account, 1, &region, on_ready, &region, NULL);
    account_request_end(accounts, &waiter->wait);
    return status;
}

/* Otherwise the two requests would wake each other as long as the memory is full. */
Test(region, refused_allocation_calls_nobody_who_waits)
{
    struct accounts accounts;
    struct room_waiter a = {0}, b = {0};
    struct region *full;
    struct rdt_error err = {0};

    accounts_init(&accounts);
    a.account = account_get(&accounts, &(struct owner){.uid = 1});
    b.account = account_get(&accounts, &(struct owner){.uid = 2});
    fake.regions.accounts = &accounts;
    fake.regions.limit_bytes = 1 << 20;
    full = take(1 << 20);
    cr_assert_eq(try_alloc(&accounts, &a, 4096), RDT_NO_MEMORY);
    cr_assert_eq(try_alloc(&accounts, &b, 4096), RDT_NO_MEMORY);
    cr_assert(accounts.n_waiting == 2 && a.called == 0, "called %u times", a.called);
    region_unref(full);
    fake_run();
    cr_assert(a.called == 1 && b.called == 0, "one at a time");
    cr_assert_eq(regions_charge(&fake.regions, 1 << 20, &err), RDT_OK);
    cr_assert_eq(try_alloc(&accounts, &a, 4096), RDT_NO_MEMORY);
    cr_assert(a.called == 1 && b.called == 1, "then the next");
    cr_assert_eq(try_alloc(&accounts, &b, 4096), RDT_NO_MEMORY);
    cr_assert(a.called == 1 && b.called == 1);
    regions_uncharge(&fake.regions, 1 << 20);
    cr_assert(a.called == 2 && b.called == 1, "a charge that is taken off makes room, too");
    account_wait_end(&accounts, &a.wait);
    cr_assert(a.called == 2 && b.called == 2);
    account_wait_end(&accounts, &b.wait);
    account_unref(a.account);
    account_unref(b.account);
    fake.regions.accounts = NULL;
    accounts_fini(&accounts);
}
