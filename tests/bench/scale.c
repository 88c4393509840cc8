/* SPDX-License-Identifier: Apache-2.0 */
/* scale: how a daemon performs with very many objects, clients, waiters and peers, beside one with few.
 *
 *     scale OBJECTS SOCKET PID SOCKET_OF_FEW [SOCKET_OF_PEER ...]
 *
 * The first daemon comes to hold that many objects, a thousand clients, ten thousand waiters and a link to each peer; the
 * second has few of each and is measured in turns with the first.
 */
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench_client.h"

#define FEW 1000u
#define CALLS 300u
#define ROUNDS 9u
#define WAITERS 10000u
#define CLIENTS 1000u
#define TENSOR_BYTES 64
#define IDLE_S 3

static const int64_t tensor_bytes = TENSOR_BYTES;
static uint8_t data[TENSOR_BYTES];

struct daemon {
    rdt *conn, *reader;
    struct rdt_ref ref; /* the ref of some object; the others differ in their id */
    unsigned n;
};

/* kB of a line of /proc/PID/status. */
static double status_kib(unsigned long pid, const char *key)
{
    char path[64], line[256];
    double kib = -1;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%lu/status", pid);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtod(line + strlen(key) + 1, NULL);
    if (file)
        (void)fclose(file);
    if (kib < 0)
        bench_die("no %s of process %lu", key, pid);
    return kib;
}

/* All its threads; ms. */
static double processor_ms(unsigned long pid)
{
    char command[96];
    double ns = 0, one;
    FILE *pipe;

    (void)snprintf(command, sizeof command, "cat /proc/%lu/task/*/schedstat", pid);
    pipe = popen(command, "r");
    while (pipe && fscanf(pipe, "%lf %*s %*s", &one) == 1)
        ns += one;
    if (!pipe || pclose(pipe) != 0)
        bench_die("no schedstat of process %lu", pid);
    return ns / 1e6;
}

static void put_number(struct daemon *daemon, unsigned number)
{
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = &tensor_bytes, .data = data};
    struct rdt_put_options options = RDT_INIT(options);
    char id[16];

    options.id = id;
    options.id_bytes = (size_t)snprintf(id, sizeof id, "n%u", number);
    must_ok(rdt_put(daemon->conn, &tensor, 1, &options, &daemon->ref, &err));
}

static struct rdt_ref ref_of(const struct daemon *daemon, unsigned number)
{
    struct rdt_ref ref = daemon->ref;

    memset(ref.id, 0, sizeof ref.id);
    ref.id_bytes = (uint8_t)snprintf(ref.id, sizeof ref.id, "n%u", number);
    ref.generation = 0; /* whichever lives under the id */
    return ref;
}

static unsigned random_below(unsigned n)
{
    static uint64_t state = 88172645463325252;

    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (unsigned)(state % n);
}

/* us of each of the three, medians. */
static void measure_calls(struct daemon *daemon, double us_p[3])
{
    static double us[3][CALLS];
    struct rdt_fetch_options options = RDT_INIT(options);

    options.timeout_ns = BENCH_TIMEOUT_NS;
    for (unsigned i = 0; i < CALLS; i++) {
        struct rdt_ref ref = ref_of(daemon, random_below(daemon->n)), fresh;
        rdt_object *object;
        int64_t at[4];

        at[0] = bench_now_ns();
        put_number(daemon, daemon->n);
        at[1] = bench_now_ns();
        must_ok(rdt_fetch(daemon->reader, &ref, 1, &options, &object, &err));
        at[2] = bench_now_ns();
        fresh = daemon->ref;
        must_ok(rdt_free(daemon->conn, &fresh, false, &err));
        at[3] = bench_now_ns();
        bench_check_path(object, "inline");
        rdt_release(object);
        for (unsigned k = 0; k < 3; k++)
            us[k][i] = (double)(at[k + 1] - at[k]) / 1e3;
    }
    for (unsigned k = 0; k < 3; k++)
        us_p[k] = bench_median(us[k], CALLS);
}

static void compare_calls(struct daemon *many, struct daemon *few, const char *suffix, const char *what)
{
    static const char *const names[3] = {"put_with_", "fetch_with_", "free_with_"};
    double warm[3];

    measure_calls(many, warm);
    measure_calls(few, warm);
    for (unsigned round = 0; round < ROUNDS; round++) {
        double ours[3], reference[3];
        measure_calls(many, ours);
        measure_calls(few, reference);
        for (unsigned k = 0; k < 3; k++)
            bench_row(names[k], suffix, "us", "lower", "1.2", ours[k], reference[k]);
    }
    for (unsigned k = 0; k < 3; k++)
        bench_note(names[k], suffix, what);
}

static void fill(struct daemon *daemon, unsigned n)
{
    for (daemon->n = 0; daemon->n < n; daemon->n++)
        put_number(daemon, daemon->n);
}

static void measure_memory(struct daemon *daemon, unsigned long pid, unsigned n)
{
    double before = status_kib(pid, "RssAnon:"), slowest = 0;
    unsigned id_bytes = 0;
    cpu_set_t own, its;

    /* On the daemon's core, where no idle one has to be woken for each of a million puts and answers. */
    if (sched_getaffinity(0, sizeof own, &own) != 0 || sched_getaffinity((pid_t)pid, sizeof its, &its) != 0 ||
        sched_setaffinity(0, sizeof its, &its) != 0)
        bench_die("no core: %m");
    for (daemon->n = 0; daemon->n < n; daemon->n++) {
        int64_t since = bench_now_ns();
        double us;
        put_number(daemon, daemon->n);
        us = (double)(bench_now_ns() - since) / 1e3;
        slowest = us > slowest ? us : slowest;
        id_bytes += daemon->ref.id_bytes;
    }
    (void)sched_setaffinity(0, sizeof own, &own);
    bench_row("memory_of_object", "", "bytes", "lower", "1",
              (status_kib(pid, "RssAnon:") - before) * 1024 / n - (double)id_bytes / n, 256);
    bench_note("memory_of_object", "", "beyond its id and the bytes of its tensor, with all its tables; reference: the goal");
    bench_row("slowest_put_of_all", "", "us", "lower", "null", slowest, 1000);
    bench_note("slowest_put_of_all", "", "while they were put; reference: a millisecond");
}

/* ---- many in one message ---- */

static double fetch_some(rdt *conn, const struct rdt_ref *refs, unsigned at_once)
{
    static rdt_object *objects[FEW];
    struct rdt_fetch_options options = RDT_INIT(options);
    int64_t since = bench_now_ns();

    options.timeout_ns = BENCH_TIMEOUT_NS;
    for (unsigned i = 0; i < FEW; i += at_once) {
        must_ok(rdt_fetch(conn, refs + i, at_once, &options, objects + i, &err));
        for (unsigned k = i; k < i + at_once; k++)
            rdt_release(objects[k]);
    }
    return (double)(bench_now_ns() - since) / 1e3;
}

static void measure_batch(struct daemon *daemon)
{
    static uint8_t bytes[BENCH_SMALL_BYTES];
    static const int64_t shape = BENCH_SMALL_BYTES;
    static struct rdt_ref refs[FEW];
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = &shape, .data = bytes};

    for (unsigned i = 0; i < FEW; i++)
        bench_put(daemon->conn, &tensor, 1, &refs[i]);
    (void)fetch_some(daemon->reader, refs, FEW);
    for (unsigned round = 0; round < ROUNDS; round++) {
        double ours = fetch_some(daemon->reader, refs, FEW);
        bench_row("fetch_1000_small_in_one_call", "", "us", "lower", "0.1", ours, fetch_some(daemon->reader, refs, 1));
    }
    bench_note("fetch_1000_small_in_one_call", "", "of 4 KiB, copied from the arena; reference: the same, one call each");
    for (unsigned i = 0; i < FEW; i++)
        must_ok(rdt_free(daemon->conn, &refs[i], false, &err));
}

/* ---- waiters ---- */

static double wake(struct daemon *daemon, unsigned n, unsigned round)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_request **requests = calloc(n, sizeof *requests);
    struct rdt_ref ref = ref_of(daemon, 2000000000u + round);
    int64_t since;

    if (!requests)
        bench_die("no memory");
    options.timeout_ns = BENCH_TIMEOUT_NS;
    for (unsigned i = 0; i < n; i++)
        must_ok(rdt_fetch_start(daemon->reader, &ref, 1, &options, &requests[i], &err));
    since = bench_now_ns();
    put_number(daemon, 2000000000u + round);
    must_ok(rdt_wait(daemon->reader, requests, n, n, BENCH_TIMEOUT_NS, NULL, NULL, &err));
    since = bench_now_ns() - since;
    for (unsigned i = 0; i < n; i++)
        rdt_request_destroy(requests[i]);
    free(requests);
    ref = daemon->ref;
    must_ok(rdt_free(daemon->conn, &ref, false, &err));
    return (double)since / 1e3 / n;
}

static void measure_waiters(struct daemon *daemon)
{
    for (unsigned round = 0; round < 5; round++) {
        double ours = wake(daemon, WAITERS, 2 * round), reference = wake(daemon, WAITERS / 100, 2 * round + 1);
        bench_row("wake_of_10000_waiters", "", "us", "lower", "1.2", ours, reference);
    }
    bench_note("wake_of_10000_waiters", "", "of one id, each; reference: of 100");
}

int main(int argc, char **argv)
{
    static rdt *clients[CLIENTS];
    struct daemon many = {0}, few = {0};
    struct rlimit files;
    unsigned long pid;
    unsigned n_objects, peers = (unsigned)(argc > 5 ? argc - 5 : 0);
    double before;

    if (argc < 5)
        bench_die("usage: scale OBJECTS SOCKET PID SOCKET_OF_FEW [SOCKET_OF_PEER ...]");
    n_objects = (unsigned)bench_number(argv[1]);
    pid = bench_number(argv[3]);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    many.conn = bench_connect(argv[2], "bench");
    many.reader = bench_connect(argv[2], "bench-reader");
    few.conn = bench_connect(argv[4], "bench");
    few.reader = bench_connect(argv[4], "bench-reader");

    measure_batch(&many);
    measure_memory(&many, pid, n_objects);
    fill(&few, FEW);
    compare_calls(&many, &few, "million_objects", "of 64 bytes; reference: with a thousand");

    before = status_kib(pid, "RssAnon:");
    for (unsigned i = 0; i < CLIENTS; i++)
        clients[i] = bench_connect(argv[2], "bench-idle");
    bench_row("memory_of_client", "", "KiB", "lower", "null", (status_kib(pid, "RssAnon:") - before) / CLIENTS, 1);
    for (unsigned i = 0; i < peers; i++) {
        struct daemon peer = {.conn = bench_connect(argv[5 + i], "bench")};
        put_number(&peer, 0);
        rdt_release(bench_fetch(many.reader, &peer.ref, RDT_FETCH_AUTO, NULL, 0, "inline"));
        rdt_close(peer.conn);
    }
    compare_calls(&many, &few, "all", "as above, and a thousand clients and many peers; reference: with little of each");
    measure_waiters(&many);

    before = processor_ms(pid);
    (void)sleep(IDLE_S); /* the waits are what is measured */
    bench_row("idle_with_all", "", "ms", "lower", peers ? "null" : "0.005", processor_ms(pid) - before, IDLE_S * 1e3);
    bench_note("idle_with_all", "", "processor time of three seconds; each peer is pinged once a second");
    for (unsigned i = 0; i < CLIENTS; i++)
        rdt_close(clients[i]);
    rdt_close(many.reader);

    /* The end of a client with a million objects, as another sees it. */
    {
        rdt *other = bench_connect(argv[2], "bench-other");
        struct daemon watch = {.conn = other, .n = 1};
        double slowest = 0;
        rdt_close(many.conn);
        for (unsigned i = 0; i < 2000; i++) {
            int64_t since = bench_now_ns();
            struct rdt_ref ref;
            double us;
            put_number(&watch, 3000000000u + i);
            us = (double)(bench_now_ns() - since) / 1e3;
            slowest = us > slowest ? us : slowest;
            ref = watch.ref;
            must_ok(rdt_free(other, &ref, false, &err));
        }
        bench_row("slowest_put_during_an_end", "", "us", "lower", "null", slowest, 1000);
        bench_note("slowest_put_during_an_end", "", "of the client with all the objects; reference: a millisecond");
        rdt_close(other);
    }
    rdt_close(few.conn);
    rdt_close(few.reader);
    return 0;
}
