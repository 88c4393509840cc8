/* SPDX-License-Identifier: Apache-2.0 */
/* Linear probing with tombstones: a removal moves nothing, so an iteration may remove the current entry.
 * Slots have 24 bytes and store 32 bits of the hash, so a probe that misses reads no key, and neither does
 * growing. */
#include "daemon/base/map.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define FIRST_SLOTS 16u
#define MIN_SHRINK_SLOTS 1024u /* a table of up to so many slots does not shrink */
/* slots of the old table that one put moves; the old table is empty long before the new one is full */
#define MOVED_AT_ONCE 32u
#define NUMBER_KEY UINT32_MAX /* value of key_bytes for a key that is a number */

struct map_slot {
    union {
        const void *bytes;
        uint64_t number;
    } key;
    void *value; /* NULL: never used; &tombstone: removed */
    uint32_t key_bytes;
    uint32_t hash;
};

static char tombstone;

/* ---- hash: SipHash-1-3 (Aumasson and Bernstein), so that a client cannot choose ids that collide ---- */

struct sip {
    uint64_t v0, v1, v2, v3;
};

static inline uint64_t rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void sip_round(struct sip *s)
{
    s->v0 += s->v1, s->v1 = rotate(s->v1, 13) ^ s->v0, s->v0 = rotate(s->v0, 32);
    s->v2 += s->v3, s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 += s->v3, s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 += s->v1, s->v1 = rotate(s->v1, 17) ^ s->v2, s->v2 = rotate(s->v2, 32);
}

static uint32_t hash_bytes(uint64_t seed, const void *key, size_t bytes)
{
    uint64_t k0 = seed, k1 = rotate(seed, 32) ^ 0x9e3779b97f4a7c15u;
    struct sip s = {k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du, k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u};
    const unsigned char *p = key;
    uint64_t word;
    size_t left = bytes;
    for (; left >= 8; left -= 8, p += 8) {
        memcpy(&word, p, 8);
        s.v3 ^= word;
        sip_round(&s);
        s.v0 ^= word;
    }
    word = 0;
    if (left > 0)
        memcpy(&word, p, left);
    word |= (uint64_t)bytes << 56;
    s.v3 ^= word;
    sip_round(&s);
    s.v0 ^= word;
    s.v2 ^= 0xff;
    for (int i = 0; i < 3; i++)
        sip_round(&s);
    return (uint32_t)(s.v0 ^ s.v1 ^ s.v2 ^ s.v3);
}

/* ---- slots ---- */

/* The process has one random secret, so that a short-lived map costs no system call; each map derives its
 * own seed. */
static uint64_t new_seed(void)
{
    static _Atomic uint64_t secret, n_maps;
    uint64_t seed = atomic_load(&secret);

    if (seed == 0) {
        if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) {
            /* Happens only shortly after a machine has booted: the seed is weaker, which is no reason to
             * fail. */
            struct timespec now;
            clock_gettime(CLOCK_MONOTONIC, &now);
            seed = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u ^ (uintptr_t)&secret;
        }
        atomic_store(&secret, seed);
    }
    return seed + (atomic_fetch_add(&n_maps, 1) + 1) * 0x9e3779b97f4a7c15u;
}

void map_init(struct map *map)
{
    *map = (struct map){.seed = new_seed()};
}

void map_fini(struct map *map)
{
    free(map->slots);
    free(map->old);
    map->slots = map->old = NULL;
    map->n_slots = map->used = map->removed = map->n_old = map->moved = 0;
}

size_t map_count(const struct map *map)
{
    return map->used;
}

static bool slot_live(const struct map_slot *slot)
{
    return slot->value && slot->value != &tombstone;
}

static bool slot_is(const struct map_slot *slot, const struct map_slot *wanted)
{
    if (slot->hash != wanted->hash || slot->key_bytes != wanted->key_bytes || !slot_live(slot))
        return false;
    if (wanted->key_bytes == NUMBER_KEY)
        return slot->key.number == wanted->key.number;
    return wanted->key_bytes == 0 || memcmp(slot->key.bytes, wanted->key.bytes, wanted->key_bytes) == 0;
}

static struct map_slot bytes_key(const struct map *map, const void *key, size_t key_bytes)
{
    assert(key_bytes < NUMBER_KEY);
    return (struct map_slot){.key.bytes = key, .key_bytes = (uint32_t)key_bytes, .hash = hash_bytes(map->seed, key, key_bytes)};
}

static struct map_slot number_key(const struct map *map, uint64_t key)
{
    return (struct map_slot){.key.number = key, .key_bytes = NUMBER_KEY, .hash = hash_bytes(map->seed, &key, sizeof key)};
}

static struct map_slot *find_in(struct map_slot *slots, size_t n_slots, const struct map_slot *wanted)
{
    size_t mask = n_slots - 1;
    for (size_t i = wanted->hash & mask; slots[i].value; i = (i + 1) & mask) {
        if (slot_is(&slots[i], wanted))
            return &slots[i];
    }
    return NULL;
}

static struct map_slot *find(const struct map *map, const struct map_slot *wanted)
{
    struct map_slot *slot;
    if (map->used == 0)
        return NULL;
    slot = find_in(map->slots, map->n_slots, wanted);
    return !slot && map->old ? find_in(map->old, map->n_old, wanted) : slot;
}

static void insert(struct map *map, const struct map_slot *slot)
{
    size_t mask = map->n_slots - 1, i = slot->hash & mask;
    while (slot_live(&map->slots[i]))
        i = (i + 1) & mask;
    if (map->slots[i].value == &tombstone)
        map->removed--;
    map->slots[i] = *slot;
}

/* A moved slot becomes a tombstone, so that entries behind it are still found. */
static void move_some(struct map *map, size_t n)
{
    for (; map->old && n > 0; n--) {
        struct map_slot *slot = &map->old[map->moved];
        if (slot_live(slot)) {
            insert(map, slot);
            slot->value = &tombstone;
        }
        if (++map->moved == map->n_old) {
            free(map->old);
            map->old = NULL;
            map->n_old = map->moved = 0;
        }
    }
}

/* Keeps at most three quarters of the slots used or removed, so that probes are short. Many removed slots
 * lead to a rehash, not to a larger table. With less than an eighth in use, the table shrinks. */
static bool make_room(struct map *map)
{
    size_t n_slots = map->n_slots == 0 ? FIRST_SLOTS : (map->used + 1) * 2 > map->n_slots ? map->n_slots * 2 : map->n_slots;
    bool full = (map->used + map->removed + 1) * 4 > map->n_slots * 3;
    struct map_slot *slots;
    if (!full && (map->old || map->n_slots <= MIN_SHRINK_SLOTS || (map->used + 1) * 8 >= map->n_slots))
        return true;
    if (!full)
        n_slots = map->n_slots / 4;
    move_some(map, map->n_old); /* never many: the move began long ago */
    slots = calloc(n_slots, sizeof(*slots));
    if (!slots)
        return !full;
    map->old = map->slots;
    map->n_old = map->n_slots;
    map->moved = 0;
    map->slots = slots;
    map->n_slots = n_slots;
    map->removed = 0;
    return true;
}

static bool put(struct map *map, struct map_slot slot, void *value)
{
    assert(value);
    assert(!find(map, &slot));
    if (!make_room(map))
        return false;
    move_some(map, MOVED_AT_ONCE);
    slot.value = value;
    insert(map, &slot);
    map->used++;
    return true;
}

static void *remove_entry(struct map *map, const struct map_slot *wanted)
{
    struct map_slot *slot = find(map, wanted);
    if (!slot)
        return NULL;
    void *value = slot->value;
    size_t mask = map->n_slots - 1, i;
    map->used--;
    slot->value = &tombstone;
    if (slot < map->slots || slot >= map->slots + map->n_slots)
        return value; /* the old table will be freed as a whole */
    i = (size_t)(slot - map->slots);
    map->removed++;
    /* No probe passes the end of a run, so tombstones there can become unused slots. */
    if (!map->slots[(i + 1) & mask].value) {
        for (; map->slots[i].value == &tombstone; i = (i - 1) & mask) {
            map->slots[i].value = NULL;
            map->removed--;
        }
    }
    return value;
}

void *map_get(const struct map *map, const void *key, size_t key_bytes)
{
    struct map_slot wanted = bytes_key(map, key, key_bytes), *slot = find(map, &wanted);
    return !slot ? NULL : slot->value;
}

void *map_get_u64(const struct map *map, uint64_t key)
{
    struct map_slot wanted = number_key(map, key), *slot = find(map, &wanted);
    return !slot ? NULL : slot->value;
}

bool map_put(struct map *map, const void *key, size_t key_bytes, void *value)
{
    return put(map, bytes_key(map, key, key_bytes), value);
}

bool map_put_u64(struct map *map, uint64_t key, void *value)
{
    return put(map, number_key(map, key), value);
}

void map_replace(struct map *map, const void *key, size_t key_bytes, void *value)
{
    struct map_slot wanted = bytes_key(map, key, key_bytes), *slot = find(map, &wanted);
    assert(slot && value);
    slot->key.bytes = key;
    slot->value = value;
}

void *map_remove(struct map *map, const void *key, size_t key_bytes)
{
    struct map_slot wanted = bytes_key(map, key, key_bytes);
    return remove_entry(map, &wanted);
}

void *map_remove_u64(struct map *map, uint64_t key)
{
    struct map_slot wanted = number_key(map, key);
    return remove_entry(map, &wanted);
}

void *map_next(const struct map *map, size_t *cursor)
{
    while (*cursor < map->n_slots + map->n_old) {
        size_t i = (*cursor)++;
        const struct map_slot *slot = i < map->n_slots ? &map->slots[i] : &map->old[i - map->n_slots];
        if (slot_live(slot))
            return slot->value;
    }
    return NULL;
}
