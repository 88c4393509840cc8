/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the parts of a version are boxes that cover every larger tensor once. Pure bookkeeping, for any thread. */
#ifndef DAEMON_SHARD_COVER_H
#define DAEMON_SHARD_COVER_H

#include "daemon/base/map.h"
#include "proto/boxes.h"

struct shard_cover {
    struct map tensors; /* key -> struct shard_tensor, of the .c file */
    uint64_t bytes;     /* about so many of the heap */
};

void shard_cover_init(struct shard_cover *cover);
void shard_cover_fini(struct shard_cover *cover);

/* Adds the boxes of a part, which boxes_read has checked. After an error the cover is of no use. Errors: INVALID names tensor,
 * box and ranks: a tensor without a key, a dtype or shape that differs between parts, boxes that overlap; LIMIT: the boxes are so
 * scattered that the loop would stand still; NO_MEMORY. */
enum rdt_status shard_cover_add(struct shard_cover *cover, uint32_t rank, const struct layout *layout,
                                const Rdt__Pb__Boxes *boxes, struct rdt_error *err);

/* INVALID names a tensor, and a box of it, that no part has. */
enum rdt_status shard_cover_check_whole(const struct shard_cover *cover, struct rdt_error *err);

#endif
