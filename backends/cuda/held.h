/* What of a GPU's memory this process holds beside its blocks: a context, which the driver makes when the GPU is first used, and which
 * takes some hundred megabytes. Only NVML (libnvidia-ml.so.1, of every driver; loaded at run time) tells, in one of two ways:
 *
 *   - what it lists for this process, where it knows its number (in a PID namespace of its own it does not);
 *   - else how much more of the GPU is in use after the context was made than before, which is too much if somebody else has taken some in
 *     that moment.
 *
 * CUDA itself cannot tell: cuMemGetInfo needs the context that is to be measured.
 */
#ifndef CUDA_HELD_H
#define CUDA_HELD_H

#include <stdint.h>

#define HELD_UNKNOWN UINT64_MAX

struct held { /* one GPU, at one moment */
    uint64_t own, all; /* bytes: of this process, of everybody; HELD_UNKNOWN */
};

/* Any thread; takes milliseconds. uuid: as NVML and the driver write it. */
struct held held_now(const char *uuid);

/* What came between, or HELD_UNKNOWN. */
uint64_t held_between(const struct held *before, const struct held *after);

#endif
