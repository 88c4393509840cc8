/* SPDX-License-Identifier: Apache-2.0 */
/* Packs what rdt_put_options.shards says into the message PUT. */
#ifndef CLIENT_SHARDS_H
#define CLIENT_SHARDS_H

#include "proto/layout.h"
#include "rdt.h"

/* The metadata of a put with the packed boxes behind it. */
struct shards_packed {
    uint8_t *metadata; /* NULL: the put has no boxes */
    size_t metadata_bytes;
    uint32_t box_bytes; /* of which these are the boxes */
};

/* options->shards is not NULL. layout: of the tensors that are put. Errors: INVALID names the tensor; LIMIT: metadata and boxes
 * are too long together; NO_MEMORY. */
enum rdt_status shards_pack(const struct rdt_put_options *options, const struct layout *layout, struct shards_packed *packed_p,
                            struct rdt_error *err);
void shards_packed_fini(struct shards_packed *packed);

#endif
