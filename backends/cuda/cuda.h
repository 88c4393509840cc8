/* SPDX-License-Identifier: Apache-2.0 */
/* The memory kind "cuda": memory of NVIDIA's GPUs. What its files share.
 *
 *   cuda.c     the table, the GPUs
 *   idle.c     leaves contexts that nobody uses
 *   pins.c     pinned host memory
 *   memory.c   blocks: allocated by the driver's virtual memory management (VMM), or imported
 *   worker.c     threads of a GPU that queue copies and notice their ends
 *   copy.c     copies, and which stream they take
 *   context.c  the contexts: retained, used, failed
 *   overhead.c how much device memory a context takes
 *
 * A file calls only files below it. context.c calls upward by the two callbacks of struct cuda.
 *
 * Opening the kind allocates no GPU memory. The first allocation or import on a GPU retains its primary context until the
 * kind is closed, or nobody has used it for `pool_idle`; no other context is created. A client's memory stays open only as long
 * as its blocks.
 */
#ifndef CUDA_H_RDT
#define CUDA_H_RDT

#include <pthread.h>
#include <stdbool.h>

#include "backends/common/cuda_share.h"
#include "backends/common/threads.h"
#include "backends/cuda/overhead.h"
#include "rdt_backend.h"

enum cuda_way { /* of a copy. UP: from the host to the device; PAGED: memory of the host that is not pinned */
                WAY_WITHIN,
                WAY_UP,
                WAY_DOWN,
                WAY_ACROSS,
                WAY_PAGED_UP,
                WAY_PAGED_DOWN,
                N_WAYS
};
#define CUDA_TURNS 2u
#define CUDA_WORKER_EVENTS 32u

struct cuda_streams {            /* protected by the card's mutex */
    CUstream stream[CUDA_TURNS]; /* created on first use; taken in turn: one copies while the next copy of the other begins */
    unsigned turn;
};

struct cuda_worker {
    struct cuda_card *card;
    CUevent events[CUDA_WORKER_EVENTS]; /* the thread's, and those of whoever leaves the context, when no copy is under way */
    unsigned n_events;                  /* that are in no use */
    pthread_mutex_t mutex;              /* protects all fields below. Never held in a call of the driver */
    pthread_cond_t more;                /* signalled when a copy is given or the thread is to end */
    pthread_t thread;                   /* started on first use */
    bool started, end;
    struct rdt_memory_copy *first, **last; /* given to the thread */
};

struct cuda_card { /* a GPU as this kind uses it */
    struct cuda *cuda;
    struct cuda_gpu *gpu;
    bool vmm, rdma;                      /* the GPU supports VMM; GPUDirect RDMA works with such memory */
    pthread_mutex_t opening;             /* held while its context is created and measured, or left; protects the next two */
    unsigned users;                      /* blocks, and calls that pin, which need the context */
    int64_t idle_since_ns;               /* if there are none */
    _Atomic uint64_t overhead_bytes;     /* device memory that the context takes; USAGE_UNKNOWN: it cannot be determined */
    size_t granule;                      /* VMM allocates multiples of it */
    int node;                            /* the NUMA node that is nearest; -1: unknown, or the only one */
    _Atomic bool failed;                 /* every call in its context fails */
    char why_not[160];                   /* a sentence; written before `failed` is set */
    pthread_mutex_t mutex;               /* protects the text and all streams */
    struct cuda_streams streams[N_WAYS]; /* for copies on this GPU, and from and to the host */
    struct cuda_streams across[CUDA_MAX_GPUS]; /* to memory of GPU i, so that no reader waits for another GPU's */
    struct cuda_streams clearing;
    _Atomic uint64_t asked, reached; /* bit i: this GPU has asked for, and got, access to memory of GPU i */
    struct cuda_worker workers[N_WAYS];
};

struct cuda {
    struct rdt_host host;
    struct cuda_driver *driver;
    struct cuda_card *cards; /* [driver->n_gpus], in its order */
    struct cuda_handles handles;
    void (*on_opened)(struct cuda_card *card); /* its context has been retained, and is current; with card->opening */
    void (*on_idle)(struct cuda *cuda);        /* a card has no users any more */
    int64_t idle_ns;                           /* after which a context that nobody uses is left */
    pthread_t watcher;                         /* leaves contexts; started when the first one has no users */
    pthread_mutex_t watch;                     /* protects the fields below */
    pthread_cond_t more;
    bool watching, end, any_idle;
    pthread_mutex_t pins_mutex; /* protects the next field; may be taken after a card's `opening` */
    struct cuda_pin *pins;
    pthread_mutex_t restoring; /* held while lapsed pins are made anew */
};

struct cuda_block { /* block->priv */
    struct cuda_card *card;
    CUdeviceptr base;        /* of the mapped range, or of the allocation */
    uint64_t offset;         /* of the block from base */
    struct cuda_range range; /* VMM only */
    uint32_t n_chunks;
    int *fds; /* [n_chunks]: by which other processes map the chunks */
    uint64_t *chunk_bytes;
    struct cuda_opened *opened; /* the imported legacy handle, or NULL */
    bool allocated;             /* by cuMemAlloc, because the GPU has no VMM */
    bool has_handle;
    CUipcMemHandle handle; /* valid if has_handle */
    pthread_mutex_t mutex; /* protects peers */
    uint64_t peers;        /* bit i: GPU i may access the range as well */
};

/* ---- idle.c ---- */

void cuda_contexts_watch(struct cuda *cuda); /* from now on contexts may be used, and are left */
void cuda_contexts_end(struct cuda *cuda);   /* leaves them all, and ends the workers. No copy is under way */

/* ---- context.c ---- */

/* Notes whether the result means that the GPU's context has failed. */
void cuda_note(struct cuda_card *card, CUresult result);

/* Counts a user of the GPU's context, which is not left as long as there is one; cuda_enter may be called meanwhile. */
void cuda_use(struct cuda_card *card);
void cuda_unuse(struct cuda_card *card);
bool cuda_use_if_open(struct cuda_card *card); /* false: the context is not retained, and no user was counted */

/* Makes the GPU's primary context current in this thread. The first call for a GPU retains the context and measures how
 * much memory it takes. */
enum rdt_status cuda_enter(struct cuda_card *card, struct rdt_error *err);

/* Returns the one of the GPU's streams whose turn it is, and creates it on first use. The GPU's context is current in the
 * thread. */
CUstream cuda_stream(struct cuda_card *card, struct cuda_streams *streams, CUresult *result_p);

/* ---- pins.c ---- */

enum rdt_status cuda_pin(void *memory, void *addr, uint64_t bytes, void **pin_p, struct rdt_error *err); /* operations of */
void cuda_unpin(void *memory, void *pin);      /* struct rdt_memory_ops */
unsigned cuda_pins_of(struct cuda_card *card); /* how many were made through its context */

/* Ends the pins of the card until cuda_pins_restore of any card, whose context is current then. The caller holds
 * card->opening. */
void cuda_pins_lapse(struct cuda_card *card);
void cuda_pins_restore(struct cuda_card *card);

/* memory.c: operations of struct rdt_memory_ops */
enum rdt_status cuda_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err);
enum rdt_status cuda_alloc_unzeroed(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                    struct rdt_error *err);
enum rdt_status cuda_import(void *memory, const char *device, const struct rdt_import *import, struct rdt_block *block_p,
                            struct rdt_error *err);
enum rdt_status cuda_restore(void *memory, enum rdt_restore from, int take_fd, uint64_t offset, uint64_t bytes,
                             struct rdt_block *block_p, struct rdt_error *err);
void cuda_free(void *memory, struct rdt_block *block);
enum rdt_status cuda_map(void *memory, struct rdt_block *block, bool warm, struct rdt_error *err);
enum rdt_status cuda_export(void *memory, const struct rdt_block *block, struct rdt_export *export_p, struct rdt_error *err);
uint64_t cuda_round(void *memory, uint64_t bytes);
enum rdt_status cuda_zero(void *memory, struct rdt_block *block, struct rdt_error *err);
enum rdt_status cuda_zero_part(void *memory, struct rdt_block *block, uint64_t offset, uint64_t bytes, struct rdt_error *err);

/* ---- copy.c ---- */

enum cuda_way cuda_copy_way(const struct rdt_memory_copy *copy,
                            struct cuda_card **card_p); /* *card_p: whose thread queues it */

/* Makes the context of that GPU current in the thread. Fails, and says why, if that of either end has failed. */
enum rdt_status cuda_copy_enter(struct cuda_card *card, const struct rdt_memory_copy *copy, struct rdt_error *err);

/* Queues the whole copy. The GPU's context is current in the thread. *stream_p is where: NULL if no part of the copy is under
 * way. The result of a part may be an error although other parts are. */
CUresult cuda_copy_queue(struct cuda_card *card, struct rdt_memory_copy *copy, CUstream *stream_p);

/* worker.c */
void cuda_worker_init(struct cuda_worker *worker, struct cuda_card *card);
void cuda_worker_fini(struct cuda_worker *worker); /* joins the thread. No copy may be under way */

/* An operation of struct rdt_memory_ops: a worker's thread queues the copy and calls copy_done when it has ended. Calls no
 * function of the driver. */
enum rdt_status cuda_copy_start(void *memory, struct rdt_memory_copy *copy, struct rdt_error *err);

/* Before the context is left, which is current in the thread. No copy may be under way. */
void cuda_worker_forget_events(struct cuda_worker *worker);

#endif
