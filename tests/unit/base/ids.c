/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/ids: no id is given twice, and one owner's ids say nothing about another's. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/base/ids.h"

static struct accounts accounts;
static struct account *mine, *theirs;
static struct ids ids;

static void setup(void)
{
    accounts_init(&accounts);
    mine = account_get(&accounts, &(struct owner){.uid = 1});
    theirs = account_get(&accounts, &(struct owner){.uid = 2});
    ids_init(&ids, IDS_REGIONS, 3, IDS_FIRST);
}

static void end(void)
{
    account_unref(mine);
    account_unref(theirs);
    accounts_fini(&accounts);
}

TestSuite(ids, .init = setup, .fini = end);

Test(ids, permutation_is_undone)
{
    struct permutation permutation, wide;
    bool seen[64] = {false};

    permutation_init(&permutation, 3);
    permutation_init(&wide, 32);
    for (uint64_t i = 0; i < 64; i++) {
        uint64_t permuted = permutation_of(&permutation, i);
        cr_assert(permuted < 64 && !seen[permuted]);
        seen[permuted] = true;
        cr_assert_eq(permutation_back(&permutation, permuted), i);
        cr_assert_eq(permutation_back(&wide, permutation_of(&wide, i << 50 | i)), i << 50 | i);
    }
}

Test(ids, of_one_owner_do_not_depend_on_what_others_do)
{
    uint64_t last = 0;

    ids_init(&ids, IDS_REGIONS, IDS_HALF_BITS, IDS_FIRST);
    for (unsigned i = 0; i < 10 * IDS_FIRST; i++) {
        uint64_t id = ids_next(&ids, mine);
        cr_assert(ids_was_begun(&ids, id));
        cr_assert(i % IDS_FIRST == 0 || id == last + 1, "a gap shows that somebody else has begun something");
        last = id;
        for (unsigned n = 0; n < i % 7; n++)
            (void)ids_next(&ids, theirs);
    }
}

static int by_number(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

    return (a > b) - (a < b);
}

static void no_two_are_equal(uint64_t *all, unsigned n)
{
    qsort(all, n, sizeof *all, by_number);
    cr_assert_gt(all[0], 0u);
    for (unsigned i = 1; i < n; i++)
        cr_assert_neq(all[i], all[i - 1]);
}

/* More than one span has, while owners come and go, and after each restart. */
Test(ids, none_is_given_twice)
{
    enum { N = 20000, STARTS = 4 };
    static uint64_t all[N];
    uint64_t next = 0;

    for (unsigned i = 0; i < N; i++) {
        if (i % (N / STARTS) == 0) {
            ids_init(&ids, IDS_REGIONS, 3, IDS_FIRST);
            for (unsigned k = i; k > 0 && k > i - 100; k--)
                ids_above(&ids, all[k - 1]); /* what the next daemon restores */
            ids_save(&ids, &next);
        }
        if (i % 3 == 0)
            mine->next_ids[IDS_REGIONS] = 0; /* the owner came again */
        all[i] = ids_next(&ids, i % 2 ? mine : theirs);
        cr_assert_lt(all[i], next, "a later daemon may give it again");
    }
    no_two_are_equal(all, N);
}

/* A record with an id that the header of the journal denies. */
Test(ids, new_ones_are_above_those_of_records)
{
    static uint64_t all[200];

    for (unsigned i = 0; i < 100; i++)
        all[i] = ids_next(&ids, i % 2 ? mine : theirs);
    ids_above(&ids, 5000);
    for (unsigned i = 100; i < 200; i++)
        cr_assert_gt(all[i] = ids_next(&ids, i % 2 ? mine : theirs), 5000u);
    no_two_are_equal(all, 200);
}
