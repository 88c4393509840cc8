/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against scripted fake daemons that die and come again: what is repeated, what is dropped, and what ends. */
#include <criterion/criterion.h>
#include <unistd.h>

#include "client/rdt_plan.h"
#include "tests/unit/client/client_resume.h"

static struct rdt_error err;

static rdt_request *fetch(rdt *conn, const char *const *ids, size_t count, rdt_request **requests, int64_t timeout_ns)
{
    struct rdt_ref refs[4];
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = timeout_ns};

    for (size_t i = 0; i < count; i++)
        refs[i] = fake_ref(ids[i]);
    MUST(rdt_fetch_start(conn, refs, count, &options, requests, &err) == RDT_OK);
    return requests[0];
}

static void put(rdt *conn, int64_t timeout_ns, enum rdt_status expected)
{
    uint8_t bytes[8] = {0};
    int64_t shape[1] = {8};
    struct rdt_tensor tensor = {.data = bytes, .dtype = RDT_U8, .ndim = 1, .shape = shape};
    struct rdt_ref ref;
    struct rdt_put_options options = {.struct_size = sizeof options, .timeout_ns = timeout_ns};

    assert_status(expected, rdt_put(conn, &tensor, 1, &options, &ref, &err));
}

/* ---- calls that block ---- */

static void die_in_a_wait(struct fake *fake)
{
    Rdt__Pb__ObjectInfo info = RDT__PB__OBJECT_INFO__INIT;

    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_WAIT);
    uint64_t id = fake->frame.request_id;
    Rdt__Pb__Wait *wait = FAKE_MESSAGE(fake, Wait);
    int64_t left_ns = wait->timeout_ns;
    fake_free(wait);
    come_again(fake, 2);
    fake_take(fake, RDT_MSG_WAIT);
    MUST(fake->frame.request_id == id);
    wait = FAKE_MESSAGE(fake, Wait);
    MUST(wait->timeout_ns < left_ns && wait->timeout_ns > left_ns / 2 && strncmp((char *)wait->ref->id.data, "w", 1) == 0);
    fake_free(wait);
    fake_reply(fake, &info.base);
    fake_serve(fake);
}

Test(client_resume, blocked_wait_goes_on_with_the_time_that_is_left)
{
    struct fake fake;
    struct rdt_ref ref = fake_ref("w");
    struct rdt_node_info node;
    rdt *conn = start(&fake, die_in_a_wait, NULL);

    assert_status(RDT_OK, rdt_wait_put(conn, &ref, LONG_NS, &err));
    assert_status(RDT_OK, rdt_node(conn, &node, &err));
    cr_assert_eq(node.boot_id[0], 2);
    cr_assert_eq(node.session, 42);
    fake_end(&fake, conn);
}

static void die_in_a_broadcast(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_BROADCAST);
    come_again(fake, 2);
    fake_serve(fake); /* would answer a repeated broadcast */
}

Test(client_resume, request_with_an_unknown_effect_ends_with_restarted)
{
    struct fake fake;
    struct rdt_ref ref = fake_ref("w");
    rdt *conn = start(&fake, die_in_a_broadcast, NULL);
    rdt_request *request;

    assert_status(RDT_RESTARTED, rdt_broadcast(conn, &ref, "all", LONG_NS, &err));
    cr_assert_str_eq(err.msg,
                     "rdtd restarted before it answered BROADCAST, and may have carried it out: check, and repeat it if it "
                     "has not");
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err)); /* the session goes on */
    fake_end(&fake, conn);

    conn = start(&fake, die_in_a_broadcast, NULL);
    assert_status(RDT_OK, rdt_broadcast_start(conn, &ref, "all", LONG_NS, &request, &err));
    assert_refused(RDT_RESTARTED, "broadcast of \"w\": rdtd restarted",
                   rdt_wait(conn, &request, 1, 1, LONG_NS, NULL, NULL, &err));
    rdt_request_destroy(request);
    fake_end(&fake, conn);
}

static void die_before_a_broadcast(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_PING);
    fake_die(fake);
    MUST(sem_post(&fake->step) == 0);
    MUST(sem_wait(fake->arg) == 0);
    fake_rise(fake);
    greet(fake, 2, true, GRACE_NS);
    fake_free(take_resume(fake));
    go_on(fake);
    fake_take(fake, RDT_MSG_BROADCAST);
    fake_empty(fake);
    fake_serve(fake);
}

Test(client_resume, request_that_was_never_sent_is_sent_whatever_it_does)
{
    struct fake fake;
    struct rdt_ref ref = fake_ref("w");
    rdt_request *request;
    sem_t begun;

    MUST(sem_init(&begun, 0, 0) == 0);
    rdt *conn = start(&fake, die_before_a_broadcast, &begun);
    assert_status(RDT_TIMED_OUT, rdt_ping(conn, 100 * MS, &err)); /* notices that the daemon is gone */
    MUST(sem_wait(&fake.step) == 0);
    assert_refused(RDT_TIMED_OUT, "it ended, and has not come back yet", rdt_ping(conn, 100 * MS, &err));
    assert_status(RDT_OK, rdt_broadcast_start(conn, &ref, "all", LONG_NS, &request, &err));
    MUST(sem_post(&begun) == 0);
    assert_status(RDT_OK, rdt_wait(conn, &request, 1, 1, LONG_NS, NULL, NULL, &err));
    rdt_request_destroy(request);
    fake_end(&fake, conn);
}

/* ---- fetches, holds, regions ---- */

static void die_in_a_fetch(struct fake *fake)
{
    uint64_t handles[3];

    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_FETCH);
    Rdt__Pb__Fetch *message = FAKE_MESSAGE(fake, Fetch);
    MUST(message->n_items == 3 && message->fds_once);
    for (size_t i = 0; i < 3; i++)
        handles[i] = message->items[i]->handle;
    fake_free(message);
    fake_send_object(fake, handles[1], 5, 4096);
    MUST(sem_wait(&fake->step) == 0);
    fake_again(fake);
    greet(fake, 2, true, GRACE_NS);
    Rdt__Pb__Resume *resume = take_resume(fake);
    MUST(resume->n_holds == 1 && resume->holds[0] == 5);
    MUST(resume->n_regions == 0 && resume->n_remote_holds == 0 && resume->n_abandoned_puts == 0);
    fake_free(resume);
    go_on(fake);
    fake_take(fake, RDT_MSG_FETCH);
    message = FAKE_MESSAGE(fake, Fetch);
    MUST(message->n_items == 2 && !message->fds_once && message->timeout_ns > 0 && message->timeout_ns < LONG_NS);
    MUST(message->items[0]->handle == handles[0] && message->items[1]->handle == handles[2]);
    MUST(strncmp((char *)message->items[1]->ref->id.data, "c", 1) == 0);
    fake_free(message);
    fake_send_object(fake, handles[2], 7, 4096);
    fake_send_object(fake, handles[0], 6, 4096);
    fake_serve(fake);
}

Test(client_resume, parked_fetch_goes_on_and_mapped_memory_stays)
{
    static const char *const ids[3] = {"a", "b", "c"};
    struct fake fake;
    rdt *conn = start(&fake, die_in_a_fetch, NULL);
    rdt_request *requests[3];
    struct rdt_tensor before, after;
    rdt_object *object, *others[2];

    fetch(conn, ids, 3, requests, LONG_NS);
    assert_status(RDT_OK, rdt_wait(conn, &requests[1], 1, 1, LONG_NS, NULL, NULL, &err));
    assert_status(RDT_OK, rdt_request_take_object(requests[1], &object, &err));
    assert_status(RDT_OK, rdt_object_tensor(object, 0, &before, &err));
    MUST(sem_post(&fake.step) == 0);
    assert_status(RDT_OK, rdt_wait(conn, requests, 3, 3, LONG_NS, NULL, NULL, &err));
    assert_status(RDT_OK, rdt_object_tensor(object, 0, &after, &err));
    cr_assert_eq(before.data, after.data);
    for (unsigned i = 0; i < 4096; i++)
        cr_assert_eq(((uint8_t *)after.data)[i], i % 251);
    assert_status(RDT_OK, rdt_request_take_object(requests[0], &others[0], &err));
    assert_status(RDT_OK, rdt_request_take_object(requests[2], &others[1], &err));
    rdt_release(others[0]);
    rdt_release(others[1]);
    rdt_release(object);
    for (size_t i = 0; i < 3; i++)
        rdt_request_destroy(requests[i]);
    fake_end(&fake, conn);
}

static void answer_alloc(struct fake *fake, uint64_t region)
{
    int fd = fake_memfd(8192);

    fake_take(fake, RDT_MSG_ALLOC);
    Rdt__Pb__RegionReply reply = MESSAGE(region_reply, .region = region, .generation = 1, .bytes = 8192);
    fake_reply_fd(fake, &reply.base, fd);
    close(fd);
}

static void lose_an_alloc(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    answer_alloc(fake, 3);
    answer_alloc(fake, 4);
    fake_take(fake, RDT_MSG_RELEASE_REGION); /* of 4, which is not answered */
    fake_take(fake, RDT_MSG_ALLOC);
    fake_again(fake);
    greet(fake, 2, true, GRACE_NS);
    Rdt__Pb__Resume *resume = take_resume(fake);
    MUST(resume->n_regions == 1 && resume->regions[0] == 3);
    fake_free(resume);
    go_on(fake);
    answer_alloc(fake, 9);
    if (fake->arg) { /* the daemon after that has lost region 9 */
        uint64_t missing = 9;

        fake_take(fake, RDT_MSG_PING);
        fake_again(fake);
        greet(fake, 3, true, GRACE_NS);
        resume = take_resume(fake);
        MUST(resume->n_regions == 2);
        fake_free(resume);
        Rdt__Pb__ResumeReply reply = MESSAGE(resume_reply, .regions = &missing, .n_regions = 1);
        fake_reply(fake, &reply.base);
    }
    fake_serve(fake);
}

static void check_regions(bool loses)
{
    struct fake fake;
    rdt *conn = start(&fake, lose_an_alloc, loses ? &fake : NULL);
    void *kept, *gone, *late;

    assert_status(RDT_OK, rdt_alloc(conn, 8192, &kept, &err));
    assert_status(RDT_OK, rdt_alloc(conn, 8192, &gone, &err));
    memset(kept, 7, 8192);
    assert_status(RDT_OK, rdt_dealloc_soon(conn, gone, &err));
    assert_status(RDT_OK, rdt_alloc(conn, 8192, &late, &err));
    for (unsigned i = 0; i < 8192; i++)
        cr_assert_eq(((uint8_t *)kept)[i], 7);
    if (loses) {
        assert_refused(RDT_RESTARTED, "restarted, and lost a part of what this session had: connect anew",
                       rdt_ping(conn, LONG_NS, &err));
    }
    fake_end(&fake, conn);
}

Test(client_resume, regions_are_listed_and_an_unanswered_alloc_is_repeated)
{
    check_regions(false);
}

Test(client_resume, missing_region_ends_the_session)
{
    check_regions(true);
}

static void hold_and_die(struct fake *fake)
{
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){1, (uint8_t *)"h"}, .generation = 4);
    Rdt__Pb__HoldReply reply = MESSAGE(hold_reply, .ref = &ref);
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_HOLD);
    uint64_t first = fake->frame.request_id;
    fake_reply(fake, &reply.base);
    fake_take(fake, RDT_MSG_HOLD);
    uint64_t second = fake->frame.request_id;
    fake_again(fake);
    greet(fake, 2, true, GRACE_NS);
    Rdt__Pb__Resume *resume = take_resume(fake);
    MUST(resume->n_remote_holds == 2 && resume->remote_holds[0] == first && resume->remote_holds[1] == second);
    fake_free(resume);
    go_on(fake);
    fake_take(fake, RDT_MSG_HOLD);
    MUST(fake->frame.request_id == second);
    fake_reply(fake, &reply.base);
    fake_serve(fake);
}

Test(client_resume, holds_keep_their_ids)
{
    struct fake fake;
    struct rdt_ref ref = fake_ref("h"), held;
    rdt *conn = start(&fake, hold_and_die, NULL);
    rdt_request *holds[2];

    assert_status(RDT_OK, rdt_hold(conn, &ref, LONG_NS, &holds[0], &err));
    assert_status(RDT_OK, rdt_hold(conn, &ref, LONG_NS, &holds[1], &err));
    assert_status(RDT_OK, rdt_hold_ref(holds[0], &held, &err));
    cr_assert_eq(held.generation, 4);
    rdt_request_destroy(holds[0]);
    rdt_request_destroy(holds[1]);
    fake_end(&fake, conn);
}

static void resume_slowly(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_FETCH);
    uint64_t handle = fake_only_handle(fake);
    fake_send_object(fake, handle, 5, 4096);
    MUST(sem_wait(&fake->step) == 0);
    fake_again(fake);
    greet(fake, 2, true, GRACE_NS);
    fake_free(take_resume(fake));
    MUST(sem_post(fake->arg) == 0);
    MUST(sem_wait(&fake->step) == 0);
    go_on(fake);
    MUST(fake_take_any(fake) && fake->frame.type == RDT_MSG_RELEASE); /* nothing else came before it */
    Rdt__Pb__Release *release = FAKE_MESSAGE(fake, Release);
    MUST(release->hold == 5);
    fake_free(release);
    fake_serve(fake);
}

Test(client_resume, release_while_resuming_is_sent_afterwards)
{
    static const char *const id = "a";
    struct fake fake;
    sem_t resuming;
    rdt_request *request;
    rdt_object *object;

    MUST(sem_init(&resuming, 0, 0) == 0);
    rdt *conn = start(&fake, resume_slowly, &resuming);
    fetch(conn, &id, 1, &request, LONG_NS);
    assert_status(RDT_OK, rdt_wait(conn, &request, 1, 1, LONG_NS, NULL, NULL, &err));
    assert_status(RDT_OK, rdt_request_take_object(request, &object, &err));
    rdt_request_destroy(request);
    MUST(sem_post(&fake.step) == 0);
    while (sem_trywait(&resuming) != 0)
        assert_status(RDT_OK, rdt_dispatch(conn, NULL, &err));
    rdt_release(object);
    MUST(sem_post(&fake.step) == 0);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

/* ---- puts ---- */

static void lose_a_put(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_PUT);
    uint64_t id = fake->frame.request_id;
    come_again(fake, 2);
    fake_take(fake, RDT_MSG_PUT);
    MUST(fake->frame.request_id == id);
    fake_reply_put(fake);
    fake_take(fake, RDT_MSG_PUT); /* its caller stops waiting */
    id = fake->frame.request_id;
    fake_take(fake, RDT_MSG_CANCEL_REQUEST);
    fake_again(fake);
    greet(fake, 3, true, GRACE_NS);
    Rdt__Pb__Resume *resume = take_resume(fake);
    MUST(resume->n_abandoned_puts == 1 && resume->abandoned_puts[0] == id);
    fake_free(resume);
    go_on(fake);
    fake_take(fake, RDT_MSG_PUT);
    fake_error(fake, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    fake_again(fake);
    greet(fake, 4, true, GRACE_NS);
    resume = take_resume(fake);
    MUST(resume->n_abandoned_puts == 0);
    fake_free(resume);
    go_on(fake);
    fake_take(fake, RDT_MSG_PUT);
    fake_reply_put(fake);
    fake_serve(fake);
}

Test(client_resume, put_is_repeated_and_an_abandoned_one_is_named)
{
    struct fake fake;
    rdt *conn = start(&fake, lose_a_put, NULL);

    put(conn, LONG_NS, RDT_OK);
    put(conn, 50 * MS, RDT_TIMED_OUT);
    put(conn, LONG_NS, RDT_OK); /* a daemon that ends refuses it, the next one takes it */
    fake_end(&fake, conn);
}

/* ---- what nobody waits for ---- */

static void lose_notes(struct fake *fake)
{
    uint64_t ids[2];

    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_READY);
    ids[0] = fake->frame.request_id;
    MUST(fake_take_any(fake) && fake->frame.type == RDT_MSG_FREE);
    ids[1] = fake->frame.request_id;
    MUST(ids[0] != 0 && ids[1] > ids[0]);
    fake_take(fake, RDT_MSG_PING);
    come_again(fake, 2);
    fake_take(fake, RDT_MSG_READY);
    MUST(fake->frame.request_id == ids[0]);
    Rdt__Pb__Ready *ready = FAKE_MESSAGE(fake, Ready);
    MUST(strncmp((char *)ready->ref->id.data, "r", 1) == 0);
    fake_free(ready);
    fake_empty(fake);
    MUST(fake_take_any(fake) && fake->frame.type == RDT_MSG_FREE && fake->frame.request_id == ids[1]);
    fake_error(fake, RDT_NOT_FOUND, "there is no such object");
    fake_take(fake, RDT_MSG_PING);
    fake_empty(fake);
    fake_take(fake, RDT_MSG_PING);
    come_again(fake, 3);
    MUST(fake_take_any(fake) && fake->frame.type == RDT_MSG_PING); /* what was answered does not come again */
    fake_empty(fake);
    fake_serve(fake);
}

Test(client_resume, ready_and_drop_are_repeated_until_they_are_answered)
{
    struct fake fake;
    struct rdt_ref ready = fake_ref("r"), freed = fake_ref("f");
    rdt *conn = start(&fake, lose_notes, NULL);

    assert_status(RDT_OK, rdt_ready(conn, &ready, &err));
    rdt_cork(conn);
    assert_status(RDT_OK, rdt_drop(conn, &freed, &err));
    rdt_uncork(conn);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

static void lose_a_part_given_up(struct fake *fake)
{
    uint64_t id;

    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_PUBLISH_PART);
    id = fake->frame.request_id;
    fake_take(fake, RDT_MSG_PING);
    come_again(fake, 2);
    fake_take(fake, RDT_MSG_PUBLISH_PART);
    MUST(id != 0 && fake->frame.request_id == id);
    fake_error(fake, RDT_INVALID, "a version has 1 part");
    fake_take(fake, RDT_MSG_PING);
    fake_empty(fake);
    fake_serve(fake);
}

Test(client_resume, part_that_is_given_up_is_told_to_the_next_daemon_too)
{
    struct fake fake;
    struct rdt_ref name;
    rdt *conn = start(&fake, lose_a_part_given_up, NULL);

    assert_status(RDT_OK, rdt_ref_from_name("n", 0, NULL, &name, &err));
    assert_status(RDT_OK, rdt_part_give_up(conn, &name, 5, 0, 2, RDT_LIMIT, "there is no room", &err));
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

static void lose_a_corked_drop(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_PING);
    fake_empty(fake);
    MUST(sem_wait(&fake->step) == 0);
    come_again(fake, 2);
    MUST(fake_take_any(fake) && fake->frame.type == RDT_MSG_FREE); /* it was never sent to the first daemon */
    fake_empty(fake);
    fake_serve(fake);
}

Test(client_resume, corked_messages_survive)
{
    struct fake fake;
    struct rdt_ref ref = fake_ref("f");
    rdt *conn = start(&fake, lose_a_corked_drop, NULL);

    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    rdt_cork(conn);
    assert_status(RDT_OK, rdt_drop(conn, &ref, &err));
    MUST(sem_post(&fake.step) == 0);
    rdt_uncork(conn);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

/* ---- events ---- */

static void send_event(struct fake *fake, uint64_t sequence)
{
    Rdt__Pb__Event event = MESSAGE(event, .what = (char *)"published", .sequence = sequence);
    Rdt__Pb__NameInfo name = MESSAGE(name_info, .name = (char *)"n");
    event.name = &name;
    fake_send(fake, RDT_EVENT_WATCHED, FRAME_EVENT, 0, &event.base, NULL, 0);
}

static void die_watched(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_WATCH);
    fake_empty(fake);
    send_event(fake, 1);
    send_event(fake, 2);
    come_again(fake, 2);
    fake_take(fake, RDT_MSG_WATCH);
    Rdt__Pb__Watch *watch = FAKE_MESSAGE(fake, Watch);
    MUST(watch->kinds == RDT_KIND_NAMES);
    fake_free(watch);
    fake_empty(fake);
    send_event(fake, 1);
    fake_serve(fake);
}

Test(client_resume, watch_goes_on_and_says_that_events_were_lost)
{
    struct fake fake;
    struct rdt_event event;
    rdt *conn = start(&fake, die_watched, NULL);
    uint64_t sequence = 0;

    assert_status(RDT_OK, rdt_watch(conn, RDT_KIND_NAMES, &err));
    for (unsigned i = 0; i < 4; i++) {
        assert_status(RDT_OK, rdt_next_event(conn, LONG_NS, &event, &err));
        cr_assert_eq(event.sequence, ++sequence);
        cr_assert_eq(event.lost, i == 2);
        cr_assert_str_eq(event.what, i == 2 ? "lost" : "published");
    }
    fake_end(&fake, conn);
}
