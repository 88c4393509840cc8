/* SPDX-License-Identifier: Apache-2.0 */
/* How a transfer's byte stream is cut. Both ends compute the same plan, from the tensors' sizes and chunk_bytes
 * alone.
 *
 * The stream is the packed layout (layout_packed): the tensors in order, each at a multiple of 64 bytes. A tensor
 * of more than an eighth of chunk_bytes is cut by itself, so that its chunks go from memory to memory. Runs of
 * smaller tensors share a chunk, which lies in one piece if the tensors follow each other in memory. Otherwise the transport
 * gets a list of its pieces, or the ends gather and scatter it.
 */
#ifndef DAEMON_CHUNK_H
#define DAEMON_CHUNK_H

#include <stdint.h>

#include "daemon/memory/imported.h"
#include "proto/layout.h"

struct chunk {
    uint64_t offset, bytes; /* in the stream */
    uint32_t first, count;  /* the tensors it touches */
};

struct chunk_plan {
    uint64_t stream_bytes;
    uint32_t n;
    struct chunk chunks[];
};

/* Creates a plan, to be freed with free(). packed: a layout that layout_packed has filled. LIMIT: there are too many
 * chunks; INVALID: chunk_bytes is out of range; NO_MEMORY. */
enum rdt_status chunk_plan_create(const struct layout *packed, uint64_t stream_bytes, uint64_t chunk_bytes,
                                  struct chunk_plan **plan_p, struct rdt_error *err);

/* The same for a one-sided reader: every chunk belongs to one tensor, however small. */
enum rdt_status chunk_plan_create_single(const struct layout *packed, uint64_t stream_bytes, uint64_t chunk_bytes,
                                         struct chunk_plan **plan_p, struct rdt_error *err);

/* Copy one chunk between the stream's bytes and the tensors of `layout`, which has the same shapes as `packed` and
 * whose regions are at places[region]. They return 0 or an errno, as the functions of imported.h. */
int chunk_gather(const struct chunk *chunk, const struct layout *packed, const struct layout *layout,
                 const struct memory_place *places, uint8_t *stream_p);
int chunk_scatter(const struct chunk *chunk, const struct layout *packed, const struct layout *layout,
                  struct memory_place *places, const uint8_t *stream);

/* Clears the bytes between the tensors, of which no old ones may leave the daemon. chunk_gather does it. */
void chunk_clear_gaps(const struct chunk *chunk, const struct layout *packed, uint8_t *stream_p);

#define CHUNK_PADDING UINT32_MAX

struct chunk_run {
    uint32_t region; /* CHUNK_PADDING: the bytes between two tensors of the stream, which lie nowhere in memory */
    uint64_t offset, bytes;
};

/* Lists where the bytes of the chunk lie in memory, in the order of the stream. Two runs that are adjacent in the stream and in
 * memory are one. Returns the number of runs; 0: there are more than `max`. */
uint32_t chunk_runs(const struct chunk *chunk, const struct layout *packed, const struct layout *layout,
                    struct chunk_run *runs_p, uint32_t max);

#endif
