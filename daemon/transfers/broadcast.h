/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcasts of this node's snapshots: every other node of a group fetches the object for itself and keeps a replica
 * (rdt_peer.proto draws the exchange). The replicas and their directory do the rest: nodes that receive a large object pass it
 * on to the next ones (fanout.h), and a node that has a replica already receives no bytes.
 *
 *   WAITING --group ready: all nodes are asked--> ASKED --each node has a replica or has failed--> freed, on_done is called
 *      |                                            |
 *      `-- the group is down, or is destroyed ------|-- its client does not wait any more ------> the nodes that have not
 *                                                                                               answered are told; freed
 *
 * A node that fails does not stop the others. The broadcast ends when each node has its replica or has failed, with the first
 * failure, which names the node. The group only says which nodes there are, and it must have been ready once: where it ends
 * later, only the fetches that move by its transport fail.
 *
 * The other node's part (struct broadcast_member) is a fetch of that node itself, by pull_for_node. It waits with the fetches
 * of clients for the same replica, and ends as one of them does.
 *
 * All calls are made in the loop thread. */
#ifndef DAEMON_BROADCAST_H
#define DAEMON_BROADCAST_H

#include "daemon/groups/group.h"
#include "daemon/transfers/transfer.h"

struct broadcast;
struct remote;

/* Starts to broadcast the object to the group. on_done is called once, later, with the first failure, or
 * NULL. *broadcast_p is NULL if no other node is in the group; then on_done is not called. Errors: as
 * rdt_broadcast (rdt.h). */
enum rdt_status broadcast_start(struct transfers *transfers, struct account *account, const struct rdt_ref *ref,
                                const char *group, void (*on_done)(void *arg, const struct rdt_error *err), void *arg,
                                struct broadcast **broadcast_p, struct rdt_error *err);

/* The client does not wait any more: on_done is not called. what_p receives a sentence that says what was missing. */
void broadcast_leave(struct broadcast *broadcast, char what_p[192]);

/* ---- events ---- */

enum rdt_status broadcast_on_ask(struct remote *root, const Rdt__Pb__GroupBroadcast *message, struct rdt_error *err);
void broadcast_on_result(struct remote *remote, const Rdt__Pb__BroadcastResult *result);
void broadcasts_peer_up(struct remote *remote);
bool broadcasts_use_remote(struct remote *remote); /* whether a broadcast refers to the remote */
void broadcasts_peer_merged(struct remote *from, struct remote *into);
void broadcasts_link_down(struct remote *remote, const struct rdt_error *why);
void broadcasts_on_group(struct transfers *transfers, struct group *group, enum group_change change);
void broadcasts_close(struct transfers *transfers, const struct rdt_error *why);

#endif
