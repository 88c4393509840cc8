/* librdt-cuda: GPU memory for users of librdt (rdt.h). It links no CUDA: NVIDIA's driver is loaded when the first handle is opened.
 *
 *     rdt_cuda_open(c, &gpu, &err);
 *     rdt_cuda_put(gpu, &tensor, 1, &options, &ref, &err);     ...     o.memory = "cuda";  rdt_fetch(c, &ref, 1, &o, &object, &err);
 *
 * From rdt_cuda_open on the connection maps GPU memory: fetches bring tensors on GPUs (rdt_object_place says where), rdt_fetch_options has
 * `memory` "cuda" and `device`, and targets may be GPU memory that the daemon knows (rdt_cuda_alloc, rdt_cuda_offer). Devices are named by
 * UUID ("GPU-..."), as nvidia-smi -L shows them. Pointers are CUDA's own, streams CUstream or cudaStream_t. Any thread; the thread's current
 * context is as before when a call returns. Primary contexts only.
 */
#ifndef RDT_CUDA_H
#define RDT_CUDA_H

#include "rdt.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rdt_cuda rdt_cuda;

/* UNSUPPORTED: no driver, a stub of one, no GPU: the sentence says which. EXISTS: the connection has one. The connection is borrowed. */
enum rdt_status rdt_cuda_open(rdt *rdt, rdt_cuda **cuda_p, struct rdt_error *err);

/* Before rdt_close, when no other call of it is under way. What its stream has not come to yet never will be ready: its waiters get OWNER_DIED
 * with the session's end; the stream may come later, and nobody looks. Waits for streams that still copy what was COPIED. NULL is fine. */
void rdt_cuda_close(rdt_cuda *cuda);

/* Zeroed memory of the daemon's on that GPU (NULL: the only one there is), mapped; put without a copy; ends by rdt_dealloc. Errors:
 * UNSUPPORTED (the daemon has no such GPU), INVALID, NO_MEMORY, LIMIT. */
enum rdt_status rdt_cuda_alloc(rdt_cuda *cuda, const char *device, size_t bytes, void **addr_p, struct rdt_error *err);

enum rdt_cuda_how {
    RDT_CUDA_HOST = 1,   /* it is not GPU memory: as rdt_put takes it */
    RDT_CUDA_KNOWN = 2,  /* of rdt_cuda_alloc, or offered before, by another tensor or put too: no copy */
    RDT_CUDA_CHUNKS = 3, /* the allocation's VMM chunks (also PyTorch's expandable segments) were exported by fd: no copy */
    RDT_CUDA_HANDLE = 4, /* a legacy handle (cudaMalloc): no copy */
    RDT_CUDA_COPIED = 5, /* it cannot be exported (cudaMallocAsync, VMM memory made without): copied on the GPU into daemon memory */
};

struct rdt_cuda_put_options {
    size_t struct_size;
    const struct rdt_put_options *put; /* NULL: defaults */
    /* has_stream: what writes the GPU tensors stands in this stream (NULL is a stream, too). The put returns at once, and the object is
     * ready when all that stood there then has finished: nobody reads it before. Without: the bytes are there. */
    bool has_stream;
    void *stream;
    enum rdt_cuda_how *how; /* NULL, or [count]: how each tensor was taken */
    /* What the daemon does not know is COPIED, also what could be exported: its readers see no neighbours, and the caller may free or write it
     * as soon as the stream has come there (at once, without a stream). */
    bool copy;
};

/* rdt_put of tensors in host and GPU memory, within the timeout_ns of its options, whatever the daemon and the GPU do meanwhile: what it has
 * to make known or to copy first takes of that time, and no other call waits for it but puts of the same allocation. A GPU tensor's allocation is exported whole: the readers of this uid and tenant that map it see
 * its neighbours; memory that was not COPIED must stay until the object is gone (rdt_free, rdt_wait_freed). With has_stream and host
 * memory that the daemon does not know: INVALID. Errors: those of rdt_put; SYSTEM with the driver's words. */
enum rdt_status rdt_cuda_put(rdt_cuda *cuda, const struct rdt_tensor *tensors, size_t count, const struct rdt_cuda_put_options *options,
                             struct rdt_ref *ref_p, struct rdt_error *err);

/* Makes the caller's GPU memory known to the daemon, whole allocations of it, until rdt_dealloc(*base_p): for targets of fetches, and
 * for what is put again and again. UNSUPPORTED: it cannot be exported. */
enum rdt_status rdt_cuda_offer(rdt_cuda *cuda, void *addr, size_t bytes, void **base_p, enum rdt_cuda_how *how_p, struct rdt_error *err);

/* ---- names and streams ---- */

/* The UUID of a GPU by its ordinal in this process (CUDA_VISIBLE_DEVICES counts), as CUDA's runtime and torch number them; and back. The text
 * is valid for ever. NOT_FOUND names those that there are. */
enum rdt_status rdt_cuda_uuid(rdt_cuda *cuda, int ordinal, const char **uuid_p, struct rdt_error *err);
enum rdt_status rdt_cuda_ordinal(rdt_cuda *cuda, const char *uuid, int *ordinal_p, struct rdt_error *err);

/* Where an address of this process is: the ordinal, or -1 if it is no memory of a GPU. */
enum rdt_status rdt_cuda_where(rdt_cuda *cuda, const void *addr, int *ordinal_p, struct rdt_error *err);

/* Copies GPU memory to the host's, and waits. The bytes are there already. */
enum rdt_status rdt_cuda_read(rdt_cuda *cuda, const void *from, void *to, size_t bytes, struct rdt_error *err);

/* Returns when all that stands in the stream of that GPU has finished. The stream keeps no deadline: nor does this. SYSTEM: it failed. */
enum rdt_status rdt_cuda_wait_stream(rdt_cuda *cuda, int ordinal, void *stream, struct rdt_error *err);

/* The same for all streams of the GPU's primary context in this process: before memory is given back that work of any stream may use, as
 * cudaFree does. A GPU that this process has not used costs nothing. */
enum rdt_status rdt_cuda_wait_all(rdt_cuda *cuda, int ordinal, struct rdt_error *err);

/* ---- an allocator for others ----
 * malloc and free of the daemon's memory, of the signature that torch.cuda.memory.CUDAPluggableAllocator and RMM take: what they make of it is
 * put without a copy (KNOWN). One connection of the process serves it at a time. */

/* From now on it is this connection's memory; NULL: nobody's, and every allocation fails. What was taken before stays with its own
 * connection. rdt_cuda_close forgets both: the blocks go with rdt_close. */
void rdt_cuda_pool_use(rdt_cuda *cuda);

/* Zeroed, at least `bytes`, on the GPU with that ordinal; NULL: rdt_cuda_pool_info says why. Any thread; one round trip. The stream does not
 * matter: the memory is there, and idle. */
void *rdt_cuda_pool_alloc(ptrdiff_t bytes, int device, void *stream);

/* Waits for the GPU, as cudaFree does, and gives the block back. Objects that were put from it keep the memory. NULL is fine. A block whose
 * connection was closed has only an address left, which is no other block's until this. */
void rdt_cuda_pool_free(void *addr, ptrdiff_t bytes, int device, void *stream);

struct rdt_cuda_pool_info {
    size_t blocks, bytes; /* that are out */
    size_t failures;      /* so far */
    struct rdt_error last; /* of the latest of them; status 0: none */
};
void rdt_cuda_pool_info(struct rdt_cuda_pool_info *info_p);

#ifdef __cplusplus
}
#endif
#endif
