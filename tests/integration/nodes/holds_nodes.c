/* SPDX-License-Identifier: Apache-2.0 */
/* Holds without data on objects of another node: while the link is up, when it is cut, and when the node ends. */
#include <criterion/criterion.h>
#include <grp.h>
#include <string.h>

#include "client/call.h"
#include "client/rdt_info.h"
#include "proto/wire_ref.h"
#include "tests/integration/nodes/nodes_fixture.h"

TestSuite(holds_nodes, .timeout = 120);

#define BYTES ((size_t)100000)
#define HOUR (3600 * SEC)

static const char *const lost[] = {
    "is lost",       "is down", "has been away for longer than hold_grace", "connection taken down", "cannot connect to",
    " within 2.0 s", NULL};

static rdt_request *hold_of(rdt *client, const struct rdt_ref *ref)
{
    rdt_request *hold = NULL;

    must_ok(rdt_hold(client, ref, LONG, &hold, &err));
    return hold;
}

static uint32_t holds_at_owner(const struct rdt_ref *ref)
{
    struct rdt_stat stat = stat_of(owner, ref);
    return stat.holds;
}

Test(holds_nodes, keeps_what_its_producer_frees)
{
    struct rdt_ref ref, held;
    rdt_request *hold, *more;

    begin(2);
    ref = put_pattern(owner, NULL, BYTES, 1);
    hold = hold_of(reader, &ref);
    must_ok(rdt_hold_ref(hold, &held, &err));
    must(rdt_ref_equal(&held, &ref));
    must_ok(rdt_free(owner, &ref, false, &err));
    fetch_pattern(reader, &ref, BYTES, 1, NULL);
    fetch_pattern(owner, &ref, BYTES, 1, NULL);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(owner, &ref, 0, &err));
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    must_be(RDT_FREED, rdt_hold(reader, &ref, LONG, &more, &err));
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

/* The reader is the only one that holds the object, hands its ref on, and ends before the receiver has come. */
Test(holds_nodes, ref_that_a_reader_hands_on_outlives_the_reader)
{
    begin(2);
    rdt *sender = node_client(&c.node[1], "sender");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    rdt_request *hold = hold_of(sender, &ref);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_hand_on(sender, &ref, 60 * SEC, &err));
    must_ok(rdt_hand_on(sender, &ref, 60 * SEC, &err)); /* to two receivers */
    rdt_request_destroy(hold);
    rdt_close(sender);
    wait_until(10 * SEC, holds_at_owner(&ref) == 1); /* the one in transit */
    hold = take_over(reader, &ref);
    fetch_pattern(reader, &ref, BYTES, 1, NULL);
    rdt_request_destroy(hold);
    wait_until(10 * SEC, holds_at_owner(&ref) == 1);
    hold = take_over(owner, &ref); /* a receiver on the object's own node */
    fetch_pattern(owner, &ref, BYTES, 1, NULL);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    must_be(RDT_FREED, rdt_hand_on(reader, &ref, SEC, &err));
    end(NULL);
}

/* The owner's node takes the hold when the receiver has gone. */
Test(holds_nodes, ref_outlives_a_take_over_that_is_given_up)
{
    rdt_request *hold;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    must_ok(rdt_hand_on(owner, &ref, 60 * SEC, &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    node_freeze(&c.node[0]);
    must_ok(rdt_take_over_start(reader, &ref, 50 * MSEC, &hold, &err));
    must_be(RDT_TIMED_OUT, rdt_wait(reader, &hold, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(hold);
    node_thaw(&c.node[0]);
    hold = take_over(reader, &ref);
    fetch_pattern(reader, &ref, BYTES, 1, NULL);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    end(NULL);
}

static bool is_node(void *arg, const struct rdt_holder *holder)
{
    *(bool *)arg |= strcmp(holder->kind, "node") == 0;
    return true;
}

static bool node_holds(const struct rdt_ref *ref)
{
    bool holds = false;

    must_ok(rdt_holders(owner, ref, NULL, is_node, &holds, &err));
    return holds;
}

/* The receiver's node has the answer, and the receiver ends without having read it. */
Test(holds_nodes, ref_outlives_a_take_over_whose_answer_nobody_reads)
{
    rdt_request *hold;

    begin(2);
    rdt *other = node_client(&c.node[1], "other");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    must_ok(rdt_hand_on(owner, &ref, 60 * SEC, &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_take_over_start(reader, &ref, LONG, &hold, &err));
    wait_until(LONG, node_holds(&ref));
    (void)stat_of(other, &ref); /* its answer comes to that node behind that of the hold */
    rdt_request_destroy(hold);
    wait_until(LONG, !node_holds(&ref));
    hold = take_over(reader, &ref);
    fetch_pattern(reader, &ref, BYTES, 1, NULL);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    rdt_close(other);
    end(NULL);
}

/* The receiver's daemon is killed when the owner's node has taken the hold, and before it could read that. */
Test(holds_nodes, ref_outlives_a_node_that_never_read_the_answer)
{
    rdt_request *hold;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    fetch_pattern(reader, &ref, BYTES, 1, NULL); /* the link is up */
    must_ok(rdt_hand_on(owner, &ref, HOUR, &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    node_freeze(&c.node[0]);
    must_ok(rdt_take_over_start(reader, &ref, LONG, &hold, &err));
    for (unsigned i = 0; i < 3; i++)
        must_ok(rdt_ping(reader, LONG, &err)); /* meanwhile its daemon sends the request */
    node_freeze(&c.node[1]);
    node_thaw(&c.node[0]);
    wait_until(LONG, node_holds(&ref));
    node_kill(&c.node[1], SIGKILL);
    rdt_request_destroy(hold);
    rdt_close(reader);
    cluster_restart(&c, 1);
    reader = node_client(&c.node[1], "reader");
    hold = take_over(reader, &ref);
    wait_until(LONG, holds_at_owner(&ref) == 1);
    fetch_pattern(reader, &ref, BYTES, 1, NULL);
    /* This answer was read. So the ref is not on its way any more, and the object ends with the node that holds it. */
    node_kill(&c.node[1], SIGKILL);
    rdt_request_destroy(hold);
    rdt_close(reader);
    cluster_restart(&c, 1);
    reader = node_client(&c.node[1], "reader");
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    end(lost);
}

Test(holds_nodes, hold_in_transit_of_a_reader_ends_by_itself)
{
    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    rdt_request *hold = hold_of(reader, &ref);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_hand_on(reader, &ref, 300 * MSEC, &err));
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    end(NULL);
}

/* A hold in transit belongs to no node, so the loss of the link neither ends nor prolongs it. Without the owner's node
 * there is none. */
Test(holds_nodes, ref_cannot_be_handed_on_when_its_node_is_gone)
{
    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    rdt_request *hold = hold_of(reader, &ref);
    node_kill(&c.node[0], SIGKILL);
    rdt_close(owner);
    wait_until(20 * SEC, rdt_hand_on(reader, &ref, SEC, NULL) == RDT_PEER_LOST);
    rdt_request_destroy(hold);
    cluster_restart(&c, 0);
    owner = node_client(&c.node[0], "owner");
    end(lost);
}

static bool find_node(void *arg, const struct rdt_holder *holder)
{
    bool *found = arg;

    *found =
        *found || (strcmp(holder->kind, "node") == 0 && holder->count == 1 && strcmp(holder->node_uuid, c.node[1].uuid) == 0 &&
                   holder->node[0] && strstr(holder->sentence, holder->node));
    return true;
}

/* The object's node answers in time, so the sentence is its own also where the wait came from another node. */
Test(holds_nodes, wait_freed_names_the_holding_node_on_both_nodes)
{
    bool found = false;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    rdt_request *hold = hold_of(reader, &ref);
    must_ok(rdt_holders(owner, &ref, NULL, find_node, &found, &err));
    must(found);
    found = false;
    must_ok(rdt_holders(reader, &ref, NULL, find_node, &found, &err));
    must(found);
    must_refuse(RDT_TIMED_OUT, "holds it for its clients", rdt_wait_freed(owner, &ref, 200 * MSEC, &err));
    must_refuse(RDT_TIMED_OUT, "holds it for its clients", rdt_wait_freed(reader, &ref, SEC, &err));
    rdt_request_destroy(hold);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    end(NULL);
}

static bool find_up(void *arg, const struct rdt_node_row *row)
{
    bool *found = arg, usable = false;

    for (size_t i = 0; i < row->n_transports; i++)
        usable = usable || (row->transports[i].usable && row->transports[i].name[0] && !row->transports[i].why[0]);
    *found = usable && strcmp(row->state, "up") == 0 && strcmp(row->uuid, c.node[1].uuid) == 0 && row->bytes_out >= BYTES &&
             strcmp(row->version, RDT_VERSION) == 0;
    return true;
}

Test(holds_nodes, nodes_are_listed_with_their_transports)
{
    bool found = false;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    fetch_pattern(reader, &ref, BYTES, 1, NULL);
    must_ok(rdt_each_node(owner, find_up, &found, &err));
    must(found);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(holds_nodes, each_counts_and_stat_shows_the_node)
{
    enum { N = 600 };
    Rdt__Pb__Stat request = RDT__PB__STAT__INIT;
    ProtobufCMessage *reply;
    Rdt__Pb__Ref wire;
    rdt_request *held[N];
    bool shown = false;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    for (unsigned i = 0; i < N; i++)
        must_ok(rdt_hold_start(reader, &ref, LONG, &held[i], &err));
    must_ok(rdt_wait(reader, held, N, N, LONG, NULL, NULL, &err));
    wire_ref_from(&ref, &wire);
    request.ref = &wire;
    must_ok(call(owner, RDT_MSG_STAT, &request.base, LONG, &reply, &err));
    const Rdt__Pb__ObjectInfo *info = (const Rdt__Pb__ObjectInfo *)reply;
    for (size_t i = 0; i < info->n_holders; i++)
        shown = shown || (strcmp(info->holders[i]->kind, "node") == 0 && info->holders[i]->count == N &&
                          strcmp(info->holders[i]->peer, c.node[1].uuid) == 0);
    must(shown);
    protobuf_c_message_free_unpacked(reply, NULL);
    must_ok(rdt_free(owner, &ref, false, &err));
    for (unsigned i = 1; i < N; i++)
        rdt_request_destroy(held[i]);
    must_ok(rdt_ping(reader, LONG, &err)); /* bytes that the socket did not take at once are in flight */
    wait_until(10 * SEC, holds_at_owner(&ref) == 1);
    fetch_pattern(reader, &ref, BYTES, 1, NULL);
    rdt_request_destroy(held[0]);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    end(NULL);
}

/* The owner's answer and the word that nobody waits for it cross. */
Test(holds_nodes, given_up_before_the_answer_leaves_nothing)
{
    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    for (unsigned i = 0; i < 300; i++) {
        rdt_request *hold;
        must_ok(rdt_hold_start(reader, &ref, LONG, &hold, &err));
        if (i % 3 == 0)
            (void)rdt_wait(reader, &hold, 1, 1, (int64_t)(i % 10) * 20000, NULL, NULL, NULL);
        rdt_request_destroy(hold);
    }
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    end(NULL);
}

Test(holds_nodes, id_is_waited_for)
{
    struct rdt_ref named, put, held;
    rdt_request *hold, *given_up;

    begin(2);
    named = ref_on(&c.node[0], "w");
    must_be(RDT_TIMED_OUT, rdt_hold(reader, &named, 50 * MSEC, &hold, &err));
    must_ok(rdt_hold_start(reader, &named, LONG, &hold, &err));
    must_ok(rdt_hold_start(reader, &named, LONG, &given_up, &err));
    wait_until(10 * SEC, rdt_stat(owner, &named, &(struct rdt_stat){0}, NULL) == RDT_OK); /* awaited there */
    rdt_request_destroy(given_up);
    put = put_pattern(owner, "w", BYTES, 1);
    must_ok(rdt_wait(reader, &hold, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_hold_ref(hold, &held, &err));
    must(rdt_ref_equal(&held, &put));
    must_ok(rdt_free(owner, &put, false, &err));
    fetch_pattern(reader, &held, BYTES, 1, NULL);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(owner, &put, LONG, &err));
    end(NULL);
}

Test(holds_nodes, free_by_force_ends_them)
{
    rdt_object *object;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    rdt_request *hold = hold_of(reader, &ref);
    must_ok(rdt_free(owner, &ref, true, &err));
    must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err)); /* the holder has said nothing */
    rdt_request_destroy(hold);
    end(NULL);
}

/* ---- ends of processes ---- */

static int hold_and_put(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "actor");
    struct rdt_ref ref;

    actor_recv(self, &ref, sizeof ref);
    if (ref.id_bytes > 0)
        (void)hold_of(client, &ref);
    else
        ref = put_pattern(client, NULL, BYTES, 7);
    actor_send(self, &ref, sizeof ref);
    actor_await(self); /* never comes */
    return 0;
}

Test(holds_nodes, killed_holder_lets_go)
{
    struct actor holder;

    begin(2);
    actor_start(&holder, hold_and_put, &c.node[1]);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    actor_send(&holder, &ref, sizeof ref);
    actor_recv(&holder, &ref, sizeof ref);
    must_ok(rdt_free(owner, &ref, false, &err));
    fetch_pattern(reader, &ref, BYTES, 1, NULL);
    actor_kill(&holder, SIGKILL);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    end(NULL);
}

Test(holds_nodes, killed_producers_object_stays_while_it_is_held)
{
    struct actor producer;
    struct rdt_ref ref = {0};
    rdt_object *object;

    begin(2);
    actor_start(&producer, hold_and_put, &c.node[0]);
    actor_send(&producer, &ref, sizeof ref);
    actor_recv(&producer, &ref, sizeof ref);
    rdt_request *hold = hold_of(reader, &ref);
    actor_kill(&producer, SIGKILL);
    wait_until(10 * SEC, holds_at_owner(&ref) == 1);
    fetch_pattern(reader, &ref, BYTES, 7, NULL);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    must_be(RDT_OWNER_DIED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    end(NULL);
}

/* ---- cuts ---- */

static void begin_cutting(const char *grace)
{
    const char *flags[] = {"--peer-timeout=2s", "--backoff-max=300ms", "--connect-timeout=2s", grace, NULL};

    begin_with(2, &(struct cluster_options){.flags = flags});
}

/* Both have heard nothing of each other for too long. */
static void cut(void)
{
    struct peer_view view;

    net_cut(&c.net, 0);
    for (unsigned i = 0; i < 2; i++)
        wait_until(10 * SEC, !peer_seen(&c.node[i], &c.node[1 - i], &view) || strcmp(view.state, "up") != 0);
}

static void mend(void)
{
    net_restore(&c.net, 0);
    cluster_meet(&c);
}

Test(holds_nodes, short_cut_is_survived)
{
    if (!cables_can_be())
        cr_skip_test("cutting a cable needs root and ip");
    begin_cutting("--hold-grace=1h");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    rdt_request *hold = hold_of(reader, &ref);
    must_ok(rdt_free(owner, &ref, false, &err));
    cut();
    cr_assert_eq(holds_at_owner(&ref), 1);
    mend();
    fetch_pattern(reader, &ref, BYTES, 1, NULL);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    end(lost);
}

Test(holds_nodes, what_was_let_go_of_during_a_cut_goes_when_it_is_over)
{
    rdt_request *holds[2];

    if (!cables_can_be())
        cr_skip_test("cutting a cable needs root and ip");
    begin_cutting("--hold-grace=1h");
    struct rdt_ref kept = put_pattern(owner, NULL, BYTES, 1);
    struct rdt_ref dropped = put_pattern(owner, NULL, BYTES, 2);
    holds[0] = hold_of(reader, &kept);
    holds[1] = hold_of(reader, &dropped);
    must_ok(rdt_free(owner, &kept, false, &err));
    must_ok(rdt_free(owner, &dropped, false, &err));
    cut();
    rdt_request_destroy(holds[1]);
    must_ok(rdt_ping(reader, LONG, &err));
    mend();
    must_ok(rdt_wait_freed(owner, &dropped, LONG, &err));
    fetch_pattern(reader, &kept, BYTES, 1, NULL);
    rdt_request_destroy(holds[0]);
    must_ok(rdt_wait_freed(owner, &kept, LONG, &err));
    end(lost);
}

Test(holds_nodes, long_cut_ends_them_and_the_holder_hears)
{
    rdt_object *object;

    if (!cables_can_be())
        cr_skip_test("cutting a cable needs root and ip");
    begin_cutting("--hold-grace=200ms");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    rdt_request *hold = hold_of(reader, &ref);
    must_ok(rdt_free(owner, &ref, false, &err));
    net_cut(&c.net, 0);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    mend();
    must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    rdt_request_destroy(hold);
    end(lost);
}

/* ---- ends of nodes ---- */

Test(holds_nodes, restarted_holder_has_none)
{
    const char *flags[] = {"--hold-grace=1h", NULL};

    begin_with(2, &(struct cluster_options){.flags = flags});
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    (void)hold_of(reader, &ref);
    must_ok(rdt_free(owner, &ref, false, &err));
    node_kill(&c.node[1], SIGKILL);
    rdt_close(reader);
    cr_assert_eq(holds_at_owner(&ref), 1);
    cluster_restart(&c, 1);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    reader = node_client(&c.node[1], "reader");
    end(lost);
}

Test(holds_nodes, holder_that_never_comes_back_is_given_up)
{
    const char *flags[] = {"--hold-grace=100ms", NULL};

    begin_with(2, &(struct cluster_options){.flags = flags});
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    (void)hold_of(reader, &ref);
    must_ok(rdt_free(owner, &ref, false, &err));
    node_kill(&c.node[1], SIGKILL);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    wait_until(10 * SEC, node_log_has(&c.node[0], "longer than hold_grace"));
    rdt_close(reader);
    cluster_restart(&c, 1);
    reader = node_client(&c.node[1], "reader");
    end(lost);
}

Test(holds_nodes, restarted_owner_has_nothing_and_the_holder_lets_go_in_peace)
{
    rdt_object *object;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    rdt_request *hold = hold_of(reader, &ref);
    rdt_close(owner);
    node_kill(&c.node[0], SIGKILL);
    cluster_restart(&c, 0);
    cluster_meet(&c);
    owner = node_client(&c.node[0], "owner");
    must_be(RDT_NOT_FOUND, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    struct rdt_ref again = put_pattern(owner, NULL, BYTES, 2);
    rdt_request *other = hold_of(reader, &again);
    must_ok(rdt_free(owner, &again, false, &err));
    rdt_request_destroy(hold); /* the number is of the node that has ended, and affects nothing of this one */
    fetch_pattern(reader, &again, BYTES, 2, NULL);
    rdt_request_destroy(other);
    must_ok(rdt_wait_freed(owner, &again, LONG, &err));
    end(lost);
}

Test(holds_nodes, node_that_stops_holds_nothing_up)
{
    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    (void)hold_of(reader, &ref);
    must_ok(rdt_free(owner, &ref, false, &err));
    rdt_close(owner);
    node_stop(&c.node[0]); /* though it is held */
    cluster_restart(&c, 0);
    owner = node_client(&c.node[0], "owner");
    end(lost);
}

/* ---- who may, how many ---- */

static int hold_as_stranger(struct actor *self, void *arg)
{
    const struct rdt_ref *refs = arg; /* visible to its owner; to all */

    must(setgroups(0, NULL) == 0 && setresgid(1001, 1001, 1001) == 0 && setresuid(1001, 1001, 1001) == 0);
    rdt *client = node_client(&c.node[1], "stranger");
    must_refuse(RDT_DENIED, "uid 1001", rdt_hold(client, &refs[0], LONG, &(rdt_request *){NULL}, &err));
    rdt_request_destroy(hold_of(client, &refs[1]));
    rdt_close(client);
    return 0;
}

Test(holds_nodes, requesters_user_must_be_one_who_may_fetch)
{
    char path[200];
    struct rdt_ref refs[2];
    uint8_t *data = malloc(BYTES);
    struct actor stranger;

    need_root();
    (void)snprintf(path, sizeof path, "%.150s/..", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp/t");
    (void)chmod(path, 0755);
    begin(2);
    refs[0] = put_shown(owner, &VECTOR(RDT_U8, BYTES, data), NULL, RDT_VISIBLE_TO_OWNER);
    refs[1] = put_shown(owner, &VECTOR(RDT_U8, BYTES, data), NULL, RDT_VISIBLE_TO_ALL);
    free(data);
    actor_start(&stranger, hold_as_stranger, refs);
    actor_wait(&stranger);
    must_ok(rdt_free(owner, &refs[0], false, &err));
    must_ok(rdt_free(owner, &refs[1], false, &err));
    must_ok(rdt_wait_freed(owner, &refs[1], LONG, &err));
    end(NULL);
}

Test(holds_nodes, both_nodes_limit_them)
{
    const char *owners[] = {"--owner-max-holds=2", NULL}, *readers[] = {"--client-max-holds=3", NULL};
    rdt_request *held[3], *more;

    begin_with(2, &(struct cluster_options){.flags_of = {owners, readers}});
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    struct rdt_ref mine = put_pattern(reader, NULL, BYTES, 1);
    held[0] = hold_of(reader, &ref);
    held[1] = hold_of(reader, &ref);
    must_refuse(RDT_LIMIT, "owner_max_holds", rdt_hold(reader, &ref, LONG, &more, &err));
    held[2] = hold_of(reader, &mine);
    must_refuse(RDT_LIMIT, "client_max_holds", rdt_hold(reader, &mine, LONG, &more, &err));
    rdt_request_destroy(held[0]);
    wait_until(10 * SEC, holds_at_owner(&ref) == 2);
    held[0] = hold_of(reader, &ref);
    rdt_request_destroy(held[0]);
    rdt_request_destroy(held[2]);
    must_ok(rdt_free(owner, &ref, false, &err));
    rdt_request_destroy(held[1]);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    must_ok(rdt_free(reader, &mine, false, &err));
    end(NULL);
}

/* This node's own limit is found when the other's answer is there: what that took is given back. */
Test(holds_nodes, refused_here_is_let_go_of_there)
{
    const char *readers[] = {"--client-max-holds=1", NULL};
    rdt_request *hold, *more;

    begin_with(2, &(struct cluster_options){.flags_of = {NULL, readers}});
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    hold = hold_of(reader, &ref);
    must_refuse(RDT_LIMIT, "client_max_holds", rdt_hold(reader, &ref, LONG, &more, &err));
    wait_until(10 * SEC, holds_at_owner(&ref) == 2);
    must_ok(rdt_free(owner, &ref, false, &err));
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
    end(NULL);
}
