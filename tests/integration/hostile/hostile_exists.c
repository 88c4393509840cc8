/* SPDX-License-Identifier: Apache-2.0 */
/* EXISTS with refs of other nodes: what those nodes are asked, and what waits for their answers. The other node is one that
 * has the key and answers when the test says so. */
#include <signal.h>

#include "client/rdt_many.h"
#include "tests/integration/hostile/peer_fixture.h"

TestSuite(hostile_exists, .timeout = 120);

#define MOST RDT_MAX_FETCH_REFS

static const char *const none[] = {NULL};
static struct rdt_ref refs[MOST];
static enum rdt_status statuses[MOST];
static struct raw watcher;

static void begin_exists(void)
{
    begin_with_insider(none);
    greeted(&watcher);
}

static void end_exists(void)
{
    wait_until(LONG, raw_used(&watcher, "waiters") == 0 && raw_used(&watcher, "transfers") == 0);
    raw_close(&watcher);
    end_with_insider();
}

static struct rdt_ref ref_to(const uint8_t uuid[16], const char *address)
{
    struct rdt_ref ref = {0};

    must_ok(rdt_ref_from_id("x", 1, &ref, &err));
    memcpy(ref.node, uuid, sizeof ref.node);
    (void)snprintf(ref.address, sizeof ref.address, "%s", address);
    return ref;
}

static void ask(struct raw *raw, size_t n)
{
    Rdt__Pb__Exists request = MESSAGE(exists, .refs = NULL);
    struct arena arena;

    arena_init(&arena, SIZE_MAX / 2);
    must_ok(ref_list_make(&arena, refs, NULL, n, &request.refs, &err));
    (void)raw_send(raw, RDT_MSG_EXISTS, &request.base, NULL, 0);
    arena_fini(&arena);
}

/* The latest call of the daemon, which is an EXISTS; its number is *number_p. */
static Rdt__Pb__Exists *question(unsigned n, uint64_t *number_p)
{
    must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, n));
    Rdt__Pb__Call *call =
        rdt__pb__call__unpack(NULL, rogue_peer.came[RDT_PEER_CALL].bytes, rogue_peer.came[RDT_PEER_CALL].payload);
    must_say(call->type == RDT_MSG_EXISTS, "type %u", call->type);
    Rdt__Pb__Exists *exists = rdt__pb__exists__unpack(NULL, call->request.len, call->request.data);
    *number_p = call->call;
    rdt__pb__call__free_unpacked(call, NULL);
    must(exists && exists->refs);
    return exists;
}

static void answer(uint64_t number, int32_t *status, size_t n)
{
    Rdt__Pb__ExistsReply reply = MESSAGE(exists_reply, .status = status, .n_status = n);
    uint8_t *packed = malloc(rdt__pb__exists_reply__get_packed_size(&reply) + 1);
    Rdt__Pb__CallReply message =
        MESSAGE(call_reply, .call = number, .reply = {rdt__pb__exists_reply__pack(&reply, packed), packed});

    rogue_peer_send(&rogue_peer, RDT_PEER_CALL_REPLY, &message.base);
    free(packed);
}

/* Its node counts, whatever addresses a client gives it, and it sees nothing of the refs of others. */
Test(hostile_exists, one_node_at_many_addresses_is_asked_in_a_few_messages)
{
    static const uint8_t elsewhere[16] = {1, 2, 3};
    static int32_t status[MOST];
    unsigned n_asked = 0, n_messages = 0;
    struct raw raw;
    char address[64];

    begin_exists();
    greeted(&raw);
    for (unsigned i = 0; i < MOST; i++) {
        (void)snprintf(address, sizeof address, "rogue-%u:1", i);
        refs[i] = i % 100 == 7 ? ref_to(elsewhere, "") : ref_to(rogue_peer_uuid, address);
        refs[i].any_owner = 0;
        (void)snprintf(refs[i].tenant, sizeof refs[i].tenant, i % 100 == 7 ? "secret" : "tenant");
        status[i] = RDT_FREED;
    }
    ask(&raw, MOST);
    while (n_asked < MOST - MOST / 100 - 1) {
        uint64_t number;
        Rdt__Pb__Exists *exists = question(++n_messages, &number);
        size_t n = exists->refs->n_id_bytes;
        must_say(rogue_peer.came[RDT_PEER_CALL].n == n_messages, "%u questions at a time", rogue_peer.came[RDT_PEER_CALL].n);
        must_say(n > 1000, "%zu refs", n);
        must(!memmem(rogue_peer.came[RDT_PEER_CALL].payload, rogue_peer.came[RDT_PEER_CALL].bytes, "secret", 6));
        must(!memmem(rogue_peer.came[RDT_PEER_CALL].payload, rogue_peer.came[RDT_PEER_CALL].bytes, "rogue-", 6));
        rdt__pb__exists__free_unpacked(exists, NULL);
        answer(number, status, n);
        n_asked += (unsigned)n;
    }
    Rdt__Pb__ExistsReply *reply = (Rdt__Pb__ExistsReply *)raw_reply(&raw, raw.last_id, &rdt__pb__exists_reply__descriptor);
    must(reply->n_status == MOST);
    for (unsigned i = 0; i < MOST; i++)
        must_say(reply->status[i] == (i % 100 == 7 ? RDT_PEER_LOST : RDT_FREED), "%u: %d", i, reply->status[i]);
    must_say(strstr(reply->why, "is unknown"), "%s", reply->why);
    rdt__pb__exists_reply__free_unpacked(reply, NULL);
    raw_close(&raw);
    end_exists();
}

/* Refs that go round more nodes than any table has. */
Test(hostile_exists, each_of_many_nodes_is_asked_once)
{
    int32_t status[MOST / 200 + 1] = {0};
    uint64_t number;
    struct raw raw;

    begin_exists();
    greeted(&raw);
    for (unsigned i = 0; i < MOST; i++) {
        const uint8_t node_uuid[16] = {9, (uint8_t)(i % 200)};
        refs[i] = i % 200 == 0 ? ref_to(rogue_peer_uuid, "") : ref_to(node_uuid, "");
    }
    ask(&raw, MOST);
    Rdt__Pb__Exists *exists = question(1, &number);
    must_say(exists->refs->n_id_bytes == MOST / 200 + 1, "%zu refs", exists->refs->n_id_bytes);
    rdt__pb__exists__free_unpacked(exists, NULL);
    answer(number, status, MOST / 200 + 1);
    Rdt__Pb__ExistsReply *reply = (Rdt__Pb__ExistsReply *)raw_reply(&raw, raw.last_id, &rdt__pb__exists_reply__descriptor);
    for (unsigned i = 0; i < MOST; i++)
        must(reply->status[i] == (i % 200 == 0 ? RDT_OK : RDT_PEER_LOST));
    rdt__pb__exists_reply__free_unpacked(reply, NULL);
    raw_close(&raw);
    end_exists();
}

/* Many questions are as much as a link's queue may have: they are sent as the node answers. */
Test(hostile_exists, questions_leave_room_on_the_link)
{
    enum { ASKS = 60, REFS = 1500 };
    static int32_t status[REFS];
    Rdt__Pb__Stat stat = MESSAGE(stat, .ref = NULL);
    struct rdt_ref ref = ref_to(rogue_peer_uuid, "");
    Rdt__Pb__Ref wire;
    struct raw raw, other;
    uint64_t number;

    begin_exists();
    greeted(&raw);
    greeted(&other);
    for (unsigned i = 0; i < REFS; i++) {
        char id[101];
        (void)snprintf(id, sizeof id, "%0100u", i);
        must_ok(rdt_ref_from_id(id, 100, &refs[i], &err));
        memcpy(refs[i].node, rogue_peer_uuid, sizeof refs[i].node);
    }
    ask(&raw, REFS);
    rdt__pb__exists__free_unpacked(question(1, &number), NULL);
    for (unsigned i = 1; i < ASKS; i++)
        ask(&raw, REFS);
    wait_until(LONG, raw_used(&watcher, "waiters") == 2 * ASKS);
    wire_ref_from(&ref, &wire);
    stat.ref = &wire;
    (void)raw_send(&other, RDT_MSG_STAT, &stat.base, NULL, 0);
    do {
        must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, rogue_peer.came[RDT_PEER_CALL].n + 1));
    } while (rogue_peer.came[RDT_PEER_CALL].bytes > 10000);
    must_say(rogue_peer.came[RDT_PEER_CALL].n < 35, "%u messages of 150 KB wait", rogue_peer.came[RDT_PEER_CALL].n);
    for (unsigned i = 0; i < ASKS; i++) {
        must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, i + 1));
        answer(number + i, status, REFS);
    }
    for (unsigned i = 0; i < ASKS; i++) {
        must(raw_next(&raw));
        must(raw.frame.type == RDT_MSG_EXISTS && raw.frame.flags == FRAME_REPLY);
    }
    raw_close(&raw);
    raw_close(&other);
    end_exists();
}

static int ask_and_die(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "asker");

    actor_step(self);
    (void)rdt_exists(conn, refs, MOST, statuses, NULL);
    return 0;
}

Test(hostile_exists, asker_that_is_killed_leaves_nothing)
{
    Rdt__Pb__Call *call;
    struct actor asker;
    uint64_t heap, number, waiters;

    begin_exists();
    for (unsigned i = 0; i < MOST; i++)
        refs[i] = ref_to(rogue_peer_uuid, "");
    heap = raw_used(&watcher, "heap");
    waiters = raw_used(&watcher, "waiters");
    actor_start(&asker, ask_and_die, NULL);
    actor_await(&asker);
    rdt__pb__exists__free_unpacked(question(1, &number), NULL);
    must_say(raw_used(&watcher, "waiters") == waiters + 2, "the request and its question");
    must(raw_used(&watcher, "heap") > heap);
    actor_kill(&asker, SIGKILL);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, 2));
    call = rdt__pb__call__unpack(NULL, rogue_peer.came[RDT_PEER_CALL].bytes, rogue_peer.came[RDT_PEER_CALL].payload);
    must(call->type == RDT_MSG_CANCEL_REQUEST && call->call == number);
    rdt__pb__call__free_unpacked(call, NULL);
    wait_until(LONG, raw_used(&watcher, "waiters") == waiters && raw_used(&watcher, "heap") == heap);
    answer(number, (int32_t *)statuses, MOST); /* nobody waits for it */
    rogue_peer_flush(&rogue_peer);
    end_exists();
}

Test(hostile_exists, lists_that_do_not_fit_together_are_refused)
{
    static Rdt__Pb__Ref like = RDT__PB__REF__INIT;
    static Rdt__Pb__Ref *likes[100000];
    static char address[1 << 20];
    uint32_t bytes[] = {1, 1}, index[] = {0, 2};
    Rdt__Pb__RefList list = MESSAGE(ref_list, .ids = {2, (uint8_t *)"ab"}, .id_bytes = bytes, .like = likes);
    Rdt__Pb__Exists request = MESSAGE(exists, .refs = &list);
    struct raw raw;

    begin_greeted(&raw);
    for (unsigned i = 0; i < 100000; i++)
        likes[i] = &like;
    list.n_id_bytes = 2;
    list.n_like = 100000;
    (void)raw_send(&raw, RDT_MSG_EXISTS, &request.base, NULL, 0);
    refuses(&raw, RDT_INVALID, "2 refs have");
    list.n_like = 2;
    list.like_index = index;
    list.n_like_index = 2;
    (void)raw_send(&raw, RDT_MSG_EXISTS, &request.base, NULL, 0);
    refuses(&raw, RDT_INVALID, "ref 1 is like number 2 of 2");
    memset(address, 'a', sizeof address - 1);
    index[1] = 0;
    like.address = address;
    Rdt__Pb__ExistsReply *reply = (Rdt__Pb__ExistsReply *)raw_reply(
        &raw, raw_send(&raw, RDT_MSG_EXISTS, &request.base, NULL, 0), &rdt__pb__exists_reply__descriptor);
    must(reply->n_status == 2 && reply->status[0] == RDT_INVALID && strstr(reply->why, "longer than 64 bytes"));
    rdt__pb__exists_reply__free_unpacked(reply, NULL);
    end_closed(&raw);
}
