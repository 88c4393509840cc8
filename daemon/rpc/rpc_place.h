/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that wait for something and are then dispatched again: those about a name whose ref names no node, until the homes
 * of the name say where it is, and publishes. Private to rpc/. */
#ifndef DAEMON_RPC_PLACE_H
#define DAEMON_RPC_PLACE_H

#include "daemon/rpc/rpc_call.h"

/* For a request that waits for no event: writes the node of the name into the ref, if it is another one. AGAIN: the homes are
 * being asked, the call is deferred, and it will be dispatched again. Other errors are those of call_defer. */
enum rdt_status call_place_name(struct call *call, struct rdt_ref *ref, struct rdt_error *err);

/* For a request that waits: the same, but only from what this node knows. false: the name is here, or not known. */
bool call_place_known(struct call *call, struct rdt_ref *ref);

/* The call waits for the name here; it is dispatched again if the name appears on another node. Errors: LIMIT, NO_MEMORY. */
enum rdt_status call_seek_name(struct call *call, const struct rdt_ref *ref, struct rdt_error *err);

/* A publish waits for the homes, at most timeout_ns (negative: any time), and is then dispatched again, without a deadline.
 * Errors: as call_defer. */
enum rdt_status call_wait_for_claim(struct call *call, int64_t timeout_ns, struct rdt_error *err);
void call_on_claim(struct claim_waiter *waiter); /* for claim_waiter.on_decided */

/* A publish waits until the FILLING object is live, at most timeout_ns (negative: any time), and is then dispatched again. If
 * the put fails, so does the call. Errors: as call_defer. */
enum rdt_status call_wait_for_put(struct call *call, struct object *object, int64_t timeout_ns, struct rdt_error *err);

#endif
