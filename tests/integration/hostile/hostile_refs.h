/* SPDX-License-Identifier: Apache-2.0 */
/* Setup of the tests of refs that name nodes: two nodes, an object "there" on the other one, and users who fetch it. */
#ifndef TESTS_INTEGRATION_HOSTILE_REFS_H
#define TESTS_INTEGRATION_HOSTILE_REFS_H

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/rdt_info.h"
#include "tests/integration/hostile/protocol_fixture.h"
#include "tests/support/cluster.h"

#define STRANGER 12345

static const char *const meant[] = {"(pid ", "node ", "connection from", NULL};
static struct test_node other;
static rdt *owner; /* a client there, with the object "there" */
static char other_address[65];
static struct rdt_error err;

static inline void put_there(void)
{
    owner = node_client(&other, "owner");
    char *addr = alloc_memory(owner, 4096);
    fill_pattern(addr, 4096, 7);
    (void)put_one(owner, &VECTOR(RDT_U8, 4096, addr), "there");
}

static inline void both_begin(const char *nodes_line, const char *const *flags)
{
    char nodes[128] = "";

    free_address(0, "127.0.0.1", other_address);
    if (nodes_line)
        (void)snprintf(nodes, sizeof nodes, "%s %s\n", nodes_line, other_address);
    node_start(&other, &(struct node_options){.name = "other", .listen = other_address, .awaited = nodes_line});
    put_there();
    begin(&(struct node_options){.listen = "127.0.0.1:0", .nodes = nodes_line ? nodes : NULL, .flags = flags});
}

static inline void both_end(void)
{
    others_are_well();
    rdt_close(owner);
    rdt_close(bystander);
    node.fds++; /* the link between them */
    other.fds++;
    node_end(&node, meant);
    node_end(&other, meant);
}

/* By the place alone: an address, or a name of the nodes file. */
static inline struct rdt_ref there(const char *place)
{
    struct rdt_ref ref = ref_named("there");

    (void)snprintf(ref.address, sizeof ref.address, "%s", place);
    return ref;
}

static inline rdt *client_of(uid_t uid, const char *name)
{
    must(seteuid(uid) == 0);
    rdt *conn = node_client(&node, name);
    must(seteuid(0) == 0);
    return conn;
}

static inline enum rdt_status fetch_status(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns)
{
    rdt_object *object;
    enum rdt_status status = try_fetch(conn, ref, RDT_FETCH_COPY, timeout_ns, &object, &err);

    if (status == RDT_OK)
        rdt_release(object);
    return status;
}

static inline void must_be_reached(const char *place)
{
    struct rdt_ref ref = there(place);

    must_say(fetch_status(bystander, &ref, LONG) == RDT_OK, "by %s: %s", place, err.msg);
}

#endif
