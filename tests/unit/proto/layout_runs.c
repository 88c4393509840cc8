/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of tensors as runs: similar tensors become one row and come back unchanged, and a row is checked before it is used. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "proto/wire_limits.h"

#define MANY 10000u

struct row { /* and the tensors that it stands for */
    Rdt__Pb__TensorList list;
    uint32_t dtype, ndim, region, run;
    uint64_t shape[RDT_MAX_NDIM], offset, step;
    int64_t strides[RDT_MAX_NDIM];
};

static struct layout_rows rows;

/* Of one dimension with `size` elements of a byte. */
static Rdt__Pb__TensorList *make(struct row *row, uint64_t size, uint64_t offset, uint32_t run, uint64_t step)
{
    *row = (struct row){.dtype = RDT_U8, .ndim = 1, .shape = {size}, .offset = offset, .run = run, .step = step};
    rdt__pb__tensor_list__init(&row->list);
    row->list.n_dtype = row->list.n_ndim = row->list.n_shape = row->list.n_offset = row->list.n_run = row->list.n_step = 1;
    row->list.dtype = &row->dtype;
    row->list.ndim = &row->ndim;
    row->list.shape = row->shape;
    row->list.strides = row->strides;
    row->list.region_index = &row->region;
    row->list.offset = &row->offset;
    row->list.run = &row->run;
    row->list.step = &row->step;
    return &row->list;
}

static struct layout *must_read(const Rdt__Pb__TensorList *list)
{
    struct layout *layout = NULL;
    struct rdt_error err = {0};

    cr_assert_eq(layout_from_wire(list, &layout, &err), RDT_OK, "%s", err.msg);
    return layout;
}

static void refused(int line, const Rdt__Pb__TensorList *list, enum rdt_status expected, const char *word)
{
    struct layout *layout = (struct layout *)&rows;
    struct rdt_error err = {0};

    cr_assert_eq(layout_from_wire(list, &layout, &err), expected, "line %d: %s", line, err.msg);
    cr_assert_eq((void *)layout, (void *)&rows, "a failure writes nothing");
    cr_assert_not_null(strstr(err.msg, word), "line %d: \"%s\" is not in \"%s\"", line, word, err.msg);
}

#define REFUSED(list, expected, word) refused(__LINE__, list, expected, word)

static void must_be_same(const struct layout *a, const struct layout *b, bool with_place)
{
    cr_assert(a->count == b->count && a->n_dims == b->n_dims);
    cr_assert_eq(memcmp(a->dtype, b->dtype, a->count * sizeof *a->dtype), 0);
    cr_assert_eq(memcmp(a->ndim, b->ndim, a->count * sizeof *a->ndim), 0);
    cr_assert_eq(memcmp(a->first_dim, b->first_dim, a->count * sizeof *a->first_dim), 0);
    cr_assert_eq(memcmp(a->shape, b->shape, a->n_dims * sizeof *a->shape), 0);
    cr_assert_eq(memcmp(a->strides, b->strides, a->n_dims * sizeof *a->strides), 0);
    cr_assert(!with_place || memcmp(a->region, b->region, a->count * sizeof *a->region) == 0);
    cr_assert(!with_place || memcmp(a->offset, b->offset, a->count * sizeof *a->offset) == 0);
}

/* To the wire's bytes and back; returns how many rows it had. */
static size_t there_and_back(const struct layout *layout, bool with_place)
{
    Rdt__Pb__TensorList list, *come;

    layout_to_wire(layout, with_place, &rows, &list);
    uint8_t *bytes = malloc(rdt__pb__tensor_list__get_packed_size(&list));
    size_t n = rdt__pb__tensor_list__pack(&list, bytes);
    come = rdt__pb__tensor_list__unpack(NULL, n, bytes);
    cr_assert_not_null(come);
    cr_assert_eq(layout_run_tensors(come), list.n_run ? layout->count : 0);
    struct layout *again = must_read(come);
    must_be_same(layout, again, with_place);
    size_t n_rows = come->n_dtype;
    free(again);
    free(bytes);
    rdt__pb__tensor_list__free_unpacked(come, NULL);
    return n_rows;
}

static struct layout *equal_tensors(uint32_t n, uint64_t size, uint64_t step)
{
    struct layout *layout = layout_create(n, n);

    for (uint32_t i = 0; i < n; i++) {
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
        layout->region[i] = 0;
        layout->offset[i] = 4096 + i * step;
        layout->shape[i] = size;
        layout->strides[i] = 1;
    }
    return layout;
}

/* ---- there and back ---- */

Test(layout_runs, similar_tensors_are_one_row)
{
    struct layout *layout = equal_tensors(MANY, 6720, 6720);

    cr_assert_eq(there_and_back(layout, true), 1);
    cr_assert_eq(there_and_back(layout, false), 1);
    layout->offset[700] += 1; /* it, what is before it, and what is behind */
    cr_assert_eq(there_and_back(layout, true), 3);
    cr_assert_eq(there_and_back(layout, false), 1);
    layout->region[MANY - 1] = 1;
    layout->dtype[0] = RDT_I8;
    cr_assert_eq(there_and_back(layout, true), 5);
    cr_assert_eq(there_and_back(layout, false), 2);
    layout->shape[MANY / 2] = 6719;
    layout->strides[MANY / 3] = -1;
    cr_assert_leq(there_and_back(layout, true), 9);
    free(layout);
}

Test(layout_runs, few_different_or_too_many_tensors_go_one_by_one)
{
    struct layout *layout = equal_tensors(LAYOUT_RUNS_LEAST - 1, 8, 8);
    Rdt__Pb__TensorList list;

    layout_to_wire(layout, true, &rows, &list);
    cr_assert(list.n_run == 0 && list.offset == layout->offset);
    free(layout);
    layout = equal_tensors(RDT_MAX_RUN_TENSORS + 1, 8, 8);
    layout_to_wire(layout, true, &rows, &list);
    cr_assert(list.n_run == 0 && list.n_dtype == RDT_MAX_RUN_TENSORS + 1);
    free(layout);
    layout = equal_tensors(MANY, 8, 8);
    for (uint32_t i = 0; i < MANY; i += 2)
        layout->shape[i] = 7;
    cr_assert_eq(there_and_back(layout, true), MANY);
    for (uint32_t i = 0; i < MANY; i++) { /* what differs is looked at last */
        layout->shape[i] = 8;
        layout->region[i] = i / 3 % 2;
    }
    cr_assert_eq(there_and_back(layout, true), MANY);
    free(layout);
}

Test(layout_runs, peer_without_runs_gets_none)
{
    struct layout *layout = equal_tensors(MANY, 8, 8);
    Rdt__Pb__TensorList list;

    layout_to_wire(layout, true, NULL, &list);
    cr_assert(list.n_run == 0 && list.n_step == 0 && list.n_dtype == MANY);
    free(layout);
}

/* Lists of a few kinds of tensors, any strides, regions and gaps, in stretches of random length. */
Test(layout_runs, any_list_comes_back_as_it_was)
{
    unsigned in_runs = 0;

    srand(7);
    for (unsigned round = 0; round < 2000; round++) {
        uint32_t n = (uint32_t)rand() % 300, stretch = 1 + (uint32_t)rand() % 100, dim = 0;
        struct layout *layout = layout_create(n, 4 * n), *exact;
        uint64_t offset = 0, gap = 0;
        uint32_t kind = 0;

        for (uint32_t i = 0; i < n; i++) {
            if ((uint32_t)rand() % stretch == 0) {
                kind = (uint32_t)rand();
                gap = (uint64_t)rand() % 3 * 64;
            }
            layout->dtype[i] = kind % 3 ? RDT_F32 : RDT_U8;
            layout->ndim[i] = kind / 3 % 4;
            layout->first_dim[i] = dim;
            layout->region[i] = kind / 12 % 3 ? 0 : 1;
            for (uint32_t d = 0; d < layout->ndim[i]; d++) {
                layout->shape[dim + d] = kind / 36 % 5;
                layout->strides[dim + d] = (int64_t)(kind / 180 % 5) - 2;
            }
            if (kind / 900 % 2)
                layout_set_row_major(layout, i);
            dim += layout->ndim[i];
            layout->offset[i] = offset;
            offset = kind / 1800 % 5 ? offset + gap + layout_bytes(layout, i) : 10000 - offset % 9000;
        }
        layout->n_dims = dim;
        exact = layout_create(n, dim);
        memcpy(exact->dtype, layout->dtype, n * sizeof *exact->dtype);
        memcpy(exact->ndim, layout->ndim, n * sizeof *exact->ndim);
        memcpy(exact->first_dim, layout->first_dim, n * sizeof *exact->first_dim);
        memcpy(exact->region, layout->region, n * sizeof *exact->region);
        memcpy(exact->offset, layout->offset, n * sizeof *exact->offset);
        memcpy(exact->shape, layout->shape, dim * sizeof *exact->shape);
        memcpy(exact->strides, layout->strides, dim * sizeof *exact->strides);
        in_runs += there_and_back(exact, true) < n;
        (void)there_and_back(exact, false);
        free(layout);
        free(exact);
    }
    cr_assert_gt(in_runs, 300);
}

Test(layout_runs, a_row_stands_for_each_of_its_tensors)
{
    struct row row;

    make(&row, 6, 100, 3, 1000);
    row.ndim = row.list.n_shape = row.list.n_strides = 2;
    row.shape[0] = 2;
    row.shape[1] = 3;
    row.strides[0] = -3;
    row.strides[1] = 1;
    row.region = 4;
    row.list.n_region_index = 1;
    struct layout *layout = must_read(&row.list);
    cr_assert(layout->count == 3 && layout->n_dims == 6);
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t lo, hi;

        cr_assert(layout->dtype[i] == RDT_U8 && layout->ndim[i] == 2 && layout->first_dim[i] == 2 * i &&
                  layout->region[i] == 4);
        cr_assert(layout->shape[2 * i] == 2 && layout->shape[2 * i + 1] == 3 && layout->strides[2 * i] == -3);
        cr_assert_eq(layout_extent(layout, i, &lo, &hi, NULL), RDT_OK);
        cr_assert(lo == 97 + 1000 * i && hi == 103 + 1000 * i);
    }
    free(layout);
    make(&row, 5, 7, 2, 0); /* one over the other */
    row.list.n_step = 0;
    layout = must_read(&row.list);
    cr_assert(layout->offset[0] == 7 && layout->offset[1] == 7 && layout->strides[1] == 1);
    free(layout);
}

/* ---- what is claimed ---- */

Test(layout_runs, runs_of_none_and_columns_of_other_lengths_are_refused)
{
    struct row row;

    REFUSED(make(&row, 1, 0, 0, 0), RDT_INVALID, "its run has no tensors");
    make(&row, 1, 0, 2, 0);
    row.list.n_run = 0;
    REFUSED(&row.list, RDT_INVALID, "0 runs but 1 steps");
    make(&row, 1, 0, 2, 0);
    row.list.n_run = 2;
    REFUSED(&row.list, RDT_INVALID, "1 rows but 2 runs");
    make(&row, 1, 0, 2, 0);
    row.list.n_step = 2;
    REFUSED(&row.list, RDT_INVALID, "1 runs but 2 steps");
    make(&row, 1, 0, 2, 0);
    row.dtype = 99;
    REFUSED(&row.list, RDT_INVALID, "dtype 99");
}

Test(layout_runs, more_than_a_message_may_stand_for_is_refused)
{
    static const uint32_t runs[] = {RDT_MAX_RUN_TENSORS + 1, UINT32_MAX, UINT32_MAX / 2 + 1};
    uint32_t dtypes[3] = {RDT_U8, RDT_U8, RDT_U8}, ndims[3] = {0}, several[3] = {RDT_MAX_RUN_TENSORS, 1, UINT32_MAX};
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    struct row row;

    for (unsigned i = 0; i < sizeof runs / sizeof *runs; i++)
        REFUSED(make(&row, 1, 0, runs[i], 1), RDT_LIMIT, "runs have more than 16384 tensors");
    list.n_dtype = list.n_ndim = list.n_run = 3;
    list.dtype = dtypes;
    list.ndim = ndims;
    list.run = several;
    REFUSED(&list, RDT_LIMIT, "runs have more than 16384 tensors");
    list.n_dtype = list.n_ndim = list.n_run = 2;
    REFUSED(&list, RDT_LIMIT, "runs have more than 16384 tensors");
    list.n_dtype = list.n_ndim = list.n_run = 1;
    free(must_read(&list));
    make(&row, 1, 0, RDT_MAX_RUN_DIMS / 32 + 1, 1);
    row.ndim = row.list.n_shape = 32;
    for (unsigned d = 0; d < 32; d++)
        row.shape[d] = 1;
    REFUSED(&row.list, RDT_LIMIT, "more than 65536 dimensions");
    row.run--;
    free(must_read(&row.list));
}

Test(layout_runs, bytes_and_steps_beyond_2_63_are_refused)
{
    const uint64_t half = (uint64_t)1 << 62, all = (uint64_t)1 << 63;
    struct row row;

    free(must_read(make(&row, half, 0, 1, UINT64_MAX))); /* nothing is a step behind a single one */
    REFUSED(make(&row, half, 0, 2, 0), RDT_INVALID, "tensors of its run");
    REFUSED(make(&row, half, 0, 16384, 0), RDT_INVALID, "tensors of its run");
    REFUSED(make(&row, 8, 0, 2, all), RDT_INVALID, "tensor 1: reaches beyond");
    REFUSED(make(&row, 8, 0, 2, UINT64_MAX), RDT_INVALID, "tensor 1: reaches beyond");
    REFUSED(make(&row, 8, 0, 3, all), RDT_INVALID, "tensor 2: reaches beyond"); /* which overflows */
    REFUSED(make(&row, 8, 8, 3, half - 4), RDT_INVALID, "tensor 2: reaches beyond");
    REFUSED(make(&row, 8, all, 3, half), RDT_INVALID, "tensor 2: reaches beyond");
    REFUSED(make(&row, 0, UINT64_MAX, 2, 1), RDT_INVALID, "tensor 1: reaches beyond");
    free(must_read(make(&row, 8, 0, 3, half - 4)));
    make(&row, 2, 0, 2, 8);
    row.strides[0] = INT64_MAX;
    row.list.n_strides = 1;
    REFUSED(&row.list, RDT_INVALID, "reaches beyond");
}
