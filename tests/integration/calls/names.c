/* SPDX-License-Identifier: Apache-2.0 */
/* Published names on one node: versions, which object a name holds, who may use a name, and how it ends. */
#include "tests/integration/calls/names.h"

TestSuite(names, .timeout = 120);

/* ---- versions ---- */

Test(names, each_publish_is_the_next_version)
{
    rdt_object *object;

    begin(NULL);
    for (uint64_t version = 1; version <= 5; version++) {
        cr_assert_eq(publish_pattern(trainer, "weights", (uint32_t)version), version);
        object = fetch_version(sampler, "weights", version - 1, version, (uint32_t)version);
        rdt_release(object);
    }
    object = fetch_version(sampler, "weights", 0, 5, 5); /* a reader that has read none gets the newest */
    rdt_release(object);
    cr_assert_eq(publish_pattern(trainer, "other", 1), 1u);
    unpublish(trainer, "weights");
    unpublish(trainer, "other");
    end();
}

Test(names, versions_are_not_given_twice_after_unpublish)
{
    rdt_object *object;

    begin(NULL);
    cr_assert_eq(publish_pattern(trainer, "weights", 1), 1u);
    cr_assert_eq(publish_pattern(trainer, "weights", 2), 2u);
    unpublish(trainer, "weights");
    cr_assert_eq(publish_pattern(trainer, "weights", 3), 3u);
    object = fetch_version(sampler, "weights", 2, 3, 3);
    rdt_release(object);
    unpublish(trainer, "weights");
    end();
}

Test(names, one_object_under_two_names_and_twice_under_one)
{
    struct rdt_ref ref;
    struct rdt_stat stat;
    uint64_t version;
    rdt_object *object;
    char *addr;

    begin(NULL);
    addr = alloc_memory(trainer, BYTES);
    fill_pattern(addr, BYTES, 4);
    ref = put_one(trainer, &VECTOR(RDT_U8, BYTES, addr), NULL);
    must_ok(rdt_publish(trainer, "a", &ref, NULL, &version, &err));
    must_ok(rdt_publish(trainer, "a", &ref, NULL, &version, &err));
    cr_assert_eq(version, 2u);
    must_ok(rdt_publish(trainer, "b", &ref, NULL, NULL, &err));
    must_ok(rdt_stat(trainer, &ref, &stat, &err));
    cr_assert_eq(stat.holds, 3u, "the producer's, and one of each name: %u", stat.holds);
    must_ok(rdt_free(trainer, &ref, false, &err));
    object = fetch_version(sampler, "a", 1, 2, 4);
    rdt_release(object);
    unpublish(trainer, "a");
    object = fetch_version(sampler, "b", 0, 1, 4);
    rdt_release(object);
    unpublish(trainer, "b");
    must_be(RDT_FREED, rdt_stat(trainer, &ref, &stat, &err));
    end();
}

Test(names, old_version_stays_with_its_reader_and_memory_is_bounded)
{
    struct node_status status;
    uint64_t before;
    rdt_object *slow;

    begin(NULL);
    (void)publish_pattern(trainer, "weights", 1);
    slow = fetch_version(sampler, "weights", 0, 1, 1);
    node_status(&node, &status);
    before = status.regions;
    for (uint32_t i = 2; i <= 100; i++)
        cr_assert_eq(publish_pattern(trainer, "weights", i), i);
    node_status(&node, &status);
    cr_assert_eq(status.objects, 2u, "the newest version and the slow reader's: %llu", (unsigned long long)status.objects);
    cr_assert_leq(status.regions, before + 1);
    cr_assert(holds_pattern(tensor_of(slow, 0).data, BYTES, 1));
    rdt_release(slow);
    wait_until(20 * SEC, (node_status(&node, &status), status.objects == 1));
    unpublish(trainer, "weights");
    end();
}

Test(names, stat_and_free_know_a_name)
{
    struct rdt_ref name = name_ref("weights", 7), ref;
    struct rdt_stat stat;

    begin(NULL);
    must_refuse(RDT_NOT_FOUND, "nothing is published", rdt_stat(sampler, &name, &stat, &err));
    (void)publish_pattern(trainer, "weights", 1);
    name.after = 0;
    must_ok(rdt_stat(sampler, &name, &stat, &err));
    ref = stat.ref;
    cr_assert(!ref.is_name);
    cr_assert_eq(stat.bytes, BYTES);
    cr_assert_eq(stat.holds, 1u);
    must_refuse(RDT_INVALID, "is a name", rdt_free(trainer, &name, false, &err));
    must_refuse(RDT_INVALID, "is a name", rdt_free(trainer, &name, true, &err));
    must_refuse(RDT_INVALID, "is a name", rdt_wait_freed(trainer, &name, 0, &err));
    must_refuse(RDT_INVALID, "not of a name", rdt_unpublish(trainer, &ref, &err));
    unpublish(trainer, "weights");
    end();
}

/* ---- ends ---- */

static int train(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "trainer");
    uint64_t version = publish_pattern(conn, "weights", *(uint32_t *)arg);

    actor_send(self, &version, sizeof version);
    actor_await(self); /* for ever */
    return 0;
}

Test(names, name_outlives_a_killed_trainer_and_the_next_one_goes_on)
{
    uint32_t seeds[] = {1, 2};
    struct actor trainers[2];
    uint64_t version;
    rdt_object *object;
    rdt_request *request;
    struct rdt_ref next = name_ref("weights", 1);

    node_start(&node, NULL);
    actor_start(&trainers[0], train, &seeds[0]);
    actor_recv(&trainers[0], &version, sizeof version);
    cr_assert_eq(version, 1u);
    sampler = node_client(&node, "sampler");
    request = start_one(sampler, &next, LONG);
    actor_kill(&trainers[0], SIGKILL);
    object = fetch_version(sampler, "weights", 0, 1, 1);
    rdt_release(object);
    actor_start(&trainers[1], train, &seeds[1]);
    actor_recv(&trainers[1], &version, sizeof version);
    cr_assert_eq(version, 2u);
    must_ok(rdt_wait(sampler, &request, 1, 1, LONG, NULL, NULL, &err));
    actor_kill(&trainers[1], SIGKILL);
    rdt_request_destroy(request);
    unpublish(sampler, "weights");
    trainer = NULL;
    end();
}

Test(names, unpublish_frees_those_who_wait)
{
    struct rdt_ref next = name_ref("weights", 1), any = name_ref("weights", 0);
    rdt_request *request;
    rdt_object *held, *object = NULL;

    begin(NULL);
    must_refuse(RDT_NOT_FOUND, "weights", rdt_unpublish(trainer, &any, &err));
    (void)publish_pattern(trainer, "weights", 1);
    held = fetch_version(sampler, "weights", 0, 1, 1);
    request = start_one(sampler, &next, LONG);
    wait_until(20 * SEC, waiters_of("weights") == 1);
    unpublish(trainer, "weights");
    must_refuse(RDT_FREED, "after version 1", rdt_wait(sampler, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_refuse(RDT_FREED, "unpublished", try_fetch(sampler, &next, RDT_FETCH_AUTO, LONG, &object, &err));
    must_be(RDT_TIMED_OUT, try_fetch(sampler, &any, RDT_FETCH_AUTO, 20 * MSEC, &object, &err));
    must_be(RDT_NOT_FOUND, rdt_unpublish(trainer, &any, &err));
    cr_assert(holds_pattern(tensor_of(held, 0).data, BYTES, 1), "a reader keeps what it has");
    rdt_release(held);
    end();
}

Test(names, forced_free_leaves_the_name_without_a_version)
{
    struct rdt_ref any = name_ref("weights", 0), next = name_ref("weights", 1);
    struct rdt_stat stat;
    rdt_request *requests[2];
    rdt_object *object;

    begin(NULL);
    (void)publish_pattern(trainer, "weights", 1);
    must_ok(rdt_stat(trainer, &any, &stat, &err));
    requests[0] = start_one(sampler, &next, LONG);
    must_ok(rdt_free(trainer, &stat.ref, true, &err));
    must_be(RDT_FREED, rdt_stat(trainer, &stat.ref, &stat, &err));
    requests[1] = start_one(sampler, &any, LONG); /* there was a version above 0, and is no more */
    wait_until(20 * SEC, waiters_of("weights") == 2);
    (void)publish_pattern(trainer, "weights", 2);
    must_ok(rdt_wait(sampler, requests, 2, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    for (unsigned i = 0; i < 2; i++) {
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        cr_assert_eq(info_of(object).version, 2u);
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    unpublish(trainer, "weights");
    end();
}

Test(names, stop_tells_those_who_wait)
{
    struct rdt_ref next = name_ref("weights", 1);
    rdt_request *request;

    begin(NULL);
    (void)publish_pattern(trainer, "weights", 1);
    request = start_one(sampler, &next, LONG);
    wait_until(20 * SEC, waiters_of("weights") == 1);
    node_stop(&node);
    must_be(RDT_SHUTTING_DOWN, rdt_wait(sampler, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    rdt_close(trainer);
    rdt_close(sampler);
    node_check_log(&node, NULL);
}

/* ---- refusals ---- */

Test(names, publishing_what_is_not_there_says_what_is_wrong)
{
    struct rdt_ref ref, unknown = ref_named("nobody's"), name = name_ref("weights", 0), hold;
    struct rdt_publish_options options = RDT_INIT(options);
    rdt_object *object;
    char *addr, longest[130];

    begin(NULL);
    addr = alloc_memory(trainer, BYTES);
    must_refuse(RDT_NOT_FOUND, "nobody's", rdt_publish(trainer, "weights", &unknown, NULL, NULL, &err));
    must_refuse(RDT_INVALID, "is a name", rdt_publish(trainer, "weights", &name, NULL, NULL, &err));
    ref = put_one(trainer, &VECTOR(RDT_U8, BYTES, addr), "o");
    memset(longest, 'n', sizeof longest - 1);
    longest[129] = 0;
    must_refuse(RDT_INVALID, "empty", rdt_publish(trainer, "", &ref, NULL, NULL, &err));
    must_refuse(RDT_INVALID, "empty", rdt_publish(trainer, NULL, &ref, NULL, NULL, &err));
    must_refuse(RDT_INVALID, "128", rdt_publish(trainer, longest, &ref, NULL, NULL, &err));
    options.visibility = RDT_VISIBLE_TO_ALL;
    must_refuse(RDT_INVALID, "put it with", rdt_publish(trainer, "weights", &ref, &options, NULL, &err));
    options.visibility = (enum rdt_visibility)3;
    must_refuse(RDT_INVALID, "visibility 3", rdt_publish(trainer, "weights", &ref, &options, NULL, &err));
    object = fetch_one(sampler, &ref, RDT_FETCH_SHARE); /* keeps it, though it is freed */
    hold = ref;
    must_ok(rdt_free(trainer, &ref, true, &err));
    must_refuse(RDT_FREED, "\"o\" was freed", rdt_publish(trainer, "weights", &hold, NULL, NULL, &err));
    rdt_release(object);
    wait_until(20 * SEC, rdt_publish(trainer, "weights", &hold, NULL, NULL, NULL) == RDT_FREED);
    ref.generation += 1000;
    must_refuse(RDT_NOT_FOUND, "not known here", rdt_publish(trainer, "weights", &ref, NULL, NULL, &err));
    end();
}

Test(names, visibility_stays_as_the_first_publish_said)
{
    struct rdt_publish_options options = RDT_INIT(options);
    struct rdt_ref ref, name;
    char *addr;

    begin(NULL);
    addr = alloc_memory(trainer, BYTES);
    ref = put_shown(trainer, &VECTOR(RDT_U8, BYTES, addr), "o", RDT_VISIBLE_TO_ALL);
    options.visibility = RDT_VISIBLE_TO_TENANT;
    options.name_ref = &name;
    must_ok(rdt_publish(trainer, "weights", &ref, &options, NULL, &err));
    cr_assert(name.is_name && !name.any_owner && name.uid == getuid() && memcmp(name.node, node.uuid_bytes, 16) == 0);
    options.visibility = RDT_VISIBLE_TO_ALL;
    must_refuse(RDT_INVALID, "unpublish it first", rdt_publish(trainer, "weights", &ref, &options, NULL, &err));
    must_ok(rdt_unpublish(trainer, &name, &err));
    must_ok(rdt_publish(trainer, "weights", &ref, &options, NULL, &err));
    must_ok(rdt_unpublish(trainer, &name, &err));
    end();
}

Test(names, too_many_names_say_owner_max_names)
{
    static const char *const flags[] = {"--set", "limits.owner_max_names=2", NULL};

    begin(flags);
    (void)publish_pattern(trainer, "a", 1);
    (void)publish_pattern(trainer, "b", 1);
    {
        char *addr = alloc_memory(trainer, BYTES);
        struct rdt_ref ref = put_one(trainer, &VECTOR(RDT_U8, BYTES, addr), "o");
        must_refuse(RDT_LIMIT, "owner_max_names", rdt_publish(trainer, "c", &ref, NULL, NULL, &err));
        must_ok(rdt_publish(trainer, "a", &ref, NULL, NULL, &err));
        unpublish(trainer, "b");
        must_ok(rdt_publish(trainer, "c", &ref, NULL, NULL, &err));
    }
    unpublish(trainer, "a");
    unpublish(trainer, "c");
    end();
}

static uint64_t send_publish(struct raw *raw, const struct rdt_ref *ref, const void *name, size_t bytes)
{
    Rdt__Pb__Publish request = RDT__PB__PUBLISH__INIT;
    Rdt__Pb__Ref message = RDT__PB__REF__INIT;

    message.id = (ProtobufCBinaryData){ref->id_bytes, (uint8_t *)ref->id};
    message.any_owner = true;
    request.ref = &message;
    request.name = (ProtobufCBinaryData){bytes, (uint8_t *)name};
    return raw_send(raw, RDT_MSG_PUBLISH, &request.base, NULL, 0);
}

static void expect_version(struct raw *raw, uint64_t id)
{
    protobuf_c_message_free_unpacked(raw_reply(raw, id, &rdt__pb__publish_reply__descriptor), NULL);
}

static void publish_raw(struct raw *raw, const struct rdt_ref *ref, const void *name, size_t bytes, enum rdt_status expected)
{
    uint64_t id = send_publish(raw, ref, name, bytes);
    char text[256];

    if (expected == RDT_OK)
        expect_version(raw, id);
    else
        must(raw_error(raw, text) == expected);
}

Test(names, any_bytes_are_a_name_of_their_own)
{
    static const char nul[] = "a\0b", high[] = "\xff\xfe\n";
    uint8_t longest[129];
    struct rdt_ref ref, name;
    rdt_object *object;
    struct raw raw;
    char *addr;

    begin(NULL);
    addr = alloc_memory(trainer, BYTES);
    ref = put_one(trainer, &VECTOR(RDT_U8, BYTES, addr), "o");
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    memset(longest, 0, sizeof longest);
    publish_raw(&raw, &ref, "", 0, RDT_INVALID);
    publish_raw(&raw, &ref, longest, 129, RDT_INVALID);
    publish_raw(&raw, &ref, longest, 128, RDT_OK);
    publish_raw(&raw, &ref, nul, 3, RDT_OK);
    publish_raw(&raw, &ref, high, 3, RDT_OK);
    must_ok(rdt_ref_from_text("rdt:00000000000000000000000000000000/a%00b?v=0", &name, &err));
    object = fetch_one(sampler, &name, RDT_FETCH_AUTO);
    rdt_release(object);
    must_ok(rdt_unpublish(sampler, &name, &err));
    name = name_ref("a", 0);
    must_be(RDT_NOT_FOUND, rdt_unpublish(sampler, &name, &err)); /* not cut at the zero */
    name = name_ref(high, 0);
    must_ok(rdt_unpublish(sampler, &name, &err));
    name.id_bytes = 128;
    memset(name.id, 0, sizeof name.id);
    must_ok(rdt_unpublish(sampler, &name, &err));
    raw_close(&raw);
    end();
}

/* ---- other users ---- */

static int come_as_a_stranger(struct actor *self, void *arg)
{
    struct rdt_connect_options connect = RDT_INIT(connect);
    struct rdt_ref ref, name, shown;
    rdt_object *object = NULL;
    rdt *conn = NULL;
    struct rdt_stat stat;

    (void)arg;
    must(chdir(node.dir) == 0);
    must(setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0);
    connect.socket = "s";
    must_ok(rdt_connect(&connect, &conn, &err));
    actor_recv(self, &ref, sizeof ref);
    actor_recv(self, &name, sizeof name);
    actor_recv(self, &shown, sizeof shown);
    must_refuse(RDT_TIMED_OUT, "does not show it", try_fetch(conn, &name, RDT_FETCH_AUTO, 200 * MSEC, &object, &err));
    name.after = 100;
    must_be(RDT_TIMED_OUT, try_fetch(conn, &name, RDT_FETCH_AUTO, 20 * MSEC, &object, &err));
    must_refuse(RDT_TIMED_OUT, "does not show it", rdt_wait_put(conn, &name, 200 * MSEC, &err));
    must_be(RDT_NOT_FOUND, rdt_stat(conn, &name, &stat, &err));
    must_be(RDT_DENIED, rdt_unpublish(conn, &name, &err));
    must_refuse(RDT_DENIED, "may unpublish", rdt_unpublish(conn, &shown, &err));
    name = name_ref("shown", 0); /* the stranger's own: the error says whose there is one */
    must_refuse(RDT_TIMED_OUT, "uid 0 has published version 1",
                try_fetch(conn, &name, RDT_FETCH_AUTO, 200 * MSEC, &object, &err));
    must_refuse(RDT_TIMED_OUT, "uid 0 has published version 1", rdt_wait_put(conn, &name, 200 * MSEC, &err));
    must_refuse(RDT_NOT_FOUND, "uid 0 has published version 1", rdt_stat(conn, &name, &stat, &err));
    must_ok(rdt_ref_set_owner(conn, &name, "root", &err));
    must_ok(rdt_stat(conn, &name, &stat, &err));
    must_refuse(RDT_INVALID, "no user \"nobody at all\"", rdt_ref_set_owner(conn, &name, "nobody at all", &err));
    name = name_ref("private", 0); /* nobody is notified of this version */
    must_be(RDT_TIMED_OUT, try_fetch(conn, &name, RDT_FETCH_AUTO, 20 * MSEC, &object, &err));
    must_ok(rdt_wait_put(conn, &shown, LONG, &err));
    must_refuse(RDT_DENIED, "may publish", rdt_publish(conn, "mine", &ref, NULL, NULL, &err));
    object = fetch_one(conn, &shown, RDT_FETCH_AUTO);
    must(info_of(object).version == 1);
    rdt_release(object);
    must_ok(rdt_ref_from_name("private", 0, NULL, &name, &err)); /* the stranger's own name space has none */
    must_be(RDT_TIMED_OUT, try_fetch(conn, &name, RDT_FETCH_AUTO, 20 * MSEC, &object, &err));
    must_ok(rdt_ref_from_name("later", 0, &ref, &name, &err)); /* waits for a version that is then published for others */
    actor_step(self);
    object = fetch_one(conn, &name, RDT_FETCH_AUTO); /* the first version that is published for others */
    must(info_of(object).version == 2);
    rdt_release(object);
    rdt_close(conn);
    return 0;
}

/* ---- names that end by themselves ---- */

static int publish_with_a_lease(struct actor *self, void *arg)
{
    struct rdt_publish_options options = RDT_INIT(options);
    rdt *conn = node_client(&node, "trainer");
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), arg);

    options.lease = true;
    must_ok(rdt_publish(conn, "weights", &ref, &options, NULL, &err));
    actor_step(self);
    actor_await(self); /* the publisher is killed here */
    return 0;
}

Test(names, waiter_learns_of_a_killed_publisher)
{
    struct actor publisher;
    struct rdt_ref later = name_ref("weights", 1), any = name_ref("weights", 0);
    rdt_object *object;
    rdt_request *request;

    begin(NULL);
    actor_start(&publisher, publish_with_a_lease, NULL);
    actor_await(&publisher);
    object = fetch_one(sampler, &any, RDT_FETCH_AUTO);
    request = start_one(sampler, &later, LONG);
    wait_until(20 * SEC, waiters_of("weights") == 1);
    actor_kill(&publisher, SIGKILL);
    must_refuse(RDT_OWNER_DIED, "after version 1", rdt_wait(sampler, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_refuse(RDT_OWNER_DIED, "a lease", rdt_wait_put(sampler, &later, LONG, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_put(sampler, &any, 20 * MSEC, &err)); /* it may be published again */
    must(memcmp(tensor_of(object, 0).data, "hello", 5) == 0);
    rdt_release(object);
    cr_assert_eq(publish_pattern(trainer, "weights", 1), 2u);
    unpublish(trainer, "weights");
    end();
}

/* The daemon learns in one turn that the publisher has gone and that another client publishes its object. If it has not ended
 * the old name yet, only that holds the object, and ends while it is published. */
Test(names, object_of_a_publisher_that_has_just_died_may_be_published)
{
    struct rdt_ref ref = ref_named("leased"), any = name_ref("weights", 0);
    struct actor publisher;
    rdt_object *object;
    struct raw raw;
    uint64_t id;

    begin(NULL);
    for (unsigned round = 0; round < 5; round++) {
        actor_start(&publisher, publish_with_a_lease, (char *)"leased");
        actor_await(&publisher);
        raw_connect(&raw, node.socket);
        raw_hello(&raw);
        must(kill(node.pid, SIGSTOP) == 0);
        actor_kill(&publisher, SIGKILL);
        id = send_publish(&raw, &ref, "weights", 7);
        must(kill(node.pid, SIGCONT) == 0);
        must(raw_next(&raw) && raw.frame.request_id == id);
        if (!(raw.frame.flags & FRAME_ERROR)) {
            object = fetch_one(sampler, &any, RDT_FETCH_AUTO);
            must(memcmp(tensor_of(object, 0).data, "hello", 5) == 0);
            rdt_release(object);
            unpublish(trainer, "weights");
        }
        raw_close(&raw);
    }
    end();
}

Test(names, an_id_and_a_name_are_told_apart)
{
    struct rdt_ref ref, name = name_ref("o", 0), id = ref_named("w");
    rdt_object *object;

    begin(NULL);
    ref = put_one(trainer, &VECTOR(RDT_U8, 5, "hello"), "o");
    must_ok(rdt_publish(trainer, "w", &ref, NULL, NULL, &err));
    must_refuse(RDT_TIMED_OUT, "there is an object \"o\"",
                try_fetch(sampler, &name, RDT_FETCH_AUTO, 200 * MSEC, &object, &err));
    must_refuse(RDT_TIMED_OUT, "there is a name \"w\"", try_fetch(sampler, &id, RDT_FETCH_AUTO, 200 * MSEC, &object, &err));
    must_refuse(RDT_TIMED_OUT, "there is a name \"w\"", rdt_wait_put(sampler, &id, 200 * MSEC, &err));
    must_ok(rdt_free(trainer, &ref, false, &err));
    unpublish(trainer, "w");
    end();
}

Test(names, another_user_gets_what_is_published_for_it)
{
    struct rdt_publish_options options = RDT_INIT(options);
    struct rdt_ref ref, name, shown;
    struct actor stranger;
    char *addr;

    if (geteuid() != 0)
        cr_skip_test("needs root, to become another user");
    node_start(&node, NULL);
    actor_start(&stranger, come_as_a_stranger, NULL);
    trainer = node_client(&node, "trainer");
    sampler = NULL;
    addr = alloc_memory(trainer, BYTES);
    ref = put_shown(trainer, &VECTOR(RDT_U8, BYTES, addr), "o", RDT_VISIBLE_TO_ALL);
    options.name_ref = &name;
    must_ok(rdt_publish(trainer, "private", &ref, &options, NULL, &err));
    options.visibility = RDT_VISIBLE_TO_ALL;
    options.name_ref = &shown;
    must_ok(rdt_publish(trainer, "shown", &ref, &options, NULL, &err));
    actor_send(&stranger, &ref, sizeof ref);
    actor_send(&stranger, &name, sizeof name);
    actor_send(&stranger, &shown, sizeof shown);
    actor_await(&stranger);
    wait_until(20 * SEC, transfers_waiting() == 1);
    (void)publish_pattern(trainer, "later", 1); /* hidden: neither it nor its end is told to the stranger */
    unpublish(trainer, "later");
    must_ok(rdt_ping(trainer, LONG, &err));
    cr_assert_eq(transfers_waiting(), 1);
    must_ok(rdt_publish(trainer, "later", &ref, &options, NULL, &err));
    actor_wait(&stranger);
    unpublish(trainer, "private");
    unpublish(trainer, "shown");
    unpublish(trainer, "later");
    end();
}
