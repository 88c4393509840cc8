/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the transport "nccl" share: a fake driver and a fake NCCL, and two "nodes" in this process, each with a GPU
 * of the fake driver. Only those tests include this header. */
#ifndef TESTS_NCCL_FIXTURE_H
#define TESTS_NCCL_FIXTURE_H

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static inline void note(bool *flag)
{
    (void)pthread_mutex_lock(&mutex);
    *flag = true;
    (void)pthread_cond_broadcast(&change);
    (void)pthread_mutex_unlock(&mutex);
}

static inline bool wait_for(const bool *flag)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += patience(20 * SEC) / SEC;
    (void)pthread_mutex_lock(&mutex);
    while (!*flag && pthread_cond_timedwait(&change, &mutex, &until) == 0)
        ;
    bool is = *flag;
    (void)pthread_mutex_unlock(&mutex);
    return is;
}

__attribute__((format(printf, 3, 4))) static inline void on_log(void *ctx, enum rdt_log_level level, const char *fmt, ...) {}

static inline const char *on_config(void *ctx, const char *key)
{
    if (strcmp(key, "peers") == 0)
        return peers;
    return strcmp(key, "trusted_network") == 0 ? trusted : strcmp(key, "interfaces") == 0 ? "lo" : "";
}

static inline void on_op(struct rdt_op *op, enum rdt_status status, const char *msg)
{
    struct posted *posted = (struct posted *)op;

    posted->status = status;
    (void)pthread_mutex_lock(&mutex);
    posted->turn = ++n_done;
    (void)pthread_mutex_unlock(&mutex);
    note(&posted->done);
}

static inline void on_ready(void *ctx)
{
    note(&((struct end *)ctx)->ready);
}

static inline void on_failed(void *ctx, enum rdt_status status, const char *msg)
{
    struct end *end = ctx;

    must(status == RDT_TRANSPORT);
    (void)snprintf(end->why, sizeof end->why, "%s", msg);
    note(&end->failed);
}

static inline void on_closed(void *ctx)
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

static inline void load(void)
{
    if (!fake_gpu_built())
        cr_skip_test("cuda.h was not there when this was built: make cuda-headers");
    void *library = dlopen(build_path("backends/rdt_nccl.so"), RTLD_NOW | RTLD_LOCAL);
    must_say(library, "%s", dlerror());
    ops = ((const struct rdt_backend *(*)(void))dlsym(library, "rdt_backend_init"))()->transport;
}

static struct rdt_group_member members[] = {{{1}, FAKE_GPU_0}, {{2}, FAKE_GPU_1}};

static inline void begin(void)
{
    const char *why;

    if (!fake_gpu_built())
        load(); /* skips the test */
    if (!gpu_is_real())
        fake_nccl_load();
    else if (!dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL))
        cr_skip_test("this machine has no NCCL");
    load();
    must_say(gpu_there(&why), "%s", why);
    if (gpu_count() < 2)
        cr_skip_test("both ranks are in this process, and NCCL wants a GPU for each: there is one");
    for (unsigned i = 0; i < 2; i++)
        members[i].device = gpu_uuid(i);
    for (unsigned i = 0; i < 2; i++)
        must_ok(ops->open(&host, &node[i], &err));
}

static inline void finish(void)
{
    for (unsigned i = 0; i < 2; i++)
        ops->close(node[i]);
}

static inline void create(struct end *end, unsigned rank)
{
    struct rdt_group_desc desc = {sizeof desc, "g", 1, rank, 2, members, {9}};

    *end = (struct end){0};
    must_ok(ops->group_create(node[rank], &desc, end, &end->group, &err));
}

static inline void connect_all(struct end end[2])
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

static inline void form(struct end end[2])
{
    for (unsigned i = 0; i < 2; i++)
        create(&end[i], i);
    connect_all(end);
    for (unsigned i = 0; i < 2; i++)
        must(wait_for(&end[i].ready));
}

static inline void close_group(struct end *end)
{
    ops->group_close(end->group);
    must(wait_for(&end->closed));
    ops->group_destroy(end->group);
}

static inline struct posted *post(struct end *end, unsigned peer, bool send, void *addr, size_t bytes, uint64_t transfer,
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

static inline void expect(struct posted *posted, enum rdt_status status)
{
    must(wait_for(&posted->done));
    must_say(posted->status == status, "%s instead of %s", rdt_status_name(posted->status), rdt_status_name(status));
    free(posted);
}

static inline void *buffer(unsigned gpu, size_t bytes)
{
    gpu_use(gpu);
    return gpu_alloc(bytes);
}

#endif
