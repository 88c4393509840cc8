/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the next version of a name. */
#include "tests/integration/calls/names.h"

TestSuite(names_wait, .timeout = 120);

/* ---- waiting ---- */

Test(names_wait, fetch_waits_for_the_next_version)
{
    struct rdt_ref none = name_ref("weights", 0), next = name_ref("weights", 1), ahead = name_ref("weights", 3);
    rdt_request *requests[3];
    rdt_object *object;

    begin(NULL);
    requests[0] = start_one(sampler, &none, LONG); /* nobody has published it yet */
    wait_until(20 * SEC, transfers_waiting() == 1);
    (void)publish_pattern(trainer, "weights", 1);
    must_ok(rdt_wait(sampler, requests, 1, 1, LONG, NULL, NULL, &err));
    requests[1] = start_one(sampler, &next, LONG);
    requests[2] = start_one(sampler, &ahead, LONG);
    wait_until(20 * SEC, waiters_of("weights") == 2);
    (void)publish_pattern(trainer, "weights", 2);
    must_ok(rdt_wait(sampler, requests, 2, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    cr_assert_eq(rdt_request_status(requests[2], NULL), RDT_AGAIN, "it looks further ahead");
    (void)publish_pattern(trainer, "weights", 3);
    cr_assert_eq(waiters_of("weights"), 1u);
    (void)publish_pattern(trainer, "weights", 4);
    must_ok(rdt_wait(sampler, requests, 3, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    for (unsigned i = 0; i < 3; i++) {
        static const uint64_t versions[] = {1, 2, 4};
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        cr_assert_eq(info_of(object).version, versions[i]);
        cr_assert(holds_pattern(tensor_of(object, 0).data, BYTES, (uint32_t)versions[i]));
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    unpublish(trainer, "weights");
    end();
}

static int wait_put(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "waiter");
    struct rdt_ref ref = name_ref("weights", *(uint64_t *)arg);

    actor_step(self);
    must_ok(rdt_wait_put(conn, &ref, LONG, &err));
    rdt_close(conn);
    return 0;
}

Test(names_wait, wait_put_waits_for_the_next_version)
{
    struct rdt_ref ref = name_ref("weights", 1);
    uint64_t after = 1;
    struct actor waiter;

    node_start(&node, NULL);
    actor_start(&waiter, wait_put, &after);
    trainer = node_client(&node, "trainer");
    sampler = NULL;
    (void)publish_pattern(trainer, "weights", 1);
    actor_await(&waiter);
    wait_until(20 * SEC, waiters_of("weights") == 1);
    must_be(RDT_TIMED_OUT, rdt_wait_put(trainer, &ref, 20 * MSEC, &err));
    (void)publish_pattern(trainer, "weights", 2);
    actor_wait(&waiter);
    must_ok(rdt_wait_put(trainer, &ref, 0, &err));
    unpublish(trainer, "weights");
    end();
}

Test(names_wait, deadline_and_cancel_end_the_wait_and_nothing_else)
{
    struct rdt_ref ref = name_ref("weights", 0);
    rdt_request *short_one, *long_one, *cancelled;
    rdt_object *object = NULL;

    begin(NULL);
    short_one = start_one(sampler, &ref, 50 * MSEC);
    long_one = start_one(sampler, &ref, LONG);
    cancelled = start_one(sampler, &ref, LONG);
    rdt_cancel(cancelled);
    must_be(RDT_TIMED_OUT, rdt_wait(sampler, &short_one, 1, 1, LONG, NULL, NULL, &err));
    cr_assert_eq(rdt_request_status(cancelled, NULL), RDT_CANCELLED);
    wait_until(20 * SEC, transfers_waiting() == 1);
    (void)publish_pattern(trainer, "weights", 1);
    must_ok(rdt_wait(sampler, &long_one, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(long_one, &object, &err));
    rdt_release(object);
    rdt_request_destroy(short_one);
    rdt_request_destroy(long_one);
    rdt_request_destroy(cancelled);
    unpublish(trainer, "weights");
    end();
}

#define CROWD 10000

static int crowd(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "crowd");
    rdt_request **requests = calloc(CROWD, sizeof(rdt_request *));
    struct rdt_ref ref = name_ref("weights", 0);
    rdt_object *object;

    (void)arg;
    must(requests);
    for (unsigned i = 0; i < CROWD; i++) /* each a message of its own: none shares the other's transfer */
        requests[i] = start_one(conn, &ref, LONG);
    must_ok(rdt_ping(conn, LONG, &err));
    actor_step(self);
    actor_await(self);
    for (unsigned i = 0; i < CROWD; i++) {
        must_ok(rdt_wait(conn, &requests[i], 1, 1, LONG, NULL, NULL, &err));
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        must(info_of(object).version == 1);
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    free(requests);
    rdt_close(conn);
    return 0;
}

Test(names_wait, ten_thousand_wait_for_one_name)
{
    struct actor actors[2];

    node_start(&node, NULL);
    for (unsigned i = 0; i < 2; i++)
        actor_start(&actors[i], crowd, NULL);
    trainer = node_client(&node, "trainer");
    sampler = NULL;
    for (unsigned i = 0; i < 2; i++)
        actor_await(&actors[i]);
    cr_assert_eq(transfers_waiting(), 2u * CROWD);
    actor_kill(&actors[1], SIGKILL);
    wait_until(60 * SEC, transfers_waiting() == CROWD);
    (void)publish_pattern(trainer, "weights", 1);
    actor_step(&actors[0]);
    must_ok(rdt_ping(trainer, LONG, &err));
    actor_wait(&actors[0]);
    unpublish(trainer, "weights");
    end();
}

/* ---- objects whose bytes are still being written ---- */

static struct rdt_ref put_pending(char *addr)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;

    options.flags = RDT_PUT_PENDING;
    must_ok(rdt_put(trainer, &VECTOR(RDT_U8, BYTES, addr), 1, &options, &ref, &err));
    return ref;
}

/* Publishes the object from a process of its own; ends with the status, negative ones as 100 - status. */
static int publish(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "publisher");
    struct rdt_error err;
    enum rdt_status status;

    actor_step(self);
    status = rdt_publish(conn, "weights", arg, NULL, NULL, &err);
    rdt_close(conn);
    return status == RDT_OK ? 0 : 100 - (int)status;
}

/* How many requests wait for the object's bytes. */
static unsigned waiting_for(const struct rdt_ref *ref)
{
    struct rdt_stat stat;

    must_ok(rdt_stat(trainer, ref, &stat, &err));
    return stat.waiters;
}

Test(names_wait, publish_waits_until_the_bytes_are_there)
{
    struct rdt_ref refs[3], next = name_ref("weights", 0);
    struct actor publishers[3];
    rdt_object *object;
    char *addr;

    begin(NULL);
    addr = alloc_memory(trainer, BYTES);
    for (unsigned i = 0; i < 3; i++) {
        refs[i] = put_pending(addr);
        actor_start(&publishers[i], publish, &refs[i]);
        actor_await(&publishers[i]);
        wait_until(20 * SEC, waiting_for(&refs[i]) == 1);
        must_be(RDT_TIMED_OUT, rdt_wait_put(sampler, &next, 20 * MSEC, &err));
        if (i == 0) { /* the bytes will not come */
            must_ok(rdt_fail(trainer, &refs[i], RDT_SYSTEM, "the kernel failed", &err));
            must(actor_result(&publishers[i]) == 100 - RDT_SYSTEM);
        } else if (i == 1) { /* who waits is killed, and nothing of it stays */
            actor_kill(&publishers[i], SIGKILL);
            wait_until(20 * SEC, waiting_for(&refs[i]) == 0);
            must_ok(rdt_ready(trainer, &refs[i], &err));
        } else {
            fill_pattern(addr, BYTES, 5);
            must_ok(rdt_ready(trainer, &refs[i], &err));
            must(actor_result(&publishers[i]) == 0);
        }
    }
    object = fetch_one(sampler, &next, RDT_FETCH_SHARE);
    must(info_of(object).version == 1 && holds_pattern(tensor_of(object, 0).data, BYTES, 5));
    rdt_release(object);
    unpublish(trainer, "weights");
    for (unsigned i = 1; i < 3; i++)
        must_ok(rdt_free(trainer, &refs[i], false, &err));
    must_ok(rdt_dealloc(trainer, addr, &err));
    end();
}
