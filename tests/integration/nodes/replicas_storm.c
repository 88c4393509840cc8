/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of three nodes and readers on all of them, with random operations: the right bytes arrive, a forced free
 * reaches every node, and nothing is left behind. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/support/cluster.h"

TestSuite(replicas_storm, .timeout = 300);

#define KIB ((size_t)1024)

enum { NODES = 3, CLIENTS = 6, OBJECTS = 5, REQUESTS = 24 };

struct thing { /* a snapshot, or none */
    bool there;
    struct rdt_ref ref;
    size_t bytes;
    uint32_t seed;
    unsigned node;
};

struct asked {
    rdt_request *request; /* NULL: none */
    rdt *conn;
    size_t bytes;
    uint32_t seed;
    rdt_object *object; /* held */
};

static struct cluster c;
static rdt *producers[NODES], *conns[CLIENTS];
static struct thing things[OBJECTS];
static struct asked asked[REQUESTS];
static uint64_t dice;
static unsigned arrived, denied;

static uint32_t roll(uint32_t n)
{
    return next_random(&dice) % n;
}

static void put_thing(struct thing *thing)
{
    thing->node = roll(NODES);
    thing->bytes = (40 + roll(1500)) * KIB + roll(3);
    thing->seed = next_random(&dice);
    void *memory = alloc_memory(producers[thing->node], thing->bytes);
    fill_pattern(memory, thing->bytes, thing->seed);
    struct rdt_tensor tensor = VECTOR(RDT_U8, thing->bytes, memory);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .timeout_ns = LONG};
    must_ok(rdt_put(producers[thing->node], &tensor, 1, &options, &thing->ref, &err));
    must_ok(rdt_dealloc(producers[thing->node], memory, &err));
    thing->there = true;
}

static void free_thing(struct thing *thing)
{
    bool force = roll(2);

    must_ok(rdt_free(producers[thing->node], &thing->ref, force, &err));
    thing->there = false;
    for (unsigned i = 0; force && i < CLIENTS; i++)
        must_be(RDT_FREED, try_fetch(conns[i], &thing->ref, RDT_FETCH_AUTO, LONG, NULL, &err));
}

static void ask(struct asked *slot, const struct thing *thing)
{
    static const enum rdt_fetch_mode modes[] = {RDT_FETCH_AUTO, RDT_FETCH_AUTO, RDT_FETCH_AUTO, RDT_FETCH_COW, RDT_FETCH_COPY};
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = roll(8) ? LONG : (1 + roll(40)) * MSEC};

    options.mode = modes[roll(5)];
    *slot = (struct asked){.conn = conns[roll(CLIENTS)], .bytes = thing->bytes, .seed = thing->seed};
    must_ok(rdt_fetch_start(slot->conn, &thing->ref, 1, &options, &slot->request, &err));
}

static void take(struct asked *slot)
{
    struct rdt_error why = {0};

    if (roll(6) == 0)
        rdt_cancel(slot->request);
    enum rdt_status status = rdt_wait(slot->conn, &slot->request, 1, 1, LONG, NULL, NULL, &why);
    if (status == RDT_OK) {
        must_ok(rdt_request_take_object(slot->request, &slot->object, &err));
        struct rdt_tensor tensor = tensor_of(slot->object, 0);
        must(holds_pattern(tensor.data, slot->bytes, slot->seed));
        arrived++;
    } else {
        must_say(status == RDT_FREED || status == RDT_CANCELLED || status == RDT_TIMED_OUT, "%s: %s", rdt_status_name(status),
                 why.msg);
        denied++;
    }
    rdt_request_destroy(slot->request);
    slot->request = NULL;
}

/* A held object keeps its bytes, whatever happens to the object and its replicas. */
static void let_go(struct asked *slot)
{
    struct rdt_tensor tensor = tensor_of(slot->object, 0);

    must(holds_pattern(tensor.data, slot->bytes, slot->seed));
    rdt_release(slot->object);
    slot->object = NULL;
}

static void step(void)
{
    struct thing *thing = &things[roll(OBJECTS)];
    struct asked *slot = &asked[roll(REQUESTS)];

    if (!thing->there)
        put_thing(thing);
    else if (roll(12) == 0)
        free_thing(thing);
    if (slot->request)
        take(slot);
    else if (slot->object)
        let_go(slot);
    else if (thing->there)
        ask(slot, thing);
}

static void storm(const char *sided, const char *delay, const char *replicas_max)
{
    char set[64], max[64];
    const char *flags[] = {
        "--chunk=64KiB", "--quiesce-grace=20s", "--fanout-min=100KiB", "--memory-limit=96MiB", max, set, NULL};

    (void)snprintf(set, sizeof set, "--set=loopback.sided=%s", sided);
    (void)snprintf(max, sizeof max, "--replicas-max=%s", replicas_max);
    dice = (uint64_t)now_ns();
    (void)fprintf(stderr, "dice %llu\n", (unsigned long long)dice);
    cluster_start(&c, NODES, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
    for (unsigned i = 0; i < NODES; i++) {
        cluster_faults(&c, i, delay);
        producers[i] = node_client(&c.node[i], "producer");
    }
    for (unsigned i = 0; i < CLIENTS; i++)
        conns[i] = node_client(&c.node[i % NODES], "reader");
    for (unsigned i = 0; i < 2500; i++)
        step();
    for (unsigned i = 0; i < REQUESTS; i++) {
        if (asked[i].request)
            take(&asked[i]);
        if (asked[i].object)
            let_go(&asked[i]);
    }
    must_say(arrived > 300, "%u arrived, %u did not", arrived, denied);
    for (unsigned i = 0; i < CLIENTS; i++)
        rdt_close(conns[i]);
    for (unsigned i = 0; i < NODES; i++)
        rdt_close(producers[i]);
    cluster_end(&c, NULL); /* no connection was rebuilt: that would fail others' fetches */
}

Test(replicas_storm, sent)
{
    storm("two", "delay_ms=1\n", "1GiB");
}

Test(replicas_storm, read_or_sent)
{
#ifdef __SANITIZE_THREAD__
    cr_skip_test("that a reader has read before memory is used again is known by its word, which no tool follows");
#endif
    storm("both", "delay_ms=1\n", "3MiB");
}

Test(replicas_storm, at_once)
{
    storm("two", "", "1GiB");
}
