/* SPDX-License-Identifier: Apache-2.0 */
/* A FAKE of NVIDIA's driver, for tests on machines without a GPU: a libcuda.so.1 whose device memory is
 * memfds. It does not simulate a GPU. It checks that the caller treats fds, handles, lifetimes, streams and order as the
 * driver's manual demands, and is stricter than a real driver where that finds mistakes:
 *
 *   - the processor cannot touch device memory: its addresses are pages that nobody may read or write;
 *   - every call that needs a context fails with INVALID_CONTEXT on a thread without one;
 *   - opening a legacy handle fails with ALREADY_MAPPED if it is open already, and with INVALID_CONTEXT if it is of the same
 *     process; VMM memory has no legacy handle;
 *   - a copy that leaves its allocation, or its mapped chunks, fails with INVALID_VALUE;
 *   - streams are threads: queued work runs later and in order, and each stream has its own pace;
 *   - every call inside a host function fails with NOT_PERMITTED;
 *   - while a stream is captured into a graph, calls that wait, allocate or map fail and spoil the capture, unless the thread
 *     has exchanged its capture mode; cuCtxSynchronize always does;
 *   - attributes that the driver writes as int are written as four bytes;
 *   - the legacy default stream and the blocking streams of a GPU wait for one another;
 *   - host memory is registered for one GPU unless the flags say PORTABLE, unknown flags are refused, and memory that is mapped
 *     for reading only needs the flag READ_ONLY.
 *
 * What a driver does only on some machines is switched on one by one, or all together by FAKE_CUDA_UNKIND; in that case 0
 * switches one off again:
 *
 *   FAKE_CUDA_SHARED_BLOCKS       allocations of up to 1 MiB share blocks of 2 MiB, each of which has one handle. Base and size
 *                                 at whoever opens the handle are the block's
 *   FAKE_CUDA_IPC_SAME_UID        a legacy handle cannot be opened by a process of another uid
 *   FAKE_CUDA_NO_IPC              no legacy handle can be opened, as with MIG
 *   FAKE_CUDA_NO_REEXPORT         chunks that were imported cannot be exported again
 *   FAKE_CUDA_POINTER_CONTEXT     queries about addresses fail with INVALID_CONTEXT on a thread without a context
 *   FAKE_CUDA_IPC_SAME_PID_NS     a legacy handle cannot be opened in another PID namespace
 *   FAKE_CUDA_SLOW_INIT           cuInit takes 200 ms and 20 descriptors, and a GPU's context 100 ms and 10
 *   FAKE_CUDA_FREE_WAITS          cuMemFree, cuIpcCloseMemHandle, cuMemHostUnregister and cuMemUnmap wait for all work of the
 *                                 GPU
 *   FAKE_CUDA_SLOW_CALLBACKS      a stream stands still for 2 ms before it calls a host function
 *   FAKE_CUDA_SLOW_REGISTER       cuMemHostRegister takes 1 ms, and 1 ms more for each 16 MiB
 *   FAKE_CUDA_REGISTER_REFUSED    every third cuMemHostRegister fails with OUT_OF_MEMORY
 *   FAKE_CUDA_UNPINNED_BLOCKS     an asynchronous copy from or to host memory that is not registered returns when it has ended
 *   FAKE_CUDA_DIRTY               new memory is not zero, but shows bytes of others
 *
 * Environment variables, with their defaults:
 *
 *   CUDA_VISIBLE_DEVICES          as for the driver: which GPUs the process sees, and in which order, by number or UUID
 *   FAKE_CUDA_GPUS (2)            number of GPUs
 *   FAKE_CUDA_MIB (1024)          memory of each
 *   FAKE_CUDA_SOCKETS             number of NUMA nodes, to which the GPUs belong in their order; if not set, the driver knows
 *                                 of none
 *   FAKE_CUDA_VERSION (13000)     version of the driver
 *   FAKE_CUDA_INIT (0)            result of cuInit
 *   FAKE_CUDA_INIT_TIMES          if set, the result of as many calls; later ones succeed
 *   FAKE_CUDA_MIG                 if set, the GPUs are parts of GPUs (MIG), by their names
 *   FAKE_CUDA_NO_PEER             if set, the GPUs have no peer access
 *   FAKE_CUDA_STAGED              a file that gets a byte for each copy that goes through host memory because a GPU may not
 *                                 reach the other's memory
 *   FAKE_CUDA_NO_VMM              if set, the GPUs have no virtual memory management
 *   FAKE_CUDA_NO_FD_IMPORT        if set, no chunk can be imported by its fd
 *   FAKE_CUDA_COPY_US (0)         duration of each copy, at least
 *   FAKE_CUDA_TURNS               the beginning of names of files, one for each GPU: contexts of several processes then take
 *                                 turns on a GPU, and a stream of one waits until no work of another one runs, a host function
 *                                 included. A real GPU changes from one to the other after some milliseconds
 *   FAKE_CUDA_BREAK               a file; once it exists, all contexts of the process have failed for ever, as after an access
 *                                 to a wrong address: queued work is not done, and calls return ILLEGAL_ADDRESS. Contexts that
 *                                 are retained when all were released and the file is gone work
 *   FAKE_CUDA_BREAK_ONLY          the number of the only GPU whose contexts break; what is queued there is done all the same
 *   FAKE_CUDA_TRACE               a file that gets a line for each call: process, thread, name of the function, bytes
 *                                 of a copy
 *   FAKE_CUDA_CONTEXT_MIB (256)   memory that a context takes, beside FAKE_CUDA_MIB
 *   FAKE_CUDA_CONTEXTS_MEET       a number: a context is created when so many are being created at once
 *   FAKE_CUDA_COPIES_MEET         a number: a copy from one GPU to another runs when so many are under way at once. In both
 *                                 cases a call or copy that has waited for 10 s in vain goes on, and the trace gets "alone"
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define FAKE_MAX_GPUS 8
#define FAKE_GRANULE ((size_t)2 << 20)

struct fake_gpu {       /* one that the process sees */
    int number;         /* of the machine, the same in all processes */
    size_t total, used; /* bytes; used by this process */
    unsigned retained;  /* of its primary context */
    unsigned peers;     /* bit i: its context may reach allocations of GPU i (cuCtxEnablePeerAccess) */
};

extern struct fake_gpu fake_gpu[FAKE_MAX_GPUS];
extern int fake_gpus;
extern pthread_mutex_t fake_mutex; /* protects all tables */

__attribute__((visibility("default"))) long fake_setting(const char *name, long fallback);
__attribute__((visibility("default"))) bool fake_unkind(const char *name); /* whether a switch of the table above is on */
bool fake_call(const char *name); /* notes a call of the program in FAKE_CUDA_TRACE. False: a host function may not call */
bool fake_call_of(const char *name, size_t bytes); /* of a copy of so many bytes */
CUresult fake_broken(void); /* the error of every call, once the contexts have failed (FAKE_CUDA_BREAK) */
void fake_take_us(long us);
struct fake_meeting {
    pthread_mutex_t mutex;
    pthread_cond_t came;
    long waiting, met; /* met: how often all have come */
    bool missed;       /* somebody has waited in vain, so nobody waits any more */
};
#define FAKE_MEETING                                                     \
    {                                                                    \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, false \
    }
void fake_meet(struct fake_meeting *meeting, const char *setting); /* waits for the others of FAKE_CUDA_..._MEET */
void fake_await_kernels(CUdevice device); /* what a call does that waits for all work of a GPU; FAKE_CUDA_FREE_WAITS */
CUdevice fake_current(void);              /* the GPU of the thread's context, or -1 */
bool fake_has_context(CUdevice device);
CUdevice fake_numbered(int number); /* -1: the process does not see it */

/* Returns the address at which the fake reads and writes [address, address + bytes) of device memory. NULL: the range is not
 * device memory throughout, or is not mapped throughout. */
__attribute__((visibility("default"))) void *fake_cuda_reach(CUdeviceptr address, size_t bytes);
/* Returns how many bytes of memory of the machine's GPU with that number this process uses for allocations and its context
 * (FAKE_CUDA_CONTEXT_MIB). */
__attribute__((visibility("default"))) size_t fake_cuda_held(int number);
/* From now on events of this process have occurred before the work in front of them is done, which no driver does: it shows
 * which tests depend on the order. No variable, because the threads of a library read them meanwhile. */
__attribute__((visibility("default"))) void fake_events_early(void);
/* From now on that function fails in this process: cuPointerGetAttribute, cuMemImportFromShareableHandle or cuEventRecord.
 * result 0: no longer. */
__attribute__((visibility("default"))) void fake_refuse(const char *function, int result);
CUresult fake_refused(const char *function);
bool fake_is_unsafe(void); /* whether the thread may not wait or allocate, because a stream is being captured */
bool fake_is_device(CUdeviceptr address);
bool fake_reaches(CUdevice device, CUdeviceptr address); /* whether that GPU may use the memory at the address itself */
bool fake_host_registered(const void *address, size_t bytes);

#endif
