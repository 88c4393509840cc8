/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of transports to peers, and the operations on them.
 *
 * peer_transport.c owns the connections that two nodes build for themselves. transfer_group.c owns those of
 * groups: the connection to each other node's rank of a group is a struct peer_transport too, which lives as
 * long as the group. */
#ifndef DAEMON_PEER_TRANSPORT_H
#define DAEMON_PEER_TRANSPORT_H

#include "daemon/memory/device_copy.h"
#include "daemon/transfers/chunk_op.h"
#include "daemon/transfers/remote.h"

struct peer_transport;
struct serve;

/* The events that a connection reports to its users. The table is given at start. Each callback may end transfers and close
 * connections. */
struct connection_events {
    void (*on_connected)(struct peer_transport *pt);  /* it is connected */
    void (*on_refused)(struct peer_transport *pt);    /* the other node declines it: pt->remote_why_not */
    void (*on_broken)(struct peer_transport *pt);     /* the operations on it are about to end: pt->broken */
    void (*on_closed)(struct peer_transport *pt);     /* all operations on it have ended: pt->broken */
    void (*on_group_gone)(struct peer_transport *pt); /* its group is destroyed: it will not be connected again */
};
extern const struct connection_events transfers_connection_events; /* transfer_peer.c */

/* ---- one transport to one peer ----
 *
 *   NONE --create, offer--> OFFERED --peer's offer--> CONNECTED
 *    ^                         |                         |
 *    +------- closed ------ CLOSING <---- failure, isolation, link down, the peer's newer offer
 */
enum peer_transport_state { PT_NONE, PT_OFFERED, PT_CONNECTED, PT_CLOSING };

/* The users of a connection that has broken or closed, until slices have told them. The connection may be built anew meanwhile:
 * they do not use it (serve_is_cut_off, pull_is_cut_off). */
struct cut_off {
    struct list pulls;   /* as in struct peer_transport */
    struct list serves;  /* the same */
    struct list sending; /* the same */
    struct slice note, stop;
    char why[192];    /* why it has ended */
    unsigned running; /* of the two slices */
};

struct peer_transport {
    struct list link; /* in remote->transports, or remote->in_groups */
    struct remote *remote;
    struct group *group;  /* it is a side of this group, and has its epoch; NULL: it is none, or the group is gone */
    struct list by_group; /* in group->connections */
    uint32_t rank_here, rank_there;
    char broken[192]; /* why it was taken down last; without a group: since it was connected */
    struct transport *transport;
    struct sm sm; /* enum peer_transport_state */
    struct plugin_conn conn;
    uint32_t epoch;           /* of this node's offer */
    uint32_t remote_epoch;    /* of the other node's offer that it is connected to */
    bool remote_known;        /* the other node has offered or declined it since the link came up */
    char remote_why_not[192]; /* why the other node declines; "": it offers */
    char remote_version[65];
    char remote_memory[128];           /* the memory kinds that it moves there: " host cuda " */
    uint8_t blob[RDT_OFFER_MAX_BYTES]; /* the peer's offer, not yet used */
    size_t blob_bytes;
    uint32_t blob_epoch;    /* of that offer; 0: none */
    bool difference_logged; /* the log has said that the versions differ */
    unsigned failures;      /* in a row; delays the next try */
    struct deadline retry;
    struct list pulls;   /* struct transfer.pull.path.by_connection */
    struct list serves;  /* struct sending.by_connection */
    struct list sending; /* struct sending.by_sending: chunks are left to post */
    struct cut_off cut_off;
    unsigned n_users; /* transfers that move by it, or will when the replica that they serve has memory */
    unsigned sends_in_flight;
    bool pumping; /* serve_pump is running */
};

static inline void cut_off_init(struct cut_off *cut_off)
{
    list_init(&cut_off->pulls);
    list_init(&cut_off->serves);
    list_init(&cut_off->sending);
}

static inline void cut_off_stop(struct cut_off *cut_off)
{
    slice_stop(&cut_off->note);
    slice_stop(&cut_off->stop);
}

/* The link is up: offers every transport. It is down: takes all connections down. */
void peer_transports_up(struct remote *remote);
void peer_transports_down(struct remote *remote);

/* Whether every connection of the remote is in state NONE. */
bool peer_transports_closed(const struct remote *remote);

enum rdt_status peer_transport_on_offer(struct remote *remote, const Rdt__Pb__Offer *offer, struct rdt_error *err);
struct peer_transport *peer_transport_find(struct remote *remote, const char *name);

/* Takes the connection down because an operation on it cannot be stopped otherwise, or has failed. */
void peer_transport_isolate(struct peer_transport *pt, const char *why);

/* Sets *at_p, which is the connection of a pull or of a serve (n_users): a connection in use is not freed. */
void peer_transport_use(struct peer_transport **at_p, struct peer_transport *pt);

/* Whether it is not connected and being rebuilt. */
bool peer_transport_is_coming(const struct peer_transport *pt);

/* Why it moves no bytes to this node although it is available here: "ucx: ..."; "" if it does, or will. */
void peer_transport_why_not(const struct peer_transport *pt, char *text_p, size_t size);

/* Describes for path_choose what the connection could do. */
void peer_transport_offer_to_path(const struct peer_transport *pt, const char *source_memory, const char *target_memory,
                                  struct path_offer *offer_p);

/* ---- groups (transfer_group.c) ---- */

/* The connection between the ranks of the memory that the transfer moves; its path is by that group. NULL: no
 * memory. */
struct peer_transport *transfer_group_side(const struct transfer *transfer, struct group *group);

/* Describes for path_choose what this group transport could do for the transfer, in the group that transfer_group_of
 * finds. The texts are stored in why_p. */
void transfer_group_offer(const struct transfer *transfer, struct transport *transport, struct path_offer *offer_p,
                          char why_p[192]);

/* The group that moves the transfer: one that it may use, and that its reader and the object's producer
 * share. NULL: why_p, if given, says what to do. */
struct group *transfer_group_of(const struct transfer *transfer, const struct transport *transport, char why_p[192]);

/* Whether the connection is no group's, or all nodes of the group are ready; whether it was a group's, which
 * is destroyed. */
bool transfer_group_is_open(const struct peer_transport *pt);

/* Whether a ready group of that owner, of this node and the two others, moves host memory, and not through ordered queues, in
 * which a replica that is still being filled would hold up others. */
bool transfer_group_joins(const struct transfers *transfers, const struct owner *owner, const uint8_t a[16],
                          const uint8_t b[16]);
bool transfer_group_is_gone(const struct peer_transport *pt);

/* Whether the reader and the object's producer, both on this node, are members of a group of the transport
 * that the transfer asks for. */
bool transfer_group_is_local(const struct transfer *transfer, const struct object *object);

/* PULL_START names a group: finds the connection by which the reader's node may be sent chunks. */
enum rdt_status transfer_group_start(struct serve *serve, const Rdt__Pb__PullStart *start, struct peer_transport **pt_p,
                                     struct rdt_error *err);

/* The group has changed: tells its connections, and through connection_events their users. */
void transfer_groups_on_change(struct transfers *transfers, struct group *group, enum group_change change);

/* Whether there is a group of this transport, or a transfer in a destroyed one has not ended yet; err says
 * which (BUSY). */
bool transfer_groups_use(const struct transfers *transfers, const struct transport *transport, struct rdt_error *err);

#endif
