/* daemon/object, daemon/object_table: names, holds and pins, who may have it, who is told, and why it went. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/client.h"
#include "daemon/object_table.h"
#include "tests/support/fake_memory.h"

static struct node node;
static struct object_table table;
static struct client producer;
static struct region *region;
static const struct owner me = {.uid = 1000}, other = {.uid = 1001}, guest = {.uid = 1000, .tenant = "guest"};
static struct accounts accounts;
static struct account own = {.refs = 1};
static struct slabs slabs;

static void setup(void)
{
    fake_setup();
    node = (struct node){0};
    memset(node.uuid, 7, sizeof node.uuid);
    (void)snprintf(node.address, sizeof node.address, "192.0.2.1:7411");
    accounts_init(&accounts);
    slabs_init(&slabs, &fake.regions, NULL, "fake", &own);
    object_table_init(&table, &node, &accounts, &slabs, 1000);
    client_init(&producer, 5);
    producer.account = account_get(&accounts, &me);
    region = fake_region(4096, 5);
}

static void teardown(void)
{
    cr_assert_eq(map_count(&table.by_name), 0u, "a name is left");
    cr_assert_eq(table.by_generation.used, 0u, "an object is left");
    cr_assert_eq(producer.n_objects, 0u);
    cr_assert_eq(region->refs, 1u, "a reference is left");
    cr_assert_eq(region->pins, 0u);
    region_unref(region);
    slabs_fini(&slabs);
    fake_run();
    object_table_fini(&table);
    cr_assert(client_fini(&producer, UINT64_MAX));
    cr_assert_eq(producer.account->refs, 1u, "an object was not taken off its owner's account");
    account_unref(producer.account);
    cr_assert_eq(map_count(&accounts.by_owner), 0u, "an account is left");
    accounts_fini(&accounts);
    fake_teardown();
}

TestSuite(object, .init = setup, .fini = teardown, .timeout = 60);

/* ---- putting ---- */

static struct layout *bytes_at(uint64_t offset, uint64_t bytes)
{
    struct layout *layout = layout_create(1, 1);

    cr_assert_not_null(layout);
    layout->dtype[0] = RDT_U8;
    layout->ndim[0] = 1;
    layout->first_dim[0] = 0;
    layout->region[0] = 0;
    layout->offset[0] = offset;
    layout->shape[0] = bytes;
    layout->strides[0] = 1;
    return layout;
}

static enum rdt_status try_put(const char *id, const struct owner *owner, Rdt__Pb__Visibility visibility,
                               struct object **object_p, struct rdt_error *err)
{
    struct layout *layout = bytes_at(0, 4096);
    struct object_put put = {.account = account_get(&accounts, owner),
                             .id = (const uint8_t *)id,
                             .id_bytes = strlen(id),
                             .metadata = (const uint8_t *)"m",
                             .metadata_bytes = 1,
                             .layout = layout,
                             .regions = &region,
                             .n_regions = 1,
                             .visibility = visibility,
                             .transport = "",
                             .producer = &producer};
    enum rdt_status status = object_table_put(&table, &put, object_p, err);

    account_unref(put.account);
    if (status != RDT_OK)
        free(layout);
    return status;
}

static struct object *put_as(const char *id, const struct owner *owner, Rdt__Pb__Visibility visibility)
{
    struct object *object = NULL;
    struct rdt_error err = {0};

    cr_assert_eq(try_put(id, owner, visibility, &object, &err), RDT_OK, "%s", err.msg);
    return object;
}

static struct object *put(const char *id)
{
    return put_as(id, &me, RDT__PB__VISIBILITY__VISIBILITY_OWNER);
}

static struct rdt_ref ref_of(const char *id, uint64_t generation)
{
    struct rdt_ref ref = {.generation = generation, .any_owner = true, .id_bytes = (uint8_t)strlen(id)};

    memcpy(ref.id, id, strlen(id));
    return ref;
}

static enum rdt_status find_as(const char *id, uint64_t generation, const struct owner *requester)
{
    struct rdt_ref ref = ref_of(id, generation);
    struct object *object = NULL;
    struct rdt_error err = {0};
    enum rdt_status status = object_table_find(&table, &ref, requester, &object, &err);

    cr_assert(status != RDT_OK || object);
    cr_assert(status == RDT_OK || status == RDT_AGAIN || err.status == status, "no sentence for %s", rdt_status_name(status));
    return status;
}

/* ---- holds and pins ---- */

Test(object, gone_at_zero_holds_and_zero_pins)
{
    struct object *object = put("a");
    uint64_t generation = object->generation;

    cr_assert_str_eq(object_state_name(object), "live");
    cr_assert_eq(object->holds, 1u);
    cr_assert_eq(region->refs, 2u);
    object_hold(object);
    object_free(object, false, OBJECT_END_FREED);
    cr_assert_str_eq(object_state_name(object), "live", "a reader holds it");
    cr_assert_eq(find_as("a", generation, &me), RDT_OK);
    object_pin(object);
    cr_assert_eq(region->pins, 1u);
    object_drop(object);
    cr_assert_str_eq(object_state_name(object), "draining", "an engine is at it");
    cr_assert_eq(find_as("a", generation, &me), RDT_FREED);
    object_unpin(object);
    cr_assert_eq(find_as("a", generation, &me), RDT_FREED);
    cr_assert_eq(region->refs, 1u);
}

Test(object, producer_lets_go_once)
{
    struct object *object = put("a");

    cr_assert_eq(producer.n_objects, 1u);
    object_hold(object);
    object_free(object, false, OBJECT_END_FREED);
    object_free(object, false, OBJECT_END_FREED);
    cr_assert_eq(producer.n_objects, 0u);
    cr_assert_eq(object->holds, 1u);
    object_drop(object);
}

Test(object, forced_free_keeps_readers_refuses_others)
{
    struct object *object = put("a");
    uint64_t generation = object->generation;

    object_hold(object);
    object_free(object, true, OBJECT_END_FREED);
    cr_assert_str_eq(object_state_name(object), "draining");
    cr_assert_eq(find_as("a", generation, &me), RDT_FREED);
    cr_assert_eq(find_as("a", 0, &me), RDT_AGAIN, "the name is free again");
    object_free(put("a"), false, OBJECT_END_FREED);
    object_drop(object);
    cr_assert_eq(find_as("a", generation, &me), RDT_FREED);
}

Test(object, forced_after_free)
{
    struct object *object = put("a");

    object_hold(object);
    object_free(object, false, OBJECT_END_FREED);
    cr_assert_eq(find_as("a", 0, &me), RDT_OK);
    object_free(object, true, OBJECT_END_FREED);
    cr_assert_eq(find_as("a", 0, &me), RDT_AGAIN);
    object_drop(object);
}

Test(object, name_of_draining_object_is_free)
{
    struct object *old = put("a"), *new;

    object_pin(old);
    object_free(old, false, OBJECT_END_FREED);
    new = put("a");
    cr_assert_neq(new->generation, old->generation);
    object_unpin(old); /* must not take the new one's name along */
    cr_assert_eq(find_as("a", 0, &me), RDT_OK);
    object_free(new, false, OBJECT_END_FREED);
}

/* Any order of holds, pins and frees: gone exactly when the model says so, the memory too. */
Test(object, random_holds_and_pins)
{
    uint64_t seed = 9;

    for (unsigned round = 0; round < 2000; round++) {
        struct object *object = put("a");
        uint64_t generation = object->generation;
        unsigned holds = 1, pins = 0;
        bool freed = false;

        while (holds + pins > 0) {
            unsigned what = (unsigned)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33) % 7;
            bool more = holds + pins < 6;
            if (what == 0 && !freed) {
                freed = true;
                holds--;
                object_free(object, seed >> 60 & 1, OBJECT_END_FREED);
            } else if (what == 1 && more && holds > 0) {
                object_hold(object);
                holds++;
            } else if (what == 2 && more && holds > 0) {
                object_pin(object);
                pins++;
            } else if (what >= 3 && what <= 4 && holds > (freed ? 0u : 1u)) {
                holds--;
                object_drop(object);
            } else if (what >= 5 && pins > 0) {
                pins--;
                object_unpin(object);
            } else {
                continue;
            }
            cr_assert_eq(index_get(&table.by_generation, generation) != NULL, holds + pins > 0, "round %u", round);
            if (holds + pins > 0)
                cr_assert(object->holds == holds && object->pins == pins);
        }
        cr_assert_eq(region->refs, 1u);
        cr_assert_eq(region->pins, 0u);
        cr_assert(list_empty(&region->uses));
    }
}

/* ---- why it went ---- */

Test(object, end_tells_freed_from_died)
{
    struct object *freed = put("a"), *died = put("b");
    uint64_t freed_generation = freed->generation, died_generation = died->generation;

    object_free(freed, false, OBJECT_END_FREED);
    object_free(died, false, OBJECT_END_OWNER_DIED);
    cr_expect_eq(find_as("a", freed_generation, &me), RDT_FREED);
    cr_expect_eq(find_as("b", died_generation, &me), RDT_OWNER_DIED);
    cr_expect_eq(find_as("a", 0, &me), RDT_AGAIN, "the id alone may be put again");
    cr_expect_eq(find_as("a", died_generation + 1, &me), RDT_NOT_FOUND, "not given yet");
    cr_expect_eq(find_as("a", 1, &me), RDT_NOT_FOUND, "of an earlier start");
}

Test(object, held_after_death_then_gone)
{
    struct object *object = put("a");
    uint64_t generation = object->generation;

    object_hold(object);
    object_pin(object);
    object_free(object, false, OBJECT_END_OWNER_DIED);
    object_drop(object);
    cr_expect_eq(find_as("a", generation, &me), RDT_OWNER_DIED);
    object_unpin(object);
    cr_expect_eq(find_as("a", generation, &me), RDT_OWNER_DIED);
}

Test(object, id_and_generation_must_agree)
{
    struct object *object = put("a");

    cr_expect_eq(find_as("b", object->generation, &me), RDT_NOT_FOUND);
    object_free(object, false, OBJECT_END_FREED);
}

/* ---- who may ---- */

Test(object, visibility_table)
{
    static const struct {
        Rdt__Pb__Visibility visibility;
        const struct owner *requester;
        enum rdt_status expected;
    } rows[] = {
        {RDT__PB__VISIBILITY__VISIBILITY_OWNER, &me, RDT_OK},
        {RDT__PB__VISIBILITY__VISIBILITY_OWNER, &other, RDT_DENIED},
        {RDT__PB__VISIBILITY__VISIBILITY_OWNER, &guest, RDT_DENIED},
        {RDT__PB__VISIBILITY__VISIBILITY_TENANT, &other, RDT_OK},
        {RDT__PB__VISIBILITY__VISIBILITY_TENANT, &guest, RDT_DENIED},
        {RDT__PB__VISIBILITY__VISIBILITY_ALL, &guest, RDT_OK},
        {RDT__PB__VISIBILITY__VISIBILITY_ALL, &other, RDT_OK},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct object *object = put_as("a", &me, rows[i].visibility);
        cr_expect_eq(find_as("a", object->generation, rows[i].requester), rows[i].expected, "row %zu", i);
        object_free(object, false, OBJECT_END_FREED);
    }
}

Test(object, owners_have_name_spaces)
{
    struct object *mine = put("a"), *theirs = put_as("a", &other, RDT__PB__VISIBILITY__VISIBILITY_OWNER), *found;
    struct object *guests = put_as("a", &guest, RDT__PB__VISIBILITY__VISIBILITY_OWNER);
    struct rdt_ref ref = ref_of("a", 0);

    cr_assert_eq(object_table_find(&table, &ref, &me, &found, NULL), RDT_OK);
    cr_expect_eq(found, mine);
    cr_assert_eq(object_table_find(&table, &ref, &other, &found, NULL), RDT_OK);
    cr_expect_eq(found, theirs);
    cr_assert_eq(object_table_find(&table, &ref, &guest, &found, NULL), RDT_OK);
    cr_expect_eq(found, guests);
    ref.any_owner = false;
    ref.uid = other.uid;
    cr_expect_eq(object_table_find(&table, &ref, &me, &found, NULL), RDT_DENIED, "named, but not visible");
    object_free(mine, false, OBJECT_END_FREED);
    object_free(theirs, false, OBJECT_END_FREED);
    object_free(guests, false, OBJECT_END_FREED);
}

/* ---- putting: names and limits ---- */

Test(object, name_taken)
{
    struct object *object = put("a"), *second = NULL;
    struct rdt_error err = {0};

    cr_expect_eq(try_put("a", &me, RDT__PB__VISIBILITY__VISIBILITY_OWNER, &second, &err), RDT_EXISTS);
    cr_expect(strstr(err.msg, "\"a\""), "%s", err.msg);
    cr_expect_null(second);
    cr_assert_eq(region->refs, 2u, "what was refused keeps nothing");
    object_free(object, false, OBJECT_END_FREED);
}

Test(object, ids_are_generated)
{
    struct object *a = put(""), *b = put("");

    cr_assert(a->id_bytes > 0 && b->id_bytes > 0);
    cr_assert(a->id_bytes != b->id_bytes || memcmp(object_id(a), object_id(b), a->id_bytes) != 0);
    object_free(a, false, OBJECT_END_FREED);
    object_free(b, false, OBJECT_END_FREED);
}

Test(object, limit_of_objects)
{
    struct object *object = put("a"), *second = NULL;
    struct rdt_error err = {0};

    table.max_objects = 1;
    cr_expect_eq(try_put("b", &me, RDT__PB__VISIBILITY__VISIBILITY_OWNER, &second, &err), RDT_LIMIT);
    object_free(object, false, OBJECT_END_FREED);
    object_free(put("b"), false, OBJECT_END_FREED);
}

Test(object, ref_names_everything)
{
    struct object *object = put("a");
    struct rdt_ref ref;

    object_ref(object, &ref);
    cr_expect_eq(memcmp(ref.node, node.uuid, 16), 0);
    cr_expect_str_eq(ref.address, node.address);
    cr_expect_eq(ref.generation, object->generation);
    cr_expect_eq(ref.uid, me.uid);
    cr_expect(!ref.any_owner);
    cr_expect(ref.id_bytes == 1 && ref.id[0] == 'a');
    object_free(object, false, OBJECT_END_FREED);
}

/* ---- waiting ---- */

struct waiting {
    struct object_waiter waiter;
    unsigned told;
    struct object *object;
    enum rdt_status why;
    struct waiting *ends; /* stops this other one when told */
};

static void on_event(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    struct waiting *waiting = (struct waiting *)waiter;

    cr_assert_null(waiter->object, "removed before it is told");
    waiting->told++;
    waiting->object = object;
    waiting->why = why ? why->status : RDT_OK;
    if (waiting->ends)
        object_waiter_remove(&waiting->ends->waiter);
}

static void wait_as(struct waiting *waiting, const char *id, const struct owner *requester)
{
    struct rdt_ref ref = ref_of(id, 0);

    *waiting = (struct waiting){.waiter.on_event = on_event};
    cr_assert_eq(object_table_wait(&table, &ref, requester, &waiting->waiter, NULL), RDT_OK);
}

Test(object, waiters_told_of_put)
{
    struct waiting a, b, elsewhere;
    struct object *object;

    wait_as(&a, "a", &me);
    wait_as(&b, "a", &me);
    wait_as(&elsewhere, "a", &other);
    cr_assert_eq(find_as("a", 0, &me), RDT_AGAIN);
    object = put("a");
    cr_assert(a.told == 1 && b.told == 1 && elsewhere.told == 0);
    cr_assert(a.object == object && b.object == object);
    object_waiter_remove(&a.waiter); /* harmless afterwards */
    object_waiter_remove(&elsewhere.waiter);
    object_free(object, false, OBJECT_END_FREED);
}

Test(object, awaited_goes_with_last_waiter)
{
    struct waiting a, b;

    wait_as(&a, "a", &me);
    wait_as(&b, "a", &me);
    object_waiter_remove(&a.waiter);
    cr_assert_eq(map_count(&table.by_name), 1u);
    object_waiter_remove(&b.waiter);
    cr_assert_eq(map_count(&table.by_name), 0u);
    cr_assert(a.told == 0 && b.told == 0);
}

/* The first one's news ends the second one, who is then not told. */
Test(object, waiter_ended_by_another_is_not_told)
{
    struct waiting a, b, c;
    struct object *object;

    wait_as(&a, "a", &me);
    wait_as(&b, "a", &me);
    wait_as(&c, "a", &me);
    a.ends = &b;
    object = put("a");
    cr_assert(a.told == 1 && b.told == 0 && c.told == 1);
    cr_assert_eq(object_n_waiters(object), 0u);
    object_free(object, false, OBJECT_END_FREED);
}

/* ---- filling ---- */

static struct object *put_filling(const char *id, int64_t ttl_ns)
{
    struct layout *layout = bytes_at(0, 4096);
    struct object_put filling = {.account = producer.account,
                                 .id = (const uint8_t *)id,
                                 .id_bytes = strlen(id),
                                 .layout = layout,
                                 .regions = &region,
                                 .n_regions = 1,
                                 .transport = "",
                                 .producer = &producer,
                                 .ttl_ns = ttl_ns,
                                 .snapshot = true};
    struct object *object = NULL;
    struct rdt_error err = {0};

    cr_assert_eq(object_table_put(&table, &filling, &object, &err), RDT_OK, "%s", err.msg);
    return object;
}

Test(object, filling_keeps_waiters_until_it_is_full)
{
    struct region *copy = fake_region(4096, 0);
    struct waiting before, meanwhile, by_generation;
    struct object *object;
    struct rdt_ref ref;

    wait_as(&before, "a", &me);
    object = put_filling("a", 0);
    cr_assert_str_eq(object_state_name(object), "filling");
    cr_assert_eq(find_as("a", 0, &me), RDT_AGAIN);
    cr_assert_eq(find_as("a", object->generation, &me), RDT_AGAIN);
    cr_assert_eq(find_as("a", object->generation, &other), RDT_DENIED);
    wait_as(&meanwhile, "a", &me);
    ref = ref_of("a", object->generation);
    by_generation = (struct waiting){.waiter.on_event = on_event};
    cr_assert_eq(object_table_wait(&table, &ref, &other, &by_generation.waiter, NULL), RDT_OK);
    cr_assert_eq(object_n_waiters(object), 3u);
    cr_assert_not(list_empty(&region->uses));
    cr_assert_eq(object_fill(object, bytes_at(0, 4096), &copy, 1, NULL), RDT_OK);
    cr_assert(before.told == 1 && meanwhile.told == 1 && by_generation.told == 1);
    cr_assert(before.object == object && before.why == RDT_OK);
    cr_assert_eq(find_as("a", 0, &me), RDT_OK);
    cr_assert(list_empty(&region->uses), "its source may be written again");
    object_free(object, false, OBJECT_END_FREED);
    cr_assert_eq(copy->refs, 1u);
    region_unref(copy);
}

Test(object, filling_that_fails_tells_why)
{
    struct rdt_error why = {.status = RDT_NO_MEMORY, .msg = "none"};
    struct waiting waiting;

    wait_as(&waiting, "a", &me);
    object_fail(put_filling("a", 0), &why);
    cr_assert(waiting.told == 1 && !waiting.object && waiting.why == RDT_NO_MEMORY);
    wait_as(&waiting, "a", &me);
    object_free(put_filling("a", 0), false, OBJECT_END_FREED);
    cr_assert(waiting.told == 1 && waiting.why == RDT_FREED);
    wait_as(&waiting, "a", &me);
    object_leave(put_filling("a", 1000)); /* detached or not: it was never whole */
    cr_assert(waiting.told == 1 && waiting.why == RDT_OWNER_DIED);
    cr_assert_eq(map_count(&table.detached), 0u);
}

/* The loop has others to see to. */
Test(object, filling_that_fails_tells_many_in_turns)
{
    enum { N = 500 };
    struct rdt_error why = {.status = RDT_NO_MEMORY, .msg = "none"};
    struct waiting *all = calloc(N, sizeof *all);
    struct deadlines deadlines;
    unsigned told = 0, turns = 0, before;

    cr_assert_not_null(all);
    deadlines_init(&deadlines, &fake.loop);
    table.deadlines = &deadlines;
    for (unsigned i = 0; i < N; i++)
        wait_as(&all[i], "a", &me);
    object_fail(put_filling("a", 0), &why);
    cr_assert_eq(find_as("a", 0, &me), RDT_AGAIN, "nobody comes after them");
    for (; told < N - 1; turns++) {
        before = told;
        told = 0;
        for (unsigned i = 0; i < N; i++)
            told += all[i].told;
        cr_assert_leq(told - before, 64u);
        if (turns == 0)
            object_waiter_remove(&all[N - 1].waiter); /* has left meanwhile */
        if (told < N - 1)
            (void)uv_run(&fake.loop, UV_RUN_ONCE);
    }
    cr_assert(all[N - 1].told == 0 && all[N - 2].why == RDT_NO_MEMORY);
    cr_assert(list_empty(&table.tellings));
    for (unsigned i = 0; i < N; i++)
        wait_as(&all[i], "a", &me);
    object_fail(put_filling("a", 0), &why);
    object_tellings_end(&table);
    for (unsigned i = 0; i < N; i++)
        cr_assert(all[i].told == 1 && all[i].why == RDT_NO_MEMORY);
    table.deadlines = NULL;
    deadlines_close(&deadlines, NULL);
    fake_run();
    free(all);
}

Test(object, filling_refused_at_once_keeps_waiters)
{
    struct rdt_error why = {.status = RDT_NO_MEMORY};
    struct waiting waiting;
    struct object *object;

    wait_as(&waiting, "a", &me);
    object_table_withdraw(put_filling("a", 1000), &why);
    cr_assert_eq(waiting.told, 0u);
    cr_assert_eq(find_as("a", 0, &me), RDT_AGAIN);
    cr_assert_eq(map_count(&table.by_name), 1u);
    object = put("a");
    cr_assert(waiting.told == 1 && waiting.object == object);
    object_free(object, false, OBJECT_END_FREED);
    object_table_withdraw(put_filling("b", 0), &why);
    cr_assert_eq(map_count(&table.by_name), 0u);
}

/* The first who is told lets go of what the others wait for. */
Test(object, filling_ended_by_the_one_who_is_told)
{
    struct waiting a, b;
    struct object *object;

    wait_as(&a, "a", &me);
    wait_as(&b, "a", &me);
    a.ends = &b;
    object = put_filling("a", 0);
    object_hold(object); /* the copy's */
    object_free(object, true, OBJECT_END_FREED);
    cr_assert_str_eq(object_state_name(object), "draining");
    cr_assert(a.told == 1 && b.told == 0);
    object_fail(object, &(struct rdt_error){.status = RDT_SYSTEM}); /* nothing */
    object_drop(object);
}

Test(object, failed_put_keeps_waiters)
{
    struct waiting a;
    struct object *blocker = put("b"), *object = NULL;

    wait_as(&a, "a", &me);
    table.max_objects = 1;
    cr_assert_eq(try_put("a", &me, RDT__PB__VISIBILITY__VISIBILITY_OWNER, &object, NULL), RDT_LIMIT);
    cr_assert_eq(a.told, 0u);
    table.max_objects = 10;
    object = put("a");
    cr_assert_eq(a.told, 1u);
    object_free(object, false, OBJECT_END_FREED);
    object_free(blocker, false, OBJECT_END_FREED);
}

Test(object, limit_of_awaited)
{
    struct waiting a, b = {.waiter.on_event = on_event};
    struct rdt_ref ref = ref_of("b", 0);

    table.max_objects = 1;
    wait_as(&a, "a", &me);
    cr_assert_eq(object_table_wait(&table, &ref, &me, &b.waiter, NULL), RDT_LIMIT);
    cr_assert_null(b.waiter.object);
    object_waiter_remove(&a.waiter);
}

Test(object, freed_waiters_told_at_the_very_end)
{
    struct object *object = put("a");
    struct waiting a = {.waiter.on_event = on_event}, b = {.waiter.on_event = on_event};

    object_wait_freed(object, &a.waiter);
    object_wait_freed(object, &b.waiter);
    object_hold(object);
    object_pin(object);
    object_free(object, true, OBJECT_END_FREED);
    object_drop(object);
    cr_assert_eq(a.told, 0u, "an engine is at it");
    object_waiter_remove(&b.waiter);
    object_unpin(object);
    cr_assert(a.told == 1 && a.object == NULL && b.told == 0);
    cr_assert(list_empty(&region->uses), "the range is free when they are told");
}

/* ---- what may be shown ---- */

Test(object, may_show_own_or_covered_regions)
{
    static const struct {
        uint64_t offset, bytes;
        const struct owner *requester;
        enum region_origin origin;
        bool may;
    } rows[] = {
        {0, 4096, &other, REGION_ALLOCATED, true},  {0, 4095, &other, REGION_ALLOCATED, false},
        {1, 4095, &other, REGION_ALLOCATED, false}, {0, 10, &me, REGION_ALLOCATED, true},
        {0, 4096, &other, REGION_IMPORTED, false},  {0, 10, &me, REGION_IMPORTED, true},
        {0, 4096, &guest, REGION_ALLOCATED, true},  {0, 10, &guest, REGION_ALLOCATED, false},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct object *object = put("a");
        const char *why_not = NULL;

        object->layout->offset[0] = rows[i].offset;
        object->layout->shape[0] = rows[i].bytes;
        region->origin = rows[i].origin;
        cr_expect_eq(object_may_show(object, rows[i].requester, &why_not), rows[i].may, "row %zu", i);
        cr_expect_eq(why_not == NULL, rows[i].may, "row %zu", i);
        region->origin = REGION_ALLOCATED;
        object_free(object, false, OBJECT_END_FREED);
    }
}

/* ---- a client's end takes several turns ---- */

Test(object, nobody_finds_what_an_ended_client_leaves)
{
    struct client ended;
    struct object *held = NULL, *mine;
    uint64_t generations[3], number = 0;

    mine = put("mine");
    ended = producer;
    list_init(&ended.objects);
    ended.n_objects = 0;
    for (unsigned i = 0; i < 3; i++) {
        struct object *object = put((const char *[]){"first", "second", "held"}[i]);
        list_remove(&object->by_producer);
        producer.n_objects--;
        object->producer = &ended;
        list_append(&ended.objects, &object->by_producer);
        ended.n_objects++;
        generations[i] = object->generation;
        held = object;
    }
    object_hold(held);
    ended.gone = true;
    cr_assert_eq(find_as("first", generations[0], &me), RDT_OWNER_DIED);
    cr_assert_eq(find_as("second", 0, &me), RDT_AGAIN, "as if nobody had put it");
    cr_assert_eq(find_as("held", generations[2], &me), RDT_OK, "somebody holds it");
    cr_assert_eq(object_table_next(&table, 0, &number), mine);
    cr_assert_eq(object_table_next(&table, number, &number), held);
    cr_assert_null(object_table_next(&table, number, &number));
    cr_assert(list_empty(&ended.objects) && ended.n_objects == 0);
    object_drop(held);
    object_free(mine, false, OBJECT_END_FREED);
}
