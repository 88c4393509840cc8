/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks: both ends cut the stream alike, each byte is in one chunk, and scattering restores what was gathered. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transports/chunk.h"

#define MIN_CHUNK 4096u
#ifdef __SANITIZE_THREAD__
#define ROUNDS 100
#else
#define ROUNDS 400
#endif

TestSuite(chunk, .timeout = 100);

static uint64_t seed;

static uint64_t dice(uint64_t sides)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % sides;
}

/* ---- layouts ---- */

struct memory {
    struct layout *layout;
    struct memory_place *bases; /* [n] */
    uint64_t *bytes;            /* [n] */
    uint32_t n;
};

static void memory_fini(struct memory *memory)
{
    for (uint32_t i = 0; i < memory->n; i++)
        free(memory->bases[i].base);
    free(memory->bases);
    free(memory->bytes);
    free(memory->layout);
}

/* Tensors [rows, columns] of bytes, some of them empty. With one-byte elements, strides are bytes. */
static struct layout *random_shapes(uint32_t count, uint64_t most)
{
    struct layout *layout = layout_create(count, 2 * count);

    cr_assert_not_null(layout);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t columns = 1 + dice(64), rows = dice(10) == 0 ? 0 : 1 + dice(dice(4) == 0 ? most : 40);
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 2;
        layout->first_dim[i] = 2 * i;
        layout->region[i] = 0;
        layout->offset[i] = 0;
        layout->shape[2 * i] = rows;
        layout->shape[2 * i + 1] = columns;
        layout->strides[2 * i] = (int64_t)columns;
        layout->strides[2 * i + 1] = 1;
    }
    return layout;
}

/* Memory for those shapes in one to three regions: contiguous or with holes, some tensors transposed, none overlapping. */
static void random_memory(const struct layout *shapes, bool holes, struct memory *memory_p)
{
    struct layout *layout = layout_dup(shapes);
    uint32_t n = 1 + (uint32_t)dice(3);

    *memory_p = (struct memory){
        .layout = layout, .n = n, .bases = calloc(n, sizeof(struct memory_place)), .bytes = calloc(n, sizeof(uint64_t))};
    cr_assert(layout && memory_p->bases && memory_p->bytes);
    for (uint32_t i = 0; i < layout->count; i++) {
        uint32_t r = layout->region[i] = (uint32_t)dice(n), d = layout->first_dim[i];
        uint64_t rows = layout->shape[d], columns = layout->shape[d + 1];
        uint64_t pitch = columns + (holes ? dice(5) : 0);
        layout->offset[i] = memory_p->bytes[r] + dice(7);
        layout->strides[d] = (int64_t)pitch;
        layout->strides[d + 1] = 1;
        if (holes && dice(3) == 0) { /* stored by columns */
            pitch = rows;
            layout->strides[d] = 1;
            layout->strides[d + 1] = (int64_t)rows;
            memory_p->bytes[r] = layout->offset[i] + rows * columns;
        } else {
            memory_p->bytes[r] = layout->offset[i] + rows * pitch;
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        memory_p->bases[r].base = calloc(1, memory_p->bytes[r] + 1);
        cr_assert_not_null(memory_p->bases[r].base);
    }
}

static uint8_t *element(const struct memory *memory, uint32_t i, uint64_t row, uint64_t column)
{
    const struct layout *layout = memory->layout;
    uint32_t d = layout->first_dim[i];

    return memory->bases[layout->region[i]].base + (int64_t)layout->offset[i] + (int64_t)row * layout->strides[d] +
           (int64_t)column * layout->strides[d + 1];
}

static uint8_t value(uint32_t i, uint64_t row, uint64_t column)
{
    return (uint8_t)(1 + (i * 131 + row * 17 + column * 7) % 255);
}

/* ---- plans ---- */

static struct chunk_plan *plan_of(const struct layout *packed, uint64_t bytes, uint64_t chunk_bytes, bool single)
{
    struct chunk_plan *plan = NULL;
    struct rdt_error err = {0};
    enum rdt_status status = single ? chunk_plan_create_single(packed, bytes, chunk_bytes, &plan, &err)
                                    : chunk_plan_create(packed, bytes, chunk_bytes, &plan, &err);

    cr_assert_eq(status, RDT_OK, "%s", err.msg);
    return plan;
}

/* The chunks are in order, do not overlap and are not too large, and each byte of each tensor is in exactly one. */
static void check_plan(const struct chunk_plan *plan, const struct layout *packed, uint64_t stream, uint64_t chunk_bytes,
                       bool single)
{
    uint8_t *seen = calloc(1, stream + 1);
    uint64_t end = 0;

    cr_assert_eq(plan->stream_bytes, stream);
    for (uint32_t c = 0; c < plan->n; c++) {
        const struct chunk *chunk = &plan->chunks[c];
        cr_assert(chunk->bytes > 0 && chunk->bytes <= chunk_bytes);
        cr_assert(chunk->offset >= end, "chunk %u begins before the one before it ends", c);
        end = chunk->offset + chunk->bytes;
        cr_assert(end <= stream);
        cr_assert(chunk->first + chunk->count <= packed->count);
        if (single)
            cr_assert_eq(chunk->count, 1u);
        for (uint64_t b = chunk->offset; b < end; b++)
            seen[b]++;
    }
    for (uint32_t i = 0; i < packed->count; i++)
        for (uint64_t b = 0; b < layout_bytes(packed, i); b++)
            if (seen[packed->offset[i] + b] != 1) /* an assertion for each byte would take longer than all else */
                cr_assert_fail("byte %lu of tensor %u is in %u chunks", (unsigned long)b, i, seen[packed->offset[i] + b]);
    free(seen);
}

static void check_equal(const struct chunk_plan *a, const struct chunk_plan *b)
{
    cr_assert_eq(a->n, b->n);
    cr_assert_eq(a->stream_bytes, b->stream_bytes);
    cr_assert_eq(memcmp(a->chunks, b->chunks, a->n * sizeof a->chunks[0]), 0);
}

/* The shapes as the other end receives them: without their places in memory. */
static struct layout *over_the_wire(const struct layout *layout)
{
    Rdt__Pb__TensorList list, *copy;
    struct layout *there = NULL;
    struct rdt_error err = {0};

    layout_to_wire(layout, false, NULL, &list);
    uint8_t *bytes = malloc(rdt__pb__tensor_list__get_packed_size(&list) + 1);
    size_t n = rdt__pb__tensor_list__pack(&list, bytes);
    copy = rdt__pb__tensor_list__unpack(NULL, n, bytes);
    cr_assert_not_null(copy);
    cr_assert_eq(layout_from_wire(copy, &there, &err), RDT_OK, "%s", err.msg);
    rdt__pb__tensor_list__free_unpacked(copy, NULL);
    free(bytes);
    return there;
}

static void round_trip(const struct chunk_plan *here, const struct chunk_plan *there, const struct layout *packed,
                       const struct layout *packed_there, const struct memory *source, const struct memory *target)
{
    for (uint32_t c = 0; c < here->n; c++) {
        const struct chunk *chunk = &here->chunks[c];
        uint8_t *stream = malloc(chunk->bytes + 16);

        memset(stream, 0xa5, chunk->bytes + 16);
        cr_assert_eq(chunk_gather(chunk, packed, source->layout, source->bases, stream), 0);
        for (unsigned i = 0; i < 16; i++)
            cr_assert_eq(stream[chunk->bytes + i], 0xa5, "gathered past the chunk");
        cr_assert_eq(chunk_scatter(&there->chunks[c], packed_there, target->layout, target->bases, stream), 0);
        free(stream);
    }
}

/* The runs are the chunk, in its order, and no two of them could be one. */
static void check_runs(const struct chunk_plan *plan, const struct layout *packed, const struct memory *memory)
{
    for (uint32_t c = 0; c < plan->n; c++) {
        const struct chunk *chunk = &plan->chunks[c];
        uint32_t most = (uint32_t)chunk->bytes, n;
        struct chunk_run *runs = calloc(most, sizeof *runs);
        uint8_t *stream = malloc(chunk->bytes), *joined = calloc(1, chunk->bytes);
        uint64_t at = 0;

        cr_assert(runs && stream && joined);
        cr_assert_eq(chunk_gather(chunk, packed, memory->layout, memory->bases, stream), 0);
        n = chunk_runs(chunk, packed, memory->layout, runs, most);
        cr_assert(n > 0);
        for (uint32_t i = 0; i < n; at += runs[i++].bytes) {
            const struct chunk_run *run = &runs[i], *before = i > 0 ? run - 1 : NULL;
            bool padding = run->region == CHUNK_PADDING;

            if (run->bytes == 0 || at + run->bytes > chunk->bytes ||
                (padding ? run->bytes >= LAYOUT_ALIGN_BYTES : run->offset + run->bytes > memory->bytes[run->region]))
                cr_assert_fail("run %u of chunk %u is outside", i, c);
            if (before && before->region == run->region && (padding || before->offset + before->bytes == run->offset))
                cr_assert_fail("runs %u and %u of chunk %u are one", i - 1, i, c);
            if (!padding)
                memcpy(joined + at, memory->bases[run->region].base + run->offset, run->bytes);
        }
        cr_assert_eq(at, chunk->bytes);
        cr_assert_eq(memcmp(joined, stream, chunk->bytes), 0, "the runs of chunk %u are not the chunk", c);
        cr_assert_eq(chunk_runs(chunk, packed, memory->layout, runs, n - 1), 0u);
        free(runs);
        free(stream);
        free(joined);
    }
}

Test(chunk, random_plans_round_trip)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t chunk_bytes = MIN_CHUNK + dice(dice(2) ? 1000 : 100000), stream, stream_there;
        bool single = dice(3) == 0;
        struct layout *shapes, *packed, *wire, *packed_there;
        struct memory source, target;

        seed = round;
        shapes = random_shapes((uint32_t)dice(dice(4) ? 12 : 200), 2000);
        cr_assert_eq(layout_packed(shapes, &packed, &stream, NULL), RDT_OK);
        random_memory(shapes, dice(2), &source);
        random_memory(shapes, dice(2), &target);
        wire = over_the_wire(source.layout);
        cr_assert_eq(layout_packed(wire, &packed_there, &stream_there, NULL), RDT_OK);
        cr_assert_eq(stream, stream_there);
        struct chunk_plan *here = plan_of(packed, stream, chunk_bytes, single);
        struct chunk_plan *there = plan_of(packed_there, stream_there, chunk_bytes, single);
        check_equal(here, there);
        check_plan(here, packed, stream, chunk_bytes, single);

        for (uint32_t i = 0; i < shapes->count; i++)
            for (uint64_t row = 0; row < shapes->shape[2 * i]; row++)
                for (uint64_t column = 0; column < shapes->shape[2 * i + 1]; column++)
                    *element(&source, i, row, column) = value(i, row, column);
        round_trip(here, there, packed, packed_there, &source, &target);
        for (uint32_t i = 0; i < shapes->count; i++)
            for (uint64_t row = 0; row < shapes->shape[2 * i]; row++)
                for (uint64_t column = 0; column < shapes->shape[2 * i + 1]; column++) {
                    uint8_t *at = element(&target, i, row, column);
                    if (*at != value(i, row, column))
                        cr_assert_fail("round %u, tensor %u", round, i);
                    *at = 0;
                }
        for (uint32_t r = 0; r < target.n; r++) /* holes were not written */
            for (uint64_t b = 0; b < target.bytes[r]; b++)
                if (target.bases[r].base[b] != 0)
                    cr_assert_fail("round %u: byte %lu of region %u belongs to no tensor", round, (unsigned long)b, r);
        check_runs(here, packed, &source);

        free(here);
        free(there);
        free(shapes);
        free(packed);
        free(wire);
        free(packed_there);
        memory_fini(&source);
        memory_fini(&target);
    }
}

/* A tensor of more than an eighth of a chunk has chunks of its own. Smaller ones share a chunk. */
Test(chunk, large_alone_small_together)
{
    uint64_t stream;
    struct layout *shapes = layout_create(5, 5), *packed;
    static const uint64_t elems[] = {100, 100, 3 * MIN_CHUNK + 1, 100, 100};

    for (uint32_t i = 0; i < 5; i++) {
        shapes->dtype[i] = RDT_U8;
        shapes->ndim[i] = 1;
        shapes->first_dim[i] = i;
        shapes->shape[i] = elems[i];
        shapes->strides[i] = 1;
        shapes->region[i] = 0;
        shapes->offset[i] = 0;
    }
    cr_assert_eq(layout_packed(shapes, &packed, &stream, NULL), RDT_OK);
    struct chunk_plan *plan = plan_of(packed, stream, MIN_CHUNK, false);
    cr_assert_eq(plan->n, 6u);
    cr_expect_eq(plan->chunks[0].count, 2u);
    for (unsigned i = 1; i <= 4; i++)
        cr_expect(plan->chunks[i].first == 2 && plan->chunks[i].count == 1);
    cr_expect_eq(plan->chunks[4].bytes, 1u);
    cr_expect_eq(plan->chunks[5].count, 2u);
    free(plan);
    plan = plan_of(packed, stream, MIN_CHUNK, true);
    cr_expect_eq(plan->n, 8u);
    free(plan);
    free(packed);
    free(shapes);
}

/* The padding between tensors of one chunk contains no old bytes. */
Test(chunk, padding_is_zero)
{
    static uint8_t memory[128];
    struct memory_place bases[] = {{.base = memory}};
    uint8_t stream[256];
    struct layout *shapes = layout_create(3, 3), *packed;
    uint64_t bytes;

    memset(memory, 0x11, sizeof memory);
    memset(stream, 0xa5, sizeof stream);
    for (uint32_t i = 0; i < 3; i++) {
        shapes->dtype[i] = RDT_U8;
        shapes->ndim[i] = 1;
        shapes->first_dim[i] = i;
        shapes->shape[i] = 10;
        shapes->strides[i] = 1;
        shapes->region[i] = 0;
        shapes->offset[i] = 10 * i;
    }
    cr_assert_eq(layout_packed(shapes, &packed, &bytes, NULL), RDT_OK);
    struct chunk_plan *plan = plan_of(packed, bytes, MIN_CHUNK, false);
    cr_assert_eq(plan->n, 1u);
    cr_assert_eq(chunk_gather(&plan->chunks[0], packed, shapes, bases, stream), 0);
    for (uint64_t b = 0; b < plan->chunks[0].bytes; b++)
        cr_assert_eq(stream[b], b % LAYOUT_ALIGN_BYTES < 10 ? 0x11 : 0, "byte %lu", (unsigned long)b);
    memset(stream, 0xa5, sizeof stream);
    chunk_clear_gaps(&plan->chunks[0], packed, stream); /* which writes nothing else */
    for (uint64_t b = 0; b < sizeof stream; b++)
        cr_assert_eq(stream[b], b < plan->chunks[0].bytes && b % LAYOUT_ALIGN_BYTES >= 10 ? 0 : 0xa5, "byte %lu",
                     (unsigned long)b);
    free(plan);
    free(packed);
    free(shapes);
}

Test(chunk, empty_stream_has_no_chunks)
{
    struct layout *shapes = layout_create(0, 0);
    struct chunk_plan *plan = plan_of(shapes, 0, MIN_CHUNK, false);

    cr_assert_eq(plan->n, 0u);
    free(plan);
    free(shapes);
}

Test(chunk, size_out_of_range_refused)
{
    struct layout *shapes = layout_create(0, 0);
    struct chunk_plan *plan;
    struct rdt_error err = {0};

    cr_expect_eq(chunk_plan_create(shapes, 0, MIN_CHUNK - 1, &plan, &err), RDT_INVALID);
    cr_expect_eq(chunk_plan_create(shapes, 0, (1ull << 30) + 1, &plan, &err), RDT_INVALID);
    cr_expect_eq(chunk_plan_create(shapes, 0, 0, &plan, &err), RDT_INVALID);
    cr_expect_eq(chunk_plan_create(shapes, 1ull << 40, MIN_CHUNK, &plan, &err), RDT_LIMIT);
    free(shapes);
}

/* Returns whether three vectors from offset 1000 on, with a gap in memory before the last, are a chunk in one piece. */
static bool is_piece(const uint64_t sizes[3], uint64_t gap, uint64_t *offset_p)
{
    struct layout *layout = layout_create(3, 3), *packed = NULL;
    struct chunk_plan *plan = NULL;
    struct chunk_run run = {0};
    uint64_t stream_bytes, at = 1000;

    cr_assert_not_null(layout);
    for (uint32_t i = 0; i < 3; i++) {
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
        layout->region[i] = 2;
        layout->shape[i] = sizes[i];
        layout->strides[i] = 1;
        at += i == 2 ? gap : 0;
        layout->offset[i] = at;
        at += sizes[i];
    }
    cr_assert_eq(layout_packed(layout, &packed, &stream_bytes, NULL), RDT_OK);
    cr_assert_eq(chunk_plan_create(packed, stream_bytes, 64 * MIN_CHUNK, &plan, NULL), RDT_OK);
    cr_assert_eq(plan->n, 1u);
    bool piece = chunk_runs(&plan->chunks[0], packed, layout, &run, 1) == 1;
    cr_assert(!piece || run.region == 2);
    *offset_p = run.offset;
    free(plan);
    free(packed);
    free(layout);
    return piece;
}

/* Blocks of 100 bytes in two regions, the first two of them adjacent in memory but not in the stream, and one cut in the
 * middle. */
Test(chunk, runs_are_in_the_order_of_the_stream)
{
    static const struct chunk_run expected[] = {
        {0, 50, 100}, {CHUNK_PADDING, 0, 28}, {0, 150, 100}, {CHUNK_PADDING, 0, 28}, {1, 7, 40}};
    const uint64_t offsets[] = {50, 150, 7};
    struct layout *layout = layout_create(3, 3), *packed;
    struct chunk chunk = {.bytes = 296, .count = 3};
    struct chunk_run runs[5];
    uint64_t bytes;

    for (uint32_t i = 0; i < 3; i++) {
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
        layout->shape[i] = 100;
        layout->strides[i] = 1;
        layout->region[i] = i / 2;
        layout->offset[i] = offsets[i];
    }
    cr_assert_eq(layout_packed(layout, &packed, &bytes, NULL), RDT_OK);
    cr_assert_eq(chunk_runs(&chunk, packed, layout, runs, 5), 5u);
    for (unsigned i = 0; i < 5; i++)
        cr_assert(runs[i].region == expected[i].region && runs[i].offset == expected[i].offset &&
                      runs[i].bytes == expected[i].bytes,
                  "run %u", i);
    chunk = (struct chunk){.offset = 296, .bytes = 60, .first = 2, .count = 1};
    cr_assert_eq(chunk_runs(&chunk, packed, layout, runs, 5), 1u);
    cr_assert(runs[0].region == 1 && runs[0].offset == 47 && runs[0].bytes == 60);
    chunk = (struct chunk){.offset = 10, .bytes = 200, .count = 2};
    cr_assert_eq(chunk_runs(&chunk, packed, packed, runs, 5), 1u); /* the padding of a packed layout is memory of the object */
    cr_assert(runs[0].region == 0 && runs[0].offset == 10 && runs[0].bytes == 200);
    cr_assert_eq(chunk_runs(&chunk, packed, packed, runs, 0), 0u);
    free(packed);
    free(layout);
}

/* Tensors without gaps in memory and in the stream are one piece. The bytes of a gap are not the object's. */
Test(chunk, tensors_in_a_row_are_one_piece)
{
    uint64_t offset = 0;

    cr_assert(is_piece((uint64_t[]){64, 128, 192}, 0, &offset));
    cr_assert_eq(offset, 1000u);
    cr_assert(is_piece((uint64_t[]){0, 640, 0}, 0, &offset));
    cr_assert(is_piece((uint64_t[]){64, 0, 60}, 0, &offset));
    cr_assert_not(is_piece((uint64_t[]){64, 128, 192}, 64, &offset));
    cr_assert_not(is_piece((uint64_t[]){60, 128, 192}, 0, &offset));
    cr_assert_not(is_piece((uint64_t[]){60, 128, 192}, 4, &offset));
}
