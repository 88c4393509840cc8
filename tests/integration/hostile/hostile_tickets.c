/* SPDX-License-Identifier: Apache-2.0 */
/* A node that has the key and breaks the protocol of queue tickets: it is silent when its ticket comes up, or sends
 * messages out of order. The daemon waits for it no longer than stall_timeout, and the queue goes on for the others. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/rdt_dtype.h"
#include "proto/wire_ref.h"
#include "tests/support/cluster.h"
#include "tests/support/rogue_peer.h"

TestSuite(hostile_tickets, .timeout = 120);

#define BYTES 300000u
#define STALL "--stall-timeout=700ms"
#define SHORT_STALL "--stall-timeout=500ms" /* for waits that repeat; the rogue peer sends far more often */

static struct cluster c;
static struct rogue_peer rogue_peer;
static rdt *owner, *reader; /* clients of node 0, which the rogue_peer is linked with, and of node 1 */

static void begin(const char *stall)
{
    const char *flags[] = {"--set=loopback.sided=two", "--set=loopback.ordered=yes", "--quiesce-grace=300ms", stall, NULL};
    uint8_t blob[56] = "nobody listens here"; /* the form of an address of the test transport */
    char *host = (char *)"host";

    cluster_start(&c, 2, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    rogue_peer_open(&rogue_peer, c.node[0].key_path, (uint16_t)atoi(strrchr(c.node[0].address, ':') + 1));
    must(rogue_peer_await(&rogue_peer, RDT_PEER_OFFER, 1)); /* before that it knows no transport to us */
    Rdt__Pb__Offer offer = MESSAGE(offer, .transport = (char *)"loopback", .version = (char *)"1.0", .epoch = 1,
                                   .blob = (ProtobufCBinaryData){sizeof blob, blob}, .memory = &host, .n_memory = 1);
    rogue_peer_send(&rogue_peer, RDT_PEER_OFFER, &offer.base);
    rogue_peer_flush(&rogue_peer);
}

static void end(void)
{
    rogue_peer_close(&rogue_peer);
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, (const char *const[]){"rogue_peer", "is lost", "is down", "taken down and rebuilt", "refused", NULL});
}

static void others_move(void)
{
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 3);
    int64_t start = now_ns();

    fetch_pattern(reader, &ref, BYTES, 3, "loopback");
    must_be_within(start, 5 * SEC);
    must_ok(rdt_free(owner, &ref, false, &err));
}

static void say_word_of(uint64_t transfer, bool from_owner, int word, const char *behind)
{
    Rdt__Pb__PullTicket turn = MESSAGE(pull_ticket, .transfer = transfer, .from_owner = from_owner,
                                       .state = (Rdt__Pb__TicketState)word, .behind = (char *)(uintptr_t)behind);
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL_TICKET, &turn.base);
    rogue_peer_flush(&rogue_peer);
}

static void say_word(uint64_t transfer, bool from_owner, int word)
{
    say_word_of(transfer, from_owner, word, "");
}

/* The latest message of this type. */
static ProtobufCMessage *latest(uint16_t type, const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message =
        protobuf_c_message_unpack(descriptor, NULL, rogue_peer.came[type].bytes, rogue_peer.came[type].payload);

    must(message);
    return message;
}

static Rdt__Pb__TicketState await_word(unsigned n)
{
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_TICKET, n));
    Rdt__Pb__PullTicket *turn = (Rdt__Pb__PullTicket *)latest(RDT_PEER_PULL_TICKET, &rdt__pb__pull_ticket__descriptor);
    Rdt__Pb__TicketState word = turn->state;
    rdt__pb__pull_ticket__free_unpacked(turn, NULL);
    return word;
}

static void ends_with(unsigned n, enum rdt_status expected, const char *text)
{
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_END, n));
    Rdt__Pb__PullEnd *end_message = (Rdt__Pb__PullEnd *)latest(RDT_PEER_PULL_END, &rdt__pb__pull_end__descriptor);
    must_say(end_message->status == expected && strstr(end_message->message, text), "%s", end_message->message);
    rdt__pb__pull_end__free_unpacked(end_message, NULL);
}

/* ---- as a reader ---- */

/* The rogue_peer pulls it; turns: it says that its end stands in an ordered queue. */
static void pull_with(const struct rdt_ref *ref, uint64_t number, bool turns)
{
    Rdt__Pb__Pull pull = RDT__PB__PULL__INIT;
    Rdt__Pb__PullStart start = RDT__PB__PULL_START__INIT;
    Rdt__Pb__Ref wire;

    wire_ref_from(ref, &wire);
    Rdt__Pb__Requester requester = MESSAGE(requester, .tenant = (char *)"", .uid = (uint32_t)ref->uid);
    pull.transfer = start.transfer = number;
    pull.ref = &wire;
    pull.requester = &requester;
    pull.timeout_ns = -1;
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL, &pull.base);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_META, (unsigned)number));
    start.transport = (char *)"loopback";
    start.chunk_bytes = 64 << 10;
    start.epoch = 1;
    start.tickets = turns;
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL_START, &start.base);
}

static void pull(const struct rdt_ref *ref, uint64_t number)
{
    pull_with(ref, number, true);
}

/* Node 0 has its turn for the first pull, and waits for the rogue_peer's receives. */
static void take_turns(void)
{
    if (await_word(1) == RDT__PB__TICKET_STATE__TICKET_READY) { /* by its uuid the rogue peer is first */
        say_word(1, false, RDT__PB__TICKET_STATE__TICKET_TAKEN);
        must(await_word(2) == RDT__PB__TICKET_STATE__TICKET_TAKEN);
    }
}

Test(hostile_tickets, reader_whose_ticket_came_up_and_is_silent)
{
    begin(STALL);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    pull(&ref, 1);
    take_turns();
    others_move();
    ends_with(1, RDT_TRANSPORT, "said nothing about its queue ticket");
    must_ok(rdt_free(owner, &ref, false, &err));
    end();
}

/* The peer says that its receives are posted, and answers pings, but the sends at the head of node 0's queue never end. */
Test(hostile_tickets, reader_that_takes_nothing)
{
    begin(STALL);
    cluster_faults(&c, 0, "lose_every=1\n");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    pull(&ref, 1);
    take_turns();
    say_word(1, false, RDT__PB__TICKET_STATE__TICKET_RECEIVES);
    ends_with(1, RDT_TRANSPORT, "the reader took nothing for");
    cluster_faults(&c, 0, "");
    others_move();
    must_ok(rdt_free(owner, &ref, false, &err));
    end();
}

/* The peer says again and again that its ticket is behind others, and node 0 keeps its own ticket for it. */
/* false: the machine stood still for so long that the rogue_peer was one that says nothing. */
static bool is_pushed_aside(void)
{
    int64_t until, said, longest = 0;

    begin(SHORT_STALL);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    struct rdt_ref other = put_pattern(owner, NULL, BYTES, 2);
    pull(&ref, 1);
    take_turns();
    rdt_request *request = start_one(reader, &other, LONG);
    said = now_ns();
    until = said + LONG;
    while (rdt_wait(reader, &request, 1, 1, 0, NULL, NULL, NULL) == RDT_TIMED_OUT && said < until) {
        say_word(1, false, RDT__PB__TICKET_STATE__TICKET_WAITING);
        int64_t now = now_ns();
        longest = now - said > longest ? now - said : longest;
        said = now;
        rogue_peer_listen(&rogue_peer, 20);
    }
    rdt_object *object = await_object(reader, request);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 2));
    rdt_request_destroy(request);
    rdt_release(object);
    if (longest < 250 * MSEC)
        ends_with(1, RDT_TRANSPORT, "holds up others here");
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_free(owner, &other, false, &err));
    end();
    return longest < 250 * MSEC;
}

Test(hostile_tickets, reader_that_is_behind_others_for_ever)
{
    for (unsigned tries = 0; !is_pushed_aside(); tries++)
        must(tries < 4);
}

/* Says again and again, until the pull ends, that it is behind others. The longest time that it was kept from saying so. */
static int64_t say_behind_others(int64_t until)
{
    int64_t said = now_ns(), longest = 0;

    while (rogue_peer.came[RDT_PEER_PULL_END].n == 0 && now_ns() < until) {
        say_word_of(1, false, RDT__PB__TICKET_STATE__TICKET_WAITING, "behind transfer 5 (from x) in queue q");
        int64_t now = now_ns();
        longest = now - said > longest ? now - said : longest;
        said = now;
        rogue_peer_listen(&rogue_peer, 20);
    }
    return longest;
}

/* false: the machine stood still for so long that the rogue_peer was one that says nothing. */
static bool ends_though_it_speaks(void)
{
    begin(SHORT_STALL);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    pull(&ref, 1);
    take_turns();
    int64_t since = now_ns();
    int64_t silent = say_behind_others(since + 2 * LONG);
    bool spoke = silent < 250 * MSEC || now_ns() - since >= 30 * 500 * MSEC;
    if (spoke) {
        ends_with(1, RDT_TRANSPORT, "it has been behind transfer 5 (from x) in queue q for");
        must(now_ns() - since >= 30 * 500 * MSEC);
    }
    must_ok(rdt_free(owner, &ref, false, &err));
    end();
    return spoke;
}

/* The same where nobody waits behind node 0's ticket: node 0 waits longer, but not for ever. The error names the node that
 * the peer says it is behind. */
Test(hostile_tickets, reader_that_is_behind_others_for_ever_and_in_nobodys_way)
{
    for (unsigned tries = 0; !ends_though_it_speaks(); tries++)
        must(tries < 4);
}

/* A reader that asks for bytes of an ordered queue without a ticket is refused. */
Test(hostile_tickets, reader_that_takes_no_ticket)
{
    begin(STALL);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    pull_with(&ref, 1, false);
    ends_with(1, RDT_PROTOCOL, "the reader takes no queue ticket");
    others_move();
    must_ok(rdt_free(owner, &ref, false, &err));
    end();
}

Test(hostile_tickets, reader_with_unexpected_messages)
{
    static const int words[] = {RDT__PB__TICKET_STATE__TICKET_RECEIVES, RDT__PB__TICKET_STATE__TICKET_READY, 99, -1};
    unsigned heard = 0;

    begin(STALL);
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    for (unsigned i = 0; i < 4; i++) {
        pull(&ref, i + 1);
        if (await_word(++heard) == RDT__PB__TICKET_STATE__TICKET_TAKEN && i == 0)
            say_word(i + 1, false,
                     RDT__PB__TICKET_STATE__TICKET_TAKEN); /* its receives may be posted, but it cannot have taken a ticket */
        else
            say_word(i + 1, false, words[i]);
        ends_with(i + 1, RDT_PROTOCOL, "about a queue ticket");
        say_word(i + 1, false, RDT__PB__TICKET_STATE__TICKET_TAKEN); /* the number of a transfer that has ended */
        say_word(i + 1, true, RDT__PB__TICKET_STATE__TICKET_TAKEN);
    }
    others_move();
    must_ok(rdt_free(owner, &ref, false, &err));
    end();
}

/* ---- as an owner ---- */

/* A client of node 0 fetches from the rogue_peer, which has answered; its PULL_START has come. */
static rdt_request *asked(uint64_t *number_p)
{
    unsigned starts = rogue_peer.came[RDT_PEER_PULL_START].n, pulls = rogue_peer.came[RDT_PEER_PULL].n;
    uint32_t dtype = RDT_U8, ndim = 1;
    uint64_t shape = BYTES;
    struct rdt_ref ref = ref_named("w");

    memcpy(ref.node, rogue_peer_uuid, sizeof ref.node);
    rdt_request *request = start_one(owner, &ref, LONG);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL, pulls + 1));
    *number_p = rogue_peer.pulls[(rogue_peer.n_pulls - 1) % INSIDER_ASKED];
    Rdt__Pb__TensorList tensors = MESSAGE(tensor_list, .dtype = &dtype, .ndim = &ndim, .shape = &shape);
    tensors.n_dtype = tensors.n_ndim = tensors.n_shape = 1;
    Rdt__Pb__Ref wire = MESSAGE(ref, .id = (ProtobufCBinaryData){1, (uint8_t *)"w"}, .generation = 7);
    Rdt__Pb__PullMeta meta =
        MESSAGE(pull_meta, .transfer = *number_p, .ref = &wire, .tensors = &tensors, .bytes = BYTES, .memory = (char *)"host");
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL_META, &meta.base);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_START, starts + 1));
    return request;
}

/* The peer answers pings meanwhile. */
static void must_fail(rdt_request *request, enum rdt_status expected, const char *text)
{
    int64_t until = now_ns() + LONG;

    while (rdt_wait(owner, &request, 1, 1, 0, NULL, NULL, NULL) == RDT_TIMED_OUT && now_ns() < until)
        rogue_peer_listen(&rogue_peer, 20);
    must_refuse(expected, text, rdt_wait(owner, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
}

Test(hostile_tickets, owner_that_is_silent_or_sends_unexpected_messages)
{
    static const int words[] = {RDT__PB__TICKET_STATE__TICKET_RECEIVES, 99};
    rdt_request *request;
    uint64_t number;

    begin(STALL);
    for (unsigned i = 0; i < 2; i++) {
        request = asked(&number);
        say_word(number, true, words[i]);
        must_fail(request, RDT_PROTOCOL, "about a queue ticket");
    }
    request = asked(&number);
    others_move();
    must_fail(request, RDT_TRANSPORT, "about its queue ticket");
    end();
}

/* The peer says that its ticket came up, so that node 0 posts receives at the head of its queue, and then sends nothing. */
Test(hostile_tickets, owner_whose_ticket_came_up_and_sends_nothing)
{
    uint64_t number;

    begin(STALL);
    rdt_request *request = asked(&number);
    if (memcmp(c.node[0].uuid_bytes, rogue_peer_uuid, 16) < 0)
        say_word(number, true, RDT__PB__TICKET_STATE__TICKET_READY);
    say_word(number, true, RDT__PB__TICKET_STATE__TICKET_TAKEN);
    others_move();
    must_fail(request, RDT_TRANSPORT, "loopback");
    struct rdt_ref ref = put_pattern(reader, NULL, BYTES, 9);
    fetch_pattern(owner, &ref, BYTES, 9, "loopback");
    must_ok(rdt_free(reader, &ref, false, &err));
    end();
}
