/* SPDX-License-Identifier: Apache-2.0 */
/* A node that is the only home of all names: it has no peers, and asks nobody. */
#ifndef TESTS_UNIT_DIRECTORY_ONLY_HOME_H
#define TESTS_UNIT_DIRECTORY_ONLY_HOME_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "daemon/directory/names_impl.h"
#include "daemon/peers/peer_impl.h"

static const struct owner owner = {.uid = 1000};
static struct options options;
static struct peers peers;
static struct names names;
static struct deadlines deadlines;
static struct directory_names all;
static uv_loop_t loop;

static inline bool check_requester(void *arg, const Rdt__Pb__Requester *requester, struct owner *owner_p, struct rdt_error *err)
{
    (void)arg;
    (void)err;
    *owner_p = (struct owner){.uid = requester->uid};
    return true;
}

static inline void only_home_begin(void)
{
    static const struct node here = {.uuid = {1}};

    options = (struct options){.names = (char *)"nodes", .nodes = (char *)"/nodes"};
    all = (struct directory_names){.options = &options,
                                   .node = &here,
                                   .peers = &peers,
                                   .names = &names,
                                   .deadlines = &deadlines,
                                   .check_requester = check_requester};
    list_init(&peers.all);
    map_init(&names.by_key);
    index_init(&names.published, 1);
    list_init(&names.observers);
    cr_assert_eq(uv_loop_init(&loop), 0);
    deadlines_init(&deadlines, &loop);
    directory_names_start(&all);
}

static inline void only_home_end(void)
{
    directory_names_close(&all);
    map_fini(&names.by_key);
    index_fini(&names.published);
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

#endif
