/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcasts to groups of daemons: over "grouped", which has no broadcast of its own, so the root sends to each node, and
 * over Gloo, which passes chunks on from node to node. */
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

/* false: Gloo was not there when this was built. */
static bool begin_gloo_with(unsigned n, const char *grace)
{
    const char *flags[] = {"--chunk=64KiB", "--chunks-in-flight=2", grace, "--stall-timeout=5s", NULL};
    FILE *file = fopen(build_path("backends/rdt_gloo.so"), "re");

    if (!file) {
        cr_skip_test("libgloo-dev was not there when this was built");
        return false;
    }
    (void)fclose(file);
    begin_groups(n, "gloo", &(struct cluster_options){.flags = flags});
    return true;
}

static bool begin_gloo(unsigned n)
{
    return begin_gloo_with(n, "--quiesce-grace=500ms");
}

static void set_faults(const char *lines)
{
    for (unsigned i = 0; i < c.n; i++)
        cluster_faults(&c, i, lines);
}

/* Two tensors, one of them with holes, so that some chunks are gathered. */
static struct rdt_ref put_snapshot(rdt *conn, size_t bytes, uint32_t seed)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *data = malloc(bytes);
    struct rdt_tensor tensors[] = {
        {.dtype = RDT_U8, .ndim = 1, .shape = (int64_t[]){(int64_t)bytes}, .data = data},
        {.dtype = RDT_U8, .ndim = 1, .shape = (int64_t[]){(int64_t)bytes / 2}, .strides = (int64_t[]){2}, .data = data},
    };
    struct rdt_ref ref;

    must(data);
    fill_pattern(data, bytes, seed);
    options.flags = RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(conn, tensors, 2, &options, &ref, &err));
    free(data);
    return ref;
}

/* The client reads the right bytes, and from a replica on its node. */
static void read_copy(rdt *conn, const struct rdt_ref *ref, size_t bytes, uint32_t seed, const char *path)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    uint8_t *expected = malloc(bytes);
    const uint8_t *half;
    rdt_object *object;

    must(expected);
    fill_pattern(expected, bytes, seed);
    options.timeout_ns = LONG;
    must_ok(rdt_fetch(conn, ref, 1, &options, &object, &err));
    if (path)
        must_go_by(path, object);
    must(memcmp(tensor_of(object, 0).data, expected, bytes) == 0);
    half = tensor_of(object, 1).data;
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

/* Was the latest transfer to or from there part of a broadcast of the transport's own? */
static bool went_together(unsigned node, const char *direction)
{
    struct transfer_view views[32];
    unsigned n = transfers_of(&c.node[node], views, 32);

    for (unsigned i = 0; i < n; i++)
        if (strcmp(views[i].direction, direction) == 0)
            return strcmp(views[i].path, by) == 0 && strcmp(views[i].lanes, "broadcast") == 0;
    return false;
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
    FILE *answer;

    rdt_ref_to_text(ref, text);
    (void)snprintf(command, sizeof command, "%s --socket %s stat '%s' | grep -c 'node .* has a replica of it'",
                   build_path("rdtctl"), c.node[0].socket, text);
    answer = popen(command, "re");
    must(answer && fscanf(answer, "%u", &n) == 1);
    (void)pclose(answer);
    return n;
}

/* ---- what it does ---- */

static void every_node_gets_a_copy(bool together)
{
    static const size_t sizes[] = {1, 100, 64 * KIB, 3 * MIB + 7};
    rdt_object *object;
    rdt *bystander;

    must_ok(form(actor_of[0], "g", 3, &err));
    bystander = node_client(&c.node[2], "bystander"); /* of no group */
    for (unsigned from = 0; from < 3; from++)
        for (unsigned k = 0; k < 4; k++) {
            uint32_t seed = from * 4 + k;
            struct rdt_ref ref = put_snapshot(actor_of[from], sizes[k], seed);
            must_ok(broadcast(from, &ref, "g", &err));
            must(went_together(from, "out") == together && went_together((from + 1) % 3, "in") == together);
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
    every_node_gets_a_copy(false);
}

Test(broadcast, every_node_gets_a_copy_by_gloo)
{
    if (begin_gloo(3))
        every_node_gets_a_copy(true);
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
    if (begin_gloo(3))
        many_at_a_time();
}

Test(broadcast, node_that_has_it_already_gets_no_bytes)
{
    struct rdt_ref ref;

    if (!begin_gloo(3))
        return;
    must_ok(form(actor_of[0], "g", 3, &err));
    ref = put_snapshot(actor_of[0], 3 * MIB, 5);
    read_copy(actor_of[1], &ref, 3 * MIB, 5, NULL);
    must_ok(broadcast(0, &ref, "g", &err));
    must(!went_together(2, "in")); /* for it cannot be done by all */
    read_copy(actor_of[2], &ref, 3 * MIB, 5, "local/share");
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", NULL);
}

/* ---- what it refuses ---- */

Test(broadcast, wrong_calls_are_refused_and_say_what_to_do)
{
    struct rdt_ref live, snapshot, there;

    begin(3);
    must_ok(form(actor_of[0], "g", 2, &err));
    live = put_pattern(actor_of[0], NULL, MIB, 1);
    snapshot = put_snapshot(actor_of[0], MIB, 1);
    there = put_snapshot(actor_of[1], MIB, 1);
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
    struct rdt_ref ref;

    begin_groups(
        3, "grouped",
        &(struct cluster_options){
            .grouped = true, .no_ucx = true, .flags = (const char *const[]){"--chunk=64KiB", NULL}, .flags_of = {[2] = few}});
    must_ok(form(actor_of[0], "g", 3, &err));
    ref = put_snapshot(actor_of[0], 2 * MIB, 1);
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
    struct rdt_ref ref;
    rdt_request *request;

    begin_with(3, PATIENT);
    must_ok(form(actor_of[0], "g", 3, &err));
    ref = put_snapshot(actor_of[0], 2 * MIB, 1);
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

/* A client that fetches the object during a broadcast gets it although the broadcast is given up, by the path that the
 * fetch would have taken alone. */
static void fetch_survives(bool stream)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_request *request, *fetch;
    struct rdt_ref ref;

    begin_groups(2, "grouped",
                 &(struct cluster_options){.grouped = true,
                                           .no_ucx = true,
                                           .stream = stream,
                                           .flags = (const char *const[]){"--chunk=64KiB", "--chunks-in-flight=2", NULL}});
    must_ok(form(actor_of[0], "g", 2, &err));
    ref = put_snapshot(actor_of[0], 2 * MIB, 1);
    set_faults("delay_ms=50\n");
    must_ok(rdt_broadcast_start(actor_of[0], &ref, "g", LONG, &request, &err));
    await_engine(&c.node[1]);
    options.timeout_ns = LONG;
    must_ok(rdt_fetch_start(actor_of[1], &ref, 1, &options, &fetch, &err));
    must_ok(rdt_ping(actor_of[1], LONG, &err)); /* the fetch has joined the broadcast */
    rdt_request_destroy(request);
    must_ok(rdt_wait(actor_of[1], &fetch, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(fetch);
    set_faults("");
    read_copy(actor_of[1], &ref, 2 * MIB, 1, "local/share");
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", NULL);
}

Test(broadcast, fetch_that_waits_for_the_same_copy_survives_its_end)
{
    fetch_survives(true);
}

Test(broadcast, fetch_that_waits_for_the_same_copy_goes_on_in_its_clients_group)
{
    fetch_survives(false);
}

static void dead_node_is_named(void)
{
    struct rdt_ref ref, other;
    struct rdt_error why;
    enum rdt_status status;

    must_ok(form(actor_of[1], "g", 3, &err)); /* the coordinator is neither the root nor the one that dies */
    must_ok(form(actor_of[0], "two", 2, &err));
    ref = put_snapshot(actor_of[0], 2 * MIB, 1); /* the others have it within a second */
    other = put_snapshot(actor_of[0], MIB, 2);
    must_ok(broadcast(0, &other, "g", &err));
    node_freeze(&c.node[2]);
    must_come_too_late(&ref, SEC, c.node[2].address);
    node_kill(&c.node[2], SIGKILL);
    status = broadcast(0, &ref, "g", &why);
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
    if (begin_gloo(3))
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
    struct rdt_ref ref, there, known;
    struct rdt_stat stat;
    rdt_object *object;

    begin(3);
    must_ok(form(actor_of[1], "g", 3, &err));
    ref = put_snapshot(actor_of[0], MIB, 1);
    known = ref_on(&c.node[2], "nobody");
    node_kill(&c.node[2], SIGKILL);
    rdt_close(actor_of[2]);
    wait_until(30 * SEC, asks_again_late(&known));
    cluster_restart(&c, 2);
    actor_of[2] = node_client(&c.node[2], "a2");
    known = ref_on(&c.node[1], "nobody");
    must_be(RDT_NOT_FOUND, rdt_stat(actor_of[2], &known, &stat, &err)); /* the coordinator has it back */
    await_group(0, "g", "ready", 0);
    there = put_pattern(actor_of[2], NULL, MIB, 3);
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

    if (!begin_gloo_with(3, PATIENT))
        return;
    must_ok(form(actor_of[0], "g", 3, &err));
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rdt_ref ref = put_snapshot(actor_of[round % 3], 2 * MIB, round);
        rdt_request *request;
        struct rdt_error why;
        enum rdt_status status;
        must_ok(rdt_broadcast_start(actor_of[round % 3], &ref, "g", (int64_t)round * MSEC / 4 + 1, &request, &err));
        status = rdt_wait(actor_of[round % 3], &request, 1, 1, LONG, NULL, NULL, &why);
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

/* ---- where the transport has a broadcast of its own, and it moves nothing ---- */

static void begin_with_broadcasts(const char *const *flags, const char *const *flags_of_root, bool no_meeting)
{
    static const char *const env[] = {"GROUPED_BROADCASTS=yes", NULL};

    begin_groups(3, "grouped",
                 &(struct cluster_options){.grouped = true,
                                           .no_ucx = true,
                                           .no_meeting = no_meeting,
                                           .flags = flags,
                                           .flags_of = {flags_of_root},
                                           .env_of = {env, env, env}});
}

/* The root cannot take back what it has posted, so its memory stays in quarantine until the group is formed again. */
Test(broadcast, cancelled_operations_end_although_nothing_moves)
{
    struct rdt_ref ref;

    begin_with_broadcasts(
        (const char *const[]){"--chunk=64KiB", "--chunks-in-flight=2", "--quiesce-grace=300ms", "--stall-timeout=2m", NULL},
        NULL, false);
    must_ok(form(actor_of[0], "g", 3, &err));
    ref = put_snapshot(actor_of[0], 2 * MIB, 1);
    must_be(RDT_TIMED_OUT, rdt_broadcast(actor_of[0], &ref, "g", 400 * MSEC, &err));
    for (unsigned i = 0; i < 3; i++)
        await_group(i, "g", "ready", 2);
    cluster_expect_idle_of_transfers(&c);
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    must_ok(rdt_wait_freed(actor_of[0], &ref, LONG, &err));
    finish("g", rebuilt);
}

/* The root cannot reach one node of the group, which is ready without that link: the others need not wait for
 * what it will never post. */
Test(broadcast, node_that_the_root_cannot_reach_keeps_nobody_waiting)
{
    static char nodes_file[160], flag[200];
    const char *const flags_of_root[] = {flag, NULL};
    const char *tmp = getenv("TMPDIR");
    struct rdt_error why;
    struct rdt_ref ref;
    int64_t since;
    FILE *file;

    (void)snprintf(nodes_file, sizeof nodes_file, "%.100s/nodes.%d", tmp ? tmp : "/tmp", (int)getpid());
    (void)snprintf(flag, sizeof flag, "--nodes=%s", nodes_file);
    file = fopen(nodes_file, "we");
    must(file && fclose(file) == 0);
    begin_with_broadcasts((const char *const[]){"--chunk=64KiB", "--stall-timeout=2m", NULL}, flags_of_root, true);
    rdt_close(actor_of[0]);
    node_kill(&c.node[0], SIGKILL);
    file = fopen(nodes_file, "we");
    must(file && fprintf(file, "dead 127.0.0.1:1 %s\n", c.node[2].uuid) > 0 && fclose(file) == 0);
    cluster_restart(&c, 0);
    actor_of[0] = node_client(&c.node[0], "a0");
    must_ok(form(actor_of[1], "g", 3, &err));
    ref = put_snapshot(actor_of[0], MIB, 1);
    since = now_ns();
    must_be(RDT_PEER_LOST, broadcast(0, &ref, "g", &why));
    must_say(strstr(why.msg, "dead"), "%s", why.msg);
    must_be_within(since, 30 * SEC); /* half of stall_timeout is longer */
    read_copy(actor_of[1], &ref, MIB, 1, "local/share");
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    finish("g", (const char *const[]){"127.0.0.1:1", "dead", NULL});
}

/* ---- rdtctl ---- */

Test(broadcast, ctl_does_it)
{
    char text[RDT_REF_TEXT_BYTES], command[1024];
    struct rdt_ref ref;

    begin(2);
    must_ok(form(actor_of[0], "g", 2, &err));
    ref = put_snapshot(actor_of[0], MIB, 1);
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
