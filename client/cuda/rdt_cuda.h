/* SPDX-License-Identifier: Apache-2.0 */
/* librdt-cuda: GPU memory for users of librdt (rdt.h). It links no CUDA; the first rdt_cuda_open loads NVIDIA's driver.
 *
 *     rdt_cuda_open(c, &gpu, &err);
 *     rdt_cuda_put(gpu, &tensor, 1, &options, &ref, &err);
 *     ...
 *     fetch_options.memory = "cuda";
 *     rdt_fetch(c, &ref, 1, &fetch_options, &object, &err);
 *
 * From rdt_cuda_open on, the connection maps GPU memory: fetches deliver tensors on GPUs (rdt_object_place says where),
 * rdt_fetch_options has `memory` "cuda" and `device`, and targets of fetches may be GPU memory that the daemon knows
 * (rdt_cuda_alloc, rdt_cuda_offer). Plans (rdt_plan.h) and commits (rdt_follow.h) then write memory of GPUs, too, through
 * 16 MiB of pinned host memory for each GPU, which stay until a connection with GPU memory is closed.
 *
 * Devices are named by UUID ("GPU-..."), as nvidia-smi -L shows them. Pointers are CUDA's own, and a stream is a CUstream or
 * a cudaStream_t. Any thread may make any call; when a call returns, the context that was current in the thread is current
 * again. The library uses primary contexts only.
 *
 * Errors of every function: INVALID (a NULL argument), NO_MEMORY, and SYSTEM with the driver's text. Each function lists its
 * further errors.
 */
#ifndef RDT_CUDA_H
#define RDT_CUDA_H

#include "rdt.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rdt_cuda rdt_cuda;
struct rdt_value; /* rdt_many.h */

/* Opens GPU memory for a connection, which is borrowed until rdt_cuda_close. UNSUPPORTED: there is no driver, only a stub of
 * one, or no GPU; the sentence says which. EXISTS: the connection already has such a handle. */
enum rdt_status rdt_cuda_open(rdt *rdt, rdt_cuda **cuda_p, struct rdt_error *err);

/* Closes the handle. Must be called before rdt_close, when no other call uses the handle. Waits until no stream copies
 * tensors of a put any more (RDT_CUDA_COPIED), and until the driver has let go of what the handle used, at most 10 s beside a
 * GPU that hangs: then a thread of the library goes on, and rdt_close leaves the session until that has ended. An object whose
 * stream has not yet reached the put will never be ready: fetches that wait for it fail with OWNER_DIED when the session ends.
 * cuda may be NULL. In a forked child, where CUDA does not work, every other call on the handle returns FORKED, and this one
 * frees the child's copy. */
void rdt_cuda_close(rdt_cuda *cuda);

/* Allocates zeroed memory of the daemon on that GPU and maps it; device NULL: the only GPU of this process or of the daemon.
 * A put takes tensors in it without a copy. rdt_dealloc releases it. Errors: UNSUPPORTED (the daemon has no such GPU),
 * INVALID, NO_MEMORY, LIMIT. */
enum rdt_status rdt_cuda_alloc(rdt_cuda *cuda, const char *device, size_t bytes, void **addr_p, struct rdt_error *err);

enum rdt_cuda_how {
    RDT_CUDA_HOST = 1,    /* it is not GPU memory: handled as by rdt_put */
    RDT_CUDA_KNOWN = 2,   /* no copy: from rdt_cuda_alloc, or offered before, perhaps for another tensor or put */
    RDT_CUDA_CHUNKS = 3,  /* no copy: the VMM chunks of the allocation were exported (also PyTorch's expandable segments) */
    RDT_CUDA_HANDLE = 4,  /* no copy: a legacy handle (cudaMalloc) was exported */
    RDT_CUDA_COPIED = 5,  /* copied on the GPU into daemon memory, because it cannot be exported (cudaMallocAsync, VMM memory
                          * that was created without a handle type, small blocks of cudaMalloc, which share a handle with
                          * others), because the daemon cannot map it, or because of the option `copy` */
    RDT_CUDA_TO_HOST = 6, /* copied to host memory of the daemon, because of the option `to_host` */
};

struct rdt_cuda_put_options {
    size_t struct_size;
    const struct rdt_put_options *put; /* NULL: defaults */
    /* has_stream: the work that writes the GPU tensors is queued in `stream`; NULL is a stream, too. The put returns at once,
     * and the object becomes ready, and readable by others, when all work that was queued in the stream at the put has
     * finished. A default stream (NULL, legacy, per thread) means that of each GPU on which a tensor lies. Without has_stream
     * the tensors have already been written. */
    bool has_stream;
    void *stream;
    enum rdt_cuda_how *how; /* NULL, or [count]: receives how each tensor was put */
    /* Copies GPU tensors that the daemon does not know, even those whose memory could be exported. Readers then do not see the
     * memory beside the tensor, and the caller may free or write the tensor as soon as the stream has made the copy (without a
     * stream: when the put returns). */
    bool copy;
    /* Copies GPU tensors to host memory of the daemon, by one copy in the stream, even those whose memory the daemon knows:
     * for snapshots where the GPU has no room for another model. The memory is pinned, and charged as host memory. Once no
     * object is there any more, it serves the connection's next put with to_host, until rdt_cuda_close. Readers fetch the
     * object as any other in host memory. The caller may free or write a tensor when the stream has made the copy. */
    bool to_host;
};

/* Puts tensors in host and GPU memory, as rdt_put does. The call ends within timeout_ns of its put options, whatever the
 * daemon and the GPU do meanwhile; exporting and copying count towards that time. Without a
 * time-out, what it asks the daemon has the default of rdt.h, and work in a stream has no limit. No other call waits for
 * it, except puts of the same allocation.
 *
 * The allocation of a GPU tensor is exported as a whole, so readers of this uid and tenant that map it can also read the
 * memory beside the tensor. Memory that was not COPIED must stay until the object has ended (rdt_free, rdt_wait_freed).
 *
 * A snapshot of tensors that the library copies is copied once more by the daemon. With RDT_PUT_UNSEALED it is not, if the
 * library copies all tensors and only the owner may see the object: the library gives its mapping up, or with to_host writes
 * there again when no object is left, and the object is IMMUTABLE (rdt_put_flags.h).
 *
 * Errors: those of rdt_put; INVALID also if has_stream is set and a tensor lies in host memory that the daemon does not
 * know. */
enum rdt_status rdt_cuda_put(rdt_cuda *cuda, const struct rdt_tensor *tensors, size_t count,
                             const struct rdt_cuda_put_options *options, struct rdt_ref *ref_p, struct rdt_error *err);

/* Puts values [count], each as an object of its own in host memory, as rdt_put_many of snapshots (rdt_many.h): the blocks of a
 * KV cache on a GPU that go to the cache of the daemon (RDT_PUT_EVICTABLE). Tensors on GPUs have been written. They are copied
 * to pinned host memory of the daemon, 16 MiB at a time, by one copy for each that touches no other and one wait for all, while
 * the daemon takes those before; it does not use the GPU. Nothing of it needs rdt_cuda_offer. refs_p and statuses_p are as
 * there; with statuses_p NULL and REPLACE, nothing that was put is freed, because what it has replaced is gone. timeout_ns is
 * for each message, and for each such copy; once one copy has timed out, the values that are left are TIMED_OUT, too, and the
 * GPU may read tensors of the copy for a moment. Errors: those of rdt_put_many; INVALID (PENDING). */
enum rdt_status rdt_cuda_put_many(rdt_cuda *cuda, const struct rdt_value *values, size_t count,
                                  const struct rdt_put_options *options, struct rdt_ref *refs_p, enum rdt_status *statuses_p,
                                  struct rdt_error *err);

/* Makes GPU memory of the caller known to the daemon, as whole allocations, until rdt_dealloc(*base_p): for targets of
 * fetches, and for memory that is put repeatedly. UNSUPPORTED: the memory cannot be exported, or the daemon cannot map it. */
enum rdt_status rdt_cuda_offer(rdt_cuda *cuda, void *addr, size_t bytes, void **base_p, enum rdt_cuda_how *how_p,
                               struct rdt_error *err);

/* rdt_cuda_offer for the targets of a fetch, tensors [count]: makes known what of them lies on GPUs and the daemon does not
 * know yet. The driver is asked once about each allocation, and tensors that share one, or chunks, share what is offered.
 * bases [count] receives the start of each range that was offered, for rdt_dealloc, and *n_bases_p how many there are.
 * how [count] receives what each tensor is: HOST (also one without elements), KNOWN, CHUNKS, HANDLE, or COPIED: it cannot be
 * made known, so the fetch needs another target (rdt_cuda_alloc, rdt_cuda_deliver). After an error nothing stays offered. */
enum rdt_status rdt_cuda_offer_tensors(rdt_cuda *cuda, const struct rdt_tensor *tensors, size_t count, void **bases,
                                       size_t *n_bases_p, enum rdt_cuda_how *how, struct rdt_error *err);

/* Queues in `stream` a copy from a buffer of rdt_cuda_alloc to memory of the caller on the same GPU or another one, and frees
 * the buffer when the stream has made the copy. For targets of fetches that rdt_cuda_offer cannot make known to the daemon:
 * fetch into the buffer, then call this; work that the caller queues in the stream afterwards finds the bytes at `to`. If the
 * call returns OK, it has taken the buffer. Errors: INVALID (`to` is not memory of a GPU), NO_MEMORY, SYSTEM. */
enum rdt_status rdt_cuda_deliver(rdt_cuda *cuda, void *take_buffer, void *to, size_t bytes, void *stream,
                                 struct rdt_error *err);

/* ---- names and streams ---- */

/* Convert between the UUID of a GPU and its ordinal in this process, as CUDA's runtime and torch number GPUs
 * (CUDA_VISIBLE_DEVICES is taken into account). The text is valid for ever. NOT_FOUND: there is no such GPU; the sentence
 * lists those that exist. */
enum rdt_status rdt_cuda_uuid(rdt_cuda *cuda, int ordinal, const char **uuid_p, struct rdt_error *err);
enum rdt_status rdt_cuda_ordinal(rdt_cuda *cuda, const char *uuid, int *ordinal_p, struct rdt_error *err);

/* Returns the ordinal of the GPU in whose memory an address of this process lies, or -1 if it is not GPU memory. */
enum rdt_status rdt_cuda_where(rdt_cuda *cuda, const void *addr, int *ordinal_p, struct rdt_error *err);

/* Copies GPU memory that has already been written to host memory, and waits for the copy. */
enum rdt_status rdt_cuda_read(rdt_cuda *cuda, const void *from, void *to, size_t bytes, struct rdt_error *err);

/* Waits without limit until all work that is queued in a stream of that GPU now has finished. CANCELLED: rdt_interrupt_by.
 * INVALID: the stream is being captured into a graph. SYSTEM: the work failed. */
enum rdt_status rdt_cuda_wait_stream(rdt_cuda *cuda, int ordinal, void *stream, struct rdt_error *err);

/* rdt_cuda_wait_stream for at most timeout_ns; negative: no limit. TIMED_OUT. */
enum rdt_status rdt_cuda_wait_stream_for(rdt_cuda *cuda, int ordinal, void *stream, int64_t timeout_ns, struct rdt_error *err);

/* Calls run_then(arg), in a thread of the library, when all work that is now queued in the streams [n] of that GPU has
 * finished; n is at most 8. Does not wait, so it may be used while a stream is captured into a graph; a stream that is being
 * captured has no work and is skipped. For releasing memory that streams still use: run_then may call librdt, but not
 * rdt_cuda_close, which waits for it; beside a GPU that hangs it may run after rdt_cuda_close and rdt_close. If an error is
 * returned, run_then is not called. INVALID: the default stream waits for one that is being captured. */
enum rdt_status rdt_cuda_after(rdt_cuda *cuda, int ordinal, void *const *streams, size_t n, void (*run_then)(void *arg),
                               void *arg, struct rdt_error *err);

/* Waits, as cudaFree does, for all streams of the GPU's primary context in this process. For use before memory is released
 * that work in any stream may use. Returns at once for a GPU that the library has not used in this process. INVALID: a stream
 * is being captured into a graph, so nothing was waited for. */
enum rdt_status rdt_cuda_wait_all(rdt_cuda *cuda, int ordinal, struct rdt_error *err);

/* ---- an allocator for other libraries ----
 * Functions that allocate and free memory of the daemon, with the signatures that
 * torch.cuda.memory.CUDAPluggableAllocator and RMM take. A put takes tensors in such memory without a copy
 * (RDT_CUDA_KNOWN). One connection of the process serves the allocator at a time. */

/* Lets this connection serve allocations from now on; NULL: no connection does, and every allocation fails. Existing blocks
 * stay with their own connection. rdt_cuda_close ends the use of the connection; its blocks lose their memory with
 * rdt_close. */
void rdt_cuda_pool_use(rdt_cuda *cuda);

/* Allocates at least `bytes` of zeroed memory on the GPU with that ordinal, in one round trip to the daemon. The stream is
 * ignored, because no work uses the memory yet. Returns NULL on an error, which rdt_cuda_pool_info reports. Any thread. */
void *rdt_cuda_pool_alloc(ptrdiff_t bytes, int device, void *stream);

/* Waits for the GPU, as cudaFree does, and releases the block. Objects that were put from it keep its memory. After the
 * block's connection was closed, only its address is left, which no other block receives until this call. addr may be NULL. */
void rdt_cuda_pool_free(void *addr, ptrdiff_t bytes, int device, void *stream);

struct rdt_cuda_pool_info {
    size_t blocks, bytes;  /* that are allocated now */
    size_t failures;       /* allocations that failed so far */
    struct rdt_error last; /* the latest failure; status 0: none */
};
void rdt_cuda_pool_info(struct rdt_cuda_pool_info *info_p);

#ifdef __cplusplus
}
#endif
#endif
