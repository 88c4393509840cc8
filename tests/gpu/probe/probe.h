/* SPDX-License-Identifier: Apache-2.0 */
/* A program that asks a machine's NVIDIA driver and NCCL, without any code of rdtd, what rdtd relies on, and prints the
 * answers as a table, each as soon as it is known.
 *
 * A question is a function. It runs in a process of its own with a time limit, so a call that hangs, a crash or a broken
 * context costs one row. It opens the driver itself: a process that has called cuInit must not fork. Questions about two
 * processes start the second one first.
 */
#ifndef TESTS_GPU_PROBE_H
#define TESTS_GPU_PROBE_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* clang-format off */
#define FUNCTIONS(X) \
    X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid) X(cuDeviceGetName) \
    X(cuDeviceTotalMem) X(cuDeviceGetAttribute) X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) \
    X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxGetState) X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuMemGetInfo) \
    X(cuMemAlloc) X(cuMemFree) X(cuMemAllocHost) X(cuMemFreeHost) X(cuMemGetAddressRange) X(cuPointerGetAttribute) \
    X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease) X(cuMemExportToShareableHandle) \
    X(cuMemImportFromShareableHandle) X(cuMemRetainAllocationHandle) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) \
    X(cuMemUnmap) X(cuMemSetAccess) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuMemHostRegister) \
    X(cuMemHostUnregister) X(cuMemHostGetDevicePointer) X(cuMemcpyAsync) X(cuMemsetD8Async) X(cuStreamCreate) \
    X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamWaitEvent) X(cuLaunchHostFunc) X(cuEventCreate) \
    X(cuEventDestroy) X(cuEventRecord) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel)
/* clang-format on */

struct driver {
#define MEMBER(name) __typeof__(name) *name; /* NULL: this driver lacks it */
    FUNCTIONS(MEMBER)
#undef MEMBER
};
extern struct driver cu;

#define LACKS ((CUresult)-1)
#define CU(name, ...) (cu.name ? cu.name(__VA_ARGS__) : LACKS)
const char *name_of(CUresult result); /* "ok", "CUDA_ERROR_...", or that the driver lacks the function */

#define MIB ((size_t)1 << 20)

/* Prints a row. */
void say(const char *question, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints a row if the call failed. */
bool went_well(const char *question, const char *what, CUresult result);

double now_ms(void);
void pause_ms(unsigned ms);
unsigned count_fds(void);

/* Loads the driver and calls cuInit in this process, and makes the primary context of the GPU current; NO_CONTEXT: of none. On
 * a failure it prints a row and returns false. */
#define NO_CONTEXT (-1)
bool driver_open(const char *question, int gpu);
int gpu_count(void);

/* ---- a second process ---- */

struct other {
    pid_t pid;
    int link; /* a socket to it */
};
struct other_options {
    const char *visible; /* its CUDA_VISIBLE_DEVICES; NULL: unchanged */
    uid_t uid;           /* 0: unchanged */
    bool new_pids;       /* in a PID namespace of its own */
};

/* Runs `run` in a process of its own, which ends when it returns. Call it before driver_open. Returns false, after a row that
 * says why, if the options cannot be had. */
bool other_start(struct other *other, const char *question, const struct other_options *options, void (*run)(int link));
void other_kill(struct other *other);
void other_end(struct other *other); /* waits for it */

bool give(int link, const void *data, size_t bytes, int fd); /* fd -1: none */
/* Waits some seconds at most. *fd_p is -1 if none came; NULL: none is expected. */
bool take(int link, void *data, size_t bytes, int *fd_p);

/* ---- memory ---- */

struct chunk { /* VMM memory */
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    size_t bytes;
};

CUmemAllocationProp chunk_kind(int gpu, bool rdma);
/* Creates, maps and opens a chunk of `bytes` to the GPU. */
CUresult chunk_make(struct chunk *chunk, int gpu, size_t bytes);
CUresult chunk_map(struct chunk *chunk, int gpu); /* with handle and bytes set */
CUresult fill(CUdeviceptr address, unsigned char value, size_t bytes);
/* Reads the first byte. */
CUresult peek(CUdeviceptr address, unsigned char *value_p);

/* ---- the questions, one file each for a subject ---- */

struct question {
    const char *name;
    void (*ask)(void);
    unsigned seconds;
};
extern const struct question device_questions[], share_questions[], stream_questions[],
    nccl_questions[]; /* end with name NULL */

#endif
