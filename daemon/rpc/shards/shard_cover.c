/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/shards/shard_cover.h"

#include <stdlib.h>
#include <string.h>

#include "proto/cover.h"

#define MAX_DEPTH 64u             /* the depth of nested cuts; below it, boxes are compared one by one */
#define MAX_COMPARED (1ull << 26) /* boxes that are compared with one another: about 0.3 s of a worker's time */

static enum rdt_status no_memory(const char *key, struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the boxes of tensor \"%s\"", key);
}

/* ---- collecting ---- */

static void tensor_free(struct shard_tensor *tensor)
{
    free(tensor->shape);
    free(tensor->ranks);
    free(tensor->boxes);
    free(tensor);
}

void shard_cover_init(struct shard_cover *cover)
{
    *cover = (struct shard_cover){0};
    map_init(&cover->tensors);
}

void shard_cover_fini(struct shard_cover *cover)
{
    struct shard_tensor *tensor;
    size_t cursor = 0;

    while ((tensor = map_next(&cover->tensors, &cursor)))
        tensor_free(tensor);
    map_fini(&cover->tensors);
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
    struct shard_tensor *tensor = calloc(1, sizeof *tensor + key_bytes + 1);

    if (!tensor)
        return no_memory(key, err);
    memcpy(tensor->key, key, key_bytes + 1);
    tensor->dtype = dtype;
    tensor->ndim = ndim;
    tensor->first_rank = rank;
    tensor->number = UINT32_MAX;
    tensor->shape = calloc(ndim + 1u, sizeof *tensor->shape);
    if (!tensor->shape || !map_put(&cover->tensors, tensor->key, key_bytes, tensor)) {
        tensor_free(tensor);
        return no_memory(key, err);
    }
    memcpy(tensor->shape, shape, ndim * sizeof *shape);
    cover->bytes += sizeof *tensor + key_bytes + ndim * sizeof *shape;
    cover->manifest_bytes += key_bytes;
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

static struct shard_boxes *boxes_new(const struct layout *layout, uint32_t rank)
{
    size_t dims = 2 * (size_t)layout->n_dims * sizeof(uint64_t), tensors = layout->count * sizeof(struct shard_tensor *);
    struct shard_boxes *boxes = malloc(sizeof *boxes + dims + tensors);

    if (!boxes)
        return NULL;
    *boxes = (struct shard_boxes){.rank = rank, .n_dims = layout->n_dims};
    boxes->tensors = (struct shard_tensor **)(void *)(boxes->dims + 2 * (size_t)layout->n_dims);
    return boxes;
}

static unsigned varint_bytes(uint64_t value)
{
    return (70u - (unsigned)__builtin_clzll(value | 1)) / 7;
}

enum rdt_status shard_cover_add(struct shard_cover *cover, uint32_t rank, const struct layout *layout,
                                const Rdt__Pb__Boxes *boxes, struct rdt_error *err)
{
    struct shard_boxes *noted = boxes_new(layout, rank);
    enum rdt_status status;
    uint64_t *dims;
    size_t at = 0;

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
        for (uint32_t d = 0; d < ndim; d++)
            cover->manifest_bytes += varint_bytes(boxes->start[at + d]);
        at += ndim;
    }
    return RDT_OK;
}

/* ---- checking ---- */

struct edge {
    uint64_t start;
    uint32_t box;
};

/* The check of one tensor. The region that is checked is a box, and all boxes of [lo, hi) of `order` lie within it. */
struct checker {
    const struct shard_tensor *tensor;
    uint32_t *order;    /* [n]: indices of boxes */
    struct edge *edges; /* [n], for sorting */
    uint64_t n_compared;
    uint64_t start[32], count[32]; /* the region */
};

static const uint64_t *box_of(const struct checker *checker, uint32_t at)
{
    return checker->tensor->boxes + 2 * (size_t)checker->tensor->ndim * checker->order[at];
}

static uint64_t end_of(const struct checker *checker, uint32_t at, uint32_t d)
{
    const uint64_t *box = box_of(checker, at);

    return box[d] + box[checker->tensor->ndim + d];
}

/* part: "", or "all of " if a part of the region is covered. */
static enum rdt_status hole(const struct checker *checker, const char *part, struct rdt_error *err)
{
    char text[BOX_TEXT_BYTES];

    box_text(checker->tensor->ndim, checker->start, checker->count, text);
    return rdt_error_set(err, RDT_INVALID, "tensor \"%s\": no rank has published %sthe box %.200s", checker->tensor->key, part,
                         text);
}

static enum rdt_status overlap(const struct checker *checker, uint32_t a, uint32_t b, struct rdt_error *err)
{
    const struct shard_tensor *tensor = checker->tensor;
    bool in_order = tensor->ranks[checker->order[a]] >= tensor->ranks[checker->order[b]];
    uint32_t later = in_order ? a : b, earlier = in_order ? b : a;
    char text[BOX_TEXT_BYTES], other[BOX_TEXT_BYTES];

    box_text(tensor->ndim, box_of(checker, later), box_of(checker, later) + tensor->ndim, text);
    box_text(tensor->ndim, box_of(checker, earlier), box_of(checker, earlier) + tensor->ndim, other);
    return rdt_error_set(err, RDT_INVALID,
                         "tensor \"%s\": the box %.120s of rank %u overlaps the box %.120s of rank %u: each element must be "
                         "published once",
                         tensor->key, text, tensor->ranks[checker->order[later]], other,
                         tensor->ranks[checker->order[earlier]]);
}

static int compare_edges(const void *a, const void *b)
{
    const struct edge *left = a, *right = b;

    if (left->start != right->start)
        return left->start > right->start ? 1 : -1;
    return left->box > right->box ? 1 : -1;
}

/* Orders the boxes of [lo, hi) by where they start in dimension d. */
static void sort(struct checker *checker, uint32_t d, uint32_t lo, uint32_t hi)
{
    bool sorted = true;

    for (uint32_t i = lo; i < hi; i++) {
        checker->edges[i] = (struct edge){box_of(checker, i)[d], checker->order[i]};
        sorted = sorted && (i == lo || checker->edges[i - 1].start <= checker->edges[i].start);
    }
    if (sorted)
        return;
    qsort(checker->edges + lo, hi - lo, sizeof *checker->edges, compare_edges);
    for (uint32_t i = lo; i < hi; i++)
        checker->order[i] = checker->edges[i].box;
}

/* The end of the boxes, sorted by d, that hang together from `from` on: a cut behind the last of them, *to_p, meets none. */
static uint64_t run_end(const struct checker *checker, uint32_t d, uint32_t from, uint32_t hi, uint32_t *to_p)
{
    uint64_t end = end_of(checker, from, d);
    uint32_t i = from + 1;

    for (; i < hi && box_of(checker, i)[d] < end; i++)
        end = end_of(checker, i, d) > end ? end_of(checker, i, d) : end;
    *to_p = i;
    return end;
}

/* The region cannot be cut without cutting a box: it has one box, boxes that overlap, or boxes that interlock. */
static enum rdt_status compare_all(struct checker *checker, uint32_t lo, uint32_t hi, struct rdt_error *err)
{
    const struct shard_tensor *tensor = checker->tensor;
    uint64_t elems = 0, common_start[32], common_count[32];

    for (uint32_t i = lo; i < hi; i++) {
        const uint64_t *box = box_of(checker, i);

        elems += box_elems(tensor->ndim, box + tensor->ndim);
        checker->n_compared += i - lo;
        if (checker->n_compared > MAX_COMPARED)
            return rdt_error_set(err, RDT_LIMIT,
                                 "tensor \"%s\": its %u boxes interlock in a way that takes too long to check: cut it along "
                                 "its dimensions",
                                 tensor->key, tensor->n);
        for (uint32_t k = lo; k < i; k++)
            if (box_intersect(tensor->ndim, box_of(checker, k), box_of(checker, k) + tensor->ndim, box, box + tensor->ndim,
                              common_start, common_count))
                return overlap(checker, i, k, err);
    }
    return elems == box_elems(tensor->ndim, checker->count) ? RDT_OK : hole(checker, "all of ", err);
}

/* Checks that the boxes of [lo, hi) fill the region: cuts it wherever no box is in the way, then looks at each piece. The
 * boxes of a grid, or of a grid whose cells are cut again, take O(n log n) time. */
static enum rdt_status check_region(struct checker *checker, uint32_t lo, uint32_t hi, unsigned depth, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;
    uint32_t d = 0, to;

    for (; d < checker->tensor->ndim && depth < MAX_DEPTH; d++) {
        uint64_t end;
        sort(checker, d, lo, hi);
        end = run_end(checker, d, lo, hi, &to);
        if (to < hi || box_of(checker, lo)[d] > checker->start[d] || end < checker->start[d] + checker->count[d])
            break;
    }
    if (d == checker->tensor->ndim || depth == MAX_DEPTH)
        return compare_all(checker, lo, hi, err);
    uint64_t first = checker->start[d], all = checker->count[d], at = first;
    for (uint32_t i = lo; i < hi && status == RDT_OK; i = to) {
        uint64_t begin = box_of(checker, i)[d], end = run_end(checker, d, i, hi, &to);

        checker->start[d] = at;
        checker->count[d] = (begin > at ? begin : end) - at;
        status = begin > at ? hole(checker, "", err) : check_region(checker, i, to, depth + 1, err);
        at = end;
    }
    if (status == RDT_OK && at < first + all) {
        checker->start[d] = at;
        checker->count[d] = first + all - at;
        status = hole(checker, "", err);
    }
    checker->start[d] = first;
    checker->count[d] = all;
    return status;
}

static enum rdt_status check_tensor(const struct shard_tensor *tensor, struct rdt_error *err)
{
    struct checker checker = {.tensor = tensor};
    enum rdt_status status;

    if (box_elems(tensor->ndim, tensor->shape) == 0)
        return RDT_OK;
    memcpy(checker.count, tensor->shape, tensor->ndim * sizeof *tensor->shape);
    if (tensor->n == 0)
        return hole(&checker, "", err);
    checker.order = malloc(tensor->n * sizeof *checker.order);
    checker.edges = malloc(tensor->n * sizeof *checker.edges);
    for (uint32_t i = 0; checker.order && i < tensor->n; i++)
        checker.order[i] = i;
    status = checker.order && checker.edges ? check_region(&checker, 0, tensor->n, 0, err) : no_memory(tensor->key, err);
    free(checker.order);
    free(checker.edges);
    return status;
}

/* Gives every tensor its boxes. */
static enum rdt_status sort_by_tensor(struct shard_cover *cover, struct rdt_error *err)
{
    struct shard_tensor *tensor;
    size_t cursor = 0;

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

enum rdt_status shard_cover_check(struct shard_cover *cover, struct rdt_error *err)
{
    const struct shard_tensor *tensor;
    enum rdt_status status = sort_by_tensor(cover, err);
    size_t cursor = 0;

    while (status == RDT_OK && (tensor = map_next(&cover->tensors, &cursor)))
        status = check_tensor(tensor, err);
    return status;
}
