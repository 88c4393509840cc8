/* The dispatch of requests: decodes a frame, checks it against its row of RDT_REQUEST_MAP (proto/messages.h) and calls its handler. */
#ifndef DAEMON_RPC_H
#define DAEMON_RPC_H

#include "daemon/rpc/rpc_call.h"

#define RPC_AT_ONCE_BYTES (48u << 10) /* a payload of more than this may be read by the pool: above what small objects bring along */

/* One frame of a client: answers it, in time. Closes the frame's fds that no handler took. Its payload lies in take_buffer (malloc) or, if
 * that is NULL, stays where it is as long as the client has a task. PROTOCOL: the connection should close after what is queued has gone. */
enum rdt_status rpc_handle(struct rpc *rpc, struct client *client, struct frame *frame, void *take_buffer, struct rdt_error *err);

/* The client has no turns for now, or has gone: its requests that were to try again do so later, if ever, and those of others need not wait
 * for that. */
void rpc_pass(struct client *client);

/* For rpc->dispatch. */
void rpc_dispatch(struct call *call, const uint8_t *payload, size_t bytes);

#endif
