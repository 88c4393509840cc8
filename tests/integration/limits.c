/* Limits of clients and owners: each is met exactly at its value, says so, changes nothing, harms nobody else, and is given back by
 * whatever end. And waiting for room: in turn, until the deadline, a cancel or the client's end. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proto/layout.h"
#include "tests/support/raw.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

static struct test_node node;
static rdt *conn, *other;
static struct raw watcher; /* who asks what is used */

static void begin_alone(const char *const *flags)
{
    node_start(&node, &(struct node_options){.flags = flags});
    raw_connect(&watcher, node.socket);
    raw_hello(&watcher);
}

static void begin(const char *const *flags)
{
    begin_alone(flags);
    conn = node_client(&node, "greedy");
    other = node_client(&node, "other");
}

static void end(const char *const *declared)
{
    rdt_close(conn);
    rdt_close(other);
    raw_close(&watcher);
    node_end(&node, declared);
}

static uint64_t session(rdt *client)
{
    struct rdt_node_info info;

    must_ok(rdt_node(client, &info, &err));
    return info.session;
}

static Rdt__Pb__ListReply *list(struct raw *raw, Rdt__Pb__ListKind kind)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;

    request.kind = kind;
    return (Rdt__Pb__ListReply *)raw_reply(raw, raw_send(raw, RDT_MSG_LIST, &request.base, NULL, 0),
                                           &rdt__pb__list_reply__descriptor);
}

static uint64_t find(Rdt__Pb__Usage *const *usage, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(usage[i]->what, what) == 0)
            return usage[i]->used;
    fail("%s is not counted", what);
}

/* What a client uses; client 0: this user in all, without the watcher. */
static uint64_t used(uint64_t client, const char *what)
{
    Rdt__Pb__ListReply *reply;
    uint64_t amount = UINT64_MAX;

    reply = list(&watcher, client ? RDT__PB__LIST_KIND__LIST_KIND_CLIENTS : RDT__PB__LIST_KIND__LIST_KIND_OWNERS);
    for (size_t i = 0; i < reply->n_clients; i++)
        if (reply->clients[i]->client == client)
            amount = find(reply->clients[i]->usage, reply->clients[i]->n_usage, what);
    for (size_t i = 0; i < reply->n_owners; i++)
        if (reply->owners[i]->uid == geteuid())
            amount = find(reply->owners[i]->usage, reply->owners[i]->n_usage, what) -
                     (strcmp(what, "sessions") == 0 ? 1u : 0u) - (strcmp(what, "fds") == 0 ? 2u : 0u);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return amount;
}

static bool nothing_is_used(void)
{
    static const char *const all[] = {"bytes",   "objects", "regions", "fds",     "transfers",
                                      "waiters", "names",   "heap",    "sessions"};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (used(0, all[i]) != 0)
            return false;
    return true;
}

static rdt_object *no_object;

static enum rdt_status fetch(rdt *client, const struct rdt_ref *ref, enum rdt_fetch_mode mode, struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);

    options.mode = mode;
    options.timeout_ns = LONG;
    return rdt_fetch(client, ref, 1, &options, &no_object, err);
}

/* ---- each at its value ---- */

Test(limits, regions)
{
    const char *flags[] = {"--client-max-regions=3", NULL};
    void *memory[4], *more = NULL;
    rdt_object *copy;
    struct rdt_ref ref;

    begin(flags);
    for (unsigned i = 0; i < 3; i++)
        memory[i] = alloc_memory(conn, 300000);
    cr_assert_eq(used(session(conn), "regions"), 3);
    must_refuse(RDT_LIMIT, "3 regions of at most 3", rdt_alloc(conn, 4096, &more, &err));
    must_refuse(RDT_LIMIT, "client_max_regions", rdt_alloc(conn, 4096, &more, &err));
    cr_assert_null(more);
    ref = put_one(conn, &VECTOR(RDT_U8, 5, memory[0]), "x");
    must_refuse(RDT_LIMIT, "client_max_regions", fetch(conn, &ref, RDT_FETCH_COPY, &err));
    cr_assert_eq(used(session(conn), "regions"), 3);
    memory[3] = alloc_memory(other, 300000);
    copy = fetch_one(other, &ref, RDT_FETCH_COPY);
    rdt_release(copy);
    must_ok(rdt_dealloc(conn, memory[1], &err));
    memory[1] = alloc_memory(conn, 4096);
    must_refuse(RDT_LIMIT, "client_max_regions", rdt_alloc(conn, 4096, &more, &err));
    end(NULL);
}

Test(limits, objects)
{
    const char *flags[] = {"--client-max-objects=2", NULL};
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref refs[3];

    begin(flags);
    refs[0] = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "a");
    refs[1] = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "b");
    options.id = "c";
    options.id_bytes = 1;
    must_refuse(RDT_LIMIT, "2 objects of at most 2, and 1 more is wanted",
                rdt_put(conn, &VECTOR(RDT_U8, 5, "hello"), 1, &options, &refs[2], &err));
    cr_assert_eq(used(session(conn), "objects"), 2);
    cr_assert_eq(used(session(conn), "regions"), 0, "small objects take none");
    (void)put_one(other, &VECTOR(RDT_U8, 5, "hello"), "d");
    must_ok(rdt_free(conn, &refs[0], false, &err));
    refs[0] = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "c");
    end(NULL);
}

Test(limits, bytes_of_all_kinds)
{
    const char *flags[] = {"--client-max-bytes=1MiB", NULL};
    static uint8_t bytes[100000];
    void *memory, *more = NULL;
    struct rdt_ref ref;

    begin(flags);
    ref = put_one(other, &VECTOR(RDT_U8, sizeof bytes, bytes), "x");
    must_refuse(RDT_LIMIT, "client_max_bytes", rdt_alloc(conn, MIB + 1, &more, &err));
    memory = alloc_memory(conn, MIB);
    cr_assert_eq(used(session(conn), "bytes"), MIB);
    must_refuse(RDT_LIMIT, "client_max_bytes", rdt_alloc(conn, 1, &more, &err));
    must_refuse(RDT_LIMIT, "client_max_bytes", fetch(conn, &ref, RDT_FETCH_COPY, &err));
    rdt_release(fetch_one(conn, &ref, RDT_FETCH_SHARE));
    cr_assert_eq(used(session(conn), "bytes"), MIB);
    must_ok(rdt_dealloc(conn, memory, &err));
    rdt_release(fetch_one(conn, &ref, RDT_FETCH_COPY));
    end(NULL);
}

Test(limits, fds)
{
    const char *flags[] = {"--client-max-fds=4", NULL};
    void *more = NULL;

    begin(flags);
    cr_assert_eq(used(session(conn), "fds"), 2, "its socket and its pidfd");
    (void)alloc_memory(conn, 4096);
    (void)alloc_memory(conn, 300000);
    must_refuse(RDT_LIMIT, "4 file descriptors of at most 4", rdt_alloc(conn, 4096, &more, &err));
    (void)alloc_memory(other, 4096);
    end(NULL);
}

Test(limits, fetches)
{
    const char *flags[] = {"--client-max-transfers=4", NULL};
    struct rdt_ref ref = ref_named("later");
    rdt_request *requests[4], *fifth;

    begin(flags);
    for (unsigned i = 0; i < 4; i++)
        requests[i] = start_one(conn, &ref, 0);
    fifth = start_one(conn, &ref, 0);
    must_refuse(RDT_LIMIT, "client_max_transfers", rdt_wait(conn, &fifth, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(fifth);
    cr_assert_eq(used(session(conn), "transfers"), 4);
    rdt_request_destroy(requests[3]);
    requests[3] = start_one(conn, &ref, 0);
    must_be(RDT_TIMED_OUT, rdt_wait(conn, &requests[3], 1, 1, 50 * MSEC, NULL, NULL, &err));
    (void)put_one(other, &VECTOR(RDT_U8, 5, "hello"), "later");
    must_ok(rdt_wait(conn, requests, 4, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    cr_assert_eq(used(session(conn), "transfers"), 0);
    for (unsigned i = 0; i < 4; i++)
        rdt_request_destroy(requests[i]);
    end(NULL);
}

static uint64_t send_wait(struct raw *raw, const char *id)
{
    Rdt__Pb__Wait wait = RDT__PB__WAIT__INIT;
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;

    ref.id = (ProtobufCBinaryData){strlen(id), (uint8_t *)(uintptr_t)id};
    ref.any_owner = true;
    wait.ref = &ref;
    wait.timeout_ns = -1;
    return raw_send(raw, RDT_MSG_WAIT, &wait.base, NULL, 0);
}

static void greeted(struct raw *raw)
{
    raw_connect(raw, node.socket);
    raw_hello(raw);
}

Test(limits, waiters)
{
    const char *flags[] = {"--client-max-waiters=2", NULL};
    Rdt__Pb__CancelRequest cancel = RDT__PB__CANCEL_REQUEST__INIT;
    char text[256];
    struct raw raw;

    begin(flags);
    greeted(&raw);
    cancel.request_id = send_wait(&raw, "a");
    (void)send_wait(&raw, "b");
    (void)send_wait(&raw, "c");
    cr_assert_eq(raw_error(&raw, text), RDT_LIMIT);
    cr_assert_not_null(strstr(text, "client_max_waiters"), "%s", text);
    cr_assert_eq(used(0, "waiters"), 2);
    (void)raw_send(&raw, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0);
    cr_assert_eq(raw_error(&raw, text), RDT_CANCELLED);
    cr_assert(raw_next(&raw));
    (void)send_wait(&raw, "d");
    wait_until(LONG, used(0, "waiters") == 2);
    raw_close(&raw);
    wait_until(LONG, used(0, "waiters") == 0);
    end(NULL);
}

Test(limits, heap)
{
    const char *flags[] = {"--client-max-heap=100KiB", NULL};
    static char metadata[200000];
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;

    begin(flags);
    options.metadata = metadata;
    options.metadata_bytes = sizeof metadata;
    must_refuse(RDT_LIMIT, "client_max_heap", rdt_put(conn, NULL, 0, &options, &ref, &err));
    cr_assert_eq(used(session(conn), "heap"), 0);
    options.metadata_bytes = 60000;
    must_ok(rdt_put(conn, NULL, 0, &options, &ref, &err));
    must_refuse(RDT_LIMIT, "client_max_heap", rdt_put(conn, NULL, 0, &options, &ref, &err));
    cr_assert_eq(used(session(conn), "objects"), 1);
    end(NULL);
}

Test(limits, of_one_owner_for_all_its_clients)
{
    const char *flags[] = {"--owner-max-regions=4", "--owner-max-sessions=12", NULL};
    const char *declared[] = {"owner_max_sessions", NULL};
    struct rdt_connect_options options = RDT_INIT(options);
    void *more = NULL;
    rdt *others[9], *refused = NULL;

    begin(flags);
    for (unsigned i = 0; i < 2; i++) {
        (void)alloc_memory(conn, 4096);
        (void)alloc_memory(other, 4096);
    }
    must_refuse(RDT_LIMIT, "owner_max_regions", rdt_alloc(conn, 4096, &more, &err));
    must_refuse(RDT_LIMIT, "owner_max_regions", rdt_alloc(other, 4096, &more, &err));
    wait_until(LONG, used(0, "sessions") == 2); /* those that waited for the daemon have left */
    for (unsigned i = 0; i < 9; i++)
        others[i] = node_client(&node, "another");
    options.socket = node.socket;
    must_refuse(RDT_LIMIT, "12 sessions of at most 12", rdt_connect(&options, &refused, &err));
    cr_assert_null(refused);
    rdt_close(conn);
    wait_until(LONG, used(0, "sessions") == 10);
    conn = node_client(&node, "greedy");
    (void)alloc_memory(conn, 4096);
    for (unsigned i = 0; i < 9; i++)
        rdt_close(others[i]);
    wait_until(LONG, used(0, "sessions") == 2);
    end(declared);
}

/* ---- given back by any end ---- */

static int hoard(struct actor *self, void *arg)
{
    struct rdt_ref ref = ref_named("never");
    rdt *mine = node_client(&node, "hoarder");

    (void)arg;
    for (unsigned i = 0; i < 20; i++) {
        (void)alloc_memory(mine, i % 2 ? 4096 : 300000);
        (void)put_one(mine, &VECTOR(RDT_U8, 5, "hello"), NULL);
        (void)start_one(mine, &ref, 0);
    }
    actor_step(self);
    actor_await(self); /* never comes */
    return 0;
}

Test(limits, killed_client_gives_everything_back)
{
    struct actor actor;

    begin_alone(NULL);
    actor_start(&actor, hoard, NULL);
    actor_await(&actor);
    wait_until(LONG, used(0, "transfers") == 20);
    cr_assert_eq(used(0, "objects"), 20);
    cr_assert_eq(used(0, "regions"), 20, "small objects take none");
    actor_kill(&actor, SIGKILL);
    wait_until(LONG, nothing_is_used());
    end(NULL);
}

Test(limits, refusals_leave_nothing_behind)
{
    const char *flags[] = {"--client-max-regions=1", "--client-max-objects=1", "--client-max-transfers=1", NULL};
    void *memory, *more = NULL;
    struct rdt_ref ref;

    begin(flags);
    memory = alloc_memory(conn, 4096);
    ref = put_one(conn, &VECTOR(RDT_U8, 5, memory), "x");
    for (unsigned i = 0; i < 50; i++) {
        must_be(RDT_LIMIT, rdt_alloc(conn, 4096, &more, &err));
        must_be(RDT_LIMIT, rdt_put(conn, &VECTOR(RDT_U8, 5, memory), 1, NULL, &(struct rdt_ref){0}, &err));
        must_be(RDT_LIMIT, fetch(conn, &ref, RDT_FETCH_COPY, &err));
    }
    rdt_close(conn);
    rdt_close(other);
    conn = other = NULL;
    wait_until(LONG, nothing_is_used());
    end(NULL);
}

/* ---- an answer that fits into no message ---- */

Test(limits, too_long_an_answer_fails_its_fetch_alone)
{
    enum { N = 60000, DIMS = 32 };
    uint32_t *dtype = calloc(N, sizeof *dtype), *ndim = calloc(N, sizeof *ndim);
    uint64_t *shape = calloc(N * DIMS, sizeof *shape);
    int64_t *strides = calloc(N * DIMS, sizeof *strides);
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__Put put = RDT__PB__PUT__INIT;
    Rdt__Pb__Fetch request = RDT__PB__FETCH__INIT;
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item};
    Rdt__Pb__FetchDone *done;
    Rdt__Pb__Alloc alloc = RDT__PB__ALLOC__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[1] = {&use};
    Rdt__Pb__RegionReply *memory;
    Rdt__Pb__PutReply *reply;
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    struct raw raw;

    begin(NULL);
    for (unsigned i = 0; i < N; i++) {
        dtype[i] = RDT_U8;
        ndim[i] = DIMS;
        for (unsigned d = 0; d < DIMS; d++) {
            shape[i * DIMS + d] = d == DIMS - 1 ? 0 : 1;
            strides[i * DIMS + d] = d == DIMS - 1 ? 1 : 1ll << 40;
        }
    }
    tensors.n_dtype = tensors.n_ndim = N;
    tensors.n_shape = tensors.n_strides = N * DIMS;
    tensors.dtype = dtype;
    tensors.ndim = ndim;
    tensors.shape = shape;
    tensors.strides = strides;
    put.id = (ProtobufCBinaryData){1, (uint8_t *)"x"};
    put.tensors = &tensors;
    put.metadata.data = calloc(1, RDT_MAX_METADATA_BYTES);
    put.metadata.len = RDT_MAX_FRAME_BYTES - 96 - rdt__pb__put__get_packed_size(&put);
    cr_assert_leq(put.metadata.len, RDT_MAX_METADATA_BYTES);
    greeted(&raw);
    alloc.bytes = 4096; /* beside a region the strides stay as they are */
    memory = (Rdt__Pb__RegionReply *)raw_reply(&raw, raw_send(&raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0),
                                               &rdt__pb__region_reply__descriptor);
    use.region = memory->region;
    use.generation = memory->generation;
    put.regions = uses;
    put.n_regions = 1;
    protobuf_c_message_free_unpacked(&memory->base, NULL);
    frame_close_fds(&raw.frame);
    reply =
        (Rdt__Pb__PutReply *)raw_reply(&raw, raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0), &rdt__pb__put_reply__descriptor);
    item.handle = 7;
    item.ref = reply->ref;
    request.n_items = 1;
    request.items = items;
    request.timeout_ns = -1;
    (void)raw_send(&raw, RDT_MSG_FETCH, &request.base, NULL, 0);
    do
        cr_assert(raw_next(&raw));
    while (raw.frame.type != RDT_EVENT_FETCH_DONE);
    done = rdt__pb__fetch_done__unpack(NULL, raw.frame.length, raw.frame.payload);
    cr_assert_eq(done->status, RDT_LIMIT);
    cr_assert_not_null(strstr(done->message, "60000 tensors"), "%s", done->message);
    protobuf_c_message_free_unpacked(&done->base, NULL);
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0), &rdt__pb__ping__descriptor), NULL);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    raw_close(&raw);
    free(dtype);
    free(ndim);
    free(shape);
    free(strides);
    free(put.metadata.data);
    end(NULL);
}

/* ---- waiting for room ---- */

static uint64_t send_alloc(struct raw *raw, uint64_t bytes, int64_t timeout_ns)
{
    Rdt__Pb__Alloc alloc = RDT__PB__ALLOC__INIT;

    alloc.bytes = bytes;
    alloc.timeout_ns = timeout_ns;
    return raw_send(raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0);
}

static void expect_alloc(struct raw *raw, uint64_t id)
{
    protobuf_c_message_free_unpacked(raw_reply(raw, id, &rdt__pb__region_reply__descriptor), NULL);
    frame_close_fds(&raw->frame);
}

static bool nothing_came(struct raw *raw)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    uint64_t id = raw_send(raw, RDT_MSG_PING, &ping.base, NULL, 0);

    cr_assert(raw_next(raw));
    return raw->frame.request_id == id;
}

Test(limits, room_comes_in_turn)
{
    const char *flags[] = {"--memory-limit=8MiB", NULL};
    struct raw first, second;
    uint64_t first_id, second_id;
    void *a, *b;

    begin(flags);
    a = alloc_memory(conn, 4 * MIB);
    b = alloc_memory(conn, 3 * MIB);
    greeted(&first);
    greeted(&second);
    first_id = send_alloc(&first, 6 * MIB, -1);
    wait_until(LONG, used(0, "waiters") == 1);
    second_id = send_alloc(&second, 2 * MIB, -1);
    wait_until(LONG, used(0, "waiters") == 2);
    must_ok(rdt_dealloc(conn, b, &err));
    cr_assert(nothing_came(&second), "there is room for the second, but the first was first");
    must_ok(rdt_dealloc(conn, a, &err));
    expect_alloc(&first, first_id);
    expect_alloc(&second, second_id);
    wait_until(LONG, used(0, "waiters") == 0);
    raw_close(&first);
    raw_close(&second);
    end(NULL);
}

static int put_snapshot(struct actor *self, void *arg)
{
    rdt *mine = node_client(&node, "trainer");
    uint8_t *memory = alloc_memory(mine, 3 * MIB);
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;
    rdt_object *object;

    (void)arg;
    fill_pattern(memory, 3 * MIB, 7);
    options.flags = RDT_PUT_SNAPSHOT;
    options.timeout_ns = patience(200 * MSEC);
    must_refuse(RDT_TIMED_OUT, "memory_limit", rdt_put(mine, &VECTOR(RDT_U8, 3 * MIB, memory), 1, &options, &ref, &err));
    actor_step(self);
    options.timeout_ns = LONG;
    must_ok(rdt_put(mine, &VECTOR(RDT_U8, 3 * MIB, memory), 1, &options, &ref, &err));
    memset(memory, 0, 3 * MIB);
    object = fetch_one(mine, &ref, RDT_FETCH_SHARE);
    must(holds_pattern(tensor_of(object, 0).data, 3 * MIB, 7));
    rdt_release(object);
    rdt_close(mine);
    return 0;
}

Test(limits, snapshot_waits_for_room)
{
    const char *flags[] = {"--memory-limit=8MiB", NULL};
    struct actor actor;
    void *most;

    begin(flags);
    most = alloc_memory(conn, 4 * MIB);
    actor_start(&actor, put_snapshot, NULL);
    actor_await(&actor);
    wait_until(LONG, used(0, "waiters") == 1);
    must_ok(rdt_dealloc(conn, most, &err));
    actor_wait(&actor);
    end(NULL);
}

Test(limits, wait_for_room_ends_by_deadline_cancel_and_death)
{
    const char *flags[] = {"--client-max-regions=1", "--owner-max-bytes=4MiB", NULL};
    Rdt__Pb__CancelRequest cancel = RDT__PB__CANCEL_REQUEST__INIT;
    struct rdt_alloc_options options = RDT_INIT(options);
    struct raw first, second;
    void *memory, *more = NULL;
    uint64_t second_id;
    char text[256];

    begin(flags);
    memory = alloc_memory(conn, 3 * MIB);
    options.timeout_ns = 100 * MSEC;
    must_refuse(RDT_TIMED_OUT, "client_max_regions", rdt_alloc_with(conn, 4096, &options, &more, &err));
    must_refuse(RDT_TIMED_OUT, "owner_max_bytes", rdt_alloc_with(other, 2 * MIB, &options, &more, &err));
    must_refuse(RDT_LIMIT, "owner_max_bytes", rdt_alloc_with(other, 5 * MIB, &options, &more, &err)); /* would never fit */
    cr_assert_null(more);
    greeted(&first);
    greeted(&second);
    cancel.request_id = send_alloc(&first, 2 * MIB, -1);
    wait_until(LONG, used(0, "waiters") == 1);
    second_id = send_alloc(&second, MIB, -1);
    wait_until(LONG, used(0, "waiters") == 2);
    must_refuse(RDT_LIMIT, "wait for bytes of memory already", rdt_alloc(other, 4096, &more, &err));
    (void)raw_send(&first, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0);
    cr_assert_eq(raw_error(&first, text), RDT_CANCELLED);
    cr_assert(raw_next(&first));
    expect_alloc(&second, second_id); /* what was before it has left */
    raw_close(&second);
    wait_until(LONG, used(0, "bytes") == 3 * MIB);
    (void)send_alloc(&first, 2 * MIB, -1);
    wait_until(LONG, used(0, "waiters") == 1);
    raw_close(&first); /* dies while it waits */
    wait_until(LONG, used(0, "waiters") == 0);
    must_ok(rdt_alloc(other, MIB, &more, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    end(NULL);
}

static void *put_late(void *arg)
{
    struct rdt_put_options options = RDT_INIT(options);
    static struct rdt_error why;

    options.timeout_ns = LONG;
    *(enum rdt_status *)arg = rdt_put(other, &VECTOR(RDT_U8, 5, "hello"), 1, &options, &(struct rdt_ref){0}, &why);
    return NULL;
}

Test(limits, put_waits_for_room)
{
    const char *flags[] = {"--owner-max-objects=2", NULL};
    enum rdt_status status = RDT_INTERNAL;
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref a, b;
    pthread_t thread;

    begin(flags);
    a = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "a");
    b = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "b");
    options.timeout_ns = SEC;
    must_refuse(RDT_TIMED_OUT, "owner_max_objects",
                rdt_put(other, &VECTOR(RDT_U8, 5, "hello"), 1, &options, &(struct rdt_ref){0}, &err));
    options.flags = RDT_PUT_DETACHED;
    must_refuse(RDT_TIMED_OUT, "owner_max_objects",
                rdt_put(other, &VECTOR(RDT_U8, 5, "hello"), 1, &options, &(struct rdt_ref){0}, &err));
    pthread_create(&thread, NULL, put_late, &status);
    wait_until(LONG, used(0, "waiters") == 1);
    must_ok(rdt_free(conn, &a, false, &err));
    pthread_join(thread, NULL);
    cr_assert_eq(status, RDT_OK);
    cr_assert_eq(used(0, "objects"), 2);
    must_ok(rdt_free(conn, &b, false, &err));
    end(NULL);
}

/* The arena's memory is the daemon's own, but who puts waits for it. */
Test(limits, small_put_waits_for_memory)
{
    const char *flags[] = {"--memory-limit=8MiB", NULL};
    enum rdt_status status = RDT_INTERNAL;
    pthread_t thread;
    void *all;

    begin(flags);
    all = alloc_memory(conn, 8 * MIB);
    must_refuse(RDT_NO_MEMORY, "memory_limit",
                rdt_put(other, &VECTOR(RDT_U8, 5, "hello"), 1, NULL, &(struct rdt_ref){0}, &err));
    pthread_create(&thread, NULL, put_late, &status);
    wait_until(LONG, used(0, "waiters") == 1);
    must_ok(rdt_dealloc(conn, all, &err));
    pthread_join(thread, NULL);
    cr_assert_eq(status, RDT_OK);
    end(NULL);
}

/* ---- the daemon's own ---- */

static uint64_t cpu_ms(pid_t pid)
{
    char path[64], text[1024] = "";
    unsigned long user = 0, system = 0;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    file = fopen(path, "re");
    cr_assert(file && fgets(text, sizeof text, file));
    (void)fclose(file);
    cr_assert_eq(sscanf(strrchr(text, ')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system), 2);
    return (user + system) * 1000 / (unsigned long)sysconf(_SC_CLK_TCK);
}

Test(limits, accept_without_fds_waits_and_does_not_spin)
{
    enum { N = 40 };
    const char *declared[] = {"cannot accept", NULL};
    struct rlimit few, old;
    struct raw raws[N];
    uint64_t before;

    node_start(&node, NULL);
    cr_assert_eq(prlimit(node.pid, RLIMIT_NOFILE, NULL, &old), 0);
    few = old;
    few.rlim_cur = fds_of(node.pid) + 21;
    cr_assert_eq(prlimit(node.pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (unsigned i = 0; i < N; i++)
        raw_connect(&raws[i], node.socket);
    wait_until(LONG, node_log_has(&node, "cannot accept"));
    before = cpu_ms(node.pid);
    usleep(500000); /* time in which it could spin: nothing is waited for */
    cr_assert_leq(cpu_ms(node.pid) - before, 100, "it spins");
    for (unsigned i = 0; i < N / 2 + 5; i++)
        raw_close(&raws[i]);
    raw_hello(&raws[N / 2 + 5]);
    for (unsigned i = N / 2 + 5; i < N; i++)
        raw_close(&raws[i]);
    cr_assert_eq(prlimit(node.pid, RLIMIT_NOFILE, &old, NULL), 0);
    node_end(&node, declared);
}
