/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda.h. */
#include "backends/cuda/cuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_IDLE_NS INT64_C(10000000000)
#define HOST_NUMA_ID ((CUdevice_attribute)134) /* CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, which older headers and drivers lack */

/* ---- GPUs ---- */

static int attribute_of(const struct cuda_driver *driver, CUdevice_attribute attribute, CUdevice device)
{
    int value = 0;

    return driver->cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

/* Whether the machine has several NUMA nodes. */
static bool has_nodes(void)
{
    FILE *file = fopen("/sys/devices/system/node/online", "re");
    char text[64] = "";
    bool several = file && fgets(text, sizeof text, file) && strpbrk(text, "-,");

    if (file)
        (void)fclose(file);
    return several;
}

static int numa_node(void *memory, const char *device)
{
    const struct cuda *cuda = memory;
    struct cuda_gpu *gpu;

    return cuda_gpu_find(cuda->driver, device, &gpu, NULL) == RDT_OK ? cuda->cards[gpu - cuda->driver->gpu].node : -1;
}

static void card_init(struct cuda_card *card, struct cuda *cuda, struct cuda_gpu *gpu)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};

    card->cuda = cuda;
    card->gpu = gpu;
    card->vmm = attribute_of(cuda->driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, gpu->device) &&
                attribute_of(cuda->driver, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, gpu->device);
    card->rdma = attribute_of(cuda->driver, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, gpu->device);
    if (!has_nodes() || cuda->driver->cuDeviceGetAttribute(&card->node, HOST_NUMA_ID, gpu->device) != CUDA_SUCCESS)
        card->node = -1;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = gpu->device;
    if (!card->vmm || cuda->driver->cuMemGetAllocationGranularity(&card->granule, &prop,
                                                                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
        card->granule = (size_t)2 << 20;
    (void)pthread_mutex_init(&card->opening, NULL);
    (void)pthread_mutex_init(&card->mutex, NULL);
    for (unsigned i = 0; i < N_WAYS; i++)
        cuda_worker_init(&card->workers[i], card);
}

static uint32_t devices(void *memory, struct rdt_device *devices_p, uint32_t max)
{
    const struct cuda *cuda = memory;

    for (uint32_t i = 0; i < cuda->driver->n_gpus && i < max; i++)
        devices_p[i] =
            (struct rdt_device){.uuid = cuda->driver->gpu[i].uuid,
                                .name = cuda->driver->gpu[i].name,
                                .bytes = cuda->driver->gpu[i].bytes,
                                .opened = cuda_gpu_is_open(&cuda->driver->gpu[i]),
                                .why_not = atomic_load(&cuda->cards[i].failed) ? cuda->cards[i].why_not : NULL,
                                .overhead_bytes = cuda_gpu_is_open(&cuda->driver->gpu[i]) ? cuda->cards[i].overhead_bytes : 0};
    return cuda->driver->n_gpus;
}

/* Whether the first GPU has asked in vain for access to the memory of the second. */
static bool was_refused(const struct cuda *cuda, const struct cuda_gpu *gpu, const struct cuda_gpu *other)
{
    const struct cuda_card *card = &cuda->cards[gpu - cuda->driver->gpu];

    return card->asked & ~card->reached & (UINT64_C(1) << (other - cuda->driver->gpu));
}

/* Tells what the first copy between the two has found out; asks no driver, because the loop calls it. */
static void describe_copy(void *memory, const char *from, const char *to, char *text_p, size_t size)
{
    const struct cuda *cuda = memory;
    struct cuda_gpu *a, *b;

    text_p[0] = '\0';
    if (cuda_gpu_find(cuda->driver, from, &a, NULL) != RDT_OK || cuda_gpu_find(cuda->driver, to, &b, NULL) != RDT_OK)
        return;
    if (a == b)
        (void)snprintf(text_p, size, "within %s", a->name);
    else if (was_refused(cuda, a, b) || was_refused(cuda, b, a))
        (void)snprintf(text_p, size, "host memory, as the GPUs have no peer access");
    else if (cuda->cards[a - cuda->driver->gpu].reached & (UINT64_C(1) << (b - cuda->driver->gpu)))
        (void)snprintf(text_p, size, "peer access between the GPUs");
}

/* ---- the kind ---- */

/* By NVIDIA's manual the control daemon of MPS serves the processes of one user at a time, and all others wait: rdtd for the
 * actors, or the actors for rdtd. */
static enum rdt_status check_mps(struct rdt_error *err)
{
    const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[256];
    struct stat st;

    (void)snprintf(path, sizeof path, "%s/control", dir && dir[0] ? dir : "/tmp/nvidia-mps");
    if (stat(path, &st) != 0 || st.st_uid == geteuid())
        return RDT_OK;
    return rdt_error_set(
        err, RDT_UNSUPPORTED,
        "%.128s belongs to an NVIDIA MPS of uid %u, which serves one user at a time: run rdtd as the user whose "
        "processes use it, or set CUDA_MPS_PIPE_DIRECTORY to an empty folder for rdtd, which then works beside "
        "MPS",
        path, (unsigned)st.st_uid);
}

static enum rdt_status memory_open(const struct rdt_host *host, void **memory_p, struct rdt_error *err)
{
    const char *enabled = host->config(host->ctx, "enabled"), *idle = host->config(host->ctx, "pool_idle");
    struct cuda_driver *driver;
    struct cuda *cuda;
    enum rdt_status status;

    if (enabled && strcasecmp(enabled, "no") == 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "it is switched off by enabled = no in [cuda]");
    if (enabled && strcasecmp(enabled, "yes") != 0)
        return rdt_error_set(err, RDT_INVALID, "[cuda] enabled = %.32s: expected yes or no", enabled);
    status = check_mps(err);
    if (status == RDT_OK)
        status = cuda_driver_await(&driver, CUDA_WAIT_S, err);
    if (status != RDT_OK)
        return status;
    cuda = calloc(1, sizeof *cuda);
    if (cuda)
        cuda->cards = calloc(driver->n_gpus, sizeof *cuda->cards);
    if (!cuda || !cuda->cards) {
        free(cuda);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %u GPUs", driver->n_gpus);
    }
    cuda->host = *host;
    cuda->driver = driver;
    cuda_handles_init(&cuda->handles);
    cuda->idle_ns = idle ? strtoll(idle, NULL, 10) : DEFAULT_IDLE_NS;
    (void)pthread_mutex_init(&cuda->pins_mutex, NULL);
    (void)pthread_mutex_init(&cuda->restoring, NULL);
    for (unsigned i = 0; i < driver->n_gpus; i++)
        card_init(&cuda->cards[i], cuda, &driver->gpu[i]);
    cuda_contexts_watch(cuda);
    *memory_p = cuda;
    return RDT_OK;
}

static void memory_close(void *memory)
{
    struct cuda *cuda = memory;

    cuda_contexts_end(cuda);
    for (unsigned i = 0; i < cuda->driver->n_gpus; i++) {
        (void)pthread_mutex_destroy(&cuda->cards[i].mutex);
        (void)pthread_mutex_destroy(&cuda->cards[i].opening);
    }
    (void)pthread_mutex_destroy(&cuda->restoring);
    (void)pthread_mutex_destroy(&cuda->pins_mutex);
    (void)pthread_mutex_destroy(&cuda->handles.mutex);
    free(cuda->cards);
    free(cuda);
}

static const struct rdt_config_key config_keys[] = {
    {"enabled", "yes", "no: the daemon uses no GPU memory, and does not load NVIDIA's driver for it"},
    {NULL, NULL, NULL},
};

static const struct rdt_memory_ops memory_ops = {
    .struct_size = sizeof memory_ops,
    .name = "cuda",
    .open = memory_open,
    .close = memory_close,
    .alloc = cuda_alloc,
    .import = cuda_import,
    .free = cuda_free,
    .map = cuda_map,
    .round = cuda_round,
    .devices = devices,
    .export_block = cuda_export,
    .copy_start = cuda_copy_start,
    .zero = cuda_zero,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .describe_copy = describe_copy,
    .alloc_unzeroed = cuda_alloc_unzeroed,
    .zero_part = cuda_zero_part,
    .restore = cuda_restore,
    .numa_node = numa_node,
};

static const struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "cuda",
    .version = "0.1.0",
    .config_keys = config_keys,
    .memory = &memory_ops,
};

const struct rdt_backend *rdt_backend_init(void)
{
    return &backend;
}
