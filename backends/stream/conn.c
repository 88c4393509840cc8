/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: one per peer node, with the secrets of its channels.
 *
 * The loop thread creates, connects, disconnects and destroys them. A disconnected connection is closed when its channels are
 * gone and its operations have ended, so that nothing can be written to their memory any more.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "backends/stream/stream.h"

#define LATE_NS 2000000000ull         /* without an answer for so long, a dial may be one that gets none */
#define PROBE_AGAIN_NS 10000000000ull /* how long the result of a probe that failed holds */

static void say_unreachable(const struct conn *conn, const char *why, char *text_p, size_t size)
{
    const struct sockaddr_storage *address = &conn->peer.address;
    char text[INET6_ADDRSTRLEN] = "?";

    (void)inet_ntop(address->ss_family,
                    address->ss_family == AF_INET ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
                                                  : &((const struct sockaddr_in6 *)address)->sin6_addr,
                    text, sizeof text);
    (void)snprintf(text_p, size, "%s port %u: %s", text, ntohs(((const struct sockaddr_in *)address)->sin_port), why);
}

/* ---- loop thread ---- */

static void remember(const struct conn *conn)
{
    struct transport *transport = conn->transport;
    struct remembered *place = &transport->remembered[transport->next_remembered++ % MAX_REMEMBERED];

    memcpy(place->uuid, conn->peer_uuid, sizeof place->uuid);
    memcpy(place->why_not, conn->way.why_not, sizeof place->why_not);
    place->lossy = conn->way.lossy;
}

static void recall(struct conn *conn)
{
    for (unsigned i = 0; i < MAX_REMEMBERED; i++) {
        struct remembered *place = &conn->transport->remembered[i];

        if (!place->why_not[0] || memcmp(place->uuid, conn->peer_uuid, sizeof place->uuid) != 0)
            continue;
        memcpy(conn->way.why_not, place->why_not, sizeof place->why_not);
        conn->way.lossy = place->lossy;
        place->why_not[0] = '\0';
    }
}

enum rdt_status conn_create(struct transport *transport, const uint8_t peer_uuid[16], void *ctx, struct conn **conn_p,
                            struct rdt_error *err)
{
    struct conn *conn = calloc(1, sizeof *conn);

    if (!conn)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a connection");
    if (getrandom(&conn->ours, sizeof conn->ours, 0) != sizeof conn->ours ||
        getrandom(&conn->next_number, sizeof conn->next_number, 0) != sizeof conn->next_number) {
        free(conn);
        return rdt_error_sys(err, errno, "creating random secrets");
    }
    conn->next_number %= NUMBERS_BEGIN_BELOW;
    conn->transport = transport;
    conn->ctx = ctx;
    memcpy(conn->peer_uuid, peer_uuid, sizeof conn->peer_uuid);
    recall(conn);
    ring_init(&conn->visit);
    ring_init(&conn->channels);
    ring_init(&conn->idle);
    ring_init(&conn->sends);
    for (unsigned i = 0; i < RECV_BUCKETS; i++)
        ring_init(&conn->recvs[i]);
    (void)pthread_mutex_lock(&transport->lock);
    conn->home = thread_next(transport);
    ring_append(&transport->conns, &conn->ring);
    (void)pthread_mutex_unlock(&transport->lock);
    *conn_p = conn;
    return RDT_OK;
}

void conn_destroy(struct conn *conn)
{
    (void)pthread_mutex_lock(&conn->transport->lock);
    ring_remove(&conn->ring);
    ring_remove(&conn->visit);
    (void)pthread_mutex_unlock(&conn->transport->lock);
    if (conn->way.why_not[0])
        remember(conn);
    explicit_bzero(&conn->ours, sizeof conn->ours);
    explicit_bzero(&conn->peer.secrets, sizeof conn->peer.secrets);
    free(conn);
}

enum rdt_status conn_offer(struct conn *conn, const struct sockaddr_storage *address, uint8_t blob[RDT_OFFER_MAX_BYTES],
                           size_t *bytes_p)
{
    struct transport *transport = conn->transport;

    *bytes_p = wire_put_offer(address, &conn->ours, transport->settings.plain, blob);
    (void)pthread_mutex_lock(&transport->lock);
    conn->offered = true;
    (void)pthread_mutex_unlock(&transport->lock);
    return RDT_OK;
}

enum rdt_status conn_connect(struct conn *conn, const void *blob, size_t bytes, struct rdt_error *err)
{
    struct transport *transport = conn->transport;
    struct sockaddr_storage address;
    struct secrets secrets;
    bool plain;
    enum rdt_status status = wire_read_offer(blob, bytes, &address, &secrets, &plain, err);

    if (status == RDT_OK)
        status = listen_may_dial(transport, conn->ctx, &address, err);
    if (status != RDT_OK)
        return status;
    (void)pthread_mutex_lock(&transport->lock);
    if (conn->peer.known || conn->closing) {
        status = rdt_error_set(err, RDT_INVALID, "the connection is %s", conn->closing ? "closing" : "connected already");
    } else {
        conn->peer.address = address;
        conn->peer.secrets = secrets;
        conn->peer.tls = !plain || !transport->settings.plain; /* unencrypted only if both ends trust the network */
        conn->peer.known = true;
        ops_start_sends(conn);
        probe_move(transport, &conn->way.probe, PROBE_WANTED); /* from NONE: conn_trouble wants none of an unknown address */
    }
    (void)pthread_mutex_unlock(&transport->lock);
    conns_probe(transport);
    explicit_bzero(&secrets, sizeof secrets);
    return status;
}

void conn_disconnect(struct conn *conn)
{
    (void)pthread_mutex_lock(&conn->transport->lock);
    conn->closing = true;
    ops_end_queued(conn);
    for (struct ring *at = conn->channels.next; at != &conn->channels; at = at->next)
        thread_attend(container_of(at, struct channel, ring));
    thread_visit(conn);
    (void)pthread_mutex_unlock(&conn->transport->lock);
}

void conn_describe(struct conn *conn, char *text_p, size_t size)
{
    (void)pthread_mutex_lock(&conn->transport->lock);
    (void)snprintf(text_p, size, "%s", conn->description);
    if (*text_p && conn->way.why_not[0] && conn->way.met && !conn->way.lossy)
        (void)snprintf(text_p, size, "%s; only that node connects, this one does not: %s", conn->description,
                       conn->way.why_not);
    (void)pthread_mutex_unlock(&conn->transport->lock);
}

enum rdt_status conn_trouble(struct conn *conn, char *text_p, size_t size)
{
    struct transport *transport = conn->transport;
    enum rdt_status status = RDT_AGAIN;
    bool again;

    (void)pthread_mutex_lock(&transport->lock);
    if (conn->way.why_not[0]) {
        status = conn->way.met && !conn->way.lossy ? RDT_OK : RDT_PEER_LOST;
        (void)snprintf(text_p, size, "%s", conn->way.why_not);
    } else if (conn->way.dialled_ns && monotonic_ns() - conn->way.dialled_ns > LATE_NS) {
        status = conn->way.met ? RDT_OK : RDT_PEER_LOST;
        say_unreachable(conn, "no answer yet", text_p, size);
    }
    again = conn->peer.known && conn->way.why_not[0] && conn->way.probe == PROBE_NONE &&
            monotonic_ns() - conn->way.probed_ns > PROBE_AGAIN_NS;
    if (again)
        probe_move(transport, &conn->way.probe, PROBE_WANTED);
    (void)pthread_mutex_unlock(&transport->lock);
    if (again)
        conns_probe(transport);
    return status;
}

/* ---- data threads ---- */

/* Finds the connection whose offer has this id. The caller holds the lock. The time does not depend on the id. */
static struct conn *find(struct transport *transport, const uint8_t id[ID_BYTES])
{
    struct conn *found = NULL;

    for (struct ring *at = transport->conns.next; at != &transport->conns; at = at->next) {
        struct conn *conn = container_of(at, struct conn, ring);

        if (wire_same_secret(conn->ours.id, id, ID_BYTES) && conn->offered && !conn->closing)
            found = conn;
    }
    return found;
}

bool conn_find_key(struct transport *transport, const uint8_t id[ID_BYTES], uint8_t key_p[KEY_BYTES])
{
    struct conn *conn;

    (void)pthread_mutex_lock(&transport->lock);
    conn = find(transport, id);
    if (conn)
        memcpy(key_p, conn->ours.key, KEY_BYTES);
    (void)pthread_mutex_unlock(&transport->lock);
    return conn;
}

const char *conn_take_channel(struct channel *channel, const uint8_t id[ID_BYTES], const uint8_t token[TOKEN_BYTES])
{
    struct transport *transport = channel->transport;
    const char *why_not = NULL;
    struct conn *conn;

    (void)pthread_mutex_lock(&transport->lock);
    conn = find(transport, id);
    if (channel->evicted) {
        why_not = "it was closed to make room for others";
    } else if (!conn || !wire_same_secret(conn->ours.token, token, TOKEN_BYTES) ||
               !numbers_take(&conn->used_numbers, channel->greeting.number)) {
        why_not = "its token is unknown or was used before";
    } else if (channel->greeting.takes ? conn->n_out >= MAX_CHANNELS : conn->n_in >= MAX_CHANNELS_IN) {
        why_not = "its node has too many connections";
    } else {
        strangers_remove(&transport->strangers, &channel->stranger);
        ring_append(&conn->channels, &channel->ring);
        (void)(channel->greeting.takes ? conn->n_out++ : conn->n_in++);
        channel->counted = true;
        channel->conn = conn;
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return why_not;
}

void conn_channel_leaves(struct channel *channel)
{
    struct conn *conn = channel->conn;
    struct channel *more;

    (void)pthread_mutex_lock(&conn->transport->lock);
    ring_remove(&channel->idle);
    channel->counted = false;
    if (channel_sends(channel)) {
        conn->n_out--;
        ops_start_sends(conn);
    } else {
        conn->n_in--;
        more = conn->closing || conn->n_in >= conn->transport->settings.connections ? NULL : channel_create(conn, true);
        if (more)
            thread_attend(more);
    }
    (void)pthread_mutex_unlock(&conn->transport->lock);
}

enum dial_end conn_dial_failed(struct channel *channel, const char *why)
{
    struct conn *conn = channel->conn;
    struct transport *transport = conn->transport;
    enum dial_end end = DIAL_DROPPED;

    (void)pthread_mutex_lock(&transport->lock);
    conn->way.dialled_ns = 0;
    if (channel->dialled_ns && !conn->closing)
        say_unreachable(conn, why, conn->way.why_not, sizeof conn->way.why_not);
    else if (channel->dialled_ns && monotonic_ns() - channel->dialled_ns > LATE_NS) /* for the next connection to the peer */
        say_unreachable(conn, "no answer", conn->way.why_not, sizeof conn->way.why_not);
    if (!conn->closing && !channel->greeting.takes && !ring_empty(&conn->sends) && conn->n_out == 1)
        end = monotonic_ns() < channel->dialled_ns + FAIL_AFTER_NS ? DIAL_WAITS : DIAL_FAILS;
    (void)pthread_mutex_unlock(&transport->lock);
    if (end == DIAL_WAITS && channel->probe != PROBE_NONE)
        conn_probe_ends(channel, NULL);
    return end;
}

bool conn_may_dial(struct channel *channel)
{
    struct conn *conn = channel->conn;
    bool may;

    (void)pthread_mutex_lock(&conn->transport->lock);
    may = !channel->greeting.takes || conn->way.takes;
    if (may && !conn->way.dialled_ns)
        conn->way.dialled_ns = monotonic_ns();
    (void)pthread_mutex_unlock(&conn->transport->lock);
    return may;
}

bool conn_needs(struct channel *channel)
{
    struct conn *conn = channel->conn;
    bool needs;

    (void)pthread_mutex_lock(&conn->transport->lock);
    needs = !conn->closing &&
            (channel->greeting.takes ? conn->n_in == 1 && conn->posted : conn->n_out == 1 && !ring_empty(&conn->sends));
    if (needs && channel->greeting.takes && !conn->way.dialled_ns)
        conn->way.dialled_ns = monotonic_ns();
    (void)pthread_mutex_unlock(&conn->transport->lock);
    return needs;
}

void conn_greeted(struct channel *channel)
{
    struct conn *conn = channel->conn;
    struct channel *more;

    (void)pthread_mutex_lock(&conn->transport->lock);
    if (channel->incoming) {
        conn->way.met = true;
    } else {
        conn->way.dialled_ns = 0;
        if (!conn->way.lossy) /* greetings are small */
            conn->way.why_not[0] = '\0';
    }
    if (!channel->incoming && channel->greeting.takes && !conn->way.takes) { /* once: the peer may end them at once */
        conn->way.takes = true;
        while (!conn->closing && conn->n_in < conn->transport->settings.connections && (more = channel_create(conn, true)))
            thread_attend(more);
    }
    (void)pthread_mutex_unlock(&conn->transport->lock);
}

void conn_lossy(struct channel *channel)
{
    struct conn *conn = channel->conn;

    (void)pthread_mutex_lock(&conn->transport->lock);
    conn->way.lossy = true;
    say_unreachable(conn, LOSSY, conn->way.why_not, sizeof conn->way.why_not);
    (void)pthread_mutex_unlock(&conn->transport->lock);
}

void conn_probe_ends(struct channel *channel, const char *why_not)
{
    struct conn *conn = channel->conn;
    struct transport *transport = conn->transport;

    if (channel->probe == PROBE_NONE)
        return;
    (void)pthread_mutex_lock(&transport->lock);
    probe_move(transport, &channel->probe, PROBE_NONE);
    probe_move(transport, &conn->way.probe, PROBE_NONE);
    transport->probes--;
    if (why_not && !conn->closing && channel->end.left && !channel->end.error) { /* the peer has read all of it */
        conn->way.lossy = false;
        conn->way.why_not[0] = '\0';
    } else if (why_not && !conn->closing && channel->end.error && !conn->way.lossy) {
        say_unreachable(conn, why_not, conn->way.why_not, sizeof conn->way.why_not);
    }
    (void)pthread_mutex_unlock(&transport->lock);
    conns_probe(transport);
}

void conns_probe(struct transport *transport)
{
    (void)pthread_mutex_lock(&transport->lock);
    for (struct ring *at = transport->conns.next; at != &transport->conns && transport->probes < MAX_PROBES; at = at->next) {
        struct conn *conn = container_of(at, struct conn, ring);
        bool shown = conn->n_out && !conn->way.why_not[0]; /* what is sent on another channel shows the same */
        struct channel *channel;

        if (conn->way.probe != PROBE_WANTED || conn->closing)
            continue;
        channel = shown ? NULL : channel_create(conn, false);
        probe_move(transport, &conn->way.probe, channel ? PROBE_RUNNING : PROBE_NONE);
        if (shown)
            continue;
        if (!channel)
            break;
        probe_move(transport, &channel->probe, PROBE_RUNNING);
        conn->way.probed_ns = monotonic_ns();
        transport->probes++;
        thread_attend(channel);
    }
    (void)pthread_mutex_unlock(&transport->lock);
}

void conn_unreachable(struct conn *conn)
{
    char msg[224];

    (void)pthread_mutex_lock(&conn->transport->lock);
    (void)snprintf(msg, sizeof msg, "cannot connect to %s; let this port through the firewall there", conn->way.why_not);
    (void)pthread_mutex_unlock(&conn->transport->lock);
    conn_fail(conn, RDT_PEER_LOST, msg);
}

void conn_fail(struct conn *conn, enum rdt_status status, const char *msg)
{
    bool report;

    (void)pthread_mutex_lock(&conn->transport->lock);
    report = !conn->closing && !conn->failed;
    conn->failed = conn->failed || report;
    (void)pthread_mutex_unlock(&conn->transport->lock);
    if (report)
        conn->transport->host.conn_failed(conn->ctx, status, msg);
}

void conns_close(struct thread *thread)
{
    struct transport *transport = thread->transport;

    (void)pthread_mutex_lock(&transport->lock);
    while (!ring_empty(&thread->visits)) {
        struct conn *conn = container_of(thread->visits.next, struct conn, visit);
        bool closed = conn->closing && !conn->posted && ring_empty(&conn->channels), stuck = !conn->closing && !conn->n_out;

        ring_remove(&conn->visit);
        if (closed)
            ring_remove(&conn->ring);
        (void)pthread_mutex_unlock(&transport->lock);
        if (closed)
            transport->host.conn_closed(conn->ctx); /* the core may destroy it at once */
        else if (stuck)
            conn_fail(conn, RDT_NO_MEMORY, "no memory for a TCP connection");
        (void)pthread_mutex_lock(&transport->lock);
    }
    (void)pthread_mutex_unlock(&transport->lock);
}
