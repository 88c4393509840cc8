/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that outlive their client. A DETACHED object has the producer's hold for its time to live, which begins when the
 * object is live, whether or not the session that put it goes on; when it has passed, the object ends as if it were freed.
 *
 * Few objects are detached, so their additional data is stored here, by generation. */
#ifndef DAEMON_DETACHED_H
#define DAEMON_DETACHED_H

#include "daemon/objects/object_table.h"

/* For object_table_put. false: out of memory. */
bool detached_add(struct object_table *table, uint64_t generation, int64_t ttl_ns);
void detached_remove(struct object_table *table, uint64_t generation); /* does nothing if there is none */

/* Its time to live begins, unless it has begun before; when it has passed, on_over must free the object. false: out of memory,
 * so the object ends with its session. */
bool detached_begin(struct object *object, void (*on_over)(struct object *object));

/* The time to live that the put asked for; 0: the object is not detached. */
int64_t detached_ttl_ns(const struct object *object);

/* -1: its time to live has not begun. */
int64_t detached_left_ns(const struct object *object);

/* Frees the objects whose producers' sessions have ended. */
void detached_end_all(struct object_table *table);

#endif
