/* SPDX-License-Identifier: Apache-2.0 */
/* Valid offers and queries for path_choose. Each test changes what it is about. */
#ifndef TESTS_UNIT_PATH_H
#define TESTS_UNIT_PATH_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "daemon/transports/path.h"

#define SAME "1.2"

/* A transport that can do everything. */
static inline struct path_offer offer(const char *name, uint32_t speed)
{
    return (struct path_offer){.name = name,
                               .speed = speed,
                               .here_version = SAME,
                               .there_version = SAME,
                               .source.moves = true,
                               .target.moves = true,
                               .sides = RDT_ONE_SIDED | RDT_TWO_SIDED,
                               .connected = true};
}

static inline struct path_query remote_query(const struct path_offer *offers, unsigned n)
{
    return (struct path_query){.remote = {.source_memory = "host",
                                          .target_memory = "host",
                                          .source_contiguous = true,
                                          .offers = offers,
                                          .n_offers = n},
                               .transport = "",
                               .preferred = "",
                               .least = ""};
}

static inline struct path_query local_query(void)
{
    return (struct path_query){.same_node = true, .transport = "", .preferred = "", .least = ""};
}

static const struct path_candidate *find(const struct path_decision *decision, const char *name)
{
    for (unsigned i = 0; i < decision->n; i++)
        if (strcmp(decision->candidates[i].name, name) == 0)
            return &decision->candidates[i];
    cr_assert_fail("no candidate %s", name);
    return NULL;
}

/* The possible candidates come first, the best one first; each has a reason; the chosen one is the first. */
static inline void check_order(const struct path_decision *decision)
{
    for (unsigned i = 0; i < decision->n; i++) {
        const struct path_candidate *candidate = &decision->candidates[i];
        cr_assert(candidate->reason[0] != '\0' || decision->chosen < 0, "%s has no reason", candidate->name);
        if (i == 0)
            continue;
        bool possible = candidate->verdict == PATH_POSSIBLE, possible_before = candidate[-1].verdict == PATH_POSSIBLE;
        cr_assert(!possible || possible_before, "%s before %s", candidate[-1].name, candidate->name);
        if (possible == possible_before)
            cr_assert(candidate->speed <= candidate[-1].speed, "%s before %s", candidate[-1].name, candidate->name);
    }
    if (decision->chosen >= 0)
        cr_assert_eq(decision->chosen, 0);
}

#endif
