/* SPDX-License-Identifier: Apache-2.0 */
/* Regions: their references, states, charges and registrations, and the requests that wait for room. The memory comes from a
 * kind made of calloc.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "daemon/memory/region_impl.h"
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
    cr_assert_null(fake_find(id, 0));
    cr_assert_eq(fake.regions.bytes, 64u << 20);
    cr_assert_eq(fake.regions.freeing.n, 1u);
    fake_run();
    cr_assert_eq(fake.regions.bytes, 0u);
    cr_assert_eq(fake.regions.freeing.n, 0u);
}

Test(region, ids_are_never_used_again)
{
    struct region *first = take(4096), *second;
    uint64_t id = first->id, generation = first->generation;

    region_unref(first);
    fake_run();
    second = take(4096);
    cr_assert(second->id != id || second->generation != generation);
    cr_assert_null(fake_find(id, generation));
    cr_assert_eq(fake_find(second->id, second->generation), second);
    region_unref(second);
    fake_run();
}

Test(region, change_of_state_that_is_not_in_the_table_aborts, .signal = SIGABRT)
{
    struct region *region = take(4096);

    region_set_state(region, REGION_LOANED);
    region_set_state(region, REGION_USED);
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
    cr_assert_eq(
        region_alloc(&fake.regions, "fake", "", 1 << 20, REGION_ALLOCATED, &owner, 7, &second, on_device_ready, &second, &err),
        RDT_AGAIN, "%s", err.msg);
    cr_assert_eq(
        region_alloc(&fake.regions, "fake", "", 4096, REGION_ALLOCATED, &owner, 8, &third, on_device_ready, &third, &err),
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

/* ---- readers that keep memory of a device mapped ---- */

struct slow_reader {
    struct region_reader base;
    struct pool_block *told; /* the block that waits for it */
};

static void on_gone_slowly(struct region_reader *base, struct pool_block *block)
{
    struct slow_reader *reader = container_of(base, struct slow_reader, base);
    uint64_t begun_ns = uv_hrtime();

    list_remove(&reader->base.by_region);
    reader->told = block;
    block->n_readers++;
    while (uv_hrtime() - begun_ns < 2 * SLICES_TURN_NS)
        ;
}

static unsigned n_told(const struct slow_reader *readers, unsigned n)
{
    unsigned told = 0;

    for (unsigned i = 0; i < n; i++)
        told += readers[i].told != NULL;
    return told;
}

/* The loop serves others between two readers. One that unmaps the memory before the others have been told frees nothing, and
 * one that goes without having been told is not waited for. */
Test(region, readers_of_device_memory_are_told_in_turns)
{
    enum { READERS = 4 };
    struct memory_device device = {.kind = &fake.kind, .memory.limit_bytes = 1 << 20, .uuid = "device"};
    struct slow_reader readers[READERS] = {0};
    struct account owner = {.refs = 1};
    struct deadlines deadlines;
    struct region *region = NULL;

    deadlines_init(&deadlines, &fake.loop);
    fake.regions.deadlines = &deadlines;
    list_init(&device.memory.awaiting);
    fake.kind.ops.devices = one_device;
    fake.kind.devices = &device;
    fake.kind.n_devices = 1;
    (void)region_alloc(&fake.regions, "fake", "", 4096, REGION_ALLOCATED, &owner, 7, &region, on_device_ready, &region, NULL);
    fake_run();
    cr_assert_not_null(region);
    for (unsigned i = 0; i < READERS; i++) {
        readers[i].base.on_gone = on_gone_slowly;
        list_append(&region->readers, &readers[i].base.by_region);
    }
    region_unref(region);
    cr_assert_eq(n_told(readers, READERS), 1u);
    region_block_left(readers[0].told);
    (void)uv_run(&fake.loop, UV_RUN_NOWAIT);
    cr_assert_eq(n_told(readers, READERS), 2u);
    list_remove(&readers[READERS - 1].base.by_region);
    fake_run();
    cr_assert_eq(n_told(readers, READERS), READERS - 1u);
    cr_assert_eq(device.memory.freeing_bytes, 4096u);
    for (unsigned i = 1; i < READERS - 1; i++) {
        cr_assert_eq(fake.n_freed, 0u);
        region_block_left(readers[i].told);
    }
    fake_run();
    cr_assert_eq(fake.n_freed, 1u);
    cr_assert_eq(device.memory.used_bytes + device.memory.freeing_bytes, 0u);
    fake.kind.n_devices = 0;
    fake.regions.deadlines = NULL;
    deadlines_close(&deadlines, NULL);
    fake_run();
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
