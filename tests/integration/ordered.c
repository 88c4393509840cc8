/* Daemons over the test transport with one truly ordered queue per node: nothing in it moves before what was posted first has. Whatever
 * crosses arrives, and what is stuck at the head of a queue holds up nobody longer than it takes to take it out.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cluster.h"

TestSuite(ordered, .timeout = 240);

#define CHUNK ((size_t)64 << 10)
#define MAX_NODES 4

static struct cluster c;
static rdt *client[MAX_NODES];
static unsigned by_uuid[MAX_NODES]; /* the nodes, smallest uuid first */

static const char *const rebuilt[] = {"taken down and rebuilt", NULL};

static int compare(const void *a, const void *b)
{
    return memcmp(c.node[*(const unsigned *)a].uuid_bytes, c.node[*(const unsigned *)b].uuid_bytes, 16);
}

static void begin(unsigned n, const char *ordered, const char *further)
{
    char set[64];
    const char *flags[] = {"--chunk=64KiB",
                           "--chunks-in-flight=2",
                           "--quiesce-grace=300ms",
                           "--set=loopback.sided=two",
                           "--ping-interval=50ms",
                           "--peer-timeout=1s",
                           set,
                           further,
                           NULL};

    (void)snprintf(set, sizeof set, "--set=loopback.ordered=%s", ordered);
    cluster_start(&c, n, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
    for (unsigned i = 0; i < n; i++) {
        client[i] = node_client(&c.node[i], "tester");
        by_uuid[i] = i;
    }
    qsort(by_uuid, n, sizeof by_uuid[0], compare);
}

static void end(const char *const *declared)
{
    for (unsigned i = 0; i < c.n; i++)
        rdt_close(client[i]);
    cluster_end(&c, declared);
}

/* ---- a fetch with a target of its own, between margins ---- */

struct move {
    struct rdt_ref ref;
    rdt *reader;
    size_t bytes;
    uint32_t seed;
    struct canary memory;
    rdt_request *request;
};

/* Four shapes: one piece; many small tensors, which are gathered and scattered; a transposed one, gathered; memory of the daemon. */
static void put_source(struct move *move, rdt *owner, uint32_t seed)
{
    size_t bytes = 40000 + (seed * 70001u) % 400000;

    move->seed = seed;
    move->bytes = bytes;
    move->ref = put_pattern(owner, NULL, bytes, seed);
}

static void start(struct move *move, rdt *reader, bool targets, int64_t timeout_ns)
{
    struct rdt_tensor target;
    const struct rdt_tensor *list = &target;
    struct rdt_fetch_options options = RDT_INIT(options);
    size_t one = 1;

    canary_create(&move->memory, move->bytes);
    target = VECTOR(RDT_U8, move->bytes, move->memory.addr);
    options.timeout_ns = timeout_ns;
    options.targets = targets ? &list : NULL;
    options.target_counts = targets ? &one : NULL;
    move->reader = reader;
    must_ok(rdt_fetch_start(reader, &move->ref, 1, &options, &move->request, &err));
}

/* How it ended; every byte is right if it ended well, and its margins are untouched. */
static enum rdt_status finish(struct move *move, struct rdt_error *why)
{
    enum rdt_status status = rdt_wait(move->reader, &move->request, 1, 1, LONG, NULL, NULL, why);
    rdt_object *object;

    if (status == RDT_OK) {
        must_ok(rdt_request_take_object(move->request, &object, &err));
        must_go_by("loopback", object);
        must(holds_pattern(tensor_of(object, 0).data, move->bytes, move->seed));
        rdt_release(object);
    }
    rdt_request_destroy(move->request);
    must(canary_alive(&move->memory));
    canary_destroy(&move->memory);
    return status;
}

/* ---- what crosses arrives ---- */

enum { MANY = 24 };

static struct move moves[MAX_NODES][MANY];

/* Each node fetches from the next one, all at once; how many did not end well. */
static unsigned all_around(unsigned n, unsigned many)
{
    unsigned bad = 0;

    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < many; k++)
            put_source(&moves[i][k], client[(i + 1) % n], i * MANY + k + 1);
    for (unsigned k = 0; k < many; k++)
        for (unsigned i = 0; i < n; i++)
            start(&moves[i][k], client[i], k % 2, LONG);
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < many; k++) {
            struct rdt_error why = {0};
            enum rdt_status status = finish(&moves[i][k], &why);
            bad += status != RDT_OK;
            must_say(status == RDT_OK || status == RDT_TRANSPORT || status == RDT_NO_PATH, "%s", why.msg);
            if (status != RDT_OK && bad == 1)
                (void)fprintf(stderr, "node %u fetch %u: %s\n", i, k, why.msg);
            must_ok(rdt_free(client[(i + 1) % n], &moves[i][k].ref, false, &err));
        }
    return bad;
}

Test(ordered, crossing_transfers_arrive)
{
    begin(2, "yes", NULL);
    for (unsigned round = 0; round < 3; round++)
        must(all_around(2, MANY) == 0);
    end(NULL);
}

Test(ordered, ring_of_transfers_arrives)
{
    begin(3, "yes", NULL);
    for (unsigned round = 0; round < 3; round++)
        must(all_around(3, MANY) == 0);
    end(NULL);
}

/* The same, where the daemons are not told of the queues: they post as it comes, and it stands still. What these tests would not see
 * without this. */
Test(ordered, untold_they_stand_still)
{
    unsigned bad = 0;

    begin(2, "unsaid", "--stall-timeout=300ms");
    for (unsigned round = 0; round < 20 && bad == 0; round++)
        bad = all_around(2, 8);
    must(bad > 0);
    end(rebuilt);
}
