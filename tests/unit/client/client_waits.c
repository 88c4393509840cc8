/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a daemon that reads and never answers: every call ends by default, and when the caller is interrupted. The
 * clock of this program is the test's. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/rdt_info.h"
#include "client/session/clock.h"
#include "tests/support/fakes/fake_daemon.h"

#define SECOND INT64_C(1000000000)

static struct rdt_error err;
static _Atomic int64_t ahead_s; /* of the monotonic clock */

int clock_gettime(clockid_t clock, struct timespec *at_p)
{
    int status = (int)syscall(SYS_clock_gettime, clock, at_p);

    if (clock == CLOCK_MONOTONIC)
        at_p->tv_sec += ahead_s;
    return status;
}

static int64_t write_s; /* what one write takes, as from a slow file */

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    ahead_s += write_s;
    return syscall(SYS_pwrite64, fd, data, bytes, at);
}

static bool gives_back(uint16_t type)
{
    return type == RDT_MSG_CANCEL_REQUEST || type == RDT_MSG_CANCEL || type == RDT_MSG_RELEASE_REGION || type == RDT_MSG_FREE;
}

/* Moves the clock by arg seconds when a request has come, whose deadline is known by then. */
static void never_answer(struct fake *fake)
{
    while (fake_take_any(fake))
        if (!gives_back(fake->frame.type) || fake->frame.request_id != 0)
            ahead_s += *(int *)fake->arg;
}

/* ---- calls ---- */

static uint8_t bytes[100000];
static const int64_t shape[] = {sizeof bytes};
static const struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = bytes};

static enum rdt_status put_with(rdt *conn, uint32_t flags, int64_t timeout_ns)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;

    options.flags = flags;
    options.timeout_ns = timeout_ns;
    return rdt_put(conn, &tensor, 1, &options, &ref, &err);
}

static enum rdt_status put(rdt *conn)
{
    return put_with(conn, 0, 0);
}

static enum rdt_status put_snapshot(rdt *conn)
{
    return put_with(conn, RDT_PUT_SNAPSHOT, 0);
}

static enum rdt_status put_little(rdt *conn)
{
    const int64_t few[] = {10};
    struct rdt_tensor little = {.dtype = RDT_U8, .ndim = 1, .shape = few, .data = bytes};
    struct rdt_ref ref;

    return rdt_put(conn, &little, 1, NULL, &ref, &err);
}

static enum rdt_status alloc(rdt *conn)
{
    void *addr;

    return rdt_alloc(conn, sizeof bytes, &addr, &err);
}

static struct rdt_ref an_object(void)
{
    struct rdt_ref ref;

    cr_assert_eq(rdt_ref_from_id("x", 1, &ref, &err), RDT_OK);
    ref.generation = 7;
    return ref;
}

static enum rdt_status publish(rdt *conn)
{
    struct rdt_ref ref = an_object();

    return rdt_publish(conn, "n", &ref, NULL, NULL, &err);
}

static enum rdt_status unpublish(rdt *conn)
{
    struct rdt_ref name;

    cr_assert_eq(rdt_ref_from_name("n", 0, NULL, &name, &err), RDT_OK);
    return rdt_unpublish(conn, &name, &err);
}

static enum rdt_status free_it(rdt *conn)
{
    struct rdt_ref ref = an_object();

    return rdt_free(conn, &ref, true, &err);
}

static enum rdt_status hand_on(rdt *conn)
{
    struct rdt_ref ref = an_object();

    return rdt_hand_on(conn, &ref, SECOND, &err);
}

static enum rdt_status list(rdt *conn)
{
    char *text;

    return rdt_info_json(conn, "objects", NULL, NULL, &text, &err);
}

static enum rdt_status (*const calls[])(rdt *) = {put,       put_snapshot, put_little, alloc, publish,
                                                  unpublish, free_it,      hand_on,    list};

/* ---- tests ---- */

static bool go_on(void *arg)
{
    return false;
}

Test(client_waits, every_call_ends_beside_a_daemon_that_does_not_answer, .timeout = 60)
{
    struct fake fake;
    int step_s = 63;
    rdt *conn = fake_client(&fake, never_answer, &step_s);

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        rdt_interrupt_by(go_on, NULL); /* so that it looks at the clock often */
        cr_assert_eq(calls[i](conn), RDT_TIMED_OUT, "call %zu: %s", i, err.msg);
        cr_assert(strstr(err.msg, " within 6") && strstr(err.msg, "rdtctl ping"), "call %zu: %s", i, err.msg);
    }
    rdt_interrupt_by(NULL, NULL);
    fake_end(&fake, conn);
}

Test(client_waits, time_outs_of_puts_count, .timeout = 60)
{
    struct fake fake;
    int step_s = 63;
    rdt *conn = fake_client(&fake, never_answer, &step_s);

    rdt_interrupt_by(go_on, NULL);
    cr_assert_eq(put_with(conn, 0, 40 * SECOND), RDT_TIMED_OUT);
    step_s = 10;
    cr_assert_eq(put_with(conn, 0, SECOND), RDT_TIMED_OUT);
    rdt_interrupt_by(NULL, NULL);
    fake_end(&fake, conn);
}

static void take_snapshot(struct fake *fake)
{
    Rdt__Pb__RegionReply region = MESSAGE(region_reply, .region = 70, .generation = 1, .bytes = sizeof bytes);
    int fd = fake_memfd(sizeof bytes);

    fake_take(fake, RDT_MSG_ALLOC);
    fake_reply_fd(fake, &region.base, fd);
    close(fd);
    fake_take(fake, RDT_MSG_PUT);
    fake_reply_put(fake);
    fake_serve(fake);
}

Test(client_waits, copying_longer_than_the_default_is_no_time_out, .timeout = 60)
{
    struct fake fake;
    rdt *conn = fake_client(&fake, take_snapshot, NULL);

    write_s = 1000;
    cr_assert_eq(put_snapshot(conn), RDT_OK, "%s", err.msg);
    cr_assert_geq(ahead_s, 1000);
    fake_end(&fake, conn);
}

Test(client_waits, default_grows_with_the_bytes)
{
    cr_assert_eq(clock_default_ns(0), 60 * SECOND);
    cr_assert_eq(clock_default_ns(UINT64_C(64) << 20), 61 * SECOND);
    cr_assert_eq(clock_default_ns(UINT64_C(1) << 40), (60 + 16384) * SECOND);
    cr_assert_gt(clock_default_ns(UINT64_MAX), 0);
}

/* ---- interruptions ---- */

static rdt *in_handler;

static bool stop_at_second(void *arg)
{
    int *n = arg;

    if (in_handler) /* a call within the question */
        cr_assert_eq(rdt_ping(in_handler, 0, &err), RDT_TIMED_OUT, "%s", err.msg);
    return ++*n == 2;
}

static void expect_cancels(struct fake *fake)
{
    unsigned n = 0;

    while (fake_take_any(fake))
        n += fake->frame.type == RDT_MSG_CANCEL_REQUEST;
    *(unsigned *)fake->arg = n;
}

Test(client_waits, interrupted_call_ends_and_is_cancelled, .timeout = 60)
{
    struct fake fake;
    unsigned n_cancels = 0;
    rdt *conn = fake_client(&fake, expect_cancels, &n_cancels);
    int n = 0;

    rdt_interrupt_by(stop_at_second, &n);
    cr_assert_eq(put_little(conn), RDT_CANCELLED);
    cr_assert(strstr(err.msg, "interrupted"), "%s", err.msg);
    cr_assert_eq(n, 2);
    cr_assert_eq(alloc(conn), RDT_CANCELLED); /* still: what a call does to clean up does not wait either */
    cr_assert_eq(n, 2);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        n = 0;
        rdt_interrupt_by(stop_at_second, &n);
        cr_assert_eq(calls[i](conn), RDT_CANCELLED, "call %zu: %s", i, err.msg);
    }
    n = 0;
    in_handler = conn;
    rdt_interrupt_by(stop_at_second, &n);
    cr_assert_eq(put_little(conn), RDT_CANCELLED);
    rdt_interrupt_by(NULL, NULL);
    fake_end(&fake, conn);
    cr_assert_geq(n_cancels, 7, "%u", n_cancels);
}
