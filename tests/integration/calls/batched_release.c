/* SPDX-License-Identifier: Apache-2.0 */
/* Releases on a corked connection. They are sent when the connection is uncorked, makes another request, waits or is
 * closed, or when many have gathered; until then the daemon keeps the objects. */
#include <criterion/criterion.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "client/session/connection.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define N 8

TestSuite(batched_release, .timeout = SUITE_SECONDS(60));

static struct test_node node;
static rdt *producer, *reader;
static struct rdt_ref ref;

static void begin(void)
{
    node_start(&node, NULL);
    producer = node_client(&node, "producer");
    reader = node_client(&node, "reader");
    char *addr = alloc_memory(producer, 4096);
    ref = put_one(producer, &VECTOR(RDT_U8, 4096, addr), "memory");
}

static void end(void)
{
    rdt_close(reader);
    rdt_close(producer);
    node_end(&node, NULL);
}

/* The producer's among them. */
static unsigned holds(void)
{
    struct rdt_stat stat = stat_of(producer, &ref);
    return stat.holds;
}

static void hold(rdt_request **requests, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        bool done;

        must_ok(rdt_hold_start(reader, &ref, RDT_FOREVER, &requests[i], &err));
        must_ok(rdt_wait(reader, &requests[i], 1, 1, LONG, &done, NULL, &err));
    }
}

static void drop(rdt_request **requests, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        rdt_request_destroy(requests[i]);
}

Test(batched_release, uncork_sends_the_releases)
{
    rdt_request *requests[N];

    begin();
    hold(requests, N);
    cr_assert_eq(holds(), N + 1);
    rdt_cork(reader);
    rdt_cork(reader);
    drop(requests, N);
    cr_assert_eq(holds(), N + 1);
    rdt_uncork(reader);
    cr_assert_eq(holds(), N + 1, "they nest");
    rdt_uncork(reader);
    wait_until(LONG, holds() == 1);
    rdt_uncork(reader); /* one too many */
    rdt_cork(reader);
    hold(requests, 1);
    drop(requests, 1);
    cr_assert_eq(holds(), 2);
    rdt_uncork(reader);
    wait_until(LONG, holds() == 1);
    end();
}

Test(batched_release, next_call_sends_the_releases)
{
    rdt_request *requests[N];

    begin();
    hold(requests, N);
    rdt_cork(reader);
    drop(requests, N);
    must_ok(rdt_ping(reader, LONG, &err));
    cr_assert_eq(holds(), 1);
    hold(requests, 1);
    drop(requests, 1);
    must_ok(rdt_dispatch(reader, NULL, &err));
    wait_until(LONG, holds() == 1);
    end();
}

Test(batched_release, releases_and_drops_are_batched)
{
    begin();
    struct rdt_ref own = put_one(reader, &VECTOR(RDT_U8, 5, "hello"), "own");
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
    rdt_cork(reader);
    rdt_release(object);
    must_ok(rdt_drop(reader, &own, &err));
    (void)stat_of(producer, &own);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(producer, &own, 50 * MSEC, &err));
    rdt_uncork(reader);
    must_ok(rdt_wait_freed(producer, &own, LONG, &err));
    must_ok(rdt_free(producer, &ref, false, &err));
    must_ok(rdt_wait_freed(producer, &ref, LONG, &err));
    end();
}

Test(batched_release, many_releases_do_not_wait_for_uncork)
{
    rdt_request *requests[100];

    begin();
    hold(requests, 100);
    rdt_cork(reader);
    drop(requests, 100);
    wait_until(LONG, holds() == 37);
    rdt_uncork(reader);
    wait_until(LONG, holds() == 1);
    end();
}

Test(batched_release, close_sends_the_releases)
{
    begin();
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_DETACHED, .ttl_ns = 10 * LONG};
    struct rdt_ref detached = put_as(reader, &VECTOR(RDT_U8, 5, "hello"), 1, &options);
    rdt_cork(reader);
    must_ok(rdt_drop(reader, &detached, &err));
    rdt_close(reader);
    must_ok(rdt_wait_freed(producer, &detached, LONG, &err));
    reader = node_client(&node, "reader");
    end();
}

static void *wait_for_late(void *arg)
{
    struct rdt_ref late = ref_named("late");

    must_ok(rdt_wait_put(reader, &late, RDT_FOREVER, NULL));
    return NULL;
}

static void *wait_for_event(void *arg)
{
    struct rdt_event event;

    must_ok(rdt_next_event(reader, RDT_FOREVER, &event, NULL));
    return NULL;
}

static unsigned waiters(const struct rdt_ref *wanted)
{
    struct rdt_stat stat;

    return rdt_stat(producer, wanted, &stat, NULL) == RDT_OK ? stat.waiters : 0;
}

Test(batched_release, wait_sends_the_releases_whichever_thread_reads)
{
    struct rdt_ref late = ref_named("late"), own;
    pthread_t reads, waits;

    begin();
    own = put_one(reader, &VECTOR(RDT_U8, 5, "hello"), "own");
    must_ok(rdt_watch(reader, RDT_KIND_CLIENTS, &err));
    cr_assert_eq(pthread_create(&reads, NULL, wait_for_late, NULL), 0);
    wait_until(LONG, waiters(&late) == 1);
    rdt_cork(reader);
    must_ok(rdt_drop(reader, &own, &err));
    cr_assert_eq(pthread_create(&waits, NULL, wait_for_event, NULL), 0);
    must_ok(rdt_wait_freed(producer, &own, LONG, &err));
    rdt *other = node_client(&node, "other");
    (void)pthread_join(waits, NULL);
    (void)put_one(producer, &VECTOR(RDT_U8, 5, "hello"), "late");
    (void)pthread_join(reads, NULL);
    rdt_close(other);
    end();
}

static bool reader_is_full(void)
{
    int queued, room;
    socklen_t bytes = sizeof room;

    return ioctl(reader->socket.fd, SIOCOUTQ, &queued) == 0 &&
           getsockopt(reader->socket.fd, SOL_SOCKET, SO_SNDBUF, &room, &bytes) == 0 && queued >= room;
}

static void *thaw_when_full(void *ignored)
{
    for (unsigned round = 0; !reader_is_full();)
        wait_pause(&round);
    node_thaw(&node);
    return ignored;
}

Test(batched_release, full_socket_delays_releases_but_no_other_call_is_needed)
{
    static rdt_request *requests[1000];
    pthread_t thaws;

    begin();
    hold(requests, 1000);
    cr_assert_eq(holds(), 1001);
    node_freeze(&node);
    cr_assert_eq(pthread_create(&thaws, NULL, thaw_when_full, NULL), 0);
    drop(requests, 1000);
    (void)pthread_join(thaws, NULL);
    wait_until(LONG, holds() == 1);
    end();
}

Test(batched_release, a_frozen_daemon_delays_a_thousand_releases_once)
{
    static rdt_request *requests[1000];

    begin();
    hold(requests, 1000);
    node_freeze(&node);
    int64_t began_ns = now_ns();
    drop(requests, 1000);
    cr_assert_lt(now_ns() - began_ns, patience(3 * SEC));
    node_thaw(&node);
    must_ok(rdt_ping(reader, LONG, &err));
    wait_until(LONG, holds() == 1);
    end();
}

Test(batched_release, cork_of_null_does_nothing)
{
    rdt_cork(NULL);
    rdt_uncork(NULL);
}
