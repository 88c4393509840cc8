/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory of a GPU this process uses beside its blocks: that of the context, some hundred megabytes, which
 * the driver allocates when the GPU is first used. Only NVML can tell (libnvidia-ml.so.1, a part of every driver,
 * loaded at run time), in one of two ways:
 *
 *   - what NVML lists for this process; it does not if the process has a PID namespace of its own;
 *   - otherwise, how much more of the GPU's memory is in use after the context was created than before. This is too
 *     much if another process allocated memory meanwhile.
 *
 * CUDA itself cannot tell: cuMemGetInfo needs the context that is to be measured.
 */
#ifndef CUDA_OVERHEAD_H
#define CUDA_OVERHEAD_H

#include <stdint.h>

#define USAGE_UNKNOWN UINT64_MAX

struct gpu_usage {     /* the memory in use of one GPU at one moment */
    uint64_t own, all; /* bytes: of this process, of all processes; or USAGE_UNKNOWN */
};

/* Measures the GPU with that uuid, as NVML and the driver write it. Any thread; takes milliseconds. */
struct gpu_usage gpu_usage_now(const char *uuid);

/* Returns how many bytes this process took between two measurements, or USAGE_UNKNOWN. */
uint64_t gpu_usage_growth(const struct gpu_usage *before, const struct gpu_usage *after);

#endif
