/* SPDX-License-Identifier: Apache-2.0 */
/* A cable is unplugged again and again, for shorter and for longer than peer_timeout. */
#include "tests/integration/faults/bad_network.h"

TestSuite(bad_network_flapping, .timeout = 280);

#define FLAPPING_MS 9000 /* the duration of one run */

static bool is_typed(enum rdt_status status)
{
    return status == RDT_OK || status == RDT_TIMED_OUT || status == RDT_PEER_LOST || status == RDT_TRANSPORT;
}

/* Until the ends have found each other, or for half a flap. */
static void await_link(unsigned flap_ms)
{
    int64_t deadline = now_ns() + flap_ms / 2 * MSEC;
    struct peer_view view;

    for (unsigned round = 0; now_ns() < deadline; wait_pause(&round))
        if (peer_seen(&c.node[0], &c.node[1], &view) && strcmp(view.state, "up") == 0)
            return;
}

static void check_flapping(enum carrier by, int64_t timeout, unsigned flap_ms)
{
    const size_t bytes = by == BY_INLINE ? SMALL : LARGE;
    const int64_t deadline = patience(700 * MSEC);
    unsigned ended[2] = {0};

    begin(2, by, timeout, true);
    both_ways(&(struct badcable_faults){.flap_ms = flap_ms, .delay_us = 1000});
    int64_t last = now_ns() + FLAPPING_MS * MSEC;
    for (unsigned round = 0; now_ns() < last; round++) {
        struct rdt_ref ref[2] = {next_ref(0), next_ref(1)};
        struct agent_report report;
        await_link(flap_ms);
        for (unsigned i = 0; i < 2; i++)
            ref[i] = must_put(i, &ref[i], bytes, round);
        for (unsigned i = 0; i < 2; i++)
            start_fetch(i, &ref[1 - i], bytes, round, deadline);
        for (unsigned i = 0; i < 2; i++) {
            agent_report(&agents[i], &report); /* the agent checks every byte */
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
    if (peer_timeout < (int64_t)flap_ms * MSEC) /* else TCP may mend it all */
        must_say(ended[0] > 0, "nobody noticed, %u fetches came", ended[1]);
    badcable_heal(&cable);
    wait_until(10 * SEC, at_rest(0) && at_rest(1)); /* rebuilding a connection ends its other operations too */
    cluster_meet(&c);
    check_calls(by, 2);
    end(expected_warnings);
}

Test(bad_network_flapping, flapping_inline)
{
    check_flapping(BY_INLINE, 2 * SEC, 300);
}

Test(bad_network_flapping, flapping_ucx)
{
    check_flapping(BY_UCX, 2 * SEC, 300);
}

Test(bad_network_flapping, flapping_stream)
{
    check_flapping(BY_STREAM, 2 * SEC, 300);
}

/* Each flap is longer than the patience: every one loses the link. */
Test(bad_network_flapping, flapping_loses_link_inline)
{
    check_flapping(BY_INLINE, 350 * MSEC, 750);
}

Test(bad_network_flapping, flapping_loses_link_ucx)
{
    check_flapping(BY_UCX, 350 * MSEC, 750);
}

Test(bad_network_flapping, flapping_loses_link_stream)
{
    check_flapping(BY_STREAM, 350 * MSEC, 750);
}
