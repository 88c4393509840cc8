/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: one per peer node, with at most two links.
 *
 * The loop thread creates, connects, disconnects and destroys them; the data thread carries this out in conns_run. A
 * disconnected connection is closed when its links are gone and its operations have ended, so that nothing can be written to
 * their memory any more.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "backends/ucx/ucx.h"

/* Has the data thread run the connection. The caller holds the lock. */
static void activate(struct conn *conn)
{
    if (ring_empty(&conn->active))
        ring_append(&conn->engine->active, &conn->active);
    thread_wake(conn->engine);
}

/* ---- loop thread ---- */

enum rdt_status conn_create(struct engine *engine, void *ctx, struct conn **conn_p, struct rdt_error *err)
{
    struct conn *conn = calloc(1, sizeof *conn);

    if (!conn)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a connection");
    if (getrandom(conn->token.bytes, TOKEN_BYTES, 0) != TOKEN_BYTES) {
        free(conn);
        return rdt_error_sys(err, errno, "creating a random token");
    }
    conn->engine = engine;
    conn->ctx = ctx;
    ring_init(&conn->active);
    ring_init(&conn->sends);
    for (unsigned i = 0; i < RECV_BUCKETS; i++)
        ring_init(&conn->recvs[i]);
    (void)pthread_mutex_lock(&engine->lock);
    ring_append(&engine->conns, &conn->ring);
    (void)pthread_mutex_unlock(&engine->lock);
    *conn_p = conn;
    return RDT_OK;
}

void conn_destroy(struct conn *conn)
{
    (void)pthread_mutex_lock(&conn->engine->lock);
    ring_remove(&conn->ring);
    ring_remove(&conn->active);
    (void)pthread_mutex_unlock(&conn->engine->lock);
    explicit_bzero(conn->token.bytes, sizeof conn->token.bytes);
    explicit_bzero(conn->peer.token, sizeof conn->peer.token);
    free(conn);
}

/* A node on this machine reaches every address of it. */
static bool is_loopback(const char *address)
{
    return !strncmp(address, "127.", 4) || !strcmp(address, "::1");
}

enum rdt_status conn_offer(struct conn *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    const struct rdt_host *host = &conn->engine->host;
    const struct settings *settings = &conn->engine->settings;
    char link[INET6_ADDRSTRLEN] = "";

    if (settings->guessed && host->struct_size >= offsetof(struct rdt_host, conn_address) + sizeof host->conn_address)
        host->conn_address(conn->ctx, link, sizeof link);
    if (*link && strcmp(link, settings->listen) && !is_loopback(link))
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "the link to that node is at %s, and ucx listens at the first address of the node, %s: set listen "
                             "or interfaces in [ucx], or advertise in [network]",
                             link, settings->listen);
    (void)pthread_mutex_lock(&conn->engine->lock);
    conn->token.offered = true;
    (void)pthread_mutex_unlock(&conn->engine->lock);
    *bytes_p = wire_put_offer(&conn->engine->address, conn->token.bytes, blob);
    return RDT_OK;
}

enum rdt_status conn_connect(struct conn *conn, const void *blob, size_t bytes, struct rdt_error *err)
{
    struct engine *engine = conn->engine;
    struct sockaddr_storage address;
    uint8_t token[TOKEN_BYTES];
    enum rdt_status status = wire_read_offer(blob, bytes, &address, token, err);

    if (status != RDT_OK)
        return status;
    if (address.ss_family != engine->address.ss_family)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "the peer's ucx listens at an IPv%c address and this node's at an IPv%c address: "
                             "set listen in [ucx] to addresses of the same kind",
                             address.ss_family == AF_INET ? '4' : '6', address.ss_family == AF_INET ? '6' : '4');
    (void)pthread_mutex_lock(&engine->lock);
    if (conn->peer.known || conn->closing) {
        status = rdt_error_set(err, RDT_INVALID, "the connection is %s", conn->closing ? "closing" : "connected already");
    } else {
        conn->peer.address = address;
        memcpy(conn->peer.token, token, TOKEN_BYTES);
        conn->peer.known = true;
        activate(conn);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return status;
}

void conn_disconnect(struct conn *conn)
{
    (void)pthread_mutex_lock(&conn->engine->lock);
    conn->closing = true;
    activate(conn);
    (void)pthread_mutex_unlock(&conn->engine->lock);
}

uint32_t conn_sides(struct conn *conn, const char *memory_kind)
{
    uint32_t sides;

    if (!ucx_moves(&conn->engine->memory, memory_kind))
        return 0;
    (void)pthread_mutex_lock(&conn->engine->lock);
    sides = RDT_TWO_SIDED | (conn->readable ? RDT_ONE_SIDED : 0);
    (void)pthread_mutex_unlock(&conn->engine->lock);
    return sides;
}

enum rdt_status conn_describe(struct conn *conn, char *text_p, size_t size)
{
    bool known;

    (void)pthread_mutex_lock(&conn->engine->lock);
    known = conn->lanes[0] != '\0';
    (void)snprintf(text_p, size, "%s", conn->lanes);
    (void)pthread_mutex_unlock(&conn->engine->lock);
    return known ? RDT_OK : RDT_AGAIN;
}

/* ---- data thread ---- */

/* Compares every token completely, so that the time does not depend on the token. */
static struct conn *take_token(struct engine *engine, const uint8_t token[TOKEN_BYTES])
{
    struct conn *found = NULL;

    (void)pthread_mutex_lock(&engine->lock);
    for (struct ring *at = engine->conns.next; at != &engine->conns; at = at->next) {
        struct conn *conn = container_of(at, struct conn, ring);
        volatile uint8_t difference = 0;

        for (unsigned i = 0; i < TOKEN_BYTES; i++)
            difference |= conn->token.bytes[i] ^ token[i];
        if (!difference && conn->token.offered && !conn->token.used && !conn->closing)
            found = conn;
    }
    if (found)
        found->token.used = true;
    (void)pthread_mutex_unlock(&engine->lock);
    return found;
}

static void conn_fail(struct conn *conn, enum rdt_status status, const char *msg)
{
    bool closing;

    (void)pthread_mutex_lock(&conn->engine->lock);
    closing = conn->closing;
    (void)pthread_mutex_unlock(&conn->engine->lock);
    if (closing || conn->failed)
        return;
    conn->failed = true;
    conn->engine->host.conn_failed(conn->ctx, status, msg);
}

/* Returns whether the lanes can read memory without its owner's processor: that of another node by RDMA, or, if the
 * configuration says so, that of another process of this machine (UCX before 1.16 reads by TCP although it has cma). */
static bool can_read(const struct settings *settings, const char *lanes)
{
    static const char *const rdma[] = {"rc", "dc", "ud", "srd", "gga", NULL}, *const cma[] = {"cma", NULL};

    if (!settings->reads)
        return false;
    return lanes_have(lanes, rdma) ||
           (settings->one_sided == ONE_SIDED_ALWAYS && lanes_have(lanes, cma) && ucx_is_at_least(1, 16));
}

static void on_link_ready(struct conn *conn, struct link *link)
{
    struct engine *engine = conn->engine;
    char lanes[LANES_BYTES - sizeof ", one-sided"];
    bool readable;

    lanes_of(link->ep, lanes, sizeof lanes);
    readable = can_read(&engine->settings, lanes);
    (void)pthread_mutex_lock(&engine->lock);
    (void)snprintf(conn->lanes, sizeof conn->lanes, "%s%s", lanes, readable ? ", one-sided" : "");
    conn->readable = readable;
    (void)pthread_mutex_unlock(&engine->lock);
    if (!link->incoming)
        chunks_send(conn);
}

/* A link that was opened early does not end the connection before this end has bytes to send: those of the other direction
 * may be moving. */
static bool on_link_late(struct conn *conn)
{
    bool unused;

    (void)pthread_mutex_lock(&conn->engine->lock);
    unused = ring_empty(&conn->sends);
    (void)pthread_mutex_unlock(&conn->engine->lock);
    if (!unused)
        conn_fail(conn, RDT_PEER_LOST, "its node does not answer at the port of ucx");
    return unused;
}

static void on_link_gone(struct conn *conn, struct link *link)
{
    if (conn->links.in == link)
        conn->links.in = NULL;
    if (conn->links.out == link)
        conn->links.out = NULL;
    (void)pthread_mutex_lock(&conn->engine->lock);
    activate(conn);
    (void)pthread_mutex_unlock(&conn->engine->lock);
}

const struct link_events conn_link_events = {take_token, on_link_ready, conn_fail, on_link_late, on_link_gone};

static void run_closing(struct conn *conn)
{
    struct engine *engine = conn->engine;
    bool quiet;

    if (!conn->links.closed) {
        conn->links.closed = true;
        if (conn->links.in)
            link_close(conn->links.in);
        if (conn->links.out && link_abandon(conn->links.out))
            conn->links.out = NULL;
        if (conn->links.out)
            link_close(conn->links.out);
    }
    (void)pthread_mutex_lock(&engine->lock);
    ops_end_queued(conn);
    quiet = !conn->posted && !conn->links.in && !conn->links.out;
    if (quiet) {
        ring_remove(&conn->ring);
        ring_remove(&conn->active);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    if (quiet)
        engine->host.conn_closed(conn->ctx); /* the core may destroy it at once */
}

static void run_open(struct conn *conn, bool can_send)
{
    if (!can_send || conn->failed)
        return;
    if (conn->links.out) {
        if (conn->links.out->state == LINK_READY)
            chunks_send(conn);
        return;
    }
    conn->links.out = link_open(conn);
    if (!conn->links.out)
        conn_fail(conn, RDT_PEER_LOST, "UCX cannot open an endpoint to the peer");
}

void conns_run(struct engine *engine)
{
    (void)pthread_mutex_lock(&engine->lock);
    while (!ring_empty(&engine->active)) {
        struct conn *conn = container_of(engine->active.next, struct conn, active);
        /* The core chooses a transport by what it can do, so a link is opened early if its lanes may be able to read. */
        bool early = engine->settings.reads && !conn->lanes[0];
        bool closing = conn->closing, can_send = conn->peer.known && (early || !ring_empty(&conn->sends));

        ring_remove(&conn->active);
        (void)pthread_mutex_unlock(&engine->lock);
        if (closing)
            run_closing(conn);
        else
            run_open(conn, can_send);
        (void)pthread_mutex_lock(&engine->lock);
    }
    (void)pthread_mutex_unlock(&engine->lock);
}
