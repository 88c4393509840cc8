/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/slab.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NO_PIECE UINT32_MAX
#define MIN_CHUNK_BYTES (64u << 10)
#define MAX_CHUNK_BYTES (1u << 20) /* the loop allocates its pages in a fraction of a millisecond */
#define EMPTY_NS 1000000000ll      /* how long an empty chunk waits for new pieces */

static unsigned class_of(uint64_t bytes)
{
    unsigned doubling;

    if (bytes <= 256)
        return (unsigned)((bytes + 63) / 64) - 1;
    doubling = 63 - (unsigned)__builtin_clzll(bytes - 1); /* 2^doubling < bytes <= 2^(doubling + 1) */
    return 4 + (doubling - 8) * 4 + (unsigned)((bytes - 1 - (1ull << doubling)) >> (doubling - 2));
}

static uint32_t class_bytes(unsigned class)
{
    unsigned doubling = (class - 4) / 4 + 8, step = (class - 4) % 4 + 1;

    return class < 4 ? (class + 1) * 64 : (1u << doubling) + (step << (doubling - 2));
}

static void chunk_free(struct slab_chunk *chunk)
{
    chunk->slabs->class_bytes[class_of(chunk->piece_bytes)] -= chunk->region->bytes;
    list_remove(&chunk->link);
    region_unref(chunk->region);
    free(chunk);
}

static void on_sweep(struct deadline *deadline)
{
    struct slabs *slabs = container_of(deadline, struct slabs, sweep);

    for (unsigned i = 0; i < SLAB_CLASSES; i++)
        list_each_safe (struct slab_chunk, chunk, &slabs->classes[i], link)
            if (chunk->n_used == 0)
                chunk_free(chunk);
}

void slabs_init(struct slabs *slabs, struct regions *regions, struct deadlines *deadlines, const char *kind,
                struct account *account)
{
    *slabs = (struct slabs){.regions = regions, .deadlines = deadlines, .kind = kind, .account = account};
    slabs->sweep.on_passed = on_sweep;
    for (unsigned i = 0; i < SLAB_CLASSES; i++)
        list_init(&slabs->classes[i]);
}

void slabs_fini(struct slabs *slabs)
{
    on_sweep(&slabs->sweep);
    if (slabs->deadlines)
        deadline_unset(slabs->deadlines, &slabs->sweep);
    for (unsigned i = 0; i < SLAB_CLASSES; i++)
        assert(slabs->class_bytes[i] == 0);
}

/* Creates a chunk of the size of all chunks of the class together, within bounds. So few pieces take little memory, and many
 * pieces take few regions. */
static struct slab_chunk *chunk_new(struct slabs *slabs, unsigned class, struct rdt_error *err)
{
    uint64_t bytes = slabs->class_bytes[class];
    struct slab_chunk *chunk = calloc(1, sizeof *chunk);

    if (!chunk) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for small objects");
        return NULL;
    }
    chunk->slabs = slabs;
    chunk->piece_bytes = class_bytes(class);
    chunk->first_free = NO_PIECE;
    if (bytes < 4ull * chunk->piece_bytes)
        bytes = 4ull * chunk->piece_bytes;
    bytes = bytes < MIN_CHUNK_BYTES ? MIN_CHUNK_BYTES : bytes > MAX_CHUNK_BYTES ? MAX_CHUNK_BYTES : bytes;
    if (region_alloc_now(slabs->regions, slabs->kind, bytes, REGION_ARENA, slabs->account, &chunk->region, err) != RDT_OK) {
        free(chunk);
        return NULL;
    }
    chunk->addr = region_addr(chunk->region, err);
    if (!chunk->addr) {
        region_unref(chunk->region);
        free(chunk);
        return NULL;
    }
    chunk->n_pieces = (uint32_t)(bytes / chunk->piece_bytes);
    slabs->class_bytes[class] += bytes;
    list_append(&slabs->classes[class], &chunk->link);
    return chunk;
}

enum rdt_status slab_alloc(struct slabs *slabs, uint64_t bytes, struct slab_piece *piece_p, struct rdt_error *err)
{
    unsigned class = class_of(bytes);
    struct list *first = list_first(&slabs->classes[class]);
    struct slab_chunk *chunk;
    uint32_t index;

    assert(bytes > 0 && bytes <= SLAB_MAX_BYTES);
    chunk = first ? container_of(first, struct slab_chunk, link) : chunk_new(slabs, class, err);
    if (!chunk)
        return err ? err->status : RDT_NO_MEMORY;
    if (chunk->first_free != NO_PIECE) {
        index = chunk->first_free;
        memcpy(&chunk->first_free, slab_addr((struct slab_piece){chunk, index}), sizeof chunk->first_free);
    } else {
        index = chunk->n_touched++;
    }
    if (++chunk->n_used == chunk->n_pieces)
        list_remove(&chunk->link);
    *piece_p = (struct slab_piece){chunk, index};
    return RDT_OK;
}

void slab_free(struct slab_piece piece)
{
    struct slab_chunk *chunk = piece.chunk;
    struct slabs *slabs;

    if (!chunk)
        return;
    slabs = chunk->slabs;
    memcpy(slab_addr(piece), &chunk->first_free, sizeof chunk->first_free);
    chunk->first_free = piece.index;
    if (chunk->n_used-- == chunk->n_pieces)
        list_append(&slabs->classes[class_of(chunk->piece_bytes)], &chunk->link);
    if (chunk->n_used > 0)
        return;
    if (!slabs->deadlines)
        chunk_free(chunk);
    else if (slabs->sweep.index == 0 && !deadline_set(slabs->deadlines, &slabs->sweep, EMPTY_NS))
        chunk_free(chunk);
}
