/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of many parts whose daemons have keepers, and are killed or restarted. Only the versions hold their parts. */
#include "tests/integration/versions/shards_fixture.h"
#include "tests/support/keeper.h"
#include "wire_ref.h"

#include <pthread.h>

TestSuite(shards_restart, .timeout = 120);

static struct test_keeper keepers[2];
static struct view views[2];
static struct rdt_ref name;
static rdt *conns[2];

/* Readers of all of "w" on both nodes, and a version of four parts. */
static void begin(unsigned n_keepers)
{
    static char flag[2][200];
    static const char *flags[2][4];
    struct cluster_options options = {.stream = true, .no_ucx = true, .same_socket = true};

    for (unsigned i = 0; i < 2; i++) {
        unsigned n = 0;

        if (i < n_keepers) {
            keeper_start(&keepers[i]);
            (void)snprintf(flag[i], sizeof flag[i], "--keeper=%s", keepers[i].socket);
            flags[i][n++] = flag[i];
        }
        flags[i][n++] = "--backoff-max=500ms";
        flags[i][n++] = "--hold-grace=2s"; /* so long a node keeps what an earlier daemon held */
        options.flags_of[i] = flags[i];
    }
    cluster_start(&c, 2, &options);
    name = name_on(0, "policy", 0);
    for (unsigned i = 0; i < 2; i++) {
        conns[i] = on(i);
        view_open(&views[i], conns[i], &name, 0, COLUMNS, RDT_PLAN_AUTO);
    }
    must(publish(conns, 2, &name, 1, 4, true) == 1);
}

static void end(unsigned n_keepers)
{
    must_ok(rdt_unpublish(conns[0], &name, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0); /* the parts have ended with the version */
    for (unsigned i = 0; i < 2; i++) {
        rdt_plan_destroy(views[i].plan);
        rdt_close(conns[i]);
        node_stop(&c.node[i]);
    }
    for (unsigned i = 0; i < n_keepers; i++)
        keeper_stop(&keepers[i], SIGTERM);
}

static void restart(unsigned i, int signal)
{
    if (signal == SIGTERM)
        node_stop(&c.node[i]);
    else
        node_kill(&c.node[i], signal);
    cluster_restart(&c, i);
}

/* The nodes may have to find each other again. */
static void must_read(uint64_t step)
{
    for (unsigned i = 0; i < 2; i++) {
        wait_until(LONG, rdt_plan_run(views[i].plan, step - 1, LONG, NULL, NULL) == RDT_OK);
        view_check(&views[i], step);
    }
}

/* Steps grow as before, and the next version is like any other. */
static void must_go_on(void)
{
    struct rdt_ref ref = put_rank(conns[0], 1, 0, 1, true);

    must_refuse(RDT_INVALID, "step 1 is complete, and steps must grow",
                rdt_publish_part(conns[0], &name, 1, 0, 1, &ref, NULL, LONG, NULL, &err));
    must_ok(rdt_free(conns[0], &ref, false, &err));
    must(publish(conns, 2, &name, 2, 4, false) == 2);
    must_read(2);
}

static void version_outlasts(int signal)
{
    begin(2);
    restart(0, signal);
    must_read(1);
    restart(0, signal);
    must_read(1);
    must_go_on();
    end(2);
}

Test(shards_restart, version_outlasts_the_kill_of_its_names_daemon)
{
    version_outlasts(SIGKILL);
}

Test(shards_restart, version_outlasts_the_restart_of_its_names_daemon)
{
    version_outlasts(SIGTERM);
}

Test(shards_restart, version_outlasts_the_kill_of_a_parts_daemon)
{
    begin(2);
    restart(1, SIGKILL);
    must_read(1);
    must_go_on();
    end(2);
}

static struct rdt_ref part_of(unsigned rank)
{
    rdt_manifest *manifest = NULL;
    struct rdt_ref ref = {0};
    size_t tensors;

    must_ok(rdt_manifest_fetch(conns[0], &name, LONG, &manifest, &err));
    must_ok(rdt_manifest_part(manifest, rank, &ref, &tensors, &err));
    rdt_manifest_release(manifest);
    return ref;
}

/* The part is on node 1. */
static uint32_t n_holds(const struct rdt_ref *part)
{
    struct rdt_stat stat = {0};

    return rdt_stat(conns[1], part, &stat, NULL) == RDT_OK ? stat.holds : 0;
}

Test(shards_restart, both_daemons_killed_at_once_keep_the_version)
{
    begin(2);
    struct rdt_ref part = part_of(1);
    wait_until(LONG, n_holds(&part) == 1);
    for (unsigned i = 0; i < 2; i++)
        node_kill(&c.node[i], SIGKILL);
    for (unsigned i = 0; i < 2; i++)
        cluster_restart(&c, i);
    must_read(1);
    wait_until(LONG, n_holds(&part) == 1); /* the hold of the earlier daemon has ended, and the new one stays */
    must_read(1);
    must_go_on();
    end(2);
}

static size_t n_lost(void)
{
    Rdt__Pb__Shards request = RDT__PB__SHARDS__INIT;
    ProtobufCMessage *message = NULL;
    Rdt__Pb__Ref wire;

    wire_ref_from(&name, &wire);
    request.name = &wire;
    must_ok(call(conns[0], RDT_MSG_SHARDS, &request.base, LONG, &message, &err));
    size_t n = ((const Rdt__Pb__ShardsReply *)message)->n_lost;
    protobuf_c_message_free_unpacked(message, NULL);
    return n;
}

/* Node 1 has no keeper, so its parts end with its daemon. */
Test(shards_restart, version_that_has_lost_parts_says_so)
{
    begin(1);
    must(n_lost() == 0);
    for (unsigned i = 0; i < 2; i++)
        node_kill(&c.node[i], SIGKILL);
    for (unsigned i = 0; i < 2; i++)
        cluster_restart(&c, i);
    wait_until(LONG, n_lost() == 2);
    must(doctor_says(conns[0], "RDT050", "has lost the parts of ranks 1 3"));
    must(node_log_has(&c.node[0], "(step 1 of policy): its hold"));
    rdt_plan_destroy(views[1].plan);
    rdt_close(conns[1]);
    conns[1] = on(1);
    view_open(&views[1], conns[1], &name, 0, COLUMNS, RDT_PLAN_AUTO);
    must_refuse(RDT_NOT_FOUND, "version 1 of \"policy\": ", rdt_plan_run(views[1].plan, 0, LONG, NULL, &err));
    must_go_on();
    must(n_lost() == 0);
    end(1);
}

/* ---- versions that grow ---- */

struct ranking { /* one rank */
    rdt *conn;
    rdt_publishing *publishing;
    uint32_t rank;
    enum rdt_status status;
    struct rdt_error err;
};

static void begin_rank(struct ranking *ranking, uint64_t step)
{
    must_ok(rdt_publishing_begin(ranking->conn, &name, step, ranking->rank, 3, NULL, &ranking->publishing, &err));
}

static enum rdt_status add_rows(struct ranking *ranking)
{
    static float row[3][COLUMNS];
    int64_t shape[2] = {1, COLUMNS}, global[2] = {3, COLUMNS}, start[2] = {ranking->rank, 0};
    const struct rdt_tensor tensor = {.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = row[ranking->rank]};

    return rdt_publishing_add(ranking->publishing, &tensor, &(struct rdt_shard){"rows", global, start}, &ranking->err);
}

static void *publish_rank(void *arg)
{
    struct ranking *ranking = arg;

    ranking->status = add_rows(ranking);
    if (ranking->status == RDT_OK)
        ranking->status = rdt_publishing_end(ranking->publishing, LONG, NULL, &ranking->err);
    return NULL;
}

/* Ranks 0 and 1 have begun the step, each on its node; rank 2 begins it on node 1 after the restart. */
static void restart_while_it_grows(unsigned ended, int signal)
{
    struct ranking ranks[3] = {0};
    pthread_t threads[3];

    begin(2);
    for (uint32_t rank = 0; rank < 3; rank++)
        ranks[rank] = (struct ranking){.conn = on(rank > 0), .rank = rank};
    for (uint64_t step = 2; step <= 4; step++) {
        for (uint32_t rank = 0; rank < 2; rank++)
            begin_rank(&ranks[rank], step);
        for (uint32_t rank = 0; rank < 2; rank++) {
            must_ok(add_rows(&ranks[rank]));
            if (step > 2)
                cr_assert_eq(pthread_create(&threads[rank], NULL, publish_rank, &ranks[rank]), 0);
        }
        restart(ended, signal);
        for (uint32_t rank = 0; rank < 2; rank++) {
            if (step > 2)
                cr_assert_eq(pthread_join(threads[rank], NULL), 0);
            else
                (void)publish_rank(&ranks[rank]);
            must_say(ranks[rank].status == RDT_RESTARTED || ranks[rank].status == RDT_PEER_LOST ||
                         ranks[rank].status == RDT_OWNER_DIED || (signal == SIGTERM && ranks[rank].status == RDT_SHUTTING_DOWN),
                     "rank %u: %s", rank, ranks[rank].err.msg);
            rdt_publishing_destroy(ranks[rank].publishing);
        }
        begin_rank(&ranks[2], step);
        (void)publish_rank(&ranks[2]);
        must_say(ranks[2].status == RDT_OWNER_DIED || ranks[2].status == RDT_PEER_LOST || ranks[2].status == RDT_RESTARTED,
                 "rank 2: %s", ranks[2].err.msg);
        rdt_publishing_destroy(ranks[2].publishing);
        wait_until(LONG, rdt_wait_put(ranks[1].conn, &name, LONG, NULL) == RDT_OK); /* the nodes have found each other */
        for (uint32_t rank = 0; rank < 3; rank++) {
            begin_rank(&ranks[rank], step);
            cr_assert_eq(pthread_create(&threads[rank], NULL, publish_rank, &ranks[rank]), 0);
        }
        for (uint32_t rank = 0; rank < 3; rank++) {
            cr_assert_eq(pthread_join(threads[rank], NULL), 0);
            must_say(ranks[rank].status == RDT_OK, "rank %u: %s", rank, ranks[rank].err.msg);
            rdt_publishing_destroy(ranks[rank].publishing);
        }
    }
    for (uint32_t rank = 0; rank < 3; rank++)
        rdt_close(ranks[rank].conn);
    end(2);
}

Test(shards_restart, all_ranks_learn_that_the_daemon_of_one_was_killed)
{
    restart_while_it_grows(1, SIGKILL);
}

Test(shards_restart, all_ranks_learn_that_the_daemon_of_the_name_was_killed)
{
    restart_while_it_grows(0, SIGKILL);
}

Test(shards_restart, all_ranks_learn_that_the_daemon_of_the_name_was_restarted)
{
    restart_while_it_grows(0, SIGTERM);
}

static struct ranking ranks_of_three[3];

static void begin_three(void)
{
    begin(2);
    for (uint32_t rank = 0; rank < 3; rank++)
        ranks_of_three[rank] = (struct ranking){.conn = on(rank > 0), .rank = rank};
}

static void end_three(void)
{
    for (uint32_t rank = 0; rank < 3; rank++)
        rdt_close(ranks_of_three[rank].conn);
    end(2);
}

/* The rank has begun a step that another one gave up. */
static void must_hear(struct ranking *rank)
{
    (void)publish_rank(rank);
    must_say(rank->status == RDT_OWNER_DIED, "rank %u: %s", rank->rank, rank->err.msg);
    rdt_publishing_destroy(rank->publishing);
}

/* It gives up while no daemon has the name. */
Test(shards_restart, rank_that_fails_while_the_names_daemon_is_away_is_told_to_those_that_begin_later)
{
    struct ranking *ranks = ranks_of_three;

    begin_three();
    begin_rank(&ranks[1], 2);
    must_ok(add_rows(&ranks[1]));
    node_kill(&c.node[0], SIGKILL);
    (void)publish_rank(&ranks[1]);
    must_be(RDT_PEER_LOST, ranks[1].status);
    rdt_publishing_destroy(ranks[1].publishing);
    cluster_restart(&c, 0);
    must_ok(rdt_ping(ranks[0].conn, LONG, &err)); /* its session goes on */
    begin_rank(&ranks[0], 2);
    must_hear(&ranks[0]);
    wait_until(LONG, rdt_wait_put(ranks[2].conn, &name, LONG, NULL) == RDT_OK); /* the nodes have found each other */
    begin_rank(&ranks[2], 2);
    must_hear(&ranks[2]);
    end_three();
}

/* The version has begun at the next daemon without the rank that learns of the restart last. */
Test(shards_restart, rank_of_another_node_hears_of_the_restart_of_the_names_daemon)
{
    struct ranking *ranks = ranks_of_three;

    begin_three();
    begin_rank(&ranks[0], 2);
    must_ok(add_rows(&ranks[0]));
    restart(0, SIGKILL);
    wait_until(LONG, rdt_wait_put(ranks[2].conn, &name, LONG, NULL) == RDT_OK);
    begin_rank(&ranks[2], 2);
    must_ok(add_rows(&ranks[2]));
    (void)publish_rank(&ranks[0]);
    must_be(RDT_RESTARTED, ranks[0].status);
    rdt_publishing_destroy(ranks[0].publishing);
    must_hear(&ranks[2]);
    end_three();
}
