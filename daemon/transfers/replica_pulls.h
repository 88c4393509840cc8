/* SPDX-License-Identifier: Apache-2.0 */
/* Private to replica.c: the lists of what other nodes pull from a replica, which a node can make as long as it likes. */
#ifndef DAEMON_REPLICA_PULLS_H
#define DAEMON_REPLICA_PULLS_H

#include <string.h>

#include "daemon/transfers/replica.h"

static inline void replica_key(const uint8_t node[16], uint64_t generation, uint8_t key[24])
{
    memcpy(key, node, 16);
    memcpy(key + 16, &generation, 8);
}

struct slices *replica_slices(const struct replicas *replicas); /* NULL: the daemon closes its transfers */

/* ---- pulls that are earlier than their replica ---- */

void replica_expected_init(struct replicas *replicas);
void replica_expected_fini(struct replicas *replicas);
bool replica_expect(struct replicas *replicas, struct serve *serve); /* false: no memory */

/* The replica exists now: moves the pulls that have waited for it to replicas->arrived. false: there are none. */
bool replica_expected_take(struct replica *replica);

/* The pull leaves its replica, or does not wait for one any more. */
void replica_leave(struct replicas *replicas, struct serve *serve);

/* ---- pulls of a replica ---- */

void replica_pulls_init(struct replica *replica); /* the caller sets pulls.tell.run */
void replica_pulls_fini(struct replica *replica); /* it has none */
void replica_pulls_join(struct replica *replica, struct serve *serve);
bool replica_has_pulls(const struct replica *replica);

/* More has arrived; it will not be complete: the slice pulls.tell tells its pulls. The replica may be gone afterwards, unless
 * the caller has a reference. */
void replica_pulls_wake(struct replica *replica);
void replica_pulls_fail(struct replica *replica);

/* For that slice, which must have a reference: works until until_ns. Returns true if nothing is left. */
bool replica_pulls_tell(struct replica *replica, uint64_t until_ns);

#endif
