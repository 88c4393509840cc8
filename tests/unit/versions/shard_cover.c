/* SPDX-License-Identifier: Apache-2.0 */
/* Whether boxes cover a tensor once, against a count of its elements. */
#include "daemon/versions/shard_cover.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/manifest.h"
#include "tests/support/check.h"

TestSuite(shard_cover, .timeout = 60);

#define SIDE 12
#define MOST 200

struct boxes {
    uint32_t ndim, n;
    uint64_t shape[3], start[MOST][3], count[MOST][3];
};

static uint64_t random_state = 88172645463325252u;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % n;
}

/* Each box is the part of a rank of its own. */
static enum rdt_status check(const struct boxes *boxes, struct rdt_error *err)
{
    char *key = (char *)"w";
    struct shard_cover cover;
    enum rdt_status status = RDT_OK;

    shard_cover_init(&cover, UINT32_MAX);
    for (uint32_t i = 0; i < boxes->n && status == RDT_OK; i++) {
        Rdt__Pb__Boxes message = RDT__PB__BOXES__INIT;
        struct layout *layout = layout_create(1, boxes->ndim);

        layout->dtype[0] = RDT_F32;
        layout->ndim[0] = (uint8_t)boxes->ndim;
        layout->first_dim[0] = 0;
        memcpy(layout->shape, boxes->count[i], boxes->ndim * sizeof(uint64_t));
        message.key = &key;
        message.n_key = 1;
        message.global_shape = (uint64_t *)boxes->shape;
        message.start = (uint64_t *)boxes->start[i];
        message.n_global_shape = message.n_start = boxes->ndim;
        status = shard_cover_add(&cover, i, i, layout, &message, err);
        free(layout);
    }
    if (status == RDT_OK)
        status = shard_cover_check(&cover, err);
    shard_cover_fini(&cover);
    return status;
}

/* "": each element is in one box. */
static const char *truth(const struct boxes *boxes)
{
    unsigned times[SIDE][SIDE][SIDE] = {0};
    bool none = false, twice = false;
    uint64_t from[3] = {0}, to[3] = {1, 1, 1}, whole[3] = {1, 1, 1};

    memcpy(whole, boxes->shape, boxes->ndim * sizeof *whole);
    for (uint32_t i = 0; i < boxes->n; i++) {
        for (uint32_t d = 0; d < boxes->ndim; d++) {
            from[d] = boxes->start[i][d];
            to[d] = from[d] + boxes->count[i][d];
        }
        for (uint64_t x = from[0]; x < to[0]; x++)
            for (uint64_t y = from[1]; y < to[1]; y++)
                for (uint64_t z = from[2]; z < to[2]; z++)
                    twice |= times[x][y][z]++ > 0;
    }
    for (uint64_t x = 0; x < whole[0]; x++)
        for (uint64_t y = 0; y < whole[1]; y++)
            for (uint64_t z = 0; z < whole[2]; z++)
                none |= times[x][y][z] == 0;
    return twice && none ? "both" : twice ? "overlaps" : none ? "no rank" : "";
}

static void add(struct boxes *boxes, const uint64_t *start, const uint64_t *count)
{
    memcpy(boxes->start[boxes->n], start, sizeof boxes->start[0]);
    memcpy(boxes->count[boxes->n++], count, sizeof boxes->count[0]);
}

/* Cuts the region into boxes, now and then into four that interlock around a fifth, which no straight cut separates. */
static void cut(struct boxes *boxes, const uint64_t *start, const uint64_t *count, unsigned depth)
{
    uint32_t d = random_below(boxes->ndim);
    uint64_t at[3], size[3];

    memcpy(at, start, sizeof at);
    memcpy(size, count, sizeof size);
    if (boxes->ndim >= 2 && count[0] >= 3 && count[1] >= 3 && random_below(3) == 0) {
        uint64_t pins[5][4] = {{0, 0, count[0] - 1, 1},
                               {count[0] - 1, 0, 1, count[1] - 1},
                               {1, count[1] - 1, count[0] - 1, 1},
                               {0, 1, 1, count[1] - 1},
                               {1, 1, count[0] - 2, count[1] - 2}};
        for (unsigned i = 0; i < 5; i++) {
            at[0] = start[0] + pins[i][0];
            at[1] = start[1] + pins[i][1];
            size[0] = pins[i][2];
            size[1] = pins[i][3];
            add(boxes, at, size);
        }
    } else if (depth == 0 || count[d] < 2) {
        add(boxes, start, count);
    } else {
        size[d] = 1 + random_below((uint32_t)count[d] - 1);
        cut(boxes, at, size, depth - 1);
        at[d] += size[d];
        size[d] = count[d] - size[d];
        cut(boxes, at, size, depth - 1);
    }
}

static void swap(struct boxes *boxes, uint32_t i, uint32_t k)
{
    struct boxes old = *boxes;

    memcpy(boxes->start[i], old.start[k], sizeof old.start[0]);
    memcpy(boxes->count[i], old.count[k], sizeof old.count[0]);
    memcpy(boxes->start[k], old.start[i], sizeof old.start[0]);
    memcpy(boxes->count[k], old.count[i], sizeof old.count[0]);
}

static struct boxes random_boxes(void)
{
    struct boxes boxes = {.ndim = 1 + random_below(3)};
    uint64_t zero[3] = {0};

    for (uint32_t d = 0; d < boxes.ndim; d++)
        boxes.shape[d] = 1 + random_below(SIDE);
    cut(&boxes, zero, boxes.shape, 4);
    for (uint32_t i = boxes.n; i > 1; i--)
        swap(&boxes, i - 1, random_below(i));
    return boxes;
}

static void must_agree(const struct boxes *boxes)
{
    const char *says = truth(boxes);
    struct rdt_error err = {0};
    enum rdt_status status = check(boxes, &err);

    cr_assert_eq(status, says[0] ? RDT_INVALID : RDT_OK, "%s, and the check says %s", says, err.msg);
    if (strcmp(says, "both") != 0 && says[0])
        cr_assert(strstr(err.msg, says), "%s, and the check says %s", says, err.msg);
}

Test(shard_cover, random_cuts_cover_once)
{
    for (unsigned i = 0; i < 3000; i++) {
        struct boxes boxes = random_boxes();
        must_agree(&boxes);
    }
}

Test(shard_cover, holes_and_overlaps_are_found)
{
    for (unsigned i = 0; i < 6000; i++) {
        struct boxes boxes = random_boxes();
        uint32_t at = random_below(boxes.n), d = random_below(boxes.ndim);

        if (i % 3 == 0 && boxes.n > 1) {
            swap(&boxes, at, boxes.n - 1);
            boxes.n--;
        } else if (i % 3 == 1) {
            add(&boxes, boxes.start[at], boxes.count[at]);
        } else if (boxes.start[at][d] + boxes.count[at][d] < boxes.shape[d]) {
            boxes.start[at][d]++;
        }
        must_agree(&boxes);
    }
}

Test(shard_cover, error_names_tensor_boxes_and_ranks)
{
    struct boxes rows = {.ndim = 1, .n = 2, .shape = {8}, .start = {{0}, {3}}, .count = {{4}, {5}}};
    struct boxes gap = {.ndim = 1, .n = 2, .shape = {8}, .start = {{0}, {5}}, .count = {{4}, {3}}};

    must_refuse(RDT_INVALID, "tensor \"w\": the box [3:8] of rank 1 overlaps the box [0:4] of rank 0", check(&rows, &err));
    must_refuse(RDT_INVALID, "tensor \"w\": no rank has published the box [4:5]", check(&gap, &err));
}

/* Its manifest may be small, but readers refuse it (proto/manifest.c). */
Test(shard_cover, more_boxes_than_a_reader_accepts_are_refused)
{
    struct layout *layout = layout_create(1, 1);
    Rdt__Pb__Boxes boxes = RDT__PB__BOXES__INIT;
    char *key = (char *)"w";
    uint64_t shape = 8, start = 0;
    struct shard_cover cover;

    layout->dtype[0] = RDT_F32;
    layout->ndim[0] = 1;
    layout->first_dim[0] = 0;
    layout->shape[0] = 1;
    boxes.key = &key;
    boxes.global_shape = &shape;
    boxes.start = &start;
    boxes.n_key = boxes.n_global_shape = boxes.n_start = 1;
    for (unsigned of_dims = 0; of_dims < 2; of_dims++) {
        shard_cover_init(&cover, UINT32_MAX);
        *(of_dims ? &cover.n_dims : &cover.n_boxes) = (of_dims ? MANIFEST_MAX_DIMS : MANIFEST_MAX_BOXES) - 1;
        must_ok(shard_cover_add(&cover, 0, 0, layout, &boxes, &err));
        start = 1;
        must_refuse(RDT_LIMIT, "the version would have more than", shard_cover_add(&cover, 1, 1, layout, &boxes, &err));
        shard_cover_fini(&cover);
    }
    free(layout);
}
