/* SPDX-License-Identifier: Apache-2.0 */
/* Channels: their memory, their states, and the options of their sockets. This file creates and frees channels; run.c
 * moves them through their states.
 *
 * The tables below have the moves of the drawings in stream.h; any other move is a bug, and aborts the process. */
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/common/states.h"
#include "backends/stream/stream.h"

#define LEAVING_NS (10 * 1000000000ull) /* how long the peer may take to close its end */

/* ---- states ---- */

void channel_set_state(struct channel *channel, enum channel_state to)
{
    static const struct sm_state states[] = {
        [CHANNEL_NEW] = {"new channel",
                         1u << CHANNEL_WAITING | 1u << CHANNEL_DIALLING | 1u << CHANNEL_PEEKING | 1u << CHANNEL_GONE},
        [CHANNEL_WAITING] = {"waiting channel", 1u << CHANNEL_DIALLING | 1u << CHANNEL_GONE},
        [CHANNEL_DIALLING] = {"dialling channel", 1u << CHANNEL_SHAKING | 1u << CHANNEL_GREETING | 1u << CHANNEL_GONE},
        [CHANNEL_PEEKING] = {"peeking channel", 1u << CHANNEL_SHAKING | 1u << CHANNEL_GREETING | 1u << CHANNEL_GONE},
        [CHANNEL_SHAKING] = {"shaking channel", 1u << CHANNEL_GREETING | 1u << CHANNEL_GONE},
        [CHANNEL_GREETING] = {"greeting channel", 1u << CHANNEL_READY | 1u << CHANNEL_GONE},
        [CHANNEL_READY] = {"ready channel", 1u << CHANNEL_LEAVING | 1u << CHANNEL_GONE},
        [CHANNEL_LEAVING] = {"leaving channel", 1u << CHANNEL_GONE},
        [CHANNEL_GONE] = {"gone channel", 1u << CHANNEL_WAITING},
    };

    states_check(&channel->transport->host, states, CHANNEL_GONE + 1, channel->state, to);
    channel->state = to;
}

void probe_move(const struct transport *transport, enum probe_state *state, enum probe_state to)
{
    static const struct sm_state states[] = {
        [PROBE_NONE] = {"no probe", 1u << PROBE_WANTED | 1u << PROBE_RUNNING},
        [PROBE_WANTED] = {"wanted probe", 1u << PROBE_NONE | 1u << PROBE_RUNNING},
        [PROBE_RUNNING] = {"running probe", 1u << PROBE_NONE | 1u << PROBE_SENT},
        [PROBE_SENT] = {"sent probe", 1u << PROBE_NONE},
    };

    states_check(&transport->host, states, PROBE_SENT + 1, *state, to);
    *state = to;
}

void channel_set_deadline(struct channel *channel, uint64_t ns)
{
    ring_remove(&channel->timed);
    if (!ns)
        return;
    channel->deadline_ns = monotonic_ns() + ns;
    ring_append(&channel->thread->timed, &channel->timed);
}

void channel_socket(int fd, const struct settings *settings)
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

static struct channel *create(struct transport *transport, int fd)
{
    struct channel *channel = calloc(1, sizeof *channel);

    if (!channel)
        return NULL;
    channel->transport = transport;
    channel->thread = thread_next(transport);
    channel->fd = fd;
    ring_init(&channel->ring);
    ring_init(&channel->idle);
    ring_init(&channel->attention);
    ring_init(&channel->timed);
    ring_init(&channel->runnable);
    return channel;
}

struct channel *channel_accept(struct transport *transport, int fd)
{
    struct channel *channel = create(transport, fd);

    if (channel)
        channel->incoming = true;
    return channel;
}

struct channel *channel_create(struct conn *conn, bool takes)
{
    struct channel *channel = create(conn->transport, -1);

    if (!channel)
        return NULL;
    channel->conn = conn;
    channel->greeting.takes = takes;
    ring_append(&conn->channels, &channel->ring);
    channel->counted = true;
    (void)(takes ? conn->n_in++ : conn->n_out++);
    channel->greeting.number = UNNUMBERED;
    return channel;
}

void channel_leave(struct channel *channel)
{
    channel_set_state(channel, CHANNEL_LEAVING);
    channel_set_deadline(channel, LEAVING_NS);
    channel->end.left = true;
}

/* ---- the end ---- */

void channel_fail(struct channel *channel, const char *fault, int error)
{
    if (channel->state == CHANNEL_GONE)
        return;
    if (!channel->end.fault)
        channel->end.fault = fault;
    if (!channel->end.error)
        channel->end.error = error;
    channel_set_state(channel, CHANNEL_GONE);
}

void channel_free(struct channel *channel)
{
    struct transport *transport = channel->transport;
    struct conn *conn = channel->conn;

    SSL_free(channel->tls.ssl);
    free(channel->tls.gathered);
    if (channel->fd >= 0)
        (void)close(channel->fd);
    ring_remove(&channel->timed);
    ring_remove(&channel->runnable);
    (void)pthread_mutex_lock(&transport->lock);
    ring_remove(&channel->ring);
    ring_remove(&channel->idle);
    ring_remove(&channel->attention);
    strangers_remove(&transport->strangers, &channel->stranger);
    if (conn && channel->counted)
        (void)(channel_sends(channel) ? conn->n_out-- : conn->n_in--);
    if (channel->probe != PROBE_NONE) {
        transport->probes--;
        probe_move(transport, &conn->way.probe, PROBE_NONE);
    }
    if (conn && conn->closing)
        thread_visit(conn);
    (void)pthread_mutex_unlock(&transport->lock);
    free(channel);
}
