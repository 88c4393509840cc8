/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the files of shards: names, their versions and the parts of these.
 *
 *   shards.c           names and versions: from the first part of a step to its end
 *   shard_holder.c     the holds on the parts, and which parts lack one
 *   shard_cover.c      whether the parts cover every tensor once
 *   shard_check.c      has a worker check this, and write the manifest
 *   shard_manifest.c   the manifest of a complete version
 *   shard_restore.c    complete versions of an earlier daemon
 *   shard_growth.c     what nodes are told of a version that is not complete
 *   shard_view.c       the reply of SHARDS
 */
#ifndef DAEMON_SHARDS_IMPL_H
#define DAEMON_SHARDS_IMPL_H

#include "daemon/base/map.h"
#include "daemon/objects/client.h"
#include "daemon/versions/shard_cover.h"
#include "daemon/versions/shards.h"
#include "proto/wire_limits.h"

/* A step that has failed because one of its ranks has no part. Each of the others is told once: it may try again then. */
struct given_up {
    uint64_t step, at_ns;
    uint32_t rank, of; /* rank NO_RANK: it is not known whose part it was */
    bool over;         /* that rank has tried again: nobody else is told */
    char why[256];
    uint16_t told[]; /* [of] 0: not told yet; else a mark of the publisher that was, whose messages may still be on their way */
};

#define NO_RANK UINT32_MAX

struct shard_name {
    struct shards *shards;
    struct account *owner;     /* a reference */
    struct list versions;      /* struct version.link, those that are not complete and those that still exist */
    struct version *current;   /* the last version that became complete; NULL: its manifest has ended */
    struct given_up *given_up; /* the last one, charged to `owner`; NULL: there is none */
    char failure[256];         /* "": none failed */
    uint64_t failed_ns;
    bool idle; /* counted in its person's n_idle_names */
    uint8_t key_bytes, id_bytes;
    uint8_t key[OWNER_KEY_MAX_BYTES];
};

struct part { /* a whole part, or a piece of one that grows */
    struct version *version;
    uint32_t rank, piece;       /* pieces count from 1; a whole part is piece 1 */
    uint32_t number;            /* in version->parts */
    struct part_waiter *waiter; /* NULL: the publisher was told, or has left */
    struct rdt_ref ref;
    struct object_waiter gone; /* of the object, if it is on this node: a forced free ends the hold */
    uint64_t bytes;
    bool held; /* COMPLETE: false: the part is lost: it did not survive a daemon, or was freed by force */
};

struct shard_rank {     /* a publisher's part */
    uint64_t publisher; /* of a part that grows */
    uint32_t n_pieces;  /* that are there */
    uint32_t of;        /* how many it will have; 0: not known yet */
    uint32_t n_held;
    uint32_t last; /* the highest number of a piece that is there */
    bool begun;    /* its publisher has said something */
};

struct version_growth {        /* what is there before the version is complete */
    uint64_t number;           /* random */
    uint64_t n_tensors, bytes; /* of all parts */
    uint32_t *held;            /* [n_held] numbers of parts, in the order in which they were held */
    uint32_t n_held;
    size_t room;
};

/* shards.h draws the moves. */
enum version_state { VERSION_FILLING, VERSION_COMPLETE, VERSION_ENDED };

struct version {
    struct list link; /* in name->versions; ENDED: in shards->ended */
    struct shards *shards;
    struct shard_name *name; /* NULL: ENDED */
    struct account *account; /* a reference */
    uint8_t state;           /* enum version_state */
    bool uses_claim;         /* FILLING: directory_names_use */
    uint64_t step, began_ns;
    uint32_t of, n_parts;      /* ranks; those whose parts are there, with all pieces */
    uint32_t n_pieces, n_held; /* of `parts` */
    Rdt__Pb__Visibility visibility;
    struct shard_rank *ranks; /* [of] */
    struct part **parts;      /* [n_pieces], in the order of their arrival */
    size_t room;              /* of `parts` */
    struct map by_piece;      /* rank and piece (part_key) -> struct part */
    struct version_growth growth;
    struct list waiters;           /* struct part_waiter.link: the publishers, in the order of their messages */
    struct shard_check *check;     /* FILLING: its boxes so far */
    struct client holder;          /* has the holds on the parts; nobody is connected to it */
    struct object_waiter manifest; /* COMPLETE: waits for its end */
    struct deadline settle;        /* after an answer about a hold: complete it, or fail it */
    struct rdt_error why;          /* a hold failed, or was lost; ENDED without a number: what its publishers are told */
    uint64_t number;               /* of the name's versions; 0: it did not become one */
    struct slice slice;            /* answers the publishers; ENDED: releases the parts and the holds, too */
    uint32_t next;                 /* ENDED: the part that the slice releases next */
    uint64_t heap_bytes;           /* charged for it and its parts, without `check` */
    uint64_t check_bytes;          /* charged for `check` */
};

static inline const char *shard_name_id(const struct shard_name *name)
{
    return (const char *)name->key + name->key_bytes - name->id_bytes;
}

/* NULL: nothing is known of the name. */
static inline struct shard_name *shard_name_find(const struct shards *shards, const struct owner *owner,
                                                 const struct rdt_ref *ref)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];

    return (struct shard_name *)map_get(&shards->names, key, owner_key(key, owner, (const uint8_t *)ref->id, ref->id_bytes));
}

static inline uint64_t part_key(uint32_t rank, uint32_t piece)
{
    return (uint64_t)rank << 32 | piece;
}

/* Adds an object to a rank of the version, and charges it. LIMIT, NO_MEMORY. */
enum rdt_status version_add_part(struct version *version, const struct shard_part *from, struct part **part_p,
                                 struct rdt_error *err);

/* Whether a publisher's part is there, with all its pieces. */
static inline bool rank_is_whole(const struct shard_rank *rank)
{
    return rank->of > 0 && rank->n_pieces == rank->of;
}

/* How many of its versions are FILLING. */
unsigned shard_name_n_filling(const struct shard_name *name);

/* Whether the manifest of the version, which may be NULL, is the name's newest version. If not, the name was unpublished, or
 * something else was published under it. */
bool version_is_current(const struct version *version);

/* Charges the owner for memory of the version, and adds the bytes to *charged: its heap_bytes or check_bytes. LIMIT. */
static inline enum rdt_status version_charge(struct version *version, uint64_t *charged, uint64_t bytes, struct rdt_error *err)
{
    enum rdt_status status = account_take(version->account, USAGE_HEAP, bytes, err);

    if (status == RDT_OK)
        *charged += bytes;
    return status;
}

/* A COMPLETE version of an earlier daemon, without parts. first: has name, step, of and visibility. NULL: no memory. */
struct version *version_restore(struct shards *shards, const struct shard_part *first, struct object *manifest);
/* Takes it off its name. Its publishers are answered, and all that it holds is released, in slices. */
void version_end(struct version *version);

/* ---- shard_growth.c ---- */

void version_growth_init(struct version *version);
void version_growth_add(struct version *version, const struct part *part); /* the part is held */
void version_growth_end(struct version *version);                          /* it is complete, or has failed */
void growth_clear(struct shards *shards);                                  /* nobody waits any more */

/* ---- shard_check.c ---- */

/* A manifest (proto/manifest.h) without the fields about its version. */
struct shard_manifest {
    uint8_t *metadata; /* with MANIFEST_TAIL_BYTES of room behind them */
    size_t metadata_bytes;
    uint8_t *tensor; /* [tensor_bytes]; NULL: there is none, or it is in `region` */
    size_t tensor_bytes;
    struct region *region; /* a reference; NULL: there is no tensor, or it has no memory of its own yet */
};

/* The worker has ended. err->status OK: the boxes cover every tensor once, and this, borrowed, is the manifest. */
typedef void (*version_checked)(struct version *version, struct shard_manifest *manifest, struct rdt_error *err);

/* The boxes of that part, by its number, can never become a version, or there is no room for them. */
typedef void (*version_refused)(struct version *version, uint32_t number, const struct rdt_error *why);

struct version_check_events {
    version_checked on_checked;
    version_refused on_refused;
};

/* Charges it to the version. LIMIT, NO_MEMORY. */
enum rdt_status version_check_init(struct version *version, const struct version_check_events *events, struct rdt_error *err);
void version_check_fini(struct version *version);
/* Has a worker note the boxes of the next part, in the order of their numbers, and the keys of others, and charges them. A part
 * without a layout only has keys. on_refused may follow. LIMIT, NO_MEMORY. */
enum rdt_status version_check_add(struct version *version, const struct shard_part *part, struct rdt_error *err);
/* After the boxes of all parts were noted on_checked follows, or on_refused. Does nothing if it was called before. */
void version_check_start(struct version *version);

/* ---- shard_holder.c ---- */

void version_holder_init(struct version *version);
bool version_holder_fini(struct version *version, uint64_t until_ns); /* false: until_ns has passed: call again */

/* Takes the hold on the part's object. `here` is the object if it is on this node. If it is on another node (NULL), the answer
 * comes later and sets version->settle. */
enum rdt_status version_hold_part(struct version *version, struct part *part, struct object *here, struct rdt_error *err);

/* The same for a part on another node that an earlier daemon held. */
enum rdt_status version_retake_part(struct version *version, struct part *part, const Rdt__Pb__Ref *ref, struct rdt_error *err);

/* Whether all parts are still held, because a forced free ends holds. FREED names the first rank whose part is not held. */
enum rdt_status version_check_held(const struct version *version, struct rdt_error *err);

/* Whether the part of the rank is missing or lost, or no answer has come about a hold on it although all parts are there. */
bool version_lacks(const struct version *version, uint32_t rank);

/* Lists the ranks that the version lacks, as in struct shard_state.ranks. */
void version_list_ranks(const struct version *version, char *text_p, size_t size);

/* ---- shard_manifest.c ---- */

#define MANIFEST_TAIL_BYTES (RDT_MAX_ID_BYTES + 32u)

struct shard_row { /* of a part, by its number */
    struct rdt_ref ref;
    uint64_t bytes;
    uint32_t rank, piece;
};

/* Writes the manifest of the parts [n] that shard_cover_check has accepted, in the order of their ranks and pieces; any thread.
 * The caller frees manifest_p->metadata and ->tensor. LIMIT: the tensor would be longer than MANIFEST_MAX_TENSOR; NO_MEMORY. */
enum rdt_status shard_manifest_pack(const struct shard_cover *cover, const struct shard_row *rows, uint32_t n,
                                    struct shard_manifest *manifest_p, struct rdt_error *err);

/* Puts the manifest and publishes it as the name's next version, *number_p. version->manifest waits for its end. */
enum rdt_status version_publish(struct version *version, const struct shard_manifest *manifest, uint64_t *number_p,
                                struct rdt_error *err);

#endif
