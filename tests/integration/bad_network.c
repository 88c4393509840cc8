/* Networks that are bad and not dead: frames that are lost, late, doubled or out of order, one direction that carries nothing, a
 * cable that comes and goes. What TCP can mend nobody notices; what it cannot is told on both ends in time and in type.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/badcable.h"
#include "tests/support/cluster.h"
#include "tests/support/fault_agent.h"

TestSuite(bad_network, .timeout = 280);

#define KIB ((size_t)1024)
#define SMALL (4 * KIB) /* inline */
#define LARGE (256 * KIB)
#define FLAP_MS 300
#define FLAPS 15

static struct cluster c;
static struct badcable cable;
static struct agent agents[2]; /* one on each end of the cable */
static int64_t peer_timeout;

static const char *const expected_warnings[] = {
    "is down: ",
    "is lost: ",
    "taken down and rebuilt: ",
    "refused",
    "connection from",
    "not connected",
    "reset",
    "timed out",
    "no TLS handshake",
    "no answer",
    "unreachable",
    "no connection",
    "its token is unknown or was used before", /* a transport's greeting that came after its link had gone */
    "closing an endpoint: it says nothing",    /* or that never came */
    NULL};

/* Nodes 0 (behind the cable), 1 and perhaps 2; an agent at each end. */
enum carrier { BY_INLINE, BY_UCX, BY_STREAM };

static void begin(unsigned n, enum carrier by, int64_t timeout, bool chunky)
{
    static char timeout_flag[48], ping_flag[48];
    const char *flags[] = {timeout_flag,
                           ping_flag,
                           "--backoff-max=200ms",
                           "--connect-timeout=2s",
                           "--quiesce-grace=300ms",
                           "--drain-timeout=100ms",
                           chunky ? "--chunk=16KiB" : NULL,
                           "--chunks-in-flight=1",
                           NULL};

    peer_timeout = patience(timeout);
    (void)snprintf(timeout_flag, sizeof timeout_flag, "--peer-timeout=%lldms", (long long)(peer_timeout / MSEC));
    (void)snprintf(ping_flag, sizeof ping_flag, "--ping-interval=%lldms", (long long)(peer_timeout / 10 / MSEC));
    cluster_start(&c, n,
                  &(struct cluster_options){.cables = true, .no_ucx = by != BY_UCX, .stream = by == BY_STREAM, .flags = flags});
    badcable_put(&cable, &c.net, 0, 1);
    for (unsigned i = 0; i < 2; i++)
        agent_start(&agents[i], &c.node[i], i == 0 ? "agent near" : "agent far");
}

static void end(const char *const *declared)
{
    for (unsigned i = 0; i < 2; i++)
        agent_leave(&agents[i]);
    badcable_take(&cable);
    cluster_end(&c, declared);
}

static void both_ways(const struct badcable_faults *faults)
{
    badcable_set(&cable, BADCABLE_WAYS, faults);
}

/* ---- orders ---- */

static struct rdt_ref next_ref(unsigned node)
{
    static unsigned number;
    char id[16];

    (void)snprintf(id, sizeof id, "w%u", ++number);
    return ref_on(&c.node[node], id);
}

static struct rdt_ref must_put(unsigned i, const struct rdt_ref *ref, size_t bytes, uint32_t seed)
{
    struct agent_report report;

    agent_order(&agents[i],
                &(struct agent_order){.verb = AGENT_PUT, .ref = *ref, .bytes = bytes, .seed = seed, .timeout_ns = LONG});
    agent_report(&agents[i], &report);
    must_say(report.status[0] == RDT_OK, "put: %s", report.msg[0]);
    return report.ref;
}

static void start_fetch(unsigned i, const struct rdt_ref *ref, size_t bytes, uint32_t seed, int64_t timeout_ns)
{
    agent_order(
        &agents[i],
        &(struct agent_order){
            .verb = AGENT_FETCH, .ref = *ref, .bytes = bytes, .seed = seed, .timeout_ns = timeout_ns, .cancel_after_ns = -1});
}

static void start_simple(unsigned i, enum agent_verb verb, const struct rdt_ref *ref, bool force)
{
    agent_order(&agents[i], &(struct agent_order){.verb = verb, .ref = *ref, .force = force, .timeout_ns = LONG});
}

#define MAY(status) (1ull << -(status))

/* Each of the calls of the order under way ended with one of these. */
static void must_end(unsigned i, unsigned items, uint64_t may)
{
    struct agent_report report;

    agent_report(&agents[i], &report);
    for (unsigned k = 0; k < items; k++)
        must_say(may & MAY(report.status[k]), "%s, call %u: %s: %s", agents[i].name, k, rdt_status_name(report.status[k]),
                 report.msg[k]);
}

static void must_do(unsigned i, enum agent_verb verb, const struct rdt_ref *ref, bool force)
{
    start_simple(i, verb, ref, force);
    must_end(i, 1, MAY(RDT_OK));
}

static unsigned incoming(unsigned i, const char *state)
{
    struct transfer_view views[64];
    unsigned n = transfers_of(&c.node[i], views, 64), found = 0;

    for (unsigned k = 0; k < n; k++)
        found +=
            strcmp(views[k].direction, "in") == 0 && views[k].elapsed_ns == 0 && (!state || strcmp(views[k].state, state) == 0);
    return found;
}

static bool at_rest(unsigned i)
{
    struct node_status status;

    node_status(&c.node[i], &status);
    return status.transfers_active == 0 && pins_of(&c.node[i]) == 0;
}

/* ---- what TCP mends ---- */

/* Parked, put, waited for, fetched, freed and waited for from the other end of the cable. */
static void check_life(unsigned owner, size_t bytes, uint32_t seed)
{
    unsigned reader = 1 - owner;
    struct rdt_ref ref = next_ref(owner), id = ref;

    start_fetch(reader, &id, bytes, seed, LONG);
    await_transfer(&c.node[owner], "out", "parked");
    ref = must_put(owner, &id, bytes, seed);
    must_end(reader, AGENT_ITEMS, MAY(RDT_OK));
    must_do(reader, AGENT_WAIT_PUT, &ref, false);
    start_fetch(reader, &ref, bytes, seed, LONG);
    must_do(owner, AGENT_FREE, &ref, false);
    must_do(owner, AGENT_WAIT_FREED, &ref, false);
    must_end(reader, AGENT_ITEMS, MAY(RDT_OK) | MAY(RDT_FREED)); /* it was freed before the fetch was heard of */
    must_do(reader, AGENT_RELEASE, &ref, false);
}

/* A name's next version. */
static void check_name(unsigned owner, size_t bytes, uint32_t seed)
{
    unsigned reader = 1 - owner;
    struct rdt_ref id = next_ref(owner), name, ref;
    struct agent_order publish = {.verb = AGENT_PUBLISH};

    must_ok(rdt_ref_from_name(id.id, 0, &id, &name, &err));
    start_fetch(reader, &name, bytes, seed, LONG);
    await_transfer(&c.node[owner], "out", "parked");
    publish.ref = ref = must_put(owner, &id, bytes, seed);
    (void)snprintf(publish.name, sizeof publish.name, "%s", id.id);
    agent_order(&agents[owner], &publish);
    must_end(owner, 1, MAY(RDT_OK));
    must_end(reader, AGENT_ITEMS, MAY(RDT_OK));
    must_do(owner, AGENT_UNPUBLISH, &name, false);
    must_do(owner, AGENT_FREE, &ref, false);
    must_do(reader, AGENT_RELEASE, &ref, false);
}

/* The other node's agent frees what is being fetched. */
static void check_forced_free(unsigned owner, size_t bytes, uint32_t seed)
{
    unsigned reader = 1 - owner;
    struct rdt_ref ref = next_ref(owner);
    rdt *freer = node_client(&c.node[reader], "freer");

    ref = must_put(owner, &ref, bytes, seed);
    start_fetch(reader, &ref, bytes, seed, LONG);
    must_ok(rdt_free(freer, &ref, true, &err));
    must_end(reader, AGENT_ITEMS, MAY(RDT_OK) | MAY(RDT_FREED));
    must_do(owner, AGENT_WAIT_FREED, &ref, false);
    must_do(reader, AGENT_RELEASE, &ref, false);
    rdt_close(freer);
}

static void check_calls(enum carrier by, unsigned rounds)
{
    size_t bytes = by == BY_INLINE ? SMALL : LARGE;

    for (unsigned round = 0; round < rounds; round++) {
        check_life(round % 2, bytes, round);
        check_name(1 - round % 2, bytes, round);
        check_forced_free(round % 2, bytes, round);
    }
}

/* The cable is what it is said to be: an answer takes a delay in each direction. */
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
    struct badcable_counts counts;

    begin(2, by, 3 * SEC, false);
    both_ways(faults);
    check_delay(faults->delay_us);
    check_calls(by, rounds);
    counts = badcable_counts(&cable);
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
        both_ways(&(struct badcable_faults){.delay_us = 30000});
    start_fetch(1, &ref, bytes, seed, LONG);
    if (step == PARKED)
        await_transfer(&c.node[0], "out", "parked");
    else if (step != HELD && bytes == SMALL) /* its bytes come with the answer; the witness is the other one */
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
    struct rdt_ref ref;
    int64_t struck;

    begin_waiting(witness);
    ref = reach(step, bytes, seed);
    struck = now_ns();
    badcable_set(&cable, way, &(struct badcable_faults){.dead = true});
    bystander_round(&c, 1);
    bystander_round(&c, 6);
    must_be_told(witness, struck);
    if (step != HELD) {
        uint64_t may = MAY(RDT_PEER_LOST);
        if (step != PARKED) /* it may be over already */
            may |= MAY(RDT_OK);
        if (step == MOVING || step == WAITING_FREED) /* the transport may notice before the link does */
            may |= bytes > SMALL ? MAY(RDT_TRANSPORT) : 0;
        if (step == WAITING_FREED)
            may |= MAY(RDT_FREED); /* before it was heard of */
        must_end(1, AGENT_ITEMS, may);
        must_be_within(struck, 4 * SEC);
    }
    if (step == WAITING_FREED) { /* its reader is lost, so nobody reads */
        must_end(0, 1, MAY(RDT_OK));
        must_be_within(struck, 4 * SEC);
    }
    wait_until(5 * SEC, at_rest(0) && at_rest(1));
    start_simple(1, AGENT_LOOK, &ref, false); /* what was delivered is right, and nothing is written any more */
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

/* Whoever dials hears nothing, or is not heard. Either way each end can be asked, says what is wrong, and finds the other one
 * when it can. */
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

/* ---- a cable that comes and goes ---- */

static bool is_typed(enum rdt_status status)
{
    return status == RDT_OK || status == RDT_TIMED_OUT || status == RDT_PEER_LOST || status == RDT_TRANSPORT;
}

/* Until the ends have found each other, or for half a flap. */
static void await_link(void)
{
    int64_t deadline = now_ns() + FLAP_MS / 2 * MSEC;
    struct peer_view view;

    for (unsigned round = 0; now_ns() < deadline; wait_pause(&round))
        if (peer_seen(&c.node[0], &c.node[1], &view) && strcmp(view.state, "up") == 0)
            return;
}

static void check_flapping(enum carrier by, int64_t timeout)
{
    const size_t bytes = by == BY_INLINE ? SMALL : LARGE;
    const int64_t deadline = patience(700 * MSEC);
    int64_t last;
    unsigned ended[2] = {0};

    begin(2, by, timeout, true);
    both_ways(&(struct badcable_faults){.flap_ms = FLAP_MS, .delay_us = 1000});
    last = now_ns() + FLAPS * 2 * FLAP_MS * MSEC;
    for (unsigned round = 0; now_ns() < last; round++) {
        struct rdt_ref ref[2] = {next_ref(0), next_ref(1)};
        struct agent_report report;
        await_link();
        for (unsigned i = 0; i < 2; i++)
            ref[i] = must_put(i, &ref[i], bytes, round);
        for (unsigned i = 0; i < 2; i++)
            start_fetch(i, &ref[1 - i], bytes, round, deadline);
        for (unsigned i = 0; i < 2; i++) {
            agent_report(&agents[i], &report); /* which looks at every byte */
            for (unsigned k = 0; k < AGENT_ITEMS; k++) {
                must_say(is_typed(report.status[k]), "round %u, %s, call %u: %s: %s", round, agents[i].name, k,
                         rdt_status_name(report.status[k]), report.msg[k]);
                ended[report.status[k] == RDT_OK]++;
            }
            must_say(report.elapsed_ns < deadline + patience(3 * SEC), "round %u: %lld ms", round,
                     (long long)(report.elapsed_ns / MSEC));
        }
        for (unsigned i = 0; i < 2; i++) {
            start_simple(i, AGENT_FREE, &ref[i], false);
            must_end(i, 1, MAY(RDT_OK));
        }
        for (unsigned i = 0; i < 2; i++) {
            start_simple(i, AGENT_RELEASE, &ref[i], false); /* and again */
            must_end(i, 0, MAY(RDT_OK));
        }
    }
    if (peer_timeout < FLAP_MS * MSEC) /* else TCP may mend it all */
        must_say(ended[0] > 0, "nobody noticed, %u fetches came", ended[1]);
    badcable_heal(&cable);
    wait_until(10 * SEC, at_rest(0) && at_rest(1)); /* what cannot be stopped takes its connection down, and others on it */
    cluster_meet(&c);
    check_calls(by, 2);
    end(expected_warnings);
}

Test(bad_network, flapping_inline)
{
    check_flapping(BY_INLINE, 2 * SEC);
}

Test(bad_network, flapping_ucx)
{
    check_flapping(BY_UCX, 2 * SEC);
}

Test(bad_network, flapping_stream)
{
    check_flapping(BY_STREAM, 2 * SEC);
}

/* Each flap is longer than the patience: every one loses the link. */
Test(bad_network, flapping_loses_link_inline)
{
    check_flapping(BY_INLINE, 150 * MSEC);
}

Test(bad_network, flapping_loses_link_ucx)
{
    check_flapping(BY_UCX, 150 * MSEC);
}

Test(bad_network, flapping_loses_link_stream)
{
    check_flapping(BY_STREAM, 150 * MSEC);
}
