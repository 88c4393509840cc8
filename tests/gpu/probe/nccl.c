/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL: two groups of two processes each, whose second process is killed while both have work queued, and how long the first
 * one takes to abort them, one after the other and in one group call. With one GPU both processes use it, as two hosts. */
#include "tests/gpu/probe/probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct id { /* ncclUniqueId */
    char bytes[128];
};
struct config { /* ncclConfig_t of 2.14 */
    size_t size;
    unsigned magic, version;
    int blocking;
};
enum { SUCCESS, IN_PROGRESS = 7, BYTES = 1, GROUPS = 2, COUNT = 1 << 20 };
typedef struct ncclComm *comm;

/* clang-format off */
#define NCCL(X) \
    X(ncclGetVersion, int, (int *)) \
    X(ncclGetUniqueId, int, (struct id *)) \
    X(ncclCommInitRankConfig, int, (comm *, int, struct id, int, struct config *)) \
    X(ncclCommGetAsyncError, int, (comm, int *)) \
    X(ncclCommAbort, int, (comm)) \
    X(ncclGetErrorString, const char *, (int)) \
    X(ncclGetLastError, const char *, (comm)) \
    X(ncclGroupStart, int, (void)) \
    X(ncclGroupEnd, int, (void)) \
    X(ncclRecv, int, (void *, size_t, int, int, comm, CUstream))
/* clang-format on */

static struct {
#define NCCL_MEMBER(name, result, arguments) result(*name) arguments;
    NCCL(NCCL_MEMBER)
} nccl;

static const char *asked;
static bool in_one_call;

static bool nccl_load(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const char *missing = NULL;

    if (!library) {
        say(asked, "not asked: %s", dlerror());
        return false;
    }
#define NCCL_LOAD(name, result, arguments)                \
    *(void **)(void *)&nccl.name = dlsym(library, #name); \
    if (!nccl.name)                                       \
        missing = #name;
    NCCL(NCCL_LOAD)
    if (missing)
        say(asked, "not asked: NCCL lacks %s", missing);
    return !missing;
}

static int state_of(comm group)
{
    int state = SUCCESS, error = nccl.ncclCommGetAsyncError(group, &state);

    return error == SUCCESS ? state : error;
}

static bool await(comm group, int error, const char *what)
{
    double until = now_ms() + 10e3;

    if (error == IN_PROGRESS || error == SUCCESS)
        while ((error = state_of(group)) == IN_PROGRESS && now_ms() < until)
            pause_ms(1);
    if (error == SUCCESS)
        return true;
    say(asked, "not answered: %s: %s: %s", what, error == IN_PROGRESS ? "no end" : nccl.ncclGetErrorString(error),
        nccl.ncclGetLastError(group));
    return false;
}

/* Both ranks form both groups; *memory_p receives device memory for what they exchange. */
static bool join(int rank, const struct id ids[GROUPS], comm groups[GROUPS], CUstream streams[GROUPS], CUdeviceptr *memory_p)
{
    struct config config = {sizeof config, 0xcafebeef, 21400, 0};

    if (!went_well(asked, "cuMemAlloc", CU(cuMemAlloc, memory_p, COUNT)))
        return false;
    for (unsigned i = 0; i < GROUPS; i++) {
        groups[i] = NULL;
        if (!went_well(asked, "cuStreamCreate", CU(cuStreamCreate, &streams[i], CU_STREAM_NON_BLOCKING)))
            return false;
        int error = nccl.ncclCommInitRankConfig(&groups[i], 2, ids[i], rank, &config);
        if (!await(groups[i], error, "ncclCommInitRankConfig"))
            return false;
    }
    return true;
}

/* A receive that nobody sends anything to: its kernel spins, or it still waits for the other process's half of the connection,
 * which is as good: both are what an abort must end. */
static bool receive(comm group, CUstream stream, CUdeviceptr memory)
{
    (void)nccl.ncclGroupStart();
    (void)nccl.ncclRecv((void *)(uintptr_t)memory, COUNT, BYTES, 1, group, stream);
    int error = nccl.ncclGroupEnd();
    if (error == SUCCESS || error == IN_PROGRESS)
        return true;
    say(asked, "not answered: a receive: %s: %s", nccl.ncclGetErrorString(error), nccl.ncclGetLastError(group));
    return false;
}

static void peer(int link)
{
    struct id ids[GROUPS];
    comm groups[GROUPS];
    CUstream streams[GROUPS];
    CUdeviceptr memory;
    char text = 0;

    (void)setenv("NCCL_HOSTID", "probe-b", 1);
    if (!take(link, ids, sizeof ids, NULL) || !nccl_load() || !driver_open(asked, 0))
        return;
    if (gpu_count() > 1) {
        CUcontext context;
        (void)CU(cuDevicePrimaryCtxRetain, &context, 1);
        (void)CU(cuCtxSetCurrent, context);
    }
    if (join(1, ids, groups, streams, &memory))
        (void)give(link, &text, 1, -1);
    for (;;)
        pause_ms(1000); /* until it is killed */
}

static void ask_abort(void)
{
    struct id ids[GROUPS];
    comm groups[GROUPS];
    CUstream streams[GROUPS];
    CUdeviceptr memory;
    struct other other;
    double start;
    int version = 0;
    char text;

    (void)setenv("NCCL_HOSTID", "probe-a", 1);
    if (!other_start(&other, asked, &(struct other_options){0}, peer) || !nccl_load() || !driver_open(asked, 0))
        return;
    (void)nccl.ncclGetVersion(&version);
    for (unsigned i = 0; i < GROUPS; i++)
        if (nccl.ncclGetUniqueId(&ids[i]) != SUCCESS) {
            say(asked, "not answered: ncclGetUniqueId");
            return;
        }
    if (!give(other.link, ids, sizeof ids, -1) || !join(0, ids, groups, streams, &memory) || !take(other.link, &text, 1, NULL))
        return;
    for (unsigned i = 0; i < GROUPS; i++)
        if (!receive(groups[i], streams[i], memory))
            return;
    pause_ms(100);
    other_kill(&other);
    if (in_one_call) {
        start = now_ms();
        (void)nccl.ncclGroupStart();
        for (unsigned i = 0; i < GROUPS; i++)
            (void)nccl.ncclCommAbort(groups[i]);
        (void)nccl.ncclGroupEnd();
        say(asked, "NCCL %d: %.0f ms", version, now_ms() - start);
        return;
    }
    for (unsigned i = 0; i < GROUPS; i++) {
        start = now_ms();
        (void)nccl.ncclCommAbort(groups[i]);
        say(asked, "NCCL %d: group %u of %d: %.0f ms", version, i + 1, GROUPS, now_ms() - start);
    }
}

static void ask_one_by_one(void)
{
    asked = "abort of two groups, one after the other";
    ask_abort();
}

static void ask_together(void)
{
    asked = "abort of two groups in one group call";
    in_one_call = true;
    ask_abort();
}

const struct question nccl_questions[] = {
    {"abort of two groups, one after the other", ask_one_by_one, 30},
    {"abort of two groups in one group call", ask_together, 30},
    {NULL, NULL, 0},
};
