/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of memory for a fetch: plain rdt_fetch and rdt_release, one after the other, beside the same fetches into a
 * target that was touched before. Both are measured alternately: ROUNDS times COUNT fetches of one object from the daemon
 * at OWNER by a client of the daemon at READER.
 *
 *     fresh OWNER READER BYTES COUNT ROUNDS LABEL [copy]      copy: OWNER and READER are one daemon, which copies
 */
#include "bench_client.h"

/* target NULL: memory of the daemon. Reads the last byte, as a user of the object would. */
static double rate(rdt *conn, const struct rdt_ref *ref, const struct rdt_tensor *target, size_t bytes, size_t count, bool copy)
{
    const size_t one = 1;
    int64_t since = bench_now_ns();
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .timeout_ns = BENCH_TIMEOUT_NS,
                                        .mode = copy ? RDT_FETCH_COPY : RDT_FETCH_AUTO,
                                        .targets = target ? &target : NULL,
                                        .target_counts = target ? &one : NULL};

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
    struct rdt_ref ref;
    bool copy = argc == 8 && strcmp(argv[7], "copy") == 0;

    if (argc != 7 && !copy)
        bench_die("usage: fresh OWNER READER BYTES COUNT ROUNDS LABEL [copy]");
    int64_t bytes = (int64_t)bench_number(argv[3]);
    size_t count = bench_number(argv[4]);
    size_t rounds = bench_number(argv[5]);
    if (bytes == 0 || count == 0)
        bench_die("BYTES and COUNT are at least 1");
    rdt *owner = bench_connect(argv[1], "bench-owner");
    rdt *reader = bench_connect(argv[2], "bench");
    bench_tensor(owner, &bytes, 1, &source);
    bench_tensor(reader, &bytes, 0, &target);
    must_ok(rdt_put(owner, &source, 1, NULL, &ref, &err));
    (void)rate(reader, &ref, NULL, (size_t)bytes, 2, copy); /* connections, and the first pages */
    (void)rate(reader, &ref, &target, (size_t)bytes, 2, copy);
    for (size_t i = 0; i < rounds; i++) {
        double plain = rate(reader, &ref, NULL, (size_t)bytes, count, copy);

        bench_row("fresh_memory_", argv[6], "GB/s", "higher", "0.8", plain,
                  rate(reader, &ref, &target, (size_t)bytes, count, copy));
    }
    rdt_close(reader);
    rdt_close(owner);
    return 0;
}
