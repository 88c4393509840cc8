/* What every transport plug-in must do, whoever wrote it.
 *
 * Runs over $RDT_BACKEND_SO, or over ucx and loopback of $RDT_BUILD_DIR. This process is one node; peers are processes of their own.
 * A test that needs operations that the plug-in does not have passes without them. One-sided reads: transport_reads.c.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/backend_peer.h"

#define SOON_MS 2000  /* for what should be immediate */
#define LATER_MS 20000 /* for what may take as long as its bytes */
#define MIB ((uint64_t)1 << 20)

struct plugin {
    char so[240];
};

static struct criterion_test_params plugins(void)
{
    const char *given = getenv("RDT_BACKEND_SO"), *build = getenv("RDT_BUILD_DIR");
    struct plugin *all = cr_malloc(2 * sizeof *all);
    size_t n = 0;

    if (!build)
        build = "build/release";
    if (given) {
        (void)snprintf(all[n++].so, sizeof all->so, "%s", given);
    } else {
        (void)snprintf(all[n++].so, sizeof all->so, "%s/backends/rdt_ucx.so", build);
        (void)snprintf(all[n++].so, sizeof all->so, "%s/tests/rdt_loopback.so", build);
    }
    return cr_make_param_array(struct plugin, all, n, NULL);
}

#define TRANSPORT_TEST(name)                                                                                                     \
    ParameterizedTestParameters(transport, name)                                                                                 \
    {                                                                                                                            \
        return plugins();                                                                                                        \
    }                                                                                                                            \
    ParameterizedTest(struct plugin *plugin, transport, name)

/* ---- one node and its peers ---- */

static struct backend_host host;
static struct rdt_error err;

static void load(const struct plugin *plugin)
{
    cr_assert_eq(backend_host_load(&host, plugin->so, &err), RDT_OK, "%s", err.msg);
    cr_assert_not_null(host.ops, "%s has no transport", plugin->so);
}

/* False: the plug-in is one-sided. The peers start first: not every vendor's library survives a fork. */
static bool two_sided(const struct plugin *plugin, struct backend_peer *peers, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        cr_assert(backend_peer_start(&peers[i], plugin->so, NULL));
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

/* ---- the table ---- */

TRANSPORT_TEST(table_is_sound)
{
    const struct rdt_transport_ops *ops;

    load(plugin);
    ops = host.ops;
    cr_assert_eq(host.backend->abi_version, RDT_BACKEND_ABI);
    cr_assert_geq(host.backend->struct_size, offsetof(struct rdt_backend, transport) + sizeof(void *));
    cr_assert_not_null(host.backend->name);
    cr_assert_not_null(host.backend->version);
    cr_assert_geq(ops->struct_size, offsetof(struct rdt_transport_ops, version));
    cr_assert(ops->name && *ops->name);
    cr_assert(ops->memory_kinds && ops->memory_kinds[0], "it moves no memory kind");
    cr_assert(ops->open && ops->close && ops->connection_create && ops->connection_destroy && ops->offer && ops->connect &&
              ops->sides && ops->disconnect);
    cr_assert_eq(!ops->post_send, !ops->post_recv, "a send needs a receive");
    cr_assert_eq(!ops->post_read, !ops->pack_key, "a read needs a key");
    cr_assert(ops->post_send || ops->post_read, "it moves nothing");
    cr_assert(!ops->post_read || ops->register_memory, "a key needs a registration");
    cr_assert_eq(!ops->register_memory, !ops->unregister_memory);
    for (const struct rdt_config_key *key = host.backend->config_keys; key && key->name; key++)
        cr_assert(key->fallback && key->help, "key %s lacks a fallback or a help", key->name);
}

TRANSPORT_TEST(open_without_trust_says_what_to_do)
{
    const struct config_pair config[] = {{"trusted_network", "no"}, {NULL, NULL}};
    enum rdt_status status;

    load(plugin);
    status = backend_host_open(&host, config, &err);
    if (status == RDT_OK) {
        finish();
        return;
    }
    cr_assert_eq(status, RDT_UNSUPPORTED);
    cr_assert(strstr(err.msg, "trusted_network"), "'%s' does not name what is to be set", err.msg);
}

TRANSPORT_TEST(open_with_a_bad_value_names_the_key)
{
    load(plugin);
    for (const struct rdt_config_key *key = host.backend->config_keys; key && key->name; key++) {
        const struct config_pair config[] = {{key->name, "0x!"}, {NULL, NULL}};

        if (!*key->fallback || strspn(key->fallback, "0123456789") != strlen(key->fallback))
            continue;
        cr_assert_eq(backend_host_open(&host, config, &err), RDT_INVALID, "key %s takes '0x!'", key->name);
        cr_assert(strstr(err.msg, key->name), "'%s' does not name %s", err.msg, key->name);
    }
}

TRANSPORT_TEST(sides_follow_from_operations)
{
    struct host_conn conn;

    load(plugin);
    cr_assert_eq(backend_host_open(&host, NULL, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(host_conn_create(&host, &conn, &err), RDT_OK);
    for (unsigned i = 0; host.ops->memory_kinds[i]; i++) {
        uint32_t sides = host.ops->sides(conn.handle, host.ops->memory_kinds[i]);

        cr_assert(!(sides & RDT_ONE_SIDED) || host.ops->post_read);
        cr_assert(!(sides & RDT_TWO_SIDED) || host.ops->post_send);
    }
    cr_assert_eq(host.ops->sides(conn.handle, "no such kind"), 0);
    host_conn_destroy(&conn); /* never offered nor connected: needs no disconnect */
    finish();
}

/* ---- moving bytes ---- */

static const uint64_t sizes[] = {1, 7, 4096, 65535, 65536, 65537, MIB, 4 * MIB + 3, 64 * MIB};
#define N_SIZES (sizeof sizes / sizeof *sizes)

TRANSPORT_TEST(receives_of_all_sizes_arrive)
{
    struct backend_peer peer;
    struct host_conn conn;

    if (!two_sided(plugin, &peer, 1))
        return;
    join(&conn, &peer);
    for (unsigned i = 0; i < N_SIZES; i++)
        receive(&conn, &peer, i, sizes[i]);
    leave(&conn);
    cr_assert(backend_peer_stop(&peer));
    finish();
}

TRANSPORT_TEST(sends_of_all_sizes_arrive)
{
    struct backend_peer peer;
    struct host_conn conn;
    struct host_op op;

    if (!two_sided(plugin, &peer, 1))
        return;
    join(&conn, &peer);
    for (unsigned i = 0; i < N_SIZES; i++) {
        uint8_t *memory = malloc(sizes[i]);

        cr_assert_not_null(memory);
        pattern_fill(memory, sizes[i], i);
        cr_assert(backend_peer_recv(&peer, 5, i, sizes[i]));
        post_send(&conn, &op, 5, i, memory, sizes[i]);
        cr_assert_eq(backend_peer_wait(&peer, 5, i, i, LATER_MS), RDT_OK, "%llu bytes", (unsigned long long)sizes[i]);
        cr_assert(host_op_wait(&op, LATER_MS));
        cr_assert_eq(op.status, RDT_OK, "%s", op.msg);
        free(memory);
    }
    leave(&conn);
    cr_assert(backend_peer_stop(&peer));
    finish();
}

#define N_CHUNKS 64u

TRANSPORT_TEST(chunks_out_of_order_find_their_memory)
{
    const uint64_t bytes = 100000;
    struct backend_peer peer;
    struct host_conn conn;
    struct host_op *ops = calloc(N_CHUNKS, sizeof *ops);
    struct guarded memory;

    cr_assert(ops && guarded_create(&memory, N_CHUNKS * bytes));
    if (!two_sided(plugin, &peer, 1))
        return;
    join(&conn, &peer);
    for (unsigned i = 0; i < N_CHUNKS; i++)
        post_recv(&conn, &ops[i], 3 + i % 2, i, memory.addr + i * bytes, bytes);
    for (unsigned i = 0; i < N_CHUNKS; i++) {
        unsigned chunk = i * 37 % N_CHUNKS;

        cr_assert(backend_peer_send(&peer, 3 + chunk % 2, chunk, bytes, chunk));
    }
    for (unsigned i = 0; i < N_CHUNKS; i++) {
        cr_assert(host_op_wait(&ops[i], LATER_MS), "chunk %u did not end", i);
        cr_assert_eq(ops[i].status, RDT_OK);
        cr_assert(pattern_holds(memory.addr + i * bytes, bytes, i), "chunk %u is wrong", i);
    }
    cr_assert(guarded_margins_hold(&memory));
    leave(&conn);
    cr_assert(backend_peer_stop(&peer));
    finish();
    guarded_destroy(&memory);
    free(ops);
}

TRANSPORT_TEST(both_directions_at_once)
{
    enum { N = 16 };
    const uint64_t bytes = 3 * MIB;
    struct backend_peer peer;
    struct host_conn conn;
    static struct host_op recvs[N], sends[N];
    uint8_t *in = malloc(N * bytes), *out = malloc(bytes);

    cr_assert(in && out);
    pattern_fill(out, bytes, 1);
    if (!two_sided(plugin, &peer, 1))
        return;
    join(&conn, &peer);
    for (unsigned i = 0; i < N; i++) {
        post_recv(&conn, &recvs[i], 1, i, in + i * bytes, bytes);
        cr_assert(backend_peer_recv(&peer, 2, i, bytes));
    }
    for (unsigned i = 0; i < N; i++) {
        post_send(&conn, &sends[i], 2, i, out, bytes);
        cr_assert(backend_peer_send(&peer, 1, i, bytes, i));
    }
    for (unsigned i = 0; i < N; i++) {
        cr_assert(host_op_wait(&recvs[i], LATER_MS) && host_op_wait(&sends[i], LATER_MS));
        cr_assert_eq(recvs[i].status, RDT_OK);
        cr_assert_eq(sends[i].status, RDT_OK);
        cr_assert(pattern_holds(in + i * bytes, bytes, i));
        cr_assert_eq(backend_peer_wait(&peer, 2, i, 1, LATER_MS), RDT_OK);
    }
    leave(&conn);
    cr_assert(backend_peer_stop(&peer));
    finish();
    free(in);
    free(out);
}

/* ---- what was not asked for is not written ---- */

TRANSPORT_TEST(chunk_without_a_receive_is_dropped)
{
    struct backend_peer peer;
    struct host_conn conn;
    struct host_op op;
    struct guarded memory;

    cr_assert(guarded_create(&memory, MIB));
    if (!two_sided(plugin, &peer, 1))
        return;
    join(&conn, &peer);
    post_recv(&conn, &op, 1, 0, memory.addr, MIB);
    cr_assert(backend_peer_send(&peer, 1, 1, MIB, 1)); /* another chunk */
    cr_assert(backend_peer_send(&peer, 2, 0, MIB, 1)); /* another transfer */
    cr_assert(backend_peer_send(&peer, 2, 1, 100, 1));
    receive(&conn, &peer, 9, 2 * MIB); /* these bytes came after the others */
    cr_assert_not(host_op_ended(&op));
    cr_assert(guarded_untouched(&memory));
    cr_assert(backend_peer_send(&peer, 1, 0, MIB, 5));
    cr_assert(host_op_wait(&op, LATER_MS));
    cr_assert(pattern_holds(memory.addr, MIB, 5));
    leave(&conn);
    cr_assert(backend_peer_stop(&peer));
    finish();
    guarded_destroy(&memory);
}

TRANSPORT_TEST(chunk_of_another_length_writes_nothing)
{
    static const uint64_t lengths[] = {1, 999, 1001, 2 * MIB};
    struct backend_peer peer;
    struct host_conn conn;
    static struct host_op ops[4];
    struct guarded memory[4];

    if (!two_sided(plugin, &peer, 1))
        return;
    join(&conn, &peer);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert(guarded_create(&memory[i], 1000));
        post_recv(&conn, &ops[i], 1, i, memory[i].addr, 1000);
        (void)backend_peer_send(&peer, 1, i, lengths[i], 1);
    }
    /* It may end the operations, or the connection, or wait to be disconnected; it may not write or claim success. */
    for (unsigned i = 0; i < 4; i++)
        if (host_op_wait(&ops[i], SOON_MS))
            cr_assert_neq(ops[i].status, RDT_OK, "%llu bytes passed for 1000", (unsigned long long)lengths[i]);
    leave(&conn);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_neq(ops[i].status, RDT_OK);
        cr_assert(guarded_untouched(&memory[i]));
        guarded_destroy(&memory[i]);
    }
    (void)backend_peer_stop(&peer);
    finish();
}

TRANSPORT_TEST(wrong_token_moves_nothing)
{
    enum { FORGED, RIGHT, REPLAYED, N };
    struct backend_peer peers[N];
    struct host_conn conn;
    struct host_op op;
    struct guarded memory;
    uint8_t blob[RDT_OFFER_MAX_BYTES], theirs[RDT_OFFER_MAX_BYTES], forged[RDT_OFFER_MAX_BYTES];
    size_t bytes, their_bytes;

    cr_assert(guarded_create(&memory, MIB));
    if (!two_sided(plugin, peers, N))
        return;
    cr_assert_eq(host_conn_create(&host, &conn, &err), RDT_OK);
    cr_assert(backend_peer_offer(&peers[RIGHT], theirs, &their_bytes));
    cr_assert_eq(host.ops->connect(conn.handle, theirs, their_bytes, &err), RDT_OK);
    cr_assert_eq(host.ops->offer(conn.handle, blob, &bytes, &err), RDT_OK);
    post_recv(&conn, &op, 1, 0, memory.addr, MIB);

    memcpy(forged, blob, bytes);
    forged[bytes - 1] ^= 1; /* of the token, or of whatever a plug-in checks */
    if (backend_peer_connect(&peers[FORGED], forged, bytes) && backend_peer_send(&peers[FORGED], 1, 0, MIB, 1))
        cr_assert(backend_peer_wait_failed(&peers[FORGED], LATER_MS), "a forged token was not refused");
    cr_assert_not(host_op_ended(&op));
    cr_assert(guarded_untouched(&memory), "a forged token wrote to our memory");

    cr_assert(backend_peer_connect(&peers[RIGHT], blob, bytes));
    cr_assert(backend_peer_send(&peers[RIGHT], 1, 0, MIB, 2));
    cr_assert(host_op_wait(&op, LATER_MS));
    cr_assert_eq(op.status, RDT_OK, "the right token was refused: %s", op.msg);
    cr_assert(pattern_holds(memory.addr, MIB, 2));

    memset(memory.addr, CANARY, MIB);
    post_recv(&conn, &op, 2, 0, memory.addr, MIB);
    if (backend_peer_connect(&peers[REPLAYED], blob, bytes) && backend_peer_send(&peers[REPLAYED], 2, 0, MIB, 1))
        cr_assert(backend_peer_wait_failed(&peers[REPLAYED], LATER_MS), "a token was taken twice");
    cr_assert_not(host_op_ended(&op));
    cr_assert(guarded_untouched(&memory));
    cr_assert_eq(conn.n_failed, 0, "strangers cost the peer its connection");

    leave(&conn);
    for (unsigned i = 0; i < N; i++)
        (void)backend_peer_stop(&peers[i]);
    finish();
    guarded_destroy(&memory);
}

/* ---- cancel and disconnect ---- */

TRANSPORT_TEST(cancel_of_an_unmatched_receive_ends_it)
{
    struct backend_peer peer;
    struct host_conn conn;
    static struct host_op ops[8];
    struct guarded memory;

    cr_assert(guarded_create(&memory, MIB));
    if (!two_sided(plugin, &peer, 1) || !host.ops->cancel)
        return;
    join(&conn, &peer);
    for (unsigned i = 0; i < 8; i++)
        post_recv(&conn, &ops[i], 1, i, memory.addr, MIB);
    for (unsigned i = 0; i < 8; i++)
        host_op_cancel(&ops[i]);
    for (unsigned i = 0; i < 8; i++) {
        cr_assert(host_op_wait(&ops[i], SOON_MS), "a cancelled receive goes on");
        cr_assert_eq(ops[i].status, RDT_CANCELLED);
        host_op_cancel(&ops[i]); /* the core may not have heard of its end yet */
    }
    cr_assert(backend_peer_send(&peer, 1, 0, MIB, 1)); /* too late */
    receive(&conn, &peer, 2, MIB);
    cr_assert(guarded_untouched(&memory));
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(ops[i].n_done, 1);
    leave(&conn);
    cr_assert(backend_peer_stop(&peer));
    finish();
    guarded_destroy(&memory);
}

TRANSPORT_TEST(disconnect_ends_every_operation)
{
    enum { N = 16 };
    struct backend_peer peer;
    struct host_conn conn;
    static struct host_op recvs[N], sends[N];
    uint8_t *memory = calloc(N, 8 * MIB);

    cr_assert_not_null(memory);
    if (!two_sided(plugin, &peer, 1))
        return;
    join(&conn, &peer);
    for (unsigned i = 0; i < N; i++)
        post_recv(&conn, &recvs[i], 1, i, memory + i * 8 * MIB, 8 * MIB);
    cr_assert(backend_peer_send_many(&peer, 1, N / 2, 8 * MIB, 1)); /* half of them are on their way */
    for (unsigned i = 0; i < N; i++)
        post_send(&conn, &sends[i], 2, i, memory, 8 * MIB); /* for which the peer waits with nothing */
    leave(&conn);
    for (unsigned i = 0; i < N; i++) {
        cr_assert(host_op_ended(&recvs[i]) && host_op_ended(&sends[i]));
        cr_assert(recvs[i].status == RDT_OK || recvs[i].status == RDT_CANCELLED, "%s", rdt_status_name(recvs[i].status));
        cr_assert(sends[i].status == RDT_OK || sends[i].status == RDT_CANCELLED, "%s", rdt_status_name(sends[i].status));
        cr_assert_eq(recvs[i].n_done, 1);
        cr_assert_eq(sends[i].n_done, 1);
    }
    (void)backend_peer_stop(&peer);
    finish();
    free(memory);
}

TRANSPORT_TEST(nothing_is_written_after_disconnect)
{
    enum { N = 32, ROUNDS = 5 };
    const uint64_t bytes = 4 * MIB;
    struct backend_peer peers[ROUNDS + 1], *bystander = &peers[ROUNDS];
    struct host_conn other;
    static struct host_op ops[N];
    uint8_t *memory = malloc(N * bytes);
    unsigned cancelled = 0;

    cr_assert_not_null(memory);
    if (!two_sided(plugin, peers, ROUNDS + 1))
        return;
    join(&other, bystander);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct host_conn conn;
        uint64_t spoiled = 0;

        join(&conn, &peers[round]);
        for (unsigned i = 0; i < N; i++)
            post_recv(&conn, &ops[i], 1, i, memory + i * bytes, bytes);
        cr_assert(backend_peer_send_many(&peers[round], 1, N, bytes, 1));
        cr_assert(host_op_wait(&ops[round], LATER_MS)); /* the stream is in full flow */
        leave(&conn);
        memset(memory, CANARY, N * bytes);
        for (unsigned i = 0; i < N; i++)
            cancelled += ops[i].status == RDT_CANCELLED;
        /* When the peer has disconnected too, nothing of it is under way any more, and when a bystander's bytes have come in, our
         * end has read what was. */
        cr_assert(backend_peer_disconnect(&peers[round]));
        receive(&other, bystander, round, MIB);
        for (uint64_t i = 0; i < N * bytes; i++)
            spoiled += memory[i] != CANARY;
        cr_assert_eq(spoiled, 0, "%llu bytes landed after conn_closed", (unsigned long long)spoiled);
    }
    cr_assert_gt(cancelled, 0, "no disconnect came in time to prove anything");
    leave(&other);
    for (unsigned i = 0; i < ROUNDS + 1; i++)
        (void)backend_peer_stop(&peers[i]);
    finish();
    free(memory);
}

/* ---- peers that go away ---- */

TRANSPORT_TEST(killed_peer_fails_its_connection_only)
{
    enum { N = 8 };
    const uint64_t bytes = 16 * MIB;
    struct backend_peer peers[2];
    struct host_conn conns[2];
    static struct host_op ops[N], sends[N];
    uint8_t *memory = malloc(N * bytes), *source = calloc(1, bytes);

    cr_assert(memory && source);
    if (!two_sided(plugin, peers, 2))
        return;
    join(&conns[0], &peers[0]);
    join(&conns[1], &peers[1]);
    receive(&conns[1], &peers[1], 1, MIB);
    for (unsigned i = 0; i < N; i++)
        post_recv(&conns[0], &ops[i], 1, i, memory + i * bytes, bytes);
    for (unsigned i = 0; i < N; i++)
        cr_assert(backend_peer_recv(&peers[0], 2, i, bytes));
    for (unsigned i = 0; i < N; i++)
        post_send(&conns[0], &sends[i], 2, i, source, bytes);
    cr_assert(backend_peer_send_many(&peers[0], 1, N - 1, bytes, 1)); /* the last one waits for nothing */
    cr_assert(host_op_wait(&ops[0], LATER_MS));
    backend_peer_kill(&peers[0]);

    cr_assert(host_conn_wait_failed(&conns[0], SOON_MS), "the end of the peer was not noticed");
    receive(&conns[1], &peers[1], 2, 4 * MIB);
    leave(&conns[0]);
    for (unsigned i = 0; i < N; i++) {
        cr_assert_eq(ops[i].n_done, 1);
        cr_assert_eq(sends[i].n_done, 1);
    }
    cr_assert_neq(ops[N - 1].status, RDT_OK);
    receive(&conns[1], &peers[1], 3, MIB);
    cr_assert_eq(conns[1].n_failed, 0, "one peer's end cost another its connection: %s", conns[1].msg);
    leave(&conns[1]);
    cr_assert(backend_peer_stop(&peers[1]));
    finish();
    free(memory);
    free(source);
}

TRANSPORT_TEST(absent_peer_fails_or_waits)
{
    struct backend_peer peer;
    struct host_conn conn;
    struct host_op op;
    uint8_t blob[RDT_OFFER_MAX_BYTES];
    uint8_t byte = 0;
    size_t bytes;

    if (!two_sided(plugin, &peer, 1))
        return;
    cr_assert(backend_peer_offer(&peer, blob, &bytes));
    backend_peer_kill(&peer);
    cr_assert_eq(host_conn_create(&host, &conn, &err), RDT_OK);
    cr_assert_eq(host.ops->connect(conn.handle, blob, bytes, &err), RDT_OK);
    post_send(&conn, &op, 1, 0, &byte, 1);
    cr_assert(host_conn_wait_failed(&conn, LATER_MS), "nobody listens, and it does not say so");
    leave(&conn);
    cr_assert_neq(op.status, RDT_OK);
    finish();
}

TRANSPORT_TEST(malformed_offer_is_refused)
{
    uint8_t blob[RDT_OFFER_MAX_BYTES] = {0xff};
    struct host_conn conn;
    size_t bytes;

    load(plugin);
    cr_assert_eq(backend_host_open(&host, NULL, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(host_conn_create(&host, &conn, &err), RDT_OK);
    cr_assert_neq(host.ops->connect(conn.handle, blob, 0, &err), RDT_OK);
    cr_assert_neq(host.ops->connect(conn.handle, blob, 1, &err), RDT_OK);
    cr_assert_eq(host.ops->offer(conn.handle, blob, &bytes, &err), RDT_OK);
    cr_assert(bytes > 0 && bytes <= RDT_OFFER_MAX_BYTES);
    cr_assert_neq(host.ops->connect(conn.handle, blob, bytes - 1, &err), RDT_OK, "an offer that is cut off passes");
    leave(&conn);
    finish();
}

TRANSPORT_TEST(connections_leave_no_descriptors)
{
    enum { WARM_UP = 3, CYCLES = 20 };
    struct backend_host other;
    unsigned before = 0, after = 0;

    load(plugin);
    if (!host.ops->post_send)
        return;
    cr_assert_eq(backend_host_open(&host, NULL, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(backend_host_load(&other, plugin->so, &err), RDT_OK);
    cr_assert_eq(backend_host_open(&other, NULL, &err), RDT_OK, "two instances in one process: %s", err.msg);
    for (unsigned i = 0; i < WARM_UP + CYCLES; i++) {
        struct host_conn a, b;
        struct host_op send, recv;
        uint8_t from[100] = {1}, to[100];

        cr_assert_eq(host_conn_create(&host, &a, &err), RDT_OK);
        cr_assert_eq(host_conn_create(&other, &b, &err), RDT_OK);
        cr_assert_eq(host_conn_join(&a, &b, &err), RDT_OK, "%s", err.msg);
        post_recv(&b, &recv, i, 0, to, sizeof to);
        post_send(&a, &send, i, 0, from, sizeof from);
        cr_assert(host_op_wait(&recv, LATER_MS) && host_op_wait(&send, LATER_MS));
        cr_assert_eq(recv.status, RDT_OK);
        leave(&a);
        leave(&b);
        if (i == WARM_UP - 1)
            before = count_fds();
    }
    after = count_fds();
    cr_assert_leq(after, before + 2, "%u descriptors after %d connections, %u before", after, CYCLES, before);
    backend_host_close(&other);
    finish();
}

/* Nobody waits for anything before the end: each round cuts another moment of connecting and moving, from one end or both. */
TRANSPORT_TEST(disconnect_at_any_moment_is_survived)
{
    enum { ROUNDS = 60, N = 4 };
    const uint64_t bytes = 2 * MIB;
    struct backend_host other;
    uint8_t *from = calloc(1, bytes), *to = malloc(N * bytes);
    static struct host_op sends[N], recvs[N];

    cr_assert(from && to);
    load(plugin);
    if (!host.ops->post_send)
        return;
    cr_assert_eq(backend_host_open(&host, NULL, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(backend_host_load(&other, plugin->so, &err), RDT_OK);
    cr_assert_eq(backend_host_open(&other, NULL, &err), RDT_OK, "%s", err.msg);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct host_conn a, b;

        cr_assert_eq(host_conn_create(&host, &a, &err), RDT_OK);
        cr_assert_eq(host_conn_create(&other, &b, &err), RDT_OK);
        cr_assert_eq(host_conn_join(&a, &b, &err), RDT_OK, "%s", err.msg);
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
            cr_assert_eq(sends[i].n_done, 1);
            cr_assert_eq(recvs[i].n_done, 1);
        }
    }
    backend_host_close(&other);
    finish();
    free(from);
    free(to);
}
