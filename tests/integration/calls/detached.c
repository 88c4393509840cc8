/* SPDX-License-Identifier: Apache-2.0 */
/* Detached objects outlive their client until their time to live ends. */
#include <criterion/criterion.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "client/call.h"
#include "client/rdt_info.h"
#include "rdt.pb-c.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)
#define STRANGER 12345

static struct test_node node;
static rdt *conn;

static void begin(const struct node_options *options)
{
    node_start(&node, options);
}

static void end(void)
{
    rdt_close(conn);
    conn = NULL;
    node_end(&node, NULL);
}

struct producing {
    uint32_t flags;
    int64_t ttl_ns;
    bool heap;
};

/* Puts "w" over a mebibyte, tells its ref, and lives until it is killed or told to end. */
static int produce(struct actor *self, void *arg)
{
    const struct producing *producing = arg;
    rdt *client = node_client(&node, "producer");
    char *memory = producing->heap ? malloc(MIB) : alloc_memory(client, MIB);

    fill_pattern(memory, MIB, 3);
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .id = "w",
                                      .id_bytes = 1,
                                      .flags = RDT_PUT_DETACHED | producing->flags,
                                      .ttl_ns = producing->ttl_ns,
                                      .visibility = RDT_VISIBLE_TO_ALL};
    struct rdt_ref ref = put_as(client, &VECTOR(RDT_U8, MIB, memory), 1, &options);
    actor_send(self, &ref, sizeof ref);
    actor_await(self);
    rdt_close(client);
    return 0;
}

static bool on_holder(void *arg, const struct rdt_holder *holder)
{
    if (strcmp(holder->kind, "detached") == 0)
        *(bool *)arg = true;
    return true;
}

static bool producer_is_gone(const struct rdt_ref *ref)
{
    bool gone = false;

    must_ok(rdt_holders(conn, ref, NULL, on_holder, &gone, &err));
    return gone;
}

static struct rdt_ref put_and_die(const struct producing *producing, bool killed)
{
    struct actor producer;
    struct rdt_ref ref;

    actor_start(&producer, produce, (void *)producing);
    actor_recv(&producer, &ref, sizeof ref);
    conn = node_client(&node, "test");
    struct rdt_stat stat = stat_of(conn, &ref);
    cr_assert(stat.detached);
    cr_assert(stat.ttl_left_ns >= 0, "it counts from the put");
    if (killed) {
        actor_kill(&producer, SIGKILL);
    } else {
        actor_step(&producer);
        actor_wait(&producer);
    }
    wait_until(LONG, producer_is_gone(&ref));
    return ref;
}

static void check_survives(const struct producing *producing, bool killed)
{
    begin(NULL);
    struct rdt_ref ref = put_and_die(producing, killed);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    must_go_by("local/share", object);
    cr_assert_not(info_of(object).mutable_shared, "nobody is left to write it");
    cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 3));
    struct rdt_stat stat = stat_of(conn, &ref);
    cr_assert_str_eq(stat.state, "live");
    cr_assert_eq(stat.holds, 2);
    cr_assert_gt(stat.ttl_left_ns, 0);
    cr_assert_leq(stat.ttl_left_ns, producing->ttl_ns ? producing->ttl_ns : 600 * SEC);
    must_ok(rdt_free(conn, &ref, false, &err)); /* by another session of the same owner */
    must_be(RDT_FREED, rdt_free(conn, &ref, false, &err));
    cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 3), "readers keep theirs");
    rdt_release(object);
    must_be(RDT_FREED, try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    end();
}

Test(detached, outlives_a_killed_client_in_the_memory_it_had)
{
    check_survives(&(struct producing){0}, true);
}

Test(detached, outlives_a_client_that_leaves)
{
    check_survives(&(struct producing){.heap = true, .ttl_ns = 50 * SEC}, false);
}

Test(detached, snapshot_outlives_it_too)
{
    check_survives(&(struct producing){.flags = RDT_PUT_SNAPSHOT, .heap = true}, true);
}

Test(detached, goes_when_its_time_is_over_and_readers_keep_theirs)
{
    begin(&(struct node_options){.log = "debug"});
    struct rdt_ref ref = put_and_die(&(struct producing){.ttl_ns = patience(4 * SEC)}, true);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_SHARE);
    wait_until(LONG, node_log_has(&node, "its time to live has passed"));
    must_be(RDT_TIMED_OUT, rdt_wait_freed(conn, &ref, 0, &err));
    cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 3));
    rdt_release(object);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_refuse(RDT_FREED, "\"w\"", try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    end();
}

Test(detached, goes_when_its_time_is_over_although_its_client_lives)
{
    static char bytes[MIB];
    struct rdt_ref ref, later;
    rdt_object *object;

    begin(NULL);
    conn = node_client(&node, "test");
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_DETACHED, .ttl_ns = SEC / 10};
    must_ok(rdt_put(conn, NULL, 0, &options, &ref, &err));
    options.flags |= RDT_PUT_SNAPSHOT; /* it is live later */
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, MIB, bytes), 1, &options, &later, &err));
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_ok(rdt_wait_freed(conn, &later, LONG, &err));
    must_refuse(RDT_FREED, "its time to live has passed", try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    end();
}

static int try_to_free(struct actor *self, void *arg)
{
    struct rdt_ref ref;
    rdt *stranger;

    must(chdir(node.dir) == 0 && setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "s", .timeout_ns = LONG};
    must_ok(rdt_connect(&options, &stranger, &err));
    actor_recv(self, &ref, sizeof ref);
    must_be(RDT_DENIED, rdt_free(stranger, &ref, false, &err));
    must_be(RDT_DENIED, rdt_free(stranger, &ref, true, &err));
    rdt_close(stranger);
    return 0;
}

Test(detached, no_other_user_frees_it)
{
    struct actor stranger;

    need_root();
    begin(NULL);
    actor_start(&stranger, try_to_free, NULL);
    struct rdt_ref ref = put_and_die(&(struct producing){0}, true);
    actor_send(&stranger, &ref, sizeof ref);
    actor_wait(&stranger);
    cr_assert_eq(rdt_free(conn, &ref, false, NULL), RDT_OK);
    end();
}

Test(detached, time_to_live_has_its_bounds)
{
    const char *flags[] = {"--set", "daemon.detached_ttl_max=5s", NULL};
    struct rdt_ref ref;

    begin(&(struct node_options){.flags = flags});
    conn = node_client(&node, "test");
    struct rdt_put_options options = {.struct_size = sizeof options, .ttl_ns = 1};
    must_be(RDT_INVALID, rdt_put(conn, NULL, 0, &options, &ref, &err));
    options.flags = RDT_PUT_DETACHED;
    options.ttl_ns = 5 * SEC + 1;
    must_refuse(RDT_LIMIT, "detached_ttl_max", rdt_put(conn, NULL, 0, &options, &ref, &err));
    options.ttl_ns = -1;
    must_be(RDT_INVALID, rdt_put(conn, NULL, 0, &options, &ref, &err));
    options.ttl_ns = 5 * SEC;
    must_ok(rdt_put(conn, NULL, 0, &options, &ref, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    end();
}

Test(detached, stopped_daemon_leaves_nothing)
{
    begin(NULL);
    (void)put_and_die(&(struct producing){.heap = true}, true);
    rdt_close(conn);
    node_stop(&node); /* what it leaks would fail the sanitizers' run */
    node_check_log(&node, NULL);
}
