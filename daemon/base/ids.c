/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/ids.h"

#include <assert.h>
#include <sys/random.h>
#include <uv.h>

#define OWN_BITS 8u /* the bits that count within a block of an owner: long blocks make the index of objects small */
#define OWN (IDS_FIRST - 1)
_Static_assert(IDS_FIRST == UINT64_C(1) << OWN_BITS, "the ids of a block");

/* ---- the permutation ---- */

static uint64_t half_mask(const struct permutation *permutation)
{
    return (UINT64_C(1) << permutation->half_bits) - 1;
}

static uint64_t mix(uint64_t half, uint64_t key)
{
    uint64_t x = half + key;

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31 ^ key >> 7;
}

void permutation_init(struct permutation *permutation, unsigned half_bits)
{
    permutation->half_bits = half_bits;
    if (getrandom(permutation->keys, sizeof permutation->keys, 0) != (ssize_t)sizeof permutation->keys)
        permutation->keys[0] = uv_hrtime();
}

/* A Feistel network: whatever mix computes, each number is permuted to one number, and each is reached from one. */
uint64_t permutation_of(const struct permutation *permutation, uint64_t number)
{
    uint64_t mask = half_mask(permutation), left = number >> permutation->half_bits & mask, right = number & mask;

    for (unsigned i = 0; i < PERMUTATION_ROUNDS; i++) {
        uint64_t next = left ^ (mix(right, permutation->keys[i]) & mask);
        left = right;
        right = next;
    }
    return left << permutation->half_bits | right;
}

uint64_t permutation_back(const struct permutation *permutation, uint64_t permuted)
{
    uint64_t mask = half_mask(permutation), left = permuted >> permutation->half_bits & mask, right = permuted & mask;

    for (unsigned i = PERMUTATION_ROUNDS; i > 0; i--) {
        uint64_t before = right ^ (mix(left, permutation->keys[i - 1]) & mask);
        right = left;
        left = before;
    }
    return left << permutation->half_bits | right;
}

/* ---- ids ---- */

static uint64_t blocks_of_span(const struct ids *ids)
{
    return UINT64_C(1) << 2 * ids->order.half_bits;
}

static uint64_t end_of_span(const struct ids *ids)
{
    return ids->base + (blocks_of_span(ids) << OWN_BITS);
}

/* The new span begins with `base`, or where the present one ends if that has been used: owners have unused ids of it. */
static void begin_span(struct ids *ids, uint64_t base)
{
    if (ids->n_blocks > 0 && base < end_of_span(ids))
        base = end_of_span(ids);
    ids->base = (base + OWN) & ~OWN;
    ids->n_blocks = 0;
    if (ids->saved)
        *ids->saved = end_of_span(ids);
}

void ids_init(struct ids *ids, enum account_ids what, unsigned half_bits, uint64_t base)
{
    assert(base > 0 && base % IDS_FIRST == 0);
    *ids = (struct ids){.what = what, .base = base};
    permutation_init(&ids->order, half_bits);
}

bool ids_in_span(const struct ids *ids, uint64_t id)
{
    return id >= ids->base && id < end_of_span(ids);
}

bool ids_was_begun(const struct ids *ids, uint64_t id)
{
    return ids_in_span(ids, id) && permutation_back(&ids->order, (id - ids->base) >> OWN_BITS) < ids->n_blocks;
}

bool ids_same_block(uint64_t id, uint64_t other)
{
    return id >> OWN_BITS == other >> OWN_BITS;
}

uint64_t ids_next(struct ids *ids, struct account *account)
{
    uint64_t *next = &account_owner(account)->next_ids[ids->what], id = *next;

    if (!ids_in_span(ids, id)) { /* 0 among others */
        if (ids->n_blocks == blocks_of_span(ids))
            begin_span(ids, end_of_span(ids));
        id = ids->base + (permutation_of(&ids->order, ids->n_blocks++) << OWN_BITS);
    }
    *next = ((id + 1) & OWN) != 0 ? id + 1 : 0;
    return id;
}

void ids_above(struct ids *ids, uint64_t id)
{
    if (id >= ids->base)
        begin_span(ids, id + 1);
}

void ids_save(struct ids *ids, uint64_t *next_p)
{
    if (next_p && *next_p > ids->base)
        begin_span(ids, *next_p);
    ids->saved = next_p;
    if (next_p)
        *next_p = end_of_span(ids);
}
