/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided reads: the owner registers memory and packs a key for it; the reader reads, without the owner's processor.
 *
 * Reads are offered only over lanes that can read remote memory: those of RDMA (which is untested, because no test machine had
 * an RDMA device) and, with one_sided = always, memory of another process on the same machine (cma). Over TCP, UCX would
 * emulate a read, which is slower than a send and lets a peer read any address of the process. There sides() never reports
 * one-sided reads, and the context supports them only if tls excludes TCP or one_sided = always.
 *
 * Memory is registered in slices (slice_mib): into more than 4 GiB in one registration, cards were seen to read at 6.0 GB/s in
 * place of 9.3 (LMCache, pull request 4432), and some refuse it. A read that crosses slices, of either end, is several reads of
 * UCX. Where the keys of all slices have no room in the key of the core, the memory is registered whole.
 */
#include <stdlib.h>
#include <string.h>

#include "backends/ucx/ucx.h"

/* Registers the memory in slices. */
static ucs_status_t map_slices(struct engine *engine, struct registration *registration, ucs_memory_type_t memory)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .memory_type = memory,
    };
    uint64_t at = 0, left;
    ucs_status_t ucs;

    registration->n = 0;
    do {
        left = registration->bytes - at;
        params.address = (char *)registration->addr + at;
        params.length = left < registration->slice_bytes ? left : registration->slice_bytes;
        ucs = ucp_mem_map(engine->context, &params, &registration->slices[registration->n]);
        registration->n += ucs == UCS_OK;
        at += params.length;
    } while (ucs == UCS_OK && at < registration->bytes);
    return ucs;
}

static void unmap_slices(struct engine *engine, struct registration *registration)
{
    while (registration->n > 0)
        (void)ucp_mem_unmap(engine->context, registration->slices[--registration->n]);
}

enum rdt_status read_register(struct engine *engine, void *addr, uint64_t bytes, ucs_memory_type_t memory,
                              struct registration **registration_p, struct rdt_error *err)
{
    uint64_t slice_bytes = engine->settings.slice_bytes, n = bytes == 0 ? 1 : (bytes - 1) / slice_bytes + 1;
    struct registration *registration;
    uint8_t key[RDT_KEY_MAX_BYTES];
    size_t key_bytes;
    ucs_status_t ucs;

    if (n == 1 || n > WIRE_MAX_SLICES) {
        n = 1;
        slice_bytes = bytes;
    }
    registration = calloc(1, sizeof *registration + n * sizeof *registration->slices);
    if (!registration)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a registration");
    *registration = (struct registration){.addr = addr, .bytes = bytes, .slice_bytes = slice_bytes};
    ucs = map_slices(engine, registration, memory);
    if (ucs == UCS_OK && n > 1 && read_pack_key(engine, registration, key, &key_bytes, NULL) != RDT_OK) {
        unmap_slices(engine, registration);
        registration->slice_bytes = bytes;
        ucs = map_slices(engine, registration, memory);
    }
    if (ucs != UCS_OK) {
        unmap_slices(engine, registration);
        free(registration);
        return rdt_error_set(err, ucs == UCS_ERR_NO_MEMORY ? RDT_NO_MEMORY : RDT_TRANSPORT,
                             "UCX cannot register %llu bytes: %s", (unsigned long long)bytes, ucs_status_string(ucs));
    }
    *registration_p = registration;
    return RDT_OK;
}

void read_unregister(struct engine *engine, struct registration *registration)
{
    unmap_slices(engine, registration);
    free(registration);
}

enum rdt_status read_pack_key(struct engine *engine, const struct registration *registration, uint8_t key[RDT_KEY_MAX_BYTES],
                              size_t *bytes_p, struct rdt_error *err)
{
    struct wire_rkey rkeys[WIRE_MAX_SLICES];
    uint32_t n = 0;
    size_t bytes = 0;
    ucs_status_t ucs;

    do
        ucs = ucp_rkey_pack(engine->context, registration->slices[n], &rkeys[n].data, &rkeys[n].bytes);
    while (ucs == UCS_OK && ++n < registration->n);
    if (ucs == UCS_OK)
        bytes = wire_put_key((uintptr_t)registration->addr, registration->bytes, registration->slice_bytes, rkeys, n, key);
    for (uint32_t i = 0; i < n; i++)
        ucp_rkey_buffer_release(rkeys[i].data);
    if (ucs != UCS_OK)
        return rdt_error_set(err, RDT_TRANSPORT, "UCX cannot pack a key: %s", ucs_status_string(ucs));
    if (bytes == 0)
        return rdt_error_set(err, RDT_TRANSPORT, "UCX's keys of %u slices are too long", n);
    *bytes_p = bytes;
    return RDT_OK;
}

/* ---- reading ---- */

struct part { /* of an operation: one read of UCX */
    struct operation *operation;
    ucp_rkey_h rkey;
};

/* The last part ends the operation. */
static void end_part(struct operation *operation, ucs_status_t status)
{
    if (operation->read_status == UCS_OK)
        operation->read_status = status;
    if (--operation->reads == 0)
        op_end_ucs(operation, operation->read_status);
}

static void on_read(void *request, ucs_status_t status, void *user_data)
{
    struct part *part = user_data;
    struct operation *operation = part->operation;

    ucp_request_free(request);
    ucp_rkey_destroy(part->rkey);
    free(part);
    end_part(operation, status);
}

/* Reads bytes that lie in one slice at each end. memh: of this end; NULL: UCX looks for it. */
static ucs_status_t read_part(struct operation *operation, void *to, uint64_t bytes, ucp_mem_h memh, uint64_t from,
                              const void *rkey)
{
    ucp_ep_h ep = operation->conn->links.out->ep;
    struct part *part = malloc(sizeof *part);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | (memh ? UCP_OP_ATTR_FIELD_MEMH : 0u),
        .cb.send = on_read,
        .user_data = part,
        .memh = memh,
    };
    ucs_status_ptr_t request;
    ucs_status_t ucs;

    if (!part)
        return UCS_ERR_NO_MEMORY;
    part->operation = operation;
    ucs = ucp_ep_rkey_unpack(ep, rkey, &part->rkey);
    if (ucs != UCS_OK) {
        free(part);
        return ucs;
    }
    operation->reads++;
    request = ucp_get_nbx(ep, to, bytes, from, part->rkey, &param);
    if (UCS_PTR_IS_PTR(request))
        return UCS_OK;
    ucp_rkey_destroy(part->rkey);
    free(part);
    operation->reads--;
    return UCS_PTR_STATUS(request);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void read_start(struct operation *operation)
{
    const struct rdt_op *op = operation->op;
    const struct registration *registration = op->piece.registration;
    ucs_status_t ucs = UCS_OK;
    struct wire_key key;
    struct rdt_error err = {0};

    if (wire_read_key(op->key, op->key_bytes, op->key_offset, op->piece.bytes, &key, &err) != RDT_OK) {
        op_end(operation, RDT_TRANSPORT, err.msg);
        return;
    }
    operation->reads = 1; /* this function */
    for (uint64_t at = 0, bytes; at < op->piece.bytes && ucs == UCS_OK; at += bytes) {
        const void *rkey = wire_rkey_at(&key, op->key_offset + at, &bytes);
        uint8_t *to = (uint8_t *)op->piece.addr + at;
        ucp_mem_h memh = NULL;

        bytes = least(bytes, op->piece.bytes - at);
        if (registration) {
            uint64_t offset = (uint64_t)(to - (uint8_t *)registration->addr);
            memh = registration->slices[offset / registration->slice_bytes];
            bytes = least(bytes, registration->slice_bytes - offset % registration->slice_bytes);
        }
        ucs = read_part(operation, to, bytes, memh, key.address + op->key_offset + at, rkey);
    }
    end_part(operation, ucs);
}
