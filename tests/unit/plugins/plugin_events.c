/* How the ends of operations wake the loop: one by one, or a few together where many end fast. The test is both the loop and the
 * foreign thread. */
#include <criterion/criterion.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>

#include "daemon/plugins/plugin.h"
#include "daemon/plugins/plugin_events.h"

#define MANY 64

static uv_loop_t loop;
static struct plugin_events events;
static struct rdt_host host;
static struct transport transport = {.name = "test", .events = &events};
static struct plugin_conn conn = {.transport = &transport};
static struct plugin_op ops[MANY];
static unsigned n_done;
static struct rdt_error err;

static enum rdt_status take(void *conn_handle, struct rdt_op *op, struct rdt_error *error)
{
    (void)conn_handle, (void)op, (void)error;
    return RDT_OK;
}

static void on_done(struct plugin_op *op, enum rdt_status status, const char *msg)
{
    (void)op, (void)status, (void)msg;
    n_done++;
}

static void on_closed(struct plugin_events *closed)
{
    (void)closed;
}

static void setup(void)
{
    (void)uv_loop_init(&loop);
    cr_assert_eq(plugin_events_init(&events, &loop, &err), RDT_OK);
    plugin_events_host(&host);
    transport.ops.post_send = take;
}

static void teardown(void)
{
    plugin_events_close(&events, on_closed);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0);
}

TestSuite(plugin_events, .init = setup, .fini = teardown, .timeout = 60);

static void post(unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++) {
        ops[i] = (struct plugin_op){.on_done = on_done};
        cr_assert_eq(plugin_op_send(&conn, &ops[i], &err), RDT_OK);
    }
}

static void end(unsigned i, enum rdt_status status)
{
    host.op_done(&ops[i].op, status, NULL);
}

static bool woken(void)
{
    struct pollfd pollfd = {.fd = events.wake.fd, .events = POLLIN};
    return poll(&pollfd, 1, 0) == 1;
}

/* Until they may gather: fast enough on any machine, sooner or later. */
static void end_fast(void)
{
    do {
        post(0, 8);
        for (unsigned i = 0; i < 8; i++)
            end(i, RDT_OK);
        n_done = 0;
        while (n_done < 8)
            (void)uv_run(&loop, UV_RUN_ONCE);
    } while (events.gather < 3);
}

Test(plugin_events, first_end_of_few_wakes)
{
    post(0, 4);
    for (unsigned i = 0; i < 4; i++) {
        end(i, RDT_OK);
        cr_assert(woken());
        (void)uv_run(&loop, UV_RUN_ONCE);
        cr_assert_eq(n_done, i + 1);
    }
}

Test(plugin_events, fast_ends_share_a_wake)
{
    post(8, MANY);
    end_fast();
    post(0, 8);
    for (unsigned i = 0; i < events.gather - 1; i++)
        end(i, RDT_OK);
    cr_assert_not(woken());
    end(events.gather - 1, RDT_OK);
    cr_assert(woken());
}

Test(plugin_events, loop_looks_when_no_more_come)
{
    post(8, MANY);
    end_fast();
    post(0, 1);
    n_done = 0;
    end(0, RDT_OK);
    cr_assert_not(woken());
    while (n_done < 1)
        (void)uv_run(&loop, UV_RUN_ONCE);
    while (events.gather > 0) /* and ends up asleep */
        (void)uv_run(&loop, UV_RUN_ONCE);
    cr_assert_not(uv_is_active((uv_handle_t *)&events.look));
    post(0, 1);
    end(0, RDT_OK);
    cr_assert(woken());
}

Test(plugin_events, failure_wakes_at_once)
{
    post(8, MANY);
    end_fast();
    post(0, 2);
    end(0, RDT_OK);
    cr_assert_not(woken());
    end(1, RDT_TRANSPORT);
    cr_assert(woken());
    n_done = 0;
    (void)uv_run(&loop, UV_RUN_ONCE);
    cr_assert_eq(n_done, 2);
}

/* Beside operations that stand still: each would come fast enough, and none has another to wait for. */
Test(plugin_events, one_after_the_other_seldom_wait)
{
    unsigned waited = 0;
    post(8, MANY);
    for (unsigned i = 0; i < 1000; i++) {
        post(0, 1);
        n_done = 0;
        end(0, RDT_OK);
        waited += !woken();
        while (n_done < 1)
            (void)uv_run(&loop, UV_RUN_ONCE);
    }
    cr_assert_lt(waited, 100, "%u of 1000 waited for the next", waited);
}

Test(plugin_events, gather_again_after_waits_in_vain)
{
    post(8, MANY);
    end_fast();
    for (unsigned i = 0; i < 4; i++) {
        post(0, 1);
        n_done = 0;
        end(0, RDT_OK);
        while (n_done < 1 || events.gather > 0)
            (void)uv_run(&loop, UV_RUN_ONCE);
    }
    end_fast();
}
