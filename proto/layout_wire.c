/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of tensors from the wire and to it, tensor by tensor or in runs. A hostile list is refused before
 * memory is allocated for the tensors that it claims. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "layout_impl.h"
#include "wire_limits.h"

/* ---- from the wire ---- */

/* Sets *bytes_p to the bytes of tensor i and adds them to *total. Checks dtype and size. */
static enum rdt_status check_size(const struct layout *layout, uint32_t i, uint64_t *bytes_p, uint64_t *total,
                                  struct rdt_error *err)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    uint64_t bytes = layout_item_bytes(layout->dtype[i]);
    bool empty = false;

    if (bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": dtype %" PRIu32 " is unknown", i, layout->dtype[i]);
    for (uint32_t d = 0; d < layout->ndim[i]; d++) {
        /* sizes of 0 are left out: a row-major tensor needs valid strides even without elements */
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

/* the size of a list when its runs are expanded */
struct size {
    uint32_t count, n_dims;
};

/* Adds the tensors of row i to *size_p. */
static enum rdt_status add_row(const Rdt__Pb__TensorList *list, size_t i, struct size *size_p, struct rdt_error *err)
{
    uint32_t run = list->n_run ? list->run[i] : 1;

    if (list->ndim[i] > RDT_MAX_NDIM)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": %" PRIu32 " dimensions: at most %u are allowed",
                             size_p->count, list->ndim[i], RDT_MAX_NDIM);
    if (run == 0)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": its run has no tensors", size_p->count);
    if (list->n_run && (run > RDT_MAX_RUN_TENSORS || size_p->count > RDT_MAX_RUN_TENSORS - run))
        return rdt_error_set(err, RDT_LIMIT, "the runs have more than %u tensors", RDT_MAX_RUN_TENSORS);
    size_p->count += run;
    size_p->n_dims += run * list->ndim[i]; /* both are bounded */
    if (list->n_run && size_p->n_dims > RDT_MAX_RUN_DIMS)
        return rdt_error_set(err, RDT_LIMIT, "the tensors of the runs have more than %u dimensions", RDT_MAX_RUN_DIMS);
    return RDT_OK;
}

/* Checks the lengths of the columns. */
static enum rdt_status check_columns(const Rdt__Pb__TensorList *list, struct size *size_p, struct rdt_error *err)
{
    size_t rows = list->n_dtype;
    uint32_t n_dims = 0; /* of the rows */

    *size_p = (struct size){0};
    if (rows > RDT_MAX_TENSORS)
        return rdt_error_set(err, RDT_LIMIT, "%zu tensors: at most %u are allowed", rows, RDT_MAX_TENSORS);
    if (list->n_ndim != rows)
        return rdt_error_set(err, RDT_INVALID, "%zu dtypes but %zu ndims", rows, list->n_ndim);
    if (list->n_region_index != 0 && list->n_region_index != rows)
        return rdt_error_set(err, RDT_INVALID, "%zu tensors but %zu regions", rows, list->n_region_index);
    if (list->n_offset != 0 && list->n_offset != rows)
        return rdt_error_set(err, RDT_INVALID, "%zu tensors but %zu offsets", rows, list->n_offset);
    if (list->n_run != 0 && list->n_run != rows)
        return rdt_error_set(err, RDT_INVALID, "%zu rows but %zu runs", rows, list->n_run);
    if (list->n_step != 0 && (list->n_step != rows || list->n_run == 0))
        return rdt_error_set(err, RDT_INVALID, "%zu runs but %zu steps", list->n_run, list->n_step);
    for (size_t i = 0; i < rows; i++) {
        enum rdt_status status = add_row(list, i, size_p, err);

        if (status != RDT_OK)
            return status;
        n_dims += list->ndim[i];
    }
    if (n_dims > RDT_MAX_DIMS)
        return rdt_error_set(err, RDT_LIMIT, "%zu tensors with %" PRIu32 " dimensions: at most %u are allowed", rows, n_dims,
                             RDT_MAX_DIMS);
    if (list->n_shape != n_dims)
        return rdt_error_set(err, RDT_INVALID, "%" PRIu32 " dimensions but %zu sizes", n_dims, list->n_shape);
    if (list->n_strides != 0 && list->n_strides != n_dims)
        return rdt_error_set(err, RDT_INVALID, "%" PRIu32 " dimensions but %zu strides", n_dims, list->n_strides);
    return RDT_OK;
}

/* Copies the first of n elements of `bytes` bytes to the others. */
static void repeat(void *first, size_t bytes, uint32_t n)
{
    size_t all = n * bytes;

    for (size_t done = bytes; done < all;) {
        size_t part = done < all - done ? done : all - done;

        memcpy((uint8_t *)first + done, first, part);
        done += part;
    }
}

/* Repeats tensor i, which has been checked, run - 1 times. */
static void expand(struct layout *layout, uint32_t i, uint32_t run, uint64_t step)
{
    uint32_t ndim = layout->ndim[i], first_dim = layout->first_dim[i];

    repeat(layout->dtype + i, sizeof *layout->dtype, run);
    repeat(layout->ndim + i, sizeof *layout->ndim, run);
    repeat(layout->region + i, sizeof *layout->region, run);
    if (ndim > 0) {
        repeat(layout->shape + first_dim, ndim * sizeof *layout->shape, run);
        repeat(layout->strides + first_dim, ndim * sizeof *layout->strides, run);
    }
    for (uint32_t k = 1; k < run; k++)
        layout->first_dim[i + k] = first_dim + k * ndim;
    for (uint32_t k = 1; k < run; k++)
        layout->offset[i + k] = layout->offset[i] + k * step;
}

/* Checks the extent of tensor i, which is in place, and of the others in its run; adds their bytes to
 * *total. */
static enum rdt_status check_run(struct layout *layout, uint32_t i, bool row_major, uint32_t run, uint64_t step,
                                 uint64_t *total, struct rdt_error *err)
{
    uint64_t before, after = 0, more, last; /* a row-major tensor's reach is its bytes */
    enum rdt_status status = check_size(layout, i, &after, total, err);

    if (status != RDT_OK)
        return status;
    if (__builtin_mul_overflow(after, run - 1, &more) || __builtin_add_overflow(*total, more, total) || *total > INT64_MAX)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": the tensors of its run have 2^63 bytes or more", i);
    if (row_major)
        layout_set_row_major(layout, i);
    /* Whether a tensor starts before its region is checked by layout_extent, because a list without places
     * may have such tensors. */
    if (__builtin_mul_overflow(step, run - 1, &last) || __builtin_add_overflow(last, layout->offset[i], &last) ||
        last > LAYOUT_MAX_EXTENT_BYTES || (!row_major && !layout_reach(layout, i, &before, &after)) ||
        after > LAYOUT_MAX_EXTENT_BYTES - last)
        return rdt_error_set(err, RDT_INVALID, "tensor %" PRIu32 ": reaches beyond 2^63 bytes", i + run - 1);
    return RDT_OK;
}

static enum rdt_status fill_from_columns(struct layout *layout, const Rdt__Pb__TensorList *list, struct rdt_error *err)
{
    const uint64_t *shape = list->shape;
    const int64_t *strides = list->n_strides ? list->strides : NULL;
    uint32_t i = 0, first_dim = 0;
    uint64_t total = 0;

    for (size_t row = 0; row < list->n_dtype; row++) {
        uint32_t ndim = list->ndim[row], run = list->n_run ? list->run[row] : 1;
        uint64_t step = list->n_step ? list->step[row] : 0;
        enum rdt_status status;

        layout->dtype[i] = list->dtype[row];
        layout->ndim[i] = ndim;
        layout->first_dim[i] = first_dim;
        layout->region[i] = list->n_region_index ? list->region_index[row] : 0;
        layout->offset[i] = list->n_offset ? list->offset[row] : 0;
        for (uint32_t d = 0; d < ndim; d++) {
            layout->shape[first_dim + d] = *shape++;
            if (strides)
                layout->strides[first_dim + d] = *strides++;
        }
        status = check_run(layout, i, !strides, run, step, &total, err);
        if (status != RDT_OK)
            return status;
        if (run > 1)
            expand(layout, i, run, step);
        i += run;
        first_dim += run * ndim;
    }
    return RDT_OK;
}

enum rdt_status layout_from_wire(const Rdt__Pb__TensorList *list, struct layout **layout_p, struct rdt_error *err)
{
    struct layout *layout;
    struct size size = {0};
    enum rdt_status status;

    if (list) {
        status = check_columns(list, &size, err);
        if (status != RDT_OK)
            return status;
    }
    layout = layout_create(size.count, size.n_dims);
    if (!layout)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a list of tensors");
    if (list) {
        status = fill_from_columns(layout, list, err);
        if (status != RDT_OK) {
            free(layout);
            return status;
        }
    }
    *layout_p = layout;
    return RDT_OK;
}

uint64_t layout_run_tensors(const Rdt__Pb__TensorList *list)
{
    uint64_t n = 0;

    for (size_t i = 0; i < list->n_run; i++)
        n += list->run[i];
    return n;
}

/* ---- to the wire ---- */

static bool is_row_major(const struct layout *layout, uint32_t i)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    const int64_t *strides = layout->strides + layout->first_dim[i];
    uint64_t stride = 1;

    for (uint32_t d = layout->ndim[i]; d-- > 0;) {
        if (strides[d] != (int64_t)stride)
            return false;
        stride = layout_next_row_major(stride, shape[d]);
    }
    return true;
}

static bool is_all_zero(const uint32_t *numbers, uint32_t n)
{
    uint32_t all = 0;

    for (uint32_t i = 0; i < n; i++)
        all |= numbers[i];
    return all == 0;
}

/* How many of the n numbers of a column, from `at` on, equal the one `period` before them. */
static uint32_t as_before(const void *column, size_t bytes, uint32_t at, uint32_t n, uint32_t period)
{
    const uint8_t *now = (const uint8_t *)column + at * bytes, *before = now - period * bytes;
    uint32_t k = 0;

    if (memcmp(now, before, n * bytes) == 0)
        return n;
    while (memcmp(now + k * bytes, before + k * bytes, bytes) == 0)
        k++;
    return k;
}

/* How many of the n tensors behind tensor j, which is part of a run, continue the run. The columns that
 * differ most often are compared first. */
static uint32_t more_alike(const struct layout *layout, bool with_place, uint32_t j, uint64_t step, uint32_t n)
{
    uint32_t ndim = layout->ndim[j], dim = layout->first_dim[j] + ndim;

    for (uint32_t k = 0; k < n && with_place; k++)
        if (layout->offset[j + k + 1] - layout->offset[j + k] != step)
            n = k;
    n = as_before(layout->ndim, sizeof *layout->ndim, j + 1, n, 1);
    if (ndim > 0) {
        n = as_before(layout->shape, sizeof *layout->shape, dim, n * ndim, ndim) / ndim;
        n = as_before(layout->strides, sizeof *layout->strides, dim, n * ndim, ndim) / ndim;
    }
    n = as_before(layout->dtype, sizeof *layout->dtype, j + 1, n, 1);
    return with_place ? as_before(layout->region, sizeof *layout->region, j + 1, n, 1) : n;
}

/* The length of the run that starts at tensor i. The search looks ahead in growing steps, so that little
 * is compared where there is no run. */
static uint32_t find_run(const struct layout *layout, bool with_place, uint32_t i, uint64_t *step_p)
{
    uint32_t left = layout->count - i - 1, run = 1;

    *step_p =
        with_place && left > 0 && layout->offset[i + 1] >= layout->offset[i] ? layout->offset[i + 1] - layout->offset[i] : 0;
    for (uint32_t look = 4; left > 0; look *= 4) {
        uint32_t n = look < left ? look : left, more = more_alike(layout, with_place, i + run - 1, *step_p, n);

        run += more;
        left -= more;
        if (more < n)
            break;
    }
    return run;
}

/* false: there would be too many rows. */
static bool fill_rows(const struct layout *layout, bool with_place, struct layout_rows *rows, Rdt__Pb__TensorList *list_p)
{
    uint32_t most = layout->count / 4 < LAYOUT_ROWS ? layout->count / 4 : LAYOUT_ROWS, n = 0, n_dims = 0;
    bool row_major = true;

    for (uint32_t i = 0; i < layout->count; i += rows->run[n++]) {
        uint32_t ndim = layout->ndim[i], dim = layout->first_dim[i];

        if (n == most || ndim > LAYOUT_ROW_DIMS - n_dims)
            return false;
        rows->dtype[n] = layout->dtype[i];
        rows->ndim[n] = ndim;
        rows->region[n] = layout->region[i];
        rows->offset[n] = layout->offset[i];
        memcpy(rows->shape + n_dims, layout->shape + dim, ndim * sizeof *rows->shape);
        memcpy(rows->strides + n_dims, layout->strides + dim, ndim * sizeof *rows->strides);
        n_dims += ndim;
        row_major = row_major && is_row_major(layout, i);
        rows->run[n] = find_run(layout, with_place, i, &rows->step[n]);
    }
    list_p->n_dtype = list_p->n_ndim = list_p->n_run = n;
    list_p->dtype = rows->dtype;
    list_p->ndim = rows->ndim;
    list_p->run = rows->run;
    list_p->n_shape = n_dims;
    list_p->shape = rows->shape;
    list_p->n_strides = row_major ? 0 : n_dims;
    list_p->strides = rows->strides;
    if (with_place) {
        list_p->n_region_index = is_all_zero(rows->region, n) ? 0 : n;
        list_p->region_index = rows->region;
        list_p->n_offset = list_p->n_step = n;
        list_p->offset = rows->offset;
        list_p->step = rows->step;
    }
    return true;
}

void layout_to_wire(const struct layout *layout, bool with_place, struct layout_rows *rows, Rdt__Pb__TensorList *list_p)
{
    bool row_major = true;

    rdt__pb__tensor_list__init(list_p);
    if (rows && layout->count >= LAYOUT_RUNS_LEAST && layout->count <= RDT_MAX_RUN_TENSORS &&
        layout->n_dims <= RDT_MAX_RUN_DIMS && fill_rows(layout, with_place, rows, list_p))
        return;
    for (uint32_t i = 0; i < layout->count && row_major; i++)
        row_major = is_row_major(layout, i);
    list_p->n_dtype = layout->count;
    list_p->dtype = layout->dtype;
    list_p->n_ndim = layout->count;
    list_p->ndim = layout->ndim;
    list_p->n_shape = layout->n_dims;
    list_p->shape = layout->shape;
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
