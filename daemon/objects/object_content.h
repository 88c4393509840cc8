/* SPDX-License-Identifier: Apache-2.0 */
/* The content of a put, whose size grows with its tensors, metadata and inline bytes, in the form in which
 * the object stores it. It uses no table, so any thread may compute it, and an object of many tensors
 * delays nobody else (rpc_read.h). */
#ifndef DAEMON_OBJECT_CONTENT_H
#define DAEMON_OBJECT_CONTENT_H

#include "daemon/objects/object_table.h"

/* metadata and shapes of more bytes than this get an allocation of their own */
#define OBJECT_SEPARATE_BYTES (16u << 10)

struct object_content {        /* must not be moved in memory */
    struct region_span *spans; /* of the layout: one for each region, and one for the inline bytes */
    struct region_span few_spans[3];
    uint64_t bytes;  /* of all tensors */
    uint8_t *packed; /* put without regions: the tensors, packed as in the arena; NULL: they have no bytes */
    bool borrowed;   /* packed and the put's layout belong to the caller */
    uint64_t packed_bytes;
    size_t shapes_bytes; /* put without regions */
    uint8_t *separate;   /* metadata, then shapes; NULL: they fit into the object. The object takes it. */
};

/* Computes the content from the put's layout, n_regions, metadata and inline bytes. Errors: INVALID names
 * the tensor that lies in no region, begins before its region, or ends beyond the inline bytes (the caller
 * checks the ends of regions); LIMIT: too many inline bytes; NO_MEMORY. */
enum rdt_status object_content_init(struct object_content *content, const struct object_put *put, struct rdt_error *err);

/* The same for a put without regions whose tensors, of `bytes` bytes, have been packed as the arena stores them; they and
 * the layout are borrowed, and inline_data is not used. Error: NO_MEMORY. */
enum rdt_status object_content_of_packed(struct object_content *content, const struct object_put *put, const uint8_t *packed,
                                         uint64_t bytes, struct rdt_error *err);

/* frees what no object has taken; a zeroed struct is allowed */
void object_content_fini(struct object_content *content);

#endif
