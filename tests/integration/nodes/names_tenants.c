/* SPDX-License-Identifier: Apache-2.0 */
/* Names of tenants that the nodes do not share: nobody waits for nodes that can say nothing of them. A publish that waited
 * would take two seconds, and the hundred of a test longer than its suite's limit. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/support/cluster.h"

TestSuite(names_tenants, .timeout = SUITE_SECONDS(100));

static struct cluster c;

static bool have_met(void)
{
    struct node_status status[2];

    for (unsigned i = 0; i < 2; i++)
        node_status(&c.node[i], &status[i]);
    return status[0].peers_up == 1 && status[1].peers_up == 1;
}

static void publish_many(const char *const *first, const char *const *second)
{
    struct rdt_ref ref, name;
    char text[16], byte = 1;
    rdt *conn;

    cluster_start(&c, 2,
                  &(struct cluster_options){
                      .no_ucx = true, .stream = true, .table = true, .no_meeting = true, .flags_of = {first, second}});
    wait_until(LONG, have_met());
    conn = node_client(&c.node[0], "publisher");
    ref = put_one(conn, &VECTOR(RDT_U8, 1, &byte), NULL);
    for (unsigned i = 0; i < 100; i++) {
        (void)snprintf(text, sizeof text, "name %u", i);
        must_ok(rdt_publish(conn, text, &ref, NULL, NULL, &err));
        must_ok(rdt_ref_from_name(text, 0, NULL, &name, &err));
        rdt_release(fetch_one(conn, &name, RDT_FETCH_AUTO));
        must_ok(rdt_unpublish(conn, &name, &err));
    }
    must_ok(rdt_free(conn, &ref, false, &err));
    rdt_close(conn);
    cluster_end(&c, (const char *const[]){"cannot connect", NULL});
}

Test(names_tenants, tenant_that_this_node_does_not_share_is_published_at_once)
{
    static const char *const lab[] = {"--tenant=lab", NULL};

    publish_many(lab, lab);
}

Test(names_tenants, tenant_that_the_home_does_not_share_is_published_at_once)
{
    static const char *const lab[] = {"--share-tenants=lab", NULL};

    publish_many(NULL, lab);
}
