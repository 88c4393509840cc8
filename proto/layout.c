/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of tensors as columns: sizes, extents, slices. layout_copy.c copies elements; layout_wire.c
 * converts from and to the wire.
 *
 * Every layout from layout_from_wire, layout_slice and layout_packed has passed these checks: known
 * dtypes, ndim within bounds, and for each tensor the product of its non-zero dimensions, its bytes and
 * the reach of its strides are below 2^63. Functions that cannot fail rely on that. */
#include "layout_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "wire_limits.h"

struct layout *layout_create(uint32_t count, uint32_t n_dims)
{
    struct layout *layout;
    uint64_t *words;
    uint32_t *halves;

    layout = malloc(layout_heap_bytes(&(struct layout){.count = count, .n_dims = n_dims}));
    if (!layout)
        return NULL;
    words = (uint64_t *)(layout + 1);
    layout->count = count;
    layout->n_dims = n_dims;
    layout->offset = words;
    layout->shape = words + count;
    layout->strides = (int64_t *)(layout->shape + n_dims);
    halves = (uint32_t *)(layout->strides + n_dims);
    layout->dtype = halves;
    layout->ndim = halves + count;
    layout->first_dim = halves + 2 * (size_t)count;
    layout->region = halves + 3 * (size_t)count;
    return layout;
}

struct layout *layout_dup(const struct layout *layout)
{
    struct layout *dup = layout_create(layout->count, layout->n_dims);

    if (!dup)
        return NULL;
    memcpy(dup->dtype, layout->dtype, layout->count * sizeof *layout->dtype);
    memcpy(dup->ndim, layout->ndim, layout->count * sizeof *layout->ndim);
    memcpy(dup->first_dim, layout->first_dim, layout->count * sizeof *layout->first_dim);
    memcpy(dup->region, layout->region, layout->count * sizeof *layout->region);
    memcpy(dup->offset, layout->offset, layout->count * sizeof *layout->offset);
    memcpy(dup->shape, layout->shape, layout->n_dims * sizeof *layout->shape);
    memcpy(dup->strides, layout->strides, layout->n_dims * sizeof *layout->strides);
    return dup;
}

/* ---- sizes ---- */

uint64_t layout_total_bytes(const struct layout *layout)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < layout->count; i++)
        bytes += layout_bytes(layout, i);
    return bytes;
}

void layout_set_row_major(struct layout *layout, uint32_t i)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    int64_t *strides = layout->strides + layout->first_dim[i];
    uint64_t stride = 1;

    for (uint32_t d = layout->ndim[i]; d-- > 0;) {
        strides[d] = (int64_t)stride;
        stride = layout_next_row_major(stride, shape[d]);
    }
}

bool layout_is_contiguous(const struct layout *layout, uint32_t i)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    const int64_t *strides = layout->strides + layout->first_dim[i];
    uint64_t stride = 1;

    if (layout->ndim[i] == 1) /* the most frequent case */
        return strides[0] == 1 || shape[0] <= 1;
    if (layout_elems(layout, i) == 0)
        return true;
    for (uint32_t d = layout->ndim[i]; d-- > 0;) {
        if (shape[d] == 1)
            continue;
        if (strides[d] != (int64_t)stride)
            return false;
        stride *= shape[d];
    }
    return true;
}

enum rdt_status layout_extent(const struct layout *layout, uint32_t i, uint64_t *lo_p, uint64_t *hi_p, struct rdt_error *err)
{
    uint64_t offset = layout->offset[i], before, after;

    if (offset > LAYOUT_MAX_EXTENT_BYTES || !layout_reach(layout, i, &before, &after) ||
        after > LAYOUT_MAX_EXTENT_BYTES - offset)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": reaches beyond 2^63 bytes", i);
    if (before > offset)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": starts %" PRIu64 " bytes before its region", i,
                             before - offset);
    *lo_p = offset - before;
    *hi_p = offset + after;
    return RDT_OK;
}

/* ---- other layouts of the same tensors ---- */

/* Narrows tensor i of the view to the ranges that start at `first` in the slice's columns. Dimensions without one stay. */
static enum rdt_status slice_tensor(struct layout *view, uint32_t i, const Rdt__Pb__Slice *slice, size_t first,
                                    struct rdt_error *err)
{
    uint64_t *shape = view->shape + view->first_dim[i];
    const int64_t *strides = view->strides + view->first_dim[i];
    int64_t item = (int64_t)rdt_dtype_bytes((enum rdt_dtype)view->dtype[i]);
    uint64_t offset = view->offset[i];
    bool overflow = false;

    for (uint32_t d = 0; d < slice->ndim[i]; d++) {
        uint64_t start = slice->start[first + d], count = slice->count[first + d];

        if (start > shape[d] || count > shape[d] - start)
            return rdt_error_set(err, RDT_INVALID,
                                 "tensor %" PRIu32 ", dimension %" PRIu32 ": %" PRIu64 " elements from %" PRIu64
                                 " on, but it has only %" PRIu64,
                                 i, d, count, start, shape[d]);
        shape[d] = count;
    }
    /* The offset of a view without elements is not changed: it could point past the end of the region. */
    if (layout_elems(view, i) == 0)
        return RDT_OK;
    for (uint32_t d = 0; d < slice->ndim[i]; d++) {
        int64_t bytes;

        overflow |= __builtin_mul_overflow(slice->start[first + d], strides[d], &bytes);
        overflow |= __builtin_mul_overflow(bytes, item, &bytes);
        offset += (uint64_t)bytes; /* a part of the sum may be negative; only the whole must be within the region */
    }
    if (overflow || offset > LAYOUT_MAX_EXTENT_BYTES)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": the slice lies outside its region", i);
    view->offset[i] = offset;
    return RDT_OK;
}

enum rdt_status layout_slice(const struct layout *layout, const Rdt__Pb__Slice *slice, struct layout **layout_p,
                             struct rdt_error *err)
{
    struct layout *view;
    size_t first = 0;

    if (slice && slice->n_ndim != layout->count)
        return rdt_error_set(err, RDT_INVALID, "the slice is of %zu tensors, but the object has %" PRIu32, slice->n_ndim,
                             layout->count);
    if (slice && slice->n_start != slice->n_count)
        return rdt_error_set(err, RDT_INVALID, "the slice has %zu starts but %zu counts", slice->n_start, slice->n_count);
    view = layout_dup(layout);
    if (!view)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a slice");
    for (uint32_t i = 0; slice && i < layout->count; i++) {
        enum rdt_status status;

        if (slice->ndim[i] == 0)
            continue;
        if (slice->ndim[i] > layout->ndim[i])
            status = rdt_error_set(err, RDT_INVALID,
                                   "tensor %" PRIu32 ": the slice has %" PRIu32 " ranges for %" PRIu32 " dimensions", i,
                                   slice->ndim[i], layout->ndim[i]);
        else if (slice->ndim[i] > slice->n_start - first)
            status = rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": the slice lacks its ranges", i);
        else
            status = slice_tensor(view, i, slice, first, err);
        if (status != RDT_OK) {
            free(view);
            return status;
        }
        first += slice->ndim[i];
    }
    if (slice && first != slice->n_start) {
        free(view);
        return rdt_error_set(err, RDT_INVALID, "the slice has %zu ranges, but its tensors need %zu", slice->n_start, first);
    }
    *layout_p = view;
    return RDT_OK;
}

/* Computes where tensor i starts and ends when the one before it ended at *end_p. */
static enum rdt_status pack_next(const struct layout *layout, uint32_t i, uint64_t *start_p, uint64_t *end_p,
                                 struct rdt_error *err)
{
    uint64_t start = (*end_p + LAYOUT_ALIGN_BYTES - 1) / LAYOUT_ALIGN_BYTES * LAYOUT_ALIGN_BYTES;
    uint64_t bytes = layout_bytes(layout, i);

    /* *end_p <= 2^63, so start cannot have overflowed. */
    if (start > LAYOUT_MAX_EXTENT_BYTES || bytes > LAYOUT_MAX_EXTENT_BYTES - start)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": reaches beyond 2^63 bytes when it is packed", i);
    *start_p = start;
    *end_p = start + bytes;
    return RDT_OK;
}

enum rdt_status layout_packed(const struct layout *layout, struct layout **layout_p, uint64_t *bytes_p, struct rdt_error *err)
{
    struct layout *packed = layout_dup(layout);
    uint64_t end = 0;

    if (!packed)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a packed layout");
    for (uint32_t i = 0; i < packed->count; i++) {
        enum rdt_status status = pack_next(packed, i, &packed->offset[i], &end, err);

        if (status != RDT_OK) {
            free(packed);
            return status;
        }
        packed->region[i] = 0;
        layout_set_row_major(packed, i);
    }
    *layout_p = packed;
    *bytes_p = end;
    return RDT_OK;
}

enum rdt_status layout_packed_bytes(const struct layout *layout, uint64_t *bytes_p, struct rdt_error *err)
{
    uint64_t start, end = 0;
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; i < layout->count && status == RDT_OK; i++)
        status = pack_next(layout, i, &start, &end, err);
    if (status == RDT_OK)
        *bytes_p = end;
    return status;
}

enum rdt_status layout_same_shape(const struct layout *object, const struct layout *target, struct rdt_error *err)
{
    if (object->count != target->count)
        return rdt_error_set(err, RDT_MISMATCH, "the object has %" PRIu32 " tensors, but the target has %" PRIu32 "%s",
                             object->count, target->count,
                             object->count > 0 ? "" : ": if it is a version of many parts, a plan reads it into targets");
    if (object->n_dims == target->n_dims && memcmp(object->dtype, target->dtype, object->count * sizeof *object->dtype) == 0 &&
        memcmp(object->ndim, target->ndim, object->count * sizeof *object->ndim) == 0 &&
        memcmp(object->shape, target->shape, object->n_dims * sizeof *object->shape) == 0)
        return RDT_OK; /* otherwise the loop below finds the tensor that differs */
    for (uint32_t i = 0; i < object->count; i++) {
        const uint64_t *have = object->shape + object->first_dim[i], *want = target->shape + target->first_dim[i];

        if (object->dtype[i] != target->dtype[i]) {
            const char *name = rdt_dtype_name((enum rdt_dtype)object->dtype[i]);
            const char *other = rdt_dtype_name((enum rdt_dtype)target->dtype[i]);

            return rdt_error_set(err, RDT_MISMATCH, "tensor %" PRIu32 ": is %s in the object, but %s in the target", i,
                                 name ? name : "of an unknown dtype", other ? other : "of an unknown dtype");
        }
        if (object->ndim[i] != target->ndim[i])
            return rdt_error_set(err, RDT_MISMATCH,
                                 "tensor %" PRIu32 ": has %" PRIu32 " dimensions in the object, but %" PRIu32 " in the target",
                                 i, object->ndim[i], target->ndim[i]);
        for (uint32_t d = 0; d < object->ndim[i]; d++) {
            if (have[d] != want[d])
                return rdt_error_set(err, RDT_MISMATCH,
                                     "tensor %" PRIu32 ", dimension %" PRIu32 ": has %" PRIu64
                                     " elements in the object, but %" PRIu64 " in the target",
                                     i, d, have[d], want[d]);
        }
    }
    return RDT_OK;
}

enum rdt_status layout_select(const struct layout *layout, const uint32_t *indices, size_t n, struct layout **layout_p,
                              struct rdt_error *err)
{
    uint32_t n_dims = 0, at = 0;
    struct layout *view;

    for (size_t k = 0; k < n; k++) {
        if (indices[k] >= layout->count || (k > 0 && indices[k] <= indices[k - 1]))
            return rdt_error_set(err, RDT_INVALID, "tensor %u of %u, at place %zu of a selection", indices[k], layout->count,
                                 k);
        n_dims += layout->ndim[indices[k]];
    }
    view = layout_create((uint32_t)n, n_dims);
    if (!view)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %zu tensors", n);
    for (size_t k = 0; k < n; k++) {
        uint32_t i = indices[k];
        view->dtype[k] = layout->dtype[i];
        view->ndim[k] = layout->ndim[i];
        view->first_dim[k] = at;
        view->region[k] = layout->region[i];
        view->offset[k] = layout->offset[i];
        for (uint32_t d = 0; d < layout->ndim[i]; d++, at++) {
            view->shape[at] = layout->shape[layout->first_dim[i] + d];
            view->strides[at] = layout->strides[layout->first_dim[i] + d];
        }
    }
    *layout_p = view;
    return RDT_OK;
}
