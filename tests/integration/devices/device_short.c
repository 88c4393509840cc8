/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on devices when room is short, when memory cannot be shared, and when a copy is cancelled: errors come early, and only
 * to the clients that are concerned. */
#include <pthread.h>
#include <signal.h>

#include "tests/integration/devices/device_fixture.h"

#include <sys/resource.h>

TestSuite(device_short, .timeout = 100);

#define MANY 16u

Test(device_short, pending_snapshot_without_room_fails_its_waiters)
{
    rdt_request *requests[1];
    rdt_object *object;

    begin_with((const char *const[]){"--device-limit=1MiB", NULL});
    uint8_t *addr = fake_device_alloc(a, "FAKE-0", 768 * KIB);
    struct rdt_tensor tensor = bytes_at(addr, 768 * KIB);
    struct rdt_put_options options = {
        .struct_size = sizeof options, .flags = RDT_PUT_PENDING | RDT_PUT_SNAPSHOT, .id = "promised", .id_bytes = 8};
    struct rdt_ref ref = put_as(a, &tensor, 1, &options);
    requests[0] = start_one(b, &ref, LONG);
    must_be(RDT_TIMED_OUT, rdt_wait(b, requests, 1, 1, 20 * MSEC, NULL, NULL, &err));
    must_ok(rdt_ready(a, &ref, &err)); /* the snapshot has no room */
    must_refuse(RDT_LIMIT, "FAKE-0", rdt_wait(b, requests, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(requests[0]);
    options.flags = 0; /* another object may now have that id, and the old ref does not name it */
    fill_pattern(addr, 768 * KIB, 2);
    struct rdt_ref again = put_as(a, &tensor, 1, &options);
    must(fetch_to(b, &ref, NULL, NULL, &object, NULL) != RDT_OK);
    expect(b, &again, NULL, NULL, 768 * KIB, 2, "local/share", "fake", "FAKE-0");
    end(NULL);
}

Test(device_short, answer_with_too_many_fds_is_refused_before_the_copy)
{
    struct rlimit limit, low;
    struct rdt_tensor tensors[2];
    rdt_object *object;
    rdt *few;

    begin_with((const char *const[]){"chunk=4096", NULL});
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    low = (struct rlimit){.rlim_cur = 4 * 64, .rlim_max = limit.rlim_max}; /* a reader takes a quarter of it */
    must(setrlimit(RLIMIT_NOFILE, &low) == 0);
    node_connect(&node, &few);
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    fake_device_use(few);
    uint8_t *on_device = fake_device_alloc(a, "FAKE-0", 64 * 4 * KIB);
    uint8_t *in_host = alloc_memory(a, BYTES);
    fill_pattern(on_device, 64 * 4 * KIB, 4);
    fill_pattern(in_host, BYTES, 5);
    tensors[0] = bytes_at(on_device, 64 * 4 * KIB);
    tensors[1] = bytes_at(in_host, BYTES);
    struct rdt_ref ref = put_tensors(a, tensors, 2, 0);
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .memory = "fake", .device = "FAKE-1", .host_stays = true};
    must_refuse(RDT_LIMIT, "65 chunks", rdt_fetch(few, &ref, 1, &options, &object, &err));
    must(atomic_load(&gpu.control->started) == 0);
    must_ok(rdt_fetch(b, &ref, 1, &options, &object, &err)); /* in two messages */
    must(holds_pattern(tensor_of(object, 0).data, 64 * 4 * KIB, 4) && holds_pattern(tensor_of(object, 1).data, BYTES, 5));
    rdt_release(object);
    must_ok(rdt_free(a, &ref, false, &err));
    ref = put_tensors(a, tensors, 1, 0); /* the largest answer that fits */
    expect(few, &ref, "fake", "FAKE-1", 64 * 4 * KIB, 4, "local/copy", "fake", "FAKE-1");
    rdt_close(few);
    end(NULL);
}

Test(device_short, memory_that_cannot_be_exported_is_copied)
{
    struct fake_memory_own own;
    rdt_object *object;

    begin();
    atomic_store(&gpu.control->no_export, 1);
    fake_device_malloc(&own, 1, BYTES);
    fill_pattern(own.addr, BYTES, 6);
    struct rdt_shared shared = fake_device_handle(&own, "FAKE-0");
    must_ok(rdt_import_shared(a, &shared, own.addr, &err));
    struct rdt_tensor tensor = bytes_at(own.addr, BYTES);
    struct rdt_ref ref = put_tensors(a, &tensor, 1, 0);
    expect(a, &ref, "fake", "FAKE-0", BYTES, 6, "local/copy", "fake", "FAKE-0");
    expect(b, &ref, NULL, NULL, BYTES, 6, "local/copy", "fake", "FAKE-0");
    expect(b, &ref, "host", NULL, BYTES, 6, "local/copy", "host", "");
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = RDT_FETCH_SHARE};
    must_refuse(RDT_NO_PATH, "as the test wants it", rdt_fetch(b, &ref, 1, &options, &object, &err));
    rdt_close(a);
    node_connect(&node, &a);
    wait_until(LONG, atomic_load(&gpu.control->imports) == 0);
    fake_device_free(&own);
    end(NULL);
}

/* Makes as many batches of copies as tensors: one batch copies from one region to one other. */
static void make_many(struct rdt_tensor *tensors, void **addrs_p)
{
    addrs_p[0] = fake_device_alloc(a, "FAKE-0", BYTES);
    addrs_p[1] = fake_device_alloc(a, "FAKE-1", BYTES);
    for (unsigned i = 0; i < MANY; i++)
        tensors[i] = bytes_at((uint8_t *)addrs_p[i % 2] + i / 2 * 4 * KIB, 4 * KIB);
}

Test(device_short, cancelled_snapshot_copies_no_more)
{
    struct rdt_tensor tensors[MANY];
    struct rdt_ref ref;
    rdt_request *requests[1];
    void *addrs[2];

    begin();
    make_many(tensors, addrs);
    fake_hold(gpu.control, true);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .timeout_ns = 50 * MSEC};
    must_be(RDT_TIMED_OUT, rdt_put(a, tensors, MANY, &options, &ref, &err));
    must_ok(rdt_ping(a, LONG, &err)); /* the daemon has read the message before this */
    uint64_t began = atomic_load(&gpu.control->started);
    must_say(began < MANY, "%llu batches at once", (unsigned long long)began);
    fake_hold(gpu.control, false);
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 2);
    must(atomic_load(&gpu.control->started) == began);

    fake_hold(gpu.control, true); /* now a pending put whose producer dies */
    options.flags = RDT_PUT_SNAPSHOT | RDT_PUT_PENDING;
    must_ok(rdt_put(a, tensors, MANY, &options, &ref, &err));
    must_ok(rdt_ready(a, &ref, &err));
    wait_until(LONG, atomic_load(&gpu.control->started) > began);
    requests[0] = start_one(b, &ref, LONG);
    rdt_close(a);
    node_connect(&node, &a);
    must_be(RDT_OWNER_DIED, rdt_wait(b, requests, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(requests[0]);
    began = atomic_load(&gpu.control->started);
    fake_hold(gpu.control, false);
    wait_until(LONG, atomic_load(&gpu.control->blocks) == 0);
    must(atomic_load(&gpu.control->started) == began);
    end(NULL);
}

/* ---- room ---- */

struct waiter {
    pthread_t thread;
    rdt *conn;
    const char *device;
    void *addr;
    struct rdt_error err;
};

static void *wait_for_room(void *arg)
{
    struct waiter *me = arg;
    struct rdt_alloc_options options = {
        .struct_size = sizeof options, .memory = "fake", .device = me->device, .timeout_ns = LONG};

    (void)rdt_alloc_with(me->conn, 768 * KIB, &options, &me->addr, &me->err);
    return NULL;
}

/* While somebody waits for a device, even an allocation that would fit is refused. */
static bool has_waiter(const char *device)
{
    void *addr;
    struct rdt_alloc_options options = {.struct_size = sizeof options, .memory = "fake", .device = device};

    if (rdt_alloc_with(a, 64 * KIB, &options, &addr, NULL) != RDT_OK)
        return true;
    must_ok(rdt_dealloc(a, addr, &err));
    return false;
}

Test(device_short, waiter_for_one_device_blocks_nobody_on_another)
{
    struct waiter first = {.device = "FAKE-0"}, second = {.device = "FAKE-1"};

    begin_with((const char *const[]){"--device-limit=1MiB", NULL});
    first.conn = b;
    node_connect(&node, &second.conn);
    fake_device_use(second.conn);
    void *on0 = fake_device_alloc(a, "FAKE-0", 768 * KIB);
    must(pthread_create(&first.thread, NULL, wait_for_room, &first) == 0);
    wait_until(LONG, has_waiter("FAKE-0"));
    void *little = fake_device_alloc(a, "FAKE-1", 64 * KIB);
    must_ok(rdt_dealloc(a, little, &err));
    void *on1 = fake_device_alloc(a, "FAKE-1", 768 * KIB);
    must(pthread_create(&second.thread, NULL, wait_for_room, &second) == 0);
    wait_until(LONG, has_waiter("FAKE-1"));
    must_ok(rdt_dealloc(a, on1, &err)); /* the later waiter gets its device; the first still waits */
    must(pthread_join(second.thread, NULL) == 0);
    must_say(second.err.status == RDT_OK, "%s", second.err.msg);
    must(has_waiter("FAKE-0"));
    must_ok(rdt_dealloc(a, on0, &err));
    must(pthread_join(first.thread, NULL) == 0);
    must_say(first.err.status == RDT_OK, "%s", first.err.msg);
    must(!has_waiter("FAKE-0"));
    rdt_close(second.conn);
    end(NULL);
}

/* ---- the daemon's end ---- */

static rdt_request *copying;

static void begin_a_copy(void)
{
    begin();
    struct rdt_ref ref = put_on(a, "FAKE-0", BYTES, 32, NULL);
    fake_hold(gpu.control, true);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .memory = "host", .timeout_ns = LONG};
    must_ok(rdt_fetch_start(b, &ref, 1, &options, &copying, &err));
    wait_until(LONG, atomic_load(&gpu.control->started) > 0);
    must(kill(node.pid, SIGTERM) == 0);
    wait_until(LONG, node_log_has(&node, "draining"));
    must(kill(node.pid, SIGTERM) == 0);
    wait_until(LONG, node_log_has(&node, "ends without waiting for transfers"));
    must_refuse(RDT_DISCONNECTED, "", rdt_wait(b, &copying, 1, 1, LONG, NULL, NULL, &err));
}

static void end_without_it(void)
{
    rdt_request_destroy(copying);
    rdt_close(a);
    rdt_close(b);
    fake_device_fini(&gpu);
}

Test(device_short, end_waits_for_a_copy)
{
    static const char *const log[] = {"drain", NULL};

    begin_a_copy();
    fake_hold(gpu.control, false);
    must(node_result(&node) == 0);
    must(node_log_has(&node, "has ended cleanly"));
    node_check_log(&node, log);
    must(atomic_load(&gpu.control->blocks) == 0 && atomic_load(&gpu.control->done) > 0);
    end_without_it();
}

Test(device_short, end_leaves_a_device_that_hangs)
{
    begin_a_copy();
    must(node_result(&node) != 0);
    must(node_log_has(&node, "1 copies on devices do not end"));
    end_without_it();
}
