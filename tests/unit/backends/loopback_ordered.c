/* SPDX-License-Identifier: Apache-2.0 */
/* The test transport's ordered queue really holds up the operations behind its head; otherwise the tests that use it would
 * prove nothing. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/backend_host.h"

#define BYTES 100000
#define LATER_MS 10000
#define STANDS_MS 150 /* an operation that has not ended after this time is taken to be held up */

static struct backend_host hosts[3];
static struct host_conn conns[3][3]; /* [from][to] */
static struct rdt_error err;
static uint8_t from[BYTES], to[3][BYTES];

static void setup(void)
{
    static const struct config_pair config[] = {{"ordered", "yes"}, {NULL, NULL}};
    const char *build = getenv("RDT_BUILD_DIR");
    char so[256];

    (void)snprintf(so, sizeof so, "%s/tests/rdt_loopback.so", build ? build : "build/release");
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(backend_host_load(&hosts[i], so, &err), RDT_OK, "%s", err.msg);
        cr_assert_eq(backend_host_open(&hosts[i], config, &err), RDT_OK, "%s", err.msg);
    }
    for (unsigned i = 0; i < 3; i++)
        for (unsigned k = 0; k < i; k++) {
            cr_assert_eq(host_conn_create(&hosts[i], &conns[i][k], &err), RDT_OK);
            cr_assert_eq(host_conn_create(&hosts[k], &conns[k][i], &err), RDT_OK);
            cr_assert_eq(host_conn_join(&conns[i][k], &conns[k][i], &err), RDT_OK);
        }
    pattern_fill(from, BYTES, 1);
}

static void teardown(void)
{
    for (unsigned i = 0; i < 3; i++)
        for (unsigned k = 0; k < 3; k++)
            if (i != k) {
                cr_assert(conns[i][k].n_closed || host_conn_disconnect(&conns[i][k], LATER_MS));
                host_conn_destroy(&conns[i][k]);
            }
    for (unsigned i = 0; i < 3; i++)
        backend_host_close(&hosts[i]);
}

TestSuite(loopback_ordered, .init = setup, .fini = teardown);

static void post(unsigned node, unsigned peer, struct host_op *op, unsigned transfer, enum post kind)
{
    host_op_fill(op, transfer, 0, kind == POST_SEND ? from : to[node], BYTES);
    cr_assert_eq(host_op_post(&conns[node][peer], op, kind, &err), RDT_OK, "%s", err.msg);
}

Test(loopback_ordered, says_so)
{
    cr_assert_str_eq(hosts[0].ops->queue(conns[0][1].handle, "host", ""), "all");
}

Test(loopback_ordered, one_order_everywhere_moves)
{
    static struct host_op send[3], recv[3];

    for (unsigned i = 0; i < 3; i++) { /* 0 to 1, 1 to 2, 2 to 0, one after the other at both ends */
        post((i + 1) % 3, i, &recv[i], i, POST_RECV);
        post(i, (i + 1) % 3, &send[i], i, POST_SEND);
    }
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(host_op_wait(&recv[i], LATER_MS) && host_op_wait(&send[i], LATER_MS));
        cr_assert(recv[i].status == RDT_OK && send[i].status == RDT_OK && pattern_holds(to[(i + 1) % 3], BYTES, 1));
    }
}

Test(loopback_ordered, receives_at_both_heads_stand_still)
{
    static struct host_op send[2], recv[2]; /* some end with their connection */

    for (unsigned i = 0; i < 2; i++)
        post(i, 1 - i, &recv[i], i, POST_RECV);
    for (unsigned i = 0; i < 2; i++)
        post(i, 1 - i, &send[i], 1 - i, POST_SEND);
    cr_assert_not(host_op_wait(&recv[0], STANDS_MS));
    cr_assert_not(host_op_ended(&recv[1]) || host_op_ended(&send[0]) || host_op_ended(&send[1]));
    host_op_cancel(&recv[0]); /* without it, the other one can move */
    cr_assert(host_op_wait(&recv[1], LATER_MS) && host_op_wait(&send[0], LATER_MS));
    cr_assert(recv[1].status == RDT_OK && recv[0].status == RDT_CANCELLED);
}

Test(loopback_ordered, ring_of_sends_stands_still_until_a_connection_goes)
{
    static struct host_op send[3], recv[3];

    for (unsigned i = 0; i < 3; i++)
        post(i, (i + 1) % 3, &send[i], i, POST_SEND);
    for (unsigned i = 0; i < 3; i++)
        post((i + 1) % 3, i, &recv[i], i, POST_RECV);
    cr_assert_not(host_op_wait(&recv[0], STANDS_MS));
    cr_assert_not(host_op_ended(&recv[1]) || host_op_ended(&recv[2]));
    cr_assert(host_conn_disconnect(&conns[0][1], LATER_MS)); /* send 0 ends, so that 2 to 0 can move, and then 1 to 2 */
    cr_assert(host_op_wait(&recv[2], LATER_MS) && recv[2].status == RDT_OK);
    cr_assert(host_conn_disconnect(&conns[1][0], LATER_MS));
    cr_assert(host_op_wait(&recv[1], LATER_MS) && recv[1].status == RDT_OK);
}
