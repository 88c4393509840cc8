/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/objects/cache_queue and cache: the order in which objects go, what protects them, and whose they are. */
#include "daemon/objects/cache_queue.h"

#include "tests/unit/objects/object.h"

static uv_loop_t loop;
static struct slices slices;

static void setup_cache(void)
{
    setup();
    cr_assert_eq(uv_loop_init(&loop), 0);
    slices_init(&slices, &loop);
    table.cache.slices = &slices;
}

/* The turns in which objects are evicted. */
static void turn(void)
{
    while (!list_empty(&slices.waiting))
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static void set_limits(uint64_t bytes, uint64_t of_owner)
{
    cache_set_limits(&table.cache, bytes, of_owner);
    turn();
}

static void teardown_cache(void)
{
    teardown();
    slices_close(&slices);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0);
}

TestSuite(cache, .init = setup_cache, .fini = teardown_cache, .timeout = 60);

/* ---- the queue ---- */

Test(cache_queue, what_was_used_once_goes_first)
{
    struct cache_entry entries[20] = {{.bytes = 0}};
    struct cache_queue queue;

    cache_queue_init(&queue);
    for (unsigned i = 0; i < 20; i++) {
        entries[i].bytes = 10;
        cache_queue_add(&queue, &entries[i], false);
    }
    cr_assert_eq(cache_queue_victim(&queue), &entries[0]);
    cache_queue_remove(&queue, &entries[0]);
    cache_queue_add(&queue, &entries[0], true);
    cache_queue_remove(&queue, &entries[2]);
    cache_queue_add(&queue, &entries[2], false); /* again in the same segment, as the latest */
    for (unsigned i = 1; i < 20; i++) {
        unsigned next = i == 1 ? 1 : i < 19 ? i + 1 : 2;
        cr_assert_eq(cache_queue_victim(&queue), &entries[next], "%u", i);
        cache_queue_remove(&queue, &entries[next]);
    }
    cr_assert_eq(cache_queue_victim(&queue), &entries[0], "nothing else is left");
    cache_queue_remove(&queue, &entries[0]);
    cr_assert(!cache_queue_victim(&queue) && queue.n == 0 && queue.classes[0].bytes[CACHE_PROTECTED] == 0);
}

Test(cache_queue, at_most_half_is_protected)
{
    struct cache_entry entries[100] = {{.bytes = 0}};
    struct cache_queue queue;

    cache_queue_init(&queue);
    for (unsigned i = 0; i < 100; i++) {
        entries[i].bytes = 7;
        cache_queue_add(&queue, &entries[i], false);
    }
    for (unsigned i = 0; i < 100; i++) {
        cache_queue_remove(&queue, &entries[i]);
        cache_queue_add(&queue, &entries[i], true);
    }
    cr_assert(queue.classes[0].bytes[CACHE_PROTECTED] == 350 && queue.classes[0].bytes[CACHE_PROBATION] == 350);
    cr_assert_eq(cache_queue_victim(&queue), &entries[0], "the first that was used is the first that goes");
}

Test(cache_queue, lower_priorities_go_first)
{
    struct cache_entry entries[4 * CACHE_PRIORITIES] = {{.bytes = 0}};
    struct cache_queue queue;

    cache_queue_init(&queue);
    for (unsigned i = 0; i < 4 * CACHE_PRIORITIES; i++) {
        entries[i].bytes = 10;
        entries[i].priority = (uint8_t)(CACHE_PRIORITIES - 1 - i % CACHE_PRIORITIES);
        cache_queue_add(&queue, &entries[i], false);
    }
    for (unsigned i = 0; i < CACHE_PRIORITIES; i++) { /* what was used stays longer, among those of its priority */
        cache_queue_remove(&queue, &entries[i]);
        cache_queue_add(&queue, &entries[i], true);
    }
    for (unsigned priority = 0; priority < CACHE_PRIORITIES; priority++)
        for (unsigned i = 0; i < 4; i++) {
            struct cache_entry *expected = &entries[(i + 1) % 4 * CACHE_PRIORITIES + CACHE_PRIORITIES - 1 - priority];
            cr_assert_eq(cache_queue_victim(&queue), expected, "%u of priority %u", i, priority);
            cache_queue_remove(&queue, expected);
        }
    cr_assert(!cache_queue_victim(&queue) && queue.n == 0);
}

Test(cache_queue, what_is_leaving_goes_first_and_what_is_spilled_by_itself)
{
    struct cache_entry entries[6] = {{.bytes = 0}}, *victim;
    struct cache_queue queue;

    cache_queue_init(&queue);
    for (unsigned i = 0; i < 6; i++) {
        entries[i].bytes = 10;
        entries[i].priority = i < 3 ? 0 : 1;
        cache_queue_add(&queue, &entries[i], false);
    }
    cr_assert_eq(cache_queue_next(&queue), &entries[0]);
    cache_queue_leave(&queue, &entries[0]);
    cache_queue_leave(&queue, &entries[1]);
    cr_assert(queue.leaving_bytes == 20 && cache_queue_next(&queue) == &entries[2]);
    entries[0].writing = true; /* there are others */
    cr_assert_eq(cache_queue_victim(&queue), &entries[2]);
    entries[0].writing = false;
    cr_assert_eq(cache_queue_victim(&queue), &entries[0]);
    cache_queue_remove(&queue, &entries[0]);
    cache_queue_add(&queue, &entries[0], true); /* it was used again */
    cr_assert(entries[0].segment == CACHE_PROTECTED && queue.leaving_bytes == 10);
    cache_queue_remove(&queue, &entries[1]);
    cache_queue_add(&queue, &entries[1], false);
    cr_assert_eq(cache_queue_victim(&queue), &entries[1], "it was held, and not used");
    for (unsigned i = 1; i < 3; i++) {
        cache_queue_remove(&queue, &entries[i]);
        entries[i].segment = CACHE_SPILLED;
        cache_queue_add(&queue, &entries[i], false);
    }
    cr_assert(queue.n == 6 && queue.leaving_bytes == 0 && cache_queue_spilled(&queue) == &entries[1]);
    cache_queue_remove(&queue, &entries[1]);
    cache_queue_add(&queue, &entries[1], true);
    cr_assert(entries[1].segment == CACHE_SPILLED && cache_queue_spilled(&queue) == &entries[2]);
    for (unsigned i = 0; (victim = cache_queue_victim(&queue)); i++) {
        cr_assert_eq(victim, &entries[i == 0 ? 0 : i + 2], "%u", i);
        cache_queue_remove(&queue, victim);
    }
    cr_assert_eq(queue.n, 2u, "what is spilled is no victim");
}

/* ---- objects ---- */

static struct object *put_evictable(const char *id, const struct owner *owner, enum object_id_use id_use)
{
    struct account *account = account_get(&accounts, owner);
    const struct object_put what = {.account = account,
                                    .id = (const uint8_t *)id,
                                    .id_bytes = strlen(id),
                                    .layout = bytes_at(0, 1000),
                                    .inline_data = (const uint8_t[1000]){1},
                                    .inline_bytes = 1000,
                                    .transport = "",
                                    .promise = OBJECT_SEALED,
                                    .eviction = EVICTION_ALLOWED,
                                    .id_use = id_use};
    struct object *object = NULL;

    what.layout->region[0] = 0;
    cr_assert_eq(object_table_put(&table, &what, &object, NULL), RDT_OK);
    account_unref(account);
    return object;
}

static bool is_there(const char *id, const struct owner *owner)
{
    return object_table_of_id(&table, owner, id, strlen(id));
}

static const struct cache_owner *of(const struct owner *owner)
{
    const struct account *account = accounts_find(&accounts, owner);

    return account ? account->cache_owner : NULL;
}

static void on_flushed(struct cache_flush *flush) {}

static void flush(void)
{
    struct cache_flush all;

    cache_flush_start(&all, &table.cache, NULL, on_flushed);
    turn();
    cr_assert_eq(table.cache.sums.n, 0u);
    cr_assert(list_empty(&table.cache.owners) && table.cache.orders[CACHE_BY_MEMORY].used == 0);
}

Test(cache, goes_in_order_and_sums_add_up)
{
    uint64_t each = 0;

    (void)put_evictable("a", &me, ID_MUST_BE_FREE);
    each = table.cache.sums.bytes;
    cr_assert_gt(each, 1000u);
    (void)put_evictable("b", &me, ID_MUST_BE_FREE);
    (void)put_evictable("c", &me, ID_MUST_BE_FREE);
    cr_assert(table.cache.sums.n == 3 && table.cache.sums.bytes == 3 * each && table.cache.sums.idle_bytes == 3 * each);
    cr_assert_eq(find_as("a", 0, &me), RDT_OK);
    cr_assert_eq(find_as("x", 0, &me), RDT_AGAIN);
    cr_assert(of(&me)->counts.hits == 1 && of(&me)->counts.misses == 1);
    set_limits(2 * each, 0);
    cr_assert(is_there("a", &me) && !is_there("b", &me) && is_there("c", &me));
    set_limits(0, each);
    cr_assert(is_there("a", &me) && !is_there("c", &me), "it was used, and c was not");
    cr_assert(of(&me)->counts.evictions == 2 && of(&me)->counts.evicted_bytes == 2 * each);
    flush();
}

Test(cache, look_is_no_use)
{
    struct rdt_ref ref = ref_of("a", 0), none = ref_of("x", 0);
    struct object *a = put_evictable("a", &me, ID_MUST_BE_FREE);
    uint64_t each = table.cache.sums.bytes, generation = a->generation;
    struct rdt_error err;

    (void)put_evictable("b", &me, ID_MUST_BE_FREE);
    (void)put_evictable("c", &me, ID_MUST_BE_FREE);
    cr_assert_eq(object_table_exists(&table, &ref, &me, NULL), RDT_OK);
    cr_assert_eq(object_table_exists(&table, &none, &me, NULL), RDT_AGAIN);
    ref.generation = generation;
    cr_assert_eq(object_table_exists(&table, &ref, &me, NULL), RDT_OK);
    cr_assert(of(&me)->counts.hits == 0 && of(&me)->counts.misses == 0);
    cr_assert_eq(find_as("b", 0, &me), RDT_OK);
    cr_assert_eq(find_as("b", object_table_of_id(&table, &me, "b", 1)->generation, &me), RDT_OK);
    cr_assert_eq(of(&me)->counts.hits, 1u, "what was found is fetched by its generation");
    set_limits(2 * each, 0);
    cr_assert(!is_there("a", &me) && is_there("b", &me) && is_there("c", &me), "a was not used");
    cr_assert_eq(object_table_exists(&table, &ref, &me, &err), RDT_FREED);
    cr_assert(strstr(err.msg, "was evicted from the cache") && strstr(err.msg, "put it again"), "%s", err.msg);
    flush();
}

Test(cache, holds_and_pins_protect)
{
    struct object *held = put_evictable("held", &me, ID_MUST_BE_FREE), *pinned = put_evictable("pinned", &me, ID_MUST_BE_FREE);
    struct rdt_error err = {0};
    uint64_t each = table.cache.sums.bytes / 2;

    object_hold(held);
    object_pin(pinned);
    (void)put_evictable("c", &me, ID_MUST_BE_FREE);
    cr_assert(table.cache.sums.n == 3 && table.cache.sums.n_idle == 1);
    set_limits(1, 0);
    cr_assert(is_there("held", &me) && is_there("pinned", &me) && !is_there("c", &me));
    set_limits(2 * each + 1, 0);
    cr_assert_eq(cache_prepare(&table.cache, held, 0, each, &err), RDT_LIMIT);
    cr_assert(strstr(err.msg, "cache_limit") && strstr(err.msg, "hold"), "%s", err.msg);
    set_limits(each, 0);
    object_drop(held);
    turn();
    cr_assert(!is_there("held", &me) && table.cache.sums.n == 1);
    object_unpin(pinned);
    cr_assert(is_there("pinned", &me), "there is room for it");
    flush();
}

Test(cache, a_freed_one_that_is_held_is_in_the_cache_no_more)
{
    struct object *object = put_evictable("a", &me, ID_MUST_BE_FREE);

    object_hold(object);
    object_free(object, false, OBJECT_END_FREED);
    cr_assert(table.cache.sums.n == 0 && table.cache.sums.bytes == 0);
    object_drop(object);
    cr_assert(!is_there("a", &me) && list_empty(&table.cache.owners));
}

Test(cache, replaces_also_a_held_one)
{
    struct object *old = put_evictable("a", &me, ID_MUST_BE_FREE), *new;

    object_hold(old);
    new = put_evictable("a", &me, ID_IS_TAKEN);
    cr_assert(table.cache.sums.n == 1 && table.cache.sums.n_idle == 1);
    object_drop(old);
    cr_assert_eq(object_table_of_id(&table, &me, "a", 1), new);
    flush();
}

Test(cache, the_person_with_most_loses)
{
    char id[8];
    uint64_t each;

    (void)put_evictable("mine", &me, ID_MUST_BE_FREE);
    each = table.cache.sums.bytes;
    for (unsigned i = 0; i < 50; i++) {
        (void)snprintf(id, sizeof id, "o%u", i);
        (void)put_evictable(id, &other, ID_MUST_BE_FREE);
    }
    set_limits(4 * each + each / 2, 0);
    cr_assert(is_there("mine", &me) && of(&other)->sums.n <= 3 && of(&other)->counts.evictions >= 47);
    set_limits(0, 0);
    flush();
}

Test(cache, room_for_an_owner_comes_from_that_owner)
{
    struct account_lack *lack = &accounts.lack;

    (void)put_evictable("mine", &me, ID_MUST_BE_FREE);
    (void)put_evictable("theirs", &other, ID_MUST_BE_FREE);
    *lack = (struct account_lack){accounts_find(&accounts, &me), USAGE_OBJECTS, 2, false};
    cr_assert(!cache_make_room(&table.cache) && is_there("mine", &me), "that would not be enough");
    *lack = (struct account_lack){accounts_find(&accounts, &me), USAGE_NAMES, 1, false};
    cr_assert(!cache_make_room(&table.cache) && is_there("mine", &me), "objects are no names");
    *lack = (struct account_lack){accounts_find(&accounts, &me), USAGE_OBJECTS, 1, false};
    cr_assert(cache_make_room(&table.cache));
    turn();
    cr_assert(!is_there("mine", &me) && is_there("theirs", &other));
    *lack = (struct account_lack){&accounts.node, USAGE_OBJECTS, 1, false};
    cr_assert(cache_make_room(&table.cache));
    turn();
    cr_assert(!is_there("theirs", &other));
}
