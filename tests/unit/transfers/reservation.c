/* SPDX-License-Identifier: Apache-2.0 */
/* The items of one FETCH get their memory together, however many there are: it is promised to them, and they allocate it in
 * slices of the loop. Nothing here measures time: N items need more than one slice on any machine. */
#include <criterion/criterion.h>
#include <stdlib.h>

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
}
