/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/index: lookups and iteration find exactly the entries that were inserted, in order. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/base/index.h"

TestSuite(index, .timeout = 60);

Test(index, empty_has_nothing)
{
    struct index index;
    uint64_t number = 7;

    index_init(&index, 100);
    cr_assert_null(index_get(&index, 0));
    cr_assert_null(index_get(&index, 100));
    cr_assert_null(index_next(&index, 0, &number));
    cr_assert_null(index_remove(&index, 100));
    cr_assert_eq(number, 7u);
    index_fini(&index);
}

Test(index, agrees_with_sorted_array_under_random_moves)
{
    enum { SPACE = 5000 };
    static char there[SPACE], values[SPACE];
    const uint64_t base = (0x7ffffull << 40) + 1;
    struct index index;
    size_t used = 0;

    srand(3);
    index_init(&index, base);
    for (unsigned round = 0; round < 40000; round++) {
        unsigned n = (unsigned)rand() % (round % 2000 < 1000 ? 60 : SPACE); /* dense, and sparse */
        if (there[n]) {
            cr_assert_eq(index_remove(&index, base + n), &values[n]);
            there[n] = 0;
            used--;
        } else {
            cr_assert(index_put(&index, base + n, &values[n]));
            there[n] = 1;
            used++;
        }
        cr_assert_eq(index.used, used);
        if (round % 100 == 0) {
            uint64_t number = 0;
            char *value = index_next(&index, 0, &number);
            for (unsigned i = 0; i < SPACE; i++) {
                cr_assert_eq(index_get(&index, base + i), there[i] ? &values[i] : NULL);
                if (!there[i])
                    continue;
                cr_assert_eq(number, base + i);
                cr_assert_eq(value, &values[i]);
                value = index_next(&index, number + 1, &number);
            }
            cr_assert_null(value);
        }
    }
    for (unsigned i = 0; i < SPACE; i++)
        cr_assert_eq(index_remove(&index, base + i) != NULL, there[i]);
    cr_assert_null(index.root, "an empty one has no memory");
    index_fini(&index);
}

Test(index, far_numbers_are_kept_apart)
{
    static const uint64_t numbers[] = {5, 6, 37, 1029, 1ull << 32, (1ull << 40) - 1, 1ull << 62, UINT64_MAX};
    static char values[8];
    struct index index;
    uint64_t number = 0;

    index_init(&index, 5);
    for (unsigned i = 8; i-- > 0;)
        cr_assert(index_put(&index, numbers[i], &values[i]));
    for (unsigned i = 0; i < 8; i++) {
        cr_expect_eq(index_get(&index, numbers[i]), &values[i]);
        cr_expect_eq(index_next(&index, i ? numbers[i - 1] + 1 : 0, &number), &values[i], "%u", i);
        cr_expect_eq(number, numbers[i]);
    }
    for (unsigned i = 0; i < 8; i++)
        cr_expect_eq(index_remove(&index, numbers[i]), &values[i]);
    cr_assert_null(index.root);
}

Test(index, pages_go_on_while_it_changes)
{
    static char value;
    struct index index;
    uint64_t number = 0, seen = 0;

    index_init(&index, 1);
    for (uint64_t i = 1; i <= 1000; i++)
        cr_assert(index_put(&index, i, &value));
    while (index_next(&index, number + 1, &number)) {
        cr_assert_gt(number, seen);
        seen = number;
        cr_assert_not_null(index_remove(&index, number)); /* where it stands, and after */
        (void)index_remove(&index, number + 3);
    }
    cr_assert_eq(index.used, 0u);
    index_fini(&index);
}
