/* SPDX-License-Identifier: Apache-2.0 */
/* The room follows: fetches new versions of names for clients of this node that follow them, before these ask.
 *
 * It owns: the followed names (struct follow), one for all followers of one user; their versions on this node, with holds on
 * their objects; the followers, which belong to clients.
 * It promises: a version is given to a follower only when every object of it is whole here, was checked as replicas are
 * (transfers/replica.h) and is held, so that neither its publisher nor another node is needed any more. Followers that die
 * leave nothing. What is held is charged to the user once (USAGE_FOLLOWED_BYTES).
 * It refuses: objects that are no snapshots, because they change while they are fetched; to answer requests, which rpc does.
 *
 * A followed name fetches as any client does: it embeds a client without a connection (follow->client), whose fetches share
 * replicas, find names and wait for versions by the ways that all fetches have.
 *
 *               the name has another version             there is room       the holder has all parts
 *   SEEKING ───────────────────────────────────► FULL ─────────────────► HOLDING ───────────────────► FETCHING
 *      ▲                                                                                                 │
 *      ├──────────────────────── all objects are here: the version is `whole` ──────────────────────────┘
 *      │
 *      └── PAUSING ◄── any failure; the pause grows from one to the next
 *
 *   FULL: passed at once if the version fits beside `whole`. If it does not, it waits until a follower has committed `whole`,
 *         which then goes. A version that fits nowhere is told to the followers, and waits for room.
 *   HOLDING: of a version in parts, the hold of its manifest, which holds the parts until they are here.
 *
 * A client that has prepared a version (follower->taken) gets its objects by ordinary fetches, which follows_held serves.
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_FOLLOW_H
#define DAEMON_FOLLOW_H

#include "daemon/objects/client.h"
#include "daemon/transfers/transfer.h"

#define FOLLOWERS_OF_CLIENT 256u /* each fetch of a client may look through its followers */

struct follows_above { /* functions of a room above: as struct shards_above */
    void *arg;
    enum rdt_status (*hold)(void *arg, struct client *holder, uint64_t id, const struct rdt_ref *ref, struct rdt_error *err);
    bool (*holder_gone)(void *arg, struct client *holder, uint64_t until_ns);
    /* Asks the name's node for parts of a version that is not complete (GROWING). The client's send gets the answer. false: no
     * memory. */
    bool (*growing)(void *arg, struct client *holder, uint64_t id, const struct rdt_ref *name, uint64_t growth, uint32_t from);
};

struct follows { /* the creator fills what stands above `names` */
    const struct node *node;
    struct deadlines *deadlines;
    struct regions *regions;
    struct object_table *objects;
    struct transfers *transfers;
    Rdt__Pb__StatusReply *counts;
    struct follows_above above;
    struct map names;      /* struct follow.key -> struct follow */
    struct list followers; /* struct follower.link: all of them */
    struct list ended;     /* struct follow.link: what they have is being released, in slices */
    uint64_t next_client;  /* the ids of their clients */
    bool draining;
};

void follows_init(struct follows *follows);

/* The daemon takes no more requests: nothing more is fetched. */
void follows_drain(struct follows *follows);

/* For the end of the daemon, after all clients have ended, while transfers still run. */
void follows_clear(struct follows *follows);

struct follow;
struct follow_version;
struct prepare_waiter;

struct follower {
    struct list link;      /* in follows->followers */
    struct list by_client; /* in client->followers */
    struct list by_follow; /* in follow->followers */
    struct follow *follow;
    struct client *client;
    uint64_t number;               /* chosen by the client */
    uint64_t committed;            /* version; 0: none */
    uint8_t committed_node[16];    /* of its object, with committed_generation */
    uint64_t committed_generation; /* 0: only the version's number is known */
    struct follow_version *taken;  /* a reference: what it has prepared and not committed; NULL: nothing */
    uint64_t told;                 /* the number of the last failure that it was told */
    struct prepare_waiter *waiter; /* NULL: nobody waits */
};

/* A request that waits for a version. Embedded; zeroed before its first use. */
struct prepare_waiter {
    struct list link;
    struct follower *follower; /* NULL: it does not wait */
    /* Called once, when follower_prepare may be tried again, or with why there will be none (the follower has ended, the
     * version cannot be had). The waiter does not wait any more. */
    void (*on_event)(struct prepare_waiter *waiter, const struct rdt_error *why);
};

/* The client follows the name from now on, or again: with a number that it has already, what it has committed is set anew.
 * Errors: INVALID (another name has that number), LIMIT, NO_MEMORY. */
enum rdt_status follower_start(struct follows *follows, struct client *client, uint64_t number, const struct rdt_ref *name,
                               uint64_t committed, const struct rdt_ref *committed_ref, struct rdt_error *err);
struct follower *follower_find(const struct client *client, uint64_t number); /* NULL: there is none */
void follower_end(struct follower *follower);                                 /* its waiters are told CANCELLED */

/* Ends all followers of the client. false: until_ns has passed before the end: call it again. */
bool followers_client_gone(struct client *client, uint64_t until_ns);

struct prepared { /* a version, borrowed until the follower's next call */
    const struct rdt_ref *ref;
    uint64_t version, bytes, bytes_moved, fetch_ns;
    uint32_t objects; /* of a version in parts: the parts */
};

/* Gives the follower the newest whole version that it has not committed. AGAIN: there is none; the waiter, if not NULL, waits.
 * Other errors: those of the last attempt to have a version, once for each follower. */
enum rdt_status follower_prepare(struct follower *follower, struct prepare_waiter *waiter, struct prepared *prepared_p,
                                 struct rdt_error *err);
void prepare_waiter_remove(struct prepare_waiter *waiter); /* does nothing if it does not wait */

/* Says what the follower waits for, as the end of a sentence. */
void follower_explain(const struct follower *follower, char *text_p, size_t size);

/* The follower has copied the version. */
void follower_commit(struct follower *follower, uint64_t version, const struct rdt_ref *ref);

/* For transfers->held.find: the object that the client has prepared, or NULL. */
struct object *follows_held(struct follows *follows, const struct client *client, const struct rdt_ref *ref, bool *trusted_p);

struct follower_view {
    uint64_t committed, prepared, newest, lag, bytes;
    int64_t lag_ns;
    const char *state;
    const char *failure; /* "": none */
    const struct rdt_ref *name;
};
void follower_view(const struct follower *follower, struct follower_view *view_p);

#endif
