/* SPDX-License-Identifier: Apache-2.0 */
/* The room client/cuda/: librdt-cuda. This header declares what its files use of one another.
 *
 * Order of the files. A file uses those on lower lines only; tests/check-layers compares this drawing with the symbols
 * of the objects.
 *
 *     8  open                    opens and closes the handle of a connection
 *     7  pool put                an allocator for other libraries; rdt_cuda_put
 *     6  rooms                   copies of the tensors of a put
 *     5  memory                  rdt_cuda_alloc and rdt_cuda_offer
 *     5  map                     the rdt_mapper for librdt
 *     4  names offers            GPUs and streams; memory offered while puts run
 *     4  work                    the rdt_writer and the rdt_copier for librdt
 *     4  places                  in which allocations the tensors of a put lie
 *     3  closing export streams  handles to be closed; memory of this process, described so that the daemon can map it; what
 *                                follows the work in a stream
 *     2  pinned                  host memory of the daemon, pinned, into which puts copy
 *     1  gpu retained            contexts; addresses that stay reserved
 */
#ifndef CLIENT_CUDA_GPU_H
#define CLIENT_CUDA_GPU_H

#include <stdatomic.h>

#include "backends/common/cuda_share.h"
#include "client/cuda/rdt_cuda.h"
#include "client/session/clock.h"

struct rdt_cuda {
    rdt *conn;
    struct cuda_driver *driver;
    pid_t pid; /* that opened it */
};

/* The time-out of a call of librdt that a deadline leaves: 0, its default, if there is none (left_ns < 0). */
static inline int64_t gpu_call_ns(int64_t left_ns)
{
    return left_ns > 0 ? left_ns : left_ns < 0 ? 0 : RDT_NO_WAIT;
}

/* ---- gpu.c: contexts and addresses ---- */

/* Every public function calls this before it touches the driver or a lock: in a forked child the driver's state is not valid,
 * and the library's threads and the holders of its locks do not exist. Errors: INVALID (NULL), FORKED. */
enum rdt_status cuda_check(const rdt_cuda *cuda, struct rdt_error *err);

/* The context that was current in the thread before a call of this library. */
struct entered {
    CUcontext before;
    CUstreamCaptureMode mode;
};

/* Makes the GPU's primary context current in the thread; gpu_leave makes current what was current before. In between the
 * thread's calls do not disturb a stream that is being captured into a graph, by whichever thread. */
enum rdt_status gpu_enter(struct cuda_driver *driver, struct cuda_gpu *gpu, struct entered *entered_p, struct rdt_error *err);
void gpu_leave(struct cuda_driver *driver, const struct entered *entered);

/* Finds the GPU in whose memory addr lies; *gpu_p NULL: it lies in none. Asks the driver each time, because an allocator
 * may have put other memory there. The errors are those of cuda_failed: memory of which the driver cannot tell is not host
 * memory. */
enum rdt_status gpu_find(struct cuda_driver *driver, const void *addr, struct cuda_gpu **gpu_p, struct rdt_error *err);

/* ---- retained.c: addresses that stay reserved after their memory was unmapped ---- */

/* An address that the pool has given out and whose connection was closed. The struct is the pool's; it stays in place from
 * retained_add until retained_take. */
struct retained {
    void *addr;
    CUdeviceptr base; /* what is reserved around addr: [base, base + bytes) */
    size_t bytes;     /* 0: the memory there is not unmapped yet */
    struct retained *next;
};

void retained_add(struct retained *retained, void *addr);

/* Ends the retention of addr and returns its struct; NULL: addr is not retained. The caller frees the reserved addresses. */
struct retained *retained_take(const void *addr);

/* Whether a retained address lies in this range, which was just unmapped. If so, the caller leaves the range reserved, and
 * whoever takes the struct frees it. */
bool retained_claim(CUdeviceptr base, size_t bytes);

void retained_after_fork(void); /* in the child: it has none */

/* ---- pinned.c: host memory of the daemon, pinned, into which puts copy tensors of GPUs ---- */

/* Finds such memory of the connection in which no object lies any more, or allocates and pins some. It is the caller's until
 * pinned_give_back. The GPU is entered. Errors: those of rdt_alloc_with. */
enum rdt_status pinned_take(rdt_cuda *cuda, struct cuda_gpu *gpu, size_t bytes, int64_t deadline_ns, void **addr_p,
                            struct rdt_error *err);

/* No put and no stream uses the memory any more. false: the address is not from pinned_take. */
bool pinned_give_back(const rdt *conn, const void *addr);
void pinned_forget(const rdt_cuda *cuda); /* unpins and releases all; no put and no stream uses any */
void pinned_after_fork(void);             /* in the child: there is none */

/* Ends the use of a buffer of a put: of pinned memory, or of memory of gpu_memory_alloc, which is deallocated. */
static inline void buffer_release(rdt *conn, void *buffer)
{
    if (!pinned_give_back(conn, buffer))
        (void)rdt_dealloc_soon(conn, buffer, NULL);
}

/* ---- streams.c: what follows the work in a stream ---- */

struct streams { /* those of one connection that somebody waits for */
    rdt *conn;
    struct cuda_driver *driver;
    pthread_mutex_t mutex;
    struct notifier *notifier; /* NULL: none was needed yet */
};

void streams_init(struct streams *streams, rdt *conn, struct cuda_driver *driver);
void streams_fini(struct streams *streams);   /* waits until no stream copies into a buffer any more */
void streams_forget(struct streams *streams); /* in a forked child, which does not have the thread */

/* What the library does when the work in streams has finished. Created before the put that needs it, so that the put cannot
 * fail for lack of one afterwards. The streams' GPU is entered. */
#define COMPLETION_MAX_STREAMS 8u
struct completion;
enum rdt_status completion_create(struct streams *streams, unsigned n_streams, struct completion **completion_p,
                                  struct rdt_error *err);
void completion_destroy(struct completion *completion); /* NULL is fine */

/* Lets the completion also wait for the default stream of the GPU that is entered now. */
enum rdt_status completion_add_gpu(struct completion *completion, struct rdt_error *err);

/* A stream that every GPU has one of: NULL, and the two numbers that cuda.h defines. */
bool stream_is_default(CUstream stream);

/* When all work that is in the stream now has finished, on every GPU that the completion waits for: makes the object ready that
 * was put as PENDING (ref NULL: there is none), and releases the buffers that the stream copied into. Takes the completion
 * always, the buffers on success only. The GPU of the first mark is entered. */
enum rdt_status completion_enqueue(struct completion *take_completion, CUstream stream, const struct rdt_ref *ref,
                                   void **take_buffers, size_t n_buffers, struct rdt_error *err);

/* Waits until the work that is in the stream now has ended. The GPU is entered. Errors: TIMED_OUT, CANCELLED
 * (rdt_interrupt_by), INVALID (the stream is being captured), those of cuda_gpu_failed. */
enum rdt_status stream_await(struct cuda_driver *driver, const struct cuda_gpu *gpu, CUstream stream, int64_t deadline_ns,
                             struct rdt_error *err);

/* Whether a stream is being captured into a graph: it does no work now, and an event in it would become a part of the graph.
 * The default stream of the current context counts while a stream that it waits for is: a call in it would spoil that
 * capture. */
bool stream_is_captured(const struct cuda_driver *driver, CUstream stream);

/* ---- closing.c: legacy handles that are not used any more ---- */

bool closing_begin(rdt *conn);     /* a connection with GPU memory is open. False: no memory */
void closing_end(const rdt *conn); /* it is no more. After the last one, waits until all handles are closed */

/* Memory of a fetched object was mapped. While there is such memory, another thread unmaps what the daemon wants unmapped. */
void closing_look(void);

/* Removes the user of a handle, soon and in another thread. */
void closing_add(struct cuda_handles *handles, struct cuda_gpu *gpu, struct cuda_opened *opened);
void closing_after_fork(void); /* in the child: nothing is open */

/* ---- export.c: memory of this process, for the daemon ---- */

struct exported { /* a whole allocation, or the chunks that hold a range */
    struct rdt_shared shared;
    void *base;
    int *fds;
    uint64_t *chunk_bytes;
    CUipcMemHandle handle;
};

/* UNSUPPORTED: the memory cannot be exported, only copied. The GPU is entered. */
enum rdt_status export_range(struct cuda_driver *driver, const struct cuda_gpu *gpu, void *addr, size_t bytes,
                             struct exported *exported_p, struct rdt_error *err);
void exported_free(struct exported *exported);

/* Returns where the memory of a handle lies that this process itself has exported, because the driver opens no handle in the
 * process that it is of. 0: it has not, or the memory is gone. */
CUdeviceptr export_find_own(struct cuda_driver *driver, const void *handle);
void export_after_fork(void); /* in the child: it has exported nothing */

/* ---- work.c: writing memory of GPUs, and copies within a GPU, for librdt ---- */

extern const struct rdt_writer cuda_writer;
extern const struct rdt_copier cuda_copier;
void work_begin(void);                        /* a connection with GPU memory is open */
void work_forget(struct cuda_driver *driver); /* it is no more: ends the streams, and unpins the memory, that no work uses */
void work_after_fork(void);                   /* in the child: there is none */

/* ---- map.c: memory of other processes, mapped here ---- */

extern const struct rdt_mapper cuda_mapper;
void map_after_fork(void); /* in the child: nothing is mapped */

/* ---- offers.c: memory that the daemon knows while puts are under way ---- */

struct offers {             /* of one connection */
    pthread_mutex_t mutex;  /* not held while the daemon is asked */
    pthread_cond_t settled; /* the daemon has answered to an offer */
    struct offer *first;
    /* Legacy handles, and chunks, that the daemon could not map, in a row; and until when none is offered for that reason. */
    atomic_uint refused[2];
    _Atomic int64_t refused_until_ns[2];
};

struct address_range { /* [from, to); 0, 0: none */
    uintptr_t from, to;
};

struct offer_request {
    struct address_range tensor; /* its bytes */
    struct address_range chunks; /* what to offer: the allocation or the chunks that hold it; none: the driver does not know */
    bool copy;                   /* offer nothing: use only memory that the caller has made known */
    int64_t deadline_ns;         /* of the put */
};

void offers_init(struct offers *offers);
void offers_fini(struct offers *offers);

/* Replaces ranges that overlap by their union. */
enum rdt_status offers_join_ranges(struct address_range *ranges, size_t n, struct rdt_error *err);

/* Makes a tensor's memory known to the daemon, if it is not. *offer_p goes to offers_release when the put is over; NULL: the
 * caller has made the memory known. UNSUPPORTED: the tensor must be copied. INVALID: a put of this thread that has not returned
 * makes it known. TIMED_OUT, CANCELLED. The GPU is entered. */
enum rdt_status offers_acquire(struct offers *offers, rdt_cuda *cuda, struct cuda_gpu *gpu, const struct offer_request *request,
                               struct offer **offer_p, enum rdt_cuda_how *how_p, struct rdt_error *err);
void offers_release(struct offers *offers, rdt_cuda *cuda, struct offer *offer);

/* Exports the whole allocation, or all chunks, that hold the bytes, and imports it at the daemon, [*base_p, *base_p +
 * *bytes_p). UNSUPPORTED: it cannot be exported. timeout_ns as in rdt_shared. The GPU is entered. */
enum rdt_status offers_import(rdt_cuda *cuda, struct cuda_gpu *gpu, void *addr, size_t bytes, int64_t timeout_ns, void **base_p,
                              size_t *bytes_p, enum rdt_cuda_how *how_p, struct rdt_error *err);

/* The first step of offers_import for several ranges: exports one. UNSUPPORTED: it must be copied. The GPU is entered. */
enum rdt_status offers_export(rdt_cuda *cuda, struct cuda_gpu *gpu, void *addr, size_t bytes, struct exported *exported_p,
                              struct rdt_error *err);

/* The second step: imports what was exported [n] with one wait for the daemon, and frees it. statuses [n]: UNSUPPORTED where
 * the daemon cannot map it. Returns the first other error. */
#define OFFERS_MAX_IMPORTS 64u
enum rdt_status offers_import_many(rdt_cuda *cuda, struct exported *take_exported, size_t n, enum rdt_status *statuses,
                                   struct rdt_error *err);

/* ---- places.c: in which allocations the tensors of one put lie ---- */

struct allocation {
    struct address_range range;
    struct cuda_gpu *gpu;
    bool offered; /* a tensor in it is a user of an offer */
    bool refused; /* it cannot be exported, or the daemon cannot map it: its tensors are copied */
};

struct places { /* all but the driver is 0 at first */
    struct cuda_driver *driver;
    struct allocation *all; /* [n] that the driver was asked about, in order of addresses */
    size_t n, room;
    struct cuda_gpu *gpu; /* that is entered; NULL: none is */
    struct entered entered;
};

/* Finds the GPU in whose memory the bytes begin; *gpu_p NULL: they lie in host memory. *chunks_p: the allocation, or the
 * chunks, that hold the bytes; it stays as it is if the driver does not know them: then an offer fails with a sentence that
 * says why. May enter the GPU. Errors as of gpu_find. */
enum rdt_status places_find(struct places *places, struct address_range bytes, struct cuda_gpu **gpu_p,
                            struct address_range *chunks_p, struct rdt_error *err);

/* The allocation at the address if the driver was asked about it and knows it, or NULL. Valid until the next places_find. */
struct allocation *places_at(struct places *places, uintptr_t at);

/* Enters the GPU unless it is entered already, and leaves what is entered. */
enum rdt_status places_enter(struct places *places, struct cuda_gpu *gpu, struct rdt_error *err);
void places_leave(struct places *places);
void places_fini(struct places *places);

/* ---- memory.c ---- */

/* rdt_cuda_alloc with a deadline; timeout_ns and written_whole as in rdt_alloc_options (call_timeout_ns). */
enum rdt_status gpu_memory_alloc(rdt_cuda *cuda, const char *device, size_t bytes, int64_t timeout_ns, bool written_whole,
                                 void **addr_p, struct rdt_error *err);

/* ---- pool.c ---- */

/* Called before the handle goes. Returns when no allocation uses it any more. */
void pool_forget(const rdt_cuda *cuda);
void pool_after_fork(void); /* in the child: it is empty, and no connection serves it */

/* ---- open.c ---- */

enum handle_state { HANDLE_OPEN, HANDLE_ENDED, HANDLE_LEFT };

struct handle { /* what rdt_cuda_open makes */
    struct rdt_cuda cuda;
    struct offers offers;
    struct streams streams;
    enum handle_state state;
    struct handle *next; /* in open.c's list */
};

/* ---- rooms.c: the daemon memory into which a put copies its tensors, one range for each GPU ---- */

struct copied {                  /* a tensor that must be copied */
    struct cuda_gpu *gpu;        /* NULL: it need not be */
    struct address_range extent; /* its bytes */
};

struct rooms {
    struct handle *handle;
    size_t count;
    struct copied *copied;  /* [count] set by the caller before rooms_copy */
    struct cuda_gpu **gpus; /* [n_buffers] */
    void **buffers;         /* [n_buffers] one for each GPU; NULL: it is no longer the put's */
    size_t n_buffers;
    bool to_host;        /* the buffers are pinned host memory, not memory of the GPU */
    size_t buffer_bytes; /* at least, of a buffer in host memory: puts of any size then use the same one */
};

enum rdt_status rooms_init(struct rooms *rooms, struct handle *handle, size_t count, struct rdt_error *err);
void rooms_fini(struct rooms *rooms); /* releases the buffers */

/* Copies what must be copied, and lets the tensors' data point to the copies. The copies are queued in *stream; NULL: they have
 * ended when this returns, also with an error. A buffer into which a copy goes on after TIMED_OUT is released later. */
enum rdt_status rooms_copy(struct rooms *rooms, struct rdt_tensor *tensors, const CUstream *stream, int64_t deadline_ns,
                           struct rdt_error *err);

/* The put has failed: the buffers are released when the stream has come to what is queued now; a default stream has one on
 * the GPU of each buffer. The stream's GPU is entered. */
void rooms_abandon(struct rooms *rooms, CUstream stream);

/* Waits until the copies that rooms_copy has queued in that stream, one that each GPU has, have ended. After an error they may
 * go on: rooms_abandon. Errors as of stream_await. */
enum rdt_status rooms_await(struct rooms *rooms, CUstream stream, int64_t deadline_ns, struct rdt_error *err);

/* A completion has taken the array of buffers. */
void rooms_taken(struct rooms *rooms);

#endif
