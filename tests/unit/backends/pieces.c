/* SPDX-License-Identifier: Apache-2.0 */
/* backends/common/pieces.h: a position in the memory of an operation, which lies in one piece or several. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "backends/common/pieces.h"

TestSuite(pieces, .timeout = 100);

#define MAX 40u

static uint8_t memory[MAX * 100];

/* Pieces of 1 to 99 bytes, each in a slot of its own; the later ones lie before the earlier ones. */
static struct rdt_op random_op(struct rdt_piece list[MAX], uint32_t n)
{
    struct rdt_op op = {.pieces = list, .n_pieces = n};

    for (uint32_t i = 0; i < n; i++) {
        list[i] = (struct rdt_piece){.addr = memory + (size_t)(MAX - 1 - i) * 100, .bytes = 1 + (uint64_t)(rand() % 99)};
        op.piece.bytes += list[i].bytes;
    }
    return op;
}

static void expect_at(struct pieces *pieces, const struct rdt_op *op, uint64_t offset)
{
    struct iovec found = pieces_at(pieces, offset);
    uint64_t start = 0;
    uint32_t i = 0;

    while (start + op->pieces[i].bytes <= offset)
        start += op->pieces[i++].bytes;
    cr_assert_eq(found.iov_base, (uint8_t *)op->pieces[i].addr + (offset - start));
    cr_assert_eq(found.iov_len, op->pieces[i].bytes - (offset - start));
}

Test(pieces, every_offset_is_found)
{
    struct rdt_piece list[MAX];

    for (unsigned round = 0; round < 300; round++) {
        struct rdt_op op = random_op(list, 2 + (uint32_t)rand() % (MAX - 1));
        struct pieces pieces = pieces_of(&op);

        for (uint64_t offset = 0; offset < op.piece.bytes; offset++) /* forward, byte by byte */
            expect_at(&pieces, &op, offset);
        for (unsigned i = 0; i < 100; i++) /* anywhere: lanes of UCX may overtake each other */
            expect_at(&pieces, &op, (uint64_t)rand() % op.piece.bytes);
        expect_at(&pieces, &op, op.piece.bytes - 1);
        expect_at(&pieces, &op, 0);
    }
}

/* An operation of an older core has a piece, and its struct ends before the list. */
Test(pieces, one_piece_needs_no_list)
{
    struct rdt_op op = {.piece = {.addr = memory, .bytes = 100}, .pieces = (void *)1, .n_pieces = 7};
    struct pieces pieces = pieces_of(&op);
    struct iovec found = pieces_at(&pieces, 30);

    cr_assert(found.iov_base == memory + 30 && found.iov_len == 70);
    found = pieces_at(&pieces, 0);
    cr_assert(found.iov_base == memory && found.iov_len == 100);
}
