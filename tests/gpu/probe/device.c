/* SPDX-License-Identifier: Apache-2.0 */
/* The driver, its GPUs, what a context costs, and what memory can be made without one. */
#include "tests/gpu/probe/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- init ---- */

static void describe(int gpu)
{
    static const struct {
        const char *name;
        CUdevice_attribute attribute;
    } attributes[] = {
        /* those that CUDA 11.4 has no name for are numbers */
        {"vmm", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
        {"posix_fd", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
        {"fabric", (CUdevice_attribute)128},
        {"unified", CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
        {"rdma", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED},
        {"rdma_vmm", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED},
        {"dma_buf", CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED},
        {"register", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
        {"register_read_only", (CUdevice_attribute)113},
        {"registered_pointer", CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM},
        {"copy_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
        {"pageable", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
        {"ipc_events", (CUdevice_attribute)125},
        {"integrated", CU_DEVICE_ATTRIBUTE_INTEGRATED},
        {"compute_mode", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE},
        {"capability_major", CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    };
    char text[400], question[40], name[100] = "";
    size_t used = 0, bytes = 0;
    CUuuid uuid = {{0}};
    CUdevice device = 0;

    (void)snprintf(question, sizeof question, "gpu %d", gpu);
    if (!went_well(question, "cuDeviceGet", CU(cuDeviceGet, &device, gpu)))
        return;
    (void)CU(cuDeviceGetName, name, sizeof name, device);
    (void)CU(cuDeviceTotalMem, &bytes, device);
    (void)CU(cuDeviceGetUuid, &uuid, device);
    for (unsigned i = 0; i < 16; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%02x", (unsigned char)uuid.bytes[i]);
    say(question, "%s, %zu MiB, uuid %s", name, bytes / MIB, text);
    used = 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        int value = -1;
        CUresult result = CU(cuDeviceGetAttribute, &value, attributes[i].attribute, device);
        int n = result == CUDA_SUCCESS ? snprintf(text + used, sizeof text - used, "%s=%d ", attributes[i].name, value)
                                       : snprintf(text + used, sizeof text - used, "%s=? ", attributes[i].name);
        used += n > 0 && used + (size_t)n < sizeof text ? (size_t)n : 0;
    }
    (void)snprintf(question, sizeof question, "gpu %d: attributes", gpu);
    say(question, "%s", text);
    for (int peer = 0; peer < gpu_count(); peer++) {
        int can = -1;
        if (peer != gpu && CU(cuDeviceCanAccessPeer, &can, device, peer) == CUDA_SUCCESS) {
            (void)snprintf(question, sizeof question, "gpu %d: reaches gpu %d", gpu, peer);
            say(question, "%s", can ? "yes" : "no");
        }
    }
}

static void ask_init(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    unsigned fds = count_fds();
    double start = now_ms();
    int version = 0;

    say("this process", "uid %u, CUDA_VISIBLE_DEVICES %s", (unsigned)getuid(), visible ? visible : "(unset)");
    if (!driver_open("init", NO_CONTEXT))
        return;
    (void)CU(cuDriverGetVersion, &version);
    say("init", "%.0f ms, %u descriptors; CUDA %d.%d; %d GPUs", now_ms() - start, count_fds() - fds, version / 1000,
        version % 1000 / 10, gpu_count());
    for (int gpu = 0; gpu < gpu_count() && gpu < 8; gpu++)
        describe(gpu);
}

/* ---- a context ---- */

static void open_context(int link)
{
    char go = 0;

    if (!driver_open("context", NO_CONTEXT) || !take(link, &go, 1, NULL))
        return;
    unsigned fds = count_fds();
    double start = now_ms();
    CUcontext context;
    if (!went_well("context", "cuDevicePrimaryCtxRetain", CU(cuDevicePrimaryCtxRetain, &context, 0)) ||
        !went_well("context", "cuCtxSetCurrent", CU(cuCtxSetCurrent, context)))
        return;
    say("context: time, descriptors", "%.0f ms, %u descriptors", now_ms() - start, count_fds() - fds);
    (void)give(link, &go, 1, -1);
    if (!take(link, &go, 1, NULL))
        return;
    start = now_ms();
    (void)CU(cuDevicePrimaryCtxRelease, 0);
    say("context: time to leave it", "%.0f ms, then %u descriptors more than before it", now_ms() - start, count_fds() - fds);
    (void)give(link, &go, 1, -1);
    (void)take(link, &go, 1, NULL);
}

static void ask_context(void)
{
    size_t before = 0, during = 0, after = 0, all = 0;
    struct other other;
    char go = 1;

    if (!other_start(&other, "context", &(struct other_options){0}, open_context) || !driver_open("context", 0))
        return;
    (void)CU(cuMemGetInfo, &before, &all);
    if (!give(other.link, &go, 1, -1) || !take(other.link, &go, 1, NULL))
        return;
    (void)CU(cuMemGetInfo, &during, &all);
    say("context: memory", "%.1f MiB of the GPU", ((double)before - (double)during) / (double)MIB);
    if (!give(other.link, &go, 1, -1) || !take(other.link, &go, 1, NULL))
        return;
    (void)CU(cuMemGetInfo, &after, &all);
    say("context: memory that stays when it is left", "%.1f MiB", ((double)before - (double)after) / (double)MIB);
    other_end(&other);
}

/* ---- memory without a context ---- */

static void ask_granularity(void)
{
    if (!driver_open("granularity", NO_CONTEXT))
        return;
    for (int rdma = 0; rdma < 2; rdma++) {
        CUmemAllocationProp kind = chunk_kind(0, rdma);
        size_t least = 0, best = 0;
        CUresult result = CU(cuMemGetAllocationGranularity, &least, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        if (result == CUDA_SUCCESS)
            result = CU(cuMemGetAllocationGranularity, &best, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        say(rdma ? "granularity with the RDMA flag" : "granularity", "%s: least %zu KiB, recommended %zu KiB", name_of(result),
            least >> 10, best >> 10);
    }
}

static void ask_without_context(void)
{
    if (!driver_open("create without a context", NO_CONTEXT))
        return;
    for (int rdma = 0; rdma < 2; rdma++) {
        CUmemAllocationProp kind = chunk_kind(0, rdma);
        CUmemGenericAllocationHandle handle;
        unsigned flags = 0, fds = count_fds();
        CUresult made, exported = LACKS;
        int fd = -1, active = -1;

        made = CU(cuMemCreate, &handle, 2 * MIB, &kind, 0);
        if (made == CUDA_SUCCESS)
            exported = CU(cuMemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        (void)CU(cuDevicePrimaryCtxGetState, 0, &flags, &active);
        say(rdma ? "create without a context, RDMA flag" : "create without a context",
            "create %s, export %s; context active: %d; %u descriptors more", name_of(made),
            made == CUDA_SUCCESS ? name_of(exported) : "-", active, count_fds() - fds);
        if (made == CUDA_SUCCESS)
            (void)CU(cuMemRelease, handle);
    }
}

/* ---- pointer queries ---- */

/* The attribute is written into bytes of 0xaa, of which those that changed are counted. */
static void width(const char *name, CUpointer_attribute attribute, CUdeviceptr address)
{
    unsigned char value[16];
    unsigned bytes = sizeof value;
    char question[60];

    memset(value, 0xaa, sizeof value);
    CUresult result = CU(cuPointerGetAttribute, value, attribute, address);
    while (bytes > 0 && value[bytes - 1] == 0xaa)
        bytes--;
    (void)snprintf(question, sizeof question, "width of %s", name);
    if (result == CUDA_SUCCESS)
        say(question, "%u bytes, the first is %u", bytes, value[0]);
    else
        say(question, "%s, %u bytes written", name_of(result), bytes);
}

static void ask_width(void)
{
    CUdeviceptr address = 0;

    if (!driver_open("width of attributes", 0) ||
        !went_well("width of attributes", "cuMemAlloc", CU(cuMemAlloc, &address, 4 * MIB)))
        return;
#define WIDTH(attribute) width(#attribute, CU_POINTER_ATTRIBUTE_##attribute, address);
    WIDTH(IS_LEGACY_CUDA_IPC_CAPABLE)
    WIDTH(MEMORY_TYPE)
    WIDTH(IS_MANAGED)
    WIDTH(MAPPED)
    WIDTH(DEVICE_ORDINAL)
    WIDTH(SYNC_MEMOPS)
    WIDTH(IS_GPU_DIRECT_RDMA_CAPABLE)
    WIDTH(ALLOWED_HANDLE_TYPES)
    WIDTH(BUFFER_ID)
    WIDTH(RANGE_SIZE)
}

static void query(const char *what, CUdeviceptr address)
{
    unsigned type = 0;
    char question[60];
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUresult found = CU(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    CUresult range = CU(cuMemGetAddressRange, &base, &bytes, address);

    (void)snprintf(question, sizeof question, "pointer query, %s", what);
    say(question, "type: %s (%u); range: %s (%zu KiB)", name_of(found), type, name_of(range), bytes >> 10);
}

static void ask_pointers(void)
{
    struct chunk chunk = {0};
    CUdeviceptr legacy = 0;
    void *host = malloc(MIB);

    if (!driver_open("pointer query", 0) || !went_well("pointer query", "cuMemAlloc", CU(cuMemAlloc, &legacy, 4 * MIB)) ||
        !went_well("pointer query", "chunk", chunk_make(&chunk, 0, 2 * MIB)))
        return;
    query("cuMemAlloc", legacy);
    query("VMM", chunk.address);
    query("host memory", (CUdeviceptr)(uintptr_t)host);
    (void)CU(cuCtxSetCurrent, NULL);
    query("cuMemAlloc, no context", legacy);
    query("VMM, no context", chunk.address);
    query("host memory, no context", (CUdeviceptr)(uintptr_t)host);
    free(host);
}

const struct question device_questions[] = {
    {"init", ask_init, 15},
    {"context", ask_context, 15},
    {"granularity", ask_granularity, 10},
    {"create without a context", ask_without_context, 10},
    {"width of attributes", ask_width, 10},
    {"pointer query", ask_pointers, 10},
    {NULL, NULL, 0},
};
