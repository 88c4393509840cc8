/* SPDX-License-Identifier: Apache-2.0 */
/* Followers of a name: the node fetches, prepare waits, commit copies. */
#include "client/rdt_follow.h"
#include "client/rdt_many.h"
#include "proto/manifest.h"
#include "proto/wire_ref.h"
#include "tests/integration/versions/shards_fixture.h"

TestSuite(follow, .timeout = 120);

#define WORDS (1u << 16)
#define WORD_BYTES (WORDS * sizeof(uint64_t))

static struct rdt_ref name;

/* Publishes an object of words that are all that value, as the next version of "policy". */
static uint64_t publish_words(rdt *conn, uint64_t value, size_t n, uint32_t flags)
{
    uint64_t *words = malloc(n * sizeof *words + 1), version = 0;
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = flags};
    struct rdt_publish_options shown = RDT_INIT(shown);

    for (size_t i = 0; i < n; i++)
        words[i] = value;
    struct rdt_tensor tensor = VECTOR(RDT_U64, n, words);
    struct rdt_ref ref = put_as(conn, &tensor, 1, &options);
    must_ok(rdt_publish(conn, "policy", &ref, &shown, &version, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    free(words);
    return version;
}

static rdt_follower *follow(rdt *conn)
{
    rdt_follower *follower = NULL;

    must_ok(rdt_follow(conn, &name, NULL, &follower, &err));
    return follower;
}

static struct rdt_prepared prepared(rdt_follower *follower)
{
    struct rdt_prepared prepared = {0};

    must_ok(rdt_follower_prepare(follower, LONG, &prepared, &err));
    return prepared;
}

/* Commits into memory of this process, which must then have one value in all words; returns it. */
static uint64_t commit_words(rdt_follower *follower, size_t n)
{
    uint64_t *words = calloc(n + 1, sizeof *words), value;
    struct rdt_tensor target = VECTOR(RDT_U64, n, words);
    struct rdt_commit_options options = {.struct_size = sizeof options, .targets = &target, .n_targets = 1};
    struct rdt_commit commit = {0};

    must_ok(rdt_follower_commit(follower, &options, &commit, &err));
    must(commit.bytes == n * sizeof *words);
    value = words[0];
    for (size_t i = 0; i < n; i++)
        must(words[i] == value);
    free(words);
    return value;
}

static struct rdt_follower_info info_of_follower(rdt_follower *follower)
{
    struct rdt_follower_info info;

    must_ok(rdt_follower_info(follower, &info, &err));
    return info;
}

/* From now on the name is on the first of two nodes, and the follower on the second. */
static rdt *begin_far(rdt **near_p)
{
    *near_p = begin_shards(2);
    name = name_on(0, "policy", 0);
    return on(1);
}

static void end_far(rdt *near, rdt *far)
{
    must_ok(rdt_unpublish(near, &name, &err));
    end_shards(near, far);
}

Test(follow, version_is_here_before_it_is_asked_for)
{
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow(far);

    for (uint64_t i = 1; i <= 3; i++) {
        must(publish_words(near, i, WORDS, RDT_PUT_SNAPSHOT) == i);
        wait_until(LONG, info_of_follower(follower).prepared == i);
        uint64_t out = node_now(&c.node[0]).bytes_out;
        struct rdt_prepared here = {0};
        must_ok(rdt_follower_prepare(follower, 0, &here, &err)); /* does not wait */
        must(here.version == i && here.step == 0 && here.objects == 1 && here.bytes == WORD_BYTES);
        must(here.bytes_moved == WORD_BYTES && here.skipped == 0);
        must(commit_words(follower, WORDS) == i);
        must(node_now(&c.node[0]).bytes_out == out); /* nothing has moved for it */
        wait_until(LONG, info_of_follower(follower).lag == 0);
        must(info_of_follower(follower).committed == i);
        must_refuse(RDT_TIMED_OUT, "no newer version is whole on this node", rdt_follower_prepare(follower, 0, NULL, &err));
    }
    rdt_follower_close(follower);
    end_far(near, far);
}

Test(follow, prepare_waits_for_the_next_version)
{
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow(far);

    must_refuse(RDT_TIMED_OUT, "no version above 0 is published", rdt_follower_prepare(follower, 20 * MSEC, NULL, &err));
    must(publish_words(near, 7, 3, RDT_PUT_SNAPSHOT) == 1); /* few words: they come in the answer */
    must(prepared(follower).version == 1);
    must(commit_words(follower, 3) == 7);
    must(publish_words(near, 8, 0, RDT_PUT_SNAPSHOT) == 2);
    must(prepared(follower).bytes == 0);
    must_ok(rdt_follower_commit(follower, NULL, NULL, &err));
    rdt_follower_close(follower);
    end_far(near, far);
}

Test(follow, skipped_versions_are_never_seen)
{
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow(far);

    publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 1);
    for (uint64_t i = 2; i <= 9; i++)
        publish_words(near, i, WORDS, RDT_PUT_SNAPSHOT);
    wait_until(LONG, info_of_follower(follower).prepared == 9);
    must(info_of_follower(follower).lag == 9);
    must(prepared(follower).version == 9); /* in place of the one that was prepared */
    must(commit_words(follower, WORDS) == 9);
    publish_words(near, 10, WORDS, RDT_PUT_SNAPSHOT);
    publish_words(near, 11, WORDS, RDT_PUT_SNAPSHOT);
    wait_until(LONG, info_of_follower(follower).prepared == 11);
    must(prepared(follower).skipped == 1);
    rdt_follower_close(follower);
    end_far(near, far);
}

Test(follow, prepared_version_needs_no_other_node)
{
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow(far), *second = follow(far);

    publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT);
    wait_until(LONG, info_of_follower(second).prepared == 1);
    must(prepared(follower).version == 1);
    node_kill(&c.node[0], SIGKILL);
    must(commit_words(follower, WORDS) == 1);
    must(prepared(second).version == 1); /* which this process did not have yet */
    must(commit_words(second, WORDS) == 1);
    rdt_close(near);
    cluster_restart(&c, 0);
    near = on(0);
    wait_until(LONG, rdt_ping(near, LONG, NULL) == RDT_OK);
    publish_words(near, 5, WORDS, RDT_PUT_SNAPSHOT); /* counts from 1 again, and is another object */
    must(prepared(follower).version == 1);
    must(commit_words(follower, WORDS) == 5);
    rdt_follower_close(follower);
    rdt_follower_close(second);
    end_far(near, far);
}

Test(follow, parts_are_committed_by_a_plan)
{
    static struct view view;
    rdt *near, *far = begin_far(&near), *both[] = {near, far};
    rdt_follower *follower = follow(far);

    view_open(&view, far, &name, 24, 48, RDT_PLAN_AUTO);
    for (uint64_t step = 1; step <= 4; step++) {
        must(publish(both, 2, &name, step, step == 3 ? 4 : 2, step != 4) == step);
        struct rdt_prepared here = prepared(follower);
        must(here.version == step && here.step == step && here.objects == (step == 3 ? 4 : 2));
        struct rdt_commit_options options = {.struct_size = sizeof options, .plan = view.plan};
        struct rdt_commit commit = {0};
        uint64_t out = node_now(&c.node[0]).bytes_out;
        must_ok(rdt_follower_commit(follower, &options, &commit, &err));
        must(commit.version == step && commit.bytes == (ROWS * 48 + COLUMNS) * sizeof(float));
        must(node_now(&c.node[0]).bytes_out == out);
        view_check(&view, step);
    }
    must(publish(both, 2, &name, 5, 2, true) == 5);
    must_ok(rdt_plan_run(view.plan, 4, LONG, NULL, &err)); /* the plan still works without the follower */
    view_check(&view, 5);
    rdt_plan_destroy(view.plan);
    rdt_follower_close(follower);
    end_far(near, far);
}

Test(follow, followers_of_a_node_share_one_copy)
{
    rdt *near, *far = begin_far(&near), *other = on(1);
    rdt_follower *followers[] = {follow(far), follow(far), follow(other)};

    publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT);
    for (unsigned i = 0; i < 3; i++)
        must(prepared(followers[i]).version == 1);
    struct node_status now = node_now(&c.node[0]);
    must_say(now.bytes_out < 2 * WORD_BYTES, "%llu bytes were sent for one version", (unsigned long long)now.bytes_out);
    must(node_now(&c.node[1]).replica_bytes == WORD_BYTES);
    rdt_follower_close(followers[2]); /* which disturbs nobody */
    rdt_close(other);
    publish_words(near, 2, WORDS, RDT_PUT_SNAPSHOT);
    for (unsigned i = 0; i < 2; i++) {
        must(commit_words(followers[i], WORDS) == 1);
        must(prepared(followers[i]).version == 2);
        must(commit_words(followers[i], WORDS) == 2);
        rdt_follower_close(followers[i]);
    }
    end_far(near, far);
}

Test(follow, publishers_own_node_has_nothing_to_fetch)
{
    rdt *conn = begin_shards(1);
    static struct view view;

    name = name_on(0, "policy", 0);
    rdt_follower *follower = follow(conn);
    publish_words(conn, 1, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 1);
    publish_words(conn, 2, 5, RDT_PUT_SNAPSHOT); /* replaces it; the follower holds it */
    must(rdt_object_count(rdt_follower_object(follower, 0)) == 1);
    rdt_object *object = NULL;
    struct rdt_commit_options options = {.struct_size = sizeof options, .objects = &object};
    must_ok(rdt_follower_commit(follower, &options, NULL, &err));
    must(*(uint64_t *)tensor_of(object, 0).data == 1);
    must_go_by("local/share", object);
    must(prepared(follower).version == 2);
    publish_words(conn, 3, WORDS, RDT_PUT_SNAPSHOT);
    must(commit_words(follower, 5) == 2);
    rdt_release(object);
    must(publish(&conn, 1, &name, 4, 2, true) == 4);
    wait_until(LONG, info_of_follower(follower).prepared == 4);
    must(prepared(follower).objects == 2);
    view_open(&view, conn, &name, 0, COLUMNS, RDT_PLAN_AUTO);
    options = (struct rdt_commit_options){.struct_size = sizeof options, .plan = view.plan};
    must_ok(rdt_follower_commit(follower, &options, NULL, &err));
    view_check(&view, 4);
    rdt_plan_destroy(view.plan);
    rdt_follower_close(follower);
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, NULL);
}

Test(follow, what_is_no_snapshot_is_refused)
{
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow(far);

    publish_words(near, 1, WORDS, 0);
    must_refuse(RDT_UNSUPPORTED, "version 1 of \"policy\": it is not a snapshot",
                rdt_follower_prepare(follower, LONG, NULL, &err));
    publish_words(near, 2, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 2);
    rdt_follower_close(follower);
    end_far(near, far);
}

Test(follow, name_at_a_bad_address_is_refused_by_the_call)
{
    rdt *conn = begin_shards(1);
    rdt_follower *follower = NULL;

    must_ok(rdt_ref_from_name("policy", 0, NULL, &name, &err));
    must_ok(rdt_ref_set_address(&name, "q", &err));
    must_refuse(RDT_INVALID, "'q' is neither HOST:PORT nor a name in the nodes file",
                rdt_follow(conn, &name, NULL, &follower, &err));
    must_ok(rdt_ref_set_address(&name, "127.0.0.1:0", &err));
    must_refuse(RDT_INVALID, "port 0 cannot be dialled", rdt_follow(conn, &name, NULL, &follower, &err));
    must(!follower);
    end_shards(conn, NULL);
}

Test(follow, wrong_targets_change_nothing)
{
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow(far);
    uint64_t words[8] = {0};
    struct rdt_tensor targets[2] = {VECTOR(RDT_U64, 4, words), VECTOR(RDT_U64, 4, words + 2)};
    struct rdt_commit_options options = {.struct_size = sizeof options, .targets = targets, .n_targets = 1};

    must_refuse(RDT_INVALID, "no version of \"policy\" is prepared", rdt_follower_commit(follower, &options, NULL, &err));
    publish_words(near, 1, 6, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 1);
    must_refuse(RDT_MISMATCH, "target tensor 0 has another dtype or shape",
                rdt_follower_commit(follower, &options, NULL, &err));
    options.n_targets = 2;
    must_refuse(RDT_MISMATCH, "the object has 1 tensors", rdt_follower_commit(follower, &options, NULL, &err));
    for (unsigned i = 0; i < 8; i++)
        must(words[i] == 0);
    must(commit_words(follower, 6) == 1); /* it is still prepared */
    rdt_follower_close(follower);
    end_far(near, far);
}

Test(follow, end_of_the_name_is_told_once)
{
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow(far);

    publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 1);
    must(commit_words(follower, WORDS) == 1);
    must_ok(rdt_unpublish(near, &name, &err));
    must_refuse(RDT_FREED, "unpublished", rdt_follower_prepare(follower, LONG, NULL, &err));
    publish_words(near, 2, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version > 0);
    must(commit_words(follower, WORDS) == 2);
    rdt_follower_close(follower);
    end_far(near, far);
}

Test(follow, version_that_is_here_outlives_its_name)
{
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow(far);
    size_t n;

    uint64_t version = publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT);
    wait_until(LONG, info_of_follower(follower).prepared == version);
    must_ok(rdt_unpublish_prefix(near, "pol", &n, &err));
    must(n == 1);
    must(prepared(follower).version == version);
    must(commit_words(follower, WORDS) == 1);
    must_refuse(RDT_FREED, "unpublished", rdt_follower_prepare(follower, LONG, NULL, &err));
    rdt_follower_close(follower);
    end_shards(near, far);
}

Test(follow, next_version_waits_where_two_do_not_fit)
{
    static const char *flags[] = {"--owner-max-followed-bytes=800KiB", NULL}; /* a version has 512 KiB */

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true, .flags_of[1] = flags});
    rdt *near = on(0), *far = on(1);
    name = name_on(0, "policy", 0);
    rdt_follower *follower = follow(far), *lazy = follow(far);
    publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 1);
    publish_words(near, 2, WORDS, RDT_PUT_SNAPSHOT);
    wait_until(LONG, strcmp(info_of_follower(follower).state, "full") == 0);
    must(prepared(follower).version == 1 && prepared(lazy).version == 1);
    must(commit_words(follower, WORDS) == 1);
    must(commit_words(lazy, WORDS) == 1);
    must(prepared(follower).version == 2); /* it has made room */
    must(prepared(lazy).version == 2);
    publish_words(near, 3, 2 * WORDS, RDT_PUT_SNAPSHOT); /* fits nowhere */
    must(commit_words(follower, WORDS) == 2);
    must(commit_words(lazy, WORDS) == 2);
    must_refuse(RDT_LIMIT, "owner_max_followed_bytes", rdt_follower_prepare(follower, LONG, NULL, &err));
    publish_words(near, 4, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 4);
    rdt_follower_close(follower);
    rdt_follower_close(lazy);
    end_far(near, far);
}

/* The limit of followed bytes lets both versions in, and the daemon's memory, of which others have a part, does not. */
Test(follow, next_version_waits_where_memory_has_no_room)
{
    static const char *flags[] = {"--memory-limit=12MiB", NULL};
    const size_t n = 10 * WORDS; /* 5 MiB */

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true, .flags_of[1] = flags});
    rdt *near = on(0), *far = on(1);
    name = name_on(0, "policy", 0);
    rdt_follower *follower = follow(far), *lazy = follow(far);
    publish_words(near, 1, n, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 1 && prepared(lazy).version == 1);
    must(commit_words(follower, n) == 1);
    void *memory = alloc_memory(far, 3 << 20), *more;
    publish_words(near, 2, n, RDT_PUT_SNAPSHOT);
    wait_until(LONG, strstr(info_of_follower(follower).failure, "memory_limit"));
    must_refuse(RDT_TIMED_OUT, "memory_limit", rdt_follower_prepare(follower, 20 * MSEC, NULL, &err));
    must(commit_words(lazy, n) == 1);
    (void)rdt_follower_prepare(lazy, RDT_NO_WAIT, NULL, NULL); /* which unmaps what was committed */
    must(prepared(follower).version == 2);                     /* there is room */
    must(commit_words(follower, n) == 2);
    must(prepared(lazy).version == 2);
    must(commit_words(lazy, n) == 2);
    (void)rdt_follower_prepare(lazy, RDT_NO_WAIT, NULL, NULL);
    more = alloc_memory(far, 7 << 19); /* beside both there is too little, even without version 2 */
    publish_words(near, 3, 12 * WORDS, RDT_PUT_SNAPSHOT);
    must_refuse(RDT_NO_MEMORY, "version 3 of \"policy\"", rdt_follower_prepare(follower, LONG, NULL, &err));
    must_ok(rdt_dealloc(far, more, &err));
    must(prepared(follower).version == 3);
    must(commit_words(follower, 12 * WORDS) == 3);
    must_ok(rdt_dealloc(far, memory, &err));
    rdt_follower_close(follower);
    rdt_follower_close(lazy);
    end_far(near, far);
}

/* Publishes an object that looks like a manifest of these parts, of which only the refs are said, as the next version. Before
 * them are n_more fields. */
static void publish_list(rdt *conn, const struct rdt_ref *refs, size_t n, size_t n_more)
{
    Rdt__Pb__Manifest manifest = RDT__PB__MANIFEST__INIT;
    Rdt__Pb__ManifestPart *parts = calloc(n, sizeof *parts), **list = calloc(n, sizeof(void *));
    Rdt__Pb__Ref *wire = calloc(n, sizeof *wire);

    for (size_t i = 0; i < n; i++) {
        rdt__pb__manifest_part__init(&parts[i]);
        wire_ref_from(&refs[i], &wire[i]);
        parts[i].ref = &wire[i];
        list[i] = &parts[i];
    }
    manifest.n_parts = n;
    manifest.parts = list;
    size_t bytes = rdt__pb__manifest__get_packed_size(&manifest);
    uint8_t *metadata = malloc(MANIFEST_MAGIC_BYTES + 2 * n_more + bytes);
    memcpy(metadata, MANIFEST_MAGIC, MANIFEST_MAGIC_BYTES);
    for (size_t i = 0; i < n_more; i++)
        memcpy(metadata + MANIFEST_MAGIC_BYTES + 2 * i, "\x08\x01", 2); /* step = 1 */
    (void)rdt__pb__manifest__pack(&manifest, metadata + MANIFEST_MAGIC_BYTES + 2 * n_more);
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .flags = RDT_PUT_SNAPSHOT,
                                      .metadata = metadata,
                                      .metadata_bytes = MANIFEST_MAGIC_BYTES + 2 * n_more + bytes};
    struct rdt_ref ref = put_as(conn, NULL, 0, &options);
    must_ok(rdt_publish(conn, "policy", &ref, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    free(metadata);
    free(wire);
    free(list);
    free(parts);
}

/* Also if nobody has fetched it for the follower yet, which then waits for the next one. */
Test(follow, version_that_is_freed_by_force_is_passed_over)
{
    static uint64_t words[WORDS]; /* so many that they are not copied into an answer */
    struct rdt_put_options snapshot = {.struct_size = sizeof snapshot, .flags = RDT_PUT_SNAPSHOT};
    rdt *conn = begin_shards(1);

    name = name_on(0, "policy", 0);
    rdt_follower *follower = follow(conn);
    struct rdt_ref ref = put_as(conn, &VECTOR(RDT_U64, WORDS, words), 1, &snapshot);
    must_ok(rdt_publish(conn, "policy", &ref, NULL, NULL, &err));
    wait_until(LONG, info_of_follower(follower).prepared == 1);
    must_ok(rdt_free(conn, &ref, true, &err));
    must_refuse(RDT_TIMED_OUT, "of version 1 of \"policy\" was freed by force",
                rdt_follower_prepare(follower, 20 * MSEC, NULL, &err));
    publish_words(conn, 5, 3, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version > 0);
    must(commit_words(follower, 3) == 5);
    rdt_follower_close(follower);
    end_far(conn, NULL);
}

/* The same on another node, which keeps a replica for its followers. */
Test(follow, version_that_is_freed_by_force_elsewhere_is_passed_over)
{
    static uint64_t words[WORDS];
    struct rdt_put_options snapshot = {.struct_size = sizeof snapshot, .flags = RDT_PUT_SNAPSHOT};
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow(far);

    struct rdt_ref ref = put_as(near, &VECTOR(RDT_U64, WORDS, words), 1, &snapshot);
    must_ok(rdt_publish(near, "policy", &ref, NULL, NULL, &err));
    wait_until(LONG, info_of_follower(follower).prepared == 1);
    must_ok(rdt_free(near, &ref, true, &err));
    must_refuse(RDT_TIMED_OUT, "of version 1 of \"policy\" was freed by force",
                rdt_follower_prepare(follower, SEC, NULL, &err));
    publish_words(near, 5, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version > 0);
    must(commit_words(follower, WORDS) == 5);
    rdt_follower_close(follower);
    end_far(near, far);
}

static rdt_follower *follow_after(rdt *conn, uint64_t after)
{
    struct rdt_follow_options options = {.struct_size = sizeof options, .after = after};
    rdt_follower *follower = NULL;

    must_ok(rdt_follow(conn, &name, &options, &follower, &err));
    return follower;
}

Test(follow, number_above_the_newest_version_is_of_an_earlier_count)
{
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow_after(far, 5);

    publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 1);
    must(commit_words(follower, WORDS) == 1);
    rdt_follower_close(follower);
    end_far(near, far);
}

static bool explains(rdt_follower *follower, const char *text)
{
    struct rdt_error why = {0};

    return rdt_follower_prepare(follower, 0, NULL, &why) == RDT_TIMED_OUT && strstr(why.msg, text);
}

/* The node of the name restarts while a part of its version comes from another node. */
Test(follow, count_that_begins_anew_within_a_fetch_is_noticed)
{
    static const char *flags[] = {"--peer-timeout=5m", NULL}; /* the node that is frozen is not given up */
    struct rdt_ref part[3];
    uint64_t version;

    cluster_start(&c, 3, &(struct cluster_options){.stream = true, .no_ucx = true, .flags = flags});
    rdt *near = on(0), *far = on(1), *trainer = on(2);
    name = name_on(0, "policy", 0);
    for (uint32_t step = 1; step <= 3; step++) {
        part[step - 1] = put_rank(trainer, step, 0, 1, true);
        must_ok(rdt_publish_part(trainer, &name, step, 0, 1, &part[step - 1], NULL, LONG, &version, &err));
    }
    must(version == 3);
    node_freeze(&c.node[2]);
    rdt_follower *follower = follow(far);
    wait_until(LONG, explains(follower, "1 of 2 objects of version 3")); /* its list is here, and the part is asked for */
    rdt_close(near);
    node_kill(&c.node[0], SIGKILL);
    cluster_restart(&c, 0);
    near = on(0);
    must(publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT) == 1);
    wait_until(LONG, rdt_wait_put(far, &name, SEC, NULL) == RDT_OK); /* the nodes have met again */
    node_thaw(&c.node[2]);
    wait_until(LONG, info_of_follower(follower).newest == 1 && info_of_follower(follower).prepared == 1);
    must(prepared(follower).version == 1);
    must(commit_words(follower, WORDS) == 1);
    rdt_follower_close(follower);
    for (unsigned i = 0; i < 3; i++)
        must_ok(rdt_free(trainer, &part[i], false, &err));
    rdt_close(trainer);
    end_far(near, far);
}

Test(follow, newcomer_gets_what_the_others_need_not)
{
    rdt *near, *far = begin_far(&near);
    rdt_follower *follower = follow(far), *ahead;

    publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 1);
    ahead = follow_after(far, 2);
    rdt_follower_close(follower); /* version 1 is still here, and version 2 not needed */
    publish_words(near, 2, WORDS, RDT_PUT_SNAPSHOT);
    wait_until(LONG, info_of_follower(ahead).newest == 2);
    follower = follow(far);
    wait_until(LONG, info_of_follower(follower).prepared == 2);
    must(prepared(follower).version == 2);
    must(commit_words(follower, WORDS) == 2);
    rdt_follower_close(ahead);
    rdt_follower_close(follower);
    end_far(near, far);
}

/* The one that lacked it has ended, and the other one has had it all the time. */
Test(follow, version_that_nobody_lacks_makes_room_for_the_next)
{
    static const char *flags[] = {"--owner-max-followed-bytes=800KiB", NULL}; /* a version has 512 KiB */

    cluster_start(&c, 2, &(struct cluster_options){.stream = true, .no_ucx = true, .flags_of[1] = flags});
    rdt *near = on(0), *far = on(1);
    name = name_on(0, "policy", 0);
    rdt_follower *follower = follow(far), *ahead = follow_after(far, 1);
    publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 1);
    publish_words(near, 2, WORDS, RDT_PUT_SNAPSHOT);
    wait_until(LONG, strcmp(info_of_follower(ahead).state, "full") == 0);
    rdt_follower_close(follower);
    must(prepared(ahead).version == 2);
    must(commit_words(ahead, WORDS) == 2);
    rdt_follower_close(ahead);
    end_far(near, far);
}

Test(follow, version_may_have_as_many_parts_as_can_be_published)
{
    enum { PARTS = 5000 }; /* more than there may be ranks */
    static struct rdt_ref refs[PARTS];
    struct rdt_put_options snapshot = {.struct_size = sizeof snapshot, .flags = RDT_PUT_SNAPSHOT};
    rdt *conn = begin_shards(1);

    name = name_on(0, "policy", 0);
    rdt_follower *follower = follow(conn);
    for (unsigned i = 0; i < PARTS; i++)
        refs[i] = put_as(conn, NULL, 0, &snapshot);
    publish_list(conn, refs, PARTS, 0);
    wait_until(LONG, info_of_follower(follower).prepared == 1);
    rdt_follower_close(follower);
    must_ok(rdt_drop(conn, &refs[0], &err));
    end_far(conn, NULL);
}

/* The first part has ended, the next ones are awaited, and then there may be no more fetches. */
Test(follow, manifest_of_millions_of_fields_is_read)
{
    rdt *conn = begin_shards(1);
    struct rdt_put_options snapshot = {.struct_size = sizeof snapshot, .flags = RDT_PUT_SNAPSHOT};
    struct rdt_ref part = put_as(conn, NULL, 0, &snapshot);

    name = name_on(0, "policy", 0);
    rdt_follower *follower = follow(conn);
    publish_list(conn, &part, 1, 3000000);
    wait_until(LONG, info_of_follower(follower).prepared == 1);
    publish_list(conn, (struct rdt_ref[]){part, part}, 2, 3000000);
    wait_until(LONG, strstr(info_of_follower(follower).failure, "twice"));
    rdt_follower_close(follower);
    must_ok(rdt_free(conn, &part, false, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    end_shards(conn, NULL);
}

Test(follow, version_that_fails_twice_at_once_fails_once)
{
    static const char *flags[] = {"--owner-max-transfers=4", NULL};
    struct rdt_put_options pending = {.struct_size = sizeof pending, .flags = RDT_PUT_PENDING};
    struct rdt_prepared got = {0};
    struct rdt_ref refs[8];

    cluster_start(&c, 1, &(struct cluster_options){.stream = true, .no_ucx = true, .flags_of[0] = flags});
    rdt *conn = on(0);
    name = name_on(0, "policy", 0);
    rdt_follower *follower = follow(conn);
    refs[0] = put_as(conn, NULL, 0, NULL);
    must_ok(rdt_free(conn, &refs[0], false, &err));
    for (unsigned i = 1; i < 8; i++)
        refs[i] = put_as(conn, NULL, 0, &pending);
    publish_list(conn, refs, 8, 0);
    /* Whichever failure is seen first: that of the part that was freed is not told, because the next version may be whole. */
    cr_assert_neq(rdt_follower_prepare(follower, 200 * MSEC, NULL, NULL), RDT_OK);
    for (unsigned i = 1; i < 8; i++)
        must_ok(rdt_free(conn, &refs[i], true, &err));
    publish_words(conn, 2, WORDS, RDT_PUT_SNAPSHOT);
    wait_until(LONG, rdt_follower_prepare(follower, LONG, &got, NULL) == RDT_OK);
    must(got.version == 2);
    must(commit_words(follower, WORDS) == 2);
    rdt_follower_close(follower);
    end_far(conn, NULL);
}

static int follow_and_wait(struct actor *self, void *arg)
{
    rdt *conn;

    (void)arg;
    node_connect(&c.node[1], &conn);
    rdt_follower *follower = follow(conn);
    must(prepared(follower).version == 1);
    actor_step(self);
    (void)rdt_follower_prepare(follower, RDT_FOREVER, NULL, NULL);
    return 0;
}

Test(follow, killed_follower_costs_nothing)
{
    struct actor actor;
    rdt *near, *far = begin_far(&near);

    publish_words(near, 1, WORDS, RDT_PUT_SNAPSHOT);
    rdt_follower *follower = follow(far);
    actor_start(&actor, follow_and_wait, NULL);
    actor_await(&actor);
    must(prepared(follower).version == 1);
    actor_kill(&actor, SIGKILL);
    must(commit_words(follower, WORDS) == 1);
    publish_words(near, 2, WORDS, RDT_PUT_SNAPSHOT);
    must(prepared(follower).version == 2);
    rdt_follower_close(follower);
    end_far(near, far); /* where nothing may be left */
}
