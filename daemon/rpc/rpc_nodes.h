/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the node table's providers, which NODES and METRICS show. Private to rpc/. */
#ifndef DAEMON_RPC_NODES_H
#define DAEMON_RPC_NODES_H

#include "daemon/rpc/rpc_call.h"

/* Those that are configured. The rows live in the arena and borrow from the directory. NULL: no memory. */
Rdt__Pb__ProviderInfo **nodes_providers(const struct directory *directory, struct arena *arena, size_t *n_p);

#endif
