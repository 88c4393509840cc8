/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks: each is sent by one active message, and received into the memory of its receive.
 *
 * UCX decides whether a message carries its bytes or is announced first, so that UCX moves them directly into the memory of
 * the receive. Either is checked against the posted receives: only a receive of the same chunk and length is written, and a
 * message without one is dropped. The type of the memory is stated, since UCX would otherwise look it up.
 */
#include <string.h>

#include "backends/ucx/ucx.h"

/* ---- sending ---- */

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    ucp_request_free(request);
    op_end_ucs(user_data, status);
}

static void send_one(struct conn *conn, struct operation *operation)
{
    const struct rdt_op *op = operation->op;
    const ucs_memory_type_t memory = ucx_memory_type(op->memory_kind);
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .flags = UCP_AM_SEND_FLAG_REPLY | (memory == UCS_MEMORY_TYPE_HOST ? 0 : UCP_AM_SEND_FLAG_RNDV),
        .cb.send = on_sent,
        .user_data = operation,
        .memory_type = memory,
    };
    ucs_status_ptr_t request;

    wire_put_data(&operation->header, conn_id_of(conn->peer.token), op->transfer, op->chunk, op->piece.bytes);
    request = ucp_am_send_nbx(conn->links.out->ep, AM_DATA, &operation->header, sizeof operation->header, op->piece.addr,
                              op->piece.bytes, &param);
    if (!request)
        op_end_ucs(operation, UCS_OK);
    else if (UCS_PTR_IS_ERR(request))
        op_end_ucs(operation, UCS_PTR_STATUS(request));
}

void chunks_send(struct conn *conn)
{
    struct engine *engine = conn->engine;
    struct operation *operation;

    (void)pthread_mutex_lock(&engine->lock);
    while ((operation = op_take_send(conn)) != NULL) {
        (void)pthread_mutex_unlock(&engine->lock);
        if (operation->kind == OP_READ)
            read_start(operation);
        else
            send_one(conn, operation);
        (void)pthread_mutex_lock(&engine->lock);
    }
    (void)pthread_mutex_unlock(&engine->lock);
}

/* ---- receiving ---- */

static void on_received(void *request, ucs_status_t status, size_t length, void *user_data)
{
    (void)length;
    ucp_request_free(request);
    op_end_ucs(user_data, status);
}

/* Receives the bytes and returns the result of the message handler: INPROGRESS keeps UCX's descriptor; OK releases it, and
 * tells the sender of an announced message that its memory is free. */
static ucs_status_t receive(struct engine *engine, struct operation *operation, void *data, size_t bytes, bool announced)
{
    const ucs_memory_type_t memory = ucx_memory_type(operation->op->memory_kind);
    void *const addr = operation->op->piece.addr;
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.recv_am = on_received,
        .user_data = operation,
        .memory_type = memory,
    };
    ucs_status_ptr_t request;

    if (!announced && memory == UCS_MEMORY_TYPE_HOST) { /* UCX copies bytes to GPU memory itself (see chunks_handle) */
        memcpy(addr, data, bytes);
        op_end(operation, RDT_OK, NULL);
        return UCS_OK;
    }
    request = ucp_am_recv_data_nbx(engine->worker, data, addr, bytes, &param);
    if (UCS_PTR_IS_PTR(request))
        return UCS_INPROGRESS;
    op_end_ucs(operation, UCS_PTR_STATUS(request));
    return UCS_OK;
}

static ucs_status_t on_data(void *arg, const void *header_data, size_t header_bytes, void *data, size_t bytes,
                            const ucp_am_recv_param_t *param)
{
    struct engine *engine = arg;
    const struct rdt_host *host = &engine->host;
    struct link *link = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP ? link_find(engine, param->reply_ep) : NULL;
    struct data_header header;
    struct operation *operation;

    if (!link)
        return UCS_OK; /* the endpoint is not of our listener, or its link is closing */
    if (!link->incoming || link->state == LINK_FRESH || !wire_read_data(header_data, header_bytes, &header)) {
        link_fail(link, UCS_OK, "its message is malformed or precedes its greeting");
        return UCS_OK;
    }
    if (link->state != LINK_READY)
        return UCS_OK;
    if (header.conn_id != conn_id_of(link->conn->token.bytes) || header.bytes != bytes) {
        link_fail(link, UCS_OK, "its message belongs to another connection or states a wrong length");
        return UCS_OK;
    }

    operation = op_take_recv(link->conn, &header);
    if (!operation) {
        host->log(host->ctx, RDT_LOG_DEBUG, "dropped chunk %llu of transfer %llu, for which no receive is posted",
                  (unsigned long long)header.chunk, (unsigned long long)header.transfer);
        return UCS_OK;
    }
    if (operation->op->piece.bytes != bytes) {
        op_end(operation, RDT_TRANSPORT, "the peer's chunk has another length than the receive that was posted for it");
        return UCS_OK;
    }
    return receive(engine, operation, data, bytes, param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
}

enum rdt_status chunks_handle(struct engine *engine, struct rdt_error *err)
{
    return links_handle(engine, AM_DATA, on_data, ucx_moves(&engine->memory, "cuda") ? UCP_AM_FLAG_PERSISTENT_DATA : 0, err);
}
