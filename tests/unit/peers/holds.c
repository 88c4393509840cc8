/* SPDX-License-Identifier: Apache-2.0 */
/* What this node does with very many holds of another node takes one turn of the loop no longer than with few. Nothing here
 * measures time in seconds: a turn is compared with what it takes to take the holds. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/objects/object_table.h"
#include "daemon/peers/holds_impl.h"
#include "tests/support/check.h"

enum { N = 100000 };

static uv_loop_t loop;
static struct deadlines deadlines;
static struct accounts accounts;
static struct regions regions;
static struct slabs slabs;
static struct object_table table;
static struct holds holds;
static struct peer peer;
static struct account *account;
static struct object *object;
static uint64_t taken_ns; /* for N holds */

static void setup(void)
{
    const struct owner me = {.uid = 1000};
    struct object_put put = {.transport = ""};

    cr_assert_eq(uv_loop_init(&loop), 0);
    deadlines_init(&deadlines, &loop);
    accounts_init(&accounts);
    slabs.regions = &regions;
    table = (struct object_table){.accounts = &accounts, .slabs = &slabs, .deadlines = &deadlines};
    list_init(&table.forced);
    account = account_get(&accounts, &me);
    put.account = account;
    put.layout = layout_create(0, 0);
    cr_assert_eq(object_table_adopt(&table, &put, &object, NULL), RDT_OK);
    holds_init(&holds, &deadlines, NULL, 1000000000);
    memset(&peer, 0, sizeof peer);
    memset(peer.boot_id, 1, sizeof peer.boot_id);
}

static void teardown(void)
{
    holds_clear(&holds);
    object_forced_end(&table);
    cr_assert_eq(object->holds, 1u, "%u holds are left", object->holds - 1);
    cr_assert_eq(account->used[USAGE_HOLDS], 0u);
    object_drop(object);
    account_unref(account);
    accounts_fini(&accounts);
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(holds, .init = setup, .fini = teardown, .timeout = 60);

static void take(uint64_t first, uint64_t n)
{
    uint64_t began_ns = cpu_ns();

    for (uint64_t i = first; i < first + n; i++)
        cr_assert_eq(holds_take(&holds, &peer, i, account, object, false, NULL), RDT_OK);
    taken_ns = cpu_ns() - began_ns;
}

static void say(const Rdt__Pb__Holds *message)
{
    cr_assert_eq(holds_on_message(&holds, &peer, message, NULL), RDT_OK);
}

static void list(uint64_t *numbers, size_t n, bool first, bool last)
{
    Rdt__Pb__Holds message = RDT__PB__HOLDS__INIT;

    message.current = numbers;
    message.n_current = n;
    message.first = first;
    message.last = last;
    say(&message);
}

static unsigned n_held(void)
{
    return object_n_holders(object, HOLDER_NODE);
}

static void turn_until(unsigned n)
{
    while (n_held() > n)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    for (unsigned i = 0; i < 10; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(n_held(), n, "%u", n_held());
}

Test(holds, end_of_a_list_walks_none_of_them)
{
    uint64_t began_ns;

    take(1, N);
    list(NULL, 0, true, false);
    list((uint64_t[]){7, 8}, 2, false, false);
    take(N + 1, 1); /* during the list */
    take(N + 2, N);
    began_ns = cpu_ns();
    list(NULL, 0, false, true);
    cr_assert_lt(cpu_ns() - began_ns, taken_ns / 20, "the end of the list was compared with all holds in one turn");
    turn_until(N + 3);
    list(NULL, 0, true, false);
    list((uint64_t[]){8}, 1, false, false); /* and the link breaks; the next list begins again */
    list((uint64_t[]){7, N + 1}, 2, true, true);
    turn_until(2);
}

Test(holds, dropped_ones_end_in_slices)
{
    static uint64_t numbers[LIST_HOLDS];
    Rdt__Pb__Holds message = RDT__PB__HOLDS__INIT;

    take(0, LIST_HOLDS);
    for (unsigned i = 0; i < LIST_HOLDS; i++)
        numbers[i] = i;
    message.dropped = numbers;
    message.n_dropped = LIST_HOLDS - 1;
    say(&message);
    cr_assert_gt(n_held(), 1u, "all were dropped in one turn");
    turn_until(1);
}

/* As holds_restore leaves them: of the node's present daemon, or of an earlier one. */
static struct holds_node *restored(uint64_t first, uint64_t n, uint8_t boot)
{
    struct holds_node *node = holds_awaited(&holds, peer.uuid);
    struct peer earlier = {.holds = node ? node : holds_node_create(&holds, peer.uuid)};

    node = earlier.holds;
    node->peer = &earlier;
    memset(earlier.boot_id, boot, sizeof earlier.boot_id);
    for (uint64_t i = first; i < first + n; i++)
        cr_assert_eq(holds_take(&holds, &earlier, i, account, object, false, NULL), RDT_OK);
    node->peer = NULL;
    return node;
}

Test(holds, of_a_node_that_comes_back_are_sorted_in_slices)
{
    uint64_t began_ns = cpu_ns(), restored_ns;
    struct holds_node *node;

    (void)restored(1, N / 2, 1);
    node = restored(N, N / 2, 9);
    restored_ns = cpu_ns() - began_ns;
    began_ns = cpu_ns();
    holds_peer_up(&holds, &peer, false, true);
    cr_assert_lt(cpu_ns() - began_ns, restored_ns / 20, "all were sorted in one turn");
    cr_assert(peer.holds == node);
    take(N, 2);                                        /* numbers of the earlier daemon */
    list((uint64_t[]){5, 6, N, N + 1}, 4, true, true); /* before all are sorted */
    turn_until(4 + N / 2);                             /* those of the earlier daemon linger */
    say(&(Rdt__Pb__Holds){PROTOBUF_C_MESSAGE_INIT(&rdt__pb__holds__descriptor), .settled = true});
    turn_until(4);
}

static bool drop(void *arg, struct object *forced, uint64_t until_ns)
{
    (void)arg;
    return holds_object_freed(forced, until_ns);
}

Test(holds, of_an_object_that_is_freed_by_force_end_in_slices)
{
    table.drop_holds = drop;
    take(1, N);
    object_free(object, true, OBJECT_END_FREED);
    cr_assert_gt(n_held(), N / 2, "most were dropped in one turn");
    for (unsigned i = 0; i < 100; i++)
        (void)uv_run(&loop, UV_RUN_NOWAIT); /* the daemon may end meanwhile */
}
