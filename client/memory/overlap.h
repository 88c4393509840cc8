/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors that will be written share memory: one would overwrite the other, and nothing would say so. */
#ifndef CLIENT_OVERLAP_H
#define CLIENT_OVERLAP_H

#include "client/rdt.h"

struct overlap {
    size_t first, second; /* indices of two tensors, first < second */
};

/* Looks for two of the tensors [count] that have a byte in common. Columns of one matrix have none, although they lie between
 * each other. No tensor overlaps itself; each has been checked, and a dtype that is known. twins: NULL, or [count]: twins[i]
 * receives the index of the first tensor that is the same as tensor i in address, dtype, shape and strides, often i itself;
 * such tensors are not reported. Errors: EXISTS: *overlap_p are such tensors; LIMIT: so many tensors lie between each other
 * that it would take too long to find out, and *overlap_p are two of them; NO_MEMORY. */
enum rdt_status overlap_find(const struct rdt_tensor *tensors, size_t count, size_t *twins, struct overlap *overlap_p);

#endif
