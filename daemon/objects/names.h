/* SPDX-License-Identifier: Apache-2.0 */
/* Published names. A name belongs to an owner and leads to its newest version, which is an object.
 *
 * A name holds the object of its newest version only, so the memory that a name keeps is bounded by that
 * object and by those that readers still hold. It belongs to its owner and stays until it is unpublished,
 * unless its last publish limits it: with a lease the name ends with the session that published it, and with
 * a time to live it ends when nothing newer is published in that time. Versions grow by one; a new name begins with 1, or
 * above what is remembered of ended ones: a version number is never used twice while the daemon runs.
 *
 * Everything here runs on the loop thread. */
#ifndef DAEMON_NAMES_H
#define DAEMON_NAMES_H

#include "daemon/base/account.h"
#include "daemon/base/deadline.h"
#include "daemon/base/index.h"
#include "daemon/base/map.h"
#include "daemon/base/slices.h"
#include "daemon/objects/fair.h"
#include "daemon/objects/object_table.h"
#include "proto/list.h"

struct name;

/* Is called when a name has a new version, has lost its object, or has ended. The caller owns the memory, which is in the list
 * names->observers from list_append to list_remove. The callback does not change the list. */
struct names_observer {
    struct list link;
    void (*on_change)(void *arg, struct name *name);
    void *arg;
};

struct names {
    const struct events *events;   /* NULL: no client watches events */
    const struct lasting *lasting; /* NULL: nobody records names */
    struct list observers;         /* struct names_observer.link */
    struct accounts *accounts;
    struct deadlines *deadlines;
    struct map by_key;      /* owner_key -> struct name: published, awaited, or remembered */
    struct map by_object;   /* generation of an object -> struct name_carrier: the names that hold it */
    struct index published; /* number -> struct name: the published ones */
    struct fair remembered; /* struct name.remembered: unpublished names, whose versions are remembered */
    struct list waking;     /* struct name.by_waking: names with something in `due` or `endings` */
    struct slice wake;
    uint64_t begun_ns;    /* names of an earlier daemon count as published then */
    uint64_t next_number; /* names are numbered in the order of their first publication */
    /* The highest version of a name that is no longer remembered. New names start above it. */
    uint64_t forgotten;
};

struct client;
struct name_carrier;

/* Why nothing is published under a name any more. */
enum name_end { NAME_UNPUBLISHED, NAME_PUBLISHER_GONE, NAME_EXPIRED };

struct name {
    struct fair_entry remembered;
    struct names *names;
    struct account *account; /* of its owner; one reference */
    uint64_t number;
    uint64_t version;  /* the newest one; 0: none was published yet */
    uint64_t floor;    /* the next one is above it, too; 0: see names_set_floor */
    uint64_t since_ns; /* when that version was published */
    /* The object of that version, with a hold. NULL: it was freed by force, or the name is not published. */
    struct object *object;
    struct name_carrier *carrier;
    struct list by_carrier;
    struct list waiters; /* struct name_waiter.link: they wait for a version that does not exist yet */
    struct list due;     /* struct name_waiter.link: they may wait for that version, until a slice has looked at them */
    struct list endings; /* struct name_ending.link */
    struct list by_waking;
    unsigned n_waiters;             /* in these three lists */
    Rdt__Pb__Visibility visibility; /* valid while the name is published */
    struct client *publisher;       /* the client whose session is the lease; NULL: there is no lease */
    struct list by_publisher;       /* in publisher->leases */
    struct deadline expiry;         /* set while the name is published with a time to live */
    int64_t ttl_ns;                 /* of its last publish; 0: none */
    void *record;                   /* of lasting; NULL: it has none */
    uint64_t session, request;      /* that published this version; 0: unknown */
    uint8_t repeat[REPEAT_BYTES];   /* of another node's session that published this version; all 0: of this node's */
    enum name_end end;              /* valid if the name was published and is not any more */
    bool published;
    bool busy;         /* its waiters are being notified, so it must not be freed */
    uint8_t key_bytes; /* the owner_key, which is the key in by_key */
    uint8_t id_bytes;  /* of the name, which is the end of the key */
    uint8_t key[];
};

static inline const uint8_t *name_id(const struct name *name)
{
    return name->key + name->key_bytes - name->id_bytes;
}

/* Waits for a version above `after`. */
struct name_waiter {
    struct list link;
    struct name *name;             /* NULL: the waiter is not waiting */
    const struct owner *requester; /* the owner on whose behalf it waits; must live as long as the waiter waits */
    uint64_t after;
    /* Is called once, after the waiter was removed. object: of the newest version, which the requester may
     * see. NULL: err says why there will be none (FREED, OWNER_DIED, SHUTTING_DOWN). */
    void (*on_event)(struct name_waiter *, struct object *object, uint64_t version, const struct rdt_error *err);
};

void names_init(struct names *names, struct accounts *accounts, struct deadlines *deadlines);

/* For the end of the daemon: drops every object and fails all waiters with SHUTTING_DOWN. Nothing may be
 * published afterwards. */
void names_clear(struct names *names);
void names_fini(struct names *names);

/* The published name with the least number above that one; NULL: there is none. Numbers are never used twice. */
struct name *names_next(const struct names *names, uint64_t after);

struct name_publish {
    const uint8_t *id; /* [id_bytes] */
    size_t id_bytes;
    struct object *object; /* must be live */
    Rdt__Pb__Visibility visibility;
    struct client *lease;      /* the name ends with this client; NULL: it does not */
    int64_t ttl_ns;            /* the name ends after that time, unless it is published again; 0: it does not */
    uint64_t session, request; /* of the client and its PUBLISH */
    const uint8_t *repeat;     /* [REPEAT_BYTES]: of the PUBLISH of another node's session; NULL: none */
};

/* The version that this PUBLISH of another node's session has published already, if it is still the newest one; 0: none. */
uint64_t names_repeated(const struct names *names, const struct name_publish *publish);

/* Makes the object the next version of its owner's name. Some waiters are notified before the call
 * returns, the others soon after. Errors: INVALID (the visibility differs from that of the published name,
 * or is wider than the object's), LIMIT, NO_MEMORY. */
enum rdt_status names_publish(struct names *names, const struct name_publish *publish, uint64_t *version_p,
                              struct rdt_error *err);

/* The same for all of them [n], whose objects have one owner and whose names differ, inside this call: no event of the loop
 * finds only some of them. An error changes nothing, and names the publish by its number; but out of memory some may have been
 * published, and err says so. */
enum rdt_status names_publish_all(struct names *names, const struct name_publish *publishes, size_t n, uint64_t *versions_p,
                                  struct rdt_error *err);

/* The number that the next version of the owner's name will have. */
uint64_t names_next_version(const struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes);

/* Whether the object is that of the newest version of the owner's name, whatever other names have it. */
bool names_lead_to(const struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                   const struct object *object);

/* Restores a name that an earlier daemon had, with its version. The name is borrowed. */
enum rdt_status names_restore(struct names *names, const struct name_publish *publish, uint64_t version, struct name **name_p,
                              struct rdt_error *err);

/* The next version of the name must be above `version`, which another node has published. */
void names_set_floor(struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes, uint64_t version);

/* Whether the name survives this process: it is published, has an object, and is not the lease of a session that ends
 * before. */
bool name_lasts(const struct name *name);

/* Ends the names whose lease is the session of the client, which has ended. false: until_ns has passed; call again. */
bool names_client_gone(struct client *client, uint64_t until_ns);

/* Drops the name's object. Waiters that may see the name get FREED. age_ns not 0: does nothing if the name was published less
 * than that ago. Errors: NOT_FOUND; DENIED unless the requester is the name's owner or an administrator. */
enum rdt_status names_unpublish(struct names *names, const struct rdt_ref *ref, const struct owner *requester, bool admin,
                                int64_t age_ns, struct rdt_error *err);

/* Finds the newest version above ref->after. The object is borrowed. AGAIN: there is none yet, or the
 * requester may not see the name. To such a requester the name does not exist, and a wait continues until
 * there is a version that the requester may see. FREED, OWNER_DIED: the name has ended, and ref->after asks
 * for a version after its last one. */
enum rdt_status names_find(struct names *names, const struct rdt_ref *ref, const struct owner *requester,
                           struct object **object_p, uint64_t *version_p, struct rdt_error *err);

/* Only after names_find returned AGAIN. The waiter and the requester are borrowed until the event or
 * name_waiter_remove. Errors: NO_MEMORY, LIMIT. */
enum rdt_status names_wait(struct names *names, const struct rdt_ref *ref, const struct owner *requester,
                           struct name_waiter *waiter, struct rdt_error *err);
void name_waiter_remove(struct name_waiter *waiter); /* cancels a wait; does nothing if it does not wait */

/* The object was freed by force: its names drop it, and their waiters wait for the next version. false: until_ns has passed;
 * call again. */
bool names_object_freed(struct names *names, const struct object *object, uint64_t until_ns);

/* Writes a hint for the error of a wait that has timed out, for a name or an object of this owner and id: there is
 * such a name of another user that the requester may see, or an object where a name was requested, or a name where
 * an object was requested. text is "" if there is no hint. */
void names_explain_name(struct names *names, struct object_table *objects, const struct owner *owner, const uint8_t *id,
                        size_t id_bytes, const struct owner *requester, char *text, size_t size);
void names_explain_object(struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                          const struct owner *requester, char *text, size_t size);

/* Iterates over the names that hold the object. *cursor starts as NULL; returns NULL at the end. */
const struct name *names_of_object(const struct names *names, const struct object *object, struct list **cursor);
uint32_t names_n_of_object(const struct names *names, const struct object *object);

bool name_visible_to(const struct name *name, const struct owner *requester);

#endif
