/* SPDX-License-Identifier: Apache-2.0 */
/* A ref in transit that a hold of another node takes over goes back when nobody has read that: whatever limits say, whenever
 * the daemon is killed, and only if the node has not taken it over by another hold. */
#include "daemon/objects/transit.h"
#include "daemon/peers/holds_impl.h"
#include "daemon/persist/journal.h"
#include "tests/support/check.h"
#include "tests/unit/objects/object.h"

enum { N = 20000 };

#define HOUR_NS INT64_C(3600000000000)

static uv_loop_t loop;
static struct deadlines deadlines;
static struct recovery recovery;
static struct holds holds;
static struct peer peer;

static void begin(void)
{
    setup();
    cr_assert_eq(uv_loop_init(&loop), 0);
    deadlines_init(&deadlines, &loop);
    table.max_objects = N;
    table.deadlines = &deadlines;
    holds_init(&holds, &deadlines, NULL, HOUR_NS);
    peer = (struct peer){.epoch = 1, .boot_id = {1}};
}

static void end(void)
{
    holds_clear(&holds);
    transit_end_all(&table);
    teardown();
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(holds_transit, .init = begin, .fini = end, .timeout = 60);

static struct object *put_in_transit(const char *id)
{
    struct object *object = put(id);

    must_ok(transit_begin(object, HOUR_NS, &err));
    object_free(object, false, OBJECT_END_FREED);
    return object;
}

static unsigned n_in_transit(const struct object *object)
{
    unsigned leases;
    int64_t left_ns;

    return transit_count(object, &leases, &left_ns);
}

static void take_over(uint64_t number, struct object *object)
{
    must_ok(holds_take(&holds, &peer, number, producer.account, object, true, &err));
    transit_arrived(object);
}

static void say(const Rdt__Pb__Holds *message)
{
    must_ok(holds_on_message(&holds, &peer, message, &err));
}

static void list_nothing(void)
{
    say(&(Rdt__Pb__Holds){PROTOBUF_C_MESSAGE_INIT(&rdt__pb__holds__descriptor), .first = true, .last = true});
}

static void drop(uint64_t number)
{
    say(&(Rdt__Pb__Holds){PROTOBUF_C_MESSAGE_INIT(&rdt__pb__holds__descriptor), .n_dropped = 1, .dropped = &number});
}

/* ---- limits, and the end of the daemon ---- */

Test(holds_transit, ref_goes_back_whatever_its_owner_uses)
{
    struct object *object = put_in_transit("a");

    take_over(1, object);
    cr_assert_eq(n_in_transit(object), 0u);
    accounts.limits.owner[USAGE_HEAP] = 1;
    list_nothing();
    cr_assert_eq(n_in_transit(object), 1u);
    accounts.limits.owner[USAGE_HEAP] = 0;
}

static uint64_t records_when_it_changed;

static void on_object(void *arg, struct object *object)
{
    records_when_it_changed = recovery.counts.holds;
}

/* A daemon that is killed at any moment leaves the record of the hold, from which the next one puts the ref back, or that of
 * the ref. */
Test(holds_transit, ref_is_recorded_before_the_hold_has_no_record)
{
    struct object *object = put_in_transit("a");
    struct lasting lasting = {.on_object = on_object};

    must_ok(journal_create(&recovery.journal, &err));
    object->record = object; /* so that it needs none of this journal */
    holds.recovery = &recovery;
    take_over(1, object);
    cr_assert_eq(recovery.counts.holds, 1u);
    table.lasting = &lasting;
    list_nothing();
    cr_assert(n_in_transit(object) == 1 && recovery.counts.holds == 0);
    cr_assert_eq(records_when_it_changed, 1u);
    table.lasting = NULL;
    object->record = NULL;
    holds.recovery = NULL;
    journal_close(recovery.journal);
}

/* ---- a request that is sent again ---- */

static struct object *many[N];

/* The node takes each over, and the link is cut before it has read the answers. */
static void take_many_over(void)
{
    for (uint64_t i = 0; i < N; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "%u", (unsigned)i);
        many[i] = put_in_transit(id);
        take_over(i, many[i]);
    }
    peer.epoch++;
}

static void run_slices(void)
{
    for (unsigned i = 0; i < 10; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    while (slice_waits(&peer.holds->drop))
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/* The earlier holds end in slices, and the first of these requests come before the last of them. */
Test(holds_transit, ref_that_is_taken_over_again_does_not_go_back)
{
    take_many_over();
    list_nothing();
    cr_assert(slice_waits(&peer.holds->drop));
    for (unsigned i = 0; i < N; i += N - 1)
        take_over(N + i, many[i]);
    run_slices();
    cr_assert(n_in_transit(many[0]) == 0 && n_in_transit(many[N - 1]) == 0 && n_in_transit(many[1]) == 1);
    /* The first answer is not read either, the last one is. */
    drop(2 * N - 1);
    peer.epoch++;
    list_nothing();
    run_slices();
    cr_assert_eq(n_in_transit(many[0]), 1u);
    cr_assert_eq(table.by_generation.used, N - 1u, "the last object has not ended");
}
