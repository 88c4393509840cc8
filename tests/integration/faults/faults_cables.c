/* SPDX-License-Identifier: Apache-2.0 */
/* A cable is cut or unplugged during a fetch: those who wait get an error in time, nothing is written afterwards, and the
 * nodes work again when the cable is back. */
#include "tests/integration/faults/faults.h"

TestSuite(faults_cables, .timeout = SUITE_SECONDS(280));

/* Tiny chunks, one at a time, so that a large transfer takes long even on a fast cable. */
static void begin_cables(void)
{
    static const char *const flags[] = {"--peer-timeout=3s",
                                        "--backoff-max=300ms",
                                        "--connect-timeout=3s",
                                        "--quiesce-grace=300ms",
                                        "--chunk=4KiB",
                                        "--chunks-in-flight=1",
                                        NULL};

    cluster_start(&c, 2, &(struct cluster_options){.cables = true, .flags = flags});
}

/* Where the machine is busy the bytes may be there before anybody looks, or a node is silent for longer than
 * the other is patient: then again. */
static bool is_caught(rdt *reader, rdt_request *request, bool moving)
{
    struct transfer_view view;
    enum rdt_status status;

    if (!moving) {
        await_transfer(&c.node[0], "out", "parked");
        return true;
    }
    for (unsigned round = 0;; wait_pause(&round)) {
        if (transfer_under_way(&c.node[0], "out", &view) && strcmp(view.state, "sending") == 0)
            return true;
        status = rdt_wait(reader, &request, 1, 1, 0, NULL, NULL, NULL);
        if (status == RDT_PEER_LOST)
            cluster_meet(&c);
        if (status == RDT_OK || status == RDT_PEER_LOST)
            return false;
        must_say(status == RDT_TIMED_OUT && rdt_request_status(request, NULL) == RDT_AGAIN, "%s", rdt_status_name(status));
    }
}

static void check_cable(void (*cut)(struct test_net *, unsigned), void (*restore)(struct test_net *, unsigned), bool moving)
{
    const size_t bytes = moving ? 96 << 20 : 1000;
    rdt_request *request;
    struct canary canary;
    struct rdt_tensor target;
    const struct rdt_tensor *targets = &target;
    size_t one = 1;

    begin_cables();
    rdt *owner = node_client(&c.node[0], "owner");
    rdt *reader = node_client(&c.node[1], "reader");
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .targets = &targets, .target_counts = &one, .timeout_ns = LONG};
    struct rdt_ref ref = moving ? put_pattern(owner, "w", bytes, 1) : ref_on(&c.node[0], "w");
    for (bool caught = false; !caught;) {
        canary_create(&canary, bytes);
        target = VECTOR(RDT_U8, bytes, canary.addr);
        must_ok(rdt_fetch_start(reader, &ref, 1, &options, &request, &err));
        caught = is_caught(reader, request, moving);
        if (!caught) {
            rdt_request_destroy(request);
            canary_destroy(&canary);
        }
    }
    int64_t start = now_ns();
    cut(&c.net, 0);
    bystander_round(&c, 1);
    bystander_round(&c, 2);
    must_be(RDT_PEER_LOST, rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_be_within(start, 5 * SEC); /* peer_timeout, and a little */
    rdt_request_destroy(request);
    must(canary_untouched(&canary));
    wait_until(10 * SEC, at_rest(0) && at_rest(1));
    must(canary_untouched(&canary));
    restore(&c.net, 0);
    cluster_meet(&c);
    if (!moving)
        ref = put_pattern(owner, "w", bytes, 1);
    fetch_pattern(reader, &ref, bytes, 1, NULL);
    bystander_round(&c, 3);
    canary_destroy(&canary);
    rdt_close(reader);
    rdt_close(owner);
    cluster_end(&c, expected_warnings);
}

Test(faults_cables, cut_while_parked)
{
    check_cable(net_cut, net_restore, false);
}

Test(faults_cables, cut_while_moving)
{
    check_cable(net_cut, net_restore, true);
}

Test(faults_cables, unplugged_while_parked)
{
    check_cable(net_unplug, net_plug, false);
}

Test(faults_cables, unplugged_while_moving)
{
    check_cable(net_unplug, net_plug, true);
}
