/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of tensors and objects: what they depend on, and what they do not. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/layout.h"
#include "tests/support/check.h"

TestSuite(tensor_sum);

#define ROWS 300u
#define COLUMNS 1000u

static uint16_t memory[ROWS * COLUMNS], turned[ROWS * COLUMNS];

static struct layout *matrix(uint64_t rows, uint64_t columns, int64_t row_stride, int64_t column_stride)
{
    struct layout *layout = layout_create(1, 2);

    must(layout);
    layout->dtype[0] = RDT_U16;
    layout->ndim[0] = 2;
    layout->first_dim[0] = layout->region[0] = 0;
    layout->offset[0] = 0;
    layout->shape[0] = rows;
    layout->shape[1] = columns;
    layout->strides[0] = row_stride;
    layout->strides[1] = column_stride;
    return layout;
}

static uint64_t sum_of(const struct layout *layout, const void *base, uint64_t step, const char *metadata)
{
    const uint8_t *bases[] = {base};
    struct tensor_sums sums;

    must(tensor_sums_init(&sums, layout, bases));
    while (tensor_sums_step(&sums, step))
        continue;
    uint64_t sum = tensor_sum_object(layout, sums.sums, metadata, strlen(metadata));
    tensor_sums_fini(&sums);
    return sum;
}

static void fill(void)
{
    for (unsigned i = 0; i < ROWS; i++)
        for (unsigned k = 0; k < COLUMNS; k++)
            memory[i * COLUMNS + k] = turned[k * ROWS + i] = (uint16_t)(i * 7919 + k);
}

/* Whatever instructions of the processor it uses, and however the bytes come. */
Test(tensor_sum, of_bytes_is_their_xxh3_hash)
{
    struct byte_sum *sum = byte_sum_create();

    must(sum);
    fill();
    for (size_t bytes = 0; bytes < sizeof memory; bytes = bytes * 3 + 1)
        for (size_t step = 1 + bytes / 50; step <= bytes + 1; step = step * 2 + 5) {
            for (size_t at = 0; at < bytes; at += step)
                byte_sum_add(sum, (const uint8_t *)memory + at, step < bytes - at ? step : bytes - at);
            cr_assert_eq(byte_sum_end(sum), XXH3_64bits(memory, bytes), "%zu bytes in steps of %zu", bytes, step);
        }
    byte_sum_destroy(sum);
}

Test(tensor_sum, strides_and_steps_do_not_matter)
{
    struct layout *plain = matrix(ROWS, COLUMNS, COLUMNS, 1), *other = matrix(ROWS, COLUMNS, 1, ROWS);

    fill();
    uint64_t sum = sum_of(plain, memory, UINT64_MAX, "m");
    cr_assert_neq(sum, 0u);
    cr_assert_eq(sum_of(plain, memory, 1, "m"), sum);
    cr_assert_eq(sum_of(plain, memory, 4097, "m"), sum);
    cr_assert_eq(sum_of(other, turned, 100000, "m"), sum);
    free(plain);
    free(other);
}

Test(tensor_sum, every_change_matters)
{
    struct layout *plain = matrix(ROWS, COLUMNS, COLUMNS, 1), *shape = matrix(COLUMNS, ROWS, ROWS, 1);

    fill();
    uint64_t sum = sum_of(plain, memory, UINT64_MAX, "m");
    cr_assert_neq(sum_of(plain, memory, UINT64_MAX, "M"), sum, "the metadata");
    cr_assert_neq(sum_of(shape, memory, UINT64_MAX, "m"), sum, "the shape");
    plain->dtype[0] = RDT_I16;
    cr_assert_neq(sum_of(plain, memory, UINT64_MAX, "m"), sum, "the dtype");
    plain->dtype[0] = RDT_U16;
    memory[ROWS * COLUMNS - 1] ^= 1;
    cr_assert_neq(sum_of(plain, memory, UINT64_MAX, "m"), sum, "the last bit");
    free(plain);
    free(shape);
}

Test(tensor_sum, is_computed_as_far_as_bytes_have_arrived)
{
    struct layout *plain = matrix(ROWS, COLUMNS, COLUMNS, 1);
    const uint8_t *bases[] = {(const uint8_t *)memory};
    struct tensor_sums sums;

    fill();
    must(tensor_sums_init(&sums, plain, bases));
    cr_assert_not(tensor_sums_step_to(&sums, UINT64_MAX, 0));
    cr_assert_eq(sums.from, 0u);
    cr_assert_not(tensor_sums_step_to(&sums, UINT64_MAX, 1001));
    cr_assert_eq(sums.from, 1001u);
    cr_assert(tensor_sums_step_to(&sums, 100, 5000), "there is more");
    cr_assert_not(tensor_sums_step_to(&sums, UINT64_MAX, UINT64_MAX));
    cr_assert_eq(sums.at, 1u);
    cr_assert_eq(tensor_sum_object(plain, sums.sums, "m", 1), sum_of(plain, memory, UINT64_MAX, "m"));
    tensor_sums_fini(&sums);
    free(plain);
}
