/* SPDX-License-Identifier: Apache-2.0 */
/* Copies bytes between a tensor of any strides and its packed stream. Regions are not known here, and the
 * caller has checked the extents.
 *
 * The tensor is first reduced to the fewest dimensions over the longest runs of adjacent bytes; one
 * without holes is a single run and costs one memcpy. */
#include "layout.h"

#include <stdlib.h>
#include <string.h>

#include "wire_limits.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define TILE_ROWS 8u       /* measured: with more, rows a power of two apart evict each other from the cache */
#define TILE_RUN_BYTES 32u /* longer runs fill half of a cache line by themselves */

struct walk {
    uint64_t run;    /* bytes that are adjacent on both sides */
    unsigned n_dims; /* of runs; dimension 0 is the innermost, and all sizes are at least 2 */
    uint64_t size[RDT_MAX_NDIM];
    int64_t step[RDT_MAX_NDIM]; /* bytes */
    uint64_t at[RDT_MAX_NDIM];  /* the current position */
    int64_t place;              /* of the current run, in bytes from the region's start */
};

static void walk_init(struct walk *walk, const struct layout *layout, uint32_t i)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    const int64_t *strides = layout->strides + layout->first_dim[i];
    uint64_t item = rdt_dtype_bytes((enum rdt_dtype)layout->dtype[i]);

    walk->run = item;
    walk->n_dims = 0;
    walk->place = (int64_t)layout->offset[i];
    for (uint32_t d = layout->ndim[i]; d-- > 0;) {
        unsigned n = walk->n_dims;
        int64_t step;

        if (shape[d] == 1)
            continue;
        step = strides[d] * (int64_t)item;
        if (n == 0 && step == (int64_t)walk->run) {
            walk->run *= shape[d];
        } else if (n > 0 && step == walk->step[n - 1] * (int64_t)walk->size[n - 1]) {
            walk->size[n - 1] *= shape[d];
        } else {
            walk->size[n] = shape[d];
            walk->step[n] = step;
            walk->n_dims++;
        }
    }
}

/* Moves to the run with this number, in row-major order. */
static void walk_seek(struct walk *walk, uint64_t number)
{
    for (unsigned d = 0; d < walk->n_dims; d++) {
        walk->at[d] = number % walk->size[d];
        walk->place += (int64_t)walk->at[d] * walk->step[d];
        number /= walk->size[d];
    }
}

/* Advances by n steps of dimension d, at most to its end. */
static void walk_advance(struct walk *walk, unsigned d, uint64_t n)
{
    if (d >= walk->n_dims)
        return;
    walk->at[d] += n;
    walk->place += (int64_t)n * walk->step[d];
    for (; walk->at[d] == walk->size[d]; d++) {
        walk->place -= (int64_t)walk->size[d] * walk->step[d];
        walk->at[d] = 0;
        if (d + 1 == walk->n_dims)
            return;
        walk->at[d + 1]++;
        walk->place += walk->step[d + 1];
    }
}

/* Copies into the tensor (scatter) or out of it. Inlining makes the sizes constants, and memcpy one
 * instruction each way. */
static inline __attribute__((always_inline)) void copy_runs(uint8_t *place, int64_t place_step, uint8_t *packed,
                                                            uint64_t packed_step, size_t run, uint64_t runs, bool scatter)
{
    int64_t at = 0;

    for (uint64_t r = 0; r < runs; r++, at += place_step, packed += packed_step) {
        if (scatter)
            memcpy(place + at, packed, run);
        else
            memcpy(packed, place + at, run);
    }
}

static inline __attribute__((always_inline)) void copy_row(uint8_t *place, int64_t place_step, uint8_t *packed,
                                                           uint64_t packed_step, size_t run, uint64_t runs, bool scatter)
{
    switch (run) {
    case 1:
        copy_runs(place, place_step, packed, packed_step, 1, runs, scatter);
        break;
    case 2:
        copy_runs(place, place_step, packed, packed_step, 2, runs, scatter);
        break;
    case 4:
        copy_runs(place, place_step, packed, packed_step, 4, runs, scatter);
        break;
    case 8:
        copy_runs(place, place_step, packed, packed_step, 8, runs, scatter);
        break;
    case 16:
        copy_runs(place, place_step, packed, packed_step, 16, runs, scatter);
        break;
    default:
        copy_runs(place, place_step, packed, packed_step, run, runs, scatter);
    }
}

/* The number of whole rows to copy column by column. In a transposed tensor, neighbours in memory are one
 * row apart, so copying row by row would load each cache line once for every element in it. 1: row by row
 * is right. */
static uint64_t rows_of_tile(const struct walk *walk, uint64_t bytes)
{
    uint64_t rows;

    if (walk->n_dims < 2 || walk->at[0] != 0 || walk->run > TILE_RUN_BYTES || llabs(walk->step[1]) >= llabs(walk->step[0]))
        return 1;
    rows = bytes / (walk->run * walk->size[0]);
    if (rows > walk->size[1] - walk->at[1])
        rows = walk->size[1] - walk->at[1];
    return rows < TILE_ROWS ? rows : TILE_ROWS;
}

static inline __attribute__((always_inline)) void copy(const struct layout *layout, uint32_t i, uint8_t *base, uint64_t from,
                                                       uint64_t bytes, uint8_t *packed, bool scatter)
{
    struct walk walk;
    uint64_t skip, part;

    if (bytes == 0)
        return;
    walk_init(&walk, layout, i);
    walk_seek(&walk, from / walk.run);
    skip = from % walk.run;
    if (skip > 0 || bytes < walk.run) {
        part = walk.run - skip < bytes ? walk.run - skip : bytes;
        copy_runs(base + walk.place + skip, 0, packed, 0, part, 1, scatter);
        packed += part;
        bytes -= part;
        walk_advance(&walk, 0, 1);
    }
    while (bytes >= walk.run) {
        uint64_t run = walk.run, rows = rows_of_tile(&walk, bytes);
        uint64_t runs = walk.n_dims > 0 ? walk.size[0] - walk.at[0] : 1;
        int64_t step = walk.n_dims > 0 ? walk.step[0] : 0;

        if (rows > 1) {
            for (uint64_t c = 0; c < runs; c++)
                copy_row(base + walk.place + (int64_t)c * step, walk.step[1], packed + c * run, runs * run, run, rows, scatter);
            part = rows * runs * run;
            walk_advance(&walk, 1, rows);
        } else {
            if (runs > bytes / run)
                runs = bytes / run;
            copy_row(base + walk.place, step, packed, run, run, runs, scatter);
            part = runs * run;
            walk_advance(&walk, 0, runs);
        }
        packed += part;
        bytes -= part;
    }
    if (bytes > 0)
        copy_runs(base + walk.place, 0, packed, 0, bytes, 1, scatter);
}

/* The casts remove const from memory that this direction only reads. */
void layout_gather(const struct layout *layout, uint32_t i, const void *base, uint64_t from, uint64_t bytes, void *packed_p)
{
    copy(layout, i, (uint8_t *)base, from, bytes, packed_p, false);
}

void layout_scatter(const struct layout *layout, uint32_t i, void *base, uint64_t from, uint64_t bytes, const void *packed)
{
    copy(layout, i, base, from, bytes, (uint8_t *)packed, true);
}

bool layout_runs(const struct layout *layout, uint32_t i, uint64_t from, uint64_t bytes, layout_on_runs on_runs, void *arg)
{
    struct walk walk;
    uint64_t skip;

    if (bytes == 0)
        return true;
    walk_init(&walk, layout, i);
    walk_seek(&walk, from / walk.run);
    skip = from % walk.run;
    if (skip > 0 || bytes < walk.run) {
        uint64_t part = walk.run - skip < bytes ? walk.run - skip : bytes;
        if (!on_runs(arg, (uint64_t)walk.place + skip, 0, part, 1))
            return false;
        bytes -= part;
        if (bytes > 0)
            walk_advance(&walk, 0, 1);
    }
    while (bytes >= walk.run) {
        uint64_t runs = walk.n_dims > 0 ? walk.size[0] - walk.at[0] : 1;
        if (runs > bytes / walk.run)
            runs = bytes / walk.run;
        if (!on_runs(arg, (uint64_t)walk.place, walk.n_dims > 0 ? walk.step[0] : 0, walk.run, runs))
            return false;
        bytes -= runs * walk.run;
        if (bytes > 0)
            walk_advance(&walk, 0, runs);
    }
    return bytes == 0 || on_runs(arg, (uint64_t)walk.place, 0, bytes, 1);
}

/* ---- checksums ---- */

#define BUFFER_BYTES ((uint64_t)256 << 10)

static uint64_t never_0(uint64_t sum)
{
    return sum ? sum : 1;
}

struct byte_sum *byte_sum_create(void)
{
    XXH3_state_t *state = XXH3_createState();

    if (state)
        (void)XXH3_64bits_reset(state);
    return (struct byte_sum *)state;
}

void byte_sum_destroy(struct byte_sum *sum)
{
    (void)XXH3_freeState((XXH3_state_t *)sum);
}

void byte_sum_add(struct byte_sum *sum, const void *data, size_t bytes)
{
    if (bytes == 0)
        return;
#ifdef LAYOUT_SUM_AVX2
    if (__builtin_cpu_supports("avx2")) {
        byte_sum_add_avx2(sum, data, bytes);
        return;
    }
#endif
    (void)XXH3_64bits_update((XXH3_state_t *)sum, data, bytes);
}

uint64_t byte_sum_end(struct byte_sum *sum)
{
    uint64_t value = XXH3_64bits_digest((XXH3_state_t *)sum);

    (void)XXH3_64bits_reset((XXH3_state_t *)sum);
    return never_0(value);
}

static uint64_t with_number(uint64_t hash, uint64_t number)
{
    uint8_t both[16];

    for (unsigned i = 0; i < 8; i++) {
        both[i] = (uint8_t)(hash >> 8 * i);
        both[8 + i] = (uint8_t)(number >> 8 * i);
    }
    return XXH3_64bits(both, sizeof both);
}

uint64_t tensor_sum_object(const struct layout *layout, const uint64_t *sums, const void *metadata, size_t metadata_bytes)
{
    uint64_t hash = metadata_bytes > 0 ? XXH3_64bits(metadata, metadata_bytes) : 0;

    for (uint32_t i = 0; i < layout->count; i++) {
        hash = with_number(hash, layout->dtype[i]);
        hash = with_number(hash, layout->ndim[i]);
        for (uint32_t d = 0; d < layout->ndim[i]; d++)
            hash = with_number(hash, layout->shape[layout->first_dim[i] + d]);
        hash = with_number(hash, sums[i]);
    }
    return never_0(hash);
}

bool tensor_sums_init(struct tensor_sums *sums, const struct layout *layout, const uint8_t *const *bases)
{
    *sums = (struct tensor_sums){
        .layout = layout, .bases = bases, .sums = calloc(layout->count + 1u, sizeof *sums->sums), .sum = byte_sum_create()};
    for (uint32_t i = 0; i < layout->count && !sums->buffer; i++)
        if (!layout_is_contiguous(layout, i) && !(sums->buffer = malloc(BUFFER_BYTES)))
            return false;
    return sums->sums && sums->sum;
}

void tensor_sums_fini(struct tensor_sums *sums)
{
    free(sums->sums);
    free(sums->buffer);
    byte_sum_destroy(sums->sum);
    *sums = (struct tensor_sums){0};
}

/* Reads up to `most` bytes of the present tensor. Returns how many. */
static uint64_t add_bytes(struct tensor_sums *sums, uint64_t most)
{
    const struct layout *layout = sums->layout;
    uint64_t left = layout_bytes(layout, sums->at) - sums->from, bytes = left < most ? left : most;
    const uint8_t *base = bytes > 0 ? sums->bases[layout->region[sums->at]] : NULL;

    if (bytes > 0 && layout_is_contiguous(layout, sums->at)) {
        byte_sum_add(sums->sum, base + layout->offset[sums->at] + sums->from, bytes);
    } else if (bytes > 0) {
        bytes = bytes < BUFFER_BYTES ? bytes : BUFFER_BYTES;
        layout_gather(layout, sums->at, base, sums->from, bytes, sums->buffer);
        byte_sum_add(sums->sum, sums->buffer, bytes);
    }
    sums->from += bytes;
    if (bytes == left) {
        sums->sums[sums->at++] = byte_sum_end(sums->sum);
        sums->from = 0;
    }
    return bytes;
}

bool tensor_sums_step(struct tensor_sums *sums, uint64_t bytes)
{
    uint64_t done = 0;

    while (sums->at < sums->layout->count && done < bytes)
        done += add_bytes(sums, bytes - done) + 1; /* an empty tensor takes time, too */
    return sums->at < sums->layout->count;
}

bool tensor_sums_step_to(struct tensor_sums *sums, uint64_t bytes, uint64_t end)
{
    const struct layout *layout = sums->layout;
    uint64_t done = 0;

    while (sums->at < layout->count && done < bytes) {
        uint64_t begin = layout->offset[sums->at] + sums->from, left = bytes - done;
        uint64_t there = end > begin ? end - begin : 0;
        if (there == 0 && layout_bytes(layout, sums->at) > 0)
            return false;
        done += add_bytes(sums, left < there ? left : there) + 1;
    }
    return sums->at < layout->count;
}
