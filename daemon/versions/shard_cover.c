/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/versions/shard_cover.h"

#include <stdlib.h>
#include <string.h>

#include "proto/cover.h"
#include "proto/manifest.h"

static enum rdt_status no_memory(const char *key, struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the boxes of tensor \"%s\"", key);
}

/* ---- collecting ---- */

void shard_cover_init(struct shard_cover *cover, uint32_t max_tensors)
{
    *cover = (struct shard_cover){.max_tensors = max_tensors};
    arena_init(&cover->arena, SIZE_MAX);
    map_init(&cover->tensors);
    map_init(&cover->others);
}

void shard_cover_fini(struct shard_cover *cover)
{
    struct shard_tensor *tensor;
    struct shard_others *others;
    size_t cursor = 0;

    while (cover->sorted && (tensor = map_next(&cover->tensors, &cursor))) {
        free(tensor->ranks);
        free(tensor->boxes);
    }
    map_fini(&cover->tensors);
    arena_fini(&cover->arena);
    cursor = 0;
    while ((others = map_next(&cover->others, &cursor)))
        free(others);
    map_fini(&cover->others);
    while (cover->boxes) {
        struct shard_boxes *next = cover->boxes->next;
        free(cover->boxes);
        cover->boxes = next;
    }
}

static enum rdt_status tensor_new(struct shard_cover *cover, const char *key, uint32_t rank, uint32_t dtype, uint32_t ndim,
                                  const uint64_t *shape, struct shard_tensor **tensor_p, struct rdt_error *err)
{
    size_t key_bytes = strlen(key);
    struct shard_tensor *tensor;

    if (map_count(&cover->tensors) >= cover->max_tensors)
        return rdt_error_set(err, RDT_LIMIT,
                             "the version would have more tensors than the %u of version_max_tensors, with \"%s\" of rank %u: "
                             "publish fewer, or raise it",
                             cover->max_tensors, key, rank);
    tensor = arena_alloc(&cover->arena, sizeof *tensor + key_bytes + 1);
    if (!tensor)
        return no_memory(key, err);
    *tensor = (struct shard_tensor){.dtype = dtype, .ndim = ndim, .first_rank = rank, .number = UINT32_MAX};
    memcpy(tensor->key, key, key_bytes + 1);
    tensor->shape = arena_alloc(&cover->arena, (ndim + 1u) * sizeof *tensor->shape);
    if (!tensor->shape || !map_put(&cover->tensors, tensor->key, key_bytes, tensor))
        return no_memory(key, err);
    memcpy(tensor->shape, shape, ndim * sizeof *shape);
    cover->bytes += sizeof *tensor + 2 * key_bytes + ndim * sizeof *shape; /* the manifest has the key, too */
    *tensor_p = tensor;
    return RDT_OK;
}

/* Finds or adds the tensor of that key, which every part must describe alike. */
static enum rdt_status find_tensor(struct shard_cover *cover, uint32_t rank, const char *key, uint32_t dtype, uint32_t ndim,
                                   const uint64_t *shape, struct shard_tensor **tensor_p, struct rdt_error *err)
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
    *tensor_p = tensor;
    return RDT_OK;
}

static struct shard_boxes *boxes_new(const struct layout *layout, uint32_t number, uint32_t rank)
{
    size_t dims = 2 * (size_t)layout->n_dims * sizeof(uint64_t), tensors = layout->count * sizeof(struct shard_tensor *);
    struct shard_boxes *boxes = malloc(sizeof *boxes + dims + tensors);

    if (!boxes)
        return NULL;
    *boxes = (struct shard_boxes){.number = number, .rank = rank, .n_dims = layout->n_dims};
    boxes->tensors = (struct shard_tensor **)(void *)(boxes->dims + 2 * (size_t)layout->n_dims);
    return boxes;
}

enum rdt_status shard_cover_add(struct shard_cover *cover, uint32_t number, uint32_t rank, const struct layout *layout,
                                const Rdt__Pb__Boxes *boxes, struct rdt_error *err)
{
    struct shard_boxes *noted;
    enum rdt_status status;
    uint64_t *dims;
    size_t at = 0;

    cover->n_boxes += layout->count;
    cover->n_dims += layout->n_dims;
    if (cover->n_boxes > MANIFEST_MAX_BOXES || cover->n_dims > MANIFEST_MAX_DIMS)
        return rdt_error_set(err, RDT_LIMIT,
                             "the version would have more than %u boxes, or they would have more than %u dimensions: publish "
                             "fewer tensors",
                             MANIFEST_MAX_BOXES, MANIFEST_MAX_DIMS);
    noted = boxes_new(layout, number, rank);
    if (!noted)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the boxes of rank %u", rank);
    dims = noted->dims;
    noted->next = cover->boxes;
    cover->boxes = noted;
    /* the same amount again while they are sorted */
    cover->bytes += 2 * (sizeof *noted + 2 * (size_t)layout->n_dims * sizeof *dims + layout->count * sizeof *noted->tensors);
    for (uint32_t i = 0; i < layout->count; i++) {
        const uint64_t *count = layout->shape + layout->first_dim[i];
        uint32_t ndim = layout->ndim[i];
        struct shard_tensor *tensor = NULL;

        if (boxes->key[i][0] == '\0')
            return rdt_error_set(err, RDT_INVALID,
                                 "tensor %u of the part of rank %u is not a box of a larger tensor: it has no key", i, rank);
        status = find_tensor(cover, rank, boxes->key[i], layout->dtype[i], ndim, boxes->global_shape + at, &tensor, err);
        if (status != RDT_OK)
            return status;
        memcpy(dims, boxes->start + at, ndim * sizeof *dims);
        memcpy(dims + ndim, count, ndim * sizeof *dims);
        dims += 2 * (size_t)ndim;
        noted->tensors[noted->n++] = tensor;
        tensor->n += box_elems(ndim, count) > 0;
        at += ndim;
    }
    return RDT_OK;
}

enum rdt_status shard_cover_expect(struct shard_cover *cover, uint32_t rank, const char *keys, size_t bytes,
                                   struct rdt_error *err)
{
    struct shard_others *others;

    if (bytes == 0 || map_get(&cover->others, keys, bytes))
        return RDT_OK;
    others = malloc(sizeof *others + bytes);
    if (!others)
        return no_memory(keys, err);
    *others = (struct shard_others){.rank = rank, .bytes = bytes};
    memcpy(others->keys, keys, bytes);
    if (!map_put(&cover->others, others->keys, bytes, others)) {
        free(others);
        return no_memory(keys, err);
    }
    cover->bytes += sizeof *others + bytes;
    return RDT_OK;
}

/* ---- checking ---- */

static enum rdt_status hole(const struct shard_tensor *tensor, const struct cover_fault *fault, struct rdt_error *err)
{
    char text[BOX_TEXT_BYTES];

    box_text(tensor->ndim, fault->start, fault->count, text);
    return rdt_error_set(err, RDT_INVALID, "tensor \"%s\": no rank has published %sthe box %.200s", tensor->key,
                         fault->some_covered ? "all of " : "", text);
}

static enum rdt_status overlap(const struct shard_tensor *tensor, const struct cover_fault *fault, struct rdt_error *err)
{
    bool in_order = tensor->ranks[fault->box] >= tensor->ranks[fault->other];
    uint32_t later = in_order ? fault->box : fault->other, earlier = in_order ? fault->other : fault->box;
    const uint64_t *a = tensor->boxes + 2 * (size_t)tensor->ndim * later,
                   *b = tensor->boxes + 2 * (size_t)tensor->ndim * earlier;
    char text[BOX_TEXT_BYTES], other[BOX_TEXT_BYTES];

    box_text(tensor->ndim, a, a + tensor->ndim, text);
    box_text(tensor->ndim, b, b + tensor->ndim, other);
    return rdt_error_set(err, RDT_INVALID,
                         "tensor \"%s\": the box %.120s of rank %u overlaps the box %.120s of rank %u: each element must be "
                         "published once",
                         tensor->key, text, tensor->ranks[later], other, tensor->ranks[earlier]);
}

static enum rdt_status check_tensor(const struct shard_tensor *tensor, struct rdt_error *err)
{
    struct cover_fault fault;

    switch (cover_check(tensor->ndim, tensor->shape, tensor->boxes, tensor->n, &fault)) {
    case RDT_OK:
        return RDT_OK;
    case RDT_NOT_FOUND:
        return hole(tensor, &fault, err);
    case RDT_EXISTS:
        return overlap(tensor, &fault, err);
    case RDT_LIMIT:
        return rdt_error_set(err, RDT_LIMIT,
                             "tensor \"%s\": its %u boxes interlock in a way that takes too long to check: cut it along its "
                             "dimensions",
                             tensor->key, tensor->n);
    default:
        return no_memory(tensor->key, err);
    }
}

/* Gives every tensor its boxes. */
static enum rdt_status sort_by_tensor(struct shard_cover *cover, struct rdt_error *err)
{
    struct shard_tensor *tensor;
    size_t cursor = 0;

    cover->sorted = true;
    while ((tensor = map_next(&cover->tensors, &cursor))) {
        tensor->ranks = malloc((tensor->n + 1u) * sizeof *tensor->ranks);
        tensor->boxes = malloc((2 * (size_t)tensor->ndim * tensor->n + 1) * sizeof *tensor->boxes);
        if (!tensor->ranks || !tensor->boxes)
            return no_memory(tensor->key, err);
    }
    for (const struct shard_boxes *boxes = cover->boxes; boxes; boxes = boxes->next) {
        const uint64_t *dims = boxes->dims;

        for (uint32_t i = 0; i < boxes->n; i++) {
            size_t one;

            tensor = boxes->tensors[i];
            one = 2 * (size_t)tensor->ndim;
            if (box_elems(tensor->ndim, dims + tensor->ndim) > 0) {
                memcpy(tensor->boxes + one * tensor->n_sorted, dims, one * sizeof *dims);
                tensor->ranks[tensor->n_sorted++] = boxes->rank;
            }
            dims += one;
        }
    }
    return RDT_OK;
}

static enum rdt_status check_others(const struct shard_cover *cover, const struct shard_others *others, struct rdt_error *err)
{
    for (size_t at = 0; at < others->bytes; at += strlen(others->keys + at) + 1) {
        const char *key = others->keys + at;

        if (!map_get(&cover->tensors, key, strlen(key)))
            return rdt_error_set(
                err, RDT_INVALID,
                "tensor \"%s\": rank %u has it, but no rank has published it: that rank must (for rdtd.torch, by a "
                "layout such as (0, 0, 1))",
                key, others->rank);
    }
    return RDT_OK;
}

enum rdt_status shard_cover_check(struct shard_cover *cover, struct rdt_error *err)
{
    const struct shard_tensor *tensor;
    const struct shard_others *others;
    enum rdt_status status = sort_by_tensor(cover, err);
    size_t cursor = 0;

    while (status == RDT_OK && (tensor = map_next(&cover->tensors, &cursor)))
        status = check_tensor(tensor, err);
    cursor = 0;
    while (status == RDT_OK && (others = map_next(&cover->others, &cursor)))
        status = check_others(cover, others, err);
    return status;
}
