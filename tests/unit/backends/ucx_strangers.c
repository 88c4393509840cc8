/* SPDX-License-Identifier: Apache-2.0 */
/* backends/ucx/link: endpoints that connect and never greet keep no node away, and refused ones do not fill the log. The node
 * is in this process; strangers and other nodes have processes of their own, because UCX before 1.18 may end a process in
 * which several workers open and close connections (config_threads of the plug-in). */
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "backends/ucx/wire.h"
#include "tests/support/actor.h"
#include "tests/support/backend_host.h"
#include "tests/support/backend_peer.h"
#include "tests/support/rdtd.h"

#define STRANGERS 400u
#define MAX_ADMITTED 128u /* MAX_STRANGERS of the plug-in */
#define SOON_MS 3000      /* less than a stranger may take to greet */
#define PATIENCE_MS 20000
#define SEED 7

static struct rdt_error err;
static struct backend_host node;
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

    must(ucp_config_read(NULL, NULL, &config) == UCS_OK);
    must(ucp_config_modify(config, "TLS", "tcp") == UCS_OK);
    must(ucp_config_modify(config, "NET_DEVICES", "lo") == UCS_OK);
    must(ucp_init(&params, config, &context) == UCS_OK);
    ucp_config_release(config);
    must(ucp_worker_create(context, &worker_params, &worker) == UCS_OK);
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

        must(ucp_ep_create(worker, &params, &endpoints[i]) == UCS_OK);
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

/* Connects to the address that the test sends, says how many were turned away, and stays until the test's next step. */
static int strangers(struct actor *self, void *arg)
{
    struct sockaddr_storage address;

    (void)arg;
    actor_recv(self, &address, sizeof address);
    strangers_begin();
    connect_strangers(&address);
    actor_send(self, &n_failed, sizeof n_failed);
    actor_await(self);
    strangers_end();
    return 0;
}

static void open_node(void)
{
    must_say(backend_host_load(&node, build_path("backends/rdt_ucx.so"), &err) == RDT_OK, "%s", err.msg);
    must_say(backend_host_open(&node, NULL, &err) == RDT_OK, "%s", err.msg);
}

static void offer(struct host_conn *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p)
{
    cr_assert_eq(host_conn_create(&node, conn, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(node.ops->offer(conn->handle, blob, bytes_p, &err), RDT_OK, "%s", err.msg);
}

static void receive_one(struct host_conn *conn, struct backend_peer *peer)
{
    static uint8_t target[100000];
    struct host_op recv;

    host_op_fill(&recv, 1, 0, target, sizeof target);
    cr_assert_eq(host_op_post(conn, &recv, POST_RECV, &err), RDT_OK, "%s", err.msg);
    cr_assert(backend_peer_send(peer, 1, 0, sizeof target, SEED));
    cr_assert(host_op_wait(&recv, SOON_MS), "strangers keep a node away: %s", conn->msg);
    cr_assert_eq(recv.status, RDT_OK, "%s", recv.msg);
    cr_assert_eq(backend_peer_wait(peer, 1, 0, SEED, SOON_MS), RDT_OK);
    cr_assert(pattern_holds(target, sizeof target, SEED));
}

static void leave(struct host_conn *conn)
{
    must(host_conn_disconnect(conn, PATIENCE_MS));
    host_conn_destroy(conn);
}

TestSuite(ucx_strangers, .timeout = 60);

Test(ucx_strangers, many_keep_no_node_away)
{
    struct sockaddr_storage address;
    uint8_t blob[RDT_OFFER_MAX_BYTES], token[TOKEN_BYTES];
    struct host_conn conn;
    struct backend_peer peer;
    struct actor actor;
    unsigned n_refused;
    size_t bytes;

    actor_start(&actor, strangers, NULL);
    cr_assert(backend_peer_start(&peer, build_path("backends/rdt_ucx.so")));
    open_node();
    offer(&conn, blob, &bytes);
    cr_assert_eq(wire_read_offer(blob, bytes, &address, token, &err), RDT_OK, "%s", err.msg);
    actor_send(&actor, &address, sizeof address);
    actor_recv(&actor, &n_refused, sizeof n_refused);
    cr_expect_geq(n_refused, STRANGERS - MAX_ADMITTED, "%u of %u strangers are let in", STRANGERS - n_refused, STRANGERS);
    cr_assert(backend_peer_join(&peer, &conn));
    receive_one(&conn, &peer);
    leave(&conn);
    cr_expect(backend_peer_stop(&peer));
    actor_step(&actor);
    actor_wait(&actor);
    backend_host_close(&node);
}

struct forged {
    uint8_t blob[RDT_OFFER_MAX_BYTES];
    size_t bytes;
};

enum { REFUSED = 20 };

/* Another node, which shows the token of the test's offer. */
static int forger(struct actor *self, void *arg)
{
    struct forged forged;
    uint8_t byte = 1;

    (void)arg;
    actor_recv(self, &forged, sizeof forged);
    open_node();
    for (unsigned i = 0; i < REFUSED; i++) {
        struct host_conn conn;
        struct host_op send;

        must(host_conn_create(&node, &conn, &err) == RDT_OK);
        must(node.ops->connect(conn.handle, forged.blob, forged.bytes, &err) == RDT_OK);
        host_op_fill(&send, 1, 0, &byte, 1);
        must(host_op_post(&conn, &send, POST_SEND, &err) == RDT_OK);
        must_say(host_conn_wait_failed(&conn, PATIENCE_MS), "a token that is not the offer's is accepted");
        leave(&conn);
    }
    backend_host_close(&node);
    return 0;
}

Test(ucx_strangers, refused_ones_do_not_fill_the_log)
{
    struct forged forged;
    struct host_conn owner;
    struct actor actor;

    actor_start(&actor, forger, NULL);
    open_node();
    offer(&owner, forged.blob, &forged.bytes);
    forged.blob[forged.bytes - 1] ^= 1; /* of the token */
    actor_send(&actor, &forged, sizeof forged);
    actor_wait(&actor);
    leave(&owner);
    backend_host_close(&node);
    cr_expect_leq(node.n_lines, REFUSED / 2, "%u of %u refused connections made a line of the log", node.n_lines, REFUSED);
}
