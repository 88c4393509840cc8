/* SPDX-License-Identifier: Apache-2.0 */
/* Broken and hostile clients: the daemon answers what can be answered, ends the connection, and nobody else is affected. */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/integration/hostile/protocol_fixture.h"

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
    end_closed(&raw);
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

    begin_greeted(&raw);
    hello.protocol_min = hello.protocol_max = 1;
    (void)raw_send(&raw, RDT_MSG_HELLO, &hello.base, NULL, 0);
    refuses(&raw, RDT_PROTOCOL, "only for the first request");
    ping_works(&raw);
    for (unsigned type = 0; type < 65536; type += 997) {
        if (type >= 1 && type <= 17)
            continue;
        must(raw_frame(&raw, 2, (uint16_t)type, 0, 0, 5, "\x08\x01", 2, NULL, 0));
        refuses(&raw, RDT_UNSUPPORTED, "is unknown to this daemon");
    }
    ping_works(&raw);
    end_closed(&raw);
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
    struct raw raw;
    uint8_t *data = malloc(RDT_MAX_FRAME_BYTES);

    begin_greeted(&raw);
    memset(data, 1, RDT_MAX_FRAME_BYTES);
    ping.data.data = data;
    ping.data.len = RDT_MAX_FRAME_BYTES - 5; /* field and length take the rest */
    cr_assert_eq(protobuf_c_message_get_packed_size(&ping.base), RDT_MAX_FRAME_BYTES);
    ProtobufCMessage *pong = raw_reply(&raw, raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0), &rdt__pb__ping__descriptor);
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

    begin(NULL);
    raw_connect(&raw, node.socket);
    hello.protocol_min = hello.protocol_max = 1;
    hello.client_name = (char *)"slow";
    size_t n = rdt__pb__hello__pack(&hello, bytes + FRAME_HEADER_BYTES);
    frame_header_encode(bytes, (uint32_t)n, RDT_MSG_HELLO, 0, 0, ++raw.last_id);
    for (size_t i = 0; i < FRAME_HEADER_BYTES + n; i++) {
        others_are_well(); /* so that the daemon reads in between */
        must(raw_bytes(&raw, bytes + i, 1));
    }
    protobuf_c_message_free_unpacked(raw_reply(&raw, raw.last_id, &rdt__pb__hello_reply__descriptor), NULL);
    ping_works(&raw);
    end_closed(&raw);
}

Test(protocol, many_frames_in_one_write_are_answered_in_order)
{
    enum { N = 500 };
    uint8_t bytes[N * (FRAME_HEADER_BYTES + 4)];
    struct raw raw;

    begin_greeted(&raw);
    for (unsigned i = 0; i < N; i++) {
        uint8_t *frame = bytes + i * (FRAME_HEADER_BYTES + 4);
        frame_header_encode(frame, 4, RDT_MSG_PING, 0, 0, 1000 + i);
        memcpy(frame + FRAME_HEADER_BYTES, "\x0a\x02hi", 4);
    }
    must(raw_bytes(&raw, bytes, sizeof bytes));
    for (unsigned i = 0; i < N; i++)
        protobuf_c_message_free_unpacked(raw_reply(&raw, 1000 + i, &rdt__pb__ping__descriptor), NULL);
    end_closed(&raw);
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

    begin_greeted(&raw);
    for (uint16_t type = RDT_MSG_PING; type <= RDT_MSG_EXPLAIN; type++) {
        must(raw_frame(&raw, 4, type, 0, 0, type, "\x0a\xff\xff\xff", 4, NULL, 0));
        refuses(&raw, RDT_PROTOCOL, "cannot be decoded");
        cr_assert_eq(raw.frame.request_id, type);
    }
    ping_works(&raw);
    end_closed(&raw);
}

/* A message whose parts take far more memory than its bytes. */
Test(protocol, message_that_blows_up_is_refused)
{
    uint8_t *payload = calloc(1, RDT_MAX_FRAME_BYTES);
    struct raw raw;

    begin_greeted(&raw);
    size_t rss = rss_of(node.pid);
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
    static const int64_t times[] = {INT64_MIN, -5, 0, 1};
    char text[300];
    struct raw raw;

    begin_greeted(&raw);
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
    Rdt__Pb__List list = MESSAGE(list, .kind = (Rdt__Pb__ListKind)99);
    (void)raw_send(&raw, RDT_MSG_LIST, &list.base, NULL, 0);
    refuses(&raw, RDT_INVALID, "99");
    Rdt__Pb__Alloc alloc = MESSAGE(alloc, .bytes = UINT64_MAX);
    (void)raw_send(&raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0);
    refuses(&raw, RDT_LIMIT, "memory_limit");
    alloc.memory = text;
    (void)raw_send(&raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0);
    refuses(&raw, RDT_UNSUPPORTED, "");
    alloc.memory = (char *)"";
    alloc.device = text;
    (void)raw_send(&raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0);
    refuses(&raw, RDT_UNSUPPORTED, "device");
    Rdt__Pb__Wait wait = MESSAGE(wait, .ref = &ref);
    for (unsigned i = 0; i < 4; i++) { /* below 0 is for ever */
        wait.timeout_ns = times[i];
        (void)raw_send(&raw, RDT_MSG_WAIT, &wait.base, NULL, 0);
    }
    refuses(&raw, RDT_NOT_PUT, "");
    refuses(&raw, RDT_TIMED_OUT, "");
    wait.timeout_ns = INT64_MAX;
    (void)raw_send(&raw, RDT_MSG_WAIT, &wait.base, NULL, 0);
    ping_works(&raw);
    end_closed(&raw);
}

Test(protocol, fetch_handles_are_the_clients_but_not_twice)
{
    Rdt__Pb__FetchItem items[3] = {RDT__PB__FETCH_ITEM__INIT, RDT__PB__FETCH_ITEM__INIT, RDT__PB__FETCH_ITEM__INIT};
    Rdt__Pb__FetchItem *list[3] = {&items[0], &items[1], &items[2]};
    struct raw raw;

    begin_greeted(&raw);
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){6, (uint8_t *)"nobody"}, .any_owner = true);
    items[0].handle = 0;
    items[1].handle = items[2].handle = 7;
    items[0].ref = items[1].ref = items[2].ref = &ref;
    Rdt__Pb__Fetch fetch = MESSAGE(fetch, .items = list, .n_items = 3, .timeout_ns = -1);
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_FETCH, &fetch.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
    for (unsigned i = 0; i < 2; i++) { /* the 0 and the second 7; the first 7 is parked */
        must(raw_next(&raw) && raw.frame.type == RDT_EVENT_FETCH_DONE);
        Rdt__Pb__FetchDone *done = rdt__pb__fetch_done__unpack(NULL, raw.frame.length, raw.frame.payload);
        cr_assert_eq(done->status, RDT_INVALID, "%s", done->message);
        rdt__pb__fetch_done__free_unpacked(done, NULL);
    }
    ping_works(&raw);
    end_closed(&raw);
}

/* ---- fds ---- */

Test(protocol, fds_that_nobody_asked_for_are_closed)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    struct raw raw;
    int fds[64];

    begin_greeted(&raw);
    for (unsigned i = 0; i < 64; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    unsigned before = fds_of(node.pid);
    for (unsigned i = 0; i < 20; i++) { /* declared, with requests that take none */
        uint64_t id = raw_send(&raw, RDT_MSG_PING, &ping.base, fds, 1 + 3 * i);
        protobuf_c_message_free_unpacked(raw_reply(&raw, id, &rdt__pb__ping__descriptor), NULL);
    }
    wait_until(LONG, fds_of(node.pid) <= before); /* another thread closes them */
    for (unsigned i = 0; i < 64; i++)
        close(fds[i]);
    end_closed(&raw);
}

Test(protocol, fds_without_a_claim_end_the_connection)
{
    char text[256];
    struct raw raw;
    int fds[200];

    begin_greeted(&raw);
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
    enum rdt_status status = raw_error(&raw, text);
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

    begin_greeted(&raw);
    must(raw_frame(&raw, 0, RDT_MSG_IMPORT, 2, 0, 12, "", 0, NULL, 0));
    refuses(&raw, RDT_PROTOCOL, "fds");
    cr_assert_eq(raw.frame.request_id, 12);
    raw_expect_closed(&raw);
    end_closed(&raw);
}
