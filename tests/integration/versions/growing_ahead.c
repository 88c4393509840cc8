/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that follow a name fetch the pieces of a version while it grows. */
#include "client/rdt_follow.h"
#include "tests/integration/versions/shards_fixture.h"

TestSuite(growing_ahead, .timeout = 120);

#define PIECES 6u
#define PIECE_BYTES (1u << 20)

static struct rdt_ref name;

/* A tensor that is a piece by itself, and is filled with the step. */
static void add_piece(rdt_publishing *publishing, uint64_t step, unsigned i)
{
    int64_t shape[1] = {PIECE_BYTES};
    uint8_t *bytes = malloc(PIECE_BYTES);
    char key[16];

    memset(bytes, (int)(step * 16 + i), PIECE_BYTES);
    (void)snprintf(key, sizeof key, "w%u", i);
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = bytes};
    struct rdt_shard shard = {.key = key};
    must_ok(rdt_publishing_add(publishing, &tensor, &shard, &err));
    free(bytes);
}

static rdt_publishing *begin_publishing(rdt *conn, uint64_t step)
{
    rdt_publishing *publishing = NULL;

    must_ok(rdt_publishing_begin(conn, &name, step, 0, 1, NULL, &publishing, &err));
    return publishing;
}

static void must_commit(rdt *conn, rdt_follower *follower, uint64_t step)
{
    static uint8_t bytes[PIECES][PIECE_BYTES];
    struct rdt_want wants[PIECES];
    char keys[PIECES][16];
    int64_t count[1] = {PIECE_BYTES};
    rdt_plan *plan = NULL;
    struct rdt_commit commit = {0};

    for (unsigned i = 0; i < PIECES; i++) {
        (void)snprintf(keys[i], sizeof keys[i], "w%u", i);
        wants[i] = (struct rdt_want){.key = keys[i], .ndim = 1, .count = count, .dtype = RDT_U8, .data = bytes[i]};
    }
    must_ok(rdt_plan_create(conn, &name, wants, PIECES, NULL, &plan, &err));
    struct rdt_commit_options options = {.struct_size = sizeof options, .plan = plan};
    must_ok(rdt_follower_commit(follower, &options, &commit, &err));
    rdt_plan_destroy(plan);
    for (unsigned i = 0; i < PIECES; i++)
        must(is_filled_with(bytes[i], PIECE_BYTES, (uint8_t)(step * 16 + i)));
}

static uint64_t sent(void)
{
    return node_now(&c.node[0]).bytes_out;
}

static uint64_t replicas(void)
{
    return node_now(&c.node[1]).replica_bytes;
}

Test(growing_ahead, pieces_are_here_before_the_version_is_whole)
{
    rdt *near = begin_shards(2), *far = on(1);
    rdt_follower *follower = NULL;
    struct rdt_prepared here = {0};
    uint64_t version = 0;

    name = name_on(0, "policy", 0);
    must_ok(rdt_follow(far, &name, NULL, &follower, &err));
    for (uint64_t step = 1; step <= 5; step++) {
        rdt_publishing *publishing = begin_publishing(near, step);
        uint64_t before = sent();
        for (unsigned i = 0; i < PIECES; i++) {
            add_piece(publishing, step, i);
            wait_until(LONG, sent() - before >= (i + 1) * (uint64_t)PIECE_BYTES); /* it has come before the next is added */
        }
        must_refuse(RDT_TIMED_OUT, "no newer version is whole on this node", rdt_follower_prepare(follower, 0, NULL, &err));
        must_ok(rdt_publishing_end(publishing, LONG, &version, &err));
        rdt_publishing_destroy(publishing);
        must_ok(rdt_follower_prepare(follower, LONG, &here, &err));
        must(here.version == version && here.step == step && here.bytes == PIECES * (uint64_t)PIECE_BYTES);
        must_say(sent() - before == PIECES * (uint64_t)PIECE_BYTES, "%llu bytes were sent for a version of %u",
                 (unsigned long long)(sent() - before), PIECES * PIECE_BYTES);
        must(here.bytes_moved == PIECES * (uint64_t)PIECE_BYTES);
        must_commit(far, follower, step);
    }
    rdt_follower_close(follower);
    must_ok(rdt_unpublish(near, &name, &err));
    wait_until(LONG, objects_on(0) == 0 && objects_on(1) == 0);
    end_shards(near, far);
}

Test(growing_ahead, pieces_of_a_version_that_fails_are_dropped)
{
    rdt *near = begin_shards(2), *far = on(1);
    rdt_follower *follower = NULL;
    uint64_t version = 0;

    name = name_on(0, "policy", 0);
    must_ok(rdt_follow(far, &name, NULL, &follower, &err));
    for (uint64_t step = 1; step <= 4; step++) {
        rdt_publishing *publishing = begin_publishing(near, step);
        uint64_t had = replicas();
        for (unsigned i = 0; i < PIECES; i++)
            add_piece(publishing, step, i);
        wait_until(LONG, replicas() >= had + PIECES * (uint64_t)PIECE_BYTES);
        if (step % 2) {
            must_ok(rdt_publishing_end(publishing, LONG, &version, &err));
            must_ok(rdt_follower_prepare(follower, LONG, NULL, &err));
            must_commit(far, follower, step);
            rdt_publishing_destroy(publishing);
            wait_until(LONG, replicas() == PIECES * (uint64_t)PIECE_BYTES);
        } else {
            rdt_publishing_destroy(publishing);
            wait_until(LONG, replicas() == PIECES * (uint64_t)PIECE_BYTES); /* of the version before */
            must_refuse(RDT_TIMED_OUT, "", rdt_follower_prepare(follower, 0, NULL, &err));
        }
    }
    rdt_publishing *publishing = begin_publishing(near, 9);
    add_piece(publishing, 9, 0);
    wait_until(LONG, replicas() > PIECES * (uint64_t)PIECE_BYTES);
    rdt_follower_close(follower); /* in the middle: nothing is left of it */
    rdt_publishing_destroy(publishing);
    wait_until(LONG, replicas() <= PIECES * (uint64_t)PIECE_BYTES); /* the version that is there may stay as a replica */
    must_ok(rdt_unpublish(near, &name, &err));
    wait_until(LONG, replicas() == 0 && objects_on(0) == 0 && objects_on(1) == 0);
    end_shards(near, far);
}

static void add_bytes(rdt_publishing *publishing, const char *key, size_t n)
{
    int64_t shape[1] = {(int64_t)n};
    uint8_t *bytes = calloc(1, n);
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = bytes};
    struct rdt_shard shard = {.key = key};

    must_ok(rdt_publishing_add(publishing, &tensor, &shard, &err));
    free(bytes);
}

static uint64_t end_publishing(rdt_publishing *publishing)
{
    uint64_t version = 0;

    must_ok(rdt_publishing_end(publishing, LONG, &version, &err));
    rdt_publishing_destroy(publishing);
    return version;
}

/* Version 2 fits alone, but neither beside version 1 nor beside what has come of step 3, which may take for ever. */
Test(growing_ahead, pieces_make_room_for_a_version_that_is_complete)
{
    static const char *flags[] = {"--owner-max-followed-bytes=2304KiB", NULL};
    struct rdt_follower_info info;
    struct rdt_prepared here = {0};
    rdt_follower *follower = NULL;

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true, .flags_of[1] = flags});
    rdt *near = on(0), *far = on(1);
    name = name_on(0, "policy", 0);
    must_ok(rdt_follow(far, &name, NULL, &follower, &err));
    rdt_publishing *first = begin_publishing(near, 1), *second, *third;
    add_bytes(first, "a", PIECE_BYTES / 2);
    must(end_publishing(first) == 1);
    must_ok(rdt_follower_prepare(follower, LONG, &here, &err));
    must(here.version == 1);
    third = begin_publishing(near, 3);
    uint64_t before = sent();
    add_bytes(third, "a", PIECE_BYTES / 2);
    wait_until(LONG, sent() - before >= PIECE_BYTES / 2);
    second = begin_publishing(near, 2);
    add_bytes(second, "a", PIECE_BYTES);
    add_bytes(second, "b", PIECE_BYTES);
    must(end_publishing(second) == 2);
    wait_until(LONG, rdt_follower_info(follower, &info, NULL) == RDT_OK && strcmp(info.state, "full") == 0);
    add_bytes(third, "b", PIECE_BYTES / 2);
    must_ok(rdt_follower_commit(follower, NULL, NULL, &err));
    must_ok(rdt_follower_prepare(follower, LONG, &here, &err));
    must(here.version == 2);
    must_ok(rdt_follower_commit(follower, NULL, NULL, &err));
    must(end_publishing(third) == 3);
    must_ok(rdt_follower_prepare(follower, LONG, &here, &err));
    must(here.version == 3);
    rdt_follower_close(follower);
    must_ok(rdt_unpublish(near, &name, &err));
    wait_until(LONG, objects_on(0) == 0 && objects_on(1) == 0);
    end_shards(near, far);
}

/* Step 3 becomes a version, of which parts are here, and is replaced before the follower's node has heard of it. */
Test(growing_ahead, pieces_of_a_version_that_was_replaced_make_room)
{
    static const char *flags[] = {"--owner-max-followed-bytes=2304KiB", NULL};
    struct rdt_follower_info info;
    struct rdt_prepared here = {0};
    rdt_follower *follower = NULL;

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true, .flags_of[1] = flags});
    rdt *near = on(0), *far = on(1);
    name = name_on(0, "policy", 0);
    must_ok(rdt_follow(far, &name, NULL, &follower, &err));
    rdt_publishing *publishing = begin_publishing(near, 1), *third;
    add_bytes(publishing, "a", PIECE_BYTES / 2);
    must(end_publishing(publishing) == 1);
    must_ok(rdt_follower_prepare(follower, LONG, &here, &err));
    third = begin_publishing(near, 3);
    uint64_t before = sent();
    add_bytes(third, "a", PIECE_BYTES / 2);
    wait_until(LONG, sent() - before >= PIECE_BYTES / 2);
    for (uint64_t step = 2; step <= 4; step += 2) {
        publishing = begin_publishing(near, step);
        add_bytes(publishing, "a", PIECE_BYTES);
        add_bytes(publishing, "b", PIECE_BYTES);
        must(end_publishing(publishing) == step);
        if (step == 2) {
            wait_until(LONG, rdt_follower_info(follower, &info, NULL) == RDT_OK && strcmp(info.state, "full") == 0);
            must(end_publishing(third) == 3);
        }
    }
    while (here.version != 4) {
        must_ok(rdt_follower_commit(follower, NULL, NULL, &err));
        must_ok(rdt_follower_prepare(follower, LONG, &here, &err));
    }
    rdt_follower_close(follower);
    must_ok(rdt_unpublish(near, &name, &err));
    wait_until(LONG, objects_on(0) == 0 && objects_on(1) == 0);
    end_shards(near, far);
}

static uint64_t followed(rdt *conn)
{
    struct rdt_daemon_status status = RDT_INIT(status);

    must_ok(rdt_daemon_status(conn, &status, &err));
    return status.followed_bytes;
}

/* The name is on the node of the follower, which may have the version before it hears that the pieces were all. */
Test(growing_ahead, version_that_is_whole_is_charged_once)
{
    rdt *reader = begin_shards(2), *publisher = on(1);
    rdt_follower *follower = NULL;
    struct rdt_prepared here = {0};

    name = name_on(0, "policy", 0);
    must_ok(rdt_follow(reader, &name, NULL, &follower, &err));
    for (uint64_t step = 1; step <= 20; step++) {
        rdt_publishing *publishing = begin_publishing(publisher, step);
        uint64_t before = node_now(&c.node[1]).bytes_out;
        add_bytes(publishing, "a", PIECE_BYTES);
        wait_until(LONG, node_now(&c.node[1]).bytes_out - before >= PIECE_BYTES);
        must(end_publishing(publishing) == step);
        must_ok(rdt_follower_prepare(follower, LONG, &here, &err));
        must_ok(rdt_follower_commit(follower, NULL, NULL, &err));
        wait_until(LONG, followed(reader) == PIECE_BYTES);
    }
    rdt_follower_close(follower);
    must_ok(rdt_unpublish(reader, &name, &err));
    wait_until(LONG, objects_on(0) == 0 && objects_on(1) == 0);
    end_shards(reader, publisher);
}
