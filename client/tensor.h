/* The caller's tensors, checked, as columns. Knows addresses and no regions. */
#ifndef CLIENT_TENSOR_H
#define CLIENT_TENSOR_H

#include <stddef.h>

#include "proto/layout.h"
#include "rdt.h"

/* A layout of them, to be freed, whose offsets are the addresses themselves and whose regions are all 0:
 * layout_extent gives the addresses that a tensor touches. INVALID names the tensor and what is wrong with it;
 * LIMIT: too many; NO_MEMORY. */
enum rdt_status tensor_layout(const struct rdt_tensor *tensors, size_t count, struct layout **layout_p, struct rdt_error *err);

#endif
