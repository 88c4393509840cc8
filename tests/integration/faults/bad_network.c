/* SPDX-License-Identifier: Apache-2.0 */
/* Networks that lose, delay, duplicate or reorder frames, or carry them in one direction only. Nobody notices what TCP can
 * repair. Everything else is reported on both ends in time, with the right status. */
#include "tests/integration/faults/bad_network.h"

TestSuite(bad_network, .timeout = 280);

/* ---- what TCP mends ---- */

static void check_delay(unsigned delay_us)
{
    rdt *conn = node_client(&c.node[1], "asker");
    struct rdt_ref ref = next_ref(0);
    int64_t start = now_ns(), took;
    struct rdt_stat stat;

    must_be(RDT_NOT_FOUND, rdt_stat(conn, &ref, &stat, &err));
    took = now_ns() - start;
    must_say(took >= 2 * (int64_t)delay_us * 1000, "an answer after %lld us", (long long)(took / 1000));
    rdt_close(conn);
}

/* No link is lost, not even for a moment: that would be a warning. */
static void check_mended(enum carrier by, const struct badcable_faults *faults, unsigned rounds)
{
    begin(2, by, 3 * SEC, false);
    both_ways(faults);
    check_delay(faults->delay_us);
    check_calls(by, rounds);
    struct badcable_counts counts = badcable_counts(&cable);
    must_say((counts.lost > 0) == (faults->loss_pm > 0), "%llu frames lost", (unsigned long long)counts.lost);
    must_say((counts.doubled > 0) == (faults->duplicate_pm > 0), "%llu frames doubled", (unsigned long long)counts.doubled);
    must_say((counts.disordered > 0) == (faults->reorder_pm > 0), "%llu frames out of order",
             (unsigned long long)counts.disordered);
    badcable_heal(&cable);
    check_calls(by, 1);
    end(NULL);
}

static const struct badcable_faults lossy = {.loss_pm = 20}, late = {.delay_us = 20000, .jitter_us = 5000, .reorder_pm = 100},
                                    doubling = {.duplicate_pm = 100},
                                    all_of_it = {.loss_pm = 10,
                                                 .delay_us = 5000,
                                                 .jitter_us = 5000,
                                                 .reorder_pm = 50,
                                                 .duplicate_pm = 50};

Test(bad_network, lost_frames_inline)
{
    check_mended(BY_INLINE, &lossy, 12);
}

Test(bad_network, lost_frames_ucx)
{
    check_mended(BY_UCX, &lossy, 4);
}

Test(bad_network, lost_frames_stream)
{
    check_mended(BY_STREAM, &lossy, 4);
}

Test(bad_network, late_disordered_frames_inline)
{
    check_mended(BY_INLINE, &late, 4);
}

Test(bad_network, late_disordered_frames_ucx)
{
    check_mended(BY_UCX, &late, 3);
}

Test(bad_network, late_disordered_frames_stream)
{
    check_mended(BY_STREAM, &late, 3);
}

Test(bad_network, doubled_frames_inline)
{
    check_mended(BY_INLINE, &doubling, 4);
}

Test(bad_network, doubled_frames_ucx)
{
    check_mended(BY_UCX, &doubling, 4);
}

Test(bad_network, doubled_frames_stream)
{
    check_mended(BY_STREAM, &doubling, 4);
}

Test(bad_network, everything_at_once_inline)
{
    check_mended(BY_INLINE, &all_of_it, 12);
}

Test(bad_network, everything_at_once_ucx)
{
    check_mended(BY_UCX, &all_of_it, 3);
}

Test(bad_network, everything_at_once_stream)
{
    check_mended(BY_STREAM, &all_of_it, 3);
}

/* ---- one direction carries nothing ---- */

enum step { PARKED, MOVING, HELD, WAITING_FREED, N_STEPS };

/* Node 0 owns, node 1 reads. Leaves what can wait waiting; each chunk takes as long as the cable is slow. */
static struct rdt_ref reach(enum step step, size_t bytes, uint32_t seed)
{
    struct rdt_ref ref = next_ref(0);

    if (step != PARKED)
        ref = must_put(0, &ref, bytes, seed);
    if (step == MOVING || step == WAITING_FREED)
        both_ways(&(struct badcable_faults){.delay_us = 100000});
    start_fetch(1, &ref, bytes, seed, LONG);
    if (step == PARKED)
        await_transfer(&c.node[0], "out", "parked");
    else if (step != HELD && bytes == SMALL) /* its bytes are in the answer; the other object is the witness */
        wait_until(10 * SEC, incoming(1, NULL) > 1);
    else if (step != HELD)
        wait_until(10 * SEC, incoming(1, "moving") > 0);
    else
        must_end(1, AGENT_ITEMS, MAY(RDT_OK));
    if (step == WAITING_FREED) {
        must_do(0, AGENT_FREE, &ref, false);
        start_simple(0, AGENT_WAIT_FREED, &ref, false);
    }
    return ref;
}

/* A fetch parked at the other node, from each end: the ends hear of it whatever else they do. */
struct witness {
    rdt *conn;
    rdt_request *request;
};

static void begin_waiting(struct witness witness[2])
{
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_ref ref = next_ref(1 - i);
        witness[i].conn = node_client(&c.node[i], "witness");
        witness[i].request = start_one(witness[i].conn, &ref, LONG);
        await_transfer(&c.node[1 - i], "out", "parked");
    }
}

static void must_be_told(struct witness witness[2], int64_t since)
{
    for (unsigned i = 0; i < 2; i++) {
        must_refuse(RDT_PEER_LOST, c.node[1 - i].address,
                    rdt_wait(witness[i].conn, &witness[i].request, 1, 1, LONG, NULL, NULL, &err));
        must_be_within(since, 4 * SEC);
        rdt_request_destroy(witness[i].request);
        rdt_close(witness[i].conn);
    }
}

static void check_half_open(enum badcable_way way, enum step step, size_t bytes, uint32_t seed)
{
    struct witness witness[2];

    begin_waiting(witness);
    struct rdt_ref ref = reach(step, bytes, seed);
    int64_t struck = now_ns();
    badcable_set(&cable, way, &(struct badcable_faults){.dead = true});
    bystander_round(&c, 1);
    bystander_round(&c, 6);
    must_be_told(witness, struck);
    if (step != HELD) {
        uint64_t may = MAY(RDT_PEER_LOST);
        if (step != PARKED) /* the fetch may have ended already */
            may |= MAY(RDT_OK);
        if (step == MOVING || step == WAITING_FREED) /* the transport may notice before the link does */
            may |= bytes > SMALL ? MAY(RDT_TRANSPORT) : 0;
        if (step == WAITING_FREED)
            may |= MAY(RDT_FREED); /* before it was heard of */
        must_end(1, AGENT_ITEMS, may);
        must_be_within(struck, 4 * SEC);
    }
    if (step == WAITING_FREED) { /* its reader is lost */
        must_end(0, 1, MAY(RDT_OK));
        must_be_within(struck, 4 * SEC);
    }
    wait_until(5 * SEC, at_rest(0) && at_rest(1));
    start_simple(1, AGENT_LOOK, &ref, false); /* delivered bytes are right, and nothing writes to them any more */
    must_end(1, 0, MAY(RDT_OK));
    bystander_round(&c, 6);
    badcable_heal(&cable);
    cluster_meet(&c);
    start_simple(1, AGENT_RELEASE, &ref, false);
    must_end(1, 0, MAY(RDT_OK));
    if (step == MOVING || step == HELD)
        must_do(0, AGENT_FREE, &ref, false);
    start_simple(0, AGENT_RELEASE, &ref, false);
    must_end(0, 0, MAY(RDT_OK));
    check_life(0, bytes, seed);
    check_life(1, bytes, seed);
    bystander_round(&c, 7);
}

static void check_all_steps(enum badcable_way way, enum carrier by)
{
    begin(3, by, SEC, true);
    for (enum step step = 0; step < N_STEPS; step++)
        check_half_open(way, step, by == BY_INLINE ? SMALL : 4 * LARGE, step);
    end(expected_warnings);
}

Test(bad_network, nothing_goes_out_inline)
{
    check_all_steps(BADCABLE_OUT, BY_INLINE);
}

Test(bad_network, nothing_goes_out_ucx)
{
    check_all_steps(BADCABLE_OUT, BY_UCX);
}

Test(bad_network, nothing_goes_out_stream)
{
    check_all_steps(BADCABLE_OUT, BY_STREAM);
}

Test(bad_network, nothing_comes_in_inline)
{
    check_all_steps(BADCABLE_IN, BY_INLINE);
}

Test(bad_network, nothing_comes_in_ucx)
{
    check_all_steps(BADCABLE_IN, BY_UCX);
}

Test(bad_network, nothing_comes_in_stream)
{
    check_all_steps(BADCABLE_IN, BY_STREAM);
}

/* ---- while nodes meet ---- */

/* The frames of TCP's, TLS's and the daemons' greetings alike. */
Test(bad_network, nodes_meet_on_bad_cable)
{
    begin(2, BY_UCX, 3 * SEC, false);
    both_ways(&all_of_it);
    for (unsigned round = 0; round < 4; round++) {
        unsigned i = round % 2;
        agent_leave(&agents[i]);
        node_kill(&c.node[i], SIGKILL);
        cluster_restart(&c, i);
        cluster_meet(&c);
        agent_start(&agents[i], &c.node[i], i == 0 ? "agent near" : "agent far");
        check_life(i, LARGE, round);
    }
    badcable_heal(&cable);
    cluster_meet(&c);
    end(expected_warnings);
}

/* A node that dials gets no answer, or its messages are lost. In both cases each end answers requests, says what is wrong,
 * and connects as soon as it can. */
static void check_dead_from_start(enum badcable_way way)
{
    begin(2, BY_INLINE, SEC, false);
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_ref ref;
        struct rdt_stat stat;
        rdt *conn;

        badcable_set(&cable, way, &(struct badcable_faults){.dead = true});
        agent_leave(&agents[i]);
        node_kill(&c.node[i], SIGKILL);
        cluster_restart(&c, i);
        agent_start(&agents[i], &c.node[i], i == 0 ? "agent near" : "agent far");
        for (unsigned k = 0; k < 2; k++) {
            int64_t start = now_ns();
            conn = node_client(&c.node[k], "asker");
            ref = next_ref(1 - k);
            must_refuse(RDT_PEER_LOST, c.node[1 - k].address, rdt_stat(conn, &ref, &stat, &err));
            must_be_within(start, 5 * SEC);
            rdt_close(conn);
            bystander_round(&c, 1u << k);
        }
        badcable_heal(&cable);
        cluster_meet(&c);
        check_calls(BY_INLINE, 1);
    }
    end(expected_warnings);
}

Test(bad_network, nodes_meet_when_out_is_alive)
{
    check_dead_from_start(BADCABLE_OUT);
}

Test(bad_network, nodes_meet_when_in_is_alive)
{
    check_dead_from_start(BADCABLE_IN);
}
