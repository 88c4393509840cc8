/* SPDX-License-Identifier: Apache-2.0 */
/* How a transfer that is given up ends at the owner's node. */
#include <criterion/criterion.h>

#include "tests/support/cluster.h"

TestSuite(loopback_aborts, .timeout = 120);

/* The transport would send the chunks in ten minutes: the owner's node calls them back, as the reader's does its receives. */
Test(loopback_aborts, sends_that_have_not_begun_end_at_once)
{
    const char *flags[] = {"--chunk=64KiB", "--chunks-in-flight=2", "--quiesce-grace=60s", "--set=loopback.sided=two", NULL};
    static struct cluster c;
    struct transfer_view view;

    cluster_start(&c, 2, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
    rdt *owner = node_client(&c.node[0], "owner");
    rdt *reader = node_client(&c.node[1], "reader");
    cluster_faults(&c, 0, "delay_ms=600000\n");
    struct rdt_ref ref = put_pattern(owner, NULL, (size_t)1 << 20, 1);
    rdt_request *request = start_one(reader, &ref, RDT_FOREVER);
    wait_until(LONG, operations_of(&c.node[0]) == 2);
    rdt_request_destroy(request);
    wait_until(LONG, !transfer_under_way(&c.node[0], "out", &view));
    cluster_faults(&c, 0, "");
    must_ok(rdt_free(owner, &ref, false, &err));
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, NULL);
}
