/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the room follows.
 *
 *   follow.c           followed names, their followers, and what these are told
 *   follow_fetch.c     the states of a followed name: seeks, holds, fetches
 *   follow_ahead.c     the parts of a version that is not complete
 *   follow_version.c   a version and its objects
 */
#ifndef DAEMON_FOLLOW_IMPL_H
#define DAEMON_FOLLOW_IMPL_H

#include <string.h>

#include "daemon/follows/follow.h"
#include "daemon/versions/shards.h"

#define FOLLOW_KEY_MAX_BYTES (2u * OWNER_KEY_MAX_BYTES + 16u + 65u)
#define FOLLOW_MAX_OBJECTS (SHARDS_MAX_PIECES + 1u) /* of a version: its manifest, and its parts */
#define FOLLOW_AHEAD_BIT (UINT64_C(1) << 63)        /* in the handles of fetches that follow_ahead.c starts */

/* ---- versions ---- */

struct follow_object {   /* of a version: what a client would name by `ref` */
    uint8_t key[16 + 8]; /* node, generation */
    struct rdt_ref ref;
    uint64_t bytes;        /* that the manifest says; of the version's own object: that its tensors have */
    struct object *object; /* with a hold; NULL: it is not here yet */
    bool trusted;          /* pickles in it */
};

struct version_reading { /* of a manifest, in slices */
    uint8_t *packed;     /* [n_bytes]; NULL: it has been read, or is none */
    size_t n_bytes, at;
    uint32_t n_parts; /* that were counted, and then, from 0 on, that were read */
    bool counted;
};

/* The objects of a version: the first is its own, a manifest or the only one; the others are its parts. Readers of several
 * followers may have it, beside the followed name itself. */
struct follow_version {
    struct follow *follow;
    struct list link; /* in follow->dying, once nobody refers to it */
    unsigned refs;
    uint64_t number, seen_ns, whole_ns;
    uint64_t bytes;       /* of all tensors */
    uint64_t bytes_moved; /* from other nodes */
    uint64_t charged;     /* USAGE_FOLLOWED_BYTES */
    uint64_t heap_bytes;  /* charged for it */
    bool is_manifest;
    struct version_reading reading;
    bool committed;                /* a follower has committed it */
    bool lost;                     /* an object was freed by force: nobody else gets it */
    uint32_t n_objects, n_here;    /* n_here: how many are whole on this node */
    uint32_t next;                 /* the first that has not been asked for; while it ends: that has not been dropped */
    struct map by_ref;             /* struct follow_object.key -> struct follow_object */
    struct follow_object *objects; /* [n_objects] */
};

/* What the answer to a fetch of the name without its bytes says. The parts of a version are charged as heap; they are known
 * when version_read_some has returned OK. Errors: UNSUPPORTED (it is no snapshot), INVALID (it cannot be read), LIMIT,
 * NO_MEMORY. */
enum rdt_status version_create(struct follow *follow, const Rdt__Pb__FetchDone *done, const struct rdt_ref *ref,
                               struct follow_version **version_p, struct rdt_error *err);

/* Reads the manifest, which may have millions of fields. AGAIN: until_ns has passed. Other errors as above. */
enum rdt_status version_read_some(struct follow_version *version, uint64_t until_ns, struct rdt_error *err);
struct follow_version *version_ref(struct follow_version *version);        /* returns its argument */
void version_unref(struct follow_version *version);                        /* NULL is fine. Its objects are dropped in slices */
bool version_drop_some(struct follow_version *version, uint64_t until_ns); /* true: it has been freed */

/* Takes over what a fetch has brought for object i: ends the hold. */
enum rdt_status version_take(struct follow_version *version, uint32_t i, const Rdt__Pb__FetchDone *done, struct hold *hold,
                             struct rdt_error *err);
struct follow_object *version_find(const struct follow_version *version, const struct rdt_ref *ref);

bool follower_has(const struct follower *follower, const struct rdt_ref *ref, uint64_t version); /* it has committed it */
bool follow_needed(const struct follow *follow, const struct rdt_ref *ref, uint64_t version);    /* a follower has not */
/* Whether nothing need be done for the newest version: it is here, or all followers have it, or it cannot be had. */
bool follow_is_settled(const struct follow *follow);

static inline bool follow_same_object(const struct rdt_ref *a, const struct rdt_ref *b)
{
    return a->generation == b->generation && memcmp(a->node, b->node, sizeof a->node) == 0;
}

static inline const struct rdt_ref *version_ref_of(const struct follow_version *version)
{
    return &version->objects[0].ref;
}

/* ---- followed names ---- */

/* Parts of a version that were fetched ahead, or are. */
struct ahead_set {
    uint64_t growth;           /* GrowingReply.growth; 0: it is of no version */
    uint64_t version;          /* its number; 0: it is not complete */
    struct list wanted, parts; /* struct ahead_part.link: those that nothing has been done for; the others */
    uint64_t charged;          /* USAGE_FOLLOWED_BYTES */
    uint64_t moved;            /* bytes from other nodes */
};

/* Starts a fetch of the name's client. */
typedef enum rdt_status (*follow_fetch)(struct follow *follow, const struct rdt_ref *ref, uint64_t handle, bool meta_only,
                                        struct rdt_error *err);

struct follow_ahead {
    follow_fetch fetch;
    struct ahead_set now, before; /* of the version that grows; of the one that is complete and not whole here yet */
    struct list dropping;         /* struct ahead_part.link: they are being dropped, in slices */
    struct map by_id;             /* struct ahead_part.id -> struct ahead_part */
    uint64_t last_id, asked_id;   /* asked_id: of the GROWING that has not been answered; 0: there is none */
    uint32_t n_known;             /* parts of `now` that were told */
    unsigned n_under_way;
    bool off; /* the name's node does not say; it is asked again when the name is sought again */
};

struct follow_failure {
    struct rdt_error why; /* of the last attempt; status OK: it went well */
    uint64_t number;      /* followers are told it; 0: they are not, because the next attempt may go well */
    uint64_t n;           /* that they were told */
};

struct follow_note {      /* what an answer has said, until the next slice or the attempt's end */
    struct rdt_error why; /* status OK: nothing */
    bool of_version;      /* it is about a version, not about the name */
};

enum follow_state { FOLLOW_SEEKING, FOLLOW_FULL, FOLLOW_HOLDING, FOLLOW_FETCHING, FOLLOW_PAUSING, FOLLOW_ENDED };

struct follow {
    struct list link; /* ENDED: in follows->ended */
    struct follows *follows;
    struct account *account; /* of the user of its followers, a reference */
    struct rdt_ref name;
    struct sm sm;         /* enum follow_state */
    struct slice work;    /* does what the state wants */
    struct client client; /* fetches; nobody is connected to it */
    uint64_t serial;      /* of the present attempt: answers to earlier ones are passed over */
    bool asked;           /* SEEKING, HOLDING: the answer has not come */
    unsigned n_under_way; /* FETCHING: fetches without an answer */
    bool again;           /* the next fetch asks for any version: the node of the name may count anew */
    uint64_t pause_ns;    /* of the next failure; 0: the last attempt went well */
    struct deadline pause;
    uint64_t newest, newest_ns;              /* the newest version that is known, and since when */
    struct rdt_ref newest_ref;               /* generation 0: none is known */
    uint8_t home[16];                        /* boot id of the other node's daemon that said so; all 0: unknown */
    struct rdt_ref hopeless;                 /* the last version that cannot be had at any time; generation 0: none */
    struct follow_version *arriving, *whole; /* arriving: in FULL, also while a newer one is sought */
    struct list dying;                       /* struct follow_version.link */
    struct list followers;                   /* struct follower.by_follow */
    unsigned n_followers;
    struct list waiters, telling; /* struct prepare_waiter.link; telling: they try again in the next slice */
    struct follow_failure failed;
    struct follow_note noted;
    struct follow_ahead ahead;
    uint16_t key_bytes;
    uint8_t key[FOLLOW_KEY_MAX_BYTES];
};

void follow_fetch_init(struct follow *follow);
void follow_seek_again(struct follow *follow); /* a new follower may need a version that the others have */

/* An object of the version, which a follower was given, has been freed by force: followers wait for the next version. */
void follow_lose(struct follow_version *version, const struct follow_object *object);

void follow_stop(struct follow *follow); /* the daemon is draining: its fetches end */
void follow_tell(struct follow *follow); /* those who wait for a version try again */

/* ENDED: releases a part of what it had. true: it is freed. */
bool follow_end_some(struct follow *follow, uint64_t until_ns);

/* ---- follow_ahead.c ---- */

void follow_ahead_init(struct follow *follow, follow_fetch fetch);
bool follow_ahead_work(struct follow *follow, uint64_t until_ns);     /* false: until_ns has passed */
bool follow_ahead_end_some(struct follow *follow, uint64_t until_ns); /* true: nothing is left */
void follow_ahead_on_answer(struct follow *follow, uint8_t flags, uint64_t id, const ProtobufCMessage *message);
void follow_ahead_on_object(struct follow *follow, const Rdt__Pb__FetchDone *done, struct hold *hold);

/* Whether parts of other versions than the newest that is known have come ahead. They yield their room; false: there are
 * none. */
bool follow_ahead_has_others(const struct follow *follow);
bool follow_ahead_yield(struct follow *follow);

/* What is charged for parts of that version is given back, because the version will be charged as a whole: so many bytes. */
uint64_t follow_ahead_lend(struct follow *follow, uint64_t version);
void follow_ahead_take_back(struct follow *follow, uint64_t charged); /* that has failed */
uint64_t follow_ahead_moved(const struct follow *follow, uint64_t version);
void follow_ahead_settle(struct follow *follow); /* the newest version is another one, or is whole */

/* Something has changed: the name works on, in a slice. */
static inline void follow_look(struct follow *follow)
{
    slice_start(&follow->follows->deadlines->slices, &follow->work);
}

#endif
