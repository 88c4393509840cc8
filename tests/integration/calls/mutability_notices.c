/* SPDX-License-Identifier: Apache-2.0 */
/* The notices about memory that its producer may still write while others read it: those that readers get, and those in the
 * log. */
#include "tests/integration/calls/fetch.h"

TestSuite(mutability_notices, .timeout = SUITE_SECONDS(60));

Test(mutability_notices, readers_are_told_once_per_object)
{
    rdt_object *objects[3];
    char *addr, heap[4096];

    begin(NULL);
    rdt *third = node_client(&node, "third");
    addr = alloc_memory(conn, 4096);
    struct rdt_ref live = put_pattern(addr, 4096, 1);
    struct rdt_ref second = put_one(conn, &VECTOR(RDT_U8, 4096, addr), NULL);
    struct rdt_ref copied = put_pattern(heap, 4096, 1);
    objects[0] = fetch_one(conn, &live, RDT_FETCH_AUTO);
    cr_assert_not(info_of(objects[0]).mutable_shared, "the producer knows");
    rdt_release(objects[0]);
    objects[0] = fetch_one(reader, &live, RDT_FETCH_COPY);
    cr_assert_not(info_of(objects[0]).mutable_shared, "a copy does not change");
    rdt_release(objects[0]);
    objects[0] = fetch_one(reader, &live, RDT_FETCH_AUTO);
    objects[1] = fetch_one(reader, &live, RDT_FETCH_AUTO);
    objects[2] = fetch_one(third, &live, RDT_FETCH_AUTO);
    cr_assert_eq(info_of(objects[0]).mutable_shared + info_of(objects[1]).mutable_shared + info_of(objects[2]).mutable_shared,
                 1);
    cr_assert(info_of(objects[0]).mutable_shared);
    for (unsigned i = 0; i < 3; i++)
        rdt_release(objects[i]);
    objects[0] = fetch_one(reader, &second, RDT_FETCH_AUTO);
    cr_assert(info_of(objects[0]).mutable_shared, "each object says it");
    objects[1] = fetch_one(reader, &copied, RDT_FETCH_AUTO);
    cr_assert_not(info_of(objects[1]).mutable_shared, "nobody can write what was copied in");
    rdt_release(objects[0]);
    rdt_release(objects[1]);
    rdt_close(third);
    end();
}

static unsigned times_in_log(const char *text)
{
    char *log = read_file(node.log, NULL);
    unsigned n = 0;

    for (const char *at = log; (at = strstr(at, text)); at++)
        n++;
    free(log);
    return n;
}

/* The daemon writes the line before it answers. */
static void expect_notices(const char *level, unsigned expected, unsigned expected_of_two)
{
    begin(&(struct node_options){.log = level});
    rdt *second = node_client(&node, "second");
    char *addr = alloc_memory(conn, 4096);
    for (unsigned i = 0; i < 5; i++) {
        struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 4096, addr), NULL);
        rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);

        cr_assert(info_of(object).mutable_shared, "each object says it to its reader");
        rdt_release(object);
    }
    cr_assert_eq(times_in_log("may still write it"), expected);
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_ref ref = put_one(second, &VECTOR(RDT_U8, 4096, alloc_memory(second, 4096)), NULL);
        rdt_release(fetch_one(reader, &ref, RDT_FETCH_AUTO));
    }
    cr_assert_eq(times_in_log("may still write it"), expected_of_two);
    rdt_close(second);
    end();
}

Test(mutability_notices, log_tells_once_per_producer)
{
    expect_notices("info", 1, 2);
}

Test(mutability_notices, log_tells_each_object_to_who_debugs)
{
    expect_notices("debug", 5, 7);
}
