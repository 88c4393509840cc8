/* SPDX-License-Identifier: Apache-2.0 */
/* Processes whose clocks differ by a day, as in containers with time namespaces: a client, a daemon, and one of two nodes.
 * Deadlines, pings and busy polling measure elapsed time and do not depend on what a clock shows. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/support/cluster.h"

TestSuite(clocks, .timeout = 120);

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

#define MIB ((size_t)1 << 20)

static struct test_node node;

/* Children that are forked from now on see CLOCK_MONOTONIC so many seconds later than the machine does. */
static bool shift_clock(int64_t seconds)
{
    FILE *offsets = unshare(CLONE_NEWTIME) == 0 ? fopen("/proc/self/timens_offsets", "we") : NULL;
    bool written = offsets && fprintf(offsets, "monotonic %lld 0\n", (long long)seconds) > 0;

    return offsets && fclose(offsets) == 0 && written;
}

static void skip_without_time_namespaces(void)
{
    if (geteuid() != 0 || !shift_clock(0))
        cr_skip_test("clocks of its own need root and time namespaces");
}

/* A day later, or as early as clocks can show. */
static int64_t shift_of(bool later)
{
    return later ? 86400 : 5 - now_ns() / SEC;
}

static void must_time_out(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns)
{
    int64_t since = now_ns();
    rdt_object *object;

    must_refuse(RDT_TIMED_OUT, "", try_fetch(conn, ref, RDT_FETCH_AUTO, timeout_ns, &object, &err));
    must_say(now_ns() - since >= timeout_ns - 10 * MSEC, "after %lld ms", (long long)((now_ns() - since) / MSEC));
    must_be_within(since, timeout_ns + 5 * SEC);
}

static void works(rdt *conn)
{
    struct rdt_ref ref = put_pattern(conn, NULL, 3 * MIB, 1), never = ref_named("never");

    fetch_pattern(conn, &ref, 3 * MIB, 1, NULL);
    must_ok(rdt_free(conn, &ref, false, &err));
    for (unsigned i = 0; i < 2000; i++) /* so many that both ends poll */
        must_ok(rdt_ping(conn, 10 * SEC, &err));
    must_time_out(conn, &never, 300 * MSEC);
}

struct elsewhere {
    int64_t before_ns, shift;
};

static int live_elsewhere(struct actor *self, void *arg)
{
    const struct elsewhere *elsewhere = arg;
    int64_t passed_ns = now_ns() - elsewhere->before_ns - elsewhere->shift * SEC;
    struct rdt_ref later = ref_named("later");

    must_say(passed_ns >= 0 && passed_ns < 60 * SEC, "the clock is not shifted");
    rdt *conn = node_client(&node, "elsewhere");
    works(conn);
    rdt_request *request = start_one(conn, &later, LONG);
    actor_step(self); /* the object is put now */
    must_ok(rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_status(request, &err));
    rdt_request_destroy(request);
    rdt_close(conn);
    return 0;
}

Test(clocks, client_elsewhere_keeps_its_deadlines)
{
    struct actor actor;
    struct rdt_ref ref;
    rdt *conn;

    skip_without_time_namespaces();
    node_start(&node, NULL);
    for (unsigned i = 0; i < 2; i++) {
        struct elsewhere elsewhere = {.before_ns = now_ns(), .shift = shift_of(i == 0)};

        must(shift_clock(elsewhere.shift));
        actor_start(&actor, live_elsewhere, &elsewhere);
        conn = node_client(&node, "here");
        actor_await(&actor);
        ref = put_pattern(conn, "later", 100, 1);
        actor_wait(&actor);
        must_ok(rdt_free(conn, &ref, false, &err));
        rdt_close(conn);
    }
    node_end(&node, NULL);
}

Test(clocks, daemon_elsewhere_keeps_its_clients_deadlines)
{
    skip_without_time_namespaces();
    for (unsigned i = 0; i < 2; i++) {
        must(shift_clock(shift_of(i == 0)));
        node_spawn(&node, NULL);
        must(shift_clock(0));
        node_await_notify(&node, "READY=1");
        rdt *conn = node_client(&node, "here");
        works(conn);
        rdt_close(conn);
        node_stop(&node);
        node_check_log(&node, NULL);
    }
}

Test(clocks, nodes_with_different_clocks_meet_and_move)
{
    static const char *const flags[] = {"--peer-timeout=2s", NULL}, *const meant[] = {"is lost: ", "taken down and rebuilt",
                                                                                      NULL};
    char address[65];
    struct test_node other;

    skip_without_time_namespaces();
    free_address(0, "127.0.0.1", address);
    must(shift_clock(shift_of(true)));
    node_spawn(&other, &(struct node_options){.name = "other", .listen = address, .flags = flags});
    must(shift_clock(0));
    node_await_notify(&other, "READY=1");
    node_start(&node, &(struct node_options){.listen = "127.0.0.1:0", .flags = flags});
    rdt *conn = node_client(&node, "here");
    rdt *there = node_client(&other, "there");
    struct rdt_ref ref = put_pattern(there, NULL, 3 * MIB, 1);
    fetch_pattern(conn, &ref, 3 * MIB, 1, "stream");
    must_ok(rdt_free(there, &ref, false, &err));
    ref = ref_named("never");
    (void)snprintf(ref.address, sizeof ref.address, "%s", address);
    must_time_out(conn, &ref, 300 * MSEC);
    must_time_out(conn, &ref, 5 * SEC); /* much longer than peer_timeout: pings hold the link */
    rdt_close(conn);
    rdt_close(there);
    node_stop(&node);
    node_stop(&other);
    node_check_log(&node, meant);
    node_check_log(&other, meant);
}
