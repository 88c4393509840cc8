/* SPDX-License-Identifier: Apache-2.0 */
/* The room view: what people and programs ask to see of the daemon, as rows, lists, metrics and findings of the doctor. It owns
 * nothing but the handlers of these requests, promises to show nobody what others may not know, and refuses to change anything.
 */
#ifndef DAEMON_VIEW_H
#define DAEMON_VIEW_H

#include "daemon/calls/call.h"
#include "daemon/calls/event_log.h"
#include "daemon/memory/region_orphans.h"
#include "proto/layout.h"

/* ---- view.c ---- */

/* One object, or one name, as a row of a reply with everything that rdtctl shows. The row points into the view and into the
 * daemon's tables, so it must be packed before they change. */
struct object_view {
    Rdt__Pb__ObjectInfo info;
    char ref[RDT_REF_TEXT_BYTES];
    char id[3 * RDT_MAX_ID_BYTES + 1];
    char stored_file[40];
};
void object_view_fill(struct object_view *view, struct object *object); /* except holders: see holders_fill */

struct name_view {
    Rdt__Pb__NameInfo info;
    char ref[RDT_REF_TEXT_BYTES];
    char name[3 * RDT_MAX_ID_BYTES + 1];
};
void name_view_fill(struct name_view *view, const struct name *name);

/* ---- row.c: one row of a table, as LIST and EVENT show it, and who may see it ---- */

/* Each of these creates a row in the arena. The row points into the arena and into the daemon's tables, so it must be packed
 * before they change. NULL: no memory. */
Rdt__Pb__ObjectInfo *row_object(struct arena *arena, struct object *object);
Rdt__Pb__RegionInfo *row_region(struct arena *arena, const struct region *region);
Rdt__Pb__WaitInfo *row_wait(struct arena *arena, const struct call *call); /* of rpc->calls.waiting */
Rdt__Pb__OrphanInfo *row_orphan(struct arena *arena, const struct orphan_row *orphan);
Rdt__Pb__OwnerInfo *row_owner(struct arena *arena, const struct account *account);
Rdt__Pb__ClientInfo *row_client(struct arena *arena, const struct client *client);
Rdt__Pb__NameInfo *row_name(struct arena *arena, const struct name *name);
Rdt__Pb__PeerInfo *row_peer(struct arena *arena, const struct peer *peer, bool admin);
Rdt__Pb__BackendInfo *row_memory(struct arena *arena, const struct memory_kind *kind);
Rdt__Pb__BackendInfo *row_transport(struct arena *arena, const struct transport *transport);
Rdt__Pb__BackendInfo *row_role(struct arena *arena, const struct plugin_roles *roles); /* the one that is not NULL */
Rdt__Pb__GroupInfo *row_group(struct arena *arena, const struct group *group);
Rdt__Pb__TransferInfo *row_transfer(struct arena *arena, const struct transfer_record *record);

/* Who may see the row of this thing: its owner, for objects and names those to whom it is visible, and for peers and backends
 * everybody. */
struct row_audience row_audience(Rdt__Pb__ListKind kind, const void *thing);

/* Whether `who` may see it; an administrator may see all. */
bool row_is_for(Rdt__Pb__ListKind kind, const void *thing, const struct owner *who, bool admin);

/* ---- holders.c: who holds an object, for STAT and for the sentence of a WAIT_FREED that has timed out ----
 *
 * The object's owner and administrators see every holder. Any other caller sees the clients of its own uid and tenant, and
 * the number of the other holds. There are at most HOLDERS_MAX rows, from the first HOLDERS_EXAMINED holds of each kind, so
 * that an object with a million readers does not delay the loop; one more row counts the holds that these leave out. */

#define HOLDERS_MAX 32u
#define HOLDERS_EXAMINED 1024u

struct holders; /* its rows point into the daemon's tables, so it must be used before they change */

/* NULL: no memory. The caller destroys the result. */
struct holders *holders_create(const struct rpc *rpc, const struct object *object, const struct owner *viewer, bool admin);
void holders_destroy(struct holders *holders);

/* Sets info->holders, which is valid until holders_destroy. */
void holders_fill(struct holders *holders, Rdt__Pb__ObjectInfo *info);

/* Writes the sentences of the first rows, joined by "; ", and the number of the other holds. "" if nobody holds the object. */
void holders_say(const struct holders *holders, char *text, size_t room);

/* ---- view_nodes.c ---- */

/* The rows of the node table's providers that are configured, which NODES and METRICS show. They live in the arena and borrow
 * from the directory. NULL: no memory. */
Rdt__Pb__ProviderInfo **nodes_providers(const struct directory *directory, struct arena *arena, size_t *n_p);

#endif
