/* GPU memory of another process, mapped by the fds of VMM chunks or by a legacy handle. A handle is opened
 * once in a process, however many users it has, because drivers differ in what a second opening returns and
 * in what one of two closings takes away. A handle is identified by its 64 bytes, which name one allocation
 * for ever; an address can be reused. Any thread.
 */
#ifndef BACKENDS_CUDA_SHARE_H
#define BACKENDS_CUDA_SHARE_H

#include <stdint.h>

#include "backends/common/cuda_driver.h"
#include "backends/common/ring.h"

/* A range of addresses in which chunks are mapped one after the other. */
struct cuda_range {
    CUdeviceptr base;
    size_t bytes; /* 0: nothing is reserved */
    const uint64_t *chunk_bytes;
    uint32_t n_mapped;
};


/* As cuda_failed, with a sentence of the form "GPU-... (NVIDIA H200): what: the driver's text". */
enum rdt_status cuda_gpu_failed(const struct cuda_driver *driver, const struct cuda_gpu *gpu, CUresult result,
                                struct rdt_error *err, const char *what);

/* Maps exported chunks of a GPU for reading and writing. The GPU's context is current in the thread. The fds
 * stay the caller's; chunk_bytes is borrowed until the range is unmapped. INVALID: a fd is not of such
 * memory, is of another GPU, or is shorter than its chunk. After an error nothing stays mapped. */
enum rdt_status cuda_range_map(struct cuda_driver *driver, const struct cuda_gpu *gpu, const int *fds,
                               const uint64_t *chunk_bytes, uint32_t n, size_t granule, struct cuda_range *range_p,
                               struct rdt_error *err);
CUresult cuda_range_reserve(struct cuda_driver *driver, size_t bytes, size_t granule, const uint64_t *chunk_bytes,
                            struct cuda_range *range_p);
CUresult cuda_range_add(struct cuda_driver *driver, struct cuda_range *range, CUmemGenericAllocationHandle handle);
CUresult cuda_range_allow(struct cuda_driver *driver, const struct cuda_range *range, CUdevice device);
void cuda_range_unmap(struct cuda_driver *driver, struct cuda_range *range); /* also one that is only partly mapped */
void cuda_range_clear(struct cuda_driver *driver, struct cuda_range *range); /* as unmap, but the addresses stay reserved */

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

/* Opens a handle, or adds a user to one that is open. The GPU's context is current in the thread. */
enum rdt_status cuda_handle_open(struct cuda_handles *handles, struct cuda_driver *driver, const struct cuda_gpu *gpu,
                                 const void *handle, size_t handle_bytes, struct cuda_opened **opened_p, struct rdt_error *err);
void cuda_handle_close(struct cuda_handles *handles, struct cuda_driver *driver, struct cuda_opened *opened);

#endif
