/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that do not read, and messages with one or two changed bytes. The daemon's memory stays bounded, and nobody else
 * is affected. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/capability.h>

#include "tests/integration/hostile/protocol_fixture.h"

/* ---- who does not read ---- */

Test(protocol, client_that_never_reads_is_not_read)
{
    struct actor actors[3];

    node_start(&node, NULL);
    for (unsigned i = 0; i < 3; i++)
        actor_start(&actors[i], never_read, NULL);
    bystander = node_client(&node, "bystander");
    theirs = put_one(bystander, &VECTOR(RDT_U8, 4096, alloc_memory(bystander, 4096)), "theirs");
    size_t rss = rss_of(node.pid);
    wait_until(20 * SEC, most_queued() > UNREAD_MAX);
    for (unsigned i = 0; i < 200; i++) {
        rdt_object *object = fetch_one(bystander, &theirs, (enum rdt_fetch_mode)(i % 3));
        rdt_release(object);
        cr_assert_leq(most_queued(), UNREAD_MAX + MIB);
    }
    must_say(rss_of(node.pid) < rss + (3 * UNREAD_MAX + 40 * MIB) * (size_t)patience(1), "%zu MiB more",
             (rss_of(node.pid) - rss) / MIB);
    for (unsigned i = 0; i < 3; i++)
        actor_kill(&actors[i], SIGKILL);
    rdt_close(bystander);
    node_end(&node, NULL);
}

Test(protocol, late_reader_gets_every_answer)
{
    enum { N = 150 }; /* more than UNREAD_MAX */
    static uint8_t data[100000];
    uint8_t *bytes = malloc(N * (sizeof data + 64));
    size_t n = 0, sent = 0;
    struct raw raw;

    begin_greeted(&raw);
    Rdt__Pb__Ping ping = MESSAGE(ping, .data = (ProtobufCBinaryData){sizeof data, data});
    for (unsigned i = 0; i < N; i++) {
        size_t packed = rdt__pb__ping__pack(&ping, bytes + n + FRAME_HEADER_BYTES);
        frame_header_encode(bytes + n, (uint32_t)packed, RDT_MSG_PING, 0, 0, 100 + i);
        n += FRAME_HEADER_BYTES + packed;
    }
    /* First sends as much as fits without reading a byte, then sends and reads. */
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

static bool can_fetch(void)
{
    rdt_object *object;

    if (try_fetch(bystander, &theirs, RDT_FETCH_SHARE, LONG, &object, NULL) != RDT_OK)
        return false;
    rdt_release(object);
    return true;
}

/* The kernel takes as many descriptors on their way from a process without privileges as it may have open files. Neither
 * sessions that do not read their answers, nor those that have ended with unread answers, take all of them. */
Test(protocol, unread_descriptors_of_one_user_hold_up_nobody_else)
{
    enum { FILES = 1024, SESSIONS = 24, FETCHES = 200, STRANGER = 12345 };
    const struct rlimit files = {FILES, FILES};
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item};
    Rdt__Pb__Fetch fetch = RDT__PB__FETCH__INIT;
    static struct raw raws[SESSIONS];
    struct raw stranger;
    struct node_status status;
    uint8_t bytes[256];
    uint64_t generation;
    unsigned begun = SESSIONS / 2;

    if (geteuid() != 0)
        cr_skip_test("needs root, to become another user");
    must(setrlimit(RLIMIT_NOFILE, &files) == 0 && prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE) == 0 &&
         prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN) == 0);
    begin(NULL);
    ref.id = (ProtobufCBinaryData){6, (uint8_t *)"theirs"};
    ref.any_owner = true;
    item.ref = &ref;
    fetch.items = items;
    fetch.n_items = 1;
    fetch.mode = RDT__PB__FETCH_MODE__FETCH_MODE_SHARE;
    for (unsigned i = 0; i < SESSIONS; i++) {
        if (i == begun) /* the daemon ends these, and their ends stay open here with what they have not read */
            for (unsigned k = 0; k < begun; k++)
                (void)send(raws[k].sock, "\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377", 16,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
        greeted(&raws[i]);
        for (item.handle = 1; item.handle <= FETCHES; item.handle++) {
            size_t packed = rdt__pb__fetch__pack(&fetch, bytes + FRAME_HEADER_BYTES);
            frame_header_encode(bytes, (uint32_t)packed, RDT_MSG_FETCH, 0, 0, item.handle);
            (void)send(raws[i].sock, bytes, FRAME_HEADER_BYTES + packed, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
    wait_until(LONG, (node_status(&node, &status), status.transfers_done > FILES));
    must(seteuid(STRANGER) == 0);
    greeted(&stranger);
    must(seteuid(0) == 0);
    for (unsigned i = 0; i < 4; i++)
        (void)raw_alloc(&stranger, 4096, NULL, &generation);
    raw_close(&stranger);
    for (unsigned i = 0; i < SESSIONS; i++)
        raw_close(&raws[i]);
    wait_until(LONG, can_fetch()); /* their descriptors are this user's, until the daemon has seen the ends */
    end();
}

/* ---- whatever comes to mind ---- */

static size_t make_message(unsigned kind, uint8_t *bytes, uint16_t *type_p)
{
    static uint32_t dtype[] = {RDT_F32, RDT_U8}, ndim[] = {1, 2}, region_index[] = {0, 0};
    static uint64_t shape[] = {4, 2, 2}, offset[] = {0, 64};
    static int64_t strides[] = {1, 2, 1};
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[] = {&use};
    Rdt__Pb__Put put = RDT__PB__PUT__INIT;
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item};
    Rdt__Pb__Fetch fetch = RDT__PB__FETCH__INIT;
    Rdt__Pb__Alloc alloc = RDT__PB__ALLOC__INIT;
    Rdt__Pb__Free free_message = RDT__PB__FREE__INIT;
    Rdt__Pb__List list = RDT__PB__LIST__INIT;
    const ProtobufCMessage *messages[] = {&put.base, &fetch.base, &alloc.base, &free_message.base, &list.base};
    static const uint16_t types[] = {RDT_MSG_PUT, RDT_MSG_FETCH, RDT_MSG_ALLOC, RDT_MSG_FREE, RDT_MSG_LIST};

    use.region = use.generation = 1;
    Rdt__Pb__TensorList tensors = MESSAGE(tensor_list, .dtype = dtype, .ndim = ndim, .shape = shape, .strides = strides,
                                          .region_index = region_index, .offset = offset);
    tensors.n_dtype = tensors.n_ndim = tensors.n_region_index = tensors.n_offset = 2;
    tensors.n_shape = tensors.n_strides = 3;
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){1, (uint8_t *)"w"}, .any_owner = true);
    put.id = ref.id;
    put.regions = uses;
    put.n_regions = 1;
    put.tensors = &tensors;
    Rdt__Pb__Slice slice = MESSAGE(slice, .start = shape, .count = shape, .ndim = ndim);
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
