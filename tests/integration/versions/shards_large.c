/* SPDX-License-Identifier: Apache-2.0 */
/* A version of as many parts and tensors as large models have. */
#include "tests/integration/versions/shards_fixture.h"
#include "tests/support/keeper.h"

TestSuite(shards_large, .timeout = 240);

enum { RANKS = 1024, TENSORS = 400, EACH = 4 };

static char keys[TENSORS][64];

/* Each rank has EACH rows of every tensor, as FSDP cuts them; the last tensor has no rows for the later ranks. */
static int64_t rows_of(unsigned tensor, unsigned rank)
{
    return tensor < TENSORS - 1 || rank < RANKS / 2 ? EACH : 0;
}

static uint8_t value(unsigned tensor, int64_t row)
{
    return (uint8_t)(tensor * 31 + (unsigned)row * 7);
}

static struct rdt_ref put_large(rdt *conn, unsigned rank)
{
    static int64_t whole[2] = {RANKS * EACH, 1}, half[2] = {RANKS * EACH / 2, 1};
    static struct rdt_tensor tensors[TENSORS];
    static struct rdt_shard shards[TENSORS];
    static uint8_t bytes[TENSORS][EACH];
    static int64_t shape[TENSORS][2], start[TENSORS][2];

    for (unsigned i = 0; i < TENSORS; i++) {
        shape[i][0] = rows_of(i, rank);
        shape[i][1] = 1;
        start[i][0] = shape[i][0] > 0 ? (int64_t)rank * EACH : 0;
        for (unsigned k = 0; k < EACH; k++)
            bytes[i][k] = value(i, (int64_t)rank * EACH + k);
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 2, .shape = shape[i], .data = bytes[i]};
        shards[i] = (struct rdt_shard){keys[i], i < TENSORS - 1 ? whole : half, start[i]};
    }
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .shards = shards};
    struct rdt_ref ref = put_as(conn, tensors, TENSORS, &options);
    return ref;
}

static void read_large(rdt *conn, const struct rdt_ref *name, unsigned tensor)
{
    static uint8_t read[RANKS * EACH];
    int64_t count[2] = {tensor < TENSORS - 1 ? RANKS * EACH : RANKS * EACH / 2, 1};
    struct rdt_want want = {keys[tensor], 2, NULL, count, RDT_U8, read, NULL};
    rdt_plan *plan;

    memset(read, 0, sizeof read);
    must_ok(rdt_plan_create(conn, name, &want, 1, NULL, &plan, &err));
    must_ok(rdt_plan_run(plan, 0, LONG, NULL, &err));
    for (int64_t row = 0; row < count[0]; row++)
        must(read[row] == value(tensor, row));
    rdt_plan_destroy(plan);
}

static void name_tensors(void)
{
    for (unsigned i = 0; i < TENSORS; i++)
        (void)snprintf(keys[i], sizeof keys[i], "model.layers.%03u.self_attention.query_key_value.weight", i);
}

Test(shards_large, version_of_1024_ranks_with_400_tensors_is_read_and_outlasts_its_daemon)
{
    static rdt_request *requests[RANKS];
    static struct rdt_ref refs[RANKS];
    static char flag[200];
    static const char *flags[] = {flag, NULL};
    struct test_keeper keeper = {0};

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    cluster_start(&c, 1, &(struct cluster_options){.stream = true, .no_ucx = true, .same_socket = true, .flags_of = {flags}});
    rdt *conn = on(0);
    struct rdt_ref name = name_on(0, "large", 0);
    name_tensors();
    for (unsigned rank = 0; rank < RANKS; rank++) {
        refs[rank] = put_large(conn, rank);
        requests[rank] = start_part(conn, &name, 1, rank, RANKS, &refs[rank]);
    }
    for (unsigned rank = 0; rank < RANKS; rank++) {
        must_ok(rdt_wait(conn, &requests[rank], 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(requests[rank]);
        must_ok(rdt_free(conn, &refs[rank], false, &err));
    }
    read_large(conn, &name, 123);
    read_large(conn, &name, TENSORS - 1);
    node_kill(&c.node[0], SIGKILL);
    cluster_restart(&c, 0);
    read_large(conn, &name, 321);
    must_ok(rdt_unpublish(conn, &name, &err));
    wait_until(LONG, objects_on(0) == 0); /* the parts have ended with the version */
    rdt_close(conn);
    node_stop(&c.node[0]);
    keeper_stop(&keeper, SIGTERM);
}

/* One publisher stops to wait: each of the others, and the one that ends meanwhile, is told by itself. */
Test(shards_large, failure_of_1024_ranks_answers_each_of_them)
{
    static rdt_request *requests[RANKS];
    static struct rdt_ref refs[RANKS];
    rdt *conn = begin_shards(1);
    rdt *leaver = on(0);
    struct rdt_ref name = name_on(0, "large", 0);

    name_tensors();
    for (unsigned rank = 0; rank < RANKS - 1; rank++) {
        refs[rank] = put_large(conn, rank);
        requests[rank] = start_part(rank % 3 == 2 ? leaver : conn, &name, 1, rank, RANKS, &refs[rank]);
    }
    rdt_cancel(requests[0]);
    must_be(RDT_CANCELLED, rdt_wait(conn, &requests[0], 1, 1, LONG, NULL, NULL, &err));
    rdt_close(leaver);
    for (unsigned rank = 0; rank < RANKS - 1; rank++) {
        must_ok(rdt_free(conn, &refs[rank], false, &err));
        if (rank % 3 == 2)
            continue;
        if (rank > 0)
            must_be(RDT_OWNER_DIED, rdt_wait(conn, &requests[rank], 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(requests[rank]);
    }
    wait_until(LONG, objects_on(0) == 0); /* no part is held */
    rdt_close(conn);
    node_stop(&c.node[0]);
}
