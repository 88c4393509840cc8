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

/* Computes the checksum of tensors, data [layout->count], in memory that this process can read, with their metadata (without
 * boxes). The offsets of the layout are not used. NO_MEMORY. */
enum rdt_status tensor_sum(const struct layout *layout, void *const *data, const void *metadata, size_t metadata_bytes,
                           uint64_t *sum_p, struct rdt_error *err);

#endif
