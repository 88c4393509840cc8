/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against scripted fake daemons that die: the states of the connection, its ends, event loops, threads and forks. */
#include <criterion/criterion.h>
#include <poll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/client/client_resume.h"

static struct rdt_error err;

/* ---- the session ends ---- */

static void forget_the_session(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_WAIT);
    fake_again(fake);
    greet(fake, 2, false, GRACE_NS);
    fake_serve(fake);
}

Test(client_resume_ends, session_that_is_not_resumed_ends_with_restarted)
{
    struct fake fake;
    struct rdt_ref ref = fake_ref("w");
    rdt *conn = start(&fake, forget_the_session, NULL);
    rdt_request *request;
    char expected[256];

    snprintf(expected, sizeof expected,
             "rdtd at %s restarted, and no longer has this session: connect anew; what this session put and held has ended",
             fake.path);
    assert_status(RDT_RESTARTED, rdt_wait_put(conn, &ref, LONG_NS, &err));
    cr_assert_str_eq(err.msg, expected);
    assert_status(RDT_RESTARTED, rdt_ping(conn, LONG_NS, &err));
    assert_status(RDT_RESTARTED, rdt_dispatch(conn, NULL, &err));
    assert_status(RDT_RESTARTED, rdt_wait_put_start(conn, &ref, LONG_NS, &request, &err));
    assert_status(RDT_RESTARTED, rdt_drop(conn, &ref, &err));
    cr_assert_str_eq(err.msg, expected);
    fake_end(&fake, conn);
}

static void close_the_connection(struct fake *fake)
{
    Rdt__Pb__HelloReply reply = RDT__PB__HELLO_REPLY__INIT;

    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_PING);
    fake_again(fake);
    fake_take(fake, RDT_MSG_HELLO); /* the same daemon, with the same boot id, which has ended the session */
    fake_welcome(fake, reply);
    fake_serve(fake);
}

Test(client_resume_ends, same_daemon_without_the_session_is_a_lost_connection)
{
    struct fake fake;
    rdt *conn = start(&fake, close_the_connection, NULL);

    assert_refused(RDT_DISCONNECTED, "is lost: the daemon closed the connection", rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

static void refuse_the_token(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_PING);
    fake_again(fake);
    fake_take(fake, RDT_MSG_HELLO);
    fake_error(fake, RDT_DENIED, "the session belongs to uid 7");
    fake_serve(fake);
}

Test(client_resume_ends, refused_token_says_why)
{
    struct fake fake;
    rdt *conn = start(&fake, refuse_the_token, NULL);

    assert_refused(RDT_RESTARTED, "did not continue this session: the session belongs to uid 7: connect anew",
                   rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

static void die_for_ever(struct fake *fake)
{
    greet(fake, 1, false, 60 * MS);
    fake_take(fake, RDT_MSG_PING);
    fake_die(fake);
    fake->listener = dup(STDERR_FILENO); /* for fake_stop */
}

Test(client_resume_ends, grace_over_ends_the_session)
{
    unsigned fds = fake_count_fds();
    struct fake fake;
    rdt *conn = start(&fake, die_for_ever, NULL);

    assert_refused(RDT_RESTARTED, "ended, and no daemon continued this session within 0.060 s: connect: Connection refused",
                   rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
    cr_assert_eq(fake_count_fds(), fds);
}

static void stay_silent(struct fake *fake)
{
    greet(fake, 1, false, 60 * MS);
    fake_take(fake, RDT_MSG_PING);
    fake_again(fake); /* accepts, and does not answer HELLO */
    while (fake_take_any(fake))
        ;
}

Test(client_resume_ends, silent_daemon_has_the_grace_to_answer)
{
    struct fake fake;
    rdt *conn = start(&fake, stay_silent, NULL);

    assert_refused(RDT_RESTARTED, "within 0.060 s: connect anew", rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

static void keep_nothing(struct fake *fake)
{
    greet(fake, 1, false, 0); /* the daemon has no keeper */
    fake_take(fake, RDT_MSG_PING);
}

Test(client_resume_ends, session_without_a_keeper_is_disconnected_as_ever)
{
    struct fake fake;
    rdt *conn = start(&fake, keep_nothing, NULL);

    assert_refused(RDT_DISCONNECTED, "connect anew; what it put and held has ended", rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

/* ---- on the road back ---- */

static void stumble(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_PING);
    fake_again(fake); /* dies before HELLO */
    fake_take(fake, RDT_MSG_HELLO);
    fake_again(fake); /* dies in HELLO */
    fake_take(fake, RDT_MSG_HELLO);
    fake_error(fake, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    fake_again(fake);
    greet(fake, 2, true, GRACE_NS);
    fake_free(take_resume(fake));
    fake_again(fake); /* dies in RESUME */
    greet(fake, 3, true, GRACE_NS);
    fake_free(take_resume(fake));
    go_on(fake);
    fake_take(fake, RDT_MSG_PING);
    fake_empty(fake);
    fake_take(fake, RDT_MSG_PING);
    fake->frame.request_id = 0; /* a daemon that ends says so, and closes */
    fake_error(fake, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    come_again(fake, 4);
    fake_take(fake, RDT_MSG_PING);
    fake_empty(fake);
    fake_serve(fake);
}

Test(client_resume_ends, daemons_that_die_on_the_way_are_followed_by_others)
{
    unsigned fds = fake_count_fds();
    struct fake fake;
    rdt *conn = start(&fake, stumble, NULL);

    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
    cr_assert_eq(fake_count_fds(), fds);
}

static void stay_away(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_PING);
    fake_die(fake);
    MUST(sem_post(fake->arg) == 0);
    MUST(sem_wait(&fake->step) == 0);
    fake_rise(fake);
    greet(fake, 2, true, GRACE_NS);
    fake_free(take_resume(fake));
    go_on(fake);
    fake_serve(fake);
}

Test(client_resume_ends, deadlines_pass_while_the_daemon_is_away)
{
    struct fake fake;
    struct rdt_ref ref = fake_ref("w");
    rdt_object *object;
    sem_t gone;

    MUST(sem_init(&gone, 0, 0) == 0);
    rdt *conn = start(&fake, stay_away, &gone);
    assert_status(RDT_TIMED_OUT, rdt_ping(conn, 40 * MS, &err));
    MUST(sem_wait(&gone) == 0);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = 40 * MS};
    assert_refused(RDT_TIMED_OUT, "fetch of \"w\": rdtd did not say how it ended",
                   rdt_fetch(conn, &ref, 1, &options, &object, &err));
    cr_assert(strstr(err.msg, "it ended itself, and has not come back yet"), "%s", err.msg);
    assert_status(RDT_TIMED_OUT, rdt_wait_put(conn, &ref, 40 * MS, &err));
    MUST(sem_post(&fake.step) == 0);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}

static void vanish(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_PING);
    fake_die(fake);
    fake->listener = dup(STDERR_FILENO);
    MUST(sem_post(fake->arg) == 0);
}

Test(client_resume_ends, close_and_fork_while_the_daemon_is_away)
{
    unsigned fds = fake_count_fds();
    struct fake fake;
    struct rdt_ref ref = fake_ref("f");
    sem_t gone;
    int how;

    MUST(sem_init(&gone, 0, 0) == 0);
    rdt *conn = start(&fake, vanish, &gone);
    assert_status(RDT_TIMED_OUT, rdt_ping(conn, 40 * MS, &err));
    MUST(sem_wait(&gone) == 0);
    assert_status(RDT_TIMED_OUT, rdt_ping(conn, 40 * MS, &err));
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        bool ok = rdt_ping(conn, 0, NULL) == RDT_FORKED;

        rdt_close(conn);
        _exit(!ok);
    }
    MUST(waitpid(child, &how, 0) == child);
    cr_assert(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_status(RDT_OK, rdt_drop(conn, &ref, &err)); /* close waits for it, but not long */
    fake_end(&fake, conn);
    cr_assert_eq(fake_count_fds(), fds);
}

/* ---- what others wait for ---- */

struct pause {
    sem_t gone, taken;
};

static void take_ready(struct fake *fake)
{
    struct pause *pause = fake->arg;

    greet(fake, 1, false, GRACE_NS);
    fake_die(fake);
    MUST(sem_post(&pause->gone) == 0);
    fake_rise(fake);
    greet(fake, 2, true, GRACE_NS);
    fake_free(take_resume(fake));
    go_on(fake);
    MUST(fake_take_any(fake) && fake->frame.type == RDT_MSG_READY);
    fake_empty(fake);
    MUST(sem_post(&pause->taken) == 0);
    fake_serve(fake);
}

static struct timespec in_long(void)
{
    struct timespec until;

    MUST(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += LONG_NS / 1000000000;
    return until;
}

static rdt *start_pause(struct fake *fake, struct pause *pause)
{
    MUST(sem_init(&pause->gone, 0, 0) == 0 && sem_init(&pause->taken, 0, 0) == 0);
    return start(fake, take_ready, pause);
}

Test(client_resume_ends, ready_reaches_the_next_daemon_without_another_call)
{
    struct timespec until = in_long();
    struct rdt_ref ref = fake_ref("r");
    struct pause pause;
    struct fake fake;
    rdt *conn = start_pause(&fake, &pause);

    MUST(sem_wait(&pause.gone) == 0);
    assert_status(RDT_OK, rdt_ready(conn, &ref, &err));
    cr_assert_eq(sem_timedwait(&pause.taken, &until), 0);
    fake_end(&fake, conn);
}

Test(client_resume_ends, ready_is_sent_by_the_event_loop)
{
    struct rdt_ref ref = fake_ref("r");
    struct pause pause;
    struct fake fake;
    rdt *conn = start_pause(&fake, &pause);
    struct pollfd loop = {.fd = rdt_fd(conn), .events = POLLIN};

    MUST(sem_wait(&pause.gone) == 0);
    assert_status(RDT_OK, rdt_ready(conn, &ref, &err));
    while (sem_trywait(&pause.taken) != 0) {
        (void)poll(&loop, 1, 10);
        assert_status(RDT_OK, rdt_dispatch(conn, NULL, &err));
    }
    fake_end(&fake, conn);
}

static void stay_away_after_ready(struct fake *fake)
{
    greet(fake, 1, false, 100 * MS);
    fake_die(fake);
    fake->listener = dup(STDERR_FILENO);
    MUST(sem_post(fake->arg) == 0);
}

Test(client_resume_ends, ready_says_that_no_daemon_went_on_with_the_session)
{
    struct rdt_ref ref = fake_ref("r");
    struct fake fake;
    sem_t gone;

    MUST(sem_init(&gone, 0, 0) == 0);
    rdt *conn = start(&fake, stay_away_after_ready, &gone);
    MUST(sem_wait(&gone) == 0);
    assert_status(RDT_RESTARTED, rdt_ready(conn, &ref, &err));
    fake_end(&fake, conn);
}

/* ---- event loops and threads ---- */

static void die_in_a_loop(struct fake *fake)
{
    Rdt__Pb__ObjectInfo info = RDT__PB__OBJECT_INFO__INIT;

    greet(fake, 1, false, GRACE_NS);
    fake_take(fake, RDT_MSG_WAIT);
    fake_die(fake);
    fake_rise(fake);
    greet(fake, 2, true, GRACE_NS);
    fake_free(take_resume(fake));
    go_on(fake);
    fake_take(fake, RDT_MSG_WAIT);
    fake_reply(fake, &info.base);
    fake_serve(fake);
}

Test(client_resume_ends, event_loop_goes_on_with_the_same_descriptor)
{
    struct fake fake;
    struct rdt_ref ref = fake_ref("w");
    rdt *conn = start(&fake, die_in_a_loop, NULL);
    struct pollfd loop = {.fd = rdt_fd(conn), .events = POLLIN};
    rdt_request *request;

    assert_status(RDT_OK, rdt_wait_put_start(conn, &ref, LONG_NS, &request, &err));
    while (rdt_request_status(request, &err) == RDT_AGAIN) {
        cr_assert_eq(poll(&loop, 1, (int)(LONG_NS / MS)), 1);
        assert_status(RDT_OK, rdt_dispatch(conn, NULL, &err));
    }
    assert_status(RDT_OK, rdt_request_status(request, &err));
    cr_assert_eq(rdt_fd(conn), loop.fd);
    rdt_request_destroy(request);
    fake_end(&fake, conn);
}

#define THREADS 6
#define TURNS 20

static void die_again_and_again(struct fake *fake)
{
    greet(fake, 1, false, GRACE_NS);
    for (uint8_t boot = 2; boot < 2 + TURNS; boot++) {
        for (unsigned i = 0; i < 2 * THREADS; i++) {
            MUST(fake_take_any(fake));
            fake_empty(fake);
        }
        fake_die(fake);
        fake_rise(fake);
        greet(fake, boot, true, GRACE_NS);
        fake_free(take_resume(fake));
        go_on(fake);
    }
    fake_serve(fake);
}

static void *ping_often(void *arg)
{
    for (unsigned i = 0; i < 4 * TURNS; i++)
        MUST(rdt_ping(arg, LONG_NS, NULL) == RDT_OK);
    return NULL;
}

Test(client_resume_ends, many_threads_go_on)
{
    struct fake fake;
    rdt *conn = start(&fake, die_again_and_again, NULL);
    struct pollfd loop = {.fd = rdt_fd(conn), .events = POLLIN};
    pthread_t threads[THREADS];

    for (unsigned i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, ping_often, conn) == 0);
    for (unsigned i = 0; i < 200; i++) { /* an event loop beside them */
        (void)poll(&loop, 1, 1);
        assert_status(RDT_OK, rdt_dispatch(conn, NULL, &err));
    }
    for (unsigned i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    fake_end(&fake, conn);
}
