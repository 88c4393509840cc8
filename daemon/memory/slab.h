/* The daemon's own memory for small objects: a million of them cannot be a million regions. Pieces of like size lie in chunks, each a
 * region that never leaves the daemon; it counts against memory_limit, and transports can send from it like from any other. A chunk
 * whose last piece is given back goes back soon after.
 *
 * Loop thread only.
 */
#ifndef DAEMON_SLAB_H
#define DAEMON_SLAB_H

#include "daemon/base/account.h"
#include "daemon/base/deadline.h"
#include "daemon/base/list.h"
#include "daemon/memory/region.h"
#include "wire_limits.h"

#define SLAB_MIN_BYTES 64u
#define SLAB_MAX_BYTES RDT_INLINE_MAX_BYTES
#define SLAB_CLASSES 33u /* 64, 128, 192, 256; then four to each doubling, up to SLAB_MAX_BYTES */

struct slab_chunk {
    struct list link; /* in its class's list, while it has room */
    struct slabs *slabs;
    struct region *region; /* one reference */
    uint8_t *addr;
    uint32_t piece_bytes;
    uint32_t n_pieces, n_used;
    uint32_t n_touched;  /* those beyond were never given out */
    uint32_t first_free; /* of those given back, chained in their own first bytes; NO_PIECE: none */
};

struct slab_piece {
    struct slab_chunk *chunk; /* NULL: none */
    uint32_t index;
};

struct slabs {
    struct regions *regions;
    struct deadlines *deadlines;
    const char *kind;        /* of memory */
    struct account *account; /* the daemon's own */
    struct list classes[SLAB_CLASSES];
    uint64_t class_bytes[SLAB_CLASSES]; /* of its chunks */
    struct deadline sweep;              /* set while some chunk is empty */
};

/* Borrows all; deadlines NULL: an empty chunk goes at once. */
void slabs_init(struct slabs *slabs, struct regions *regions, struct deadlines *deadlines, const char *kind,
                struct account *account);
void slabs_fini(struct slabs *slabs); /* every piece has been given back */

/* bytes: 1 to SLAB_MAX_BYTES. The piece starts at a multiple of 64 bytes of its region and is not cleared. NO_MEMORY, LIMIT, UNSUPPORTED. */
enum rdt_status slab_alloc(struct slabs *slabs, uint64_t bytes, struct slab_piece *piece_p, struct rdt_error *err);
void slab_free(struct slab_piece piece); /* nothing for a piece that is none */

static inline uint8_t *slab_addr(struct slab_piece piece)
{
    return piece.chunk->addr + (uint64_t)piece.index * piece.chunk->piece_bytes;
}

static inline struct region *slab_region(struct slab_piece piece)
{
    return piece.chunk->region;
}

static inline uint64_t slab_bytes(struct slab_piece piece) /* what it takes; 0 for none */
{
    return piece.chunk ? piece.chunk->piece_bytes : 0;
}

#endif
