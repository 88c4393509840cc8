/* SPDX-License-Identifier: Apache-2.0 */
/* The transport "void" of core.c, between any two nodes. */
#include "tests/fuzz/void/core.h"

static const struct rdt_transport_ops ops = {
    .struct_size = sizeof ops,
    .name = "void",
    .memory_kinds = void_memory_kinds,
    .speed = 10,
    .open = void_transport_open,
    .close = void_transport_close,
    .version = void_version,
    .register_memory = void_register_memory,
    .unregister_memory = void_unregister_memory,
    .connection_create = void_connection_create,
    .connection_destroy = void_connection_destroy,
    .offer = void_offer,
    .connect = void_connect_to,
    .sides = void_sides,
    .disconnect = void_disconnect,
    .post_send = void_post_send,
    .post_recv = void_post_write,
    .pack_key = void_pack_key,
    .post_read = void_post_write,
    .cancel = void_cancel,
};

static const struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "void",
    .version = "0.1.0",
    .transport = &ops,
};

const struct rdt_backend *rdt_backend_init(void)
{
    return &backend;
}
