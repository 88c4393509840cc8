/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a version, as read from the metadata of the object that is published under the name. */
#ifndef CLIENT_MANIFEST_H
#define CLIENT_MANIFEST_H

#include "client/plan/pieces.h"
#include "client/rdt_plan.h"
#include "proto/layout.h"
#include "rdt.pb-c.h"

struct manifest_part {
    struct rdt_ref ref;
    uint64_t bytes;
    struct layout *layout;   /* without places */
    Rdt__Pb__Boxes *boxes;   /* in the message */
    uint32_t *first_box_dim; /* [layout->count] */
    uint8_t *shape;          /* packed tensors and boxes: parts with equal ones have the same layout */
    size_t shape_bytes;
};

struct rdt_manifest {
    rdt *conn;
    rdt_request *hold;
    Rdt__Pb__Manifest *message;
    struct manifest_part *parts; /* [message->n_parts] */
};

/* The tensors of all parts, in order: [*n_p], the caller's to free; their pointers are borrowed from the manifest. NULL: no
 * memory. */
struct source *manifest_sources(const rdt_manifest *manifest, size_t *n_p);

/* Whether both versions have the same boxes in the same parts, wherever these lie. */
bool manifest_same_layout(const rdt_manifest *a, const rdt_manifest *b);

#endif
