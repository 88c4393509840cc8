/* SPDX-License-Identifier: Apache-2.0 */
/* The room rpc: answers the requests of clients, and those that other nodes forward for their clients.
 *
 * It owns: one call for each request (rpc_call.h), the handlers (rpc_<request>.c, several related ones in a file),
 * large requests that the work pool decodes (rpc_read.h), watches (rpc_watch.h), backend hot-load (hotload.h), versions of many
 * parts (shards/shards.h) and the daemon's checks of rdtctl doctor (doctor/doctor.h).
 * It promises: every request with an id is answered exactly once, unless its client has gone; a handler that
 * cannot answer at once defers its call and never blocks; a malformed request is answered before the connection
 * closes. It refuses: to interpret bytes of tensors, to keep state that belongs to a lower room, and requests that
 * their row in RDT_REQUEST_MAP (proto/messages.h) does not allow to the caller.
 *
 *   frame --> rpc_handle: find the row --> decode (large: on the work pool, rpc_read.h) --> check: admin? draining? --> handler
 *
 *   handler --> call_reply, call_fail   answered
 *           --> call_defer              answered later, or TIMED_OUT
 *           --> call_forward            the owner's node answers
 *           --> LIMIT                   waits for room and tries again, if the request allows that
 *
 * A new request is a row there, its messages in rdt.proto, its handler, and the call in client/. */
#ifndef DAEMON_RPC_H
#define DAEMON_RPC_H

#include "daemon/rpc/rpc_call.h"

/* The worker pool decodes larger payloads. A put of a small object, whose bytes are in the message, is not larger. */
#define RPC_AT_ONCE_BYTES (48u << 10)

/* Handles one frame of a client and answers it, now or later. Closes the fds of the frame that no handler took. The payload
 * is in take_buffer, which is from malloc and is taken; if it is NULL, the caller must not move the payload while the
 * client has a task. PROTOCOL: the caller must close the connection when the queued answers have been sent. */
enum rdt_status rpc_handle(struct rpc *rpc, struct client *client, struct frame *frame, void *take_buffer,
                           struct rdt_error *err);

/* For a client that cannot run for now, or has ended: when there is room under a limit, requests of other clients are tried
 * before its own. */
void rpc_postpone_waits(struct client *client);

/* Called by rpc->dispatch: decodes the request, checks it and calls its handler. */
void rpc_dispatch(struct call *call, const uint8_t *payload, size_t bytes);

#endif
