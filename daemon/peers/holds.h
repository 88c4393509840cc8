/* Holds across nodes: what this node's clients hold on objects of other nodes, and what other nodes hold here for theirs.
 *
 * A client's HOLD of another node's object goes there as a call, and the owner notes the hold under the call's number; the holder's node tells
 * when its client lets go. Several at a time are told in one message. The link's end is not theirs:
 *
 * Both ends then dial again and again, the owner for as long as it keeps them.
 *
 *            the link is down           hold_grace is over
 *   HELD ----------------------> KEPT ---------------------> gone; the holder hears `lost` when the link is up again
 *     ^                           |
 *     |  the link is up: in the holder's list of what it holds yet
 *     +---------------------------+---> gone: not in that list; or the holder has restarted
 *
 * What many nodes' ends leave behind goes in turns. An object that is freed by force lets go of all of them at once. Loop thread only.
 */
#ifndef DAEMON_HOLDS_H
#define DAEMON_HOLDS_H

#include "daemon/base/deadline.h"
#include "daemon/objects/keeping.h"
#include "daemon/peers/peer.h"

struct holds_node;

struct holds {
    struct deadlines *deadlines;
    uint64_t grace_ns;
    struct list nodes; /* struct holds_node.link */
    bool closing;
};

struct node_hold { /* on an object of this node */
    struct list by_object;
    struct list by_node; /* in node->taken, or in node->leaving */
    struct holds_node *node;
    struct object *object;
    struct account *account; /* charged: a reference */
    uint64_t number;         /* of the call that took it */
    uint32_t list_seen;      /* it is in that list of the holder's */
};

void holds_init(struct holds *holds, struct deadlines *deadlines, uint64_t grace_ns);

/* Lets go of everything here; nothing is taken or told any more. Every client has ended. */
void holds_clear(struct holds *holds);

/* ---- as the owner's node ---- */

/* For a client of that node. Charged to the account, which takes a reference. LIMIT, NO_MEMORY, INVALID (the number is taken). */
enum rdt_status holds_take(struct holds *holds, struct peer *peer, uint64_t number, struct account *account, struct object *object,
                           struct rdt_error *err);

/* It was freed by force. The caller holds it. */
void holds_object_freed(struct object *object);

const struct peer *node_hold_peer(const struct node_hold *hold);

/* ---- as the holder's node ---- */

/* A call that takes a hold is about to be sent: from now on that node wants to know what is still held. NO_MEMORY. */
enum rdt_status holds_ask(struct holds *holds, struct peer *peer, struct rdt_error *err);

/* The call was answered: the hold is the client's, under its request's id. On an error the owner is told that it is not wanted. LIMIT, NO_MEMORY. */
enum rdt_status holds_took(struct holds *holds, struct peer *peer, uint64_t number, struct client *client, uint64_t request_id,
                           struct rdt_error *err);

/* Nobody waits for that call any more, whatever became of it. */
void holds_unwanted(struct holds *holds, struct peer *peer, uint64_t number);

/* ---- the link ---- */

void holds_peer_up(struct holds *holds, struct peer *peer, bool boot_changed);
void holds_peer_down(struct holds *holds, struct peer *peer);
enum rdt_status holds_peer_frame(struct holds *holds, struct peer *peer, const struct frame *frame, struct rdt_error *err);

#endif
