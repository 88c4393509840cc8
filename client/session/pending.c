/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table of consecutive ids, and a binary heap of deadlines. Adding to the table cannot fail: a table that cannot grow
 * only becomes slower. Adding to the heap cannot fail after expiry_reserve. */
#include "pending.h"

#include <stdlib.h>

#include "clock.h"

#define FIRST_BUCKETS 64

bool pending_init(struct pending_table *table)
{
    table->count = 0;
    table->n_buckets = FIRST_BUCKETS;
    table->buckets = calloc(table->n_buckets, sizeof *table->buckets);
    return table->buckets;
}

void pending_fini(struct pending_table *table)
{
    free(table->buckets);
    table->buckets = NULL;
    table->n_buckets = table->count = 0;
}

/* Ids are consecutive, so their low bits spread them evenly. */
static struct pending **bucket_of(const struct pending_table *table, uint64_t id)
{
    return &table->buckets[id & (table->n_buckets - 1)];
}

static void grow(struct pending_table *table)
{
    struct pending_table bigger = {.n_buckets = 2 * table->n_buckets};

    bigger.buckets = calloc(bigger.n_buckets, sizeof *bigger.buckets);
    if (!bigger.buckets)
        return;
    for (struct pending *pending = pending_take_all(table), *next; pending; pending = next) {
        next = pending->next;
        pending_add(&bigger, pending);
    }
    free(table->buckets);
    *table = bigger;
}

void pending_add(struct pending_table *table, struct pending *pending)
{
    struct pending **bucket;

    if (table->count == table->n_buckets)
        grow(table);
    bucket = bucket_of(table, pending->id);
    pending->next = *bucket;
    *bucket = pending;
    table->count++;
}

struct pending *pending_find(const struct pending_table *table, uint64_t id)
{
    struct pending *pending = *bucket_of(table, id);

    while (pending && pending->id != id)
        pending = pending->next;
    return pending;
}

struct pending *pending_take(struct pending_table *table, uint64_t id)
{
    for (struct pending **at = bucket_of(table, id); *at; at = &(*at)->next) {
        struct pending *pending = *at;

        if (pending->id == id) {
            *at = pending->next;
            table->count--;
            return pending;
        }
    }
    return NULL;
}

struct pending *pending_take_all(struct pending_table *table)
{
    struct pending *all = NULL;

    for (size_t i = 0; i < table->n_buckets; i++) {
        while (table->buckets[i]) {
            struct pending *pending = table->buckets[i];

            table->buckets[i] = pending->next;
            pending->next = all;
            all = pending;
        }
    }
    table->count = 0;
    return all;
}

/* ---- deadlines ---- */

bool expiry_reserve(struct expiry_heap *heap, size_t more)
{
    struct expiry **at;
    size_t room;

    if (more <= heap->room - heap->count)
        return true;
    room = heap->count + more > 2 * heap->room ? heap->count + more : 2 * heap->room;
    at = realloc(heap->at, (room + 1) * sizeof(struct expiry *));
    if (!at)
        return false;
    heap->at = at;
    heap->room = room;
    return true;
}

void expiry_fini(struct expiry_heap *heap)
{
    free(heap->at);
    heap->at = NULL;
    heap->count = heap->room = 0;
}

static void put_at(struct expiry_heap *heap, size_t place, struct expiry *expiry)
{
    heap->at[place] = expiry;
    expiry->place = place;
}

static void sift_up(struct expiry_heap *heap, size_t place, struct expiry *expiry)
{
    while (place > 1 && heap->at[place / 2]->at_ns > expiry->at_ns) {
        put_at(heap, place, heap->at[place / 2]);
        place /= 2;
    }
    put_at(heap, place, expiry);
}

static void sift_down(struct expiry_heap *heap, size_t place, struct expiry *expiry)
{
    for (size_t child = 2 * place; child <= heap->count; child = 2 * place) {
        if (child < heap->count && heap->at[child + 1]->at_ns < heap->at[child]->at_ns)
            child++;
        if (heap->at[child]->at_ns >= expiry->at_ns)
            break;
        put_at(heap, place, heap->at[child]);
        place = child;
    }
    put_at(heap, place, expiry);
}

void expiry_add(struct expiry_heap *heap, struct expiry *expiry)
{
    heap->count++;
    sift_up(heap, heap->count, expiry);
}

void expiry_remove(struct expiry_heap *heap, struct expiry *expiry)
{
    size_t place = expiry->place;
    struct expiry *last;

    if (place == 0)
        return;
    expiry->place = 0;
    last = heap->at[heap->count--];
    if (last == expiry)
        return;
    if (place > 1 && heap->at[place / 2]->at_ns > last->at_ns)
        sift_up(heap, place, last);
    else
        sift_down(heap, place, last);
}

int64_t expiry_next_ns(const struct expiry_heap *heap)
{
    return heap->count > 0 ? heap->at[1]->at_ns : CLOCK_NEVER;
}
