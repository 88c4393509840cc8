/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/objects/object_notify: who waits for an object, and what each of them is told. */
#include "tests/unit/objects/object.h"

TestSuite(object_notify, .init = setup, .fini = teardown, .timeout = 60);

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

Test(object_notify, waiters_told_of_put)
{
    struct waiting a, b, elsewhere;

    wait_as(&a, "a", &me);
    wait_as(&b, "a", &me);
    wait_as(&elsewhere, "a", &other);
    cr_assert_eq(find_as("a", 0, &me), RDT_AGAIN);
    struct object *object = put("a");
    cr_assert(a.told == 1 && b.told == 1 && elsewhere.told == 0);
    cr_assert(a.object == object && b.object == object);
    object_waiter_remove(&a.waiter); /* harmless afterwards */
    object_waiter_remove(&elsewhere.waiter);
    object_free(object, false, OBJECT_END_FREED);
}

Test(object_notify, awaited_goes_with_last_waiter)
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
Test(object_notify, waiter_ended_by_another_is_not_told)
{
    struct waiting a, b, c;

    wait_as(&a, "a", &me);
    wait_as(&b, "a", &me);
    wait_as(&c, "a", &me);
    a.ends = &b;
    struct object *object = put("a");
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
                                 .promise = OBJECT_SEALED};
    struct object *object = NULL;
    struct rdt_error err = {0};

    cr_assert_eq(object_table_put(&table, &filling, &object, &err), RDT_OK, "%s", err.msg);
    return object;
}

/* ---- objects that are hidden from who waits ---- */

/* For what the first owner (me) puts. */
static void wait_for_mine(struct waiting *waiting, const char *id, const struct owner *requester)
{
    struct rdt_ref ref = ref_of(id, 0);

    ref.any_owner = 0;
    ref.uid = me.uid;
    *waiting = (struct waiting){.waiter.on_event = on_event};
    cr_assert_eq(object_table_wait(&table, &ref, requester, &waiting->waiter, NULL), RDT_OK);
}

static struct object *put_for(Rdt__Pb__Visibility visibility)
{
    struct object *object;

    cr_assert_eq(try_put("a", &me, visibility, &object, NULL), RDT_OK);
    return object;
}

Test(object_notify, waiter_that_may_not_see_the_object_waits_on)
{
    struct waiting hidden_before, shown, hidden_after;

    wait_for_mine(&hidden_before, "a", &other);
    wait_for_mine(&shown, "a", &me);
    struct object *object = put_for(RDT__PB__VISIBILITY__VISIBILITY_OWNER);
    wait_for_mine(&hidden_after, "a", &other);
    cr_assert(shown.told == 1 && shown.object == object);
    cr_assert_eq(object_n_waiters(object), 0u);
    object_free(object, false, OBJECT_END_FREED);
    cr_assert_eq(map_count(&table.by_name), 1u, "both still wait");
    object = put_for(RDT__PB__VISIBILITY__VISIBILITY_TENANT);
    cr_assert(hidden_before.told == 1 && hidden_before.object == object);
    cr_assert(hidden_after.told == 1 && hidden_after.object == object);
    object_free(object, false, OBJECT_END_FREED);
}

Test(object_notify, hidden_waiter_leaves_beside_the_object)
{
    struct waiting hidden[2];

    wait_for_mine(&hidden[0], "a", &other);
    struct object *object = put_for(RDT__PB__VISIBILITY__VISIBILITY_OWNER);
    object_waiter_remove(&hidden[0].waiter);
    wait_for_mine(&hidden[0], "a", &other);
    wait_for_mine(&hidden[1], "a", &other);
    object_waiter_remove(&hidden[1].waiter);
    object_free(object, true, OBJECT_END_FREED);
    cr_assert_eq(map_count(&table.by_name), 1u);
    object_waiter_remove(&hidden[0].waiter);
    cr_assert(hidden[0].told == 0 && hidden[1].told == 0);
}

Test(object_notify, withdrawn_put_leaves_every_waiter_waiting)
{
    struct rdt_error why = {.status = RDT_NO_MEMORY, .msg = "none"};
    struct waiting hidden, shown;

    wait_for_mine(&hidden, "a", &other);
    wait_for_mine(&shown, "a", &me);
    object_table_withdraw(put_filling("a", 0), &why);
    cr_assert(hidden.told == 0 && shown.told == 0);
    struct object *object = put_for(RDT__PB__VISIBILITY__VISIBILITY_TENANT);
    cr_assert(hidden.object == object && shown.object == object);
    object_free(object, false, OBJECT_END_FREED);
}

Test(object_notify, failed_put_is_not_told_to_whom_it_was_hidden)
{
    struct rdt_error why = {.status = RDT_NO_MEMORY, .msg = "none"};
    struct waiting hidden, shown;

    wait_for_mine(&hidden, "a", &other);
    wait_for_mine(&shown, "a", &me);
    object_fail(put_filling("a", 0), &why);
    cr_assert(hidden.told == 0 && shown.told == 1);
    object_waiter_remove(&hidden.waiter);
}

Test(object_notify, filling_keeps_waiters_until_it_is_full)
{
    struct region *copy = fake_region(4096, 0);
    struct waiting before, meanwhile, by_generation;

    wait_as(&before, "a", &me);
    struct object *object = put_filling("a", 0);
    cr_assert_str_eq(object_state_name(object), "filling");
    cr_assert_eq(find_as("a", 0, &me), RDT_AGAIN);
    cr_assert_eq(find_as("a", object->generation, &me), RDT_AGAIN);
    cr_assert_eq(find_as("a", object->generation, &other), RDT_DENIED);
    wait_as(&meanwhile, "a", &me);
    struct rdt_ref ref = ref_of("a", object->generation);
    by_generation = (struct waiting){.waiter.on_event = on_event};
    cr_assert_eq(object_table_wait(&table, &ref, &me, &by_generation.waiter, NULL), RDT_OK);
    cr_assert_eq(object_n_waiters(object), 3u);
    cr_assert_not(list_empty(&region->uses));
    cr_assert_eq(object_fill(object, bytes_at(0, 4096), &copy, 1, NULL), RDT_OK);
    object_take_id(object);
    cr_assert(before.told == 1 && meanwhile.told == 1 && by_generation.told == 1);
    cr_assert(before.object == object && before.why == RDT_OK);
    cr_assert_eq(find_as("a", 0, &me), RDT_OK);
    cr_assert(list_empty(&region->uses), "its source may be written again");
    object_free(object, false, OBJECT_END_FREED);
    cr_assert_eq(copy->refs, 1u);
    region_unref(copy);
}

Test(object_notify, filling_that_fails_tells_why)
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
    object_producer_ended(put_filling("a", 1000)); /* detached or not: it was never whole */
    cr_assert(waiting.told == 1 && waiting.why == RDT_OWNER_DIED);
    cr_assert_eq(map_count(&table.detached), 0u);
}

/* The loop has others to see to. */
Test(object_notify, filling_that_fails_notifies_many_in_portions)
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
    cr_assert(list_empty(&table.notifies));
    for (unsigned i = 0; i < N; i++)
        wait_as(&all[i], "a", &me);
    object_fail(put_filling("a", 0), &why);
    object_notifies_end(&table);
    for (unsigned i = 0; i < N; i++)
        cr_assert(all[i].told == 1 && all[i].why == RDT_NO_MEMORY);
    table.deadlines = NULL;
    deadlines_close(&deadlines, NULL);
    fake_run();
    free(all);
}

Test(object_notify, filling_refused_at_once_keeps_waiters)
{
    struct rdt_error why = {.status = RDT_NO_MEMORY};
    struct waiting waiting;

    wait_as(&waiting, "a", &me);
    object_table_withdraw(put_filling("a", 1000), &why);
    cr_assert_eq(waiting.told, 0u);
    cr_assert_eq(find_as("a", 0, &me), RDT_AGAIN);
    cr_assert_eq(map_count(&table.by_name), 1u);
    struct object *object = put("a");
    cr_assert(waiting.told == 1 && waiting.object == object);
    object_free(object, false, OBJECT_END_FREED);
    object_table_withdraw(put_filling("b", 0), &why);
    cr_assert_eq(map_count(&table.by_name), 0u);
}

/* The first who is told lets go of what the others wait for. */
Test(object_notify, filling_ended_by_a_notified_waiter)
{
    struct waiting a, b;

    wait_as(&a, "a", &me);
    wait_as(&b, "a", &me);
    a.ends = &b;
    struct object *object = put_filling("a", 0);
    object_hold(object); /* the copy's */
    object_free(object, true, OBJECT_END_FREED);
    cr_assert_str_eq(object_state_name(object), "draining");
    cr_assert(a.told == 1 && b.told == 0);
    object_fail(object, &(struct rdt_error){.status = RDT_SYSTEM}); /* nothing */
    object_drop(object);
}

Test(object_notify, failed_put_keeps_waiters)
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

/* The waiting request is charged to its owner. The ids that one user waits for take no place from others. */
Test(object_notify, awaited_ids_keep_nobody_from_waiting)
{
    struct waiting a, b;

    table.max_objects = 1;
    wait_as(&a, "a", &me);
    wait_as(&b, "b", &other);
    cr_assert(a.waiter.object && b.waiter.object);
    object_waiter_remove(&a.waiter);
    object_waiter_remove(&b.waiter);
}

Test(object_notify, freed_waiters_told_at_the_very_end)
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
    cr_assert(a.told == 1 && !a.object && b.told == 0);
    cr_assert(list_empty(&region->uses), "the range is free when they are told");
}
