/* A FAKE of NVIDIA's driver, for tests on machines without a GPU: a libcuda.so.1 whose device memory is
 * memfds. It is no simulation of a GPU: what it shows is that fds, handles, lifetimes, streams and order are
 * dealt with as the driver's manual demands, and it is stricter than a real driver may be where that finds
 * mistakes:
 *
 *   - device memory cannot be touched by the processor: an address of it is a page that nobody may read or write;
 *   - every call that needs a context fails with INVALID_CONTEXT on a thread without one;
 *   - a legacy handle that is open already is ALREADY_MAPPED, one of the own process INVALID_CONTEXT; VMM memory has none;
 *   - a copy that leaves its allocation, or its mapped chunks, is INVALID_VALUE;
 *   - streams are threads: what is queued happens later, in order, and each to its own time.
 *
 * FAKE_CUDA_GPUS (2), FAKE_CUDA_MIB (1024) of each, FAKE_CUDA_VERSION (13000), FAKE_CUDA_INIT (0: what cuInit
 * answers), FAKE_CUDA_NO_PEER, FAKE_CUDA_NO_VMM (set: the GPUs cannot), FAKE_CUDA_COPY_US (0: what each copy
 * takes at least), FAKE_CUDA_CONTEXT_MIB (256: what a context takes, beside FAKE_CUDA_MIB),
 * FAKE_CUDA_CALLS_AT_ONCE (set: a stream calls back before it has done what came before; no driver does: it
 * shows which tests would see).
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define FAKE_MAX_GPUS 8
#define FAKE_GRANULE ((size_t)2 << 20)

struct fake_gpu {
    size_t total, used; /* used: by this process */
    unsigned retained;  /* of its primary context */
};

extern struct fake_gpu fake_gpu[FAKE_MAX_GPUS];
extern int fake_gpus;
extern pthread_mutex_t fake_mutex; /* of all tables */

__attribute__((visibility("default"))) long fake_setting(const char *name, long fallback);
CUdevice fake_current(void); /* the GPU of the thread's context; -1: none */
bool fake_has_context(CUdevice device);

/* Where the processor reaches [address, address + bytes) of device memory; NULL: not all of it is such, or mapped. */
__attribute__((visibility("default"))) void *fake_cuda_reach(CUdeviceptr address, size_t bytes);
/* Of its memory, what this process has: allocations, and the context (FAKE_CUDA_CONTEXT_MIB). */
__attribute__((visibility("default"))) size_t fake_cuda_held(CUdevice device);
bool fake_is_device(CUdeviceptr address);
bool fake_host_registered(const void *address, size_t bytes);

#endif
