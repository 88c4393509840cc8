/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcasts to groups of daemons: each node fetches the object and keeps a replica, by the transport of the group ("grouped",
 * Gloo) or, where there is one, by another transport. */
#include <criterion/criterion.h>
#include <signal.h>
#include <unistd.h>

#include "tests/integration/groups/groups_fixture.h"

TestSuite(broadcast, .timeout = 240);

#define KILLED "taken down and rebuilt: ", "is lost: ", "refused", "is down: ", NULL

static const char *const with_losses[] = {KILLED};

#define PATIENT "--quiesce-grace=20s" /* cancelled operations end, however late */

static void begin_with(unsigned n, const char *grace)
{
    const char *flags[] = {"--chunk=64KiB", "--chunks-in-flight=2", grace, "--stall-timeout=5s", NULL};

    begin_groups(n, "grouped", &(struct cluster_options){.grouped = true, .no_ucx = true, .flags = flags});
}

static void begin(unsigned n)
{
    begin_with(n, "--quiesce-grace=300ms");
}

/* Only Gloo is there to move bytes. false: it was not there when this was built. */
static void begin_gloo_with(unsigned n, const char *grace)
{
    static char backends[3][300];
    const char *flags[] = {"--chunk=64KiB",
                           "--chunks-in-flight=2",
                           grace,
                           "--stall-timeout=5s",
                           "--trusted-network=yes",
                           "--backend-dir=",
                           backends[0],
                           backends[1],
                           backends[2],
                           NULL};
    FILE *file = fopen(build_path("backends/rdt_gloo.so"), "re");

    (void)snprintf(backends[0], sizeof backends[0], "--backend=%s", build_path("backends/rdt_host.so"));
    (void)snprintf(backends[1], sizeof backends[1], "--backend=%s", build_path("backends/rdt_gloo.so"));
    (void)snprintf(backends[2], sizeof backends[2], "--backend=%s", build_path("backends/rdt_stream.so")); /* is switched off */
    if (!file)
        cr_skip_test("libgloo-dev was not there when this was built");
    (void)fclose(file);
    begin_groups(n, "gloo", &(struct cluster_options){.no_ucx = true, .flags = flags});
}

static void begin_gloo(unsigned n)
{
    begin_gloo_with(n, "--quiesce-grace=500ms");
}

static void set_faults(const char *lines)
{
    for (unsigned i = 0; i < c.n; i++)
        cluster_faults(&c, i, lines);
}

/* Two tensors, one of them with holes, so that some chunks are gathered. */
static struct rdt_ref put_snapshot(rdt *conn, size_t bytes, uint32_t seed)
{
    uint8_t *data = malloc(bytes);
    struct rdt_tensor tensors[] = {
        {.dtype = RDT_U8, .ndim = 1, .shape = (int64_t[]){(int64_t)bytes}, .data = data},
        {.dtype = RDT_U8, .ndim = 1, .shape = (int64_t[]){(int64_t)bytes / 2}, .strides = (int64_t[]){2}, .data = data},
    };

    must(data);
    fill_pattern(data, bytes, seed);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT};
    struct rdt_ref ref = put_as(conn, tensors, 2, &options);
    free(data);
    return ref;
}

/* The client reads the right bytes, and from a replica on its node. */
static void read_copy(rdt *conn, const struct rdt_ref *ref, size_t bytes, uint32_t seed, const char *path)
{
    uint8_t *expected = malloc(bytes);

    must(expected);
    fill_pattern(expected, bytes, seed);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
    rdt_object *object = fetch_as(conn, ref, &options);
    if (path)
        must_go_by(path, object);
    must(memcmp(tensor_of(object, 0).data, expected, bytes) == 0);
    const uint8_t *half = tensor_of(object, 1).data;
    for (size_t i = 0; i < bytes / 2; i++)
        must(half[i] == expected[2 * i]);
    free(expected);
    rdt_release(object);
}

static enum rdt_status broadcast(unsigned from, const struct rdt_ref *ref, const char *group, struct rdt_error *err)
{
    return rdt_broadcast(actor_of[from], ref, group, LONG, err);
}

/* And says why: the daemon does, a little before the library does without it, and of the node that is late
 * for good, where the machine lets them. */
static void must_come_too_late(const struct rdt_ref *ref, int64_t timeout_ns, const char *text)
{
    int64_t deadline = now_ns() + LONG;
    struct rdt_error why;

    do {
        must_be(RDT_TIMED_OUT, rdt_broadcast(actor_of[0], ref, "g", timeout_ns, &why));
        must_say(now_ns() < deadline, "%s", why.msg);
    } while (!strstr(why.msg, text));
}

/* How many transfers of that direction the node has done by the group's transport, of its latest. */
static unsigned done_by_group(unsigned node, const char *direction)
{
    struct transfer_view views[32];
    unsigned n = transfers_of(&c.node[node], views, 32), done = 0;

    for (unsigned i = 0; i < n; i++)
        done += strcmp(views[i].direction, direction) == 0 && strcmp(views[i].path, by) == 0;
    return done;
}

static void finish(const char *group, const char *const *declared)
{
    must_ok(rdt_group_destroy(actor_of[0], group, &err));
    end_groups(declared);
}

/* On how many nodes node 0 believes a copy of its object to be. */
static unsigned copies_of(const struct rdt_ref *ref)
{
    char text[RDT_REF_TEXT_BYTES], command[1024];
    unsigned n = 0;

    rdt_ref_to_text(ref, text);
    (void)snprintf(command, sizeof command, "%s --socket %s stat '%s' | grep -c 'node .* has a replica of it'",
                   build_path("rdtctl"), c.node[0].socket, text);
    FILE *answer = popen(command, "re");
    must(answer && fscanf(answer, "%u", &n) == 1);
    (void)pclose(answer);
    return n;
}

/* ---- what it does ---- */

static void every_node_gets_a_copy(void)
{
    static const size_t sizes[] = {1, 100, 64 * KIB, 3 * MIB + 7};
    rdt_object *object;

    must_ok(form(actor_of[0], "g", 3, &err));
    rdt *bystander = node_client(&c.node[2], "bystander"); /* of no group */
    for (unsigned from = 0; from < 3; from++)
        for (unsigned k = 0; k < 4; k++) {
            uint32_t seed = from * 4 + k;
            struct rdt_ref ref = put_snapshot(actor_of[from], sizes[k], seed);
            must_ok(broadcast(from, &ref, "g", &err));
            must(done_by_group((from + 1) % 3, "in") > 0);
            read_copy(actor_of[(from + 1) % 3], &ref, sizes[k], seed, "local/share");
            read_copy(actor_of[(from + 2) % 3], &ref, sizes[k], seed, "local/share");
            if (from != 2)
                read_copy(bystander, &ref, sizes[k], seed, "local/share");
            must_ok(broadcast(from, &ref, "g", &err)); /* nothing is left to do */
            must_ok(rdt_free(actor_of[from], &ref, true, &err));
            must_refuse(RDT_FREED, "", rdt_fetch(actor_of[(from + 1) % 3], &ref, 1, NULL, &object, &err));
        }
    rdt_close(bystander);
    finish("g", NULL);
}

Test(broadcast, every_node_gets_a_copy_by_sends)
{
    begin(3);
    every_node_gets_a_copy();
}

Test(broadcast, every_node_gets_a_copy_by_gloo)
{
    begin_gloo(3);
    every_node_gets_a_copy();
}

/* From all nodes at the same time, several each, with fetches in both directions between. */
static void many_at_a_time(void)
{
    enum { EACH = 4 };
    struct rdt_ref refs[3][EACH];
    rdt_request *requests[3][EACH];

    must_ok(form(actor_of[0], "g", 3, &err));
    for (unsigned i = 0; i < 3; i++)
        for (unsigned k = 0; k < EACH; k++)
            refs[i][k] = put_snapshot(actor_of[i], 2 * MIB + k, i * EACH + k);
    for (unsigned k = 0; k < EACH; k++)
        for (unsigned i = 0; i < 3; i++)
            must_ok(rdt_broadcast_start(actor_of[i], &refs[i][k], "g", LONG, &requests[i][k], &err));
    for (unsigned i = 0; i < 3; i++)
        move(i, (i + 1) % 3, "g", 2 * MIB);
    for (unsigned i = 0; i < 3; i++) {
        must_ok(rdt_wait(actor_of[i], requests[i], EACH, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
        for (unsigned k = 0; k < EACH; k++) {
            rdt_request_destroy(requests[i][k]);
            for (unsigned to = 0; to < 3; to++)
                read_copy(actor_of[to], &refs[i][k], 2 * MIB + k, i * EACH + k, "local/share");
            must_ok(rdt_free(actor_of[i], &refs[i][k], false, &err));
        }
    }
    must(group_is(actor_of[0], "g", "ready", 1));
    finish("g", NULL);
}

Test(broadcast, many_at_a_time_by_sends)
{
    begin(3);
    many_at_a_time();
}

Test(broadcast, many_at_a_time_by_gloo)
{
    begin_gloo(3);
    many_at_a_time();
}

Test(broadcast, node_that_has_it_already_gets_no_bytes)
{
    begin_gloo(3);
    must_ok(form(actor_of[0], "g", 3, &err));
    struct rdt_ref ref = put_snapshot(actor_of[0], 3 * MIB, 5);
    read_copy(actor_of[1], &ref, 3 * MIB, 5, NULL);
    must_ok(broadcast(0, &ref, "g", &err));
    must(done_by_group(2, "in") == 1 && done_by_group(1, "in") == 1); /* node 1 has fetched it before */
    read_copy(actor_of[2], &ref, 3 * MIB, 5, "local/share");
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", NULL);
}

/* Nodes that are still receiving pass it on, so the bytes leave their node once although three nodes want them. */
Test(broadcast, large_object_leaves_its_node_once)
{
    enum { BYTES = 4 * MIB };

    begin_groups(4, "grouped",
                 &(struct cluster_options){
                     .grouped = true,
                     .no_ucx = true,
                     .flags = (const char *const[]){"--chunk=64KiB", "--fanout-min=1MiB", "--peer-timeout=30s", NULL}});
    must_ok(form(actor_of[0], "g", 4, &err));
    struct rdt_ref ref = put_snapshot(actor_of[0], BYTES, 1);
    struct node_status before = node_now(&c.node[0]);
    must_ok(broadcast(0, &ref, "g", &err));
    for (unsigned i = 1; i < 4; i++)
        read_copy(actor_of[i], &ref, BYTES, 1, "local/share");
    cluster_expect_idle_of_transfers(&c);
    struct node_status after = node_now(&c.node[0]);
    must_say(after.bytes_out - before.bytes_out < 2 * (BYTES + BYTES / 2), "%llu bytes left the node",
             (unsigned long long)(after.bytes_out - before.bytes_out));
    must(after.redirected >= 2);
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", NULL);
}

/* The group's transport is slower than another one that both nodes have. */
Test(broadcast, object_travels_by_the_fastest_transport)
{
    struct transfer_view views[32];

    begin_groups(2, "grouped",
                 &(struct cluster_options){
                     .grouped = true, .no_ucx = true, .stream = true, .flags = (const char *const[]){"--chunk=64KiB", NULL}});
    must_ok(form(actor_of[0], "g", 2, &err));
    struct rdt_ref ref = put_snapshot(actor_of[0], MIB, 1);
    must_ok(broadcast(0, &ref, "g", &err));
    unsigned n = transfers_of(&c.node[1], views, 32);
    must(n > 0 && strcmp(views[0].direction, "in") == 0 && strcmp(views[0].path, "stream") == 0);
    read_copy(actor_of[1], &ref, MIB, 1, "local/share");
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", NULL);
}

/* ---- what it refuses ---- */

Test(broadcast, wrong_calls_are_refused_and_say_what_to_do)
{
    begin(3);
    must_ok(form(actor_of[0], "g", 2, &err));
    struct rdt_ref live = put_pattern(actor_of[0], NULL, MIB, 1);
    struct rdt_ref snapshot = put_snapshot(actor_of[0], MIB, 1);
    struct rdt_ref there = put_snapshot(actor_of[1], MIB, 1);
    must_refuse(RDT_INVALID, "RDT_PUT_SNAPSHOT", broadcast(0, &live, "g", &err));
    must_refuse(RDT_UNSUPPORTED, "another node", broadcast(0, &there, "g", &err));
    must_refuse(RDT_NOT_FOUND, "group \"h\"", broadcast(0, &snapshot, "h", &err));
    must_refuse(RDT_INVALID, "name of a group", broadcast(0, &snapshot, "", &err));
    there = put_snapshot(actor_of[2], MIB, 1);
    must_refuse(RDT_NOT_FOUND, "no member in a group \"g\"", broadcast(2, &there, "g", &err));
    must_ok(rdt_free(actor_of[0], &snapshot, false, &err));
    must_refuse(RDT_FREED, "", broadcast(0, &snapshot, "g", &err));
    must(group_is(actor_of[0], "g", "ready", 1));
    must_ok(rdt_free(actor_of[0], &live, false, &err));
    finish("g", NULL);
}

Test(broadcast, copy_that_a_node_may_not_keep_names_it)
{
    const char *few[] = {"--replicas-max=1MiB", NULL};
    struct rdt_error why;

    begin_groups(
        3, "grouped",
        &(struct cluster_options){
            .grouped = true, .no_ucx = true, .flags = (const char *const[]){"--chunk=64KiB", NULL}, .flags_of = {[2] = few}});
    must_ok(form(actor_of[0], "g", 3, &err));
    struct rdt_ref ref = put_snapshot(actor_of[0], 2 * MIB, 1);
    must_be(RDT_LIMIT, broadcast(0, &ref, "g", &why));
    must_say(strstr(why.msg, "replicas_max") && strstr(why.msg, c.node[2].address), "%s", why.msg);
    read_copy(actor_of[1], &ref, 2 * MIB, 1, "local/share"); /* that node has the replica all the same */
    wait_until(10 * SEC, copies_of(&ref) == 1);              /* and nobody is sent to the other for it */
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", NULL);
}

/* ---- ends ---- */

Test(broadcast, deadline_and_cancel_release_the_caller_and_leave_nothing)
{
    rdt_request *request;

    begin_with(3, PATIENT);
    must_ok(form(actor_of[0], "g", 3, &err));
    struct rdt_ref ref = put_snapshot(actor_of[0], 2 * MIB, 1);
    set_faults("delay_ms=100\n");
    must_come_too_late(&ref, 400 * MSEC, "was not complete in time");
    must_ok(rdt_broadcast_start(actor_of[0], &ref, "g", RDT_FOREVER, &request, &err));
    await_engine(&c.node[1]);
    rdt_cancel(request);
    must_be(RDT_CANCELLED, rdt_request_status(request, &err));
    rdt_request_destroy(request);
    cluster_expect_idle_of_transfers(&c);
    set_faults("");
    for (unsigned i = 0; i < 3; i++)
        must(group_is(actor_of[i], "g", "ready", 1));
    must_ok(broadcast(0, &ref, "g", &err));
    read_copy(actor_of[1], &ref, 2 * MIB, 1, "local/share");
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", NULL);
}

/* A client that fetches the object during a broadcast gets it although the broadcast is given up, also a client that is no
 * member and so could not have begun this transfer. */
static void fetch_survives(const char *client)
{
    rdt_request *request, *fetch;

    begin(2);
    must_ok(form(actor_of[0], "g", 2, &err));
    rdt *reader = node_client(&c.node[1], client);
    struct rdt_ref ref = put_snapshot(actor_of[0], 2 * MIB, 1);
    set_faults("delay_ms=50\n");
    must_ok(rdt_broadcast_start(actor_of[0], &ref, "g", LONG, &request, &err));
    await_engine(&c.node[1]);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
    must_ok(rdt_fetch_start(reader, &ref, 1, &options, &fetch, &err));
    must_ok(rdt_ping(reader, LONG, &err)); /* the fetch has joined the broadcast */
    rdt_request_destroy(request);
    must_ok(rdt_wait(reader, &fetch, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(fetch);
    set_faults("");
    read_copy(reader, &ref, 2 * MIB, 1, "local/share");
    rdt_close(reader);
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", NULL);
}

Test(broadcast, fetch_that_waits_for_the_same_copy_survives_its_end)
{
    fetch_survives("a1");
}

Test(broadcast, fetch_of_no_member_survives_its_end_too)
{
    fetch_survives("bystander");
}

static void dead_node_is_named(void)
{
    struct rdt_error why;

    must_ok(form(actor_of[1], "g", 3, &err)); /* the coordinator is neither the root nor the one that dies */
    must_ok(form(actor_of[0], "two", 2, &err));
    struct rdt_ref ref = put_snapshot(actor_of[0], 2 * MIB, 1); /* the others have it within a second */
    struct rdt_ref other = put_snapshot(actor_of[0], MIB, 2);
    must_ok(broadcast(0, &other, "g", &err));
    node_freeze(&c.node[2]);
    must_come_too_late(&ref, SEC, c.node[2].address);
    node_kill(&c.node[2], SIGKILL);
    enum rdt_status status = broadcast(0, &ref, "g", &why);
    must_say(status == RDT_PEER_LOST || status == RDT_TRANSPORT || status == RDT_NO_PATH, "%s", rdt_status_name(status));
    must_say(strstr(why.msg, c.node[2].address), "%s", why.msg);
    must_ok(rdt_broadcast(actor_of[0], &ref, "two", LONG, &err)); /* others are not disturbed */
    read_copy(actor_of[1], &ref, 2 * MIB, 1, "local/share");
    rdt_close(actor_of[2]);
    cluster_restart(&c, 2);
    actor_of[2] = node_client(&c.node[2], "a2");
    for (unsigned i = 0; i < 3; i++)
        await_group(i, "g", "ready", 0);
    must_ok(broadcast(0, &ref, "g", &err));
    read_copy(actor_of[2], &ref, 2 * MIB, 1, "local/share");
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    must_ok(rdt_free(actor_of[0], &other, false, &err));
    must_ok(rdt_group_destroy(actor_of[0], "two", &err));
    finish("g", with_losses);
}

Test(broadcast, dead_node_is_named_by_sends)
{
    begin(3);
    dead_node_is_named();
}

Test(broadcast, dead_node_is_named_by_gloo)
{
    begin_gloo(3);
    dead_node_is_named();
}

static bool asks_again_late(const struct rdt_ref *there)
{
    struct peer_view view;
    struct rdt_stat stat;

    must(rdt_stat(actor_of[0], there, &stat, NULL) != RDT_OK);
    return peer_seen(&c.node[0], &c.node[2], &view) && view.retry_in_ns > 1500 * MSEC;
}

/* The group is ready as soon as its coordinator is connected to the node again, whatever this node knew of it before. */
Test(broadcast, ready_group_reaches_a_node_that_is_back)
{
    struct rdt_stat stat;
    rdt_object *object;

    begin(3);
    must_ok(form(actor_of[1], "g", 3, &err));
    struct rdt_ref ref = put_snapshot(actor_of[0], MIB, 1);
    struct rdt_ref known = ref_on(&c.node[2], "nobody");
    node_kill(&c.node[2], SIGKILL);
    rdt_close(actor_of[2]);
    wait_until(30 * SEC, asks_again_late(&known));
    cluster_restart(&c, 2);
    actor_of[2] = node_client(&c.node[2], "a2");
    known = ref_on(&c.node[1], "nobody");
    must_be(RDT_NOT_FOUND, rdt_stat(actor_of[2], &known, &stat, &err)); /* the coordinator has it back */
    await_group(0, "g", "ready", 0);
    struct rdt_ref there = put_pattern(actor_of[2], NULL, MIB, 3);
    must_ok(broadcast(0, &ref, "g", &err));
    read_copy(actor_of[2], &ref, MIB, 1, "local/share");
    must_ok(fetch_by(actor_of[0], &there, by, "g", &object, &err));
    rdt_release(object);
    must_ok(rdt_free(actor_of[2], &there, false, &err));
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", with_losses);
}

/* Broadcasts are cancelled at all moments. The group stays, and the next broadcast is right. */
Test(broadcast, cancelled_at_any_moment_by_gloo)
{
    enum { ROUNDS = 40 };

    begin_gloo_with(3, PATIENT);
    must_ok(form(actor_of[0], "g", 3, &err));
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rdt_ref ref = put_snapshot(actor_of[round % 3], 2 * MIB, round);
        rdt_request *request;
        struct rdt_error why;
        must_ok(rdt_broadcast_start(actor_of[round % 3], &ref, "g", (int64_t)round * MSEC / 4 + 1, &request, &err));
        enum rdt_status status = rdt_wait(actor_of[round % 3], &request, 1, 1, LONG, NULL, NULL, &why);
        must_say(status == RDT_OK || status == RDT_TIMED_OUT, "%s: %s", rdt_status_name(status), why.msg);
        rdt_request_destroy(request);
        must_ok(broadcast(round % 3, &ref, "g", &err));
        read_copy(actor_of[(round + 1) % 3], &ref, 2 * MIB, round, "local/share");
        read_copy(actor_of[(round + 2) % 3], &ref, 2 * MIB, round, "local/share");
        must_ok(rdt_free(actor_of[round % 3], &ref, false, &err));
    }
    must(group_is(actor_of[0], "g", "ready", 1));
    finish("g", NULL);
}

/* The root cannot reach one node of the group, which is ready without that link: the others get their replicas. */
Test(broadcast, node_that_the_root_cannot_reach_keeps_nobody_waiting)
{
    static char nodes_file[160], flag[200];
    const char *const flags_of_root[] = {flag, NULL};
    const char *tmp = getenv("TMPDIR");
    struct rdt_error why;

    (void)snprintf(nodes_file, sizeof nodes_file, "%.100s/nodes.%d", tmp ? tmp : "/tmp", (int)getpid());
    (void)snprintf(flag, sizeof flag, "--nodes=%s", nodes_file);
    FILE *file = fopen(nodes_file, "we");
    must(file && fclose(file) == 0);
    begin_groups(3, "grouped",
                 &(struct cluster_options){.grouped = true,
                                           .no_ucx = true,
                                           .no_meeting = true,
                                           .flags = (const char *const[]){"--chunk=64KiB", NULL},
                                           .flags_of = {flags_of_root}});
    rdt_close(actor_of[0]);
    node_kill(&c.node[0], SIGKILL);
    file = fopen(nodes_file, "we");
    must(file && fprintf(file, "dead 127.0.0.1:1 %s\n", c.node[2].uuid) > 0 && fclose(file) == 0);
    cluster_restart(&c, 0);
    actor_of[0] = node_client(&c.node[0], "a0");
    must_ok(form(actor_of[1], "g", 3, &err));
    struct rdt_ref ref = put_snapshot(actor_of[0], MIB, 1);
    must_be(RDT_PEER_LOST, broadcast(0, &ref, "g", &why));
    must_say(strstr(why.msg, "dead"), "%s", why.msg);
    read_copy(actor_of[1], &ref, MIB, 1, "local/share");
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", (const char *const[]){"127.0.0.1:1", "dead", NULL});
}

/* ---- rdtctl ---- */

Test(broadcast, ctl_does_it)
{
    char text[RDT_REF_TEXT_BYTES], command[1024];

    begin(2);
    must_ok(form(actor_of[0], "g", 2, &err));
    struct rdt_ref ref = put_snapshot(actor_of[0], MIB, 1);
    rdt_ref_to_text(&ref, text);
    (void)snprintf(command, sizeof command, "%s --socket %s broadcast '%s' g | grep -q 'is on every node of group g'",
                   build_path("rdtctl"), c.node[0].socket, text);
    must(system(command) == 0);
    read_copy(actor_of[1], &ref, MIB, 1, "local/share");
    (void)snprintf(command, sizeof command, "%s --socket %s broadcast '%s' h 2>&1 | grep -q 'no member in a group'",
                   build_path("rdtctl"), c.node[0].socket, text);
    must(system(command) == 0);
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", NULL);
}
