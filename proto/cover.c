/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/grow.h"

uint64_t box_elems(uint32_t ndim, const uint64_t *count)
{
    uint64_t elems = 1;

    for (uint32_t d = 0; d < ndim; d++)
        elems *= count[d];
    return elems;
}

bool box_intersect(uint32_t ndim, const uint64_t *start_a, const uint64_t *count_a, const uint64_t *start_b,
                   const uint64_t *count_b, uint64_t *start_p, uint64_t *count_p)
{
    for (uint32_t d = 0; d < ndim; d++) {
        uint64_t end_a = start_a[d] + count_a[d], end_b = start_b[d] + count_b[d];
        uint64_t from = start_a[d] > start_b[d] ? start_a[d] : start_b[d], to = end_a < end_b ? end_a : end_b;

        if (from >= to)
            return false;
        start_p[d] = from;
        count_p[d] = to - from;
    }
    return true;
}

void box_text(uint32_t ndim, const uint64_t *start, const uint64_t *count, char *text_p)
{
    size_t at = 1;

    text_p[0] = '[';
    for (uint32_t d = 0; d < ndim && at < BOX_TEXT_BYTES - 48; d++)
        at += (size_t)snprintf(text_p + at, BOX_TEXT_BYTES - at, "%s%llu:%llu", d ? ", " : "", (unsigned long long)start[d],
                               (unsigned long long)(start[d] + count[d]));
    (void)snprintf(text_p + at, BOX_TEXT_BYTES - at, "]");
}

enum rdt_status cover_init(struct cover *cover, uint32_t ndim, const uint64_t *shape, struct rdt_error *err)
{
    *cover = (struct cover){.ndim = ndim};
    if (box_elems(ndim, shape) == 0)
        return RDT_OK; /* nothing is to be covered */
    cover->holes = calloc(2 * (size_t)ndim + 1, sizeof *cover->holes);
    if (!cover->holes)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the boxes of a tensor");
    memcpy(cover->holes + ndim, shape, ndim * sizeof *shape);
    cover->n = cover->room = 1;
    return RDT_OK;
}

void cover_fini(struct cover *cover)
{
    free(cover->holes);
    *cover = (struct cover){0};
}

static enum rdt_status append(struct cover *cover, const uint64_t *start, const uint64_t *count, struct rdt_error *err)
{
    size_t one = 2 * (size_t)cover->ndim + (cover->ndim == 0);
    uint64_t *holes;

    if (cover->n == COVER_MAX_HOLES)
        return rdt_error_set(err, RDT_LIMIT, "the parts of a tensor that are missing need more than %u boxes to describe",
                             COVER_MAX_HOLES);
    holes = array_grow(cover->holes, cover->n, &cover->room, one * sizeof *holes);
    if (!holes)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the boxes of a tensor");
    cover->holes = holes;
    memcpy(cover->holes + cover->n * one, start, cover->ndim * sizeof *start);
    memcpy(cover->holes + cover->n * one + cover->ndim, count, cover->ndim * sizeof *count);
    cover->n++;
    return RDT_OK;
}

/* Adds what is left of the hole without the part that both have: at most two boxes for each dimension. In dimension d the
 * pieces beside the part keep the part's range in the dimensions before d, so that no element is in two pieces. */
static enum rdt_status split(struct cover *left, const uint64_t *hole, const uint64_t *part_start, const uint64_t *part_count,
                             struct rdt_error *err)
{
    uint64_t start[32], count[32];
    enum rdt_status status = RDT_OK;

    memcpy(start, hole, left->ndim * sizeof *start);
    memcpy(count, hole + left->ndim, left->ndim * sizeof *count);
    for (uint32_t d = 0; d < left->ndim && status == RDT_OK; d++) {
        uint64_t from = start[d], to = start[d] + count[d], part_end = part_start[d] + part_count[d];

        if (from < part_start[d]) {
            count[d] = part_start[d] - from;
            status = append(left, start, count, err);
        }
        if (status == RDT_OK && part_end < to) {
            start[d] = part_end;
            count[d] = to - part_end;
            status = append(left, start, count, err);
        }
        start[d] = part_start[d];
        count[d] = part_count[d];
    }
    return status;
}

enum rdt_status cover_add(struct cover *cover, const uint64_t *start, const uint64_t *count, struct rdt_error *err)
{
    uint32_t ndim = cover->ndim;
    size_t one = 2 * (size_t)ndim + (ndim == 0);
    uint64_t elems = box_elems(ndim, count), covered = 0, part_start[32], part_count[32];
    struct cover left = {.ndim = ndim};
    enum rdt_status status = RDT_OK;

    if (elems == 0)
        return RDT_OK;
    for (uint32_t i = 0; i < cover->n && status == RDT_OK; i++) {
        const uint64_t *hole = cover->holes + i * one;

        if (!box_intersect(ndim, hole, hole + ndim, start, count, part_start, part_count)) {
            status = append(&left, hole, hole + ndim, err);
        } else {
            covered += box_elems(ndim, part_count);
            status = split(&left, hole, part_start, part_count, err);
        }
    }
    if (status == RDT_OK && covered != elems)
        status = RDT_EXISTS;
    if (status != RDT_OK) {
        cover_fini(&left);
        return status;
    }
    free(cover->holes);
    *cover = left;
    return RDT_OK;
}
