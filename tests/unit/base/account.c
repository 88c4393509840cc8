/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/account: each owner has one account, which exists as long as anything refers to it. */
#include <criterion/criterion.h>

#include <string.h>

#include "daemon/base/account.h"

TestSuite(account, .timeout = 60);

Test(account, one_for_each_owner_until_last_leaves)
{
    const struct owner me = {.uid = 1000}, guest = {.uid = 1000, .tenant = "guest"}, other = {.uid = 1001};
    struct accounts accounts;

    accounts_init(&accounts);
    struct account *a = account_get(&accounts, &me);
    struct account *b = account_get(&accounts, &guest);
    struct account *c = account_get(&accounts, &other);
    cr_assert(a && b && c && a != b && b != c && a != c);
    cr_assert(owner_equal(&b->owner, &guest));
    cr_assert_eq(account_get(&accounts, &me), a);
    a->used[USAGE_OBJECTS] = 7;
    account_unref(a);
    cr_assert_eq(map_count(&accounts.by_owner), 3u);
    cr_assert_eq(account_ref(a)->used[USAGE_OBJECTS], 7u, "it is the same as long as it lasts");
    account_unref(a);
    account_unref(a);
    cr_assert_eq(map_count(&accounts.by_owner), 2u);
    a = account_get(&accounts, &me);
    cr_assert_eq(a->used[USAGE_OBJECTS], 0u);
    account_unref(a);
    account_unref(b);
    account_unref(c);
    account_unref(NULL);
    cr_assert_eq(map_count(&accounts.by_owner), 0u);
    accounts_fini(&accounts);
}

/* ---- limits ---- */

static struct accounts accounts;
static struct account *first, *second, *stranger;

static void open_accounts(void)
{
    const struct owner me = {.uid = 1000}, you = {.uid = 7, .tenant = "blue"};

    accounts_init(&accounts);
    accounts.limits.client[USAGE_REGIONS] = 3;
    accounts.limits.owner[USAGE_REGIONS] = 5;
    accounts.limits.node[USAGE_REGIONS] = 7;
    first = account_get_client(&accounts, &me, 11);
    second = account_get_client(&accounts, &me, 12);
    stranger = account_get_client(&accounts, &you, 13);
}

static void close_accounts(void)
{
    cr_assert_eq(accounts.node.used[USAGE_REGIONS], 0u, "something was not given back");
    cr_assert_eq(accounts.n_waiting, 0u);
    account_unref(first);
    account_unref(second);
    account_unref(stranger);
    cr_assert_eq(map_count(&accounts.by_owner), 0u);
    accounts_fini(&accounts);
}

TestSuite(account_limits, .init = open_accounts, .fini = close_accounts, .timeout = 60);

static void take(struct account *account, uint64_t n)
{
    cr_assert_eq(account_take(account, USAGE_REGIONS, n, NULL), RDT_OK);
}

static void refused(struct account *account, uint64_t n, const char *text)
{
    uint64_t before = accounts.node.used[USAGE_REGIONS];
    struct rdt_error err = {0};

    cr_assert_eq(account_take(account, USAGE_REGIONS, n, &err), RDT_LIMIT);
    cr_expect_not_null(strstr(err.msg, text), "\"%s\" does not say \"%s\"", err.msg, text);
    cr_assert_eq(accounts.node.used[USAGE_REGIONS], before, "a refusal charges nothing");
}

Test(account_limits, each_level_says_which_it_is)
{
    take(first, 3);
    refused(first, 1, "client 11 has 3 regions of at most 3, and 1 more is wanted: release some, or raise client_max_regions");
    refused(second, 3, "uid 1000 has 3 regions of at most 5, and 3 more are wanted: release some, or raise owner_max_regions");
    take(second, 2);
    take(stranger, 2);
    refused(stranger, 1, "this daemon has 7 regions of at most 7");
    account_give(first, USAGE_REGIONS, 3);
    take(stranger, 1);
    refused(stranger, UINT64_MAX, "client 13");
    account_give(second, USAGE_REGIONS, 2);
    account_give(stranger, USAGE_REGIONS, 3);
}

Test(account_limits, several_at_once_are_all_or_nothing)
{
    uint64_t want[USAGE_COUNT] = {[USAGE_OBJECTS] = 2, [USAGE_REGIONS] = 3};

    cr_assert_eq(account_take_all(first, want, NULL), RDT_OK);
    cr_assert_eq(account_take_all(second, want, NULL), RDT_LIMIT);
    cr_assert_eq(second->used[USAGE_OBJECTS], 0u);
    account_give_all(first, want);
    cr_assert_eq(accounts.node.used[USAGE_OBJECTS], 0u);
}

Test(account_limits, memory_of_an_ended_client_stays_counted)
{
    const struct owner me = {.uid = 1000};
    struct account *gone = account_get_client(&accounts, &me, 14), *memory = account_ref(gone);

    take(gone, 3);
    account_unref(gone);
    refused(first, 3, "owner_max_regions");
    account_give(memory, USAGE_REGIONS, 3);
    account_unref(memory);
}

struct waiter {
    struct account_wait wait;
    struct account *account;
    uint64_t n;
    unsigned called;
};

static void on_room(struct account_wait *wait)
{
    ((struct waiter *)wait)->called++;
}

static bool attempt(struct waiter *waiter)
{
    waiter->wait.on_room = on_room;
    account_request_begin(&accounts, &waiter->wait);
    enum rdt_status status = account_take(waiter->account, USAGE_REGIONS, waiter->n, NULL);
    account_request_end(&accounts, status == RDT_OK ? NULL : &waiter->wait);
    if (status == RDT_OK)
        account_wait_end(&accounts, &waiter->wait);
    return status == RDT_OK;
}

Test(account_limits, owners_get_room_in_turn)
{
    struct waiter a = {.account = first, .n = 2}, b = {.account = first, .n = 1}, c = {.account = second, .n = 1};

    take(first, 2);
    cr_assert(!attempt(&a) && !attempt(&b));
    refused(first, 1, "raise client_max_regions, which is 3");
    cr_assert(attempt(&c), "another client has room");
    account_give(second, USAGE_REGIONS, 1);
    cr_assert(a.called == 0 && b.called == 0);
    account_give(first, USAGE_REGIONS, 1);
    cr_assert(a.called == 1 && b.called == 0);
    account_give(first, USAGE_REGIONS, 1);
    cr_assert_eq(a.called, 1u, "once until it has tried");
    cr_assert(attempt(&a));
    cr_assert_eq(b.called, 1u, "the next one's turn");
    cr_assert(attempt(&b));
    account_give(first, USAGE_REGIONS, 3);
}

Test(account_limits, waiter_that_leaves_makes_way)
{
    struct waiter a = {.account = first, .n = 3}, b = {.account = first, .n = 1};

    take(first, 2);
    cr_assert(!attempt(&a) && !attempt(&b));
    account_wait_end(&accounts, &a.wait);
    cr_assert(b.called == 1 && attempt(&b));
    account_give(first, USAGE_REGIONS, 3);
}

/* A request may be answered, and be no more, before all that it began has been charged. */
Test(account_limits, answered_waiter_does_not_try_again)
{
    struct waiter a = {.account = first, .n = 1}, b = {.account = first};

    take(first, 3);
    cr_assert(!attempt(&a));
    account_give(first, USAGE_REGIONS, 1);
    account_request_begin(&accounts, &b.wait);
    account_wait_end(&accounts, &b.wait);
    b.wait.at = first; /* what the next request left in that memory */
    b.wait.what = USAGE_REGIONS;
    refused(first, 1, "already wait for regions");
    account_request_end(&accounts, NULL);
    cr_assert(attempt(&a));
    account_give(first, USAGE_REGIONS, 3);
}

Test(account_limits, failed_request_calls_nobody)
{
    struct waiter a = {.account = first, .n = 1};
    uint64_t want[USAGE_COUNT] = {[USAGE_REGIONS] = 1, [USAGE_OBJECTS] = 1};

    take(first, 2);
    cr_assert_eq(account_take_all(first, want, NULL), RDT_OK);
    cr_assert(!attempt(&a));
    account_undo(first, want);
    cr_assert(a.called == 0 && accounts.node.used[USAGE_OBJECTS] == 0);
    account_give(first, USAGE_REGIONS, 2);
    cr_assert(a.called == 1 && attempt(&a));
    account_give(first, USAGE_REGIONS, 1);
}

/* Who waits for the client's limit may meet the owner's next. */
Test(account_limits, one_queue_after_another)
{
    struct waiter a = {.account = first, .n = 1};

    take(first, 3);
    cr_assert(!attempt(&a));
    take(second, 2);
    account_give(first, USAGE_REGIONS, 1);
    take(second, 1);
    cr_assert(a.called == 1 && !attempt(&a));
    account_give(second, USAGE_REGIONS, 1);
    cr_assert(a.called == 2 && attempt(&a));
    account_give(first, USAGE_REGIONS, 3);
    account_give(second, USAGE_REGIONS, 2);
}

Test(account_limits, request_that_can_never_fit_does_not_wait)
{
    account_request_begin(&accounts, NULL);
    refused(first, 4, "client_max_regions");
    cr_assert_null(accounts.full);
    refused(first, 4, "client_max_regions");
    account_request_end(&accounts, NULL);
}

/* The device's memory is nobody's limit, and its room is everybody's. */
static void wait_for_node(struct waiter *waiter)
{
    account_request_begin(&accounts, &waiter->wait);
    account_node_is_full(waiter->account, USAGE_BYTES, NULL);
    account_request_end(&accounts, &waiter->wait);
}

Test(account_limits, room_of_the_node_calls_every_owner_in_turn)
{
    struct waiter a = {.account = first}, b = {.account = stranger}, a2 = {.account = second};

    a.wait.on_room = a2.wait.on_room = b.wait.on_room = on_room;
    wait_for_node(&a);
    wait_for_node(&a2);
    wait_for_node(&b);
    account_room_freed(&accounts, USAGE_BYTES, NULL);
    cr_assert(a.called == 1 && b.called == 0, "one at a time");
    account_room_freed(&accounts, USAGE_BYTES, NULL);
    cr_assert(a.called == 1 && b.called == 0, "it has not tried yet");
    wait_for_node(&a); /* there was not enough for it */
    cr_assert(a.called == 1 && b.called == 1);
    wait_for_node(&b);
    account_room_freed(&accounts, USAGE_BYTES, NULL);
    cr_assert(a.called == 2 && b.called == 1);
    account_wait_end(&accounts, &a.wait); /* there was */
    cr_assert(a2.called == 0 && b.called == 2, "the other owner comes before this one's next");
    account_wait_end(&accounts, &b.wait);
    cr_assert_eq(a2.called, 1);
    account_wait_end(&accounts, &a2.wait);
}

/* Who leaves when it was called lets the next one try. */
Test(account_limits, room_is_not_lost_when_the_called_waiter_leaves)
{
    struct waiter a = {.account = first}, b = {.account = stranger};

    a.wait.on_room = b.wait.on_room = on_room;
    wait_for_node(&a);
    wait_for_node(&b);
    account_room_freed(&accounts, USAGE_BYTES, NULL);
    account_wait_end(&accounts, &a.wait);
    cr_assert(a.called == 1 && b.called == 1);
    account_wait_end(&accounts, &b.wait);
}

/* An owner may have all there is by default: then it is the daemon's limit that is to be raised. */
Test(account_limits, owners_limit_that_is_the_daemons_is_called_that)
{
    struct rdt_error err = {0};

    accounts.limits.owner[USAGE_FDS] = accounts.limits.node[USAGE_FDS] = 2;
    cr_assert_eq(account_take(first, USAGE_FDS, 2, NULL), RDT_OK);
    account_request_begin(&accounts, NULL);
    cr_assert_eq(account_take(second, USAGE_FDS, 1, &err), RDT_LIMIT);
    cr_assert(strstr(err.msg, "LimitNOFILE") && !strstr(err.msg, "owner_max_fds"), "%s", err.msg);
    cr_assert_eq(accounts.full, second->parent, "there it can wait");
    cr_assert_eq(account_take(stranger, USAGE_FDS, 1, &err), RDT_LIMIT);
    cr_assert(strstr(err.msg, "LimitNOFILE"), "%s", err.msg);
    account_give(first, USAGE_FDS, 2);
}

/* One owner, or a few, take at most seven eighths of what the node has; an owner with little gets the rest. */
Test(account_limits, last_eighth_of_the_node_is_for_owners_that_have_few)
{
    struct rdt_error err = {0};

    accounts.limits.node[USAGE_OBJECTS] = 640;
    cr_assert_eq(account_take(first, USAGE_OBJECTS, 500, NULL), RDT_OK);
    cr_assert_eq(account_take(second, USAGE_OBJECTS, 60, NULL), RDT_OK);
    cr_assert_eq(account_take(first, USAGE_OBJECTS, 1, &err), RDT_LIMIT);
    cr_assert(strstr(err.msg, "the last 80 are for users that have few") && strstr(err.msg, "raise max_objects"), "%s",
              err.msg);
    cr_assert_eq(account_take(stranger, USAGE_OBJECTS, 10, NULL), RDT_OK, "a 64th");
    cr_assert_eq(account_take(stranger, USAGE_OBJECTS, 1, NULL), RDT_LIMIT);
    account_give(first, USAGE_OBJECTS, 500);
    cr_assert_eq(account_take(stranger, USAGE_OBJECTS, 100, NULL), RDT_OK);
    account_give(stranger, USAGE_OBJECTS, 110);
    account_give(second, USAGE_OBJECTS, 60);
}

/* ---- a person with many user ids ---- */

enum { UIDS = 20 };

static struct account *ids[UIDS], *alone; /* subordinate ids of uid 1000, as which `first` is here; somebody else */

static uint32_t person_of(void *arg, uint32_t uid)
{
    return uid >= 100000 && uid < 165536 ? *(uint32_t *)arg : uid;
}

static void open_people(void)
{
    static uint32_t person = 1000;

    accounts_init(&accounts);
    accounts.person_of = person_of;
    accounts.person_arg = &person;
    for (unsigned i = 0; i < UIDS; i++)
        ids[i] = account_get_client(&accounts, &(struct owner){.uid = 100000 + i}, 100 + i);
    first = account_get_client(&accounts, &(struct owner){.uid = 1000}, 11);
    alone = account_get_client(&accounts, &(struct owner){.uid = 1001}, 12);
    stranger = account_get_client(&accounts, &(struct owner){.uid = 100000, .tenant = "blue"}, 13);
}

static void close_people(void)
{
    for (unsigned i = 0; i < UIDS; i++)
        account_unref(ids[i]);
    account_unref(first);
    account_unref(alone);
    account_unref(stranger);
    cr_assert(map_count(&accounts.by_owner) == 0 && map_count(&accounts.by_person) == 0);
    accounts_fini(&accounts);
}

TestSuite(account_person, .init = open_people, .fini = close_people, .timeout = 60);

Test(account_person, all_user_ids_of_a_person_of_one_tenant_are_one)
{
    for (unsigned i = 0; i < UIDS; i++)
        cr_assert(account_person(ids[i]) == account_person(first) && account_owner(ids[i]) != account_owner(first));
    cr_assert_eq(account_person(account_person(first)), account_person(first));
    cr_assert_eq(account_person(first)->owner.uid, 1000);
    cr_assert_neq(account_person(alone), account_person(first));
    cr_assert_neq(account_person(stranger), account_person(first));
    cr_assert_eq(account_person(&accounts.node), &accounts.node);
}

Test(account_person, many_user_ids_do_not_get_the_last_eighth)
{
    struct rdt_error err = {0};

    accounts.limits.node[USAGE_OBJECTS] = 640;
    for (unsigned i = 0; i < UIDS; i++)
        cr_assert_eq(account_take(ids[i], USAGE_OBJECTS, 28, NULL), RDT_OK);
    cr_assert_eq(account_take(first, USAGE_OBJECTS, 1, NULL), RDT_LIMIT, "uid 1000 is the same person");
    cr_assert_eq(account_take(ids[0], USAGE_OBJECTS, 1, &err), RDT_LIMIT);
    cr_assert(strstr(err.msg, "for users that have few (uid 100000 counts as one user with uid 1000, by /etc/subuid)"), "%s",
              err.msg);
    cr_assert_eq(account_take(alone, USAGE_OBJECTS, 10, NULL), RDT_OK, "somebody else has few");
    for (unsigned i = 0; i < UIDS; i++)
        account_give(ids[i], USAGE_OBJECTS, 28);
    account_give(alone, USAGE_OBJECTS, 10);
    cr_assert_eq(account_person(first)->used[USAGE_OBJECTS], 0u);
}

Test(account_person, limits_of_owners_are_for_each_user_id)
{
    accounts.limits.owner[USAGE_REGIONS] = 2;
    for (unsigned i = 0; i < UIDS; i++) {
        take(ids[i], 2);
        refused(ids[i], 1, "owner_max_regions");
    }
    for (unsigned i = 0; i < UIDS; i++)
        account_give(ids[i], USAGE_REGIONS, 2);
}

/* Room of the node goes to the persons in turn, and within a person to its user ids. */
Test(account_person, many_user_ids_have_one_turn)
{
    struct waiter waiting[UIDS], b = {.account = alone, .wait.on_room = on_room};

    for (unsigned i = 0; i < UIDS; i++) {
        waiting[i] = (struct waiter){.account = ids[i], .wait.on_room = on_room};
        wait_for_node(&waiting[i]);
    }
    wait_for_node(&b);
    account_room_freed(&accounts, USAGE_BYTES, NULL);
    cr_assert_eq(waiting[0].called, 1u);
    wait_for_node(&waiting[0]); /* there was not enough for it */
    cr_assert(waiting[1].called == 1 && b.called == 0, "the others of this person are next");
    account_wait_end(&accounts, &waiting[1].wait); /* there was */
    cr_assert(b.called == 1 && waiting[2].called == 0, "the other person comes before this one's next");
    account_wait_end(&accounts, &b.wait);
    cr_assert(waiting[0].called == 2 && waiting[2].called == 0);
    for (unsigned i = UIDS; i-- > 0;)
        if (i != 1)
            account_wait_end(&accounts, &waiting[i].wait);
    cr_assert(accounts.n_waiting == 0 && list_empty(&accounts.in_turn));
}

/* Things without a limit of their own for the node are bounded by the heap that they need, whatever their number of owners. */
Test(account_limits, heap_that_things_need_is_their_owners_and_the_nodes)
{
    struct rdt_error err = {0};

    cr_assert_eq(account_take(first, USAGE_WAITERS, 1, NULL), RDT_OK);
    uint64_t each = first->used[USAGE_HEAP];
    cr_assert_gt(each, 0u);
    accounts.limits.node[USAGE_HEAP] = 640 * each;
    cr_assert_eq(account_take(first, USAGE_WAITERS, 499, NULL), RDT_OK);
    cr_assert_eq(account_take(second, USAGE_WAITERS, 61, &err), RDT_LIMIT);
    cr_assert(strstr(err.msg, "are for users that have few") && strstr(err.msg, "MemoryMax"), "%s", err.msg);
    cr_assert_eq(second->used[USAGE_WAITERS], 0u, "nothing is charged");
    cr_assert_eq(account_take(second, USAGE_WAITERS, 60, NULL), RDT_OK);
    cr_assert_eq(account_take(stranger, USAGE_WAITERS, 10, NULL), RDT_OK, "who has few gets the last eighth");
    account_give(first, USAGE_WAITERS, 500);
    account_give(second, USAGE_WAITERS, 60);
    account_give(stranger, USAGE_WAITERS, 10);
    cr_assert_eq(accounts.node.used[USAGE_HEAP], 0u);
}

static enum rdt_status kernel_has_100(void *arg, uint64_t bytes, struct rdt_error *err)
{
    ++*(unsigned *)arg;
    return bytes <= 100 ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "the group is full");
}

Test(account_limits, heap_that_the_kernel_does_not_have_is_refused)
{
    struct rdt_error err = {0};
    unsigned n_asked = 0;

    accounts.heap_fits = kernel_has_100;
    accounts.heap_arg = &n_asked;
    cr_assert_eq(account_take(first, USAGE_HEAP, 100, NULL), RDT_OK);
    cr_assert_eq(account_take(first, USAGE_HEAP, 101, &err), RDT_NO_MEMORY);
    cr_assert_eq(account_take(first, USAGE_WAITERS, 1, &err), RDT_NO_MEMORY, "its bookkeeping is heap, too");
    cr_assert_str_eq(err.msg, "the group is full");
    cr_assert_eq(n_asked, 3u);
    cr_assert(first->used[USAGE_HEAP] == 100 && first->used[USAGE_WAITERS] == 0);
    account_give(first, USAGE_HEAP, 100);
}

/* Who cannot try when called keeps its place, and nobody waiting. */
Test(account_limits, waiter_that_cannot_try_yet_is_passed_over)
{
    struct waiter a = {.account = first}, a2 = {.account = second}, b = {.account = stranger};

    a.wait.on_room = a2.wait.on_room = b.wait.on_room = on_room;
    wait_for_node(&a);
    wait_for_node(&a2);
    wait_for_node(&b);
    account_wait_postpone(&a.wait);
    cr_assert(a2.called == 0 && b.called == 0, "nobody was called");
    account_room_freed(&accounts, USAGE_BYTES, NULL);
    account_wait_postpone(&a.wait);
    account_wait_postpone(&a.wait);
    cr_assert(a.called == 1 && a2.called == 1 && b.called == 0);
    account_wait_postpone(&a2.wait);
    cr_assert_eq(b.called, 1);
    account_wait_end(&accounts, &b.wait);
    cr_assert(a.called == 1 && a2.called == 1, "they try when they can");
    wait_for_node(&a); /* now, and there is nothing left */
    account_room_freed(&accounts, USAGE_BYTES, NULL);
    cr_assert_eq(a.called, 2);
    account_wait_end(&accounts, &a.wait);
    account_wait_end(&accounts, &a2.wait);
    cr_assert(accounts.n_waiting == 0 && a2.called == 1);
}
