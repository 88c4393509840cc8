/* SPDX-License-Identifier: Apache-2.0 */
/* A client that watches from the start knows what the lists would show: cached regions that come and go, replicas and their
 * ends, and the end of a client with the memory that it orphans. */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "tests/integration/nodes/nodes_fixture.h"
#include "tests/support/raw.h"

TestSuite(watch_lists, .timeout = 120);

enum { KINDS = 3, MOST = 256 };

static const struct {
    enum rdt_kind kind;
    Rdt__Pb__ListKind list;
    const char *called, *last; /* the event that takes it out */
} kinds[KINDS] = {
    {RDT_KIND_OBJECTS, RDT__PB__LIST_KIND__LIST_KIND_OBJECTS, "object", "gone"},
    {RDT_KIND_REGIONS, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "region", "gone"},
    {RDT_KIND_NAMES, RDT__PB__LIST_KIND__LIST_KIND_NAMES, "name", "unpublished"},
};

struct follower {
    rdt *conn;
    const struct test_node *node;
    unsigned n[KINDS];
    struct {
        uint64_t id;
        char state[16];
    } known[KINDS][MOST];
};

static void follow(struct follower *one, const struct test_node *node)
{
    memset(one, 0, sizeof *one);
    one->node = node;
    one->conn = node_client(node, "follower");
    must_ok(rdt_watch(one->conn, RDT_KIND_OBJECTS | RDT_KIND_REGIONS | RDT_KIND_NAMES, &err));
}

static void take(struct follower *one, unsigned k, const struct rdt_event *event)
{
    uint64_t id = event->kind == RDT_KIND_NAMES ? 1 : event->id; /* there is one name */
    unsigned i = 0;

    while (i < one->n[k] && one->known[k][i].id != id)
        i++;
    if (strcmp(event->what, kinds[k].last) == 0) {
        must_say(i < one->n[k], "%s %llu is gone, and never came", kinds[k].called, (unsigned long long)id);
        one->known[k][i] = one->known[k][--one->n[k]];
        return;
    }
    must(i < MOST);
    if (i == one->n[k])
        one->n[k]++;
    one->known[k][i].id = id;
    (void)snprintf(one->known[k][i].state, sizeof one->known[k][i].state, "%s", event->state);
}

static bool knows(const struct follower *one, unsigned k, uint64_t id, const char *state)
{
    for (unsigned i = 0; i < one->n[k]; i++)
        if (one->known[k][i].id == id)
            return strcmp(one->known[k][i].state, state) == 0;
    return false;
}

/* Whether the events so far give what the lists show now. */
static bool agrees(struct follower *one)
{
    bool same = true;
    struct rdt_event event;

    for (unsigned k = 0; k < KINDS && same; k++) {
        struct raw raw;
        raw_connect(&raw, one->node->socket);
        raw_hello(&raw);
        Rdt__Pb__List request = MESSAGE(list, .kind = kinds[k].list);
        Rdt__Pb__ListReply *reply = (Rdt__Pb__ListReply *)raw_reply(&raw, raw_send(&raw, RDT_MSG_LIST, &request.base, NULL, 0),
                                                                    &rdt__pb__list_reply__descriptor);
        must_ok(rdt_ping(one->conn, LONG, &err)); /* earlier events have been reported */
        while (rdt_next_event(one->conn, 0, &event, NULL) == RDT_OK)
            for (unsigned j = 0; j < KINDS; j++)
                if (event.kind == kinds[j].kind)
                    take(one, j, &event);
        same = reply->n_objects + reply->n_regions + reply->n_names == one->n[k];
        for (size_t i = 0; i < reply->n_objects; i++)
            same = same && knows(one, k, reply->objects[i]->generation, reply->objects[i]->state);
        for (size_t i = 0; i < reply->n_regions; i++)
            same = same && knows(one, k, reply->regions[i]->region, reply->regions[i]->origin);
        for (size_t i = 0; i < reply->n_names; i++)
            same = same && knows(one, k, 1, "");
        protobuf_c_message_free_unpacked(&reply->base, NULL);
        raw_close(&raw);
    }
    return same;
}

static int put_and_wait(struct actor *self, void *arg)
{
    rdt *conn = node_client(&c.node[0], "producer");
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_DETACHED, .id = "left", .id_bytes = 4};

    (void)put_as(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), 1, &options);
    (void)put_one(conn, &VECTOR(RDT_U8, MIB, alloc_memory(conn, MIB)), NULL);
    actor_step(self);
    actor_await(self);
    return 0;
}

Test(watch_lists, events_give_what_the_lists_show)
{
    static struct follower at[2];
    static char heap[MIB];
    struct rdt_put_options options = RDT_INIT(options);
    struct actor producer;
    struct rdt_ref ref, name, left = ref_named("left");
    rdt_object *object;
    char *addr;

#define ALL_AGREE() wait_until(LONG, agrees(&at[0]) && agrees(&at[1]))
/* The replica of a transfer ends when its node has been told. */
#define ALL_AGREE_THAT(condition) wait_until(LONG, agrees(&at[0]) && agrees(&at[1]) && (condition))
    begin(2);
    follow(&at[0], &c.node[0]);
    follow(&at[1], &c.node[1]);
    ALL_AGREE();
    for (unsigned i = 0; i < 3; i++) { /* the second and third time in warm memory, at both ends */
        addr = alloc_memory(owner, MIB);
        ref = put_one(owner, &VECTOR(RDT_U8, MIB, addr), "live");
        ALL_AGREE();
        object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
        must(at[1].n[1] == 0);
        ALL_AGREE_THAT(at[1].n[1] == 1 && at[0].n[0] == 1);
        must_ok(rdt_free(owner, &ref, i == 2, &err));
        rdt_release(object);
        must_ok(rdt_dealloc(owner, addr, &err));
        ALL_AGREE_THAT(at[0].n[1] == 0 && at[1].n[1] == 0);
    }
    options.flags = RDT_PUT_SNAPSHOT;
    addr = alloc_memory(owner, MIB);
    memset(heap, 7, sizeof heap);
    must_ok(rdt_put(owner, &VECTOR(RDT_U8, sizeof heap, heap), 1, &options, &ref,
                    &err)); /* the memory that it was copied into is sealed */
    ALL_AGREE();
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_put(owner, &VECTOR(RDT_U8, MIB, addr), 1, &options, &ref, &err));
    must_ok(rdt_publish(owner, "weights", &ref, NULL, NULL, &err));
    rdt_release(fetch_one(reader, &ref, RDT_FETCH_AUTO));
    ALL_AGREE_THAT(at[0].n[2] == 1 && at[1].n[0] == 0 && at[1].n[1] == 1 && strcmp(at[1].known[1][0].state, "replica") == 0);
    must_ok(rdt_free(owner, &ref, true, &err));
    ALL_AGREE_THAT(at[1].n[1] == 0);
    must_ok(rdt_ref_from_name("weights", 0, NULL, &name, &err));
    must_ok(rdt_unpublish(owner, &name, &err));
    must_ok(rdt_dealloc(owner, addr, &err));
    ALL_AGREE();
    actor_start(&producer, put_and_wait, NULL);
    actor_await(&producer);
    ALL_AGREE_THAT(at[0].n[0] == 2);
    actor_kill(&producer, SIGKILL);
    wait_until(LONG, agrees(&at[0]) && at[0].n[0] == 1);
    must_ok(rdt_free(owner, &left, false, &err));
    ALL_AGREE_THAT(at[0].n[0] == 0 && at[0].n[1] == 0);
    rdt_close(at[0].conn);
    rdt_close(at[1].conn);
    end(NULL);
}
