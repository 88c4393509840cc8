/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that are freed while they are written. */
#include "tests/integration/faults/storage.h"

TestSuite(storage_hostile, .timeout = SUITE_SECONDS(240));

/* ---- freed while it is written ---- */

/* When a free has been answered, a daemon that is killed cannot bring the object back: there is no file, and will be none. */
static void check_freed(bool force)
{
    struct rdt_ref ref;
    rdt *conn;

    start();
    conn = node_client(&node, "client");
    for (unsigned round = 0; round < 2; round++) {
        ref = put_snapshot(conn, "freed", 64 * MIB, RDT_PUT_DETACHED | RDT_PUT_STORED, round);
        wait_until(LONG, count_files(".tmp") + count_files(".safetensors") > 0);
        must_ok(rdt_free(conn, &ref, force, &err));
        cr_assert_eq(count_files(".tmp") + count_files(".safetensors"), 0u, "round %u", round);
    }
    rdt_close(conn);
    node_end(&node, NULL);
    remove_store();
}

Test(storage_hostile, free_is_answered_when_the_object_is_not_written_any_more)
{
    check_freed(false);
}

Test(storage_hostile, forced_free_is_answered_when_the_object_is_not_written_any_more)
{
    check_freed(true);
}

/* Whoever else holds the object keeps it, and its file. */
Test(storage_hostile, free_does_not_end_the_writing_of_what_others_hold)
{
    struct rdt_ref ref, name = name_ref("weights");
    rdt *conn;

    start();
    conn = node_client(&node, "trainer");
    ref = put_snapshot(conn, NULL, 64 * MIB, RDT_PUT_STORED, 1);
    must_ok(rdt_publish(conn, "weights", &ref, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_store(conn, &name, LONG, NULL, 0, &err));
    again(SIGKILL);
    rdt_close(conn);
    conn = node_client(&node, "sampler");
    must_have(conn, &name, 64 * MIB, 1);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be_empty();
    rdt_close(conn);
    node_end(&node, NULL);
    remove_store();
}
