/* One object: its tensors over regions, who may see it, and what keeps it.
 *
 *                  put                     last hold dropped, or forced free
 *   AWAITED ---------------> LIVE ------------------------------------------> DRAINING ----> GONE
 *    |  |                     ^  |                                               ^  no hold, no pin    ^
 *    |  |        copied whole |  |  last hold dropped and no pin                 |                     |
 *    |  | put as SNAPSHOT,    |  +-----------------------------------------------|---------------------+
 *    |  | or PENDING          |                                                  |                     |
 *    |  +-----------------> FILLING ---------------------------------------------+                     |
 *    |                            the put has failed, its client is gone, a free: waiters are told     |
 *    |  last waiter leaves                                                                             |
 *    +-------------------------------------------------------------------------------------------------+
 *
 * While it is FILLING its tensors lie where they are copied from (PENDING: where its producer's stream writes them, until it says that it is
 * ready), and nobody can have it yet. A hold says that somebody may still
 * ask for it, a pin that an engine touches its memory. Memory goes at zero of both.
 */
#ifndef DAEMON_OBJECT_H
#define DAEMON_OBJECT_H

#include <string.h>

#include "daemon/base/account.h"
#include "daemon/base/list.h"
#include "daemon/memory/region_use.h"
#include "daemon/memory/slab.h"
#include "proto/layout.h"
#include "rdt_ref.h"

struct client;
struct object_table;

enum object_state { OBJECT_AWAITED, OBJECT_FILLING, OBJECT_LIVE, OBJECT_DRAINING, OBJECT_GONE };
enum object_end {
    OBJECT_END_FREED,
    OBJECT_END_DROPPED, /* freed by a request without an answer: its producer deleted the last ref of its own */
    OBJECT_END_OWNER_DIED
};

/* By whom it is held, beside its producer, names and transfers. */
enum holder_kind {
    HOLDER_READER,  /* a client that has its bytes: struct hold.by_object */
    HOLDER_REMOTE, /* a client that has not, so that it can be fetched: struct keeping.by_object */
    HOLDER_NODE,    /* another node, for one of its clients of that kind: struct node_hold.by_object */
    HOLDER_KINDS
};

/* Who holds it and who waits for it: most objects have nobody, and then have none of this. */
struct object_others {
    struct list holders[HOLDER_KINDS];
    struct list waiters;       /* struct object_waiter: for live */
    struct list freed_waiters; /* struct object_waiter: for gone */
    unsigned n_waiters;
    unsigned peer_holds; /* of object->holds: by transfers to other nodes */
};

/* There may be a million: what few of them need has its place elsewhere. One allocation with its key, metadata and, if all its bytes
 * are in the arena, its shapes; a second one for the latter two if they are much.
 *
 * Its bytes lie in places, which layout->region[i] counts: its regions, or one piece of the arena.
 */
struct object {
    struct object_table *table;
    struct account *account;      /* its owner's: a reference */
    uint64_t generation;          /* 0 while awaited */
    struct layout *layout;        /* NULL: all bytes are in the arena, packed, and tail has the shapes */
    struct region_use *uses;      /* [n_regions]; each also one reference to the region; NULL if there are none */
    struct slab_chunk *chunk;     /* of the piece; NULL: nothing is in the arena */
    struct object_others *others; /* NULL: nobody */
    const char *transport;        /* preferred, "" none; a plug-in's own name, which lives longer */
    struct client *producer;      /* while its hold stands; NULL after free or its end */
    uint64_t producer_id;
    struct list by_producer;
    uint64_t bytes; /* of all tensors */
    uint64_t since_ns;
    uint32_t piece; /* in chunk */
    uint32_t n_regions;
    uint32_t metadata_bytes;
    uint32_t heap_bytes; /* charged */
    uint32_t holds;      /* producer's, clients' and peers' */
    uint32_t pins;
    uint8_t state;         /* enum object_state */
    uint8_t end;           /* enum object_end: why it goes, once the producer has let go */
    uint8_t visibility;    /* Rdt__Pb__Visibility */
    bool named : 1;        /* in the table under its key: false after a forced free, or once gone */
    bool forced : 1;       /* freed by force: nobody new may have it */
    bool cover_known : 1;  /* uses[].covered is filled in */
    bool notice_given : 1; /* told that it is shared while its producer may write */
    bool detached : 1;     /* its producer's hold outlives the producer, for a time (detached.h) */
    bool in_transit : 1;   /* a ref of it is on its way to another process (transit.h) */
    bool adopted : 1;      /* another node's, which has a copy here: in no table, charged to nobody */
    bool snapshot : 1;     /* it never changes: its regions are sealed, and hold nothing else */
    bool lent : 1;         /* by its producer's word it does not change as long as it lives, nor do its regions */
    bool pending : 1;      /* FILLING: its bytes are not there yet */
    bool apart : 1;        /* behind the key stands only where metadata and shapes are */
    uint8_t key_bytes;     /* owner and id, as the table's key */
    uint8_t id_bytes;      /* the last of the key */
    uint8_t tail[];        /* key, metadata, shapes */
};

/* Somebody who waits for the object to become live, or to be gone. */
struct object_waiter {
    struct list link;
    struct object *object;
    /* Called once, removed before. object: the live one; NULL for a freed waiter, and with the reason why it never came to live. */
    void (*on_event)(struct object_waiter *, struct object *object, const struct rdt_error *why);
};

static inline const uint8_t *object_id(const struct object *object)
{
    return object->tail + object->key_bytes - object->id_bytes;
}

static inline const uint8_t *object_metadata(const struct object *object)
{
    const uint8_t *apart;

    if (!object->apart)
        return object->tail + object->key_bytes;
    memcpy(&apart, object->tail + object->key_bytes, sizeof apart);
    return apart;
}

static inline struct slab_piece object_piece(const struct object *object)
{
    return (struct slab_piece){object->chunk, object->piece};
}

static inline uint32_t object_n_places(const struct object *object)
{
    return object->chunk ? 1 : object->n_regions;
}

static inline struct region *object_region(const struct object *object, uint32_t place)
{
    return object->chunk ? slab_region(object_piece(object)) : object->uses[place].region;
}

/* Some of its memory is on devices. */
static inline bool object_on_device(const struct object *object)
{
    for (uint32_t i = 0; i < object->n_regions; i++)
        if (!region_is_host(object->uses[i].region))
            return true;
    return false;
}

uint8_t *object_base(struct object *object, uint32_t place, struct rdt_error *err); /* NULL: err says why */
uint32_t object_n_tensors(const struct object *object);

/* Its tensors, or a view of them (layout_slice), over its places; the caller's own. */
enum rdt_status object_layout(const struct object *object, const Rdt__Pb__Slice *slice, struct layout **layout_p,
                              struct rdt_error *err);

bool object_visible_to(const struct object *object, const struct owner *requester);

/* Each drops to zero what was taken; the object may be gone afterwards. */
void object_hold(struct object *object);
void object_drop(struct object *object);
void object_pin(struct object *object);
void object_unpin(struct object *object);

/* A hold that shows: of one of the kinds, or by a transfer to another node. false: no memory. */
bool object_hold_by(struct object *object, enum holder_kind kind, struct list *by_object);
void object_drop_by(struct object *object, struct list *by_object);
bool object_peer_hold(struct object *object);
void object_peer_drop(struct object *object);

const struct list *object_holders(const struct object *object, enum holder_kind kind); /* empty if there are none */
unsigned object_n_waiters(const struct object *object);
unsigned object_peer_holds(const struct object *object);

/* The producer lets go (free, or its end); force: nobody new may have it. */
void object_free(struct object *object, bool force, enum object_end end);

/* The producer's session has ended: OWNER_DIED, unless the object is detached. */
void object_leave(struct object *object);

/* The producer's hold stands: its own, or that of a detached object. */
static inline bool object_is_kept(const struct object *object)
{
    return object->producer || object->detached;
}

/* FILLING: its tensors are here now, and it is live; whoever waited is told before it returns. Takes the layout on success; the regions
 * are borrowed. NO_MEMORY. */
enum rdt_status object_fill(struct object *object, struct layout *take_layout, struct region **regions, uint32_t n_regions,
                            struct rdt_error *err);

/* FILLING and pending: its bytes are there, where they were to come: it is live; whoever waited is told before it returns. */
void object_ready(struct object *object);

/* Gives memory to one that has none yet (object_table_adopt with no regions): its layout lies in these. The regions are borrowed.
 * NO_MEMORY. */
enum rdt_status object_attach(struct object *object, struct region **regions, uint32_t n_regions, struct rdt_error *err);

/* FILLING: its put came to nothing; whoever waited is told why, many in turns. Nothing in another state. */
void object_fail(struct object *object, const struct rdt_error *why);

/* FREED or OWNER_DIED, with a sentence about the object of that id. */
enum rdt_status object_error_ended(enum object_end end, const char *id, int id_bytes, struct rdt_error *err);

/* DRAINING or GONE: FREED or OWNER_DIED, with a sentence. */
enum rdt_status object_why_ended(const struct object *object, struct rdt_error *err);

const char *object_state_name(const struct object *object);

/* It is not in the arena, which nobody else ever sees; and all its regions belong to the requester's owner, or its tensors cover every byte of them: they may be shown whole. */
bool object_may_show(struct object *object, const struct owner *requester, const char **why_not_p);

/* For object_table.c. */
void object_charges(const struct object *object, uint64_t *want); /* what a live one is charged with: [USAGE_COUNT] */
void object_set_state(struct object *object, enum object_state state);
struct object_others *object_others_get(struct object *object); /* made if there are none; NULL: no memory */
void object_others_settle(struct object *object);               /* frees them if there is nobody */

#endif
