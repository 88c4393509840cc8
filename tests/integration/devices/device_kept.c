/* Memory on devices that nobody uses any more: whom it serves again, whom never, and when it goes. */
#include "tests/integration/devices/device_fixture.h"

TestSuite(device_kept, .timeout = 100);

#define LONG_KEPT "--pool-idle=1h"

static void begin_kept(const char *more)
{
    begin_with((const char *const[]){LONG_KEPT, "--device-limit=16MiB", "--device-pool-max=4MiB", more, NULL});
}

/* What is kept goes with its kind. */
static void end_kept(void)
{
    rdt *other;

    rdt_close(a);
    rdt_close(b);
    node_expect_idle(&node);
    node_connect(&node, &other);
    wait_until(LONG, rdt_backend_unload(other, "fake", LONG, NULL) == RDT_OK); /* BUSY while the last blocks are on their way */
    rdt_close(other);
    must(atomic_load(&gpu.control->blocks) == 0 && atomic_load(&gpu.control->allocated[0]) == 0);
    node_end(&node, NULL);
    fake_device_fini(&gpu);
}

static uint64_t made(void)
{
    return atomic_load(&gpu.control->made);
}

static uint64_t used_bytes(const char *uuid)
{
    struct rdt_device_info devices[4];
    size_t n = 0;

    must_ok(rdt_devices(a, devices, 4, &n, &err));
    for (size_t i = 0; i < n; i++)
        if (strcmp(devices[i].uuid, uuid) == 0)
            return devices[i].used_bytes;
    return 0;
}

static bool is_zero(const uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != 0)
            return false;
    return true;
}

/* A snapshot that nobody here reads never leaves the daemon. Returns when its memory is nobody's. */
static void snapshot_and_free(rdt *conn, void *addr, size_t bytes)
{
    struct rdt_tensor tensor = bytes_at(addr, bytes);
    struct rdt_ref ref = put_tensors(conn, &tensor, 1, RDT_PUT_SNAPSHOT);

    must_ok(rdt_free(conn, &ref, false, &err));
}

Test(device_kept, what_never_left_serves_anyone_and_is_zero_again)
{
    uint8_t *from, *got;

    begin_kept(NULL);
    from = fake_device_alloc(a, "FAKE-0", BYTES);
    fill_pattern(from, BYTES, 1);
    snapshot_and_free(a, from, BYTES);
    must(made() == 2 && atomic_load(&gpu.control->zeroed) == 0);
    expect_output("backends", NULL, "(256.0 KiB in the free pool)");
    got = fake_device_alloc(b, "FAKE-0", BYTES); /* another client */
    must_say(made() == 2, "%llu blocks were made", (unsigned long long)made());
    must(is_zero(got, BYTES));
    must(atomic_load(&gpu.control->zeroed) == 1);
    snapshot_and_free(a, from, BYTES); /* the next one makes its own: that one is b's */
    must(made() == 3);
    snapshot_and_free(a, from, BYTES); /* and the third has it, as it is: it is a's own, and all of it is written */
    must(made() == 3 && atomic_load(&gpu.control->zeroed) == 1);
    must(atomic_load(&gpu.control->blocks) == 3);
    end_kept();
}

Test(device_kept, what_a_client_had_serves_that_client_alone)
{
    uint8_t *had, *other, *again;
    uint64_t before;

    begin_kept(NULL);
    had = fake_device_alloc(a, "FAKE-0", BYTES);
    fill_pattern(had, BYTES, 2);
    must_ok(rdt_dealloc(a, had, &err));
    before = made();
    other = fake_device_alloc(b, "FAKE-0", BYTES);
    must_say(made() == before + 1, "another client was given what one had");
    must(is_zero(other, BYTES));
    again = fake_device_alloc(a, "FAKE-0", BYTES);
    must_say(made() == before + 1, "its own client was not given it");
    must(is_zero(again, BYTES));
    must_ok(rdt_dealloc(a, again, &err));
    rdt_close(a); /* with its client it goes */
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 1);
    node_connect(&node, &a);
    fake_device_use(a);
    end_kept();
}

Test(device_kept, next_fetch_to_a_device_lies_where_the_last_one_did)
{
    struct rdt_ref ref = {0};
    rdt_object *object;
    uint8_t *host;
    uint64_t before;

    begin_kept(NULL);
    host = alloc_memory(a, BYTES);
    fill_pattern(host, BYTES, 3);
    {
        struct rdt_tensor tensor = bytes_at(host, BYTES);
        ref = put_tensors(a, &tensor, 1, 0);
    }
    expect(b, &ref, "fake", "FAKE-0", BYTES, 3, "local/copy", "fake", "FAKE-0");
    before = made();
    for (uint32_t seed = 4; seed < 20; seed++) {
        fill_pattern(host, BYTES, seed);
        expect(b, &ref, "fake", "FAKE-0", BYTES, seed, "local/copy", "fake", "FAKE-0");
    }
    must_say(made() == before, "%llu blocks more", (unsigned long long)(made() - before));
    must(atomic_load(&gpu.control->zeroed) == 0);
    must_ok(fetch_to(a, &ref, "fake", "FAKE-0", &object, &err)); /* who never had it does not get it */
    must(made() == before + 1);
    rdt_release(object);
    end_kept();
}

/* A process may put what it fetched: by its chunks that is another region, and the same memory. */
Test(device_kept, what_lives_on_under_another_name_is_not_given_again)
{
    struct rdt_ref ref, held;
    struct fake_memory_own own;
    struct rdt_shared shared;
    struct rdt_tensor tensor;
    uint8_t *first, *second;

    begin_kept(NULL);
    fake_device_malloc(&own, 1, BYTES);
    fill_pattern(own.addr, BYTES, 5);
    shared = fake_device_chunks(&own, "FAKE-0");
    must_ok(rdt_import_shared(a, &shared, own.addr, &err));
    tensor = bytes_at(own.addr, BYTES);
    held = put_tensors(a, &tensor, 1, 0);
    ref = put_on(b, "FAKE-0", BYTES, 6, (void **)&first);
    must_ok(rdt_dealloc(b, first, &err));
    must_ok(rdt_free(b, &ref, false, &err));
    second = fake_device_alloc(b, "FAKE-0", BYTES);
    must_say(made() == 2, "it was kept though memory of its device is imported");
    must(is_zero(second, BYTES));
    must_ok(rdt_dealloc(a, own.addr, &err));
    must_ok(rdt_free(a, &held, false, &err));
    wait_until(LONG, atomic_load(&gpu.control->imports) == 0);
    fake_device_free(&own);
    end_kept();
}

Test(device_kept, it_is_bounded_and_given_up_before_anyone_is_refused)
{
    struct rdt_alloc_options options = RDT_INIT(options);
    uint8_t *some[8], *all;

    begin_kept(NULL);
    for (unsigned i = 0; i < 8; i++)
        some[i] = fake_device_alloc(a, "FAKE-0", 4 * BYTES);
    for (unsigned i = 0; i < 8; i++)
        must_ok(rdt_dealloc(a, some[i], &err));
    wait_until(LONG, used_bytes("FAKE-0") == 8 * BYTES); /* half of 4 MiB for one client */
    must(atomic_load(&gpu.control->blocks) == 2);
    options.memory = "fake";
    options.device = "FAKE-0";
    must_ok(rdt_alloc_with(b, 15 * 4 * BYTES, &options, (void **)&all, &err)); /* 15 of 16 MiB: one of the two must go */
    must_say(atomic_load(&gpu.control->blocks) == 2, "%u blocks", (unsigned)atomic_load(&gpu.control->blocks));
    must_refuse(RDT_LIMIT, "FAKE-0", rdt_alloc_with(b, 2 * 4 * BYTES, &options, (void **)&some[0], &err));
    must_say(atomic_load(&gpu.control->blocks) == 2, "it was given up for nothing");
    end_kept();
}

Test(device_kept, room_of_what_is_kept_for_one_serves_another)
{
    struct rdt_alloc_options options = RDT_INIT(options);
    uint8_t *first, *second;

    begin_kept(NULL);
    first = fake_device_alloc(a, "FAKE-0", 8 * BYTES);
    second = fake_device_alloc(a, "FAKE-0", 56 * BYTES); /* the device is full */
    options.memory = "fake";
    options.device = "FAKE-0";
    must_refuse(RDT_LIMIT, "FAKE-0", rdt_alloc_with(b, 5 * BYTES, &options, (void **)&second, &err));
    must_ok(rdt_dealloc(a, first, &err)); /* kept for a */
    must_ok(rdt_alloc_with(b, 5 * BYTES, &options, (void **)&second, &err));
    end_kept();
}

Test(device_kept, what_cannot_be_cleared_is_given_to_nobody)
{
    struct rdt_alloc_options options = RDT_INIT(options);
    uint8_t *from, *got;

    begin_kept(NULL);
    from = fake_device_alloc(a, "FAKE-0", BYTES);
    fill_pattern(from, BYTES, 7);
    snapshot_and_free(a, from, BYTES);
    atomic_store(&gpu.control->fail_zeros, 1);
    options.memory = "fake";
    options.device = "FAKE-0";
    must_refuse(RDT_SYSTEM, "cannot be cleared", rdt_alloc_with(b, BYTES, &options, (void **)&got, &err));
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 1);
    got = fake_device_alloc(b, "FAKE-0", BYTES);
    must(is_zero(got, BYTES) && made() == 3);
    end_kept();
}

Test(device_kept, idle_it_goes_back_to_the_device)
{
    uint8_t *from;

    begin_with((const char *const[]){"--pool-idle=100ms", NULL});
    from = fake_device_alloc(a, "FAKE-0", BYTES);
    snapshot_and_free(a, from, BYTES);
    must_ok(rdt_dealloc(a, from, &err));
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 0);
    end(NULL);
}
