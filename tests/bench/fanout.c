/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of the node at OWNER for many nodes at the same time: seconds from the first start until the last client has all
 * of its objects, beside one node alone and beside the time that the bytes need on one link. Each round uses snapshots that no
 * node has yet. Two clients on each node ask for everything. The counters of the links tell how often each byte travelled: the
 * switch's end of node i's link is LINK1 for the owner, LINK2 for the first reader and so on.
 *
 *     fanout OWNER BYTES OBJECTS ROUNDS LINK MBIT READER ...
 */
#include "bench_client.h"

#define MAX_READERS 64
#define MAX_OBJECTS 64
#define CLIENTS 2 /* on each node */

static struct rdt_ref refs[MAX_OBJECTS];
static int64_t object_bytes;
static size_t n_objects;
static const char *link_name;

struct traffic {
    double in, out; /* bytes that the node has received and sent */
};

static struct traffic traffic_of(size_t node)
{
    FILE *file = fopen("/proc/self/net/dev", "r");
    char line[512], name[32];
    unsigned long long received, sent;
    struct traffic traffic = {-1, -1};

    if (!file)
        bench_die("no /proc/self/net/dev");
    (void)snprintf(name, sizeof name, "%s%zu:", link_name, node);
    while (fgets(line, sizeof line, file)) {
        const char *at = strstr(line, name);
        if (at && (at == line || at[-1] == ' ') &&
            sscanf(at + strlen(name), "%llu %*u %*u %*u %*u %*u %*u %*u %llu", &received, &sent) == 2)
            traffic =
                (struct traffic){.in = (double)sent, .out = (double)received}; /* what the switch sends, the node receives */
    }
    (void)fclose(file);
    return traffic;
}

static void put_snapshots(rdt *owner)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_tensor tensor;

    bench_tensor(owner, &object_bytes, 1, &tensor);
    options.flags = RDT_PUT_SNAPSHOT;
    options.timeout_ns = BENCH_TIMEOUT_NS;
    for (size_t i = 0; i < n_objects; i++)
        must_ok(rdt_put(owner, &tensor, 1, &options, &refs[i], &err));
    must_ok(rdt_dealloc(owner, tensor.data, &err));
}

static void take(rdt *reader, rdt_request **requests)
{
    must_ok(rdt_wait(reader, requests, n_objects, RDT_WAIT_ALL, BENCH_TIMEOUT_NS, NULL, NULL, &err));
    for (size_t i = 0; i < n_objects; i++) {
        struct rdt_tensor tensor;
        rdt_object *object;
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        must_ok(rdt_object_tensor(object, 0, &tensor, &err));
        if (((const uint8_t *)tensor.data)[0] != 1 || ((const uint8_t *)tensor.data)[object_bytes - 1] != 1)
            bench_die("the bytes did not come");
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
}

static double read_all(rdt *owner, rdt *const (*readers)[CLIENTS], size_t n)
{
    static rdt_request *requests[MAX_READERS][CLIENTS][MAX_OBJECTS];
    struct rdt_fetch_options options = RDT_INIT(options);
    int64_t since, took;

    put_snapshots(owner);
    options.timeout_ns = BENCH_TIMEOUT_NS;
    since = bench_now_ns();
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < CLIENTS; c++)
            must_ok(rdt_fetch_start(readers[i][c], refs, n_objects, &options, requests[i][c], &err));
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < CLIENTS; c++)
            take(readers[i][c], requests[i][c]);
    took = bench_now_ns() - since;
    for (size_t i = 0; i < n_objects; i++)
        must_ok(rdt_free(owner, &refs[i], true, &err));
    return (double)took / 1e9;
}

int main(int argc, char **argv)
{
    static rdt *readers[MAX_READERS][CLIENTS];
    rdt *owner;
    size_t n = argc > 7 ? (size_t)argc - 7 : 0, rounds;
    double bound, sent = 0, most = 0, bytes;
    struct traffic before[MAX_READERS + 1];
    char suffix[48], bound_suffix[64], note[128];

    if (n == 0 || n > MAX_READERS)
        bench_die("usage: fanout OWNER BYTES OBJECTS ROUNDS LINK MBIT READER ...");
    n_objects = bench_number(argv[3]);
    if (n_objects == 0 || n_objects > MAX_OBJECTS)
        bench_die("1 to %d objects", MAX_OBJECTS);
    object_bytes = (int64_t)(bench_number(argv[2]) / n_objects);
    bytes = (double)object_bytes * (double)n_objects;
    rounds = bench_number(argv[4]);
    link_name = argv[5];
    bound = bytes * 8 / ((double)bench_number(argv[6]) * 1e6);
    owner = bench_connect(argv[1], "bench-owner");
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < CLIENTS; c++)
            readers[i][c] = bench_connect(argv[7 + i], "bench");
    (void)snprintf(suffix, sizeof suffix, n_objects > 1 ? "_%zu_nodes_%zu_objects" : "_%zu_nodes", n, n_objects);
    (void)snprintf(bound_suffix, sizeof bound_suffix, "%s_beside_link", suffix);
    (void)read_all(owner, readers, n); /* connects the nodes */
    for (size_t i = 0; i < rounds; i++) {
        double all;
        for (size_t k = 0; k <= n; k++)
            before[k] = traffic_of(k + 1);
        all = read_all(owner, readers, n);
        for (size_t k = 0; k <= n; k++) {
            struct traffic now = traffic_of(k + 1);
            if (now.in < 0)
                bench_die("no link %s%zu", link_name, k + 1);
            if (k == 0 && now.out - before[k].out > sent)
                sent = now.out - before[k].out;
            if (k > 0 && now.in - before[k].in > most)
                most = now.in - before[k].in;
        }
        bench_row("fanout", suffix, "s", "lower", "1.3", all, read_all(owner, &readers[i % n], 1));
        bench_row("fanout", bound_suffix, "s", "lower", "1.2", all, bound);
    }
    (void)snprintf(note, sizeof note, "the owner's link carried %.2f times the bytes at most, a reader's %.2f times",
                   sent / bytes, most / bytes);
    bench_note("fanout", bound_suffix, note);
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < CLIENTS; c++)
            rdt_close(readers[i][c]);
    rdt_close(owner);
    return 0;
}
