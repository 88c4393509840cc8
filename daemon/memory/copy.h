/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of tensors from regions of any layout into row-major ones, in host memory. A copy is done in steps, between
 * which its owner finds out whether anybody still wants it. Several threads may take steps of one copy, because one
 * thread alone does not use all of the memory's bandwidth.
 *
 * The functions touch nothing but the memory: they run on the work pool, or in the loop for small copies. A copy from or to
 * memory that a client can write runs on the threads of its owner (region_may_wait), however small it is.
 */
#ifndef DAEMON_COPY_H
#define DAEMON_COPY_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/memory/imported.h"
#include "daemon/memory/region.h"
#include "proto/layout.h"

/* After each step the work pool takes work of other clients. A copy that fits into the processor's caches is done in
 * smaller steps: a single large one would bypass the caches, and the reader would have to fetch its bytes from
 * memory. */
#define COPY_STEP_BYTES (4ull << 20)
#define COPY_CACHED_STEP_BYTES (2ull << 20)
#define COPY_CACHED_BYTES (8ull << 20)
#define COPY_OWNER_STEPS 2u /* a longer turn makes the owner's other copies wait; each turn wakes the loop */
/* Up to this size the loop copies, because it takes longer to hand the copy to the work pool. */
#define COPY_SMALL_BYTES (256ull << 10)

struct copy_place {
    struct memory_place at;         /* neither base nor by_fd: its tensors are not copied */
    const struct memory_kind *kind; /* of a source */
};

struct copy {
    const struct layout *source, *target; /* the same tensors; those of target are row-major. Borrowed */
    struct copy_place *from, *to;         /* by the layouts' region indices */
    uint32_t n_to;
    uint64_t bytes, step_bytes;
    pthread_mutex_t mutex;   /* protects tensor and at */
    uint32_t tensor;         /* the next step begins in this tensor, ... */
    uint64_t at;             /* ... at this byte of its packed form */
    _Atomic uint64_t copied; /* bytes, of all steps that have ended */
    atomic_bool stop;        /* set: no more steps begin */
    atomic_int failed;       /* the errno of a read or write that failed; 0: none */
    struct account *owner;   /* whose threads must take the steps, because its memory may hold them up; NULL: any may */
};

/* Initialises a copy with n_from and n_to places, all of them empty. Returns false if there is no memory. */
bool copy_init(struct copy *copy, const struct layout *source, uint32_t n_from, const struct layout *target, uint32_t n_to);
void copy_fini(struct copy *copy);

/* Sets a source or a target to the memory of a region, which must stay pinned until the copy has ended; region_fill has
 * prepared a target. Loop thread. The errors are those of region_addr. */
enum rdt_status copy_from(struct copy *copy, uint32_t index, struct region *region, struct rdt_error *err);
enum rdt_status copy_to(struct copy *copy, uint32_t index, struct region *region, struct rdt_error *err);

/* Whether copy_check has something to do. Any thread. */
bool copy_must_be_checked(const struct copy *copy);

/* Between steps, in the loop: charges the regions for the pages that the steps have created. LIMIT, NO_MEMORY: there is no room
 * for them; SYSTEM: a read or a write has failed. The copy must end then. */
enum rdt_status copy_check(struct copy *copy, struct region *(*target)(void *arg, uint32_t index), void *arg,
                           struct rdt_error *err);

/* Returns how many of n threads the copy can use: at least 1. */
unsigned copy_threads(const struct copy *copy, unsigned n);

/* Runs work that calls copy_turn on the work pool, or on the threads of copy->owner, and then work->done in the loop. A copy of
 * more than one step is a long one (owner_work.h). */
void copy_submit(struct copy *copy, struct regions *regions, struct work *work);

/* Does the next step, or, on an owner's thread, the next COPY_OWNER_STEPS ones. Returns whether a step is left to begin. */
bool copy_turn(struct copy *copy);

/* Does the next step, if there is one. Returns false if no further step is left to begin; other threads may still be
 * in theirs. Any thread. */
bool copy_step(struct copy *copy);

/* Returns whether every step has begun. Any thread. */
bool copy_ended(struct copy *copy);

#endif
