/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait for the put or the end of an object: beside fetches, in event loops, cancelled, timed out, and when
 * the daemon ends. Also a hold that is dropped without waiting for the answer. */
#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>

#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

static struct test_node node;
static rdt *conn;

static void begin(void)
{
    node_start(&node, NULL);
    conn = node_client(&node, "awaited");
}

static void end(void)
{
    rdt_close(conn);
    node_end(&node, NULL);
}

static unsigned waiters_of(const struct rdt_ref *ref)
{
    struct rdt_stat stat;

    return rdt_stat(conn, ref, &stat, NULL) == RDT_OK ? stat.waiters : 0;
}

Test(wait_before_put, waits_and_fetches_end_in_one_wait)
{
    struct rdt_ref late = ref_named("late"), ref;
    rdt_request *requests[4];
    rdt_object *object = NULL;
    bool done[4];

    begin();
    char *addr = alloc_memory(conn, MIB);
    ref = put_one(conn, &VECTOR(RDT_U8, MIB, addr), "memory");
    must_ok(rdt_wait_put_start(conn, &late, RDT_FOREVER, &requests[0], &err));
    must_ok(rdt_wait_freed_start(conn, &ref, RDT_FOREVER, &requests[1], &err));
    must_ok(rdt_wait_freed_range_start(conn, addr + MIB - 1, 1, RDT_FOREVER, &requests[2], &err));
    requests[3] = start_one(conn, &late, 0);
    must_be(RDT_TIMED_OUT, rdt_wait(conn, requests, 4, 1, 50 * MSEC, done, NULL, &err));
    must_refuse(RDT_AGAIN, "wait for the put of \"late\"", rdt_request_status(requests[0], &err));
    (void)put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "late");
    must_ok(rdt_wait(conn, requests, 4, 2, LONG, done, NULL, &err));
    cr_assert(done[0] && !done[1] && !done[2] && done[3]);
    must_refuse(RDT_INVALID, "brings no object", rdt_request_take_object(requests[0], &object, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_wait(conn, requests, 4, RDT_WAIT_ALL, LONG, done, NULL, &err));
    for (unsigned i = 0; i < 4; i++)
        rdt_request_destroy(requests[i]);
    end();
}

Test(wait_before_put, wait_is_seen_by_an_event_loop)
{
    struct rdt_ref late = ref_named("late");
    rdt_request *request;
    size_t n = 0;

    begin();
    struct pollfd fd = {.events = POLLIN, .fd = rdt_fd(conn)};
    must_ok(rdt_wait_put_start(conn, &late, RDT_FOREVER, &request, &err));
    (void)put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "late");
    while (rdt_request_status(request, NULL) == RDT_AGAIN) {
        cr_assert_eq(poll(&fd, 1, 20000), 1);
        must_ok(rdt_dispatch(conn, &n, &err));
    }
    must_ok(rdt_request_status(request, &err));
    rdt_request_destroy(request);
    end();
}

Test(wait_before_put, wait_ends_at_its_deadline_and_leaves_nothing)
{
    struct rdt_ref never = ref_named("never"), ref;
    rdt_request *requests[2];

    begin();
    ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "held");
    int64_t start = now_ns();
    must_ok(rdt_wait_put_start(conn, &never, 100 * MSEC, &requests[0], &err));
    must_ok(rdt_wait_freed_start(conn, &ref, 100 * MSEC, &requests[1], &err));
    must_be(RDT_TIMED_OUT, rdt_wait(conn, &requests[0], 1, 1, LONG, NULL, NULL, &err));
    must_be(RDT_TIMED_OUT, rdt_wait(conn, &requests[1], 1, 1, LONG, NULL, NULL, &err));
    must_be_within(start, 5 * SEC);
    rdt_request_destroy(requests[0]);
    rdt_request_destroy(requests[1]);
    wait_until(20 * SEC, waiters_of(&never) == 0 && waiters_of(&ref) == 0);
    end();
}

Test(wait_before_put, cancelled_and_destroyed_waits_are_forgotten_by_the_daemon)
{
    struct rdt_ref never = ref_named("never");
    rdt_request *requests[2];

    begin();
    must_ok(rdt_wait_put_start(conn, &never, RDT_FOREVER, &requests[0], &err));
    must_ok(rdt_wait_put_start(conn, &never, RDT_FOREVER, &requests[1], &err));
    wait_until(20 * SEC, waiters_of(&never) == 2);
    rdt_cancel(requests[0]);
    must_refuse(RDT_CANCELLED, "wait for the put of \"never\"", rdt_request_status(requests[0], &err));
    wait_until(20 * SEC, waiters_of(&never) == 1);
    rdt_request_destroy(requests[1]);
    wait_until(20 * SEC, waiters_of(&never) == 0);
    rdt_request_destroy(requests[0]);
    end();
}

Test(wait_before_put, wait_ends_with_the_daemon)
{
    struct rdt_ref never = ref_named("never");
    rdt_request *request;

    begin();
    must_ok(rdt_wait_put_start(conn, &never, RDT_FOREVER, &request, &err));
    node_kill(&node, SIGKILL);
    must_refuse(RDT_DISCONNECTED, "never", rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    rdt_close(conn);
}

/* RDT_NO_WAIT returns objects that exist, although a time-out of one nanosecond would not. */
Test(wait_before_put, fetch_that_does_not_wait_brings_what_is_there)
{
    struct rdt_ref late = ref_named("late"), small, large;
    rdt_object *object;

    begin();
    char *addr = alloc_memory(conn, 8 * MIB);
    fill_pattern(addr, 8 * MIB, 1);
    large = put_one(conn, &VECTOR(RDT_U8, 8 * MIB, addr), "large");
    small = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "small");
    for (unsigned i = 0; i < 20; i++) {
        must_ok(try_fetch(conn, &small, RDT_FETCH_AUTO, RDT_NO_WAIT, &object, &err));
        rdt_release(object);
        must_ok(try_fetch(conn, &large, RDT_FETCH_COPY, RDT_NO_WAIT, &object, &err));
        cr_assert(holds_pattern(tensor_of(object, 0).data, 8 * MIB, 1));
        rdt_release(object);
        must_refuse(RDT_NOT_PUT, "nobody has put an object with this id",
                    try_fetch(conn, &late, RDT_FETCH_AUTO, RDT_NO_WAIT, &object, &err));
    }
    end();
}

Test(wait_before_put, impossible_waits_are_refused)
{
    struct rdt_ref nothing = {0};
    rdt_request *request;

    begin();
    char *addr = alloc_memory(conn, 4096);
    must_be(RDT_INVALID, rdt_wait_put_start(conn, &nothing, 0, &request, &err));
    must_be(RDT_INVALID, rdt_wait_freed_start(conn, NULL, 0, &request, &err));
    must_be(RDT_INVALID, rdt_wait_freed_range_start(conn, addr, 0, 0, &request, &err));
    must_refuse(RDT_INVALID, "not within", rdt_wait_freed_range_start(conn, &nothing, 1, 0, &request, &err));
    end();
}

Test(wait_before_put, dropped_hold_is_gone_without_waiting_for_the_answer)
{
    begin();
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "x");
    must_ok(rdt_drop(conn, &ref, &err));
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_ok(rdt_drop(conn, &ref, &err)); /* nothing reports that the object has ended */
    must_ok(rdt_ping(conn, LONG, &err));
    must_be(RDT_INVALID, rdt_drop(conn, NULL, &err));
    end();
}
