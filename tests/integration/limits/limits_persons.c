/* SPDX-License-Identifier: Apache-2.0 */
/* One person with many subordinate user ids is one user where something is kept for others. */
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "tests/integration/limits/limits.h"

enum { MOST = 64, FIRST = 100000, OTHERS = 1001, LATER = 300000 };

static char subuid[300];
static struct raw raws[MOST + 8];

static void write_ranges(const char *text)
{
    FILE *file = fopen(subuid, "w");

    must(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* This process and its daemons see a file of the test as /etc/subuid. */
static void begin_with(const char *text)
{
    (void)snprintf(subuid, sizeof subuid, "%.200s/subuid", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    write_ranges(text);
    if (geteuid() != 0 || access("/etc/subuid", F_OK) != 0 || unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount(subuid, "/etc/subuid", NULL, MS_BIND, NULL) != 0)
        cr_skip_test("another /etc/subuid needs root, a mount namespace, and a file there");
    begin_alone((const char *[]){"--max-clients=64", "--log-level=info", NULL});
    must(chdir(node.dir) == 0);
}

/* Whether the daemon serves another client of this user. */
static bool is_served(struct raw *raw, unsigned uid)
{
    Rdt__Pb__Hello hello =
        MESSAGE(hello, .protocol_min = RDT_PROTOCOL_MIN, .protocol_max = RDT_PROTOCOL_MAX, .client_name = (char *)"many");
    bool served;

    must(seteuid(uid) == 0);
    raw_connect(raw, "s");
    must(seteuid(0) == 0);
    (void)raw_send(raw, RDT_MSG_HELLO, &hello.base, NULL, 0);
    must(raw_next(raw));
    served = !(raw->frame.flags & FRAME_ERROR);
    if (!served)
        raw_close(raw);
    return served;
}

/* What LIST says of the owner; UINT32_MAX: it has nothing here. */
static uint32_t person_of(unsigned uid)
{
    Rdt__Pb__List request = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_OWNERS);
    uint32_t person = UINT32_MAX;

    do {
        uint64_t id = raw_send(&watcher, RDT_MSG_LIST, &request.base, NULL, 0);
        Rdt__Pb__ListReply *page = (Rdt__Pb__ListReply *)raw_reply(&watcher, id, &rdt__pb__list_reply__descriptor);
        for (size_t i = 0; i < page->n_owners; i++)
            if (page->owners[i]->uid == uid)
                person = page->owners[i]->person;
        request.after = page->next;
        rdt__pb__list_reply__free_unpacked(page, NULL);
    } while (request.after != 0);
    return person;
}

Test(limits_persons, one_person_with_many_user_ids_leaves_clients_for_others)
{
    unsigned n = 0, more = 0;

    begin_with("4321:100000:65536\n");
    while (n < MOST && is_served(&raws[n], FIRST + n))
        n++;
    cr_assert_eq(n, MOST - MOST / 8 - 1, "the watcher is one of seven eighths");
    cr_assert_eq(person_of(FIRST), 4321u);
    cr_assert_not(is_served(&raws[n], 4321), "the user of the range is the same person");
    while (more < 2 && is_served(&raws[n + more], OTHERS))
        more++;
    cr_assert_eq(more, 2u, "another user has few");
    cr_assert_eq(person_of(OTHERS), 0u);
    for (unsigned i = 0; i < n + more; i++)
        raw_close(&raws[i]);
    raw_close(&watcher);
    node_end(&node, (const char *[]){"max_clients", NULL});
}

/* An engine gives its ids to users of different containers. */
Test(limits_persons, user_ids_of_a_container_engine_are_users_of_their_own)
{
    unsigned n = 0;

    begin_with("root:100000:65536\n");
    while (n < MOST - 1 && is_served(&raws[n], FIRST + n))
        n++;
    cr_assert_eq(n, MOST - 1, "each of them has few");
    cr_assert_eq(person_of(FIRST), 0u);
    for (unsigned i = 0; i < n; i++)
        raw_close(&raws[i]);
    raw_close(&watcher);
    node_end(&node, NULL);
}

Test(limits_persons, changed_ranges_count_after_a_reload)
{
    begin_with("4321:100000:65536\n");
    cr_assert(is_served(&raws[0], LATER));
    cr_assert_eq(person_of(LATER), 0u);
    write_ranges("4321:100000:65536\n4321:300000:10\n");
    must(kill(node.pid, SIGHUP) == 0);
    wait_until(LONG, node_log_has(&node, "has 2 ranges"));
    cr_assert(is_served(&raws[1], LATER + 1));
    cr_assert(is_served(&raws[2], LATER));
    cr_assert_eq(person_of(LATER + 1), 4321u);
    cr_assert_eq(person_of(LATER), 0u, "who has something here stays what they were");
    for (unsigned i = 0; i < 3; i++)
        raw_close(&raws[i]);
    wait_until(LONG, person_of(LATER) == UINT32_MAX);
    cr_assert(is_served(&raws[0], LATER));
    cr_assert_eq(person_of(LATER), 4321u);
    raw_close(&raws[0]);
    raw_close(&watcher);
    node_end(&node, NULL);
}
