/* SPDX-License-Identifier: Apache-2.0 */
/* Sorts the tensors by address. Those whose first and last bytes do not lie between those of another one are done; the others
 * are compared in pairs, row by row. */
#include "client/memory/overlap.h"

#include <stdlib.h>

#include "proto/rdt_dtype.h"
#include "proto/wire_limits.h"

#define MOST_STEPS (UINT64_C(1) << 28) /* a few seconds; 20,000 columns of one matrix take as many */

struct span {
    int64_t from, to; /* addresses of the first byte, and behind the last one */
    size_t index;
    const struct rdt_tensor *tensor;
};

struct axis {
    int64_t stride, count; /* bytes */
};

/* A tensor's bytes: runs of contiguous ones, at equal distances in every axis. */
struct grid {
    uint32_t n;
    struct axis axis[RDT_MAX_NDIM];  /* [n], the one with the longest stride first */
    int64_t reach[RDT_MAX_NDIM + 1]; /* [n + 1]: bytes from the first to behind the last one of axes i to n; [n]: of a run */
};

static int64_t stride_of(const struct rdt_tensor *tensor, uint32_t d)
{
    int64_t stride = 1;

    if (tensor->strides)
        return tensor->strides[d];
    for (uint32_t after = d + 1; after < tensor->ndim; after++)
        stride *= tensor->shape[after];
    return stride;
}

/* false: the tensor has no elements. */
static bool span_of(const struct rdt_tensor *tensor, size_t index, struct span *span_p)
{
    int64_t bytes = (int64_t)rdt_dtype_bytes(tensor->dtype), low = 0, high = bytes;

    for (uint32_t d = 0; d < tensor->ndim; d++) {
        int64_t length = (tensor->shape[d] - 1) * stride_of(tensor, d) * bytes;

        if (tensor->shape[d] == 0)
            return false;
        *(length < 0 ? &low : &high) += length;
    }
    *span_p = (struct span){(int64_t)(uintptr_t)tensor->data + low, (int64_t)(uintptr_t)tensor->data + high, index, tensor};
    return true;
}

/* Tells tensors apart that begin at one byte. */
static int compare_shapes(const struct rdt_tensor *a, const struct rdt_tensor *b)
{
    if (a->data != b->data)
        return (uintptr_t)a->data < (uintptr_t)b->data ? -1 : 1;
    if (a->dtype != b->dtype || a->ndim != b->ndim)
        return a->dtype != b->dtype ? (int)a->dtype - (int)b->dtype : a->ndim < b->ndim ? -1 : 1;
    for (uint32_t d = 0; d < a->ndim; d++) {
        if (a->shape[d] != b->shape[d])
            return a->shape[d] < b->shape[d] ? -1 : 1;
        if (a->shape[d] > 1 && stride_of(a, d) != stride_of(b, d))
            return stride_of(a, d) < stride_of(b, d) ? -1 : 1;
    }
    return 0;
}

/* Equal tensors lie beside each other, the first one first. */
static int by_address(const void *a, const void *b)
{
    const struct span *one = a, *other = b;
    int order = one->from != other->from ? (one->from < other->from ? -1 : 1) : compare_shapes(one->tensor, other->tensor);

    return order ? order : one->index < other->index ? -1 : one->index > other->index;
}

static int by_stride(const void *a, const void *b)
{
    const struct axis *one = a, *other = b;

    return one->stride > other->stride ? -1 : one->stride < other->stride;
}

static void grid_of(const struct rdt_tensor *tensor, struct grid *grid_p)
{
    int64_t bytes = (int64_t)rdt_dtype_bytes(tensor->dtype), run = bytes;

    grid_p->n = 0;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        int64_t stride = stride_of(tensor, d) * bytes;

        if (tensor->shape[d] > 1)
            grid_p->axis[grid_p->n++] = (struct axis){stride < 0 ? -stride : stride, tensor->shape[d]};
    }
    qsort(grid_p->axis, grid_p->n, sizeof grid_p->axis[0], by_stride);
    while (grid_p->n > 0 && grid_p->axis[grid_p->n - 1].stride == run)
        run *= grid_p->axis[--grid_p->n].count;
    grid_p->reach[grid_p->n] = run;
    for (uint32_t i = grid_p->n; i-- > 0;)
        grid_p->reach[i] = grid_p->reach[i + 1] + grid_p->axis[i].stride * (grid_p->axis[i].count - 1);
}

enum answer { APART, SHARE, UNKNOWN };

struct subgrid { /* of a grid: the axes from `axis` on, from an address on */
    const struct grid *grid;
    uint32_t axis;
    int64_t at;
};

static struct subgrid inside(const struct subgrid *grid, int64_t at)
{
    return (struct subgrid){grid->grid, grid->axis + 1, at};
}

static int64_t stride_in(const struct subgrid *grid)
{
    return grid->axis < grid->grid->n ? grid->grid->axis[grid->axis].stride : 0;
}

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t floor_div(int64_t a, int64_t b) /* b > 0 */
{
    return a / b - (a % b < 0);
}

/* Tries the rows of `a` that reach into `b`. In axes with equal strides, what counts is only how many rows lie between the
 * row of `a` and that of `b`. */
static enum answer compare(const struct subgrid *a, const struct subgrid *b, uint64_t *steps)
{
    int64_t reach_a = a->grid->reach[a->axis], reach_b = b->grid->reach[b->axis], stride = stride_in(a), first = 0, last;
    bool both = stride > 0 && stride == stride_in(b);

    if (a->at + reach_a <= b->at || b->at + reach_b <= a->at)
        return APART;
    if (*steps == 0)
        return UNKNOWN;
    (*steps)--;
    if (stride < stride_in(b))
        return compare(b, a, steps);
    if (stride == 0)
        return SHARE;
    reach_a = a->grid->reach[a->axis + 1];
    last = a->grid->axis[a->axis].count - 1;
    if (both) {
        reach_b = b->grid->reach[b->axis + 1];
        first = 1 - b->grid->axis[b->axis].count;
    }
    first = max(first, floor_div(b->at - a->at - reach_a, stride) + 1);
    last = min(last, floor_div(b->at + reach_b - a->at - 1, stride));
    for (int64_t row = first; row <= last; row++) {
        struct subgrid one = inside(a, a->at + row * stride), other = both ? inside(b, b->at) : *b;
        enum answer answer = compare(&one, &other, steps);

        if (answer != APART)
            return answer;
    }
    return APART;
}

static enum rdt_status report(const struct span *a, const struct span *b, enum rdt_status status, struct overlap *overlap_p)
{
    bool swapped = a->index > b->index;

    *overlap_p = (struct overlap){swapped ? b->index : a->index, swapped ? a->index : b->index};
    return status;
}

/* Compares tensors of which each lies between the bytes of another one. */
static enum rdt_status compare_all(const struct span *spans, size_t n, uint64_t *steps, struct overlap *overlap_p)
{
    struct grid *grids = n > 1 ? malloc(n * sizeof *grids) : NULL;
    size_t *open = n > 1 ? malloc(n * sizeof *open) : NULL, n_open = 0; /* those that have not ended */
    enum rdt_status status = n < 2 || (grids && open) ? RDT_OK : RDT_NO_MEMORY;

    for (size_t i = 0; i < n && n > 1 && status == RDT_OK; i++) {
        size_t left = 0;

        grid_of(spans[i].tensor, &grids[i]);
        for (size_t k = 0; k < n_open && status == RDT_OK; k++) {
            const struct span *before = &spans[open[k]];
            struct subgrid one = {&grids[open[k]], 0, before->from}, other = {&grids[i], 0, spans[i].from};
            enum answer answer;

            if (before->to <= spans[i].from)
                continue;
            open[left++] = open[k];
            answer = compare(&one, &other, steps);
            if (answer != APART)
                status = report(before, &spans[i], answer == SHARE ? RDT_EXISTS : RDT_LIMIT, overlap_p);
        }
        n_open = left;
        open[n_open++] = i;
    }
    free(grids);
    free(open);
    return status;
}

enum rdt_status overlap_find(const struct rdt_tensor *tensors, size_t count, size_t *twins, struct overlap *overlap_p)
{
    struct span *spans = malloc((count + 1) * sizeof *spans);
    uint64_t steps = MOST_STEPS;
    enum rdt_status status = spans ? RDT_OK : RDT_NO_MEMORY;
    size_t n = 0, kept = 0;

    for (size_t i = 0; i < count && spans; i++) {
        if (twins)
            twins[i] = i;
        n += span_of(&tensors[i], i, &spans[n]);
    }
    if (n > 1)
        qsort(spans, n, sizeof *spans, by_address);
    for (size_t i = 0; i < n; i++) {
        if (kept > 0 && twins && compare_shapes(spans[kept - 1].tensor, spans[i].tensor) == 0)
            twins[spans[i].index] = spans[kept - 1].index;
        else
            spans[kept++] = spans[i];
    }
    for (size_t i = 0, next; i < kept && status == RDT_OK; i = next) {
        int64_t end = spans[i].to;

        for (next = i + 1; next < kept && spans[next].from < end; next++)
            end = max(end, spans[next].to);
        status = compare_all(spans + i, next - i, &steps, overlap_p);
    }
    free(spans);
    return status;
}
