/* The table of requests: which message is decoded how, and who handles it. */
#ifndef DAEMON_RPC_H
#define DAEMON_RPC_H

#include "daemon/rpc_call.h"

/* One frame of a client: answers it, in time. Closes the frame's fds that no handler took. PROTOCOL: the connection should close after
 * what is queued has gone. */
enum rdt_status rpc_handle(struct rpc *rpc, struct client *client, struct frame *frame, struct rdt_error *err);

/* For rpc->dispatch. */
void rpc_dispatch(struct call *call, const uint8_t *payload, size_t bytes);

/* Is there a line in the table for it? */
bool rpc_handles(enum rdt_message type);

#endif
