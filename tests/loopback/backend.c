/* SPDX-License-Identifier: Apache-2.0 */
/* The table of "loopback": connections between any two nodes. */
#include "tests/loopback/loopback.h"

static const char *const memory_kinds[] = {"host", "fake", NULL};

static const struct rdt_transport_ops transport_ops = {
    .struct_size = sizeof transport_ops,
    .name = "loopback",
    .memory_kinds = memory_kinds,
    .speed = 10,
    .open = loopback_transport_open,
    .close = loopback_transport_close,
    .version = loopback_transport_version,
    .register_memory = loopback_register_memory,
    .unregister_memory = loopback_unregister_memory,
    .connection_create = loopback_connection_create,
    .connection_destroy = loopback_connection_destroy,
    .offer = loopback_offer,
    .connect = loopback_connect_to,
    .sides = loopback_sides,
    .disconnect = loopback_disconnect,
    .post_send = loopback_post_send,
    .post_recv = loopback_post_recv,
    .pack_key = loopback_pack_key,
    .post_read = loopback_post_read,
    .cancel = loopback_cancel,
    .queue = loopback_queue,
    .moves = loopback_moves,
};

static const struct rdt_config_key config_keys[] = {
    {"version", "1.0", "version of its library that peers are told"},
    {"sided", "both", "one, two or both: which sides connections report"},
    {"ordered", "no", "yes: sends and receives stand in one queue; unsaid: likewise, but the core is not told"},
    {"devices", "no", "yes: it moves memory of the fake device too"},
    {"refuse_registration", "no", "yes: memory of the fake device is not registered"},
    {"delay_ms", "0", "each chunk starts this much later than the one before"},
    {"lose_every", "0", "every n-th operation ends only by a disconnect"},
    {"fail_every", "0", "every n-th operation fails"},
    {"give_up_every", "0", "every n-th operation ends as if it had been cancelled"},
    {"no_abort", "no", "yes: cancel does nothing"},
    {"late_ms", "0", "a cancelled operation ends this much later, and its memory is written just before"},
    {"hold_chunk", "0", "chunk n - 1 of each transfer is not sent as long as this is n"},
    {"flip_chunk", "0", "a bit of chunk n - 1 of each transfer is sent wrong"},
    {"disconnect_delay_ms", "0", "a disconnect takes effect this much later"},
    {"fault_file", "", "file of key=value lines that override the faults above, read before every operation"},
    {NULL, NULL, NULL},
};

static const struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "loopback",
    .version = "0.1.0",
    .config_keys = config_keys,
    .transport = &transport_ops,
};

const struct rdt_backend *rdt_backend_init(void)
{
    return &backend;
}
