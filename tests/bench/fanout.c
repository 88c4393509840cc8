/* SPDX-License-Identifier: Apache-2.0 */
/* One snapshot of the node at OWNER for many nodes at the same time, beside one node alone: seconds from the first start
 * until the last client has its object. Each round uses a snapshot that no node has yet.
 *
 *     fanout OWNER BYTES ROUNDS READER ...
 */
#include "bench_client.h"

#define MAX_READERS 64

static void put_snapshot(rdt *owner, const int64_t *bytes, struct rdt_ref *ref_p)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_tensor tensor;

    bench_tensor(owner, bytes, 1, &tensor);
    options.flags = RDT_PUT_SNAPSHOT;
    options.timeout_ns = BENCH_TIMEOUT_NS;
    must_ok(rdt_put(owner, &tensor, 1, &options, ref_p, &err));
    must_ok(rdt_dealloc(owner, tensor.data, &err));
}

static double read_all(rdt *owner, int64_t bytes, rdt *const *readers, size_t n)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_request *requests[MAX_READERS];
    rdt_object *objects[MAX_READERS];
    struct rdt_ref ref;
    int64_t since, took;

    put_snapshot(owner, &bytes, &ref);
    options.timeout_ns = BENCH_TIMEOUT_NS;
    since = bench_now_ns();
    for (size_t i = 0; i < n; i++)
        must_ok(rdt_fetch_start(readers[i], &ref, 1, &options, &requests[i], &err));
    for (size_t i = 0; i < n; i++) {
        must_ok(rdt_wait(readers[i], &requests[i], 1, RDT_WAIT_ALL, BENCH_TIMEOUT_NS, NULL, NULL, &err));
        must_ok(rdt_request_take_object(requests[i], &objects[i], &err));
    }
    took = bench_now_ns() - since;
    for (size_t i = 0; i < n; i++) {
        struct rdt_tensor tensor;
        must_ok(rdt_object_tensor(objects[i], 0, &tensor, &err));
        if (((const uint8_t *)tensor.data)[0] != 1 || ((const uint8_t *)tensor.data)[bytes - 1] != 1)
            bench_die("the bytes did not come");
        bench_check_path(objects[i], "ucx");
        rdt_release(objects[i]);
        rdt_request_destroy(requests[i]);
    }
    must_ok(rdt_free(owner, &ref, true, &err));
    return (double)took / 1e9;
}

int main(int argc, char **argv)
{
    rdt *owner, *readers[MAX_READERS];
    size_t n = argc > 4 ? (size_t)argc - 4 : 0, rounds;
    int64_t bytes;
    char suffix[32];

    if (n == 0 || n > MAX_READERS)
        bench_die("usage: fanout OWNER BYTES ROUNDS READER ...");
    bytes = (int64_t)bench_number(argv[2]);
    rounds = bench_number(argv[3]);
    owner = bench_connect(argv[1], "bench-owner");
    for (size_t i = 0; i < n; i++)
        readers[i] = bench_connect(argv[4 + i], "bench");
    (void)snprintf(suffix, sizeof suffix, "_%zu_nodes", n);
    (void)read_all(owner, bytes, readers, n); /* connects the nodes */
    for (size_t i = 0; i < rounds; i++) {
        double all = read_all(owner, bytes, readers, n);
        bench_row("fanout", suffix, "s", "lower", "2", all, read_all(owner, bytes, &readers[i % n], 1));
    }
    for (size_t i = 0; i < n; i++)
        rdt_close(readers[i]);
    rdt_close(owner);
    return 0;
}
