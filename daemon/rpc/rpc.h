/* SPDX-License-Identifier: Apache-2.0 */
/* The room rpc: answers the requests of clients, and those that other nodes forward for their clients.
 *
 * It owns: the handlers of requests that do something (rpc_<request>.c, several related ones in a file; those that show
 * something stand in the room view),
 * large requests that the work pool decodes (rpc_read.h), watches (rpc_watch.c) and backend hot-load (hotload.h).
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

#include "daemon/calls/call.h"
#include "daemon/rpc/hotload.h"

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

/* rpc_store.c: for a request that has ended something. Waits until the files of what has ended are removed (daemon/persist),
 * and then calls then(call, of), with NULL if the call has ended meanwhile. generation: of the object that was freed; 0: none
 * was.
 * false: nothing is waited for, and `then` is not called. call_reply_removed answers with nothing in either case. */
bool call_await_removals(struct call *call, uint64_t generation, void (*then)(struct call *call, void *of), void *of);
void call_reply_removed(struct call *call, uint64_t generation);

/* rpc_put.c: checks the flags of a put of an EVICTABLE object; the time to live that a put asks for; and which one its object
 * gets, 0 if it has none. */
enum rdt_status put_check_evictable(uint32_t flags, uint32_t priority, struct rdt_error *err);
enum rdt_status put_check_ttl(const struct call *call, uint32_t flags, int64_t ttl_ns, struct rdt_error *err);
int64_t put_ttl_of(const struct call *call, uint32_t flags, int64_t ttl_ns);

/* rpc_hand_out.c: LOAD_MANY without a region. */
enum rdt_status rpc_hand_out(struct call *call, const Rdt__Pb__LoadMany *message, struct rdt_error *err);

/* rpc_names.c: checks that the caller may publish this object, and that the object is live or will be. */
enum rdt_status publish_check_object(const struct call *call, const struct rdt_ref *ref, const struct object *object,
                                     struct rdt_error *err);

/* rpc_manage.c: refuses a new object with BUSY, because the node is drained. */
enum rdt_status rpc_refuse_drained(struct rdt_error *err);

/* For struct shards.above; arg is the struct rpc. */
enum rdt_status rpc_hold_part(void *arg, struct client *holder, uint64_t id, const struct rdt_ref *ref, struct rdt_error *err);
bool rpc_holder_gone(void *arg, struct client *holder, uint64_t until_ns);

/* For struct follows.above. */
bool rpc_ask_growing(void *arg, struct client *holder, uint64_t id, const struct rdt_ref *name, uint64_t growth, uint32_t from);

/* Called by rpc->above.dispatch: decodes the request, checks it and calls its handler. */
void rpc_dispatch(struct call *call, const uint8_t *payload, size_t bytes);

/* ---- rpc_watch.c: what the connections and the start of the daemon need ---- */

/* The kinds that can be watched: all kinds of LIST. */
#define WATCH_KINDS                                                                                 \
    (1u << RDT__PB__LIST_KIND__LIST_KIND_OBJECTS | 1u << RDT__PB__LIST_KIND__LIST_KIND_REGIONS |    \
     1u << RDT__PB__LIST_KIND__LIST_KIND_CLIENTS | 1u << RDT__PB__LIST_KIND__LIST_KIND_PEERS |      \
     1u << RDT__PB__LIST_KIND__LIST_KIND_BACKENDS | 1u << RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS | \
     1u << RDT__PB__LIST_KIND__LIST_KIND_NAMES | 1u << RDT__PB__LIST_KIND__LIST_KIND_OWNERS |       \
     1u << RDT__PB__LIST_KIND__LIST_KIND_GROUPS)

void watches_init(struct rpc *rpc);
void watches_fini(struct rpc *rpc); /* after the last client */

/* Ends the client's watch, if it has one. */
void watch_end(struct rpc *rpc, struct client *client);

/* To be called when a watching client has read everything that was queued: if it was sent no events meanwhile, it is sent those
 * that there are, or told how many it has lost. */
void watch_on_room(struct client *client);

/* Sends the events that a watching client has not been sent yet, before it is answered what it asked after them. Returns false
 * if until_ns has passed before the end. */
bool watch_catch_up(struct client *client, uint64_t until_ns);

#endif
