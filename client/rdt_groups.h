/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of actors, and broadcasts within them. rdt.h includes this header.
 *
 * Some transports (gloo) move bytes only within a group: an ordered set of actors on several nodes whose daemons are
 * connected with one another. A group belongs to its owner (uid and tenant), not to the session that created it: any
 * member may use it, and it exists until it is destroyed, or until the daemon that created it ends without a keeper. An actor
 * may be in several groups. When one of its nodes is lost or the transport fails, the group forms again by itself under the
 * next epoch, and only the transfers that were running in it fail, with TRANSPORT.
 */
#ifndef RDT_GROUPS_H
#define RDT_GROUPS_H

#include "rdt.h"

#ifdef __cplusplus
extern "C" {
#endif

struct rdt_member {
    const char *client; /* the name that the member gave to rdt_connect */
    const char *node;   /* where it is: "HOST:PORT", a name in the nodes file, or the uuid in hex; NULL: on this node */
    const char *device; /* where its tensors are: the uuid of a device of its node, whose memory the transport moves; NULL: host
                         * memory. A node may have members on several devices */
};

struct rdt_group_options {
    size_t struct_size;
    int64_t timeout_ns; /* how long to wait until every member's node is connected; 0: a minute; negative: no limit */
};

/* Forms a group of members [count] in rank order. All members must be connected now, as clients of this owner. Returns when
 * each of their nodes is ready; after an error there is no group. Errors: EXISTS (the name), NOT_FOUND (a member is not
 * connected), UNSUPPORTED (the transport is not loaded, not available, or needs no group), INVALID (fewer than two members,
 * or one of them twice), PEER_LOST, TRANSPORT, TIMED_OUT, LIMIT. */
enum rdt_status rdt_group_create(rdt *rdt, const char *name, const char *transport, const struct rdt_member *members,
                                 size_t count, const struct rdt_group_options *options, struct rdt_error *err);

/* Ends the group for all its members; transfers in it fail with TRANSPORT. Returns when no reachable node has the group any
 * more. NOT_FOUND: this node knows no such group of this owner. */
enum rdt_status rdt_group_destroy(rdt *rdt, const char *name, struct rdt_error *err);

/* Copies a snapshot to every other node of the group: each node fetches the object and keeps it as a replica, which serves
 * later fetches of its clients at once, until the object ends or the memory is needed (the daemon's replicas_max). Only the
 * object's owner (uid and tenant) may call it, on the object's node, which must be in the group. The call waits until the group
 * is ready. The bytes travel as those of a fetch do: by the fastest transport of the two nodes, which may be the group's, and
 * large objects from node to node; nodes that already have a replica receive no bytes. Returns when every replica is complete.
 * The first failure is the answer and names its node; nodes whose replica is complete keep it. Errors: INVALID (the object is
 * live: put it with RDT_PUT_SNAPSHOT), UNSUPPORTED (it is on another node, or in memory of a device), NOT_FOUND (the object, or
 * the group on this node), DENIED (another owner's object), FREED, NO_PATH (the group is down, or no transport connects the
 * named node), PEER_LOST, TRANSPORT (the group ended before it was ready, or the transport failed), LIMIT and NO_MEMORY (of
 * this node or the named one), TIMED_OUT (a copy that is under way is completed or undone). */
enum rdt_status rdt_broadcast(rdt *rdt, const struct rdt_ref *ref, const char *group, int64_t timeout_ns,
                              struct rdt_error *err);

/* Starts rdt_broadcast and returns. timeout_ns limits the request. The caller destroys *request_p; rdt_cancel ends the
 * broadcast as a time-out does. */
enum rdt_status rdt_broadcast_start(rdt *rdt, const struct rdt_ref *ref, const char *group, int64_t timeout_ns,
                                    rdt_request **request_p, struct rdt_error *err);

struct rdt_group {
    char name[65], transport[65];
    char state[16]; /* "forming", "ready", "rebuilding", "down", "ending" */
    char why[256];  /* why the group is not ready */
    uint32_t epoch; /* grows each time that the group forms */
    uint32_t members, ranks;
};

/* Writes this owner's groups that this node is a member of or has created to groups_p, at most max. *count_p receives how
 * many there are. */
enum rdt_status rdt_group_list(rdt *rdt, struct rdt_group *groups_p, size_t max, size_t *count_p, struct rdt_error *err);

#ifdef __cplusplus
}
#endif
#endif
