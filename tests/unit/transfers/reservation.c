/* SPDX-License-Identifier: Apache-2.0 */
/* The items of one FETCH get their memory together, however many there are: it is promised to them, and they allocate it in
 * slices of the loop. Nothing here measures time: N items need more than one slice on any machine. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/base/account.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"

enum { N = 50000, BYTES = 4096 };

static uv_loop_t loop;
static struct deadlines deadlines;
static struct regions regions;
static struct transfer *items;
static unsigned n_room, n_refused;

static void on_room(struct transfer *transfer, const struct rdt_error *err)
{
    *(err ? &n_refused : &n_room) += 1;
    if (!err)
        regions.bytes += BYTES; /* as its allocation would */
}

static void setup(void)
{
    cr_assert_eq(uv_loop_init(&loop), 0);
    deadlines_init(&deadlines, &loop);
    regions = (struct regions){.deadlines = &deadlines, .limit_bytes = (uint64_t)N * BYTES};
    items = calloc(N, sizeof *items);
    n_room = n_refused = 0;
    struct reservation *reservation = reservation_create(&regions);
    for (unsigned i = 0; i < N; i++) {
        items[i].move.reserve.message = reservation;
        items[i].move.stream_bytes = BYTES;
        list_init(&items[i].move.reserve.link);
        reservation_join(&items[i], NULL);
        cr_assert(reservation_wait(&items[i], on_room));
    }
    cr_assert_eq(n_room, 0u);
    reservation_seal(reservation);
}

static void teardown(void)
{
    cr_assert_eq(regions.awaiting.promised_bytes, 0u);
    free(items);
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(reservation, .init = setup, .fini = teardown, .timeout = 60);

Test(reservation, items_go_on_in_slices_and_nobody_takes_their_memory)
{
    cr_assert(n_room > 0 && n_room < N, "%u in one turn", n_room);
    cr_assert_eq(regions.awaiting.promised_bytes, (uint64_t)(N - n_room) * BYTES);
    cr_assert(!regions_may_give(&regions, BYTES), "all is promised");
    reservation_leave(&items[N - 1]); /* it is cancelled meanwhile */
    cr_assert(regions_may_give(&regions, BYTES), "what it does not need is anybody's");
    while (n_room < N - 1)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(n_refused, 0u);
}

Test(reservation, items_that_all_end_meanwhile_leave_nothing)
{
    for (unsigned i = 0; i < N; i++)
        reservation_leave(&items[i]);
    cr_assert_eq(regions.awaiting.promised_bytes, 0u);
}

static bool called;

static void on_account_room(struct account_wait *wait)
{
    called = true;
}

/* Somebody was refused because of the promise, and waits for room. Nothing is freed when the promise is over. */
Test(reservation, who_was_refused_because_of_a_promise_is_called_when_it_is_over)
{
    const struct owner me = {.uid = 1000};
    struct account_wait wait = {.on_room = on_account_room};
    struct accounts accounts;
    struct account *account;

    accounts_init(&accounts);
    account = account_get(&accounts, &me);
    regions.accounts = &accounts;
    cr_assert(!regions_may_give(&regions, BYTES));
    account_request_begin(&accounts, &wait);
    account_node_is_full(account, USAGE_BYTES, NULL);
    account_request_end(&accounts, &wait);
    for (unsigned i = 0; i < N; i++)
        reservation_leave(&items[i]);
    cr_assert(called, "it waits for ever");
    account_wait_end(&accounts, &wait);
    account_unref(account);
    accounts_fini(&accounts);
}

static void join(struct reservation *reservation, struct transfer *item, uint64_t bytes)
{
    *item = (struct transfer){.move.reserve.message = reservation, .move.stream_bytes = bytes};
    list_init(&item->move.reserve.link);
    reservation_join(item, NULL);
}

/* The sizes may come from a hostile node. */
Test(reservation, sizes_whose_sum_is_too_large_leave_no_promise)
{
    struct reservation *reservation;
    struct transfer large[3], small[2];

    for (unsigned i = 0; i < N; i++)
        reservation_leave(&items[i]);
    n_room = 0;
    regions.limit_bytes = (uint64_t)1 << 62;
    regions.bytes = 0;
    reservation = reservation_create(&regions);
    for (unsigned i = 0; i < N; i++)
        join(reservation, &items[i], i == N - 1 ? (uint64_t)1 << 62 : BYTES);
    for (unsigned i = 0; i < 3; i++)
        join(reservation, &large[i], UINT64_MAX / 2);
    for (unsigned i = 0; i < 2; i++)
        join(reservation, &small[i], BYTES);
    reservation_seal(reservation);
    for (unsigned i = 0; i < N; i++) /* the last one exceeds the limit, and all are refused, in slices */
        cr_assert(reservation_wait(&items[i], on_room));
    cr_assert(n_refused > 0 && n_refused < N, "%u in one turn", n_refused);
    for (unsigned i = 0; i < 3; i++)
        cr_assert(reservation_wait(&large[i], on_room));
    while (n_refused < N + 3)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    for (unsigned i = 0; i < 2; i++)
        cr_assert(reservation_wait(&small[i], on_room));
    while (n_room + n_refused < N + 5)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(n_room, 2u);
    cr_assert_eq(regions.awaiting.promised_bytes, 0u);
}
