/* Holds in transit: a process has sent a ref to another process and may let go before the other one holds the object itself. Such a hold
 * belongs to no session and ends by itself.
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
 * An object has one such hold at most, with a count of the refs that are on their way. It ends when all of them have arrived, or when
 * the latest one's time is over. Few objects have one: it is found by the object's generation.
 */
#ifndef DAEMON_TRANSIT_H
#define DAEMON_TRANSIT_H

#include "daemon/objects/object_table.h"

/* One more ref of the object is on its way, for ttl_ns at most. The object is filling or live. false: no memory, and nothing has changed. */
bool transit_begin(struct object *object, int64_t ttl_ns);

/* One ref has arrived. Nothing if none was on its way. The caller holds the object. */
void transit_arrived(struct object *object);

/* The object was freed by force. Nothing if it has no hold in transit. The caller holds the object. */
void transit_end(struct object *object);

/* Ends all of them: the daemon stops. */
void transit_end_all(struct object_table *table);

/* How many refs are on their way; *left_ns_p: how much longer the hold lasts at most. */
unsigned transit_count(const struct object *object, int64_t *left_ns_p);

#endif
