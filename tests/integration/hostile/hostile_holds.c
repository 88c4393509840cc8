/* SPDX-License-Identifier: Apache-2.0 */
/* A node that has the key and asks for holds that it should not have: of objects that its users may not see, with numbers
 * in use or unknown, and by the million. Also a node that falls silent. */
#include <signal.h>

#include "client/rdt_info.h"
#include "tests/integration/hostile/peer_fixture.h"
#include "tests/support/keeper.h"
#include "tests/support/netns.h"

TestSuite(hostile_holds, .timeout = 240);

static struct rdt_ref put_for_insider(enum rdt_visibility visibility)
{
    static const char data[4096];

    return put_shown(reader, &VECTOR(RDT_U8, sizeof data, (void *)(uintptr_t)data), NULL, visibility);
}

static void ask(uint64_t number, uint32_t type, const ProtobufCMessage *request, uint32_t uid)
{
    uint8_t packed[1024];
    Rdt__Pb__Requester requester = MESSAGE(requester, .uid = uid);
    Rdt__Pb__Call call = MESSAGE(call, .call = number, .type = type, .requester = &requester,
                                 .request = (ProtobufCBinaryData){protobuf_c_message_pack(request, packed), packed});

    rogue_peer_send(&rogue_peer, RDT_PEER_CALL, &call.base);
}

static void hold_within(uint64_t number, const struct rdt_ref *ref, uint32_t uid, int64_t timeout_ns)
{
    Rdt__Pb__Ref wire;

    wire_ref_from(ref, &wire);
    Rdt__Pb__Hold request = MESSAGE(hold, .ref = &wire, .timeout_ns = timeout_ns);
    ask(number, RDT_MSG_HOLD, &request.base, uid);
}

static void hold(uint64_t number, const struct rdt_ref *ref, uint32_t uid)
{
    hold_within(number, ref, uid, 0);
}

static void answered(unsigned n, enum rdt_status expected, const char *says)
{
    must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL_REPLY, n));
    Rdt__Pb__CallReply *reply = rdt__pb__call_reply__unpack(NULL, rogue_peer.came[RDT_PEER_CALL_REPLY].bytes,
                                                            rogue_peer.came[RDT_PEER_CALL_REPLY].payload);
    must_say(reply->status == expected && strstr(reply->message, says), "%d: %s", reply->status, reply->message);
    rdt__pb__call_reply__free_unpacked(reply, NULL);
}

static uint32_t holds_now(const struct rdt_ref *ref)
{
    struct rdt_stat stat = stat_of(reader, ref);
    return stat.holds;
}

/* When the daemon has read all that was said. */
static uint32_t holds_of(const struct rdt_ref *ref)
{
    rogue_peer_flush(&rogue_peer);
    return holds_now(ref);
}

static void tell(uint64_t *dropped, size_t n_dropped, uint64_t *kept, size_t n_kept, bool first, bool last)
{
    Rdt__Pb__Holds message = MESSAGE(holds, .dropped = dropped, .n_dropped = n_dropped, .current = kept, .n_current = n_kept);
    message.lost = kept; /* no client of this node has those holds */
    message.n_lost = n_kept;
    message.first = first;
    message.last = last;
    rogue_peer_send(&rogue_peer, RDT_PEER_HOLDS, &message.base);
}

Test(hostile_holds, holds_are_of_what_the_requester_may_fetch_and_of_one_number_each)
{
    Rdt__Pb__CancelRequest cancel = RDT__PB__CANCEL_REQUEST__INIT;

    begin_with_insider(NULL);
    struct rdt_ref mine = put_for_insider(RDT_VISIBLE_TO_OWNER);
    struct rdt_ref all = put_for_insider(RDT_VISIBLE_TO_ALL);
    hold(1, &mine, geteuid() + 1);
    answered(1, RDT_DENIED, "is not visible to uid");
    hold(2, &all, geteuid() + 1);
    answered(2, RDT_OK, "");
    hold(2, &all, geteuid() + 1);
    answered(3, RDT_INVALID, "already has hold");
    hold(0, &all, geteuid() + 1); /* a number like any other */
    answered(4, RDT_OK, "");
    cr_assert_eq(holds_of(&all), 3);
    cr_assert_eq(holds_of(&mine), 1);
    ask(2, RDT_MSG_CANCEL_REQUEST, &cancel.base, 0);
    tell((uint64_t[]){1, 2, 2, 77}, 4, NULL, 0, false, false);
    cr_assert_eq(holds_of(&all), 2);
    hold(3, &all, geteuid() + 1);
    answered(5, RDT_OK, "");
    rogue_peer_close(&rogue_peer); /* and comes again */
    rogue_peer_open(&rogue_peer, node.key_path, (uint16_t)atoi(strrchr(node.address, ':') + 1));
    cr_assert_eq(holds_of(&all), 3);
    tell(NULL, 0, (uint64_t[]){3, 77}, 2, true, true);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_HOLDS, 1)); /* 77 is none */
    wait_until(LONG, holds_of(&all) == 2);
    must_ok(rdt_free(reader, &all, true, &err));
    end_with_insider();
}

/* ---- refs in transit ---- */

static void take_over(uint64_t number, const struct rdt_ref *ref)
{
    Rdt__Pb__Ref wire;

    wire_ref_from(ref, &wire);
    Rdt__Pb__Hold request = MESSAGE(hold, .ref = &wire, .takes_over = true);
    ask(number, RDT_MSG_HOLD, &request.base, geteuid());
}

static bool is_node(void *arg, const struct rdt_holder *holder)
{
    *(bool *)arg |= strcmp(holder->kind, "node") == 0;
    return true;
}

static bool node_holds(const struct rdt_ref *ref)
{
    bool holds = false;

    must_ok(rdt_holders(reader, ref, NULL, is_node, &holds, &err));
    return holds;
}

/* An object that only the rogue peer's hold keeps, which has taken the ref over. */
static struct rdt_ref taken_over(uint64_t number)
{
    struct rdt_ref ref = put_for_insider(RDT_VISIBLE_TO_OWNER);

    must_ok(rdt_hand_on(reader, &ref, 3600 * SEC, &err));
    must_ok(rdt_free(reader, &ref, false, &err));
    take_over(number, &ref);
    answered(1, RDT_OK, "");
    cr_assert_eq(holds_of(&ref), 1);
    return ref;
}

static void come_again(void)
{
    rogue_peer_close(&rogue_peer);
    open_rogue_peer();
    tell(NULL, 0, NULL, 0, true, true);
    rogue_peer_flush(&rogue_peer);
}

/* The ref is in transit, and somebody else takes it over. */
static void arrives(const struct rdt_ref *ref)
{
    rdt_request *hold;

    wait_until(LONG, !node_holds(ref));
    cr_assert_eq(holds_now(ref), 1);
    must_ok(rdt_take_over_start(reader, ref, LONG, &hold, &err));
    must_ok(rdt_wait(reader, &hold, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(reader, ref, LONG, &err));
}

/* The link ends together with the answer. */
Test(hostile_holds, ref_is_in_transit_again_if_nobody_has_read_that_it_arrived)
{
    uint64_t number = 2;
    Rdt__Pb__Holds seen = MESSAGE(holds, .seen = &number, .n_seen = 1);

    begin_with_insider(NULL);
    struct rdt_ref ref = taken_over(1);
    come_again();
    arrives(&ref);
    ref = taken_over(2);
    rogue_peer_send(&rogue_peer, RDT_PEER_HOLDS, &seen.base);
    rogue_peer_flush(&rogue_peer);
    come_again(); /* its client has let go meanwhile */
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    ref = taken_over(3);
    tell((uint64_t[]){3}, 1, NULL, 0, false, false);
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    end_with_insider();
}

/* The same with the owner's daemon. before_the_end: happens between the answer and the end of that daemon. */
static void daemon_ends(void (*before_the_end)(void))
{
    static char flag[200], state_dir[160], socket[160], address[65];
    const char *flags[] = {flag, NULL};
    struct test_keeper keeper;

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    free_address(0, "127.0.0.1", address);
    begin(&(struct node_options){.listen = address, .flags = flags});
    open_rogue_peer();
    reader = node_client(&node, "reader");
    struct rdt_ref ref = taken_over(1);
    if (before_the_end)
        before_the_end();
    memcpy(state_dir, node.state_dir, sizeof state_dir);
    memcpy(socket, node.socket, sizeof socket);
    node_kill(&node, SIGKILL);
    rogue_peer_close(&rogue_peer);
    node_start(&node, &(struct node_options){
                          .listen = address, .flags = flags, .state_dir = state_dir, .socket = socket, .awaited = true});
    open_rogue_peer();
    tell(NULL, 0, NULL, 0, true, true);
    rogue_peer_flush(&rogue_peer);
    arrives(&ref);
    rogue_peer_close(&rogue_peer);
    rdt_close(reader);
    rdt_close(bystander);
    node_stop(&node);
    keeper_stop(&keeper, SIGTERM);
}

Test(hostile_holds, ref_is_in_transit_again_if_the_daemon_ends_with_the_answer)
{
    daemon_ends(NULL);
}

/* The receiver has given up, and its node has not let go of the hold yet. */
static void cancel(void)
{
    Rdt__Pb__CancelRequest message = RDT__PB__CANCEL_REQUEST__INIT;

    ask(1, RDT_MSG_CANCEL_REQUEST, &message.base, 0);
    rogue_peer_flush(&rogue_peer);
}

Test(hostile_holds, ref_is_in_transit_once_if_the_daemon_ends_after_a_cancel)
{
    daemon_ends(cancel);
}

/* Requests wait for an id when their node connects again, and are dropped in slices. */
Test(hostile_holds, request_of_an_ended_link_takes_nothing)
{
    enum { N = 15000 };
    static const char data[4096];
    const char *flags[] = {"--owner-max-waiters=20000", NULL};
    struct rogue_peer before;
    struct rdt_ref never, late;

    begin_with_insider(flags);
    struct rdt_ref ref = put_for_insider(RDT_VISIBLE_TO_OWNER); /* so that the next put takes no longer than need be */
    must_ok(rdt_free(reader, &ref, false, &err));
    must_ok(rdt_ref_from_id("never", 5, &never, &err));
    must_ok(rdt_ref_from_id("late", 4, &late, &err));
    for (uint64_t i = 0; i < N; i++)
        hold_within(i, i + 1 < N ? &never : &late, geteuid(), -1);
    wait_until(LONG, rdt_stat(reader, &late, &(struct rdt_stat){0}, NULL) == RDT_OK); /* awaited there */
    before = rogue_peer;
    open_rogue_peer(); /* the daemon closes the other link */
    tell(NULL, 0, NULL, 0, true, true);
    ref = put_one(reader, &VECTOR(RDT_U8, sizeof data, (void *)(uintptr_t)data), "late");
    rogue_peer_flush(&rogue_peer);
    wait_until(LONG, !node_holds(&ref));
    must_ok(rdt_free(reader, &ref, false, &err));
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    rogue_peer_close(&before);
    end_with_insider();
}

Test(hostile_holds, lists_of_holds_that_make_no_sense)
{
    uint64_t many[5000], odd[] = {3, 3, UINT64_MAX, 0};

    begin_with_insider(NULL);
    for (unsigned i = 0; i < 5000; i++)
        many[i] = i + 1000;
    struct rdt_ref all = put_for_insider(RDT_VISIBLE_TO_ALL);
    for (unsigned i = 1; i <= 3; i++) {
        hold(i, &all, geteuid());
        answered(i, RDT_OK, "");
    }
    tell(NULL, 0, NULL, 0, false, true); /* the end of a list that never began */
    cr_assert_eq(holds_of(&all), 4);
    tell(NULL, 0, odd, 4, true, false);
    tell(NULL, 0, many, 2000, false, false);
    hold(4, &all, geteuid()); /* during the list */
    answered(4, RDT_OK, "");
    must(rogue_peer_await(&rogue_peer, RDT_PEER_HOLDS, 2)); /* the answer names the unknown ones */
    tell(NULL, 0, NULL, 0, true, false);                    /* the list begins again */
    tell(NULL, 0, odd, 2, false, true);
    rogue_peer_flush(&rogue_peer);
    wait_until(LONG, holds_of(&all) == 2);
    tell(many, 5000, NULL, 0, false, false);
    shown_out("a message about 5000 holds");
    must_ok(rdt_free(reader, &all, true, &err)); /* though its link is down: nobody waits for hold_grace */
    end_with_insider();
}

Test(hostile_holds, flood_of_one_user_is_bounded)
{
    const char *flags[] = {"--owner-max-holds=1000", NULL};

    begin_with_insider(flags);
    struct rdt_ref all = put_for_insider(RDT_VISIBLE_TO_ALL);
    for (unsigned i = 0; i < 5000; i++) {
        hold(i, &all, geteuid());
        if (i % 500 == 499)
            rogue_peer_listen(&rogue_peer, 0);
    }
    answered(5000, RDT_LIMIT, "owner_max_holds");
    cr_assert_eq(holds_of(&all), 1001);
    must_ok(rdt_free(reader, &all, true, &err));
    must_ok(rdt_wait_freed(reader, &all, LONG, &err));
    must(rogue_peer_await(&rogue_peer, RDT_PEER_HOLDS, 1000)); /* the node is notified of each */
    end_with_insider();
}

static size_t owners_known(void)
{
    Rdt__Pb__ListReply *reply;
    Rdt__Pb__List list = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_OWNERS);

    must_ok(call(reader, RDT_MSG_LIST, &list.base, LONG, (ProtobufCMessage **)(void *)&reply, &err));
    size_t n = reply->n_owners;
    rdt__pb__list_reply__free_unpacked(reply, NULL);
    return n;
}

/* A node vouches for its users, and may name any number of them, each with its own limit. The first hold of a user takes
 * 1.5 KB, for its account and its person's; a node with 1,048,576 holds gets no further ones. */
Test(hostile_holds, flood_of_very_many_users_costs_little_and_is_forgotten)
{
    const char *flags[] = {"--hold-grace=1s", NULL};
    enum { N = 100000 };

    begin_with_insider(flags);
    struct rdt_ref all = put_for_insider(RDT_VISIBLE_TO_ALL);
    size_t rss = rss_of(node.pid);
    for (unsigned i = 0; i < N; i++) {
        hold(i, &all, 100000 + i);
        if (i % 500 == 499)
            rogue_peer_listen(&rogue_peer, 0);
        if (i % 25000 == 24999)
            others_are_well();
    }
    answered(N, RDT_OK, "");
    cr_assert_eq(holds_of(&all), N + 1);
    must_say(rss_of(node.pid) < rss + 224 * MIB * (size_t)patience(1), "%zu MiB more", (rss_of(node.pid) - rss) / MIB);
    others_are_well();
    rogue_peer_close(&rogue_peer);
    wait_until(LONG, holds_now(&all) == 1);
    cr_assert_leq(owners_known(), 2); /* this user, and perhaps the daemon's own */
    must_ok(rdt_free(reader, &all, false, &err));
    must_ok(rdt_wait_freed(reader, &all, LONG, &err));
    others_are_well();
    rdt_close(reader);
    rdt_close(bystander);
    node_end(&node, meant);
}

/* The node stops sending frames and pongs. */
Test(hostile_holds, holder_that_goes_silent_is_given_up)
{
    const char *flags[] = {"--peer-timeout=2s", "--hold-grace=1s", NULL};
    enum { N = 3000 };

    begin_with_insider(flags);
    struct rdt_ref all = put_for_insider(RDT_VISIBLE_TO_ALL);
    for (unsigned i = 0; i < N; i++) {
        hold(i, &all, geteuid() + i % 3);
        if (i % 500 == 499)
            rogue_peer_listen(&rogue_peer, 0);
    }
    answered(N, RDT_OK, "");
    cr_assert_eq(holds_now(&all), N + 1);
    wait_until(LONG, holds_now(&all) == 1);
    must_ok(rdt_free(reader, &all, false, &err));
    must_ok(rdt_wait_freed(reader, &all, LONG, &err));
    end_with_insider();
}

/* ---- a client that takes holds on another node ---- */

/* Takes holds by the thousand, reads no answer, drops every third and goes. */
static int take_and_drop(struct actor *self, void *arg)
{
    enum { N = 6000 };
    const struct rdt_ref *ref = arg;
    Rdt__Pb__Ref wire;
    struct raw raw;

    wire_ref_from(ref, &wire);
    Rdt__Pb__Hold hold = MESSAGE(hold, .ref = &wire);
    greeted(&raw);
    for (unsigned i = 0; i < N; i++) {
        Rdt__Pb__CancelRequest cancel = RDT__PB__CANCEL_REQUEST__INIT;
        uint64_t id = raw_send(&raw, RDT_MSG_HOLD, &hold.base, NULL, 0);

        cancel.request_id = i % 3 == 0 ? id : id + (UINT64_C(1) << 40); /* or of a request that never was */
        if (i % 3 != 2)
            (void)raw_send(&raw, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0);
    }
    return 0;
}

Test(hostile_holds, client_that_takes_them_by_the_thousand_leaves_none_there)
{
    const char *flags[] = {"--client-max-holds=1000", NULL};
    struct test_node other;
    struct actor actors[4];

    node_start(&other, &(struct node_options){.name = "other", .listen = "127.0.0.1:0"});
    reader = node_client(&other, "owner");
    struct rdt_ref shown = put_shown(reader, &VECTOR(RDT_U8, 16, "sixteen bytes .."), "shown", RDT_VISIBLE_TO_ALL);
    begin(&(struct node_options){.listen = "127.0.0.1:0", .flags = flags});
    for (unsigned i = 0; i < 4; i++)
        actor_start(&actors[i], take_and_drop, &shown);
    for (unsigned i = 0; i < 20; i++) {
        others_are_well();
        /* The limit is checked here, when the answer comes: the owner's node has those above it until it is told. */
        wait_until(LONG, holds_now(&shown) <= 4 * 1000 + 1);
    }
    for (unsigned i = 0; i < 4; i++)
        actor_wait(&actors[i]);
    wait_until(LONG, holds_now(&shown) == 1);
    node.fds++; /* the link between them */
    others_are_well();
    rdt_close(bystander);
    node_end(&node, meant);
    must_ok(rdt_free(reader, &shown, false, &err));
    rdt_close(reader);
    other.fds++;
    node_end(&other, meant);
}
