/* What the files of librdt-cuda share.
 *
 *   map.c     memory of other processes, mapped here: what librdt calls (rdt_mapper)
 *   export.c  memory of this process, for the daemon
 *   put.c     the calls
 *   offers.c  what puts make known to the daemon
 *   teller.c  order by streams: what becomes ready, or free, when a stream comes to it
 *   names.c   names of GPUs; waiting for streams
 *   pool.c    an allocator for other libraries
 */
#ifndef CLIENT_CUDA_GPU_H
#define CLIENT_CUDA_GPU_H

#include <stdatomic.h>

#include "backends/common/cuda_share.h"
#include "client/clock.h"
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

/* offers.c */
struct offers { /* of a connection: that puts have made, and that stand until these are over */
    pthread_mutex_t mutex; /* not held while the daemon is asked */
    pthread_cond_t settled; /* one that was coming has come, or will not */
    struct offered *first;
};
struct offer_span { /* of addresses; 0, 0: none */
    uintptr_t from, to;
};
struct offer_wish { /* a tensor's bytes */
    uintptr_t lo, hi;
    struct offer_span span; /* all chunks that are to be offered with its own; none: its own */
    bool copy;              /* only what the caller has made known is taken */
    int64_t deadline_ns;    /* of the put */
};
void offers_init(struct offers *offers);
void offers_fini(struct offers *offers);

/* The allocation, or the chunks, that hold the bytes; as it was if the driver does not know. */
enum rdt_status offer_span(rdt_cuda *cuda, struct cuda_gpu *gpu, uintptr_t lo, uintptr_t hi, struct offer_span *span_p,
                           struct rdt_error *err);
/* Those that overlap become one. */
enum rdt_status offer_spans_join(struct offer_span *spans, size_t n, struct rdt_error *err);

/* Makes it known, if it is not. *offered_p: to be given back when the put is over; NULL: the caller's own. UNSUPPORTED: only a copy helps.
 * TIMED_OUT. The GPU's context is the thread's. */
enum rdt_status offers_take(struct offers *offers, rdt_cuda *cuda, struct cuda_gpu *gpu, const struct offer_wish *wish,
                            struct offered **offered_p, enum rdt_cuda_how *how_p, struct rdt_error *err);
void offers_give(struct offers *offers, rdt_cuda *cuda, struct offered *offered);

/* Exports what holds the bytes, whole, and makes it known from *base_p on. UNSUPPORTED: it cannot be exported. timeout_ns as
 * rdt_shared has it. */
enum rdt_status offer(rdt_cuda *cuda, struct cuda_gpu *gpu, void *addr, size_t bytes, int64_t timeout_ns, void **base_p, size_t *bytes_p,
                      enum rdt_cuda_how *how_p, struct rdt_error *err);

/* teller.c */
struct streams { /* of a connection: those that are waited for */
    rdt *conn;
    struct cuda_driver *driver;
    pthread_mutex_t mutex;
    struct teller *teller; /* NULL: none was needed yet */
};
void streams_init(struct streams *streams, rdt *conn, struct cuda_driver *driver);
void streams_fini(struct streams *streams); /* waits for those that still copy into rooms */

/* What is to be done when a stream comes to it. Made before anything that depends on it. */
struct note;
enum rdt_status note_new(struct streams *streams, struct note **note_p, struct rdt_error *err);
void note_free(struct note *note); /* NULL is fine */

/* When all that stands in the stream now has finished: the object, put as PENDING, is ready (NULL: there is none), and the rooms that the
 * stream copied into are given back. Takes the note always, the rooms on success only. The GPU's context is the thread's. */
enum rdt_status note_in_stream(struct note *take_note, CUstream stream, const struct rdt_ref *ref, void **take_rooms, size_t n_rooms,
                               struct rdt_error *err);

/* pool.c: the handle is about to go. Returns when no allocation uses it any more. */
void pool_forget(const rdt_cuda *cuda);
/* Nothing is mapped in these addresses any more. true: they stay reserved, and the pool frees them. */
bool pool_keeps(CUdeviceptr base, size_t bytes);

#endif
