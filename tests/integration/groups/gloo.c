/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of three daemons over Gloo. */
#include <criterion/criterion.h>
#include <signal.h>

#include "tests/integration/groups/groups_fixture.h"

TestSuite(gloo, .timeout = 240);

static const char *const declared[] = {"taken down and rebuilt: ", "is lost: ", "refused", "is down: ", NULL};

static bool is_built(void)
{
    FILE *file = fopen(build_path("backends/rdt_gloo.so"), "re");

    if (file)
        (void)fclose(file);
    else
        cr_skip_test("libgloo-dev was not there when this was built");
    return file;
}

static void begin_with(unsigned n, const char *chunk, const char *grace)
{
    const char *flags[] = {chunk, "--chunks-in-flight=2", grace, "--stall-timeout=5s", NULL};

    begin_groups(n, "gloo", &(struct cluster_options){.flags = flags});
}

static void begin(unsigned n, const char *chunk)
{
    begin_with(n, chunk, "--quiesce-grace=500ms");
}

static void destroy(const char *name)
{
    must_ok(rdt_group_destroy(actor_of[0], name, &err));
}

Test(gloo, fetch_both_ways_between_all_ranks)
{
    if (!is_built())
        return;
    begin(3, "--chunk=256KiB");
    must_ok(form(actor_of[0], "g", 3, &err));
    for (unsigned from = 0; from < 3; from++)
        for (unsigned to = 0; to < 3; to++)
            if (from != to)
                move(from, to, "g", 5 * MIB + 7);
    must_ok(form(actor_of[2], "h", 2, &err));
    move(1, 0, "h", MIB);
    destroy("g");
    move(0, 1, "h", MIB);
    destroy("h");
    end_groups(NULL);
}

/* Many at a time, in both directions of every pair, some of which are cancelled or end at their deadline. */
Test(gloo, cancels_and_deadlines_touch_nothing_else)
{
    enum { ROUNDS = 40 };
    struct rdt_ref refs[2];

    if (!is_built())
        return;
    begin_with(2, "--chunk=64KiB", "--quiesce-grace=20s"); /* cancelled operations end, however late */
    must_ok(form(actor_of[0], "g", 2, &err));
    for (unsigned i = 0; i < 2; i++)
        refs[i] = put_pattern(actor_of[i], NULL, 8 * MIB, i);
    for (unsigned round = 0; round < ROUNDS; round++) {
        rdt_request *request[2];
        for (unsigned i = 0; i < 2; i++)
            request[i] = start_by(actor_of[i], &refs[1 - i], "g", round % 4 == 1 ? (int64_t)round * MSEC / 8 + 1 : LONG);
        if (round % 4 == 2)
            rdt_cancel(request[0]);
        for (unsigned i = 0; i < 2; i++) {
            enum rdt_status status = rdt_wait(actor_of[i], &request[i], 1, 1, LONG, NULL, NULL, NULL);
            must_say(status == RDT_OK || (status == RDT_TIMED_OUT && round % 4 == 1) ||
                         (status == RDT_CANCELLED && round % 4 == 2),
                     "%s", rdt_status_name(status));
            rdt_request_destroy(request[i]);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        must(group_is(actor_of[i], "g", "ready", 1));
        move(i, 1 - i, "g", MIB);
        must_ok(rdt_free(actor_of[i], &refs[i], false, &err));
    }
    destroy("g");
    end_groups(NULL);
}

Test(gloo, killed_node_takes_it_down_and_it_comes_back)
{
    rdt_object *object;

    if (!is_built())
        return;
    begin(3, "--chunk=64KiB");
    must_ok(form(actor_of[0], "g", 3, &err));
    move(0, 2, "g", MIB);
    struct rdt_ref ref = put_pattern(actor_of[0], NULL, 4 * MIB, 1);
    node_kill(&c.node[2], SIGKILL);
    await_group(0, "g", "down", 0);
    await_group(1, "g", "down", 0);
    must_refuse(RDT_NO_PATH, "group g is down", fetch_by(actor_of[1], &ref, "gloo", NULL, &object, &err));
    rdt_close(actor_of[2]);
    cluster_restart(&c, 2);
    cluster_meet(&c); /* the test does not wait for the next attempt */
    actor_of[2] = node_client(&c.node[2], "a2");
    for (unsigned i = 0; i < 3; i++)
        await_group(i, "g", "ready", 0);
    move(2, 1, "g", MIB);
    move(0, 1, "g", MIB);
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    destroy("g");
    end_groups(declared);
}

Test(gloo, frozen_node_takes_it_down_and_it_comes_back)
{
    if (!is_built())
        return;
    begin(3, "--chunk=64KiB");
    must_ok(form(actor_of[0], "g", 3, &err));
    node_freeze(&c.node[2]);
    await_group(0, "g", "down", 0);
    node_thaw(&c.node[2]);
    for (unsigned i = 0; i < 3; i++)
        await_rebuilt(i, "g");
    move(2, 1, "g", MIB);
    destroy("g");
    end_groups(declared);
}

Test(gloo, refuses_a_network_that_is_not_trusted)
{
    if (!is_built())
        return;
    begin_groups(2, "gloo", &(struct cluster_options){.no_ucx = true});
    must_refuse(RDT_UNSUPPORTED, "neither authenticates nor encrypts", form(actor_of[0], "g", 2, &err));
    struct rdt_ref ref = put_pattern(actor_of[0], NULL, MIB, 1);
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    end_groups(NULL);
}
