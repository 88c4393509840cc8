/* SPDX-License-Identifier: Apache-2.0 */
/* Busy polling: when the daemon begins and stops it, how long it tells its clients to poll, and that it serves everything
 * else meanwhile. */
#include <criterion/criterion.h>
#include <sched.h>

#include "tests/support/raw.h"
#include "tests/support/tensors.h"

TestSuite(busy_poll, .timeout = SUITE_SECONDS(60));

static struct test_node node;
static rdt *conn;

static void begin(const char *busy_poll)
{
    const char *flags[] = {"--busy-poll", busy_poll, NULL};

    node_start(&node, &(struct node_options){.flags = busy_poll ? flags : NULL});
    conn = node_client(&node, "client");
}

static void end(void)
{
    rdt_close(conn);
    node_end(&node, NULL);
}

static void skip_on_one_processor(void)
{
    cpu_set_t set;

    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    if (CPU_COUNT(&set) < 2)
        cr_skip_test("one processor only");
}

static uint64_t told(void)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;
    struct raw raw;

    raw_connect(&raw, node.socket);
    hello.protocol_min = hello.protocol_max = 1;
    Rdt__Pb__HelloReply *reply = (Rdt__Pb__HelloReply *)raw_reply(&raw, raw_send(&raw, RDT_MSG_HELLO, &hello.base, NULL, 0),
                                                                  &rdt__pb__hello_reply__descriptor);
    uint64_t ns = reply->busy_poll_ns;
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    raw_close(&raw);
    return ns;
}

static void pings(unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        must_ok(rdt_ping(conn, LONG, &err));
}

static struct node_status status(void)
{
    return node_now(&node);
}

Test(busy_poll, daemon_polls_for_messages_that_follow_closely)
{
    skip_on_one_processor();
    begin("1ms");
    cr_assert_eq(told(), 1000000);
    wait_until(LONG, (pings(100), status().busy_polls > status().busy_polls_missed));
    end();
}

Test(busy_poll, busy_poll_of_zero_polls_nowhere)
{
    begin("0s");
    cr_assert_eq(told(), 0);
    pings(5000);
    cr_assert_eq(status().busy_polls, 0);
    end();
}

Test(busy_poll, clients_learn_the_default)
{
    begin(NULL);
    cr_assert_eq(told(), 200000);
    end();
}

Test(busy_poll, one_processor_is_never_kept_by_it)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    cr_assert_eq(sched_setaffinity(0, sizeof set, &set), 0);
    begin("1ms");
    pings(5000);
    cr_assert_eq(status().busy_polls, 0);
    end();
}

/* Messages of another client come one upon the other until it has ended. */
static void ping_until_ended(rdt *reader, rdt_request *request)
{
    for (int64_t until = now_ns() + patience(LONG); rdt_request_status(request, NULL) == RDT_AGAIN;) {
        must(now_ns() < until);
        pings(10);
        (void)rdt_wait(reader, &request, 1, 1, 0, NULL, NULL, NULL);
    }
}

Test(busy_poll, deadlines_and_others_are_served_beside_it)
{
    struct rdt_ref late = ref_named("late");

    begin("1ms");
    rdt *reader = node_client(&node, "reader");
    rdt *producer = node_client(&node, "producer");
    rdt_request *request = start_one(reader, &late, 50 * MSEC);
    ping_until_ended(reader, request);
    must_be(RDT_TIMED_OUT, rdt_request_status(request, &err));
    rdt_request_destroy(request);
    request = start_one(reader, &late, RDT_FOREVER);
    pings(1000);
    (void)put_one(producer, &VECTOR(RDT_U8, 5, "hello"), "late");
    ping_until_ended(reader, request);
    must_ok(rdt_request_status(request, &err));
    rdt_request_destroy(request);
    rdt_close(reader);
    rdt_close(producer);
    end();
}

Test(busy_poll, deadline_ends_polling_for_a_silent_daemon)
{
    begin("1ms");
    pings(2000); /* the daemon polls if it has two processors */
    node_freeze(&node);
    must_be(RDT_TIMED_OUT, rdt_ping(conn, 300000, &err));    /* ns: before the look would be over */
    must_be(RDT_TIMED_OUT, rdt_ping(conn, 20 * MSEC, &err)); /* after it */
    node_thaw(&node);
    pings(100);
    end();
}
