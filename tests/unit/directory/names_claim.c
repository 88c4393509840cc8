/* SPDX-License-Identifier: Apache-2.0 */
/* The names that are published on a node, where it is its own home. */
#include "tests/unit/directory/only_home.h"

TestSuite(names_claim, .init = only_home_begin, .fini = only_home_end, .timeout = 60);

#define N 1000u

static unsigned n_dirty(void)
{
    unsigned n = 0;

    list_for_each (node, &all.dirty)
        n++;
    return n;
}

static void on_decided(struct claim_waiter *waiter)
{
    (void)waiter;
    cr_assert(false, "the answer of the only home comes at once");
}

static void claim_names(void)
{
    static struct claim_waiter waiter = {.on_decided = on_decided};
    struct rdt_error err;

    for (unsigned i = 0; i < N; i++) {
        char id[16];
        size_t n = (size_t)snprintf(id, sizeof id, "name %u", i);

        cr_assert_eq(directory_names_claim(&all, &owner, (const uint8_t *)id, n, &waiter, &err), RDT_OK);
        cr_assert(directory_names_use(&all, &owner, (const uint8_t *)id, n));
    }
    cr_assert_eq(n_dirty(), 0);
}

static void pass(struct deadline *deadline)
{
    deadline_unset(&deadlines, deadline);
    deadline->on_passed(deadline);
}

Test(names_claim, homes_are_told_of_many_names_in_many_turns)
{
    unsigned turns = 0;

    claim_names();
    names_claims_tell_again(&all);
    for (; deadline_left_ns(&all.flush) >= 0; turns++)
        pass(&all.flush);
    cr_assert_geq(turns, 4, "more than 256 in one turn");
    names_claims_tick(&all, uv_hrtime());
    cr_assert_lt(deadline_left_ns(&all.flush), 0, "they were told a moment ago");
    names_claims_tell_again(&all);
    cr_assert_geq(deadline_left_ns(&all.flush), 0, "all were told before this");
}

/* Whatever a home says, this node can publish: the name, and those that are new here, which begin above it. */
Test(names_claim, floor_learned_from_a_home_leaves_versions_to_count_on_with)
{
    static struct claim_waiter waiter = {.on_decided = on_decided};
    struct name_place place = {.version = RDT_MAX_NUMBER}, known;
    struct name_key key;
    struct rdt_error err;

    name_key_make(&key, &owner, (const uint8_t *)"w", 1);
    cr_assert_eq(names_home_register(&all, NULL, &key, &place, &known), RDT_OK);
    cr_assert_eq(directory_names_claim(&all, &owner, (const uint8_t *)"w", 1, &waiter, &err), RDT_OK);
    cr_assert_eq(names_next_version(&names, &owner, (const uint8_t *)"w", 1), RDT_MAX_LEARNED + 1);
    cr_assert_eq(names_next_version(&names, &owner, (const uint8_t *)"other", 5), RDT_MAX_LEARNED + 1);
}

Test(names_claim, message_with_an_impossible_version_or_epoch_is_ignored)
{
    const struct {
        uint64_t version, epoch;
        unsigned n_records;
    } cases[] = {{RDT_MAX_NUMBER + 1, 1, 0}, {UINT64_C(1) << 61, 1, 0}, {UINT64_MAX, 1, 0}, {1, UINT64_MAX, 0}, {1, 1, 1}};
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    Rdt__Pb__Name name = RDT__PB__NAME__INIT;
    struct peer peer = {.peers = &peers};

    requester.uid = 1000;
    requester.tenant = (char *)"";
    name.owner = &requester;
    name.name = (ProtobufCBinaryData){1, (uint8_t *)"w"};
    name.address = (char *)"127.0.0.1:1";
    name.act = RDT__PB__NAME_ACT__NAME_ACT_REGISTER;
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct rdt_error err;

        name.version = cases[i].version;
        name.epoch = cases[i].epoch;
        cr_assert_eq(directory_names_on_message(&all, &peer, &name, &err), RDT_OK, "the link goes on");
        cr_assert_eq(map_count(&all.records), cases[i].n_records);
    }
}
