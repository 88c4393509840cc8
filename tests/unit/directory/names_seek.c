/* SPDX-License-Identifier: Apache-2.0 */
/* Those who look for one name are told where it is, or that no home knows it, in slices of the loop. Nothing here measures
 * time: N of them need more than one slice on any machine. */
#include "tests/unit/directory/only_home.h"

enum { N = 20000 };

static struct name_key key;
static struct name_seeker seekers[N];
static unsigned n_found, n_missing;

static void on_found(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    cr_assert(!seeker->seek && node[0] == 9 && strcmp(address, "there:1") == 0);
    n_found++;
}

static void on_missing(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    n_missing++;
}

static void begin(void)
{
    only_home_begin();
    name_key_make(&key, &owner, (const uint8_t *)"weights", 7);
    for (unsigned i = 0; i < N; i++) {
        seekers[i] = (struct name_seeker){.on_found = on_found, .on_missing = on_missing};
        cr_assert_eq(directory_names_seek(&all, &owner, (const uint8_t *)"weights", 7, &seekers[i], NULL), RDT_OK);
    }
    n_found = n_missing = 0;
}

TestSuite(names_seek, .init = begin, .fini = only_home_end, .timeout = 60);

Test(names_seek, those_who_look_for_a_name_are_told_in_slices)
{
    const struct name_place there = {.node = {9}, .address = "there:1", .epoch = 1, .version = 1};
    const struct peer home = {.uuid = {1}};

    names_seek_missing(&all, &home, &key, &(struct name_place){0}, 0); /* an older one */
    cr_assert(n_missing > 0 && n_missing < N, "%u in one turn", n_missing);
    unsigned n_aware = n_missing;
    name_seeker_remove(&seekers[N - 1]); /* it leaves before it is told */
    names_seek_found(&all, &key, &there);
    cr_assert_lt(n_found, N - 1u, "%u in one turn", n_found);
    while (n_found < N - 1 || !list_empty(&all.telling.seeks)) /* A slice may end right after the last one was told. */
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(n_missing, n_aware, "they know better by now");
    cr_assert(!seekers[N - 2].seek);
}

Test(names_seek, end_of_the_daemon_leaves_nobody_in_a_list)
{
    const struct name_place there = {.node = {9}, .address = "there:1", .epoch = 1, .version = 1};

    names_seek_found(&all, &key, &there);
    cr_assert_lt(n_found, N);
}

static void tell_all(void)
{
    while (!list_empty(&all.telling.seeks))
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/* The home had the first question before the name was published, and the later ones after that. */
Test(names_seek, answer_to_an_earlier_question_says_nothing_to_who_came_later)
{
    const uint64_t last = all.telling.n_questions;
    const struct peer home = {.uuid = {1}};

    names_seek_missing(&all, &home, &key, &(struct name_place){0}, last - N + 1);
    tell_all();
    cr_assert_eq(n_missing, 1);
    names_seek_missing(&all, &home, &key, &(struct name_place){0}, last - 1); /* before the last one had asked */
    tell_all();
    cr_assert_eq(n_missing, 1);
    names_seek_missing(&all, &home, &key, &(struct name_place){0}, last);
    tell_all();
    cr_assert_eq(n_missing, 1 + N, "everybody still looks");
}

static void on_missing_leave(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    name_seeker_remove(seeker);
    n_missing++;
}

/* The answer ends what was remembered of the name. */
Test(names_seek, last_one_who_looks_leaves_when_it_is_told)
{
    struct name_seeker last = {.on_found = on_found, .on_missing = on_missing_leave};
    const struct peer home = {.uuid = {1}};
    struct name_key other;

    name_key_make(&other, &owner, (const uint8_t *)"biases", 6);
    cr_assert_eq(directory_names_seek(&all, &owner, (const uint8_t *)"biases", 6, &last, NULL), RDT_OK);
    names_seek_missing(&all, &home, &other, &(struct name_place){0}, 0);
    tell_all();
    cr_assert(n_missing == 1 && !last.seek);
}
