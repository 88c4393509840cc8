/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches of many objects of other nodes in one call: small ones come hundreds in an answer of their node, and everything else
 * is fetched one by one, and says what is wrong. */
#include <criterion/criterion.h>
#include <grp.h>
#include <signal.h>

#include "client/rdt_many.h"
#include "tests/integration/nodes/nodes_fixture.h"

TestSuite(fetch_many_nodes, .timeout = 240);

#define MANY 2000u

static const char *const lost[] = {"is down: ",       "is lost: ", "refused",     "not connected",
                                   "cannot connect",  "timed out", "unreachable", "taken down and rebuilt",
                                   "connection from", "no answer", "reset",       NULL};
static const int64_t one[] = {1};
static uint32_t data[MANY];
static struct rdt_tensor tensors[MANY];
static struct rdt_value values[MANY];
static struct rdt_ref refs[MANY];
static rdt_object *objects[MANY];
static enum rdt_status statuses[MANY];

static void fill(void)
{
    for (unsigned i = 0; i < MANY; i++) {
        data[i] = i;
        tensors[i] = VECTOR(RDT_U32, 1, &data[i]);
        tensors[i].shape = one;
        values[i] = (struct rdt_value){.tensors = &tensors[i], .count = 1};
    }
}

static void put_all(rdt *conn, unsigned n)
{
    fill();
    must_ok(rdt_put_many(conn, values, n, NULL, refs, NULL, &err));
}

static void free_all(rdt *conn, unsigned n)
{
    must_ok(rdt_free_many(conn, refs, n, false, NULL, &err));
}

static void release_all(rdt *conn, unsigned n)
{
    rdt_cork(conn);
    for (unsigned i = 0; i < n; i++)
        rdt_release(objects[i]);
    rdt_uncork(conn);
    memset(objects, 0, sizeof objects);
}

static void must_be_number(unsigned i)
{
    struct rdt_object_info info = info_of(objects[i]);
    struct rdt_tensor seen = tensor_of(objects[i], 0);

    must(rdt_object_count(objects[i]) == 1 && seen.dtype == RDT_U32 && seen.ndim == 1 && seen.shape[0] == 1);
    must(*(const uint32_t *)seen.data == i && (uintptr_t)seen.data % 64 == 0);
    must(info.writable && !info.mutable_shared && info.bytes_moved == sizeof data[i] &&
         !rdt_object_pickles_trusted(objects[i]));
    must_say(strcmp(info.path, "inline") == 0, "%s", info.path);
    must(info.ref.generation == refs[i].generation && strcmp(info.ref.id, refs[i].id) == 0 && !info.ref.any_owner);
    must(memcmp(info.ref.node, refs[i].node, 16) == 0 && strcmp(info.ref.address, refs[i].address) == 0);
    must(info.ref.uid == refs[i].uid && strcmp(info.ref.tenant, refs[i].tenant) == 0);
}

/* ---- what comes in an answer ---- */

Test(fetch_many_nodes, small_objects_come_in_a_few_answers)
{
    const int64_t many[] = {2000};
    static uint32_t big[2000];
    struct node_status at_owner[2], at_reader[2];
    struct transfer_view in, out[4];
    uint64_t bytes = sizeof(uint32_t) * (MANY - 1) + sizeof big;
    rdt_object *ninth;

    begin(2);
    fill();
    values[7].id = "seven";
    values[7].id_bytes = 5;
    values[8].metadata = "eight";
    values[8].metadata_bytes = 6;
    big[1999] = 1999;
    tensors[9].shape = many;
    tensors[9].data = big;
    must_ok(rdt_put_many(owner, values, MANY, NULL, refs, NULL, &err));
    node_status(&c.node[0], &at_owner[0]);
    node_status(&c.node[1], &at_reader[0]);
    must_ok(rdt_fetch(reader, refs, MANY, NULL, objects, &err));
    node_status(&c.node[0], &at_owner[1]);
    node_status(&c.node[1], &at_reader[1]);
    must_say(at_owner[1].transfers_done - at_owner[0].transfers_done < MANY / 10, "%llu transfers of the owner",
             (unsigned long long)(at_owner[1].transfers_done - at_owner[0].transfers_done));
    must_say(at_reader[1].transfers_done - at_reader[0].transfers_done < MANY / 10, "%llu transfers of the reader",
             (unsigned long long)(at_reader[1].transfers_done - at_reader[0].transfers_done));
    must(at_owner[1].bytes_out - at_owner[0].bytes_out == bytes && at_owner[1].bytes_local == at_owner[0].bytes_local);
    must(at_reader[1].bytes_in - at_reader[0].bytes_in == bytes);
    must(((const uint32_t *)tensor_of(objects[9], 0).data)[1999] == 1999 && info_of(objects[9]).bytes_moved == sizeof big);
    for (unsigned i = 0; i < MANY; i++)
        if (i != 9)
            must_be_number(i);
    must(strcmp(rdt_object_metadata(objects[8], &(size_t){0}), "eight") == 0 && !rdt_object_metadata(objects[6], &(size_t){0}));
    in = transfer_numbered(&c.node[1], info_of(objects[0]).transfer);
    must_say(strcmp(in.direction, "in") == 0 && strcmp(in.path, "inline") == 0 && strstr(in.route, "objects in one answer"),
             "%s by %s: %s", in.direction, in.path, in.route);
    must(in.bytes > 0 && in.bytes_done == in.bytes && in.n_candidates > 0 && strcmp(in.state, "done") == 0);
    must(transfers_of(&c.node[0], out, 4) == 4 && strcmp(out[0].direction, "out") == 0 && strcmp(out[0].path, "inline") == 0);
    free_all(owner, MANY); /* the objects end, and their bytes stay */
    wait_until(LONG, node_now(&c.node[0]).objects == 0);
    ninth = objects[9];
    objects[9] = objects[10];
    refs[9] = refs[10];
    for (unsigned i = 0; i < MANY; i++)
        if (i != 9)
            must_be_number(i);
    objects[9] = ninth;
    release_all(reader, MANY);
    end(NULL);
}

/* Each of several nodes hands out what it has. Of the last one there are too few. */
Test(fetch_many_nodes, objects_of_several_nodes_in_any_order)
{
    enum { N = 400 };
    rdt *conn[4];

    begin(4);
    fill();
    for (unsigned k = 0; k < 4; k++)
        conn[k] = node_client(&c.node[k], "owner");
    for (unsigned i = 0; i < N; i++)
        must_ok(rdt_put_many(conn[i % 100 == 99 ? 3 : i % 3], &values[i], 1, NULL, &refs[i], NULL, &err));
    for (unsigned k = 0; k < 4; k++) {
        must_ok(rdt_fetch(conn[k], refs, N, NULL, objects, &err));
        for (unsigned i = 0; i < N; i++)
            must_be_number(i);
        release_all(conn[k], N);
    }
    for (unsigned i = 0; i < N; i++)
        must_ok(rdt_free(conn[i % 100 == 99 ? 3 : i % 3], &refs[i], false, &err));
    for (unsigned k = 0; k < 4; k++)
        rdt_close(conn[k]);
    end(NULL);
}

Test(fetch_many_nodes, objects_of_several_tensors_and_of_none)
{
    enum { N = 100 };
    uint8_t bytes[6] = {0, 1, 2, 3, 4, 5};
    const int64_t two_three[] = {2, 3}, by_column[] = {1, 2}, none[] = {0, 7};
    struct rdt_tensor several[3] = {{RDT_U8, 2, two_three, by_column, bytes}, {RDT_F32, 2, none, NULL, NULL}, {0}};

    begin(2);
    fill();
    several[2] = tensors[3];
    values[3] = (struct rdt_value){.tensors = several, .count = 3};
    values[4] = (struct rdt_value){.tensors = NULL, .count = 0, .metadata = "nothing", .metadata_bytes = 8};
    must_ok(rdt_put_many(owner, values, N, NULL, refs, NULL, &err));
    must_ok(rdt_fetch(reader, refs, N, NULL, objects, &err));
    must(rdt_object_count(objects[3]) == 3 && rdt_object_count(objects[4]) == 0);
    must(tensor_of(objects[3], 0).ndim == 2 && tensor_of(objects[3], 1).shape[1] == 7);
    must(((const uint8_t *)tensor_of(objects[3], 0).data)[1] == 2 && *(const uint32_t *)tensor_of(objects[3], 2).data == 3);
    must(strcmp(rdt_object_metadata(objects[4], &(size_t){0}), "nothing") == 0);
    must_be_number(5);
    release_all(reader, N);
    free_all(owner, N);
    end(NULL);
}

/* Nothing else is waited for. */
Test(fetch_many_nodes, small_ones_alone_may_be_taken)
{
    enum { N = 100 };
    struct rdt_fetch_options options = within(LONG);
    struct rdt_ref small;

    begin(2);
    put_all(owner, N);
    small = refs[3];
    refs[3] = put_pattern(owner, NULL, 300000, 3);
    must_ok(rdt_fetch_small(reader, refs, 0, &options, NULL, &err));
    must_refuse(RDT_INVALID, "objects_p", rdt_fetch_small(reader, refs, N, &options, NULL, &err));
    must_ok(rdt_fetch_small(reader, refs, 8, &options, objects, &err));
    must(!objects[0] && !objects[7]);
    must_ok(rdt_fetch_small(reader, refs, N, &options, objects, &err));
    for (unsigned i = 0; i < N; i++)
        if (i == 3)
            must(!objects[i]);
        else
            must_be_number(i);
    release_all(reader, N);
    must_ok(rdt_free(owner, &small, false, &err));
    free_all(owner, N);
    end(NULL);
}

/* ---- what is fetched one by one ---- */

Test(fetch_many_nodes, what_is_not_there_has_a_status_of_its_own)
{
    enum { N = 200 };
    struct rdt_fetch_options options = within(RDT_NO_WAIT);
    struct rdt_ref large, kept[4];

    begin(2);
    put_all(owner, N);
    memcpy(kept, (struct rdt_ref[]){refs[10], refs[20], refs[30], refs[40]}, sizeof kept);
    large = put_pattern(owner, NULL, 300000, 4);
    must_ok(rdt_free(owner, &refs[10], true, &err));
    refs[20] = ref_on(&c.node[0], "later");
    refs[30].id[0] = 'X'; /* of another object */
    refs[40] = large;
    must_be(RDT_FREED, rdt_fetch_each(reader, refs, N, &options, objects, statuses, &err));
    for (unsigned i = 0; i < N; i++) {
        enum rdt_status expected = i == 10 ? RDT_FREED : i == 20 ? RDT_NOT_PUT : i == 30 ? RDT_NOT_FOUND : RDT_OK;
        must_say(statuses[i] == expected || (i == 40 && statuses[i] == RDT_TIMED_OUT), "%u: %s", i,
                 rdt_status_name(statuses[i]));
        must(!objects[i] == (statuses[i] != RDT_OK));
        if (objects[i] && i != 40)
            must_be_number(i);
    }
    release_all(reader, N);
    must_be(RDT_FREED, rdt_fetch(reader, refs, N, &options, objects, &err));
    must(!objects[0]);
    refs[10] = refs[9];
    refs[30] = refs[9];
    options.timeout_ns = LONG;
    struct rdt_ref later = put_pattern(owner, "later", 10, 1);
    must_ok(rdt_fetch_each(reader, refs, N, &options, objects, statuses, &err));
    must(holds_pattern(tensor_of(objects[20], 0).data, 10, 1) && holds_pattern(tensor_of(objects[40], 0).data, 300000, 4));
    must(*(const uint32_t *)tensor_of(objects[30], 0).data == 9);
    release_all(reader, N);
    options.mode = RDT_FETCH_SHARE;
    must_be(RDT_NO_PATH, rdt_fetch(reader, refs, N, &options, objects, &err));
    must_ok(rdt_free(owner, &later, false, &err));
    must_ok(rdt_free(owner, &large, false, &err));
    for (unsigned i = 0; i < 4; i++)
        (void)rdt_free(owner, &kept[i], false, NULL);
    for (unsigned i = 0; i < N; i++)
        (void)rdt_free(owner, &refs[i], false, NULL);
    end(NULL);
}

static int fetch_as_stranger(struct actor *self, void *arg)
{
    enum { N = 50 };
    rdt *conn;

    must(setgroups(0, NULL) == 0 && setresgid(1001, 1001, 1001) == 0 && setresuid(1001, 1001, 1001) == 0);
    conn = node_client(&c.node[1], "visitor");
    must_be(RDT_DENIED, rdt_fetch_each(conn, refs, N, NULL, objects, statuses, &err));
    for (unsigned i = 0; i < N; i++)
        must_say(statuses[i] == (i % 2 ? RDT_DENIED : RDT_OK), "%u: %s", i, rdt_status_name(statuses[i]));
    for (unsigned i = 0; i < N; i += 2)
        must_be_number(i);
    release_all(conn, N);
    rdt_close(conn);
    return 0;
}

Test(fetch_many_nodes, other_users_get_what_is_shown_to_them)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct actor stranger;

    open_the_way();
    begin(2);
    fill();
    for (unsigned i = 0; i < 50; i++) {
        options.visibility = i % 2 ? RDT_VISIBLE_TO_OWNER : RDT_VISIBLE_TO_ALL;
        must_ok(rdt_put(owner, &tensors[i], 1, &options, &refs[i], &err));
    }
    actor_start(&stranger, fetch_as_stranger, NULL);
    actor_wait(&stranger);
    free_all(owner, 50);
    end(NULL);
}

/* ---- ends ---- */

/* The node does not answer, and its link stays up: there is time left for the fetches that say so. */
Test(fetch_many_nodes, a_silent_node_costs_the_time_and_no_more)
{
    enum { N = 60 };
    static const char *const flags[] = {"--peer-timeout=1h", "--connect-timeout=1h", NULL};
    struct rdt_fetch_options options = within(RDT_NO_WAIT);

    begin_with(2, &(struct cluster_options){.flags = flags});
    put_all(owner, N);
    must_ok(rdt_fetch(reader, refs, N, NULL, objects, &err));
    release_all(reader, N);
    node_freeze(&c.node[0]);
    must_be(RDT_TIMED_OUT, rdt_fetch_each(reader, refs, N, &options, objects, statuses, &err));
    options.timeout_ns = patience(2 * SEC);
    must_refuse(RDT_TIMED_OUT, "has not answered", rdt_fetch_each(reader, refs, N, &options, objects, statuses, &err));
    for (unsigned i = 0; i < N; i++)
        must_say(statuses[i] == RDT_TIMED_OUT && !objects[i], "%u: %s", i, rdt_status_name(statuses[i]));
    options.timeout_ns = 100 * MSEC;
    must_ok(rdt_fetch_small(reader, refs, N, &options, objects, &err));
    must(!objects[0] && !objects[N - 1]);
    node_thaw(&c.node[0]);
    must_ok(rdt_fetch(reader, refs, N, NULL, objects, &err));
    for (unsigned i = 0; i < N; i++)
        must_be_number(i);
    release_all(reader, N);
    free_all(owner, N);
    end(lost);
}

Test(fetch_many_nodes, a_killed_node_is_lost_and_the_others_are_not)
{
    enum { N = 60 };
    struct rdt_fetch_options options = within(LONG);
    rdt *third;

    begin(3);
    third = node_client(&c.node[2], "owner");
    put_all(owner, N);
    must_ok(rdt_put_many(third, values, N / 2, NULL, refs, NULL, &err));
    node_kill(&c.node[0], SIGKILL);
    must_be(RDT_PEER_LOST, rdt_fetch_each(reader, refs, N, &options, objects, statuses, &err));
    for (unsigned i = 0; i < N; i++) {
        must_say(statuses[i] == (i < N / 2 ? RDT_OK : RDT_PEER_LOST), "%u: %s", i, rdt_status_name(statuses[i]));
        if (i < N / 2)
            must_be_number(i);
    }
    release_all(reader, N);
    free_all(third, N / 2);
    rdt_close(third);
    cluster_restart(&c, 0);
    end(lost);
}

static int fetch_and_wait(struct actor *self, void *arg)
{
    rdt *conn = node_client(&c.node[1], "asker");

    actor_step(self);
    (void)rdt_fetch(conn, refs, MANY, NULL, objects, NULL);
    return 0;
}

Test(fetch_many_nodes, a_reader_that_dies_leaves_nothing)
{
    static const char *const flags[] = {"--peer-timeout=1h", "--connect-timeout=1h", NULL};
    struct actor asker;

    begin_with(2, &(struct cluster_options){.flags = flags});
    put_all(owner, MANY);
    node_freeze(&c.node[0]);
    actor_start(&asker, fetch_and_wait, NULL);
    actor_await(&asker);
    actor_kill(&asker, SIGKILL);
    wait_until(LONG, node_now(&c.node[1]).clients == 1);
    node_thaw(&c.node[0]);
    must_ok(rdt_fetch(reader, refs, MANY, NULL, objects, &err));
    release_all(reader, MANY);
    free_all(owner, MANY);
    end(NULL);
}
