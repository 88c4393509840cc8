/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: one per peer node, with the secrets of its channels.
 *
 * The loop thread creates, connects, disconnects and destroys them. A disconnected connection is closed when its channels are
 * gone and its operations have ended, so that nothing can be written to their memory any more.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "backends/stream/stream.h"

/* ---- loop thread ---- */

enum rdt_status conn_create(struct transport *transport, void *ctx, struct conn **conn_p, struct rdt_error *err)
{
    struct conn *conn = calloc(1, sizeof *conn);

    if (!conn)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a connection");
    if (getrandom(&conn->ours, sizeof conn->ours, 0) != sizeof conn->ours) {
        free(conn);
        return rdt_error_sys(err, errno, "creating random secrets");
    }
    conn->transport = transport;
    conn->ctx = ctx;
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
    }
    (void)pthread_mutex_unlock(&transport->lock);
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
    (void)pthread_mutex_unlock(&conn->transport->lock);
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
    } else if (conn->n_in == MAX_CHANNELS_IN) {
        why_not = "its node has too many connections";
    } else {
        strangers_remove(&transport->strangers, &channel->stranger);
        ring_append(&conn->channels, &channel->ring);
        conn->n_in++;
        channel->counted = true;
        channel->conn = conn;
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return why_not;
}

void conn_channel_leaves(struct channel *channel)
{
    struct conn *conn = channel->conn;

    (void)pthread_mutex_lock(&conn->transport->lock);
    ring_remove(&channel->idle);
    channel->counted = false;
    conn->n_out--;
    ops_start_sends(conn);
    (void)pthread_mutex_unlock(&conn->transport->lock);
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
