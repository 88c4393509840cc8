/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of objects and their table share, the upper ones first: an object uses symbols of lower rows only.
 *
 *   object_put, object_replace, object_wait   putting objects, also in the place of others, and waiting for them
 *   object_table                              finding them
 *   object_fill                               filling, moving and freeing them
 *   object_notify, detached, transit
 *   object                                    one object, with its holds and pins
 */
#ifndef DAEMON_OBJECT_TABLE_IMPL_H
#define DAEMON_OBJECT_TABLE_IMPL_H

#include "daemon/objects/object_content.h"
#include "daemon/objects/object_table.h"

/* Creates an object, which is in no table yet. put NULL: an awaited entry. content NULL: the object stores no shapes. */
struct object *object_new(struct object_table *table, struct account *account, const uint8_t *key, size_t key_bytes,
                          size_t id_bytes, const struct object_put *put, struct object_content *content);

/* Frees an object that is in no table and that nobody refers to. */
void object_discard(struct object *object);

void object_drop_uses(struct region_use *uses, uint32_t n); /* frees them, too */

void object_set_key(struct object *object, enum object_key key);

/* Removes the object's key from the table, after a forced free or its end. */
void object_unname(struct object *object);

/* The object's put has ended. A detached object's time to live begins. */
void object_set_live(struct object *object);

void object_forget_end(struct object_table *table, struct tombstone *tombstone);

/* Reports a change as an event, except of a replica of another node's object, which is not listed here. */
void object_event(const struct object *object, const char *what);

/* NULL: there is none. These end an object whose producer has ended, if nobody else holds it, before anybody finds it. */
struct object *object_table_by_generation(struct object_table *table, uint64_t generation);
struct object *object_table_by_key(struct object_table *table, const uint8_t *key, size_t key_bytes);

/* Whether an object of this producer may be put in the place of the one that has its id. EXISTS: err says why not. */
enum rdt_status object_may_replace(const struct client *producer, const struct object *old, struct rdt_error *err);

/* The object has replaced the awaited entry in the table. Waiters that may see the object wait for it now; the others keep
 * waiting in the entry, which stays beside the object. The object has users. */
void object_take_over_waiters(struct object *object, struct object *awaited);

/* The object has its id instead of one that is still being filled: those who wait for the id, and may see the object, need not
 * wait for the other one. The object has users. */
void object_take_over_id(struct object *object, struct object *old);

#endif
