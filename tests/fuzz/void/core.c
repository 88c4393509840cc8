/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "void": connects to any offer and ends every operation at once, having read or written all of its memory.
 * With it a fuzzed peer gets as far as a true one, and whatever the core posts outside its memory is seen.
 *
 * One thread says op_done and conn_closed, in the order of the posts. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tests/fuzz/void/core.h"

static void *run(void *arg)
{
    struct transport *transport = arg;

    (void)pthread_mutex_lock(&transport->lock);
    while (!transport->stopping || transport->first) {
        struct item *item = transport->first;

        if (!item) {
            (void)pthread_cond_wait(&transport->changed, &transport->lock);
            continue;
        }
        transport->first = item->next;
        if (!transport->first)
            transport->last = &transport->first;
        (void)pthread_mutex_unlock(&transport->lock);
        if (item->op)
            transport->host.op_done(item->op, RDT_OK, NULL);
        else if (item->tell_group)
            item->tell_group(item->group_ctx);
        else
            transport->host.conn_closed(item->closed->ctx);
        free(item);
        (void)pthread_mutex_lock(&transport->lock);
    }
    (void)pthread_mutex_unlock(&transport->lock);
    return NULL;
}

enum rdt_status void_say_item(struct transport *transport, struct item what, struct rdt_error *err)
{
    struct item *item = calloc(1, sizeof *item);

    if (!item)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    *item = what;
    (void)pthread_mutex_lock(&transport->lock);
    *transport->last = item;
    transport->last = &item->next;
    (void)pthread_cond_signal(&transport->changed);
    (void)pthread_mutex_unlock(&transport->lock);
    return RDT_OK;
}

enum rdt_status void_say(struct transport *transport, struct rdt_op *op, struct conn *closed, struct rdt_error *err)
{
    return void_say_item(transport, (struct item){.op = op, .closed = closed}, err);
}

/* ---- the transport ---- */

enum rdt_status void_transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    struct transport *transport = calloc(1, sizeof *transport);

    if (!transport)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    transport->host = *host;
    transport->last = &transport->first;
    (void)pthread_mutex_init(&transport->lock, NULL);
    (void)pthread_cond_init(&transport->changed, NULL);
    if (pthread_create(&transport->thread, NULL, run, transport) != 0)
        abort();
    *transport_p = transport;
    return RDT_OK;
}

void void_transport_close(void *arg)
{
    struct transport *transport = arg;

    (void)pthread_mutex_lock(&transport->lock);
    transport->stopping = true;
    (void)pthread_cond_signal(&transport->changed);
    (void)pthread_mutex_unlock(&transport->lock);
    (void)pthread_join(transport->thread, NULL);
    free(transport);
}

const char *void_version(void *transport)
{
    (void)transport;
    return "1";
}

enum rdt_status void_register_memory(void *transport, void *addr, uint64_t bytes, const char *memory_kind,
                                     void **registration_p, struct rdt_error *err)
{
    (void)transport;
    (void)bytes;
    (void)memory_kind;
    (void)err;
    *registration_p = addr;
    return RDT_OK;
}

void void_unregister_memory(void *transport, void *registration)
{
    (void)transport;
    (void)registration;
}

enum rdt_status void_connection_create(void *transport, const uint8_t peer_uuid[16], void *conn_ctx, void **conn_p,
                                       struct rdt_error *err)
{
    struct conn *conn = calloc(1, sizeof *conn);

    (void)peer_uuid;
    if (!conn)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    conn->transport = transport;
    conn->ctx = conn_ctx;
    *conn_p = conn;
    return RDT_OK;
}

void void_connection_destroy(void *conn)
{
    free(conn);
}

enum rdt_status void_offer(void *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    (void)conn;
    (void)err;
    blob[0] = 'v';
    *bytes_p = 1;
    return RDT_OK;
}

enum rdt_status void_connect_to(void *conn, const void *blob, size_t bytes, struct rdt_error *err)
{
    (void)conn;
    (void)blob;
    return bytes > 0 ? RDT_OK : rdt_error_set(err, RDT_PROTOCOL, "the peer's offer is empty");
}

uint32_t void_sides(void *conn, const char *memory_kind)
{
    (void)conn;
    return strcasecmp(memory_kind, "host") ? 0 : RDT_ONE_SIDED | RDT_TWO_SIDED;
}

void void_disconnect(void *arg)
{
    struct conn *conn = arg;

    if (void_say(conn->transport, NULL, conn, NULL) != RDT_OK)
        abort();
}

enum rdt_status void_post_write(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    if (op->piece.bytes)
        memset(op->piece.addr, 0x5a, op->piece.bytes);
    return void_say(((struct conn *)conn)->transport, op, NULL, err);
}

enum rdt_status void_post_send(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    const volatile uint8_t *bytes = op->piece.addr;

    for (uint64_t i = 0; i < op->piece.bytes; i++)
        (void)bytes[i];
    return void_say(((struct conn *)conn)->transport, op, NULL, err);
}

enum rdt_status void_pack_key(void *transport, void *registration, uint8_t key[RDT_KEY_MAX_BYTES], size_t *bytes_p,
                              struct rdt_error *err)
{
    (void)transport;
    (void)err;
    memcpy(key, &registration, sizeof registration);
    *bytes_p = sizeof registration;
    return RDT_OK;
}

void void_cancel(void *conn, struct rdt_op *op)
{
    (void)conn;
    (void)op; /* it is done, and its report is on the way */
}

const char *const void_memory_kinds[] = {"host", NULL};
