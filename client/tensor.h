/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a layout of the caller's tensors after checking them. It knows addresses, but no regions. */
#ifndef CLIENT_TENSOR_H
#define CLIENT_TENSOR_H

#include <stddef.h>

#include "proto/layout.h"
#include "rdt.h"

/* Creates a layout, which the caller frees. Its offsets are the addresses themselves and its regions are all 0, so
 * layout_extent gives the addresses that a tensor touches. Errors: INVALID (the sentence names the tensor), LIMIT (too many
 * tensors), NO_MEMORY. */
enum rdt_status tensor_layout(const struct rdt_tensor *tensors, size_t count, struct layout **layout_p, struct rdt_error *err);

#endif
