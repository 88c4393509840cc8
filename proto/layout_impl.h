/* SPDX-License-Identifier: Apache-2.0 */
/* Private to layout.c and layout_wire.c. */
#ifndef PROTO_LAYOUT_IMPL_H
#define PROTO_LAYOUT_IMPL_H

#include "layout.h"

#define LAYOUT_MAX_EXTENT_BYTES ((uint64_t)1 << 63)

/* The stride of dimension d of a row-major tensor, from that of dimension d + 1. Sizes of 0 count as 1, so
 * that strides stay valid where there are no elements. */
static inline uint64_t layout_next_row_major(uint64_t stride, uint64_t size)
{
    return size == 0 ? stride : stride * size;
}

/* How many bytes tensor i reaches before its first element, and from there to the end of its last; both 0
 * if it has no elements. false: more than 2^63. */
static inline bool layout_reach(const struct layout *layout, uint32_t i, uint64_t *before_p, uint64_t *after_p)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    const int64_t *strides = layout->strides + layout->first_dim[i];
    uint64_t item = layout_item_bytes(layout->dtype[i]);
    uint64_t before = 0, after = item;

    *before_p = *after_p = 0;
    /* the most frequent case; the general code gives the same result */
    if (layout->ndim[i] == 1 && strides[0] == 1)
        return !__builtin_mul_overflow(shape[0], item, after_p) && *after_p <= LAYOUT_MAX_EXTENT_BYTES;
    for (uint32_t d = 0; d < layout->ndim[i]; d++) {
        if (shape[d] == 0)
            return true;
    }
    for (uint32_t d = 0; d < layout->ndim[i]; d++) {
        uint64_t step = strides[d] < 0 ? -(uint64_t)strides[d] : (uint64_t)strides[d];
        uint64_t *side = strides[d] < 0 ? &before : &after;
        uint64_t bytes;

        if (__builtin_mul_overflow(shape[d] - 1, step, &bytes) || __builtin_mul_overflow(bytes, item, &bytes) ||
            __builtin_add_overflow(*side, bytes, side) || *side > LAYOUT_MAX_EXTENT_BYTES)
            return false;
    }
    *before_p = before;
    *after_p = after;
    return true;
}

#endif
