/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the programs that measure GPU memory: rounds, copies by the driver alone, and rows. */
#ifndef TESTS_BENCH_BENCH_GPU_H
#define TESTS_BENCH_BENCH_GPU_H

#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/bench.h"
#include "tests/support/fakes/fake_gpu.h"
#include "tests/support/gpu.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)
#define ROUNDS 15

/* Three sizes; on the fakes, where nothing is measured, two small ones. */
static inline const size_t *bench_gpu_sizes(size_t *n_p)
{
    static const size_t real[] = {MIB, 64 * MIB, 256 * MIB}, fake[] = {MIB, 8 * MIB};

    *n_p = gpu_is_real() ? 3 : 2;
    return gpu_is_real() ? real : fake;
}

/* Seconds of one plain copy, which lies within the GPU in use or has one end there. */
static inline double bench_gpu_plain(void *to, const void *from, size_t bytes)
{
    int64_t since = now_ns();

    gpu_write(to, from, bytes);
    return (double)(now_ns() - since) / 1e9;
}

/* reference: 0 if there is none. */
static inline void bench_gpu_row(const char *what, size_t bytes, double seconds, double reference)
{
    (void)printf("%-44s %6zu MiB %10.1f us %8.2f GB/s", what, bytes / MIB, seconds * 1e6, (double)bytes / seconds / 1e9);
    if (reference > 0)
        (void)printf("   beside %8.2f GB/s   ratio %.2f", (double)bytes / reference / 1e9, reference / seconds);
    (void)puts("");
    (void)fflush(stdout);
}

/* The first thing that such a program does; exits where there is no GPU. */
static inline void bench_gpu_begin(void)
{
    const char *why;

    if (!gpu_is_real()) { /* such a run only tests the program */
        (void)puts("on the FAKE driver: these figures mean nothing");
        (void)fake_gpu_load();
    }
    if (!gpu_there(&why)) {
        (void)fprintf(stderr, "%s\n", why);
        exit(2);
    }
}

#endif
