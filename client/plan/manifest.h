/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a version, as read from the metadata of the object that is published under the name. */
#ifndef CLIENT_MANIFEST_H
#define CLIENT_MANIFEST_H

#include "client/plan/pieces.h"
#include "client/rdt_plan.h"
#include "proto/manifest.h"
#include "rdt.pb-c.h"

struct manifest_part {
    struct rdt_ref ref;
    uint64_t bytes;
    const struct layout *layout; /* parts with the same tensors share it */
    Rdt__Pb__Boxes boxes;        /* whose columns are borrowed; every tensor has a key */
};

struct rdt_manifest {
    rdt *conn;
    rdt_request *hold;
    struct arena arena; /* of the message */
    Rdt__Pb__Manifest *message;
    struct manifest checked;
    struct manifest_part *parts; /* [message->n_parts] */
};

/* Reads the manifest that the object is, without a hold. name: for errors. Errors: INVALID, UNSUPPORTED, NO_MEMORY. */
enum rdt_status manifest_read(rdt *conn, const rdt_object *object, const struct rdt_ref *name, rdt_manifest **manifest_p,
                              struct rdt_error *err);

/* The tensors of all parts, in order of their keys in the manifest, then of the parts: [*n_p], the caller's to free; their
 * pointers are borrowed from the manifest. NULL: no memory. */
struct source *manifest_sources(const rdt_manifest *manifest, size_t *n_p);

/* Whether both versions have the same boxes in the same parts, wherever these lie. */
bool manifest_same_layout(const rdt_manifest *a, const rdt_manifest *b);

#endif
