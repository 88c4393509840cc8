/* SPDX-License-Identifier: Apache-2.0 */
/* Holds without data on one node: how long they keep an object, what ends them, and what they count. */
#include "client/call.h"
#include "tests/integration/limits/limits.h"

static struct rdt_ref put_mib(rdt *client, const char *id, uint32_t seed)
{
    char *addr = alloc_memory(client, MIB);

    fill_pattern(addr, MIB, seed);
    struct rdt_ref ref = put_one(client, &VECTOR(RDT_U8, MIB, addr), id);
    must_ok(rdt_dealloc(client, addr, &err));
    return ref;
}

static void is_there(rdt *client, const struct rdt_ref *ref, uint32_t seed)
{
    rdt_object *object = fetch_one(client, ref, RDT_FETCH_SHARE);

    must(holds_pattern(tensor_of(object, 0).data, MIB, seed));
    rdt_release(object);
}

static rdt_request *hold_of(rdt *client, const struct rdt_ref *ref)
{
    rdt_request *hold = NULL;

    must_ok(rdt_hold(client, ref, LONG, &hold, &err));
    return hold;
}

static bool is_gone(const struct rdt_ref *ref, enum rdt_status why)
{
    return rdt_stat(conn, ref, &(struct rdt_stat){0}, NULL) == why;
}

/* ---- what they keep ---- */

Test(holds, producer_frees_and_it_can_be_fetched_until_the_holder_lets_go)
{
    struct rdt_ref ref, held;

    begin(NULL);
    ref = put_mib(conn, NULL, 1);
    rdt_request *hold = hold_of(other, &ref);
    must_ok(rdt_hold_ref(hold, &held, &err));
    must(rdt_ref_equal(&held, &ref));
    must_ok(rdt_free(conn, &ref, false, &err));
    is_there(other, &ref, 1);
    is_there(conn, &ref, 1); /* every client that may see the object can */
    must_be(RDT_TIMED_OUT, rdt_wait_freed(conn, &ref, 0, &err));
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_be(RDT_FREED, fetch(other, &ref, RDT_FETCH_AUTO, &err));
    must_be(RDT_FREED, rdt_hold(other, &ref, LONG, &hold, &err));
    end(NULL);
}

/* ---- in transit ---- */

static rdt_request *take_over(rdt *client, const struct rdt_ref *ref)
{
    rdt_request *hold = NULL;

    must_ok(rdt_take_over_start(client, ref, LONG, &hold, &err));
    must_ok(rdt_wait(client, &hold, 1, 1, LONG, NULL, NULL, &err));
    return hold;
}

Test(holds, ref_that_was_handed_on_outlives_the_drop_until_its_receiver_lets_go)
{
    begin(NULL);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    must_ok(rdt_hand_on(conn, &ref, 60 * SEC, &err));
    must_ok(rdt_drop(conn, &ref, &err));
    rdt_request *hold = take_over(other, &ref);
    is_there(other, &ref, 1);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(other, &ref, LONG, &err)); /* the hold in transit has ended with its take-over */
    end(NULL);
}

Test(holds, each_ref_that_was_handed_on_is_taken_over_for_itself)
{
    rdt_request *hold;

    begin(NULL);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    must_ok(rdt_hand_on(conn, &ref, 60 * SEC, &err));
    must_ok(rdt_hand_on(conn, &ref, 1, &err)); /* a shorter one does not cut the first short */
    must_ok(rdt_drop(conn, &ref, &err));
    must_ok(rdt_ping(conn, LONG, &err));
    for (int i = 0; i < 2; i++) {
        hold = take_over(other, &ref);
        is_there(other, &ref, 1);
        rdt_request_destroy(hold);
    }
    must_ok(rdt_wait_freed(other, &ref, LONG, &err));
    end(NULL);
}

/* The answer comes behind the cancel. */
Test(holds, ref_outlives_a_take_over_that_is_given_up)
{
    rdt_request *hold;

    begin(NULL);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    must_ok(rdt_hand_on(conn, &ref, 60 * SEC, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    node_freeze(&node);
    must_ok(rdt_take_over_start(other, &ref, 50 * MSEC, &hold, &err));
    must_be(RDT_TIMED_OUT, rdt_wait(other, &hold, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(hold);
    node_thaw(&node);
    must_ok(rdt_ping(other, LONG, &err));
    hold = take_over(other, &ref); /* as often as it likes */
    is_there(other, &ref, 1);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(other, &ref, LONG, &err));
    end(NULL);
}

Test(holds, ref_that_was_handed_on_outlives_its_session_and_then_its_time_ends)
{
    begin(NULL);
    rdt *third = node_client(&node, "third");
    struct rdt_ref ref = put_mib(third, NULL, 1);
    must_ok(rdt_hand_on(third, &ref, patience(3 * SEC), &err));
    rdt_close(third);
    is_there(other, &ref, 1);
    must_ok(rdt_wait_freed(other, &ref, LONG, &err));
    must_be(RDT_OWNER_DIED, fetch(other, &ref, RDT_FETCH_AUTO, &err));
    end(NULL);
}

Test(holds, object_that_went_with_a_drop_says_so)
{
    struct rdt_error why;

    begin(NULL);
    struct rdt_ref dropped = put_mib(conn, NULL, 1);
    struct rdt_ref freed = put_mib(conn, NULL, 1);
    struct rdt_ref forced = put_mib(conn, NULL, 1);
    must_ok(rdt_hand_on(conn, &forced, 60 * SEC, &err));
    must_ok(rdt_drop(conn, &dropped, &err));
    must_ok(rdt_free(conn, &freed, false, &err));
    must_ok(rdt_free(conn, &forced, true, &err));
    must_be(RDT_FREED, fetch(other, &dropped, RDT_FETCH_AUTO, &why));
    must(strstr(why.msg,
                "was freed when its producer dropped its Ref or closed its connection: keep both, or put with detached=True"));
    must_be(RDT_FREED, fetch(other, &freed, RDT_FETCH_AUTO, &why));
    must(!strstr(why.msg, "dropped"));
    must_be(RDT_FREED, fetch(other, &forced, RDT_FETCH_AUTO, &why));
    must_ok(rdt_wait_freed(other, &forced, LONG, &err));
    must_be(RDT_INVALID, rdt_hand_on(conn, &freed, 0, &err));
    must_be(RDT_FREED, rdt_hand_on(conn, &freed, SEC, &err));
    end(NULL);
}

Test(holds, each_counts_for_itself)
{
    enum { N = 300 };
    rdt_request *held[N];

    begin(NULL);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    for (unsigned i = 0; i < N; i++)
        must_ok(rdt_hold_start(i % 2 ? conn : other, &ref, LONG, &held[i], &err));
    for (unsigned i = 0; i < N; i++)
        must_ok(rdt_wait(i % 2 ? conn : other, &held[i], 1, 1, LONG, NULL, NULL, &err));
    struct rdt_stat stat = stat_of(conn, &ref);
    cr_assert_eq(stat.holds, N + 1);
    must_ok(rdt_free(conn, &ref, false, &err));
    for (unsigned i = 0; i < N; i++) {
        is_there(other, &ref, 1);
        rdt_request_destroy(held[(i * 7) % N]);
    }
    wait_until(LONG, is_gone(&ref, RDT_FREED));
    end(NULL);
}

Test(holds, cancelling_one_lets_go_of_it)
{
    begin(NULL);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    rdt_request *hold = hold_of(other, &ref);
    must_be(RDT_INVALID, rdt_request_take_object(hold, &(rdt_object *){NULL}, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    rdt_cancel(hold);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_be(RDT_CANCELLED, rdt_request_status(hold, &err));
    must_be(RDT_CANCELLED, rdt_hold_ref(hold, &ref, &err));
    rdt_cancel(hold);
    rdt_request_destroy(hold);
    end(NULL);
}

/* The answer crosses the word that nobody waits for it. */
Test(holds, given_up_before_the_answer_leaves_nothing)
{
    begin(NULL);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    for (unsigned i = 0; i < 500; i++) {
        rdt_request *hold;
        must_ok(rdt_hold_start(other, &ref, LONG, &hold, &err));
        if (i % 3 == 0)
            (void)rdt_wait(other, &hold, 1, 1, 0, NULL, NULL, NULL);
        rdt_request_destroy(hold);
    }
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    wait_until(LONG, used(session(other), "holds") == 0);
    end(NULL);
}

Test(holds, id_is_waited_for_and_held_with_its_generation)
{
    struct rdt_ref named = ref_named("w"), put, held;
    rdt_request *hold;

    begin(NULL);
    must_be(RDT_NOT_PUT, rdt_hold(other, &named, 0, &hold, &err));
    must_be(RDT_TIMED_OUT, rdt_hold(other, &named, 50 * MSEC, &hold, &err));
    must_ok(rdt_hold_start(other, &named, LONG, &hold, &err));
    must_be(RDT_AGAIN, rdt_request_status(hold, &err));
    must_be(RDT_AGAIN, rdt_hold_ref(hold, &held, &err));
    put = put_mib(conn, "w", 1);
    must_ok(rdt_wait(other, &hold, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_hold_ref(hold, &held, &err));
    must(rdt_ref_equal(&held, &put));
    must_ok(rdt_free(conn, &put, false, &err));
    must_be(RDT_EXISTS,
            rdt_put(conn, NULL, 0,
                    &(struct rdt_put_options){.struct_size = sizeof(struct rdt_put_options), .id = "w", .id_bytes = 1}, &put,
                    &err));
    is_there(other, &held, 1);
    rdt_request_destroy(hold);
    end(NULL);
}

Test(holds, of_a_name_is_of_the_version_that_came)
{
    struct rdt_ref name, first, second, held;
    uint64_t version;

    begin(NULL);
    struct rdt_publish_options options = {.struct_size = sizeof options, .name_ref = &name};
    first = put_mib(conn, NULL, 1);
    must_ok(rdt_publish(conn, "weights", &first, &options, &version, &err));
    rdt_request *hold = hold_of(other, &name);
    must_ok(rdt_hold_ref(hold, &held, &err));
    must(rdt_ref_equal(&held, &first));
    must_ok(rdt_free(conn, &first, false, &err));
    second = put_mib(conn, NULL, 2);
    must_ok(rdt_publish(conn, "weights", &second, NULL, &version, &err)); /* lets go of the first */
    is_there(other, &held, 1);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(conn, &first, LONG, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    end(NULL);
}

/* While the object's bytes are still being copied, the hold waits until they are complete. */
Test(holds, of_a_pending_object_comes_when_it_is_ready)
{
    rdt_request *hold, *none;

    begin(NULL);
    char *addr = alloc_memory(conn, MIB);
    struct rdt_tensor tensor = VECTOR(RDT_U8, MIB, addr);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_PENDING};
    struct rdt_ref ref = put_as(conn, &tensor, 1, &options);
    struct rdt_ref failing = put_as(conn, &tensor, 1, &options);
    must_ok(rdt_hold_start(other, &ref, LONG, &hold, &err));
    must_ok(rdt_hold_start(other, &failing, LONG, &none, &err));
    must_be(RDT_TIMED_OUT, rdt_wait(other, &hold, 1, 1, 50 * MSEC, NULL, NULL, &err));
    fill_pattern(addr, MIB, 3);
    must_ok(rdt_ready(conn, &ref, &err));
    must_ok(rdt_wait(other, &hold, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    is_there(other, &ref, 3);
    must_ok(rdt_fail(conn, &failing, RDT_OWNER_DIED, "it came to nothing", &err));
    must_refuse(RDT_OWNER_DIED, "it came to nothing", rdt_wait(other, &none, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(none);
    rdt_request_destroy(hold);
    end(NULL);
}

/* ---- ends ---- */

static int produce(struct actor *self, void *arg)
{
    struct rdt_ref ref = put_mib(node_client(&node, "producer"), NULL, 4);

    actor_send(self, &ref, sizeof ref);
    actor_await(self); /* never comes */
    return 0;
}

Test(holds, killed_producers_object_stays_while_it_is_held)
{
    struct actor producer;
    struct rdt_ref ref;

    begin_alone(NULL);
    actor_start(&producer, produce, NULL);
    conn = node_client(&node, "holder");
    other = node_client(&node, "reader");
    actor_recv(&producer, &ref, sizeof ref);
    rdt_request *hold = hold_of(conn, &ref);
    actor_kill(&producer, SIGKILL);
    is_there(other, &ref, 4);
    wait_until(LONG, used(0, "sessions") == 2);
    is_there(other, &ref, 4);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_be(RDT_OWNER_DIED, fetch(other, &ref, RDT_FETCH_AUTO, &err));
    end(NULL);
}

static int hold_it(struct actor *self, void *arg)
{
    rdt *client = node_client(&node, "holder");
    struct rdt_ref ref;

    actor_recv(self, &ref, sizeof ref);
    for (unsigned i = 0; i < 10; i++)
        (void)hold_of(client, &ref);
    actor_step(self);
    actor_await(self); /* never comes */
    return 0;
}

Test(holds, killed_holder_lets_go)
{
    struct actor holder;

    begin_alone(NULL);
    actor_start(&holder, hold_it, NULL);
    conn = node_client(&node, "producer");
    other = node_client(&node, "other");
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    actor_send(&holder, &ref, sizeof ref);
    actor_await(&holder);
    must_ok(rdt_free(conn, &ref, false, &err));
    is_there(other, &ref, 1);
    wait_until(LONG, used(0, "holds") == 10);
    actor_kill(&holder, SIGKILL);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_be(RDT_FREED, fetch(other, &ref, RDT_FETCH_AUTO, &err));
    wait_until(LONG, used(0, "holds") == 0);
    end(NULL);
}

/* Nobody can fetch the object any more, so its memory is freed before the holders let go. */
Test(holds, free_by_force_ends_them)
{
    rdt_request *holds[3];

    begin(NULL);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    for (unsigned i = 0; i < 3; i++)
        holds[i] = hold_of(other, &ref);
    rdt_object *object = fetch_one(other, &ref, RDT_FETCH_SHARE); /* a reader keeps what it reads */
    must_ok(rdt_free(conn, &ref, true, &err));
    must_be(RDT_FREED, fetch(other, &ref, RDT_FETCH_AUTO, &err));
    must_be(RDT_FREED, rdt_hold(other, &ref, LONG, &(rdt_request *){NULL}, &err));
    must(holds_pattern(tensor_of(object, 0).data, MIB, 1));
    rdt_release(object);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    for (unsigned i = 0; i < 3; i++)
        rdt_request_destroy(holds[i]);
    must_ok(rdt_ping(other, LONG, &err));
    wait_until(LONG, used(session(other), "holds") == 0);
    end(NULL);
}

static int let_go_as_a_child(struct actor *self, void *arg)
{
    rdt_cancel(arg);
    must_be(RDT_FORKED, rdt_request_status(arg, &err));
    rdt_request_destroy(arg);
    return 0;
}

Test(holds, forked_child_lets_go_of_nothing)
{
    struct actor child;

    begin(NULL);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    rdt_request *hold = hold_of(other, &ref);
    must_ok(rdt_free(conn, &ref, false, &err));
    actor_start(&child, let_go_as_a_child, hold);
    actor_wait(&child);
    is_there(other, &ref, 1);
    rdt_request_destroy(hold);
    end(NULL);
}

/* ---- what they cost, and who shows ---- */

Test(holds, limit_of_a_client_and_of_its_user)
{
    const char *flags[] = {"--client-max-holds=2", "--owner-max-holds=3", NULL};
    rdt_request *held[3], *more;

    begin(flags);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    held[0] = hold_of(conn, &ref);
    held[1] = hold_of(conn, &ref);
    must_refuse(RDT_LIMIT, "client_max_holds", rdt_hold(conn, &ref, LONG, &more, &err));
    held[2] = hold_of(other, &ref);
    must_refuse(RDT_LIMIT, "owner_max_holds", rdt_hold(other, &ref, LONG, &more, &err));
    is_there(other, &ref, 1); /* a fetch is not concerned */
    rdt_request_destroy(held[0]);
    must_ok(rdt_ping(conn, LONG, &err));
    held[0] = hold_of(other, &ref);
    for (unsigned i = 0; i < 3; i++)
        rdt_request_destroy(held[i]);
    end(NULL);
}

Test(holds, stat_shows_who_keeps_it)
{
    ProtobufCMessage *reply;
    Rdt__Pb__Ref wire;
    bool shown = false;

    begin(NULL);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    rdt_request *hold = hold_of(other, &ref);
    wire_ref_from(&ref, &wire);
    Rdt__Pb__Stat request = MESSAGE(stat, .ref = &wire);
    must_ok(call(conn, RDT_MSG_STAT, &request.base, LONG, &reply, &err));
    const Rdt__Pb__ObjectInfo *info = (const Rdt__Pb__ObjectInfo *)reply;
    for (size_t i = 0; i < info->n_holders; i++)
        shown = shown || (strcmp(info->holders[i]->kind, "hold") == 0 && info->holders[i]->client == session(other));
    must(shown);
    protobuf_c_message_free_unpacked(reply, NULL);
    rdt_request_destroy(hold);
    end(NULL);
}

/* ---- who lies ---- */

static uint64_t say_hold(struct raw *raw, const struct rdt_ref *ref)
{
    Rdt__Pb__Ref wire;

    wire_ref_from(ref, &wire);
    Rdt__Pb__Hold request = MESSAGE(hold, .ref = &wire);
    return raw_send(raw, RDT_MSG_HOLD, &request.base, NULL, 0);
}

static void let_go(struct raw *raw, uint64_t request)
{
    Rdt__Pb__CancelRequest cancel = MESSAGE(cancel_request, .request_id = request);
    protobuf_c_message_free_unpacked(
        raw_reply(raw, raw_send(raw, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
}

/* Sends a request twice and a request without a number, drops a hold twice, and drops a hold of another client. */
Test(holds, request_is_one_hold_and_its_clients_own)
{
    struct raw raw, thief;
    char said[256];

    begin(NULL);
    struct rdt_ref ref = put_mib(conn, NULL, 1);
    greeted(&raw);
    greeted(&thief);
    uint64_t request = say_hold(&raw, &ref);
    protobuf_c_message_free_unpacked(raw_reply(&raw, request, &rdt__pb__hold_reply__descriptor), NULL);
    raw.last_id = request - 1;
    must(say_hold(&raw, &ref) == request);
    must(raw_error(&raw, said) == RDT_INVALID && strstr(said, "that of another"));
    raw.last_id = UINT64_MAX;
    must(say_hold(&raw, &ref) == 0);
    raw.last_id = request;
    cr_assert_eq(used(0, "holds"), 1);
    must_ok(rdt_free(conn, &ref, false, &err));
    let_go(&thief, request);
    let_go(&raw, request + 1000);
    is_there(other, &ref, 1);
    let_go(&raw, request);
    let_go(&raw, request);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    raw_close(&thief);
    raw_close(&raw);
    end(NULL);
}

/* The ref names nothing, or something that cannot exist. */
Test(holds, of_nothing_is_refused)
{
    Rdt__Pb__Hold request = RDT__PB__HOLD__INIT;
    struct rdt_ref ref = ref_named("w"), gone;
    struct raw raw;

    begin(NULL);
    greeted(&raw);
    (void)raw_send(&raw, RDT_MSG_HOLD, &request.base, NULL, 0);
    must(raw_error(&raw, (char[256]){0}) == RDT_INVALID);
    gone = put_mib(conn, "w", 1);
    must_ok(rdt_free(conn, &gone, false, &err));
    must_ok(rdt_wait_freed(conn, &gone, LONG, &err));
    (void)say_hold(&raw, &gone);
    must(raw_error(&raw, (char[256]){0}) == RDT_FREED);
    gone.generation += 1000;
    (void)say_hold(&raw, &gone);
    must(raw_error(&raw, (char[256]){0}) == RDT_NOT_FOUND);
    must_be(RDT_INVALID, rdt_hold(conn, NULL, LONG, &(rdt_request *){NULL}, &err));
    ref.id_bytes = 0;
    must_be(RDT_INVALID, rdt_hold(conn, &ref, LONG, &(rdt_request *){NULL}, &err));
    raw_close(&raw);
    end(NULL);
}
