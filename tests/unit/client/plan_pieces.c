/* SPDX-License-Identifier: Apache-2.0 */
/* Plans against a map of every element: random tensors cut into random boxes, random wants. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "client/plan/pieces.h"
#include "client/plan/strided.h"
#include "proto/cover.h"
#include "tests/support/tensors.h"

#define ROUNDS 400
#define MAX_BOXES 64

static uint64_t seed = 7;

static uint64_t below(uint64_t n)
{
    return next_random(&seed) % n;
}

struct boxes {
    uint32_t ndim, n;
    uint64_t shape[4], start[MAX_BOXES][4], count[MAX_BOXES][4];
};

/* Cuts the box at a random place, again and again. */
static void cut(struct boxes *boxes, uint32_t rounds)
{
    boxes->n = 1;
    memset(boxes->start[0], 0, sizeof boxes->start[0]);
    memcpy(boxes->count[0], boxes->shape, sizeof boxes->shape);
    for (uint32_t i = 0; i < rounds && boxes->n < MAX_BOXES && boxes->ndim > 0; i++) {
        uint32_t which = (uint32_t)below(boxes->n), d = (uint32_t)below(boxes->ndim), next = boxes->n;
        uint64_t at = boxes->count[which][d] > 1 ? 1 + below(boxes->count[which][d] - 1) : 0;

        if (at == 0)
            continue;
        memcpy(boxes->start[next], boxes->start[which], sizeof boxes->start[next]);
        memcpy(boxes->count[next], boxes->count[which], sizeof boxes->count[next]);
        boxes->start[next][d] += at;
        boxes->count[next][d] -= at;
        boxes->count[which][d] = at;
        boxes->n++;
    }
}

static void make(struct boxes *boxes)
{
    boxes->ndim = (uint32_t)below(5);
    for (uint32_t d = 0; d < 4; d++)
        boxes->shape[d] = d < boxes->ndim ? 1 + below(7) : 1;
    cut(boxes, 1 + (uint32_t)below(20));
}

/* The flat index of an element of a box in the tensor of that shape. */
static uint64_t flat(uint32_t ndim, const uint64_t *shape, const uint64_t *start, const uint64_t *count, uint64_t i)
{
    uint64_t index = 0, scale = 1;

    for (uint32_t d = ndim; d-- > 0;) {
        index += (start[d] + i % count[d]) * scale;
        i /= count[d];
        scale *= shape[d];
    }
    return index;
}

static void row_major(uint32_t ndim, const uint64_t *count, int64_t *strides_p)
{
    int64_t stride = 1;

    for (uint32_t d = ndim; d-- > 0;) {
        strides_p[d] = stride;
        stride *= (int64_t)count[d];
    }
}

Test(plan_pieces, fill_wants_as_a_map_of_every_element_says)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct source sources[MAX_BOXES];
        struct pieces pieces = {0};
        struct boxes boxes;
        uint32_t *data[MAX_BOXES], *target;
        uint64_t start[4] = {0}, count[4], total;
        int64_t to_strides[4];

        make(&boxes);
        for (uint32_t i = 0; i < boxes.n; i++) {
            uint64_t n = box_elems(boxes.ndim, boxes.count[i]);
            sources[i] = (struct source){.key = "w",
                                         .part = i / 3,
                                         .tensor = i % 3,
                                         .dtype = RDT_U32,
                                         .ndim = boxes.ndim,
                                         .global_shape = boxes.shape,
                                         .start = boxes.start[i],
                                         .count = boxes.count[i]};
            data[i] = malloc(n * sizeof *data[i]);
            for (uint64_t e = 0; e < n; e++)
                data[i][e] = (uint32_t)flat(boxes.ndim, boxes.shape, boxes.start[i], boxes.count[i], e) + 1;
        }
        for (uint32_t d = 0; d < boxes.ndim; d++) {
            start[d] = below(boxes.shape[d]);
            count[d] = 1 + below(boxes.shape[d] - start[d]);
        }
        struct wanted want = (struct wanted){"w", RDT_U32, boxes.ndim, start, count, NULL, -1};
        must_ok(pieces_plan(sources, boxes.n, &want, 1, false, &pieces, &err));
        total = box_elems(boxes.ndim, count);
        target = calloc(total, sizeof *target);
        row_major(boxes.ndim, count, to_strides);
        for (size_t i = 0; i < pieces.n; i++) {
            const struct piece *piece = &pieces.list[i];
            int64_t strides[4], from_at = 0, to_at = 0;

            must(i == 0 || pieces.list[i - 1].part <= piece->part);
            row_major(boxes.ndim, boxes.count[piece->source], strides);
            for (uint32_t d = 0; d < boxes.ndim; d++) {
                from_at += (int64_t)piece->from[d] * strides[d];
                to_at += (int64_t)piece->to[d] * to_strides[d];
            }
            struct strided from = (struct strided){RDT_U32, (uint8_t *)(data[piece->source] + from_at), strides};
            struct strided to = (struct strided){RDT_U32, (uint8_t *)(target + to_at), to_strides};
            strided_copy(boxes.ndim, piece->count, &from, &to);
        }
        for (uint64_t e = 0; e < total; e++)
            must(target[e] == flat(boxes.ndim, boxes.shape, start, count, e) + 1);
        free(target);
        for (uint32_t i = 0; i < boxes.n; i++)
            free(data[i]);
        pieces_fini(&pieces);
    }
}

Test(plan_pieces, refuses_what_the_version_does_not_have)
{
    uint64_t shape[2] = {4, 6}, none[2] = {0, 0}, some[2] = {2, 6}, all[2] = {4, 6}, far[2] = {2, 5};
    struct source source = {.key = "w", .dtype = RDT_I32, .ndim = 2, .global_shape = shape, .start = none, .count = some};
    struct wanted want = {"w", RDT_I32, 2, none, all, NULL, -1};
    struct pieces pieces;

    must_refuse(RDT_INVALID, "tensor \"w\": no part of the version has elements of the box [2:4, 0:6]",
                pieces_plan(&source, 1, &want, 1, false, &pieces, &err));
    source.count = all;
    want.start = far;
    must_be(RDT_MISMATCH, pieces_plan(&source, 1, &want, 1, false, &pieces, &err));
    want.start = none;
    want.dtype = RDT_BF16;
    must_refuse(RDT_UNSUPPORTED, "no cast from i32 to bf16", pieces_plan(&source, 1, &want, 1, false, &pieces, &err));
    want = (struct wanted){"v", RDT_I32, 2, none, all, NULL, -1};
    must_be(RDT_NOT_FOUND, pieces_plan(&source, 1, &want, 1, false, &pieces, &err));
    want = (struct wanted){"w", RDT_I32, 1, none, all, NULL, -1};
    must_be(RDT_MISMATCH, pieces_plan(&source, 1, &want, 1, false, &pieces, &err));
}

Test(plan_pieces, padded_want_is_filled_as_far_as_the_tensor_goes)
{
    uint64_t shape[2] = {4, 6}, none[2] = {0, 0}, all[2] = {4, 6}, mine[2] = {7, 6}, start[2] = {3, 1}, count[2] = {4, 2};
    struct source source = {.key = "w", .dtype = RDT_F32, .ndim = 2, .global_shape = shape, .start = none, .count = all};
    struct wanted want = {"w", RDT_F32, 2, start, count, mine, -1};
    struct pieces pieces;

    must_refuse(RDT_MISMATCH, "tensor \"w\" has the shape [4, 6], but the reader wants a tensor of the shape [7, 6]",
                pieces_plan(&source, 1, &want, 1, false, &pieces, &err));
    want.padded = 0;
    must_ok(pieces_plan(&source, 1, &want, 1, true, &pieces, &err));
    must(pieces.n == 1 && pieces.list[0].count[0] == 1 && pieces.list[0].count[1] == 2 && pieces.list[0].from[0] == 3);
    pieces_fini(&pieces);
    start[0] = 5; /* all of it is padding */
    count[0] = 2;
    must_ok(pieces_plan(&source, 1, &want, 1, true, &pieces, &err));
    must(pieces.n == 0);
    pieces_fini(&pieces);
    mine[0] = 2; /* shorter than the published one */
    start[0] = 0;
    must_ok(pieces_plan(&source, 1, &want, 1, true, &pieces, &err));
    must(pieces.n == 1 && pieces.list[0].count[0] == 2);
    pieces_fini(&pieces);
    must_refuse(RDT_MISMATCH, "the version has the tensor \"w\", which", pieces_plan(&source, 1, NULL, 0, true, &pieces, &err));
}

/* A daemon makes no such manifest, but anybody may publish bytes that look like one. */
Test(plan_pieces, refuses_parts_that_differ_in_kind)
{
    uint64_t shape[2] = {4, 6}, none[2] = {0, 0}, upper[2] = {2, 6}, all[2] = {4, 6}, lower[2] = {2, 0}, *one = malloc(8);
    struct source sources[2] = {
        {.key = "w", .dtype = RDT_F32, .ndim = 2, .global_shape = shape, .start = none, .count = upper},
        {.key = "w", .part = 1, .dtype = RDT_I32, .ndim = 2, .global_shape = shape, .start = lower, .count = upper}};
    struct wanted want = {"w", RDT_BF16, 2, none, all, NULL, -1};
    struct pieces pieces;

    must_refuse(RDT_UNSUPPORTED, "no cast from i32 to bf16", pieces_plan(sources, 2, &want, 1, false, &pieces, &err));
    *one = 2;
    sources[1] = (struct source){.key = "w",
                                 .part = 1,
                                 .dtype = RDT_F32,
                                 .ndim = 1,
                                 .global_shape = one,
                                 .start = one,
                                 .count = one}; /* a sanitizer sees a read past its end */
    must_refuse(RDT_MISMATCH, "has 1 dimensions, but 2 are wanted", pieces_plan(sources, 2, &want, 1, false, &pieces, &err));
    free(one);
}

Test(plan_pieces, parts_that_overlap_or_are_missing_are_refused)
{
    uint64_t shape[2] = {4, 6}, none[2] = {0, 0}, upper[2] = {3, 6}, lower[2] = {2, 0}, all[2] = {4, 6}, rest[2] = {2, 6};
    struct source sources[2] = {
        {.key = "w", .dtype = RDT_F32, .ndim = 2, .global_shape = shape, .start = none, .count = upper},
        {.key = "w", .part = 1, .dtype = RDT_F32, .ndim = 2, .global_shape = shape, .start = lower, .count = rest}};
    struct wanted want = {"w", RDT_F32, 2, none, all, NULL, -1};
    struct pieces pieces;

    must_refuse(RDT_INVALID, "tensor \"w\": several parts of the version have elements of the box [2:4, 0:6]",
                pieces_plan(sources, 2, &want, 1, false, &pieces, &err));
    sources[0].start = sources[1].start;
    sources[0].count = rest;
    must_refuse(RDT_INVALID, "tensor \"w\": no part of the version has elements of the box [0:2, 0:6]",
                pieces_plan(sources, 1, &want, 1, false, &pieces, &err));
    want.start = lower; /* what is missing or overlaps elsewhere does not matter */
    want.count = rest;
    must_ok(pieces_plan(sources, 1, &want, 1, false, &pieces, &err));
    must(pieces.n == 1 && pieces.list[0].from[0] == 0 && pieces.list[0].to[0] == 0);
    pieces_fini(&pieces);
}

Test(plan_pieces, strided_copy_follows_any_strides)
{
    float from[24], expected[24];
    uint16_t to[24];
    uint64_t count[3] = {2, 3, 4};
    int64_t from_strides[3] = {12, 1, 3}, to_strides[3] = {-12, 4, 1};
    struct strided source = {RDT_F32, (uint8_t *)from, from_strides}, target = {RDT_BF16, (uint8_t *)(to + 12), to_strides};

    for (int i = 0; i < 24; i++)
        from[i] = (float)i;
    strided_copy(3, count, &source, &target);
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 3; b++)
            for (int c = 0; c < 4; c++)
                expected[12 - 12 * a + 4 * b + c] = (float)(12 * a + b + 3 * c);
    for (int i = 0; i < 24; i++) {
        uint32_t bits = (uint32_t)to[i] << 16;
        must(memcmp(&bits, &expected[i], sizeof bits) == 0);
    }
}
