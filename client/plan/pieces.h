/* SPDX-License-Identifier: Apache-2.0 */
/* Planning: which piece of which part fills which piece of a wanted box. Pure: it knows no connection and no bytes. */
#ifndef CLIENT_PIECES_H
#define CLIENT_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/rdt_dtype.h"
#include "proto/rdt_status.h"

#define PIECES_MAX_NDIM 32u

struct source { /* a tensor of a part: a box of the tensor `key` */
    const char *key;
    uint32_t part, tensor; /* tensor: its index in the part */
    enum rdt_dtype dtype;
    uint32_t ndim;
    const uint64_t *global_shape, *start, *count; /* [ndim], borrowed */
};

struct wanted {
    const char *key;
    enum rdt_dtype dtype;
    uint32_t ndim;
    const uint64_t *start, *count; /* [ndim], borrowed */
    const uint64_t *global_shape;  /* [ndim], borrowed: of the tensor that the reader expects; NULL: of any */
    int32_t padded;                /* the dimension in which the tensor may be longer or shorter than that; -1: none */
};

struct piece {
    uint32_t want, part, tensor, source; /* indices */
    uint64_t *from;                      /* [ndim]: where it begins in the tensor of the part */
    uint64_t *to;                        /* [ndim]: and in the wanted box */
    uint64_t *count;                     /* [ndim] */
};

struct pieces {
    size_t n, room;
    struct piece *list; /* [n], in order of part, then tensor */
};

/* Computes the pieces. The sources of one key lie one behind the other. They cover their tensors once, as the daemon has
 * checked; still every want is checked to be filled whole, once, or of a padded tensor as far as the published one goes.
 * strict: every tensor must be wanted. Errors: NOT_FOUND (no such tensor), MISMATCH (another shape, a box that ends outside, or
 * a tensor that is not wanted), UNSUPPORTED (no such cast), INVALID (the sources overlap, or have holes), LIMIT (their boxes
 * interlock in too complicated a way), NO_MEMORY. Each names the tensor. */
enum rdt_status pieces_plan(const struct source *sources, size_t n_sources, const struct wanted *wants, size_t n_wants,
                            bool strict, struct pieces *pieces_p, struct rdt_error *err);
void pieces_fini(struct pieces *pieces);

#endif
