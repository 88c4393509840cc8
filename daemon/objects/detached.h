/* Objects that outlive their client: DETACHED ones stay for a time to live, counted from the end of the session that put them. The
 * producer's hold stands meanwhile; when the time is over it goes as by a free.
 *
 * Few objects are detached: what they need beside struct object is kept here, by generation.
 */
#ifndef DAEMON_DETACHED_H
#define DAEMON_DETACHED_H

#include "daemon/objects/object_table.h"

/* For object_table_put: remembers it. false: no memory. */
bool detached_add(struct object_table *table, uint64_t generation, int64_t ttl_ns);
void detached_remove(struct object_table *table, uint64_t generation); /* nothing if there is none */

/* The client that put the object is gone: the time begins to run. false: no memory, it cannot stay. */
bool detached_begin(struct object *object);

/* -1: its client lives. */
int64_t detached_left_ns(const struct object *object);

/* Those whose clients are gone go now. */
void detached_end_all(struct object_table *table);

#endif
