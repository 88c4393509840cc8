/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/shards/shard_cover.h"

#include <stdlib.h>
#include <string.h>

#include "proto/cover.h"

/* Numbers that may be compared for one part: some tens of milliseconds. Enough for a box of each of 4096 tensors that are missing
 * in 2000 pieces. */
#define MAX_COMPARED (UINT64_C(32) << 20)

struct shard_tensor {
    struct cover cover;
    uint32_t dtype, ndim, first_rank;
    uint64_t *shape; /* [ndim] */
    uint32_t n, room;
    uint32_t *ranks; /* [n]: whose each box is */
    uint64_t *boxes; /* [n][2 * ndim]: start, then count */
    char key[];
};

static enum rdt_status no_memory(const char *key, struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the boxes of tensor \"%s\"", key);
}

static void tensor_free(struct shard_tensor *tensor)
{
    cover_fini(&tensor->cover);
    free(tensor->shape);
    free(tensor->ranks);
    free(tensor->boxes);
    free(tensor);
}

void shard_cover_init(struct shard_cover *cover)
{
    map_init(&cover->tensors);
}

void shard_cover_fini(struct shard_cover *cover)
{
    struct shard_tensor *tensor;
    size_t cursor = 0;

    while ((tensor = map_next(&cover->tensors, &cursor))) {
        (void)map_remove(&cover->tensors, tensor->key, strlen(tensor->key));
        tensor_free(tensor);
    }
    map_fini(&cover->tensors);
}

static enum rdt_status tensor_new(struct shard_cover *cover, const char *key, uint32_t rank, uint32_t dtype, uint32_t ndim,
                                  const uint64_t *shape, struct shard_tensor **tensor_p, struct rdt_error *err)
{
    size_t key_bytes = strlen(key);
    struct shard_tensor *tensor = calloc(1, sizeof *tensor + key_bytes + 1);

    if (!tensor)
        return no_memory(key, err);
    memcpy(tensor->key, key, key_bytes + 1);
    tensor->dtype = dtype;
    tensor->ndim = ndim;
    tensor->first_rank = rank;
    tensor->shape = calloc(ndim + 1u, sizeof *tensor->shape);
    if (!tensor->shape || cover_init(&tensor->cover, ndim, shape, err) != RDT_OK ||
        !map_put(&cover->tensors, tensor->key, key_bytes, tensor)) {
        tensor_free(tensor);
        return no_memory(key, err);
    }
    memcpy(tensor->shape, shape, ndim * sizeof *shape);
    cover->bytes += sizeof *tensor + key_bytes + 3u * ndim * sizeof *shape;
    *tensor_p = tensor;
    return RDT_OK;
}

static enum rdt_status note_box(struct shard_cover *cover, struct shard_tensor *tensor, uint32_t rank, const uint64_t *start,
                                const uint64_t *count, struct rdt_error *err)
{
    size_t one = 2 * (size_t)tensor->ndim;

    if (tensor->n == tensor->room) {
        uint32_t room = tensor->room ? 2 * tensor->room : 4;
        uint32_t *ranks = realloc(tensor->ranks, room * sizeof *ranks);
        uint64_t *boxes;

        if (!ranks)
            return no_memory(tensor->key, err);
        tensor->ranks = ranks;
        boxes = realloc(tensor->boxes, (room * one + 1) * sizeof *boxes);
        if (!boxes)
            return no_memory(tensor->key, err);
        tensor->boxes = boxes;
        cover->bytes += (room - tensor->room) * (sizeof *ranks + one * sizeof *boxes);
        tensor->room = room;
    }
    tensor->ranks[tensor->n] = rank;
    memcpy(tensor->boxes + tensor->n * one, start, tensor->ndim * sizeof *start);
    memcpy(tensor->boxes + tensor->n * one + tensor->ndim, count, tensor->ndim * sizeof *count);
    tensor->n++;
    return RDT_OK;
}

static enum rdt_status overlap(const struct shard_tensor *tensor, uint32_t rank, const uint64_t *start, const uint64_t *count,
                               struct rdt_error *err)
{
    size_t one = 2 * (size_t)tensor->ndim;
    uint64_t common_start[32], common_count[32];
    char text[BOX_TEXT_BYTES], other[BOX_TEXT_BYTES];

    box_text(tensor->ndim, start, count, text);
    for (uint32_t i = 0; i < tensor->n; i++) {
        const uint64_t *box = tensor->boxes + i * one;
        if (!box_intersect(tensor->ndim, box, box + tensor->ndim, start, count, common_start, common_count))
            continue;
        box_text(tensor->ndim, box, box + tensor->ndim, other);
        return rdt_error_set(
            err, RDT_INVALID,
            "tensor \"%s\": the box %.120s of rank %u overlaps the box %.120s of rank %u: each element must be "
            "published once",
            tensor->key, text, rank, other, tensor->ranks[i]);
    }
    return rdt_error_set(err, RDT_INVALID, "tensor \"%s\": the box %.120s of rank %u was published already", tensor->key, text,
                         rank);
}

static enum rdt_status add_box(struct shard_cover *cover, uint32_t rank, const char *key, uint32_t dtype, uint32_t ndim,
                               const uint64_t *shape, const uint64_t *start, const uint64_t *count, uint64_t *compared,
                               struct rdt_error *err)
{
    struct shard_tensor *tensor = map_get(&cover->tensors, key, strlen(key));
    enum rdt_status status = RDT_OK;

    if (!tensor)
        status = tensor_new(cover, key, rank, dtype, ndim, shape, &tensor, err);
    if (status != RDT_OK)
        return status;
    if (tensor->dtype != dtype)
        return rdt_error_set(err, RDT_INVALID, "tensor \"%s\" is %s in the part of rank %u, and %s in that of rank %u", key,
                             rdt_dtype_name((enum rdt_dtype)tensor->dtype), tensor->first_rank,
                             rdt_dtype_name((enum rdt_dtype)dtype), rank);
    if (tensor->ndim != ndim || memcmp(tensor->shape, shape, ndim * sizeof *shape) != 0)
        return rdt_error_set(err, RDT_INVALID, "the global shape of tensor \"%s\" differs between rank %u and rank %u", key,
                             tensor->first_rank, rank);
    *compared += (uint64_t)(tensor->cover.n + 1) * (ndim + 1);
    if (*compared > MAX_COMPARED)
        return rdt_error_set(
            err, RDT_LIMIT,
            "tensor \"%s\": the boxes of the part of rank %u are too many, or too scattered: publish larger ones", key, rank);
    status = cover_add(&tensor->cover, start, count, err);
    if (status == RDT_EXISTS)
        return overlap(tensor, rank, start, count, err);
    return status == RDT_OK ? note_box(cover, tensor, rank, start, count, err) : status;
}

enum rdt_status shard_cover_add(struct shard_cover *cover, uint32_t rank, const struct layout *layout,
                                const Rdt__Pb__Boxes *boxes, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;
    uint64_t compared = 0;
    size_t at = 0;

    for (uint32_t i = 0; i < layout->count && status == RDT_OK; i++) {
        if (boxes->key[i][0] == '\0')
            return rdt_error_set(err, RDT_INVALID,
                                 "tensor %u of the part of rank %u is no box of a larger tensor: it has no key", i, rank);
        status = add_box(cover, rank, boxes->key[i], layout->dtype[i], layout->ndim[i], boxes->global_shape + at,
                         boxes->start + at, layout->shape + layout->first_dim[i], &compared, err);
        at += layout->ndim[i];
    }
    return status;
}

enum rdt_status shard_cover_check_whole(const struct shard_cover *cover, struct rdt_error *err)
{
    const struct shard_tensor *tensor;
    char text[BOX_TEXT_BYTES];
    size_t cursor = 0;

    while ((tensor = map_next(&cover->tensors, &cursor))) {
        if (cover_is_whole(&tensor->cover))
            continue;
        box_text(tensor->ndim, cover_hole(&tensor->cover), cover_hole(&tensor->cover) + tensor->ndim, text);
        return rdt_error_set(err, RDT_INVALID, "tensor \"%s\": no rank has published the box %.200s", tensor->key, text);
    }
    return RDT_OK;
}
