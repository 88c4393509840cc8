/* SPDX-License-Identifier: Apache-2.0 */
/* Events: they arrive in order for each object, a watcher that reads misses none, a watcher that does not read learns how
 * many it lost, and nobody sees events of objects that it may not see. */
#include <criterion/criterion.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/cluster.h"
#include "tests/support/raw.h"

#define STRANGER 12345
#define EVERY_KIND                                                                                                      \
    (RDT_KIND_OBJECTS | RDT_KIND_REGIONS | RDT_KIND_CLIENTS | RDT_KIND_PEERS | RDT_KIND_BACKENDS | RDT_KIND_TRANSFERS | \
     RDT_KIND_NAMES | RDT_KIND_OWNERS)

static struct test_node node;
static rdt *actor, *watcher;

TestSuite(watch, .timeout = 120);

static void begin(void)
{
    node_start(&node, NULL);
    actor = node_client(&node, "actor");
    watcher = node_client(&node, "watcher");
}

static void end(void)
{
    rdt_close(actor);
    rdt_close(watcher);
    node_end(&node, NULL);
}

static struct rdt_event next_event(rdt *conn)
{
    struct rdt_event event;

    must_ok(rdt_next_event(conn, LONG, &event, &err));
    return event;
}

/* The next event is this one. */
static struct rdt_event expect(rdt *conn, enum rdt_kind kind, const char *what)
{
    struct rdt_event event = next_event(conn);

    must_say(event.kind == kind && strcmp(event.what, what) == 0, "event %d \"%s\" instead of %d \"%s\"", (int)event.kind,
             event.what, (int)kind, what);
    must(event.lost == 0);
    return event;
}

static void expect_none(rdt *conn)
{
    struct rdt_event event;

    must_ok(rdt_ping(conn, LONG, &err)); /* all expected events have arrived */
    must_be(RDT_TIMED_OUT, rdt_next_event(conn, 0, &event, &err));
}

/* ---- which events are reported ---- */

Test(watch, life_of_an_object)
{
    struct rdt_ref later = ref_named("later"), ref;

    begin();
    must_ok(rdt_watch(watcher, RDT_KIND_OBJECTS, &err));
    rdt_request *request = start_one(actor, &later, LONG);
    struct rdt_event event = expect(watcher, RDT_KIND_OBJECTS, "awaited");
    cr_assert_str_eq(event.state, "awaited");
    cr_assert_str_eq(event.name, "later");
    cr_assert_eq(event.sequence, 1u);
    rdt_request_destroy(request);
    (void)expect(watcher, RDT_KIND_OBJECTS, "gone");
    ref = put_one(actor, &VECTOR(RDT_U8, 5, alloc_memory(actor, 4096)), "o"); /* memory that can be shared */
    event = expect(watcher, RDT_KIND_OBJECTS, "put");
    cr_assert_eq(event.bytes, 5u);
    cr_assert_eq(event.uid, getuid());
    cr_assert_eq(event.id, ref.generation);
    cr_assert(rdt_ref_equal(&event.ref, &ref));
    rdt_object *object = fetch_one(watcher, &ref, RDT_FETCH_SHARE);
    must_ok(rdt_free(actor, &ref, false, &err));
    (void)expect(watcher, RDT_KIND_OBJECTS, "freed");
    expect_none(watcher); /* its reader holds it */
    rdt_release(object);
    event = expect(watcher, RDT_KIND_OBJECTS, "gone");
    cr_assert_eq(event.id, ref.generation);
    cr_assert_eq(event.sequence, 5u);
    end();
}

Test(watch, regions_clients_transfers_and_names)
{
    struct rdt_ref ref, name;

    begin();
    must_ok(rdt_watch(watcher, RDT_KIND_REGIONS, &err));
    char *addr = alloc_memory(actor, 8192);
    struct rdt_event event = expect(watcher, RDT_KIND_REGIONS, "new");
    cr_assert_eq(event.bytes, 8192u);
    cr_assert_str_eq(event.state, "allocated");
    must_ok(rdt_watch(watcher, RDT_KIND_CLIENTS, &err));
    rdt *other = node_client(&node, "other");
    event = expect(watcher, RDT_KIND_CLIENTS, "connected");
    cr_assert_str_eq(event.name, "other");
    cr_assert_eq(event.sequence, 1u, "another watch counts anew");
    rdt_close(other);
    struct rdt_event ended = expect(watcher, RDT_KIND_CLIENTS, "gone");
    cr_assert_eq(ended.id, event.id);
    ref = put_one(actor, &VECTOR(RDT_U8, 8192, addr), "o");
    must_ok(rdt_watch(watcher, RDT_KIND_TRANSFERS, &err));
    rdt_object *object = fetch_one(actor, &ref, RDT_FETCH_COPY);
    struct rdt_event began = expect(watcher, RDT_KIND_TRANSFERS, "began");
    ended = expect(watcher, RDT_KIND_TRANSFERS, "ended");
    cr_assert_eq(began.id, ended.id);
    cr_assert_str_eq(ended.state, "done");
    cr_assert_str_eq(ended.name, "local/copy");
    cr_assert_eq(ended.bytes, 8192u);
    rdt_release(object);
    must_ok(rdt_watch(watcher, RDT_KIND_NAMES, &err));
    must_ok(rdt_publish(actor, "weights", &ref, NULL, NULL, &err));
    event = expect(watcher, RDT_KIND_NAMES, "published");
    cr_assert_str_eq(event.name, "weights");
    cr_assert_eq(event.id, 1u);
    cr_assert(rdt_ref_equal(&event.ref, &ref));
    must_ok(rdt_free(actor, &ref, true, &err));
    event = expect(watcher, RDT_KIND_NAMES, "freed");
    cr_assert_eq(event.ref.id_bytes, 0);
    must_ok(rdt_ref_from_name("weights", 0, NULL, &name, &err));
    must_ok(rdt_unpublish(actor, &name, &err));
    (void)expect(watcher, RDT_KIND_NAMES, "unpublished");
    must_ok(rdt_watch(watcher, 0, &err));
    (void)put_one(actor, &VECTOR(RDT_U8, 5, "hello"), "p");
    must_refuse(RDT_INVALID, "call rdt_watch first", rdt_next_event(watcher, 0, &event, &err));
    end();
}

Test(watch, peers_come_and_go)
{
    static const char *const warnings[] = {"is down: ",     "is lost: ", "refused", "connection from",
                                           "not connected", "reset",     NULL};
    static const char *const flags[] = {"--backoff-max=300ms", NULL};
    static struct cluster c;

    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true, .no_meeting = true, .flags = flags});
    watcher = node_client(&c.node[0], "watcher");
    must_ok(rdt_watch(watcher, RDT_KIND_PEERS, &err));
    struct rdt_ref ref = ref_on(&c.node[1], "x");
    rdt_request *request = start_one(watcher, &ref, LONG);
    (void)expect(watcher, RDT_KIND_PEERS, "new");
    struct rdt_event event = expect(watcher, RDT_KIND_PEERS, "connecting");
    cr_assert_str_eq(event.state, "connecting");
    event = expect(watcher, RDT_KIND_PEERS, "up");
    cr_assert_str_eq(event.state, "up");
    rdt_request_destroy(request);
    must_ok(rdt_ping(watcher, LONG, &err)); /* and so the daemon has heard */
    node_kill(&c.node[1], SIGKILL);
    event = expect(watcher, RDT_KIND_PEERS, "down");
    cr_assert_str_eq(event.state, "backoff");
    event = expect(watcher, RDT_KIND_PEERS, "idle"); /* nobody wants it */
    cr_assert_str_eq(event.state, "idle");
    cluster_restart(&c, 1);
    must_be(RDT_TIMED_OUT, rdt_next_event(watcher, 0, &event, &err));
    rdt_close(watcher);
    cluster_meet(&c);
    cluster_end(&c, warnings);
}

/* ---- order ---- */

#define ROUNDS 500u

static int churn(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "churner");

    actor_step(self);
    actor_await(self);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), NULL);
        must_ok(rdt_publish(conn, arg, &ref, NULL, NULL, &err));
        must_ok(rdt_free(conn, &ref, false, &err));
    }
    {
        struct rdt_ref name = {0};
        must_ok(rdt_ref_from_name(arg, 0, NULL, &name, &err));
        must_ok(rdt_unpublish(conn, &name, &err));
    }
    rdt_close(conn);
    return 0;
}

Test(watch, events_of_one_thing_come_in_order_and_none_is_missed)
{
    enum { SEEN = 1 << 14 };
    static struct {
        uint64_t generation;
        unsigned steps;
    } seen[SEEN];
    static const char *const steps[] = {"put", "freed", "gone"};
    uint64_t published[2] = {0}, sequence = 0;
    unsigned gone = 0, unpublished = 0, at = 0;
    char names[2][8] = {"a", "b"};
    struct actor actors[2];

    node_start(&node, NULL);
    for (unsigned i = 0; i < 2; i++)
        actor_start(&actors[i], churn, names[i]);
    watcher = node_client(&node, "watcher");
    for (unsigned i = 0; i < 2; i++)
        actor_await(&actors[i]);
    must_ok(rdt_watch(watcher, RDT_KIND_OBJECTS | RDT_KIND_NAMES, &err));
    for (unsigned i = 0; i < 2; i++)
        actor_step(&actors[i]);
    while (gone < 2 * ROUNDS || unpublished < 2) {
        struct rdt_event event = next_event(watcher);
        must(event.sequence == ++sequence && event.lost == 0);
        if (event.kind == RDT_KIND_NAMES) {
            unsigned which = event.name[0] == 'b';
            if (strcmp(event.what, "published") == 0)
                must(event.id == ++published[which]);
            else
                unpublished++;
            continue;
        }
        for (at = (unsigned)(event.id % SEEN); seen[at].generation != 0 && seen[at].generation != event.id;
             at = (at + 1) % SEEN)
            ;
        seen[at].generation = event.id;
        must_say(seen[at].steps < 3 && strcmp(event.what, steps[seen[at].steps]) == 0, "\"%s\" as number %u", event.what,
                 seen[at].steps);
        gone += seen[at].steps++ == 2;
    }
    must(published[0] == ROUNDS && published[1] == ROUNDS);
    for (unsigned i = 0; i < 2; i++)
        actor_wait(&actors[i]);
    rdt_close(watcher);
    node_end(&node, NULL);
}

/* ---- who does not read ---- */

static uint64_t unread_of_watcher(void)
{
    struct raw raw;
    uint64_t unread = 0;

    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    Rdt__Pb__List request = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_CLIENTS);
    ProtobufCMessage *reply =
        raw_reply(&raw, raw_send(&raw, RDT_MSG_LIST, &request.base, NULL, 0), &rdt__pb__list_reply__descriptor);
    for (size_t i = 0; i < ((Rdt__Pb__ListReply *)reply)->n_clients; i++)
        if (((Rdt__Pb__ListReply *)reply)->clients[i]->queued_bytes > unread)
            unread = ((Rdt__Pb__ListReply *)reply)->clients[i]->queued_bytes;
    protobuf_c_message_free_unpacked(reply, NULL);
    raw_close(&raw);
    return unread;
}

#define MANY 10000u

Test(watch, watcher_that_never_reads_loses_events_and_delays_nobody)
{
    uint64_t sequence = 0, got = 0, lost = 0;
    struct raw raw;

    begin();
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    Rdt__Pb__Watch request = MESSAGE(watch, .kinds = RDT_KIND_OBJECTS);
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_WATCH, &request.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
    for (unsigned i = 0; i < MANY; i++) {
        struct rdt_ref ref = put_one(actor, &VECTOR(RDT_U8, 5, "hello"), NULL);
        must_ok(rdt_free(actor, &ref, false, &err));
    }
    cr_assert_lt(unread_of_watcher(), (uint64_t)3 << 19, "its queue is bounded");
    while (sequence < 3 * MANY) { /* nothing else happens; the lost events must be reported all the same */
        must(raw_next(&raw));
        must(raw.frame.type == RDT_EVENT_WATCHED && (raw.frame.flags & FRAME_EVENT));
        Rdt__Pb__Event *event = rdt__pb__event__unpack(NULL, raw.frame.length, raw.frame.payload);
        must(event);
        got += strcmp(event->what, "lost") != 0;
        lost += event->lost;
        must(event->sequence > sequence);
        sequence = event->sequence;
        must(got + lost == sequence);
        rdt__pb__event__free_unpacked(event, NULL);
    }
    cr_assert_eq(sequence, 3 * MANY);
    cr_assert(got > 100 && lost > 100, "%llu came, %llu were lost", (unsigned long long)got, (unsigned long long)lost);
    (void)put_one(actor, &VECTOR(RDT_U8, 5, "hello"), NULL); /* and it goes on */
    must(raw_next(&raw));
    raw_close(&raw);
    end();
}

Test(watch, watcher_that_takes_no_events_learns_how_many_were_lost)
{
    struct rdt_event event;
    uint64_t sequence = 0, got = 0, lost = 0;

    begin();
    must_ok(rdt_watch(watcher, RDT_KIND_OBJECTS, &err));
    for (unsigned i = 0; i < MANY; i++) {
        struct rdt_ref ref = put_one(actor, &VECTOR(RDT_U8, 5, "hello"), NULL);
        must_ok(rdt_free(actor, &ref, false, &err));
        if (i % 100 == 0)
            must_ok(rdt_ping(watcher, LONG, &err)); /* reads, and takes none */
    }
    must_ok(rdt_ping(watcher, LONG, &err));
    while (rdt_next_event(watcher, 0, &event, NULL) == RDT_OK) {
        must(event.sequence == sequence + event.lost + (event.kind != 0));
        sequence = event.sequence;
        lost += event.lost;
        got += event.kind != 0;
    }
    (void)put_one(actor, &VECTOR(RDT_U8, 5, "hello"), NULL);
    event = next_event(watcher);
    cr_assert_eq(got + lost + event.lost, 3 * MANY);
    cr_assert_eq(event.sequence, 3 * MANY + 1);
    cr_assert(lost + event.lost > 0);
    end();
}

/* ---- the library ---- */

Test(watch, fd_is_readable_while_there_are_events)
{
    struct rdt_event event;

    begin();
    must_refuse(RDT_UNSUPPORTED, "0x8000000", rdt_watch(watcher, RDT_KIND_OBJECTS | 1u << 27, &err));
    must_refuse(RDT_INVALID, "call rdt_watch first", rdt_next_event(watcher, LONG, &event, &err));
    must_ok(rdt_watch(watcher, EVERY_KIND, &err));
    struct pollfd fd = (struct pollfd){.fd = rdt_fd(watcher), .events = POLLIN};
    must_be(RDT_TIMED_OUT, rdt_next_event(watcher, 20 * MSEC, &event, &err));
    must(poll(&fd, 1, 0) == 0);
    struct rdt_ref ref = put_one(actor, &VECTOR(RDT_U8, 5, "hello"), "o");
    must(poll(&fd, 1, (int)(LONG / MSEC)) == 1);
    must_ok(rdt_ping(watcher, LONG, &err)); /* all expected events have arrived */
    must(poll(&fd, 1, 0) == 1);             /* read, and not taken */
    while (rdt_next_event(watcher, 0, &event, NULL) == RDT_OK)
        ;
    must(poll(&fd, 1, 0) == 0);
    must_ok(rdt_free(actor, &ref, false, &err));
    must(poll(&fd, 1, (int)(LONG / MSEC)) == 1);
    end();
}

static int watch_for_ever(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "watcher");
    struct rdt_event event;

    must_ok(rdt_watch(conn, EVERY_KIND, &err));
    actor_step(self);
    for (;;)
        must_ok(rdt_next_event(conn, RDT_FOREVER, &event, &err));
}

Test(watch, killed_watcher_is_forgotten)
{
    struct actor killed;

    node_start(&node, NULL);
    actor_start(&killed, watch_for_ever, NULL);
    actor = node_client(&node, "actor");
    watcher = NULL;
    actor_await(&killed);
    for (unsigned i = 0; i < 200; i++) {
        struct rdt_ref ref = put_one(actor, &VECTOR(RDT_U8, 5, "hello"), NULL);
        if (i == 100)
            actor_kill(&killed, SIGKILL);
        must_ok(rdt_free(actor, &ref, false, &err));
    }
    end();
}

Test(watch, end_of_the_daemon_ends_the_wait)
{
    struct rdt_event event;

    begin();
    must_ok(rdt_watch(watcher, RDT_KIND_NAMES, &err));
    node_stop(&node);
    must_be(RDT_DISCONNECTED, rdt_next_event(watcher, LONG, &event, &err));
    rdt_close(actor);
    rdt_close(watcher);
    node_check_log(&node, NULL);
}

/* ---- other users ---- */

static int watch_as_a_stranger(struct actor *self, void *arg)
{
    struct rdt_event event;
    rdt *conn = NULL;
    unsigned own = 0;

    must(chdir(node.dir) == 0);
    must(setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0);
    struct rdt_connect_options connect = {.struct_size = sizeof connect, .socket = "s"};
    must_ok(rdt_connect(&connect, &conn, &err));
    must_ok(rdt_watch(conn, EVERY_KIND, &err));
    actor_step(self);
    actor_await(self);
    must_ok(rdt_ping(conn, LONG, &err));
    (void)put_one(conn, &VECTOR(RDT_U8, 6, "myself"), "mine");
    while (own == 0) {
        event = next_event(conn);
        must_say(event.uid == STRANGER || strcmp(event.name, "shown") == 0, "%s %s of uid %u", event.what, event.name,
                 event.uid);
        own += event.kind == RDT_KIND_OBJECTS && event.uid == STRANGER;
    }
    must(event.sequence >= 3); /* the "put" events of the visible object and name came before */
    rdt_close(conn);
    return 0;
}

static bool stop(void *arg)
{
    return true;
}

/* The answer to a call that was given up comes while the next one waits for its own. */
Test(watch, goes_on_after_one_that_was_given_up)
{
    begin();
    must(kill(node.pid, SIGSTOP) == 0);
    rdt_interrupt_by(stop, NULL);
    must_be(RDT_CANCELLED, rdt_watch(watcher, RDT_KIND_NAMES, &err));
    rdt_interrupt_by(NULL, NULL);
    must(kill(node.pid, SIGCONT) == 0);
    must_ok(rdt_watch(watcher, RDT_KIND_OBJECTS, &err));
    must_ok(rdt_ping(watcher, LONG, &err));
    struct rdt_ref ref = put_one(actor, &VECTOR(RDT_U8, 1, "x"), NULL);
    (void)expect(watcher, RDT_KIND_OBJECTS, "put");
    must_ok(rdt_free(actor, &ref, false, &err));
    end();
}

Test(watch, another_user_sees_its_own_and_what_is_shown)
{
    struct rdt_ref hidden, shown, name;
    struct actor stranger;
    unsigned of_stranger = 0;

    need_root();
    node_start(&node, NULL);
    actor_start(&stranger, watch_as_a_stranger, NULL);
    actor = node_client(&node, "actor");
    watcher = node_client(&node, "watcher");
    actor_await(&stranger);
    must_ok(rdt_watch(watcher, RDT_KIND_OBJECTS, &err));
    hidden = put_one(actor, &VECTOR(RDT_U8, 6, "hidden"), "hidden");
    shown = put_shown(actor, &VECTOR(RDT_U8, 5, "shown"), "shown", RDT_VISIBLE_TO_ALL);
    must_ok(rdt_publish(actor, "hidden", &hidden, NULL, NULL, &err));
    struct rdt_publish_options options = {.struct_size = sizeof options, .visibility = RDT_VISIBLE_TO_ALL, .name_ref = &name};
    must_ok(rdt_publish(actor, "shown", &shown, &options, NULL, &err));
    actor_step(&stranger);
    actor_wait(&stranger);
    while (of_stranger == 0) { /* root sees it all */
        struct rdt_event event = next_event(watcher);
        of_stranger += event.uid == STRANGER;
    }
    must_ok(rdt_unpublish(actor, &name, &err));
    must_ok(rdt_ref_from_name("hidden", 0, NULL, &name, &err));
    must_ok(rdt_unpublish(actor, &name, &err));
    end();
}
