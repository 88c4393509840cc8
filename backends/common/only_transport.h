/* SPDX-License-Identifier: Apache-2.0 */
/* Defines rdt_backend_init for a plug-in of this tree that has one transport and no memory kind. */
#ifndef BACKENDS_ONLY_TRANSPORT_H
#define BACKENDS_ONLY_TRANSPORT_H

#include "rdt_backend.h"

/* keys: the config_keys of its section, or NULL; table: its struct rdt_transport_ops. */
#define ONLY_TRANSPORT(keys, table)                                                             \
    const struct rdt_backend *rdt_backend_init(void)                                            \
    {                                                                                           \
        static struct rdt_backend backend = {                                                   \
            .abi_version = RDT_BACKEND_ABI, .struct_size = sizeof backend, .version = "0.1.0"}; \
                                                                                                \
        backend.name = (table).name;                                                            \
        backend.config_keys = (keys);                                                           \
        backend.transport = &(table);                                                           \
        return &backend;                                                                        \
    }

#endif
