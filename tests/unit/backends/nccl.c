/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "nccl" with a fake driver and a fake NCCL: two "nodes" in this process, each with a GPU of the fake driver. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "backends/rdt_backend.h"
#include "tests/support/check.h"
#include "tests/support/fakes/fake_gpu.h"
#include "tests/support/gpu.h"
#include "tests/support/rdtd.h"

#define MIB ((size_t)1 << 20)

struct end { /* one rank of a group */
    void *group;
    bool ready, failed, closed;
    char why[256];
};

struct posted {
    struct rdt_op op;
    bool done;
    enum rdt_status status;
    unsigned turn; /* the position among all operations that have ended */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static unsigned n_done;
static const char *trusted = "yes", *peers = "yes";
static const struct rdt_transport_ops *ops;
static void *node[2];

static void note(bool *flag)
{
    (void)pthread_mutex_lock(&mutex);
    *flag = true;
    (void)pthread_cond_broadcast(&change);
    (void)pthread_mutex_unlock(&mutex);
}

static bool wait_for(const bool *flag)
{
    struct timespec until;
    bool is;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += patience(20 * SEC) / SEC;
    (void)pthread_mutex_lock(&mutex);
    while (!*flag && pthread_cond_timedwait(&change, &mutex, &until) == 0)
        ;
    is = *flag;
    (void)pthread_mutex_unlock(&mutex);
    return is;
}

__attribute__((format(printf, 3, 4))) static void on_log(void *ctx, enum rdt_log_level level, const char *fmt, ...)
{
    (void)ctx, (void)level, (void)fmt;
}

static const char *on_config(void *ctx, const char *key)
{
    (void)ctx;
    if (strcmp(key, "peers") == 0)
        return peers;
    return strcmp(key, "trusted_network") == 0 ? trusted : strcmp(key, "interfaces") == 0 ? "lo" : "";
}

static void on_op(struct rdt_op *op, enum rdt_status status, const char *msg)
{
    struct posted *posted = (struct posted *)op;

    (void)msg;
    posted->status = status;
    (void)pthread_mutex_lock(&mutex);
    posted->turn = ++n_done;
    (void)pthread_mutex_unlock(&mutex);
    note(&posted->done);
}

static void on_ready(void *ctx)
{
    note(&((struct end *)ctx)->ready);
}

static void on_failed(void *ctx, enum rdt_status status, const char *msg)
{
    struct end *end = ctx;

    must(status == RDT_TRANSPORT);
    (void)snprintf(end->why, sizeof end->why, "%s", msg);
    note(&end->failed);
}

static void on_closed(void *ctx)
{
    note(&((struct end *)ctx)->closed);
}

static const struct rdt_host host = {.abi_version = RDT_BACKEND_ABI,
                                     .struct_size = sizeof host,
                                     .log = on_log,
                                     .config = on_config,
                                     .op_done = on_op,
                                     .group_ready = on_ready,
                                     .group_failed = on_failed,
                                     .group_closed = on_closed};

static bool load(void)
{
    void *library;

    if (!fake_gpu_built()) {
        cr_skip_test("cuda.h was not there when this was built: make cuda-headers");
        return false;
    }
    library = dlopen(build_path("backends/rdt_nccl.so"), RTLD_NOW | RTLD_LOCAL);
    must_say(library, "%s", dlerror());
    ops = ((const struct rdt_backend *(*)(void))dlsym(library, "rdt_backend_init"))()->transport;
    return true;
}

static struct rdt_group_member members[] = {{{1}, FAKE_GPU_0}, {{2}, FAKE_GPU_1}};

static bool begin(void)
{
    const char *why;

    if (!fake_gpu_built())
        return load();
    if (!gpu_is_real())
        fake_nccl_load();
    else if (!dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL))
        cr_skip_test("this machine has no NCCL");
    (void)load();
    must_say(gpu_there(&why), "%s", why);
    if (gpu_count() < 2)
        cr_skip_test("both ranks are in this process, and NCCL wants a GPU for each: there is one");
    for (unsigned i = 0; i < 2; i++)
        members[i].device = gpu_uuid(i);
    for (unsigned i = 0; i < 2; i++)
        must_ok(ops->open(&host, &node[i], &err));
    return true;
}

static void finish(void)
{
    for (unsigned i = 0; i < 2; i++)
        ops->close(node[i]);
}

static void create(struct end *end, unsigned rank)
{
    struct rdt_group_desc desc = {sizeof desc, "g", 1, rank, 2, members, {9}};

    *end = (struct end){0};
    must_ok(ops->group_create(node[rank], &desc, end, &end->group, &err));
}

static void connect_all(struct end end[2])
{
    static uint8_t blob[2][RDT_GROUP_OFFER_MAX_BYTES];
    const void *blobs[2] = {blob[0], blob[1]};
    size_t bytes[2];

    for (unsigned i = 0; i < 2; i++)
        must_ok(ops->group_offer(end[i].group, blob[i], &bytes[i], &err));
    must(bytes[0] == 128 && bytes[1] == 0);
    for (unsigned i = 0; i < 2; i++)
        must_ok(ops->group_connect(end[i].group, blobs, bytes, &err));
}

static void form(struct end end[2])
{
    for (unsigned i = 0; i < 2; i++)
        create(&end[i], i);
    connect_all(end);
    for (unsigned i = 0; i < 2; i++)
        must(wait_for(&end[i].ready));
}

static void close_group(struct end *end)
{
    ops->group_close(end->group);
    must(wait_for(&end->closed));
    ops->group_destroy(end->group);
}

static struct posted *post(struct end *end, unsigned peer, bool send, void *addr, size_t bytes, uint64_t transfer,
                           uint64_t chunk)
{
    struct posted *posted = calloc(1, sizeof *posted);
    void *conn = ops->group_conn(end->group, peer);

    must(posted);
    posted->op.transfer = transfer;
    posted->op.chunk = chunk;
    posted->op.piece = (struct rdt_piece){addr, bytes, NULL};
    must_ok((send ? ops->post_send : ops->post_recv)(conn, &posted->op, &err));
    return posted;
}

static void expect(struct posted *posted, enum rdt_status status)
{
    must(wait_for(&posted->done));
    must_say(posted->status == status, "%s instead of %s", rdt_status_name(posted->status), rdt_status_name(status));
    free(posted);
}

static void *buffer(unsigned gpu, size_t bytes)
{
    gpu_use(gpu);
    return gpu_alloc(bytes);
}

TestSuite(nccl, .timeout = 120);

Test(nccl, chunks_of_both_directions_arrive_where_they_belong)
{
    enum { CHUNKS = 20 };
    struct posted *in[2][CHUNKS], *out[2][CHUNKS];
    const size_t chunk = 300000, all = chunk * CHUNKS;
    struct end end[2];
    uint8_t *from[2], *to[2];

    if (!begin())
        return;
    form(end);
    for (unsigned i = 0; i < 2; i++) {
        from[i] = buffer(i, all);
        to[i] = buffer(i, all);
        gpu_fill(from[i], all, 40 + i);
    }
    for (unsigned way = 0; way < 2; way++) { /* from node `way` to the other one; receives first, as the core posts them */
        for (unsigned i = 0; i < CHUNKS; i++)
            in[way][i] = post(&end[1 - way], way, false, to[1 - way] + i * chunk, chunk, 7 + way, i);
        for (unsigned i = 0; i < CHUNKS; i++)
            out[way][i] = post(&end[way], 1 - way, true, from[way] + i * chunk, chunk, 7 + way, i);
    }
    for (unsigned way = 0; way < 2; way++)
        for (unsigned i = 0; i < CHUNKS; i++) {
            expect(in[way][i], RDT_OK);
            expect(out[way][i], RDT_OK);
        }
    for (unsigned i = 0; i < 2; i++) {
        gpu_use(i);
        must(gpu_holds(to[i], all, 41 - i));
        close_group(&end[i]);
    }
    finish();
}

Test(nccl, all_of_one_gpu_stands_in_one_queue_in_the_order_of_posting)
{
    struct end end[2], other[2];
    struct posted *first, *second, *sent[2];
    void *memory[2];
    const char *queue;
    unsigned turn;

    if (!begin())
        return;
    form(end);
    form(other);
    queue = ops->queue(ops->group_conn(end[0].group, 1), "cuda", members[0].device);
    must(queue && strcmp(queue, members[0].device) == 0);
    must(strcmp(ops->queue(ops->group_conn(other[0].group, 1), "cuda", members[0].device), queue) == 0);
    must(!ops->queue(ops->group_conn(end[0].group, 1), "host", ""));
    for (unsigned i = 0; i < 2; i++)
        memory[i] = buffer(i, 2 * MIB);
    first = post(&end[1], 0, false, memory[1], MIB, 1, 0);
    second = post(&other[1], 0, false, (uint8_t *)memory[1] + MIB, MIB, 2, 0);
    sent[0] = post(&end[0], 1, true, memory[0], MIB, 1, 0);
    sent[1] = post(&other[0], 1, true, memory[0], MIB, 2, 0);
    must(wait_for(&second->done));
    turn = second->turn;
    must(wait_for(&first->done));
    must(first->turn < turn);
    expect(first, RDT_OK);
    expect(second, RDT_OK);
    expect(sent[0], RDT_OK);
    expect(sent[1], RDT_OK);
    for (unsigned i = 0; i < 2; i++) {
        close_group(&end[i]);
        close_group(&other[i]);
    }
    finish();
}

Test(nccl, closing_ends_what_was_never_matched_and_what_waits_behind_it)
{
    enum { CHUNKS = 200 };
    struct posted *in[CHUNKS];
    struct end end[2];
    uint8_t *memory;

    if (!begin())
        return;
    form(end);
    memory = buffer(1, CHUNKS * 4096);
    for (unsigned i = 0; i < CHUNKS; i++)
        in[i] = post(&end[1], 0, false, memory + i * 4096, 4096, 3, i);
    close_group(&end[1]);
    for (unsigned i = 0; i < CHUNKS; i++)
        expect(in[i], RDT_CANCELLED);
    close_group(&end[0]);
    form(end); /* the GPU serves the next group */
    in[0] = post(&end[1], 0, false, memory, 4096, 4, 0);
    in[1] = post(&end[0], 1, true, buffer(0, 4096), 4096, 4, 0);
    expect(in[0], RDT_OK);
    expect(in[1], RDT_OK);
    for (unsigned i = 0; i < 2; i++)
        close_group(&end[i]);
    finish();
}

Test(nccl, lost_rank_is_told_once_and_what_it_owes_ends_when_the_group_is_closed)
{
    struct end end[2];
    struct posted *in;

    if (!begin())
        return;
    form(end);
    in = post(&end[1], 0, false, buffer(1, MIB), MIB, 3, 0);
    close_group(&end[0]);
    must(wait_for(&end[1].failed));
    must(end[1].why[0]);
    must(!in->done);
    must_refuse(RDT_TRANSPORT, "taken down", ops->post_recv(ops->group_conn(end[1].group, 0), &(struct posted){0}.op, &err));
    close_group(&end[1]);
    expect(in, RDT_CANCELLED);
    finish();
}

/* How many group calls are in streams. */
static unsigned fake_calls(void)
{
    unsigned (*calls)(void);

    *(void **)(void *)&calls = dlsym(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), "fake_nccl_calls");
    must(calls);
    return calls();
}

/* An abort waits for everything that runs on the GPU, so for the other group, which nobody has closed yet. */
Test(nccl, two_groups_of_one_gpu_whose_peers_are_dead_can_be_closed)
{
    struct end end[2][2];
    struct posted *in[2];
    uint8_t *memory;

    must(setenv("FAKE_NCCL_ABORT_WAITS", "1", 1) == 0);
    if (!begin())
        return;
    if (gpu_is_real())
        cr_skip_test("only the fake says what is in its streams");
    form(end[0]);
    form(end[1]);
    memory = buffer(1, 2 * MIB);
    for (unsigned i = 0; i < 2; i++)
        in[i] = post(&end[i][1], 0, false, memory + i * MIB, MIB, 3 + i, 0); /* nobody sends */
    while (fake_calls() < 2)                                                 /* both are in the stream */
        (void)sched_yield();
    ops->group_close(end[0][1].group);
    close_group(&end[1][1]);
    must(wait_for(&end[0][1].closed));
    ops->group_destroy(end[0][1].group);
    for (unsigned i = 0; i < 2; i++) {
        expect(in[i], RDT_CANCELLED);
        close_group(&end[i][0]);
    }
    finish();
}

static void hold_aborts(bool hold)
{
    void (*hold_them)(bool);

    *(void **)(void *)&hold_them = dlsym(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD), "fake_nccl_hold_aborts");
    must(hold_them);
    hold_them(hold);
}

/* An abort that does not return costs its group and one thread: the other groups of the GPU form, move bytes and are told of
 * their operations as before. */
Test(nccl, abort_that_does_not_return_stops_no_other_group)
{
    struct end doomed[2], end[2], later[2];
    struct posted *in, *out;
    uint8_t *from, *to;

    if (!begin())
        return;
    if (gpu_is_real())
        cr_skip_test("only the fake does not return when a test wants it");
    form(doomed);
    form(end);
    from = buffer(0, MIB);
    to = buffer(1, MIB);
    gpu_fill(from, MIB, 5);
    hold_aborts(true);
    ops->group_close(doomed[1].group);
    form(later); /* by the same threads, behind the close */
    in = post(&end[1], 0, false, to, MIB, 4, 0);
    out = post(&end[0], 1, true, from, MIB, 4, 0);
    expect(in, RDT_OK);
    expect(out, RDT_OK);
    gpu_use(1);
    must(gpu_holds(to, MIB, 5));
    must(!doomed[1].closed);
    hold_aborts(false);
    must(wait_for(&doomed[1].closed));
    ops->group_destroy(doomed[1].group);
    close_group(&doomed[0]);
    for (unsigned i = 0; i < 2; i++) {
        close_group(&end[i]);
        close_group(&later[i]);
    }
    finish();
}

Test(nccl, group_that_never_connects_can_be_closed)
{
    struct end end;
    uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES] = {0};
    const void *blobs[2] = {blob, blob};
    size_t bytes[2] = {0, 0};

    if (!begin())
        return;
    create(&end, 0);
    close_group(&end); /* never offered */
    create(&end, 0);
    must_ok(ops->group_offer(end.group, blob, &bytes[0], &err));
    must_ok(ops->group_connect(end.group, blobs, bytes, &err)); /* the other rank never connects */
    close_group(&end);
    create(&end, 1);
    bytes[0] = 5;
    must_refuse(RDT_PROTOCOL, "rank 0", ops->group_connect(end.group, blobs, bytes, &err));
    close_group(&end);
    must(!end.ready && !end.failed);
    finish();
}

/* Returns the number of listening sockets of this process, Unix sockets aside. */
static unsigned listeners(void)
{
    unsigned n = 0;

    for (int fd = 3; fd < 1024; fd++) {
        int domain = 0, listens = 0;
        socklen_t bytes = sizeof(int);

        n += getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain != AF_UNIX &&
             getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens;
    }
    return n;
}

Test(nccl, groups_that_never_connect_leave_no_port_open)
{
    enum { GROUPS = 5 };
    static uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES];
    const void *blobs[2] = {blob, blob};
    size_t bytes[2] = {0, 0};
    struct end end;
    unsigned before;

    if (!begin())
        return;
    before = listeners();
    for (unsigned i = 0; i < GROUPS; i++) {
        create(&end, 0);
        must_ok(ops->group_offer(end.group, blob, &bytes[0], &err));
        must(listeners() > before); /* the bootstrap socket */
        if (i % 2)
            must_ok(ops->group_connect(end.group, blobs, bytes, &err)); /* the other rank never connects */
        close_group(&end);
        wait_until(5 * SEC, listeners() == before);
    }
    create(&end, 0);
    must_ok(ops->group_offer(end.group, blob, &bytes[0], &err));
    ops->group_destroy(end.group); /* another part of the group could not be created */
    wait_until(5 * SEC, listeners() == before);
    finish();
}

Test(nccl, port_of_a_group_is_closed_when_all_ranks_have_come)
{
    struct end end[2];
    unsigned before;

    if (!begin())
        return;
    if (gpu_is_real())
        cr_skip_test("NCCL's own ports for data stay open");
    before = listeners();
    form(end);
    wait_until(5 * SEC, listeners() == before);
    for (unsigned i = 0; i < 2; i++)
        close_group(&end[i]);
    finish();
}

Test(nccl, members_without_a_gpu_or_with_a_strange_one_are_refused)
{
    struct rdt_group_member strange[] = {{{1}, ""}, {{2}, "GPU-0"}};
    struct rdt_group_desc desc = {sizeof desc, "g", 1, 0, 2, strange, {9}};
    struct end end;

    if (!begin())
        return;
    must_refuse(RDT_INVALID, "rank 0", ops->group_create(node[0], &desc, &end, &end.group, &err));
    desc.rank = 1;
    must_refuse(RDT_NOT_FOUND, members[1].device, ops->group_create(node[0], &desc, &end, &end.group, &err));
    finish();
}

Test(nccl, more_ranks_of_a_node_than_it_can_have_gpus_are_refused)
{
    enum { MANY = 1024 };
    static struct rdt_group_member crowd[MANY];
    static char names[MANY][16];
    struct rdt_group_desc desc = {sizeof desc, "g", 1, 0, MANY, crowd, {9}};
    struct end end = {0};

    if (!begin())
        return;
    crowd[0] = members[0];
    for (unsigned i = 1; i < MANY; i++) {
        (void)snprintf(names[i], sizeof names[i], "GPU-%u", i);
        crowd[i] = (struct rdt_group_member){{2}, names[i]};
    }
    must_refuse(RDT_LIMIT, "rank 65 is the 65th of one node", ops->group_create(node[0], &desc, &end, &end.group, &err));
    desc.size = 65; /* the largest number that is allowed on a node */
    must_ok(ops->group_create(node[0], &desc, &end, &end.group, &err));
    close_group(&end);
    for (unsigned i = 0; i < MANY; i++)
        crowd[i].node_uuid[1] = (uint8_t)(i / 8), crowd[i].node_uuid[2] = 1; /* a large cluster */
    desc.size = MANY;
    must_ok(ops->group_create(node[0], &desc, &end, &end.group, &err));
    close_group(&end);
    finish();
}

Test(nccl, gpu_is_known_however_its_name_is_spelt)
{
    char text[64];
    struct rdt_group_member loud[2];
    struct rdt_group_desc desc = {sizeof desc, "g", 1, 0, 2, loud, {9}};
    struct end end = {0};

    if (!begin())
        return;
    memcpy(loud, members, sizeof loud);
    for (size_t i = 0; i <= strlen(members[0].device); i++)
        text[i] = (char)toupper(members[0].device[i]);
    loud[0].device = text;
    must_ok(ops->group_create(node[0], &desc, &end, &end.group, &err));
    must(strcmp(ops->queue(ops->group_conn(end.group, 1), "cuda", text), members[0].device) == 0);
    close_group(&end);
    finish();
}

/* ---- the reasons why the transport is not available (without NCCL: gpu_missing) ---- */

Test(nccl, unavailable_without_a_driver)
{
    if (!load())
        return;
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))
        cr_skip_test("this machine has a driver");
    (void)dlopen(build_path("tests/fake_nccl/libnccl.so.2"), RTLD_LAZY | RTLD_LOCAL);
    if (!dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL))
        cr_skip_test("the fake NCCL cannot be loaded without the fake driver");
    must_refuse(RDT_UNSUPPORTED, "there is no NVIDIA driver", ops->open(&host, &node[0], &err));
}

static void load_fake_nccl_only(const char *driver)
{
    (void)dlopen(build_path(driver), RTLD_NOW | RTLD_LOCAL);
    (void)dlopen(build_path("tests/fake_nccl/libnccl.so.2"), RTLD_LAZY | RTLD_LOCAL);
}

Test(nccl, unavailable_with_a_stub_of_a_driver)
{
    if (!load())
        return;
    if (getenv("RDT_TEST_GPU"))
        cr_skip_test("this is the machine's own driver");
    load_fake_nccl_only("tests/stub_cuda/libcuda.so.1");
    must_refuse(RDT_UNSUPPORTED, "stub", ops->open(&host, &node[0], &err));
}

Test(nccl, unavailable_without_a_gpu)
{
    if (!load())
        return;
    if (getenv("RDT_TEST_GPU"))
        cr_skip_test("this is the machine's own driver");
    setenv("FAKE_CUDA_GPUS", "0", 1);
    load_fake_nccl_only("tests/fake_cuda/libcuda.so.1");
    must_refuse(RDT_UNSUPPORTED, "no GPU", ops->open(&host, &node[0], &err));
}

Test(nccl, unavailable_on_a_network_that_is_not_trusted)
{
    if (!load())
        return;
    if (!getenv("RDT_TEST_GPU"))
        fake_nccl_load();
    trusted = "no";
    must_refuse(RDT_UNSUPPORTED, "trusted_network", ops->open(&host, &node[0], &err));
}

Test(nccl, unavailable_without_peers)
{
    if (!load())
        return;
    if (!getenv("RDT_TEST_GPU"))
        fake_nccl_load();
    peers = "no";
    must_refuse(RDT_UNSUPPORTED, "no port is opened: set listen, and key_file or peer_cert", ops->open(&host, &node[0], &err));
}
