/* SPDX-License-Identifier: Apache-2.0 */
/* Two and three daemons over the test transport: one-sided reads and two-sided messages, and how its failures, delays and
 * losses appear to clients. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/nodes/pair.h"

TestSuite(loopback, .timeout = 240);

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

static const char *const rebuilt[] = {"taken down and rebuilt", NULL};

/* sided: "one", "two" or "both". Chunks of 64 KiB, so that little data takes many. */
static void begin(unsigned n, const char *sided, const char *further)
{
    char set[64];
    const char *flags[] = {"--chunk=64KiB", "--chunks-in-flight=2", "--quiesce-grace=300ms", set, further, NULL};

    (void)snprintf(set, sizeof set, "--set=loopback.sided=%s", sided);
    begin_pair(n, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
}

static void set_faults(const char *lines)
{
    for (unsigned i = 0; i < c.n; i++)
        cluster_faults(&c, i, lines);
}

/* Of each operation, as sanitizers lengthen what the test does meanwhile. */
static void set_delay(int64_t ns)
{
    char line[64];

    (void)snprintf(line, sizeof line, "delay_ms=%lld\n", (long long)(patience(ns) / MSEC));
    set_faults(line);
}

static bool both_see_loopback(void)
{
    struct peer_view here, there;

    return peer_seen(&c.node[0], &c.node[1], &there) && there.loopback && peer_seen(&c.node[1], &c.node[0], &here) &&
           here.loopback;
}

static const char *const sides[] = {"one", "two", "both"};

/* ---- bytes ---- */

static void check_sizes(const char *sided)
{
    static const size_t sizes[] = {0, 32 * KIB + 1, 64 * KIB, 64 * KIB + 1, 3 * MIB + 7};

    begin(2, sided, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct rdt_ref ref = put_pattern(owner, NULL, sizes[i], (uint32_t)i);
        fetch_pattern(reader, &ref, sizes[i], (uint32_t)i, sizes[i] == 0 ? "inline" : "loopback");
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    end(NULL);
}

Test(loopback, one_sided_sizes_arrive)
{
    check_sizes("one");
}

Test(loopback, two_sided_sizes_arrive)
{
    check_sizes("two");
}

/* Many tensors of many sizes in one object: small ones share a chunk when they are sent, none does when they
 * are read.
 */
static void check_mixed(const char *sided)
{
    enum { N = 400 };
    static struct rdt_tensor tensors[N];
    static int64_t shapes[N];
    size_t bytes = 0;
    uint64_t dice = 3;

    begin(2, sided, NULL);
    for (unsigned i = 0; i < N; i++) {
        shapes[i] = i % 50 == 0 ? 200000 + i : next_random(&dice) % 3000;
        bytes += (size_t)shapes[i];
    }
    uint8_t *memory = alloc_memory(owner, bytes);
    fill_pattern(memory, bytes, 2);
    for (unsigned i = 0; i < N; i++) {
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = &shapes[i], .data = memory};
        memory += shapes[i];
    }
    struct rdt_ref ref = put_as(owner, tensors, N, NULL);
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_go_by("loopback", object);
    for (unsigned i = 0; i < N; i++) {
        struct rdt_tensor tensor = tensor_of(object, i);
        must_say(tensors_equal(&tensor, &tensors[i]), "tensor %u", i);
    }
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(loopback, one_sided_mixed_sizes_arrive)
{
    check_mixed("one");
}

Test(loopback, two_sided_mixed_sizes_arrive)
{
    check_mixed("two");
}

/* Of the latest transfer in, why this path was not taken. */
static void check_reason(const char *path, const char *text)
{
    struct transfer_view view;

    must(transfers_of(&c.node[1], &view, 1) == 1);
    for (unsigned i = 0; i < view.n_candidates; i++)
        if (strcmp(view.candidates[i].path, path) == 0) {
            must_say(strstr(view.candidates[i].reason, text), "%s: %s", path, view.candidates[i].reason);
            return;
        }
    fail("%s was no candidate", path);
}

/* Reading takes memory as it lies: what has holes is sent, or refused where nothing sends. */
Test(loopback, strided_source_is_sent_never_read)
{
    for (unsigned i = 0; i < 3; i++) {
        const int64_t shape[] = {500, 400}, strides[] = {1, 500};
        struct rdt_tensor tensor = {RDT_F32, 2, shape, strides, NULL}, got;
        rdt_object *object;

        begin(2, sides[i], NULL);
        tensor.data = alloc_memory(owner, 500 * 400 * 4);
        fill_pattern(tensor.data, 500 * 400 * 4, 1);
        struct rdt_ref ref = put_one(owner, &tensor, NULL);
        if (strcmp(sides[i], "one") == 0) {
            must_be(RDT_NO_PATH, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
            check_reason("loopback", "holes");
        } else {
            object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
            got = tensor_of(object, 0);
            must(tensors_equal(&got, &tensor));
            rdt_release(object);
        }
        must_ok(rdt_free(owner, &ref, false, &err));
        end(NULL);
    }
}

/* Two-sided chunks of several small tensors are scattered into targets that are apart. */
Test(loopback, targets_apart_receive)
{
    enum { N = 50 };

    for (unsigned s = 0; s < 2; s++) {
        struct rdt_tensor source[N], target[N];
        const struct rdt_tensor *targets = target;
        size_t count = N;
        int64_t shapes[N];

        begin(2, sides[s], NULL);
        uint8_t *from = alloc_memory(owner, N * 4096);
        uint8_t *to = alloc_memory(reader, N * 8192);
        fill_pattern(from, N * 4096, 2);
        memset(to, CANARY_BYTE, N * 8192);
        for (unsigned i = 0; i < N; i++) {
            shapes[i] = 1000 + i * 60;
            source[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = &shapes[i], .data = from + 4096 * i};
            target[i] = source[i];
            target[i].data = to + 8192 * (N - 1 - i) + 100;
        }
        struct rdt_ref ref = put_as(owner, source, N, NULL);
        struct rdt_fetch_options options = {
            .struct_size = sizeof options, .targets = &targets, .target_counts = &count, .timeout_ns = LONG};
        rdt_object *object = fetch_as(reader, &ref, &options);
        must_go_by("loopback", object);
        for (unsigned i = 0; i < N; i++) {
            uint8_t *at = target[i].data;
            must(memcmp(at, source[i].data, (size_t)shapes[i]) == 0);
            must(is_filled_with(at - 100, 100, CANARY_BYTE) &&
                 is_filled_with(at + shapes[i], 4000 - (size_t)i * 60, CANARY_BYTE));
        }
        rdt_release(object);
        must_ok(rdt_free(owner, &ref, false, &err));
        end(NULL);
    }
}

Test(loopback, producer_prefers_it)
{
    uint8_t data[100000] = {7};
    struct rdt_tensor tensor = VECTOR(RDT_U8, sizeof data, data);
    bool said = false;

    begin_pair(2, &(struct cluster_options){.loopback = true});
    struct rdt_put_options options = {.struct_size = sizeof options, .transport = "loopback"};
    struct rdt_ref preferred = put_as(owner, &tensor, 1, &options);
    struct rdt_ref plain = put_one(owner, &tensor, NULL);
    rdt_object *object = fetch_one(reader, &preferred, RDT_FETCH_AUTO);
    must_go_by("loopback", object);
    struct transfer_view view = transfer_numbered(&c.node[1], info_of(object).transfer);
    for (unsigned i = 0; i < view.n_candidates; i++)
        said = said || (view.candidates[i].chosen && strstr(view.candidates[i].reason, "producer prefers it"));
    must(said);
    rdt_release(object);
    object = fetch_one(reader, &plain, RDT_FETCH_AUTO);
    must_go_by("ucx", object);
    rdt_release(object);
    /* A reader that knows its targets may start before it has heard of the preference. */
    {
        uint8_t *memory = alloc_memory(reader, sizeof data);
        struct rdt_tensor target = VECTOR(RDT_U8, sizeof data, memory);
        const struct rdt_tensor *targets = &target;
        size_t one = 1;
        struct rdt_fetch_options fetch = {
            .struct_size = sizeof fetch, .targets = &targets, .target_counts = &one, .timeout_ns = LONG};

        must_ok(rdt_fetch(reader, &preferred, 1, &fetch, &object, &err));
        must_go_by("loopback", object);
        must(memcmp(memory, data, sizeof data) == 0);
        rdt_release(object);
    }
    must_ok(rdt_free(owner, &preferred, false, &err));
    must_ok(rdt_free(owner, &plain, false, &err));
    end(NULL);
}

/* ---- failures ---- */

/* Where the n-th operation fails: at the reader (its reads or receives) or at the owner (its sends). */
static void check_failing(const char *sided, unsigned where, const char *fault, const char *says)
{
    rdt_object *object;
    char id[8];

    begin(2, sided, NULL);
    (void)snprintf(id, sizeof id, "%s", "w");
    struct rdt_ref ref = put_pattern(owner, id, MIB, 1);
    cluster_faults(&c, where, fault);
    must_refuse(RDT_TRANSPORT, says, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    bystander_round(&c, 3);
    cluster_faults(&c, where, "");
    cluster_expect_idle_of_transfers(&c); /* an aborted transfer may still take its connection down */
    wait_until(10 * SEC, both_see_loopback());
    fetch_pattern(reader, &ref, MIB, 1, "loopback");
    must_ok(rdt_free(owner, &ref, false, &err));
    end(rebuilt);
}

Test(loopback, failing_read_is_transport)
{
    check_failing("one", 1, "fail_every=5\n", "a failure was asked for");
}

Test(loopback, failing_receive_is_transport)
{
    check_failing("two", 1, "fail_every=5\n", "a failure was asked for");
}

Test(loopback, failing_send_is_transport)
{
    check_failing("two", 0, "fail_every=5\n", "a failure was asked for");
}

/* A transport may end by itself what nobody cancelled, and keep its connection. */
Test(loopback, read_that_it_gives_up_is_transport)
{
    check_failing("one", 1, "give_up_every=5\n",
                  "loopback: the transport cancelled an operation that the daemon had not cancelled");
}

Test(loopback, send_that_it_gives_up_is_transport)
{
    check_failing("two", 0, "give_up_every=5\n",
                  "at the owner: the transport cancelled an operation that the daemon had not cancelled");
}

/* An operation that never ends. */
static void check_lost(const char *sided, unsigned where)
{
    rdt_object *object;

    begin(2, sided, "--stall-timeout=400ms");
    struct rdt_ref ref = put_pattern(owner, NULL, MIB, 1);
    cluster_faults(&c, where, "lose_every=5\n");
    int64_t start = now_ns();
    must_refuse(RDT_TRANSPORT, "stall_timeout", try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must(now_ns() - start >= 400 * MSEC);
    must_be_within(start, 5 * SEC);
    bystander_round(&c, 3);
    cluster_faults(&c, where, "");
    wait_until(10 * SEC, pins_of(&c.node[0]) == 0 && pins_of(&c.node[1]) == 0);
    cluster_expect_idle_of_transfers(&c);
    wait_until(10 * SEC, both_see_loopback());
    fetch_pattern(reader, &ref, MIB, 1, "loopback");
    must_ok(rdt_free(owner, &ref, false, &err));
    end(rebuilt);
}

/* A transfer without progress is judged after its node was pinged; here the node is frozen. */
Test(loopback, frozen_owner_is_lost_and_has_not_stalled)
{
    begin(2, "two", "--stall-timeout=300ms");
    struct rdt_ref ref = put_pattern(owner, NULL, 4 * MIB, 1);
    set_faults("delay_ms=100\n");
    rdt_request *request = start_one(reader, &ref, LONG);
    await_engine(&c.node[1]);
    node_freeze(&c.node[0]);
    must_refuse(RDT_PEER_LOST, "", rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    node_thaw(&c.node[0]);
    set_faults("");
    cluster_meet(&c);
    must_ok(rdt_free(owner, &ref, false, &err));
    end((const char *const[]){"taken down and rebuilt", "lost", "goodbye", NULL});
}

Test(loopback, lost_read_stalls)
{
    check_lost("one", 1);
}

Test(loopback, lost_receive_stalls)
{
    check_lost("two", 1);
}

Test(loopback, lost_send_stalls)
{
    check_lost("two", 0);
}

/* Slow is not stalled. */
Test(loopback, slow_transfer_is_no_stall)
{
    for (unsigned i = 0; i < 2; i++) {
        begin(2, sides[i], "--stall-timeout=1s");
        struct rdt_ref ref = put_pattern(owner, NULL, 40 * 64 * KIB, 1);
        set_faults("delay_ms=60\n");
        fetch_pattern(reader, &ref, 40 * 64 * KIB, 1, "loopback");
        must_ok(rdt_free(owner, &ref, false, &err));
        end(NULL);
    }
}

/* Every one of many is either right or says what happened; nothing is left of those that failed. */
Test(loopback, random_failures_end_typed)
{
    enum { N = 40 };

    for (unsigned s = 0; s < 2; s++) {
        rdt_request *requests[N];
        struct rdt_ref refs[N];
        unsigned well = 0;

        begin(2, sides[s], "--stall-timeout=1s");
        for (unsigned i = 0; i < N; i++)
            refs[i] = put_pattern(owner, NULL, 70000 + 1000 * i, i);
        set_faults("fail_every=31\ndelay_ms=1\n");
        struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
        must_ok(rdt_fetch_start(reader, refs, N, &options, requests, &err));
        for (unsigned i = 0; i < N; i++) {
            enum rdt_status status = rdt_wait(reader, &requests[i], 1, 1, LONG, NULL, NULL, NULL);
            if (status == RDT_OK) {
                rdt_object *object;
                must_ok(rdt_request_take_object(requests[i], &object, &err));
                must(holds_pattern(tensor_of(object, 0).data, 70000 + 1000 * i, i));
                rdt_release(object);
                well++;
            } else {
                must_say(status == RDT_TRANSPORT || status == RDT_NO_PATH, "fetch %u: %s", i, rdt_status_name(status));
            }
            rdt_request_destroy(requests[i]);
        }
        must_say(well > 0 && well < N, "%u of %u ended well", well, N);
        set_faults("");
        cluster_expect_idle_of_transfers(&c);
        wait_until(10 * SEC, both_see_loopback());
        for (unsigned i = 0; i < N; i++)
            fetch_pattern(reader, &refs[i], 70000 + 1000 * i, i, "loopback");
        end(rebuilt);
    }
}

/* ---- turns ---- */

/* The small one is asked for when most of the big one is still to come, and ends first. */
Test(loopback, small_not_starved_by_big)
{
    for (unsigned i = 0; i < 2; i++) {
        struct transfer_view view;

        begin(2, sides[i], NULL);
        struct rdt_ref big = put_pattern(owner, NULL, 200 * 64 * KIB, 1);
        struct rdt_ref small = put_pattern(owner, NULL, 2 * 64 * KIB, 2);
        set_faults("delay_ms=40\n");
        rdt_request *slow = start_one(reader, &big, LONG);
        await_engine(&c.node[1]);
        rdt_request *quick = start_one(reader, &small, LONG);
        must_ok(rdt_wait(reader, &quick, 1, 1, LONG, NULL, NULL, &err));
        must_be(RDT_AGAIN, rdt_request_status(slow, &err));
        must(transfer_under_way(&c.node[1], "in", &view) && view.bytes_done < view.bytes / 2);
        set_faults("");
        must_ok(rdt_wait(reader, &slow, 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(slow);
        rdt_request_destroy(quick);
        must_ok(rdt_free(owner, &big, false, &err));
        must_ok(rdt_free(owner, &small, false, &err));
        end(NULL);
    }
}

/* ---- freed while it moves ---- */

struct waiting {
    const struct test_node *node;
    struct rdt_ref ref;
};

static int wait_freed(struct actor *self, void *arg)
{
    const struct waiting *waiting = arg;
    rdt *conn = node_client(waiting->node, "waiter");
    char done = 1;

    actor_step(self);
    must_ok(rdt_wait_freed(conn, &waiting->ref, LONG, &err));
    actor_send(self, &done, 1);
    rdt_close(conn);
    return 0;
}

/* wait_freed on either node returns only when the bytes have been read, so the reader does not see what is written
 * afterwards. */
Test(loopback, wait_freed_returns_after_transfer)
{
    const size_t bytes = 40 * 64 * KIB;

    for (unsigned i = 0; i < 2; i++) {
        struct waiting waiting[2];
        struct actor actors[2];
        struct rdt_stat stat;

        begin(2, sides[i], NULL);
        uint8_t *memory = alloc_memory(owner, bytes);
        fill_pattern(memory, bytes, 1);
        struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, memory);
        struct rdt_ref ref = put_one(owner, &tensor, NULL);
        set_delay(150 * MSEC); /* so that it outlasts what follows */
        rdt_request *request = start_one(reader, &ref, LONG);
        await_transfer(&c.node[0], "out", "sending");
        must_ok(rdt_free(owner, &ref, false, &err));
        for (unsigned k = 0; k < 2; k++) {
            waiting[k] = (struct waiting){&c.node[k], ref};
            actor_start(&actors[k], wait_freed, &waiting[k]);
            actor_await(&actors[k]);
        }
        wait_until(5 * SEC, rdt_stat(owner, &ref, &stat, NULL) != RDT_OK || stat.waiters == 2);
        must_be(RDT_TIMED_OUT, rdt_wait_freed(owner, &ref, 0, &err));
        must_be(RDT_TIMED_OUT, rdt_wait_freed_range(owner, memory, bytes, 20 * MSEC, &err));
        set_faults("");
        must_ok(rdt_wait_freed_range(owner, memory, bytes, LONG, &err));
        memset(memory, 0xbb, bytes);
        rdt_object *object = await_object(reader, request);
        must(holds_pattern(tensor_of(object, 0).data, bytes, 1));
        for (unsigned k = 0; k < 2; k++) {
            char done = 0;
            actor_recv(&actors[k], &done, 1);
            must(done == 1);
            actor_wait(&actors[k]);
        }
        rdt_release(object);
        rdt_request_destroy(request);
        end(NULL);
    }
}

Test(loopback, forced_free_during_fetch)
{
    const size_t bytes = 40 * 64 * KIB;

    for (unsigned i = 0; i < 2; i++) {
        rdt_object *object;

        begin(2, sides[i], NULL);
        struct rdt_ref ref = put_pattern(owner, NULL, bytes, 1);
        set_faults("delay_ms=15\n");
        rdt_request *request = start_one(reader, &ref, LONG);
        await_engine(&c.node[1]);
        must_ok(rdt_free(owner, &ref, true, &err));
        must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
        enum rdt_status status = rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, NULL);
        must_say(status == RDT_OK || status == RDT_FREED, "%s", rdt_status_name(status));
        if (status == RDT_OK) {
            must_ok(rdt_request_take_object(request, &object, &err));
            must(holds_pattern(tensor_of(object, 0).data, bytes, 1));
            rdt_release(object);
        }
        rdt_request_destroy(request);
        end(NULL);
    }
}

/* ---- the record ---- */

Test(loopback, failure_is_explained_on_both_ends)
{
    struct transfer_view in, views[8];
    struct rdt_error why;
    unsigned n, found = 0;

    begin(2, "two", NULL);
    struct rdt_ref ref = put_pattern(owner, NULL, 20 * 64 * KIB, 1);
    set_delay(1500 * MSEC);
    rdt_request *request = start_one(reader, &ref, patience(3 * SEC));
    await_engine(&c.node[1]);
    must(transfer_under_way(&c.node[1], "in", &in));
    must(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &why) == RDT_TIMED_OUT);
    must_say(strstr(why.msg, "of 1310720 bytes had arrived") || strstr(why.msg, "did not say"), "%s", why.msg);
    rdt_request_destroy(request);
    set_faults("");
    cluster_expect_idle_of_transfers(&c);
    in = transfer_numbered(&c.node[1], in.id);
    must_say((strcmp(in.state, "timed_out") == 0 || strcmp(in.state, "cancelled") == 0) &&
                 (strstr(in.error, "TIMED_OUT") || strstr(in.error, "CANCELLED")) && strcmp(in.path, "loopback") == 0,
             "%s: %s", in.state, in.error);
    must(in.bytes_done < in.bytes && in.n_candidates >= 4); /* gloo is one more where it is built */
    n = transfers_of(&c.node[0], views, 8);
    for (unsigned i = 0; i < n; i++)
        found += strcmp(views[i].direction, "out") == 0 && strcmp(views[i].state, "cancelled") == 0 &&
                 strstr(views[i].error, "reader has cancelled");
    must(found == 1);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(rebuilt);
}
