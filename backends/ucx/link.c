/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints: this file opens them, exchanges greetings, and closes them.
 *
 * The end that has bytes to send opens a link. Its first message, HELLO, carries the one-time token that the listener gave to
 * this peer over the peer link. The listener answers WELCOME, and only then data flows. A link that sends anything else first,
 * or nothing within HELLO_NS, is closed. A connection that has bytes to send, and whose link gets no WELCOME within DIAL_NS,
 * has failed. UCX's callbacks only mark a link; links_settle does the rest after progress.
 *
 * This file uses only the address, token and id of a connection. It reports what happens to a link by
 * engine->link_events.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/common/states.h"
#include "backends/ucx/ucx.h"

#define HELLO_NS (5 * 1000000000ull) /* how long a stranger may take for its greeting */
#define DIAL_NS \
    (10 * 1000000000ull) /* how long the other end may take to answer ours: less than the default of stall_timeout */
#define SECOND_NS 1000000000ull
/* How many connections are accepted between two calls of progress. UCX queues the events of a descriptor while it works on
 * it, and keeps them when it closes the descriptor. The next connection with the same number then gets an event that an
 * assertion does not expect (openucx/ucx#11455). So a connection is closed only after a progress has followed its acceptance,
 * and one that makes room for others only after several, because MAX_STRANGERS_OF_SOURCE is greater. A rejection would close
 * at once. */
#define MAX_ACCEPTED 32u

/* ---- states ---- */

static void set_state(struct link *link, enum link_state to)
{
    static const struct sm_state states[] = {
        [LINK_FRESH] = {"fresh link", 1u << LINK_READY | 1u << LINK_FAILED | 1u << LINK_CLOSING},
        [LINK_READY] = {"ready link", 1u << LINK_FAILED | 1u << LINK_CLOSING},
        [LINK_FAILED] = {"failed link", 1u << LINK_CLOSING},
        [LINK_CLOSING] = {"closing link", 0},
    };

    states_check(&link->engine->host, states, LINK_CLOSING + 1, link->state, to);
    link->state = to;
}

static struct ring *bucket_of(struct engine *engine, ucp_ep_h ep)
{
    return &engine->links[((uintptr_t)ep >> 4) * 0x9e3779b97f4a7c15u >> 32 & (LINK_BUCKETS - 1)];
}

struct link *link_find(struct engine *engine, ucp_ep_h ep)
{
    struct ring *bucket = bucket_of(engine, ep);

    for (struct ring *at = bucket->next; at != bucket; at = at->next)
        if (container_of(at, struct link, ring)->ep == ep)
            return container_of(at, struct link, ring);
    return NULL;
}

static void settle_later(struct link *link)
{
    if (ring_empty(&link->dying))
        ring_append(&link->engine->dying, &link->dying);
}

void link_fail(struct link *link, ucs_status_t error, const char *fault)
{
    if (link->state == LINK_FAILED || link->state == LINK_CLOSING)
        return;
    set_state(link, LINK_FAILED);
    link->error = error;
    link->fault = fault;
    settle_later(link);
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    link_fail(arg, status, NULL);
}

/* ---- opening ---- */

static struct link *link_create(struct engine *engine, bool incoming, ucp_ep_params_t *params)
{
    struct link *link = calloc(1, sizeof *link);
    ucs_status_t status;

    if (!link)
        return NULL;
    link->engine = engine;
    link->incoming = incoming;
    ring_init(&link->dying);

    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_error;
    params->err_handler.arg = link;
    status = ucp_ep_create(engine->worker, params, &link->ep);
    if (status != UCS_OK) {
        engine->host.log(engine->host.ctx, RDT_LOG_DEBUG, "cannot create an endpoint: %s", ucs_status_string(status));
        free(link);
        return NULL;
    }
    ring_append(bucket_of(engine, link->ep), &link->ring);
    engine->n_links++;
    return link;
}

static void on_greeted(void *request, ucs_status_t status, void *user_data)
{
    struct link *link = user_data;

    ucp_request_free(request);
    link->requests--;
    if (status != UCS_OK)
        link_fail(link, status, NULL);
    if (link->state == LINK_CLOSING)
        settle_later(link);
}

static void greet(struct link *link, unsigned id)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER,
        .cb.send = on_greeted,
        .user_data = link,
    };
    ucs_status_ptr_t request;

    request = ucp_am_send_nbx(link->ep, id, &link->greeting, sizeof link->greeting, NULL, 0, &param);
    if (UCS_PTR_IS_ERR(request))
        link_fail(link, UCS_PTR_STATUS(request), NULL);
    else if (request)
        link->requests++;
}

struct link *link_open(struct conn *conn)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr.addr = (const struct sockaddr *)&conn->peer.address,
        .sockaddr.addrlen = conn->peer.address.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6),
    };
    struct link *link = link_create(conn->engine, false, &params);

    if (!link)
        return NULL;
    link->conn = conn;
    link->deadline_ns = monotonic_ns() + DIAL_NS;
    wire_put_greeting(&link->greeting, conn->peer.token, TOKEN_BYTES);
    greet(link, AM_HELLO);
    return link;
}

/* Adds the link to the strangers, of whom another may have to make room (strangers.h). */
static void admit(struct link *link, const struct sockaddr_storage *address)
{
    struct stranger *evicted;

    strangers_source(address, link->stranger.source);
    evicted = strangers_admit(&link->engine->strangers, &link->stranger, false);
    if (!evicted)
        return;
    link = container_of(evicted, struct link, stranger);
    link->evicted = true;
    link_fail(link, UCS_OK, "it was closed to make room for others");
}

static void accept_request(struct engine *engine, ucp_conn_request_h request)
{
    ucp_conn_request_attr_t attr = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
        .conn_request = request,
    };
    struct link *link;

    if (ucp_conn_request_query(request, &attr) != UCS_OK)
        attr.client_address.ss_family = AF_UNSPEC; /* all links without an address count as one source */
    link = link_create(engine, true, &params);     /* UCX consumes the request in either case */
    if (!link)
        return;
    link->deadline_ns = monotonic_ns() + HELLO_NS;
    admit(link, &attr.client_address);
}

void links_accept(struct engine *engine)
{
    unsigned n = engine->n_requests < MAX_ACCEPTED ? engine->n_requests : MAX_ACCEPTED;

    if (n == 0)
        return;
    for (unsigned i = 0; i < n; i++)
        accept_request(engine, engine->requests[i]);
    engine->n_requests -= n;
    memmove(engine->requests, engine->requests + n, engine->n_requests * sizeof *engine->requests);
}

/* No connection is rejected, however many come at once: see MAX_ACCEPTED. UCX has accepted each of them already. */
static void on_request(ucp_conn_request_h request, void *arg)
{
    struct engine *engine = arg;

    if (engine->n_requests == engine->max_requests) {
        unsigned max = engine->max_requests ? 2 * engine->max_requests : 32;
        ucp_conn_request_h *requests = realloc(engine->requests, max * sizeof *requests);

        if (!requests) {
            (void)ucp_listener_reject(engine->listener, request);
            return;
        }
        engine->requests = requests;
        engine->max_requests = max;
    }
    engine->requests[engine->n_requests++] = request;
}

/* ---- greetings ---- */

static bool well_formed(const void *header, size_t header_bytes, size_t bytes, const ucp_am_recv_param_t *param,
                        struct greeting *greeting_p)
{
    return wire_read_greeting(header, header_bytes, bytes, param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV, greeting_p);
}

static ucs_status_t on_hello(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                             const ucp_am_recv_param_t *param)
{
    struct engine *engine = arg;
    struct link *link = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP ? link_find(engine, param->reply_ep) : NULL;
    struct greeting greeting;
    struct conn *conn;
    uint64_t conn_id;

    (void)data;
    if (!link)
        return UCS_OK; /* the endpoint is not of our listener */
    if (link->state != LINK_FRESH || !link->incoming || !well_formed(header, header_bytes, bytes, param, &greeting)) {
        link_fail(link, UCS_OK, "its greeting is malformed or unexpected");
        return UCS_OK;
    }
    conn = engine->link_events->take_token(engine, greeting.secret);
    if (!conn) {
        link_fail(link, UCS_OK, "its token is unknown or was used before");
        return UCS_OK;
    }
    set_state(link, LINK_READY);
    strangers_remove(&engine->strangers, &link->stranger);
    link->conn = conn;
    conn->links.in = link;
    engine->link_events->on_ready(conn, link);
    conn_id = htole64(conn_id_of(conn->token.bytes));
    wire_put_greeting(&link->greeting, &conn_id, sizeof conn_id);
    greet(link, AM_WELCOME);
    return UCS_OK;
}

static ucs_status_t on_welcome(void *arg, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param)
{
    struct engine *engine = arg;
    struct link *link = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP ? link_find(engine, param->reply_ep) : NULL;
    struct greeting greeting;

    (void)data;
    if (!link)
        return UCS_OK;
    if (!link->conn && !link->incoming) {
        link_fail(link, UCS_OK, "its connection was closed in the meantime");
        return UCS_OK;
    }
    if (link->state != LINK_FRESH || link->incoming || !well_formed(header, header_bytes, bytes, param, &greeting)) {
        link_fail(link, UCS_OK, "its answer to the greeting is malformed or unexpected");
        return UCS_OK;
    }
    if (wire_greeting_conn_id(&greeting) != conn_id_of(link->conn->peer.token)) {
        link_fail(link, UCS_OK, "its answer to the greeting belongs to another connection");
        return UCS_OK;
    }
    set_state(link, LINK_READY);
    engine->link_events->on_ready(link->conn, link);
    return UCS_OK;
}

/* ---- closing ---- */

static void on_closed(void *request, ucs_status_t status, void *user_data)
{
    struct link *link = user_data;

    (void)status;
    ucp_request_free(request);
    link->closed = true;
    settle_later(link);
}

void link_close(struct link *link)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_closed,
        .user_data = link,
    };
    ucs_status_ptr_t request;

    if (link->state == LINK_CLOSING)
        return;
    strangers_remove(&link->engine->strangers, &link->stranger);
    set_state(link, LINK_CLOSING);
    ring_remove(&link->ring);
    request = ucp_ep_close_nbx(link->ep, &param);
    if (!request || UCS_PTR_IS_ERR(request)) {
        link->closed = true;
        settle_later(link);
    }
}

/* UCX aborts the process when an endpoint is closed while it connects (1.13: an assertion of tcp_sockcm). No operation runs on
 * such a link yet, so its connection does not wait for it; the link is closed when it has connected or failed. */
bool link_abandon(struct link *link)
{
    if (link->incoming || link->state != LINK_FRESH)
        return false;
    link->conn = NULL;
    return true;
}

/* Logs at most one line a second above debug level, so that strangers cannot fill the log. */
static void log_stranger(struct link *link, const char *why)
{
    struct engine *engine = link->engine;
    uint64_t now_ns = monotonic_ns();
    bool quiet = !link->fault || !link->incoming || link->evicted || now_ns < engine->quiet_until_ns;

    if (!quiet)
        engine->quiet_until_ns = now_ns + SECOND_NS;
    engine->host.log(engine->host.ctx, quiet ? RDT_LOG_DEBUG : RDT_LOG_INFO, "closing an endpoint: %s", why);
}

static void report_failure(struct link *link)
{
    char msg[128];

    (void)snprintf(msg, sizeof msg, "%s", link->fault ? link->fault : ucs_status_string(link->error));
    if (link->conn) {
        link->engine->link_events->on_failed(link->conn, link->fault ? RDT_PROTOCOL : RDT_PEER_LOST, msg);
        return;
    }
    log_stranger(link, msg);
    link_close(link);
}

static void link_free(struct link *link)
{
    struct conn *conn = link->conn;

    link->engine->n_links--;
    if (conn)
        link->engine->link_events->on_gone(conn, link);
    free(link);
}

void links_settle(struct engine *engine)
{
    while (!ring_empty(&engine->dying)) {
        struct link *link = container_of(engine->dying.next, struct link, dying);

        ring_remove(&link->dying);
        if (link->state == LINK_FAILED)
            report_failure(link);
        else if (link->state == LINK_CLOSING && link->closed && !link->requests)
            link_free(link);
    }
}

/* The other end has not greeted in time. A link that this end dialled stays as it is: the core closes the connection, which
 * abandons the link. */
static void expire(struct link *link)
{
    link->deadline_ns = UINT64_MAX;
    if (link->incoming)
        link_fail(link, UCS_OK, "it did not send its greeting in time");
    else if (link->conn && link->engine->link_events->on_late(link->conn))
        link->deadline_ns = monotonic_ns(); /* until this end has bytes to send */
}

void links_expire(struct engine *engine, bool all)
{
    uint64_t now_ns = monotonic_ns();

    for (unsigned i = 0; i < LINK_BUCKETS; i++)
        for (struct ring *at = engine->links[i].next, *next; at != &engine->links[i]; at = next) {
            struct link *link = container_of(at, struct link, ring);

            next = at->next;
            if (all && !link_abandon(link))
                link_close(link);
            else if (link->state == LINK_FRESH && now_ns > link->deadline_ns)
                expire(link);
        }
}

void links_free(struct engine *engine)
{
    for (unsigned i = 0; i < LINK_BUCKETS; i++)
        while (!ring_empty(&engine->links[i])) {
            struct link *link = container_of(engine->links[i].next, struct link, ring);

            ring_remove(&link->ring);
            free(link);
        }
}

/* ---- listening ---- */

enum rdt_status links_handle(struct engine *engine, unsigned id, ucp_am_recv_callback_t callback, unsigned flags,
                             struct rdt_error *err)
{
    const ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .flags = UCP_AM_FLAG_WHOLE_MSG | flags,
        .cb = callback,
        .arg = engine,
    };
    ucs_status_t ucs = ucp_worker_set_am_recv_handler(engine->worker, &param);

    if (ucs != UCS_OK)
        return rdt_error_set(err, RDT_UNSUPPORTED, "UCX does not accept a handler of active messages: %s",
                             ucs_status_string(ucs));
    return RDT_OK;
}

enum rdt_status links_listen(struct engine *engine, const struct link_events *events, struct rdt_error *err)
{
    const struct settings *settings = &engine->settings;
    struct sockaddr_storage address = {0};
    struct sockaddr_in *in = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&address;
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr.addr = (const struct sockaddr *)&address,
        .conn_handler.cb = on_request,
        .conn_handler.arg = engine,
    };
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucs_status_t ucs;
    enum rdt_status status;

    if (inet_pton(AF_INET, settings->listen, &in->sin_addr) == 1) {
        in->sin_family = AF_INET;
        in->sin_port = htons(settings->port);
        params.sockaddr.addrlen = sizeof *in;
    } else {
        (void)inet_pton(AF_INET6, settings->listen, &in6->sin6_addr);
        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons(settings->port);
        params.sockaddr.addrlen = sizeof *in6;
    }

    engine->link_events = events;
    status = links_handle(engine, AM_HELLO, on_hello, 0, err);
    if (status == RDT_OK)
        status = links_handle(engine, AM_WELCOME, on_welcome, 0, err);
    if (status != RDT_OK)
        return status;
    ucs = ucp_listener_create(engine->worker, &params, &engine->listener);
    if (ucs != UCS_OK)
        return rdt_error_set(err, RDT_UNSUPPORTED, "UCX cannot listen on %s port %u: %s", settings->listen, settings->port,
                             ucs_status_string(ucs));
    ucs = ucp_listener_query(engine->listener, &attr);
    if (ucs != UCS_OK) {
        ucp_listener_destroy(engine->listener);
        return rdt_error_set(err, RDT_UNSUPPORTED, "UCX does not say at which address it listens: %s", ucs_status_string(ucs));
    }
    engine->address = attr.sockaddr;
    return RDT_OK;
}

void links_unlisten(struct engine *engine)
{
    for (unsigned i = 0; i < engine->n_requests; i++)
        (void)ucp_listener_reject(engine->listener, engine->requests[i]);
    free(engine->requests);
    engine->requests = NULL;
    engine->n_requests = engine->max_requests = 0;
    ucp_listener_destroy(engine->listener);
}
