/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for room: the order of those who wait, and what ends the wait. */
#include <poll.h>

#include "tests/integration/limits/limits.h"

/* ---- waiting for room ---- */

static uint64_t send_alloc(struct raw *raw, uint64_t bytes, int64_t timeout_ns)
{
    Rdt__Pb__Alloc alloc = MESSAGE(alloc, .bytes = bytes, .timeout_ns = timeout_ns);
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

Test(limits_room, waiters_get_room_in_order)
{
    const char *flags[] = {"--memory-limit=8MiB", NULL};
    struct raw first, second;

    begin(flags);
    void *a = alloc_memory(conn, 4 * MIB);
    void *b = alloc_memory(conn, 3 * MIB);
    greeted(&first);
    greeted(&second);
    uint64_t first_id = send_alloc(&first, 6 * MIB, -1);
    wait_until(LONG, used(0, "waiters") == 1);
    uint64_t second_id = send_alloc(&second, 2 * MIB, -1);
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

/* Returns the number of the request that is answered; it no longer waits. */
static unsigned next_served(struct raw *waiting, const uint64_t *ids, unsigned n)
{
    struct pollfd fds[8];

    for (unsigned i = 0; i < n; i++)
        fds[i] = (struct pollfd){.fd = waiting[i].sock, .events = POLLIN};
    must(poll(fds, n, (int)(LONG / MSEC)) == 1);
    for (unsigned i = 0; i < n; i++)
        if (fds[i].revents) {
            expect_alloc(&waiting[i], ids[i]);
            return i;
        }
    fail("nobody was served");
}

/* Waits until each of them has been offered what room there was: room that comes during such a round goes to whom the
 * round has reached, whose turn it may not be. */
static void offered_to_all(struct raw *waiting, unsigned n)
{
    for (unsigned i = 0; i < 2 * n; i++) /* an owner's attempt follows that of the owner before it, wherever they are here */
        cr_assert(nothing_came(&waiting[i % n]));
}

/* Users get the room of the node in turn: neither the first user nor the one with the most requests takes all of it. */
Test(limits_room, users_take_turns)
{
    enum { N = 6 };
    struct raw waiting[N];
    uint64_t ids[N];
    void *held[4];
    bool last = false;

    need_root();
    begin((const char *[]){"--memory-limit=4MiB", NULL});
    must(chdir(node.dir) == 0);
    for (unsigned i = 0; i < 4; i++)
        held[i] = alloc_memory(conn, MIB);
    for (unsigned i = 0; i < N; i++) { /* the first half are this user's */
        must(i < N / 2 || seteuid(12345) == 0);
        raw_connect(&waiting[i], "s");
        must(seteuid(0) == 0);
        raw_hello(&waiting[i]);
        ids[i] = send_alloc(&waiting[i], MIB, -1);
        cr_assert(nothing_came(&waiting[i]));
    }
    for (unsigned i = 0; i < 4; i++) {
        must_ok(rdt_dealloc(conn, held[i], &err));
        bool strangers = next_served(waiting, ids, N) >= N / 2;
        cr_assert(i == 0 || strangers != last, "number %u went to the same user", i);
        last = strangers;
        offered_to_all(waiting, N);
    }
    for (unsigned i = 0; i < N; i++)
        raw_close(&waiting[i]);
    end(NULL);
}

static int wait_and_never_read(struct actor *self, void *arg)
{
    static uint8_t data[64 * 1024];
    struct raw raw;

    must(seteuid(12345) == 0);
    raw_connect(&raw, "s");
    must(seteuid(0) == 0);
    raw_hello(&raw);
    (void)send_alloc(&raw, MIB, -1);
    cr_assert(nothing_came(&raw));
    actor_step(self);
    Rdt__Pb__Ping ping = MESSAGE(ping, .data = (ProtobufCBinaryData){sizeof data, data});
    for (;;) {
        struct pollfd fd = {.fd = raw.sock, .events = POLLOUT};
        while (poll(&fd, 1, -1) != 1) /* ends when the test kills it */
            continue;
        (void)raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0);
    }
    return 0;
}

static bool somebody_left_unread(uint64_t bytes)
{
    Rdt__Pb__ListReply *reply = list(&watcher, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS);
    bool found = false;

    for (size_t i = 0; i < reply->n_clients; i++)
        found |= reply->clients[i]->queued_bytes > bytes;
    rdt__pb__list_reply__free_unpacked(reply, NULL);
    return found;
}

/* A client that does not read its answers does not try when its turn comes; the others do. */
Test(limits_room, client_that_does_not_read_is_passed_over)
{
    struct actor actor;
    struct raw waiting;
    void *held[4];

    need_root();
    begin((const char *[]){"--memory-limit=4MiB", NULL});
    must(chdir(node.dir) == 0);
    for (unsigned i = 0; i < 4; i++)
        held[i] = alloc_memory(conn, MIB);
    actor_start(&actor, wait_and_never_read, NULL);
    actor_await(&actor);
    greeted(&waiting);
    uint64_t id = send_alloc(&waiting, MIB, -1);
    cr_assert(nothing_came(&waiting));
    wait_until(LONG, somebody_left_unread(8 * MIB));
    must_ok(rdt_dealloc(conn, held[0], &err));
    expect_alloc(&waiting, id);
    actor_kill(&actor, SIGKILL);
    must_ok(rdt_dealloc(conn, held[1], &err));
    raw_close(&waiting);
    end(NULL);
}

static int put_snapshot(struct actor *self, void *arg)
{
    rdt *mine = node_client(&node, "trainer");
    uint8_t *memory = alloc_memory(mine, 3 * MIB);
    struct rdt_ref ref;

    fill_pattern(memory, 3 * MIB, 7);
    struct rdt_put_options options = {
        .struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .timeout_ns = patience(2 * SEC)};
    must_refuse(RDT_TIMED_OUT, "memory_limit", rdt_put(mine, &VECTOR(RDT_U8, 3 * MIB, memory), 1, &options, &ref, &err));
    actor_step(self);
    options.timeout_ns = LONG;
    must_ok(rdt_put(mine, &VECTOR(RDT_U8, 3 * MIB, memory), 1, &options, &ref, &err));
    memset(memory, 0, 3 * MIB);
    rdt_object *object = fetch_one(mine, &ref, RDT_FETCH_SHARE);
    must(holds_pattern(tensor_of(object, 0).data, 3 * MIB, 7));
    rdt_release(object);
    rdt_close(mine);
    return 0;
}

Test(limits_room, snapshot_waits_for_room)
{
    const char *flags[] = {"--memory-limit=8MiB", NULL};
    struct actor actor;

    begin(flags);
    void *most = alloc_memory(conn, 4 * MIB);
    actor_start(&actor, put_snapshot, NULL);
    actor_await(&actor);
    wait_until(LONG, used(0, "waiters") == 1);
    must_ok(rdt_dealloc(conn, most, &err));
    actor_wait(&actor);
    end(NULL);
}

Test(limits_room, wait_for_room_ends_by_deadline_cancel_and_death)
{
    const char *flags[] = {"--client-max-regions=1", "--owner-max-bytes=4MiB", NULL};
    struct raw first, second;
    void *memory, *more = NULL;
    char text[256];

    begin(flags);
    memory = alloc_memory(conn, 3 * MIB);
    struct rdt_alloc_options options = {.struct_size = sizeof options, .timeout_ns = 100 * MSEC};
    must_refuse(RDT_TIMED_OUT, "client_max_regions", rdt_alloc_with(conn, 4096, &options, &more, &err));
    must_refuse(RDT_TIMED_OUT, "owner_max_bytes", rdt_alloc_with(other, 2 * MIB, &options, &more, &err));
    must_refuse(RDT_LIMIT, "owner_max_bytes", rdt_alloc_with(other, 5 * MIB, &options, &more, &err)); /* would never fit */
    cr_assert_null(more);
    greeted(&first);
    greeted(&second);
    Rdt__Pb__CancelRequest cancel = MESSAGE(cancel_request, .request_id = send_alloc(&first, 2 * MIB, -1));
    wait_until(LONG, used(0, "waiters") == 1);
    uint64_t second_id = send_alloc(&second, MIB, -1);
    wait_until(LONG, used(0, "waiters") == 2);
    must_refuse(RDT_LIMIT, "already wait for bytes of memory and come first: give this request a timeout",
                rdt_alloc(other, 4096, &more, &err));
    (void)raw_send(&first, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0);
    cr_assert_eq(raw_error(&first, text), RDT_CANCELLED);
    cr_assert(raw_next(&first));
    expect_alloc(&second, second_id); /* the requests before it have left */
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
    static struct rdt_error why;
    struct rdt_put_options options = {.struct_size = sizeof options, .timeout_ns = LONG};

    *(enum rdt_status *)arg = rdt_put(other, &VECTOR(RDT_U8, 5, "hello"), 1, &options, &(struct rdt_ref){0}, &why);
    return NULL;
}

Test(limits_room, put_waits_for_room)
{
    const char *flags[] = {"--owner-max-objects=2", NULL};
    enum rdt_status status = RDT_INTERNAL;
    static uint8_t plain[300000];
    pthread_t thread;

    begin(flags);
    struct rdt_ref a = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "a");
    struct rdt_ref b = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "b");
    struct rdt_put_options options = {.struct_size = sizeof options, .timeout_ns = SEC};
    must_refuse(RDT_TIMED_OUT, "owner_max_objects",
                rdt_put(other, &VECTOR(RDT_U8, 5, "hello"), 1, &options, &(struct rdt_ref){0}, &err));
    options.flags = RDT_PUT_DETACHED;
    must_refuse(RDT_TIMED_OUT, "owner_max_objects",
                rdt_put(other, &VECTOR(RDT_U8, 5, "hello"), 1, &options, &(struct rdt_ref){0}, &err));
    options.flags = RDT_PUT_SNAPSHOT; /* of memory that the library copies, and releases because of it */
    must_refuse(RDT_TIMED_OUT, "owner_max_objects",
                rdt_put(other, &VECTOR(RDT_U8, sizeof plain, plain), 1, &options, &(struct rdt_ref){0}, &err));
    wait_until(LONG, used(0, "regions") == 0); /* on a busy machine the call ends before the daemon has refused */
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
Test(limits_room, small_put_waits_for_memory)
{
    const char *flags[] = {"--memory-limit=8MiB", NULL};
    enum rdt_status status = RDT_INTERNAL;
    pthread_t thread;

    begin(flags);
    void *all = alloc_memory(conn, 8 * MIB);
    must_refuse(RDT_NO_MEMORY, "memory_limit",
                rdt_put(other, &VECTOR(RDT_U8, 5, "hello"), 1, NULL, &(struct rdt_ref){0}, &err));
    pthread_create(&thread, NULL, put_late, &status);
    wait_until(LONG, used(0, "waiters") == 1);
    must_ok(rdt_dealloc(conn, all, &err));
    pthread_join(thread, NULL);
    cr_assert_eq(status, RDT_OK);
    end(NULL);
}
