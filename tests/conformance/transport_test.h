/* What the transport tests share: which plug-ins they run over, one node in this process, and its peers.
 *
 * A test runs over $RDT_BACKEND_SO, or over ucx, stream and loopback of $RDT_BUILD_DIR. One that needs operations that the
 * plug-in does not have passes without them.
 */
#ifndef TESTS_CONFORMANCE_TRANSPORT_TEST_H
#define TESTS_CONFORMANCE_TRANSPORT_TEST_H

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/backend_peer.h"

#define SOON_MS 2000   /* for what should be immediate */
#define LATER_MS 20000 /* for what may take as long as its bytes */
#define MIB ((uint64_t)1 << 20)

struct plugin {
    char so[240];
    char config[120]; /* as RDT_BACKEND_CONFIG */
};

static struct criterion_test_params plugins(void)
{
    static const struct {
        const char *so, *config;
    } ours[] = {
        {"backends/rdt_ucx.so", ""},
        {"tests/rdt_loopback.so", ""},
        {"backends/rdt_stream.so", ""}, /* bare: the network is trusted */
        {"backends/rdt_stream.so", "encrypt=always"},
        /* Chunks overtake each other, and connections are replaced all the time. */
        {"backends/rdt_stream.so", "encrypt=always,threads=3,connections=3,rekey_bytes=1048576"},
    };
    const char *given = getenv("RDT_BACKEND_SO"), *build = getenv("RDT_BUILD_DIR");
    size_t n = given ? 1 : sizeof ours / sizeof *ours;
    struct plugin *all = cr_malloc(n * sizeof *all);

    if (!build)
        build = "build/release";
    memset(all, 0, n * sizeof *all);
    if (given)
        (void)snprintf(all->so, sizeof all->so, "%s", given);
    for (size_t i = 0; i < n && !given; i++) {
        (void)snprintf(all[i].so, sizeof all->so, "%s/%s", build, ours[i].so);
        (void)snprintf(all[i].config, sizeof all->config, "%s", ours[i].config);
    }
    return cr_make_param_array(struct plugin, all, n, NULL);
}

#define TRANSPORT_TEST(name)                     \
    ParameterizedTestParameters(transport, name) \
    {                                            \
        return plugins();                        \
    }                                            \
    ParameterizedTest(struct plugin *plugin, transport, name)

/* ---- one node and its peers ---- */

static struct backend_host host;
static struct rdt_error err;

static void configure(const struct plugin *plugin) /* of the peers too */
{
    if (*plugin->config)
        (void)setenv("RDT_BACKEND_CONFIG", plugin->config, 1);
}

static void load(const struct plugin *plugin)
{
    configure(plugin);
    cr_assert_eq(backend_host_load(&host, plugin->so, &err), RDT_OK, "%s", err.msg);
    cr_assert_not_null(host.ops, "%s has no transport", plugin->so);
}

/* False: the plug-in is one-sided. */
static bool two_sided(const struct plugin *plugin, struct backend_peer *peers, unsigned n)
{
    configure(plugin);
    for (unsigned i = 0; i < n; i++)
        cr_assert(backend_peer_start(&peers[i], plugin->so));
    load(plugin);
    if (!host.ops->post_send) {
        for (unsigned i = 0; i < n; i++)
            backend_peer_kill(&peers[i]);
        return false;
    }
    cr_assert_eq(backend_host_open(&host, NULL, &err), RDT_OK, "%s", err.msg);
    return true;
}

static void join(struct host_conn *conn, struct backend_peer *peer)
{
    cr_assert_eq(host_conn_create(&host, conn, &err), RDT_OK, "%s", err.msg);
    cr_assert(backend_peer_join(peer, conn));
}

static void leave(struct host_conn *conn)
{
    cr_assert(host_conn_disconnect(conn, LATER_MS), "conn_closed did not come");
    cr_assert_eq(conn->n_closed, 1);
    cr_assert_leq(conn->n_failed, 1);
    cr_assert_eq(conn->open_at_close, 0, "%u operations had not ended when conn_closed came", conn->open_at_close);
    host_conn_destroy(conn);
}

static void finish(void)
{
    backend_host_close(&host);
    cr_assert_eq(host.n_errors, 0, "the plug-in logged errors");
}

static void post_recv(struct host_conn *conn, struct host_op *op, uint64_t transfer, uint64_t chunk, void *addr, uint64_t bytes)
{
    host_op_fill(op, transfer, chunk, addr, bytes);
    cr_assert_eq(host_op_post(conn, op, POST_RECV, &err), RDT_OK, "%s", err.msg);
}

static void post_send(struct host_conn *conn, struct host_op *op, uint64_t transfer, uint64_t chunk, void *addr, uint64_t bytes)
{
    host_op_fill(op, transfer, chunk, addr, bytes);
    cr_assert_eq(host_op_post(conn, op, POST_SEND, &err), RDT_OK, "%s", err.msg);
}

/* One chunk from the peer to us, checked. */
static void receive(struct host_conn *conn, struct backend_peer *peer, uint64_t transfer, uint64_t bytes)
{
    struct guarded memory;
    struct host_op op;

    cr_assert(guarded_create(&memory, bytes));
    post_recv(conn, &op, transfer, 0, memory.addr, bytes);
    cr_assert(backend_peer_send(peer, transfer, 0, bytes, 7));
    cr_assert(host_op_wait(&op, LATER_MS), "a receive of %llu bytes did not end", (unsigned long long)bytes);
    cr_assert_eq(op.status, RDT_OK, "%llu bytes: %s: %s", (unsigned long long)bytes, rdt_status_name(op.status), op.msg);
    cr_assert(pattern_holds(memory.addr, bytes, 7), "%llu bytes came in wrong", (unsigned long long)bytes);
    cr_assert(guarded_margins_hold(&memory));
    cr_assert_eq(backend_peer_wait(peer, transfer, 0, 0, LATER_MS), RDT_OK);
    cr_assert_eq(op.n_done, 1);
    guarded_destroy(&memory);
}

#endif
