/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of names share: names.c (names and versions) and names_explain.c (why a wait was in vain), above names_wait.c
 * (notifying waiters), above names_entry.c (the entries of the table). */
#ifndef DAEMON_OBJECTS_NAMES_IMPL_H
#define DAEMON_OBJECTS_NAMES_IMPL_H

#include "daemon/objects/names.h"

/* NULL: there is none. Ends a name first whose lease belongs to a client that has ended. */
struct name *name_find(const struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes);

/* ---- names_entry.c ---- */

void name_free(struct name *name); /* It has no waiters, and is not published. */

/* Frees a name that is not published and that nobody waits for, or remembers it for its version. */
void name_settle(struct name *name);

/* A remembered name is published or awaited again. */
void name_recall(struct name *name);

/* ---- names_wait.c ---- */

/* The name has a new version. Notifies the first of those who wait for it and may see it; the others are notified in turns of
 * the loop, so that it is not blocked. The name may be gone afterwards. */
void name_notify(struct name *name);
void names_on_wake(struct deadline *deadline); /* of names->wake */

/* Fails every waiter, those who are to be notified included. all: even those who may not see the name. */
void name_fail_waiters(struct name *name, bool all, const struct rdt_error *err);

#endif
