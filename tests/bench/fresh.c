/* What memory for a fetch costs: plain rdt_fetch and rdt_release, one after the other, beside the same fetches into a target that
 * was touched before. Both in turns, ROUNDS times COUNT fetches of one object from the daemon at OWNER by a client of the daemon at
 * READER. Prints a line of GB/s (1e9 bytes) for each round: plain, then into the target.
 *
 *     fresh OWNER READER BYTES COUNT ROUNDS [copy]      copy: OWNER and READER are one daemon, which copies
 */
#include "bench.h"
#include "client/rdt.h"

#define TIMEOUT_NS INT64_C(30000000000)

#define must_ok(call)                            \
    do {                                         \
        struct rdt_error err = {0};              \
        if ((call) != RDT_OK)                    \
            bench_die("%s: %s", #call, err.msg); \
    } while (0)

static rdt *connect_to(const char *socket)
{
    struct rdt_connect_options options = RDT_INIT(options);
    rdt *conn;

    options.socket = socket;
    options.name = "bench";
    must_ok(rdt_connect(&options, &conn, &err));
    return conn;
}

static void make_tensor(rdt *conn, const int64_t *bytes, int fill, struct rdt_tensor *tensor_p)
{
    *tensor_p = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = bytes};
    must_ok(rdt_alloc(conn, (size_t)*bytes, &tensor_p->data, &err));
    memset(tensor_p->data, fill, (size_t)*bytes);
}

/* target NULL: where the daemon likes. The last byte of it is looked at, as whoever fetches would. */
static double rate(rdt *conn, const struct rdt_ref *ref, const struct rdt_tensor *target, size_t bytes, size_t count, bool copy)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    const size_t one = 1;
    int64_t since = bench_now_ns();

    options.timeout_ns = TIMEOUT_NS;
    options.mode = copy ? RDT_FETCH_COPY : RDT_FETCH_AUTO;
    options.targets = target ? &target : NULL;
    options.target_counts = target ? &one : NULL;
    for (size_t i = 0; i < count; i++) {
        struct rdt_object_info info;
        struct rdt_tensor tensor;
        rdt_object *object;

        must_ok(rdt_fetch(conn, ref, 1, &options, &object, &err));
        rdt_object_info(object, &info);
        must_ok(rdt_object_tensor(object, 0, &tensor, &err));
        if (info.bytes_moved != bytes || ((const uint8_t *)(target ? target->data : tensor.data))[bytes - 1] != 1)
            bench_die("a fetch by %s moved %llu bytes", info.path, (unsigned long long)info.bytes_moved);
        rdt_release(object);
    }
    return (double)count * (double)bytes / (double)(bench_now_ns() - since);
}

int main(int argc, char **argv)
{
    struct rdt_tensor source, target;
    size_t count, rounds;
    struct rdt_ref ref;
    int64_t bytes;
    rdt *owner, *reader;
    bool copy = argc == 7 && strcmp(argv[6], "copy") == 0;

    if (argc != 6 && !copy)
        bench_die("usage: fresh OWNER READER BYTES COUNT ROUNDS [copy]");
    bytes = (int64_t)bench_number(argv[3]);
    count = bench_number(argv[4]);
    rounds = bench_number(argv[5]);
    if (bytes == 0 || count == 0)
        bench_die("BYTES and COUNT are at least 1");
    owner = connect_to(argv[1]);
    reader = connect_to(argv[2]);
    make_tensor(owner, &bytes, 1, &source);
    make_tensor(reader, &bytes, 0, &target);
    must_ok(rdt_put(owner, &source, 1, NULL, &ref, &err));
    (void)rate(reader, &ref, NULL, (size_t)bytes, 2, copy); /* connections, and the first pages */
    (void)rate(reader, &ref, &target, (size_t)bytes, 2, copy);
    for (size_t i = 0; i < rounds; i++) {
        double plain = rate(reader, &ref, NULL, (size_t)bytes, count, copy);
        double into = rate(reader, &ref, &target, (size_t)bytes, count, copy);
        (void)printf("%.3f %.3f\n", plain, into);
    }
    rdt_close(reader);
    rdt_close(owner);
    return 0;
}
