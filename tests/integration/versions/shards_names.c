/* SPDX-License-Identifier: Apache-2.0 */
/* The names of versions of many parts in a cluster with a node table: parts that come together without an address, and two jobs
 * that use one name. */
#include <unistd.h>

#include "tests/integration/versions/shards_fixture.h"
#include "wire_ref.h"

TestSuite(shards_names, .timeout = 120);

static void begin(unsigned nodes, const char *const *flags)
{
    cluster_start(
        &c, nodes,
        &(struct cluster_options){.stream = true, .no_ucx = true, .table = true, .same_socket = true, .flags = flags});
}

static struct rdt_ref anywhere(const char *name)
{
    struct rdt_ref ref = {0};

    must_ok(rdt_ref_from_name(name, 0, NULL, &ref, &err));
    return ref;
}

/* Whether a version of the name waits for parts, for at least age_ns. */
static bool pends(rdt *conn, const struct rdt_ref *name, int64_t age_ns)
{
    Rdt__Pb__Shards request = RDT__PB__SHARDS__INIT;
    ProtobufCMessage *message;
    Rdt__Pb__Ref wire;

    wire_ref_from(name, &wire);
    request.name = &wire;
    if (call(conn, RDT_MSG_SHARDS, &request.base, LONG, &message, NULL) != RDT_OK)
        return false;
    const Rdt__Pb__ShardsReply *reply = (const Rdt__Pb__ShardsReply *)message;
    bool found = reply->n_pending == 1 && reply->pending[0]->age_ns >= age_ns;
    protobuf_c_message_free_unpacked(message, NULL);
    return found;
}

static uint64_t pending_versions(rdt *conn)
{
    struct rdt_daemon_status status = RDT_INIT(status);

    must_ok(rdt_daemon_status(conn, &status, &err));
    return status.shard_pending;
}

/* The whole version is one part. */
static enum rdt_status publish_alone(rdt *conn, const struct rdt_ref *name, uint64_t step, uint64_t *version_p,
                                     struct rdt_error *why)
{
    struct rdt_ref ref = put_rank(conn, step, 0, 1, true);
    enum rdt_status status = rdt_publish_part(conn, name, step, 0, 1, &ref, NULL, LONG, version_p, why);

    must_ok(rdt_free(conn, &ref, false, &err));
    return status;
}

static void end(rdt *const *conns, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        wait_until(LONG, objects_on(i) == 0);
    for (unsigned i = 0; i < n; i++)
        rdt_close(conns[i]);
    cluster_end(&c, told);
}

Test(shards_names, parts_of_three_nodes_come_together_without_an_address)
{
    static struct view views[3];
    struct rdt_ref name = anywhere("policy");
    uint64_t version = 0;
    rdt *conns[3];

    begin(3, NULL);
    for (unsigned i = 0; i < 3; i++) {
        conns[i] = on(i);
        view_open(&views[i], conns[i], &name, 0, COLUMNS, RDT_PLAN_AUTO);
    }
    for (uint64_t step = 1; step <= 3; step++) {
        rdt *turned[3] = {conns[step % 3], conns[(step + 1) % 3], conns[(step + 2) % 3]};

        must(publish(turned, 3, &name, step, 4, true) == step);
        for (unsigned i = 0; i < 3; i++) {
            must_ok(rdt_plan_run(views[i].plan, version, LONG, NULL, &err));
            view_check(&views[i], step);
        }
        version = step;
    }
    for (unsigned i = 0; i < 3; i++)
        rdt_plan_destroy(views[i].plan);
    must_ok(rdt_unpublish(conns[2], &name, &err));
    end(conns, 3);
}

Test(shards_names, second_job_on_another_node_is_refused)
{
    uint64_t version = 0;
    rdt *conns[3];

    begin(3, NULL);
    for (unsigned i = 0; i < 3; i++)
        conns[i] = on(i);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref other = name_on(1, "policy", 0);
    struct rdt_ref ref = put_rank(conns[0], 1, 0, 2, true);
    rdt_request *request = start_part(conns[0], &name, 1, 0, 2, &ref);
    wait_until(LONG, pends(conns[0], &name, 0));
    must_refuse(RDT_EXISTS, "\"policy\" is being published on node n0", publish_alone(conns[1], &other, 1, NULL, &err));
    struct rdt_ref whole = put_rank(conns[2], 1, 0, 1, true);
    must_refuse(RDT_EXISTS, "\"policy\" is being published on node n0",
                rdt_publish(conns[2], "policy", &whole, NULL, NULL, &err));
    must_ok(rdt_free(conns[2], &whole, false, &err));
    must_ok(rdt_free(conns[0], &ref, false, &err));
    ref = put_rank(conns[1], 1, 1, 2, true); /* those who work together name the same node */
    must_ok(rdt_publish_part(conns[1], &name, 1, 1, 2, &ref, NULL, LONG, &version, &err));
    must_ok(rdt_wait(conns[0], &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_ok(rdt_free(conns[1], &ref, false, &err));
    must(version == 1);
    must_refuse(RDT_EXISTS, "published on node n0", publish_alone(conns[1], &other, 1, NULL, &err));
    other = anywhere("policy");
    must_refuse(RDT_INVALID, "step 1 is complete, and steps must grow", publish_alone(conns[1], &other, 1, NULL, &err));
    must_ok(rdt_unpublish(conns[2], &name, &err));
    other = name_on(1, "policy", 0);
    wait_until(LONG, publish_alone(conns[1], &other, 1, &version, NULL) == RDT_OK);
    must(version == 2);
    must_ok(rdt_unpublish(conns[1], &other, &err));
    end(conns, 3);
}

Test(shards_names, name_of_a_failed_version_is_free)
{
    rdt *conns[2];

    begin(2, NULL);
    for (unsigned i = 0; i < 2; i++)
        conns[i] = on(i);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref other = name_on(1, "policy", 0);
    struct rdt_ref ref = put_rank(conns[0], 1, 0, 2, true);
    rdt_request *request = start_part(conns[0], &name, 1, 0, 2, &ref);
    wait_until(LONG, pends(conns[0], &name, 0));
    rdt_request_destroy(request);
    must_ok(rdt_free(conns[0], &ref, false, &err));
    wait_until(5 * SEC, publish_alone(conns[1], &other, 1, NULL, NULL) == RDT_OK); /* an unused claim would last for ten */
    must_ok(rdt_unpublish(conns[1], &other, &err));
    end(conns, 2);
}

/* One of the nodes that are asked for the name does not answer. */
Test(shards_names, slow_version_keeps_its_deadline_and_its_name)
{
    static const char *const flags[] = {"--peer-timeout=60s", NULL};
    rdt_request *request;
    rdt *conns[3];

    begin(3, flags);
    for (unsigned i = 0; i < 3; i++)
        conns[i] = on(i);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref other = name_on(1, "policy", 0);
    struct rdt_ref ref = put_rank(conns[0], 1, 0, 2, true);
    node_freeze(&c.node[2]);
    must_ok(rdt_publish_part_start(conns[0], &name, 1, 0, 2, &ref, NULL, RDT_FOREVER, &request, &err));
    wait_until(LONG, pends(conns[0], &name, 4 * SEC)); /* longer than the wait for the nodes was allowed to take */
    node_thaw(&c.node[2]);
    wait_until(LONG, pends(conns[0], &name, 12 * SEC)); /* and than a claim lasts that nobody uses */
    must_be(RDT_AGAIN, rdt_request_status(request, &err));
    must(doctor_says(conns[0], "RDT050", "has 1 of 2 parts: it lacks those of ranks 1."));
    must(doctor_says(conns[1], "RDT050", "No version of many parts has waited for long"));
    must(pending_versions(conns[0]) == 1);
    must_refuse(RDT_EXISTS, "being published on node n0", publish_alone(conns[1], &other, 1, NULL, &err));
    must_ok(rdt_free(conns[0], &ref, false, &err));
    ref = put_rank(conns[1], 1, 1, 2, true);
    must_ok(rdt_publish_part(conns[1], &name, 1, 1, 2, &ref, NULL, LONG, NULL, &err));
    must_ok(rdt_wait(conns[0], &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_ok(rdt_free(conns[1], &ref, false, &err));
    must_ok(rdt_unpublish(conns[1], &name, &err));
    end(conns, 3);
}

/* ---- tenants ---- */

/* The clients of node 1 are of the tenant "lab". shares: what node 0 believes other nodes; NULL: the unnamed tenant alone. */
static void begin_tenants(const char *shares)
{
    static const char *const lab[] = {"--tenant=lab", "--share-tenants=lab", NULL};
    static const char *other[] = {NULL, NULL};

    other[0] = shares;
    cluster_start(&c, 2,
                  &(struct cluster_options){.stream = true, .no_ucx = true, .flags_of = {other, lab}, .no_meeting = true});
}

Test(shards_names, parts_of_a_tenant_that_is_not_shared_are_refused_with_the_rule)
{
    static const char rule[] = "tenant \"lab\" is not shared with other nodes here (share_tenants)";

    begin_tenants(NULL);
    rdt *far = on(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_ref part = put_rank(far, 1, 0, 1, true);
    must_refuse(RDT_DENIED, rule, rdt_publish_part(far, &name, 1, 0, 1, &part, NULL, LONG, NULL, &err));
    must_refuse(RDT_DENIED, rule, rdt_unpublish(far, &name, &err));
    must_ok(rdt_free(far, &part, false, &err));
    rdt_close(far);
    cluster_end(&c, told);
}

Test(shards_names, the_same_name_of_two_tenants_is_two_names)
{
    static struct view views[2];
    rdt *conns[2];

    begin_tenants("--share-tenants=lab");
    struct rdt_ref name = name_on(0, "policy", 0); /* of whoever asks */
    for (unsigned i = 0; i < 2; i++) {
        conns[i] = on(i);
        view_open(&views[i], conns[i], &name, 0, COLUMNS, RDT_PLAN_AUTO);
    }
    must(publish(&conns[1], 1, &name, 7, 4, true) == 1);
    must_be(RDT_TIMED_OUT, rdt_plan_run(views[0].plan, 0, 10 * MSEC, NULL, &err));
    must(publish(&conns[0], 1, &name, 3, 2, true) == 1); /* a step below that of the other tenant */
    for (unsigned i = 0; i < 2; i++) {
        must_ok(rdt_plan_run(views[i].plan, 0, LONG, NULL, &err));
        view_check(&views[i], i == 0 ? 3 : 7);
    }
    struct rdt_ref labs = name;
    labs.any_owner = 0;
    labs.uid = getuid();
    (void)snprintf(labs.tenant, sizeof labs.tenant, "lab");
    struct rdt_ref part = put_rank(conns[0], 8, 0, 1, true);
    must_refuse(RDT_DENIED, "of tenant \"lab\": only that user may publish its parts",
                rdt_publish_part(conns[0], &labs, 8, 0, 1, &part, NULL, LONG, NULL, &err));
    must_ok(rdt_free(conns[0], &part, false, &err));
    for (unsigned i = 0; i < 2; i++) {
        must_ok(rdt_unpublish(conns[i], &name, &err));
        rdt_plan_destroy(views[i].plan);
    }
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0);
    for (unsigned i = 0; i < 2; i++)
        rdt_close(conns[i]);
    cluster_end(&c, told);
}
