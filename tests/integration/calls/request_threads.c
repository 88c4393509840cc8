/* SPDX-License-Identifier: Apache-2.0 */
/* Requests in event loops, and in threads that share a connection. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

#include "tests/integration/calls/request.h"

static bool is_readable(int fd, int64_t ns)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

    return poll(&poll_fd, 1, (int)(ns / MSEC)) == 1;
}

Test(request_threads, fd_tells_an_event_loop)
{
    rdt_request *requests[2];
    size_t n = 9, total = 0;

    begin(NULL);
    int fd = rdt_fd(reader);
    requests[0] = park("a", 0);
    must_ok(rdt_ping(reader, LONG, &err));
    must_ok(rdt_dispatch(reader, &n, &err));
    cr_assert_eq(n, 0);
    cr_assert_not(is_readable(fd, 0));
    put_named("a");
    while (total == 0) {
        cr_assert(is_readable(fd, LONG));
        must_ok(rdt_dispatch(reader, &n, &err));
        total += n;
    }
    cr_assert_eq(total, 1);
    must_ok(rdt_request_status(requests[0], &err));
    must_ok(rdt_dispatch(reader, &n, &err));
    cr_assert_not(is_readable(fd, 0), "readable with nothing to do");
    /* Deadlines too. */
    requests[1] = park("b", 50 * MSEC);
    for (total = 0; total == 0; total += n) {
        cr_assert(is_readable(fd, LONG));
        must_ok(rdt_dispatch(reader, &n, &err));
    }
    must_be(RDT_TIMED_OUT, rdt_request_status(requests[1], &err));
    rdt_request_destroy(requests[0]);
    rdt_request_destroy(requests[1]);
    end();
}

Test(request_threads, fd_tells_that_the_daemon_is_gone)
{
    begin(NULL);
    int fd = rdt_fd(reader);
    rdt_request *request = park("a", 0);
    must_ok(rdt_ping(reader, LONG, &err));
    node_kill(&node, SIGKILL);
    cr_assert(is_readable(fd, LONG));
    must_be(RDT_DISCONNECTED, rdt_dispatch(reader, NULL, &err));
    must_be(RDT_DISCONNECTED, rdt_request_status(request, &err));
    must_be(RDT_DISCONNECTED, rdt_wait(reader, &request, 1, 1, RDT_FOREVER, NULL, NULL, &err));
    must_be(RDT_DISCONNECTED, rdt_ping(conn, LONG, &err));
    rdt_request_destroy(request);
    rdt_close(conn);
    rdt_close(reader);
}

struct worker {
    pthread_t thread;
    unsigned number;
    const char *failed; /* where the test failed, or NULL; only the main thread may use Criterion's asserts */
};

#define hold_or_leave(condition)         \
    do {                                 \
        if (!(condition)) {              \
            worker->failed = #condition; \
            return NULL;                 \
        }                                \
    } while (0)

static void *wait_in_thread(void *arg)
{
    struct worker *worker = arg;
    struct rdt_ref ref;
    rdt_object *object;

    hold_or_leave(rdt_ref_from_id("later", 5, &ref, NULL) == RDT_OK);
    hold_or_leave(try_fetch(conn, &ref, RDT_FETCH_AUTO, LONG, &object, NULL) == RDT_OK);
    rdt_release(object);
    return NULL;
}

Test(request_threads, one_thread_waits_while_another_puts_on_the_same_connection)
{
    struct worker worker = {0};
    struct rdt_ref later = ref_named("later");
    struct rdt_stat stat;

    begin(NULL);
    cr_assert_eq(pthread_create(&worker.thread, NULL, wait_in_thread, &worker), 0);
    wait_until(20 * SEC, rdt_stat(conn, &later, &stat, NULL) == RDT_OK && stat.waiters == 1);
    put_named("later");
    cr_assert_eq(pthread_join(worker.thread, NULL), 0);
    cr_assert_null(worker.failed, "%s", worker.failed);
    end();
}

static void *hammer(void *arg)
{
    struct worker *worker = arg;

    for (unsigned round = 0; round < 100; round++) {
        struct rdt_tensor tensor = {0}, seen;
        int64_t shape[] = {1000};
        struct rdt_ref ref;
        rdt_object *object;
        void *addr;

        hold_or_leave(rdt_alloc(conn, 4000, &addr, NULL) == RDT_OK);
        fill_pattern(addr, 4000, worker->number * 1000 + round);
        tensor = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 1, .shape = shape, .data = addr};
        hold_or_leave(rdt_put(conn, &tensor, 1, NULL, &ref, NULL) == RDT_OK);
        hold_or_leave(try_fetch(conn, &ref, (enum rdt_fetch_mode)(round % 3), LONG, &object, NULL) == RDT_OK);
        hold_or_leave(rdt_object_tensor(object, 0, &seen, NULL) == RDT_OK);
        hold_or_leave(holds_pattern(seen.data, 4000, worker->number * 1000 + round));
        rdt_release(object);
        hold_or_leave(rdt_free(conn, &ref, false, NULL) == RDT_OK);
        hold_or_leave(rdt_wait_freed(conn, &ref, LONG, NULL) == RDT_OK);
        hold_or_leave(rdt_dealloc(conn, addr, NULL) == RDT_OK);
    }
    return NULL;
}

Test(request_threads, threads_on_one_connection_do_not_disturb_each_other)
{
    struct worker workers[4] = {0};

    begin(NULL);
    for (unsigned i = 0; i < 4; i++) {
        workers[i].number = i;
        cr_assert_eq(pthread_create(&workers[i].thread, NULL, hammer, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_eq(pthread_join(workers[i].thread, NULL), 0);
        cr_assert_null(workers[i].failed, "%s", workers[i].failed);
    }
    end();
}

Test(request_threads, thousand_outstanding_requests_all_end)
{
    enum { N = 1000 };
    static rdt_request *requests[N];
    static struct rdt_ref refs[N];
    bool *done = calloc(N, sizeof *done);
    char id[16];
    size_t n;

    begin(NULL);
    for (unsigned i = 0; i < N; i++) {
        (void)snprintf(id, sizeof id, "r%u", i);
        refs[i] = ref_named(id);
    }
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = 2 * LONG};
    must_ok(rdt_fetch_start(reader, refs, N, &options, requests, &err));
    must_be(RDT_TIMED_OUT, rdt_wait(reader, requests, N, 1, 0, done, &n, &err));
    for (unsigned i = N; i-- > N / 2;) {
        (void)snprintf(id, sizeof id, "r%u", i);
        put_named(id);
    }
    must_ok(rdt_wait(reader, requests, N, N / 2, LONG, done, &n, &err));
    cr_assert_geq(n, N / 2);
    for (unsigned i = 0; i < N / 4; i++)
        rdt_cancel(requests[i]);
    for (unsigned i = N / 4; i < N / 2; i++) {
        (void)snprintf(id, sizeof id, "r%u", i);
        put_named(id);
    }
    must_ok(rdt_wait(reader, requests + N / 4, N - N / 4, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    for (unsigned i = 0; i < N; i++) {
        cr_assert_eq(rdt_request_status(requests[i], NULL), i < N / 4 ? RDT_CANCELLED : RDT_OK);
        rdt_request_destroy(requests[i]);
    }
    free(done);
    end();
}
