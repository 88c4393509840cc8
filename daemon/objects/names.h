/* Published names: (owner, name) to a version and the object that is it, and those who wait for the next one.
 *
 * A name holds the object of its newest version and of no other: memory is bounded by that one and by what readers still hold. It belongs
 * to its owner, not to the session that published, and stays until it is unpublished. Versions count from 1 and are not given twice while
 * the daemon lives, also not after an unpublish.
 *
 * Loop thread only.
 */
#ifndef DAEMON_NAMES_H
#define DAEMON_NAMES_H

#include "daemon/base/account.h"
#include "daemon/base/deadline.h"
#include "daemon/base/list.h"
#include "daemon/base/map.h"
#include "daemon/objects/object_table.h"

struct names {
    const struct events *events; /* NULL: nobody watches */
    struct accounts *accounts;
    struct deadlines *deadlines;
    struct map by_key;      /* owner and name -> struct name: published, waited for, or remembered */
    struct map by_object;   /* generation -> struct name_carrier: the names that hold an object */
    struct list published;  /* struct name.link, in order of number */
    struct list remembered; /* struct name.link: unpublished, kept for their version only; oldest first */
    struct list waking;     /* struct name.by_waking: some that wait for them are still to be told */
    struct deadline wake;   /* the next turn of that */
    uint64_t next_number;   /* names in the order in which they were first published */
    uint64_t forgotten;     /* the highest version of a name that is no longer remembered: new names start above it */
    unsigned n_remembered;  /* in that list */
    uint32_t max_per_owner; /* names published at one time */
    uint64_t max_names;     /* all of them, awaited ones included */
};

struct name_carrier;

struct name {
    struct list link; /* in published or remembered; neither while it is only waited for */
    struct names *names;
    struct account *account; /* its owner's: a reference */
    uint64_t number;
    uint64_t version;      /* the newest one; 0: none yet */
    uint64_t since_ns;     /* when that was published */
    struct object *object; /* of that version: a hold; NULL: it was freed by force, or nothing is published */
    struct name_carrier *carrier;
    struct list by_carrier;
    struct list waiters; /* struct name_waiter.link: for a version that is not there yet */
    struct list due;     /* struct name_waiter.link: it is there, they are told in turns */
    struct list by_waking;
    unsigned n_waiters;             /* in both */
    Rdt__Pb__Visibility visibility; /* while published */
    bool published;
    bool busy;         /* its waiters are being told: it is not freed */
    uint8_t key_bytes; /* owner and name, as the map's key */
    uint8_t id_bytes;  /* the last of the key */
    uint8_t key[];
};

static inline const uint8_t *name_id(const struct name *name)
{
    return name->key + name->key_bytes - name->id_bytes;
}

/* Somebody who waits for a version above `after`. */
struct name_waiter {
    struct list link;
    struct name *name;             /* NULL: it does not wait */
    const struct owner *requester; /* of whoever waits, and lives as long */
    uint64_t after;
    /* Called once, removed before. object: of the newest version; NULL: err says why not (FREED, DENIED, SHUTTING_DOWN). */
    void (*on_event)(struct name_waiter *, struct object *object, uint64_t version, const struct rdt_error *err);
};

void names_init(struct names *names, struct accounts *accounts, struct deadlines *deadlines, uint32_t max_per_owner,
                uint64_t max_names);

/* The daemon stops: lets go of every object; those who wait get SHUTTING_DOWN. Nothing is published afterwards. */
void names_clear(struct names *names);
void names_fini(struct names *names);

/* Makes the live object the next version of its owner's name. Some of those who wait are told before it returns, the others soon.
 * INVALID (its visibility is another than before, or wider than the object's), LIMIT, NO_MEMORY. */
enum rdt_status names_publish(struct names *names, const uint8_t *id, size_t id_bytes, struct object *object,
                              Rdt__Pb__Visibility visibility, uint64_t *version_p, struct rdt_error *err);

/* Lets go of its object; those who wait get FREED. NOT_FOUND; DENIED unless the requester is its owner or an admin. */
enum rdt_status names_unpublish(struct names *names, const struct rdt_ref *ref, const struct owner *requester, bool admin,
                                struct rdt_error *err);

/* The newest version above ref->after. AGAIN: there is none yet. DENIED. FREED: a later one than any that was published before the name
 * was unpublished. */
enum rdt_status names_find(struct names *names, const struct rdt_ref *ref, const struct owner *requester,
                           struct object **object_p, uint64_t *version_p, struct rdt_error *err);

/* Only after names_find said AGAIN. NO_MEMORY, LIMIT. */
enum rdt_status names_wait(struct names *names, const struct rdt_ref *ref, const struct owner *requester,
                           struct name_waiter *waiter, struct rdt_error *err);
void name_waiter_remove(struct name_waiter *waiter); /* before its event; nothing if it does not wait */

/* The object was freed by force: no name holds it any more, and the next version is waited for. */
void names_object_freed(struct names *names, const struct object *object);

/* The names that hold the object, one after the other; *cursor starts NULL; NULL at the end. */
const struct name *names_of_object(const struct names *names, const struct object *object, struct list **cursor);

bool name_visible_to(const struct name *name, const struct owner *requester);

#endif
