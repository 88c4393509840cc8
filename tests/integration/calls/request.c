/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: waiting for any and for all of them, failures that end a wait at once, cancels, forks, and a stopped
 * daemon. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/calls/request.h"

#define MIB ((size_t)1 << 20)

static bool nobody_waits_for(const char *id)
{
    struct rdt_ref ref = ref_named(id);
    struct rdt_stat stat;

    return rdt_stat(conn, &ref, &stat, NULL) == RDT_NOT_FOUND;
}

/* ---- waiting ---- */

Test(request, wait_for_any_and_for_all)
{
    rdt_request *requests[3];
    bool done[3] = {true, true, true};
    size_t n = 9;

    begin(NULL);
    requests[0] = park("a", 0);
    requests[1] = park("b", 0);
    requests[2] = park("c", 0);
    must_ok(rdt_wait(reader, requests, 3, 0, 0, done, &n, &err));
    cr_assert_eq(n, 0);
    must_be(RDT_TIMED_OUT, rdt_wait(reader, requests, 3, 1, 0, done, &n, &err));
    cr_assert(n == 0 && !done[0] && !done[1] && !done[2]);
    int64_t start = now_ns();
    must_refuse(RDT_TIMED_OUT, "0 of 3", rdt_wait(reader, requests, 3, RDT_WAIT_ALL, 100 * MSEC, done, &n, &err));
    cr_assert_geq(now_ns() - start, 100 * MSEC);
    must_be_within(start, 2 * SEC);
    put_named("b");
    must_ok(rdt_wait(reader, requests, 3, 1, RDT_FOREVER, done, &n, &err));
    cr_assert(n == 1 && !done[0] && done[1] && !done[2]);
    must_be(RDT_AGAIN, rdt_request_status(requests[0], &err));
    must_ok(rdt_request_status(requests[1], &err));
    must_be(RDT_TIMED_OUT, rdt_wait(reader, requests, 3, 2, 50 * MSEC, done, &n, &err));
    put_named("a");
    put_named("c");
    must_ok(rdt_wait(reader, requests, 3, RDT_WAIT_ALL, RDT_FOREVER, done, &n, &err));
    cr_assert(n == 3 && done[0] && done[1] && done[2]);
    must_ok(rdt_wait(reader, requests, 0, RDT_WAIT_ALL, RDT_FOREVER, NULL, NULL, &err));
    must_refuse(RDT_INVALID, "only 3 requests", rdt_wait(reader, requests, 3, 4, 0, done, &n, &err));
    for (unsigned i = 0; i < 3; i++)
        rdt_request_destroy(requests[i]);
    end();
}

Test(request, object_is_taken_once)
{
    rdt_object *object = NULL, *again = NULL;

    begin(NULL);
    rdt_request *request = park("a", 0);
    must_be(RDT_AGAIN, rdt_request_take_object(request, &object, &err));
    put_named("a");
    object = await_object(reader, request);
    must_refuse(RDT_INVALID, "taken already", rdt_request_take_object(request, &again, &err));
    cr_assert_null(again);
    rdt_request_destroy(request);
    cr_assert_eq(memcmp(tensor_of(object, 0).data, "hello", 5), 0);
    rdt_release(object);
    end();
}

Test(request, first_failure_comes_at_once_and_others_go_on)
{
    rdt_request *requests[3];
    bool done[3];

    begin(NULL);
    requests[0] = park("a", 0);
    int64_t start = now_ns();
    requests[1] = park("b", 150 * MSEC);
    requests[2] = park("c", 0);
    must_refuse(RDT_TIMED_OUT, "\"b\"", rdt_wait(reader, requests, 3, RDT_WAIT_ALL, RDT_FOREVER, done, NULL, &err));
    cr_assert_geq(now_ns() - start, 150 * MSEC);
    must_be_within(start, 2 * SEC);
    cr_assert(!done[0] && done[1] && !done[2]);
    rdt_request_destroy(requests[1]);
    requests[1] = requests[2];
    put_named("a");
    put_named("c");
    must_ok(rdt_wait(reader, requests, 2, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    rdt_request_destroy(requests[0]);
    rdt_request_destroy(requests[1]);
    end();
}

/* ---- ending early ---- */

static struct rdt_ref put_big(size_t bytes)
{
    char *addr = alloc_memory(conn, bytes);

    memset(addr, 1, bytes);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, bytes, addr), NULL);
    must_ok(rdt_dealloc(conn, addr, &err));
    return ref;
}

static bool memory_is(uint64_t bytes)
{
    struct node_status status = node_now(&node);

    return status.memory_bytes == bytes && status.transfers_active == 0;
}

Test(request, cancel_releases_caller_and_memory)
{
    rdt_request *parked, *copies[8];

    begin(NULL);
    parked = park("a", 0);
    must_ok(rdt_ping(reader, LONG, &err));
    rdt_cancel(parked);
    must_refuse(RDT_CANCELLED, "\"a\"", rdt_request_status(parked, &err));
    must_be(RDT_CANCELLED, rdt_wait(reader, &parked, 1, 1, LONG, NULL, NULL, &err));
    rdt_cancel(parked); /* again is fine */
    rdt_request_destroy(parked);
    wait_until(20 * SEC, nobody_waits_for("a"));

    struct rdt_ref ref = put_big(64 * MIB);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = RDT_FETCH_COPY};
    for (unsigned i = 0; i < 8; i++)
        must_ok(rdt_fetch_start(reader, &ref, 1, &options, &copies[i], &err));
    int64_t start = now_ns();
    for (unsigned i = 0; i < 8; i++) {
        rdt_cancel(copies[i]);
        cr_assert_neq(rdt_request_status(copies[i], NULL), RDT_AGAIN);
        rdt_request_destroy(copies[i]);
    }
    must_be_within(start, 2 * SEC);
    wait_until(20 * SEC, memory_is(64 * MIB));
    end();
}

Test(request, destroy_without_waiting_is_enough)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_request *requests[24];

    begin(NULL);
    struct rdt_ref ref = put_big(32 * MIB);
    for (unsigned i = 0; i < 24; i++) {
        options.mode = (enum rdt_fetch_mode)(i % 3);
        if (i < 12)
            must_ok(rdt_fetch_start(reader, &ref, 1, &options, &requests[i], &err));
        else
            requests[i] = park("a", i % 2 ? 0 : LONG);
    }
    for (unsigned i = 0; i < 24; i++)
        rdt_request_destroy(requests[i]);
    wait_until(20 * SEC, nobody_waits_for("a"));
    wait_until(20 * SEC, memory_is(32 * MIB));
    /* rdt_close also releases what its unfinished requests have. */
    for (unsigned i = 0; i < 4; i++) {
        options.mode = RDT_FETCH_COPY;
        must_ok(rdt_fetch_start(reader, &ref, 1, &options, &requests[i], &err));
    }
    end();
}

/* The daemon answers the fetches before it reads that they were cancelled, and the reader makes no call after that. */
Test(request, answer_that_nobody_reads_holds_nothing)
{
    static const enum rdt_fetch_mode modes[] = {RDT_FETCH_SHARE, RDT_FETCH_COW, RDT_FETCH_COPY};
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref refs[6];
    rdt_request *requests[6];

    begin(NULL);
    for (unsigned i = 0; i < 6; i++)
        refs[i] = put_big(4096);
    node_freeze(&node);
    for (unsigned i = 0; i < 6; i++) {
        options.mode = modes[i % 3];
        must_ok(rdt_fetch_start(reader, &refs[i], 1, &options, &requests[i], &err));
        if (i < 3)
            rdt_cancel(requests[i]);
        rdt_request_destroy(requests[i]);
    }
    node_thaw(&node);
    for (unsigned i = 0; i < 6; i++)
        must_ok(rdt_free(conn, &refs[i], false, &err));
    wait_until(20 * SEC, memory_is(0));
    for (unsigned i = 0; i < 6; i++) /* the reader reads the answers, and its mappings are sound */
        refs[i] = put_big(4096);
    for (unsigned i = 0; i < 6; i++)
        rdt_release(fetch_one(reader, &refs[i], modes[i % 3]));
    end();
}

Test(request, deadline_in_a_copy_releases_its_memory)
{
    rdt_request *requests[6];

    begin(NULL);
    struct rdt_ref ref = put_big(96 * MIB);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = RDT_FETCH_COPY, .timeout_ns = 5 * MSEC};
    for (unsigned i = 0; i < 6; i++)
        must_ok(rdt_fetch_start(reader, &ref, 1, &options, &requests[i], &err));
    for (unsigned i = 0; i < 6; i++) {
        enum rdt_status status = rdt_wait(reader, &requests[i], 1, 1, LONG, NULL, NULL, NULL);
        cr_assert(status == RDT_TIMED_OUT || status == RDT_OK || status == RDT_NO_MEMORY, "%s", rdt_status_name(status));
        rdt_request_destroy(requests[i]);
    }
    wait_until(20 * SEC, memory_is(96 * MIB));
    end();
}

/* ---- a daemon that stands still ---- */

Test(request, stopped_daemon_ends_no_call_late_and_loses_nothing)
{
    struct rdt_fetch_options fetch_options = RDT_INIT(fetch_options);
    struct rdt_put_options put_options = RDT_INIT(put_options);
    struct rdt_connect_options connect_options = RDT_INIT(connect_options);
    const int64_t limit = 100 * MSEC;
    static char heap[200000];
    rdt_request *parked, *request;
    rdt_object *held, *object = NULL;
    struct rdt_ref ref, big, new_ref;
    struct rdt_stat stat;
    int64_t start;
    rdt *late = NULL;

    begin(NULL);
    char *addr = alloc_memory(conn, MIB);
    ref = put_one(conn, &VECTOR(RDT_U8, MIB, addr), "w");
    big = put_big(32 * MIB);
    held = fetch_one(reader, &ref, RDT_FETCH_SHARE);
    parked = park("a", 0);
    must_ok(rdt_ping(reader, LONG, &err));
    struct node_status before = node_now(&node);
    wait_until(20 * SEC, node_now(&node).clients == 2);
    unsigned fds = fds_of(node.pid);
    unsigned own_fds = fds_of(0);

    node_freeze(&node);
    for (unsigned round = 0; round < 3; round++) {
        start = now_ns();
        must_be(RDT_TIMED_OUT, rdt_ping(conn, limit, &err));
        must_be(RDT_TIMED_OUT, rdt_ping(conn, 0, &err));
        fetch_options.timeout_ns = limit;
        for (unsigned mode = 0; mode < 3; mode++) {
            fetch_options.mode = (enum rdt_fetch_mode)mode;
            must_be(RDT_TIMED_OUT, rdt_fetch(reader, mode == 1 ? &ref : &big, 1, &fetch_options, &object, &err));
        }
        put_options.timeout_ns = limit;
        must_be(RDT_TIMED_OUT, rdt_put(conn, &VECTOR(RDT_U8, MIB, addr), 1, &put_options, &new_ref, &err));
        must_be(RDT_TIMED_OUT, rdt_put(conn, &VECTOR(RDT_U8, sizeof heap, heap), 1, &put_options, &new_ref, &err));
        must_be(RDT_TIMED_OUT, rdt_wait_put(reader, &ref, limit, &err));
        must_be(RDT_TIMED_OUT, rdt_wait_freed(reader, &ref, limit, &err));
        must_be(RDT_TIMED_OUT, rdt_wait_freed_range(conn, addr, MIB, limit, &err));
        must_be(RDT_TIMED_OUT, rdt_wait(reader, &parked, 1, 1, limit, NULL, NULL, &err));
        connect_options.socket = node.socket;
        connect_options.timeout_ns = limit;
        must_be(RDT_TIMED_OUT, rdt_connect(&connect_options, &late, &err));
        cr_assert_null(object);
        cr_assert_null(late);
        /* Calls without a deadline return at once. */
        fetch_options.timeout_ns = 0;
        must_ok(rdt_fetch_start(reader, &ref, 1, &fetch_options, &request, &err));
        rdt_cancel(request);
        rdt_request_destroy(request);
        must_ok(rdt_fetch_start(reader, &ref, 1, &fetch_options, &request, &err));
        rdt_request_destroy(request);
        cr_assert_leq(now_ns() - start, 12 * limit + patience(2 * SEC));
    }
    rdt_release(held);
    node_thaw(&node);

    put_named("a");
    must_ok(rdt_wait(reader, &parked, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(parked);
    must_ok(rdt_ping(conn, LONG, &err)); /* late answers have come */
    must_ok(rdt_ping(reader, LONG, &err));
    wait_until(20 * SEC,
               rdt_ping(reader, LONG, NULL) == RDT_OK && rdt_stat(conn, &ref, &stat, NULL) == RDT_OK && stat.holds == 1);
    wait_until(20 * SEC, rdt_ping(reader, LONG, NULL) == RDT_OK && rdt_stat(conn, &big, &stat, NULL) == RDT_OK &&
                             stat.holds == 1 && stat.pins == 0);
    /* The puts that were left: their objects and memory are given back. */
    wait_until(20 * SEC, rdt_ping(conn, LONG, NULL) == RDT_OK && node_now(&node).objects == before.objects + 1);
    wait_until(20 * SEC, rdt_ping(conn, LONG, NULL) == RDT_OK && node_now(&node).regions == before.regions + 1);
    wait_until(20 * SEC, fds_of(node.pid) <= fds + 4); /* "a", and descriptors that are kept for readers of live memory */
    cr_assert_leq(fds_of(0), own_fds);
    end();
}

Test(request, memory_calls_survive_a_pause_of_the_daemon)
{
    void *addr;

    begin(NULL);
    node_freeze(&node);
    node_thaw(&node);
    must_ok(rdt_alloc(conn, MIB, &addr, &err));
    must_ok(rdt_dealloc(conn, addr, &err));
    end();
}

/* ---- forks ---- */

#define in_child(condition)                                                  \
    do {                                                                     \
        if (!(condition)) {                                                  \
            (void)fprintf(stderr, "in the child: not so: %s\n", #condition); \
            _exit(CHECK_FAILED);                                             \
        }                                                                    \
    } while (0)

static void child_of_a_fork(rdt_request *request, rdt_object *object, const struct rdt_ref *ref, void *addr, bool close_it)
{
    struct rdt_tensor tensor;
    struct rdt_ref other;
    struct rdt_stat stat;
    rdt_object *fetched;
    rdt *fresh = NULL;
    void *more;

    in_child(rdt_ping(conn, SEC, NULL) == RDT_FORKED);
    in_child(rdt_alloc(conn, 10, &more, NULL) == RDT_FORKED);
    in_child(rdt_dealloc(conn, addr, NULL) == RDT_FORKED);
    in_child(rdt_put(conn, NULL, 0, NULL, &other, NULL) == RDT_FORKED);
    in_child(rdt_free(conn, ref, true, NULL) == RDT_FORKED);
    in_child(rdt_fetch(conn, ref, 1, NULL, &fetched, NULL) == RDT_FORKED);
    in_child(rdt_wait(conn, &request, 1, 1, SEC, NULL, NULL, NULL) == RDT_FORKED);
    in_child(rdt_request_status(request, NULL) == RDT_FORKED);
    in_child(rdt_wait_put(conn, ref, SEC, NULL) == RDT_FORKED);
    in_child(rdt_wait_freed(conn, ref, SEC, NULL) == RDT_FORKED);
    in_child(rdt_wait_freed_range(conn, addr, 10, SEC, NULL) == RDT_FORKED);
    in_child(rdt_stat(conn, ref, &stat, NULL) == RDT_FORKED);
    in_child(rdt_dispatch(conn, NULL, NULL) == RDT_FORKED);
    in_child(rdt_object_tensor(object, 0, &tensor, NULL) == RDT_FORKED);
    rdt_cancel(request);
    if (!close_it) { /* and one that just goes on */
        rdt_request_destroy(request);
        rdt_release(object);
    }
    rdt_close(close_it ? conn : NULL);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = node.socket, .timeout_ns = LONG};
    in_child(rdt_connect(&options, &fresh, NULL) == RDT_OK);
    in_child(rdt_fetch(fresh, ref, 1, NULL, &fetched, NULL) == RDT_OK);
    rdt_release(fetched);
    rdt_close(fresh);
    _exit(0);
}

Test(request, forked_child_is_told_and_disturbs_nobody)
{
    begin(NULL);
    char *addr = alloc_memory(conn, 4096);
    fill_pattern(addr, 4096, 1);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 4096, addr), "w");
    struct rdt_ref later = ref_named("later");
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_COPY);
    rdt_request *request = start_one(conn, &later, 0);
    for (unsigned i = 0; i < 2; i++) {
        int status;
        pid_t pid = fork();
        cr_assert_geq(pid, 0);
        if (pid == 0)
            child_of_a_fork(request, object, &ref, addr, i == 0);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %x", status);
    }
    cr_assert(holds_pattern(tensor_of(object, 0).data, 4096, 1));
    cr_assert(holds_pattern(addr, 4096, 1));
    (void)put_one(conn, &VECTOR(RDT_U8, 4096, addr), "later");
    must_ok(rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(request);
    rdt_release(object);
    must_ok(rdt_dealloc(conn, addr, &err));
    end();
}
