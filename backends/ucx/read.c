/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided reads: the owner registers memory and packs a key for it; the reader reads, without the owner's processor.
 *
 * Reads are offered only over lanes that can read remote memory: those of RDMA (which is untested, because no test machine had
 * an RDMA device) and, with one_sided = always, memory of another process on the same machine (cma). Over TCP, UCX would
 * emulate a read, which is slower than a send and lets a peer read any address of the process. There sides() never reports
 * one-sided reads, and the context supports them only if tls excludes TCP or one_sided = always.
 */
#include <stdlib.h>
#include <string.h>

#include "backends/ucx/ucx.h"

enum rdt_status read_register(struct engine *engine, void *addr, uint64_t bytes, ucs_memory_type_t memory,
                              struct registration **registration_p, struct rdt_error *err)
{
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = addr,
        .length = bytes,
        .memory_type = memory,
    };
    struct registration *registration = calloc(1, sizeof *registration);
    ucs_status_t ucs;

    if (!registration)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a registration");
    registration->addr = addr;
    registration->bytes = bytes;
    ucs = ucp_mem_map(engine->context, &params, &registration->memh);
    if (ucs != UCS_OK) {
        free(registration);
        return rdt_error_set(err, ucs == UCS_ERR_NO_MEMORY ? RDT_NO_MEMORY : RDT_TRANSPORT,
                             "UCX cannot register %llu bytes: %s", (unsigned long long)bytes, ucs_status_string(ucs));
    }
    *registration_p = registration;
    return RDT_OK;
}

void read_unregister(struct engine *engine, struct registration *registration)
{
    (void)ucp_mem_unmap(engine->context, registration->memh);
    free(registration);
}

enum rdt_status read_pack_key(struct engine *engine, const struct registration *registration, uint8_t key[RDT_KEY_MAX_BYTES],
                              size_t *bytes_p, struct rdt_error *err)
{
    void *rkey;
    size_t bytes;
    ucs_status_t ucs = ucp_rkey_pack(engine->context, registration->memh, &rkey, &bytes);

    if (ucs != UCS_OK)
        return rdt_error_set(err, RDT_TRANSPORT, "UCX cannot pack a key: %s", ucs_status_string(ucs));
    *bytes_p = wire_put_key((uintptr_t)registration->addr, registration->bytes, rkey, bytes, key);
    ucp_rkey_buffer_release(rkey);
    return *bytes_p ? RDT_OK : rdt_error_set(err, RDT_TRANSPORT, "UCX's key of %zu bytes is too long", bytes);
}

static void on_read(void *request, ucs_status_t status, void *user_data)
{
    struct operation *operation = user_data;

    ucp_request_free(request);
    ucp_rkey_destroy(operation->rkey);
    op_end_ucs(operation, status);
}

void read_start(struct conn *conn, struct operation *operation)
{
    const struct rdt_op *op = operation->op;
    const struct registration *registration = op->piece.registration;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_read,
        .user_data = operation,
    };
    const void *rkey;
    uint64_t address;
    ucs_status_ptr_t request;
    ucs_status_t ucs;
    struct rdt_error err = {0};

    if (wire_read_key(op->key, op->key_bytes, op->key_offset, op->piece.bytes, &address, &rkey, &err) != RDT_OK) {
        op_end(operation, RDT_TRANSPORT, err.msg);
        return;
    }
    ucs = ucp_ep_rkey_unpack(conn->links.out->ep, rkey, &operation->rkey);
    if (ucs != UCS_OK) {
        op_end_ucs(operation, ucs);
        return;
    }
    if (registration) { /* without it UCX would look the memory up */
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param.memh = registration->memh;
    }
    request = ucp_get_nbx(conn->links.out->ep, op->piece.addr, op->piece.bytes, address, operation->rkey, &param);
    if (UCS_PTR_IS_PTR(request))
        return;
    ucp_rkey_destroy(operation->rkey);
    op_end_ucs(operation, UCS_PTR_STATUS(request));
}
