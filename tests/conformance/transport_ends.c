/* SPDX-License-Identifier: Apache-2.0 */
/* How operations, connections and peers end, and that nothing is written afterwards. */
#include "tests/conformance/transport_check.h"

/* ---- cancel and disconnect ---- */

TRANSPORT_CHECK(cancel_of_an_unmatched_receive_ends_it)
{
    struct backend_peer peer;
    struct host_conn conn;
    static struct host_op ops[8];
    struct guarded memory;

    must(guarded_create(&memory, MIB));
    two_sided(&peer, 1);
    if (!host.ops->cancel)
        check_skip("it cannot abort");
    join(&conn, &peer);
    for (unsigned i = 0; i < 8; i++)
        post_recv(&conn, &ops[i], 1, i, memory.addr, MIB);
    for (unsigned i = 0; i < 8; i++)
        host_op_cancel(&ops[i]);
    for (unsigned i = 0; i < 8; i++) {
        must(host_op_wait(&ops[i], SOON_MS), "a cancelled receive goes on");
        must_eq(ops[i].status, RDT_CANCELLED);
        host_op_cancel(&ops[i]); /* the core may not have heard of its end yet */
    }
    must(backend_peer_send(&peer, 1, 0, MIB, 1)); /* too late */
    receive(&conn, &peer, 2, MIB);
    must(guarded_untouched(&memory));
    for (unsigned i = 0; i < 8; i++)
        must_eq(ops[i].n_done, 1);
    part(&conn, &peer);
    guarded_destroy(&memory);
}

TRANSPORT_CHECK(disconnect_ends_every_operation)
{
    enum { N = 16 };
    struct backend_peer peer;
    struct host_conn conn;
    static struct host_op recvs[N], sends[N];
    uint8_t *memory = calloc(N, 8 * MIB);

    must_not_null(memory);
    meet(&conn, &peer);
    for (unsigned i = 0; i < N; i++)
        post_recv(&conn, &recvs[i], 1, i, memory + i * 8 * MIB, 8 * MIB);
    must(backend_peer_send_many(&peer, 1, N / 2, 8 * MIB, 1)); /* half of them are on their way */
    for (unsigned i = 0; i < N; i++)
        post_send(&conn, &sends[i], 2, i, memory, 8 * MIB); /* for which the peer waits with nothing */
    leave(&conn);
    for (unsigned i = 0; i < N; i++) {
        must(host_op_ended(&recvs[i]) && host_op_ended(&sends[i]));
        must(recvs[i].status == RDT_OK || recvs[i].status == RDT_CANCELLED, "%s", rdt_status_name(recvs[i].status));
        must(sends[i].status == RDT_OK || sends[i].status == RDT_CANCELLED, "%s", rdt_status_name(sends[i].status));
        must_eq(recvs[i].n_done, 1);
        must_eq(sends[i].n_done, 1);
    }
    (void)backend_peer_stop(&peer);
    finish();
    free(memory);
}

TRANSPORT_CHECK(nothing_is_written_after_disconnect)
{
    enum { N = 32, ROUNDS = 5 };
    const uint64_t bytes = 4 * MIB;
    struct backend_peer peers[ROUNDS + 1], *bystander = &peers[ROUNDS];
    struct host_conn other;
    static struct host_op ops[N];
    uint8_t *memory = malloc(N * bytes);
    unsigned cancelled = 0;

    must_not_null(memory);
    two_sided(peers, ROUNDS + 1);
    join(&other, bystander);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct host_conn conn;
        uint64_t spoiled = 0;

        join(&conn, &peers[round]);
        for (unsigned i = 0; i < N; i++)
            post_recv(&conn, &ops[i], 1, i, memory + i * bytes, bytes);
        must(backend_peer_send_many(&peers[round], 1, N, bytes, 1));
        must(host_op_wait(&ops[round], LATER_MS)); /* the stream is in full flow */
        leave(&conn);
        memset(memory, CANARY, N * bytes);
        for (unsigned i = 0; i < N; i++)
            cancelled += ops[i].status == RDT_CANCELLED;
        /* When the peer has disconnected too, none of its bytes are in flight. When a bystander's bytes have arrived, our
         * end has read everything before them. */
        must(backend_peer_disconnect(&peers[round]));
        receive(&other, bystander, round, MIB);
        for (uint64_t i = 0; i < N * bytes; i++)
            spoiled += memory[i] != CANARY;
        must_eq(spoiled, 0, "%llu bytes landed after conn_closed", (unsigned long long)spoiled);
    }
    must_gt(cancelled, 0, "no disconnect came in time to prove anything");
    leave(&other);
    for (unsigned i = 0; i < ROUNDS + 1; i++)
        (void)backend_peer_stop(&peers[i]);
    finish();
    free(memory);
}

/* ---- peers that go away ---- */

TRANSPORT_CHECK(killed_peer_fails_its_connection_only)
{
    enum { N = 8 };
    const uint64_t bytes = 16 * MIB;
    struct backend_peer peers[2];
    struct host_conn conns[2];
    static struct host_op ops[N], sends[N];
    uint8_t *memory = malloc(N * bytes), *source = calloc(1, bytes);

    must(memory && source);
    two_sided(peers, 2);
    join(&conns[0], &peers[0]);
    join(&conns[1], &peers[1]);
    receive(&conns[1], &peers[1], 1, MIB);
    for (unsigned i = 0; i < N; i++)
        post_recv(&conns[0], &ops[i], 1, i, memory + i * bytes, bytes);
    for (unsigned i = 0; i < N; i++)
        must(backend_peer_recv(&peers[0], 2, i, bytes));
    for (unsigned i = 0; i < N; i++)
        post_send(&conns[0], &sends[i], 2, i, source, bytes);
    must(backend_peer_send_many(&peers[0], 1, N - 1, bytes, 1)); /* the last one waits for nothing */
    must(host_op_wait(&ops[0], LATER_MS));
    backend_peer_kill(&peers[0]);

    must(host_conn_wait_failed(&conns[0], SOON_MS), "the end of the peer was not noticed");
    receive(&conns[1], &peers[1], 2, 4 * MIB);
    leave(&conns[0]);
    for (unsigned i = 0; i < N; i++) {
        must_eq(ops[i].n_done, 1);
        must_eq(sends[i].n_done, 1);
    }
    must_neq(ops[N - 1].status, RDT_OK);
    receive(&conns[1], &peers[1], 3, MIB);
    must_eq(conns[1].n_failed, 0, "one peer's end cost another its connection: %s", conns[1].msg);
    leave(&conns[1]);
    must(backend_peer_stop(&peers[1]));
    finish();
    free(memory);
    free(source);
}

/* On as many connections at once as it gives: a send may be posted at any moment of an attempt to connect that fails. */
TRANSPORT_CHECK(absent_peer_fails_or_waits)
{
    enum { CONNS = 64 };
    struct backend_peer peer;
    struct host_conn conns[CONNS];
    struct host_op ops[CONNS];
    uint8_t blob[RDT_OFFER_MAX_BYTES];
    uint8_t byte = 0;
    size_t bytes;
    unsigned n;

    two_sided(&peer, 1);
    must(backend_peer_offer(&peer, blob, &bytes));
    backend_peer_kill(&peer);
    for (n = 0; n < CONNS && host_conn_create(&host, &conns[n], &err) == RDT_OK; n++)
        continue;
    must_neq(n, 0u, "%s", err.msg);
    for (unsigned i = 0; i < n; i++) {
        must_eq(host.ops->connect(conns[i].handle, blob, bytes, &err), RDT_OK);
        post_send(&conns[i], &ops[i], 1, 0, &byte, 1);
    }
    for (unsigned i = 0; i < n; i++)
        must(host_conn_wait_failed(&conns[i], LATER_MS), "nobody listens, and connection %u of %u does not say so", i, n);
    for (unsigned i = 0; i < n; i++) {
        leave(&conns[i]);
        must_neq(ops[i].status, RDT_OK);
    }
    finish();
}

TRANSPORT_CHECK(connections_leave_no_descriptors)
{
    enum { WARM_UP = 3, CYCLES = 20 };
    struct backend_host other;
    unsigned before = 0, after = 0;

    load();
    if (!host.ops->post_send)
        check_skip("it is not two-sided");
    must_eq(backend_host_open(&host, NULL, &err), RDT_OK, "%s", err.msg);
    must_eq(backend_host_load(&other, check_so, &err), RDT_OK);
    must_eq(backend_host_open(&other, NULL, &err), RDT_OK, "two instances in one process: %s", err.msg);
    for (unsigned i = 0; i < WARM_UP + CYCLES; i++) {
        struct host_conn a, b;
        struct host_op send, recv;
        uint8_t from[100] = {1}, to[100];

        must_eq(host_conn_create(&host, &a, &err), RDT_OK);
        must_eq(host_conn_create(&other, &b, &err), RDT_OK);
        must_eq(host_conn_join(&a, &b, &err), RDT_OK, "%s", err.msg);
        post_recv(&b, &recv, i, 0, to, sizeof to);
        post_send(&a, &send, i, 0, from, sizeof from);
        must(host_op_wait(&recv, LATER_MS) && host_op_wait(&send, LATER_MS));
        must_eq(recv.status, RDT_OK);
        leave(&a);
        leave(&b);
        if (i == WARM_UP - 1)
            before = count_fds();
    }
    after = count_fds();
    must_leq(after, before + 2, "%u descriptors after %d connections, %u before", after, CYCLES, before);
    backend_host_close(&other);
    finish();
}

/* Nobody waits for anything before the end: each round cuts another moment of connecting and moving, from one end or
 * both. */
TRANSPORT_CHECK(disconnect_at_any_moment_is_survived)
{
    enum { ROUNDS = 60, N = 4 };
    const uint64_t bytes = 2 * MIB;
    struct backend_host other;
    uint8_t *from = calloc(1, bytes), *to = malloc(N * bytes);
    static struct host_op sends[N], recvs[N];

    must(from && to);
    load();
    if (!host.ops->post_send)
        check_skip("it is not two-sided");
    must_eq(backend_host_open(&host, NULL, &err), RDT_OK, "%s", err.msg);
    must_eq(backend_host_load(&other, check_so, &err), RDT_OK);
    must_eq(backend_host_open(&other, NULL, &err), RDT_OK, "%s", err.msg);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct host_conn a, b;

        must_eq(host_conn_create(&host, &a, &err), RDT_OK);
        must_eq(host_conn_create(&other, &b, &err), RDT_OK);
        must_eq(host_conn_join(&a, &b, &err), RDT_OK, "%s", err.msg);
        for (unsigned i = 0; i < N; i++) {
            post_recv(&b, &recvs[i], 1, i, to + i * bytes, bytes);
            post_send(&a, &sends[i], 1, i, from, bytes);
        }
        for (volatile unsigned spin = 0; spin < round * round * 1000; spin++)
            ;
        if (round % 3 == 1)
            leave(&a);
        leave(&b);
        if (round % 3 != 1)
            leave(&a);
        for (unsigned i = 0; i < N; i++) {
            must_eq(sends[i].n_done, 1);
            must_eq(recvs[i].n_done, 1);
        }
    }
    backend_host_close(&other);
    finish();
    free(from);
    free(to);
}
