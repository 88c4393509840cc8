/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/objects/fair: one owner may have the whole list, and pushes out no other. */
#include <criterion/criterion.h>

#include "daemon/objects/fair.h"

enum { MAX = 8 };
static struct fair fair;
static struct fair_entry entries[64];
static const struct owner mine = {.uid = 1}, theirs = {.uid = 1, .tenant = "theirs"};

static void setup(void)
{
    fair_init(&fair, MAX);
}

static void end(void)
{
    for (unsigned i = 0; i < 64; i++)
        fair_remove(&fair, &entries[i]);
    cr_assert_eq(fair.n, 0u);
    cr_assert(list_empty(&fair.entries));
    cr_assert_eq(map_count(&fair.owners), 0u);
    fair_fini(&fair);
}

TestSuite(fair, .init = setup, .fini = end);

Test(fair, one_owner_may_have_all)
{
    for (unsigned i = 0; i < 3 * MAX; i++) {
        struct fair_entry *lost = fair_add(&fair, &entries[i], &mine);
        cr_assert_eq(lost, i < MAX ? NULL : &entries[i - MAX], "the oldest goes");
    }
    cr_assert_eq(fair.n, (unsigned)MAX);
}

Test(fair, many_entries_of_one_owner_push_out_no_other)
{
    (void)fair_add(&fair, &entries[0], &theirs);
    (void)fair_add(&fair, &entries[1], &theirs);
    for (unsigned i = 2; i < 64; i++)
        cr_assert_neq(fair_add(&fair, &entries[i], &mine), &entries[0]);
    cr_assert(entries[0].owner && entries[1].owner);
}

/* Whoever comes later gets room in what one owner has filled. */
Test(fair, full_list_has_room_for_others)
{
    for (unsigned i = 0; i < MAX; i++)
        (void)fair_add(&fair, &entries[i], &mine);
    cr_assert_eq(fair_add(&fair, &entries[MAX], &theirs), &entries[0]);
    for (unsigned i = MAX + 1; i < 40; i++)
        (void)fair_add(&fair, &entries[i], &mine);
    cr_assert(entries[MAX].owner);
}

Test(fair, removed_entries_leave_room)
{
    for (unsigned i = 0; i < MAX; i++)
        (void)fair_add(&fair, &entries[i], i % 2 ? &mine : &theirs);
    fair_remove(&fair, &entries[3]);
    fair_remove(&fair, &entries[3]);
    cr_assert_null(fair_add(&fair, &entries[3], &mine));
    cr_assert_eq(fair_add(&fair, &entries[MAX], &theirs), &entries[0]);
}
