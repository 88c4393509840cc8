/* SPDX-License-Identifier: Apache-2.0 */
/* The faulty test transport fails as configured, on which the tests that use it rely. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/backend_host.h"

#define BYTES 100000
#define LATER_MS 10000

static struct backend_host a_host, b_host;
static struct host_conn a, b;
static struct rdt_error err;
static char fault_file[] = "/tmp/rdt-faults-XXXXXX";
static uint8_t from[BYTES], to[BYTES];
static struct host_op sends[6], recvs[6];

static void faults(const char *text)
{
    FILE *file = fopen(fault_file, "we");

    cr_assert_not_null(file);
    cr_assert_geq(fputs(text, file), 0);
    cr_assert_eq(fclose(file), 0);
}

/* a sends; b receives, and is the faulty one. */
static void setup(void)
{
    static struct config_pair config[] = {{"fault_file", NULL}, {NULL, NULL}};
    const char *build = getenv("RDT_BUILD_DIR");
    char so[256];
    int fd = mkstemp(fault_file);

    cr_assert_geq(fd, 0);
    (void)close(fd);
    config[0].value = fault_file;
    (void)snprintf(so, sizeof so, "%s/tests/rdt_loopback.so", build ? build : "build/release");
    cr_assert_eq(backend_host_load(&a_host, so, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(backend_host_load(&b_host, so, &err), RDT_OK);
    cr_assert_eq(backend_host_open(&a_host, NULL, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(backend_host_open(&b_host, config, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(host_conn_create(&a_host, &a, &err), RDT_OK);
    cr_assert_eq(host_conn_create(&b_host, &b, &err), RDT_OK);
    cr_assert_eq(host_conn_join(&a, &b, &err), RDT_OK);
    pattern_fill(from, BYTES, 1);
}

static void teardown(void)
{
    cr_assert(host_conn_disconnect(&a, LATER_MS));
    cr_assert(b.n_closed || host_conn_disconnect(&b, LATER_MS));
    host_conn_destroy(&a);
    host_conn_destroy(&b);
    backend_host_close(&a_host);
    backend_host_close(&b_host);
    (void)unlink(fault_file);
}

TestSuite(loopback_faults, .init = setup, .fini = teardown);

static long now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void post(unsigned i, bool with_send)
{
    host_op_fill(&recvs[i], 1, i, to, BYTES);
    cr_assert_eq(host_op_post(&b, &recvs[i], POST_RECV, &err), RDT_OK);
    host_op_fill(&sends[i], 1, i, from, BYTES);
    if (with_send)
        cr_assert_eq(host_op_post(&a, &sends[i], POST_SEND, &err), RDT_OK);
}

Test(loopback_faults, every_third_fails_and_the_switch_works)
{
    faults("fail_every=3\n");
    for (unsigned i = 0; i < 6; i++) {
        post(i, true);
        cr_assert(host_op_wait(&recvs[i], LATER_MS) && host_op_wait(&sends[i], LATER_MS));
        cr_assert_eq(recvs[i].status, i % 3 == 2 ? RDT_TRANSPORT : RDT_OK);
    }
    faults("");
    for (unsigned i = 0; i < 6; i++) {
        post(i, true);
        cr_assert(host_op_wait(&recvs[i], LATER_MS) && host_op_wait(&sends[i], LATER_MS));
        cr_assert_eq(recvs[i].status, RDT_OK);
    }
}

Test(loopback_faults, lost_operation_ends_by_disconnect_only)
{
    faults("lose_every=2\n");
    post(0, true);
    post(1, true);
    post(2, true);
    cr_assert(host_op_wait(&recvs[0], LATER_MS) && host_op_wait(&recvs[2], LATER_MS));
    host_op_cancel(&recvs[1]);
    cr_assert_not(host_op_wait(&recvs[1], 100));
    cr_assert(host_conn_disconnect(&b, LATER_MS));
    cr_assert_eq(recvs[1].status, RDT_CANCELLED);
}

Test(loopback_faults, no_abort_ignores_a_cancel)
{
    faults("no_abort=yes\n");
    post(0, false);
    host_op_cancel(&recvs[0]);
    cr_assert_not(host_op_wait(&recvs[0], 100));
    cr_assert_eq(host_op_post(&a, &sends[0], POST_SEND, &err), RDT_OK);
    cr_assert(host_op_wait(&recvs[0], LATER_MS));
    cr_assert_eq(recvs[0].status, RDT_OK);
}

Test(loopback_faults, late_bytes_land_before_the_end)
{
    long start_ms = now_ms();

    memset(to, CANARY, BYTES);
    faults("late_ms=100\n");
    post(0, false);
    host_op_cancel(&recvs[0]);
    cr_assert(host_op_wait(&recvs[0], LATER_MS));
    cr_assert_geq(now_ms() - start_ms, 100);
    cr_assert_eq(recvs[0].status, RDT_CANCELLED);
    cr_assert_neq(to[0], CANARY);
    cr_assert_neq(to[BYTES - 1], CANARY);
}

Test(loopback_faults, delayed_disconnect_still_closes)
{
    long start_ms = now_ms();

    faults("disconnect_delay_ms=200\n");
    post(0, false);
    cr_assert(host_conn_disconnect(&b, LATER_MS));
    cr_assert_geq(now_ms() - start_ms, 200);
    cr_assert(host_op_ended(&recvs[0]));
}
