/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the parts of a version are boxes that cover every larger tensor once. Pure bookkeeping, for any thread. */
#ifndef DAEMON_SHARD_COVER_H
#define DAEMON_SHARD_COVER_H

#include "daemon/base/map.h"
#include "proto/boxes.h"

struct shard_cover {
    struct map tensors; /* key -> struct shard_tensor, of the .c file */
    struct shard_boxes *boxes;
    uint64_t bytes; /* about so many of the heap */
};

void shard_cover_init(struct shard_cover *cover);
void shard_cover_fini(struct shard_cover *cover);

/* Adds the boxes of a part, which boxes_read has checked. After an error the cover is of no use. Errors: INVALID names tensor
 * and ranks: a tensor without a key, a dtype or shape that differs between parts; NO_MEMORY. */
enum rdt_status shard_cover_add(struct shard_cover *cover, uint32_t rank, const struct layout *layout,
                                const Rdt__Pb__Boxes *boxes, struct rdt_error *err);

/* Whether every element of every tensor is in one box; for one call. Any thread. Errors: INVALID names a tensor and two
 * boxes of it that overlap, with their ranks, or a box that no part has; LIMIT: the boxes of a tensor interlock in too
 * complicated a way; NO_MEMORY. */
enum rdt_status shard_cover_check(struct shard_cover *cover, struct rdt_error *err);

#endif
