/* Open-addressing hash table from a byte string or a number to a pointer. Keys of the byte-string kind are borrowed: they must live
 * in the value. It grows bit by bit, with each put a few entries: no call takes long, however many there are. Not thread-safe. */
#ifndef DAEMON_MAP_H
#define DAEMON_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_slot;

struct map {
    struct map_slot *slots;
    size_t n_slots, used, removed; /* used: in both tables */
    struct map_slot *old;          /* a smaller table whose entries move over; NULL: none */
    size_t n_old, moved;
    uint64_t seed; /* random: ids come from clients */
};

void map_init(struct map *map);
void map_fini(struct map *map); /* values are the caller's */

size_t map_count(const struct map *map);

/* NULL: not there. */
void *map_get(const struct map *map, const void *key, size_t key_bytes);
void *map_get_u64(const struct map *map, uint64_t key);

/* false: no memory. The key must not be there yet (asserted). */
bool map_put(struct map *map, const void *key, size_t key_bytes, void *value);
bool map_put_u64(struct map *map, uint64_t key, void *value);

/* Another value for a key that is there (asserted), with the key in it: needs no memory. */
void map_replace(struct map *map, const void *key, size_t key_bytes, void *value);

/* The value that was there, or NULL. */
void *map_remove(struct map *map, const void *key, size_t key_bytes);
void *map_remove_u64(struct map *map, uint64_t key);

/* In no particular order; the body may remove the current entry, not add. *cursor starts at 0; NULL at the end. */
void *map_next(const struct map *map, size_t *cursor);

#endif
