/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks whose bytes lie in several places, between two nodes: stream takes lists of pieces, so such chunks are neither
 * gathered nor scattered, and need no memory of the reader's daemon beside the targets. ucx takes none. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/nodes/pair.h"

TestSuite(pieces, .timeout = SUITE_SECONDS(240));

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define REGIONS 3u
#define GAP 100u /* between two blocks in memory, which no byte may reach; not a multiple of the alignment of anything */

/* The way of each test; tls: stream with encryption although the network is trusted. */
static const struct way {
    const char *transport;
    bool tls;
} ways[] = {{"ucx", false}, {"stream", false}, {"stream", true}};
#define N_WAYS (sizeof ways / sizeof *ways)

static void begin(const struct way *way, const char *flag)
{
    const char *const flags[] = {"--set=loopback.sided=two",
                                 way->tls ? "--set=stream.encrypt=always" : "--set=stream.encrypt=unless_trusted", NULL};
    const char *const of_reader[] = {flag, NULL};

    begin_pair(2, &(struct cluster_options){.stream = true, .loopback = true, .flags = flags, .flags_of = {NULL, of_reader}});
}

/* ---- blocks ---- */

/* Blocks of memory in several regions: in each one behind the other, with gaps, in an order that the seed decides. */
struct blocks {
    rdt *conn;
    size_t n;
    struct rdt_tensor *tensors; /* [n] */
    int64_t *shapes;            /* [n] */
    uint8_t *regions[REGIONS];
    size_t bytes[REGIONS];
};

static void blocks_create(struct blocks *blocks, rdt *conn, const size_t *sizes, size_t n, uint64_t seed)
{
    size_t *order = calloc(n, sizeof *order);
    unsigned *region = calloc(n, sizeof *region);

    *blocks = (struct blocks){
        .conn = conn, .n = n, .tensors = calloc(n, sizeof(struct rdt_tensor)), .shapes = calloc(n, sizeof(int64_t))};
    must(order && region && blocks->tensors && blocks->shapes);
    for (size_t i = 0; i < n; i++) {
        size_t other = next_random(&seed) % (i + 1);
        order[i] = order[other];
        order[other] = i;
        region[i] = next_random(&seed) % REGIONS;
        blocks->bytes[region[i]] += sizes[i] + GAP;
    }
    for (unsigned r = 0; r < REGIONS; r++) {
        blocks->regions[r] = alloc_memory(conn, blocks->bytes[r] + GAP);
        memset(blocks->regions[r], CANARY_BYTE, blocks->bytes[r] + GAP);
        blocks->bytes[r] = GAP;
    }
    for (size_t at = 0; at < n; at++) {
        size_t i = order[at];
        unsigned r = region[i];

        blocks->shapes[i] = (int64_t)sizes[i];
        blocks->tensors[i] = (struct rdt_tensor){
            .dtype = RDT_U8, .ndim = 1, .shape = &blocks->shapes[i], .data = blocks->regions[r] + blocks->bytes[r]};
        blocks->bytes[r] += sizes[i] + GAP;
    }
    free(order);
    free(region);
}

static void blocks_fill(const struct blocks *blocks, uint32_t seed)
{
    for (size_t i = 0; i < blocks->n; i++)
        fill_pattern(blocks->tensors[i].data, (size_t)blocks->shapes[i], seed + (uint32_t)i);
}

static void blocks_clear(const struct blocks *blocks)
{
    for (size_t i = 0; i < blocks->n; i++)
        memset(blocks->tensors[i].data, CANARY_BYTE, (size_t)blocks->shapes[i]);
}

/* Each block holds its pattern, and the gaps are as they were. */
static void blocks_expect(const struct blocks *blocks, uint32_t seed)
{
    for (size_t i = 0; i < blocks->n; i++)
        must_say(holds_pattern(blocks->tensors[i].data, (size_t)blocks->shapes[i], seed + (uint32_t)i), "block %zu is wrong",
                 i);
    blocks_clear(blocks);
    for (unsigned r = 0; r < REGIONS; r++)
        must_say(is_filled_with(blocks->regions[r], blocks->bytes[r], CANARY_BYTE), "a gap of region %u was written", r);
}

static void blocks_destroy(struct blocks *blocks)
{
    for (unsigned r = 0; r < REGIONS; r++)
        must_ok(rdt_dealloc(blocks->conn, blocks->regions[r], &err));
    free(blocks->tensors);
    free(blocks->shapes);
}

static struct rdt_ref blocks_put(const struct blocks *blocks, const struct rdt_put_options *options)
{
    struct rdt_ref ref = put_as(blocks->conn, blocks->tensors, blocks->n, options);
    return ref;
}

static enum rdt_status try_blocks_fetch(const struct blocks *blocks, const struct rdt_ref *ref, const char *transport,
                                        struct rdt_error *err)
{
    const struct rdt_tensor *targets[] = {blocks->tensors};
    rdt_object *object;
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .timeout_ns = LONG,
                                        .targets = targets,
                                        .target_counts = &blocks->n,
                                        .transport = transport};
    enum rdt_status status = rdt_fetch(reader, ref, 1, &options, &object, err);

    if (status == RDT_OK)
        rdt_release(object);
    return status;
}

static void blocks_fetch(const struct blocks *blocks, const struct rdt_ref *ref, const char *transport)
{
    must_ok(try_blocks_fetch(blocks, ref, transport, &err));
}

static size_t *equal_sizes(size_t n, size_t bytes)
{
    size_t *sizes = calloc(n, sizeof *sizes);

    must(sizes);
    for (size_t i = 0; i < n; i++)
        sizes[i] = bytes;
    return sizes;
}

/* ---- no memory beside the targets ---- */

#define N_LARGE 96u
#define LARGE (256 * KIB)

/* The reader's daemon has room for the targets, and not for the same bytes a second time. */
static void expect_no_staging(const struct way *way)
{
    size_t *sizes = equal_sizes(N_LARGE, LARGE);
    struct blocks from, to;

    begin(way, "--memory-limit=40MiB");
    blocks_create(&from, owner, sizes, N_LARGE, 1);
    blocks_create(&to, reader, sizes, N_LARGE, 2);
    blocks_fill(&from, 7);
    struct rdt_ref ref = blocks_put(&from, NULL);
    blocks_fetch(&to, &ref, way->transport);
    blocks_expect(&to, 7);
    must_refuse(RDT_NO_MEMORY, "too small to be received one by one", try_blocks_fetch(&to, &ref, "loopback", &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    blocks_destroy(&from);
    blocks_destroy(&to);
    free(sizes);
    end(NULL);
}

Test(pieces, blocks_over_stream_are_not_staged)
{
    expect_no_staging(&ways[1]);
}

Test(pieces, blocks_over_tls_are_not_staged)
{
    expect_no_staging(&ways[2]);
}

/* ---- blocks of all sizes ---- */

/* Chunks with blocks of one byte and of hundreds of KiB, and with padding behind nearly all of them; some chunks have so many
 * small blocks that they are staged. Only one end may lie in pieces, too. */
static void expect_odd_blocks(const struct way *way)
{
    static const size_t some[] = {1,      300001, 65536, 63,     64,     131073,  4097, 2,
                                  100000, 262144, 5,     524288, 524289, 1200001, 33,   77777};
    enum { N = 300 };
    size_t *sizes = equal_sizes(N, 0);

    begin(way, "--chunk=4MiB");
    for (uint64_t round = 1; round <= 4; round++) {
        struct blocks from, to;
        struct rdt_fetch_options options = RDT_INIT(options);
        uint64_t dice = round;
        size_t n = round == 4 ? 3 : N / 4;

        for (size_t i = 0; i < n; i++)
            sizes[i] = round == 3 && i < n / 2 ? 1 + next_random(&dice) % 200 : some[next_random(&dice) % 16];
        blocks_create(&from, owner, sizes, n, 2 * round);
        blocks_create(&to, reader, sizes, n, 2 * round + 1);
        blocks_fill(&from, (uint32_t)round);
        struct rdt_ref ref = blocks_put(&from, NULL);
        blocks_fetch(&to, &ref, way->transport);
        blocks_expect(&to, (uint32_t)round);

        options.timeout_ns = LONG; /* to the daemon's memory, which is packed: only the owner has pieces */
        options.transport = way->transport;
        rdt_object *object = fetch_as(reader, &ref, &options);
        for (size_t i = 0; i < n; i++) {
            struct rdt_tensor tensor = tensor_of(object, i);
            must_say(tensors_equal(&tensor, &from.tensors[i]), "block %zu is wrong", i);
        }
        rdt_release(object);
        must_ok(rdt_free(owner, &ref, false, &err));

        ref = blocks_put(&from,
                         &(struct rdt_put_options){.struct_size = sizeof(struct rdt_put_options), .flags = RDT_PUT_SNAPSHOT});
        blocks_clear(&to); /* of a packed object: only the reader has pieces */
        blocks_fetch(&to, &ref, way->transport);
        blocks_expect(&to, (uint32_t)round);
        must_ok(rdt_free(owner, &ref, false, &err));
        blocks_destroy(&from);
        blocks_destroy(&to);
    }
    free(sizes);
    end(NULL);
}

Test(pieces, odd_blocks_arrive_over_ucx)
{
    expect_odd_blocks(&ways[0]);
}

Test(pieces, odd_blocks_arrive_over_stream)
{
    expect_odd_blocks(&ways[1]);
}

Test(pieces, odd_blocks_arrive_over_tls)
{
    expect_odd_blocks(&ways[2]);
}

/* Rows with gaps between them: a tensor of its own, whose chunks begin and end in the middle of rows. */
Test(pieces, chunks_end_in_the_middle_of_rows)
{
    enum { ROWS = 900, COLUMNS = 12345, PITCH = 13000 };
    static const int64_t shape[] = {ROWS, COLUMNS}, strides[] = {PITCH, 1};

    for (size_t w = 0; w < N_WAYS; w++) {
        struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .strides = strides}, seen;

        begin(&ways[w], "--chunk=4MiB");
        tensor.data = alloc_memory(owner, (size_t)ROWS * PITCH);
        fill_pattern(tensor.data, (size_t)ROWS * PITCH, 5);
        struct rdt_ref ref = put_as(owner, &tensor, 1, NULL);
        struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG, .transport = ways[w].transport};
        rdt_object *object = fetch_as(reader, &ref, &options);
        seen = tensor_of(object, 0);
        must(is_row_major(&seen) && tensors_equal(&seen, &tensor));
        rdt_release(object);
        must_ok(rdt_free(owner, &ref, false, &err));
        must_ok(rdt_dealloc(owner, tensor.data, &err));
        end(NULL);
    }
}

/* ---- two transports, of which one takes no lists ---- */

/* The reader has begun by stream, with a little staging for the smallest tensors, when the owner says that it prefers a
 * transport that takes no lists of pieces: far more is staged then. */
Test(pieces, another_path_stages_what_was_not_staged)
{
    enum { TINY = 300, MIDDLE = 20, N = TINY + 1 + MIDDLE };
    size_t *sizes = equal_sizes(N, 100);
    struct blocks from, to;

    begin(&ways[0], "--chunk=4MiB");
    sizes[TINY] = MIB; /* a chunk of its own between the two others */
    for (size_t i = TINY + 1; i < N; i++)
        sizes[i] = 100 * KIB;
    blocks_create(&from, owner, sizes, N, 1);
    blocks_create(&to, reader, sizes, N, 2);
    blocks_fill(&from, 9);
    struct rdt_put_options options = {.struct_size = sizeof options, .transport = "loopback"};
    for (unsigned round = 0; round < 3; round++) {
        struct rdt_ref ref = blocks_put(&from, &options);

        blocks_fetch(&to, &ref, NULL);
        blocks_expect(&to, 9);
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    blocks_destroy(&from);
    blocks_destroy(&to);
    free(sizes);
    end(NULL);
}

/* ---- ends in the middle ---- */

#define N_MANY 800u
#define MANY (64 * KIB)

/* One end's daemon dies while the bytes move; the other one has nothing left of it. */
static void kill_in_the_middle(const struct way *way, unsigned victim)
{
    size_t *sizes = equal_sizes(N_MANY, MANY);
    const struct rdt_tensor *targets[1];
    struct transfer_view view = {0};
    struct blocks from, to;

    begin(way, "--chunk=1MiB");
    blocks_create(&from, owner, sizes, N_MANY, 1);
    blocks_create(&to, reader, sizes, N_MANY, 2);
    blocks_fill(&from, 7);
    struct rdt_ref ref = blocks_put(&from, NULL);
    targets[0] = to.tensors;
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .timeout_ns = LONG,
                                        .targets = targets,
                                        .target_counts = &to.n,
                                        .transport = way->transport};
    rdt_request *request = start_as(reader, &ref, &options);
    while (rdt_dispatch(reader, NULL, NULL) == RDT_OK && rdt_request_status(request, NULL) == RDT_AGAIN && view.bytes_done == 0)
        (void)transfer_under_way(&c.node[1], "in", &view);
    node_kill(&c.node[victim], SIGKILL);
    (void)rdt_wait(reader, &request, 1, RDT_WAIT_ALL, LONG, NULL, NULL, NULL);
    must(rdt_request_status(request, NULL) != RDT_AGAIN);
    rdt_request_destroy(request);
    rdt_close(victim == 0 ? owner : reader);
    cluster_restart(&c, victim);
    cluster_meet(&c);
    if (victim == 0) {
        owner = node_client(&c.node[0], "owner");
        free(from.tensors);
        free(from.shapes);
        blocks_create(&from, owner, sizes, N_MANY, 3);
        blocks_fill(&from, 8);
        ref = blocks_put(&from, NULL);
    } else {
        reader = node_client(&c.node[1], "reader");
        free(to.tensors);
        free(to.shapes);
        blocks_create(&to, reader, sizes, N_MANY, 4);
    }
    blocks_fetch(&to, &ref, way->transport);
    blocks_expect(&to, victim == 0 ? 8 : 7);
    must_ok(rdt_free(owner, &ref, false, &err));
    blocks_destroy(&from);
    blocks_destroy(&to);
    free(sizes);
    end((const char *const[]){"taken down and rebuilt", "lost", "is down", NULL});
}

Test(pieces, killed_reader_leaves_nothing)
{
    for (size_t w = 0; w < N_WAYS; w++)
        kill_in_the_middle(&ways[w], 1);
}

Test(pieces, killed_owner_leaves_nothing)
{
    for (size_t w = 0; w < N_WAYS; w++)
        kill_in_the_middle(&ways[w], 0);
}

/* After the end of a cancelled request nothing writes to its targets. */
Test(pieces, cancelled_fetch_leaves_its_targets_alone)
{
    size_t *sizes = equal_sizes(N_MANY, MANY);

    for (size_t w = 0; w < N_WAYS; w++) {
        const struct rdt_tensor *targets[1];
        struct blocks from, to;

        begin(&ways[w], "--chunk=1MiB");
        blocks_create(&from, owner, sizes, N_MANY, 1);
        blocks_create(&to, reader, sizes, N_MANY, 2);
        blocks_fill(&from, 7);
        struct rdt_ref ref = blocks_put(&from, NULL);
        targets[0] = to.tensors;
        struct rdt_fetch_options options = {.struct_size = sizeof options,
                                            .timeout_ns = LONG,
                                            .targets = targets,
                                            .target_counts = &to.n,
                                            .transport = ways[w].transport};
        for (unsigned round = 0; round < 5; round++) {
            struct transfer_view view = {0};
            rdt_request *request = start_as(reader, &ref, &options);

            while (rdt_dispatch(reader, NULL, NULL) == RDT_OK && rdt_request_status(request, NULL) == RDT_AGAIN &&
                   view.bytes_done == 0)
                (void)transfer_under_way(&c.node[1], "in", &view);
            rdt_request_destroy(request);
            cluster_expect_idle_of_transfers(&c);
            blocks_clear(&to);
            bystander_round(&c, 3); /* whatever was still on its way has come by now */
            for (unsigned r = 0; r < REGIONS; r++)
                must(is_filled_with(to.regions[r], to.bytes[r], CANARY_BYTE));
        }
        blocks_fetch(&to, &ref, ways[w].transport);
        blocks_expect(&to, 7);
        must_ok(rdt_free(owner, &ref, false, &err));
        blocks_destroy(&from);
        blocks_destroy(&to);
        end(NULL);
    }
    free(sizes);
}
