/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on devices that a transport moves but cannot register: it goes through host memory at that end, by the transport that
 * is then the fastest, and `rdtctl explain` says so.
 */
#include "tests/integration/devices/device_nodes_fixture.h"

TestSuite(device_unregistered, .timeout = 150);

static void expect(const struct rdt_ref *ref, uint32_t seed, const char *path)
{
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .memory = "fake", .device = "THERE-0", .timeout_ns = LONG};
    rdt_object *object = fetch_as(reader, ref, &options);

    must_go_by(path, object);
    must_lie(object, 0, "fake", "THERE-0");
    must(holds_pattern(tensor_of(object, 0).data, LARGE, seed));
    rdt_release(object);
}

static void must_explain(unsigned node, const struct rdt_ref *ref, const char *text)
{
    struct program program = {0};
    char packed[RDT_REF_TEXT_BYTES];

    rdt_ref_to_text(ref, packed);
    program_run(&program, (const char *const[]){"rdtctl", "--socket", c.node[node].socket, "explain", packed, NULL}, NULL);
    must_say(strstr(program.out, text), "explain: %s%s", program.out, program.err);
    program_free(&program);
}

/* What a driver or a NIC refuses costs speed, and no fetch fails for it. */
Test(device_unregistered, memory_that_cannot_be_registered_goes_through_host_memory)
{
    struct rdt_member members[] = {{.client = "owner", .device = "HERE-0"}, {.client = "reader", .device = "THERE-0"}};

    begin_with(&(struct cluster_options){
        .grouped = true, .no_ucx = true, .flags = (const char *const[]){"--set", "grouped.devices=yes", NULL}});
    members[1].node = c.node[1].address;
    must_ok(rdt_group_create(owner, "g", "grouped", members, 2, NULL, &err));
    for (unsigned node = 2; node-- > 0;) { /* the reader first: later it has memory that was registered */
        cluster_faults(&c, node, "refuse_registration=1\n");
        struct rdt_ref ref = put_on("HERE-0", LARGE, 4 + node);
        expect(&ref, 4 + node, node == 0 ? "grouped" : "grouped/staged");
        must_explain(node, &ref, node == 0 ? "grouped/staged" : "fake memory could not be registered: ");
        cluster_faults(&c, node, "");
        expect(&ref, 4 + node, "grouped");
    }
    must_ok(rdt_group_destroy(owner, "g", &err));
    end(NULL);
}

/* The reader would read it one-sided: it asks again, to be sent the bytes. */
Test(device_unregistered, owner_sends_what_it_cannot_register_for_reads)
{
    begin_with(&(struct cluster_options){
        .loopback = true, .no_ucx = true, .flags = (const char *const[]){"--set", "loopback.devices=yes", NULL}});
    cluster_faults(&c, 0, "refuse_registration=1\n");
    struct rdt_ref ref = put_on("HERE-0", LARGE, 6);
    expect(&ref, 6, "loopback/staged");
    must_explain(1, &ref, "through host memory on the other node: fake memory could not be registered there: ");
    cluster_faults(&c, 0, "");
    expect(&ref, 6, "loopback");
    end(NULL);
}

/* Neither of two transports can register the reader's memory: the faster one goes through host memory. */
Test(device_unregistered, each_transport_that_failed_is_remembered)
{
    struct rdt_member members[] = {{.client = "owner", .device = "HERE-0"}, {.client = "reader", .device = "THERE-0"}};

    begin_with(&(struct cluster_options){
        .loopback = true,
        .grouped = true,
        .no_ucx = true,
        .flags = (const char *const[]){"--set", "loopback.devices=yes", "--set", "grouped.devices=yes", NULL}});
    members[1].node = c.node[1].address;
    must_ok(rdt_group_create(owner, "g", "grouped", members, 2, NULL, &err));
    cluster_faults(&c, 1, "refuse_registration=1\n");
    struct rdt_ref ref = put_on("HERE-0", LARGE, 7);
    expect(&ref, 7, "loopback/staged");
    must_explain(1, &ref, "fake memory could not be registered: ");
    cluster_faults(&c, 1, "");
    expect(&ref, 7, "loopback");
    must_ok(rdt_group_destroy(owner, "g", &err));
    end(NULL);
}

static void must_diagnose(bool says)
{
    struct program program = {0};

    program_run(&program, (const char *const[]){"rdtctl", "--socket", c.node[1].socket, "doctor", NULL}, NULL);
    must_say((strstr(program.out, "Host memory could not be pinned for fake memory") != NULL) == says, "doctor: %s%s",
             program.out, program.err);
    program_free(&program);
}

/* Copies by way of memory that the driver does not pin are right, and slow: the doctor says so. */
Test(device_unregistered, memory_that_cannot_be_pinned_is_diagnosed)
{
    begin_with(&(struct cluster_options){.stream = true, .no_ucx = true});
    struct rdt_ref ref = put_on("HERE-0", LARGE, 8);
    expect(&ref, 8, "stream/staged");
    must_diagnose(false);
    for (unsigned i = 0; i < 2; i++)
        atomic_store(&gpu[i].control->refuse_pins, 1);
    ref = put_on("HERE-0", 3 * LARGE, 9);
    struct rdt_ref host = put_pattern(reader, NULL, LARGE, 10); /* is copied twice from here, and then pinned */
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_fetch_options options = {
            .struct_size = sizeof options, .memory = "fake", .device = "THERE-0", .timeout_ns = LONG};
        rdt_object *object = fetch_as(reader, &host, &options);
        must(holds_pattern(tensor_of(object, 0).data, LARGE, 10));
        rdt_release(object);
    }
    wait_until(LONG, atomic_load(&gpu[1].control->unpinned_bytes) > 0);
    must_diagnose(true);
    end(NULL);
}
