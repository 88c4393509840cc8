/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/transfers/chunk_op.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PIECES 2048u
#define LEAST_AVERAGE_BYTES 2048u /* below it, gathering costs no more (tests/bench/DECISIONS.md) */

/* Finds the runs of a chunk that is in place. Returns their number; 0: it goes through a buffer. */
static uint32_t runs_of(const struct chunk *chunk, const struct chunk_ground *ground, struct chunk_run runs_p[MAX_PIECES])
{
    uint64_t worth = chunk->bytes / LEAST_AVERAGE_BYTES,
             max = ground->max_pieces < MAX_PIECES ? ground->max_pieces : MAX_PIECES;
    uint32_t n;

    if (max > 1)
        max = worth < 1 ? 1 : worth < max ? worth : max;
    n = chunk_runs(chunk, ground->packed, ground->layout, runs_p, (uint32_t)max);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *base;
        const struct region *region =
            runs_p[i].region != CHUNK_PADDING ? ground->region_at(ground->owner, runs_p[i].region, &base) : NULL;
        if (region && ((!ground->faults_allowed && region_may_fault(region)) || (n > 1 && strcmp(region->kind->name, "host"))))
            return 0;
    }
    return n;
}

bool chunk_is_in_place(const struct chunk *chunk, const struct chunk_ground *ground)
{
    struct chunk_run runs[MAX_PIECES];

    return runs_of(chunk, ground, runs) > 0;
}

static struct rdt_piece piece_of(const struct chunk_run *run, const struct chunk_ground *ground, struct rdt_op *op)
{
    uint8_t *base;
    struct region *region = ground->region_at(ground->owner, run->region, &base);
    struct rdt_piece piece = {.addr = base + run->offset, .bytes = run->bytes};

    (void)region_register(region, ground->transport, &piece.registration, NULL, NULL, NULL);
    op->memory_kind = region->kind->name;
    op->device = region_device_uuid(region);
    return piece;
}

struct chunk_op *chunk_op_create(const struct chunk *chunk, const struct chunk_ground *ground)
{
    struct chunk_run runs[MAX_PIECES];
    uint32_t n = ground ? runs_of(chunk, ground, runs) : 0;
    struct chunk_op *created = calloc(1, sizeof *created + (n > 1 ? n : 0) * sizeof created->pieces[0]);
    struct rdt_op *op;

    if (!created)
        return NULL;
    op = &created->base.op;
    op->memory_kind = "host";
    op->device = "";
    list_init(&created->posted);
    created->in_place = n > 0;
    if (n == 1) {
        op->piece = piece_of(&runs[0], ground, op);
    } else if (n > 1) {
        for (uint32_t i = 0; i < n; i++)
            created->pieces[i] = runs[i].region != CHUNK_PADDING
                                     ? piece_of(&runs[i], ground, op)
                                     : (struct rdt_piece){.addr = created->padding, .bytes = runs[i].bytes};
        op->pieces = created->pieces;
        op->n_pieces = n;
    }
    op->piece.bytes = chunk->bytes;
    return created;
}

struct device_range chunk_range(const struct chunk *chunk, const struct layout *packed)
{
    struct device_range range = {.first = chunk->first, .bytes = chunk->bytes};

    if (chunk->count == 1) {
        range.at = chunk->offset - packed->offset[chunk->first];
        return range;
    }
    range.bytes = 0;
    for (uint32_t i = chunk->first; i < chunk->first + chunk->count; i++)
        range.bytes += layout_bytes(packed, i);
    return range;
}
