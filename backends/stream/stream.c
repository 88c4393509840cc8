/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "stream": two-sided, between host memory of two nodes, over its own TCP connections beside the peer link.
 * It works everywhere: it encrypts unless both ends trust the network, and needs only TCP.
 *
 * This file has the table of operations, and opens and closes the transport. stream.h lists the other files and their order.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "backends/common/only_transport.h"
#include "backends/stream/stream.h"

static void transport_free(struct transport *transport)
{
    if (transport->listener >= 0)
        (void)close(transport->listener);
    SSL_CTX_free(transport->ssl_ctx);
    BIO_meth_free(transport->gather);
    (void)pthread_mutex_destroy(&transport->lock);
    free(transport);
}

static enum rdt_status transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    struct settings settings;
    struct transport *transport;
    enum rdt_status status = settings_read(host, &settings, err);

    if (status != RDT_OK)
        return status;
    transport = calloc(1, sizeof *transport);
    if (!transport)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the transport");
    transport->host = *host;
    transport->settings = settings;
    transport->listener = -1;
    transport->find_key = conn_find_key;
    (void)pthread_mutex_init(&transport->lock, NULL);
    ring_init(&transport->conns);
    strangers_init(&transport->strangers, MAX_STRANGERS, MAX_STRANGERS_OF_SOURCE);

    transport->ssl_ctx = tls_create(err);
    status = transport->ssl_ctx ? listen_open(transport, err) : RDT_UNSUPPORTED;
    if (status == RDT_OK && !(transport->gather = channel_gather_method()))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for TLS");
    if (status == RDT_OK)
        status = threads_start(transport, err);
    if (status != RDT_OK) {
        transport_free(transport);
        return status;
    }
    host->log(host->ctx, RDT_LOG_INFO, "listens on %s port %u: %s; %s", settings.listen,
              ntohs(((const struct sockaddr_in *)&transport->address)->sin_port),
              settings.plain ? "unencrypted if the peer trusts the network too, otherwise TLS 1.3" : "TLS 1.3",
              tls_kernel_state());
    *transport_p = transport;
    return RDT_OK;
}

static void transport_close(void *transport)
{
    threads_stop(transport);
    transport_free(transport);
}

static const char *transport_version(void *transport)
{
    (void)transport;
    return WIRE_VERSION;
}

static enum rdt_status connection_create(void *transport, const uint8_t peer_uuid[16], void *conn_ctx, void **conn_p,
                                         struct rdt_error *err)
{
    struct conn *conn;
    enum rdt_status status = conn_create(transport, peer_uuid, conn_ctx, &conn, err);

    if (status == RDT_OK)
        *conn_p = conn;
    return status;
}

static void connection_destroy(void *conn)
{
    conn_destroy(conn);
}

static enum rdt_status offer(void *handle, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    struct conn *conn = handle;
    struct sockaddr_storage address;

    (void)err;
    listen_address(conn->transport, conn->ctx, &address);
    return conn_offer(conn, &address, blob, bytes_p);
}

static enum rdt_status connect_to(void *conn, const void *blob, size_t bytes, struct rdt_error *err)
{
    return conn_connect(conn, blob, bytes, err);
}

static uint32_t sides(void *conn, const char *memory_kind)
{
    (void)conn;
    return memory_kind && !strcasecmp(memory_kind, "host") ? RDT_TWO_SIDED : 0;
}

static uint32_t max_pieces(void *conn, const char *memory_kind)
{
    (void)conn;
    (void)memory_kind;
    return UINT32_MAX;
}

static enum rdt_status describe(void *conn, char *text_p, size_t size)
{
    conn_describe(conn, text_p, size);
    return *text_p ? RDT_OK : RDT_AGAIN;
}

static enum rdt_status trouble(void *conn, char *text_p, size_t size)
{
    return conn_trouble(conn, text_p, size);
}

static void disconnect(void *conn)
{
    conn_disconnect(conn);
}

static enum rdt_status post_send(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    return op_post(conn, op, true, err);
}

static enum rdt_status post_recv(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    return op_post(conn, op, false, err);
}

static void cancel(void *conn, struct rdt_op *op)
{
    op_cancel(conn, op);
}

/* ---- the backend ---- */

static const char *const memory_kinds[] = {"host", NULL};

static const struct rdt_transport_ops transport_ops = {
    .struct_size = sizeof transport_ops,
    .name = "stream",
    .memory_kinds = memory_kinds,
    .speed = 50,
    .open = transport_open,
    .close = transport_close,
    .version = transport_version,
    .connection_create = connection_create,
    .connection_destroy = connection_destroy,
    .offer = offer,
    .connect = connect_to,
    .sides = sides,
    .disconnect = disconnect,
    .post_send = post_send,
    .post_recv = post_recv,
    .cancel = cancel,
    .describe = describe,
    .max_pieces = max_pieces,
    .trouble = trouble,
};

static const struct rdt_config_key config_keys[] = {
    {"enabled", "yes", "no: this node neither offers nor uses the transport"},
    {"listen", "", "numeric address that peers connect to; empty: that of the peer link, otherwise of the interfaces"},
    {"advertise", "",
     "the address, the port, or ADDRESS:PORT by which peers reach it behind a port mapping; empty: where it listens"},
    {"ports", "0", "TCP port to listen on, or FIRST-LAST for the first free one; 0: any"},
    {"encrypt", "unless_trusted", "TLS between the nodes: unless_trusted (both have trusted_network = yes), or always"},
    {"connections", "0", "TCP connections to one peer; 0: as many as threads"},
    {"threads", "0", "threads that move bytes; 0: one for every four processors, at most 4"},
    {"rekey_bytes", "68719476736", "bytes after which a TLS connection is replaced by a new one with new keys"},
    {"dead_after", "10", "seconds without an answer of the peer's kernel after which a connection fails"},
    {NULL, NULL, NULL},
};

ONLY_TRANSPORT(config_keys, transport_ops)
