/* SPDX-License-Identifier: Apache-2.0 */
/* See overhead.h. The functions of NVML that are used are declared here, because NVML's header comes in a package of its own.
 * They have not changed since CUDA 11. */
#include "backends/cuda/overhead.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#define MAX_PROCESSES 256u

struct nvml_memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};

struct nvml_process { /* nvmlProcessInfo_v2_t */
    unsigned pid;
    unsigned long long bytes; /* UINT64_MAX: not available */
    unsigned gpu_instance, compute_instance;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int (*device_by_uuid)(const char *uuid, void **device_p); /* NULL: there is no NVML */
static int (*memory_of)(void *device, struct nvml_memory *memory_p);
static int (*processes_of)(void *device, unsigned *count, struct nvml_process *processes); /* may be NULL */

static void open_once(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(void) = NULL;

    if (!library)
        return;
    *(void **)(void *)&init = dlsym(library, "nvmlInit_v2");
    *(void **)(void *)&memory_of = dlsym(library, "nvmlDeviceGetMemoryInfo");
    *(void **)(void *)&processes_of = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (init && memory_of && init() == 0)
        *(void **)(void *)&device_by_uuid = dlsym(library, "nvmlDeviceGetHandleByUUID");
    if (!device_by_uuid)
        (void)dlclose(library);
}

/* Returns the bytes that this process uses. A process that NVML does not list uses none yet. */
static uint64_t own_of(void *device)
{
    struct nvml_process processes[MAX_PROCESSES];
    unsigned n = MAX_PROCESSES;

    if (!processes_of || processes_of(device, &n, processes) != 0)
        return USAGE_UNKNOWN;
    for (unsigned i = 0; i < n; i++)
        if (processes[i].pid == (unsigned)getpid())
            return processes[i].bytes;
    return 0;
}

struct gpu_usage gpu_usage_now(const char *uuid)
{
    struct gpu_usage usage = {USAGE_UNKNOWN, USAGE_UNKNOWN};
    struct nvml_memory memory;
    void *device;

    (void)pthread_once(&once, open_once);
    if (!device_by_uuid || device_by_uuid(uuid, &device) != 0)
        return usage;
    usage.own = own_of(device);
    if (memory_of(device, &memory) == 0)
        usage.all = memory.used;
    return usage;
}

uint64_t gpu_usage_growth(const struct gpu_usage *before, const struct gpu_usage *after)
{
    if (before->own != USAGE_UNKNOWN && after->own != USAGE_UNKNOWN && after->own > before->own)
        return after->own - before->own;
    if (before->all == USAGE_UNKNOWN || after->all == USAGE_UNKNOWN)
        return USAGE_UNKNOWN;
    return after->all > before->all ? after->all - before->all : 0;
}
