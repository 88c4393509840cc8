/* What the files of librdt-cuda share.
 *
 *   map.c     memory of other processes, mapped here: what librdt calls (rdt_mapper)
 *   export.c  memory of this process, for the daemon
 *   put.c     the calls; order by streams
 *   names.c   names of GPUs; waiting for streams
 *   pool.c    an allocator for other libraries
 */
#ifndef CLIENT_CUDA_GPU_H
#define CLIENT_CUDA_GPU_H

#include <stdatomic.h>

#include "backends/cuda_share.h"
#include "client/cuda/rdt_cuda.h"

#define GRANULE ((size_t)2 << 20)

struct rdt_cuda {
    rdt *conn;
    struct cuda_driver *driver;
};

/* The thread's context while a call of this library is under way. */
struct entered {
    CUcontext before;
};
enum rdt_status enter(struct cuda_driver *driver, struct cuda_gpu *gpu, struct entered *entered, struct rdt_error *err);
void leave(struct cuda_driver *driver, const struct entered *entered);

/* map.c */
extern const struct rdt_mapper cuda_mapper;
void note_own_handle(const CUipcMemHandle *handle, CUdeviceptr base); /* of this process: it cannot open it */

/* export.c */
struct exported { /* a whole allocation, or the chunks that hold a range */
    struct rdt_shared shared;
    void *base;
    int *fds;
    uint64_t *chunk_bytes;
    CUipcMemHandle handle;
};
/* NULL: it is not memory of a GPU. */
struct cuda_gpu *gpu_of(struct cuda_driver *driver, const void *addr);
/* UNSUPPORTED: only a copy helps. */
enum rdt_status export_range(struct cuda_driver *driver, const struct cuda_gpu *gpu, void *addr, size_t bytes, struct exported *exported_p,
                             struct rdt_error *err);
void exported_free(struct exported *exported);

/* pool.c: the handle is about to go. Returns when no allocation uses it any more. */
void pool_forget(const rdt_cuda *cuda);

#endif
