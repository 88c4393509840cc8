/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of a snapshot on the nodes that read it: one transfer serves all readers of a node, and no replica outlives its
 * object. */
#include <criterion/criterion.h>
#include <grp.h>
#include <signal.h>
#include <string.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/integration/nodes/nodes_fixture.h"
#include "wire_ref.h"

TestSuite(replicas, .timeout = 240);

static struct rdt_ref put_snapshot(rdt *conn, const char *id, size_t bytes, uint32_t seed, enum rdt_visibility visibility)
{
    uint8_t *memory = alloc_memory(conn, bytes);
    struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, memory);

    fill_pattern(memory, bytes, seed);
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .flags = RDT_PUT_SNAPSHOT,
                                      .visibility = visibility,
                                      .timeout_ns = LONG,
                                      .id = id,
                                      .id_bytes = id ? strlen(id) : 0};
    struct rdt_ref ref = put_as(conn, &tensor, 1, &options);
    memset(memory, 0xee, bytes); /* no reader may see these bytes */
    must_ok(rdt_dealloc(conn, memory, &err));
    return ref;
}

static struct node_status status_of(unsigned i)
{
    return node_now(&c.node[i]);
}

static enum rdt_status try_it(rdt *conn, const struct rdt_ref *ref)
{
    struct rdt_error err = {0};
    rdt_object *object = NULL;
    enum rdt_status status = try_fetch(conn, ref, RDT_FETCH_AUTO, LONG, &object, &err);

    rdt_release(object);
    return status;
}

static void read_it(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode, size_t bytes, uint32_t seed,
                    const char *path)
{
    rdt_object *object = fetch_one(conn, ref, mode);
    struct rdt_tensor tensor = tensor_of(object, 0);

    must(holds_pattern(tensor.data, bytes, seed));
    if (path)
        must_go_by(path, object);
    rdt_release(object);
}

/* ---- one transfer ---- */

Test(replicas, many_readers_on_a_node_are_one_transfer)
{
    enum { N = 12 };
    rdt *conns[N];
    rdt_request *requests[N];

    begin(2);
    struct rdt_ref ref = put_snapshot(owner, "weights", 24 * MIB, 3, RDT_VISIBLE_TO_OWNER);
    for (unsigned i = 0; i < N; i++)
        conns[i] = node_client(&c.node[1], "one of many");
    struct node_status before = status_of(1);
    for (unsigned i = 0; i < N; i++)
        requests[i] = start_one(conns[i], &ref, LONG);
    for (unsigned i = 0; i < N; i++) {
        rdt_object *object = await_object(conns[i], requests[i]);
        struct rdt_tensor tensor = tensor_of(object, 0);
        must(holds_pattern(tensor.data, 24 * MIB, 3));
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    struct node_status after = status_of(1);
    must_say(after.bytes_in - before.bytes_in == 24 * MIB, "%llu bytes came",
             (unsigned long long)(after.bytes_in - before.bytes_in));
    must(after.joined - before.joined + after.from_copies - before.from_copies == N - 1);
    must(after.copies == 1 && after.replica_bytes == 24 * MIB);
    for (unsigned i = 0; i < N; i++)
        rdt_close(conns[i]);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(replicas, later_fetch_moves_nothing)
{
    const size_t bytes = 5 * MIB;
    struct rdt_tensor target, tensor;
    const struct rdt_tensor *targets = &target;
    struct rdt_fetch_options options = within(LONG);
    size_t one = 1;
    rdt_object *object;

    begin(2);
    struct rdt_ref ref = put_snapshot(owner, "weights", bytes, 3, RDT_VISIBLE_TO_OWNER);
    read_it(reader, &ref, RDT_FETCH_AUTO, bytes, 3, "ucx");
    struct node_status before = status_of(1);
    read_it(reader, &ref, RDT_FETCH_AUTO, bytes, 3, "local/share");
    read_it(reader, &ref, RDT_FETCH_SHARE, bytes, 3, "local/share");
    read_it(reader, &ref, RDT_FETCH_COW, bytes, 3, "local/cow");
    read_it(reader, &ref, RDT_FETCH_COPY, bytes, 3, "local/copy");
    struct rdt_ref by_id = ref_on(&c.node[0], "weights"); /* only the owner's node knows which object has this id now */
    read_it(reader, &by_id, RDT_FETCH_AUTO, bytes, 3, "local/share");

    uint8_t *memory = alloc_memory(reader, bytes);
    target = VECTOR(RDT_U8, bytes, memory);
    options.targets = &targets;
    options.target_counts = &one;
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must_go_by("local/copy", object);
    must(holds_pattern(memory, bytes, 3));
    rdt_release(object);

    struct node_status after = status_of(1);
    must_say(after.bytes_in == before.bytes_in, "%llu bytes came", (unsigned long long)(after.bytes_in - before.bytes_in));
    must(after.from_copies - before.from_copies == 6);
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_ok(rdt_free(owner, &ref, false, &err));
    wait_until(5 * SEC, status_of(1).copies == 0);
    tensor = tensor_of(object, 0);
    must(holds_pattern(tensor.data, bytes, 3)); /* whoever has it keeps it */
    must(try_it(reader, &ref) == RDT_FREED);
    rdt_release(object);
    end(NULL);
}

Test(replicas, slice_comes_from_the_copy)
{
    static const int64_t start[] = {3}, count[] = {1 << 19};
    const struct rdt_slice slice = {.ndim = 1, .start = start, .count = count}, *slices = &slice;
    struct rdt_fetch_options options = within(LONG);
    uint8_t *whole = malloc(MIB);
    size_t one = 1;

    begin(2);
    fill_pattern(whole, MIB, 3);
    struct rdt_ref ref = put_snapshot(owner, NULL, MIB, 3, RDT_VISIBLE_TO_OWNER);
    read_it(reader, &ref, RDT_FETCH_AUTO, MIB, 3, "ucx");
    struct node_status before = status_of(1);
    options.slices = &slices;
    options.slice_counts = &one;
    rdt_object *object = fetch_as(reader, &ref, &options);
    struct rdt_tensor tensor = tensor_of(object, 0);
    must(tensor.shape[0] == 1 << 19 && memcmp(tensor.data, whole + 3, 1 << 19) == 0);
    rdt_release(object);
    must(status_of(1).bytes_in == before.bytes_in);
    must_ok(rdt_free(owner, &ref, false, &err));
    free(whole);
    end(NULL);
}

/* An id means the object that has it now, whichever replicas there are of earlier objects with this id. */
Test(replicas, id_that_is_put_again_is_not_the_old_copy)
{
    struct rdt_ref ref, by_id;

    begin(2);
    by_id = ref_on(&c.node[0], "weights");
    for (uint32_t version = 1; version <= 10; version++) {
        ref = put_snapshot(owner, "weights", MIB, version, RDT_VISIBLE_TO_OWNER);
        read_it(reader, &by_id, RDT_FETCH_AUTO, MIB, version, "ucx");
        read_it(reader, &by_id, RDT_FETCH_AUTO, MIB, version, "local/share");
        must_ok(rdt_free(owner, &ref, false, &err));
        must_ok(rdt_wait_freed(owner, &ref, LONG, &err)); /* the node learns of the end later than its reader */
    }
    end(NULL);
}

/* Each version of a name is received once, by however many. */
Test(replicas, versions_of_a_name_are_received_once)
{
    enum { N = 4 };
    struct rdt_ref object, name, next, near;
    rdt_request *requests[N];
    rdt *conns[N];
    uint64_t version;

    begin(2);
    for (unsigned i = 0; i < N; i++)
        conns[i] = node_client(&c.node[1], "sampler");
    struct node_status before = status_of(1);
    near = ref_on(&c.node[0], "anything");
    must_ok(rdt_ref_from_name("weights", 0, &near, &name, &err));
    next = name;
    for (uint32_t round = 1; round <= 5; round++) {
        next.after = round - 1;
        for (unsigned i = 0; i < N; i++)
            requests[i] = start_one(conns[i], &next, LONG);
        object = put_snapshot(owner, NULL, 5 * MIB, round, RDT_VISIBLE_TO_OWNER);
        must_ok(rdt_publish(owner, "weights", &object, NULL, &version, &err));
        must(version == round);
        must_ok(rdt_free(owner, &object, false, &err)); /* the name holds it */
        for (unsigned i = 0; i < N; i++) {
            rdt_object *got = await_object(conns[i], requests[i]);
            struct rdt_tensor tensor = tensor_of(got, 0);
            must(holds_pattern(tensor.data, 5 * MIB, round));
            must(info_of(got).version == round);
            rdt_release(got);
            rdt_request_destroy(requests[i]);
        }
    }
    must_say(status_of(1).bytes_in - before.bytes_in == 25 * MIB, "%llu bytes came",
             (unsigned long long)(status_of(1).bytes_in - before.bytes_in));
    must_ok(rdt_unpublish(owner, &name, &err));
    for (unsigned i = 0; i < N; i++)
        rdt_close(conns[i]);
    end(NULL);
}

/* What rdtctl shows of a replica: STAT at the owner's node, LIST and EXPLAIN at the reader's. */
static void check_stat(const struct rdt_ref *ref)
{
    Rdt__Pb__Stat request = RDT__PB__STAT__INIT;
    Rdt__Pb__Ref wire;
    ProtobufCMessage *reply = NULL;
    bool found = false;

    wire_ref_from(ref, &wire);
    request.ref = &wire;
    must_ok(call(owner, RDT_MSG_STAT, &request.base, LONG, &reply, &err));
    const Rdt__Pb__ObjectInfo *info = (const Rdt__Pb__ObjectInfo *)reply;
    for (size_t i = 0; i < info->n_holders; i++)
        found =
            found || (strcmp(info->holders[i]->kind, "replica") == 0 && strcmp(info->holders[i]->peer, c.node[1].uuid) == 0);
    must(found);
    protobuf_c_message_free_unpacked(reply, NULL);
}

static void check_regions(void)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    ProtobufCMessage *reply = NULL;
    bool found = false;

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_REGIONS;
    must_ok(call(reader, RDT_MSG_LIST, &request.base, LONG, &reply, &err));
    const Rdt__Pb__ListReply *list = (const Rdt__Pb__ListReply *)reply;
    for (size_t i = 0; i < list->n_regions; i++)
        found = found || (strcmp(list->regions[i]->origin, "replica") == 0 && list->regions[i]->bytes == MIB);
    must(found);
    protobuf_c_message_free_unpacked(reply, NULL);
}

Test(replicas, copy_is_seen_at_both_ends)
{
    begin(2);
    struct rdt_ref ref = put_snapshot(owner, NULL, MIB, 3, RDT_VISIBLE_TO_OWNER);
    read_it(reader, &ref, RDT_FETCH_AUTO, MIB, 3, "ucx");
    wait_until(5 * SEC, (check_regions(), status_of(1).copies == 1));
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    struct transfer_view view = transfer_numbered(&c.node[1], info_of(object).transfer);
    must(strcmp(view.path, "local/share") == 0 && strcmp(view.direction, "local") == 0);
    must(view.candidates[0].chosen && strstr(view.candidates[0].reason, "a copy is on this node"));
    rdt_release(object);
    wait_until(5 * SEC, status_of(0).transfers_active == 0);
    check_stat(&ref);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(replicas, forced_free_reaches_every_node)
{
    struct rdt_ref ref;

    begin(3);
    rdt *third = node_client(&c.node[2], "third");
    for (unsigned round = 0; round < 30; round++) {
        ref = put_snapshot(owner, NULL, MIB, round, RDT_VISIBLE_TO_OWNER);
        read_it(reader, &ref, RDT_FETCH_AUTO, MIB, round, NULL);
        read_it(third, &ref, RDT_FETCH_AUTO, MIB, round, NULL);
        must_ok(rdt_free(owner, &ref, true, &err));
        must(try_it(reader, &ref) == RDT_FREED);
        must(try_it(third, &ref) == RDT_FREED);
    }
    rdt_close(third);
    end(NULL);
}

/* ---- who may ---- */

/* The memory of the first replica, which only its owner could read, becomes that of the second. */
Test(replicas, next_replica_shows_no_bytes_of_an_earlier_one)
{
    const size_t first = 1000, second = 3 * MIB - 8 * 1024;
    struct rdt_tensor tensors[2];

    begin_with(2, &(struct cluster_options){.flags = (const char *const[]){"--pool-idle=3s", NULL}});
    uint8_t *memory = alloc_memory(owner, 3 * MIB);
    memset(memory, 0xff, 3 * MIB);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT};
    tensors[0] = VECTOR(RDT_U8, 3 * MIB, memory);
    struct rdt_ref ref = put_as(owner, tensors, 1, &options);
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    unsigned long inode = inode_at(tensor_of(object, 0).data);
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, true, &err));

    tensors[0] = VECTOR(RDT_U8, first, memory);
    tensors[1] = VECTOR(RDT_U8, second, memory + 1024);
    options.visibility = RDT_VISIBLE_TO_ALL;
    must_ok(rdt_put(owner, tensors, 2, &options, &ref, &err));
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    const uint8_t *base = tensor_of(object, 0).data;
    must(inode_at(base) == inode);
    for (size_t i = 0; i < 3 * MIB; i++)
        must(base[i] == (i < first || (i >= 1024 && i < 1024 + second) ? 0xff : 0));
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, true, &err));
    must_ok(rdt_dealloc(owner, memory, &err));
    end(NULL);
}

struct visit {
    const struct test_node *node;
    struct rdt_ref ref;
    enum rdt_status expected;
};

static int fetch_as_other(struct actor *self, void *arg)
{
    const struct visit *visit = arg;
    rdt_object *object = NULL;

    must(setgroups(0, NULL) == 0 && setresgid(1001, 1001, 1001) == 0 && setresuid(1001, 1001, 1001) == 0);
    rdt *conn = node_client(visit->node, "visitor");
    must_be(visit->expected, try_fetch(conn, &visit->ref, RDT_FETCH_AUTO, LONG, &object, &err));
    if (object) {
        struct rdt_tensor tensor = tensor_of(object, 0);
        must(holds_pattern(tensor.data, MIB, 3));
        must_go_by("local/share", object);
        rdt_release(object);
    }
    rdt_close(conn);
    return 0;
}

static void visit(const struct rdt_ref *ref, enum rdt_status expected)
{
    struct visit visit = {.node = &c.node[1], .ref = *ref, .expected = expected};
    struct actor actor;

    actor_start(&actor, fetch_as_other, &visit);
    actor_wait(&actor);
}

Test(replicas, copy_is_shown_as_its_owner_would)
{
    char path[200];

    need_root();
    (void)snprintf(path, sizeof path, "%.150s/..", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp/t");
    (void)chmod(path, 0755); /* other users' actors must reach the sockets */
    begin(2);
    struct rdt_ref closed = put_snapshot(owner, NULL, MIB, 3, RDT_VISIBLE_TO_OWNER);
    struct rdt_ref open = put_snapshot(owner, NULL, MIB, 3, RDT_VISIBLE_TO_ALL);
    read_it(reader, &closed, RDT_FETCH_AUTO, MIB, 3, "ucx");
    read_it(reader, &open, RDT_FETCH_AUTO, MIB, 3, "ucx");
    visit(&closed, RDT_DENIED);
    visit(&open, RDT_OK);
    must_ok(rdt_free(owner, &closed, false, &err));
    must_ok(rdt_free(owner, &open, false, &err));
    end(NULL);
}

/* ---- memory ---- */

Test(replicas, replicas_are_freed_for_readers)
{
    static const char *const flags[] = {"--memory-limit=64MiB", NULL};
    struct rdt_ref refs[8];
    void *memory;

    begin_with(2, &(struct cluster_options){.flags_of = {NULL, flags}});
    for (unsigned i = 0; i < 8; i++) {
        refs[i] = put_snapshot(owner, NULL, 20 * MIB, i, RDT_VISIBLE_TO_OWNER);
        read_it(reader, &refs[i], RDT_FETCH_AUTO, 20 * MIB, i,
                "ucx"); /* the earlier ones have gone where they were in its way */
    }
    must(status_of(1).copies >= 1 && status_of(1).copies <= 3);
    read_it(reader, &refs[7], RDT_FETCH_AUTO, 20 * MIB, 7, "local/share");
    must_ok(rdt_alloc(reader, 60 * MIB, &memory, &err));
    must(status_of(1).copies == 0);
    must_ok(rdt_dealloc(reader, memory, &err));
    for (unsigned i = 0; i < 8; i++)
        must_ok(rdt_free(owner, &refs[i], false, &err));
    end(NULL);
}

/* What they have under memory_limit is more than their bytes: a quarter of a MiB for each of these. */
Test(replicas, all_room_of_replicas_is_freed_for_readers)
{
    static const char *const flags[] = {"--memory-limit=64MiB", NULL};
    struct rdt_ref ref;
    void *memory;

    begin_with(2, &(struct cluster_options){.flags_of = {NULL, flags}});
    for (unsigned i = 0; i < 40; i++) {
        ref = put_snapshot(owner, NULL, MIB + 1, i, RDT_VISIBLE_TO_OWNER);
        read_it(reader, &ref, RDT_FETCH_AUTO, MIB + 1, i, "ucx");
    }
    must(status_of(1).copies == 40);
    must_ok(rdt_alloc(reader, 60 * MIB, &memory, &err));
    must_ok(rdt_dealloc(reader, memory, &err));
    end(NULL);
}

Test(replicas, replicas_max_is_kept)
{
    static const char *const flags[] = {"--replicas-max=5MiB", NULL};
    struct rdt_ref refs[4];
    rdt_object *objects[4];

    begin_with(2, &(struct cluster_options){.flags_of = {NULL, flags}});
    for (unsigned i = 0; i < 4; i++) {
        refs[i] = put_snapshot(owner, NULL, 2 * MIB, i, RDT_VISIBLE_TO_OWNER);
        objects[i] = fetch_one(reader, &refs[i], RDT_FETCH_AUTO);
        must(status_of(1).replica_bytes <= 5 * MIB);
    }
    must(status_of(1).copies == 2); /* the others are in use, and nobody else gets them */
    read_it(reader, &refs[0], RDT_FETCH_AUTO, 2 * MIB, 0, "local/share");
    for (unsigned i = 0; i < 4; i++)
        rdt_release(objects[i]);
    read_it(reader, &refs[3], RDT_FETCH_AUTO, 2 * MIB, 3, "ucx");
    must(status_of(1).copies == 2);
    read_it(reader, &refs[3], RDT_FETCH_AUTO, 2 * MIB, 3, "local/share");
    for (unsigned i = 0; i < 4; i++)
        must_ok(rdt_free(owner, &refs[i], false, &err));
    end(NULL);
}

/* ---- nodes that do not answer ---- */

static const char *const lost[] = {"is lost", "cannot be reached", "refused", "taken down and rebuilt", NULL};
static const char *const impatient[] = {"--peer-timeout=2s", NULL};

/* The frozen node confirms nothing, and serves no old bytes when it runs again. */
Test(replicas, frozen_holder_does_not_serve_a_freed_object)
{
    begin_with(2, &(struct cluster_options){.flags = impatient});
    struct rdt_ref ref = put_snapshot(owner, NULL, MIB, 3, RDT_VISIBLE_TO_OWNER);
    read_it(reader, &ref, RDT_FETCH_AUTO, MIB, 3, "ucx");
    node_freeze(&c.node[1]);
    rdt_request *request = start_one(reader, &ref, LONG); /* read when the node runs again, perhaps before the free */
    int64_t since = now_ns();
    must_ok(rdt_free(owner, &ref, true, &err));
    must_be_within(since, 5 * SEC);
    node_thaw(&c.node[1]);
    {
        struct rdt_error err = {0};
        enum rdt_status status = rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err);
        must_say(status == RDT_FREED || status == RDT_PEER_LOST, "%s", rdt_status_name(status));
        rdt_request_destroy(request);
        wait_until(20 * SEC, (status = try_it(reader, &ref)) != RDT_PEER_LOST);
        must(status == RDT_FREED);
    }
    end(lost);
}

Test(replicas, killed_holder_does_not_delay_a_free)
{
    begin(2);
    struct rdt_ref ref = put_snapshot(owner, NULL, MIB, 3, RDT_VISIBLE_TO_OWNER);
    read_it(reader, &ref, RDT_FETCH_AUTO, MIB, 3, "ucx");
    rdt_close(reader);
    node_kill(&c.node[1], SIGKILL);
    int64_t since = now_ns();
    must_ok(rdt_free(owner, &ref, true, &err));
    must_be_within(since, 3 * SEC);
    cluster_restart(&c, 1);
    reader = node_client(&c.node[1], "reader");
    end(lost);
}

/* The node cannot know whether the object still exists. When the cable is back it asks. */
Test(replicas, cut_off_holder_serves_no_new_reader)
{
    if (!cables_can_be())
        cr_skip_test("no network namespaces to cut a cable in");
    begin_with(2, &(struct cluster_options){.flags = impatient});
    struct rdt_ref kept = put_snapshot(owner, NULL, MIB, 3, RDT_VISIBLE_TO_OWNER);
    struct rdt_ref freed = put_snapshot(owner, NULL, MIB, 4, RDT_VISIBLE_TO_OWNER);
    rdt_object *object = fetch_one(reader, &kept, RDT_FETCH_AUTO);
    read_it(reader, &freed, RDT_FETCH_AUTO, MIB, 4, "ucx");
    net_cut(&c.net, 1);
    wait_until(10 * SEC, try_it(reader, &freed) == RDT_PEER_LOST);
    must_ok(rdt_free(owner, &freed, true, &err));
    must(try_it(reader, &freed) == RDT_PEER_LOST);
    must(try_it(reader, &kept) == RDT_PEER_LOST);
    must(status_of(1).copies == 2);
    net_restore(&c.net, 1);
    struct node_status before = status_of(1);
    {
        enum rdt_status status = RDT_PEER_LOST;
        wait_until(20 * SEC, (status = try_it(reader, &freed)) != RDT_PEER_LOST);
        must_say(status == RDT_FREED, "%s", rdt_status_name(status));
    }
    wait_until(5 * SEC, status_of(1).copies == 1);
    read_it(reader, &kept, RDT_FETCH_AUTO, MIB, 3, "local/share");
    must(status_of(1).bytes_in == before.bytes_in);
    rdt_release(object);
    must_ok(rdt_free(owner, &kept, true, &err)); /* the directory has it again */
    must(try_it(reader, &kept) == RDT_FREED);
    end(lost);
}

Test(replicas, node_stops_cleanly_with_replicas)
{
    begin(2);
    struct rdt_ref ref = put_snapshot(owner, NULL, 2 * MIB, 3, RDT_VISIBLE_TO_OWNER);
    read_it(reader, &ref, RDT_FETCH_AUTO, 2 * MIB, 3, "ucx");
    rdt_close(reader);
    node_stop(&c.node[1]);
    cluster_restart(&c, 1);
    reader = node_client(&c.node[1], "reader");
    wait_until(20 * SEC, try_it(reader, &ref) == RDT_OK);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(lost);
}

/* Another start of the owner's node knows nothing of its objects. */
Test(replicas, restarted_owner_has_no_replicas)
{
    enum rdt_status status = RDT_PEER_LOST;

    begin(2);
    struct rdt_ref ref = put_snapshot(owner, NULL, MIB, 3, RDT_VISIBLE_TO_OWNER);
    read_it(reader, &ref, RDT_FETCH_AUTO, MIB, 3, "ucx");
    rdt_close(owner);
    node_kill(&c.node[0], SIGKILL);
    cluster_restart(&c, 0);
    owner = node_client(&c.node[0], "owner");
    wait_until(20 * SEC, (status = try_it(reader, &ref)) != RDT_PEER_LOST);
    must_say(status == RDT_NOT_FOUND, "%s", rdt_status_name(status));
    wait_until(5 * SEC, status_of(1).copies == 0);
    end(lost);
}
