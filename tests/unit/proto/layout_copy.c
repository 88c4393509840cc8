/* SPDX-License-Identifier: Apache-2.0 */
/* Gather and scatter compared with a simple loop, byte by byte: any strides, any part of the packed stream. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"

#define ROUNDS 3000
#define MAX_DIMS 6

/* A tensor of a few hundred elements at most, every kind of stride, whose extent starts at 0 of a region of *bytes_p. */
static struct layout *random_tensor(uint64_t *bytes_p, bool overlap)
{
    static const uint32_t dtypes[] = {RDT_U8, RDT_BF16, RDT_F32, RDT_F64, RDT_C128};
    uint32_t ndim = (uint32_t)rand() % (MAX_DIMS + 1), order[MAX_DIMS];
    struct layout *layout = layout_create(1, ndim);
    uint64_t stride = 1, before = 0, after;

    layout->dtype[0] = dtypes[rand() % 5];
    layout->ndim[0] = ndim;
    layout->first_dim[0] = 0;
    layout->region[0] = 0;
    for (uint32_t d = 0; d < ndim; d++) {
        uint32_t other = (uint32_t)rand() % (d + 1);

        order[d] = d;
        if (rand() % 2) { /* a permutation, more often than not nearly in order so that runs can be joined */
            order[d] = order[other];
            order[other] = d;
        }
    }
    for (uint32_t n = ndim; n-- > 0;) {
        uint32_t d = order[n];

        layout->shape[d] = rand() % 12 == 0 ? 0 : 1 + (uint64_t)rand() % 5;
        layout->strides[d] = (int64_t)stride;
        if (layout->shape[d] == 1 && rand() % 2)
            layout->strides[d] = rand() % 2 ? INT64_MIN : 12345;
        stride *= layout->shape[d] ? layout->shape[d] : 1;
        if (rand() % 3 == 0)
            stride += (uint64_t)rand() % 4;
        if (rand() % 4 == 0 && layout->shape[d] != 1)
            layout->strides[d] = -layout->strides[d];
        if (overlap && rand() % 5 == 0)
            layout->strides[d] = 0;
    }
    layout->offset[0] = 0;
    if (layout_elems(layout, 0) > 0) {
        for (uint32_t d = 0; d < ndim; d++) {
            if (layout->strides[d] < 0 && layout->shape[d] > 1)
                before += (layout->shape[d] - 1) * (uint64_t)-layout->strides[d];
        }
        layout->offset[0] = before * rdt_dtype_bytes((enum rdt_dtype)layout->dtype[0]) + (uint64_t)rand() % 3;
    }
    cr_assert_eq(layout_extent(layout, 0, &before, &after, NULL), RDT_OK);
    *bytes_p = after;
    return layout;
}

/* Where byte `at` of the packed stream lies in the region: the definition, one byte at a time. */
static uint64_t naive_place(const struct layout *layout, uint64_t at)
{
    uint64_t item = rdt_dtype_bytes((enum rdt_dtype)layout->dtype[0]), elem = at / item;
    int64_t place = (int64_t)(layout->offset[0] + at % item);

    for (uint32_t d = layout->ndim[0]; d-- > 0;) {
        uint64_t index = elem % layout->shape[d];

        elem /= layout->shape[d];
        if (index > 0)
            place += (int64_t)index * layout->strides[d] * (int64_t)item;
    }
    return (uint64_t)place;
}

static uint8_t *random_bytes(uint64_t n)
{
    uint8_t *bytes = malloc(n ? n : 1); /* its own allocation: the sanitizer sees one byte too far */

    for (uint64_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)rand();
    return bytes;
}

/* Some part of [0, total): any, all, or empty. */
static void random_part(uint64_t total, uint64_t *from_p, uint64_t *bytes_p)
{
    *from_p = rand() % 3 && total ? (uint64_t)rand() % total : 0;
    *bytes_p = rand() % 3 ? (uint64_t)rand() % (total - *from_p + 1) : total - *from_p;
}

Test(copy, gather_is_the_naive_one)
{
    srand(11);
    for (int round = 0; round < 10 * ROUNDS; round++) {
        uint64_t size, from, bytes;
        struct layout *layout = random_tensor(&size, true);
        uint8_t *region = random_bytes(size), *packed;
        bool same = true;

        random_part(layout_bytes(layout, 0), &from, &bytes);
        packed = random_bytes(bytes);
        layout_gather(layout, 0, region, from, bytes, packed);
        for (uint64_t at = 0; at < bytes; at++)
            same = same && packed[at] == region[naive_place(layout, from + at)];
        cr_assert(same, "round %d", round);
        free(packed);
        free(region);
        free(layout);
    }
}

Test(copy, scatter_is_the_naive_one_and_touches_nothing_else)
{
    srand(12);
    for (int round = 0; round < 10 * ROUNDS; round++) {
        uint64_t size, from, bytes;
        struct layout *layout = random_tensor(&size, false);
        uint8_t *region = random_bytes(size), *expected = malloc(size ? size : 1), *packed;

        memcpy(expected, region, size);
        random_part(layout_bytes(layout, 0), &from, &bytes);
        packed = random_bytes(bytes);
        layout_scatter(layout, 0, region, from, bytes, packed);
        for (uint64_t at = 0; at < bytes; at++)
            expected[naive_place(layout, from + at)] = packed[at];
        cr_assert_eq(memcmp(region, expected, size), 0, "round %d", round);
        free(packed);
        free(expected);
        free(region);
        free(layout);
    }
}

Test(copy, chunks_of_any_size_make_the_whole)
{
    srand(13);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t size, total, chunk, other;
        struct layout *layout = random_tensor(&size, false);
        uint8_t *region = random_bytes(size), *back = random_bytes(size), *packed, *again;

        total = layout_bytes(layout, 0);
        chunk = 1 + (uint64_t)rand() % 70;
        packed = random_bytes(total);
        again = random_bytes(total);
        for (uint64_t from = 0; from < total; from += chunk) {
            other = total - from < chunk ? total - from : chunk;
            layout_gather(layout, 0, region, from, other, packed + from);
            layout_scatter(layout, 0, back, from, other, packed + from);
        }
        layout_gather(layout, 0, back, 0, total, again);
        cr_assert_eq(memcmp(packed, again, total), 0, "round %d", round);
        free(again);
        free(packed);
        free(back);
        free(region);
        free(layout);
    }
}

/* Large enough for tiles, cut so that they begin and end anywhere. */
Test(copy, transposed_is_the_naive_one)
{
    srand(14);
    for (int round = 0; round < ROUNDS / 10; round++) {
        static const uint32_t dtypes[] = {RDT_U8, RDT_BF16, RDT_F32, RDT_F64, RDT_C128};
        struct layout *layout = layout_create(1, 3);
        uint64_t rows = 1 + (uint64_t)rand() % 90, columns = 1 + (uint64_t)rand() % 90, from, bytes, size;
        bool same = true;

        layout->dtype[0] = dtypes[rand() % 5];
        layout->ndim[0] = 3;
        layout->first_dim[0] = 0;
        layout->region[0] = 0;
        layout->offset[0] = 0;
        layout->shape[0] = 2;
        layout->shape[1] = rows;
        layout->shape[2] = columns;
        layout->strides[0] = (int64_t)(rows * columns + 5);
        layout->strides[1] = 1;
        layout->strides[2] = (int64_t)rows;
        cr_assert_eq(layout_extent(layout, 0, &from, &size, NULL), RDT_OK);
        random_part(layout_bytes(layout, 0), &from, &bytes);
        uint8_t *region = random_bytes(size);
        uint8_t *back = malloc(size);
        memcpy(back, region, size);
        uint8_t *packed = random_bytes(bytes);
        layout_gather(layout, 0, region, from, bytes, packed);
        for (uint64_t at = 0; at < bytes; at++) {
            uint64_t place = naive_place(layout, from + at);

            same = same && packed[at] == region[place];
            back[place] = (uint8_t)~back[place];
        }
        cr_assert(same, "round %d", round);
        layout_scatter(layout, 0, back, from, bytes, packed);
        cr_assert_eq(memcmp(back, region, size), 0, "round %d", round);
        free(packed);
        free(back);
        free(region);
        free(layout);
    }
}

Test(copy, slice_of_a_tensor_is_the_slice_of_its_bytes)
{
    uint32_t dtype = RDT_I16, ndim = 2;
    uint64_t shape[] = {6, 8}, start[] = {4, 5}, count[] = {2, 3};
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__Slice slice = RDT__PB__SLICE__INIT;
    uint8_t region[6 * 8 * 2], packed[2 * 3 * 2];
    struct layout *view, *layout;

    list.n_dtype = list.n_ndim = slice.n_ndim = 1;
    list.n_shape = slice.n_start = slice.n_count = 2;
    list.dtype = &dtype;
    list.ndim = slice.ndim = &ndim;
    list.shape = shape;
    slice.start = start;
    slice.count = count;
    for (size_t i = 0; i < sizeof region; i++)
        region[i] = (uint8_t)i;
    cr_assert_eq(layout_from_wire(&list, &layout, NULL), RDT_OK);
    cr_assert_eq(layout_slice(layout, &slice, &view, NULL), RDT_OK);
    layout_gather(view, 0, region, 0, sizeof packed, packed);
    cr_assert_eq(memcmp(packed, region + (4 * 8 + 5) * 2, 6), 0);
    cr_assert_eq(memcmp(packed + 6, region + (5 * 8 + 5) * 2, 6), 0);
    free(view);
    free(layout);
}
