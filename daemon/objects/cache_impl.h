/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the cache share, each of which uses those behind it: cache.c (the life of an object in it), cache_evict.c
 * (which objects go, and when), cache_spill.c (those that leave for files), cache_place.c (where they are), and cache_owner.c
 * (whose they are). */
#ifndef DAEMON_CACHE_IMPL_H
#define DAEMON_CACHE_IMPL_H

#include "daemon/objects/cache.h"

/* cache.h draws the moves. */
enum cached_state { CACHED_NEW, CACHED_IDLE, CACHED_HELD, CACHED_OUT };

struct cached {
    struct cache_entry entry; /* SPILLED: it is in a file only */
    struct object *object;
    struct cache_owner *owner;
    uint64_t file_bytes; /* of its file, also while that is being written; 0: it has none */
    uint32_t n_regions;  /* of the object */
    uint8_t state;       /* enum cached_state */
    bool used;           /* since it was in the queue */
};

_Static_assert(sizeof(struct cached) <= CACHE_HEAP_BYTES, "an object in the cache is charged what it takes");

static inline struct cached *cached_of(const struct cache_entry *entry) /* NULL for NULL */
{
    return entry ? container_of(entry, struct cached, entry) : NULL;
}

static inline bool cached_is_spilled(const struct cached *cached)
{
    return cached->entry.segment == CACHE_SPILLED;
}

/* ---- cache_evict.c ---- */

/* The owner has more: what must go, or could be written, is dealt with in the next turns. */
void cache_press(struct cache_owner *owner);

/* ---- cache_spill.c ---- */

bool cache_stores(const struct cache *cache); /* whether evicted objects are stored */

/* Whether the object, which is idle and must leave memory, has left for its file. */
bool cached_spill(struct cached *cached);

/* It ends: counts why it has not left for a file. */
void cached_count_unspilled(struct cached *cached);

/* The most bytes of files of one owner. */
uint64_t cache_owner_file_limit(const struct cache *cache);

/* The owner's objects have changed: whether some should be written now. */
bool cache_note_near(struct cache_owner *owner);

/* Begins to write the object that goes next, if it goes soon. true: call it again, after the eviction of *victim_p, if that is
 * not NULL. */
bool cache_write_ahead(struct cache *cache, struct cached **victim_p);

/* The file that was begun has so many bytes; 0: there is none. */
void cache_end_writing(struct cache *cache, uint64_t bytes);

/* ---- cache_place.c ---- */

/* It is live, or is so no more; with its bytes, and where it is. */
void cached_count(const struct cached *cached, bool more);

void cached_set_state(struct cached *cached, enum cached_state state);
void cached_enter_queue(struct cached *cached);
void cached_leave_queue(struct cached *cached, enum cached_state state);

/* An idle one, for as long as nothing else happens. used: as for cache_queue_add, and its file goes. */
void cached_queue_add(struct cached *cached, bool used);
void cached_queue_remove(struct cached *cached);

/* The object, which is idle, is in its file from now on. */
void cached_move_to_file(struct cached *cached);

void cached_set_file(struct cached *cached, uint64_t bytes); /* notes the bytes of its file */

/* It was used, or ends: its file is needed no more. */
void cached_discard_file(struct cached *cached);

/* ---- cache_owner.c ---- */

struct cache_owner *cache_owner_of(struct cache *cache, struct account *account); /* NULL: no memory */
void cache_owner_unref(struct cache_owner *owner);                                /* it has one object less */

/* The owner has one idle object more, or less, of those that the order is about. n: how many it has now. */
void cache_stand(struct cache_owner *owner, enum cache_order order, bool joins, uint64_t n, uint64_t bytes);
void cache_end_turn(struct cache_owner *owner); /* the owners of a person take turns */

/* An owner of the person with most; there must be one. */
struct cache_owner *cache_owner_with_most(const struct cache *cache, enum cache_order order);

#endif
