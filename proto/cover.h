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

#define BOX_TEXT_BYTES 512u /* enough for a box of 32 dimensions whose numbers are not all large; longer ones are cut */

uint64_t box_elems(uint32_t ndim, const uint64_t *count); /* 0 if a dimension is 0 */

/* Writes the elements that both boxes have to start_p and count_p [ndim]. false: there are none, and the results are
 * undefined. */
bool box_intersect(uint32_t ndim, const uint64_t *start_a, const uint64_t *count_a, const uint64_t *start_b,
                   const uint64_t *count_b, uint64_t *start_p, uint64_t *count_p);

/* Writes "[0:4, 8:16]", each dimension as start:end, to text_p [BOX_TEXT_BYTES]. */
void box_text(uint32_t ndim, const uint64_t *start, const uint64_t *count, char *text_p);

/* The reason why boxes do not fill a tensor. */
struct cover_fault {
    uint64_t start[32], count[32]; /* NOT_FOUND: a region that boxes do not cover, or not all of it */
    bool some_covered;             /* boxes cover some of that region */
    uint32_t box, other;           /* EXISTS: indices of two boxes that overlap */
};

/* Whether the boxes, [n][2 * ndim], start then count, none of them empty and all within the tensor, have each of its elements
 * once. Errors: NOT_FOUND, EXISTS: *fault_p says where; LIMIT: the boxes interlock in too complicated a way; NO_MEMORY. */
enum rdt_status cover_check(uint32_t ndim, const uint64_t *shape, const uint64_t *boxes, uint32_t n,
                            struct cover_fault *fault_p);

#endif
