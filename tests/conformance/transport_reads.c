/* SPDX-License-Identifier: Apache-2.0 */
/* What a transport plug-in with one-sided reads must do: the owner's process takes no part, and only what it
 * registered is read.
 */
#include "tests/conformance/transport_check.h"

#define SERVED (64 * MIB)

static struct backend_peer peer;
static struct host_conn conn;
static uint8_t key[RDT_KEY_MAX_BYTES];
static size_t key_bytes;
static bool ended; /* nothing is left for teardown */

static void setup(void)
{
    load();
    if (!host.ops->post_read)
        check_skip("it is not one-sided");
    must(backend_peer_start(&peer, check_so));
    open_loaded();
    if (host.ops->reads && !host.ops->reads(host.transport)) {
        backend_peer_kill(&peer);
        check_skip("as it is set here it does not read");
    }
    must_eq(host_conn_create(&host, &conn, &err), RDT_OK, "%s", err.msg);
    must(backend_peer_join(&peer, &conn), "the two ends do not connect");
    must(backend_peer_serve(&peer, SERVED, 9, key, &key_bytes), "memory cannot be registered, or no key is packed");
}

static void teardown(void)
{
    if (ended)
        return;
    leave(&conn);
    (void)backend_peer_stop(&peer);
    finish();
}

#define READ_CHECK(name) CHECK_WITH(one_sided, name, setup, teardown)

static enum rdt_status post_read(struct host_op *op, uint64_t chunk, void *addr, uint64_t bytes, uint64_t offset)
{
    host_op_fill(op, 1, chunk, addr, bytes);
    op->op.key = key;
    op->op.key_bytes = key_bytes;
    op->op.key_offset = offset;
    return host_op_post(&conn, op, POST_READ, &err);
}

READ_CHECK(reads_of_all_sizes_arrive)
{
    static const uint64_t sizes[] = {1, 7, 4096, 65537, MIB, 4 * MIB + 3, SERVED};

    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct guarded memory;
        struct host_op op;

        must(guarded_create(&memory, sizes[i]));
        must_eq(post_read(&op, i, memory.addr, sizes[i], 0), RDT_OK, "%s", err.msg);
        must(host_op_wait(&op, LATER_MS));
        must_eq(op.status, RDT_OK, "%s", op.msg);
        must(pattern_holds(memory.addr, sizes[i], 9), "%llu bytes came in wrong", (unsigned long long)sizes[i]);
        must(guarded_margins_hold(&memory));
        guarded_destroy(&memory);
    }
}

READ_CHECK(many_reads_at_once_find_their_offsets)
{
    enum { N = 64 };
    static struct host_op ops[N];
    uint8_t *whole = malloc(SERVED);

    must_not_null(whole);
    {
        for (unsigned i = 0; i < N; i++) {
            unsigned part = i * 37 % N;

            must_eq(post_read(&ops[i], i, whole + part * MIB, MIB, part * MIB), RDT_OK);
        }
        for (unsigned i = 0; i < N; i++) {
            must(host_op_wait(&ops[i], LATER_MS));
            must_eq(ops[i].status, RDT_OK);
        }
        must(pattern_holds(whole, SERVED, 9));
    }
    free(whole);
}

static void expect_refusal(uint64_t bytes, uint64_t offset, const char *why)
{
    struct guarded memory;
    struct host_op op;
    static uint64_t chunk = 1000;

    must(guarded_create(&memory, bytes));
    if (post_read(&op, chunk++, memory.addr, bytes, offset) == RDT_OK) {
        /* Or the connection fails, and a disconnect ends it. */
        if (!host_op_wait(&op, 1000))
            must(host_conn_wait_failed(&conn, LATER_MS), "a read %s neither ends nor fails", why);
        else
            must_neq(op.status, RDT_OK, "a read %s was served", why);
    }
    must(guarded_untouched(&memory), "a read %s wrote", why);
    if (host_op_ended(&op))
        guarded_destroy(&memory);
}

READ_CHECK(read_outside_the_registration_is_refused)
{
    expect_refusal(2, SERVED - 1, "across the end");
    expect_refusal(1, SERVED, "behind the end");
    expect_refusal(MIB, UINT64_MAX - 100, "that wraps around");
}

READ_CHECK(read_with_a_forged_key_is_refused)
{
    for (size_t i = 0; i < key_bytes; i++)
        key[i] ^= 0x5a;
    expect_refusal(MIB, 0, "with a forged key");
}

READ_CHECK(read_after_unregister_is_refused)
{
    must(backend_peer_unserve(&peer));
    expect_refusal(MIB, 0, "of memory that is no longer registered");
}

READ_CHECK(killed_owner_fails_the_connection)
{
    struct host_op op;
    uint8_t *memory = malloc(SERVED);

    must_not_null(memory);
    {
        must_eq(post_read(&op, 1, memory, SERVED, 0), RDT_OK);
        backend_peer_kill(&peer);
        must(host_conn_wait_failed(&conn, 2000));
        must(host_conn_disconnect(&conn, LATER_MS));
        must(host_op_ended(&op));
        host_conn_destroy(&conn);
        backend_host_close(&host);
    }
    ended = true;
    free(memory);
}
