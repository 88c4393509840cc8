/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/cache_queue.h"

#include <assert.h>

void cache_queue_init(struct cache_queue *queue)
{
    *queue = (struct cache_queue){.n = 0};
    for (unsigned i = 0; i < CACHE_PRIORITIES; i++)
        for (unsigned k = 0; k < CACHE_SEGMENTS; k++)
            list_init(&queue->classes[i].segments[k]);
    list_init(&queue->leaving);
    list_init(&queue->spilled);
}

static void append(struct cache_class *class, struct cache_entry *entry, enum cache_segment segment)
{
    entry->segment = (uint8_t)segment;
    list_append(&class->segments[segment], &entry->link);
    class->bytes[segment] += entry->bytes;
}

static struct cache_entry *first(const struct list *segment)
{
    struct list *link = list_first(segment);

    return link ? container_of(link, struct cache_entry, link) : NULL;
}

static void take(struct cache_class *class, struct cache_entry *entry)
{
    assert(class->bytes[entry->segment] >= entry->bytes);
    list_remove(&entry->link);
    class->bytes[entry->segment] -= entry->bytes;
}

void cache_queue_remove(struct cache_queue *queue, struct cache_entry *entry)
{
    assert(queue->n > 0);
    queue->n--;
    if (entry->segment < CACHE_SEGMENTS) {
        take(&queue->classes[entry->priority], entry);
        return;
    }
    list_remove(&entry->link);
    if (entry->segment == CACHE_LEAVING)
        queue->leaving_bytes -= entry->bytes;
}

/* More than half is protected: what is new would have too little time to be used again. */
static bool is_crowded(const struct cache_class *class)
{
    return class->bytes[CACHE_PROTECTED] > class->bytes[CACHE_PROBATION];
}

static void add_leaving(struct cache_queue *queue, struct cache_entry *entry)
{
    entry->segment = CACHE_LEAVING;
    list_append(&queue->leaving, &entry->link);
    queue->leaving_bytes += entry->bytes;
}

void cache_queue_add(struct cache_queue *queue, struct cache_entry *entry, bool used)
{
    struct cache_class *class = &queue->classes[entry->priority];
    struct cache_entry *least;

    queue->n++;
    if (entry->segment == CACHE_SPILLED) {
        list_append(&queue->spilled, &entry->link);
        return;
    }
    if (entry->segment == CACHE_LEAVING && !used) {
        add_leaving(queue, entry);
        return;
    }
    append(class, entry, used ? CACHE_PROTECTED : (enum cache_segment)entry->segment);
    while (is_crowded(class) && (least = first(&class->segments[CACHE_PROTECTED])) != entry) {
        take(class, least);
        append(class, least, CACHE_PROBATION);
    }
}

void cache_queue_leave(struct cache_queue *queue, struct cache_entry *entry)
{
    assert(entry->segment < CACHE_SEGMENTS);
    take(&queue->classes[entry->priority], entry);
    add_leaving(queue, entry);
}

struct cache_entry *cache_queue_next(const struct cache_queue *queue)
{
    struct cache_entry *next = NULL;

    for (unsigned i = 0; i < CACHE_PRIORITIES && !next; i++) {
        next = first(&queue->classes[i].segments[CACHE_PROBATION]);
        if (!next)
            next = first(&queue->classes[i].segments[CACHE_PROTECTED]);
    }
    return next;
}

/* Only the last one that is leaving is being written, if any is. */
struct cache_entry *cache_queue_victim(const struct cache_queue *queue)
{
    struct cache_entry *leaving = first(&queue->leaving), *next;

    if (leaving && !leaving->writing)
        return leaving;
    next = cache_queue_next(queue);
    return next ? next : leaving;
}

struct cache_entry *cache_queue_spilled(const struct cache_queue *queue)
{
    return first(&queue->spilled);
}
