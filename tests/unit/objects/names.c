/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/objects/names: no version is given twice, thousands of waiters are notified in portions, and what is remembered of
 * an ended name. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/objects/client.h"
#include "daemon/objects/names.h"
#include "tests/support/fakes/fake_memory.h"

static struct node node;
static struct accounts accounts;
static struct account own = {.refs = 1};
static struct slabs slabs;
static struct object_table table;
static struct names names;
static struct deadlines deadlines;
static struct client producer;
static struct region *region;
static const struct owner me = {.uid = 1000}, other = {.uid = 1001};
static struct rdt_error err;

static bool drop_holds(void *arg, struct object *object, uint64_t until_ns)
{
    return names_object_freed(arg, object, until_ns);
}

static void setup(void)
{
    fake_setup();
    node = (struct node){0};
    memset(node.uuid, 7, sizeof node.uuid);
    accounts_init(&accounts);
    slabs_init(&slabs, &fake.regions, NULL, "fake", &own);
    object_table_init(&table, &node, &accounts, &slabs, 100000);
    deadlines_init(&deadlines, &fake.loop);
    names_init(&names, &accounts, &deadlines);
    table.drop_holds = drop_holds;
    table.arg = &names;
    client_init(&producer, 5);
    producer.account = account_get(&accounts, &me);
    region = fake_region(4096, 5);
}

static void teardown(void)
{
    names_clear(&names);
    cr_assert_eq(map_count(&names.by_object), 0u, "an object is held");
    cr_assert_eq(table.by_generation.used, 0u, "an object is left");
    cr_assert_eq(producer.account->used[USAGE_NAMES], 0u, "a name is counted");
    names_fini(&names);
    deadlines_close(&deadlines, NULL);
    region_unref(region);
    slabs_fini(&slabs);
    fake_run();
    object_table_fini(&table);
    client_fini(&producer, UINT64_MAX);
    cr_assert_eq(producer.account->refs, 1u, "a name was not taken off its owner's account");
    account_unref(producer.account);
    accounts_fini(&accounts);
    fake_teardown();
}

TestSuite(names, .init = setup, .fini = teardown, .timeout = 60);

/* An object that only names hold, once it is published. */
static struct object *put(Rdt__Pb__Visibility visibility)
{
    struct layout *layout = layout_create(1, 1);
    struct object_put put = {.account = producer.account,
                             .layout = layout,
                             .regions = &region,
                             .n_regions = 1,
                             .visibility = visibility,
                             .transport = "",
                             .producer = &producer};
    struct object *object;

    cr_assert_not_null(layout);
    layout->dtype[0] = RDT_U8;
    layout->ndim[0] = 1;
    layout->first_dim[0] = 0;
    layout->region[0] = 0;
    layout->offset[0] = 0;
    layout->shape[0] = 8;
    layout->strides[0] = 1;
    cr_assert_eq(object_table_put(&table, &put, &object, &err), RDT_OK, "%s", err.msg);
    return object;
}

static uint64_t publish_until(const char *name, Rdt__Pb__Visibility visibility, struct client *lease, int64_t ttl_ns)
{
    struct object *object = put(visibility);
    uint64_t version = 0;

    struct name_publish publish = {.id = (const uint8_t *)name,
                                   .id_bytes = strlen(name),
                                   .object = object,
                                   .visibility = visibility,
                                   .lease = lease,
                                   .ttl_ns = ttl_ns};

    cr_assert_eq(names_publish(&names, &publish, &version, &err), RDT_OK, "%s", err.msg);
    object_free(object, false, OBJECT_END_FREED);
    return version;
}

static uint64_t publish_as(const char *name, Rdt__Pb__Visibility visibility)
{
    return publish_until(name, visibility, NULL, 0);
}

static uint64_t publish(const char *name)
{
    return publish_as(name, RDT__PB__VISIBILITY__VISIBILITY_OWNER);
}

static struct rdt_ref ref_of(const char *name, uint64_t after)
{
    struct rdt_ref ref;

    cr_assert_eq(rdt_ref_from_name(name, after, NULL, &ref, NULL), RDT_OK);
    return ref;
}

static enum rdt_status look(const char *name, uint64_t after, uint64_t *version_p)
{
    struct rdt_ref ref = ref_of(name, after);
    struct object *object;

    return names_find(&names, &ref, &me, &object, version_p, &err);
}

static enum rdt_status unpublish(const char *name)
{
    struct rdt_ref ref = ref_of(name, 0);

    return names_unpublish(&names, &ref, &me, false, 0, &err);
}

struct waiting {
    struct name_waiter waiter;
    enum rdt_status status;
    uint64_t version;
    unsigned told;
};

static void on_event(struct name_waiter *waiter, struct object *object, uint64_t version, const struct rdt_error *why)
{
    struct waiting *waiting = (struct waiting *)waiter;

    cr_assert_null(waiter->name);
    waiting->status = object ? RDT_OK : why->status;
    waiting->version = version;
    waiting->told++;
}

static void wait_as(struct waiting *waiting, const char *name, uint64_t after, const struct owner *who)
{
    struct rdt_ref ref = ref_of(name, after);

    *waiting = (struct waiting){.waiter.on_event = on_event};
    ref.any_owner = 0;
    ref.uid = me.uid;
    cr_assert_eq(names_wait(&names, &ref, who, &waiting->waiter, &err), RDT_OK, "%s", err.msg);
}

static bool turn_until_told(const struct waiting *waiting, unsigned n)
{
    uint64_t end_ns = uv_hrtime() + UINT64_C(20000000000);

    while (uv_hrtime() < end_ns) {
        unsigned told = 0;
        for (unsigned i = 0; i < n; i++)
            told += waiting[i].told;
        if (told == n)
            return true;
        (void)uv_run(&fake.loop, UV_RUN_NOWAIT);
    }
    return false;
}

enum { N = 20000 }; /* more than one slice of the loop on any machine */

Test(names, thousands_are_notified_in_portions_and_each_once)
{
    static struct waiting waiting[N];
    unsigned at_once = 0;

    for (unsigned i = 0; i < N; i++)
        wait_as(&waiting[i], "w", 0, &me);
    cr_assert_eq(publish("w"), 1u);
    for (unsigned i = 0; i < N; i++)
        at_once += waiting[i].told;
    cr_assert(at_once > 0 && at_once < N, "%u at once", at_once);
    name_waiter_remove(&waiting[N - 1].waiter); /* leaves before its turn */
    cr_assert(turn_until_told(waiting, N - 1));
    cr_assert_eq(waiting[N - 1].told, 0u);
    for (unsigned i = 0; i + 1 < N; i++)
        cr_assert(waiting[i].told == 1 && waiting[i].status == RDT_OK && waiting[i].version == 1);
}

Test(names, waiter_of_a_later_portion_gets_the_newest_version_then)
{
    static struct waiting waiting[N];

    for (unsigned i = 0; i < N; i++)
        wait_as(&waiting[i], "w", 0, &me);
    cr_assert_eq(publish("w"), 1u);
    cr_assert_eq(publish("w"), 2u);
    cr_assert(turn_until_told(waiting, N));
    cr_assert_eq(waiting[0].version, 1u);
    cr_assert_eq(waiting[N - 1].version, 2u);
}

Test(names, forced_free_between_portions_leaves_the_rest_waiting)
{
    static struct waiting waiting[N];
    struct rdt_ref ref = ref_of("w", 0);
    struct object *object;
    uint64_t version;

    for (unsigned i = 0; i < N; i++)
        wait_as(&waiting[i], "w", 0, &me);
    cr_assert_eq(publish("w"), 1u);
    cr_assert_eq(names_find(&names, &ref, &me, &object, &version, &err), RDT_OK);
    object_free(object, true, OBJECT_END_FREED);
    cr_assert_eq(table.by_generation.used, 0u, "nobody holds it");
    cr_assert_eq(names_find(&names, &ref, &me, &object, &version, &err), RDT_AGAIN);
    (void)uv_run(&fake.loop, UV_RUN_NOWAIT);
    cr_assert_eq(waiting[N - 1].told, 0u);
    cr_assert_eq(publish("w"), 2u);
    cr_assert(turn_until_told(waiting, N));
    cr_assert_eq(waiting[N - 1].version, 2u);
}

Test(names, unpublish_between_portions_ends_the_rest)
{
    static struct waiting waiting[N];

    for (unsigned i = 0; i < N; i++)
        wait_as(&waiting[i], "w", 0, &me);
    cr_assert_eq(publish("w"), 1u);
    cr_assert_eq(unpublish("w"), RDT_OK);
    cr_assert_eq(waiting[N - 1].told, 0u, "all were told in one turn");
    cr_assert_eq(publish_as("w", RDT__PB__VISIBILITY__VISIBILITY_ALL), 2u);
    cr_assert(turn_until_told(waiting, N));
    cr_assert_eq(waiting[0].status, RDT_OK);
    cr_assert_eq(waiting[N - 1].status, RDT_FREED, "it waited when the name ended");
}

Test(names, end_of_a_name_is_told_to_those_who_saw_it)
{
    static struct waiting waiting[N];

    cr_assert_eq(publish("w"), 1u);
    for (unsigned i = 0; i < N; i++)
        wait_as(&waiting[i], "w", 1, i < N / 2 ? &me : &other);
    cr_assert_eq(unpublish("w"), RDT_OK);
    cr_assert_eq(waiting[N / 2 - 1].told, 0u, "all were told in one turn");
    name_waiter_remove(&waiting[N / 2 - 1].waiter); /* leaves before its turn */
    cr_assert_eq(publish_as("w", RDT__PB__VISIBILITY__VISIBILITY_ALL), 2u);
    waiting[N / 2 - 1].told = 1;
    cr_assert(turn_until_told(waiting, N));
    cr_assert(waiting[0].status == RDT_FREED && waiting[N / 2 - 2].status == RDT_FREED);
    cr_assert(waiting[N / 2].status == RDT_OK && waiting[N / 2].version == 2 && waiting[N - 1].status == RDT_OK);
}

Test(names, names_of_an_object_that_is_freed_by_force_lose_it_in_slices)
{
    struct object *object = put(RDT__PB__VISIBILITY__VISIBILITY_OWNER);
    char id[16];
    uint64_t version;

    table.deadlines = &deadlines;
    for (unsigned i = 0; i < N; i++) {
        struct name_publish publish = {.id = (const uint8_t *)id, .object = object};
        publish.id_bytes = (size_t)snprintf(id, sizeof id, "n%u", i);
        cr_assert_eq(names_publish(&names, &publish, &version, &err), RDT_OK, "%s", err.msg);
    }
    object_hold(object);
    object_free(object, true, OBJECT_END_FREED);
    cr_assert_gt(names_n_of_object(&names, object), N / 2, "most have lost it in one turn");
    cr_assert_eq(look(id, 0, &version), RDT_AGAIN, "nobody gets it although its turn has not come");
    cr_assert_eq(publish(id), 2u);
    while (names_n_of_object(&names, object) > 0)
        (void)uv_run(&fake.loop, UV_RUN_NOWAIT);
    cr_assert_eq(look(id, 0, &version), RDT_OK);
    object_drop(object);
    object_forced_end(&table);
}

Test(names, hidden_name_does_not_exist_for_others)
{
    struct waiting waiting[3];
    struct rdt_ref ref = ref_of("w", 0);
    struct object *object;
    uint64_t version;

    wait_as(&waiting[0], "w", 0, &other);
    wait_as(&waiting[1], "w", 0, &me);
    wait_as(&waiting[2], "w", 1, &me);
    cr_assert_eq(publish("w"), 1u);
    cr_assert_eq(waiting[1].status, RDT_OK);
    ref.any_owner = 0;
    ref.uid = me.uid;
    cr_assert_eq(names_find(&names, &ref, &other, &object, &version, &err), RDT_AGAIN);
    cr_assert_eq(unpublish("w"), RDT_OK);
    cr_assert_eq(waiting[2].status, RDT_FREED);
    cr_assert_eq(waiting[0].told, 0u, "neither a version nor its end is told to whom the name is hidden");
    ref.after = 1;
    cr_assert_eq(names_find(&names, &ref, &other, &object, &version, &err), RDT_AGAIN);
    cr_assert_eq(publish_as("w", RDT__PB__VISIBILITY__VISIBILITY_ALL), 2u);
    cr_assert_eq(waiting[0].status, RDT_OK);
    wait_as(&waiting[0], "x", 0, &other);
    cr_assert_eq(publish_as("x", RDT__PB__VISIBILITY__VISIBILITY_TENANT), 1u);
    cr_assert_eq(waiting[0].status, RDT_OK);
}

Test(names, name_with_a_lease_ends_with_its_publisher)
{
    struct client trainer = {0}, next = {0};
    struct waiting waiting[2];
    uint64_t version;
    char text[200];

    client_init(&trainer, 6);
    client_init(&next, 7);
    cr_assert_eq(publish_until("w", RDT__PB__VISIBILITY__VISIBILITY_OWNER, &trainer, 0), 1u);
    wait_as(&waiting[0], "w", 1, &me);
    cr_assert_eq(publish_until("v", RDT__PB__VISIBILITY__VISIBILITY_OWNER, &trainer, 0), 1u);
    cr_assert_eq(publish_until("v", RDT__PB__VISIBILITY__VISIBILITY_OWNER, &next, 0), 2u);
    wait_as(&waiting[1], "v", 2, &me);
    trainer.conn.gone = true;
    names_explain_name(&names, &table, &me, (const uint8_t *)"w", 1, &me, text, sizeof text);
    cr_assert_eq(waiting[0].told, 0u, "a wait that is being explained must not end meanwhile");
    cr_assert_eq(look("w", 0, &version), RDT_AGAIN, "it has ended although its turn has not come");
    cr_assert_eq(waiting[0].status, RDT_OWNER_DIED);
    cr_assert(names_client_gone(&trainer, UINT64_MAX));
    cr_assert_eq(look("w", 1, &version), RDT_OWNER_DIED);
    cr_assert_eq(waiting[1].told, 0u, "the lease is the last publisher's");
    cr_assert_eq(publish("v"), 3u);
    cr_assert(names_client_gone(&next, UINT64_MAX));
    cr_assert_eq(look("v", 0, &version), RDT_OK, "the last publish asked for no lease");
    cr_assert(client_fini(&trainer, UINT64_MAX) && client_fini(&next, UINT64_MAX));
}

Test(names, name_ends_after_its_time_to_live)
{
    struct waiting waiting;
    uint64_t version;

    cr_assert_eq(publish_until("w", RDT__PB__VISIBILITY__VISIBILITY_OWNER, NULL, 20000000), 1u);
    wait_as(&waiting, "w", 1, &me);
    cr_assert_eq(look("w", 0, &version), RDT_OK);
    while (waiting.told == 0)
        (void)uv_run(&fake.loop, UV_RUN_ONCE);
    cr_assert_eq(waiting.status, RDT_FREED);
    cr_assert_eq(look("w", 0, &version), RDT_AGAIN);
    cr_assert_eq(publish_until("w", RDT__PB__VISIBILITY__VISIBILITY_OWNER, NULL, 20000000), 2u);
    cr_assert_eq(publish("w"), 3u); /* for good */
    for (uint64_t end = uv_hrtime() + 60000000; uv_hrtime() < end;)
        (void)uv_run(&fake.loop, UV_RUN_NOWAIT);
    cr_assert_eq(look("w", 0, &version), RDT_OK);
}

Test(names, unpublished_name_answers_by_what_was_read)
{
    uint64_t version;

    cr_assert_eq(look("w", 0, &version), RDT_AGAIN);
    cr_assert_eq(look("w", 5, &version), RDT_AGAIN);
    cr_assert_eq(publish("w"), 1u);
    cr_assert_eq(unpublish("w"), RDT_OK);
    cr_assert_eq(look("w", 0, &version), RDT_AGAIN, "it may be published again");
    cr_assert_eq(look("w", 1, &version), RDT_FREED);
    cr_assert_eq(unpublish("w"), RDT_NOT_FOUND);
    cr_assert_eq(publish("w"), 2u);
    cr_assert_eq(look("w", 1, &version), RDT_OK);
    cr_assert_eq(version, 2u);
}

/* More than are remembered: what is forgotten still does not give a version twice. */
Test(names, forgotten_names_do_not_begin_anew)
{
    char name[16];

    for (unsigned v = 1; v <= 3; v++)
        cr_assert_eq(publish("oldest"), v);
    cr_assert_eq(unpublish("oldest"), RDT_OK);
    for (unsigned i = 0; i < 5000; i++) {
        (void)snprintf(name, sizeof name, "n%u", i);
        (void)publish(name);
        cr_assert_eq(unpublish(name), RDT_OK);
    }
    cr_assert_lt(map_count(&names.by_key), 4200u, "memory is bounded");
    cr_assert_gt(publish("oldest"), 3u);
    cr_assert_gt(publish("n0"), 1u);
}

static void name_it(const char *name, struct object *object)
{
    struct name_publish publish = {.id = (const uint8_t *)name, .id_bytes = strlen(name), .object = object};
    uint64_t version;

    cr_assert_eq(names_publish(&names, &publish, &version, &err), RDT_OK, "%s", err.msg);
}

Test(names, names_of_an_object_are_counted)
{
    struct object *first = put(RDT__PB__VISIBILITY__VISIBILITY_OWNER), *second = put(RDT__PB__VISIBILITY__VISIBILITY_OWNER);

    cr_assert_eq(names_n_of_object(&names, first), 0u);
    name_it("a", first);
    name_it("b", first);
    name_it("a", first); /* the next version is the same object */
    cr_assert_eq(names_n_of_object(&names, first), 2u);
    name_it("a", second);
    cr_assert(names_n_of_object(&names, first) == 1 && names_n_of_object(&names, second) == 1);
    cr_assert_eq(unpublish("b"), RDT_OK, "%s", err.msg);
    cr_assert_eq(names_n_of_object(&names, first), 0u);
    object_free(first, false, OBJECT_END_FREED);
    object_free(second, false, OBJECT_END_FREED);
}

Test(names, next_version_is_the_one_that_a_publish_gives)
{
    cr_assert_eq(publish("w"), 1u);
    names_set_floor(&names, &me, (const uint8_t *)"w", 1, 40); /* another node has published so many */
    cr_assert_eq(names_next_version(&names, &me, (const uint8_t *)"w", 1), 41u);
    cr_assert_eq(publish("w"), 41u);
    cr_assert_eq(names_next_version(&names, &me, (const uint8_t *)"w", 1), 42u);
    cr_assert_eq(names_next_version(&names, &me, (const uint8_t *)"v", 1), publish("v"));
    cr_assert_eq(unpublish("w"), RDT_OK);
    cr_assert_eq(unpublish("v"), RDT_OK);
}

/* Another node repeats a PUBLISH only by the mark that it gave the first one. */
Test(names, publish_of_another_node_is_repeated_by_its_mark_only)
{
    static const uint8_t none[REPEAT_BYTES], mark[REPEAT_BYTES] = {1}, later[REPEAT_BYTES] = {2};
    struct name_publish next = {.id = (const uint8_t *)"w", .id_bytes = 1, .visibility = RDT__PB__VISIBILITY__VISIBILITY_OWNER};
    uint64_t version = 0;

    cr_assert_eq(publish("w"), 1u);
    next.object = put(next.visibility);
    next.repeat = none; /* matches nothing, not even what this node published itself */
    cr_assert_eq(names_repeated(&names, &next), 0u);
    next.repeat = mark;
    cr_assert_eq(names_repeated(&names, &next), 0u);
    cr_assert_eq(names_publish(&names, &next, &version, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(names_repeated(&names, &next), version);
    next.repeat = later;
    cr_assert_eq(names_repeated(&names, &next), 0u);
    object_free(next.object, false, OBJECT_END_FREED);
    cr_assert_eq(unpublish("w"), RDT_OK);
}

/* The waiting request is charged to its owner. The names that one user waits for take no place from others. */
Test(names, awaited_names_keep_nobody_from_waiting)
{
    static struct waiting waiting[50];
    struct waiting late = {.waiter.on_event = on_event};
    char name[16];

    for (unsigned i = 0; i < 50; i++) {
        (void)snprintf(name, sizeof name, "n%u", i);
        wait_as(&waiting[i], name, 0, &me);
    }
    cr_assert_eq(publish("published all the same"), 1u);
    cr_assert_eq(unpublish("published all the same"), RDT_OK);
    for (unsigned i = 0; i < 50; i++)
        name_waiter_remove(&waiting[i].waiter);
    cr_assert_eq(map_count(&names.by_key), names.remembered.n);
    wait_as(&late, "one more", 0, &me);
    name_waiter_remove(&late.waiter);
}

Test(names, end_of_the_daemon_is_told)
{
    struct waiting waiting[2];

    wait_as(&waiting[0], "w", 0, &me);
    cr_assert_eq(publish("x"), 1u);
    wait_as(&waiting[1], "x", 1, &me);
    names_clear(&names);
    cr_assert_eq(waiting[0].status, RDT_SHUTTING_DOWN);
    cr_assert_eq(waiting[1].status, RDT_SHUTTING_DOWN);
}
