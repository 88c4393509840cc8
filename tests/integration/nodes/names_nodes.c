/* SPDX-License-Identifier: Apache-2.0 */
/* Published names across nodes: a trainer and its samplers, waiting over the link, and what happens to them when the link
 * or the node is lost. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/rdt_follow.h"
#include "tests/support/cluster.h"
#include "tests/support/raw.h"
#include "wire_ref.h"

TestSuite(names_nodes, .timeout = 240);

#define KIB ((size_t)1024)
#define SAMPLERS 8
#define STEPS 200u
#define INLINE_BYTES (4 * KIB)
#define UCX_BYTES (512 * KIB)

static struct cluster c;

static const char *const link_warnings[] = {"is down: ",
                                            "is lost: ",
                                            "refused",
                                            "connection from",
                                            "not connected",
                                            "reset",
                                            "timed out",
                                            "no TLS handshake",
                                            "no answer",
                                            "unreachable",
                                            "taken down and rebuilt: ",
                                            NULL};

static struct rdt_ref name_on(const struct test_node *node, const char *name, uint64_t after)
{
    struct rdt_ref near = ref_on(node, "any"), ref = {0};

    must_ok(rdt_ref_from_name(name, after, &near, &ref, &err));
    return ref;
}

static uint64_t publish_pattern(rdt *conn, const char *name, size_t bytes, uint32_t seed)
{
    uint64_t version = 0;
    struct rdt_ref ref = put_pattern(conn, NULL, bytes, seed);

    must_ok(rdt_publish(conn, name, &ref, NULL, &version, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    return version;
}

static uint64_t serve_of(const struct test_node *node, const char *state)
{
    struct transfer_view views[64];
    unsigned n = transfers_of(node, views, 64), found = 0;

    for (unsigned i = 0; i < n; i++)
        found += strcmp(views[i].direction, "out") == 0 && strcmp(views[i].state, state) == 0;
    return found;
}

/* ---- a trainer and eight samplers ---- */

struct training {
    uint32_t first, last; /* steps */
};

static size_t bytes_of(uint64_t version)
{
    return version % 2 ? INLINE_BYTES : UCX_BYTES;
}

/* Every version is also its pattern's seed and tells its size. */
static int train(struct actor *self, void *arg)
{
    const struct training *training = arg;
    rdt *conn = node_client(&c.node[0], "trainer");
    struct node_status status;

    for (uint32_t step = training->first; step <= training->last; step++) {
        must(publish_pattern(conn, "weights", bytes_of(step), step) == step);
        node_status(&c.node[0], &status); /* the newest, and one in the hands of each sampler, the slow one and each transfer */
        must_say(status.objects <= 2 * SAMPLERS + 2, "%llu objects at step %u", (unsigned long long)status.objects, step);
        must_say(status.memory_bytes <= (2 * SAMPLERS + 2) * UCX_BYTES, "%llu bytes at step %u",
                 (unsigned long long)status.memory_bytes, step);
        if (step % 20 == 0) { /* let them keep up now and then: else they see the first and the last */
            actor_step(self);
            actor_await(self);
        }
    }
    actor_await(self); /* for ever, or until it may go */
    rdt_close(conn);
    return 0;
}

struct sampling {
    const struct test_node *node;
    bool slow;
};

static int sample(struct actor *self, void *arg)
{
    const struct sampling *sampling = arg;
    rdt *conn = node_client(sampling->node, "sampler");
    uint64_t version = 0, seen = 0, first = 0;
    rdt_object *object, *kept = NULL;
    uint32_t paths = 0;

    while (version < STEPS) {
        struct rdt_ref ref = name_on(&c.node[0], "weights", version);
        struct rdt_object_info info;
        object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
        info = info_of(object);
        must_say(info.version > version, "version %llu after %llu", (unsigned long long)info.version,
                 (unsigned long long)version);
        version = info.version;
        must_say(holds_pattern(tensor_of(object, 0).data, bytes_of(version), (uint32_t)version), "the bytes of version %llu",
                 (unsigned long long)version);
        paths |= strcmp(info.path, "ucx") == 0 ? 1u : strcmp(info.path, "inline") == 0 ? 2u : 4u;
        seen++;
        if (sampling->slow && !kept) {
            kept = object;
            first = version;
        } else {
            rdt_release(object);
        }
        if (version % 20 == 0)
            actor_send(self, &version, sizeof version);
    }
    must_say(seen >= STEPS / 20, "saw %llu versions", (unsigned long long)seen);
    must(sampling->node == &c.node[0] ? (paths & 5u) == 4u : (paths & 1u) != 0);
    if (kept) {
        must(holds_pattern(tensor_of(kept, 0).data, bytes_of(first), (uint32_t)first));
        rdt_release(kept);
    }
    rdt_close(conn);
    return 0;
}

/* All samplers have the version; then the trainer goes on. */
static void keep_up(struct actor *trainer, struct actor *samplers, uint64_t version)
{
    uint64_t got;

    actor_await(trainer);
    for (unsigned i = 0; i < SAMPLERS; i++) {
        actor_recv(&samplers[i], &got, sizeof got);
        must(got == version);
    }
    actor_step(trainer);
}

Test(names_nodes, eight_samplers_follow_two_trainers_in_turn)
{
    struct training trainings[] = {{1, STEPS / 2}, {STEPS / 2 + 1, STEPS}};
    struct sampling samplings[SAMPLERS];
    struct actor trainers[2], samplers[SAMPLERS];
    struct rdt_ref name;
    rdt *conn;

    cluster_start(&c, 2, &(struct cluster_options){0});
    for (unsigned i = 0; i < SAMPLERS; i++) {
        samplings[i] = (struct sampling){.node = &c.node[i % 2], .slow = i >= SAMPLERS - 2};
        actor_start(&samplers[i], sample, &samplings[i]);
    }
    actor_start(&trainers[0], train, &trainings[0]);
    for (uint32_t step = 20; step <= STEPS / 2; step += 20)
        keep_up(&trainers[0], samplers, step);
    actor_kill(&trainers[0], SIGKILL);
    actor_start(&trainers[1], train, &trainings[1]);
    for (uint32_t step = STEPS / 2 + 20; step <= STEPS; step += 20)
        keep_up(&trainers[1], samplers, step);
    for (unsigned i = 0; i < SAMPLERS; i++)
        actor_wait(&samplers[i]);
    actor_step(&trainers[1]);
    actor_wait(&trainers[1]);
    conn = node_client(&c.node[1], "cleaner"); /* the name is there when its trainers are not, for other nodes too */
    name = name_on(&c.node[0], "weights", 0);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be(RDT_NOT_FOUND, rdt_unpublish(conn, &name, &err));
    rdt_close(conn);
    cluster_end(&c, NULL);
}

/* Like a trainer: one buffer for ever, and each step a snapshot of it. */
static int train_in_place(struct actor *self, void *arg)
{
    rdt *conn = node_client(&c.node[0], "trainer");
    uint8_t *weights = alloc_memory(conn, UCX_BYTES);
    struct rdt_put_options options = RDT_INIT(options);
    uint64_t version = 0;

    (void)arg;
    options.flags = RDT_PUT_SNAPSHOT;
    for (uint32_t step = 1; step <= STEPS; step++) {
        struct rdt_ref ref;
        fill_pattern(weights, UCX_BYTES, step);
        must_ok(rdt_put(conn, &VECTOR(RDT_U8, UCX_BYTES, weights), 1, &options, &ref, &err));
        must_ok(rdt_publish(conn, "weights", &ref, NULL, &version, &err));
        must_ok(rdt_free(conn, &ref, false, &err));
        must(version == step);
        if (step % 20 == 0) {
            actor_step(self);
            actor_await(self);
        }
    }
    rdt_close(conn);
    return 0;
}

static int sample_in_place(struct actor *self, void *arg)
{
    rdt *conn = node_client(arg, "sampler");
    uint64_t version = 0;

    while (version < STEPS) {
        struct rdt_ref ref = name_on(&c.node[0], "weights", version);
        rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
        must(info_of(object).version > version);
        version = info_of(object).version;
        must_say(holds_pattern(tensor_of(object, 0).data, UCX_BYTES, (uint32_t)version), "the bytes of version %llu",
                 (unsigned long long)version);
        rdt_release(object);
        if (version % 20 == 0)
            actor_send(self, &version, sizeof version);
    }
    rdt_close(conn);
    return 0;
}

Test(names_nodes, snapshots_of_one_buffer_are_versions_that_never_change)
{
    struct actor trainer, samplers[SAMPLERS];
    struct node_status status;
    struct rdt_ref name;
    rdt *conn;

    cluster_start(&c, 2, &(struct cluster_options){0});
    for (unsigned i = 0; i < SAMPLERS; i++)
        actor_start(&samplers[i], sample_in_place, &c.node[i % 2]);
    actor_start(&trainer, train_in_place, NULL);
    for (uint32_t step = 20; step <= STEPS; step += 20)
        keep_up(&trainer, samplers, step);
    actor_wait(&trainer);
    for (unsigned i = 0; i < SAMPLERS; i++)
        actor_wait(&samplers[i]);
    node_status(&c.node[0], &status);
    must_say(status.objects == 1, "%llu objects are left", (unsigned long long)status.objects);
    conn = node_client(&c.node[0], "cleaner");
    name = name_on(&c.node[0], "weights", 0);
    must_ok(rdt_unpublish(conn, &name, &err));
    rdt_close(conn);
    cluster_end(&c, NULL);
}

/* ---- across the link ---- */

Test(names_nodes, publish_goes_to_the_objects_node)
{
    struct rdt_publish_options options = RDT_INIT(options);
    struct rdt_ref ref, name, here;
    struct rdt_stat stat;
    rdt *owner, *reader;
    uint64_t version;
    rdt_object *object;

    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    ref = put_pattern(owner, "o", INLINE_BYTES, 1);
    options.name_ref = &name;
    must_ok(rdt_publish(reader, "weights", &ref, &options, &version, &err));
    must(version == 1 && memcmp(name.node, c.node[0].uuid_bytes, 16) == 0 && strcmp(name.address, c.node[0].address) == 0);
    must_ok(rdt_stat(reader, &name, &stat, &err));
    must(stat.ref.generation == ref.generation && stat.holds == 2);
    must_ok(rdt_ref_from_name("weights", 0, NULL, &here, &err));
    must_be(RDT_NOT_FOUND, rdt_stat(reader, &here, &stat, &err)); /* not on the reader's own node */
    must_ok(rdt_stat(owner, &here, &stat, &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_wait_put(reader, &name, LONG, &err));
    object = fetch_one(reader, &name, RDT_FETCH_AUTO);
    must(info_of(object).version == 1 && info_of(object).ref.generation == ref.generation);
    must(memcmp(info_of(object).ref.node, c.node[0].uuid_bytes, 16) == 0);
    rdt_release(object);
    ref.generation += 1000;
    must_refuse(RDT_NOT_FOUND, "not known", rdt_publish(reader, "weights", &ref, NULL, NULL, &err));
    must_refuse(RDT_INVALID, "is a name", rdt_publish(reader, "weights", &name, NULL, NULL, &err));
    must_ok(rdt_unpublish(reader, &name, &err));
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, NULL);
}

/* Its node waits for the bytes for a few seconds, which no node may make longer, and then says why. */
Test(names_nodes, publish_of_another_nodes_unfinished_object_ends_and_can_come_again)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref, name;
    uint64_t version;
    rdt *owner, *reader;
    char *addr;

    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    addr = alloc_memory(owner, INLINE_BYTES);
    options.flags = RDT_PUT_PENDING;
    must_ok(rdt_put(owner, &VECTOR(RDT_U8, INLINE_BYTES, addr), 1, &options, &ref, &err));
    must_refuse(RDT_TIMED_OUT, "still being put", rdt_publish(reader, "weights", &ref, NULL, NULL, &err));
    must_ok(rdt_ready(owner, &ref, &err));
    must_ok(rdt_publish(reader, "weights", &ref, NULL, &version, &err));
    must(version == 1);
    must_ok(rdt_ref_from_name("weights", 0, NULL, &name, &err));
    must_ok(rdt_unpublish(owner, &name, &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_dealloc(owner, addr, &err));
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, NULL);
}

/* Four ask for it at once, and one of the nodes that would know it is the last to answer. */
Test(names_nodes, name_that_nobody_published_is_not_found)
{
    Rdt__Pb__Stat request = RDT__PB__STAT__INIT, other = RDT__PB__STAT__INIT;
    struct rdt_ref name, there;
    Rdt__Pb__Ref wire, other_wire;
    struct raw raw;
    char text[256];
    uint64_t last;

    cluster_start(&c, 3, &(struct cluster_options){.no_ucx = true, .stream = true, .table = true});
    must_ok(rdt_ref_from_name("nothing", 0, NULL, &name, &err));
    wire_ref_from(&name, &wire);
    request.ref = &wire;
    there = ref_on(&c.node[1], "nobody");
    wire_ref_from(&there, &other_wire);
    other.ref = &other_wire;
    raw_connect(&raw, c.node[0].socket);
    raw_hello(&raw);
    node_freeze(&c.node[2]);
    for (unsigned i = 0; i < 4; i++)
        (void)raw_send(&raw, RDT_MSG_STAT, &request.base, NULL, 0);
    /* The other node answers this one after them. */
    last = raw_send(&raw, RDT_MSG_STAT, &other.base, NULL, 0);
    must(raw_error(&raw, text) == RDT_NOT_FOUND && raw.frame.request_id == last);
    node_thaw(&c.node[2]);
    for (unsigned i = 0; i < 4; i++) {
        enum rdt_status status = raw_error(&raw, text);
        must_say(status == RDT_NOT_FOUND, "%s: %s", rdt_status_name(status), text);
    }
    raw_close(&raw);
    cluster_end(&c, (const char *const[]){"cannot connect", NULL});
}

/* Three nodes would know it, so one of them is the frozen one. Who has waited for that one is not made to wait again. */
Test(names_nodes, name_of_another_node_is_refused_although_a_home_is_frozen)
{
    static const char *const flags[] = {"--peer-timeout=60s", NULL};
    struct rdt_ref name, ref;
    rdt *owner, *other;

    cluster_start(&c, 3, &(struct cluster_options){.no_ucx = true, .stream = true, .table = true, .flags = flags});
    owner = node_client(&c.node[0], "owner");
    other = node_client(&c.node[1], "other");
    must(publish_pattern(owner, "weights", INLINE_BYTES, 1) == 1);
    ref = put_pattern(other, "o", INLINE_BYTES, 2);
    node_freeze(&c.node[2]);
    must_refuse(RDT_EXISTS, "published on node n0", rdt_publish(other, "weights", &ref, NULL, NULL, &err));
    node_thaw(&c.node[2]);
    must_ok(rdt_free(other, &ref, false, &err));
    must_ok(rdt_ref_from_name("weights", 0, NULL, &name, &err));
    must_ok(rdt_unpublish(owner, &name, &err));
    rdt_close(owner);
    rdt_close(other);
    cluster_end(&c, (const char *const[]){"cannot connect", NULL});
}

/* The restarted home grants the name, the frozen node of the name says nothing, and only the home on the node that asks knows
 * it. Of equal votes the lower uuid would count. */
Test(names_nodes, name_of_another_node_is_refused_although_a_home_was_restarted)
{
    static const char *const flags[] = {"--peer-timeout=60s", NULL};
    struct rdt_ref name, ref, nobody;
    rdt_object *object;

    cluster_start(&c, 3, &(struct cluster_options){.no_ucx = true, .stream = true, .table = true, .flags = flags});
    unsigned high = strcmp(c.node[0].uuid, c.node[1].uuid) > 0 ? 0 : 1, low = 1 - high;
    rdt *owner = node_client(&c.node[high], "owner"), *other = node_client(&c.node[low], "other");
    cluster_meet(&c);
    must(publish_pattern(owner, "weights", INLINE_BYTES, 1) == 1);
    nobody = ref_on(&c.node[high], "nobody"); /* meanwhile the homes are told of the version, 2 ms after the publish */
    must_be(RDT_TIMED_OUT, try_fetch(owner, &nobody, RDT_FETCH_AUTO, 100 * MSEC, &object, &err));
    must_ok(rdt_ping(owner, LONG, &err));
    ref = put_pattern(other, "o", INLINE_BYTES, 2);
    node_freeze(&c.node[high]);
    node_kill(&c.node[2], SIGKILL);
    cluster_restart(&c, 2);
    rdt *home = node_client(&c.node[2], "reader"); /* the two have a link now */
    fetch_pattern(home, &ref, INLINE_BYTES, 2, NULL);
    must_refuse(RDT_EXISTS, "published on node n", rdt_publish(other, "weights", &ref, NULL, NULL, &err));
    node_thaw(&c.node[high]);
    must_ok(rdt_free(other, &ref, false, &err));
    must_ok(rdt_ref_from_name("weights", 0, NULL, &name, &err));
    must_ok(rdt_unpublish(owner, &name, &err));
    rdt_close(owner);
    rdt_close(other);
    rdt_close(home);
    cluster_end(&c, (const char *const[]){"cannot connect", "is lost", "cannot be reached", NULL});
}

/* The refusal is a few microseconds old when the name is free again. */
Test(names_nodes, refusal_does_not_outlast_the_unpublish)
{
    struct rdt_ref name, ref;

    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true, .stream = true, .table = true});
    rdt *owner = node_client(&c.node[0], "owner"), *other = node_client(&c.node[1], "other");
    ref = put_pattern(other, "o", INLINE_BYTES, 2);
    for (unsigned i = 0; i < 5; i++) {
        char text[16];

        (void)snprintf(text, sizeof text, "moved %u", i);
        (void)publish_pattern(owner, text, INLINE_BYTES, 1);
        must_refuse(RDT_EXISTS, "published on node n0", rdt_publish(other, text, &ref, NULL, NULL, &err));
        must_ok(rdt_ref_from_name(text, 0, NULL, &name, &err));
        must_ok(rdt_unpublish(other, &name, &err));
        must_ok(rdt_publish(other, text, &ref, NULL, NULL, &err));
        must_ok(rdt_unpublish(other, &name, &err));
    }
    must_ok(rdt_free(other, &ref, false, &err));
    rdt_close(owner);
    rdt_close(other);
    cluster_end(&c, (const char *const[]){"cannot connect", NULL});
}

Test(names_nodes, wait_names_a_listed_node_that_was_never_met)
{
    struct test_node node;
    char away[65], nodes[192];
    struct rdt_prepared prepared;
    rdt_follower *follower;
    rdt_object *object;
    struct rdt_ref name;

    free_address(0, "127.0.0.1", away);
    (void)snprintf(nodes, sizeof nodes, "away %s\n", away);
    node_start(&node, &(struct node_options){.listen = "127.0.0.1:0", .nodes = nodes});
    rdt *reader = node_client(&node, "reader");
    must_ok(rdt_ref_from_name("weights", 0, NULL, &name, &err));
    (void)snprintf(nodes, sizeof nodes, "node away at %s is listed, was not met yet and cannot be asked", away);
    must_refuse(RDT_TIMED_OUT, nodes, try_fetch(reader, &name, RDT_FETCH_AUTO, 300 * MSEC, &object, &err));
    must_ok(rdt_follow(reader, &name, NULL, &follower, &err));
    must_refuse(RDT_TIMED_OUT, nodes, rdt_follower_prepare(follower, 300 * MSEC, &prepared, &err));
    rdt_follower_close(follower);
    rdt_close(reader);
    node_end(&node, (const char *const[]){"cannot connect", NULL});
}

struct early {
    char name[16];
    struct rdt_error err;
    enum rdt_status status;
    int64_t took_ns;
};

static int publish_early(struct actor *self, void *arg)
{
    struct early early = *(struct early *)arg;
    rdt *conn = node_client(&c.node[1], "other");
    struct rdt_ref ref = put_pattern(conn, "o", INLINE_BYTES, 2);

    actor_step(self);
    early.took_ns = -now_ns();
    early.status = rdt_publish(conn, early.name, &ref, NULL, NULL, &early.err);
    early.took_ns += now_ns();
    actor_send(self, &early, sizeof early);
    rdt_close(conn);
    return 0;
}

/* A node that was started a moment ago meets the other one before it takes a name. A machine that is too slow for that within
 * two seconds makes another attempt, with another name. */
Test(names_nodes, name_of_another_node_is_refused_right_after_the_start)
{
    static const char *const flags[] = {"--peer-timeout=60s", "--backoff-max=100ms", NULL};
    struct early early = {.status = RDT_OK};
    struct rdt_ref name;
    struct actor actor;

    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true, .stream = true, .table = true, .flags = flags});
    rdt *owner = node_client(&c.node[0], "owner");
    for (unsigned i = 0; i < 8 && early.status == RDT_OK; i++) {
        (void)snprintf(early.name, sizeof early.name, "weights %u", i);
        must(publish_pattern(owner, early.name, INLINE_BYTES, 1) == 1);
        node_freeze(&c.node[0]);
        node_kill(&c.node[1], SIGKILL);
        cluster_restart(&c, 1);
        actor_start(&actor, publish_early, &early);
        actor_await(&actor);
        node_thaw(&c.node[0]);
        actor_recv(&actor, &early, sizeof early);
        actor_wait(&actor);
        must_say(early.status == RDT_EXISTS || early.took_ns >= SEC, "the name was taken after %lld ns: %s",
                 (long long)early.took_ns, early.err.msg);
        must_ok(rdt_ref_from_name(early.name, 0, NULL, &name, &err));
        (void)rdt_unpublish(owner, &name, NULL);
    }
    must_say(early.status == RDT_EXISTS && strstr(early.err.msg, "published on node n0"), "%s", early.err.msg);
    rdt_close(owner);
    cluster_end(&c, (const char *const[]){"cannot connect", "is lost", "cannot be reached", NULL});
}

/* The nodes have not met: the readers have nothing but the address. */
Test(names_nodes, address_of_the_node_is_enough)
{
    struct rdt_ref name = {0}, alias, own, object_ref;
    char other[65], text[RDT_REF_TEXT_BYTES];
    struct rdt_stat stat;
    rdt *owner, *reader;
    rdt_request *requests[2];
    rdt_object *object;

    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true, .no_meeting = true});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    must_ok(rdt_ref_from_name("weights", 0, NULL, &name, &err));
    alias = own = name;
    must_ok(rdt_ref_set_address(&name, c.node[0].address, &err));
    (void)snprintf(other, sizeof other, "localhost%s", strrchr(c.node[0].address, ':'));
    must_ok(rdt_ref_set_address(&alias, other, &err));
    rdt_ref_to_text(&name, text);
    must_ok(rdt_ref_from_text(text, &name, &err));
    requests[0] = start_one(reader, &name, LONG); /* the first to dial */
    requests[1] = start_one(reader, &alias, LONG);
    wait_until(20 * SEC, serve_of(&c.node[0], "parked") == 2);
    must(publish_pattern(owner, "weights", INLINE_BYTES, 1) == 1);
    must_ok(rdt_wait(reader, requests, 2, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    for (unsigned i = 0; i < 2; i++) {
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        must(holds_pattern(tensor_of(object, 0).data, INLINE_BYTES, 1));
        must(memcmp(info_of(object).ref.node, c.node[0].uuid_bytes, 16) == 0);
        object_ref = info_of(object).ref;
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    fetch_pattern(reader, &alias, INLINE_BYTES, 1, "inline"); /* now that it is known what it is */
    must_ok(rdt_stat(reader, &alias, &stat, &err));
    must(stat.ref.generation == object_ref.generation);
    must_ok(rdt_wait_put(reader, &name, LONG, &err));
    must_ok(rdt_ref_set_address(&own, c.node[0].address, &err));
    fetch_pattern(owner, &own, INLINE_BYTES, 1, "inline");
    must_ok(rdt_ref_set_address(&own, other, &err));
    must_refuse(RDT_INVALID, "this node itself", try_fetch(owner, &own, RDT_FETCH_AUTO, LONG, &object, &err));
    must_refuse(RDT_INVALID, "this node itself", rdt_wait_put(owner, &own, LONG, &err));
    must_ok(rdt_ref_set_address(&own, "no address", &err));
    must_be(RDT_INVALID, try_fetch(owner, &own, RDT_FETCH_AUTO, LONG, &object, &err));
    must_ok(rdt_unpublish(reader, &alias, &err));
    rdt_close(owner);
    rdt_close(reader);
    cluster_meet(&c);
    cluster_end(&c, NULL);
}

Test(names_nodes, deadline_cancel_end_and_unpublish_while_waiting_across)
{
    struct rdt_ref name, next;
    rdt *owner, *reader, *gone;
    rdt_request *timed, *cancelled, *told, *left;

    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    gone = node_client(&c.node[1], "gone");
    name = name_on(&c.node[0], "weights", 0);
    next = name_on(&c.node[0], "weights", 1);
    must(publish_pattern(owner, "weights", INLINE_BYTES, 1) == 1);
    timed = start_one(reader, &next, 300 * MSEC);
    cancelled = start_one(reader, &next, LONG);
    told = start_one(reader, &next, LONG);
    left = start_one(gone, &next, LONG);
    must_be(RDT_TIMED_OUT, rdt_wait_put(reader, &next, 50 * MSEC, &err));
    wait_until(20 * SEC, serve_of(&c.node[0], "parked") >= 1);
    must_be(RDT_TIMED_OUT, rdt_wait(reader, &timed, 1, 1, LONG, NULL, NULL, &err));
    rdt_cancel(cancelled);
    rdt_request_destroy(left);
    rdt_close(gone);
    wait_until(20 * SEC, serve_of(&c.node[0], "parked") == 1); /* the owner has forgotten the others */
    must_ok(rdt_unpublish(owner, &name, &err));
    must_refuse(RDT_FREED, "after version 1", rdt_wait(reader, &told, 1, 1, LONG, NULL, NULL, &err));
    must_be(RDT_FREED, rdt_wait_put(reader, &next, LONG, &err));
    rdt_request_destroy(timed);
    rdt_request_destroy(cancelled);
    rdt_request_destroy(told);
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, NULL);
}

Test(names_nodes, targets_are_filled_with_the_next_version)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    const struct rdt_tensor *targets[1];
    size_t counts[] = {1};
    struct rdt_tensor tensor;
    struct rdt_ref next, name;
    rdt *owner, *reader;
    rdt_request *request;
    rdt_object *object;
    char *addr;

    cluster_start(&c, 2, &(struct cluster_options){0});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    name = name_on(&c.node[0], "weights", 0);
    next = name_on(&c.node[0], "weights", 1);
    must(publish_pattern(owner, "weights", UCX_BYTES, 1) == 1);
    addr = alloc_memory(reader, UCX_BYTES);
    tensor = VECTOR(RDT_U8, UCX_BYTES, addr);
    targets[0] = &tensor;
    options.targets = targets;
    options.target_counts = counts;
    options.timeout_ns = LONG;
    must_ok(rdt_fetch_start(reader, &next, 1, &options, &request, &err));
    wait_until(20 * SEC, serve_of(&c.node[0], "parked") == 1);
    must(publish_pattern(owner, "weights", UCX_BYTES, 2) == 2);
    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    must(info_of(object).version == 2);
    must(holds_pattern(addr, UCX_BYTES, 2));
    rdt_release(object);
    rdt_request_destroy(request);
    must_ok(rdt_unpublish(owner, &name, &err));
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, NULL);
}

Test(names_nodes, lost_node_ends_the_wait_and_versions_begin_anew)
{
    static const char *const flags[] = {"--peer-timeout=2s", "--backoff-max=300ms", NULL};
    struct rdt_ref next, any;
    rdt *owner, *reader;
    rdt_request *request;
    rdt_object *object;

    cluster_start(&c, 2, &(struct cluster_options){.no_ucx = true, .flags = flags});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    next = name_on(&c.node[0], "weights", 1);
    any = name_on(&c.node[0], "weights", 0);
    must(publish_pattern(owner, "weights", INLINE_BYTES, 1) == 1);
    request = start_one(reader, &next, LONG);
    wait_until(20 * SEC, serve_of(&c.node[0], "parked") == 1);
    node_kill(&c.node[0], SIGKILL);
    must_be(RDT_PEER_LOST, rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    rdt_close(owner);
    cluster_restart(&c, 0);
    cluster_meet(&c);
    owner = node_client(&c.node[0], "owner");
    request = start_one(reader, &any, LONG);
    wait_until(20 * SEC, serve_of(&c.node[0], "parked") == 1);
    must(publish_pattern(owner, "weights", INLINE_BYTES, 9) == 1);
    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, INLINE_BYTES, 9));
    rdt_release(object);
    rdt_request_destroy(request);
    must_ok(rdt_unpublish(owner, &any, &err));
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, link_warnings);
}

Test(names_nodes, cut_cable_ends_the_wait_on_both_ends)
{
    static const char *const flags[] = {"--peer-timeout=2s", "--backoff-max=300ms", "--connect-timeout=2s", NULL};
    struct rdt_ref next, any;
    rdt *owner, *reader;
    rdt_request *request;

    cluster_start(&c, 2, &(struct cluster_options){.cables = true, .no_ucx = true, .flags = flags});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    next = name_on(&c.node[0], "weights", 1);
    any = name_on(&c.node[0], "weights", 0);
    must(publish_pattern(owner, "weights", INLINE_BYTES, 1) == 1);
    request = start_one(reader, &next, LONG);
    wait_until(20 * SEC, serve_of(&c.node[0], "parked") == 1);
    net_cut(&c.net, 0);
    must_be(RDT_PEER_LOST, rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    wait_until(20 * SEC, serve_of(&c.node[0], "parked") == 0);
    must(publish_pattern(owner, "weights", INLINE_BYTES, 2) == 2);
    net_restore(&c.net, 0);
    cluster_meet(&c);
    fetch_pattern(reader, &next, INLINE_BYTES, 2, "inline");
    must_ok(rdt_unpublish(owner, &any, &err));
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, link_warnings);
}
