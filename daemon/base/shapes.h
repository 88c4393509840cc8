/* SPDX-License-Identifier: Apache-2.0 */
/* The dtypes and shapes of packed tensors in a few bytes, because there may be a million objects. The
 * offset of each tensor follows from them (layout_packed). */
#ifndef DAEMON_SHAPES_H
#define DAEMON_SHAPES_H

#include "proto/layout.h"

size_t shapes_bytes(const struct layout *layout);
void shapes_pack(const struct layout *layout, uint8_t *shapes_p); /* writes shapes_bytes(layout) bytes */

uint32_t shapes_count(const uint8_t *shapes); /* number of tensors */

/* Returns the layout as layout_packed makes it; the caller frees it. NULL: out of memory. */
struct layout *shapes_unpack(const uint8_t *shapes);

#endif
