/* Who has what: one account for each owner that has anything here, interned, counted, and gone with the last who refers to it. Objects,
 * regions, clients, requests and transfers point to their owner's account instead of carrying the owner.
 *
 * Loop thread only.
 */
#ifndef DAEMON_ACCOUNT_H
#define DAEMON_ACCOUNT_H

#include "daemon/map.h"
#include "daemon/owner.h"

/* What is limited, counted for an owner as long as it lasts: whoever makes one charges it, whoever ends it gives it back. */
struct usage {
    uint64_t bytes;     /* of memory that the daemon allocated for it: regions, and small objects in its arena */
    uint64_t objects;   /* put and not gone */
    uint64_t regions;   /* allocated, imported or received */
    uint64_t fds;       /* that it handed to the daemon */
    uint64_t transfers; /* of its clients, and for it from other nodes, under way */
    uint64_t waiters;   /* for a put or an end */
    uint64_t names;     /* published */
};

struct accounts {
    struct map by_owner; /* key -> struct account */
};

struct account {
    struct owner owner;
    uint8_t key[4 + sizeof((struct owner *)0)->tenant];
    uint32_t refs;
    struct accounts *accounts; /* NULL: in no table, the one who made it frees it */
    struct usage used;
};

void accounts_init(struct accounts *accounts);
void accounts_fini(struct accounts *accounts);

/* The owner's, with a reference for the caller. NULL: no memory. */
struct account *account_get(struct accounts *accounts, const struct owner *owner);

struct account *account_ref(struct account *account); /* returns it */
void account_unref(struct account *account);          /* NULL is fine */

#endif
