/* Which other nodes have copies of this node's snapshots, or are receiving one.
 *
 * A node is noted when its PULL with `keep` is answered, before it has a byte; it says when its copy is whole, and when it lets go of it.
 * A link that goes down ends what was noted on it: whatever that node has it may not serve before it has asked again. Where this end gave
 * the link up, that node may not know yet, and is LOST: it serves, nobody can tell it anything, and it stops when it has been patient for
 * long enough since the last ping that this node answered (replica_is_fresh), or is here again.
 *
 * When the object ends, each is told, and confirms that it serves the copy to nobody new. A free by force waits for that, and for those
 * that are LOST.
 *
 *   PULL, keep         Copies.whole           the object ends            Copies.invalidated
 *   ----------> RECEIVING --------> WHOLE -----------------------> TOLD ----------------------> forgotten
 *                   |------ Copies.dropped, its link is down, and it knows --------------------------^
 *                   `------ its link is down -------> LOST ------ in time, or its link is up --------'
 *
 * Fan-out: where several nodes want one large snapshot at the same time, a later one is sent to one that has it or receives it, so that
 * a chain or tree of nodes takes about the time of one. Each has the place where it costs least: time is reckoned as what is ahead of it
 * there (others that receive from the same node, each the whole object) and the chunks that it is behind. A node that comes back from
 * such a place is served from here. Only nodes that are new to the object are sent anywhere, so that nobody waits for himself.
 *
 * Loop thread only.
 */
#ifndef DAEMON_KEEPER_H
#define DAEMON_KEEPER_H

#include "daemon/base/deadline.h"
#include "daemon/base/list.h"
#include "daemon/base/map.h"
#include "daemon/objects/object.h"
#include "rdt_peer.pb-c.h"

struct keepers;
struct peer;
struct peer_work;
struct transfers;

struct kept { /* an object of this node that others have */
    uint64_t generation;
    struct keepers *keepers;
    uint64_t bytes;
    struct list nodes;   /* struct keeper.link */
    struct list lost;    /* the same */
    struct list waiters; /* struct kept_waiter; once it has ended */
    unsigned direct;     /* of nodes: receive from this one */
    bool ended;
};

struct keeper {
    struct list link, by_node; /* in kept->nodes, work->keeps; LOST: in kept->lost, work->kept_before */
    struct kept *kept;
    struct peer_work *work;
    bool whole;
    struct keeper *source; /* it receives from; NULL: from this node, or nothing any more */
    unsigned children;     /* that receive from it */
    struct deadline over;  /* LOST */
};

struct kept_waiter {
    struct list link;
    void (*on_settled)(struct kept_waiter *); /* removed before */
};

struct keepers {
    struct transfers *transfers;
    struct map by_generation; /* struct kept */
    uint64_t redirected;      /* pulls sent to a copy */
};

void keepers_init(struct keepers *keepers, struct transfers *transfers);
void keepers_fini(struct keepers *keepers);

/* The node will keep what it pulls. NULL: no memory. */
struct keeper *keeper_add(struct keepers *keepers, struct peer_work *work, const struct object *object, bool *is_new_p);

/* Where a new one had better go; NULL: here. Notes it there. */
struct peer_work *keeper_redirect(struct keeper *keeper);

/* How many nodes are between it and this one. */
unsigned keeper_depth(const struct keeper *keeper);

/* It receives from this node. */
void keeper_serve_here(struct keeper *keeper);

void keepers_on_news(struct keepers *keepers, struct peer_work *work, const Rdt__Pb__Copies *news);
void keepers_link_down(struct peer_work *work);
void keepers_link_up(struct peer_work *work);

/* The object may be fetched no more. */
void keepers_object_ended(struct keepers *keepers, const struct object *object);

/* false: nobody has to be waited for. */
bool keepers_wait(struct keepers *keepers, uint64_t generation, struct kept_waiter *waiter);

const struct peer *keeper_peer(const struct keeper *keeper);

/* For stat: *cursor starts NULL; NULL at the end. */
const struct keeper *keepers_next(const struct keepers *keepers, uint64_t generation, struct list **cursor);

#endif
