/* Who watches (rpc_watch.c): the parts that the connection and the daemon's start need. */
#ifndef DAEMON_RPC_WATCH_H
#define DAEMON_RPC_WATCH_H

#include "daemon/rpc/rpc_call.h"

/* What can be watched: all that LIST shows. */
#define WATCH_KINDS                                                                                 \
    (1u << RDT__PB__LIST_KIND__LIST_KIND_OBJECTS | 1u << RDT__PB__LIST_KIND__LIST_KIND_REGIONS |    \
     1u << RDT__PB__LIST_KIND__LIST_KIND_CLIENTS | 1u << RDT__PB__LIST_KIND__LIST_KIND_PEERS |      \
     1u << RDT__PB__LIST_KIND__LIST_KIND_BACKENDS | 1u << RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS | \
     1u << RDT__PB__LIST_KIND__LIST_KIND_NAMES | 1u << RDT__PB__LIST_KIND__LIST_KIND_OWNERS | \
     1u << RDT__PB__LIST_KIND__LIST_KIND_GROUPS)

void watches_init(struct rpc *rpc);

/* The client watches no more. */
void watch_end(struct rpc *rpc, struct client *client);

/* Nothing waits for the client any more (which watches): if it lost events it hears of them now, for no other may come soon. */
void watch_on_room(struct client *client);

#endif
