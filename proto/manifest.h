/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a version of many parts (message Manifest), which is an object:
 *
 *                     metadata                        tensor
 *   MANIFEST_MAGIC    the whole message               none
 *   MANIFEST_LARGE    its fields about the version    its other fields, as U8 [n]: the two together are the message
 *                     and the parts
 *
 * The second form is for what would be too long as metadata, which travel in one message: tensors move like those of any
 * object. Anybody may publish such an object, so nothing in it is trusted before manifest_open has checked it. */
#ifndef PROTO_MANIFEST_H
#define PROTO_MANIFEST_H

#include "proto/layout.h"

#define MANIFEST_MAGIC "rdtshrd3"
#define MANIFEST_LARGE "rdtshrd4"
#define MANIFEST_MAGIC_BYTES 8u
#define MANIFEST_MAX_BOXES (1u << 23) /* of all parts: 4,096 ranks with 2,048 tensors each */
#define MANIFEST_MAX_DIMS (1u << 24)  /* of all these boxes; each takes 8 bytes of the reader's memory */
/* The most bytes of the first form. Releases that know only that form accept no longer metadata. */
#define MANIFEST_MAX_METADATA (4u << 20)
#define MANIFEST_MAX_TENSOR (1u << 30)

struct manifest_layout {
    struct layout *layout;  /* without places */
    char **key;             /* [layout->count], borrowed from the message */
    uint64_t *global_shape; /* [layout->n_dims] */
    uint64_t *start;        /* of the last part with this layout, borrowed from the manifest; NULL: there is none */
};

struct manifest {
    const Rdt__Pb__Manifest *message; /* borrowed */
    size_t n_layouts;
    struct manifest_layout *layouts; /* [n_layouts] */
    uint64_t **start;                /* [parts]: of each part [layout->n_dims] */
    uint64_t *starts;                /* all of them */
};

/* Whether the metadata begin like those of a manifest of any format; the two above are the only ones that are read. */
bool manifest_has_magic(const void *metadata, size_t bytes);

/* Unpacks the message into the arena, which it initialises; arena_fini frees it, also after an error. A field of two bytes may
 * become a hundred in memory, so the arena has room for MANIFEST_ROOM times what arrived at most, and for
 * MANIFEST_MORE_BYTES more than twice that. What the daemon makes takes less than 12 times its bytes, however small the tensors
 * are. Errors: INVALID (it is no such message, or takes more), NO_MEMORY. */
#define MANIFEST_ROOM 24u
#define MANIFEST_MORE_BYTES ((size_t)2 << 30)
enum rdt_status manifest_unpack(struct arena *arena, const void *packed, size_t bytes, Rdt__Pb__Manifest **message_p,
                                struct rdt_error *err);

/* Checks that all indices are in range, that every tensor has a key, and that every box lies within its larger tensor.
 * manifest_close frees *manifest_p, also after an error. Errors: INVALID names the fault; LIMIT, NO_MEMORY. */
enum rdt_status manifest_open(const Rdt__Pb__Manifest *message, struct manifest *manifest_p, struct rdt_error *err);
void manifest_close(struct manifest *manifest);

/* The layout of part i, and its boxes, which are borrowed from the manifest. */
const struct layout *manifest_part(const struct manifest *manifest, size_t i, Rdt__Pb__Boxes *boxes_p);

#endif
