/* GPU memory of another process: by the fds of VMM chunks, or by a legacy handle, of which each is opened once in a process however many
 * use it: what a second opening gives differs between drivers, and so does what one closing of two takes away. A handle is known by its
 * 64 bytes, which name one allocation for ever; an address does not. Any thread.
 */
#ifndef BACKENDS_CUDA_SHARE_H
#define BACKENDS_CUDA_SHARE_H

#include <stdint.h>

#include "backends/common/cuda_driver.h"
#include "backends/common/ring.h"

/* Addresses in which chunks are mapped one behind another. */
struct cuda_range {
    CUdeviceptr base;
    size_t bytes; /* 0: nothing is reserved */
    const uint64_t *chunk_bytes;
    uint32_t n_mapped;
};


/* "GPU-... (NVIDIA H200): what: the driver's words". */
enum rdt_status cuda_gpu_failed(const struct cuda_driver *driver, const struct cuda_gpu *gpu, CUresult result, struct rdt_error *err,
                                const char *what);

/* Maps exported chunks of that GPU (whose context is the thread's) to be read and written. The fds stay the caller's; chunk_bytes is borrowed
 * until the range is unmapped. INVALID: a fd that is none of such memory, of another GPU, or shorter. On an error nothing is left. */
enum rdt_status cuda_range_map(struct cuda_driver *driver, const struct cuda_gpu *gpu, const int *fds, const uint64_t *chunk_bytes,
                               uint32_t n, size_t granule, struct cuda_range *range_p, struct rdt_error *err);
CUresult cuda_range_reserve(struct cuda_driver *driver, size_t bytes, size_t granule, const uint64_t *chunk_bytes,
                            struct cuda_range *range_p);
CUresult cuda_range_add(struct cuda_driver *driver, struct cuda_range *range, CUmemGenericAllocationHandle handle);
CUresult cuda_range_allow(struct cuda_driver *driver, const struct cuda_range *range, CUdevice device);
void cuda_range_unmap(struct cuda_driver *driver, struct cuda_range *range); /* half made, too */
void cuda_range_clear(struct cuda_driver *driver, struct cuda_range *range); /* the same, but the addresses stay reserved */

struct cuda_handles { /* the open ones of a process, or of a plug-in */
    pthread_mutex_t mutex;
    struct ring all;
};

struct cuda_opened {
    struct ring ring;
    CUipcMemHandle handle;
    const struct cuda_gpu *gpu;
    CUdeviceptr base;
    size_t bytes;
    unsigned users;
};

void cuda_handles_init(struct cuda_handles *handles);

/* The GPU's context is the thread's. */
enum rdt_status cuda_handle_open(struct cuda_handles *handles, struct cuda_driver *driver, const struct cuda_gpu *gpu, const void *handle,
                                 size_t handle_bytes, struct cuda_opened **opened_p, struct rdt_error *err);
void cuda_handle_close(struct cuda_handles *handles, struct cuda_driver *driver, struct cuda_opened *opened);

#endif
