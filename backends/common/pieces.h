/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of an operation, in one piece or several, as a range of bytes with one position. */
#ifndef BACKENDS_PIECES_H
#define BACKENDS_PIECES_H

#include <stdint.h>
#include <sys/uio.h>

#include "backends/rdt_backend.h"

struct pieces {
    const struct rdt_piece *list; /* [n]; NULL: no memory */
    uint32_t n, at;               /* the piece that pieces_at found last */
    uint64_t start;               /* the bytes before that piece */
};

/* The operation must stay until the pieces are not used any more. */
static inline struct pieces pieces_of(const struct rdt_op *op)
{
    if (op->piece.addr) /* otherwise the core knows lists of pieces */
        return (struct pieces){.list = &op->piece, .n = 1};
    return (struct pieces){.list = op->pieces, .n = op->n_pieces};
}

/* Returns the memory from byte `offset` of the operation on, as far as its piece goes. The offset is below the operation's
 * length. It costs little if the offset is not far behind the one of the last call. */
static inline struct iovec pieces_at(struct pieces *pieces, uint64_t offset)
{
    uint64_t skip;

    if (offset < pieces->start)
        pieces->at = 0, pieces->start = 0;
    while (offset - pieces->start >= pieces->list[pieces->at].bytes)
        pieces->start += pieces->list[pieces->at++].bytes;
    skip = offset - pieces->start;
    return (struct iovec){(uint8_t *)pieces->list[pieces->at].addr + skip, pieces->list[pieces->at].bytes - skip};
}

#endif
