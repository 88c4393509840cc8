/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that share memory, against a map of every byte: random views of one array. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "client/memory/overlap.h"
#include "tests/support/tensors.h"

#define ROUNDS 20000
#define ARRAY_BYTES 4096
#define MOST_TENSORS 6

static uint64_t seed = 11;
static uint8_t array[ARRAY_BYTES];

static uint64_t below(uint64_t n)
{
    return next_random(&seed) % n;
}

struct view {
    int64_t shape[4], strides[4];
};

/* A view of the array that has no element twice: axes of growing strides in a random order, some of them backwards. */
static struct rdt_tensor random_view(struct view *view)
{
    static const enum rdt_dtype dtypes[] = {RDT_U8, RDT_I16, RDT_F32, RDT_C128};
    enum rdt_dtype dtype = dtypes[below(4)];
    int64_t room = ARRAY_BYTES / (int64_t)rdt_dtype_bytes(dtype), reach = 1, first = 0;
    uint32_t ndim = (uint32_t)below(4);

    for (uint32_t d = 0; d < ndim; d++) {
        int64_t stride = reach + (int64_t)below(3) * (int64_t)below(5), count = 1 + (int64_t)below(6);
        uint32_t at = (uint32_t)below(d + 1);

        if (reach + stride * (count - 1) > room)
            count = 1;
        view->shape[d] = view->shape[at];
        view->strides[d] = view->strides[at];
        view->shape[at] = count;
        view->strides[at] = below(4) ? stride : -stride;
        first += view->strides[at] < 0 ? stride * (count - 1) : 0;
        reach += stride * (count - 1);
    }
    if (ndim > 0 && below(20) == 0)
        view->shape[below(ndim)] = 0;
    first += (int64_t)below((uint64_t)(room - reach + 1) / (1 + below(8)) + 1) % (room - reach + 1);
    return (struct rdt_tensor){dtype, ndim, view->shape, view->strides, array + first * (int64_t)rdt_dtype_bytes(dtype)};
}

/* Marks the bytes of a tensor; returns whether one was marked before. */
static bool mark(const struct rdt_tensor *tensor, bool *bytes)
{
    int64_t elems = 1, each = (int64_t)rdt_dtype_bytes(tensor->dtype);
    bool twice = false;

    for (uint32_t d = 0; d < tensor->ndim; d++)
        elems *= tensor->shape[d];
    for (int64_t i = 0; i < elems; i++) {
        int64_t at = (uint8_t *)tensor->data - array, rest = i;

        for (uint32_t d = tensor->ndim; d-- > 0; rest /= tensor->shape[d])
            at += rest % tensor->shape[d] * tensor->strides[d] * each;
        for (int64_t k = 0; k < each; k++) {
            twice = twice || bytes[at + k];
            bytes[at + k] = true;
        }
    }
    return twice;
}

static bool share(const struct rdt_tensor *a, const struct rdt_tensor *b)
{
    bool bytes[ARRAY_BYTES] = {false};

    return !mark(a, bytes) && mark(b, bytes);
}

Test(overlap, random_views_share_what_a_map_of_bytes_says)
{
    unsigned apart = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rdt_tensor tensors[MOST_TENSORS];
        struct view views[MOST_TENSORS];
        size_t count = 2 + below(MOST_TENSORS - 1);
        struct overlap found;
        bool any = false;

        for (size_t i = 0; i < count; i++)
            tensors[i] = random_view(&views[i]);
        for (size_t i = 0; i < count; i++)
            for (size_t k = i + 1; k < count; k++)
                any = any || share(&tensors[i], &tensors[k]);
        enum rdt_status status = overlap_find(tensors, count, NULL, &found);
        cr_assert_eq(status, any ? RDT_EXISTS : RDT_OK, "round %u: %d", round, (int)status);
        if (any)
            cr_assert(found.first < found.second && share(&tensors[found.first], &tensors[found.second]), "round %u", round);
        apart += !any;
    }
    cr_assert(apart > ROUNDS / 10 && apart < ROUNDS - ROUNDS / 10, "%u of %u are apart", apart, ROUNDS);
}

Test(overlap, many_columns_of_one_large_matrix_are_compared_quickly)
{
    enum { COLUMNS = 4000 };
    static struct rdt_tensor tensors[COLUMNS + 1];
    int64_t shape[2] = {INT64_C(1) << 30, 2}, strides[2] = {2 * COLUMNS, 1};
    struct overlap found;

    for (size_t i = 0; i <= COLUMNS; i++)
        tensors[i] = (struct rdt_tensor){RDT_F32, 2, shape, strides, (float *)(uintptr_t)4096 + 2 * i};
    cr_assert_eq(overlap_find(tensors, COLUMNS, NULL, &found), RDT_OK);
    cr_assert_eq(overlap_find(tensors, COLUMNS + 1, NULL, &found), RDT_EXISTS); /* the second row of the first column */
    cr_assert(found.first == 0 && found.second == COLUMNS);
}

Test(overlap, equal_tensors_are_twins)
{
    static float data[8];
    int64_t four[] = {4}, two[] = {1, 4}, step[] = {1}, other[] = {7, 1};
    struct rdt_tensor tensors[] = {
        {RDT_F32, 1, four, NULL, data + 4}, {RDT_F32, 1, four, NULL, data}, {RDT_F32, 1, four, step, data + 4},
        {RDT_F32, 1, four, NULL, data + 4}, {RDT_F32, 2, two, other, data},
    };
    struct overlap found;
    size_t twins[5];

    cr_assert_eq(overlap_find(tensors, 4, twins, &found), RDT_OK);
    cr_assert_arr_eq(twins, ((size_t[]){0, 1, 0, 0}), 4 * sizeof *twins);
    cr_assert_eq(overlap_find(tensors, 4, NULL, &found), RDT_EXISTS);
    cr_assert(found.first == 0 && found.second == 2);
    cr_assert_eq(overlap_find(tensors, 5, twins, &found), RDT_EXISTS); /* another shape */
    cr_assert(found.first == 1 && found.second == 4);
}
