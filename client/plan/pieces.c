/* SPDX-License-Identifier: Apache-2.0 */
#include "client/plan/pieces.h"

#include <stdlib.h>
#include <string.h>

#include "client/plan/cast.h"
#include "proto/cover.h"
#include "proto/grow.h"

static int by_key(const void *a, const void *b)
{
    const struct source *one = *(const struct source *const *)a, *other = *(const struct source *const *)b;
    int order = strcmp(one->key, other->key);

    if (order != 0)
        return order;
    return one < other ? -1 : one > other; /* in the order of the parts */
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

/* Returns the index of the first source with the key; n: there is none. */
static size_t find(const struct source *const *sorted, size_t n, const char *key)
{
    size_t low = 0, high = n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(sorted[middle]->key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && strcmp(sorted[low]->key, key) == 0 ? low : n;
}

static enum rdt_status check_want(const struct wanted *want, const struct source *source, struct rdt_error *err)
{
    enum rdt_status status = cast_check(source->dtype, want->dtype, err);

    if (status != RDT_OK) {
        rdt_error_prefix(err, "tensor \"%s\"", want->key);
        return status;
    }
    if (want->ndim != source->ndim)
        return rdt_error_set(err, RDT_MISMATCH, "tensor \"%s\" has %u dimensions, but %u are wanted", want->key, source->ndim,
                             want->ndim);
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

/* No daemon makes such a manifest. */
static enum rdt_status wrong_parts(const struct wanted *want, const uint64_t *start, const uint64_t *count, const char *what,
                                   struct rdt_error *err)
{
    char text[BOX_TEXT_BYTES];

    box_text(want->ndim, start, count, text);
    return rdt_error_set(err, RDT_INVALID, "tensor \"%s\": %s elements of the box %.200s: publish it by rdt_publish_part",
                         want->key, what, text);
}

static enum rdt_status plan_want(struct pieces *pieces, uint32_t index, const struct wanted *want, const struct source *sources,
                                 const struct source *const *sorted, size_t n, struct rdt_error *err)
{
    uint64_t start[PIECES_MAX_NDIM], count[PIECES_MAX_NDIM];
    struct cover cover = {0};
    size_t at = find(sorted, n, want->key);
    enum rdt_status status;

    if (at == n)
        return rdt_error_set(err, RDT_NOT_FOUND, "the version has no tensor \"%s\": rdtctl shards lists what it has",
                             want->key);
    status = check_want(want, sorted[at], err); /* before the dimensions are used */
    if (status == RDT_OK)
        status = cover_init(&cover, want->ndim, want->count, err);
    for (; status == RDT_OK && at < n && strcmp(sorted[at]->key, want->key) == 0; at++) {
        const struct source *source = sorted[at];

        status = check_want(want, source, err); /* each of them: a manifest may be anybody's metadata */
        if (status != RDT_OK)
            break;
        if (!box_intersect(want->ndim, source->start, source->count, want->start, want->count, start, count))
            continue;
        status = add(pieces, index, want, (uint32_t)(source - sources), source, start, count, err);
        if (status == RDT_OK)
            status = cover_add(&cover, pieces->list[pieces->n - 1].to, count, err);
        if (status == RDT_EXISTS)
            status = wrong_parts(want, start, count, "several parts of the version have", err);
    }
    if (status == RDT_OK && !cover_is_whole(&cover)) {
        const uint64_t *hole = cover_hole(&cover);

        for (uint32_t d = 0; d < want->ndim; d++)
            start[d] = want->start[d] + hole[d];
        status = wrong_parts(want, start, hole + want->ndim, "no part of the version has", err);
    }
    cover_fini(&cover);
    return status;
}

enum rdt_status pieces_plan(const struct source *sources, size_t n_sources, const struct wanted *wants, size_t n_wants,
                            struct pieces *pieces_p, struct rdt_error *err)
{
    const struct source **sorted = malloc((n_sources + 1) * sizeof *sorted);
    struct pieces pieces = {0};
    enum rdt_status status = RDT_OK;

    if (!sorted)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a plan of %zu tensors", n_sources);
    for (size_t i = 0; i < n_sources; i++)
        sorted[i] = &sources[i];
    qsort(sorted, n_sources, sizeof(const struct source *), by_key);
    for (size_t i = 0; i < n_wants && status == RDT_OK; i++)
        status = plan_want(&pieces, (uint32_t)i, &wants[i], sources, sorted, n_sources, err);
    free(sorted);
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
