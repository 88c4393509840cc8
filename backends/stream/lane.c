/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes: their memory, their states, and the options of their sockets. This file creates and frees lanes; run.c moves them
 * through their states.
 *
 * The table below has the moves of the drawing in stream.h; any other move is a bug, and aborts the process.
 */
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/stream/stream.h"

#define LEAVING_NS (10 * 1000000000ull) /* how long the peer may take to close its end */

/* ---- states ---- */

void lane_set_state(struct lane *lane, enum lane_state to)
{
    static const bool allowed[LANE_GONE + 1][LANE_GONE + 1] = {
        [LANE_NEW] = {[LANE_DIALLING] = true, [LANE_PEEKING] = true, [LANE_GONE] = true},
        [LANE_DIALLING] = {[LANE_SHAKING] = true, [LANE_GREETING] = true, [LANE_GONE] = true},
        [LANE_PEEKING] = {[LANE_SHAKING] = true, [LANE_GREETING] = true, [LANE_GONE] = true},
        [LANE_SHAKING] = {[LANE_GREETING] = true, [LANE_GONE] = true},
        [LANE_GREETING] = {[LANE_READY] = true, [LANE_GONE] = true},
        [LANE_READY] = {[LANE_LEAVING] = true, [LANE_GONE] = true},
        [LANE_LEAVING] = {[LANE_GONE] = true},
    };

    if (!allowed[lane->state][to]) {
        lane->transport->host.log(lane->transport->host.ctx, RDT_LOG_ERROR, "bug: a lane may not go from state %d to %d",
                                  lane->state, to);
        abort();
    }
    lane->state = to;
}

void lane_set_deadline(struct lane *lane, uint64_t ns)
{
    ring_remove(&lane->timed);
    if (!ns)
        return;
    lane->deadline_ns = monotonic_ns() + ns;
    ring_append(&lane->thread->timed, &lane->timed);
}

void lane_socket(int fd, const struct settings *settings)
{
    const int on = 1, third = (int)(settings->dead_after_s + 2) / 3, probes = 2;
    const unsigned dead_after_ms = settings->dead_after_s * 1000;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* The kernel ends a connection whose bytes are not acknowledged, and an idle one whose other end has vanished, within
     * dead_after. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_after_ms, sizeof dead_after_ms);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &third, sizeof third);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &third, sizeof third);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

struct lane *lane_create(struct transport *transport, struct conn *conn, int fd)
{
    struct lane *lane = calloc(1, sizeof *lane);

    if (!lane)
        return NULL;
    lane->transport = transport;
    lane->thread = thread_next(transport);
    lane->conn = conn;
    lane->incoming = !conn;
    lane->fd = fd;
    ring_init(&lane->idle);
    ring_init(&lane->attention);
    ring_init(&lane->timed);
    ring_init(&lane->runnable);
    if (conn) {
        ring_append(&conn->lanes, &lane->ring);
        lane->counted = true;
        conn->n_out++;
        lane->greeting.number = conn->next_number++;
    } else {
        ring_init(&lane->ring);
    }
    return lane;
}

void lane_leave(struct lane *lane)
{
    lane_set_state(lane, LANE_LEAVING);
    lane_set_deadline(lane, LEAVING_NS);
    lane->end.left = true;
}

/* ---- the end ---- */

void lane_fail(struct lane *lane, const char *fault, int error)
{
    if (lane->state == LANE_GONE)
        return;
    if (!lane->end.fault)
        lane->end.fault = fault;
    if (!lane->end.error)
        lane->end.error = error;
    lane_set_state(lane, LANE_GONE);
}

void lane_free(struct lane *lane)
{
    struct transport *transport = lane->transport;
    struct conn *conn = lane->conn;

    SSL_free(lane->tls.ssl);
    free(lane->tls.gathered);
    if (lane->fd >= 0)
        (void)close(lane->fd);
    ring_remove(&lane->timed);
    ring_remove(&lane->runnable);
    (void)pthread_mutex_lock(&transport->lock);
    ring_remove(&lane->ring);
    ring_remove(&lane->idle);
    ring_remove(&lane->attention);
    strangers_remove(&transport->strangers, &lane->stranger);
    if (conn && lane->counted)
        (void)(lane->incoming ? conn->n_in-- : conn->n_out--);
    if (conn && conn->closing)
        thread_visit(conn);
    (void)pthread_mutex_unlock(&transport->lock);
    free(lane);
}
