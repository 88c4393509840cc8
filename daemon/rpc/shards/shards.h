/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of names that consist of many objects, each published by another process, perhaps on another node.
 *
 *   the first part of a step          all parts are there and held, and cover every tensor once
 *   ────────────────────────► FILLING ───────────────────────────────────────────────────────► COMPLETE ──► ends with its
 *                                │  a publisher ends, cancels or times out; boxes overlap                    manifest
 *                                │  or are missing; a part has ended; a later step is complete
 *                                └──► FAILED: all its publishers are told why; readers have never seen it
 *
 * A complete version is the name's next version like any other: an object, the manifest, whose metadata lists the parts.
 * Readers that fetch, hold or wait for it need no further rules. The parts are held as long as the manifest exists, those on
 * other nodes by holds across nodes, which belong to a client without a connection (version->holder).
 *
 * With a keeper, complete versions survive this daemon: the manifest has a record, and lists the parts to be held again
 * (shard_restore.c).
 *
 * A publisher's request waits until its version is complete, and is the lease of its part: calls end with their clients and
 * links.
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_SHARDS_H
#define DAEMON_SHARDS_H

#include "daemon/base/log.h"
#include "daemon/base/map.h"
#include "daemon/objects/object.h"

struct call;
struct rpc;

#define SHARDS_MAX_RANKS 4096u

struct shards {
    struct rpc *rpc;
    struct map names;         /* owner and name -> struct shard_name */
    struct log_rare failures; /* publishers can cause any number of failures */
};

void shards_init(struct shards *shards, struct rpc *rpc);

/* For the end of the daemon, after all clients have ended. */
void shards_clear(struct shards *shards);

/* For the start: takes again the holds on the parts of a version of an earlier daemon (struct recovery.restore_manifest). */
void shards_restore(void *shards, struct object *manifest);

/* A part that has arrived at the daemon of its name. */
struct shard_part {
    struct rdt_ref name, object; /* with the object's generation and owner */
    uint64_t step;
    uint32_t rank, of;
    Rdt__Pb__Visibility visibility;
    int64_t timeout_ns;
    struct object *here;                  /* the object, if it is on this node; NULL: it is on another */
    const Rdt__Pb__PartDescription *part; /* copied */
};

/* Adds the part, and defers the call until the version is complete or has failed. What the version's other parts and limits
 * refuse fails the call only. If the part cannot be kept (its boxes can never become a version, there is no memory or room for
 * them, it cannot be held), the whole version fails. */
enum rdt_status shards_add(struct shards *shards, struct call *call, const struct shard_part *part, struct rdt_error *err);

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
    /* As text, "1 4 5", or "1 4 ... (83 in all)". Of a complete version: the ranks whose parts are lost. Otherwise: the ranks
     * whose parts are missing or, if none is, whose parts are not held yet. */
    char ranks[128];
};
void shards_each(const struct shards *shards, void (*each)(void *arg, const struct shard_state *state), void *arg);
unsigned shards_n_filling(const struct shards *shards); /* versions that wait for parts */

#endif
