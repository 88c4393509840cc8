/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that notice a lost peer soon, with a test transport whose delays keep a step open. */
#ifndef TESTS_INTEGRATION_FAULTS_H
#define TESTS_INTEGRATION_FAULTS_H

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cluster.h"

#define CHUNK ((size_t)64 << 10)
#define BYTES (30 * CHUNK)
#define PEER_TIMEOUT (2 * SEC)
#define BUSY_BYTES ((size_t)512 << 20) /* keeps a pool of one thread busy for a while */

static struct cluster c;

static const char *const expected_warnings[] = {
    "is down: ", "is lost: ", "taken down and rebuilt: ", "refused",   "connection from", "not connected",
    "reset",     "timed out", "no TLS handshake",         "no answer", "unreachable",     "no connection",
    NULL};

static inline void begin_with(unsigned n, const char *sided, const char *further)
{
    char set[64];
    const char *flags[] = {"--peer-timeout=2s",
                           further ? further : "--backoff-max=300ms",
                           "--connect-timeout=2s",
                           "--chunk=64KiB",
                           "--chunks-in-flight=2",
                           "--quiesce-grace=500ms",
                           "--worker-threads=1",
                           set,
                           NULL};

    (void)snprintf(set, sizeof set, "--set=loopback.sided=%s", sided);
    cluster_start(&c, n, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
}

static inline void begin(unsigned n, const char *sided)
{
    begin_with(n, sided, NULL);
}

static inline void set_faults(const char *lines)
{
    for (unsigned i = 0; i < c.n; i++)
        cluster_faults(&c, i, lines);
}

static inline unsigned outgoing_in(const char *state)
{
    struct transfer_view views[64];
    unsigned n = transfers_of(&c.node[0], views, 64), found = 0;

    for (unsigned i = 0; i < n; i++)
        found += views[i].elapsed_ns == 0 && strcmp(views[i].direction, "out") == 0 && strcmp(views[i].state, state) == 0;
    return found;
}

static inline bool at_rest(unsigned i)
{
    struct node_status status = node_now(&c.node[i]);

    return status.transfers_active == 0 && pins_of(&c.node[i]) == 0;
}

#endif
