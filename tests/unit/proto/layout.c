/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts: conversion from and to messages, hostile columns, extents, slices, and packing. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "proto/wire_limits.h"

#define ROUNDS 3000

#define LIST(...) ((Rdt__Pb__TensorList){.base = PROTOBUF_C_MESSAGE_INIT(&rdt__pb__tensor_list__descriptor), __VA_ARGS__})
#define COLUMN(name, type, ...)                                                \
    .n_##name = sizeof((type[]){__VA_ARGS__}) / sizeof(type), .name = (type[]) \
    {                                                                          \
        __VA_ARGS__                                                            \
    }
#define DTYPE(...) COLUMN(dtype, uint32_t, __VA_ARGS__)
#define NDIM(...) COLUMN(ndim, uint32_t, __VA_ARGS__)
#define SHAPE(...) COLUMN(shape, uint64_t, __VA_ARGS__)
#define STRIDES(...) COLUMN(strides, int64_t, __VA_ARGS__)
#define REGION(...) COLUMN(region_index, uint32_t, __VA_ARGS__)
#define OFFSET(...) COLUMN(offset, uint64_t, __VA_ARGS__)
#define START(...) COLUMN(start, uint64_t, __VA_ARGS__)
#define COUNT(...) COLUMN(count, uint64_t, __VA_ARGS__)

static struct layout *must_read(Rdt__Pb__TensorList list)
{
    struct layout *layout = NULL;
    struct rdt_error err = {0};

    cr_assert_eq(layout_from_wire(&list, &layout, &err), RDT_OK, "%s", err.msg);
    return layout;
}

static void must_refuse(Rdt__Pb__TensorList list, enum rdt_status expected, const char *word, int line)
{
    struct layout *layout = (struct layout *)&list;
    struct rdt_error err = {0};

    cr_assert_eq(layout_from_wire(&list, &layout, &err), expected, "line %d: %s", line, err.msg);
    cr_assert_eq(layout, (struct layout *)&list, "a failure writes nothing");
    cr_assert_not_null(strstr(err.msg, word), "line %d: \"%s\" is not in \"%s\"", line, word, err.msg);
}

#define REFUSED(word, ...) must_refuse(LIST(__VA_ARGS__), RDT_INVALID, word, __LINE__)

/* ---- the wire ---- */

Test(layout, no_list_is_no_tensors)
{
    struct layout *layout;

    cr_assert_eq(layout_from_wire(NULL, &layout, NULL), RDT_OK);
    cr_assert_eq(layout->count, 0);
    cr_assert_eq(layout_total_bytes(layout), 0);
    free(layout);
    layout = must_read(LIST(.n_dtype = 0));
    cr_assert_eq(layout->count, 0);
    free(layout);
}

Test(layout, columns_become_tensors)
{
    struct layout *layout = must_read(LIST(DTYPE(RDT_F32, RDT_U8, RDT_BF16), NDIM(2, 0, 1), SHAPE(2, 3, 5), STRIDES(1, 2, -1),
                                           REGION(0, 7, 1), OFFSET(64, 3, 8)));

    cr_assert_eq(layout->count, 3);
    cr_assert_eq(layout->n_dims, 3);
    cr_assert_eq(layout->first_dim[2], 2);
    cr_assert_eq(layout->region[1], 7);
    cr_assert_eq(layout->offset[2], 8);
    cr_assert_eq(layout->strides[2], -1);
    cr_assert_eq(layout_elems(layout, 0), 6);
    cr_assert_eq(layout_elems(layout, 1), 1, "no dimensions: one element");
    cr_assert_eq(layout_bytes(layout, 2), 10);
    cr_assert_eq(layout_total_bytes(layout), 24 + 1 + 10);
    free(layout);
}

Test(layout, missing_columns_have_their_defaults)
{
    struct layout *layout = must_read(LIST(DTYPE(RDT_F32, RDT_U8), NDIM(3, 1), SHAPE(2, 3, 4, 9)));

    cr_assert_eq(layout->strides[0], 12);
    cr_assert_eq(layout->strides[1], 4);
    cr_assert_eq(layout->strides[2], 1);
    cr_assert_eq(layout->strides[3], 1);
    cr_assert_eq(layout->region[1], 0);
    cr_assert_eq(layout->offset[1], 0);
    cr_assert(layout_is_contiguous(layout, 0));
    free(layout);
}

Test(layout, columns_of_wrong_length_are_refused)
{
    REFUSED("2 dtypes but 1 ndims", DTYPE(1, 1), NDIM(1), SHAPE(1));
    REFUSED("0 dtypes but 1 ndims", NDIM(1), SHAPE(1));
    REFUSED("2 dimensions but 1 sizes", DTYPE(1, 1), NDIM(1, 1), SHAPE(1));
    REFUSED("2 dimensions but 3 sizes", DTYPE(1, 1), NDIM(1, 1), SHAPE(1, 1, 1));
    REFUSED("0 dimensions but 1 sizes", SHAPE(1));
    REFUSED("2 dimensions but 1 strides", DTYPE(1, 1), NDIM(1, 1), SHAPE(1, 1), STRIDES(1));
    REFUSED("0 dimensions but 1 strides", DTYPE(1), NDIM(0), STRIDES(1));
    REFUSED("2 tensors but 1 regions", DTYPE(1, 1), NDIM(1, 1), SHAPE(1, 1), REGION(1));
    REFUSED("2 tensors but 3 offsets", DTYPE(1, 1), NDIM(1, 1), SHAPE(1, 1), OFFSET(1, 2, 3));
    REFUSED("0 tensors but 1 offsets", OFFSET(1));
}

Test(layout, unknown_dtype_and_too_many_dimensions_are_refused)
{
    uint32_t ndim[1] = {RDT_MAX_NDIM + 1};
    uint64_t shape[RDT_MAX_NDIM + 1];

    for (unsigned d = 0; d < RDT_MAX_NDIM + 1; d++)
        shape[d] = 1;
    REFUSED("tensor 1: dtype 0", DTYPE(1, 0), NDIM(0, 0));
    REFUSED("tensor 0: dtype 4294967295", DTYPE(UINT32_MAX), NDIM(0));
    REFUSED("tensor 0: 33 dimensions", DTYPE(1), .n_ndim = 1, .ndim = ndim, .n_shape = ndim[0], .shape = shape);
    REFUSED("tensor 0: 4294967295 dimensions", DTYPE(1, 1), NDIM(UINT32_MAX, 1));
}

Test(layout, too_many_tensors_are_over_the_limit)
{
    uint32_t *column = calloc(RDT_MAX_TENSORS + 1, sizeof *column);

    must_refuse(LIST(.n_dtype = RDT_MAX_TENSORS + 1, .dtype = column, .n_ndim = RDT_MAX_TENSORS + 1, .ndim = column), RDT_LIMIT,
                "131073 tensors", __LINE__);
    for (uint32_t i = 0; i < RDT_MAX_TENSORS; i++)
        column[i] = i < RDT_MAX_DIMS / RDT_MAX_NDIM ? RDT_MAX_NDIM : 1;
    uint32_t *dtype = calloc(RDT_MAX_TENSORS, sizeof *dtype);
    for (uint32_t i = 0; i < RDT_MAX_TENSORS; i++)
        dtype[i] = RDT_U8;
    must_refuse(LIST(.n_dtype = RDT_MAX_TENSORS, .dtype = dtype, .n_ndim = RDT_MAX_TENSORS, .ndim = column), RDT_LIMIT,
                "131072 tensors with 2162688 dimensions", __LINE__);
    free(dtype);
    free(column);
}

Test(layout, overflowing_sizes_are_refused)
{
    const uint64_t big = (uint64_t)1 << 32, half = (uint64_t)1 << 62;

    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(2), SHAPE(big, big));
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(1), SHAPE(UINT64_MAX));
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(1), SHAPE((uint64_t)1 << 63));
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(2), SHAPE((uint64_t)1 << 63, 2));
    REFUSED("tensor 0", DTYPE(RDT_F32), NDIM(1), SHAPE(half));
    REFUSED("tensor 0", DTYPE(RDT_C128), NDIM(3), SHAPE(big, 1, big / 16));
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(3), SHAPE(big, big, 0));
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(3), SHAPE(0, big, big));
    REFUSED("tensor 1", DTYPE(RDT_U8, RDT_U8), NDIM(1, 1), SHAPE(half, half));
    REFUSED("tensor 2", DTYPE(RDT_U8, RDT_U8, RDT_U8), NDIM(1, 1, 1), SHAPE(half, half - 1, 1));
    /* The same elements over and over are bytes of the packed stream all the same. */
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(2), SHAPE(big, big), STRIDES(0, 0));
    free(must_read(LIST(DTYPE(RDT_U8), NDIM(1), SHAPE(INT64_MAX))));
}

Test(layout, overflowing_extents_are_refused)
{
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(1), SHAPE(3), STRIDES(INT64_MAX));
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(1), SHAPE(4), STRIDES(INT64_MIN));
    REFUSED("tensor 0", DTYPE(RDT_F64), NDIM(1), SHAPE(2), STRIDES((int64_t)1 << 61));
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(2), SHAPE(2, 2), STRIDES(INT64_MAX, INT64_MAX));
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(1), SHAPE(10), OFFSET(((uint64_t)1 << 63) - 9));
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(1), SHAPE(10), OFFSET(UINT64_MAX));
    REFUSED("tensor 0", DTYPE(RDT_U8), NDIM(1), SHAPE(0), OFFSET(UINT64_MAX));
    free(must_read(LIST(DTYPE(RDT_U8), NDIM(1), SHAPE(10), OFFSET(((uint64_t)1 << 63) - 10))));
    free(must_read(LIST(DTYPE(RDT_U8), NDIM(2), SHAPE(1, 0), STRIDES(INT64_MAX, INT64_MIN))));
    free(must_read(LIST(DTYPE(RDT_C128), NDIM(1), SHAPE(1), STRIDES(INT64_MIN))));
}

/* Small numbers, edges and garbage mixed: whatever is let in must be safe to compute with (the sanitizers watch). */
Test(layout, hostile_columns_are_refused_or_safe)
{
    static const uint64_t sizes[] = {0, 1, 2, 3, 7, 1u << 31, (uint64_t)1 << 32, INT64_MAX, UINT64_MAX, (uint64_t)1 << 62};
    static const int64_t steps[] = {0, 1, -1, 2, INT64_MAX, INT64_MIN, (int64_t)1 << 60, -((int64_t)1 << 32), 5, 6};
    unsigned good = 0;

    srand(5);
    for (int round = 0; round < 20 * ROUNDS; round++) {
        uint32_t dtype[3], ndim[3], first = 0;
        uint64_t shape[12], offset[3], bytes;
        int64_t strides[12];
        Rdt__Pb__TensorList list = LIST(.n_dtype = 3, .dtype = dtype, .n_ndim = 3, .ndim = ndim, .shape = shape,
                                        .strides = strides, .n_offset = 3, .offset = offset),
                            out;
        struct layout *layout, *packed, *again;

        for (unsigned i = 0; i < 3; i++) {
            dtype[i] = 1 + (uint32_t)rand() % 24;
            ndim[i] = (uint32_t)rand() % 4;
            offset[i] = rand() % 3 ? (uint64_t)rand() % 1000 : sizes[rand() % 10];
            for (unsigned d = 0; d < ndim[i]; d++, first++) {
                shape[first] = rand() % 4 ? (uint64_t)rand() % 4 : sizes[rand() % 10];
                strides[first] = rand() % 4 ? rand() % 9 - 4 : steps[rand() % 10];
            }
        }
        list.n_shape = first;
        list.n_strides = rand() % 3 ? first : 0;
        if (layout_from_wire(&list, &layout, NULL) != RDT_OK)
            continue;
        good++;
        for (uint32_t i = 0; i < 3; i++) {
            uint64_t lo, hi;

            if (layout_extent(layout, i, &lo, &hi, NULL) == RDT_OK) {
                cr_assert_leq(lo, hi);
                cr_assert_eq(lo == hi, layout_bytes(layout, i) == 0);
            }
        }
        if (layout_packed(layout, &packed, &bytes, NULL) == RDT_OK) {
            cr_assert_geq(bytes, layout_total_bytes(layout));
            cr_assert_eq(layout_same_shape(layout, packed, NULL), RDT_OK);
            free(packed);
        }
        layout_to_wire(layout, true, NULL, &out);
        cr_assert_eq(layout_from_wire(&out, &again, NULL), RDT_OK);
        cr_assert_eq(memcmp(layout->strides, again->strides, first * sizeof *strides), 0);
        cr_assert_eq(memcmp(layout->shape, again->shape, first * sizeof *shape), 0);
        cr_assert_eq(memcmp(layout->offset, again->offset, sizeof offset), 0);
        free(again);
        free(layout);
    }
    cr_assert_gt(good, ROUNDS);
}

Test(layout, to_wire_copies_nothing_and_leaves_out_what_is_default)
{
    struct layout *layout = must_read(LIST(DTYPE(RDT_F32), NDIM(2), SHAPE(2, 3), STRIDES(1, 2), OFFSET(4), REGION(3)));
    Rdt__Pb__TensorList list;

    layout_to_wire(layout, true, NULL, &list);
    cr_assert_eq(list.strides, layout->strides);
    cr_assert_eq(list.offset, layout->offset);
    cr_assert_eq(list.n_region_index, 1);
    layout_to_wire(layout, false, NULL, &list);
    cr_assert_eq(list.shape, layout->shape);
    cr_assert_eq(list.n_offset, 0);
    cr_assert_eq(list.n_region_index, 0);
    layout->strides[0] = 3;
    layout->strides[1] = 1;
    layout_to_wire(layout, true, NULL, &list);
    cr_assert_eq(list.n_strides, 0, "row-major throughout");
    free(layout);
}

Test(layout, dup_shares_nothing)
{
    struct layout *layout = must_read(LIST(DTYPE(RDT_F32, RDT_U8), NDIM(2, 1), SHAPE(2, 3, 4), OFFSET(4, 100), REGION(3, 1)));
    struct layout *dup = layout_dup(layout);

    cr_assert_eq(layout_same_shape(layout, dup, NULL), RDT_OK);
    cr_assert_eq(dup->offset[1], 100);
    cr_assert_eq(dup->region[0], 3);
    cr_assert_eq(dup->first_dim[1], 2);
    cr_assert_eq(dup->strides[0], 3);
    layout->shape[0] = 9;
    cr_assert_eq(dup->shape[0], 2);
    free(layout);
    free(dup);
}

/* ---- places ---- */

static void assert_extent(Rdt__Pb__TensorList list, uint64_t lo, uint64_t hi)
{
    struct layout *layout = must_read(list);
    uint64_t got_lo, got_hi;

    cr_assert_eq(layout_extent(layout, 0, &got_lo, &got_hi, NULL), RDT_OK);
    cr_assert(got_lo == lo && got_hi == hi, "[%lu, %lu), not [%lu, %lu)", got_lo, got_hi, lo, hi);
    free(layout);
}

Test(layout, extent_covers_what_strides_reach)
{
    const uint64_t most = (uint64_t)1 << 63;

    assert_extent(LIST(DTYPE(RDT_F32), NDIM(2), SHAPE(2, 3), OFFSET(8)), 8, 32);
    assert_extent(LIST(DTYPE(RDT_F32), NDIM(2), SHAPE(2, 3), STRIDES(10, 2), OFFSET(8)), 8, 8 + 4 * 15);
    assert_extent(LIST(DTYPE(RDT_F32), NDIM(1), SHAPE(3), STRIDES(-1), OFFSET(8)), 0, 12);
    assert_extent(LIST(DTYPE(RDT_U8), NDIM(2), SHAPE(3, 5), STRIDES(-10, 2), OFFSET(20)), 0, 29);
    assert_extent(LIST(DTYPE(RDT_F64), NDIM(2), SHAPE(1000, 2), STRIDES(0, 1)), 0, 16);
    assert_extent(LIST(DTYPE(RDT_F64), NDIM(0), OFFSET(3)), 3, 11);
    assert_extent(LIST(DTYPE(RDT_F64), NDIM(2), SHAPE(0, 5), STRIDES(-100, -100), OFFSET(3)), 3, 3);
    assert_extent(LIST(DTYPE(RDT_U8), NDIM(1), SHAPE(0), OFFSET(most)), most, most);
    assert_extent(LIST(DTYPE(RDT_U8), NDIM(1), SHAPE(2), STRIDES(-INT64_MAX), OFFSET(most - 1)), 0, most);
}

Test(layout, extent_outside_is_refused)
{
    struct layout *layout = must_read(LIST(DTYPE(RDT_F32), NDIM(1), SHAPE(3), STRIDES(-1), OFFSET(7)));
    struct rdt_error err;
    uint64_t lo, hi;

    cr_assert_eq(layout_extent(layout, 0, &lo, &hi, &err), RDT_INVALID);
    cr_assert_not_null(strstr(err.msg, "tensor 0: starts 1 bytes before"));
    layout->offset[0] = ((uint64_t)1 << 63) + 1;
    cr_assert_eq(layout_extent(layout, 0, &lo, &hi, &err), RDT_INVALID);
    layout->offset[0] = UINT64_MAX;
    layout->shape[0] = 0;
    cr_assert_eq(layout_extent(layout, 0, &lo, &hi, &err), RDT_INVALID);
    free(layout);
}

static bool contiguous(Rdt__Pb__TensorList list)
{
    struct layout *layout = must_read(list);
    bool result = layout_is_contiguous(layout, 0);

    free(layout);
    return result;
}

Test(layout, contiguous_is_row_major_without_holes)
{
    cr_assert(contiguous(LIST(DTYPE(RDT_F32), NDIM(0))));
    cr_assert(contiguous(LIST(DTYPE(RDT_F32), NDIM(3), SHAPE(2, 1, 3), STRIDES(3, -77, 1))));
    cr_assert(contiguous(LIST(DTYPE(RDT_F32), NDIM(2), SHAPE(5, 0), STRIDES(8, 9))));
    cr_assert(contiguous(LIST(DTYPE(RDT_F32), NDIM(2), SHAPE(1, 1), STRIDES(8, 9))));
    cr_assert_not(contiguous(LIST(DTYPE(RDT_F32), NDIM(2), SHAPE(2, 3), STRIDES(1, 2))));
    cr_assert_not(contiguous(LIST(DTYPE(RDT_F32), NDIM(2), SHAPE(2, 3), STRIDES(4, 1))));
    cr_assert_not(contiguous(LIST(DTYPE(RDT_F32), NDIM(1), SHAPE(2), STRIDES(-1), OFFSET(4))));
    cr_assert_not(contiguous(LIST(DTYPE(RDT_F32), NDIM(1), SHAPE(2), STRIDES(0))));
}

Test(layout, packed_aligns_each_tensor)
{
    struct layout *packed,
        *layout = must_read(LIST(DTYPE(RDT_U8, RDT_F32, RDT_U8, RDT_U8), NDIM(1, 2, 1, 1), SHAPE(65, 2, 2, 0, 3),
                                 STRIDES(1, 1, 2, 1, -1), REGION(4, 3, 2, 1), OFFSET(1, 2, 3, 4)));
    uint64_t bytes;

    cr_assert_eq(layout_packed(layout, &packed, &bytes, NULL), RDT_OK);
    cr_assert_eq(packed->offset[0], 0);
    cr_assert_eq(packed->offset[1], 128);
    cr_assert_eq(packed->offset[2], 192);
    cr_assert_eq(packed->offset[3], 192);
    cr_assert_eq(bytes, 195);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(packed->region[i], 0);
        cr_assert(layout_is_contiguous(packed, i));
    }
    free(packed);
    layout->count = 0;
    cr_assert_eq(layout_packed(layout, &packed, &bytes, NULL), RDT_OK);
    cr_assert_eq(bytes, 0);
    free(packed);
    free(layout);
}

Test(layout, packed_beyond_2_63_is_refused)
{
    struct layout *packed = NULL, *layout = must_read(LIST(DTYPE(RDT_U8, RDT_U8), NDIM(1, 1), SHAPE(INT64_MAX - 1, 1)));
    struct rdt_error err;
    uint64_t bytes;

    cr_assert_eq(layout_packed(layout, &packed, &bytes, &err), RDT_INVALID);
    cr_assert_null(packed);
    cr_assert_not_null(strstr(err.msg, "tensor 1"));
    free(layout);
}

static void assert_differs(Rdt__Pb__TensorList target_list, const char *words)
{
    struct layout *object = must_read(LIST(DTYPE(RDT_F32, RDT_U8), NDIM(2, 1), SHAPE(2, 3, 4)));
    struct layout *target = must_read(target_list);
    struct rdt_error err;

    cr_assert_eq(layout_same_shape(object, target, &err), RDT_MISMATCH);
    cr_assert_not_null(strstr(err.msg, words), "%s", err.msg);
    free(object);
    free(target);
}

Test(layout, same_shape_names_the_first_difference)
{
    assert_differs(LIST(DTYPE(RDT_F32), NDIM(2), SHAPE(2, 3)), "2 tensors, but the target has 1");
    assert_differs(LIST(DTYPE(RDT_F32, RDT_I8), NDIM(2, 1), SHAPE(2, 3, 4)), "tensor 1: is u8 in the object, but i8");
    assert_differs(LIST(DTYPE(RDT_F32, RDT_U8), NDIM(1, 1), SHAPE(6, 4)), "tensor 0: has 2 dimensions");
    assert_differs(LIST(DTYPE(RDT_F32, RDT_U8), NDIM(2, 1), SHAPE(2, 4, 4)), "tensor 0, dimension 1: has 3");
}

/* ---- slices ---- */

static const Rdt__Pb__Slice no_ranges = RDT__PB__SLICE__INIT;

static void must_not_slice(Rdt__Pb__Slice slice, const char *words)
{
    struct layout *view = NULL, *layout = must_read(LIST(DTYPE(RDT_F32, RDT_U8), NDIM(2, 1), SHAPE(4, 6, 5)));
    struct rdt_error err = {0};

    cr_assert_eq(layout_slice(layout, &slice, &view, &err), RDT_INVALID);
    cr_assert_null(view);
    cr_assert_not_null(strstr(err.msg, words), "\"%s\" is not in \"%s\"", words, err.msg);
    free(layout);
}

Test(slice, none_is_everything)
{
    struct layout *view, *layout = must_read(LIST(DTYPE(RDT_F32), NDIM(2), SHAPE(4, 6), OFFSET(40)));

    cr_assert_eq(layout_slice(layout, NULL, &view, NULL), RDT_OK);
    cr_assert_eq(layout_same_shape(layout, view, NULL), RDT_OK);
    cr_assert_eq(view->offset[0], 40);
    free(view);
    free(layout);
}

Test(slice, narrows_and_moves)
{
    struct layout *view, *layout = must_read(LIST(DTYPE(RDT_F32, RDT_U8, RDT_U8), NDIM(2, 1, 1), SHAPE(4, 6, 5, 5),
                                                  STRIDES(-6, 1, 1, 2), OFFSET(100, 200, 300)));
    Rdt__Pb__Slice slice = {.base = no_ranges.base, NDIM(2, 0, 1), START(1, 2, 3), COUNT(2, 3, 1)};

    cr_assert_eq(layout_slice(layout, &slice, &view, NULL), RDT_OK);
    cr_assert_eq(view->shape[0], 2);
    cr_assert_eq(view->shape[1], 3);
    cr_assert_eq(view->offset[0], 100 - 24 + 8);
    cr_assert_eq(view->shape[2], 5);
    cr_assert_eq(view->offset[1], 200);
    cr_assert_eq(view->shape[3], 1);
    cr_assert_eq(view->offset[2], 306);
    cr_assert_eq(view->strides[0], -6);
    free(view);
    free(layout);
}

Test(slice, is_whole_in_dimensions_without_a_range)
{
    struct layout *view, *layout = must_read(LIST(DTYPE(RDT_F32), NDIM(2), SHAPE(4, 6), STRIDES(6, 1), OFFSET(100)));
    Rdt__Pb__Slice slice = {.base = no_ranges.base, NDIM(1), START(1), COUNT(2)};

    cr_assert_eq(layout_slice(layout, &slice, &view, NULL), RDT_OK);
    cr_assert_eq(view->shape[0], 2);
    cr_assert_eq(view->shape[1], 6);
    cr_assert_eq(view->offset[0], 124);
    free(view);
    free(layout);
}

Test(slice, of_nothing_stays_in_place)
{
    struct layout *view, *layout = must_read(LIST(DTYPE(RDT_U8), NDIM(1), SHAPE(5), STRIDES(INT64_MAX / 8), OFFSET(9)));
    Rdt__Pb__Slice slice = {.base = no_ranges.base, NDIM(1), START(5), COUNT(0)};

    cr_assert_eq(layout_slice(layout, &slice, &view, NULL), RDT_OK);
    cr_assert_eq(view->offset[0], 9);
    cr_assert_eq(layout_bytes(view, 0), 0);
    free(view);
    free(layout);
}

Test(slice, bad_is_refused)
{
    must_not_slice((Rdt__Pb__Slice){.base = no_ranges.base}, "the slice is of 0 tensors, but the object has 2");
    must_not_slice((Rdt__Pb__Slice){.base = no_ranges.base, NDIM(0, 1), START(1), COUNT(1, 1)}, "1 starts but 2 counts");
    must_not_slice((Rdt__Pb__Slice){.base = no_ranges.base, NDIM(1, 2), START(1, 1, 1), COUNT(1, 1, 1)},
                   "tensor 1: the slice has 2 ranges for 1 dimensions");
    must_not_slice((Rdt__Pb__Slice){.base = no_ranges.base, NDIM(2, 1), START(1, 1), COUNT(1, 1)}, "tensor 1: the slice lacks");
    must_not_slice((Rdt__Pb__Slice){.base = no_ranges.base, NDIM(0, 1), START(1, 1), COUNT(1, 1)},
                   "the slice has 2 ranges, but its tensors need 1");
    must_not_slice((Rdt__Pb__Slice){.base = no_ranges.base, NDIM(2, 0), START(1, 1), COUNT(1, 6)},
                   "tensor 0, dimension 1: 6 elements from 1 on, but it has only 6");
    must_not_slice((Rdt__Pb__Slice){.base = no_ranges.base, NDIM(0, 1), START(UINT64_MAX), COUNT(2)}, "tensor 1, dimension 0");
    must_not_slice((Rdt__Pb__Slice){.base = no_ranges.base, NDIM(0, 1), START(2), COUNT(UINT64_MAX)}, "tensor 1, dimension 0");
    must_not_slice((Rdt__Pb__Slice){.base = no_ranges.base, NDIM(0, 1), START(6), COUNT(0)}, "tensor 1, dimension 0");
}

Test(slice, outside_the_region_is_refused)
{
    struct layout *view = NULL, *layout = must_read(LIST(DTYPE(RDT_F32), NDIM(1), SHAPE(3), STRIDES(-1)));
    Rdt__Pb__Slice slice = {.base = no_ranges.base, NDIM(1), START(1), COUNT(1)};

    cr_assert_eq(layout_slice(layout, &slice, &view, NULL), RDT_INVALID);
    cr_assert_null(view);
    free(layout);
}
