/* SPDX-License-Identifier: Apache-2.0 */
/* What every transport plug-in must do when nothing fails, and how it must answer calls that it does not
 * support. transport_reads.c checks one-sided reads, transport_ends.c checks how operations and connections
 * end.
 */
#include "tests/conformance/transport_check.h"

/* ---- the table ---- */

TRANSPORT_CHECK(table_is_sound)
{
    load();
    const struct rdt_transport_ops *ops = host.ops;
    must_eq(host.backend->abi_version, RDT_BACKEND_ABI);
    must_geq(host.backend->struct_size, offsetof(struct rdt_backend, transport) + sizeof(void *));
    must_not_null(host.backend->name);
    must_not_null(host.backend->version);
    must_geq(ops->struct_size, offsetof(struct rdt_transport_ops, version));
    must(ops->name && *ops->name);
    must(ops->memory_kinds && ops->memory_kinds[0], "it moves no memory kind");
    must(ops->open && ops->close && ops->connection_create && ops->connection_destroy && ops->offer && ops->connect &&
         ops->sides && ops->disconnect);
    must_eq(!ops->post_send, !ops->post_recv, "a send needs a receive");
    must_eq(!ops->post_read, !ops->pack_key, "a read needs a key");
    must(ops->post_send || ops->post_read, "it moves nothing");
    must(!ops->post_read || ops->register_memory, "a key needs a registration");
    must_eq(!ops->register_memory, !ops->unregister_memory);
    for (const struct rdt_config_key *key = host.backend->config_keys; key && key->name; key++)
        must(key->help, "key %s lacks a help", key->name);
}

TRANSPORT_CHECK(open_without_trust_says_what_to_do)
{
    const struct config_pair config[] = {{"trusted_network", "no"}, {NULL, NULL}};

    load();
    enum rdt_status status = backend_host_open(&host, config, &err);
    if (status == RDT_OK) {
        finish();
        return;
    }
    must_eq(status, RDT_UNSUPPORTED);
    must(strstr(err.msg, "trusted_network"), "'%s' does not name what is to be set", err.msg);
}

TRANSPORT_CHECK(open_with_a_bad_value_names_the_key)
{
    const char *given = getenv("RDT_BACKEND_CONFIG");

    load();
    for (const struct rdt_config_key *key = host.backend->config_keys; key && key->name; key++) {
        const struct config_pair config[] = {{key->name, "0x!"}, {NULL, NULL}};

        if (!key->fallback || !*key->fallback || strspn(key->fallback, "0123456789") != strlen(key->fallback) ||
            (given && strstr(given, key->name))) /* options given by hand come first */
            continue;
        must_eq(backend_host_open(&host, config, &err), RDT_INVALID, "key %s takes '0x!'", key->name);
        must(strstr(err.msg, key->name), "'%s' does not name %s", err.msg, key->name);
    }
}

TRANSPORT_CHECK(sides_follow_from_operations)
{
    struct host_conn conn;

    open_one();
    must_eq(host_conn_create(&host, &conn, &err), RDT_OK);
    for (unsigned i = 0; host.ops->memory_kinds[i]; i++) {
        uint32_t sides = host.ops->sides(conn.handle, host.ops->memory_kinds[i]);

        must(!(sides & RDT_ONE_SIDED) || host.ops->post_read);
        must(!(sides & RDT_TWO_SIDED) || host.ops->post_send);
    }
    must_eq(host.ops->sides(conn.handle, "no such kind"), 0);
    host_conn_destroy(&conn); /* never offered nor connected: needs no disconnect */
    finish();
}

/* The description is text, and the pointer stays valid, before the connection's lanes are known and after. */
static void expect_description(struct host_conn *conn, bool known)
{
    char text[200], small[8];

    memset(text, 'x', sizeof text);
    memset(small, 'x', sizeof small);
    enum rdt_status status = host.ops->describe(conn->handle, text, sizeof text - 1);
    must(status == RDT_OK || (status == RDT_AGAIN && !known), "%s", rdt_status_name(status));
    must_eq(text[sizeof text - 1], 'x');
    (void)host.ops->describe(conn->handle, small, sizeof small - 1);
    must_eq(small[sizeof small - 1], 'x');
    if (status != RDT_OK)
        return;
    must_not_null(memchr(text, 0, sizeof text));
    must_not_null(memchr(small, 0, sizeof small));
    must(*text && !strchr(text, '\n'), "'%s' is no line", text);
    must_eq(strncmp(text, small, strlen(small)), 0);
}

TRANSPORT_CHECK(description_is_a_line)
{
    struct backend_peer peer;
    struct host_conn conn;

    meet(&conn, &peer);
    if (host.ops->struct_size > offsetof(struct rdt_transport_ops, describe) && host.ops->describe) {
        expect_description(&conn, false);
        receive(&conn, &peer, 1, MIB);
        expect_description(&conn, true);
    }
    part(&conn, &peer);
}

/* ---- moving bytes ---- */

static const uint64_t sizes[] = {1, 7, 4096, 65535, 65536, 65537, MIB / 8 + 1, MIB - 1, MIB, MIB + 1, 4 * MIB + 3, 64 * MIB};
#define N_SIZES (sizeof sizes / sizeof *sizes)

TRANSPORT_CHECK(receives_of_all_sizes_arrive)
{
    struct backend_peer peer;
    struct host_conn conn;

    meet(&conn, &peer);
    for (unsigned i = 0; i < N_SIZES; i++)
        receive(&conn, &peer, i, sizes[i]);
    part(&conn, &peer);
}

TRANSPORT_CHECK(sends_of_all_sizes_arrive)
{
    struct backend_peer peer;
    struct host_conn conn;
    struct host_op op;

    meet(&conn, &peer);
    for (unsigned i = 0; i < N_SIZES; i++) {
        uint8_t *memory = malloc(sizes[i]);

        must_not_null(memory);
        pattern_fill(memory, sizes[i], i);
        must(backend_peer_recv(&peer, 5, i, sizes[i]));
        post_send(&conn, &op, 5, i, memory, sizes[i]);
        must_eq(backend_peer_wait(&peer, 5, i, i, LATER_MS), RDT_OK, "%llu bytes", (unsigned long long)sizes[i]);
        must(host_op_wait(&op, LATER_MS));
        must_eq(op.status, RDT_OK, "%s", op.msg);
        free(memory);
    }
    part(&conn, &peer);
}

#define N_CHUNKS 64u

TRANSPORT_CHECK(chunks_out_of_order_find_their_memory)
{
    const uint64_t bytes = 100000;
    struct backend_peer peer;
    struct host_conn conn;
    struct host_op *ops = calloc(N_CHUNKS, sizeof *ops);
    struct guarded memory;

    must(ops && guarded_create(&memory, N_CHUNKS * bytes));
    meet(&conn, &peer);
    for (unsigned i = 0; i < N_CHUNKS; i++)
        post_recv(&conn, &ops[i], 3 + i % 2, i, memory.addr + i * bytes, bytes);
    for (unsigned i = 0; i < N_CHUNKS; i++) {
        unsigned chunk = i * 37 % N_CHUNKS;

        must(backend_peer_send(&peer, 3 + chunk % 2, chunk, bytes, chunk));
    }
    for (unsigned i = 0; i < N_CHUNKS; i++) {
        must(host_op_wait(&ops[i], LATER_MS), "chunk %u did not end", i);
        must_eq(ops[i].status, RDT_OK);
        must(pattern_holds(memory.addr + i * bytes, bytes, i), "chunk %u is wrong", i);
    }
    must(guarded_margins_hold(&memory));
    part(&conn, &peer);
    guarded_destroy(&memory);
    free(ops);
}

TRANSPORT_CHECK(both_directions_at_once)
{
    enum { N = 16 };
    const uint64_t bytes = 3 * MIB;
    struct backend_peer peer;
    struct host_conn conn;
    static struct host_op recvs[N], sends[N];
    uint8_t *in = malloc(N * bytes), *out = malloc(bytes);

    must(in && out);
    pattern_fill(out, bytes, 1);
    meet(&conn, &peer);
    for (unsigned i = 0; i < N; i++) {
        post_recv(&conn, &recvs[i], 1, i, in + i * bytes, bytes);
        must(backend_peer_recv(&peer, 2, i, bytes));
    }
    for (unsigned i = 0; i < N; i++) {
        post_send(&conn, &sends[i], 2, i, out, bytes);
        must(backend_peer_send(&peer, 1, i, bytes, i));
    }
    for (unsigned i = 0; i < N; i++) {
        must(host_op_wait(&recvs[i], LATER_MS) && host_op_wait(&sends[i], LATER_MS));
        must_eq(recvs[i].status, RDT_OK);
        must_eq(sends[i].status, RDT_OK);
        must(pattern_holds(in + i * bytes, bytes, i));
        must_eq(backend_peer_wait(&peer, 2, i, 1, LATER_MS), RDT_OK);
    }
    part(&conn, &peer);
    free(in);
    free(out);
}

/* ---- only posted memory is written ---- */

TRANSPORT_CHECK(chunk_without_a_receive_is_dropped)
{
    struct backend_peer peer;
    struct host_conn conn;
    struct host_op op;
    struct guarded memory;

    must(guarded_create(&memory, MIB));
    meet(&conn, &peer);
    post_recv(&conn, &op, 1, 0, memory.addr, MIB);
    must(backend_peer_send(&peer, 1, 1, MIB, 1)); /* another chunk */
    must(backend_peer_send(&peer, 2, 0, MIB, 1)); /* another transfer */
    must(backend_peer_send(&peer, 2, 1, 100, 1));
    receive(&conn, &peer, 9, 2 * MIB); /* these bytes came after the others */
    must_not(host_op_ended(&op));
    must(guarded_untouched(&memory));
    must(backend_peer_send(&peer, 1, 0, MIB, 5));
    must(host_op_wait(&op, LATER_MS));
    must(pattern_holds(memory.addr, MIB, 5));
    part(&conn, &peer);
    guarded_destroy(&memory);
}

TRANSPORT_CHECK(chunk_of_another_length_writes_nothing)
{
    static const uint64_t lengths[] = {1, 999, 1001, 2 * MIB};
    struct backend_peer peer;
    struct host_conn conn;
    static struct host_op ops[4];
    struct guarded memory[4];

    meet(&conn, &peer);
    for (unsigned i = 0; i < 4; i++) {
        must(guarded_create(&memory[i], 1000));
        post_recv(&conn, &ops[i], 1, i, memory[i].addr, 1000);
        (void)backend_peer_send(&peer, 1, i, lengths[i], 1);
    }
    /* The plug-in may end the operations or the connection, or wait to be disconnected. It must not write, or report
     * success. */
    for (unsigned i = 0; i < 4; i++)
        if (host_op_wait(&ops[i], MOMENT_MS))
            must_neq(ops[i].status, RDT_OK, "%llu bytes passed for 1000", (unsigned long long)lengths[i]);
    leave(&conn);
    for (unsigned i = 0; i < 4; i++) {
        must_neq(ops[i].status, RDT_OK);
        must(guarded_untouched(&memory[i]));
        guarded_destroy(&memory[i]);
    }
    (void)backend_peer_stop(&peer);
    finish();
}

TRANSPORT_CHECK(wrong_token_moves_nothing)
{
    enum { FORGED, RIGHT, REPLAYED, N };
    struct backend_peer peers[N];
    struct host_conn conn;
    struct host_op op;
    struct guarded memory;
    uint8_t blob[RDT_OFFER_MAX_BYTES], theirs[RDT_OFFER_MAX_BYTES], forged[RDT_OFFER_MAX_BYTES];
    size_t bytes, their_bytes;

    must(guarded_create(&memory, MIB));
    two_sided(peers, N);
    must_eq(host_conn_create(&host, &conn, &err), RDT_OK);
    must(backend_peer_offer(&peers[RIGHT], theirs, &their_bytes));
    must_eq(host.ops->connect(conn.handle, theirs, their_bytes, &err), RDT_OK);
    must_eq(host.ops->offer(conn.handle, blob, &bytes, &err), RDT_OK);
    post_recv(&conn, &op, 1, 0, memory.addr, MIB);

    memcpy(forged, blob, bytes);
    forged[bytes - 1] ^= 1; /* of the token, or of another field that a plug-in checks */
    if (backend_peer_connect(&peers[FORGED], forged, bytes) && backend_peer_send(&peers[FORGED], 1, 0, MIB, 1))
        must(backend_peer_wait_failed(&peers[FORGED], LATER_MS), "a forged token was not refused");
    must_not(host_op_ended(&op));
    must(guarded_untouched(&memory), "a forged token wrote to our memory");

    must(backend_peer_connect(&peers[RIGHT], blob, bytes));
    must(backend_peer_send(&peers[RIGHT], 1, 0, MIB, 2));
    must(host_op_wait(&op, LATER_MS));
    must_eq(op.status, RDT_OK, "the right token was refused: %s", op.msg);
    must(pattern_holds(memory.addr, MIB, 2));

    memset(memory.addr, CANARY, MIB);
    post_recv(&conn, &op, 2, 0, memory.addr, MIB);
    if (backend_peer_connect(&peers[REPLAYED], blob, bytes) && backend_peer_send(&peers[REPLAYED], 2, 0, MIB, 1))
        must(backend_peer_wait_failed(&peers[REPLAYED], LATER_MS), "a token was taken twice");
    must_not(host_op_ended(&op));
    must(guarded_untouched(&memory));
    must_eq(conn.n_failed, 0, "strangers cost the peer its connection");

    leave(&conn);
    for (unsigned i = 0; i < N; i++)
        (void)backend_peer_stop(&peers[i]);
    finish();
    guarded_destroy(&memory);
}

TRANSPORT_CHECK(malformed_offer_is_refused)
{
    uint8_t blob[RDT_OFFER_MAX_BYTES] = {0xff};
    struct host_conn conn;
    size_t bytes;

    open_one();
    must_eq(host_conn_create(&host, &conn, &err), RDT_OK);
    must_neq(host.ops->connect(conn.handle, blob, 0, &err), RDT_OK);
    must_neq(host.ops->connect(conn.handle, blob, 1, &err), RDT_OK);
    must_eq(host.ops->offer(conn.handle, blob, &bytes, &err), RDT_OK);
    must(bytes > 0 && bytes <= RDT_OFFER_MAX_BYTES);
    must_neq(host.ops->connect(conn.handle, blob, bytes - 1, &err), RDT_OK, "an offer that is cut off passes");
    leave(&conn);
    finish();
}
