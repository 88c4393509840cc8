/* SPDX-License-Identifier: Apache-2.0 */
/* Objects on one node and readers on another: how requests end, who may make them, and which path they take. Over ucx, on
 * separate cables where the test may create them. */
#include <criterion/criterion.h>
#include <grp.h>
#include <signal.h>
#include <string.h>

#include "tests/integration/nodes/nodes_fixture.h"

TestSuite(nodes_ends, .timeout = 240);

/* ---- requests ---- */

Test(nodes_ends, wait_any_takes_first)
{
    struct rdt_ref refs[3], there;
    rdt_request *requests[3];
    struct rdt_fetch_options options = within(LONG);
    bool done[3];
    size_t n_done;

    begin(2);
    there = put_pattern(owner, "there", MIB, 3);
    refs[0] = ref_on(&c.node[0], "never");
    refs[1] = there;
    refs[2] = ref_on(&c.node[0], "neither");
    must_ok(rdt_fetch_start(reader, refs, 3, &options, requests, &err));
    must_ok(rdt_wait(reader, requests, 3, 1, LONG, done, &n_done, &err));
    must(n_done == 1 && !done[0] && done[1] && !done[2]);
    for (unsigned i = 0; i < 3; i++)
        rdt_request_destroy(requests[i]);
    must_ok(rdt_free(owner, &there, false, &err));
    end(NULL);
}

Test(nodes_ends, cancelled_while_parked)
{
    struct rdt_stat stat;

    begin(2);
    struct rdt_ref ref = ref_on(&c.node[0], "later");
    rdt_request *request = start_one(reader, &ref, LONG);
    rdt_request *other = start_one(reader, &ref, LONG);
    wait_until(5 * SEC, rdt_stat(owner, &ref, &stat, NULL) == RDT_OK && stat.waiters == 2);
    rdt_cancel(request);
    must_be(RDT_CANCELLED, rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    wait_until(5 * SEC, rdt_stat(owner, &ref, &stat, NULL) == RDT_OK && stat.waiters == 1);
    struct rdt_ref put = put_pattern(owner, "later", MIB, 1);
    must_ok(rdt_wait(reader, &other, 1, 1, LONG, NULL, NULL, &err)); /* the other transfer of it went on */
    rdt_request_destroy(request);
    rdt_request_destroy(other);
    must_ok(rdt_free(owner, &put, false, &err));
    end(NULL);
}

/* At any moment of it: at once, after the answer, while bytes move. */
Test(nodes_ends, cancelled_at_any_moment)
{
    const size_t bytes = 24 * MIB;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, bytes, 1);
    uint8_t *shared = alloc_memory(reader, bytes);
    for (unsigned i = 0; i < 40; i++) {
        struct rdt_tensor target = VECTOR(RDT_U8, bytes, shared);
        const struct rdt_tensor *targets = &target;
        size_t one = 1;
        struct rdt_fetch_options options = within(LONG);

        if (i % 2) {
            options.targets = &targets;
            options.target_counts = &one;
        }
        rdt_request *request = start_as(reader, &ref, &options);
        (void)rdt_wait(reader, &request, 1, 1, (int64_t)(i / 2) * MSEC / 2, NULL, NULL, NULL);
        rdt_cancel(request);
        enum rdt_status status = rdt_request_status(request, NULL);
        must(status == RDT_CANCELLED || status == RDT_OK);
        rdt_request_destroy(request);
        if (i % 2) { /* only then it is ours again */
            must_ok(rdt_wait_freed_range(reader, shared, bytes, LONG, &err));
            memset(shared, CANARY_BYTE, 4096);
            memset(shared + bytes - 4096, CANARY_BYTE, 4096);
            bystander_round(&c, 3);
            must(is_filled_with(shared, 4096, CANARY_BYTE) && is_filled_with(shared + bytes - 4096, 4096, CANARY_BYTE));
        }
    }
    must_ok(rdt_dealloc(reader, shared, &err));
    fetch_pattern(reader, &ref, bytes, 1, "ucx");
    must_ok(rdt_free(owner, &ref, false, &err));
    end((const char *const[]){"taken down and rebuilt", NULL});
}

/* ---- several at once ---- */

static void collect(rdt *conn, rdt_request **requests, unsigned n, size_t bytes, uint32_t seed)
{
    must_ok(rdt_wait(conn, requests, n, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    for (unsigned i = 0; i < n; i++) {
        rdt_object *object;
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        must(holds_pattern(tensor_of(object, 0).data, bytes, seed + i));
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
}

Test(nodes_ends, both_directions_at_once)
{
    enum { N = 10 };
    const size_t bytes = 4 * MIB + 17;
    struct rdt_ref there[N], here[N];
    rdt_request *in[N], *out[N];
    struct rdt_fetch_options options = within(LONG);

    begin(2);
    for (unsigned i = 0; i < N; i++) {
        there[i] = put_pattern(owner, NULL, bytes, 100 + i);
        here[i] = put_pattern(reader, NULL, bytes, 200 + i);
    }
    must_ok(rdt_fetch_start(reader, there, N, &options, in, &err));
    must_ok(rdt_fetch_start(owner, here, N, &options, out, &err));
    collect(reader, in, N, bytes, 100);
    collect(owner, out, N, bytes, 200);
    end(NULL);
}

Test(nodes_ends, ring_of_three)
{
    enum { N = 4 };
    const size_t bytes = 3 * MIB + 5;
    rdt *conns[3];
    struct rdt_ref refs[3][N];
    rdt_request *requests[3][N];
    struct rdt_fetch_options options = within(LONG);

    begin(3);
    for (unsigned i = 0; i < 3; i++) {
        conns[i] = node_client(&c.node[i], "ring");
        for (unsigned k = 0; k < N; k++)
            refs[i][k] = put_pattern(conns[i], NULL, bytes, 10 * i + k);
    }
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 3; i++)
            must_ok(rdt_fetch_start(conns[i], refs[(i + 1) % 3], N, &options, requests[i], &err));
        for (unsigned i = 0; i < 3; i++)
            collect(conns[i], requests[i], N, bytes, 10 * ((i + 1) % 3));
    }
    for (unsigned i = 0; i < 3; i++)
        rdt_close(conns[i]);
    end(NULL);
}

/* ---- ends ---- */

Test(nodes_ends, force_free_from_elsewhere)
{
    rdt_object *object, *held;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, "w", 100000, 1);
    held = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_be(RDT_DENIED, rdt_free(reader, &ref, false, &err)); /* the producer's hold is the producer's */
    must_ok(rdt_free(reader, &ref, true, &err));
    must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_be(RDT_FREED, try_fetch(owner, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must(holds_pattern(tensor_of(held, 0).data, 100000, 1));
    rdt_release(held);
    end(NULL);
}

struct producing {
    const struct test_node *node;
    uid_t uid;
    enum rdt_visibility visibility;
};

/* Puts one object and says its ref; stays until told or killed. */
static int produce(struct actor *self, void *arg)
{
    const struct producing *producing = arg;

    if (producing->uid != 0)
        must(setgroups(0, NULL) == 0 && setresgid(producing->uid, producing->uid, producing->uid) == 0 &&
             setresuid(producing->uid, producing->uid, producing->uid) == 0);
    rdt *conn = node_client(producing->node, "producer");
    struct rdt_ref ref = put_for(conn, producing->visibility);
    actor_send(self, &ref, sizeof ref);
    actor_await(self);
    rdt_close(conn);
    return 0;
}

/* Root may free everything where it is root: on its own node. A peer's word that root asks is as good as any
 * uid's. */
Test(nodes_ends, root_of_own_node_frees_by_force)
{
    struct rdt_ref ref;
    struct actor producer;
    rdt_object *object;

    open_the_way();
    begin(2);
    struct producing producing = {.uid = 1001, .visibility = RDT_VISIBLE_TO_ALL, .node = &c.node[0]};
    actor_start(&producer, produce, &producing);
    actor_recv(&producer, &ref, sizeof ref);
    fetch_pattern(reader, &ref, 100000, 1, "ucx");
    must_refuse(RDT_DENIED, "belongs to uid 1001", rdt_free(reader, &ref, true, &err));
    must_ok(rdt_free(owner, &ref, true, &err));
    must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    actor_step(&producer);
    actor_wait(&producer);
    end(NULL);
}

Test(nodes_ends, freed_is_told_across)
{
    rdt_object *object;
    struct rdt_stat stat;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, "w", 100000, 1);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_refuse(RDT_FREED, "\"w\"", try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_be(RDT_FREED, rdt_wait_put(reader, &ref, LONG, &err));
    must_be(RDT_FREED, rdt_stat(reader, &ref, &stat, &err));
    must_be(RDT_FREED, rdt_free(reader, &ref, true, &err));
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    end(NULL);
}

Test(nodes_ends, killed_producer_is_told_across)
{
    struct rdt_ref ref;
    struct actor producer;
    rdt_object *object, *held;
    struct rdt_stat stat;

    begin(2);
    struct producing producing = {.visibility = RDT_VISIBLE_TO_ALL, .node = &c.node[0]};
    actor_start(&producer, produce, &producing);
    actor_recv(&producer, &ref, sizeof ref);
    held = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    actor_kill(&producer, SIGKILL);
    wait_until(5 * SEC, rdt_stat(owner, &ref, &stat, NULL) == RDT_OWNER_DIED);
    must_be(RDT_OWNER_DIED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_be(RDT_OWNER_DIED, rdt_stat(reader, &ref, &stat, &err));
    must(holds_pattern(tensor_of(held, 0).data, 100000, 1));
    rdt_release(held);
    end(NULL);
}

Test(nodes_ends, wait_freed_across)
{
    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, 100000, 1);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(reader, &ref, 100 * MSEC, &err));
    fetch_pattern(reader, &ref, 100000, 1, "ucx");
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    end(NULL);
}

Test(nodes_ends, stat_and_wait_put_across)
{
    struct rdt_stat stat;

    begin(2);
    struct rdt_ref ref = ref_on(&c.node[0], "later");
    must_be(RDT_NOT_FOUND, rdt_stat(reader, &ref, &stat, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_put(reader, &ref, 100 * MSEC, &err));
    struct rdt_ref put = put_pattern(owner, "later", 12345, 1);
    must_ok(rdt_wait_put(reader, &ref, LONG, &err));
    must_ok(rdt_stat(reader, &ref, &stat, &err));
    must(stat.bytes == 12345 && stat.tensors == 1 && strcmp(stat.state, "live") == 0);
    must(stat.ref.generation == put.generation && memcmp(stat.ref.node, c.node[0].uuid_bytes, 16) == 0);
    must_ok(rdt_free(owner, &put, false, &err));
    end(NULL);
}

struct waiting_put {
    const struct test_node *node;
    struct rdt_ref ref;
};

static int wait_put(struct actor *self, void *arg)
{
    const struct waiting_put *waiting = arg;
    rdt *conn = node_client(waiting->node, "waiter");

    must_ok(rdt_wait_put(conn, &waiting->ref, LONG, &err));
    rdt_close(conn);
    return 0;
}

Test(nodes_ends, wait_put_across_until_put)
{
    struct actor waiter;
    struct rdt_stat stat;

    begin(2);
    struct waiting_put waiting = (struct waiting_put){&c.node[1], ref_on(&c.node[0], "later")};
    actor_start(&waiter, wait_put, &waiting);
    wait_until(5 * SEC, rdt_stat(owner, &waiting.ref, &stat, NULL) == RDT_OK && stat.waiters == 1);
    struct rdt_ref put = put_pattern(owner, "later", 10, 1);
    actor_wait(&waiter);
    must_ok(rdt_free(owner, &put, false, &err));
    end(NULL);
}

/* ---- paths ---- */

Test(nodes_ends, without_trusted_network_no_path)
{
    rdt_object *object;

    begin_with(2, &(struct cluster_options){.no_ucx = true});
    struct rdt_ref big = put_pattern(owner, NULL, 100000, 1);
    struct rdt_ref small = put_pattern(owner, NULL, 1000, 1);
    must_refuse(RDT_NO_PATH, "trusted_network", try_fetch(reader, &big, RDT_FETCH_AUTO, LONG, &object, &err));
    fetch_pattern(reader, &small, 1000, 1, "inline");
    must_ok(rdt_free(owner, &big, false, &err));
    must_ok(rdt_free(owner, &small, false, &err));
    end(NULL);
}

Test(nodes_ends, without_trust_on_one_node_no_path)
{
    static const char *const distrusts[] = {"--trusted-network=no", NULL};
    rdt_object *object;

    begin_with(2, &(struct cluster_options){.flags_of = {distrusts}, .no_meeting = true});
    struct rdt_ref there = put_pattern(owner, NULL, 100000, 1);
    struct rdt_ref here = put_pattern(reader, NULL, 100000, 1);
    must_refuse(RDT_NO_PATH, "other node", try_fetch(reader, &there, RDT_FETCH_AUTO, LONG, &object, &err));
    must_refuse(RDT_NO_PATH, "trusted_network", try_fetch(owner, &here, RDT_FETCH_AUTO, LONG, &object, &err));
    end(NULL);
}

Test(nodes_ends, wishes_are_kept_or_refused)
{
    static const struct {
        const char *transport, *least;
        size_t bytes;
        enum rdt_fetch_mode mode;
        enum rdt_status expected;
        const char *path; /* or what the refusal says */
    } rows[] = {
        {"ucx", NULL, 100, RDT_FETCH_AUTO, RDT_OK, "ucx"},
        {"UCX", NULL, 100000, RDT_FETCH_AUTO, RDT_OK, "ucx"},
        {"inline", NULL, 100, RDT_FETCH_AUTO, RDT_OK, "inline"},
        {"inline", NULL, 100000, RDT_FETCH_AUTO, RDT_NO_PATH, "too large to travel in the reply"},
        {"carrier-pigeon", NULL, 100, RDT_FETCH_AUTO, RDT_UNSUPPORTED, "ucx"},
        {NULL, "ucx", 100000, RDT_FETCH_AUTO, RDT_OK, "ucx"},
        {NULL, "inline", 100, RDT_FETCH_AUTO, RDT_OK, "inline"},
        {NULL, "inline", 100000, RDT_FETCH_AUTO, RDT_NO_PATH, "slower than inline"},
        {NULL, "share", 100, RDT_FETCH_AUTO, RDT_NO_PATH, "slower than share"},
        {NULL, "copy", 100000, RDT_FETCH_AUTO, RDT_NO_PATH, "slower than copy"},
        {NULL, "warp", 100, RDT_FETCH_AUTO, RDT_INVALID, "warp"},
        {NULL, NULL, 100, RDT_FETCH_SHARE, RDT_NO_PATH, "on another node"},
        {NULL, NULL, 100000, RDT_FETCH_COPY, RDT_OK, "ucx"},
    };

    begin(2);
    for (size_t i = 0; i < sizeof(rows) / sizeof rows[0]; i++) {
        struct rdt_ref ref = put_pattern(owner, NULL, rows[i].bytes, 1);
        struct rdt_fetch_options options = within(LONG);
        rdt_object *object;

        options.transport = rows[i].transport;
        options.least_path = rows[i].least;
        options.mode = rows[i].mode;
        if (rows[i].expected == RDT_OK) {
            must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
            must_go_by(rows[i].path, object);
            rdt_release(object);
        } else {
            must_refuse(rows[i].expected, rows[i].path, rdt_fetch(reader, &ref, 1, &options, &object, &err));
        }
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    end(NULL);
}

Test(nodes_ends, producers_transport_must_be_known)
{
    struct rdt_ref ref;

    begin(2);
    struct rdt_put_options options = {.struct_size = sizeof options, .transport = "carrier-pigeon"};
    must_refuse(RDT_UNSUPPORTED, "ucx", rdt_put(owner, NULL, 0, &options, &ref, &err));
    options.transport = "ucx";
    must_ok(rdt_put(owner, NULL, 0, &options, &ref, &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes_ends, explained_on_both_ends)
{
    struct transfer_view in, out[16];
    unsigned n, found = 0, chosen = 0;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, 100000, 1);
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    in = transfer_numbered(&c.node[1], info_of(object).transfer);
    must(strcmp(in.direction, "in") == 0 && strcmp(in.state, "done") == 0 && strcmp(in.path, "ucx") == 0);
    must(in.bytes == 100000 && in.bytes_done == 100000 && in.elapsed_ns > 0 && in.error[0] == '\0' &&
         in.n_candidates >= 3); /* gloo is one more where it is built */
    for (unsigned i = 0; i < in.n_candidates; i++) {
        must(in.candidates[i].reason[0] != '\0');
        chosen += in.candidates[i].chosen && strcmp(in.candidates[i].path, "ucx") == 0;
        if (strcmp(in.candidates[i].path, "inline") == 0)
            must(strstr(in.candidates[i].reason, "too large"));
    }
    must(chosen == 1);
    cluster_expect_idle_of_transfers(&c); /* the owner hears of the end later */
    n = transfers_of(&c.node[0], out, 16);
    for (unsigned i = 0; i < n; i++)
        found += strcmp(out[i].direction, "out") == 0 && strcmp(out[i].path, "ucx") == 0 && out[i].bytes_done == 100000 &&
                 out[i].error[0] == '\0';
    must(found > 0);
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

/* ---- no link ---- */

Test(nodes_ends, without_a_key_other_nodes_are_unsupported)
{
    struct test_node node;
    struct rdt_ref ref = ref_named("x");
    rdt_object *object;
    struct rdt_stat stat;

    node_start(&node, NULL);
    rdt *conn = node_client(&node, "test");
    memset(ref.node, 9, sizeof ref.node);
    (void)snprintf(ref.address, sizeof ref.address, "127.0.0.1:1");
    must_refuse(RDT_UNSUPPORTED, "key_file", try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_refuse(RDT_UNSUPPORTED, "key_file", rdt_stat(conn, &ref, &stat, &err));
    rdt_close(conn);
    node_end(&node, NULL);
}

Test(nodes_ends, unknown_node_without_address_is_not_found)
{
    struct rdt_ref ref = ref_named("x");
    rdt_object *object;

    begin(2);
    memset(ref.node, 9, sizeof ref.node);
    must_be(RDT_NOT_FOUND, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    end(NULL);
}
