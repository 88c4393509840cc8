/* Clients that are broken or hostile: what can be answered is answered, the connection ends, and nobody else notices. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/call.h"
#include "proto/wire_limits.h"
#include "tests/support/raw.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

static const char *const declared[] = {"(pid ", NULL}; /* what the daemon says of such a client */
static struct test_node node;
static rdt *bystander;
static struct rdt_ref theirs;

static void begin(const struct node_options *options)
{
    char *addr;

    node_start(&node, options);
    bystander = node_client(&node, "bystander");
    addr = alloc_memory(bystander, 4096);
    fill_pattern(addr, 4096, 1);
    theirs = put_one(bystander, &VECTOR(RDT_U8, 4096, addr), "theirs");
}

/* Somebody else's work goes on. */
static void others_are_well(void)
{
    rdt_object *object = fetch_one(bystander, &theirs, RDT_FETCH_COPY);

    cr_assert(holds_pattern(tensor_of(object, 0).data, 4096, 1));
    rdt_release(object);
    must_ok(rdt_ping(bystander, LONG, &err));
}

static void end(void)
{
    others_are_well();
    rdt_close(bystander);
    node_end(&node, declared);
}

static void greeted(struct raw *raw)
{
    raw_connect(raw, node.socket);
    raw_hello(raw);
}

static void ping_works(struct raw *raw)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    Rdt__Pb__Ping *pong;

    ping.data.data = (uint8_t *)"echo";
    ping.data.len = 4;
    pong = (Rdt__Pb__Ping *)raw_reply(raw, raw_send(raw, RDT_MSG_PING, &ping.base, NULL, 0), &rdt__pb__ping__descriptor);
    cr_assert(pong->data.len == 4 && memcmp(pong->data.data, "echo", 4) == 0);
    rdt__pb__ping__free_unpacked(pong, NULL);
}

static void refuses(struct raw *raw, enum rdt_status expected, const char *text)
{
    char said[256];
    enum rdt_status status = raw_error(raw, said);

    must_say(status == expected && strstr(said, text), "%s: %s", rdt_status_name(status), said);
}

static void refuses_and_closes(struct raw *raw, enum rdt_status expected, const char *text)
{
    refuses(raw, expected, text);
    raw_expect_closed(raw);
    raw_close(raw);
    others_are_well();
}

/* ---- the beginning ---- */

Test(protocol, garbage_ends_only_its_sender)
{
    begin(NULL);
    for (uint32_t seed = 0; seed < 40; seed++) {
        static char garbage[65536];
        struct raw raw;
        if (seed % 2)
            greeted(&raw);
        else
            raw_connect(&raw, node.socket);
        fill_pattern(garbage, sizeof garbage, seed);
        if (seed % 4 < 2)
            (void)raw_bytes(&raw, garbage, sizeof garbage);
        else
            (void)raw_bytes(&raw, garbage, 17 + seed);
        (void)shutdown(raw.sock, SHUT_WR);
        while (recv(raw.sock, garbage, sizeof garbage, 0) > 0) /* an answer or none, then the end */
            continue;
        raw_close(&raw);
    }
    end();
}

Test(protocol, request_before_hello_is_refused)
{
    Rdt__Pb__Empty empty = RDT__PB__EMPTY__INIT;
    struct raw raw;

    begin(NULL);
    raw_connect(&raw, node.socket);
    (void)raw_send(&raw, RDT_MSG_STATUS, &empty.base, NULL, 0);
    refuses_and_closes(&raw, RDT_PROTOCOL, "HELLO");
    end();
}

Test(protocol, other_version_is_refused_with_both_named)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;
    struct raw raw;

    begin(NULL);
    for (unsigned i = 0; i < 2; i++) {
        raw_connect(&raw, node.socket);
        hello.protocol_min = i ? 0 : 99;
        hello.protocol_max = i ? 0 : 120;
        (void)raw_send(&raw, RDT_MSG_HELLO, &hello.base, NULL, 0);
        refuses_and_closes(&raw, RDT_PROTOCOL, "protocol");
    }
    raw_connect(&raw, node.socket); /* a newer one that still speaks ours */
    hello.protocol_min = 1;
    hello.protocol_max = 120;
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_HELLO, &hello.base, NULL, 0), &rdt__pb__hello_reply__descriptor), NULL);
    ping_works(&raw);
    raw_close(&raw);
    end();
}

Test(protocol, broken_hello_is_refused)
{
    struct raw raw;

    begin(NULL);
    raw_connect(&raw, node.socket);
    must(raw_frame(&raw, 3, RDT_MSG_HELLO, 0, 0, 1, "\xff\xff\xff", 3, NULL, 0));
    refuses_and_closes(&raw, RDT_PROTOCOL, "HELLO");
    end();
}

Test(protocol, silent_connections_keep_nobody_out)
{
    struct raw raws[60];

    begin(NULL);
    for (unsigned i = 0; i < 60; i++)
        raw_connect(&raws[i], node.socket);
    others_are_well();
    for (unsigned i = 0; i < 30; i++)
        raw_close(&raws[i]);
    for (unsigned i = 30; i < 60; i++) {
        raw_hello(&raws[i]);
        raw_close(&raws[i]);
    }
    end();
}

Test(protocol, second_hello_and_unknown_requests_are_answered)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;
    struct raw raw;

    begin(NULL);
    greeted(&raw);
    hello.protocol_min = hello.protocol_max = 1;
    (void)raw_send(&raw, RDT_MSG_HELLO, &hello.base, NULL, 0);
    refuses(&raw, RDT_UNSUPPORTED, "1");
    ping_works(&raw);
    for (unsigned type = 0; type < 65536; type += 997) {
        if (type >= 1 && type <= 17)
            continue;
        must(raw_frame(&raw, 2, (uint16_t)type, 0, 0, 5, "\x08\x01", 2, NULL, 0));
        refuses(&raw, RDT_UNSUPPORTED, "knows no request");
    }
    ping_works(&raw);
    raw_close(&raw);
    end();
}

/* ---- framing ---- */

Test(protocol, oversized_frame_is_answered_and_ends)
{
    struct raw raw;

    begin(NULL);
    for (unsigned i = 0; i < 2; i++) {
        greeted(&raw);
        must(raw_frame(&raw, i ? UINT32_MAX : RDT_MAX_FRAME_BYTES + 1, RDT_MSG_PING, 0, 0, 4711, "", 0, NULL, 0));
        refuses(&raw, RDT_LIMIT, "16777216");
        cr_assert_eq(raw.frame.request_id, 4711);
        cr_assert_eq(raw.frame.type, RDT_MSG_PING);
        raw_expect_closed(&raw);
        raw_close(&raw);
    }
    others_are_well();
    end();
}

Test(protocol, largest_frame_is_served)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    ProtobufCMessage *pong;
    struct raw raw;
    uint8_t *data = malloc(RDT_MAX_FRAME_BYTES);

    begin(NULL);
    greeted(&raw);
    memset(data, 1, RDT_MAX_FRAME_BYTES);
    ping.data.data = data;
    ping.data.len = RDT_MAX_FRAME_BYTES - 5; /* field and length take the rest */
    cr_assert_eq(protobuf_c_message_get_packed_size(&ping.base), RDT_MAX_FRAME_BYTES);
    pong = raw_reply(&raw, raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0), &rdt__pb__ping__descriptor);
    protobuf_c_message_free_unpacked(pong, NULL);
    raw_close(&raw);
    free(data);
    end();
}

Test(protocol, frame_that_ends_in_the_middle_is_dropped)
{
    struct raw raw;

    begin(NULL);
    for (size_t cut = 1; cut < 30; cut += 3) {
        uint8_t frame[40] = {0};
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        greeted(&raw);
        frame_header_encode(frame, 24, RDT_MSG_PING, 0, 0, 1);
        must(raw_bytes(&raw, frame, cut));
        raw_close(&raw);
        greeted(&raw); /* with a fd on the way */
        must(raw_frame(&raw, 1000, RDT_MSG_IMPORT, 1, 0, 1, frame, cut, &fd, 1));
        close(fd);
        raw_close(&raw);
    }
    end();
}

Test(protocol, one_byte_at_a_time_is_served)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;
    uint8_t bytes[256];
    struct raw raw;
    size_t n;

    begin(NULL);
    raw_connect(&raw, node.socket);
    hello.protocol_min = hello.protocol_max = 1;
    hello.client_name = (char *)"slow";
    n = rdt__pb__hello__pack(&hello, bytes + FRAME_HEADER_BYTES);
    frame_header_encode(bytes, (uint32_t)n, RDT_MSG_HELLO, 0, 0, ++raw.last_id);
    for (size_t i = 0; i < FRAME_HEADER_BYTES + n; i++) {
        others_are_well(); /* so that the daemon reads in between */
        must(raw_bytes(&raw, bytes + i, 1));
    }
    protobuf_c_message_free_unpacked(raw_reply(&raw, raw.last_id, &rdt__pb__hello_reply__descriptor), NULL);
    ping_works(&raw);
    raw_close(&raw);
    end();
}

Test(protocol, many_frames_in_one_write_are_answered_in_order)
{
    enum { N = 500 };
    uint8_t bytes[N * (FRAME_HEADER_BYTES + 4)];
    struct raw raw;

    begin(NULL);
    greeted(&raw);
    for (unsigned i = 0; i < N; i++) {
        uint8_t *frame = bytes + i * (FRAME_HEADER_BYTES + 4);
        frame_header_encode(frame, 4, RDT_MSG_PING, 0, 0, 1000 + i);
        memcpy(frame + FRAME_HEADER_BYTES, "\x0a\x02hi", 4);
    }
    must(raw_bytes(&raw, bytes, sizeof bytes));
    for (unsigned i = 0; i < N; i++)
        protobuf_c_message_free_unpacked(raw_reply(&raw, 1000 + i, &rdt__pb__ping__descriptor), NULL);
    raw_close(&raw);
    end();
}

Test(protocol, frame_with_flags_is_no_request)
{
    struct raw raw;

    begin(NULL);
    for (unsigned flags = 1; flags < 256; flags *= 2) {
        greeted(&raw);
        must(raw_frame(&raw, 0, RDT_MSG_PING, 0, (uint8_t)flags, 9, "", 0, NULL, 0));
        refuses_and_closes(&raw, RDT_PROTOCOL, "flags");
    }
    end();
}

Test(protocol, broken_messages_are_answered_and_the_connection_lives)
{
    struct raw raw;

    begin(NULL);
    greeted(&raw);
    for (uint16_t type = RDT_MSG_PING; type <= RDT_MSG_EXPLAIN; type++) {
        must(raw_frame(&raw, 4, type, 0, 0, type, "\x0a\xff\xff\xff", 4, NULL, 0));
        refuses(&raw, RDT_PROTOCOL, "broken");
        cr_assert_eq(raw.frame.request_id, type);
    }
    ping_works(&raw);
    raw_close(&raw);
    end();
}

/* A message whose parts take far more memory than its bytes. */
Test(protocol, message_that_blows_up_is_refused)
{
    uint8_t *payload = calloc(1, RDT_MAX_FRAME_BYTES);
    struct raw raw;
    size_t rss;

    begin(NULL);
    greeted(&raw);
    rss = rss_of(node.pid);
    for (size_t i = 0; i + 1 < RDT_MAX_FRAME_BYTES; i += 2)
        payload[i] = 0x0a; /* item: empty */
    must(raw_frame(&raw, RDT_MAX_FRAME_BYTES, RDT_MSG_FETCH, 0, 0, 1, payload, RDT_MAX_FRAME_BYTES, NULL, 0));
    refuses(&raw, RDT_LIMIT, "FETCH");
    ping_works(&raw);
    cr_assert_lt(rss_of(node.pid), rss + 192 * MIB);
    raw_close(&raw);
    free(payload);
    end();
}

Test(protocol, odd_values_are_refused_by_name)
{
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
    Rdt__Pb__Stat stat = RDT__PB__STAT__INIT;
    Rdt__Pb__List list = RDT__PB__LIST__INIT;
    Rdt__Pb__Wait wait = RDT__PB__WAIT__INIT;
    Rdt__Pb__Alloc alloc = RDT__PB__ALLOC__INIT;
    static const int64_t times[] = {INT64_MIN, -5, 0, 1};
    char text[300];
    struct raw raw;

    begin(NULL);
    greeted(&raw);
    memset(text, 'x', sizeof text);
    text[299] = '\0';
    (void)raw_send(&raw, RDT_MSG_STAT, &stat.base, NULL, 0); /* no ref at all */
    refuses(&raw, RDT_INVALID, "");
    stat.ref = &ref;
    (void)raw_send(&raw, RDT_MSG_STAT, &stat.base, NULL, 0); /* no id */
    refuses(&raw, RDT_INVALID, "id");
    ref.id = (ProtobufCBinaryData){129, (uint8_t *)text};
    (void)raw_send(&raw, RDT_MSG_STAT, &stat.base, NULL, 0);
    refuses(&raw, RDT_INVALID, "id");
    ref.id.len = 1;
    ref.node = (ProtobufCBinaryData){5, (uint8_t *)text};
    (void)raw_send(&raw, RDT_MSG_STAT, &stat.base, NULL, 0);
    refuses(&raw, RDT_INVALID, "node");
    ref.node.len = 0;
    ref.tenant = text;
    (void)raw_send(&raw, RDT_MSG_STAT, &stat.base, NULL, 0);
    refuses(&raw, RDT_INVALID, "tenant");
    ref.tenant = (char *)"";
    ref.address = text;
    (void)raw_send(&raw, RDT_MSG_STAT, &stat.base, NULL, 0);
    refuses(&raw, RDT_INVALID, "address");
    ref.address = (char *)"";
    list.kind = (Rdt__Pb__ListKind)99;
    (void)raw_send(&raw, RDT_MSG_LIST, &list.base, NULL, 0);
    refuses(&raw, RDT_INVALID, "99");
    alloc.bytes = UINT64_MAX;
    (void)raw_send(&raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0);
    refuses(&raw, RDT_LIMIT, "memory_limit");
    alloc.memory = text;
    (void)raw_send(&raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0);
    refuses(&raw, RDT_UNSUPPORTED, "");
    alloc.memory = (char *)"";
    alloc.device = text;
    (void)raw_send(&raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0);
    refuses(&raw, RDT_UNSUPPORTED, "device");
    wait.ref = &ref;
    for (unsigned i = 0; i < 4; i++) { /* below 0 is for ever */
        wait.timeout_ns = times[i];
        (void)raw_send(&raw, RDT_MSG_WAIT, &wait.base, NULL, 0);
    }
    refuses(&raw, RDT_TIMED_OUT, "");
    refuses(&raw, RDT_TIMED_OUT, "");
    wait.timeout_ns = INT64_MAX;
    (void)raw_send(&raw, RDT_MSG_WAIT, &wait.base, NULL, 0);
    ping_works(&raw);
    raw_close(&raw);
    end();
}

Test(protocol, fetch_handles_are_the_clients_but_not_twice)
{
    Rdt__Pb__Fetch fetch = RDT__PB__FETCH__INIT;
    Rdt__Pb__FetchItem items[3] = {RDT__PB__FETCH_ITEM__INIT, RDT__PB__FETCH_ITEM__INIT, RDT__PB__FETCH_ITEM__INIT};
    Rdt__Pb__FetchItem *list[3] = {&items[0], &items[1], &items[2]};
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
    struct raw raw;

    begin(NULL);
    greeted(&raw);
    ref.id = (ProtobufCBinaryData){6, (uint8_t *)"nobody"};
    ref.any_owner = true;
    items[0].handle = 0;
    items[1].handle = items[2].handle = 7;
    items[0].ref = items[1].ref = items[2].ref = &ref;
    fetch.items = list;
    fetch.n_items = 3;
    fetch.timeout_ns = -1;
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_FETCH, &fetch.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
    for (unsigned i = 0; i < 2; i++) { /* the 0 and the second 7; the first 7 is parked */
        Rdt__Pb__FetchDone *done;
        must(raw_next(&raw) && raw.frame.type == RDT_EVENT_FETCH_DONE);
        done = rdt__pb__fetch_done__unpack(NULL, raw.frame.length, raw.frame.payload);
        cr_assert_eq(done->status, RDT_INVALID, "%s", done->message);
        rdt__pb__fetch_done__free_unpacked(done, NULL);
    }
    ping_works(&raw);
    raw_close(&raw);
    end();
}

/* ---- fds ---- */

Test(protocol, fds_that_nobody_asked_for_are_closed)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    unsigned before;
    struct raw raw;
    int fds[64];

    begin(NULL);
    greeted(&raw);
    for (unsigned i = 0; i < 64; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    before = fds_of(node.pid);
    for (unsigned i = 0; i < 20; i++) { /* declared, with requests that take none */
        uint64_t id = raw_send(&raw, RDT_MSG_PING, &ping.base, fds, 1 + 3 * i);
        protobuf_c_message_free_unpacked(raw_reply(&raw, id, &rdt__pb__ping__descriptor), NULL);
    }
    cr_assert_eq(fds_of(node.pid), before);
    for (unsigned i = 0; i < 64; i++)
        close(fds[i]);
    raw_close(&raw);
    end();
}

Test(protocol, fds_without_a_claim_end_the_connection)
{
    enum rdt_status status;
    char text[256];
    struct raw raw;
    int fds[200];

    begin(NULL);
    greeted(&raw);
    for (unsigned i = 0; i < 200; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (unsigned i = 0; i < 2; i++) /* 400 fds behind frames that claim none */
        if (!raw_frame(&raw, 0, RDT_MSG_PING, 0, 0, 1, "", 0, fds, 200))
            break;
    while (raw_next(&raw) && !(raw.frame.flags & FRAME_ERROR))
        continue;
    raw_close(&raw);
    greeted(&raw);
    must(raw_frame(&raw, 0, RDT_MSG_PING, 65, 0, 1, "", 0, fds, 65));
    status = raw_error(&raw, text);
    cr_assert(status == RDT_PROTOCOL || status == RDT_LIMIT, "%s", text);
    raw_expect_closed(&raw);
    raw_close(&raw);
    for (unsigned i = 0; i < 200; i++)
        close(fds[i]);
    end();
}

Test(protocol, claimed_fds_that_do_not_come_end_the_connection)
{
    struct raw raw;

    begin(NULL);
    greeted(&raw);
    must(raw_frame(&raw, 0, RDT_MSG_IMPORT, 2, 0, 12, "", 0, NULL, 0));
    refuses(&raw, RDT_PROTOCOL, "fds");
    cr_assert_eq(raw.frame.request_id, 12);
    raw_expect_closed(&raw);
    raw_close(&raw);
    end();
}

/* ---- who does not read ---- */

static int never_read(struct actor *self, void *arg)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    uint8_t *data = calloc(1, 128 * 1024);
    struct raw raw;

    (void)arg;
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    ping.data = (ProtobufCBinaryData){128 * 1024, data};
    for (unsigned i = 0;; i++) {
        struct pollfd fd = {.fd = raw.sock, .events = POLLOUT};
        if (i == 50)
            actor_step(self);         /* more than 6 MB are on the way */
        while (poll(&fd, 1, -1) != 1) /* ends when the test kills it */
            continue;
        (void)raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0);
    }
    return 0;
}

static uint64_t most_queued(void)
{
    Rdt__Pb__List list = RDT__PB__LIST__INIT;
    Rdt__Pb__ListReply *reply;
    uint64_t most = 0;

    list.kind = RDT__PB__LIST_KIND__LIST_KIND_CLIENTS;
    must_ok(call(bystander, RDT_MSG_LIST, &list.base, &rdt__pb__list_reply__descriptor, LONG,
                 (ProtobufCMessage **)(void *)&reply, &err));
    for (size_t i = 0; i < reply->n_clients; i++)
        most = reply->clients[i]->queued_bytes > most ? reply->clients[i]->queued_bytes : most;
    rdt__pb__list_reply__free_unpacked(reply, NULL);
    return most;
}

Test(protocol, client_that_never_reads_is_not_read)
{
    const char *flags[] = {"--client-queue=1MiB", NULL};
    struct actor actors[3];
    size_t rss;

    node_start(&node, &(struct node_options){.flags = flags});
    for (unsigned i = 0; i < 3; i++)
        actor_start(&actors[i], never_read, NULL);
    bystander = node_client(&node, "bystander");
    theirs = put_one(bystander, &VECTOR(RDT_U8, 4096, alloc_memory(bystander, 4096)), "theirs");
    rss = rss_of(node.pid);
    wait_until(20 * SEC, most_queued() > MIB);
    for (unsigned i = 0; i < 200; i++) {
        rdt_object *object = fetch_one(bystander, &theirs, (enum rdt_fetch_mode)(i % 3));
        rdt_release(object);
        cr_assert_leq(most_queued(), 2 * MIB);
    }
    cr_assert_lt(rss_of(node.pid), rss + 64 * MIB);
    for (unsigned i = 0; i < 3; i++)
        actor_kill(&actors[i], SIGKILL);
    rdt_close(bystander);
    node_end(&node, NULL);
}

Test(protocol, late_reader_gets_every_answer)
{
    enum { N = 60 };
    const char *flags[] = {"--client-queue=1MiB", NULL};
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    static uint8_t data[100000];
    uint8_t *bytes = malloc(N * (sizeof data + 64));
    size_t n = 0, sent = 0;
    struct raw raw;

    begin(&(struct node_options){.flags = flags});
    greeted(&raw);
    ping.data = (ProtobufCBinaryData){sizeof data, data};
    for (unsigned i = 0; i < N; i++) {
        size_t packed = rdt__pb__ping__pack(&ping, bytes + n + FRAME_HEADER_BYTES);
        frame_header_encode(bytes + n, (uint32_t)packed, RDT_MSG_PING, 0, 0, 100 + i);
        n += FRAME_HEADER_BYTES + packed;
    }
    /* As much as fits without reading a byte; then both ways. */
    for (unsigned got = 0; got < N;) {
        struct pollfd fd = {.fd = raw.sock, .events = got == 0 ? POLLOUT : POLLOUT | POLLIN};
        while (sent < n && poll(&fd, 1, got == 0 ? 200 : (int)(LONG / MSEC)) == 1 && fd.revents & POLLOUT) {
            ssize_t now = send(raw.sock, bytes + sent, n - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (now <= 0)
                break;
            sent += (size_t)now;
        }
        protobuf_c_message_free_unpacked(raw_reply(&raw, 100 + got++, &rdt__pb__ping__descriptor), NULL);
    }
    cr_assert_eq(sent, n);
    ping_works(&raw);
    raw_close(&raw);
    free(bytes);
    end();
}

/* ---- whatever comes to mind ---- */

static size_t make_message(unsigned kind, uint8_t *bytes, uint16_t *type_p)
{
    static uint32_t dtype[] = {RDT_F32, RDT_U8}, ndim[] = {1, 2}, region_index[] = {0, 0};
    static uint64_t shape[] = {4, 2, 2}, offset[] = {0, 64};
    static int64_t strides[] = {1, 2, 1};
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[] = {&use};
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
    Rdt__Pb__Put put = RDT__PB__PUT__INIT;
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item};
    Rdt__Pb__Slice slice = RDT__PB__SLICE__INIT;
    Rdt__Pb__Fetch fetch = RDT__PB__FETCH__INIT;
    Rdt__Pb__Alloc alloc = RDT__PB__ALLOC__INIT;
    Rdt__Pb__Free free_message = RDT__PB__FREE__INIT;
    Rdt__Pb__List list = RDT__PB__LIST__INIT;
    const ProtobufCMessage *messages[] = {&put.base, &fetch.base, &alloc.base, &free_message.base, &list.base};
    static const uint16_t types[] = {RDT_MSG_PUT, RDT_MSG_FETCH, RDT_MSG_ALLOC, RDT_MSG_FREE, RDT_MSG_LIST};

    use.region = use.generation = 1;
    tensors.dtype = dtype;
    tensors.ndim = ndim;
    tensors.shape = shape;
    tensors.strides = strides;
    tensors.region_index = region_index;
    tensors.offset = offset;
    tensors.n_dtype = tensors.n_ndim = tensors.n_region_index = tensors.n_offset = 2;
    tensors.n_shape = tensors.n_strides = 3;
    ref.id = (ProtobufCBinaryData){1, (uint8_t *)"w"};
    ref.any_owner = true;
    put.id = ref.id;
    put.regions = uses;
    put.n_regions = 1;
    put.tensors = &tensors;
    slice.start = shape;
    slice.count = shape;
    slice.ndim = ndim;
    slice.n_start = slice.n_count = 3;
    slice.n_ndim = 2;
    item.handle = 9;
    item.ref = &ref;
    item.slice = &slice;
    item.targets = &tensors;
    item.target_regions = uses;
    item.n_target_regions = 1;
    fetch.items = items;
    fetch.n_items = 1;
    fetch.timeout_ns = 1000000;
    fetch.transport = (char *)"copy";
    alloc.bytes = 128;
    alloc.memory = (char *)"host";
    free_message.ref = &ref;
    list.state = (char *)"live";
    *type_p = types[kind % 5];
    return protobuf_c_message_pack(messages[kind % 5], bytes);
}

Test(protocol, mutated_messages_break_nothing)
{
    uint64_t random = 7;
    unsigned rounds = 60;

    begin(NULL);
    for (unsigned round = 0; round < rounds; round++) {
        struct raw raw;
        bool open = true;
        greeted(&raw);
        for (unsigned i = 0; i < 40 && open; i++) {
            uint8_t bytes[1024], drain[65536];
            uint16_t type;
            size_t n = make_message(i == 0 ? 2 : next_random(&random), bytes, &type);
            for (unsigned flips = i == 0 ? 0 : next_random(&random) % 4; flips > 0; flips--)
                bytes[next_random(&random) % n] = (uint8_t)next_random(&random);
            if (next_random(&random) % 16 == 0)
                n = next_random(&random) % (n + 1);
            open = raw_frame(&raw, (uint32_t)n, type, 0, 0, i, bytes, n, NULL, 0);
            while (recv(raw.sock, drain, sizeof drain, MSG_DONTWAIT) > 0)
                continue;
        }
        raw_close(&raw);
        if (round % 10 == 0)
            others_are_well();
    }
    end();
}
