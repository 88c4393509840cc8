/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes on a cable whose faults the test sets, and an agent at each end that obeys the test. */
#ifndef TESTS_INTEGRATION_BAD_NETWORK_H
#define TESTS_INTEGRATION_BAD_NETWORK_H

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/cluster.h"
#include "tests/support/fakes/badcable.h"
#include "tests/support/fault_agent.h"

#define KIB ((size_t)1024)
#define SMALL (4 * KIB) /* inline */
#define LARGE (256 * KIB)

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
    "closing an endpoint: it did not send its greeting in time",
    NULL};

/* Nodes 0 (behind the cable), 1 and perhaps 2; an agent at each end. */
enum carrier { BY_INLINE, BY_UCX, BY_STREAM };

static inline void begin(unsigned n, enum carrier by, int64_t timeout, bool chunky)
{
    static char timeout_flag[48];
    const char *flags[] = {timeout_flag,
                           "--backoff-max=200ms",
                           "--connect-timeout=2s",
                           "--quiesce-grace=300ms",
                           "--drain-timeout=100ms",
                           chunky ? "--chunk=16KiB" : NULL,
                           "--chunks-in-flight=1",
                           NULL};

    peer_timeout = patience(timeout);
    (void)snprintf(timeout_flag, sizeof timeout_flag, "--peer-timeout=%lldms", (long long)(peer_timeout / MSEC));
    cluster_start(&c, n,
                  &(struct cluster_options){.cables = true, .no_ucx = by != BY_UCX, .stream = by == BY_STREAM, .flags = flags});
    badcable_put(&cable, &c.net, 0, 1);
    for (unsigned i = 0; i < 2; i++)
        agent_start(&agents[i], &c.node[i], i == 0 ? "agent near" : "agent far");
}

static inline void end(const char *const *declared)
{
    for (unsigned i = 0; i < 2; i++)
        agent_leave(&agents[i]);
    badcable_take(&cable);
    cluster_end(&c, declared);
}

static inline void both_ways(const struct badcable_faults *faults)
{
    badcable_set(&cable, BADCABLE_WAYS, faults);
}

/* ---- orders ---- */

static inline struct rdt_ref next_ref(unsigned node)
{
    static unsigned number;
    char id[16];

    (void)snprintf(id, sizeof id, "w%u", ++number);
    return ref_on(&c.node[node], id);
}

static inline struct rdt_ref must_put(unsigned i, const struct rdt_ref *ref, size_t bytes, uint32_t seed)
{
    struct agent_report report;

    agent_order(&agents[i],
                &(struct agent_order){.verb = AGENT_PUT, .ref = *ref, .bytes = bytes, .seed = seed, .timeout_ns = LONG});
    agent_report(&agents[i], &report);
    must_say(report.status[0] == RDT_OK, "put: %s", report.msg[0]);
    return report.ref;
}

static inline void start_fetch(unsigned i, const struct rdt_ref *ref, size_t bytes, uint32_t seed, int64_t timeout_ns)
{
    agent_order(
        &agents[i],
        &(struct agent_order){
            .verb = AGENT_FETCH, .ref = *ref, .bytes = bytes, .seed = seed, .timeout_ns = timeout_ns, .cancel_after_ns = -1});
}

static inline void start_simple(unsigned i, enum agent_verb verb, const struct rdt_ref *ref, bool force)
{
    agent_order(&agents[i], &(struct agent_order){.verb = verb, .ref = *ref, .force = force, .timeout_ns = LONG});
}

#define MAY(status) (1ull << -(status))

/* Each of the calls of the order under way ended with one of these. */
static inline void must_end(unsigned i, unsigned items, uint64_t may)
{
    struct agent_report report;

    agent_report(&agents[i], &report);
    for (unsigned k = 0; k < items; k++)
        must_say(may & MAY(report.status[k]), "%s, call %u: %s: %s", agents[i].name, k, rdt_status_name(report.status[k]),
                 report.msg[k]);
}

static inline void must_do(unsigned i, enum agent_verb verb, const struct rdt_ref *ref, bool force)
{
    start_simple(i, verb, ref, force);
    must_end(i, 1, MAY(RDT_OK));
}

static inline unsigned incoming(unsigned i, const char *state)
{
    struct transfer_view views[64];
    unsigned n = transfers_of(&c.node[i], views, 64), found = 0;

    for (unsigned k = 0; k < n; k++)
        found +=
            strcmp(views[k].direction, "in") == 0 && views[k].elapsed_ns == 0 && (!state || strcmp(views[k].state, state) == 0);
    return found;
}

static inline bool at_rest(unsigned i)
{
    struct node_status status = node_now(&c.node[i]);

    return status.transfers_active == 0 && pins_of(&c.node[i]) == 0;
}

/* ---- lives of objects across the cable ---- */

/* Parked, put, waited for, fetched, freed and waited for from the other end of the cable. */
static inline void check_life(unsigned owner, size_t bytes, uint32_t seed)
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
static inline void check_name(unsigned owner, size_t bytes, uint32_t seed)
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
static inline void check_forced_free(unsigned owner, size_t bytes, uint32_t seed)
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

static inline void check_calls(enum carrier by, unsigned rounds)
{
    size_t bytes = by == BY_INLINE ? SMALL : LARGE;

    for (unsigned round = 0; round < rounds; round++) {
        check_life(round % 2, bytes, round);
        check_name(1 - round % 2, bytes, round);
        check_forced_free(round % 2, bytes, round);
    }
}

/* The cable is what it is said to be: an answer takes a delay in each direction. */

#endif
