/* SPDX-License-Identifier: Apache-2.0 */
/* The arena of small objects, because a million objects cannot be a million regions. Pieces of one size class lie in
 * chunks. A chunk is a region that never leaves the daemon: it counts against memory_limit, and transports send from
 * it like from any other region. A chunk is freed a second after its last piece.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_SLAB_H
#define DAEMON_SLAB_H

#include "daemon/base/account.h"
#include "daemon/base/deadline.h"
#include "daemon/memory/region.h"
#include "proto/list.h"
#include "wire_limits.h"

#define SLAB_MIN_BYTES 64u
#define SLAB_MAX_BYTES RDT_INLINE_MAX_BYTES
#define SLAB_CLASSES 33u /* 64, 128, 192, 256; then four to each doubling, up to SLAB_MAX_BYTES */

struct slab_chunk {
    struct list link; /* in the list of its class, while it has a free piece */
    struct slabs *slabs;
    struct region *region; /* a reference */
    uint8_t *addr;
    uint32_t piece_bytes;
    uint32_t n_pieces, n_used;
    uint32_t n_touched;  /* the pieces from this index on have never been used */
    uint32_t first_free; /* the first freed piece; each contains the index of the next. NO_PIECE: none */
};

struct slab_piece {
    struct slab_chunk *chunk; /* NULL: no piece */
    uint32_t index;
};

struct slabs {
    struct regions *regions;
    struct deadlines *deadlines;
    const char *kind;        /* the memory kind */
    struct account *account; /* the daemon's own */
    struct list classes[SLAB_CLASSES];
    uint64_t class_bytes[SLAB_CLASSES]; /* the size of all chunks of each class */
    struct deadline sweep;              /* set while a chunk is empty */
};

/* Borrows its arguments. deadlines NULL: an empty chunk is freed at once. */
void slabs_init(struct slabs *slabs, struct regions *regions, struct deadlines *deadlines, const char *kind,
                struct account *account);
void slabs_fini(struct slabs *slabs); /* all pieces must have been freed */

/* Allocates 1 to SLAB_MAX_BYTES bytes, at a multiple of 64 bytes from the region's start and not zeroed. NO_MEMORY and LIMIT
 * (memory_limit), UNSUPPORTED (the memory kind is not available). */
enum rdt_status slab_alloc(struct slabs *slabs, uint64_t bytes, struct slab_piece *piece_p, struct rdt_error *err);
void slab_free(struct slab_piece piece); /* does nothing if there is no piece */

static inline uint8_t *slab_addr(struct slab_piece piece)
{
    return piece.chunk->addr + (uint64_t)piece.index * piece.chunk->piece_bytes;
}

static inline struct region *slab_region(struct slab_piece piece)
{
    return piece.chunk->region;
}

/* The memory that the piece takes; 0 if there is no piece. */
static inline uint64_t slab_bytes(struct slab_piece piece)
{
    return piece.chunk ? piece.chunk->piece_bytes : 0;
}

#endif
