/* See held.h. What is used of NVML is declared here: its header is in a package of its own, and these have not changed since CUDA 11. */
#include "backends/cuda/held.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#define MOST_PROCESSES 256u

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

/* 0: it is not listed, and so has nothing there as yet. */
static uint64_t own_of(void *device)
{
    struct nvml_process processes[MOST_PROCESSES];
    unsigned n = MOST_PROCESSES;

    if (!processes_of || processes_of(device, &n, processes) != 0)
        return HELD_UNKNOWN;
    for (unsigned i = 0; i < n; i++)
        if (processes[i].pid == (unsigned)getpid())
            return processes[i].bytes;
    return 0;
}

struct held held_now(const char *uuid)
{
    struct held held = {HELD_UNKNOWN, HELD_UNKNOWN};
    struct nvml_memory memory;
    void *device;

    (void)pthread_once(&once, open_once);
    if (!device_by_uuid || device_by_uuid(uuid, &device) != 0)
        return held;
    held.own = own_of(device);
    if (memory_of(device, &memory) == 0)
        held.all = memory.used;
    return held;
}

uint64_t held_between(const struct held *before, const struct held *after)
{
    if (before->own != HELD_UNKNOWN && after->own != HELD_UNKNOWN && after->own > before->own)
        return after->own - before->own;
    if (before->all == HELD_UNKNOWN || after->all == HELD_UNKNOWN)
        return HELD_UNKNOWN;
    return after->all > before->all ? after->all - before->all : 0;
}
