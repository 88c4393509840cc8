/* SPDX-License-Identifier: Apache-2.0 */
/* The room of objects: what clients put and fetch, and the clients themselves.
 *
 * Owns: every object of this node and the table that finds it by id or generation; the holds that keep objects alive,
 * including those of detached objects and of refs in transit; published names; snapshots; and every client's session with
 * everything that it holds.
 *
 * Public headers: object.h (one object: tensors, visibility, holds, pins), object_table.h (putting, finding and waiting for
 * objects), object_content.h (the expensive part of a put, for any thread), snapshot.h, names.h, client.h, remote_hold.h
 * (holds without bytes), detached.h, cache.h (objects that may be evicted), and transit.h (holds in transit).
 *
 * Refuses: to know requests, transfers, peers and sockets. They act on objects through holds and pins, and are told of
 * changes through waiters and callbacks; a client's frames are sent by callbacks that its connection sets.
 *
 * An object has these states:
 *
 *                  put                     last hold dropped, or forced free
 *   AWAITED ---------------> LIVE ------------------------------------------> DRAINING ----> GONE
 *    |  |                     ^  |                                               ^  no hold, no pin    ^
 *    |  |        copied whole |  |  last hold dropped and no pin                 |                     |
 *    |  | put as SNAPSHOT,    |  +-----------------------------------------------|---------------------+
 *    |  | or PENDING          |                                                  |                     |
 *    |  +-----------------> FILLING ---------------------------------------------+                     |
 *    |                            the put has failed, its client is gone, or a free: waiters are told  |
 *    |  last waiter leaves                                                                             |
 *    +-------------------------------------------------------------------------------------------------+
 *
 * While an object is FILLING, nobody can fetch it. Its layout describes the memory that the daemon copies (SNAPSHOT), or
 * the memory that the producer's stream writes until the producer says that it is ready (PENDING). A hold means that
 * somebody may still fetch the object; a pin means that an operation uses its memory. The memory is freed when there are
 * no holds and no pins.
 *
 * A put may REPLACE the object that has its id. The new object is then FILLING without a key, beside the old one, and takes the
 * key in the step in which it becomes live. The old object loses it, and its producer's hold. If others still hold it, it stays
 * LIVE, and its generation leads to it.
 *
 * To an owner who may not see it, an object that is named by id alone does not exist: a fetch of that id waits, as it
 * would for an object that nobody has put. Such waiters wait in an AWAITED entry of the same id beside the object
 * (users->hidden_entry), which replaces the object in the table when the id is free again.
 *
 * Everything here runs on the loop thread.
 */
#ifndef DAEMON_OBJECT_H
#define DAEMON_OBJECT_H

#include <string.h>

#include "daemon/base/account.h"
#include "daemon/memory/imported.h"
#include "daemon/memory/region_use.h"
#include "daemon/memory/slab.h"
#include "daemon/objects/cache.h"
#include "proto/layout.h"
#include "proto/list.h"
#include "rdt_ref.h"

struct cached;
struct client;
struct object_table;

enum object_state { OBJECT_AWAITED, OBJECT_FILLING, OBJECT_LIVE, OBJECT_DRAINING, OBJECT_GONE };

/* Whether its bytes may change while it lives. */
enum object_promise {
    OBJECT_MAY_CHANGE, /* it is memory that its producer may write */
    OBJECT_BY_WORD,    /* its producer promises not to write its memory; nothing was copied */
    OBJECT_SEALED,     /* a copy, or memory that was handed over: its regions are sealed and contain nothing else */
};

enum object_stored { OBJECT_NOT_STORED, OBJECT_STORING, OBJECT_STORED }; /* whether it has a file (daemon/persist) */
enum object_end {
    OBJECT_END_FREED,
    OBJECT_END_DROPPED, /* freed by a request without an answer: its producer deleted the last ref of its own */
    OBJECT_END_OWNER_DIED,
    OBJECT_END_EXPIRED, /* it was detached, and its time to live has passed */
    OBJECT_END_EVICTED, /* it was in the cache, and made room for others (cache.h) */
    OBJECT_END_NO_ROOM, /* no client keeps it, and the memory that one imported for it does not fit (region_left.c) */
};

/* Who has a hold, beside the producer, names and transfers. */
enum holder_kind {
    HOLDER_READER, /* a client that can read the bytes: struct hold.by_object */
    HOLDER_REMOTE, /* a client that only keeps it fetchable: struct remote_hold.by_object */
    HOLDER_NODE,   /* another node, on behalf of such a client there: struct node_hold.by_object */
    HOLDER_KINDS
};

/* The holders of an object, and those who wait for it. An object without either has no such struct. */
struct object_users {
    struct list holders[HOLDER_KINDS];
    uint32_t n_holders[HOLDER_KINDS];
    struct list waiters;         /* struct object_waiter: for the object to become live; their owners may see it */
    struct list freed_waiters;   /* struct object_waiter: for the object to be gone */
    struct object *hidden_entry; /* AWAITED entry for waiters that may not see this object; NULL: there are none */
    unsigned n_waiters;
    unsigned peer_holds; /* how many of object->holds belong to transfers to other nodes */
};

/* An object is of one kind for ever: a put object may become a manifest before anybody finds it. */
enum object_kind {
    OBJECT_PLAIN,
    OBJECT_MANIFEST, /* its metadata lists the parts of a version, which are held as long as it exists (versions) */
    OBJECT_REPLICA,  /* of another node's object: it was adopted, is in no table, and is charged to nobody */
};

/* The memory of an object is a list of places, which layout->region[] indexes: its regions, or a single piece of the arena. */
struct object_memory {
    struct layout *layout;    /* NULL: all bytes are in the arena, packed, and the shapes describe them */
    struct region_use *uses;  /* [n_regions], each with one reference to its region; NULL: no regions */
    struct slab_chunk *chunk; /* of the piece; NULL: nothing is in the arena */
    uint32_t piece;           /* index in chunk */
    uint32_t n_regions;
};

struct object_tail { /* what tail_data contains: the key, which is owner and id, the metadata and the shapes */
    uint32_t metadata_bytes;
    uint32_t box_bytes; /* the last bytes of the metadata, which are a packed Rdt__Pb__Boxes; 0: there are none */
    uint8_t key_bytes;  /* of owner and id, which are the key in the table */
    uint8_t id_bytes;   /* of the id, which is the end of the key */
    bool separate : 1;  /* behind the key there is only a pointer to metadata and shapes */
};

/*   NONE ── put, awaited ─► OWN ── replaced by another ─► LOST ─► NONE
 *     │                    ▲  │
 *     └ put that replaces ─► TAKES    OWN and TAKES end as NONE, too; a restored object may go back from OWN to TAKES */
enum object_key {
    KEY_NONE,  /* nobody else may get it: it was freed by force, or is gone */
    KEY_OWN,   /* the table has it under its key */
    KEY_TAKES, /* FILLING: once it is live, it takes its key from the object that has it (object_replace.c) */
    KEY_LOST,  /* another object has done so: its generation, names and holds still lead to this one */
};

struct object_access {  /* who may find it */
    uint8_t visibility; /* Rdt__Pb__Visibility */
    uint8_t key : 2;    /* enum object_key */
    bool forced : 1;    /* freed by force: nobody else may get it */
    bool took_key : 1;  /* it has replaced the object that had its key, */
    bool took_file : 1; /* and that had a file, or may have one that is being removed */
};

struct object_file {
    uint8_t stored : 2; /* enum object_stored */
    bool writing : 1;   /* its file is being written: the writer has one of its holds and one of its pins */
    bool unchecked : 1; /* its memory is a stored file that nobody has compared with its checksums yet, or that is damaged */
};

struct object_survival { /* why it outlives its producer's session: any of these is enough, and so is cache_has (cache.h) */
    bool detached : 1;   /* the producer's hold outlives the producer for a time (detached.h) */
    bool in_transit : 1; /* a ref of it is on its way to another process (transit.h) */
    bool published : 1;  /* at least one name holds it */
};

struct object_changes {    /* whether its bytes may change while it lives */
    uint8_t promise : 2;   /* enum object_promise */
    bool loaned : 1;       /* its regions are loaned: the producer promises not to change them while the object lives */
    bool notice_given : 1; /* a warning was given: the object is shared while its producer may write it */
};

/* There may be a million objects, so data that few of them need is stored elsewhere. An object is one
 * allocation with its key, metadata and, if its bytes are in the arena, its shapes. Large metadata and
 * shapes have a second allocation. */
struct object {
    struct object_table *table;
    struct account *account; /* of its owner; one reference */
    uint64_t generation;     /* 0: awaited, or a replica */
    struct object_memory memory;
    struct object_users *users; /* NULL: no holders of a kind, no waiters */
    struct cached *cached;      /* NULL: it was not put as EVICTABLE (cache.h) */
    struct client *producer;    /* NULL once the producer has freed the object or its session has ended */
    union {
        struct list by_producer; /* in producer->objects */
        uint64_t ended_producer; /* without a producer: the id of the client that was it; 0: there was none */
    };
    /* Of lasting: a later daemon will have the object. If it is a replica: what table->on_adopted is called with.
     * NULL: neither. */
    void *record;
    uint64_t bytes; /* of all tensors */
    uint64_t sum;   /* its checksum (proto/layout.h); 0: not known yet, or it has none */
    uint64_t since_ns;
    struct object_tail tail;
    uint32_t heap_bytes; /* charged to the account */
    uint32_t holds;      /* of the producer, clients, nodes, names and transfers */
    uint32_t pins;
    uint8_t state; /* enum object_state */
    uint8_t end;   /* enum object_end: why the object ends, valid when the producer's hold is gone */
    struct object_access access;
    struct object_file file;
    struct object_survival survives;
    struct object_changes changes;
    uint8_t kind : 2;     /* enum object_kind */
    bool pending : 1;     /* FILLING: its bytes have not been written yet */
    bool cover_known : 1; /* memory.uses[].covered has been computed */
    bool unkept : 1;      /* of lasting: it should have had a record, and there was no room */
    uint8_t transport;    /* which of table->transports it prefers */
    uint8_t tail_data[];
};

/* Waits for an object to become live, or to be gone. */
struct object_waiter {
    struct list link;
    struct object *object;
    /* The owner on whose behalf it waits; lives as long as the waiter. Unused in freed_waiters. */
    const struct owner *requester;
    bool by_id; /* it waits for whatever has the id first, not for this object */
    /* Is called once, after the waiter was removed. object: the live object, which the requester may see.
     * NULL: the object is gone (freed_waiters), or `why` says why it never became live. */
    void (*on_event)(struct object_waiter *, struct object *object, const struct rdt_error *why);
};

/* Whether somebody else may get it, now or when it is live. */
static inline bool object_is_reachable(const struct object *object)
{
    return object->access.key != KEY_NONE;
}

static inline bool object_is_constant(const struct object *object)
{
    return object->changes.promise != OBJECT_MAY_CHANGE;
}

static inline const uint8_t *object_id(const struct object *object)
{
    return object->tail_data + object->tail.key_bytes - object->tail.id_bytes;
}

static inline const uint8_t *object_metadata(const struct object *object)
{
    const uint8_t *separate;

    if (!object->tail.separate)
        return object->tail_data + object->tail.key_bytes;
    memcpy(&separate, object->tail_data + object->tail.key_bytes, sizeof separate);
    return separate;
}

static inline struct slab_piece object_piece(const struct object *object)
{
    return (struct slab_piece){object->memory.chunk, object->memory.piece};
}

static inline uint32_t object_n_places(const struct object *object)
{
    return object->memory.chunk ? 1 : object->memory.n_regions;
}

static inline struct region *object_region(const struct object *object, uint32_t place)
{
    return object->memory.chunk ? slab_region(object_piece(object)) : object->memory.uses[place].region;
}

/* Whether some of its memory is on devices. */
static inline bool object_on_device(const struct object *object)
{
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        if (!region_is_host(object->memory.uses[i].region))
            return true;
    return false;
}

uint8_t *object_base(struct object *object, uint32_t place, struct rdt_error *err); /* NULL: err says why */

/* The same for tensors that may be in imported memory: memory_place_of. */
enum rdt_status object_place(struct object *object, uint32_t place, struct memory_place *place_p, struct rdt_error *err);

/* The account whose threads must copy the tensors of a layout of the object, because some are in imported memory (imported.h).
 * NULL: any thread may. */
struct account *object_slow_owner(const struct object *object, const struct layout *layout);
/* The account whose threads must read the object's memory, because its client can hold up whoever touches it (region_may_wait).
 * NULL: any thread may. */
struct account *object_reads_owner(const struct object *object);

uint32_t object_n_tensors(const struct object *object);

/* Copies the layout of its tensors, or of a view of them (layout_slice). The caller frees *layout_p. */
enum rdt_status object_layout(const struct object *object, const Rdt__Pb__Slice *slice, struct layout **layout_p,
                              struct rdt_error *err);

bool object_visible_to(const struct object *object, const struct owner *requester);

/* Each drop or unpin ends one hold or pin. The object may be gone afterwards. */
void object_hold(struct object *object);
void object_drop(struct object *object);
void object_pin(struct object *object);
void object_unpin(struct object *object);

/* Counted holds: of one of the kinds, or of a transfer to another node. false: out of memory. */
bool object_hold_by(struct object *object, enum holder_kind kind, struct list *by_object);
void object_drop_by(struct object *object, enum holder_kind kind, struct list *by_object);
bool object_peer_hold(struct object *object);
void object_peer_drop(struct object *object);

/* an empty list if there are none */
const struct list *object_holders(const struct object *object, enum holder_kind kind);
uint32_t object_n_holders(const struct object *object, enum holder_kind kind);
unsigned object_n_waiters(const struct object *object);
unsigned object_peer_holds(const struct object *object);

/* Ends the producer's hold, for a free or the end of its session. force: nobody else may get the object
 * from now on. */
void object_free(struct object *object, bool force, enum object_end end);

/* The producer's session has ended: the object ends with OWNER_DIED, unless it is detached or evictable. */
void object_producer_ended(struct object *object);

/* Whether the producer's hold outlives the session of its producer: the object is detached or evictable. */
static inline bool object_outlives_session(const struct object *object)
{
    return object->survives.detached || cache_has(object);
}

uint64_t object_producer_id(const struct object *object); /* of the client that put it; 0: of an earlier daemon */

/* Whether the producer's hold exists, the producer's own or that of an object that outlives it. */
static inline bool object_has_producer_hold(const struct object *object)
{
    return object->producer || object_outlives_session(object);
}

/* Makes a FILLING object live with the given layout and regions. Takes the layout on success; the regions are borrowed. The
 * caller calls object_prepare_id before and object_take_id after it. Error: NO_MEMORY. */
enum rdt_status object_fill(struct object *object, struct layout *take_layout, struct region **regions, uint32_t n_regions,
                            struct rdt_error *err);

/* Moves a live object, whose memory nothing uses, to other memory that has the same bytes and lies in one region, which is
 * borrowed. Takes the layout on success. Error: NO_MEMORY. */
enum rdt_status object_move(struct object *object, struct layout *take_layout, struct region *region, struct rdt_error *err);

/* Before a FILLING object becomes live: provides for object_take_id. Errors: NO_MEMORY; EXISTS: another object has got the id
 * meanwhile, which this one may not replace. */
enum rdt_status object_prepare_id(struct object *object, struct rdt_error *err);

/* The object has just become live: tells its waiters. If KEY_TAKES, fetches of the id lead to it from now on, and the object
 * that had the id is freed, as by its producer. If it has lost its key meanwhile, it is freed itself: it may be gone afterwards
 * unless the caller holds it. */
void object_take_id(struct object *object);

/* For an object of an earlier daemon that was put again: it has lost its id, or takes it when it is live. */
void object_leave_id(struct object *object, bool takes_it_again);

/* Makes a pending object live, as object_fill does: the bytes have been written to where its layout says. */
void object_ready(struct object *object);

/* Gives memory to an object without (object_table_adopt with no regions): its layout lies in these
 * regions, which are borrowed. Error: NO_MEMORY. */
enum rdt_status object_attach(struct object *object, struct region **regions, uint32_t n_regions, struct rdt_error *err);

/* The put of a FILLING object has failed: its waiters are told why, many of them in later turns. Does
 * nothing in other states. */
void object_fail(struct object *object, const struct rdt_error *why);

/* Returns FREED or OWNER_DIED, with a sentence about the object of that id. */
enum rdt_status object_error_ended(enum object_end end, const char *id, int id_bytes, struct rdt_error *err);

/* The same for an object that is draining or gone. */
enum rdt_status object_why_ended(const struct object *object, struct rdt_error *err);

const char *object_state_name(const struct object *object);

/* Whether the regions may be shown to the requester as a whole: the object is not in the arena, which is
 * never shared; and all its regions belong to the requester's owner, or its tensors cover every byte of
 * them. If not, *why_not_p says why. */
bool object_may_show(struct object *object, const struct owner *requester, const char **why_not_p);

/* Whether the object survives this process: it is live, can be found, and is detached, published, in transit, or held by a
 * producer whose session survives. Objects that readers hold survive, too, if the readers' sessions do (client.h). */
bool object_lasts(const struct object *object);
void object_lasting_changed(struct object *object); /* tells table->lasting, if there is such an object */

/* The following are for object_table.c. */
/* what a live object is charged: [USAGE_COUNT] */
void object_charges(const struct object *object, uint64_t *want);
void object_set_state(struct object *object, enum object_state state);
/* created if there are none; NULL: out of memory */
struct object_users *object_users_get(struct object *object);
void object_users_settle(struct object *object); /* frees it if there are neither holders nor waiters */

#endif
