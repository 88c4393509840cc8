/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. Types and numbers are those of the driver's ABI, which does not change. */
#include "tests/support/gpu.h"

#include <dlfcn.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

#define MAX_GPUS 16
#define BLOCK_BYTES ((size_t)2 << 20)

typedef unsigned long long device_ptr;

struct location {
    int type, id;
};

struct allocation_prop { /* CUmemAllocationProp */
    int type, handle_types;
    struct location location;
    void *windows;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct access_desc {
    struct location location;
    int flags;
};

static void *library;
static unsigned count;
static void *context[MAX_GPUS];
static unsigned in_use;

static int call_failed(const char *name, int result)
{
    fail("%s: %d", name, result);
    return result;
}

/* CALL("cuMemAlloc_v2", (device_ptr *, size_t), (&addr, bytes)) */
#define RAW(name, types, arguments) (((int(*) types)symbol(name))arguments)
#define CALL(name, types, arguments)                   \
    do {                                               \
        int call_result = RAW(name, types, arguments); \
        if (call_result != 0)                          \
            (void)call_failed(name, call_result);      \
    } while (0)

static void *symbol(const char *name)
{
    void *found = dlsym(library, name);

    must_say(found, "the driver has no %s", name);
    return found;
}

bool gpu_is_real(void)
{
    return getenv("RDT_TEST_GPU");
}

bool gpu_there(const char **why_p)
{
    static char why[128];
    int n = 0, result;

    *why_p = why;
    if (count > 0)
        return true;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)snprintf(why, sizeof why, "no NVIDIA driver: %.90s", dlerror());
        return false;
    }
    result = RAW("cuInit", (unsigned), (0));
    if (result == 0)
        result = RAW("cuDeviceGetCount", (int *), (&n));
    if (result != 0 || n == 0)
        (void)snprintf(why, sizeof why, "the NVIDIA driver has no GPU (%d)", result);
    count = (unsigned)(n < MAX_GPUS ? n : MAX_GPUS);
    return count > 0;
}

unsigned gpu_count(void)
{
    return count;
}

const char *gpu_uuid(unsigned gpu)
{
    static char text[MAX_GPUS][48];
    unsigned char bytes[16];
    char name[128];
    size_t used = 4;
    int device;

    CALL("cuDeviceGet", (int *, int), (&device, (int)gpu));
    CALL("cuDeviceGetUuid_v2", (unsigned char *, int), (bytes, device));
    CALL("cuDeviceGetName", (char *, int, int), (name, sizeof name, device));
    memcpy(text[gpu], strstr(name, " MIG ") ? "MIG-" : "GPU-", used);
    for (unsigned i = 0; i < 16; i++)
        used += (size_t)snprintf(text[gpu] + used, sizeof text[gpu] - used, "%s%02x",
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
    return text[gpu];
}

void gpu_use(unsigned gpu)
{
    must(gpu < count);
    if (!context[gpu])
        CALL("cuDevicePrimaryCtxRetain", (void **, int), (&context[gpu], (int)gpu));
    CALL("cuCtxSetCurrent", (void *), (context[gpu]));
    in_use = gpu;
}

size_t gpu_free_bytes(void)
{
    size_t left, total;

    CALL("cuMemGetInfo_v2", (size_t *, size_t *), (&left, &total));
    return left;
}

void *gpu_alloc(size_t bytes)
{
    device_ptr addr = 0;

    CALL("cuMemAlloc_v2", (device_ptr *, size_t), (&addr, bytes));
    return (void *)(uintptr_t)addr;
}

void *gpu_alloc_whole(size_t bytes)
{
    return gpu_alloc((bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
}

void gpu_free(void *addr)
{
    CALL("cuMemFree_v2", (device_ptr), ((device_ptr)(uintptr_t)addr));
}

void gpu_ipc_handle(void *addr, char handle[64])
{
    CALL("cuIpcGetMemHandle", (void *, device_ptr), (handle, (device_ptr)(uintptr_t)addr));
}

void *gpu_alloc_chunks(size_t chunk_bytes, unsigned n, bool exportable)
{
    struct allocation_prop prop = {.type = 1, .handle_types = exportable ? 1 : 0, .location = {1, (int)in_use}};
    struct access_desc desc = {{1, (int)in_use}, 3};
    device_ptr addr = 0;

    CALL("cuMemAddressReserve", (device_ptr *, size_t, size_t, device_ptr, unsigned long long),
         (&addr, chunk_bytes * n, 0, 0, 0));
    for (unsigned i = 0; i < n; i++) {
        unsigned long long handle;
        CALL("cuMemCreate", (unsigned long long *, size_t, const struct allocation_prop *, unsigned long long),
             (&handle, chunk_bytes, &prop, 0));
        CALL("cuMemMap", (device_ptr, size_t, size_t, unsigned long long, unsigned long long),
             (addr + i * chunk_bytes, chunk_bytes, 0, handle, 0));
        CALL("cuMemRelease", (unsigned long long), (handle));
    }
    CALL("cuMemSetAccess", (device_ptr, size_t, const struct access_desc *, size_t), (addr, chunk_bytes * n, &desc, 1));
    return (void *)(uintptr_t)addr;
}

void gpu_free_chunks(void *addr, size_t chunk_bytes, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        CALL("cuMemUnmap", (device_ptr, size_t), ((device_ptr)(uintptr_t)addr + i * chunk_bytes, chunk_bytes));
    CALL("cuMemAddressFree", (device_ptr, size_t), ((device_ptr)(uintptr_t)addr, chunk_bytes * n));
}

/* ---- bytes ---- */

void gpu_copy_in_stream(void *to, const void *from, size_t bytes, void *stream)
{
    CALL("cuMemcpyAsync", (device_ptr, device_ptr, size_t, void *),
         ((device_ptr)(uintptr_t)to, (device_ptr)(uintptr_t)from, bytes, stream));
}

void gpu_pin(void *host, size_t bytes)
{
    CALL("cuMemHostRegister_v2", (void *, size_t, unsigned), (host, bytes, 1)); /* for every context */
}

void gpu_unpin(void *host)
{
    CALL("cuMemHostUnregister", (void *), (host));
}

void gpu_write(void *to, const void *from, size_t bytes)
{
    gpu_copy_in_stream(to, from, bytes, NULL);
    gpu_stream_wait(NULL);
}

void gpu_read(void *to, const void *from, size_t bytes)
{
    gpu_write(to, from, bytes);
}

void gpu_fill(void *to, size_t bytes, uint32_t seed)
{
    uint8_t *host = malloc(bytes + 1);

    must(host);
    fill_pattern(host, bytes, seed);
    gpu_write(to, host, bytes);
    free(host);
}

bool gpu_holds(const void *from, size_t bytes, uint32_t seed)
{
    uint8_t *host = malloc(bytes + 1);

    must(host);
    gpu_read(host, from, bytes);
    bool holds = holds_pattern(host, bytes, seed);
    free(host);
    return holds;
}

/* ---- streams ---- */

struct gpu_gate {
    sem_t open;
};

void *gpu_stream_create_blocking(void)
{
    void *stream;

    CALL("cuStreamCreate", (void **, unsigned), (&stream, 0));
    return stream;
}

void *gpu_stream_create(void)
{
    void *stream;

    CALL("cuStreamCreate", (void **, unsigned), (&stream, 1));
    return stream;
}

void gpu_stream_wait(void *stream)
{
    CALL("cuStreamSynchronize", (void *), (stream));
}

void gpu_stream_destroy(void *stream)
{
    CALL("cuStreamDestroy_v2", (void *), (stream));
}

static void stand(void *arg)
{
    struct gpu_gate *gate = arg;

    while (sem_wait(&gate->open))
        ;
    (void)sem_destroy(&gate->open);
    free(gate);
}

struct gpu_gate *gpu_hold(void *stream)
{
    struct gpu_gate *gate = malloc(sizeof *gate);

    must(gate && sem_init(&gate->open, 0, 0) == 0);
    CALL("cuLaunchHostFunc", (void *, void (*)(void *), void *), (stream, stand, gate));
    return gate;
}

void gpu_events_early(void)
{
    ((void (*)(void))symbol("fake_events_early"))();
}

void gpu_refuse(const char *function, int result)
{
    ((void (*)(const char *, int))symbol("fake_refuse"))(function, result);
}

void gpu_open(struct gpu_gate *gate)
{
    (void)sem_post(&gate->open);
}

static void call_inside(void *refused_p)
{
    size_t unused, all;

    *(bool *)refused_p = RAW("cuMemGetInfo_v2", (size_t *, size_t *), (&unused, &all)) == 800; /* NOT_PERMITTED */
}

bool gpu_refuses_in_host_function(void *stream)
{
    bool refused = false;

    CALL("cuLaunchHostFunc", (void *, void (*)(void *), void *), (stream, call_inside, &refused));
    gpu_stream_wait(stream);
    return refused;
}

void gpu_capture(void *stream)
{
    CALL("cuStreamBeginCapture_v2", (void *, int), (stream, 0));
}

bool gpu_end_capture(void *stream)
{
    void *graph;

    return RAW("cuStreamEndCapture", (void *, void **), (stream, &graph)) == 0;
}
