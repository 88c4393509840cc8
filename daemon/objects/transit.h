/* SPDX-License-Identifier: Apache-2.0 */
/* Holds in transit: a process has sent a ref to another process, and may release the object before the other process
 * holds it itself. A hold in transit belongs to no session and ends by itself.
 *
 *   producer            daemon                                   receiver
 *     | Hold grace_ns     | count 1, deadline set                   |
 *     |------------------>|                                         |
 *     | Free              | the hold in transit keeps the object    |
 *     |------------------>|                                         |
 *     | the ref, by a pipe or a queue                               |
 *     |------------------------------------------------------------>|
 *     |                   |                         Hold takes_over |
 *     |                   |<----------------------------------------|
 *     |                   | count 0: only the receiver holds it     |
 *
 * The producer may also be a reader of another node, which holds the object: its daemon forwards Hold, and the hold in
 * transit is here, at the object's node. So neither the reader's end nor the loss of the link ends it.
 *
 * The leases of look-ups are such holds, too. Nobody takes them over: LEASE_END ends one.
 *
 * An object has at most one such hold, with counts of the refs that are on their way and of the leases. It ends when all refs
 * have arrived and all leases have ended, or when the time of the latest one has passed. Few objects have one, so it is stored
 * by the object's generation.
 */
#ifndef DAEMON_TRANSIT_H
#define DAEMON_TRANSIT_H

#include "daemon/objects/object_table.h"

/* One more ref of the object is on its way, for ttl_ns at most. The object must be filling or live. Its owner is charged for
 * the first. NO_MEMORY, LIMIT: nothing has changed. */
enum rdt_status transit_begin(struct object *object, int64_t ttl_ns, struct rdt_error *err);

/* The mark of the request that has begun it, by which a repetition is recognised (lasting.h): [REPEAT_BYTES]; NULL: none. Only
 * the last 8 are remembered. */
void transit_mark(struct object *object, const uint8_t *mark);
bool transit_has_mark(const struct object *object, const uint8_t *mark);

/* Until when the next ref to arrive may be on its way (uv_hrtime). 0: none is. */
uint64_t transit_until(const struct object *object);

/* A ref that has arrived is on its way again, because its receiver has gone before it knew. until_ns is what transit_until
 * said; 0: does nothing. The caller must hold the object. */
void transit_returned(struct object *object, uint64_t until_ns);

/* One ref has arrived. Does nothing if none was on its way. The caller must hold the object. */
void transit_arrived(struct object *object);

/* The same for a lease. */
enum rdt_status transit_lease(struct object *object, int64_t ttl_ns, struct rdt_error *err);
void transit_lease_ended(struct object *object);

/* Begins so many at once, as an earlier daemon had them; without memory none. */
void transit_restore(struct object *object, uint32_t count, uint32_t leases, int64_t ttl_ns);

/* The object was freed by force. Does nothing if it has no hold in transit. The caller must hold the
 * object. */
void transit_end(struct object *object);

/* Ends all holds in transit, at the end of the daemon. */
void transit_end_all(struct object_table *table);

/* The number of refs on their way and leases together. *leases_p: the leases. *left_ns_p: the time after which the hold ends at
 * the latest. */
unsigned transit_count(const struct object *object, unsigned *leases_p, int64_t *left_ns_p);

#endif
