/* What a transport plug-in with one-sided reads must do: the owner's process takes no part, and only what it
 * registered is read.
 *
 * Runs over $RDT_BACKEND_SO, or over loopback of $RDT_BUILD_DIR.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/backend_peer.h"

#define LATER_MS 20000
#define MIB ((uint64_t)1 << 20)
#define SERVED (64 * MIB)

static struct backend_host host;
static struct backend_peer peer;
static struct host_conn conn;
static struct rdt_error err;
static uint8_t key[RDT_KEY_MAX_BYTES];
static size_t key_bytes;
static bool one_sided;

static void setup(void)
{
    const char *given = getenv("RDT_BACKEND_SO"), *build = getenv("RDT_BUILD_DIR");
    char so[256];

    (void)snprintf(so, sizeof so, "%s/tests/rdt_loopback.so", build ? build : "build/release");
    if (given)
        (void)snprintf(so, sizeof so, "%s", given);
    cr_assert(backend_peer_start(&peer, so));
    cr_assert_eq(backend_host_load(&host, so, &err), RDT_OK, "%s", err.msg);
    one_sided = host.ops && host.ops->post_read;
    if (!one_sided)
        return;
    cr_assert_eq(backend_host_open(&host, NULL, &err), RDT_OK, "%s", err.msg);
    if (host.ops->struct_size > offsetof(struct rdt_transport_ops, reads) && host.ops->reads && !host.ops->reads(host.transport)) {
        one_sided = false; /* as it is configured here */
        return;
    }
    cr_assert_eq(host_conn_create(&host, &conn, &err), RDT_OK);
    cr_assert(backend_peer_join(&peer, &conn));
    cr_assert(backend_peer_serve(&peer, SERVED, 9, key, &key_bytes));
}

static void teardown(void)
{
    if (!one_sided) {
        backend_peer_kill(&peer);
        backend_host_close(&host);
        return;
    }
    cr_assert(host_conn_disconnect(&conn, LATER_MS));
    cr_assert_eq(conn.open_at_close, 0);
    host_conn_destroy(&conn);
    (void)backend_peer_stop(&peer);
    backend_host_close(&host);
    cr_assert_eq(host.n_errors, 0);
}

TestSuite(transport_reads, .init = setup, .fini = teardown);

static enum rdt_status post_read(struct host_op *op, uint64_t chunk, void *addr, uint64_t bytes, uint64_t offset)
{
    host_op_fill(op, 1, chunk, addr, bytes);
    op->op.key = key;
    op->op.key_bytes = key_bytes;
    op->op.key_offset = offset;
    return host_op_post(&conn, op, POST_READ, &err);
}

Test(transport_reads, reads_of_all_sizes_arrive)
{
    static const uint64_t sizes[] = {1, 7, 4096, 65537, MIB, 4 * MIB + 3, SERVED};

    for (unsigned i = 0; one_sided && i < sizeof sizes / sizeof *sizes; i++) {
        struct guarded memory;
        struct host_op op;

        cr_assert(guarded_create(&memory, sizes[i]));
        cr_assert_eq(post_read(&op, i, memory.addr, sizes[i], 0), RDT_OK, "%s", err.msg);
        cr_assert(host_op_wait(&op, LATER_MS));
        cr_assert_eq(op.status, RDT_OK, "%s", op.msg);
        cr_assert(pattern_holds(memory.addr, sizes[i], 9), "%llu bytes came in wrong", (unsigned long long)sizes[i]);
        cr_assert(guarded_margins_hold(&memory));
        guarded_destroy(&memory);
    }
}

Test(transport_reads, many_reads_at_once_find_their_offsets)
{
    enum { N = 64 };
    static struct host_op ops[N];
    uint8_t *whole = malloc(SERVED);

    cr_assert_not_null(whole);
    if (one_sided) {
        for (unsigned i = 0; i < N; i++) {
            unsigned part = i * 37 % N;

            cr_assert_eq(post_read(&ops[i], i, whole + part * MIB, MIB, part * MIB), RDT_OK);
        }
        for (unsigned i = 0; i < N; i++) {
            cr_assert(host_op_wait(&ops[i], LATER_MS));
            cr_assert_eq(ops[i].status, RDT_OK);
        }
        cr_assert(pattern_holds(whole, SERVED, 9));
    }
    free(whole);
}

static void expect_refusal(uint64_t bytes, uint64_t offset, const char *why)
{
    struct guarded memory;
    struct host_op op;
    static uint64_t chunk = 1000;

    cr_assert(guarded_create(&memory, bytes));
    if (post_read(&op, chunk++, memory.addr, bytes, offset) == RDT_OK) {
        /* Or the connection fails, and a disconnect ends it. */
        if (!host_op_wait(&op, 1000))
            cr_assert(host_conn_wait_failed(&conn, LATER_MS), "a read %s neither ends nor fails", why);
        else
            cr_assert_neq(op.status, RDT_OK, "a read %s was served", why);
    }
    cr_assert(guarded_untouched(&memory), "a read %s wrote", why);
    if (host_op_ended(&op))
        guarded_destroy(&memory);
}

Test(transport_reads, read_outside_the_registration_is_refused)
{
    if (!one_sided)
        return;
    expect_refusal(2, SERVED - 1, "across the end");
    expect_refusal(1, SERVED, "behind the end");
    expect_refusal(MIB, UINT64_MAX - 100, "that wraps around");
}

Test(transport_reads, read_with_a_forged_key_is_refused)
{
    if (!one_sided)
        return;
    for (size_t i = 0; i < key_bytes; i++)
        key[i] ^= 0x5a;
    expect_refusal(MIB, 0, "with a forged key");
}

Test(transport_reads, read_after_unregister_is_refused)
{
    if (!one_sided)
        return;
    cr_assert(backend_peer_unserve(&peer));
    expect_refusal(MIB, 0, "of memory that is no longer registered");
}

Test(transport_reads, killed_owner_fails_the_connection)
{
    struct host_op op;
    uint8_t *memory = malloc(SERVED);

    cr_assert_not_null(memory);
    if (one_sided) {
        cr_assert_eq(post_read(&op, 1, memory, SERVED, 0), RDT_OK);
        backend_peer_kill(&peer);
        cr_assert(host_conn_wait_failed(&conn, 2000));
        cr_assert(host_conn_disconnect(&conn, LATER_MS));
        cr_assert(host_op_ended(&op));
        host_conn_destroy(&conn);
        backend_host_close(&host);
    }
    one_sided = false; /* teardown has nothing left to do */
    free(memory);
}
