/* Copies of tensors from wherever they lie into row-major ones, in steps: whoever runs it looks up in between to see whether
 * anybody still wants it. Several threads may take steps of one copy: a single one does not use all of the memory's bandwidth. Touches
 * memory and nothing else: on pool threads, or on the loop if it is little.
 */
#ifndef DAEMON_COPY_H
#define DAEMON_COPY_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/memory/region.h"
#include "proto/layout.h"

/* After a step others' work has its turn. A copy that the caches can hold goes by steps so small that the memory's own copy, which
 * bypasses the caches from some size on, keeps it there. */
#define COPY_STEP_BYTES (4ull << 20)
#define COPY_CACHED_STEP_BYTES (2ull << 20)
#define COPY_CACHED_BYTES (8ull << 20)
#define COPY_SMALL_BYTES (256ull << 10) /* copied on the loop: quicker than the way to the pool */

struct copy_place {
    uint8_t *base;                  /* NULL: its tensors are left out */
    const struct memory_kind *kind; /* of a source */
};

struct copy {
    const struct layout *source, *target; /* the same tensors; those of target are row-major. Borrowed */
    struct copy_place *from, *to;         /* by the layouts' region indices */
    uint64_t step_bytes;
    pthread_mutex_t mutex; /* of the next two: where the next step begins */
    uint32_t tensor;
    uint64_t at;
    _Atomic uint64_t copied; /* of all steps that have ended */
    atomic_bool stop;        /* there are no more steps */
};

/* Makes room for the places, all empty. false: no memory. */
bool copy_init(struct copy *copy, const struct layout *source, uint32_t n_from, const struct layout *target, uint32_t n_to);
void copy_fini(struct copy *copy);

/* Where a region's tensors come from or go to; it must stay pinned until the copy has ended. */
enum rdt_status copy_place(struct copy_place *place, struct region *region, struct rdt_error *err);

/* How many threads are of use, of n. */
unsigned copy_hands(const struct copy *copy, unsigned n);

/* The next step, any thread; false: that was the last one, or there was none left. Others may still be at theirs. */
bool copy_step(struct copy *copy);
bool copy_ended(struct copy *copy); /* every step was taken */

#endif
