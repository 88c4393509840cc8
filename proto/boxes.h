/* SPDX-License-Identifier: Apache-2.0 */
/* What the tensors of an object are boxes of (message Boxes), which lies packed behind the object's metadata. */
#ifndef PROTO_BOXES_H
#define PROTO_BOXES_H

#include "proto/layout.h"

#define RDT_MAX_KEY_BYTES 256u /* the key of a tensor */

/* Decodes Boxes into the arena, and checks that they fit the layout: one key for each tensor, every box within its larger
 * tensor, which has fewer than 2^63 elements. `packed` is borrowed. Errors: INVALID names the tensor, LIMIT, NO_MEMORY. */
enum rdt_status boxes_read(struct arena *arena, const void *packed, size_t bytes, const struct layout *layout,
                           const Rdt__Pb__Boxes **boxes_p, struct rdt_error *err);

/* The check alone, of boxes that are decoded. */
enum rdt_status boxes_fit(const Rdt__Pb__Boxes *boxes, const struct layout *layout, struct rdt_error *err);

/* The same as boxes_read without the result. */
enum rdt_status boxes_check(const void *packed, size_t bytes, const struct layout *layout, struct rdt_error *err);

#endif
