/* SPDX-License-Identifier: Apache-2.0 */
/* What a plug-in must survive: arguments at and beyond their limits, from the core and from a peer that
 * cannot be trusted.
 */
#include "tests/conformance/transport_check.h"

TRANSPORT_CHECK(unknown_memory_kinds_are_declined)
{
    static const char *const unknown[] = {"", "no such kind", "HOSTHOST", "%s%n"};
    struct host_conn conn;

    open_one();
    must_eq(host_conn_create(&host, &conn, &err), RDT_OK, "%s", err.msg);
    for (unsigned i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        void *registration = NULL;
        uint8_t page[4096];

        must_eq(host.ops->sides(conn.handle, unknown[i]), 0, "it moves memory of kind '%s'", unknown[i]);
        if (host.ops->register_memory &&
            host.ops->register_memory(host.transport, page, sizeof page, unknown[i], &registration, &err) == RDT_OK)
            host.ops->unregister_memory(host.transport, registration); /* it may accept what sides refuses */
    }
    host_conn_destroy(&conn);
    finish();
}

/* The core posts none, but an operation that a plug-in loses would delay those who wait for it. */
TRANSPORT_CHECK(zero_bytes_end_once)
{
    struct host_op recv, send;
    struct backend_peer peer;
    struct host_conn conn;
    uint8_t byte = CANARY;

    meet(&conn, &peer);
    host_op_fill(&recv, 1, 0, &byte, 0);
    if (host_op_post(&conn, &recv, POST_RECV, &err) == RDT_OK) {
        if (backend_peer_send(&peer, 1, 0, 0, 1))
            (void)host_op_wait(&recv, MOMENT_MS);
        must_eq(byte, CANARY, "a receive of no bytes wrote one");
    } else {
        recv.n_done = 1;
    }
    host_op_fill(&send, 2, 0, &byte, 0);
    if (host_op_post(&conn, &send, POST_SEND, &err) != RDT_OK)
        send.n_done = 1;
    if (conn.n_failed == 0)
        receive(&conn, &peer, 3, MIB); /* and the connection goes on */
    leave(&conn);
    must_eq(recv.n_done, 1, "a receive of no bytes ended %u times", recv.n_done);
    must_eq(send.n_done, 1, "a send of no bytes ended %u times", send.n_done);
    (void)backend_peer_stop(&peer);
    finish();
}

TRANSPORT_CHECK(cancel_of_what_has_ended_does_nothing)
{
    static struct host_op ops[16];
    struct backend_peer peer;
    struct host_conn conn;
    uint8_t *memory = malloc(16 * 1000);

    two_sided(&peer, 1);
    if (!host.ops->cancel)
        check_skip("it cannot abort");
    join(&conn, &peer);
    for (unsigned i = 0; i < 16; i++)
        post_recv(&conn, &ops[i], 1, i, memory + i * 1000, 1000);
    must(backend_peer_send_many(&peer, 1, 16, 1000, 1));
    for (unsigned i = 0; i < 16; i++) {
        host_op_cancel(&ops[i]); /* before, while and after it ends */
        must(host_op_wait(&ops[i], LATER_MS), "an operation that was cancelled as it ended does not end");
        host_op_cancel(&ops[i]);
        host_op_cancel(&ops[i]);
    }
    receive(&conn, &peer, 2, MIB);
    for (unsigned i = 0; i < 16; i++)
        must_eq(ops[i].n_done, 1, "an operation ended %u times", ops[i].n_done);
    part(&conn, &peer);
    free(memory);
}

TRANSPORT_CHECK(operations_never_end_inside_their_post)
{
    static struct host_op ops[64];
    struct backend_peer peer;
    struct host_conn conn;
    static uint8_t bytes[64][100];

    meet(&conn, &peer);
    for (unsigned i = 0; i < 64; i++) {
        must(backend_peer_recv(&peer, 1, i, 100));
        post_send(&conn, &ops[i], 1, i, bytes[i], 100);
        must_not(ops[i].ended_in_post, "op_done was called inside post_send");
    }
    for (unsigned i = 0; i < 64; i++)
        must(host_op_wait(&ops[i], LATER_MS), "send %u does not end", i);
    leave(&conn);
    (void)backend_peer_stop(&peer);
    finish();
}

/* One connection for each, because a plug-in may give up a connection on which it received nonsense. */
TRANSPORT_CHECK(garbage_for_an_offer_is_survived)
{
    uint8_t blob[RDT_OFFER_MAX_BYTES], garbage[RDT_OFFER_MAX_BYTES];
    uint64_t dice = 88172645463325252u;
    struct host_conn good, conn;
    size_t bytes;

    open_one();
    must_eq(host_conn_create(&host, &good, &err), RDT_OK, "%s", err.msg);
    must_eq(host.ops->offer(good.handle, blob, &bytes, &err), RDT_OK, "%s", err.msg);
    must(bytes > 0 && bytes <= RDT_OFFER_MAX_BYTES, "an offer of %zu bytes", bytes);
    for (unsigned round = 0; round < 60; round++) {
        size_t length = round < 20 ? bytes : 1 + (size_t)(dice % RDT_OFFER_MAX_BYTES);

        memcpy(garbage, blob, sizeof garbage);
        for (size_t i = 0; i < sizeof garbage; i++) {
            dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
            if (round >= 20 || (dice >> 32) % bytes < 3)
                garbage[i] = (uint8_t)dice;
        }
        must_eq(host_conn_create(&host, &conn, &err), RDT_OK, "%s", err.msg);
        (void)host.ops->connect(conn.handle, garbage, length, &err); /* whether it is refused now or fails later */
        leave(&conn);
    }
    must_eq(good.n_failed, 0, "garbage on one connection cost another: %s", good.msg);
    leave(&good);
    finish();
}

TRANSPORT_CHECK(second_offer_does_not_confuse_it)
{
    uint8_t first[RDT_OFFER_MAX_BYTES], second[RDT_OFFER_MAX_BYTES];
    struct backend_peer peer;
    struct host_conn conn;
    size_t bytes, again;

    two_sided(&peer, 1);
    must_eq(host_conn_create(&host, &conn, &err), RDT_OK, "%s", err.msg);
    must_eq(host.ops->offer(conn.handle, first, &bytes, &err), RDT_OK, "%s", err.msg);
    must_eq(host.ops->offer(conn.handle, second, &again, &err), RDT_OK, "%s", err.msg);
    must(backend_peer_offer(&peer, first, &bytes));
    must_eq(host.ops->connect(conn.handle, first, bytes, &err), RDT_OK, "%s", err.msg);
    must(backend_peer_connect(&peer, second, again));
    receive(&conn, &peer, 1, MIB);
    part(&conn, &peer);
}

TRANSPORT_CHECK(open_and_close_leave_nothing)
{
    unsigned before = 0;

    load();
    for (unsigned i = 0; i < 12; i++) {
        must_eq(backend_host_open(&host, NULL, &err), RDT_OK, "the open number %u fails: %s", i + 1, err.msg);
        host.ops->close(host.transport);
        host.transport = NULL;
        if (i == 2)
            before = count_fds();
    }
    must_leq(count_fds(), before + 2, "9 times of open and close left %u descriptors", count_fds() - before);
    finish();
}
