/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/transfers/transfer_record: decisions that transfers share. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transfers/transfer_record.h"

TestSuite(record, .timeout = 60);

static struct transfers *transfers;

static const struct path_decision *decide(struct transfer_record *record, const struct path_query *query)
{
    cr_assert_eq(record_decide(transfers, record, query, NULL), RDT_OK);
    return record->decision;
}

static bool says(const struct path_decision *decision, const char *name, const char *reason)
{
    for (unsigned i = 0; i < decision->n; i++)
        if (strcmp(decision->candidates[i].name, name) == 0)
            return strcmp(decision->candidates[i].reason, reason) == 0;
    return false;
}

/* Equal queries get one decision. Their texts are compared by content, whatever memory they lie in. */
Test(record, one_decision_serves_all_who_ask_the_same)
{
    char show[300] = "its region holds secrets", cow[300] = "it is alive", same[300];
    struct path_query query = {
        .same_node = true, .transport = "", .least = "", .preferred = "", .local = {.show_why_not = show, .cow_why_not = cow}};
    struct transfer_record records[6] = {0};

    transfers = calloc(1, sizeof *transfers);
    const struct path_decision *first = decide(&records[0], &query);
    cr_assert(says(first, "local/share", "its region holds secrets") && says(first, "local/cow", "its region holds secrets"));
    memcpy(same, show, sizeof same);
    query.local.show_why_not = same;
    cr_assert_eq(decide(&records[1], &query), first);
    (void)snprintf(show, sizeof show, "its region is gone"); /* the first query's text lay here */
    cr_assert_eq(decide(&records[2], &query), first);
    query.local.show_why_not = show;
    const struct path_decision *second = decide(&records[3], &query);
    cr_assert(second != first && says(second, "local/share", "its region is gone"));
    cr_assert(says(records[2].decision, "local/share", "its region holds secrets"), "an earlier decision has changed");
    query.local.show_why_not = NULL;
    cr_assert(says(decide(&records[4], &query), "local/cow", "it is alive"));
    (void)snprintf(cow, sizeof cow, "it moves");
    cr_assert(says(decide(&records[5], &query), "local/cow", "it moves"));
    memset(show, 'x', sizeof show - 1); /* longer than the copy that is kept */
    query.local.show_why_not = show;
    (void)decide(&records[0], &query);
    show[250] = 'y';
    (void)decide(&records[1], &query);
    cr_assert_neq(records[0].decision, records[1].decision);
    for (unsigned i = 0; i < 6; i++)
        record_drop_decision(records[i].decision);
    record_drop_decision(transfers->decided.decision);
    free(transfers);
}
