/* SPDX-License-Identifier: Apache-2.0 */
/* One row of a table, as LIST and EVENT show it, and who may see it. */
#ifndef DAEMON_RPC_ROW_H
#define DAEMON_RPC_ROW_H

#include "daemon/rpc/rpc_call.h"
#include "proto/layout.h"

/* Each of these creates a row in the arena. The row points into the arena and into the daemon's tables, so it must be packed
 * before they change. NULL: no memory. */
Rdt__Pb__ObjectInfo *row_object(struct arena *arena, struct object *object);
Rdt__Pb__RegionInfo *row_region(struct arena *arena, const struct region *region);
Rdt__Pb__OwnerInfo *row_owner(struct arena *arena, const struct account *account);
Rdt__Pb__ClientInfo *row_client(struct arena *arena, const struct client *client);
Rdt__Pb__NameInfo *row_name(struct arena *arena, const struct name *name);
Rdt__Pb__PeerInfo *row_peer(struct arena *arena, const struct peer *peer, bool admin);
Rdt__Pb__BackendInfo *row_memory(struct arena *arena, const struct memory_kind *kind);
Rdt__Pb__BackendInfo *row_transport(struct arena *arena, const struct transport *transport);
Rdt__Pb__BackendInfo *row_part(struct arena *arena, const struct plugin_parts *part); /* the one that is not NULL */
Rdt__Pb__GroupInfo *row_group(struct arena *arena, const struct group *group);
Rdt__Pb__TransferInfo *row_transfer(struct arena *arena, const struct transfer_record *record);

/* Whether `who` may see the row of this thing. Its owner and an administrator may, and, for objects and
 * names, those to whom it is visible. */
bool row_is_for(Rdt__Pb__ListKind kind, const void *thing, const struct owner *who, bool admin);

#endif
