/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots that another node reads keep the bytes that were put, and a reader that asks for private memory gets it. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/integration/nodes/nodes_fixture.h"

TestSuite(snapshot_nodes, .timeout = 240);

static struct rdt_ref put_and_scribble(size_t bytes, uint32_t seed)
{
    char *memory = alloc_memory(owner, bytes);

    fill_pattern(memory, bytes, seed);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .timeout_ns = LONG};
    struct rdt_ref ref = put_as(owner, &VECTOR(RDT_U8, bytes, memory), 1, &options);
    memset(memory, 0xee, bytes);
    must_ok(rdt_dealloc(owner, memory, &err));
    return ref;
}

Test(snapshot_nodes, what_arrives_is_what_was_put_by_ucx_and_in_the_reply)
{
    static const struct {
        size_t bytes;
        const char *path;
    } rows[] = {{1000, "inline"}, {3 * MIB + 5, "ucx"}};

    begin(2);
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_ref ref = put_and_scribble(rows[i].bytes, i), refs[3] = {ref, ref, ref};
        struct rdt_fetch_options options = within(LONG);
        rdt_object *objects[3];
        fetch_pattern(reader, &ref, rows[i].bytes, i, rows[i].path);
        options.mode = RDT_FETCH_COW;
        must_ok(rdt_fetch(reader, refs, 3, &options, objects, &err)); /* one transfer, memory of each one's own */
        for (unsigned j = 0; j < 3; j++) {
            cr_assert(info_of(objects[j]).writable);
            cr_assert(holds_pattern(tensor_of(objects[j], 0).data, rows[i].bytes, i));
        }
        for (unsigned j = 0; j < 3; j++)
            memset(tensor_of(objects[j], 0).data, (int)j + 1, rows[i].bytes);
        for (unsigned j = 0; j < 3; j++) {
            cr_assert(is_filled_with(tensor_of(objects[j], 0).data, rows[i].bytes, (uint8_t)(j + 1)));
            rdt_release(objects[j]);
        }
        fetch_pattern(reader, &ref, rows[i].bytes, i, NULL);
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    end(NULL);
}
