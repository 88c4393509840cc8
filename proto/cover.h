/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes of one N-dimensional tensor, and which part of the tensor a set of boxes covers. A box is the elements
 * [start[d], start[d] + count[d]) in every dimension d; of 0 dimensions it is one element. Pure arithmetic: the caller has
 * checked that a box lies within its tensor, and that the tensor has fewer than 2^63 elements. */
#ifndef PROTO_COVER_H
#define PROTO_COVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt_status.h"

#define BOX_TEXT_BYTES 512u    /* enough for a box of 32 dimensions whose numbers are not all large; longer ones are cut */
#define COVER_MAX_HOLES 65536u /* boxes in which the uncovered part of one tensor is kept */

uint64_t box_elems(uint32_t ndim, const uint64_t *count); /* 0 if a dimension is 0 */

/* Writes the elements that both boxes have to start_p and count_p [ndim]. false: there are none, and the results are
 * undefined. */
bool box_intersect(uint32_t ndim, const uint64_t *start_a, const uint64_t *count_a, const uint64_t *start_b,
                   const uint64_t *count_b, uint64_t *start_p, uint64_t *count_p);

/* Writes "[0:4, 8:16]", each dimension as start:end, to text_p [BOX_TEXT_BYTES]. */
void box_text(uint32_t ndim, const uint64_t *start, const uint64_t *count, char *text_p);

/* What is not covered yet of a tensor, as boxes that do not overlap. Adding a box that meets k of them takes O(k) time. */
struct cover {
    uint32_t ndim;
    uint32_t n;
    size_t room;
    uint64_t *holes; /* [n][2 * ndim]: start, then count */
};

/* Begins with everything uncovered. shape: [ndim]. NO_MEMORY. cover_fini frees it, also after an error. */
enum rdt_status cover_init(struct cover *cover, uint32_t ndim, const uint64_t *shape, struct rdt_error *err);
void cover_fini(struct cover *cover);

/* Covers the box. Errors, after which nothing has changed: EXISTS (an element of the box is covered already; err has no
 * sentence), LIMIT (more than COVER_MAX_HOLES boxes would be needed), NO_MEMORY. */
enum rdt_status cover_add(struct cover *cover, const uint64_t *start, const uint64_t *count, struct rdt_error *err);

static inline bool cover_is_whole(const struct cover *cover)
{
    return cover->n == 0;
}

/* One box that is not covered: borrowed, until the cover changes. Only if it is not whole. */
static inline const uint64_t *cover_hole(const struct cover *cover)
{
    return cover->holes;
}

#endif
