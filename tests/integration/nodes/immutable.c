/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that their producer promised not to write: nothing is copied, and other nodes handle them as snapshots. Where a test
 * breaks the promise, it does so to see whose memory a reader has. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/integration/nodes/nodes_fixture.h"

#define BYTES (5 * MIB)

TestSuite(immutable, .timeout = 120);

static struct rdt_ref put_immutable(uint8_t *memory, uint32_t flags, enum rdt_memory *how_p)
{
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_IMMUTABLE | flags, .how = how_p};
    struct rdt_ref ref = put_as(owner, &VECTOR(RDT_U8, BYTES, memory), 1, &options);

    return ref;
}

static void must_read(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode, uint32_t seed, const char *path)
{
    rdt_object *object = fetch_one(conn, ref, mode);

    must(holds_pattern(tensor_of(object, 0).data, BYTES, seed));
    must_go_by(path, object);
    rdt_release(object);
}

/* Whether a reader on the owner's node sees what is written into the memory now. */
static bool is_that_memory(const struct rdt_ref *ref, uint8_t *memory)
{
    rdt *local = node_client(&c.node[0], "local");
    rdt_object *object = fetch_one(local, ref, RDT_FETCH_SHARE);
    uint8_t before = memory[0];

    memory[0] = (uint8_t)~before;
    bool is = *(const uint8_t *)tensor_of(object, 0).data == memory[0];
    memory[0] = before;
    rdt_release(object);
    rdt_close(local);
    return is;
}

Test(immutable, nothing_is_copied_and_another_node_fetches_it_once)
{
    enum rdt_memory how;

    begin(2);
    uint8_t *memory = alloc_memory(owner, BYTES);
    fill_pattern(memory, BYTES, 1);
    struct rdt_ref ref = put_immutable(memory, 0, &how);
    must(how == RDT_MEMORY_DAEMON && is_that_memory(&ref, memory));
    must_read(owner, &ref, RDT_FETCH_COW, 1, "local/cow");
    must_read(reader, &ref, RDT_FETCH_AUTO, 1, "ucx");
    struct node_status before = node_now(&c.node[1]);
    must_read(reader, &ref, RDT_FETCH_AUTO, 1, "local/share");
    must_read(reader, &ref, RDT_FETCH_COW, 1, "local/cow");
    struct node_status after = node_now(&c.node[1]);
    must(before.copies == 1 && after.bytes_in == before.bytes_in);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_wait_freed_range(owner, memory, BYTES, LONG, &err));

    fill_pattern(memory, BYTES, 2); /* now it may be written and put again */
    ref = put_immutable(memory, 0, &how);
    must_read(reader, &ref, RDT_FETCH_AUTO, 2, "ucx");
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_dealloc(owner, memory, &err));
    end(NULL);
}

Test(immutable, ordinary_memory_is_copied)
{
    uint8_t *memory = malloc(BYTES);
    enum rdt_memory how;

    begin(2);
    fill_pattern(memory, BYTES, 1);
    struct rdt_ref ref = put_immutable(memory, 0, &how);
    memset(memory, 0xee, BYTES);
    must(how == RDT_MEMORY_COPIED);
    must_read(owner, &ref, RDT_FETCH_COW, 1, "local/cow");
    must_read(reader, &ref, RDT_FETCH_AUTO, 1, "ucx");
    must_read(reader, &ref, RDT_FETCH_AUTO, 1, "local/share");
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
    free(memory);
}

Test(immutable, pending_one_is_not_copied_when_it_is_ready)
{
    begin(2);
    uint8_t *memory = alloc_memory(owner, BYTES);
    struct rdt_ref ref = put_immutable(memory, RDT_PUT_PENDING, NULL);
    rdt_request *request = start_one(reader, &ref, LONG);
    fill_pattern(memory, BYTES, 1);
    must_ok(rdt_ready(owner, &ref, &err));
    rdt_object *object = await_object(reader, request);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 1));
    rdt_release(object);
    rdt_request_destroy(request);
    must(is_that_memory(&ref, memory));
    must_read(reader, &ref, RDT_FETCH_AUTO, 1, "local/share"); /* a replica */
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_dealloc(owner, memory, &err));
    end(NULL);
}

Test(immutable, cannot_be_stored_since_nobody_seals_it)
{
    struct rdt_ref ref;

    begin(2);
    uint8_t *memory = alloc_memory(owner, BYTES);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_IMMUTABLE | RDT_PUT_STORED};
    must_refuse(RDT_INVALID, "only a SNAPSHOT", rdt_put(owner, &VECTOR(RDT_U8, BYTES, memory), 1, &options, &ref, &err));
    must_ok(rdt_dealloc(owner, memory, &err));
    end(NULL);
}
