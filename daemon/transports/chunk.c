/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/transports/chunk.h"

#include <stdlib.h>
#include <string.h>

#define MAX_CHUNKS (1u << 22)
#define MIN_CHUNK_BYTES 4096u
#define MAX_CHUNK_BYTES (1ull << 30)

/* Writes the plan to chunks and returns the number of chunks; with chunks NULL it only counts. Tensors of more than
 * `shared_max_bytes` bytes get chunks of their own. */
static uint64_t cut(const struct layout *packed, uint64_t chunk_bytes, uint64_t shared_max_bytes, struct chunk *chunks)
{
    uint64_t n = 0;
    uint32_t i = 0;

    while (i < packed->count) {
        uint64_t bytes = layout_bytes(packed, i);
        if (bytes == 0) {
            i++;
        } else if (bytes > shared_max_bytes) {
            for (uint64_t at = 0; at < bytes; at += chunk_bytes, n++)
                if (chunks)
                    chunks[n] =
                        (struct chunk){packed->offset[i] + at, bytes - at < chunk_bytes ? bytes - at : chunk_bytes, i, 1};
            i++;
        } else {
            uint32_t first = i;
            uint64_t start = packed->offset[i], end = start;
            while (i < packed->count) {
                uint64_t next = layout_bytes(packed, i);
                if (next > shared_max_bytes || packed->offset[i] + next - start > chunk_bytes)
                    break;
                if (next > 0)
                    end = packed->offset[i] + next;
                i++;
            }
            if (chunks)
                chunks[n] = (struct chunk){start, end - start, first, i - first};
            n++;
        }
    }
    return n;
}

static enum rdt_status create(const struct layout *packed, uint64_t stream_bytes, uint64_t chunk_bytes,
                              uint64_t shared_max_bytes, struct chunk_plan **plan_p, struct rdt_error *err)
{
    struct chunk_plan *plan;
    uint64_t n;

    if (chunk_bytes < MIN_CHUNK_BYTES || chunk_bytes > MAX_CHUNK_BYTES)
        return rdt_error_set(err, RDT_INVALID, "chunks must have %u to %llu bytes, not %llu", MIN_CHUNK_BYTES, MAX_CHUNK_BYTES,
                             (unsigned long long)chunk_bytes);
    if (stream_bytes / chunk_bytes > MAX_CHUNKS)
        return rdt_error_set(err, RDT_LIMIT, "%llu bytes make too many chunks of %llu bytes", (unsigned long long)stream_bytes,
                             (unsigned long long)chunk_bytes);
    n = cut(packed, chunk_bytes, shared_max_bytes, NULL);
    plan = malloc(sizeof *plan + n * sizeof plan->chunks[0]);
    if (!plan)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %llu chunks", (unsigned long long)n);
    plan->stream_bytes = stream_bytes;
    plan->n = (uint32_t)n;
    (void)cut(packed, chunk_bytes, shared_max_bytes, plan->chunks);
    *plan_p = plan;
    return RDT_OK;
}

enum rdt_status chunk_plan_create(const struct layout *packed, uint64_t stream_bytes, uint64_t chunk_bytes,
                                  struct chunk_plan **plan_p, struct rdt_error *err)
{
    return create(packed, stream_bytes, chunk_bytes, chunk_bytes / 8, plan_p, err);
}

enum rdt_status chunk_plan_create_single(const struct layout *packed, uint64_t stream_bytes, uint64_t chunk_bytes,
                                         struct chunk_plan **plan_p, struct rdt_error *err)
{
    return create(packed, stream_bytes, chunk_bytes, 0, plan_p, err);
}

/* Finds the part of tensor i in the chunk: from byte *from_p of the tensor on, at byte *at_p of the chunk. Returns its size. */
static uint64_t part(const struct chunk *chunk, const struct layout *packed, uint32_t i, uint64_t *from_p, uint64_t *at_p)
{
    uint64_t bytes = layout_bytes(packed, i);

    if (chunk->offset >= packed->offset[i]) {
        *from_p = chunk->offset - packed->offset[i];
        *at_p = 0;
        bytes = bytes > *from_p ? bytes - *from_p : 0;
    } else {
        *from_p = 0;
        *at_p = packed->offset[i] - chunk->offset;
    }
    return bytes < chunk->bytes - *at_p ? bytes : chunk->bytes - *at_p;
}

void chunk_gather(const struct chunk *chunk, const struct layout *packed, const struct layout *layout, uint8_t *const *bases,
                  uint8_t *stream_p)
{
    uint64_t end = 0;

    for (uint32_t i = chunk->first; i < chunk->first + chunk->count; i++) {
        uint64_t from, at, bytes;
        if (layout_bytes(packed, i) == 0)
            continue;
        bytes = part(chunk, packed, i, &from, &at);
        memset(stream_p + end, 0, at - end); /* no old bytes may leave the daemon as padding */
        layout_gather(layout, i, bases[layout->region[i]], from, bytes, stream_p + at);
        end = at + bytes;
    }
}

void chunk_scatter(const struct chunk *chunk, const struct layout *packed, const struct layout *layout, uint8_t *const *bases,
                   const uint8_t *stream)
{
    for (uint32_t i = chunk->first; i < chunk->first + chunk->count; i++) {
        uint64_t from, at, bytes;
        if (layout_bytes(packed, i) == 0)
            continue;
        bytes = part(chunk, packed, i, &from, &at);
        layout_scatter(layout, i, bases[layout->region[i]], from, bytes, stream + at);
    }
}

/* Whether tensor `next` follows tensor i without a gap, in memory and in the stream. Bytes of a gap in memory may belong to
 * another object. */
static bool follows(const struct layout *packed, const struct layout *layout, uint32_t i, uint32_t next)
{
    uint64_t bytes = layout_bytes(packed, i);

    return layout->region[next] == layout->region[i] && layout->offset[next] == layout->offset[i] + bytes &&
           packed->offset[next] == packed->offset[i] + bytes && layout_is_contiguous(layout, next);
}

bool chunk_piece(const struct chunk *chunk, const struct layout *packed, const struct layout *layout, uint32_t *region_p,
                 uint64_t *offset_p)
{
    uint32_t end = chunk->first + chunk->count, i = chunk->first, last;

    if (layout == packed) {
        *region_p = 0;
        *offset_p = chunk->offset;
        return true;
    }
    while (i < end && layout_bytes(packed, i) == 0)
        i++;
    if (i >= end || !layout_is_contiguous(layout, i))
        return false;
    last = i;
    for (uint32_t rest = i + 1; rest < end; rest++) {
        if (layout_bytes(packed, rest) == 0)
            continue;
        if (!follows(packed, layout, last, rest))
            return false;
        last = rest;
    }
    *region_p = layout->region[i];
    *offset_p = layout->offset[i] + (chunk->offset - packed->offset[i]);
    return true;
}
