/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that go on at the next daemon, as a client sees them that is not librdt: tokens, RESUME, and requests that are
 * sent again with their numbers. */
#include "rdt_put_flags.h"
#include "tests/integration/faults/recovery.h"
#include "tests/support/raw.h"
#include "wire_ref.h"

TestSuite(recovery_sessions, .timeout = SUITE_SECONDS(60));

struct welcome {
    uint64_t session;
    uint8_t token[16];
    size_t token_bytes;
    bool resumed;
    int64_t grace_ns;
};

/* token NULL: a new session */
static uint64_t say_hello(struct raw *raw, const uint8_t *token)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;

    hello.protocol_min = hello.protocol_max = RDT_PROTOCOL_MAX;
    hello.client_name = (char *)"raw";
    if (token)
        hello.session_token = (ProtobufCBinaryData){16, (uint8_t *)token};
    raw_connect(raw, node.socket);
    return raw_send(raw, RDT_MSG_HELLO, &hello.base, NULL, 0);
}

static struct welcome greet(struct raw *raw, const uint8_t *token)
{
    uint64_t id = say_hello(raw, token);
    Rdt__Pb__HelloReply *reply = (Rdt__Pb__HelloReply *)raw_reply(raw, id, &rdt__pb__hello_reply__descriptor);
    struct welcome welcome = {.session = reply->session_id,
                              .token_bytes = reply->session_token.len,
                              .resumed = reply->resumed,
                              .grace_ns = reply->restart_grace_ns};

    must(welcome.token_bytes <= sizeof welcome.token);
    if (welcome.token_bytes > 0)
        memcpy(welcome.token, reply->session_token.data, welcome.token_bytes);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return welcome;
}

/* With a number of its own, as a client sends a request again. */
static void send_again(struct raw *raw, uint16_t type, uint64_t id, const ProtobufCMessage *message)
{
    uint8_t packed[1024];
    size_t bytes = protobuf_c_message_pack(message, packed);

    must(bytes <= sizeof packed && raw_frame(raw, (uint32_t)bytes, type, 0, 0, id, packed, bytes, NULL, 0));
}

static struct rdt_ref reply_ref(struct raw *raw, uint64_t id)
{
    Rdt__Pb__PutReply *reply = (Rdt__Pb__PutReply *)raw_reply(raw, id, &rdt__pb__put_reply__descriptor);
    struct rdt_ref ref = {0};

    memcpy(ref.node, reply->ref->node.data, sizeof ref.node);
    ref.generation = reply->ref->generation;
    ref.id_bytes = reply->ref->id.len;
    memcpy(ref.id, reply->ref->id.data, reply->ref->id.len);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return ref;
}

/* An object of 5 bytes in the message. */
static void fill_put(Rdt__Pb__Put *put, Rdt__Pb__TensorList *tensors)
{
    static uint32_t dtype = RDT_U8, ndim = 1;
    static uint64_t shape = 5, offset;

    rdt__pb__put__init(put);
    rdt__pb__tensor_list__init(tensors);
    tensors->dtype = &dtype;
    tensors->ndim = &ndim;
    tensors->shape = &shape;
    tensors->offset = &offset;
    tensors->n_dtype = tensors->n_ndim = tensors->n_shape = tensors->n_offset = 1;
    put->tensors = tensors;
    put->inline_data = (ProtobufCBinaryData){5, (uint8_t *)"bytes"};
}

static Rdt__Pb__ResumeReply *resume(struct raw *raw, const Rdt__Pb__Resume *message)
{
    return (Rdt__Pb__ResumeReply *)raw_reply(raw, raw_send(raw, RDT_MSG_RESUME, &message->base, NULL, 0),
                                             &rdt__pb__resume_reply__descriptor);
}

Test(recovery_sessions, without_a_keeper_there_is_no_token)
{
    struct raw raw;

    node_start(&node, NULL);
    struct welcome welcome = greet(&raw, NULL);
    cr_assert_eq(welcome.token_bytes, 0u);
    cr_assert_eq(welcome.grace_ns, 0);
    raw_close(&raw);
    node_stop(&node);
}

Test(recovery_sessions, token_brings_the_session_back_once)
{
    struct raw raw, other;
    char text[256];

    begin();
    struct welcome first = greet(&raw, NULL);
    cr_assert_eq(first.token_bytes, 16u);
    cr_assert_eq(first.grace_ns, 10 * SEC);
    cr_assert_not(first.resumed);
    (void)say_hello(&other, first.token);
    must_be(RDT_BUSY, raw_error(&other, text));
    must(strstr(text, "a token is for one connection at a time"));
    raw_close(&other);
    again(SIGKILL);
    raw_close(&raw);
    struct welcome second = greet(&raw, first.token);
    cr_assert(second.resumed);
    cr_assert_eq(second.session, first.session);
    cr_assert_arr_eq(second.token, first.token, 16);
    raw_close(&raw); /* now the session has ended */
    wait_until(LONG, !(second = greet(&other, first.token)).resumed && (raw_close(&other), true));
    cr_assert_gt(second.session, first.session, "no id is given twice");
    end();
}

Test(recovery_sessions, token_that_nobody_gave_begins_a_new_session)
{
    const uint8_t forged[16] = "forged";
    struct raw raw;
    char text[256];
    Rdt__Pb__Resume message = RDT__PB__RESUME__INIT;

    begin();
    struct welcome welcome = greet(&raw, forged);
    cr_assert_not(welcome.resumed);
    cr_assert_eq(welcome.token_bytes, 16u);
    (void)raw_send(&raw, RDT_MSG_RESUME, &message.base, NULL, 0);
    must_be(RDT_INVALID, raw_error(&raw, text));
    must(strstr(text, "has not just resumed a session"));
    raw_close(&raw);
    end();
}

Test(recovery_sessions, put_that_was_answered_to_nobody_is_not_put_twice)
{
    Rdt__Pb__Resume message = RDT__PB__RESUME__INIT;
    Rdt__Pb__TensorList tensors;
    Rdt__Pb__Put put;
    struct raw raw;

    begin();
    struct welcome welcome = greet(&raw, NULL);
    fill_put(&put, &tensors);
    uint64_t id = raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0);
    struct rdt_ref ref = reply_ref(&raw, id);
    again(SIGKILL);
    raw_close(&raw);
    must(greet(&raw, welcome.token).resumed);
    protobuf_c_message_free_unpacked(&resume(&raw, &message)->base, NULL);
    send_again(&raw, RDT_MSG_PUT, id, &put.base);
    struct rdt_ref same = reply_ref(&raw, id);
    cr_assert(rdt_ref_equal(&ref, &same));
    struct node_status status = node_now(&node);
    cr_assert_eq(status.objects, 1u);
    send_again(&raw, RDT_MSG_PUT, id + 1, &put.base); /* another request is another object */
    same = reply_ref(&raw, id + 1);
    cr_assert_not(rdt_ref_equal(&ref, &same));
    raw_close(&raw);
    node_expect_idle(&node);
    end();
}

/* When the copy is whole, the object gets another record. */
Test(recovery_sessions, put_of_a_snapshot_that_was_copied_later_is_not_put_twice)
{
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[1] = {&use};
    Rdt__Pb__Ref wire = RDT__PB__REF__INIT;
    Rdt__Pb__TensorList tensors;
    uint32_t region_index = 0;
    Rdt__Pb__Put put;
    struct raw raw;

    begin();
    struct welcome welcome = greet(&raw, NULL);
    use.region = raw_alloc(&raw, 4096, NULL, &use.generation);
    fill_put(&put, &tensors);
    put.flags = RDT_PUT_SNAPSHOT | RDT_PUT_PENDING;
    put.regions = uses;
    put.n_regions = tensors.n_region_index = 1;
    tensors.region_index = &region_index;
    put.inline_data = (ProtobufCBinaryData){0};
    uint64_t id = raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0);
    struct rdt_ref ref = reply_ref(&raw, id);
    ref.any_owner = 1;
    wire_ref_from(&ref, &wire);
    Rdt__Pb__Ready ready = MESSAGE(ready, .ref = &wire);
    (void)raw_send(&raw, RDT_MSG_READY, &ready.base, NULL, 0);
    rdt *other = node_client(&node, "other");
    must_ok(rdt_wait_put(other, &ref, LONG, &err));
    rdt_close(other);
    again(SIGKILL);
    raw_close(&raw);
    must(greet(&raw, welcome.token).resumed);
    Rdt__Pb__Resume message = MESSAGE(resume, .regions = &use.region, .n_regions = 1);
    protobuf_c_message_free_unpacked(&resume(&raw, &message)->base, NULL);
    send_again(&raw, RDT_MSG_PUT, id, &put.base);
    struct rdt_ref same = reply_ref(&raw, id);
    cr_assert(ref.generation == same.generation, "there are two objects");
    raw_close(&raw);
    node_expect_idle(&node);
    end();
}

static uint64_t reply_version(struct raw *raw, uint64_t id)
{
    Rdt__Pb__PublishReply *reply = (Rdt__Pb__PublishReply *)raw_reply(raw, id, &rdt__pb__publish_reply__descriptor);
    uint64_t version = reply->version;

    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return version;
}

/* The first answer might have been lost, and another version, or the name's end, came in between. */
Test(recovery_sessions, publish_whose_version_is_not_the_newest_is_not_done_twice)
{
    Rdt__Pb__Resume message = RDT__PB__RESUME__INIT;
    Rdt__Pb__Ref wire = RDT__PB__REF__INIT;
    rdt_object *object;
    uint64_t ids[3], version;
    struct raw raw;

    begin();
    rdt *conn = node_client(&node, "producer");
    struct rdt_ref ref = put_detached(conn, "one", 5, 0, 1);
    struct welcome welcome = greet(&raw, NULL);
    Rdt__Pb__Publish publish = MESSAGE(publish, .name = (ProtobufCBinaryData){1, (uint8_t *)"n"}, .ref = &wire);
    wire.node = (ProtobufCBinaryData){sizeof ref.node, ref.node};
    wire.id = (ProtobufCBinaryData){ref.id_bytes, (uint8_t *)ref.id};
    wire.generation = ref.generation;
    for (unsigned i = 0; i < 3; i++) {
        if (i == 2)
            publish.name.data = (uint8_t *)"m";
        ids[i] = raw_send(&raw, RDT_MSG_PUBLISH, &publish.base, NULL, 0);
        version = reply_version(&raw, ids[i]);
        must_say(version == (i == 1 ? 2 : 1), "version %llu", (unsigned long long)version);
    }
    struct rdt_ref name = name_ref("m");
    must_ok(rdt_unpublish(conn, &name, &err));
    for (unsigned round = 0; round < 2; round++) {
        again(SIGKILL);
        raw_close(&raw);
        must(greet(&raw, welcome.token).resumed);
        protobuf_c_message_free_unpacked(&resume(&raw, &message)->base, NULL);
        for (unsigned i = 0; i < 3; i++) {
            publish.name.data = (uint8_t *)(i == 2 ? "m" : "n");
            send_again(&raw, RDT_MSG_PUBLISH, ids[i], &publish.base);
            version = reply_version(&raw, ids[i]);
            must_say(version == (i == 1 ? 2 : 1), "version %llu of request %u", (unsigned long long)version, i);
        }
        must_be(RDT_TIMED_OUT, try_fetch(conn, &name, RDT_FETCH_AUTO, 100 * MSEC, &object, &err));
    }
    publish.name.data = (uint8_t *)"n";
    send_again(&raw, RDT_MSG_PUBLISH, ids[2] + 1, &publish.base);
    cr_assert_eq(reply_version(&raw, ids[2] + 1), 3u);
    raw_close(&raw);
    must_ok(rdt_free(conn, &ref, true, &err));
    leave(conn);
    node_expect_idle(&node);
    end();
}

/* The daemon of a session that publishes on another node. */
static void start_linked(void)
{
    static char flag[200], address[65];
    static const char *flags[] = {flag, "--backoff-max=500ms", NULL};
    bool first = state_dir[0] == '\0';

    if (first) {
        keeper_start(&keeper);
        free_address(0, "127.0.0.1", address);
        (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    }
    node_start(&node, &(struct node_options){.flags = flags,
                                             .listen = address,
                                             .state_dir = first ? NULL : state_dir,
                                             .socket = first ? NULL : socket_path,
                                             .awaited = !first});
    memcpy(state_dir, node.state_dir, sizeof state_dir);
    memcpy(socket_path, node.socket, sizeof socket_path);
}

Test(recovery_sessions, publish_on_another_node_that_was_answered_to_nobody_is_not_done_twice)
{
    Rdt__Pb__Resume message = RDT__PB__RESUME__INIT;
    Rdt__Pb__Ref wire = RDT__PB__REF__INIT;
    struct test_node far;
    char address[65];
    struct raw raw;
    uint64_t ids[2];

    free_address(0, "127.0.0.1", address);
    node_start(&far, &(struct node_options){.name = "far", .listen = address});
    start_linked();
    rdt *conn = node_client(&far, "producer");
    struct rdt_ref ref = put_detached(conn, "one", 5, 0, 1);
    struct welcome welcome = greet(&raw, NULL);
    Rdt__Pb__Publish publish = MESSAGE(publish, .name = (ProtobufCBinaryData){1, (uint8_t *)"n"}, .ref = &wire);
    wire.node = (ProtobufCBinaryData){sizeof ref.node, ref.node};
    wire.address = address;
    wire.id = (ProtobufCBinaryData){ref.id_bytes, (uint8_t *)ref.id};
    wire.generation = ref.generation;
    for (unsigned i = 0; i < 2; i++) {
        ids[i] = raw_send(&raw, RDT_MSG_PUBLISH, &publish.base, NULL, 0);
        cr_assert_eq(reply_version(&raw, ids[i]), i + 1);
    }
    node_kill(&node, SIGKILL);
    start_linked();
    raw_close(&raw);
    must(greet(&raw, welcome.token).resumed);
    protobuf_c_message_free_unpacked(&resume(&raw, &message)->base, NULL);
    send_again(&raw, RDT_MSG_PUBLISH, ids[1], &publish.base);
    cr_assert_eq(reply_version(&raw, ids[1]), 2u, "it is published again");
    send_again(&raw, RDT_MSG_PUBLISH, ids[1] + 1, &publish.base); /* another request is another version */
    cr_assert_eq(reply_version(&raw, ids[1] + 1), 3u);
    raw_close(&raw);
    must_ok(rdt_free(conn, &ref, true, &err));
    rdt_close(conn);
    node_stop(&node);
    node_stop(&far);
    keeper_stop(&keeper, SIGTERM);
}

static struct rdt_ref reply_held(struct raw *raw, uint64_t id)
{
    Rdt__Pb__HoldReply *reply = (Rdt__Pb__HoldReply *)raw_reply(raw, id, &rdt__pb__hold_reply__descriptor);
    struct rdt_ref ref;

    must_ok(wire_ref_to(reply->ref, &ref, &err));
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return ref;
}

/* The name, which is on another node, has a newer version by then. */
Test(recovery_sessions, hold_of_a_name_that_was_answered_to_nobody_names_what_it_holds)
{
    Rdt__Pb__Ref wire = RDT__PB__REF__INIT;
    struct rdt_ref name, held, same;
    struct test_node far;
    char address[65];
    struct raw raw;

    free_address(0, "127.0.0.1", address);
    node_start(&far, &(struct node_options){.name = "far", .listen = address});
    start_linked();
    rdt *conn = node_client(&far, "producer");
    struct rdt_ref one = put_detached(conn, "one", 5, 0, 1), two = put_detached(conn, "two", 5, 0, 1);
    must_ok(rdt_publish(conn, "n", &one, NULL, NULL, &err));
    must_ok(rdt_ref_from_name("n", 0, &one, &name, &err));
    must_ok(rdt_ref_set_address(&name, address, &err));
    struct welcome welcome = greet(&raw, NULL);
    Rdt__Pb__Hold hold = MESSAGE(hold, .ref = &wire, .timeout_ns = LONG);
    wire_ref_from(&name, &wire);
    uint64_t id = raw_send(&raw, RDT_MSG_HOLD, &hold.base, NULL, 0);
    held = reply_held(&raw, id);
    must(!held.is_name && held.generation == one.generation);
    must_ok(rdt_publish(conn, "n", &two, NULL, NULL, &err));
    node_kill(&node, SIGKILL);
    start_linked();
    raw_close(&raw);
    must(greet(&raw, welcome.token).resumed);
    Rdt__Pb__Resume message = MESSAGE(resume, .remote_holds = &id, .n_remote_holds = 1);
    protobuf_c_message_free_unpacked(&resume(&raw, &message)->base, NULL);
    send_again(&raw, RDT_MSG_HOLD, id, &hold.base);
    same = reply_held(&raw, id);
    must(!same.is_name && same.generation == one.generation);
    raw_close(&raw);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_ok(rdt_free(conn, &one, false, &err));
    must_ok(rdt_free(conn, &two, false, &err));
    rdt_close(conn);
    node_stop(&node);
    node_stop(&far);
    keeper_stop(&keeper, SIGTERM);
}

/* Hands the ref on. */
static void hand_on(struct raw *raw, uint64_t id, const Rdt__Pb__Hold *message)
{
    send_again(raw, RDT_MSG_HOLD, id, &message->base);
    protobuf_c_message_free_unpacked(raw_reply(raw, id, &rdt__pb__hold_reply__descriptor), NULL);
}

/* The object of the ref, which was handed on n times, ends with its last receiver. */
static void arrives(rdt *conn, const struct rdt_ref *ref, unsigned n)
{
    rdt_request *hold;

    must_ok(rdt_free(conn, ref, false, &err));
    for (unsigned i = 0; i < n; i++) {
        must_ok(rdt_take_over_start(conn, ref, LONG, &hold, &err));
        must_ok(rdt_wait(conn, &hold, 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(hold);
    }
    must_ok(rdt_wait_freed(conn, ref, LONG, &err));
}

/* Publishes the object so many times. */
static void publish_again_and_again(struct raw *raw, Rdt__Pb__Ref *wire, unsigned n)
{
    Rdt__Pb__Publish publish = MESSAGE(publish, .name = (ProtobufCBinaryData){1, (uint8_t *)"n"}, .ref = wire);

    for (unsigned i = 0; i < n; i++)
        cr_assert_eq(reply_version(raw, raw_send(raw, RDT_MSG_PUBLISH, &publish.base, NULL, 0)), i + 1);
}

Test(recovery_sessions, ref_whose_hand_on_was_answered_to_nobody_is_in_transit_once)
{
    enum { N = 8 }; /* hand-ons of one ref */
    Rdt__Pb__Resume message = RDT__PB__RESUME__INIT;
    Rdt__Pb__Ref near_wire = RDT__PB__REF__INIT, far_wire = RDT__PB__REF__INIT;
    struct test_node far;
    char address[65];
    struct raw raw;
    uint64_t id = 1000;

    free_address(0, "127.0.0.1", address);
    node_start(&far, &(struct node_options){.name = "far", .listen = address});
    start_linked();
    rdt *near_conn = node_client(&node, "near"), *far_conn = node_client(&far, "far");
    struct rdt_ref near_ref = put_detached(near_conn, "near", 5, 0, 1), far_ref = put_detached(far_conn, "far", 5, 0, 1);
    wire_ref_from(&near_ref, &near_wire);
    wire_ref_from(&far_ref, &far_wire);
    Rdt__Pb__Hold near_hold = MESSAGE(hold, .ref = &near_wire, .transit_ns = 3600 * SEC),
                  far_hold = MESSAGE(hold, .ref = &far_wire, .transit_ns = 3600 * SEC);
    struct welcome welcome = greet(&raw, NULL);
    for (unsigned i = 0; i < N; i++) {
        hand_on(&raw, id + i, &near_hold);
        hand_on(&raw, id + N + i, &far_hold);
    }
    publish_again_and_again(&raw, &near_wire, 100);
    node_kill(&node, SIGKILL);
    start_linked();
    raw_close(&raw);
    must(greet(&raw, welcome.token).resumed);
    protobuf_c_message_free_unpacked(&resume(&raw, &message)->base, NULL);
    for (unsigned i = 0; i < N; i++) {
        hand_on(&raw, id + i, &near_hold);
        hand_on(&raw, id + N + i, &far_hold);
    }
    struct rdt_ref name = name_ref("n");
    must_ok(rdt_unpublish(near_conn, &name, &err));
    arrives(near_conn, &near_ref, N);
    arrives(far_conn, &far_ref, N);
    raw_close(&raw);
    rdt_close(near_conn);
    rdt_close(far_conn);
    node_stop(&node);
    node_stop(&far);
    keeper_stop(&keeper, SIGTERM);
}

Test(recovery_sessions, put_that_its_caller_gave_up_is_freed)
{
    Rdt__Pb__TensorList tensors;
    Rdt__Pb__Put put;
    struct raw raw;

    begin();
    struct welcome welcome = greet(&raw, NULL);
    fill_put(&put, &tensors);
    uint64_t id = raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0);
    (void)reply_ref(&raw, id);
    again(SIGKILL);
    raw_close(&raw);
    must(greet(&raw, welcome.token).resumed);
    Rdt__Pb__Resume message = MESSAGE(resume, .abandoned_puts = &id, .n_abandoned_puts = 1);
    protobuf_c_message_free_unpacked(&resume(&raw, &message)->base, NULL);
    struct node_status status = node_now(&node);
    cr_assert_eq(status.objects, 0u);
    raw_close(&raw);
    end();
}

/* Whether another client saw that the first of the puts has been freed, and the last one not yet. */
static bool freed_one_after_the_other(rdt *other)
{
    enum { MANY = 1 << 20 };
    uint64_t *ids = malloc(MANY * sizeof *ids);
    struct rdt_ref first, last;
    struct rdt_stat stat = {0};
    Rdt__Pb__TensorList tensors;
    Rdt__Pb__Put put;
    struct raw raw;
    bool seen = false;

    struct welcome welcome = greet(&raw, NULL);
    fill_put(&put, &tensors);
    for (size_t i = 0; i < MANY; i++)
        ids[i] = UINT64_MAX - i; /* unknown */
    ids[0] = raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0);
    first = reply_ref(&raw, ids[0]);
    ids[MANY - 1] = raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0);
    last = reply_ref(&raw, ids[MANY - 1]);
    again(SIGKILL);
    raw_close(&raw);
    must(greet(&raw, welcome.token).resumed);
    must_ok(rdt_ping(other, LONG, &err));
    Rdt__Pb__Resume message = MESSAGE(resume, .abandoned_puts = ids, .n_abandoned_puts = MANY);
    uint64_t id = raw_send(&raw, RDT_MSG_RESUME, &message.base, NULL, 0);
    while (rdt_stat(other, &first, &stat, NULL) == RDT_OK)
        continue;
    seen = rdt_stat(other, &last, &stat, NULL) == RDT_OK;
    protobuf_c_message_free_unpacked(raw_reply(&raw, id, &rdt__pb__resume_reply__descriptor), NULL);
    must_be(RDT_FREED, rdt_stat(other, &last, &stat, &err));
    raw_close(&raw);
    free(ids);
    return seen;
}

/* The loop serves others meanwhile. Whether this process runs at the right moment is chance, so it may try again. */
Test(recovery_sessions, many_puts_that_their_caller_gave_up_are_freed_in_several_turns)
{
    unsigned tries = 0;

    begin();
    rdt *other = node_client(&node, "other");
    while (!freed_one_after_the_other(other))
        must(++tries < 20);
    leave(other);
    end();
}

/* Two regions: the client lists one, and one that it never had. */
Test(recovery_sessions, what_the_client_does_not_list_ends_and_what_is_missing_is_said)
{
    uint64_t regions[2], generation, holds[] = {4711};
    struct raw raw;
    int fd;

    begin();
    struct welcome welcome = greet(&raw, NULL);
    regions[0] = raw_alloc(&raw, MIB, &fd, &generation);
    must(pwrite(fd, "mine", 4, 0) == 4);
    (void)raw_alloc(&raw, MIB, NULL, &generation);
    regions[1] = 4711;
    again(SIGTERM);
    raw_close(&raw);
    must(greet(&raw, welcome.token).resumed);
    struct node_status status = node_now(&node);
    cr_assert_eq(status.regions, 2u);
    Rdt__Pb__Resume message = MESSAGE(resume, .regions = regions, .n_regions = 2, .holds = holds, .n_holds = 1);
    Rdt__Pb__ResumeReply *reply = resume(&raw, &message);
    cr_assert_eq(reply->n_regions, 1u);
    cr_assert_eq(reply->regions[0], 4711u);
    cr_assert_eq(reply->n_holds, 1u);
    cr_assert_eq(reply->n_remote_holds, 0u);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    status = node_now(&node);
    cr_assert_eq(status.regions, 1u);
    {
        char byte[4];
        Rdt__Pb__ReleaseRegion release = MESSAGE(release_region, .region = regions[0]);
        protobuf_c_message_free_unpacked(raw_reply(&raw, raw_send(&raw, RDT_MSG_RELEASE_REGION, &release.base, NULL, 0),
                                                   &rdt__pb__region_released__descriptor),
                                         NULL);
        must(pread(fd, byte, 4, 0) == 4 && memcmp(byte, "mine", 4) == 0);
    }
    close(fd);
    raw_close(&raw);
    end();
}

static int be_there(struct actor *self, void *arg)
{
    (void)put_one(node_client(&node, "mortal"), &VECTOR(RDT_U8, 3, "abc"), "mortal");
    actor_step(self);
    actor_await(self);
    return 0;
}

Test(recovery_sessions, process_that_ends_while_no_daemon_runs_is_noticed_at_once)
{
    struct actor actor;
    struct node_status status;

    begin();
    actor_start(&actor, be_there, NULL);
    actor_await(&actor);
    node_kill(&node, SIGKILL);
    actor_kill(&actor, SIGKILL);
    start();
    wait_until(SEC, (status = node_now(&node), status.objects == 0 && status.clients == 0));
    cr_assert(node_log_has(&node, "1 session of the earlier daemon"));
    end();
}

/* A client that does nothing for longer than the grace still has its session: its process lives. */
Test(recovery_sessions, process_that_lives_keeps_its_session_waiting)
{
    static const char *flags[3];
    char flag[200];
    struct raw raw;

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    flags[0] = flag;
    flags[1] = "--restart-grace=1ms";
    node_start(&node, &(struct node_options){.flags = flags});
    struct welcome welcome = greet(&raw, NULL);
    node_kill(&node, SIGKILL);
    node_start(&node, &(struct node_options){.flags = flags, .state_dir = node.state_dir});
    raw_close(&raw);
    must(greet(&raw, welcome.token).resumed);
    raw_close(&raw);
    end();
}

static void free_by_id(struct raw *raw, const char *id, int64_t age_ns)
{
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
    Rdt__Pb__Free message = RDT__PB__FREE__INIT;

    ref.id = (ProtobufCBinaryData){strlen(id), (uint8_t *)id};
    ref.any_owner = true;
    message.ref = &ref;
    message.age_ns = age_ns;
    protobuf_c_message_free_unpacked(
        raw_reply(raw, raw_send(raw, RDT_MSG_FREE, &message.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
}

static void unpublish_by_name(struct raw *raw, const char *name, int64_t age_ns)
{
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
    Rdt__Pb__Unpublish message = RDT__PB__UNPUBLISH__INIT;

    ref.id = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
    ref.any_owner = ref.is_name = true;
    message.name = &ref;
    message.age_ns = age_ns;
    protobuf_c_message_free_unpacked(
        raw_reply(raw, raw_send(raw, RDT_MSG_UNPUBLISH, &message.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
}

static void wait_freed_by_id(struct raw *raw, const char *id, int64_t age_ns)
{
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
    Rdt__Pb__WaitFreed message = RDT__PB__WAIT_FREED__INIT;

    ref.id = (ProtobufCBinaryData){strlen(id), (uint8_t *)id};
    ref.any_owner = true;
    message.ref = &ref;
    message.timeout_ns = 100 * MSEC;
    message.age_ns = age_ns;
    protobuf_c_message_free_unpacked(
        raw_reply(raw, raw_send(raw, RDT_MSG_WAIT_FREED, &message.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
}

static bool is_there(rdt *conn, const struct rdt_ref *ref)
{
    return rdt_stat(conn, ref, &(struct rdt_stat){0}, NULL) == RDT_OK;
}

/* A FREE or an UNPUBLISH that a session sends again after a restart has no generation. Its first one may have been carried out,
 * and others may have put and published since. What an earlier daemon had is always meant. */
Test(recovery_sessions, end_that_is_sent_again_spares_what_came_since)
{
    struct rdt_ref name, first, second;
    struct raw raw;
    uint64_t version;

    begin();
    rdt *conn = node_client(&node, "others");
    first = put_detached(conn, "first", KIB, RDT_PUT_SNAPSHOT, 1);
    must_ok(rdt_ref_from_name("name", 0, NULL, &name, &err));
    must_ok(rdt_publish(conn, "name", &first, NULL, &version, &err));
    again(SIGKILL);
    must_ok(rdt_ping(conn, LONG, &err));
    second = put_detached(conn, "second", KIB, RDT_PUT_SNAPSHOT, 2);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    free_by_id(&raw, "second", 600 * SEC);
    wait_freed_by_id(&raw, "second", 600 * SEC); /* for the end of what had the id before */
    cr_assert(is_there(conn, &second), "it was put since");
    unpublish_by_name(&raw, "name", 600 * SEC);
    cr_assert_not(is_there(conn, &name), "an earlier daemon had it");
    must_ok(rdt_publish(conn, "name", &second, NULL, &version, &err));
    unpublish_by_name(&raw, "name", 600 * SEC);
    cr_assert(is_there(conn, &name), "it was published since");
    unpublish_by_name(&raw, "name", 1);
    cr_assert_not(is_there(conn, &name), "it was published before");
    free_by_id(&raw, "first", 600 * SEC);
    cr_assert_not(is_there(conn, &first), "an earlier daemon had it");
    free_by_id(&raw, "second", 1);
    cr_assert_not(is_there(conn, &second), "it was put before");
    raw_close(&raw);
    leave(conn);
    end();
}

/* The daemon is away for longer than restart_grace: its client's next call says so. The session's process lives, so the next
 * daemon waits for it, and has the memory back when the process ends. */
static int stay_too_long(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "late");

    (void)put_one(conn, &VECTOR(RDT_U8, 3, "abc"), "late");
    (void)alloc_memory(conn, MIB);
    actor_step(self);
    actor_await(self); /* the daemon is gone */
    must_refuse(RDT_RESTARTED, "no daemon continued this session", rdt_ping(conn, LONG, &err));
    must_be(RDT_RESTARTED, rdt_ping(conn, LONG, &err));
    actor_step(self);
    actor_await(self); /* the next daemon is there */
    must_be(RDT_RESTARTED, rdt_ping(conn, LONG, &err));
    return 0;
}

Test(recovery_sessions, client_away_for_longer_than_restart_grace_gets_restarted_and_its_memory_comes_back)
{
    static const char *flags[3];
    char flag[200], state[160];
    struct actor actor;

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    flags[0] = flag;
    flags[1] = "--restart-grace=300ms";
    node_start(&node, &(struct node_options){.flags = flags});
    memcpy(state, node.state_dir, sizeof state);
    actor_start(&actor, stay_too_long, NULL);
    actor_await(&actor);
    node_kill(&node, SIGKILL);
    actor_step(&actor);
    actor_await(&actor);
    node_start(&node, &(struct node_options){.flags = flags, .state_dir = state});
    struct node_status status = node_now(&node);
    cr_assert_eq(status.objects, 1u);
    actor_step(&actor);
    actor_wait(&actor);
    wait_until(LONG, (status = node_now(&node), status.objects == 0 && status.regions == 0 && status.memory_bytes == 0));
    node_expect_idle(&node);
    end();
}
