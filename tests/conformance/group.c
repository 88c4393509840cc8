/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of a transport. All ranks are in this process, each with an instance of the plug-in; a rank
 * that has to freeze is in another process.
 */
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/conformance/check.h"
#include "tests/support/backend_host.h"

#include <stdio.h>
#include <stdlib.h>

#define MOMENT_MS 2000
#define SOON_MS 10000
#define LATER_MS 60000
#define MIB ((uint64_t)1 << 20)
#define RANKS 3

#define GROUP_CHECK(name) CHECK(group, name)

static struct rdt_error err;

struct world {
    uint32_t n;
    struct backend_host hosts[RANKS];
    struct host_group groups[RANKS];
    uint8_t *blobs[RANKS];
    size_t bytes[RANKS];
};

static struct world world;

static void load(struct backend_host *host)
{
    must_eq(backend_host_load(host, check_so, &err), RDT_OK, "%s", err.msg);
    if (!host->ops)
        check_skip("it has no transport");
    if (!HAS_OP(host->ops, group_create))
        check_skip("it knows no groups");
    must(host->ops->group_offer && host->ops->group_connect && host->ops->group_conn && host->ops->group_close &&
             host->ops->group_destroy,
         "the table has group_create and lacks one of group_offer, group_connect, group_conn, group_close, group_destroy");
}

static void open_host(struct backend_host *host)
{
    load(host);
    enum rdt_status status = backend_host_open(host, NULL, &err);
    if (status == RDT_UNSUPPORTED)
        check_skip("it is not available here: %s", err.msg);
    must_eq(status, RDT_OK, "open fails: %s", err.msg);
}

static void create(uint32_t n)
{
    world.n = n;
    for (uint32_t i = 0; i < n; i++) {
        open_host(&world.hosts[i]);
        if (!world.hosts[i].ops->post_send)
            check_skip("it is not two-sided");
        must_eq(host_group_create(&world.hosts[i], &world.groups[i], i, n, &err), RDT_OK, "%s", err.msg);
    }
}

static void offer(void)
{
    for (uint32_t i = 0; i < world.n; i++) {
        world.blobs[i] = malloc(RDT_GROUP_OFFER_MAX_BYTES);
        must_not_null(world.blobs[i]);
        must_eq(world.hosts[i].ops->group_offer(world.groups[i].handle, world.blobs[i], &world.bytes[i], &err), RDT_OK, "%s",
                err.msg);
        must_leq(world.bytes[i], (size_t)RDT_GROUP_OFFER_MAX_BYTES);
    }
}

static enum rdt_status connect_rank(uint32_t i)
{
    return world.hosts[i].ops->group_connect(world.groups[i].handle, (const void *const *)world.blobs, world.bytes, &err);
}

static void form(uint32_t n)
{
    create(n);
    offer();
    for (uint32_t i = 0; i < n; i++)
        must_eq(connect_rank(i), RDT_OK, "%s", err.msg);
    for (uint32_t i = 0; i < n; i++) {
        must(host_group_wait_ready(&world.groups[i], LATER_MS), "rank %u is not ready: %s", i, world.groups[i].msg);
        must_eq(world.groups[i].n_ready, 1);
        host_group_take_conns(&world.groups[i]);
    }
}

/* Works in every state. */
static void close_all(void)
{
    for (uint32_t i = 0; i < world.n; i++)
        host_group_close(&world.groups[i]);
    for (uint32_t i = 0; i < world.n; i++) {
        must(host_group_wait_closed(&world.groups[i], LATER_MS), "group_closed of rank %u did not come", i);
        must_eq(world.groups[i].n_closed, 1);
        must_leq(world.groups[i].n_failed, 1);
        must_eq(world.groups[i].open_at_close, 0, "%u operations had not ended when group_closed came",
                world.groups[i].open_at_close);
        world.hosts[i].ops->group_destroy(world.groups[i].handle);
        free(world.blobs[i]);
        world.blobs[i] = NULL;
    }
}

static void finish(void)
{
    for (uint32_t i = 0; i < world.n; i++) {
        backend_host_close(&world.hosts[i]);
        must_eq(world.hosts[i].n_errors, 0, "the plug-in logged errors");
    }
}

static void move(uint32_t from, uint32_t to, uint64_t transfer, uint64_t bytes)
{
    struct guarded memory;
    struct host_op recv, send;
    uint8_t *source = malloc(bytes);

    must(source && guarded_create(&memory, bytes));
    pattern_fill(source, bytes, from * 5 + to);
    host_op_fill(&recv, transfer, 0, memory.addr, bytes);
    host_op_fill(&send, transfer, 0, source, bytes);
    must_eq(host_op_post(&world.groups[to].conns[from], &recv, POST_RECV, &err), RDT_OK, "%s", err.msg);
    must_eq(host_op_post(&world.groups[from].conns[to], &send, POST_SEND, &err), RDT_OK, "%s", err.msg);
    must(host_op_wait(&recv, LATER_MS) && host_op_wait(&send, LATER_MS), "%llu bytes from rank %u to %u do not come",
         (unsigned long long)bytes, from, to);
    must(recv.status == RDT_OK && send.status == RDT_OK, "%s", recv.msg);
    must(pattern_holds(memory.addr, bytes, from * 5 + to) && guarded_margins_hold(&memory));
    must(recv.n_done == 1 && send.n_done == 1);
    guarded_destroy(&memory);
    free(source);
}

/* ---- on the core's loop thread ---- */

#define MANY_RANKS 100u
#define AT_ONCE_MS 150 /* a ten-millisecond wait for each rank is far beyond it, a busy machine is not */

static double ms_since(const struct timespec *since)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - since->tv_sec) * 1e3 + (double)(now.tv_nsec - since->tv_nsec) / 1e6;
}

static void note_least(double *least_p, double ms)
{
    if (ms < *least_p)
        *least_p = ms;
}

/* How long a call took at least, in several rounds: what a busy machine adds differs. */
#define time_call(least_p, call)                      \
    do {                                              \
        struct timespec since;                        \
        (void)clock_gettime(CLOCK_MONOTONIC, &since); \
        call;                                         \
        note_least(least_p, ms_since(&since));        \
    } while (0)

/* A group of many ranks that does not come about: somebody has proposed it, and not all nodes take part. */
GROUP_CHECK(large_group_that_never_connects_holds_nobody_up)
{
    static struct rdt_group_member members[MANY_RANKS];
    static uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES];
    struct host_group *group = &world.groups[0];
    struct rdt_group_desc desc = {sizeof desc, "large", 1, 1, MANY_RANKS, members, {3}};
    enum { CREATE, OFFER, CLOSE, DESTROY, CALLS };
    static const char *const names[CALLS] = {"group_create", "group_offer", "group_close", "group_destroy"};
    double least_ms[CALLS] = {INFINITY, INFINITY, INFINITY, INFINITY};
    enum rdt_status status;
    size_t bytes;

    open_host(&world.hosts[0]);
    world.n = 1;
    const struct rdt_transport_ops *ops = world.hosts[0].ops;
    for (uint32_t i = 0; i < MANY_RANKS; i++)
        members[i] = (struct rdt_group_member){.node_uuid = {2, (uint8_t)i}, .device = ""};
    for (unsigned round = 0; round < 5; round++) {
        *group = (struct host_group){.host = &world.hosts[0], .rank = 1, .size = 2};
        time_call(&least_ms[CREATE], status = ops->group_create(world.hosts[0].transport, &desc, group, &group->handle, &err));
        if (status == RDT_LIMIT)
            check_skip("it takes fewer ranks: %s", err.msg);
        must_eq(status, RDT_OK, "%s", err.msg);
        time_call(&least_ms[OFFER], status = ops->group_offer(group->handle, blob, &bytes, &err));
        must_eq(status, RDT_OK, "%s", err.msg);
        time_call(&least_ms[CLOSE], ops->group_close(group->handle));
        must(host_group_wait_closed(group, LATER_MS), "group_closed did not come");
        time_call(&least_ms[DESTROY], ops->group_destroy(group->handle));
    }
    for (unsigned i = 0; i < CALLS; i++)
        must(least_ms[i] < patience_ms(AT_ONCE_MS), "%s held the caller up for %.0f ms", names[i], least_ms[i]);
    finish();
}

/* ---- forming, sends ---- */

GROUP_CHECK(forms_and_moves_between_all_ranks)
{
    form(RANKS);
    for (uint32_t from = 0; from < RANKS; from++)
        for (uint32_t to = 0; to < RANKS; to++)
            if (from != to)
                for (uint64_t bytes = 1; bytes <= 4 * MIB; bytes = bytes * 16 + 1)
                    move(from, to, bytes, bytes);
    close_all();
    finish();
}

GROUP_CHECK(another_group_of_the_same_instances_does_not_disturb)
{
    static struct host_group others[2];
    uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES];
    size_t bytes;

    form(2);
    for (uint32_t i = 0; i < 2; i++) {
        must_eq(host_group_create(&world.hosts[i], &others[i], i, 2, &err), RDT_OK, "%s", err.msg);
        must_eq(world.hosts[i].ops->group_offer(others[i].handle, blob, &bytes, &err), RDT_OK, "%s", err.msg);
    }
    move(0, 1, 1, MIB);
    for (uint32_t i = 0; i < 2; i++)
        host_group_close(&others[i]); /* offered, never connected */
    for (uint32_t i = 0; i < 2; i++) {
        must(host_group_wait_closed(&others[i], LATER_MS));
        world.hosts[i].ops->group_destroy(others[i].handle);
    }
    move(1, 0, 2, MIB);
    close_all();
    finish();
}

/* ---- close, in every state ---- */

GROUP_CHECK(close_before_anything_else)
{
    create(2);
    close_all();
    finish();
    create(2);
    offer();
    close_all();
    finish();
}

GROUP_CHECK(close_while_others_have_not_connected)
{
    for (uint32_t connected = 0; connected < RANKS; connected++) {
        create(RANKS);
        offer();
        for (uint32_t i = 0; i < RANKS; i++)
            if (i == connected)
                must_eq(connect_rank(i), RDT_OK, "%s", err.msg);
        close_all();
        finish();
    }
}

GROUP_CHECK(close_ends_every_operation_and_nothing_is_written_afterwards)
{
    enum { N = 16 };
    static struct host_op recvs[N], sends[N];
    const uint64_t bytes = 4 * MIB;
    uint8_t *memory = malloc(N * bytes), *source = calloc(1, bytes);
    uint64_t spoiled = 0;

    must(memory && source);
    form(2);
    for (unsigned i = 0; i < N; i++) {
        host_op_fill(&recvs[i], 1, i, memory + i * bytes, bytes);
        must_eq(host_op_post(&world.groups[0].conns[1], &recvs[i], POST_RECV, &err), RDT_OK);
        host_op_fill(&sends[i], 1, i, source, bytes);
        if (i < N - 1)
            must_eq(host_op_post(&world.groups[1].conns[0], &sends[i], POST_SEND, &err), RDT_OK);
    }
    must(host_op_wait(&recvs[0], LATER_MS));
    close_all(); /* while messages are moving */
    memset(memory, CANARY, N * bytes);
    for (unsigned i = 0; i < N; i++) {
        must(host_op_ended(&recvs[i]));
        must_eq(recvs[i].n_done, 1);
        must(i == N - 1 || (host_op_ended(&sends[i]) && sends[i].n_done == 1));
        must(recvs[i].status == RDT_OK || recvs[i].status == RDT_CANCELLED, "%s", rdt_status_name(recvs[i].status));
    }
    must_neq(recvs[N - 1].status, RDT_OK, "nobody has sent the last one");
    finish();
    for (uint64_t i = 0; i < N * bytes; i++)
        spoiled += memory[i] != CANARY;
    must_eq(spoiled, 0, "%llu bytes landed after group_closed", (unsigned long long)spoiled);
    free(memory);
    free(source);
}

static void close_one_and_the_others(void)
{
    host_group_close(&world.groups[0]);
    for (uint32_t i = 1; i < world.n; i++)
        must(host_group_wait_failed(&world.groups[i], LATER_MS), "rank %u does not notice that rank 0 is gone", i);
    must_eq(world.groups[0].n_failed, 0, "%s", world.groups[0].msg);
    for (uint32_t i = 1; i < world.n; i++)
        host_group_close(&world.groups[i]);
    for (uint32_t i = 0; i < world.n; i++) {
        must(host_group_wait_closed(&world.groups[i], LATER_MS));
        must_eq(world.groups[i].open_at_close, 0);
        world.hosts[i].ops->group_destroy(world.groups[i].handle);
        free(world.blobs[i]);
    }
    finish();
}

GROUP_CHECK(other_ranks_hear_of_a_close)
{
    form(RANKS);
    close_one_and_the_others();
}

/* ---- a rank in another process ---- */

struct far {
    pid_t pid;
    int to, from;
};

static void give(int fd, const void *data, size_t bytes)
{
    must_eq(write(fd, data, bytes), (ssize_t)bytes);
}

static void take(int fd, void *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t n = read(fd, (char *)data + at, bytes - at);
        must_gt(n, 0, "the other process has ended");
        at += (size_t)n;
    }
}

/* Rank 1 of 2: makes its offer, then takes ours, connects, and closes when it is ready or has failed. */
static void be_far(int in, int out)
{
    struct backend_host host;
    struct host_group group;
    uint8_t blobs[2][RDT_GROUP_OFFER_MAX_BYTES];
    const void *list[2] = {blobs[0], blobs[1]};
    size_t bytes[2];

    open_host(&host);
    must_eq(host_group_create(&host, &group, 1, 2, &err), RDT_OK, "%s", err.msg);
    must_eq(host.ops->group_offer(group.handle, blobs[1], &bytes[1], &err), RDT_OK, "%s", err.msg);
    give(out, &bytes[1], sizeof bytes[1]);
    give(out, blobs[1], bytes[1]);
    take(in, &bytes[0], sizeof bytes[0]);
    take(in, blobs[0], bytes[0]);
    if (host.ops->group_connect(group.handle, list, bytes, &err) == RDT_OK)
        for (unsigned i = 0; i < 20 && !host_group_wait_ready(&group, 50) && !host_group_wait_failed(&group, 50); i++)
            ;
    host_group_close(&group);
    must(host_group_wait_closed(&group, LATER_MS));
    host.ops->group_destroy(group.handle);
    backend_host_close(&host);
    _exit(0);
}

static void start_far(struct far *far)
{
    int in[2], out[2];

    must(pipe(in) == 0 && pipe(out) == 0);
    far->pid = fork();
    must_geq(far->pid, 0);
    if (far->pid == 0)
        be_far(in[0], out[1]);
    (void)close(in[0]);
    (void)close(out[1]);
    far->to = in[1];
    far->from = out[0];
}

/* The system has made the connection and reset it before the rank looks at it. */
GROUP_CHECK(rank_that_stood_still_while_another_connected_and_closed_lives)
{
    enum { ROUNDS = 4, ENOUGH = 2 };
    struct far far[ROUNDS];
    unsigned n = 0, n_connected = 0; /* a plug-in may have one of two ranks wait for the other */

    load(&world.hosts[0]);
    for (unsigned i = 0; i < ROUNDS; i++) /* a fork copies no thread */
        start_far(&far[i]);
    open_host(&world.hosts[0]);
    for (; n < ROUNDS && n_connected < ENOUGH; n++) {
        struct host_group *group = &world.groups[0];
        const unsigned i = n;
        static uint8_t blobs[2][RDT_GROUP_OFFER_MAX_BYTES];
        const void *list[2] = {blobs[0], blobs[1]};
        size_t bytes[2];
        int status = 0;

        must_eq(host_group_create(&world.hosts[0], group, 0, 2, &err), RDT_OK, "%s", err.msg);
        must_eq(world.hosts[0].ops->group_offer(group->handle, blobs[0], &bytes[0], &err), RDT_OK, "%s", err.msg);
        take(far[i].from, &bytes[1], sizeof bytes[1]);
        take(far[i].from, blobs[1], bytes[1]);
        must_eq(kill(far[i].pid, SIGSTOP), 0);
        must_eq(waitpid(far[i].pid, &status, WUNTRACED), far[i].pid);
        must(WIFSTOPPED(status), "the other process has ended");
        must_eq(world.hosts[0].ops->group_connect(group->handle, list, bytes, &err), RDT_OK, "%s", err.msg);
        n_connected += host_group_wait_ready(group, 200);
        host_group_close(group);
        must(host_group_wait_closed(group, LATER_MS), "group_closed did not come");
        world.hosts[0].ops->group_destroy(group->handle);
        give(far[i].to, &bytes[0], sizeof bytes[0]);
        give(far[i].to, blobs[0], bytes[0]);
        must_eq(kill(far[i].pid, SIGCONT), 0);
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        int status = 0;
        if (i >= n)
            (void)kill(far[i].pid, SIGKILL);
        must_eq(waitpid(far[i].pid, &status, 0), far[i].pid);
        must(i >= n || !WIFSIGNALED(status), "a rank ended by signal %d when another one had connected and closed",
             WTERMSIG(status));
        must(i >= n || WEXITSTATUS(status) == 0);
        (void)close(far[i].to);
        (void)close(far[i].from);
    }
    backend_host_close(&world.hosts[0]);
}

/* ---- the hostile ---- */

GROUP_CHECK(malformed_offers_make_no_group)
{
    for (unsigned kind = 0; kind < 5; kind++) {
        enum rdt_status status;

        create(2);
        offer();
        switch (kind) {
        case 0: /* nothing */
            world.bytes[1] = 0;
            break;
        case 1: /* cut */
            world.bytes[1] /= 2;
            break;
        case 2:
            memset(world.blobs[1], 0xff, world.bytes[1]);
            break;
        case 3:
            memset(world.blobs[1], 0, world.bytes[1]);
            break;
        default: /* too long */
            memset(world.blobs[1] + world.bytes[1], 0xa5, RDT_GROUP_OFFER_MAX_BYTES - world.bytes[1]);
            world.bytes[1] = RDT_GROUP_OFFER_MAX_BYTES;
        }
        if (world.bytes[1] == 0 && kind == 1) { /* its offers are empty, so they cannot be damaged */
            close_all();
            finish();
            continue;
        }
        status = connect_rank(0);
        if (status == RDT_OK)
            (void)host_group_wait_failed(&world.groups[0], MOMENT_MS); /* or it waits for a rank that never comes */
        must(kind == 4 || world.groups[0].n_ready == 0, "it is ready by an offer that is none (%u)", kind);
        close_all();
        finish();
    }
}
