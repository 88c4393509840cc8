/* SPDX-License-Identifier: Apache-2.0 */
/* Versions whose publishers bring their tensors one after the other (rdt_publishing): they become visible whole or not at all.
 * */
#include "tests/integration/versions/shards_fixture.h"
#include "tests/support/actor.h"
#include "tests/support/message.h"
#include "wire_ref.h"

#include <pthread.h>

TestSuite(growing, .timeout = 120);

enum { TENSORS = 12, LARGE = 700000 /* elements of each fourth tensor: a piece by itself; the others share pieces */ };

static const char *key_of(unsigned i)
{
    static char keys[4][32];
    char *key = keys[i % 4];

    (void)snprintf(key, sizeof keys[0], "layer.%u", i);
    return key;
}

static int64_t elements(unsigned i)
{
    return i % 4 == 0 ? LARGE : 1000 + (int64_t)i;
}

static float *values_of(uint64_t step, unsigned i)
{
    float *values = malloc((size_t)elements(i) * sizeof *values);

    for (int64_t k = 0; k < elements(i); k++)
        values[k] = (float)(step * 1000 + i) + (float)(k % 1000) / 1000;
    return values;
}

static rdt_publishing *begin_publishing(rdt *conn, const struct rdt_ref *name, uint64_t step, uint32_t rank, uint32_t of)
{
    rdt_publishing *publishing = NULL;

    must_ok(rdt_publishing_begin(conn, name, step, rank, of, NULL, &publishing, &err));
    return publishing;
}

/* Adds tensor i from memory that is overwritten at once. */
static enum rdt_status add(rdt_publishing *publishing, uint64_t step, unsigned i, struct rdt_error *err)
{
    int64_t shape[1] = {elements(i)};
    float *values = values_of(step, i);
    struct rdt_tensor tensor = {.dtype = RDT_F32, .ndim = 1, .shape = shape, .data = values};
    struct rdt_shard shard = {.key = key_of(i)};
    enum rdt_status status = rdt_publishing_add(publishing, &tensor, &shard, err);

    memset(values, 0xff, (size_t)shape[0] * sizeof *values);
    free(values);
    return status;
}

static uint64_t publish_all(rdt *conn, const struct rdt_ref *name, uint64_t step)
{
    rdt_publishing *publishing = begin_publishing(conn, name, step, 0, 1);
    struct rdt_publishing_info info;
    uint64_t version = 0;

    for (unsigned i = 0; i < TENSORS; i++)
        must_ok(add(publishing, step, i, &err));
    must_ok(rdt_publishing_end(publishing, LONG, &version, &err));
    rdt_publishing_info(publishing, &info);
    must(info.version == version && info.step == step && info.tensors == TENSORS);
    rdt_publishing_destroy(publishing);
    return version;
}

/* All tensors of the newest version, which must be of one step. Returns the step. */
static uint64_t must_read_whole(rdt *conn, const struct rdt_ref *name, uint64_t after)
{
    static float values[TENSORS][LARGE];
    int64_t counts[TENSORS][1];
    struct rdt_want wants[TENSORS];
    struct rdt_plan_options options = RDT_INIT(options);
    struct rdt_plan_run run;
    rdt_plan *plan = NULL;
    char keys[TENSORS][32];

    for (unsigned i = 0; i < TENSORS; i++) {
        counts[i][0] = elements(i);
        (void)snprintf(keys[i], sizeof keys[i], "%s", key_of(i));
        wants[i] = (struct rdt_want){.key = keys[i], .ndim = 1, .count = counts[i], .dtype = RDT_F32, .data = values[i]};
    }
    options.strict = true;
    must_ok(rdt_plan_create(conn, name, wants, TENSORS, &options, &plan, &err));
    must_ok(rdt_plan_run(plan, after, LONG, &run, &err));
    rdt_plan_destroy(plan);
    for (unsigned i = 0; i < TENSORS; i++) {
        float *expected = values_of(run.step, i);
        must_say(memcmp(values[i], expected, (size_t)counts[i][0] * sizeof *expected) == 0, "tensor %u of step %llu differs", i,
                 (unsigned long long)run.step);
        free(expected);
    }
    return run.step;
}

Test(growing, version_is_read_as_any_other_and_its_memory_is_used_again)
{
    rdt *conn = begin_shards(2);
    rdt *far = on(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    rdt_manifest *manifest = NULL;
    struct rdt_manifest_info info;
    uint64_t regions = 0;

    for (uint64_t step = 1; step <= 6; step++) {
        must(publish_all(conn, &name, step) == step);
        must(must_read_whole(conn, &name, step - 1) == step);
        must(must_read_whole(far, &name, step - 1) == step);
        if (step == 3)
            regions = node_now(&c.node[0]).regions;
    }
    must_say(node_now(&c.node[0]).regions <= regions, "the memory of earlier versions is not used again");
    must_ok(rdt_manifest_fetch(far, &name, LONG, &manifest, &err));
    rdt_manifest_info(manifest, &info);
    must(info.step == 6 && info.parts > 3);
    rdt_manifest_release(manifest);
    must_ok(rdt_unpublish(conn, &name, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0);
    end_shards(conn, far);
}

/* Nothing of a version can be fetched by its name before it is whole. */
static void must_see_nothing_new(rdt *conn, const struct rdt_ref *name, uint64_t after)
{
    struct rdt_ref later = *name;

    later.after = after;
    must_be(RDT_NOT_PUT, rdt_wait_put(conn, &later, 0, &err));
}

Test(growing, version_is_visible_whole_or_not_at_all)
{
    rdt *conn = begin_shards(1);
    rdt *reader = on(0);
    struct rdt_ref name = name_on(0, "policy", 0);
    uint64_t version = 0, objects;

    must(publish_all(conn, &name, 1) == 1);
    objects = objects_on(0);
    rdt_publishing *publishing = begin_publishing(conn, &name, 2, 0, 1);
    for (unsigned i = 0; i < TENSORS; i++) {
        must_ok(add(publishing, 2, i, &err));
        must_see_nothing_new(reader, &name, 1);
        must(must_read_whole(reader, &name, 0) == 1);
    }
    must(objects_on(0) > objects);
    must_ok(rdt_publishing_give_up(publishing, "the loss is not a number", &err));
    must_refuse(RDT_INVALID, "was given up", add(publishing, 2, 0, &err));
    must_refuse(RDT_INVALID, "was given up", rdt_publishing_end(publishing, LONG, NULL, &err));
    rdt_publishing_destroy(publishing);
    wait_until(LONG, objects_on(0) == objects);
    must(must_read_whole(reader, &name, 0) == 1);
    must(publish_all(conn, &name, 2) == 2); /* the step can be tried again */
    must(must_read_whole(reader, &name, 1) == 2);
    publishing = begin_publishing(conn, &name, 3, 0, 1);
    must_ok(add(publishing, 3, 0, &err));
    must_ok(add(publishing, 3, 1, &err));
    must_ok(add(publishing, 3, 1, &err));
    must_refuse(RDT_INVALID, "tensor \"layer.1\": the box [0:1001] of rank 0 overlaps the box [0:1001] of rank 0",
                rdt_publishing_end(publishing, LONG, &version, &err));
    must_refuse(RDT_INVALID, "overlaps", rdt_publishing_end(publishing, LONG, &version, &err));
    rdt_publishing_destroy(publishing);
    must(must_read_whole(reader, &name, 0) == 2);
    must_ok(rdt_unpublish(conn, &name, &err));
    wait_until(LONG, objects_on(0) == 0);
    end_shards(conn, reader);
}

struct ending {
    rdt_publishing *publishing;
    uint64_t version;
    enum rdt_status status;
    struct rdt_error err;
};

static void *end_in_thread(void *arg)
{
    struct ending *ending = arg;

    ending->status = rdt_publishing_end(ending->publishing, LONG, &ending->version, &ending->err);
    return NULL;
}

Test(growing, ranks_on_two_nodes_add_their_parts)
{
    rdt *conns[2] = {begin_shards(2), on(1)};
    struct rdt_ref name = name_on(0, "policy", 0);
    rdt_publishing *publishing[2];
    uint64_t version = 0;

    for (uint64_t step = 1; step <= 3; step++) {
        struct ending ending = {0};
        pthread_t thread;

        for (unsigned i = 0; i < 2; i++)
            publishing[i] = begin_publishing(conns[i], &name, step, i, 2);
        for (unsigned i = 0; i < TENSORS; i++)
            must_ok(add(publishing[i % 2], step, i, &err));
        must_ok(rdt_publishing_leave(publishing[1], step == 2 ? "none has it" : key_of(0), &err));
        ending.publishing = publishing[1];
        cr_assert_eq(pthread_create(&thread, NULL, end_in_thread, &ending), 0);
        if (step == 2) {
            must_refuse(RDT_INVALID, "tensor \"none has it\": rank 1 has it, but no rank has published it",
                        rdt_publishing_end(publishing[0], LONG, &version, &err));
        } else {
            must_ok(rdt_publishing_end(publishing[0], LONG, &version, &err));
        }
        cr_assert_eq(pthread_join(thread, NULL), 0);
        must(ending.status == (step == 2 ? RDT_INVALID : RDT_OK) && (step == 2 || ending.version == version));
        for (unsigned i = 0; i < 2; i++)
            rdt_publishing_destroy(publishing[i]);
        for (unsigned i = 0; i < 2; i++)
            must(must_read_whole(conns[i], &name, 0) == (step == 2 ? 1 : step));
    }
    for (unsigned i = 0; i < 2; i++)
        publishing[i] = begin_publishing(conns[i], &name, 4, i, 2);
    must_ok(add(publishing[0], 4, 0, &err));
    must_refuse(RDT_TIMED_OUT, "1 of 2 parts are there, but not those of ranks 1; rank 1 has added 0 pieces so far",
                rdt_publishing_end(publishing[0], 50 * MSEC, &version, &err));
    wait_until(LONG, add(publishing[1], 4, 1, NULL) == RDT_OWNER_DIED);
    for (unsigned i = 0; i < 2; i++)
        rdt_publishing_destroy(publishing[i]);
    must_ok(rdt_unpublish(conns[0], &name, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0);
    end_shards(conns[0], conns[1]);
}

Test(growing, what_one_rank_may_not_do_is_named)
{
    static const int64_t shape[1] = {4}, global[1] = {6}, start[1] = {3};
    rdt *conn = begin_shards(1);
    rdt *other = on(0);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_error why;
    uint64_t version = 0;
    float values[4] = {0};
    struct rdt_tensor tensor = {.dtype = RDT_F32, .ndim = 1, .shape = shape, .data = values};

    rdt_publishing *first = begin_publishing(conn, &name, 7, 0, 1);
    must_ok(add(first, 7, 0, &err));
    rdt_publishing *second = begin_publishing(other, &name, 7, 0, 1); /* of another process */
    wait_until(LONG, add(second, 7, 1, &why) == RDT_EXISTS);
    must(strstr(why.msg, "another publisher is adding the tensors of rank 0 of step 7 of \"policy\""));
    must_be(RDT_EXISTS, rdt_publishing_end(second, LONG, NULL, &err));
    must_ok(rdt_publishing_give_up(second, "it is not its turn", &err)); /* nor does it end the first */
    rdt_publishing_destroy(second);
    second = begin_publishing(other, &name, 7, 0, 1);
    rdt_publishing_destroy(second);
    must_refuse(RDT_INVALID,
                "tensor \"w\": ", rdt_publishing_add(first, &tensor, &(struct rdt_shard){"w", global, start}, &err));
    must_refuse(RDT_INVALID, "needs a key", rdt_publishing_add(first, &tensor, &(struct rdt_shard){0}, &err));
    for (unsigned i = 1; i < TENSORS; i++)
        must_ok(add(first, 7, i, &err));
    must_ok(rdt_publishing_end(first, LONG, &version, &err));
    must_refuse(RDT_INVALID, "is complete already", add(first, 7, 0, &err));
    must_refuse(RDT_INVALID, "is complete already", rdt_publishing_end(first, LONG, NULL, &err));
    rdt_publishing_destroy(first);
    must(must_read_whole(other, &name, 0) == 7);

    first = begin_publishing(conn, &name, 7, 0, 1);
    wait_until(LONG, add(first, 7, 0, &why) == RDT_INVALID);
    must(strstr(why.msg, "step 7 is complete, and steps must grow"));
    rdt_publishing_destroy(first);
    first = begin_publishing(conn, &name, 8, 0, 1);
    must_refuse(RDT_INVALID, "no tensor was added", rdt_publishing_end(first, LONG, NULL, &err));
    rdt_publishing_destroy(first);
    must_refuse(RDT_INVALID, "rank 2 of 2", rdt_publishing_begin(conn, &name, 8, 2, 2, NULL, &first, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    wait_until(LONG, objects_on(0) == 0);
    end_shards(conn, other);
}

/* ---- ranks that cannot go on ---- */

static void must_be_told_of(rdt_publishing *publishing, uint64_t step, unsigned i, const char *text)
{
    struct rdt_error why = {0};

    (void)add(publishing, step, i, NULL); /* it may hear of it here already */
    must_be(RDT_OWNER_DIED, rdt_publishing_end(publishing, LONG, NULL, &why));
    must_say(strstr(why.msg, text), "%s", why.msg);
}

/* All ranks begin the step again, and each adds a tensor. */
static void must_become_a_version(rdt *const *conns, uint32_t of, const struct rdt_ref *name, uint64_t step)
{
    struct ending endings[4] = {0};
    pthread_t threads[4];

    for (uint32_t rank = 0; rank < of; rank++) {
        endings[rank].publishing = begin_publishing(conns[rank], name, step, rank, of);
        must_ok(add(endings[rank].publishing, step, rank + 1, &err));
        cr_assert_eq(pthread_create(&threads[rank], NULL, end_in_thread, &endings[rank]), 0);
    }
    for (uint32_t rank = 0; rank < of; rank++) {
        cr_assert_eq(pthread_join(threads[rank], NULL), 0);
        must_say(endings[rank].status == RDT_OK, "rank %u: %s", rank, endings[rank].err.msg);
        rdt_publishing_destroy(endings[rank].publishing);
    }
}

static void meet_a_limit(rdt_publishing *publishing, uint64_t step)
{
    struct rdt_error why = {0};
    enum rdt_status status = RDT_OK;

    for (unsigned i = 0; i < TENSORS && status == RDT_OK; i += 4)
        status = add(publishing, step, i, &why);
    must_say(status == RDT_LIMIT, "%s", why.msg);
    must_refuse(RDT_LIMIT, "", rdt_publishing_end(publishing, LONG, NULL, &err));
}

static void time_out(rdt_publishing *publishing, uint64_t step)
{
    must_ok(add(publishing, step, 0, &err));
    must_be(RDT_TIMED_OUT, rdt_publishing_end(publishing, 20 * MSEC, NULL, &err));
}

/* A rank that begins the step after another one could not go on does not wait for that one for ever. */
static void later_ranks_are_told(void (*stop)(rdt_publishing *publishing, uint64_t step), const char *text)
{
    static const char *const flags[] = {"--client-max-objects=2", NULL};
    rdt *conns[3];
    struct rdt_ref name;

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true, .flags_of = {flags}});
    for (unsigned i = 0; i < 3; i++)
        conns[i] = on(i == 2 ? 1 : 0);
    name = name_on(1, "policy", 0);
    for (uint64_t step = 1; step <= 2; step++) {
        rdt_publishing *first = begin_publishing(conns[0], &name, step, 0, 3);
        stop(first, step); /* it stays, so its lease does not say it */
        for (uint32_t rank = 1; rank < 3; rank++) {
            rdt_publishing *late = begin_publishing(conns[rank], &name, step, rank, 3);
            must_be_told_of(late, step, rank, text);
            rdt_publishing_destroy(late);
        }
        rdt_publishing_destroy(first);
        must_become_a_version(conns, 3, &name, step);
    }
    must_ok(rdt_unpublish(conns[2], &name, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0);
    rdt_close(conns[0]);
    end_shards(conns[1], conns[2]);
}

Test(growing, rank_that_meets_a_limit_tells_those_that_begin_later)
{
    later_ranks_are_told(meet_a_limit, "rank 0 could not put its part of step");
}

Test(growing, rank_whose_time_has_passed_tells_those_that_begin_later)
{
    later_ranks_are_told(time_out, "the publisher of rank 0 stopped waiting for the others");
}

Test(growing, rank_that_has_ended_is_told_to_those_that_begin_later)
{
    rdt *conns[2] = {begin_shards(1), on(0)}, *killed = on(0);
    struct rdt_ref name = name_on(0, "policy", 0);

    rdt_publishing *first = begin_publishing(killed, &name, 1, 0, 2);
    must_ok(add(first, 1, 0, &err));
    wait_until(LONG, objects_on(0) == 1);
    rdt_publishing_destroy(first);
    rdt_close(killed);
    rdt_publishing *late = begin_publishing(conns[1], &name, 1, 1, 2);
    must_be_told_of(late, 1, 1, "rank 0");
    rdt_publishing_destroy(late);
    must_become_a_version(conns, 2, &name, 1);
    must_ok(rdt_unpublish(conns[0], &name, &err));
    wait_until(LONG, objects_on(0) == 0);
    end_shards(conns[0], conns[1]);
}

/* A version has at most 16,384 pieces: each of 1,024 ranks has 16 of them, however many tensors it has. */
Test(growing, pieces_of_many_ranks_are_few)
{
    enum { MANY = 300, OF = 1024, MOST = 16 };
    rdt *conn = begin_shards(1);
    struct rdt_ref name = name_on(0, "policy", 0);
    struct rdt_publishing_info info;

    for (uint32_t of = 1; of <= OF; of *= OF) {
        rdt_publishing *publishing = begin_publishing(conn, &name, of, 0, of);
        for (unsigned i = 0; i < MANY; i++) {
            static float values[LARGE / 2];
            int64_t shape[1] = {LARGE / 2};
            char key[32];
            (void)snprintf(key, sizeof key, "layer.%u", i);
            must_ok(rdt_publishing_add(publishing,
                                       &(struct rdt_tensor){.dtype = RDT_F32, .ndim = 1, .shape = shape, .data = values},
                                       &(struct rdt_shard){.key = key}, &err));
        }
        rdt_publishing_info(publishing, &info);
        must_say(of == 1 || info.pieces < MOST, "%zu pieces", info.pieces);
        if (of == 1)
            must_ok(rdt_publishing_end(publishing, LONG, NULL, &err));
        rdt_publishing_destroy(publishing);
    }
    must_ok(rdt_unpublish(conn, &name, &err));
    wait_until(LONG, objects_on(0) == 0);
    end_shards(conn, NULL);
}

/* ---- what nodes are told of a version that is not complete ---- */

struct asking {
    rdt *conn;
    struct rdt_ref name;
    uint64_t growth;
    uint32_t from;
    int64_t timeout_ns;
    struct rdt_error err;
    Rdt__Pb__GrowingReply *reply; /* NULL: it failed */
};

static void *ask(void *arg)
{
    struct asking *asking = arg;
    Rdt__Pb__Growing request = RDT__PB__GROWING__INIT;
    ProtobufCMessage *reply = NULL;
    Rdt__Pb__Ref wire;

    wire_ref_from(&asking->name, &wire);
    request.name = &wire;
    request.growth = asking->growth;
    request.from = asking->from;
    request.timeout_ns = asking->timeout_ns;
    (void)call(asking->conn, RDT_MSG_GROWING, &request.base, LONG, &reply, &asking->err);
    asking->reply = (Rdt__Pb__GrowingReply *)reply;
    return NULL;
}

static Rdt__Pb__GrowingReply *must_hear(rdt *conn, const struct rdt_ref *name, uint64_t growth, uint32_t from)
{
    struct asking asking = {.conn = conn, .name = *name, .growth = growth, .from = from, .timeout_ns = LONG};

    (void)ask(&asking);
    must_say(asking.reply, "%s", asking.err.msg);
    return asking.reply;
}

static void release(Rdt__Pb__GrowingReply *reply)
{
    rdt__pb__growing_reply__free_unpacked(reply, NULL);
}

Test(growing, nodes_are_told_of_each_piece_and_of_the_end)
{
    rdt *conns[2] = {begin_shards(2), on(1)};
    struct rdt_ref name = name_on(0, "policy", 0);
    uint64_t version = 0;

    for (uint64_t step = 1; step <= 4; step++) {
        rdt *conn = conns[step % 2], *reader = conns[(step / 2) % 2];
        struct asking asking = {.conn = reader, .name = name, .timeout_ns = LONG};
        pthread_t thread;

        cr_assert_eq(pthread_create(&thread, NULL, ask, &asking), 0); /* waits for the first piece */
        rdt_publishing *publishing = begin_publishing(conn, &name, step, 0, 1);
        must_ok(add(publishing, step, 0, &err));
        cr_assert_eq(pthread_join(thread, NULL), 0);
        must_say(asking.reply && asking.reply->n_parts == 1 && asking.reply->step == step && !asking.reply->ended, "%s",
                 asking.err.msg);
        uint64_t growth = asking.growth = asking.reply->growth, bytes = asking.reply->bytes[0];
        must(growth != 0 && bytes == (uint64_t)elements(0) * sizeof(float));
        release(asking.reply);
        asking.from = 1;
        asking.timeout_ns = 10 * MSEC;
        (void)ask(&asking);
        must(!asking.reply && asking.err.status == RDT_TIMED_OUT && strstr(asking.err.msg, "no version of the name has grown"));
        asking.timeout_ns = LONG;
        cr_assert_eq(pthread_create(&thread, NULL, ask, &asking), 0);
        must_ok(add(publishing, step, 4, &err));
        cr_assert_eq(pthread_join(thread, NULL), 0);
        must(asking.reply && asking.reply->n_parts == 1 && asking.reply->growth == growth);
        struct rdt_ref ref;
        must_ok(wire_ref_to(asking.reply->parts[0], &ref, &err));
        release(asking.reply);
        rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO); /* it can be fetched ahead */
        must(rdt_object_count(object) == 1);
        rdt_release(object);
        asking.from = 2;
        cr_assert_eq(pthread_create(&thread, NULL, ask, &asking), 0);
        if (step % 2)
            must_ok(rdt_publishing_end(publishing, LONG, &version, &err));
        rdt_publishing_destroy(publishing);
        cr_assert_eq(pthread_join(thread, NULL), 0);
        must(asking.reply && asking.reply->ended && asking.reply->n_parts == 0);
        must(asking.reply->version == (step % 2 ? version : 0));
        release(asking.reply);
        release(must_hear(reader, &name, growth, 0)); /* that it has ended */
    }
    must_ok(rdt_unpublish(conns[0], &name, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0);
    end_shards(conns[0], conns[1]);
}

/* ---- what a session asks at the next daemon ---- */

static struct rdt_error refusal;

static uint64_t ask_again(rdt *conn, const Rdt__Pb__PublishPart *question)
{
    ProtobufCMessage *reply = NULL;
    uint64_t version = 0;

    refusal.status = call(conn, RDT_MSG_PUBLISH_PART, &question->base, LONG, &reply, &refusal);
    if (reply)
        version = ((const Rdt__Pb__PublishPartReply *)reply)->version;
    protobuf_c_message_free_unpacked(reply, NULL);
    return version;
}

static bool is_refused(rdt *conn, const Rdt__Pb__PublishPart *question, enum rdt_status status, const char *why)
{
    return ask_again(conn, question) == 0 && refusal.status == status && strstr(refusal.msg, why);
}

Test(growing, question_for_the_version_of_a_part_publishes_nothing)
{
    rdt *conns[2] = {begin_shards(2), on(1)};
    struct rdt_ref name = name_on(0, "policy", 0), refs[2];
    Rdt__Pb__Ref name_wire, wires[2];
    rdt_request *requests[2];
    uint64_t version;

    for (uint32_t rank = 0; rank < 2; rank++) {
        refs[rank] = put_rank(conns[rank], 1, rank, 2, true);
        requests[rank] = start_part(conns[rank], &name, 1, rank, 2, &refs[rank]);
        wire_ref_from(&refs[rank], &wires[rank]);
    }
    wire_ref_from(&name, &name_wire);
    for (uint32_t rank = 0; rank < 2; rank++) {
        must_ok(rdt_wait(conns[rank], &requests[rank], 1, 1, LONG, NULL, NULL, &err));
        must_ok(rdt_part_version(requests[rank], &version, &err));
        rdt_request_destroy(requests[rank]);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        Rdt__Pb__PublishPart question = MESSAGE(publish_part, .name = &name_wire, .step = 1, .rank = rank, .again = true,
                                                .object = &wires[rank], .timeout_ns = LONG);
        cr_assert_eq(ask_again(conns[rank], &question), version, "%s", refusal.msg);
        must_ok(rdt_publish_part(conns[rank], &name, 1, rank, 2, &refs[rank], NULL, LONG, &version, &err));
        question.piece = 2;
        must(is_refused(conns[rank], &question, RDT_RESTARTED, "let all ranks publish it again"));
        question.piece = 0;
        question.rank = UINT32_MAX - rank;
        must(is_refused(conns[rank], &question, RDT_RESTARTED, "step 1"));
        question.rank = !rank;
        must(is_refused(conns[rank], &question, RDT_RESTARTED, "step 1"));
        question.rank = rank;
        question.step = 2;
        must(is_refused(conns[rank], &question, RDT_RESTARTED, "step 2"));
        question.of = 2;
        must(is_refused(conns[rank], &question, RDT_INVALID, "makes no sense"));
        question.of = 0;
        question.object = NULL;
        must(is_refused(conns[rank], &question, RDT_INVALID, "makes no sense"));
        must_ok(rdt_free(conns[rank], &refs[rank], false, &err));
    }
    must(publish(conns, 2, &name, 2, 4, true) == version + 1); /* nobody has begun the step */
    must_ok(rdt_unpublish(conns[0], &name, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0);
    end_shards(conns[0], conns[1]);
}
