/* SPDX-License-Identifier: Apache-2.0 */
/* Daemons over the test transport with one truly ordered queue per node: an operation moves only when those posted before
 * it have ended. Transfers in opposite directions arrive, and an operation that is stuck at the head delays the others only
 * until the daemon has removed it. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cluster.h"

TestSuite(ordered, .timeout = 240);

#define CHUNK ((size_t)64 << 10)
#define MAX_NODES 4

static struct cluster c;
static rdt *client[MAX_NODES];
static unsigned by_uuid[MAX_NODES]; /* the nodes, smallest uuid first */

static const char *const rebuilt[] = {"taken down and rebuilt", NULL};

static int compare(const void *a, const void *b)
{
    return memcmp(c.node[*(const unsigned *)a].uuid_bytes, c.node[*(const unsigned *)b].uuid_bytes, 16);
}

static void begin(unsigned n, const char *ordered, const char *further)
{
    char set[64];
    const char *flags[] = {"--chunk=64KiB",
                           "--chunks-in-flight=2",
                           "--quiesce-grace=300ms",
                           "--set=loopback.sided=two",
                           "--peer-timeout=3s",
                           set,
                           further,
                           NULL};

    (void)snprintf(set, sizeof set, "--set=loopback.ordered=%s", ordered);
    cluster_start(&c, n, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
    for (unsigned i = 0; i < n; i++) {
        client[i] = node_client(&c.node[i], "tester");
        by_uuid[i] = i;
    }
    qsort(by_uuid, n, sizeof by_uuid[0], compare);
}

static void end(const char *const *declared)
{
    for (unsigned i = 0; i < c.n; i++)
        rdt_close(client[i]);
    cluster_end(&c, declared);
}

static void faults_everywhere(const char *lines)
{
    for (unsigned i = 0; i < c.n; i++)
        cluster_faults(&c, i, lines);
}

/* ---- a fetch with a target of its own, between margins ---- */

struct move {
    struct rdt_ref ref;
    rdt *reader;
    size_t bytes;
    uint32_t seed;
    struct canary memory;
    rdt_request *request;
};

static void put_source(struct move *move, rdt *owner, uint32_t seed)
{
    size_t bytes = 40000 + (seed * 70001u) % 400000;

    move->seed = seed;
    move->bytes = bytes;
    move->ref = put_pattern(owner, NULL, bytes, seed);
}

static void start(struct move *move, rdt *reader, bool targets, int64_t timeout_ns)
{
    struct rdt_tensor target;
    const struct rdt_tensor *list = &target;
    size_t one = 1;

    canary_create(&move->memory, move->bytes);
    target = VECTOR(RDT_U8, move->bytes, move->memory.addr);
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .timeout_ns = timeout_ns,
                                        .targets = targets ? &list : NULL,
                                        .target_counts = targets ? &one : NULL};
    move->reader = reader;
    must_ok(rdt_fetch_start(reader, &move->ref, 1, &options, &move->request, &err));
}

/* How it ended; every byte is right if it ended well, and its margins are untouched. */
static enum rdt_status finish(struct move *move, struct rdt_error *why)
{
    enum rdt_status status = rdt_wait(move->reader, &move->request, 1, 1, LONG, NULL, NULL, why);
    rdt_object *object;

    if (status == RDT_OK) {
        must_ok(rdt_request_take_object(move->request, &object, &err));
        must_go_by("loopback", object);
        must(holds_pattern(tensor_of(object, 0).data, move->bytes, move->seed));
        rdt_release(object);
    }
    rdt_request_destroy(move->request);
    must(canary_alive(&move->memory));
    canary_destroy(&move->memory);
    return status;
}

/* ---- what crosses arrives ---- */

enum { MANY = 24 };

static struct move moves[MAX_NODES][MANY];

/* Each node fetches from the next one, all at once; how many did not end well. */
static unsigned all_around(unsigned n, unsigned many)
{
    unsigned bad = 0;

    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < many; k++)
            put_source(&moves[i][k], client[(i + 1) % n], i * MANY + k + 1);
    for (unsigned k = 0; k < many; k++)
        for (unsigned i = 0; i < n; i++)
            start(&moves[i][k], client[i], k % 2, LONG);
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < many; k++) {
            struct rdt_error why = {0};
            enum rdt_status status = finish(&moves[i][k], &why);
            bad += status != RDT_OK;
            must_say(status == RDT_OK || status == RDT_TRANSPORT || status == RDT_NO_PATH, "%s", why.msg);
            if (status != RDT_OK && bad == 1)
                (void)fprintf(stderr, "node %u fetch %u: %s\n", i, k, why.msg);
            must_ok(rdt_free(client[(i + 1) % n], &moves[i][k].ref, false, &err));
        }
    return bad;
}

Test(ordered, crossing_transfers_arrive)
{
    begin(2, "yes", NULL);
    for (unsigned round = 0; round < 3; round++)
        must(all_around(2, MANY) == 0);
    end(NULL);
}

Test(ordered, ring_of_transfers_arrives)
{
    begin(3, "yes", NULL);
    for (unsigned round = 0; round < 3; round++)
        must(all_around(3, MANY) == 0);
    end(NULL);
}

/* The same with daemons that do not know of the ordered queues: they post in any order and block each other. This shows
 * that the other tests would notice. */
Test(ordered, without_ordering_transfers_block_each_other)
{
    unsigned bad = 0;

    begin(2, "unsaid", "--stall-timeout=300ms");
    for (unsigned round = 0; round < 20 && bad == 0; round++)
        bad = all_around(2, 8);
    must(bad > 0);
    end(rebuilt);
}

/* ---- transfers that block each other ---- */

/* Each scene once with the owner's uuid smaller than the reader's, once the other way round: other ends take
 * their turns first. */
struct cast {
    unsigned owner, reader, other; /* nodes */
};

static struct cast cast_of(unsigned round)
{
    return (struct cast){.owner = by_uuid[round == 0 ? 0 : 1], .reader = by_uuid[round == 0 ? 1 : 0], .other = by_uuid[2]};
}

static void set_slow(unsigned node, int64_t delay_ns)
{
    char line[64];

    (void)snprintf(line, sizeof line, "delay_ms=%lld\n", (long long)(patience(delay_ns) / MSEC));
    cluster_faults(&c, node, line);
}

static struct move moving(unsigned owner, unsigned reader, size_t bytes, uint32_t seed, int64_t timeout_ns)
{
    struct move move = {.seed = seed, .bytes = bytes, .ref = put_pattern(client[owner], NULL, bytes, seed)};

    start(&move, client[reader], true, timeout_ns);
    return move;
}

static void must_end_well(struct move *move)
{
    must_be(RDT_OK, finish(move, &err));
}

/* How many transfers of the direction are in this state, and wait for something of which this is said. */
static unsigned in_state(unsigned node, const char *direction, const char *state, const char *waits)
{
    struct transfer_view views[64];
    unsigned n = transfers_of(&c.node[node], views, 64), found = 0;

    for (unsigned i = 0; i < n; i++)
        found += views[i].elapsed_ns == 0 && strcmp(views[i].direction, direction) == 0 && strcmp(views[i].state, state) == 0 &&
                 strstr(views[i].waits, waits);
    return found;
}

static bool all_see_loopback(void)
{
    for (unsigned i = 0; i < c.n; i++)
        for (unsigned k = 0; k < c.n; k++) {
            struct peer_view view;
            if (i != k && (!peer_seen(&c.node[i], &c.node[k], &view) || !view.loopback))
                return false;
        }
    return true;
}

/* As at the start: everybody fetches from everybody. */
static void must_work_again(void)
{
    faults_everywhere("");
    cluster_expect_idle_of_transfers(&c); /* an aborted transfer may still take its connection down */
    wait_until(10 * SEC, all_see_loopback());
    must(all_around(c.n, 4) == 0);
    cluster_expect_idle_of_transfers(&c);
}

Test(ordered, waiting_for_a_ticket_is_shown_cancelled_and_timed_out)
{
    begin(3, "yes", NULL);
    for (unsigned round = 0; round < 2; round++) {
        struct cast cast = cast_of(round);

        set_slow(cast.owner, 50 * MSEC);
        struct move big = moving(cast.owner, cast.reader, 100 * CHUNK, 1, LONG);
        await_engine(&c.node[cast.reader]);
        struct move cancelled = moving(cast.owner, cast.reader, 10 * CHUNK, 2, LONG);
        struct move last = moving(cast.owner, cast.reader, 10 * CHUNK, 4, LONG);
        wait_until(5 * SEC, in_state(cast.reader, "in", "ticket", "behind transfer") == 2);
        wait_until(5 * SEC, in_state(cast.owner, "out", "ticket", "") == 2);
        must(operations_of(&c.node[cast.reader]) <= 100); /* they have posted nothing */
        struct move late = moving(cast.owner, cast.reader, 10 * CHUNK, 3, patience(200 * MSEC));
        rdt_cancel(cancelled.request);
        int64_t began = now_ns();
        must_be(RDT_CANCELLED, finish(&cancelled, &err));
        must_be(RDT_TIMED_OUT, finish(&late, &err));
        must_be_within(began, 2 * SEC);
        must(in_state(cast.reader, "in", "moving", "") == 1);
        faults_everywhere("");
        must_end_well(&big);
        must_end_well(&last);
    }
    must(all_around(3, 4) == 0);
    end(NULL); /* no connection was rebuilt: nothing had been posted */
}

/* Transfers to other nodes do not wait for an operation that the test transport does not end. */
static void lost_at_the_head(const char *at_reader)
{
    char stall[40];

    (void)snprintf(stall, sizeof stall, "--stall-timeout=%lldms", (long long)(patience(600 * MSEC) / MSEC));
    begin(3, "yes", stall);
    for (unsigned round = 0; round < 2; round++) {
        struct cast cast = cast_of(round);
        char lines[64];

        (void)snprintf(lines, sizeof lines, "%s", at_reader);
        cluster_faults(&c, cast.reader, lines);
        cluster_faults(&c, cast.owner, "lose_every=1\n");
        struct move stuck = moving(cast.owner, cast.reader, CHUNK, 1, LONG);
        wait_until(5 * SEC, operations_of(&c.node[cast.owner]) == 1);
        cluster_faults(&c, cast.owner, "");
        struct move behind_send = moving(cast.owner, cast.other, 5 * CHUNK, 2, LONG);
        struct move behind_receive = moving(cast.other, cast.reader, 5 * CHUNK, 3, LONG);
        must_refuse(RDT_TRANSPORT, "stall_timeout", finish(&stuck, &err));
        must_end_well(&behind_send);
        must_end_well(&behind_receive);
        must_work_again();
    }
    end(rebuilt);
}

Test(ordered, lost_send_holds_up_others_for_a_while_only)
{
    lost_at_the_head("");
}

Test(ordered, lost_send_and_a_receive_that_cannot_be_cancelled)
{
    lost_at_the_head("no_abort=1\n");
}

/* The receives stand at the head of the reader's queue, the send is not there yet: the owner's node dies, or
 * stands still. */
static void owner_ends_before_it_sends(bool freeze, const char *at_reader)
{
    begin(3, "yes", NULL);
    for (unsigned round = 0; round < 2; round++) {
        struct cast cast = cast_of(round);

        cluster_faults(&c, cast.reader, at_reader);
        cluster_faults(&c, cast.owner, "delay_ms=60000\n");
        struct move dead = moving(cast.owner, cast.reader, 8 * CHUNK, 1, LONG);
        await_engine(&c.node[cast.reader]);
        struct move other = moving(cast.other, cast.reader, 8 * CHUNK, 2, LONG);
        wait_until(5 * SEC, in_state(cast.reader, "in", "ticket", "behind transfer") == 1);
        int64_t struck = now_ns();
        if (freeze)
            node_freeze(&c.node[cast.owner]);
        else
            node_kill(&c.node[cast.owner], SIGKILL);
        must_be(RDT_PEER_LOST, finish(&dead, &err));
        must_be_within(struck, freeze ? 5 * SEC : 3 * SEC);
        must_end_well(&other);
        must_be_within(struck, 6 * SEC);
        cluster_faults(&c, cast.owner, "");
        if (freeze) {
            node_thaw(&c.node[cast.owner]);
        } else {
            rdt_close(client[cast.owner]);
            cluster_restart(&c, cast.owner);
            client[cast.owner] = node_client(&c.node[cast.owner], "tester");
        }
        cluster_meet(&c);
        must_work_again();
    }
    end((const char *const[]){"taken down and rebuilt", "lost", "goodbye", NULL});
}

Test(ordered, owners_node_dies_between_pairing_and_sending)
{
    owner_ends_before_it_sends(false, "");
}

Test(ordered, owners_node_dies_and_the_receive_cannot_be_cancelled)
{
    owner_ends_before_it_sends(false, "no_abort=1\n");
}

Test(ordered, owners_node_freezes_between_pairing_and_sending)
{
    owner_ends_before_it_sends(true, "");
}

/* A reader that has the owner's turn, or is on its way to it, and never comes. */
Test(ordered, reader_that_never_comes_gives_up_its_ticket)
{
    begin(3, "yes", NULL);
    for (unsigned round = 0; round < 2; round++) {
        struct cast cast = cast_of(round);

        set_slow(cast.other, 50 * MSEC);
        struct move busy = moving(cast.other, cast.reader, 100 * CHUNK, 1, LONG);
        await_engine(&c.node[cast.reader]);
        struct move never = moving(cast.owner, cast.reader, 8 * CHUNK, 2, LONG);
        wait_until(5 * SEC, in_state(cast.owner, "out", "ticket", "") == 1);
        node_freeze(&c.node[cast.reader]);
        int64_t struck = now_ns();
        struct move behind = moving(cast.owner, cast.other, 8 * CHUNK, 3, LONG);
        must_end_well(&behind);
        must_be_within(struck, 6 * SEC);
        faults_everywhere("");
        node_thaw(&c.node[cast.reader]);
        for (unsigned k = 0; k < 2; k++) {
            struct rdt_error why = {0};
            enum rdt_status status = finish(k == 0 ? &busy : &never, &why);
            must_say(status == RDT_PEER_LOST || status == RDT_OK, "%s: %s", rdt_status_name(status), why.msg);
        }
        cluster_meet(&c);
        must_work_again();
    }
    end((const char *const[]){"taken down and rebuilt", "lost", "goodbye", NULL});
}

/* ---- everything at once ---- */

Test(ordered, failures_cancels_and_deadlines_at_random)
{
    uint64_t dice = 7;

    begin(3, "yes", "--stall-timeout=1s");
    for (unsigned round = 0; round < 4; round++) {
        faults_everywhere(round % 2 ? "fail_every=41\ndelay_ms=1\n" : "lose_every=97\ndelay_ms=1\nno_abort=1\n");
        for (unsigned i = 0; i < 3; i++)
            for (unsigned k = 0; k < MANY; k++) {
                unsigned owner = (i + 1 + next_random(&dice) % 2) % 3;
                moves[i][k] = moving(owner, i, 40000 + next_random(&dice) % 400000, k + 1,
                                     next_random(&dice) % 4 ? LONG : patience((1 + next_random(&dice) % 200) * MSEC));
                if (next_random(&dice) % 5 == 0)
                    rdt_cancel(moves[i][next_random(&dice) % (k + 1)].request);
            }
        for (unsigned i = 0; i < 3; i++)
            for (unsigned k = 0; k < MANY; k++) {
                struct rdt_error why = {0};
                enum rdt_status status = finish(&moves[i][k], &why);
                must_say(status == RDT_OK || status == RDT_TRANSPORT || status == RDT_CANCELLED || status == RDT_TIMED_OUT ||
                             status == RDT_NO_PATH,
                         "%s: %s", rdt_status_name(status), why.msg);
            }
        must_work_again();
    }
    end(rebuilt);
}

/* ---- bytes that are gathered, copies that are being filled ---- */

/* Chunks that are gathered on the pool are not overtaken by those that need not be. */
Test(ordered, gathered_chunks_keep_their_order)
{
    enum { N = 8 };
    const int64_t plain[] = {1200, 1000}, strides[] = {1, 1200};

    begin(2, "yes", "--chunk=512KiB");
    for (unsigned round = 0; round < 4; round++) {
        struct rdt_tensor tensors[N];
        struct rdt_ref ref[2];
        rdt_request *request[2];

        for (unsigned i = 0; i < 2; i++) {
            uint8_t *memory = alloc_memory(client[i], N * 1200 * 1000);
            fill_pattern(memory, N * 1200 * 1000, i + 1);
            for (unsigned k = 0; k < N; k++)
                tensors[k] = (struct rdt_tensor){RDT_U8, 2, plain, k % 2 ? strides : NULL, memory + k * 1200 * 1000};
            must_ok(rdt_put(client[i], tensors, N, NULL, &ref[i], &err));
        }
        for (unsigned i = 0; i < 2; i++)
            request[i] = start_one(client[i], &ref[1 - i], LONG);
        for (unsigned i = 0; i < 2; i++) {
            uint8_t *whole = malloc(N * 1200 * 1000);
            must(whole);
            fill_pattern(whole, N * 1200 * 1000, 2 - i);
            rdt_object *object = await_object(client[i], request[i]);
            for (unsigned k = 0; k < N; k++) {
                struct rdt_tensor got = tensor_of(object, k);
                struct rdt_tensor source = {RDT_U8, 2, plain, k % 2 ? strides : NULL, whole + k * 1200 * 1000};
                must_say(tensors_equal(&got, &source), "tensor %u", k);
            }
            rdt_release(object);
            rdt_request_destroy(request[i]);
            free(whole);
        }
        for (unsigned i = 0; i < 2; i++)
            must_ok(rdt_free(client[i], &ref[i], false, &err));
    }
    end(NULL);
}

/* Many nodes want one snapshot: a copy that is being filled holds up no queue, and all get their bytes. */
Test(ordered, snapshot_for_many_nodes)
{
    const size_t bytes = 40 * CHUNK;

    begin(4, "yes", "--fanout-min=64KiB");
    for (unsigned round = 0; round < 3; round++) {
        uint8_t *memory = malloc(bytes);
        struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, memory);
        rdt_request *request[4];

        must(memory);
        fill_pattern(memory, bytes, round);
        struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT};
        struct rdt_ref ref = put_as(client[0], &tensor, 1, &options);
        set_slow(0, 2 * MSEC);
        for (unsigned i = 1; i < 4; i++)
            request[i] = start_one(client[i], &ref, LONG);
        for (unsigned i = 1; i < 4; i++) {
            rdt_object *object = await_object(client[i], request[i]);
            must(holds_pattern(tensor_of(object, 0).data, bytes, round));
            rdt_release(object);
            rdt_request_destroy(request[i]);
        }
        must_ok(rdt_free(client[0], &ref, true, &err));
        free(memory);
    }
    end(NULL);
}
