/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of producers, readers and objects. After a thousand clients have ended nothing of them is left. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

static struct test_node node;
static rdt *conn;

static uint32_t holds_of(const struct rdt_ref *ref)
{
    struct rdt_stat stat = stat_of(conn, ref);
    return stat.holds;
}

/* ---- producers ---- */

static int produce(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "producer");
    char *addr = alloc_memory(client, MIB);

    fill_pattern(addr, MIB, 1);
    struct rdt_ref ref = put_one(client, &VECTOR(RDT_U8, MIB, addr), "w");
    actor_send(self, &ref, sizeof ref);
    actor_await(self); /* for ever */
    return 0;
}

static int await_end(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "waiter");
    struct rdt_ref ref;

    actor_recv(self, &ref, sizeof ref);
    actor_step(self);
    must_ok(rdt_wait_freed(client, &ref, LONG, &err));
    must_be(RDT_OWNER_DIED, try_fetch(client, &ref, RDT_FETCH_AUTO, LONG, &(rdt_object *){NULL}, &err));
    rdt_close(client);
    return 0;
}

Test(lifetime, killed_producer_is_told_to_those_who_come_later)
{
    struct actor producer, waiter;
    struct rdt_ref ref;

    node_start(&node, NULL);
    actor_start(&producer, produce, &node);
    actor_start(&waiter, await_end, &node);
    conn = node_client(&node, "reader");
    actor_recv(&producer, &ref, sizeof ref);
    actor_send(&waiter, &ref, sizeof ref);
    actor_await(&waiter);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_SHARE);
    rdt_release(object);
    actor_kill(&producer, SIGKILL);
    actor_wait(&waiter);
    must_be(RDT_OWNER_DIED, rdt_wait_put(conn, &ref, LONG, &err));
    must_be(RDT_OWNER_DIED, try_fetch(conn, &ref, RDT_FETCH_COPY, LONG, &object, &err));
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    rdt_close(conn);
    node_end(&node, NULL);
}

Test(lifetime, readers_keep_what_a_killed_producer_left)
{
    struct actor producer;
    struct rdt_ref ref;
    rdt_object *objects[2];

    node_start(&node, NULL);
    actor_start(&producer, produce, &node);
    conn = node_client(&node, "reader");
    actor_recv(&producer, &ref, sizeof ref);
    objects[0] = fetch_one(conn, &ref, RDT_FETCH_SHARE);
    actor_kill(&producer, SIGKILL);
    wait_until(20 * SEC, holds_of(&ref) == 1);
    cr_assert(holds_pattern(tensor_of(objects[0], 0).data, MIB, 1));
    rdt *other = node_client(&node, "other"); /* a hold keeps it for others too */
    objects[1] = fetch_one(other, &ref, RDT_FETCH_AUTO);
    cr_assert(holds_pattern(tensor_of(objects[1], 0).data, MIB, 1));
    rdt_release(objects[0]);
    cr_assert(holds_pattern(tensor_of(objects[1], 0).data, MIB, 1));
    rdt_release(objects[1]);
    must_ok(rdt_ping(other, LONG, &err));
    must_be(RDT_OWNER_DIED, try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &objects[0], &err));
    rdt_close(other);
    rdt_close(conn);
    node_end(&node, NULL);
}

/* The name is free at once for a successor, and those who wait for the name are not told of the death. */
Test(lifetime, successor_takes_the_name_of_the_dead)
{
    struct rdt_ref named = ref_named("w"), second;
    struct actor producer;

    node_start(&node, NULL);
    actor_start(&producer, produce, &node);
    conn = node_client(&node, "reader");
    actor_recv(&producer, &second, sizeof second);
    actor_kill(&producer, SIGKILL);
    wait_until(20 * SEC, rdt_stat(conn, &named, &(struct rdt_stat){0}, NULL) == RDT_NOT_FOUND);
    rdt_request *request = start_one(conn, &named, LONG);
    actor_start(&producer, produce, &node);
    actor_recv(&producer, &second, sizeof second);
    must_ok(rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    actor_kill(&producer, SIGKILL);
    rdt_close(conn);
    node_end(&node, NULL);
}

/* A forked child keeps the socket open, but not the lease. */
static int produce_and_fork(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "producer");
    struct rdt_ref ref = put_one(client, &VECTOR(RDT_U8, MIB, alloc_memory(client, MIB)), "w");
    pid_t child = fork();

    if (child == 0) {
        char byte;
        (void)prctl(PR_SET_PDEATHSIG, 0);
        while (read(self->channel, &byte, 1) > 0) /* until the test closes its end */
            continue;
        _exit(0);
    }
    must(child > 0);
    actor_send(self, &ref, sizeof ref);
    for (;;)
        pause();
}

Test(lifetime, forked_child_does_not_keep_its_parents_lease)
{
    struct actor producer;
    struct rdt_ref ref;

    node_start(&node, NULL);
    actor_start(&producer, produce_and_fork, &node);
    conn = node_client(&node, "reader");
    actor_recv(&producer, &ref, sizeof ref);
    cr_assert_eq(holds_of(&ref), 1);
    actor_signal(&producer, SIGKILL); /* the channel stays open: so does the child, with the socket */
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_be(RDT_OWNER_DIED, rdt_wait_put(conn, &ref, LONG, &err));
    cr_assert_eq(actor_result(&producer), 128 + SIGKILL);
    rdt_close(conn);
    node_end(&node, NULL);
}

/* ---- readers ---- */

static int hold(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "reader");
    struct rdt_ref ref;
    rdt_object *objects[3];

    actor_recv(self, &ref, sizeof ref);
    for (unsigned i = 0; i < 3; i++)
        objects[i] = fetch_one(client, &ref, (enum rdt_fetch_mode)i);
    (void)objects;
    actor_step(self);
    actor_await(self);
    for (unsigned i = 0; i < 3; i++)
        rdt_release(objects[i]);
    must_ok(rdt_ping(client, LONG, &err));
    actor_step(self);
    actor_await(self);
    rdt_close(client);
    return 0;
}

Test(lifetime, killed_reader_drops_its_holds)
{
    struct actor reader;

    node_start(&node, NULL);
    actor_start(&reader, hold, &node);
    conn = node_client(&node, "producer");
    char *addr = alloc_memory(conn, MIB);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, addr), "w");
    actor_send(&reader, &ref, sizeof ref);
    actor_await(&reader);
    cr_assert_eq(holds_of(&ref), 3); /* the copy holds memory of its own */
    must_ok(rdt_free(conn, &ref, false, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed(conn, &ref, 50 * MSEC, &err));
    actor_kill(&reader, SIGKILL);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_ok(rdt_dealloc(conn, addr, &err));
    rdt_close(conn);
    node_end(&node, NULL);
}

Test(lifetime, killed_waiter_is_forgotten)
{
    struct actor reader;
    struct rdt_stat stat;
    struct rdt_ref ref = ref_named("w");

    node_start(&node, NULL);
    actor_start(&reader, await_end, &node); /* waits for the end of an object */
    conn = node_client(&node, "producer");
    ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "w");
    actor_send(&reader, &ref, sizeof ref);
    actor_await(&reader);
    wait_until(20 * SEC, rdt_stat(conn, &ref, &stat, NULL) == RDT_OK && stat.waiters == 1);
    actor_kill(&reader, SIGKILL);
    wait_until(20 * SEC, rdt_stat(conn, &ref, &stat, NULL) == RDT_OK && stat.waiters == 0);
    rdt_close(conn);
    node_end(&node, NULL);
}

/* ---- freeing ---- */

Test(lifetime, wait_freed_by_ref_and_by_range)
{
    struct actor reader;

    node_start(&node, NULL);
    actor_start(&reader, hold, &node);
    conn = node_client(&node, "producer");
    char *addr = alloc_memory(conn, MIB);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 4096, addr + 8192), "w");
    struct rdt_ref other = put_one(conn, &VECTOR(RDT_U8, 4096, addr + 65536), "other");
    actor_send(&reader, &ref, sizeof ref);
    actor_await(&reader);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(conn, &ref, 30 * MSEC, &err));
    must_ok(rdt_wait_freed_range(conn, addr, 8192, 0, &err));
    must_ok(rdt_wait_freed_range(conn, addr + 8192 + 4096, 4096, 0, &err));
    must_ok(rdt_wait_freed_range(conn, addr, 0, 0, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed_range(conn, addr + 8192 + 4095, 1, 30 * MSEC, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed_range(conn, addr, MIB, 30 * MSEC, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed_range(conn, addr, 8193, 0, &err));
    must_refuse(RDT_INVALID, "not within", rdt_wait_freed_range(conn, addr, MIB + 4097, 0, &err));
    must_refuse(RDT_INVALID, "not within", rdt_wait_freed_range(conn, &node, 1, 0, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed(conn, &ref, 30 * MSEC, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed_range(conn, addr + 8192, 4096, 30 * MSEC, &err));
    actor_step(&reader);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_ok(rdt_wait_freed_range(conn, addr + 8192, 4096, LONG, &err));
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err)); /* again: it is gone */
    must_be(RDT_TIMED_OUT, rdt_wait_freed_range(conn, addr, MIB, 30 * MSEC, &err));
    must_ok(rdt_free(conn, &other, false, &err));
    must_ok(rdt_wait_freed_range(conn, addr, MIB, LONG, &err));
    actor_await(&reader);
    actor_step(&reader);
    actor_wait(&reader);
    rdt_close(conn);
    node_end(&node, NULL);
}

Test(lifetime, free_leaves_it_to_readers)
{
    struct actor reader;

    node_start(&node, NULL);
    actor_start(&reader, hold, &node);
    conn = node_client(&node, "producer");
    char *addr = alloc_memory(conn, MIB);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, addr), "w");
    actor_send(&reader, &ref, sizeof ref);
    actor_await(&reader);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_be(RDT_FREED, rdt_free(conn, &ref, false, &err)); /* the producer has dropped its hold already */
    cr_assert_eq(holds_of(&ref), 2);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO); /* a reader that holds it keeps it for all */
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, true, &err)); /* after a forced free nobody gets it any more */
    must_be(RDT_FREED, try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    must_be(RDT_FREED, rdt_wait_put(conn, &ref, LONG, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed(conn, &ref, 30 * MSEC, &err));
    cr_assert(is_filled_with(addr, MIB, 0));
    actor_step(&reader);
    actor_await(&reader);
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    must_be(RDT_FREED, rdt_free(conn, &ref, true, &err));
    actor_step(&reader);
    actor_wait(&reader);
    rdt_close(conn);
    node_end(&node, NULL);
}

static int free_anothers(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "other");
    struct rdt_ref ref;

    actor_recv(self, &ref, sizeof ref);
    must_refuse(RDT_DENIED, "only that client", rdt_free(client, &ref, false, &err));
    must_ok(rdt_free(client, &ref, true, &err));
    rdt_close(client);
    return 0;
}

Test(lifetime, same_user_may_free_by_force_only)
{
    struct actor other;

    node_start(&node, NULL);
    actor_start(&other, free_anothers, &node);
    conn = node_client(&node, "producer");
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "w");
    actor_send(&other, &ref, sizeof ref);
    actor_wait(&other);
    must_be(RDT_FREED, rdt_wait_put(conn, &ref, LONG, &err));
    must_be(RDT_NOT_FOUND, rdt_free(conn, &(struct rdt_ref){.any_owner = 1, .id_bytes = 4, .id = "none"}, false, &err));
    rdt_close(conn);
    node_end(&node, NULL);
}

Test(lifetime, old_ref_answers_freed_after_the_name_is_put_again)
{
    struct rdt_ref refs[3];
    rdt_object *object;

    node_start(&node, NULL);
    conn = node_client(&node, "producer");
    for (unsigned i = 0; i < 3; i++) {
        refs[i] = put_one(conn, &VECTOR(RDT_U8, 1, i == 0 ? "0" : i == 1 ? "1" : "2"), "w");
        if (i < 2)
            must_ok(rdt_free(conn, &refs[i], i == 1, &err));
    }
    for (unsigned i = 0; i < 2; i++) {
        must_be(RDT_FREED, try_fetch(conn, &refs[i], RDT_FETCH_AUTO, LONG, &object, &err));
        must_be(RDT_FREED, rdt_wait_put(conn, &refs[i], LONG, &err));
        must_ok(rdt_wait_freed(conn, &refs[i], LONG, &err));
        must_be(RDT_FREED, rdt_free(conn, &refs[i], false, &err));
    }
    refs[0] = ref_named("w");
    object = fetch_one(conn, &refs[0], RDT_FETCH_AUTO);
    cr_assert_eq(*(char *)tensor_of(object, 0).data, '2');
    cr_assert_eq(info_of(object).ref.generation, refs[2].generation);
    rdt_release(object);
    refs[2].generation += 1000; /* never was */
    must_be(RDT_NOT_FOUND, try_fetch(conn, &refs[2], RDT_FETCH_AUTO, LONG, &object, &err));
    rdt_close(conn);
    node_end(&node, NULL);
}

/* A forced free in the middle of copies: those that run end in one way or the other, nothing is left. */
Test(lifetime, forced_free_during_copies_drains)
{
    rdt_request *requests[8];

    node_start(&node, NULL);
    conn = node_client(&node, "producer");
    char *addr = alloc_memory(conn, 32 * MIB);
    memset(addr, 3, 32 * MIB);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 32 * MIB, addr), "w");
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = RDT_FETCH_COPY};
    for (unsigned i = 0; i < 8; i++)
        must_ok(rdt_fetch_start(conn, &ref, 1, &options, &requests[i], &err));
    must_ok(rdt_free(conn, &ref, true, &err));
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err));
    memset(addr, 4, 32 * MIB); /* it may be written again */
    for (unsigned i = 0; i < 8; i++) {
        rdt_object *object;
        enum rdt_status status = rdt_wait(conn, &requests[i], 1, 1, LONG, NULL, NULL, NULL);
        cr_assert(status == RDT_OK || status == RDT_FREED, "%s", rdt_status_name(status));
        if (status == RDT_OK) {
            must_ok(rdt_request_take_object(requests[i], &object, &err));
            cr_assert(is_filled_with(tensor_of(object, 0).data, 32 * MIB, 3), "the copy was written while it ran");
            rdt_release(object);
        }
        rdt_request_destroy(requests[i]);
    }
    rdt_close(conn);
    node_end(&node, NULL);
}

/* ---- over and over ---- */

struct cycle {
    unsigned number;
    struct rdt_ref ref;
};

/* Works until it is killed, in the middle of whatever it does then. */
static int live_dangerously(struct actor *self, void *arg)
{
    const struct cycle *cycle = arg;
    rdt *client = node_client(&node, "mortal");
    static char heap[200000];

    for (unsigned round = 0;; round++) {
        struct rdt_fetch_options options = RDT_INIT(options);
        struct rdt_ref refs[2] = {cycle->ref, cycle->ref}, never = ref_named("never");
        rdt_request *requests[3];
        void *addr = alloc_memory(client, round % 2 ? 4096 : 300000);
        if (round == cycle->number % 3)
            actor_step(self);
        refs[1] = put_one(client, &VECTOR(RDT_U8, 4096, addr), NULL);
        (void)put_one(client, &VECTOR(RDT_U8, sizeof heap, heap), NULL);
        for (unsigned i = 0; i < 2; i++) {
            options.mode = (enum rdt_fetch_mode)((round + i) % 3);
            must_ok(rdt_fetch_start(client, &refs[i], 1, &options, &requests[i], &err));
        }
        requests[2] = start_one(client, &never, 0);
        must_ok(rdt_wait(client, requests, 2, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    }
}

Test(lifetime, thousand_killed_clients_leave_nothing)
{
    const char *variant = getenv("RDT_VARIANT");
    bool release = !variant || strcmp(variant, "release") == 0;
    unsigned cycles = release ? 1000 : 150, warm = cycles / 5;
    struct node_status before, after;
    size_t rss = 0;

    node_start(&node, NULL);
    conn = node_client(&node, "producer");
    char *addr = alloc_memory(conn, MIB);
    struct cycle cycle = {.ref = put_one(conn, &VECTOR(RDT_U8, MIB, addr), "shared")};
    before = node_now(&node);
    for (; cycle.number < cycles; cycle.number++) {
        struct actor actor;
        actor_start(&actor, live_dangerously, &cycle);
        actor_await(&actor);
        actor_kill(&actor, SIGKILL);
        if (cycle.number == warm)
            rss = rss_of(node.pid);
    }
    wait_until(20 * SEC, (after = node_now(&node), after.clients == 1 && after.transfers_active == 0));
    wait_until(20 * SEC, (after = node_now(&node), after.objects == before.objects && after.regions == before.regions));
    wait_until(20 * SEC, node_now(&node).memory_bytes == before.memory_bytes); /* given back off the loop */
    wait_until(20 * SEC, holds_of(&cycle.ref) == 1);
    node_expect_fds(&node, 3); /* the producer's socket and pidfd, its memory */
    if (release)               /* sanitizers keep freed memory for a while */
        cr_assert_lt(rss_of(node.pid), rss + 8 * MIB, "%zu bytes after %u clients, %zu after %u", rss_of(node.pid), cycles, rss,
                     warm);
    rdt_close(conn);
    node_end(&node, NULL);
}
