/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks: each is sent by one active message, and received into the memory of its receive.
 *
 * A message above settings.eager_bytes is announced first, and UCX then moves its bytes directly into the memory of the
 * receive. A smaller message carries its bytes. Either is checked against the posted receives: only a receive of the same
 * chunk and length is written, and a message without one is dropped.
 *
 * What this file copies itself, to or from the memory of an operation, it tells UCX as data of a type of its own ("generic"),
 * for which UCX calls `pack` and `unpack` part by part: the bytes sent on lanes that copy (see modify_all), and announced bytes
 * that are received in several pieces. UCX fills and empties a whole socket at a time, which takes milliseconds; `pack` and
 * `unpack` yield the processor in between. Other bytes are plain memory for UCX, with a stated memory type, since UCX would
 * otherwise look it up.
 */
#include <string.h>

#include "backends/ucx/ucx.h"

#define PIECE_BYTES ((size_t)256 << 10)      /* copied between two yields: some tens of microseconds */
#define UNCOPIED_BYTES ((uint64_t)128 << 10) /* larger messages are announced on lanes that need not copy */

/* ---- copying ---- */

static void copy(struct engine *engine, uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        thread_yield(engine);
        memcpy(to + at, from + at, bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES);
    }
}

static void *data_start(void *context, const void *operation, size_t count)
{
    (void)context;
    (void)count;
    return (void *)(uintptr_t)operation;
}

static void *data_start_unpack(void *context, void *operation, size_t count)
{
    return data_start(context, operation, count);
}

static size_t data_size(void *state)
{
    return ((const struct operation *)state)->op->piece.bytes;
}

static size_t pack(void *state, size_t offset, void *to, size_t max)
{
    struct operation *operation = state;
    size_t rest = operation->op->piece.bytes - offset, bytes = rest < max ? rest : max, part;

    for (size_t at = 0; at < bytes; at += part) {
        struct iovec from = pieces_at(&operation->pieces, offset + at);
        part = from.iov_len < bytes - at ? from.iov_len : bytes - at;
        copy(operation->conn->engine, (uint8_t *)to + at, from.iov_base, part);
    }
    return bytes;
}

/* The offset comes from the peer. */
static ucs_status_t unpack(void *state, size_t offset, const void *from, size_t bytes)
{
    struct operation *operation = state;
    size_t all = operation->op->piece.bytes, part;

    if (offset > all || bytes > all - offset)
        return UCS_ERR_MESSAGE_TRUNCATED;
    for (size_t at = 0; at < bytes; at += part) {
        struct iovec to = pieces_at(&operation->pieces, offset + at);
        part = to.iov_len < bytes - at ? to.iov_len : bytes - at;
        copy(operation->conn->engine, to.iov_base, (const uint8_t *)from + at, part);
    }
    return UCS_OK;
}

static void data_finish(void *state)
{
    (void)state;
}

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
    const bool copies =
        !op->piece.addr || (conn->out->copies && memory == UCS_MEMORY_TYPE_HOST); /* `pack` cannot read GPU memory */
    const bool eager = op->piece.bytes <= conn->engine->settings.eager_bytes && memory == UCS_MEMORY_TYPE_HOST &&
                       (copies || op->piece.bytes <= UNCOPIED_BYTES);
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                        (copies ? UCP_OP_ATTR_FIELD_DATATYPE : UCP_OP_ATTR_FIELD_MEMORY_TYPE),
        .flags = UCP_AM_SEND_FLAG_REPLY | (eager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV),
        .cb.send = on_sent,
        .user_data = operation,
        .datatype = conn->engine->pieces,
        .memory_type = memory,
    };
    ucs_status_ptr_t request;

    wire_put_data(&operation->header, session_of(conn->peer_token), op->transfer, op->chunk, op->piece.bytes);
    request = ucp_am_send_nbx(conn->out->ep, AM_DATA, &operation->header, sizeof operation->header,
                              copies ? (const void *)operation : op->piece.addr, copies ? 1 : op->piece.bytes, &param);
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
            read_start(conn, operation);
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
    void *const addr = operation->op->piece.addr; /* NULL: several pieces */
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        (addr ? UCP_OP_ATTR_FIELD_MEMORY_TYPE : UCP_OP_ATTR_FIELD_DATATYPE),
        .cb.recv_am = on_received,
        .user_data = operation,
        .datatype = engine->pieces,
        .memory_type = memory,
    };
    ucs_status_ptr_t request;

    if (!announced &&
        memory == UCS_MEMORY_TYPE_HOST) { /* UCX copies the bytes of a small message to GPU memory (see chunks_handle) */
        (void)unpack(operation, 0, data, bytes);
        op_end(operation, RDT_OK, NULL);
        return UCS_OK;
    }
    request = ucp_am_recv_data_nbx(engine->worker, data, addr ? addr : operation, addr ? bytes : 1, &param);
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
    if (header.session != session_of(link->conn->token) || header.bytes != bytes) {
        link_fail(link, UCS_OK, "its message belongs to another session or states a wrong length");
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
    static const ucp_generic_dt_ops_t ops = {.start_pack = data_start,
                                             .start_unpack = data_start_unpack,
                                             .packed_size = data_size,
                                             .pack = pack,
                                             .unpack = unpack,
                                             .finish = data_finish};
    ucs_status_t ucs = ucp_dt_create_generic(&ops, NULL, &engine->pieces);

    if (ucs != UCS_OK)
        return rdt_error_set(err, RDT_NO_MEMORY, "UCX cannot create a data type: %s", ucs_status_string(ucs));
    return thread_handle(engine, AM_DATA, on_data, ucx_moves(&engine->memory, "cuda") ? UCP_AM_FLAG_PERSISTENT_DATA : 0, err);
}

void chunks_fini(struct engine *engine)
{
    if (engine->pieces)
        ucp_dt_destroy(engine->pieces);
}
