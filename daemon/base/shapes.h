/* A list of packed tensors in a few bytes: dtypes and shapes alone, for objects of which there are a million. Where each tensor lies
 * follows from them (layout_packed). */
#ifndef DAEMON_SHAPES_H
#define DAEMON_SHAPES_H

#include "proto/layout.h"

size_t shapes_bytes(const struct layout *layout);
void shapes_pack(const struct layout *layout, uint8_t *shapes_p); /* shapes_bytes of it */

uint32_t shapes_count(const uint8_t *shapes); /* tensors */

/* As layout_packed gives it. NULL: no memory. */
struct layout *shapes_unpack(const uint8_t *shapes);

#endif
