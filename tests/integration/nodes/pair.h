/* SPDX-License-Identifier: Apache-2.0 */
/* What most tests of several nodes begin with: a cluster, and a client of each of its first two nodes. */
#ifndef TESTS_INTEGRATION_NODES_PAIR_H
#define TESTS_INTEGRATION_NODES_PAIR_H

#include "tests/support/cluster.h"

static struct cluster c;
static rdt *owner, *reader; /* clients of node 0 and of node 1 */

static inline void begin_pair(unsigned n, const struct cluster_options *options)
{
    cluster_start(&c, n, options);
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
}

static inline void end(const char *const *declared)
{
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, declared);
}

#endif
