/* SPDX-License-Identifier: Apache-2.0 */
#include "client/plan/pieces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/plan/cast.h"
#include "proto/cover.h"
#include "proto/grow.h"

#define SHAPE_TEXT_BYTES 120u

struct group { /* the sources of one key */
    const struct source *first;
    size_t n;
    bool wanted;
};

static int by_key(const void *a, const void *b)
{
    const struct group *one = a, *other = b;

    return strcmp(one->first->key, other->first->key);
}

/* Lists the groups of sources in order of their keys: far fewer than there are sources, of which there may be millions. */
static struct group *list_groups(const struct source *sources, size_t n_sources, size_t *n_p)
{
    struct group *groups = NULL, *grown;
    size_t n = 0, room = 0;

    for (size_t i = 0; i < n_sources; i++) {
        if (i > 0 && (sources[i].key == sources[i - 1].key || strcmp(sources[i].key, sources[i - 1].key) == 0)) {
            groups[n - 1].n++;
            continue;
        }
        grown = array_grow(groups, n, &room, sizeof *groups);
        if (!grown) {
            free(groups);
            return NULL;
        }
        groups = grown;
        groups[n++] = (struct group){&sources[i], 1, false};
    }
    if (n > 0)
        qsort(groups, n, sizeof *groups, by_key);
    *n_p = n;
    return n > 0 ? groups : calloc(1, sizeof *groups);
}

static int by_part(const void *a, const void *b)
{
    const struct piece *one = a, *other = b;

    if (one->part != other->part)
        return one->part < other->part ? -1 : 1;
    if (one->tensor != other->tensor)
        return one->tensor < other->tensor ? -1 : 1;
    return one->want < other->want ? -1 : one->want > other->want;
}

/* NULL: no source has the key. */
static struct group *find(struct group *groups, size_t n, const char *key)
{
    size_t low = 0, high = n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(groups[middle].first->key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && strcmp(groups[low].first->key, key) == 0 ? &groups[low] : NULL;
}

static void shape_text(uint32_t ndim, const uint64_t *shape, char text_p[SHAPE_TEXT_BYTES])
{
    size_t at = 1;

    text_p[0] = '[';
    for (uint32_t d = 0; d < ndim && at < SHAPE_TEXT_BYTES - 24; d++)
        at += (size_t)snprintf(text_p + at, SHAPE_TEXT_BYTES - at, "%s%llu", d ? ", " : "", (unsigned long long)shape[d]);
    (void)snprintf(text_p + at, SHAPE_TEXT_BYTES - at, "]");
}

/* Whether the tensor is the one that the want is a box of. */
static enum rdt_status check_shape(const struct wanted *want, const struct source *source, struct rdt_error *err)
{
    char published[SHAPE_TEXT_BYTES], wanted[SHAPE_TEXT_BYTES];
    bool same = want->ndim == source->ndim;

    if (!want->global_shape)
        return same ? RDT_OK
                    : rdt_error_set(err, RDT_MISMATCH, "tensor \"%s\" has %u dimensions, but %u are wanted", want->key,
                                    source->ndim, want->ndim);
    for (uint32_t d = 0; same && d < want->ndim; d++)
        same = want->global_shape[d] == source->global_shape[d] || (int64_t)d == want->padded;
    if (same)
        return RDT_OK;
    shape_text(source->ndim, source->global_shape, published);
    shape_text(want->ndim, want->global_shape, wanted);
    return rdt_error_set(
        err, RDT_MISMATCH,
        "tensor \"%s\" has the shape %s, but the reader wants a tensor of the shape %s: the reader has another "
        "model, or must say which box of the tensor it wants",
        want->key, published, wanted);
}

static enum rdt_status check_want(const struct wanted *want, const struct source *source, struct rdt_error *err)
{
    enum rdt_status status = check_shape(want, source, err);

    if (status != RDT_OK)
        return status;
    status = cast_check(source->dtype, want->dtype, err);
    if (status != RDT_OK) {
        rdt_error_prefix(err, "tensor \"%s\"", want->key);
        return status;
    }
    for (uint32_t d = 0; d < want->ndim; d++)
        if (want->start[d] > source->global_shape[d] || want->count[d] > source->global_shape[d] - want->start[d])
            return rdt_error_set(err, RDT_MISMATCH,
                                 "tensor \"%s\": %llu elements from %llu on are wanted in dimension %u, which has %llu",
                                 want->key, (unsigned long long)want->count[d], (unsigned long long)want->start[d], d,
                                 (unsigned long long)source->global_shape[d]);
    return RDT_OK;
}

static enum rdt_status add(struct pieces *pieces, uint32_t want_index, const struct wanted *want, uint32_t source_index,
                           const struct source *source, const uint64_t *start, const uint64_t *count, struct rdt_error *err)
{
    struct piece *list = array_grow(pieces->list, pieces->n, &pieces->room, sizeof *list), *piece;

    if (!list)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a plan of %zu pieces", pieces->n + 1);
    pieces->list = list;
    piece = &pieces->list[pieces->n];
    *piece = (struct piece){.want = want_index, .part = source->part, .tensor = source->tensor, .source = source_index};
    piece->from = malloc((3 * (size_t)want->ndim + 1) * sizeof *piece->from);
    if (!piece->from)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a plan of %zu pieces", pieces->n);
    piece->to = piece->from + want->ndim;
    piece->count = piece->to + want->ndim;
    for (uint32_t d = 0; d < want->ndim; d++) {
        piece->from[d] = start[d] - source->start[d];
        piece->to[d] = start[d] - want->start[d];
        piece->count[d] = count[d];
    }
    pieces->n++;
    return RDT_OK;
}

/* No daemon makes such a manifest. start is relative to the want. */
static enum rdt_status wrong_parts(const struct wanted *want, const uint64_t *start, const uint64_t *count, const char *what,
                                   struct rdt_error *err)
{
    uint64_t in_tensor[PIECES_MAX_NDIM];
    char text[BOX_TEXT_BYTES];

    for (uint32_t d = 0; d < want->ndim; d++)
        in_tensor[d] = want->start[d] + start[d];
    box_text(want->ndim, in_tensor, count, text);
    return rdt_error_set(err, RDT_INVALID, "tensor \"%s\": %s elements of the box %.200s: publish it by rdt_publish_part",
                         want->key, what, text);
}

/* Whether the pieces from `first` on fill the want once. */
static enum rdt_status check_whole(const struct pieces *pieces, size_t first, const struct wanted *want, struct rdt_error *err)
{
    size_t n = pieces->n - first, one = 2 * (size_t)want->ndim;
    uint64_t *boxes = malloc((n * one + 1) * sizeof *boxes);
    struct cover_fault fault;
    enum rdt_status status = RDT_NO_MEMORY;

    for (size_t i = 0; boxes && i < n; i++) {
        memcpy(boxes + i * one, pieces->list[first + i].to, want->ndim * sizeof *boxes);
        memcpy(boxes + i * one + want->ndim, pieces->list[first + i].count, want->ndim * sizeof *boxes);
    }
    if (boxes)
        status = cover_check(want->ndim, want->count, boxes, (uint32_t)n, &fault);
    if (status == RDT_NOT_FOUND) {
        status = wrong_parts(want, fault.start, fault.count, "no part of the version has", err);
    } else if (status == RDT_EXISTS) {
        const uint64_t *box = boxes + fault.box * one;
        status = wrong_parts(want, box, box + want->ndim, "several parts of the version have", err);
    } else if (status == RDT_LIMIT) {
        status = rdt_error_set(err, RDT_LIMIT, "tensor \"%s\": its parts interlock in a way that takes too long to check",
                               want->key);
    } else if (status != RDT_OK) {
        status = rdt_error_set(err, status, "there is no memory to plan for the parts of tensor \"%s\"", want->key);
    }
    free(boxes);
    return status;
}

/* Shortens the box of a padded tensor to what the published tensor has of it. dims: [2 * ndim], for the new box. */
static void clip(struct wanted *want, const struct source *source, uint64_t *dims)
{
    uint64_t end;

    if (!want->global_shape || want->padded < 0 || want->ndim != source->ndim)
        return;
    memcpy(dims, want->start, want->ndim * sizeof *dims);
    memcpy(dims + want->ndim, want->count, want->ndim * sizeof *dims);
    end = source->global_shape[want->padded];
    if (dims[want->padded] > end)
        dims[want->padded] = end;
    if (dims[want->ndim + (uint32_t)want->padded] > end - dims[want->padded])
        dims[want->ndim + (uint32_t)want->padded] = end - dims[want->padded];
    want->start = dims;
    want->count = dims + want->ndim;
}

static enum rdt_status plan_want(struct pieces *pieces, uint32_t index, const struct wanted *given,
                                 const struct source *sources, const struct group *group, struct rdt_error *err)
{
    uint64_t start[PIECES_MAX_NDIM], count[PIECES_MAX_NDIM], clipped[2 * PIECES_MAX_NDIM], left, elems;
    struct wanted box = *given, *want = &box;
    size_t first = pieces->n;
    enum rdt_status status = RDT_OK;

    if (!group)
        return rdt_error_set(err, RDT_NOT_FOUND, "the version has no tensor \"%s\": rdtctl shards lists what it has",
                             want->key);
    clip(want, group->first, clipped);
    left = box_elems(want->ndim, want->count);
    for (size_t i = 0; status == RDT_OK && i < group->n; i++) {
        const struct source *source = group->first + i;

        status = check_want(want, source, err); /* each of them: a manifest may be anybody's metadata */
        if (status != RDT_OK ||
            !box_intersect(want->ndim, source->start, source->count, want->start, want->count, start, count))
            continue;
        status = add(pieces, index, want, (uint32_t)(source - sources), source, start, count, err);
        elems = box_elems(want->ndim, count);
        if (elems > left) /* some overlap: few bytes of a manifest may stand for millions of boxes */
            break;
        left -= elems;
    }
    return status == RDT_OK ? check_whole(pieces, first, want, err) : status;
}

static enum rdt_status check_all_wanted(const struct group *groups, size_t n, struct rdt_error *err)
{
    const struct group *first = NULL;
    size_t left = 0;

    for (size_t i = 0; i < n; i++) {
        if (groups[i].wanted)
            continue;
        first = first ? first : &groups[i];
        left++;
    }
    if (!first)
        return RDT_OK;
    return rdt_error_set(err, RDT_MISMATCH,
                         "the version has the tensor \"%s\"%s, which the reader does not have: a reader of a part of the "
                         "model must not be strict",
                         first->first->key, left > 1 ? " and others" : "");
}

enum rdt_status pieces_plan(const struct source *sources, size_t n_sources, const struct wanted *wants, size_t n_wants,
                            bool strict, struct pieces *pieces_p, struct rdt_error *err)
{
    size_t n_groups = 0;
    struct group *groups = list_groups(sources, n_sources, &n_groups);
    struct pieces pieces = {0};
    enum rdt_status status = RDT_OK;

    if (!groups)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a plan of %zu tensors", n_sources);
    for (size_t i = 0; i < n_wants && status == RDT_OK; i++) {
        struct group *group = find(groups, n_groups, wants[i].key);

        if (group)
            group->wanted = true;
        status = plan_want(&pieces, (uint32_t)i, &wants[i], sources, group, err);
    }
    if (status == RDT_OK && strict)
        status = check_all_wanted(groups, n_groups, err);
    free(groups);
    if (status != RDT_OK) {
        pieces_fini(&pieces);
        return status;
    }
    if (pieces.n > 0)
        qsort(pieces.list, pieces.n, sizeof *pieces.list, by_part);
    *pieces_p = pieces;
    return RDT_OK;
}

void pieces_fini(struct pieces *pieces)
{
    for (size_t i = 0; i < pieces->n; i++)
        free(pieces->list[i].from);
    free(pieces->list);
    *pieces = (struct pieces){0};
}
