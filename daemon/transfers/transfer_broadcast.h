/* Broadcasts of this node's snapshots: every other node of a group gets a copy, and keeps it (rdt_peer.proto draws the exchange).
 *
 *   WAITING --the group is ready--> ASKED --together, and all stand--> MOVING --all copies are whole, nothing is under way--> gone
 *      |                             | ^ |                               |
 *      |                             `-' `--by sends: each has its copy, or has failed----------------------------------------^
 *      |                   a round by sends for those who have none: one cannot take part together
 *      `------ the group is taken down, nobody waits for it any more: OVER, told to all; gone when nothing is under way ------^
 *
 * Together: the transport has a broadcast of its own, and each node one rank. Then the other nodes post their parts, say so by PULL_START,
 * and this one posts last, a few chunks at a time. Else each node's pull is sent to as any other.
 *
 * A node that fails does not stop the others: the answer comes when each has its copy or has failed, with the first failure, which names
 * the node. The end of the group's epoch fails all that are not done.
 *
 * Loop thread only.
 */
#ifndef DAEMON_TRANSFER_BROADCAST_H
#define DAEMON_TRANSFER_BROADCAST_H

#include "daemon/groups/group.h"
#include "daemon/transfers/transfer.h"

struct broadcast;
struct serve;
struct peer_session;

/* on_done comes once, later, with what failed or NULL; *broadcast_p NULL: there was nothing to do, and on_done does not come. Errors as
 * rdt_broadcast's (rdt.h). */
enum rdt_status broadcast_start(struct transfers *transfers, struct account *account, const struct rdt_ref *ref,
                                const char *group, void (*on_done)(void *arg, const struct rdt_error *err), void *arg,
                                struct broadcast **broadcast_p, struct rdt_error *err);

/* Nobody waits for it any more: on_done does not come. what_p: what was missing, for people. */
void broadcast_leave(struct broadcast *broadcast, char what_p[192]);

/* ---- for the owner's side of the pulls ---- */

/* PULL_START says that it is one of it: sets broadcast_number, and together. */
enum rdt_status broadcast_reader_comes(struct serve *out, const Rdt__Pb__PullStart *start, struct rdt_error *err);
enum rdt_status broadcast_reader_stands(struct serve *out, struct rdt_error *err); /* SENDING; may begin to move it */
void broadcast_reader_left(struct broadcast *broadcast, struct serve *out);        /* it ends */

void broadcast_on_word(struct peer_session *session, const Rdt__Pb__BroadcastWord *word);
void broadcasts_peer_up(struct peer_session *session);
bool broadcasts_name_session(struct peer_session *session); /* a broadcast refers to it */
void broadcasts_peer_merged(struct peer_session *from, struct peer_session *into);
void broadcasts_link_down(struct peer_session *session, const struct rdt_error *why);
void broadcasts_on_group(struct transfers *transfers, struct group *group, enum group_change change);
void broadcasts_close(struct transfers *transfers, const struct rdt_error *why);

#endif
