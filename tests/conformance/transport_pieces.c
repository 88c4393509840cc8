/* SPDX-License-Identifier: Apache-2.0 */
/* Operations whose bytes lie in several pieces of memory (max_pieces, rdt_op.pieces). The peer always has one piece: what
 * travels is the same. */
#include "tests/conformance/transport_check.h"

#define MAX_PIECES 300u
#define GAP 24u /* between two pieces; even, so that every other piece is not aligned */

/* Memory in pieces of very different sizes; the later ones lie before the earlier ones, with gaps that nobody may write. */
struct scattered {
    struct guarded memory;
    struct rdt_piece list[MAX_PIECES];
    uint32_t n;
    uint64_t bytes; /* of all pieces */
};

static bool takes_pieces(void)
{
    return host.ops->struct_size > offsetof(struct rdt_transport_ops, max_pieces) && host.ops->max_pieces;
}

/* How many pieces the conn takes, at most MAX_PIECES; skips the check if it is one. */
static uint32_t most_pieces(struct host_conn *conn)
{
    uint32_t most = takes_pieces() ? host.ops->max_pieces(conn->handle, "host") : 1;

    if (most < 2)
        check_skip("its operations have one piece");
    return most < MAX_PIECES ? most : MAX_PIECES;
}

static uint64_t size_of_piece(uint32_t i, uint64_t most)
{
    static const uint64_t sizes[] = {1, 4096, 63, 65537, 2, 16384, 1000, 100001, 5, 16385};

    return sizes[i % 10] < most ? sizes[i % 10] : most;
}

static void scatter_create(struct scattered *scattered, uint32_t n, uint64_t most)
{
    uint64_t room = 0, at;

    scattered->n = n;
    scattered->bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        scattered->bytes += size_of_piece(i, most);
    room = scattered->bytes + (uint64_t)n * GAP;
    must(guarded_create(&scattered->memory, room));
    at = room;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = size_of_piece(i, most);

        at -= bytes + GAP;
        scattered->list[i] = (struct rdt_piece){.addr = scattered->memory.addr + at, .bytes = bytes};
    }
}

static void scatter_destroy(struct scattered *scattered)
{
    guarded_destroy(&scattered->memory);
}

/* The bytes in their order, in memory of the caller. */
static uint8_t *joined(const struct scattered *scattered)
{
    uint8_t *whole = malloc(scattered->bytes), *to = whole;

    must_not_null(whole);
    for (uint32_t i = 0; i < scattered->n; to += scattered->list[i++].bytes)
        memcpy(to, scattered->list[i].addr, scattered->list[i].bytes);
    return whole;
}

static bool gaps_hold(const struct scattered *scattered)
{
    for (uint32_t i = 0; i < scattered->n; i++)
        for (uint32_t b = 0; b < GAP; b++)
            if (((uint8_t *)scattered->list[i].addr)[scattered->list[i].bytes + b] != CANARY)
                return false;
    return guarded_margins_hold(&scattered->memory);
}

static void fill_op(struct host_op *op, uint64_t transfer, uint64_t chunk, const struct scattered *scattered)
{
    host_op_fill(op, transfer, chunk, NULL, scattered->bytes);
    op->op.memory_kind = "host";
    op->op.device = "";
    op->op.pieces = scattered->list;
    op->op.n_pieces = scattered->n;
}

static void receive_scattered(struct host_conn *conn, struct backend_peer *peer, uint64_t transfer, uint32_t n, uint64_t most)
{
    struct scattered scattered;
    struct host_op op;

    scatter_create(&scattered, n, most);
    fill_op(&op, transfer, 0, &scattered);
    must_eq(host_op_post(conn, &op, POST_RECV, &err), RDT_OK, "%s", err.msg);
    must(backend_peer_send(peer, transfer, 0, scattered.bytes, n));
    must(host_op_wait(&op, LATER_MS), "a receive in %u pieces did not end", n);
    must_eq(op.status, RDT_OK, "%u pieces: %s: %s", n, rdt_status_name(op.status), op.msg);
    uint8_t *whole = joined(&scattered);
    must(pattern_holds(whole, scattered.bytes, n), "%llu bytes came in wrong in %u pieces", (unsigned long long)scattered.bytes,
         n);
    must(gaps_hold(&scattered), "bytes between %u pieces were written", n);
    must_eq(backend_peer_wait(peer, transfer, 0, 0, LATER_MS), RDT_OK);
    must_eq(op.n_done, 1);
    free(whole);
    scatter_destroy(&scattered);
}

static void send_scattered(struct host_conn *conn, struct backend_peer *peer, uint64_t transfer, uint32_t n, uint64_t most)
{
    struct scattered scattered;
    struct host_op op;
    uint8_t *whole, *from;

    scatter_create(&scattered, n, most);
    from = whole = malloc(scattered.bytes);
    must_not_null(whole);
    pattern_fill(whole, scattered.bytes, n);
    for (uint32_t i = 0; i < n; from += scattered.list[i++].bytes)
        memcpy(scattered.list[i].addr, from, scattered.list[i].bytes);
    fill_op(&op, transfer, 0, &scattered);
    must(backend_peer_recv(peer, transfer, 0, scattered.bytes));
    must_eq(host_op_post(conn, &op, POST_SEND, &err), RDT_OK, "%s", err.msg);
    must_eq(backend_peer_wait(peer, transfer, 0, n, LATER_MS), RDT_OK, "%u pieces", n);
    must(host_op_wait(&op, LATER_MS));
    must_eq(op.status, RDT_OK, "%s", op.msg);
    must_eq(op.n_done, 1);
    free(whole);
    scatter_destroy(&scattered);
}

/* From a handful of bytes to more than any buffer of the transport. */
TRANSPORT_CHECK(lists_of_pieces_arrive)
{
    static const struct {
        uint32_t n;
        uint64_t most;
    } lists[] = {{2, 1}, {2, 100}, {3, 4096}, {7, 1 << 20}, {64, 1}, {MAX_PIECES, 100}, {40, 1 << 20}, {MAX_PIECES, 1 << 20}};
    struct backend_peer peer;
    struct host_conn conn;

    meet(&conn, &peer);
    for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++) {
        uint32_t most = most_pieces(&conn);

        receive_scattered(&conn, &peer, 10 + i, lists[i].n < most ? lists[i].n : most, lists[i].most);
        most = most_pieces(&conn);
        send_scattered(&conn, &peer, 50 + i, lists[i].n < most ? lists[i].n : most, lists[i].most);
    }
    part(&conn, &peer);
}

/* The padding between tensors may be received in one place for all of them, and be sent from one. */
TRANSPORT_CHECK(pieces_may_share_memory)
{
    enum { N = 9 };
    struct backend_peer peer;
    struct host_conn conn;
    struct scattered scattered;
    struct host_op op;
    uint8_t padding[64] = {0}, *whole;

    meet(&conn, &peer);
    if (most_pieces(&conn) < N)
        check_skip("an operation has fewer pieces");
    scatter_create(&scattered, N, 70000);
    for (uint32_t i = 2; i < N; i += 2) /* 63, 2, 1000, 5 bytes, cut to the memory that they share */
        scattered.list[i] =
            (struct rdt_piece){.addr = padding, .bytes = scattered.list[i].bytes < 64 ? scattered.list[i].bytes : 64};
    scattered.bytes = 0;
    for (uint32_t i = 0; i < N; i++)
        scattered.bytes += scattered.list[i].bytes;
    fill_op(&op, 1, 0, &scattered);
    must_eq(host_op_post(&conn, &op, POST_RECV, &err), RDT_OK, "%s", err.msg);
    must(backend_peer_send(&peer, 1, 0, scattered.bytes, 3));
    must(host_op_wait(&op, LATER_MS));
    must_eq(op.status, RDT_OK, "%s", op.msg);
    whole = malloc(scattered.bytes);
    must_not_null(whole);
    pattern_fill(whole, scattered.bytes, 3);
    for (uint32_t i = 0, at = 0; i < N; at += (uint32_t)scattered.list[i++].bytes)
        must(scattered.list[i].addr == padding || memcmp(scattered.list[i].addr, whole + at, scattered.list[i].bytes) == 0,
             "piece %u is wrong", i);
    must(guarded_margins_hold(&scattered.memory));
    free(whole);
    part(&conn, &peer);
    scatter_destroy(&scattered);
}

TRANSPORT_CHECK(receive_in_pieces_of_another_length_writes_nothing)
{
    struct backend_peer peer;
    struct host_conn conn;
    struct scattered scattered;
    struct host_op op;

    meet(&conn, &peer);
    scatter_create(&scattered, most_pieces(&conn) < 7 ? 2 : 7, MIB);
    for (unsigned i = 0; i < 2; i++) {
        fill_op(&op, 1, i, &scattered);
        must_eq(host_op_post(&conn, &op, POST_RECV, &err), RDT_OK, "%s", err.msg);
        must(backend_peer_send(&peer, 1, i, i ? scattered.bytes + 1 : scattered.bytes - 1, 1));
        must(host_op_wait(&op, LATER_MS));
        must_eq(op.status, RDT_TRANSPORT, "%s", rdt_status_name(op.status));
        must(guarded_untouched(&scattered.memory));
    }
    leave(&conn);
    (void)backend_peer_stop(&peer);
    finish();
    scatter_destroy(&scattered);
}

/* Cancelled before the bytes come, and while they do: afterwards nothing touches the pieces, nor the list of them. */
TRANSPORT_CHECK(cancelled_pieces_are_left_alone)
{
    enum { N = 16 };
    struct backend_peer peer;
    struct host_conn conn;
    static struct scattered scattered[N];
    static struct host_op ops[N];

    two_sided(&peer, 1);
    if (!host.ops->cancel)
        check_skip("it cannot abort");
    join(&conn, &peer);
    for (unsigned i = 0; i < N; i++) {
        scatter_create(&scattered[i], most_pieces(&conn), MIB);
        fill_op(&ops[i], 1, i, &scattered[i]);
        must_eq(host_op_post(&conn, &ops[i], POST_RECV, &err), RDT_OK, "%s", err.msg);
    }
    must(backend_peer_send_many(&peer, 1, N / 2, scattered[0].bytes, 1)); /* half of them are on their way */
    for (unsigned i = 0; i < N; i++)
        host_op_cancel(&ops[i]);
    for (unsigned i = 0; i < N; i++) {
        must(host_op_wait(&ops[i], LATER_MS), "a cancelled receive goes on");
        must(ops[i].status == RDT_CANCELLED || (ops[i].status == RDT_OK && i < N / 2), "%s", rdt_status_name(ops[i].status));
        memset(scattered[i].list, 0xee, sizeof scattered[i].list); /* who reads it now crashes */
        scatter_destroy(&scattered[i]);
    }
    receive(&conn, &peer, 2, 2 * MIB); /* these bytes came after the others */
    for (unsigned i = 0; i < N; i++)
        must_eq(ops[i].n_done, 1);
    leave(&conn);
    (void)backend_peer_stop(&peer);
    finish();
}

TRANSPORT_CHECK(killed_peer_ends_operations_in_pieces)
{
    enum { N = 8 };
    struct backend_peer peer;
    struct host_conn conn;
    static struct scattered recvs[N], sends[N];
    static struct host_op ins[N], outs[N];

    meet(&conn, &peer);
    for (unsigned i = 0; i < N; i++) {
        scatter_create(&recvs[i], most_pieces(&conn), MIB);
        scatter_create(&sends[i], most_pieces(&conn), MIB);
        fill_op(&ins[i], 1, i, &recvs[i]);
        must_eq(host_op_post(&conn, &ins[i], POST_RECV, &err), RDT_OK, "%s", err.msg);
        must(backend_peer_recv(&peer, 2, i, sends[i].bytes));
    }
    must(backend_peer_send_many(&peer, 1, N, recvs[0].bytes, 1));
    for (unsigned i = 0; i < N; i++) {
        fill_op(&outs[i], 2, i, &sends[i]);
        must_eq(host_op_post(&conn, &outs[i], POST_SEND, &err), RDT_OK, "%s", err.msg);
    }
    backend_peer_kill(&peer);
    leave(&conn);
    for (unsigned i = 0; i < N; i++) {
        must(host_op_ended(&ins[i]) && host_op_ended(&outs[i]));
        must(gaps_hold(&recvs[i]));
        scatter_destroy(&recvs[i]);
        scatter_destroy(&sends[i]);
    }
    finish();
}
