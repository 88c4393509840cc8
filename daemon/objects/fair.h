/* SPDX-License-Identifier: Apache-2.0 */
/* A bounded list of what the daemon remembers for persons, the oldest first. When it is full, one who adds to it and has
 * more in it than the person of the oldest entry loses an entry of its own. So one person alone may have all of the list, and
 * cannot push out the others.
 *
 * Loop thread only.
 */
#ifndef DAEMON_FAIR_H
#define DAEMON_FAIR_H

#include "daemon/base/map.h"
#include "daemon/base/owner.h"
#include "proto/list.h"

struct fair_owner { /* private: exists while it has entries */
    struct list entries;
    unsigned n;
    uint8_t key_bytes;
    uint8_t key[4 + sizeof((struct owner *)0)->tenant];
};

struct fair_entry { /* embedded by its user */
    struct list link, by_owner;
    struct fair_owner *owner; /* NULL: it is in no list */
};

struct fair {
    struct list entries;
    struct map owners;        /* owner_key -> struct fair_owner */
    struct fair_owner common; /* for entries of owners for which there was no memory */
    unsigned n, max;
};

void fair_init(struct fair *fair, unsigned max);
void fair_fini(struct fair *fair); /* the list is empty */

/* Adds the entry, which is in no list. owner: that of the account of the person (account_person). Returns the entry that the
 * list has lost for it, or NULL. */
struct fair_entry *fair_add(struct fair *fair, struct fair_entry *entry, const struct owner *owner);

void fair_remove(struct fair *fair, struct fair_entry *entry); /* does nothing if it is in no list */

#endif
