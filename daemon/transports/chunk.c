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

/* Finds the bytes of tensor i in the chunk: from byte *from_p of the tensor on, at byte *at_p of the chunk. Returns their
 * number. */
static uint64_t bytes_in_chunk(const struct chunk *chunk, const struct layout *packed, uint32_t i, uint64_t *from_p,
                               uint64_t *at_p)
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

void chunk_clear_gaps(const struct chunk *chunk, const struct layout *packed, uint8_t *stream_p)
{
    uint64_t end = 0;

    for (uint32_t i = chunk->first; i < chunk->first + chunk->count; i++) {
        uint64_t from, at, bytes;
        if (layout_bytes(packed, i) == 0)
            continue;
        bytes = bytes_in_chunk(chunk, packed, i, &from, &at);
        memset(stream_p + end, 0, at - end);
        end = at + bytes;
    }
}

int chunk_gather(const struct chunk *chunk, const struct layout *packed, const struct layout *layout,
                 const struct memory_place *places, uint8_t *stream_p)
{
    int failed = 0;

    chunk_clear_gaps(chunk, packed, stream_p);
    for (uint32_t i = chunk->first; i < chunk->first + chunk->count && !failed; i++) {
        uint64_t from, at, bytes;
        if (layout_bytes(packed, i) == 0)
            continue;
        bytes = bytes_in_chunk(chunk, packed, i, &from, &at);
        failed = memory_place_gather(&places[layout->region[i]], layout, i, from, bytes, stream_p + at);
    }
    return failed;
}

int chunk_scatter(const struct chunk *chunk, const struct layout *packed, const struct layout *layout,
                  struct memory_place *places, const uint8_t *stream)
{
    int failed = 0;

    for (uint32_t i = chunk->first; i < chunk->first + chunk->count && !failed; i++) {
        uint64_t from, at, bytes;
        if (layout_bytes(packed, i) == 0)
            continue;
        bytes = bytes_in_chunk(chunk, packed, i, &from, &at);
        failed = memory_place_scatter(&places[layout->region[i]], layout, i, from, bytes, stream + at);
    }
    return failed;
}

struct run_list {
    struct chunk_run *runs;
    uint32_t n, max;
    uint32_t region; /* of the tensor whose runs are being added */
};

static bool add_run(struct run_list *list, uint32_t region, uint64_t offset, uint64_t bytes)
{
    struct chunk_run *last = list->n > 0 ? &list->runs[list->n - 1] : NULL;

    if (last && last->region == region && last->offset + last->bytes == offset) {
        last->bytes += bytes;
        return true;
    }
    if (list->n == list->max)
        return false;
    list->runs[list->n++] = (struct chunk_run){region, offset, bytes};
    return true;
}

static bool on_runs(void *arg, uint64_t place, int64_t step_bytes, uint64_t run_bytes, uint64_t runs)
{
    struct run_list *list = arg;

    for (uint64_t r = 0; r < runs; r++, place += (uint64_t)step_bytes)
        if (!add_run(list, list->region, place, run_bytes))
            return false;
    return true;
}

uint32_t chunk_runs(const struct chunk *chunk, const struct layout *packed, const struct layout *layout,
                    struct chunk_run *runs_p, uint32_t max)
{
    struct run_list list = {.runs = runs_p, .max = max};
    uint64_t end = 0;

    if (layout == packed)
        return add_run(&list, 0, chunk->offset, chunk->bytes) ? 1 : 0;
    for (uint32_t i = chunk->first; i < chunk->first + chunk->count; i++) {
        uint64_t from, at, bytes;
        bool fits;
        if (layout_bytes(packed, i) == 0)
            continue;
        bytes = bytes_in_chunk(chunk, packed, i, &from, &at);
        list.region = layout->region[i];
        fits = at == end || add_run(&list, CHUNK_PADDING, 0, at - end);
        if (fits && layout_is_contiguous(layout, i))
            fits = add_run(&list, list.region, layout->offset[i] + from, bytes);
        else if (fits)
            fits = layout_runs(layout, i, from, bytes, on_runs, &list);
        if (!fits)
            return 0;
        end = at + bytes;
    }
    return list.n;
}
