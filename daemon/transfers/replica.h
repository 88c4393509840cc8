/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas: copies of other nodes' snapshots that this node has or is receiving. A snapshot never changes, so
 * one transfer serves every reader on this node, while it runs and afterwards, and other nodes too.
 *
 *   PULL is answered: a snapshot       all bytes have arrived
 *   -----------------------> FILLING -----------------------> WHOLE
 *                               |                               |   the owner says that the object has ended; the
 *          its transfer fails   `--------> not listed <---------'   owner's node has another boot id; eviction
 *
 * A listed replica serves new readers. A reader that has one keeps its memory for as long as it wants.
 *
 * Before a replica is WHOLE its bytes are compared with the checksum of the publisher, which the owner's node
 * sends over its own link, wherever the bytes come from. Chunks are passed on earlier than that: each node that receives them
 * compares what it got in the same way, so wrong bytes are noticed by every receiver, and no reader gets them.
 *
 * The owner's node has an entry for each replica (replica_directory.h), which the PULL with `keep` creates before
 * there are bytes, and reports when the object has ended. So a replica may be served without asking only while
 * such a message could not have been missed (replica_is_fresh): the link on which the entry was made is up,
 * and the owner answered a ping so recently that it cannot have given this node up for lost. Otherwise PULL
 * is sent as if there were no replica; if the answer says that the object is still there, the replica serves
 * after all.
 *
 * Who may have it: the owner's rule, by the object's owner and visibility as the answer states them, and only
 * for requesters of the tenant that the owner's node was asked for, because only that node knows which
 * tenants it believes this node for.
 *
 * Memory: a replica without users gives way to every other use of memory; above replicas_max the one that was
 * used least recently is evicted.
 *
 * All calls are made in the loop thread. */
#ifndef DAEMON_REPLICA_H
#define DAEMON_REPLICA_H

#include "daemon/base/deadline.h"
#include "daemon/base/map.h"
#include "daemon/base/slices.h"
#include "daemon/objects/object.h"
#include "daemon/transfers/fanout.h"
#include "daemon/transports/chunk.h"
#include "proto/list.h"
#include "rdt_peer.pb-c.h"

struct serve;
struct remote;
struct transfer;
struct transfers;

/* What replicas tell the transfers that fill them and the pulls of other nodes. The table is given at start;
 * each callback may end the transfer or the pull that it is about. */
struct replica_events {
    void (*on_found)(struct serve *pull, struct object *object);         /* the pull can be answered */
    void (*on_refused)(struct serve *pull, const struct rdt_error *err); /* the requester may not see the object */
    void (*on_arrived)(struct serve *pull);                              /* memory was allocated, or more bytes have arrived */
    void (*on_failed)(struct serve *pull, const struct rdt_error *err);  /* the replica will not be complete */
    void (*on_ask_again)(struct transfer *filling, const char *why);     /* the owner's node has a better source */
    /* The check has ended. err NULL: the bytes are right, or cannot be checked, and replica->filling may deliver them. */
    void (*on_checked)(struct transfer *filling, const struct rdt_error *err);
    void (*on_unwanted)(struct transfer *filling); /* the last pull of an incomplete replica has ended */
};

/* In the lists of a message. */
#define REPLICAS_MAX_GENERATIONS 1000u
#define REPLICAS_MAX_SINGLE 16u /* of slow readers, ask_again and sums, of which every version sends one */

struct replicas {
    const struct replica_events *events;
    struct transfers *transfers;
    struct map by_origin; /* key -> struct replica, listed */
    struct list idle;     /* struct replica.link: those of them that nobody uses, least recently used first */
    struct map expected;  /* key -> struct expected: pulls of a replica that does not exist yet */
    struct list arrived;  /* struct serve.by_replica: such pulls whose replica has come, until serve_some serves them */
    struct slice serve;
    struct map summing; /* struct replica_sum.key -> struct replica: one of those that wait for that checksum */
    uint64_t bytes;     /* bytes of listed replicas */
    uint64_t idle_room; /* that those in `idle` have under memory_limit */
};

/* The pulls of other nodes: struct serve.by_replica. A node may send very many, so they are told in slices. */
struct replica_pulls {
    struct list told;    /* they know of all that has arrived */
    struct list woken;   /* they do not, or a beat is due */
    struct list failing; /* the filling has failed, and they have not been told */
    struct slice tell;
    struct deadline beat; /* when those that wait for bytes are told that this node waits too */
    unsigned n_beats;
};

struct replica_sum {                        /* of a checksum that the owner's node has promised */
    uint8_t key[16 + 8 + sizeof(unsigned)]; /* node, generation, epoch of the link */
    struct list same;                       /* a ring of the replicas with this key */
};

struct replica {
    uint8_t key[16 + 8]; /* node, generation */
    struct list link;    /* in replicas->idle, or in no list */
    struct replicas *replicas;
    unsigned refs; /* of the list, its transfer and each pull */
    bool listed;
    struct rdt_ref ref;
    struct remote *origin;   /* the owner's node */
    struct list by_remote;   /* listed: in origin->replicas.listed or .to_report */
    struct list by_sum;      /* in origin->replicas.sums_awaited or .sums_lost, if its checksum is promised */
    uint8_t boot_id[16];     /* the boot id of that node when the replica was created */
    unsigned epoch;          /* of the link on which that node created the entry for this replica */
    char tenant[33];         /* the tenant that the owner's node was asked for */
    struct account *account; /* of the object's owner: a reference */
    Rdt__Pb__Visibility visibility;
    bool untrusted; /* as in struct pull, of the transfer that fills it or has filled it */
    uint64_t bytes;
    uint64_t room;                 /* placed: that its memory has under memory_limit, which is at least as much */
    uint64_t rate;                 /* at which they came, in bytes for each second; 0: not whole yet */
    struct object *object;         /* with a hold */
    bool placed;                   /* memory was allocated */
    struct transfer *filling;      /* the transfer that fills it; NULL: it is complete, or has failed */
    const struct chunk_plan *plan; /* of `filling` */
    bool *arrived;                 /* [plan_n] */
    uint32_t plan_n;
    uint64_t arrived_to; /* end of the last chunk of the stream that has arrived */
    struct replica_pulls pulls;
    uint64_t sum; /* the publisher's checksum; 0: not known */
    struct replica_sum promised;
    struct replica_check *check; /* NULL: its bytes are not being compared with it */
};

void replicas_init(struct replicas *replicas, struct transfers *transfers, const struct replica_events *events);
void replicas_close(struct replicas *replicas); /* drops all replicas */
void replicas_fini(struct replicas *replicas);

/* ---- for fetches ---- */

/* The listed replica of an object, or NULL. */
struct replica *replica_find(const struct replicas *replicas, const uint8_t node[16], uint64_t generation);

/* A replica that may serve the requester now without asking the owner's node, or NULL. */
struct replica *replica_for(const struct replicas *replicas, const struct rdt_ref *ref, const struct owner *requester);

void replica_used(struct replica *replica); /* marks it as used now, if nobody uses it any more */

/* Whether it may be served without asking: a message that the object has ended could not have been missed. */
bool replica_is_fresh(const struct replica *replica);

/* ---- for the transfer that fills it ---- */

/* The answer, which the transfer has read, is about a snapshot of which this node is to keep a replica. Sets
 * transfer->pull.replica, with a reference. false: no memory; then there is no replica. */
bool replica_create(struct transfer *transfer, const Rdt__Pb__PullMeta *meta);

/* Its memory was allocated. */
enum rdt_status replica_place(struct replica *replica, struct transfer *transfer, struct rdt_error *err);

/* Bytes are about to arrive, cut by this plan. */
enum rdt_status replica_plan(struct replica *replica, const struct chunk_plan *plan, struct rdt_error *err);
void replica_unplan(struct replica *replica); /* forgets the plan; chunks that have arrived stay */
void replica_arrived(struct replica *replica, uint32_t chunk);
bool replica_wants(const struct replica *replica, uint32_t chunk); /* the chunk has not arrived */

/* All chunks have arrived: compares them with the checksum, which the worker pool computes. on_checked is called, perhaps at
 * once, unless the transfer ends before that. */
void replica_check(struct replica *replica);

/* A chunk has arrived: computes the checksum of what is there. */
void replica_check_more(struct replica *replica);

/* Whether the owner's node has said the checksum, or will. */
bool replica_has_sum(const struct replica *replica);

/* The owner's node has said something about the checksum; follows: it will say more. */
void replica_take_sum(struct replica *replica, uint64_t sum, bool follows);

/* What has arrived is wrong: all chunks must come again. */
void replica_forget_bytes(struct replica *replica);

/* The link to that node is down: checksums that it has promised will not come. */
void replicas_link_down(struct remote *remote);

/* All chunks have arrived and are right. From now on readers may hold replica->object. */
void replica_whole(struct replica *replica);

/* The transfer ends. If the replica is not complete, pulls of it by other nodes fail. Drops the transfer's
 * reference. */
void replica_end_filling(struct transfer *transfer);

/* Other nodes wait for it: it is filled even if no fetch of this node waits. */
bool replica_in_demand(const struct replica *replica);

/* ---- for pulls of other nodes ---- */

/* Answers a PULL that was redirected here; waits a little if the replica does not exist yet. */
void replica_serve(struct replicas *replicas, struct serve *serve);
void replica_unserve(struct serve *serve); /* the pull ends */

/* A node that pulls the replica lags or is slow: tells the owner's node. */
void replica_reader_is_slow(const struct replica *replica, const struct remote *reader, enum fanout_verdict verdict);

/* Whether any bytes from this offset on have arrived. */
bool replica_reaches(const struct replica *replica, uint64_t offset);

/* Whether these bytes of the packed stream have arrived. */
bool replica_has(const struct replica *replica, uint64_t offset, uint64_t bytes);

/* ---- messages from and to the owner's node ---- */

/* The link to that node is up: reports the replicas of its objects to it. */
void replicas_peer_up(struct remote *remote);
void replicas_on_message(struct replicas *replicas, struct remote *remote, const Rdt__Pb__Replicas *message);

/* Tells a node that answered PULL with `keep` that this node keeps no replica. */
void replica_decline(struct remote *origin, uint64_t generation);

/* ---- memory ---- */

/* Call with a replica when something has changed that may make it idle, or end that: for object_table's on_adopted, too. */
void replica_settle(void *replica);

/* Evicts replicas without users, least recently used first, until `bytes` bytes are free; evicts none if they
 * have fewer. Returns the bytes evicted. */
uint64_t replicas_evict(struct replicas *replicas, uint64_t bytes);

#endif
