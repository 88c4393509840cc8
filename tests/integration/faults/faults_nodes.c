/* SPDX-License-Identifier: Apache-2.0 */
/* What later calls and the other nodes see after a node is lost. */
#include "tests/integration/faults/faults.h"

TestSuite(faults_nodes, .timeout = SUITE_SECONDS(280));

/* For long enough to ask again meanwhile. Nobody is dialled for ever that nobody asks for. */
static bool backs_off(rdt *reader, const struct rdt_ref *ref)
{
    struct peer_view view;
    struct rdt_stat stat;

    must_be(RDT_PEER_LOST, rdt_stat(reader, ref, &stat, &err));
    return peer_seen(&c.node[1], &c.node[0], &view) && strcmp(view.state, "backoff") == 0 && view.retry_in_ns > SEC;
}

Test(faults_nodes, dead_node_refused_at_once)
{
    struct rdt_stat stat;
    rdt_object *object;
    char address[65];

    begin_with(2, "two", "--backoff-max=5s");
    struct rdt_ref ref = ref_on(&c.node[0], "x");
    (void)snprintf(address, sizeof address, "%s", c.node[0].address);
    node_kill(&c.node[0], SIGKILL);
    rdt *reader = node_client(&c.node[1], "reader");
    for (unsigned i = 0; i < 50; i++) {
        int64_t start = now_ns();
        must_refuse(RDT_PEER_LOST, address, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
        must_refuse(RDT_PEER_LOST, address, rdt_stat(reader, &ref, &stat, &err));
        must_be_within(start, SEC);
    }
    wait_until(20 * SEC, backs_off(reader, &ref));
    must_refuse(RDT_PEER_LOST, "next try in", try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_refuse(RDT_PEER_LOST, "next try in", rdt_stat(reader, &ref, &stat, &err));
    rdt_close(reader);
    cluster_restart(&c, 0);
    cluster_meet(&c);
    cluster_end(&c, expected_warnings);
}

/* A ref of the life before says so. */
Test(faults_nodes, ref_of_earlier_start_is_not_found)
{
    rdt_object *object;

    begin(2, "two");
    rdt *owner = node_client(&c.node[0], "owner");
    rdt *reader = node_client(&c.node[1], "reader");
    struct rdt_ref ref = put_pattern(owner, "w", 100, 1);
    node_kill(&c.node[0], SIGKILL);
    rdt_close(owner);
    cluster_restart(&c, 0);
    cluster_meet(&c);
    must_refuse(RDT_NOT_FOUND, "earlier start", try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    rdt_close(reader);
    cluster_end(&c, expected_warnings);
}

/* Transfers between the others go on. */
Test(faults_nodes, lost_node_breaks_no_other)
{
    char delay[32];

    begin(3, "two");
    rdt *owner = node_client(&c.node[0], "owner");
    rdt *reader = node_client(&c.node[1], "reader");
    rdt *third = node_client(&c.node[2], "third");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    struct rdt_ref gone = put_pattern(third, NULL, BYTES, 2);
    (void)snprintf(delay, sizeof delay, "delay_ms=%lld\n",
                   (long long)(patience(100 * MSEC) / MSEC)); /* both last until one node is dead */
    set_faults(delay);
    rdt_request *request = start_one(reader, &ref, LONG);
    rdt_request *lost = start_one(reader, &gone, LONG);
    await_engine(&c.node[1]);
    wait_until(10 * SEC, pins_of(&c.node[2]) > 0);
    node_kill(&c.node[2], SIGKILL);
    must_be(RDT_PEER_LOST, rdt_wait(reader, &lost, 1, 1, LONG, NULL, NULL, &err));
    rdt_object *object = await_object(reader, request);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 1));
    rdt_release(object);
    rdt_request_destroy(request);
    rdt_request_destroy(lost);
    rdt_close(third);
    rdt_close(owner);
    rdt_close(reader);
    set_faults("");
    cluster_restart(&c, 2);
    cluster_meet(&c);
    cluster_end(&c, expected_warnings);
}

/* A node's ordinary end: what waits for it is told, the others stay. */
Test(faults_nodes, stopped_node_is_lost)
{
    begin(2, "two");
    rdt *reader = node_client(&c.node[1], "reader");
    struct rdt_ref ref = ref_on(&c.node[0], "never");
    rdt_request *request = start_one(reader, &ref, LONG);
    wait_until(10 * SEC, outgoing_in("parked") == 1);
    must(kill(c.node[0].pid, SIGTERM) == 0);
    must(kill(c.node[0].pid, SIGTERM) == 0); /* again: not waiting for transfers */
    enum rdt_status status = rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, NULL);
    must_say(status == RDT_SHUTTING_DOWN || status == RDT_PEER_LOST, "%s", rdt_status_name(status));
    must(node_result(&c.node[0]) == 0);
    rdt_request_destroy(request);
    rdt_close(reader);
    cluster_restart(&c, 0);
    cluster_meet(&c);
    cluster_end(&c, expected_warnings);
}
