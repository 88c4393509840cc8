/* SPDX-License-Identifier: Apache-2.0 */
/* One snapshot for several nodes at the same time: readers pass it on to other readers, and no reader depends on another to
 * get it. The test transport takes some time for each chunk. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "client/call.h"
#include "client/rdt_info.h"
#include "rdt.pb-c.h"
#include "tests/support/cluster.h"
#include "tests/support/program.h"
#include "wire_ref.h"

TestSuite(fanout, .timeout = 240);

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define BYTES (4 * MIB)
#define READERS 3

static struct cluster c;
static rdt *owner, *readers[READERS]; /* of node 0, and of the others */
static rdt_request *requests[READERS];
static struct rdt_ref ref;

static const char *const meant[] = {"taken down and rebuilt",      "is lost", "cannot be reached", "refused",
                                    "are not those that were put", NULL};

static void set_delay(int64_t ns)
{
    char line[64];

    (void)snprintf(line, sizeof line, "delay_ms=%lld\n", (long long)(ns / MSEC));
    for (unsigned i = 0; i < c.n; i++)
        cluster_faults(&c, i, line);
}

static struct rdt_ref put_snapshot_pattern(size_t bytes)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *memory = alloc_memory(owner, bytes);
    struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, memory);
    struct rdt_ref put;

    fill_pattern(memory, bytes, 7);
    options.flags = RDT_PUT_SNAPSHOT;
    options.timeout_ns = LONG;
    must_ok(rdt_put(owner, &tensor, 1, &options, &put, &err));
    must_ok(rdt_dealloc(owner, memory, &err));
    return put;
}

static const char *more_flag; /* NULL: none */

/* Chunks of 64 KiB, which take so long that nothing has arrived when the row stands. */
static void begin_sided(const char *sided)
{
    char set[64];
    const char *flags[] = {"--chunk=64KiB",
                           "--chunks-in-flight=2",
                           "--quiesce-grace=300ms",
                           "--set=loopback.sided=two",
                           "--fanout-min=1MiB",
                           "--peer-timeout=30s", /* the frozen one's link stays */
                           more_flag,
                           NULL};

    (void)snprintf(set, sizeof set, "--set=loopback.sided=%s", sided);
    cluster_start(&c, 1 + READERS, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
    owner = node_client(&c.node[0], "owner");
    for (unsigned i = 0; i < READERS; i++)
        readers[i] = node_client(&c.node[1 + i], "reader");
    ref = put_snapshot_pattern(BYTES);
    set_delay(patience(50 * MSEC));
}

static void begin(void)
{
    begin_sided("two");
}

static bool moving(unsigned node, const char *direction, uint64_t least_bytes)
{
    struct transfer_view view;

    return transfer_under_way(&c.node[node], direction, &view) && view.bytes_done >= least_bytes;
}

/* One after the other, each when the one before it receives, so that they make a row: 0 <- 1 <- 2 <- 3. */
static void start_row(void)
{
    for (unsigned i = 0; i < READERS; i++) {
        requests[i] = start_one(readers[i], &ref, LONG);
        wait_until(10 * SEC, moving(1 + i, "in", 128 * KIB));
    }
}

static void must_arrive_at(rdt *reader, rdt_request **request)
{
    struct rdt_tensor tensor;
    rdt_object *object;

    set_delay(10 * MSEC); /* what the test does in the middle is done */
    must_ok(rdt_wait(reader, request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(*request, &object, &err));
    tensor = tensor_of(object, 0);
    must(holds_pattern(tensor.data, BYTES, 7));
    rdt_release(object);
    rdt_request_destroy(*request);
}

static void must_arrive(unsigned i)
{
    must_arrive_at(readers[i], &requests[i]);
}

static struct node_status status_of(unsigned i)
{
    struct node_status status;

    node_status(&c.node[i], &status);
    return status;
}

static void end(void)
{
    must_ok(rdt_free(owner, &ref, true, &err));
    for (unsigned i = 0; i < READERS; i++) {
        if (readers[i])
            must_be(RDT_FREED, try_fetch(readers[i], &ref, RDT_FETCH_AUTO, LONG, NULL, &err));
        rdt_close(readers[i]);
    }
    rdt_close(owner);
    cluster_end(&c, meant);
}

/* The owner was killed. */
static void end_with_new_owner(void)
{
    cluster_restart(&c, 0);
    for (unsigned i = 0; i < READERS; i++) {
        enum rdt_status status = RDT_PEER_LOST;
        struct rdt_error err = {0};
        wait_until(20 * SEC, (status = try_fetch(readers[i], &ref, RDT_FETCH_AUTO, LONG, NULL, &err)) != RDT_PEER_LOST);
        must(status == RDT_NOT_FOUND); /* of an earlier start */
        wait_until(5 * SEC, status_of(1 + i).copies == 0);
        rdt_close(readers[i]);
    }
    cluster_end(&c, meant);
}

Test(fanout, row_of_nodes_passes_it_on)
{
    uint64_t before;

    begin();
    before = status_of(0).bytes_out;
    start_row();
    for (unsigned i = 0; i < READERS; i++)
        must_arrive(i);
    cluster_expect_idle_of_transfers(&c); /* the owner hears of the end later */
    must_say(status_of(0).bytes_out - before == BYTES, "%llu bytes left the owner",
             (unsigned long long)(status_of(0).bytes_out - before));
    must(status_of(0).redirected == READERS - 1);
    end();
}

/* One chunk does not come: the second node in the row gets all others nevertheless. */
Test(fanout, late_chunk_holds_up_no_other)
{
    begin();
    cluster_faults(&c, 0, "hold_chunk=5\n");
    for (unsigned i = 1; i < READERS; i++)
        cluster_faults(&c, i, "");
    for (unsigned i = 0; i < READERS; i++) {
        requests[i] = start_one(readers[i], &ref, LONG);
        wait_until(20 * SEC, moving(1 + i, "in", BYTES - 64 * KIB));
    }
    must(status_of(0).redirected == READERS - 1);
    for (unsigned i = 0; i < READERS; i++)
        must_arrive(i);
    end();
}

/* ---- wrong bytes ---- */

static struct rdt_daemon_status counters(rdt *conn)
{
    struct rdt_daemon_status status = RDT_INIT(status);

    must_ok(rdt_daemon_status(conn, &status, &err));
    return status;
}

static bool doctor_says(unsigned i, const char *text)
{
    struct program program = {0};
    bool says;

    program_run(&program, (const char *const[]){"rdtctl", "--socket", c.node[i].socket, "doctor", NULL}, NULL);
    says = strstr(program.out, text);
    program_free(&program);
    return says;
}

/* The first node passes on a wrong bit. The nodes behind it get the right bytes from the owner after all. */
Test(fanout, node_that_passes_on_wrong_bytes_is_noticed)
{
    begin();
    cluster_faults(&c, 1, "delay_ms=50\nflip_chunk=9\n");
    start_row();
    for (unsigned i = 0; i < READERS; i++) {
        must_ok(rdt_wait(readers[i], &requests[i], 1, 1, LONG, NULL, NULL, &err));
        if (i == 0)
            cluster_faults(&c, 1, "flip_chunk=9\n");
    }
    for (unsigned i = 0; i < READERS; i++)
        must_arrive(i);
    must_say(counters(readers[0]).replicas_damaged == 0 && counters(readers[0]).replicas_checked == 1, "at the first node");
    must_say(counters(readers[1]).replicas_damaged == 1 && counters(readers[1]).replicas_checked == 1, "at the second node");
    must(node_log_has(&c.node[2], "that came from node") && node_log_has(&c.node[2], "are not those that were put on node"));
    for (unsigned i = 0; i < READERS; i++) { /* what stays as a replica is right */
        rdt_object *object = fetch_one(readers[i], &ref, RDT_FETCH_AUTO);
        must(holds_pattern(tensor_of(object, 0).data, BYTES, 7));
        rdt_release(object);
    }
    end();
}

/* Nobody else has the bytes: the reader gets an error that names object and node, and no replica stays. */
Test(fanout, wrong_bytes_from_the_owner_are_an_error)
{
    struct rdt_error why;
    rdt_object *object;

    begin();
    set_delay(0);
    cluster_faults(&c, 0, "flip_chunk=9\n");
    must(try_fetch(readers[0], &ref, RDT_FETCH_AUTO, LONG, &object, &why) == RDT_DAMAGED);
    must_say(strstr(why.msg, ref.id) && strstr(why.msg, "that came from node") && strstr(why.msg, "checksum"), "%s", why.msg);
    must(counters(readers[0]).replicas_damaged == 1 && status_of(1).copies == 0);
    must(doctor_says(1, "1 snapshots of other nodes arrived with other bytes") && !doctor_says(0, "arrived with other bytes"));
    cluster_faults(&c, 0, "");
    object = fetch_one(readers[0], &ref, RDT_FETCH_AUTO);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 7));
    rdt_release(object);
    must(counters(readers[0]).replicas_checked == 1);
    end();
}

/* The owner sends all bytes once more to those who got some from others, and not again and again. */
Test(fanout, wrong_bytes_from_the_owner_end_every_fetch)
{
    struct rdt_error why;

    begin();
    cluster_faults(&c, 0, "delay_ms=50\nflip_chunk=9\n");
    start_row();
    cluster_faults(&c, 0, "flip_chunk=9\n");
    for (unsigned i = 0; i < READERS; i++) {
        must_be(RDT_DAMAGED, rdt_wait(readers[i], &requests[i], 1, 1, LONG, NULL, NULL, &why));
        rdt_request_destroy(requests[i]);
        must_say(counters(readers[i]).replicas_damaged <= 2 && status_of(i + 1).copies == 0, "at node %u", i + 1);
    }
    cluster_faults(&c, 0, "");
    end();
}

/* All bytes are there when the link ends, and only the worker pool has still to compare them. */
Test(fanout, owner_that_is_lost_while_its_bytes_are_checked)
{
    more_flag = "--worker-threads=1"; /* only one may be held: held_threads.c */
    begin();
    requests[0] = start_one(readers[0], &ref, LONG);
    wait_until(10 * SEC, moving(1, "in", 128 * KIB));
    if (!node_hold_threads(&c.node[1], "rdtd-work"))
        cr_skip_test("this process may not trace its children");
    set_delay(0);
    wait_until(20 * SEC, moving(1, "in", BYTES));
    rdt_close(owner);
    node_kill(&c.node[0], SIGKILL);
    wait_until(20 * SEC, status_of(1).peers_up == READERS - 1);
    node_release_workers(&c.node[1]);
    must_arrive(0);
    must(counters(readers[0]).replicas_checked == 1);
    end_with_new_owner();
}

/* The owner's memory is read by the first; a copy that is not whole yet is not read, but sent. */
Test(fanout, row_of_nodes_where_memory_is_read)
{
    begin_sided("both");
    start_row();
    for (unsigned i = 0; i < READERS; i++)
        must_arrive(i);
    must(status_of(0).redirected == READERS - 1);
    end();
}

/* No node can send, so replicas cannot be passed on before they are complete, and the readers turn to the owner. */
Test(fanout, copies_that_cannot_be_passed_on)
{
    begin_sided("one");
    start_row();
    for (unsigned i = 0; i < READERS; i++)
        must_arrive(i);
    end();
}

/* Node 1 goes in the middle of it: node 2 comes back to the owner for the rest, node 3 does not notice. */
Test(fanout, killed_relay_costs_nobody_else)
{
    begin();
    start_row();
    rdt_close(readers[0]);
    readers[0] = NULL;
    node_kill(&c.node[1], SIGKILL);
    must_arrive(1);
    must_arrive(2);
    cluster_restart(&c, 1);
    end();
}

/* A reader's node says who sent which part, and why the first of the two was left. */
static void must_explain_two_sources(unsigned i, const char *why)
{
    Rdt__Pb__Explain request = RDT__PB__EXPLAIN__INIT;
    Rdt__Pb__Ref ref_message = RDT__PB__REF__INIT;
    ProtobufCMessage *reply;
    const Rdt__Pb__TransferInfo *info = NULL;
    const Rdt__Pb__ListReply *list;

    wire_ref_from(&ref, &ref_message);
    request.ref = &ref_message;
    must_ok(call(readers[i], RDT_MSG_EXPLAIN, &request.base, LONG, &reply, &err));
    list = (const Rdt__Pb__ListReply *)reply;
    for (size_t k = 0; k < list->n_transfers; k++) /* The node also has records of what it sends. */
        if (!info && strcmp(list->transfers[k]->direction, "in") == 0)
            info = list->transfers[k];
    must(info != NULL);
    must_say(info->n_sources == 2, "%zu sources", info->n_sources);
    must(info->sources[0]->bytes > 0 && info->sources[1]->bytes > 0);
    must(info->sources[0]->bytes + info->sources[1]->bytes >= BYTES);
    must(strcmp(info->sources[0]->peer, info->sources[1]->peer) != 0);
    must(strcmp(info->sources[1]->peer, info->peer) == 0);
    must_say(strstr(info->sources[0]->left, why), "it was left: %s", info->sources[0]->left);
    must(info->sources[1]->left[0] == '\0');
    protobuf_c_message_free_unpacked(reply, NULL);
}

/* The relay is silent while its link stays up: its reader gives up sooner than the link does. */
Test(fanout, frozen_relay_is_left)
{
    begin();
    start_row();
    node_freeze(&c.node[1]);
    must_arrive(1);
    must_arrive(2);
    must_explain_two_sources(1, "silent");
    node_thaw(&c.node[1]);
    must_arrive(0);
    end();
}

/* 0 <- 1 <- 2 <- 3 <- 4 <- 5: node 2 is killed and node 4 frozen in the middle of it. The readers behind them go on from the
 * bytes that they have, at the node before the one that is gone: no byte travels twice but those under way. */
Test(fanout, killed_and_frozen_in_a_row_cost_nobody_else)
{
    const char *flags[] = {"--chunk=64KiB",
                           "--chunks-in-flight=2",
                           "--quiesce-grace=300ms",
                           "--set=loopback.sided=two",
                           "--peer-timeout=30s",
                           "--fanout-min=1MiB",
                           NULL};
    enum { ROW = 5 };
    rdt *row[ROW];
    rdt_request *row_requests[ROW];
    uint64_t sent = 0;

    cluster_start(&c, 1 + ROW, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
    owner = node_client(&c.node[0], "owner");
    ref = put_snapshot_pattern(BYTES);
    set_delay(patience(50 * MSEC));
    for (unsigned i = 0; i < ROW; i++) {
        row[i] = node_client(&c.node[1 + i], "reader");
        row_requests[i] = start_one(row[i], &ref, LONG);
        wait_until(10 * SEC, moving(1 + i, "in", 128 * KIB));
    }
    rdt_close(row[1]);
    node_kill(&c.node[2], SIGKILL);
    node_freeze(&c.node[4]);
    for (unsigned i = 0; i < ROW; i++)
        if (i != 1 && i != 3)
            must_arrive_at(row[i], &row_requests[i]);
    for (unsigned i = 0; i < c.n; i++)
        if (i != 2 && i != 4)
            sent += status_of(i).bytes_out;
    must_say(status_of(0).bytes_out <= 2 * BYTES, "%llu bytes left the owner", (unsigned long long)status_of(0).bytes_out);
    must_say(sent <= (ROW + 1) * BYTES, "%llu bytes were sent to %u nodes", (unsigned long long)sent, ROW);
    must(status_of(0).redirected >= ROW - 1 + 1); /* the row, and those that came back */
    node_thaw(&c.node[4]);
    must_arrive_at(row[3], &row_requests[3]);
    must_ok(rdt_free(owner, &ref, true, &err));
    for (unsigned i = 0; i < ROW; i++)
        if (i != 1)
            rdt_close(row[i]);
    rdt_close(owner);
    cluster_restart(&c, 2);
    cluster_end(&c, meant);
}

/* The one in the middle wants it no more; those behind it do. */
Test(fanout, cancelled_relay_goes_on_for_others)
{
    uint64_t before;

    begin();
    before = status_of(0).bytes_out;
    start_row();
    rdt_cancel(requests[0]);
    must_be(RDT_CANCELLED, rdt_wait(readers[0], &requests[0], 1, 1, LONG, NULL, NULL, &err));
    must_arrive(1);
    must_arrive(2);
    cluster_expect_idle_of_transfers(&c);
    must(status_of(0).bytes_out - before == BYTES);
    rdt_request_destroy(requests[0]);
    end();
}

/* Node 3 has all chunks but the fifth when its source ends. The next source sends those from there on again, except the sixth,
 * and freezes. The receive that is then cancelled may leave any bytes in its memory, which must not be that of a chunk that is
 * there. */
Test(fanout, chunks_that_come_again_spoil_none_that_are_there)
{
    struct transfer_view view;

    begin();
    cluster_faults(&c, 2, "delay_ms=50\nhold_chunk=5\n");
    start_row();
    for (unsigned i = 0; i < c.n; i++)
        cluster_faults(&c, i, i == 2 ? "hold_chunk=5\n" : i == READERS ? "late_ms=50\n" : "");
    wait_until(20 * SEC, moving(READERS, "in", BYTES - 64 * KIB));
    must_ok(rdt_wait(readers[1], &requests[1], 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(requests[1]);
    rdt_close(readers[1]);
    readers[1] = NULL;
    cluster_faults(&c, 1, "hold_chunk=6\n");
    node_kill(&c.node[2], SIGKILL);
    wait_until(LONG, transfer_under_way(&c.node[READERS], "in", &view) && strcmp(view.peer, c.node[1].address) == 0 &&
                         view.bytes_done == BYTES - 64 * KIB);
    node_freeze(&c.node[1]);
    must_ok(rdt_wait(readers[2], &requests[2], 1, 1, LONG, NULL, NULL, &err));
    must(counters(readers[2]).replicas_damaged == 0); /* otherwise the owner has sent all of it again */
    node_thaw(&c.node[1]);
    must_arrive(0);
    must_arrive(2);
    cluster_restart(&c, 2);
    end();
}

/* No reader wants the object any more, so its transfers end everywhere. */
Test(fanout, cancelled_by_all_ends)
{
    begin();
    start_row();
    for (unsigned i = 0; i < READERS; i++) {
        rdt_cancel(requests[i]);
        must_be(RDT_CANCELLED, rdt_wait(readers[i], &requests[i], 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(requests[i]);
    }
    cluster_expect_idle_of_transfers(&c);
    for (unsigned i = 1; i <= READERS; i++)
        must(status_of(i).copies == 0);
    end();
}

Test(fanout, killed_reader_in_the_middle)
{
    begin();
    start_row();
    rdt_close(readers[1]);
    readers[1] = NULL;
    node_kill(&c.node[2], SIGKILL);
    must_arrive(0);
    must_arrive(2);
    cluster_restart(&c, 2);
    end();
}

Test(fanout, killed_owner_fails_all)
{
    begin();
    start_row();
    rdt_close(owner);
    node_kill(&c.node[0], SIGKILL);
    for (unsigned i = 0; i < READERS; i++) {
        must_be(RDT_PEER_LOST, rdt_wait(readers[i], &requests[i], 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(requests[i]);
    }
    end_with_new_owner();
}

/* The object is freed by force in the middle. Readers that asked before may get it, later ones never do, and nothing is
 * left. */
Test(fanout, freed_in_the_middle)
{
    begin();
    start_row();
    must_ok(rdt_free(owner, &ref, true, &err));
    for (unsigned i = 0; i < READERS; i++)
        must_be(RDT_FREED, try_fetch(readers[i], &ref, RDT_FETCH_AUTO, LONG, NULL, &err));
    for (unsigned i = 0; i < READERS; i++)
        must_arrive(i);
    for (unsigned i = 0; i < READERS; i++)
        rdt_close(readers[i]);
    rdt_close(owner);
    cluster_end(&c, meant);
}
