/* SPDX-License-Identifier: Apache-2.0 */
/* Those who look for one name are told where it is, or that no home knows it, in slices of the loop. Nothing here measures
 * time: N of them need more than one slice on any machine. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/directory/names_impl.h"
#include "daemon/peers/peer_impl.h"

TestSuite(names_seek, .timeout = 60);

enum { N = 20000 };

static const struct owner owner = {.uid = 1000};
static struct options options;
static struct peers peers;
static struct names names;
static struct deadlines deadlines;
static struct directory_names all;
static uv_loop_t loop;
static struct name_key key;
static struct name_seeker seekers[N];
static unsigned n_found, n_missing;

static bool check_requester(void *arg, const Rdt__Pb__Requester *requester, struct owner *owner_p, struct rdt_error *err)
{
    return true;
}

static void on_found(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    cr_assert(!seeker->seek && node[0] == 9 && strcmp(address, "there:1") == 0);
    n_found++;
}

static void on_missing(struct name_seeker *seeker)
{
    n_missing++;
}

static void begin(void)
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
    name_key_make(&key, &owner, (const uint8_t *)"weights", 7);
    for (unsigned i = 0; i < N; i++) {
        seekers[i] = (struct name_seeker){.on_found = on_found, .on_missing = on_missing};
        cr_assert_eq(directory_names_seek(&all, &owner, (const uint8_t *)"weights", 7, &seekers[i], NULL), RDT_OK);
    }
    n_found = n_missing = 0;
}

static void end(void)
{
    directory_names_close(&all);
    map_fini(&names.by_key);
    index_fini(&names.published);
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

Test(names_seek, those_who_look_for_a_name_are_told_in_slices, .init = begin, .fini = end)
{
    const struct name_place there = {.node = {9}, .address = "there:1", .epoch = 1, .version = 1};
    const struct peer home = {.uuid = {1}};

    names_seek_missing(&all, &home, &key);
    cr_assert(n_missing > 0 && n_missing < N, "%u in one turn", n_missing);
    unsigned n_aware = n_missing;
    name_seeker_remove(&seekers[N - 1]); /* it leaves before it is told */
    names_seek_found(&all, &key, &there);
    cr_assert_lt(n_found, N - 1u, "%u in one turn", n_found);
    while (n_found < N - 1)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(n_missing, n_aware, "they know better by now");
    cr_assert(!seekers[N - 2].seek && list_empty(&all.telling.seeks));
}

Test(names_seek, end_of_the_daemon_leaves_nobody_in_a_list, .init = begin, .fini = end)
{
    const struct name_place there = {.node = {9}, .address = "there:1", .epoch = 1, .version = 1};

    names_seek_found(&all, &key, &there);
    cr_assert_lt(n_found, N);
}
