/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/map: compared with a model, with a million entries, and changed during an iteration. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/map.h"

struct item {
    char key[24];
    size_t key_bytes;
    bool there, seen;
};

Test(map, empty_finds_nothing)
{
    struct map map;
    size_t cursor = 0;
    map_init(&map);
    cr_assert_null(map_get(&map, "a", 1));
    cr_assert_null(map_get_u64(&map, 0));
    cr_assert_null(map_remove(&map, "a", 1));
    cr_assert_null(map_next(&map, &cursor));
    cr_assert_eq(map_count(&map), 0);
    map_fini(&map);
}

Test(map, keys_are_bytes)
{
    struct map map;
    map_init(&map);
    cr_assert(map_put(&map, "a\0b", 3, "first"));
    cr_assert(map_put(&map, "a\0c", 3, "second"));
    cr_assert(map_put(&map, "a", 1, "third"));
    cr_assert(map_put(&map, "", 0, "empty"));
    cr_assert_str_eq(map_get(&map, "a\0b", 3), "first");
    cr_assert_str_eq(map_get(&map, "a\0c", 3), "second");
    cr_assert_str_eq(map_get(&map, "a", 1), "third");
    cr_assert_str_eq(map_get(&map, "", 0), "empty");
    cr_assert_null(map_get(&map, "a\0", 2));
    map_fini(&map);
}

Test(map, numbers_of_every_size)
{
    struct map map;
    map_init(&map);
    static const uint64_t numbers[] = {0, 1, UINT32_MAX, UINT64_MAX, UINT64_C(1) << 63};
    for (size_t i = 0; i < 5; i++)
        cr_assert(map_put_u64(&map, numbers[i], (void *)&numbers[i]));
    for (size_t i = 0; i < 5; i++)
        cr_assert_eq(map_get_u64(&map, numbers[i]), &numbers[i]);
    cr_assert_eq(map_remove_u64(&map, 0), &numbers[0]);
    cr_assert_null(map_get_u64(&map, 0));
    cr_assert_eq(map_count(&map), 4);
    map_fini(&map);
}

/* 200,000 random moves among 5,000 keys: put, remove and get agree with an array. */
Test(map, replaced_value_brings_its_own_key)
{
    char first[] = "key", second[] = "key", value[2];
    struct map map;

    map_init(&map);
    cr_assert(map_put(&map, first, 3, &value[0]));
    map_replace(&map, second, 3, &value[1]);
    first[0] = 'x'; /* nobody looks there any more */
    cr_assert_eq(map_get(&map, "key", 3), &value[1]);
    cr_assert_eq(map_count(&map), 1u);
    cr_assert_eq(map_remove(&map, "key", 3), &value[1]);
    map_fini(&map);
}

Test(map, random_moves_match_model)
{
    enum { N = 5000 };
    struct item *items = calloc(N, sizeof(*items));
    struct map map;
    size_t count = 0;
    map_init(&map);
    srand(7);
    for (int i = 0; i < N; i++)
        items[i].key_bytes = (size_t)snprintf(items[i].key, sizeof items[i].key, "%0*d", i % 20 + 1, i);
    for (int move = 0; move < 200000; move++) {
        struct item *item = &items[rand() % N];
        cr_assert_eq(map_get(&map, item->key, item->key_bytes), item->there ? item : NULL);
        if (item->there) {
            cr_assert_eq(map_remove(&map, item->key, item->key_bytes), item);
            count--;
        } else {
            cr_assert(map_put(&map, item->key, item->key_bytes, item));
            count++;
        }
        item->there = !item->there;
        cr_assert_eq(map_count(&map), count);
    }
    size_t cursor = 0;
    for (struct item *item; (item = map_next(&map, &cursor)) != NULL; count--) {
        cr_assert(item->there && !item->seen);
        item->seen = true;
    }
    cr_assert_eq(count, 0);
    map_fini(&map);
    free(items);
}

Test(map, removing_while_iterating_misses_nothing)
{
    enum { N = 10000 };
    uint64_t *numbers = calloc(N, sizeof(*numbers));
    struct map map;
    map_init(&map);
    for (uint64_t i = 0; i < N; i++) {
        numbers[i] = i;
        cr_assert(map_put_u64(&map, i, &numbers[i]));
    }
    size_t cursor = 0, seen = 0;
    for (uint64_t *number; (number = map_next(&map, &cursor)) != NULL; seen++) {
        if (*number % 3 != 0)
            cr_assert_eq(map_remove_u64(&map, *number), number);
    }
    cr_assert_eq(seen, N);
    cr_assert_eq(map_count(&map), (N + 2) / 3);
    for (uint64_t i = 0; i < N; i++)
        cr_assert_eq(map_get_u64(&map, i), i % 3 == 0 ? &numbers[i] : NULL);
    map_fini(&map);
    free(numbers);
}

/* While a table moves into a larger one nothing is missing, and nothing is seen twice. */
Test(map, growing_goes_bit_by_bit)
{
    enum { N = 50000 };
    static unsigned char seen[N];
    static uint64_t numbers[N];
    struct map map;
    unsigned moving = 0;

    map_init(&map);
    for (uint64_t i = 0; i < N; i++) {
        size_t cursor = 0, before = map.moved;
        numbers[i] = i;
        cr_assert(map_put_u64(&map, i, &numbers[i]));
        if (!map.old)
            continue;
        cr_assert(map.moved <= before + 64, "%zu slots at once", map.moved - before);
        if (i % 7 == 0) { /* from either table */
            uint64_t gone = (i * 7919) % i;
            uint64_t *was = map_remove_u64(&map, gone);
            cr_assert(was == &numbers[gone]);
            cr_assert_null(map_get_u64(&map, gone));
            cr_assert(map_put_u64(&map, gone, &numbers[gone]));
        }
        if (moving++ % 50 != 0)
            continue;
        memset(seen, 0, sizeof seen);
        for (uint64_t *number; (number = map_next(&map, &cursor)) != NULL;)
            cr_assert_eq(seen[*number]++, 0);
        for (uint64_t k = 0; k <= i; k++)
            cr_assert(seen[k] && map_get_u64(&map, k) == &numbers[k]);
    }
    cr_assert_gt(moving, 100u);
    map_fini(&map);
}

Test(map, table_of_few_becomes_small_again)
{
    static uint64_t numbers[200000];
    struct map map;

    map_init(&map);
    for (uint64_t i = 0; i < 200000; i++)
        cr_assert(map_put_u64(&map, i, &numbers[i]));
    for (uint64_t i = 100; i < 200000; i++)
        cr_assert_eq(map_remove_u64(&map, i), &numbers[i]);
    for (uint64_t i = 100; i < 100000; i++) { /* a few come and go */
        cr_assert(map_put_u64(&map, i, &numbers[i]));
        cr_assert_eq(map_remove_u64(&map, i), &numbers[i]);
    }
    cr_assert_leq(map.n_slots + map.n_old, 2048u);
    for (uint64_t i = 0; i < 100; i++)
        cr_assert_eq(map_get_u64(&map, i), &numbers[i]);
    cr_assert_eq(map_count(&map), 100u);
    map_fini(&map);
}

/* Objects come and go for months: the table must not grow, nor its probes. */
Test(map, churn_does_not_grow)
{
    struct map map;
    int value;
    map_init(&map);
    for (uint64_t i = 0; i < 1000000; i++) {
        cr_assert(map_put_u64(&map, i, &value));
        if (i >= 100)
            cr_assert_eq(map_remove_u64(&map, i - 100), &value);
    }
    cr_assert_eq(map_count(&map), 100);
    cr_assert_leq(map.n_slots, 512);
    map_fini(&map);
}

Test(map, million_entries, .timeout = 60)
{
    struct map map;
    int value;
    map_init(&map);
    for (uint64_t i = 0; i < 1000000; i++)
        cr_assert(map_put_u64(&map, i << 32, &value));
    for (uint64_t i = 0; i < 1000000; i++)
        cr_assert_eq(map_get_u64(&map, i << 32), &value);
    cr_assert_null(map_get_u64(&map, 1));
    cr_assert_eq(map_count(&map), 1000000);
    map_fini(&map);
}

Test(map, seeds_differ)
{
    struct map a, b;
    map_init(&a);
    map_init(&b);
    cr_assert_neq(a.seed, b.seed);
    map_fini(&a);
    map_fini(&b);
}
