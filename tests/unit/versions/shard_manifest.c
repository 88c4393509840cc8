/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a large job is small, and its reader has every box where its rank published it. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/versions/shards_impl.h"
#include "proto/manifest.h"
#include "tests/support/check.h"

TestSuite(shard_manifest, .timeout = 240);

enum { RANKS = 4096, TENSORS = 400, WIDTH = 64, WAYS = 8 /* of tensor parallelism; the others are of FSDP */ };

static char names[TENSORS][64], *keys[TENSORS];

/* What the rank has of the tensor. Three kinds of tensors in turns: rows by FSDP and columns by tensor parallelism; rows by
 * both; and rows by all ranks that do not divide evenly, so that the last ranks have fewer or none. */
static void box_of(uint64_t rank, uint64_t tensor, uint64_t shape_p[2], uint64_t start_p[2], uint64_t count_p[2])
{
    uint64_t each = 4 + tensor % 7, fsdp = rank / WAYS, way = rank % WAYS;

    start_p[1] = 0;
    count_p[0] = each;
    count_p[1] = shape_p[1] = WIDTH;
    if (tensor % 3 == 0) {
        shape_p[0] = RANKS / WAYS * each;
        start_p[0] = fsdp * each;
        count_p[1] = WIDTH / WAYS;
        start_p[1] = way * count_p[1];
    } else if (tensor % 3 == 1) {
        shape_p[0] = RANKS * each;
        start_p[0] = (way * (RANKS / WAYS) + fsdp) * each;
    } else {
        shape_p[0] = (RANKS - 2) * each + 1;
        start_p[0] = rank * each < shape_p[0] ? rank * each : shape_p[0];
        count_p[0] = shape_p[0] - start_p[0] < each ? shape_p[0] - start_p[0] : each;
    }
}

static void add_rank(struct shard_cover *cover, uint32_t rank)
{
    static uint64_t shape[TENSORS][2], start[TENSORS][2];
    Rdt__Pb__Boxes boxes = RDT__PB__BOXES__INIT;
    struct layout *layout = layout_create(TENSORS, 2 * TENSORS);

    for (uint32_t i = 0; i < TENSORS; i++) {
        layout->dtype[i] = RDT_BF16;
        layout->ndim[i] = 2;
        layout->first_dim[i] = 2 * i;
        box_of(rank, i, shape[i], start[i], layout->shape + 2 * (size_t)i);
    }
    boxes.key = keys;
    boxes.global_shape = shape[0];
    boxes.start = start[0];
    boxes.n_key = TENSORS;
    boxes.n_global_shape = boxes.n_start = 2 * TENSORS;
    must_ok(shard_cover_add(cover, rank, rank, layout, &boxes, &err));
    free(layout);
}

static void must_have(const struct manifest *manifest, uint32_t rank)
{
    Rdt__Pb__Boxes boxes;
    const struct layout *layout = manifest_part(manifest, rank, &boxes);

    must(manifest->message->parts[rank]->rank == rank && layout->count == TENSORS);
    for (uint32_t i = 0; i < TENSORS; i++) {
        uint64_t shape[2], start[2], count[2];

        box_of(rank, i, shape, start, count);
        must(strcmp(boxes.key[i], keys[i]) == 0 && memcmp(boxes.global_shape + 2 * (size_t)i, shape, sizeof shape) == 0 &&
             memcmp(boxes.start + 2 * (size_t)i, start, sizeof start) == 0 &&
             memcmp(layout->shape + 2 * (size_t)i, count, sizeof count) == 0);
    }
}

Test(shard_manifest, of_4096_ranks_with_400_tensors_has_less_than_a_mebibyte)
{
    struct shard_row *rows = calloc(RANKS, sizeof *rows);
    struct shard_cover cover;
    struct manifest manifest;
    Rdt__Pb__Manifest *message;
    struct arena arena;
    struct shard_manifest packed = {0};

    for (unsigned i = 0; i < TENSORS; i++) {
        (void)snprintf(names[i], sizeof names[i], "model.layers.%03u.self_attention.query_key_value.weight", i);
        keys[i] = names[i];
    }
    shard_cover_init(&cover, TENSORS);
    for (uint32_t i = 0; i < RANKS; i++) { /* the parts come in any order */
        uint32_t rank = i * 1021 % RANKS;
        add_rank(&cover, rank);
        rows[rank].rank = rank;
        memset(rows[rank].ref.node, 7, sizeof rows[rank].ref.node);
        (void)snprintf(rows[rank].ref.address, sizeof rows[rank].ref.address, "10.1.%u.%u:7000", rank / 256, rank % 256);
        rows[rank].ref.id_bytes = (uint8_t)snprintf(rows[rank].ref.id, sizeof rows[rank].ref.id, "part-%u", rank);
        rows[rank].ref.generation = UINT64_MAX - rank;
    }
    must_ok(shard_cover_check(&cover, &err));
    must_ok(shard_manifest_pack(&cover, rows, RANKS, &packed, &err));
    cr_assert_lt(packed.metadata_bytes, 1u << 20);
    must(!packed.tensor);
    must_ok(manifest_unpack(&arena, packed.metadata + MANIFEST_MAGIC_BYTES, packed.metadata_bytes - MANIFEST_MAGIC_BYTES,
                            &message, &err));
    must(message->n_parts == RANKS);
    must_ok(manifest_open(message, &manifest, &err));
    for (uint32_t rank = 0; rank < RANKS; rank++)
        must_have(&manifest, rank);
    manifest_close(&manifest);
    arena_fini(&arena);
    shard_cover_fini(&cover);
    free(packed.metadata);
    free(rows);
}

/* What is too long for metadata is in two pieces, which are the message together. */
Test(shard_manifest, of_long_names_is_in_two_pieces_that_are_one_message)
{
    enum { MANY = 60000, NAME = 90 };
    char(*text)[NAME] = calloc(MANY, NAME), **many = calloc(MANY, sizeof *many);
    uint64_t *zeros = calloc(MANY, sizeof *zeros), *twos = calloc(MANY, sizeof *twos);
    struct layout *layout = layout_create(MANY, MANY);
    struct shard_manifest packed = {0};
    struct shard_row row = {0};
    struct shard_cover cover;
    struct manifest manifest;
    Rdt__Pb__Manifest *message;
    struct arena arena;
    Rdt__Pb__Boxes boxes = RDT__PB__BOXES__INIT;

    for (uint32_t i = 0; i < MANY; i++) {
        (void)snprintf(text[i], NAME, "model.layers.%0*u", NAME - 14, i);
        many[i] = text[i];
        twos[i] = layout->shape[i] = 2;
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
    }
    boxes.key = many;
    boxes.global_shape = twos;
    boxes.start = zeros;
    boxes.n_key = boxes.n_global_shape = boxes.n_start = MANY;
    shard_cover_init(&cover, MANY - 1);
    must_refuse(RDT_LIMIT, "version_max_tensors", shard_cover_add(&cover, 0, 0, layout, &boxes, &err));
    shard_cover_fini(&cover);
    shard_cover_init(&cover, MANY);
    must_ok(shard_cover_add(&cover, 0, 0, layout, &boxes, &err));
    must_ok(shard_cover_check(&cover, &err));
    must_ok(shard_manifest_pack(&cover, &row, 1, &packed, &err));
    must(packed.tensor && packed.metadata_bytes < 1024);
    must(memcmp(packed.metadata, MANIFEST_LARGE, MANIFEST_MAGIC_BYTES) == 0);
    size_t parts = packed.metadata_bytes - MANIFEST_MAGIC_BYTES, all = packed.tensor_bytes + parts;
    uint8_t *joined = malloc(all);
    memcpy(joined, packed.tensor, packed.tensor_bytes);
    memcpy(joined + packed.tensor_bytes, packed.metadata + MANIFEST_MAGIC_BYTES, parts);
    must_ok(manifest_unpack(&arena, joined, all, &message, &err));
    must(message->n_parts == 1 && message->n_key == MANY);
    must_ok(manifest_open(message, &manifest, &err));
    must(strcmp(manifest.layouts[0].key[MANY - 1], many[MANY - 1]) == 0);
    manifest_close(&manifest);
    arena_fini(&arena);
    shard_cover_fini(&cover);
    free(joined);
    free(packed.metadata);
    free(packed.tensor);
    free(layout);
    free(text);
    free(many);
    free(zeros);
    free(twos);
}

/* Tensors as small as they can be take the most memory for their bytes. */
Test(shard_manifest, of_tiny_tensors_is_far_from_the_limit_of_its_readers)
{
    enum { MANY = 65536 };
    char(*text)[5] = calloc(MANY, sizeof *text), **many = calloc(MANY, sizeof *many);
    uint64_t *zeros = calloc(MANY, sizeof *zeros), *ones = calloc(MANY, sizeof *ones);
    struct layout *layout = layout_create(MANY, MANY);
    Rdt__Pb__Boxes boxes = RDT__PB__BOXES__INIT;
    struct shard_manifest packed = {0};
    struct shard_row row = {0};
    Rdt__Pb__Manifest *message;
    struct shard_cover cover;
    struct arena arena;

    for (uint32_t i = 0; i < MANY; i++) {
        (void)snprintf(text[i], sizeof text[i], "%x", i);
        many[i] = text[i];
        ones[i] = layout->shape[i] = 1;
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
    }
    boxes.key = many;
    boxes.global_shape = ones;
    boxes.start = zeros;
    boxes.n_key = boxes.n_global_shape = boxes.n_start = MANY;
    shard_cover_init(&cover, MANY);
    must_ok(shard_cover_add(&cover, 0, 0, layout, &boxes, &err));
    must_ok(shard_cover_check(&cover, &err));
    must_ok(shard_manifest_pack(&cover, &row, 1, &packed, &err));
    must(!packed.tensor);
    size_t bytes = packed.metadata_bytes - MANIFEST_MAGIC_BYTES;
    must_ok(manifest_unpack(&arena, packed.metadata + MANIFEST_MAGIC_BYTES, bytes, &message, &err));
    cr_assert_lt(arena.used_bytes, MANIFEST_ROOM / 2 * bytes, "%zu bytes take %zu", bytes, arena.used_bytes);
    arena_fini(&arena);
    shard_cover_fini(&cover);
    free(packed.metadata);
    free(layout);
    free(text);
    free(many);
    free(zeros);
    free(ones);
}

/* A caller need not want the sentence. */
Test(shard_manifest, that_cannot_be_read_is_refused_without_an_error_struct)
{
    Rdt__Pb__Manifest *message;
    struct rdt_error err;
    struct arena arena;

    must(manifest_unpack(&arena, "\xff\xff\xff", 3, &message, NULL) == RDT_INVALID);
    must(!message);
    arena_fini(&arena);
    must(manifest_unpack(&arena, "\xff\xff\xff", 3, &message, &err) == RDT_INVALID && err.status == RDT_INVALID);
    arena_fini(&arena);
}
