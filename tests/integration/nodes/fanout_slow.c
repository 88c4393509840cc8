/* SPDX-License-Identifier: Apache-2.0 */
/* Fan-out beside a node whose cable is really slow: other nodes begin to read from it, and are moved to another source as soon
 * as it shows. What is checked is who sent how many bytes, and who is done first. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/cluster.h"

TestSuite(fanout_slow, .timeout = 240);

#define MIB ((size_t)1024 * 1024)
#define BYTES (24 * MIB) /* at least 16 MiB show the owner's node what a reader can take */
#define SLOW 1u
#define WAITS 4u                  /* the node whose readers wait for other objects */
#define SLOW_BYTES_PER_SECOND 1e6 /* 400 Mbit/s, and a fiftieth of that */

static struct cluster c;

/* Bytes for the slow node are still in the cable when it no longer wants them. */
static const char *const meant[] = {"taken down and rebuilt", NULL};

/* Each node sends at `mbit`; the slow one sends and receives at a fiftieth of it, so that it is the slowest on a busy machine,
 * too. */
static bool shape(unsigned mbit)
{
    for (unsigned i = 0; i < c.n; i++)
        if (net_run(c.net.ns[i], "tc qdisc add dev eth0 root tbf rate %umbit burst 64k latency 50ms",
                    i == SLOW ? mbit / 50 : mbit))
            return false;
    return net_run(c.net.hub, "tc qdisc add dev p%u root tbf rate %umbit burst 64k latency 50ms", SLOW, mbit / 50) == 0;
}

static struct rdt_ref put_snapshot(rdt *owner, uint32_t seed)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *memory = alloc_memory(owner, BYTES);
    struct rdt_tensor tensor = VECTOR(RDT_U8, BYTES, memory);
    struct rdt_ref ref;

    fill_pattern(memory, BYTES, seed);
    options.flags = RDT_PUT_SNAPSHOT;
    options.timeout_ns = LONG;
    must_ok(rdt_put(owner, &tensor, 1, &options, &ref, &err));
    must_ok(rdt_dealloc(owner, memory, &err));
    return ref;
}

static void must_arrive(rdt *reader, rdt_request *request, uint32_t seed)
{
    struct rdt_tensor tensor;
    rdt_object *object;

    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    tensor = tensor_of(object, 0);
    must(holds_pattern(tensor.data, BYTES, seed));
    rdt_release(object);
    rdt_request_destroy(request);
}

static bool receives(unsigned node)
{
    struct transfer_view view;

    return transfer_under_way(&c.node[node], "in", &view) && view.bytes_done > 0;
}

static uint64_t sent_by(unsigned node)
{
    struct node_status status;

    node_status(&c.node[node], &status);
    return status.bytes_out;
}

#define WAITING 64u

/* Fetches of objects that nobody has put wait at the owner's node; they take none of its bandwidth. */
static void start_waiting(rdt *owner, rdt *reader, rdt_request *waits_p[WAITING])
{
    uint8_t byte = 3;
    struct rdt_tensor small = VECTOR(RDT_U8, 1, &byte);
    struct rdt_ref any, never;

    must_ok(rdt_put(owner, &small, 1, NULL, &any, &err));
    never = any;
    never.generation = 0;
    for (unsigned i = 0; i < WAITING; i++) {
        never.id_bytes = (uint8_t)snprintf(never.id, sizeof never.id, "never-%u", i);
        waits_p[i] = start_one(reader, &never, RDT_FOREVER);
    }
    rdt_release(fetch_one(reader, &any, RDT_FETCH_AUTO)); /* the others were asked for before */
    must_ok(rdt_free(owner, &any, true, &err));
}

static void end(rdt *owner, rdt *const *readers)
{
    for (unsigned i = SLOW; i < c.n; i++)
        rdt_close(readers[i]);
    rdt_close(owner);
    cluster_end(&c, meant);
}

Test(fanout_slow, readers_leave_a_slow_node)
{
    const char *flags[] = {"--fanout-min=1MiB", NULL};
    rdt *owner = NULL, *readers[5] = {NULL};
    rdt_request *requests[WAITS] = {NULL}, *waits[WAITING];
    struct rdt_ref ref;
    struct node_status status;
    uint64_t before;
    int64_t took_ns;

    cluster_start(&c, 5, &(struct cluster_options){.cables = true, .no_ucx = true, .stream = true, .flags = flags});
    if (!shape(400)) {
        end(owner, readers);
        cr_skip_test("no `tc` here (iproute2), or no token bucket in the kernel");
    }
    owner = node_client(&c.node[0], "owner");
    for (unsigned i = 1; i < c.n; i++)
        readers[i] = node_client(&c.node[i], "reader");

    /* The owner's node learns what a reader can take. */
    ref = put_snapshot(owner, 5);
    took_ns = now_ns();
    must_arrive(readers[3], start_one(readers[3], &ref, LONG), 5);
    took_ns = now_ns() - took_ns;
    must_ok(rdt_free(owner, &ref, true, &err));
    if (BYTES * 1e9 / (double)took_ns < 8 * SLOW_BYTES_PER_SECOND) {
        end(owner, readers);
        cr_skip_test("beside all that runs on this machine, the slow cable is not slower than the others");
    }

    start_waiting(owner, readers[WAITS], waits);

    /* The slow node is the first, and the others read from it. */
    ref = put_snapshot(owner, 7);
    before = sent_by(0);
    for (unsigned i = SLOW; i < WAITS; i++) {
        requests[i] = start_one(readers[i], &ref, LONG);
        wait_until(10 * SEC, receives(i) || rdt_request_status(requests[i], NULL) != RDT_AGAIN);
    }
    for (unsigned i = SLOW + 1; i < WAITS; i++)
        must_arrive(readers[i], requests[i], 7);
    must_be(RDT_TIMED_OUT, rdt_wait(readers[SLOW], &requests[SLOW], 1, 1, 0, NULL, NULL, &err)); /* it is not done yet */
    must_say(sent_by(SLOW) < BYTES / 2, "the slow node sent %llu bytes to the others", (unsigned long long)sent_by(SLOW));
    must_say(sent_by(0) > before + BYTES / 2, "the owner sent %llu bytes", (unsigned long long)(sent_by(0) - before));
    node_status(&c.node[0], &status);
    must_say(status.redirected >= 2, "nobody was redirected");

    rdt_cancel(requests[SLOW]);
    must_be(RDT_CANCELLED, rdt_wait(readers[SLOW], &requests[SLOW], 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(requests[SLOW]);
    for (unsigned i = 0; i < WAITING; i++)
        rdt_request_destroy(waits[i]);
    cluster_expect_idle_of_transfers(&c);
    must_ok(rdt_free(owner, &ref, true, &err));
    end(owner, readers);
}
