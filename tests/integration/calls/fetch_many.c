/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches of many objects of one node in one call: small ones, and those whose regions are shared, are handed out hundreds in
 * an answer; everything else is fetched one by one. */
#include "client/rdt_many.h"
#include "client/session/connection.h"
#include "tests/integration/calls/names.h"

TestSuite(fetch_many, .timeout = SUITE_SECONDS(120));

#define MANY 3000u

static const int64_t one[] = {1};
static uint32_t data[MANY];
static struct rdt_tensor tensors[MANY];
static struct rdt_value values[MANY];
static struct rdt_ref refs[MANY];
static rdt_object *objects[MANY];
static enum rdt_status statuses[MANY];

static void fill(void)
{
    for (unsigned i = 0; i < MANY; i++) {
        data[i] = i;
        tensors[i] = VECTOR(RDT_U32, 1, &data[i]);
        tensors[i].shape = one;
        values[i] = (struct rdt_value){.tensors = &tensors[i], .count = 1};
    }
}

/* Objects of one number each, one behind the other in memory of the trainer's. */
static uint32_t *put_shared(unsigned n)
{
    uint32_t *memory = alloc_memory(trainer, n * sizeof *memory);

    for (unsigned i = 0; i < n; i++) {
        memory[i] = i;
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U32, .ndim = 1, .shape = one, .data = &memory[i]};
        refs[i] = put_one(trainer, &tensors[i], NULL);
    }
    return memory;
}

static void release_all(rdt *conn, unsigned n)
{
    rdt_cork(conn);
    for (unsigned i = 0; i < n; i++)
        rdt_release(objects[i]);
    rdt_uncork(conn);
}

static void must_be_numbers(unsigned n, const char *path)
{
    for (unsigned i = 0; i < n; i++) {
        struct rdt_object_info info = info_of(objects[i]);
        struct rdt_tensor seen = tensor_of(objects[i], 0);

        cr_assert_eq(rdt_object_count(objects[i]), 1u);
        cr_assert(seen.dtype == RDT_U32 && seen.ndim == 1 && seen.shape[0] == 1);
        cr_assert_eq(*(const uint32_t *)seen.data, i);
        cr_assert_str_eq(info.path, path);
        cr_assert_eq(info.ref.generation, refs[i].generation);
        cr_assert_str_eq(info.ref.id, refs[i].id);
        cr_assert(memcmp(info.ref.node, node.uuid_bytes, 16) == 0 && !info.ref.any_owner);
    }
}

/* ---- what is handed out ---- */

Test(fetch_many, bytes_of_small_objects_come_in_a_few_answers)
{
    uint32_t big[2000];
    const int64_t many[] = {2000};
    struct node_status before, after;
    struct rdt_ref ninth;

    begin(NULL);
    fill();
    values[7].id = "seven";
    values[7].id_bytes = 5;
    values[8].metadata = "eight";
    values[8].metadata_bytes = 6;
    for (unsigned i = 0; i < 2000; i++)
        big[i] = i;
    big[0] = 9;
    tensors[9] = (struct rdt_tensor){.dtype = RDT_U32, .ndim = 1, .shape = many, .data = big};
    must_ok(rdt_put_many(trainer, values, MANY, NULL, refs, NULL, &err));
    node_status(&node, &before);
    must_ok(rdt_fetch(sampler, refs, MANY, NULL, objects, &err));
    node_status(&node, &after);
    must_say(after.transfers_done - before.transfers_done < MANY / 10, "%llu transfers",
             (unsigned long long)(after.transfers_done - before.transfers_done));
    cr_assert_eq(after.bytes_local - before.bytes_local, 4 * (MANY - 1) + sizeof big);
    cr_assert_eq(tensor_of(objects[9], 0).shape[0], 2000);
    cr_assert_eq(((const uint32_t *)tensor_of(objects[9], 0).data)[1999], 1999u);
    cr_assert_eq(info_of(objects[9]).bytes_moved, sizeof big);
    rdt_release(objects[9]);
    must_ok(rdt_fetch(sampler, &refs[10], 1, NULL, &objects[9], &err));
    *(uint32_t *)tensor_of(objects[9], 0).data = 9; /* it is this process's */
    ninth = refs[9];
    refs[9] = refs[10];
    must_be_numbers(MANY, "inline");
    cr_assert_str_eq(rdt_object_metadata(objects[8], &(size_t){0}), "eight");
    cr_assert_null(rdt_object_metadata(objects[6], &(size_t){0}));
    cr_assert_neq(info_of(objects[0]).transfer, 0u);
    cr_assert(info_of(objects[0]).writable && !info_of(objects[0]).mutable_shared);
    cr_assert_eq(((uintptr_t)tensor_of(objects[0], 0).data) % 64, 0u);
    refs[9] = ninth;
    for (unsigned i = 0; i < MANY; i++) /* the objects end, and their bytes stay */
        must_ok(rdt_drop(trainer, &refs[i], &err));
    refs[9] = refs[10];
    wait_until(LONG, node_now(&node).objects == 0);
    must_be_numbers(MANY, "inline");
    release_all(sampler, MANY);
    end();
}

Test(fetch_many, shared_objects_are_held_until_each_is_released)
{
    struct node_status before, after;
    unsigned n_notices = 0;
    uint32_t *memory;

    begin(NULL);
    memory = put_shared(MANY);
    node_status(&node, &before);
    must_ok(rdt_fetch(sampler, refs, MANY, NULL, objects, &err));
    node_status(&node, &after);
    must_say(after.transfers_done - before.transfers_done < MANY / 10, "%llu transfers",
             (unsigned long long)(after.transfers_done - before.transfers_done));
    must_be_numbers(MANY, "local/share");
    for (unsigned i = 0; i < MANY; i++) {
        n_notices += info_of(objects[i]).mutable_shared;
        cr_assert(!info_of(objects[i]).writable && info_of(objects[i]).bytes_moved == 0);
    }
    cr_assert_eq(n_notices, MANY, "each is told once");
    memory[5] = 500;
    cr_assert_eq(*(const uint32_t *)tensor_of(objects[5], 0).data, 500u, "it is the same memory");
    memory[5] = 5;
    cr_assert_eq(stat_of(trainer, &refs[5]).holds, 2u);
    rdt_release(objects[5]);
    wait_until(LONG, stat_of(trainer, &refs[5]).holds == 1);
    cr_assert_eq(stat_of(trainer, &refs[6]).holds, 2u);
    must_ok(rdt_fetch(sampler, &refs[5], 1, NULL, &objects[5], &err));
    cr_assert(!info_of(objects[5]).mutable_shared);
    release_all(sampler, MANY);
    must_ok(rdt_ping(sampler, LONG, &err));
    for (unsigned i = 0; i < MANY; i += 100)
        cr_assert_eq(stat_of(trainer, &refs[i]).holds, 1u);
    must_ok(rdt_fetch(sampler, refs, MANY, NULL, objects, &err)); /* by the mapping that was kept */
    must_be_numbers(MANY, "local/share");
    release_all(sampler, MANY);
    for (unsigned i = 0; i < MANY; i++)
        must_ok(rdt_free(trainer, &refs[i], false, &err));
    must_ok(rdt_wait_freed(trainer, &refs[MANY - 1], LONG, &err));
    must_ok(rdt_dealloc(trainer, memory, &err));
    end();
}

/* More regions than one message has descriptors. */
Test(fetch_many, each_object_may_have_a_region_of_its_own)
{
    begin(NULL);
    for (unsigned i = 0; i < 200; i++) {
        uint32_t *memory = alloc_memory(trainer, 4096);
        *memory = i;
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U32, .ndim = 1, .shape = one, .data = memory};
        refs[i] = put_one(trainer, &tensors[i], NULL);
    }
    for (unsigned round = 0; round < 3; round++) {
        must_ok(rdt_fetch(sampler, refs, 200, NULL, objects, &err));
        must_be_numbers(200, "local/share");
        release_all(sampler, 200);
    }
    end();
}

Test(fetch_many, objects_of_several_tensors_and_of_none)
{
    uint8_t bytes[6] = {0, 1, 2, 3, 4, 5};
    const int64_t two_three[] = {2, 3}, by_column[] = {1, 2}, none[] = {0, 7};
    struct rdt_tensor several[3] = {{RDT_U8, 2, two_three, by_column, bytes}, {RDT_F32, 2, none, NULL, NULL}, {0}};

    begin(NULL);
    fill();
    several[2] = tensors[3];
    values[3] = (struct rdt_value){.tensors = several, .count = 3};
    values[4] = (struct rdt_value){.tensors = NULL, .count = 0, .metadata = "nothing", .metadata_bytes = 8};
    values[5] = (struct rdt_value){.tensors = &several[1], .count = 1};
    must_ok(rdt_put_many(trainer, values, 100, NULL, refs, NULL, &err));
    must_ok(rdt_fetch(sampler, refs, 100, NULL, objects, &err));
    cr_assert_eq(rdt_object_count(objects[3]), 3u);
    cr_assert_eq(tensor_of(objects[3], 0).ndim, 2u);
    cr_assert_eq(((const uint8_t *)tensor_of(objects[3], 0).data)[1], 2);
    cr_assert_eq(tensor_of(objects[3], 1).shape[1], 7);
    cr_assert_eq(*(const uint32_t *)tensor_of(objects[3], 2).data, 3u);
    cr_assert_eq(rdt_object_count(objects[4]), 0u);
    cr_assert_str_eq(rdt_object_metadata(objects[4], &(size_t){0}), "nothing");
    cr_assert_eq(rdt_object_count(objects[5]), 1u);
    cr_assert_eq(*(const uint32_t *)tensor_of(objects[6], 0).data, 6u);
    release_all(sampler, 100);
    end();
}

/* ---- what is fetched one by one ---- */

Test(fetch_many, what_is_not_there_has_a_status_of_its_own)
{
    struct rdt_fetch_options options = RDT_INIT(options);

    begin(NULL);
    fill();
    must_ok(rdt_put_many(trainer, values, 200, NULL, refs, NULL, &err));
    must_ok(rdt_free(trainer, &refs[10], false, &err));
    must_ok(rdt_ref_from_id("later", 5, &refs[20], &err));
    refs[30].id[0] = 'X'; /* of another object */
    (void)publish_pattern(trainer, "weights", 3);
    refs[40] = name_ref("weights", 0);
    options.timeout_ns = RDT_NO_WAIT;
    must_be(RDT_FREED, rdt_fetch_each(sampler, refs, 200, &options, objects, statuses, &err));
    for (unsigned i = 0; i < 200; i++) {
        cr_assert_eq(statuses[i],
                     i == 10   ? RDT_FREED
                     : i == 20 ? RDT_NOT_PUT
                     : i == 30 ? RDT_NOT_FOUND
                               : RDT_OK,
                     "%u: %s", i, rdt_status_name(statuses[i]));
        cr_assert_eq(objects[i] == NULL, statuses[i] != RDT_OK);
        if (i != 40 && objects[i])
            cr_assert_eq(*(const uint32_t *)tensor_of(objects[i], 0).data, i);
    }
    cr_assert(holds_pattern(tensor_of(objects[40], 0).data, BYTES, 3));
    cr_assert_eq(info_of(objects[40]).version, 1u);
    release_all(sampler, 200);
    memset(objects, 0, sizeof objects);
    must_be(RDT_FREED, rdt_fetch(sampler, refs, 200, &options, objects, &err));
    cr_assert_null(objects[0], "an error writes nothing");
    refs[10] = refs[9];
    refs[30] = refs[9];
    options.timeout_ns = LONG;
    (void)put_one(trainer, &tensors[20], "later");
    must_ok(rdt_fetch_each(sampler, refs, 200, &options, objects, statuses, &err));
    cr_assert_eq(*(const uint32_t *)tensor_of(objects[20], 0).data, 20u);
    cr_assert_eq(*(const uint32_t *)tensor_of(objects[30], 0).data, 9u);
    release_all(sampler, 200);
    refs[50].id_bytes = 0;
    must_refuse(RDT_INVALID, "ref 50", rdt_fetch(sampler, refs, 200, &options, objects, &err));
    must_ok(rdt_unpublish(trainer, &refs[40], &err));
    end();
}

Test(fetch_many, own_memory_and_other_modes_are_as_in_other_fetches)
{
    static const struct {
        enum rdt_fetch_mode mode;
        const char *path;
    } modes[] = {{RDT_FETCH_COPY, "local/copy"}, {RDT_FETCH_SHARE, "local/share"}};
    struct rdt_fetch_options options = RDT_INIT(options);

    begin(NULL);
    (void)put_shared(50);
    must_ok(rdt_fetch(trainer, refs, 50, NULL, objects, &err));
    must_be_numbers(50, "local/same");
    cr_assert(info_of(objects[0]).writable);
    release_all(trainer, 50);
    for (unsigned i = 0; i < 2; i++) {
        options.mode = modes[i].mode;
        must_ok(rdt_fetch(sampler, refs, 50, &options, objects, &err));
        must_be_numbers(50, modes[i].path);
        release_all(sampler, 50);
    }
    fill();
    must_ok(rdt_put_many(trainer, values, 50, NULL, refs, NULL, &err));
    must_be(RDT_NO_PATH, rdt_fetch(sampler, refs, 50, &options, objects, &err)); /* the arena is not shared */
    options.mode = RDT_FETCH_COW;
    must_ok(rdt_fetch(sampler, refs, 50, &options, objects, &err));
    must_be_numbers(50, "inline");
    release_all(sampler, 50);
    end();
}

static int fetch_as_stranger(struct actor *self, void *arg)
{
    rdt *conn;

    must(setgroups(0, NULL) == 0 && setgid(STRANGER) == 0 && setuid(STRANGER) == 0);
    node_connect(&node, &conn);
    must_be(RDT_DENIED, rdt_fetch_each(conn, arg, 50, NULL, objects, statuses, &err));
    for (unsigned i = 0; i < 50; i++)
        must((statuses[i] == RDT_OK) == (i % 2 == 0));
    for (unsigned i = 0; i < 50; i += 2)
        must(*(const uint32_t *)tensor_of(objects[i], 0).data == i);
    release_all(conn, 50);
    rdt_close(conn);
    return 0;
}

Test(fetch_many, other_users_get_what_is_shown_to_them)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct actor stranger;

    if (geteuid() != 0)
        cr_skip_test("needs root to be another user");
    begin(NULL);
    fill();
    for (unsigned i = 0; i < 50; i++) {
        options.visibility = i % 2 ? RDT_VISIBLE_TO_OWNER : RDT_VISIBLE_TO_ALL;
        must_ok(rdt_put(trainer, &tensors[i], 1, &options, &refs[i], &err));
    }
    actor_start(&stranger, fetch_as_stranger, refs);
    actor_wait(&stranger);
    end();
}

Test(fetch_many, a_daemon_that_hands_nothing_out_is_asked_one_by_one)
{
    struct node_status before, after;

    begin(NULL);
    (void)put_shared(100);
    sampler->can.abilities = 0; /* as its HELLO would say */
    node_status(&node, &before);
    must_ok(rdt_fetch(sampler, refs, 100, NULL, objects, &err));
    node_status(&node, &after);
    cr_assert_eq(after.transfers_done - before.transfers_done, 100u);
    must_be_numbers(100, "local/share");
    release_all(sampler, 100);
    wait_until(LONG, stat_of(trainer, &refs[99]).holds == 1);
    end();
}

/* ---- ends ---- */

/* The daemon answers after the time of the call: nobody holds what it has handed out. */
Test(fetch_many, a_late_answer_leaves_no_holds)
{
    struct rdt_fetch_options options = RDT_INIT(options);

    begin(NULL);
    (void)put_shared(200);
    options.timeout_ns = 50 * MSEC;
    node_freeze(&node);
    must_be(RDT_TIMED_OUT, rdt_fetch_each(sampler, refs, 200, &options, objects, statuses, &err));
    for (unsigned i = 0; i < 200; i++)
        cr_assert(statuses[i] == RDT_TIMED_OUT && !objects[i]);
    node_thaw(&node);
    must_ok(rdt_ping(sampler, LONG, &err));
    for (unsigned i = 0; i < 200; i++)
        wait_until(LONG, stat_of(trainer, &refs[i]).holds == 1);
    must_ok(rdt_fetch(sampler, refs, 200, NULL, objects, &err));
    must_be_numbers(200, "local/share");
    release_all(sampler, 200);
    end();
}

static int hold_and_wait(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "reader");

    must_ok(rdt_fetch(conn, arg, MANY, NULL, objects, &err));
    actor_step(self);
    (void)pause();
    return 0;
}

Test(fetch_many, a_reader_that_dies_holds_nothing)
{
    struct actor reader;

    begin(NULL);
    (void)put_shared(MANY);
    actor_start(&reader, hold_and_wait, refs);
    actor_await(&reader);
    cr_assert_eq(stat_of(trainer, &refs[MANY - 1]).holds, 2u);
    actor_kill(&reader, SIGKILL);
    for (unsigned i = 0; i < MANY; i += 500)
        wait_until(LONG, stat_of(trainer, &refs[i]).holds == 1);
    end();
}

/* ---- a client that lies ---- */

static Rdt__Pb__LoadManyReply *ask(struct raw *raw, Rdt__Pb__RefList *list)
{
    Rdt__Pb__LoadMany message = MESSAGE(load_many, .refs = list);

    return (Rdt__Pb__LoadManyReply *)raw_reply(raw, raw_send(raw, RDT_MSG_LOAD_MANY, &message.base, NULL, 0),
                                               &rdt__pb__load_many_reply__descriptor);
}

static void must_refuse_raw(struct raw *raw, uint16_t type, const ProtobufCMessage *message, enum rdt_status expected)
{
    enum rdt_status status;
    char text[256];

    (void)raw_send(raw, type, message, NULL, 0);
    status = raw_error(raw, text);
    must_say(status == expected, "%s: %s", rdt_status_name(status), text);
}

Test(fetch_many, clients_that_lie_are_refused)
{
    static uint64_t holds[RDT_MAX_RELEASED_HOLDS + 1], kept[RDT_MAX_RELEASED_REGIONS + 1];
    static uint32_t id_bytes[RDT_MAX_FETCH_REFS + 1];
    Rdt__Pb__Ref like = RDT__PB__REF__INIT, *likes[] = {&like};
    Rdt__Pb__RefList list = MESSAGE(ref_list, .like = likes, .n_like = 1, .id_bytes = id_bytes);
    Rdt__Pb__TensorList targets = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__LoadMany message = MESSAGE(load_many, .refs = &list);
    Rdt__Pb__Release release = MESSAGE(release, .holds = holds);
    Rdt__Pb__LoadManyReply *reply;
    struct raw raw;

    begin(NULL);
    (void)put_shared(MANY);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    must_refuse_raw(&raw, RDT_MSG_LOAD_MANY, &((Rdt__Pb__LoadMany)MESSAGE(load_many, .refs = NULL)).base, RDT_INVALID);
    message.targets = &targets;
    must_refuse_raw(&raw, RDT_MSG_LOAD_MANY, &message.base, RDT_INVALID);
    message.targets = NULL;
    message.mode = (Rdt__Pb__FetchMode)77;
    must_refuse_raw(&raw, RDT_MSG_LOAD_MANY, &message.base, RDT_INVALID);
    message.mode = RDT__PB__FETCH_MODE__FETCH_MODE_AUTO;
    list.n_id_bytes = RDT_MAX_FETCH_REFS + 1;
    must_refuse_raw(&raw, RDT_MSG_LOAD_MANY, &message.base, RDT_LIMIT);
    list.n_id_bytes = 2;
    id_bytes[1] = 7;
    must_refuse_raw(&raw, RDT_MSG_LOAD_MANY, &message.base, RDT_INVALID);
    id_bytes[1] = 0;
    reply = ask(&raw, &list); /* empty ids */
    must(reply->n_status == 2 && reply->status[0] != RDT_OK && reply->n_hold == 0);
    rdt__pb__load_many_reply__free_unpacked(reply, NULL);
    list.n_id_bytes = 0;
    reply = ask(&raw, &list);
    must(reply->n_status == 0 && reply->n_count == 0);
    rdt__pb__load_many_reply__free_unpacked(reply, NULL);
    /* the same object as often as a message may name it: what does not fit is AGAIN */
    like.any_owner = true;
    list.n_id_bytes = RDT_MAX_FETCH_REFS;
    list.generation = malloc(RDT_MAX_FETCH_REFS * sizeof *list.generation);
    list.n_generation = RDT_MAX_FETCH_REFS;
    list.ids.data = malloc((size_t)RDT_MAX_FETCH_REFS * refs[0].id_bytes);
    for (unsigned i = 0; i < RDT_MAX_FETCH_REFS; i++) {
        list.generation[i] = refs[0].generation;
        id_bytes[i] = refs[0].id_bytes;
        memcpy(list.ids.data + list.ids.len, refs[0].id, refs[0].id_bytes);
        list.ids.len += refs[0].id_bytes;
    }
    reply = ask(&raw, &list);
    must(reply->n_status == RDT_MAX_FETCH_REFS && reply->status[0] == RDT_OK &&
         reply->status[RDT_MAX_FETCH_REFS - 1] == RDT_AGAIN);
    must(reply->n_regions == 1 && raw.frame.nfds == 1);
    frame_close_fds(&raw.frame);
    must(stat_of(trainer, &refs[0]).holds == 1 + reply->n_hold);
    release.n_holds = RDT_MAX_RELEASED_HOLDS + 1;
    must_refuse_raw(&raw, RDT_MSG_RELEASE, &release.base, RDT_INVALID);
    release.n_holds = 1;
    release.keep_mapped_regions = kept;
    release.n_keep_mapped_regions = RDT_MAX_RELEASED_REGIONS + 1;
    must_refuse_raw(&raw, RDT_MSG_RELEASE, &release.base, RDT_INVALID);
    release.n_keep_mapped_regions = 0;
    release.hold = reply->hold[0];
    must_refuse_raw(&raw, RDT_MSG_RELEASE, &release.base, RDT_INVALID);
    release.hold = 0;
    memcpy(holds + 2, reply->hold, reply->n_hold * sizeof *holds);
    holds[1] = reply->hold[0]; /* 0 first, and one of them twice */
    release.n_holds = reply->n_hold + 2;
    rdt__pb__empty__free_unpacked(
        (Rdt__Pb__Empty *)raw_reply(&raw, raw_send(&raw, RDT_MSG_RELEASE, &release.base, NULL, 0), &rdt__pb__empty__descriptor),
        NULL);
    wait_until(LONG, stat_of(trainer, &refs[0]).holds == 1);
    rdt__pb__load_many_reply__free_unpacked(reply, NULL);
    /* it leaves while it is answered, and while it has not read the answers */
    for (unsigned i = 0; i < 20; i++)
        (void)raw_send(&raw, RDT_MSG_LOAD_MANY, &message.base, NULL, 0);
    raw_close(&raw);
    wait_until(LONG, stat_of(trainer, &refs[0]).holds == 1);
    free(list.generation);
    free(list.ids.data);
    end();
}

/* Asks for the object, and for many that do not exist. */
static uint64_t ask_for_long(struct raw *raw, const struct rdt_ref *ref, bool alone)
{
    static uint32_t id_bytes[RDT_MAX_FETCH_REFS];
    static uint64_t generation[RDT_MAX_FETCH_REFS];
    Rdt__Pb__Ref like = MESSAGE(ref, .any_owner = true), *likes[] = {&like};
    Rdt__Pb__RefList list = MESSAGE(ref_list, .like = likes, .n_like = 1, .id_bytes = id_bytes, .generation = generation);
    Rdt__Pb__LoadMany message = MESSAGE(load_many, .refs = &list);
    uint64_t id;

    list.n_id_bytes = list.n_generation = alone ? 1 : RDT_MAX_FETCH_REFS;
    list.ids.data = malloc(list.n_id_bytes * ref->id_bytes);
    for (unsigned i = 0; i < list.n_id_bytes; i++) {
        generation[i] = i == 0 ? ref->generation : ref->generation + i;
        id_bytes[i] = ref->id_bytes;
        memcpy(list.ids.data + list.ids.len, ref->id, ref->id_bytes);
        list.ids.len += ref->id_bytes;
    }
    id = raw_send(raw, RDT_MSG_LOAD_MANY, &message.base, NULL, 0);
    free(list.ids.data);
    return id;
}

static void next_answer(struct raw *raw, uint64_t id)
{
    do {
        must_say(raw_next(raw), "the daemon has closed");
        frame_close_fds(&raw->frame);
    } while (raw->frame.request_id != id);
}

static void release_raw(struct raw *raw, uint64_t hold, uint64_t *kept_region)
{
    Rdt__Pb__Release release = MESSAGE(release, .holds = &hold, .n_holds = 1, .keep_mapped_regions = kept_region);

    release.n_keep_mapped_regions = kept_region ? 1 : 0;
    (void)raw_send(raw, RDT_MSG_RELEASE, &release.base, NULL, 0);
}

/* It guesses the number of a hold. The object and its region end before the answer that names them. */
Test(fetch_many, a_hold_that_is_released_before_the_answer_takes_nothing_with_it)
{
    struct raw raw;

    begin(NULL);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    for (unsigned i = 0; i < 20; i++) {
        uint8_t *memory = alloc_memory(trainer, BYTES);
        struct rdt_ref ref = put_one(trainer, &VECTOR(RDT_U8, BYTES, memory), NULL);
        uint64_t id = ask_for_long(&raw, &ref, true), hold, region;
        Rdt__Pb__LoadManyReply *reply;

        do
            must(raw_next(&raw));
        while (raw.frame.request_id != id);
        frame_close_fds(&raw.frame);
        reply = rdt__pb__load_many_reply__unpack(NULL, raw.frame.length, raw.frame.payload);
        must(reply && reply->n_hold == 1 && reply->n_regions == 1);
        hold = reply->hold[0];
        region = reply->regions[0]->region;
        rdt__pb__load_many_reply__free_unpacked(reply, NULL);
        release_raw(&raw, hold, &region);
        next_answer(&raw, raw.last_id);
        id = ask_for_long(&raw, &ref, false);
        wait_until(LONG, stat_of(trainer, &ref).holds == 2);
        release_raw(&raw, hold + 1, NULL);
        must_ok(rdt_free(trainer, &ref, false, &err));
        must_ok(rdt_dealloc(trainer, memory, &err));
        next_answer(&raw, id);
    }
    raw_close(&raw);
    end();
}
