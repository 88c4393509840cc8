/* SPDX-License-Identifier: Apache-2.0 */
/* LOOKUP and LEASE_END with other nodes: a node of the table that has the key and answers nonsense, and clients that send what
 * librdt does not. The client learns which node it was, whatever is here is found, and nothing that was charged stays. */
#include "tests/integration/hostile/peer_fixture.h"

TestSuite(hostile_lookup, .timeout = 120);

#define PATIENT (50 * SEC) /* LONG may be above the minute that is possible */

static const char *const also[] = {"is lost",        "rogue_peer", "is down", "protocol", "connection reset by peer",
                                   "cannot connect", NULL};
static struct raw raw;

static void begin_listed(void)
{
    char table[100], hex[33];

    for (unsigned i = 0; i < 16; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", rogue_peer_uuid[i]);
    (void)snprintf(table, sizeof table, "rogue 127.0.0.1:1 %s\n", hex);
    begin(&(struct node_options){
        .listen = "127.0.0.1:0", .nodes = table, .flags = (const char *const[]){"--peer-timeout=60s", NULL}});
    open_rogue_peer();
    greeted(&raw);
}

static void end_listed(void)
{
    wait_until(LONG, raw_used(&raw, "waiters") == 0);
    others_are_well();
    raw_close(&raw);
    rogue_peer_close(&rogue_peer);
    rdt_close(bystander);
    node_end(&node, also);
}

/* LOOKUP of "theirs", which is here, and of n - 1 other ids. */
static uint64_t look(uint32_t n, bool prefix, int64_t nodes_ns)
{
    static uint8_t ids[16 * 5000];
    static uint32_t id_bytes[5000];
    size_t bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        id_bytes[i] = (uint32_t)snprintf((char *)ids + bytes, 16, i == 0 ? "theirs" : "x%u", i);
        bytes += id_bytes[i];
    }
    Rdt__Pb__Lookup lookup = MESSAGE(lookup, .ids = {bytes, ids}, .id_bytes = id_bytes, .n_id_bytes = n, .prefix = prefix,
                                     .lease_ns = SEC / 10, .nodes_ns = nodes_ns);
    return raw_send(&raw, RDT_MSG_LOOKUP, &lookup.base, NULL, 0);
}

static Rdt__Pb__LookupReply *found(void)
{
    return (Rdt__Pb__LookupReply *)raw_reply(&raw, raw.last_id, &rdt__pb__lookup_reply__descriptor);
}

/* The n-th call of the daemon, which is of that type. */
static Rdt__Pb__Call *told(unsigned n, uint16_t type)
{
    must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, n));
    Rdt__Pb__Call *call =
        rdt__pb__call__unpack(NULL, rogue_peer.came[RDT_PEER_CALL].bytes, rogue_peer.came[RDT_PEER_CALL].payload);
    must_say(call && call->type == type, "type %u", call ? call->type : 0);
    return call;
}

static void reply_with(unsigned n, enum rdt_status status, const char *text, const ProtobufCMessage *answer)
{
    Rdt__Pb__Call *call = told(n, RDT_MSG_LOOKUP);
    static uint8_t packed[4096];
    Rdt__Pb__CallReply reply = MESSAGE(call_reply, .call = call->call, .status = status, .message = (char *)text);

    if (answer)
        reply.reply = (ProtobufCBinaryData){protobuf_c_message_pack(answer, packed), packed};
    else if (status == RDT_OK)
        reply.reply = (ProtobufCBinaryData){3, (uint8_t *)"\xff\xff\xff"};
    rogue_peer_send(&rogue_peer, RDT_PEER_CALL_REPLY, &reply.base);
    rogue_peer_send(&rogue_peer, RDT_PEER_CALL_REPLY, &reply.base); /* once more: nobody waits */
    rdt__pb__call__free_unpacked(call, NULL);
}

static void is_unasked(enum rdt_status status, const char *says)
{
    Rdt__Pb__LookupReply *reply = found();

    must(reply->n_generation == 3 && reply->generation[0] == theirs.generation && !reply->generation[1] &&
         !reply->generation[2]);
    must(reply->n_at == 0 && reply->n_nodes == 0 && reply->n_unasked == 1);
    must_say(strcmp(reply->unasked[0]->name, "rogue") == 0 && reply->unasked[0]->status == status &&
                 strstr(reply->unasked[0]->why, says),
             "%s %d: %s", reply->unasked[0]->name, reply->unasked[0]->status, reply->unasked[0]->why);
    rdt__pb__lookup_reply__free_unpacked(reply, NULL);
}

Test(hostile_lookup, node_that_answers_nonsense_is_named)
{
    uint64_t generation[3] = {7, 8, 9};
    Rdt__Pb__LookupReply lie = MESSAGE(lookup_reply, .generation = generation, .n_generation = 3);
    unsigned n = 0;

    begin_listed();
    (void)look(3, false, PATIENT);
    reply_with(++n, RDT_OK, "", &lie.base);
    is_unasked(RDT_PROTOCOL, "answered for 3 of 2 ids");
    (void)look(3, false, PATIENT);
    lie.n_generation = 0;
    reply_with(++n, RDT_OK, "", &lie.base);
    is_unasked(RDT_PROTOCOL, "answered for 0 of 2 ids");
    (void)look(3, false, PATIENT);
    reply_with(++n, RDT_OK, "", NULL);
    is_unasked(RDT_PROTOCOL, "its answer");
    (void)look(3, false, PATIENT);
    reply_with(++n, RDT_DENIED, "another node may not send request 87", NULL);
    is_unasked(RDT_UNSUPPORTED, "older version");
    (void)look(3, false, PATIENT);
    reply_with(++n, RDT_AGAIN, "so there", NULL);
    is_unasked(RDT_PROTOCOL, "");
    (void)look(3, false, SEC / 10); /* and one that says nothing */
    is_unasked(RDT_TIMED_OUT, "node rogue has not answered");
    rogue_peer_flush(&rogue_peer);
    cr_assert_geq(rogue_peer.sock, 0);
    end_listed();
}

/* What it says of nodes does not count, and it is told which of its leases are not wanted. */
Test(hostile_lookup, leases_behind_the_prefix_end)
{
    uint64_t generation[4] = {7, 0, 8, 9};
    uint32_t at[4] = {1, 1, 1, 1};
    Rdt__Pb__LookupNode other = MESSAGE(lookup_node, .node = {3, (uint8_t *)"abc"}, .address = (char *)"elsewhere:1");
    Rdt__Pb__LookupNode *nodes = &other;
    Rdt__Pb__LookupReply lie =
        MESSAGE(lookup_reply, .generation = generation, .n_generation = 4, .at = at, .n_at = 4, .nodes = &nodes, .n_nodes = 1);

    begin_listed();
    (void)look(5, true, PATIENT);
    reply_with(1, RDT_OK, "", &lie.base);
    Rdt__Pb__LookupReply *reply = found();
    must(reply->n_generation == 2 && reply->generation[0] == theirs.generation && reply->generation[1] == 7);
    must(reply->n_at == 2 && reply->at[0] == 0 && reply->at[1] == 1 && reply->n_nodes == 1 && reply->n_unasked == 0);
    must(reply->nodes[0]->node.len == 16 && memcmp(reply->nodes[0]->node.data, rogue_peer_uuid, 16) == 0);
    must(strcmp(reply->nodes[0]->address, "127.0.0.1:1") == 0);
    rdt__pb__lookup_reply__free_unpacked(reply, NULL);
    Rdt__Pb__Call *call = told(2, RDT_MSG_LEASE_END);
    Rdt__Pb__LeaseEnd *ends = rdt__pb__lease_end__unpack(NULL, call->request.len, call->request.data);
    must(ends && ends->n_generation == 2 && ends->generation[0] == 8 && ends->generation[1] == 9 && ends->n_at == 0);
    rdt__pb__lease_end__free_unpacked(ends, NULL);
    rdt__pb__call__free_unpacked(call, NULL);
    end_listed();
}

/* A node may ask for itself only. */
Test(hostile_lookup, nodes_have_no_others_asked)
{
    uint32_t one = 1;
    uint64_t generation = 1;
    Rdt__Pb__Lookup lookup =
        MESSAGE(lookup, .ids = {1, (uint8_t *)"x"}, .id_bytes = &one, .n_id_bytes = 1, .nodes_ns = PATIENT);
    ProtobufCBinaryData uuid = {16, (uint8_t *)(uintptr_t)rogue_peer_uuid};
    Rdt__Pb__LeaseEnd ends =
        MESSAGE(lease_end, .generation = &generation, .n_generation = 1, .at = &one, .n_at = 1, .nodes = &uuid, .n_nodes = 1);
    const ProtobufCMessage *const requests[] = {&lookup.base, &ends.base};
    static uint8_t packed[256];

    begin_listed();
    for (unsigned i = 0; i < 2; i++) {
        Rdt__Pb__Requester requester = MESSAGE(requester, .uid = geteuid(), .tenant = (char *)"");
        Rdt__Pb__Call call =
            MESSAGE(call, .call = 5 + i, .type = i == 0 ? RDT_MSG_LOOKUP : RDT_MSG_LEASE_END, .requester = &requester);
        call.request = (ProtobufCBinaryData){protobuf_c_message_pack(requests[i], packed), packed};
        rogue_peer_send(&rogue_peer, RDT_PEER_CALL, &call.base);
        must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL_REPLY, i + 1));
        Rdt__Pb__CallReply *reply = rdt__pb__call_reply__unpack(NULL, rogue_peer.came[RDT_PEER_CALL_REPLY].bytes,
                                                                rogue_peer.came[RDT_PEER_CALL_REPLY].payload);
        must_say(reply->status == (i == 0 ? RDT_DENIED : RDT_INVALID), "%d: %s", reply->status, reply->message);
        rdt__pb__call_reply__free_unpacked(reply, NULL);
    }
    must(rogue_peer.came[RDT_PEER_CALL].n == 0);
    end_listed();
}

static void refuses_ends(const uint32_t *at, size_t n_at, size_t uuid_bytes, const char *text)
{
    static uint64_t generations[2] = {1, 2};
    ProtobufCBinaryData uuid = {uuid_bytes, (uint8_t *)(uintptr_t)rogue_peer_uuid};
    Rdt__Pb__LeaseEnd ends = MESSAGE(lease_end, .generation = generations, .n_generation = 2, .at = (uint32_t *)at,
                                     .n_at = n_at, .nodes = &uuid, .n_nodes = 1);

    (void)raw_send(&raw, RDT_MSG_LEASE_END, &ends.base, NULL, 0);
    refuses(&raw, RDT_INVALID, text);
}

Test(hostile_lookup, impossible_requests_of_clients_are_refused)
{
    begin_listed();
    (void)look(2, false, -1);
    refuses(&raw, RDT_INVALID, "0 to 60 s");
    (void)look(2, false, 60 * SEC + 1);
    refuses(&raw, RDT_INVALID, "0 to 60 s");
    (void)look(4097, false, SEC);
    refuses(&raw, RDT_LIMIT, "4097 ids");
    refuses_ends((const uint32_t[]){1}, 1, 16, "nodes for 1 of 2 leases");
    refuses_ends((const uint32_t[]){0, 2}, 2, 16, "lease 1 is none of the message");
    refuses_ends((const uint32_t[]){1, UINT32_MAX}, 2, 16, "lease 1 is none of the message");
    refuses_ends((const uint32_t[]){0, 1}, 2, 15, "lease 1 is none of the message");
    must(rogue_peer.came[RDT_PEER_CALL].n == 0);
    end_listed();
}

/* Its client ends while it says nothing: nothing waits for it any more. */
Test(hostile_lookup, client_that_ends_leaves_nothing)
{
    struct raw watcher;

    begin_listed();
    greeted(&watcher);
    for (unsigned i = 1; i <= 20; i++) {
        (void)look(4096, i % 2, PATIENT);
        must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, i));
    }
    raw_close(&raw);
    raw = watcher;
    end_listed();
}

/* Ends of leases are charged to nobody. While the other node does not read they are not sent, or the link would end for all. */
Test(hostile_lookup, flood_of_ends_of_leases_does_not_end_the_link)
{
    static uint64_t generations[RDT_MAX_FETCH_REFS];
    static uint32_t at[RDT_MAX_FETCH_REFS];
    ProtobufCBinaryData uuid = {16, (uint8_t *)(uintptr_t)rogue_peer_uuid};
    Rdt__Pb__LeaseEnd ends = MESSAGE(lease_end, .generation = generations, .n_generation = RDT_MAX_FETCH_REFS, .at = at,
                                     .n_at = RDT_MAX_FETCH_REFS, .nodes = &uuid, .n_nodes = 1);

    begin_listed();
    for (unsigned i = 0; i < RDT_MAX_FETCH_REFS; i++) {
        generations[i] = UINT64_MAX - i;
        at[i] = 1;
    }
    for (unsigned i = 0; i < 600; i++) { /* 90 MiB */
        uint64_t number = raw_send(&raw, RDT_MSG_LEASE_END, &ends.base, NULL, 0);
        must(raw_next(&raw) && raw.frame.request_id == number && raw.frame.flags == FRAME_REPLY);
    }
    rogue_peer_flush(&rogue_peer);
    cr_assert_geq(rogue_peer.sock, 0);
    must_say(rogue_peer.came[RDT_PEER_CALL].n < 100, "%u messages waited", rogue_peer.came[RDT_PEER_CALL].n);
    end_listed();
}
