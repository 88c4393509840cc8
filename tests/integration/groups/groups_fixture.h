/* SPDX-License-Identifier: Apache-2.0 */
/* Setup and checks of the tests of groups: nodes that only a group's transport connects. Only groups*.c and gloo.c include
 * this header. */
#ifndef TESTS_GROUPS_FIXTURE_H
#define TESTS_GROUPS_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cluster.h"

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)

static struct cluster c;
static const char *by;             /* the transport */
static rdt *actor_of[CLUSTER_MAX]; /* "a0" on node 0, "a1" on node 1, ... */

__attribute__((unused)) static const char *const rebuilt[] = {"is taken down and rebuilt: ", "is lost: ", "is down: ", NULL};

static void begin_groups(unsigned n, const char *transport, const struct cluster_options *options)
{
    by = transport;
    cluster_start(&c, n, options);
    for (unsigned i = 0; i < n; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "a%u", i);
        actor_of[i] = node_client(&c.node[i], name);
    }
}

static void end_groups(const char *const *declared)
{
    for (unsigned i = 0; i < c.n; i++)
        rdt_close(actor_of[i]);
    cluster_end(&c, declared);
}

/* Members a0 to a(n-1), each on its node. */
static enum rdt_status form(rdt *conn, const char *name, unsigned n, struct rdt_error *err)
{
    static const char *const names[] = {"a0", "a1", "a2", "a3"};
    struct rdt_member members[4] = {0};

    for (unsigned i = 0; i < n; i++)
        members[i] = (struct rdt_member){.client = names[i], .node = c.node[i].address};
    return rdt_group_create(conn, name, by, members, n, NULL, err);
}

/* false: the node knows no such group. */
static bool group_seen(rdt *conn, const char *name, struct rdt_group *group_p)
{
    struct rdt_group groups[32];
    size_t n = 0;

    must_ok(rdt_group_list(conn, groups, 32, &n, &err));
    for (size_t i = 0; i < n && i < 32; i++)
        if (strcmp(groups[i].name, name) == 0) {
            *group_p = groups[i];
            return true;
        }
    return false;
}

static bool group_is(rdt *conn, const char *name, const char *state, uint32_t epoch)
{
    struct rdt_group group;

    return group_seen(conn, name, &group) && strcmp(group.state, state) == 0 && (epoch == 0 || group.epoch == epoch);
}

static void await_group(unsigned node, const char *name, const char *state, uint32_t epoch)
{
    wait_until(20 * SEC, group_is(actor_of[node], name, state, epoch));
}

/* Ready, and not as it was first: a node that stood still believes that for a while. */
__attribute__((unused)) static void await_rebuilt(unsigned node, const char *name)
{
    struct rdt_group group;

    wait_until(20 * SEC, group_seen(actor_of[node], name, &group) && strcmp(group.state, "ready") == 0 && group.epoch > 1);
}

static enum rdt_status fetch_by(rdt *conn, const struct rdt_ref *ref, const char *transport, const char *group,
                                rdt_object **object_p, struct rdt_error *err)
{
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .transport = transport, .group = group, .timeout_ns = LONG};
    return rdt_fetch(conn, ref, 1, &options, object_p, err);
}

/* A put on one node, fetched on another within the group: the bytes are right. */
static void move(unsigned from, unsigned to, const char *group, size_t bytes)
{
    struct rdt_ref ref = put_pattern(actor_of[from], NULL, bytes, from * 7 + to);
    uint8_t *expected = malloc(bytes + 1);
    rdt_object *object;

    must(expected);
    fill_pattern(expected, bytes, from * 7 + to);
    must_ok(fetch_by(actor_of[to], &ref, by, group, &object, &err));
    must_go_by(by, object);
    must(memcmp(tensor_of(object, 0).data, expected, bytes) == 0);
    free(expected);
    rdt_release(object);
    must_ok(rdt_free(actor_of[from], &ref, false, &err));
}

__attribute__((unused)) static rdt_request *start_by(rdt *conn, const struct rdt_ref *ref, const char *group,
                                                     int64_t timeout_ns)
{
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .transport = by, .group = group, .timeout_ns = timeout_ns};
    rdt_request *request = start_as(conn, ref, &options);

    return request;
}

#endif
