/* SPDX-License-Identifier: Apache-2.0 */
/* What the checks of a transport share: one node in this process, and its peers. A check that needs an
 * operation which the plug-in does not have is skipped.
 */
#ifndef TESTS_CONFORMANCE_TRANSPORT_CHECK_H
#define TESTS_CONFORMANCE_TRANSPORT_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/check.h"
#include "tests/support/backend_peer.h"

#define MOMENT_MS 2000 /* in which something wrong would show */
#define SOON_MS 10000  /* for what should be immediate, on a busy machine */
#define LATER_MS 60000 /* for what may take as long as its bytes; on a machine with twenty busy processes 64 MiB take 25 s */
#define MIB ((uint64_t)1 << 20)

#define TRANSPORT_CHECK(name) CHECK(transport, name)

/* ---- one node and its peers ---- */

static struct backend_host host;
static struct rdt_error err;

static inline void load(void)
{
    must_eq(backend_host_load(&host, check_so, &err), RDT_OK, "%s", err.msg);
    if (!host.ops)
        check_skip("it has no transport");
    if (host.ops->group_create && !host.ops->connection_create)
        check_skip("it moves bytes within groups only: see the checks of groups");
    must(host.ops->open && host.ops->close && host.ops->connection_create && host.ops->connection_destroy && host.ops->offer &&
             host.ops->connect && host.ops->sides && host.ops->disconnect,
         "the transport's table lacks one of open, close, connection_create, connection_destroy, offer, connect, sides, "
         "disconnect");
}

static inline void open_loaded(void)
{
    enum rdt_status status = backend_host_open(&host, NULL, &err);

    if (status == RDT_UNSUPPORTED)
        check_skip("it is not available here: %s", err.msg);
    must_eq(status, RDT_OK, "open fails: %s", err.msg);
}

static inline void open_one(void)
{
    load();
    open_loaded();
}

/* Peers first: a fork copies no thread. */
static inline void two_sided(struct backend_peer *peers, unsigned n)
{
    load();
    if (!host.ops->post_send)
        check_skip("it is not two-sided");
    for (unsigned i = 0; i < n; i++)
        must(backend_peer_start(&peers[i], check_so));
    open_loaded();
}

static inline void join(struct host_conn *conn, struct backend_peer *peer)
{
    must_eq(host_conn_create(&host, conn, &err), RDT_OK, "%s", err.msg);
    must(backend_peer_join(peer, conn));
}

static inline void leave(struct host_conn *conn)
{
    must(host_conn_disconnect(conn, LATER_MS), "conn_closed did not come");
    must_eq(conn->n_closed, 1);
    must_leq(conn->n_failed, 1);
    must_eq(conn->open_at_close, 0, "%u operations had not ended when conn_closed came", conn->open_at_close);
    host_conn_destroy(conn);
}

static inline void finish(void)
{
    backend_host_close(&host);
    must_eq(host.n_closed_twice, 0, "conn_closed came twice");
    must_eq(host.n_errors, 0, "the plug-in logged errors");
}

/* A connection to one peer, from the load to the end. */
static inline void meet(struct host_conn *conn, struct backend_peer *peer)
{
    two_sided(peer, 1);
    join(conn, peer);
}

static inline void part(struct host_conn *conn, struct backend_peer *peer)
{
    leave(conn);
    must(backend_peer_stop(peer), "the peer did not end well");
    finish();
}

static inline void post_recv(struct host_conn *conn, struct host_op *op, uint64_t transfer, uint64_t chunk, void *addr,
                             uint64_t bytes)
{
    host_op_fill(op, transfer, chunk, addr, bytes);
    must_eq(host_op_post(conn, op, POST_RECV, &err), RDT_OK, "%s", err.msg);
}

static inline void post_send(struct host_conn *conn, struct host_op *op, uint64_t transfer, uint64_t chunk, void *addr,
                             uint64_t bytes)
{
    host_op_fill(op, transfer, chunk, addr, bytes);
    must_eq(host_op_post(conn, op, POST_SEND, &err), RDT_OK, "%s", err.msg);
}

/* One chunk from the peer to us, checked. */
static inline void receive(struct host_conn *conn, struct backend_peer *peer, uint64_t transfer, uint64_t bytes)
{
    struct guarded memory;
    struct host_op op;

    must(guarded_create(&memory, bytes));
    post_recv(conn, &op, transfer, 0, memory.addr, bytes);
    must(backend_peer_send(peer, transfer, 0, bytes, 7));
    must(host_op_wait(&op, LATER_MS), "a receive of %llu bytes did not end", (unsigned long long)bytes);
    must_eq(op.status, RDT_OK, "%llu bytes: %s: %s", (unsigned long long)bytes, rdt_status_name(op.status), op.msg);
    must(pattern_holds(memory.addr, bytes, 7), "%llu bytes came in wrong", (unsigned long long)bytes);
    must(guarded_margins_hold(&memory));
    must_eq(backend_peer_wait(peer, transfer, 0, 0, LATER_MS), RDT_OK);
    must_eq(op.n_done, 1);
    guarded_destroy(&memory);
}

#endif
