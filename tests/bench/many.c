/* SPDX-License-Identifier: Apache-2.0 */
/* Many objects or tensors in one call: 1,000 objects in one fetch beside one fetch each, and an object of 10,000 tensors
 * beside an object of one tensor with as many bytes.
 *
 *     many local ROUNDS RDTD_SOCKET
 *     many peers ROUNDS READER_SOCKET OWNER_SOCKET
 */
#include "bench_client.h"
#include "client/rdt_many.h"

#define OBJECTS 1000u
#define TENSORS 10000u
#define SMALL 6144u /* objects that are put in one call, */
#define SMALL_BYTES 2048
#define ASKED 10000u      /* and names that are asked for */
#define TENSOR_BYTES 6720 /* together 67.2e6 */

struct many {
    rdt *reader, *owner;
    bool peers;
    struct rdt_ref *refs;     /* [OBJECTS] */
    rdt_object **objects;     /* [OBJECTS] */
    struct rdt_ref one, many; /* all bytes in one tensor, in TENSORS */
    struct rdt_tensor target_one, *target_many;
};

static const int64_t object_bytes = BENCH_SMALL_BYTES, tensor_bytes = TENSOR_BYTES, all_bytes = (int64_t)TENSORS * TENSOR_BYTES;

static void *allocate(size_t n, size_t size)
{
    void *memory = calloc(n, size);

    if (!memory)
        bench_die("no memory");
    return memory;
}

/* The memory of `whole`, as n tensors of *bytes each. */
static struct rdt_tensor *cut(const struct rdt_tensor *whole, size_t n, const int64_t *bytes)
{
    struct rdt_tensor *parts = allocate(n, sizeof *parts);

    for (size_t i = 0; i < n; i++)
        parts[i] = (struct rdt_tensor){
            .dtype = RDT_U8, .ndim = 1, .shape = bytes, .data = (uint8_t *)whole->data + i * (size_t)*bytes};
    return parts;
}

/* ---- objects ---- */

static void prepare_objects(struct many *many)
{
    static const int64_t bytes = (int64_t)OBJECTS * BENCH_SMALL_BYTES;
    struct rdt_tensor whole, *parts;

    many->refs = allocate(OBJECTS, sizeof *many->refs);
    many->objects = allocate(OBJECTS, sizeof(rdt_object *));
    bench_tensor(many->owner, &bytes, 1, &whole);
    parts = cut(&whole, OBJECTS, &object_bytes);
    for (unsigned i = 0; i < OBJECTS; i++)
        bench_put(many->owner, &parts[i], 1, &many->refs[i]);
    free(parts);
}

/* `at_once` of them in each call, until all are there; then they are let go of. us. */
static double fetch_objects(struct many *many, unsigned at_once)
{
    int64_t since = bench_now_ns();
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = BENCH_TIMEOUT_NS};

    for (unsigned i = 0; i < OBJECTS; i += at_once) {
        must_ok(rdt_fetch(many->reader, &many->refs[i], at_once, &options, &many->objects[i], &err));
        rdt_cork(many->reader);
        for (unsigned j = i; j < i + at_once; j++)
            rdt_release(many->objects[j]);
        rdt_uncork(many->reader);
    }
    return (double)(bench_now_ns() - since) / 1e3;
}

static void measure_objects(struct many *many, const char *suffix, unsigned rounds)
{
    (void)fetch_objects(many, OBJECTS);
    for (unsigned i = 0; i < rounds; i++) {
        double ours = fetch_objects(many, OBJECTS);

        bench_row("fetch_1000_objects_in_one_call", suffix, "us", "lower", "0.1", ours, fetch_objects(many, 1));
    }
    bench_note("fetch_1000_objects_in_one_call", suffix, "of 4 KiB; reference: the same, one call each");
}

/* ---- puts ---- */

struct small {
    struct rdt_tensor *tensors;
    struct rdt_value *values;
    struct rdt_ref *refs;
};

static const int64_t small_bytes = SMALL_BYTES;

enum way { IN_ONE_CALL, ONE_BY_ONE, ONE_OBJECT };

/* us, without the frees. */
static double put_small(rdt *conn, const struct small *small, enum way way)
{
    int64_t since = bench_now_ns();
    double result;

    if (way == IN_ONE_CALL)
        must_ok(rdt_put_many(conn, small->values, SMALL, NULL, small->refs, NULL, &err));
    else if (way == ONE_OBJECT)
        must_ok(rdt_put(conn, small->tensors, SMALL, NULL, small->refs, &err));
    else
        for (unsigned i = 0; i < SMALL; i++)
            must_ok(rdt_put(conn, &small->tensors[i], 1, NULL, &small->refs[i], &err));
    result = (double)(bench_now_ns() - since) / 1e3;
    rdt_cork(conn);
    for (unsigned i = 0; i < (way == ONE_OBJECT ? 1 : SMALL); i++)
        must_ok(rdt_drop(conn, &small->refs[i], &err));
    rdt_uncork(conn);
    must_ok(rdt_ping(conn, BENCH_TIMEOUT_NS, &err));
    return result;
}

static void measure_puts(rdt *conn, unsigned rounds)
{
    uint8_t *memory = allocate(SMALL, SMALL_BYTES);
    struct small small = {.values = allocate(SMALL, sizeof *small.values), .refs = allocate(SMALL, sizeof *small.refs)};
    const struct rdt_tensor whole = {.data = memory};

    memset(memory, 1, (size_t)SMALL * SMALL_BYTES);
    small.tensors = cut(&whole, SMALL, &small_bytes);
    for (unsigned i = 0; i < SMALL; i++)
        small.values[i] = (struct rdt_value){.tensors = &small.tensors[i], .count = 1};
    for (unsigned i = 0; i < 3; i++) /* the pages of the regions and of the arena */
        (void)put_small(conn, &small, i % 2 ? ONE_OBJECT : IN_ONE_CALL);
    for (unsigned i = 0; i < rounds; i++) {
        double ours = put_small(conn, &small, IN_ONE_CALL);

        bench_row("put_6144_in_one_call", "_beside_one_by_one", "us", "lower", "0.1", ours,
                  put_small(conn, &small, ONE_BY_ONE));
        ours = put_small(conn, &small, IN_ONE_CALL);
        bench_row("put_6144_in_one_call", "_beside_one_object", "us", "lower", "2", ours, put_small(conn, &small, ONE_OBJECT));
    }
    bench_note("put_6144_in_one_call", "_beside_one_by_one", "of 2 KiB, without the frees; reference: rdt_put for each");
    bench_note("put_6144_in_one_call", "_beside_one_object", "reference: one object of 6,144 tensors");
    free(memory);
    free(small.tensors);
    free(small.values);
    free(small.refs);
}

/* ---- exists ---- */

/* us. */
static double ask(struct many *many, const struct rdt_ref *refs, enum rdt_status *statuses, unsigned at_once)
{
    int64_t since = bench_now_ns();

    for (unsigned i = 0; i < ASKED; i += at_once)
        must_ok(rdt_exists(many->reader, &refs[i], at_once, &statuses[i], &err));
    return (double)(bench_now_ns() - since) / 1e3;
}

static void measure_exists(struct many *many, const char *suffix, unsigned rounds)
{
    enum rdt_status *statuses = allocate(ASKED, sizeof *statuses);
    struct rdt_ref *refs = allocate(ASKED, sizeof *refs);

    for (unsigned i = 0; i < ASKED; i++) {
        refs[i] = many->refs[i % OBJECTS];
        refs[i].generation = 0;
    }
    for (unsigned i = 0; i < rounds; i++) {
        double ours = ask(many, refs, statuses, ASKED);

        bench_row("exists_10000_in_one_call", suffix, "us", "lower", "0.1", ours, ask(many, refs, statuses, 1));
    }
    bench_note("exists_10000_in_one_call", suffix, "of objects by their ids; reference: one call each");
    free(statuses);
    free(refs);
}

/* ---- tensors ---- */

static void prepare_tensors(struct many *many)
{
    struct rdt_tensor whole, *parts;

    bench_tensor(many->owner, &all_bytes, 1, &whole);
    parts = cut(&whole, TENSORS, &tensor_bytes);
    bench_put(many->owner, &whole, 1, &many->one);
    bench_put(many->owner, parts, TENSORS, &many->many);
    free(parts);
    bench_tensor(many->reader, &all_bytes, 0, &many->target_one);
    many->target_many = cut(&many->target_one, TENSORS, &tensor_bytes);
}

/* GB/s. */
static double speed(int64_t since)
{
    return (double)all_bytes / (double)(bench_now_ns() - since);
}

static double fetch_into(struct many *many, bool one)
{
    int64_t since = bench_now_ns();
    rdt_object *object =
        bench_fetch(many->reader, one ? &many->one : &many->many, RDT_FETCH_COPY, one ? &many->target_one : many->target_many,
                    one ? 1 : TENSORS, many->peers ? "stream" : "local/copy");
    double result = speed(since);

    rdt_release(object);
    return result;
}

static volatile uint64_t sink; /* so that the compiler cannot leave the reads out */

/* Reads one byte of each cache line. The function is separate and aligned to a cache line, because the place of the loop in
 * the code changed its speed by a third. */
static __attribute__((noinline, aligned(64))) uint64_t read_lines(const uint8_t *bytes, size_t n)
{
    uint64_t sum = 0;

    for (size_t at = 0; at < n; at += 64)
        sum += bytes[at];
    return sum;
}

/* Shared and read once: that much of it takes as long as it has bytes. */
static double fetch_and_read(struct many *many, bool one)
{
    int64_t since = bench_now_ns();
    rdt_object *object = bench_fetch(many->reader, one ? &many->one : &many->many, RDT_FETCH_SHARE, NULL, 0, "local/share");
    uint64_t sum = 0;
    struct rdt_error err; /* once: must_ok empties one of 512 bytes each time, which is no tensor's */

    for (size_t i = 0; i < (one ? 1 : TENSORS); i++) {
        struct rdt_tensor tensor;

        if (rdt_object_tensor(object, i, &tensor, &err) != RDT_OK)
            bench_die("tensor %zu: %s", i, err.msg);
        sum += read_lines(tensor.data, (size_t)tensor.shape[0]);
    }
    sink = sum;
    double result = speed(since);
    rdt_release(object);
    return result;
}

static void measure_tensors(struct many *many, const char *name, const char *suffix, double (*fetch)(struct many *, bool),
                            unsigned rounds)
{
    (void)fetch(many, true);
    (void)fetch(many, false);
    for (unsigned i = 0; i < rounds; i++) {
        double ours = fetch(many, false);

        bench_row(name, suffix, "GB/s", "higher", "0.8", ours, fetch(many, true));
    }
}

int main(int argc, char **argv)
{
    bool local = argc == 4 && strcmp(argv[1], "local") == 0, peers = argc == 5 && strcmp(argv[1], "peers") == 0;
    struct many many = {.peers = peers};
    const char *suffix = peers ? "_between_nodes" : "_same_node";

    if (!local && !peers)
        bench_die("usage: many local ROUNDS SOCKET | many peers ROUNDS READER OWNER");
    unsigned rounds = (unsigned)bench_number(argv[2]);
    many.reader = bench_connect(argv[3], "bench");
    many.owner = bench_connect(argv[peers ? 4 : 3], "bench-owner");
    prepare_objects(&many);
    measure_objects(&many, suffix, rounds);
    measure_exists(&many, suffix, rounds);
    if (local)
        measure_puts(many.owner, rounds);
    prepare_tensors(&many);
    if (local) {
        measure_tensors(&many, "tensors_10000_share_and_read", "", fetch_and_read, rounds);
        bench_note("tensors_10000_share_and_read", "", "67 MB, one byte of each cache line; reference: one tensor of as many");
    }
    measure_tensors(&many, peers ? "tensors_10000_fetch" : "tensors_10000_copy", suffix, fetch_into, rounds);
    rdt_close(many.reader);
    rdt_close(many.owner);
    free(many.refs);
    free(many.objects);
    free(many.target_many);
    return 0;
}
