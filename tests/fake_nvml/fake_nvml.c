/* SPDX-License-Identifier: Apache-2.0 */
/* A FAKE of NVML with the few functions that the plug-in "cuda" and rdtctl call: a libnvidia-ml.so.1 over the fake
 * driver in the same folder. It knows this process only. Environment: FAKE_NVML_INIT (0: the result of
 * nvmlInit), FAKE_NVML_PROCESSES (1; 0: it does not find this process by its number), FAKE_NVML_FREE_MIB (512), FAKE_NVML_MODE
 * (0: the compute mode), FAKE_NVML_PEERS (0: the status of peer access).
 */
#include <string.h>
#include <unistd.h>

#include "tests/fake_cuda/fake_cuda.h"

#define SHOW __attribute__((visibility("default")))
enum { NVML_SUCCESS = 0, NVML_NOT_FOUND = 6 };

struct memory {
    unsigned long long total, free, used;
};

struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

SHOW int nvmlInit_v2(void);
SHOW int nvmlDeviceGetHandleByUUID(const char *uuid, void **device_p);
SHOW int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory_p);
SHOW int nvmlDeviceGetComputeMode(void *device, int *mode_p);
SHOW int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status_p);
SHOW int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes);

int nvmlInit_v2(void)
{
    return (int)fake_setting("FAKE_NVML_INIT", 0);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device_p)
{
    size_t length = strlen(uuid);
    int number = length > 0 ? uuid[length - 1] - '1' : -1; /* FAKE_GPU_0 is ...1 */

    if (number < 0 || number >= FAKE_MAX_GPUS)
        return NVML_NOT_FOUND;
    *device_p = (void *)(uintptr_t)(number + 1);
    return NVML_SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory_p)
{
    unsigned long long used = fake_cuda_held((int)(uintptr_t)device - 1);

    *memory_p = (struct memory){(unsigned long long)fake_setting("FAKE_CUDA_MIB", 1024) << 20,
                                (unsigned long long)fake_setting("FAKE_NVML_FREE_MIB", 512) << 20, used};
    return NVML_SUCCESS;
}

int nvmlDeviceGetComputeMode(void *device, int *mode_p)
{
    (void)device;
    *mode_p = (int)fake_setting("FAKE_NVML_MODE", 0);
    return NVML_SUCCESS;
}

int nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *status_p)
{
    (void)a;
    (void)b;
    (void)what;
    *status_p = (int)fake_setting("FAKE_NVML_PEERS", 0);
    return NVML_SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes)
{
    unsigned long long used = fake_cuda_held((int)(uintptr_t)device - 1);

    *count = used > 0;
    if (used > 0)
        processes[0] = (struct process){.pid = fake_setting("FAKE_NVML_PROCESSES", 1) ? (unsigned)getpid() : 1u, .bytes = used};
    return NVML_SUCCESS;
}
