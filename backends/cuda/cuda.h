/* The memory kind "cuda": memory of NVIDIA's GPUs. What its files share.
 *
 *   cuda.c     the table, the GPUs, pinned host memory
 *   memory.c   blocks: allocated by the driver's virtual memory management (VMM), or imported
 *   overhead.c how much device memory a context takes
 *   copy.c     copies; each GPU has streams, and a thread for the work that copy_start must not do itself
 *
 * Opening takes no memory of a GPU. The first allocation or import on one retains its primary context, which
 * stays until the kind is closed; no other context is made. Nothing of a client's memory stays open beyond
 * its blocks.
 */
#ifndef CUDA_H_RDT
#define CUDA_H_RDT

#include <pthread.h>
#include <stdbool.h>

#include "backends/cuda/overhead.h"
#include "backends/common/cuda_share.h"
#include "rdt_backend.h"

enum cuda_way { WAY_WITHIN, WAY_UP, WAY_DOWN, WAY_ACROSS, WAY_ZERO, N_WAYS }; /* device to device, host to device, ... */

struct cuda_card { /* a GPU as this kind uses it */
    struct cuda *cuda;
    struct cuda_gpu *gpu;
    bool vmm, rdma;
    pthread_mutex_t opening; /* held while its context is made and measured */
    _Atomic uint64_t overhead_bytes; /* device memory that the context takes; USAGE_UNKNOWN: it cannot be determined */
    size_t granule;
    pthread_mutex_t mutex; /* protects all fields below */
    pthread_cond_t more;
    CUstream stream[N_WAYS]; /* made when first used */
    pthread_t thread;        /* started when first used */
    bool started, end;
    struct rdt_memory_copy *first, **last; /* queue of the thread, linked by priv[2] */
};

struct cuda {
    struct rdt_host host;
    struct cuda_driver *driver;
    struct cuda_card *cards; /* [driver->n_gpus], in its order */
    struct cuda_handles handles;
};

struct cuda_block { /* block->priv */
    struct cuda_card *card;
    CUdeviceptr base; /* of the mapped range, or of the allocation */
    uint64_t offset;  /* of the block in it */
    struct cuda_range range; /* VMM */
    uint32_t n_chunks;
    int *fds; /* [n_chunks]: by which other processes map it */
    uint64_t *chunk_bytes;
    struct cuda_opened *opened; /* an imported legacy handle */
    bool allocated;        /* by cuMemAlloc, where there is no VMM */
    bool has_handle;
    CUipcMemHandle handle;   /* of that allocation, if has_handle */
    pthread_mutex_t mutex;   /* protects: */
    uint64_t peers;          /* bit i: GPU i may access the range as well */
};

struct cuda_card *cuda_card_of(struct cuda *cuda, const char *uuid, struct rdt_error *err); /* NULL: NOT_FOUND, in err */
enum rdt_status cuda_enter(struct cuda_card *card, struct rdt_error *err);
CUstream cuda_stream(struct cuda_card *card, enum cuda_way way,
                     CUresult *result_p); /* its context must be the thread's current one */

/* memory.c */
enum rdt_status cuda_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err);
enum rdt_status cuda_import(void *memory, const char *device, const struct rdt_import *import, struct rdt_block *block_p,
                            struct rdt_error *err);
void cuda_free(void *memory, struct rdt_block *block);
enum rdt_status cuda_map(void *memory, struct rdt_block *block, bool warm, struct rdt_error *err);
enum rdt_status cuda_export(void *memory, const struct rdt_block *block, struct rdt_export *export_p, struct rdt_error *err);
uint64_t cuda_round(void *memory, uint64_t bytes);
enum rdt_status cuda_zero(void *memory, struct rdt_block *block, struct rdt_error *err);

/* copy.c */
enum rdt_status cuda_copy_start(void *memory, struct rdt_memory_copy *copy, struct rdt_error *err);
void cuda_copies_end(struct cuda_card *card); /* ends the thread; no copy may be under way */

#endif
