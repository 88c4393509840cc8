/* SPDX-License-Identifier: Apache-2.0 */
/* Many objects or tensors in one call: 1,000 objects in one fetch beside one fetch each, and an object of 10,000 tensors
 * beside an object of one tensor with as many bytes.
 *
 *     many local ROUNDS RDTD_SOCKET
 *     many peers ROUNDS READER_SOCKET OWNER_SOCKET
 */
#include "bench_client.h"

#define OBJECTS 1000u
#define TENSORS 10000u
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
