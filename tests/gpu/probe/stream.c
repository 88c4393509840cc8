/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and time: what a callback holds up, which calls wait for a running kernel, and what calls take. */
#include "tests/gpu/probe/probe.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- the gap behind a callback ---- */

enum { COPIES = 200 };
enum after { NOTHING, CALLBACK, EVENT, EVENT_AND_SECOND_STREAM };

static void CUDA_CB called(void *arg)
{
    atomic_fetch_add((atomic_uint *)arg, 1);
}

/* Microseconds of each copy, when that follows it. */
static double copies_us(CUdeviceptr memory, CUstream stream, CUstream second, CUevent event, enum after after)
{
    static atomic_uint calls;

    (void)CU(cuStreamSynchronize, stream);
    double start = now_ms();
    for (int i = 0; i < COPIES; i++) {
        (void)CU(cuMemcpyAsync, memory, memory + 4 * MIB, 256 << 10, stream);
        if (after == CALLBACK)
            (void)CU(cuLaunchHostFunc, stream, called, &calls);
        if (after >= EVENT)
            (void)CU(cuEventRecord, event, stream);
        if (after == EVENT_AND_SECOND_STREAM) {
            (void)CU(cuStreamWaitEvent, second, event, 0);
            (void)CU(cuLaunchHostFunc, second, called, &calls);
        }
    }
    (void)CU(cuStreamSynchronize, stream);
    start = (now_ms() - start) * 1e3 / COPIES;
    (void)CU(cuStreamSynchronize, second);
    return start;
}

static void ask_callbacks(void)
{
    static const char *const names[] = {"256 KiB copies, nothing between them", "256 KiB copies, a callback after each",
                                        "256 KiB copies, an event after each",
                                        "256 KiB copies, an event, a callback elsewhere"};
    CUstream stream, second;
    CUdeviceptr memory = 0;
    CUevent event;

    if (!driver_open("callback gap", 0) || !went_well("callback gap", "cuMemAlloc", CU(cuMemAlloc, &memory, 8 * MIB)) ||
        !went_well("callback gap", "cuStreamCreate", CU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING)) ||
        !went_well("callback gap", "cuStreamCreate", CU(cuStreamCreate, &second, CU_STREAM_NON_BLOCKING)) ||
        !went_well("callback gap", "cuEventCreate", CU(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING)))
        return;
    (void)copies_us(memory, stream, second, event, CALLBACK); /* warms it up */
    for (int after = NOTHING; after <= EVENT_AND_SECOND_STREAM; after++)
        say(names[after], "%.1f us each", copies_us(memory, stream, second, event, (enum after)after));
}

/* ---- registration of host memory ---- */

static void registration(const char *what, int protection, bool huge, unsigned flags)
{
    size_t bytes = 16 * MIB;
    char *whole = mmap(NULL, bytes + 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;
    CUresult result, undone = LACKS;

    if (whole == MAP_FAILED)
        return;
    at = (char *)(((uintptr_t)whole + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
    (void)madvise(at, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(at, 1, bytes);
    (void)mprotect(at, bytes, protection);
    double start = now_ms();
    result = CU(cuMemHostRegister, at, bytes, flags);
    double took = now_ms() - start;
    start = now_ms();
    if (result == CUDA_SUCCESS)
        undone = CU(cuMemHostUnregister, at);
    say(what, "%s, %.2f ms; unregister %s, %.2f ms", name_of(result), took, result == CUDA_SUCCESS ? name_of(undone) : "-",
        now_ms() - start);
    (void)munmap(whole, bytes + 2 * MIB);
}

static void ask_register(void)
{
    if (!driver_open("register 16 MiB", 0))
        return;
    registration("register 16 MiB, first time", PROT_READ | PROT_WRITE, false, 0);
    registration("register 16 MiB, 4 KiB pages", PROT_READ | PROT_WRITE, false, 0);
    registration("register 16 MiB, huge pages", PROT_READ | PROT_WRITE, true, 0);
    registration("register 16 MiB, portable", PROT_READ | PROT_WRITE, false, CU_MEMHOSTREGISTER_PORTABLE);
    registration("register a read-only mapping", PROT_READ, false, 0);
    registration("register a read-only mapping, READ_ONLY flag", PROT_READ, false, 8);
}

/* ---- which calls wait for a running kernel ---- */

/* Spins until *flag is not 0, at most 2 seconds. */
static const char spin_ptx[] = ".version 6.0\n"
                               ".target sm_50\n"
                               ".address_size 64\n"
                               ".visible .entry spin(.param .u64 flag)\n"
                               "{\n"
                               "  .reg .pred %p<3>;\n"
                               "  .reg .u32 %v;\n"
                               "  .reg .u64 %rd<5>;\n"
                               "  ld.param.u64 %rd1, [flag];\n"
                               "  cvta.to.global.u64 %rd2, %rd1;\n"
                               "  mov.u64 %rd3, %globaltimer;\n"
                               "again:\n"
                               "  ld.volatile.global.u32 %v, [%rd2];\n"
                               "  setp.ne.u32 %p1, %v, 0;\n"
                               "  @%p1 bra done;\n"
                               "  mov.u64 %rd4, %globaltimer;\n"
                               "  sub.u64 %rd4, %rd4, %rd3;\n"
                               "  setp.lt.u64 %p2, %rd4, 2000000000;\n"
                               "  @%p2 bra again;\n"
                               "done:\n"
                               "  ret;\n"
                               "}\n";

#define SPIN_MS 300u
#define WAITED_MS 200.0

static volatile unsigned *flag;
static CUfunction spin;

static void CUDA_CB wait_for_flag(void *arg)
{
    double until = now_ms() + 2000;

    while (!*flag && now_ms() < until)
        pause_ms(1);
}

static void *raise_flag(void *arg)
{
    pause_ms(SPIN_MS);
    *flag = 1;
    return NULL;
}

/* Starts what spins in the stream. */
static CUresult start_spinning(CUstream stream)
{
    CUdeviceptr address = 0;
    void *arguments[] = {&address};

    *flag = 0;
    if (!spin)
        return CU(cuLaunchHostFunc, stream, wait_for_flag, NULL);
    CUresult result = CU(cuMemHostGetDevicePointer, &address, (void *)(uintptr_t)flag, 0);
    return result == CUDA_SUCCESS ? CU(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL) : result;
}

struct held { /* what the calls give back */
    CUdeviceptr legacy, unmapped;
    struct chunk chunk, handle;
    void *host, *registered;
    CUstream idle;
    CUevent event;
    CUdeviceptr made;
    CUmemGenericAllocationHandle created;
};

enum { N_CALLS = 11 };
static const char *const call_names[N_CALLS] = {"cuMemFree",           "cuMemUnmap",        "cuMemRelease",   "cuMemFreeHost",
                                                "cuMemHostUnregister", "cuStreamDestroy",   "cuEventDestroy", "cuMemAlloc",
                                                "cuMemCreate",         "cuMemHostRegister", "cuMemGetInfo"};

static CUresult make_call(unsigned i, struct held *held)
{
    CUmemAllocationProp kind = chunk_kind(0, false);
    size_t free_bytes, all;

    switch (i) {
    case 0:
        return CU(cuMemFree, held->legacy);
    case 1:
        return CU(cuMemUnmap, held->chunk.address, held->chunk.bytes);
    case 2:
        return CU(cuMemRelease, held->handle.handle);
    case 3:
        return CU(cuMemFreeHost, held->host);
    case 4:
        return CU(cuMemHostUnregister, held->registered);
    case 5:
        return CU(cuStreamDestroy, held->idle);
    case 6:
        return CU(cuEventDestroy, held->event);
    case 7:
        return CU(cuMemAlloc, &held->made, 4 * MIB);
    case 8:
        return CU(cuMemCreate, &held->created, 2 * MIB, &kind, 0);
    case 9:
        return CU(cuMemHostRegister, held->registered, MIB, 0);
    default:
        return CU(cuMemGetInfo, &free_bytes, &all);
    }
}

static bool prepare(struct held *held, CUstream *stream_p)
{
    CUmemAllocationProp kind = chunk_kind(0, false);
    const char *what = "calls beside a spinning kernel";
    CUmodule module;
    void *page;

    if (!driver_open(what, 0))
        return false;
    if (CU(cuMemAllocHost, &page, 4096) == CUDA_SUCCESS) {
        flag = page;
        if (CU(cuModuleLoadData, &module, spin_ptx) != CUDA_SUCCESS ||
            CU(cuModuleGetFunction, &spin, module, "spin") != CUDA_SUCCESS)
            spin = NULL;
    } else {
        flag = calloc(1, sizeof *flag);
    }
    say(what, "what spins: %s", spin ? "a kernel" : "a host function in a stream, as the driver takes no kernel");
    held->registered = aligned_alloc(4096, MIB);
    if (!flag || !held->registered)
        return false;
    (void)CU(cuMemAllocHost, &held->host, MIB);
    (void)CU(cuMemHostRegister, held->registered, MIB, 0);
    return went_well(what, "cuStreamCreate", CU(cuStreamCreate, stream_p, CU_STREAM_NON_BLOCKING)) &&
           went_well(what, "cuStreamCreate", CU(cuStreamCreate, &held->idle, CU_STREAM_NON_BLOCKING)) &&
           went_well(what, "cuEventCreate", CU(cuEventCreate, &held->event, CU_EVENT_DISABLE_TIMING)) &&
           went_well(what, "cuMemAlloc", CU(cuMemAlloc, &held->legacy, 4 * MIB)) &&
           went_well(what, "chunk", chunk_make(&held->chunk, 0, 2 * MIB)) &&
           went_well(what, "cuMemCreate", CU(cuMemCreate, &held->handle.handle, 2 * MIB, &kind, 0));
}

static void ask_spinning(void)
{
    struct held held = {0};
    CUstream stream;

    if (!prepare(&held, &stream))
        return;
    for (unsigned i = 0; i < N_CALLS; i++) {
        char question[60];
        pthread_t thread;

        (void)snprintf(question, sizeof question, "%s beside a kernel", call_names[i]);
        CUresult result = start_spinning(stream);
        if (result != CUDA_SUCCESS || pthread_create(&thread, NULL, raise_flag, NULL)) {
            say(question, "not answered: the kernel: %s", name_of(result));
            continue;
        }
        pause_ms(20); /* so that it runs */
        double start = now_ms();
        result = make_call(i, &held);
        start = now_ms() - start;
        (void)pthread_join(thread, NULL);
        (void)CU(cuStreamSynchronize, stream);
        say(question, "%s after %.1f ms: %s", name_of(result), start, start > WAITED_MS ? "WAITS for it" : "does not wait");
    }
}

/* cuIpcCloseMemHandle needs an exporter. */
static void give_handle(int link)
{
    CUipcMemHandle handle;
    CUdeviceptr address;
    char text;

    if (driver_open("cuIpcCloseMemHandle beside a kernel", 0) && CU(cuMemAlloc, &address, 4 * MIB) == CUDA_SUCCESS &&
        CU(cuIpcGetMemHandle, &handle, address) == CUDA_SUCCESS)
        (void)give(link, &handle, sizeof handle, -1);
    (void)take(link, &text, 1, NULL);
}

static void ask_spinning_close(void)
{
    const char *question = "cuIpcCloseMemHandle beside a kernel";
    struct held held = {0};
    struct other exporter;
    CUipcMemHandle handle;
    CUdeviceptr address;
    CUstream stream;
    pthread_t thread;

    if (!other_start(&exporter, question, &(struct other_options){0}, give_handle) || !prepare(&held, &stream))
        return;
    if (!take(exporter.link, &handle, sizeof handle, NULL) ||
        !went_well(question, "cuIpcOpenMemHandle",
                   CU(cuIpcOpenMemHandle, &address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)) ||
        !went_well(question, "the kernel", start_spinning(stream)) || pthread_create(&thread, NULL, raise_flag, NULL))
        return;
    pause_ms(20);
    double start = now_ms();
    (void)CU(cuIpcCloseMemHandle, address);
    start = now_ms() - start;
    (void)pthread_join(thread, NULL);
    say(question, "after %.1f ms: %s", start, start > WAITED_MS ? "WAITS for it" : "does not wait");
    other_end(&exporter);
}

/* ---- microseconds of the calls ---- */

enum { ROUNDS = 20 };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void ask_times(void)
{
    static const size_t sizes[] = {2 * MIB, 64 * MIB, 512 * MIB};
    enum { CREATE, EXPORT, IMPORT, RESERVE, MAP, ACCESS, UNMAP, RELEASE, STEPS };
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAllocationProp kind = chunk_kind(0, false);

    if (!driver_open("microseconds", 0))
        return;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        double us[STEPS][ROUNDS];
        CUresult worst = CUDA_SUCCESS;
        char question[40];

        (void)snprintf(question, sizeof question, "microseconds, %zu MiB", sizes[s] / MIB);
        for (unsigned round = 0; round < ROUNDS && worst == CUDA_SUCCESS; round++) {
            CUmemGenericAllocationHandle handle = 0, imported = 0;
            CUdeviceptr address = 0;
            double start = now_ms();
            int fd = -1;
#define STEP(step, call)                       \
    do {                                       \
        CUresult result = call;                \
        double end = now_ms();                 \
        us[step][round] = (end - start) * 1e3; \
        start = end;                           \
        if (result != CUDA_SUCCESS)            \
            worst = result;                    \
    } while (0)
            STEP(CREATE, CU(cuMemCreate, &handle, sizes[s], &kind, 0));
            STEP(EXPORT, CU(cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
            STEP(IMPORT, CU(cuMemImportFromShareableHandle, &imported, (void *)(uintptr_t)fd,
                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
            STEP(RESERVE, CU(cuMemAddressReserve, &address, sizes[s], 0, 0, 0));
            STEP(MAP, CU(cuMemMap, address, sizes[s], 0, imported, 0));
            STEP(ACCESS, CU(cuMemSetAccess, address, sizes[s], &access, 1));
            STEP(UNMAP, CU(cuMemUnmap, address, sizes[s]));
            (void)CU(cuMemAddressFree, address, sizes[s]);
            if (fd >= 0)
                (void)close(fd);
            (void)CU(cuMemRelease, imported);
            start = now_ms();
            STEP(RELEASE, CU(cuMemRelease, handle));
        }
        if (!went_well(question, "a step", worst))
            continue;
        for (unsigned i = 0; i < STEPS; i++)
            qsort(us[i], ROUNDS, sizeof us[i][0], by_size);
        say(question, "create %.0f, export %.0f, import %.0f, reserve %.0f, map %.0f, access %.0f, unmap %.0f, release %.0f",
            us[CREATE][ROUNDS / 2], us[EXPORT][ROUNDS / 2], us[IMPORT][ROUNDS / 2], us[RESERVE][ROUNDS / 2],
            us[MAP][ROUNDS / 2], us[ACCESS][ROUNDS / 2], us[UNMAP][ROUNDS / 2], us[RELEASE][ROUNDS / 2]);
    }
}

const struct question stream_questions[] = {
    {"microseconds", ask_times, 15},
    {"register 16 MiB", ask_register, 10},
    {"callback gap", ask_callbacks, 10},
    {"calls beside a spinning kernel", ask_spinning, 25},
    {"cuIpcCloseMemHandle beside a kernel", ask_spinning_close, 15},
    {NULL, NULL, 0},
};
