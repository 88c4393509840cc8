/* Lists of tensors as columns: from the wire and back, sizes, extents, slices. Copies no element: layout_copy.c does.
 *
 * What layout_from_wire, layout_slice and layout_packed hand out has passed these checks: known dtypes, ndim within
 * bounds, and of every tensor the product of its non-zero dimensions, its bytes and the reach of its strides below 2^63.
 * So the functions that cannot fail need not check again.
 */
#include "layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "wire_limits.h"

#define MAX_EXTENT_BYTES ((uint64_t)1 << 63)

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

/* rdt_dtype_bytes, of which lists of thousands ask several times for each. */
static uint64_t item_bytes(uint32_t dtype)
{
    static const uint8_t sizes[] = {
#define X(number, name, bytes, text, safetensors) [number] = (bytes),
        RDT_DTYPE_MAP(X)
#undef X
    };

    return dtype < sizeof sizes ? sizes[dtype] : 0;
}

uint64_t layout_elems(const struct layout *layout, uint32_t i)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    uint64_t elems = 1;

    for (uint32_t d = 0; d < layout->ndim[i]; d++)
        elems *= shape[d];
    return elems;
}

uint64_t layout_bytes(const struct layout *layout, uint32_t i)
{
    return layout_elems(layout, i) * item_bytes(layout->dtype[i]);
}

uint64_t layout_total_bytes(const struct layout *layout)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < layout->count; i++)
        bytes += layout_bytes(layout, i);
    return bytes;
}

/* The stride of dimension d of a row-major tensor, given the one of dimension d + 1. Dimensions of size 0 count as 1, so
 * that strides stay meaningful where nothing is stored. */
static uint64_t next_row_major(uint64_t stride, uint64_t size)
{
    return size == 0 ? stride : stride * size;
}

void layout_set_row_major(struct layout *layout, uint32_t i)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    int64_t *strides = layout->strides + layout->first_dim[i];
    uint64_t stride = 1;

    for (uint32_t d = layout->ndim[i]; d-- > 0;) {
        strides[d] = (int64_t)stride;
        stride = next_row_major(stride, shape[d]);
    }
}

static bool is_row_major(const struct layout *layout, uint32_t i)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    const int64_t *strides = layout->strides + layout->first_dim[i];
    uint64_t stride = 1;

    for (uint32_t d = layout->ndim[i]; d-- > 0;) {
        if (strides[d] != (int64_t)stride)
            return false;
        stride = next_row_major(stride, shape[d]);
    }
    return true;
}

bool layout_is_contiguous(const struct layout *layout, uint32_t i)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    const int64_t *strides = layout->strides + layout->first_dim[i];
    uint64_t stride = 1;

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

/* How far tensor i reaches before its first element and up to the end of its last; both 0 if it has none. False: beyond
 * 2^63. */
static bool reach(const struct layout *layout, uint32_t i, uint64_t *before_p, uint64_t *after_p)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    const int64_t *strides = layout->strides + layout->first_dim[i];
    uint64_t item = item_bytes(layout->dtype[i]);
    uint64_t before = 0, after = item;

    *before_p = *after_p = 0;
    if (layout->ndim[i] == 1 && strides[0] == 1) /* most of what is many; the general way says the same */
        return !__builtin_mul_overflow(shape[0], item, after_p) && *after_p <= MAX_EXTENT_BYTES;
    for (uint32_t d = 0; d < layout->ndim[i]; d++) {
        if (shape[d] == 0)
            return true;
    }
    for (uint32_t d = 0; d < layout->ndim[i]; d++) {
        uint64_t step = strides[d] < 0 ? -(uint64_t)strides[d] : (uint64_t)strides[d];
        uint64_t *side = strides[d] < 0 ? &before : &after;
        uint64_t bytes;

        if (__builtin_mul_overflow(shape[d] - 1, step, &bytes) || __builtin_mul_overflow(bytes, item, &bytes) ||
            __builtin_add_overflow(*side, bytes, side) || *side > MAX_EXTENT_BYTES)
            return false;
    }
    *before_p = before;
    *after_p = after;
    return true;
}

enum rdt_status layout_extent(const struct layout *layout, uint32_t i, uint64_t *lo_p, uint64_t *hi_p, struct rdt_error *err)
{
    uint64_t offset = layout->offset[i], before, after;

    if (offset > MAX_EXTENT_BYTES || !reach(layout, i, &before, &after) || after > MAX_EXTENT_BYTES - offset)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": reaches beyond 2^63 bytes", i);
    if (before > offset)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": starts %" PRIu64 " bytes before its region", i,
                             before - offset);
    *lo_p = offset - before;
    *hi_p = offset + after;
    return RDT_OK;
}

/* ---- the wire ---- */

/* Dtype and size of tensor i; adds its bytes, which are *bytes_p, to *total. */
static enum rdt_status check_size(const struct layout *layout, uint32_t i, uint64_t *bytes_p, uint64_t *total, struct rdt_error *err)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    uint64_t bytes = item_bytes(layout->dtype[i]);
    bool empty = false;

    if (bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": dtype %" PRIu32 " is unknown", i, layout->dtype[i]);
    for (uint32_t d = 0; d < layout->ndim[i]; d++) {
        /* Zeros are left out: a row-major tensor's strides must be numbers even where it has no elements. */
        if (shape[d] == 0)
            empty = true;
        else if (__builtin_mul_overflow(bytes, shape[d], &bytes) || bytes > INT64_MAX)
            return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": has 2^63 bytes or more", i);
    }
    *bytes_p = empty ? 0 : bytes;
    *total += *bytes_p;
    if (*total > INT64_MAX)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": the tensors up to it have 2^63 bytes or more", i);
    return RDT_OK;
}

/* Whether the columns have the lengths that their list must have; *n_dims_p is the sum of ndim. */
static enum rdt_status check_columns(const Rdt__Pb__TensorList *list, uint32_t *n_dims_p, struct rdt_error *err)
{
    size_t count = list->n_dtype;
    uint32_t n_dims = 0;

    if (count > RDT_MAX_TENSORS)
        return rdt_error_set(err, RDT_LIMIT, "%zu tensors, the most is %u", count, RDT_MAX_TENSORS);
    if (list->n_ndim != count)
        return rdt_error_set(err, RDT_INVALID, "%zu dtypes but %zu ndims", count, list->n_ndim);
    if (list->n_region_index != 0 && list->n_region_index != count)
        return rdt_error_set(err, RDT_INVALID, "%zu tensors but %zu regions", count, list->n_region_index);
    if (list->n_offset != 0 && list->n_offset != count)
        return rdt_error_set(err, RDT_INVALID, "%zu tensors but %zu offsets", count, list->n_offset);
    for (size_t i = 0; i < count; i++) {
        if (list->ndim[i] > RDT_MAX_NDIM)
            return rdt_error_set(err, RDT_INVALID, "tensor %zu: %" PRIu32 " dimensions, the most is %u", i, list->ndim[i],
                                 RDT_MAX_NDIM);
        n_dims += list->ndim[i];
    }
    if (list->n_shape != n_dims)
        return rdt_error_set(err, RDT_INVALID, "%" PRIu32 " dimensions but %zu sizes", n_dims, list->n_shape);
    if (list->n_strides != 0 && list->n_strides != n_dims)
        return rdt_error_set(err, RDT_INVALID, "%" PRIu32 " dimensions but %zu strides", n_dims, list->n_strides);
    *n_dims_p = n_dims;
    return RDT_OK;
}

static void fill_from_columns(struct layout *layout, const Rdt__Pb__TensorList *list)
{
    uint32_t first_dim = 0;

    for (uint32_t i = 0; i < layout->count; i++) {
        layout->dtype[i] = list->dtype[i];
        layout->ndim[i] = list->ndim[i];
        layout->first_dim[i] = first_dim;
        layout->region[i] = list->n_region_index ? list->region_index[i] : 0;
        layout->offset[i] = list->n_offset ? list->offset[i] : 0;
        first_dim += list->ndim[i];
    }
    for (uint32_t d = 0; d < layout->n_dims; d++) {
        layout->shape[d] = list->shape[d];
        if (list->n_strides)
            layout->strides[d] = list->strides[d];
    }
}

static enum rdt_status check_tensors(struct layout *layout, bool row_major, struct rdt_error *err)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < layout->count; i++) {
        uint64_t before, after; /* a row-major one reaches as far as it has bytes */
        enum rdt_status status = check_size(layout, i, &after, &total, err);

        if (status != RDT_OK)
            return status;
        if (row_major)
            layout_set_row_major(layout, i);
        /* Whether it starts before its region is for layout_extent to say: a list without places may well. */
        if (layout->offset[i] > MAX_EXTENT_BYTES || (!row_major && !reach(layout, i, &before, &after)) ||
            after > MAX_EXTENT_BYTES - layout->offset[i])
            return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": reaches beyond 2^63 bytes", i);
    }
    return RDT_OK;
}

enum rdt_status layout_from_wire(const Rdt__Pb__TensorList *list, struct layout **layout_p, struct rdt_error *err)
{
    struct layout *layout;
    uint32_t n_dims = 0;
    enum rdt_status status;

    if (list) {
        status = check_columns(list, &n_dims, err);
        if (status != RDT_OK)
            return status;
    }
    layout = layout_create(list ? (uint32_t)list->n_dtype : 0, n_dims);
    if (!layout)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a list of tensors");
    if (list) {
        fill_from_columns(layout, list);
        status = check_tensors(layout, list->n_strides == 0, err);
        if (status != RDT_OK) {
            free(layout);
            return status;
        }
    }
    *layout_p = layout;
    return RDT_OK;
}

static bool is_all_zero(const uint32_t *numbers, uint32_t n)
{
    uint32_t all = 0;

    for (uint32_t i = 0; i < n; i++)
        all |= numbers[i];
    return all == 0;
}

void layout_to_wire(const struct layout *layout, bool with_place, Rdt__Pb__TensorList *list_p)
{
    bool row_major = true;

    rdt__pb__tensor_list__init(list_p);
    list_p->n_dtype = layout->count;
    list_p->dtype = layout->dtype;
    list_p->n_ndim = layout->count;
    list_p->ndim = layout->ndim;
    list_p->n_shape = layout->n_dims;
    list_p->shape = layout->shape;
    for (uint32_t i = 0; i < layout->count && row_major; i++)
        row_major = is_row_major(layout, i);
    if (!row_major) {
        list_p->n_strides = layout->n_dims;
        list_p->strides = layout->strides;
    }
    if (with_place) {
        list_p->n_region_index = is_all_zero(layout->region, layout->count) ? 0 : layout->count;
        list_p->region_index = layout->region;
        list_p->n_offset = layout->count;
        list_p->offset = layout->offset;
    }
}

/* ---- other layouts of the same tensors ---- */

/* Narrows tensor i of the view to the ranges that start at `first` in the slice's columns. */
static enum rdt_status slice_tensor(struct layout *view, uint32_t i, const Rdt__Pb__Slice *slice, size_t first,
                                    struct rdt_error *err)
{
    uint64_t *shape = view->shape + view->first_dim[i];
    const int64_t *strides = view->strides + view->first_dim[i];
    int64_t item = (int64_t)rdt_dtype_bytes((enum rdt_dtype)view->dtype[i]);
    uint64_t offset = view->offset[i];
    bool overflow = false;

    for (uint32_t d = 0; d < view->ndim[i]; d++) {
        uint64_t start = slice->start[first + d], count = slice->count[first + d];

        if (start > shape[d] || count > shape[d] - start)
            return rdt_error_set(err, RDT_INVALID,
                                 "tensor %" PRIu32 ", dimension %" PRIu32 ": %" PRIu64 " elements from %" PRIu64
                                 " on, it has %" PRIu64,
                                 i, d, count, start, shape[d]);
        shape[d] = count;
    }
    /* A view of nothing stays where it was: past the end of a dimension there need not be a place. */
    if (layout_elems(view, i) == 0)
        return RDT_OK;
    for (uint32_t d = 0; d < view->ndim[i]; d++) {
        int64_t bytes;

        overflow |= __builtin_mul_overflow(slice->start[first + d], strides[d], &bytes);
        overflow |= __builtin_mul_overflow(bytes, item, &bytes);
        offset += (uint64_t)bytes; /* may pass below 0 on the way: only the sum must be a place */
    }
    if (overflow || offset > MAX_EXTENT_BYTES)
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
        return rdt_error_set(err, RDT_INVALID, "the slice is of %zu tensors, the object has %" PRIu32, slice->n_ndim,
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
        if (slice->ndim[i] != layout->ndim[i])
            status = rdt_error_set(err, RDT_INVALID,
                                   "tensor %" PRIu32 ": the slice has %" PRIu32 " ranges for %" PRIu32 " dimensions", i,
                                   slice->ndim[i], layout->ndim[i]);
        else if (slice->ndim[i] > slice->n_start - first)
            status = rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": the slice ends before its ranges", i);
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
        return rdt_error_set(err, RDT_INVALID, "the slice has %zu ranges, its tensors take %zu", slice->n_start, first);
    }
    *layout_p = view;
    return RDT_OK;
}

enum rdt_status layout_packed(const struct layout *layout, struct layout **layout_p, uint64_t *bytes_p, struct rdt_error *err)
{
    struct layout *packed = layout_dup(layout);
    uint64_t end = 0;

    if (!packed)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a packed layout");
    for (uint32_t i = 0; i < packed->count; i++) {
        uint64_t start = (end + LAYOUT_ALIGN_BYTES - 1) / LAYOUT_ALIGN_BYTES * LAYOUT_ALIGN_BYTES;
        uint64_t bytes = layout_bytes(packed, i);

        /* end <= 2^63, so that start cannot have wrapped. */
        if (start > MAX_EXTENT_BYTES || bytes > MAX_EXTENT_BYTES - start) {
            free(packed);
            return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": packed, reaches beyond 2^63 bytes", i);
        }
        packed->region[i] = 0;
        packed->offset[i] = start;
        layout_set_row_major(packed, i);
        end = start + bytes;
    }
    *layout_p = packed;
    *bytes_p = end;
    return RDT_OK;
}

enum rdt_status layout_same_shape(const struct layout *object, const struct layout *target, struct rdt_error *err)
{
    if (object->count != target->count)
        return rdt_error_set(err, RDT_MISMATCH, "the object has %" PRIu32 " tensors, the target %" PRIu32, object->count,
                             target->count);
    for (uint32_t i = 0; i < object->count; i++) {
        const uint64_t *have = object->shape + object->first_dim[i], *want = target->shape + target->first_dim[i];

        if (object->dtype[i] != target->dtype[i]) {
            const char *name = rdt_dtype_name((enum rdt_dtype)object->dtype[i]);
            const char *other = rdt_dtype_name((enum rdt_dtype)target->dtype[i]);

            return rdt_error_set(err, RDT_MISMATCH, "tensor %" PRIu32 ": is %s in the object, %s in the target", i,
                                 name ? name : "of an unknown dtype", other ? other : "of an unknown dtype");
        }
        if (object->ndim[i] != target->ndim[i])
            return rdt_error_set(err, RDT_MISMATCH,
                                 "tensor %" PRIu32 ": has %" PRIu32 " dimensions in the object, %" PRIu32 " in the target", i,
                                 object->ndim[i], target->ndim[i]);
        for (uint32_t d = 0; d < object->ndim[i]; d++) {
            if (have[d] != want[d])
                return rdt_error_set(err, RDT_MISMATCH,
                                     "tensor %" PRIu32 ", dimension %" PRIu32 ": has %" PRIu64
                                     " elements in the object, %" PRIu64 " in the target",
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
            return rdt_error_set(err, RDT_INVALID, "tensor %u of %u, at place %zu of a selection", indices[k], layout->count, k);
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
