/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: ordered sets of actors, within which a group transport (plugin.h: transport_is_grouped) moves bytes.
 *
 * Owns: this node's view of every group that has a member here or that was created here, and the ranks that
 * it has opened in a plug-in. A group belongs to an owner, not to the session that created it, and every
 * member may use it. The ranks of the vendor library are the distinct pairs of node and device among the
 * members, in order of first appearance: clients of one node and device share a rank, and a node may have
 * several ranks.
 *
 * Public header: this one. group_impl.h is private.
 *
 * Refuses: to know transfers; those that move within a group are told of its changes by on_change. Every wait
 * has a deadline: when it passes, `why`, or the waiter's error, names the node or client that is missing.
 *
 * The node on which a group was created coordinates it. It proposes the group to the nodes of all members
 * under a new epoch, collects the offers of their transports, and opens the group when all nodes are
 * connected (rdt_peer.proto has the messages). Every node keeps its own view:
 *
 *              all nodes are ready           failed, stuck abort, node lost
 *  ----> FORMING -----------------> READY --------------------------.
 *        ^  |  |                      | no rank is open here        |
 *        |  |  | refused, failed,     v                             v
 *        |  |  | too late             DOWN <------------------- CLOSING   the plug-in ends its operations
 *        |  |  |                      ^ |   all ranks are closed    ^
 *        |  |  +----------------------|-|---------------------------+
 *        |  +------- no rank is open -+ |
 *        +------------------------------+
 *           all nodes are there, in time
 *
 *  Every state may become ENDING: the group was destroyed, or could not be formed even once. When it has
 *  ended here and on every node that can be reached, it is freed.
 *
 * Without its coordinator a group is DOWN on all nodes, and `why` says so. It comes back with the link to
 * that node, unless another group has taken its name. If the coordinator has restarted without a keeper, the group
 * stays DOWN until it is destroyed or another group takes its name; if the group was never formed, or the coordinator
 * has ended it meanwhile, it ends. With a keeper the next daemon of that node restores the group, DOWN, and forms it again
 * under a higher epoch when all its nodes are connected.
 *
 * Everything here runs on the loop thread.
 */
#ifndef DAEMON_GROUP_H
#define DAEMON_GROUP_H

#include "daemon/base/account.h"
#include "daemon/base/deadline.h"
#include "daemon/base/events.h"
#include "daemon/base/node.h"
#include "daemon/base/owner.h"
#include "daemon/base/sm.h"
#include "daemon/config/options.h"
#include "daemon/peers/peer.h"
#include "daemon/plugins/plugin.h"
#include "wire_limits.h"

enum group_state { GROUP_FORMING, GROUP_READY, GROUP_CLOSING, GROUP_DOWN, GROUP_ENDING };

enum group_change {
    GROUP_CONNECTED, /* connected on this node: other nodes that are ready may begin */
    GROUP_OPENED,    /* connected on all nodes: this node may begin */
    GROUP_BROKEN,    /* no further operations may be posted; those under way end now */
    GROUP_CLOSED,    /* all operations have ended */
    GROUP_GONE,      /* the struct is freed when the callback returns */
};

struct group;
struct recovery;

struct groups_callbacks {
    void *arg;
    enum rdt_status (*send)(void *arg, struct peer *peer, enum rdt_peer_message type, const ProtobufCMessage *message,
                            struct rdt_error *err);
    /* As peers_find; *peer_p is NULL if the node is this one. */
    enum rdt_status (*find)(void *arg, const uint8_t node[16], const char *address, struct account *account,
                            struct peer **peer_p, struct rdt_error *err);
    bool (*check_requester)(void *arg, const Rdt__Pb__Requester *requester, struct owner *owner_p, struct rdt_error *err);
    bool (*has_client)(void *arg, const struct owner *owner, const char *name); /* it is connected here */
    void (*on_change)(void *arg, struct group *group, enum group_change change);
};

struct groups {
    const struct events *events;
    const struct options *options;
    const struct node *node;
    struct plugins *plugins;
    struct deadlines *deadlines;
    struct accounts *accounts;
    struct recovery *recovery; /* NULL: no group survives this daemon */
    struct groups_callbacks callbacks;
    const struct group_course *course; /* of group_messages.c */
    struct list all;                   /* struct group.link, by number */
    unsigned n;
    uint64_t next_number;
    bool closing;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

struct group_member {
    char client[RDT_MAX_NAME_BYTES + 1], device[RDT_MAX_NAME_BYTES + 1], address[RDT_MAX_ADDRESS_BYTES + 1];
    uint8_t node[16];
    struct peer *peer; /* set on the coordinator only; NULL: this node */
    uint32_t rank;
};

struct group_rank {
    struct group *group;
    uint8_t node[16];
    const char *device; /* borrowed from a member */
    bool here;
    struct plugin_group vendor; /* here, while open */
    bool open, ready;
    uint8_t *blob; /* its offer, while FORMING */
    size_t blob_bytes;
};

struct group_node { /* another node with members, as the coordinator sees it */
    struct peer *peer;
    bool accepted, ready, ended;
};

/* A call that waits until a group is formed, or until it has ended. The caller owns the memory. */
struct group_waiter {
    struct list link;
    void (*on_done)(struct group_waiter *, const struct rdt_error *err); /* once, after removal; NULL: done */
};

struct group_attempt { /* to form the group, in this epoch */
    unsigned failures; /* consecutive ones; they delay the next attempt */
    bool proposed;
    bool connected;             /* on this node */
    bool will_retry;            /* DOWN: it is about to be formed again */
    uint32_t next_epoch;        /* proposed while CLOSING; 0: none */
    struct rdt_error suspicion; /* what the plug-in reported to be wrong; status OK: nothing */
};

struct group_end {
    bool stuck;              /* CLOSING for so long that calls no longer wait for it */
    struct rdt_error reason; /* ENDING: why it was never formed; status OK: it was destroyed */
};

struct group {
    struct list link;
    struct groups *groups;
    uint64_t number; /* its place in groups->all; used to page through the list */
    uint8_t token[16];
    char name[RDT_MAX_NAME_BYTES + 1];
    struct owner owner;
    struct account *account; /* the owner's, which is charged for one group; a reference */
    struct transport *transport;
    struct sm sm;
    uint64_t since_ns;
    uint32_t epoch;
    char why[256];            /* why it is not READY */
    struct peer *coordinator; /* NULL: this node */
    void *record;             /* of recovery; NULL: it has none */
    bool restored;            /* of an earlier daemon, and the peers of its members have not all been found yet */
    struct group_member *members;
    uint32_t n_members;
    struct group_rank *ranks; /* [n_ranks]; NULL until the nodes of all members are known */
    uint32_t n_ranks;
    struct group_node *nodes; /* [n_nodes], on the coordinator only */
    uint32_t n_nodes;
    unsigned n_open; /* ranks on this node that the plug-in has not closed yet */
    struct group_attempt attempt;
    bool formed; /* at least once */
    bool orphan; /* its coordinator has restarted */
    struct group_end end;
    struct deadline deadline;
    struct list forming, ending; /* struct group_waiter.link */
    struct list connections;     /* of transfer_group.c, which owns them */
};

void groups_init(struct groups *groups);

/* For the start: takes over the groups that an earlier daemon coordinated (recovery->groups). */
void groups_restore(struct groups *groups);

/* Ends every group on this node without telling the other nodes. Calls on_closed, possibly at once, when no
 * plug-in has a group open any more. */
void groups_close(struct groups *groups, void (*on_closed)(void *arg), void *arg);

/* Begins to form a group that this node coordinates. waiter->on_done reports when it is READY, or why it was
 * not formed; after an error it is not called. message is borrowed. INVALID: the name or the list of members
 * is malformed; EXISTS; UNSUPPORTED: there is no such transport, or it has no groups; LIMIT; NO_MEMORY;
 * PEER_LOST. */
enum rdt_status group_create(struct groups *groups, const struct owner *owner, const Rdt__Pb__GroupCreate *message,
                             struct group_waiter *waiter, struct group **group_p, struct rdt_error *err);

/* Destroys the group on all nodes. waiter->on_done reports when it has ended; waiter may be NULL. */
void group_end(struct group *group, struct group_waiter *waiter);

/* Removes a waiter whose call was cancelled; on_done is not called. A group that was never formed then ends. */
void group_waiter_remove(struct group *group, struct group_waiter *waiter);

/* Closes the group because something in it has failed or cannot be stopped in another way. It is then formed
 * again. */
void group_break(struct group *group, const char *why);

/* ---- look-ups ---- */

struct group *group_find(const struct groups *groups, const struct owner *owner, const char *name); /* not one that is ENDING */
struct group *group_by_token(const struct groups *groups, const uint8_t *token, size_t bytes);

/* Returns whether the client (NULL: any client) of that node is a member, and stores its rank in *rank_p,
 * which may be NULL. */
bool group_has(const struct group *group, const uint8_t node[16], const char *client, uint32_t *rank_p);

/* Returns [n_members] messages in the arena, which point into the group; NULL: no memory. */
Rdt__Pb__GroupMember **group_list_members(const struct group *group, struct arena *arena);

/* Returns the first rank of this node, or NULL. */
struct group_rank *group_rank_here(const struct group *group);

/* Returns the rank of that node which moves memory of a device, or NULL. Host memory (device "") may be moved
 * by any rank: by that of the client if it is a member, else by the first. */
struct group_rank *group_rank_for(const struct group *group, const uint8_t node[16], const char *device, const char *client);

/* Returns whether the rank may move memory of that device ("": host memory). */
bool group_rank_serves(const struct group_rank *rank, const char *device);

/* Returns whether the group is on its way to READY, so that it is worth waiting for it. */
bool group_will_be_ready(const struct group *group);
const char *group_state_name(const struct group *group); /* for people */

/* ---- links ---- */

void groups_peer_up(struct groups *groups, struct peer *peer, bool boot_changed);
void groups_peer_down(struct groups *groups, struct peer *peer, const struct rdt_error *why);
void groups_peer_merged(struct groups *groups, struct peer *from, struct peer *into); /* into NULL: this node */
bool groups_name_peer(const struct groups *groups, const struct peer *peer);          /* a group refers to it */
bool groups_message_is_ours(enum rdt_peer_message type);
enum rdt_status groups_on_message(struct groups *groups, struct peer *peer, const struct peer_message *message,
                                  struct rdt_error *err);

#endif
