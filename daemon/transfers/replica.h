/* Copies that this node has, or is receiving, of other nodes' snapshots. A snapshot never changes, so that one transfer serves everybody
 * here, during it and afterwards, and other nodes too.
 *
 *   PULL is answered: a snapshot     its bytes are here
 *   ---------------------> FILLING --------------------> WHOLE
 *                             |                            |   the owner says that it is gone, the owner's node is another
 *        its transfer fails   `---------> not listed <-----'   by now, its memory is wanted for something else
 *
 * Listed: who asks from now on may have it. Whoever has it keeps it, as long as he wants.
 *
 * The owner's node knows who keeps a copy (replica_directory.h): by the PULL (`keep`) before there is one, and tells when the object is gone. So a
 * copy may be served without asking while it is certain that such word would have come (replica_fresh): the link on which the owner
 * took note of this node is up, and the owner has answered a ping so lately that it cannot yet have given this node up for lost. Else
 * PULL is sent as if there were no copy; when the answer is that the object is there, the copy serves after all.
 *
 * Who may have it: the owner's rule, by the object's owner and visibility as the answer states them, for requesters of the tenant that
 * the owner's node was asked for; it alone knows whether it believes this node for another one.
 *
 * Memory: a copy that nobody uses goes when anybody needs its memory, and the one used least lately when all take more than replicas_max.
 *
 * Loop thread only.
 */
#ifndef DAEMON_REPLICA_H
#define DAEMON_REPLICA_H

#include "daemon/transports/chunk.h"
#include "daemon/base/list.h"
#include "daemon/base/map.h"
#include "daemon/objects/object.h"
#include "rdt_peer.pb-c.h"

struct serve;
struct peer_session;
struct transfer;
struct transfers;

struct replicas {
    struct transfers *transfers;
    struct map by_origin; /* key -> struct replica, listed */
    struct list listed;   /* struct replica.link, used least lately first */
    struct list expected; /* struct serve.by_replica: pulls of a copy that is not there yet */
    uint64_t bytes;       /* of those listed */
    uint64_t served;      /* fetches that a whole copy answered */
};

/* Somebody who waits for a copy that is being filled. */
struct replica_waiter {
    struct list link;
    void (*on_end)(struct replica_waiter *); /* once, removed before: it is whole, or will never be: replica_find says which */
};

struct replica {
    uint8_t key[16 + 8]; /* node, generation */
    struct list link;
    struct replicas *replicas;
    unsigned refs; /* the list's, its transfer's, each pull's */
    bool listed;
    struct rdt_ref ref;
    struct peer_session *origin; /* the owner's node */
    uint8_t boot_id[16];      /* its, when the copy was made */
    unsigned epoch;           /* of the link to it on which it took note of this copy */
    char tenant[33];          /* that it was asked for */
    struct account *account;  /* the object's owner: a reference */
    Rdt__Pb__Visibility visibility;
    uint64_t bytes;
    struct object *object;         /* with a hold */
    bool placed;                   /* it has memory */
    struct transfer *filling;      /* NULL: it is whole, or never will be */
    const struct chunk_plan *plan; /* filling's */
    bool *arrived;                 /* [plan_n] */
    uint32_t plan_n;
    struct list pulls;   /* struct serve.by_replica: other nodes' */
    struct list waiters; /* struct replica_waiter.link: it is filled as long as there are any */
};

void replicas_init(struct replicas *replicas, struct transfers *transfers);
void replicas_close(struct replicas *replicas); /* nothing is kept any more */
void replicas_fini(struct replicas *replicas);

/* ---- for fetches ---- */

/* The listed copy of it, or NULL. */
struct replica *replica_find(const struct replicas *replicas, const uint8_t node[16], uint64_t generation);

/* A copy that may serve the requester now, without a word to its owner; NULL: there is none. */
struct replica *replica_for(const struct replicas *replicas, const struct rdt_ref *ref, const struct owner *requester);

void replica_used(struct replica *replica); /* lately */

/* Word that the object is gone would have come: it may be served without asking. */
bool replica_is_fresh(const struct replica *replica);

/* ---- for the transfer that fills it ---- */

/* The answer, which the transfer has read, was of a snapshot that it is to keep. Sets transfer->replica, with a reference. false: no
 * memory, then it is not kept. */
bool replica_create(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

/* Its memory is there. */
enum rdt_status replica_place(struct replica *replica, struct transfer *transfer, struct rdt_error *err);

/* Bytes are about to come, by this plan. */
enum rdt_status replica_plan(struct replica *replica, const struct chunk_plan *plan, struct rdt_error *err);
void replica_unplan(struct replica *replica); /* the plan goes; what has arrived stays */
void replica_arrived(struct replica *replica, uint32_t chunk);
bool replica_wants(const struct replica *replica, uint32_t chunk); /* it has not arrived */

/* All have. Readers may hold replica->object from here on. */
void replica_whole(struct replica *replica);

/* It will never be whole: other nodes' pulls of it fail. Then, and when it is whole, the transfer's reference ends. */
void replica_end_filling(struct transfer *transfer);

/* Other nodes wait for it, or it is a node's part of a broadcast: it is filled even if nobody here does any more. */
bool replica_in_demand(const struct replica *replica);

/* ---- for pulls of other nodes ---- */

/* Answers a PULL that was sent here for a copy; waits a little where it is not there yet. */
void replica_serve(struct replicas *replicas, struct serve *out);
void replica_unserve(struct serve *out); /* it ends */

/* Are these bytes of the packed stream here? */
bool replica_has(const struct replica *replica, uint64_t offset, uint64_t bytes);

/* ---- word from and to the owner's node ---- */

void replicas_peer_up(struct replicas *replicas, struct peer_session *session);
void replicas_on_news(struct replicas *replicas, struct peer_session *session, const Rdt__Pb__Copies *news);

/* "It is not kept here after all", to whoever answered a PULL with keep. */
void replica_decline(struct peer_session *origin, uint64_t generation);

/* ---- memory ---- */

/* Lets go of copies that nobody uses, those used least lately first, of so many bytes; of none if there are not as many. How
 * many there were. */
uint64_t replicas_give_up(struct replicas *replicas, uint64_t bytes);

#endif
