/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of many parts that lose a part before they are complete: all their publishers are told at once. */
#include "tests/integration/versions/shards_fixture.h"
#include "wire_ref.h"

TestSuite(shards_ends, .timeout = 120);

static uint32_t n_holds(rdt *conn, const struct rdt_ref *part)
{
    struct rdt_stat stat = {0};

    return rdt_stat(conn, part, &stat, NULL) == RDT_OK ? stat.holds : 0;
}

Test(shards_ends, a_part_that_is_freed_by_force_ends_the_version_at_once)
{
    struct rdt_ref name, parts[2];
    rdt_request *requests[2];
    rdt *conns[2], *other;

    cluster_start(&c, 1, &(struct cluster_options){.stream = true, .no_ucx = true});
    name = name_on(0, "policy", 0);
    other = on(0);
    for (unsigned i = 0; i < 2; i++) {
        conns[i] = on(0);
        parts[i] = put_rank(conns[i], 1, i, 4, true);
        requests[i] = start_part(conns[i], &name, 1, i, 4, &parts[i]);
        wait_until(LONG, n_holds(other, &parts[i]) >= 2); /* the producer's, and the version's */
    }
    must_ok(rdt_free(other, &parts[1], true, &err));
    for (unsigned i = 0; i < 2; i++) {
        must_refuse(RDT_FREED, "the part of rank 1, object ",
                    rdt_wait(conns[i], &requests[i], 1, 1, RDT_FOREVER, NULL, NULL, &err));
        rdt_request_destroy(requests[i]);
    }
    must_ok(rdt_free(conns[0], &parts[0], false, &err));
    must(publish(conns, 2, &name, 1, 4, true) == 1); /* the step can be published again */
    must_ok(rdt_unpublish(other, &name, &err));
    wait_until(LONG, objects_on(0) == 0);
    for (unsigned i = 0; i < 2; i++)
        rdt_close(conns[i]);
    end_shards(other, NULL);
}

Test(shards_ends, a_part_of_another_node_that_is_freed_by_force_ends_the_version_at_once)
{
    struct rdt_ref name, parts[2];
    rdt *conns[2], *other;

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true});
    name = name_on(0, "policy", 0);
    other = on(1);
    for (unsigned i = 0; i < 2; i++) {
        conns[i] = on(i);
        parts[i] = put_rank(conns[i], 1, i, 4, true);
    }
    rdt_request *near = start_part(conns[0], &name, 1, 0, 4, &parts[0]);
    rdt_request *far = start_part(conns[1], &name, 1, 1, 4, &parts[1]);
    wait_until(LONG, n_holds(other, &parts[1]) >= 2); /* the producer's, and the version's */
    must_ok(rdt_free(other, &parts[1], true, &err));
    must_refuse(RDT_OWNER_DIED, "the publisher of rank 1", rdt_wait(conns[0], &near, 1, 1, RDT_FOREVER, NULL, NULL, &err));
    must_refuse(RDT_FREED, "was freed before its version was complete",
                rdt_wait(conns[1], &far, 1, 1, RDT_FOREVER, NULL, NULL, &err));
    rdt_request_destroy(near);
    rdt_request_destroy(far);
    must_ok(rdt_free(conns[0], &parts[0], false, &err));
    for (unsigned i = 0; i < 2; i++)
        wait_until(LONG, objects_on(i) == 0);
    for (unsigned i = 0; i < 2; i++)
        rdt_close(conns[i]);
    end_shards(other, NULL);
}

/* Readers that hold the version are told by rdtctl shards and the doctor, because nothing can bring the part back. */
Test(shards_ends, a_part_of_a_complete_version_that_is_freed_by_force_is_lost)
{
    struct rdt_ref name, part;
    rdt_manifest *manifest;
    size_t tensors;
    rdt *conn = begin_shards(1);

    name = name_on(0, "policy", 0);
    must(publish(&conn, 1, &name, 1, 4, true) == 1);
    must_ok(rdt_manifest_fetch(conn, &name, LONG, &manifest, &err));
    must_ok(rdt_manifest_part(manifest, 2, &part, &tensors, &err));
    rdt_manifest_release(manifest);
    must(!doctor_says(conn, "RDT050", "ranks 2"));
    must_ok(rdt_free(conn, &part, true, &err));
    wait_until(LONG, doctor_says(conn, "RDT050", "2"));
    must_ok(rdt_unpublish(conn, &name, &err));
    wait_until(LONG, objects_on(0) == 0);
    end_shards(conn, NULL);
}

static bool has_failure(rdt *conn, const struct rdt_ref *name)
{
    Rdt__Pb__Shards request = RDT__PB__SHARDS__INIT;
    ProtobufCMessage *message;
    Rdt__Pb__Ref wire;

    wire_ref_from(name, &wire);
    request.name = &wire;
    if (call(conn, RDT_MSG_SHARDS, &request.base, LONG, &message, NULL) != RDT_OK)
        return false;
    bool failed = strstr(((const Rdt__Pb__ShardsReply *)message)->failure, "it had no memory");
    protobuf_c_message_free_unpacked(message, NULL);
    return failed;
}

enum { KEPT = 1024, MANY = KEPT + 200 };

static struct rdt_ref numbered(unsigned i)
{
    char id[16];

    (void)snprintf(id, sizeof id, "policy%u", i);
    return name_on(0, id, 0);
}

static void give_up(rdt *conn, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct rdt_ref name = numbered(i);
        must_ok(rdt_part_give_up(conn, &name, 1, 1, 2, RDT_NO_MEMORY, "it had no memory", &err));
    }
}

static unsigned n_failures(rdt *conn, unsigned n)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < n; i++) {
        struct rdt_ref name = numbered(i);
        kept += has_failure(conn, &name);
    }
    return kept;
}

/* A user can give up any number of names, none of which is charged to it. */
Test(shards_ends, only_so_many_names_of_a_user_are_kept_for_ranks_that_gave_up)
{
    struct rdt_daemon_status status = RDT_INIT(status);
    rdt *conn = begin_shards(1), *other = NULL;
    unsigned n;

    if (geteuid() == 0) {
        must(seteuid(12345) == 0);
        node_connect(&c.node[0], &other);
        must(seteuid(0) == 0);
    }
    give_up(conn, MANY);
    wait_until(LONG, rdt_daemon_status(conn, &status, NULL) == RDT_OK && status.shard_failures == MANY);
    if (other)
        give_up(other, 2);
    wait_until(LONG, rdt_daemon_status(conn, &status, NULL) == RDT_OK && status.shard_failures == MANY + (other ? 2 : 0));
    n = n_failures(conn, MANY);
    must_say(n == KEPT, "%u names", n);
    n = other ? n_failures(other, 2) : 2;
    must_say(n == 2, "%u names of another user", n);
    end_shards(conn, other);
}

/* No rank is to blame, so none is named. */
Test(shards_ends, a_version_that_is_not_checked_in_time_says_so)
{
    cluster_start(&c, 1, &(struct cluster_options){.stream = true, .no_ucx = true});
    struct rdt_ref name = name_on(0, "policy", 0);
    rdt *conn = on(0);
    struct rdt_ref part = put_rank(conn, 1, 0, 1, true);
    if (!node_hold_workers(&c.node[0]))
        cr_skip_test("this process may not trace the daemon");
    must_refuse(RDT_TIMED_OUT, "all 1 parts are there, but their boxes are still being checked",
                rdt_publish_part(conn, &name, 1, 0, 1, &part, NULL, 500 * MSEC, NULL, &err));
    node_release_workers(&c.node[0]);
    must_ok(rdt_free(conn, &part, false, &err));
    end_shards(conn, NULL);
}
