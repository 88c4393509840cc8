/* SPDX-License-Identifier: Apache-2.0 */
/* proto/layout: lists of tensors from messages, slices of them, and copies by them. Nothing outside the extent is touched,
 * and gathering returns what was scattered.
 *
 *   | bytes of the list 2 | TensorList | Slice |
 */
#include "proto/layout.h"
#include "proto/wire_limits.h"
#include "tests/fuzz/harness/fuzz.h"

#define MOST_MOVED (64u << 10)

static uint32_t random_state;

static uint32_t next_random(void)
{
    return random_state = random_state * 1664525 + 1013904223;
}

/* Moves tensor i's bytes in pieces, against memory that holds its extent and nothing else. */
static void move(const struct layout *layout, uint32_t i, uint64_t lo, uint64_t hi)
{
    uint64_t bytes = layout_bytes(layout, i);
    uint8_t *memory, *first, *second;

    if (bytes == 0 || bytes > MOST_MOVED || hi - lo > MOST_MOVED)
        return;
    memory = fuzz_copy("", 0, false);
    free(memory);
    memory = malloc(hi - lo);
    first = malloc(bytes);
    second = malloc(bytes);
    fuzz_must(memory && first && second);
    if (lo > (uintptr_t)memory) { /* no address is so far below it */
        free(memory);
        free(first);
        free(second);
        return;
    }
    for (uint64_t b = 0; b < hi - lo; b++)
        memory[b] = (uint8_t)next_random();
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = 1 + next_random() % 64;
        n = n < bytes - at ? n : bytes - at;
        layout_gather(layout, i, (void *)((uintptr_t)memory - lo), at, n, first + at);
    }
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = 1 + next_random() % 4096;
        n = n < bytes - at ? n : bytes - at;
        layout_scatter(layout, i, (void *)((uintptr_t)memory - lo), at, n, first + at);
    }
    layout_gather(layout, i, (void *)((uintptr_t)memory - lo), 0, bytes, second);
    fuzz_must(memcmp(first, second, bytes) == 0);
    free(memory);
    free(first);
    free(second);
}

/* Converting to a message and back returns the same tensors, in runs too. */
static void there_and_back(const struct layout *layout, struct layout_rows *rows)
{
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    struct layout *again = NULL;
    struct rdt_error err;

    layout_to_wire(layout, true, rows, &list);
    fuzz_must(layout_from_wire(&list, &again, &err) == RDT_OK);
    fuzz_must(layout_same_shape(layout, again, &err) == RDT_OK);
    fuzz_must(memcmp(layout->offset, again->offset, layout->count * sizeof *layout->offset) == 0);
    fuzz_must(memcmp(layout->region, again->region, layout->count * sizeof *layout->region) == 0);
    fuzz_must(memcmp(layout->first_dim, again->first_dim, layout->count * sizeof *layout->first_dim) == 0);
    fuzz_must(memcmp(layout->strides, again->strides, layout->n_dims * sizeof *layout->strides) == 0);
    free(again);
}

static void look_at(const struct layout *layout)
{
    struct layout *packed = NULL;
    struct layout_rows rows;
    struct rdt_error err;
    enum rdt_status status;
    uint64_t bytes;

    fuzz_must(layout->count <= RDT_MAX_TENSORS);
    for (uint32_t i = 0; i < layout->count; i++) {
        uint64_t lo, hi;

        fuzz_must(layout->ndim[i] <= RDT_MAX_NDIM && layout->first_dim[i] + layout->ndim[i] <= layout->n_dims);
        status = layout_extent(layout, i, &lo, &hi, &err);
        if (status != RDT_OK) {
            fuzz_refused(status, &err);
            continue;
        }
        fuzz_must(lo <= hi && hi <= INT64_MAX);
        fuzz_must((layout_elems(layout, i) == 0) == (lo == hi));
        if (layout_is_contiguous(layout, i))
            fuzz_must(hi - lo == layout_bytes(layout, i));
        move(layout, i, lo, hi);
    }
    status = layout_packed(layout, &packed, &bytes, &err);
    if (status == RDT_OK) {
        fuzz_must(layout_same_shape(layout, packed, &err) == RDT_OK);
        for (uint32_t i = 0; i < packed->count; i++)
            fuzz_must(layout_is_contiguous(packed, i) && packed->offset[i] % LAYOUT_ALIGN_BYTES == 0);
        free(packed);
    } else {
        fuzz_refused(status, &err);
    }
    there_and_back(layout, NULL);
    there_and_back(layout, &rows);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    size_t list_bytes = fuzz_take(&at, end, 2);
    struct layout *layout = NULL, *view = NULL;
    Rdt__Pb__TensorList *list;
    Rdt__Pb__Slice *slice;
    struct arena arena;
    struct rdt_error err;
    enum rdt_status status;

    random_state = (uint32_t)bytes;
    if (list_bytes > (size_t)(end - at))
        list_bytes = (size_t)(end - at);
    arena_init(&arena, 4u << 20);
    list = rdt__pb__tensor_list__unpack(&arena.allocator, list_bytes, at);
    slice = rdt__pb__slice__unpack(&arena.allocator, (size_t)(end - at) - list_bytes, at + list_bytes);
    fuzz_must(arena.used_bytes <= arena.max_bytes);
    if (list) {
        status = layout_from_wire(list, &layout, &err);
        if (status != RDT_OK)
            fuzz_refused(status, &err);
    }
    if (layout)
        look_at(layout);
    if (layout && slice) {
        status = layout_slice(layout, slice, &view, &err);
        if (status == RDT_OK)
            look_at(view);
        else
            fuzz_refused(status, &err);
        free(view);
    }
    free(layout);
    arena_fini(&arena);
    return 0;
}
