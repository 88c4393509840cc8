/* SPDX-License-Identifier: Apache-2.0 */
/* The hash table of mappings by region, the sorted array of offered ones, and their references. */
#include "memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "proto/grow.h"
#include "written.h"

#define FIRST_BUCKETS 64
#define PAIR_MIN_BYTES ((size_t)1 << 20) /* of a private mapping: making a smaller one anew costs no more than resetting it */
#define NO_ROOM ", because this process has reached its limit of address space (ulimit -v) or of mappings (vm.max_map_count)"

static void drop_spares(struct memory *memory);

bool memory_init(struct memory *memory)
{
    memset(memory, 0, sizeof *memory);
    memory->n_buckets = FIRST_BUCKETS;
    memory->buckets = calloc(memory->n_buckets, sizeof *memory->buckets);
    return memory->buckets;
}

void memory_fini(struct memory *memory)
{
    drop_spares(memory);
    memory_unmap(memory_take_retired(memory));
    memory_unmap(memory->cached);
    for (size_t i = 0; i < memory->n_buckets; i++)
        memory_unmap(memory->buckets[i]);
    free(memory->buckets);
    free(memory->offered);
    ids_fini(&memory->unmapped);
    for (struct mapper *mapper = memory->mappers, *next; mapper; mapper = next) {
        next = mapper->next;
        free(mapper->devices);
        free(mapper);
    }
    memset(memory, 0, sizeof *memory);
}

/* ---- by region ---- */

/* The daemon numbers its regions consecutively, so the low bits spread them evenly. */
static struct mapping **bucket_of(const struct memory *memory, uint64_t region)
{
    return &memory->buckets[region & (memory->n_buckets - 1)];
}

static void add_to_bucket(struct memory *memory, struct mapping *mapping)
{
    struct mapping **bucket = bucket_of(memory, mapping->region);

    mapping->next = *bucket;
    *bucket = mapping;
}

static void grow(struct memory *memory)
{
    struct memory bigger = *memory;

    bigger.n_buckets = 2 * memory->n_buckets;
    bigger.buckets = calloc(bigger.n_buckets, sizeof(struct mapping *));
    if (!bigger.buckets)
        return; /* longer chains are only slower */
    for (size_t i = 0; i < memory->n_buckets; i++) {
        for (struct mapping *mapping = memory->buckets[i], *next; mapping; mapping = next) {
            next = mapping->next;
            add_to_bucket(&bigger, mapping);
        }
    }
    free(memory->buckets);
    *memory = bigger;
}

struct mapping *memory_find(const struct memory *memory, uint64_t region, uint64_t generation, bool writable)
{
    struct mapping *mapping = *bucket_of(memory, region);

    while (mapping && (mapping->region != region || mapping->generation != generation || mapping->access == MAPPING_COW ||
                       mapping->loan || (writable && mapping->access != MAPPING_WRITABLE)))
        mapping = mapping->next;
    return mapping;
}

struct mapping *memory_find_loaned(const struct memory *memory, uint64_t region)
{
    struct mapping *mapping = *bucket_of(memory, region);

    while (mapping && (mapping->region != region || !mapping->loan))
        mapping = mapping->next;
    return mapping;
}

static enum rdt_status add(struct memory *memory, const struct mapping *what, struct mapping **mapping_p, struct rdt_error *err)
{
    struct mapping *mapping = malloc(sizeof *mapping);

    if (!mapping)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the record of region %llu",
                             (unsigned long long)what->region);
    *mapping = *what;
    mapping->refs = 1;
    if (memory->count == memory->n_buckets)
        grow(memory);
    add_to_bucket(memory, mapping);
    memory->count++;
    *mapping_p = mapping;
    return RDT_OK;
}

static void *try_map(const struct mapping *what, int fd)
{
    return mmap(NULL, what->bytes, what->access == MAPPING_READABLE ? PROT_READ : PROT_READ | PROT_WRITE,
                what->access == MAPPING_COW ? MAP_PRIVATE : MAP_SHARED, fd, 0);
}

static enum rdt_status map_fd(struct memory *memory, struct mapping *what, int fd, struct mapping **mapping_p,
                              struct rdt_error *err)
{
    unsigned long long region = what->region;
    enum rdt_status status;
    struct stat st;
    void *addr;

    /* A read behind the end of a shorter file would raise SIGBUS. */
    if (fstat(fd, &st) < 0)
        return rdt_error_sys(err, errno, "cannot look at the fd of region %llu", region);
    if (st.st_size < 0 || (uint64_t)st.st_size < what->bytes)
        return rdt_error_set(err, RDT_PROTOCOL, "region %llu has %zu bytes, but its fd only %lld", region, what->bytes,
                             (long long)st.st_size);
    addr = try_map(what, fd);
    if (addr == MAP_FAILED && errno == ENOMEM) {
        drop_spares(memory);
        if (memory->retired) {
            memory_unmap(memory_take_retired(memory));
            addr = try_map(what, fd);
        }
    }
    if (addr == MAP_FAILED)
        return rdt_error_sys(err, errno, "cannot map %zu bytes of region %llu%s", what->bytes, region,
                             errno == ENOMEM ? NO_ROOM : "");
    what->addr = addr;
    status = add(memory, what, mapping_p, err);
    if (status != RDT_OK)
        (void)munmap(addr, what->bytes);
    return status;
}

enum rdt_status memory_map(struct memory *memory, uint64_t region, uint64_t generation, int fd, size_t bytes, bool writable,
                           enum mapping_origin origin, struct mapping **mapping_p, struct rdt_error *err)
{
    struct mapping what = {.region = region,
                           .generation = generation,
                           .bytes = bytes,
                           .origin = origin,
                           .access = writable ? MAPPING_WRITABLE : MAPPING_READABLE};
    struct mapping *known = memory_find(memory, region, generation, writable);

    if (!known)
        return map_fd(memory, &what, fd, mapping_p, err);
    memory_ref(known);
    *mapping_p = known;
    return RDT_OK;
}

enum rdt_status memory_map_cow(struct memory *memory, uint64_t region, uint64_t generation, int fd, size_t bytes,
                               struct mapping **mapping_p, struct rdt_error *err)
{
    struct mapping what = {
        .region = region, .generation = generation, .bytes = bytes, .origin = MAPPING_FETCHED, .access = MAPPING_COW};
    struct mapping *pair = memory_find(memory, region, generation, false), *spare = pair ? pair->pair : NULL;

    if (!spare || spare->bytes != bytes)
        return map_fd(memory, &what, fd, mapping_p, err);
    pair->pair = NULL;
    spare->pair = pair;
    memory_ref(pair);
    spare->refs = 1;
    add_to_bucket(memory, spare);
    memory->count++;
    *mapping_p = spare;
    return RDT_OK;
}

void memory_pair(struct memory *memory, struct mapping *mapping, int fd)
{
    struct mapping *pair;

    if (mapping->pair || mapping->bytes < PAIR_MIN_BYTES)
        return;
    if (memory_map(memory, mapping->region, mapping->generation, fd, mapping->bytes, false, MAPPING_FETCHED, &pair, NULL) !=
        RDT_OK)
        return;
    if (pair->access != MAPPING_READABLE) {
        memory_unref(memory, pair);
        return;
    }
    if (pair->caching == MAPPING_UNCACHED)
        pair->caching = MAPPING_CACHEABLE;
    mapping->pair = pair;
}

enum rdt_status memory_adopt(struct memory *memory, uint64_t region, uint64_t generation, void *addr, size_t bytes,
                             struct mapper *mapper, const char *device, struct mapping **mapping_p, struct rdt_error *err)
{
    struct mapping what = {.region = region,
                           .generation = generation,
                           .addr = addr,
                           .bytes = bytes,
                           .origin = MAPPING_IMPORTED,
                           .access = MAPPING_WRITABLE,
                           .mapper = mapper};

    (void)snprintf(what.device, sizeof what.device, "%s", device);
    return add(memory, &what, mapping_p, err);
}

/* ---- on devices ---- */

struct mapper *memory_mapper(const struct memory *memory, const char *kind)
{
    struct mapper *mapper = memory->mappers;

    while (mapper && strcasecmp(mapper->memory, kind) != 0)
        mapper = mapper->next;
    return mapper;
}

enum rdt_status memory_map_device(struct memory *memory, uint64_t region, uint64_t generation, const struct rdt_shared *shared,
                                  enum mapping_origin origin, struct mapping **mapping_p, struct rdt_error *err)
{
    struct mapping what = {
        .region = region, .generation = generation, .bytes = shared->bytes, .origin = origin, .access = MAPPING_WRITABLE};
    struct mapping *known = memory_find(memory, region, generation, true);
    enum rdt_status status;
    void *addr;

    if (known) {
        memory_ref(known);
        *mapping_p = known;
        return RDT_OK;
    }
    what.mapper = memory_mapper(memory, shared->memory);
    if (!what.mapper)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "this process has no mapper for \"%.32s\" memory: register one with rdt_map_by", shared->memory);
    (void)snprintf(what.device, sizeof what.device, "%s", shared->device);
    status = what.mapper->ops.map(what.mapper->ops.arg, shared, &addr, &what.mapped, err);
    if (status != RDT_OK) {
        rdt_error_prefix(err, "region %llu on %s %s", (unsigned long long)region, shared->memory, shared->device);
        return status;
    }
    what.addr = addr;
    status = add(memory, &what, mapping_p, err);
    if (status != RDT_OK)
        what.mapper->ops.unmap(what.mapper->ops.arg, addr, what.mapped);
    return status;
}

/* ---- by address ---- */

/* Returns the index of the first offered mapping that ends above addr. */
static size_t first_above(const struct memory *memory, uintptr_t addr)
{
    size_t low = 0, high = memory->n_offered;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct mapping *mapping = memory->offered[middle];

        if ((uintptr_t)mapping->addr + mapping->bytes > addr)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct mapping *memory_at(const struct memory *memory, uintptr_t lo, uintptr_t hi)
{
    size_t place = first_above(memory, lo);

    if (place == memory->n_offered || (uintptr_t)memory->offered[place]->addr >= hi)
        return NULL;
    return memory->offered[place];
}

enum rdt_status memory_offer(struct memory *memory, struct mapping *mapping, struct rdt_error *err)
{
    uintptr_t lo = (uintptr_t)mapping->addr, hi = lo + mapping->bytes;
    struct mapping *other = memory_at(memory, lo, hi);
    struct mapping **offered;
    size_t place;

    if (other)
        return rdt_error_set(err, RDT_INVALID,
                             "[%p, +%zu) overlaps [%p, +%zu), which the daemon knows already: rdt_dealloc it first",
                             (void *)mapping->addr, mapping->bytes, (void *)other->addr, other->bytes);
    offered = array_grow(memory->offered, memory->n_offered, &memory->room, sizeof *offered);
    if (!offered)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the record of [%p, +%zu)", (void *)mapping->addr,
                             mapping->bytes);
    memory->offered = offered;
    place = first_above(memory, lo);
    memmove(memory->offered + place + 1, memory->offered + place, (memory->n_offered - place) * sizeof *memory->offered);
    memory->offered[place] = mapping;
    memory->n_offered++;
    mapping->offered = true;
    return RDT_OK;
}

void memory_withdraw(struct memory *memory, struct mapping *mapping)
{
    size_t place = first_above(memory, (uintptr_t)mapping->addr);

    if (!mapping->offered)
        return;
    mapping->offered = false;
    memory->n_offered--;
    memmove(memory->offered + place, memory->offered + place + 1, (memory->n_offered - place) * sizeof *memory->offered);
}

/* ---- references ---- */

void memory_ref(struct mapping *mapping)
{
    mapping->refs++;
}

/* Takes the mapping out of both indexes, so that nobody finds it any more. */
static void take_out(struct memory *memory, struct mapping *mapping)
{
    struct mapping **at;

    memory_withdraw(memory, mapping);
    for (at = bucket_of(memory, mapping->region); *at != mapping;)
        at = &(*at)->next;
    *at = mapping->next;
    memory->count--;
}

static void retire(struct memory *memory, struct mapping *mapping)
{
    mapping->next = memory->retired;
    memory->retired = mapping;
}

void memory_unref(struct memory *memory, struct mapping *mapping)
{
    struct mapping *pair;

    if (!mapping || --mapping->refs > 0 || mapping->caching == MAPPING_CACHED)
        return;
    take_out(memory, mapping);
    retire(memory, mapping);
    pair = mapping->pair; /* A mapping for reading has a spare only while it is cached. */
    mapping->pair = NULL;
    if (pair && pair->caching == MAPPING_CACHED && !pair->pair)
        mapping->caching = MAPPING_CACHED; /* It may become the spare. */
    memory_unref(memory, pair);
}

/* ---- the cache ---- */

bool memory_may_cache(const struct mapping *mapping, enum mapping_origin origin)
{
    return mapping && mapping->caching == MAPPING_CACHEABLE && mapping->origin == origin &&
           mapping->access == MAPPING_WRITABLE && !mapping->mapper && mapping->refs == 1;
}

bool memory_cache_readable(struct mapping *mapping)
{
    if (mapping && mapping->access == MAPPING_COW)
        mapping = mapping->pair;
    if (!mapping || mapping->caching == MAPPING_UNCACHED ||
        (mapping->access != MAPPING_READABLE && !(mapping->mapper && mapping->origin == MAPPING_FETCHED)))
        return false;
    mapping->caching = MAPPING_CACHED;
    return true;
}

void memory_cache(struct memory *memory, struct mapping *mapping)
{
    mapping->refs = 0;
    take_out(memory, mapping);
    mapping->next = memory->cached;
    memory->cached = mapping;
}

static struct mapping **find_cached(struct memory *memory, uint64_t region)
{
    struct mapping **at = &memory->cached;

    while (*at && (*at)->region != region)
        at = &(*at)->next;
    return at;
}

bool memory_is_cached(const struct memory *memory, uint64_t region)
{
    for (const struct mapping *mapping = memory->cached; mapping; mapping = mapping->next)
        if (mapping->region == region)
            return true;
    return false;
}

/* Takes the mapping out of `cached` or `retired`, and adds it to the others, with one reference. */
static struct mapping *take_back(struct memory *memory, struct mapping **at)
{
    struct mapping *mapping = *at;

    *at = mapping->next;
    mapping->refs = 1;
    add_to_bucket(memory, mapping);
    memory->count++;
    return mapping;
}

struct mapping *memory_take_cached(struct memory *memory, uint64_t region, uint64_t generation, enum mapping_origin origin)
{
    struct mapping **at = find_cached(memory, region);

    if (!*at)
        return NULL;
    (*at)->generation = generation;
    (*at)->origin = origin;
    (*at)->released = false;
    return take_back(memory, at);
}

struct mapping *memory_take_retired_again(struct memory *memory, uint64_t region, uint64_t generation)
{
    struct mapping **at = &memory->retired;

    while (*at && ((*at)->region != region || (*at)->generation != generation || (*at)->access == MAPPING_COW || (*at)->loan))
        at = &(*at)->next;
    return *at ? take_back(memory, at) : NULL;
}

void memory_move(struct memory *memory, uint64_t from, uint64_t region, uint64_t generation)
{
    struct mapping **at = bucket_of(memory, from), *mapping;

    while (*at && ((*at)->region != from || (*at)->caching != MAPPING_CACHED || !(*at)->mapper))
        at = &(*at)->next;
    mapping = *at;
    if (!mapping)
        return;
    *at = mapping->next;
    mapping->region = region;
    mapping->generation = generation;
    add_to_bucket(memory, mapping);
}

static void drop_spare(struct memory *memory, struct mapping *mapping)
{
    if (mapping->access != MAPPING_READABLE || !mapping->pair)
        return;
    retire(memory, mapping->pair);
    mapping->pair = NULL;
}

static void drop_spares(struct memory *memory)
{
    for (size_t i = 0; i < memory->n_buckets; i++)
        for (struct mapping *mapping = memory->buckets[i]; mapping; mapping = mapping->next)
            drop_spare(memory, mapping);
}

void memory_keep(struct memory *memory, struct mapping *take_reset)
{
    for (struct mapping *mapping = take_reset, *next; mapping; mapping = next) {
        struct mapping *pair = memory_find(memory, mapping->region, mapping->generation, false);

        next = mapping->next;
        mapping->caching = MAPPING_UNCACHED;
        if (pair && pair->caching == MAPPING_CACHED && !pair->pair)
            pair->pair = mapping;
        else
            retire(memory, mapping);
    }
}

static void stop_caching_readable(struct memory *memory, struct mapping *mapping)
{
    if (mapping->caching != MAPPING_CACHED)
        return;
    drop_spare(memory, mapping);
    mapping->caching = MAPPING_CACHEABLE;
    memory->left_device |= mapping->mapper != NULL;
    memory_ref(mapping);
    memory_unref(memory, mapping); /* retires it if that was the only reference */
}

void memory_uncache(struct memory *memory, uint64_t region)
{
    struct mapping **at = find_cached(memory, region), *mapping = *at, *next;

    if (mapping) {
        *at = mapping->next;
        retire(memory, mapping);
    }
    for (mapping = *bucket_of(memory, region); mapping; mapping = next) {
        next = mapping->next;
        if (mapping->region == region)
            stop_caching_readable(memory, mapping);
    }
}

bool memory_has_cached(const struct memory *memory)
{
    if (memory->cached)
        return true;
    for (size_t i = 0; i < memory->n_buckets; i++)
        for (const struct mapping *mapping = memory->buckets[i]; mapping; mapping = mapping->next)
            if (mapping->caching == MAPPING_CACHED && mapping->refs == 0)
                return true;
    return false;
}

bool memory_has_fetched_on_devices(const struct memory *memory)
{
    for (size_t i = 0; i < memory->n_buckets; i++)
        for (const struct mapping *mapping = memory->buckets[i]; mapping; mapping = mapping->next)
            if (mapping->mapper && mapping->origin == MAPPING_FETCHED)
                return true;
    return false;
}

void memory_uncache_all(struct memory *memory)
{
    while (memory->cached)
        memory_uncache(memory, memory->cached->region);
    for (size_t i = 0; i < memory->n_buckets; i++) {
        for (struct mapping *mapping = memory->buckets[i], *next; mapping; mapping = next) {
            next = mapping->next;
            stop_caching_readable(memory, mapping);
        }
    }
}

/* ---- what the session has ---- */

static bool is_own(const struct mapping *mapping)
{
    return mapping->origin != MAPPING_FETCHED && !mapping->released;
}

bool memory_list_own(const struct memory *memory, struct id_list *list)
{
    bool ok = true;

    for (size_t i = 0; i < memory->n_buckets && ok; i++)
        for (const struct mapping *mapping = memory->buckets[i]; mapping && ok; mapping = mapping->next)
            ok = !is_own(mapping) || ids_append(list, mapping->region);
    for (size_t i = 0; i < memory->unmapped.count && ok; i++)
        ok = ids_append(list, memory->unmapped.ids[i]);
    return ok;
}

bool memory_has_own(const struct memory *memory, uint64_t region)
{
    const struct mapping *mapping = *bucket_of(memory, region);

    while (mapping && (mapping->region != region || !is_own(mapping) || mapping->loan))
        mapping = mapping->next;
    return mapping;
}

/* ---- unmapping ---- */

struct mapping *memory_take_retired(struct memory *memory)
{
    struct mapping *retired = memory->retired;

    memory->retired = NULL;
    return retired;
}

static void unmap(struct mapping *mapping)
{
    if (mapping->origin != MAPPING_IMPORTED && mapping->mapper)
        mapping->mapper->ops.unmap(mapping->mapper->ops.arg, mapping->addr, mapping->mapped);
    else if (mapping->origin != MAPPING_IMPORTED)
        (void)munmap(mapping->addr, mapping->bytes);
    free(mapping);
}

void memory_unmap(struct mapping *take_retired)
{
    for (struct mapping *mapping = take_retired, *next; mapping; mapping = next) {
        next = mapping->next;
        unmap(mapping);
    }
}

struct mapping *memory_unmap_or_reset(struct mapping *take_retired)
{
    struct mapping *reset = NULL;

    for (struct mapping *mapping = take_retired, *next; mapping; mapping = next) {
        next = mapping->next;
        if (mapping->access == MAPPING_COW && mapping->caching == MAPPING_CACHED &&
            written_drop(mapping->addr, mapping->bytes)) {
            mapping->next = reset;
            reset = mapping;
        } else {
            unmap(mapping);
        }
    }
    return reset;
}

uint64_t memory_mark(struct memory *memory)
{
    return ++memory->last_mark;
}
