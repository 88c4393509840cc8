/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of clients and owners: each is reached exactly at its value, is named in the error, and affects nobody else. A
 * refusal changes nothing, and every way to end gives back what was counted. */
#include "tests/integration/limits/limits.h"

/* ---- each at its value ---- */

Test(limits, regions)
{
    const char *flags[] = {"--client-max-regions=3", NULL};
    void *memory[4], *more = NULL;

    begin(flags);
    for (unsigned i = 0; i < 3; i++)
        memory[i] = alloc_memory(conn, 300000);
    cr_assert_eq(used(session(conn), "regions"), 3);
    must_refuse(RDT_LIMIT, "3 regions of at most 3", rdt_alloc(conn, 4096, &more, &err));
    must_refuse(RDT_LIMIT, "client_max_regions", rdt_alloc(conn, 4096, &more, &err));
    cr_assert_null(more);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 5, memory[0]), "x");
    must_refuse(RDT_LIMIT, "client_max_regions", fetch(conn, &ref, RDT_FETCH_COPY, &err));
    wait_until(LONG, used(session(conn), "regions") == 3);
    memory[3] = alloc_memory(other, 300000);
    rdt_object *copy = fetch_one(other, &ref, RDT_FETCH_COPY);
    rdt_release(copy);
    must_ok(rdt_dealloc(conn, memory[1], &err));
    memory[1] = alloc_memory(conn, 4096);
    must_refuse(RDT_LIMIT, "client_max_regions", rdt_alloc(conn, 4096, &more, &err));
    end(NULL);
}

Test(limits, objects)
{
    const char *flags[] = {"--client-max-objects=2", NULL};
    struct rdt_ref refs[3];

    begin(flags);
    refs[0] = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "a");
    refs[1] = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "b");
    struct rdt_put_options options = {.struct_size = sizeof options, .id = "c", .id_bytes = 1};
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

    begin(flags);
    struct rdt_ref ref = put_one(other, &VECTOR(RDT_U8, sizeof bytes, bytes), "x");
    must_refuse(RDT_LIMIT, "client_max_bytes", rdt_alloc(conn, MIB + 1, &more, &err));
    memory = alloc_memory(conn, MIB);
    cr_assert_eq(used(session(conn), "bytes"), MIB);
    must_refuse(RDT_LIMIT, "client_max_bytes", rdt_alloc(conn, 1, &more, &err));
    must_refuse(RDT_LIMIT, "client_max_bytes", fetch(conn, &ref, RDT_FETCH_COPY, &err));
    rdt_release(fetch_one(conn, &ref, RDT_FETCH_SHARE));
    wait_until(LONG, used(session(conn), "bytes") == MIB);
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
    wait_until(LONG, used(session(conn), "transfers") == 4);
    rdt_request_destroy(requests[3]);
    requests[3] = start_one(conn, &ref, 0);
    must_be(RDT_TIMED_OUT, rdt_wait(conn, &requests[3], 1, 1, 50 * MSEC, NULL, NULL, &err));
    (void)put_one(other, &VECTOR(RDT_U8, 5, "hello"), "later");
    must_ok(rdt_wait(conn, requests, 4, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    wait_until(LONG, used(session(conn), "transfers") == 0);
    for (unsigned i = 0; i < 4; i++)
        rdt_request_destroy(requests[i]);
    end(NULL);
}

static uint64_t send_wait(struct raw *raw, const char *id)
{
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){strlen(id), (uint8_t *)(uintptr_t)id}, .any_owner = true);
    Rdt__Pb__Wait wait = MESSAGE(wait, .ref = &ref, .timeout_ns = -1);
    return raw_send(raw, RDT_MSG_WAIT, &wait.base, NULL, 0);
}

Test(limits, waiters)
{
    const char *flags[] = {"--client-max-waiters=2", NULL};
    char text[256];
    struct raw raw;

    begin(flags);
    greeted(&raw);
    Rdt__Pb__CancelRequest cancel = MESSAGE(cancel_request, .request_id = send_wait(&raw, "a"));
    (void)send_wait(&raw, "b");
    (void)send_wait(&raw, "c");
    cr_assert_eq(raw_error(&raw, text), RDT_LIMIT);
    cr_assert_not_null(strstr(text, "client_max_waiters"), "%s", text);
    wait_until(LONG, used(0, "waiters") == 2);
    (void)raw_send(&raw, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0);
    cr_assert_eq(raw_error(&raw, text), RDT_CANCELLED);
    cr_assert(raw_next(&raw));
    (void)send_wait(&raw, "d");
    wait_until(LONG, used(0, "waiters") == 2);
    raw_close(&raw);
    wait_until(LONG, used(0, "waiters") == 0);
    end(NULL);
}

/* FREE by force may have to wait for other nodes, a snapshot for its copy: who may not wait is told so before anything is
 * freed or given up. */
Test(limits, request_that_may_not_wait_is_refused_before_anything_is_done)
{
    const char *flags[] = {"--client-max-waiters=1", NULL};
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[] = {&use};
    uint64_t shape = MIB;
    uint32_t dtype = RDT_U8, ndim = 1, given = 0;
    struct raw raw;
    char text[256];

    begin(flags);
    greeted(&raw);
    use.region = raw_alloc(&raw, MIB, NULL, &use.generation);
    (void)put_one(other, &VECTOR(RDT_U8, 5, "hello"), "there");
    (void)send_wait(&raw, "a");
    Rdt__Pb__TensorList tensors = MESSAGE(tensor_list, .dtype = &dtype, .ndim = &ndim, .shape = &shape);
    tensors.n_dtype = tensors.n_ndim = tensors.n_shape = 1;
    Rdt__Pb__Put put = MESSAGE(put, .tensors = &tensors, .regions = uses);
    put.n_regions = put.n_given = 1;
    put.given = &given;
    put.flags = RDT_PUT_SNAPSHOT;
    (void)raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0);
    cr_assert_eq(raw_error(&raw, text), RDT_LIMIT);
    cr_assert_not_null(strstr(text, "client_max_waiters"), "%s", text);
    cr_assert_eq(used(0, "regions"), 1, "what it would have given up");
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){5, (uint8_t *)"there"}, .any_owner = true);
    Rdt__Pb__Free drop = MESSAGE(free, .ref = &ref, .force = true);
    (void)raw_send(&raw, RDT_MSG_FREE, &drop.base, NULL, 0);
    cr_assert_eq(raw_error(&raw, text), RDT_LIMIT);
    cr_assert_not_null(strstr(text, "client_max_waiters"), "%s", text);
    rdt_release(fetch_one(conn, &(struct rdt_ref){.id = "there", .id_bytes = 5, .any_owner = true}, RDT_FETCH_COPY));
    raw_close(&raw);
    end(NULL);
}

Test(limits, heap)
{
    const char *flags[] = {"--client-max-heap=100KiB", NULL};
    static char metadata[200000];
    struct rdt_ref ref;

    begin(flags);
    struct rdt_put_options options = {.struct_size = sizeof options, .metadata = metadata, .metadata_bytes = sizeof metadata};
    must_refuse(RDT_LIMIT, "client_max_heap", rdt_put(conn, NULL, 0, &options, &ref, &err));
    wait_until(LONG, used(session(conn), "heap") == 0);
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
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = node.socket};
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

    begin(flags);
    memory = alloc_memory(conn, 4096);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 5, memory), "x");
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
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item};
    Rdt__Pb__Alloc alloc = RDT__PB__ALLOC__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[1] = {&use};
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
    Rdt__Pb__Put put = MESSAGE(put, .id = (ProtobufCBinaryData){1, (uint8_t *)"x"}, .tensors = &tensors);
    put.metadata.data = calloc(1, RDT_MAX_METADATA_BYTES);
    put.metadata.len = RDT_MAX_FRAME_BYTES - 96 - rdt__pb__put__get_packed_size(&put);
    cr_assert_leq(put.metadata.len, RDT_MAX_METADATA_BYTES);
    greeted(&raw);
    alloc.bytes = 4096; /* beside a region the strides stay as they are */
    Rdt__Pb__RegionReply *memory = (Rdt__Pb__RegionReply *)raw_reply(&raw, raw_send(&raw, RDT_MSG_ALLOC, &alloc.base, NULL, 0),
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
    Rdt__Pb__Fetch request = MESSAGE(fetch, .n_items = 1, .items = items, .timeout_ns = -1);
    (void)raw_send(&raw, RDT_MSG_FETCH, &request.base, NULL, 0);
    do
        cr_assert(raw_next(&raw));
    while (raw.frame.type != RDT_EVENT_FETCH_DONE);
    Rdt__Pb__FetchDone *done = rdt__pb__fetch_done__unpack(NULL, raw.frame.length, raw.frame.payload);
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

/* ---- the daemon's own ---- */

static uint64_t cpu_ms(pid_t pid)
{
    char path[64], text[1024] = "";
    unsigned long user = 0, system = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
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
    struct rdt_ref never = ref_named("never");
    struct raw raws[N];

    node_start(&node, NULL);
    rdt *client = node_client(&node, "waits");
    cr_assert_eq(prlimit(node.pid, RLIMIT_NOFILE, NULL, &old), 0);
    few = old;
    few.rlim_cur = fds_of(node.pid) + 21;
    cr_assert_eq(prlimit(node.pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (unsigned i = 0; i < N; i++)
        raw_connect(&raws[i], node.socket);
    wait_until(LONG, node_log_has(&node, "cannot accept"));
    uint64_t before = cpu_ms(node.pid);
    must_be(RDT_TIMED_OUT, rdt_wait_put(client, &never, 500 * MSEC, &err)); /* the daemon has nothing else to do meanwhile */
    cr_assert_leq(cpu_ms(node.pid) - before, 100, "it spins");
    for (unsigned i = 0; i < N / 2 + 5; i++)
        raw_close(&raws[i]);
    raw_hello(&raws[N / 2 + 5]);
    for (unsigned i = N / 2 + 5; i < N; i++)
        raw_close(&raws[i]);
    rdt_close(client);
    cr_assert_eq(prlimit(node.pid, RLIMIT_NOFILE, &old, NULL), 0);
    node_end(&node, declared);
}
