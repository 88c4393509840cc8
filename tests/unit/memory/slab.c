/* SPDX-License-Identifier: Apache-2.0 */
/* The arena of small objects: pieces never overlap, and empty chunks are freed. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/memory/slab.h"
#include "tests/support/fakes/fake_memory.h"

static struct account own = {.refs = 1};
static struct slabs slabs;

static void setup(void)
{
    fake_setup();
    slabs_init(&slabs, &fake.regions, NULL, "fake", &own);
}

static void teardown(void)
{
    slabs_fini(&slabs);
    fake_run();
    cr_assert_eq(fake.regions.bytes, 0u, "a chunk is left");
    cr_assert_eq(own.refs, 1u);
    fake_teardown();
}

TestSuite(slab, .init = setup, .fini = teardown, .timeout = 60);

static struct slab_piece take(uint64_t bytes)
{
    struct slab_piece piece = {0};
    struct rdt_error err = {0};

    cr_assert_eq(slab_alloc(&slabs, bytes, &piece, &err), RDT_OK, "%s", err.msg);
    return piece;
}

Test(slab, every_size_fits_with_little_waste)
{
    for (uint64_t bytes = 1; bytes <= SLAB_MAX_BYTES; bytes += bytes < 2000 ? 1 : 37) {
        struct slab_piece piece = take(bytes);
        cr_assert_geq(slab_bytes(piece), bytes);
        cr_assert_leq(slab_bytes(piece), bytes < 256 ? bytes + 63 : bytes + bytes / 4, "%llu bytes take %llu",
                      (unsigned long long)bytes, (unsigned long long)slab_bytes(piece));
        cr_assert_eq((slab_addr(piece) - piece.chunk->addr) % 64, 0);
        memset(slab_addr(piece), 1, bytes);
        cr_assert(slab_addr(piece) + bytes <= piece.chunk->addr + slab_region(piece)->bytes);
        slab_free(piece);
    }
    slab_free((struct slab_piece){0});
}

Test(slab, random_pieces_keep_their_bytes)
{
    enum { N = 3000 };
    static struct {
        struct slab_piece piece;
        size_t bytes;
        uint8_t fill;
    } there[N];

    srand(5);
    for (unsigned round = 0; round < 60000; round++) {
        unsigned i = (unsigned)rand() % N;
        if (there[i].bytes) {
            const uint8_t *at = slab_addr(there[i].piece);
            for (size_t b = 0; b < there[i].bytes; b += 61)
                cr_assert_eq(at[b], there[i].fill, "round %u", round);
            cr_assert_eq(at[there[i].bytes - 1], there[i].fill, "round %u", round);
            slab_free(there[i].piece);
            there[i].bytes = 0;
        } else {
            there[i].bytes = 1 + (size_t)rand() % (rand() % 10 ? 300 : SLAB_MAX_BYTES);
            there[i].fill = (uint8_t)rand();
            there[i].piece = take(there[i].bytes);
            memset(slab_addr(there[i].piece), there[i].fill, there[i].bytes);
        }
    }
    for (unsigned i = 0; i < N; i++)
        if (there[i].bytes)
            slab_free(there[i].piece);
}

Test(slab, many_pieces_take_few_regions)
{
    enum { N = 100000 };
    static struct slab_piece pieces[N];

    for (unsigned i = 0; i < N; i++)
        pieces[i] = take(64);
    cr_assert_leq(fake.regions.bytes, 64ull * N + (1u << 20));
    cr_assert_leq(fake.regions.by_id.used, 12u);
    for (unsigned i = 0; i < N; i += 2)
        slab_free(pieces[i]);
    for (unsigned i = 0; i < N; i += 2)
        pieces[i] = take(60);
    cr_assert_leq(fake.regions.bytes, 64ull * N + (1u << 20), "holes are used again");
    for (unsigned i = 0; i < N; i++)
        slab_free(pieces[i]);
}

Test(slab, over_memory_limit_is_refused)
{
    struct slab_piece piece = {0}, first = take(1000);
    struct rdt_error err = {0};

    fake.regions.limit_bytes = fake.regions.bytes;
    cr_assert_eq(slab_alloc(&slabs, 1024, &piece, &err), RDT_OK, "there is room in the chunk");
    slab_free(piece);
    cr_assert_neq(slab_alloc(&slabs, 64, &piece, &err), RDT_OK, "another size needs another chunk");
    cr_assert(err.status == RDT_NO_MEMORY || err.status == RDT_LIMIT, "%s", err.msg);
    slab_free(first);
}

Test(slab, empty_chunk_stays_a_moment)
{
    struct deadlines deadlines;
    struct slabs slow;
    struct slab_piece piece = {0};

    deadlines_init(&deadlines, &fake.loop);
    slabs_init(&slow, &fake.regions, &deadlines, "fake", &own);
    cr_assert_eq(slab_alloc(&slow, 100, &piece, NULL), RDT_OK);
    slab_free(piece);
    cr_assert_gt(fake.regions.bytes, 0u, "the next object may come at once");
    cr_assert_neq(slow.sweep.index, 0u);
    slow.sweep.on_passed(&slow.sweep);
    fake_run();
    cr_assert_eq(fake.regions.bytes, 0u);
    slabs_fini(&slow);
    cr_assert_eq(slow.sweep.index, 0u);
    deadlines_close(&deadlines, NULL);
    fake_run();
}
