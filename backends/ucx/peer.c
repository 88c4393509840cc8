/* SPDX-License-Identifier: Apache-2.0 */
/* One peer node over all engines: one connection to the core, with a connection in each engine.
 *
 * The transfer and chunk numbers determine the engine of a chunk, at both ends, so the receive is posted at the engine at which
 * the chunk arrives. The chunks of one large object therefore use all engines, and so do many small objects. Reads use the
 * first engine, with which memory is registered, because the device moves their bytes. Two nodes use as many engines as the
 * node with fewer has.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "backends/ucx/ucx.h"

/* ---- callbacks of the engines, in their data threads ---- */

static void on_failed(void *arg, enum rdt_status status, const char *msg)
{
    struct peer *peer = arg;

    if (!atomic_exchange(&peer->failed, true))
        peer->transport->host.conn_failed(peer->ctx, status, msg);
}

static void on_closed(void *arg)
{
    struct peer *peer = arg;

    if (atomic_fetch_sub(&peer->open, 1) == 1)
        peer->transport->host.conn_closed(peer->ctx); /* the core may destroy it at once */
}

struct rdt_host peer_host(const struct rdt_host *host)
{
    struct rdt_host engines_host = *host;

    engines_host.conn_failed = on_failed;
    engines_host.conn_closed = on_closed;
    return engines_host;
}

/* ---- loop thread ---- */

enum rdt_status peer_create(struct transport *transport, const uint8_t uuid[16], void *ctx, struct peer **peer_p,
                            struct rdt_error *err)
{
    struct peer *peer = calloc(1, sizeof *peer);
    enum rdt_status status = RDT_OK;

    if (!peer)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a connection");
    peer->transport = transport;
    peer->ctx = ctx;
    (void)pthread_mutex_init(&peer->lock, NULL);
    if (getrandom(peer->token, TOKEN_BYTES, 0) != TOKEN_BYTES || getrandom(peer->dialler, TOKEN_BYTES, 0) != TOKEN_BYTES)
        status = rdt_error_sys(err, errno, "creating random tokens");
    for (unsigned i = 0; status == RDT_OK && i < transport->n; i++)
        status = conn_create(transport->engines[i], uuid, peer, &peer->conns[i], err);
    if (status != RDT_OK) {
        peer_destroy(peer);
        return status;
    }
    atomic_store(&peer->open, transport->n);
    *peer_p = peer;
    return RDT_OK;
}

void peer_destroy(struct peer *peer)
{
    for (unsigned i = 0; i < peer->transport->n && peer->conns[i]; i++)
        conn_destroy(peer->conns[i]);
    (void)pthread_mutex_destroy(&peer->lock);
    explicit_bzero(peer->token, sizeof peer->token);
    free(peer);
}

size_t peer_offer(struct peer *peer, uint8_t blob[RDT_OFFER_MAX_BYTES])
{
    struct sockaddr_storage addresses[MAX_ENGINES];

    for (unsigned i = 0; i < peer->transport->n; i++) {
        addresses[i] = peer->transport->engines[i]->address;
        conn_offer(peer->conns[i]);
    }
    return wire_put_offer(addresses, peer->transport->n, peer->token, blob);
}

enum rdt_status peer_connect(struct peer *peer, const void *blob, size_t bytes, struct rdt_error *err)
{
    struct sockaddr_storage addresses[MAX_ENGINES];
    uint8_t token[TOKEN_BYTES];
    unsigned n;
    enum rdt_status status = wire_read_offer(blob, bytes, addresses, &n, token, err);

    for (unsigned i = 0; status == RDT_OK && i < n; i++)
        if (addresses[i].ss_family != peer->transport->engines[0]->address.ss_family)
            status =
                rdt_error_set(err, RDT_UNSUPPORTED,
                              "the peer's ucx listens at an IPv%c address and this node's at an IPv%c address: "
                              "set listen in [ucx] to addresses of the same kind",
                              addresses[i].ss_family == AF_INET ? '4' : '6', addresses[i].ss_family == AF_INET ? '6' : '4');
    n = status == RDT_OK && n < peer->transport->n ? n : peer->transport->n;
    for (unsigned i = 0; status == RDT_OK && i < n; i++)
        status = conn_connect(peer->conns[i], &addresses[i], token, err);
    if (status == RDT_OK)
        peer->n = n;
    return status;
}

void peer_disconnect(struct peer *peer)
{
    atomic_store(&peer->failed, true); /* from now on no failure is reported */
    for (unsigned i = 0, n = peer->transport->n; i < n; i++) {
        struct conn *conn = peer->conns[i];

        conn_disconnect(conn); /* after the last one the core may destroy the peer */
    }
}

uint32_t peer_sides(const struct peer *peer, const char *memory_kind)
{
    uint32_t sides = conn_sides(peer->conns[0]);

    if (!ucx_moves(&peer->transport->engines[0]->memory, memory_kind))
        return 0;
    for (unsigned i = 1; i < peer->n; i++)
        if (!conn_sides(peer->conns[i])) /* its lanes were refused */
            return 0;
    return sides;
}

/* A list of pieces is copied (chunk.c), so it is no use on lanes that move one piece without copying it. */
uint32_t peer_max_pieces(const struct peer *peer, const char *memory_kind)
{
    if (ucx_memory_type(memory_kind) != UCS_MEMORY_TYPE_HOST)
        return 1;
    for (unsigned i = 0; i < (peer->n ? peer->n : 1); i++)
        if (!conn_copies(peer->conns[i]))
            return 1;
    return UINT32_MAX;
}

enum rdt_status peer_describe(const struct peer *peer, char *text_p, size_t size)
{
    enum rdt_status status = RDT_AGAIN;
    size_t length;

    for (unsigned i = 0; status != RDT_OK && i < (peer->n ? peer->n : 1); i++)
        status = conn_describe(peer->conns[i], text_p, size);
    length = strlen(text_p);
    if (status == RDT_OK && peer->n > 1)
        (void)snprintf(text_p + length, size - length, ", %u threads", peer->n);
    return status;
}

enum rdt_status peer_post(struct peer *peer, struct rdt_op *op, enum op_kind kind, struct rdt_error *err)
{
    uintptr_t index = kind == OP_READ || !peer->n ? 0 : (uintptr_t)((op->transfer + op->chunk) % peer->n);

    if (!peer->n && peer->transport->n > 1)
        return rdt_error_set(err, RDT_PEER_LOST, "the peer is not connected yet");
    op->priv[1] = peer->conns[index];
    return op_post(peer->conns[index], op, kind, err);
}

void peer_cancel(const struct peer *peer, struct rdt_op *op)
{
    (void)peer;
    op_cancel(op->priv[1], op);
}
