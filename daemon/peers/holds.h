/* SPDX-License-Identifier: Apache-2.0 */
/* Holds across nodes: holds of this node's clients on objects of other nodes, and holds of other nodes'
 * clients on objects here.
 *
 * A client's HOLD of another node's object travels there as a call, and the owner's node notes the hold under
 * the call's number. When the client drops the hold, its node notifies the owner's node, several holds in one
 * message. A hold outlives its link for a while, in which both nodes dial again and again. As the owner's
 * node sees it:
 *
 *            the link goes down           hold_grace has passed
 *   HELD ------------------------> AWAY -----------------------> dropped; the holder is told `lost` when the link is up again
 *    ^ |                            |
 *    | |                            | the link comes up, and the holder sends the list of what it still holds
 *    | |      in the list           |
 *    +-|----------------------------+------> dropped: it is not in the list, or the holder's daemon has restarted
 *      +------> dropped: the holder's client has dropped it, or the object was freed by force
 *
 * If the holder's daemon has restarted and its clients' sessions continue, it takes their holds again, under new numbers. The
 * old holds, and with them the objects, stay until the holder says that it has taken all of them again, or hold_grace has
 * passed.
 *
 * A hold that takes over a ref in transit may end before its node has read that it was taken: the link, or either daemon, has
 * ended. Then the ref is in transit again, for what is left of its time. The node says which of these answers it has read
 * (Holds.seen); an older one does not, so there a ref may stay longer than its holder. The client may take over the same ref
 * again before the earlier hold has ended, which happens in slices. Then the new hold has it.
 *
 * The holds have records (recovery.h), so they also survive the owner's daemon. Holds of an earlier daemon wait in a struct
 * holds_node without a peer until the holder's link is up, for at most restart_grace; then they are treated as if the link had
 * been cut.
 *
 * Many holds are dropped in slices, so that the loop is not held up. Everything here runs on the loop thread.
 */
#ifndef DAEMON_HOLDS_H
#define DAEMON_HOLDS_H

#include "daemon/base/deadline.h"
#include "daemon/objects/remote_hold.h"
#include "daemon/peers/peer.h"
#include "daemon/persist/recovery.h"

struct holds_node;

struct holds {
    struct deadlines *deadlines;
    struct recovery *recovery; /* NULL: nothing survives this daemon */
    struct peers *peers;       /* of holds_restore */
    uint64_t grace_ns;
    struct list nodes; /* struct holds_node.link */
    bool closing;
};

struct node_hold { /* a hold that another node has on an object of this node */
    struct list by_object;
    struct list by_node; /* in one of the lists of the node */
    struct holds_node *node;
    struct object *object;
    struct account *account;   /* charged for the hold; a reference */
    void *record;              /* of recovery; NULL: it has none */
    uint64_t number;           /* number of the call that took it */
    unsigned epoch;            /* of the link on which it did; 0: of the time before this daemon's start */
    uint64_t transit_until_ns; /* as in struct remote_hold */
    bool seen;                 /* the holder has read that it has the hold */
    uint8_t boot_id[16];       /* of the holder's daemon that took it */
};

void holds_init(struct holds *holds, struct deadlines *deadlines, struct recovery *recovery, uint64_t grace_ns);

/* For the start: takes over the holds that other nodes had here (recovery->node_holds), dials those nodes, and keeps the holds
 * until each node's link is up, for at most restart_grace_ns. peers NULL: this node has no links, and the holds end. */
void holds_restore(struct holds *holds, struct peers *peers, uint64_t restart_grace_ns);

/* Drops every hold. From now on none is taken, and no node is notified. All clients must have ended. */
void holds_clear(struct holds *holds);

/* ---- as the owner's node ---- */

/* Takes a hold on the object for a client of that node, charged to the account, on which it takes a reference. takes_over: the
 * caller ends a ref in transit next, if there is one (transit_arrived). LIMIT; NO_MEMORY; INVALID: the node has a hold of that
 * number. */
enum rdt_status holds_take(struct holds *holds, struct peer *peer, uint64_t number, struct account *account,
                           struct object *object, bool takes_over, struct rdt_error *err);

/* The call of that number was cancelled: if it has taken a hold, nobody has seen that, and it drops it next. A ref that it has
 * taken over is on its way again. */
void holds_unseen(struct holds *holds, struct peer *peer, uint64_t number);

/* Drops every hold of other nodes on an object that was freed by force. The caller must hold the object. Returns false if
 * until_ns has passed: call again. */
bool holds_object_freed(struct object *object, uint64_t until_ns);

/* The holder: its uuid, its name for people (its address or uuid if it has not been met yet), and a pointer that identifies
 * it. */
const uint8_t *node_hold_uuid(const struct node_hold *hold);
const char *node_hold_name(const struct node_hold *hold);
const void *node_hold_node(const struct node_hold *hold);

/* ---- as the holder's node ---- */

/* Prepares for a HOLD call that will be sent: whenever its link comes up, that node then receives the list
 * of what is still held. Error: NO_MEMORY. */
enum rdt_status holds_prepare(struct holds *holds, struct peer *peer, struct rdt_error *err);

/* The call was answered: gives the hold to the client under the id of its request, or to the hold of an earlier daemon that
 * the client has under this id. On an error the owner's node is notified that the hold is dropped. LIMIT, NO_MEMORY. */
enum rdt_status holds_taken(struct holds *holds, struct peer *peer, uint64_t number, struct client *client, uint64_t request_id,
                            struct rdt_error *err);

/* The same, of a hold that takes over a ref in transit: tells the owner's node that its answer has come. */
void holds_seen(struct holds *holds, struct peer *peer, uint64_t number);

/* The holds of an earlier daemon of this node have been taken again from that node, or will not be. Its link is up. */
void holds_settled(struct holds *holds, struct peer *peer);

/* The client has not seen that its hold on an object of another node was taken: a ref that the hold has taken over there is on
 * its way again. The caller then ends the hold. */
void holds_taken_unseen(const struct remote_hold *hold);

/* Drops the hold of a HOLD call whose client no longer waits, whether or not the owner's node has taken it. */
void holds_unwanted(struct holds *holds, struct peer *peer, uint64_t number);

/* ---- the link ---- */

/* Frees what is stored for a peer that will be forgotten. false: there are holds, on this node or there. */
bool holds_forget_peer(struct holds *holds, struct peer *peer);

/* returns: if its boot has changed, the node will take the holds of its clients again, within hold_grace. */
void holds_peer_up(struct holds *holds, struct peer *peer, bool boot_changed, bool returns);
void holds_peer_down(struct holds *holds, struct peer *peer);
enum rdt_status holds_on_message(struct holds *holds, struct peer *peer, const Rdt__Pb__Holds *message, struct rdt_error *err);

#endif
