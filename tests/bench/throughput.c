/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches of one object from the daemon at OWNER by a client of the daemon at READER, WINDOW of them in flight, into memory
 * that was touched before. All of them use the same target, as all messages of ucx_perftest do. Prints GB/s (1e9 bytes) as
 * the client sees it, from its first start until it has received the last object.
 *
 *     throughput OWNER READER BYTES COUNT WARMUP WINDOW [TRANSPORT]    it is ucx otherwise
 */
#include "bench_client.h"

static const char *transport = "ucx";

static void start(rdt *conn, const struct rdt_ref *ref, const struct rdt_tensor *target, rdt_request **request_p)
{
    const size_t count = 1;
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .timeout_ns = BENCH_TIMEOUT_NS,
                                        .transport = transport,
                                        .targets = &target,
                                        .target_counts = &count};

    must_ok(rdt_fetch_start(conn, ref, 1, &options, request_p, &err));
}

/* Every one must have moved all of its bytes. */
static void end(rdt *conn, rdt_request *request, const struct rdt_tensor *target)
{
    struct rdt_object_info info;
    rdt_object *object;

    must_ok(rdt_wait(conn, &request, 1, RDT_WAIT_ALL, BENCH_TIMEOUT_NS, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    rdt_object_info(object, &info);
    if (strcmp(info.path, transport) != 0 || info.bytes_moved != (uint64_t)target->shape[0])
        bench_die("a fetch went by %s and moved %llu bytes", info.path, (unsigned long long)info.bytes_moved);
    rdt_release(object);
    rdt_request_destroy(request);
}

/* Always `window` in flight, until the last ones. */
static void fetch_all(rdt *conn, const struct rdt_ref *ref, const struct rdt_tensor *target, size_t count, size_t window)
{
    rdt_request **requests = calloc(window, sizeof(rdt_request *));

    if (!requests)
        bench_die("no memory");
    for (size_t i = 0; i < count + window; i++) {
        rdt_request **slot = &requests[i % window];

        if (i >= window && i - window < count)
            end(conn, *slot, target);
        if (i < count)
            start(conn, ref, target, slot);
    }
    free(requests);
}

int main(int argc, char **argv)
{
    struct rdt_tensor source, target;
    struct rdt_ref ref;

    if (argc != 7 && argc != 8)
        bench_die("usage: throughput OWNER READER BYTES COUNT WARMUP WINDOW [TRANSPORT]");
    if (argc == 8)
        transport = argv[7];
    int64_t bytes = (int64_t)bench_number(argv[3]);
    size_t count = bench_number(argv[4]);
    size_t warmup = bench_number(argv[5]);
    size_t window = bench_number(argv[6]);
    if (bytes == 0 || window == 0)
        bench_die("BYTES and WINDOW are at least 1");
    rdt *owner = bench_connect(argv[1], "bench-owner");
    rdt *reader = bench_connect(argv[2], "bench");
    bench_tensor(owner, &bytes, 1, &source);
    bench_tensor(reader, &bytes, 0, &target);
    bench_put(owner, &source, 1, &ref);
    fetch_all(reader, &ref, &target, warmup, window);
    if (warmup > 0 && ((uint8_t *)target.data)[bytes - 1] != 1)
        bench_die("the bytes did not come");
    int64_t since = bench_now_ns();
    fetch_all(reader, &ref, &target, count, window);
    (void)printf("%.3f\n", (double)count * (double)bytes / (double)(bench_now_ns() - since));
    rdt_close(reader);
    rdt_close(owner);
    return 0;
}
