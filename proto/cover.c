/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64u             /* of cuts inside cuts; what is deeper is compared box by box */
#define MAX_COMPARED (1ull << 26) /* boxes that are compared with one another: about 0.3 s */

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

struct edge {
    uint64_t start;
    uint32_t box;
};

/* A region that is looked at is a box, and all boxes of [lo, hi) of `order` lie within it. */
struct checker {
    uint32_t ndim;
    const uint64_t *boxes;
    uint32_t *order;    /* [n]: indices of boxes */
    struct edge *edges; /* [n], for sorting */
    uint64_t n_compared;
    struct cover_fault region; /* its start and count; the fault when there is one */
};

static const uint64_t *box_of(const struct checker *checker, uint32_t at)
{
    return checker->boxes + 2 * (size_t)checker->ndim * checker->order[at];
}

static uint64_t end_of(const struct checker *checker, uint32_t at, uint32_t d)
{
    const uint64_t *box = box_of(checker, at);

    return box[d] + box[checker->ndim + d];
}

static int compare_edges(const void *a, const void *b)
{
    const struct edge *left = a, *right = b;

    if (left->start != right->start)
        return left->start > right->start ? 1 : -1;
    return left->box > right->box ? 1 : -1;
}

/* Orders the boxes of [lo, hi) by where they start in dimension d. */
static void sort(struct checker *checker, uint32_t d, uint32_t lo, uint32_t hi)
{
    bool sorted = true;

    for (uint32_t i = lo; i < hi; i++) {
        checker->edges[i] = (struct edge){box_of(checker, i)[d], checker->order[i]};
        sorted = sorted && (i == lo || checker->edges[i - 1].start <= checker->edges[i].start);
    }
    if (sorted)
        return;
    qsort(checker->edges + lo, hi - lo, sizeof *checker->edges, compare_edges);
    for (uint32_t i = lo; i < hi; i++)
        checker->order[i] = checker->edges[i].box;
}

/* The end of the boxes, sorted by d, that hang together from `from` on: a cut behind the last of them, *to_p, meets none. */
static uint64_t run_end(const struct checker *checker, uint32_t d, uint32_t from, uint32_t hi, uint32_t *to_p)
{
    uint64_t end = end_of(checker, from, d);
    uint32_t i = from + 1;

    for (; i < hi && box_of(checker, i)[d] < end; i++)
        end = end_of(checker, i, d) > end ? end_of(checker, i, d) : end;
    *to_p = i;
    return end;
}

/* The region cannot be cut without cutting a box: it has one box, boxes that overlap, or boxes that interlock. */
static enum rdt_status compare_all(struct checker *checker, uint32_t lo, uint32_t hi)
{
    uint64_t elems = 0, common_start[32], common_count[32];
    uint32_t ndim = checker->ndim;

    for (uint32_t i = lo; i < hi; i++) {
        const uint64_t *box = box_of(checker, i);

        elems += box_elems(ndim, box + ndim);
        checker->n_compared += i - lo;
        if (checker->n_compared > MAX_COMPARED)
            return RDT_LIMIT;
        for (uint32_t k = lo; k < i; k++)
            if (box_intersect(ndim, box_of(checker, k), box_of(checker, k) + ndim, box, box + ndim, common_start,
                              common_count)) {
                checker->region.box = checker->order[i];
                checker->region.other = checker->order[k];
                return RDT_EXISTS;
            }
    }
    checker->region.some_covered = elems < box_elems(ndim, checker->region.count);
    return checker->region.some_covered ? RDT_NOT_FOUND : RDT_OK;
}

/* Checks that the boxes of [lo, hi) fill the region: cuts it wherever no box is in the way, then looks at each piece. The
 * boxes of a grid, or of a grid whose cells are cut again, take O(n log n) time. */
static enum rdt_status check_region(struct checker *checker, uint32_t lo, uint32_t hi, unsigned depth)
{
    uint64_t *start = checker->region.start, *count = checker->region.count;
    enum rdt_status status = RDT_OK;
    uint32_t d = 0, to;

    for (; d < checker->ndim && depth < MAX_DEPTH; d++) {
        uint64_t end;
        sort(checker, d, lo, hi);
        end = run_end(checker, d, lo, hi, &to);
        if (to < hi || box_of(checker, lo)[d] > start[d] || end < start[d] + count[d])
            break;
    }
    if (d == checker->ndim || depth == MAX_DEPTH)
        return compare_all(checker, lo, hi);
    uint64_t first = start[d], all = count[d], at = first;
    for (uint32_t i = lo; i < hi && status == RDT_OK; i = to) {
        uint64_t begin = box_of(checker, i)[d], end = run_end(checker, d, i, hi, &to);

        start[d] = at;
        count[d] = (begin > at ? begin : end) - at;
        status = begin > at ? RDT_NOT_FOUND : check_region(checker, i, to, depth + 1);
        at = end;
    }
    if (status == RDT_OK && at < first + all) {
        start[d] = at;
        count[d] = first + all - at;
        status = RDT_NOT_FOUND;
    }
    if (status != RDT_OK) /* the region is the fault */
        return status;
    start[d] = first;
    count[d] = all;
    return RDT_OK;
}

enum rdt_status cover_check(uint32_t ndim, const uint64_t *shape, const uint64_t *boxes, uint32_t n,
                            struct cover_fault *fault_p)
{
    struct checker checker = {.ndim = ndim, .boxes = boxes};
    enum rdt_status status = RDT_NO_MEMORY;

    if (box_elems(ndim, shape) == 0)
        return RDT_OK;
    memcpy(checker.region.count, shape, ndim * sizeof *shape);
    if (n == 0) {
        *fault_p = checker.region;
        return RDT_NOT_FOUND;
    }
    checker.order = malloc(n * sizeof *checker.order);
    checker.edges = malloc(n * sizeof *checker.edges);
    for (uint32_t i = 0; checker.order && i < n; i++)
        checker.order[i] = i;
    if (checker.order && checker.edges)
        status = check_region(&checker, 0, n, 0);
    *fault_p = checker.region;
    free(checker.order);
    free(checker.edges);
    return status;
}
