/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of three daemons over the test transport "grouped": who may use a group, which events bring it down, and which do
 * not. */
#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include "tests/integration/groups/groups_fixture.h"
#include "tests/support/fakes/fake_device.h"
#include "tests/support/raw.h"

TestSuite(groups, .timeout = 240);

static void begin_with(unsigned n, const char *grace)
{
    const char *flags[] = {"--chunk=64KiB", "--chunks-in-flight=2", grace, "--stall-timeout=5s", NULL};

    begin_groups(n, "grouped", &(struct cluster_options){.grouped = true, .no_ucx = true, .flags = flags});
}

static void begin(unsigned n)
{
    begin_with(n, "--quiesce-grace=300ms");
}

static void set_faults(const char *lines)
{
    for (unsigned i = 0; i < c.n; i++)
        cluster_faults(&c, i, lines);
}

static void destroy(const char *name)
{
    must_ok(rdt_group_destroy(actor_of[0], name, &err));
}

/* ---- use ---- */

Test(groups, fetch_both_ways_between_all_ranks)
{
    begin(3);
    must_ok(form(actor_of[0], "g", 3, &err));
    for (unsigned from = 0; from < 3; from++) {
        must(group_is(actor_of[from], "g", "ready", 1));
        for (unsigned to = 0; to < 3; to++)
            if (from != to)
                move(from, to, NULL, 3 * MIB + 7);
    }
    destroy("g");
    for (unsigned i = 0; i < 3; i++)
        must(!group_is(actor_of[i], "g", "ready", 0));
    end_groups(NULL);
}

/* Otherwise a user who may form groups could fill the log. */
Test(groups, user_who_forms_groups_writes_no_line_of_the_log_for_each)
{
    begin(2);
    for (unsigned i = 0; i < 5; i++) {
        must_ok(form(actor_of[0], "many", 2, &err));
        destroy("many");
    }
    for (unsigned i = 0; i < 2; i++) {
        char *log = read_file(c.node[i].log, NULL);
        must_say(!strstr(log, " info: group many "), "%s", log);
        free(log);
    }
    end_groups(NULL);
}

Test(groups, without_a_group_the_sentence_says_what_to_do)
{
    rdt_object *object;

    begin(2);
    rdt *stranger = node_client(&c.node[1], "stranger");
    struct rdt_ref ref = put_pattern(actor_of[0], NULL, MIB, 1);
    must_refuse(RDT_NO_PATH, "share no grouped group", fetch_by(actor_of[1], &ref, "grouped", NULL, &object, &err));
    must_ok(form(actor_of[0], "g", 2, &err));
    must_refuse(RDT_NO_PATH, "rdt_group_create", fetch_by(stranger, &ref, "grouped", NULL, &object, &err));
    must_refuse(RDT_NO_PATH, "\"stranger\"", fetch_by(stranger, &ref, "grouped", NULL, &object, &err));
    must_refuse(RDT_DENIED, "is no member of group", fetch_by(stranger, &ref, NULL, "g", &object, &err));
    must_refuse(RDT_NOT_FOUND, "no member in a group \"h\"", fetch_by(actor_of[1], &ref, NULL, "h", &object, &err));
    must_refuse(RDT_NOT_FOUND, "no group \"h\"", rdt_group_destroy(actor_of[0], "h", &err));
    must(group_is(actor_of[0], "g", "ready", 1));
    move(0, 1, "g", MIB);
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    destroy("g");
    rdt_close(stranger);
    end_groups(NULL);
}

Test(groups, producer_outside_is_named)
{
    rdt_object *object;

    begin(2);
    must_ok(form(actor_of[0], "g", 2, &err));
    rdt *stranger = node_client(&c.node[0], "stranger");
    struct rdt_ref ref = put_pattern(stranger, NULL, MIB, 1);
    must_refuse(RDT_NO_PATH, "\"stranger\" of node", fetch_by(actor_of[1], &ref, "grouped", NULL, &object, &err));
    must_refuse(RDT_NO_PATH, "is not in group g", fetch_by(actor_of[1], &ref, NULL, "g", &object, &err));
    must_ok(rdt_free(stranger, &ref, false, &err));
    rdt_close(stranger);
    destroy("g");
    end_groups(NULL);
}

Test(groups, member_that_did_not_create_it_uses_and_destroys_it)
{
    begin(3);
    rdt *maker = node_client(&c.node[0], "maker"); /* no member, and it leaves */
    must_ok(form(maker, "g", 3, &err));
    rdt_close(maker);
    move(2, 1, "g", MIB);
    must_ok(rdt_group_destroy(actor_of[2], "g", &err));
    for (unsigned i = 0; i < 3; i++)
        must(!group_is(actor_of[i], "g", "ready", 0));
    must_ok(form(actor_of[1], "g", 3, &err)); /* the name is free again everywhere */
    move(0, 2, "g", MIB);
    destroy("g");
    end_groups(NULL);
}

Test(groups, two_clients_of_one_node_share_a_rank_and_move_locally)
{
    struct rdt_member members[] = {{.client = "a0"}, {.client = "b0"}, {.client = "a1", .node = NULL}};
    struct rdt_group group;
    rdt_object *object;

    begin(2);
    rdt *second = node_client(&c.node[0], "b0");
    members[2].node = c.node[1].uuid;
    must_ok(rdt_group_create(actor_of[0], "g", by, members, 3, NULL, &err));
    must(group_seen(actor_of[1], "g", &group) && group.members == 3 && group.ranks == 2);
    struct rdt_ref ref = put_pattern(second, NULL, MIB, 1);
    must_ok(fetch_by(actor_of[1], &ref, by, "g", &object, &err));
    must_go_by(by, object);
    rdt_release(object);
    must_ok(fetch_by(actor_of[0], &ref, by, "g", &object, &err));
    must_go_by("local/share", object);
    rdt_release(object);
    must_ok(rdt_free(second, &ref, false, &err));
    destroy("g");
    rdt_close(second);
    end_groups(NULL);
}

Test(groups, several_at_a_time_are_told_apart)
{
    struct rdt_member two[] = {{.client = "a1"}, {.client = "a2"}};

    begin(3);
    must_ok(form(actor_of[0], "all", 3, &err));
    two[0].node = c.node[1].address;
    two[1].node = c.node[2].address;
    must_ok(rdt_group_create(actor_of[0], "two", by, two, 2, NULL, &err)); /* its coordinator is no member */
    move(1, 2, "two", MIB);
    move(1, 2, "all", MIB);
    move(2, 0, NULL, MIB);
    must_ok(rdt_group_destroy(actor_of[1], "two", &err));
    move(1, 2, NULL, MIB);
    destroy("all");
    end_groups(NULL);
}

/* ---- creation that is refused ---- */

Test(groups, wrong_lists_are_refused_and_nothing_is_left)
{
    struct rdt_member members[3] = {{.client = "a0"}, {.client = "a1"}, {.client = "a0"}};
    char long_name[80];

    begin(2);
    members[1].node = c.node[1].address;
    memset(long_name, 'x', 79);
    long_name[79] = '\0';
    must_refuse(RDT_INVALID, "members 0 and 2", rdt_group_create(actor_of[0], "g", by, members, 3, NULL, &err));
    must_refuse(RDT_INVALID, "has 1 members", rdt_group_create(actor_of[0], "g", by, members, 1, NULL, &err));
    must_refuse(RDT_INVALID, "has 0 members", rdt_group_create(actor_of[0], "g", by, members, 0, NULL, &err));
    must_refuse(RDT_INVALID, "longer", rdt_group_create(actor_of[0], long_name, by, members, 2, NULL, &err));
    must_refuse(RDT_INVALID, "name", rdt_group_create(actor_of[0], "", by, members, 2, NULL, &err));
    must_refuse(RDT_UNSUPPORTED, "not loaded", rdt_group_create(actor_of[0], "g", "nccl2", members, 2, NULL, &err));
    must_refuse(RDT_UNSUPPORTED, "needs no group", rdt_group_create(actor_of[0], "g", "ucx", members, 2, NULL, &err));
    members[1].client = "nobody";
    must_refuse(RDT_NOT_FOUND, "no client named \"nobody\"", rdt_group_create(actor_of[0], "g", by, members, 2, NULL, &err));
    members[1].client = "a1";
    members[1].node = "no such node";
    must_refuse(RDT_INVALID, "neither HOST:PORT", rdt_group_create(actor_of[0], "g", by, members, 2, NULL, &err));
    members[1].node = "127.0.0.1:1";
    must_refuse(RDT_PEER_LOST, "127.0.0.1:1", rdt_group_create(actor_of[0], "g", by, members, 2, NULL, &err));
    members[1].node = c.node[1].address;
    members[0].device = "GPU-0";
    must_refuse(RDT_UNSUPPORTED, "no device \"GPU-0\"", rdt_group_create(actor_of[0], "g", by, members, 2, NULL, &err));
    members[0].device = NULL;
    must_ok(rdt_group_create(actor_of[0], "g", by, members, 2, NULL, &err));
    must_refuse(RDT_EXISTS, "already", form(actor_of[0], "g", 2, &err));
    must_refuse(RDT_EXISTS, "already", form(actor_of[1], "g", 2, &err));
    move(0, 1, "g", MIB);
    destroy("g");
    end_groups((const char *const[]){"127.0.0.1:1", NULL});
}

/* Devices of fake memory, which the transport says that it moves, or does not. */
static void begin_on_devices(struct fake_devices *gpu, const char *devices)
{
    static const char *flags[16];
    unsigned n = 0;

    fake_device_init(gpu, "groups", (const char *const[]){"devices=2", NULL});
    for (; gpu->flags[n]; n++)
        flags[n] = gpu->flags[n];
    flags[n++] = "--set";
    flags[n++] = strcmp(devices, "yes") == 0 ? "grouped.devices=yes" : "grouped.devices=no";
    flags[n] = NULL;
    begin_groups(2, "grouped", &(struct cluster_options){.grouped = true, .no_ucx = true, .flags = flags});
}

Test(groups, members_on_devices_are_ranks_of_their_nodes)
{
    struct rdt_member members[] = {
        {.client = "a0", .device = "FAKE-1"}, {.client = "a1", .device = "fake-0"}, {.client = "b0"}};
    struct fake_devices gpu;
    struct rdt_group group;

    begin_on_devices(&gpu, "yes");
    rdt *second = node_client(&c.node[0], "b0");
    members[1].node = c.node[1].address;
    must_ok(rdt_group_create(actor_of[0], "g", by, members, 2, NULL, &err));
    must(group_seen(actor_of[1], "g", &group) && group.ranks == 2);
    must_ok(rdt_group_create(actor_of[0], "h", by, members, 3, NULL, &err));
    must(group_seen(actor_of[1], "h", &group) && group.ranks == 3);
    destroy("h");
    members[2].device = "FAKE-1"; /* the same rank */
    must_ok(rdt_group_create(actor_of[0], "h", by, members, 3, NULL, &err));
    must(group_seen(actor_of[1], "h", &group) && group.ranks == 2);
    members[1].device = "FAKE-7";
    must_refuse(RDT_UNSUPPORTED, "no device \"FAKE-7\"", rdt_group_create(actor_of[0], "i", by, members, 2, NULL, &err));
    members[0].device = "FAKE-8";
    must_refuse(RDT_UNSUPPORTED, "no device \"FAKE-8\"", rdt_group_create(actor_of[0], "i", by, members, 2, NULL, &err));
    for (unsigned i = 0; i < 2; i++)
        must(group_is(actor_of[i], "g", "ready", 1) && group_is(actor_of[i], "h", "ready", 1));
    destroy("g");
    destroy("h");
    rdt_close(second);
    end_groups(NULL);
    fake_device_fini(&gpu);
}

Test(groups, device_that_the_transport_lacks_is_refused_by_name_and_touches_none)
{
    struct rdt_member members[] = {{.client = "a0", .device = "FAKE-1"}, {.client = "a1"}};
    struct fake_devices gpu;
    struct rdt_ref ref;

    begin_on_devices(&gpu, "no");
    must_ok(form(actor_of[0], "g", 2, &err));
    fake_device_use(actor_of[0]);
    struct rdt_tensor tensor = VECTOR(RDT_U8, 4 * KIB, fake_device_alloc(actor_of[0], "FAKE-1", 4 * KIB));
    struct rdt_put_options only = {.struct_size = sizeof only, .transport = by, .id = "w", .id_bytes = 1};
    must_refuse(RDT_UNSUPPORTED, "transport grouped does not move fake memory",
                rdt_put(actor_of[0], &tensor, 1, &only, &ref, &err));
    ref = ref_on(&c.node[0], "w");
    must_refuse(RDT_NOT_FOUND, "w", rdt_free(actor_of[0], &ref, false, &err)); /* nothing was put */
    members[1].node = c.node[1].address;
    must_refuse(RDT_UNSUPPORTED, "does not move fake memory, that of device \"FAKE-1\"",
                rdt_group_create(actor_of[0], "h", by, members, 2, NULL, &err));
    must_refuse(RDT_UNSUPPORTED, "does not move fake memory",
                rdt_group_create(
                    actor_of[1], "h", by,
                    (struct rdt_member[]){{.client = "a1"}, {.client = "a0", .node = c.node[0].address, .device = "FAKE-0"}}, 2,
                    NULL, &err));
    must(group_is(actor_of[0], "g", "ready", 1) && group_is(actor_of[1], "g", "ready", 1));
    move(0, 1, "g", MIB);
    destroy("g");
    end_groups(NULL);
    fake_device_fini(&gpu);
}

Test(groups, one_user_has_no_more_than_the_limit_on_any_node)
{
    const char *few[] = {"--owner-max-groups=2", NULL};

    begin_groups(2, "grouped", &(struct cluster_options){.grouped = true, .no_ucx = true, .flags_of = {[1] = few}});
    must_ok(form(actor_of[0], "one", 2, &err));
    must_ok(form(actor_of[1], "two", 2, &err));
    must_refuse(RDT_LIMIT, "owner_max_groups", form(actor_of[1], "three", 2, &err));
    must_refuse(RDT_LIMIT, "owner_max_groups", form(actor_of[0], "three", 2, &err)); /* the other node's word */
    must(!group_is(actor_of[0], "three", "forming", 0));
    move(0, 1, "one", MIB);
    must_ok(rdt_group_destroy(actor_of[0], "one", &err));
    must_ok(form(actor_of[0], "three", 2, &err));
    must_ok(rdt_group_destroy(actor_of[1], "two", &err));
    destroy("three");
    end_groups(NULL);
}

Test(groups, transport_that_cannot_connect_fails_the_creation)
{
    begin(2);
    cluster_faults(&c, 1, "refuse_group=1\n");
    must_refuse(RDT_TRANSPORT, "a refusal was asked for", form(actor_of[0], "g", 2, &err));
    cluster_faults(&c, 1, "");
    wait_until(20 * SEC, form(actor_of[0], "g", 2, NULL) == RDT_OK);
    move(0, 1, "g", MIB);
    destroy("g");
    end_groups(NULL);
}

Test(groups, group_that_never_connects_ends_by_the_callers_deadline)
{
    struct rdt_member members[] = {{.client = "a0"}, {.client = "a1"}};
    int64_t since = now_ns();

    begin(2);
    set_faults("hang_group=1\n");
    members[1].node = c.node[1].address;
    struct rdt_group_options options = {.struct_size = sizeof options, .timeout_ns = 500 * MSEC};
    must_be(RDT_TIMED_OUT, rdt_group_create(actor_of[0], "g", by, members, 2, &options, &err));
    must(now_ns() - since < LONG);
    set_faults("");
    wait_until(20 * SEC, !group_is(actor_of[1], "g", "forming", 0));
    must_ok(form(actor_of[0], "g", 2, &err));
    destroy("g");
    end_groups(NULL);
}

/* ---- the application's own errors ---- */

Test(groups, cancel_and_deadline_touch_nothing_else)
{
    begin_with(3, "--quiesce-grace=20s"); /* however late: it comes to rest */
    must_ok(form(actor_of[0], "g", 3, &err));
    struct rdt_ref ref = put_pattern(actor_of[0], NULL, 32 * 64 * KIB, 1);
    set_faults("delay_ms=150\n");
    rdt_request *other = start_by(actor_of[2], &ref, "g", LONG);
    rdt_request *request = start_by(actor_of[1], &ref, "g", LONG);
    await_engine(&c.node[1]);
    rdt_cancel(request);
    rdt_request_destroy(request);
    request = start_by(actor_of[1], &ref, "g", 300 * MSEC);
    must_be(RDT_TIMED_OUT, rdt_wait(actor_of[1], &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    must_ok(rdt_wait(actor_of[2], &other, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(other);
    set_faults("");
    for (unsigned i = 0; i < 3; i++)
        must(group_is(actor_of[i], "g", "ready", 1));
    move(0, 1, "g", MIB);
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    destroy("g");
    end_groups(NULL);
}

/* ---- system errors ---- */

/* The answer and the cancel cross: whoever cancels believes that there is no group. */
Test(groups, creation_that_is_cancelled_behind_its_answer_leaves_no_group)
{
    Rdt__Pb__GroupMember members[2] = {RDT__PB__GROUP_MEMBER__INIT, RDT__PB__GROUP_MEMBER__INIT}, *list[2];
    Rdt__Pb__GroupCreate create = RDT__PB__GROUP_CREATE__INIT;
    Rdt__Pb__CancelRequest cancel = RDT__PB__CANCEL_REQUEST__INIT;
    struct rdt_group group;
    struct raw raw;

    begin(2);
    raw_connect(&raw, c.node[0].socket);
    raw_hello(&raw);
    for (unsigned i = 0; i < 2; i++) {
        members[i].client = i == 0 ? "a0" : "a1";
        members[i].address = c.node[i].address;
        list[i] = &members[i];
    }
    create.name = "g";
    create.transport = "grouped";
    create.members = list;
    create.n_members = 2;
    cancel.request_id = raw_send(&raw, RDT_MSG_GROUP_CREATE, &create.base, NULL, 0);
    protobuf_c_message_free_unpacked(raw_reply(&raw, cancel.request_id, &rdt__pb__empty__descriptor), NULL);
    must(group_is(actor_of[1], "g", "ready", 1));
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
    wait_until(LONG, !group_seen(actor_of[0], "g", &group) && !group_seen(actor_of[1], "g", &group));
    must_ok(form(actor_of[0], "g", 2, &err));
    destroy("g");
    raw_close(&raw);
    end_groups(NULL);
}

Test(groups, abort_that_does_not_come_to_rest_rebuilds_this_group_only)
{
    begin(2);
    must_ok(form(actor_of[0], "g", 2, &err));
    must_ok(form(actor_of[0], "h", 2, &err));
    struct rdt_ref ref = put_pattern(actor_of[0], NULL, 64 * 64 * KIB, 1);
    set_faults("delay_ms=100\nno_abort=1\n");
    rdt_request *request = start_by(actor_of[1], &ref, "g", LONG);
    await_engine(&c.node[1]);
    rdt_cancel(request);
    rdt_request_destroy(request);
    await_group(0, "g", "ready", 2);
    await_group(1, "g", "ready", 2);
    set_faults("");
    must(group_is(actor_of[0], "h", "ready", 1) && group_is(actor_of[1], "h", "ready", 1));
    move(0, 1, "g", MIB);
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    destroy("g");
    destroy("h");
    end_groups(rebuilt);
}

Test(groups, lost_node_fails_what_moves_and_comes_back_under_a_new_epoch)
{
    struct rdt_group group;
    rdt_object *object;

    begin(3);
    must_ok(form(actor_of[0], "g", 3, &err));
    move(0, 2, "g", MIB); /* and is connected with it */
    move(1, 2, "g", MIB);
    struct rdt_ref ref = put_pattern(actor_of[0], NULL, 64 * 64 * KIB, 1);
    set_faults("delay_ms=100\n");
    rdt_request *request = start_by(actor_of[1], &ref, "g", LONG);
    await_engine(&c.node[1]);
    node_kill(&c.node[2], SIGKILL);
    must_refuse(RDT_TRANSPORT, "g", rdt_wait(actor_of[1], &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    set_faults("");
    await_group(0, "g", "down", 0);
    await_group(1, "g", "down", 0);
    wait_until(20 * SEC, group_seen(actor_of[0], "g", &group) && strstr(group.why, c.node[2].address));
    must_refuse(RDT_NO_PATH, "group g is down", fetch_by(actor_of[1], &ref, by, NULL, &object, &err));
    rdt_close(actor_of[2]);
    cluster_restart(&c, 2);
    cluster_meet(&c); /* the test does not wait for the next attempt */
    actor_of[2] = node_client(&c.node[2], "a2");
    for (unsigned i = 0; i < 3; i++)
        await_group(i, "g", "ready", 0);
    must(group_seen(actor_of[2], "g", &group) && group.epoch > 1);
    move(0, 1, "g", MIB);
    move(2, 0, "g", MIB);
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    destroy("g");
    end_groups((const char *const[]){"is taken down and rebuilt: ", "is lost: ", "refused", "is down: ", NULL});
}

Test(groups, lost_coordinator_takes_it_down_until_it_is_created_again)
{
    rdt_object *object;

    begin(3);
    must_ok(form(actor_of[0], "g", 3, &err));
    move(1, 2, "g", MIB);
    struct rdt_ref ref = put_pattern(actor_of[1], NULL, MIB, 1);
    node_kill(&c.node[0], SIGKILL);
    await_group(1, "g", "down", 0);
    await_group(2, "g", "down", 0);
    must_refuse(RDT_NO_PATH, "its coordinator's", fetch_by(actor_of[2], &ref, by, NULL, &object, &err));
    rdt_close(actor_of[0]);
    cluster_restart(&c, 0);
    actor_of[0] = node_client(&c.node[0], "a0");
    wait_until(20 * SEC, form(actor_of[1], "g", 3, NULL) == RDT_OK); /* the name may be had again, when that is dialled again */
    move(1, 2, "g", MIB);
    must_ok(rdt_free(actor_of[1], &ref, false, &err));
    destroy("g");
    end_groups((const char *const[]){"is taken down and rebuilt: ", "is lost: ", "refused", "is down: ", NULL});
}

Test(groups, frozen_node_takes_it_down_and_thaws)
{
    begin(3);
    must_ok(form(actor_of[0], "g", 3, &err));
    node_freeze(&c.node[2]);
    await_group(0, "g", "down", 0); /* by the link's pings */
    node_thaw(&c.node[2]);
    for (unsigned i = 0; i < 3; i++)
        await_rebuilt(i, "g");
    move(2, 1, "g", MIB);
    destroy("g");
    end_groups((const char *const[]){"is taken down and rebuilt: ", "is lost: ", "is down: ", NULL});
}

Test(groups, destroyed_in_use_fails_what_moves)
{
    begin(2);
    must_ok(form(actor_of[0], "g", 2, &err));
    struct rdt_ref ref = put_pattern(actor_of[0], NULL, 64 * 64 * KIB, 1);
    set_faults("delay_ms=100\n");
    rdt_request *request = start_by(actor_of[1], &ref, "g", LONG);
    await_engine(&c.node[1]);
    must_ok(rdt_group_destroy(actor_of[1], "g", &err));
    must_refuse(RDT_TRANSPORT, "g was taken down", rdt_wait(actor_of[1], &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    set_faults("");
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    end_groups(rebuilt);
}

static void *destroy_g(void *arg)
{
    static struct rdt_error why;

    *(enum rdt_status *)arg = rdt_group_destroy(actor_of[2], "g", &why);
    return NULL;
}

/* The coordinator's node is slow to answer, and meanwhile the member's own rank fails. */
Test(groups, destroyed_while_a_rank_fails)
{
    enum rdt_status status = RDT_INTERNAL;
    pthread_t thread;

    begin(3);
    must_ok(form(actor_of[0], "g", 3, &err));
    node_freeze(&c.node[0]);
    must(pthread_create(&thread, NULL, destroy_g, &status) == 0);
    must_ok(rdt_ping(actor_of[2], LONG, &err));
    node_kill(&c.node[1], SIGKILL);
    must(poll(NULL, 0, 500) == 0); /* longer than a suspicion lasts: nothing may happen meanwhile */
    node_thaw(&c.node[0]);
    must(pthread_join(thread, NULL) == 0);
    must_be(RDT_OK, status);
    rdt_close(actor_of[1]);
    cluster_restart(&c, 1);
    actor_of[1] = node_client(&c.node[1], "a1");
    end_groups((const char *const[]){"is taken down and rebuilt: ", "is lost: ", "is down: ", NULL});
}

/* The fetch waits for a group that is formed again, which will not happen. */
Test(groups, destroyed_while_memory_is_made_ready_is_not_waited_for)
{
    enum { BYTES = 256 << 20 };
    struct rdt_error why;

    begin(2);
    must_ok(form(actor_of[0], "g", 2, &err));
    struct rdt_ref ref = put_pattern(actor_of[0], NULL, BYTES, 1);
    set_faults("delay_ms=100\n");
    rdt_request *request = start_by(actor_of[1], &ref, "g", LONG);
    await_transfer(&c.node[1], "in", "reserving|moving");
    must_ok(rdt_group_destroy(actor_of[1], "g", &err));
    int64_t struck = now_ns();
    enum rdt_status status = rdt_wait(actor_of[1], &request, 1, 1, LONG, NULL, NULL, &why);
    must_say(status == RDT_TRANSPORT && (strstr(why.msg, "the group is destroyed") || strstr(why.msg, "g was taken down")),
             "%s", why.msg);
    must_be_within(struck, 4 * SEC); /* stall_timeout is longer */
    rdt_request_destroy(request);
    set_faults("");
    must_ok(rdt_free(actor_of[0], &ref, false, &err));
    end_groups(rebuilt);
}

Test(groups, watchers_are_told_of_its_life)
{
    static const char *const expected[] = {"ready", "ending", "gone"};
    struct rdt_event event;

    begin(2);
    must_ok(rdt_watch(actor_of[1], RDT_KIND_GROUPS, &err));
    must_ok(form(actor_of[0], "g", 2, &err)); /* is ready there, and here a moment later */
    for (unsigned i = 0; i < 3; i++) {
        must_ok(rdt_next_event(actor_of[1], LONG, &event, &err));
        must_say(event.kind == RDT_KIND_GROUPS && strcmp(event.what, expected[i]) == 0 && strcmp(event.name, "g") == 0,
                 "event %u: %s", i, event.what);
        if (i == 0)
            destroy("g");
    }
    end_groups(NULL);
}
