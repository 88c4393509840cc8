/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of 100,000 tensors, more than DeepSeek-V3 has: their manifests are too long for one message. */
#include "proto/manifest.h"
#include "tests/integration/versions/shards_fixture.h"
#include "tests/support/keeper.h"

TestSuite(shards_many, .timeout = 240);

enum { N = 100000, RANKS = 8, ELEMS = 2, SOME = 40 };

static char keys[N][64];
static const int64_t whole[1] = {ELEMS}, zero[1] = {0};
static uint8_t bytes[N][ELEMS];
static struct rdt_tensor tensors[N];
static struct rdt_shard shards[N];
static struct rdt_want wants[N];

static void name_tensors(void)
{
    for (unsigned i = 0; i < N; i++)
        (void)snprintf(keys[i], sizeof keys[i], "model.layers.%u.mlp.experts.%u.down_proj.weight_scale_inv", i % 61, i / 61);
}

static uint8_t value(uint64_t step, unsigned tensor, unsigned at)
{
    return (uint8_t)(31 * step + 7 * tensor + tensor / 256 + at);
}

/* Every of-th tensor of the first n, from number `rank` on. */
static struct rdt_ref put_some(rdt *conn, uint64_t step, uint32_t rank, uint32_t of, unsigned n)
{
    unsigned count = 0;

    for (unsigned i = rank; i < n; i += of) {
        for (unsigned k = 0; k < ELEMS; k++)
            bytes[count][k] = value(step, i, k);
        tensors[count] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = whole, .data = bytes[count]};
        shards[count++] = (struct rdt_shard){keys[i], whole, zero};
    }
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .shards = shards};
    return put_as(conn, tensors, count, &options);
}

/* Publishes them in `of` parts, in turns from both connections. */
static void publish_many(rdt *const conns[2], const struct rdt_ref *name, uint64_t step, uint32_t of)
{
    rdt_request *requests[RANKS];
    struct rdt_ref refs[RANKS];

    for (uint32_t rank = 0; rank < of; rank++) {
        refs[rank] = put_some(conns[rank % 2], step, rank, of, N);
        requests[rank] = start_part(conns[rank % 2], name, step, rank, of, &refs[rank]);
    }
    for (uint32_t rank = 0; rank < of; rank++) {
        must_ok(rdt_wait(conns[rank % 2], &requests[rank], 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(requests[rank]);
        must_ok(rdt_free(conns[rank % 2], &refs[rank], false, &err));
    }
}

/* Reads some tensors, or all. The last element of each only, unless all of them. */
static void read_many(rdt *conn, const struct rdt_ref *name, uint64_t step, unsigned n, enum rdt_plan_move move)
{
    static const int64_t last[1] = {ELEMS - 1}, one[1] = {1};
    struct rdt_plan_options options = RDT_INIT(options);
    struct rdt_plan_run run;
    rdt_plan *plan;

    options.move = move;
    memset(bytes, 0, sizeof bytes);
    for (unsigned i = 0; i < n; i++) {
        unsigned tensor = i * (N / n);
        wants[i] = n == N ? (struct rdt_want){keys[tensor], 1, NULL, whole, RDT_U8, bytes[i], NULL}
                          : (struct rdt_want){keys[tensor], 1, last, one, RDT_U8, bytes[i], NULL};
    }
    must_ok(rdt_plan_create(conn, name, wants, n, &options, &plan, &err));
    must_ok(rdt_plan_run(plan, 0, LONG, &run, &err));
    must(run.step == step && run.pieces == n);
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < (n == N ? ELEMS : 1); k++)
            must_say(bytes[i][k] == value(step, i * (N / n), n == N ? k : ELEMS - 1), "step %llu, tensor %u",
                     (unsigned long long)step, i * (N / n));
    rdt_plan_destroy(plan);
}

/* The name's daemon may be killed: with a keeper, the manifest outlasts it. */
static void is_read_on_two_nodes(uint32_t of)
{
    static char flag[200];
    static const char *flags[] = {flag, "--backoff-max=500ms", NULL};
    struct test_keeper keeper = {0};
    rdt *conns[2];

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true, .same_socket = true, .flags_of = {flags}});
    struct rdt_ref name = name_on(0, "many", 0);
    name_tensors();
    for (unsigned i = 0; i < 2; i++)
        conns[i] = on(i);
    for (uint64_t step = 1; step <= 2; step++) {
        publish_many(conns, &name, step, of);
        for (unsigned i = 0; i < 2; i++) {
            read_many(conns[i], &name, step, N, RDT_PLAN_AUTO);
            read_many(conns[i], &name, step, SOME, RDT_PLAN_SLICES);
        }
    }
    node_kill(&c.node[0], SIGKILL);
    cluster_restart(&c, 0);
    read_many(conns[0], &name, 2, SOME, RDT_PLAN_WHOLE);
    must_ok(rdt_unpublish(conns[0], &name, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0); /* the parts have ended with the version */
    for (unsigned i = 0; i < 2; i++) {
        rdt_close(conns[i]);
        node_stop(&c.node[i]);
    }
    keeper_stop(&keeper, SIGTERM);
}

Test(shards_many, one_process_publishes_100000_tensors)
{
    is_read_on_two_nodes(1);
}

Test(shards_many, eight_ranks_publish_100000_tensors)
{
    is_read_on_two_nodes(RANKS);
}

/* Small manifests have the form that earlier releases read. */
Test(shards_many, manifest_has_a_tensor_only_if_it_is_too_long_for_metadata)
{
    rdt *conn = begin_shards(1);

    name_tensors();
    for (unsigned large = 0; large < 2; large++) {
        struct rdt_ref name = name_on(0, large ? "large" : "small", 0);
        struct rdt_ref part = put_some(conn, 1, 0, 1, large ? N : SOME);
        rdt_object *object = NULL;
        size_t n;

        must_ok(rdt_publish_part(conn, &name, 1, 0, 1, &part, NULL, LONG, NULL, &err));
        must_ok(rdt_fetch(conn, &name, 1, NULL, &object, &err));
        must(rdt_object_is_manifest(object) && rdt_object_count(object) == large);
        must(memcmp(rdt_object_metadata(object, &n), large ? MANIFEST_LARGE : MANIFEST_MAGIC, MANIFEST_MAGIC_BYTES) == 0);
        rdt_release(object);
        must_ok(rdt_free(conn, &part, false, &err));
        must_ok(rdt_unpublish(conn, &name, &err));
    }
    end_shards(conn, NULL);
}

Test(shards_many, more_tensors_than_version_max_tensors_are_refused)
{
    static const char *const flags[] = {"--version-max-tensors=100", NULL};

    cluster_start(&c, 1, &(struct cluster_options){.stream = true, .no_ucx = true, .flags = flags});
    rdt *conn = on(0);
    struct rdt_ref name = name_on(0, "many", 0), parts[2];
    name_tensors();
    for (unsigned n = 100; n <= 101; n++) {
        rdt_request *requests[2];

        for (uint32_t rank = 0; rank < 2; rank++) {
            parts[rank] = put_some(conn, n, rank, 2, n);
            requests[rank] = start_part(conn, &name, n, rank, 2, &parts[rank]);
        }
        for (uint32_t rank = 0; rank < 2; rank++) {
            if (n == 100)
                must_ok(rdt_wait(conn, &requests[rank], 1, 1, LONG, NULL, NULL, &err));
            else
                must_refuse(RDT_LIMIT, "more tensors than the 100 of version_max_tensors",
                            rdt_wait(conn, &requests[rank], 1, 1, LONG, NULL, NULL, &err));
            rdt_request_destroy(requests[rank]);
            must_ok(rdt_free(conn, &parts[rank], false, &err));
        }
    }
    must_ok(rdt_unpublish(conn, &name, &err));
    wait_until(LONG, objects_on(0) == 0);
    end_shards(conn, NULL);
}

/* Its memory is that of the user who publishes. */
Test(shards_many, manifest_beyond_the_owners_memory_is_refused)
{
    static const char *const flags[] = {"--owner-max-bytes=8MiB", NULL};

    cluster_start(&c, 1, &(struct cluster_options){.stream = true, .no_ucx = true, .flags = flags});
    rdt *conn = on(0);
    struct rdt_ref name = name_on(0, "many", 0);
    name_tensors();
    struct rdt_ref part = put_some(conn, 1, 0, 1, N);
    must_refuse(RDT_LIMIT, "owner_max_bytes", rdt_publish_part(conn, &name, 1, 0, 1, &part, NULL, LONG, NULL, &err));
    must_ok(rdt_free(conn, &part, false, &err));
    wait_until(LONG, objects_on(0) == 0);
    end_shards(conn, NULL);
}

/* A publisher ends at various moments of the check: the version has become complete, or all others are told. */
Test(shards_many, publisher_that_ends_meanwhile_leaves_nothing)
{
    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "many", 0), parts[2];
    rdt_request *requests[2];

    name_tensors();
    for (uint64_t step = 1; step <= 12; step++) {
        rdt *leaver = on(0);

        for (uint32_t rank = 0; rank < 2; rank++)
            parts[rank] = put_some(conn, step, rank, 2, N);
        requests[0] = start_part(conn, &name, step, 0, 2, &parts[0]);
        must_ok(rdt_ping(conn, LONG, &err));
        requests[1] = start_part(leaver, &name, step, 1, 2, &parts[1]);
        must_ok(rdt_ping(leaver, LONG, &err)); /* the daemon has both parts */
        (void)rdt_wait(conn, requests, 1, 1, (int64_t)step * 10 * 1000000, NULL, NULL, NULL);
        rdt_request_destroy(requests[1]);
        rdt_close(leaver);
        enum rdt_status status = rdt_wait(conn, requests, 1, 1, LONG, NULL, NULL, NULL);
        must_say(status == RDT_OK || status == RDT_OWNER_DIED, "step %llu: %s", (unsigned long long)step,
                 rdt_status_name(status));
        rdt_request_destroy(requests[0]);
        for (uint32_t rank = 0; rank < 2; rank++)
            must_ok(rdt_free(conn, &parts[rank], false, &err));
    }
    (void)rdt_unpublish(conn, &name, NULL);
    wait_until(LONG, objects_on(0) == 0);
    end_shards(conn, NULL);
}
