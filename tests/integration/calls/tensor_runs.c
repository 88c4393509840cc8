/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of thousands of tensors, whose lists travel as runs of similar tensors. Every end gets the same tensors, also one
 * that does not know runs. A short message that describes very many tensors is refused or charged. */
#include "tests/integration/limits/limits.h"
#include "tests/support/cluster.h"
#include "tests/support/rogue_peer.h"

TestSuite(tensor_runs, .timeout = 120);

#define N 3000u
#define STEP 128

static const int64_t square[] = {5, 5}, line[] = {100}, backwards[] = {-1}, none[] = {0};

/* Mostly alike, with others between them: another shape, bytes from back to front, none at all, one out of line. */
static struct rdt_tensor *make_tensors(char *memory)
{
    struct rdt_tensor *tensors = calloc(N, sizeof *tensors);

    for (unsigned i = 0; i < N; i++)
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = line, .data = memory + i * STEP};
    for (unsigned i = 500; i < 700; i++)
        tensors[i] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = square, .data = memory + i * STEP};
    for (unsigned i = 900; i < 1000; i++) {
        tensors[i].strides = backwards;
        tensors[i].data = memory + i * STEP + line[0] - 1;
    }
    tensors[1500].shape = none;
    tensors[2000].data = memory + 3;
    return tensors;
}

static void must_hold(const rdt_object *object, const struct rdt_tensor *tensors)
{
    cr_assert_eq(rdt_object_count(object), N);
    for (unsigned i = 0; i < N; i++) {
        struct rdt_tensor seen = tensor_of(object, i);

        must_say(tensors_equal(&seen, &tensors[i]), "tensor %u is another", i);
    }
}

static struct rdt_ref put_all(rdt *client, const struct rdt_tensor *tensors)
{
    struct rdt_put_options options = {
        .struct_size = sizeof options, .visibility = RDT_VISIBLE_TO_ALL, .id = "many", .id_bytes = 4};
    struct rdt_ref ref = put_as(client, tensors, N, &options);

    return ref;
}

/* Row-major, and all of them where nobody has written yet. */
static struct rdt_tensor *make_targets(const struct rdt_tensor *tensors, char *memory)
{
    struct rdt_tensor *targets = malloc(N * sizeof *targets);

    memset(memory, 0xa5, N * STEP);
    for (unsigned i = 0; i < N; i++) {
        targets[i] = tensors[i];
        targets[i].strides = NULL;
        targets[i].data = memory + i * STEP;
    }
    return targets;
}

static void fetch_and_compare(rdt *reader, const struct rdt_ref *ref, enum rdt_fetch_mode mode,
                              const struct rdt_tensor *targets, const struct rdt_tensor *tensors)
{
    size_t n = N;
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .mode = mode,
                                        .timeout_ns = LONG,
                                        .targets = targets ? &targets : NULL,
                                        .target_counts = targets ? &n : NULL};
    rdt_object *object = fetch_as(reader, ref, &options);

    must_hold(object, tensors);
    for (unsigned i = 0; targets && i < N; i++)
        cr_assert_eq(tensor_of(object, i).data, targets[i].data);
    rdt_release(object);
}

Test(tensor_runs, many_tensors_are_shared_and_copied_as_they_were_put)
{
    begin(NULL);
    char *memory = alloc_memory(conn, N * STEP);
    fill_pattern(memory, N * STEP, 1);
    struct rdt_tensor *tensors = make_tensors(memory);
    struct rdt_tensor *targets = make_targets(tensors, alloc_memory(other, N * STEP));
    struct rdt_ref ref = put_all(conn, tensors);
    fetch_and_compare(other, &ref, RDT_FETCH_SHARE, NULL, tensors);
    fetch_and_compare(other, &ref, RDT_FETCH_COPY, NULL, tensors);
    fetch_and_compare(other, &ref, RDT_FETCH_COPY, targets, tensors);
    targets[2999].dtype = RDT_I8;
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .mode = RDT_FETCH_COPY,
                                        .timeout_ns = LONG,
                                        .targets = (const struct rdt_tensor *const[]){targets},
                                        .target_counts = (size_t[]){N}};
    must_refuse(RDT_MISMATCH, "tensor 2999", rdt_fetch(other, &ref, 1, &options, &no_object, &err));
    free(tensors);
    free(targets);
    end(NULL);
}

Test(tensor_runs, many_tensors_come_from_another_node_as_they_were_put)
{
    struct cluster c;

    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true, .stream = true});
    rdt *owner = node_client(&c.node[0], "owner");
    rdt *reader = node_client(&c.node[1], "reader");
    char *memory = alloc_memory(owner, N * STEP);
    fill_pattern(memory, N * STEP, 1);
    struct rdt_tensor *tensors = make_tensors(memory);
    struct rdt_tensor *targets = make_targets(tensors, alloc_memory(reader, N * STEP));
    struct rdt_ref ref = put_all(owner, tensors);
    fetch_and_compare(reader, &ref, RDT_FETCH_COPY, NULL, tensors);
    fetch_and_compare(reader, &ref, RDT_FETCH_COPY, targets, tensors);
    free(tensors);
    free(targets);
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, NULL);
}

/* ---- ends that do not know runs, and such that say too much ---- */

static void say_hello(struct raw *raw, bool runs)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;

    raw_connect(raw, node.socket);
    hello.protocol_min = hello.protocol_max = 1;
    hello.tensor_runs = runs;
    Rdt__Pb__HelloReply *reply = (Rdt__Pb__HelloReply *)raw_reply(raw, raw_send(raw, RDT_MSG_HELLO, &hello.base, NULL, 0),
                                                                  &rdt__pb__hello_reply__descriptor);
    cr_assert(reply->tensor_runs);
    rdt__pb__hello_reply__free_unpacked(reply, NULL);
}

static void ask(struct raw *raw, const char *id, Rdt__Pb__TensorList *targets, unsigned n)
{
    Rdt__Pb__FetchItem items[2], *list[2] = {&items[0], &items[1]};
    static uint64_t handle;
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){strlen(id), (uint8_t *)(uintptr_t)id}, .any_owner = true);

    for (unsigned i = 0; i < n; i++) {
        rdt__pb__fetch_item__init(&items[i]);
        items[i].ref = &ref;
        items[i].handle = ++handle;
        items[i].targets = targets;
    }
    Rdt__Pb__Fetch fetch = MESSAGE(
        fetch, .items = list, .n_items = n,
        .mode = targets ? RDT__PB__FETCH_MODE__FETCH_MODE_COPY : RDT__PB__FETCH_MODE__FETCH_MODE_AUTO, .timeout_ns = -1);
    (void)raw_send(raw, RDT_MSG_FETCH, &fetch.base, NULL, 0);
}

static Rdt__Pb__FetchDone *next_done(struct raw *raw)
{
    Rdt__Pb__FetchDone *done;

    do
        must(raw_next(raw));
    while (raw->frame.type != RDT_EVENT_FETCH_DONE); /* or it answers the request itself */
    done = rdt__pb__fetch_done__unpack(NULL, raw->frame.length, raw->frame.payload);
    frame_close_fds(&raw->frame);
    return done;
}

Test(tensor_runs, client_without_runs_gets_each_tensor)
{
    begin(NULL);
    char *memory = alloc_memory(conn, N * STEP);
    struct rdt_tensor *tensors = make_tensors(memory);
    (void)put_all(conn, tensors);
    for (unsigned runs = 0; runs < 2; runs++) {
        struct layout *layout;
        struct raw raw;

        say_hello(&raw, runs);
        ask(&raw, "many", NULL, 1);
        Rdt__Pb__FetchDone *done = next_done(&raw);
        cr_assert_eq(done->status, RDT_OK, "%s", done->message);
        cr_assert(runs ? done->tensors->n_run > 0 && done->tensors->n_dtype < 20
                       : done->tensors->n_run == 0 && done->tensors->n_dtype == N);
        must_ok(layout_from_wire(done->tensors, &layout, &err));
        cr_assert_eq(layout->count, N);
        for (uint32_t i = 0; i < N; i++)
            must_say(layout->dtype[i] == (uint32_t)tensors[i].dtype && layout->ndim[i] == tensors[i].ndim &&
                         (layout_bytes(layout, i) == 0 || layout->offset[i] == (uint64_t)((char *)tensors[i].data - memory)),
                     "tensor %u", i);
        free(layout);
        rdt__pb__fetch_done__free_unpacked(done, NULL);
        raw_close(&raw);
    }
    free(tensors);
    end(NULL);
}

/* The rogue_peer's hello says nothing of runs. */
Test(tensor_runs, node_without_runs_gets_each_tensor)
{
    static const char *const meant[] = {"is lost", "rogue_peer", "is down", NULL};
    struct rogue_peer rogue_peer;

    node_start(&node, &(struct node_options){.listen = "127.0.0.1:0"});
    conn = node_client(&node, "owner");
    rogue_peer_open(&rogue_peer, node.key_path, (uint16_t)atoi(strrchr(node.address, ':') + 1));
    struct rdt_tensor *tensors = make_tensors(alloc_memory(conn, N * STEP));
    (void)put_all(conn, tensors);
    Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){4, (uint8_t *)"many"}, .uid = geteuid());
    Rdt__Pb__Pull pull = MESSAGE(pull, .transfer = 1, .ref = &ref);
    Rdt__Pb__Requester requester = MESSAGE(requester, .uid = geteuid());
    pull.requester = &requester;
    pull.timeout_ns = -1;
    pull.meta_only = true;
    rogue_peer_send(&rogue_peer, RDT_PEER_PULL, &pull.base);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL_META, 1));
    Rdt__Pb__PullMeta *meta = rdt__pb__pull_meta__unpack(NULL, rogue_peer.came[RDT_PEER_PULL_META].bytes,
                                                         rogue_peer.came[RDT_PEER_PULL_META].payload);
    must_say(meta->status == RDT_OK && meta->tensors, "%d %s", meta->status, meta->message);
    cr_assert(meta->tensors->n_run == 0 && meta->tensors->n_dtype == N);
    rdt__pb__pull_meta__free_unpacked(meta, NULL);
    rogue_peer_close(&rogue_peer);
    rdt_close(conn);
    free(tensors);
    node_end(&node, meant);
}

/* Tensors without elements: they need no memory. */
struct claim {
    Rdt__Pb__TensorList list;
    uint32_t dtype, ndim, run;
    uint64_t shape;
};

static Rdt__Pb__TensorList *claim_many(struct claim *claim, uint32_t run)
{
    *claim = (struct claim){.dtype = RDT_U8, .ndim = 1, .run = run};
    rdt__pb__tensor_list__init(&claim->list);
    claim->list.n_dtype = claim->list.n_ndim = claim->list.n_shape = claim->list.n_run = 1;
    claim->list.dtype = &claim->dtype;
    claim->list.ndim = &claim->ndim;
    claim->list.shape = &claim->shape;
    claim->list.run = &claim->run;
    return &claim->list;
}

static void is_refused(struct raw *raw, const char *text)
{
    Rdt__Pb__FetchDone *done = next_done(raw);

    must_say(done->status == RDT_LIMIT && strstr(done->message, text), "%d %s", done->status, done->message);
    rdt__pb__fetch_done__free_unpacked(done, NULL);
}

Test(tensor_runs, few_bytes_that_stand_for_very_much_are_refused)
{
    struct claim claim;
    struct raw raw;
    char said[256];

    begin(NULL);
    say_hello(&raw, true);
    ask(&raw, "nobody's", claim_many(&claim, 10000000), 1);
    is_refused(&raw, "10000000 tensors in runs: at most 16384 in one message");
    ask(&raw, "nobody's", claim_many(&claim, 9000), 2); /* each would do */
    is_refused(&raw, "18000 tensors");
    is_refused(&raw, "18000 tensors");
    Rdt__Pb__Put put = MESSAGE(put, .tensors = claim_many(&claim, 10000000));
    (void)raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0);
    must_say(raw_error(&raw, said) == RDT_LIMIT && strstr(said, "runs have more than 16384 tensors"), "%s", said);
    cr_assert_eq(used(0, "heap"), 0);
    raw_close(&raw);
    end(NULL);
}

/* They are charged while the fetch waits for an object that nobody has put. */
Test(tensor_runs, targets_in_runs_are_their_clients_share_of_the_heap)
{
    struct claim claim;
    struct raw raw;
    unsigned n = 0;

    begin((const char *[]){"--client-max-heap=4MiB", NULL});
    say_hello(&raw, true);
    for (; used(0, "heap") + MIB < 4 * MIB; n++) {
        ask(&raw, "nobody's", claim_many(&claim, 16384), 1);
        wait_until(LONG, used(0, "heap") >= (n + 1) * 16384 * 24);
    }
    cr_assert(n >= 3 && n < 10, "%u", n);
    for (unsigned i = 0; i < 3; i++)
        ask(&raw, "nobody's", claim_many(&claim, 16384), 1);
    is_refused(&raw, "client_max_heap");
    raw_close(&raw);
    wait_until(LONG, used(0, "heap") == 0);
    end(NULL);
}
