/* SPDX-License-Identifier: Apache-2.0 */
/* The plug-in's thread, its connections and operations. See loopback.h; faults.c has what can go wrong on demand. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "tests/loopback/loopback.h"

#define MAX_EVENTS GROUP_NEWS_MAX

void loopback_wake(struct transport *transport)
{
    (void)eventfd_write(transport->wake, 1);
}

/* ---- the thread ---- */

static unsigned watch(struct transport *transport, struct pollfd *fds, struct channel **channels)
{
    unsigned n = 2;

    fds[0] = (struct pollfd){.fd = transport->wake, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = transport->listener, .events = POLLIN};
    for (unsigned i = 0; i < MAX_SOCKETS; i++)
        if (transport->incoming[i].fd >= 0)
            channels[n++] = &transport->incoming[i];
    for (struct conn *conn = transport->conns; conn && n < 2 * MAX_SOCKETS; conn = conn->next)
        if (conn->out.fd >= 0)
            channels[n++] = &conn->out;
    for (unsigned i = 2; i < n; i++)
        fds[i] = (struct pollfd){.fd = channels[i]->fd, .events = channels[i]->first ? POLLIN | POLLOUT : POLLIN};
    return n;
}

/* Reports to the host what has happened. True: something has. The caller holds the lock, which is released during the calls to
 * the host. */
static bool report(struct transport *transport)
{
    struct operation *done = transport->done;
    void *failed[MAX_EVENTS], *closed[MAX_EVENTS];
    unsigned n_failed = 0, n_closed = 0;
    struct group_news news = {0};

    for (struct conn *conn = transport->conns, *next; conn; conn = next) {
        next = conn->next;
        if (conn->group)
            continue; /* reported below */
        if (n_failed < MAX_EVENTS && conn->failed && !conn->failure_told && !conn->closing) {
            conn->failure_told = true;
            failed[n_failed++] = conn->ctx;
        }
        if (n_closed < MAX_EVENTS && conn_end_if_due(conn))
            closed[n_closed++] = conn->ctx;
    }
    if (transport->look_at_groups)
        transport->look_at_groups(transport, &news);
    done = transport->done;
    transport->done = NULL;
    transport->done_last = &transport->done;
    for (struct operation *at = done; at; at = at->next)
        at->op->priv[0] = NULL;

    (void)pthread_mutex_unlock(&transport->lock);
    for (struct operation *at = done, *next; at; at = next) {
        next = at->next;
        transport->host.op_done(at->op, at->status, at->msg);
        free(at);
    }
    for (unsigned i = 0; i < n_failed; i++)
        transport->host.conn_failed(failed[i], RDT_PEER_LOST, "the peer closed its socket");
    for (unsigned i = 0; i < n_closed; i++)
        transport->host.conn_closed(closed[i]);
    for (unsigned i = 0; i < news.n_ready; i++)
        transport->host.group_ready(news.ready[i]);
    for (unsigned i = 0; i < news.n_failed; i++)
        transport->host.group_failed(news.failed[i], RDT_PEER_LOST, news.why);
    for (unsigned i = 0; i < news.n_closed; i++)
        transport->host.group_closed(news.closed[i]);
    (void)pthread_mutex_lock(&transport->lock);
    return done || n_failed || n_closed || news.n_ready || news.n_failed || news.n_closed;
}

static int timeout_until(uint64_t due_ns)
{
    uint64_t now = now_ns();

    if (!due_ns)
        return -1;
    return due_ns <= now ? 0 : (int)((due_ns - now) / 1000000) + 1;
}

static void *thread_main(void *arg)
{
    struct transport *transport = arg;
    struct pollfd fds[2 + 3 * MAX_SOCKETS];
    struct channel *channels[2 + 3 * MAX_SOCKETS];

    (void)pthread_mutex_lock(&transport->lock);
    while (!transport->stopping) {
        uint64_t due_ns = 0;
        eventfd_t count;

        for (struct conn *conn = transport->conns; conn; conn = conn->next) {
            uint64_t conn_ns = ops_run(conn);

            if (conn_ns && (!due_ns || conn_ns < due_ns))
                due_ns = conn_ns;
        }
        if (report(transport))
            continue;
        unsigned n = watch(transport, fds, channels);
        (void)pthread_mutex_unlock(&transport->lock);
        (void)poll(fds, n, timeout_until(due_ns));
        (void)pthread_mutex_lock(&transport->lock);
        if (fds[0].revents)
            (void)eventfd_read(transport->wake, &count);
        if (fds[1].revents)
            wire_accept(transport);
        /* A channel may have been closed while the lock was free, and handling one may close another. */
        for (unsigned i = 2; i < n; i++)
            if (fds[i].revents && channels[i]->fd == fds[i].fd)
                wire_move(transport, channels[i]);
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return NULL;
}

/* ---- opening and closing ---- */

static void transport_free(struct transport *transport)
{
    for (unsigned i = 0; i < MAX_SOCKETS; i++)
        wire_drop(&transport->incoming[i]);
    if (transport->listener >= 0)
        (void)close(transport->listener);
    if (transport->wake >= 0)
        (void)close(transport->wake);
    (void)pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static int start_thread(struct transport *transport)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&transport->thread, NULL, thread_main, transport);
    if (error == 0)
        (void)pthread_setname_np(transport->thread, "loopback");
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

enum rdt_status loopback_transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    struct transport *transport = calloc(1, sizeof *transport);

    if (!transport)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the transport");
    transport->host = *host;
    transport->listener = -1;
    transport->done_last = &transport->done;
    (void)pthread_mutex_init(&transport->lock, NULL);
    for (unsigned i = 0; i < MAX_SOCKETS; i++)
        transport->incoming[i].fd = -1;
    transport->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum rdt_status status = transport->wake < 0 ? rdt_error_sys(err, errno, "creating an event descriptor") : RDT_OK;
    if (status == RDT_OK)
        status = faults_configure(transport, err);
    if (status == RDT_OK)
        status = wire_listen(transport, err);
    if (status == RDT_OK) {
        int error = start_thread(transport);

        if (error)
            status = rdt_error_sys(err, error, "starting the thread");
    }
    if (status != RDT_OK) {
        transport_free(transport);
        return status;
    }
    *transport_p = transport;
    return RDT_OK;
}

void loopback_transport_close(void *arg)
{
    struct transport *transport = arg;

    (void)pthread_mutex_lock(&transport->lock);
    transport->stopping = true;
    (void)pthread_mutex_unlock(&transport->lock);
    loopback_wake(transport);
    (void)pthread_join(transport->thread, NULL);
    transport_free(transport);
}

const char *loopback_transport_version(void *arg)
{
    const struct transport *transport = arg;

    return transport->version;
}

/* ---- memory ---- */

/* Memory of the fake device it moves as it says. */
bool loopback_moves(void *arg, const char *memory_kind)
{
    return !strcasecmp(memory_kind, "host") || ((const struct transport *)arg)->on_devices;
}

enum rdt_status loopback_register_memory(void *arg, void *addr, uint64_t bytes, const char *memory_kind, void **registration_p,
                                         struct rdt_error *err)
{
    struct transport *transport = arg;
    struct registration *registration;

    if (!loopback_moves(arg, memory_kind))
        return rdt_error_set(err, RDT_UNSUPPORTED, "loopback reads host memory, not %s", memory_kind);
    if (strcasecmp(memory_kind, "host") && faults_now(transport).refuse_registration)
        return rdt_error_set(err, RDT_SYSTEM, "the device has no room for it, as the test wants it");
    registration = calloc(1, sizeof *registration);
    if (!registration)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a registration");
    registration->addr = addr;
    registration->bytes = bytes;
    registration->on_device = strcasecmp(memory_kind, "host") != 0;
    (void)pthread_mutex_lock(&transport->lock);
    registration->key = ++transport->next_key * 0x9e3779b97f4a7c15u;
    registration->next = transport->registrations;
    transport->registrations = registration;
    (void)pthread_mutex_unlock(&transport->lock);
    *registration_p = registration;
    return RDT_OK;
}

void loopback_unregister_memory(void *arg, void *registration)
{
    struct transport *transport = arg;
    struct registration **at = &transport->registrations;

    (void)pthread_mutex_lock(&transport->lock);
    while (*at != registration)
        at = &(*at)->next;
    *at = (*at)->next;
    wire_forget(transport, registration);
    (void)pthread_mutex_unlock(&transport->lock);
    loopback_wake(transport);
    free(registration);
}

enum rdt_status loopback_pack_key(void *transport, void *arg, uint8_t key[RDT_KEY_MAX_BYTES], size_t *bytes_p,
                                  struct rdt_error *err)
{
    const struct registration *registration = arg;

    memcpy(key, &registration->key, sizeof registration->key);
    *bytes_p = sizeof registration->key;
    return RDT_OK;
}

/* ---- connections ---- */

enum rdt_status loopback_connection_create(void *arg, const uint8_t peer_uuid[16], void *conn_ctx, void **conn_p,
                                           struct rdt_error *err)
{
    struct transport *transport = arg;
    struct conn *conn = calloc(1, sizeof *conn);

    if (!conn)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a connection");
    if (getrandom(conn->token, sizeof conn->token, 0) != sizeof conn->token) {
        free(conn);
        return rdt_error_sys(err, errno, "drawing a token");
    }
    conn->transport = transport;
    conn->ctx = conn_ctx;
    conn->out.fd = -1;
    (void)pthread_mutex_lock(&transport->lock);
    conn->next = transport->conns;
    transport->conns = conn;
    (void)pthread_mutex_unlock(&transport->lock);
    *conn_p = conn;
    return RDT_OK;
}

void loopback_connection_destroy(void *arg)
{
    struct conn *conn = arg, **at = &conn->transport->conns;

    (void)pthread_mutex_lock(&conn->transport->lock);
    while (*at && *at != conn)
        at = &(*at)->next;
    if (*at)
        *at = conn->next;
    (void)pthread_mutex_unlock(&conn->transport->lock);
    free(conn);
}

enum rdt_status loopback_offer(void *arg, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    const struct conn *conn = arg;

    memcpy(blob, conn->transport->name, NAME_BYTES);
    memcpy(blob + NAME_BYTES, conn->token, TOKEN_BYTES);
    *bytes_p = NAME_BYTES + TOKEN_BYTES;
    return RDT_OK;
}

enum rdt_status loopback_connect_to(void *arg, const void *blob, size_t bytes, struct rdt_error *err)
{
    struct conn *conn = arg;

    if (bytes != NAME_BYTES + TOKEN_BYTES || !memchr(blob, 0, NAME_BYTES))
        return rdt_error_set(err, RDT_PROTOCOL, "the peer's offer is not one of loopback");
    (void)pthread_mutex_lock(&conn->transport->lock);
    memcpy(conn->peer_name, blob, NAME_BYTES);
    memcpy(conn->peer_token, (const uint8_t *)blob + NAME_BYTES, TOKEN_BYTES);
    conn->connected = true;
    (void)pthread_mutex_unlock(&conn->transport->lock);
    loopback_wake(conn->transport);
    return RDT_OK;
}

uint32_t loopback_sides(void *arg, const char *memory_kind)
{
    const struct conn *conn = arg;

    return loopback_moves(conn->transport, memory_kind) ? conn->transport->sides : 0;
}

void loopback_disconnect(void *arg)
{
    struct conn *conn = arg;
    struct faults faults = faults_now(conn->transport);

    (void)pthread_mutex_lock(&conn->transport->lock);
    conn->closing = true;
    conn->close_ns = now_ns() + faults.disconnect_delay_ms * 1000000ull;
    (void)pthread_mutex_unlock(&conn->transport->lock);
    loopback_wake(conn->transport);
}

/* ---- operations ---- */

static enum rdt_status post(struct conn *conn, struct rdt_op *op, enum op_kind kind, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&conn->transport->lock);
    enum rdt_status status = op_post(conn, op, kind, err);
    (void)pthread_mutex_unlock(&conn->transport->lock);
    loopback_wake(conn->transport);
    return status;
}

enum rdt_status loopback_post_send(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    return post(conn, op, OP_SEND, err);
}

enum rdt_status loopback_post_recv(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    return post(conn, op, OP_RECV, err);
}

enum rdt_status loopback_post_read(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    return post(conn, op, OP_READ, err);
}

void loopback_cancel(void *arg, struct rdt_op *op)
{
    struct conn *conn = arg;

    (void)pthread_mutex_lock(&conn->transport->lock);
    if (op->priv[0])
        op_cancel(op->priv[0]);
    (void)pthread_mutex_unlock(&conn->transport->lock);
    loopback_wake(conn->transport);
}

const char *loopback_queue(void *arg, const char *memory_kind, const char *device)
{
    const struct conn *conn = arg;

    return conn->transport->says_so ? "all" : NULL;
}
