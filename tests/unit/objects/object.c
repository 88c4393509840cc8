/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/objects/object and object_table: names, holds and pins, who may see an object, and why an object has ended. */
#include "tests/unit/objects/object.h"

TestSuite(object, .init = setup, .fini = teardown, .timeout = 60);

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

Test(object, holders_of_each_kind_are_counted)
{
    struct object *object = put("a");
    struct list readers[2], there;

    cr_assert(object_hold_by(object, HOLDER_READER, &readers[0]) && object_hold_by(object, HOLDER_READER, &readers[1]));
    cr_assert(object_hold_by(object, HOLDER_NODE, &there));
    cr_assert(object_n_holders(object, HOLDER_READER) == 2 && object_n_holders(object, HOLDER_NODE) == 1);
    object_drop_by(object, HOLDER_READER, &readers[0]);
    object_drop_by(object, HOLDER_NODE, &there);
    cr_assert(object_n_holders(object, HOLDER_READER) == 1 && object_n_holders(object, HOLDER_NODE) == 0);
    object_drop_by(object, HOLDER_READER, &readers[1]);
    cr_assert(!object->users && object_n_holders(object, HOLDER_READER) == 0);
    object_free(object, false, OBJECT_END_FREED);
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
    cr_expect_eq(find_as("a", died_generation ^ UINT64_C(1) << 30, &me), RDT_NOT_FOUND, "never issued");
    cr_expect_eq(find_as("a", 1, &me), RDT_NOT_FOUND, "of an earlier start");
}

/* One user's objects cannot make the daemon forget how another's ended. Alone, a user may have all of the room. */
Test(object, ends_of_one_owner_push_out_its_own)
{
    static uint64_t generations[TOMBSTONES + 2];

    for (unsigned i = 0; i < TOMBSTONES + 2; i++) {
        struct object *object = put_as("mine", i == 1 ? &other : &me, RDT__PB__VISIBILITY__VISIBILITY_ALL);
        generations[i] = object->generation;
        object_free(object, false, OBJECT_END_OWNER_DIED);
    }
    cr_expect_eq(find_as("mine", generations[0], &me), RDT_FREED, "memory is bounded");
    cr_expect_eq(find_as("mine", generations[2], &me), RDT_FREED);
    cr_expect_eq(find_as("mine", generations[3], &me), RDT_OWNER_DIED);
    cr_expect_eq(find_as("mine", generations[1], &other), RDT_OWNER_DIED);
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

/* ---- generations ---- */

/* One owner's generations say nothing about another's objects, and a guess says nothing either. */
Test(object, generations_of_others_cannot_be_inferred)
{
    enum { N = 200 };
    struct object *mine[N], *theirs[N];
    char id[16];

    for (unsigned i = 0; i < N; i++) {
        (void)snprintf(id, sizeof id, "o%u", i);
        mine[i] = put_as(id, &me, RDT__PB__VISIBILITY__VISIBILITY_OWNER);
        for (unsigned n = 0; n < i % 3; n++) /* so many of another owner meanwhile */
            object_free(put_as("between", &other, RDT__PB__VISIBILITY__VISIBILITY_OWNER), false, OBJECT_END_FREED);
        theirs[i] = put_as(id, &other, RDT__PB__VISIBILITY__VISIBILITY_OWNER);
    }
    for (unsigned i = 0; i < N; i++)
        for (unsigned k = 0; k < N; k++) {
            uint64_t x = mine[i]->generation, y = theirs[k]->generation;
            cr_assert_gt(x > y ? x - y : y - x, 1u, "they are neighbours");
        }
    for (unsigned i = 1; i < N; i++)
        if (mine[i]->generation % 64 != 0)
            cr_assert(mine[i]->generation == mine[i - 1]->generation + 1 || mine[i]->generation % 64 == 0,
                      "a gap shows that somebody else put an object");
    uint64_t gone = theirs[1]->generation;
    object_free(theirs[1], false, OBJECT_END_FREED);
    (void)snprintf(id, sizeof id, "o2");
    cr_expect_eq(find_as(id, theirs[2]->generation, &me), RDT_DENIED, "who knows generation and id has the ref");
    for (unsigned i = 1; i < 5; i++)
        cr_expect_eq(find_as("guess", i == 1 ? gone : theirs[i]->generation, &me), RDT_FREED,
                     "the same, whether it lives or not");
    for (unsigned i = 0; i < N; i++) {
        object_free(mine[i], false, OBJECT_END_FREED);
        if (i != 1)
            object_free(theirs[i], false, OBJECT_END_FREED);
    }
}

static int by_number(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

    return (a > b) - (a < b);
}

Test(object, no_generation_is_issued_twice)
{
    enum { N = 40000 };
    static uint64_t all[N];
    struct account *account = producer.account;

    for (unsigned i = 0; i < N; i++) {
        account->next_ids[IDS_GENERATIONS] = i % 3 ? account->next_ids[IDS_GENERATIONS] : 0; /* the owner came again */
        all[i] = object_table_new_generation(&table, producer.account);
        cr_assert(all[i] >= table.first_generation && all[i] >> 40 == table.first_generation >> 40);
    }
    qsort(all, N, sizeof all[0], by_number);
    for (unsigned i = 1; i < N; i++)
        cr_assert_neq(all[i], all[i - 1]);
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

    for (size_t i = 0; i < sizeof(rows) / sizeof rows[0]; i++) {
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
    cr_expect_eq(object_table_find(&table, &ref, &me, &found, NULL), RDT_AGAIN, "hidden, as if nobody charged put it");
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

    cr_assert(a->tail.id_bytes > 0 && b->tail.id_bytes > 0);
    cr_assert(a->tail.id_bytes != b->tail.id_bytes || memcmp(object_id(a), object_id(b), a->tail.id_bytes) != 0);
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

    for (size_t i = 0; i < sizeof(rows) / sizeof rows[0]; i++) {
        struct object *object = put("a");
        const char *why_not = NULL;

        object->memory.layout->offset[0] = rows[i].offset;
        object->memory.layout->shape[0] = rows[i].bytes;
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
    struct object *held = NULL, *mine;
    uint64_t generations[3], number = 0;

    mine = put("mine");
    struct client ended = producer;
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
    ended.conn.gone = true;
    cr_assert_eq(find_as("first", generations[0], &me), RDT_OWNER_DIED);
    cr_assert_eq(find_as("second", 0, &me), RDT_AGAIN, "as if nobody charged put it");
    cr_assert_eq(find_as("held", generations[2], &me), RDT_OK, "somebody holds it");
    cr_assert_eq(object_table_next(&table, 0, &number), mine);
    cr_assert_eq(object_table_next(&table, number, &number), held);
    cr_assert_null(object_table_next(&table, number, &number));
    cr_assert(list_empty(&ended.objects) && ended.n_objects == 0);
    object_drop(held);
    object_free(mine, false, OBJECT_END_FREED);
}

/* ---- what is much ---- */

static struct object *put_parts(const char *id, size_t metadata_bytes, uint32_t n_tensors, enum rdt_status expected)
{
    static uint8_t metadata[100000], data[64];
    struct layout *layout = layout_create(n_tensors, n_tensors);
    struct object_put put = {.account = producer.account,
                             .id = (const uint8_t *)id,
                             .id_bytes = strlen(id),
                             .metadata = metadata,
                             .metadata_bytes = metadata_bytes,
                             .layout = layout,
                             .inline_data = data,
                             .inline_bytes = sizeof data,
                             .transport = "",
                             .producer = &producer};
    struct object *object = NULL;
    struct rdt_error err = {0};

    memset(metadata, 5, sizeof metadata);
    memset(data, 6, sizeof data);
    for (uint32_t i = 0; i < n_tensors; i++) {
        layout->dtype[i] = RDT_U8;
        layout->ndim[i] = 1;
        layout->first_dim[i] = i;
        layout->region[i] = 0;
        layout->offset[i] = i;
        layout->shape[i] = i < 65; /* the 65th lies behind the bytes that came */
        layout->strides[i] = 1;
    }
    cr_assert_eq(object_table_put(&table, &put, &object, &err), expected, "%s", err.msg);
    if (expected != RDT_OK)
        free(layout);
    return object;
}

Test(object, much_metadata_and_many_shapes_are_kept)
{
    static const struct {
        size_t metadata_bytes;
        uint32_t n_tensors;
    } cases[] = {{0, 1}, {100, 3}, {100000, 1}, {0, 64}, {16300, 50}, {100000, 64}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct object *object = put_parts("much", cases[i].metadata_bytes, cases[i].n_tensors, RDT_OK);
        struct layout *layout = NULL;

        cr_assert_eq(object->tail.metadata_bytes, cases[i].metadata_bytes);
        for (size_t k = 0; k < cases[i].metadata_bytes; k++)
            cr_assert_eq(object_metadata(object)[k], 5);
        cr_assert_eq(object_n_tensors(object), cases[i].n_tensors);
        cr_assert_eq(object_layout(object, NULL, &layout, NULL), RDT_OK);
        cr_assert_eq(layout->shape[cases[i].n_tensors - 1], 1u);
        cr_assert_eq(object_base(object, 0, NULL)[layout->offset[cases[i].n_tensors - 1]], 6);
        free(layout);
        object_free(object, false, OBJECT_END_FREED);
    }
}

Test(object, bytes_that_did_not_come_are_refused)
{
    (void)put_parts("short", 100000, 65, RDT_INVALID);
}

/* ---- moving to other memory ---- */

static bool has_ended, was_told;

static void on_kept_end(void *arg, struct region *of)
{
    has_ended = true;
    of->record = NULL;
}

static void on_object_moved(void *arg, struct object *object)
{
    cr_assert(!has_ended, "its record would name memory that is gone");
    was_told = true;
}

static void on_nothing(void *arg, struct object *object) {}

Test(object, record_is_written_anew_before_the_old_memory_ends)
{
    struct lasting lasting = {.on_object = on_nothing, .on_object_moved = on_object_moved};
    struct object *object = put("moves");
    struct region *old = fake_region(4096, 5), *next = fake_region(4096, 5);

    table.lasting = &lasting;
    fake.regions.kept.on_end = on_kept_end;
    object->record = &lasting;
    cr_assert_eq(object_move(object, bytes_at(0, 4096), old, NULL), RDT_OK);
    old->record = &lasting;
    region_unref(old); /* only the object has it now */
    was_told = false;
    cr_assert_eq(object_move(object, bytes_at(0, 4096), next, NULL), RDT_OK);
    cr_assert(was_told && has_ended);
    region_unref(next);
    object->record = NULL;
    object_free(object, false, OBJECT_END_FREED);
    table.lasting = NULL;
}
