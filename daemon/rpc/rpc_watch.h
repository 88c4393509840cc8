/* SPDX-License-Identifier: Apache-2.0 */
/* What the connections and the start of the daemon need of rpc_watch.c. */
#ifndef DAEMON_RPC_WATCH_H
#define DAEMON_RPC_WATCH_H

#include "daemon/rpc/rpc_call.h"

/* The kinds that can be watched: all kinds of LIST. */
#define WATCH_KINDS                                                                                 \
    (1u << RDT__PB__LIST_KIND__LIST_KIND_OBJECTS | 1u << RDT__PB__LIST_KIND__LIST_KIND_REGIONS |    \
     1u << RDT__PB__LIST_KIND__LIST_KIND_CLIENTS | 1u << RDT__PB__LIST_KIND__LIST_KIND_PEERS |      \
     1u << RDT__PB__LIST_KIND__LIST_KIND_BACKENDS | 1u << RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS | \
     1u << RDT__PB__LIST_KIND__LIST_KIND_NAMES | 1u << RDT__PB__LIST_KIND__LIST_KIND_OWNERS |       \
     1u << RDT__PB__LIST_KIND__LIST_KIND_GROUPS)

void watches_init(struct rpc *rpc);

/* Ends the client's watch, if it has one. */
void watch_end(struct rpc *rpc, struct client *client);

/* To be called when a watching client has read everything that was queued. If it has lost events, it is told so now, because
 * the next event may come late. */
void watch_on_room(struct client *client);

#endif
