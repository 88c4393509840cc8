/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/shapes: unpacking a list of shapes gives the packed layout of the same tensors. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/base/shapes.h"

TestSuite(shapes, .timeout = 60);

static void expect_same(const struct layout *layout)
{
    uint8_t *shapes = malloc(shapes_bytes(layout));
    struct layout *packed = NULL, *unpacked;
    uint64_t bytes = 0;

    cr_assert_not_null(shapes);
    shapes_pack(layout, shapes);
    cr_assert_eq(shapes_count(shapes), layout->count);
    unpacked = shapes_unpack(shapes);
    cr_assert_not_null(unpacked);
    cr_assert_eq(layout_packed(layout, &packed, &bytes, NULL), RDT_OK);
    cr_assert_eq(layout_same_shape(packed, unpacked, NULL), RDT_OK);
    for (uint32_t i = 0; i < packed->count; i++) {
        cr_assert_eq(unpacked->offset[i], packed->offset[i]);
        cr_assert_eq(unpacked->region[i], 0u);
        cr_assert_eq(unpacked->first_dim[i], packed->first_dim[i]);
        cr_assert(layout_is_contiguous(unpacked, i));
    }
    for (uint32_t d = 0; d < packed->n_dims; d++)
        cr_assert_eq(unpacked->strides[d], packed->strides[d]);
    free(packed);
    free(unpacked);
    free(shapes);
}

Test(shapes, random_layouts_come_back_packed)
{
    srand(9);
    for (unsigned round = 0; round < 500; round++) {
        uint32_t count = (uint32_t)rand() % 20, dims = 0;
        uint32_t ndim[20];
        for (uint32_t i = 0; i < count; i++)
            dims += ndim[i] = (uint32_t)rand() % 5;
        struct layout *layout = layout_create(count, dims);
        cr_assert_not_null(layout);
        dims = 0;
        for (uint32_t i = 0; i < count; i++) {
            layout->dtype[i] = RDT_U8 + (uint32_t)rand() % 3;
            layout->ndim[i] = ndim[i];
            layout->first_dim[i] = dims;
            layout->region[i] = (uint32_t)rand() % 3;
            layout->offset[i] = (uint64_t)rand();
            for (uint32_t d = 0; d < ndim[i]; d++) {
                layout->shape[dims + d] = (uint64_t)rand() % (round % 2 ? 300 : 3);
                layout->strides[dims + d] = rand() % 100;
            }
            dims += ndim[i];
        }
        expect_same(layout);
        free(layout);
    }
}

Test(shapes, few_bytes_for_one_small_tensor)
{
    struct layout *layout = layout_create(1, 2);

    cr_assert_not_null(layout);
    layout->dtype[0] = RDT_F32;
    layout->ndim[0] = 2;
    layout->first_dim[0] = layout->region[0] = 0;
    layout->offset[0] = 0;
    layout->shape[0] = 16;
    layout->shape[1] = 4096;
    layout_set_row_major(layout, 0);
    cr_assert_leq(shapes_bytes(layout), 7u);
    expect_same(layout);
    layout->shape[0] = 0; /* nothing of much */
    layout->shape[1] = 1ull << 62;
    expect_same(layout);
    free(layout);
}
