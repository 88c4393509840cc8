/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator of decoded messages: its limit, its alignment, and its end. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"
#include "proto/wire_limits.h"

Test(arena, gives_up_at_the_cap_and_goes_at_once)
{
    struct arena arena;
    size_t given = 0;

    arena_init(&arena, 1 << 20);
    for (void *p; (p = arena_alloc(&arena, 100)) != NULL; given += 100) {
        cr_assert_eq((uintptr_t)p % 16, 0);
        memset(p, 0xaa, 100);
    }
    cr_assert_leq(arena.used_bytes, 1 << 20);
    cr_assert_gt(given, (1 << 20) * 8 / 10);
    arena_fini(&arena);
    cr_assert_eq(arena.used_bytes, 0);
    cr_assert_not_null(arena_alloc(&arena, 1), "it can be used again");
    arena_fini(&arena);
}

Test(arena, odd_sizes_are_served_apart)
{
    uint8_t *given[200];
    size_t sizes[200];
    struct arena arena;

    srand(14);
    arena_init(&arena, 64 << 20);
    for (int i = 0; i < 200; i++) {
        sizes[i] = rand() % 10 ? (size_t)rand() % 200 : (size_t)rand() % 600000;
        given[i] = arena_alloc(&arena, sizes[i]);
        cr_assert_not_null(given[i]);
        memset(given[i], i, sizes[i]);
    }
    for (int i = 0; i < 200; i++) {
        for (size_t b = 0; b < sizes[i]; b++)
            cr_assert(given[i][b] == (uint8_t)i);
    }
    arena_fini(&arena);
}

Test(arena, absurd_sizes_are_refused)
{
    struct arena arena;

    arena_init(&arena, 1000);
    cr_assert_null(arena_alloc(&arena, SIZE_MAX));
    cr_assert_null(arena_alloc(&arena, 1001));
    cr_assert_not_null(arena_alloc(&arena, 0));
    arena_fini(&arena);
    arena_init(&arena, SIZE_MAX);
    cr_assert_null(arena_alloc(&arena, SIZE_MAX));
    cr_assert_null(arena_alloc(&arena, SIZE_MAX - 20));
    arena_fini(&arena);
    arena_init(&arena, 0);
    cr_assert_null(arena_alloc(&arena, 0));
    arena_fini(&arena);
}

/* Two bytes on the wire become a struct in memory: what decoding may cost is bounded, and nothing leaks. */
Test(arena, bomb_is_defused)
{
    size_t n = 100000;
    uint8_t *bytes = malloc(2 * n);
    struct arena arena;

    for (size_t i = 0; i < n; i++) {
        bytes[2 * i] = 1 << 3 | 2; /* FetchItem, of no bytes */
        bytes[2 * i + 1] = 0;
    }
    arena_init(&arena, 1 << 20);
    cr_assert_null(rdt__pb__fetch__unpack(&arena.allocator, 2 * n, bytes));
    arena_fini(&arena);
    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    cr_assert_not_null(rdt__pb__fetch__unpack(&arena.allocator, 2 * n, bytes));
    arena_fini(&arena);
    free(bytes);
}
