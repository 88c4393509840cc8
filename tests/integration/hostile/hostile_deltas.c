/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots whose notes say that they are changes of others (proto/delta.h), by a publisher that knows what generations its
 * next objects will have: their deltas are themselves, or each other, or never come. A reader must not wait for them. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "client/rdt_delta.h"
#include "tests/integration/nodes/nodes_fixture.h"

TestSuite(hostile_deltas, .timeout = 240);

#define BYTES MIB

/* A snapshot of this pattern. changes: the generation of its delta; 0: it has no note. */
static struct rdt_ref put_noted(uint32_t seed, const struct rdt_ref *base, uint64_t changes)
{
    uint8_t *data = malloc(BYTES);
    struct rdt_tensor tensor = VECTOR(RDT_U8, BYTES, data);
    struct rdt_put_options options = {
        .struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .visibility = RDT_VISIBLE_TO_OWNER, .timeout_ns = LONG};
    uint8_t note[1024];

    if (changes) {
        struct rdt_ref delta = *base;
        delta.generation = changes;
        (void)snprintf(delta.id, sizeof delta.id, "o-%016llx", (unsigned long long)changes);
        must_ok(rdt_delta_note(base, &delta, note, sizeof note, &options.metadata_bytes, &err));
        options.metadata = note;
    }
    fill_pattern(data, BYTES, seed);
    struct rdt_ref ref = put_as(owner, &tensor, 1, &options);
    free(data);
    return ref;
}

static void read_pattern(rdt *conn, const struct rdt_ref *ref, uint32_t seed)
{
    rdt_object *object = fetch_one(conn, ref, RDT_FETCH_AUTO);

    must(holds_pattern(tensor_of(object, 0).data, BYTES, seed));
    rdt_release(object);
}

/* Of n snapshots in a ring, each is the delta of the one before. refs_p[0] is a base that the reader's node has. */
static void put_ring(unsigned n, struct rdt_ref *refs_p)
{
    refs_p[0] = put_noted(1, NULL, 0);
    read_pattern(reader, &refs_p[0], 1);
    for (bool done = false; !done;) { /* a block of generations may end meanwhile */
        uint64_t first = put_noted(2, NULL, 0).generation + 1;
        done = true;
        for (unsigned i = 0; i < n; i++) {
            refs_p[1 + i] = put_noted(10 + i, &refs_p[0], first + (i + 1) % n);
            done &= refs_p[1 + i].generation == first + i;
        }
    }
}

static const char *const meant[] = {"its delta", NULL};

Test(hostile_deltas, snapshot_that_is_its_own_delta_is_moved)
{
    struct rdt_ref refs[2];

    begin(2);
    put_ring(1, refs);
    read_pattern(reader, &refs[1], 10);
    end(meant);
}

Test(hostile_deltas, snapshots_that_are_deltas_of_each_other_are_moved)
{
    struct rdt_ref refs[4];

    begin(2);
    put_ring(3, refs);
    rdt_request *requests[3];
    for (unsigned i = 0; i < 3; i++)
        requests[i] = start_one(reader, &refs[1 + i], LONG);
    for (unsigned i = 0; i < 3; i++) {
        rdt_object *object = await_object(reader, requests[i]);
        must(holds_pattern(tensor_of(object, 0).data, BYTES, 10 + i));
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    end(meant);
}

/* One fetch makes the node receive one delta, and not those of the delta, and so on. */
Test(hostile_deltas, delta_that_has_a_delta_is_moved)
{
    struct rdt_ref refs[9];

    begin(2);
    put_ring(8, refs);
    read_pattern(reader, &refs[1], 10);
    must_say(node_now(&c.node[1]).copies <= 3, "%llu replicas", (unsigned long long)node_now(&c.node[1]).copies);
    end(meant);
}

/* Its publisher never says that it is written. */
Test(hostile_deltas, delta_that_never_comes_is_done_without)
{
    begin_with(2, &(struct cluster_options){.flags = (const char *const[]){"--stall-timeout=2s", NULL}});
    struct rdt_put_options options = {
        .struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT | RDT_PUT_PENDING, .timeout_ns = LONG};
    struct rdt_ref base = put_noted(1, NULL, 0);
    void *memory = alloc_memory(owner, BYTES);
    struct rdt_ref pending = put_as(owner, &VECTOR(RDT_U8, BYTES, memory), 1, &options);

    read_pattern(reader, &base, 1);
    struct rdt_ref changed = put_noted(2, &base, pending.generation);
    read_pattern(reader, &changed, 2);
    end(meant);
}
