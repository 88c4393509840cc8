/* SPDX-License-Identifier: Apache-2.0 */
/* How long a small operation takes while many bytes move: the 99th percentile of put and free while another process moves
 * BYTES, measured alternately with an idle daemon. No process is bound to a core.
 *
 *     moving ROUNDS NAME SOCKET OWNER_SOCKET BYTES
 *
 * In each round BYTES are moved to the clients of SOCKET in objects of 64 MiB: by the network, or by local copies if both
 * sockets are of one daemon.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "bench_client.h"

#define OBJECT_BYTES (INT64_C(64) << 20)
#define IN_FLIGHT 4
#define MAX_SAMPLES 2000000u

static const int64_t object_bytes = OBJECT_BYTES;

struct samples {
    double *us; /* [MAX_SAMPLES] */
    size_t n;
};

static void put_and_free(rdt *conn, const struct rdt_tensor *tensor, struct samples *samples)
{
    int64_t since = bench_now_ns();
    struct rdt_ref ref;

    bench_put(conn, tensor, 1, &ref);
    must_ok(rdt_free(conn, &ref, false, &err));
    if (samples->n < MAX_SAMPLES)
        samples->us[samples->n++] = (double)(bench_now_ns() - since) / 1e3;
}

/* ---- the process that moves ---- */

struct mover {
    int go, done; /* pipes: a byte begins a round, a byte says that it has ended */
    pid_t pid;
};

static void move(rdt *conn, const struct rdt_ref *ref, struct rdt_tensor *targets, unsigned long long bytes)
{
    rdt_request *requests[IN_FLIGHT] = {NULL};
    size_t n = (size_t)((bytes + OBJECT_BYTES - 1) / OBJECT_BYTES);

    for (size_t i = 0; i < n + IN_FLIGHT; i++) {
        rdt_request **slot = &requests[i % IN_FLIGHT];
        const struct rdt_tensor *target = &targets[i % IN_FLIGHT];
        const size_t count = 1;

        if (*slot) {
            must_ok(rdt_wait(conn, slot, 1, RDT_WAIT_ALL, BENCH_TIMEOUT_NS, NULL, NULL, &err));
            rdt_request_destroy(*slot);
            *slot = NULL;
        }
        if (i >= n)
            continue;
        struct rdt_fetch_options options = {.struct_size = sizeof options,
                                            .mode = RDT_FETCH_COPY,
                                            .timeout_ns = BENCH_TIMEOUT_NS,
                                            .targets = &target,
                                            .target_counts = &count};
        must_ok(rdt_fetch_start(conn, ref, 1, &options, slot, &err));
    }
}

static void mover_main(const char *socket, const char *owner_socket, unsigned long long bytes, int go, int done)
{
    rdt *owner = bench_connect(owner_socket, "bench-owner"), *reader = bench_connect(socket, "bench-mover");
    struct rdt_tensor source, targets[IN_FLIGHT];
    struct rdt_ref ref;
    char byte;

    bench_tensor(owner, &object_bytes, 1, &source);
    bench_put(owner, &source, 1, &ref);
    for (unsigned i = 0; i < IN_FLIGHT; i++)
        bench_tensor(reader, &object_bytes, 0, &targets[i]);
    move(reader, &ref, targets, OBJECT_BYTES);
    (void)!write(done, "", 1);
    while (read(go, &byte, 1) == 1) {
        move(reader, &ref, targets, bytes);
        (void)!write(done, "", 1);
    }
    rdt_close(reader);
    rdt_close(owner);
    exit(0);
}

static void await(int fd)
{
    char byte;

    if (read(fd, &byte, 1) != 1)
        bench_die("the mover has gone");
}

static bool is_there(int fd)
{
    fd_set set;
    struct timeval at_once = {0};

    FD_ZERO(&set);
    FD_SET(fd, &set);
    return select(fd + 1, &set, NULL, NULL, &at_once) == 1;
}

static void mover_start(struct mover *mover, const char *socket, const char *owner_socket, unsigned long long bytes)
{
    int go[2], done[2];

    if (pipe(go) != 0 || pipe(done) != 0 || (mover->pid = fork()) < 0)
        bench_die("no process");
    if (mover->pid == 0) {
        (void)close(go[1]);
        mover_main(socket, owner_socket, bytes, go[0], done[1]);
    }
    (void)close(go[0]);
    (void)close(done[1]);
    mover->go = go[1];
    mover->done = done[0];
    await(mover->done);
}

int main(int argc, char **argv)
{
    static const int64_t small = BENCH_SMALL_BYTES;
    struct samples busy = {.n = 0}, idle = {.n = 0};
    struct rdt_tensor tensor;
    struct mover mover;
    int status;

    if (argc != 6)
        bench_die("usage: moving ROUNDS NAME SOCKET OWNER_SOCKET BYTES");
    unsigned rounds = (unsigned)bench_number(argv[1]);
    busy.us = calloc(MAX_SAMPLES, sizeof(double));
    idle.us = calloc(MAX_SAMPLES, sizeof(double));
    if (!busy.us || !idle.us)
        bench_die("no memory");
    mover_start(&mover, argv[3], argv[4], bench_number(argv[5]));
    rdt *conn = bench_connect(argv[3], "bench");
    bench_tensor(conn, &small, 1, &tensor);
    put_and_free(conn, &tensor, &idle);
    for (unsigned i = 0; i < rounds; i++) {
        int64_t since = bench_now_ns(), took;

        busy.n = idle.n = 0;
        (void)!write(mover.go, "", 1);
        while (!is_there(mover.done))
            put_and_free(conn, &tensor, &busy);
        await(mover.done);
        took = bench_now_ns() - since;
        for (since = bench_now_ns(); bench_now_ns() - since < took;)
            put_and_free(conn, &tensor, &idle);
        bench_row(argv[2], "", "us", "lower", "3", bench_percentile(busy.us, busy.n, 0.99),
                  bench_percentile(idle.us, idle.n, 0.99));
    }
    (void)close(mover.go);
    (void)waitpid(mover.pid, &status, 0);
    rdt_close(conn);
    free(busy.us);
    free(idle.us);
    return 0;
}
