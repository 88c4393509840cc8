/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "voidgroup": "void" within groups. A group is connected as soon as it has all offers. */
#include <stdlib.h>

#include "tests/fuzz/void/core.h"

struct party { /* one rank of a group; the other ranks are connections */
    struct conn conn;
    bool connected;
};

static enum rdt_status group_create(void *transport, const struct rdt_group_desc *desc, void *group_ctx, void **group_p,
                                    struct rdt_error *err)
{
    struct party *party = calloc(1, sizeof *party);

    if (!party)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    if (desc->rank >= desc->size)
        abort();
    party->conn.transport = transport;
    party->conn.ctx = group_ctx;
    *group_p = party;
    return RDT_OK;
}

static enum rdt_status group_offer(void *group, uint8_t blob[RDT_GROUP_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    return void_offer(group, blob, bytes_p, err);
}

static enum rdt_status group_connect(void *arg, const void *const *blobs, const size_t *bytes, struct rdt_error *err)
{
    struct party *party = arg;
    struct transport *transport = party->conn.transport;

    (void)blobs;
    if (party->connected)
        abort();
    party->connected = true;
    if (bytes[0] == 0)
        return rdt_error_set(err, RDT_PROTOCOL, "rank 0's offer is empty");
    return void_say_item(transport, (struct item){.tell_group = transport->host.group_ready, .group_ctx = party->conn.ctx},
                         err);
}

static void *group_conn(void *group, uint32_t rank)
{
    (void)rank;
    return group;
}

static void group_close(void *arg)
{
    struct party *party = arg;
    struct transport *transport = party->conn.transport;

    if (void_say_item(transport, (struct item){.tell_group = transport->host.group_closed, .group_ctx = party->conn.ctx},
                      NULL) != RDT_OK)
        abort();
}

static void group_destroy(void *group)
{
    free(group);
}

static const struct rdt_transport_ops ops = {
    .struct_size = sizeof ops,
    .name = "voidgroup",
    .memory_kinds = void_memory_kinds,
    .speed = 10,
    .open = void_transport_open,
    .close = void_transport_close,
    .version = void_version,
    .register_memory = void_register_memory,
    .unregister_memory = void_unregister_memory,
    .sides = void_sides,
    .post_send = void_post_send,
    .post_recv = void_post_write,
    .cancel = void_cancel,
    .group_create = group_create,
    .group_offer = group_offer,
    .group_connect = group_connect,
    .group_conn = group_conn,
    .group_close = group_close,
    .group_destroy = group_destroy,
};

static const struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "voidgroup",
    .version = "0.1.0",
    .transport = &ops,
};

const struct rdt_backend *rdt_backend_init(void)
{
    return &backend;
}
