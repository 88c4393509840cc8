/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's driver, loaded at run time: a table of the functions that are used, and the GPUs by UUID. Nothing is linked; on
 * a machine without the driver, cuda_driver_open returns UNSUPPORTED.
 *
 * Opening the driver calls cuInit, which allocates no GPU memory. cuda_gpu_enter does: it retains the GPU's primary
 * context, which takes some hundred megabytes, until cuda_gpu_leave. No other context is ever created.
 *
 * All functions may be called from any thread. The driver's functions are called by the names of its header, as in
 * driver->cuMemAlloc(...); macros of that header append the suffix of the version (cuMemAlloc_v2).
 */
#ifndef BACKENDS_CUDA_DRIVER_H
#define BACKENDS_CUDA_DRIVER_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>

#include "rdt_status.h"

#define CUDA_UUID_TEXT 41 /* "GPU-8c1f3b2a-....", as nvidia-smi shows it; of a part of a GPU "MIG-..." */
#define CUDA_MAX_GPUS 64

/* clang-format off */
#define CUDA_FUNCTIONS(X) \
    X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString) X(cuDeviceGetCount) X(cuDeviceGet) \
    X(cuDeviceGetUuid) X(cuDeviceGetName) X(cuDeviceTotalMem) X(cuDeviceGetAttribute) X(cuDeviceCanAccessPeer) \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxGetState) \
    X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxGetDevice) \
    X(cuCtxEnablePeerAccess) X(cuCtxSynchronize) X(cuMemGetInfo) X(cuMemAlloc) X(cuMemFree) X(cuMemGetAddressRange) \
    X(cuPointerGetAttribute) X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease) \
    X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemAddressReserve) X(cuMemAddressFree) \
    X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemRetainAllocationHandle) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) \
    X(cuIpcCloseMemHandle) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemcpyAsync) X(cuMemcpyPeerAsync) \
    X(cuMemsetD8Async) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamWaitEvent) \
    X(cuStreamGetCtx) X(cuMemcpy2DAsync) X(cuMemcpy3DPeerAsync) \
    X(cuMemGetAllocationPropertiesFromHandle) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) \
    X(cuEventSynchronize) X(cuStreamIsCapturing) X(cuThreadExchangeStreamCaptureMode)
/* clang-format on */

struct cuda_gpu {
    CUdevice device;
    char uuid[CUDA_UUID_TEXT];
    char name[64];
    size_t bytes;          /* size of its memory */
    pthread_mutex_t mutex; /* protects the next field. A context takes a tenth of a second, so no GPU waits for another's */
    CUcontext context;     /* NULL: not retained */
};

struct cuda_driver {
#define CUDA_MEMBER(name) __typeof__(name) *name;
    CUDA_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
    int version; /* 13000 means 13.0 */
    struct cuda_gpu gpu[CUDA_MAX_GPUS];
    unsigned n_gpus;
};

#define CUDA_WAIT_S 10 /* how long a daemon waits for a driver that is not ready */

/* Opens the driver once for this library or plug-in; *driver_p stays valid for ever. UNSUPPORTED: there is no driver, or
 * only the toolkit's stub, or the driver is too old, or it sees no GPU, or it is not ready yet. The sentence says which. Every
 * later call returns the same error, except for a driver that is not ready, which is tried again. */
enum rdt_status cuda_driver_open(struct cuda_driver **driver_p, struct rdt_error *err);

/* In a forked child: threads that held the locks of this file do not exist. */
void cuda_driver_after_fork(void);

/* The same, but waits up to so many seconds for a driver that is not ready. */
enum rdt_status cuda_driver_await(struct cuda_driver **driver_p, unsigned wait_s, struct rdt_error *err);

/* Finds a GPU by its UUID, in upper or lower case. NOT_FOUND, with a sentence that lists the GPUs of the machine. */
enum rdt_status cuda_gpu_find(struct cuda_driver *driver, const char *uuid, struct cuda_gpu **gpu_p, struct rdt_error *err);

/* Makes the GPU's primary context current in this thread, and retains it first if necessary. The errors are those of
 * cuda_failed. */
enum rdt_status cuda_gpu_enter(struct cuda_driver *driver, struct cuda_gpu *gpu, struct rdt_error *err);

/* Returns whether the GPU's primary context is retained. */
bool cuda_gpu_is_open(const struct cuda_gpu *gpu);

/* Releases the context, if it is retained. Nothing may use the GPU through this table any more. */
void cuda_gpu_leave(struct cuda_driver *driver, struct cuda_gpu *gpu);

/* Turns a result of the driver into a status, with `what` and the driver's text in the sentence: NO_MEMORY,
 * INVALID, UNSUPPORTED or SYSTEM. */
enum rdt_status cuda_failed(const struct cuda_driver *driver, CUresult result, struct rdt_error *err, const char *what);

#endif
