/* SPDX-License-Identifier: Apache-2.0 */
/* proto/manifest: what a stranger may have written is refused. */
#include <criterion/criterion.h>

#include "proto/manifest.h"

TestSuite(manifest, .timeout = 60);

/* One part with one tensor: rows 2 and 3 of a tensor with 8 rows of 4. */
static uint32_t dtype = RDT_F32, ndim = 2, key_of[] = {0}, ndim_of[] = {2}, run = 1;
static uint64_t shape[] = {2, 4}, global_shape[] = {8, 4};
static int64_t by[] = {2, 0};
static char *key[] = {"weight"};
static Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
static Rdt__Pb__ManifestLayout layout = RDT__PB__MANIFEST_LAYOUT__INIT, *layouts[] = {&layout};
static Rdt__Pb__ManifestMove move = RDT__PB__MANIFEST_MOVE__INIT, *moves[] = {&move};
static Rdt__Pb__ManifestPart part = RDT__PB__MANIFEST_PART__INIT, *parts[] = {&part};
static Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
static Rdt__Pb__Manifest message = RDT__PB__MANIFEST__INIT;

static void make(void)
{
    tensors.dtype = &dtype;
    tensors.ndim = &ndim;
    tensors.shape = shape;
    tensors.n_dtype = tensors.n_ndim = layout.n_key = 1;
    tensors.n_shape = move.n_by = message.n_global_shape = 2;
    layout.tensors = &tensors;
    layout.key = key_of;
    part.ref = &ref;
    move.by = by;
    message.key = key;
    message.ndim = ndim_of;
    message.global_shape = global_shape;
    message.layouts = layouts;
    message.moves = moves;
    message.parts = parts;
    message.n_key = message.n_ndim = message.n_layouts = message.n_moves = message.n_parts = 1;
}

static enum rdt_status opened(void)
{
    struct manifest manifest;
    struct rdt_error err = {0};
    enum rdt_status status = manifest_open(&message, &manifest, &err);

    manifest_close(&manifest);
    return status;
}

Test(manifest, parts_are_boxes_of_larger_tensors, .init = make)
{
    struct manifest manifest;
    Rdt__Pb__Boxes boxes;
    struct rdt_error err = {0};

    cr_assert_eq(manifest_open(&message, &manifest, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(manifest_part(&manifest, 0, &boxes)->count, 1);
    cr_assert_str_eq(boxes.key[0], "weight");
    cr_assert(boxes.global_shape[0] == 8 && boxes.start[0] == 2);
    manifest_close(&manifest);
}

Test(manifest, index_out_of_range_is_refused, .init = make)
{
    part.layout = 1;
    cr_assert_eq(opened(), RDT_INVALID);
    part.layout = 0;
    part.move = 1;
    cr_assert_eq(opened(), RDT_INVALID);
    part.move = 0;
    key_of[0] = 1;
    cr_assert_eq(opened(), RDT_INVALID);
}

Test(manifest, columns_of_different_lengths_are_refused, .init = make)
{
    move.n_by = 1;
    cr_assert_eq(opened(), RDT_INVALID);
    move.n_by = 2;
    message.n_global_shape = 1;
    cr_assert_eq(opened(), RDT_INVALID);
    message.n_global_shape = 2;
    message.n_ndim = 0;
    cr_assert_eq(opened(), RDT_INVALID);
    message.n_ndim = 1;
    layout.n_key = 0;
    cr_assert_eq(opened(), RDT_INVALID);
    layout.n_key = 1;
    ndim_of[0] = 1;
    message.n_global_shape = 1;
    cr_assert_eq(opened(), RDT_INVALID);
}

Test(manifest, box_outside_its_tensor_is_refused, .init = make)
{
    by[0] = 7;
    cr_assert_eq(opened(), RDT_INVALID);
    by[0] = -1;
    cr_assert_eq(opened(), RDT_INVALID);
}

/* Each part lies two rows behind the one before, so the fourth one ends outside. */
Test(manifest, parts_of_one_layout_start_where_their_moves_lead, .init = make)
{
    Rdt__Pb__ManifestPart *four[] = {&part, &part, &part, &part};
    struct manifest manifest;
    Rdt__Pb__Boxes boxes;
    struct rdt_error err = {0};

    message.parts = four;
    message.n_parts = 3;
    cr_assert_eq(manifest_open(&message, &manifest, &err), RDT_OK, "%s", err.msg);
    for (size_t i = 0; i < 3; i++) {
        (void)manifest_part(&manifest, i, &boxes);
        cr_assert(boxes.start[0] == 2 * (i + 1) && boxes.start[1] == 0);
    }
    manifest_close(&manifest);
    message.n_parts = 4;
    cr_assert_eq(opened(), RDT_INVALID);
}

/* A part of a few bytes would take kilobytes of its reader. */
Test(manifest, few_bytes_that_stand_for_too_many_boxes_are_refused, .init = make)
{
    enum { PARTS = MANIFEST_MAX_DIMS / 2 + 1 };
    Rdt__Pb__ManifestPart **many = malloc(PARTS * sizeof(Rdt__Pb__ManifestPart *));

    for (size_t i = 0; i < PARTS; i++)
        many[i] = &part;
    message.parts = many;
    message.n_parts = PARTS;
    cr_assert_eq(opened(), RDT_LIMIT, "there are more dimensions than a reader takes");
    ndim = ndim_of[0] = 0;
    move.n_by = tensors.n_shape = message.n_global_shape = 0;
    message.n_parts = MANIFEST_MAX_BOXES + 1;
    cr_assert_eq(opened(), RDT_LIMIT, "there are more boxes");
    free(many);
}

Test(manifest, runs_are_refused, .init = make)
{
    tensors.run = &run;
    tensors.n_run = 1;
    cr_assert_eq(opened(), RDT_INVALID, "a manifest of 4 MiB could take gigabytes");
}

Test(manifest, part_without_ref_is_refused, .init = make)
{
    part.ref = NULL;
    cr_assert_eq(opened(), RDT_INVALID);
}
