/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots whose copy still runs, and everything that may happen meanwhile. The tests block the daemon's worker threads,
 * so that a copy lasts as long as the test wants; the loop goes on. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)
#define BYTES (8 * MIB)

static struct test_node node;
static rdt *conn;

/* ---- putting ---- */

static void begin(void)
{
    const char *flags[] = {"--set", "daemon.cache_max=1", NULL};

    node_start(&node, &(struct node_options){.flags = flags});
    conn = node_client(&node, "test");
}

static void end(void)
{
    node_release_workers(&node);
    rdt_close(conn);
    node_end(&node, NULL);
}

static enum rdt_status put_snapshot(rdt *client, const struct rdt_tensor *tensor, const char *id, int64_t timeout_ns,
                                    uint32_t flags, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_put_options options = RDT_INIT(options);

    options.flags = RDT_PUT_SNAPSHOT | flags;
    options.id = id;
    options.id_bytes = strlen(id);
    options.timeout_ns = timeout_ns;
    return rdt_put(client, tensor, 1, &options, ref_p, err);
}

/* Has memory before the threads stand still, says so, and puts when told; ends with the status, negative ones as 100 -
 * status. */
static int produce(struct actor *self, void *arg)
{
    const int64_t *timeout_ns = arg;
    rdt *client = node_client(&node, "producer");
    char *memory = alloc_memory(client, BYTES);
    struct rdt_error err = {0};
    struct rdt_ref ref;
    enum rdt_status status;

    fill_pattern(memory, BYTES, 7);
    actor_step(self);
    actor_await(self);
    status = put_snapshot(client, &VECTOR(RDT_U8, BYTES, memory), "w", *timeout_ns, 0, &ref, &err);
    memset(memory, 0xee, BYTES);
    if (status == RDT_OK) {
        actor_step(self);
        actor_await(self);
    }
    rdt_close(client);
    return status == RDT_OK ? 0 : 100 - (int)status;
}

static bool state_is(const char *id, const char *state)
{
    struct rdt_ref ref = ref_named(id);
    struct rdt_stat stat;

    return rdt_stat(conn, &ref, &stat, NULL) == RDT_OK && strcmp(stat.state, state) == 0;
}

static int64_t forever = 0;

/* Until the object "w" is filling, and stays so. */
static void begin_filling(struct actor *producer, int64_t *timeout_ns)
{
    begin();
    rdt_close(conn);
    actor_start(producer, produce, timeout_ns);
    conn = node_client(&node, "test");
    actor_await(producer);
    if (!node_hold_workers(&node))
        cr_skip_test("this process may not trace");
    actor_step(producer);
    wait_until(LONG, state_is("w", "filling"));
}

Test(snapshot_pending, fetches_and_waits_park_and_get_the_whole)
{
    struct rdt_ref ref = ref_named("w"), live;
    struct rdt_stat stat;
    struct actor producer;
    rdt_request *requests[2];
    rdt_object *object;

    begin_filling(&producer, &forever);
    requests[0] = start_one(conn, &ref, LONG);
    must_ok(rdt_stat(conn, &ref, &stat, &err));
    cr_assert_eq(stat.bytes, BYTES);
    cr_assert(stat.snapshot);
    requests[1] = start_one(conn, &stat.ref, LONG); /* by its generation */
    must_be(RDT_TIMED_OUT, rdt_wait_put(conn, &ref, 10 * MSEC, &err));
    must_be(RDT_TIMED_OUT, rdt_wait(conn, requests, 2, 1, 10 * MSEC, NULL, NULL, &err));
    must_be(RDT_EXISTS, put_snapshot(conn, &VECTOR(RDT_U8, 0, NULL), "w", LONG, 0, &live, &err));
    must_be(RDT_EXISTS,
            rdt_put(conn, NULL, 0, &(struct rdt_put_options){sizeof(struct rdt_put_options), .id = "w", .id_bytes = 1}, &live,
                    &err));
    node_release_workers(&node);
    must_ok(rdt_wait(conn, requests, 2, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    for (unsigned i = 0; i < 2; i++) {
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        must_go_by("local/share", object);
        cr_assert(holds_pattern(tensor_of(object, 0).data, BYTES, 7));
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    actor_await(&producer); /* put has returned, and the scribbling is done */
    object = fetch_one(conn, &ref, RDT_FETCH_COW);
    cr_assert(holds_pattern(tensor_of(object, 0).data, BYTES, 7));
    rdt_release(object);
    actor_step(&producer);
    actor_wait(&producer);
    end();
}

Test(snapshot_pending, killed_producer_fails_those_who_wait)
{
    struct rdt_ref ref = ref_named("w");
    struct rdt_stat stat;
    struct actor producer;
    rdt_request *request;

    begin_filling(&producer, &forever);
    must_ok(rdt_stat(conn, &ref, &stat, &err));
    request = start_one(conn, &ref, LONG);
    must_be(RDT_TIMED_OUT, rdt_wait(conn, &request, 1, 1, 0, NULL, NULL, &err));
    actor_kill(&producer, SIGKILL);
    must_refuse(RDT_OWNER_DIED, "\"w\"", rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err)); /* not when the copy ends */
    rdt_request_destroy(request);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(conn, &stat.ref, 0, &err)); /* the engine is still at its memory */
    node_release_workers(&node);
    must_ok(rdt_wait_freed(conn, &stat.ref, LONG, &err));
    must_be(RDT_OWNER_DIED, try_fetch(conn, &stat.ref, RDT_FETCH_AUTO, LONG, &(rdt_object *){NULL}, &err));
    end();
}

Test(snapshot_pending, timed_out_put_leaves_those_who_wait_to_the_next)
{
    struct rdt_ref ref = ref_named("w");
    int64_t timeout_ns = 50 * MSEC;
    struct actor producer;
    rdt_request *request;

    begin();
    rdt_close(conn);
    actor_start(&producer, produce, &timeout_ns);
    conn = node_client(&node, "test");
    actor_await(&producer);
    if (!node_hold_workers(&node))
        cr_skip_test("this process may not trace");
    request = start_one(conn, &ref, LONG);
    actor_step(&producer);
    cr_assert_eq(actor_result(&producer), 100 - RDT_TIMED_OUT);
    wait_until(LONG, !state_is("w", "filling"));
    node_release_workers(&node);
    cr_assert_eq(rdt_request_status(request, NULL), RDT_AGAIN);
    (void)put_one(conn, &VECTOR(RDT_U8, 3, "abc"), "w");
    must_ok(rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    end();
}

Test(snapshot_pending, free_by_force_ends_it)
{
    struct rdt_ref ref = ref_named("w");
    struct actor producer;

    begin_filling(&producer, &forever);
    must_be(RDT_DENIED, rdt_free(conn, &ref, false, &err));
    must_ok(rdt_free(conn, &ref, true, &err));
    node_release_workers(&node);
    cr_assert_eq(actor_result(&producer), 100 - RDT_FREED);
    end();
}

Test(snapshot_pending, waiters_that_leave_leave_nothing)
{
    struct rdt_ref ref = ref_named("w");
    struct actor producer;
    rdt_request *request;
    struct rdt_stat stat;

    begin_filling(&producer, &forever);
    request = start_one(conn, &ref, LONG);
    wait_until(LONG, rdt_stat(conn, &ref, &stat, NULL) == RDT_OK && stat.waiters == 1);
    rdt_cancel(request);
    rdt_request_destroy(request);
    wait_until(LONG, rdt_stat(conn, &ref, &stat, NULL) == RDT_OK && stat.waiters == 0);
    must_be(RDT_TIMED_OUT, rdt_wait_put(conn, &ref, 10 * MSEC, &err));
    node_release_workers(&node);
    actor_await(&producer);
    actor_step(&producer);
    actor_wait(&producer);
    end();
}

Test(snapshot_pending, stopped_daemon_leaves_nothing)
{
    struct actor producer;

    begin_filling(&producer, &forever);
    cr_assert_eq(kill(node.pid, SIGTERM), 0);
    wait_until(LONG, node_log_has(&node, "draining"));
    node_release_workers(&node);
    (void)actor_result(&producer); /* put in time, or disconnected */
    rdt_close(conn);
    cr_assert_eq(node_result(&node), 0);
    node_check_log(&node, NULL);
}
