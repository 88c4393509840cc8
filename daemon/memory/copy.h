/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of tensors from regions of any layout into row-major ones, in host memory. A copy is done in steps, between
 * which its owner finds out whether anybody still wants it. Several threads may take steps of one copy, because one
 * thread alone does not use all of the memory's bandwidth.
 *
 * The functions touch nothing but the memory: they run on the work pool, or in the loop for small copies.
 */
#ifndef DAEMON_COPY_H
#define DAEMON_COPY_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/memory/region.h"
#include "proto/layout.h"

/* After each step the work pool takes work of other clients. A copy that fits into the processor's caches is done in
 * smaller steps: a single large one would bypass the caches, and the reader would have to fetch its bytes from
 * memory. */
#define COPY_STEP_BYTES (4ull << 20)
#define COPY_CACHED_STEP_BYTES (2ull << 20)
#define COPY_CACHED_BYTES (8ull << 20)
/* Up to this size the loop copies, because it takes longer to hand the copy to the work pool. */
#define COPY_SMALL_BYTES (256ull << 10)

struct copy_place {
    uint8_t *base;                  /* NULL: its tensors are not copied */
    const struct memory_kind *kind; /* of a source */
};

struct copy {
    const struct layout *source, *target; /* the same tensors; those of target are row-major. Borrowed */
    struct copy_place *from, *to;         /* by the layouts' region indices */
    uint64_t step_bytes;
    pthread_mutex_t mutex;   /* protects tensor and at */
    uint32_t tensor;         /* the next step begins in this tensor, ... */
    uint64_t at;             /* ... at this byte of its packed form */
    _Atomic uint64_t copied; /* bytes, of all steps that have ended */
    atomic_bool stop;        /* set: no more steps begin */
};

/* Initialises a copy with n_from and n_to places, all of them empty. Returns false if there is no memory. */
bool copy_init(struct copy *copy, const struct layout *source, uint32_t n_from, const struct layout *target, uint32_t n_to);
void copy_fini(struct copy *copy);

/* Sets a place to the memory of a region, which must stay pinned until the copy has ended. Loop thread. err must not
 * be NULL; the errors are those of region_addr. */
enum rdt_status copy_place(struct copy_place *place, struct region *region, struct rdt_error *err);

/* Returns how many of n threads the copy can use: at least 1. */
unsigned copy_threads(const struct copy *copy, unsigned n);

/* Does the next step, if there is one. Returns false if no further step is left to begin; other threads may still be
 * in theirs. Any thread. */
bool copy_step(struct copy *copy);

/* Returns whether every step has begun. Any thread. */
bool copy_ended(struct copy *copy);

#endif
