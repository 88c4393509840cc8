/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that are stopped (SIGSTOP) in the middle of a message or an answer, or with events to read. The daemon keeps
 * little for them and charges it to them, other clients are not affected, and the daemon's end does not wait for them. */
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/integration/hostile/protocol_fixture.h"

TestSuite(hostile_stopped, .timeout = 120);

enum { STOPPED = 8 };

static struct actor actors[STOPPED];

static void stop_all(int (*fn)(struct actor *self, void *arg))
{
    for (unsigned i = 0; i < STOPPED; i++)
        actor_start(&actors[i], fn, NULL);
    for (unsigned i = 0; i < STOPPED; i++) {
        actor_await(&actors[i]);
        actor_freeze(&actors[i]);
    }
}

/* The daemon ends while they are stopped, long before drain_timeout. */
static void end_in_time(void)
{
    others_are_well();
    rdt_close(bystander);
    int64_t since = now_ns();
    node_stop(&node);
    must_be_within(since, 5 * SEC);
    node_check_log(&node, declared);
    for (unsigned i = 0; i < STOPPED; i++)
        actor_kill(&actors[i], SIGKILL);
}

/* ---- in the middle of a message ---- */

/* Announces 8 MiB with a descriptor, and sends one of them. */
static int begin_a_message(struct actor *self, void *arg)
{
    static const uint8_t part[MIB];
    struct raw raw;
    int fd = STDERR_FILENO;

    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    must(raw_frame(&raw, 8 * MIB, RDT_MSG_PING, 1, 0, 4711, part, sizeof part, &fd, 1));
    actor_step(self);
    (void)pause();
    return 0;
}

Test(hostile_stopped, in_a_message_disturbs_nobody)
{
    begin(NULL);
    size_t rss = rss_of(node.pid);
    stop_all(begin_a_message);
    for (unsigned i = 0; i < 50; i++)
        others_are_well();
    must_say(rss_of(node.pid) < rss + (STOPPED * 8 + 64) * MIB, "%zu MiB more", (rss_of(node.pid) - rss) / MIB);
    end_in_time();
}

#define USER 12345

/* How much all clients of that user use; the number of clients if `what` is NULL. */
static uint64_t used_by_user(const char *what)
{
    Rdt__Pb__ListReply *reply;
    uint64_t used = 0;
    Rdt__Pb__List list = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_CLIENTS);

    must_ok(call(bystander, RDT_MSG_LIST, &list.base, LONG, (ProtobufCMessage **)(void *)&reply, &err));
    for (size_t i = 0; i < reply->n_clients; i++) {
        const Rdt__Pb__ClientInfo *client = reply->clients[i];

        used += client->uid == USER && !what;
        for (size_t k = 0; client->uid == USER && what && k < client->n_usage; k++)
            used += strcmp(client->usage[k]->what, what) == 0 ? client->usage[k]->used : 0;
    }
    rdt__pb__list_reply__free_unpacked(reply, NULL);
    return used;
}

/* Waits for an object for so long, and begins a message meanwhile. */
static int wait_and_begin_a_message(struct actor *self, void *arg)
{
    static const uint8_t part[MIB];
    struct raw raw;

    must(setresuid(USER, USER, USER) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0); /* the change takes the signal away */
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    Rdt__Pb__Ref never = MESSAGE(ref, .id = (ProtobufCBinaryData){5, (uint8_t *)"never"});
    Rdt__Pb__Wait wait = MESSAGE(wait, .ref = &never, .timeout_ns = 3 * SEC);
    (void)raw_send(&raw, RDT_MSG_WAIT, &wait.base, NULL, 0);
    must(raw_frame(&raw, 8 * MIB, RDT_MSG_PING, 0, 0, 4711, part, sizeof part, NULL, 0));
    actor_step(self);
    (void)pause();
    return 0;
}

/* The parts that have arrived are charged to the clients, their requests end in time, and nobody waits for them. */
Test(hostile_stopped, in_a_message_is_charged_and_keeps_no_request)
{
    const char *flags[] = {"--owner-max-heap=34MiB", NULL};

    need_root();
    begin(&(struct node_options){.flags = flags});
    size_t rss = rss_of(node.pid);
    stop_all(wait_and_begin_a_message);
    cr_assert_eq(used_by_user(NULL), STOPPED);
    cr_assert_gt(used_by_user("waiters"), 0);
    wait_until(LONG, used_by_user("heap") >= 32 * MIB);
    cr_assert_leq(used_by_user("heap"), 34 * MIB); /* of eight messages four were refused */
    must_say(rss_of(node.pid) < rss + 98 * MIB * (size_t)patience(1), "%zu MiB more", (rss_of(node.pid) - rss) / MIB);
    wait_until(LONG, used_by_user("waiters") == 0);
    cr_assert_eq(used_by_user(NULL), STOPPED);
    end_in_time();
}

/* Half a header, from clients that have not said who they are. */
static int begin_a_hello(struct actor *self, void *arg)
{
    struct raw raw;

    raw_connect(&raw, node.socket);
    must(raw_bytes(&raw, "\x10\0\0", 3));
    actor_step(self);
    (void)pause();
    return 0;
}

Test(hostile_stopped, in_a_hello_is_closed_in_time)
{
    begin(NULL);
    others_are_well();
    unsigned fds = fds_of(node.pid);
    stop_all(begin_a_hello);
    cr_assert_geq(fds_of(node.pid), fds + STOPPED);
    wait_until(30 * SEC, (others_are_well(), fds_of(node.pid) == fds));
    end_in_time();
}

/* ---- in the middle of an answer ---- */

Test(hostile_stopped, in_an_answer_disturbs_nobody)
{
    begin(NULL);
    size_t rss = rss_of(node.pid);
    for (unsigned i = 0; i < STOPPED; i++)
        actor_start(&actors[i], never_read, NULL);
    wait_until(20 * SEC, most_queued() > UNREAD_MAX);
    for (unsigned i = 0; i < STOPPED; i++)
        actor_freeze(&actors[i]);
    for (unsigned i = 0; i < 50; i++) {
        others_are_well();
        cr_assert_leq(most_queued(), UNREAD_MAX + MIB);
    }
    must_say(rss_of(node.pid) < rss + (STOPPED * 8 + 64) * MIB * (size_t)patience(1), "%zu MiB more",
             (rss_of(node.pid) - rss) / MIB);
    end_in_time();
}

/* ---- with all that a client can wait for ---- */

/* Watches everything, holds an object of another client, and waits for an object and for a name. */
static int wait_for_everything(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "stopped");
    struct rdt_ref never = ref_named("never");
    struct rdt_event event;
    rdt_object *object = fetch_one(conn, &theirs, RDT_FETCH_AUTO);
    rdt_request *request = start_one(conn, &never, -1);

    must_ok(rdt_watch(
        conn, RDT_KIND_OBJECTS | RDT_KIND_REGIONS | RDT_KIND_CLIENTS | RDT_KIND_TRANSFERS | RDT_KIND_NAMES | RDT_KIND_OWNERS,
        &err));
    actor_step(self);
    actor_await(self); /* stopped here, and waked */
    for (uint64_t lost = 0; lost == 0; lost = event.lost)
        must_ok(rdt_next_event(conn, LONG, &event, &err));
    rdt_release(object);
    rdt_request_destroy(request);
    must_ok(rdt_ping(conn, LONG, &err));
    actor_step(self);
    (void)pause();
    return 0;
}

Test(hostile_stopped, with_watches_and_requests_disturbs_nobody)
{
    struct rdt_ref shown = {0};
    int64_t slowest = 0;

    begin(NULL);
    stop_all(wait_for_everything);
    size_t rss = rss_of(node.pid);
    for (unsigned i = 0; i < 6000; i++) {
        int64_t since = now_ns();
        shown = put_one(bystander, &VECTOR(RDT_U8, 16, "sixteen bytes .."), NULL);
        must_ok(rdt_free(bystander, &shown, false, &err));
        slowest = now_ns() - since > slowest ? now_ns() - since : slowest;
    }
    must_say(slowest < patience(2 * SEC), "a put and a free took %lld ms", (long long)(slowest / MSEC));
    cr_assert_leq(most_queued(), 2 * MIB);
    must_say(rss_of(node.pid) < rss + 64 * MIB * (size_t)patience(1), "%zu MiB more", (rss_of(node.pid) - rss) / MIB);
    actor_thaw(&actors[0]); /* the client is told how many events it lost, and goes on */
    actor_step(&actors[0]);
    actor_await(&actors[0]);
    actor_freeze(&actors[0]);
    end_in_time();
}
