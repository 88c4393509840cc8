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

struct replica_directory;
struct peer;
struct peer_session;
struct transfers;

struct replicated_object { /* an object of this node that others have */
    uint64_t generation;
    struct replica_directory *directory;
    uint64_t bytes;
    struct list nodes;   /* struct replica_entry.link */
    struct list lost;    /* the same */
    struct list waiters; /* struct replica_directory_waiter; once it has ended */
    unsigned direct;     /* of nodes: receive from this one */
    bool ended;
};

struct replica_entry {
    struct list link, by_node; /* in replicated->nodes, session->replica_entries; LOST: in replicated->lost, session->lost_entries */
    struct replicated_object *replicated;
    struct peer_session *session;
    bool whole;
    struct replica_entry *source; /* it receives from; NULL: from this node, or nothing any more */
    unsigned children;     /* that receive from it */
    struct deadline over;  /* LOST */
};

struct replica_directory_waiter {
    struct list link;
    void (*on_settled)(struct replica_directory_waiter *); /* removed before */
};

struct replica_directory {
    struct transfers *transfers;
    struct map by_generation; /* struct kept */
    uint64_t redirected;      /* pulls sent to a copy */
};

void replica_directory_init(struct replica_directory *directory, struct transfers *transfers);
void replica_directory_fini(struct replica_directory *directory);

/* The node will keep what it pulls. NULL: no memory. */
struct replica_entry *replica_entry_add(struct replica_directory *directory, struct peer_session *session, const struct object *object, bool *is_new_p);

/* Where a new one had better go; NULL: here. Notes it there. */
struct peer_session *replica_entry_redirect(struct replica_entry *entry);

/* How many nodes are between it and this one. */
unsigned replica_entry_depth(const struct replica_entry *entry);

/* It receives from this node. */
void replica_entry_serve_here(struct replica_entry *entry);

void replica_directory_on_news(struct replica_directory *directory, struct peer_session *session, const Rdt__Pb__Copies *news);
void replica_directory_link_down(struct peer_session *session);
void replica_directory_link_up(struct peer_session *session);

/* The object may be fetched no more. */
void replica_directory_object_ended(struct replica_directory *directory, const struct object *object);

/* false: nobody has to be waited for. */
bool replica_directory_wait(struct replica_directory *directory, uint64_t generation, struct replica_directory_waiter *waiter);

const struct peer *replica_entry_peer(const struct replica_entry *entry);

/* For stat: *cursor starts NULL; NULL at the end. */
const struct replica_entry *replica_directory_next(const struct replica_directory *directory, uint64_t generation, struct list **cursor);

#endif
