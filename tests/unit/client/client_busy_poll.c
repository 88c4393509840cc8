/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a scripted fake daemon: the daemon decides how long librdt polls for answers, and librdt polls that long. */
#include <criterion/criterion.h>
#include <sched.h>

#include "client/session/connection.h"
#include "proto/wire_limits.h"
#include "tests/support/fakes/fake_daemon.h"

static struct rdt_error err;

static void serve(struct fake *fake)
{
    fake_take(fake, RDT_MSG_HELLO);
    Rdt__Pb__HelloReply reply = MESSAGE(hello_reply, .busy_poll_ns = *(uint64_t *)fake->arg);
    fake_welcome(fake, reply);
    fake_serve(fake);
}

static void expect_bound(uint64_t told_ns, int64_t expected_ns)
{
    struct fake fake;

    fake_start_raw(&fake, serve, &told_ns);
    rdt *conn = fake_connect(&fake);
    cr_assert_eq(conn->waiters.rule.max_ns, expected_ns);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

Test(client_busy_poll, bound_is_what_the_daemon_says)
{
    expect_bound(50000, 50000);
    expect_bound(0, 0); /* which is what one that knows nothing of it says */
}

Test(client_busy_poll, no_daemon_makes_it_poll_for_long)
{
    expect_bound(UINT64_MAX, RDT_BUSY_POLL_MAX_NS);
    expect_bound(RDT_BUSY_POLL_MAX_NS + 1, RDT_BUSY_POLL_MAX_NS);
}

/* Pings, as many, or until answers are found where they are looked for. */
static uint64_t found(uint64_t told_ns, unsigned most)
{
    struct fake fake;

    fake_start_raw(&fake, serve, &told_ns);
    rdt *conn = fake_connect(&fake);
    for (unsigned i = 0; i < most && conn->waiters.rule.n_found == 0; i++)
        assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    uint64_t n = conn->waiters.rule.n_found;
    fake_end(&fake, conn);
    return n;
}

Test(client_busy_poll, polls_for_answers_that_come_at_once, .timeout = 120)
{
    cpu_set_t set;

    cr_assert_eq(sched_getaffinity(0, sizeof set, &set), 0);
    if (CPU_COUNT(&set) < 2)
        cr_skip_test("one processor only");
    cr_assert_gt(found(RDT_BUSY_POLL_MAX_NS, 1000000), 0);
}

Test(client_busy_poll, does_not_poll_if_the_daemon_says_so)
{
    cr_assert_eq(found(0, 1000), 0);
}

Test(client_busy_poll, does_not_poll_on_one_processor)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    cr_assert_eq(sched_setaffinity(0, sizeof set, &set), 0);
    cr_assert_eq(found(RDT_BUSY_POLL_MAX_NS, 1000), 0);
}
