/* SPDX-License-Identifier: Apache-2.0 */
/* A home of names: whom it gives a name, and whom it refuses. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/directory/names_impl.h"

TestSuite(names_home, .timeout = 60);

static const struct node here = {.uuid = {1}};
static struct directory_names all;
static struct peer a = {.uuid = {10}}, b = {.uuid = {20}};
static struct name_key key;

static void begin(void)
{
    static const struct owner owner = {.uid = 1000};

    all = (struct directory_names){.node = &here};
    map_init(&all.records);
    map_init(&all.claims);
    map_init(&all.seeks);
    list_init(&all.idle);
    name_key_make(&key, &owner, (const uint8_t *)"weights", 7);
}

static void end(void)
{
    names_home_close(&all);
    map_fini(&all.claims);
    map_fini(&all.seeks);
}

static enum rdt_status ask(struct peer *from, uint64_t epoch, uint64_t version, struct name_place *known_p)
{
    struct name_place claim = {.epoch = epoch, .version = version};

    memcpy(claim.node, from->uuid, sizeof claim.node);
    return names_home_register(&all, from, &key, &claim, known_p);
}

static void ends(const struct peer *from, uint64_t version)
{
    struct name_place claim = {.version = version};

    memcpy(claim.node, from->uuid, sizeof claim.node);
    names_home_end(&all, &key, &claim);
}

Test(names_home, the_first_has_it_and_the_second_learns_who, .init = begin, .fini = end)
{
    struct name_place known;

    cr_assert_eq(ask(&a, 0, 0, &known), RDT_OK);
    cr_assert_eq(known.epoch, 1);
    cr_assert_eq(names_home_seek(&all, &b, &key, &known), RDT_AGAIN, "a claim without a version can be read");
    cr_assert_eq(ask(&a, 1, 7, &known), RDT_OK);
    cr_assert_eq(ask(&b, 0, 0, &known), RDT_EXISTS);
    cr_assert_arr_eq(known.node, a.uuid, 16);
    cr_assert_eq(known.version, 7);
    cr_assert_eq(ask(&b, 1, 3, &known), RDT_EXISTS, "the same epoch takes the name over");
    cr_assert_eq(names_home_seek(&all, &b, &key, &known), RDT_OK);
    cr_assert_arr_eq(known.node, a.uuid, 16);
}

Test(names_home, a_name_that_has_ended_goes_on_above_its_last_version, .init = begin, .fini = end)
{
    struct name_place known;

    cr_assert_eq(ask(&a, 0, 7, &known), RDT_OK);
    ends(&b, 90); /* it never had the name */
    cr_assert_eq(ask(&b, 0, 0, &known), RDT_EXISTS);
    ends(&a, 9);
    cr_assert_eq(names_home_seek(&all, &b, &key, &known), RDT_AGAIN);
    cr_assert_eq(ask(&b, 0, 0, &known), RDT_OK);
    cr_assert_eq(known.epoch, 2);
    cr_assert_eq(known.version, 9);
    cr_assert_eq(ask(&a, 1, 12, &known), RDT_EXISTS, "the former owner is not fenced");
    ends(&b, 10);
    cr_assert_eq(ask(&a, 1, 12, &known), RDT_EXISTS, "an old epoch is accepted after the end of a newer one");
    cr_assert_eq(ask(&a, 0, 12, &known), RDT_OK);
    cr_assert_eq(known.epoch, 3);
}

/* A home that was restarted may have given the name to somebody else. */
Test(names_home, the_node_that_published_it_takes_it_back_from_one_that_has_not, .init = begin, .fini = end)
{
    struct name_place known;

    cr_assert_eq(ask(&b, 0, 0, &known), RDT_OK);
    cr_assert_eq(ask(&a, 0, 0, &known), RDT_EXISTS);
    cr_assert(!known.published);
    cr_assert_eq(ask(&a, 1, 7, &known), RDT_OK);
    cr_assert_eq(ask(&b, 1, 0, &known), RDT_EXISTS);
    cr_assert(memcmp(known.node, a.uuid, 16) == 0 && known.published && known.version == 7);
    cr_assert_eq(ask(&b, 1, 1, &known), RDT_EXISTS);
    ends(&a, 7);
    cr_assert_eq(ask(&b, 0, 0, &known), RDT_OK);
    cr_assert_eq(ask(&a, 0, 0, &known), RDT_EXISTS);
    cr_assert(!known.published, "the version is that of the first node");
}

Test(names_home, a_higher_epoch_takes_over, .init = begin, .fini = end)
{
    struct name_place known;

    cr_assert_eq(ask(&a, 0, 1, &known), RDT_OK);
    cr_assert_eq(ask(&b, 4, 2, &known), RDT_OK);
    cr_assert_eq(known.epoch, 4);
    cr_assert_eq(ask(&a, 1, 3, &known), RDT_EXISTS);
    cr_assert_arr_eq(known.node, b.uuid, 16);
}

Test(names_home, a_name_that_was_only_sought_is_forgotten, .init = begin, .fini = end)
{
    struct name_place known;
    uint64_t later = uv_hrtime() + UINT64_C(20000000000);

    cr_assert_eq(names_home_seek(&all, &b, &key, &known), RDT_AGAIN);
    names_home_tick(&all, uv_hrtime());
    cr_assert_eq(map_count(&all.records), 1, "a name that a node waits for is forgotten");
    for (unsigned i = 0; i < 2; i++) /* one of them may begin at the end of the table */
        names_home_tick(&all, later);
    cr_assert_eq(map_count(&all.records), 0, "a name that nobody seeks any more is kept");
    cr_assert(list_empty(&all.idle), "a name that is forgotten may still give way to another");
    cr_assert_eq(ask(&a, 0, 1, &known), RDT_OK);
    ends(&a, 1);
    for (unsigned i = 0; i < 2; i++)
        names_home_tick(&all, later);
    cr_assert_eq(map_count(&all.records), 1, "the epoch of a name that was published is lost");
}

Test(names_home, names_of_two_owners_are_two_names, .init = begin, .fini = end)
{
    static const struct owner other = {.uid = 1000, .tenant = "t"};
    struct name_place known;

    cr_assert_eq(ask(&a, 0, 1, &known), RDT_OK);
    name_key_make(&key, &other, (const uint8_t *)"weights", 7);
    cr_assert_eq(ask(&b, 0, 1, &known), RDT_OK);
}

Test(names_home, names_that_nobody_has_give_way, .init = begin, .fini = end)
{
    static const struct owner owner = {.uid = 1000};
    struct name_key wanted = key;
    struct name_place known;

    cr_assert_eq(ask(&a, 0, 1, &known), RDT_OK);
    for (uint32_t i = 0; i < NAMES_RECORDS_MAX; i++) { /* a reader that looks for names that never come */
        name_key_make(&key, &owner, (const uint8_t *)&i, sizeof i);
        cr_assert_eq(names_home_seek(&all, &b, &key, &known), RDT_AGAIN);
    }
    cr_assert_eq(map_count(&all.records), NAMES_RECORDS_MAX);
    name_key_make(&key, &owner, (const uint8_t *)"new", 3);
    cr_assert_eq(ask(&b, 0, 1, &known), RDT_OK);
    cr_assert_eq(names_home_seek(&all, &a, &key, &known), RDT_OK, "there was no room for a name that somebody has");
    cr_assert_eq(names_home_seek(&all, &a, &wanted, &known), RDT_OK, "a name that somebody has gave way");
}

Test(names_home, an_epoch_that_another_node_made_up_does_not_wrap, .init = begin, .fini = end)
{
    struct name_place known;

    cr_assert_eq(ask(&a, RDT_MAX_NUMBER, 1, &known), RDT_OK);
    ends(&a, 1);
    cr_assert_eq(ask(&b, 0, 1, &known), RDT_OK);
    cr_assert_leq(known.epoch, RDT_MAX_NUMBER, "other nodes refuse a message with such an epoch");
}
