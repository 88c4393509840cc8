/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and casts, or compares, boxes of strided tensors in host memory. */
#ifndef CLIENT_STRIDED_H
#define CLIENT_STRIDED_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/rdt_dtype.h"

struct strided {
    enum rdt_dtype dtype;
    uint8_t *data;          /* of the box's first element */
    const int64_t *strides; /* [ndim] elements */
};

/* The dtypes are equal or can be cast (cast_check). The memory must not overlap. */
void strided_copy(uint32_t ndim, const uint64_t *count, const struct strided *from, const struct strided *to);

/* Whether both boxes have the same bytes when their elements have been cast to `dtype`. */
bool strided_equal(uint32_t ndim, const uint64_t *count, const struct strided *a, const struct strided *b,
                   enum rdt_dtype dtype);

#endif
