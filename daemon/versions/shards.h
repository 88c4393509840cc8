/* SPDX-License-Identifier: Apache-2.0 */
/* The room versions: versions of names that consist of many objects, each published by another process, perhaps on another
 * node. It owns the names, their versions and the holds on the parts. It promises that readers see a version only when all of
 * its parts are there. It refuses to answer requests: rpc does that (rpc_shards.c).
 *
 *   the first part of a step          all parts are there and held, and cover every tensor once
 *   ────────────────────────► FILLING ───────────────────────────────────────────────────────► COMPLETE
 *                                │  a publisher ends, cancels or times out; boxes overlap          ▲  │
 *                                │  or are missing; a part has ended; a later step is complete     │  │ its manifest ends
 *                                └──────────────────────────► ENDED ◄──────────────────────────────┼──┘
 *                                                                   a version of an earlier daemon ┘
 *
 * When a version has failed, all its publishers are told why; readers have never seen it. An ENDED version belongs to no name
 * any more, and releases its parts in slices.
 *
 * A complete version is the name's next version like any other: an object, the manifest, which lists the parts.
 * Readers that fetch, hold or wait for it need no further rules. The parts are held as long as the manifest exists, those on
 * other nodes by holds across nodes, which belong to a client without a connection (version->holder).
 *
 * With a keeper, complete versions survive this daemon: the manifest has a record, and lists the parts to be held again
 * (shard_restore.c).
 *
 * A publisher waits (struct part_waiter) until its version is complete, and that is the lease of its part: a version fails when
 * one of its publishers leaves. The part of a publisher that does not have all of its tensors yet grows by pieces, each an
 * object that is held from its arrival on; the part is there when the publisher has said how many pieces it has. Such a
 * publisher waits from its first message on.
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_SHARDS_H
#define DAEMON_SHARDS_H

#include "daemon/base/log.h"
#include "daemon/base/map.h"
#include "daemon/directory/directory_names.h"
#include "daemon/memory/region.h"
#include "daemon/objects/names.h"
#include "daemon/objects/object.h"
#include "daemon/persist/recovery.h"
#include "proto/wire_limits.h"

#define SHARDS_MAX_RANKS 4096u
#define SHARDS_MAX_PIECES RDT_MAX_VERSION_PIECES /* of one version */

struct shards_above { /* functions of a room above */
    void *arg;
    /* Takes the hold `id` of a client on an object of another node. The client's send gets the answer to HOLD. */
    enum rdt_status (*hold)(void *arg, struct client *holder, uint64_t id, const struct rdt_ref *ref, struct rdt_error *err);
    /* Ends what of that has not been answered. false: until_ns has passed before the end: call it again. */
    bool (*holder_gone)(void *arg, struct client *holder, uint64_t until_ns);
};

struct shards { /* the creator fills what stands above `names` */
    const struct node *node;
    struct deadlines *deadlines;
    struct regions *regions;
    struct object_table *objects;
    struct names *published; /* all names */
    struct recovery *recovery;
    struct directory_names *directory_names;
    Rdt__Pb__StatusReply *counts;
    struct shards_above above;
    struct map names;         /* owner and name -> struct shard_name */
    struct map watched;       /* the same -> struct growth_watch */
    struct list ended;        /* struct version.link: what they hold is being released, in slices of the loop */
    struct log_rare failures; /* publishers can cause any number of failures */
    uint32_t max_tensors;     /* of one version: version_max_tensors */
};

void shards_init(struct shards *shards);

/* For the end of the daemon, after all clients have ended. */
void shards_clear(struct shards *shards);

/* For the start: takes again the holds on the parts of a version of an earlier daemon (struct recovery.restore_manifest). */
void shards_restore(void *shards, struct object *manifest);

/* A part, or a piece of one that grows, that has arrived at the daemon of its name. */
struct shard_part {
    struct rdt_ref name, object; /* with the object's generation and owner */
    uint64_t step;
    uint32_t rank, of;
    uint32_t piece;     /* from 1 on; 0: there is no object */
    uint32_t pieces;    /* how many the part has: 1, if it does not grow; 0: not known yet */
    uint64_t publisher; /* of a part that grows: tells two publishers of one rank apart */
    Rdt__Pb__Visibility visibility;
    struct object *here;         /* the object, if it is on this node; NULL: it is on another */
    uint64_t bytes;              /* of the object */
    const struct layout *layout; /* copied */
    const void *boxes;           /* [box_bytes], copied: packed, one for each tensor */
    size_t box_bytes;
    char *const *others; /* [n_others], copied: keys of tensors that other parts must have */
    size_t n_others;
};

/* The publisher of a part, which waits for its version. Embedded. */
struct part_waiter {
    struct version *version; /* NULL: it does not wait */
    struct list link;        /* in version->waiters */
    struct part *part;       /* that it has brought; NULL: none */
    uint32_t rank;
    /* Called once, and the waiter does not wait any more. version: its number; 0: it did not become one, for this reason. */
    void (*on_settled)(struct part_waiter *waiter, uint64_t version, const struct rdt_error *why);
};

/* The publisher waits no longer, and the version fails. lacks_p says what it has waited for; "": on_settled was about to be
 * called. */
void part_waiter_leave(struct part_waiter *waiter, char *lacks_p, size_t size);

/* Adds the part or piece, whose waiter is told when the version is complete or has failed. What the version's other parts and
 * limits refuse fails this part only. If the part cannot be kept (its boxes can never become a version, which a worker finds
 * out; there is no memory or room for them; it cannot be held), the whole version fails. EXISTS: the rank, or that piece of it,
 * is there already. */
enum rdt_status shards_add(struct shards *shards, struct account *account, const struct shard_part *part,
                           struct part_waiter *waiter, struct rdt_error *err);

/* Returns the number of the name's newest version if the publisher's answer must have been lost: that step is complete, and has
 * the object as that piece of that rank. 0: it has not. */
uint64_t shards_version_with(const struct shards *shards, const struct account *account, const struct shard_part *part);

/* The publisher of part->rank has no part, for this reason. The step fails for the publishers that wait, and for each of the
 * others when it comes within a minute, unless that rank has tried again by then. Errors: INVALID, NO_MEMORY. */
enum rdt_status shards_give_up(struct shards *shards, struct account *account, const struct shard_part *part, const char *why,
                               struct rdt_error *err);

/* Somebody who wants to know the parts of a version before it is complete, to fetch them ahead. Embedded; zeroed before its
 * first use. */
struct growth_waiter {
    struct list link;
    struct growth_watch *watch; /* NULL: it does not wait */
    struct account *account;    /* of the requester; charged for `watch` */
    /* Called once, when shards_growth may be tried again. The waiter does not wait any more. */
    void (*on_news)(struct growth_waiter *waiter);
};

#define GROWTH_PARTS 64u

struct growth_part {
    struct rdt_ref ref;
    uint64_t bytes;
};

struct growth { /* of a version that is not complete, or was not when the requester asked before */
    uint64_t number, step;
    bool ended;
    uint64_t version;                       /* if it has ended; 0: it failed */
    struct growth_part parts[GROWTH_PARTS]; /* [n] that are held */
    uint32_t n;
};

/* Returns what is new about the version with the number `growth`, of whose parts the requester knows `from`; 0: about any
 * version of the name that is not complete and may be seen by the requester. AGAIN: nothing is new, and the waiter waits.
 * Errors: LIMIT, NO_MEMORY. */
enum rdt_status shards_growth(struct shards *shards, const struct rdt_ref *name, struct account *requester, uint64_t growth,
                              uint32_t from, struct growth_waiter *waiter, struct growth *growth_p, struct rdt_error *err);
void growth_waiter_remove(struct growth_waiter *waiter); /* does nothing if it does not wait */

/* Describes the name's versions in *reply_p, except reply->manifest. The caller frees it by shards_view_fini. */
enum rdt_status shards_view(const struct shards *shards, const struct owner *owner, const struct rdt_ref *name,
                            Rdt__Pb__ShardsReply *reply_p, struct rdt_error *err);
void shards_view_fini(Rdt__Pb__ShardsReply *reply);

/* A version that waits for parts, or the newest of a name. Valid inside the callback. */
struct shard_state {
    const struct owner *owner;
    const char *id; /* [id_bytes], of the name */
    int id_bytes;
    uint64_t step, age_ns;
    uint32_t of, n_parts;
    bool complete;
    bool grows; /* a rank that the version lacks has begun its part, and brings it piece by piece */
    /* As text, "1 4 5", or "1 4 ... (83 in all)". Of a complete version: the ranks whose parts are lost. Otherwise: the ranks
     * whose parts are missing or, if none is, whose parts are not held yet. */
    char ranks[128];
};
void shards_each(const struct shards *shards, void (*each)(void *arg, const struct shard_state *state), void *arg);
unsigned shards_n_filling(const struct shards *shards); /* versions that wait for parts */

#endif
