/* SPDX-License-Identifier: Apache-2.0 */
#include "client/plan/strided.h"

#include <stddef.h>
#include <string.h>

#include "client/plan/cast.h"

#define ROW_ELEMS 512u /* elements that are gathered, cast and scattered at a time */
#define MAX_ELEM_BYTES 16u

struct walk { /* the box with as few dimensions as both sides allow, the last one innermost */
    uint32_t ndim;
    uint64_t count[33];
    int64_t from[33], to[33];
};

/* Leaves out dimensions of size 1, and joins those that are adjacent on both sides. */
static void collapse(struct walk *walk, uint32_t ndim, const uint64_t *count, const int64_t *from, const int64_t *to)
{
    walk->ndim = 0;
    for (uint32_t d = 0; d < ndim; d++) {
        uint32_t last = walk->ndim - 1;

        if (count[d] == 1)
            continue;
        if (walk->ndim > 0 && walk->from[last] == from[d] * (int64_t)count[d] && walk->to[last] == to[d] * (int64_t)count[d]) {
            walk->count[last] *= count[d];
            walk->from[last] = from[d];
            walk->to[last] = to[d];
            continue;
        }
        walk->count[walk->ndim] = count[d];
        walk->from[walk->ndim] = from[d];
        walk->to[walk->ndim++] = to[d];
    }
    if (walk->ndim == 0) {
        walk->ndim = 1;
        walk->count[0] = 1;
        walk->from[0] = walk->to[0] = 1;
    }
}

static void gather(const uint8_t *from, int64_t stride, size_t bytes, uint8_t *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(to + i * bytes, from + (int64_t)i * stride * (int64_t)bytes, bytes);
}

static void scatter(const uint8_t *from, uint8_t *to, int64_t stride, size_t bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(to + (int64_t)i * stride * (int64_t)bytes, from + i * bytes, bytes);
}

static void copy_row(const struct strided *from, const struct strided *to, const uint8_t *source, int64_t source_stride,
                     uint8_t *target, int64_t target_stride, uint64_t n)
{
    size_t from_bytes = rdt_dtype_bytes(from->dtype), to_bytes = rdt_dtype_bytes(to->dtype);
    uint8_t packed[ROW_ELEMS * MAX_ELEM_BYTES], done[ROW_ELEMS * MAX_ELEM_BYTES];

    if (source_stride == 1 && target_stride == 1) {
        cast_run(from->dtype, source, to->dtype, target, n);
        return;
    }
    for (uint64_t at = 0; at < n; at += ROW_ELEMS) {
        size_t some = n - at < ROW_ELEMS ? (size_t)(n - at) : ROW_ELEMS;

        gather(source + (int64_t)at * source_stride * (int64_t)from_bytes, source_stride, from_bytes, packed, some);
        cast_run(from->dtype, packed, to->dtype, done, some);
        scatter(done, target + (int64_t)at * target_stride * (int64_t)to_bytes, target_stride, to_bytes, some);
    }
}

void strided_copy(uint32_t ndim, const uint64_t *count, const struct strided *from, const struct strided *to)
{
    int64_t from_bytes = (int64_t)rdt_dtype_bytes(from->dtype), to_bytes = (int64_t)rdt_dtype_bytes(to->dtype);
    uint64_t index[33] = {0};
    const uint8_t *source = from->data;
    uint8_t *target = to->data;
    struct walk walk;
    uint32_t inner;

    for (uint32_t d = 0; d < ndim; d++)
        if (count[d] == 0)
            return;
    collapse(&walk, ndim, count, from->strides, to->strides);
    inner = walk.ndim - 1;
    for (;;) {
        uint32_t d = inner;

        copy_row(from, to, source, walk.from[inner], target, walk.to[inner], walk.count[inner]);
        while (d > 0) {
            d--;
            source += walk.from[d] * from_bytes;
            target += walk.to[d] * to_bytes;
            if (++index[d] < walk.count[d])
                break;
            source -= (int64_t)walk.count[d] * walk.from[d] * from_bytes;
            target -= (int64_t)walk.count[d] * walk.to[d] * to_bytes;
            index[d] = 0;
            if (d == 0)
                return;
        }
        if (inner == 0)
            return;
    }
}

/* Compares a box of at most ROW_ELEMS elements. */
static bool few_equal(uint32_t ndim, const uint64_t *count, const struct strided *a, const struct strided *b,
                      enum rdt_dtype dtype)
{
    uint8_t one[ROW_ELEMS * MAX_ELEM_BYTES], other[ROW_ELEMS * MAX_ELEM_BYTES];
    int64_t strides[33] = {0};
    uint64_t elems = 1;

    for (uint32_t d = ndim; d-- > 0; elems *= count[d])
        strides[d] = (int64_t)elems;
    strided_copy(ndim, count, a, &(struct strided){dtype, one, strides});
    strided_copy(ndim, count, b, &(struct strided){dtype, other, strides});
    return memcmp(one, other, (size_t)elems * rdt_dtype_bytes(dtype)) == 0;
}

static struct strided from_row(const struct strided *tensor, uint32_t d, uint64_t row)
{
    int64_t at = (int64_t)row * tensor->strides[d] * (int64_t)rdt_dtype_bytes(tensor->dtype);

    return (struct strided){tensor->dtype, tensor->data + at, tensor->strides};
}

bool strided_equal(uint32_t ndim, const uint64_t *count, const struct strided *a, const struct strided *b, enum rdt_dtype dtype)
{
    uint64_t some[33], elems = 1, row_elems;
    uint32_t d = 0;

    for (uint32_t i = 0; i < ndim; i++)
        elems *= some[i] = count[i];
    if (elems <= ROW_ELEMS)
        return few_equal(ndim, count, a, b, dtype);
    while (count[d] == 1)
        d++;
    row_elems = elems / count[d];
    for (uint64_t row = 0; row < count[d]; row += some[d]) { /* as many rows at a time as fit */
        struct strided one = from_row(a, d, row), other = from_row(b, d, row);

        some[d] = row_elems >= ROW_ELEMS ? 1 : ROW_ELEMS / row_elems;
        some[d] = some[d] < count[d] - row ? some[d] : count[d] - row;
        if (!strided_equal(ndim, some, &one, &other, dtype))
            return false;
    }
    return true;
}
