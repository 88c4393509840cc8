/* SPDX-License-Identifier: Apache-2.0 */
/* The pulls and serves that move by a connection are told of its end in slices of the loop, however many there are. Nothing
 * here measures time: N of them need more than one slice on any machine. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"

enum { N = 20000 };

static uv_loop_t loop;
static struct deadlines deadlines;
static struct options options;
static struct peer peer;
static struct transfers *transfers;
static struct peer_transport pt;
static struct transfer *pulls;
static struct serve *serves;

static void setup(void)
{
    cr_assert_eq(uv_loop_init(&loop), 0);
    deadlines_init(&deadlines, &loop);
    options.peer_timeout_ns = UINT64_C(3600000000000);
    transfers = calloc(1, sizeof *transfers);
    transfers->deadlines = &deadlines;
    transfers->options = &options;
    transfers_init(transfers);
    pt = (struct peer_transport){.remote = remote_get(transfers, &peer), .epoch = 1};
    pt.remote->ping.due = true; /* a ping is under way: no other is sent */
    pt.sm.state = PT_CONNECTED;
    list_init(&pt.pulls);
    list_init(&pt.serves);
    list_init(&pt.sending);
    cut_off_init(&pt.cut_off);
    pulls = calloc(N, sizeof *pulls);
    for (unsigned i = 0; i < N; i++) {
        pulls[i].transfers = transfers;
        pulls[i].sm.state = i % 2 ? TRANSFER_RESERVE : TRANSFER_MOVE; /* one step fails one */
        pulls[i].pull.peer = pt.remote;
        pulls[i].pull.path.connection = &pt;
        pulls[i].pull.path.epoch = pt.epoch;
        list_append(&pt.pulls, &pulls[i].pull.path.by_connection);
    }
}

static void teardown(void)
{
    for (unsigned i = 0; i < N; i++)
        deadline_unset(&deadlines, &pulls[i].pull.stall);
    free(pulls);
    free(serves);
    transfers_fini(transfers);
    free(transfers);
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(connection, .init = setup, .fini = teardown, .timeout = 60);

static unsigned n_failed(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < N; i++)
        n += pulls[i].pull.failure.status == RDT_TRANSPORT && strcmp(pulls[i].pull.failure.text, "cut") == 0;
    return n;
}

Test(connection, end_is_noted_for_its_pulls_in_slices)
{
    pt.sm.state = PT_CLOSING;
    (void)snprintf(pt.broken, sizeof pt.broken, "cut");
    pull_connection_failed(&pt);
    cr_assert(n_failed() > 0 && n_failed() < N / 2, "%u in one turn", n_failed());
    pt.epoch++; /* it is built anew at once */
    pt.broken[0] = '\0';
    pt.sm.state = PT_CONNECTED;
    cr_assert(pull_is_cut_off(&pulls[N - 2]), "the pull that has not been told must not use the new one");
    list_remove(&pulls[N - 4].pull.path.by_connection); /* it ends meanwhile */
    pulls[N - 3].pull.path.epoch = pt.epoch;            /* it begins meanwhile */
    pulls[N - 3].sm.state = TRANSFER_MOVE;
    while (!list_empty(&pt.cut_off.pulls))
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(n_failed(), N / 2 - 1);
    cr_assert(pulls[N - 3].pull.failure.status == RDT_OK && pulls[N - 4].pull.failure.status == RDT_OK);
}

/* N serves that wait for the end of the operations of their readers. */
static void begin_serves(void)
{
    serves = calloc(N, sizeof *serves);
    for (unsigned i = 0; i < N; i++) {
        serves[i].transfers = transfers;
        serves[i].remote = pt.remote;
        serves[i].sm.state = SERVE_ABORT;
        serves[i].sending.mode = SENDING_READ;
        serves[i].sending.n_ops = 1; /* they do not end here */
        serves[i].sending.start_epoch = pt.remote_epoch;
        peer_transport_use(&serves[i].sending.connection, &pt);
        list_init(&serves[i].sending.by_sending);
        list_append(&pt.serves, &serves[i].sending.by_connection);
    }
}

static unsigned n_stopped(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < N; i++)
        n += serves[i].sending.mode == SENDING_READ_ENDED;
    return n;
}

static void run_to_the_end(void)
{
    while (!list_empty(&pt.cut_off.serves))
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

Test(connection, group_that_is_taken_down_stops_its_serves_in_slices)
{
    struct transport grouped = {.name = "grouped"}; /* it cannot create connections of its own */

    pt.transport = &grouped;
    pt.remote_epoch = pt.epoch;
    begin_serves();
    pt.sm.state = PT_CLOSING;
    serve_connection_failed(&pt);
    cr_assert(!list_empty(&pt.serves) && !list_empty(&pt.cut_off.serves));
    run_to_the_end();
    cr_assert_eq(n_stopped(), 0, "the readers may still read");
    pt.sm.state = PT_NONE;
    pt.remote_epoch = 0;
    serve_connection_failed(&pt);
    cr_assert(n_stopped() > 0 && n_stopped() < N / 2, "%u in one turn", n_stopped());
    pt.remote_epoch = ++pt.epoch; /* the group is formed again at once */
    pt.sm.state = PT_CONNECTED;
    cr_assert(serve_is_cut_off(&serves[N - 1]), "the serve that has not been told must not use the new one");
    list_remove(&serves[N - 3].sending.by_connection); /* it ends meanwhile */
    run_to_the_end();
    cr_assert_eq(n_stopped(), N - 1);
    cr_assert_eq(pt.n_users, N, "the connection is not freed before they have ended");
}
