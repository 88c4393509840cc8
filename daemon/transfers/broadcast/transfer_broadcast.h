/* SPDX-License-Identifier: Apache-2.0 */
/* Broadcasts of this node's snapshots: every other node of a group gets a replica (rdt_peer.proto draws the
 * exchange).
 *
 *   WAITING --group ready--> ASKED --collective, all nodes ready--> MOVING --all replicas complete--> freed
 *      |                     |  ^ |                                    |
 *      |                     `--' `--by sends: every node is done------|--------------------------> freed
 *      |                  a round by sends                             |
 *      `----------------------`------ OVER <---------------------------'
 *
 *   ASKED -> ASKED: a node cannot take part in the collective broadcast, or is not ready in time
 *   OVER: the group was taken down, or the client has ended. All nodes are told, and the broadcast is freed when no
 *   operation is left.
 *
 * A broadcast is collective if the transport has a broadcast of its own and each node has one rank. Then the
 * other nodes post their operations and say so by PULL_START, and this node posts last, a few chunks at a
 * time. Otherwise each node pulls, and this node sends to it as to any other reader.
 *
 * A node that fails does not stop the others. The broadcast ends when each node has its replica or has
 * failed, with the first failure, which names the node. When the epoch of the group ends, all nodes that are
 * not done fail.
 *
 * All calls are made in the loop thread. */
#ifndef DAEMON_TRANSFER_BROADCAST_H
#define DAEMON_TRANSFER_BROADCAST_H

#include "daemon/groups/group.h"
#include "daemon/transfers/transfer.h"

struct broadcast;
struct serve;
struct peer_session;

/* Starts to broadcast the object to the group. on_done is called once, later, with the first failure, or
 * NULL. *broadcast_p is NULL if no other node is in the group; then on_done is not called. Errors: as
 * rdt_broadcast (rdt.h). */
enum rdt_status broadcast_start(struct transfers *transfers, struct account *account, const struct rdt_ref *ref,
                                const char *group, void (*on_done)(void *arg, const struct rdt_error *err), void *arg,
                                struct broadcast **broadcast_p, struct rdt_error *err);

/* The client does not wait any more: on_done is not called. what_p receives a sentence that says what was missing. */
void broadcast_leave(struct broadcast *broadcast, char what_p[192]);

/* ---- events ---- */

/* Struct serve_events: see there. */
enum rdt_status broadcast_reader_joins(struct serve *out, const Rdt__Pb__PullStart *start, struct rdt_error *err);
enum rdt_status broadcast_reader_ready(struct serve *out, struct rdt_error *err);
void broadcast_reader_ended(struct broadcast *broadcast, struct serve *out);

void broadcast_on_word(struct peer_session *session, const Rdt__Pb__BroadcastResult *word);
void broadcasts_peer_up(struct peer_session *session);
bool broadcasts_name_session(struct peer_session *session); /* whether a broadcast refers to the session */
void broadcasts_peer_merged(struct peer_session *from, struct peer_session *into);
void broadcasts_link_down(struct peer_session *session, const struct rdt_error *why);
void broadcasts_on_group(struct transfers *transfers, struct group *group, enum group_change change);
void broadcasts_close(struct transfers *transfers, const struct rdt_error *why);

/* ---- this node as a member of another node's broadcast (transfer_broadcast_member.c) ---- */

enum rdt_status transfer_member_on_ask(struct peer_session *root, const Rdt__Pb__GroupBroadcast *message,
                                       struct rdt_error *err);
void transfer_member_on_over(struct peer_session *root, const Rdt__Pb__BroadcastResult *word);
void transfer_members_link_down(struct peer_session *root, const struct rdt_error *why);

#endif
