/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that are well-formed and make no sense: unknown flags, too many of everything, slices and targets that do not
 * fit, sessions and numbers of others. Each is refused with a sentence that names the thing. */
#include "proto/rdt_dtype.h"
#include "tests/integration/hostile/protocol_fixture.h"
#include "tests/support/program.h"

static struct raw raw;

static void start(void)
{
    begin_greeted(&raw);
}

static void finish(void)
{
    ping_works(&raw);
    end_closed(&raw);
}

/* ---- put ---- */

#define PUT_REFUSED(expected, says, ...)                       \
    do {                                                       \
        Rdt__Pb__Put put = RDT__PB__PUT__INIT;                 \
        __VA_ARGS__;                                           \
        (void)raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0); \
        refuses(&raw, expected, says);                         \
    } while (0)

Test(hostile_requests, puts_of_the_future_and_of_too_much_are_refused)
{
    enum { MANY = 131073 };
    static uint32_t dtype[MANY], ndim[MANY];
    static uint8_t bytes[9 << 20];
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT;
    Rdt__Pb__RegionUse **uses = malloc(5000 * sizeof *uses);
    char text[300];

    start();
    for (unsigned i = 0; i < MANY; i++)
        dtype[i] = RDT_U8;
    for (unsigned i = 0; i < 5000; i++)
        uses[i] = &use;
    memset(text, 'x', sizeof text);
    text[299] = '\0';
    Rdt__Pb__TensorList tensors = MESSAGE(tensor_list, .dtype = dtype, .ndim = ndim);
    tensors.n_dtype = tensors.n_ndim = MANY;
    PUT_REFUSED(RDT_LIMIT, "131073", put.tensors = &tensors);
    PUT_REFUSED(RDT_INVALID, "flags 2147483648", put.flags = UINT32_C(1) << 31);
    PUT_REFUSED(RDT_INVALID, "visibility 3", put.visibility = (Rdt__Pb__Visibility)3);
    PUT_REFUSED(RDT_INVALID, "visibility -1", put.visibility = (Rdt__Pb__Visibility)-1);
    PUT_REFUSED(RDT_LIMIT, "metadata has 9437184 bytes: at most 8388608",
                put.metadata = (ProtobufCBinaryData){sizeof bytes, bytes});
    PUT_REFUSED(RDT_INVALID, "id has 129 bytes: at most 128", put.id = (ProtobufCBinaryData){129, bytes});
    PUT_REFUSED(RDT_LIMIT, "in 5000 regions: at most 4096", put.regions = uses; put.n_regions = 5000);
    PUT_REFUSED(RDT_UNSUPPORTED, "\"nosuch\" is not loaded", put.transport = (char *)"nosuch");
    PUT_REFUSED(RDT_UNSUPPORTED, "\"xxxx", put.transport = text);
    free(uses);
    finish();
}

/* Fields that nobody knows yet are passed over; known ones in another form are a broken message. */
Test(hostile_requests, unknown_fields_are_passed_over_and_wrong_types_are_broken)
{
    static const struct {
        uint16_t type;
        const char *payload;
        size_t n;
        bool broken;
    } messages[] = {
        {RDT_MSG_STATUS, "\xfa\x3f\x04next", 7, false}, /* field 1023, bytes */
        {RDT_MSG_STATUS,
         "\xf8\x3f\x01\xfd\x3f"
         "abcd\xf9\x3f"
         "abcdefgh",
         19, false},                                   /* varint, 32 and 64 bits */
        {RDT_MSG_STATUS, "\x0a\x7f", 2, true},         /* longer than the message */
        {RDT_MSG_STATUS, "\xfb\x3f\xfc\x3f", 4, true}, /* groups */
        {RDT_MSG_STATUS, "\x07", 1, true},             /* no such wire type */
        {RDT_MSG_STATUS, "\x00\x00", 2, true},         /* field 0 */
        {RDT_MSG_STATUS, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, true},
        {RDT_MSG_ALLOC, "\x1a\x01x", 3, true},           /* bytes where a number is */
        {RDT_MSG_ALLOC, "\x08\x01", 2, true},            /* a number where text is */
        {RDT_MSG_STAT, "\x0d\x01\x01\x01\x01", 5, true}, /* 32 bits where a message is */
        {RDT_MSG_PUT, "\x3a\x03\x0a\x01\xff", 5, true},  /* a packed column that ends in a number */
    };
    char text[256];

    start();
    for (unsigned i = 0; i < sizeof messages / sizeof *messages; i++) {
        must(raw_frame(&raw, (uint32_t)messages[i].n, messages[i].type, 0, 0, 70 + i, messages[i].payload, messages[i].n, NULL,
                       0));
        if (messages[i].broken) {
            enum rdt_status status = raw_error(&raw, text);
            must_say(status == RDT_PROTOCOL && strstr(text, "cannot be decoded"), "message %u: %s: %s", i,
                     rdt_status_name(status), text);
        } else {
            protobuf_c_message_free_unpacked(raw_reply(&raw, 70 + i, &rdt__pb__status_reply__descriptor), NULL);
        }
    }
    finish();
}

/* ---- fetch ---- */

static void fetch_ends(int line, const Rdt__Pb__Fetch *fetch, enum rdt_status expected, const char *says)
{
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_FETCH, &fetch->base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
    must(raw_next(&raw) && raw.frame.type == RDT_EVENT_FETCH_DONE);
    Rdt__Pb__FetchDone *done = rdt__pb__fetch_done__unpack(NULL, raw.frame.length, raw.frame.payload);
    must_say(done->status == (int32_t)expected && strstr(done->message, says), "line %d: %s: %s", line,
             rdt_status_name((enum rdt_status)done->status), done->message);
    rdt__pb__fetch_done__free_unpacked(done, NULL);
    frame_close_fds(&raw.frame);
}

#define FETCH_ENDS(expected, says, ...)                                          \
    do {                                                                         \
        Rdt__Pb__Fetch fetch = RDT__PB__FETCH__INIT;                             \
        Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item}; \
        Rdt__Pb__Ref ref = RDT__PB__REF__INIT;                                   \
        Rdt__Pb__Slice slice = RDT__PB__SLICE__INIT;                             \
        Rdt__Pb__TensorList targets = RDT__PB__TENSOR_LIST__INIT;                \
        (void)slice, (void)targets;                                              \
        ref.id = (ProtobufCBinaryData){6, (uint8_t *)"theirs"};                  \
        ref.any_owner = true;                                                    \
        item.ref = &ref;                                                         \
        item.handle = ++handle;                                                  \
        fetch.items = items;                                                     \
        fetch.n_items = 1;                                                       \
        fetch.timeout_ns = 20 * SEC;                                             \
        __VA_ARGS__;                                                             \
        fetch_ends(__LINE__, &fetch, expected, says);                            \
    } while (0)

/* "theirs" is a vector of 4,096 bytes. */
Test(hostile_requests, fetches_that_do_not_fit_are_refused_by_name)
{
    uint64_t zero[] = {0, 0}, all[] = {4096, 1}, over[] = {4097}, most[] = {UINT64_MAX};
    uint32_t one_dim[] = {1, 1}, two_dims[] = {2}, dtype[] = {RDT_U8, RDT_F32}, none[] = {0, 0};
    uint64_t handle = 0, now, forged;
    char text[400];

    start();
    memset(text, 'y', sizeof text);
    text[399] = '\0';
    now = theirs.generation;
    forged = now ^ UINT64_C(1) << 30;
#define SLICE(s, c, n, d, nd)          \
    item.slice = &slice;               \
    slice.start = s;                   \
    slice.count = c;                   \
    slice.n_start = slice.n_count = n; \
    slice.ndim = d;                    \
    slice.n_ndim = nd
    FETCH_ENDS(RDT_INVALID, "tensor 0", SLICE(zero, over, 1, one_dim, 1));
    FETCH_ENDS(RDT_INVALID, "tensor 0", SLICE(most, all, 1, one_dim, 1));
    FETCH_ENDS(RDT_INVALID, "tensor 0", SLICE(most, most, 1, one_dim, 1));
    FETCH_ENDS(RDT_INVALID, "", SLICE(zero, all, 2, two_dims, 1));
    FETCH_ENDS(RDT_INVALID, "", SLICE(zero, all, 2, one_dim, 2));
    FETCH_ENDS(RDT_INVALID, "", SLICE(zero, all, 1, one_dim, 1); slice.n_count = 0);
    FETCH_ENDS(RDT_INVALID, "", SLICE(zero, all, 1, none, 1));
#define TARGETS(n, types, dims, shapes, n_shapes) \
    item.targets = &targets;                      \
    targets.n_dtype = targets.n_ndim = n;         \
    targets.dtype = types;                        \
    targets.ndim = dims;                          \
    targets.shape = shapes;                       \
    targets.n_shape = n_shapes
    FETCH_ENDS(RDT_INVALID, "", TARGETS(1, dtype, one_dim, all, 1)); /* in no region */
    FETCH_ENDS(RDT_INVALID, "tensor 0", TARGETS(1, dtype, one_dim, most, 1));
    FETCH_ENDS(RDT_INVALID, "dimensions", TARGETS(1, dtype, two_dims, all, 1));
    FETCH_ENDS(RDT_MISMATCH, "", TARGETS(0, dtype, one_dim, all, 0));
    FETCH_ENDS(RDT_INVALID, "99", fetch.mode = (Rdt__Pb__FetchMode)99);
    FETCH_ENDS(RDT_NOT_FOUND, "theirs", ref.generation = forged);
    FETCH_ENDS(RDT_UNSUPPORTED, "", ref.node = (ProtobufCBinaryData){16, (uint8_t *)text}; ref.address = (char *)"127.0.0.1:1");
    FETCH_ENDS(RDT_INVALID, "node", ref.node = (ProtobufCBinaryData){15, (uint8_t *)text});
    FETCH_ENDS(RDT_INVALID, "address", ref.address = text);
    FETCH_ENDS(RDT_INVALID, "handle", item.handle = 0);
    FETCH_ENDS(RDT_INVALID, "", item.ref = NULL);
    FETCH_ENDS(RDT_UNSUPPORTED, "\"nosuch\"", fetch.transport = (char *)"nosuch");
    FETCH_ENDS(RDT_INVALID, "64 characters", fetch.transport = text);
    FETCH_ENDS(RDT_INVALID, "nosuch", fetch.least_path = (char *)"nosuch");
    FETCH_ENDS(RDT_UNSUPPORTED, "cuda", fetch.device = (char *)"cuda:0");
    FETCH_ENDS(RDT_OK, "", ref.generation = now);
    finish();
}

/* ---- things of other clients ---- */

Test(hostile_requests, forged_session_token_is_a_new_session)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;
    Rdt__Pb__HelloReply *first, *second;
    uint8_t token[64];
    struct raw forger;

    begin(NULL);
    hello.protocol_min = hello.protocol_max = 1;
    raw_connect(&raw, node.socket);
    first = (Rdt__Pb__HelloReply *)raw_reply(&raw, raw_send(&raw, RDT_MSG_HELLO, &hello.base, NULL, 0),
                                             &rdt__pb__hello_reply__descriptor);
    for (unsigned i = 0; i < 3; i++) { /* all zero, of another length, and the true one of a session that lives */
        memset(token, 0, sizeof token);
        hello.session_token = i < 2 ? (ProtobufCBinaryData){i ? 64 : 16, token} : first->session_token;
        raw_connect(&forger, node.socket);
        second = (Rdt__Pb__HelloReply *)raw_reply(&forger, raw_send(&forger, RDT_MSG_HELLO, &hello.base, NULL, 0),
                                                  &rdt__pb__hello_reply__descriptor);
        cr_assert_neq(second->session_id, first->session_id);
        rdt__pb__hello_reply__free_unpacked(second, NULL);
        ping_works(&forger);
        raw_close(&forger);
    }
    rdt__pb__hello_reply__free_unpacked(first, NULL);
    finish();
}

Test(hostile_requests, numbers_that_mean_nothing_are_answered)
{
    static const uint64_t numbers[] = {0, 1, 7, UINT32_MAX, UINT64_MAX};

    start();
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        Rdt__Pb__Cancel cancel = RDT__PB__CANCEL__INIT;
        Rdt__Pb__Release release = RDT__PB__RELEASE__INIT;
        Rdt__Pb__CancelRequest cancel_request = RDT__PB__CANCEL_REQUEST__INIT;
        Rdt__Pb__Explain explain = RDT__PB__EXPLAIN__INIT;
        Rdt__Pb__List list = RDT__PB__LIST__INIT;
        char text[32];

        cancel.handle = release.hold = cancel_request.request_id = explain.transfer = list.after = numbers[i];
        protobuf_c_message_free_unpacked(
            raw_reply(&raw, raw_send(&raw, RDT_MSG_CANCEL, &cancel.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
        (void)snprintf(text, sizeof text, "no hold %llu", (unsigned long long)numbers[i]);
        if (numbers[i]) { /* 0: it says only what is unmapped */
            (void)raw_send(&raw, RDT_MSG_RELEASE, &release.base, NULL, 0);
            refuses(&raw, RDT_NOT_FOUND, text);
        }
        protobuf_c_message_free_unpacked(
            raw_reply(&raw, raw_send(&raw, RDT_MSG_CANCEL_REQUEST, &cancel_request.base, NULL, 0), &rdt__pb__empty__descriptor),
            NULL);
        if (numbers[i]) {
            (void)raw_send(&raw, RDT_MSG_EXPLAIN, &explain.base, NULL, 0);
            refuses(&raw, RDT_NOT_FOUND, "transfer");
        }
        protobuf_c_message_free_unpacked(
            raw_reply(&raw, raw_send(&raw, RDT_MSG_LIST, &list.base, NULL, 0), &rdt__pb__list_reply__descriptor), NULL);
    }
    finish();
}

static void cancel(struct raw *by, uint64_t request_id)
{
    Rdt__Pb__CancelRequest message = MESSAGE(cancel_request, .request_id = request_id);

    protobuf_c_message_free_unpacked(
        raw_reply(by, raw_send(by, RDT_MSG_CANCEL_REQUEST, &message.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
}

/* A request number means something in its own session only, and for the last few requests. */
Test(hostile_requests, cancel_ends_what_an_answered_request_of_the_same_session_brought)
{
    enum { MANY = 17 }; /* one more than the daemon remembers */
    Rdt__Pb__Put put = RDT__PB__PUT__INIT;
    Rdt__Pb__ReleaseRegion release = RDT__PB__RELEASE_REGION__INIT;
    uint64_t ids[MANY], before, generation;
    struct raw other;

    start();
    greeted(&other);
    before = node_now(&node).objects;
    for (unsigned i = 0; i < MANY; i++) {
        ids[i] = raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0);
        protobuf_c_message_free_unpacked(raw_reply(&raw, ids[i], &rdt__pb__put_reply__descriptor), NULL);
    }
    for (unsigned i = 0; i < MANY; i++)
        cancel(&other, ids[i]);
    must(node_now(&node).objects == before + MANY);
    for (unsigned i = 0; i < 2 * MANY; i++) /* twice: what has ended does not end again */
        cancel(&raw, ids[i % MANY]);
    must(node_now(&node).objects == before + 1);

    release.region = raw_alloc(&raw, MIB, NULL, &generation);
    cancel(&other, raw.last_id);
    cancel(&raw, raw.last_id);
    (void)raw_send(&raw, RDT_MSG_RELEASE_REGION, &release.base, NULL, 0);
    refuses(&raw, RDT_NOT_FOUND, "no region");
    raw_close(&other);
    finish();
}

/* A name that would clear a terminal, or read from right to left there. */
Test(hostile_requests, name_of_a_client_is_shown_as_plain_text)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;
    struct program ctl;

    begin(&(struct node_options){.log = "trace"});
    raw_connect(&raw, node.socket);
    hello.protocol_min = hello.protocol_max = RDT_PROTOCOL_MAX;
    hello.client_name = (char *)"evil\xc2\x9b"
                                "2J\x1b[2J\xe2\x80\xae"
                                "live";
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_HELLO, &hello.base, NULL, 0), &rdt__pb__hello_reply__descriptor), NULL);
    program_run(&ctl, (const char *[]){"rdtctl", "--socket", node.socket, "clients", NULL}, NULL);
    must_say(ctl.status == 0 && strstr(ctl.out, "evil??2J?[2J???live"), "%s%s", ctl.out, ctl.err);
    program_free(&ctl);
    must(node_log_has(&node, "evil??2J?[2J???live"));
    end_closed(&raw);
}

/* The loop serves nobody else while it fills a page, so a page of transfers that have ended is short as well. */
Test(hostile_requests, list_of_ended_transfers_comes_in_short_pages)
{
    enum { ENDED = 400 };
    Rdt__Pb__List list = RDT__PB__LIST__INIT;
    size_t n = 0, pages = 0;

    start();
    for (unsigned i = 0; i < ENDED; i++)
        rdt_release(fetch_one(bystander, &theirs, RDT_FETCH_COPY));
    list.kind = RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS;
    do {
        Rdt__Pb__ListReply *page = (Rdt__Pb__ListReply *)raw_reply(&raw, raw_send(&raw, RDT_MSG_LIST, &list.base, NULL, 0),
                                                                   &rdt__pb__list_reply__descriptor);
        n += page->n_transfers;
        list.after = page->next;
        protobuf_c_message_free_unpacked(&page->base, NULL);
        pages++;
    } while (list.after != 0);
    cr_assert_eq(n, ENDED);
    cr_assert_gt(pages, 2);
    finish();
}
