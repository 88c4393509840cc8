/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon is killed after objects were freed and others put under their ids, and before the files of the former are removed.
 * The keeper has the latter. */
#include "tests/integration/faults/storage.h"

#include "client/rdt_info.h"
#include "tests/support/keeper.h"

TestSuite(storage_replaced, .timeout = SUITE_SECONDS(120));

#define OBJECTS 150u
#define OTHERS 6u /* between two of these: so the generations lie in several blocks (ids.h), which have no order */
#define SIZE 3000u
#define STRANGER 12345u /* another user */

static struct test_keeper keeper;
static char copy[200];

static void run(const char *script)
{
    must(setenv("STORE", store, 1) == 0 && setenv("COPY", copy, 1) == 0);
    must(system(script) == 0);
}

static rdt *begin(void)
{
    static char flag[200];

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    more_flags[0] = flag;
    return start_client("client");
}

static void save_files(void)
{
    (void)snprintf(copy, sizeof copy, "%s.copy", store);
    run("cp -rp \"$STORE\" \"$COPY\"");
}

/* As if the daemon had been killed before it came to remove the saved files. */
static void kill_before_removal(void)
{
    node_kill(&node, SIGKILL);
    run("rm \"$COPY/storage.lock\" && cp -rp \"$COPY\"/* \"$STORE\" && rm -r \"$COPY\"");
}

static void finish(rdt *conn)
{
    rdt_close(conn);
    node_stop(&node);
    keeper_stop(&keeper, SIGTERM);
    remove_store();
}

static struct rdt_ref put_nth(rdt *conn, unsigned i, bool stored, uint32_t seed)
{
    char id[16];

    for (unsigned k = 0; k < OTHERS; k++) {
        struct rdt_ref other = put_snapshot(conn, NULL, 8, 0, 0);
        must_ok(rdt_free(conn, &other, false, &err));
    }
    (void)snprintf(id, sizeof id, "b%u", i);
    struct rdt_ref ref = put_snapshot(conn, id, SIZE, RDT_PUT_DETACHED | (stored ? RDT_PUT_STORED : 0), seed);
    if (stored)
        must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    return ref;
}

static uint64_t stored_bytes(rdt *conn)
{
    struct rdt_daemon_status status = {.struct_size = sizeof status};

    must_ok(rdt_daemon_status(conn, &status, &err));
    return status.stored_bytes;
}

static void must_be_unknown(rdt *conn, struct rdt_ref ref)
{
    const struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = RDT_NO_WAIT};
    rdt_object *object;

    ref.generation = 0;
    cr_assert_neq(rdt_fetch(conn, &ref, 1, &options, &object, NULL), RDT_OK);
}

Test(storage_replaced, freed_objects_do_not_come_back_when_the_objects_with_their_ids_end)
{
    struct rdt_ref old[OBJECTS], now[OBJECTS];
    rdt *conn = begin();

    for (unsigned i = 0; i < OBJECTS; i++)
        old[i] = put_nth(conn, i, true, 1);
    save_files();
    for (unsigned i = 0; i < OBJECTS; i++)
        must_ok(rdt_free(conn, &old[i], false, &err));
    must_be_empty();
    for (unsigned i = 0; i < OBJECTS; i++)
        now[i] = put_nth(conn, i, i % 3 == 0, 2);
    rdt_close(conn);
    kill_before_removal();
    start();
    conn = node_client(&node, "client");
    cr_assert(node_log_has(&node, "150 files ("));
    cr_assert(!node_log_has(&node, "is ignored"));
    wait_until(LONG, count_files(".safetensors") == OBJECTS / 3);
    for (unsigned i = 0; i < OBJECTS; i++)
        must_have(conn, &now[i], SIZE, 2);
    for (unsigned i = 0; i < OBJECTS; i++)
        must_ok(rdt_free(conn, &now[i], false, &err));
    must_be_empty();
    wait_until(LONG, stored_bytes(conn) == 0);
    conn = restart(conn, SIGTERM, "client");
    for (unsigned i = 0; i < OBJECTS; i++)
        must_be_unknown(conn, now[i]);
    finish(conn);
}

/* The new objects were put by a later daemon. */
Test(storage_replaced, freed_object_of_an_earlier_daemon_does_not_come_back)
{
    rdt *conn = begin();
    struct rdt_ref old = put_nth(conn, 0, true, 1);

    save_files();
    conn = restart(conn, SIGKILL, "client");
    must_ok(rdt_free(conn, &old, false, &err));
    must_be_empty();
    struct rdt_ref now = put_nth(conn, 0, false, 2);
    rdt_close(conn);
    kill_before_removal();
    start();
    conn = node_client(&node, "client");
    must_be_empty();
    cr_assert(!node_log_has(&node, "is ignored"));
    must_have(conn, &now, SIZE, 2);
    must_ok(rdt_free(conn, &now, false, &err));
    finish(conn);
}

/* A daemon without the keeper has stored it: nobody can say that the object of the journal is newer. */
Test(storage_replaced, file_that_may_be_newer_stays_and_is_named)
{
    rdt *conn = begin();
    struct rdt_ref first = put_nth(conn, 0, false, 1);
    const char *flag = more_flags[0];

    rdt_close(conn);
    node_kill(&node, SIGKILL);
    more_flags[0] = NULL;
    conn = start_client("client");
    struct rdt_ref second = put_nth(conn, 0, true, 2);
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    more_flags[0] = flag;
    conn = start_client("client");
    cr_assert(node_log_has(&node, "is ignored: object \"b0\" exists already"));
    cr_assert_eq(count_files(".safetensors"), 1u);
    must_have(conn, &first, SIZE, 1);
    must_ok(rdt_free(conn, &first, false, &err));
    conn = restart(conn, SIGKILL, "client");
    must_have(conn, &second, SIZE, 2);
    must_ok(rdt_free(conn, &second, false, &err));
    must_be_empty();
    finish(conn);
}

/* Both objects have files, and no keeper says which one was there. */
Test(storage_replaced, later_of_two_stored_objects_is_restored_without_a_keeper)
{
    struct rdt_ref old[OBJECTS], now[OBJECTS];
    rdt *conn = start_client("client");

    for (unsigned i = 0; i < OBJECTS; i++)
        old[i] = put_nth(conn, i, true, 1);
    save_files();
    for (unsigned i = 0; i < OBJECTS; i++)
        must_ok(rdt_free(conn, &old[i], false, &err));
    must_be_empty();
    for (unsigned i = 0; i < OBJECTS; i++)
        now[i] = put_nth(conn, i, true, 2);
    rdt_close(conn);
    kill_before_removal();
    start();
    conn = node_client(&node, "client");
    cr_assert(!node_log_has(&node, "is ignored"));
    wait_until(LONG, count_files(".safetensors") == OBJECTS);
    for (unsigned i = 0; i < OBJECTS; i++)
        must_have(conn, &now[i], SIZE, 2);
    conn = restart(conn, SIGTERM, "client");
    for (unsigned i = 0; i < OBJECTS; i++)
        must_have(conn, &now[i], SIZE, 2);
    for (unsigned i = 0; i < OBJECTS; i++)
        must_ok(rdt_free(conn, &now[i], false, &err));
    must_be_empty();
    wait_until(LONG, stored_bytes(conn) == 0);
    rdt_close(conn);
    node_stop(&node);
    remove_store();
}

Test(storage_replaced, object_of_another_user_replaces_nothing)
{
    need_root();
    rdt *conn = begin();
    must(chmod(node.socket, 0666) == 0);
    must(seteuid(STRANGER) == 0);
    rdt *stranger = node_client(&node, "stranger");
    must(seteuid(0) == 0);
    struct rdt_ref theirs = put_nth(stranger, 0, true, 1);
    save_files();
    must_ok(rdt_free(stranger, &theirs, false, &err));
    must_be_empty();
    struct rdt_ref ours = put_nth(conn, 0, false, 2);
    rdt_close(stranger);
    rdt_close(conn);
    kill_before_removal();
    start();
    conn = node_client(&node, "client");
    must_have(conn, &ours, SIZE, 2);
    cr_assert_eq(count_files(".safetensors"), 1u);
    cr_assert(!node_log_has(&node, "is ignored"));
    must_ok(rdt_free(conn, &ours, false, &err));
    must(chmod(node.socket, 0666) == 0);
    must(seteuid(STRANGER) == 0);
    stranger = node_client(&node, "stranger");
    must(seteuid(0) == 0);
    must_have(stranger, &theirs, SIZE, 1);
    must_ok(rdt_free(stranger, &theirs, false, &err));
    rdt_close(stranger);
    must_be_empty();
    finish(conn);
}

/* The name's newest version is not stored, so the file of the one before stays for a start without the keeper. */
Test(storage_replaced, file_stays_for_the_name_whose_version_it_is)
{
    struct rdt_ref name = name_ref("weights"), next;
    rdt *conn = begin();
    struct rdt_ref old = put_snapshot(conn, "b0", SIZE, RDT_PUT_STORED, 1);

    must_ok(rdt_publish(conn, "weights", &old, NULL, NULL, &err));
    must_ok(rdt_store(conn, &name, LONG, NULL, 0, &err));
    must_ok(rdt_free(conn, &old, false, &err));
    next = put_snapshot(conn, NULL, SIZE, 0, 3);
    must_ok(rdt_publish(conn, "weights", &next, NULL, NULL, &err));
    must_ok(rdt_free(conn, &next, false, &err));
    struct rdt_ref now = put_nth(conn, 0, false, 2);
    for (unsigned i = 0; i < 2; i++) {
        conn = restart(conn, SIGKILL, "client");
        cr_assert(!node_log_has(&node, "is ignored"));
        cr_assert_eq(count_files(".safetensors"), 1u);
        cr_assert_gt(stored_bytes(conn), SIZE);
        must_have(conn, &now, SIZE, 2);
        must_have(conn, &name, SIZE, 3);
    }
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    keeper_stop(&keeper, SIGKILL);
    keeper_start(&keeper);
    conn = start_client("client");
    must_have(conn, &name, SIZE, 1);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be_empty();
    finish(conn);
}

/* The later object has the id, in whatever order the files are read, and keeps it for the daemons that have its record. */
static void keep_versions_beside_later_objects(bool with_keeper)
{
    struct rdt_ref names[OBJECTS], now[OBJECTS], ref;
    char text[32];
    rdt *conn = with_keeper ? begin() : start_client("client");

    for (unsigned i = 0; i < OBJECTS; i++) {
        (void)snprintf(text, sizeof text, "name %u", i);
        names[i] = name_ref(text);
        ref = put_nth(conn, i, true, 1);
        must_ok(rdt_publish(conn, text, &ref, NULL, NULL, &err));
        must_ok(rdt_store(conn, &names[i], LONG, NULL, 0, &err));
        must_ok(rdt_free(conn, &ref, false, &err));
        ref = put_snapshot(conn, NULL, SIZE, 0, 3);
        must_ok(rdt_publish(conn, text, &ref, NULL, NULL, &err)); /* this version is not stored */
        must_ok(rdt_free(conn, &ref, false, &err));
    }
    for (unsigned i = 0; i < OBJECTS; i++)
        now[i] = put_nth(conn, i, true, 2);
    if (with_keeper) {
        rdt_close(conn);
        node_kill(&node, SIGKILL);
        keeper_stop(&keeper, SIGKILL);
        keeper_start(&keeper);
        conn = start_client("client");
    }
    for (unsigned round = 0; round < 2; round++) {
        conn = restart(conn, SIGKILL, "client");
        cr_assert(!node_log_has(&node, "is ignored"));
        cr_assert_eq(count_files(".safetensors"), 2 * OBJECTS);
        for (unsigned i = 0; i < OBJECTS; i++) {
            must_have(conn, &now[i], SIZE, 2);
            ref = now[i];
            ref.generation = 0;
            must_have(conn, &ref, SIZE, 2);
            must_have(conn, &names[i], SIZE, 1);
        }
    }
    for (unsigned i = 0; i < OBJECTS; i++) {
        must_ok(rdt_unpublish(conn, &names[i], &err));
        must_ok(rdt_free(conn, &now[i], false, &err));
    }
    must_be_empty();
    if (with_keeper) {
        finish(conn);
        return;
    }
    rdt_close(conn);
    node_stop(&node);
    remove_store();
}

Test(storage_replaced, name_keeps_its_version_beside_a_later_stored_object_with_the_id)
{
    keep_versions_beside_later_objects(false);
}

Test(storage_replaced, name_keeps_its_version_beside_a_later_stored_object_that_a_new_keeper_has)
{
    keep_versions_beside_later_objects(true);
}

/* The daemon came to remove neither the object's file nor that of its name. */
Test(storage_replaced, file_and_name_of_an_object_that_was_freed_by_force_go)
{
    struct rdt_ref name = name_ref("weights");
    rdt *conn = begin();
    struct rdt_ref old = put_nth(conn, 0, true, 1);

    must_ok(rdt_publish(conn, "weights", &old, NULL, NULL, &err));
    must_ok(rdt_store(conn, &name, LONG, NULL, 0, &err));
    save_files();
    must_ok(rdt_free(conn, &old, true, &err));
    must_be_empty();
    struct rdt_ref now = put_nth(conn, 0, false, 2);
    rdt_close(conn);
    kill_before_removal();
    start();
    conn = node_client(&node, "client");
    must_be_empty();
    cr_assert(!node_log_has(&node, "is ignored"));
    must_be_unknown(conn, name);
    must_have(conn, &now, SIZE, 2);
    must_ok(rdt_free(conn, &now, false, &err));
    finish(conn);
}
