/* SPDX-License-Identifier: Apache-2.0 */
/* Ids that tell nobody what others do. Consecutive ids over all users would show each of them how many things the others begin.
 *
 * Each owner takes ids from blocks of its own, and a secret permutation chooses the blocks: who sees the ids of one owner
 * learns nothing about those of another, and cannot guess one. Ids of one owner are mostly consecutive, so an index of
 * them (index.h) stays small.
 *
 *   | span | block: block_bits, the permutation of 0, 1, 2, ... | within the owner's block: 8 bits |
 *
 * Loop thread only.
 */
#ifndef DAEMON_IDS_H
#define DAEMON_IDS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/account.h"

#define PERMUTATION_ROUNDS 4u

/* A secret permutation of the numbers below 2^(2 * half_bits). */
struct permutation {
    uint64_t keys[PERMUTATION_ROUNDS];
    unsigned half_bits;
};

void permutation_init(struct permutation *permutation, unsigned half_bits);
uint64_t permutation_of(const struct permutation *permutation, uint64_t number);
uint64_t permutation_back(const struct permutation *permutation, uint64_t permuted);

struct ids {
    struct permutation order;
    enum account_ids what;
    uint64_t base;     /* of the present span: no id of it is lower */
    uint64_t n_blocks; /* of the span that have been assigned */
    uint64_t *saved;   /* the end of the span, for a later daemon; NULL: none needs it */
};

#define IDS_FIRST UINT64_C(256) /* the ids of a block: the least base, and each is a multiple of it */
#define IDS_HALF_BITS 9u        /* of what a restart continues: 8 digits for the first daemon */

/* base: a multiple of IDS_FIRST, and not 0. The spans have 2^(2 * half_bits) blocks. */
void ids_init(struct ids *ids, enum account_ids what, unsigned half_bits, uint64_t base);

/* A new id; the account is of the owner or of one of its clients. */
uint64_t ids_next(struct ids *ids, struct account *account);

bool ids_in_span(const struct ids *ids, uint64_t id);   /* the present span */
bool ids_was_begun(const struct ids *ids, uint64_t id); /* and its block has been given to an owner */

/* Whether one owner had both from one block: the lower one is then the earlier one. */
bool ids_same_block(uint64_t id, uint64_t other);

/* An earlier daemon has given this id: new ones are above it. */
void ids_above(struct ids *ids, uint64_t id);

/* Reads *next_p, from which on no daemon has used ids, and from now on stores there what is above all ids. NULL: nobody needs
 * it. */
void ids_save(struct ids *ids, uint64_t *next_p);

#endif
