/* Copies of tensors from wherever they lie into row-major ones, in steps: whoever runs it looks up in between to see whether
 * anybody still wants it. Touches memory and nothing else: on a pool thread, or on the loop if it is little.
 */
#ifndef DAEMON_COPY_H
#define DAEMON_COPY_H

#include "daemon/region.h"
#include "proto/layout.h"

#define COPY_STEP_BYTES (4ull << 20)    /* then others' work has its turn */
#define COPY_SMALL_BYTES (256ull << 10) /* copied on the loop: quicker than the way to the pool */

struct copy_place {
    uint8_t *base;                  /* NULL as a target: its tensors are left out, as a source: it has none */
    const struct memory_kind *kind; /* of a source */
};

struct copy {
    const struct layout *source, *target; /* the same tensors; those of target are row-major. Borrowed */
    struct copy_place *from, *to;         /* by the layouts' region indices */
    uint32_t tensor;                      /* where it is: the next one, */
    uint64_t at;                          /* and its next byte */
    uint64_t copied;                      /* in the last step */
};

/* Makes room for the places, all empty. false: no memory. */
bool copy_init(struct copy *copy, const struct layout *source, uint32_t n_from, const struct layout *target, uint32_t n_to);
void copy_fini(struct copy *copy);

/* Where a region's tensors come from or go to; it must stay pinned until the copy has ended. */
enum rdt_status copy_place(struct copy_place *place, struct region *region, struct rdt_error *err);

/* At most COPY_STEP_BYTES. */
void copy_step(struct copy *copy);
bool copy_ended(const struct copy *copy);

#endif
