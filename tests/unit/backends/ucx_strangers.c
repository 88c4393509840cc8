/* SPDX-License-Identifier: Apache-2.0 */
/* backends/ucx/link: endpoints that connect and never greet keep no node away, and refused ones do not fill the log. The
 * strangers and both nodes are in this process. */
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "backends/ucx/wire.h"
#include "tests/support/backend_host.h"
#include "tests/support/rdtd.h"

#define STRANGERS 160u
#define MAX_ADMITTED 128u /* MAX_STRANGERS of the plug-in */
#define SOON_MS 3000      /* less than a stranger may take to greet */
#define PATIENCE_MS 20000

static struct rdt_error err;
static struct backend_host nodes[2];
static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h endpoints[STRANGERS];
static unsigned n_failed;

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)arg;
    (void)ep;
    (void)status;
    n_failed++;
}

static void strangers_begin(void)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM};
    const ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                               .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_config_t *config;

    cr_assert_eq(ucp_config_read(NULL, NULL, &config), UCS_OK);
    cr_assert_eq(ucp_config_modify(config, "TLS", "tcp"), UCS_OK);
    cr_assert_eq(ucp_config_modify(config, "NET_DEVICES", "lo"), UCS_OK);
    cr_assert_eq(ucp_init(&params, config, &context), UCS_OK);
    ucp_config_release(config);
    cr_assert_eq(ucp_worker_create(context, &worker_params, &worker), UCS_OK);
}

/* Works until the node has turned away as many strangers as it cannot admit, or some would be refused for not greeting in
 * time. */
static void await_refusals(unsigned n)
{
    int64_t deadline_ns = now_ns() + SOON_MS * MSEC;

    while (n_failed < n && now_ns() < deadline_ns)
        if (ucp_worker_progress(worker) == 0)
            (void)sched_yield();
}

static void connect_strangers(const struct sockaddr_storage *address)
{
    for (unsigned i = 0; i < STRANGERS; i++) {
        const ucp_ep_params_t params = {
            .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER,
            .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
            .sockaddr = {(const struct sockaddr *)address, sizeof(struct sockaddr_in)},
            .err_mode = UCP_ERR_HANDLING_MODE_PEER,
            .err_handler.cb = on_error,
        };

        cr_assert_eq(ucp_ep_create(worker, &params, &endpoints[i]), UCS_OK);
        while (ucp_worker_progress(worker))
            ;
    }
    await_refusals(STRANGERS - MAX_ADMITTED);
}

static void strangers_end(void)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};

    for (unsigned i = 0; i < STRANGERS; i++) {
        ucs_status_ptr_t request = ucp_ep_close_nbx(endpoints[i], &param);

        while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS)
            (void)ucp_worker_progress(worker);
        if (UCS_PTR_IS_PTR(request))
            ucp_request_free(request);
    }
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
}

static void move_one(struct host_conn *from, struct host_conn *to)
{
    static uint8_t source[100000], target[100000];
    struct host_op send, recv;

    memset(source, 7, sizeof source);
    host_op_fill(&recv, 1, 0, target, sizeof target);
    host_op_fill(&send, 1, 0, source, sizeof source);
    cr_assert_eq(host_op_post(to, &recv, POST_RECV, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(host_op_post(from, &send, POST_SEND, &err), RDT_OK, "%s", err.msg);
    cr_assert(host_op_wait(&send, SOON_MS) && host_op_wait(&recv, SOON_MS), "strangers keep a node away: %s%s", from->msg,
              to->msg);
    cr_assert(send.status == RDT_OK && recv.status == RDT_OK, "%s%s", send.msg, recv.msg);
    cr_assert_eq(memcmp(source, target, sizeof source), 0);
}

static void open_nodes(void)
{
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_eq(backend_host_load(&nodes[i], build_path("backends/rdt_ucx.so"), &err), RDT_OK, "%s", err.msg);
        cr_assert_eq(backend_host_open(&nodes[i], NULL, &err), RDT_OK, "%s", err.msg);
    }
}

static void leave(struct host_conn *conn)
{
    cr_assert(host_conn_disconnect(conn, PATIENCE_MS));
    host_conn_destroy(conn);
}

static void close_nodes(void)
{
    for (unsigned i = 0; i < 2; i++)
        backend_host_close(&nodes[i]);
}

TestSuite(ucx_strangers, .init = open_nodes, .fini = close_nodes, .timeout = 60);

Test(ucx_strangers, many_keep_no_node_away)
{
    struct sockaddr_storage addresses[MAX_ENGINES];
    uint8_t blob[RDT_OFFER_MAX_BYTES], token[TOKEN_BYTES];
    struct host_conn conns[2];
    unsigned n;
    size_t bytes;

    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(host_conn_create(&nodes[i], &conns[i], &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(nodes[0].ops->offer(conns[0].handle, blob, &bytes, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(wire_read_offer(blob, bytes, addresses, &n, token, &err), RDT_OK, "%s", err.msg);
    strangers_begin();
    connect_strangers(&addresses[0]);
    cr_expect_geq(n_failed, STRANGERS - MAX_ADMITTED, "%u of %u strangers are let in", STRANGERS - n_failed, STRANGERS);
    cr_assert_eq(host_conn_join(&conns[0], &conns[1], &err), RDT_OK, "%s", err.msg);
    move_one(&conns[1], &conns[0]);
    for (unsigned i = 0; i < 2; i++)
        leave(&conns[i]);
    strangers_end();
}

Test(ucx_strangers, refused_ones_do_not_fill_the_log)
{
    enum { REFUSED = 20 };
    uint8_t blob[RDT_OFFER_MAX_BYTES], byte = 1;
    struct host_conn owner;
    size_t bytes;

    cr_assert_eq(host_conn_create(&nodes[0], &owner, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(nodes[0].ops->offer(owner.handle, blob, &bytes, &err), RDT_OK, "%s", err.msg);
    blob[bytes - 1] ^= 1; /* of the token */
    for (unsigned i = 0; i < REFUSED; i++) {
        struct host_conn conn;
        struct host_op send;

        cr_assert_eq(host_conn_create(&nodes[1], &conn, &err), RDT_OK, "%s", err.msg);
        cr_assert_eq(nodes[1].ops->connect(conn.handle, blob, bytes, &err), RDT_OK, "%s", err.msg);
        host_op_fill(&send, 1, 0, &byte, 1);
        cr_assert_eq(host_op_post(&conn, &send, POST_SEND, &err), RDT_OK, "%s", err.msg);
        cr_assert(host_conn_wait_failed(&conn, PATIENCE_MS), "a token that is not the offer's is accepted");
        leave(&conn);
    }
    cr_expect_leq(nodes[0].n_lines, REFUSED / 2, "%u of %u refused connections made a line of the log", nodes[0].n_lines,
                  REFUSED);
    leave(&owner);
}
