/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a scripted fake daemon: several threads on one connection, and event loops. */
#include <criterion/criterion.h>
#include <poll.h>

#include "tests/support/fakes/fake_daemon.h"

static struct rdt_error err;

/* Starts one fetch. */
static rdt_request *fetch(rdt *conn, const char *id, int64_t timeout_ns)
{
    struct rdt_ref ref = fake_ref(id);
    rdt_request *request;
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = timeout_ns};

    MUST(rdt_fetch_start(conn, &ref, 1, &options, &request, &err) == RDT_OK);
    return request;
}

static bool readable(int fd, int64_t timeout_ns)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};

    return poll(&pollfd, 1, (int)(timeout_ns / MS)) == 1;
}

/* ---- threads ---- */

#define PINGERS 6
#define PINGS 200

static void answer_backwards(struct fake *fake)
{
    uint64_t ids[PINGERS];
    Rdt__Pb__Ping reply = RDT__PB__PING__INIT;

    for (unsigned i = 0; i < PINGERS; i++) {
        fake_take(fake, RDT_MSG_PING);
        ids[i] = fake->frame.request_id;
    }
    for (unsigned i = PINGERS; i-- > 0;)
        fake_send(fake, RDT_MSG_PING, FRAME_REPLY, ids[i], &reply.base, NULL, 0);
    fake_serve(fake);
}

static void *ping_often(void *arg)
{
    for (unsigned i = 0; i < PINGS; i++)
        MUST(rdt_ping(arg, LONG_NS, NULL) == RDT_OK);
    return NULL;
}

Test(client_threads, threads_wait_on_one_connection)
{
    pthread_t threads[PINGERS];
    struct fake fake;
    rdt *conn = fake_client(&fake, answer_backwards, NULL);

    for (unsigned i = 0; i < PINGERS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, ping_often, conn), 0);
    for (unsigned i = 0; i < PINGERS; i++)
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    fake_end(&fake, conn);
}

static void be_silent(struct fake *fake)
{
    while (fake_take_any(fake))
        ;
}

static void *cancel_soon(void *arg)
{
    rdt_cancel(arg);
    return NULL;
}

Test(client_threads, cancel_by_another_thread_wakes_the_waiter)
{
    pthread_t thread;
    struct fake fake;
    rdt *conn = fake_client(&fake, be_silent, NULL);
    rdt_request *request = fetch(conn, "x", 0);

    cr_assert_eq(pthread_create(&thread, NULL, cancel_soon, request), 0);
    assert_status(RDT_CANCELLED, rdt_wait(conn, &request, 1, 1, RDT_FOREVER, NULL, NULL, &err));
    cr_assert_eq(pthread_join(thread, NULL), 0);
    rdt_request_destroy(request);
    fake_end(&fake, conn);
}

static void *wait_without_end(void *arg)
{
    struct rdt_ref ref = fake_ref("forever");

    MUST(rdt_wait_put(arg, &ref, LONG_NS, NULL) == RDT_DISCONNECTED);
    return NULL;
}

static void hold_one_answer_the_rest(struct fake *fake)
{
    fake_take(fake, RDT_MSG_WAIT);
    sem_post(&fake->step);
    for (unsigned i = 0; i < 3; i++) {
        MUST(fake_take_any(fake));
        fake_empty(fake);
    }
}

Test(client_threads, a_leader_that_waits_longer_serves_the_others)
{
    struct rdt_ref ref = fake_ref("x");
    pthread_t thread;
    struct fake fake;
    rdt *conn = fake_client(&fake, hold_one_answer_the_rest, NULL);

    cr_assert_eq(pthread_create(&thread, NULL, wait_without_end, conn), 0);
    cr_assert_eq(sem_wait(&fake.step), 0);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    assert_status(RDT_OK, rdt_free(conn, &ref, false, &err));
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    cr_assert_eq(pthread_join(thread, NULL), 0);
    fake_end(&fake, conn);
}

/* Answers every other fetch, some of them with an error. */
static void answer_some(struct fake *fake)
{
    unsigned n = 0;

    while (fake_take_any(fake)) {
        if (fake->frame.type != RDT_MSG_FETCH) {
            fake_empty(fake);
        } else if (n++ % 4 == 0) {
            fake_error(fake, RDT_LIMIT, "not now");
        } else {
            fake_empty(fake);
            if (n % 2 == 0)
                fake_send_object(fake, fake_only_handle(fake), n, 4096);
        }
    }
}

#define STORMS 4
#define ROUNDS 150

struct storm {
    rdt *conn;
    unsigned number;
};

static void *start_wait_and_cancel(void *arg)
{
    const struct storm *storm = arg;

    for (unsigned i = 0; i < ROUNDS; i++) {
        rdt_request *requests[2] = {NULL};
        struct rdt_ref refs[2] = {fake_ref("x"), fake_ref("y")};
        rdt_object *object;
        struct rdt_fetch_options options = {.struct_size = sizeof options,
                                            .timeout_ns = (i + storm->number) % 3 ? 2 * MS : 100 * LONG_NS};

        for (unsigned k = 0; k < 2; k++)
            MUST(rdt_fetch_start(storm->conn, &refs[k], 1, &options, &requests[k], NULL) == RDT_OK);
        if (i % 5 == 0)
            rdt_cancel(requests[0]);
        enum rdt_status status = rdt_wait(storm->conn, requests, 2, 1 + i % 2, MS, NULL, NULL, NULL);
        MUST(status == RDT_OK || status == RDT_TIMED_OUT || status == RDT_CANCELLED || status == RDT_LIMIT);
        if (rdt_request_take_object(requests[1], &object, NULL) == RDT_OK)
            rdt_release(object);
        for (unsigned k = 0; k < 2; k++)
            rdt_request_destroy(requests[k]);
    }
    return NULL;
}

Test(client_threads, threads_start_wait_cancel_and_dispatch)
{
    struct storm storms[STORMS];
    pthread_t threads[STORMS];
    struct fake fake;
    rdt *conn = fake_client(&fake, answer_some, NULL);
    unsigned fds = fake_count_fds();

    for (unsigned i = 0; i < STORMS; i++) {
        storms[i] = (struct storm){.conn = conn, .number = i};
        cr_assert_eq(pthread_create(&threads[i], NULL, start_wait_and_cancel, &storms[i]), 0);
    }
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (readable(rdt_fd(conn), MS))
            assert_status(RDT_OK, rdt_dispatch(conn, NULL, &err));
    }
    for (unsigned i = 0; i < STORMS; i++)
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err)); /* behind everything that is still on its way */
    cr_assert_eq(fake_count_fds(), fds);
    fake_end(&fake, conn);
}

/* ---- event loops ---- */

static void answer_on_signal(struct fake *fake)
{
    uint64_t handles[2];

    for (unsigned i = 0; i < 2; i++) {
        fake_take(fake, RDT_MSG_FETCH);
        handles[i] = fake_only_handle(fake);
    }
    MUST(sem_wait(&fake->step) == 0);
    fake_send_object(fake, handles[0], 5, 4096);
    MUST(sem_wait(&fake->step) == 0);
    fake_send_object(fake, handles[1], 6, 4096);
    fake_take(fake, RDT_MSG_PING);
    fake_empty(fake);
    fake_serve(fake);
}

Test(client_threads, fd_tells_when_there_is_something_to_do)
{
    rdt_request *requests[2];
    struct fake fake;
    size_t n;
    rdt *conn = fake_client(&fake, answer_on_signal, NULL);
    int fd = rdt_fd(conn);

    requests[0] = fetch(conn, "x", LONG_NS);
    requests[1] = fetch(conn, "y", LONG_NS);
    cr_assert(!readable(fd, 0));
    assert_status(RDT_OK, rdt_dispatch(conn, &n, &err));
    cr_assert_eq(n, 0);

    sem_post(&fake.step); /* an answer */
    cr_assert(readable(fd, LONG_NS));
    assert_status(RDT_OK, rdt_dispatch(conn, &n, &err));
    cr_assert_eq(n, 1);
    assert_status(RDT_OK, rdt_request_status(requests[0], &err));
    cr_assert(!readable(fd, 0));

    sem_post(&fake.step); /* one that another driver reads: here a synchronous call */
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    cr_assert(readable(fd, 0));
    assert_status(RDT_OK, rdt_dispatch(conn, &n, &err));
    cr_assert_eq(n, 1);
    assert_status(RDT_OK, rdt_request_status(requests[1], &err));
    cr_assert(!readable(fd, 0));

    for (unsigned i = 0; i < 2; i++)
        rdt_request_destroy(requests[i]);
    fake_end(&fake, conn);
}

static void keep_then_close(struct fake *fake)
{
    fake_take(fake, RDT_MSG_FETCH);
    fake_take(fake, RDT_MSG_CANCEL);
    MUST(sem_wait(&fake->step) == 0);
}

Test(client_threads, fd_tells_of_deadlines_and_of_the_end)
{
    struct fake fake;
    size_t n;
    rdt *conn = fake_client(&fake, keep_then_close, NULL);
    int fd = rdt_fd(conn);
    rdt_request *request = fetch(conn, "x", 30 * MS);

    cr_assert(readable(fd, LONG_NS));
    assert_status(RDT_OK, rdt_dispatch(conn, &n, &err));
    cr_assert_eq(n, 1);
    assert_status(RDT_TIMED_OUT, rdt_request_status(request, &err));
    cr_assert(!readable(fd, 0));

    sem_post(&fake.step);
    cr_assert(readable(fd, LONG_NS));
    assert_status(RDT_DISCONNECTED, rdt_dispatch(conn, &n, &err));
    cr_assert(!readable(fd, 0), "a loop must not spin after the end");
    rdt_request_destroy(request);
    fake_end(&fake, conn);
}
