/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the fake driver (tests/fake_cuda) and the fake NCCL (tests/fake_nccl) into a test's own process or into a daemon.
 * No test that uses them says anything about a real GPU. */
#ifndef TESTS_SUPPORT_FAKE_GPU_H
#define TESTS_SUPPORT_FAKE_GPU_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_GPU_0 "GPU-66616b65-0000-0000-0000-000000000001"
#define FAKE_GPU_1 "GPU-66616b65-0000-0000-0000-000000000002"

/* Was built with cuda.h at hand; else the test is skipped. */
bool fake_gpu_built(void);

/* From now on whoever in this process loads libcuda.so.1 or libnccl.so.2 gets the fake. */
void *fake_gpu_load(void); /* the fake driver */
void fake_nccl_load(void);

/* Whether that switch of fake_cuda.h is on in this process's environment, which the daemons of a test inherit. */
bool fake_gpu_is_unkind(const char *name);

/* Counts the calls of the driver since fake_gpu_trace_clear: by that process, and by that thread of it (0: any), of that
 * function without its version (NULL: any). FAKE_CUDA_TRACE names the file, for this process and the daemons that it starts. */
unsigned fake_gpu_calls(int pid, int thread, const char *function);
unsigned fake_gpu_calls_before(int pid, const char *function, const char *first); /* until that process calls `first` */
uint64_t fake_gpu_copied(int pid);                                                /* the bytes of the copies among them */
/* Stores the threads of that process that have called the function, at most `max`, and returns how many there are. */
unsigned fake_gpu_threads(int pid, const char *function, int *threads_p, unsigned max);
void fake_gpu_trace_clear(void);

/* "LD_LIBRARY_PATH=...", for a daemon's environment; static storage. */
const char *fake_gpu_env(void);
const char *fake_nccl_env(void); /* and the fake NCCL */
const char *stub_cuda_env(void); /* a driver that is only the toolkit's stub */

#endif
