/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for many objects and names of other nodes. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/rdt_many.h"
#include "proto/wire_ref.h"
#include "tests/support/cluster.h"
#include "tests/support/raw.h"

TestSuite(many_nodes, .timeout = 240);

#define NAMES 300u

static struct cluster c;

static const char *const link_warnings[] = {"is down: ",       "is lost: ",      "refused",
                                            "not connected",   "cannot connect", "timed out",
                                            "connection from", "unreachable",    "taken down and rebuilt",
                                            "reset",           "no answer",      NULL};

static struct rdt_ref name_ref(unsigned i)
{
    struct rdt_ref ref = {0};
    char name[64];

    (void)snprintf(name, sizeof name, "step-%u", i);
    must_ok(rdt_ref_from_name(name, 0, NULL, &ref, &err));
    return ref;
}

static void publish(rdt *conn, unsigned i)
{
    struct rdt_ref ref = put_pattern(conn, NULL, 64, i);
    char name[64];

    (void)snprintf(name, sizeof name, "step-%u", i);
    must_ok(rdt_publish(conn, name, &ref, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
}

static void unpublish(rdt *conn, unsigned i)
{
    struct rdt_ref ref = name_ref(i);

    must_ok(rdt_unpublish(conn, &ref, &err));
}

/* Every third name is on each of the first two nodes, and the others are nowhere. */
Test(many_nodes, exists_finds_names_on_every_node)
{
    static struct rdt_ref refs[NAMES + 2];
    static enum rdt_status statuses[NAMES + 2];
    struct rdt_ref remote;
    rdt *conn[3];

    cluster_start(&c, 3, &(struct cluster_options){.table = true});
    for (unsigned i = 0; i < 3; i++)
        conn[i] = node_client(&c.node[i], "asker");
    for (unsigned i = 0; i < NAMES; i++) {
        refs[i] = name_ref(i);
        if (i % 3 < 2)
            publish(conn[i % 3], i);
    }
    remote = put_pattern(conn[1], NULL, 64, 1);
    refs[NAMES] = remote;
    refs[NAMES + 1] = ref_on(&c.node[0], "missing");
    for (unsigned i = 0; i < 3; i++) {
        must_ok(rdt_exists(conn[i], refs, NAMES + 2, statuses, &err));
        for (unsigned k = 0; k < NAMES; k++)
            cr_assert_eq(statuses[k], k % 3 < 2 ? RDT_OK : RDT_NOT_PUT, "node %u, name %u: %s", i, k,
                         rdt_status_name(statuses[k]));
        cr_assert_eq(statuses[NAMES], RDT_OK);
        cr_assert_eq(statuses[NAMES + 1], RDT_NOT_PUT);
    }
    for (unsigned i = 0; i < NAMES; i++)
        if (i % 3 < 2)
            unpublish(conn[i % 3], i);
    must_ok(rdt_free(conn[1], &remote, false, &err));
    must_ok(rdt_exists(conn[0], refs, NAMES + 1, statuses, &err));
    for (unsigned k = 0; k < NAMES; k++)
        cr_assert_eq(statuses[k], RDT_NOT_PUT);
    cr_assert_eq(statuses[NAMES], RDT_FREED);
    for (unsigned i = 0; i < 3; i++)
        rdt_close(conn[i]);
    cluster_end(&c, link_warnings);
}

/* What another node would know is unknown, and the rest is not. */
Test(many_nodes, exists_says_whom_it_could_not_ask)
{
    struct rdt_ref refs[2];
    enum rdt_status statuses[2];
    rdt *conn;

    cluster_start(&c, 2, &(struct cluster_options){0});
    conn = node_client(&c.node[0], "asker");
    refs[0] = put_pattern(conn, "here", 64, 1);
    refs[1] = ref_on(&c.node[1], "there");
    node_kill(&c.node[1], SIGKILL);
    must_refuse(RDT_PEER_LOST, "", rdt_exists(conn, refs, 2, statuses, &err));
    cr_assert_eq(statuses[0], RDT_OK);
    cr_assert_eq(statuses[1], RDT_PEER_LOST);
    rdt_close(conn);
    cluster_restart(&c, 1);
    cluster_end(&c, link_warnings);
}

/* ---- a home that does not answer ---- */

#define SOUGHT 3000u

/* Its link stays up. */
static void begin_with_a_frozen_home(rdt **conn_p, struct raw *raw, struct rdt_ref *refs)
{
    static const char *const flags[] = {"--peer-timeout=1h", "--connect-timeout=1h", NULL};

    cluster_start(&c, 4, &(struct cluster_options){.table = true, .flags = flags});
    *conn_p = node_client(&c.node[0], "publisher");
    raw_connect(raw, c.node[0].socket);
    raw_hello(raw);
    for (unsigned i = 0; i < SOUGHT; i++)
        refs[i] = name_ref(i);
    for (unsigned i = 0; i < SOUGHT; i += 500)
        publish(*conn_p, i);
    node_freeze(&c.node[3]);
}

static void end_with_a_thawed_home(rdt *conn, struct raw *raw)
{
    node_thaw(&c.node[3]);
    for (unsigned i = 0; i < SOUGHT; i += 500)
        unpublish(conn, i);
    raw_close(raw);
    rdt_close(conn);
    cluster_end(&c, link_warnings);
}

/* The time is over for those that the home would know, and the others are answered. */
Test(many_nodes, exists_beside_a_silent_home_says_what_is_known)
{
    static struct rdt_ref refs[SOUGHT];
    Rdt__Pb__Exists request = MESSAGE(exists, .timeout_ns = patience(500 * MSEC));
    Rdt__Pb__ExistsReply *reply;
    unsigned unknown = 0;
    struct arena arena;
    struct raw raw;
    rdt *conn;

    begin_with_a_frozen_home(&conn, &raw, refs);
    arena_init(&arena, SIZE_MAX / 2);
    must_ok(ref_list_make(&arena, refs, NULL, SOUGHT, &request.refs, &err));
    reply = (Rdt__Pb__ExistsReply *)raw_reply(&raw, raw_send(&raw, RDT_MSG_EXISTS, &request.base, NULL, 0),
                                              &rdt__pb__exists_reply__descriptor);
    arena_fini(&arena);
    cr_assert_eq(reply->n_status, SOUGHT);
    for (unsigned i = 0; i < SOUGHT; i++) {
        if (i % 500 == 0)
            cr_assert_eq(reply->status[i], RDT_OK);
        else
            cr_assert(reply->status[i] == RDT_NOT_PUT || reply->status[i] == RDT_TIMED_OUT, "%d", reply->status[i]);
        unknown += reply->status[i] == RDT_TIMED_OUT;
    }
    cr_assert(unknown > 0 && strstr(reply->why, "the nodes that would know the name"), "%u unknown: %s", unknown, reply->why);
    rdt__pb__exists_reply__free_unpacked(reply, NULL);
    end_with_a_thawed_home(conn, &raw);
}

static int ask_and_die(struct actor *self, void *arg)
{
    static enum rdt_status statuses[SOUGHT];
    rdt *conn = node_client(&c.node[0], "asker");

    actor_step(self);
    (void)rdt_exists(conn, arg, SOUGHT, statuses, NULL);
    return 0;
}

/* Each name whose homes are asked is a request that waits. */
Test(many_nodes, asker_that_is_killed_while_homes_are_asked_leaves_nothing)
{
    static struct rdt_ref refs[SOUGHT];
    uint64_t heap, waiters;
    struct actor asker;
    struct raw raw;
    rdt *conn;

    begin_with_a_frozen_home(&conn, &raw, refs);
    heap = raw_used(&raw, "heap");
    waiters = raw_used(&raw, "waiters");
    actor_start(&asker, ask_and_die, refs);
    actor_await(&asker);
    wait_until(LONG, raw_used(&raw, "waiters") > waiters + 100);
    cr_assert_gt(raw_used(&raw, "heap"), heap + 100 * sizeof(struct rdt_ref));
    actor_kill(&asker, SIGKILL);
    wait_until(LONG, raw_used(&raw, "waiters") == waiters && raw_used(&raw, "heap") == heap);
    end_with_a_thawed_home(conn, &raw);
}

/* ---- names ---- */

#define PUBLISHED 128u

static const char *names[PUBLISHED];
static char name_texts[PUBLISHED][32];

static void name_all(const char *word)
{
    for (unsigned i = 0; i < PUBLISHED; i++) {
        (void)snprintf(name_texts[i], sizeof name_texts[i], "%s-%u", word, i);
        names[i] = name_texts[i];
    }
}

static void must_exist(rdt *conn, enum rdt_status expected, unsigned but)
{
    struct rdt_ref refs[PUBLISHED];
    enum rdt_status statuses[PUBLISHED];

    for (unsigned i = 0; i < PUBLISHED; i++)
        must_ok(rdt_ref_from_name(names[i], 0, NULL, &refs[i], &err));
    must_ok(rdt_exists(conn, refs, PUBLISHED, statuses, &err));
    for (unsigned i = 0; i < PUBLISHED; i++)
        must_say(statuses[i] == expected || i == but, "%s: %s", names[i], rdt_status_name(statuses[i]));
}

Test(many_nodes, publish_many_is_all_or_nothing)
{
    struct rdt_ref refs[PUBLISHED], other;
    uint64_t versions[PUBLISHED];
    size_t n;
    rdt *conn[3];

    cluster_start(&c, 3, &(struct cluster_options){.table = true});
    for (unsigned i = 0; i < 3; i++)
        conn[i] = node_client(&c.node[i], "publisher");
    for (unsigned i = 0; i < PUBLISHED; i++)
        refs[i] = put_pattern(conn[0], NULL, 64, i);
    other = put_pattern(conn[1], NULL, 64, 1);
    name_all("layer");
    must_ok(rdt_publish(conn[1], names[77], &other, NULL, NULL, &err)); /* another node has one of them */
    must_refuse(RDT_EXISTS, names[77], rdt_publish_many(conn[0], names, refs, PUBLISHED, NULL, versions, &err));
    must_exist(conn[2], RDT_NOT_PUT, 77);
    must_ok(rdt_unpublish_prefix(conn[1], "layer-", &n, &err));
    cr_assert_eq(n, 1u);
    wait_until(LONG,
               rdt_publish_many(conn[0], names, refs, PUBLISHED, NULL, versions, NULL) == RDT_OK); /* the homes are told */
    for (unsigned i = 0; i < 3; i++)
        must_exist(conn[i], RDT_OK, PUBLISHED);
    must_refuse(RDT_UNSUPPORTED, "another node", rdt_publish_many(conn[1], names, refs, 2, NULL, NULL, &err));
    must_ok(rdt_unpublish_prefix(conn[0], "layer-", &n, &err));
    cr_assert_eq(n, PUBLISHED);
    must_ok(rdt_free_many(conn[0], refs, PUBLISHED, false, NULL, &err));
    must_refuse(RDT_FREED, "", rdt_free_many(conn[0], refs, 2, false, NULL, &err));
    for (unsigned i = 0; i < 3; i++)
        rdt_close(conn[i]);
    cluster_end(&c, link_warnings);
}

/* A home that does not answer is waited for once, and not for each name. */
Test(many_nodes, publish_many_waits_once_for_a_frozen_home)
{
    struct rdt_ref refs[PUBLISHED];
    int64_t since;
    rdt *conn;

    cluster_start(&c, 3, &(struct cluster_options){.table = true});
    conn = node_client(&c.node[0], "publisher");
    for (unsigned i = 0; i < PUBLISHED; i++)
        refs[i] = put_pattern(conn, NULL, 64, i);
    name_all("frozen");
    node_freeze(&c.node[2]);
    since = now_ns();
    must_ok(rdt_publish_many(conn, names, refs, PUBLISHED, NULL, NULL, &err));
    must_say(now_ns() - since < patience(30 * SEC), "it took %lld ns", (long long)(now_ns() - since));
    node_thaw(&c.node[2]);
    must_ok(rdt_unpublish_prefix(conn, "frozen-", NULL, &err));
    rdt_close(conn);
    cluster_end(&c, link_warnings);
}

static int publish_and_die(struct actor *self, void *arg)
{
    struct rdt_ref refs[PUBLISHED];
    rdt *conn = node_client(&c.node[0], "publisher");

    for (unsigned i = 0; i < PUBLISHED; i++)
        refs[i] = put_pattern(conn, NULL, 64, i);
    name_all("dying");
    actor_step(self);
    (void)rdt_publish_many(conn, names, refs, PUBLISHED, NULL, NULL, NULL);
    return 0;
}

Test(many_nodes, publisher_that_is_killed_while_homes_are_asked_leaves_nothing)
{
    struct actor publisher;
    rdt *conn;

    cluster_start(&c, 2, &(struct cluster_options){.table = true});
    node_freeze(&c.node[1]);
    actor_start(&publisher, publish_and_die, NULL);
    actor_await(&publisher);
    actor_kill(&publisher, SIGKILL);
    wait_until(LONG, node_now(&c.node[0]).clients == 0 && node_now(&c.node[0]).objects == 0);
    node_thaw(&c.node[1]);
    conn = node_client(&c.node[1], "reader");
    name_all("dying");
    must_exist(conn, RDT_NOT_PUT, PUBLISHED);
    rdt_close(conn);
    cluster_end(&c, link_warnings);
}
