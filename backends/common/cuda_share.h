/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of another process, mapped by the fds of VMM chunks or by a legacy handle. A handle is opened once in a
 * process, however many users it has, because drivers differ in what a second opening returns and in whether the first of
 * two closings already ends the mapping. A handle is identified by its 64 bytes, which name one allocation for ever; an
 * address can be reused. All functions may be called from any thread in which the GPU's context is current.
 */
#ifndef BACKENDS_CUDA_SHARE_H
#define BACKENDS_CUDA_SHARE_H

#include <stdint.h>

#include "backends/common/cuda_driver.h"
#include "backends/common/ring.h"

/* A range of addresses into which chunks are mapped one after the other. */
struct cuda_range {
    CUdeviceptr base;
    size_t bytes;                /* 0: nothing is reserved */
    const uint64_t *chunk_bytes; /* [n_mapped] at least; borrowed */
    uint32_t n_mapped;
};

/* As cuda_failed, with a sentence of the form "GPU-... (NVIDIA H200): what: the driver's text". */
enum rdt_status cuda_gpu_failed(const struct cuda_driver *driver, const struct cuda_gpu *gpu, CUresult result,
                                struct rdt_error *err, const char *what);

/* Maps n exported chunks of a GPU for reading and writing. The caller keeps the fds; chunk_bytes is borrowed until the
 * range is unmapped. INVALID: an fd is not exported GPU memory, is memory of another GPU, or is shorter than its chunk, or
 * a length is not a multiple of `granule`. After an error nothing stays mapped. */
enum rdt_status cuda_range_map(struct cuda_driver *driver, const struct cuda_gpu *gpu, const int *fds,
                               const uint64_t *chunk_bytes, uint32_t n, size_t granule, struct cuda_range *range_p,
                               struct rdt_error *err);

/* The steps of cuda_range_map, for memory that this process allocates: reserve `bytes` of addresses; map the next chunk;
 * let the device read and write the whole range. chunk_bytes is borrowed until the range is unmapped. */
CUresult cuda_range_reserve(struct cuda_driver *driver, size_t bytes, size_t granule, const uint64_t *chunk_bytes,
                            struct cuda_range *range_p);
CUresult cuda_range_add(struct cuda_driver *driver, struct cuda_range *range, CUmemGenericAllocationHandle handle);
CUresult cuda_range_allow(struct cuda_driver *driver, const struct cuda_range *range, CUdevice device);

/* Unmaps the chunks and frees the addresses; the range may be mapped only in part. cuda_range_clear keeps the addresses
 * reserved. */
void cuda_range_unmap(struct cuda_driver *driver, struct cuda_range *range);
void cuda_range_clear(struct cuda_driver *driver, struct cuda_range *range);

/* The legacy handles that a process, or a plug-in, has open. The table in cuda_share.c has exactly these moves:
 *
 *     cuda_handle_open                                 the last cuda_handle_close
 *   ───────────────────► OPENING ── the driver ──► OPEN ───────────────────────► CLOSING ── the driver ──► gone
 *                           │                                                                               ^
 *                           └── the driver refuses it ──────────────────────────────────────────────────────┘
 */
struct cuda_handles {
    pthread_mutex_t mutex;  /* protects the list, the states and the counts of users. Not held in calls of the driver */
    pthread_cond_t changed; /* a handle is no longer OPENING or CLOSING */
    struct ring all;        /* of struct cuda_opened */
};

enum cuda_opened_state { CUDA_OPENING, CUDA_OPEN, CUDA_CLOSING };

struct cuda_opened {
    struct ring ring;
    CUipcMemHandle handle;
    const struct cuda_gpu *gpu;
    CUdeviceptr base;
    size_t bytes;
    unsigned users;
    enum cuda_opened_state state;
};

void cuda_handles_init(struct cuda_handles *handles);

/* Opens a handle, or adds a user to one that is open already. While another thread opens or closes the same one, it waits, or
 * returns AGAIN unless `waits`. INVALID: the driver refuses the handle, or it names memory of another GPU or the middle of an
 * allocation; NO_MEMORY; UNSUPPORTED. */
enum rdt_status cuda_handle_open(struct cuda_handles *handles, struct cuda_driver *driver, const struct cuda_gpu *gpu,
                                 const void *handle, size_t handle_bytes, bool waits, struct cuda_opened **opened_p,
                                 struct rdt_error *err);

/* Removes a user, and closes the handle after its last one: the driver then waits for all kernels that run in the GPU's
 * context. Only who opens the same handle waits meanwhile. */
void cuda_handle_close(struct cuda_handles *handles, struct cuda_driver *driver, struct cuda_opened *opened);

#endif
