/* SPDX-License-Identifier: Apache-2.0 */
/* A node that has the key and lies about sizes, statuses and what it was asked. The clients that fetch from it get an error
 * that names the node or the thing. The link ends only if it cannot continue, and this node's own clients are not affected. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/rdt_dtype.h"
#include "proto/wire_ref.h"
#include "tests/integration/hostile/peer_fixture.h"
#include "tests/support/cluster.h"
#include "tests/support/fakes/fake_device.h"

TestSuite(hostile_peer, .timeout = 120);

static struct rdt_ref of_insider(const char *id)
{
    struct rdt_ref ref;

    must_ok(rdt_ref_from_id(id, strlen(id), &ref, &err));
    memcpy(ref.node, rogue_peer_uuid, sizeof ref.node);
    return ref;
}

/* A fetch that the rogue_peer has been asked for; *number_p is the daemon's number of it. */
static rdt_request *asked(uint64_t *number_p)
{
    unsigned before = rogue_peer.n_pulls;
    struct rdt_ref ref = of_insider("w");
    rdt_request *request;

    must_ok(rdt_fetch_start(reader, &ref, 1, NULL, &request, &err));
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL, rogue_peer.came[RDT_PEER_PULL].n + (rogue_peer.n_pulls == before)));
    *number_p = rogue_peer.pulls[(rogue_peer.n_pulls - 1) % INSIDER_ASKED];
    return request;
}

static void ends_with(rdt_request *request, enum rdt_status expected, const char *says)
{
    enum rdt_status status;
    struct rdt_error err = {0};

    (void)rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, NULL);
    status = rdt_request_status(request, &err);
    must_say(status == expected && strstr(err.msg, says), "%s: %s", rdt_status_name(status), err.msg);
    rdt_request_destroy(request);
}

/* An honest answer: 16 bytes inline. Tests change it. */
struct answer {
    Rdt__Pb__PullMeta meta;
    Rdt__Pb__TensorList tensors;
    Rdt__Pb__Ref ref;
    uint32_t dtype, ndim;
    uint64_t shape;
    uint8_t bytes[16];
};

static void answer_init(struct answer *answer, uint64_t number)
{
    *answer = (struct answer){.meta = RDT__PB__PULL_META__INIT,
                              .tensors = RDT__PB__TENSOR_LIST__INIT,
                              .ref = RDT__PB__REF__INIT,
                              .dtype = RDT_U8,
                              .ndim = 1,
                              .shape = 16};
    fill_pattern(answer->bytes, 16, 5);
    answer->tensors.dtype = &answer->dtype;
    answer->tensors.ndim = &answer->ndim;
    answer->tensors.shape = &answer->shape;
    answer->tensors.n_dtype = answer->tensors.n_ndim = answer->tensors.n_shape = 1;
    answer->ref.id = (ProtobufCBinaryData){1, (uint8_t *)"w"};
    answer->ref.generation = 7;
    answer->meta.transfer = number;
    answer->meta.ref = &answer->ref;
    answer->meta.tensors = &answer->tensors;
    answer->meta.bytes = 16;
    answer->meta.has_inline = true;
    answer->meta.inline_data = (ProtobufCBinaryData){16, answer->bytes};
    answer->meta.memory = (char *)"host";
    answer->meta.contiguous = true;
}

static void send_answer(struct answer *answer)
{
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL_META, &answer->meta.base);
    rogue_peer_flush(&rogue_peer);
}

static void honest_fetch_works(void)
{
    struct answer answer;
    rdt_object *object;
    uint64_t number;
    rdt_request *request = asked(&number);

    answer_init(&answer, number);
    send_answer(&answer);
    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    cr_assert(holds_pattern(tensor_of(object, 0).data, 16, 5));
    rdt_release(object);
    rdt_request_destroy(request);
}

#define LIES(expected, says, ...)              \
    do {                                       \
        struct answer answer;                  \
        uint64_t number;                       \
        rdt_request *request = asked(&number); \
        answer_init(&answer, number);          \
        __VA_ARGS__;                           \
        send_answer(&answer);                  \
        ends_with(request, expected, says);    \
        cr_assert_geq(rogue_peer.sock, 0);     \
    } while (0)

/* ---- lies ---- */

Test(hostile_peer, sizes_that_do_not_agree_are_refused)
{
    uint64_t huge[] = {UINT64_C(1) << 62, 8};
    uint32_t two = 2;
    uint8_t *megabytes = calloc(1, 9 * MIB);

    begin_with_insider(NULL);
    LIES(RDT_PROTOCOL, "have 16 bytes, but the answer says 17", answer.meta.bytes = 17);
    LIES(RDT_PROTOCOL, "have 16 bytes, but the answer says 18446744073709551615", answer.meta.bytes = UINT64_MAX);
    LIES(RDT_PROTOCOL, "carries 15 bytes of an object of 16", answer.meta.inline_data.len = 15);
    LIES(RDT_PROTOCOL, "carries 0 bytes of an object of 16", answer.meta.inline_data.len = 0);
    LIES(RDT_PROTOCOL, "have 0 bytes, but the answer says 16", answer.meta.tensors = NULL);
    LIES(RDT_INVALID, "tensor 0", answer.dtype = 99);
    LIES(RDT_INVALID, "tensor 0", answer.shape = UINT64_MAX);
    LIES(RDT_INVALID, "tensor 0", answer.ndim = two; answer.tensors.shape = huge; answer.tensors.n_shape = 2);
    LIES(RDT_INVALID, "2 dimensions but 1 sizes", answer.ndim = two);
    LIES(RDT_PROTOCOL, "metadata is too large", answer.meta.metadata = (ProtobufCBinaryData){9 * MIB, megabytes});
    LIES(RDT_INVALID, "ref", answer.meta.ref = NULL);
    LIES(RDT_INVALID, "id", answer.ref.id.len = 0);
    LIES(RDT_NO_PATH, "", answer.meta.has_inline = false; answer.meta.transport = (char *)"nosuch");
    LIES(RDT_NO_PATH, "", answer.meta.has_inline = false; answer.shape = answer.meta.bytes = UINT64_C(1) << 50);
    honest_fetch_works();
    free(megabytes);
    end_with_insider();
}

/* A status that is no failure must not make anybody wait. */
Test(hostile_peer, statuses_that_are_no_failure_are_one)
{
    static const int32_t none[] = {RDT_AGAIN, RDT_DISCONNECTED, RDT_FORKED, RDT_NOT_PUT - 1, -999, INT32_MIN, 1, INT32_MAX};
    Rdt__Pb__PullEnd over = RDT__PB__PULL_END__INIT;

    begin_with_insider(NULL);
    for (unsigned i = 0; i < sizeof none / sizeof *none; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "a failure with status %d, which is not a failure: so there", none[i]);
        LIES(RDT_PROTOCOL, text, answer.meta.status = none[i]; answer.meta.message = (char *)"so there");
        if (i < 4)
            LIES(RDT_PROTOCOL, "which is not a failure", (void)answer; over.transfer = number; over.status = none[i];
                 over.from_owner = true; rogue_peer_send(&rogue_peer, RDT_PEER_PULL_END, &over.base));
    }
    LIES(RDT_FREED, "the object was freed", answer.meta.status = RDT_FREED);
    LIES(RDT_PROTOCOL, "status 0", (void)answer; over.transfer = number; over.status = 0;
         rogue_peer_send(&rogue_peer, RDT_PEER_PULL_END, &over.base));
    honest_fetch_works();
    end_with_insider();
}

Test(hostile_peer, answers_of_calls_are_judged_too)
{
    static const int32_t statuses[] = {RDT_AGAIN, -999, 5, RDT_DENIED, RDT_OK};
    Rdt__Pb__Stat stat = RDT__PB__STAT__INIT;
    struct rdt_ref ref = of_insider("w");
    Rdt__Pb__Ref wire;
    struct raw raw;

    begin_with_insider(NULL);
    greeted(&raw);
    wire_ref_from(&ref, &wire);
    stat.ref = &wire;
    for (unsigned i = 0; i < 5; i++) {
        Rdt__Pb__CallReply reply = RDT__PB__CALL_REPLY__INIT;

        (void)raw_send(&raw, RDT_MSG_STAT, &stat.base, NULL, 0);
        must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, i + 1));
        reply.call = rogue_peer.calls[(rogue_peer.n_calls - 1) % INSIDER_ASKED];
        reply.status = statuses[i];
        reply.message = (char *)"so there";
        reply.reply = (ProtobufCBinaryData){3, (uint8_t *)"\xff\xff\xff"}; /* no ObjectInfo */
        rogue_peer_send(&rogue_peer, RDT_PEER_CALL_REPLY, &reply.base);
        refuses(&raw, i == 3 ? RDT_DENIED : RDT_PROTOCOL, i == 4 ? "" : "so there");
        rogue_peer_send(&rogue_peer, RDT_PEER_CALL_REPLY, &reply.base); /* once more: nobody waits */
    }
    ping_works(&raw);
    rogue_peer_flush(&rogue_peer);
    cr_assert_geq(rogue_peer.sock, 0);
    raw_close(&raw);
    end_with_insider();
}

/* Versions without checksums refused the request by its number. */
Test(hostile_peer, node_without_checksums_is_called_older)
{
    Rdt__Pb__CallReply reply = RDT__PB__CALL_REPLY__INIT;
    Rdt__Pb__Sum sum = RDT__PB__SUM__INIT;
    struct rdt_ref ref = of_insider("w");
    Rdt__Pb__Ref wire;
    struct raw raw;

    begin_with_insider(NULL);
    greeted(&raw);
    wire_ref_from(&ref, &wire);
    sum.ref = &wire;
    sum.timeout_ns = -1;
    (void)raw_send(&raw, RDT_MSG_SUM, &sum.base, NULL, 0);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, 1));
    reply.call = rogue_peer.calls[(rogue_peer.n_calls - 1) % INSIDER_ASKED];
    reply.status = RDT_DENIED;
    reply.message = (char *)"another node may not send request 111";
    rogue_peer_send(&rogue_peer, RDT_PEER_CALL_REPLY, &reply.base);
    refuses(&raw, RDT_UNSUPPORTED, "has an older version of rdtd, which computes no checksums: update it");
    raw_close(&raw);
    end_with_insider();
}

/* ---- out of turn ---- */

Test(hostile_peer, what_was_not_asked_is_passed_over)
{
    static const uint16_t types[] = {RDT_PEER_PULL_META,    RDT_PEER_PULL_START, RDT_PEER_PULL_END,  RDT_PEER_PULL_ABORT,
                                     RDT_PEER_PULL_ABORTED, RDT_PEER_CALL_REPLY, RDT_PEER_PULL_KEYS, RDT_PEER_PONG};

    begin_with_insider(NULL);
    for (unsigned round = 0; round < 200; round++)
        for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
            uint8_t payload[] = {0x08, (uint8_t)(round & 0x7f)}; /* transfer or call number */
            rogue_peer_say(&rogue_peer, types[i], 0, payload, sizeof payload, false);
        }
    rogue_peer_flush(&rogue_peer);
    cr_assert_geq(rogue_peer.sock, 0);
    honest_fetch_works();
    end_with_insider();
}

/* How much has come in the last `over_ns`, over all transfers: a source that finds its reader slow asks that. */
static void ask_what_came(uint64_t number, uint64_t over_ns, unsigned n)
{
    Rdt__Pb__PullAlive question = RDT__PB__PULL_ALIVE__INIT;
    Rdt__Pb__PullCredit *answer;

    question.transfer = number;
    question.over_ns = over_ns;
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL_ALIVE, &question.base);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_CREDIT, n));
    answer = rdt__pb__pull_credit__unpack(NULL, rogue_peer.came[RDT_PEER_PULL_CREDIT].bytes,
                                          rogue_peer.came[RDT_PEER_PULL_CREDIT].payload);
    cr_assert(answer->transfer == number && answer->over_ns > 0 && answer->over_ns <= over_ns);
    cr_assert_eq(answer->received, 0);
    rdt__pb__pull_credit__free_unpacked(answer, NULL);
}

Test(hostile_peer, source_may_ask_what_this_node_receives)
{
    Rdt__Pb__PullEnd over = RDT__PB__PULL_END__INIT;
    rdt_request *request;
    uint64_t number;

    begin_with_insider(NULL);
    request = asked(&number);
    ask_what_came(number, 1000000000, 1);
    ask_what_came(number, UINT64_MAX, 2);
    over.transfer = number;
    over.status = RDT_FREED;
    over.message = (char *)"so there";
    over.from_owner = true;
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL_END, &over.base);
    ends_with(request, RDT_FREED, "so there");
    honest_fetch_works();
    end_with_insider();
}

Test(hostile_peer, second_answer_changes_nothing)
{
    struct answer answer;
    uint64_t number;
    rdt_request *request;
    rdt_object *object;

    begin_with_insider(NULL);
    request = asked(&number);
    answer_init(&answer, number);
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL_META, &answer.meta.base);
    fill_pattern(answer.bytes, 16, 99);
    answer.shape = answer.meta.bytes = answer.meta.inline_data.len = 8;
    for (unsigned i = 0; i < 10; i++)
        rogue_peer_send(&rogue_peer, RDT_PEER_PULL_META, &answer.meta.base);
    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    cr_assert(holds_pattern(tensor_of(object, 0).data, 16, 5));
    rdt_release(object);
    rdt_request_destroy(request);
    rogue_peer_flush(&rogue_peer);
    end_with_insider();
}

/* The owner's node would send readers of other nodes here. */
Test(hostile_peer, answer_that_cannot_be_read_leaves_no_replica)
{
    uint64_t number;

    begin_with_insider(NULL);
    rdt_request *request = asked(&number);
    struct answer answer;
    answer_init(&answer, number);
    answer.meta.has_inline = false;
    answer.meta.snapshot = answer.meta.replica_noted = true;
    answer.meta.bytes = 17;
    send_answer(&answer);
    ends_with(request, RDT_PROTOCOL, "the answer says 17");
    must(rogue_peer_await(&rogue_peer, RDT_PEER_REPLICAS, 1));
    Rdt__Pb__Replicas *said =
        rdt__pb__replicas__unpack(NULL, rogue_peer.came[RDT_PEER_REPLICAS].bytes, rogue_peer.came[RDT_PEER_REPLICAS].payload);
    must(said->n_dropped == 1 && said->dropped[0] == answer.ref.generation);
    rdt__pb__replicas__free_unpacked(said, NULL);
    end_with_insider();
}

static unsigned links_up(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.peers_up;
}

static void lose_rogue_peer(void)
{
    rogue_peer_close(&rogue_peer);
    wait_until(LONG, links_up() == 0);
}

static uint8_t away[16] = {9};
static int away_listens, away_sock;

/* A fetch of a snapshot is waiting for the link to the node that it was redirected to, which accepts and then says nothing. */
static rdt_request *redirected(uint64_t sum, bool sum_follows)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct rdt_ref ref = of_insider("w");
    rdt_request *request;
    struct answer answer;
    char text[32];

    must(bind(listening, (struct sockaddr *)&address, sizeof address) == 0 && listen(listening, 4) == 0 &&
         getsockname(listening, (struct sockaddr *)&address, &(socklen_t){sizeof address}) == 0);
    begin_with_insider(NULL);
    ref.generation = 7;
    must_ok(rdt_fetch_start(reader, &ref, 1, NULL, &request, &err));
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL, 1));
    answer_init(&answer, rogue_peer.pulls[0]);
    answer.meta.has_inline = false;
    answer.meta.inline_data.len = 0;
    answer.meta.snapshot = answer.meta.replica_noted = true;
    answer.meta.sum = sum;
    answer.meta.sum_follows = sum_follows;
    answer.meta.redirect_node = (ProtobufCBinaryData){sizeof away, away};
    (void)snprintf(text, sizeof text, "127.0.0.1:%u", ntohs(address.sin_port));
    answer.meta.redirect_address = text;
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL_META, &answer.meta.base);
    away_listens = listening;
    away_sock = accept(listening, NULL, NULL);
    must(away_sock >= 0);
    return request;
}

/* The link to the owner's node ends, and then the other node refuses. */
static void lose_owner_and_replica(uint64_t sum, bool sum_follows)
{
    rdt_request *request = redirected(sum, sum_follows);

    lose_rogue_peer();
    open_rogue_peer();
    rogue_peer_flush(&rogue_peer);
    must_say(rogue_peer.came[RDT_PEER_REPLICAS].n == 0, "a replica without bytes is reported as whole");
    lose_rogue_peer();
    must_be(RDT_AGAIN, rdt_request_status(request, &err));
    (void)close(away_sock);
    (void)close(away_listens);
    ends_with(request, RDT_PEER_LOST, "");
    open_rogue_peer();
    honest_fetch_works();
    end_with_insider();
}

Test(hostile_peer, replica_that_is_away_when_the_owner_is)
{
    lose_owner_and_replica(0, false);
}

Test(hostile_peer, owner_that_is_lost_owes_a_checksum)
{
    lose_owner_and_replica(0, true);
}

Test(hostile_peer, owner_that_is_lost_has_sent_the_checksum_that_it_promises)
{
    lose_owner_and_replica(1, true);
}

/* The owner's node has found that the source lags before this node has reached it. */
Test(hostile_peer, reader_leaves_a_source_that_it_is_still_connecting_to)
{
    Rdt__Pb__AskAgainWhy why = RDT__PB__ASK_AGAIN_WHY__ASK_AGAIN_WHY_SOURCE;
    uint64_t generation = 7;
    struct transfer_view view;
    rdt_request *request = redirected(0, false);
    Rdt__Pb__PullEnd over = MESSAGE(pull_end, .status = RDT_FREED, .message = (char *)"so there", .from_owner = true);
    Rdt__Pb__Replicas replicas =
        MESSAGE(replicas, .ask_again = &generation, .n_ask_again = 1, .ask_again_why = &why, .n_ask_again_why = 1);

    rogue_peer_send(&rogue_peer, RDT_PEER_REPLICAS, &replicas.base);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL, 2));
    Rdt__Pb__Pull *pull =
        rdt__pb__pull__unpack(NULL, rogue_peer.came[RDT_PEER_PULL].bytes, rogue_peer.came[RDT_PEER_PULL].payload);
    must(pull->left_node.len == sizeof away && memcmp(pull->left_node.data, away, sizeof away) == 0);
    over.transfer = pull->transfer;
    rdt__pb__pull__free_unpacked(pull, NULL);
    must(transfer_under_way(&node, "in", &view));
    must_say(strstr(view.left, "was found to lag"), "%s", view.left);
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL_END, &over.base);
    ends_with(request, RDT_FREED, "so there");
    (void)close(away_sock);
    (void)close(away_listens);
    honest_fetch_works();
    end_with_insider();
}

static void pull_with(uint64_t number, const char *id, ProtobufCMessageUnknownField *fields, unsigned n)
{
    Rdt__Pb__Pull pull = RDT__PB__PULL__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;

    ref.id = (ProtobufCBinaryData){strlen(id), (uint8_t *)(uintptr_t)id};
    ref.any_owner = true;
    pull.transfer = number;
    pull.ref = &ref;
    pull.requester = &requester;
    pull.timeout_ns = -1;
    pull.inline_max_bytes = 32768;
    pull.base.unknown_fields = fields;
    pull.base.n_unknown_fields = n;
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL, &pull.base);
}

static void pull(uint64_t number, const char *id)
{
    pull_with(number, id, NULL, 0);
}

/* Daemons of earlier versions could ask in PULL that the owner starts at once, and the answer said whether it did. */
Test(hostile_peer, start_in_a_pull_is_passed_over)
{
    uint8_t start[] = "\x12\x06stream\x18\x80\x80\x04\x20\x01", expect[] = "\x08\x01";
    ProtobufCMessageUnknownField fields[] = {{8, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, sizeof start, start},
                                             {9, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, sizeof expect, expect}};
    Rdt__Pb__PullMeta *meta;
    struct rdt_ref ref;

    start[sizeof start - 1] = 0;
    begin_with_insider(NULL);
    ref = put_pattern(reader, "large", MIB, 1);
    pull_with(1, "large", fields, 2);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_META, 1));
    meta = rdt__pb__pull_meta__unpack(NULL, rogue_peer.came[RDT_PEER_PULL_META].bytes,
                                      rogue_peer.came[RDT_PEER_PULL_META].payload);
    must_say(meta->status == RDT_OK, "%s", meta->message);
    cr_assert(meta->bytes == MIB && !meta->has_inline && meta->base.n_unknown_fields == 0);
    rdt__pb__pull_meta__free_unpacked(meta, NULL);
    must_ok(rdt_free(reader, &ref, false, &err));
    honest_fetch_works();
    end_with_insider();
}

/* The daemon's answer to a BROADCAST, which was the n-th. */
static enum rdt_status broadcast_answered(uint64_t number, bool *declined_p, unsigned n)
{
    Rdt__Pb__BroadcastResult *result;
    enum rdt_status status;

    must(rogue_peer_await(&rogue_peer, RDT_PEER_BROADCAST_RESULT, n));
    result = rdt__pb__broadcast_result__unpack(NULL, rogue_peer.came[RDT_PEER_BROADCAST_RESULT].bytes,
                                               rogue_peer.came[RDT_PEER_BROADCAST_RESULT].payload);
    must(result && result->broadcast == number && !result->from_root);
    status = (enum rdt_status)result->status;
    *declined_p = result->declined;
    rdt__pb__broadcast_result__free_unpacked(result, NULL);
    return status;
}

/* A root of an earlier version wants the transport's own broadcast. The answer has it ask again without that. */
Test(hostile_peer, broadcast_by_the_transport_itself_is_declined)
{
    Rdt__Pb__GroupBroadcast message = RDT__PB__GROUP_BROADCAST__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    Rdt__Pb__Ref wire;
    struct rdt_ref ref;
    bool declined;

    begin_with_insider(NULL);
    ref = of_insider("w");
    ref.generation = 7;
    wire_ref_from(&ref, &wire);
    message.broadcast = 1;
    message.group = (ProtobufCBinaryData){16, (uint8_t *)"0123456789abcdef"};
    message.epoch = 1;
    message.ref = &wire;
    message.owner = &requester;
    message.collective = true;
    rogue_peer_send(&rogue_peer, RDT_PEER_BROADCAST, &message.base);
    must_be(RDT_OK, broadcast_answered(1, &declined, 1));
    must(declined);
    message.broadcast = 2;
    message.collective = false;
    rogue_peer_send(&rogue_peer, RDT_PEER_BROADCAST, &message.base);
    must_be(RDT_TRANSPORT, broadcast_answered(2, &declined, 2)); /* there is no such group here */
    must(!declined);
    end_with_insider();
}

Test(hostile_peer, number_used_twice_ends_the_link)
{
    begin_with_insider(NULL);
    pull(1, "nobody");
    rogue_peer_flush(&rogue_peer);
    pull(1, "nobody");
    shown_out("uses transfer number 1 twice");
    end_with_insider();
}

Test(hostile_peer, flood_of_requests_is_bounded)
{
    enum { N = 100000 };
    Rdt__Pb__PullMeta *meta;
    size_t rss;

    begin_with_insider(NULL);
    rss = rss_of(node.pid);
    for (unsigned i = 0; i < N; i++) {
        pull(i + 1, "nobody");
        if (i % 1000 == 999)
            rogue_peer_listen(&rogue_peer, 0);
        if (i % 25000 == 24999)
            others_are_well();
    }
    rogue_peer_flush(&rogue_peer);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_META, 1));
    meta = rdt__pb__pull_meta__unpack(NULL, rogue_peer.came[RDT_PEER_PULL_META].bytes,
                                      rogue_peer.came[RDT_PEER_PULL_META].payload);
    must_say(meta->status == RDT_LIMIT && strstr(meta->message, "transfers under way"), "%s", meta->message);
    rdt__pb__pull_meta__free_unpacked(meta, NULL);
    must_say(rss_of(node.pid) < rss + 512 * MIB * (size_t)patience(1), "%zu MiB more", (rss_of(node.pid) - rss) / MIB);
    end_with_insider();
}

/* How many pages a list of transfers has that shows none of them, because it is of another state. */
static unsigned pages_without_rows(rdt *conn)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    unsigned n = 0;

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS;
    request.state = (char *)"reserving";
    do {
        ProtobufCMessage *answer;
        must_ok(call(conn, RDT_MSG_LIST, &request.base, LONG, &answer, &err));
        cr_assert_eq(((const Rdt__Pb__ListReply *)answer)->n_transfers, 0u);
        request.after = ((const Rdt__Pb__ListReply *)answer)->next;
        protobuf_c_message_free_unpacked(answer, NULL);
        n++;
    } while (request.after != 0);
    return n;
}

/* When the link ends, its pulls end over many turns of the loop: others are answered in between, and see how far it is. */
Test(hostile_peer, end_of_a_link_with_many_pulls_takes_turns)
{
    enum { N = 40000 };
    unsigned in_between = 0;
    struct node_status status;

    begin_with_insider(NULL);
    for (unsigned i = 0; i < N; i++)
        pull(i + 1, "nobody");
    rogue_peer_flush(&rogue_peer);
    node_status(&node, &status);
    cr_assert_eq(status.transfers_active, N);
    cr_assert_gt(pages_without_rows(reader), 5u, "a page that finds nothing ends in time");
    rogue_peer_close(&rogue_peer);
    do {
        node_status(&node, &status);
        in_between += status.transfers_active > 0 && status.transfers_active < N;
    } while (status.transfers_active > 0);
    cr_assert_gt(in_between, 2u);
    open_rogue_peer(); /* it counts from one again, and what has ended is not confused with that */
    pull(1, "nobody");
    rogue_peer_flush(&rogue_peer);
    node_status(&node, &status);
    cr_assert_eq(status.transfers_active, 1u);
    end_with_insider();
}

/* ---- framing ---- */

/* The peer stops in the middle of a frame. The link ends after peer_timeout, and those who waited get an error. */
Test(hostile_peer, frame_that_stops_in_the_middle_ends_in_time)
{
    const char *flags[] = {"--peer-timeout=2s", NULL}; /* the frame begins before */
    uint64_t number;
    rdt_request *request;

    begin_with_insider(flags);
    request = asked(&number);
    rogue_peer_begin_frame(&rogue_peer, RDT_PEER_PULL_META, 1000, 10);
    ends_with(request, RDT_PEER_LOST, "lost");
    end_with_insider();
}

#define SEVENTEEN "\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01"

Test(hostile_peer, frames_that_cannot_be_end_the_link_with_a_reason)
{
    static const struct {
        uint16_t type;
        const char *payload;
        size_t n;
        const char *says;
    } bad[] = {
        {RDT_PEER_PULL, "\x0a\xff\xff\xff", 4, "Pull "},
        {RDT_PEER_PULL_META, "\xff", 1, "PullMeta "},
        {RDT_PEER_CALL, "\x0a\x05", 2, "Call "},
        {90, "", 0, "90"},
        {RDT_PEER_OFFER, "\x0a\xff", 2, "Offer "},
        {RDT_PEER_REPLICAS, "\x32\x11" SEVENTEEN, 19, "names 17 replicas"},     /* that must ask again */
        {RDT_PEER_REPLICAS, "\x92\x01\x11" SEVENTEEN, 20, "names 17 replicas"}, /* whose sums come */
    };

    begin_with_insider(NULL);
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (i > 0)
            rogue_peer_open(&rogue_peer, node.key_path, (uint16_t)atoi(strrchr(node.address, ':') + 1));
        rogue_peer_say(&rogue_peer, bad[i].type, 0, (const uint8_t *)bad[i].payload, bad[i].n, false);
        shown_out(bad[i].says);
        others_are_well();
        if (i + 1 < sizeof bad / sizeof *bad)
            rogue_peer_close(&rogue_peer);
    }
    end_with_insider();
}

/* Of a batch one item is answered and waits for the other's size; then the link ends. */
Test(hostile_peer, link_that_ends_with_a_batch_half_answered_fails_it)
{
    Rdt__Pb__Offer offer = RDT__PB__OFFER__INIT;
    uint8_t blob[56] = "nobody"; /* as long as loopback's offers are */
    char *memory[] = {(char *)"host"};
    struct rdt_ref refs[2] = {of_insider("v"), of_insider("w")};
    rdt_request *requests[2];
    struct answer answer;

    begin(&(struct node_options){
        .listen = "127.0.0.1:0", .loopback = true, .flags = (const char *const[]){"--memory-limit=40MiB", NULL}});
    rogue_peer_open(&rogue_peer, node.key_path, (uint16_t)atoi(strrchr(node.address, ':') + 1));
    reader = node_client(&node, "reader");
    (void)alloc_memory(reader, 30 * MIB); /* if the second went on now, it would fail at once */
    must_ok(rdt_fetch_start(reader, refs, 2, NULL, requests, &err));
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL, 2));

    offer.transport = (char *)"loopback";
    offer.version = (char *)"1.0";
    offer.epoch = 1;
    offer.memory = memory;
    offer.n_memory = 1;
    offer.blob = (ProtobufCBinaryData){sizeof blob, blob};
    answer_init(&answer, rogue_peer.pulls[1]);
    answer.ref.id.data = (uint8_t *)"w";
    answer.shape = answer.meta.bytes = 20 * MIB;
    answer.meta.has_inline = false;
    answer.meta.inline_data = (ProtobufCBinaryData){0, NULL};
    rogue_peer_send(&rogue_peer, RDT_PEER_OFFER, &offer.base);
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL_META, &answer.meta.base);
    rogue_peer_close(&rogue_peer);
    ends_with(requests[0], RDT_PEER_LOST, "is lost");
    ends_with(requests[1], RDT_PEER_LOST, "is lost");
    others_are_well();
    rdt_close(reader);
    rdt_close(bystander);
    node_end(&node, meant);
}

/* Asks for so many objects, each within its answer. */
static void pull_inline(const struct rdt_ref *ref, uint64_t first, unsigned n)
{
    Rdt__Pb__Requester requester = MESSAGE(requester, .uid = geteuid());
    Rdt__Pb__Ref wire;

    wire_ref_from(ref, &wire);
    Rdt__Pb__Pull pull = MESSAGE(pull, .ref = &wire, .requester = &requester, .timeout_ns = -1, .inline_max_bytes = 60000);
    for (unsigned i = 0; i < n; i++) {
        pull.transfer = first + i;
        rogue_peer_send(&rogue_peer, RDT_PEER_PULL, &pull.base);
    }
}

/* The answers take more than the link may have queued. */
Test(hostile_peer, reader_that_asks_for_more_than_it_reads_gets_all_of_it_later)
{
    enum { N = 1500, BYTES = 60000 };
    static char bytes[BYTES];

    begin_with_insider(NULL);
    struct rdt_ref ref = put_one(reader, &VECTOR(RDT_U8, BYTES, bytes), NULL);
    pull_inline(&ref, 1, N);
    must_say(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_META, N), "%u of %u answers came",
             rogue_peer.came[RDT_PEER_PULL_META].n, N);
    Rdt__Pb__PullMeta *meta = rdt__pb__pull_meta__unpack(NULL, rogue_peer.came[RDT_PEER_PULL_META].bytes,
                                                         rogue_peer.came[RDT_PEER_PULL_META].payload);
    cr_assert(meta->transfer > 0 && meta->transfer <= N && meta->has_inline && meta->inline_data.len == BYTES);
    rdt__pb__pull_meta__free_unpacked(meta, NULL);
    must_ok(rdt_free(reader, &ref, false, &err));
    must_ok(rdt_wait_freed(reader, &ref, LONG, &err));
    end_with_insider();
}

/* The threads that read a client's memory stand still, as if it held them up. Its answers would fill the link. */
Test(hostile_peer, memory_that_its_client_holds_up_delays_no_other_answer)
{
    enum { N = 300, BYTES = 60000 };
    static char bytes[16];

    begin_with_insider(NULL);
    struct rdt_ref held = put_one(reader, &VECTOR(RDT_U8, BYTES, alloc_memory(reader, BYTES)), NULL);
    struct rdt_ref other = put_one(bystander, &VECTOR(RDT_U8, sizeof bytes, bytes), NULL);
    if (!node_hold_threads(&node, "rdtd-owner"))
        cr_skip_test("a process may not trace another one here");
    pull_inline(&held, 1, N);
    pull_inline(&other, N + 1, 1);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_META, 1));
    Rdt__Pb__PullMeta *meta = rdt__pb__pull_meta__unpack(NULL, rogue_peer.came[RDT_PEER_PULL_META].bytes,
                                                         rogue_peer.came[RDT_PEER_PULL_META].payload);
    cr_assert(meta->transfer == N + 1 && meta->status == RDT_OK);
    rdt__pb__pull_meta__free_unpacked(meta, NULL);
    node_release_workers(&node);
    must_say(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_META, N + 1), "%u of %u answers came",
             rogue_peer.came[RDT_PEER_PULL_META].n, N + 1);
    must_ok(rdt_free(reader, &held, false, &err));
    must_ok(rdt_wait_freed(reader, &held, LONG, &err));
    must_ok(rdt_free(bystander, &other, false, &err));
    end_with_insider();
}

/* Bytes that ride in an answer are the processor's to copy, and a device's memory is not. */
Test(hostile_peer, bytes_in_an_answer_go_to_no_device)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref ref = of_insider("w");
    struct fake_devices gpu;
    struct answer answer;
    rdt_request *request;

    fake_device_init(&gpu, "one", NULL);
    begin_with_insider(gpu.flags);
    fake_device_use(reader);
    options.memory = "fake";
    options.device = "FAKE-0";
    must_ok(rdt_fetch_start(reader, &ref, 1, &options, &request, &err));
    for (unsigned i = 0; i < 2; i++) { /* the whole, then its part */
        must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL, i + 1));
        answer_init(&answer, rogue_peer.pulls[i]);
        send_answer(&answer);
    }
    ends_with(request, RDT_NO_PATH, "fake memory");
    end_with_insider();
    fake_device_fini(&gpu);
}
