/* SPDX-License-Identifier: Apache-2.0 */
/* A reader that lacks the memory for what several nodes fetch at the same time. */
#include <criterion/criterion.h>

#include "tests/support/cluster.h"

TestSuite(fanout_memory, .timeout = 120);

#define KIB ((size_t)1024)
#define BYTES (4096 * KIB)

static struct cluster c;

static void set_delay(const char *line)
{
    for (unsigned i = 0; i < c.n; i++)
        cluster_faults(&c, i, line);
}

static bool is_moving(unsigned node)
{
    struct transfer_view view;

    return transfer_under_way(&c.node[node], "in", &view) && view.bytes_done >= 128 * KIB;
}

static struct rdt_ref put_snapshot(rdt *conn)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *memory = alloc_memory(conn, BYTES);
    struct rdt_ref ref;

    fill_pattern(memory, BYTES, 7);
    options.flags = RDT_PUT_SNAPSHOT;
    options.timeout_ns = LONG;
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, BYTES, memory), 1, &options, &ref, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    return ref;
}

static uint64_t redirected(void)
{
    struct node_status status;

    node_status(&c.node[0], &status);
    return status.redirected;
}

static void must_arrive(rdt *conn, rdt_request *request)
{
    rdt_object *object;

    must_ok(rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 7));
    rdt_release(object);
    rdt_request_destroy(request);
}

/* It would fail wherever it read. Its source is not to blame, and the next reader gets the same. */
Test(fanout_memory, reader_without_memory_costs_its_source_nothing)
{
    const char *flags[] = {"--chunk=64KiB",     "--chunks-in-flight=2", "--set=loopback.sided=two",
                           "--fanout-min=1MiB", "--peer-timeout=30s",   NULL};
    static const char *const little[] = {"--memory-limit=2MiB", NULL};
    rdt *owner, *reader, *poor, *late;
    rdt_request *requests[2];
    struct rdt_ref ref;

    cluster_start(
        &c, 4, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags, .flags_of = {NULL, NULL, little}});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    poor = node_client(&c.node[2], "poor");
    late = node_client(&c.node[3], "late");
    ref = put_snapshot(owner);
    set_delay("delay_ms=100\n");
    requests[0] = start_one(reader, &ref, LONG);
    wait_until(LONG, is_moving(1));
    must_refuse(RDT_LIMIT, "memory_limit", try_fetch(poor, &ref, RDT_FETCH_AUTO, LONG, NULL, &err));
    must(redirected() == 1);
    requests[1] = start_one(late, &ref, LONG);
    wait_until(LONG, is_moving(3));
    must_say(redirected() == 2, "the owner's node sends it to the next reader itself");
    set_delay("");
    must_arrive(reader, requests[0]);
    must_arrive(late, requests[1]);
    must_ok(rdt_free(owner, &ref, false, &err));
    rdt_close(owner);
    rdt_close(reader);
    rdt_close(poor);
    rdt_close(late);
    cluster_end(&c, NULL);
}
