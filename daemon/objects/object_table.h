/* SPDX-License-Identifier: Apache-2.0 */
/* Every object of this node, by key and by generation; the awaited ones; and why recent objects ended. */
#ifndef DAEMON_OBJECT_TABLE_H
#define DAEMON_OBJECT_TABLE_H

#include "daemon/base/deadline.h"
#include "daemon/base/ids.h"
#include "daemon/base/index.h"
#include "daemon/base/map.h"
#include "daemon/base/node.h"
#include "daemon/objects/cache.h"
#include "daemon/objects/fair.h"
#include "daemon/objects/lasting.h"
#include "daemon/objects/object.h"

#define TOMBSTONES 8192
#define OBJECT_TRANSPORTS 64u

struct tombstone { /* why an object ended */
    struct fair_entry entry;
    uint64_t generation;
    enum object_end end;
};

/* Of objects with object->file.stored. */
struct object_files {
    const char *dir; /* NULL: there are none */
    /* Begins to check the bytes of a stored object, unless that is under way, and later calls object_checked. AGAIN: they are
     * being checked; DAMAGED, SYSTEM, NO_MEMORY: nobody may use them. Only for objects that are `unchecked`. */
    enum rdt_status (*check)(void *arg, struct object *object, struct rdt_error *err);
    void *check_arg;
};

struct object_table {
    const struct events *events;   /* NULL: no client watches events */
    const struct lasting *lasting; /* NULL: nothing is recorded */
    const struct node *node;
    struct accounts *accounts;
    struct slabs *slabs;
    struct map by_name;         /* key (owner and id) -> awaited, filling or live object */
    struct index by_generation; /* filling, live and draining objects */
    /* Of new objects. All are below 2^63. The upper 23 bits are random for each start, so that a ref of an earlier start never
     * matches. */
    struct ids generations;
    uint64_t first_generation; /* no object of this start has a lower one */
    /* The first generation of the first daemon whose objects this one restored. An object with a generation from there on that
     * is not in the table has ended. */
    uint64_t oldest_generation;
    uint64_t max_objects;
    const char *transports[OBJECT_TRANSPORTS]; /* those that objects have preferred; the first is "": none */
    struct map detached;                       /* generation -> struct detached */
    struct left_walk {                         /* ends objects whose memory does not fit any more (objects_end_without_room) */
        struct slice slice;
        uint64_t next; /* the generation from which it looks further */
        bool again;    /* from the beginning, when it has ended */
    } left_walk;
    struct map transit;   /* generation -> struct transit */
    struct map summing;   /* generation -> struct summing: snapshots whose checksums are being computed (object_sum.c) */
    struct list notifies; /* struct object_notify.link: waiters that have not been told of a failure yet */
    /* set by the owner of the table; used for detached objects, holds in transit and notifications */
    struct deadlines *deadlines;
    struct fair ended;   /* struct tombstone.entry: the last objects that ended in another way than by a free */
    struct map by_ended; /* generation -> struct tombstone */
    /* When an object is freed by force, drop_holds takes its names from it, and drops the holds of clients here and on other
     * nodes for later readers. It returns false if until_ns has passed: it is called again. NULL: there are none. */
    bool (*drop_holds)(void *arg, struct object *object, uint64_t until_ns);
    void *arg;
    struct list forced; /* struct object_forced.link: of these objects not all such holds have been dropped yet */
    /* Is called when an object of this node that could be fetched no longer can. NULL: nobody is told. */
    void (*on_ended)(void *arg, const struct object *object);
    void *on_ended_arg;
    /* Is called when another object has taken the id of one that somebody still holds. NULL: nobody is told. */
    void (*on_lost_id)(void *arg, const struct object *object);
    /* Is called with the `record` of an adopted object, if it has one, when a hold or a pin begins or ends. */
    void (*on_adopted)(void *record);
    struct cache cache; /* the EVICTABLE objects */
    struct object_files files;
};

void object_table_init(struct object_table *table, const struct node *node, struct accounts *accounts, struct slabs *slabs,
                       uint64_t max_objects);
void object_table_fini(struct object_table *table);

enum object_id_use { ID_MUST_BE_FREE, ID_IS_TAKEN /* from the object that has it, if there is one (object_take_id) */ };

/* ALLOWED: the object outlives its session until it is evicted (cache.h). */
enum object_eviction { EVICTION_NEVER, EVICTION_ALLOWED };

/* Puts an object. It becomes live, or filling if put->promise or put->pending says so. On success the
 * table takes the layout and one reference of each region, and whoever waited for the id has been notified
 * if the object is live. id_bytes 0: the table generates an id. Errors: EXISTS, LIMIT, NO_MEMORY. */
struct object_content;
struct object_put {
    struct account *account; /* of the owner; the object takes its own reference */
    const uint8_t *id;
    size_t id_bytes;
    const uint8_t *metadata;
    size_t metadata_bytes;
    uint32_t box_bytes;      /* the last bytes of the metadata are a packed Boxes, which the caller has checked */
    struct layout *layout;   /* taken on success, unless the content is `borrowed` */
    struct region **regions; /* [n_regions] borrowed */
    uint32_t n_regions;
    const uint8_t *inline_data; /* bytes of the tensors whose region index is n_regions; copied */
    size_t inline_bytes;        /* at most SLAB_MAX_BYTES; the caller has checked that the tensors lie within them */
    Rdt__Pb__Visibility visibility;
    const char *transport; /* borrowed for good: a name that a plug-in owns, or "" */
    struct client *producer;
    /* DETACHED: how long the object stays after its producer's session has ended; 0: it ends with the
     * session */
    int64_t ttl_ns;
    enum object_eviction eviction; /* ALLOWED: the account is of its owner */
    uint32_t priority;             /* ALLOWED: at most RDT_PRIORITY_MOST */
    uint64_t generation;           /* of an object that an earlier daemon had; 0: the next one */
    bool pending;                  /* the object is FILLING until object_ready, or until it becomes a snapshot */
    /* With a promise the object is FILLING, over the memory that is copied, until object_fill or object_fail; */
    enum object_promise promise;
    bool kept;   /* or the promise is kept already, and the object is live at once */
    bool loaned; /* see object->changes.loaned */
    enum object_id_use id_use;
    uint64_t request_id;   /* of a client whose session lasts, for its record; 0: there is none */
    const uint32_t *loans; /* [n_loans] indices of the regions that are loaned */
    size_t n_loans;
    uint64_t sum;                   /* its checksum, from the client; 0: none */
    struct object_content *content; /* the result of object_content_init for this put; NULL: the put computes it */
};
enum rdt_status object_table_put(struct object_table *table, const struct object_put *put, struct object **object_p,
                                 struct rdt_error *err);

static inline const char *object_transport(const struct object *object) /* "": it prefers none */
{
    return object->table->transports[object->transport];
}

/* What flags of enum rdt_put_flags promise. */
enum object_promise object_promise_of(uint32_t flags);

/* Whether the object waits for object_fill, beside what `pending` says. */
bool object_put_copies(const struct object_put *put, const struct object *object);

/* The table, which is empty, continues that of an earlier daemon, whose own generations began with `earlier`, and those of all
 * that it continued with `oldest`. Objects with generations from `least` on can be put again. */
void object_table_continue(struct object_table *table, uint64_t oldest, uint64_t earlier, uint64_t least);

/* The next generation for an object of that owner; the account is of the owner or one of its clients. */
uint64_t object_table_new_generation(struct object_table *table, struct account *account);

/* Reserves this generation for an object of an earlier daemon that will be put; no new object gets it. To be called in
 * ascending order. false: this daemon may have given it to an object already, or there is no memory. */
bool object_table_reserve(struct object_table *table, uint64_t generation);

/* The object that the owner put under this id; NULL: there is none. */
struct object *object_table_of_id(struct object_table *table, const struct owner *owner, const void *id, size_t id_bytes);

/* The object that has the id now and was put after the one of that generation, which has therefore ended. It must come from the
 * journal. NULL: the id is free, or nobody can say which of them was put later. */
const struct object *object_table_successor(struct object_table *table, const struct owner *owner, const void *id,
                                            size_t id_bytes, uint64_t generation);

/* Withdraws the put of a filling object that was refused before the client had an answer. Waiters for the
 * id keep waiting; if there is no memory for that, they get `why`. Drops the producer's hold. */
void object_table_withdraw(struct object *object, const struct rdt_error *why);

/* Creates an object for another node's object of which this node has a replica: live, in no table, with
 * one hold for the caller. It has no generation here, and no memory until object_attach. Takes the layout
 * on success. Error: NO_MEMORY. */
enum rdt_status object_table_adopt(struct object_table *table, const struct object_put *put, struct object **object_p,
                                   struct rdt_error *err);

/* Finds the object that a ref of this node means to the requester; the object is borrowed. OK: it is live.
 * AGAIN: nobody has put it yet, its put has not ended, or the ref has no generation and the requester may
 * not see the object. In the last case neither the answer nor a wait tells the requester that it exists.
 * Errors: DENIED (the ref's generation and id are those of an object that the requester may not see; with
 * another id the answer is as if the object had ended), FREED, OWNER_DIED, NOT_FOUND, INVALID. */
enum rdt_status object_table_find(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                  struct object **object_p, struct rdt_error *err);

/* The same for a look, which is no use of the object (cache.h). */
enum rdt_status object_table_exists(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                    struct rdt_error *err);

/* The same for stat and free: finds filling and draining objects, too. sees_all: the requester is an
 * administrator, to whom no object is hidden. AGAIN sets *object_p as well: to the entry of an awaited
 * object, or to NULL. */
enum rdt_status object_table_find_any(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                      bool sees_all, struct object **object_p, struct rdt_error *err);

/* The NOT_FOUND error for callers that do not wait after AGAIN: nobody has put the object, or the
 * requester may not see it. */
enum rdt_status object_table_not_put(const struct rdt_ref *ref, const struct owner *requester, struct rdt_error *err);

/* Iterates by generation: returns the live or draining object with the next generation above `after`, or
 * NULL. */
struct object *object_table_next(struct object_table *table, uint64_t after, uint64_t *generation_p);

/* Waits until there is a live object of the ref that the requester may see, or until the put of one has
 * failed. Only after object_table_find returned AGAIN. The waiter and the requester are borrowed until the
 * event or object_waiter_remove. Errors: NO_MEMORY, LIMIT. */
enum rdt_status object_table_wait(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                  struct object_waiter *waiter, struct rdt_error *err);

/* Waits until the FILLING object is live, or its put has failed, whoever may see it. false: out of memory. */
bool object_wait_live(struct object *object, struct object_waiter *waiter);

/* Whether the bytes of a live object may be used: those of a stored one are compared with their checksums first. OK: they may;
 * AGAIN: the waiter is told when they may, or why not; DAMAGED, SYSTEM, NO_MEMORY: they may not. The requester is borrowed like
 * that of object_table_wait. */
enum rdt_status object_check(struct object *object, const struct owner *requester, struct object_waiter *waiter,
                             struct rdt_error *err);

/* The check of the object has ended. why NULL: its bytes may be used from now on; otherwise its waiters are told. */
void object_checked(struct object *object, const struct rdt_error *why);

/* Waits until the object is gone. false: out of memory. */
bool object_wait_freed(struct object *object, struct object_waiter *waiter);

/* Cancels a wait before its event. Does nothing if the waiter does not wait. */
void object_waiter_remove(struct object_waiter *waiter);

/* Fills in the complete ref of an object, its address included. */
void object_ref(const struct object *object, struct rdt_ref *ref_p);

/* For object.c: tells the waiters that the object is live (why NULL), or why it never will be
 * (object_notify.c). */
void object_notify_waiters(struct object *object, const struct rdt_error *why);

/* Tells all remaining waiters of their failure now. */
void object_notifies_end(struct object_table *table);

/* Frees by force, in slices, the objects without a producer in imported memory that does not fit any more (region_left).
 * table: struct object_table. */
void objects_end_without_room(void *table);

/* Drops all remaining holds of objects that were freed by force now. */
void object_forced_end(struct object_table *table);

#endif
