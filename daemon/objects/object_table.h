/* Every object of this node, by name and by generation; those that are awaited; and the memory of why recent ones ended. */
#ifndef DAEMON_OBJECT_TABLE_H
#define DAEMON_OBJECT_TABLE_H

#include "daemon/base/deadline.h"
#include "daemon/base/index.h"
#include "daemon/base/map.h"
#include "daemon/base/node.h"
#include "daemon/objects/object.h"

#define TOMBSTONES 4096

struct object_table {
    const struct events *events; /* NULL: nobody watches */
    const struct node *node;
    struct accounts *accounts;
    struct slabs *slabs;
    struct map by_name;         /* key -> awaited or live object */
    struct index by_generation; /* live and draining */
    uint64_t next_generation;   /* below 2^63; its upper bits are random per boot: a ref of an earlier boot never hits */
    uint64_t first_generation;
    uint64_t max_objects;
    struct map detached;             /* generation -> struct detached */
    struct map transit;              /* generation -> struct transit */
    struct list notifies;            /* struct object_notify.link: failures that some have not heard of yet */
    struct deadlines *deadlines;     /* set by the owner of the table: for detached objects and tellings */
    struct tombstones {              /* a ring: the generations of the latest objects that ended so */
        uint64_t generation[TOMBSTONES];
        unsigned next;
    } dropped, owner_died;
    void (*on_forced)(void *arg,
                      struct object *object); /* freed by force: who holds it for later readers lets go. NULL: nobody */
    void *arg;
    /* Told when an object of this node can be fetched no more, unless it never could; NULL: nobody. */
    void (*on_ended)(void *arg, const struct object *object);
    void *on_ended_arg;
};

void object_table_init(struct object_table *table, const struct node *node, struct accounts *accounts, struct slabs *slabs,
                       uint64_t max_objects);
void object_table_fini(struct object_table *table);

/* A new object, live unless it is to be a snapshot; takes the layout and, on success, one reference of each region (uses filled by
 * the table from regions). Whoever waited for the id is told before it returns, if it is live. EXISTS, LIMIT, NO_MEMORY. id_bytes 0: generated. */
struct object_parts;
struct object_put {
    struct account *account; /* the owner's: the object takes a reference of its own */
    const uint8_t *id;
    size_t id_bytes;
    const uint8_t *metadata;
    size_t metadata_bytes;
    struct layout *layout;   /* taken on success */
    struct region **regions; /* [n_regions] borrowed */
    uint32_t n_regions;
    const uint8_t *inline_data; /* copied: the bytes of the tensors whose region is n_regions */
    size_t inline_bytes;        /* up to SLAB_MAX_BYTES; they lie in there, as the caller has checked */
    Rdt__Pb__Visibility visibility;
    const char *transport; /* borrowed for good: a plug-in's own name, or "" */
    struct client *producer;
    int64_t ttl_ns; /* DETACHED: how long it stays after its producer's end; 0: it goes with it */
    bool pending;   /* it is FILLING until object_ready, or becomes a snapshot then */
    bool snapshot;  /* it is FILLING, over the memory to be copied, until object_fill or object_fail */
    bool sealed;    /* a snapshot whose regions nobody writes any more: it is live at once */
    bool lent;      /* object->lent */
    struct object_parts *parts; /* object_parts_make of this put; NULL: they are made in the put */
};
enum rdt_status object_table_put(struct object_table *table, const struct object_put *put, struct object **object_p,
                                 struct rdt_error *err);

/* Undoes the put of a filling object that was refused at once: who waited for the id goes on waiting, or hears why if there is no
 * memory for that. Drops the producer's hold. */
void object_table_withdraw(struct object *object, const struct rdt_error *why);

/* An object in no table, live, with one hold for the caller: what this node has of another node's. It has no generation here,
 * and no memory until object_attach. Takes the layout on success. NO_MEMORY. */
enum rdt_status object_table_adopt(struct object_table *table, const struct object_put *put, struct object **object_p,
                                   struct rdt_error *err);

/* The object that a ref of this node means to the requester. RDT_OK: live. RDT_AGAIN: nobody has put it yet, or its put has not ended.
 * FREED, OWNER_DIED, NOT_FOUND, DENIED, INVALID. */
enum rdt_status object_table_find(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                  struct object **object_p, struct rdt_error *err);

/* The same without the access rule, filling and draining ones included: for stat and free by those who may. */
enum rdt_status object_table_find_any(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                      struct object **object_p, struct rdt_error *err);

/* The live or draining object of the next generation above `after`. NULL: there is none. */
struct object *object_table_next(struct object_table *table, uint64_t after, uint64_t *generation_p);

/* Parks until the ref's object is live, or its put has failed. Only after object_table_find said AGAIN. NO_MEMORY, LIMIT. */
enum rdt_status object_table_wait(struct object_table *table, const struct rdt_ref *ref, const struct owner *requester,
                                  struct object_waiter *waiter, struct rdt_error *err);

/* Waits for the object to be gone. false: no memory. */
bool object_wait_freed(struct object *object, struct object_waiter *waiter);

/* Before its event: stops waiting. Nothing if it is not waiting. */
void object_waiter_remove(struct object_waiter *waiter);

/* The ref of an object, complete with address. */
void object_ref(const struct object *object, struct rdt_ref *ref_p);

/* For object.c: those who waited for it to be live hear that it is, or in some turns why it never will be (object_notify.c). */
void object_tell_waiters(struct object *object, const struct rdt_error *why);

/* Whoever is still to hear of a failure hears of it now. */
void object_notifies_end(struct object_table *table);

/* For object.c: it is gone (or freed by force): out of the tables. */
void object_table_unname(struct object_table *table, struct object *object);
void object_table_forget(struct object_table *table, struct object *object);

#endif
