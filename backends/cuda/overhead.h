/* How much memory of a GPU this process takes beside its blocks: that of the context, which the driver makes
 * when the GPU is first used, and which takes some hundred megabytes. Only NVML (libnvidia-ml.so.1, part of
 * every driver; loaded at run time) can tell, in one of two ways:
 *
 *   - what it lists for this process, if it knows the process's number (in a PID namespace of its own it does not);
 *   - otherwise, how much more of the GPU is in use after the context was made than before. This is too much if another process has
 *     allocated memory in that moment.
 *
 * CUDA itself cannot tell: cuMemGetInfo needs the context that is to be measured.
 */
#ifndef CUDA_OVERHEAD_H
#define CUDA_OVERHEAD_H

#include <stdint.h>

#define USAGE_UNKNOWN UINT64_MAX

struct gpu_usage { /* of one GPU at one moment */
    uint64_t own, all; /* bytes: of this process, of all processes; or USAGE_UNKNOWN */
};

/* Measures the GPU with that uuid, as NVML and the driver write it. Any thread; takes milliseconds. */
struct gpu_usage gpu_usage_now(const char *uuid);

/* Returns how many bytes this process took between two measurements, or USAGE_UNKNOWN. */
uint64_t gpu_usage_growth(const struct gpu_usage *before, const struct gpu_usage *after);

#endif
