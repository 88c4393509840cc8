/* Groups: ordered sets of actors, within which a group transport (plugin.h: transport_is_grouped) moves bytes. A group belongs to an
 * owner, not to the session that created it, and any member may use it. The vendor's ranks are the distinct (node, device) pairs of its
 * members, in order of first appearance; clients of one node and device share a rank, and a node may have several.
 *
 * The node that it was created on coordinates: it proposes the group to the nodes of all members under a new epoch, gathers what their
 * transports offer, and opens it when all are connected (rdt_peer.proto has the messages). Every node keeps its own view:
 *
 *             +----------- refused, failed, too late ----------+
 *             |                                                v
 *   ----> FORMING ---- all nodes ready ----> READY -------> CLOSING     the vendor's part is being closed; what moves in it fails
 *             ^          the transport failed, an abort does   |
 *             |          not come to rest, a node is lost      | closed
 *             +---- all its nodes are there, in time ------- DOWN
 *
 *   any of them ---- destroyed, or not even formed once ----> ENDING ---- closed here and on every node that is there ----> gone
 *
 * Without its coordinator a group is down on all nodes, and says so; it comes back with that node's link, unless another group has taken
 * the name meanwhile. One whose coordinator has restarted is down for good, until it is destroyed or another takes its name. One that was
 * never formed, or that its coordinator has ended meanwhile, goes.
 *
 * Whatever it waits for it waits for with a deadline, and then `why`, or the waiter's error, names who or what is missing.
 *
 * Knows no transfer: those that move in a group hear of its changes (transfer_group.c). Loop thread only.
 */
#ifndef DAEMON_GROUP_H
#define DAEMON_GROUP_H

#include "daemon/base/account.h"
#include "daemon/base/deadline.h"
#include "daemon/base/events.h"
#include "daemon/base/node.h"
#include "daemon/config/options.h"
#include "daemon/base/owner.h"
#include "daemon/peers/peer.h"
#include "daemon/plugins/plugin.h"
#include "daemon/base/sm.h"
#include "wire_limits.h"

enum group_state { GROUP_FORMING, GROUP_READY, GROUP_CLOSING, GROUP_DOWN, GROUP_ENDING };

enum group_change {
    GROUP_SERVES, /* connected here: who was told so elsewhere may begin */
    GROUP_OPENS,  /* and everywhere: may be used from here */
    GROUP_BREAKS, /* no more operations; those under way end now */
    GROUP_CLOSED, /* they have */
    GROUP_GOES,   /* the struct is freed */
};

struct group;

struct groups_callbacks {
    void *arg;
    enum rdt_status (*send)(void *arg, struct peer *peer, enum rdt_peer_message type, const ProtobufCMessage *message,
                            struct rdt_error *err);
    /* As peers_find; *peer_p NULL: it is this node. */
    enum rdt_status (*find)(void *arg, const uint8_t node[16], const char *address, struct peer **peer_p,
                            struct rdt_error *err);
    bool (*believe)(void *arg, const Rdt__Pb__Requester *requester, struct owner *owner_p, struct rdt_error *err);
    bool (*has_client)(void *arg, const struct owner *owner, const char *name); /* connected here now */
    void (*on_change)(void *arg, struct group *group, enum group_change change);
};

struct groups {
    const struct events *events;
    const struct options *options;
    const struct node *node;
    struct plugins *plugins;
    struct deadlines *deadlines;
    struct accounts *accounts;
    struct groups_callbacks callbacks;
    struct list all; /* struct group.link, in order of number */
    unsigned n;
    uint64_t next_number;
    bool closing;
    void (*on_closed)(void *arg);
    void *closed_arg;
};

struct group_member {
    char client[RDT_MAX_NAME_BYTES + 1], device[RDT_MAX_NAME_BYTES + 1], address[RDT_MAX_ADDRESS_BYTES + 1];
    uint8_t node[16];
    struct peer *peer; /* the coordinator's; NULL: this node */
    uint32_t rank;
};

struct group_rank {
    struct group *group;
    uint8_t node[16];
    const char *device; /* a member's */
    bool here;
    struct plugin_group vendor; /* here, while open */
    bool open, ready;
    uint8_t *blob; /* its offer, while FORMING */
    size_t blob_bytes;
};

struct group_node { /* another member's node, as the coordinator knows it */
    struct peer *peer;
    bool accepted, ready, ended;
};

/* Somebody who waits for it to be formed, or to be gone. */
struct group_waiter {
    struct list link;
    void (*on_done)(struct group_waiter *, const struct rdt_error *err); /* once, removed before; NULL: it is */
};

struct group {
    struct list link;
    struct groups *groups;
    uint64_t number; /* in groups->all; for pages */
    uint8_t token[16];
    char name[RDT_MAX_NAME_BYTES + 1];
    struct owner owner;
    struct account *account; /* the owner's: a reference, charged for one group */
    struct transport *transport;
    struct sm sm;
    uint64_t since_ns;
    uint32_t epoch;
    char why[256];            /* it is not ready */
    struct peer *coordinator; /* NULL: this node */
    struct group_member *members;
    uint32_t n_members;
    struct group_rank *ranks; /* [n_ranks]; none before all nodes have met */
    uint32_t n_ranks;
    struct group_node *nodes; /* [n_nodes], the coordinator's */
    uint32_t n_nodes;
    unsigned n_open;            /* ranks here that the plug-in still has */
    unsigned failures;          /* in a row: delays the next try */
    bool proposed, formed;      /* in this epoch; ever */
    bool serves;                /* connected here */
    bool again;                 /* DOWN: it is about to be formed anew */
    bool orphan;                /* its coordinator has restarted */
    bool stuck;                 /* CLOSING for longer than anybody should wait */
    uint32_t next_epoch;        /* proposed while CLOSING; 0: none */
    struct rdt_error suspicion; /* what the plug-in says is wrong with it, in this epoch; status OK: nothing */
    struct rdt_error reason;    /* ENDING before it was formed: why. status OK: it was destroyed */
    struct deadline deadline;
    struct list forming, ending; /* struct group_waiter.link */
    struct list connections;            /* of transfer_group.c */
};

void groups_init(struct groups *groups);

/* Ends all of them here, without a word; on_closed, maybe at once, when no plug-in has one any more. */
void groups_close(struct groups *groups, void (*on_closed)(void *arg), void *arg);

/* Begins to form a group that this node coordinates; the waiter hears when it is READY, or why there is none. Errors: INVALID (the name,
 * a list of members that is none), EXISTS, UNSUPPORTED (no such transport, or one that knows no groups), LIMIT, NO_MEMORY,
 * PEER_LOST. */
enum rdt_status group_create(struct groups *groups, const struct owner *owner, const Rdt__Pb__GroupCreate *message,
                             struct group_waiter *waiter, struct group **group_p, struct rdt_error *err);

/* It ends everywhere. The waiter (NULL: nobody) hears when it has. */
void group_end(struct group *group, struct group_waiter *waiter);

/* Its creator waits no longer: a group that was never formed ends. */
void group_waiter_leave(struct group *group, struct group_waiter *waiter);

/* Takes it down because something in it cannot be stopped otherwise, or has failed: a system error. Formed anew by itself. */
void group_break(struct group *group, const char *why);

/* ---- what there is ---- */

struct group *group_find(const struct groups *groups, const struct owner *owner, const char *name); /* not ENDING, or NULL */
struct group *group_by_token(const struct groups *groups, const uint8_t *token, size_t bytes);

/* Is the client (NULL: any) of that node a member? *rank_p, may be NULL, receives its rank. */
bool group_has(const struct group *group, const uint8_t node[16], const char *client, uint32_t *rank_p);

/* The first rank of this node; NULL: it has none. */
struct group_rank *group_rank_here(const struct group *group);

/* Which rank of that node moves memory of a device ("": host memory, which any may: that of the client, if it is a member, else the
 * first). NULL: none does. */
struct group_rank *group_rank_for(const struct group *group, const uint8_t node[16], const char *device, const char *client);

/* It may move memory of that device ("": host memory). */
bool group_rank_serves(const struct group_rank *rank, const char *device);

/* It cannot be used, but soon. */
bool group_is_coming(const struct group *group);
const char *group_state_name(const struct group *group); /* for people */

/* ---- links ---- */

void groups_peer_up(struct groups *groups, struct peer *peer, bool boot_changed);
void groups_peer_down(struct groups *groups, struct peer *peer, const struct rdt_error *why);
void groups_peer_merged(struct groups *groups, struct peer *from, struct peer *into); /* into NULL: this node itself */
bool groups_frame_is_ours(uint16_t type);
enum rdt_status groups_peer_frame(struct groups *groups, struct peer *peer, const struct frame *frame, struct rdt_error *err);

#endif
