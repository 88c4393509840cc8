/* SPDX-License-Identifier: Apache-2.0 */
/* An open-addressing hash table from byte strings or numbers to pointers. Byte-string keys are borrowed,
 * so they must live in the value. The table grows gradually: each put moves a few entries, so no call
 * takes long. Not thread-safe. */
#ifndef DAEMON_MAP_H
#define DAEMON_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_slot;

struct map {
    struct map_slot *slots;
    size_t n_slots, used, removed; /* used: entries in both tables */
    struct map_slot *old;          /* the previous table, whose entries are moving over; NULL: none */
    size_t n_old, moved;
    uint64_t seed; /* random, because clients choose ids */
};

void map_init(struct map *map);
void map_fini(struct map *map); /* the values belong to the caller */

size_t map_count(const struct map *map);

/* Return NULL if there is no such key. */
void *map_get(const struct map *map, const void *key, size_t key_bytes);
void *map_get_u64(const struct map *map, uint64_t key);

/* false: out of memory. The key must not be in the table (asserted). */
bool map_put(struct map *map, const void *key, size_t key_bytes, void *value);
bool map_put_u64(struct map *map, uint64_t key, void *value);

/* Replaces value and key pointer of a key that is in the table (asserted). Needs no memory. */
void map_replace(struct map *map, const void *key, size_t key_bytes, void *value);

/* Return the value, or NULL if there was none. */
void *map_remove(struct map *map, const void *key, size_t key_bytes);
void *map_remove_u64(struct map *map, uint64_t key);

/* Iterates in no particular order. The caller may remove the current entry, but not add any. *cursor
 * starts at 0; returns NULL at the end. */
void *map_next(const struct map *map, size_t *cursor);

#endif
