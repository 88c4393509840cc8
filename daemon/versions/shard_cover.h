/* SPDX-License-Identifier: Apache-2.0 */
/* Checks whether the parts of a version are boxes that cover every larger tensor once. Uses no table of the daemon; any
 * thread. */
#ifndef DAEMON_SHARD_COVER_H
#define DAEMON_SHARD_COVER_H

#include "daemon/base/map.h"
#include "proto/boxes.h"
#include "proto/layout.h"

struct shard_tensor { /* a larger tensor */
    uint32_t dtype, ndim, first_rank;
    uint64_t *shape; /* [ndim] */
    uint32_t n;      /* boxes that are not empty */
    /* While they are checked: */
    uint32_t n_sorted;
    uint32_t *ranks; /* [n]: the rank of each box */
    uint64_t *boxes; /* [n][2 * ndim]: start, then count */
    uint32_t number; /* for the manifest */
    char key[];
};

/* The boxes of one part. Each part has an allocation of its own, so that adding one takes time only for its own boxes. */
struct shard_boxes {
    struct shard_boxes *next;
    uint32_t number, rank, n;      /* the part's number, its rank; its boxes */
    uint32_t n_dims;               /* of all its boxes */
    struct shard_tensor **tensors; /* [n] */
    uint64_t dims[];               /* of each box in turn: start, then count */
};

/* The keys of tensors that a rank has and leaves to other ranks. Ranks with the same keys share it. */
struct shard_others {
    uint32_t rank; /* the first of them */
    size_t bytes;  /* of the keys, each with its zero */
    char keys[];
};

struct shard_cover {
    /* Of struct shard_tensor. A part may have 131,072, which the loop frees if the version fails: one by one, it took 50 ms. */
    struct arena arena;
    struct map tensors; /* key -> struct shard_tensor */
    struct map others;  /* keys -> struct shard_others */
    bool sorted;        /* tensors have their boxes */
    struct shard_boxes *boxes;
    uint64_t n_boxes, n_dims; /* of all parts */
    uint64_t bytes;           /* of the heap, approximately */
    uint32_t max_tensors;
};

void shard_cover_init(struct shard_cover *cover, uint32_t max_tensors);
void shard_cover_fini(struct shard_cover *cover);

/* Adds the boxes of part `number`, which boxes_read has checked. After an error the cover is of no use. Errors: INVALID names
 * tensor and ranks: a tensor without a key, a dtype or shape that differs between parts; LIMIT: no reader would accept so many
 * boxes, or there are more than max_tensors; NO_MEMORY. */
enum rdt_status shard_cover_add(struct shard_cover *cover, uint32_t number, uint32_t rank, const struct layout *layout,
                                const Rdt__Pb__Boxes *boxes, struct rdt_error *err);

/* Notes the keys, copied, of tensors that some part must have: [bytes], each with its zero. NO_MEMORY. */
enum rdt_status shard_cover_expect(struct shard_cover *cover, uint32_t rank, const char *keys, size_t bytes,
                                   struct rdt_error *err);

/* Whether every element of every tensor is in one box; for one call. Any thread. Errors: INVALID names a tensor and two
 * boxes of it that overlap, with their ranks, a box that no part has, or a tensor that is expected and in no part; LIMIT:
 * the boxes of a tensor interlock in too complicated a way; NO_MEMORY. */
enum rdt_status shard_cover_check(struct shard_cover *cover, struct rdt_error *err);

#endif
